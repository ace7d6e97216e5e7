"""Devices that a package of their vendor adds to torch: AWS Neuron, Google TPU and Intel Gaudi, in our own training loop.

One class drives all of them, by torch's module of the device and by torch.accelerator. A further one is a row: a class with its package, and a
vendor. None has been used yet: a test runs a whole run on a device that it registers. Their names are those of huggingface/transformers 5.23
(src/transformers/distributed/utils.py); what a device lacks is found out when it is opened.
"""

import contextlib
import time
from dataclasses import replace
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Self

from tunemark.harness.vendors import neuron, protocol
from tunemark.schema.formats import GIB
from tunemark.schema.plan.capabilities import WITHOUT_FP8, Feature, Need
from tunemark.schema.records.submission import DeviceFacts, MemoryReading
from tunemark.schema.vocabulary import TORCH_MODULES, Backend, Dtype

PCI = Path("/sys/bus/pci/devices")
UNSUPPORTED = (RuntimeError, AttributeError, TypeError)
"""What a function that a device does not have raises; NotImplementedError is a RuntimeError."""


class _WaitedEvent:
    """An event of a device that has none: recording it waits until all work is done."""

    def __init__(self, synchronise: Any, *, enable_timing: bool) -> None:  # noqa: ANN401, ARG002 - torch's signature
        self._synchronise, self._at_s = synchronise, 0.0

    def record(self) -> None:
        self._synchronise()
        self._at_s = time.monotonic()

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: Self) -> float:
        return (later._at_s - self._at_s) * 1e3


class Native(protocol.EventDevice):
    """Trains on one device of a package. Its name is not compared: not every module reports one."""

    backend: ClassVar[Backend]
    modules: ClassVar[tuple[str, ...]]
    """Modules that register the device and its collectives."""
    need: ClassVar[Need]
    draws_weights = pins_memory = False
    no_peaks = "the allocator of the device reports no peaks to torch"

    @classmethod
    def open(cls, threads: int | None, local_rank: int = 0) -> Self:  # noqa: ARG003 - the CPU only feeds the device
        """Return the device of a process."""
        import torch  # noqa: PLC0415

        try:
            for module in cls.modules:
                import_module(module)
            api = functions(torch, cls.backend)
            api.set_device(local_rank)
            return cls(torch, api, local_rank)
        except (ImportError, *UNSUPPORTED) as error:
            found = next((each.version for each in metadata.distributions(name=cls.need.package)), "not installed")
            msg = (
                f"torch {torch.__version__} cannot use {cls.family}:{local_rank}: {str(error).strip().partition(chr(10))[0].rstrip('.')}; "
            )
            msg += f"{cls.need.package} is {found}, and {cls.need.oldest} or newer is needed: {cls.need.install}"
            raise protocol.DeviceUnavailable(msg) from error

    def __init__(self, torch: Any, api: Any, local_rank: int = 0) -> None:  # noqa: ANN401 - modules, imported late
        super().__init__(torch, api, local_rank)
        torch.empty(1, device=self.torch_name)
        self.counted_by = TORCH_MODULES[self.backend]
        self.free_marks = not isinstance(api.Event(enable_timing=True), _WaitedEvent)
        with contextlib.suppress(*UNSUPPORTED):
            torch.empty(1, pin_memory=True)
            self.pins_memory = True

    def seed(self, seed: int) -> None:
        """Seed all generators: torch itself seeds the device of a package, but not a Gaudi."""
        super().seed(seed)
        getattr(self._torch.get_device_module(self.family), "manual_seed_all", id)(seed)

    def host_copy(self, scalar: Any) -> Any:  # noqa: ANN401 - a torch tensor
        """Return a copy in pinned memory, or the tensor itself, which is read later."""
        return super().host_copy(scalar) if self.pins_memory else scalar

    def memory(self) -> protocol.DeviceMemory:
        """Return the allocator's peaks; those of an allocator that torch cannot ask are 0."""
        peaks = super().memory()
        return peaks if peaks.allocated.peak_bytes else protocol.Device.memory(self)


