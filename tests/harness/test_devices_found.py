"""The devices of a machine are read from the vendors' tools and libraries, whatever their output."""

import json
import sys
from types import SimpleNamespace

import pytest
from scripted_libraries import TOOLS, ScriptedNvml

from tunemark.harness.plan import machine
from tunemark.harness.vendors import cuda, mps, neuron, rocm, vendor_tools, xpu
from tunemark.schema.formats import GIB
from tunemark.schema.vocabulary import Backend

VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NEURON_RT_VISIBLE_CORES", "ZE_AFFINITY_MASK")


@pytest.fixture(autouse=True)
def _all_are_visible(monkeypatch):
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def sample(name):
    text = (TOOLS / name).read_text()
    return json.loads(text) if name.endswith(".json") else text


def names(found):
    return [(device.index, device.facts.name) for device in found]


def fake_nvml(monkeypatch):
    nvml = ScriptedNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


def test_nvml_reports_name_memory_driver_limit_and_compute_capability_and_no_serial_number(monkeypatch):
    nvml = fake_nvml(monkeypatch)
    first, second = cuda.find()
    assert first.facts.model_dump() == {
        "name": "NVIDIA H100 80GB HBM3",
        "memory_bytes": 81559 * 2**20,
        "driver": "550.90.07",
        "power_limit_w": 700.0,
        "target": "9.0",
        "max_clock_mhz": 1980.0,
        "max_memory_clock_mhz": 1980.0,
        "application_clock_mhz": 1755.0,
        "ecc": True,
        "partition": "none",
        "pcie_generation": 5,
        "pcie_width": 16,
        "numa_node": 1,
        "nvlinks": 18,
        "links": ("NVLink",),
    }
    assert [(found.index, found.facts.target) for found in (first, second)] == [(0, "9.0"), (1, "9.0")]
    assert nvml.asked[-1] == (None, "nvmlShutdown")


