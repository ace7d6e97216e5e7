"""Views of the database, over a few rows written by hand."""

from typing import Any

import pytest

from tunemark.collector.store.database import arrow_schemas, as_arrow, empty_database

Row = dict[str, Any]
H100 = "nvidia-h100-80gb-sxm"
DIGEST = "ab" * 32


@pytest.fixture(scope="module")
def schemas() -> dict[str, Any]:
    return arrow_schemas()


@pytest.fixture(scope="module")
def database() -> Any:
    with empty_database() as connection:
        yield connection


@pytest.fixture
def view(database: Any, schemas: dict[str, Any]) -> Any:
    """Return a function that gives the rows of a query over tables with these rows only."""

    def rows_of(query: str, **tables: list[Row]) -> list[Row]:
        database.begin()
        try:
            for name, rows in tables.items():
                database.register("incoming", as_arrow(rows, schemas[name]))
                columns = ", ".join({column: None for row in rows for column in row})
                database.execute(f"insert into {name} ({columns}) select {columns} from incoming")  # noqa: S608 - our own tables
            return database.sql(query).to_arrow_table().to_pylist()
        finally:
            database.rollback()

    return rows_of


def result(result_id: str = "900-001", **changed: Any) -> Row:
    usual = {"source": "900", "trust": "published", "method": "lora", "status": "ok", "rankable": True}
    return {"result_id": result_id, **usual, "file": f"data/published/900/{result_id}.json", "sha256": DIGEST, **changed}


def finding(number: int, verdict: str, *records: str, rule: str = "peak") -> Row:
    return {
        "finding": number, "rule": rule, "verdict": verdict, "record_ids": list(records),
        "claim": "MFU 120%", "calculation": "120% > 100%", "quantities": [], "conditions": [],
    }  # fmt: skip


# Findings and results ------------------------------------------------------------------------------


def test_only_a_rankable_result_that_is_not_called_impossible_is_ranked(view: Any) -> None:
    rows = view(
        "select result_id, rankable, impossible, findings from results order by result_id",
        result_rows=[result("900-001"), result("900-002"), result("900-003"), result("900-004", rankable=False)],
        findings=[
            finding(1, "impossible", "900-001") | {"quantities": ["tokens_per_s"]},
            finding(2, "suspicious", "900-002") | {"quantities": ["tokens_per_s"]},
            finding(3, "ambiguous", "900-002"),
        ],
    )
    assert [tuple(row.values()) for row in rows] == [
        ("900-001", False, True, 1),
        ("900-002", True, False, 2),
        ("900-003", True, False, 0),
        ("900-004", False, False, 0),
    ]


@pytest.mark.parametrize(
    ("quantities", "conditions", "impossible"),
    [
        (["step_time_s"], [], True),
        (["train_time_s", "loss_start"], [], True),
        ([], ["precision"], True),
        ([], ["framework", "accelerator_count"], True),
        ([], ["instance"], False),
        ([], ["framework", "date"], False),
        (["price_usd_per_hour"], ["instance"], False),
        (["peak_memory_bytes"], [], False),
    ],
)
def test_an_impossible_figure_takes_the_rank_only_if_the_ranking_uses_it(view: Any, quantities, conditions, impossible) -> None:
    (row,) = view(
        "select rankable, impossible from results",
        result_rows=[result("900-001")],
        findings=[finding(1, "impossible", "900-001") | {"quantities": quantities, "conditions": conditions}],
    )
    assert (row["rankable"], row["impossible"]) == (not impossible, impossible)


def test_a_result_has_the_names_of_its_cards_and_of_its_document_or_those_it_was_printed_with(view: Any) -> None:
    model = {
        "model": "llama-3.1-8b", "name": "Llama 3.1 8B", "aliases": [], "family": "llama", "hidden_size": 4096, "intermediate_size": 14336, "layers": 32,
        "attention_heads": 32, "key_value_heads": 8, "head_dim": 128, "vocabulary": 128256, "context_length": 131072, "tied_embeddings": False, "source": "a page",
    }  # fmt: skip
    card = {
        "accelerator": H100,
        "name": "H100 SXM",
        "vendor": "NVIDIA",
        "aliases": [],
        "unit": "device",
        "source": "a page",
        "unverified": [],
    }
    rows = view(
        "select model_name, accelerator_name, source_title from results order by result_id",
        result_rows=[
            result("900-001", model="llama-3.1-8b", accelerator=H100, accelerator_printed="NVIDIA H100 80GB HBM3"),
            result("900-002", model="a-model", accelerator_printed="TPU v9", source="measured"),
        ],
        models=[model],
        accelerators=[card],
        sources=[{"source": "900", "title": "A document", "summary": "Made by hand.", "licence": "CC0-1.0", "caveats": []}],
    )
    assert [tuple(row.values()) for row in rows] == [
        ("Llama 3.1 8B", "H100 SXM", "A document"),
        ("a-model", "TPU v9", "Measured with the Tunemark harness"),
    ]
