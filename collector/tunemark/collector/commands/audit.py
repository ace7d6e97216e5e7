"""The command `audit`: the findings of the rules, each with its calculation."""

import math
import re
import textwrap
from contextlib import suppress
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


def judge(text: str, *, as_json: bool) -> None:
    """Print the verdict on a claim in words: by the rules about one result, and by the interval that the throughput model predicts."""
    from tunemark.collector.audit.evidence import Evidence
    from tunemark.collector.audit.load import audited_record
    from tunemark.collector.audit.rule import audit as findings_of
    from tunemark.collector.predict.estimate import range_of, read_evidence
    from tunemark.schema.facts.fact_base import FactBase
    from tunemark.schema.option_rates import option_rates
    from tunemark.schema.plan_search import Asked, best_plan, step_on

    facts = FactBase.of_project()
    record = _claimed(facts, text)
    run, claim, expected = audited_record(record, facts), record.claims.get("tokens_per_s"), {}
    model = facts.models[str(record.conditions.model)]
    length = record.conditions.sequence_length or row_length(model)
    asked = Asked({"micro_batch": record.conditions.micro_batch} if record.conditions.micro_batch else {})
    card, memory = facts.accelerators[str(record.conditions.accelerator)], record.claims.get("peak_memory_bytes")
    card = card.model_copy(update={"memory_gib": min(card.memory_gib, memory.value / GIB)}) if memory and card.memory_gib else card
    fitted, step = read_evidence(project_root(), facts, say), step_on(card, model, run.conditions.method, length, run.devices, asked)
    plan, fit = best_plan(fitted.effects, card, step, "plain", asked)
    rates = [each for each in option_rates(model, length, [(card, run.devices)], fitted, asked=asked) if each.method == step.method]
    known = {rate.software: speed for rate in rates if (speed := range_of(rate))}
    misfit = not known and bool(card.memory_gib) and fit == "no" and not plan.other_stacks(card)
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
        other = f", but fits with {others[0]}" if fit not in FITS and (others := plan.other_stacks(card)) else ""
        reason = f"by the memory model, a step of usual settings needs {gib(plan.needed_bytes)}{other}"
    else:
        reason = f"it is not compared with other results: {next((rate.reason for rate in rates if claim and rate.reason), 'it states no tokens/s')}"
    findings = findings_of(Evidence((run,), (), facts, (record,), expected))
    findings = tuple(sorted(findings, key=lambda each: list(AuditVerdict).index(each.verdict)))
    verdicts = [each.verdict for each in findings] + [AuditVerdict.SUSPICIOUS] * bool(misfit or above)
    without = "plausible" if expected or (memory and not claim) else "not judged"
    verdict = min(verdicts, key=list(AuditVerdict).index) if verdicts else without
    reason = "; ".join(filter(None, (above, reason)))
    if as_json:
        print_json({"verdict": verdict, "reason": reason, "findings": [{"rule": each.rule} | asdict(each) for each in findings]})
        return
    # The finding on the predicted rate says the same as the reason.
    why_worst = [each.calculation for each in findings[:1] if each.rule != "predicted-rate"]
    tell(f"{verdict.capitalize()}: {'; '.join((*why_worst, reason))}.")
    places, figures = f"{run.devices} x {run.device_name}", ", ".join(figure.printed for figure in record.claims.values())
    print_paragraphs(("", f"Read as {asked_in_words(model, record.conditions.method, None, length)}, {places}: {figures}."))
    for finding in findings:
        print_finding(finding)


def _above_bf16(run: "AuditedResult") -> str:
    """Return the shares of the peaks that a rate in no stated format needs, if it is possible in fp8 alone; "" otherwise."""
    from tunemark.collector.audit.bounds import utilisation
    from tunemark.collector.audit.token_rates import token_rates

    for rate in [] if run.conditions.precision else token_rates(run):
        runs = (replace(run, conditions=run.conditions.model_copy(update={"precision": each})) for each in ("bf16", "fp8"))
        bf16, fp8 = (utilisation(each, rate) for each in runs)
        if bf16 and fp8 and bf16[0].low > 1 >= fp8[0].low:
            return f"{bf16[0].value:.0%} of the bf16 peak: impossible unless it ran in fp8 ({fp8[0].value:.0%})"
    return ""


