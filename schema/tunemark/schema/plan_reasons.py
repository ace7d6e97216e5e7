"""Reasons of the derived values of a plan: the harness writes them, and the gate knows no others.

A reason with numbers is a function of them, so that the gate can compute it again.
"""

from tunemark.schema.facts.names import names_cpu_model
from tunemark.schema.vocabulary import Backend, Dtype

BY_CARD = "the workload card sets it"
FOUND_BY = {
    Backend.CPU: "no accelerator was found",
    Backend.CUDA: "NVML lists a device",
    Backend.ROCM: "amd-smi or rocm-smi lists a device",
    Backend.NEURON: "neuron-ls lists a device",
    Backend.XPU: "xpu-smi or sycl-ls lists a device",
    Backend.MPS: "an Apple GPU shares the memory of this machine",
}
"""How a device family is found. For the CPU the tools that are missing follow."""
REQUESTED_BACKEND, REQUESTED_DEVICES = "requested with --backend", "requested with --devices"
KNOWN_NAME = "its reported name is an alias of the card"
NO_STRATEGY, REPLICAS, REQUESTED_STRATEGY = "one device needs none", "each device holds a replica", "requested with --strategy"
OTHER_ROWS = "each device sees different rows"
WIDER_WEIGHTS, STORED_AS_COMPUTED = "fp16 updates underflow, so the weights are kept in fp32", "weights are stored in the compute format"
FP8_GIVES_BF16 = "products of fp8 numbers give bf16"
TOKENIZERS = {
    "none": "synthetic samples are token ids already",
    "model": "pretrained weights come with their tokenizer",
    "word-level": "random weights have no tokenizer, so each frequent word of the training rows becomes a token",
}
"""Tokenizer -> why."""
VARLEN_FOR_PACKED = "packed documents are kept apart by their lengths, without a mask"
"""Reason of attention=varlen."""
NO_BORDERS = "the attention kernels of optimum-neuron ignore document borders: documents are concatenated and attend to each other"
PADDED_FOR_NEURON = "rows differ in length, and Neuron compiles a graph for each new length: all rows are padded to the full length"
PADDED_TO_LONGEST = "rows differ in length, and the card is for full rows: each micro-batch is padded to its longest row"
NEURON_POINT = "the workload card's settings on Neuron devices"
REQUESTED_INTERVAL, ALL_STEPS = "requested with --until-ci", "all requested steps are done"
NARROW_ENOUGH = "the default: a steady window whose 95% interval is this narrow needs no more steps"
REQUESTED_SECONDS = "requested with --seconds"


def missing_card(name: str, backend: Backend) -> str:
    """Return the reason why a device of this name has no card."""
    if backend is Backend.CPU and not names_cpu_model(name):
        return f"the CPU reports the name {name!r}, which many models share; peaks and prices are unknown"
    return f"no card in data/accelerators has the alias {name!r}; peaks and prices are unknown"


def threads(processes: int) -> str:
    """Return the reason of the threads of one of some processes of a machine."""
    shared = f", shared by {processes} processes" if processes > 1 else ""
    return f"one thread per physical core that this process may use{shared}"


def threads_of(physical: int | None, usable: int, processes: int) -> int:
    """Return the threads of each process: the processes of a machine share its physical cores."""
    return max(1, min(physical or usable, usable) // processes)


def data_parallel(devices: int, group: int) -> str:
    """Return the reason of the number of replicas, each on a group of tensor and pipeline parallel devices."""
    return OTHER_ROWS if group == 1 else f"{devices} devices / tensor x pipeline parallel {group}"


def global_batch(micro_batch: int, gradient_accumulation: int, replicas: int) -> str:
    """Return the reason of the rows of an optimizer step."""
    return f"micro_batch {micro_batch} x gradient_accumulation {gradient_accumulation} x data_parallel {replicas}"


def fastest_format(backend: Backend) -> str:
    """Return the reason of a number format on devices of an unknown generation."""
    return f"the fastest format of a {backend.value} device"


def stored_format(compute: Dtype) -> str:
    """Return the reason of the format of stored weights."""
    return WIDER_WEIGHTS if compute is Dtype.FP16 else STORED_AS_COMPUTED


def layer_names(family: str) -> str:
    """Return the reason of adapted layers whose names are not those of the card."""
    return f"the requested layers, by their names in {family}"


def narrow_enough(epochs: float | None) -> str:
    """Return the reason of the default rule to stop, with the epochs of the whole job where the card has them."""
    return NARROW_ENOUGH + (f"; --epochs {epochs} runs the whole job" if epochs else "")


def default_time(fewest: int, rankable: int) -> str:
    """Return the reason of the default time limit."""
    return f"the default without a requested end; at least {fewest} steps are done, of which {rankable} can be ranked"


def paired_seed(pair: int, first: int) -> str:
    """Return the reason of the seed of a pair of an A/B."""
    return f"pair {pair} of an A/B: both runs of a pair share a seed, which is {first} for the first pair and one higher for each next"
