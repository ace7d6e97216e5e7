"""Requested and effective settings: what the plan requested, what the run used, and whether they agree."""

from collections.abc import Iterator
from typing import NamedTuple

from tunemark.schema.records.plan import Plan
from tunemark.schema.records.trace import Effective, StepTrace
from tunemark.schema.vocabulary import NATIVE, Backend

SHORT_NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
TORCH_NAMES = {short: name for name, short in SHORT_NAMES.items()} | {"tf32": "float32"}
"""Number format -> its name in torch; tf32 is stored as fp32."""
OPTIMIZER_CLASSES = {
    "adamw": "AdamW",
    "adamw_8bit": "AdamW8bit",
    "paged_adamw_8bit": "PagedAdamW8bit",
    "adafactor": "Adafactor",
    "sgd": "SGD",
}
MASTER_OPTIMIZER = "MasterAdamW"
"""AdamW over fp32 copies of the weights."""
STOCHASTIC_OPTIMIZER = "StochasticAdamW"
"""AdamW that rounds updated bf16 weights stochastically."""
OPTIMIZER_LIBRARIES = {
    "AdamW": "torch",
    "SGD": "torch",
    "Adafactor": "torch",
    "AdamW8bit": "bitsandbytes",
    "PagedAdamW8bit": "bitsandbytes",
    MASTER_OPTIMIZER: "tunemark",
    STOCHASTIC_OPTIMIZER: "tunemark",
}
"""The library of each class of optimizer that the harness makes."""
NEURON_ATTENTION = {"eager": "eager", "sdpa": "flash_attention_2", "flash_attention_2": "flash_attention_2"}
"""optimum-neuron calls its only fused kernel flash_attention_2. A request for sdpa selects it."""
DEVICE_TYPES = {Backend.CUDA: "cuda", Backend.ROCM: "cuda", Backend.XPU: "xpu", Backend.MPS: "mps"} | {each: each.value for each in NATIVE}
"""torch's device types. Offload cannot be observed on a CPU and cannot be requested on PyTorch/XLA."""


class Compared(NamedTuple):
    """A setting as requested and as used."""

    setting: str
    requested: str
    effective: str
    agrees: bool | None
    """None if a library uses names of its own, or the observation is not conclusive."""


def compared(plan: Plan, effective: Effective, trace: StepTrace) -> Iterator[Compared]:
    """Yield each setting of a run. Null fields are left out."""
    yield _attention(plan, effective)
    yield _same("fused_kernels", plan.model.fused_kernels, effective.fused_kernels)
    if effective.loss is not None:
        yield _same("loss", plan.model.loss, effective.loss)
    yield _same("gradient_checkpointing", plan.model.gradient_checkpointing.value, effective.gradient_checkpointing)
    yield _same("processes", str(plan.device.count), str(effective.processes))
    yield Compared("compile", plan.model.compile, effective.compile, plan.model.compile == effective.compile.partition(",")[0])
    if effective.compute is not None:
        yield _same("compute_format", plan.precision.compute.value, effective.compute)
    stored, trained = plan.trained.value, [short(name) for name in effective.trainable_dtypes]
    yield Compared("trained_format", stored, ", ".join(trained) or "none", trained == [stored])
    if effective.quantisation is not None:
        requested = plan.quantisation
        unpacked = "fp8" if plan.model.frozen_weights == "fp8" else "none"
        name = f"{requested.format}{', double' if requested.double else ''}" if requested else unpacked
        yield _same("quantisation", name, effective.quantisation)
    if effective.fp8_training is not None:
        yield _same("fp8_training", plan.model.fp8_training, effective.fp8_training)
    yield Compared("optimizer", plan.optimizer.name, effective.optimizer, _optimizer_agrees(plan, effective))
    yield from _packing(plan, trace)
    yield from _places(plan, effective)
    if effective.stochastic_rounding is not None:
        yield _same("stochastic_rounding", str(plan.rounds_stochastically).lower(), str(effective.stochastic_rounding).lower())
    if effective.sharding or plan.device.count > 1:
        yield Compared("sharding", plan.device.strategy.value, effective.sharding or "none", None)
    if effective.gradient_reduction is not None:
        yield _same("gradient_reduction", "fp32", effective.gradient_reduction)
    if effective.process_group or plan.device.count > 1:
        yield Compared("process_group", "automatic", effective.process_group or "none", None)


def short(name: str) -> str:
    """Return the short name of a torch number format."""
    bare = name.removeprefix("torch.")
    return SHORT_NAMES.get(bare, bare)


def _same(setting: str, requested: str, effective: str) -> Compared:
    return Compared(setting, requested, effective, requested == effective)


def _attention(plan: Plan, effective: Effective) -> Compared:
    requested = plan.model.attention
    meant = NEURON_ATTENTION.get(requested, requested) if plan.device.backend is Backend.NEURON_XLA else requested
    requested_text = requested if meant == requested else f"{requested}, in optimum-neuron {meant}"
    effective_text = (
        effective.attention
        if effective.attention_kernel is None
        else f"{effective.attention}, with the kernel {effective.attention_kernel}"
    )
    chosen, kernel = effective.attention_kernel, plan.model.sdpa_kernel
    if kernel != "auto":
        requested_text += f", with the kernel {kernel} only"
    agrees = meant == effective.attention and (chosen is None or kernel in {"auto", chosen})
    return Compared("attention", requested_text, effective_text, agrees)


def _optimizer_agrees(plan: Plan, effective: Effective) -> bool | None:
    """Return True if the class is the requested one; None for a wrapper class, such as one that shards states."""
    name = effective.optimizer.split()[-1]
    return name == optimizer_class(plan) if name in OPTIMIZER_LIBRARIES else None


def optimizer_class(plan: Plan) -> str:
    """Return the class of the optimizer that the harness makes for a plan. On Neuron the runtime rounds stochastically."""
    if plan.optimizer.master_weights:
        return MASTER_OPTIMIZER
    if plan.optimizer_rounds_stochastically:
        return STOCHASTIC_OPTIMIZER
    return OPTIMIZER_CLASSES[plan.optimizer.name]


def _packing(plan: Plan, trace: StepTrace) -> Iterator[Compared]:
    """Yield whether rows held several packed documents, observed from unlabelled first tokens."""
    if not plan.data.packing or not sum(trace.rows):
        return
    pieces, rows = sum(trace.real_tokens) - sum(trace.supervised_tokens), sum(trace.rows)
    yield Compared("packing", "several documents per row", f"{pieces / rows:.1f} documents or parts per row", pieces > rows)


def _places(plan: Plan, effective: Effective) -> Iterator[Compared]:
    """Yield where parameters and optimizer states are stored. A CPU has no other place."""
    device = DEVICE_TYPES.get(plan.device.backend)
    if device is None:
        return
    offload = plan.device.offload
    for what, places, moved in (
        ("parameters_on", effective.parameters_on, offload == "all"),
        ("optimizer_states_on", effective.optimizer_states_on, offload in {"all", "optimizer"}),
    ):
        if places:
            yield _same(what, "cpu" if moved else device, ", ".join(places))
