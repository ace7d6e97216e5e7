"""Views of the database, over a few rows written by hand."""

from datetime import UTC, date, datetime
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
        "claim": "MFU 120%", "calculation": "120% > 100%", "numbers": "{}", "quantities": [], "conditions": [],
    }  # fmt: skip


RULE = {"rule": "peak", "family": "utilisation", "title": "Above the peak", "why": "A peak is a limit.", "verdicts": ["impossible"]}


def offer(price: str, usd_per_hour: float, **changed: Any) -> Row:
    usual = {"provider": "aws", "instance": "p5", "accelerator": H100, "accelerator_count": 8, "region": "east", "kind": "on_demand"}
    dated = {"effective_on": date(2026, 1, 1), "dated_by": "provider", "source": "a source"}
    return {"price": price, "usd_per_hour": usd_per_hour, **usual, **dated, **changed}


def day(text: str) -> list[Row]:
    return [{"as_of": date.fromisoformat(text)}]


# Findings and results ------------------------------------------------------------------------------


def test_a_finding_is_listed_once_for_each_record_even_if_its_rule_is_unknown(view: Any) -> None:
    findings = [finding(1, "impossible", "900-001", "900-002"), finding(2, "suspicious", "900-001", rule="gone")]
    rows = view("select record_id, finding, title from record_findings order by finding, record_id", findings=findings, audit_rules=[RULE])
    assert [tuple(row.values()) for row in rows] == [
        ("900-001", 1, "Above the peak"),
        ("900-002", 1, "Above the peak"),
        ("900-001", 2, None),
    ]


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
        "attention_heads": 32, "key_value_heads": 8, "head_dim": 128, "vocabulary": 128256, "context_length": 131072, "source": "a page",
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
        sources=[{"source": "900", "title": "A document", "summary": "Made by hand.", "caveats": []}],
    )
    assert [tuple(row.values()) for row in rows] == [
        ("Llama 3.1 8B", "H100 SXM", "A document"),
        ("a-model", "TPU v9", "Measured with the Tunemark harness"),
    ]


def test_a_result_failed_unless_it_ended_well_is_claimed_or_is_partial(view: Any) -> None:
    statuses = ("claimed", "crash", "ok", "oom", "partial")
    rows = view("from results order by result_id", result_rows=[result(status, status=status) for status in statuses])
    assert {row["result_id"]: row["failed"] for row in rows} == {
        "claimed": False, "crash": True, "ok": False, "oom": True, "partial": False,
    }  # fmt: skip


def test_a_result_is_ambiguous_if_one_of_its_own_figures_has_several_meanings(view: Any) -> None:
    reading = {"record_id": "900-001", "quantity": "step_time_s", "meaning": "micro-step", "value": 1.0}
    rows = view("from results order by result_id", result_rows=[result("900-001"), result("900-002")], readings=[reading])
    assert [row["ambiguous"] for row in rows] == [True, False]


# Accuracy of predictions and studies ---------------------------------------------------------------


def test_the_accuracy_of_predictions_is_given_for_each_software_and_for_all(view: Any) -> None:
    def held_out(result_id: str, stack: str, error: float | None, covered: bool | None) -> Row:
        usual = {
            "left_out": "model",
            "left_out_group": "a",
            "model": "a",
            "method": "lora",
            "accelerator": H100,
            "accelerator_count": 1,
            "level": "plain",
        }
        return {"result_id": result_id, "stack": stack, "error": error, "covered": covered, **usual, "tokens_per_s": 1.0, "same": []}

    errors = [
        held_out("1", "003", -0.2, True),
        held_out("2", "003", 0.1, False),
        held_out("3", "003", None, None),
        held_out("4", "004", 0.4, True),
    ]
    rows = view("from throughput_accuracy order by stack", throughput_errors=errors)
    first, second, every = (tuple(row.values()) for row in rows)
    assert first == ("model", "003", 2, 1, pytest.approx(0.15), 0.2, 0.5)
    assert second == ("model", "004", 1, 0, 0.4, 0.4, 1.0)
    assert every == ("model", "all", 3, 1, 0.2, 0.4, pytest.approx(2 / 3))


def test_a_study_lists_its_runs_in_order_and_starts_with_the_first(view: Any) -> None:
    def run(result_id: str, position: int, **changed: Any) -> Row:
        at = datetime(2026, 11, 20, 10 + position, tzinfo=UTC)
        study = {"study_id": "s1", "study_kind": "sweep", "study_position": position, "study_point": f"p{position % 2}", "started_at": at}
        return result(result_id, **study, **changed)

    runs = [run("a", 3), run("b", 1), run("c", 2, status="crash"), result("alone")]
    (study,) = view("from studies", result_rows=runs)
    assert (study["study_id"], study["study_kind"], study["runs"], study["failed"], study["points"]) == ("s1", "sweep", 3, 1, 2)
    assert study["result_ids"] == ["b", "c", "a"]
    assert study["started_at"] == datetime(2026, 11, 20, 11, tzinfo=UTC)


