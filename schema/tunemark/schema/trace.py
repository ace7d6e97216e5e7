"""The raw step log of one run, as columns: the only thing headline numbers are made from."""

from itertools import pairwise
from typing import Self

from pydantic import Field, model_validator

from tunemark.schema.base import Count, Frozen, Seconds

COUNT_COLUMNS = ("slot_tokens", "real_tokens", "supervised_tokens", "documents", "rows")


class StepTrace(Frozen):
    """One entry per optimizer step and column; counts are summed over all data-parallel ranks.

    All times are seconds on one monotonic clock that starts when the worker process is spawned.
    """

    started_at_s: Seconds = 0.0
    """When the first optimizer step began, the device synchronised."""
    completed_at_s: tuple[Seconds, ...] = ()
    """When each optimizer step was complete: step time is the difference to the one before."""
    slot_tokens: tuple[Count, ...] = ()
    """Elements of the input tensors, padding included."""
    real_tokens: tuple[Count, ...] = ()
    """Tokens that are not padding. The headline tokens/s counts these."""
    supervised_tokens: tuple[Count, ...] = ()
    """Positions with a label that is not ignored (for classification: one a row)."""
    documents: tuple[Count, ...] = ()
    """Samples: documents, not packed rows."""
    rows: tuple[Count, ...] = ()
    """Rows of the input tensors; below `documents` when documents are packed."""
    loss: tuple[float | None, ...] = Field(
        default=(), description="Supervised-token-weighted mean loss of each step; null where it was not a finite number."
    )

    @model_validator(mode="after")
    def _columns_agree(self) -> Self:
        lengths = {name: len(getattr(self, name)) for name in ("completed_at_s", *COUNT_COLUMNS, "loss")}
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            msg = f"every column holds one entry per step, but {said}; write all columns of a step together"
            raise ValueError(msg)
        times = (self.started_at_s, *self.completed_at_s)
        for step, (before, after) in enumerate(pairwise(times), start=1):
            if after <= before:
                msg = f"completed_at_s of step {step} is {after}, not later than {before}; steps complete one after another on a monotonic clock"
                raise ValueError(msg)
        for step, (slots, real, supervised) in enumerate(
            zip(self.slot_tokens, self.real_tokens, self.supervised_tokens, strict=True), start=1
        ):
            if not supervised <= real <= slots:
                msg = f"step {step} counts supervised {supervised}, real {real}, slots {slots}; supervised <= real <= slots must hold"
                raise ValueError(msg)
        return self

    def __len__(self) -> int:
        """Return the number of optimizer steps that were completed."""
        return len(self.completed_at_s)

    @property
    def step_times_s(self) -> tuple[float, ...]:
        """Completion-to-completion wall time of each step; the first counts from `started_at_s`."""
        times = (self.started_at_s, *self.completed_at_s)
        return tuple(after - before for before, after in pairwise(times))
