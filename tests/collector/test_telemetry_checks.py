"""Telemetry and memory that no run has: each table changes one simulated run on a GPU, and the gate names what is wrong."""

from typing import Any

import pytest
from changed_bases import changed

from tunemark.collector.gate.memory_checks import memory_problems, unlikely_memory
from tunemark.collector.gate.telemetry_checks import telemetry_problems, unlikely_telemetry
from tunemark.schema.derive import derive
from tunemark.schema.records.submission import Submission

from factories import FACTS  # isort: skip

DEVICE, ENERGY = "utilisation.devices.0", "utilisation.energy"


HEAT = {f"{DEVICE}.throttle_reasons": ["hw_thermal_slowdown"], f"{DEVICE}.throttle_shares": {"hw_thermal_slowdown": 0.9}}


def refused(submission: Submission) -> list[str]:
    problems = [*telemetry_problems(submission, derive(submission), FACTS), *memory_problems(submission, FACTS)]
    return [problem.field for problem in problems]


def doubted(submission: Submission) -> list[str]:
    return [problem.field for problem in (*unlikely_telemetry(submission, derive(submission), FACTS), *unlikely_memory(submission, FACTS))]


@pytest.mark.parametrize("name", ["h100", "ddp", "lora", "fsdp", "qlora", "bert", "oom"])
def test_a_run_without_changes_has_no_problem_and_no_doubt(name: str) -> None:
    submission = changed(name, {})
    assert refused(submission) == []
    assert doubted(submission) == []


@pytest.mark.parametrize(
    ("name", "values", "field"),
    [
        ("h100", {f"{DEVICE}.power_peak_w": 610.0, f"{DEVICE}.power_mean_w": 610.0}, f"{DEVICE}.power_peak_w"),
        ("h100", {f"{DEVICE}.clock_mean_mhz": 600.0, f"{DEVICE}.clock_min_mhz": 600.0}, f"{DEVICE}.clock_mean_mhz"),
        ("h100", {f"{DEVICE}.busy_mean": 0.3}, f"{DEVICE}.busy_mean"),
        ("h100", {f"{DEVICE}.samples": 43}, f"{DEVICE}.samples"),
        ("h100", {"trace.data_wait_s": lambda _: 400.0}, "trace.data_wait_s"),
        ("h100", {f"{DEVICE}.memory_used_before_bytes": 40 * 2**30}, f"{DEVICE}.memory_used_before_bytes"),
        ("h100", {f"{DEVICE}.memory_used_peak_bytes": 85_520_809_984}, f"{DEVICE}.memory_used_peak_bytes"),
        ("h100", {"memory.device_used.peak_bytes": lambda old: old + 2**30}, "memory.device_used.peak_bytes"),
        ("h100", {"memory.device_reserved.peak_bytes": lambda old: old + 4096}, "memory.device_reserved.peak_bytes"),
        ("h100", {"memory.device_allocated.method": "torch.cuda.max_memory_reserved"}, "memory.device_allocated.method"),
        ("h100", {"effective.gradient_checkpointing": "18"}, "memory.device_allocated.peak_bytes"),
        ("h100", {f"{ENERGY}.idle_w": 655.0}, f"{ENERGY}.idle_w"),
        ("h100", {ENERGY: {"source": "none", "reason": "no counter"}}, f"{ENERGY}.source"),
        ("h100", {f"{DEVICE}.throttle_reasons": ["sw_power_cap"], f"{DEVICE}.throttle_shares": {"sw_power_cap": 1e-7}}, f"{DEVICE}.throttle_shares.sw_power_cap"),
        ("h100", {f"{ENERGY}.source": "integrated", f"{DEVICE}.power_mean_w": None, f"{DEVICE}.power_peak_w": None}, f"{ENERGY}.source"),
        ("h100", {f"{ENERGY}.source": "integrated", f"{DEVICE}.samples": 400}, f"{ENERGY}.source"),
        ("h100", {f"{ENERGY}.idle_w": 0.0}, f"{ENERGY}.idle_w"),
        ("h100", {f"{ENERGY}.joules": lambda joules: joules * 0.7}, f"{ENERGY}.joules"),
        ("h100", {f"{DEVICE}.samples": lambda samples: samples * 2}, f"{DEVICE}.samples"),
        ("ddp", {"utilisation.devices.1.samples": 300}, "utilisation.devices"),
        ("ddp", {"environment.devices.1.power_limit_w": 400.0}, "utilisation.devices.1.power_mean_w"),
        ("lora", {"utilisation.samples": lambda samples: samples * 3}, "utilisation.samples"),
        ("lora", {"utilisation.interval_s": 0.25}, "utilisation.interval_s"),
        ("lora", {"utilisation.cpu_busy_peak": 3.4}, "utilisation.cpu_busy_peak"),
        ("lora", {"utilisation.foreign_cpu_busy_mean": 1.9}, "utilisation.foreign_cpu_busy_mean"),
        ("h100", {"memory.device_allocated.peak_bytes": 16 * 2**30}, "memory.device_allocated.peak_bytes"),
        ("h100", {"plan.model.gradient_checkpointing": "none"}, "memory.device_allocated.peak_bytes"),
        ("h100", {"memory.device_allocated.method": "torch.xpu.max_memory_allocated"}, "memory.device_allocated.method"),
        ("h100", {"memory.device_used.method": "amdsmi_get_gpu_memory_usage every 0.1 s, minus what was in use before the run"}, "memory.device_used.method"),
        ("lora", {"memory.host_rss.method": "VmHWM"}, "memory.host_rss.method"),
        ("ddp", {"ranks.1.device_reserved_bytes": lambda size: size // 2}, "ranks.1.device_reserved_bytes"),
        ("fsdp", {"memory.host_rss.peak_bytes": lambda size: size // 2}, "memory.host_rss.peak_bytes"),
        ("ddp", {"effective.optimizer_states_on": ["cpu"]}, "memory.host_rss.peak_bytes"),
    ],
)  # fmt: skip
def test_telemetry_that_contradicts_the_work_or_itself_is_refused(name: str, values: dict[str, Any], field: str) -> None:
    assert field in refused(changed(name, values))


@pytest.mark.parametrize(
    ("name", "values", "field"),
    [
        ("h100", {f"{ENERGY}.idle_w": 680.0}, f"{ENERGY}.idle_w"),
        ("h100", {f"{ENERGY}.joules": lambda joules: joules * 0.9}, f"{ENERGY}.joules"),
        ("h100", {f"{DEVICE}.power_mean_w": 250.0}, f"{DEVICE}.power_mean_w"),
        ("h100", {"memory.device_allocated.peak_bytes": 20_000_000_000}, "memory.device_allocated.peak_bytes"),
        ("h100", {f"{DEVICE}.temperature_peak_c": 45.0} | HEAT, f"{DEVICE}.throttle_reasons"),
        ("fsdp", {"ranks.1.host_rss_bytes": 694_575_104}, "ranks"),
    ],
)
def test_possible_but_unlikely_telemetry_asks_for_a_second_run(name: str, values: dict[str, Any], field: str) -> None:
    assert field in doubted(changed(name, values))


def test_the_gate_knows_the_tools_and_intervals_of_the_harness() -> None:
    from tunemark.harness.vendors.protocol import all_vendors
    from tunemark.schema.vocabulary import DEVICE_INTERVAL_S, MEMORY_TOOLS

    monitors = {vendor.backend for vendor in all_vendors() if vendor.monitor is not None}
    assert set(DEVICE_INTERVAL_S) == set(MEMORY_TOOLS) == monitors
