"""The audit: its findings by source, its rules with their reasons, and the findings shown on other pages."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tunemark.site import tables, wording
from tunemark.site.page import Page, audit_path, document_path, result_path, rule_path, statement_path
from tunemark.site.queries import Catalogue
from tunemark.site.tables import Cell, Column, Row, Table, text_column

CRUMBS = (("Audit", "audit/index"),)
MEASURED = "measured"
VERDICTS = {
    "impossible": "No reading of the figures can be true.",
    "inconsistent": "Figures of the same document contradict each other.",
    "suspicious": "The figure can be true, but it is far from known values and should be checked.",
    "ambiguous": "The figure has several meanings, and the document does not say which one it uses.",
}
"""Verdicts with their meaning, worst first."""
MAX_RELATED = 6

Link = tuple[str, str | None]
"""A record and the path of its page."""


@dataclass(frozen=True, slots=True)
class ShownFinding:
    """A finding as the page of a record shows it."""

    verdict: str
    meaning: str
    title: str
    rule_href: str
    why: str
    claim: str
    calculation: str
    others: tuple[Link, ...]
    """Other records that the finding is about, at most `MAX_RELATED`."""
    more: int
    """Number of further records."""


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the overview, the findings of each source, and the rules."""
    records = Counter([*catalogue.result_sources.values(), *catalogue.statement_sources.values()])
    overview = {
        "records": sum(records.values()),
        "results": len(catalogue.results),
        "rules": len(catalogue.audit_rules),
        "counts": verdict_counts(catalogue.findings),
        "about": _subjects(catalogue.findings),
        "impossible": sum(row["impossible"] for row in catalogue.results),
        "verdicts": VERDICTS,
        "sources": _sources(catalogue, records),
        "families": _families(catalogue),
    }
    yield Page("audit/index", "Audit: are the numbers true?", "audit.md.j2", overview)
    for source, rows in catalogue.findings_by_source.items():
        context = {
            "counts": verdict_counts(rows),
            "records": records[source],
            "about": _subjects(rows),
            "document": None if source == MEASURED else document_path(source),
            "command": f"tunemark audit --source {source}",
            "table": _findings(catalogue, rows),
        }
        yield Page(audit_path(source), f"Audit: {_title(catalogue, source)}", "audit_source.md.j2", context, CRUMBS)
    yield Page("audit/rules", "Audit rules", "audit_rules.md.j2", {"families": _rules(catalogue)}, CRUMBS)


def findings_about(catalogue: Catalogue, record: str) -> list[ShownFinding]:
    """Return the findings about a result or a statement, worst first."""
    return [_shown(catalogue, row, record) for row in _worst_first(catalogue.findings_about.get(record, ()))]


def verdict_counts(rows: Iterable[Row], source: str | None = None) -> list[tuple[str, int, str | None]]:
    """Return the number of findings per verdict, with the path of the page that lists them."""
    counted = Counter(row["verdict"] for row in rows)
    path = None if source is None else audit_path(source)
    return [(verdict, counted[verdict], path) for verdict in VERDICTS if counted[verdict]]


def _worst_first(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (list(VERDICTS).index(row["verdict"]), row["finding"]))


def _shown(catalogue: Catalogue, row: Row, record: str) -> ShownFinding:
    others = [other for other in row["record_ids"] if other != record]
    return ShownFinding(
        row["verdict"],
        VERDICTS[row["verdict"]],
        wording.sentence(row["title"]),
        rule_path(row["rule"]),
        row["why"],
        row["claim"],
        row["calculation"],
        tuple(_link(catalogue, other) for other in others[:MAX_RELATED]),
        max(0, len(others) - MAX_RELATED),
    )


def _link(catalogue: Catalogue, record: str) -> Link:
    """Return a record with its path: a result has a page, a statement has a place on its document's page."""
    if record in catalogue.result_ids:
        return record, result_path(record)
    source = catalogue.statement_sources.get(record)
    return record, None if source is None else statement_path(source, record)


def _subjects(findings: Iterable[Row]) -> int:
    """Return the number of records that have a finding."""
    return len({row["record_ids"][0] for row in findings})


def _title(catalogue: Catalogue, source: str) -> str:
    known = next((row["title"] for row in catalogue.sources if row["source"] == source), None)
    return str(known) if known else "measured results" if source == MEASURED else source


def _verdict_columns(counted: Counter[tuple[str, str]]) -> list[Column[str]]:
    """Return a column per verdict for a table with an item per source or family; `counted` is by item and verdict."""
    return [
        Column(
            wording.sentence(verdict),
            lambda item, verdict=verdict: tables.number(counted[item, verdict]),  # type: ignore[misc]
            numeric=True,
            explained=meaning,
        )
        for verdict, meaning in VERDICTS.items()
    ]


def _sources(catalogue: Catalogue, records: Counter[str]) -> Table:
    findings = catalogue.findings_by_source
    counted = Counter((source, row["verdict"]) for source, rows in findings.items() for row in rows)
    columns: list[Column[str]] = [
        Column(
            "Source",
            lambda source: tables.text(
                _title(catalogue, source), small=source, href=audit_path(source) if source in findings else None, sort=source
            ),
        ),
        Column(
            "Records", lambda source: tables.number(records[source]), numeric=True, explained="Results and other statements of a document."
        ),
        Column("With a finding", lambda source: tables.number(_subjects(findings.get(source, ()))), numeric=True),
        *_verdict_columns(counted),
    ]
    return tables.table("Findings by source", columns, sorted(records))


def _families(catalogue: Catalogue) -> Table:
    rules = Counter(row["family"] for row in catalogue.audit_rules)
    columns: list[Column[str]] = [
        Column("Kind of rule", lambda family: tables.text(wording.sentence(family), href=f"audit/rules#{family}", sort=family)),
        Column("Rules", lambda family: tables.number(rules[family]), numeric=True),
        *_verdict_columns(Counter((row["family"], row["verdict"]) for row in catalogue.findings)),
    ]
    return tables.table("Findings by kind of rule", columns, rules)


def _findings(catalogue: Catalogue, rows: list[Row]) -> Table:
    def about(row: Row) -> Cell:
        (record, href), more = _link(catalogue, row["record_ids"][0]), len(row["record_ids"]) - 1
        return Cell(record, small=f"and {more} more" if more else "", href=href, sort=record)

    columns: list[Column[Row]] = [
        Column("About", about),
        Column("Verdict", lambda row: _verdict_cell(row["verdict"])),
        Column(
            "Rule",
            lambda row: Cell(wording.sentence(row["title"]), small=row["rule"], href=rule_path(row["rule"]), sort=row["title"]),
        ),
        text_column("Claim", "claim"),
        text_column("Calculation", "calculation"),
    ]
    return tables.table("Findings", columns, _worst_first(rows), interactive=True, searchable=False, stacked=True)


def _verdict_cell(verdict: str) -> Cell:
    return Cell(verdict, badge=verdict, explained=VERDICTS[verdict], sort=list(VERDICTS).index(verdict))


def _rules(catalogue: Catalogue) -> list[tuple[str, list[Row]]]:
    """Return the rules by family, each with its number of findings per verdict under `made`."""
    counted = Counter((row["rule"], row["verdict"]) for row in catalogue.findings)
    families: dict[str, list[Row]] = {}
    for row in catalogue.audit_rules:
        made = [(verdict, counted[row["rule"], verdict]) for verdict in VERDICTS if verdict in row["verdicts"]]
        families.setdefault(row["family"], []).append(row | {"title": wording.sentence(row["title"]), "made": made})
    return list(families.items())
