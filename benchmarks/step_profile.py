"""Profile a run: the phases until the first step, the share of waiting for samples, the operators of a step, and calls that wait.

    python benchmarks/step_profile.py [--backend cpu] [--workload smoke-lora] [--rounds 3] [--steps 40] [--threads 1] [--json]

Phases come from the records of fresh processes: `tunemark run` without `--no-probe`, since the probe is one of them. The time
begins when the worker is spawned, and `whole command` is the wall time of the command with its parent. Operators come from
torch.profiler over 10 steps of the harness's own loop in this process, after 5 steps of warm-up.

On a GPU the profiler also counts the host's calls that wait for the device. On a CPU every operator blocks, so they cannot be counted;
tests/harness/test_prefetch.py counts them on a scripted device: none between the first step and the last
(`test_the_host_waits_for_the_device_before_the_first_step_and_after_the_last_only`).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.profiler import ProfilerActivity, profile

from tunemark.harness.plan.machine import detect
from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.run.run_log import LogWriter
from tunemark.harness.vendors.protocol import vendor_of
from tunemark.harness.worker import loop
from tunemark.harness.worker.data import load_samples, micro_batches, shape_of
from tunemark.harness.worker.entry import prepare
from tunemark.harness.worker.models import build_model
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.submission import Submission
from tunemark.schema.vocabulary import Backend, Phase

FIRST = ("import", "data", "load", "check", "probe", "first step")
WARM_UP, PROFILED, SHOWN = 5, 10, 10
WAITS = (
    "cudaDeviceSynchronize",
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "cudaMemcpy",
    "hipDeviceSynchronize",
    "hipStreamSynchronize",
)
"""Calls of the runtime in which the host waits for the device."""


def one_run(workload: str, steps: int, threads: int, backend: Backend) -> dict[str, float]:
    """Return seconds by phase until the first step, the median step, the share of waiting, and the wall time of the command."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tunemark.cli", "run", workload, "--steps", str(steps), "--out", folder]
        command += ["--backend", backend.value]
        started_s = time.perf_counter()
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)  # noqa: S603 - ours
        command_s = time.perf_counter() - started_s
        (path,) = Path(folder).rglob("*.json")
        submission = Submission.model_validate_json(path.read_bytes())
    return until_first_step(submission) | {"whole command": command_s}


def until_first_step(submission: Submission) -> dict[str, float]:
    """Return the seconds of each phase before training and of the first step; the share of waiting; the median of later steps."""
    completed, trace = submission.trace.completed_at_s, submission.trace
    seconds = dict.fromkeys(FIRST, 0.0)
    for mark, after in pairwise(submission.timeline):
        if mark.phase is Phase.TRAIN:
            seconds["first step"] += completed[0] - mark.at_s
            break
        seconds[mark.phase.value] += after.at_s - mark.at_s
    later = [after - before for before, after in pairwise(completed)]
    waited = trace.data_wait_share
    assert waited is not None
    return seconds | {"until the first step": completed[0], "later step": statistics.median(later), "share of waiting": waited}


def operators(workload: str, threads: int, backend: Backend) -> tuple[list[dict[str, Any]], float]:
    """Return the operators with the most self time, and the number of blocking host calls per step.

    Each operator has its calls per step, its milliseconds per step on the device, and its share of all operators.
    """
    torch.set_num_threads(threads)
    facts, device = FactBase.of_project(), vendor_of(backend).device.open(threads)
    plan = resolve(workload, facts, detect(backend), Options(probe=False)).plan
    card = facts.model(plan.model.key)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = build_model(plan, card, None, None, folder, device)
        trainer = prepare(
            plan, model, device, LogWriter(folder / "log.jsonl", time.monotonic()), loop.StopRule(WARM_UP, None, folder / "stop")
        )
        stream = micro_batches(plan, load_samples(plan, card.vocabulary, None, None).training, shape_of(plan, card))
        loop.train(trainer, stream)
        trainer.votes.clear()
        trainer.stop = loop.StopRule(PROFILED, None, folder / "stop")
        on_host = vendor_of(backend).on_host
        activities = [ProfilerActivity.CPU, *([] if on_host else [ProfilerActivity.CUDA])]
        with profile(activities=activities) as profiled:
            loop.train(trainer, stream)
    every = profiled.key_averages()
    own = "self_cpu_time_total" if on_host else "self_device_time_total"
    averages = [event for event in every if event.key.startswith("aten::")]
    total_us = sum(getattr(event, own) for event in averages)
    most = sorted(averages, key=lambda event: getattr(event, own), reverse=True)[:SHOWN]
    waits = sum(event.count for event in every if event.key in WAITS) / PROFILED
    rows = [
        {
            "operator": event.key,
            "calls": event.count / PROFILED,
            "ms": getattr(event, own) / PROFILED / 1e3,
            "share": getattr(event, own) / total_us,
        }
        for event in most
    ]
    return rows, waits


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=[backend.value for backend in Backend], default=Backend.CPU.value)
    parser.add_argument("--workload", default="smoke-lora")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="fresh processes")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    return parser


def main() -> None:
    """Print both tables."""
    chosen = parser().parse_args()
    backend = Backend(chosen.backend)
    transformers.logging.set_verbosity_error()
    runs = [one_run(chosen.workload, chosen.steps, chosen.threads, backend) for _ in range(chosen.rounds)]
    rows, waits = operators(chosen.workload, chosen.threads, backend)
    if chosen.json:
        print(json.dumps({"runs": runs, "operators": rows, "waits_per_step": waits}, indent=1))
        return
    print("| phase | median | least to most |\n|---|---|---|")
    for name in runs[0]:
        values = [run[name] for run in runs]
        form, unit = ("{:.2%}", "") if name == "share of waiting" else ("{:.3f}", " s")
        middle, least, most = (form.format(value) for value in (statistics.median(values), min(values), max(values)))
        print(f"| {name} | {middle}{unit} | {least} to {most}{unit} |")
    print("\n| operator | calls per step | own time per step | share of all operators |\n|---|---|---|---|")
    for row in rows:
        print(f"| `{row['operator']}` | {row['calls']:.0f} | {row['ms']:.2f} ms | {row['share']:.1%} |")
    if backend is not Backend.CPU:
        print(
            f"\nHost calls per step that wait for the device: {waits:.1f}, including the synchronisation before and after the {PROFILED} steps"
        )


if __name__ == "__main__":
    main()
