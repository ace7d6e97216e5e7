"""The loss of a causal language model without its whole logits: chunks of tokens go through the head, and each leaves its gradients at once.

At 151,936 words the logits of 4,096 tokens, with their copies in fp32, take 8.1 GiB; a chunk of them takes 0.4 GiB.
"""

from functools import wraps
from typing import Any

import torch
from torch.nn import functional

from tunemark.schema.vocabulary import LOSS_CHUNK

IGNORED = -100
"""The label of a token without a loss, as in transformers."""


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