# Prices and costs ----------------------------------------------------------------------------------


def test_the_current_price_is_the_newest_in_force_on_the_day_of_collecting(view: Any) -> None:
    prices = [
        offer("old", 10.0, effective_on=date(2026, 1, 1)),
        offer("of the day", 20.0, effective_on=date(2026, 6, 1)),
        offer("later", 30.0, effective_on=date(2026, 6, 2)),
        offer("spot", 5.0, kind="spot"),
        offer("elsewhere", 12.0, region="west"),
    ]
    rows = view("from current_prices order by price", prices=prices, collection=day("2026-06-01"))
    assert [row["price"] for row in rows] == ["elsewhere", "of the day", "spot"]


def test_the_last_day_of_collecting_counts(view: Any) -> None:
    rows = view("from current_prices", prices=[offer("p", 1.0)], collection=day("2025-01-01") + day("2026-01-01"))
    assert [row["price"] for row in rows] == ["p"]


def cost(view: Any, *prices: Row, query: str = "from costs order by usd_per_hour", **changed: Any) -> list[Row]:
    """Return the costs of a result on these offers."""
    shape = {"accelerator": H100, "accelerator_count": 8, "samples_per_s": 2.0, "tokens_per_s": 4_000.0, "epoch_time_s": 900.0}
    return view(
        query, prices=list(prices), result_rows=[result(**{**shape, "train_time_s": 1_800.0, **changed})], collection=day("2026-06-01")
    )


def test_costs_are_the_hourly_price_times_the_hours_of_the_work(view: Any) -> None:
    (row,) = cost(view, offer("p", 60.0))
    figures = ("usd_per_hour", "usd_per_1k_samples", "usd_per_1m_samples", "usd_per_1m_tokens", "usd_per_epoch", "usd_per_training")
    assert [row[name] for name in figures] == pytest.approx([60.0, 60 / 7.2, 60 / 7.2 * 1_000, 60 / 14.4, 15.0, 30.0])


def test_a_whole_run_costs_its_wall_time_and_is_unknown_without_one(view: Any) -> None:
    (row,) = cost(view, offer("p", 60.0), wall_s=3_600.0)
    assert row["usd_per_run"] == pytest.approx(60.0)
    (row,) = cost(view, offer("p", 60.0))
    assert row["usd_per_run"] is None


def test_two_machines_cost_two_instances_that_hold_their_share(view: Any) -> None:
    offers = offer("whole", 60.0, fabric="EFA"), offer("half", 30.0, instance="p4", accelerator_count=4, fabric="EFA")
    (row,) = cost(view, *offers, accelerator_count=16, nodes=2)
    assert (row["price"], row["instances"], row["usd_per_hour"]) == ("whole", 2, 120.0)


def test_a_result_is_priced_on_its_own_accelerator_only(view: Any) -> None:
    assert cost(view, offer("p", 60.0, accelerator="nvidia-t4")) == []


def test_the_basis_is_the_cheapest_on_demand_list_price_whatever_instance_a_result_names(view: Any) -> None:
    offers = (
        offer("first", 60.0, provider_rank=1),
        offer("large", 30.0, instance="p6", accelerator_count=24, provider_rank=1),
        offer("cheap", 40.0, instance="p4", provider="gcp", provider_rank=2),
        offer("other", 1.0, instance="p9", provider="vast", provider_rank=None),
        offer("spot", 5.0, kind="spot", provider_rank=1),
    )
    (row,) = cost(view, *offers, query="from basis_costs", instance="p5")
    assert (row["price"], row["same_instance"]) == ("cheap", False)


def test_an_instance_with_more_than_twice_the_accelerators_is_the_last_choice(view: Any) -> None:
    eight, two = offer("eight", 60.0, provider_rank=1), offer("two", 20.0, provider="gcp", accelerator_count=2, provider_rank=2)
    assert [row["price"] for row in cost(view, eight, two, accelerator_count=1, query="from basis_costs")] == ["two"]
    assert [row["price"] for row in cost(view, eight, two, accelerator_count=4, query="from basis_costs")] == ["eight"]
    assert [row["price"] for row in cost(view, eight, accelerator_count=1, query="from basis_costs")] == ["eight"]
