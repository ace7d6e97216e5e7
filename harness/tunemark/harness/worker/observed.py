"""What can be read back from the running objects: number formats, quantised layers, where tensors live, the kernel of attention."""

import os
from collections.abc import Callable, Iterable
from typing import Any

from tunemark.schema.records.effective import short
from tunemark.schema.records.plan import Plan

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
