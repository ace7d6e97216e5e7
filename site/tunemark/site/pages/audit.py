"""Findings of the audit about one record, as its page tells them."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tunemark.site import tables, wording
from tunemark.site.page import Page, audit_path, document_path, result_path, rule_path, statement_path
from tunemark.site.queries import Catalogue, Row
from tunemark.site.tables import Cell, Column, Line, Table

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


# MOVE: was tunemark.site.pages.audit: The audit: what its rules found, source by source, and the rules with their reasons.

CRUMBS = (("Audit", "audit/index"),)
MEASURED = "measured"


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the overview, the findings of each source, and the rules."""
    records = Counter([*catalogue.result_sources.values(), *catalogue.statement_sources.values()])
    yield Page(
        "audit/index",
        "Audit: are the numbers true?",
        "audit.md.j2",
        {
            "records": sum(records.values()),
            "results": len(catalogue.results),
            "rules": len(catalogue.audit_rules),
            "counts": in_a_line(catalogue.findings),
            "about": len({row["record_ids"][0] for row in catalogue.findings}),
            "impossible": sum(row["impossible"] for row in catalogue.results),
            "verdicts": VERDICTS,
            "sources": _sources(catalogue, records),
            "families": _families(catalogue),
        },
    )
    for source, rows in catalogue.findings_by_source.items():
        context = {
            "counts": in_a_line(rows),
            "records": records[source],
            "about": len({row["record_ids"][0] for row in rows}),
            "document": None if source == MEASURED else document_path(source),
            "command": f"tunemark audit --source {source}",
            "table": _findings(catalogue, rows),
        }
        yield Page(audit_path(source), f"Audit: {_title(catalogue, source)}", "audit_source.md.j2", context, CRUMBS)
    yield Page("audit/rules", "Rules of the audit", "audit_rules.md.j2", {"families": _rules(catalogue)}, CRUMBS)


def _title(catalogue: Catalogue, source: str) -> str:
    known = next((row["title"] for row in catalogue.sources if row["source"] == source), None)
    return str(known) if known else "measured results" if source == MEASURED else source


def _sources(catalogue: Catalogue, records: Counter[str]) -> Table:
    columns = [
        Column("Source"),
        Column("Records", numeric=True, explained="Results, and statements that a document makes beside them."),
        Column("With a finding", numeric=True),
        *(Column(wording.sentence(verdict), numeric=True, explained=meaning) for verdict, meaning in VERDICTS.items()),
    ]
    lines = (_source_line(catalogue, source, number) for source, number in sorted(records.items()))
    return tables.table("Findings by source", columns, lines)


def _source_line(catalogue: Catalogue, source: str, records: int) -> Line:
    rows = catalogue.findings_by_source.get(source, [])
    counted = Counter(row["verdict"] for row in rows)
    return Line(
        (
            Cell(_title(catalogue, source), small=source, href=audit_path(source) if rows else None, sort=source),
            _number(records),
            _number(len({row["record_ids"][0] for row in rows})),
            *(_number(counted[verdict]) for verdict in VERDICTS),
        )
    )


def _number(number: int) -> Cell:
    return Cell(str(number), sort=number)


def _families(catalogue: Catalogue) -> Table:
    counted = Counter((row["family"], row["verdict"]) for row in catalogue.findings)
    rules = Counter(row["family"] for row in catalogue.audit_rules)
    columns = [
        Column("Kind of rule"),
        Column("Rules", numeric=True),
        *(Column(wording.sentence(verdict), numeric=True, explained=meaning) for verdict, meaning in VERDICTS.items()),
    ]
    lines = (
        Line(
            (
                Cell(wording.sentence(family), href=f"audit/rules#{family}", sort=family),
                _number(number),
                *(_number(counted[family, verdict]) for verdict in VERDICTS),
            )
        )
        for family, number in rules.items()
    )
    return tables.table("Findings by kind of rule", columns, lines)


def _findings(catalogue: Catalogue, rows: list[Row]) -> Table:
    columns = [Column("About"), Column("Verdict"), Column("Rule"), Column("Claim"), Column("Calculation")]
    worst_first = sorted(rows, key=lambda row: (list(VERDICTS).index(row["verdict"]), row["finding"]))
    return tables.table(
        "Findings", columns, (_finding(catalogue, row) for row in worst_first), interactive=True, searchable=False, stacked=True
    )


def _finding(catalogue: Catalogue, row: Row) -> Line:
    (first, href), more = link(catalogue, row["record_ids"][0]), len(row["record_ids"]) - 1
    return Line(
        (
            Cell(first, small=f"and {more} more" if more else "", href=href, sort=first),
            verdict_cell(row["verdict"]),
            Cell(wording.sentence(row["title"]), small=row["rule"], href=rule_path(row["rule"]), sort=row["title"]),
            tables.text(row["claim"]),
            tables.text(row["calculation"]),
        )
    )


def _rules(catalogue: Catalogue) -> list[tuple[str, list[Row]]]:
    """Return the rules by family, each with how many findings it made of each verdict."""
    counted = Counter((row["rule"], row["verdict"]) for row in catalogue.findings)
    families: dict[str, list[Row]] = {}
    for row in catalogue.audit_rules:
        made = [(verdict, counted[row["rule"], verdict]) for verdict in VERDICTS if verdict in row["verdicts"]]
        families.setdefault(row["family"], []).append(row | {"title": wording.sentence(row["title"]), "made": made})
    return list(families.items())
