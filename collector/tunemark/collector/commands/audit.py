"""The command `audit`: the findings of the rules, each with its calculation."""

import math
import re
import textwrap
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunemark.collector.commands.terminal import (
    AsJson,
    chosen,
    named_accelerators,
    named_model,
    option,
    parse_count,
    print_json,
    print_table,
    row_length,
    say,
    tell,
)
from tunemark.schema.errors import TunemarkError
from tunemark.schema.files import project_root
from tunemark.schema.formats import GIB, counted, gib, significant
from tunemark.schema.recommendation_words import asked_in_words
from tunemark.schema.vocabulary import FITS, AuditVerdict, PublishedStatus

if TYPE_CHECKING:
    from tunemark.collector.audit.evidence import AuditedResult, Evidence
    from tunemark.collector.audit.rule import Finding
    from tunemark.schema.facts.fact_base import FactBase
    from tunemark.schema.records.published import PublishedResult

# The audit is imported when the command runs, to keep --help fast.
# ruff: noqa: PLC0415

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
    source: Annotated[list[str] | None, option("--source", "A document (`004`), `measured` results or a round (`mlperf-v5.1`).")] = None,
    rule: Annotated[list[str] | None, typer.Option("--rule", help="Show findings of a rule. Repeatable.")] = None,
    verdict: Annotated[list[str] | None, option("--verdict", "Only impossible, inconsistent, suspicious or ambiguous ones.")] = None,
    rules: Annotated[bool, option("--rules", "List the rules without an audit; with --rule or --json, also their reasons.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check claims against physics, arithmetic, catalogues and each other, and show the calculation of each finding.

    Audits published results, statements of documents and measured submissions. A finding names its rule, its verdict,
    the records concerned, the quantities and conditions that the verdict applies to, the claim, and the calculation.
    No finding does not mean verified.

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
    from tunemark.collector.audit.rule import all_rules, select
    from tunemark.collector.predict.cross_validation import audit_all

    declared = all_rules()
    wanted_rules = [chosen("--rule", name, [known.id for known in declared]) for name in rule or ()]
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
    if paths and (not paths[0] or (re.search(r"\s", paths[0]) and not Path(paths[0]).exists())):
        judge(" ".join(paths), as_json=as_json)
        return
    wanted_verdicts = [chosen("--verdict", word, AuditVerdict) for word in verdict or ()]
    evidence, ids = _with_files([Path(path) for path in paths or ()])
    known_sources = sorted({result.source for result in evidence.results} | set(evidence.documents_by_id))
    sources = [chosen("--source", name, known_sources) for name in source or ()]
    of_sources = [result.id for result in evidence.results if result.source in sources]
    of_sources += [statement for statement in evidence.statements if source_of(statement) in sources]
    if not as_json:
        say("Auditing all records. Rates are compared with a model of all other results, which takes some seconds ...")
    findings = select(audit_all(project_root(), evidence), wanted_rules, wanted_verdicts, ids or of_sources)
    if as_json:
        print_json([{"rule": finding.rule} | asdict(finding) for finding in findings])
        return
    for finding in findings:
        print_finding(finding)
    counts = ", ".join(f"{sum(finding.verdict is each for finding in findings)} {each.value}" for each in AuditVerdict)
    subjects = len({finding.records[0] for finding in findings})
    say(f"Audited {counted(len(evidence.results), 'result')} and {counted(len(evidence.statements), 'statement')}.")
    say(f"Findings: {len(findings)} about {counted(subjects, 'record')} ({counts}).")


def _with_files(paths: list[Path]) -> tuple["Evidence", list[str]]:
    """Return the evidence of the checkout and of further files, with the ids of the records in these."""
    from tunemark.collector.audit.load import add_files, load_evidence
    from tunemark.collector.gate.read import named_records

    return add_files(load_evidence(project_root()), named_records(paths).files)


def contradictions(paths: list[Path]) -> list["Finding"]:
    """Return the findings on records that make a figure impossible or inconsistent; print the others as remarks on standard error."""
    from tunemark.collector.predict.cross_validation import audit_all

    evidence, ids = _with_files(paths)
    findings = [each for each in audit_all(project_root(), evidence) if not set(ids).isdisjoint(each.records)]
    wrong = [each for each in findings if each.verdict in {AuditVerdict.IMPOSSIBLE, AuditVerdict.INCONSISTENT}]
    for finding in findings:
        if finding not in wrong:
            say(f"{finding.records[0]}: {finding.verdict.value}, {finding.rule}: {finding.calculation}")
    return wrong


FILLERS = r"and|at|fits?|fine-?tun\w+|for|gets|in|memory|needs|of|peak|reaches|takes|training|uses|with"
PARTS = {
    "accelerator after 'on'": rf"\b(?:on|using)\s+([^:,;@]+?)(?=$|[:,;@]|\.\s|\s(?:{FILLERS}|batch|seq\w*|full|q?lora|\d[\d,.]*\s?k?\s?tok)\b)",
    "method": r"\b(full|q?lora)(?:[- ]parameter)?(?:[- ](?:fine-?tun\w+|training))?\b",
    "tokens_per_s": r"(\d[\d,]*(?:\.\d+)? ?k?) ?tok(?:en)?s?(?: ?/ ?| per )s(?:ec(?:ond)?)?\b",
    "sequence_length": r"\bseq\w*(?: len\w*)?[ :=]*(\d(?:[\d,]*\d)? ?k?)\b",
    "micro_batch": r"\b(?:micro-?)?batch(?: size)?[ :=]*(\d+)\b",
    "precision": r"\b(bf16|fp16|fp8|fp32)\b",
    "mfu": r"\bMFU[ :=]*(\d+(?:\.\d+)?) ?%",
    "peak_memory_bytes": r"\b(\d+(?:\.\d+)?) ?Gi?B\b",
}
"""Part of a claim -> what is written for it. Devices come first, since their memory is part of their name."""
FILLING = rf"(?:\b(?:an?|the|{FILLERS})\b|[.@\s])+"
NUMBERS = {word: number for number, words in ((1, "a an one single"), (2, "two"), (4, "four"), (8, "eight")) for word in words.split()}


def judge(text: str, *, as_json: bool) -> None:
    """Print the verdict on a claim in words: by the rules about one result, and by the interval that the throughput model predicts."""
    from tunemark.collector.audit.evidence import Evidence
    from tunemark.collector.audit.load import audited_record
    from tunemark.collector.audit.rule import audit as findings_of
    from tunemark.collector.predict.estimate import range_of, read_evidence
    from tunemark.schema.facts.fact_base import FactBase
    from tunemark.schema.option_rates import Asked, best_plan, option_rates, step_on

    facts = FactBase.of_project()
    record = _claimed(facts, text)
    run, claim, expected = audited_record(record, facts), record.claims.get("tokens_per_s"), {}
    model, length = facts.models[str(record.conditions.model)], record.conditions.sequence_length or 1
    asked = Asked({"micro_batch": record.conditions.micro_batch} if record.conditions.micro_batch else {})
    card, memory = facts.accelerators[str(record.conditions.accelerator)], record.claims.get("peak_memory_bytes")
    card = card.model_copy(update={"memory_gib": min(card.memory_gib, memory.value / GIB)}) if memory and card.memory_gib else card
    fitted, step = read_evidence(project_root(), facts, say), step_on(card, model, run.conditions.method, length, run.devices, asked)
    plan, fit = best_plan(fitted.effects, card, step, "plain", asked)
    rates = [each for each in option_rates(model, length, [(card, run.devices)], fitted, asked=asked) if each.method == step.method]
    known = {rate.software: speed for rate in rates if (speed := range_of(rate))}
    why = next((rate.reason for rate in rates if rate.reason), "it states no tokens/s")
    others = plan.other_stacks(card)
    misfit = not known and bool(card.memory_gib) and fit == "no" and not others
    above = "" if misfit else _above_bf16(run)
    if claim and known:
        # The software is not stated: it is taken to be of the level with the nearest rate.
        software = min(known, key=lambda level: abs(math.log(known[level].value / claim.value)))
        likely = known[software]
        expected = {run.id: (claim.value, likely)}
        side = "within" if likely.low <= claim.value <= likely.high else "below" if claim.value < likely.low else "above"
        ends = f"{significant(likely.low)} to {significant(likely.high)}"
        reason = f"{claim.printed} is {side} {ends}, the 90% interval predicted for {software} software"
    elif misfit:
        reason = f"a step of usual settings, without offload to the host, does not fit: each device lacks {gib(plan.needed_bytes - card.usable_bytes)} by the memory model"
    elif memory and not claim:
        other = f", and fits with {others[0]}" if others and fit not in FITS else ""
        reason = f"by the memory model, a step of usual settings needs {gib(plan.needed_bytes)}{other}"
    else:
        reason = f"it is not compared with other results: {why}"
    findings = findings_of(Evidence((run,), (), facts, (record,), expected))
    findings = tuple(sorted(findings, key=lambda each: list(AuditVerdict).index(each.verdict)))
    verdicts = [each.verdict for each in findings] + [AuditVerdict.SUSPICIOUS] * bool(misfit or above)
    verdict = min(verdicts, key=list(AuditVerdict).index) if verdicts else "plausible" if known or (memory and not claim) else "not judged"
    reason = "; ".join(filter(None, (above, reason)))
    if as_json:
        print_json({"verdict": verdict, "reason": reason, "findings": [{"rule": each.rule} | asdict(each) for each in findings]})
        return
    # The finding on the predicted rate says the same as the reason.
    why_worst = [each.calculation for each in findings[:1] if each.rule != "predicted-rate"]
    words = asked_in_words(model, record.conditions.method, None, length)
    tell(f"{verdict.capitalize()}: {'; '.join((*why_worst, reason))}.")
    typer.echo(f"Read as {words}, {run.devices} x {run.device_name}: {', '.join(figure.printed for figure in record.claims.values())}.\n")
    for finding in findings:
        print_finding(finding)


def _above_bf16(run: "AuditedResult") -> str:
    """Return the shares of the peaks that a rate in no stated format needs, if it is possible in fp8 alone; "" otherwise."""
    from tunemark.collector.audit.bounds import utilisation
    from tunemark.collector.audit.token_rates import token_rates

    for rate in [] if run.conditions.precision else token_rates(run):
        bf16, fp8 = (
            utilisation(replace(run, conditions=run.conditions.model_copy(update={"precision": each})), rate) for each in ("bf16", "fp8")
        )
        if bf16 and fp8 and bf16[0].low > 1 >= fp8[0].low:
            return f"{bf16[0].value:.0%} of the bf16 peak: impossible unless it ran in fp8 ({fp8[0].value:.0%})"
    return ""


def _claimed(facts: "FactBase", text: str) -> "PublishedResult":
    """Return a claim in words as a record. Raises TunemarkError for a word that is not understood, and for one without model, method, devices or figures."""
    from tunemark.schema.records.published import Claim, Conditions, Origin, PublishedResult

    found, rest = dict[str, re.Match[str]](), text
    for name, pattern in PARTS.items():
        if match := re.search(pattern, rest, re.IGNORECASE):
            found[name], rest = match, f"{rest[: match.start()]}|{rest[match.end() :]}"
    left = [words for part in re.split(r"[|:,;]", rest) if (words := re.sub(rf"^{FILLING}|{FILLING}$", "", part, flags=re.IGNORECASE))]
    named = next((words for words in left if facts.find_model(words)), left[0] if left else "")
    units = {"tokens_per_s": 1, "mfu": 0.01, "peak_memory_bytes": GIB}
    unknown, missing = [words for words in left if words != named], [name for name in list(PARTS)[:2] if name not in found]
    missing += ["figure"] * found.keys().isdisjoint(units) + ["model"] * (not named)
    if unknown or missing:
        wrong = "is not understood" if unknown else f"states no {' and no '.join(missing)}"
        example = "write it as 'Llama 3.1 8B LoRA on 8 x H100: 90,000 tokens/s, seq 4096, MFU 45%, 60 GiB'"
        raise TunemarkError("claim", (*unknown, text)[0], f"{wrong}; {example}")
    place = re.sub(r"(?<=\d)s\b|\bgpus?\b", "", found["accelerator after 'on'"][1], flags=re.IGNORECASE).strip()
    number = re.match(rf"(?:an? |the )?(?:({'|'.join(NUMBERS)})|(\d{{1,3}}))\s+(?![x*\xd7]\s|gi?b)", place, re.IGNORECASE)
    place = f"{number[2] or NUMBERS[number[1].lower()]} x {place[number.end() :]}" if number else place
    model, ((card, count),) = facts.model(named_model(facts, named).key), named_accelerators(facts, [place], "claim")
    conditions = Conditions(
        model=model.key,
        method=found["method"][1].lower(),
        accelerator=card.key,
        accelerator_count=count or 1,
        sequence_length=row_length(model, found["sequence_length"][1] if "sequence_length" in found else None),
        micro_batch=parse_count("claim", found["micro_batch"][1]) if "micro_batch" in found else None,
        precision=found["precision"][1].lower() if "precision" in found else None,
    )
    numbers = {name: found[name][1] for name in units if name in found}
    values = {name: parse_count("claim", text) if name == "tokens_per_s" else float(text) for name, text in numbers.items()}
    claims = {name: Claim(value=value * units[name], printed=found[name][0]) for name, value in values.items()}
    shared = {"section": "claim", "origin": Origin(kind="document"), "labels": {}, "status": PublishedStatus.CLAIMED}
    return PublishedResult(id="999-999", source="999", conditions=conditions, claims=claims, **shared)


def print_finding(finding: "Finding") -> None:
    """Print a finding as paragraphs: verdict, claim, calculation, and what it applies to."""
    records = ", ".join(finding.records[:SHOWN_RECORDS])
    if len(finding.records) > SHOWN_RECORDS:
        records += f" and {len(finding.records) - SHOWN_RECORDS} more"
    print_paragraphs(
        ("", f"{finding.verdict.value.upper()}  {finding.rule}  {records}"),
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
