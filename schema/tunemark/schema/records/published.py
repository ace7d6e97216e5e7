"""A published result: what a document claims, in the words and digits in which it was printed.

A claim keeps the digits in which it was printed. An assertion is a claim in a form that audit rules can check: it records what is claimed, not
whether it is correct; its text stays in the labels of the statement.
"""

import json
from collections.abc import Iterator
from datetime import date
from typing import Annotated, Literal

from pydantic import Field

from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.records.base import Count, Day, Frozen, Key, PositiveCount, RecordId, Records, Source, Text, consistency, one_of
from tunemark.schema.vocabulary import Method, Padding, PublishedStatus

SourceId = Annotated[str, Field(pattern=r"^[0-9]{3}$")]
Scalar = str | float | int | bool | None
QuantityKey = Annotated[str, one_of(QUANTITIES, "the registry of quantities")]
"""A key of the registry in quantities.txt."""


class Reading(Frozen):
    """One reading of an ambiguous figure."""

    meaning: Text
    """The meaning of the figure in this reading."""
    value: float
    """Its value in this reading, in the unit of its quantity."""


class Claim(Frozen):
    """One printed figure."""

    value: float
    """Value in the unit of its quantity (seconds, bytes, shares of 1, ...)."""
    printed: Text
    """The figure exactly as printed, including its unit, such as `78 GiB` or `2h 15m`."""
    readings: tuple[Reading, ...] = ()
    """All readings if the document does not define the figure; `value` is then the literal one."""
    note: Text | None = None


class Advice(Frozen):
    """A model size and method is recommended for, or against, devices."""

    kind: Literal["advice"] = "advice"
    accelerators: tuple[Key, ...] = ()
    printed_memory_gb: float | None = None
    """Memory printed with the device."""
    devices: PositiveCount = 1
    """Minimum number of devices."""
    models: tuple[Key, ...] = ()
    parameters_from_b: float | None = None
    """Smallest size in 10^9 parameters."""
    parameters_to_b: float | None = None
    """Largest size in 10^9 parameters, or None."""
    methods: tuple[Method, ...] = ()
    """Methods; empty for any."""
    least: bool = False
    """The device is claimed to be the smallest that is sufficient."""
    says: Literal["possible", "not recommended", "several devices"] = "possible"
    budget_to_usd: float | None = None
    """The budget of the reader."""


class Offer(Frozen):
    """A provider rents out a device at the price in the claims."""

    kind: Literal["offer"] = "offer"
    provider: Key
    accelerator: Key
    accelerators: PositiveCount = 1
    """Number of devices that the price is claimed to cover."""
    instance: Text | None = None
    """Instance, or family of instances, as printed."""
    on: date | None = None
    """Date, or last day of the period, of the price."""
    used_for: Records = ()
    """Results whose cost is computed with this price."""


class Bill(Frozen):
    """The cost of a run or of a number of samples, in the claims."""

    kind: Literal["bill"] = "bill"
    offer: RecordId | None = None
    """Statement with the hourly price."""
    result: RecordId | None = None
    """Result whose throughput or time the cost is based on."""
    accelerator: Key | None = None
    model: Key | None = None
    """The model that was trained, if no result is named."""
    method: Method | None = None
    owned_inputs: tuple[Text, ...] = ()
    """Claims about owned hardware: purchase price, years, utilisation, watts, electricity."""


class BreakEven(Frozen):
    """Claims that an owned device pays for itself above a number of runs per year."""

    kind: Literal["break_even"] = "break_even"
    runs_per_year: Claim
    bills: Annotated[Records, Field(min_length=1)]
    """Statements with the cost of a run in the cloud and on an owned device."""


class Device(Frozen):
    """Data of a device, in the claims."""

    kind: Literal["device"] = "device"
    accelerator: Key
    tensor_core_generation: int | None = None
    printed_memory_gb: float | None = None


