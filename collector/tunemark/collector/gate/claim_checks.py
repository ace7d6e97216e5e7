"""Checks of what a record says about itself: effective settings, gates, warnings, losses, overrides, and its study.

A claim that follows from the record is derived again; one that is missing or that differs is a problem.
"""

import json
import re
from collections.abc import Iterator
from math import log

from tunemark.schema.derive import Derived
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.workloads import WorkloadCard, shared_settings
from tunemark.schema.measurement_warnings import warnings_of_record
from tunemark.schema.physics.architecture import adapted_linears, adapts_tokens
from tunemark.schema.physics.training_shape import unlike_the_card
from tunemark.schema.records.base import flattened
from tunemark.schema.records.effective import OPTIMIZER_CLASSES, compared
from tunemark.schema.records.plan import LoraSettings, Measurement, Quantisation
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.trace import Gate
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.statistics.comparison import arm_run
from tunemark.schema.statistics.loss_band import loss_band
from tunemark.schema.vocabulary import Backend, Method, Status, Strategy, Task, WarningKind, Weights

GATES = ("adapter_gradient", "packed_documents", "loss_band")
REASONS = {"batch.global_batch", "device.count", "device.strategy", "precision.compute"}
"""Values of every plan that have a reason."""
DIFFERENCE = re.compile(r"by ([\d.e+-]+) of their spread")
DEVIATION = re.compile(r"([\d.]+%) at step")
ROUNDING = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 5e-2, "fp16": 1e-2}
"""Largest difference of logits with which packed documents pass, by number format."""
REACHED = re.compile(r"a gradient reaches (\d+) of (\d+) (weights|adapters)")
SHARDED = {Strategy.FSDP2, Strategy.ZERO3}
LEARNED_AT_ONCE, RANDOM_TOKENS = 0.5, 0.9
"""Loss after a few updates over the first; lowest loss on random tokens over the logarithm of their number."""
FIRST_LOSS = (0.85, 1.05, 8.0)
"""First loss over ln(vocabulary): at least, and at most this much times it; pretrained weights may begin this much above."""
SPREAD = 0.0004 * 0.75
"""Loss above chance of random weights by width: logits of weights of a spread of 0.02 have half their variance as excess."""
FEWEST_LOSSES = 5
DERIVED = {WarningKind.GATE_FAILED, WarningKind.FALLBACK, WarningKind.RANDOM_WEIGHTS, WarningKind.UNKNOWN_ACCELERATOR}
DERIVED |= {WarningKind.DIRTY_SOURCE, WarningKind.STRAGGLER, WarningKind.PEAK_FELL, WarningKind.PEAK_ROSE, WarningKind.BUSY_HOST}
LITTLE_DISK_GIB = 2.1
"""Kinds of warning that follow from the record or are not there."""
SURELY_WIDE = 0.06
WORDS = re.compile(r"[A-Za-z]{4,}")
STATISTICAL = {WarningKind.FEW_STEPS, WarningKind.NOT_STABLE, WarningKind.WIDE_INTERVAL}
PLANNED_AT = {"seed": "measurement.seed", "devices.tensor_parallel": "device.tensor_parallel"}
PLANNED_AT |= {"devices.pipeline_parallel": "device.pipeline_parallel"}
"""Settings of a card that are no shared settings -> where a plan holds them."""
SCALED_BY_OPTIONS = ("stop.", "weights.from")
ADDED_SECTIONS = {"lora": LoraSettings().model_dump(mode="json"), "quantisation": Quantisation().model_dump(mode="json")}
"""Sections that a changed method adds to a card without them, with their defaults."""


def claim_problems(submission: Submission, derived: Derived | None, facts: FactBase) -> Iterator[Problem]:
    """Yield each claim that the record does not bear out."""
    model = facts.models.get(submission.plan.model.key)
    yield from _plan(submission)
    yield from _effective(submission)
    yield from _gates(submission, model, facts)
    if derived is not None:
        yield from _warnings(submission, derived)
    yield from _losses(submission, model, facts)
    yield from _study(submission, facts)


