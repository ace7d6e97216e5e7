"""From files to the database: facts, documents, published results and submissions, all or nothing."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tunemark.collector.database import arrow_schemas, as_arrow, build_database
from tunemark.collector.document_files import document_file_rows
from tunemark.collector.fact_rows import fact_rows
from tunemark.collector.importers.converted_files import converted_file_rows
from tunemark.collector.judging import judge
from tunemark.collector.measured_rows import measured_rows
from tunemark.collector.pool import over_files
from tunemark.collector.record_files import SUBMISSIONS, Found, records_in, shown_path
from tunemark.collector.rows import Row, merge
from tunemark.schema.facts import FactBase
from tunemark.schema.history import Problem
from tunemark.schema.submission import Submission

if TYPE_CHECKING:
    import pyarrow as pa

Advance = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Loaded:
    """What one submission file gave."""

    file: str
    problems: tuple[Problem, ...]
    run_id: str = ""
    result_id: str = ""
    supersedes: str | None = None
    headline: Row = field(default_factory=dict)
    """Its row of `result_rows`."""
    tables: "dict[str, pa.Table]" = field(default_factory=dict)
    """Its rows of all other tables."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What is in the database now."""

    rows: dict[str, int]
    """Rows by table."""
    results: dict[str, int]
    """Results by source."""
    problems: list[tuple[str, Problem]]
    """Submissions that were not loaded, by file."""


def collect(root: Path, database: Path, advance: Advance = lambda: None) -> Collected:
    """Load all records of a checkout into a new database in place of the old one.

    Parameters
    ----------
    root
        The checkout.
    database
        The DuckDB file to write.
    advance
        Called after each submission.

    Raises
    ------
    TunemarkError
        With exit code 3 when our own facts or published results are wrong. Nothing is written then.

    """
    facts = FactBase(root / "data")
    rows = fact_rows(facts)
    merge(rows, document_file_rows(root, facts))
    merge(rows, converted_file_rows(root, facts))
    schemas = arrow_schemas()
    loaded = _submissions(root, facts, schemas, advance)
    accepted, problems = refuse_repeats(loaded)
    rows.setdefault("result_rows", []).extend(_headlines(accepted))
    rows["load_problems"] = [
        {"file": file, "field": problem.field, "value": problem.value, "fix": problem.fix} for file, problem in problems
    ]
    tables = {
        name: _joined(as_arrow(rows.get(name, []), schema), (part.tables.get(name) for part in accepted))
        for name, schema in schemas.items()
    }
    build_database(database, tables)
    return Collected(
        {name: table.num_rows for name, table in tables.items()}, dict(Counter(row["source"] for row in rows["result_rows"])), problems
    )


def submission_files(root: Path) -> Found:
    """Return the submission files of a checkout."""
    return records_in(root / SUBMISSIONS)


def refuse_repeats(loaded: Iterable[Loaded]) -> tuple[list[Loaded], list[tuple[str, Problem]]]:
    """Return the submissions to keep and the problems of the others; of two with the same run id the first is kept."""
    kept: dict[str, Loaded] = {}
    problems: list[tuple[str, Problem]] = []
    for one in loaded:
        first = kept.get(one.run_id)
        if one.problems:
            problems.extend((one.file, problem) for problem in one.problems)
        elif first is not None:
            problems.append((one.file, Problem("run_id", repr(one.run_id), f"is the run of {first.file} already; a run is submitted once")))
        else:
            kept[one.run_id] = one
    return list(kept.values()), problems


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
    rows = measured_rows(record, verdict.derived, verdict.result_id, file, verdict.sha256)
    headline = rows.pop("result_rows")[0]
    tables = {name: as_arrow(part, schemas[name]) for name, part in rows.items()}
    return Loaded(file, (), record.run_id, verdict.result_id, record.supersedes, headline, tables)


def _headlines(accepted: Iterable[Loaded]) -> list[Row]:
    """Return the rows of `result_rows`; superseded ones stay readable but share no ranking."""
    replaced: dict[str, list[str]] = {}
    accepted = list(accepted)
    for one in accepted:
        if one.supersedes is not None:
            replaced.setdefault(one.supersedes, []).append(one.result_id)
    return [
        one.headline
        | ({"rankable": False, "note": f"superseded by {', '.join(sorted(replaced[one.result_id]))}"} if one.result_id in replaced else {})
        for one in accepted
    ]


def _joined(first: "pa.Table", more: "Iterable[pa.Table | None]") -> "pa.Table":
    import pyarrow as pa  # noqa: PLC0415 - only `collect` needs it

    return pa.concat_tables([first, *(table for table in more if table is not None)])
