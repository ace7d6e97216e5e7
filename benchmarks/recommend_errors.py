"""Errors of the rates that recommendations use, for results whose whole source is left out.

Run: python benchmarks recommend_errors

For each result, its source is removed, the model is fitted again, and predicts the rate of the result's plan with any software of its
level. Prints the median error, and the share of results within the 90% interval, by how near the results of other sources are.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

from tunemark.collector.audit.load import load_evidence
from tunemark.collector.predict.cross_validation import fit_and_audit
from tunemark.collector.predict.fit import Observed, fit
from tunemark.schema.option_rates import is_direct, unmeasured
from tunemark.schema.throughput import LogPrediction, interval_of, predict

ROOT = Path(__file__).parents[1]
Held = tuple[str, float, bool, float]
"""Kind of evidence, log error of the rate, whether it is in the interval, half width of the interval in log space."""


def held_out(rows: tuple[Observed, ...]) -> Iterator[Held]:
    """Yield the outcome for each result from the rows of other sources."""
    for source in sorted({row.config.source for row in rows}):
        others = tuple(row for row in rows if row.config.source != source)
        fitted = fit(others)
        for row in (row for row in rows if row.config.source == source):
            config, own = replace(row.config, stack="", release=""), row.known
            step = (config.shape.model, config.shape.method, config.accelerator, config.shape.sequence_length)
            estimate = None if unmeasured(fitted.known, *step) else predict(fitted.effects, config)
            if isinstance(estimate, LogPrediction):
                same = (own.architecture, own.method, own.accelerator, own.level)
                found = [each for each in fitted.known if (each.architecture, each.method, each.accelerator, each.level) == same]
                direct = any(is_direct(each, own.devices, own.sequence_length, config.shape.block_format) for each in found)
                kind = "direct" if direct else "near" if found else "predicted"
                rate, true = interval_of(estimate, config.devices), config.devices * math.exp(-row.log_seconds)
                yield kind, math.log(rate.value / true), rate.low <= true <= rate.high, math.log(rate.high / rate.low) / 2


def main() -> None:
    """Print the table."""
    groups: dict[str, list[Held]] = defaultdict(list)
    for outcome in held_out(fit_and_audit(load_evidence(ROOT))[0].rows):
        groups[outcome[0]].append(outcome)
    print(f"{'evidence':<12}{'results':>8}{'median error':>14}{'90% of errors':>15}{'in interval':>13}{'median width':>14}")
    for kind in ("direct", "near", "predicted"):
        held = groups[kind]
        if held:
            errors = sorted(abs(math.expm1(error)) for _, error, *_ in held)
            covered = sum(inside for *_, inside, _ in held) / len(held)
            width = median(math.expm1(width) for *_, width in held)
            ninth = errors[min(len(errors) - 1, math.ceil(0.9 * len(errors)) - 1)]
            print(f"{kind:<12}{len(held):>8}{median(errors):>14.1%}{ninth:>15.1%}{covered:>13.1%}{width:>14.1%}")


if __name__ == "__main__":
    main()