def _claimed(facts: "FactBase", text: str) -> "PublishedResult":
    """Return a claim in words as a record. Raises TunemarkError for one without model, method, devices or figures."""
    from tunemark.collector.audit.interval import duration
    from tunemark.collector.audit.printed_figures import WORDS
    from tunemark.schema.records.published import Claim, Conditions, Origin, PublishedResult

    words, example = WORDS["claim"], "write it as 'Llama 3.1 8B LoRA on 8 x H100: 90,000 tokens/s, seq 4096, MFU 45%, 60 GiB'"
    # Figures are those of all devices, so a rate of one must not be read as one.
    if share := re.search(r"\bper (?:gpu|device|chip|accelerator)\b|/ ?(?:gpu|device|chip)\b", text, re.IGNORECASE):
        raise TunemarkError("claim", share[0], f"is not understood; {example}")
    number = rf"(?<=\bon )({'|'.join(words['numbers'])})\b"
    text = re.sub(number, lambda match: words["numbers"][match[1].lower()], text, flags=re.IGNORECASE)
    text = re.sub(r"\b([A-Z]+\d+)s\b|\bGPUs?\b", r"\1", text)
    models = [part.strip() for part in re.split(words["joints"], text, flags=re.IGNORECASE) if part and part.strip()]
    places = [re.split("[:,;]", place)[0] for place in re.split(words["on"], text, flags=re.IGNORECASE)[1:]]
    names = [name for place in places if (name := _device(facts, place))] or places
    rest = text.replace(names[0], ";") if names else text
    found = {name: match[1].lower() for name, pattern in words["conditions"].items() if (match := re.search(pattern, rest, re.IGNORECASE))}
    figures = {name: match for name, (pattern, _) in words["figures"].items() if (match := re.search(pattern, rest, re.IGNORECASE))}
    if "method" not in found or not models or not names or not figures:
        named = {"model": models, "accelerator after 'on'": names, "method": "method" in found, "figure": figures}
        raise TunemarkError("claim", text, f"states no {' and no '.join(name for name, known in named.items() if not known)}; {example}")
    model = facts.model(named_model(facts, next(filter(facts.find_model, models), models[0])).key)
    ((card, count),) = named_accelerators(facts, [re.sub(r"^(\d{1,4}) (?!x)", r"\1 x ", names[0])], "claim")
    # Rates of rows need a length that is stated; others are judged at the usual one.
    length = found.get("sequence_length")
    conditions = Conditions(
        model=model.key,
        method=found["method"].replace("-", ""),
        accelerator=card.key,
        accelerator_count=count or 1,
        sequence_length=None if length is None and {"samples_per_s", "step_time_s"} & figures.keys() else row_length(model, length),
        precision=found.get("precision"),
        padding="static" if "padded" in found else None,
        packing="packed" in found or None,
        settings={name: found[name] for name in ("attention", "offload") if name in found},
        **{name: parse_count("claim", found[name]) for name in ("micro_batch", "global_batch") if name in found},
    )
    claims = {}
    for name, match in figures.items():
        printed, unit = next(filter(None, match.groups())).strip(), words["figures"][name][1]
        value = unit * float(re.sub("[ ,]", "", printed).lower().replace("k", "e3")) if unit else duration(printed) or 0.0
        claims[name] = Claim(value=value, printed=match[0].strip())
    shared = {"section": "claim", "origin": Origin(kind="document"), "labels": {}, "status": PublishedStatus.CLAIMED}
    return PublishedResult(id="999-999", source="999", conditions=conditions, claims=claims, **shared)


def _device(facts: "FactBase", text: str) -> str | None:
    """Return the longest name of a device at the beginning of a text, with the number before it, or None."""
    for length in range(len(text.split()), 0, -1):
        name = " ".join(text.split()[:length])
        with suppress(TunemarkError):
            facts.accelerator(facts.counted(re.sub(r"^(\d{1,4}) (?!x)", r"\1 x ", name))[1], usual=True)
            return name
    return None


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
