"""The evidence that rules see: every result, published or measured, with its cards, and every statement of a document."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from tunemark.collector.audit.interval import Interval
from tunemark.collector.audit.printed_figures import WORDS, printed_rows
from tunemark.schema.facts.cards import AcceleratorCard, ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.world_facts import DatasetFact
from tunemark.schema.physics.architecture import count_parameters
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.records.converted import ConvertedResult
from tunemark.schema.records.published import Assertion, Claim, Comparison, Conditions, PublishedResult, SourceDocument, Statement
from tunemark.schema.throughput import Range

Kind = TypeVar("Kind", bound=Assertion)
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """A record with figures."""

    claims: Mapping[str, Claim]

    def interval(self, quantity: str) -> Interval | None:
        """Return a figure with the width of its last digit; None if it is not claimed, ambiguous, or not positive."""
        claim = self.claims.get(quantity)
        if claim is None or claim.readings or claim.value <= 0:
            return None
        exact = quantity in WORDS["quantities"]["counted"] and claim.value.is_integer()
        return Interval.exact(claim.value) if exact else Interval.of(claim)

    def readings(self, quantity: str) -> list[tuple[str, Interval]]:
        """Return all meanings of a figure with their values. A plain figure has one meaning without words."""
        claim = self.claims.get(quantity)
        if claim is None or claim.value <= 0:
            return []
        return [(reading.meaning, Interval.of(claim, reading.value)) for reading in claim.readings] or [("", Interval.of(claim))]

    def printed(self, *quantities: str) -> str:
        """Return figures as printed, for a sentence."""
        return ", ".join(f"{label(name)} {self.claims[name].printed}" for name in quantities if name in self.claims)


@dataclass(frozen=True, kw_only=True)
class AuditedResult(Claimed):
    """One result, published or measured, as rules see it."""

    id: str
    source: str
    section: str
    conditions: Conditions
    labels: dict[str, str]
    out_of_memory: bool = False
    model: ModelCard | None
    accelerator: AcceleratorCard | None
    dataset: DatasetFact | None = None
    measured: bool = False
    """True for results of our own harness: their figures are derived from a raw log, with all digits."""
    converted: bool = False
    """True for results from the raw logs of another harness."""
    calibration: tuple[str, object] | None = None
    """The calibration row of a measured result, or the reason why there is none."""

    @property
    def devices(self) -> int:
        """Number of devices; 1 if it is not stated."""
        return self.conditions.accelerator_count or 1

    @property
    def rows_of_device(self) -> float | None:
        """Rows of a step for each device; None if the rows of a step are not stated."""
        return self.conditions.global_batch and self.conditions.global_batch / self.devices

    @property
    def device_name(self) -> str:
        """Name of the device; empty if it is unknown."""
        return self.accelerator.name if self.accelerator else ""

    @property
    def method_name(self) -> str:
        """Name of the method for readers."""
        return str(WORDS["methods"][self.conditions.method])

    @property
    def finished(self) -> bool:
        """False if fewer steps were run than were planned."""
        steps, planned = self.interval("steps"), self.interval("total_steps")
        return steps is None or planned is None or steps.value >= planned.value

    @property
    def learns(self) -> bool:
        """True if what the training is to learn is stated: a learning rate, epochs, a loss or held-out figures. Otherwise it measures speed."""
        stated = {"learning_rate", *WORDS["quantities"]["learned"], *WORDS["quantities"]["held_out"]}
        return not stated.isdisjoint({*self.conditions.settings, *self.claims})

    @property
    def training_rows(self) -> int | None:
        """Rows of the training data: as printed with the dataset, else from the known dataset."""
        return printed_rows(self.conditions.dataset) or (self.dataset.training_rows if self.dataset else None)

    @property
    def parameters(self) -> float | None:
        """Number of parameters: as claimed, else of the model, else None."""
        claim = self.claims.get("parameters")
        return claim.value if claim else count_parameters(self.model).total if self.model else None

    def setting(self, name: str) -> int | None:
        """Return a setting that is a whole number, or None."""
        value = self.conditions.settings.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def offloads_to_host(self) -> object:
        """The printed setting for offloading weights, gradients or optimizer states to host memory, or None."""
        settings = self.conditions.settings
        stated = (settings[name] for name in WORDS["settings"]["to_host"] if settings.get(name) not in {None, False, "none"})
        return next(stated, settings.get("fsdp_cpu_offload"))

    @property
    def replicas(self) -> int | None:
        """Data-parallel replicas: as stated, 1 on one device, else None, since several devices may share a row."""
        stated = self.setting("data_parallel")
        if stated is not None:
            return stated
        if self.devices == 1:
            return (self.setting("processes") or 1) if self.accelerator else 1
        return self.devices if "fsdp_cpu_offload" in self.conditions.settings or "DDP" in self.section else None


@dataclass(frozen=True)
class Evidence:
    """Everything that is audited, and the facts that it is audited against."""

    results: tuple[AuditedResult, ...]
    documents: tuple[SourceDocument, ...]
    facts: FactBase
    records: tuple[PublishedResult | ConvertedResult, ...] = ()
    """Source records of the results of documents and other harnesses."""
    expected: Mapping[str, tuple[float, Range]] = field(default_factory=dict)
    """Result id -> its tokens/s, and those that results of other sources predict; empty until the throughput model is fitted to results that the audit does not refute."""

    @cached_property
    def published(self) -> tuple[AuditedResult, ...]:
        """Results of documents: few enough to compare all pairs."""
        return tuple(result for result in self.results if not result.measured and not result.converted)

    def with_intervals(self, *quantities: str) -> Iterator[tuple[AuditedResult, list[Interval]]]:
        """Yield the results in which all quantities have one positive value, with these values."""
        for result in self.results:
            known = [interval for quantity in quantities if (interval := result.interval(quantity))]
            if len(known) == len(quantities):
                yield result, known

    @cached_property
    def by_id(self) -> dict[str, AuditedResult]:
        """Results by id."""
        return {result.id: result for result in self.results}

    @cached_property
    def statements(self) -> dict[str, Statement]:
        """Statements by id."""
        return {statement.id: statement for document in self.documents for statement in document.statements}

    @cached_property
    def documents_by_id(self) -> dict[str, SourceDocument]:
        """Documents by their three digits."""
        return {document.id: document for document in self.documents}

    def assertions(self, kind: type[Kind]) -> Iterator[tuple[Statement, Kind]]:
        """Yield the statements with an assertion of a kind."""
        for statement in self.statements.values():
            if isinstance(statement.assertion, kind):
                yield statement, statement.assertion

    def with_ids(self, ids: Iterable[str]) -> list[AuditedResult]:
        """Return the results with these ids; unknown ids are ignored."""
        return [self.by_id[record] for record in ids if record in self.by_id]

    def accelerators_of(self, source: str) -> list[AcceleratorCard]:
        """Return the accelerators in the results of a document, each once."""
        named = [result.accelerator for result in self.published if result.source == source and result.accelerator]
        return list({card.key: card for card in named}.values())

    def compared_claims(self, compared: Comparison) -> tuple[Claim, Claim] | None:
        """Return the first and the last figure of a comparison, or None if one is missing."""
        first = self.claims_of(compared.records[0]).get(compared.quantity)
        last = self.claims_of(compared.records[-1]).get(compared.base_quantity or compared.quantity)
        return (first, last) if first and last else None

    def claims_of(self, record: str) -> Mapping[str, Claim]:
        """Return the claims of a result or a statement; none for an unknown record."""
        if record in self.by_id:
            return self.by_id[record].claims
        return self.statements[record].claims if record in self.statements else {}


def same_software(result: AuditedResult, other: AuditedResult, besides: Iterable[str]) -> bool:
    """Return True if two results have the same versions, number format and settings.

    Some settings may differ besides descriptions; what is not stated is off.
    """
    a, b = result.conditions, other.conditions
    names = (set(a.settings) | set(b.settings)) - {*besides, *WORDS["settings"]["descriptions"]}
    same = all((a.settings.get(name) or None) == (b.settings.get(name) or None) for name in names)
    return same and a.framework == b.framework and a.precision == b.precision


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return items by their key, in order."""
    groups: dict[Key, list[Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups


def source_of(record: str) -> str:
    """Return the document of a statement or published result."""
    return record.split("-", maxsplit=1)[0]


def label(quantity: str) -> str:
    """Return the name of a quantity for readers."""
    return QUANTITIES[quantity].label if quantity in QUANTITIES else quantity


def quoted(statement: Statement) -> str:
    """Return the words of a statement as printed, in quotation marks; empty if it has none."""
    words = statement.labels.get("claim") or ", ".join(statement.labels.values())
    return f" ('{words}')" if words else ""
