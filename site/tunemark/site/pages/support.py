"""What each device family can be asked for, from the harness' own table, and what no run of ours has shown yet."""

from collections.abc import Iterator
from functools import partial

from tunemark.site import tables, wording
from tunemark.site.page import Page
from tunemark.site.pages.proofs import PROOFS, Shown, Shows, shown
from tunemark.site.queries import Catalogue, Row
from tunemark.site.tables import Cell, Column, Line, Table

CRUMBS = (("Guide", "guide/index"),)


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the support matrix."""
    backends = list(dict.fromkeys(row["backend"] for row in catalogue.support))
    context = {
        "families": _families(catalogue, backends) if backends else None,
        "matrix": _matrix(catalogue, backends) if backends else None,
        "proofs": _proofs(catalogue, backends),
    }
    yield Page("guide/support", "What runs where", "support.md.j2", context, CRUMBS)


def _measured(catalogue: Catalogue) -> list[Row]:
    return catalogue.results_where(source="measured")


def _families(catalogue: Catalogue, backends: list[str]) -> Table:
    columns = [
        Column("Device family"),
        Column("Runs that ended well", numeric=True),
        Column("Other runs", numeric=True),
        Column("Evidence"),
    ]
    return tables.table("Device families", columns, (_family(catalogue, backend) for backend in backends))


def _family(catalogue: Catalogue, backend: str) -> Line:
    runs = [row for row in _measured(catalogue) if row["backend"] == backend]
    well = sum(row["status"] == "ok" for row in runs)
    return Line(
        (
            tables.text(wording.backend(backend)),
            Cell(str(well), sort=well),
            Cell(str(len(runs) - well), sort=len(runs) - well),
            _evidence(well),
        )
    )


def _evidence(well: int) -> Cell:
    return Cell("measured", badge="measured", sort="measured") if well else Cell("never run by us", badge="ambiguous", sort="never")


def _matrix(catalogue: Catalogue, backends: list[str]) -> Table:
    columns = [Column("Feature"), *(Column(wording.backend(backend)) for backend in backends)]
    cells = {(row["feature"], row["backend"]): row for row in catalogue.support}
    features = dict.fromkeys(row["feature"] for row in catalogue.support)
    lines = (Line((tables.text(feature), *(_cell(cells.get((feature, one))) for one in backends))) for feature in features)
    return tables.table("Support matrix", columns, lines, searchable=False, stacked=True)


def _cell(row: Row | None) -> Cell:
    if row is None:
        return tables.text(None)
    if row["supported"]:
        return Cell("yes", badge="ok", sort="yes", small=f"needs {row['needs']}" if row["needs"] else "")
    return Cell("no", badge="plain", sort="no", small=row["reason"] or "")


def _proofs(catalogue: Catalogue, backends: list[str]) -> Table:
    seen = list(shown(catalogue))
    proofs: dict[str, Shows] = {
        **{f"The code for {wording.backend(one)}": partial(_runs_on, one) for one in backends if one != "cpu"},
        **PROOFS,
    }
    columns = [Column("What"), Column("Results that show it", numeric=True), Column("Evidence")]
    return tables.table("What only an accelerator can prove", columns, (_proof(what, seen, shows) for what, shows in proofs.items()))


def _runs_on(backend: str, one: Shown) -> bool:
    return one.well and bool(one.row["backend"] == backend)


def _proof(what: str, seen: list[Shown], shows: Shows) -> Line:
    number = sum(shows(one) for one in seen)
    return Line((tables.text(what), Cell(str(number), sort=number), _evidence(number)))
