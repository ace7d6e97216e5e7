"""Tune: find the best configuration of the tuned division on this machine, then measure it beside the card's own.

The search changes one lever at a time and keeps what is faster. Each value is tried in a few steps, after the capability table
and the memory model have excluded what cannot run. The best configuration and the card's are then measured, interleaved. The same command resumes both parts.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from statistics import median
from typing import Any, get_args

from tunemark.harness.plan.memory_check import step_memory
from tunemark.harness.plan.options import Options
from tunemark.harness.plan.resolve import Resolved
from tunemark.harness.run.show import say
from tunemark.harness.studies.ab_test import Comparison, run_ab
from tunemark.harness.studies.frontier import HOST_SHARE, limit_words, limited
from tunemark.harness.studies.report import Try, TryVerdict
from tunemark.harness.studies.series import AS_GIVEN, Bench, Done, Point, Series, card_with
from tunemark.harness.studies.sweep import run_repeats
from tunemark.harness.vendors.protocol import vendor_of
from tunemark.schema.derive import derive
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.workloads import WorkloadCard
from tunemark.schema.records.plan import Attention, Compile, CompileMode, FrozenWeights, FusedKernels, SdpaKernel
from tunemark.schema.records.submission import Submission
from tunemark.schema.vocabulary import Checkpointing, Status, Strategy

TRY_STEPS = 8
SETTLING_STEPS = 2
"""First steps of a try, in which memory is allocated and graphs are compiled."""
TRY_MICRO_STEPS = 2
"""Micro-steps of a step in a try. The time of a whole step follows from them and the update."""
MIN_GAIN = 0.01
"""A lever is kept if it makes steps faster by more than this: smaller gains are noise of a short try."""
ROUNDS = 2
"""Passes over the levers: what one lever frees, such as memory, may pay off with an earlier one."""
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
    "devices.strategy": tuple(strategy.value for strategy in Strategy if strategy is not Strategy.SINGLE),
}
"""Settings that are tried with each of their values, the one with the largest effect first. All are free in the tuned division."""
SPLIT = "split"
"""The lever of the batch: micro-batch x gradient accumulation at the same global batch. It follows checkpointing, whose memory it uses."""
SLOWEST_ON_DEVICES = {"attention": "eager", "sdpa_kernel": "math"}
"""Values that hold all scores of attention in memory. On a CPU they may be faster with short rows; on a GPU they never are."""
MICRO, ACCUMULATION = "batch.micro_batch", "batch.gradient_accumulation"
Settings = dict[str, str]


@dataclass(frozen=True, slots=True)
class TuneResult:
    """The levers that were tried, the best settings, and their measurement."""

    study_id: str
    tries: tuple[Try, ...]
    best: str
    """Settings that differ from the card's; `as given` if none is faster."""
    complete: bool
    """False if the budget or the user ended the search before all levers were tried."""
    comparison: Comparison | None
    """The best settings (B) beside the card's (A); None if none is faster, or only the best ones run here."""
    ended: str | None
    runs: tuple[str, ...]
    """Submissions in fresh processes."""

    @property
    def exit_code(self) -> Exit:
        """Return 0 if the best settings were measured."""
        if self.comparison is not None:
            return self.comparison.exit_code
        return Exit.OK if self.runs and not self.ended else Exit.UNTRUSTWORTHY


class OutOfTime(Exception):
    """The budget of the search is spent."""


