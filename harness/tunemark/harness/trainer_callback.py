"""`TunemarkCallback`: time a training of your own with the Hugging Face Trainer.

It writes a log that `tunemark import log` reads, line by line, so that a killed training leaves one too. The log never leaves your machine by
itself. It is no submission: your Trainer followed no workload card, and a callback sees less than the harness.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tunemark.harness.plan.resolve import detect
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.plan import WARMUP_STEPS
from tunemark.schema.vocabulary import Backend, Checkpointing, Method


class TunemarkCallback(TrainerCallback):  # type: ignore[misc] # transformers has no types here
    """Log conditions, steps, times, tokens, losses and, on CUDA and ROCm, memory of a Trainer run into a file, which is replaced.

    The clock is read after the device has finished its work: after ten steps of warm-up, with each logged loss, and at the end. It stops for
    evaluation and saving. Data loading and logging count. Tokens are those that the Trainer counts
    (`TrainingArguments(include_num_input_tokens_seen=True)`).
    """

    def __init__(self, path: str | Path = "tunemark-trainer.jsonl") -> None:
        self.path = Path(path)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, _: TrainerControl, **context: Any) -> None:  # noqa: ANN401
        """Log the conditions, and start the clock."""
        self._device, self._first_step, self._writes = args.device, state.global_step, state.is_world_process_zero
        if self._writes:
            self.path.write_text("", encoding="utf-8")
        self._write(conditions=conditions_of(args, context["model"]))
        self._paused_s, self._started = 0.0, self._now()
        self._paused_at: float | None = None
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def on_step_begin(self, *_: object, **__: object) -> None:
        """Resume the clock after evaluation or saving."""
        if self._paused_at is not None:
            self._paused_s += self._now() - self._paused_at
            self._paused_at = None

    def on_step_end(self, _: TrainingArguments, state: TrainerState, control: TrainerControl, **__: object) -> None:
        """Log the end of the warm-up, and stop the clock before evaluation or saving."""
        if state.global_step - self._first_step == WARMUP_STEPS:
            self._point(state)
        if control.should_evaluate or control.should_save:
            self._paused_at = self._now()

    def on_log(self, _: TrainingArguments, state: TrainerState, __: TrainerControl, logs: Mapping[str, float], **___: object) -> None:
        """Log a loss."""
        if "loss" in logs:
            self._point(state, loss=logs["loss"])

    def on_train_end(self, _: TrainingArguments, state: TrainerState, __: TrainerControl, **___: object) -> None:
        """Log the end, with the time of all of it and the peak of memory."""
        memory = {"peak_memory_bytes": torch.cuda.max_memory_allocated(self._device)} if self._device.type == "cuda" else {}
        self._point(state, wall_s=self._now() - self._started, finished=state.global_step >= state.max_steps, **memory)

    def _point(self, state: TrainerState, **figures: float) -> None:
        """Log the steps and tokens so far, and the seconds in which they were trained."""
        now = self._now() if self._paused_at is None else self._paused_at
        trained_s, steps = now - self._started - self._paused_s, state.global_step - self._first_step
        self._write(trained_s=trained_s, global_step=steps, num_input_tokens_seen=state.num_input_tokens_seen or None, **figures)

    def _write(self, **line: object) -> None:
        if self._writes:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(line)}\n")

    def _now(self) -> float:
        """Return the time in seconds, after all work of the device is done."""
        if self._device.type != "cpu":
            torch.accelerator.synchronize()
        return time.perf_counter()


def conditions_of(args: TrainingArguments, model: torch.nn.Module) -> dict[str, Any]:
    """Return the conditions of a training by the settings of `tunemark import log`; what is not known is left out."""
    adapters: Mapping[str, Any] = getattr(model, "peft_config", {})
    if any(str(getattr(adapter.peft_type, "value", adapter.peft_type)) == "LORA" for adapter in adapters.values()):
        method = Method.QLORA if getattr(model, "is_loaded_in_4bit", False) else Method.LORA
    else:
        # Full if every weight is trained; else another method with a frozen base.
        method = Method.FULL if not adapters and all(weight.requires_grad for weight in model.parameters()) else Method.PEFT
    machine = detect(Backend.CPU if args.device.type == "cpu" else None)
    card = FactBase.of_project().recognise_device(machine.devices[0].name, machine.backend)
    known = {
        "model": getattr(getattr(model, "config", None), "_name_or_path", None),
        "method": method,
        "accelerator": card and card.key,
        "devices": args.world_size * max(1, args.n_gpu),
        "micro_batch": args.per_device_train_batch_size,
        "gradient_accumulation": args.gradient_accumulation_steps,
        "precision": "bf16" if args.bf16 else "fp16" if args.fp16 else str(next(model.parameters()).dtype).removeprefix("torch."),
        "checkpointing": Checkpointing.FULL if args.gradient_checkpointing else Checkpointing.NONE,
    }
    return {name: value for name, value in known.items() if value}
