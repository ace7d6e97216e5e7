"""Tune: find the best configuration of the tuned division on this machine, then measure it beside the card's own.

The search changes one lever at a time and keeps what is faster. Each value is tried in a few steps, after the capability table
and the memory model have excluded what cannot run. The best configuration and the card's are then measured, interleaved. The same command resumes both parts.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Literal, get_args

from tunemark.harness.plan.resolve import Options, step_memory
from tunemark.harness.studies.ab_test import Comparison, run_ab
from tunemark.harness.studies.frontier import DOES_NOT_FIT, Trials
from tunemark.harness.studies.series import AS_GIVEN, Bench, Settings, StudyResult, applied, named, short
from tunemark.harness.studies.sweep import run_repeats
from tunemark.schema import formats
from tunemark.schema.derive import derive
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.records.plan import Attention, Compile, CompileMode, FrozenWeights, FusedKernels, SdpaKernel
from tunemark.schema.records.submission import Submission
from tunemark.schema.vocabulary import Checkpointing, Status, Strategy
from tunemark.terminal import Table, say

TRY_STEPS = 8
SETTLING_STEPS = 2
"""First steps of a try, in which memory is allocated and graphs are compiled."""
TRY_MICRO_STEPS = 2
"""Micro-steps of a step in a try. The time of a whole step follows from them and the update."""
MIN_GAIN = 0.01
"""A lever is kept if it makes steps faster by more than this: smaller gains are noise of a short try."""
ROUNDS = 2
"""Passes over the levers: what one lever frees, such as memory, may pay off with an earlier one."""
STRATEGY = "devices.strategy"
LEVERS: dict[str, tuple[str, ...]] = {
    "gradient_checkpointing": tuple(kind.value for kind in Checkpointing),
    "compile": get_args(Compile),
    # After `compile`, because compilation fuses the rounding of inputs into one kernel.
    "frozen_weights": get_args(FrozenWeights),
    "fused_kernels": get_args(FusedKernels),
    "attention": get_args(Attention),
    "sdpa_kernel": get_args(SdpaKernel),
    # Without max-autotune, which compiles for many minutes.
    "compile_mode": get_args(CompileMode)[:2],
    STRATEGY: tuple(strategy.value for strategy in Strategy if strategy is not Strategy.SINGLE),
}
"""Settings that are tried with each of their values, the one with the largest effect first. All are free in the tuned division."""
SPLIT = "split"
"""The lever of the batch: micro-batch x gradient accumulation at the same global batch. It follows checkpointing, whose memory it uses."""
SLOWEST_ON_DEVICES = {"attention": "eager", "sdpa_kernel": "math"}
"""Values that hold all scores of attention in memory. On a CPU they may be faster with short rows; on a GPU they never are."""
MICRO, ACCUMULATION = "batch.micro_batch", "batch.gradient_accumulation"


TryVerdict = Literal["card", "kept", "no gain", "does not fit", "failed", "excluded"]


@dataclass(frozen=True, slots=True)
class Try:
    """One value of one lever, on top of what was kept before."""

    lever: str
    settings: str
    verdict: TryVerdict
    tokens_per_s: float | None = None
    """Estimated from few steps; None if it did not run."""
    gain: float | None = None
    """Rate over the best one before, minus 1."""
    peak_memory_bytes: int | None = None
    reason: str = ""
    """Why it did not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult(StudyResult):
    """The levers that were tried, the best settings, and their measurement."""

    tries: tuple[Try, ...]
    best: str
    """Settings that differ from the card's; `as given` if none is faster."""
    complete: bool
    """False if the budget or the user ended the search before all levers were tried."""
    comparison: Comparison | None = None
    """The best settings (B) beside the card's (A); None if none is faster, or only the best ones run here."""
    runs: tuple[str, ...] = ()
    """Submissions in fresh processes."""

    @property
    def exit_code(self) -> Exit:
        """Return 0 if the best settings were measured."""
        if self.comparison is not None:
            return self.comparison.exit_code
        return Exit.OK if self.runs and not self.ended else Exit.UNTRUSTWORTHY

    def shown(self) -> Iterator[Table | str]:
        """Yield the levers with their gains, in the order in which they were tried, and the verdict on the best settings."""
        rows = [
            (
                tried.lever,
                tried.settings,
                tried.tokens_per_s and f"{tried.tokens_per_s:,.0f}",
                None if tried.gain is None else f"{tried.gain:+.1%}",
                tried.peak_memory_bytes and formats.gib(tried.peak_memory_bytes),
                f"{tried.verdict}: {tried.reason}" if tried.reason else tried.verdict,
            )
            for tried in self.tries
        ]
        if self.tries:
            yield Table(("lever", "settings", "tokens/s", "gain", "peak memory", "verdict"), rows)
        yield f"best: {self.best}" + ("" if self.complete else " (the search is not complete)")
        yield from self.comparison.shown() if self.comparison else ()