def _plan(s: Submission) -> Iterator[Problem]:
    """Yield settings of the plan that exclude each other."""
    plan, rules = s.plan, s.plan.measurement
    for name, value, wanted in (
        ("lora", plan.lora, plan.method is not Method.FULL),
        ("quantisation", plan.quantisation, plan.method is Method.QLORA),
    ):
        if (value is not None) != wanted:
            yield Problem(
                f"plan.{name}", "null" if value is None else "settings", f"plan.method is {plan.method.value!r}; see the original"
            )
    if (plan.model.labels is not None) != (plan.model.task is Task.SEQUENCE_CLASSIFICATION):
        yield Problem(
            "plan.model.labels", str(plan.model.labels), f"plan.model.task is {plan.model.task.value!r}; only a classifier has labels"
        )
    pretrained = plan.model.weights is Weights.PRETRAINED
    if pretrained == (plan.model.hub_id is None and not plan.model.local) or (plan.model.local and plan.model.hub_id is not None):
        fix = (
            f"weights are {plan.model.weights.value}, local is {plan.model.local}; pretrained weights come from a hub or a local directory"
        )
        yield Problem("plan.model.hub_id", repr(plan.model.hub_id), fix)
    if plan.data.tokenizer == "none" and plan.data.source.value != "synthetic":
        yield Problem(
            "plan.data.tokenizer", "'none'", f"plan.data.source is {plan.data.source.value!r}; only synthetic samples are tokens already"
        )
    synthetic = plan.data.source.value == "synthetic"
    if synthetic and plan.data.tokenizer != "none":
        yield Problem("plan.data.tokenizer", repr(plan.data.tokenizer), "synthetic samples are tokens already; the tokenizer is 'none'")
    if plan.data.sha256 is not None and plan.data.source.value != "file":
        yield Problem("plan.data.sha256", plan.data.sha256, f"plan.data.source is {plan.data.source.value!r}; only a file has a hash")
    if plan.neuron is not None and plan.device.backend is not Backend.NEURON:
        yield Problem("plan.neuron", "settings", f"plan.device.backend is {plan.device.backend.value!r}; they are for Neuron devices only")
    known = {path for path, _ in flattened(plan.model_dump(mode="json"))} | set(type(plan).model_fields)
    for name in sorted(set(plan.reasons) - known - {"method", "lora.target_modules"}):
        yield Problem("plan.reasons", repr(name), "is no field of a plan")
    factors = re.fullmatch(
        r"micro_batch (\d+) x gradient_accumulation (\d+) x data_parallel (\d+)", plan.reasons.get("batch.global_batch", "")
    )
    if factors and [int(one) for one in factors.groups()] != [
        plan.batch.micro_batch,
        plan.batch.gradient_accumulation,
        plan.batch.data_parallel,
    ]:
        yield Problem("plan.reasons.batch.global_batch", repr(factors[0]), "these are not the factors of plan.batch")
    for name in sorted(REASONS - set(plan.reasons)):
        yield Problem("plan.reasons", f"no {name}", "each derived value has its reason; keep the original record")
    if plan.device.launcher is not None and plan.device.count == 1:
        yield Problem("plan.device.launcher", repr(plan.device.launcher), "one process needs no launcher")
    for name in ("min_warmup_steps", "min_steady_steps", "min_steady_s"):
        # A record may not lower the project's own minimum.
        value, minimum = getattr(rules, name), getattr(Measurement(), name)
        if value < minimum:
            fix = f"below {minimum:g}, the minimum of every measurement; run it again with {minimum:g} or more"
            yield Problem(f"plan.measurement.{name}", f"{value:g}", fix)


