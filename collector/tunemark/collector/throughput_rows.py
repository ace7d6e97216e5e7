"""The model of throughput as rows of the database: its parameters, and the error of each row that was held out."""

import math
from collections.abc import Iterator

import numpy as np

from tunemark.collector.predict.cross_validation import HeldOut, leave_out
from tunemark.collector.predict.fit import Fit, fit, meaning_of_parameter, uses
from tunemark.collector.predict.predicted import QUANTILE
from tunemark.collector.rows import Row, Rows
from tunemark.collector.throughput_observed import Learnt


def throughput_rows(learnt: Learnt) -> Rows:
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
