"""Figures derived from the printed figures of a result and from numbers in its words. Unknown inputs give unknown results."""

import re
from dataclasses import dataclass
from functools import cache

from tunemark.schema.records.published import Claim, Conditions
from tunemark.schema.vocabulary import Padding

Claims = dict[str, Claim]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a published result and its origin."""

    value: float
    formula: str | None = None
    """The formula in words; None when the document claims the figure itself."""


def claimed(claims: Claims, quantity: str) -> Figure | None:
    """Return a claimed figure, or None if it is missing or ambiguous."""
    claim = claims.get(quantity)
    return None if claim is None or claim.readings else Figure(claim.value)


def is_ambiguous(claims: Claims, quantity: str) -> bool:
    """Return True if the document does not define the meaning of a figure."""
    return quantity in claims and bool(claims[quantity].readings)


def step_time_s(claims: Claims) -> Figure | None:
    """Return seconds per optimizer step. An ambiguous step time stays unknown: no other figure can settle its meaning."""
    if is_ambiguous(claims, "step_time_s"):
        return None
    printed, rate = claimed(claims, "step_time_s"), claimed(claims, "steps_per_s")
    if printed or rate is None or not rate.value:
        return printed
    return Figure(1 / rate.value, "1 / claimed steps per second, an average over the whole training")


def steps_per_s(claims: Claims) -> Figure | None:
    """Return optimizer steps per second: as claimed, else the inverse of the step time."""
    printed, step = claimed(claims, "steps_per_s"), claimed(claims, "step_time_s")
    if printed or step is None or not step.value:
        return printed
    return Figure(1 / step.value, "1 / claimed step time")


def global_batch(conditions: Conditions) -> Figure | None:
    """Return rows in an optimizer step: as stated, else the product of the batch settings on one device.

    On several devices the product is unknown: they may share a row (tensor parallel) or hold separate rows.
    """
    if conditions.global_batch is not None:
        return Figure(conditions.global_batch)
    if conditions.micro_batch is None or conditions.gradient_accumulation is None or conditions.accelerator_count != 1:
        return None
    return Figure(conditions.micro_batch * conditions.gradient_accumulation, "micro-batch x gradient accumulation on one device")


def rows_are_full(conditions: Conditions) -> bool:
    """Return True if the source states that rows hold no padding."""
    return conditions.padding is Padding.NONE or conditions.packing is True


def tokens_per_s(claims: Claims, conditions: Conditions) -> Figure | None:
    """Return real tokens per second: claimed; else counted tokens over time; else full rows x their length over the step time."""
    printed = claimed(claims, "tokens_per_s")
    if printed:
        return printed
    tokens, train_time = claimed(claims, "tokens"), claimed(claims, "train_time_s")
    if tokens and train_time and train_time.value:
        return Figure(tokens.value / train_time.value, "claimed tokens / training time")
    step, rows = step_time_s(claims), global_batch(conditions)
    if step is None or not step.value or rows is None or conditions.sequence_length is None or not rows_are_full(conditions):
        return None
    return Figure(rows.value * conditions.sequence_length / step.value, "rows in a step x sequence length / step time; rows are full")


def samples_per_s(claims: Claims, conditions: Conditions, dataset_rows: int | None) -> Figure | None:
    """Return documents per second: claimed; else from tokens if a row is a full document; else epochs of known rows over time."""
    # Trainers count rows. A packed row holds several documents, so its rate is another quantity.
    printed = None if conditions.packing else claimed(claims, "samples_per_s")
    if printed:
        return printed
    # A packed row holds several documents and a padded row is not full: neither gives the number of documents.
    is_document = not conditions.packing and conditions.padding not in {Padding.STATIC, Padding.DYNAMIC}
    tokens = tokens_per_s(claims, conditions)
    if is_document and conditions.sequence_length is not None and tokens is not None:
        stated = "rows are full" if rows_are_full(conditions) else "the source gives one length for all rows, taken as full"
        return Figure(tokens.value / conditions.sequence_length, f"tokens per second / sequence length; {stated}")
    epochs, train_time = claimed(claims, "epochs"), claimed(claims, "train_time_s")
    if dataset_rows is None or epochs is None or train_time is None or not train_time.value or not _epochs_were_done(claims):
        return None
    return Figure(epochs.value * dataset_rows / train_time.value, f"epochs x {dataset_rows} training rows / training time")


def epoch_time_s(claims: Claims) -> Figure | None:
    """Return seconds of one pass over the data: claimed, else training time over epochs."""
    printed = claimed(claims, "epoch_time_s")
    if printed:
        return printed
    epochs, train_time = claimed(claims, "epochs"), claimed(claims, "train_time_s")
    if epochs is None or not epochs.value or train_time is None or not _epochs_were_done(claims):
        return None
    return Figure(train_time.value / epochs.value, "training time / epochs")


def _epochs_were_done(claims: Claims) -> bool:
    """Return False if fewer steps were run than were planned for the epochs."""
    done, planned = claimed(claims, "steps"), claimed(claims, "total_steps")
    return done is None or planned is None or done.value >= planned.value


def printed_rows(dataset: str | None) -> int | None:
    """Return the training rows printed with a dataset: `emotion (1600/200/200)`, `recipes (9,500 rows)`."""
    match = re.search(r"\((?:first )?([0-9][0-9,]*)(?:/[0-9,/]+| rows| records)\)", dataset or "")
    return int(match[1].replace(",", "")) if match else None


def stated_training_rows(note: str | None) -> int | None:
    """Return the rows in words such as `which has 16,500 training and 2,500 test rows`."""
    match = re.search(r"\b([0-9][0-9,]*) training\b", note or "")
    return int(match[1].replace(",", "")) if match else None


@cache
def precision_class(printed: str | None) -> str | None:
    """Return the number format of matrix products in printed words, as in `Dtype`; `fp16/bf16` if both are named."""
    words = (printed or "").lower()
    for name, dtype in (("bfloat16", "bf16"), ("float16", "fp16"), ("float32", "fp32"), ("float8", "fp8"), ("mxfp8", "fp8")):
        words = words.replace(name, dtype)
    # An underscore joins words: amp_bf16.
    named = [dtype for dtype in ("fp16", "bf16", "tf32", "fp32", "fp8") if re.search(rf"(?<![a-z0-9]){dtype}(?![a-z0-9])", words)]
    return "/".join(named) or None
