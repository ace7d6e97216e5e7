"""Machines and versions that cannot be: products in disguise, cores that no host has, libraries that do not fit together."""

from typing import Any

import pytest
from changed_bases import changed
from factories import FACTS
from gate_mutations.simulated import PACKAGES

from tunemark.collector.gate.machine_checks import machine_problems, unlikely_machine
from tunemark.collector.gate.version_checks import unlikely_versions, version_problems
from tunemark.schema.records.submission import Submission

TORCH = "environment.packages.torch"


def refused(submission: Submission) -> list[str]:
    return [problem.field for problem in (*machine_problems(submission, FACTS), *version_problems(submission, FACTS))]


def doubted(submission: Submission) -> list[str]:
    return [problem.field for problem in (*unlikely_machine(submission), *unlikely_versions(submission, FACTS))]


def named(name: str) -> dict[str, Any]:
    return {"plan.device.accelerator": None, "environment.devices.0.name": name}


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H100 80GB HBM3 / NVIDIA H100 80GB HBM3",
        "NVIDIA H100 80GB HBM3 (overclocked)",
        "NVIDIA GeForce RTX 4090 tuned",
        "VIDIA H100 80GB HBM3",
        "The fastest H100",
        "NVIDIA H100 80GB HBM3 NVIDIA H100 80GB HBM3",
    ],
)
def test_a_known_product_in_disguise_is_refused(name: str) -> None:
    assert "environment.devices.0.name" in refused(changed("h100", named(name)))


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4080 SUPER",
        "NVIDIA A10-24Q",
        "NVIDIA A100X",
        "GRID A100D-80C",
        "Tesla V100-SXM2-32GB-LS",
        "GeForce RTX 2070 with Max-Q Design",
        "NVIDIA RTX 5000 Ada Generation",
        "A100-SXM4-40GB-X",
        "Orin (nvgpu)",
        "NVIDIA Graphics Device",
    ],
)
def test_a_slice_a_laptop_and_an_unknown_product_are_accepted(name: str) -> None:
    assert "environment.devices.0.name" not in refused(changed("h100", named(name)))


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"environment.cpu": "Intel(R) Core(TM) i7-8700K CPU @ 3.70GHz"}, "environment.cpu_physical_cores"),
        (
            {"environment.cpu": "AMD Ryzen 9 9999X 16-Core Processor", "environment.cpu_physical_cores": 52},
            "environment.cpu_physical_cores",
        ),
        ({"environment.cpu_physical_cores": 1_152, "environment.cpu_logical_cores": 2_304}, "environment.cpu_physical_cores"),
        ({"environment.devices.0.power_limit_w": 910.0}, "environment.devices.0.power_limit_w"),
        ({"environment.python": "3.12.99"}, "environment.python"),
        ({"environment.python": "3.16.0"}, "environment.python"),
        ({"environment.python": "3.9.18"}, TORCH),
        ({"environment.packages.numpy": "1.21.6"}, "environment.packages.numpy"),
        ({"environment.python": "3.11.7", "environment.packages.numpy": "1.21.6"}, "environment.packages.numpy"),
        ({TORCH: "2.1.2"}, "environment.packages.transformers"),
        ({"environment.packages.transformers": "4.40.0"}, "environment.packages.transformers"),
        ({TORCH: "2.13.0+cu130.rocm7.1"}, TORCH),
        ({TORCH: "2.13.0+cu147"}, TORCH),
        ({TORCH: "2.13.0+cu130", "plan.device.accelerator": "nvidia-v100-32gb"}, TORCH),
    ],
)
def test_hosts_and_versions_that_cannot_be_are_refused(values: dict[str, Any], field: str) -> None:
    assert field in refused(changed("h100", values))


def test_four_bit_weights_need_a_library_that_has_them_and_flash_attention_its_package() -> None:
    assert "environment.packages.bitsandbytes" in refused(changed("qlora", {"environment.packages.bitsandbytes": "0.38.1"}))
    assert "environment.packages" in refused(changed("lora", {"plan.model.attention": "flash_attention_2"}))


@pytest.mark.parametrize(
    "values",
    [
        {"environment.packages.torch": "2.13.0+cu130"},
        {"environment.packages.torch": "2.16.0.dev20261112+cu132"},
        {"environment.packages.torch": "2.10.0a0+b558c986e8.nv25.11"},
        {"environment.packages.torch": "2.13.0a0+git4f2a91c"},
        {"environment.python": "3.14.2"},
        {"environment.python": "3.13.7"},
        {"environment.cpu": "Intel(R) Core(TM) i9-14900K", "environment.cpu_physical_cores": 24, "environment.cpu_logical_cores": 32, "environment.cpu_usable_cores": 32},
        {"environment.cpu": "AMD EPYC 9654 96-Core Processor", "environment.cpu_physical_cores": 192, "environment.cpu_logical_cores": 384, "environment.cpu_usable_cores": 384},
        {"environment.devices.0.power_limit_w": 400.0},
    ],
)  # fmt: skip
def test_ordinary_machines_are_accepted_without_a_doubt(values: dict[str, Any]) -> None:
    submission = changed("h100", values)
    assert refused(submission) == []
    assert doubted(submission) == []


def test_four_threads_of_a_core_and_a_build_of_others_ask_for_a_second_run() -> None:
    assert doubted(changed("h100", {"environment.cpu_logical_cores": 104})) == ["environment.cpu_logical_cores"]
    old = {TORCH: "2.4.1", "environment.python": "3.13.1"} | {f"environment.packages.{name}": PACKAGES[name] for name in ("numpy",)}
    assert TORCH in doubted(changed("h100", old))


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"environment.runtime": {"cuda": "11.1"}}, TORCH),
        ({"environment.devices.0.driver": "470.57.02"}, "environment.devices.0.driver"),
        ({"environment.devices.0.memory_bytes": 80_000_000_000}, "environment.devices.0.memory_bytes"),
        ({TORCH: "2.16.0", "started_at": "2026-11-21T10:00:00.000001Z"}, TORCH),
    ],
)
def test_a_gpu_with_software_that_cannot_drive_it_is_refused(values: dict[str, Any], field: str) -> None:
    assert field not in refused(changed("h100", {}))
    assert field in refused(changed("h100", values))


@pytest.mark.parametrize(
    "name",
    ["AMD Ryzen 7 8845HS w/ Radeon 780M Graphics", "AMD Ryzen 5 3400G with Radeon Vega Graphics", "AMD Ryzen AI 9 HX 370 w/ Radeon 890M"],
)
def test_a_cpu_that_is_named_with_its_graphics_is_a_cpu(name: str) -> None:
    field = "environment.devices.0.name"
    assert field not in refused(changed("lora", {**named(name), "environment.cpu": name}))
    gpu = "AMD Radeon RX 7900 XTX"
    assert field in refused(changed("lora", {**named(gpu), "environment.cpu": gpu}))


def test_a_patch_release_that_never_came_out_is_refused_as_a_build_of_the_authors_only() -> None:
    assert TORCH in refused(changed("lora", {TORCH: "2.12.7+cpu"}))
    assert TORCH not in refused(changed("lora", {TORCH: "2.12.7+vendor.1"}))
