"""Settings of speed and memory that do not change results: recomputation, attention, fused kernels, the loss in chunks, compilation and its cache.

Also reads back those in effect.
"""

import inspect
import os
import sys
from collections.abc import Callable, Iterable
from functools import cache, partial, wraps
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from tunemark.harness.worker.data import IGNORED
from tunemark.harness.worker.fp8 import FrozenFp8Linear
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.trace import STOCHASTIC_OPTIMIZER, TORCH_NAMES, short
from tunemark.schema.vocabulary import ATTENTION_KERNELS, LOSS_CHUNK, NATIVE, NEURON_ROUNDING, SDPA_KERNELS, VARLEN, Backend, Checkpointing

KEPT = {
    *("aten::mm", "aten::addmm", "aten::bmm", "aten::_scaled_mm", "torch_attn::_varlen_attn"),
    *(f"aten::_scaled_dot_product_{kernel}_attention" for kernel in ("flash", "efficient", "cudnn")),
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    # FlashAttention 2, for rows and for packed documents; FlashAttention 3 through Python and from C++.
    *(f"flash_attn::_flash_attn_{rows}forward" for rows in ("", "varlen_")),
    *(f"flash_attn_3::{name}" for name in ("_flash_attn_forward", "fwd")),
}
"""Operators, by torch's names, with results that selective checkpointing keeps. A package's operators exist after its import."""


def recompute(plan: Plan, model: Any) -> None:  # noqa: ANN401 - a torch module
    """Turn on recomputation of activations.

    Full: each block keeps its input only. Selective: it also keeps the results of matrix products and attention, so that
    only cheap element-wise work is repeated. Attention kernels that are not in `KEPT` run twice.
    """
    if plan.model.gradient_checkpointing is Checkpointing.NONE:
        return
    settings: dict[str, Any] = {"use_reentrant": False}
    if plan.model.gradient_checkpointing is Checkpointing.SELECTIVE:
        keep, repeat = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE
        policy = lambda _context, operator, *_, **__: keep if operator.name() in KEPT else repeat  # noqa: E731 - torch's signature
        settings["context_fn"] = partial(create_selective_checkpoint_contexts, policy)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)


def fuse(plan: Plan, model: Any) -> None:  # noqa: ANN401 - a torch module
    """Install Liger's kernels, the loss in chunks of tokens, or torchao's products in fp8, before adapters wrap the model."""
    if plan.model.fused_kernels == "liger":
        from liger_kernel.transformers import _apply_liger_kernel_to_instance  # noqa: PLC0415 - its documented way for an instance

        _apply_liger_kernel_to_instance(model=model)
    if plan.model.loss == "chunked":
        chunk_loss(model)
    if plan.model.fp8_training != "none":
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # noqa: PLC0415 - an optional package

        config = Float8LinearConfig.from_recipe_name(plan.model.fp8_training)
        for block in blocks(model):
            # All three products of a layer are in fp8; weights keep their format.
            convert_to_float8_training(block, config=config)


def store_in_fp8(plan: Plan, model: Any, device: str) -> None:  # noqa: ANN401 - a torch module
    """Replace the linear layers of all blocks by frozen ones in fp8, if the plan has them; no more than one weight is held in both formats.

    Weights move to the device to be rounded there, and stay. Layers on torch's `meta` device stay without weights.
    """
    for block in blocks(model) if plan.model.frozen_weights == "fp8" else ():
        # Paths, because a list of modules would keep all weights until the end.
        for path in [path for path, layer in block.named_modules() if type(layer) is nn.Linear]:
            parent, _, name = path.rpartition(".")
            setattr(block.get_submodule(parent), name, FrozenFp8Linear(block.get_submodule(path), device))


def blocks(model: Any) -> list[Any]:  # noqa: ANN401 - torch modules
    """Return the repeated blocks of a transformers model: the list of modules that holds the most parameters."""

    def weights(module: Any) -> int:  # noqa: ANN401 - a torch module
        # DeepSpeed stores the full size of a parameter that it has sharded.
        return sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in module.parameters())

    lists: list[Any] = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module)]
    return list(max(lists, key=weights)) if lists else []


