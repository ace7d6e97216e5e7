"""The optimizer of a plan, with a falling learning rate per block where asked."""

from collections.abc import Iterator
from typing import Any

from tunemark.harness.worker.levers import blocks
from tunemark.schema.records.plan import Plan

Group = dict[str, Any]


def build_optimizer(plan: Plan, model: Any, *, fused: bool) -> Any:  # noqa: ANN401 - torch objects
    """Return the optimizer over the weights that receive a gradient; `fused` asks torch for one kernel a step."""
    import torch  # noqa: PLC0415

    o = plan.optimizer
    groups = list(parameter_groups(plan, model))
    adam = {"lr": o.learning_rate, "betas": o.betas, "eps": o.epsilon, "weight_decay": o.weight_decay}
    match o.name:
        case "adamw":
            return torch.optim.AdamW(groups, **adam, fused=fused)
        case "adafactor":
            return torch.optim.Adafactor(groups, lr=o.learning_rate, weight_decay=o.weight_decay)
        case "sgd":
            return torch.optim.SGD(groups, lr=o.learning_rate, weight_decay=o.weight_decay)
        case "adamw_8bit" | "paged_adamw_8bit":
            import bitsandbytes  # noqa: PLC0415

            kind = bitsandbytes.optim.PagedAdamW8bit if o.name.startswith("paged") else bitsandbytes.optim.AdamW8bit
            return kind(groups, **adam)


def parameter_groups(plan: Plan, model: Any) -> Iterator[Group]:  # noqa: ANN401 - a torch module
    """Yield one group of trained weights, or with `layer_decay` one a block: the last at the full rate, each below at a part of it."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decay = plan.optimizer.layer_decay
    if decay is None:
        yield {"params": trained}
        return
    stack, seen = blocks(model), set()
    for depth, block in enumerate(stack):
        own = [parameter for parameter in block.parameters() if parameter.requires_grad]
        seen |= {id(parameter) for parameter in own}
        yield {"params": own, "lr": plan.optimizer.learning_rate * decay ** (len(stack) - 1 - depth)}
    embeddings = {id(p) for module in _embeddings(model) for p in module.parameters()} - seen
    below = [parameter for parameter in trained if id(parameter) in embeddings]
    if below:
        yield {"params": below, "lr": plan.optimizer.learning_rate * decay ** len(stack)}
    head = [parameter for parameter in trained if id(parameter) not in seen | embeddings]
    if head:
        yield {"params": head}


def _embeddings(model: Any) -> list[Any]:  # noqa: ANN401 - torch modules
    from torch import nn  # noqa: PLC0415

    return [module for module in model.modules() if isinstance(module, nn.Embedding)]
