"""The arms of overhead.py: each trains one small model on the same batches and returns the time of each step."""

import contextlib
import io
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers

from tunemark.harness.plan.machine import detect
from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.run.run_log import LogWriter
from tunemark.harness.vendors.protocol import Device, vendor_of
from tunemark.harness.worker.data import load_samples, micro_batches, shape_of
from tunemark.harness.worker.entry import prepare
from tunemark.harness.worker.gates import to_device
from tunemark.harness.worker.loop import StopRule, train
from tunemark.harness.worker.models import build_model
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import Backend

OPTIMUM_BENCHMARK = """
import json, sys
from optimum_benchmark import Benchmark, BenchmarkConfig, InlineConfig, PyTorchConfig, TrainingConfig
order = json.load(open(sys.argv[1]))
parts = {"backend": PyTorchConfig(**order["backend"]), "scenario": TrainingConfig(**order["scenario"])}
report = Benchmark.launch(BenchmarkConfig(name="peer", launcher=InlineConfig(), **parts))
json.dump(report.overall.latency.values, open(sys.argv[2], "w"))
"""
DROPPED = 5
"""First steps of a block, which are dropped."""
SMALLER = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "layers": 2,
    "attention_heads": 2,
    "key_value_heads": 2,
    "head_dim": 32,
    "parameters": 362_816,
}
"""Changes of the smoke workloads' model card, for a model with steps of a few milliseconds."""
BILLION = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "layers": 16,
    "attention_heads": 32,
    "key_value_heads": 8,
    "head_dim": 64,
    "context_length": 2048,
    "parameters": 981_534_720,
}
"""Changes of the model card, for a model with steps of more than 50 ms on an accelerator."""
LARGER_SIZE = "50 ms and more"
BILLION_SIZE = "billion"
SIZES: dict[str, tuple[int, int, dict[str, int]]] = {
    "tiny": (64, 1, SMALLER),
    LARGER_SIZE: (128, 4, {}),
    BILLION_SIZE: (2048, 4, BILLION),
}
"""Size -> (tokens in a row, rows, changes of the model card)."""
ON_CPU = ("tiny", LARGER_SIZE)
"""Sizes that a CPU trains in reasonable time."""

Arm = Callable[[int], list[float]]
"""Runs a number of steps and returns the seconds of each."""


@dataclass(frozen=True)
class Setting:
    """One size of the work."""

    plan: Plan
    card: ModelCard
    folder: Path
    device: Device

    @property
    def on_cpu(self) -> bool:
        """Return True if the arms train on a CPU."""
        return self.plan.device.backend is Backend.CPU


def setting(size: str, folder: Path, backend: Backend = Backend.CPU) -> Setting:
    """Return the setting of a size: smoke-full with that size's shape and one micro-batch per step. The size `billion` uses bf16."""
    tokens, rows, changed = SIZES[size]
    facts = FactBase.of_project()
    changes = [f"data.sequence_length={tokens}", f"batch.micro_batch={rows}", "batch.gradient_accumulation=1", "data.name=random-tokens"]
    if size == BILLION_SIZE:
        changes.append("compute=bf16")
    plan = resolve("smoke-full", facts, detect(backend), Options(overrides=tuple(changes))).plan
    folder.mkdir()
    device = vendor_of(backend).device.open(plan.device.threads)
    return Setting(plan, facts.model(plan.model.key).model_copy(update=changed), folder, device)


def model_of(work: Setting) -> Any:
    """Return the model that every arm trains, from the same seed."""
    return build_model(work.plan, work.card, None, None, work.folder / "weights", work.device).to(work.device.torch_name)


def batches_of(work: Setting) -> Iterator[Any]:
    """Return the harness's stream of micro-batches."""
    return micro_batches(work.plan, load_samples(work.plan, work.card.vocabulary, None, None).training, shape_of(work.plan, work.card))


def bare(work: Setting) -> Arm:
    """Return the baseline: a tutorial's loop, on batches that are on the device beforehand."""
    model, device = model_of(work), work.device
    optimizer = torch.optim.AdamW(model.parameters(), lr=work.plan.optimizer.learning_rate, fused=not work.on_cpu)
    stream = batches_of(work)
    ready = [to_device(next(stream).tensors, device.torch_name) for _ in range(32)]

    def run(steps: int) -> list[float]:
        device.begin()
        # As in the harness's loop, timing events go into the device's queue of work, so the host does not wait.
        marks = [device.stamp()]
        for step in range(steps):
            model(**ready[step % len(ready)]).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            marks.append(device.stamp())
        device.synchronise()
        times = [time_s for mark in marks if (time_s := device.reached(mark)) is not None]
        return [after - before for before, after in pairwise(times)]

    return run


