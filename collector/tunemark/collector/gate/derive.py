"""What follows from request, cards, environment and trace is computed again by the harness' own functions, and compared field by field."""

import re
from collections.abc import Iterator
from functools import lru_cache, reduce
from itertools import count, cycle, islice, repeat
from typing import Any

from tunemark.schema import VERSION
from tunemark.schema.derive import Derived, loss_band, warnings_of_record
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.plan.capabilities import Machine
from tunemark.schema.plan.resolve import Resolution, resolve
from tunemark.schema.records.base import flattened
from tunemark.schema.records.plan import Batch, DataChoice, ModelChoice, Plan
from tunemark.schema.records.reading import Problem
from tunemark.schema.records.submission import LATER_FIELDS, Submission
from tunemark.schema.samples import FULL_ROWS, GENERATORS, Counts, Row, counts_of, packed_rows
from tunemark.schema.vocabulary import Backend, DataSource, Division, Status, WarningKind

ORIGINAL = "keep the original record; if this is it, open an issue"
"""What an honest person can do about a field that does not follow from the others."""
MOST_TOKENS = 4_000_000
"""Tokens of the first steps that are made again; the rest is not compared."""
DEVIATION = re.compile(r"largest deviation from the reference losses: ([\d.]+)% at step (\d+) \(allowed: [\d.]+%\)")
"""The words of the check of losses. Versions of the harness print the allowance with more or fewer digits."""
SAME_WORDS = {"0.1.0", VERSION}
"""Versions of the harness whose reasons, and rules of statistical warnings, are those of this one."""
STATISTICAL = {WarningKind.FEW_STEPS, WarningKind.NOT_STABLE, WarningKind.WIDE_INTERVAL}
"""Warnings whose rules may change with versions of the harness."""


def derived_problems(s: Submission, derived: Derived, facts: FactBase) -> Iterator[Problem]:
    """Yield each field that does not follow from the others."""
    if s.plan.workload != s.requested.workload:
        yield Problem("plan.workload", repr(s.plan.workload), f"requested.workload is {s.requested.workload!r}; {ORIGINAL}")
    if ran_current_card(s, facts) or s.requested.workload not in facts.workloads:
        yield from plan_problems(s, facts)
    if ran_current_card(s, facts):
        yield from _loss_band(s, facts)
    yield from replay_problems(s, facts.models.get(s.plan.model.key))
    yield from _warnings(s, derived)


# The plan