def functions(torch: Any, backend: Backend) -> SimpleNamespace:  # noqa: ANN401 - a module, imported late
    """Return what EventDevice calls: functions of torch's module of the device, else of torch.accelerator, else without effect."""
    own, common = torch.get_device_module(backend.value), torch.accelerator
    api = SimpleNamespace(**{name: getattr(own, name, None) or getattr(common, name) for name in ("synchronize", "empty_cache")})
    api.set_device = getattr(own, "set_device", None) or common.set_device_index
    counters = common if TORCH_MODULES[backend] == "torch.accelerator" else own
    vars(api).update(memory_stats=dict, reset_peak_memory_stats=lambda: None, max_memory_allocated=int, max_memory_reserved=int)
    with contextlib.suppress(*UNSUPPORTED):
        counters.reset_peak_memory_stats()
        vars(api).update({name: getattr(counters, name) for name in vars(api) if "memory" in name})
    api.Event = partial(_WaitedEvent, api.synchronize)
    events: tuple[Any, ...] = (partial(torch.Event, backend.value), getattr(own, "Event", None))
    for event in events:
        with contextlib.suppress(*UNSUPPORTED):
            first, last = event(enable_timing=True), event(enable_timing=True)
            first.record()
            last.record()
            last.synchronize()
            if last.query() and first.elapsed_time(last) >= 0:
                api.Event = event
    return api


