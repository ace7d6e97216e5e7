"""Single results as calibration rows, or with the reason why they are not used."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from audit_factories import claim, evidence
from audit_factories import result as published
from factories import FACTS, bare_submission

from tunemark.collector.audit.load import audited_record
from tunemark.collector.audit.rule import Finding
from tunemark.collector.predict.calibration_rows import Calibration, calibrate, calibration_outcome
from tunemark.collector.predict.fit import Observed
from tunemark.schema.derive import derive
from tunemark.schema.physics.utilisation import work_in
from tunemark.schema.physics.work import Missing
from tunemark.schema.records.converted import ConvertedResult, ConvertedRun, ConvertedSystem
from tunemark.schema.records.published import Conditions, PublishedResult
from tunemark.schema.vocabulary import AuditVerdict, Dtype

H100 = "nvidia-h100-80gb-sxm"


def calibrated(*records: PublishedResult | ConvertedResult, findings: Iterable[Finding] = ()) -> Calibration:
    """Return the calibration rows of these records and findings, without a checkout."""
    results = tuple(audited_record(record, FACTS) for record in records)
    return calibrate(replace(evidence(), results=results), tuple(findings))


def row_of(record: PublishedResult | ConvertedResult, findings: Iterable[Finding] = ()) -> Observed:
    calibration = calibrated(record, findings=findings)
    assert calibration.refused == {}
    (row,) = calibration.rows
    return row


def tokens_per_s(row: Observed) -> float:
    return row.config.devices / row.device_seconds_per_token


def finding(*records: str, verdict: AuditVerdict = AuditVerdict.INCONSISTENT, **fields: Any) -> Finding:
    return Finding(verdict, records, "a claim", "1 = 2", rule="a-rule", **fields)


# Published results ---------------------------------------------------------------------------------


def test_a_claimed_rate_is_a_row_of_its_document() -> None:
    row = row_of(published(claims={"tokens_per_s": 4_000.0}))
    assert (row.id, row.config.stack, row.config.devices, tokens_per_s(row)) == ("900-001", "900", 1, 4_000.0)


@pytest.mark.parametrize(
    "more", [{"accelerator": None}, {"model": None}, {"sequence_length": None}, {"settings": {"pipeline_parallel": 2}}]
)
def test_a_rate_without_its_conditions_or_on_a_pipeline_is_refused(more: dict[str, Any]) -> None:
    calibration = calibrated(published(claims={"tokens_per_s": 4_000.0}, **more))
    reason = "adapters or split are not covered" if "settings" in more else "accelerator, model or row length is not stated"
    assert (calibration.rows, calibration.refused) == ((), {"900-001": reason})


def test_a_finding_refutes_its_subject_and_no_other_record() -> None:
    records = [published(number, claims={"tokens_per_s": 4_000.0 + number}) for number in (1, 2, 3)]
    findings = [finding("900-001", "900-002", quantities=("tokens_per_s",)), finding("900-003", quantities=("train_loss",))]
    calibration = calibrated(*records, findings=findings)
    assert [row.id for row in calibration.rows] == ["900-002", "900-003"]
    assert calibration.refused == {"900-001": "the audit calls it inconsistent: a-rule"}


AMBIGUOUS_STEP = {"step_time_s": claim(2.0, "2.0", optimizer_step=2.0, one_row=8.0)}


def test_an_ambiguous_step_time_gives_a_rate_once_the_audit_excludes_all_other_meanings() -> None:
    record = published(claims=AMBIGUOUS_STEP)
    calibration = calibrated(record)
    assert (calibration.rows, calibration.refused) == ((), {"900-001": "its rate has several readings"})
    for meaning, seconds in (("one row", 2.0), ("optimizer step", 8.0)):
        row = row_of(record, [finding("900-002", "901-001", verdict=AuditVerdict.AMBIGUOUS, excluded=(meaning,))])
        assert tokens_per_s(row) == pytest.approx(4 * 2048 / seconds)


@pytest.mark.parametrize(
    ("source", "method", "precision", "dtype"),
    [
        ("900", "qlora", "bf16", Dtype.BF16),
        ("003", "qlora", "bf16", Dtype.FP32),
        ("900", "lora", "fp16", Dtype.FP16),
        ("003", "lora", "fp16", Dtype.FP16),
    ],
)
def test_quantised_layers_multiply_in_16_bits_unless_fp32_is_known(source: str, method: str, precision: str, dtype: Dtype) -> None:
    shape = row_of(published(claims={"tokens_per_s": 4_000.0}, source=source, method=method, precision=precision)).config.shape
    assert (shape.parameters, shape.activations) == (dtype, dtype)


# Converted results ---------------------------------------------------------------------------------


def converted(**changed: Any) -> ConvertedResult:
    """Return an entry of MLPerf with 10 rows of 8,192 tokens per second on eight H100."""
    conditions: dict[str, Any] = {"model": "llama-2-70b", "method": "lora", "accelerator": H100, "accelerator_count": 8}
    conditions |= {"global_batch": 8, "sequence_length": 8192, "settings": {"lora_rank": 8}}
    run = ConvertedRun(file="result_0.txt", status="ok", time_to_target_s=120.0, trained_samples=1_000, train_s=100.0)
    return ConvertedResult(
        id="mlperf-v9.1-acme-box",
        round="v9.1",
        submitter="acme",
        folder="acme/box",
        system=ConvertedSystem(name="box"),
        conditions=Conditions.model_validate(conditions | changed),
        runs=(run,),
    )


def test_an_entry_of_mlperf_is_a_row_with_the_settings_of_the_benchmark() -> None:
    row = row_of(converted())
    assert tokens_per_s(row) == pytest.approx(10 * 8192)
    assert (row.config.stack, row.config.release, row.config.accelerator.key) == ("mlperf", "v9.1", H100)
    shape = row.config.shape
    assert (shape.sequence_length, shape.lora_rank, shape.lora_dropout, shape.loss) == (8192, 8, 0.1, "fused")


# Measured results ----------------------------------------------------------------------------------


def on_h100(steps: int = 130, **overrides: Any) -> dict[str, Any]:
    """Return the fields of a submission that a run on one H100 replaces."""
    device = {"backend": "cuda", "accelerator": H100, "count": 1, "strategy": "single"}
    return {"steps": steps, "plan.device": device, "plan.precision": {"parameters": "bf16", "compute": "bf16"}, **overrides}


def outcome(**overrides: Any) -> Any:
    """Return the calibration row of a submission, a reason, or None."""
    submission = bare_submission(**overrides)
    result = calibration_outcome(submission, "measured-1", FACTS, derive(submission))
    return result if result is None else result[1]


def test_the_rate_of_a_measured_result_counts_slots_over_the_steady_window() -> None:
    submission = bare_submission(**on_h100(**{"trace.real_tokens": [1] * 130, "trace.supervised_tokens": [1] * 130}))
    work = work_in(submission.trace, derive(submission).window)
    row = outcome(**on_h100(**{"trace.real_tokens": [1] * 130, "trace.supervised_tokens": [1] * 130}))
    assert tokens_per_s(row) == pytest.approx(work.counts.slot_tokens / work.seconds)
    assert (row.id, row.config.stack, row.config.accelerator.key) == ("measured-1", "measured", H100)


@pytest.mark.parametrize(
    "overrides",
    [
        on_h100(**{"plan.device.accelerator": None}),
        on_h100(**{"plan.device.accelerator": "a-new-device"}),
        on_h100(**{"plan.model.key": "a-new-model"}),
    ],
)
def test_a_run_that_has_no_card_is_refused(overrides: dict[str, Any]) -> None:
    assert outcome(**overrides) == Missing("a device or model without a card")


def test_a_run_too_short_to_be_ranked_is_used_if_its_rate_is_known() -> None:
    assert not derive(bare_submission(**on_h100(35))).rankable
    assert outcome(**on_h100(35)).id == "measured-1"
    assert "fewer than 20 steps" in outcome(**on_h100(15)).reason
