"""Our micro-batches as a data set of rows, which the trainer's loader puts together again in the same order."""

from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset

from tunemark.harness.worker.batches import Counts, MicroBatch

Row = dict[str, Any]
"""Tensors of shape (tokens,)."""


class Rows(IterableDataset):  # type: ignore[misc] # torch ships no types that are read here
    """The rows of a stream of micro-batches; the counts of each micro-batch wait in `counts` until its step is taken.

    The trainer loads in its own process and reads a step's micro-batches just before it trains on them, so the counts of
    a step are the first ones that wait.
    """

    def __init__(self, batches: Iterator[MicroBatch]) -> None:
        super().__init__()
        self.counts: deque[Counts] = deque()
        self._batches = batches

    def __iter__(self) -> Iterator[Row]:
        """Yield rows, each with a mask: a graph with and one without would both be compiled."""
        import torch  # noqa: PLC0415

        for batch in self._batches:
            tensors = {"attention_mask": torch.ones_like(batch.tensors["input_ids"]), **batch.tensors}
            self.counts.append(batch.everywhere)
            for place in range(len(tensors["input_ids"])):
                yield {name: tensor[place] for name, tensor in tensors.items()}

    def take(self, micro_batches: int) -> Counts:
        """Return the counts of the oldest micro-batches that were not taken yet, summed."""
        counts = Counts()
        for _ in range(min(micro_batches, len(self.counts))):
            counts = counts.plus(self.counts.popleft())
        return counts


def collate(rows: list[Row]) -> Row:
    """Return rows as a micro-batch, tensors of shape (rows, tokens)."""
    import torch  # noqa: PLC0415

    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
