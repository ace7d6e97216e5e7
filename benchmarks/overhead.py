"""Measure the harness's cost per step against a bare PyTorch loop and Hugging Face's Trainer.

    python benchmarks/overhead.py [--within 0.01] [--minutes 20] [--only SIZE]

Every arm trains the same small Llama in full with torch's AdamW on the same shapes, in a process of its own. The peers import nothing of
Tunemark (`overhead_peers.py`). The bare loop runs twice, as an A/A pair: arms take turns in short blocks, and all start again in new processes
until the interval of that pair's ratio is as narrow as asked for. On a CPU, CPU seconds of the process are counted, with one thread. Other
programs only ever add to them, so that the fastest step of a block counts, and the median of the blocks and of the starts; the mean step, which has
what is done now and then, is beside it. All arms compute the loss of whole logits. The harness runs as in a worker: real batches, a log on
disk, and the parent's sampler in another process, which is stopped for the other arms.

With an accelerator (`--backend cuda`), only the bare loops and the harness run, at the size `billion`: a Llama with 0.98 B parameters in
bf16, 4 x 2048 tokens per step. Steps are timed with events in the device's queue.
"""

import argparse
import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import torch
import transformers
from overhead_peers import Arm, serve
from safetensors.torch import save_file

from tunemark.harness.plan.resolve import Options, detect, resolve
from tunemark.harness.run.run_log import LogWriter
from tunemark.harness.vendors.protocol import Device, vendor_of
from tunemark.harness.worker.data import load_samples, micro_batches
from tunemark.harness.worker.loop import collector_at_rest, prepare, train
from tunemark.harness.worker.models import build_model, config_of
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
BARE, AGAIN = "bare loop", "bare loop again"
TRAINER = "HF Trainer"
ROUNDS, FEWEST_STARTS, PEER_BATCHES = 8, 8, 32
"""Blocks of each arm in a start, the fewest starts, and the micro-batches of the peers."""
Blocks = dict[int, tuple[float, float]]
"""Number of a start -> the medians over its blocks of the fastest and of the mean step, in seconds."""
DROPPED = 2
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
    changes += ["loss=whole", *(["compute=bf16"] if size == BILLION_SIZE else [])]
    plan = resolve("smoke-full", facts, detect(backend), Options(overrides=tuple(changes))).plan
    # Only the number of steps ends training.
    plan = plan.model_copy(update={"measurement": plan.measurement.model_copy(update={"max_train_s": None})})
    folder.mkdir(parents=True, exist_ok=True)
    # One thread: several that wait for each other would count as work.
    device = vendor_of(backend).device.open(1 if plan.device.threads else None)
    return Setting(plan, facts.model(plan.model.key).model_copy(update=changed), folder, device)


# The arms


def model_of(work: Setting) -> Any:
    """Return the model that every arm trains, from the same seed."""
    return build_model(work.plan, work.card, None, None, work.folder / "weights", work.device).to(work.device.torch_name)


def batches_of(work: Setting) -> Iterator[Any]:
    """Return the harness's stream of micro-batches."""
    return micro_batches(work.plan, load_samples(work.plan, work.card.vocabulary, None, None).training)


def write(work: Setting) -> None:
    """Write what the peers train: the configuration of the model, and some micro-batches."""
    config = config_of(work.card)
    config.dtype = work.plan.precision.parameters.value.replace("bf16", "bfloat16").replace("fp32", "float32")
    config.save_pretrained(work.folder)
    batches = [dict(batch.tensors) for batch in islice(batches_of(work), PEER_BATCHES)]
    same = [name for name, value in batches[0].items() if isinstance(value, torch.Tensor)]
    save_file({name: torch.stack([batch[name] for batch in batches]) for name in same}, work.folder / "batches.safetensors")


def harness(work: Setting, sampler: int) -> Arm:
    """Return the harness's loop, with its log, batches and sampler. On a CPU, its clock counts CPU seconds."""
    path = work.folder / "log.jsonl"
    if work.on_cpu:
        work.device.now = time.process_time  # type: ignore[method-assign] # every time in the log is read from this clock
    log = LogWriter(path, 0.0)
    trainer = prepare(work.plan, model_of(work), work.device, log, None, work.folder / "stop")
    stream = batches_of(work)

    def run(steps: int) -> list[float]:
        os.kill(sampler, signal.SIGCONT)
        trainer.steps = steps
        offset = path.stat().st_size
        with collector_at_rest():
            train(trainer, stream)
        os.kill(sampler, signal.SIGSTOP)
        events = [json.loads(line) for line in path.read_bytes()[offset:].splitlines()]
        times = [e["started_at_s"] for e in events if e["event"] == "training"]
        times += [e["completed_at_s"] for e in events if e["event"] == "step"]
        return [after - before for before, after in pairwise(times)]

    return run


def serve_harness(size: str, folder: Path, backend: Backend) -> None:
    """Answer as the peers do, with the harness's loop."""
    sampled = [str(index) for index in detect(backend).indexes[:1]]
    sampler = subprocess.Popen([sys.executable, "-c", SAMPLER, str(os.getpid()), backend.value, *sampled])  # noqa: S603 - our own sampler
    try:
        time.sleep(2)
        serve(lambda: harness(setting(size, folder, backend), sampler.pid))
    finally:
        sampler.kill()


