"""Copies: printed figures that agree to the digit in rows of different work."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from operator import attrgetter

from tunemark.collector.audit.evidence import AuditedResult, Evidence, grouped, label, with_model
from tunemark.collector.audit.rule import SUSPICIOUS, Finding, rule

TIMES_AND_MEMORY = (
    "epoch_time_s", "model_memory_bytes", "peak_memory_bytes", "samples_per_s", "step_time_s", "tokens_per_s", "train_time_s"
)  # fmt: skip
QUALITY = ("accuracy", "eval_loss", "train_loss")


@dataclass(frozen=True, slots=True)
class Copies:
    """Results of one document that share some conditions and differ in others, and the figures that may then not all agree."""

    same: tuple[str, ...]
    differing: tuple[str, ...]
    """Conditions of which at least one differs."""
    names: tuple[str, ...]
    reason: str
    figures: int = 1
    """Number of shared figures that must agree."""
    every: bool = False
    """Whether all figures that both have must agree."""
    digits: int = 1
    """Significant digits that each must have."""
    results: int = 2
    """Number of different results that must agree."""


KINDS = (
    Copies(
        ("section", "conditions.method", "conditions.accelerator", "devices", "conditions.micro_batch", "conditions.sequence_length"),
        ("model",),
        (*TIMES_AND_MEMORY, *QUALITY),
        "times of two models differ by chance, so several that agree to the last digit were not measured separately",
        figures=2,
        every=True,
    ),
    Copies(
        ("conditions.model", "conditions.accelerator", "devices"),
        ("method",),
        ("tokens_per_s", "samples_per_s", "train_time_s"),
        "two methods do different work",
        digits=3,
    ),
    Copies(
        ("section", "conditions.model"),
        ("accelerator",),
        ("accuracy",),
        "devices add up in different orders, so separate runs differ in a few rows: it was measured once",
        results=3,
    ),
    Copies(
        ("conditions.model", "conditions.method", "conditions.accelerator"),
        ("sequence_length", "micro_batch", "global_batch"),
        QUALITY,
        "each processes different rows, so either one was not run, or the setting had no effect",
        figures=2,
    ),
)


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
