"""Levers on speed and memory that change no result: recomputation, fused kernels, compilation. And what of them took effect."""

from typing import Any

from tunemark.harness.worker.observed import places_of, quantisation_of, sdpa_kernel, stochastic_rounding
from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import Checkpointing

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
        from tunemark.harness.devices.neuron import compiled_graphs as of_xla  # noqa: PLC0415

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
