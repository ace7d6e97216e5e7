"""What a frontier, a comparison and a prediction look like on a terminal."""

import math
from collections.abc import Sequence

from rich.table import Table

from tunemark.harness.studies.arms import BreakEven, Compared
from tunemark.harness.studies.frontier import Edge
from tunemark.schema import formats
from tunemark.schema.statistics.comparison import SIGN_TEST_PAIRS, Change
from tunemark.schema.statistics.intervals import Interval
from tunemark.schema.statistics.job_prediction import Prediction


def edges_table(edges: Sequence[Edge]) -> Table:
    """Return the edges of a frontier as a table."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for head in ("sequence length", "largest micro-batch", "first that failed", "peak memory", "tries"):
        table.add_column(head, justify="right")
    for edge in edges:
        table.add_row(
            str(edge.sequence_length),
            str(edge.micro_batch) if edge.micro_batch else "none",
            edge.first_failed or formats.MISSING,
            formats.gib(edge.peak_memory_bytes) if edge.peak_memory_bytes else formats.MISSING,
            str(edge.tries),
        )
    return table


def verdict(result: Compared) -> list[str]:
    """Return what may be said of B against A, in sentences."""
    lines = [f"B is {result.b}, A is {result.a}: {result.pairs} pairs"]
    if result.throughput:
        lines.append(f"throughput: {_said(result.throughput, 'faster', 'slower')}")
        if result.pairs >= SIGN_TEST_PAIRS:
            lines.append(f"sign-flip test of throughput: p = {result.throughput.sign_p:.3f}")
    if result.step_time:
        lines.append(f"median step: {_said(result.step_time, 'longer', 'shorter')}")
    if result.memory:
        lines.append(f"peak memory: {_said(result.memory, 'higher', 'lower')}")
    if result.loss:
        lines.append(f"loss after equal tokens: {_said(result.loss, 'higher', 'lower')}")
    if result.accuracy:
        word = "B differs" if result.accuracy.significant else "no significant difference"
        points, error = 100 * result.accuracy.difference, 100 * result.accuracy.standard_error
        lines.append(f"accuracy: {word}: {points:+.1f} points (standard error {error:.1f}; within two of them is no difference)")
    if result.loss_changed:
        lines.append("B does not train as A does: its speed is that of another training")
    return [*lines, *map(_earned_back, result.break_even)]


def _earned_back(found: BreakEven) -> str:
    said = f"compiling with a {found.cache} cache"
    if not found.pairs:
        return f"{said}: not measured{'; --cold asks for it' if found.cache == 'cold' else ''}"
    if found.steps is None:
        return f"{said}: never earned back, the median step of B is no shorter"
    of = f"({found.pairs} pair{'s' * (found.pairs != 1)})"
    return (
        f"{said}: earned back after {math.ceil(round(found.steps, 3)):,} steps {of}"
        if found.steps
        else f"{said}: B needs no longer for it {of}"
    )


def _said(change: Change, higher: str, lower: str) -> str:
    if change.verdict == "too few pairs":
        return f"{change.change.value:+.1%}, and too few pairs for an interval"
    word = {"higher": f"B is {higher}", "lower": f"B is {lower}"}.get(change.verdict, change.verdict)
    return f"{word}: {change.change.value:+.1%} (95% interval {change.change.low:+.1%} to {change.change.high:+.1%})"


def prediction_table(found: Prediction, price: str | None) -> Table:
    """Return the parts of a whole job as a table."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for head in ("", "predicted", "95% interval"):
        table.add_column(head)
    table.add_row("optimizer steps", f"{found.steps:,}", "")
    table.add_row("a step", formats.duration(found.step_time_s.value), _between(found.step_time_s))
    table.add_row("paid once", formats.duration(found.once_s), "")
    table.add_row("training", formats.duration(found.train_s.value), _between(found.train_s))
    table.add_row("evaluations", formats.duration(found.evaluation_s), "")
    table.add_row("the whole job", formats.duration(found.wall_s.value), _between(found.wall_s))
    if found.usd:
        usd = found.usd
        table.add_row("cost", formats.usd(usd.value), f"{formats.usd(usd.low)} to {formats.usd(usd.high)}")
    if price:
        table.add_row("price", price, "")
    return table


def _between(interval: Interval) -> str:
    return f"{formats.duration(interval.low)} to {formats.duration(interval.high)}"
