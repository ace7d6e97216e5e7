"""What a frontier is asked for."""

from dataclasses import dataclass
from enum import StrEnum


class Over(StrEnum):
    """What is made as large as possible."""

    MICRO_BATCH = "micro_batch"
    SEQUENCE_LENGTH = "sequence_length"
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is looked for."""

    over: Over = Over.MICRO_BATCH
    lengths: tuple[int, ...] = ()
    """Sequence lengths at which the largest micro-batch is looked for; empty: that of the card, or those that fit."""
    limit_bytes: int | None = None
    """Memory of the host that the worker's processes may take together."""
    most: int = 65_536
    """Largest micro-batch that is tried."""
    within: float = 0.0
    """How near is near enough, as a share; 0 is exact."""
