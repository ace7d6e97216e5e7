"""The documents of data/published with their results: ours, so any problem in them stops."""

import ast
from collections import Counter
from pathlib import Path

from tunemark.collector.document_rows import document_rows
from tunemark.collector.fact_files import DOCUMENT, missing_document
from tunemark.collector.judging import Verdict, judge
from tunemark.collector.published_rows import known_dataset_rows, published_rows
from tunemark.collector.record_files import records_in, shown_path
from tunemark.collector.rows import Rows, merge
from tunemark.collector.together import FileProblems
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.published import PublishedResult, SourceDocument
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
