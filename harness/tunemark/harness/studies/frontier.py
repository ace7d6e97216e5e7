"""What a frontier is asked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tunemark.harness.plan.resolve import Options, Resolved
from tunemark.harness.plan.sections import HOST_BACKENDS
from tunemark.harness.studies.series import Bench, Series, Stopped, say
from tunemark.harness.studies.settings_grid import Point, card_with
from tunemark.schema import formats
from tunemark.schema.derive import derive
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.workloads import WorkloadCard
from tunemark.schema.vocabulary import DataSource, Status, Task


class Over(StrEnum):
    """What is made as large as possible."""

    MICRO_BATCH = "micro_batch"
    SEQUENCE_LENGTH = "sequence_length"
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is looked for."""

    over: Over = Over.MICRO_BATCH
    lengths: tuple[int, ...] = ()
    """Sequence lengths at which the largest micro-batch is looked for; empty: that of the card, or those that fit."""
    limit_bytes: int | None = None
    """Memory of the host that the worker's processes may take together."""
    most: int = 65_536
    """Largest micro-batch that is tried."""
    within: float = 0.0
    """How near is near enough, as a share; 0 is exact."""


# MOVE: was tunemark.harness.studies.frontier: The largest whole number that fits, by doubling and then halving the gap. Pure: what fits is asked of a function.


@dataclass(frozen=True, slots=True)
class Largest:
    """Where the frontier lies."""

    fits: int | None
    """The largest that was seen to fit; None when not even the smallest does."""
    fails: int | None
    """The smallest that was seen not to fit; None when the upper end fits too."""


def largest(fits: Callable[[int], bool], start: int, most: int, within: float = 0.0) -> Largest:
    """Search from 1 to `most`, first at `start`: about 2 log2(answer) questions.

    Parameters
    ----------
    fits
        Asked once for each number at most; true below the frontier, false above.
    start
        Where to begin: the nearer to the frontier, the fewer questions.
    most
        Nothing above is asked.
    within
        Stop once the gap is at most this share of what fits; 0 finds the frontier exactly.

    """
    low, high, at = 0, most + 1, min(max(start, 1), most)
    while low < at < high:
        if fits(at):
            low, at = at, min(2 * at, most)
        else:
            high = at
            break
    while low == 0 and high > 1:
        at = high // 2
        low, high = (at, high) if fits(at) else (low, at)
    while low and high - low > max(1, within * low):
        at = (low + high) // 2
        # Above `most` nothing is known to fail.
        low, high = (at, high) if fits(at) else (low, at)
    return Largest(low or None, high if high <= most else None)


# MOVE: was tunemark.harness.studies.frontier: The frontier: the largest micro-batch and the longest sequence that fit, each try in a short process of its own.

TRY_STEPS = 3
"""The second step is the first with optimizer states and gradients together; the third shows growth."""
HOST_SHARE = 0.8
"""Of the host's memory, where none is named: a machine that runs out of it ends other programs too."""
UNIT_TOKENS = 64
DOES_NOT_FIT = (Status.OOM_DEVICE, Status.OOM_HOST)


class Failed(Exception):
    """A try ended in a way that says nothing of memory."""


@dataclass(frozen=True, slots=True)
class Edge:
    """The frontier at one sequence length or micro-batch."""

    sequence_length: int
    micro_batch: int | None
    """The largest that fits; None when 1 does not."""
    first_failed: str | None
    """The smallest that does not fit; None when the largest that was tried does."""
    peak_memory_bytes: int | None
    """Of the largest that fits."""
    tries: int


