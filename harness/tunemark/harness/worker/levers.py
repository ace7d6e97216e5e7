"""What can be read back from the running objects: number formats, quantised layers, where tensors live, the kernel of attention."""

import os
from collections.abc import Callable, Iterable
from typing import Any

from tunemark.schema.records.effective import short
from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import Checkpointing

SDPA_KERNELS = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn", 4: "overrideable"}
"""torch.nn.attention.SDPBackend, which torch's own choice is one of."""
STOCHASTIC = "NEURON_RT_STOCHASTIC_ROUNDING_EN"


def quantisation_of(model: Any) -> str:  # noqa: ANN401 - a torch module
    """Return the four-bit format of the stored weights and whether its constants are quantised too; `none` without such weights."""
    states = [state for parameter in model.parameters() if (state := getattr(parameter, "quant_state", None)) is not None]
    kinds = {f"{state.quant_type}{', double' if getattr(state, 'nested', False) else ''}" for state in states}
    return "; ".join(sorted(kinds)) or "none"


def places_of(tensors: Iterable[Any]) -> list[str]:
    """Return on which kinds of device tensors live; of a parameter that ZeRO 3 shares, the part of this process. Counters are no states."""
    own = (getattr(tensor, "ds_tensor", tensor) for tensor in tensors)
    return sorted({tensor.device.type for tensor in own if hasattr(tensor, "device") and tensor.numel() > 1})


def states_of(optimizer: Any) -> list[str]:  # noqa: ANN401 - a torch optimizer
    """Return where the states of an optimizer live, after its first step."""
    return places_of(value for state in optimizer.state.values() for value in state.values() if hasattr(value, "numel"))


def stochastic_rounding() -> bool | None:
    """Return what the Neuron runtime was told by the environment, which is all that can be seen; None on other devices."""
    return {"0": False, "1": True}.get(os.environ.get(STOCHASTIC, ""))


def sdpa_kernel(plan: Plan, model: Any) -> str | None:  # noqa: ANN401 - a torch module
    """Return the kernel that torch chooses for attention on rows of the plan's shapes and format on this device; None without sdpa.

    Asked of torch and not observed: a compiled graph, or rows without padding where there might be some, can get another.
    """
    import torch  # noqa: PLC0415

    config = model.config
    if getattr(config, "_attn_implementation", None) != "sdpa" or plan.model.compile != "none":
        return None
    try:
        heads, hidden = config.num_attention_heads, config.hidden_size
        width = getattr(config, "head_dim", None) or hidden // heads
        parameter = next(model.parameters())
        if parameter.device.type not in {"cpu", "cuda", "xpu"}:
            # Elsewhere the question itself would be work for the device.
            return None
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(plan.precision.compute.value, torch.float32)
        length = plan.data.sequence_length
        # One row: the choice does not look at how many there are, and the memory is not to be disturbed.
        query = torch.empty(1, heads, length, width, dtype=kind, device=parameter.device, requires_grad=True)
        masked = plan.data.packing
        mask = torch.ones(1, 1, length, length, dtype=torch.bool, device=parameter.device) if masked else None
        causal = not masked and plan.model.task.value == "causal_lm"
        chosen = torch._fused_sdp_choice(query, query, query, mask, 0.0, causal)  # noqa: SLF001 - there is no public name for it
        return SDPA_KERNELS.get(int(chosen))
    except (AttributeError, RuntimeError, TypeError):
        return None


def watch_compute(model: Any, stack: list[Any], on_seen: Callable[[str], None]) -> None:  # noqa: ANN401 - torch modules
    """Tell the number format of the first matrix product of training, once; nothing is told where all of it is in a compiled graph."""
    layer = _layer(model, stack)
    if layer is None:
        return

    def hook(module: Any, _inputs: Any, output: Any) -> None:  # noqa: ANN401 - torch objects
        import torch  # noqa: PLC0415

        handle.remove()
        # A four-bit layer multiplies in a format of its own and casts back.
        kind = short(str(getattr(module, "compute_dtype", None) or output.dtype))
        fast = kind == "fp32" and output.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
        on_seen("tf32" if fast else kind)

    handle = layer.register_forward_hook(hook)


def _layer(model: Any, stack: list[Any]) -> Any:  # noqa: ANN401 - torch modules
    """Return a linear layer that is not in a compiled graph, a block's first where that is one."""
    from torch import nn  # noqa: PLC0415

    if getattr(model, "_compiled_call_impl", None) is not None or not stack:
        return None
    compiled = any(getattr(block, "_compiled_call_impl", None) is not None for block in stack)
    inside = {id(module) for block in stack for module in block.modules()}
    place = (module for module in model.modules() if id(module) not in inside) if compiled else stack[0].modules()
    # GPT-2's layers are no nn.Linear, and have its weight transposed.
    return next((one for one in place if isinstance(one, nn.Linear) or type(one).__name__ == "Conv1D"), None)


# MOVE: was tunemark.harness.worker.levers: Levers on speed and memory that change no result: recomputation, fused kernels, compilation. And what of them took effect.

