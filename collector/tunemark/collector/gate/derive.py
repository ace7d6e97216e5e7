"""What follows from request, cards and environment is computed again by the harness' own functions, and compared field by field."""

from collections.abc import Iterator

from tunemark.schema import VERSION
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.plan.machine import Machine
from tunemark.schema.plan.resolve import Resolution, resolve
from tunemark.schema.records.base import flattened
from tunemark.schema.records.division import division_of
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.vocabulary import Backend, Division, Status

ORIGINAL = "keep the original record; if this is it, open an issue"


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
