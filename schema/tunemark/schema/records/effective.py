"""Requested against effective: each lever as the plan asked for it, as it was, and whether that is the same."""

from collections.abc import Iterator
from typing import NamedTuple

from tunemark.schema.records.plan import Plan
from tunemark.schema.records.trace import Effective, StepTrace
from tunemark.schema.vocabulary import Backend, Task

SHORT_NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
OPTIMIZER_CLASSES = {
    "adamw": "AdamW",
    "adamw_8bit": "AdamW8bit",
    "paged_adamw_8bit": "PagedAdamW8bit",
    "adafactor": "Adafactor",
    "sgd": "SGD",
}
NEURON_ATTENTION = {"sdpa": "flash_attention_2"}
"""Optimum-neuron has one fused kernel, which it calls so: that is what sdpa means there."""
DEVICE_TYPES = {Backend.CUDA: "cuda", Backend.ROCM: "cuda", Backend.XPU: "xpu", Backend.MPS: "mps"}
"""What torch calls a device; on a CPU nothing can be seen to have moved to the host, and on Neuron nothing can be asked to."""


class Compared(NamedTuple):
    """One lever."""

    setting: str
    requested: str
    effective: str
    agrees: bool | None
    """None where a library has names of its own, or where what ran says nothing of it."""


def compared(plan: Plan, seen: Effective, trace: StepTrace) -> Iterator[Compared]:
    """Yield each lever of a run. Null fields, which older records have, are left out."""
    yield _attention(plan, seen)
    yield _same("fused_kernels", plan.model.fused_kernels, seen.fused_kernels)
    yield _same("gradient_checkpointing", plan.model.gradient_checkpointing.value, seen.gradient_checkpointing)
    yield _same("processes", str(plan.device.count), str(seen.processes))
    yield Compared("compile", plan.model.compile, seen.compile, plan.model.compile == seen.compile.partition(",")[0])
    if seen.compute is not None:
        yield _same("compute_format", plan.precision.compute.value, seen.compute)
    stored, trained = plan.precision.parameters.value, [short(name) for name in seen.trainable_dtypes]
    yield Compared("trained_format", stored, ", ".join(trained) or "nothing is trained", trained == [stored])
    if seen.quantisation is not None:
        asked = plan.quantisation
        yield _same("quantisation", f"{asked.format}{', double' if asked.double else ''}" if asked else "none", seen.quantisation)
    yield Compared("optimizer", plan.optimizer.name, seen.optimizer, _optimizer_agrees(plan, seen))
    yield from _packing(plan, trace)
    yield from _places(plan, seen)
    if seen.stochastic_rounding is not None:
        told = bool(plan.neuron and plan.neuron.stochastic_rounding)
        yield _same("stochastic_rounding", str(told).lower(), str(seen.stochastic_rounding).lower())
    if seen.sharding or plan.device.count > 1:
        yield Compared("sharding", plan.device.strategy.value, seen.sharding or "none", None)
    if seen.process_group or plan.device.count > 1:
        yield Compared("process_group", "what suits the device", seen.process_group or "none", None)


def short(name: str) -> str:
    """Return the short name of one of torch's number formats."""
    bare = name.removeprefix("torch.")
    return SHORT_NAMES.get(bare, bare)


def _same(setting: str, asked: str, was: str) -> Compared:
    return Compared(setting, asked, was, asked == was)


def _attention(plan: Plan, seen: Effective) -> Compared:
    asked = plan.model.attention
    by_trainer = plan.device.backend is Backend.NEURON and plan.model.task is Task.CAUSAL_LM
    meant = NEURON_ATTENTION.get(asked, asked) if by_trainer else asked
    said = asked if meant == asked else f"{asked}, on Neuron {meant}"
    was = seen.attention if seen.attention_kernel is None else f"{seen.attention}, of whose kernels torch chooses {seen.attention_kernel}"
    return Compared("attention", said, was, meant == seen.attention)


def _optimizer_agrees(plan: Plan, seen: Effective) -> bool | None:
    """Return whether the class is the one asked for; None for a class that wraps another, such as one that shares states."""
    name = seen.optimizer.split()[-1]
    return name == OPTIMIZER_CLASSES[plan.optimizer.name] if name in OPTIMIZER_CLASSES.values() else None


def _packing(plan: Plan, trace: StepTrace) -> Iterator[Compared]:
    """Yield whether rows held several pieces of documents: the first token of each piece of a packed row has no label."""
    if not plan.data.packing or not len(trace):
        return
    pieces, rows = sum(trace.real_tokens) - sum(trace.supervised_tokens), sum(trace.rows)
    yield Compared("packing", "several documents a row", f"{pieces / rows:.1f} pieces of documents a row", pieces > rows)


def _places(plan: Plan, seen: Effective) -> Iterator[Compared]:
    """Yield where parameters and states live; on a CPU there is no other place."""
    device = DEVICE_TYPES.get(plan.device.backend)
    if device is None:
        return
    offload = plan.device.offload
    for what, places, moved in (
        ("parameters_on", seen.parameters_on, offload == "all"),
        ("optimizer_states_on", seen.optimizer_states_on, offload in {"all", "optimizer"}),
    ):
        if places:
            yield _same(what, "cpu" if moved else device, ", ".join(places))
