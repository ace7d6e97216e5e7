"""The division of a run, a function of its overrides.

A run of the tuned division trains what its card says: the same mathematics, data, sequence length and global batch, with losses
inside the card's band. It chooses freely how this is computed, as in MLPerf's closed division. The free settings are declared here
once: the harness, the gate, the card check and the site read this table.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from tunemark.schema.records.base import Frozen, Text
from tunemark.schema.vocabulary import Division

if TYPE_CHECKING:
    from tunemark.schema.records.plan import Plan

Value = Annotated[str, Field(max_length=2_000)] | float | int | bool | None

FREE_SETTINGS: dict[str, str] = {
    "attention": "attention kernel",
    "sdpa_kernel": "attention kernel",
    "fused_kernels": "fused kernels",
    "loss": "fused kernels",
    "gradient_checkpointing": "gradient checkpointing",
    "compile": "compilation",
    "compile_mode": "compilation",
    "neuron.optimisation_level": "compiler level",
    "batch.micro_batch": "split of the global batch",
    "batch.gradient_accumulation": "split of the global batch",
    "devices.count": "split of the global batch",
    "devices.strategy": "sharding",
    "devices.tensor_parallel": "sharding",
    "devices.pipeline_parallel": "sharding",
    "devices.offload": "offload",
    "frozen_weights": "format of frozen weights",
    "quantisation.format": "format of frozen weights",
    "quantisation.double": "format of frozen weights",
}
"""Settings of a card that a run of the tuned division may change, and what they choose. A changed split keeps the global batch."""
MEANING = {
    Division.STANDARD: "the workload card unchanged",
    Division.TUNED: "the card's training and global batch, with other kernels, checkpointing, compilation, batch split or sharding",
    Division.OPEN: "any other declared override, such as another sequence length, global batch or optimizer",
}
"""What a run of each division may change."""


class Override(Frozen):
    """A setting that differs from the workload card."""

    field: Text
    """Dotted path in the card, such as `batch.micro_batch`."""
    card: Value
    """Value in the card."""
    run: Value
    """Value in this run."""


def division_of(plan: "Plan", overrides: Sequence[Override]) -> Division:
    """Return the division of a run with this plan and these overrides."""
    if not overrides:
        return Division.STANDARD
    return Division.TUNED if fixed_setting_changed(plan, overrides) is None else Division.OPEN


def fixed_setting_changed(plan: "Plan", overrides: Sequence[Override]) -> str | None:
    """Return the first change that only the open division allows, in words; None if all changes are free."""
    fixed = next((override.field for override in overrides if override.field not in FREE_SETTINGS), None)
    if fixed is not None:
        return f"{fixed} is fixed by the card"
    rows, card_rows = plan.batch.global_batch, card_global_batch(plan, overrides)
    return None if rows == card_rows else f"plan.batch.global_batch is {rows}, and the card has {card_rows} rows per step on these devices"


def card_global_batch(plan: "Plan", overrides: Sequence[Override]) -> int | None:
    """Return the rows per optimizer step that the card has on the devices of a run: its batch on each replica.

    None if an override gives a value of the card that is not a number.
    """
    of_card = {override.field: override.card for override in overrides}

    def number(field: str, of_plan: int) -> int:
        value = of_card.get(field, of_plan)
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    device, batch = plan.device, plan.batch
    rows = number("batch.micro_batch", batch.micro_batch) * number("batch.gradient_accumulation", batch.gradient_accumulation)
    devices = number("devices.count", device.count)
    group = number("devices.tensor_parallel", device.tensor_parallel) * number("devices.pipeline_parallel", device.pipeline_parallel)
    return rows * max(1, devices // group) if rows and devices and group > 0 else None
