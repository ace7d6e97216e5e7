"""Devices are monitored from outside the worker in our units; a record holds the readings or the reason without them."""

import ast
import inspect
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from harness_making import FakeMonitor
from pydantic import ValidationError
from scripted_libraries import TOOLS, ScriptedNvml, scripted_amdsmi

from tunemark.harness.run.telemetry import (
    DeviceSeries,
    Moment,
    Sample,
    Sampler,
    Telemetry,
    _trains,
    device_uses,
    energy,
    open_sampler,
    utilisation,
    window_times,
)
from tunemark.harness.vendors import cuda, mps, neuron, rocm, xpu
from tunemark.harness.vendors.protocol import DeviceReading, all_vendors
from tunemark.harness.vendors.vendor_tools import LineStream
from tunemark.schema.formats import GIB
from tunemark.schema.records.trace import DeviceUse, StepTrace
from tunemark.schema.statistics.steady_state import SteadyWindow

IDLE = (DeviceReading(power_w=100.0, memory_used_bytes=GIB),)


def make_series(readings, *, interval_s=0.1, before=IDLE, **changes):
    moments = [Moment(interval_s * place, (reading,)) for place, reading in enumerate(readings)]
    plain = {"indexes": (0,), "reason": "no power is told", "memory_method": "scripted", "interval_s": interval_s}
    return DeviceSeries(**{**plain, **changes}, before=[Moment(0.0, (reading,)) for reading in before], during=moments)


def test_a_throttle_reason_has_its_share_of_the_time_and_not_of_the_samples():
    slow, thermal = (
        DeviceReading(throttle_reasons=frozenset({"sw_power_cap"})),
        DeviceReading(throttle_reasons=frozenset({"hw_thermal_slowdown"})),
    )
    # Samples stand for the time since the one before: 0.1 s, 0.7 s, 0.1 s and 0.1 s.
    free = DeviceReading(throttle_reasons=frozenset())
    moments = [Moment(at_s, (reading,)) for at_s, reading in ((1.1, slow), (1.8, free), (1.9, slow), (2.0, thermal))]
    (use,) = device_uses(DeviceSeries(indexes=(0,), during=moments), 1.0, 2.0)
    assert use.throttle_shares == pytest.approx({"hw_thermal_slowdown": 0.1, "sw_power_cap": 0.2})


def test_a_device_that_was_never_asked_is_unknown_with_a_reason_and_one_that_answered_is_not():
    silent, asked = DeviceReading(), DeviceReading(busy=1.0, power_w=9.0, throttle_reasons=frozenset(), errors=frozenset({"Xid 79"}))
    moments = [Moment(at_s, (silent, asked)) for at_s in (1.1, 2.0)]
    series = DeviceSeries(indexes=(0, 1), during=moments, foreign={1: 0}, why=lambda place, figure: f"{place} has no {figure}")
    first, second = device_uses(series, 1.0, 2.0)
    assert (first.throttle_reasons, first.errors, first.other_processes) == (None, None, None)
    assert (second.throttle_reasons, second.errors, second.other_processes) == ((), ("Xid 79",), 0)
    assert {first.unknown[name] for name in ("busy_mean", "busy_peak")} == {"0 has no busy"}
    assert first.unknown["throttle_reasons"] == "0 has no throttle_reasons"
    assert first.unknown["other_processes"] == "0 has no processes"
    assert set(second.unknown) == {name for name, value in second if value is None}
    with pytest.raises(ValidationError, match="errors is null without a reason"):
        DeviceUse.model_validate(first.model_dump() | {"unknown": {n: why for n, why in first.unknown.items() if n != "errors"}})
    with pytest.raises(ValidationError, match="busy_mean is known, or no field"):
        DeviceUse.model_validate(second.model_dump() | {"unknown": second.unknown | {"busy_mean": "why"}})


@pytest.mark.parametrize(
    ("readings", "interval_s", "source", "joules"),
    [
        ([DeviceReading(power_w=1.0, energy_j=1000.0 + 50 * place) for place in range(11)], 0.1, "counter", 500.0),
        # A counter that stands still is not believed, and power without one is integrated by trapezoids.
        ([DeviceReading(power_w=100.0 * place, energy_j=5.0) for place in range(11)], 0.1, "integrated", 500.0),
        ([DeviceReading(power_w=400.0)] * 5, 1.0, "none", None),
        ([DeviceReading()] * 11, 0.1, "none", None),
    ],
)
def test_energy_is_that_of_the_counter_else_of_power_that_is_read_often_else_unknown(readings, interval_s, source, joules):
    found = energy(make_series(readings, interval_s=interval_s), 0.0, interval_s * (len(readings) - 1))
    assert (found.source, found.joules) == (source, joules if joules is None else pytest.approx(joules))
    assert found.idle_w == 100.0
    assert (found.reason is None) is (joules is not None)


