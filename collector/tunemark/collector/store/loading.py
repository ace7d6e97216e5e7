"""From files to the database: facts, documents, published and converted results, submissions; all or nothing."""

import ast
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import combinations
from math import log
from pathlib import Path
from statistics import geometric_mean, stdev
from typing import TYPE_CHECKING

from tunemark.collector.audit.evidence import AuditedResult, Evidence
from tunemark.collector.audit.load import audited_submission, load_evidence
from tunemark.collector.audit.rule import Finding, Rule
from tunemark.collector.gate.check import Verdict, judge
from tunemark.collector.gate.cross_file_checks import Candidate, FileProblems, accept, committed_files, known_commits
from tunemark.collector.gate.fact_files import missing_document, wrong_count
from tunemark.collector.gate.read import CONVERTED, DOCUMENT, PUBLISHED, SUBMISSIONS, RecordFiles, records_in, shown_path
from tunemark.collector.predict.calibration_rows import Calibration, CalibrationOutcome, calibrate, calibration_outcome
from tunemark.collector.predict.derived_figures import add_derived_figures
from tunemark.collector.predict.predicted_vs_measured import memory_errors
from tunemark.collector.store.database import Row, Rows, arrow_schemas, as_arrow, build_database, merge
from tunemark.collector.store.fact_rows import fact_rows
from tunemark.collector.store.measured_rows import measured_rows
from tunemark.collector.store.published_rows import converted_rows, document_rows, known_dataset_rows, published_rows
from tunemark.collector.store.reuse import (
    PREDICTIONS,
    SECOND_RUN,
    Loaded,
    Previous,
    counts_if_unchanged,
    facts_sha256,
    inputs_sha256,
    keep_submissions,
    predictions_sha256,
)
from tunemark.schema.comparability import configuration
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.processes import in_processes
from tunemark.schema.records.converted import ConvertedResult
from tunemark.schema.records.published import SourceDocument, published_results
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.upgrade import Problem, read_record
from tunemark.schema.statistics.intervals import one_more_run
from tunemark.schema.vocabulary import Trust

if TYPE_CHECKING:
    import pyarrow as pa


OF_SUBMISSIONS = (
    "steps",
    "phases",
    "result_facts",
    "step_events",
    "effective",
    "gates",
    "ranks",
    "device_use",
    "warnings",
    "flops",
    "memory_lines",
)
"""Tables with rows of submissions, besides `result_rows`."""


@dataclass(frozen=True, slots=True)
class LoadedSubmission(Candidate):
    """A submission file with everything that the database and the analyses need of it."""

    headline: Row = field(default_factory=dict)
    """Its row of `result_rows`."""
    sha256: str = ""
    """Hash of its bytes."""
    tables: "dict[str, pa.Table]" = field(default_factory=dict)
    """Its rows of all other tables; none if they are in the database of the last collection."""
    run: AuditedResult | None = None
    """The result as the audit sees it."""
    calibration: CalibrationOutcome | None = None
    """Its calibration row, or the reason why there is none."""


@dataclass(frozen=True, slots=True)
class Collected:
    """The contents of the new database."""

    rows: dict[str, int]
    """Number of rows by table."""
    results: dict[str, int]
    """Number of results by source."""
    problems: FileProblems
    """Submissions that were not loaded, and results without a document."""
    notes: FileProblems
    """Notes on submissions that were loaded."""
    unchanged: bool = False
    """True if the database of the same inputs was left as it is."""


