"""The views `costs`, `first_offers` and `basis_costs`: which offers a result is priced on, and what it costs there."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from factories import FACTS

from tunemark.collector.store.database import arrow_schemas, as_arrow, build_database
from tunemark.collector.store.fact_rows import price_id, price_rows
from tunemark.collector.store.sql_query import run_query

ACCELERATOR, FABRIC = "nvidia-h100-80gb-sxm", "EFA, 3,200 Gb/s"


def price(instance: str, usd_per_hour: float, count: int = 8, **changed: Any) -> dict[str, Any]:
    row = {
        "provider": "aws",
        "instance": instance,
        "accelerator": ACCELERATOR,
        "accelerator_count": count,
        "kind": "on_demand",
        "provider_rank": 2,
    }
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


def test_a_price_that_is_older_than_thirty_days_shows_its_age(tmp_path: Path) -> None:
    offers = [price("new", 1.0, effective_on=date(2026, 10, 23)), price("old", 2.0, effective_on=date(2026, 10, 22))]
    rows = costs(tmp_path, [], offers, "(select *, null as result_id from current_prices)")
    assert [row["dated"] for row in rows] == ["2026-10-23", "2026-10-22, 31 days old"]


def test_a_result_on_two_machines_costs_two_instances(tmp_path: Path) -> None:
    (cost,) = costs(tmp_path, [result(accelerator_count=16, nodes=2)], [price("p5.48xlarge", 60.0, fabric=FABRIC)])
    assert (cost["instances"], cost["usd_per_hour"]) == (2, 120.0)
    assert cost["usd_per_training"] == pytest.approx(120 / 2)
    assert cost["usd_per_run"] is None, "the time of the whole run is unknown"
    assert cost["usd_per_1k_samples"] == pytest.approx(120 / 3_600 / 2.0 * 1_000)
    assert cost["usd_per_1m_tokens"] == pytest.approx(120 / 3_600 / 4_000.0 * 1e6)


def test_a_result_on_several_machines_has_a_price_only_on_instances_with_a_fabric(tmp_path: Path) -> None:
    offers = [price("p5.48xlarge", 60.0, fabric=FABRIC), price("8x-H100", 16.0, provider="vast"), price("gpu_8x", 24.0, provider="lambda")]
    two_nodes, one_node = result(accelerator_count=16, nodes=2), result(result_id="900-002")
    found = [(cost["result_id"], cost["instance"]) for cost in costs(tmp_path, [two_nodes, one_node], offers)]
    assert found == [("900-001", "p5.48xlarge"), ("900-002", "8x-H100"), ("900-002", "gpu_8x"), ("900-002", "p5.48xlarge")]


def test_training_and_the_whole_run_are_separate_costs(tmp_path: Path) -> None:
    (cost,) = costs(tmp_path, [result(wall_s=3_600.0)], [price("p5.48xlarge", 60.0)])
    assert (cost["usd_per_training"], cost["usd_per_run"]) == (pytest.approx(30.0), pytest.approx(60.0))


def test_a_cost_inherits_the_interval_of_its_rate(tmp_path: Path) -> None:
    rates = {"samples_per_s_low": 1.6, "samples_per_s_high": 2.5, "tokens_per_s_low": 3_200.0, "tokens_per_s_high": 5_000.0}
    with_interval, without = costs(tmp_path, [result(**rates), result(result_id="900-002")], [price("p5.48xlarge", 72.0)])
    assert with_interval["usd_per_1k_samples_low"] == pytest.approx(72 / 3_600 / 2.5 * 1_000)
    assert with_interval["usd_per_1k_samples_high"] == pytest.approx(72 / 3_600 / 1.6 * 1_000)
    assert with_interval["usd_per_1m_tokens_low"] == pytest.approx(72 / 3_600 / 5_000 * 1e6)
    assert with_interval["usd_per_1m_tokens_high"] == pytest.approx(72 / 3_600 / 3_200 * 1e6)
    assert [without[f"usd_per_{name}_{end}"] for name in ("1k_samples", "1m_tokens") for end in ("low", "high")] == [None] * 4


def test_the_cheapest_fitting_instance_counts_that_is_not_oversized(tmp_path: Path) -> None:
    offers = [price("p5.48xlarge", 10.0), price("p5.4xlarge", 7.0, count=1), price("two", 12.0, count=2), price("two-cheap", 11.0, count=2)]
    (cost,) = costs(tmp_path, [result(accelerator_count=2)], offers, "basis_costs")
    assert cost["instance"] == "two-cheap"


def test_the_database_and_the_command_line_choose_the_same_offers(tmp_path: Path) -> None:
    today = date(2026, 11, 22)
    jobs = [
        (accelerator, devices, nodes)
        for accelerator in sorted({row.accelerator for row in FACTS.prices})
        for devices, nodes in ((1, 1), (2, 1), (4, 1), (8, 1), (8, 2))
    ]
    results = [
        result(result_id=f"900-{number:03}", accelerator=accelerator, accelerator_count=devices * nodes, nodes=nodes)
        for number, (accelerator, devices, nodes) in enumerate(jobs)
    ]
    by_id = {cost["result_id"]: cost for cost in costs(tmp_path, results, price_rows(FACTS.prices, FACTS.price_basis), "basis_costs")}
    for row, (accelerator, devices, nodes) in zip(results, jobs, strict=True):
        offer = FACTS.price_basis.offer(FACTS.prices, accelerator, devices, nodes=nodes, on=today)
        cost = by_id.get(row["result_id"])
        assert (cost and cost["price"]) == (offer and price_id(offer)), (accelerator, devices, nodes)


def test_a_result_on_a_part_of_a_cpu_is_priced_on_the_smallest_instance_with_its_cores(tmp_path: Path) -> None:
    cpu = {"accelerator": "amd-epyc-7r13", "kind": "on_demand"}
    sizes = [("c6a.2xlarge", 0.306, 4 / 48), ("c6a.4xlarge", 0.612, 8 / 48), ("c6a.48xlarge", 7.344, 4.0)]
    offers = [price(name, usd, count=float(f"{part:.6g}"), **cpu) for name, usd, part in sizes]
    on_eight_cores = result(accelerator="amd-epyc-7r13", accelerator_count=1, accelerator_units=8 / 48)
    assert [cost["instance"] for cost in costs(tmp_path, [on_eight_cores], offers, "basis_costs")] == ["c6a.4xlarge"]
