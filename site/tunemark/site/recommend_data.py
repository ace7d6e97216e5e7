"""The data from which the home page recommends: offers and models once, and the rates of each model in a file of its own."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from tunemark.schema.recommendation import Offer, Rate, offers_of
from tunemark.site.queries import Catalogue
from tunemark.site.render import compact_json
from tunemark.site.tables import Row

FOLDER = "data/recommend"
INDEX = f"{FOLDER}/index.json"
RATES = "select * exclude (model) from option_rates where model = ? order by all"
MODELS = "select model, max(sequence_length) as longest, bool_or(tokens_per_s is not null) as known from option_rates group by 1 order by 1"
LISTS = frozenset({"result_ids", "disputed"})
"""Columns whose values are lists."""
CODED = LISTS | {
    "method",
    "software",
    "accelerator",
    "evidence",
    "memory",
    "checkpointing",
    "sharding",
    "trust",
    "reason",
    "merged",
    "weight_format",
}
CODED |= {"needed_bytes", "memory_bytes"}
"""Columns that are written as codes into a list of values: texts, lists, and long numbers that repeat."""


def data_files(catalogue: Catalogue) -> Iterator[tuple[str, str]]:
    """Yield path and text of each data file of the home page."""
    keys = [row["key"] for row in models(catalogue)]
    listed = [asdict(offer) for offer in offers(catalogue)]
    yield (
        INDEX,
        compact_json(
            {
                "accelerators": rentable(catalogue),
                "memory_gib": known(catalogue, "memory_gib"),
                "watts": known(catalogue, "tdp_w"),
                "offers": listed,
                "models": keys,
                "workloads": workloads(catalogue),
            }
        ),
    )
    for key in keys:
        yield f"{FOLDER}/{key}.json", compact_json(columnar(catalogue.database.rows(RATES, key)))


def models(catalogue: Catalogue) -> list[Row]:
    """Return the models with rates: key, name, and the longest rows; by name."""
    names = {row["model"]: row["name"] for row in catalogue.models}
    rows = catalogue.database.rows(MODELS)
    found = [{"key": row["model"], "name": names[row["model"]], "longest": row["longest"]} for row in rows if row["known"]]
    return sorted(found, key=lambda row: row["name"])


def workloads(catalogue: Catalogue) -> dict[str, list[tuple[str, str, int]]]:
    """Return the workload cards of each model: name, method and tokens per row."""
    cards: dict[str, list[tuple[str, str, int]]] = {}
    for row in sorted(catalogue.workloads, key=lambda row: row["workload"]):
        if row["sequence_length"]:
            cards.setdefault(row["model"], []).append((row["workload"], row["method"], row["sequence_length"]))
    return cards


def rentable(catalogue: Catalogue) -> dict[str, str]:
    """Return the names of accelerators by key, CPUs left out."""
    return {row["accelerator"]: row["name"] for row in catalogue.accelerators if row["unit"] != "cpu"}


def known(catalogue: Catalogue, column: str) -> dict[str, float]:
    """Return a fact of accelerators by key where it is known, CPUs left out."""
    return {row["accelerator"]: row[column] for row in catalogue.accelerators if row["unit"] != "cpu" and row[column]}


def offers(catalogue: Catalogue) -> list[Offer]:
    """Return all offers in force."""
    return offers_of((row for row in catalogue.prices if row["newest"]), rentable(catalogue), known(catalogue, "tdp_w"))


def rates(catalogue: Catalogue, model: str) -> list[Rate]:
    """Return the rates of a model."""
    return [Rate.of_row(row) for row in catalogue.database.rows(RATES, model)]


def _compact(value: Sequence[object]) -> tuple[object, ...]:
    """Return a list as a tuple; rows in it lose their names."""
    return () if not value else tuple(tuple(each.values()) if isinstance(each, dict) else each for each in value)


def columnar(rows: Sequence[Row]) -> dict[str, object]:
    """Return rows as columns: lists of numbers, and codes into lists of values for text."""
    columns: dict[str, object] = {}
    for name in rows[0] if rows else ():
        values = [row[name] for row in rows]
        if name in LISTS:
            values = [_compact(value) for value in values]
        if name in CODED:
            known = list(dict.fromkeys(values))
            code = {value: number for number, value in enumerate(known)}
            columns[name] = {"values": known, "codes": [code[value] for value in values]}
        else:
            columns[name] = values
    return {"length": len(rows), "columns": columns}
