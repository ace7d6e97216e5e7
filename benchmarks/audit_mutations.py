"""Find planted errors: change one credible published row at a time and see whether the audit finds it.

    python benchmarks/audit_mutations.py [--kind NAME] [--half tuned|held-out] [--json]

The rows come from the collection of published results (sources 010 to 899). Each kind of error is planted into rows that the
audit accepts, spread over sources by a hash. Rules were tuned on one half of the cases; the other half has other rows. A case is found
when a finding about the changed record appears that was not there before, with a verdict of its kind. The share of unchanged
rows that the audit calls suspicious, inconsistent or impossible is printed for each source.
"""

import argparse
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from tunemark.collector.audit.evidence import AuditedResult, Evidence, grouped
from tunemark.collector.audit.load import load_evidence
from tunemark.collector.audit.rule import Finding, audit
from tunemark.collector.audit.rules.comparison import TABLE
from tunemark.schema.formats import GIB
from tunemark.schema.physics.architecture import count_parameters
from tunemark.schema.records.claims import Claim, Comparison
from tunemark.schema.records.published import Statement
from tunemark.schema.vocabulary import AuditVerdict, Dtype

ROOT = Path(__file__).parents[1]
CASES_PER_KIND, CASES_PER_SOURCE = 10, 3
FIRST, LAST = "010", "899"
RATES = ("tokens_per_s", "samples_per_s", "samples_per_s_reported", "tokens_per_s_reported")
WRONG = frozenset({AuditVerdict.SUSPICIOUS, AuditVerdict.INCONSISTENT, AuditVerdict.IMPOSSIBLE})
UNCLEAR = frozenset({AuditVerdict.AMBIGUOUS})
WRONG_SUM = frozenset({AuditVerdict.INCONSISTENT})
HALVES: dict[str, tuple[str, ...]] = {"tuned": (), "held-out": ("held-out",)}
"""Halves of the cases with the words that their hash begins with."""
HELD_OUT_SOURCES = frozenset({"021", "024", "025", "026", "027"})
"""Sources for whose rows no rule and no constant was changed."""


@dataclass(frozen=True)
class Case:
    """One planted error."""

    kind: str
    record: str
    """The record that the finding must be about."""
    change: str
    evidence: Evidence
    verdicts: frozenset[AuditVerdict]
    half: str
    """`tuned`, or `held-out` for rows that were drawn after the rules were written."""


def _hash(*words: str) -> str:
    return sha256(" ".join(words).encode()).hexdigest()


def exact(value: float, unit: str = "") -> Claim:
    """Return a claim that is printed with six digits."""
    return Claim(value=value, printed=f"{value:.6g} {unit}".strip())


def scaled(result: AuditedResult, names: tuple[str, ...], factor: float) -> AuditedResult:
    """Return a result with some figures multiplied."""
    changed = {name: exact(claim.value * factor) for name, claim in result.claims.items() if name in names and not claim.readings}
    return replace(result, claims={**result.claims, **changed})


def with_result(evidence: Evidence, changed: AuditedResult) -> Evidence:
    """Return the evidence with one result replaced."""
    return replace(evidence, results=tuple(changed if result.id == changed.id else result for result in evidence.results))


def with_statement(evidence: Evidence, source: str, section: str, **fields: object) -> tuple[Evidence, str]:
    """Return the evidence with one more statement of a document, and its id."""
    statement = Statement(id=f"{source}-S999", section=section, **fields)  # type: ignore[arg-type]
    documents = [
        document.model_copy(update={"statements": (*document.statements, statement)}) if document.id == source else document
        for document in evidence.documents
    ]
    return replace(evidence, documents=tuple(documents)), statement.id


# The kinds of errors: each yields the changed evidence, the record and the change in words, or nothing -----------------------


Planted = tuple[Evidence, str, str] | None


def _has_rate(result: AuditedResult) -> bool:
    return any(name in result.claims and not result.claims[name].readings for name in RATES) and result.model is not None


def all_as_one(evidence: Evidence, result: AuditedResult) -> Planted:
    """Plant the rate of all devices or cores as the rate of one: it is multiplied by their number once more."""
    parts = result.devices if result.devices > 1 else (result.accelerator.cores_per_unit or 1) if result.accelerator else 1
    if parts < 4 or not _has_rate(result):
        return None
    return with_result(evidence, scaled(result, RATES, parts)), result.id, f"rate x {parts}"


