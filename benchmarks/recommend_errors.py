"""Errors of the rates that recommendations use, for results whose whole source is left out.

Run: python benchmarks/recommend_errors.py

For each result, its source is removed, the model is fitted again, and the rate of the result's model, method, row length, accelerator,
count and software level is computed as `option_rates` does: from other sources' results (direct), from near ones, or predicted.
Prints the median error, and the share of results within the 90% interval, by kind of evidence.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

from tunemark.collector.predict.calibration_rows import calibrate
from tunemark.collector.predict.estimate import QUANTILE, no_data
from tunemark.collector.predict.fit import LogPrediction, Observed, fit
from tunemark.collector.predict.option_rates import RateEvidence, group_of, is_direct
from tunemark.schema.facts.fact_base import FactBase

ROOT = Path(__file__).parents[1]
Held = tuple[str, float, float]
"""Kind of evidence, log error of the time, half width of the interval in log space."""


def held_out(rows: tuple[Observed, ...]) -> Iterator[Held]:
    """Yield the outcome for each result from the rows of other sources."""
    for source in sorted({row.config.source for row in rows}):
        others = tuple(row for row in rows if row.config.source != source)
        evidence = RateEvidence.of(fit(others))
        for row in (row for row in rows if row.config.source == source):
            config = replace(row.config, stack="", release="")
            group = evidence.groups.get(group_of(config), ())
            direct = [each for each in group if is_direct(each, config.devices, config.shape.sequence_length)]
            if direct:
                width = evidence.direct_error * math.sqrt((1 + 1 / len(direct)) / 2)
                yield "direct", fmean(each.log_seconds for each in direct) - row.log_seconds, width
                continue
            estimate = None if no_data(others, config) else evidence.fitted.predict(config)
            if not isinstance(estimate, LogPrediction):
                continue
            correction = evidence.correction(group) if group else 0.0
            yield "near" if group else "predicted", estimate.log_seconds + correction - row.log_seconds, QUANTILE * estimate.sd


def main() -> None:
    """Print the table."""
    facts = FactBase(ROOT / "data")
    groups: dict[str, list[Held]] = defaultdict(list)
    for outcome in held_out(calibrate(ROOT, facts).rows):
        groups[outcome[0]].append(outcome)
    print(f"{'evidence':<12}{'results':>8}{'median error':>14}{'90% of errors':>15}{'in interval':>13}{'median width':>14}")
    for kind in ("direct", "near", "predicted"):
        held = groups[kind]
        if held:
            errors = sorted(abs(math.expm1(error)) for _, error, _ in held)
            covered = sum(abs(error) <= width for _, error, width in held) / len(held)
            width = median(math.expm1(width) for *_, width in held)
            ninth = errors[min(len(errors) - 1, math.ceil(0.9 * len(errors)) - 1)]
            print(f"{kind:<12}{len(held):>8}{median(errors):>14.1%}{ninth:>15.1%}{covered:>13.1%}{width:>14.1%}")


if __name__ == "__main__":
    main()
