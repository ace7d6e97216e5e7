"""AWS Trainium and Inferentia through torch-neuronx, which is PyTorch/XLA. Not yet run on such a device.

Work is recorded and handed to the device as one graph at each mark. There are no events to time it by: a mark is reached
when its result can be read, and it is read one step late, so that the device always has a step to work on
(definitions.md, 3: the ends of the window are waited for).
"""

import time
from dataclasses import dataclass
from typing import Any, Self

from tunemark.harness.devices.features import HOPPER_ONLY, Feature
from tunemark.harness.devices.protocol import DeviceMemory, DeviceUnavailable, Stamp
from tunemark.schema.records.submission import MemoryReading

CANNOT: dict[Feature, str] = {
    Feature.QLORA: "optimum-neuron trains no quantised weights; use method lora",
    Feature.PACKING: "the attention kernels of optimum-neuron know no borders of documents; use data.document_borders=false",
    Feature.SELECTIVE_CHECKPOINTING: "PyTorch/XLA recomputes whole blocks; use gradient_checkpointing=full or none",
    Feature.FLASH_ATTENTION_3: HOPPER_ONLY,
    Feature.FLEX_ATTENTION: "without a kernel for these devices; use attention=sdpa",
    Feature.LIGER: "its kernels are written in Triton, which has no Neuron back end; use fused_kernels=none",
    Feature.COMPILE: "the Neuron compiler compiles each graph anyway; use compile=none",
    Feature.EIGHT_BIT_OPTIMIZER: "bitsandbytes has no kernels for Neuron; use optimizer.name=adamw",
    Feature.TF32: "a format of NVIDIA GPUs; use compute=bf16 or fp32",
    Feature.FP16: "optimum-neuron trains in bf16 and fp32; use compute=bf16",
    Feature.FSDP2: "optimum-neuron shares states by zero1, and layers by tensor and pipeline parallel",
    Feature.OFFLOAD: "optimum-neuron keeps nothing in host memory",
    Feature.PEAK_MEMORY: "the runtime counts no peak of tensors; neuron-monitor tells what is in use",
    Feature.ENERGY: "neuron-monitor tells no power",
}


class Fetched:
    """A small tensor of the device, copied to the host when its values are first asked for: that waits until they are there."""

    def __init__(self, tensor: Any) -> None:  # noqa: ANN401 - a torch tensor
        self._tensor = tensor
        self._values: Any = None

    def values(self) -> Any:  # noqa: ANN401 - a torch tensor
        """Return the tensor on the host."""
        if self._values is None:
            # As one transfer: to index it first would be another graph behind all that is queued.
            self._values, self._tensor = self._tensor.detach().cpu(), None
        return self._values

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401 - a torch tensor
        """Return one value."""
        return self.values()[index]


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the queue of graphs."""

    number: int
    result: Fetched | None


class Neuron:
    """Trains on one NeuronCore."""

    collectives = "xla"

    def __init__(self, xm: Any) -> None:  # noqa: ANN401 - torch_xla.core.xla_model, imported late
        self._xm = xm
        self.torch_name = str(xm.xla_device())
        self._result: Fetched | None = None
        self._marks = 0
        self._waited_for = 0

    @classmethod
    def open(cls, threads: int | None, local_rank: int = 0) -> Self:  # noqa: ARG003 - the launcher gives each process its core
        """Check that the Neuron stack is there and has a core for this process."""
        try:
            import torch_neuronx  # noqa: F401, PLC0415 - registers the device with XLA
            import torch_xla.core.xla_model as xm  # noqa: PLC0415

            return cls(xm)
        except (ImportError, RuntimeError) as error:
            msg = f"no NeuronCore for this process ({type(error).__name__}); install torch-neuronx of the Neuron SDK, stop other users of the cores"
            raise DeviceUnavailable(msg) from error

    def now(self) -> float:
        """Return the host's clock."""
        return time.monotonic()

    def name(self) -> str | None:
        """Return None: XLA has no name for it."""
        return None

    def begin(self) -> None:
        """Wait for all work so far."""
        self.synchronise()

    def synchronise(self) -> None:
        """Hand over what is recorded and wait until the device has nothing left to do."""
        self._xm.mark_step()
        self._xm.wait_device_ops()
        self._waited_for = self._marks

    def host_copy(self, scalar: Any) -> Any:  # noqa: ANN401 - a torch tensor
        """Return what reads the tensor later, and let the next mark be reached when it can be read."""
        self._result = Fetched(scalar)
        return self._result

    def stamp(self) -> Stamp:
        """Hand the recorded graph to the device."""
        self._xm.mark_step()
        self._marks += 1
        mark, self._result = Mark(self._marks, self._result), None
        return mark

    def reached(self, stamp: Stamp) -> float | None:
        """Return when a mark's result was there; None for the last mark, unless all was waited for."""
        if stamp.number == self._marks and stamp.number > self._waited_for:
            return None
        if stamp.result is not None:
            stamp.result.values()
        return self.now()

    def held_bytes(self) -> int | None:
        """Return None: the runtime plans memory when it loads a graph."""
        return None

    def memory(self) -> DeviceMemory:
        """Return why there are no peaks."""
        missing = MemoryReading(reason=CANNOT[Feature.PEAK_MEMORY])
        return DeviceMemory(missing, missing)


def compiled_graphs() -> int:
    """Return how many graphs XLA has compiled in this process so far."""
    import torch_xla.debug.metrics as xla_metrics  # noqa: PLC0415

    return int(xla_metrics.counter_value("UncachedCompile") or 0)
