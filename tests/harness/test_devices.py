"""Each device family implements the protocol and calls only functions that its library has."""

import ast
import inspect
from importlib import import_module
from operator import attrgetter
from unittest.mock import Mock

import pytest
import torch

from tunemark.harness.vendors import protocol
from tunemark.harness.vendors.neuron import Neuron
from tunemark.harness.vendors.protocol import Gpu

MODULES = {vendor.backend: import_module(vendor.device.__module__) for vendor in protocol.all_vendors()}


def called(module, base):
    """Return the dotted names that a module's source reads below a name, such as everything below `torch`."""
    names = {ast.unparse(node) for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.Attribute)}
    return {name.removeprefix(f"{base}.") for name in names if name.startswith(f"{base}.")}


@pytest.mark.parametrize("backend", MODULES)
def test_each_function_of_torch_that_a_family_calls_exists(backend):
    for name in called(MODULES[backend], "torch"):
        attrgetter(name)(torch)


@pytest.mark.parametrize("api", [torch.cuda, torch.xpu])
def test_each_function_of_a_gpus_module_that_is_called_exists(api):
    names = called(protocol, "self._api")
    assert {"synchronize", "Event", "max_memory_allocated"} <= names
    attrgetter(*names, *(f"Event.{name}" for name in ("record", "synchronize", "query", "elapsed_time")))(api)


class ScriptedApi:
    """A module like torch.cuda whose events are reached at scripted milliseconds."""

    def __init__(self, times_ms):
        self.times_ms, self.reached, self.synchronised = iter(times_ms), 0, 0
        self.made = []
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
        pass

    reset_peak_memory_stats = empty_cache


def test_event_times_are_on_the_hosts_clock_and_waited_for_only_when_asked():
    api = ScriptedApi([0.0, 100.0, 350.0])
    device = Gpu(torch, api)
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


def test_a_neuron_mark_is_read_one_step_late_and_only_the_ends_are_waited_for():
    xm = Mock(**{"xla_device.return_value": torch.device("xla:0")})
    device = Neuron(xm)
    device.begin()
    copies, marks = [], []
    for step in range(3):
        copies.append(device.host_copy(torch.tensor([float(step), 0.0])))
        marks.append(device.stamp())
        assert device.reached(marks[-1]) is None
    assert None not in map(device.reached, marks[:2])
    assert xm.wait_device_ops.call_count == 1
    device.synchronise()
    assert device.reached(marks[2]) is not None
    assert [float(copy[0]) for copy in copies] == [0.0, 1.0, 2.0]
    assert xm.wait_device_ops.call_count == 2
