"""Which devices a machine has is read from what the vendors' tools print, whatever they print."""

import json

import pytest
from harness_making import ROOT

from tunemark.harness.plan import machine
from tunemark.harness.vendors import cuda, neuron, rocm, vendor_tools, xpu
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.vocabulary import Backend

TOOLS = ROOT / "tests" / "harness" / "data" / "tools"
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


def test_nvidia_smi_tells_name_memory_driver_and_limit_and_no_serial_number():
    first, second = cuda.parse(sample("nvidia-smi.csv"))
    assert first.facts.model_dump() == {
        "name": "NVIDIA H100 80GB HBM3",
        "memory_bytes": 81559 * 2**20,
        "driver": "550.90.07",
        "power_limit_w": 700.0,
    }
    assert second.facts.power_limit_w is None


def test_nvidia_smi_tells_the_compute_capability_and_a_driver_that_does_not_know_it_the_rest(monkeypatch):
    new = sample("nvidia-smi.csv")
    assert [found.target for found in cuda.parse(new)] == ["9.0", "9.0"]
    old = "\n".join(line.rpartition(",")[0] for line in new.splitlines())
    monkeypatch.setattr(cuda, "ask", lambda _, query, *__: None if "compute_cap" in query else old)
    assert [(found.facts.driver, found.target) for found in cuda.find()] == [("550.90.07", None)] * 2


