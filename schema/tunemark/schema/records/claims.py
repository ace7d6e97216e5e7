"""A printed figure: its value, the digits it was printed in, and the readings that an ambiguous one allows."""

import re
from datetime import date
from typing import Annotated, Literal

from pydantic import Field

from tunemark.schema.records.base import Frozen, Key, PositiveCount, RecordId, Records, Text
from tunemark.schema.vocabulary import Method

Scalar = str | float | int | bool | None


class Reading(Frozen):
    """One way to read an ambiguous figure."""

    meaning: Text
    """What the figure would mean."""
    value: float
    """Its value then, in the unit of its quantity."""


class Claim(Frozen):
    """One printed figure."""

    value: float
    """In the unit of its quantity (seconds, bytes, shares of 1, ...)."""
    printed: Text
    """The figure exactly as printed, unit included, such as `78 GiB` or `2h 15m`."""
    readings: tuple[Reading, ...] = ()
    """All readings, when the document leaves open what it means; `value` is then the literal one."""
    note: Text | None = None
    """What is doubtful about it."""

    @property
    def resolution(self) -> float | None:
        """Half of the last printed digit, relative to the figure; null where the figure is not one plain number with a unit.

        A duration in parts (`2h 15m`, `1:26:57`) or a word has no single last digit, and tolerance rules must treat it apart.
        """
        found = re.fullmatch(r"[~$]?\s*([0-9][0-9,]*(?:\.([0-9]+))?)\s*([^\d:]*)", self.printed)
        if not found:
            return None
        number = float(found[1].replace(",", ""))
        return 0.5 * 10.0 ** -len(found[2] or "") / number if number else None


# MOVE: was tunemark.schema.records.claims: What statements assert about hardware, prices and measures; see `assertions`.


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


# MOVE: was tunemark.schema.records.claims: What a statement of a document asserts, in forms that rules can check. The words stay in the statement's labels. An assertion says what is claimed, never whether it is right. Printed figures are claims, with their digits.

Relation = Literal["beside", "higher", "slightly higher", "lower", "slightly lower", "about equal"]
Change = Literal["ratio", "share", "points"]


class Comparison(Frozen):
    """Records are set beside each other, and perhaps one is said to be higher or lower than another."""

    kind: Literal["comparison"] = "comparison"
    quantity: Text
    """Which quantity, a key of the registry."""
    records: Annotated[Records, Field(min_length=2)]
    """What is compared; with a relation or a change the last one is what the first is measured against."""
    base_quantity: Text | None = None
    """The quantity of the last record, where one row holds both."""
    relation: Relation = "beside"
    """What the document says of the first against the last."""
    change: Claim | None = None
    """The printed ratio or difference."""
    change_is: Change = "ratio"
    """A ratio (`3.72x`), a share (`3.7% more`) or a difference in points (`+0.35%` of accuracies)."""


class Range(Frozen):
    """A headline range over records."""

    kind: Literal["range"] = "range"
    quantity: Text
    records: Annotated[Records, Field(min_length=1)]
    low: Claim
    high: Claim


class Extreme(Frozen):
    """One record is said to be the best of several."""

    kind: Literal["extreme"] = "extreme"
    quantity: Text
    """What it is best in; per dollar where the records are priced."""
    best: RecordId
    among: Annotated[Records, Field(min_length=2)]
    where: Literal["highest", "lowest"]


class Conclusion(Frozen):
    """A sentence that draws a conclusion without a figure of its own."""

    kind: Literal["conclusion"] = "conclusion"
    about: Literal["speed", "memory", "quality", "utilisation", "cost", "scaling", "energy"]
    records: Records = ()
    """Results that it is drawn from."""
    basis: tuple[Text, ...] = ()
    """Quantities of those results that the document bases it on; empty when it shows none."""
    against: Text | None = None
    """Another system that it compares with and gives no record of."""
    over: Text | None = None
    """A condition over which it holds a threshold or a trend, such as `sequence_length`."""


class Stated(Frozen):
    """A setting of several results that the document states in one place: a heading, a footnote, a default, a configuration."""

    kind: Literal["stated"] = "stated"
    setting: Text
    """Name of a condition or setting."""
    value: Scalar
    place: Text
    """Where it is stated."""
    records: Annotated[Records, Field(min_length=1)]
    at_most: bool = False
    """The results may have less, as parts of the machine that a heading names."""


class Metric(Frozen):
    """What a figure really counts, as the code that prints it shows."""

    kind: Literal["metric"] = "metric"
    quantity: Text
    """The quantity as which the document prints it."""
    counts: Literal[
        "peak of live tensors",
        "peak held by the allocator",
        "held by the allocator at the end of a step",
        "used of the device",
        "real tokens",
        "slots of tokens",
        "micro-step",
        "optimizer step",
        "evaluated rows",
        "batches x training batch",
        "rows of the data set",
        "distinct rows",
    ]
    scope: Literal["device", "rank", "core", "all"] | None = None
    """Over what."""
    bytes_per_unit: float | None = None
    """Divisor of the code, where the printed unit may be another."""
    records: Annotated[Records, Field(min_length=1)]


class Term(Frozen):
    """A factor of a formula."""

    name: Text
    unit: Text
    """Units multiplied by `*` and divided by `/`, such as `FLOP/token`; `1` for a pure number."""
    power: int = 1
    value: float | None = None
    """Null where it comes from the model or the device."""


class Formula(Frozen):
    """A product of factors that is said to give a quantity."""

    kind: Literal["formula"] = "formula"
    quantity: Text
    unit: Text
    """Unit that the result is said to have."""
    terms: Annotated[tuple[Term, ...], Field(min_length=1)]
    method: Method | None = None
    """The method that it is for."""
    records: Records = ()
    """Results of the same document that it should give."""


Assertion = Annotated[
    Comparison
    | Range
    | Extreme
    | Conclusion
    | Stated
    | Metric
    | Formula
    | Advice
    | Offer
    | Bill
    | BreakEven
    | Device
    | Link
    | Effect
    | Roof
    | Driver,
    Field(discriminator="kind"),
]
