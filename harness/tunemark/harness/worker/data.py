"""Turn samples into micro-batches of tensors with their token counts, on the host, before the device sees them.

Samples are synthetic (random, or with structure that a model can learn) or text. Rows are padded, or packed: documents are
laid end to end into full rows, and none attends to another. The document that does not fit is cut; its rest begins the next
row and is not counted again. The first token of each piece has no context, so it is not supervised.

A thread prepares the micro-batches of coming steps.
"""

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce
from itertools import count, cycle, islice
from typing import Any, NamedTuple, Self

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from tunemark.harness.vendors.protocol import Device
from tunemark.harness.worker import sample_files as text
from tunemark.schema.records.plan import Plan
from tunemark.schema.samples import GENERATORS, Counts, Row, Sample, counts_of, packed_rows
from tunemark.schema.vocabulary import VARLEN, Backend, DataSource, Padding, Task

IGNORED = -100
"""Label of positions that are not supervised, as in transformers."""
PADDING_TOKEN = 0
EVALUATION_SEED = 1_000_003
Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tensors of shape (rows, tokens) as keyword arguments of the model, and their counts."""

    tensors: dict[str, Any]
    counts: Counts
    everywhere: Counts
    """Counts summed over the current micro-batch of every process."""


def micro_batches(plan: Plan, samples: Iterator[Sample], rank: int = 0, ranks: int = 1) -> Iterator[MicroBatch]:
    """Yield the micro-batches of data-parallel process `rank` from a stream of samples, until it ends.

    All `ranks` processes read the same stream and take turns, so each knows the others' counts without communication.
    """
    rows: Iterator[Any] = pack(samples, plan.data.sequence_length) if plan.data.packing else samples
    while taken := list(islice(rows, plan.batch.micro_batch * ranks)):
        parts = [taken[start : start + plan.batch.micro_batch] for start in range(0, len(taken), plan.batch.micro_batch)]
        laid = [[row.laid if isinstance(row, PackedRow) else Row((len(row["input_ids"]),)) for row in part] for part in parts]
        counts = [counts_of(plan.data, plan.model.task, each) for each in laid]
        # At the end of a finite stream the last process may have nothing left.
        own = min(rank, len(parts) - 1)
        yield MicroBatch(tensors_of(plan, parts[own]), counts[own], everywhere=reduce(Counts.plus, counts))


def tensors_of(plan: Plan, rows: list[Any]) -> dict[str, Any]:
    """Return the model's keyword arguments for rows, padded to one rectangle or packed."""
    if plan.data.packing and not plan.data.document_borders:
        ids = np.stack([row.ids for row in rows])
        return {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(ids.copy()), **_row_lengths(plan, *ids.shape)}
    if plan.data.packing:
        return packed_tensors(rows, plan.model.attention)
    lengths = [len(sample["input_ids"]) for sample in rows]
    width = plan.data.sequence_length if plan.data.padding is Padding.STATIC else max(lengths)
    ids = np.full((len(rows), width), PADDING_TOKEN, dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, sample in enumerate(rows):
        ids[row, : lengths[row]] = sample["input_ids"]
        mask[row, : lengths[row]] = 1
    tensors: dict[str, Any] = {"input_ids": torch.from_numpy(ids)}
    generative = plan.model.task is Task.CAUSAL_LM
    if generative and (whole := _row_lengths(plan, *ids.shape)):
        # Padding is on the right, where no real token looks. With a mask each layer would wait for the device to find it.
        tensors |= whole
    elif min(lengths) < width:
        # Only where needed: a mask of ones may prevent a faster attention kernel.
        tensors["attention_mask"] = torch.from_numpy(mask)
    labels = torch.from_numpy(np.where(mask == 1, ids, IGNORED)) if generative else torch.tensor([sample["label"] for sample in rows])
    return {**tensors, "labels": labels}


def _row_lengths(plan: Plan, rows: int, length: int) -> dict[str, Any]:
    """Return the lengths of full rows of one piece each, with their padding, for kernels that take lengths."""
    on_neuron = plan.device.backend is Backend.NEURON_XLA
    return {} if on_neuron else piece_lengths(plan.model.attention, np.tile(np.arange(length), (rows, 1)))


def piece_lengths(attention: str, places: Ids) -> dict[str, Any]:
    """Return the ends of all pieces of rows laid end to end, shape (pieces + 1,), and their longest length, by transformers' names.

    `places` are the positions of tokens in their pieces, shape (rows, length). Without lengths transformers infers the pieces from the
    positions, and waits for the device in each layer. The longest length is that of the rows: it limits that of pieces, and as it is the
    same in each step nothing is compiled again for it. Kernels that take masks get nothing.
    """
    if attention != VARLEN and not attention.startswith("flash_attention"):
        return {}
    flat, longest = places.reshape(-1), places.shape[1]
    lengths = torch.from_numpy(np.append(np.flatnonzero(flat == 0), flat.size).astype(np.int32))
    return {"cu_seq_lens_q": lengths, "cu_seq_lens_k": lengths, "max_length_q": longest, "max_length_k": longest}


# Packing


class PackedRow(NamedTuple):
    """A full row."""

    ids: Ids
    """Shape (length,)."""
    laid: Row


def pack(samples: Iterator[Sample], length: int) -> Iterator[PackedRow]:
    """Yield full rows of `length` tokens from a stream of documents; an incomplete last row is dropped."""
    taken = np.empty(0, dtype=np.int64)

    def lengths() -> Iterator[int]:
        nonlocal taken
        for sample in samples:
            taken = np.concatenate([taken, np.asarray(sample["input_ids"], dtype=np.int64)])
            yield len(sample["input_ids"])

    for row in packed_rows(lengths(), length):
        ids, taken = taken[:length], taken[length:]
        yield PackedRow(ids, row)


def packed_tensors(rows: list[PackedRow], attention: str) -> dict[str, Any]:
    """Return the model's keyword arguments for packed rows, tensors of shape (rows, length).

    Documents are kept apart by their lengths where the kernel takes them, else by masks that transformers makes from the positions.
    """
    ids = np.stack([row.ids for row in rows])
    # Position of each token in its piece: a piece begins where it is 0.
    places = np.stack([np.concatenate([np.arange(length) for length in row.laid.pieces]) for row in rows])
    arrays = {"input_ids": ids, "position_ids": places, "labels": np.where(places == 0, IGNORED, ids)}
    tensors: dict[str, Any] = {name: torch.from_numpy(values) for name, values in arrays.items()}
    return tensors | piece_lengths(attention, places)


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
    """Return the samples of a plan. `vocabulary` is the model's; `data_from` the place of text."""
    data, seed = plan.data, plan.measurement.seed
    if data.source is DataSource.SYNTHETIC:
        training, others = (
            GENERATORS[data.name](vocabulary, data.sequence_length, plan.model.labels, each) for each in (seed, seed + EVALUATION_SEED)
        )
        lengths = None
        if data.training_rows is not None:
            finite = list(islice(training, data.training_rows))
            training, lengths = cycle(finite), lengths_of(finite)
        held_out = list(islice(others, data.evaluation_rows))
        return Samples(training, data.training_rows, held_out, "synthetic rows from another seed", None, lengths)
    place = data_from or data.name
    rows = text.read_split(data.source, place, "train", data.template)[1][: data.training_rows]
    split, all_held_out = text.read_split(data.source, place, "evaluation", data.template) if data.evaluation_rows else ("", [])
    held_out = all_held_out[: data.evaluation_rows]
    trained = data.tokenizer == "word-level"
    tokenizer = text.word_level_tokenizer(rows, vocabulary) if trained else transformers.AutoTokenizer.from_pretrained(weights_from)
    labels = text.label_ids(rows, plan.model.labels) if plan.model.labels else None
    samples = text.tokenize(tokenizer, rows, data.sequence_length, labels)
    # Packed rows are those that all tokens fill.
    filled, order = max(1, sum(len(sample["input_ids"]) for sample in samples) // data.sequence_length), np.random.default_rng(seed)
    return Samples(
        (samples[index] for _ in count() for index in order.permutation(len(samples))),
        filled if data.packing else len(samples),
        text.tokenize(tokenizer, held_out, data.sequence_length, labels) if held_out else [],
        f"{'all' if len(held_out) == len(all_held_out) else 'the first'} rows of {split}",
        len(tokenizer) if trained else None,
        lengths_of(samples),
    )


def lengths_of(samples: list[Sample]) -> dict[str, Any]:
    """Return the number of samples and the distribution of their lengths in tokens."""
    lengths = np.array([len(sample["input_ids"]) for sample in samples])
    shares = {"minimum": 0.0, "median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "maximum": 1.0}
    quantiles = np.quantile(lengths, list(shares.values()), method="inverted_cdf")
    return {"rows": len(lengths), "mean": float(lengths.mean())} | dict(zip(shares, map(int, quantiles), strict=True))


# Prepare the micro-batches of coming steps in a thread, so that the training thread, and so the device, does not wait for them.

STEPS_AHEAD = 2
"""Steps that are prepared while another one trains."""
Step = list[MicroBatch]


class StepsAhead:
    """The micro-batches of each step, in the order of the stream. Use as a context: leaving it ends the thread.

    The thread uses NumPy and no operator of torch, which would start a second team of CPU threads beside that of training.
    """

    def __init__(self, batches: Iterator[MicroBatch], per_step: int, device: Device) -> None:
        self._batches, self._per_step, self._device = batches, per_step, device
        self._thread = ThreadPoolExecutor(1, "samples", device.adopt_thread)
        self._ready: deque[Future[Step]] = deque()
        self.waited_s = 0.0
        """Seconds that `take` has waited for all steps but the first."""
        self._begun = False

    def __enter__(self) -> Self:
        self._ready.append(self._thread.submit(self._prepare))
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def take(self) -> Step:
        """Return the micro-batches of the next step; fewer at the end of the stream, and none after it.

        Raises the exception that ended the stream, after all complete steps before it.
        """
        started_s = time.monotonic()
        step = self._ready.popleft().result()
        self.waited_s += time.monotonic() - started_s if self._begun else 0.0
        self._begun = True
        while len(self._ready) < STEPS_AHEAD:
            self._ready.append(self._thread.submit(self._prepare))
        return step

    def _prepare(self) -> Step:
        """Return the next micro-batches of the stream, pinned for a device that copies while the host goes on."""
        step = list(islice(self._batches, self._per_step))
        return [replace(batch, tensors=pinned(batch.tensors)) for batch in step] if self._device.pins_memory else step


def pinned(tensors: dict[str, Any]) -> dict[str, Any]:
    """Return tensors in pinned memory, which a device copies from without stopping the host."""
    return {name: value if isinstance(value, int) else value.pin_memory() for name, value in tensors.items()}


def to_device(tensors: dict[str, Any], name: str) -> dict[str, Any]:
    """Return tensors on a device, without waiting. Numbers stay on the host."""
    return {key: value if isinstance(value, int) else value.to(name, non_blocking=True) for key, value in tensors.items()}
