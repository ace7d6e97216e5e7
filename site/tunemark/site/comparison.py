"""The comparison of two to four results or accelerators: ratios, significance, differing conditions and their expected effects.

Pure functions of numbers and text. The page `compare` shows an example made here; `assets/compare.js` mirrors this module for the
results that a reader chooses, and a test compares both.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunemark.schema import formats
from tunemark.site.page import RATES

FEWEST, MOST = 2, 4
DIFFERS, NOT_SEPARATED, NOT_KNOWN = "differs", "not separated", "not known"
TIMES = "\N{MULTIPLICATION SIGN}"
SINGLE_RUN = "one run"
NO_INTERVAL = "no interval: single run"
OTHER_INTERVAL = "no interval"
"""Used if the result has an interval of another figure, so that it is not a single run."""
WORK = {
    "tokens_per_s": ("model", "method", "task", "sequence_length", "packing"),
    "samples_per_s": ("model", "method", "task", "sequence_length", "packing", "dataset"),
}
"""Conditions that determine the FLOPs of a token or sample."""
PEAKS = ("bf16", "fp16", "tf32", "fp32", "fp8")
"""Number formats whose dense peak a card states."""
USUAL_FORMAT = "bf16"
SAME_WORK = 0.005
"""FLOPs per token that differ by less are equal."""
MOST_DIGITS = 5
VERDICTS = ("impossible", "inconsistent", "suspicious", "ambiguous")
"""Verdicts of the audit, worst first."""
REFUSED = ("impossible", "inconsistent")
"""Verdicts on a figure that forbid a ratio."""
READINGS = "several readings"
"""Reason of the objection about a figure that the document does not define."""

Json = dict[str, Any]


# Inputs --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95% interval, if it has one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Objection:
    """A finding of the audit about a figure, or its several readings."""

    verdict: str
    reason: str
    """Rule of the audit, or `READINGS`; empty if the objection is about a figure from which this one is calculated."""
    refuses: bool
    """The figure is not compared."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A result as it is compared."""

    id: str
    title: str
    trust: str
    impossible: bool
    runs: str
    """The runs that its intervals cover, such as `one run` or `10 runs`; empty without an interval."""
    accelerator: str | None
    """Key of the accelerator's card."""
    count: float | None
    """Number of accelerators."""
    precision: str | None
    level: str | None
    """Software level of the throughput model: plain, tuned or vendor."""
    flop_per_s: float | None
    """Model FLOPs per second over all devices."""
    recompute: float | None
    """HFU over MFU: 1 without recomputed activations."""
    figures: Mapping[str, Estimate]
    """Known figures by key."""
    conditions: Mapping[str, str]
    """Stated conditions by key, as text."""
    objections: Mapping[str, Sequence[Objection]] = field(default_factory=dict)
    """Objections about figures by key, worst first. A figure with an objection may be unknown."""


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What is known about effects: cards of accelerators, and parameters of the throughput model."""

    cards: Mapping[str, Mapping[str, Any]]
    """Columns of the table `accelerators` by key."""
    effects: Mapping[str, Estimate]
    """Factors by which a parameter lengthens the time per token, with 90% intervals."""
    figures: Sequence[Mapping[str, Any]] = ()
    """Figures in display order: key, label, kind, and whether an interval is usual."""
    conditions: Mapping[str, str] = field(default_factory=dict)
    """Labels of conditions by key, in display order."""
    card_rows: Sequence[Mapping[str, Any]] = ()
    """Rows of the comparison of accelerators: key, label, kind, unit."""


# Arithmetic ----------------------------------------------------------------------------------------


def ratio_of(first: Estimate, other: Estimate) -> Json:
    """Return other / first with the 95% interval and the verdict.

    The logarithms of both figures are independent, so their distances to the ends of the intervals add in quadrature.
    Without both intervals the significance is not known.
    """
    value = other.value / first.value
    if first.low is None or first.high is None or other.low is None or other.high is None or min(first.low, other.low) <= 0:
        return {"value": value, "low": None, "high": None, "verdict": NOT_KNOWN}
    below = math.hypot(math.log(other.value / other.low), math.log(first.high / first.value))
    above = math.hypot(math.log(other.high / other.value), math.log(first.value / first.low))
    low, high = value * math.exp(-below), value * math.exp(above)
    return {"value": value, "low": low, "high": high, "verdict": NOT_SEPARATED if low <= 1 <= high else DIFFERS}


def refusal(first: Subject, other: Subject, key: str) -> str:
    """Return the reason why the figures of two results are not compared; empty if they are."""
    for name, subject in (("it", other), ("that of A", first)):
        objection = next((objection for objection in subject.objections.get(key, ()) if objection.refuses), None)
        if objection is None:
            continue
        if not objection.reason:
            return f"not compared: {name} follows from an {objection.verdict} figure"
        return f"not compared: {f'{name} is ambiguous' if objection.reason == READINGS else f'the audit calls {name} {objection.verdict}'}"
    return ""


def compared_rate(first: Subject, other: Subject) -> str | None:
    """Return the rate to compare: tokens/s, or samples/s if only that has intervals or values in both results.

    A rate that is not compared is returned only if there is no other.
    """
    known = [key for key in RATES if key in first.figures and key in other.figures]
    shared = [key for key in known if not refusal(first, other, key)] or known
    with_interval = [key for key in shared if first.figures[key].low is not None and other.figures[key].low is not None]
    return next(iter([*with_interval, *shared]), None)


def factors(first: Subject, other: Subject, rate: str, known: Knowledge) -> list[Json]:
    """Return the expected effects of differing conditions on the rate, largest first."""
    made = (
        *_hardware(first, other, known),
        _devices(first, other, known),
        _work(first, other, rate),
        _recomputation(first, other),
        _software(first, other, known),
    )
    return sorted((item for item in made if item), key=lambda item: -abs(math.log(item["value"])))


def _factor(conditions: Sequence[str], value: float, basis: str, low: float | None = None, high: float | None = None) -> Json:
    return {"conditions": list(conditions), "value": value, "low": low, "high": high, "basis": basis}


def _hardware(first: Subject, other: Subject, known: Knowledge) -> list[Json]:
    """Return the effects of the accelerator and of the number format; together they are the ratio of the dense peaks."""
    made = []
    formats_used = [subject.precision if subject.precision in PEAKS else None for subject in (first, other)]
    cards = [known.cards.get(subject.accelerator or "", {}) for subject in (first, other)]
    name = formats_used[0] or formats_used[1] or USUAL_FORMAT
    peaks = [card.get(f"peak_{name}_tflops") for card in cards]
    if first.accelerator != other.accelerator and peaks[0] and peaks[1]:
        basis = f"dense {name} peaks of the cards, {formats.plain(peaks[1])} and {formats.plain(peaks[0])} TFLOP/s"
        if not any(formats_used):
            basis += "; the number format is not stated"
        bandwidths = [card.get("memory_bandwidth_gb_s") for card in cards]
        if bandwidths[0] and bandwidths[1]:
            basis += f"; {_times(bandwidths[1] / bandwidths[0])} if memory bandwidth is the limit"
        made.append(_factor(["accelerator"], peaks[1] / peaks[0], basis))
    before, after = (cards[1].get(f"peak_{used}_tflops") if used else None for used in formats_used)
    if formats_used[0] != formats_used[1] and before and after:
        basis = f"dense peaks of one card, {formats_used[1]} {formats.plain(after)} and {formats_used[0]} {formats.plain(before)} TFLOP/s"
        made.append(_factor(["precision"], after / before, basis))
    return made


def _devices(first: Subject, other: Subject, known: Knowledge) -> Json | None:
    if not first.count or not other.count or first.count == other.count:
        return None
    ratio = other.count / first.count
    slope = known.effects.get("slope: devices doubled")
    if slope is None:
        return _factor(["accelerator_count"], ratio, "number of devices, if scaling is linear")
    percent = formats.significant(100 * (slope.value - 1), 2)
    basis = f"number of devices; each doubling costs {percent}% of time per token in the throughput model"
    return _factor(["accelerator_count"], ratio * slope.value ** -math.log2(ratio), basis)


def _work(first: Subject, other: Subject, rate: str) -> Json | None:
    """Return the effect of different FLOPs per token or sample."""
    if not first.flop_per_s or not other.flop_per_s:
        return None
    before, after = first.flop_per_s / first.figures[rate].value, other.flop_per_s / other.figures[rate].value
    differing = [key for key in WORK[rate] if differ(first, other, key)]
    if not differing and abs(after / before - 1) < SAME_WORK:
        return None
    unit = "token" if rate == "tokens_per_s" else "sample"
    basis = f"model FLOPs per {unit}, {formats.flop(after)} and {formats.flop(before)}"
    return _factor(differing or ["work"], before / after, basis)


def _recomputation(first: Subject, other: Subject) -> Json | None:
    key = "gradient_checkpointing"
    if first.recompute is None or other.recompute is None or (first.recompute == other.recompute and not differ(first, other, key)):
        return None
    basis = f"model FLOPs with recomputed ones, {_times(other.recompute, 3)} and {_times(first.recompute, 3)} of those without"
    return _factor([key], first.recompute / other.recompute, basis)


def _software(first: Subject, other: Subject, known: Knowledge) -> Json | None:
    before, after = (known.effects.get(f"level: {subject.level}") for subject in (first, other))
    if first.level == other.level or before is None or after is None:
        return None
    ratio = ratio_of(after, before)
    basis = f"mean effect of {other.level} and {first.level} software in the throughput model, 90% interval"
    return _factor(["level"], ratio["value"], basis, ratio["low"], ratio["high"])


def differ(first: Subject, other: Subject, key: str) -> bool:
    """Return True if both results state a condition and the values differ."""
    before, after = first.conditions.get(key), other.conditions.get(key)
    return before is not None and after is not None and before != after


# Views ---------------------------------------------------------------------------------------------


def view(subjects: Sequence[Subject], known: Knowledge) -> Json:
    """Return the comparison of two to four results with the first, as text and numbers.

    Raises
    ------
    ValueError
        If there are fewer than two or more than four results.

    """
    _check_number(len(subjects))
    first, others = subjects[0], subjects[1:]
    reasons = [_reason(first, other, known) for other in others]
    effects = [_effects(reason) for reason in reasons]
    keys = [key for key in known.conditions if any(key in subject.conditions for subject in subjects)]
    values = {key: [subject.conditions.get(key) for subject in subjects] for key in keys}
    differing = [key for key in keys if len({value for value in values[key] if value is not None}) > 1]
    partly = [key for key in keys if key not in differing and None in values[key]]
    explained = [key for key in differing if any(key in effect for effect in effects)]
    explained.sort(key=lambda key: -max(abs(math.log(effect[key]["value"])) for effect in effects if key in effect))

    def row(key: str) -> Json:
        cells = [{"text": values[key][0] or "not stated", "small": ""}]
        for value, effect, other in zip(values[key][1:], effects, others, strict=True):
            cells.append({"text": value or "not stated", "small": _effect_text(key, effect.get(key), first, other, known)})
        return {"key": key, "label": known.conditions[key], "cells": cells}

    return {
        "columns": [_column(subject) for subject in subjects],
        "warnings": [warning for subject in subjects for warning in _warnings(subject, known)],
        "figures": [_figure_row(spec, subjects) for spec in known.figures if any(spec["key"] in subject.figures for subject in subjects)],
        "differing": [row(key) for key in [*explained, *(key for key in differing if key not in explained)]],
        "partly": [row(key) for key in partly],
        "equal": [{"label": known.conditions[key], "text": values[key][0]} for key in keys if key not in differing and key not in partly],
        "reasons": reasons,
    }


def _check_number(number: int) -> None:
    if not FEWEST <= number <= MOST:
        raise ValueError(f"{number} chosen; choose {FEWEST} to {MOST}")


def _column(subject: Subject) -> Json:
    note = "the audit calls its rate or a condition impossible" if subject.impossible else ""
    return {"id": subject.id, "title": subject.title, "trust": subject.trust, "note": note}


def _warnings(subject: Subject, known: Knowledge) -> list[Json]:
    """Return a line for each figure of a result that the audit names or that has several readings."""
    made = []
    for spec in known.figures:
        objections = [
            f"{objection.verdict}, {objection.reason}" for objection in subject.objections.get(spec["key"], ()) if objection.reason
        ]
        if objections:
            made.append({"id": subject.id, "label": spec["label"], "text": "; ".join(objections)})
    return made


def _mark(subject: Subject, key: str) -> str:
    """Return the worst verdict on a figure."""
    objections = subject.objections.get(key, ())
    return objections[0].verdict if objections else ""


def _figure_row(spec: Mapping[str, Any], subjects: Sequence[Subject]) -> Json:
    first = subjects[0].figures.get(spec["key"])
    cells = []
    for position, subject in enumerate(subjects):
        figure = subject.figures.get(spec["key"])
        refused = refusal(subjects[0], subject, spec["key"]) if position and first and figure else ""
        ratio = ratio_of(first, figure) if position and first and figure and not refused else None
        cells.append(
            {
                "text": shown(spec["kind"], figure),
                "mark": _mark(subject, spec["key"]),
                "small": _interval_text(spec["kind"], figure, subject.runs),
                "ratio": ratio,
                "ratio_text": refused if ratio is None else _ratio_text(ratio, subjects[0], subject, interval_is_usual=spec["interval"]),
            }
        )
    return {"key": spec["key"], "label": spec["label"], "cells": cells}


def _no_interval(first: Subject, other: Subject) -> str:
    """Return the reason for a ratio without an interval."""
    return OTHER_INTERVAL if first.runs and other.runs else NO_INTERVAL


def _single_run(first: Subject, other: Subject) -> bool:
    """Return True if an interval of the ratio covers one run only, so that it says little about a further run."""
    return SINGLE_RUN in {first.runs, other.runs}


def _ratio_text(ratio: Json, first: Subject, other: Subject, *, interval_is_usual: bool) -> str:
    if ratio["low"] is None:
        return _times(ratio["value"]) + (f", {_no_interval(first, other)}" if interval_is_usual else "")
    digits = _digits(ratio["low"], ratio["high"])
    return f"{_times(ratio['value'], digits)} ({_plain_interval(ratio['low'], ratio['high'])}), {ratio['verdict']}{', single run' if _single_run(first, other) else ''}"


def _interval_text(kind: str, figure: Estimate | None, runs: str) -> str:
    if figure is None or figure.low is None or figure.high is None:
        return ""
    ends = _plain_interval(figure.low, figure.high) if kind == "rate" else f"{_one(kind, figure.low)} to {_one(kind, figure.high)}"
    return f"{ends}, {runs}" if runs else ends


def _reason(first: Subject, other: Subject, known: Knowledge) -> Json:
    """Return the conditions that explain the ratio of the rates, and the factor that is left."""
    rate = compared_rate(first, other)
    empty: Json = {"id": other.id, "title": other.title, "rate": None, "observed": None, "sentence": "", "items": [], "left": None}
    if rate is None:
        return empty | {"sentence": "No rate to compare: tokens/s or samples/s must be known for both.", "summary": "", "caveat": ""}
    refused = refusal(first, other, rate)
    if refused:
        return empty | {"sentence": f"{_label(rate, known)} {refused}.", "summary": "", "caveat": ""}
    observed = ratio_of(first.figures[rate], other.figures[rate])
    items = factors(first, other, rate, known)
    for item in items:
        item["name"] = ", ".join(known.conditions.get(key, key) for key in item["conditions"])
        item["text"] = _factor_text(item)
    expected = math.prod(item["value"] for item in items)
    left = observed["value"] / expected if items else None
    return empty | {
        "rate": rate,
        "observed": observed,
        "sentence": _sentence(rate, observed, first, other, known),
        "items": items,
        "left": left,
        "summary": _summary(expected, left),
        "caveat": _caveat(first, other, observed),
    }


def _label(key: str, known: Knowledge) -> str:
    return next((spec["label"] for spec in known.figures if spec["key"] == key), key)


def _sentence(rate: str, observed: Json, first: Subject, other: Subject, known: Knowledge) -> str:
    label = _label(rate, known)
    what = "single runs" if _single_run(first, other) else "rates"
    verdict = {
        DIFFERS: f"The {what} differ: the interval excludes 1.",
        NOT_SEPARATED: f"The {what} are not separated: the interval includes 1.",
        NOT_KNOWN: f"Significance is not known ({_no_interval(first, other)}).",
    }[observed["verdict"]]
    if observed["low"] is None:
        return f"{label}: {_times(observed['value'])}. {verdict}"
    digits = _digits(observed["low"], observed["high"])
    interval = _plain_interval(observed["low"], observed["high"])
    return f"{label}: {_times(observed['value'], digits)} (95% interval {interval}). {verdict}"


def _summary(expected: float, left: float | None) -> str:
    if left is None:
        return "No expected effect is known, so the whole ratio is unexplained."
    return f"Expected together: {_times(expected)}. Left unexplained: a factor of {formats.significant(left)}."


def _caveat(first: Subject, other: Subject, observed: Json) -> str:
    if observed["low"] is not None and _single_run(first, other):
        return "An interval here covers one run only; repeats of a run vary more."
    return ""


def _effects(reason: Json) -> dict[str, Json]:
    return {key: item for item in reason["items"] for key in item["conditions"]}


def _effect_text(key: str, item: Json | None, first: Subject, other: Subject, known: Knowledge) -> str:
    """Return the likely effect of a condition of another result, compared with the first."""
    before, after = first.conditions.get(key), other.conditions.get(key)
    if before is None or after is None:
        return "" if before == after else "may differ"
    if before == after:
        return "as in A"
    if item is None:
        return "effect not known"
    together = [known.conditions.get(name, name) for name in item["conditions"] if name != key]
    return f"expected {_times(item['value'])}" + (f", together with {', '.join(together)}" if together else "")


def _factor_text(item: Json) -> str:
    if item["low"] is None:
        return _times(item["value"])
    return f"{_times(item['value'])} ({formats.significant(item['low'])} to {formats.significant(item['high'])})"


def card_view(keys: Sequence[str], known: Knowledge) -> Json:
    """Return the comparison of the cards of two to four accelerators. Raise ValueError for another number."""
    _check_number(len(keys))
    cards = [known.cards[key] for key in keys]
    rows = []
    for spec in known.card_rows:
        values = [card.get(spec["key"]) for card in cards]
        if any(value is not None for value in values):
            rows.append({"label": spec["label"], "cells": [_card_cell(spec, card, values[0], place) for place, card in enumerate(cards)]})
    return {"columns": [{"id": key, "title": card["name"]} for key, card in zip(keys, cards, strict=True)], "rows": rows}


def _card_cell(spec: Mapping[str, Any], card: Mapping[str, Any], first: Any, place: int) -> Json:  # noqa: ANN401 - a number or text
    value = card.get(spec["key"])
    notes = [card["offer"]] if spec["key"] == "usd_per_hour" and value is not None else []
    if value is not None and spec["key"] in card["unverified"]:
        notes.append("unverified")
    ratio = value / first if place and spec["kind"] not in {"text", "whole"} and value and first else None
    text = "not known" if value is None else value if spec["kind"] == "text" else _one(spec["kind"], value) + spec["unit"]
    return {"text": text, "small": "; ".join(notes), "ratio": ratio, "ratio_text": "" if ratio is None else _times(ratio)}


# Formats -------------------------------------------------------------------------------------------


def shown(kind: str, figure: Estimate | None) -> str:
    """Return a figure as text, with enough digits to tell it from the ends of its interval."""
    if figure is None:
        return "not known"
    if kind == "rate" and figure.low is not None and figure.high is not None:
        return formats.significant(figure.value, _digits(figure.low, figure.high))
    return _one(kind, figure.value)


SHOWN = {
    "rate": formats.significant,
    "number": formats.plain,
    "whole": "{:.0f}".format,
    "duration": formats.duration,
    "percent": formats.percent,
    "gib": formats.gib,
    "usd": formats.usd,
}
"""Kind of number -> its text."""


def _one(kind: str, value: float) -> str:
    return SHOWN[kind](value)


def _digits(low: float, high: float) -> int:
    same = (digits for digits in range(3, MOST_DIGITS) if formats.significant(low, digits) != formats.significant(high, digits))
    return next(same, MOST_DIGITS)


def _plain_interval(low: float, high: float) -> str:
    digits = _digits(low, high)
    return f"{formats.significant(low, digits)} to {formats.significant(high, digits)}"


def _times(value: float, digits: int = 3) -> str:
    return f"{formats.significant(value, digits)}{TIMES}"
