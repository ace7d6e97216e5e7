"""One log of an MLPerf run: its settings and raw values, from the events in it."""

from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from tunemark.collector.importers.mllog import SETTINGS, Event, LogProblem, count, events, finite, problem_at
from tunemark.schema.records.converted import MLPERF_TARGET_EVAL_LOSS, ConvertedRun, EvalCurve, RunStatus

MS = 1_000


@dataclass(slots=True)
class RunLog:
    """What one log gave."""

    file: str
    """Path in the archive."""
    run: ConvertedRun | None = None
    """Null when it is not the log of a run."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Values of the keys that are said once."""
    problems: list[LogProblem] = field(default_factory=list)


@dataclass(slots=True)
class _Reading:
    """The state between events."""

    log: RunLog
    content: bytes
    init_from: float | None = None
    init_s: float | None = None
    start: float | None = None
    stop: Event | None = None
    block_from: float | None = None
    blocks_ms: float = 0.0
    train_ms: float | None = None
    """`blocks_ms` when the last evaluation was made."""
    samples: list[int] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    evaluation: Event | None = None
    """The last evaluation, whatever it is worth."""

    def doubt(self, event: Event, reason: str) -> None:
        """Add a problem at the line of an event."""
        self.log.problems.append(problem_at(self.content, self.log.file, event.offset, reason))


def read_run(file: str, content: bytes) -> RunLog:
    """Return what a log holds; whatever its bytes are, they are judged and not raised."""
    log = RunLog(file)
    state = _Reading(log, content)
    for event in events(content, file, log.problems):
        if event.key in SETTINGS:
            _setting(state, event)
        elif event.key == "run_start":
            if state.start is None:
                state.start = event.at_ms
            else:
                state.doubt(event, "a second run_start; the first one counts")
        elif event.key.startswith("init_"):
            _init(state, event)
        elif state.start is not None:
            _in_run(state, event, state.start)
        elif event.key != "tracked_stats":
            state.doubt(event, f"{event.key} before run_start is passed over")
    if state.start is None:
        reason = "has no run_start: not the log of a run, or cut off before it began" if content else "is empty: the log is lost"
        log.problems.append(LogProblem(file, _lines(content), reason))
        return log
    if state.stop is None:
        log.problems.append(LogProblem(file, _lines(content), "ends without run_stop; kept as incomplete", noted=True))
    _finish(state, state.start)
    return log


def _lines(content: bytes) -> int:
    """Return the number of the last line, 1 for an empty file."""
    return max(1, content.count(b"\n") + (not content.endswith(b"\n")))


def _setting(state: _Reading, event: Event) -> None:
    known = state.log.settings.setdefault(event.key, event.value)
    if known != event.value:
        state.doubt(event, f"{event.key} is {str(event.value)[:40]!r} here and {str(known)[:40]!r} above; the first one counts")


def _init(state: _Reading, event: Event) -> None:
    if event.key == "init_start":
        state.init_from = event.at_ms if state.init_from is None else state.init_from
    elif state.init_from is not None and state.init_s is None and event.at_ms >= state.init_from:
        state.init_s = (event.at_ms - state.init_from) / MS


def _in_run(state: _Reading, event: Event, start: float) -> None:
    if event.at_ms < start:
        state.doubt(event, f"{event.key} is earlier than run_start; passed over")
    elif state.stop is not None:
        state.doubt(event, f"{event.key} after run_stop is passed over")
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


def _evaluation(state: _Reading, event: Event, start: float) -> None:
    state.evaluation = event
    loss, samples = finite(event.value), count(event.metadata.get("samples_count"))
    if loss is None or samples is None:
        state.doubt(
            event,
            f"eval_accuracy is {str(event.value)[:40]!r} after {str(event.metadata.get('samples_count'))[:40]!r} samples; both are numbers",
        )
        return
    state.samples.append(samples)
    state.at_s.append((event.at_ms - start) / MS)
    state.losses.append(loss)
    state.train_ms = state.blocks_ms


def _finish(state: _Reading, start: float) -> None:
    stop, log = state.stop, state.log
    status: RunStatus = "incomplete" if stop is None else "aborted"
    if stop is not None and stop.metadata.get("status") == "success":
        missed = _missed(state)
        status = "missed" if missed else "ok"
        if missed:
            state.doubt(stop, f"{missed}; kept as a run that missed the target")
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
        first = error.errors()[0]
        log.problems.append(LogProblem(log.file, _lines(state.content), f"{'.'.join(map(str, first['loc']))}: {first['msg']}"))


def _missed(state: _Reading) -> str | None:
    """Return why a success that the log claims is none, or None: the last evaluation has to be a loss at the target."""
    said = finite(state.log.settings.get("target_accuracy"))
    target = MLPERF_TARGET_EVAL_LOSS if said is None else said
    if state.evaluation is None:
        return "run_stop says success and there is no evaluation before it"
    loss = finite(state.evaluation.value)
    if loss is not None and 0 < loss <= target:
        return None
    return f"run_stop says success and the last evaluation is {str(state.evaluation.value)[:40]}, not a loss from 0 to {target:g}"
