"""Each vendor's values become readings in our units; a missing value is null, and a missing tool is a reason."""

import ast
import inspect
import json
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from harness_making import ROOT, ScriptedNvml

from tunemark.harness.run.telemetry import DeviceSeries, Moment, energy, open_sampler
from tunemark.harness.vendors import cuda, neuron, rocm, xpu
from tunemark.harness.vendors.protocol import DeviceReading
from tunemark.harness.vendors.vendor_tools import LineStream, MonitorUnavailable
from tunemark.schema.formats import GIB
from tunemark.schema.vocabulary import Backend

TOOLS = ROOT / "tests" / "harness" / "data" / "tools"

# NVIDIA


def test_each_name_of_nvml_that_is_used_exists_in_its_package():
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed; install tunemark[nvidia]")
    used = {
        node.attr
        for node in ast.walk(ast.parse(inspect.getsource(cuda)))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in {"nvml", "pynvml", "self._nvml"}
    }
    assert len(used) >= 14
    assert not [name for name in (*used, *cuda.THROTTLE_REASONS) if not hasattr(pynvml, name)]
    assert pynvml.nvmlClocksEventReasonGpuIdle not in {getattr(pynvml, name) for name in cuda.THROTTLE_REASONS}


def test_nvmls_units_become_ours_and_idle_is_no_reason():
    (reading,) = cuda.NvmlMonitor(ScriptedNvml(), [5]).read()
    assert reading == DeviceReading(0.97, 650.123, 1755, 63, 5 * GIB, 7000.5, frozenset({"sw_power_cap"}))


def test_what_a_device_does_not_support_is_null_and_asked_once():
    nvml = ScriptedNvml(unsupported={"nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption"})
    monitor = cuda.NvmlMonitor(nvml, [5])
    readings = [monitor.read()[0] for _ in range(3)]
    assert {(reading.power_w, reading.energy_j, reading.busy) for reading in readings} == {(None, None, 0.97)}
    assert nvml.asked.count(("handle 5", "nvmlDeviceGetPowerUsage")) == 1
    assert monitor.processes() == (frozenset({42}),)
    monitor.close()
    assert nvml.asked[-1] == "shutdown"


def test_without_a_driver_there_is_a_reason_and_no_error():
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed; install tunemark[nvidia]")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        with pytest.raises(MonitorUnavailable, match="NVML reports"):
            cuda.NvmlMonitor.open([0])
    else:
        pytest.skip("this machine has an NVIDIA driver, and the test is about its absence")


def test_without_its_package_the_reason_is_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "tunemark[nvidia]" in open_sampler(Backend.CUDA, (0,)).series.reason


# AMD


def scripted_amdsmi(**answers):
    plain = {
        "amdsmi_get_processor_handles": ["first"],
        "amdsmi_get_gpu_activity": {"gfx_activity": 88, "umc_activity": 30, "mm_activity": "N/A"},
        "amdsmi_get_power_info": {"current_socket_power": 612, "average_socket_power": "N/A", "power_limit": 750},
        "amdsmi_get_clock_info": {"clk": 2100, "min_clk": 132, "max_clk": 2100},
        "amdsmi_get_gpu_memory_usage": 6 * GIB,
        "amdsmi_get_temp_metric": 71,
        "amdsmi_get_energy_count": {"energy_accumulator": 1_000_000, "counter_resolution": 15.3, "timestamp": 1},
        "amdsmi_get_gpu_metrics_info": {"indep_throttle_status": 2**64 - 1},
        "amdsmi_get_gpu_process_list": [{"name": "N/A", "pid": 42}],
        "amdsmi_shut_down": None,
    }
    module = ModuleType("amdsmi")
    module.AmdSmiException = type("AmdSmiException", (Exception,), {})

    def answering(answer):
        def ask(*_):
            if isinstance(answer, Exception):
                raise answer
            return answer

        return ask

    for name, answer in {**plain, **answers}.items():
        setattr(module, name, answering(module.AmdSmiException() if answer is KeyError else answer))
    module.AmdSmiClkType = SimpleNamespace(GFX=0)
    module.AmdSmiMemoryType = SimpleNamespace(VRAM=0)
    module.AmdSmiTemperatureType = SimpleNamespace(HOTSPOT=1)
    module.AmdSmiTemperatureMetric = SimpleNamespace(CURRENT=0)
    return module


