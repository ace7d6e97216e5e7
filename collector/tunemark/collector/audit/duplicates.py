"""Digits that agree too well: rows of different models, methods or devices that were not measured twice."""

import re
from collections import defaultdict
from collections.abc import Iterator

from tunemark.collector.audit.evidence import Base, Run
from tunemark.collector.audit.rule import SUSPICIOUS, Found, Rule

FEWEST = 2
"""Figures that two rows must share to be suspected at all."""
SIGNIFICANT = 3
DEVICES = 3
"""Kinds of device with one accuracy that are no chance any more."""
RATES = ("tokens_per_s", "samples_per_s", "train_time_s")
QUALITY = ("accuracy", "eval_loss", "train_loss")
WORK = ("sequence_length", "micro_batch", "global_batch")
"""Conditions that change what a step sees."""
MEASURED = frozenset(
    {
        "step_time_s",
        "peak_memory_bytes",
        "model_memory_bytes",
        "tokens_per_s",
        "samples_per_s",
        "train_time_s",
        "epoch_time_s",
        "train_loss",
        "eval_loss",
    }
)


def copied_rows(base: Base) -> Iterator[Found]:
    """Yield pairs of models of one source whose rows agree to the digit, each in the same place of its table."""
    pairs: dict[tuple[str, ...], list[tuple[Run, Run]]] = defaultdict(list)
    differing: dict[tuple[str, ...], int] = defaultdict(int)
    for index, one in enumerate(base.published):
        for other in base.published[index + 1 :]:
            a, b = one.conditions, other.conditions
            place = (a.method, a.accelerator, a.accelerator_count, a.micro_batch, a.sequence_length)
            if one.source != other.source or a.model == b.model or None in {a.model, b.model}:
                continue
            if place != (b.method, b.accelerator, b.accelerator_count, b.micro_batch, b.sequence_length) or one.section != other.section:
                continue
            both = [name for name in MEASURED if name in one.claims and name in other.claims]
            key = (one.source, *sorted((str(a.model), str(b.model))))
            if len(both) >= FEWEST and all(one.claims[name].printed == other.claims[name].printed for name in both):
                pairs[key].append((one, other))
            else:
                differing[key] += 1
    for key, found in pairs.items():
        total = len(found) + differing[key]
        shown = "; ".join(
            f"{one.id} = {other.id}: {one.printed(*sorted(MEASURED & set(one.claims) & set(other.claims)))}" for one, other in found
        )
        yield Found(
            SUSPICIOUS,
            tuple(run.id for pair in found for run in pair),
            f"{key[1]} and {key[2]} in {len(found)} pairs of rows",
            f"{len(found)} of {total} pairs agree to the last digit: {shown}. Two measurements differ in the last digit now and then",
            {"equal pairs": len(found), "pairs": total},
        )


def equal_rates(base: Base) -> Iterator[Found]:
    """Yield different methods on one device with the same digits of a rate."""
    for index, one in enumerate(base.published):
        for other in base.published[index + 1 :]:
            a, b = one.conditions, other.conditions
            if one.source != other.source or a.method == b.method or a.model is None:
                continue
            if (a.model, a.accelerator, a.accelerator_count) != (b.model, b.accelerator, b.accelerator_count):
                continue
            for name in RATES:
                if name not in one.claims or name not in other.claims:
                    continue
                digits = re.sub(r"[^0-9]", "", one.claims[name].printed).strip("0")
                if len(digits) >= SIGNIFICANT and one.claims[name].value == other.claims[name].value:
                    yield Found(
                        SUSPICIOUS,
                        (one.id, other.id),
                        f"{a.method.value} {one.printed(name)}, {b.method.value} {other.printed(name)}",
                        f"{name} is {one.claims[name].value:g} for both, although their work differs",
                        {name: one.claims[name].value},
                    )


def equal_quality(base: Base) -> Iterator[Found]:
    """Yield tables in which several devices reach the same accuracy to the digit."""
    groups: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in base.runs:
        if "accuracy" in run.claims and run.accelerator is not None and not run.measured:
            groups[run.source, run.section, run.conditions.model, run.claims["accuracy"].printed].append(run)
    for runs in groups.values():
        devices = {run.conditions.accelerator for run in runs}
        if len(devices) < DEVICES:
            continue
        first = runs[0]
        rows = first.dataset.test_rows if first.dataset else None
        step = f"; one row of {rows:,} changes it by {100 / rows:.2f} points" if rows else ""
        yield Found(
            SUSPICIOUS,
            tuple(run.id for run in runs),
            f"accuracy {first.claims['accuracy'].printed} on {len(devices)} kinds of device",
            f"{', '.join(run.accelerator.name for run in runs if run.accelerator)} all reach {first.claims['accuracy'].printed}{step}: other devices add up in another order, "
            "so runs of their own differ in a few rows. It was measured once",
            {"devices": len(devices)},
        )


def equal_figures(base: Base) -> Iterator[Found]:
    """Yield runs of other work on one device whose quality agrees in several figures to the last digit."""
    for group in base.alike:
        runs = [run for run in group if not run.measured and not run.converted]
        for index, one in enumerate(runs):
            for other in runs[index + 1 :]:
                differing = [name for name in WORK if None not in (pair := _both(one, other, name)) and pair[0] != pair[1]]
                equal = [
                    name
                    for name in QUALITY
                    if name in one.claims and name in other.claims and one.claims[name].printed == other.claims[name].printed
                ]
                if differing and len(equal) >= FEWEST:
                    work = ", ".join(f"{name} {_both(one, other, name)[0]} and {_both(one, other, name)[1]}" for name in differing)
                    yield Found(
                        SUSPICIOUS,
                        (one.id, other.id),
                        f"{one.printed(*equal)} in both",
                        f"{work}: each sees other rows or other parts of them, so that two runs of their own differ in the last digits. One was not run, or the "
                        "setting had no effect",
                        {"equal figures": len(equal)},
                    )


def _both(one: Run, other: Run, name: str) -> tuple[object, object]:
    return getattr(one.conditions, name), getattr(other.conditions, name)


RULES = (
    Rule(
        "copied-rows",
        "rows of different models that agree to the digit",
        "duplicates",
        "Times of two runs differ by chance; several rows that agree to the last digit were not measured twice.",
        (SUSPICIOUS,),
        copied_rows,
    ),
    Rule(
        "equal-rates",
        "different methods with the same digits",
        "duplicates",
        "Different work takes different time; equal digits are copied or estimated.",
        (SUSPICIOUS,),
        equal_rates,
    ),
    Rule(
        "equal-quality",
        "several devices with the same accuracy to the digit",
        "duplicates",
        "Sums in another order give other last bits, and training amplifies them: accuracies of separate runs differ by some rows.",
        (SUSPICIOUS,),
        equal_quality,
    ),
    Rule(
        "equal-figures",
        "other work with the same quality to the last digit",
        "duplicates",
        "Another length or batch gives other sums; several figures of quality that agree in every digit come from one run.",
        (SUSPICIOUS,),
        equal_figures,
    ),
)
