"""Checks of settings: the reasons that a plan gives for them, and what was in effect, against plan, card, device and training."""

import re
from collections.abc import Iterator, Mapping
from typing import get_args

from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.effective import OPTIMIZER_LIBRARIES, compared
from tunemark.schema.records.plan import FourBit
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.trace import Effective
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.vocabulary import (
    ATTENTION_KERNELS,
    BEFORE_AMPERE,
    DEEPSPEED,
    SHARDED_STATES,
    Backend,
    Dtype,
    Padding,
    Strategy,
    WarningKind,
)

KERNELS = {
    Backend.CPU: {"math", "flash"},
    Backend.CUDA: {"math", "flash", "efficient", "cudnn"},
    Backend.ROCM: {"math", "flash", "efficient"},
    Backend.XPU: {"math", "flash", "efficient", "overrideable"},
}
"""Kernels of torch's attention by back end; torch is not asked on others."""
SHORT_FORMATS = {Dtype.BF16, Dtype.FP16}
"""Formats of the kernels `flash` and `cudnn` on GPUs."""
GROUPS: dict[Backend, set[str]] = {
    Backend.CPU: {"gloo"},
    Backend.CUDA: {"nccl"},
    Backend.ROCM: {"nccl"},
    Backend.XPU: {"xccl", "ccl"},
    Backend.NEURON: {"xla"},
    Backend.MPS: set(),
}
"""Collectives by back end. Beside those of GPUs, `gloo` may be named for tensors of the host: `cpu:gloo,cuda:nccl`."""
STEEPEST = 1.0
"""Learning rate of AdamW from which each update moves every weight by more than the weights themselves."""
CALM = 1.0
"""Rise of the loss over its first value, in nats, that such updates surely cause."""
FEWEST_STEPS = 3
FOUR_BIT = get_args(FourBit)
FULL_ROWS = 0.9
"""Share of full rows among those that a plan without padding has: the last packed one may be shorter."""
EFFECTIVE_FIELDS = {"compute_format": "compute", "trained_format": "trainable_dtypes"}
"""Settings in `compared` whose field in the record has another name."""
NO_FALLBACK = {"optimizer", "stochastic_rounding"}
"""Settings that no library changes: the harness makes the optimizer. On Neuron the runtime rounds."""
ALWAYS = {"batch.global_batch", "device.count", "device.strategy", "precision.compute"}
"""Values of every plan that have a reason."""
FASTEST = "the fastest format of "
"""Beginning of the reason of a format; the generation of the device and the formats that it lacks follow."""
Reasons = Mapping[str, bool]
"""Reason -> True if it is true. One that ends with `...` stands for all that begin with it."""


# Settings in effect


