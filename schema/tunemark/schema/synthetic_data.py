"""Synthetic samples, endless and from a seed: the harness trains on them, and the gate makes them again to check a step log."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Sample = dict[str, Any]
"""`input_ids`, an array of token ids, and for classification `label`."""
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


GENERATORS: dict[str, Callable[[int, int, int | None, int], Iterator[Sample]]] = {
    "random-tokens": random_tokens,
    "random-documents": random_documents,
    "markov-tokens": markov_tokens,
    "keyword-classes": keyword_classes,
}
FULL_ROWS = {"random-tokens", "markov-tokens"}
"""Generators whose rows all have the length of the plan."""
UNIFORM = {"random-tokens", "random-documents"}
"""Generators whose tokens are uniformly random."""
