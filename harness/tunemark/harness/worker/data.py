"""Turn samples into micro-batches of tensors with their token counts, on the host, before the device sees them.

Samples are synthetic (random, or with structure that a model can learn) or text. Rows are padded, or packed: documents are
laid end to end into full rows, and none attends to another. The document that does not fit is cut; its rest begins the next
row and is not counted again. The first token of each piece has no context, so it is not supervised.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from tunemark.harness.worker import sample_files as text
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import DataSource, Padding, Task

IGNORED = -100
"""Label of positions that are not supervised."""
PADDING_TOKEN = 0
EVALUATION_SEED = 1_000_003
Ids = NDArray[np.int64]
Sample = dict[str, Any]


class Counts(NamedTuple):
    """Work in a micro-batch, or summed over a step."""

    slot_tokens: int = 0
    real_tokens: int = 0
    supervised_tokens: int = 0
    documents: int = 0
    rows: int = 0

    def plus(self, other: "Counts") -> "Counts":
        """Return the sum of each count."""
        return Counts(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tensors of shape (rows, tokens) as keyword arguments of the model, and their counts."""

    tensors: dict[str, Any]
    counts: Counts
    everywhere: Counts
    """Counts summed over the current micro-batch of every process."""


class Shape(NamedTuple):
    """The properties of a model that its batches depend on."""

    window: int | None = None
    """Attention span, where it is limited."""
    mixed_windows: bool = False
    """True if only some layers are limited."""


def shape_of(plan: Plan, card: ModelCard) -> Shape:
    """Return the shape of a model. A window counts where rows are longer than it."""
    limited = card.sliding_window is not None and card.sliding_window < plan.data.sequence_length
    return Shape(card.sliding_window if limited else None, mixed_windows=card.family == "gemma2")


def micro_batches(plan: Plan, samples: Iterator[Sample], model: Shape, rank: int = 0, ranks: int = 1) -> Iterator[MicroBatch]:
    """Yield the micro-batches of data-parallel process `rank` from a stream of samples, until it ends.

    All `ranks` processes read the same stream and take turns, so each knows the others' counts without communication.
    """
    rows: Iterator[Any] = pack(samples, plan.data.sequence_length) if plan.data.packing else samples
    while taken := list(islice(rows, plan.batch.micro_batch * ranks)):
        parts = [taken[start : start + plan.batch.micro_batch] for start in range(0, len(taken), plan.batch.micro_batch)]
        counts = [counts_of(plan, part) for part in parts]
        # At the end of a finite stream the last process may have nothing left.
        own = min(rank, len(parts) - 1)
        yield MicroBatch(tensors_of(plan, parts[own], model), counts[own], everywhere=reduce(Counts.plus, counts))


def counts_of(plan: Plan, rows: list[Any]) -> Counts:
    """Return the counts of the rows of one micro-batch."""
    if plan.data.packing:
        tokens = len(rows) * plan.data.sequence_length
        # The first token of a piece has no context, so it is not supervised. Without borders a row is one piece.
        pieces = sum(len(row.pieces) for row in rows) if plan.data.document_borders else len(rows)
        return Counts(tokens, tokens, tokens - pieces, sum(row.documents for row in rows), len(rows))
    lengths = [len(sample["input_ids"]) for sample in rows]
    # The first token of a row has no context, so it is not supervised. A class is predicted once per row.
    supervised = sum(lengths) - len(rows) if plan.model.task is Task.CAUSAL_LM else len(rows)
    return Counts(len(rows) * _width(plan, lengths), sum(lengths), supervised, len(rows), len(rows))


