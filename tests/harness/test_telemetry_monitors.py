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

from tunemark.harness.run.telemetry import open_sampler
from tunemark.harness.vendors import cuda, neuron, rocm, xpu
from tunemark.harness.vendors.protocol import DeviceReading
from tunemark.harness.vendors.vendor_tools import LineStream
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
