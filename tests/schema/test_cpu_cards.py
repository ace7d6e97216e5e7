"""Cards of CPUs: their peak follows from their cores, they are found by what the system reports, and a run uses a part of them."""

import pytest
from factories import FACTS, bare_submission

from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.facts.fact_base import validated
from tunemark.schema.physics.utilisation import peak_flop_per_s
from tunemark.schema.vocabulary import Backend, Dtype

CPUS = {key: card for key, card in FACTS.accelerators.items() if card.unit == "cpu"}


def on_cpu(card: str, physical: int | None, usable: int, processes: int = 1, compute: str = "fp32", **overrides: object):
    environment = {"environment.cpu_physical_cores": physical, "environment.cpu_usable_cores": usable}
    device = {"plan.device.accelerator": card, "plan.device.count": processes}
    precision = {"plan.precision": {"parameters": compute, "compute": compute}}
    return bare_submission(130, **environment, **device, **precision, **overrides)


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


@pytest.mark.parametrize(
    ("reported", "key"),
    [
        ("AMD EPYC 7B13 64-Core Processor", "amd-epyc-7b13"),
        ("Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", "intel-xeon-platinum-8375c"),
        ("Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz", "intel-xeon-e5-2690-v4"),
        ("13th Gen Intel(R) Core(TM) i9-13900K", "intel-core-i9-13900k"),
        ("AMD Ryzen Threadripper PRO 5995WX 64-Cores", "amd-ryzen-threadripper-pro-5995wx"),
        ("AWS Graviton3", "aws-graviton3"),
        ("Apple M4 Max", "apple-m4-max-cpu"),
    ],
)
def test_a_cpu_is_found_by_the_name_that_the_system_reports(reported: str, key: str) -> None:
    card = FACTS.recognise_device(reported, Backend.CPU)
    assert card is not None
    assert card.key == key


@pytest.mark.parametrize("reported", ["Intel(R) Xeon(R) CPU @ 2.20GHz", "AMD EPYC-Milan Processor", "aarch64"])
def test_an_anonymous_name_has_no_card(reported: str) -> None:
    assert FACTS.recognise_device(reported, Backend.CPU) is None


def test_a_gpu_and_a_cpu_of_one_name_keep_their_own_cards() -> None:
    assert FACTS.recognise_device("Apple M4 Max", Backend.MPS) is None
    assert FACTS.recognise_device("AMD EPYC 7763 64-Core Processor", Backend.CUDA) is None
    assert FACTS.recognise_device("NVIDIA H100 PCIe", Backend.CPU) is None


@pytest.mark.parametrize(
    ("physical", "usable", "cores"),
    [(16, 32, 16), (64, 8, 8), (128, 256, 128)],
    ids=["half of the threads are second ones", "a container with eight threads", "two sockets"],
)
def test_the_peak_of_a_run_is_that_of_the_cores_that_it_could_use(physical: int, usable: int, cores: int) -> None:
    peak = peak_flop_per_s(on_cpu("amd-epyc-7763", physical, usable), CPUS["amd-epyc-7763"])
    assert peak.value == pytest.approx(cores * 2.45e9 * 32)
    assert f"{cores} of 64 cores" in peak.reason
    assert "at 2.45 GHz (base clock)" in peak.reason