@dataclass
class Tuner:
    """A search on one bench."""

    workload: str
    card: WorkloadCard
    options: Options
    bench: Bench
    series: Series
    until_s: float
    """Time of the monotonic clock at which the search ends."""
    tries: list[Try] = field(default_factory=list)
    rates: dict[str, Try] = field(default_factory=dict)
    """By settings: each is tried once."""
    best: Settings = field(default_factory=Settings)
    """The fastest so far. A search that ends within a lever keeps it."""

    @classmethod
    def of(cls, workload: str, options: Options, bench: Bench, budget_s: float, *, again: bool = False) -> "Tuner":
        """Return a search that resumes an earlier one with the same options, and has what that one left of the budget."""
        card = card_with(bench.facts.workload(workload), options)
        short = try_options(card, options)
        series = Series.find("tune", bench.plan(workload, short), [AS_GIVEN], bench, again=again)
        spent_s = sum(record.submission.process.wall_s for record in series.earlier)
        return cls(workload, card, short, bench, series, time.monotonic() + budget_s - spent_s)

    def search(self) -> tuple[Settings, bool]:
        """Return the best settings found, and whether all levers were tried."""
        best, complete = self.best, False
        say(f"{self.workload}: tune {self.series.study_id}")
        try:
            with self.series.stoppable():
                standard = self._measured("card", best)
                self.tries.append(replace(standard, gain=None, verdict="card" if standard.tokens_per_s else standard.verdict))
                for _ in range(ROUNDS):
                    before = dict(best)
                    for lever in self._levers():
                        best = self._pull(lever, best)
                    if best == before:
                        break
                complete = True
        except OutOfTime:
            say(f"the budget is spent after {len(self.series.done)} tries; the same command with more --minutes resumes there")
        return self.best, complete and self.series.ended is None

    @cached_property
    def given(self) -> Settings:
        """The settings of the card as the user changed them, as they are written in `--set`."""
        plan, batch = self.bench.plan(self.workload, self.options).plan, self.card.batch
        strategy = {"devices.strategy": plan.device.strategy.value}
        levers = {lever: str(getattr(plan.model, lever)) for lever in LEVERS if lever not in strategy}
        return {**levers, **strategy, MICRO: str(batch.micro_batch), ACCUMULATION: str(batch.gradient_accumulation)}

    def _levers(self) -> Iterator[str]:
        """Yield the levers that the user has not set."""
        several = self.bench.plan(self.workload, self.options).plan.device.count > 1
        for lever in LEVERS:
            set_here = self.options.strategy if lever == "devices.strategy" else self.options.sets(lever)
            if not set_here and (several or lever != "devices.strategy"):
                yield lever
            if lever == "gradient_checkpointing" and not (self.options.sets(MICRO) or self.options.sets(ACCUMULATION)):
                yield SPLIT

    def _walks(self, lever: str, best: Settings) -> Iterator[list[Settings]]:
        """Yield the changes of a lever, in walks that end at the first change that is no gain: each value, or larger and smaller splits."""
        if lever != SPLIT:
            slowest = None if vendor_of(self.bench.machine.backend).on_host else SLOWEST_ON_DEVICES.get(lever)
            yield from ([{lever: value}] for value in LEVERS[lever] if value != slowest)
            return
        rows, now = self.card.batch.micro_batch * self.card.batch.gradient_accumulation, int((self.given | best)[MICRO])
        splits = {size: {MICRO: str(size), ACCUMULATION: str(rows // size)} for size in range(1, rows + 1) if rows % size == 0}
        yield [split for size, split in splits.items() if size > now]
        yield [split for size, split in reversed(splits.items()) if size < now]

    def _pull(self, lever: str, best: Settings) -> Settings:
        """Return the best settings once all changes of a lever are tried."""
        for walk in self._walks(lever, best):
            for change in walk:
                settings = {name: text for name, text in {**best, **change}.items() if text != self.given[name]}
                better = best if settings == best else self._better(lever, settings, best)
                if better == best:
                    break
                best = better
        return best

    def _better(self, lever: str, settings: Settings, best: Settings) -> Settings:
        """Try settings; return them if they are faster than the best ones, else the best ones."""
        known = point_of(settings).text in self.rates
        tried, before = self._measured(lever, settings), self._measured(lever, best).tokens_per_s
        rate = tried.tokens_per_s
        gain = rate / before - 1 if rate and before else None
        kept = rate is not None and (before is None or (gain is not None and gain > MIN_GAIN))
        # What the capability table excludes is listed once, whatever else was kept meanwhile.
        listed = tried.verdict == "excluded" and any(other.reason == tried.reason for other in self.tries)
        if not known and not listed:
            verdict: TryVerdict = tried.verdict if rate is None else "kept" if kept else "no gain"
            self.tries.append(replace(tried, gain=gain, verdict=verdict))
            shown = tried.reason if rate is None else f"{rate:,.0f} tokens/s" + (f", {gain:+.1%}" if gain is not None else "")
            say(f"{lever}: {point_of(settings).text}: {verdict}, {shown}; {max(0.0, self._left_s()) / 60:.1f} min left")
        self.best = settings if kept else best
        return self.best

    def _measured(self, lever: str, settings: Settings) -> Try:
        """Return the try of some settings, which is run once.

        Raises OutOfTime before a new try if less time is left than the longest one took, and if the budget ends during a try.
        """
        point = point_of(settings)
        if point.text in self.rates:
            return self.rates[point.text]
        rows = int(settings.get(ACCUMULATION, self.card.batch.gradient_accumulation))
        cut = min(rows, TRY_MICRO_STEPS)
        tried = Point((*((name, text) for name, text in point.settings if name != ACCUMULATION), (ACCUMULATION, str(cut))))
        resolved = self._resolve(tried)
        reason = self._exclusion(resolved)
        if reason is not None:
            result = Try(lever, point.text, None, None, None, "excluded", reason)
        else:
            name = tried.text + limit_words(resolved)
            if self._left_s() <= self._longest_s() and self.series.finished(name) is None:
                raise OutOfTime
            done = self.series.run(name, within(resolved, self._left_s()))
            if done.status is Status.TIMEOUT and self._left_s() <= 0:
                raise OutOfTime
            result = _try_of(lever, point.text, done, rows / cut)
        self.rates[point.text] = result
        return result

    def _resolve(self, point: Point) -> Resolved:
        host, resolved = self.bench.machine.memory_bytes, self.bench.plan(self.workload, point.applied(self.options))
        on_host = vendor_of(self.bench.machine.backend).on_host
        return limited(resolved, int(HOST_SHARE * host)) if on_host and host is not None else resolved

    def _exclusion(self, resolved: Resolved) -> str | None:
        """Return the reason of the capability table or of the memory model why a plan cannot run here, or None."""
        memory = step_memory(resolved.plan, self.bench.facts.model(resolved.plan.model.key), self.bench.machine)
        return resolved.unsupported or memory.problem

    def _left_s(self) -> float:
        return self.until_s - time.monotonic()

    def _longest_s(self) -> float:
        complete = (done.record.submission for done in self.series.done if done.status is Status.OK)
        return max((submission.process.wall_s for submission in complete), default=0.0)


def try_options(card: WorkloadCard, options: Options) -> Options:
    """Return the options of a try: few steps, and only training."""
    sets = ("data.evaluation_rows=0",) if card.data.evaluation_rows else ()
    short: dict[str, Any] = {"max_steps": TRY_STEPS, "epochs": None, "max_train_s": None, "until_ci": None}
    return options.having(overrides=(*sets, *options.overrides), probe=False, gates=False, save=False, cold=False, **short)


def within(resolved: Resolved, left_s: float) -> Resolved:
    """Return a plan whose worker is ended after the seconds that are left, or after its own limit if that is shorter."""
    rules = resolved.plan.measurement
    limit_s = min(max(left_s, 1.0), rules.timeout_s or math.inf)
    if limit_s == math.inf:
        return resolved
    return resolved.measured_with(timeout_s=round(limit_s, 3))


def point_of(settings: Settings) -> Point:
    """Return settings as a point, in an order that does not depend on when they were found."""
    return Point(tuple(sorted(settings.items())))


def _try_of(lever: str, settings: str, done: Done, micro_steps: float) -> Try:
    submission, outcome = done.record.submission, done.record.submission.outcome
    peak = derive(submission).peak_memory.peak_bytes
    rate = rate_of_try(submission, micro_steps) if done.status is Status.OK else None
    if rate is None:
        verdict: TryVerdict = "does not fit" if done.status in {Status.OOM_DEVICE, Status.OOM_HOST} else "failed"
        return Try(lever, settings, None, None, peak, verdict, outcome.message or outcome.status.value)
    return Try(lever, settings, rate, None, peak, "no gain")


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


def run_tune(
    workload: str, options: Options, bench: Bench, *, budget_s: float = math.inf, runs: int = 3, again: bool = False
) -> TuneResult:
    """Search within a budget of seconds, then measure the best settings beside the card's, `runs` times each.

    Raises TunemarkError before anything runs if this machine cannot run the workload at all.
    """
    tuner = Tuner.of(workload, options, bench, budget_s, again=again)
    limit = f"for at most {budget_s / 60:g} min " if math.isfinite(budget_s) else ""
    say(f"searches {limit}with short trials, then measures the best settings and the card's with up to {2 * runs} full runs")
    best, complete = tuner.search()
    found = partial(TuneResult, tuner.series.study_id, tuple(tuner.tries), point_of(best).text, complete)
    if tuner.series.ended:
        return found(None, f"{tuner.series.ended}; the same command resumes there", ())
    standard = tuner.rates.get(AS_GIVEN)
    if standard is None:
        fix = "is spent before the first trial is complete; give a larger one, which resumes there"
        raise TunemarkError("--minutes", f"{budget_s / 60:g} min", fix)
    if not any(tried.tokens_per_s for tried in tuner.rates.values()):
        reason = next((tried.reason for tried in tuner.tries if tried.reason), "nothing was tried")
        raise TunemarkError("workload", workload, f"no configuration ran: {reason}", exit_code=Exit.UNSUPPORTED)
    if not best or standard.tokens_per_s is None:
        measured = run_repeats(workload, point_of(best).applied(options), bench, runs, again=again)
        files = tuple(name for row in measured.rows for name in row.files)
        return found(None, "stopped" if measured.missing else None, files)
    own = tuner.given | ({"attention": "auto"} if tuner.card.attention == "auto" else {})
    as_card = ",".join(f"{name}={own[name]}" for name in sorted(best))
    as_best = ",".join(f"{name}={best[name]}" for name in sorted(best))
    comparison = run_ab(workload, as_card, as_best, options, bench, pairs=runs, again=again)
    return found(comparison, comparison.ended, tuple(str(done.record.path) for done in comparison.runs))
