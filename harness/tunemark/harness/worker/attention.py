"""Attention over packed documents: what each implementation needs to keep the documents of a row apart.

The pieces of a row are known on the host, so nothing here reads a tensor of the device. `sdpa` and `eager` get a mask of
length x length. Flash attention and `varlen` get the cumulative lengths of the pieces, `flex_attention` the blocks of the mask.
"""

import inspect
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tunemark.schema.vocabulary import VARLEN

BLOCK = 128
"""Tokens per side of a block of FlexAttention's mask: torch's default."""
Places = NDArray[np.int64]
"""Position of each token in its piece, shape (rows, length): a piece begins where it is 0."""


def packed_arguments(attention: str, places: Places, window: int | None, *, mixed_windows: str) -> dict[str, Any]:
    """Return the keyword arguments of the model that keep packed documents apart.

    Kernels that take lengths get the window from the model's configuration. For the others, models that mix limited and
    unlimited layers get one mask for each kind.
    """
    if attention == VARLEN or attention.startswith("flash_attention"):
        return cumulative_lengths(places)

    def mask(span: int | None) -> Any:  # noqa: ANN401 - a torch tensor, or blocks
        if attention == "flex_attention":
            return document_blocks(places, span)
        seen = packed_mask(places, span)
        # Booleans for sdpa, values that are added to the scores for eager.
        return torch.from_numpy(seen if attention == "sdpa" else np.where(seen, np.float32(0), np.finfo(np.float32).min))

    if mixed_windows:
        return {"attention_mask": {"full_attention": mask(None), mixed_windows: mask(window)}}
    return {"attention_mask": mask(window)}


# A mask of length x length


def packed_mask(places: Places, window: int | None) -> NDArray[np.bool_]:
    """Return the attention mask, shape (rows, 1, length, length): backwards within a piece, at most `window` tokens."""
    index, begins = np.arange(places.shape[1]), _begins(places)
    seen: NDArray[np.bool_] = (index[:, None] >= index[None, :]) & (begins[:, :, None] <= index[None, None, :])
    if window is not None:
        seen &= index[:, None] - index[None, :] < window
    return seen[:, None]


def _begins(places: Places) -> Places:
    """Return where in its row the piece of each token begins, shape (rows, length)."""
    begins: Places = np.arange(places.shape[1]) - places
    return begins


# Cumulative lengths


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


# Blocks of a mask


@dataclass(frozen=True, slots=True)
class DocumentBlocks:
    """The mask of packed rows as blocks, on the host; `to` makes it torch's `BlockMask` on a device.

    A block that is all visible needs no mask; one that is partly visible is masked by `begins`; all others are left out.
    """

    begins: Any
    """Where in its row the piece of each token begins: int32, shape (rows, length)."""
    partial: Any
    """Numbers of the partly visible blocks of keys for each block of queries, in the first `partial_count` places: int32, shape
    (rows, 1, blocks, blocks)."""
    partial_count: Any
    """Shape (rows, 1, blocks)."""
    full: Any
    full_count: Any
    window: int | None

    def to(self, device: str, *, non_blocking: bool = False) -> Any:  # noqa: ANN401 - torch's BlockMask
        """Return the mask on a device, without waiting."""
        from torch.nn.attention.flex_attention import BlockMask  # noqa: PLC0415 - imports the compiler

        begins, window, length = self.begins.to(device, non_blocking=non_blocking), self.window, self.begins.shape[1]

        def visible(row: Any, _head: Any, query: Any, key: Any) -> Any:  # noqa: ANN401 - torch tensors
            seen = (query >= key) & (begins[row, query] <= key)
            return seen if window is None else seen & (query - key < window)

        blocks = (self.partial_count, self.partial, self.full_count, self.full)
        placed = (part.to(device, non_blocking=non_blocking) for part in blocks)
        return BlockMask.from_kv_blocks(*placed, BLOCK_SIZE=BLOCK, mask_mod=visible, seq_lengths=(length, length))

    def pin_memory(self) -> "DocumentBlocks":
        """Return a copy in pinned memory."""
        return replace(self, **{name: tensor.pin_memory() for name, tensor in self._tensors().items()})

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(tensor.nbytes for tensor in self._tensors().values())

    def _tensors(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("begins", "partial", "partial_count", "full", "full_count")}


def document_blocks(places: Places, window: int | None) -> DocumentBlocks:
    """Return the blocks of the mask that `packed_mask` returns whole, from the first and last token of each block.

    Pieces begin ever later along a row, so a block's first query sees furthest back and its last one least far.
    """
    length = places.shape[1]
    begins, first = _begins(places), np.arange(0, length, BLOCK)
    last = np.minimum(first + BLOCK, length) - 1
    # Shape (rows, blocks of queries, blocks of keys).
    order = np.arange(len(first))
    earlier = (order[:, None] > order[None, :])[None]
    seen = (order[:, None] == order[None, :])[None] | (earlier & (begins[:, first, None] <= last[None, None, :]))
    whole = earlier & (begins[:, last, None] <= first[None, None, :])
    # A block that the end of the row cuts off is masked.
    whole = whole & (last - first == BLOCK - 1)[None, :, None]
    if window is not None:
        seen = seen & (first[:, None] - last[None, :] < window)[None]
        whole = whole & (last[:, None] - first[None, :] < window)[None]
    (partial, partial_count), (full, full_count) = _listed(seen & ~whole), _listed(whole)
    return DocumentBlocks(torch.from_numpy(begins.astype(np.int32)), partial, partial_count, full, full_count, window)


def _listed(blocks: NDArray[np.bool_]) -> tuple[Any, Any]:
    """Return the numbers of the marked blocks of keys, marked ones first, and their count, with a dimension for all heads."""
    numbers = np.argsort(~blocks, axis=-1, kind="stable").astype(np.int32)
    return torch.from_numpy(numbers[:, None]), torch.from_numpy(blocks.sum(axis=-1, dtype=np.int32)[:, None])
