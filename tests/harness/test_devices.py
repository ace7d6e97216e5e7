"""Each device family implements the protocol and calls only functions that its library has."""

import ast
import inspect
import sys
from importlib import import_module
from types import ModuleType, SimpleNamespace

import pytest
import torch

from tunemark.harness.plan.machine import detect
from tunemark.harness.run.record import environment
from tunemark.harness.vendors import cuda, protocol, rocm, xpu
from tunemark.harness.vendors.neuron import Neuron
from tunemark.harness.vendors.protocol import Device, DeviceUnavailable, EventDevice, vendor_of
from tunemark.harness.worker.levers import compiled_graphs
from tunemark.schema.features import Feature
from tunemark.schema.vocabulary import Backend

MODULES = {backend: import_module(f"tunemark.harness.vendors.{backend.value}") for backend in Backend}


def called(module, base):
    """Return the dotted names that a module's source reads below a name, such as everything below `torch`."""
    found = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            if text.startswith(f"{base}."):
                found.add(text.removeprefix(f"{base}."))
    return found


def has(thing, dotted):
    for name in dotted.split("."):
        if not hasattr(thing, name):
            return False
        thing = getattr(thing, name)
    return True


@pytest.mark.parametrize("backend", Backend)
def test_each_family_says_what_it_cannot_do_and_why(backend):
    for feature, reason in MODULES[backend].VENDOR.cannot.items():
        assert isinstance(feature, Feature)
        assert len(reason) > 10


@pytest.mark.parametrize("backend", Backend)
def test_each_family_has_all_that_the_protocol_asks(backend):
    family = MODULES[backend].VENDOR.device
    assert issubclass(family, Device)
    assert MODULES[backend].VENDOR.backend is backend
    for name in (name for name in vars(Device) if not name.startswith("_")):
        assert (
            inspect.signature(getattr(family, name)) == inspect.signature(getattr(Device, name))
            if callable(getattr(Device, name))
            else True
        )
    assert family.collectives


@pytest.mark.parametrize("backend", Backend)
def test_each_function_of_torch_that_a_family_calls_exists(backend):
    for name in called(MODULES[backend], "torch"):
        assert has(torch, name), f"torch.{name}"


@pytest.mark.parametrize("api", [torch.cuda, torch.xpu])
def test_each_function_of_a_gpus_module_that_is_called_exists(api):
    names = called(protocol, "self._api")
    assert {"synchronize", "Event", "max_memory_allocated"} <= names
    for name in names:
        assert has(api, name), f"{api.__name__}.{name}"
    for name in ("record", "synchronize", "query", "elapsed_time"):
        assert hasattr(api.Event, name)


@pytest.mark.parametrize("backend", [Backend.CUDA, Backend.ROCM, Backend.XPU, Backend.NEURON, Backend.MPS])
def test_a_device_that_torch_cannot_use_is_unavailable_with_a_word_on_what_to_do(backend):
    usable = {
        Backend.CUDA: torch.cuda.is_available(),
        Backend.XPU: torch.xpu.is_available(),
        Backend.MPS: torch.backends.mps.is_available(),
    }
    if usable.get(backend):
        pytest.skip(f"torch can use {backend.value} here, and the test is about a device that it cannot use")
    with pytest.raises(DeviceUnavailable, match=r"install|open"):
        vendor_of(backend).device.open(None)


class ScriptedApi:
    """A module like torch.cuda whose events are reached at scripted milliseconds."""

    def __init__(self, times_ms):
        self.times_ms, self.reached, self.synchronised = iter(times_ms), 0, 0
        self.made, self.memory_calls = [], []
        api = self

        class Event:
            def __init__(self, *, enable_timing):
                assert enable_timing
                self.number = len(api.made)
                api.made.append(self)

            def record(self):
                self.at_ms = next(api.times_ms)

            def synchronize(self):
                api.reached = max(api.reached, self.number + 1)

            def query(self):
                return self.number < api.reached

            def elapsed_time(self, later):
                return later.at_ms - self.at_ms

        self.Event = Event

    def synchronize(self):
        self.synchronised += 1
        self.reached = len(self.made)

    def empty_cache(self):
        self.memory_calls.append("empty_cache")

    def reset_peak_memory_stats(self):
        self.memory_calls.append("reset_peak_memory_stats")


def test_peaks_of_training_begin_without_the_blocks_that_only_loading_used():
    api = ScriptedApi([0.0])
    EventDevice(torch, api).begin()
    assert api.memory_calls == ["empty_cache", "reset_peak_memory_stats"]


def test_the_state_of_the_allocator_is_read_from_its_counters():
    api = SimpleNamespace(memory_stats=lambda: {"reserved_bytes.all.current": 7, "num_alloc_retries": 2})
    assert EventDevice(torch, api).allocator() == (7, 2)
    # Torch counts no retries on Intel GPUs, and nothing before the first allocation.
    assert EventDevice(torch, SimpleNamespace(memory_stats=dict)).allocator() == (0, 0)


