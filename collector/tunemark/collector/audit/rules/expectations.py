"""Expectations: results that differ in one condition only, whose figures must then be equal or ordered, or cannot agree to the digit.

A new expectation is one row of expectations.toml. The names in it are fields of results, or functions of this module: values of a result and limits.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

from tunemark.collector.audit.bounds import rates_below_peak
from tunemark.collector.audit.evidence import AuditedResult, Evidence, grouped, label, same_software
from tunemark.collector.audit.interval import MORE_MEMORY, Interval, products_of
from tunemark.collector.audit.published_shape import published_shape
from tunemark.collector.audit.rule import INCONSISTENT, SUSPICIOUS, Finding, rule
from tunemark.collector.audit.rules.identities import figures_of
from tunemark.collector.audit.token_rates import training_or_wall_time
from tunemark.collector.store.database import field_at
from tunemark.schema.physics.architecture import count_parameters
from tunemark.schema.physics.memory import estimate_memory

FEWEST_STEPS = 20
"""A run of fewer steps is mostly warm-up (definitions#steady-window)."""

Value = tuple[Interval, str, tuple[str, ...]]
"""A figure of a result, or the ratio of two, with its words and the quantities that it rests on."""
ROWS = tomllib.loads(Path(__file__).with_name("expectations.toml").read_text(encoding="utf-8"))


def _at_most(limit: float | str, evidence: Evidence, *results: AuditedResult) -> float:
    if isinstance(limit, str):
        return LIMITS[limit](evidence, *results) if limit in LIMITS else evidence.facts.known.practice(limit)
    return limit


def value_of(name: str, evidence: Evidence, result: AuditedResult) -> Value | None:
    """Return a value of one device: by the name of a function, a figure as printed, or a product of figures as in words.toml."""
    if name in VALUES:
        return VALUES[name](result)
    names = tuple(each for each in re.split("[ /]+", name) if each in result.claims)
    ways = products_of(name.split(), figures_of(evidence, result).amounts) if names else ()
    found = [each for each in ways if "together" not in each[0]]
    words = f"({found[0][0]} = {found[0][1].value:,.10g})" if found and " " in name else result.printed(name)
    return (found[0][1], words, names) if found else None


def rate(result: AuditedResult) -> Value | None:
    """Return tokens per second, if one rate is possible."""
    rates = rates_below_peak(result)
    return (rates[0].tokens_per_s, f"{rates[0].tokens_per_s.value:,.0f} tokens/s", (rates[0].quantity,)) if len(rates) == 1 else None


def seconds_per_row(result: AuditedResult) -> Value | None:
    """Return seconds per row of the training data, by whole epochs or by the steps that were done."""
    steps, epochs, time = result.interval("steps"), result.interval("epochs"), training_or_wall_time(result)
    conditions, rows = result.conditions, result.training_rows
    batch = conditions.global_batch or (conditions.micro_batch if result.devices == 1 else None)
    if time is None:
        return None
    if epochs is not None and rows is not None and result.finished:
        done, words = epochs * rows, f"{epochs.value:g} x {rows:,} rows"
    elif steps is not None and batch is not None and steps.value >= FEWEST_STEPS:
        done, words = steps * batch, f"{steps.value:,.0f} steps x {batch} rows"
    else:
        return None
    names = tuple(name for name in ("train_time_s", "wall_s") if name in result.claims)
    return time / done, f"{time.value:g} s / ({words}) = {1e3 * time.value / done.value:.2f} ms per row", names


VALUES = {each.__name__: each for each in (rate, seconds_per_row)}


def alike(results: Iterable[AuditedResult], same: Iterable[str], stated: Iterable[str] = ()) -> Iterable[list[AuditedResult]]:
    """Return the results that share all of these fields in groups, those that must be stated known in all of them."""
    known = [result for result in results if None not in (field_at(result, name) for name in stated)]
    return grouped(known, lambda result: repr([field_at(result, name) for name in (*stated, *same)])).values()


# Copied figures -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Copies:
    """A row of the table `copied`."""

    stated: list[str]
    same: list[str]
    differing: list[str]
    names: list[str]
    reason: str
    figures: int = 1
    every: bool = False
    digits: int = 1
    results: int = 2


@rule(id="copied-figures", family="comparison", verdicts=(SUSPICIOUS,))
def copied_figures(evidence: Evidence) -> Iterator[Finding]:
    """Different work with the same digits.

    Figures of separate runs differ by chance, and figures of different work differ in the last digits at the least. Rows that agree in all
    of them are copies, estimates, or one run.
    """
    for kind in (Copies(**row) for row in ROWS["copied"]):
        for group in alike(evidence.published, kind.same, kind.stated):
            pairs = [(first, second, shared) for first, second in combinations(group, 2) if (shared := _agreeing(kind, first, second))]
            results = {result.id: result for first, second, _ in pairs for result in (first, second)}
            if len({_values(kind, result) for result in results.values()}) < kind.results:
                continue
            names = tuple(dict.fromkeys(name for *_, shared in pairs for name in shared))
            shown = "; ".join(f"{first.id} = {second.id}: {first.printed(*shared)}" for first, second, shared in pairs)
            values = "; ".join(f"{result.id}: {', '.join(map(str, _values(kind, result)))}" for result in results.values())
            words = f"{shown}. {' and '.join(kind.differing)} differ ({values}): {kind.reason}"
            claim = f"{', '.join(map(label, names))} of {len(results)} results"
            yield Finding(SUSPICIOUS, tuple(results), claim, words, quantities=names)


def _values(kind: Copies, result: AuditedResult) -> tuple[object, ...]:
    return tuple(getattr(result.conditions, name) for name in kind.differing)


def _agreeing(kind: Copies, first: AuditedResult, second: AuditedResult) -> tuple[str, ...]:
    """Return the figures in which two results agree, if they differ in a condition and agree in enough figures."""
    if all(a is None or b is None or a == b for a, b in zip(_values(kind, first), _values(kind, second), strict=True)):
        return ()
    shared = tuple(name for name in kind.names if name in first.claims and name in second.claims)
    equal = tuple(
        name
        for name in shared
        if first.claims[name].value == second.claims[name].value
        and len(re.sub(r"\D", "", first.claims[name].printed).strip("0")) >= kind.digits
    )
    return equal if len(equal) >= kind.figures and (equal == shared or not kind.every) else ()


# Equal figures -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Equal:
    """A row of the table `equal`."""

    stated: list[str]
    value: str
    limit: float | str
    reason: str
    same: tuple[str, ...] = ()
    differing: str = "id"


def _vocabularies(evidence: Evidence, *results: AuditedResult) -> float:
    """Return the ratio of token counts of one text: another tokenizer changes them by tens of per cent."""
    same = len({result.model.vocabulary if result.model else None for result in results}) == 1 and results[0].model is not None
    slack = (1 + evidence.facts.known.practice("clock-slack")) ** 2
    return slack if same else slack * evidence.facts.known.practice("tokeniser-spread")


@rule(id="same-work", family="comparison", verdicts=(INCONSISTENT,))
def equal_figures(evidence: Evidence) -> Iterator[Finding]:
    """Figures that differ although nothing that decides them does.

    Tokens of an epoch, memory of a micro-step and memory of the parameters follow from conditions that the document states to be the same.
    """
    for each in (Equal(**row) for row in ROWS["equal"]):
        for group in alike(evidence.published, each.same, each.stated):
            known = (result for result in group if field_at(result, each.differing) is not None)
            rows = [(result, value) for result in known if (value := value_of(each.value, evidence, result))]
            results = [result for result, _ in rows]
            if len({field_at(result, each.differing) for result in results}) < 2:  # noqa: PLR2004 - two are compared
                continue
            ordered = sorted(rows, key=lambda row: row[1][0].value)
            (_, (low, *_)), (_, (high, _, quantities)) = ordered[0], ordered[-1]
            if (high / low).low <= _at_most(each.limit, evidence, *results):
                continue
            shown = "; ".join(f"{result.id}, {result.device_name}: {words}" for result, (_, words, _) in ordered)
            claim = f"{' and '.join(map(label, quantities))} of {len(ordered)} results"
            words = f"{shown}. Highest / lowest = {high.value / low.value:.2f}, but {each.reason}"
            yield Finding(INCONSISTENT, tuple(result.id for result, _ in ordered), claim, words, quantities)


# Ordered figures -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ordered:
    """A row of the table `ordered`."""

    pairs: str
    values: list[str]
    limit: float | str
    reason: str
    inconsistent_above: float = float("inf")
    doubted: str = "first"


@dataclass(frozen=True, slots=True)
class Pairs:
    """A row of the table `pairs`."""

    stated: list[str]
    same: list[str]
    of: str = "published"
    agreed: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    more: str = ""
    less: str = ""
    times: float = 1.0
    at_most: str = ""
    besides: list[str] | None = None

    def found(self, evidence: Evidence) -> Iterator[tuple[AuditedResult, AuditedResult]]:
        """Yield the pairs of results."""
        for group in alike(getattr(evidence, self.of), self.same, self.stated):
            # Measured results may be many, so one of each number of devices is kept.
            results = {result.devices if result.measured else result.id: result for result in group}.values()
            yield from (pair for pair in permutations(results, 2) if self._holds(*pair))

    def _holds(self, first: AuditedResult, second: AuditedResult) -> bool:
        def of_both(name: str) -> tuple[Any, Any]:
            return field_at(first, name), field_at(second, name)

        limited, limit = of_both(self.at_most) if self.at_most else (0, 0)
        higher, lower = of_both(self.more) if self.more else of_both(self.less)[::-1] if self.less else (1.0, 0.0)
        return (
            (not self.methods or of_both("conditions.method") == tuple(self.methods))
            and all(None in pair or {} in pair or pair[0] == pair[1] for pair in map(of_both, self.agreed))
            and None not in {higher, lower}
            and higher > lower * self.times
            and (None in {limited, limit} or limited <= limit)
            and (self.besides is None or same_software(first, second, self.besides))
        )


def _predicted_growth(evidence: Evidence, first: AuditedResult, second: AuditedResult) -> float:
    """Return the ratio of memory by the memory model where both shapes are stated, with the share by which one peak counts as higher."""
    reading, facts = evidence.facts.known.memory_reading(first.source), evidence.facts
    shapes = [published_shape(each.conditions, facts, reading) for each in (first, second)]
    peaks = [estimate_memory(shape).peak_allocated for shape in shapes if shape is not None]
    return MORE_MEMORY * (max(1.0, peaks[0] / peaks[1]) if len(peaks) > 1 else 1.0)


LIMITS: dict[str, Callable[..., float]] = {"vocabularies": _vocabularies, "predicted_growth": _predicted_growth}


@rule(id="wrong-order", family="comparison", verdicts=(SUSPICIOUS, INCONSISTENT))
def ordered_figures(evidence: Evidence) -> Iterator[Finding]:
    """More memory or time than a result that needs more.

    Frozen and quantised weights save memory and work, larger models need more, and n devices do at most n times the work of one. Two results
    of one document that differ in nothing else must keep this order, within what published results show.
    """
    rows = [(each, value) for each in (Ordered(**row) for row in ROWS["ordered"]) for value in each.values]
    found = {name: list(Pairs(**row).found(evidence)) for name, row in ROWS["pairs"].items()}
    for each, value in rows:
        for first, second in found[each.pairs]:
            mine, theirs = value_of(value, evidence, first), value_of(value, evidence, second)
            if mine is None or theirs is None or (ratio := mine[0] / theirs[0]).low < _at_most(each.limit, evidence, first, second):
                continue
            words, quantities = f"{mine[1]} / {theirs[1]}", tuple(dict.fromkeys((*mine[2], *theirs[2])))
            verdict = INCONSISTENT if ratio.low > each.inconsistent_above else SUSPICIOUS
            claim = "; ".join(f"{_name(result)}: {result.printed(*quantities)}" for result in (first, second))
            records = (second.id, first.id) if each.doubted == "second" else (first.id, second.id)
            yield Finding(verdict, records, claim, f"{words} = {ratio.value:.2f}, but {each.reason}", quantities=quantities)


def _name(result: AuditedResult) -> str:
    """Return model, method and devices, by which two results of a pair differ."""
    devices = f"{result.devices} x {result.device_name}" if result.device_name else f"{result.devices} devices"
    size = f" ({count_parameters(result.model).total / 1e9:.2f}B)" if result.model else ""
    return f"{result.model.name if result.model else 'unknown model'}{size}, {result.method_name}, {devices}"
