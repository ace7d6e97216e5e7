"""What readers must not expect: the limits of the data and of the answers, and what has changed in the data."""

from collections.abc import Iterator
from statistics import median

from tunemark.schema.formats import counted, percent
from tunemark.site import tables, wording
from tunemark.site.page import Page, result_path
from tunemark.site.queries import BASIS_KIND, Catalogue
from tunemark.site.render import ENDING
from tunemark.site.syndication import entries
from tunemark.site.tables import Column, Row, Table

CRUMBS = (("Guide", "guide/index"),)
MOST = 200
"""Changes that the page lists."""
CHANGED = ("superseded by", "withdrawn on")
"""Beginnings of the notes of results that count no longer."""


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the page of limitations and that of changes."""
    yield Page("guide/limitations", "Limitations", "limitations.md.j2", _context(catalogue), CRUMBS, wide=False)
    changes = {"table": _changes(catalogue), "corrected": _corrected(catalogue)}
    yield Page("guide/data-changes", "Changes of the data", "data_changes.md.j2", changes, CRUMBS)


def _context(catalogue: Catalogue) -> dict[str, object]:
    """Return the counts that the sentences of the page state."""
    units = {row["accelerator"]: row["unit"] for row in catalogue.accelerators}
    measured = [row for row in catalogue.results if row["source"] == "measured"]
    errors = [
        abs(row["error"]) for row in catalogue.predictions["throughput_errors"] if row["left_out"] == "source" and row["error"] is not None
    ]
    regions = [row for row in catalogue.prices if row["newest"] and row["kind"] == BASIS_KIND]
    return {
        "results": len(catalogue.results),
        "measured": len(measured),
        "on_cpu": sum(units.get(row["accelerator"], "cpu") == "cpu" for row in measured),
        "with_finding": sum(bool(row["findings"]) for row in catalogue.results),
        "error": percent(median(errors)) if errors else "",
        "american": sum(str(row["region"] or "").lower().startswith("us") for row in regions),
        "regions": counted(len(regions), "price"),
        "unverified": sum(bool(row["unverified"]) for row in catalogue.accelerators),
        "accelerators": len(catalogue.accelerators),
    }


def _changes(catalogue: Catalogue) -> Table:
    """Return the additions to the data, newest first."""
    columns = [
        Column[Row]("Day", lambda row: tables.text(row["day"]), tight=True),
        Column[Row]("Change", lambda row: tables.text(row["title"], href=row["path"])),
        Column[Row]("Contents", lambda row: tables.text(row["summary"])),
    ]
    rows = [
        {"day": entry.day[:10], "title": entry.title, "path": entry.path.removesuffix(ENDING), "summary": entry.summary}
        for entry in entries(catalogue, MOST)
    ]
    return tables.table("Additions", columns, rows, interactive=True, searchable=False, stacked=True)


def _corrected(catalogue: Catalogue) -> Table | None:
    """Return the results that were replaced or withdrawn; None without any."""
    rows = [row for row in catalogue.results if str(row["note"] or "").startswith(CHANGED)]
    columns = [
        Column[Row](
            "Result", lambda row: tables.text(wording.result_title(row), href=result_path(row["result_id"]), small=row["result_id"])
        ),
        Column[Row]("What happened", lambda row: tables.text(wording.sentence(row["note"]))),
    ]
    return tables.table("Replaced and withdrawn results", columns, rows, searchable=False, stacked=True) if rows else None
