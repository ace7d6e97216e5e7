"""Measured results on CPUs: they have MFU and a cost, and their probe is held against the highest clock."""

import pytest
from factories import FACTS, bare_submission

from tunemark.collector.gate.relations import relation_problems
from tunemark.collector.gate.run_facts import Run
from tunemark.collector.predict.calibration_rows import calibration_outcome
from tunemark.collector.store.measured_rows import measured_rows
from tunemark.schema.derive import derive
from tunemark.schema.records.submission import Submission

MILAN = {
    "environment.devices": [{"name": "AMD EPYC 7763 64-Core Processor", "memory_bytes": 2**34}],
    "plan.device.accelerator": "amd-epyc-7763",
}


def on_cpu(**overrides: object) -> Submission:
    cores = {"environment.cpu_physical_cores": 16, "environment.cpu_logical_cores": 32, "environment.cpu_usable_cores": 32}
    return bare_submission(130, **{**MILAN, **cores, **overrides})


def probed(tflops: float) -> Submission:
    return on_cpu(probe={"dtype": "fp32", "size": 1024, "before_flop_per_s": tflops * 1e12, "after_flop_per_s": tflops * 0.99e12})


def test_a_measured_result_on_a_known_cpu_has_mfu_and_its_part_of_the_cpu() -> None:
    submission = on_cpu()
    (row,) = measured_rows(submission, derive(submission), FACTS, "r", "r.json", "0" * 64)["result_rows"]
    assert row["mfu"] == pytest.approx(row["model_flop_per_s"] / (16 * 2.45e9 * 32))
    assert row["accelerator_units"] == pytest.approx(16 / 64)


def test_a_probe_may_reach_the_boost_clock_and_no_more() -> None:
    base, boost = 16 * 2.45e9 * 32 / 1e12, 16 * 3.5e9 * 32 / 1e12
    assert "probe.before_flop_per_s" not in wrong(probed((base + boost) / 2))
    assert "probe.before_flop_per_s" in wrong(probed(boost * 1.2))


def wrong(submission: Submission) -> set[str]:
    return {problem.field for problem in relation_problems(Run(submission, FACTS, derive(submission)))}


def test_a_cpu_does_not_calibrate_the_predictions_of_accelerators() -> None:
    submission = on_cpu(**{"environment.cpu_physical_cores": 64, "environment.cpu_usable_cores": 64, "environment.cpu_logical_cores": 64})
    outcome = calibration_outcome(submission, "r", FACTS, derive(submission))
    assert outcome is not None
    assert "a CPU" in outcome[1].reason
