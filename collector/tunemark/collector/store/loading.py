"""From files to the database: facts, documents, published and converted results, submissions; all or nothing."""

import ast
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tunemark.collector.audit.evidence import AuditedResult
from tunemark.collector.audit.load import audited_submission, load_evidence
from tunemark.collector.audit.rule import Finding, Rule
from tunemark.collector.gate.check import Verdict, judge
from tunemark.collector.gate.cross_file_checks import Candidate, FileProblems, accept, committed_files, known_commits
from tunemark.collector.gate.fact_files import missing_document, wrong_count
from tunemark.collector.gate.read import CONVERTED, DOCUMENT, PUBLISHED, SUBMISSIONS, RecordFiles, in_processes, records_in, shown_path
from tunemark.collector.predict.calibration_rows import CalibrationOutcome, calibrate, calibration_outcome
from tunemark.collector.predict.derived_figures import add_derived_figures
from tunemark.collector.predict.predicted_vs_measured import memory_errors
from tunemark.collector.store.configurations import pool_configurations
from tunemark.collector.store.database import arrow_schemas, as_arrow, build_database, open_database
from tunemark.collector.store.fact_rows import fact_rows
from tunemark.collector.store.measured_rows import measured_rows
from tunemark.collector.store.published_rows import converted_rows, document_rows, known_dataset_rows, published_rows
from tunemark.collector.store.rows import Row, Rows, merge
from tunemark.schema import errors
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.files import data_folder
from tunemark.schema.records.converted import ConvertedResult
from tunemark.schema.records.published import SourceDocument, published_results
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.upgrade import Problem

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

CODE = Path(__file__).parents[2]
"""The package of the collector."""
SCHEMA = Path(errors.__file__).parent
"""The package of the schema, wherever it is installed."""


@dataclass(frozen=True, slots=True)
class LoadedSubmission(Candidate):
    """A submission file with everything that the database and the analyses need of it."""

    headline: Row = field(default_factory=dict)
    """Its row of `result_rows`."""
    tables: "dict[str, pa.Table]" = field(default_factory=dict)
    """Its rows of all other tables."""
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
    day, digest, schemas = as_of or datetime.now(tz=UTC).date(), inputs_sha256(root), arrow_schemas()
    counts = None if rebuild else counts_if_unchanged(database, digest, day, schemas)
    if counts is not None:
        return Collected(*counts, [], [], unchanged=True)
    # Imported here: worker processes import this module to load submissions and need neither the audit's rules nor the predictor.
    import pyarrow as pa  # noqa: PLC0415

    from tunemark.collector.audit.rule import all_rules, audit  # noqa: PLC0415
    from tunemark.collector.predict.cross_validation import cross_validate, throughput_rows  # noqa: PLC0415
    from tunemark.collector.predict.option_rates import option_rows  # noqa: PLC0415
    from tunemark.collector.predict.rules_of_thumb import rule_rows  # noqa: PLC0415

    facts = FactBase.of_root(root)
    rows = fact_rows(facts)
    undescribed = _add_documents(rows, facts)
    _add_converted(rows, facts)
    submissions = []
    for loaded in in_processes(partial(load_submission, root=root, facts=facts, schemas=schemas), submission_files(root).files):
        submissions.append(loaded)
        advance()
    accepted = accept(submissions, committed_files(root), is_known=partial(known_commits, root))
    rows.setdefault("warnings", []).extend(
        {"result_id": kept.result_id, "kind": "second_run", "message": f"{doubt.field}: {doubt.value}: {doubt.fix}"}
        for kept in accepted.kept
        for file, doubt in accepted.doubts
        if file == kept.file
    )
    rows.setdefault("result_rows", []).extend(_headlines(accepted.kept))
    rows["configurations"] = pool_configurations(rows["result_rows"])
    evidence = load_evidence(root, facts, [loaded.run for loaded in accepted.kept if loaded.run is not None])
    rules = all_rules()
    findings = audit(evidence, rules)
    merge(rows, finding_rows(findings, rules))
    measured = [loaded.calibration for loaded in accepted.kept if loaded.calibration is not None]
    calibration = calibrate(root, facts, evidence, findings, measured)
    fitted, held_out = cross_validate(calibration.rows)
    merge(rows, throughput_rows(fitted, held_out, calibration.refused))
    add_derived_figures(rows, calibration.by_result, calibration.refused, evidence, findings)
    trust = {row["result_id"]: row["trust"] for row in rows["result_rows"]}
    rows["option_rates"] = list(option_rows(facts, fitted, trust, findings))
    memory = list(memory_errors(facts, evidence.records))
    rows["memory_errors"] = [row for row, _ in memory]
    rows["rule_errors"] = list(rule_rows(memory, (one for one in held_out if one.left_out == "source")))
    problems = [*undescribed, *accepted.problems]
    rows["collection"] = [{"as_of": day, "inputs_sha256": digest, "complete": not problems and not accepted.notes}]
    rows["load_problems"] = [
        {"file": file, "field": problem.field, "value": problem.value, "fix": problem.fix} for file, problem in problems
    ]
    tables = {
        name: pa.concat_tables(
            [as_arrow(rows.get(name, []), schema), *(loaded.tables[name] for loaded in accepted.kept if name in loaded.tables)]
        )
        for name, schema in schemas.items()
    }
    build_database(database, tables)
    sources = Counter(row["source"] for row in rows["result_rows"])
    return Collected({name: table.num_rows for name, table in tables.items()}, dict(sources), problems, accepted.notes)


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
    return LoadedSubmission(**checked, headline=rows["result_rows"][0], tables=tables, run=run, calibration=calibration)