def effective_problems(submission: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield each setting in effect that differs from the plan without a warning, or that cannot be."""
    card = facts.accelerators.get(submission.plan.device.accelerator or "")
    architecture = card.architecture if card is not None and card.vendor == "NVIDIA" else None
    yield from _settings(submission, architecture)
    yield from _surely_as_planned(submission)
    yield from _traces(submission)


def _kernel(s: Submission, ran: Effective, architecture: str | None) -> Iterator[Problem]:
    """Yield a kernel of torch's attention where another attention runs, or that this device, format or mask does not allow."""
    kernel, backend, compute = ran.attention_kernel, s.plan.device.backend, s.plan.precision.compute
    if kernel is None:
        return
    field, shown = "effective.attention_kernel", repr(kernel)
    known, gpu = KERNELS.get(backend), backend in {Backend.CUDA, Backend.ROCM}
    kernels = ATTENTION_KERNELS.get(ran.attention, ())
    if kernel not in kernels:
        yield Problem(field, shown, f"is not a kernel of {ran.attention}; known are {', '.join(kernels) or 'none'}")
    elif ran.attention != "sdpa":
        return
    elif ran.compile != "none":
        yield Problem(field, shown, f"compile is {ran.compile!r}; the kernel of a compiled graph is unknown, write null")
    elif known is not None and kernel not in known:
        yield Problem(field, shown, f"the {backend.value} back end has {', '.join(sorted(known))}")
    elif kernel == "flash" and gpu and s.plan.data.packing and s.plan.data.document_borders:
        yield Problem(field, shown, "this kernel takes no mask, which packed documents with borders need")
    elif kernel in {"flash", "cudnn"} and gpu and (compute not in SHORT_FORMATS or architecture in BEFORE_AMPERE):
        device = f" on {architecture}" if architecture in BEFORE_AMPERE else ""
        yield Problem(field, shown, f"this kernel does not run in {compute.value}{device}")


def _traces(s: Submission) -> Iterator[Problem]:
    """Yield settings whose effect must be visible in the log, and is not: a compilation, and losses that diverge."""
    plan, losses = s.plan, [loss for loss in s.trace.loss if loss is not None]
    compiled = any(event.kind == "compile" for event in s.events)
    if plan.model.compile != "none" and len(s.trace) and not compiled and plan.device.backend is not Backend.NEURON:
        yield Problem("events", "no compile", f"plan.model.compile is {plan.model.compile!r}; its first step compiles graphs")
    slots, full = sum(s.trace.slot_tokens), sum(s.trace.rows) * plan.data.sequence_length
    if plan.data.padding is Padding.NONE and full and slots < FULL_ROWS * full:
        fix = f"the rows of this plan are full, {plan.data.sequence_length} tokens each"
        yield Problem("trace.slot_tokens", f"{slots / full:.0%} of the rows", fix)
    settings = plan.optimizer
    # The schedule may have begun at zero.
    steep = settings.name.endswith(("adamw", "adamw_8bit")) and settings.learning_rate >= STEEPEST and len(losses) > FEWEST_STEPS
    if steep and settings.warmup_steps < len(losses) - FEWEST_STEPS and max(losses[1:]) < losses[0] + CALM:
        fix = f"each update of AdamW moves every weight by about {settings.learning_rate:g}; the losses would rise far above the first"
        yield Problem("plan.optimizer.learning_rate", f"{settings.learning_rate:g}", fix)


def _settings(s: Submission, architecture: str | None) -> Iterator[Problem]:
    """Yield settings in effect that differ from the plan without the warning `fallback`, and impossible combinations."""
    ran = s.effective
    if ran is None:
        return
    admitted = [warning.message for warning in s.warnings if warning.kind is WarningKind.FALLBACK]
    no_fallback = NO_FALLBACK - ({"stochastic_rounding"} if s.plan.device.backend is Backend.NEURON else set())
    for setting in compared(s.plan, ran, s.trace):
        name, fix = setting.setting, f"the plan has {setting.requested}; such a run has the warning 'fallback'"
        if name in no_fallback:
            fix = f"the plan has {setting.requested}, and the harness makes the optimizer of the plan"
        if setting.agrees is False and (name in no_fallback or not any(message.startswith(f"{name}:") for message in admitted)):
            yield Problem(f"effective.{EFFECTIVE_FIELDS.get(name, name)}", repr(setting.effective), fix)
    yield from _kernel(s, ran, architecture)
    wrapped = s.plan.device.strategy in DEEPSPEED or s.plan.device.backend is Backend.NEURON
    if ran.optimizer.split()[-1] not in OPTIMIZER_LIBRARIES and not wrapped:
        yield Problem(
            "effective.optimizer", repr(ran.optimizer), f"is not an optimizer of the harness; {s.plan.optimizer.name} was planned"
        )
    alone = ran.processes == 1
    if alone and ran.process_group is not None:
        yield Problem("effective.process_group", repr(ran.process_group), "one process has no group")
    elif not alone and ran.process_group is None and s.plan.device.backend is not Backend.NEURON:
        yield Problem("effective.process_group", "null", f"{ran.processes} processes exchange their gradients in a group")
    if ran.expandable_segments is not None and s.plan.device.backend not in {Backend.CUDA, Backend.ROCM}:
        yield Problem("effective.expandable_segments", str(ran.expandable_segments), "is a setting of torch's allocator on GPUs")
    known = GROUPS.get(s.plan.device.backend)
    parts = set(re.findall(r"(?:^|:)(\w+)(?=,|$)", ran.process_group or ""))
    if ran.process_group is not None and known is not None and not (parts & known and parts <= known | {"gloo"}):
        fix = f"the {s.plan.device.backend.value} back end uses {' or '.join(sorted(known)) or 'no group'}"
        yield Problem("effective.process_group", repr(ran.process_group), fix)
    elif ran.process_group is not None and "nccl" in ran.process_group and s.environment.os.startswith("Windows"):
        yield Problem("effective.process_group", repr(ran.process_group), f"NCCL has no build for {s.environment.os!r}")
    sharded = s.plan.device.strategy in SHARDED_STATES
    if (s.plan.device.backend is not Backend.NEURON and (ran.sharding is not None) != sharded) or (
        ran.sharding is not None and ("FSDP" in ran.sharding) != (s.plan.device.strategy is Strategy.FSDP2) and sharded
    ):
        yield Problem("effective.sharding", repr(ran.sharding), f"plan.device.strategy is {s.plan.device.strategy.value!r}")
    types = {Backend.CPU: {"cpu"}, Backend.CUDA: {"cuda", "cpu"}, Backend.ROCM: {"cuda", "cpu"}}.get(s.plan.device.backend)
    for name in ("parameters_on", "optimizer_states_on"):
        strange = sorted(set(getattr(ran, name)) - types) if types else []
        if strange:
            yield Problem(f"effective.{name}", repr(strange[0]), f"the {s.plan.device.backend.value} back end keeps no tensors there")
    if s.model is not None and s.model.optimizer_state_bytes and not ran.optimizer_states_on and s.plan.device.offload == "none" and types:
        yield Problem(
            "effective.optimizer_states_on", "[]", f"model.optimizer_state_bytes is {s.model.optimizer_state_bytes}; list where they are"
        )


def _surely_as_planned(s: Submission) -> Iterator[Problem]:
    """Yield settings that differ from the plan although no library changes them unrecorded. A warning `fallback` does not excuse them."""
    ran, plan = s.effective, s.plan
    if ran is None:
        return
    library, _, name = ran.optimizer.rpartition(" ")
    wanted = OPTIMIZER_LIBRARIES.get(name)
    if wanted is not None and library and library != wanted:
        yield Problem("effective.optimizer", repr(ran.optimizer), f"the harness takes {name} from {wanted}")
    if ran.stochastic_rounding is None and plan.optimizer_rounds_stochastically:
        fix = "plan.optimizer.stochastic_rounding is true, and the harness makes the optimizer of the plan"
        yield Problem("effective.stochastic_rounding", "null", fix)
    if "cpu" in ran.optimizer_states_on and plan.device.offload == "none" and plan.device.backend in {Backend.CUDA, Backend.ROCM}:
        fix = "plan.device.offload is 'none'; an optimizer keeps its states beside the weights"
        yield Problem("effective.optimizer_states_on", "'cpu'", fix)
    if s.model is None:
        return
    in_blocks = any("4-bit" in name for name in s.model.parameter_bytes)
    if ran.quantisation is not None and ran.quantisation.startswith(FOUR_BIT) != in_blocks:
        held = "holds scales of 4-bit blocks" if in_blocks else "has no 4-bit blocks"
        yield Problem("effective.quantisation", repr(ran.quantisation), f"model.parameter_bytes {held}")
    planned = plan.precision.compute.value
    if ran.compute is not None and ran.compute != planned and ran.compute not in s.model.parameter_bytes:
        fix = f"the plan has {planned}, and no weight has this format"
        yield Problem("effective.compute", repr(ran.compute), fix)
