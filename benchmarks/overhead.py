"""What the harness costs a step: its loop beside a bare PyTorch loop, Hugging Face's Trainer and TRL's, interleaved in one process.

    python benchmarks/overhead.py [--rounds 8] [--threads 2] [--json]

Every arm trains the same small Llama in full with AdamW on the same shapes. Arms take turns in blocks, so that a noisy
host disturbs all of them alike; each block's first steps are dropped. The harness runs as it does in a worker: real
batches, log on disk, and the parent's sampler looking at this process from another one, which is stopped for the others.
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

from tunemark.harness.devices.cpu import Cpu
from tunemark.harness.machine import detect
from tunemark.harness.planning import Options, resolve
from tunemark.harness.worker.batches import load_samples, micro_batches
from tunemark.harness.worker.log import Log
from tunemark.harness.worker.loop import train
from tunemark.harness.worker.models import build_model, shape_of
from tunemark.harness.worker.run import prepare
from tunemark.harness.worker.stopping import StopRule
from tunemark.schema.facts import FactBase
from tunemark.schema.plan import Plan
from tunemark.schema.vocabulary import Backend

SAMPLER = """
import os, sys, time
from tunemark.harness.telemetry import Sampler
with Sampler(int(sys.argv[1]), time.monotonic()):
    time.sleep(3600)
"""
DROPPED = 5
SIZES = {"tiny": (64, 1), "50 ms and more": (256, 4)}
"""Size -> (tokens in a row, rows)."""

Arm = Callable[[int], list[float]]
"""Given a number of steps: the seconds of each."""


@dataclass(frozen=True)
class Setting:
    """One size of the work."""

    plan: Plan
    folder: Path


def setting(tokens: int, rows: int, threads: int, folder: Path) -> Setting:
    """Return the plan of smoke-full with another shape, one micro-batch a step."""
    changes = (f"data.sequence_length={tokens}", f"batch.micro_batch={rows}", "batch.gradient_accumulation=1", "data.name=random-tokens")
    plan = resolve("smoke-full", FactBase.of_project(), detect(Backend.CPU), Options(overrides=changes)).plan
    torch.set_num_threads(threads)
    folder.mkdir()
    return Setting(plan, folder)


def model_of(work: Setting) -> Any:  # noqa: ANN401 - a torch module
    """Return the model that every arm trains, from the same seed."""
    return build_model(work.plan, FactBase.of_project().model(work.plan.model.key), None, None, work.folder / "weights", Cpu())


def batches_of(work: Setting) -> Iterator[Any]:
    """Return the harness' stream of micro-batches."""
    card = FactBase.of_project().model(work.plan.model.key)
    return micro_batches(work.plan, load_samples(work.plan, card.vocabulary, None, None).training, shape_of(work.plan, card))


def bare(work: Setting) -> Arm:
    """Return the floor: the loop that a tutorial shows, on batches made beforehand."""
    model = model_of(work)
    optimizer = torch.optim.AdamW(model.parameters(), lr=work.plan.optimizer.learning_rate)
    stream = batches_of(work)
    ready = [next(stream).tensors for _ in range(32)]

    def run(steps: int) -> list[float]:
        times = [time.perf_counter()]
        for step in range(steps):
            model(**ready[step % len(ready)]).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            times.append(time.perf_counter())
        return [after - before for before, after in pairwise(times)]

    return run


def harness(work: Setting, sampler: int) -> Arm:
    """Return the harness' own loop, with its log, its batches and its sampler."""
    path = work.folder / "log.jsonl"
    log = Log(path, time.monotonic())
    trainer = prepare(work.plan, model_of(work), Cpu(), log, None)
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
    """Notes when each step of a Trainer ended."""

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
    """Return what both Trainers are told."""
    return {
        "output_dir": str(work.folder / "out"),
        "max_steps": steps,
        "per_device_train_batch_size": work.plan.batch.micro_batch,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "logging_steps": 10,
        "bf16": False,
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
        "learning_rate": work.plan.optimizer.learning_rate,
    }


def trainer_arm(make: Callable[[int, Stopwatch], Any]) -> Arm:
    """Return an arm that makes a Trainer anew for each block, as it cannot go on."""

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

    def make(steps: int, watch: Stopwatch) -> Any:  # noqa: ANN401 - a Trainer
        arguments = transformers.TrainingArguments(**settings_of(work, steps))
        return transformers.Trainer(model=model, args=arguments, train_dataset=data, callbacks=[watch])

    return trainer_arm(make)


def trl_trainer(work: Setting) -> Arm | None:
    """Return TRL's SFTTrainer, or None where TRL is not installed."""
    try:
        from trl import SFTConfig, SFTTrainer  # noqa: PLC0415
    except ImportError:
        return None
    from datasets import Dataset  # noqa: PLC0415
    from tokenizers import Tokenizer, models  # noqa: PLC0415

    data = Dataset.from_dict({"input_ids": rows_of(work, 300)})
    words = {"[PAD]": 0, "[EOS]": 1} | {f"w{number}": number for number in range(2, 2048)}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="[PAD]")),  # noqa: S106 - no secret
        pad_token="[PAD]",  # noqa: S106
        eos_token="[EOS]",  # noqa: S106
    )
    model = model_of(work)

    def make(steps: int, watch: Stopwatch) -> Any:  # noqa: ANN401 - a Trainer
        arguments = SFTConfig(**settings_of(work, steps), max_length=work.plan.data.sequence_length, gradient_checkpointing=False)
        return SFTTrainer(model=model, args=arguments, train_dataset=data, processing_class=tokenizer, callbacks=[watch])

    return trainer_arm(make)


def measure(work: Setting, rounds: int, steps: int, sampler: int) -> dict[str, list[float]]:
    """Return the median step time of each block, by arm, in seconds."""
    made = {
        "bare loop": bare(work),
        "Tunemark": harness(work, sampler),
        "HF Trainer": hf_trainer(work),
        "TRL SFTTrainer": trl_trainer(work),
    }
    arms = {name: arm for name, arm in made.items() if arm is not None}
    blocks: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(rounds):
        # Another order each time, so that no arm always follows the same one.
        for name in list(arms)[number % len(arms) :] + list(arms)[: number % len(arms)]:
            blocks[name].append(statistics.median(arms[name](steps)[DROPPED:]))
    return blocks


def table(blocks: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Return milliseconds, the difference to the bare loop of the same round, and the ratio of throughputs: medians over rounds."""
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
    """Print the table of both sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=45)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    transformers.logging.set_verbosity_error()
    found = {}
    with tempfile.TemporaryDirectory() as name:
        sampler = subprocess.Popen([sys.executable, "-c", SAMPLER, str(os.getpid())])  # noqa: S603 - our own sampler
        try:
            time.sleep(2)
            for size, (tokens, rows) in SIZES.items():
                work = setting(tokens, rows, chosen.threads, Path(name) / size.replace(" ", "-"))
                found[size] = table(measure(work, chosen.rounds, chosen.steps, sampler.pid))
        finally:
            sampler.kill()
    if chosen.json:
        print(json.dumps(found, indent=1))
        return
    for size, arms in found.items():
        print(f"{size}: {SIZES[size][1]} x {SIZES[size][0]} tokens")
        for arm, row in arms.items():
            print(
                f"  {arm:15} {row['step_ms']:8.2f} ms  {row['beyond_bare_ms']:+7.2f} ms  {row['throughput_of_bare']:.3f} of the bare loop"
            )


if __name__ == "__main__":
    main()
