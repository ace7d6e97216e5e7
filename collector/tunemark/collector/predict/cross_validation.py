"""The accuracy of predictions: leave out each accelerator and each model in turn, and predict its rows from the others."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tunemark.collector.predict.estimate import QUANTILE, Range, predict
from tunemark.collector.predict.fit import Combination, Fit, Missing, Observed, fit, meaning_of_parameter, parameters
from tunemark.collector.store.rows import Row, Rows

LeftOut = Literal["accelerator", "model"]
GROUP: dict[LeftOut, Callable[[Combination], str]] = {
    "accelerator": lambda config: config.accelerator.key,
    "model": lambda config: config.architecture,
}
"""Groups that are left out together: an accelerator card, or all models of one architecture (Llama 3 and 3.1 share theirs)."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A row and its prediction from rows without its accelerator, or without its model."""

    row: Observed
    left_out: LeftOut
    group: str
    """The accelerator or architecture that was left out."""
    tokens_per_s: Range | None
    """Predicted rate of all devices; None if nothing similar was left."""
    reason: str | None
    """The reason why there is no prediction."""

    @property
    def measured(self) -> float:
        """Tokens/s of all devices in the result."""
        return self.row.config.devices / self.row.device_seconds_per_token

    @property
    def error(self) -> float | None:
        """Predicted / measured - 1."""
        return None if self.tokens_per_s is None else self.tokens_per_s.value / self.measured - 1

    @property
    def covered(self) -> bool | None:
        """True if the interval contains the measured rate."""
        return None if self.tokens_per_s is None else self.tokens_per_s.low <= self.measured <= self.tokens_per_s.high


def leave_out(rows: Sequence[Observed], left_out: LeftOut) -> Iterator[HeldOut]:
    """Yield each row with its prediction from the rows of all other groups; the fit never sees the group."""
    key = GROUP[left_out]
    for group in sorted({key(row.config) for row in rows}):
        fitted = fit(row for row in rows if key(row.config) != group)
        for row in rows:
            if key(row.config) == group:
                predicted = predict(fitted, row.config)
                rate, reason = (None, predicted.reason) if isinstance(predicted, Missing) else (predicted.tokens_per_s, None)
                yield HeldOut(row, left_out, group, rate, reason)


def throughput_rows(rows: Sequence[Observed], refused: Mapping[str, str]) -> Rows:
    """Return the rows of `throughput_model`, `throughput_errors` and `throughput_refused`; `refused` is result id -> reason."""
    ways: tuple[LeftOut, ...] = ("accelerator", "model")
    return {
        "throughput_model": list(_parameters(fit(rows))),
        "throughput_errors": [_error_row(held_out) for way in ways for held_out in leave_out(rows, way)],
        "throughput_refused": [{"result_id": result, "reason": reason} for result, reason in sorted(refused.items())],
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
            "rows": sum(name in parameters(row.config, row.terms) for row in fitted.rows),
            "meaning": meaning_of_parameter(name),
        }


def _error_row(held_out: HeldOut) -> Row:
    config, rate = held_out.row.config, held_out.tokens_per_s
    return {
        "left_out": held_out.left_out,
        "result_id": held_out.row.id,
        "left_out_group": held_out.group,
        "stack": config.stack,
        "model": config.shape.model.key,
        "method": config.shape.method.value,
        "accelerator": config.accelerator.key,
        "accelerator_count": config.devices,
        "tokens_per_s": held_out.measured,
        "predicted_tokens_per_s": rate.value if rate else None,
        "predicted_low": rate.low if rate else None,
        "predicted_high": rate.high if rate else None,
        "error": held_out.error,
        "covered": held_out.covered,
        "no_data": held_out.reason,
        "same": list(held_out.row.same),
    }
