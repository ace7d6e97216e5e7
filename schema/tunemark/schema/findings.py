"""A finding of the audit: which rule, what verdict, on which records, and the calculation that leads to it."""

from typing import Annotated

from pydantic import Field

from tunemark.schema.records.base import Frozen, Key
from tunemark.schema.vocabulary import AuditVerdict

Long = Annotated[str, Field(min_length=1, max_length=4_000)]
Number = float | int | str


class Finding(Frozen):
    """What one rule of the audit found."""

    rule: Key
    """The rule, in the registry of `tunemark.collector.audit`."""
    verdict: AuditVerdict
    """How bad it is."""
    records: Annotated[tuple[str, ...], Field(min_length=1)]
    """Results and statements that it is about; the first is its subject."""
    claim: Long
    """What they claim, with the figures as printed."""
    calculation: Long
    """The calculation, written out with its numbers."""
    numbers: dict[str, Number] = Field(default_factory=dict)
    """The numbers used, by name with unit."""
    quantities: tuple[str, ...] = ()
    """Keys of the claims that it refutes, such as `step_time_s`."""
    conditions: tuple[str, ...] = ()
    """Names of the conditions that it is about, such as `context_length`."""
    excluded: tuple[str, ...] = ()
    """Meanings of an ambiguous figure that are impossible, without their numbers."""
