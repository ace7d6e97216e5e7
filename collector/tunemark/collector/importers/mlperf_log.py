"""One log of an MLPerf run: its MLLOG events, and the settings and raw values that follow from them.

An MLLOG line contains `:::MLLOG ` and one JSON object with `key`, `time_ms`, `value` and `metadata`, among whatever else was
printed; launchers put a rank in front of it. Only keys that a converted result needs are parsed.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from pydantic import ValidationError

from tunemark.collector.importers.import_io import LogProblem, first_error
from tunemark.schema.records.converted import MLPERF_TARGET_EVAL_LOSS, ConvertedRun, EvalCurve, PowerReading, RunStatus

LINE = re.compile(rb":::MLLOG([^\n]*)")
KEY = re.compile(rb'"key":[^"]*"([^"]*)')
LARGEST_LINE = 2**20
"""Bytes; the longest MLLOG line of three rounds has 2,123."""
SETTINGS = frozenset({
    "eval_samples", "global_batch_size", "gradient_accumulation_steps", "lora_alpha", "lora_rank", "opt_adamw_weight_decay",
    "opt_base_learning_rate", "opt_gradient_clip_norm", "opt_learning_rate_training_steps", "opt_learning_rate_warmup_factor", "seed",
    "submission_benchmark", "submission_division", "target_accuracy", "train_samples",
})  # fmt: skip
"""Keys with one value per run; launchers may print them once per rank."""
TIMES = frozenset({"init_start", "init_stop", "run_start", "run_stop", "block_start", "block_stop", "eval_accuracy", "tracked_stats"})
"""Keys of events in time."""
WANTED = SETTINGS | TIMES
POWER = frozenset({"power_reading", "conversion_eff", "interconnect_power_est"})
"""Keys of the log of a power meter."""
MS = 1_000

# Events --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Event:
    """One MLLOG line."""

    key: str
    at_ms: float
    """`time_ms`: milliseconds since 1970."""
    value: Any
    metadata: dict[str, Any]
    offset: int
    """Position of the line in the file, in bytes."""


def events(content: bytes, file: str, problems: list[LogProblem], keys: frozenset[str] = WANTED) -> Iterator[Event]:
    """Yield the wanted events of a log in the order of its lines; unreadable lines are added to `problems`."""
    for match in LINE.finditer(content):
        if len(match[0]) > LARGEST_LINE:
            reason = f"an MLLOG line of {len(match[0]):,} bytes; none is longer than {LARGEST_LINE:,}"
            problems.append(problem_at(content, file, match.start(), reason))
            continue
        # Most lines are not wanted, so their key decides before they are parsed. Parsing a line without a key gives the reason.
        key = KEY.search(match[1])
        name = key[1].decode("utf-8", "replace") if key else ""
        if key and (name not in keys or (name == "tracked_stats" and b'"throughput"' not in match[1])):
            continue
        event = _event(match[1], match.start())
        if isinstance(event, Event):
            yield event
        else:
            problems.append(problem_at(content, file, match.start(), event))


def problem_at(content: bytes, file: str, offset: int, reason: str) -> LogProblem:
    """Return a problem with the number of the line at a byte offset."""
    return LogProblem(file, content.count(b"\n", 0, offset) + 1, reason)


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


def _event(line: bytes, offset: int) -> Event | str:
    """Return the event of a line, or the reason why it has none."""
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
    return Event(raw["key"], at_ms, raw.get("value"), metadata if isinstance(metadata, dict) else {}, offset)


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


@dataclass(slots=True)
class _RunState:
    """The state between events."""

    log: MlperfRunLog
    content: bytes
    init_from: float | None = None
    init_s: float | None = None
    start: float | None = None
    stop: Event | None = None
    block_from: float | None = None
    blocks_ms: float = 0.0
    train_ms: float | None = None
    """`blocks_ms` at the last evaluation."""
    samples: list[int] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    evaluation: Event | None = None
    """The last evaluation, even an invalid one."""

    def problem(self, event: Event, reason: str) -> None:
        """Add a problem at the line of an event."""
        self.log.problems.append(problem_at(self.content, self.log.file, event.offset, reason))


def read_run(file: str, content: bytes) -> MlperfRunLog:
    """Return the contents of a log; invalid content becomes problems and never raises."""
    log = MlperfRunLog(file)
    state = _RunState(log, content)
    for event in events(content, file, log.problems):
        if event.key in SETTINGS or event.key.startswith("init_"):
            _before_run(state, event)
        elif event.key == "run_start":
            if state.start is None:
                state.start = event.at_ms
            else:
                state.problem(event, "a second run_start; the first one counts")
        elif state.start is not None:
            _in_run(state, event, state.start)
        elif event.key != "tracked_stats":
            state.problem(event, f"{event.key} before run_start is ignored")
    if state.start is None:
        reason = "has no run_start: not the log of a run, or cut off before it began" if content else "is empty: the log is lost"
        log.problems.append(LogProblem(file, _last_line(content), reason))
        return log
    if state.stop is None:
        log.problems.append(LogProblem(file, _last_line(content), "ends without run_stop; kept as incomplete", noted=True))
    _finish(state, state.start)
    return log


def _last_line(content: bytes) -> int:
    """Return the number of the last line, 1 for an empty file."""
    return max(1, content.count(b"\n") + (not content.endswith(b"\n")))


def _before_run(state: _RunState, event: Event) -> None:
    """Read a setting, or the time of the initialisation."""
    if event.key in SETTINGS:
        known = state.log.settings.setdefault(event.key, event.value)
        if known != event.value:
            here, above = str(event.value)[:40], str(known)[:40]
            state.problem(event, f"{event.key} is {here!r} here and {above!r} above; the first one counts")
    elif event.key == "init_start":
        state.init_from = event.at_ms if state.init_from is None else state.init_from
    elif state.init_from is not None and state.init_s is None and event.at_ms >= state.init_from:
        state.init_s = (event.at_ms - state.init_from) / MS


def _in_run(state: _RunState, event: Event, start: float) -> None:
    if event.at_ms < start:
        state.problem(event, f"{event.key} is earlier than run_start; ignored")
    elif state.stop is not None:
        state.problem(event, f"{event.key} after run_stop is ignored")
    elif event.key == "run_stop":
        state.stop = event
    elif event.key == "block_start":
        state.block_from = event.at_ms
    elif event.key == "block_stop":
        if state.block_from is not None and event.at_ms >= state.block_from:
            state.blocks_ms += event.at_ms - state.block_from
        state.block_from = None
    elif event.key == "eval_accuracy":
        _evaluation(state, event, start)
    elif isinstance(event.value, dict):
        rate = finite(event.value.get("throughput"))
        if rate is not None:
            state.rates.append(rate)


def _evaluation(state: _RunState, event: Event, start: float) -> None:
    state.evaluation = event
    loss, samples = finite(event.value), count(event.metadata.get("samples_count"))
    if loss is None or samples is None:
        shown = str(event.value)[:40], str(event.metadata.get("samples_count"))[:40]
        state.problem(event, f"eval_accuracy is {shown[0]!r} after {shown[1]!r} samples; both must be numbers")
        return
    state.samples.append(samples)
    state.at_s.append((event.at_ms - start) / MS)
    state.losses.append(loss)
    state.train_ms = state.blocks_ms


def _finish(state: _RunState, start: float) -> None:
    """Add the run to the log."""
    stop, log = state.stop, state.log
    log.start_ms, log.stop_ms = start, None if stop is None else stop.at_ms
    status: RunStatus = "incomplete" if stop is None else "aborted"
    if stop is not None and stop.metadata.get("status") == "success":
        # The last evaluation of a success must be a loss at the target.
        stated, evaluation = finite(log.settings.get("target_accuracy")), state.evaluation
        target = MLPERF_TARGET_EVAL_LOSS if stated is None else stated
        loss = finite(evaluation.value) if evaluation else None
        status = "ok" if loss is not None and 0 < loss <= target else "missed"
        if evaluation is None:
            reason = "there is no evaluation before it"
        else:
            reason = f"the last evaluation is {str(evaluation.value)[:40]}, not a loss from 0 to {target:g}"
        if status == "missed":
            state.problem(stop, f"run_stop says success and {reason}; kept as a run that missed the target")
    last = state.samples[-1] if state.samples else None
    ended = count(stop.metadata.get("samples_count")) if stop else None
    seed = finite(log.settings.get("seed"))
    try:
        log.run = ConvertedRun(
            file=log.file.rsplit("/", 1)[-1],
            status=status,
            seed=None if seed is None else int(seed),
            init_s=state.init_s,
            time_to_target_s=(stop.at_ms - start) / MS if stop and status == "ok" else None,
            samples=last if ended is None else ended,
            trained_samples=last,
            train_s=None if state.train_ms is None else state.train_ms / MS,
            logged_samples_per_s=tuple(state.rates),
            curve=EvalCurve(samples=tuple(state.samples), at_s=tuple(state.at_s), eval_loss=tuple(state.losses)),
        )
    except ValidationError as error:
        log.problems.append(LogProblem(log.file, _last_line(state.content), first_error(error)))


# Power ---------------------------------------------------------------------------------------------

CLOCKS_AGREE = 0.9
"""Share of a run that readings must span for the clocks of both logs to count as equal."""


@dataclass(frozen=True, slots=True)
class PowerLog:
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
            problems.append(
                problem_at(content, file, event.offset, f"{event.key} is {str(event.value)[:40]!r}, not a positive number; ignored")
            )
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
    within = False
    readings = log.readings
    if run.start_ms is not None and run.stop_ms is not None:
        inside = tuple(reading for reading in readings if run.start_ms <= reading[0] <= run.stop_ms)
        within = len(inside) > 1 and inside[-1][0] - inside[0][0] >= CLOCKS_AGREE * (run.stop_ms - run.start_ms)
        readings = inside if within else readings
    weights = [later[0] - earlier[0] for earlier, later in pairwise(readings)]
    if readings and sum(weights) > 0:
        watts = sum(weight * reading[1] for weight, reading in zip(weights, readings[1:], strict=True)) / sum(weights)
    elif log.estimate_w is not None:
        watts = log.estimate_w
    else:
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
