"""One log of an MLPerf run: its MLLOG events, and the settings and raw values that follow from them.

An MLLOG line contains `:::MLLOG ` and one JSON object with `key`, `time_ms`, `value` and `metadata`, among whatever else was
printed; launchers put a rank in front of it. Only keys that a converted result needs are parsed.
"""

import math
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import mul
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from tunemark.collector.importers.import_io import Log, LogProblem, first_error
from tunemark.schema.records.converted import MLPERF_TARGET_EVAL_LOSS, ConvertedRun, EvalCurve, PowerReading, RunStatus

KEY = re.compile(rb'"key":[^"]*"([^"]*)')
BENCHMARK = tomllib.loads(Path(__file__).with_name("mlperf.toml").read_text(encoding="utf-8"))
"""The keys of the logs, and what the rules of the benchmark fix."""
SETTINGS = frozenset({*BENCHMARK["settings"].values(), *BENCHMARK["keys"]["read"]})
TIMES = frozenset(BENCHMARK["keys"]["events_in_time"])
POWER = frozenset(BENCHMARK["keys"]["of_a_power_meter"])
MS = 1_000

# Events --------------------------------------------------------------------------------------------


class Event(BaseModel):
    """One MLLOG line."""

    key: str
    time_ms: Annotated[float, Field(ge=0, lt=2**53, allow_inf_nan=False)]
    """Milliseconds since 1970."""
    value: Any = None
    metadata: Annotated[dict[str, Any], BeforeValidator(lambda value: value if isinstance(value, dict) else {})] = {}
    line: int = 0

    @property
    def samples(self) -> int | None:
        """The samples trained so far."""
        return count(self.metadata.get("samples_count"))


def events(content: bytes, file: str, problems: list[LogProblem], keys: frozenset[str] = SETTINGS | TIMES) -> Iterator[Event]:
    """Yield the wanted events of a log in the order of its lines; unreadable lines are added to `problems`."""
    for number, text in enumerate(content.split(b"\n"), start=1):
        _, mark, line = text.partition(b":::MLLOG")
        # Most lines are not wanted, so their key decides before they are parsed. Parsing a line without a key gives the reason.
        key = KEY.search(line)
        name = key[1].decode("utf-8", "replace") if key else ""
        if not mark or (key and (name not in keys or (name == "tracked_stats" and b'"throughput"' not in line))):
            continue
        try:
            yield Event.model_validate_json(line).model_copy(update={"line": number})
        except ValidationError as error:
            problems.append(LogProblem(file, number, first_error(error)))


def finite(value: object) -> float | None:
    """Return a number of a log, or None if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def count(value: object) -> int | None:
    """Return a count, or None if it is not one; JSON writes some counts as 8.0."""
    number = finite(value)
    return int(number) if number is not None and 0 <= number < 2**53 and number.is_integer() else None


# Runs ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class MlperfRunLog(Log):
    """The contents of one log; its file is a path in the archive."""

    run: ConvertedRun | None = None
    """Null when it is not the log of a run."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Values of the keys with one value per run."""
    start_ms: float | None = None
    """`run_start`, milliseconds since 1970."""
    stop_ms: float | None = None
    """`run_stop`."""


def read_run(file: str, content: bytes) -> MlperfRunLog:
    """Return the contents of a log; invalid content becomes problems and never raises."""
    log = MlperfRunLog(file)
    found = list(events(content, file, log.problems))
    for event in found:
        if event.key in SETTINGS and log.settings.setdefault(event.key, event.value) != event.value:
            here, above = str(event.value)[:40], str(log.settings[event.key])[:40]
            log.problem(event.line, f"{event.key} is {here!r} here and {above!r} above; the first one counts")
    timed = [event for event in found if event.key in TIMES]
    last_line = max(1, content.count(b"\n") + (not content.endswith(b"\n")))
    start = next((event for event in timed if event.key == "run_start"), None)
    if start is None:
        reason = "has no run_start: not the log of a run, or cut off before it began" if content else "is empty: the log is lost"
        log.problem(last_line, reason)
        return log
    later = [event for event in timed if event.line > start.line and not event.key.startswith("init_")]
    stop = next((event for event in later if event.key == "run_stop"), None)
    if stop is None:
        log.problem(last_line, "ends without run_stop; kept as incomplete", noted=True)
    log.start_ms, log.stop_ms = start.time_ms, None if stop is None else stop.time_ms
    inside = [event for event in later if stop is None or event.line < stop.line]
    for event in later:
        if event.key == "run_start" or (event not in inside and event is not stop):
            log.problem(event.line, f"{event.key} is a second one, or after run_stop; ignored")
    try:
        log.run = _run(log, timed, inside, start, stop)
    except ValidationError as error:
        log.problem(last_line, first_error(error))
    return log


