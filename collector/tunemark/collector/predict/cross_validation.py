"""How good predictions are: each accelerator and each model is left out in turn, and its rows are predicted from the others."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from tunemark.collector.predict.fit import fit
from tunemark.collector.predict.predicted import Range, predict
from tunemark.collector.predict.rows import Combination, Observed
from tunemark.collector.predict.work import Missing

LeftOut = Literal["accelerator", "model"]
GROUP: dict[LeftOut, Callable[[Combination], str]] = {
    "accelerator": lambda of: of.accelerator.key,
    "model": lambda of: of.architecture,
}
"""What goes out together: an accelerator card; all models of one architecture, as Llama 3 and 3.1 share theirs."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One row beside its prediction from rows without its accelerator, or without its model."""

    row: Observed
    left_out: LeftOut
    group: str
    """Which one was left out."""
    tokens_per_s: Range | None
    """Predicted, all devices; None where nothing similar was left."""
    reason: str | None
    """Why there is none."""

    @property
    def measured(self) -> float:
        """Tokens/s of all devices that the result has."""
        return self.row.of.devices / self.row.device_seconds_per_token

    @property
    def error(self) -> float | None:
        """Predicted over measured, less 1."""
        return None if self.tokens_per_s is None else self.tokens_per_s.value / self.measured - 1

    @property
    def covered(self) -> bool | None:
        """Whether the interval holds the measured rate."""
        return None if self.tokens_per_s is None else self.tokens_per_s.low <= self.measured <= self.tokens_per_s.high


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of many held-out rows."""

    rows: int
    """Rows with a prediction."""
    no_data: int
    """Rows without: nothing similar was left."""
    median: float
    """Median absolute error, a share."""
    worst: float
    """Largest absolute error, a share."""
    coverage: float
    """Share of rows that lie within their interval of 90%."""


def leave_out(rows: Sequence[Observed], left_out: LeftOut) -> Iterator[HeldOut]:
    """Yield each row with its prediction from the rows of all other groups; what is learnt never sees the group."""
    key = GROUP[left_out]
    for group in sorted({key(row.of) for row in rows}):
        fitted = fit(row for row in rows if key(row.of) != group)
        for row in rows:
            if key(row.of) == group:
                found = predict(fitted, row.of)
                if isinstance(found, Missing):
                    yield HeldOut(row, left_out, group, None, found.reason)
                else:
                    yield HeldOut(row, left_out, group, found.tokens_per_s, None)


def summarise(rows: Iterable[HeldOut]) -> Errors | None:
    """Summarise held-out rows; None when none of them has a prediction."""
    rows = list(rows)
    errors = [abs(row.error) for row in rows if row.error is not None]
    if not errors:
        return None
    covered = [row.covered for row in rows if row.covered is not None]
    return Errors(len(errors), len(rows) - len(errors), median(errors), max(errors), sum(covered) / len(covered))
