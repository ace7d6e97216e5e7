"""Checks of the data of a run: the counts of each step against the plan and its seed, the lengths of rows, the evaluation.

Synthetic rows follow from their seed. They are made again, so that a step log with steps left out, or of other data, is found.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import cycle, islice
from math import log
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.trace import COUNT_COLUMNS
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.synthetic_data import FULL_ROWS, GENERATORS
from tunemark.schema.vocabulary import Backend, DataSource, Padding, Status, Task

MOST_TOKENS = 4_000_000
"""Tokens of the first steps that are made again; the rest is not compared."""
LAST_LOSSES, LEAST_OF_TRAINED = 20, 0.1
"""Last steps whose usual loss is compared with that of the evaluation, and the least ratio: dropout raises losses of training severalfold."""
LEAST_SPREAD = 0.05
"""Standard error of the loss over that of the accuracy, at least."""
SYNTHETIC_SPLIT = "synthetic rows from another seed"


def data_problems(submission: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield each contradiction between the data of a plan and the counts, lengths and evaluation of its record."""
    wrong = list(_counts(submission))
    yield from wrong
    if not wrong:
        yield from _replayed(submission, facts.models.get(submission.plan.model.key))
    yield from _row_lengths(submission)
    yield from _evaluation(submission)


def _counts(s: Submission) -> Iterator[Problem]:
    """Yield counts of tokens, documents and rows that the plan does not give."""
    data, batch, trace = s.plan.data, s.plan.batch, s.trace
    device = s.plan.device
    group = device.tensor_parallel * device.pipeline_parallel
    if batch.data_parallel * group != device.count and s.outcome.status is not Status.UNSUPPORTED:
        fix = f"x {group} devices of a model replica are not the {device.count} of plan.device.count"
        yield Problem("plan.batch.data_parallel", str(batch.data_parallel), fix)
    if not len(trace):
        return
    slots, real, supervised, documents, rows = (np.asarray(getattr(trace, name)) for name in COUNT_COLUMNS)
    # Only the step at the end of finite data may be smaller.
    short = np.flatnonzero(rows[:-1] < batch.global_batch) if s.plan.data.finite else np.flatnonzero(rows < batch.global_batch)
    if len(short):
        fix = f"step {short[0] + 1} has fewer than the {batch.global_batch} rows of plan.batch.global_batch; steps are full until the data ends"
        yield Problem("trace.rows", str(rows[short[0]]), fix)
    if data.packing:
        whole = rows * data.sequence_length
        pieces = real - supervised
        # A row cuts at most one document in two at each of its ends.
        fewest, most = rows, documents + 2 * rows
        wrong = (slots != whole) | (real != whole) | (pieces < fewest) | (pieces > most) | (documents > pieces)
        if not data.document_borders:
            wrong = (slots != whole) | (real != whole) | (pieces != rows)
        fix = f"packed rows are full ({data.sequence_length} tokens), and each of their documents has one token without a label"
    else:
        expected = real - rows if s.plan.model.task is Task.CAUSAL_LM else rows
        wrong = (documents != rows) | (supervised != expected) | (real > slots)
        fix = "rows that are not packed hold one document each; in a language model all of its tokens but one have a label, in classification one"
        full = data.padding is Padding.STATIC
        wrong |= (slots != rows * data.sequence_length) if full else np.zeros_like(wrong)
        wrong |= (
            (real != slots) if data.padding is Padding.NONE else (slots % np.maximum(1, rows) != 0) & (batch.gradient_accumulation == 1)
        )
        wrong |= slots > rows * data.sequence_length
    if wrong.any():
        step = int(np.flatnonzero(wrong)[0])
        counted = f"slots {slots[step]}, real {real[step]}, supervised {supervised[step]}, documents {documents[step]}, rows {rows[step]}"
        yield Problem(_column_of(s, step), f"step {step + 1}: {counted}", f"{fix}; padding is {data.padding.value!r}")
    elif not documents.sum():
        yield Problem("trace.documents", "0 in all steps", "a run trains on documents; keep the original record")


def _column_of(s: Submission, step: int) -> str:
    """Return the column that is most likely wrong in a step."""
    trace, data = s.trace, s.plan.data
    slots, real, documents, rows = trace.slot_tokens[step], trace.real_tokens[step], trace.documents[step], trace.rows[step]
    if not data.packing and documents != rows:
        return "trace.documents"
    filled = data.padding is Padding.NONE or data.packing
    if filled and real != slots:
        return "trace.real_tokens"
    return "trace.slot_tokens" if data.packing and slots != rows * data.sequence_length else "trace.supervised_tokens"


class StepCounts(NamedTuple):
    """Counts of steps, each of shape (steps,)."""

    slot_tokens: NDArray[np.int64]
    real_tokens: NDArray[np.int64]
    supervised_tokens: NDArray[np.int64]
    documents: NDArray[np.int64]


