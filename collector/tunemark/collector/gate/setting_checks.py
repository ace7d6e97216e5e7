"""Checks of settings: the reasons that a plan gives for them, and what was in effect, against plan, card, device and training."""

import re
from collections.abc import Iterator, Mapping
from typing import get_args

from tunemark.schema import plan_reasons as why
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.workloads import WorkloadCard
from tunemark.schema.features import USED
from tunemark.schema.plan_conflicts import conflicting_settings, conflicts_with_model, device_conflicts, torch_conflict
from tunemark.schema.records.base import flattened
from tunemark.schema.records.effective import OPTIMIZER_LIBRARIES, compared
from tunemark.schema.records.plan import FourBit, Measurement, needless_rounding
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.trace import Effective
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.statistics.comparison import arm_run
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS
from tunemark.schema.vocabulary import (
    ATTENTION_KERNELS,
    BEFORE_ADA,
    BEFORE_AMPERE,
    DEEPSPEED,
    SHARDED_STATES,
    VARLEN,
    Backend,
    DataSource,
    Dtype,
    Padding,
    Status,
    Strategy,
    WarningKind,
    Weights,
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
    yield from _unsupported(submission, facts, architecture)
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


def _unsupported(s: Submission, facts: FactBase, architecture: str | None) -> Iterator[Problem]:
    """Yield a plan with a feature that its device family or architecture does not have: the harness refuses it."""
    plan = s.plan
    if s.outcome.status is Status.UNSUPPORTED:
        return
    cannot = facts.support.cannot.get(plan.device.backend, {}) if facts.support is not None else {}
    for feature, uses in USED.items():
        if feature.value in cannot and uses(plan):
            yield Problem("plan", feature.value, f"not on the {plan.device.backend.value} back end: {cannot[feature.value]}")
    model, packages = facts.models.get(plan.model.key), s.environment.packages
    conflicts = [
        *device_conflicts(plan.device),
        *conflicting_settings(plan),
        *(conflicts_with_model(plan, model, packages) if model else ()),
    ]
    for reason in conflicts:
        yield Problem("plan", reason.partition("; ")[0], "the harness refuses such a plan before it runs; keep the original record")
    if architecture in BEFORE_AMPERE and plan.precision.compute in {Dtype.BF16, Dtype.TF32}:
        fix = f"{architecture} has no such format, and the harness refuses it there; the device is another one"
        yield Problem("plan.precision.compute", repr(plan.precision.compute.value), fix)
    if architecture in BEFORE_AMPERE and (plan.model.attention == VARLEN or plan.model.attention.startswith("flash_attention")):
        fix = f"this kernel does not run on {architecture}, so the harness would have refused it; correct plan.device.accelerator"
        yield Problem("plan.model.attention", repr(plan.model.attention), fix)
    too_old = torch_conflict(plan, packages)
    if too_old is not None:
        fix = f"{too_old.partition('; ')[0]}; the harness refuses such a plan before it runs"
        yield Problem("environment.packages.torch", repr(packages["torch"]), fix)
    if architecture in BEFORE_ADA and plan.model.fp8_products:
        field = "frozen_weights" if plan.model.frozen_weights == "fp8" else "fp8_training"
        fix = f"{architecture} has no products in fp8, and the harness refuses them there; the device is another one"
        yield Problem(f"plan.model.{field}", repr(getattr(plan.model, field)), fix)


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


# Reasons


def reason_problems(s: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield each reason that the harness does not give for its field, that is not true, or that is missing."""
    plan, card = s.plan, facts.workloads.get(s.plan.workload)
    known = {path for path, _ in flattened(plan.model_dump(mode="json"))} | set(type(plan).model_fields)
    possible = _possible(s, card, facts)
    for name, reason in plan.reasons.items():
        if name not in known - {"reasons"} | {"method", "lora.target_modules"}:
            yield Problem("plan.reasons", repr(name), "is not a field of a plan")
        elif reason == why.NEURON_POINT and plan.device.backend is Backend.NEURON:
            continue
        elif name not in possible:
            yield Problem(f"plan.reasons.{name}", repr(reason), "the harness gives no reason for this value; keep the original record")
        else:
            true = next((true for text, true in possible[name].items() if _is(reason, text)), None)
            if not true:
                fix = "is not true of this plan" if true is False else "is not a reason that the harness gives for this value"
                yield Problem(f"plan.reasons.{name}", repr(reason), f"{fix}; keep the original record")
    chosen = card is not None and card.attention == "auto" and all(override.field != "attention" for override in s.overrides)
    needed = ALWAYS | ({"model.attention"} if chosen and plan.model.attention == VARLEN else set())
    seconds = plan.measurement.max_train_s
    if card is not None and seconds is not None and seconds != card.stop.max_train_s:
        needed |= {"measurement.max_train_s"}
    for name in sorted(needed - set(plan.reasons)):
        yield Problem("plan.reasons", f"no {name}", "each derived value has its reason; keep the original record")


def _is(reason: str, text: str) -> bool:
    return reason.startswith(text[:-3]) if text.endswith("...") else reason == text


def _possible(s: Submission, card: WorkloadCard | None, facts: FactBase) -> dict[str, Reasons]:
    """Return the possible reasons of each field. Without its card, each reason that names the card may be true."""
    plan, model = s.plan, facts.models.get(s.plan.model.key)
    choices = plan.optimizer, plan.precision.parameters, plan.device.strategy
    needless = needless_rounding(choices[1], choices[2], master_weights=choices[0].master_weights)
    asked = card is None or card.optimizer.stochastic_rounding
    return {**_devices(s, card), **_formats(s, card, model), **_data(s, card), **_limits(s, card)} | {
        "batch.data_parallel": {
            why.data_parallel(plan.device.count, plan.device.tensor_parallel * plan.device.pipeline_parallel): True,
        },
        "optimizer.stochastic_rounding": {needless or "": asked and not plan.optimizer.stochastic_rounding},
        "batch.global_batch": {why.global_batch(plan.batch.micro_batch, plan.batch.gradient_accumulation, plan.batch.data_parallel): True},
    }


def _set_by(s: Submission, card: WorkloadCard | None, field: str, planned: object) -> bool:
    """Return True if the card, or an override of it, has the planned value."""
    if card is None:
        return True
    content = dict(flattened(card.model_dump(mode="json", exclude={"axes", "points"})))
    values = [override.run for override in s.overrides if override.field == field]
    return planned in (content.get(field), *values, *card.own_values(field))


def _devices(s: Submission, card: WorkloadCard | None) -> dict[str, Reasons]:
    plan, device, environment = s.plan, s.plan.device, s.environment
    found, alone = why.FOUND_BY.get(device.backend, "..."), device.count == 1
    processes = device.count // device.nodes
    cores = environment.cpu_physical_cores, environment.cpu_usable_cores
    replicas = why.REPLICAS
    return {
        # On a host without accelerators, the tools that are missing follow.
        "device.backend": {why.REQUESTED_BACKEND: True, found + ("; ..." if device.backend is Backend.CPU else ""): True, found: True}
        | {other: False for backend, other in why.FOUND_BY.items() if backend is not device.backend},
        "device.accelerator": {
            why.KNOWN_NAME: device.accelerator is not None,
            why.missing_card(environment.devices[0].name, device.backend): device.accelerator is None,
            # So did version 0.1 say it of all CPUs.
            why.missing_card(environment.devices[0].name, Backend.CUDA): device.accelerator is None,
        },
        "device.count": {why.REQUESTED_DEVICES: True, why.BY_CARD: _set_by(s, card, "devices.count", device.count)},
        "device.strategy": {
            why.NO_STRATEGY: alone and device.strategy is Strategy.SINGLE,
            replicas: not alone and device.strategy is Strategy.DDP,
            why.REQUESTED_STRATEGY: True,
            why.BY_CARD: _set_by(s, card, "devices.strategy", device.strategy.value),
        },
        "device.threads": {
            why.threads(processes): plan.device.threads == why.threads_of(*cores, processes),
        },
    }


def _formats(s: Submission, card: WorkloadCard | None, model: ModelCard | None) -> dict[str, Reasons]:
    plan = s.plan
    return {
        "precision.compute": {
            why.BY_CARD: _set_by(s, card, "compute", plan.precision.compute.value),
            why.FP8_GIVES_BF16: plan.model.fp8_products and plan.precision.compute is Dtype.BF16,
            why.fastest_format(plan.device.backend): True,
            **{why.fastest_format(other): False for other in Backend if other is not plan.device.backend},
            FASTEST + "...": plan.device.backend is not Backend.CPU,
        },
        "precision.parameters": {
            why.stored_format(plan.precision.compute): True,
        },
        "model.attention": {
            why.VARLEN_FOR_PACKED: plan.model.attention == VARLEN and _set_by(s, card, "attention", "auto"),
        },
        "lora.target_modules": {why.layer_names(model.family if model else ""): plan.lora is not None},
    }


def _data(s: Submission, card: WorkloadCard | None) -> dict[str, Reasons]:
    data, neuron = s.plan.data, s.plan.device.backend is Backend.NEURON
    pretrained = s.plan.model.weights is Weights.PRETRAINED
    fits = {"none": data.source is DataSource.SYNTHETIC, "model": pretrained, "word-level": not pretrained}
    return {
        "data.tokenizer": {reason: data.tokenizer == name and fits[name] for name, reason in why.TOKENIZERS.items()},
        "data.document_borders": {why.NO_BORDERS: neuron and not data.document_borders},
        "data.padding": {
            why.PADDED_FOR_NEURON: neuron and data.padding is Padding.STATIC,
            why.PADDED_TO_LONGEST: not neuron and data.padding is Padding.DYNAMIC and (card is None or card.data.padding is Padding.NONE),
        },
    }


def _limits(s: Submission, card: WorkloadCard | None) -> dict[str, Reasons]:
    rules, fewest = s.plan.measurement, Measurement().min_warmup_steps + RANKABLE_STEPS
    default, usual = rules.until_relative_ci == Measurement().until_relative_ci, why.narrow_enough(card.stop.epochs if card else None)
    arm = arm_run(s.study.point) if s.study is not None else None
    counted = rules.max_steps is not None or rules.epochs is not None
    return {
        "measurement.until_relative_ci": {
            why.REQUESTED_INTERVAL: rules.until_relative_ci is not None,
            why.ALL_STEPS: rules.until_relative_ci is None and counted,
            usual: default,
            # The epochs of the card may have been overridden.
            why.NARROW_ENOUGH: default,
            why.NARROW_ENOUGH + "; --epochs ...": default,
        },
        "measurement.max_train_s": {
            why.REQUESTED_SECONDS: rules.max_train_s is not None,
            why.default_time(fewest, RANKABLE_STEPS): rules.max_train_s is not None and rules.min_steps == fewest,
        },
        "measurement.seed": {why.paired_seed(arm.pair, rules.seed - arm.pair + 1): True} if arm is not None else {},
    }
