"""The command `audit`: the findings of the rules, each with its calculation."""

import os
import re
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunemark.collector.commands import options as ui
from tunemark.schema.errors import TunemarkError
from tunemark.schema.files import project_root
from tunemark.schema.formats import counted
from tunemark.schema.vocabulary import AuditVerdict
from tunemark.terminal import AsJson, print_json, print_table, say, tell

if TYPE_CHECKING:
    from tunemark.collector.audit.claim_text import ClaimText
    from tunemark.collector.audit.evidence import Evidence
    from tunemark.collector.audit.rule import Finding

# The audit is imported when the command runs, to keep --help fast.
# ruff: noqa: PLC0415

EXAMPLE = (
    "give figures with their units, as in 'Llama 3.1 8B LoRA on 8 x H100: 90,000 tokens/s, seq 4096, MFU 45%, 60 GiB' "
    "or '14 hours on 8 GPUs at $2 per GPU-hour cost $224'"
)
WIDTH = 80
SHOWN_RECORDS = 6


def audit(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILES | CLAIM]...", help="Audit these records, together with all others, or a claim in words. Default: all records."
        ),
    ] = None,
    *,
    source: Annotated[list[str] | None, ui.option("--source", "A document (`004`), `measured` results or a round (`mlperf-v5.1`).")] = None,
    rule: Annotated[list[str] | None, ui.option("--rule", "Show findings of a rule. Repeatable.")] = None,
    verdict: Annotated[list[str] | None, ui.option("--verdict", "Only impossible, inconsistent, suspicious or ambiguous ones.")] = None,
    rules: Annotated[bool, ui.option("--rules", "List the rules without an audit; with --rule or --json, also their reasons.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check claims against physics, arithmetic, catalogues and each other, and show the calculation of each finding.

    Audits published results, statements of documents and measured submissions. A finding names its rule, its verdict,
    the records concerned, the quantities and conditions that the verdict applies to, the claim, and the calculation.
    No finding does not mean verified. Each claim in quotation marks is judged alone; of one with a table in Markdown or a list, each row is judged,
    and the worst is shown.

    Exit codes: 0 audited, with or without findings; 2 an unknown rule, verdict, source or file; 3 a file is not a record.

    Examples
    --------
    - `tunemark audit "Qwen3 8B LoRA on H100: 9,000 tokens/s, seq 2048"`
    - `tunemark audit --source 004`
    - `tunemark audit --verdict impossible --json`
    - `tunemark audit data/published/003/003-002.json`
    - `tunemark audit --rules --rule identity`
    """
    from tunemark.collector.audit.evidence import source_of
    from tunemark.collector.audit.rule import all_rules
    from tunemark.collector.predict.cross_validation import audit_all

    declared = all_rules()
    wanted_rules = [ui.chosen("--rule", name, [known.id for known in declared]) for name in rule or ()]
    if paths and (not paths[0] or (re.search(r"\s", paths[0]) and not os.path.exists(paths[0]))):  # noqa: PTH110 - `Path.exists` raises an error for a long text
        of_records = {"--source": source, "--rule": rule, "--verdict": verdict, "--rules": rules}
        _judge_each(paths, [name for name, given in of_records.items() if given], as_json=as_json)
        return
    if rules:
        shown = [known for known in declared if not wanted_rules or known.id in wanted_rules]
        if as_json:
            fields = ("id", "family", "title", "why", "verdicts")
            print_json([{name: getattr(known, name) for name in fields} for known in shown])
        elif wanted_rules:
            for known in shown:
                print_paragraphs(("", f"{known.id}, {known.family}"), ("  looks for    ", known.title), ("  reason       ", known.why))
        else:
            print_table(["rule", "family", "looks for"], [(known.id, known.family, known.title) for known in shown])
        return
    wanted_verdicts = [ui.chosen("--verdict", word, AuditVerdict) for word in verdict or ()]
    evidence, ids = _with_files([Path(path) for path in paths or ()])
    known_sources = sorted({result.source for result in evidence.results} | set(evidence.documents_by_id))
    sources = [ui.chosen("--source", name, known_sources) for name in source or ()]
    of_sources = [result.id for result in evidence.results if result.source in sources]
    of_sources += [statement for statement in evidence.statements if source_of(statement) in sources]
    if not as_json:
        say("Auditing all records. Rates are compared with a model of all other results, which takes some seconds ...")
    wanted_records = ids or of_sources
    findings = [
        finding
        for finding in audit_all(evidence)
        if finding.rule in (wanted_rules or (finding.rule,)) and finding.verdict in (wanted_verdicts or (finding.verdict,))
        if not set(wanted_records or finding.records).isdisjoint(finding.records)
    ]
    if as_json:
        print_json([{"rule": finding.rule} | asdict(finding) for finding in findings])
        return
    for finding in findings:
        print_finding(finding)
    counts = ", ".join(f"{sum(finding.verdict is each for finding in findings)} {each.value}" for each in AuditVerdict)
    subjects = len({record for finding in findings for record in finding.records})
    none = "" if any(result.measured for result in evidence.results) else " None is measured: those are in a checkout of Tunemark."
    say(f"Audited {counted(len(evidence.results), 'result')} and {counted(len(evidence.statements), 'statement')}.{none}")
    say(f"Findings: {len(findings)} about {counted(subjects, 'record')} ({counts}).")


def _judge_each(texts: list[str], unused: list[str], *, as_json: bool) -> None:
    """Print the verdict on each argument with blanks, or on all words if some have none. Raises TunemarkError for an unused option."""
    if unused:
        raise TunemarkError(unused[0], "", "is for records, and has no effect on a claim; leave it out")
    for text in texts if all(re.search(r"\s", each) for each in texts) else [" ".join(texts)]:
        judge(text, as_json=as_json)


def _with_files(paths: list[Path]) -> tuple["Evidence", list[str]]:
    """Return the evidence of the checkout and of further files, with the ids of the records in these."""
    from tunemark.collector.audit.load import add_files, load_evidence
    from tunemark.collector.gate.read import named_records

    return add_files(load_evidence(project_root()), named_records(paths).files)


def findings_on(paths: list[Path]) -> list["Finding"]:
    """Return the findings on records in files."""
    from tunemark.collector.predict.cross_validation import audit_all

    evidence, ids = _with_files(paths)
    return [each for each in audit_all(evidence) if not set(ids).isdisjoint(each.records)]


def remarks_on(paths: list[Path]) -> list[tuple[Path, str]]:
    """Return the findings on each record in files, in a sentence."""
    from tunemark.collector.gate.read import submission_id

    said = [(each, f"{each.verdict.value}, {each.rule}: {each.calculation}") for each in (findings_on(paths) if paths else [])]
    return [(path, remark) for each, remark in said for path in paths if submission_id(path) in each.records]


def states_something(claim: "ClaimText") -> bool:
    """Return True if a claim names or states what can be judged."""
    from tunemark.collector.audit.claim_ways import sides_of

    named = claim.formats or "attention" in claim.text.lower() or claim.models or claim.says("denied")
    return bool(claim.figures or claim.methods or sides_of(claim) or ((claim.models or claim.devices or claim.memory_gib) and named))


def judge(text: str, *, as_json: bool) -> None:
    """Print the verdict on a claim in words."""
    from tunemark.collector.audit.claim_text import read_claim, rows_of
    from tunemark.collector.audit.claim_verdict import worst_of
    from tunemark.schema.facts.fact_base import FactBase
    from tunemark.schema.throughput import ISSUING

    facts = FactBase.of_project()
    claims = [claim for row in rows_of(text) if states_something(claim := read_claim(facts, row))]
    if not claims:
        raise TunemarkError("claim", text, f"states nothing that can be judged; {EXAMPLE}")
    claim, judged = worst_of(facts, claims, say)
    left = [each for each in dict.fromkeys((*judged.left, *claim.left)) if each.lower() not in (judged.read or "").lower()]
    if as_json:
        shown = [{"rule": each.rule} | asdict(each) for each in judged.findings]
        said = {"claim": claim.text, "verdict": judged.verdict, "reason": judged.reason, "read": judged.read}
        print_json(said | {"not_judged": left, "findings": shown})
        return
    tell(f"{judged.verdict.capitalize()}: {judged.reason}.")
    if len(claims) > 1:
        tell(f"Of {len(claims)} rows, none is worse than this one: {claim.text}")
    read = ", ".join(filter(None, (judged.read, *(each.printed for each in claim.figures if each.printed not in left))))
    unread = "" if claim.models or not claim.devices else " No model was read."
    print_paragraphs(("", f"Read as {read or 'nothing known'}.{unread}"), *([("", f"Not judged: {', '.join(left)}.")] if left else []))
    compiled = [card for card, *_ in claim.devices if card.vendor not in ISSUING and card.remarks]
    for remark in dict.fromkeys(f"{card.name}: {card.remarks}\n" for card in compiled):
        tell(remark)
    for finding in judged.findings:
        if finding.calculation not in judged.reason:
            print_finding(finding)


def print_finding(finding: "Finding") -> None:
    """Print a finding as paragraphs: verdict, claim, calculation, and what it applies to."""
    records = ", ".join(finding.records[:SHOWN_RECORDS])
    if len(finding.records) > SHOWN_RECORDS:
        records += f" and {len(finding.records) - SHOWN_RECORDS} more"
    print_paragraphs(
        ("", f"{finding.verdict.value.upper()}  {finding.rule}  {records}".rstrip()),
        ("  claim        ", finding.claim),
        ("  calculation  ", finding.calculation),
        ("  applies to   ", ", ".join((*finding.quantities, *finding.conditions))),
    )


def print_paragraphs(*paragraphs: tuple[str, str]) -> None:
    """Print texts, each after its heading and indented below it, and an empty line."""
    for head, text in paragraphs:
        indent = " " * (len(head) or 2)
        for line in textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False) or [head]:
            typer.echo(line)
    typer.echo("")