def tensors_of(plan: Plan, rows: list[Any], model: Shape) -> dict[str, Any]:
    """Return the model's keyword arguments for rows, padded to one rectangle or packed."""
    if plan.data.packing and not plan.data.document_borders:
        ids = np.stack([row.ids for row in rows])
        return {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(ids.copy())}
    if plan.data.packing:
        return packed_tensors(rows, plan.model.attention, model.window, mixed_windows=model.mixed_windows)
    lengths = [len(sample["input_ids"]) for sample in rows]
    width = _width(plan, lengths)
    ids = np.full((len(rows), width), PADDING_TOKEN, dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, sample in enumerate(rows):
        ids[row, : lengths[row]] = sample["input_ids"]
        mask[row, : lengths[row]] = 1
    tensors = {"input_ids": torch.from_numpy(ids)}
    if min(lengths) < width:
        # Only where needed: a mask of ones may prevent a faster attention kernel.
        tensors["attention_mask"] = torch.from_numpy(mask)
    if plan.model.task is Task.CAUSAL_LM:
        tensors["labels"] = torch.from_numpy(np.where(mask == 1, ids, IGNORED))
    else:
        tensors["labels"] = torch.tensor([sample["label"] for sample in rows])
    return tensors


def _width(plan: Plan, lengths: list[int]) -> int:
    if plan.data.padding is Padding.NONE and min(lengths) < max(lengths):
        msg = f"a micro-batch has rows of {min(lengths)} to {max(lengths)} tokens and data.padding is none; give dynamic or static"
        raise ValueError(msg)
    return plan.data.sequence_length if plan.data.padding is Padding.STATIC else max(lengths)


# Packing


class PackedRow(NamedTuple):
    """A full row: `ids` and `places` have shape (length,), `pieces` holds the lengths of its pieces."""

    ids: Ids
    places: Ids
    """Position of each token in its piece: a piece begins where it is 0."""
    pieces: list[int]
    documents: int
    """Documents that begin in this row."""


def pack(samples: Iterator[Sample], length: int) -> Iterator[PackedRow]:
    """Yield full rows of `length` tokens from a stream of documents; an incomplete last row is dropped."""
    ids, pieces, documents, filled = [], [], 0, 0
    for sample in samples:
        rest = np.asarray(sample["input_ids"], dtype=np.int64)
        documents += 1
        while len(rest):
            piece, rest = rest[: length - filled], rest[length - filled :]
            ids.append(piece)
            pieces.append(len(piece))
            filled += len(piece)
            if filled == length:
                yield PackedRow(np.concatenate(ids), np.concatenate([np.arange(n) for n in pieces]), pieces, documents)
                ids, pieces, documents, filled = [], [], 0, 0


def packed_mask(rows: list[PackedRow], window: int | None) -> NDArray[np.bool_]:
    """Return the attention mask, shape (rows, 1, length, length): backwards within a piece, at most `window` tokens."""
    places = np.stack([row.places for row in rows])
    piece = (places == 0).cumsum(axis=1)
    index = np.arange(places.shape[1])
    seen: NDArray[np.bool_] = (piece[:, :, None] == piece[:, None, :]) & (index[:, None] >= index[None, :])
    if window is not None:
        seen &= index[:, None] - index[None, :] < window
    return seen[:, None]


def packed_tensors(rows: list[PackedRow], attention: str, window: int | None, *, mixed_windows: bool) -> dict[str, Any]:
    """Return the model's keyword arguments for packed rows.

    Flash attention infers the pieces from restarting positions, in a batch of one row only: rows are laid end to end. Other
    kernels get an explicit mask; models that mix limited and unlimited layers get one mask for each kind.
    """
    ids, places = np.stack([row.ids for row in rows]), np.stack([row.places for row in rows])
    arrays = {"input_ids": ids, "position_ids": places, "labels": np.where(places == 0, IGNORED, ids)}
    if attention.startswith("flash_attention"):
        return {name: torch.from_numpy(values.reshape(1, -1)) for name, values in arrays.items()}
    tensors: dict[str, Any] = {name: torch.from_numpy(values) for name, values in arrays.items()}
    if mixed_windows:
        masks = {"full_attention": packed_mask(rows, None), "sliding_attention": packed_mask(rows, window)}
        tensors["attention_mask"] = {name: _kernel_mask(mask, attention) for name, mask in masks.items()}
    else:
        tensors["attention_mask"] = _kernel_mask(packed_mask(rows, window), attention)
    return tensors


def _kernel_mask(seen: NDArray[np.bool_], attention: str) -> Any:  # noqa: ANN401 - a torch tensor
    """Return a mask for the kernel: booleans for sdpa, values that are added to the scores for eager."""
    mask = torch.from_numpy(seen)
    return mask if attention == "sdpa" else torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)


