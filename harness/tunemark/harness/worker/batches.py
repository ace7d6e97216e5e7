"""Samples -> micro-batches of tensors with their four token counts, made on the host before the device sees them."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np

from tunemark.harness.worker import text
from tunemark.harness.worker.packing import pack, packed_tensors
from tunemark.harness.worker.synthetic import Sample, synthetic
from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import DataSource, Padding, Task

IGNORED = -100
"""Label of positions that are not supervised."""
PADDING_TOKEN = 0
EVALUATION_SEED = 1_000_003


class Counts(NamedTuple):
    """Work in a micro-batch, or summed over a step."""

    slot_tokens: int = 0
    real_tokens: int = 0
    supervised_tokens: int = 0
    documents: int = 0
    rows: int = 0

    def plus(self, other: "Counts") -> "Counts":
        """Return the sum, count by count."""
        return Counts(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tensors of shape (rows, tokens) as keyword arguments of the model, and their counts."""

    tensors: dict[str, Any]
    counts: Counts
    everywhere: Counts
    """Of the micro-batches that all processes work on at this time."""


class Shape(NamedTuple):
    """What batches need to know of a model."""

    window: int | None = None
    """Attention span, where it is limited."""
    mixed_windows: bool = False
    """Whether it is limited in some layers only."""


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of a run."""

    training: Iterator[Sample]
    training_rows: int | None
    """Rows of one epoch; None when there is no end."""
    evaluation: list[Sample]
    evaluation_split: str
    """Which rows these are."""
    vocabulary: int | None
    """Size of a tokenizer trained here; None keeps the model card's."""


def load_samples(plan: Plan, vocabulary: int, data_from: str | None, weights_from: str | None) -> Samples:
    """Return the samples of a plan. `vocabulary` is the model's."""
    data = plan.data
    if data.source is DataSource.SYNTHETIC:
        make = (data.name, vocabulary, data.sequence_length, plan.model.labels)
        seed = plan.measurement.seed
        training = synthetic(*make, seed)
        if data.training_rows is not None:
            training = cycle(list(islice(training, data.training_rows)))
        held_out = list(islice(synthetic(*make, seed + EVALUATION_SEED), data.evaluation_rows))
        return Samples(training, data.training_rows, held_out, "synthetic rows from another seed", None)
    if data_from is None:
        msg = "a plan with text needs the place of the data"
        raise ValueError(msg)
    return _text_samples(plan, vocabulary, data_from, weights_from)


def _text_samples(plan: Plan, vocabulary: int, data_from: str, weights_from: str | None) -> Samples:
    import transformers  # noqa: PLC0415

    data = plan.data
    rows = text.read_rows(data.source, data_from, "train", data.template)[: data.training_rows]
    split, all_held_out = text.read_split(data.source, data_from, "evaluation", data.template) if data.evaluation_rows else ("", [])
    held_out = all_held_out[: data.evaluation_rows]
    trained = data.tokenizer == "word-level"
    tokenizer = text.word_level_tokenizer(rows, vocabulary) if trained else transformers.AutoTokenizer.from_pretrained(weights_from)
    labels = text.label_ids(rows, plan.model.labels) if plan.model.labels else None
    training = text.tokenize(tokenizer, rows, data.sequence_length, labels)
    evaluation = text.tokenize(tokenizer, held_out, data.sequence_length, labels) if held_out else []
    return Samples(
        _shuffled(training, plan.measurement.seed),
        rows_of_an_epoch(plan, training),
        evaluation,
        f"{'all' if len(held_out) == len(all_held_out) else 'the first'} rows of {split}",
        len(tokenizer) if trained else None,
    )


def rows_of_an_epoch(plan: Plan, samples: list[Sample]) -> int:
    """Return the rows that all samples make: one each, or packed as many as their tokens fill."""
    if not plan.data.packing:
        return len(samples)
    return max(1, sum(len(sample["input_ids"]) for sample in samples) // plan.data.sequence_length)


def _shuffled(samples: list[Sample], seed: int) -> Iterator[Sample]:
    rng = np.random.default_rng(seed)
    while True:
        for index in rng.permutation(len(samples)):
            yield samples[index]


class Share(NamedTuple):
    """Which part of the stream of samples a process takes."""

    rank: int = 0
    ranks: int = 1


ALONE = Share()


def micro_batches(plan: Plan, samples: Iterator[Sample], model: Shape, share: Share = ALONE) -> Iterator[MicroBatch]:
    """Yield a process' micro-batches from an endless stream of samples, or until a finite one ends.

    All processes read one stream and take turns, so each knows what the others have without asking: as many
    micro-batches as there are processes make up one share for all.
    """
    rows: Iterator[Any] = pack(samples, plan.data.sequence_length) if plan.data.packing else samples
    while taken := list(islice(rows, plan.batch.micro_batch * share.ranks)):
        shares = [taken[start : start + plan.batch.micro_batch] for start in range(0, len(taken), plan.batch.micro_batch)]
        everywhere = Counts()
        for part in shares:
            everywhere = everywhere.plus(counts_of(plan, part))
        # At the end of a finite stream the last process may have nothing left.
        own = shares[min(share.rank, len(shares) - 1)]
        yield MicroBatch(tensors_of(plan, own, model), counts_of(plan, own), everywhere)


def counts_of(plan: Plan, rows: list[Any]) -> Counts:
    """Return the counts of rows that make one micro-batch."""
    if plan.data.packing:
        length = plan.data.sequence_length
        # The first token of a piece is predicted from nothing; without borders a row is one piece.
        pieces = sum(len(row.pieces) for row in rows) if plan.data.document_borders else len(rows)
        return Counts(len(rows) * length, len(rows) * length, len(rows) * length - pieces, sum(row.documents for row in rows), len(rows))
    lengths = [len(sample["input_ids"]) for sample in rows]
    width = _width(plan, lengths)
    # The first token of a row is predicted from nothing; a class is predicted once a row.
    supervised = sum(lengths) - len(rows) if plan.model.task is Task.CAUSAL_LM else len(rows)
    return Counts(len(rows) * width, sum(lengths), supervised, len(rows), len(rows))


def tensors_of(plan: Plan, rows: list[Any], model: Shape) -> dict[str, Any]:
    """Return the model's keyword arguments: rows padded to one rectangle, or packed.

    Padding is static (to `sequence_length`), dynamic (to the longest of these), or not needed.
    """
    import torch  # noqa: PLC0415

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
        # Only where it is needed: an all-ones mask may cost a faster attention kernel.
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
