"""The samples of a run, from text or made from a seed, and the counts of its steps.

The harness trains on synthetic samples and counts what it trains on. The gate makes and counts them again to check a step log.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tunemark.schema.records.plan import DataSettings
from tunemark.schema.vocabulary import Padding, Task

Sample = dict[str, Any]
"""`input_ids`, an array of token ids, and for classification `label`."""

# Synthetic samples, endless and from a seed

SPECIAL_TOKENS = 4
"""Ids below are not generated: padding is 0."""
SUCCESSORS = 4
FREQUENT = 0.85
KEYWORDS = 24
KEYWORD_RATE = 0.25
SHORTEST = 4


def random_tokens(vocabulary: int, length: int, labels: int | None, seed: int) -> Iterator[Sample]:  # noqa: ARG001 - one signature for all
    """Yield full rows of uniformly random tokens: there is nothing to learn, the loss stays at ln(vocabulary)."""
    rng = np.random.default_rng(seed)
    while True:
        yield {"input_ids": rng.integers(SPECIAL_TOKENS, vocabulary, length)}


def random_documents(vocabulary: int, length: int, labels: int | None, seed: int) -> Iterator[Sample]:  # noqa: ARG001 - one signature for all
    """Yield documents of random tokens and different length, a sixth of a row on average, for packing."""
    rng = np.random.default_rng(seed)
    while True:
        size = int(np.clip(rng.lognormal(np.log(length / 8), 0.8), SHORTEST, length))
        yield {"input_ids": rng.integers(SPECIAL_TOKENS, vocabulary, size)}


def markov_tokens(vocabulary: int, length: int, labels: int | None, seed: int) -> Iterator[Sample]:  # noqa: ARG001 - one signature for all
    """Yield full rows from a first-order Markov chain in which each token has four likely successors: the loss can fall."""
    likely = np.random.default_rng(0).integers(SPECIAL_TOKENS, vocabulary, (vocabulary, SUCCESSORS))
    rng = np.random.default_rng(seed)
    while True:
        row = np.empty(length, dtype=np.int64)
        choices, chances, others = rng.integers(0, SUCCESSORS, length), rng.random(length), rng.integers(SPECIAL_TOKENS, vocabulary, length)
        row[0] = others[0]
        for place in range(1, length):
            row[place] = likely[row[place - 1], choices[place]] if chances[place] < FREQUENT else others[place]
        yield {"input_ids": row}


def keyword_classes(vocabulary: int, length: int, labels: int | None, seed: int) -> Iterator[Sample]:
    """Yield documents of different length, each with a class: a quarter of their tokens are keywords of the class."""
    classes = labels or 2
    keywords = np.random.default_rng(0).permutation(np.arange(SPECIAL_TOKENS, vocabulary))[: classes * KEYWORDS].reshape(classes, KEYWORDS)
    rng = np.random.default_rng(seed)
    while True:
        label = int(rng.integers(classes))
        size = int(np.clip(rng.gamma(3.0, length / 9), SHORTEST, length))
        row = rng.integers(SPECIAL_TOKENS, vocabulary, size)
        marked = rng.random(size) < KEYWORD_RATE
        row[marked] = rng.choice(keywords[label], int(marked.sum()))
        yield {"input_ids": row, "label": label}


Generator = Callable[[int, int, int | None, int], Iterator[Sample]]
_MADE: tuple[Generator, ...] = (random_tokens, random_documents, markov_tokens, keyword_classes)
GENERATORS = {make.__name__.replace("_", "-"): make for make in _MADE}
FULL_ROWS = {"random-tokens", "markov-tokens"}
"""Generators whose rows all have the length of the plan."""
UNIFORM = {"random-tokens", "random-documents"}
"""Generators whose tokens are uniformly random."""


# Tokens, documents and rows of a step


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
