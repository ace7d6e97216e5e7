"""What follows from request, cards, environment and trace is computed again by the harness' own functions, and compared field by field."""

import re
from collections import Counter
from collections.abc import Iterator

from tunemark.collector.gate.replay import ORIGINAL, replay_problems
from tunemark.schema import VERSION
from tunemark.schema.derive import Derived
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.measurement_warnings import loss_band, warnings_of_record
from tunemark.schema.plan.machine import Machine
from tunemark.schema.plan.resolve import Resolution, resolve
from tunemark.schema.records.base import flattened
from tunemark.schema.records.division import division_of
from tunemark.schema.records.submission import MeasurementWarning, Submission
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.vocabulary import COMPILED_UPDATE, EAGER_UPDATE, Backend, Division, Status, WarningKind

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
        resolved = resolve(s.requested, facts, machine_of(s, facts))
    except TunemarkError as error:
        yield Problem("requested", f"{error.field} {error.value!r}", f"{error.fix}; {ORIGINAL}")
        return
    yield from _differences(s, resolved)
    if resolved.unsupported is not None and s.outcome.status is not Status.UNSUPPORTED:
        fix = f"{resolved.unsupported}; the harness refuses such a plan before it runs; {ORIGINAL}"
        yield Problem("plan", s.requested.workload, fix)


def _differences(s: Submission, resolved: Resolution) -> Iterator[Problem]:
    # Reasons are words of one version of the harness.
    left_out = None if s.harness.version == VERSION else {"reasons"}
    derived = {
        "plan": resolved.plan.model_dump(mode="json", exclude=left_out),
        "overrides": [override.model_dump(mode="json") for override in resolved.overrides],
    }
    stated = {
        "plan": s.plan.model_dump(mode="json", exclude=left_out),
        "overrides": [override.model_dump(mode="json") for override in s.overrides],
    }
    yield from differences(stated, derived, "follows from requested, the cards and environment")
    division = division_of(resolved.plan, resolved.overrides)
    if s.division is not division and (s.division, division) != (Division.OPEN, Division.TUNED):
        yield Problem("division", repr(s.division.value), f"{division.value!r} follows from requested; {ORIGINAL}")


def differences(stated: object, derived: object, why: str) -> Iterator[Problem]:
    """Yield each field of stated content that is not the derived one."""
    found, wanted = dict(flattened(stated)), dict(flattened(derived))
    for field in [*wanted, *(field for field in found if field not in wanted)]:
        if field not in wanted or field not in found or found[field] != wanted[field] or type(found[field]) is not type(wanted[field]):
            value = repr(found[field]) if field in found else "missing"
            yield Problem(field, value, f"{wanted[field]!r} {why}; {ORIGINAL}" if field in wanted else f"nothing {why} here; {ORIGINAL}")


def machine_of(s: Submission, facts: FactBase) -> Machine:
    """Return the machine of a run as the harness planned with it. Raises TunemarkError for a device family that is not implemented."""
    e, family = s.environment, facts.support.families.get(s.environment.backend) if facts.support else None
    if family is None:
        raise TunemarkError("environment.backend", e.backend.value, "data/support.json has no such device family")
    stated = s.plan.reasons.get("device.backend", "")
    names = ("os", "python", "packages", "cpu", "cpu_physical_cores", "cpu_logical_cores", "cpu_usable_cores", "memory_bytes", "swap_bytes")
    return Machine(
        backend=e.backend,
        family=family,
        # On a host without accelerators, tools that are missing and hidden devices follow.
        backend_reason=stated if stated.startswith((f"{family.found_by}; ", family.found_by)) else family.found_by,
        devices=e.devices,
        **{name: getattr(e, name) for name in names},
    )


def ran_current_card(s: Submission, facts: FactBase) -> bool:
    """Return True if the workload card has not changed since the run; a changed card is another workload."""
    return s.plan.workload in facts.workloads and s.plan.workload_sha256 == facts.workload_sha256(s.plan.workload)


def outdated_facts(s: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield a problem for each fact that has changed since the run. It is a reason to refuse only new submissions."""
    if not ran_current_card(s, facts):
        fix = f"is not the card {s.plan.workload} of this catalogue, which may have changed since the run; run it again"
        yield Problem("plan.workload_sha256", repr(s.plan.workload_sha256), fix)
    known = facts.recognise_device(s.environment.devices[0].name, s.environment.backend)
    if s.plan.device.accelerator is None and known is not None:
        fix = f"the catalogue now has the device as {known.key}; run it again with this catalogue"
        yield Problem("plan.device.accelerator", "null", fix)


# What follows from the trace


def _loss_band(s: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield a verdict on the losses that the trace does not give."""
    stated = next((gate for gate in s.gates if gate.name == "loss_band"), None)
    if stated is None or not len(s.trace) or s.plan.device.backend is Backend.NEURON:
        return
    derived = loss_band(facts.golden_losses(s.plan.workload), s.plan, s.trace, changed=s.division is Division.OPEN)
    if stated.passed is not derived.passed or (s.harness.version == VERSION and stated.detail != derived.detail):
        yield Problem(
            "gates.loss_band", f"{stated.passed}: {stated.detail}", f"the trace gives {derived.passed}: {derived.detail}; {ORIGINAL}"
        )


def _warnings(s: Submission, derived: Derived) -> Iterator[Problem]:
    """Yield each warning that does not follow from the record, and each that follows and is not listed."""
    current = s.harness.version == VERSION
    expected = Counter((warning.kind, warning.message) for warning in warnings_of_record(s, derived))
    stated = Counter((warning.kind, warning.message) for warning in s.warnings if not _observed(warning, s))
    if not current:
        expected, stated = (Counter({(kind, ""): 1 for kind, _ in warnings if kind not in STATISTICAL}) for warnings in (expected, stated))
    for kind, message in stated - expected:
        fix = next((f"the record gives {other!r}" for same, other in expected if same is kind), "does not follow from the record")
        yield Problem("warnings", f"{kind.value}: {message}", f"{fix}; {ORIGINAL}")
    listed = {kind for kind, _ in stated}
    for kind, message in expected - stated:
        if kind not in listed:
            yield Problem("warnings", f"no {kind.value}", f"it follows from the record: {message}; warnings cannot be left out; {ORIGINAL}")


def _observed(warning: MeasurementWarning, s: Submission) -> bool:
    """Return True for a warning about a circumstance that the record does not hold."""
    if warning.kind is WarningKind.LOW_DISK:
        free = re.fullmatch(r"([\d.]+) GiB of disk were free", warning.message)
        # The harness warns below 2 GiB, which are printed with one digit.
        return free is not None and float(free[1]) <= 2.0  # noqa: PLR2004
    if warning.kind is WarningKind.FALLBACK:
        compiled = s.plan.optimizer.stochastic_rounding and s.plan.device.backend in COMPILED_UPDATE
        return compiled and warning.message.startswith(f"{EAGER_UPDATE}:")
    if warning.kind is WarningKind.BUSY_DEVICE:
        return re.match(r"\d+ other process(es)? used ", warning.message) is not None
    return warning.kind is WarningKind.TRUNCATED_LOG and warning.message == "a line of the worker's log was cut off and left out"
