"""Devices that a package adds to torch: a whole run on one that is registered here, and what becomes of a device that lacks something.

The registered device (tpu_stand_in) is torch's `PrivateUse1` under the name `tpu`. Its memory and arithmetic are the host's, so nothing
here shows that a real device works or how fast it is.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from harness_making import FACTS, only_submission, problems_of, ran, run_of

from tunemark.harness.vendors import native, neuron, protocol
from tunemark.harness.vendors.protocol import DeviceUnavailable, all_vendors, vendor_of
from tunemark.schema.errors import TunemarkError
from tunemark.schema.vocabulary import Backend, Status

STAND_IN = Path(__file__).with_name("tpu_stand_in")
COMMAND = """
import sys
from pathlib import Path
from tunemark.harness.vendors import protocol
protocol.PCI = Path(sys.argv.pop(1))
from tunemark.cli import main
main()
"""
STEPS, SETTINGS = 12, ("compute=bf16", "probe=false")


def with_stand_in(code, *arguments):
    """Run code in a process of its own, where the stand-in of torch_tpu is installed."""
    paths = os.pathsep.join(filter(None, [str(STAND_IN), os.environ.get("PYTHONPATH")]))
    done = ran([sys.executable, "-c", code, *arguments], env={"PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    return done.stdout


def pci(folder, *devices):
    """Make the folder of a PCI bus with devices of these makers and numbers."""
    for place, numbers in enumerate(devices):
        path = folder / f"0000:00:0{place}.0"
        path.mkdir(parents=True)
        for name, number in zip(("vendor", "device"), numbers, strict=True):
            (path / name).write_text(f"{number}\n")
    return folder


# The whole way


def run_there(folder, *options, count=1):
    """Return the folder with the submission of a run on TPUs v6e that the stand-in takes the place of."""
    settings = [word for each in SETTINGS for word in ("--set", each)]
    bus = pci(folder / "pci", ("0x8086", "0x1237"), *[("0x1ae0", "0x006f")] * count)
    with_stand_in(COMMAND, bus, "run", "smoke-lora", "--steps", STEPS, *settings, *options, "--out", folder / "out")
    return folder / "out"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return run_there(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def submission(folder):
    return only_submission(folder)


def test_a_run_on_a_registered_device_is_measured_there_by_our_own_loop_and_accepted(folder, submission):
    assert (submission.outcome.status, len(submission.trace)) == (Status.OK, STEPS)
    assert (submission.plan.device.backend, submission.plan.device.accelerator) == (Backend.TPU, "google-tpu-v6e")
    assert submission.environment.packages["torch-tpu"] == "0.1.0"
    assert (submission.effective.parameters_on, submission.effective.optimizer_states_on) == (("tpu",), ("tpu",))
    allocated = submission.memory.device_allocated
    assert allocated.method == "torch.accelerator.max_memory_allocated"
    assert sum(submission.model.parameter_bytes.values()) < allocated.peak_bytes < 2**30
    assert [gate.passed for gate in submission.gates if gate.name == "adapter_gradient"] == [True]
    # Its compiler tells nothing about a cache.
    assert submission.process.compile_cache is None
    assert problems_of(folder, FACTS) == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("several", "sharding"), [({}, None), ({"devices": 2}, None), ({"devices": 2, "sharding": "fsdp2"}, "torch FSDPModule")]
)
def test_it_learns_what_the_host_learns(tmp_path, several, sharding):
    """The arithmetic is the host's: data, seeds, gradients, updates and the collectives that the package registers change nothing."""
    words = [word for name, value in several.items() for word in (f"--{name}", value)]
    folder = run_there(tmp_path, *words, count=several.get("devices", 1))
    there, (_, here) = only_submission(folder), run_of(tmp_path / "here", "smoke-lora", *SETTINGS, steps=STEPS, **several)
    assert there.trace.loss == pytest.approx(here.trace.loss, rel=2e-3)
    assert there.trace.supervised_tokens == here.trace.supervised_tokens
    assert (there.effective.process_group, there.effective.sharding) == ("tpu_dist" if several else None, sharding)
    assert (there.effective.parameters_on, there.effective.optimizer_states_on) == (("tpu",), ("tpu",))
    assert [rank.rank for rank in there.ranks or ()] == list(range(several.get("devices", 0)))
    assert problems_of(folder, FACTS) == []


# One device

ASKED = """
import json, torch
from tunemark.harness.vendors.protocol import DeviceUnavailable, vendor_of
from tunemark.schema.vocabulary import Backend

Tpu = vendor_of(Backend.TPU).device

device = Tpu.open(None, 1)
device.seed(7)
device.begin()
first, started = device.stamp(), device.now()
peak = torch.zeros(2**20, device=device.torch_name)
del peak
kept = torch.ones(2**18, device=device.torch_name).sum()
device.synchronise()
last, ended = device.stamp(), device.now()
times, peak = (device.reached(first), device.reached(last)), device.memory()["allocated"]["peak_bytes"]
try:
    Tpu.open(None, 5)
except DeviceUnavailable as error:
    refused = str(error)
asked = {"name": device.torch_name, "kept": str(kept.device), "seeds": torch.tpu.seeds, "index": torch.accelerator.current_device_index()}
asked |= {"took": times[1] - times[0], "waited": ended - started, "marks": device.free_marks, "held": device.allocator().held_bytes}
print(json.dumps(asked | {"peak": peak, "refused": refused}))
"""


