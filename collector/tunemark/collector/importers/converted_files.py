"""The converted results of data/converted: ours, so any problem in them stops."""

from pathlib import Path

from tunemark.collector.document_files import as_error
from tunemark.collector.importers.converted_rows import converted_rows
from tunemark.collector.judging import judge
from tunemark.collector.record_files import CONVERTED, records_in, shown_path
from tunemark.collector.rows import Rows
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.converted import ConvertedResult


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
