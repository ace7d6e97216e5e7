"""The data from which the home page recommends: offers and models once, and the rates of each model in a file of its own."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from tunemark.schema.recommendation import Offer, Rate, offers_of
from tunemark.site.database import Database
from tunemark.site.render import compact_json
from tunemark.site.tables import Row

FOLDER = "data/recommend"
INDEX = f"{FOLDER}/index.json"
RATES = "select * exclude (model) from option_rates where model = ? order by all"
MODELS = """
    select model as key, name, max(sequence_length) as longest from option_rates join models using (model)
    group by all having bool_or(tokens_per_s is not null) order by name, key
"""
CARDS = "from accelerators where unit <> 'cpu' order by vendor, name, accelerator"
OFFERS = (
    "from listed_prices where newest order by accelerator, provider, accelerator_count, instance, kind, region, effective_on desc, price"
)
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


def data_files(database: Database) -> Iterator[tuple[str, str]]:
    """Yield path and text of each data file of the home page."""
    keys = [row["key"] for row in models(database)]
    listed = [asdict(offer) for offer in offers(database)]
    yield (
        INDEX,
        compact_json(
            {
                "accelerators": rentable(database),
                "memory_gib": known(database, "memory_gib"),
                "watts": known(database, "tdp_w"),
                "offers": listed,
                "models": keys,
                "workloads": workloads(database),
            }
        ),
    )
    for key in keys:
        yield f"{FOLDER}/{key}.json", compact_json(columnar(database.rows(RATES, key)))


def models(database: Database) -> list[Row]:
    """Return the models with rates: key, name, and the longest rows; by name."""
    return database.rows(MODELS)


def workloads(database: Database) -> dict[str, list[tuple[str, str, int]]]:
    """Return the workload cards of each model: name, method and tokens per row."""
    cards: dict[str, list[tuple[str, str, int]]] = {}
    for row in database.rows("from workloads where sequence_length > 0 order by workload"):
        cards.setdefault(row["model"], []).append((row["workload"], row["method"], row["sequence_length"]))
    return cards


def rentable(database: Database) -> dict[str, str]:
    """Return the names of accelerators by key, CPUs left out."""
    return {row["accelerator"]: row["name"] for row in database.rows(CARDS)}


def known(database: Database, column: str) -> dict[str, float]:
    """Return a fact of accelerators by key where it is known, CPUs left out."""
    return {row["accelerator"]: row[column] for row in database.rows(CARDS) if row[column]}


def offers(database: Database) -> list[Offer]:
    """Return all offers in force."""
    return offers_of(database.rows(OFFERS), rentable(database), known(database, "tdp_w"))


def rates(database: Database, model: str) -> list[Rate]:
    """Return the rates of a model."""
    return [Rate.of_row(row) for row in database.rows(RATES, model)]


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