def test_energy_of_several_devices_needs_all_of_them():
    both = [Moment(0.1 * place, (DeviceReading(energy_j=10.0 * place, power_w=1.0), DeviceReading(power_w=100.0))) for place in range(11)]
    series = DeviceSeries(indexes=(0, 1), interval_s=0.1, during=both)
    found = energy(series, 0.0, 1.0)
    assert found.source == "integrated"
    assert found.joules == pytest.approx(101.0)


def test_other_processes_are_counted_before_and_during_the_run():
    def foreign(before, during):
        monitor = FakeMonitor([(DeviceReading(),)], before)
        with Sampler(monitor, (0,), "") as sampler:
            monitor._pids = during
            sampler.follow(os.getpid(), time.monotonic())
            time.sleep(0.05)
        return sampler.telemetry.devices.foreign

    mine, other = os.getpid(), 999_999_999
    assert foreign((frozenset(),), (frozenset({mine}),)) == {0: 0}
    assert foreign((frozenset({other}),), (frozenset({mine}),)) == {0: 1}
    assert foreign((frozenset(),), (frozenset({mine, other}),)) == {0: 1}
    # In a container the driver's numbers may be others: then one process is the worker's.
    assert foreign((frozenset(),), (frozenset({other}),)) == {0: 0}
    assert foreign(None, None) == {}


@pytest.mark.parametrize("backend", [vendor.backend for vendor in all_vendors()])
def test_each_family_is_sampled_or_gives_a_reason(backend):
    with open_sampler(backend, (0,)) as sampler:
        assert sampler.telemetry.devices.during == []
        assert sampler.telemetry.devices.reason


def test_a_run_holds_what_its_devices_were_seen_to_do_and_ends_once_its_throughput_is_sure(facts, tmp_path, monkeypatch):
    from harness_making import make_machine, only_submission

    from tunemark.harness.plan.resolve import Options, resolve
    from tunemark.harness.run.launch import SteadinessJudge, run_once
    from tunemark.harness.vendors import cpu

    counted = [(DeviceReading(1.0, 400.0, 1700.0, 60.0, 3 * GIB, 40.0 * turn, frozenset({"hw_slowdown"})),) for turn in range(20_000)]
    before = [(DeviceReading(0.0, 90.0, 300.0, 40.0, 2 * GIB, 0.0),)] * 5
    monitor = FakeMonitor([*before, *counted], [frozenset({999_999_999})])
    monitor.interval_s = 0.1
    monkeypatch.setattr(cpu, "VENDOR", cpu.VENDOR.model_copy(update={"monitor": lambda _: monitor}))
    monkeypatch.setattr(SteadinessJudge, "sure", lambda _, log: len(log.steps) >= 40)
    machine = make_machine(indexes=(0,), packages={"torch": "2", "peft": "0"})
    resolved = resolve(
        "smoke-lora",
        facts,
        machine,
        Options(overrides=("data.sequence_length=16",), max_steps=20_000, until_ci=0.3, probe=False, gates=False),
    )
    run_once(resolved, facts, machine, tmp_path)
    seen = only_submission(tmp_path)
    assert monitor.closed
    assert 40 <= len(seen.trace) < 20_000
    assert 0.1 < seen.utilisation.cpu_busy_mean <= seen.environment.cpu_logical_cores * 1.1
    (use,) = seen.utilisation.devices
    assert (use.busy_mean, use.clock_min_mhz, use.memory_used_before_bytes, use.throttle_reasons) == (
        1.0,
        1700.0,
        2 * GIB,
        ("hw_slowdown",),
    )
    assert seen.memory.device_used.peak_bytes == GIB
    measured = seen.utilisation.energy
    assert (measured.source, measured.idle_w) == ("counter", 90.0)
    # 40 J a sample, ten samples a second.
    assert measured.joules / measured.window_s == pytest.approx(400, rel=0.25)
    assert {"busy_device", "throttled"} <= {warned.kind.value for warned in seen.warnings}


def test_what_is_sampled_after_the_last_step_of_a_hung_run_does_not_count_as_use():
    counts = dict.fromkeys(("slot_tokens", "real_tokens", "supervised_tokens", "documents", "rows"), (1,) * 30)
    trace = StepTrace(started_at_s=5.0, completed_at_s=tuple(6.0 + step for step in range(30)), loss=(1.0,) * 30, **counts)
    moments = [(at, 2.0) for at in range(6, 36)] + [(at, 0.0) for at in range(36, 600)]
    telemetry = Telemetry([Sample(float(at), 1, None, busy, 0.0) for at, busy in moments])
    seen = utilisation(telemetry, *window_times(trace, SteadyWindow(10, 30, stable=True, verdict="")))
    assert (seen.cpu_busy_mean, seen.samples) == (2.0, 20)