def plan_problems(s: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield each value and reason of the plan, and each override, that does not follow from the request, and a plan that cannot run."""
    if Backend.FAKE in {s.plan.device.backend, s.environment.backend}:
        yield Problem("plan.device.backend", repr(s.plan.device.backend.value), "a scripted device measures nothing; run it on a real one")
        return
    if s.plan.device.backend is not s.environment.backend:
        fix = f"plan.device.backend is {s.plan.device.backend.value!r}; a run uses the devices that it was planned for; {ORIGINAL}"
        yield Problem("environment.backend", repr(s.environment.backend.value), fix)
        return
    try:
        # A name without a card could be read as that of another model.
        if s.plan.model.key not in facts.models and f"model={s.plan.model.key}" in s.requested.overrides:
            raise TunemarkError("model", s.plan.model.key, "has no card")  # noqa: TRY301 - refused as any other
        resolved = resolve(s.requested, facts, machine_of(s, facts))
    except TunemarkError as error:
        card = f"a result of your own {error.field} needs its card, data/{error.field}s/{error.value}.toml, in the same pull request"
        further = card if error.field in {"model", "workload"} else ORIGINAL
        yield Problem("requested", f"{error.field} {error.value!r}", f"{error.fix}; {further}")
        return
    yield from _differences(s, resolved)
    if resolved.unsupported is not None and s.outcome.status is not Status.UNSUPPORTED:
        fix = f"{resolved.unsupported}; the harness refuses such a plan before it runs; {ORIGINAL}"
        yield Problem("plan", s.requested.workload, fix)


def _differences(s: Submission, resolved: Resolution) -> Iterator[Problem]:
    left_out: dict[str, Any] = {} if s.harness.version in SAME_WORDS else {"reasons": True}
    if "loss" not in s.plan.model.model_fields_set:
        left_out = LATER_FIELDS["plan"] | left_out
    stated, derived = (
        {"plan": plan.model_dump(mode="json", exclude=left_out), "overrides": [each.model_dump(mode="json") for each in overrides]}
        for plan, overrides in ((s.plan, s.overrides), (resolved.plan, resolved.overrides))
    )
    found, wanted, why = dict(flattened(stated)), dict(flattened(derived)), "follows from requested, the cards and environment"
    for field in [*wanted, *(field for field in found if field not in wanted)]:
        if field not in wanted or field not in found or found[field] != wanted[field] or type(found[field]) is not type(wanted[field]):
            value = repr(found[field]) if field in found else "missing"
            yield Problem(field, value, f"{wanted[field]!r} {why}; {ORIGINAL}" if field in wanted else f"nothing {why} here; {ORIGINAL}")


def machine_of(s: Submission, facts: FactBase) -> Machine:
    """Return the machine of a run as the harness planned with it. Raises TunemarkError for a family without code, or a device of another one."""
    e, family = s.environment, facts.support.families.get(s.environment.backend) if facts.support else None
    if family is None:
        raise TunemarkError("environment.backend", e.backend.value, "data/support.json has no such device family")
    name = e.devices[0].name
    card = facts.recognise_accelerator(name)
    if card and family.cards and not family.cards.startswith(card.vendor):
        raise TunemarkError("environment.devices.0.name", name, f"is made by {card.vendor}; {e.backend.value} runs no device of it")
    stated = s.plan.reasons.get("device.backend", "")
    return Machine(
        **dict(e),
        family=family,
        # On a host without accelerators, tools that are missing and hidden devices follow.
        backend_reason=stated if stated.startswith((f"{family.found_by}; ", family.found_by)) else family.found_by,
    )


def ran_current_card(s: Submission, facts: FactBase) -> bool:
    """Return True if the workload card has not changed since the run; a changed card is another workload."""
    return s.plan.workload in facts.workloads and s.plan.workload_sha256 == facts.workload_sha256(s.plan.workload)


def outdated_facts(s: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield a problem for each fact that has changed since the run. It is a reason to refuse only new submissions."""
    if s.plan.workload in facts.workloads and not ran_current_card(s, facts):
        fix = f"is not the card {s.plan.workload} of this catalogue, which may have changed since the run; run it again"
        yield Problem("plan.workload_sha256", repr(s.plan.workload_sha256), fix)
    known = facts.recognise_device(s.environment.devices[0].name, s.environment.backend)
    if s.plan.device.accelerator is None and known is not None:
        fix = f"the catalogue now has the device as {known.key}; run it again with this catalogue"
        yield Problem("plan.device.accelerator", "null", fix)


# What follows from the trace


def _loss_band(s: Submission, facts: FactBase) -> Iterator[Problem]:
    stated = next((gate for gate in s.gates if gate.name == "loss_band"), None)
    if stated is None or not len(s.trace) or s.plan.device.backend is Backend.NEURON_XLA:
        return
    derived = loss_band(facts.golden_losses(s.plan.workload), s.plan, s.trace, changed=s.division is Division.OPEN)
    if (stated.passed, _deviation(stated.detail)) != (derived.passed, _deviation(derived.detail)):
        fix = f"the trace gives {derived.passed}: {derived.detail}; {ORIGINAL}"
        yield Problem("gates.loss_band", f"{stated.passed}: {stated.detail}", fix)


def _deviation(detail: str) -> list[float] | str:
    """Return the percent and the step of a deviation, or the reason for none."""
    found = DEVIATION.fullmatch(detail)
    return [float(number) for number in found.groups()] if found else detail


def _warnings(s: Submission, derived: Derived) -> Iterator[Problem]:
    """Yield each kind of warning that follows from the record and is not listed.

    Their texts are not compared, and further ones do no harm: pages show those that follow from the record today (`warnings_now`).
    """
    stated, changed = {warning.kind for warning in s.warnings}, () if s.harness.version in SAME_WORDS else STATISTICAL
    for warning in warnings_of_record(s, derived):
        if warning.kind not in stated and warning.kind not in changed:
            fix = f"it follows from the record: {warning.message}; warnings cannot be left out; {ORIGINAL}"
            yield Problem("warnings", f"no {warning.kind.value}", fix)


# The counts of steps that the synthetic rows of a seed give, so that a log with steps left out, or of other data, is found


def replay_problems(s: Submission, model: ModelCard | None) -> Iterator[Problem]:
    """Yield a step whose counts are not those of the synthetic rows that the seed of the plan gives."""
    plan = s.plan
    known = plan.data.source is DataSource.SYNTHETIC and plan.data.name in GENERATORS and plan.device.backend is not Backend.NEURON_XLA
    if model is None or not known or not len(s.trace) or plan.batch.global_batch % plan.batch.micro_batch:
        return
    expected = expected_counts(plan, model.vocabulary, len(s.trace))
    for name, values in zip(Counts._fields, zip(*expected, strict=True), strict=False):
        stated = getattr(s.trace, name)
        wrong = next((step for step, value in enumerate(values) if stated[step] != value), None)
        if wrong is not None:
            fix = f"the rows of seed {plan.measurement.seed} have {values[wrong]} in this step; a step log holds all steps from the first"
            yield Problem(f"trace.{name}", f"step {wrong + 1}: {stated[wrong]}", f"{fix}; {ORIGINAL}")
            return


def expected_counts(plan: Plan, vocabulary: int, steps: int) -> list[Counts]:
    """Return the counts of the first steps of a plan with synthetic rows, as many as `MOST_TOKENS` allow."""
    most = MOST_TOKENS // max(1, plan.batch.global_batch * plan.data.sequence_length)
    return _counted(plan.data, plan.batch, plan.model, vocabulary, plan.measurement.seed, min(steps, most))


@lru_cache(maxsize=32)
def _counted(data: DataChoice, batch: Batch, model: ModelChoice, vocabulary: int, seed: int, steps: int) -> list[Counts]:
    samples = GENERATORS[data.name](vocabulary, data.sequence_length, model.labels, seed)
    if data.training_rows is not None:
        samples = cycle(islice(samples, data.training_rows))
    # Full rows need not be made.
    lengths = repeat(data.sequence_length) if data.name in FULL_ROWS else (len(sample["input_ids"]) for sample in samples)
    rows = packed_rows(lengths, data.sequence_length) if data.packing else (Row((length,)) for length in lengths)
    # Rows are taken in order: a micro-batch of each process after the other, and all of them once per micro-step.
    parts = (counts_of(data, model.task, list(islice(rows, batch.micro_batch))) for _ in count())
    return [reduce(Counts.plus, islice(parts, batch.global_batch // batch.micro_batch)) for _ in range(steps)]
