"""What the rules look at: every result, published and measured, with its cards, and every statement of a document."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from tunemark.collector.audit.span import Span
from tunemark.schema.facts.cards import AcceleratorCard, ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.world_facts import DatasetFact
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.records.claims import Assertion
from tunemark.schema.records.converted import ConvertedResult
from tunemark.schema.records.published import Claim, Conditions, PublishedResult, SourceDocument, Statement

Kind = TypeVar("Kind", bound=Assertion)
COUNTS = frozenset({"steps", "total_steps", "epochs", "tokens"})
"""Whole numbers of these are counted, not rounded."""


def label(quantity: str) -> str:
    """Return what readers call a quantity."""
    return QUANTITIES[quantity].label if quantity in QUANTITIES else quantity


def quoted(statement: Statement) -> str:
    """Return the words of a statement as the document prints them, in quotation marks; empty where it has none."""
    words = statement.labels.get("claim") or ", ".join(statement.labels.values())
    return f" ('{words}')" if words else ""


@dataclass(frozen=True)
class Run:
    """One result as rules see it."""

    id: str
    source: str
    section: str
    conditions: Conditions
    claims: dict[str, Claim]
    labels: dict[str, str]
    out_of_memory: bool
    model: ModelCard | None
    accelerator: AcceleratorCard | None
    dataset: DatasetFact | None
    measured: bool = False
    """From our own harness: its figures were derived from a raw log, with all of their digits."""
    converted: bool = False
    """From the raw logs of another harness."""

    def span(self, quantity: str) -> Span | None:
        """Return a figure that has one meaning, with the width of its last digit; None where it is not claimed or ambiguous."""
        claim = self.claims.get(quantity)
        if claim is None or claim.readings or claim.value <= 0:
            return None
        return Span.exact(claim.value) if quantity in COUNTS and claim.value.is_integer() else Span.of(claim)

    def readings(self, quantity: str) -> list[tuple[str, Span]]:
        """Return all meanings of a figure with their values; one meaning without words where it is plain."""
        claim = self.claims.get(quantity)
        if claim is None or claim.value <= 0:
            return []
        return [(one.meaning, Span.of(claim, one.value)) for one in claim.readings] or [("", Span.of(claim))]

    def printed(self, *quantities: str) -> str:
        """Return figures as they are printed, for a sentence."""
        return ", ".join(f"{label(name)} {self.claims[name].printed}" for name in quantities if name in self.claims)

    @property
    def devices(self) -> int:
        """Devices, 1 where it is not said."""
        return self.conditions.accelerator_count or 1

    @property
    def training_rows(self) -> int | None:
        """Rows of the training data: as the words for the data set say, else of the data set."""
        from tunemark.collector.store.rates import printed_rows  # noqa: PLC0415 - the one place that reads such words

        return printed_rows(self.conditions.dataset) or (self.dataset.training_rows if self.dataset else None)

    def setting(self, name: str) -> int | None:
        """Return a setting that is a whole number, or None."""
        value = self.conditions.settings.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def replicas(self) -> int | None:
        """Data-parallel replicas: as stated, one on one device, else None: devices may share a row."""
        stated = self.setting("data_parallel")
        if stated is not None:
            return stated
        if self.devices == 1:
            return (self.setting("processes") or 1) if self.accelerator else 1
        if self.conditions.settings.get("fsdp_cpu_offload") is not None or "DDP" in self.section:
            return self.devices
        return None


@dataclass(frozen=True)
class Base:
    """Everything that is audited, and the facts it is audited against."""

    runs: tuple[Run, ...]
    documents: tuple[SourceDocument, ...]
    facts: FactBase
    records: tuple[PublishedResult | ConvertedResult, ...] = ()
    """What results of documents and of other harnesses were made from."""

    @cached_property
    def published(self) -> tuple[Run, ...]:
        """Results of documents: few enough to compare each with each."""
        return tuple(run for run in self.runs if not run.measured and not run.converted)

    @cached_property
    def alike(self) -> tuple[tuple[Run, ...], ...]:
        """Results of one source with the same model, method and device, together: pairs are looked for within these."""
        groups: dict[tuple[object, ...], list[Run]] = {}
        for run in self.runs:
            if run.conditions.model is not None:
                key = (run.source, run.conditions.model, run.conditions.method, run.conditions.accelerator)
                groups.setdefault(key, []).append(run)
        return tuple(tuple(group) for group in groups.values())

    @cached_property
    def by_id(self) -> dict[str, Run]:
        """Results by id."""
        return {run.id: run for run in self.runs}

    @cached_property
    def statements(self) -> dict[str, Statement]:
        """Statements by id."""
        return {statement.id: statement for document in self.documents for statement in document.statements}

    @cached_property
    def document_of(self) -> dict[str, SourceDocument]:
        """Documents by their three digits."""
        return {document.id: document for document in self.documents}

    def assertions(self, kind: type[Kind]) -> Iterator[tuple[Statement, Kind]]:
        """Yield the statements that assert something of a kind."""
        for statement in self.statements.values():
            if isinstance(statement.assertion, kind):
                yield statement, statement.assertion

    def named(self, ids: Iterable[str]) -> list[Run]:
        """Return the results of ids, those that are there."""
        return [self.by_id[one] for one in ids if one in self.by_id]

    def accelerators_of(self, source: str) -> list[AcceleratorCard]:
        """Return the accelerators that the results of a document name, each once."""
        return list({run.accelerator.key: run.accelerator for run in self.published if run.source == source and run.accelerator}.values())

    def claims_of(self, record: str) -> dict[str, Claim]:
        """Return the claims of a result or a statement; none for an unknown one."""
        if record in self.by_id:
            return self.by_id[record].claims
        return self.statements[record].claims if record in self.statements else {}