def collect(
    root: Path, database: Path, advance: Callable[[], object] = lambda: None, as_of: date | None = None, *, rebuild: bool = True
) -> Collected:
    """Load all records of a checkout into a new database that replaces the old one.

    `advance` is called after each submission; `as_of` is the day of the current prices, today by default. Nothing is written if
    facts, published or converted results are invalid: raises TunemarkError with exit code 3. Without `rebuild`, a database of the
    same inputs is left as it is.
    """
    day, schemas, facts_digest = as_of or datetime.now(tz=UTC).date(), arrow_schemas(), facts_sha256(root)
    digest = inputs_sha256(root, facts_digest)
    counts = None if rebuild else counts_if_unchanged(database, digest, day, schemas)
    if counts is not None:
        return Collected(*counts, [], [], unchanged=True)
    previous = Previous() if rebuild else Previous.of(database)
    # Imported here: worker processes import this module to load submissions, and need neither.
    import pyarrow as pa  # noqa: PLC0415

    from tunemark.collector.audit.rule import all_rules, audit  # noqa: PLC0415

    facts = FactBase.of_root(root)
    rows = fact_rows(facts)
    checked = facts_digest == previous.facts_sha256
    undescribed = _add_documents(rows, facts, checked=checked)
    _add_converted(rows, facts, checked=checked)
    submissions = _load_submissions(root, facts, schemas, previous.submissions() if checked else {}, advance)
    accepted = accept(submissions, committed_files(root), is_known=partial(known_commits, root))
    ids = {kept.file: kept.result_id for kept in accepted.kept}
    rows.setdefault("warnings", []).extend(
        {"result_id": ids[file], "kind": SECOND_RUN, "message": doubt.text} for file, doubt in accepted.doubts
    )
    rows.setdefault("result_rows", []).extend(_headlines(accepted.kept, facts))
    rows["configurations"] = pool_configurations(rows["result_rows"])
    trusted = [loaded for loaded in accepted.kept if facts.known.withdrawal(loaded.result_id) is None]
    evidence = load_evidence(root, facts, [loaded.run for loaded in trusted if loaded.run is not None])
    rules = all_rules()
    findings = audit(evidence, rules)
    merge(rows, finding_rows(findings, rules))
    measured = [loaded.calibration for loaded in trusted if loaded.calibration is not None]
    calibration = calibrate(root, facts, evidence, findings, measured)
    add_derived_figures(rows, calibration.by_result, calibration.refused, evidence, findings)
    rows["throughput_refused"] = [{"result_id": result, "reason": reason} for result, reason in sorted(calibration.refused.items())]
    trust = {row["result_id"]: row["trust"] for row in rows["result_rows"]}
    predicted_from = predictions_sha256(facts_digest, day, calibration, trust, findings)
    predictions = previous.tables(PREDICTIONS) if predicted_from == previous.predictions_sha256 else None
    if predictions is None:
        merge(rows, _predictions(facts, calibration, evidence, trust, findings))
    problems = [*undescribed, *accepted.problems]
    complete = not problems and not accepted.notes
    digests = {"inputs_sha256": digest, "facts_sha256": facts_digest, "predictions_sha256": predicted_from}
    rows["collection"] = [{"as_of": day, **digests, "complete": complete}]
    rows["load_problems"] = [
        {"file": file, "field": problem.field, "value": problem.value, "fix": problem.fix} for file, problem in problems
    ]
    unread = [loaded.result_id for loaded in accepted.kept if not loaded.tables]
    kept_rows = previous.rows_of(OF_SUBMISSIONS, unread)
    tables = {
        name: pa.concat_tables(
            [
                as_arrow(rows.get(name, []), schema),
                *(loaded.tables[name] for loaded in accepted.kept if name in loaded.tables),
                *([kept_rows[name].cast(schema)] if name in kept_rows else []),
            ]
        )
        for name, schema in schemas.items()
    } | (predictions or {})
    build_database(database, tables)
    keep_submissions(database, digest, {(loaded.file, loaded.sha256): replace(loaded, tables={}) for loaded in accepted.kept})
    sources = Counter(row["source"] for row in rows["result_rows"])
    return Collected({name: table.num_rows for name, table in tables.items()}, dict(sources), problems, accepted.notes)


