"""Devices are monitored from outside the worker in our units; a record holds the readings or the reason without them."""

import ast
import inspect
import json
import os
import subprocess
import sys
import time

import psutil
import pytest
from factories import assert_golden
from harness_making import FakeMonitor
from pydantic import ValidationError
from scripted_libraries import TOOLS, ScriptedNvml, scripted_amdsmi, told

from tunemark.harness.run.telemetry import Moment, Sample, Sampler, Telemetry, _trains, device_uses, energy, open_sampler, utilisation
from tunemark.harness.vendors import cuda, mps, neuron, rocm, xpu
from tunemark.harness.vendors.protocol import DeviceReading, all_vendors
from tunemark.schema.formats import GIB
from tunemark.schema.records.trace import DeviceUse, StepTrace
from tunemark.schema.statistics.steady_state import SteadyWindow

IDLE = (DeviceReading(power_w=100.0, memory_used_bytes=GIB),)


def make_series(readings, *, interval_s=0.1, before=IDLE, **changes):
    moments = [Moment(interval_s * place, (reading,)) for place, reading in enumerate(readings)]
    plain = {"indexes": (0,), "reason": "no power is told", "memory_method": "scripted", "interval_s": interval_s}
    return Telemetry(**{**plain, **changes}, before=[Moment(0.0, (reading,)) for reading in before], during=moments)


def test_a_throttle_reason_has_its_share_of_the_time_and_not_of_the_samples():
    slow, thermal = (
        DeviceReading(throttle_reasons=frozenset({"sw_power_cap"})),
        DeviceReading(throttle_reasons=frozenset({"hw_thermal_slowdown"})),
    )
    # Samples stand for the time since the one before: 0.1 s, 0.7 s, 0.1 s and 0.1 s.
    free = DeviceReading(throttle_reasons=frozenset())
    moments = [Moment(at_s, (reading,)) for at_s, reading in ((1.1, slow), (1.8, free), (1.9, slow), (2.0, thermal))]
    (use,) = device_uses(Telemetry(indexes=(0,), during=moments), 1.0, 2.0)
    assert use.throttle_shares == pytest.approx({"hw_thermal_slowdown": 0.1, "sw_power_cap": 0.2})


def test_a_device_that_was_never_asked_is_unknown_with_a_reason_and_one_that_answered_is_not():
    silent, asked = DeviceReading(), DeviceReading(busy=1.0, power_w=9.0, throttle_reasons=frozenset(), errors=frozenset({"Xid 79"}))
    moments = [Moment(at_s, (silent, asked)) for at_s in (1.1, 2.0)]
    series = Telemetry(indexes=(0, 1), during=moments, foreign={1: 0}, why=lambda place, figure: f"{place} has no {figure}")
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
    series = Telemetry(indexes=(0, 1), interval_s=0.1, during=both)
    found = energy(series, 0.0, 1.0)
    assert found.source == "integrated"
    assert found.joules == pytest.approx(101.0)


def test_other_processes_are_counted_before_and_during_the_run():
    def foreign(before, during):
        monitor = FakeMonitor([(DeviceReading(),)], before)
        with Sampler(monitor, Telemetry(indexes=(0,), interval_s=0.01)) as sampler:
            monitor._pids = during
            sampler.follow(os.getpid(), time.monotonic())
            time.sleep(0.05)
        return sampler.telemetry.foreign

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
        assert sampler.telemetry.during == []
        assert sampler.telemetry.reason


def test_a_run_holds_what_its_devices_were_seen_to_do_and_ends_once_its_throughput_is_sure(facts, tmp_path, monkeypatch):
    from harness_making import make_machine, only_submission

    from tunemark.harness.plan.resolve import Options, resolve
    from tunemark.harness.run.launch import SteadinessJudge, run_once
    from tunemark.harness.vendors import cpu

    counted = [(DeviceReading(1.0, 400.0, 1700.0, 60.0, 3 * GIB, 40.0 * turn, frozenset({"hw_slowdown"})),) for turn in range(20_000)]
    before = [(DeviceReading(0.0, 90.0, 300.0, 40.0, 2 * GIB, 0.0),)] * 5
    monitor = FakeMonitor([*before, *counted], [frozenset({999_999_999})])
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
    # 40 J a sample, at most ten samples a second.
    assert 40 < measured.joules / measured.window_s < 500
    assert {"busy_device", "throttled"} <= {warned.kind.value for warned in seen.warnings}


