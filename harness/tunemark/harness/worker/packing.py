"""Packing: documents laid end to end into full rows, none of which sees another.

A row is filled to its last token: the document that does not fit is cut there, and its rest begins the next row as a
document that is not counted again. Every first token of a piece is predicted from nothing.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tunemark.harness.worker.synthetic import Sample

Ids = NDArray[np.int64]


class PackedRow(NamedTuple):
    """A full row: `ids` and `places` have shape (length,), `pieces` the lengths of its pieces."""

    ids: Ids
    places: Ids
    """Position of each token in its piece: a piece begins where it is 0."""
    pieces: list[int]
    documents: int
    """Documents that begin in this row."""


def pack(samples: Iterator[Sample], length: int) -> Iterator[PackedRow]:
    """Yield full rows of `length` tokens from a stream of documents; a rest that fills no row is dropped."""
    ids, pieces, documents, filled = [], [], 0, 0
    for sample in samples:
        rest = np.asarray(sample["input_ids"], dtype=np.int64)
        documents += 1
        while len(rest):
            piece, rest = rest[: length - filled], rest[length - filled :]
            ids.append(piece)
            pieces.append(len(piece))
            filled += len(piece)
            if filled == length:
                yield PackedRow(np.concatenate(ids), np.concatenate([np.arange(n) for n in pieces]), pieces, documents)
                ids, pieces, documents, filled = [], [], 0, 0


def packed_mask(rows: list[PackedRow], window: int | None) -> NDArray[np.bool_]:
    """Return which token may look at which, shape (rows, 1, length, length): backwards inside of its own piece, at most `window` far."""
    places = np.stack([row.places for row in rows])
    piece = (places == 0).cumsum(axis=1)
    index = np.arange(places.shape[1])
    seen: NDArray[np.bool_] = (piece[:, :, None] == piece[:, None, :]) & (index[:, None] >= index[None, :])
    if window is not None:
        seen &= index[:, None] - index[None, :] < window
    return seen[:, None]


def packed_tensors(rows: list[PackedRow], attention: str, window: int | None, *, mixed_windows: bool) -> dict[str, Any]:
    """Return the keyword arguments of a model for packed rows.

    Flash attention reads the pieces from positions that begin anew, and that only in a batch of one row: rows are laid
    end to end. The others get an explicit mask; models that mix limited and unlimited layers get one for each kind.
    """
    import torch  # noqa: PLC0415

    ids, places = np.stack([row.ids for row in rows]), np.stack([row.places for row in rows])
    labels = np.where(places == 0, -100, ids)
    if attention.startswith("flash_attention"):
        flat = {"input_ids": ids, "position_ids": places, "labels": labels}
        return {name: torch.from_numpy(values.reshape(1, -1)) for name, values in flat.items()}
    tensors: dict[str, Any] = {name: torch.from_numpy(v) for name, v in (("input_ids", ids), ("position_ids", places), ("labels", labels))}
    if mixed_windows:
        masks = {"full_attention": packed_mask(rows, None), "sliding_attention": packed_mask(rows, window)}
        tensors["attention_mask"] = {name: _mask(mask, attention) for name, mask in masks.items()}
    else:
        tensors["attention_mask"] = _mask(packed_mask(rows, window), attention)
    return tensors


def _mask(seen: NDArray[np.bool_], attention: str) -> Any:  # noqa: ANN401 - a torch tensor
    """Return a mask as the kernel takes it: sdpa the truth, eager what is added to the scores."""
    import torch  # noqa: PLC0415

    mask = torch.from_numpy(seen)
    return mask if attention == "sdpa" else torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