def layers_in_fp8(model: Any) -> list[Any]:  # noqa: ANN401 - torch modules
    """Return the layers with frozen weights in fp8."""
    return [module for module in model.modules() if isinstance(module, FrozenFp8Linear)]


COMPILERS = {Backend.NEURON: "neuron", Backend.TPU: "tpu", Backend.HPU: "hpu_backend"}
"""Back end of torch.compile (transformers 5.23, `_default_compile_config`; docs.habana.ai, PyTorch Support Matrix). Others have inductor."""


def compile_model(plan: Plan, model: Any) -> None:  # noqa: ANN401 - a torch module
    """Compile in place: each block on its own, which compiles one graph for all of them, or the whole model."""
    mode, compiler = plan.model.compile_mode, COMPILERS.get(plan.device.backend, "inductor")
    if plan.model.compile == "blocks":
        # CUDA graphs of blocks that share one graph would copy the weights of each into it.
        for block in blocks(model):
            block.compile(backend=compiler, mode="max-autotune-no-cudagraphs" if mode == "max-autotune" else mode)
    elif plan.model.compile == "model":
        model.compile(backend=compiler, mode=mode)


def lengths_vary(tensors: dict[str, Any]) -> None:
    """Tell the compiler that the number of pieces differs between micro-batches: it would compile once more to find that out.

    Call it with the tensors on the device: a copy loses the mark.
    """
    for name in ("cu_seq_lens_q", "cu_seq_lens_k"):
        if name in tensors:
            torch._dynamo.maybe_mark_dynamic(tensors[name], 0)  # noqa: SLF001 - it has no other name


def limit_sdpa(plan: Plan) -> None:
    """Leave torch only the kernel of the plan for scaled dot product attention; it raises where that cannot run."""
    # Torch's switches have another name for one kernel.
    chosen = {"efficient": "mem_efficient"}.get(plan.model.sdpa_kernel, plan.model.sdpa_kernel)
    if chosen != "auto":
        for name in ("flash", "mem_efficient", "cudnn", "math"):
            getattr(torch.backends.cuda, f"enable_{name}_sdp")(name == chosen)


def compiled_graphs() -> int:
    """Return the number of graphs that this process has compiled so far."""
    if "torch_xla" in sys.modules:
        import torch_xla.debug.metrics as xla_metrics  # noqa: PLC0415

        return int(xla_metrics.counter_value("UncachedCompile") or 0)
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo else 0


def prepare_transformers(plan: Plan) -> None:
    """Make `varlen` known to transformers, and keep it from reading tensors of the device, which waits for it in each forward pass.

    Positions separate documents where the plan packs them, so it need not find that out. A mask is given for rows with padding
    only (`data.tensors_of`), so it need not look for padding in the mask, nor for missing masks in the tokens.
    """
    from transformers import AttentionInterface, PreTrainedModel, masking_utils  # noqa: PLC0415

    # An implementation without a mask function of its own gets no masks.
    AttentionInterface.register(VARLEN, varlen_attention)
    # The number of each token's piece: a piece begins at position 0.
    packed = plan.data.packing and plan.data.document_borders
    masking_utils.find_packed_sequence_indices = lambda positions: (positions == 0).cumsum(-1) if packed else None
    masking_utils._ignore_causal_mask_sdpa = needs_no_mask  # noqa: SLF001 - there is no public name for it
    masking_utils._ignore_bidirectional_mask_sdpa = needs_no_mask  # noqa: SLF001
    PreTrainedModel.warn_if_padding_and_no_attention_mask = lambda *_: None


