"""Searches by trials, each in a short run of its own: what fits (the frontier), and what is fastest (tune)."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from statistics import median
from typing import Any, Literal, get_args

from tunemark.harness.plan.resolve import Options, Resolved, refuse_unsupported, step_memory
from tunemark.harness.studies.comparison import Comparison, run_ab, run_repeats
from tunemark.harness.studies.series import AS_GIVEN, Bench, Kind, Series, Settings, Stopped, StudyResult, applied, named, short
from tunemark.schema import formats
from tunemark.schema.derive import derive
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.workloads import WorkloadCard
from tunemark.schema.records.plan import Attention, Compile, CompileMode, FrozenWeights, FusedKernels, SdpaKernel
from tunemark.schema.records.submission import Submission
from tunemark.schema.vocabulary import Checkpointing, DataSource, Phase, Status, Strategy, Task
from tunemark.terminal import Table, say

HOST_SHARE = 0.8
"""Fraction of the host's memory to use by default: a machine that runs out of memory kills other programs too."""
DOES_NOT_FIT = (Status.OOM_DEVICE, Status.OOM_HOST)


class Trials:
    """Short runs of one workload, each with other settings, by which a search finds out what fits or what is fast."""

    def __init__(self, kind: Kind, workload: str, options: Options, bench: Bench, limit_bytes: int | None = None) -> None:
        self.card, self.options, self.bench = bench.card(workload, options), options, bench
        host = bench.machine.memory_bytes if bench.machine.family.on_host else None
        self.limit_bytes = limit_bytes or (int(HOST_SHARE * host) if host else None)
        """Host memory that the processes of a run may use together; None for devices with memory of their own, or where it is unknown."""
        self.base = self.planned({})[1]
        self.series = Series.find(kind, self.base, [f"memory {self.base.limit_memory_bytes}"], bench)

    def planned(self, settings: Settings) -> tuple[str, Resolved]:
        """Return name and plan of a run with some settings; the limit of host memory is a part of the name.

        Raises TunemarkError for a limit on a device with its own memory.
        """
        resolved, limit_bytes = self.bench.plan(self.card.key, self.options, settings), self.limit_bytes
        device = resolved.plan.device
        if limit_bytes is None:
            return named(settings), resolved
        if not self.bench.machine.family.on_host:
            fix = f"only host memory can be limited; a {device.backend.value} device is tested up to its own memory"
            raise TunemarkError("--limit-memory", formats.gib(limit_bytes), fix)
        each = limit_bytes // (device.count // device.nodes)
        words = f", memory limited to {formats.gib(each)} for each process"
        return named(settings) + words, replace(resolved, limit_memory_bytes=each)


# The frontier: the largest micro-batch and the longest sequence that fit

TRY_STEPS = 3
"""The second step is the first with optimizer states and gradients together; the third shows growth."""
UNIT_TOKENS = 64


class Over(StrEnum):
    """The setting that is maximised."""

    MICRO_BATCH = "micro_batch"
    SEQUENCE_LENGTH = "sequence_length"


@dataclass(frozen=True, slots=True)
class Edge:
    """The frontier at one sequence length or micro-batch."""

    sequence_length: int
    micro_batch: int | None
    """The largest that fits; None when 1 does not."""
    first_failed: str | None
    """The smallest that does not fit; None when the largest try fits."""
    peak_memory_bytes: int | None
    """Peak memory of the largest that fits."""
    tries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierResult(StudyResult):
    """The edges that were found."""

    edges: tuple[Edge, ...]

    def shown(self) -> Iterator[Table]:
        """Yield the table of the edges."""
        rows = [
            (
                str(edge.sequence_length),
                str(edge.micro_batch or "none"),
                edge.first_failed,
                edge.peak_memory_bytes and formats.gib(edge.peak_memory_bytes),
                str(edge.tries),
            )
            for edge in self.edges
        ]
        if self.edges:
            yield Table(("sequence length", "largest micro-batch", "first failure", "peak memory", "tries"), rows)


def run_frontier(workload: str, options: Options, bench: Bench, **question: Any) -> FrontierResult:  # noqa: ANN401 - parameters of `Search`
    """Find all edges that are not known yet. Raises TunemarkError before anything runs if this machine cannot run the workload."""
    search = Search(workload, options, bench, **question)
    refuse_unsupported(search.base)
    say(f"{workload}: frontier {search.series.study_id}")
    with search.series.stoppable():
        search.find_edges()
    series, edges = search.series, tuple(search.edges)
    return FrontierResult(workload=workload, kind="frontier", study_id=series.study_id, ended=series.ended, edges=edges)


