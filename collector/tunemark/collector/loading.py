"""From files to the database: facts, documents, published results and submissions, all or nothing."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tunemark.collector.audit.load import audited_submission as measured_run
from tunemark.collector.audit.load import load_evidence as base_of
from tunemark.collector.audit.rule import audit
from tunemark.collector.database import arrow_schemas, as_arrow, build_database
from tunemark.collector.document_files import document_file_rows
from tunemark.collector.fact_rows import fact_rows
from tunemark.collector.finding_rows import finding_rows
from tunemark.collector.importers.converted_files import converted_file_rows
from tunemark.collector.judging import Verdict, judge
from tunemark.collector.measured_rows import measured_rows
from tunemark.collector.memory_error_rows import memory_error_rows
from tunemark.collector.pool import over_files
from tunemark.collector.record_files import SUBMISSIONS, Found, records_in, shown_path
from tunemark.collector.rows import Row, merge
from tunemark.collector.throughput_observed import learn_from, measured_found
from tunemark.collector.throughput_rows import throughput_rows
from tunemark.collector.together import FileProblems, Loaded, accept, committed_files
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.upgrade import Problem

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
    merge(rows, throughput_rows(learn_from(root, facts, base, findings, taught)))
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


def submission_files(root: Path) -> Found:
    """Return the submission files of a checkout."""
    return records_in(root / SUBMISSIONS)


def judged(file: str, verdict: Verdict) -> Loaded:
    """Return what is to be known of a judged file when it meets the others."""
    record = verdict.record
    if not isinstance(record, Submission):
        return Loaded(file, verdict.problems)
    # The name decides the card, and is there also when the device had no card yet.
    subject = {"workload": record.workload, "device": record.environment.devices[0].name}
    return Loaded(file, verdict.problems, record.run_id, verdict.result_id, record.supersedes, subject, verdict.outdated)


def _submissions(root: Path, facts: FactBase, schemas: "dict[str, pa.Schema]", advance: Advance) -> list[Loaded]:
    loaded = []
    for one in over_files(partial(load_submission, root=root, facts=facts, schemas=schemas), submission_files(root).files):
        loaded.append(one)
        advance()
    return loaded


def load_submission(path: Path, root: Path, facts: FactBase, schemas: "dict[str, pa.Schema]") -> Loaded:
    """Return what a submission file gives: its rows as Arrow tables, or its problems."""
    file = shown_path(path, root)
    verdict = judge(path, facts)
    record = verdict.record
    if verdict.problems:
        return Loaded(file, verdict.problems)
    if not isinstance(record, Submission) or verdict.derived is None:
        return Loaded(
            file,
            (Problem("format", repr(getattr(record, "format", None)), "is not a submission; published results live in data/published"),),
        )
    try:
        run = measured_run(record, verdict.result_id, facts, verdict.derived)
        taught = measured_found(record, verdict.result_id, facts, verdict.derived)
        rows = measured_rows(record, verdict.derived, facts, verdict.result_id, file, verdict.sha256)
        tables = {name: as_arrow(part, schemas[name]) for name, part in rows.items()}
    except (ValueError, TypeError, ArithmeticError) as error:
        # Arrow's own errors are among these. Whatever a record may hold, it stops no other record.
        return Loaded(file, (Problem("record", "", f"holds a value that the database cannot: {error}"),))
    del tables["result_rows"]
    return replace(judged(file, verdict), headline=rows["result_rows"][0], tables=tables, run=run, taught=taught)


def _headlines(accepted: Iterable[Loaded]) -> list[Row]:
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


def _of_another_card(one: Loaded) -> Row:
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
