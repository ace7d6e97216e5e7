"""Cards of CPUs: their peak follows from their cores, they are found by what the system reports, and a run uses a part of them.

Measured results on CPUs have MFU and a cost, and their probe is held against the highest clock.
"""

import tomllib
from pathlib import Path

import pytest
from factories import FACTS, bare_submission

from tunemark.collector.gate.relations import relation_problems
from tunemark.collector.gate.run_facts import Run
from tunemark.collector.predict.calibration_rows import calibration_outcome
from tunemark.collector.store.result_rows import measured_rows
from tunemark.schema.derive import derive
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.facts.fact_base import validated
from tunemark.schema.physics.utilisation import peak_flop_per_s
from tunemark.schema.records.submission import Submission
from tunemark.schema.vocabulary import Backend, Dtype

CPUS = {key: card for key, card in FACTS.accelerators.items() if card.unit == "cpu"}


def on_milan(physical: int, usable: int, **overrides: object) -> Submission:
    """Return a run on an EPYC 7763 with some of its cores, and threads that the run could use."""
    cores = {"cpu_physical_cores": physical, "cpu_logical_cores": usable, "cpu_usable_cores": usable}
    environment = cores | {"devices": [{"name": "AMD EPYC 7763 64-Core Processor", "memory_bytes": 2**34}]}
    seen = {f"environment.{name}": value for name, value in environment.items()} | {"plan.device.accelerator": "amd-epyc-7763"}
    return bare_submission(130, **seen | overrides)


@pytest.mark.parametrize(
    ("key", "dtype", "tflops"),
    [
        ("amd-epyc-7763", Dtype.FP32, 64 * 2.45e9 * 2 * 2 * 8 / 1e12),
        ("amd-epyc-9654", Dtype.BF16, 96 * 3.55e9 * 64 / 1e12),
        ("intel-core-i9-13900k", Dtype.FP32, (8 * 3.0e9 * 32 + 16 * 2.2e9 * 16) / 1e12),
        ("aws-graviton3", Dtype.FP32, 64 * 2.6e9 * 2 * 4 * 4 / 1e12),
    ],
)
def test_a_peak_is_cores_times_clock_times_flop_per_cycle(key: str, dtype: Dtype, tflops: float) -> None:
    assert CPUS[key].peak_tflops[dtype] == pytest.approx(tflops)


def test_a_measured_peak_of_public_benchmarks_agrees_with_the_rule() -> None:
    """cpufp on a Xeon W9-3495X: 2.84 TFLOP/s bf16 and 158.7 GFLOP/s fp32 of one core; a Ryzen 7 9700X: 708.2 and 354.3 GFLOP/s."""
    rapids, turin = (CPUS[key].cpu.clusters[0].flop_per_cycle() for key in ("intel-xeon-platinum-8480-plus", "amd-epyc-9b45"))
    assert rapids[Dtype.BF16] / rapids[Dtype.FP32] == pytest.approx(2_844.8 / 158.74, rel=0.15)
    assert turin[Dtype.BF16] / turin[Dtype.FP32] == pytest.approx(708.2 / 354.3, rel=0.01)


def test_a_peak_cannot_be_declared_beside_the_facts_it_follows_from() -> None:
    card = CPUS["amd-epyc-7763"].model_dump(mode="json")
    assert AcceleratorCard.model_validate(card) == CPUS["amd-epyc-7763"]
    with pytest.raises(TunemarkError, match="follows from its cores, clock and memory"):
        validated(AcceleratorCard, card | {"peak_tflops": {"fp32": 9.9}}, "amd-epyc-7763.toml")
    with pytest.raises(TunemarkError, match="use unit = 'cpu'"):
        validated(AcceleratorCard, card | {"unit": "device"}, "amd-epyc-7763.toml")


NAMES = tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("kind", "name", "key"), [(kind, *row) for kind, rows in NAMES.items() for row in rows.items()])
def test_a_device_is_known_by_the_name_that_it_reports(kind: str, name: str, key: str) -> None:
    card = FACTS.accelerator(name) if kind == "accelerator" else FACTS.recognise_device(name, Backend(kind))
    assert (card.key if card else "") == key


@pytest.mark.parametrize(
    ("physical", "usable", "cores"),
    [(16, 32, 16), (64, 8, 8), (128, 256, 128)],
    ids=["half of the threads are second ones", "a container with eight threads", "two sockets"],
)
def test_the_peak_of_a_run_is_that_of_the_cores_that_it_could_use(physical: int, usable: int, cores: int) -> None:
    peak = peak_flop_per_s(on_milan(physical, usable), CPUS["amd-epyc-7763"])
    assert peak.value == pytest.approx(cores * 2.45e9 * 32)
    assert f"{cores} of 64 cores" in peak.reason
    assert "at 2.45 GHz (base clock)" in peak.reason


def test_a_measured_result_on_a_known_cpu_has_mfu_and_its_part_of_the_cpu() -> None:
    submission = on_milan(16, 32)
    (row,) = measured_rows(submission, derive(submission), FACTS, "r", "r.json", "0" * 64)["result_rows"]
    assert row["mfu"] == pytest.approx(row["model_flop_per_s"] / (16 * 2.45e9 * 32))
    assert row["accelerator_units"] == pytest.approx(16 / 64)


@pytest.mark.parametrize(("clock_hz", "wrong"), [(3.0e9, False), (4.2e9, True)], ids=["below boost", "above boost, 3.5 GHz"])
def test_a_probe_may_reach_the_boost_clock_and_no_more(clock_hz: float, wrong: bool) -> None:
    rate = 16 * clock_hz * 32
    submission = on_milan(16, 32, probe={"dtype": "fp32", "size": 1024, "before_flop_per_s": rate, "after_flop_per_s": 0.99 * rate})
    problems = relation_problems(Run(submission, FACTS, derive(submission)))
    assert ("probe.before_flop_per_s" in {problem.field for problem in problems}) is wrong


def test_a_cpu_does_not_calibrate_the_predictions_of_accelerators() -> None:
    submission = on_milan(64, 64)
    assert "a CPU" in calibration_outcome(submission, "r", FACTS, derive(submission))[1].reason
