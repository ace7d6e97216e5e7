"""A new vendor is one source file: it is found, planned for, monitored and listed in the support matrix without an edit elsewhere."""

import sys

import pytest

from tunemark.harness import vendors
from tunemark.harness.plan.resolve import Options, detect, resolve, support_matrix
from tunemark.harness.run.telemetry import open_sampler
from tunemark.harness.vendors.protocol import TABLE, vendor_of
from tunemark.schema.vocabulary import Backend, Dtype

# Its name is that of a backend of the vocabulary, which a new vendor extends; here the file takes the place of Apple's.
BACKEND = Backend.MPS
SOURCE = '''
"""Chips of a vendor that does not exist."""

from tunemark.harness.vendors.protocol import Device, Feature, FoundDevice, DeviceUnavailable, Vendor
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.vocabulary import Backend, Dtype


class Acme(Device):
    torch_name = "acme"


def find():
    return [FoundDevice(number, DeviceFacts(name="Acme One", memory_bytes=2**35)) for number in range(2)]


def monitor(indexes):
    raise DeviceUnavailable(f"acme-top is not installed for {len(indexes)} devices")


VENDOR = Vendor(
    backend=Backend.MPS,
    device=Acme,
    formats=(Dtype.BF16,),
    find=find,
    found_by="acme-smi lists a device",
    preference=1_000,
    monitor=monitor,
    cannot={Feature.QLORA: "Acme has no four-bit kernels; use method=lora"},
)
'''


@pytest.fixture
def _acme(monkeypatch, tmp_path):
    (tmp_path / f"{BACKEND.value}.py").write_text(SOURCE)
    name = f"{vendors.__name__}.{BACKEND.value}"
    monkeypatch.setattr(vendors, "__path__", [str(tmp_path), *vendors.__path__])
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delitem(TABLE, BACKEND)
    monkeypatch.delattr(vendors, BACKEND.value, raising=False)
    yield
    sys.modules.pop(name, None)


@pytest.mark.usefixtures("_acme")
def test_its_devices_are_found_planned_for_opened_and_monitored_and_its_limits_listed(facts):
    machine = detect()
    assert (machine.backend, machine.backend_reason, machine.indexes) == (BACKEND, "acme-smi lists a device", (0, 1))
    plan = resolve("smoke-lora", facts, machine, Options(devices=2)).plan
    assert (plan.device.backend, plan.device.count, plan.precision.compute) == (BACKEND, 2, Dtype.BF16)
    refused = resolve("smoke-lora", facts, machine, Options(overrides=("method=qlora",))).unsupported
    assert refused == "QLoRA on mps: Acme has no four-bit kernels; use method=lora"
    assert vendor_of(BACKEND).device.open(None).torch_name == "acme"
    assert open_sampler(BACKEND, (0, 1)).telemetry.reason == "acme-top is not installed for 2 devices"
    assert support_matrix().families[BACKEND].cannot == {"QLoRA": "Acme has no four-bit kernels; use method=lora"}