class Search(Trials):
    """A search for the largest micro-batch, up to `most`, at some lengths of rows or the card's, or for the longest rows.

    `within` is the tolerance as a fraction; 0 is exact.
    """

    def __init__(
        self,
        workload: str,
        options: Options,
        bench: Bench,
        *,
        over: Over = Over.MICRO_BATCH,
        lengths: tuple[int, ...] = (),
        most: int = 65_536,
        within: float = 0.0,
        limit_bytes: int | None = None,
    ) -> None:
        super().__init__("frontier", workload, full_rows(bench.card(workload, options), options), bench, limit_bytes)
        self.over, self.lengths, self.most, self.within = over, lengths, most, within
        self.edges: list[Edge] = []
        self._peaks: dict[str, int | None] = {}

    def find_edges(self) -> None:
        """Find all edges in turn."""
        length, rows = self.card.data.sequence_length, self.card.batch.micro_batch
        if self.over is Over.SEQUENCE_LENGTH:
            unit = min(UNIT_TOKENS, length)
            most = max(1, self.bench.facts.model(self.card.model).context_length // unit)
            # In whole units of tokens.
            self._add_edge(lambda units: (units * unit, rows), length // unit, most, lambda units: f"{units * unit} tokens")
            return
        for each in sorted(self.lengths) or [length]:
            # Start with the tokens that fitted at the previous length; without one, with the rows that the memory model predicts.
            known = [edge.sequence_length * edge.micro_batch // each for edge in self.edges if edge.micro_batch]
            start = known[-1] if known else self._predicted_rows(each)
            self._add_edge(lambda rows, each=each: (each, rows), start, self.most, lambda rows: formats.counted(rows, "row"))  # type: ignore[misc]

    def _add_edge(self, at: Callable[[int], tuple[int, int]], start: int, most: int, words: Callable[[int], str]) -> None:
        """Add the edge along numbers from 1 to `most`, of which `at` gives the sequence length and the rows."""
        before = len(self.series.done)
        fits, fails = find_largest(lambda number: self._fits(_sized(*at(number))), start, most, self.within)
        (length, rows), tries = at(fits or 1), len(self.series.done) - before
        peak = self._peaks[named(_sized(length, rows))] if fits else None
        self.edges.append(Edge(length, rows if fits else None, words(fails) if fails else None, peak, tries))

    def _predicted_rows(self, length: int) -> int:
        """Return the most rows that fit into the memory of the device by the memory model; the card's micro-batch on a host."""
        card, machine = self.bench.facts.model(self.card.model), self.bench.machine
        if machine.family.on_host:
            return self.card.batch.micro_batch

        def fits(rows: int) -> bool:
            plan = self.planned(_sized(length, rows))[1].plan
            return not step_memory(plan, card, machine).too_large

        return find_largest(fits, self.card.batch.micro_batch, self.most, self.within)[0] or 1

    def _fits(self, settings: Settings) -> bool:
        """Return True if a point fits, and keep its peak memory. Raises Stopped if it failed for a reason other than memory."""
        name, plan = self.planned(settings)
        run = self.series.run(name, plan)
        outcome = run.submission.outcome
        if plan.limit_memory_bytes and outcome.phase is Phase.IMPORT and run.status in (*DOES_NOT_FIT, Status.CRASH):
            given = f"--limit-memory {formats.gib(plan.limit_memory_bytes)} for each process"
            raise Stopped(f"the libraries alone could not be loaded with {given} ({outcome.message}); raise the limit")
        if run.status in DOES_NOT_FIT:
            return False
        if run.status is not Status.OK:
            raise Stopped(f"{name} ended with status {run.status.value} ({outcome.message}); {outcome.fix or 'fix that first'}")
        self._peaks[named(settings)] = peak = derive(run.submission).peak_memory.peak_bytes
        limit = self.limit_bytes
        # The limit stops allocations only; other memory of a process counts too.
        if peak is None or limit is None or peak <= limit:
            return True
        say(f"{name} ran, but its peak of {formats.gib(peak)} is over the limit of {formats.gib(limit)}: it does not fit")
        return False


def full_rows(card: WorkloadCard, options: Options) -> Options:
    """Return the options of a try: few steps on full rows."""
    sets = []
    text = options.data not in {"card", DataSource.SYNTHETIC.value}
    if card.task is Task.SEQUENCE_CLASSIFICATION or (text and not card.data.packing):
        sets.append("data.padding=static")
    if card.batch.gradient_accumulation > TRY_STEPS - 1:
        sets.append(f"batch.gradient_accumulation={TRY_STEPS - 1}")
    elsewhere = options.data == "card" and card.data.source is not DataSource.SYNTHETIC
    return short(options, *sets, data="synthetic" if elsewhere else options.data, max_steps=options.max_steps or TRY_STEPS)


def _sized(length: int, rows: int) -> Settings:
    return {"data.sequence_length": str(length), "batch.micro_batch": str(rows)}


def find_largest(fits: Callable[[int], bool], start: int, most: int, within: float = 0.0) -> tuple[int | None, int | None]:
    """Return the largest number from 1 to `most` that fits, and the smallest that does not, in steps that double away from `start`, then by bisecting.

    None stands for a number that does not exist. A start that is right takes two calls of `fits`, any other about 2 log2(its distance).

    `fits` is called at most once per number, and first with `start`. The search stops once the gap is at most the fraction
    `within` of what fits.
    """
    low, high, at = 0, most + 1, min(max(start, 1), most)
    step = max(1, int(within * at))
    while high - low > max(1, within * low):
        low, high = (at, high) if fits(at) else (low, at)
        at = low + step if high > most else high - step if low == 0 else (low + high) // 2
        at, step = min(max(at, low + 1), high - 1), 2 * step
    # No failure above `most` is known.
    return low or None, high if high <= most else None


# Tune: find the best configuration of the tuned division on this machine, then measure it beside the card's own.
# The search changes one lever at a time and keeps what is faster. Each value is tried in a few steps, after the capability table
# and the memory model have excluded what cannot run. The best configuration and the card's are then measured, interleaved. The same
# command resumes both parts.

TUNE_STEPS = 8
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
        super().__init__("tune", workload, short(options, max_steps=TUNE_STEPS, epochs=None, max_train_s=None, cold=False), bench)
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
