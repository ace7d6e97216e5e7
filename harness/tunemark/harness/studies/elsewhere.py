"""Runs of the same series that another source or other libraries measured: they are named, and never mixed with those of now."""

from collections.abc import Iterator

from tunemark.harness.machine import Machine
from tunemark.harness.record import environment
from tunemark.harness.source_code import harness_version
from tunemark.harness.studies.identity import Record, study_of
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.submission import Environment, Harness

SOFTWARE = ("packages", "python", "os", "runtime")
"""What may change on a machine that stays the same."""


def left_alone(same_settings: list[Record], plan: Plan, machine: Machine, study_id: str) -> str | None:
    """Return what to tell of the newest series of the same settings on this machine that is not gone on with, or None without one.

    `study_id` is the series that begins instead.
    """
    here = environment(machine, plan.device.count)
    there = [record for record in same_settings if _hardware(record.submission.environment) == _hardware(here)]
    if not there:
        return None
    last = max(there, key=lambda record: record.submission.started_at)
    study = study_of(last)
    runs = sum(study_of(record).study_id == study.study_id for record in there)
    before, now = last.submission.harness, harness_version()
    differ = "; ".join([*_source(before, now), *_software(last.submission.environment, here)]) or "a source that no commit holds"
    back = f"check out commit {_commit(before)}" if before.commit not in {None, now.commit} else "bring back what differs"
    return (
        f"{study.kind} {study.study_id} of the same settings has {runs} runs, measured by other software ({differ}). They are not mixed "
        f"with new ones: all points are measured anew as {study_id}. To go on with the earlier runs, {back} and give the same command"
    )


def _hardware(seen: Environment) -> dict[str, object]:
    return seen.model_dump(exclude=set(SOFTWARE))


def _source(before: Harness, now: Harness) -> Iterator[str]:
    if before.commit != now.commit or before.version != now.version:
        yield f"harness commit {_commit(before)} then, {_commit(now)} now"
    elif before.dirty or now.dirty:
        yield f"harness commit {_commit(now)} with other changes that are not committed"


def _commit(harness: Harness) -> str:
    return harness.commit[:10] if harness.commit else f"unknown, version {harness.version}"


def _software(before: Environment, now: Environment) -> Iterator[str]:
    """Yield each version that differs."""
    for name in sorted(before.packages.keys() | now.packages.keys()):
        one, other = before.packages.get(name, "none"), now.packages.get(name, "none")
        if one != other:
            yield f"{name} {one} then, {other} now"
    if (before.python, before.os) != (now.python, now.os):
        yield f"Python {before.python} on {before.os} then, {now.python} on {now.os} now"
