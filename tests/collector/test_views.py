"""Views of the database, over a few rows written by hand: ranks, names, and the offers that a result is priced on."""

import tomllib
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from factories import FACTS

from tunemark.collector.store.database import arrow_schemas, as_arrow, empty_database, price_id, price_rows

H100, TODAY = "nvidia-h100-80gb-sxm", date(2026, 11, 22)
Row = dict[str, Any]
View = Callable[..., list[Row]]
USUAL: dict[str, Row] = {
    "result_rows": {
        "result_id": "900-001", "source": "900", "trust": "published", "method": "lora", "status": "ok", "rankable": True, "accelerator": H100, "accelerator_count": 8,
        "samples_per_s": 2.0, "tokens_per_s": 4_000.0, "train_time_s": 1_800.0, "file": "data/published/900/900-001.json", "sha256": "ab" * 32,
    },
    "prices": {
        "price": "one", "provider": "aws", "provider_rank": 2, "instance": "p5.48xlarge", "accelerator": H100, "accelerator_count": 8, "kind": "on_demand",
        "effective_on": date(2026, 1, 1), "dated_by": "provider", "source": "a source",
    },
    "findings": {
        "finding": 1, "rule": "peak", "verdict": "impossible", "record_ids": ["900-001"], "claim": "MFU 120%", "calculation": "120% > 100%", "quantities": [], "conditions": [],
    },
}  # fmt: skip
CASES = {name: case for name, (case,) in tomllib.loads(Path(__file__).with_name("views.toml").read_text(encoding="utf-8")).items()}


@pytest.fixture(scope="module")
def database() -> Iterator[Any]:
    with empty_database() as connection:
        yield connection


@pytest.fixture
def view(database: Any) -> View:
    """Return a function that gives the rows of a query over tables with these rows only, which have usual values beside."""

    def rows_of(query: str, **tables: list[Row]) -> list[Row]:
        database.begin()
        try:
            for name, given in (tables | {"collection": [{"as_of": TODAY}]}).items():
                rows = [
                    USUAL.get(name, {}) | {column: None if value == "null" else value for column, value in row.items()} for row in given
                ]
                database.register("incoming", as_arrow(rows, arrow_schemas()[name]))
                columns = ", ".join({column: None for row in rows for column in row})
                database.execute(f"delete from {name}; insert into {name} ({columns}) select {columns} from incoming")  # noqa: S608 - our own tables
            rows: list[Row] = database.sql(query).to_arrow_table().to_pylist()
            return rows
        finally:
            database.rollback()

    return rows_of


@pytest.mark.parametrize("name", CASES)
def test_a_view_shows_of_its_tables(view: View, name: str) -> None:
    tables = dict(CASES[name])
    query, rows = tables.pop("query"), tables.pop("rows")
    found = [["null" if value is None else value for value in row.values()] for row in view(query, **tables)]
    assert found == [[pytest.approx(value, rel=1e-5) if isinstance(value, float) else value for value in row] for row in rows]


def test_the_database_and_the_command_line_choose_the_same_offers(view: View) -> None:
    jobs = [
        (accelerator, devices, nodes)
        for accelerator in sorted({row.accelerator for row in FACTS.prices})
        for devices, nodes in ((1, 1), (2, 1), (4, 1), (8, 1), (8, 2))
    ]
    results = [
        {"result_id": f"900-{number:03}", "accelerator": accelerator, "accelerator_count": devices * nodes, "nodes": nodes}
        for number, (accelerator, devices, nodes) in enumerate(jobs)
    ]
    costs = view("from basis_costs", result_rows=results, prices=price_rows(FACTS.prices, FACTS.price_basis))
    by_id = {cost["result_id"]: cost["price"] for cost in costs}
    for row, (accelerator, devices, nodes) in zip(results, jobs, strict=True):
        offer = FACTS.price_basis.offer(FACTS.prices, accelerator, devices, nodes=nodes, on=TODAY)
        assert by_id.get(row["result_id"]) == (offer and price_id(offer)), (accelerator, devices, nodes)