def test_an_nvidia_driver_without_nvidia_ml_py_is_named_in_the_reason_for_the_cpu(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert cuda.find() == []
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = machine.detect()
    assert found.backend in {Backend.CPU, Backend.MPS}
    if found.backend is Backend.CPU:
        assert found.backend_reason == "no accelerator was found; nvidia-ml-py is not installed: pip install 'tunemark[nvidia]'"


def test_amd_smi_reports_the_same_facts_of_amd_devices():
    first, second = rocm.parse_amd_smi(sample("amd-smi-static.json"))
    assert (first.index, first.facts.name, first.facts.driver) == (0, "AMD Instinct MI300X", "6.8.5")
    assert first.facts.memory_bytes == 196592 * 2**20
    assert (first.facts.target, second.facts.target) == ("gfx942", None)
    assert first.facts.power_limit_w == 700
    assert second.facts.power_limit_w is None


@pytest.mark.parametrize(
    ("hip", "cuda_mask", "left"), [(None, "1", [1]), ("0", "1", [0]), (None, None, [0, 1]), ("1,0", None, [1, 0]), ("", "1", [])]
)
def test_hip_reads_the_variable_of_cuda_where_its_own_is_not_set(monkeypatch, hip, cuda_mask, left):
    monkeypatch.setattr(vendor_tools, "ask_json", lambda *_: sample("amd-smi-static.json"))
    for variable, value in (("HIP_VISIBLE_DEVICES", hip), ("CUDA_VISIBLE_DEVICES", cuda_mask)):
        if value is not None:
            monkeypatch.setenv(variable, value)
    assert [found.index for found in rocm.find()] == left


def test_a_wrong_mask_stops_a_plan_for_the_gpu_and_no_other(monkeypatch):
    fake_nvml(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-5c89852c")
    with pytest.raises(vendor_tools.UnusableMask, match="CUDA_VISIBLE_DEVICES: 'MIG-5c89852c'"):
        machine.detect()
    assert machine.detect(Backend.CPU).backend is Backend.CPU
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    hidden = machine.detect()
    if hidden.backend is Backend.CPU:
        assert hidden.backend_reason.endswith("; CUDA_VISIBLE_DEVICES='' hides all devices")


def test_each_neuron_core_is_a_device_with_its_part_of_the_memory():
    cores = neuron.parse(sample("neuron-ls.json"), "Trainium1", "2.20.0")
    assert names(cores) == [(index, "Trainium1 core (1 of 2)") for index in range(4)]
    assert {core.facts.memory_bytes for core in cores} == {2**34}


@pytest.mark.parametrize(("variable", "left"), [("0-1", [0, 1]), ("3", [3]), ("2,0", [2, 0]), ("0-1,3-9", [0, 1, 3])])
def test_neuron_cores_are_the_ones_that_the_environment_leaves(monkeypatch, variable, left):
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", variable)
    assert [core.index for core in neuron.parse(sample("neuron-ls.json"), None, None)] == left


def test_xpu_smi_lists_gpus_that_compute_and_no_virtual_ones():
    (only,) = xpu.parse_discovery(sample("xpu-smi-discovery.json"), {0: sample("xpu-smi-device.json")})
    assert only.facts.name == "Intel(R) Data Center GPU Max 1550"
    assert (only.facts.memory_bytes, only.facts.driver) == (2**37, "16929133")


def test_sycl_ls_lists_the_same_gpus_in_both_of_its_forms():
    assert names(xpu.parse_sycl_ls(sample("sycl-ls.txt"))) == [
        (0, "Intel(R) Data Center GPU Max 1100"),
        (1, "Intel(R) Arc(TM) A770 Graphics"),
    ]
    assert xpu.parse_sycl_ls(sample("sycl-ls.txt"))[0].facts.driver == "1.3.30872"


ODD = ["", "{", "[]", "null", "3", '"text"', "[1, null]", '{"gpu_data": 3}', '{"device_list": [{}]}', '[{"gpu": 0}]', "a,b", "\x00\ufffd"]


@pytest.mark.parametrize("answer", ODD)
def test_an_odd_answer_is_no_device_and_no_error(answer):
    parsed = vendor_tools.parse_json(answer)
    assert rocm.parse_amd_smi(parsed) == []
    assert neuron.parse(parsed, None, None) == []
    assert xpu.parse_discovery(parsed, {}) == []
    assert xpu.parse_sycl_ls(answer) == []


@pytest.mark.parametrize("script", ["exit 1", "sleep 30", "printf '\\377\\376'", "kill -9 $$"])
def test_a_tool_that_fails_or_hangs_gives_no_answer(tmp_path, script, monkeypatch):
    tool = tmp_path / "amd-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(vendor_tools, "QUERY_TIMEOUT_S", 0.5)
    assert rocm.parse_amd_smi(vendor_tools.ask_json("amd-smi")) == []


@pytest.mark.parametrize(
    ("variables", "podman", "docker", "found"),
    [
        ({}, None, False, None),
        ({}, None, True, "docker"),
        ({}, "", False, "podman"),
        ({}, 'engine="podman-5.2"\nimage="registry.acme.example/team/trainer:3"\n', False, "trainer:3"),
        ({"TUNEMARK_IMAGE": "acme/tunemark:cuda@sha256:0a"}, None, True, "tunemark:cuda"),
        ({"NVIDIA_PYTORCH_VERSION": "26.01"}, None, True, "nvidia pytorch:26.01"),
    ],
)
def test_a_container_is_named_by_its_image_without_the_registry(monkeypatch, tmp_path, variables, podman, docker, found):
    files = tmp_path / ".containerenv", tmp_path / ".dockerenv"
    monkeypatch.setattr(machine, "CONTAINER_FILES", files)
    for name in ("TUNEMARK_IMAGE", "NVIDIA_PYTORCH_VERSION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if podman is not None:
        files[0].write_text(podman)
    if docker:
        files[1].touch()
    assert machine.container() == found


@pytest.mark.parametrize(("reported", "usable"), [("12000000000\n", 12_000_000_000), ("", 16 * GIB * 2 // 3), (None, 16 * GIB * 2 // 3)])
def test_a_mac_may_use_what_torch_reports_or_else_two_thirds_of_its_memory(monkeypatch, reported, usable):
    monkeypatch.setattr(vendor_tools, "ask", lambda *_: reported)
    assert mps.usable_bytes(16 * GIB, here=True) == usable
    assert mps.usable_bytes(16 * GIB, here=False) == 16 * GIB * 2 // 3
    assert mps.usable_bytes(64 * GIB, here=False) == 48 * GIB


def test_the_heap_of_a_mac_begins_without_what_the_gates_left_in_its_cache():
    calls = []
    api = SimpleNamespace(**{name: lambda name=name: calls.append(name) for name in ("synchronize", "empty_cache")})
    api.driver_allocated_memory = lambda: 7 - calls.count("empty_cache")
    device = mps.Mps(api)
    device.begin()
    assert calls == ["synchronize", "empty_cache"]
    assert device.memory().reserved.peak_bytes == 6
