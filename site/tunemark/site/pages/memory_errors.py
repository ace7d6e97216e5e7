"""The memory model beside published peaks and beside two other calculators; and what both tables of errors share."""

from collections.abc import Iterable
from statistics import median

from tunemark.schema import formats
from tunemark.site import tables
from tunemark.site.page import accelerator_path, model_path, result_path
from tunemark.site.queries import Catalogue, Row
from tunemark.site.tables import Cell, Column, Line, Table

CALCULATORS = (
    ("tunemark estimate", "predicted_bytes"),
    ("formula of document 004", "formula_004_bytes"),
    ("accelerate estimate-memory", "accelerate_bytes"),
)


class Names:
    """Names for readers of cards, and where their pages are."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._accelerators = {row["accelerator"]: row["name"] for row in catalogue.accelerators}
        self._models = {row["model"]: row["name"] for row in catalogue.models}

    def accelerator(self, key: str) -> Cell:
        """Return the cell of an accelerator."""
        return tables.text(self._accelerators.get(key, key), href=accelerator_path(key) if key in self._accelerators else None)

    def model(self, key: str) -> Cell:
        """Return the cell of a model."""
        return tables.text(self._models.get(key, key), href=model_path(key) if key in self._models else None)


def percent(share: float | None, *, signed: bool = False) -> Cell:
    """Return the cell of a share; a dash when unknown."""
    if share is None:
        return tables.text(None)
    return Cell(f"{share:+.0%}" if signed else f"{share:.1%}", sort=share)


def memory_context(catalogue: Catalogue) -> dict[str, object]:
    """Return what a page tells of the memory model; nothing where the database has no published peak."""
    rows, own = catalogue.predictions["memory_errors"], _own(catalogue)
    if not rows:
        return {"memory": None, **own}
    names = Names(catalogue)
    columns = [
        Column("Calculator"),
        Column("Results", numeric=True),
        Column("Median error", numeric=True),
        Column("Worst error", numeric=True),
    ]
    return {
        "memory": tables.table("Errors of memory", columns, (_calculator(rows, *one) for one in CALCULATORS)),
        "memory_rows": _memory_rows(rows, names),
        "reading": " ".join(dict.fromkeys(row["reading"] for row in rows if row["reading"])),
        **own,
    }


def _own(catalogue: Catalogue) -> dict[str, object]:
    """Return how near predictions are to what own runs weighed: tensors one by one, and peaks where a device's allocator tells them."""
    lines = [
        line
        for row in catalogue.results_where(source="measured", status="ok")
        for line in catalogue.seen("memory_lines", row["result_id"])
        if line["measured_bytes"] and line["predicted_bytes"] is not None
    ]
    columns = [
        Column("What was weighed"),
        Column("Results", numeric=True),
        Column("Median error", numeric=True),
        Column("Worst error", numeric=True),
    ]
    made = (_weighed(name, [line for line in lines if line["line"] == name]) for name in dict.fromkeys(line["line"] for line in lines))
    return {
        "weighed": tables.table("Memory of own runs", columns, made) if lines else None,
        "peaks": sum(line["kind"] == "peak" for line in lines),
    }


def _weighed(name: str, lines: list[Row]) -> Line:
    errors = [abs(line["predicted_bytes"] / line["measured_bytes"] - 1) for line in lines]
    return Line(
        (
            tables.text(name),
            Cell(str(len(errors)), sort=len(errors)),
            *(Cell(f"{error:.2%}", sort=error) for error in (median(errors), max(errors))),
        )
    )


def _calculator(rows: Iterable[Row], name: str, column: str) -> Line:
    errors = [abs(row[column] / row["published_bytes"] - 1) for row in rows if row[column] is not None]
    figures = (percent(median(errors)), percent(max(errors))) if errors else (tables.text(None), tables.text(None))
    return Line((tables.text(name), Cell(str(len(errors)), sort=len(errors)), *figures))


def _memory_rows(rows: list[Row], names: Names) -> Table:
    columns = [Column("Result"), Column("Model"), Column("Method"), Column("Published", numeric=True)]
    columns += [Column(name, numeric=True) for name, _ in CALCULATORS]
    return tables.table("Memory, result by result", columns, (_memory_row(row, names) for row in rows), interactive=True, searchable=False)


def _memory_row(row: Row, names: Names) -> Line:
    devices = f"{row['accelerator_count']} x " if row["accelerator_count"] > 1 else ""
    where = names.accelerator(row["accelerator"]).text if row["accelerator"] else "unknown"
    published = row["published_bytes"]
    return Line(
        (
            Cell(devices + where, small=row["result_id"], href=result_path(row["result_id"]), sort=row["result_id"]),
            names.model(row["model"]),
            tables.text(row["method"]),
            Cell(formats.gb(published), sort=published),
            *(_beside(row[column], published) for _, column in CALCULATORS),
        )
    )


def _beside(predicted: float | None, published: float) -> Cell:
    if predicted is None:
        return tables.text(None)
    return Cell(formats.gb(predicted), small=f"{predicted / published - 1:+.0%}", sort=predicted)