def _effective(s: Submission) -> Iterator[Problem]:
    """Yield settings in effect that differ from the plan without the warning `fallback`, and impossible combinations."""
    ran = s.effective
    if ran is None:
        return
    admitted = [warning.message for warning in s.warnings if warning.kind is WarningKind.FALLBACK]
    for setting in compared(s.plan, ran, s.trace):
        if setting.agrees is False and not any(message.startswith(f"{setting.setting}:") for message in admitted):
            field = EFFECTIVE_FIELDS.get(setting.setting, setting.setting)
            fix = f"the plan has {setting.requested}; such a run has the warning 'fallback'"
            yield Problem(f"effective.{field}", repr(setting.effective), fix)
    if ran.attention_kernel is not None and ran.attention_kernel not in KERNELS:
        yield Problem("effective.attention_kernel", repr(ran.attention_kernel), f"is no kernel of torch; known are {', '.join(KERNELS)}")
    masked = s.plan.data.packing and s.plan.data.document_borders and s.plan.device.backend in {Backend.CUDA, Backend.ROCM}
    if ran.attention_kernel in {"cudnn", "efficient"} and s.plan.device.backend is Backend.CPU:
        yield Problem("effective.attention_kernel", repr(ran.attention_kernel), "is a kernel for GPUs")
    if ran.attention_kernel == "flash" and masked:
        yield Problem("effective.attention_kernel", "'flash'", "this kernel takes no mask, which packed documents with borders need")
    wrapped = s.plan.device.strategy in {Strategy.ZERO1, Strategy.ZERO2, Strategy.ZERO3} or s.plan.device.backend is Backend.NEURON
    if ran.optimizer.split()[-1] not in OPTIMIZER_CLASSES.values() and not wrapped:
        yield Problem("effective.optimizer", repr(ran.optimizer), f"is no optimizer of the harness; {s.plan.optimizer.name} was planned")
    alone = ran.processes == 1
    if alone and ran.process_group is not None:
        yield Problem("effective.process_group", repr(ran.process_group), "one process has no group")
    elif not alone and ran.process_group is None and s.plan.device.backend is not Backend.NEURON:
        yield Problem("effective.process_group", "null", f"{ran.processes} processes exchange their gradients in a group")
    groups = {Backend.CPU: ("gloo", "mpi"), Backend.CUDA: ("nccl", "cpu:gloo,cuda:nccl"), Backend.ROCM: ("nccl", "cpu:gloo,cuda:nccl")}
    known = groups.get(s.plan.device.backend)
    if ran.process_group is not None and known is not None and not any(name in ran.process_group for name in known):
        yield Problem("effective.process_group", repr(ran.process_group), f"the {s.plan.device.backend.value} back end uses {known[0]}")
    sharded = s.plan.device.strategy in {Strategy.FSDP2, Strategy.ZERO1, Strategy.ZERO2, Strategy.ZERO3}
    if (s.plan.device.backend is not Backend.NEURON and (ran.sharding is not None) != sharded) or (
        ran.sharding is not None and ("FSDP" in ran.sharding) != (s.plan.device.strategy is Strategy.FSDP2) and sharded
    ):
        yield Problem("effective.sharding", repr(ran.sharding), f"plan.device.strategy is {s.plan.device.strategy.value!r}")
    types = {Backend.CPU: {"cpu"}, Backend.CUDA: {"cuda", "cpu"}, Backend.ROCM: {"cuda", "cpu"}}.get(s.plan.device.backend)
    for name in ("parameters_on", "optimizer_states_on"):
        strange = sorted(set(getattr(ran, name)) - types) if types else []
        if strange:
            yield Problem(f"effective.{name}", repr(strange[0]), f"the {s.plan.device.backend.value} back end holds nothing there")
    if s.model is not None and s.model.optimizer_state_bytes and not ran.optimizer_states_on and s.plan.device.offload == "none" and types:
        yield Problem(
            "effective.optimizer_states_on", "[]", f"model.optimizer_state_bytes is {s.model.optimizer_state_bytes}; they are somewhere"
        )


KERNELS = ("math", "flash", "efficient", "cudnn", "overrideable")
EFFECTIVE_FIELDS = {"compute_format": "compute", "trained_format": "trainable_dtypes"}
"""Settings in `compared` whose field in the record has another name."""


