"""The table of all results, and the files that could not be loaded."""

from collections import Counter
from collections.abc import Iterator

from tunemark.site import tables
from tunemark.site.page import Page
from tunemark.site.queries import Catalogue
from tunemark.site.results_table import results_table
from tunemark.site.tables import Table, text_column


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the page with all results."""
    rows = catalogue.results
    context = {
        "table": results_table(catalogue, rows, "All results"),
        "total": len(rows),
        "failed": sum(row["failed"] for row in rows),
        "ambiguous": sum(row["ambiguous"] for row in rows),
        "trust": sorted(Counter(row["trust"] for row in rows).items()),
        "problems": _problems(catalogue),
    }
    yield Page("results/index", "Results", "results.md.j2", context)


def _problems(catalogue: Catalogue) -> Table | None:
    if not catalogue.problems:
        return None
    columns = [text_column("File", "file"), text_column("Field", "field"), text_column("Value", "value"), text_column("Fix", "fix")]
    return tables.table("Files that were not loaded", columns, catalogue.problems, searchable=False)
