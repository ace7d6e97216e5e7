"""How the harness samples a run from outside its worker: intervals, and the names of what it reads. The gate knows no others."""

from tunemark.schema.vocabulary import Backend

HOST_INTERVAL_S = 0.2
"""Time between two samples of the host and of the worker's processes."""
DEVICE_INTERVAL_S = {Backend.CUDA: 0.1, Backend.ROCM: 0.1, Backend.XPU: 1.0, Backend.NEURON: 1.0}
"""Time between two samples of the devices of a family that has a monitor."""
SLOWEST_INTEGRATION_S = 0.125
"""Largest mean sampling interval for integrating power: 0.1 s plus 25% for late wake-ups."""
MEMORY_TOOLS = {
    Backend.CUDA: "nvmlDeviceGetMemoryInfo",
    Backend.ROCM: "amdsmi_get_gpu_memory_usage",
    Backend.XPU: "xpu-smi, GPU Memory Used",
    Backend.NEURON: "neuron-monitor memory_used",
}
"""Where a monitor reads the memory in use."""
TORCH_MODULES = {Backend.CUDA: "torch.cuda", Backend.ROCM: "torch.cuda", Backend.XPU: "torch.xpu", Backend.MPS: "torch.mps"}
"""Module of torch with the allocator of a family. Others have no peaks."""
SEEN_OF_RESERVED = 0.98
"""Memory in use over memory reserved: the framework keeps what it has reserved, so that no sample misses it."""
