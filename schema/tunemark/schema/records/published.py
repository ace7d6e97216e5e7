"""A published result: what a document claims, in the words and digits in which it was printed."""

import json
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from tunemark.schema.records.base import Count, Day, Frozen, Key, PositiveCount, Source, Text, consistency
from tunemark.schema.records.claims import Assertion, Claim, QuantityKey, Reading, Scalar
from tunemark.schema.vocabulary import Method, Padding, PublishedStatus

__all__ = ["Claim", "Reading", "Scalar"]
"""Names of `claims` that this module passes on."""

FORMAT: Literal["tunemark.published/1"] = "tunemark.published/1"
SET_FORMAT: Literal["tunemark.published-set/1"] = "tunemark.published-set/1"
SOURCE_FORMAT: Literal["tunemark.source/1"] = "tunemark.source/1"

SourceId = Annotated[str, Field(pattern=r"^[0-9]{3}$")]


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

    format: Literal["tunemark.published/1"] = FORMAT
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

    format: Literal["tunemark.published-set/1"] = SET_FORMAT
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

    format: Literal["tunemark.source/1"] = SOURCE_FORMAT
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
