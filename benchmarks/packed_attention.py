"""Compare the ways to keep packed documents apart: time, loss, gate, and the pairs of tokens that are computed.

    python benchmarks/packed_attention.py [--backend cpu] [--length 2048] [--rounds 7] [--threads 1] [--json]

Each implementation runs the same model on one packed row of random documents, in fp32 on a CPU and in bf16 on an accelerator.
flex_attention has no backward pass on CPUs, so its forward pass is timed without gradients there. varlen is torch's FlashAttention
kernel, which needs CUDA: on a CPU only the host's time to compute the lengths is measured. `no borders` has no mask, so documents
attend to each other: it must fail the gate.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import transformers

from tunemark.harness.plan.machine import detect
from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.vendors.protocol import Device, vendor_of
from tunemark.harness.worker.attention import BLOCK, document_blocks, packed_arguments, packed_mask, register_varlen
from tunemark.harness.worker.data import load_samples, pack, packed_tensors
from tunemark.harness.worker.gates import packed_documents, to_device
from tunemark.harness.worker.models import build_model
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.vocabulary import VARLEN, Backend

FLEX, NO_BORDERS = "flex_attention", "no borders"
ON_CPU = ("sdpa", "eager", FLEX, NO_BORDERS)
PREPARED = ("sdpa", "eager", FLEX, VARLEN)
ON_CUDA = (*PREPARED, NO_BORDERS)
PREPARATIONS = 20


def seconds(work: Callable[[], object], device: Device) -> float:
    """Return the wall time of one call in seconds, including the device's work."""
    device.synchronise()
    started_s = time.perf_counter()
    work()
    device.synchronise()
    return time.perf_counter() - started_s


class Case:
    """One packed row, a tiny Llama, and the arguments of each way."""

    def __init__(self, length: int, folder: Path, backend: Backend = Backend.CPU, threads: int = 1) -> None:
        facts, on_cpu = FactBase.of_project(), backend is Backend.CPU
        self.device, self.ways = vendor_of(backend).device.open(threads), ON_CPU if on_cpu else ON_CUDA
        self.without_backward = {FLEX} if on_cpu else set()
        settings = (
            "data.packing=true",
            "data.name=random-documents",
            f"data.sequence_length={length}",
            "batch.micro_batch=1",
            "compute=fp32" if on_cpu else "compute=bf16",
        )
        self.plan = resolve("smoke-full", facts, detect(backend), Options(overrides=settings)).plan
        card = facts.model(self.plan.model.key)
        self.model = build_model(self.plan, card, None, None, folder, self.device).to(self.device.torch_name)
        register_varlen()
        self.rows = list(islice(pack(load_samples(self.plan, card.vocabulary, None, None).training, length), 1))
        self.places = self.rows[0].places[None]
        self.tensors = {way: self._tensors(way) for way in self.ways}

    def _tensors(self, way: str) -> dict[str, Any]:
        if way == NO_BORDERS:
            return {name: value for name, value in self._tensors("sdpa").items() if name != "attention_mask"}
        made: dict[str, Any] = to_device(packed_tensors(self.rows, way, None, mixed_windows=False), self.device.torch_name)
        return made

    def use(self, way: str) -> dict[str, Any]:
        """Make the model use a way; return its arguments. Gradients are off where there is no backward pass."""
        self.model.config._attn_implementation = "sdpa" if way == NO_BORDERS else way  # noqa: SLF001 - there is no public name for it
        self.model.requires_grad_(way not in self.without_backward)
        return self.tensors[way]

    def times(self, way: str) -> dict[str, float]:
        """Return the seconds of a forward pass without gradients, and of a forward and backward pass where there is one."""
        tensors = self.use(way)
        with torch.no_grad():
            found = {"forward_s": seconds(lambda: self.model(**tensors), self.device)}
        if way not in self.without_backward:
            self.model.zero_grad(set_to_none=True)
            found["both_s"] = seconds(lambda: self._loss(tensors).backward(), self.device)
        return found

    def _loss(self, tensors: dict[str, Any]) -> Any:
        return self.model(**tensors).loss

    def loss(self, way: str) -> float:
        """Return the loss of the row."""
        with torch.no_grad():
            return float(self._loss(self.use(way)))

    def gate(self, way: str) -> str:
        """Return the verdict of the gate of packed documents with its detail."""
        found = packed_documents(self.plan, self.model, self.use(way))
        return f"{'passed' if found['passed'] else 'failed'}: {found['detail']}"

    def pairs(self) -> dict[str, float]:
        """Return the share of all pairs of tokens that each way computes; for varlen at least those that are visible."""
        length, blocks = self.places.shape[1], document_blocks(self.places, None)
        computed = int(blocks.partial_count.sum() + blocks.full_count.sum()) * BLOCK**2
        visible = float(packed_mask(self.places, None).mean())
        return {"sdpa": 1.0, "eager": 1.0, FLEX: computed / length**2, VARLEN: visible}

    def preparation_ms(self, way: str) -> float:
        """Return the median milliseconds in which the host makes the mask, the blocks or the lengths of the row."""
        return 1e3 * statistics.median(
            seconds(lambda: packed_arguments(way, self.places, None, mixed_windows=False), self.device) for _ in range(PREPARATIONS)
        )