class Link(Frozen):
    """A link, and whether it resolved."""

    kind: Literal["link"] = "link"
    target: Text
    exists: bool
    checked_in: Text
    """Where this was looked up."""


class Effect(Frozen):
    """Claims that a measure changes a quantity by a given amount."""

    kind: Literal["effect"] = "effect"
    measure: Key
    """The measure, such as `gradient-checkpointing`."""
    quantity: QuantityKey
    low: float | None = None
    """Smallest share by which the quantity falls (negative: rises)."""
    high: float | None = None
    """Largest share."""
    printed: Text
    grows: Literal["linear", "quadratic"] | None = None
    """How the quantity is claimed to depend on the condition `over`."""
    over: Text | None = None
    records: Records = ()
    """Results with and without the measure, alternating."""


class Roof(Frozen):
    """The roof against which results are drawn."""

    kind: Literal["roof"] = "roof"
    accelerator: Key
    peak_flop_per_s: Claim
    bandwidth_bytes_per_s: Claim
    records: Annotated[Records, Field(min_length=1)]


class Driver(Frozen):
    """Claims that a property of devices determines a quantity."""

    kind: Literal["driver"] = "driver"
    property: Literal["memory_bandwidth_gb_s", "memory_gib"]
    quantity: QuantityKey
    records: Annotated[Records, Field(min_length=2)]


Relation = Literal["beside", "higher", "slightly higher", "lower", "slightly lower", "about equal"]
Change = Literal["ratio", "share", "points"]


class Comparison(Frozen):
    """Compares records, and may claim that one is higher or lower than another."""

    kind: Literal["comparison"] = "comparison"
    quantity: QuantityKey
    records: Annotated[Records, Field(min_length=2)]
    """The compared records. With a relation or a change, the last one is the reference."""
    base_quantity: QuantityKey | None = None
    """The quantity of the last record, if one row holds both."""
    relation: Relation = "beside"
    """The claimed relation of the first record to the last."""
    change: Claim | None = None
    change_is: Change = "ratio"
    """A ratio (`3.72x`), a share (`3.7% more`) or a difference in points (`+0.35%` of accuracies)."""


class Range(Frozen):
    """A headline range over records."""

    kind: Literal["range"] = "range"
    quantity: QuantityKey
    records: Annotated[Records, Field(min_length=1)]
    low: Claim
    high: Claim


class Extreme(Frozen):
    """One record is claimed to be the best of several."""

    kind: Literal["extreme"] = "extreme"
    quantity: QuantityKey
    """The quantity it is best in; per dollar if the records are priced."""
    best: RecordId
    among: Annotated[Records, Field(min_length=2)]
    where: Literal["highest", "lowest"]


class Conclusion(Frozen):
    """A conclusion without a figure of its own."""

    kind: Literal["conclusion"] = "conclusion"
    about: Literal["speed", "memory", "quality", "utilisation", "cost", "scaling", "energy"]
    records: Records = ()
    """Results on which the conclusion is based."""
    basis: tuple[QuantityKey, ...] = ()
    """Quantities of those results on which it is based; empty if the document shows none."""
    against: Text | None = None
    """Another system that it compares with, without a record."""
    over: Text | None = None
    """A condition with a threshold or a trend, such as `sequence_length`."""


class Stated(Frozen):
    """A setting of several results that the document states in one place: a heading, footnote, default or configuration."""

    kind: Literal["stated"] = "stated"
    setting: Text
    value: Scalar
    place: Text
    records: Annotated[Records, Field(min_length=1)]
    at_most: bool = False
    """True if results may have less, such as parts of the machine named in a heading."""


class Metric(Frozen):
    """What a figure counts according to the code that prints it."""

    kind: Literal["metric"] = "metric"
    quantity: QuantityKey
    """The quantity under which the document prints it."""
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
    bytes_per_unit: float | None = None
    """Divisor in the code, if the printed unit may differ."""
    records: Annotated[Records, Field(min_length=1)]


