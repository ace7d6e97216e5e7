"""Build the optimizer of a plan. Two forms of AdamW for bf16 weights do not lose small updates to rounding."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.optim.adamw import adamw

from tunemark.harness.run.run_log import rank_of_this_process
from tunemark.harness.worker.levers import blocks
from tunemark.harness.worker.models import bytes_here
from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import MASTER_CHUNK, ROUNDING_CHUNK, SHARDED_WEIGHTS

LOW_BITS = 16
"""Bits of an fp32 number that bf16 does not have: sign, exponent and 7 bits of the fraction are the same."""


def build_optimizer(plan: Plan, model: Any, *, fused: bool) -> Any:  # noqa: ANN401 - torch objects
    """Return the optimizer over the trained weights; `fused` asks torch for one kernel per step."""
    settings = plan.optimizer
    groups = list(parameter_groups(plan, model))
    adam = {"lr": settings.learning_rate, "betas": settings.betas, "eps": settings.epsilon, "weight_decay": settings.weight_decay}
    match settings.name:
        case "adamw" if settings.master_weights:
            return MasterAdamW(groups, **adam, fused=fused)
        case "adamw" if plan.optimizer_rounds_stochastically:
            return StochasticAdamW(groups, seed=rounding_seed(plan), **adam, fused=fused)
        case "adamw":
            return torch.optim.AdamW(groups, **adam, fused=fused)
        case "adafactor":
            return torch.optim.Adafactor(groups, lr=settings.learning_rate, weight_decay=settings.weight_decay)
        case "sgd":
            return torch.optim.SGD(groups, lr=settings.learning_rate, weight_decay=settings.weight_decay)
        case "adamw_8bit" | "paged_adamw_8bit":
            import bitsandbytes  # noqa: PLC0415

            kind = bitsandbytes.optim.PagedAdamW8bit if settings.name.startswith("paged") else bitsandbytes.optim.AdamW8bit
            return kind(groups, **adam)


class MasterAdamW(torch.optim.AdamW):  # type: ignore[misc] # its base class has no types
    """AdamW over fp32 copies of 16-bit weights, which are rounded after each update.

    Gradients are cast some at a time. Groups and states belong to the copies; gradients stay with the model's weights.
    """

    def __init__(self, groups: list[dict[str, Any]], **settings: Any) -> None:  # noqa: ANN401 - of torch's AdamW
        self._weights = [weight for group in groups for weight in group["params"]]
        copies = [{**group, "params": [weight.detach().float() for weight in group["params"]]} for group in groups]
        super().__init__(copies, **settings)
        self._masters = [copy for group in self.param_groups for copy in group["params"]]

    def step(self, closure: Any = None) -> None:  # noqa: ANN401, ARG002 - torch's signature
        """Update the copies, and round the weights from them."""
        chunk: list[Any] = []
        for weight, master in zip(self._weights, self._masters, strict=True):
            if weight.grad is not None:
                master.grad = weight.grad.float()
                chunk.append((weight, master))
            if sum(bytes_here(copy) for _, copy in chunk) >= 4 * MASTER_CHUNK:
                self._update(chunk)
                chunk = []
        self._update(chunk)

    def _update(self, chunk: list[Any]) -> None:
        """Update the copies that have a gradient, and free those gradients."""
        super().step()
        for weight, master in chunk:
            weight.data.copy_(master)
            master.grad = None
            # Counted with the states of the optimizer.
            self.state[master].setdefault("master", master)

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's signature
        """Free the gradients of the model's weights."""
        for weight in self._weights:
            weight.grad = None if set_to_none or weight.grad is None else weight.grad.zero_()