def _headlines(submissions: list[LoadedSubmission]) -> list[Row]:
    """Return the rows of `result_rows`; superseded results and results of a changed card stay readable but are never ranked."""
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


def _add_documents(rows: Rows, facts: FactBase) -> FileProblems:
    """Add the rows of all documents and their results; return a problem for each source without a document, which is left out."""
    verdicts = _valid(PUBLISHED, facts)
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


def _add_converted(rows: Rows, facts: FactBase) -> None:
    results = []
    for file, verdict in _valid(CONVERTED, facts).items():
        if not isinstance(verdict.record, ConvertedResult):
            record_format = getattr(verdict.record, "format", None)
            fix = f"is not a converted result; {CONVERTED} must contain only converted results"
            raise TunemarkError(f"{file}: format", record_format, fix, exit_code=Exit.INVALID)
        results.append((verdict.record, file, verdict.sha256))
    _refuse_repeated_ids((file, result.id) for result, file, _ in results)
    merge(rows, converted_rows(results))


def _valid(folder: str, facts: FactBase) -> dict[str, Verdict]:
    """Return the verdict on each file of a folder of the facts; raises TunemarkError (exit code 3) for the first problem."""
    root = facts.root.parent
    verdicts = {shown_path(path, root): judge(path, facts) for path in records_in(root / folder).files}
    for file, verdict in verdicts.items():
        if verdict.problems:
            raise _as_error(file, verdict.problems[0])
    return verdicts


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


# A collection is skipped if the database was built from the same inputs: files, code and day -----------


def inputs_sha256(root: Path) -> str:
    """Return the hash of all inputs of a collection: the files of data and submissions, which of them git tracks, and the code."""
    digest = hashlib.sha256()
    folders = (data_folder(root), root / SUBMISSIONS, CODE, SCHEMA)
    for folder in folders:
        for path in sorted(_files(folder)):
            digest.update(f"{path.relative_to(folder)}\0".encode(errors="surrogateescape"))
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    digest.update("\0".join(sorted(committed_files(root))).encode(errors="surrogateescape"))
    return digest.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that could be inputs, without caches."""
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            yield path


def counts_if_unchanged(database: Path, digest: str, as_of: date, tables: Iterable[str]) -> tuple[dict[str, int], dict[str, int]] | None:
    """Return the rows by table and the results by source of a database with these inputs; None if it is missing or has other inputs.

    A database that left out a file, or noted something about one, counts as changed, so that this is reported again.
    """
    try:
        with open_database(database) as connection:
            same = _row(connection, "select inputs_sha256 = ? and as_of = ? and complete from collection", [digest, as_of])
            if not same:
                return None
            rows = {name: _row(connection, f"select count(*) from {name}") for name in tables}  # noqa: S608 - our own tables
            sources = connection.execute("select source from result_rows").fetchall()
    except (TunemarkError, LookupError):
        return None
    return rows, dict(Counter(source for (source,) in sources))


def _row(connection: "duckdb.DuckDBPyConnection", sql: str, values: list[object] | None = None) -> int:
    """Return the single value of a query. Raises LookupError if there is none, such as in a database of an older version."""
    import duckdb  # noqa: PLC0415 - not needed to import this module

    try:
        row = connection.execute(sql, values or []).fetchone()
    except duckdb.Error as error:
        raise LookupError(str(error)) from error
    if row is None:
        raise LookupError(sql)
    return int(row[0])