@dataclass
class Frontier:
    """A search on one bench."""

    workload: str
    card: WorkloadCard
    options: Options
    bench: Bench
    question: Question
    series: Series
    edges: list[Edge] = field(default_factory=list)

    @classmethod
    def of(cls, workload: str, options: Options, bench: Bench, question: Question, *, again: bool = False) -> "Frontier":
        """Return a search that goes on where an earlier one of the same settings was."""
        card = card_with(bench.facts.workload(workload), options)
        short = short_options(card, options)
        if question.limit_bytes is None and bench.machine.backend in HOST_BACKENDS:
            question = replace(question, limit_bytes=int(HOST_SHARE * bench.machine.memory_bytes))
        base = limited(bench.plan(workload, short), question.limit_bytes)
        if base.unsupported:
            raise TunemarkError("workload", workload, base.unsupported, exit_code=Exit.UNSUPPORTED)
        series = Series.find("frontier", base, [f"memory {base.limit_memory_bytes}"], bench, again=again)
        return cls(workload, card, short, bench, question, series)

    def search(self) -> str | None:
        """Find all edges; return why it ended early, or None."""
        say(f"{self.workload}: frontier {self.series.study_id}")
        try:
            with self.series.stoppable():
                for length in self._lengths():
                    self._micro_batch_at(length)
        except Stopped as stopped:
            return f"stopped at {stopped}; the same command goes on there"
        except Failed as failed:
            return str(failed)
        return None

    def _lengths(self) -> Sequence[int]:
        """Return the sequence lengths whose largest micro-batch is to be found; the longest one is found here where it is asked for."""
        asked, over, own = sorted(self.question.lengths), self.question.over, self.card.data.sequence_length
        if over is Over.MICRO_BATCH:
            return asked or [own]
        longest = self._longest(self.card.batch.micro_batch if over is Over.SEQUENCE_LENGTH else 1)
        if over is Over.SEQUENCE_LENGTH or longest is None:
            return []
        doubled = [own * 2**power for power in range(32) if own * 2**power <= longest]
        return asked or doubled or [longest]

    def _longest(self, micro_batch: int) -> int | None:
        unit = min(UNIT_TOKENS, self.card.data.sequence_length)
        context = self.bench.facts.model(self.card.model).context_length
        before = len(self.series.done)
        found = largest(
            lambda units: self._fits(units * unit, micro_batch),
            self.card.data.sequence_length // unit,
            max(1, context // unit),
            self.question.within,
        )
        longest = None if found.fits is None else found.fits * unit
        failed = None if found.fails is None else f"{found.fails * unit} tokens"
        tries = len(self.series.done) - before
        self.edges.append(Edge(longest or unit, micro_batch if longest else None, failed, self._peak(longest or 0, micro_batch), tries))
        return longest

    def _micro_batch_at(self, length: int) -> None:
        before = len(self.series.done)
        found: Largest = largest(lambda rows: self._fits(length, rows), self._guess(length), self.question.most, self.question.within)
        failed = None if found.fails is None else f"{found.fails} rows"
        tries = len(self.series.done) - before
        self.edges.append(Edge(length, found.fits, failed, self._peak(length, found.fits or 0), tries))

    def _guess(self, length: int) -> int:
        """Return where to begin: as many tokens as fitted at the length before, else the card's micro-batch."""
        known = [edge for edge in self.edges if edge.micro_batch]
        return known[-1].sequence_length * (known[-1].micro_batch or 1) // length if known else self.card.batch.micro_batch

    def _point(self, length: int, rows: int) -> Point:
        return Point((("data.sequence_length", str(length)), ("batch.micro_batch", str(rows))))

    def _name(self, length: int, rows: int, plan: Resolved) -> str:
        limit = plan.limit_memory_bytes
        return self._point(length, rows).text + (f", memory limited to {formats.gib(limit)} a process" if limit else "")

    def _fits(self, length: int, rows: int) -> bool:
        plan = limited(self.bench.plan(self.workload, self._point(length, rows).applied(self.options)), self.question.limit_bytes)
        done = self.series.run(self._name(length, rows, plan), plan)
        outcome = done.record.submission.outcome
        if done.status is not Status.OK and done.status not in DOES_NOT_FIT:
            raise Failed(f"{done.point} ended with status {done.status.value} ({outcome.message}); {outcome.fix or 'mend that first'}")
        if done.status is not Status.OK:
            return False
        peak, limit = derive(done.record.submission).peak_memory.peak_bytes, self.question.limit_bytes
        # A process is only stopped in allocating: what it reads into memory besides counts too.
        if peak is None or limit is None or peak <= limit:
            return True
        say(f"{done.point} ran, but its peak of {formats.gib(peak)} is over the limit of {formats.gib(limit)}: it does not fit")
        return False

    def _peak(self, length: int, rows: int) -> int | None:
        """Return the peak memory of a try that was made, or None."""
        start = self._point(length, rows).text
        for done in self.series.done:
            if done.point == start or done.point.startswith(f"{start}, memory"):
                return derive(done.record.submission).peak_memory.peak_bytes
        return None


def short_options(card: WorkloadCard, options: Options) -> Options:
    """Return options of a try: few steps on full rows, nothing beside training. What that changes is declared as overrides."""
    sets = []
    if card.data.evaluation_rows:
        sets.append("data.evaluation_rows=0")
    text = options.data not in {"card", DataSource.SYNTHETIC.value}
    if card.task is Task.SEQUENCE_CLASSIFICATION or (text and not card.data.packing):
        sets.append("data.padding=static")
    if card.batch.gradient_accumulation > TRY_STEPS - 1:
        sets.append(f"batch.gradient_accumulation={TRY_STEPS - 1}")
    elsewhere = options.data == "card" and card.data.source is not DataSource.SYNTHETIC
    return replace(
        options,
        overrides=(*sets, *options.overrides),
        data="synthetic" if elsewhere else options.data,
        max_steps=options.max_steps or TRY_STEPS,
        until_ci=None,
        probe=False,
        gates=False,
        save=False,
    )


def limited(resolved: Resolved, limit_bytes: int | None) -> Resolved:
    """Return the plan with the memory limit of its processes.

    Raises
    ------
    TunemarkError
        For a device with memory of its own, which no limit on a process reaches.

    """
    device = resolved.plan.device
    if device.backend not in HOST_BACKENDS:
        if limit_bytes is not None:
            fix = f"only the host's memory can be limited; a {device.backend.value} device is tried up to its own"
            raise TunemarkError("--limit-memory", formats.gib(limit_bytes), fix)
        return resolved
    return replace(resolved, limit_memory_bytes=None if limit_bytes is None else limit_bytes // (device.count // device.nodes))
