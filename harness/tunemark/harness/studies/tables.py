"""What a frontier and a comparison look like on a terminal."""

from collections.abc import Sequence

from rich.table import Table

from tunemark.harness.studies.frontier import Edge
from tunemark.schema import formats


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