def one_as_all(evidence: Evidence, result: AuditedResult) -> Planted:
    """Plant the rate of one device or core as the rate of all."""
    parts = result.devices if result.devices > 1 else (result.accelerator.cores_per_unit or 1) if result.accelerator else 1
    if parts < 4 or not _has_rate(result):
        return None
    return with_result(evidence, scaled(result, RATES, 1 / parts)), result.id, f"rate / {parts}"


def far_below(evidence: Evidence, result: AuditedResult) -> Planted:
    """Plant a rate far below its siblings."""
    factor = (4, 6, 10)[int(_hash(result.id)[1], 16) % 3]
    if not _has_rate(result):
        return None
    return with_result(evidence, scaled(result, RATES, 1 / factor)), result.id, f"rate / {factor}"


def wrong_baseline(evidence: Evidence, result: AuditedResult) -> Planted:
    """Plant a speed-up that was computed from another row than the one it names."""
    rows = [other for other in evidence.published if TABLE(other) == TABLE(result) and other.interval("tokens_per_s")]
    rate = result.claims.get("tokens_per_s")
    others = sorted((other for other in rows if other.id != result.id), key=lambda other: _hash(result.id, other.id))
    if rate is None or len(others) < 2:
        return None
    named, taken = others[0], others[1]
    wrong, right = (rate.value / other.claims["tokens_per_s"].value for other in (taken, named))
    if abs(wrong / right - 1) < 0.05:
        return None
    assertion = Comparison(quantity="tokens_per_s", records=(result.id, named.id), change=Claim(value=wrong, printed=f"{wrong:.2f}x"))
    changed, statement = with_statement(evidence, result.source, "Text", assertion=assertion)
    return changed, statement, f"{wrong:.2f}x over {named.id}, from {taken.id}"


def wrong_relative_speed(evidence: Evidence, result: AuditedResult) -> Planted:
    """Plant a column of relative speeds in which one figure is off by a tenth."""
    rows = [other for other in evidence.published if TABLE(other) == TABLE(result) and other.interval("tokens_per_s")]
    if len(rows) < 3 or result not in rows or result is rows[0]:
        return None
    base = rows[0].claims["tokens_per_s"].value
    changed = {}
    for row in rows:
        speed = row.claims["tokens_per_s"].value / base * (1.1 if row is result else 1)
        changed[row.id] = replace(row, claims={**row.claims, "relative_speed": Claim(value=round(speed, 3), printed=f"{speed:.3f}x")})
    return replace(evidence, results=tuple(changed.get(row.id, row) for row in evidence.results)), result.id, "relative speed x 1.1"


def wrong_share(evidence: Evidence, result: AuditedResult) -> Planted:
    """Plant a printed utilisation that is off by a fifth."""
    name = next((name for name in ("mfu", "hfu", "model_flop_per_s") if name in result.claims), None)
    factor = (0.8, 1.2)[int(_hash(result.id)[1], 16) % 2]
    if name is None or "tokens_per_s" not in result.claims:
        return None
    return with_result(evidence, scaled(result, (name,), factor)), result.id, f"{name} x {factor:g}"


def variant_not_said(evidence: Evidence, result: AuditedResult) -> Planted:
    """Leave out the variant of a device."""
    card = result.accelerator
    if card is None:
        return None
    bare = card.name.split()[0]
    variants = [other for other in evidence.facts.accelerators.values() if other.name.split()[0] == bare and other.vendor == card.vendor]
    if not any(letter.isdigit() for letter in bare) or len({(other.memory_gib, other.memory_bandwidth_gb_s) for other in variants}) < 2:
        return None
    stated = tuple(name for name in result.conditions.from_repository if name != "accelerator")
    conditions = result.conditions.model_copy(update={"from_repository": stated, "instance": None})
    claims = {name: claim for name, claim in result.claims.items() if "memory" not in name}
    changed = replace(result, conditions=conditions, labels={**result.labels, "accelerator": bare}, section="Results", claims=claims)
    return with_result(evidence, changed), result.id, f"device {bare!r}"


