"""Closed vocabularies. An unknown word is an error that lists the known words. Each word is that of its name in lower case."""

import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal

Method = StrEnum("Method", "FULL LORA QLORA PEFT")
Method.__doc__ = "How the weights are fine-tuned."
"""`peft`: another parameter-efficient method, for published results only; the setting `peft_method` names it."""
METHODS = {"full": "full fine-tuning", "lora": "LoRA", "qlora": "QLoRA"}

Task = StrEnum("Task", "CAUSAL_LM SEQUENCE_CLASSIFICATION")
Task.__doc__ = "The task that the model is trained for."
Weights = StrEnum("Weights", "RANDOM PRETRAINED")
Weights.__doc__ = "Where the initial weights come from."
DataSource = StrEnum("DataSource", "SYNTHETIC FILE HUB")
DataSource.__doc__ = "Where the samples come from."
Padding = StrEnum("Padding", "NONE STATIC DYNAMIC")
Padding.__doc__ = "How documents of different lengths are combined into one batch."
Checkpointing = StrEnum("Checkpointing", "NONE SELECTIVE FULL")
Checkpointing.__doc__ = "Which activations are recomputed in the backward pass."
Dtype = StrEnum("Dtype", "FP32 TF32 BF16 FP16 FP8 FP4 INT8 NF4")
Dtype.__doc__ = "A number format of weights or of matrix products."

Backend = StrEnum("Backend", "CPU CUDA ROCM NEURON NEURON_XLA XPU MPS TPU HPU FAKE")
Backend.__doc__ = "A family of devices behind one implementation of the device protocol."

Strategy = StrEnum("Strategy", "SINGLE DDP FSDP2 ZERO1 ZERO2 ZERO3")
Strategy.__doc__ = "How one model is distributed over several devices."
DEEPSPEED = (Strategy.ZERO1, Strategy.ZERO2, Strategy.ZERO3)
SHARDED_WEIGHTS = (Strategy.FSDP2, Strategy.ZERO3)
SHARDED_STATES = (Strategy.FSDP2, *DEEPSPEED)
"""Strategies that divide the weights, and the optimizer states, among the data-parallel devices."""

Status = StrEnum("Status", "OK OOM_DEVICE OOM_HOST NAN TIMEOUT CRASH UNSUPPORTED INTERRUPTED")
Status.__doc__ = "How a run of the harness ended. Each status is a result."
PublishedStatus = StrEnum("PublishedStatus", "OK CLAIMED PARTIAL FAILED OOM")
PublishedStatus.__doc__ = "Status of a published result."
Phase = StrEnum("Phase", "IMPORT LOAD DATA CHECK PROBE TRAIN EVAL SAVE TEARDOWN")
Phase.__doc__ = "A phase of the wall time of a run. All phases sum to the wall time."
Division = StrEnum("Division", "STANDARD TUNED OPEN")
Division.__doc__ = (
    "`standard`: the workload card unchanged. `tuned`: only free settings changed (records/plan.py). `open`: any other override."
)

AuditVerdict = StrEnum("AuditVerdict", "IMPOSSIBLE INCONSISTENT SUSPICIOUS AMBIGUOUS")
AuditVerdict.__doc__ = """The verdict of a finding, worst first. No finding does not mean verified.

`impossible`: ruled out by physics, by a catalogue or by the calendar. `inconsistent`: contradicts another figure of the same source, or
arithmetic. `suspicious`: possible, but unlikely or unsupported. `ambiguous`: has several readings."""

PriceKind = StrEnum("PriceKind", "ON_DEMAND SPOT RESERVED MARKETPLACE OWNED")
PriceKind.__doc__ = "The terms on which an instance is paid for. `marketplace`: the ask of a single host, which varies by host and hour."

WarningKind = StrEnum(
    "WarningKind",
    "NOT_STABLE FEW_STEPS WIDE_INTERVAL LOSS_ROSE BUSY_HOST UNKNOWN_ACCELERATOR RANDOM_WEIGHTS DIRTY_SOURCE LOW_DISK BUSY_DEVICE THROTTLED "
    "PEAK_FELL PEAK_ROSE FALLBACK GATE_FAILED STRAGGLER TRUNCATED_LOG PARTIAL_TELEMETRY DATA_WAIT ALLOCATOR_RETRIES",
)
WarningKind.__doc__ = "A reason to trust a measurement less. It is stored with the result, which is kept."
SoftwareLevel = Literal["plain", "tuned", "vendor"]
"""How far a training loop is tuned: a general one, one with fused kernels or torch.compile, the device vendor's own."""
Loss = Literal["plain", "upcast", "inplace", "shifted", "chunked", "fused", "streamed"]
"""Tensors that the loss keeps beside the logits.

- `plain`: three in the format of the logits: log-probabilities, gradient of the picked ones, gradient of the logits.
- `upcast`: those three in fp32, since transformers' loss casts first. The Trainer frees the logits before the backward pass; until January
  2025 its forward pass held a shifted copy instead (transformers, pull request 35646).
- `inplace`: the cast to fp32, which its gradient overwrites, as in the kernels of Liger and Unsloth; `shifted`: and a shifted copy, until 2025.
- `chunked`: the gradient, and without torch.compile the three in fp32 for one chunk at a time, as in torchtune's chunked cross-entropy; if
  the head is trained, its gradient so far and that of the chunk.
- `fused`: the head and the loss in one kernel, as in Liger Kernel: never the whole logits, but as many chunks as the vocabulary is wider than
  the model.
- `streamed`: head, loss and their gradients for one chunk of a fixed number of logits after the other, with the gradient of the head in its own
  format. The harness calls it chunked.
"""
PACKAGES = (
    *("torch", "transformers", "peft", "accelerate", "datasets", "tokenizers", "bitsandbytes", "deepspeed", "liger-kernel", "torchao"),
    *("flash-attn", "flash-attn-3", "optimum-neuron", "nvidia-ml-py", "numpy"),
)
"""Packages whose versions a record lists."""
VENDOR_PACKAGES = ("torch-xla", "torch-neuronx", "neuronx-cc", "neuronx-distributed", "torch-tpu", "habana-torch-plugin")
"""The same of a vendor's stack; they are not reported as missing elsewhere."""


