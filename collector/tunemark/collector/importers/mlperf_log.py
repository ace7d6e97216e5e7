"""One log of an MLPerf run: its MLLOG events, and the settings and raw values that follow from them.

An MLLOG line contains `:::MLLOG ` and one JSON object with `key`, `time_ms`, `value` and `metadata`, among whatever else was
printed; launchers put a rank in front of it. Only keys that a converted result needs are parsed.
"""

import json
import math
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from tunemark.collector.importers.import_io import LogProblem, first_error
from tunemark.schema.records.converted import MLPERF_TARGET_EVAL_LOSS, ConvertedRun, EvalCurve, PowerReading, RunStatus

LINE = re.compile(rb":::MLLOG([^\n]*)")
KEY = re.compile(rb'"key":[^"]*"([^"]*)')
LARGEST_LINE = 2**20
"""Bytes; the longest MLLOG line of three rounds has 2,123."""
BENCHMARK = tomllib.loads(Path(__file__).with_name("mlperf.toml").read_text(encoding="utf-8"))
"""The keys of the logs, and what the rules of the benchmark fix."""
SETTINGS = frozenset({*BENCHMARK["settings"].values(), *BENCHMARK["keys"]["read"]})
TIMES = frozenset(BENCHMARK["keys"]["events_in_time"])
POWER = frozenset(BENCHMARK["keys"]["of_a_power_meter"])
MS = 1_000

# Events --------------------------------------------------------------------------------------------


class Event(NamedTuple):
    """One MLLOG line."""

    key: str
    at_ms: float
    """`time_ms`: milliseconds since 1970."""
    value: Any
    metadata: dict[str, Any]
    line: int

    @property
    def samples(self) -> int | None:
        """The samples trained so far."""
        return count(self.metadata.get("samples_count"))


def events(content: bytes, file: str, problems: list[LogProblem], keys: frozenset[str] = SETTINGS | TIMES) -> Iterator[Event]:
    """Yield the wanted events of a log in the order of its lines; unreadable lines are added to `problems`."""
    line, counted = 1, 0
    for match in LINE.finditer(content):
        # Most lines are not wanted, so their key decides before they are parsed. Parsing a line without a key gives the reason.
        key = KEY.search(match[1])
        name = key[1].decode("utf-8", "replace") if key else ""
        if key and (name not in keys or (name == "tracked_stats" and b'"throughput"' not in match[1])):
            continue
        line, counted = line + content.count(b"\n", counted, match.start()), match.start()
        event = _event(match[1], line)
        if isinstance(event, Event):
            yield event
        else:
            problems.append(LogProblem(file, line, event))


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


def _event(line: bytes, number: int) -> Event | str:
    """Return the event of a line, or the reason why it has none."""
    if len(line) > LARGEST_LINE:
        return f"an MLLOG line of {len(line):,} bytes; none is longer than {LARGEST_LINE:,}"
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"not a whole MLLOG line: {error}"
    if not isinstance(raw, dict) or not isinstance(raw.get("key"), str):
        return "an MLLOG line is a JSON object with a key"
    at_ms = finite(raw.get("time_ms"))
    if at_ms is None or not 0 <= at_ms < 2**53:
        return f"time_ms of {raw['key']!r} is {str(raw.get('time_ms'))[:40]!r}; it is milliseconds since 1970"
    metadata = raw.get("metadata")
    return Event(raw["key"], at_ms, raw.get("value"), metadata if isinstance(metadata, dict) else {}, number)


