"""The frontier: the largest micro-batch and the longest sequence that fit, with each trial in a short run of its own."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tunemark.harness.plan.resolve import Options, Resolved, refuse_unsupported, step_memory
from tunemark.harness.studies.series import Bench, Kind, Series, Settings, Stopped, StudyResult, named, short
from tunemark.schema import formats
from tunemark.schema.derive import derive
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.workloads import WorkloadCard
from tunemark.schema.vocabulary import DataSource, Phase, Status, Task
from tunemark.terminal import Table, say

TRY_STEPS = 3
"""The second step is the first with optimizer states and gradients together; the third shows growth."""
HOST_SHARE = 0.8
"""Fraction of the host's memory to use by default: a machine that runs out of memory kills other programs too."""
UNIT_TOKENS = 64
DOES_NOT_FIT = (Status.OOM_DEVICE, Status.OOM_HOST)


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