def test_the_second_device_is_set_and_seeded_timed_by_events_and_counted_and_one_that_cannot_be_opened_is_named_with_the_versions():
    asked = json.loads(with_stand_in(ASKED).splitlines()[-1])
    assert (asked["name"], asked["kept"], asked["index"], asked["seeds"][-1]) == ("tpu:1", "tpu:1", 1, 7)
    assert (asked["took"], asked["marks"]) == (pytest.approx(asked["waited"], abs=0.02), True)
    # The peak since it began.
    assert 2**22 <= asked["peak"] < 2**22 + 2**21
    assert 0 < asked["held"] < 2**20
    assert f"torch {torch.__version__} cannot use tpu:5: there are 2 devices, and no number 5" in asked["refused"]
    assert "torch-tpu is 0.1.0, and 0.1 or newer is needed" in asked["refused"]


@pytest.mark.parametrize("backend", [Backend.NEURON, Backend.TPU, Backend.HPU])
def test_a_missing_package_is_named_with_the_version_that_is_needed(backend):
    need = protocol.TABLE[backend].need
    with pytest.raises(DeviceUnavailable, match=rf"No module named .*; {need.package} is not installed, and {need.oldest} or newer"):
        vendor_of(backend).device.open(None)


def test_a_device_without_events_and_counters_waits_at_each_mark_and_says_why_there_is_no_peak():
    # A module like torch.tpu of TorchTPU: its events cannot be asked, and it counts no memory.
    own = Mock(spec=["synchronize", "Event"], **{"Event.return_value": SimpleNamespace(record=lambda: None)})

    def refuse(*_, **settings):
        if settings.get("device") != "tpu:0":
            raise NotImplementedError

    common = SimpleNamespace(empty_cache=lambda: None, set_device_index=lambda _: None, reset_peak_memory_stats=refuse)
    fake = SimpleNamespace(get_device_module=lambda _: own, accelerator=common, Event=refuse, empty=refuse)
    device = vendor_of(Backend.TPU).device(fake, native.functions(fake, "tpu"))
    device.begin()
    waits, began_s = own.synchronize.call_count, device.now()
    marks = [device.stamp(), device.stamp()]
    assert own.synchronize.call_count == waits + 2
    assert [device.reached(mark) for mark in marks] == pytest.approx([began_s] * 2, abs=0.05)
    assert (device.free_marks, device.pins_memory, device.allocator()) == (False, False, None)
    assert device.memory()["allocated"]["reason"] == "the allocator of the device reports no peaks to torch"


# Found and planned for


@pytest.mark.parametrize("row", [row for row in protocol.TABLE.values() if row.chips], ids=lambda row: row.pci_maker)
def test_each_chip_on_the_bus_has_a_card_with_its_memory(monkeypatch, tmp_path, row):
    for place, (number, chip) in enumerate(row.chips.items()):
        monkeypatch.setattr(
            protocol, "PCI", pci(tmp_path / str(place), (row.pci_maker, number), ("0x8086", number), (row.pci_maker, "0x1"))
        )
        found = protocol.on_pci_bus(row)
        card = FACTS.recognise_accelerator(found[0].facts.name)
        assert len(found) == chip.devices == card.devices_per_unit
        assert found[0].facts.memory_bytes * len(found) == card.memory_gib * 2**30


GENERATION = {"name": "n", "target": "t", "architectures": ["a"], "lacks": {}}


@pytest.mark.parametrize(
    ("unknown", "field"), [({"colectives": "hccl"}, "colectives"), ({"generations": [GENERATION]}, "generations.0.lacks")]
)
def test_an_unknown_key_of_a_familys_table_is_named_with_the_family(unknown, field):
    with pytest.raises(TunemarkError, match=rf"^families\.toml: tpu: {field}: "):
        protocol.row_of("tpu", {"found_by": "a TPU is on the PCI bus", "formats": ["bf16"], **unknown})


@pytest.mark.parametrize(("installed", "backend"), [(True, Backend.NEURON_XLA), (False, Backend.NEURON)])
def test_cores_belong_to_the_software_that_is_installed(monkeypatch, installed, backend):
    monkeypatch.setattr(neuron, "through_xla", lambda: installed)
    monkeypatch.setattr(neuron, "find", lambda: ["core"])
    assert [vendor.backend for vendor in all_vendors() if "NEURON" in vendor.backend.name and vendor.find()] == [backend]
