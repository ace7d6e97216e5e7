"""The tokens, documents and rows of a step: the harness counts what it trains on, and the gate counts synthetic rows again."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tunemark.schema.records.plan import DataSettings
from tunemark.schema.vocabulary import Padding, Task


class Counts(NamedTuple):
    """Work in a micro-batch, or summed over a step, by the columns of the step log."""

    slot_tokens: int = 0
    real_tokens: int = 0
    supervised_tokens: int = 0
    documents: int = 0
    rows: int = 0

    def plus(self, other: "Counts") -> "Counts":
        """Return the sum of each count."""
        return Counts(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class Row(NamedTuple):
    """A row of tokens."""

    pieces: Sequence[int]
    """Lengths of its pieces: one document, or in a packed row documents and parts of them."""
    documents: int = 1
    """Documents that begin in it."""


def packed_rows(lengths: Iterable[int], row_tokens: int) -> Iterator[Row]:
    """Yield the full rows of documents of some lengths that are laid end to end; an incomplete last row is dropped.

    A document that does not fit is cut, and its rest begins the next row. No document is read before it is needed.
    """
    pieces, documents, filled = list[int](), 0, 0
    for length in lengths:
        left = length
        documents += 1
        while left:
            pieces.append(min(left, row_tokens - filled))
            left, filled = left - pieces[-1], filled + pieces[-1]
            if filled == row_tokens:
                yield Row(pieces, documents)
                pieces, documents, filled = [], 0, 0


def counts_of(data: DataSettings, task: Task, rows: Sequence[Row]) -> Counts:
    """Return the counts of the rows of one micro-batch."""
    lengths = [sum(row.pieces) for row in rows]
    width = data.sequence_length if data.padding is Padding.STATIC else max(lengths)
    # The first token of a piece has no context, so it is not supervised. Without borders a row is one piece. A class is predicted once per row.
    pieces = sum(len(row.pieces) for row in rows) if data.document_borders else len(rows)
    supervised = sum(lengths) - pieces if task is Task.CAUSAL_LM else len(rows)
    return Counts(len(rows) * width, sum(lengths), supervised, sum(row.documents for row in rows), len(rows))
