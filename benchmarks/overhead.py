"""Measure the harness's cost per step against a bare PyTorch loop and Hugging Face's Trainer.

    python benchmarks/overhead.py [--rounds 8] [--threads 2] [--only SIZE] [--json]

Every arm trains the same small Llama in full with torch's AdamW on the same shapes. Arms take turns in blocks, so that a
noisy host disturbs all of them alike; each block's first steps are dropped. The harness runs as in a worker: real batches,
a log on disk, and the parent's sampler in another process, which is stopped for the other arms.

With an accelerator (`--backend cuda`), only the bare loop and the harness run, at the size `billion`: a Llama with 0.98 B parameters in
bf16, 4 x 2048 tokens per step. Steps are timed with events in the device's queue.
"""

import argparse
import contextlib
import io
import json
import os
import signal
import statistics
import subprocess
import sys
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

SAMPLER = """
import sys, time
from tunemark.harness.run.telemetry import open_sampler
from tunemark.schema.vocabulary import Backend
worker, backend, *indexes = sys.argv[1:]
with open_sampler(Backend(backend), [int(index) for index in indexes]) as sampler:
    sampler.follow(int(worker), time.monotonic())
    time.sleep(3600)
"""
"""Samples the host and the devices as `tunemark run` does beside a worker."""
DROPPED = 5
"""First steps of a block, which are dropped."""
SMALLER = {"hidden_size": 64, "intermediate_size": 176, "layers": 2, "attention_heads": 2, "key_value_heads": 2, "head_dim": 32}
"""Changes of the smoke workloads' model card, for a model with steps of a few milliseconds."""
LARGER = {"hidden_size": 2048, "intermediate_size": 8192, "layers": 16, "attention_heads": 32, "key_value_heads": 8, "head_dim": 64}
"""Changes of the model card, for a model with steps of more than 50 ms on an accelerator."""
BILLION_SIZE = "billion"
SIZES: dict[str, tuple[int, int, dict[str, int]]] = {
    "tiny": (64, 1, {**SMALLER, "parameters": 362_816}),
    "50 ms and more": (128, 4, {}),
    BILLION_SIZE: (2048, 4, {**LARGER, "context_length": 2048, "parameters": 981_534_720}),
}
"""Size -> (tokens in a row, rows, changes of the model card). A CPU trains the first two in reasonable time."""

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
    changes += ["compute=bf16"] if size == BILLION_SIZE else []
    plan = resolve("smoke-full", facts, detect(backend), Options(overrides=tuple(changes))).plan
    folder.mkdir()
    device = vendor_of(backend).device.open(plan.device.threads)
    return Setting(plan, facts.model(plan.model.key).model_copy(update=changed), folder, device)


# The arms


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
        times = [e["started_at_s"] for e in events if e["event"] == "training"]
        times += [e["completed_at_s"] for e in events if e["event"] == "step"]
        return [after - before for before, after in pairwise(times)]

    return run


class Stopwatch(transformers.TrainerCallback):
    """Notes the end of each step of a Trainer."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, *_: object, **__: object) -> None:
        """Note the time."""
        self.times.append(time.perf_counter())


def hf_trainer(work: Setting) -> Arm:
    """Return Hugging Face's Trainer. It cannot continue, so that each block creates another one."""
    from datasets import Dataset  # noqa: PLC0415

    stream, model = batches_of(work), model_of(work)
    rows = [row.tolist() for _ in range(300) for row in next(stream).tensors["input_ids"]]
    data = Dataset.from_dict({"input_ids": rows, "labels": rows})
    settings = {
        "output_dir": str(work.folder / "out"),
        "per_device_train_batch_size": work.plan.batch.micro_batch,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "logging_steps": 10,
        "bf16": False,
        # Its default is the fused kernel, which the bare loop does not use either.
        "optim": "adamw_torch",
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
        "learning_rate": work.plan.optimizer.learning_rate,
    }

    def run(steps: int) -> list[float]:
        watch = Stopwatch()
        with contextlib.redirect_stdout(io.StringIO()):
            arguments = transformers.TrainingArguments(**settings, max_steps=steps)
            transformers.Trainer(model=model, args=arguments, train_dataset=data, callbacks=[watch]).train()
        return [after - before for before, after in pairwise(watch.times)]

    return run


# Measure


def measure(arms: dict[str, Arm], rounds: int, steps: int) -> dict[str, list[float]]:
    """Return the median step time of each block, by arm, in seconds."""
    blocks: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(rounds):
        # The order rotates, so that no arm always follows the same one.
        for name in list(arms)[number % len(arms) :] + list(arms)[: number % len(arms)]:
            blocks[name].append(statistics.median(arms[name](steps)[DROPPED:]))
    return blocks


def table(blocks: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Return medians over rounds: milliseconds, the difference to the bare loop of the same round, and the ratio of throughputs."""
    floor = blocks["bare loop"]
    return {
        name: {
            "step_ms": 1e3 * statistics.median(times),
            "beyond_bare_ms": 1e3 * statistics.median(t - f for t, f in zip(times, floor, strict=True)),
            "throughput_of_bare": statistics.median(f / t for t, f in zip(times, floor, strict=True)),
        }
        for name, times in blocks.items()
    }


def main() -> None:
    """Print the table of each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=[backend.value for backend in Backend], default=Backend.CPU.value)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=45)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=SIZES, help="run one size; default: every size practical for the device")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    backend = Backend(chosen.backend)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(chosen.threads)
    sizes, found = [size for size in SIZES if (size == BILLION_SIZE) != (backend is Backend.CPU)], {}
    with tempfile.TemporaryDirectory() as name:
        sampled = [str(index) for index in detect(backend).indexes[:1]]
        sampler = subprocess.Popen([sys.executable, "-c", SAMPLER, str(os.getpid()), backend.value, *sampled])  # noqa: S603 - our own sampler
        try:
            time.sleep(2)
            for size in [chosen.only] if chosen.only else sizes:
                work = setting(size, Path(name) / size.replace(" ", "-"), backend)
                arms = {"bare loop": bare(work), "Tunemark": harness(work, sampler.pid)}
                arms |= {"HF Trainer": hf_trainer(work)} if work.on_cpu else {}
                found[size] = table(measure(arms, chosen.rounds, chosen.steps))
        finally:
            sampler.kill()
    if chosen.json:
        print(json.dumps(found, indent=1))
        return
    for size, rows in found.items():
        print(f"{size}: {SIZES[size][1]} x {SIZES[size][0]} tokens")
        for arm, row in rows.items():
            print(
                f"  {arm:17} {row['step_ms']:8.2f} ms  {row['beyond_bare_ms']:+7.2f} ms  {row['throughput_of_bare']:.3f} of the bare loop"
            )


if __name__ == "__main__":
    main()
