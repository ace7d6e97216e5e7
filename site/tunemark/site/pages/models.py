"""Models: their architecture and the results of fine-tuning them."""

from collections.abc import Iterator
from urllib.parse import urlencode

from tunemark.site import recommend_data, tables, wording
from tunemark.site.cost_over_time import token_frontiers
from tunemark.site.page import Fact, Page, model_path
from tunemark.site.pages.workloads import workloads_of_model
from tunemark.site.queries import Catalogue
from tunemark.site.results_table import MOST_BESIDE, best_rates, results_table
from tunemark.site.tables import Column, Row, Table, text_column

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
LISTED = ("parameters", "layers", "hidden_size", "vocabulary", "context_length")


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the list of models and a page for each."""
    used = {row["model"] for row in catalogue.results}
    asked = {row["key"] for row in recommend_data.models(catalogue)}
    with_results = [row for row in catalogue.models if row["model"] in used]
    others = [row for row in catalogue.models if row["model"] not in used]
    lists = {
        "table": _list(catalogue, with_results, "Models"),
        "without": _list(catalogue, others, "Models without a result") if others else None,
    }
    yield Page("models/index", "Models", "models.md.j2", lists)
    for row in catalogue.models:
        results = catalogue.results_where(model=row["model"])
        context = _context(catalogue, row, results, asked=row["model"] in asked)
        yield Page(model_path(row["model"]), row["name"], "model.md.j2", context, CRUMBS)


def _context(catalogue: Catalogue, row: Row, results: list[Row], *, asked: bool) -> dict[str, object]:
    """Return the context of a model's page. The home page can be `asked` about some models."""
    table = (
        results_table(
            catalogue,
            results,
            "Results with this model",
            without=frozenset({"model"}),
            explorer=urlencode({"model": row["name"]}),
            most=MOST_BESIDE,
        )
        if results
        else None
    )
    return {
        "model": row,
        "facts": _facts(row),
        "best": best_rates(catalogue, results, "Best rates by accelerator and method", "accelerator"),
        "frontiers": token_frontiers(catalogue, row["model"]),
        "results": table,
        "asked": asked,
        "workloads": workloads_of_model(catalogue, row["model"]),
        "source": wording.short_commits(row["source"]),
    }


def _list(catalogue: Catalogue, rows: list[Row], name: str) -> Table:
    columns: list[Column[Row]] = [
        Column("Model", lambda row: tables.text(row["name"], href=model_path(row["model"]))),
        text_column("Family", "family"),
        *(_shape_column(key) for key in LISTED),
        Column("Results", lambda row: tables.number(len(catalogue.results_where(model=row["model"]))), numeric=True),
    ]
    return tables.table(name, columns, rows, interactive=True, searchable=False)


def _shape_column(key: str) -> Column[Row]:
    return Column(SHAPE[key], lambda row: tables.number(row[key], wording.plain), numeric=True)


def _facts(row: Row) -> list[Fact]:
    return [
        Fact("Also called", wording.plain(", ".join(row["aliases"]))),
        Fact("Family", row["family"]),
        *(Fact(label, wording.plain(row[name])) for name, label in SHAPE.items()),
        Fact("Sliding window", _window(row)),
        Fact("On the hub", wording.plain(row["hub_id"])),
        Fact("Gated", wording.plain(row["gated"])),
    ]


def _window(row: Row) -> str:
    window, every = wording.plain(row["sliding_window"]), row["sliding_window_every"]
    return window if every is None else f"{window}, in one of every {every} layers"