class Term(Frozen):
    """A factor of a formula."""

    name: Text
    unit: Text
    """Units multiplied by `*` and divided by `/`, such as `FLOP/token`; `1` for a pure number."""
    power: int = 1
    value: float | None = None
    """None if it comes from the model or the device."""


class Formula(Frozen):
    """A product of factors that is claimed to give a quantity."""

    kind: Literal["formula"] = "formula"
    quantity: QuantityKey
    unit: Text
    """Unit of the claimed result."""
    terms: Annotated[tuple[Term, ...], Field(min_length=1)]
    method: Method | None = None
    """The fine-tuning method it applies to."""
    records: Records = ()
    """Results of the same document that it should give."""


OfFigures = Comparison | Range | Extreme | Metric | Formula | Effect | Roof | Driver
OfThings = Conclusion | Stated | Advice | Offer | Bill | BreakEven | Device | Link
Assertion = Annotated[OfFigures | OfThings, Field(discriminator="kind")]


class Origin(Frozen):
    """Origin of a record."""

    kind: Literal["document", "repository"]
    """The source document itself, or the repository behind it."""
    reference: Text | None = None
    """Repository, commit and place."""


class Conditions(Frozen):
    """The conditions of the figures. Null if the source does not state them."""

    model: Key | None
    """The model card in data/models."""
    method: Method
    """full, lora, qlora, or peft for another method with a frozen base model."""
    accelerator: Key | None = None
    """The accelerator card in data/accelerators."""
    accelerator_count: PositiveCount | None = None
    """Devices used."""
    instance: Text | None = None
    """The instance, corrected if the source names one that does not exist."""
    micro_batch: PositiveCount | None = None
    """The printed batch size: rows per forward and backward on one device, unless a note says otherwise."""
    gradient_accumulation: PositiveCount | None = None
    """Micro-steps per optimizer step."""
    global_batch: PositiveCount | None = None
    """Rows per optimizer step, if the source states it."""
    sequence_length: PositiveCount | None = None
    """Tokens per row."""
    padding: Padding | None = None
    """How rows are filled."""
    packing: bool | None = None
    """True if documents share a row."""
    precision: Text | None = None
    """As printed."""
    dataset: Text | None = None
    """As printed."""
    framework: dict[str, Text] = Field(default_factory=dict)
    """Versions, as printed."""
    settings: dict[str, Scalar | tuple[Scalar, ...]] = Field(default_factory=dict)
    """Other settings, as printed."""
    from_repository: tuple[Text, ...] = ()
    """Conditions that only the origin repository states."""
    assumed: tuple[Text, ...] = ()
    """Conditions that are implied, not stated."""

    def stated(self, name: str) -> object:
        """Return a setting or, if there is none of this name, a condition; None if neither is stated."""
        return self.settings[name] if name in self.settings else getattr(self, name, None)


class PublishedResult(Frozen):
    """One row of a document."""

    format: Literal["tunemark.published/1"] = "tunemark.published/1"
    id: Annotated[str, Field(pattern=r"^[0-9]{3}-[0-9]{3}$")]
    """Id: source and number."""
    source: SourceId
    section: Text
    origin: Origin
    labels: dict[str, Text]
    """Row labels and other words exactly as printed, by a short name (`model`, `accelerator`, `note`, ...)."""
    conditions: Conditions
    claims: dict[QuantityKey, Claim]
    status: PublishedStatus
    """Status as presented by the document."""
    note: Text | None = None

    @consistency
    def _known(self) -> Iterator[str]:
        if not self.id.startswith(self.source):
            yield f"id is {self.id!r} in source {self.source!r}; an id starts with its source"


