"""What statements assert about hardware, prices and measures; see `assertions`."""

from datetime import date
from typing import Annotated, Literal

from pydantic import Field

from tunemark.schema.base import Frozen, Key, PositiveCount, RecordId, Records, Text
from tunemark.schema.claims import Claim
from tunemark.schema.vocabulary import Method


class Advice(Frozen):
    """A model size and method is advised for, or against, devices."""

    kind: Literal["advice"] = "advice"
    accelerators: tuple[Key, ...] = ()
    """Cards in data/accelerators."""
    printed_memory_gb: float | None = None
    """Memory that the document prints with the device."""
    devices: PositiveCount = 1
    """Least devices together."""
    models: tuple[Key, ...] = ()
    """Models by name."""
    parameters_from_b: float | None = None
    """Smallest size, in 10^9 parameters."""
    parameters_to_b: float | None = None
    """Largest size; null when there is no end."""
    methods: tuple[Method, ...] = ()
    """Methods; empty for any."""
    least: bool = False
    """The device is said to be the smallest that will do."""
    says: Literal["possible", "not recommended", "several devices"] = "possible"
    budget_to_usd: float | None = None
    """What the reader has to spend."""


class Offer(Frozen):
    """Somebody rents out a device at the price in the claims."""

    kind: Literal["offer"] = "offer"
    provider: Key
    accelerator: Key
    accelerators: PositiveCount = 1
    """How many the price is said to be for."""
    instance: Text | None = None
    """Instance, or family of instances, as printed."""
    on: date | None = None
    """Day, or last day of the time, that the price is said to be of."""
    used_for: Records = ()
    """Results whose cost is worked out with it."""


class Bill(Frozen):
    """What a run or a number of samples costs, in the claims."""

    kind: Literal["bill"] = "bill"
    offer: RecordId | None = None
    """The statement with the price per hour."""
    result: RecordId | None = None
    """The result whose throughput or time it follows from."""
    accelerator: Key | None = None
    model: Key | None = None
    """What was trained, where no result says it."""
    method: Method | None = None
    owned_inputs: tuple[Text, ...] = ()
    """What the document says about owned hardware: purchase price, years, utilisation, watts, electricity."""


class BreakEven(Frozen):
    """An owned device is said to pay for itself above a number of runs a year."""

    kind: Literal["break_even"] = "break_even"
    runs_per_year: Claim
    bills: Annotated[Records, Field(min_length=1)]
    """Statements with the cost of a run in the cloud and on one's own device."""


class Device(Frozen):
    """Data of a device, in the claims."""

    kind: Literal["device"] = "device"
    accelerator: Key
    tensor_core_generation: int | None = None
    printed_memory_gb: float | None = None


class Link(Frozen):
    """A link, and whether it led anywhere."""

    kind: Literal["link"] = "link"
    target: Text
    exists: bool
    checked_in: Text
    """Where that was looked up."""


class Effect(Frozen):
    """A measure is said to change a quantity by so much."""

    kind: Literal["effect"] = "effect"
    measure: Key
    """What is done, such as `gradient-checkpointing`."""
    quantity: Text
    low: float | None = None
    """Smallest share by which it falls (negative: rises)."""
    high: float | None = None
    """Largest."""
    printed: Text
    grows: Literal["linear", "quadratic"] | None = None
    """How the quantity is said to depend on the condition `over`."""
    over: Text | None = None
    records: Records = ()
    """Results with and without it, in turn."""


class Roof(Frozen):
    """The roof against which results are drawn."""

    kind: Literal["roof"] = "roof"
    accelerator: Key
    peak_flop_per_s: Claim
    bandwidth_bytes_per_s: Claim
    records: Annotated[Records, Field(min_length=1)]


class Driver(Frozen):
    """A property of devices is said to decide a quantity."""

    kind: Literal["driver"] = "driver"
    property: Literal["memory_bandwidth_gb_s", "memory_gib"]
    quantity: Text
    records: Annotated[Records, Field(min_length=2)]