def _predictions(
    facts: FactBase, calibration: Calibration, evidence: Evidence, trust: Mapping[str, str], findings: Sequence[Finding]
) -> Rows:
    """Return the rows of the tables that `reuse.PREDICTIONS` names."""
    # Worker processes, which load submissions, need no predictor.
    from tunemark.collector.predict.cross_validation import cross_validate, throughput_rows  # noqa: PLC0415
    from tunemark.collector.predict.option_rates import option_rows  # noqa: PLC0415
    from tunemark.collector.predict.rules_of_thumb import rule_rows  # noqa: PLC0415

    fitted, held_out = cross_validate(calibration.rows)
    memory = list(memory_errors(facts, evidence.records))
    return throughput_rows(fitted, held_out) | {
        "option_rates": list(option_rows(facts, fitted, trust, findings)),
        "memory_errors": [row for row, _ in memory],
        "rule_errors": list(rule_rows(memory, (one for one in held_out if one.left_out == "source"))),
    }


def _load_submissions(
    root: Path,
    facts: FactBase,
    schemas: "dict[str, pa.Schema]",
    known: "Mapping[Loaded, LoadedSubmission]",
    advance: Callable[[], object],
) -> list[LoadedSubmission]:
    """Return the contents of all submission files, in their order; `known` are those that the last collection loaded with the same facts."""
    files = submission_files(root).files
    # Without a last collection no file is read twice.
    loaded = {path: kept for path in files if known and (kept := known.get((shown_path(path, root), _sha256(path)))) is not None}
    new = [path for path in files if path not in loaded]
    for path, each in zip(new, in_processes(partial(load_submission, root=root, facts=facts, schemas=schemas), new), strict=True):
        loaded[path] = each
        advance()
    for _ in range(len(files) - len(new)):
        advance()
    return [loaded[path] for path in files]


