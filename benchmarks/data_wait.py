"""Measure how long training waits for its samples: prepared in a thread, as the harness does, against in the training thread.

    python benchmarks/data_wait.py [--rounds 5] [--steps 30] [--threads 1] [--json]
    python benchmarks/data_wait.py --preparation [--rounds 5]

Both ways train the same model on the same batches. They take turns in blocks, so that a noisy host disturbs both alike; the
first steps of each block are dropped from the step times. On a CPU the thread shares the cores with training.

`--preparation` times how long the host makes the micro-batches of one step of larger workloads, without a model.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Self

import torch
import transformers

from tunemark.harness.plan.machine import detect
from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.run.run_log import LogReader, LogWriter
from tunemark.harness.vendors.cpu import Cpu
from tunemark.harness.worker import loop
from tunemark.harness.worker.data import MicroBatch, StepsAhead, bytes_of, load_samples, micro_batches, shape_of
from tunemark.harness.worker.entry import prepare
from tunemark.harness.worker.models import build_model
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.vocabulary import Backend

DROPPED = 5
TINY = {"hidden_size": 64, "intermediate_size": 176, "layers": 1, "attention_heads": 2, "key_value_heads": 2, "head_dim": 32}
PACKED = ("data.packing=true", "data.name=random-documents", "batch.micro_batch=1", "batch.gradient_accumulation=2")
CASES: dict[str, tuple[tuple[str, ...], dict[str, int]]] = {
    "smoke-lora": ((), {}),
    "packed 2 x 4096, tiny model": (("data.sequence_length=4096", *PACKED), TINY),
}
"""Name -> (settings of smoke-lora, changes of its model card)."""
LARGE: dict[str, tuple[str, ...]] = {
    "lora-8b: 8 micro-batches of 1 x 4096": (),
    "8 micro-batches of 4 x 8192": ("data.sequence_length=8192", "batch.micro_batch=4"),
}
"""Name -> settings of lora-8b."""
KINDS = ("sdpa", "flex_attention", "varlen")


class InTrainingThread:
    """Prepares a step when training asks for it."""

    def __init__(self, batches: Iterator[MicroBatch], per_step: int, _device: object) -> None:
        self._batches, self._per_step, self.waited_s = batches, per_step, 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing behind."""

    def take(self) -> list[MicroBatch]:
        """Return the next step."""
        started_s = time.monotonic()
        step = list(islice(self._batches, self._per_step))
        self.waited_s += time.monotonic() - started_s
        return step


WAYS: dict[str, Any] = {"in a thread": StepsAhead, "in the training thread": InTrainingThread}


def trial(name: str, folder: Path) -> Callable[[str, int], tuple[list[float], float]]:
    """Return a function that trains some steps in one of the ways and returns their times and the seconds of waiting."""
    facts = FactBase.of_project()
    settings, changes = CASES[name]
    plan = resolve("smoke-lora", facts, detect(Backend.CPU), Options(overrides=settings)).plan
    card = facts.model(plan.model.key).model_copy(update=changes)
    folder.mkdir()
    path = folder / "log.jsonl"
    model = build_model(plan, card, None, None, folder, Cpu())
    trainer = prepare(plan, model, Cpu(), LogWriter(path, time.monotonic()), loop.StopRule(None, None, folder / "stop"))
    stream = micro_batches(plan, load_samples(plan, card.vocabulary, None, None).training, shape_of(plan, card))

    def run(way: str, steps: int) -> tuple[list[float], float]:
        path.write_bytes(b"")
        trainer.votes.clear()
        trainer.stop = loop.StopRule(steps, None, folder / "stop")
        loop.StepsAhead = WAYS[way]
        loop.train(trainer, stream)
        log = LogReader(path).read()
        times = [log.started_at_s] + [step["completed_at_s"] for step in log.steps]
        return [after - before for before, after in pairwise(times)][DROPPED:], (log.data_wait or {})["seconds"]

    return run


def measure(name: str, folder: Path, rounds: int, steps: int) -> dict[str, dict[str, float]]:
    """Return medians over rounds, by way: milliseconds of a step, and the share of time spent waiting."""
    run = trial(name, folder)
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    shares: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds + 1):
        for way in WAYS:
            step_times, waited_s = run(way, steps)
            if number:
                times[way].append(statistics.median(step_times))
                shares[way].append(waited_s / (steps * statistics.mean(step_times)))
    return {way: {"step_ms": 1e3 * statistics.median(times[way]), "wait_share": statistics.median(shares[way])} for way in WAYS}


def preparation(settings: tuple[str, ...], attention: str, steps: int) -> dict[str, float]:
    """Return the median seconds in which the host makes one step of lora-8b, and the megabytes of its tensors."""
    facts = FactBase.of_project()
    plan = resolve("lora-8b", facts, detect(Backend.CPU), Options(overrides=settings)).plan
    plan = plan.model_copy(update={"model": plan.model.model_copy(update={"attention": attention})})
    card = facts.model(plan.model.key)
    stream = micro_batches(plan, load_samples(plan, card.vocabulary, None, None).training, shape_of(plan, card))
    times: list[float] = []
    for _ in range(steps + 1):
        started_s = time.perf_counter()
        step = list(islice(stream, plan.batch.gradient_accumulation))
        times.append(time.perf_counter() - started_s)
        held = sum(bytes_of(batch.tensors) for batch in step)
        del step
    return {"seconds": statistics.median(times[1:]), "megabytes": held / 1e6}


def print_preparation(steps: int) -> None:
    """Print the time and the size of one step of each large case."""
    print("| case | attention | one step is made in | its tensors |\n|---|---|---|---|")
    for name, settings in LARGE.items():
        for kind in KINDS:
            row = preparation(settings, kind, steps)
            print(f"| {name} | {kind} | {1e3 * row['seconds']:.1f} ms | {row['megabytes']:.1f} MB |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--preparation", action="store_true", help="time the preparation of large steps only, without a model")
    chosen = parser.parse_args()
    if chosen.preparation:
        print_preparation(chosen.rounds)
        return
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(chosen.threads)
    with tempfile.TemporaryDirectory() as folder:
        found = {name: measure(name, Path(folder) / str(number), chosen.rounds, chosen.steps) for number, name in enumerate(CASES)}
    if chosen.json:
        print(json.dumps(found, indent=1))
        return
    for name, ways in found.items():
        print(name)
        for way, row in ways.items():
            print(f"  {way:24} {row['step_ms']:9.2f} ms per step, {row['wait_share']:.2%} of it waiting for samples")


if __name__ == "__main__":
    main()
