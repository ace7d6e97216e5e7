"""The memory of a training step, predicted from shapes: states, activations, logits, gathered shards and framework."""

from dataclasses import replace

from tunemark.schema.formats import MIB
from tunemark.schema.physics.activations import BlockActivations, block_activations, head_line, stored_per_block
from tunemark.schema.physics.architecture import block_linears, count_parameters
from tunemark.schema.physics.memory_states import MemoryLedger, MemoryLine, Moment, block_weights, count_weights, divided, kept, state_lines
from tunemark.schema.physics.training_shape import BYTES, TrainingShape
from tunemark.schema.vocabulary import Checkpointing, Method

WORKSPACE = 40 * MIB
"""cuBLAS workspaces reserved by torch: 32 MiB on Hopper, 8 MiB before (torch.cuda docs); one of each is assumed."""
CONTEXT = 512 * MIB
"""CUDA context and loaded kernels of one process, outside the allocator: 0.4 to 0.6 GiB on data-centre GPUs."""
COLLECTIVES = 512 * MIB
"""NCCL communication buffers with default channels, outside the allocator."""

BEFORE: tuple[Moment, ...] = ("loss", "backward begins")
BACKWARD: tuple[Moment, ...] = ("backward begins", "backward ends")


def estimate_memory(shape: TrainingShape) -> MemoryLedger:
    """Return the predicted memory of a training step on one device."""
    block = block_activations(shape)
    outside = CONTEXT + (COLLECTIVES if shape.world_size * shape.tensor_parallel > 1 else 0)
    lines = (*state_lines(shape), *_activations(shape, block), head_line(shape), *_gathered(shape), _framework())
    return MemoryLedger(kept(*lines), cached=block.forward, outside=outside)


def largest_micro_batch(shape: TrainingShape, memory_bytes: int) -> int:
    """Return the largest micro-batch of full rows that fits, found by bisection; 0 if not even one row fits."""

    def fits(rows: int) -> bool:
        return estimate_memory(replace(shape, micro_batch=rows, document_lengths=None)).needed <= memory_bytes

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
        if high > 1 << 20:
            break
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _activations(shape: TrainingShape, block: BlockActivations) -> tuple[MemoryLine, ...]:
    layers, live = shape.model.layers, shape.model.layers - shape.frozen_blocks
    per_block, formula = stored_per_block(shape, block)
    recomputed = 0 if shape.checkpointing is Checkpointing.NONE else block.saved
    name = "activations" if shape.checkpointing is Checkpointing.NONE else "checkpointed activations"
    size = BYTES[shape.activations]
    return (
        MemoryLine(name, "activations", live * per_block, f"{live} blocks x {formula}", BEFORE),
        MemoryLine("one block's input", "activations", block.input, "input of the last block", ("backward ends",)),
        MemoryLine("one block, recomputed", "activations", recomputed, block.formula, BACKWARD),
        MemoryLine(
            "one block's gradients", "activations", block.backward, "gradients of its widest tensors while they are needed", BACKWARD
        ),
        MemoryLine(
            "final norm",
            "activations",
            int(shape.slots * shape.model.hidden_size * (4 + 2 * size)),
            f"{shape.slots:,} tokens x {shape.model.hidden_size:,} x (4 + 2 x {size:g}) bytes",
            ("loss",),
        ),
        _held_by_hooks(shape, layers * block.input),
        _dequantised(shape),
    )


def _dequantised(shape: TrainingShape) -> MemoryLine:
    """Return the bytes of the largest matrix that a 4-bit product dequantises: bitsandbytes does one whole matrix at a time."""
    widest = max(linear.inputs * linear.outputs for linear in block_linears(shape.model)) // shape.tensor_parallel
    unpacked = 2 * widest if shape.method is Method.QLORA else 0
    return MemoryLine("unpacked matrix", "activations", unpacked, f"{widest:,} x 2 bytes: the largest 4-bit matrix in bf16", BACKWARD)


def _held_by_hooks(shape: TrainingShape, inputs: int) -> MemoryLine:
    """Return the bytes held by the reshard hooks of frozen flat-parameter units.

    FSDP 1 registers a hook on the inputs of each frozen unit (`register_multi_grad_hook`). Under re-entrant
    checkpointing those inputs are leaves. The hook keeps their accumulators, and with them the input of every block and
    its gradient, until the whole backward pass is done.
    """
    held = shape.sharding == "fsdp1" and shape.reentrant and shape.method is not Method.FULL and shape.checkpointing is Checkpointing.FULL
    return MemoryLine(
        "held by hooks",
        "activations",
        2 * inputs if held else 0,
        f"{shape.model.layers} blocks x 2 x input: inputs and their gradients, kept by the hooks of frozen FSDP 1 units",
        ("backward ends",),
    )


def _gathered(shape: TrainingShape) -> tuple[MemoryLine, ...]:
    """Return the bytes gathered from other shards: two blocks (one prefetched), or the head while logits are computed."""
    share = divided(shape, "parameters")
    if share == 1:
        return ()
    count, size = count_parameters(shape.model), BYTES[shape.activations]
    head, blocks = count.head // shape.tensor_parallel, 2 * block_weights(shape)
    # Offloaded shards are on the device twice: as stored, and in the format in which they are gathered.
    copies = 1 + (2 / share if shape.offload else 0)
    trained = shape.method is Method.FULL
    by = f" x (1 + 2/{share})" if shape.offload else ""
    waiting = count_weights(shape).trained * BYTES[shape.parameters] / share if shape.offload and trained else 0
    return (
        MemoryLine("gathered head", "framework", int(head * size * copies), f"{head:,} x {size:g} bytes{by}", ("loss",)),
        MemoryLine(
            "gradients of the head",
            "framework",
            int(head * size * (1 + 1 / share)) if trained else 0,
            f"{head:,} x {size:g} bytes x (1 + 1/{share}): whole, and reduced",
            ("loss",),
        ),
        MemoryLine(
            "gathered blocks",
            "framework",
            int(blocks * size * copies),
            f"2 blocks: {blocks:,} x {size:g} bytes{by}",
            BACKWARD,
        ),
        MemoryLine(
            "gradients on their way to the host",
            "framework",
            int(waiting),
            "the device's share of all gradients: copies to the host are slower than the backward pass",
            BEFORE,
        ),
    )


def _framework() -> MemoryLine:
    return MemoryLine("matrix library", "framework", WORKSPACE, "workspaces of cuBLAS, 32 + 8 MiB")