def bill_for_one(evidence: Evidence, result: AuditedResult) -> Planted:
    """Plant the bill for one device of an instance whose devices were all used."""
    rows = [row for row in evidence.facts.prices if result.accelerator and row.accelerator == result.accelerator.key]
    row = next((row for row in rows if row.accelerator_count == result.devices and result.devices > 1), None)
    if row is None:
        return None
    price = row.usd_per_hour / row.accelerator_count
    figures = {"price_usd_per_hour": exact(price, "USD")}
    if int(_hash(result.id)[1], 16) % 2:
        figures = {"train_time_s": exact(7_200.0, "s"), "cost_usd": exact(2 * price, "USD")}
    conditions = result.conditions.model_copy(update={"instance": row.instance})
    changed = replace(result, conditions=conditions, claims={**result.claims, **figures})
    return with_result(evidence, changed), result.id, f"${price:.2f} an hour for {row.instance}"


def no_room(evidence: Evidence, result: AuditedResult) -> Planted:
    """Plant a peak that leaves 0.3 GiB for the driver and communication."""
    capacity = result.accelerator.memory_gib if result.accelerator else None
    if capacity is None or result.devices < 2 or "peak_memory_bytes" not in result.claims or result.claims["peak_memory_bytes"].readings:
        return None
    peak = (capacity * 0.992 - 0.3) * GIB
    claim = Claim(value=peak, printed=f"{peak / GIB:.1f} GiB")
    return with_result(evidence, replace(result, claims={**result.claims, "peak_memory_bytes": claim})), result.id, claim.printed


def unsupported_figure(evidence: Evidence, result: AuditedResult) -> Planted:
    """Plant a sentence with a rate that no row has."""
    values = sorted(
        other.claims["tokens_per_s"].value
        for other in evidence.published
        if other.source == result.source and "tokens_per_s" in other.claims
    )
    if len(values) < 3:
        return None
    best = values[-1] * (1.1 + int(_hash(result.id)[1], 16) / 20)
    labels = {"claim": f"up to {best:,.0f} tokens per second"}
    changed, statement = with_statement(evidence, result.source, "Text", labels=labels, claims={"tokens_per_s": exact(best, "tokens/s")})
    return changed, statement, labels["claim"]


def larger_model(evidence: Evidence, result: AuditedResult) -> Planted:
    """Name a model of the same family with at least four times the parameters."""
    if result.model is None or not _has_rate(result):
        return None
    size, family = count_parameters(result.model).total, result.model.family
    larger = [card for card in evidence.facts.models.values() if card.family == family and count_parameters(card).total >= 4 * size]
    if not larger:
        return None
    card = min(larger, key=lambda card: (count_parameters(card).total, card.key))
    conditions = result.conditions.model_copy(update={"model": card.key})
    changed = replace(result, model=card, conditions=conditions, labels={**result.labels, "model": card.name})
    return with_result(evidence, changed), result.id, f"{result.model.name} called {card.name}"


def longer_rows(evidence: Evidence, result: AuditedResult) -> Planted:
    """Name rows of eight times the length beside a rate of rows."""
    length = result.conditions.sequence_length
    if length is None or "samples_per_s" not in result.claims or result.model is None or result.claims["samples_per_s"].readings:
        return None
    conditions = result.conditions.model_copy(update={"sequence_length": 8 * length})
    return with_result(evidence, replace(result, conditions=conditions)), result.id, f"{8 * length} tokens for {length}"


def slower_device(evidence: Evidence, result: AuditedResult) -> Planted:
    """Name a device of the same vendor with a quarter of the peak, or less."""
    card = result.accelerator
    peak = card.peak_tflops.get(Dtype.BF16) if card else None
    if card is None or peak is None or not _has_rate(result):
        return None
    cards = (other for other in evidence.facts.accelerators.values() if other.vendor == card.vendor and Dtype.BF16 in other.peak_tflops)
    slower = [other for other in cards if other.peak_tflops[Dtype.BF16] <= peak / 4]
    if not slower:
        return None
    named = max(slower, key=lambda other: (other.peak_tflops[Dtype.BF16], other.key))
    conditions = result.conditions.model_copy(update={"accelerator": named.key})
    changed = replace(result, accelerator=named, conditions=conditions, labels={**result.labels, "accelerator": named.name})
    return with_result(evidence, changed), result.id, f"{card.name} called {named.name}"