def test_amdsmis_units_become_ours():
    monitor = rocm.AmdMonitor(scripted_amdsmi(), [0])
    (reading,) = monitor.read()
    assert (reading.busy, reading.power_w, reading.clock_mhz, reading.temperature_c) == (0.88, 612.0, 2100.0, 71.0)
    assert reading.energy_j == pytest.approx(15.3)
    assert reading.throttle_reasons == frozenset()
    assert monitor.processes() == (frozenset({42}),)


def test_an_amd_device_that_reports_little_has_nulls():
    names = ("activity", "memory_usage", "metrics_info", "process_list")
    module = scripted_amdsmi(
        **{f"amdsmi_get_gpu_{name}": KeyError for name in names},
        amdsmi_get_power_info={"average_socket_power": 300, "current_socket_power": "N/A"},
        amdsmi_get_energy_count=KeyError,
    )
    monitor = rocm.AmdMonitor(module, [0])
    (reading,) = monitor.read()
    assert (reading.busy, reading.memory_used_bytes, reading.energy_j, reading.power_w) == (None, None, None, 300.0)
    assert monitor.processes() is None


def test_a_lowered_clock_of_an_amd_device_has_one_word():
    (reading,) = rocm.AmdMonitor(scripted_amdsmi(amdsmi_get_gpu_metrics_info={"indep_throttle_status": 4}), [0]).read()
    assert reading.throttle_reasons == frozenset({"throttled"})


def test_amdsmi_without_rocm_fails_to_import_in_its_own_way_and_is_a_reason(monkeypatch, tmp_path):
    (tmp_path / "amdsmi.py").write_text("import os\nos.environ['NO_SUCH_VARIABLE_OF_ROCM']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    with pytest.raises(MonitorUnavailable, match="KeyError"):
        rocm.AmdMonitor.open([0])


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


def test_neuron_monitor_is_configured_by_a_file_that_is_removed_afterwards(tmp_path, monkeypatch):
    line = (TOOLS / "neuron-monitor.jsonl").read_text().splitlines()[1]
    tool = tmp_path / "neuron-monitor"
    tool.write_text(f"#!/bin/sh\ngrep -q neuroncore_counters \"$2\" || exit 1\ncat <<'E'\n{line}\nE\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monitor = neuron.NeuronMonitor.open((0,))
    until_s = time.monotonic() + 10
    while not (found := monitor.read()) and time.monotonic() < until_s:
        time.sleep(0.02)
    monitor.close()
    assert found[0].busy == 0.9125
    assert [path.name for path in tmp_path.iterdir()] == ["neuron-monitor"]


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


def test_energy_of_an_intel_gpu_is_the_difference_of_its_counter():
    header = "Timestamp, DeviceId, GPU Power (W), GPU Energy Consumed (J)"
    seconds = [[f"10:00:0{second}.000, 0, 500.0, {1e6 + 450 * second}"] for second in range(4)]
    monitor = xpu.XpuSmiMonitor(Lines([header], *seconds), (0,))
    assert "8" in xpu.METRICS.split(",")
    monitor.read()
    during = [Moment(float(second), monitor.read()) for second in range(4)]
    found = energy(DeviceSeries(indexes=(0,), during=during), 0.0, 3.0)
    assert (found.source, found.joules, found.window_s) == ("counter", pytest.approx(1350), 3.0)


def test_a_tool_that_keeps_printing_is_stopped():
    stream = LineStream(["sh", "-c", "while true; do echo line; sleep 0.01; done"])
    time.sleep(0.2)
    assert "line\n" in stream.new_lines()
    stream.close()
    assert stream._process.returncode is not None
    assert not stream._thread.is_alive()


def test_a_tool_reads_its_configuration_from_a_file_that_is_deleted_with_it():
    stream = LineStream(["sh", "-c", 'cat "$1"; echo; echo "$1"; sleep 60', "sh"], config={"period": "1s"})
    deadline, lines = time.monotonic() + 10, []
    while len(lines) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
        lines += stream.new_lines()
    text, file = lines
    assert json.loads(text) == {"period": "1s"}
    assert Path(file.strip()).is_file()
    stream.close()
    assert not Path(file.strip()).exists()


def test_a_tool_that_is_not_installed_is_a_reason():
    with pytest.raises(MonitorUnavailable, match="is not installed"):
        LineStream(["no-such-tool-anywhere"])