def add_masks(plan: Plan, model: Any) -> None:  # noqa: ANN401 - a torch module
    """Make the masks of packed rows before each forward pass: GPT-OSS, Falcon, and more models in transformers 4 ignore positions in theirs."""
    from transformers.masking_utils import create_masks_for_generate  # noqa: PLC0415

    whole = model.forward

    @wraps(whole)
    def forward(**tensors: Any) -> Any:  # noqa: ANN401 - transformers' signature
        if (places := tensors.get("position_ids")) is not None and not tensors.keys() & {"attention_mask", "cu_seq_lens_q"}:
            like = torch.empty((*places.shape, 0), dtype=model.dtype, device=places.device)
            queries = torch.arange(places.shape[1], device=places.device)
            masks = create_masks_for_generate(model.config, like, None, cache_position=queries, past_key_values=None, position_ids=places)
            tensors["attention_mask"] = masks
        return whole(**tensors)

    # Llama 4 makes its own: before the forward pass, transformers 5.17 cannot make masks of chunks.
    if plan.data.packing and plan.data.document_borders and getattr(model.config, "attention_chunk_size", None) is None:
        model.forward = forward


def needs_no_mask(padding_mask: Any, length: int, *others: int | None) -> bool:  # noqa: ANN401 - a tensor
    """Return True if the sdpa kernel can do without a mask: for rows without padding, and shorter than the window if there is one.

    The last of the others is the window. The rest are lengths and offsets of keys, which in training are those of queries.
    The functions of transformers 5.17 also return False in each compiled model, which then gets a mask of length x length.
    """
    return padding_mask is None and ((window := others[-1]) is None or length < window)


def varlen_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    cu_seq_lens_q: torch.Tensor,
    max_length_q: int,
    **_others: object,
) -> tuple[torch.Tensor, None]:
    """Return attention by torch's FlashAttention kernel for pieces laid end to end, shape (rows, length, heads, width), for transformers.

    Queries, keys and values have the shape (rows, heads, length, width). Keys and values may have fewer heads. Padding is on the right of a piece, where no earlier token looks.
    """
    from torch.nn.attention import varlen  # noqa: PLC0415 - in torch since 2.10

    if dropout or attention_mask is not None:
        msg = f"attention={VARLEN} of {type(module).__name__} takes neither dropout nor a mask; use attention=sdpa"
        raise ValueError(msg)
    rows, heads, length, width = query.shape
    # (rows, heads, length, width) -> (rows x length, heads, width). Rotary embeddings leave queries and keys in fp32 under autocast.
    queries, keys, values = (part.to(value.dtype).transpose(1, 2).reshape(rows * length, part.shape[1], -1) for part in (query, key, value))
    # Tokens that a token sees before and after itself; -1 stands for all.
    window = (sliding_window - 1 if sliding_window is not None and sliding_window < max_length_q else -1, 0)
    # Before torch 2.12 the kernel takes fewer heads of keys without being told.
    grouped = {"enable_gqa": True} if queries.shape[1] != keys.shape[1] and tells_groups() else {}
    lengths, longest = cu_seq_lens_q, max_length_q
    result = varlen.varlen_attn(queries, keys, values, lengths, lengths, longest, longest, scale=scaling, window_size=window, **grouped)
    return result.reshape(rows, length, heads, width), None


@cache
def tells_groups() -> bool:
    """Return True if torch's function has a parameter for grouped heads, as it has since torch 2.12."""
    from torch.nn.attention import varlen  # noqa: PLC0415 - in torch since 2.10

    return "enable_gqa" in inspect.signature(varlen.varlen_attn).parameters


# The loss of a causal language model without its whole logits: chunks of tokens go through the head, and each leaves its gradients at once.
# At 151,936 words the logits of 4,096 tokens, with their copies in fp32, take 8.1 GiB; a chunk of them takes 0.4 GiB.


def chunk_loss(model: Any) -> None:  # noqa: ANN401 - a torch module
    """Let a model of transformers compute its loss in chunks where it gets labels. Call it before adapters wrap the model.

    The code of its family stays in use: given labels, the head passes the hidden states on in the place of logits. A family that scales
    logits scales them, which is the same. The loss then calls the head again, as a module, so that libraries gather a sharded one for it.
    """
    head, whole, with_labels = model.get_output_embeddings(), model.forward, False
    product = head.forward

    @wraps(whole)
    def forward(*inputs: Any, labels: Any = None, **settings: Any) -> Any:  # noqa: ANN401 - transformers' signature
        nonlocal with_labels
        with_labels = labels is not None
        return whole(*inputs, labels=labels, **settings)

    def head_forward(states: Any, labels: Any = None) -> Any:  # noqa: ANN401 - torch tensors
        if labels is not None:
            return mean_loss(states, head.weight, labels)
        if not with_labels:
            return product(states)
        kind = states.device.type
        return states.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else states

    model.forward, head.forward = forward, head_forward
    model.loss_function = lambda logits, labels, *_size, **_settings: head(logits, labels=labels)