def test_a_device_chosen_by_the_start_of_its_name_keeps_its_number(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-6666")
    assert [found.index for found in cuda.parse(sample("nvidia-smi.csv"))] == [1]


def test_amd_smi_tells_the_same_of_amd_devices():
    first, second = rocm.parse_amd_smi(sample("amd-smi-static.json"))
    assert (first.index, first.facts.name, first.facts.driver) == (0, "AMD Instinct MI300X", "6.8.5")
    assert first.facts.memory_bytes == 196592 * 2**20
    assert (first.target, second.target) == ("gfx942", None)
    assert first.facts.power_limit_w == 700
    assert second.facts.power_limit_w is None


def test_amd_smi_of_rocm_7_wraps_its_list():
    assert names(rocm.parse_amd_smi({"gpu_data": sample("amd-smi-static.json")})) == [
        (0, "AMD Instinct MI300X"),
        (1, "AMD Instinct MI300X"),
    ]


def test_rocm_smi_is_read_in_either_spelling_of_its_keys():
    first, second = rocm.parse_rocm_smi(sample("rocm-smi.json"))
    assert (first.facts.memory_bytes, first.facts.power_limit_w, first.facts.driver) == (68702699520, 560.0, "6.3.6")
    assert second.facts.name == "AMD Instinct MI250X"
    assert (first.target, second.target) == ("gfx90a", None)
    assert second.facts.power_limit_w is None


def test_hip_chooses_among_what_the_runtime_leaves(monkeypatch):
    monkeypatch.setattr(rocm, "ask_json", lambda *_: sample("amd-smi-static.json"))
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")
    assert [found.index for found in rocm.find()] == [1]


def test_each_neuron_core_is_a_device_with_its_part_of_the_memory():
    cores = neuron.parse(sample("neuron-ls.json"), "Trainium1", "2.20.0")
    assert names(cores) == [(index, "Trainium1 core (1 of 2)") for index in range(4)]
    assert {core.facts.memory_bytes for core in cores} == {2**34}


def test_a_core_is_never_taken_for_its_whole_chip():
    facts = FactBase(ROOT / "data")
    core = neuron.parse(sample("neuron-ls.json"), "Trainium1", None)[0]
    assert facts.recognise_accelerator("Trainium1")
    assert facts.recognise_accelerator(core.facts.name) is None


@pytest.mark.parametrize(
    ("variable", "left"), [("0-1", [0, 1]), ("3", [3]), ("2,0", [2, 0]), ("0-1,3-9", [0, 1, 3]), ("odd", [0, 1, 2, 3])]
)
def test_neuron_cores_are_the_ones_that_the_environment_leaves(monkeypatch, variable, left):
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", variable)
    assert [core.index for core in neuron.parse(sample("neuron-ls.json"), None, None)] == left


def test_the_neuron_driver_names_chip_and_version_in_files(tmp_path, monkeypatch):
    monkeypatch.setattr(neuron, "ask_json", lambda *_: sample("neuron-ls.json"))
    (tmp_path / "device_name").write_text("Trainium1\n")
    (tmp_path / "version").write_text("2.20.0\n")
    first = neuron.find(tmp_path, tmp_path / "version")[0].facts
    assert (first.name, first.driver) == ("Trainium1 core (1 of 2)", "2.20.0")
    assert neuron.find(tmp_path / "missing", tmp_path / "missing")[0].facts.driver is None


def test_xpu_smi_lists_gpus_that_compute_and_no_virtual_ones():
    (only,) = xpu.parse_discovery(sample("xpu-smi-discovery.json"), {0: sample("xpu-smi-device.json")})
    assert only.facts.name == "Intel(R) Data Center GPU Max 1550"
    assert (only.facts.memory_bytes, only.facts.driver) == (2**37, "16929133")


def test_sycl_ls_lists_the_same_gpus_in_either_of_its_forms():
    assert names(xpu.parse_sycl_ls(sample("sycl-ls.txt"))) == [
        (0, "Intel(R) Data Center GPU Max 1100"),
        (1, "Intel(R) Arc(TM) A770 Graphics"),
    ]
    assert xpu.parse_sycl_ls(sample("sycl-ls.txt"))[0].facts.driver == "1.3.30872"


ODD = [
    "",
    "no devices were found",
    "{",
    "[]",
    "{}",
    "null",
    "3",
    '"text"',
    "[1, null]",
    '{"gpu_data": 3}',
    '{"device_list": [{}]}',
    '{"card0": 1}',
    '[{"gpu": 0}]',
    "a,b",
    "\x00\ufffd",
]


@pytest.mark.parametrize("answer", ODD)
def test_an_odd_answer_is_no_device_and_no_error(answer):
    parsed = vendor_tools.parse_json(answer)
    assert cuda.parse(answer) == []
    assert rocm.parse_amd_smi(parsed) == []
    assert rocm.parse_rocm_smi(parsed) == []
    assert neuron.parse(parsed, None, None) == []
    assert xpu.parse_discovery(parsed, {}) == []
    assert xpu.parse_sycl_ls(answer) == []


def test_json_behind_lines_of_warnings_is_found():
    assert vendor_tools.parse_json("WARNING: old driver [1]\n{not json\n[\n 1,\n 2]\n") == [1, 2]


@pytest.mark.parametrize("script", ["exit 1", "sleep 30", "printf '\\377\\376'", "kill -9 $$"])
def test_a_tool_that_fails_or_hangs_has_told_nothing(tmp_path, script, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert cuda.parse(vendor_tools.ask("nvidia-smi", timeout_s=0.5) or "") == []


def test_a_tool_that_is_not_there_has_told_nothing():
    assert vendor_tools.ask("no-such-tool-anywhere") is None


@pytest.mark.parametrize(
    ("value", "read"),
    [(750, 750.0), ("750.0", 750.0), ({"value": 7, "unit": "W"}, 7.0), ("N/A", None), (None, None), ("nan", None), ([], None)],
)
def test_numbers_are_read_as_tools_write_them(value, read):
    assert vendor_tools.number(value) == read


def test_the_first_family_that_a_tool_lists_is_chosen_and_the_cpu_is_always_there(monkeypatch):
    plain = machine.detect()
    assert plain.backend in {Backend.CPU, Backend.MPS, Backend.CUDA}
    cores = neuron.parse(sample("neuron-ls.json"), "Trainium1", None)
    tools = tuple((backend, (lambda found=cores if backend is Backend.NEURON else []: found), why) for backend, _, why in machine.TOOLS)
    monkeypatch.setattr(machine, "TOOLS", tools)
    found = machine.detect()
    assert (found.backend, len(found.devices), found.indexes) == (Backend.NEURON, 4, (0, 1, 2, 3))
    on_host = machine.detect(Backend.CPU)
    assert (on_host.backend_reason, on_host.indexes, len(on_host.devices)) == ("asked for", (), 1)