class OutOfTime(Exception):
    """The budget of the search is spent."""


class Tuner(Trials):
    """A search that resumes an earlier one with the same options, and has what that one left of the budget."""

    def __init__(self, workload: str, options: Options, bench: Bench, budget_s: float) -> None:
        super().__init__("tune", workload, short(options, max_steps=TRY_STEPS, epochs=None, max_train_s=None, cold=False), bench)
        self.until_s = time.monotonic() + budget_s - sum(run.submission.process.wall_s for run in self.series.earlier)
        self.tries: list[Try] = []
        self.measured: dict[str, Try] = {}
        """By settings: each is tried once."""
        self.best = Settings()
        """The fastest so far. A search that ends within a lever keeps it."""
        self.complete = False
        plan = self.base.plan
        self.given: Settings = {lever: str(getattr(plan.model, lever)) for lever in LEVERS if lever != STRATEGY}
        self.given |= {STRATEGY: plan.device.strategy.value, MICRO: str(plan.batch.micro_batch)}
        self.given |= {ACCUMULATION: str(plan.batch.gradient_accumulation)}
        """The settings of the card as the user changed them, as they are written in `--set`."""

    def search(self) -> None:
        """Try the levers, and keep the best settings."""
        say(f"{self.card.key}: tune {self.series.study_id}")
        try:
            with self.series.stoppable():
                standard = self.measured[AS_GIVEN] = self._tried("card", self.best)
                self.tries.append(replace(standard, verdict="card") if standard.tokens_per_s else standard)
                for _ in range(ROUNDS):
                    before = self.best
                    for lever, walk in self._walks():
                        for change in walk:
                            if not self._improves(lever, change):
                                break
                    if self.best == before:
                        break
                self.complete = True
        except OutOfTime:
            say(f"the budget is spent after {len(self.series.done)} tries; the same command with more --minutes resumes there")

    def _walks(self) -> Iterator[tuple[str, list[Settings]]]:
        """Yield the levers that the user has not set, each with changes that are tried until one is no gain."""
        sets, on_host = self.options.sets, self.bench.machine.family.on_host
        for lever, values in LEVERS.items():
            if not (sets(lever) if lever != STRATEGY else self.options.strategy or self.base.plan.device.count == 1):
                yield from ((lever, [{lever: value}]) for value in values if on_host or value != SLOWEST_ON_DEVICES.get(lever))
            if lever == "gradient_checkpointing" and not (sets(MICRO) or sets(ACCUMULATION)):
                # Larger and smaller splits.
                rows, now = self.card.batch.micro_batch * self.card.batch.gradient_accumulation, int((self.given | self.best)[MICRO])
                splits = {size: {MICRO: str(size), ACCUMULATION: str(rows // size)} for size in range(1, rows + 1) if rows % size == 0}
                yield SPLIT, [split for size, split in splits.items() if size > now]
                yield SPLIT, [split for size, split in reversed(splits.items()) if size < now]

    def _improves(self, lever: str, change: Settings) -> bool:
        """Try a change of the best settings, and keep it if it is faster. Return True if it was kept."""
        settings = {name: text for name, text in sorted({**self.best, **change}.items()) if text != self.given[name]}
        if settings == self.best:
            return False
        known = (text := named(settings)) in self.measured
        if not known:
            self.measured[text] = self._tried(lever, settings)
        tried, before = self.measured[text], self.measured[named(self.best)].tokens_per_s
        rate = tried.tokens_per_s
        gain = rate / before - 1 if rate and before else None
        kept = rate is not None and (gain is None or gain > MIN_GAIN)
        # What the capability table excludes is listed once, whatever else was kept meanwhile.
        listed = tried.verdict == "excluded" and any(other.reason == tried.reason for other in self.tries)
        if not known and not listed:
            self.tries.append(replace(tried, gain=gain, verdict="kept" if kept else tried.verdict))
            shown = tried.reason if rate is None else f"{rate:,.0f} tokens/s" + (f", {gain:+.1%}" if gain is not None else "")
            say(f"{lever}: {text}: {self.tries[-1].verdict}, {shown}; {max(0.0, self._left_s()) / 60:.1f} min left")
        if kept:
            self.best = settings
        return kept

    def _tried(self, lever: str, settings: Settings) -> Try:
        """Return the try of some settings.

        Raises OutOfTime before a new try if less time is left than the longest one took, and if the budget ends during a try.
        """
        rows = int((self.given | settings)[ACCUMULATION])
        cut = min(rows, TRY_MICRO_STEPS)
        name, resolved = self.planned({**settings, ACCUMULATION: str(cut)})
        memory = step_memory(resolved.plan, self.bench.facts.model(resolved.plan.model.key), self.bench.machine)
        reason = resolved.unsupported or (memory.words if memory.too_large else None)
        if reason is not None:
            return Try(lever, named(settings), "excluded", reason=reason)
        if self.series.finished(name) is None:
            longest_s = max((run.submission.process.wall_s for run in self.series.done if run.status is Status.OK), default=0.0)
            if self._left_s() <= longest_s:
                raise OutOfTime
        # The worker is ended after what is left of the budget, or after its own limit if that is shorter.
        limit_s = min(max(self._left_s(), 1.0), resolved.plan.measurement.timeout_s or math.inf)
        run = self.series.run(name, resolved if limit_s == math.inf else resolved.measured_with(timeout_s=round(limit_s, 3)))
        if run.status is Status.TIMEOUT and self._left_s() <= 0:
            raise OutOfTime
        peak, outcome = derive(run.submission).peak_memory.peak_bytes, run.submission.outcome
        rate = rate_of_try(run.submission, rows / cut) if run.status is Status.OK else None
        if rate is not None:
            return Try(lever, named(settings), "no gain", rate, peak_memory_bytes=peak)
        verdict: TryVerdict = "does not fit" if run.status in DOES_NOT_FIT else "failed"
        return Try(lever, named(settings), verdict, peak_memory_bytes=peak, reason=outcome.message or outcome.status.value)

    def _left_s(self) -> float:
        return self.until_s - time.monotonic()


def rate_of_try(submission: Submission, micro_steps: float) -> float | None:
    """Return real tokens per second of a step with `micro_steps` times as many micro-steps as the try; None without a settled step.

    The update is done once per step. The median of steps, without those that compile.
    """
    trace = submission.trace
    compiled = {event.step for event in submission.events if event.kind == "compile"}
    starts = (trace.started_at_s, *trace.completed_at_s)
    rates = []
    for step in range(SETTLING_STEPS, len(trace)):
        if step + 1 in compiled:
            continue
        inside = trace.micro_completed_at_s[step] if trace.micro_completed_at_s else ()
        whole_s = starts[step + 1] - starts[step]
        micro_s = inside[-1] - starts[step] if inside else whole_s
        rates.append(trace.real_tokens[step] * micro_steps / (micro_s * micro_steps + whole_s - micro_s))
    return median(rates) if rates else None


def run_tune(workload: str, options: Options, bench: Bench, *, budget_s: float = math.inf, runs: int = 3) -> TuneResult:
    """Search within a budget of seconds, then measure the best settings beside the card's, `runs` times each.

    Raises TunemarkError before anything runs if this machine cannot run the workload at all.
    """
    tuner = Tuner(workload, options, bench, budget_s)
    limit = f"for at most {budget_s / 60:g} min " if math.isfinite(budget_s) else ""
    say(f"searches {limit}with short trials, then measures the best settings and the card's with up to {2 * runs} full runs")
    tuner.search()
    best, study_id = tuner.best, tuner.series.study_id
    complete, tries = tuner.complete and tuner.series.ended is None, tuple(tuner.tries)
    found = partial(TuneResult, workload=workload, kind="tune", study_id=study_id, tries=tries, best=named(best), complete=complete)
    if tuner.series.ended:
        return found(ended=tuner.series.ended)
    standard = tuner.measured.get(AS_GIVEN)
    if standard is None:
        fix = "is spent before the first trial is complete; give a larger one, which resumes there"
        raise TunemarkError("--minutes", f"{budget_s / 60:g} min", fix)
    if not any(tried.tokens_per_s for tried in tuner.measured.values()):
        reason = next((tried.reason for tried in tries if tried.reason), "nothing was tried")
        raise TunemarkError("workload", workload, f"no configuration ran: {reason}", exit_code=Exit.UNSUPPORTED)
    if not best or standard.tokens_per_s is None:
        repeats = run_repeats(workload, applied(best, options), bench, runs)
        files = tuple(name for row in repeats.points for name in row.files)
        return found(ended="stopped" if repeats.missing else None, runs=files)
    own = tuner.given | ({"attention": "auto"} if tuner.card.attention == "auto" else {})
    a, b = (",".join(f"{name}={settings[name]}" for name in sorted(best)) for settings in (own, best))
    comparison = run_ab(workload, a, b, options, bench, pairs=runs)
    return found(ended=comparison.ended, comparison=comparison, runs=comparison.runs)