def mean_loss(states: Any, weight: Any, labels: Any) -> Any:  # noqa: ANN401 - torch tensors
    """Return the mean cross-entropy of the next tokens, in fp32; `states` are (rows, tokens, width), `labels` (rows, tokens)."""
    following = functional.pad(labels, (0, 1), value=IGNORED)[:, 1:].reshape(-1)
    total = SummedLoss.apply(states.reshape(-1, states.shape[-1]), weight, following, torch.is_grad_enabled())
    return total / (following != IGNORED).sum()


class SummedLoss(torch.autograd.Function):  # type: ignore[misc] # its base class has no types
    """The sum of the losses of tokens (tokens, width) with a head (words, width). The forward pass computes the gradients too.

    A gradient of the head adds up in the head's own format, as over micro-batches. The backward pass only scales: the sum keeps fp16 from
    gradients that are too small for it.
    """

    @staticmethod
    def forward(context: Any, states: Any, weight: Any, labels: Any, trained: bool) -> Any:  # noqa: ANN401, D102, FBT001
        to_states, to_weight = (trained and needed for needed in context.needs_input_grad[:2])
        total = torch.zeros((), dtype=torch.float32, device=states.device)
        known = (labels != IGNORED).unsqueeze(1)
        product = weight.to(states.dtype)
        context.to_states = torch.empty_like(states) if to_states else None
        context.to_weight = torch.zeros_like(weight) if to_weight else None
        rows = max(1, LOSS_CHUNK // len(weight))
        for first in range(0, len(states), rows):
            part, wanted, counted = (tensor[first : first + rows] for tensor in (states, labels, known))
            scores = functional.log_softmax(part @ product.T, -1, dtype=torch.float32)
            total += functional.nll_loss(scores, wanted, ignore_index=IGNORED, reduction="sum")
            if to_states or to_weight:
                # The probabilities, minus one at the right word.
                scores.exp_().scatter_add_(1, wanted.clamp(min=0).unsqueeze(1), -counted.float())
                scores = scores.to(states.dtype)
            if to_states:
                torch.mm(scores, product, out=context.to_states[first : first + rows]).mul_(counted)
            if to_weight and product.dtype is weight.dtype:
                context.to_weight.addmm_(scores.T, part * counted)
            elif to_weight:
                context.to_weight.add_(scores.T @ (part * counted))
            # Otherwise it would live until the next chunk has its own.
            del scores
        return total

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:  # noqa: ANN401, D102
        given = (context.to_states, context.to_weight)
        # The loss, and so the context, lives until the next micro-batch has one.
        context.to_states = context.to_weight = None
        return *(None if each is None else each.mul_(gradient) for each in given), None, None


# Read back what took effect


def effective(plan: Plan, model: Any, optimizer: Any, processes: int, process_group: str | None, sharding: str | None) -> dict[str, Any]:  # noqa: ANN401
    """Return the settings in effect, read from the model and the optimizer, as `submission.effective` holds them."""
    inner = getattr(model, "module", model)
    trained = [parameter for parameter in inner.parameters() if parameter.requires_grad]
    stack = blocks(inner)
    recomputing = sum(bool(getattr(block, "gradient_checkpointing", False)) for block in stack)
    checkpointing = plan.model.gradient_checkpointing.value if recomputing == len(stack) else f"{recomputing} of {len(stack)} blocks"
    bare = getattr(optimizer, "optimizer", optimizer)
    # Liger and the loss in chunks leave each module its class and replace its `forward`.
    origins = {module.forward.__module__ for module in inner.modules()}
    compiled, compiler = "none", COMPILERS.get(plan.device.backend, "inductor")
    if _is_compiled(inner):
        compiled = f"model, {compiler}"
    elif stack and all(map(_is_compiled, stack)):
        compiled = f"blocks, {compiler}"
    if compiled != "none" and plan.model.compile_mode != "default":
        compiled += f", {plan.model.compile_mode}"
    rounding: bool | None = type(bare).__name__ == STOCHASTIC_OPTIMIZER
    if plan.device.backend is Backend.NEURON_XLA:
        # The setting of the runtime; None if it has none.
        rounding = {"0": False, "1": True}.get(os.environ.get(NEURON_ROUNDING, ""))
    return {
        "attention": str(getattr(inner.config, "_attn_implementation", "unknown")),
        "fused_kernels": "liger" if any(name.startswith("liger_kernel.") for name in origins) else "none",
        "loss": "chunked" if __name__ in origins else "whole",
        "compile": compiled,
        "gradient_checkpointing": checkpointing if recomputing else "none",
        "attention_kernel": attention_kernel(plan, inner),
        "quantisation": quantisation_of(inner),
        "fp8_training": fp8_recipe(inner),
        "parameters_on": places_of(inner.parameters()),
        "expandable_segments": expandable_segments(inner),
        "stochastic_rounding": rounding,
        "optimizer": f"{type(bare).__module__.split('.')[0]} {type(bare).__name__}",
        "trainable_dtypes": sorted({str(parameter.dtype).removeprefix("torch.") for parameter in trained}),
        "processes": processes,
        "process_group": process_group,
        "sharding": sharding,
        "gradient_reduction": gradient_reduction(inner),
    }


def gradient_reduction(model: Any) -> str | None:  # noqa: ANN401 - a torch module
    """Return the number format in which FSDP2 adds up gradients; None for a model that it does not shard."""
    if not hasattr(model, "_get_fsdp_state"):
        return None
    policy = model._get_fsdp_state()._fsdp_param_group.mp_policy  # noqa: SLF001 - there is no public name for it
    return short(str(policy.reduce_dtype or next(model.parameters()).dtype))


def expandable_segments(model: Any) -> bool | None:  # noqa: ANN401 - a torch module
    """Return True if torch's allocator grows its segments instead of adding new ones; None on devices that cannot."""
    if next(model.parameters()).device.type != "cuda":
        return None
    # The environment holds what was requested; the allocator's settings are False on a platform that cannot.
    settings = torch.cuda.memory._snapshot().get("allocator_settings", {})  # noqa: SLF001 - there is no public name for it
    segments: bool | None = settings.get("expandable_segments")
    return segments


def _is_compiled(module: Any) -> bool:  # noqa: ANN401 - a torch module
    return getattr(module, "_compiled_call_impl", None) is not None


def quantisation_of(model: Any) -> str:  # noqa: ANN401 - a torch module
    """Return the 4-bit or fp8 format of the weights, with `, double` if its constants are quantised too; `none` without such weights."""
    states = [state for parameter in model.parameters() if (state := getattr(parameter, "quant_state", None)) is not None]
    kinds = {f"{state.quant_type}{', double' if getattr(state, 'nested', False) else ''}" for state in states}
    frozen = {"fp8"} if layers_in_fp8(model) else set()
    return "; ".join(sorted(kinds | frozen)) or "none"


def fp8_recipe(model: Any) -> str:  # noqa: ANN401 - a torch module
    """Return torchao's recipe of the layers that it replaced, from their scales; `none` without such layers."""
    layers = (module for module in model.modules() if type(module).__module__.startswith("torchao.float8"))
    names = {str(layer.config.cast_config_input.scaling_granularity.value) for layer in layers}
    return "; ".join(sorted("rowwise" if name == "axiswise" else name for name in names)) or "none"


def places_of(tensors: Iterable[Any]) -> list[str]:
    """Return the kinds of device that tensors are on; for a ZeRO 3 parameter, of this process's part. Scalars do not count."""
    own = (getattr(tensor, "ds_tensor", tensor) for tensor in tensors)
    return sorted({tensor.device.type for tensor in own if isinstance(tensor, torch.Tensor) and tensor.numel() > 1})


def attention_kernel(plan: Plan, model: Any) -> str | None:  # noqa: ANN401 - a torch module
    """Return the only kernel of the attention implementation, or the one of sdpa that torch selects for the plan's shapes; None if unknown.

    The latter asks torch and observes no run: a compiled graph, or rows without padding where some have it, can get another kernel.
    """
    config, device = model.config, next(model.parameters()).device
    implementation = str(getattr(config, "_attn_implementation", None))
    kernels = ATTENTION_KERNELS.get(implementation, ())
    if len(kernels) == 1:
        return kernels[0]
    # On other devices the question itself would queue work.
    if implementation != "sdpa" or plan.model.compile != "none" or device.type not in {"cpu", "cuda", "xpu"}:
        return None
    try:
        heads = config.num_attention_heads
        width = getattr(config, "qk_head_dim", None) or getattr(config, "head_dim", None) or config.hidden_size // heads
        kind = getattr(torch, TORCH_NAMES[plan.precision.compute])
        length, masked = plan.data.sequence_length, plan.data.packing
        # One row: the choice does not depend on their number, and memory must not be disturbed.
        query = torch.empty(1, heads, length, width, dtype=kind, device=device, requires_grad=True)
        value = query[..., : getattr(config, "v_head_dim", width)]
        mask = torch.ones(1, 1, length, length, dtype=torch.bool, device=device) if masked else None
        causal = not masked and plan.model.task.value == "causal_lm"
        chosen = int(torch._fused_sdp_choice(query, query, value, mask, 0.0, causal))  # noqa: SLF001 - there is no public name for it
        return SDPA_KERNELS[chosen] if 0 <= chosen < len(SDPA_KERNELS) else None
    except (AttributeError, RuntimeError, TypeError):
        return None


def watch_compute(model: Any, stack: list[Any], on_seen: Callable[[str], None]) -> None:  # noqa: ANN401 - torch modules
    """Report the number format of training's first matrix product outside fp8, once; nothing where all products are in compiled graphs."""
    if _is_compiled(model) or not stack:
        return
    # A linear layer outside compiled graphs, the first of a block if possible.
    in_blocks = {id(module) for block in stack for module in block.modules()}
    outside = (module for module in model.modules() if id(module) not in in_blocks)
    modules = outside if any(map(_is_compiled, stack)) else stack[0].modules()
    # GPT-2's layers are not nn.Linear, and have its weight transposed.
    plain = (module for module in modules if not isinstance(module, FrozenFp8Linear))
    layer: Any = next((module for module in plain if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"), None)
    if layer is None:
        return

    def hook(module: Any, _inputs: Any, output: Any) -> None:  # noqa: ANN401 - torch objects
        handle.remove()
        # A four-bit layer multiplies in a format of its own and casts back.
        number_format = short(str(getattr(module, "compute_dtype", None) or output.dtype))
        tf32 = number_format == "fp32" and output.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
        on_seen("tf32" if tf32 else number_format)

    handle = layer.register_forward_hook(hook)


# The state of the compile cache on disk before the run (definitions#compile-overhead): cold, warm, or the reason why it is unknown


def cache_state(plan: Plan) -> dict[str, Any]:
    """Return the state for the log: `cold` when anything was compiled, `warm` if every graph came from the cache, `none` without any."""
    if plan.device.backend in NATIVE or (plan.device.backend is Backend.NEURON_XLA and compiled_graphs()):
        return {"state": None, "reason": "the vendor's compiler counts no hits and misses of its cache"}
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters = dynamo.counters["inductor"] if dynamo else {}
    misses = counters.get("fxgraph_cache_miss", 0) + counters.get("fxgraph_cache_bypass", 0)
    # With its cache turned off torch counts neither, and everything is compiled.
    state = "warm" if counters.get("fxgraph_cache_hit", 0) and not misses else "cold" if misses or compiled_graphs() else "none"
    return {"state": state, "reason": None}
