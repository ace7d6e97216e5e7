"""The memory of a training step, predicted from shapes: states, activations, logits, gathered shards and framework."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from tunemark.schema.formats import MIB
from tunemark.schema.physics.activations import FP32, activations_by_kind, head_line, stored_per_block
from tunemark.schema.physics.architecture import block_linears, count_parameters
from tunemark.schema.physics.memory_states import (
    Group,
    MemoryLedger,
    MemoryLine,
    Moment,
    block_weights,
    count_weights,
    divided,
    kept,
    state_lines,
)
from tunemark.schema.physics.stacks import STACKS, USUAL_STACK, on_stack
from tunemark.schema.physics.training_shape import BYTES, TrainingShape
from tunemark.schema.vocabulary import Checkpointing, Method, SoftwareLevel

LIVE_PARAMETERS = 1_000_000_000
"""Default of DeepSpeed's `stage3_max_live_parameters`."""
WORKSPACE = 40 * MIB
"""cuBLAS workspaces reserved by torch: 32 MiB on Hopper, 8 MiB before (torch.cuda docs); one of each is assumed."""
CONTEXT = 512 * MIB
"""CUDA context and loaded kernels of one process, outside the allocator: 0.4 to 0.6 GiB on data-centre GPUs."""
COLLECTIVES = 512 * MIB
"""NCCL communication buffers with default channels, outside the allocator."""

ALL_BUT_UPDATE: tuple[Moment, ...] = ("loss", "backward begins", "backward ends")
BEFORE: tuple[Moment, ...] = ("loss", "backward begins")
BACKWARD: tuple[Moment, ...] = ("backward begins", "backward ends")


@lru_cache(maxsize=256)
def estimate_memory(shape: TrainingShape) -> MemoryLedger:
    """Return the predicted memory of a training step on one device."""
    outside = CONTEXT + (COLLECTIVES if shape.world_size * shape.tensor_parallel > 1 else 0)
    lines = (*state_lines(shape), *_activations(shape), head_line(shape), *_gathered(shape), _framework())
    # DeepSpeed creates its states before the first step.
    settled = sum(
        line.bytes for line in lines if line.key in {"optimizer states", "fp32 master weights"} and shape.sharding.startswith("fsdp")
    )
    return MemoryLedger(kept(*lines), outside, divided(shape, "parameters") != 1, settled)


def _activations(shape: TrainingShape) -> tuple[MemoryLine, ...]:
    kinds = activations_by_kind(shape)
    block = max((each for _, each in kinds), key=lambda each: each.saved)
    # Offloaded inputs are on the device while they are copied: one leaves while the next is computed.
    stored = [(min(live, 2) if shape.activation_offload else live, *stored_per_block(shape, each)) for live, each in kinds]
    formula = " + ".join(f"{waiting} {'block' if waiting == 1 else 'blocks'} x {each}" for waiting, _, each in stored)
    held = _holds_inputs(shape)
    recomputed = 0 if shape.checkpointing is Checkpointing.NONE else block.saved
    name = "activations" if shape.checkpointing is Checkpointing.NONE else "checkpointed activations"
    size = BYTES[shape.activations]
    return (
        MemoryLine(
            name, "activations", sum(waiting * each for waiting, each, _ in stored), formula, BEFORE if not held else ALL_BUT_UPDATE
        ),
        MemoryLine("one block's input", "activations", block.input, "input of the last block", ("backward ends",)),
        MemoryLine("one block, recomputed", "activations", recomputed, block.formula, BACKWARD),
        MemoryLine(
            "one block's gradients", "activations", block.backward, "gradients of its widest tensors while they are needed", BACKWARD
        ),
        MemoryLine(
            "final norm",
            "activations",
            int(shape.slots * shape.model.hidden_size * (4 + 2 * size) / shape.residual_share),
            f"{shape.slots:,} tokens x {shape.model.hidden_size:,} x (4 + 2 x {size:g}) bytes" + _by(shape.residual_share),
            ("loss",),
        ),
        _held_by_hooks(shape, shape.model.layers * block.input),
        _dequantised(shape),
        _narrow_product(shape),
        _cast_weights(shape),
    )


def _by(share: int) -> str:
    return f" / {share}" if share > 1 else ""


def _dequantised(shape: TrainingShape) -> MemoryLine:
    """Return the bytes of the largest matrix that a 4-bit product dequantises: bitsandbytes does one whole matrix at a time."""
    widest = max(linear.inputs * linear.outputs for linear in block_linears(shape.model)) // shape.tensor_parallel
    unpacked = 2 * widest if shape.method is Method.QLORA else 0
    return MemoryLine("unpacked matrix", "activations", unpacked, f"{widest:,} x 2 bytes: the largest 4-bit matrix in bf16", BACKWARD)


def _narrow_product(shape: TrainingShape) -> MemoryLine:
    """Return the bytes of a product in fp8 or fp4: the scaled input in both formats, and a transposed weight."""
    name, narrow = shape.block_format or "", BYTES[shape.block_format] if shape.block_format else 0.0
    widest = max(max(linear.inputs, linear.outputs) for linear in block_linears(shape.model)) // shape.tensor_parallel
    matrix = max(linear.inputs * linear.outputs for linear in block_linears(shape.model)) // shape.tensor_parallel
    size = BYTES[shape.activations] + narrow if narrow else 0.0
    formula = f"{shape.slots:,} tokens x {widest:,} x {size:g} bytes, and the widest matrix, {matrix:,} x {narrow:g} bytes, transposed"
    return MemoryLine(f"product in {name}", "activations", int(shape.slots * widest * size + matrix * narrow), formula, BACKWARD)


