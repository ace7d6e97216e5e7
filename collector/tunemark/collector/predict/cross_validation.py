"""The accuracy of predictions: leave out whole sources, accelerators and models, and predict their rows."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Literal

import numpy as np

from tunemark.collector.audit.evidence import Evidence
from tunemark.collector.audit.load import load_evidence
from tunemark.collector.audit.rule import Finding, audit, in_order
from tunemark.collector.audit.rules.physics import unlike_other_sources
from tunemark.collector.predict.calibration_rows import calibrate
from tunemark.collector.predict.fit import Fit, Observed, fit, meaning_of_parameter
from tunemark.collector.store.database import Row, Rows, columns_of
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.option_rates import unmeasured
from tunemark.schema.physics.architecture import count_parameters
from tunemark.schema.physics.stacks import STACKS
from tunemark.schema.physics.utilisation import TERA
from tunemark.schema.throughput import QUANTILE, Combination, Range, architecture_of, interval_of
from tunemark.schema.vocabulary import AuditVerdict

LeftOut = Literal["source", "accelerator", "model"]
GROUP: dict[LeftOut, Callable[[Combination], str]] = {
    "source": lambda config: config.source,
    "accelerator": lambda config: config.accelerator.key,
    "model": lambda config: architecture_of(config.shape.model),
}
"""Groups that are left out together: a document or benchmark, an accelerator card, or all models of one
architecture (Llama 3 and 3.1 share theirs)."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A row and its prediction from rows outside its group."""

    row: Observed
    left_out: LeftOut
    group: str
    """The source, accelerator or architecture that was left out."""
    tokens_per_s: Range | None
    """Predicted rate of all devices; None if nothing similar was left."""
    reason: str | None
    """The reason why there is no prediction."""

    @property
    def error(self) -> float | None:
        """Predicted rate / that of the result - 1."""
        return None if self.tokens_per_s is None else self.tokens_per_s.value / self.row.tokens_per_s - 1

    @property
    def covered(self) -> bool | None:
        """True if the interval contains the rate of the result."""
        return None if self.tokens_per_s is None else self.tokens_per_s.low <= self.row.tokens_per_s <= self.tokens_per_s.high


FOLDS = 5
"""Groups are left out in at most this many folds, several small groups together, which can only make predictions harder. The largest groups
come first, each into the smallest fold: a new group of a few rows leaves the folds of larger ones as they are. With 4, 5 and 6 folds, the
median error over sources is 13.8%, 13.7% and 14.5%, and 93.2 to 93.6% are inside (2026-11-30): 5 keep `collect` within 12 s of CPU."""


def leave_out(fitted: Fit, left_out: LeftOut) -> Iterator[HeldOut]:
    """Yield each row with its prediction from the rows of other groups; the posterior never sees the group."""
    key = GROUP[left_out]
    fold_of, sizes = dict[str, int](), [0] * FOLDS
    for group, rows in sorted(Counter(key(row.config) for row in fitted.rows).items(), key=lambda each: (-each[1], each[0])):
        fold_of[group] = sizes.index(min(sizes))
        sizes[fold_of[group]] += rows
    for fold in sorted(set(fold_of.values())):
        lines = [line for line, row in enumerate(fitted.rows) if fold_of[key(row.config)] == fold]
        kept = (known for row, known in zip(fitted.rows, fitted.known, strict=True) if fold_of[key(row.config)] != fold)
        others = tuple({(each.method, each.vendor, each.encoder, each.experts, each.sequence_length): each for each in kept}.values())
        for line, estimate in zip(lines, fitted.predict_rows(fitted.without(lines), lines), strict=True):
            row = fitted.rows[line]
            config, shape = row.config, row.config.shape
            reason = unmeasured(others, shape.model, shape.method, config.accelerator, shape.sequence_length)
            yield HeldOut(row, left_out, key(config), None if reason else interval_of(estimate, config.devices), reason)


def audit_rates(evidence: Evidence, findings: Iterable[Finding], held_out: Iterable[HeldOut]) -> tuple[Finding, ...]:
    """Return findings together with those on rates that results of other sources do not explain.

    These come last: the model is fitted to what the other rules do not refute.
    """
    # Of a document whose software is not known, a fast rate may be one of tuned software.
    unknown = {result.source for result in evidence.published} - {entry.source for entry in evidence.facts.known.software}
    expected = {
        result: (each.row.tokens_per_s, each.tokens_per_s)
        for each in held_out
        if each.left_out == "source" and each.tokens_per_s is not None
        if each.row.config.source not in unknown or each.row.tokens_per_s < each.tokens_per_s.value
        for result in (each.row.id, *each.row.same)
    }
    return in_order((*findings, *audit(replace(evidence, expected=expected), (unlike_other_sources,))))


