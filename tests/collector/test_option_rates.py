"""Rates of options: the best evidence counts, doubted results do not, and there is never a rate without any."""

import math
from dataclasses import replace
from typing import Any

import pytest
from test_throughput_model import CHIPS, FACTS, combination, made_up, row_of

from tunemark.collector.audit.rule import Finding
from tunemark.collector.predict.fit import Combination, fit
from tunemark.collector.predict.option_rates import (
    RateEvidence,
    Step,
    best_on,
    consistent,
    option_rows,
    places,
    rows_of_model,
)
from tunemark.collector.store.database import Row
from tunemark.schema.formats import GIB
from tunemark.schema.vocabulary import AuditVerdict, Checkpointing, Method

MODEL = FACTS.models["llama-3.1-8b"]
H100, A100 = CHIPS[:2]
SHORT = combination("phi-3-mini", CHIPS[3])
ROWS = [
    *made_up(),
    *(
        row_of(replace(SHORT, shape=replace(SHORT.shape, method=method, sequence_length=2048, micro_batch=1)), f"short {method}")
        for method in (Method.FULL, Method.LORA)
    ),
]
FITTED = fit(ROWS)
OFFERED = [(FACTS.accelerators[key], devices) for key, devices in places(FACTS)]


def rows_by_key(rows: list[Row]) -> dict[tuple[str, int, str, str, int], Row]:
    return {(row["method"], row["sequence_length"], row["software"], row["accelerator"], row["devices"]): row for row in rows}


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, int, str, str, int], Row]:
    return rows_by_key(rows_of_model(MODEL, OFFERED, RateEvidence.of(FITTED), {f"llama-3.1-8b/{H100}/lora": "measured"}))


def test_a_rate_is_the_prediction_for_the_plan_that_is_shown_and_cites_the_results_of_its_step(rows) -> None:  # type: ignore[no-untyped-def]
    row = rows["lora", 8192, "plain", H100, 1]
    assert (row["evidence"], row["trust"]) == ("direct", "measured")
    assert (row["result_ids"], row["results"]) == ([f"llama-3.1-8b/{H100}/lora"], 1)
    plans = [best_on(Step(MODEL, method, 8192, 1, tuned=False), 80 * GIB)[0].shape for method in (Method.LORA, Method.FULL)]
    assert (row["micro_batch"], row["checkpointing"]) == (plans[0].micro_batch, plans[0].checkpointing.value)
    lora, full = (FITTED.predict(Combination(FACTS.accelerators[H100], 1, shape, "plain")) for shape in plans)
    assert row["merged"] == "full", "of these results, LoRA was the slower one"
    assert row["tokens_per_s"] == pytest.approx(math.exp(-(lora.log_seconds + full.log_seconds) / 2), rel=1e-5)
    assert row["tokens_per_s_low"] < row["tokens_per_s"] < row["tokens_per_s_high"]


def test_another_length_is_near_and_another_accelerator_is_predicted(rows) -> None:  # type: ignore[no-untyped-def]
    near, predicted = rows["lora", 4096, "plain", H100, 1], rows["lora", 8192, "plain", "nvidia-l40s", 1]
    assert (near["evidence"], near["result_ids"]) == ("near", [f"llama-3.1-8b/{H100}/lora"])
    assert (predicted["evidence"], predicted["result_ids"], predicted["trust"]) == ("predicted", [], None)
    assert predicted["tokens_per_s"] < near["tokens_per_s"]


def test_without_evidence_there_is_a_reason_and_no_rate(rows) -> None:  # type: ignore[no-untyped-def]
    for row in rows.values():
        assert (row["evidence"] == "none") == (row["tokens_per_s"] is None) == (row["reason"] is not None)
    assert rows["lora", 8192, "plain", "aws-trainium1", 16]["reason"] == "no accepted result with plain software on AWS devices"
    assert rows["qlora", 8192, "plain", H100, 1]["reason"] == "no accepted result of QLoRA"
    assert rows["full", 8192, "plain", "nvidia-t4", 1]["reason"].startswith("does not fit: ")
    assert rows["full", 8192, "plain", "nvidia-t4", 1]["memory"] == "no"


def test_a_result_that_the_audit_doubts_is_no_evidence_of_its_own() -> None:
    name = f"llama-3.1-8b/{H100}/lora"
    doubt = Finding(AuditVerdict.SUSPICIOUS, (name,), "claim", "calculation", ("tokens_per_s",), ())
    other = Finding(AuditVerdict.SUSPICIOUS, (f"llama-3.1-8b/{A100}/lora",), "claim", "calculation", ("peak_memory_bytes",), ())
    rows = rows_by_key([row for rows in option_rows(FACTS, FITTED, {}, [doubt, other]) for row in rows if row["model"] == MODEL.key])
    same, shorter, trusted = (rows["lora", length, "plain", chip, 1] for length, chip in ((8192, H100), (4096, H100), (8192, A100)))
    assert (same["evidence"], trusted["evidence"], trusted["disputed"]) == ("predicted", "direct", [])
    (observed,) = [each for each in FITTED.rows if each.id == name]
    rate = pytest.approx(observed.tokens_per_s, rel=1e-5)
    assert same["disputed"] == shorter["disputed"] == [{"result_id": name, "tokens_per_s": rate, "sequence_length": 8192}]


def test_a_prediction_for_lora_is_never_below_that_for_a_method_that_does_more_work() -> None:
    same = {
        "sequence_length": 512,
        "software": "plain",
        "accelerator": "a",
        "devices": 1,
        "checkpointing": "none",
        "sharding": "ddp",
        "evidence": "predicted",
    }

    def row(method: str, rate: float, **other: str) -> dict[str, Any]:
        return same | {"method": method, "tokens_per_s": rate, "tokens_per_s_low": rate / 2, "tokens_per_s_high": rate * 2} | other

    for method in ("full", "qlora"):
        other, lora = consistent([row(method, 400.0), row("lora", 100.0)])
        assert other["tokens_per_s"] == lora["tokens_per_s"] == 200.0
        assert [(each["tokens_per_s_low"], each["tokens_per_s_high"]) for each in (other, lora)] == [(50.0, 800.0)] * 2
    every = consistent([row("full", 900.0), row("lora", 100.0), row("qlora", 400.0)])
    assert [each["tokens_per_s"] for each in every] == [300.0, pytest.approx(346.41, rel=1e-4), pytest.approx(346.41, rel=1e-4)]
    for kept in (
        [row("full", 100.0), row("lora", 400.0)],
        [row("qlora", 400.0), row("lora", 100.0, checkpointing="full")],
        [row("full", 400.0), row("qlora", 100.0)],
        [row("qlora", 400.0, sharding="fsdp2"), row("lora", 100.0, sharding="fsdp2")],
    ):
        assert consistent(kept) == kept


def test_the_first_configuration_that_fits_is_the_fastest_one() -> None:
    step = Step(MODEL, Method.LORA, 2048, 1, tuned=False)
    large, small = (best_on(step, int(size * GIB)) for size in (80, 24))
    assert large[0].shape.checkpointing is Checkpointing.NONE
    assert large[1] == "fits"
    assert (small[0].shape.checkpointing, small[0].shape.micro_batch) == (Checkpointing.FULL, 1)
    sharded, verdict = best_on(Step(FACTS.models["llama-3.1-70b"], Method.FULL, 2048, 8, tuned=False), 80 * GIB)
    assert (sharded.shape.sharding, verdict) == ("fsdp2", "tight")
    assert best_on(Step(FACTS.models["llama-3.1-70b"], Method.FULL, 2048, 8, tuned=False), 40 * GIB)[1] == "no"