KINDS: dict[str, tuple[Callable[[Evidence, AuditedResult], Planted], frozenset[AuditVerdict]]] = {
    "rate of all read as of one": (all_as_one, WRONG),
    "rate of one read as of all": (one_as_all, WRONG),
    "rate far below its siblings": (far_below, WRONG),
    "baseline from another row": (wrong_baseline, WRONG_SUM),
    "relative speed off by a tenth": (wrong_relative_speed, WRONG_SUM),
    "utilisation off by a fifth": (wrong_share, WRONG),
    "device variant not said": (variant_not_said, UNCLEAR),
    "bill for one device of several": (bill_for_one, WRONG_SUM),
    "no room for communication": (no_room, WRONG),
    "figure in the text without a row": (unsupported_figure, WRONG),
    # Kinds for which no rule was written.
    "larger model named": (larger_model, WRONG),
    "longer rows named": (longer_rows, WRONG),
    "slower device named": (slower_device, WRONG),
}


def cases(evidence: Evidence, credible: set[str]) -> Iterator[Case]:
    """Yield the planted cases of all kinds, in two halves without a common row."""
    rows = [result for result in evidence.published if result.id in credible]
    for kind, (plant, verdicts) in KINDS.items():
        used: set[str] = set()
        for half, salt in HALVES.items():
            by_source: Counter[str] = Counter()
            for result in sorted(rows, key=lambda row, salt=salt: _hash(*salt, kind, row.id)):
                if by_source.total() == CASES_PER_KIND:
                    break
                free = result.id not in used and by_source[result.source] < CASES_PER_SOURCE
                planted = plant(evidence, result) if free else None
                if planted:
                    by_source[result.source] += 1
                    used.add(result.id)
                    changed, record, words = planted
                    yield Case(kind, record, f"{result.id}: {words}", changed, verdicts, half)


def found_by(case: Case, before: set[tuple[object, ...]]) -> tuple[str, ...]:
    """Return the rules with a new finding about the record of a case and a verdict of its kind."""
    new = [finding for finding in audit(case.evidence) if case.record in finding.records and _identity(finding) not in before]
    return tuple(dict.fromkeys(finding.rule for finding in new if finding.verdict in case.verdicts))


def _identity(finding: Finding) -> tuple[object, ...]:
    return finding.rule, finding.verdict, finding.records[0], finding.claim


def main() -> None:
    """Print recall by kind and half, and the share of unchanged rows that are flagged."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--half", choices=("tuned", "held-out"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    evidence = load_evidence(ROOT)
    began = time.perf_counter()
    findings = audit(evidence)
    took = time.perf_counter() - began
    rows = {result.id for result in evidence.published if FIRST <= result.source <= LAST and not result.out_of_memory}
    flagged = {finding.records[0] for finding in findings if finding.verdict in WRONG} & rows
    before = {_identity(finding) for finding in findings}
    chosen = [case for case in cases(evidence, rows - flagged) if options.kind in {None, case.kind} and options.half in {None, case.half}]
    answers = [(case, found_by(case, before)) for case in chosen]
    if options.json:
        print(
            json.dumps([{"kind": case.kind, "half": case.half, "change": case.change, "rules": rules} for case, rules in answers], indent=1)
        )
        return
    for kind, of_kind in grouped(answers, lambda answer: answer[0].kind).items():
        counts: dict[str, list[bool]] = defaultdict(list)
        for case, rules in of_kind:
            counts[case.half].append(bool(rules))
        shown = ", ".join(f"{half} {sum(hits)} of {len(hits)}" for half, hits in sorted(counts.items()))
        print(f"{kind:36} {shown}")
        for case, rules in of_kind:
            print(f"    {case.half:9} {case.change:60} {', '.join(rules) or 'MISSED'}")
    for half, of_half in sorted(grouped(answers, lambda answer: answer[0].half).items()):
        print(f"{half}: {sum(bool(rules) for _, rules in of_half)} of {len(of_half)} found")
    print(
        f"\nunchanged rows flagged above ambiguous: {len(flagged)} of {len(rows)} ({len(flagged) / len(rows):.1%}); audited in {took:.2f} s"
    )
    untouched = {record for record in rows if record[:3] in HELD_OUT_SOURCES}
    for title, some in (("sources that rules were tuned on", rows - untouched), ("held-out sources", untouched)):
        print(f"    {title}: {len(flagged & some)} of {len(some)}")
    for source, ids in sorted(grouped(sorted(rows), lambda record: record[:3]).items()):
        print(f"    {source}{' (held out)' if source in HELD_OUT_SOURCES else ''}: {len(flagged & set(ids))} of {len(ids)}")


if __name__ == "__main__":
    main()
