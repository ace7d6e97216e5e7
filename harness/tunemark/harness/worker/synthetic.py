"""Synthetic samples, without end and from a seed: random, or with structure that a model can learn."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tunemark.schema.errors import did_you_mean

Sample = dict[str, Any]
SPECIAL_TOKENS = 4
"""Ids below are kept free: padding is 0."""
SUCCESSORS = 4
FREQUENT = 0.85
KEYWORDS = 24
KEYWORD_RATE = 0.25
SHORTEST = 4


def random_tokens(vocabulary: int, length: int, labels: int | None, seed: int) -> Iterator[Sample]:  # noqa: ARG001 - one signature for all
    """Full rows of uniformly random tokens: nothing to learn, the loss stays at ln(vocabulary)."""
    rng = np.random.default_rng(seed)
    while True:
        yield {"input_ids": rng.integers(SPECIAL_TOKENS, vocabulary, length)}


def markov_tokens(vocabulary: int, length: int, labels: int | None, seed: int) -> Iterator[Sample]:  # noqa: ARG001 - one signature for all
    """Full rows from a first-order Markov chain in which each token has four likely successors: the loss can fall."""
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
    """Documents of different length with a class each: a quarter of their tokens are keywords of the class."""
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


def random_documents(vocabulary: int, length: int, labels: int | None, seed: int) -> Iterator[Sample]:  # noqa: ARG001 - one signature for all
    """Documents of random tokens and different length, a sixth of a row on average: to be packed."""
    rng = np.random.default_rng(seed)
    while True:
        size = int(np.clip(rng.lognormal(np.log(length / 8), 0.8), SHORTEST, length))
        yield {"input_ids": rng.integers(SPECIAL_TOKENS, vocabulary, size)}


GENERATORS = {
    "random-tokens": random_tokens,
    "random-documents": random_documents,
    "markov-tokens": markov_tokens,
    "keyword-classes": keyword_classes,
}


def synthetic(name: str, vocabulary: int, length: int, labels: int | None, seed: int) -> Iterator[Sample]:
    """Return an endless stream of samples by generator name."""
    if name not in GENERATORS:
        msg = f"data.name {name!r} is no generator of synthetic samples; {did_you_mean(name, GENERATORS)}"
        raise ValueError(msg)
    return GENERATORS[name](vocabulary, length, labels, seed)
