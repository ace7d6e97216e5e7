"""The audit: what its rules found, source by source, and the rules with their reasons."""

from collections import Counter
from collections.abc import Iterator

from tunemark.site import tables, wording
from tunemark.site.page import Page, audit_path, document_path, rule_path
from tunemark.site.pages.findings import VERDICTS, in_a_line, link, verdict_cell
from tunemark.site.queries import Catalogue, Row
from tunemark.site.tables import Cell, Column, Line, Table

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
