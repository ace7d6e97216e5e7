"""How good predictions are: each accelerator and each model is left out in turn, and its rows are predicted from the others."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import numpy as np

from tunemark.collector.predict.calibration_rows import Calibration
from tunemark.collector.predict.estimate import QUANTILE, Range, predict
from tunemark.collector.predict.fit import Combination, Fit, Missing, Observed, fit, meaning_of_parameter, uses
from tunemark.collector.store.rows import Row, Rows

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


# MOVE: was tunemark.collector.predict.cross_validation: The model of throughput as rows of the database: its parameters, and the error of each row that was held out.


def throughput_rows(learnt: Calibration) -> Rows:
    """Return the rows of `throughput_model`, `throughput_errors` and `throughput_refused`."""
    return {
        "throughput_model": list(_parameters(fit(learnt.rows))),
        "throughput_errors": [_held_out(one) for way in ("accelerator", "model") for one in leave_out(learnt.rows, way)],
        "throughput_refused": [{"result_id": result, "reason": reason} for result, reason in sorted(learnt.refused.items())],
    }


def _parameters(fitted: Fit) -> Iterator[Row]:
    deviations = np.sqrt(np.diag(fitted.covariance))
    for name, mean, deviation in zip(fitted.names, fitted.mean, deviations, strict=True):
        kind, _, level = name.partition(": ")
        yield {
            "parameter": name,
            "kind": kind,
            "level": level,
            "value": math.exp(mean),
            "low": math.exp(mean - QUANTILE * deviation),
            "high": math.exp(mean + QUANTILE * deviation),
            "rows": uses(fitted.rows, name),
            "meaning": meaning_of_parameter(name),
        }


def _held_out(one: HeldOut) -> Row:
    of, rate = one.row.of, one.tokens_per_s
    return {
        "left_out": one.left_out,
        "result_id": one.row.id,
        "left_out_group": one.group,
        "stack": of.stack,
        "model": of.shape.model.key,
        "method": of.shape.method.value,
        "accelerator": of.accelerator.key,
        "accelerator_count": of.devices,
        "tokens_per_s": one.measured,
        "predicted_tokens_per_s": rate.value if rate else None,
        "predicted_low": rate.low if rate else None,
        "predicted_high": rate.high if rate else None,
        "error": one.error,
        "covered": one.covered,
        "no_data": one.reason,
        "same": list(one.row.same),
    }
