"""`TunemarkCallback`: record a training of your own with the Hugging Face Trainer.

The record is a published result of the source 999, like the one that `tunemark import log` makes. It is not a submission:
your Trainer followed no workload card, and a callback sees less than the harness. It never leaves your machine by itself.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tunemark.harness.plan.resolve import package_versions
from tunemark.harness.vendors.cpu import cpu_model
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.files import write_atomically
from tunemark.schema.privacy import scrub
from tunemark.schema.records.base import canonical_json
from tunemark.schema.records.plan import WARMUP_STEPS
from tunemark.schema.records.published import Claim, Conditions, Origin, PublishedResult
from tunemark.schema.vocabulary import Backend, Method, Padding, PublishedStatus

OWN_SOURCE = "999"
"""Source of a record that is no part of a document."""
LOSSES = 10
"""Most logged losses that the loss at the start and at the end is the mean of: a quarter of all, if that is less."""


class TunemarkCallback(TrainerCallback):  # type: ignore[misc] # transformers has no types here
    """Write steps, times, tokens, losses, environment and, on CUDA and ROCm, memory of a Trainer run into a file at its end.

    The clock is read after the device has finished its work: at the end of the warm-up, around evaluation and saving, which do not
    count, and at the end. Data loading and logging count. Tokens are those that the Trainer counts
    (`TrainingArguments(include_num_input_tokens_seen=True)`); without a count there is no rate of tokens, unless all rows are full.

    Parameters
    ----------
    path
        File of the record; it is replaced.
    model, accelerator
        Cards, by key, name or alias, where the names that the model and the device report have none.
    sequence_length
        Tokens in a row.
    full_rows
        True if every row has that number of tokens, for example with packing.
    dataset
        Name of the training data, to be shown.
    warmup_steps
        Steps before the clock starts.

    """

    def __init__(
        self,
        path: str | Path = "tunemark-trainer.json",
        *,
        model: str | None = None,
        accelerator: str | None = None,
        sequence_length: int | None = None,
        full_rows: bool = False,
        dataset: str | None = None,
        warmup_steps: int = WARMUP_STEPS,
    ) -> None:
        self.path, self.dataset, self.full_rows, self.sequence_length = Path(path), dataset, full_rows, sequence_length
        self.facts, self.warmup_steps = FactBase.of_project(), warmup_steps
        # Wrong names are errors now, not after hours of training.
        self.model = self.facts.model(model).key if model else None
        self.accelerator = self.facts.accelerator(accelerator).key if accelerator else None
        if full_rows and sequence_length is None:
            raise TunemarkError("full_rows", full_rows, "give sequence_length too; rows are full at that length")

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: object, **__: object) -> None:
        """Start the clock."""
        self._device = args.device
        self._first_step, self._paused_s = state.global_step, 0.0
        self._paused_at: float | None = None
        self._started = self._now()
        # Start of the timed steps: time, number of the step before, tokens so far.
        self._window = (self._started, state.global_step, state.num_input_tokens_seen) if not self.warmup_steps else None
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def on_step_begin(self, *_: object, **__: object) -> None:
        """Resume the clock after evaluation or saving."""
        if self._paused_at is not None:
            self._paused_s += self._now() - self._paused_at
            self._paused_at = None

    def on_step_end(self, _: TrainingArguments, state: TrainerState, control: TrainerControl, **__: object) -> None:
        """Begin the timed window after the warm-up, and stop the clock before evaluation or saving."""
        if self._window is None and state.global_step - self._first_step >= self.warmup_steps:
            self._window, self._paused_s = (self._now(), state.global_step, state.num_input_tokens_seen), 0.0
        if control.should_evaluate or control.should_save:
            self._paused_at = self._now()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, _: TrainerControl, **context: Any) -> None:  # noqa: ANN401
        """Write the record."""
        ended = self._now() if self._paused_at is None else self._paused_at
        if state.is_world_process_zero:
            write_atomically(self.path, canonical_json(self._record(args, state, context["model"], ended)))

    def _now(self) -> float:
        """Return the time in seconds, after all work of the device is done."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elif self._device.type in {"mps", "xpu"}:
            getattr(torch, self._device.type).synchronize()
        return time.perf_counter()

    def _record(self, args: TrainingArguments, state: TrainerState, model: torch.nn.Module, ended: float) -> PublishedResult:
        name, backend = _device(self._device)
        card = self.facts.accelerators[self.accelerator] if self.accelerator else self.facts.recognise_device(name, backend)
        devices = args.world_size * max(1, args.n_gpu)
        adapters: Mapping[str, Any] = getattr(model, "peft_config", {})
        if any(str(getattr(adapter.peft_type, "value", adapter.peft_type)) == "LORA" for adapter in adapters.values()):
            method = Method.QLORA if getattr(model, "is_loaded_in_4bit", False) else Method.LORA
        else:
            # Full if every weight is trained; else another method with a frozen base.
            method = Method.FULL if not adapters and all(weight.requires_grad for weight in model.parameters()) else Method.PEFT
        rows = args.per_device_train_batch_size * args.gradient_accumulation_steps * devices
        conditions = Conditions(
            model=self.model or self._model_key(model),
            method=method,
            accelerator=card.key if card else None,
            accelerator_count=devices,
            micro_batch=args.per_device_train_batch_size,
            gradient_accumulation=args.gradient_accumulation_steps,
            global_batch=rows,
            sequence_length=self.sequence_length,
            padding=Padding.NONE if self.full_rows else None,
            precision="bf16" if args.bf16 else "fp16" if args.fp16 else str(next(model.parameters()).dtype).removeprefix("torch."),
            dataset=scrub(self.dataset) if self.dataset else None,
            framework={package: scrub(version) for package, version in package_versions().items()},
            settings={"data_parallel": devices, "gradient_checkpointing": bool(args.gradient_checkpointing)},
        )
        return PublishedResult(
            id=f"{OWN_SOURCE}-001",
            source=OWN_SOURCE,
            section="Trainer of Hugging Face, recorded by TunemarkCallback",
            origin=Origin(kind="document"),
            labels={"model": scrub(type(model).__name__), "accelerator": scrub(name)},
            conditions=conditions,
            claims=dict(sorted(self._claims(state, rows, ended).items())),
            status=PublishedStatus.OK if state.global_step >= state.max_steps else PublishedStatus.PARTIAL,
            note="Timed by a callback, with data loading and logging, without evaluation and saving. It followed no workload card.",
        )

    def _model_key(self, model: torch.nn.Module) -> str | None:
        """Return the card of the name that the model was loaded from, or None."""
        name = str(getattr(getattr(model, "config", None), "_name_or_path", "") or "")
        try:
            return self.facts.model(name).key if name else None
        except TunemarkError:
            return next((card.key for card in self.facts.models.values() if card.hub_id == name), None)

    def _claims(self, state: TrainerState, rows: int, ended: float) -> dict[str, Claim]:
        """Return the figures of the run; rates only if steps were completed after the warm-up."""
        found = {
            "steps": _claim(state.global_step),
            "wall_s": _claim(ended - self._started, "From the first step to the end, with warm-up, evaluation and saving."),
        }
        losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
        if losses:
            count = max(1, min(LOSSES, len(losses) // 4))
            found["loss_start"] = _claim(sum(losses[:count]) / count, f"Mean of the first {count} logged losses.")
            found["train_loss"] = _claim(sum(losses[-count:]) / count, f"Mean of the last {count} logged losses.")
        if self._device.type == "cuda":
            found["peak_memory_bytes"] = _claim(torch.cuda.max_memory_allocated(self._device), "torch.cuda.max_memory_allocated")
        if self._window is None or state.global_step <= self._window[1]:
            return found
        began, step, tokens = self._window
        steps, seconds = state.global_step - step, ended - began - self._paused_s
        note = f"Mean of {steps} steps after {step - self._first_step} of warm-up."
        found |= {"step_time_s": _claim(seconds / steps, note), "samples_per_s": _claim(steps * rows / seconds, note)}
        if self.full_rows:
            found["tokens_per_s"] = _claim(steps * rows * (self.sequence_length or 0) / seconds, f"{note} All rows are full.")
        elif state.num_input_tokens_seen > tokens:
            found["tokens"] = _claim(state.num_input_tokens_seen, "Counted by the Trainer.")
            found["tokens_per_s"] = _claim((state.num_input_tokens_seen - tokens) / seconds, f"{note} Tokens counted by the Trainer.")
        return found


def _claim(value: float, note: str | None = None) -> Claim:
    return Claim(value=value, printed=f"{value:.12g}", note=note)


def _device(device: torch.device) -> tuple[str, Backend]:
    """Return the name of the device and its family."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device), Backend.ROCM if torch.version.hip else Backend.CUDA
    if device.type == "xpu":
        return torch.xpu.get_device_name(device), Backend.XPU
    return cpu_model(), Backend.MPS if device.type == "mps" else Backend.CPU