class StochasticAdamW(torch.optim.AdamW):  # type: ignore[misc] # its base class has no types
    """AdamW of bf16 weights that rounds each updated weight up or down at random, so that its expectation is the exact update.

    The update is computed in fp32, for at most `ROUNDING_CHUNK` weights at a time, by torch's own AdamW. Both moments have the format
    of the weights, rounded to nearest, as torch keeps them. Random bits come from a generator of the weights' device that nothing
    else uses.
    """

    def __init__(self, groups: list[dict[str, Any]], *, seed: int, **settings: Any) -> None:  # noqa: ANN401 - of torch's AdamW
        super().__init__(groups, **settings)
        other = {weight.dtype for group in self.param_groups for weight in group["params"]} - {torch.bfloat16}
        if other:
            msg = f"stochastic rounding is for bf16 weights, not {', '.join(sorted(map(str, other)))}"
            raise ValueError(msg)
        self._seed = seed
        self._generators: dict[Any, Any] = {}

    def step(self, closure: Any = None) -> None:  # noqa: ANN401, ARG002 - torch's signature
        """Update all weights that have a gradient. The host never waits for the device."""
        with torch.no_grad():
            for group in self.param_groups:
                for weight in group["params"]:
                    if weight.grad is not None:
                        self._update(group, weight)

    def _update(self, group: dict[str, Any], weight: Any) -> None:  # noqa: ANN401 - a torch parameter
        """Update the part of a weight that this process holds."""
        state, fused = self.state[weight], bool(group["fused"])
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=weight.device if fused else "cpu")
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
        kept = [local(tensor).view(-1) for tensor in (weight, state["exp_avg"], state["exp_avg_sq"])]
        gradient = local(weight.grad).reshape(-1)
        for start in range(0, len(gradient), ROUNDING_CHUNK):
            part = slice(start, start + ROUNDING_CHUNK)
            exact, first, second = (tensor[part].float() for tensor in kept)
            adamw(
                *([exact], [gradient[part].float()], [first], [second], []),
                # torch increments the step in place, and all parts of a weight are in the same step.
                [state["step"].clone()],
                foreach=False,
                fused=fused,
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )
            kept[1][part].copy_(first)
            kept[2][part].copy_(second)
            del first, second
            kept[0][part].copy_(rounded_stochastically(exact, self._generator(exact.device)))
        state["step"] += 1

    def _generator(self, device: Any) -> Any:  # noqa: ANN401 - torch objects
        """Return the generator of a device, which starts at the seed."""
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]


def rounded_stochastically(exact: Any, generator: Any) -> Any:  # noqa: ANN401 - torch objects
    """Return one of the two bf16 neighbours of each number, in fp32, with probabilities that make the expectation exact.

    bf16 keeps the upper 16 bits of an fp32 number. Adding 16 random bits carries into them with a probability equal to the dropped
    part of the fraction, in units of the last kept bit. Numbers that bf16 can represent do not change (arXiv 2006.00489).
    """
    bits = torch.randint(0, 1 << LOW_BITS, exact.shape, dtype=torch.int32, device=exact.device, generator=generator)
    # A GPU's NaN has all bits set: the carry would make it zero, and hide it.
    bits.masked_fill_(exact.isnan(), 0)
    bits += exact.view(torch.int32)
    bits &= -(1 << LOW_BITS)
    return bits.view(torch.float32)


def rounding_seed(plan: Plan) -> int:
    """Return the seed of the random bits: the same for all replicas, so that they stay equal, and another for each shard of the weights."""
    shards = plan.device.strategy in SHARDED_WEIGHTS
    return plan.measurement.seed * plan.device.count + (rank_of_this_process() if shards else 0)


def local(tensor: Any) -> Any:  # noqa: ANN401 - a torch tensor
    """Return the part of a tensor that this process holds, sharing its memory."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def parameter_groups(plan: Plan, model: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - a torch module
    """Yield one group of trained weights, or with `layer_decay` one per block.

    The last block has the full learning rate, each block below it a fraction of the one above, and the embeddings the lowest.
    """
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
    layers = (module for module in model.modules() if isinstance(module, torch.nn.Embedding))
    embeddings = {id(parameter) for layer in layers for parameter in layer.parameters()} - seen
    below = [parameter for parameter in trained if id(parameter) in embeddings]
    if below:
        yield {"params": below, "lr": plan.optimizer.learning_rate * decay ** len(stack)}
    head = [parameter for parameter in trained if id(parameter) not in seen | embeddings]
    if head:
        yield {"params": head}