def _cast_weights(shape: TrainingShape) -> MemoryLine:
    """Return the bytes of the 16-bit copies that autocast makes of fp32 weights.

    Copies of trained weights are cached until the forward pass ends, those of frozen ones only live in saved tensors. Sharded
    weights are gathered in 16 bits and need no copy.
    """
    casts = shape.autocast is not None and BYTES[shape.parameters] == FP32 and divided(shape, "parameters") == 1
    cached = casts and (shape.method is Method.FULL or (shape.method is Method.LORA and shape.checkpointing is Checkpointing.NONE))
    weights = count_weights(shape).plain if cached else 0
    moments: tuple[Moment, ...] = ("loss", "backward begins") if shape.checkpointing is Checkpointing.NONE else ("loss",)
    return MemoryLine("weights in 16 bits", "activations", 2 * weights, f"{weights:,} x 2 bytes: copies made by autocast", moments)


def _held_by_hooks(shape: TrainingShape, inputs: int) -> MemoryLine:
    """Return the bytes held by the reshard hooks of frozen flat-parameter units.

    FSDP 1 registers a hook on the inputs of each frozen unit (`register_multi_grad_hook`). Under re-entrant
    checkpointing those inputs are leaves. The hook keeps their accumulators, and with them the input of every block and
    its gradient, until the whole backward pass is done.
    """
    size = inputs if _holds_inputs(shape) else 0
    formula = f"{shape.model.layers} blocks x input: the gradients of their inputs, kept by the hooks of frozen FSDP 1 units"
    return MemoryLine("held by hooks", "activations", size, formula, ("backward ends",))


def _holds_inputs(shape: TrainingShape) -> bool:
    frozen = shape.sharding == "fsdp1" and shape.method is not Method.FULL
    return frozen and shape.reentrant and shape.checkpointing is Checkpointing.FULL


def _gathered(shape: TrainingShape) -> tuple[MemoryLine, ...]:
    """Return the bytes gathered from other shards: the block in use and the prefetched one, or the head while logits are computed."""
    share = divided(shape, "parameters")
    if share == 1:
        return ()
    count, size = count_parameters(shape.model), BYTES[shape.logits]
    head, block = count.head // shape.tensor_parallel, block_weights(shape)
    each = BYTES[shape.packed] if shape.packed else size
    # DeepSpeed keeps gathered parameters up to this number.
    blocks = min(shape.model.layers * block, max(2 * block, LIVE_PARAMETERS)) if shape.sharding == "zero3" else 2 * block
    # Offloaded shards are on the device too; FSDP 1 has them twice: as stored, and in the format in which they are gathered.
    shards = (2 if shape.sharding == "fsdp1" else 1) if shape.offload else 0
    copies, by = 1 + shards / share, f" x (1 + {shards}/{share})" if shards else ""
    # Copies from the host make the streams wait for each other.
    stream: Group = "framework" if shape.offload else "gathered"
    trained = shape.method is Method.FULL
    whole = 0 if shape.loss in {"chunked", "streamed"} else 1
    waiting = (
        count_weights(shape).trained * BYTES[shape.parameters] / share if shape.offload and trained and shape.sharding == "fsdp1" else 0
    )
    return (
        MemoryLine("gathered head", stream, int(head * size * copies), f"{head:,} x {size:g} bytes{by}", ("loss",)),
        MemoryLine(
            "gradients of the head",
            "training",
            int(head * size * (whole + 1 / share)) if trained else 0,
            f"{head:,} x {size:g} bytes x ({whole} + 1/{share}): {'whole, and ' if whole else ''}reduced",
            ("loss",),
        ),
        MemoryLine(
            "gathered blocks",
            stream,
            int(min(block, blocks) * each * copies),
            f"the block in use: {block:,} x {each:g} bytes{by}",
            BACKWARD,
        ),
        MemoryLine(
            "prefetched blocks",
            stream,
            int((blocks - block) * each * copies),
            f"{blocks - block:,} x {each:g} bytes{by}",
            ("backward begins",),
        ),
        MemoryLine(
            "gradients on their way to the host",
            "training",
            int(waiting),
            "the device's share of all gradients: copies to the host are slower than the backward pass",
            BEFORE,
        ),
    )


def _framework() -> MemoryLine:
    return MemoryLine("matrix library", "framework", WORKSPACE, "workspaces of cuBLAS, 32 + 8 MiB")


# By software stack --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StackedMemory:
    """The memory of a step on a stack, and what it would be on others."""

    stack: str
    shape: TrainingShape
    """The step on this stack."""
    ledgers: dict[str, MemoryLedger]
    """Its memory on every stack that could be meant: only this one if it was chosen."""

    @property
    def ledger(self) -> MemoryLedger:
        """Its memory on this stack."""
        return self.ledgers[self.stack]

    @property
    def needed_interval(self) -> tuple[int, int]:
        """The 90% interval of the bytes of a device that are needed with this stack."""
        return self.ledger.needed_low, self.ledger.needed_high

    def leanest(self, stacks: Iterable[str]) -> str | None:
        """Return the one of some stacks on which the step needs the least memory, or None of none."""
        return min(stacks, key=lambda name: self.ledgers[name].needed_high, default=None)


def memory_on(
    shape: TrainingShape, stack: str | None, fixed: tuple[str, ...] = (), level: SoftwareLevel = "plain", vendor: str = "NVIDIA"
) -> StackedMemory:
    """Return the memory of a step on a stack, or if none is chosen on the usual one of a level, with that on all others for a vendor's devices."""
    name = stack or USUAL_STACK[level]
    others = [each for each, known in STACKS.items() if each == name or known.runs(shape, vendor)]
    ledgers = {each: estimate_memory(on_stack(shape, each, fixed)) for each in ([stack] if stack else others)}
    return StackedMemory(name, on_stack(shape, name, fixed), ledgers)