def test_a_compiler_that_the_worker_starts_does_not_count_as_its_process():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as python, subprocess.Popen(["sleep", "9"]) as other:
        assert _trains(psutil.Process(python.pid))
        assert not _trains(psutil.Process(other.pid))
        python.kill()
        other.kill()


# NVIDIA


def test_each_name_of_nvml_that_is_used_exists_in_its_package():
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed; install tunemark[nvidia]")
    used = {
        node.attr
        for node in ast.walk(ast.parse(inspect.getsource(cuda)))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in {"nvml", "pynvml", "self._nvml"}
    }
    assert len(used) >= 34
    assert not [name for name in (*used, *cuda.THROTTLE_REASONS, *cuda.PCIE_PATHS) if not hasattr(pynvml, name)]
    assert [getattr(pynvml, name) for name in cuda.PCIE_PATHS] == sorted(getattr(pynvml, name) for name in cuda.PCIE_PATHS)
    assert pynvml.nvmlClocksEventReasonGpuIdle not in {getattr(pynvml, name) for name in cuda.THROTTLE_REASONS}


def test_nvmls_units_become_ours_and_idle_is_no_reason():
    (reading,) = cuda.NvmlMonitor(ScriptedNvml(), [5]).read()
    assert reading == DeviceReading(0.97, 650.123, 1755, 63, 5 * GIB, 7000.5, frozenset({"sw_power_cap"}), 1755, frozenset())


def test_xid_errors_are_those_since_the_last_reading():
    monitor = cuda.NvmlMonitor(nvml := ScriptedNvml(), [5])
    assert monitor.read()[0].errors == frozenset()
    nvml.xids = [79, 31]
    assert [monitor.read()[0].errors for _ in range(2)] == [{"Xid 31", "Xid 79"}, frozenset()]


def test_each_missing_fact_of_a_gpu_has_its_reason():
    lacking = ScriptedNvml({"nvmlDeviceGetNvLinkState", "nvmlDeviceGetMigMode", "nvmlDeviceGetApplicationsClock"})
    lacking.nvmlDeviceGetP2PStatus = lambda *_: 1
    facts = cuda.NvmlMonitor(lacking, [0, 1]).devices()[0].facts
    assert (facts.nvlinks, facts.partition, facts.application_clock_mhz, facts.links) == (None, None, None, ("NUMA node",))
    assert facts.unknown.keys() == {"nvlinks", "partition", "application_clock_mhz"}
    assert all(why.startswith("NVML: ") for why in facts.unknown.values())


def test_what_a_device_does_not_support_is_null_with_nvmls_words_and_asked_once():
    nvml = ScriptedNvml({"nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetCurrentClocksEventReasons"})
    monitor = cuda.NvmlMonitor(nvml, [5])
    readings = [monitor.read()[0] for _ in range(3)]
    assert {(reading.power_w, reading.energy_j, reading.throttle_reasons, reading.busy) for reading in readings} == {
        (None, None, None, 0.97)
    }
    assert monitor.why(0, "throttle_reasons").startswith("NVML: ")
    assert monitor.why(0, "busy") == "NVML does not report it"
    assert nvml.asked.count(("handle 5", "nvmlDeviceGetPowerUsage")) == 1
    assert monitor.processes() == (frozenset({42}),)
    monitor.close()
    assert nvml.asked[-1] == (None, "nvmlShutdown")


# AMD


def test_amdsmis_units_become_ours():
    monitor = rocm.AmdMonitor(scripted_amdsmi(), [0])
    (reading,) = monitor.read()
    assert (reading.busy, reading.power_w, reading.clock_mhz, reading.temperature_c) == (0.88, 612.0, 2100.0, 71.0)
    assert reading.energy_j == pytest.approx(15.3)
    assert reading.throttle_reasons is None
    assert reading.memory_clock_mhz == 2100.0
    assert monitor.processes() == (frozenset({42}),)


def test_amd_gpus_since_mi300_are_throttled_while_a_counter_grows_and_older_ones_by_their_bits():
    metrics = {"indep_throttle_status": "N/A", "ppt_residency_acc": 10, "socket_thm_residency_acc": 4, "hbm_thm_residency_acc": "N/A"}
    module = scripted_amdsmi(amdsmi_get_gpu_metrics_info=metrics)
    monitor = rocm.AmdMonitor(module, [0])
    seen = [monitor.read()[0].throttle_reasons]
    for power in (10, 25):
        metrics["ppt_residency_acc"] = power
        seen.append(monitor.read()[0].throttle_reasons)
    assert seen == [None, frozenset(), frozenset({"package_power"})]
    for bits, reasons in ((0, frozenset()), (5, frozenset({"throttled"}))):
        older = rocm.AmdMonitor(scripted_amdsmi(amdsmi_get_gpu_metrics_info={"indep_throttle_status": bits}), [0])
        assert older.read()[0].throttle_reasons == reasons


