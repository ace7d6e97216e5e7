"""The documents of data/published with their results: ours, so any problem in them stops."""

import ast
import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tunemark.collector.audit.engine import audit
from tunemark.collector.audit.loaded import base_of, measured_run
from tunemark.collector.audit.registry import RULES
from tunemark.collector.gate.check import Verdict, judge, judged
from tunemark.collector.gate.cross_file_checks import Candidate, FileProblems, accept, committed_files
from tunemark.collector.gate.fact_files import DOCUMENT, missing_document
from tunemark.collector.gate.read import CONVERTED, SUBMISSIONS, RecordFiles, over_files, records_in, shown_path
from tunemark.collector.predict.calibration_rows import calibrate, calibration_outcome
from tunemark.collector.predict.cross_validation import throughput_rows
from tunemark.collector.predict.predicted_vs_measured import memory_error_rows
from tunemark.collector.store.database import arrow_schemas, as_arrow, build_database
from tunemark.collector.store.fact_rows import fact_rows
from tunemark.collector.store.measured_rows import measured_rows
from tunemark.collector.store.published_rows import converted_rows, document_rows, known_dataset_rows, published_rows
from tunemark.collector.store.rows import Row, Rows, merge
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.findings import Finding
from tunemark.schema.records.converted import ConvertedResult
from tunemark.schema.records.published import PublishedResult, SourceDocument
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.upgrade import Problem


def document_file_rows(root: Path, facts: FactBase) -> tuple[Rows, FileProblems]:
    """Return the rows of all documents and their results, and the documents that are left out because nothing describes them.

    Raises
    ------
    TunemarkError
        With exit code 3 for the first problem within a file.

    """
    verdicts = {shown_path(path, root): judge(path, facts) for path in records_in(root / "data" / "published").files}
    for file, verdict in verdicts.items():
        if verdict.problems:
            raise as_error(file, verdict.problems[0])
    documents = {file: verdict.record for file, verdict in verdicts.items() if isinstance(verdict.record, SourceDocument)}
    results = {file: verdict for file, verdict in verdicts.items() if isinstance(verdict.record, PublishedResult)}
    results, left_out = _described(documents, results)
    _refuse_wrong_counts(documents, results)
    rows: Rows = {}
    for document in documents.values():
        merge(rows, document_rows(document))
    sizes = known_dataset_rows(facts, documents.values())
    for file, verdict in results.items():
        if isinstance(verdict.record, PublishedResult):
            merge(rows, published_rows(verdict.record, facts, sizes, file, verdict.sha256))
    return rows, left_out


def as_error(file: str, problem: Problem) -> TunemarkError:
    """Return a problem of our own files as the error that stops."""
    try:
        value = ast.literal_eval(problem.value)
    except (ValueError, SyntaxError):
        # Shown shortened, or empty: then it stays the text it is.
        value = problem.value
    return TunemarkError(f"{file}: {problem.field}", value, problem.fix, exit_code=Exit.INVALID)


def _described(documents: dict[str, SourceDocument], results: dict[str, Verdict]) -> tuple[dict[str, Verdict], FileProblems]:
    """Return the results whose document is described, and a problem for each document that is not."""
    known = {document.id for document in documents.values()}
    missing = Counter(
        verdict.record.source
        for verdict in results.values()
        if isinstance(verdict.record, PublishedResult) and verdict.record.source not in known
    )
    kept = {
        file: verdict
        for file, verdict in results.items()
        if not isinstance(verdict.record, PublishedResult) or verdict.record.source in known
    }
    return kept, [(f"data/published/{source}/{DOCUMENT}", missing_document(source, number)) for source, number in sorted(missing.items())]


