"""What no machine can have done, and what no measurement may be: checks that need nothing but the record itself."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from tunemark.schema.records.plan import Measurement
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.upgrade import Problem

LARGEST_EXACT = 2**53
"""Above this, readers of JSON and doubles no longer hold whole numbers exactly."""
LARGEST_SETTING = 2**31
"""Settings are stored as 32-bit numbers."""
CPU_TIME_TOLERANCE = 1.05
"""Clock ticks and processes that end late."""
CLOCK_TOLERANCE = timedelta(days=1)
"""Clocks are wrong by hours, seldom by days."""


def impossible(submission: Submission) -> Iterator[Problem]:
    """Yield a problem for each value that cannot be: sizes beyond the machine, times beyond its cores."""
    sizes = list(_sizes(submission))
    if sizes:
        # Arithmetic with such numbers is not even possible.
        yield from sizes
        return
    yield from _memory(submission)
    yield from _model(submission)
    yield from _cpu_time(submission)
    yield from _overrides(submission)


def lenient(submission: Submission) -> Iterator[Problem]:
    """Yield a problem for each rule of measurement that a record sets below the project's own: what is steady is not for a record to say."""
    rules, least = submission.plan.measurement, Measurement()
    for name in ("min_warmup_steps", "min_steady_steps", "min_steady_s"):
        value, minimum = getattr(rules, name), getattr(least, name)
        if value < minimum:
            yield Problem(
                f"plan.measurement.{name}",
                f"{value:g}",
                f"below {minimum:g}, which every measurement keeps to; run it again with {minimum:g} or more",
            )


def from_the_future(submission: Submission, now: datetime) -> Iterator[Problem]:
    """Yield a problem for a run that began later than any clock may be wrong."""
    if submission.started_at > now + CLOCK_TOLERANCE:
        yield Problem("started_at", submission.started_at.isoformat(), "is in the future; set the clock of the machine and run it again")


def _sizes(submission: Submission) -> Iterator[Problem]:
    limits = {"plan": LARGEST_SETTING}
    for field, number in _integers(submission.model_dump(mode="python"), ""):
        limit = limits.get(field.split(".")[0], LARGEST_EXACT)
        if abs(number) >= limit:
            yield Problem(
                field,
                f"{number:.3g}" if abs(number) < 10**300 else "a number of hundreds of digits",
                f"larger than anything that is counted here; must be below {limit}",
            )


def _integers(node: Any, path: str) -> Iterator[tuple[str, int]]:  # noqa: ANN401 - any JSON value
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _integers(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list | tuple):
        # One problem for a whole column is enough.
        whole = [value for value in node if isinstance(value, int)]
        if whole:
            yield path, max(whole)
        for index, value in enumerate(node):
            if isinstance(value, dict):
                yield from _integers(value, f"{path}.{index}")
    elif isinstance(node, int) and not isinstance(node, bool):
        yield path, node


def _memory(submission: Submission) -> Iterator[Problem]:
    device = max((device.memory_bytes or 0 for device in submission.environment.devices), default=0)
    capacities = {
        "device_allocated": device,
        "device_reserved": device,
        "device_used": device,
        "host_rss": submission.environment.memory_bytes,
    }
    for name, capacity in capacities.items():
        peak = getattr(submission.memory, name).peak_bytes
        if peak is not None and capacity and peak > capacity:
            yield Problem(
                f"memory.{name}.peak_bytes",
                str(peak),
                f"more than the {capacity} bytes there are; check the unit and which device was read",
            )


def _model(submission: Submission) -> Iterator[Problem]:
    model = submission.model
    if model is not None and sum(model.parameter_bytes.values()) >= LARGEST_EXACT:
        yield Problem("model.parameter_bytes", "", f"sums to more than anything that is counted here; must be below {LARGEST_EXACT}")
    if model is not None and model.trainable_parameters > model.parameters:
        yield Problem(
            "model.trainable_parameters",
            str(model.trainable_parameters),
            f"more than all {model.parameters} parameters; count tied ones once in both",
        )


def _cpu_time(submission: Submission) -> Iterator[Problem]:
    process, cores = submission.process, submission.environment.cpu_logical_cores
    used = (process.user_s or 0) + (process.system_s or 0)
    if used > (process.wall_s * cores + 1) * CPU_TIME_TOLERANCE:
        yield Problem(
            "process.user_s",
            str(process.user_s),
            f"{used:.1f} CPU seconds do not fit into {process.wall_s} s on {cores} cores; check the units",
        )


def _overrides(submission: Submission) -> Iterator[Problem]:
    fields = [override.field for override in submission.overrides]
    for field in sorted({field for field in fields if fields.count(field) > 1}):
        yield Problem("overrides", repr(field), "is overridden twice; list the value that was used, once")
