"""Tokens per second of a result, derived from every suitable figure and from every reading of an ambiguous figure."""

from collections.abc import Iterator
from dataclasses import dataclass

from tunemark.collector.audit.evidence import AuditedResult
from tunemark.collector.audit.interval import Interval
from tunemark.schema.vocabulary import Padding

LAST_BATCH = 0.01
"""Share of rows that the last batch of an epoch may repeat: at most one batch in a hundred."""


@dataclass(frozen=True, slots=True)
class TokenRate:
    """Tokens per second over all devices, from one figure in one reading."""

    quantity: str
    """The figure that the rate follows from."""
    meaning: str
    """The reading; empty for a plain figure."""
    tokens_per_s: Interval
    formula: str
    conditions: tuple[str, ...] = ()
    """Conditions that the rate follows from, besides the figure: fields or settings of `Conditions`."""

    @property
    def meaning_words(self) -> str:
        """The reading without its figures."""
        return self.meaning.split(" (", maxsplit=1)[0]


def token_rates(result: AuditedResult) -> list[TokenRate]:
    """Return tokens per second by every figure. Several rates of one quantity are readings of it."""
    return [*_from_rates(result), *_from_steps(result)] or list(_from_epochs(result))


def plain_rate(result: AuditedResult) -> TokenRate | None:
    """Return tokens per second by the first figure with one meaning, or None."""
    return next((rate for rate in token_rates(result) if not rate.meaning and not rate.quantity.endswith("_reported")), None)


def _from_rates(result: AuditedResult) -> Iterator[TokenRate]:
    """Yield claimed rates of tokens, counted tokens over time, and rates of samples times their length."""
    for quantity in ("tokens_per_s", "tokens_per_s_reported"):
        for meaning, rate in result.readings(quantity):
            yield TokenRate(quantity, meaning, rate, "")
    tokens, time, length = result.interval("tokens"), result.interval("train_time_s"), result.conditions.sequence_length
    if tokens and time:
        yield TokenRate("tokens", "", tokens / time, f"{tokens.value:,.0f} tokens / {time.value:,.2f} s")
    for quantity in ("samples_per_s", "samples_per_s_reported"):
        if length is None or (quantity == "samples_per_s" and "tokens" in result.claims):
            continue
        for meaning, rate in result.readings(quantity):
            yield TokenRate(quantity, meaning, rate * length, f"{rate.value:g} rows/s x {length:,} tokens", ("sequence_length",))


def _from_steps(result: AuditedResult) -> Iterator[TokenRate]:
    rows, length = rows_per_step(result), result.conditions.sequence_length
    if rows is None or length is None or "tokens" in result.claims:
        return
    stated = result.conditions.global_batch is not None
    conditions = ("sequence_length", *(("global_batch",) if stated else ("micro_batch", "gradient_accumulation", "data_parallel")))
    for meaning, step in result.readings("step_time_s"):
        formula = f"{rows:,} rows x {length:,} tokens / {step.value:g} s per step"
        yield TokenRate("step_time_s", meaning, Interval.exact(float(rows * length)) / step, formula, conditions)
    steps = result.interval("steps_per_s")
    if steps and result.claims.keys().isdisjoint({"step_time_s", "samples_per_s"}):
        formula = f"{rows:,} rows x {length:,} tokens x {steps.value:g} steps/s"
        yield TokenRate("steps_per_s", "", steps * (rows * length), formula, conditions)


def _from_epochs(result: AuditedResult) -> Iterator[TokenRate]:
    length, rows, epochs = result.conditions.sequence_length, result.training_rows, result.interval("epochs")
    time = training_or_wall_time(result)
    if length and rows and epochs and time and not result.conditions.packing:
        formula = f"{epochs.value:g} epochs x {rows:,} rows x {length:,} tokens / {time.value:,.0f} s"
        yield TokenRate("epochs", "", epochs * (rows * length) / time, formula, ("sequence_length", "dataset"))


def samples_per_s(result: AuditedResult) -> tuple[Interval, str] | None:
    """Return rows per second, which need no length, with their formula: claimed, or epochs of known rows over time."""
    claimed = result.interval("samples_per_s")
    if claimed:
        return claimed, f"{claimed.value:g} rows/s"
    rows, epochs, time = result.training_rows, result.interval("epochs"), training_or_wall_time(result)
    if rows and epochs and time:
        return epochs * rows / time, f"{epochs.value:g} epochs x {rows:,} rows / {time.value:,.0f} s"
    return None


def training_or_wall_time(result: AuditedResult) -> Interval | None:
    """Return the training time, else the time of the process, else None."""
    return result.interval("train_time_s") or result.interval("wall_s")


def rows_per_step(result: AuditedResult) -> int | None:
    """Return rows of an optimizer step over all replicas; None if micro-batch, accumulation or replicas are unknown."""
    conditions = result.conditions
    if conditions.global_batch is not None:
        return conditions.global_batch
    if conditions.micro_batch is None or conditions.gradient_accumulation is None or result.replicas is None:
        return None
    return conditions.micro_batch * conditions.gradient_accumulation * result.replicas


def batch_readings(result: AuditedResult) -> dict[str, Interval]:
    """Return the rows of a step by every reading of a batch of unknown scope: of a device, of all, or of some devices that share a row."""
    stated, count = result.conditions, result.devices
    if None in (stated.micro_batch, stated.sequence_length) or count == 1 or stated.global_batch or result.setting("data_parallel"):
        return {}
    shared = not {"strategy", "sharding", "zero_stage", "fsdp"} & set(stated.settings)
    replicas = [each for each in range(1, count + 1) if each in {1, count} or (shared and count % each == 0)]
    batches = dict.fromkeys((stated.micro_batch or 1, (stated.micro_batch or 1) * (stated.gradient_accumulation or 1)))
    return {f"{batch} x {each} rows": Interval.exact(float(batch * each)) for batch in batches for each in replicas}


def rows_by_rate(result: AuditedResult) -> Interval | None:
    """Return the rows of a step by the rate of tokens and the time of a step, which need no batch, or None."""
    rate, step, length = result.interval("tokens_per_s"), result.interval("step_time_s"), result.conditions.sequence_length
    full = result.conditions.padding is Padding.NONE or result.conditions.packing
    return rate * step / length if rate and step and length and full else None


def expected_rows(result: AuditedResult) -> Interval | None:
    """Return the rows of a whole training: epochs x rows of the dataset; None if rows are packed or unknown."""
    epochs, rows = result.interval("epochs"), result.training_rows
    return epochs * rows if epochs and rows and not result.conditions.packing else None


def settled_reading(result: AuditedResult, quantity: str) -> tuple[str, Interval] | None:
    """Return the only reading of an ambiguous rate of samples that gives the rows of the dataset over the training time, or None."""
    rows, time = expected_rows(result), result.interval("train_time_s")
    readings = result.readings(quantity)
    if rows is None or time is None or len(readings) < 2 or not quantity.startswith("samples"):  # noqa: PLR2004 - one reading is no choice
        return None
    fitting = [(meaning, rate) for meaning, rate in readings if (rate * time).widened(LAST_BATCH).overlaps(rows)]
    return fitting[0] if len(fitting) == 1 else None
