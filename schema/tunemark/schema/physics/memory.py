"""The memory of a training step, predicted from shapes: states, activations, logits, gathered shards and framework."""

from collections.abc import Iterator
from functools import lru_cache

from tunemark.schema.formats import MIB
from tunemark.schema.physics.activations import FP32, activations_by_kind, head_line, stored_per_block
from tunemark.schema.physics.architecture import block_linears, count_parameters
from tunemark.schema.physics.memory_states import (
    BACKWARD,
    Group,
    MemoryLedger,
    MemoryLine,
    Moment,
    block_weights,
    count_weights,
    divided,
    state_lines,
)
from tunemark.schema.physics.training_shape import BYTES, TrainingShape
from tunemark.schema.vocabulary import Checkpointing, Dtype, Method

LIVE_PARAMETERS = 1_000_000_000
"""Default of DeepSpeed's `stage3_max_live_parameters`."""
WORKSPACE = 40 * MIB
"""cuBLAS workspaces reserved by torch: 32 MiB on Hopper, 8 MiB before (torch.cuda docs); one of each is assumed."""
CONTEXT = 512 * MIB
"""CUDA context and loaded kernels of one process, outside the allocator: 0.4 to 0.6 GiB on data-centre GPUs."""
COLLECTIVES = 512 * MIB
"""NCCL communication buffers with default channels, outside the allocator."""

RECORD_STREAM = 1 / 0.93
"""Peak of FSDP 1 over that of FSDP 2, which does not delay the reuse of memory by `recordStream` (torchtitan, docs/fsdp.md: 7% less)."""

ALL_BUT_UPDATE: tuple[Moment, ...] = ("loss", "backward begins", "backward ends")
BEFORE: tuple[Moment, ...] = ("loss", "backward begins")


@lru_cache(maxsize=256)
def estimate_memory(shape: TrainingShape) -> MemoryLedger:
    """Return the predicted memory of a training step on one device."""
    outside = CONTEXT + (COLLECTIVES if shape.world_size * shape.tensor_parallel > 1 else 0)
    library = MemoryLine("matrix library", "framework", WORKSPACE, "workspaces of cuBLAS, 32 + 8 MiB")
    lines = (*state_lines(shape), *_activations(shape), head_line(shape), *_gathered(shape), library)
    # DeepSpeed creates its states before the first step.
    settling = {"optimizer states", "fp32 master weights"} if shape.sharding.startswith("fsdp") else set()
    settled = sum(line.bytes for line in lines if line.key in settling)
    sharded = divided(shape, "parameters") != 1
    # Copies from the host make the streams wait for each other, so that nothing is delayed.
    delayed = RECORD_STREAM if sharded and shape.sharding == "fsdp1" and not shape.offload else 1.0
    return MemoryLedger(tuple(line for line in lines if line.bytes), outside, sharded, settled, delayed)


def _activations(shape: TrainingShape) -> Iterator[MemoryLine]:
    kinds = activations_by_kind(shape)
    block = max((each for _, each in kinds), key=lambda each: each.saved)
    # Offloaded inputs are on the device while they are copied: one leaves while the next is computed.
    stored = [(min(live, 2) if shape.activation_offload else live, *stored_per_block(shape, each)) for live, each in kinds]
    formula = " + ".join(f"{waiting} {'block' if waiting == 1 else 'blocks'} x {each}" for waiting, _, each in stored)
    # Hooks of frozen FSDP 1 units (`register_multi_grad_hook`) keep the inputs of all blocks: re-entry makes these leaves.
    frozen = shape.sharding == "fsdp1" and shape.method is not Method.FULL
    held = frozen and shape.reentrant and shape.checkpointing is Checkpointing.FULL
    # bitsandbytes dequantises the largest matrix at once: for any 4-bit product, for 8 bits in the backward pass.
    widest = max(linear.inputs * linear.outputs for linear in block_linears(shape.model)) // shape.tensor_parallel
    unpacked = 2 * widest if shape.packed in {Dtype.NF4, Dtype.INT8} else 0
    recomputed = 0 if shape.checkpointing is Checkpointing.NONE else block.saved
    name = "activations" if shape.checkpointing is Checkpointing.NONE else "checkpointed activations"
    size = BYTES[shape.activations]
    numbers, by = shape.slots * shape.model.hidden_size, f" / {shape.residual_share}" if shape.residual_share > 1 else ""
    norm = f"{shape.slots:,} tokens x {shape.model.hidden_size:,} x (4 + 2 x {size:g}) bytes{by}"
    hooks = f"{shape.model.layers} blocks x input: the gradients of their inputs, kept by the hooks of frozen FSDP 1 units"
    yield MemoryLine(name, "activations", sum(waiting * each for waiting, each, _ in stored), formula, ALL_BUT_UPDATE if held else BEFORE)
    yield MemoryLine("one block's input", "activations", block.input, "input of the last block", ("backward ends",))
    yield MemoryLine("one block, recomputed", "activations", recomputed, block.formula, BACKWARD)
    yield MemoryLine("one block's gradients", "activations", block.backward, "gradients of its widest tensors, while needed", BACKWARD)
    yield MemoryLine("final norm", "activations", int(numbers * (4 + 2 * size) / shape.residual_share), norm, ("loss",))
    yield MemoryLine("held by hooks", "activations", shape.model.layers * block.input if held else 0, hooks, ("backward ends",))
    yield MemoryLine("unpacked matrix", "activations", unpacked, f"{widest:,} x 2 bytes: the largest packed matrix in bf16", BACKWARD)
    yield from _cast_weights(shape)


