"""Tokens a second of a result, from every figure that gives them, and in every reading of an ambiguous one."""

from collections.abc import Iterator
from dataclasses import dataclass

from tunemark.collector.audit.evidence import Run
from tunemark.collector.audit.span import Span


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens a second over all devices, as one figure in one reading says."""

    quantity: str
    """The figure that it follows from."""
    meaning: str
    """Which reading; empty for a plain figure."""
    tokens_per_s: Span
    formula: str


def token_rates(run: Run) -> list[Rate]:
    """Return tokens a second by every figure; several of one quantity are readings of it."""
    return [*_claimed(run), *_from_samples(run), *_from_steps(run)] or list(_from_epochs(run))


def plain_rate(run: Run) -> Rate | None:
    """Return tokens a second by the first figure with one meaning, or the only reading that is possible."""
    return next((rate for rate in token_rates(run) if not rate.meaning and not rate.quantity.endswith("_reported")), None)


def _claimed(run: Run) -> Iterator[Rate]:
    for quantity in ("tokens_per_s", "tokens_per_s_reported"):
        for meaning, span in run.readings(quantity):
            yield Rate(quantity, meaning, span, "")
    tokens, time = run.span("tokens"), run.span("train_time_s")
    if tokens and time:
        yield Rate("tokens", "", tokens / time, f"{tokens.value:,.0f} tokens / {time.value:,.2f} s")


def _from_samples(run: Run) -> Iterator[Rate]:
    length = run.conditions.sequence_length
    for quantity in ("samples_per_s", "samples_per_s_reported"):
        if length is None or (quantity == "samples_per_s" and "tokens" in run.claims):
            continue
        for meaning, span in run.readings(quantity):
            yield Rate(quantity, meaning, span * length, f"{span.value:g} rows/s x {length:,} tokens")


def _from_steps(run: Run) -> Iterator[Rate]:
    rows = rows_per_step(run)
    length = run.conditions.sequence_length
    if rows is None or length is None or "tokens" in run.claims:
        return
    for meaning, span in run.readings("step_time_s"):
        yield Rate(
            "step_time_s", meaning, Span.exact(float(rows * length)) / span, f"{rows:,} rows x {length:,} tokens / {span.value:g} s a step"
        )


def _from_epochs(run: Run) -> Iterator[Rate]:
    length, rows, epochs = run.conditions.sequence_length, run.training_rows, run.span("epochs")
    time = run.span("train_time_s") or run.span("wall_s")
    if length and rows and epochs and time and not run.conditions.packing:
        yield Rate(
            "epochs",
            "",
            epochs * (rows * length) / time,
            f"{epochs.value:g} epochs x {rows:,} rows x {length:,} tokens / {time.value:,.0f} s",
        )


def samples_per_s(run: Run) -> tuple[Span, str] | None:
    """Return rows a second where no length is needed: claimed, or epochs of known rows over time."""
    claimed = run.span("samples_per_s")
    if claimed:
        return claimed, f"{claimed.value:g} rows/s"
    rows, epochs, time = run.training_rows, run.span("epochs"), run.span("train_time_s") or run.span("wall_s")
    if rows and epochs and time:
        return epochs * rows / time, f"{epochs.value:g} epochs x {rows:,} rows / {time.value:,.0f} s"
    return None


def rows_per_step(run: Run) -> int | None:
    """Return rows of an optimizer step over all replicas; None where micro-batch, accumulation or replicas are not known."""
    conditions = run.conditions
    if conditions.global_batch is not None:
        return conditions.global_batch
    if conditions.micro_batch is None or conditions.gradient_accumulation is None or run.replicas is None:
        return None
    return conditions.micro_batch * conditions.gradient_accumulation * run.replicas