def _gates(s: Submission, model: ModelCard | None, facts: FactBase) -> Iterator[Problem]:
    """Yield gates that are missing, repeated or not asked for, and verdicts that the record contradicts."""
    plan, names = s.plan, [gate.name for gate in s.gates]
    by_name: dict[str, Gate] = {gate.name: gate for gate in s.gates}
    for twice in sorted({name for name in names if names.count(name) > 1}):
        yield Problem("gates", repr(twice), "is listed twice; each check must have one verdict")
    if not plan.measurement.gates:
        if names:
            yield Problem("gates", ", ".join(names), "plan.measurement.gates is false; such a run has none")
        return
    if len(s.trace):
        for name in GATES:
            if name not in by_name:
                yield Problem(
                    "gates", f"no {name}", "a run that trained has a verdict of each of the three gates; keep the original record"
                )
    if plan.device.backend is Backend.NEURON:
        return
    gradient, packed, band = (by_name.get(name) for name in GATES)
    sharded = plan.device.strategy in SHARDED
    if gradient is not None:
        yield from _gradient_gate(s, gradient, model, sharded=sharded)
    if packed is not None:
        applies = plan.data.packing and plan.data.document_borders and not sharded
        if packed.passed is not None and not applies:
            yield Problem("gates.packed_documents", str(packed.passed), "rows are not packed with borders on one device; it does not apply")
        difference = DIFFERENCE.search(packed.detail)
        if packed.passed and difference and float(difference[1]) > ROUNDING.get(plan.precision.compute.value, 1.0):
            yield Problem("gates.packed_documents", packed.detail, "so large a difference is no rounding; the check did not pass")
        if packed.passed is None and applies and "one document only" not in packed.detail:
            yield Problem("gates.packed_documents", "null", "plan.data.packing is true; such a run is checked")
    if band is not None and plan.workload in facts.workloads and len(s.trace):
        checked = loss_band(facts.golden_losses(plan.workload), plan, s.trace, changed=bool(s.overrides))
        if checked.passed is not band.passed and not (band.passed is None and checked.passed is None):
            fix = f"the trace gives {checked.passed}: {checked.detail}; the verdict of a gate must match the trace"
            yield Problem("gates.loss_band", str(band.passed), fix)
        stated, found = (DEVIATION.search(gate.detail) for gate in (band, checked))
        if stated and found and band.detail.startswith("largest") and stated[1] != found[1]:
            yield Problem("gates.loss_band", repr(band.detail), f"the trace gives {checked.detail!r}")


def _gradient_gate(s: Submission, gate: Gate, model: ModelCard | None, *, sharded: bool) -> Iterator[Problem]:
    field, full = "gates.adapter_gradient", s.plan.method is Method.FULL
    if gate.passed is None:
        if not sharded:
            yield Problem(field, "null", f"plan.device.strategy is {s.plan.device.strategy.value!r}; only a sharded model is not checked")
        return
    found = REACHED.match(gate.detail)
    if sharded or found is None:
        yield Problem(field, repr(gate.detail), "is not what this check reports; keep the original record")
        return
    reached, relevant = int(found[1]), int(found[2])
    enough = 0 < reached <= relevant if full else 0 < reached == relevant
    if gate.passed is not (enough and "none exists" not in gate.detail) or reached > relevant or (found[3] == "weights") != full:
        yield Problem(field, f"{gate.passed}, {reached} of {relevant}", "the verdict does not follow from what was observed")
    elif not full and model is not None and s.plan.lora is not None and model.experts is None:
        try:
            expected = len(adapted_linears(model, s.plan.lora.target_modules)) * model.layers
        except TunemarkError as error:
            yield Problem("plan.lora.target_modules", repr(error.value), error.fix)
            return
        if expected != relevant and not adapts_tokens(model, s.plan.lora.target_modules):
            yield Problem(field, f"{relevant} adapters", f"{model.key} has {expected} layers with an adapter")


