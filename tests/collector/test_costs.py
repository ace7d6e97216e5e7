"""The views `costs` and `cheapest_costs`: which offers a result is priced on, and what it costs there."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tunemark.collector.store.database import arrow_schemas, as_arrow, build_database
from tunemark.collector.store.sql_query import run_query

ACCELERATOR = "nvidia-h100-80gb-sxm"


def price(instance: str, usd_per_hour: float, count: int = 8, **changed: Any) -> dict[str, Any]:
    row = {"provider": "aws", "instance": instance, "accelerator": ACCELERATOR, "accelerator_count": count, "kind": "on_demand"}
    dated = {"effective_on": date(2026, 1, 1), "dated_by": "provider", "source": "a source"}
    return {"price": instance, "usd_per_hour": usd_per_hour, **row, **dated, **changed}


def result(**changed: Any) -> dict[str, Any]:
    row = {"result_id": "900-001", "source": "900", "trust": "published", "method": "lora", "status": "ok", "rankable": False}
    measured = {"accelerator": ACCELERATOR, "accelerator_count": 8, "samples_per_s": 2.0, "tokens_per_s": 4_000.0, "train_time_s": 1_800.0}
    return {**row, **measured, "file": "data/published/900/900-001.json", "sha256": "ab" * 32, **changed}


def costs(folder: Path, results: list[dict[str, Any]], prices: list[dict[str, Any]], view: str = "costs") -> list[dict[str, Any]]:
    """Return the rows of a view over a database of these results and prices."""
    rows = {"collection": [{"as_of": date(2026, 11, 22)}], "result_rows": results, "prices": prices}
    path = folder / "tunemark.duckdb"
    build_database(path, {name: as_arrow(rows.get(name, []), schema) for name, schema in arrow_schemas().items()})
    return run_query(f"from {view} order by result_id, usd_per_hour, instance", path).records()


def test_a_result_on_two_machines_costs_two_instances(tmp_path: Path) -> None:
    (cost,) = costs(tmp_path, [result(accelerator_count=16, nodes=2)], [price("p5.48xlarge", 60.0)])
    assert (cost["instances"], cost["usd_per_hour"]) == (2, 120.0)
    assert cost["usd_per_run"] == pytest.approx(120 / 2)
    assert cost["usd_per_1k_samples"] == pytest.approx(120 / 3_600 / 2.0 * 1_000)
    assert cost["usd_per_1m_tokens"] == pytest.approx(120 / 3_600 / 4_000.0 * 1e6)


def test_a_result_is_priced_only_on_instances_with_enough_accelerators_for_its_share(tmp_path: Path) -> None:
    offers = [price("p5.48xlarge", 60.0), price("p5.4xlarge", 7.0, count=1)]
    assert [cost["instance"] for cost in costs(tmp_path, [result()], offers)] == ["p5.48xlarge"]


def test_the_instance_a_result_names_comes_before_a_cheaper_one(tmp_path: Path) -> None:
    offers = [price("p5.48xlarge", 60.0), price("cheap.8x", 16.0, provider="lambda")]
    named, unnamed = result(instance="p5.48xlarge"), result(result_id="900-002")
    first, second = costs(tmp_path, [named, unnamed], offers, "cheapest_costs")
    assert (first["instance"], first["same_instance"], first["usd_per_hour"]) == ("p5.48xlarge", True, 60.0)
    assert (second["instance"], second["same_instance"], second["usd_per_hour"]) == ("cheap.8x", False, 16.0)


def test_the_cheapest_cost_is_on_demand(tmp_path: Path) -> None:
    offers = [price("p5.48xlarge", 60.0), price("spot", 5.0, kind="spot")]
    (cost,) = costs(tmp_path, [result()], offers, "cheapest_costs")
    assert cost["instance"] == "p5.48xlarge"