def test_the_facts_of_an_amd_gpu_come_from_its_library_with_the_reason_of_each_missing_one():
    module = scripted_amdsmi("amdsmi_get_gpu_compute_partition")
    facts = rocm.AmdMonitor(module, [0, 0]).described(0, (0, 1))
    assert (facts["max_clock_mhz"], facts["ecc"], facts["pcie_generation"], facts["pcie_width"], facts["numa_node"]) == (
        2100,
        True,
        5,
        16,
        1,
    )
    assert facts["links"] == ("XGMI",)
    assert set(facts["unknown"]) == {"partition"}


def test_an_amd_device_that_reports_little_has_nulls():
    names = ("activity", "memory_usage", "metrics_info", "process_list")
    module = scripted_amdsmi(
        *(f"amdsmi_get_gpu_{name}" for name in names),
        "amdsmi_get_energy_count",
        amdsmi_get_power_info={"average_socket_power": 300, "current_socket_power": "N/A"},
    )
    monitor = rocm.AmdMonitor(module, [0])
    (reading,) = monitor.read()
    assert (reading.busy, reading.memory_used_bytes, reading.energy_j, reading.power_w) == (None, None, None, 300.0)
    assert monitor.processes() is None


# Neuron and Intel: a tool prints lines


class Lines:
    """Lines as a tool prints them, some for each call."""

    def __init__(self, *portions):
        self.portions, self.closed = list(portions), False

    def new_lines(self):
        return self.portions.pop(0) if self.portions else []

    def close(self):
        self.closed = True


def test_neuron_monitor_reports_busy_fractions_and_memory_by_core():
    idle, busy = (TOOLS / "neuron-monitor.jsonl").read_text().splitlines()
    monitor = neuron.NeuronMonitor(Lines([], [idle], [idle, busy], ["torn {"]), (0, 1))
    assert monitor.read() == ()
    assert monitor.read() == (DeviceReading(busy=0.0), DeviceReading(busy=0.0))
    first, second = monitor.read()
    assert (first.busy, second.busy) == (0.9125, 0.885)
    assert first.memory_used_bytes == 1073741824 + 134217728 + 67108864 + 4294967296
    assert first.power_w is first.energy_j is None
    assert monitor.processes() == (frozenset({4242}), frozenset({4242}))
    assert monitor.read() == ()


def test_xpu_smi_is_read_by_the_names_in_its_header():
    header, *rows = (TOOLS / "xpu-smi-dump.csv").read_text().splitlines()
    monitor = xpu.XpuSmiMonitor(Lines([header], rows, ["torn"]), (1, 0))
    assert monitor.read() == ()
    other, first = monitor.read()
    assert (first.busy, first.power_w, first.clock_mhz, first.temperature_c) == pytest.approx((0.984, 512.3, 1600.0, 61.0))
    assert first.memory_used_bytes == 40 * GIB
    assert first.energy_j == pytest.approx(81_234_567.25)
    assert (other.busy, other.power_w, other.energy_j) == (None, 99.1, None)
    assert monitor.read() == ()
    assert monitor.processes() is None


def test_macmon_reports_power_without_root_in_the_names_of_its_versions():
    newer = {"gpu_freq_mhz": 1398, "gpu_active_ratio": 0.98, "gpu_power": 12.5, "temp": {"gpu_temp_avg": 71.5}}
    older = {"gpu_usage": [461, 0.25], "gpu_power": 0.5, "temp": {"gpu_temp_avg": 0.0}}
    monitor = mps.MacmonMonitor(Lines([], [json.dumps(newer)], [json.dumps(older)], ["torn {"]), (0,))
    assert monitor.read() == ()
    assert monitor.read() == (DeviceReading(0.98, 12.5, 1398, 71.5),)
    assert monitor.read() == (DeviceReading(0.25, 0.5, 461, None),)
    assert monitor.read() == ()
    assert monitor.why(0, "throttle_reasons") == "macmon does not report it"


def test_a_tool_reads_its_configuration_from_a_file_that_is_deleted_with_it():
    stream = LineStream(["sh", "-c", 'cat "$1"; echo; echo "$1"; exec sleep 60', "sh"], config={"period": "1s"})
    deadline, lines = time.monotonic() + 10, []
    while len(lines) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
        lines += stream.new_lines()
    text, file = lines
    assert json.loads(text) == {"period": "1s"}
    assert Path(file.strip()).is_file()
    stream.close()
    assert not Path(file.strip()).exists()