def test_what_is_sampled_after_the_last_step_of_a_hung_run_does_not_count_as_use():
    counts = dict.fromkeys(("slot_tokens", "real_tokens", "supervised_tokens", "documents", "rows"), (1,) * 30)
    trace = StepTrace(started_at_s=5.0, completed_at_s=tuple(6.0 + step for step in range(30)), loss=(1.0,) * 30, **counts)
    moments = [(at, 2.0) for at in range(6, 36)] + [(at, 0.0) for at in range(36, 600)]
    telemetry = Telemetry(samples=[Sample(float(at), 1, None, busy, 0.0) for at, busy in moments])
    seen = utilisation(telemetry, trace, SteadyWindow(10, 30, stable=True, verdict=""))
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


# Neuron and Intel: a tool prints lines


def printing(monitor, *portions):
    """Return a monitor whose tool has printed some lines before each reading."""
    waiting = list(portions)
    monitor.new_lines = lambda: waiting.pop(0) if waiting else []
    return monitor


def monitors():
    """Yield a name, a monitor, and what happens before each of its readings."""
    nothing = dict
    yield "NVML", cuda.NvmlMonitor(ScriptedNvml(), [5]), [nothing]
    nvml = ScriptedNvml()
    yield "NVML: two errors, once", cuda.NvmlMonitor(nvml, [5]), [nothing, lambda: nvml.xids.extend([79, 31]), nothing]
    silent = ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetCurrentClocksEventReasons")
    yield "NVML: no power, no reasons", cuda.NvmlMonitor(ScriptedNvml(silent), [5]), [nothing]
    yield "AMD SMI", rocm.AmdMonitor(scripted_amdsmi(), [0]), [nothing]
    metrics = {"indep_throttle_status": "N/A", "ppt_residency_acc": 10, "socket_thm_residency_acc": 4, "hbm_thm_residency_acc": "N/A"}
    counting = rocm.AmdMonitor(scripted_amdsmi(amdsmi_get_gpu_metrics_info=metrics), [0])
    yield "AMD SMI: since MI300 a counter grows while throttled", counting, [nothing, nothing, lambda: metrics.update(ppt_residency_acc=25)]
    for bits in (0, 5):
        older = rocm.AmdMonitor(scripted_amdsmi(amdsmi_get_gpu_metrics_info={"indep_throttle_status": bits}), [0])
        yield f"AMD SMI: older ones have bits, {bits}", older, [nothing]
    names = [f"amdsmi_get_gpu_{name}" for name in ("activity", "memory_usage", "metrics_info", "process_list")]
    power = {"average_socket_power": 300, "current_socket_power": "N/A"}
    little = scripted_amdsmi(*names, "amdsmi_get_energy_count", amdsmi_get_power_info=power)
    yield "AMD SMI: little", rocm.AmdMonitor(little, [0]), [nothing]
    idle, busy = (TOOLS / "neuron-monitor.jsonl").read_text().splitlines()
    yield "neuron-monitor", printing(neuron.NeuronMonitor((0, 1)), [], [idle], [idle, busy], ["torn {"]), [nothing] * 4
    header, *rows = (TOOLS / "xpu-smi-dump.csv").read_text().splitlines()
    yield "xpu-smi, by the names in its header", printing(xpu.XpuSmiMonitor((1, 0)), [header], rows, ["torn"]), [nothing] * 3
    newer = {"gpu_freq_mhz": 1398, "gpu_active_ratio": 0.98, "gpu_power": 12.5, "temp": {"gpu_temp_avg": 71.5}}
    older = {"gpu_usage": [461, 0.25], "gpu_power": 0.5, "temp": {"gpu_temp_avg": 0.0}}
    lines = ([], [json.dumps(newer)], [json.dumps(older)], ["torn {"])
    yield "macmon, in the names of its versions", printing(mps.MacmonMonitor((0,)), *lines), [nothing] * 4


def test_readings_are_in_our_units_and_what_a_tool_does_not_report_has_its_words():
    shown = []
    for name, monitor, events in monitors():
        shown.append(f"# {name}")
        for happens in events:
            happens()
            shown.append("; ".join(map(told, monitor.read())) or "nothing yet")
        numbers = monitor.processes()
        shown += [f"processes: {[sorted(each) for each in numbers] if numbers else None}"]
        shown += [f"without {figure}: {monitor.why(0, figure)}" for figure in ("power_w", "throttle_reasons")]
    assert_golden(TOOLS / "readings.txt", "\n".join(shown) + "\n")


def test_a_monitor_unloads_its_library():
    monitor = cuda.NvmlMonitor(nvml := ScriptedNvml(), [5])
    monitor.close()
    assert nvml.asked[-1] == (None, "nvmlShutdown")
