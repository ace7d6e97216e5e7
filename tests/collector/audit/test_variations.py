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

import audit_factories as made
from audit_factories import A100, claim, facts
from pydantic import ValidationError

from tunemark.collector.audit.evidence import AuditedResult, Evidence
from tunemark.collector.audit.rule import Finding, all_rules
from tunemark.schema.records.published import Claim, Conditions, Reading, Statement
from tunemark.schema.vocabulary import Method

NONE = "no finding"
READ_BY_HAND = ("000", "001", "002", "003", "004")
"""Documents whose findings were reviewed one by one; imported tables have too many."""
GOLDEN = Path(__file__).parent / "golden"
EXAMPLES = run_path(str(Path(__file__).with_name("test_rules.py")))["EXAMPLES"]
CASES = run_path(str(Path(__file__).with_name("test_thresholds.py")))["CASES"]
RULES = {rule.id: rule for rule in all_rules()}
FACTORS = (0.5, 1.06, 2.0)
FIGURES = {
    "tokens_per_s": 4_000.0, "samples_per_s": 2.0, "step_time_s": 2.0, "epoch_time_s": 3_600.0, "train_time_s": 7_200.0, "wall_s": 7_500.0,
    "epochs": 2.0, "steps": 300.0, "peak_memory_bytes": 30e9, "model_memory_bytes": 13.5e9, "mfu": 0.4, "accuracy": 0.9, "eval_loss": 0.3,
    "price_usd_per_hour": 4.0, "cost_usd": 8.0,
}  # fmt: skip
"""Figures that are added to all results of an example, rising or falling from result to result."""
OTHER_CONDITIONS: tuple[tuple[str, object], ...] = (
    ("instance", "p4d.24xlarge"), ("accelerator_count", 4), ("packing", True), ("dataset", "tatsu-lab/alpaca"), ("padding", "longest"),
    ("precision", "fp16"), ("precision", "Mixed precision (bf16)"), ("precision", "fp32"), ("method", Method.FULL), ("method", Method.QLORA),
    ("model", "a-new-model"), ("model", "bert-base-uncased"), ("model", "gemma-2-9b"), ("model", "mixtral-8x7b"), ("model", "llama-3-70b"),
    ("accelerator", "a-new-device"), ("accelerator", A100), ("accelerator", "nvidia-t4"), ("accelerator", "nvidia-b200"), ("accelerator", "aws-trainium1"),
    ("global_batch", 64), ("micro_batch", 1), ("sequence_length", 16_384), ("assumed", ["accelerator"]), ("assumed", ["method"]),
    ("framework", {"torchtune": "0.6.0"}), ("framework", {"transformers": "4.30.0", "torch": "1.8.0"}),
)  # fmt: skip
OTHER_SETTINGS = {
    "data_parallel": 2, "fsdp_cpu_offload": True, "gradient_checkpointing": True, "quantisation": "int8", "lora_r": 64, "zero_stage": 3,
}  # fmt: skip


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
    variations = [
        *changed_fields(fields),
        *((f"{name} {value}", fields | {name: value}) for name, value in OTHER_CONDITIONS),
        *((f"{name} {value}", fields | {"settings": fields["settings"] | {name: value}}) for name, value in OTHER_SETTINGS.items()),
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


def changed_together(evidence: Evidence) -> Iterator[tuple[str, Evidence]]:
    """Yield evidence with a figure added to all results, and with copies of the results on other devices."""
    results = evidence.results
    for name, value in FIGURES.items():
        for way, power in (("rising", 1), ("falling", -1)):
            values = [value * 5.0 ** (power * place) for place in range(len(results))]
            claims = [result.claims | {name: claim(amount)} for result, amount in zip(results, values, strict=True)]
            more = tuple(replace(result, claims=figures) for result, figures in zip(results, claims, strict=True))
            yield f"{name} {way}", replace(evidence, results=more)
    for changes in (
        [{"accelerator": "nvidia-rtx-4090"}, {"accelerator": "nvidia-b200"}],
        [{"accelerator_count": 2}, {"accelerator_count": 8}],
        [{"model": "mistral-7b"}, {"model": "llama-3-70b"}],
        [{"method": Method.FULL}, {"method": Method.QLORA}],
        [{}, {"sequence_length": 512}],
    ):
        copies = [
            replace(with_conditions(result, result.conditions.model_copy(update=change)), id=f"900-{100 * number + place}")
            for number, change in enumerate(changes, start=1)
            for place, result in enumerate(results)
        ]
        words = ", ".join(f"{name} {value}" for change in changes for name, value in change.items())
        yield f"and copies: {words}", replace(evidence, results=(*results, *copies))


def variations(evidence: Evidence) -> Iterator[tuple[str, Evidence]]:
    """Yield the evidence, and the evidence with one change to one record."""
    yield "as it is", evidence
    if evidence.results:
        yield from changed_together(evidence)
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


def conclusion(about: str, **more: object) -> Statement:
    return made.statement({"kind": "conclusion", "about": about, "records": ["900-001"], "basis": ["tokens_per_s"], **more})


def in_unit(printed: str, value: float, bytes_per_unit: float) -> Evidence:
    counted = made.metric("peak of live tensors", scope="device", bytes_per_unit=bytes_per_unit)
    return made.evidence(made.result(claims={"peak_memory_bytes": claim(value, printed)}), counted)


BUSY = {"sm_utilisation": 0.95}
MORE = {
    "a size between two sizes of a known family": ("instance-exists", made.evidence(made.result(labels={"instance": "a2-highgpu-3g"}))),
    "an unknown family": ("instance-exists", made.evidence(made.result(labels={"instance": "q9x.36xlarge"}))),
    "more devices than an instance has": (
        "instance-holds",
        made.evidence(
            made.result(labels={"instance": "p4de.24xlarge"}, accelerator_count=16),
            made.result(2, labels={"instance": "p4de.24xlarge"}, accelerator_count=8),
        ),
    ),
    "a version in a statement": (
        "versions",
        made.evidence(
            made.statement(None, labels={"library": "bitsandbytes", "version": "0.46.0"}), stated_on="2024-10-30", committed_on="2025-10-30"
        ),
    ),
    "a version that does not exist": ("versions", made.evidence(made.result(framework={"bitsandbytes": "9.9.9"}), stated_on="2024-10-30")),
    "the price of a smaller device": ("price-scope", made.evidence(made.offer(0.44, provider="runpod", instance=None))),
    "a busy device": (
        "unsupported",
        made.evidence(made.result(claims=BUSY | {"tokens_per_s": 4_000.0}), conclusion("utilisation", basis=[*BUSY])),
    ),
    "a busy device with rows of unknown length": (
        "unsupported",
        made.evidence(made.result(claims=BUSY | {"samples_per_s": 2.0}, sequence_length=None), conclusion("utilisation", basis=[*BUSY])),
    ),
    "one total of a pair": (
        "words-against-figures",
        made.evidence(
            made.result(1, claims={"accuracy": 0.9}),
            made.result(2, claims={"train_time_s": 90.0}),
            made.pair("train_time_s", relation="lower"),
        ),
    ),
    "a share compared with a share of an unknown total": (
        "words-against-figures",
        made.evidence(
            made.result(claims={"device_memory_peak_share": 0.5, "device_memory_total_bytes": claim(80e9)}),
            made.pair("device_memory_peak_share", relation="higher", records=["900-001", "900-S02"]),
            made.statement(None, 2, claims={"device_memory_peak_share": 0.4}),
        ),
    ),
    "a run that made its planned steps and one that did not": (
        "same-run",
        made.evidence(
            made.result(1, claims={"epochs": 3.0, "train_time_s": 480.0}, **made.BERT),
            made.result(2, claims={"epochs": 3.0, "steps": 12_000.0, "total_steps": 12_000.0, "wall_s": 170.0}, **made.BERT),
            made.result(3, claims={"steps": 11_999.0, "total_steps": 12_000.0, "wall_s": 170.0}, **made.BERT),
        ),
    ),
    "sources with several rates": (
        "cross-source",
        made.evidence(
            made.result(1, claims={"tokens_per_s": 4_000, "step_time_s": 3.0, "samples_per_s": 3.0}),
            made.result(1, source="901", claims={"tokens_per_s": 1_000, "step_time_s": 9.0, "samples_per_s": 1.0}),
        ),
    ),
    "the bandwidth of another device": (
        "device-data",
        made.evidence(
            made.statement({"kind": "device", "accelerator": A100}, claims={"memory_bandwidth_bytes_per_s": claim(1.5e12, "1.5 TB/s")})
        ),
    ),
    "devices with one name in several rows": (
        "device-not-said",
        made.evidence(
            *(
                made.result(number, accelerator=key, assumed=("accelerator",), labels={"accelerator": f"device {number}"})
                for number, key in enumerate(
                    (A100, A100, made.H100, made.H100, made.T4, "intel-gaudi2", "nvidia-gh200-96gb", "nvidia-gh200-96gb"), start=1
                )
            )
        ),
    ),
    "accuracies around one half": (
        "best-of-many",
        made.evidence(
            *made.several("accuracy", 0.5, 0.51, 0.6, **made.BERT),
            made.statement(
                {
                    "kind": "extreme",
                    "quantity": "accuracy",
                    "best": "900-001",
                    "among": ["900-001", "900-002", "900-003"],
                    "where": "highest",
                }
            ),
        ),
    ),
    "another stack": (
        "unsupported",
        made.evidence(made.result(claims={"tokens_per_s": 4_000.0}), conclusion("speed", against="torchtune")),
    ),
    "a device that is almost idle": ("utilisation", made.evidence(made.result(claims={"tokens_per_s": 10.0}))),
    "a utilisation above one": (
        "claimed-utilisation",
        made.evidence(made.result(claims={"mfu": claim(1.2, "120%"), "hfu": claim(1.3, "130%")})),
    ),
    "GiB printed for GB": ("metric", in_unit("20 GiB", 20 * 2.0**30, 1e9)),
    "GB printed for GiB": ("metric", in_unit("20 GB", 20e9, 2.0**30)),
    "MiB printed for MB": ("metric", in_unit("900 MiB", 900 * 2.0**20, 1e6)),
    "MB printed for MiB": ("metric", in_unit("900 MB", 900e6, 2.0**20)),
}
"""Evidence of branches that the examples do not reach: name -> rule and evidence."""

EVIDENCE = [
    *((name, rule, example) for name, (rule, example) in MORE.items()),
    *(
        (f"{rule}, {kind}", rule, example)
        for rule, pair in EXAMPLES.items()
        for kind, example in zip(("wrong", "right"), pair, strict=True)
    ),
    *(
        (f"{name}, {kind}", case[0], case[1](value))
        for name, case in CASES.items()
        for kind, value in zip(("in", "out"), case[2:], strict=True)
    ),
]


def findings_of(rule: str, evidence: Evidence) -> list[str]:
    """Return the findings of a rule. A rule that raises an error fails the test."""
    return [text_of(finding) for finding in RULES[rule].findings(evidence)] or [NONE]


def test_findings_of_all_examples_with_one_change_are_those_that_were_reviewed() -> None:
    lines = []
    for name, rule, evidence in EVIDENCE:
        outcomes: dict[tuple[str, ...], list[str]] = {}
        for change, varied in variations(evidence):
            outcomes.setdefault(tuple(findings_of(rule, varied)), []).append(change)
        lines.append(f"# {name}")
        lines += [
            f"by {one.id}: {text}" for one in RULES.values() if one.id != rule for text in findings_of(one.id, evidence)[:2] if text != NONE
        ]
        for findings, changes in outcomes.items():
            title = f"as it is, and {len(changes) - 1} variations" if changes[0] == "as it is" else "; ".join(changes)
            lines += [f"{title}:", *(f"    {finding}" for finding in findings)]
    check("variations.txt", lines)


def test_findings_of_the_stored_documents_are_those_that_were_reviewed(findings: tuple[Finding, ...]) -> None:
    check("documents.txt", [f"{one.rule}: {text_of(one)}" for one in findings if one.records[0][:3] in READ_BY_HAND])
