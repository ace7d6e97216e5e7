"""Copies: printed figures that agree to the digit in rows of different work."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from operator import attrgetter
from pathlib import Path

from tunemark.collector.audit.evidence import AuditedResult, Evidence, grouped, label, with_model
from tunemark.collector.audit.rule import SUSPICIOUS, Finding, rule


@dataclass(frozen=True, slots=True)
class Copies:
    """A row of copies.toml: conditions that results share, others in which they differ, and the figures that may then not all agree."""

    same: list[str]
    differing: list[str]
    names: list[str]
    reason: str
    figures: int = 1
    every: bool = False
    digits: int = 1
    results: int = 2


KINDS = [Copies(**kind) for kind in tomllib.loads(Path(__file__).with_name("copies.toml").read_text(encoding="utf-8"))["kinds"]]


@rule(id="copied-figures", family="comparison", verdicts=(SUSPICIOUS,))
def copied_figures(evidence: Evidence) -> Iterator[Finding]:
    """Different work with the same digits.

    Figures of separate runs differ by chance, and figures of different work differ in the last digits at the least. Rows that agree in all
    of them are copies, estimates, or one run.
    """
    for kind in KINDS:
        for group in grouped(with_model(evidence.published), attrgetter("source", *kind.same)).values():
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
    if "accelerator" in kind.differing and not (first.accelerator and second.accelerator):
        return ()
    shared = tuple(name for name in kind.names if name in first.claims and name in second.claims)
    equal = tuple(
        name
        for name in shared
        if first.claims[name].value == second.claims[name].value
        and len(re.sub(r"\D", "", first.claims[name].printed).strip("0")) >= kind.digits
    )
    return equal if len(equal) >= kind.figures and (equal == shared or not kind.every) else ()