def _warnings(s: Submission, derived: Derived) -> Iterator[Problem]:
    """Yield each warning that follows from the record and is not listed."""
    listed = {warning.kind for warning in s.warnings}
    following = list(warnings_of_record(s, derived))
    for index, warning in enumerate(s.warnings):
        if warning in s.warnings[:index]:
            yield Problem(f"warnings.{index}", warning.kind.value, "is listed twice")
        disk = re.match(r"([\d.]+) GiB of disk", warning.message) if warning.kind is WarningKind.LOW_DISK else None
        if disk and float(disk[1]) > LITTLE_DISK_GIB:
            yield Problem(f"warnings.{index}.message", repr(warning.message), f"only below {LITTLE_DISK_GIB} GiB little disk is free")
    for index, warning in enumerate(s.warnings):
        alike = [expected for expected in following if expected.kind is warning.kind]
        if warning.kind in DERIVED and not alike:
            yield Problem(f"warnings.{index}", warning.kind.value, "does not follow from the record; keep the original record")
        elif alike and not any(set(WORDS.findall(expected.message)) & set(WORDS.findall(warning.message)) for expected in alike):
            yield Problem(f"warnings.{index}.message", repr(warning.message), f"is not about this warning: {alike[0].message}")
    # A run that ended early has few steps under any rule, and an interval far above the limit is wide under any.
    rate = derived.tokens_per_s
    certain = {WarningKind.FEW_STEPS} | ({WarningKind.WIDE_INTERVAL} if rate and rate.relative_half_width > SURELY_WIDE else set())
    for expected in following:
        if expected.kind not in listed | (STATISTICAL - certain):
            listed.add(expected.kind)
            yield Problem(
                "warnings", f"no {expected.kind.value}", f"it follows from the record: {expected.message}; warnings cannot be left out"
            )


def missing_statistics(s: Submission, derived: Derived) -> Iterator[Problem]:
    """Yield each missing warning that depends on the rules of the steady window and its interval, which change with versions."""
    listed = {warning.kind for warning in s.warnings}
    for expected in warnings_of_record(s, derived):
        if expected.kind in STATISTICAL - listed:
            fix = f"it follows from the steps by today's rules: {expected.message}"
            yield Problem("warnings", f"no {expected.kind.value}", fix)


def _losses(s: Submission, model: ModelCard | None, facts: FactBase) -> Iterator[Problem]:
    """Yield losses that random weights cannot begin with, that never change, or that are outside the band although nobody checked."""
    plan, losses = s.plan, [loss for loss in s.trace.loss if loss is not None]
    if not losses or model is None:
        return
    if len(losses) >= FEWEST_LOSSES and len(set(losses)) == 1:
        yield Problem("trace.loss", f"{losses[0]:g} in all steps", "training changes the loss; keep the original record")
    if unlike_the_card(plan) is None:
        chance = log(plan.model.labels) if plan.model.labels else log(model.vocabulary)
        low, factor, more = FIRST_LOSS
        if plan.model.weights is Weights.RANDOM and not plan.model.labels:
            more = SPREAD * model.hidden_size + 0.1
        least = low * chance if plan.model.weights is Weights.RANDOM and not plan.model.labels else 0.0
        if not least <= losses[0] <= factor * chance + more:
            what = f"{plan.model.labels} classes" if plan.model.labels else f"{model.vocabulary} tokens"
            yield Problem(
                "trace.loss", f"{losses[0]:g} at step 1", f"{plan.model.weights.value} weights begin near ln({what}) = {chance:.2f}"
            )
        elif plan.model.weights is Weights.RANDOM and not plan.model.labels:
            early = min(losses[1:FEWEST_LOSSES], default=losses[0])
            if early < LEARNED_AT_ONCE * losses[0]:
                yield Problem("trace.loss", f"{early:g} within {FEWEST_LOSSES} steps", f"from {losses[0]:g}; no model learns that fast")
            if plan.data.name == "random-tokens" and min(losses) < RANDOM_TOKENS * chance:
                yield Problem("trace.loss", f"{min(losses):g}", f"random tokens cannot be learned; their loss stays near {chance:.2f}")
    if plan.workload in facts.workloads and not plan.measurement.gates and s.outcome.status is Status.OK:
        checked = loss_band(facts.golden_losses(plan.workload), plan, s.trace, changed=bool(s.overrides))
        if checked.passed is False:
            yield Problem("trace.loss", checked.detail, "this run trained something else than its workload; run it with its gates")