BACKENDS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("backends.toml").read_text(encoding="utf-8"))
"""What torch and a monitor offer on each family of devices."""


def _of_backends(name: str) -> dict[Backend, Any]:
    """Return a column of the families; those without it are left out."""
    return {Backend(family): row[name] for family, row in BACKENDS.items() if name in row}


NATIVE, STATIC_SHAPES, COMPILED_UPDATE = (tuple(_of_backends(name)) for name in ("native", "static_shapes", "compiled_update"))
TORCH_MODULES, MEMORY_TOOLS, DEVICE_INTERVAL_S = (_of_backends(name) for name in ("torch", "memory_tool", "interval_s"))
SDPA_KERNELS = ("math", "flash", "efficient", "cudnn", "overrideable")
"""Kernels of scaled dot product attention, by torch's number."""
TRIES = ("frontier", "tune")
"""Kinds of study with tries, which are never ranked."""
VARLEN = "varlen"
"""The attention implementation for packed documents of different length that comes with torch."""
ATTENTION_KERNELS = {"sdpa": SDPA_KERNELS, VARLEN: ("flash",)}
"""Kernels that each attention implementation can choose from; the others name their kernel themselves."""
LOSS_CHUNK = 2**26
"""Logits that the harness holds at a time where it computes the loss in chunks: 441 tokens of 151,936 words. On a CPU, head and loss of
512 tokens then take 0.82 of the time of whole logits (LoRA) and 1.02 (full); with 2**24 logits at a time, 0.97 and 1.06."""
MASTER_CHUNK = 2**26
"""Gradients that the harness casts to fp32 at a time for its master weights, or those of the largest weight."""
ROUNDING_CHUNK = 2**16
"""Weights that the harness updates in fp32 at a time on a CPU before it rounds them stochastically: their tensors fit in its caches."""
DEVICE_ROUNDING_CHUNK = 2**24
"""The same on other devices, unless one compiled kernel updates a weight."""
NEURON_ROUNDING = "NEURON_RT_STOCHASTIC_ROUNDING_EN"
"""Environment variable by which the Neuron runtime rounds stochastically."""
EAGER_UPDATE = "update of the weights"
"""Subject of the warning that this kernel could not be compiled."""
PACKING_NOISE = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 5e-2, "fp16": 1e-2}
"""Largest difference of logits, relative to their spread, that rounding may cause: kernels may depend on the input."""
FP8_SCALES, BLOCK_SCALES = "scales of fp8 weights", "scales of 4-bit blocks"
SCALES_OF_BLOCK_SCALES, BLOCK_OFFSET = f"scales of {BLOCK_SCALES}", "offset of 4-bit blocks"
"""Names in `model.parameter_bytes` of tensors that belong to packed weights."""
FP8_LAYER_MULTIPLE = 16
"""Sides of matrices in fp8 products must be multiples of this."""
BEFORE_AMPERE = {"Kepler", "Maxwell", "Pascal", "Volta", "Turing"}
"""NVIDIA's architectures without bf16, tf32 and the kernel `flash`; the harness refuses these formats on them."""

# Sampling of a run from outside its worker

HOST_INTERVAL_S = 0.2
"""Time between two samples of the host and of the worker's processes."""
SLOWEST_INTEGRATION_S = 0.125
"""Largest mean sampling interval for integrating power: 0.1 s plus 25% for late wake-ups."""

MLPERF_LABEL: Final = "MLPerf, unofficial conversion, not verified by MLCommons Association"
"""The words that must accompany every figure from the logs of MLPerf."""

FITS = {"fits", "probably"}
"""Verdicts on memory with which a step is expected to run."""

VENDORS_STACK = "megatron"
"""Stack of vendors' own software."""
PURE_BF16 = "hf-pure-bf16"
"""Stack of transformers with weights as version 5 loads them."""
USUAL_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""All linear layers of a block in Llama's names. For other families they stand for their own names."""
