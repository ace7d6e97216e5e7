"""Duplicates: digits that agree suspiciously well in rows of different models, methods or devices."""

import re
from collections.abc import Iterator
from itertools import combinations
from operator import attrgetter

from tunemark.collector.audit.evidence import Evidence, Pair, grouped, label, with_model
from tunemark.collector.audit.rule import SUSPICIOUS, Finding, rule

FEWEST_FIGURES = 2
"""Number of shared figures that makes two rows suspicious."""
FEWEST_DIGITS = 3
"""Minimum number of significant digits of a shared figure."""
FEWEST_DEVICES = 3
"""Number of kinds of device for which one shared accuracy cannot be chance."""
RATES = ("tokens_per_s", "samples_per_s", "train_time_s")
QUALITY = ("accuracy", "eval_loss", "train_loss")
WORK = ("sequence_length", "micro_batch", "global_batch")
"""Conditions that change what a step sees."""
MODEL_AND_DEVICES = attrgetter("source", "conditions.model", "conditions.accelerator", "conditions.accelerator_count")
PLACE = attrgetter(
    "source",
    "section",
    *(f"conditions.{name}" for name in ("method", "accelerator", "accelerator_count", "micro_batch", "sequence_length")),
)
"""The place of a row in its table, besides its model."""
MEASURED = (
    "epoch_time_s",
    "eval_loss",
    "model_memory_bytes",
    "peak_memory_bytes",
    "samples_per_s",
    "step_time_s",
    "tokens_per_s",
    "train_loss",
    "train_time_s",
)


@rule(id="copied-rows", family="duplicates", verdicts=(SUSPICIOUS,))
def copied_rows(evidence: Evidence) -> Iterator[Finding]:
    """Rows of different models that agree to the digit.

    Times of two runs differ by chance. Several rows that agree to the last digit were not measured separately.
    """
    pairs: dict[tuple[str, ...], list[Pair]] = {}
    for group in grouped(with_model(evidence.published), PLACE).values():
        for result, other in combinations(group, 2):
            models = sorted({str(result.conditions.model), str(other.conditions.model)})
            if len(models) > 1:
                pairs.setdefault((result.source, *models), []).append((result, other))
    for (_, *models), compared in pairs.items():
        equal = []
        for result, other in compared:
            shared = [name for name in MEASURED if name in result.claims and name in other.claims]
            if len(shared) >= FEWEST_FIGURES and all(result.claims[name].printed == other.claims[name].printed for name in shared):
                equal.append((result, other, shared))
        if equal:
            shown = "; ".join(f"{result.id} = {other.id}: {result.printed(*shared)}" for result, other, shared in equal)
            yield Finding(
                SUSPICIOUS,
                tuple(record for result, other, _ in equal for record in (result.id, other.id)),
                f"{models[0]} and {models[1]} in {len(equal)} pairs of rows",
                f"{len(equal)} of {len(compared)} pairs agree to the last digit: {shown}. Two measurements sometimes differ in the last digit",
                {"equal pairs": len(equal), "pairs": len(compared)},
                quantities=tuple(dict.fromkeys(name for *_, shared in equal for name in shared)),
            )


@rule(id="equal-rates", family="duplicates", verdicts=(SUSPICIOUS,))
def equal_rates(evidence: Evidence) -> Iterator[Finding]:
    """Different methods with the same digits.

    Different work takes different time. Equal digits are copied or estimated.
    """
    groups = grouped(with_model(evidence.published), MODEL_AND_DEVICES).values()
    pairs = [
        (result, other)
        for group in groups
        for result, other in combinations(group, 2)
        if result.conditions.method is not other.conditions.method
    ]
    for result, other in pairs:
        for name in RATES:
            if name not in result.claims or name not in other.claims:
                continue
            value, digits = result.claims[name].value, re.sub(r"[^0-9]", "", result.claims[name].printed).strip("0")
            if len(digits) >= FEWEST_DIGITS and value == other.claims[name].value:
                claim = f"{result.method_name}: {result.printed(name)}; {other.method_name}: {other.printed(name)}"
                words = f"{label(name)} is {value:g} for both, although their work differs"
                yield Finding(SUSPICIOUS, (result.id, other.id), claim, words, {name: value}, quantities=(name,))


@rule(id="equal-quality", family="duplicates", verdicts=(SUSPICIOUS,))
def equal_quality(evidence: Evidence) -> Iterator[Finding]:
    """Several devices with the same accuracy to the digit.

    A different order of summation changes the last bits, and training amplifies the difference. Accuracies of separate runs
    therefore differ by a few rows.
    """
    accurate = [result for result in evidence.with_figure("accuracy") if result.accelerator is not None and not result.measured]
    table = attrgetter("source", "section", "conditions.model")
    for results in grouped(accurate, lambda result: (*table(result), result.claims["accuracy"].printed)).values():
        devices = {result.conditions.accelerator for result in results}
        if len(devices) < FEWEST_DEVICES:
            continue
        printed, dataset = results[0].claims["accuracy"].printed, results[0].dataset
        rows = dataset.test_rows if dataset else None
        step = f"; one row of {rows:,} changes it by {100 / rows:.2f} points" if rows else ""
        claim = f"accuracy {printed} on {len(devices)} kinds of device"
        words = (
            f"{', '.join(result.device_name for result in results)} all reach {printed}{step}. Devices add up in different orders, so separate runs "
            "differ in a few rows. The accuracy was measured only once"
        )
        yield Finding(SUSPICIOUS, tuple(result.id for result in results), claim, words, {"devices": len(devices)}, quantities=("accuracy",))


@rule(id="equal-figures", family="duplicates", verdicts=(SUSPICIOUS,))
def equal_figures(evidence: Evidence) -> Iterator[Finding]:
    """Different work with the same quality to the last digit.

    Another length or batch changes the sums. Several quality figures that agree in every digit come from one run.
    """
    for result, other in evidence.published_pairs():
        values = {name: (getattr(result.conditions, name), getattr(other.conditions, name)) for name in WORK}
        differing = {name: pair for name, pair in values.items() if None not in pair and pair[0] != pair[1]}
        both = [name for name in QUALITY if name in result.claims and name in other.claims]
        equal = [name for name in both if result.claims[name].printed == other.claims[name].printed]
        if differing and len(equal) >= FEWEST_FIGURES:
            work = ", ".join(f"{name} {first} and {second}" for name, (first, second) in differing.items())
            claim = f"{result.printed(*equal)} in both results"
            words = (
                f"{work}: each processes different rows or parts of rows, so two separate runs differ in the last digits. Either one "
                "was not run, or the setting had no effect"
            )
            numbers = {"equal figures": len(equal)}
            yield Finding(SUSPICIOUS, (result.id, other.id), claim, words, numbers, quantities=tuple(equal), conditions=tuple(differing))