def measure(case: Case, rounds: int) -> dict[str, dict[str, Any]]:
    """Return the figures of each way; the ways take turns, and the first round is dropped."""
    every: dict[str, list[dict[str, float]]] = {way: [] for way in case.ways}
    for number in range(rounds + 1):
        for way in case.ways:
            times = case.times(way)
            if number:
                every[way].append(times)
    reference = case.loss("sdpa")
    found: dict[str, dict[str, Any]] = {way: {} for way in dict.fromkeys((*case.ways, VARLEN))}
    for way, times in every.items():
        for name in times[0]:
            found[way][name] = statistics.median(one[name] for one in times)
            ratios = (one[name] / base[name] for one, base in zip(times, every["sdpa"], strict=True))
            found[way][name.replace("_s", "_ratio")] = statistics.median(ratios)
        found[way] |= {"loss_difference": case.loss(way) - reference, "gate": case.gate(way)}
    for way in PREPARED:
        found[way] |= {"preparation_ms": case.preparation_ms(way), "pairs": case.pairs()[way]}
    return found


def cell(row: dict[str, Any], name: str, form: str) -> str:
    """Return a formatted figure; empty if it was not measured."""
    return form.format(row[name]) if name in row else ""


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=[Backend.CPU.value, Backend.CUDA.value], default=Backend.CPU.value)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    return parser


def main() -> None:
    """Print the table."""
    chosen = parser().parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(chosen.threads)
    with tempfile.TemporaryDirectory() as folder:
        case = Case(chosen.length, Path(folder), Backend(chosen.backend), chosen.threads)
        found = measure(case, chosen.rounds)
    if chosen.json:
        print(json.dumps(found, indent=1))
        return
    print(f"{len(case.rows[0].pieces)} pieces in a row of {chosen.length} tokens, {found[VARLEN]['pairs']:.1%} of the pairs visible")
    print("| way | forward | forward and backward | host | pairs computed | difference of the loss | gate |\n|---|---|---|---|---|---|---|")
    for way, row in found.items():
        passes = (cell(row, f"{name}_s", "{:.3f} s") + cell(row, f"{name}_ratio", " ({:.2f})") for name in ("forward", "both"))
        rest = (("preparation_ms", "{:.2f} ms"), ("pairs", "{:.1%}"), ("loss_difference", "{:+.1e}"), ("gate", "{}"))
        print("|", " | ".join([way, *passes, *(cell(row, *one) for one in rest)]), "|")


if __name__ == "__main__":
    main()
