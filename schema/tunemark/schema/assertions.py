"""What a statement of a document asserts, in forms that rules can check. The words stay in the statement's labels.

An assertion says what is claimed, never whether it is right. Printed figures are claims, with their digits.
"""

from typing import Annotated, Literal

from pydantic import Field

from tunemark.schema.assertions_of_hardware import Advice, Bill, BreakEven, Device, Driver, Effect, Link, Offer, Roof
from tunemark.schema.base import Frozen, RecordId, Records, Text
from tunemark.schema.claims import Claim, Scalar
from tunemark.schema.vocabulary import Method

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