def on_pci_bus(maker: str, chips: dict[str, tuple[str, int, int]]) -> list[protocol.FoundDevice]:
    """Return the devices of a maker: name, GiB and number of devices of each chip are in `chips`, by its number on the bus."""
    numbers = ([(path / name).read_text().strip() for name in ("vendor", "device")] for path in sorted(PCI.glob("*")))
    chip = (chips[number] for vendor, number in numbers if vendor == maker and number in chips)
    parts = ((DeviceFacts(name=name, memory_bytes=gib * GIB // count), count) for name, gib, count in chip)
    return [protocol.FoundDevice(None, facts) for facts, count in parts for _ in range(count)]


class Neuron(Native):
    """A logical NeuronCore (awsdocs-neuron.readthedocs-hosted.com, "TorchNeuron", and release notes of Neuron 2.33)."""

    backend, family, collectives, modules = Backend.NEURON, "neuron", "neuron", ("torch_neuronx",)
    need = Need("torch-neuronx", "install it from AWS' package index", "2.13")


class Tpu(Native):
    """A chip, or one of the two devices of a TPU7x. Events cannot be asked for a time (torch_tpu/api/streams.py @ 0d0db441)."""

    backend, family, collectives, modules = Backend.TPU, "tpu", "tpu_dist", ("torch_tpu",)
    need = Need("torch-tpu", "install it from Google's registry", "0.1")


class Gaudi(Native):
    """A Gaudi (HabanaAI/gaudi-pytorch-bridge python_packages/habana_frameworks/torch/hpu @ 056f7e3b)."""

    backend, family, collectives = Backend.HPU, "hpu", "hccl"
    modules = ("habana_frameworks.torch", "habana_frameworks.torch.distributed.hccl")
    need = Need("habana-torch-plugin", "use Intel's container or installer, which bring a torch of their own", "1.18")

    def memory(self) -> protocol.DeviceMemory:
        """Return the peak of tensors: what `max_memory_reserved` returns is the size of the pool."""
        return replace(super().memory(), reserved=MemoryReading(reason="torch.hpu reports the size of its pool, which is fixed"))


# AI-Hypercomputer/cloud-accelerator-diagnostics tpu_info/tpu_info/device.py @ 2cbfaa9d; both cores of a TPU v4 or v5p are one device.
TPUS = {"0x005e": ("TPU v4", 32, 1), "0x0062": ("TPU v5p", 95, 1), "0x0063": ("TPU v5e", 16, 1), "0x006f": ("TPU v6e", 32, 1)}
TPUS |= {"0x0076": ("TPU7x", 192, 2)}
# HabanaAI/hl-thunk-open include/specs/common/pci_ids.h; those of Gaudi 3 (module and PCIe card) from sources of Intel's driver.
GAUDIS = {"0x1000": ("Habana Gaudi", 32, 1), "0x1020": ("Gaudi 2", 96, 1), "0x1060": ("Gaudi 3", 128, 1), "0x1063": ("Gaudi 3", 128, 1)}
NOT_TRIED = "not tried on these devices in this version; use"
NO_TRITON = "its kernels are written in Triton, which has no back end for these devices; use"
NO_MONITOR = dict.fromkeys((Feature.UTILISATION, Feature.ENERGY), "this version reads no monitor of these devices")
CANNOT = (
    protocol.NO_MODEL_PARALLEL
    | protocol.NVIDIA_ONLY
    | protocol.NO_VARLEN
    | {
        Feature.QLORA: f"{NOT_TRIED} method=lora",
        **dict.fromkeys(protocol.NO_FP8, f"not tried on these devices in this version; {WITHOUT_FP8}"),
        Feature.FLASH_ATTENTION: "its kernels are for CUDA and ROCm; use attention=sdpa",
        Feature.FLEX_ATTENTION: f"{NO_TRITON} attention=sdpa",
        Feature.LIGER: f"{NO_TRITON} fused_kernels=none",
        Feature.EIGHT_BIT_OPTIMIZER: "bitsandbytes has no such kernels for these devices; use optimizer.name=adamw",
        Feature.FP16: f"{NOT_TRIED} compute=bf16",
        Feature.ZERO: f"{NOT_TRIED} ddp or fsdp2",
        Feature.OFFLOAD: f"{NOT_TRIED} offload=none",
    }
)
ONE_TPU = "accelerate 1.15 starts no process group on TPUs; use one device"


def vendor(device: type[Native], **own: Any) -> protocol.Vendor:  # noqa: ANN401 - fields of a vendor
    """Return the vendor of a device, with what all of them need and cannot do."""
    needs = protocol.TORCH_NEEDS | dict.fromkeys((Feature.FULL, Feature.LORA), device.need)
    return protocol.Vendor(backend=device.backend, device=device, preference=30, needs=needs, **own | {"cannot": CANNOT | own["cannot"]})


NEURON = vendor(
    Neuron,
    formats=(Dtype.BF16, Dtype.FP32),
    find=lambda: [] if neuron.through_xla() else neuron.find(),
    found_by="neuron-ls lists a device, and torch-xla is not installed",
    monitor=neuron.NeuronMonitor.open,
    # TorchNeuron is for Trainium 2 and 3; by default, two of their cores are one logical core, which is a device.
    cards="AWS NeuronCore-v[34]",
    devices_in=lambda card: (card.cores_per_unit or 2) // 2,
    masks=(neuron.MASK,),
    cannot={Feature.ENERGY: "neuron-monitor reports no power"},
)
TPU = vendor(
    Tpu,
    formats=(Dtype.BF16,),  # fp32 would be rounded to bf16 in each product (torch_tpu/docs/gpu_to_tpu.md @ 43cccf70).
    find=lambda: on_pci_bus("0x1ae0", TPUS),
    found_by="a TPU is on the PCI bus",
    cards="Google TPU",
    devices_in=lambda card: 2 if "TPU7x" in card.aliases else 1,
    cannot=NO_MONITOR
    | dict.fromkeys((Feature.DDP, Feature.FSDP2, Feature.ZERO), ONE_TPU)
    | {Feature.PEAK_MEMORY: "torch.accelerator is asked, but whether TorchTPU answers is not known yet"},
)
HPU = vendor(
    Gaudi,
    formats=(Dtype.BF16, Dtype.FP32),
    find=lambda: on_pci_bus("0x1da3", GAUDIS),
    found_by="a Gaudi is on the PCI bus",
    cards="Intel Gaudi",
    cannot=NO_MONITOR,
)