def _refuse_wrong_counts(documents: dict[str, SourceDocument], results: dict[str, Verdict]) -> None:
    ids: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for file, verdict in results.items():
        if not isinstance(verdict.record, PublishedResult):
            continue
        if verdict.record.id in ids:
            raise TunemarkError(
                f"{file}: id",
                verdict.record.id,
                f"is in {ids[verdict.record.id]} already; give each result a number of its own",
                exit_code=Exit.INVALID,
            )
        ids[verdict.record.id] = file
        counts[verdict.record.source] += 1
    for file, document in documents.items():
        if counts[document.id] != document.results:
            raise TunemarkError(
                f"{file}: results",
                document.results,
                f"there are {counts[document.id]} results of this source; correct the number or add what is missing",
                exit_code=Exit.INVALID,
            )


# MOVE: was tunemark.collector.store.loading: The converted results of data/converted: ours, so any problem in them stops.


def converted_file_rows(root: Path, facts: FactBase) -> Rows:
    """Return the rows of all converted results; raises TunemarkError (exit code 3) for the first problem."""
    found: dict[str, tuple[ConvertedResult, str, str]] = {}
    for path in records_in(root / CONVERTED).files:
        file, verdict = shown_path(path, root), judge(path, facts)
        if verdict.problems:
            raise as_error(file, verdict.problems[0])
        record = verdict.record
        if not isinstance(record, ConvertedResult):
            raise TunemarkError(
                f"{file}: format",
                getattr(record, "format", None),
                f"is not a converted result; {CONVERTED} holds nothing else",
                exit_code=Exit.INVALID,
            )
        if record.id in found:
            raise TunemarkError(
                f"{file}: id", record.id, f"is in {found[record.id][1]} already; an entry is converted once", exit_code=Exit.INVALID
            )
        found[record.id] = (record, file, verdict.sha256)
    return converted_rows(found.values())


# MOVE: was tunemark.collector.store.loading: How findings and rules of the audit become rows.


def finding_rows(findings: Iterable[Finding]) -> Rows:
    """Return the rows of the audit by table."""
    return {
        "audit_rules": [
            {"rule": rule.id, "family": rule.family, "title": rule.title, "why": rule.why, "verdicts": [one.value for one in rule.verdicts]}
            for rule in RULES
        ],
        "findings": [
            {
                "finding": number,
                "rule": one.rule,
                "verdict": one.verdict.value,
                "record_ids": list(one.records),
                "claim": one.claim,
                "calculation": one.calculation,
                "numbers": json.dumps(one.numbers, ensure_ascii=False),
            }
            for number, one in enumerate(findings, start=1)
        ],
    }


# MOVE: was tunemark.collector.store.loading: From files to the database: facts, documents, published results and submissions, all or nothing.

if TYPE_CHECKING:
    import pyarrow as pa

Advance = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Collected:
    """What is in the database now."""

    rows: dict[str, int]
    """Rows by table."""
    results: dict[str, int]
    """Results by source."""
    problems: list[tuple[str, Problem]]
    """Submissions that were not loaded, and documents without a description, by file."""
    notes: list[tuple[str, Problem]]
    """What is to be known of submissions that were loaded, by file."""


def collect(root: Path, database: Path, advance: Advance = lambda: None, as_of: date | None = None) -> Collected:
    """Load all records of a checkout into a new database in place of the old one.

    Parameters
    ----------
    root
        The checkout.
    database
        The DuckDB file to write.
    advance
        Called after each submission.
    as_of
        The day whose prices are the current ones; today when left out.

    Raises
    ------
    TunemarkError
        With exit code 3 when our own facts or published results are wrong. Nothing is written then.

    """
    facts = FactBase(root / "data")
    rows = fact_rows(facts)
    documents, undescribed = document_file_rows(root, facts)
    merge(rows, documents)
    merge(rows, converted_file_rows(root, facts))
    schemas = arrow_schemas()
    rows["collection"] = [{"as_of": as_of or datetime.now(tz=UTC).date()}]
    accepted = accept(_submissions(root, facts, schemas, advance), committed_files(root))
    rows.setdefault("result_rows", []).extend(_headlines(accepted.kept))
    problems = [*undescribed, *accepted.problems]
    base = base_of(root, facts, [one.run for one in accepted.kept if one.run is not None])
    findings = audit(base)
    merge(rows, finding_rows(findings))
    taught = [one.taught for one in accepted.kept if one.taught is not None]
    merge(rows, throughput_rows(calibrate(root, facts, base, findings, taught)))
    merge(rows, {"memory_errors": memory_error_rows(facts, base.records)})
    rows["load_problems"] = _problem_rows(problems)
    tables = {
        name: _joined(as_arrow(rows.get(name, []), schema), (part.tables.get(name) for part in accepted.kept))
        for name, schema in schemas.items()
    }
    build_database(database, tables)
    return Collected(
        {name: table.num_rows for name, table in tables.items()},
        dict(Counter(row["source"] for row in rows["result_rows"])),
        problems,
        accepted.notes,
    )