# Samples


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of a run."""

    training: Iterator[Sample]
    training_rows: int | None
    """Rows of one epoch; None when there is no end."""
    evaluation: list[Sample]
    evaluation_split: str
    """Name of the evaluation rows."""
    vocabulary: int | None
    """Size of a tokenizer trained here; None keeps the model card's."""
    lengths: dict[str, Any] | None = None
    """Lengths of the training rows, as `submission.row_lengths` holds them; None when there is no end."""


def load_samples(plan: Plan, vocabulary: int, data_from: str | None, weights_from: str | None) -> Samples:
    """Return the samples of a plan. `vocabulary` is the model's."""
    data = plan.data
    if data.source is DataSource.SYNTHETIC:
        generate, seed = GENERATORS[data.name], plan.measurement.seed
        training = generate(vocabulary, data.sequence_length, plan.model.labels, seed)
        lengths = None
        if data.training_rows is not None:
            finite = list(islice(training, data.training_rows))
            training, lengths = cycle(finite), lengths_of(finite)
        others = generate(vocabulary, data.sequence_length, plan.model.labels, seed + EVALUATION_SEED)
        held_out = list(islice(others, data.evaluation_rows))
        return Samples(training, data.training_rows, held_out, "synthetic rows from another seed", None, lengths)
    if data_from is None:
        msg = "a plan with text needs the place of the data"
        raise ValueError(msg)
    return _text_samples(plan, vocabulary, data_from, weights_from)


def _text_samples(plan: Plan, vocabulary: int, data_from: str, weights_from: str | None) -> Samples:
    data = plan.data
    rows = text.read_split(data.source, data_from, "train", data.template)[1][: data.training_rows]
    split, all_held_out = text.read_split(data.source, data_from, "evaluation", data.template) if data.evaluation_rows else ("", [])
    held_out = all_held_out[: data.evaluation_rows]
    trained = data.tokenizer == "word-level"
    tokenizer = text.word_level_tokenizer(rows, vocabulary) if trained else transformers.AutoTokenizer.from_pretrained(weights_from)
    labels = text.label_ids(rows, plan.model.labels) if plan.model.labels else None
    training = text.tokenize(tokenizer, rows, data.sequence_length, labels)
    return Samples(
        _shuffled(training, plan.measurement.seed),
        rows_of_an_epoch(plan, training),
        text.tokenize(tokenizer, held_out, data.sequence_length, labels) if held_out else [],
        f"{'all' if len(held_out) == len(all_held_out) else 'the first'} rows of {split}",
        len(tokenizer) if trained else None,
        lengths_of(training),
    )


def lengths_of(samples: list[Sample]) -> dict[str, Any]:
    """Return the number of samples and the distribution of their lengths in tokens."""
    lengths = np.array([len(sample["input_ids"]) for sample in samples])
    shares = {"minimum": 0.0, "median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "maximum": 1.0}
    quantiles = np.quantile(lengths, list(shares.values()), method="inverted_cdf")
    return {"rows": len(lengths), "mean": float(lengths.mean())} | dict(zip(shares, map(int, quantiles), strict=True))


def rows_of_an_epoch(plan: Plan, samples: list[Sample]) -> int:
    """Return the rows that all samples make: one each, or the packed rows that their tokens fill."""
    if not plan.data.packing:
        return len(samples)
    return max(1, sum(len(sample["input_ids"]) for sample in samples) // plan.data.sequence_length)


def _shuffled(samples: list[Sample], seed: int) -> Iterator[Sample]:
    rng = np.random.default_rng(seed)
    while True:
        for index in rng.permutation(len(samples)):
            yield samples[index]


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


GENERATORS = {
    "random-tokens": random_tokens,
    "random-documents": random_documents,
    "markov-tokens": markov_tokens,
    "keyword-classes": keyword_classes,
}
