"""The counts of steps that the synthetic rows of a seed give: made again, so that a log with steps left out, or of other data, is found."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import cycle, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.synthetic_data import FULL_ROWS, GENERATORS
from tunemark.schema.vocabulary import Backend, DataSource, Padding, Task

MOST_TOKENS = 4_000_000
"""Tokens of the first steps that are made again; the rest is not compared."""
ORIGINAL = "keep the original record; if this is it, open an issue"
"""What an honest person can do about a field that does not follow from the others."""


class StepCounts(NamedTuple):
    """Counts of steps, each of shape (steps,)."""

    slot_tokens: NDArray[np.int64]
    real_tokens: NDArray[np.int64]
    supervised_tokens: NDArray[np.int64]
    documents: NDArray[np.int64]


def replay_problems(s: Submission, model: ModelCard | None) -> Iterator[Problem]:
    """Yield a step whose counts are not those of the synthetic rows that the seed of the plan gives."""
    plan = s.plan
    known = plan.data.source is DataSource.SYNTHETIC and plan.data.name in GENERATORS and plan.device.backend is not Backend.NEURON
    if model is None or not known or not len(s.trace) or plan.batch.global_batch % plan.batch.micro_batch:
        return
    expected = expected_counts(plan, model.vocabulary, len(s.trace))
    for name, values in zip(StepCounts._fields, expected, strict=True):
        stated = getattr(s.trace, name)
        wrong = np.flatnonzero(np.asarray(stated)[: len(values)] != values)
        if len(wrong):
            step = int(wrong[0])
            fix = f"the rows of seed {plan.measurement.seed} have {values[step]} in this step; a step log holds all steps from the first"
            yield Problem(f"trace.{name}", f"step {step + 1}: {stated[step]}", f"{fix}; {ORIGINAL}")
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