def _cast_weights(shape: TrainingShape) -> Iterator[MemoryLine]:
    """Yield the bytes of the 16-bit copies that autocast makes of fp32 weights.

    The backward pass needs the copies that gradients pass through. Those of trained weights are also cached until the forward pass ends,
    when the gradients of the logits are not there yet. Sharded weights are gathered in 16 bits and need no copy.
    """
    if shape.autocast is None or BYTES[shape.parameters] != FP32 or divided(shape, "parameters") > 1:
        return
    count, ranks, kept = count_parameters(shape.model), shape.tensor_parallel, shape.checkpointing is Checkpointing.NONE
    head, matrices = count.head // ranks, 0 if shape.packed else (count.attention + count.feed_forward) // ranks
    copied = matrices if kept or shape.method is Method.FULL else 0
    gradients = FP32 * shape.slots * shape.model.vocabulary // ranks if shape.loss == "upcast" and not kept else 0
    formula = f"{copied:,} x 2 bytes: copies made by autocast" + (", less the gradients of the logits" if gradients else "")
    yield MemoryLine("head in 16 bits", "activations", 2 * head, f"{head:,} x 2 bytes: a copy made by autocast", ("loss",))
    yield MemoryLine("weights in 16 bits", "activations", max(0, 2 * copied - gradients), formula, BEFORE if kept else ("loss",))


def _gathered(shape: TrainingShape) -> Iterator[MemoryLine]:
    """Yield the bytes gathered from other shards: the block in use and the prefetched one, the head while logits are computed.

    FSDP 1 never frees its outermost unit, which holds head and embeddings, before the backward pass ends (`_post_forward_reshard`), and
    has the head's gradients whole until then. FSDP 2 keeps the joined buffer of a collective beside the weights copied from it until the next
    one (`all_gather_state`). A block's gradients are whole twice: as computed, and joined for their reduction; DeepSpeed joins them in its bucket.
    """
    share = divided(shape, "parameters")
    if share == 1:
        return
    count, size = count_parameters(shape.model), BYTES[shape.logits]
    outermost = shape.sharding == "fsdp1" and not shape.matrix_units
    head, table = count.head // shape.tensor_parallel, 0 if count.tied_head or not outermost else count.embedding // shape.tensor_parallel
    block = max(each.inputs * each.outputs for each in block_linears(shape.model)) if shape.matrix_units else block_weights(shape)
    held: tuple[Moment, ...] = ALL_BUT_UPDATE if outermost else ("loss",)
    alive: tuple[Moment, ...] = BEFORE if outermost else ("loss",)
    fetched: tuple[Moment, ...] = BEFORE if shape.sharding == "fsdp-grad-op" else ("backward begins",)
    each = BYTES[shape.packed] if shape.packed and shape.packs_experts else size
    # DeepSpeed keeps gathered parameters up to this number, and FSDP without resharding all.
    most = {"zero3": LIVE_PARAMETERS, "fsdp-grad-op": (count.attention + count.feed_forward) // shape.tensor_parallel}
    blocks = min(shape.model.layers * block, max(2 * block, most.get(shape.sharding, 0)))
    # Offloaded shards are on the device too; FSDP 1 has them twice: as stored, and in the format in which they are gathered.
    shards = (2 if shape.sharding == "fsdp1" else 1) if shape.offload else 0
    joined = 1 if shape.sharding in {"fsdp2", "fsdp-grad-op"} else 0
    copies, by = 1 + joined + shards / share, f" x ({1 + joined} + {shards}/{share})" if shards or joined else ""
    # Copies from the host make the streams wait for each other.
    stream: Group = "framework" if shape.offload else "gathered"
    trained = 1 if shape.method is Method.FULL else 0
    whole, reduced = 0 if shape.loss in {"chunked", "streamed", "fused"} else 1, 0 if outermost or shape.sharding == "zero3" else 1
    of_block = block if shape.sharding == "zero3" else 2 * block
    of_head = f"{head:,} x {size:g} bytes x ({whole} + {reduced}/{share}): whole, and reduced"
    ahead = f"{blocks - block:,} x {each:g} bytes" + (f" x (1 + {shards}/{share})" if shards else "")
    waiting = count_weights(shape).trained * BYTES[shape.parameters] / share if shape.offload and shape.sharding == "fsdp1" else 0
    unreduced = count_weights(shape).trained if shape.keeps_whole_gradients else 0
    until_last = f"{unreduced:,} x {size:g} bytes: not reduced before the last micro-step"
    late = "the device's share of all gradients: copies to the host are slower than the backward pass"
    yield MemoryLine("gathered head", stream, int((head + table) * size * copies), f"{head + table:,} x {size:g} bytes{by}", held)
    yield MemoryLine("gradients of the head", "training", int(head * size * (whole + reduced / share) * trained), of_head, alive)
    yield MemoryLine("gradients of a block", "training", int(of_block * size * trained), f"{of_block:,} x {size:g} bytes", BACKWARD)
    yield MemoryLine("gathered blocks", stream, int(block * each * copies), f"the block in use: {block:,} x {each:g} bytes{by}", BACKWARD)
    yield MemoryLine("prefetched blocks", stream, int((blocks - block) * each * (copies - joined)), ahead, fetched)
    yield MemoryLine("unreduced gradients", "training", int(unreduced * size), until_last, ALL_BUT_UPDATE)
    yield MemoryLine("gradients on their way to the host", "training", int(waiting), late, BEFORE)