# Measure


class Server:
    """An arm in another process."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603

    def step_s(self, steps: int) -> tuple[float, float]:
        """Return the seconds of the fastest and of the mean step in a block of this many steps."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(steps, file=self.process.stdin, flush=True)
        times = json.loads(self.process.stdout.readline())[DROPPED:]
        return min(times), statistics.fmean(times)

    def close(self) -> None:
        """End the process, which ends its sampler. One that hangs in its driver is stopped."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.communicate(timeout=10)
        self.process.kill()


def measure(commands: dict[str, list[str]], steps: int, within: float, minutes: float) -> dict[str, Blocks]:
    """Return the steps of each arm by start, once the A/A interval is narrow enough or the time is up.

    Two processes with the same code differ by a few percent, in where their memory lies: each start has new ones.
    """
    blocks: dict[str, Blocks] = {name: {} for name in commands}
    names = [name for name in commands if name != TRAINER]
    end_s, number, low, high = time.monotonic() + 60 * minutes, 0, 0.0, math.inf
    # Stopped from outside, it keeps what it has measured.
    with contextlib.suppress(KeyboardInterrupt):
        while time.monotonic() < end_s and (number < FEWEST_STARTS or high - low > 2 * within):
            with ExitStack() as servers:
                arms = {name: Server(command) for name, command in commands.items()}
                for arm in arms.values():
                    servers.callback(arm.close)
                    arm.step_s(steps)
                # The order rotates, so that no arm always follows the same one. A Trainer is created again for each block, which takes long.
                turns = [[*names[each % len(names) :], *names[: each % len(names)]] for each in range(ROUNDS)]
                rounds = [{name: arms[name].step_s(steps) for name in turn} for turn in [list(commands), *turns]]
            for name in commands:
                fastest, mean = zip(*(row[name] for row in rounds if name in row), strict=True)
                blocks[name][number] = statistics.median(fastest), statistics.median(mean)
            control, low, high = ratio(blocks[AGAIN], blocks[BARE])
            print(f"{(number := number + 1)} starts, A/A ratio {control:.4f} +- {(high - low) / 2:.4f}", file=sys.stderr)
    return blocks


def ratio(blocks: Blocks, bare: Blocks, place: int = 0) -> tuple[float, float, float]:
    """Return the median ratio of the throughput to the bare loop's in the same starts, with its 95% interval from the binomial distribution."""
    found = sorted(bare[number][place] / own[place] for number, own in blocks.items() if number in bare)
    middle, half = (len(found) - 1) / 2, 0.98 * math.sqrt(len(found))
    return statistics.median(found), found[max(0, math.floor(middle - half))], found[min(len(found) - 1, math.ceil(middle + half))]


def main() -> None:
    """Print the table of each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=[backend.value for backend in Backend], default=Backend.CPU.value)
    parser.add_argument("--within", type=float, default=0.01, help="half-width of the 95%% interval of the A/A ratio")
    parser.add_argument("--minutes", type=float, default=20.0, help="longest time for a size")
    parser.add_argument("--steps", type=int, default=12, help="steps of a block")
    parser.add_argument("--only", choices=SIZES, help="run one size; default: every size practical for the device")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    backend = Backend(chosen.backend)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    if chosen.serve:
        serve_harness(chosen.only, chosen.serve, backend)
        return
    sizes, here = [size for size in SIZES if (size == BILLION_SIZE) != (backend is Backend.CPU)], Path(__file__)
    for size in [chosen.only] if chosen.only else sizes:
        with tempfile.TemporaryDirectory() as name:
            work = setting(size, Path(name) / "peers", backend)
            write(work)
            peer = [str(here.with_name("overhead_peers.py")), "{}", str(work.folder), work.device.torch_name]
            own = [str(here), "--serve", str(Path(name) / "own"), "--only", size, "--backend", backend.value]
            commands = {BARE: [*peer[:1], "bare", *peer[2:]], "Tunemark": own, AGAIN: [*peer[:1], "bare", *peer[2:]]}
            commands |= {TRAINER: [*peer[:1], "trainer", *peer[2:]]} if work.on_cpu else {}
            blocks = measure(commands, chosen.steps, chosen.within, chosen.minutes)
        print(f"{size}: {SIZES[size][1]} x {SIZES[size][0]} tokens, {len(blocks[BARE])} starts; {'CPU' if work.on_cpu else 'device'} time")
        for arm, own in blocks.items():
            for place, kind in enumerate(("fastest", "mean")):
                middle, low, high = ratio(own, blocks[BARE], place)
                step_ms = 1e3 * statistics.median(each[place] for each in own.values())
                print(f"  {arm:17} {kind:8} {step_ms:8.2f} ms  {middle:.3f} of the bare loop [{low:.3f}, {high:.3f}]", flush=True)


if __name__ == "__main__":
    main()