# Runs ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class MlperfRunLog:
    """The contents of one log."""

    file: str
    """Path in the archive."""
    run: ConvertedRun | None = None
    """Null when it is not the log of a run."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Values of the keys with one value per run."""
    start_ms: float | None = None
    """`run_start`, milliseconds since 1970."""
    stop_ms: float | None = None
    """`run_stop`."""
    problems: list[LogProblem] = field(default_factory=list)

    def problem(self, line: int, reason: str, *, noted: bool = False) -> None:
        """Add a problem of a line."""
        self.problems.append(LogProblem(self.file, line, reason, noted))


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
    stop = next((event for event in later if event.key == "run_stop" and event.at_ms >= start.at_ms), None)
    inside: list[Event] = []
    for event in later:
        if event.at_ms < start.at_ms or event.key == "run_start":
            log.problem(event.line, f"{event.key} is earlier than run_start, or a second one; ignored")
        elif stop is not None and event.line > stop.line:
            log.problem(event.line, f"{event.key} after run_stop is ignored")
        elif event is not stop:
            inside.append(event)
    if stop is None:
        log.problem(last_line, "ends without run_stop; kept as incomplete", noted=True)
    log.start_ms, log.stop_ms = start.at_ms, None if stop is None else stop.at_ms
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
            block_from = event.at_ms
        elif event.key == "block_stop":
            blocks_ms += max(0.0, event.at_ms - block_from) if block_from is not None else 0.0
            block_from = None
        elif event.key == "eval_accuracy":
            loss, samples = finite(event.value), event.samples
            if loss is None or samples is None:
                shown = str(event.value)[:40], str(event.metadata.get("samples_count"))[:40]
                log.problem(event.line, f"eval_accuracy is {shown[0]!r} after {shown[1]!r} samples; both must be numbers")
                continue
            evaluations.append((samples, (event.at_ms - start.at_ms) / MS, loss))
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
        time_to_target_s=(stop.at_ms - start.at_ms) / MS if stop and status == "ok" else None,
        samples=last if samples_at_stop is None else samples_at_stop,
        trained_samples=last,
        train_s=None if train_ms is None else train_ms / MS,
        logged_samples_per_s=tuple(rates),
        curve=EvalCurve(
            samples=tuple(each[0] for each in evaluations),
            at_s=tuple(each[1] for each in evaluations),
            eval_loss=tuple(each[2] for each in evaluations),
        ),
    )


def _init_s(timed: Sequence[Event]) -> float | None:
    """Return the seconds from the first init_start to the first init_stop after it."""
    begun = next((index for index, event in enumerate(timed) if event.key == "init_start"), None)
    if begun is None:
        return None
    at_ms = timed[begun].at_ms
    return next(((event.at_ms - at_ms) / MS for event in timed[begun:] if event.key == "init_stop" and event.at_ms >= at_ms), None)


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

    meter: str
    """`node_<n>` or `sw_<n>`."""
    readings: tuple[tuple[float, float], ...]
    """Milliseconds since 1970, and watts; by time."""
    estimate_w: float | None
    """`interconnect_power_est`."""
    measurement: str | None
    conversion_efficiency: float | None


def read_power(meter: str, file: str, content: bytes, problems: list[LogProblem]) -> PowerLog:
    """Return the contents of a meter's log; invalid content becomes problems."""
    readings: list[tuple[float, float]] = []
    estimate = efficiency = measurement = None
    for event in events(content, file, problems, POWER):
        number = finite(event.value)
        if number is None or number <= 0:
            problems.append(LogProblem(file, event.line, f"{event.key} is {str(event.value)[:40]!r}, not a positive number; ignored"))
        elif event.key == "power_reading":
            readings.append((event.at_ms, number))
        elif event.key == "interconnect_power_est":
            estimate = number
        else:
            efficiency = number if number <= 1 else None
            measurement = event.metadata.get("measurement_type")
    return PowerLog(meter, tuple(sorted(readings)), estimate, measurement if measurement in {"AC", "DC"} else None, efficiency)


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
    weights = [later[0] - earlier[0] for earlier, later in pairwise(readings)]
    watts = log.estimate_w
    if readings and sum(weights) > 0:
        watts = sum(weight * reading[1] for weight, reading in zip(weights, readings[1:], strict=True)) / sum(weights)
    if watts is None:
        return None
    return PowerReading.model_validate(
        {
            "meter": log.meter,
            "kind": "switch" if log.meter.startswith("sw") else "node",
            "watts": watts,
            "readings": len(readings),
            "within_run": within,
            "measurement": log.measurement or stated,
            "conversion_efficiency": log.conversion_efficiency,
        }
    )