def harness(work: Setting, sampler: int) -> Arm:
    """Return the harness's loop, with its log, batches and sampler."""
    path = work.folder / "log.jsonl"
    log = LogWriter(path, time.monotonic())
    trainer = prepare(work.plan, model_of(work), work.device, log, StopRule(None, None, Path()))
    stream = batches_of(work)

    def run(steps: int) -> list[float]:
        os.kill(sampler, signal.SIGCONT)
        trainer.stop = StopRule(steps, None, work.folder / "stop")
        offset = path.stat().st_size
        train(trainer, stream)
        os.kill(sampler, signal.SIGSTOP)
        events = [json.loads(line) for line in path.read_bytes()[offset:].splitlines()]
        times = [e["started_at_s"] for e in events if e["event"] == "training"] + [
            e["completed_at_s"] for e in events if e["event"] == "step"
        ]
        return [after - before for before, after in pairwise(times)]

    return run


class Stopwatch(transformers.TrainerCallback):
    """Notes the end of each step of a Trainer."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, *_: object, **__: object) -> None:
        """Note the time."""
        self.times.append(time.perf_counter())


def rows_of(work: Setting, count: int) -> list[list[int]]:
    """Return rows of token ids."""
    stream = batches_of(work)
    return [row.tolist() for _ in range(count) for row in next(stream).tensors["input_ids"]]


def settings_of(work: Setting, steps: int) -> dict[str, Any]:
    """Return the settings of both Trainers."""
    return {
        "output_dir": str(work.folder / "out"),
        "max_steps": steps,
        "per_device_train_batch_size": work.plan.batch.micro_batch,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "logging_steps": 10,
        "bf16": False,
        # Their default is the fused kernel, which the bare loop does not use either.
        "optim": "adamw_torch",
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
        "learning_rate": work.plan.optimizer.learning_rate,
    }


def trainer_arm(make: Callable[[int, Stopwatch], Any]) -> Arm:
    """Return an arm that creates a Trainer for each block, since a Trainer cannot continue."""

    def run(steps: int) -> list[float]:
        watch = Stopwatch()
        with contextlib.redirect_stdout(io.StringIO()):
            make(steps, watch).train()
        return [after - before for before, after in pairwise(watch.times)]

    return run


def hf_trainer(work: Setting) -> Arm:
    """Return Hugging Face's Trainer."""
    from datasets import Dataset  # noqa: PLC0415

    rows = rows_of(work, 300)
    data = Dataset.from_dict({"input_ids": rows, "labels": rows})
    model = model_of(work)

    def make(steps: int, watch: Stopwatch) -> Any:
        arguments = transformers.TrainingArguments(**settings_of(work, steps))
        return transformers.Trainer(model=model, args=arguments, train_dataset=data, callbacks=[watch])

    return trainer_arm(make)


def tokenizer(work: Setting) -> Any:
    """Return a tokenizer for arms that require one; nothing is tokenised."""
    from tokenizers import Tokenizer, models  # noqa: PLC0415

    words = {"[PAD]": 0, "[EOS]": 1} | {f"w{number}": number for number in range(2, work.card.vocabulary)}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="[PAD]")),  # noqa: S106 - no secret
        pad_token="[PAD]",  # noqa: S106
        eos_token="[EOS]",  # noqa: S106
    )


def trl_trainer(work: Setting) -> Arm | None:
    """Return TRL's SFTTrainer, or None where TRL is not installed."""
    try:
        from trl import SFTConfig, SFTTrainer  # noqa: PLC0415
    except ImportError:
        return None
    from datasets import Dataset  # noqa: PLC0415

    data = Dataset.from_dict({"input_ids": rows_of(work, 300)})
    model = model_of(work)

    def make(steps: int, watch: Stopwatch) -> Any:
        arguments = SFTConfig(**settings_of(work, steps), max_length=work.plan.data.sequence_length, gradient_checkpointing=False)
        return SFTTrainer(model=model, args=arguments, train_dataset=data, processing_class=tokenizer(work), callbacks=[watch])

    return trainer_arm(make)


def optimum_benchmark(work: Setting, python: Path, threads: int) -> Arm:
    """Return optimum-benchmark's training scenario, with a process per block."""
    weights = work.folder / "for-optimum-benchmark"
    model_of(work).save_pretrained(weights)
    tokenizer(work).save_pretrained(weights)

    def run(steps: int) -> list[float]:
        out = Path(tempfile.mkdtemp(dir=work.folder))
        order = {
            "backend": {"device": "cpu", "model": str(weights), "task": "text-generation", "library": "transformers"},
            "scenario": {
                "max_steps": steps,
                "warmup_steps": DROPPED,
                "dataset_shapes": {"dataset_size": 300, "sequence_length": work.plan.data.sequence_length},
                "training_arguments": {
                    "per_device_train_batch_size": work.plan.batch.micro_batch,
                    "max_steps": steps,
                    "optim": "adamw_torch",
                },
            },
        }
        (out / "order.json").write_text(json.dumps(order))
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
        command = [python, "-c", OPTIMUM_BENCHMARK, out / "order.json", out / "report.json"]
        subprocess.run(command, env=environment, cwd=out, check=True, capture_output=True)  # noqa: S603 - what the caller named
        return json.loads((out / "report.json").read_text())

    return run