class PublishedSet(Frozen):
    """Results of a source in one file, written by an importer and never by hand."""

    format: Literal["tunemark.published-set/1"] = "tunemark.published-set/1"
    source: SourceId
    results: tuple[PublishedResult, ...] = Field(min_length=1)

    @consistency
    def _in_order(self) -> Iterator[str]:
        ids = [result.id for result in self.results]
        if ids != sorted(set(ids)):
            yield "results are not sorted by id, or an id occurs twice; import the table again"
        if any(result.source != self.source for result in self.results):
            yield f"source is {self.source!r} and a result has another one; a set holds the results of one source"

    def lines(self) -> bytes:
        """Return the set as JSON with one result per line; fields with their default value are left out."""
        rows = [
            json.dumps(result.model_dump(mode="json", exclude_defaults=True), sort_keys=True, ensure_ascii=False) for result in self.results
        ]
        head = f'{{"format": "{self.format}", "source": "{self.source}", "results": [\n'
        return (head + ",\n".join(rows) + "\n]}\n").encode()


def published_results(record: object) -> tuple[PublishedResult, ...]:
    """Return the published results in a record of any kind: itself, those of a set, or none."""
    if isinstance(record, PublishedSet):
        return record.results
    return (record,) if isinstance(record, PublishedResult) else ()


class Statement(Frozen):
    """A row of a document that is not a result of a run: a price, device data, a recommendation."""

    id: Annotated[str, Field(pattern=r"^[0-9]{3}-S[0-9]{2,3}$")]
    """Id: source and number."""
    section: Text
    labels: dict[str, Text] = Field(default_factory=dict)
    """Text exactly as printed, by a short name."""
    claims: dict[QuantityKey, Claim] = Field(default_factory=dict)
    assertion: Assertion | None = None
    """A typed assertion that rules can check; null for text that cannot be checked."""
    origin: Origin = Origin(kind="document")
    """Document or repository."""
    note: Text | None = None


class DocumentTable(Frozen):
    """A table of a document, reproduced from its rows.

    A cell is text with references in braces: `{003-001/peak_memory} ({003-001/model_memory})` prints two
    claims of a result, `{003-001/model}` a label. References are resolved in the database.
    """

    id: Key
    """Short name, unique in the document."""
    title: Text
    columns: tuple[Text, ...]
    rows: tuple[tuple[str, ...], ...]

    @consistency
    def _rectangular(self) -> Iterator[str]:
        for number, row in enumerate(self.rows, start=1):
            if len(row) != len(self.columns):
                yield f"row {number} of table {self.id!r} has {len(row)} cells for {len(self.columns)} columns"


class SourceDocument(Frozen):
    """A document whose results are imported."""

    format: Literal["tunemark.source/1"] = "tunemark.source/1"
    id: SourceId
    title: Text
    authors: Text | None = None
    published_on: Text | None = None
    """Publication date, as exactly as it is known."""
    stated_on: Day | None = None
    """The date that the document states."""
    committed_on: Day | None = None
    """The date on which its repository first contained it."""
    read_on: Day | None = None
    """Date on which it was read."""
    licence: Source
    """Licence of the document: its SPDX identifier, or a short statement if there is none or it was not read."""
    licence_read_at: Text | None = None
    """Files or page that state it, in the repository at its commit unless they name another. Null if it was not read."""
    url: Text | None = None
    origin_repository: Text | None = None
    """Repository and commit with further conditions."""
    summary: Text
    """One sentence on what it measures, in our words."""
    caveats: tuple[Text, ...] = ()
    """Caveats about all of its rows."""
    results: Count
    """Number of results, checked when they are loaded."""
    tables: tuple[DocumentTable, ...] = ()
    statements: tuple[Statement, ...] = ()
    """Rows that are not results."""

    @consistency
    def _consistent(self) -> Iterator[str]:
        for name in ("stated_on", "committed_on"):
            if (day := getattr(self, name)) is not None and self.read_on is not None and day > self.read_on:
                yield f"{name} is {day}, after it was read, {self.read_on}; correct one of them"
        ids = [statement.id for statement in self.statements]
        wrong = next((each for each in ids if not each.startswith(f"{self.id}-") or ids.count(each) > 1), None)
        if wrong is not None:
            yield f"statements has {wrong!r}; an id begins with {self.id}- and is used once"
