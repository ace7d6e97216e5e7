"""Attention kernels that take packed documents by their lengths: torch's own one, made known to transformers, and the lengths of all of them."""

import inspect
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tunemark.schema.vocabulary import VARLEN

Places = NDArray[np.int64]
"""Position of each token in its piece, shape (rows, length): a piece begins where it is 0."""


def cumulative_lengths(places: Places) -> dict[str, Any]:
    """Return the ends of all pieces of rows laid end to end, shape (pieces + 1,), and their longest length, by transformers' names.

    Without them transformers infers the pieces from the positions, and waits for the device in each layer. The longest length
    is that of the rows: it limits that of pieces, and as it is the same in each step nothing is compiled again for it.
    """
    flat, longest = places.reshape(-1), places.shape[1]
    lengths = torch.from_numpy(np.append(np.flatnonzero(flat == 0), flat.size).astype(np.int32))
    return {"cu_seq_lens_q": lengths, "cu_seq_lens_k": lengths, "max_length_q": longest, "max_length_k": longest}


def _tells_groups() -> bool:
    """Return True if torch's function has a parameter for grouped heads, as it has since torch 2.12."""
    try:
        from torch.nn.attention import varlen  # noqa: PLC0415 - in torch since 2.10
    except ImportError:
        return False
    return "enable_gqa" in inspect.signature(varlen.varlen_attn).parameters


TELLS_GROUPS = _tells_groups()


def varlen_attention(
    module: Any,  # noqa: ANN401 - a torch module
    query: Any,  # noqa: ANN401 - torch tensors of shape (rows, heads, length, width)
    key: Any,  # noqa: ANN401
    value: Any,  # noqa: ANN401
    attention_mask: Any,  # noqa: ANN401
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    cu_seq_lens_q: Any = None,  # noqa: ANN401
    max_length_q: int | None = None,
    **_others: object,
) -> tuple[Any, None]:
    """Return attention by torch's FlashAttention kernel for pieces laid end to end, shape (rows, length, heads, width), for transformers.

    Keys and values may have fewer heads. Without lengths each row is one piece: padding is on its right, where no earlier token looks.
    """
    if dropout or attention_mask is not None:
        msg = f"attention={VARLEN} of {type(module).__name__} takes neither dropout nor a mask; use attention=sdpa"
        raise ValueError(msg)
    rows, heads, length, width = query.shape
    if cu_seq_lens_q is None or max_length_q is None:
        cu_seq_lens_q = torch.arange(0, (rows + 1) * length, length, dtype=torch.int32, device=query.device)
        max_length_q = length
    # (rows, heads, length, width) -> (rows x length, heads, width). Rotary embeddings leave queries and keys in fp32 under autocast.
    laid = (part.to(value.dtype).transpose(1, 2).reshape(rows * length, part.shape[1], -1) for part in (query, key, value))
    queries, keys, values = laid
    # Tokens that a token sees before and after itself; -1 stands for all.
    limited = sliding_window is not None and sliding_window < max_length_q
    window = (sliding_window - 1 if limited and sliding_window is not None else -1, 0)
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - in torch since 2.10

    # Before torch 2.12 the kernel takes fewer heads of keys without being told.
    grouped = {"enable_gqa": True} if queries.shape[1] != keys.shape[1] and TELLS_GROUPS else {}
    lengths, longest = cu_seq_lens_q, max_length_q
    result = varlen_attn(queries, keys, values, lengths, lengths, longest, longest, scale=scaling, window_size=window, **grouped)
    return result.reshape(rows, length, heads, width), None


def register_varlen() -> None:
    """Make `varlen` known to transformers. It makes no masks for an implementation without a mask function of its own."""
    from transformers import AttentionInterface  # noqa: PLC0415

    AttentionInterface.register(VARLEN, varlen_attention)
