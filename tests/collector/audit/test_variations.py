"""Findings as readers see them: of the stored documents, and of all examples with one figure or condition changed at a time.

The changes leave out, scale or contradict each figure, condition, label and word of an assertion in turn. The files in `golden`
hold all findings with their calculations. A difference is either an error or a change to review; run again with
TUNEMARK_UPDATE_GOLDEN=1 when it is meant.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from runpy import run_path

from audit_factories import facts
from pydantic import ValidationError

from tunemark.collector.audit.evidence import AuditedResult, Evidence
from tunemark.collector.audit.rule import Finding, all_rules
from tunemark.schema.records.published import Claim, Conditions, Reading

GOLDEN = Path(__file__).parent / "golden"
EXAMPLES = run_path(str(Path(__file__).with_name("test_rules.py")))["EXAMPLES"]
CASES = run_path(str(Path(__file__).with_name("test_thresholds.py")))["CASES"]
RULES = {rule.id: rule for rule in all_rules()}
FACTORS = (0.5, 0.97, 1.03, 2.0)


def text_of(finding: Finding) -> str:
    """Return all that a reader of a finding sees, in one line."""
    numbers = ", ".join(f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}" for name, value in finding.numbers.items())
    about = ", ".join((*finding.quantities, *finding.conditions, *(f"not {meaning}" for meaning in finding.excluded)))
    return f"{finding.verdict.value} {', '.join(finding.records)} | {finding.claim} | {finding.calculation} | {numbers} | {about}"


def check(name: str, lines: list[str]) -> None:
    """Compare lines with a file in `golden`."""
    golden = GOLDEN / name
    if "TUNEMARK_UPDATE_GOLDEN" in os.environ:
        golden.parent.mkdir(exist_ok=True)
        golden.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert lines == golden.read_text(encoding="utf-8").splitlines()


# Variations ----------------------------------------------------------------------------------------


def changed_claims(claims: dict[str, Claim]) -> Iterator[tuple[str, dict[str, Claim]]]:
    """Yield figures with one left out, scaled, zero or ambiguous."""
    for name, figure in claims.items():
        yield f"no {name}", {key: value for key, value in claims.items() if key != name}
        for factor in FACTORS:
            yield f"{name} x {factor}", claims | {name: figure.model_copy(update={"value": figure.value * factor})}
        yield f"{name} 0", claims | {name: figure.model_copy(update={"value": 0.0})}
        readings = (Reading(meaning="first (one)", value=figure.value), Reading(meaning="second", value=3 * figure.value))
        yield f"{name} ambiguous", claims | {name: figure.model_copy(update={"readings": readings})}


def changed_fields(fields: dict[str, object]) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield fields with one left out, with another number, negated, or with fewer entries."""
    for name, value in fields.items():
        if value in (None, (), {}):
            continue
        yield f"no {name}", {key: other for key, other in fields.items() if key != name}
        if isinstance(value, bool):
            yield f"{name} {not value}", fields | {name: not value}
        elif isinstance(value, int | float):
            yield from ((f"{name} {other:g}", fields | {name: other}) for other in (value * 2, value // 2 or 1))
        elif isinstance(value, tuple | list) and len(value) > 1:
            yield from ((f"{name} {cut}", fields | {name: part}) for cut, part in (("first", value[:1]), ("reversed", value[::-1])))
        elif isinstance(value, dict) and isinstance(value.get("value"), float):
            yield from ((f"{name} x {factor}", fields | {name: value | {"value": value["value"] * factor}}) for factor in FACTORS)
        elif isinstance(value, dict):
            yield from ((f"{name}: {change}", fields | {name: changed}) for change, changed in changed_fields(value))


def with_conditions(result: AuditedResult, conditions: Conditions) -> AuditedResult:
    """Return a result with other conditions and the cards that belong to them."""
    known = facts()
    return replace(
        result,
        conditions=conditions,
        model=known.models.get(conditions.model or ""),
        accelerator=known.accelerators.get(conditions.accelerator or ""),
        dataset=known.known.dataset(conditions.dataset),
    )


def changed_results(result: AuditedResult) -> Iterator[tuple[str, AuditedResult]]:
    """Yield a result with one change."""
    for change, claims in changed_claims(result.claims):
        yield change, replace(result, claims=claims)
    fields = result.conditions.model_dump(mode="json")
    more = {"instance": "p4d.24xlarge", "accelerator_count": 4, "packing": True, "precision": "fp16", "dataset": "tatsu-lab/alpaca"}
    other = {"model": "a-new-model", "accelerator": "a-new-device", "method": "qlora", "padding": "longest", "global_batch": 64}
    settings = {"data_parallel": 2, "fsdp_cpu_offload": True, "gradient_checkpointing": True, "quantisation": "int8", "lora_r": 64}
    variations = [
        *changed_fields(fields),
        *((f"{name} {value}", fields | {name: value}) for name, value in (more | other).items()),
        *((f"{name} {value}", fields | {"settings": fields["settings"] | {name: value}}) for name, value in settings.items()),
    ]
    for change, conditions in variations:
        with suppress(ValidationError):
            yield change, with_conditions(result, Conditions.model_validate(conditions))
    yield "no labels", replace(result, labels={})
    yield "out of memory", replace(result, out_of_memory=not result.out_of_memory)
    yield "measured", replace(result, measured=True)
    yield "converted", replace(result, converted=True)
    yield "other section", replace(result, section="Table of DDP runs")
    yield "other source", replace(result, source="901")


def variations(evidence: Evidence) -> Iterator[tuple[str, Evidence]]:
    """Yield the evidence, and the evidence with one change to one record."""
    yield "as it is", evidence
    for place, result in enumerate(evidence.results):
        before, after = evidence.results[:place], evidence.results[place + 1 :]
        yield f"without {result.id}", replace(evidence, results=before + after)
        for change, changed in changed_results(result):
            yield f"{result.id}: {change}", replace(evidence, results=(*before, changed, *after))
    for document in evidence.documents:
        for place, statement in enumerate(document.statements):
            before, after = document.statements[:place], document.statements[place + 1 :]
            found = [("left out", None)]
            found += [(change, statement.model_copy(update={"claims": claims})) for change, claims in changed_claims(statement.claims)]
            found.append(("no labels", statement.model_copy(update={"labels": {}})))
            if statement.assertion is not None:
                for change, fields in changed_fields(statement.assertion.model_dump(mode="json")):
                    with suppress(ValidationError):
                        found.append((change, statement.model_copy(update={"assertion": type(statement.assertion).model_validate(fields)})))
            for change, changed in found:
                statements = (*before, *([changed] if changed else []), *after)
                yield f"{statement.id}: {change}", replace(evidence, documents=(document.model_copy(update={"statements": statements}),))


EVIDENCE = [
    *((f"{rule}, {kind}", rule, made) for rule, pair in EXAMPLES.items() for kind, made in zip(("wrong", "right"), pair, strict=True)),
    *(
        (f"{name}, {kind}", case[0], case[1](value))
        for name, case in CASES.items()
        for kind, value in zip(("in", "out"), case[2:], strict=True)
    ),
]


def findings_of(rule: str, evidence: Evidence) -> list[str]:
    """Return the findings of a rule, or the error that it raises: each of those is a fault of the rule that is still open."""
    try:
        return [text_of(finding) for finding in RULES[rule].findings(evidence)] or ["no finding"]
    except (ArithmeticError, LookupError, ValueError) as error:
        return [f"raises {type(error).__name__}"]


def test_findings_of_all_examples_with_one_change_are_those_that_were_reviewed() -> None:
    lines = []
    for name, rule, evidence in EVIDENCE:
        outcomes: dict[tuple[str, ...], list[str]] = {}
        for change, varied in variations(evidence):
            outcomes.setdefault(tuple(findings_of(rule, varied)), []).append(change)
        lines.append(f"# {name}")
        for findings, changes in outcomes.items():
            title = f"as it is, and {len(changes) - 1} variations" if changes[0] == "as it is" else "; ".join(changes)
            lines += [f"{title}:", *(f"    {finding}" for finding in findings)]
    check("variations.txt", lines)


def test_findings_of_the_stored_documents_are_those_that_were_reviewed(findings: tuple[Finding, ...]) -> None:
    check("documents.txt", [f"{one.rule}: {text_of(one)}" for one in findings if one.records[0][:3].isdecimal()])