def _run(log: MlperfRunLog, timed: Sequence[Event], inside: Sequence[Event], start: Event, stop: Event | None) -> ConvertedRun:
    """Return the run of the events between its start and its stop."""
    evaluations: list[tuple[int, float, float]] = []
    block_from, blocks_ms, train_ms, rates = None, 0.0, None, []
    for event in inside:
        if event.key == "block_start":
            block_from = event.time_ms
        elif event.key == "block_stop":
            blocks_ms += max(0.0, event.time_ms - block_from) if block_from is not None else 0.0
            block_from = None
        elif event.key == "eval_accuracy":
            loss, samples = finite(event.value), event.samples
            if loss is None or samples is None:
                shown = str(event.value)[:40], str(event.metadata.get("samples_count"))[:40]
                log.problem(event.line, f"eval_accuracy is {shown[0]!r} after {shown[1]!r} samples; both must be numbers")
                continue
            evaluations.append((samples, (event.time_ms - start.time_ms) / MS, loss))
            train_ms = blocks_ms
        elif isinstance(event.value, dict) and (rate := finite(event.value.get("throughput"))) is not None:
            rates.append(rate)
    status = _status(log, stop, [event.value for event in inside if event.key == "eval_accuracy"])
    last, seed = evaluations[-1][0] if evaluations else None, finite(log.settings.get("seed"))
    samples_at_stop = stop.samples if stop else None
    return ConvertedRun(
        file=log.file.rsplit("/", 1)[-1],
        status=status,
        seed=None if seed is None else int(seed),
        init_s=_init_s(timed),
        time_to_target_s=(stop.time_ms - start.time_ms) / MS if stop and status == "ok" else None,
        samples=last if samples_at_stop is None else samples_at_stop,
        trained_samples=last,
        train_s=None if train_ms is None else train_ms / MS,
        logged_samples_per_s=tuple(rates),
        curve=EvalCurve(**dict(zip(EvalCurve.model_fields, zip(*evaluations, strict=True), strict=False))),
    )


def _init_s(timed: Sequence[Event]) -> float | None:
    """Return the seconds from the first init_start to the first init_stop after it."""
    begun = next((event for event in timed if event.key == "init_start"), None)
    later = (event.time_ms for event in timed if begun and event.key == "init_stop" and event.line > begun.line)
    return next(((stop_ms - begun.time_ms) / MS for stop_ms in later if begun and stop_ms >= begun.time_ms), None)


def _status(log: MlperfRunLog, stop: Event | None, evaluated: Sequence[Any]) -> RunStatus:
    """Return the end of a run. The last evaluation of a success must be a loss at the target."""
    if stop is None or stop.metadata.get("status") != "success":
        return "incomplete" if stop is None else "aborted"
    stated = finite(log.settings.get("target_accuracy"))
    target = MLPERF_TARGET_EVAL_LOSS if stated is None else stated
    loss = finite(evaluated[-1]) if evaluated else None
    if loss is not None and 0 < loss <= target:
        return "ok"
    last = f"the last evaluation is {str(evaluated[-1])[:40]}, not a loss from 0 to {target:g}" if evaluated else None
    reason = last or "there is no evaluation before it"
    log.problem(stop.line, f"run_stop says success and {reason}; kept as a run that missed the target")
    return "missed"


# Power ---------------------------------------------------------------------------------------------

CLOCKS_AGREE = 0.9
"""Share of a run that readings must span for the clocks of both logs to count as equal."""


class PowerLog(NamedTuple):
    """The log of one power meter."""

    readings: tuple[tuple[float, float], ...]
    """Milliseconds since 1970, and watts; by time."""
    stated: dict[str, Any]
    """Fields of a reading that the log states: the meter, where and how it measures, and the submitter's estimate."""


def read_power(meter: str, file: str, content: bytes, problems: list[LogProblem]) -> PowerLog:
    """Return the contents of a meter's log, `node_<n>` or `sw_<n>`; invalid content becomes problems."""
    readings: list[tuple[float, float]] = []
    stated: dict[str, Any] = {"meter": meter, "kind": "switch" if meter.startswith("sw") else "node"}
    for event in events(content, file, problems, POWER):
        number = finite(event.value)
        if number is None or number <= 0:
            problems.append(LogProblem(file, event.line, f"{event.key} is {str(event.value)[:40]!r}, not a positive number; ignored"))
        elif event.key == "power_reading":
            readings.append((event.time_ms, number))
        elif event.key == "interconnect_power_est":
            stated["watts"] = number
        else:
            stated["conversion_efficiency"] = number if number <= 1 else None
            if (where := event.metadata.get("measurement_type")) in {"AC", "DC"}:
                stated["measurement"] = where
    return PowerLog(tuple(sorted(readings)), stated)


def power_of_run(log: PowerLog, run: MlperfRunLog, stated: str | None) -> PowerReading | None:
    """Return the mean power of a meter over a run, or None without readings. `stated` is where the submitter measured, AC or DC.

    Each reading counts for the time since the one before. If the readings do not span the run, the clocks of the two logs differ, and
    all readings count.
    """
    within, readings = False, log.readings
    if run.start_ms is not None and run.stop_ms is not None:
        inside = tuple(reading for reading in readings if run.start_ms <= reading[0] <= run.stop_ms)
        within = len(inside) > 1 and inside[-1][0] - inside[0][0] >= CLOCKS_AGREE * (run.stop_ms - run.start_ms)
        readings = inside if within else readings
    times, watts = zip(*readings, strict=True) if readings else ((), ())
    lasted_ms = [later - earlier for earlier, later in pairwise(times)]
    fields = {"measurement": stated, **log.stated, "readings": len(readings), "within_run": within}
    if sum(lasted_ms) > 0:
        fields["watts"] = sum(map(mul, lasted_ms, watts[1:])) / sum(lasted_ms)
    return PowerReading.model_validate(fields) if "watts" in fields else None