def _replayed(s: Submission, model: ModelCard | None) -> Iterator[Problem]:
    """Yield a step whose counts are not those of the synthetic rows that the seed of the plan gives."""
    plan = s.plan
    if (
        model is None
        or plan.data.source is not DataSource.SYNTHETIC
        or plan.data.name not in GENERATORS
        or plan.device.backend is Backend.NEURON
    ):
        return
    if not len(s.trace) or plan.batch.global_batch % plan.batch.micro_batch:
        return
    expected = expected_counts(plan, model.vocabulary, len(s.trace))
    for name, values in zip(StepCounts._fields, expected, strict=True):
        wrong = np.flatnonzero(np.asarray(getattr(s.trace, name))[: len(values)] != values)
        if len(wrong):
            step = int(wrong[0])
            fix = f"the rows of seed {plan.measurement.seed} have {values[step]} in this step; a step log holds all steps from the first, as they were"
            yield Problem(f"trace.{name}", f"step {step + 1}: {getattr(s.trace, name)[step]}", fix)
            return


def expected_counts(plan: Plan, vocabulary: int, steps: int) -> StepCounts:
    """Return the counts of the first steps of a plan with synthetic rows, as many as `MOST_TOKENS` allow.

    Rows are taken in order: a micro-batch of each process after the other, and all of them once per micro-step. See
    `tunemark.harness.worker.data`, which does the same to the rows themselves.
    """
    data, batch = plan.data, plan.batch
    steps = min(steps, MOST_TOKENS // max(1, batch.global_batch * data.sequence_length))
    lengths = synthetic_lengths(
        RowsAsked(
            data.name,
            vocabulary,
            data.sequence_length,
            plan.model.labels,
            plan.measurement.seed,
            data.training_rows,
            steps * batch.global_batch,
            data.packing,
        )
    )
    if data.packing:
        pieces, documents = packed(lengths, data.sequence_length, steps * batch.global_batch)
        tokens = np.full(steps, batch.global_batch * data.sequence_length)
        unsupervised = pieces.reshape(steps, -1).sum(axis=1) if data.document_borders else np.full(steps, batch.global_batch)
        return StepCounts(tokens, tokens, tokens - unsupervised, documents.reshape(steps, -1).sum(axis=1))
    rows = np.asarray(lengths[: steps * batch.global_batch]).reshape(steps, -1, batch.micro_batch)
    widths = np.full(rows.shape[:2], data.sequence_length) if data.padding is Padding.STATIC else rows.max(axis=2, initial=0)
    real, documents = rows.sum(axis=(1, 2)), np.full(steps, batch.global_batch)
    supervised = real - documents if plan.model.task is Task.CAUSAL_LM else documents
    return StepCounts(widths.sum(axis=1) * batch.micro_batch, real, supervised, documents)


class RowsAsked(NamedTuple):
    """Synthetic rows to make again."""

    name: str
    vocabulary: int
    longest: int
    labels: int | None
    seed: int
    distinct: int | None
    """Rows of one epoch; None without end."""
    rows: int
    packing: bool


@lru_cache(maxsize=32)
def synthetic_lengths(asked: RowsAsked) -> list[int]:
    """Return the lengths of the first documents in tokens, enough for the rows."""
    if asked.name in FULL_ROWS:
        return [asked.longest] * asked.rows
    samples = GENERATORS[asked.name](asked.vocabulary, asked.longest, asked.labels, asked.seed)
    lengths: Iterator[int] = (len(sample["input_ids"]) for sample in samples)
    if asked.distinct is not None:
        lengths = cycle(islice(lengths, asked.distinct))
    if not asked.packing:
        return list(islice(lengths, asked.rows))
    made, tokens = [], 0
    while tokens < asked.rows * asked.longest:
        made.append(next(lengths))
        tokens += made[-1]
    return made


def packed(lengths: list[int], row_tokens: int, rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pieces in each packed row and the documents that begin in it, each of shape (rows,).

    Documents are laid end to end. One that does not fit is cut, and its rest begins the next row.
    """
    ends = np.cumsum(lengths)
    starts = ends - np.asarray(lengths)
    first = np.minimum(starts // row_tokens, rows)
    documents = np.bincount(first, minlength=rows + 1)[:rows]
    # Each row has one piece more than the documents that begin after its first token.
    inside = np.bincount(first[starts % row_tokens != 0], minlength=rows + 1)[:rows]
    return inside + 1, documents


def _evaluation(s: Submission) -> Iterator[Problem]:
    """Yield evaluations that the plan does not ask for, missing ones, and an accuracy that its loss rules out."""
    planned, held_out, rules = s.plan.data.evaluation_rows, s.evaluation, s.plan.measurement
    synthetic = s.plan.data.source is DataSource.SYNTHETIC
    if held_out is None:
        if s.outcome.status is Status.OK and rules.evaluate and s.plan.device.backend is not Backend.NEURON:
            yield Problem("evaluation", "null", "plan.measurement.evaluate is true; a successful run has it")
        return
    if not rules.evaluate:
        yield Problem("evaluation", "", "plan.measurement.evaluate is false; such a run does not evaluate")
    if synthetic and held_out.split != SYNTHETIC_SPLIT:
        yield Problem("evaluation.split", repr(held_out.split), f"plan.data.source is 'synthetic'; the rows are {SYNTHETIC_SPLIT!r}")
    if planned and (held_out.rows > planned or (synthetic and held_out.rows < planned)):
        fix = f"plan.data.evaluation_rows is {planned}; {'synthetic rows do not run out' if held_out.rows < planned else 'no more rows are held out'}"
        yield Problem("evaluation.rows", str(held_out.rows), fix)
    if (held_out.accuracy is not None) != (s.plan.model.task is Task.SEQUENCE_CLASSIFICATION):
        yield Problem("evaluation.accuracy", str(held_out.accuracy), "a classifier has an accuracy, a language model has none")
    if (held_out.loss is None) != (held_out.loss_standard_error is None) and held_out.rows > 1:
        yield Problem("evaluation.loss_standard_error", str(held_out.loss_standard_error), "is known exactly if evaluation.loss is")
    trained = [value for value in s.trace.loss[-LAST_LOSSES:] if value is not None]
    if held_out.loss is not None and len(trained) == LAST_LOSSES and held_out.loss < LEAST_OF_TRAINED * median(trained):
        fix = f"the last steps had losses of about {median(trained):.3g}; no rows that were held out are learned so much better"
        yield Problem("evaluation.loss", f"{held_out.loss:g}", fix)
    labels, loss, accuracy = s.plan.model.labels, held_out.loss, held_out.accuracy
    if loss is None and s.outcome.status is Status.OK:
        yield Problem("evaluation.loss", "null", "outcome.status is 'ok'; a run whose evaluation gives no finite loss is 'nan'")
    if loss is not None and held_out.loss_standard_error is not None and held_out.loss_standard_error > loss:
        yield Problem("evaluation.loss_standard_error", f"{held_out.loss_standard_error:g}", f"above the loss itself, {loss:g}")
    if loss is not None and loss < 0:
        yield Problem("evaluation.loss", f"{loss:g}", "a cross-entropy is never negative")
    if labels is None or loss is None or accuracy is None:
        return
    # A row that is classified correctly has a loss below ln(labels); a wrong one has at least ln 2.
    least, most = (1 - accuracy) * log(2), 0.9 * log(labels) * accuracy + (1 - accuracy) * 30
    if not least * 0.999 <= loss <= most:
        fix = f"with {accuracy:.1%} of rows correct, the mean loss of {labels} classes is between {least:.3g} and {most:.3g}"
        yield Problem("evaluation.accuracy", f"{accuracy:g} with a loss of {loss:g}", fix)
    spread = (accuracy * (1 - accuracy) / held_out.rows) ** 0.5
    if held_out.loss_standard_error is not None and held_out.loss_standard_error < LEAST_SPREAD * spread:
        fix = (
            f"right and wrong rows differ in loss, so that at an accuracy of {accuracy:.1%} its error is above {LEAST_SPREAD * spread:.2g}"
        )
        yield Problem("evaluation.loss_standard_error", f"{held_out.loss_standard_error:g}", fix)
    correct = accuracy * held_out.rows
    if abs(correct - round(correct)) > 1e-6 * held_out.rows:
        yield Problem("evaluation.accuracy", f"{accuracy:g}", f"is not a whole number of {held_out.rows} rows; accuracy is a share of them")


def _row_lengths(s: Submission) -> Iterator[Problem]:
    lengths = s.row_lengths
    if lengths is None:
        return
    if not s.plan.data.finite:
        yield Problem("row_lengths", f"{lengths.rows} rows", "synthetic rows without end have no lengths; write null")
    longest = s.plan.data.sequence_length
    if not s.plan.data.packing and lengths.maximum > longest:
        yield Problem("row_lengths.maximum", str(lengths.maximum), f"rows are cut to plan.data.sequence_length {longest}")
    if s.plan.data.training_rows is not None and lengths.rows > s.plan.data.training_rows:
        yield Problem("row_lengths.rows", str(lengths.rows), f"plan.data.training_rows is {s.plan.data.training_rows}")
    rows, real = sum(s.trace.rows), sum(s.trace.real_tokens)
    if not s.plan.data.packing and rows >= 50 and not lengths.mean / 3 < real / rows < lengths.mean * 3:  # noqa: PLR2004 - a mean of few rows says little
        fix = f"the rows of the data have {lengths.mean:.0f} tokens on average, those trained on {real / rows:.0f}"
        yield Problem("trace.real_tokens", f"{real} in {rows} rows", fix)