def _sha256(path: Path) -> str:
    """Return the hash of a file's bytes; empty if it cannot be read, which is reported where it is judged."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def submission_files(root: Path) -> RecordFiles:
    """Return the submission files of a checkout."""
    return records_in(root / SUBMISSIONS)


def load_submission(path: Path, root: Path, facts: FactBase, schemas: "dict[str, pa.Schema]") -> LoadedSubmission:
    """Return the contents of a submission file: its rows as Arrow tables, or its problems."""
    file = shown_path(path, root)
    verdict = judge(path, facts)
    record, derived, result_id = verdict.record, verdict.derived, verdict.result_id
    if verdict.problems:
        return LoadedSubmission(file, verdict.problems)
    if not isinstance(record, Submission) or derived is None:
        fix = "is not a submission; published results are in data/published"
        return LoadedSubmission(file, (Problem("format", repr(getattr(record, "format", None)), fix),))
    try:
        run = audited_submission(record, result_id, facts, derived)
        calibration = calibration_outcome(record, result_id, facts, derived)
        rows = measured_rows(record, derived, facts, result_id, file, verdict.sha256)
        tables = {name: as_arrow(part, schemas[name]) for name, part in rows.items()}
    except (ValueError, TypeError, ArithmeticError) as error:
        # These include Arrow's errors. An invalid record never stops the others.
        return LoadedSubmission(file, (Problem("record", "", f"contains a value that the database cannot store: {error}"),))
    del tables["result_rows"]
    candidate = verdict.candidate(file)
    checked = {name.name: getattr(candidate, name.name) for name in fields(candidate)}
    headline = rows["result_rows"][0]
    return LoadedSubmission(**checked, headline=headline, sha256=verdict.sha256, tables=tables, run=run, calibration=calibration)


def _headlines(submissions: list[LoadedSubmission], facts: FactBase) -> list[Row]:
    """Return the rows of `result_rows`; superseded and withdrawn results, and those of a changed card, stay readable and are not ranked."""
    replaced: dict[str, list[str]] = {}
    for loaded in submissions:
        if loaded.supersedes is not None:
            replaced.setdefault(loaded.supersedes, []).append(loaded.result_id)
    rows = []
    for loaded in submissions:
        row = dict(loaded.headline)
        if any(problem.field == "plan.workload_sha256" for problem in loaded.outdated):
            # The old card no longer exists to check against.
            note = f"the card {row['workload']} has changed since; declared as a standard run of it"
            row |= {"division": "open", "rankable": False, "note": note}
        if loaded.result_id in replaced:
            row |= {"rankable": False, "note": f"superseded by {', '.join(sorted(replaced[loaded.result_id]))}"}
        withdrawal = facts.known.withdrawal(loaded.result_id)
        if withdrawal is not None:
            row |= {"rankable": False, "note": f"withdrawn on {withdrawal.withdrawn_on}: {withdrawal.reason}"}
        rows.append(row)
    return rows


def finding_rows(findings: Iterable[Finding], rules: Iterable[Rule]) -> Rows:
    """Return the rows of the audit by table."""
    return {
        "audit_rules": [
            {
                "rule": rule.id,
                "family": rule.family,
                "title": rule.title,
                "why": rule.why,
                "verdicts": [verdict.value for verdict in rule.verdicts],
            }
            for rule in rules
        ],
        "findings": [
            {
                "finding": number,
                "rule": finding.rule,
                "verdict": finding.verdict.value,
                "record_ids": list(finding.records),
                "claim": finding.claim,
                "calculation": finding.calculation,
                "numbers": json.dumps(finding.numbers, ensure_ascii=False),
                "quantities": list(finding.quantities),
                "conditions": list(finding.conditions),
            }
            for number, finding in enumerate(findings, start=1)
        ],
    }


# Published and converted results are part of the project: any problem in them stops the collection.


def _add_documents(rows: Rows, facts: FactBase, *, checked: bool) -> FileProblems:
    """Add the rows of all documents and their results; return a problem for each source without a document, which is left out."""
    verdicts = _valid(PUBLISHED, facts, checked=checked)
    documents = {file: verdict.record for file, verdict in verdicts.items() if isinstance(verdict.record, SourceDocument)}
    results = [(file, result, verdict) for file, verdict in verdicts.items() for result in published_results(verdict.record)]
    known = {document.id for document in documents.values()}
    undescribed = Counter(result.source for _, result, _ in results if result.source not in known)
    described = [(file, result, verdict) for file, result, verdict in results if result.source in known]
    _refuse_repeated_ids((file, result.id) for file, result, _ in described)
    counts = Counter(result.source for _, result, _ in described)
    for file, document in documents.items():
        if counts[document.id] != document.results:
            raise _as_error(file, wrong_count(document.results, counts[document.id]))
        merge(rows, document_rows(document))
    sizes = known_dataset_rows(facts, documents.values())
    for file, result, verdict in described:
        merge(rows, published_rows(result, facts, sizes, file, verdict.sha256))
    return [(f"{PUBLISHED}/{source}/{DOCUMENT}", missing_document(source, number)) for source, number in sorted(undescribed.items())]


def _add_converted(rows: Rows, facts: FactBase, *, checked: bool) -> None:
    results = []
    for file, verdict in _valid(CONVERTED, facts, checked=checked).items():
        if not isinstance(verdict.record, ConvertedResult):
            record_format = getattr(verdict.record, "format", None)
            fix = f"is not a converted result; {CONVERTED} must contain only converted results"
            raise TunemarkError(f"{file}: format", record_format, fix, exit_code=Exit.INVALID)
        results.append((verdict.record, file, verdict.sha256))
    _refuse_repeated_ids((file, result.id) for result, file, _ in results)
    merge(rows, converted_rows(results))


def _valid(folder: str, facts: FactBase, *, checked: bool) -> dict[str, Verdict]:
    """Return the verdict on each file of a folder of the facts; raises TunemarkError (exit code 3) for the first problem.

    Files that were `checked` by the last collection, with the same code and facts, are only read.
    """
    root = facts.root.parent
    verdicts = {shown_path(path, root): _read(path) if checked else judge(path, facts) for path in records_in(root / folder).files}
    for file, verdict in verdicts.items():
        if verdict.problems:
            raise _as_error(file, verdict.problems[0])
    return verdicts


def _read(path: Path) -> Verdict:
    content = path.read_bytes()
    return Verdict((), read_record(content), sha256=hashlib.sha256(content).hexdigest())


def _as_error(file: str, problem: Problem) -> TunemarkError:
    try:
        value = ast.literal_eval(problem.value)
    except (ValueError, SyntaxError):
        # Shortened or empty: it stays text.
        value = problem.value
    return TunemarkError(f"{file}: {problem.field}", value, problem.fix, exit_code=Exit.INVALID)


def _refuse_repeated_ids(ids: Iterable[tuple[str, str]]) -> None:
    files: dict[str, str] = {}
    for file, result_id in ids:
        if result_id in files:
            fix = f"is already in {files[result_id]}; give each result a unique number"
            raise TunemarkError(f"{file}: id", result_id, fix, exit_code=Exit.INVALID)
        files[result_id] = file


# Results of one configuration ------------------------------------------------------------------------

INDEPENDENT_AFTER = timedelta(hours=1)
"""Series of one configuration that start within this time of each other share the state of the machine."""


def pool_configurations(result_rows: Iterable[Row]) -> list[Row]:
    """Return one row per configuration of rankable measured results, and set `configuration` and `trust` of those results.

    A configuration is `reproduced` if two independent series agree.
    """
    members: dict[str, list[Row]] = {}
    for row in result_rows:
        if row["source"] == "measured" and row["rankable"] and row["tokens_per_s"]:
            row["configuration"] = configuration(row)
            if row["configuration"] is not None:
                members.setdefault(row["configuration"], []).append(row)
    return [_pooled(name, rows) for name, rows in sorted(members.items())]


def _pooled(name: str, rows: Sequence[Row]) -> Row:
    rates = [row["tokens_per_s"] for row in rows]
    pooled = one_more_run(rates) if len(rates) > 1 else None
    series = _independent_series(rows)
    reproduced = any(_agree(a, b) for a, b in combinations(series, 2))
    if reproduced:
        for row in rows:
            row["trust"] = Trust.REPRODUCED.value
    return {
        "configuration": name,
        "runs": len(rows),
        "series": len(series),
        "tokens_per_s": pooled.value if pooled else rates[0],
        "tokens_per_s_low": pooled.low if pooled else None,
        "tokens_per_s_high": pooled.high if pooled else None,
        "between_run_cv": stdev(map(log, rates)) if pooled else None,
        "reproduced": reproduced,
        "result_ids": sorted(row["result_id"] for row in rows),
    }


def _independent_series(rows: Sequence[Row]) -> list[list[float]]:
    """Return the rates of each independent series: runs of one study, or runs that started shortly after each other."""
    series: list[list[float]] = []
    last: Row | None = None
    for row in sorted(rows, key=lambda row: (row["started_at"], row["result_id"])):
        same_study = last is not None and row.get("study_id") is not None and row.get("study_id") == last.get("study_id")
        if last is not None and (same_study or row["started_at"] - last["started_at"] < INDEPENDENT_AFTER):
            series[-1].append(row["tokens_per_s"])
        else:
            series.append([row["tokens_per_s"]])
        last = row
    return series


def _agree(first: Sequence[float], second: Sequence[float]) -> bool:
    """Return True if the mean of one series lies within the interval for one more run of the other, which needs repeats."""
    return any(
        len(a) > 1 and (interval := one_more_run(a)).low <= geometric_mean(b) <= interval.high
        for a, b in ((first, second), (second, first))
    )