def submission_files(root: Path) -> RecordFiles:
    """Return the submission files of a checkout."""
    return records_in(root / SUBMISSIONS)


def _submissions(root: Path, facts: FactBase, schemas: "dict[str, pa.Schema]", advance: Advance) -> list[Candidate]:
    loaded = []
    for one in over_files(partial(load_submission, root=root, facts=facts, schemas=schemas), submission_files(root).files):
        loaded.append(one)
        advance()
    return loaded


def load_submission(path: Path, root: Path, facts: FactBase, schemas: "dict[str, pa.Schema]") -> Candidate:
    """Return what a submission file gives: its rows as Arrow tables, or its problems."""
    file = shown_path(path, root)
    verdict = judge(path, facts)
    record = verdict.record
    if verdict.problems:
        return Candidate(file, verdict.problems)
    if not isinstance(record, Submission) or verdict.derived is None:
        return Candidate(
            file,
            (Problem("format", repr(getattr(record, "format", None)), "is not a submission; published results live in data/published"),),
        )
    try:
        run = measured_run(record, verdict.result_id, facts, verdict.derived)
        taught = calibration_outcome(record, verdict.result_id, facts, verdict.derived)
        rows = measured_rows(record, verdict.derived, facts, verdict.result_id, file, verdict.sha256)
        tables = {name: as_arrow(part, schemas[name]) for name, part in rows.items()}
    except (ValueError, TypeError, ArithmeticError) as error:
        # Arrow's own errors are among these. Whatever a record may hold, it stops no other record.
        return Candidate(file, (Problem("record", "", f"holds a value that the database cannot: {error}"),))
    del tables["result_rows"]
    return replace(judged(file, verdict), headline=rows["result_rows"][0], tables=tables, run=run, taught=taught)


def _headlines(accepted: Iterable[Candidate]) -> list[Row]:
    """Return the rows of `result_rows`; superseded ones and those of another card stay readable but share no ranking."""
    replaced: dict[str, list[str]] = {}
    accepted = list(accepted)
    for one in accepted:
        if one.supersedes is not None:
            replaced.setdefault(one.supersedes, []).append(one.result_id)
    return [
        one.headline
        | (_of_another_card(one) if any(problem.field == "plan.workload_sha256" for problem in one.outdated) else {})
        | ({"rankable": False, "note": f"superseded by {', '.join(sorted(replaced[one.result_id]))}"} if one.result_id in replaced else {})
        for one in accepted
    ]


def _of_another_card(one: Candidate) -> Row:
    """Return what a run shows whose card has changed since: nothing can be checked against that card any more."""
    return {
        "division": "open",
        "rankable": False,
        "note": f"the card {one.headline['workload']} has changed since; declared as a standard run of it",
    }


def _problem_rows(problems: FileProblems) -> list[Row]:
    return [{"file": file, "field": problem.field, "value": problem.value, "fix": problem.fix} for file, problem in problems]


def _joined(first: "pa.Table", more: "Iterable[pa.Table | None]") -> "pa.Table":
    import pyarrow as pa  # noqa: PLC0415 - only `collect` needs it

    return pa.concat_tables([first, *(table for table in more if table is not None)])
