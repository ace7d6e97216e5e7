"""The devices of a machine are read from the vendors' tools and libraries, whatever their output."""

import json
import sys
from types import SimpleNamespace

import pytest
from factories import assert_golden
from scripted_libraries import TOOLS, ScriptedNvml, scripted_amdsmi, told

from tunemark.harness.plan import resolve as machine
from tunemark.harness.vendors import cuda, mps, neuron, protocol, rocm, vendor_tools, xpu
from tunemark.harness.vendors.protocol import DeviceUnavailable
from tunemark.schema.errors import Exit, TunemarkError
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


def fake_tool(monkeypatch, folder, name, script=""):
    """Install a command with a script of the shell."""
    tool = folder / name
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def fake_nvml(monkeypatch):
    nvml = ScriptedNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


def test_devices_have_the_facts_that_tools_and_libraries_report_and_no_serial_number(monkeypatch):
    nvml = fake_nvml(monkeypatch)
    lacking = ScriptedNvml({"nvmlDeviceGetNvLinkState", "nvmlDeviceGetMigMode", "nvmlDeviceGetApplicationsClock"})
    lacking.nvmlDeviceGetP2PStatus = lambda *_: 1
    amd = rocm.AmdMonitor(scripted_amdsmi("amdsmi_get_gpu_compute_partition"), [0, 0]).described(0, (0, 1))
    found = {
        "NVML": cuda.find(),
        "NVML without NVLink, MIG and the clock of applications": cuda.NvmlMonitor(lacking, [0, 1]).devices(),
        "amd-smi": rocm.parse_amd_smi(sample("amd-smi-static.json")),
        "neuron-ls": neuron.parse(sample("neuron-ls.json"), "Trainium1", "2.20.0"),
        "xpu-smi": xpu.parse_discovery(sample("xpu-smi-discovery.json"), {0: sample("xpu-smi-device.json")}),
        "sycl-ls": xpu.parse_sycl_ls(sample("sycl-ls.txt")),
    }
    assert nvml.asked[-1] == (None, "nvmlShutdown")
    shown = [f"# {name}\n" + "\n".join(f"{device.index}: {told(device.facts)}" for device in devices) for name, devices in found.items()]
    assert_golden(TOOLS / "found.txt", "\n".join([*shown, "# AMD SMI without its partition", told(amd)]) + "\n")


def test_an_nvidia_driver_without_nvidia_ml_py_is_named_in_the_reason_for_the_cpu(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert cuda.find() == []
    fake_tool(monkeypatch, tmp_path, "nvidia-smi")
    found = machine.detect()
    assert found.backend in {Backend.CPU, Backend.MPS}
    if found.backend is Backend.CPU:
        missing = protocol.versions(cuda.ROW.library)
        assert found.backend_reason == f"no accelerator was found; NVML cannot be used here (ModuleNotFoundError); {missing}"
        assert found.backend_reason.endswith(", and 12 or newer is needed: pip install 'tunemark[nvidia]'")


def test_a_library_that_cannot_be_used_is_named_with_the_versions_found_and_needed(monkeypatch):
    def fails():
        raise RuntimeError("no driver")

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(NVMLError=RuntimeError, nvmlInit=fails))
    monkeypatch.setitem(sys.modules, "amdsmi", SimpleNamespace(amdsmi_init=fails))
    with pytest.raises(DeviceUnavailable, match=r"NVML cannot be used here \(RuntimeError\); nvidia is .*, and 580 \(CUDA 13\)"):
        cuda.NvmlMonitor.open()
    with pytest.raises(DeviceUnavailable, match=r"amdsmi cannot be used here \(RuntimeError\); amdgpu is .*, and 6.12 or newer is needed"):
        rocm.AmdMonitor.open(())


@pytest.mark.parametrize(
    ("variable", "left"), [(None, [0, 1, 2]), ("1", [1]), ("2,0", [2, 0]), ("", []), ("GPU-1234", [0, 1, 2]), ("-1", []), ("1,7", [1])]
)
def test_devices_are_the_ones_that_the_environment_leaves_visible(monkeypatch, variable, left):
    if variable is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert vendor_tools.visible_indexes(3) == left


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("7", "selects none of the 3 devices here; give 0 to 2, unset it, or set it to '' to use the CPU"),
        ("odd", "selects none of the 3 devices here"),
        ("MIG-5c89852c-d268-c3f3-1b07-005d5ae1dc3f", "names a part of a GPU (MIG)"),
        ("MIG-GPU-1234/1/0,0", "name a GPU without MIG, or use --set backend=cpu"),
    ],
)
def test_a_mask_that_leaves_no_device_is_an_error_that_names_it_and_not_a_plan_for_the_cpu(monkeypatch, value, message):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    with pytest.raises(TunemarkError) as raised:
        vendor_tools.visible_indexes(3)
    assert (raised.value.field, raised.value.value) == ("CUDA_VISIBLE_DEVICES", value)
    assert message in raised.value.fix
    assert raised.value.exit_code is Exit.UNSUPPORTED
    # Without a device there is nothing to choose.
    assert vendor_tools.visible_indexes(0) == []


@pytest.mark.parametrize(
    ("hip", "cuda_mask", "left"), [(None, "1", [1]), ("0", "1", [0]), (None, None, [0, 1]), ("1,0", None, [1, 0]), ("", "1", [])]
)
def test_hip_reads_the_variable_of_cuda_where_its_own_is_not_set(monkeypatch, hip, cuda_mask, left):
    monkeypatch.setattr(vendor_tools, "ask_json", lambda *_: sample("amd-smi-static.json"))
    for variable, value in (("HIP_VISIBLE_DEVICES", hip), ("CUDA_VISIBLE_DEVICES", cuda_mask)):
        if value is not None:
            monkeypatch.setenv(variable, value)
    assert [found.index for found in rocm.find()] == left


def test_a_wrong_mask_stops_a_plan_for_the_gpu_and_no_other(monkeypatch, tmp_path):
    fake_nvml(monkeypatch)
    fake_tool(monkeypatch, tmp_path, "nvidia-smi")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-5c89852c")
    with pytest.raises(TunemarkError, match="CUDA_VISIBLE_DEVICES: 'MIG-5c89852c'"):
        machine.detect()
    assert machine.detect(Backend.CPU).backend is Backend.CPU
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    hidden = machine.detect()
    if hidden.backend is Backend.CPU:
        assert hidden.backend_reason.endswith("; CUDA_VISIBLE_DEVICES='' hides all devices")


@pytest.mark.parametrize(("variable", "left"), [("0-1", [0, 1]), ("3", [3]), ("2,0", [2, 0]), ("0-1,3-9", [0, 1, 3])])
def test_neuron_cores_are_the_ones_that_the_environment_leaves(monkeypatch, variable, left):
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", variable)
    assert [core.index for core in neuron.parse(sample("neuron-ls.json"), None, None)] == left


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
    fake_tool(monkeypatch, tmp_path, "amd-smi", script)
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
    device = mps.Mps.opened(SimpleNamespace(mps=api), 0)
    device.begin()
    assert calls.count("empty_cache") == 1 < calls.index("empty_cache")
    assert device.memory()["reserved"]["peak_bytes"] == 6