def audit_all(evidence: Evidence) -> tuple[Finding, ...]:
    """Return the findings of all rules, those on rates included, as `collect` stores them."""
    return fit_and_audit(evidence)[1]


def fit_and_audit(evidence: Evidence) -> tuple[Fit, tuple[Finding, ...]]:
    """Return the fit to what the other rules do not refute, and the findings of all rules."""
    findings = audit(evidence)
    fitted = fit(calibrate(evidence, findings).rows)
    return fitted, audit_rates(evidence, findings, leave_out(fitted, "source"))


def evidence_rows(root: Path, facts: FactBase) -> Rows:
    """Return the rows of the tables that a recommendation needs, as `collect` stores them.

    A reproduced result counts as measured: only the authors of commits say who has reproduced it.
    """
    evidence = load_evidence(root, facts)
    fitted, findings = fit_and_audit(evidence)
    trust = {run.id: "measured" if run.measured else "converted" for run in evidence.results if run.measured or run.converted}
    return throughput_rows(fitted, (), trust, findings)


RATES = frozenset({"tokens_per_s", "samples_per_s", "step_time_s", "train_time_s", "tokens", "epochs"})
"""Figures from which a rate is computed."""


STACK_LOOPS = {stack.loop for stack in STACKS.values()}
"""Training loops of software stacks; empty for any loop."""


OF_LOOP = re.compile(r"(?:(?:stack|release)[^:]*: |factor of stack: \w+, )(.*?) \(\w+\)")
"""The training loop that a parameter is of, such as `050 Unsloth`."""


def throughput_rows(fitted: Fit, held_out: Sequence[HeldOut], trust: Mapping[str, str], findings: Iterable[Finding]) -> Rows:
    """Return the rows of the tables about the throughput model. `trust` is the trust level of each result."""
    covariance, loops = fitted.posterior.covariance, [found[1] if (found := OF_LOOP.match(name)) else "" for name in fitted.names]
    # Predictions are for any software of a level, or for that of a stack.
    places = [place for place, loop in enumerate(loops) if loop in STACK_LOOPS]
    doubted = {
        finding.records[0]
        for finding in findings
        if finding.verdict is AuditVerdict.SUSPICIOUS and not RATES.isdisjoint(finding.quantities)
    }
    return {
        "throughput_model": list(_parameters(fitted)),
        "throughput_covariances": [
            {"parameter": fitted.names[one], "other": fitted.names[other], "covariance": float(f"{covariance[one, other]:.4g}")}
            for one, other in combinations_with_replacement(places, 2)
            if loops[one] in {"", loops[other]} or not loops[other]
        ],
        "known_rates": [
            asdict(replace(known, trust=trust.get(known.result_id, known.trust), suspicious=known.result_id in doubted))
            for known in fitted.known
        ],
        "throughput_errors": [_error_row(one) for one in held_out],
    }


def _parameters(fitted: Fit) -> Iterator[Row]:
    deviations = np.sqrt(np.diag(fitted.posterior.covariance))
    counts = Counter(name for row in fitted.rows for name in row.parameters)
    for name, mean, deviation in zip(fitted.names, fitted.posterior.mean, deviations, strict=True):
        kind, _, level = name.partition(": ")
        yield {
            "parameter": name,
            "kind": kind,
            "level": level,
            "mean": float(f"{mean:.6g}"),
            "value": math.exp(mean),
            "low": math.exp(mean - QUANTILE * deviation),
            "high": math.exp(mean + QUANTILE * deviation),
            "rows": counts[name],
            "meaning": meaning_of_parameter(name),
        }


def _error_row(held_out: HeldOut) -> Row:
    config = held_out.row.config
    count = count_parameters(config.shape.model)
    peak = config.accelerator.peak_tflops.get(config.shape.autocast or config.shape.activations)
    return columns_of("throughput_errors", held_out) | {
        "active_parameters": count.total - count.feed_forward + count.active_feed_forward,
        "peak_flop_per_s": peak * TERA * config.devices if peak else None,
    }