def _study(s: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield a study whose kind does not fit the name of its point, or whose point does not name the plan's settings."""
    study = s.study
    if study is None:
        return
    point, arm = study.point, arm_run(study.point)
    frontier = re.fullmatch(r"data\.sequence_length=\d+, batch\.micro_batch=\d+(, memory limited to .+)?", point) is not None
    fits = {"ab": arm is not None, "frontier": frontier, "sweep": arm is None, "repeat": arm is None}[study.kind]
    if not fits or ("memory limited" in point and study.kind != "frontier"):
        yield Problem("study.kind", repr(study.kind), f"the point {point!r} is of another kind of study")
        return
    limit = re.search(r"memory limited to ([-\d.]+)", point)
    if (study.kind == "sweep" and "=" not in point) or (arm and arm.pair > MOST_RUNS) or (limit and float(limit[1]) <= 0):
        yield Problem("study.point", repr(point), f"is no point of a study of kind {study.kind!r}")
    if study.position > MOST_RUNS:
        yield Problem("study.position", str(study.position), f"no study has more than {MOST_RUNS:,} runs")
    if study.kind == "repeat" and re.search(r", repeat \d+$", point) is None:
        yield Problem("study.point", repr(point), "a repeat is numbered: its point ends with ', repeat N'")
    settings = arm.settings if arm else re.sub(r"(, repeat \d+|, memory limited to .+)$", "", point)
    card = facts.workloads.get(s.plan.workload)
    if card is None:
        return
    planned = {setting.field: setting.run for setting in shared_settings(s.plan, card)} | {"seed": s.plan.measurement.seed}
    known = {path for path, _ in flattened(card.model_dump(mode="json", exclude={"axes", "points"}))} | set(planned) | POINT_OPTIONS
    for field, value in re.findall(r"([a-z_]+(?:\.[a-z_]+)*)=([^,]+)", settings):
        if field not in known:
            yield Problem("study.point", repr(point), f"the card {card.key} has no setting {field!r}")
        elif field in planned and value not in _written(planned[field]):
            yield Problem("study.point", repr(point), f"the plan has {planned[field]!r} as {field}")


MOST_RUNS = 10_000
POINT_OPTIONS = {"weights", "devices.count", "devices.strategy", "devices.offload", "compute", "seed"}
"""Settings of a point that the command line gives as options."""


def _written(value: object) -> set[str]:
    """Return the ways in which a value is written in `--set`."""
    return {str(value), str(value).lower(), json.dumps(value), *((f"{value:g}",) if isinstance(value, float) else ())}


def override_problems(s: Submission, card: WorkloadCard) -> Iterator[Problem]:
    """Yield overrides of settings that the card does not have, and those whose values are not the card's and the plan's."""
    content = dict(
        flattened(card.model_dump(mode="json", exclude={"axes", "points", "key", "title", "description", "source", "not_stated"}))
    )
    shared = {setting.field: setting for setting in shared_settings(s.plan, card)}
    planned = dict(flattened(s.plan.model_dump(mode="json")))
    fields = [override.field for override in s.overrides]
    for index, override in enumerate(s.overrides):
        name, place = override.field, f"overrides.{index}"
        if fields.index(name) != index:
            yield Problem(place, repr(name), "is overridden twice; list the value that was used, once")
            continue
        section, _, rest = name.partition(".")
        added = ADDED_SECTIONS.get(section, {}).get(rest) if content.get(section, 0) is None else None
        whole = name in ADDED_SECTIONS
        if name not in content and name not in shared and name != "weights.from" and added is None:
            yield Problem(f"{place}.field", repr(name), f"the card {card.key} has no such setting")
            continue
        if override.card == override.run and name not in SCALED_BY_OPTIONS:
            yield Problem(place, repr(name), "changes nothing; leave it out")
        own = shared[name].card if whole and name in shared else content.get(name, added)
        if name != "weights.from" and not _equal(override.card, (own, added, *card.own_values(name))):
            yield Problem(f"{place}.card", repr(override.card), f"the card {card.key} has {own!r}")
        if name.startswith(SCALED_BY_OPTIONS):
            continue
        run = shared[name].run if name in shared else planned.get(PLANNED_AT.get(name, name), override.run)
        if not _equal(override.run, (run,)):
            yield Problem(f"{place}.run", repr(override.run), f"the plan has {run!r}; an override names the value that was used")


def _equal(stated: object, values: tuple[object, ...]) -> bool:
    """Return True if an override's value is one of the values; lists are stored as JSON text."""
    written = [value if isinstance(value, str | float | int | bool) or value is None else json.dumps(value) for value in values]
    return any(stated == value and isinstance(stated, bool) == isinstance(value, bool) for value in written)
