"""The explorer of all results with a plain table for readers without JavaScript, and the files that could not be loaded."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from tunemark.site import tables
from tunemark.site.explorer_data import EXPLORER_PATH, explorer_rows
from tunemark.site.page import Page
from tunemark.site.queries import Catalogue
from tunemark.site.results_table import MOST_RESULTS, ordered, results_table
from tunemark.site.tables import Table, text_column


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the page with all results."""
    rows = catalogue.results
    shown = [row["id"] for row in explorer_rows(catalogue) if not row["flags"]]
    context = {
        "table": plain_table(catalogue, shown[:MOST_RESULTS]),
        "data": f"../{EXPLORER_PATH}",
        "total": len(rows),
        "shown": len(shown),
        "most": MOST_RESULTS,
        "trust": sorted(Counter(row["trust"] for row in rows).items()),
        "problems": _problems(catalogue),
    }
    yield Page("results/index", "Results", "results.md.j2", context)


def plain_table(catalogue: Catalogue, result_ids: list[str]) -> Table:
    """Return a table of these results in their order, without a script."""
    place = {result: number for number, result in enumerate(result_ids)}
    rows = [row for row in catalogue.results if row["result_id"] in place]
    table = results_table(catalogue, rows, "Finished results")
    lines = {row["result_id"]: line for row, line in zip(ordered(rows), table.rows, strict=True)}
    return replace(table, rows=tuple(lines[result] for result in result_ids), interactive=False, stacked=True)


def _problems(catalogue: Catalogue) -> Table | None:
    if not catalogue.problems:
        return None
    columns = [text_column("File", "file"), text_column("Field", "field"), text_column("Value", "value"), text_column("Fix", "fix")]
    return tables.table("Files that were not loaded", columns, catalogue.problems, searchable=False)
