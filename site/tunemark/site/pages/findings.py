"""Findings of the audit about one record, as its page tells them."""

from collections.abc import Iterable
from dataclasses import dataclass

from tunemark.site import wording
from tunemark.site.page import audit_path, result_path, rule_path, statement_path
from tunemark.site.queries import Catalogue, Row
from tunemark.site.tables import Cell

VERDICTS = {
    "impossible": "No reading of the figures can be true.",
    "inconsistent": "Figures of the same document, or of a document and its own tables, contradict each other.",
    "suspicious": "It can be true, and is so far from what is known that it needs another look.",
    "ambiguous": "It means different things by different definitions, and the document does not say which.",
}
"""The worst first."""
SHOWN_RECORDS = 6

Link = tuple[str, str | None]
"""A record and the path of its page."""


@dataclass(frozen=True, slots=True)
class Told:
    """A finding as the page of a record tells it."""

    verdict: str
    meaning: str
    title: str
    rule_href: str
    why: str
    claim: str
    calculation: str
    others: tuple[Link, ...]
    """Further records that it is about."""
    more: int
    """And how many beyond those."""


def told(catalogue: Catalogue, record: str) -> list[Told]:
    """Return what was found about a result or a statement, the worst first."""
    found = sorted(catalogue.findings_about.get(record, ()), key=lambda row: (list(VERDICTS).index(row["verdict"]), row["finding"]))
    return [_told(catalogue, row, record) for row in found]


def _told(catalogue: Catalogue, row: Row, record: str) -> Told:
    others = [one for one in row["record_ids"] if one != record]
    return Told(
        row["verdict"],
        VERDICTS[row["verdict"]],
        wording.sentence(row["title"]),
        rule_path(row["rule"]),
        row["why"],
        row["claim"],
        row["calculation"],
        tuple(link(catalogue, one) for one in others[:SHOWN_RECORDS]),
        max(0, len(others) - SHOWN_RECORDS),
    )


def link(catalogue: Catalogue, record: str) -> Link:
    """Return a record and where it is shown: a result on its page, a statement on that of its document."""
    if record in catalogue.result_ids:
        return record, result_path(record)
    source = catalogue.statement_sources.get(record)
    return record, None if source is None else statement_path(source, record)


def verdict_cell(verdict: str) -> Cell:
    """Return the cell of a verdict."""
    return Cell(verdict, badge=verdict, explained=VERDICTS[verdict], sort=list(VERDICTS).index(verdict))


def in_a_line(rows: Iterable[Row], source: str | None = None) -> list[tuple[str, int, str | None]]:
    """Return how many findings there are of each verdict, with the page that lists them."""
    verdicts = [row["verdict"] for row in rows]
    path = None if source is None else audit_path(source)
    return [(verdict, verdicts.count(verdict), path) for verdict in VERDICTS if verdict in verdicts]
