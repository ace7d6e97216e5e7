"""Measure the harness's cost per step against a bare PyTorch loop, Hugging Face's Trainer, TRL's and optimum-benchmark.

    python benchmarks/overhead.py [--rounds 8] [--threads 2] [--only SIZE] [--optimum-benchmark DIRECTORY/bin/python] [--json]

Every arm trains the same small Llama in full with torch's AdamW on the same shapes. Arms take turns in blocks, so that a
noisy host disturbs all of them alike; each block's first steps are dropped. The harness runs as in a worker: real batches,
a log on disk, and the parent's sampler in another process, which is stopped for the other arms.

With an accelerator (`--backend cuda`), only the bare loop and the harness run, at the size `billion`: a Llama with 0.98 B parameters in
bf16, 4 x 2048 tokens per step. Steps are timed with events in the device's queue.

TRL is included where it can be imported: `pip install --no-deps --target DIRECTORY trl==1.16.0`, and PYTHONPATH=DIRECTORY.
optimum-benchmark needs an older transformers, so it has an environment and a process of its own: `python -m venv DIRECTORY`,
and there `pip install torch==2.13.0 optimum-benchmark==0.6.0 transformers==4.57.6`. It trains the larger size only, and its
latency starts after the batch was loaded.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers
from overhead_arms import (
    BILLION_SIZE,
    DROPPED,
    LARGER_SIZE,
    ON_CPU,
    SIZES,
    Arm,
    Setting,
    bare,
    harness,
    hf_trainer,
    optimum_benchmark,
    setting,
    trl_trainer,
)

from tunemark.harness.plan.machine import detect
from tunemark.schema.vocabulary import Backend

SAMPLER = """
import sys, time
from tunemark.harness.run.telemetry import open_sampler
from tunemark.harness.plan.machine import detect
from tunemark.schema.vocabulary import Backend
worker, backend, *indexes = sys.argv[1:]
with open_sampler(Backend(backend), [int(index) for index in indexes]) as sampler:
    sampler.follow(int(worker), time.monotonic())
    time.sleep(3600)
"""
"""Samples the host and the devices as `tunemark run` does beside a worker."""


def arms_of(work: Setting, sampler: int) -> dict[str, Arm]:
    """Return the arms of this process by name; the Trainers on a CPU only."""
    arms = {"bare loop": bare(work), "Tunemark": harness(work, sampler)}
    if not work.on_cpu:
        return arms
    sft = trl_trainer(work)
    return arms | {"HF Trainer": hf_trainer(work)} | ({"TRL SFTTrainer": sft} if sft else {})


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


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=[backend.value for backend in Backend], default=Backend.CPU.value)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=45)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--optimum-benchmark", type=Path, metavar="PYTHON", help="interpreter of its environment")
    parser.add_argument("--only", choices=SIZES, help="run one size; default: every size practical for the device")
    parser.add_argument("--json", action="store_true")
    return parser


def main() -> None:
    """Print the table of each size."""
    chosen = parser().parse_args()
    backend = Backend(chosen.backend)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(chosen.threads)
    found = {}
    with tempfile.TemporaryDirectory() as name:
        sampled = [str(index) for index in detect(backend).indexes[:1]]
        sampler = subprocess.Popen([sys.executable, "-c", SAMPLER, str(os.getpid()), backend.value, *sampled])  # noqa: S603 - our own sampler
        try:
            time.sleep(2)
            for size in [chosen.only] if chosen.only else ON_CPU if backend is Backend.CPU else (BILLION_SIZE,):
                work = setting(size, Path(name) / size.replace(" ", "-"), backend)
                arms = arms_of(work, sampler.pid)
                if chosen.optimum_benchmark and size == LARGER_SIZE and work.on_cpu:
                    arms["optimum-benchmark"] = optimum_benchmark(work, chosen.optimum_benchmark, chosen.threads)
                found[size] = table(measure(arms, chosen.rounds, chosen.steps))
        finally:
            sampler.kill()
    if chosen.json:
        print(json.dumps(found, indent=1))
        return
    for size, arms in found.items():
        tokens, rows, _ = SIZES[size]
        print(f"{size}: {rows} x {tokens} tokens")
        for arm, row in arms.items():
            print(
                f"  {arm:17} {row['step_ms']:8.2f} ms  {row['beyond_bare_ms']:+7.2f} ms  {row['throughput_of_bare']:.3f} of the bare loop"
            )


if __name__ == "__main__":
    main()
