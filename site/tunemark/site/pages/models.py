"""Models: their shape, and the results of fine-tuning them."""

from collections.abc import Iterator

from tunemark.site import tables, wording
from tunemark.site.page import Fact, Page, model_path
from tunemark.site.queries import Catalogue, Row
from tunemark.site.results_table import results_table
from tunemark.site.tables import Cell, Column, Line, Table

CRUMBS = (("Models", "models/index"),)
SHAPE = {
    "parameters": "Parameters",
    "matrix_parameters": "Parameters in matrix products (N_mm)",
    "layers": "Layers",
    "hidden_size": "Hidden size",
    "intermediate_size": "Intermediate size",
    "attention_heads": "Attention heads",
    "key_value_heads": "Key-value heads",
    "head_dim": "Head dimension",
    "vocabulary": "Vocabulary",
    "context_length": "Context length",
    "experts": "Experts",
    "active_experts": "Active experts",
}


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the list of models and a page for each."""
    used = {row["model"] for row in catalogue.results}
    shown = [row for row in catalogue.models if row["model"] in used]
    others = [row for row in catalogue.models if row["model"] not in used]
    without = _list(catalogue, others, "Models without a result") if others else None
    yield Page("models/index", "Models", "models.md.j2", {"table": _list(catalogue, shown, "Models"), "without": without})
    for row in catalogue.models:
        results = catalogue.results_where(model=row["model"])
        table = results_table(catalogue, results, "Results with this model", without=frozenset({"model"})) if results else None
        context = {"model": row, "facts": _facts(row), "results": table, "source": wording.short_commits(row["source"])}
        yield Page(model_path(row["model"]), row["name"], "model.md.j2", context, CRUMBS)


def _list(catalogue: Catalogue, rows: list[Row], name: str) -> Table:
    shown = ("parameters", "layers", "hidden_size", "vocabulary", "context_length")
    columns = [Column("Model"), Column("Family"), *(Column(SHAPE[key], numeric=True) for key in shown), Column("Results", numeric=True)]
    lines = (
        Line(
            (
                tables.text(row["name"], href=model_path(row["model"])),
                tables.text(row["family"]),
                *(Cell(wording.plain(row[key]), sort=row[key]) for key in shown),
                _count(len(catalogue.results_where(model=row["model"]))),
            )
        )
        for row in rows
    )
    return tables.table(name, columns, lines, interactive=True, searchable=False)


def _count(number: int) -> Cell:
    return Cell(str(number), sort=number)


def _facts(row: Row) -> list[Fact]:
    shape = [Fact(label, wording.plain(row[name])) for name, label in SHAPE.items()]
    return [
        Fact("Also called", wording.plain(", ".join(row["aliases"]))),
        Fact("Family", row["family"]),
        *shape,
        Fact("Sliding window", _window(row)),
        Fact("On the hub", wording.plain(row["hub_id"])),
        Fact("Gated", wording.plain(row["gated"])),
    ]


def _window(row: Row) -> str:
    every = row["sliding_window_every"]
    span = wording.plain(row["sliding_window"])
    return span if every is None else f"{span}, every {every}. layer"