KEPT = frozenset(
    {
        "aten::mm",
        "aten::addmm",
        "aten::bmm",
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_cudnn_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        # FlashAttention 2, for rows and for packed documents; FlashAttention 3 through Python and from C++.
        "flash_attn::_flash_attn_forward",
        "flash_attn::_flash_attn_varlen_forward",
        "flash_attn_3::_flash_attn_forward",
        "flash_attn_3::fwd",
    }
)
"""Operators whose results selective checkpointing keeps, by torch's names: those of packages exist once these are imported."""


def recompute(plan: Plan, model: Any) -> None:  # noqa: ANN401 - a torch module
    """Turn on recomputation of activations.

    Full: each block keeps its input only. Selective: it also keeps the results of matrix products and attention, so
    that only cheap element-wise work is done twice. Kernels of attention under other names than those in `KEPT`, such as
    builds of the kernels hub, are run twice.
    """
    if plan.model.gradient_checkpointing is Checkpointing.NONE:
        return
    settings: dict[str, Any] = {"use_reentrant": False}
    if plan.model.gradient_checkpointing is Checkpointing.SELECTIVE:
        settings["context_fn"] = _selective_contexts
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)


def _selective_contexts() -> Any:  # noqa: ANN401 - two context managers of torch
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts  # noqa: PLC0415

    def policy(_context: object, operator: Any, *_arguments: object, **_settings: object) -> Any:  # noqa: ANN401
        return CheckpointPolicy.MUST_SAVE if operator.name() in KEPT else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def fuse(plan: Plan, model: Any) -> None:  # noqa: ANN401 - a torch module
    """Put in Liger's kernels, before adapters wrap the model."""
    if plan.model.fused_kernels == "liger":
        from liger_kernel.transformers import _apply_liger_kernel_to_instance  # noqa: PLC0415 - its documented way for an instance

        _apply_liger_kernel_to_instance(model=model)


def _fused(model: Any) -> str:  # noqa: ANN401 - a torch module
    """Return whose kernels run. Liger leaves each module its class and gives it another `forward`, so that is what is read."""
    return "liger" if any(module.forward.__module__.startswith("liger_kernel.") for module in model.modules()) else "none"


def blocks(model: Any) -> list[Any]:  # noqa: ANN401 - torch modules
    """Return the repeated blocks of a transformers model."""
    from torch import nn  # noqa: PLC0415

    lists: list[Any] = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module)]
    # Of all lists of modules the blocks are the one that holds most parameters.
    return list(max(lists, key=_weights)) if lists else []


def _weights(module: Any) -> int:  # noqa: ANN401 - a torch module
    return sum(parameter.numel() for parameter in module.parameters())


def compile_model(plan: Plan, model: Any) -> None:  # noqa: ANN401 - a torch module
    """Compile in place: each block on its own, which compiles one graph for all of them, or the whole model."""
    if plan.model.compile == "blocks":
        for block in blocks(model):
            block.compile()
    elif plan.model.compile == "model":
        model.compile()


def compiled_graphs() -> int:
    """Return how many graphs this process has compiled so far."""
    import sys  # noqa: PLC0415

    if "torch_xla" in sys.modules:
        from tunemark.harness.vendors.neuron import compiled_graphs as of_xla  # noqa: PLC0415

        return of_xla()
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo else 0


def _compiled(model: Any, stack: list[Any]) -> str:  # noqa: ANN401 - torch modules
    """Return what was given to torch.compile, read from the modules."""
    if getattr(model, "_compiled_call_impl", None) is not None:
        return "model, inductor"
    return "blocks, inductor" if stack and all(getattr(block, "_compiled_call_impl", None) is not None for block in stack) else "none"


def effective(plan: Plan, model: Any, optimizer: Any, processes: int, process_group: str | None, sharding: str | None) -> dict[str, Any]:  # noqa: ANN401
    """Return what really runs, read from the model and the optimizer, as `submission.effective` holds it."""
    inner = getattr(model, "module", model)
    trained = [parameter for parameter in inner.parameters() if parameter.requires_grad]
    stack = blocks(inner)
    recomputing = sum(bool(getattr(block, "gradient_checkpointing", False)) for block in stack)
    word = plan.model.gradient_checkpointing.value
    bare = getattr(optimizer, "optimizer", optimizer)
    return {
        "attention": str(getattr(inner.config, "_attn_implementation", "unknown")),
        "fused_kernels": _fused(inner),
        "compile": _compiled(inner, stack),
        "gradient_checkpointing": "none"
        if not recomputing
        else word
        if recomputing == len(stack)
        else f"{recomputing} of {len(stack)} blocks",
        "attention_kernel": sdpa_kernel(plan, inner),
        "quantisation": quantisation_of(inner),
        "parameters_on": places_of(inner.parameters()),
        "stochastic_rounding": stochastic_rounding(),
        "optimizer": f"{type(bare).__module__.split('.')[0]} {type(bare).__name__}",
        "trainable_dtypes": sorted({str(parameter.dtype).removeprefix("torch.") for parameter in trained}),
        "processes": processes,
        "process_group": process_group,
        "sharding": sharding,
    }
