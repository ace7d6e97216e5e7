"""From files to the database: facts, documents, published and converted results, submissions; all or nothing."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from itertools import combinations
from math import log, log1p
from pathlib import Path
from statistics import geometric_mean, stdev

import pyarrow as pa

from tunemark.collector.audit.evidence import AuditedResult, grouped
from tunemark.collector.audit.load import audited_submission, load_evidence
from tunemark.collector.audit.rule import all_rules, audit
from tunemark.collector.gate.check import judge
from tunemark.collector.gate.cross_file_checks import FileProblems, Verdict, accept, committed_files, submitters
from tunemark.collector.gate.fact_checks import Neighbours
from tunemark.collector.gate.fact_files import document_problems
from tunemark.collector.gate.read import CONVERTED, PUBLISHED, SUBMISSIONS, records_in, shown_path
from tunemark.collector.gate.relations import SECOND_RUN
from tunemark.collector.predict.calibration_rows import add_derived_figures, calibrate
from tunemark.collector.predict.cross_validation import GROUP, audit_rates, leave_out, throughput_rows
from tunemark.collector.predict.estimate import EVIDENCE_FILE, inputs_sha256, keep_evidence
from tunemark.collector.predict.fit import fit
from tunemark.collector.predict.predicted_vs_measured import memory_errors, memory_needs
from tunemark.collector.store.database import Row, Rows, arrow_schemas, as_arrow, build_database, columns_of, fact_rows, merge
from tunemark.collector.store.result_rows import converted_rows, document_rows, measured_rows, published_rows
from tunemark.schema.comparability import configuration
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.converted import ConvertedResult
from tunemark.schema.records.published import SourceDocument, published_results
from tunemark.schema.records.reading import Problem
from tunemark.schema.records.submission import Submission
from tunemark.schema.statistics.intervals import one_more_run


@dataclass(frozen=True, slots=True)
class LoadedSubmission:
    """A submission file with everything that the database and the analyses need of it."""

    candidate: Verdict
    """What the cross-file checks need."""
    headline: Row = field(default_factory=dict)
    """Its row of `result_rows`."""
    tables: dict[str, pa.Table] = field(default_factory=dict)
    """Its rows of all other tables."""
    run: AuditedResult | None = None
    """The result as the audit sees it."""


@dataclass(frozen=True, slots=True)
class Collected:
    """The contents of the new database."""

    rows: dict[str, int]
    """Number of rows by table."""
    results: dict[str, int]
    """Number of results by source."""
    problems: FileProblems
    """Submissions that were not loaded."""
    notes: FileProblems
    """Notes on submissions that were loaded."""


def collect(root: Path, database: Path, as_of: date | None = None) -> Collected:
    """Load all records of a checkout into a new database that replaces the old one.

    `as_of` is the day of the current prices, today by default. Nothing is written if facts, published or converted results are
    invalid: raises TunemarkError with exit code 3.
    """
    day, schemas = as_of or datetime.now(tz=UTC).date(), arrow_schemas()
    facts = FactBase.of_root(root)
    rows = fact_rows(facts)
    fact_files = _fact_files(facts)
    _add_fact_files(rows, facts, fact_files)
    loaded_files = [load_submission(path, root, facts, schemas) for path in records_in(root / SUBMISSIONS).files]
    submissions = {loaded.candidate.file: loaded for loaded in loaded_files}
    accepted = accept([loaded.candidate for loaded in submissions.values()], committed_files(root), root=root)
    kept = [submissions[candidate.file] for candidate in accepted.kept]
    of_result = {file: loaded.candidate.result_id for file, loaded in submissions.items()}
    doubts = [{"result_id": of_result[file], "kind": SECOND_RUN, "message": doubt.text} for file, doubt in accepted.doubts]
    merge(rows, {"warnings": doubts, "result_rows": _headlines(kept, facts)})
    rows["configurations"] = pool_configurations(rows["result_rows"], submitters(root))
    trusted = [loaded for loaded in kept if facts.known.withdrawal(loaded.candidate.result_id) is None]
    read = [verdict.record for verdict in fact_files.values()]
    evidence = load_evidence(root, facts, [loaded.run for loaded in trusted if loaded.run is not None], read)
    rules = all_rules()
    findings = audit(evidence, rules)
    calibration = calibrate(evidence, findings)
    rows["throughput_refused"] = calibration.unused()
    trust = {row["result_id"]: row["trust"] for row in rows["result_rows"]}
    fitted = fit(calibration.rows)
    held_out = [each for left_out in GROUP for each in leave_out(fitted, left_out)]
    findings = audit_rates(evidence, findings, held_out)
    rows["audit_rules"] = [columns_of("audit_rules", each) for each in rules]
    rows["findings"] = [columns_of("findings", each) | {"finding": number} for number, each in enumerate(findings, start=1)]
    add_derived_figures(rows, calibration)
    memory = {"memory_errors": list(memory_errors(facts, evidence.records)), "memory_needs": list(memory_needs(facts))}
    merge(rows, throughput_rows(fitted, held_out, trust, findings) | memory)
    inputs = inputs_sha256(root)
    rows["collection"] = [{"as_of": day, "inputs_sha256": inputs, "complete": not accepted.problems and not accepted.notes}]
    rows["load_problems"] = [columns_of("load_problems", problem) | {"file": file} for file, problem in accepted.problems]
    parts = {name: [as_arrow(rows.get(name, []), schema)] for name, schema in schemas.items()}
    for name, part in (pair for loaded in kept for pair in loaded.tables.items()):
        parts[name].append(part)
    tables = {name: pa.concat_tables(of_table) for name, of_table in parts.items()}
    build_database(database, tables)
    if database.parent == root / "build":
        keep_evidence(database.with_name(EVIDENCE_FILE), inputs, rows)
    sources = Counter(row["source"] for row in rows["result_rows"])
    return Collected({name: table.num_rows for name, table in tables.items()}, dict(sources), accepted.problems, accepted.notes)


def load_submission(path: Path, root: Path, facts: FactBase, schemas: dict[str, pa.Schema]) -> LoadedSubmission:
    """Return the contents of a submission file: its rows as Arrow tables, or its problems."""
    file, verdict = shown_path(path, root), judge(path, facts)
    candidate, record, derived = verdict.candidate(file), verdict.record, verdict.derived
    if verdict.problems or not isinstance(record, Submission) or derived is None:
        return LoadedSubmission(candidate)
    result_id = verdict.result_id
    try:
        run = audited_submission(record, result_id, facts, derived)
        rows = measured_rows(record, derived, facts, result_id, file, verdict.sha256)
        tables = {name: as_arrow(part, schemas[name]) for name, part in rows.items()}
    except (ValueError, TypeError, ArithmeticError) as error:
        # These include Arrow's errors. An invalid record never stops the others.
        problem = Problem("record", "", f"contains a value that the database cannot store: {error}")
        return LoadedSubmission(Verdict((problem,), file=file))
    del tables["result_rows"]
    return LoadedSubmission(candidate, rows["result_rows"][0], tables, run)


def _headlines(submissions: list[LoadedSubmission], facts: FactBase) -> list[Row]:
    """Return the rows of `result_rows`; superseded and withdrawn results, and those of a changed card, stay readable and are not ranked."""
    replaced = grouped((loaded.candidate for loaded in submissions), lambda candidate: candidate.run.supersedes)
    rows = []
    for loaded in submissions:
        row, result_id = dict(loaded.headline), loaded.candidate.result_id
        if any(problem.field == "plan.workload_sha256" for problem in loaded.candidate.outdated):
            # The old card no longer exists to check against.
            note = f"the card {row['workload']} has changed since; declared as a standard run of it"
            row |= {"division": "open", "rankable": False, "note": note}
        if result_id in replaced:
            row |= {"rankable": False, "note": f"superseded by {', '.join(sorted(each.result_id for each in replaced[result_id]))}"}
        withdrawal = facts.known.withdrawal(result_id)
        if withdrawal is not None:
            row |= {"rankable": False, "note": f"withdrawn on {withdrawal.withdrawn_on}: {withdrawal.reason}"}
        rows.append(row)
    return rows


# Published and converted results are part of the project: any problem in them stops the collection.


def _fact_files(facts: FactBase) -> dict[str, Verdict]:
    """Return the verdict on each file of published and converted results; raises TunemarkError (exit code 3) for the first problem."""
    root = facts.root.parent
    paths = [path for name in (PUBLISHED, CONVERTED) for path in records_in(root / name).files]
    verdicts = {shown_path(path, root): judge(path, facts) for path in paths}
    problems = [(file, problem) for file, verdict in verdicts.items() for problem in verdict.problems]
    problems = problems or document_problems(paths, root, Neighbours(facts.root))
    results: dict[str, str] = {}
    for file, result in ((file, result) for file, verdict in verdicts.items() for result in published_results(verdict.record)):
        if result.id in results:
            problems.append((file, Problem("id", repr(result.id), f"is already in {results[result.id]}; give each result a unique number")))
        results[result.id] = file
    for file, problem in problems[:1]:
        raise TunemarkError(file, None, str(problem), exit_code=Exit.INVALID)
    return verdicts


def _add_fact_files(rows: Rows, facts: FactBase, verdicts: Mapping[str, Verdict]) -> None:
    """Add the rows of all documents, and of published and converted results."""
    for file, verdict in verdicts.items():
        if isinstance(verdict.record, SourceDocument):
            merge(rows, document_rows(verdict.record))
        for result in published_results(verdict.record):
            merge(rows, published_rows(result, facts, file, verdict.sha256))
    converted = ((each.record, file, each.sha256) for file, each in verdicts.items() if isinstance(each.record, ConvertedResult))
    merge(rows, converted_rows(converted))


# Results of one configuration ------------------------------------------------------------------------

AGREEMENT = 0.05
"""Mean rates of two submitters that differ by at most this share agree. A choice, not a measurement: there are no second submitters yet."""


def pool_configurations(result_rows: Iterable[Row], submitters: Mapping[str, str]) -> list[Row]:
    """Return one row per configuration of rankable measured results, and set `configuration` and `trust` of those results.

    A configuration is `reproduced` if two submitters agree. `submitters` has the author of each file that git knows.
    """
    ranked = [row for row in result_rows if row["source"] == "measured" and row["rankable"] and row["tokens_per_s"]]
    for row in ranked:
        row["configuration"] = configuration(row)
    members = grouped((row for row in ranked if row["configuration"] is not None), lambda row: row["configuration"])
    return [_pooled(name, rows, submitters) for name, rows in sorted(members.items())]


def _pooled(name: str, rows: Sequence[Row], submitters: Mapping[str, str]) -> Row:
    rates = [row["tokens_per_s"] for row in rows]
    pooled = one_more_run(rates) if len(rates) > 1 else None
    # A result that is not committed is of nobody yet.
    of_submitter = grouped((row for row in rows if row["file"] in submitters), lambda row: submitters[row["file"]])
    means = [log(geometric_mean(row["tokens_per_s"] for row in own)) for own in of_submitter.values()]
    reproduced = any(abs(one - other) <= log1p(AGREEMENT) for one, other in combinations(means, 2))
    if reproduced:
        for row in rows:
            row["trust"] = "reproduced"
    return {
        "configuration": name,
        "runs": len(rows),
        "submitters": max(1, len(of_submitter)),
        "tokens_per_s": pooled.value if pooled else rates[0],
        "tokens_per_s_low": pooled.low if pooled else None,
        "tokens_per_s_high": pooled.high if pooled else None,
        "between_run_cv": stdev(map(log, rates)) if pooled else None,
        "reproduced": reproduced,
        "result_ids": sorted(row["result_id"] for row in rows),
    }