def test_the_versions_of_the_vendors_libraries_are_those_that_torch_was_built_with():
    nccl = SimpleNamespace(version=lambda: (2, 27, 5))
    built = SimpleNamespace(
        version=SimpleNamespace(cuda="13.0", hip="6.4.43484-123eb5128", xpu="20250302"),
        backends=SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 91002)),
        distributed=SimpleNamespace(is_nccl_available=lambda: True, is_xccl_available=lambda: True),
        cuda=SimpleNamespace(nccl=nccl),
    )
    assert cuda.Cuda(built, nccl).stack() == {"cuda": "13.0", "cudnn": "9.10.2", "nccl": "2.27.5"}
    assert cuda.cudnn_version(8902) == "8.9.2"
    assert rocm.Rocm(built, nccl).stack() == {"hip": "6.4.43484-123eb5128"}
    assert xpu.Xpu(built, nccl).stack() == {"dpcpp": "20250302"}
    # The build for CPUs answers the same questions.
    assert cuda.Cuda(torch, nccl).stack() == {}
    assert xpu.Xpu(torch, nccl).stack() == {}


def test_the_record_has_the_versions_that_the_worker_found():
    machine = detect()
    assert environment(machine, 1).runtime == {}
    assert environment(machine, 1, {"cuda": "13.0"}).runtime == {"cuda": "13.0"}


def test_event_times_are_on_the_hosts_clock_and_waited_for_only_when_asked():
    api = ScriptedApi([0.0, 100.0, 350.0])
    device = EventDevice(torch, api)
    device.begin()
    origin_s = device.now()
    first, second = device.stamp(), device.stamp()
    assert device.reached(first) is None
    api.reached = 2
    assert device.reached(first) == pytest.approx(origin_s + 0.1, abs=0.05)
    assert device.reached(second) is None
    device.synchronise()
    assert device.reached(second) - device.reached(second) == 0
    assert api.synchronised == 2


class ScriptedXla(ModuleType):
    """A module like torch_xla.core.xla_model that counts."""

    def __init__(self):
        super().__init__("torch_xla.core.xla_model")
        self.steps, self.waits = 0, 0

    def xla_device(self):
        return torch.device("xla:0")

    def mark_step(self):
        self.steps += 1

    def wait_device_ops(self):
        self.waits += 1


def test_a_neuron_mark_is_read_one_step_late_and_only_the_ends_are_waited_for():
    xm = ScriptedXla()
    device = Neuron(xm)
    device.begin()
    copies, marks = [], []
    for step in range(3):
        copies.append(device.host_copy(torch.tensor([float(step), 0.0])))
        marks.append(device.stamp())
        assert device.reached(marks[-1]) is None
    assert device.reached(marks[1]) is not None
    assert xm.waits == 1
    device.synchronise()
    assert device.reached(marks[2]) is not None
    assert [float(copy[0]) for copy in copies] == [0.0, 1.0, 2.0]
    assert xm.waits == 2


def test_graphs_that_xla_compiled_are_counted(monkeypatch):
    metrics = ModuleType("torch_xla.debug.metrics")
    metrics.counter_value = {"UncachedCompile": 3}.get
    for name, module in (
        ("torch_xla", ModuleType("torch_xla")),
        ("torch_xla.debug", ModuleType("torch_xla.debug")),
        ("torch_xla.debug.metrics", metrics),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["torch_xla"].debug, sys.modules["torch_xla.debug"].metrics = sys.modules["torch_xla.debug"], metrics
    assert compiled_graphs() == 3


def test_an_intel_gpu_uses_the_collectives_that_torch_has(monkeypatch):
    from tunemark.harness.vendors.xpu import Xpu

    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(torch.xpu, "set_device", lambda _: None)
    monkeypatch.setattr(torch.distributed, "is_xccl_available", lambda: False)
    assert Xpu.open(None, 1).collectives == "ccl"
    monkeypatch.setattr(torch.distributed, "is_xccl_available", lambda: True)
    device = Xpu.open(None, 1)
    assert (device.collectives, device.torch_name, device.name()) == ("xccl", "xpu:1", None)


def test_an_amd_gpu_needs_a_torch_that_is_built_for_it(monkeypatch):
    from tunemark.harness.vendors.rocm import Rocm

    monkeypatch.setattr(torch, "version", SimpleNamespace(hip=None))
    with pytest.raises(DeviceUnavailable, match="not built for ROCm"):
        Rocm.open(None)
    monkeypatch.setattr(torch, "version", SimpleNamespace(hip="6.4"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    assert Rocm.open(None, 2).torch_name == "cuda:2"
