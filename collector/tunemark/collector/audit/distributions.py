"""Utilisation that credible results reach: the yardstick of all rules that call a rate too high or too low.

Results are classed by method, software, architecture of the device, and size of the model. The yardstick of a result comes
from the narrowest class with enough other sources; its own source never counts. One source alone cannot set a limit, since it
may be wrong: the limit is the utilisation that a second source reaches too. A document that prints the utilisation of a rate
beside it has checked its unit: it is compared with the limit of practice.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from tunemark.collector.audit.bounds import rates_below_peak, utilisation
from tunemark.collector.audit.evidence import AuditedResult, Evidence
from tunemark.collector.audit.token_rates import TokenRate
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.world_facts import Software
from tunemark.schema.physics.architecture import count_parameters
from tunemark.schema.vocabulary import Method

HIGH_QUANTILE = 0.95
"""Quantile of a source's results that counts as its best, so that one wrong row does not."""
FEWEST_SOURCES = 4
"""Other sources that a class needs: with fewer, all may be slow."""
FEWEST_RESULTS = 20
"""Other results that a class needs."""
MARGIN = 1.1
"""Factor by which a credible result may exceed what other sources reach: clocks above the nominal one, and better kernels."""
SAME_UTILISATION = 1.25
"""Factor within which a printed utilisation is that of the rate: conventions of counting differ."""
SMALL_MODEL = 1e9
"""Parameters below which a model is small: its matrices fill a device less."""

SIMILAR_SIZE = 1.6
"""Factor within which models have about the same size."""

Class = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Attained:
    """The utilisation of one result, by its only possible rate."""

    result: AuditedResult
    rate: TokenRate
    share: float
    """Model FLOPs per second as a share of the dense peak."""
    hardware_share: float
    """The same with recomputed blocks, if the result states checkpointing."""
    parameters: int
    level: str
    """Level of the software: plain, tuned or vendor."""

    @property
    def classes(self) -> tuple[Class, ...]:
        """Classes of the result, narrowest first."""
        architecture = (self.result.accelerator.architecture if self.result.accelerator else None) or "unknown architecture"
        size = "below 10^9 parameters" if self.parameters < SMALL_MODEL else "from 10^9 parameters"
        every = (_kind(self.result), f"{self.level} software", architecture, size)
        return tuple(every[:length] for length in range(len(every), 0, -1))


@dataclass(frozen=True, slots=True)
class Limit:
    """Utilisation that is not unusual."""

    share: float
    words: str
    """The origin of the limit, for a sentence."""
    measured: bool = True
    """False if too few results are stored, so that the limit is that of practice."""


def software_of(run: AuditedResult, facts: FactBase) -> Software:
    """Return the software of a run of a document."""

    def value_of(name: str) -> object:
        return run.section if name == "section" else run.conditions.stated(name)

    return facts.known.software_of(_source(run), value_of)


def states_recompute(result: AuditedResult) -> bool:
    """Return True if the result states that every block is computed twice."""
    return result.conditions.settings.get("gradient_checkpointing") in {True, "full"}


def attained(evidence: Evidence) -> Iterator[Attained]:
    """Yield the utilisation of all results with one possible rate, of documents and of submissions."""
    for result in evidence.results:
        rates = rates_below_peak(result)
        plain = utilisation(result, rates[0]) if len(rates) == 1 else None
        if plain is None or result.model is None:
            continue
        twice = utilisation(result, rates[0], recompute=True) if states_recompute(result) else plain
        hardware = (twice or plain)[0].value
        level = software_of(result, evidence.facts).level
        yield Attained(result, rates[0], plain[0].value, hardware, count_parameters(result.model).total, level)


class UsualUtilisation:
    """Utilisation of the results of documents, by class and source."""

    def __init__(self, evidence: Evidence) -> None:
        """Sort the utilisation of all results of documents into their classes."""
        self.attained = {each.result.id: each for each in attained(evidence)}
        self._fallback = evidence.facts.known.practice("high-utilisation")
        self._shares: dict[Class, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for each in self.attained.values():
            if not each.result.measured and each.hardware_share <= 1:
                for name in each.classes:
                    self._shares[name][_source(each.result)].append(each.hardware_share)
        self._best = {name: {source: _quantile(shares) for source, shares in by.items()} for name, by in self._shares.items()}

    def limit(self, result: AuditedResult) -> Limit:
        """Return the utilisation, recomputed work included, that two sources besides the result's own reach in its class."""
        each, practice = self.attained.get(result.id), Limit(self._fallback, f"tuned stacks stay below {self._fallback:.0%}")
        if each and _printed_too(each):
            return practice
        for name in each.classes if each else ((_kind(result),),):
            best = {source: share for source, share in self._best.get(name, {}).items() if source != _source(result)}
            count = sum(len(self._shares[name][source]) for source in best)
            if len(best) >= FEWEST_SOURCES and count >= FEWEST_RESULTS:
                share = MARGIN * sorted(best.values())[-2]
                return Limit(share, f"the limit from {count} results of {len(best)} other sources ({', '.join(name)}) is {share:.0%}")
        return replace(practice, measured=False)


class Sized(Protocol):
    """Anything with a number of parameters."""

    @property
    def parameters(self) -> int:
        """Number of parameters."""


def similar_size(first: Sized, second: Sized) -> bool:
    """Return True if two models have about the same number of parameters: utilisation changes slowly with size."""
    return max(first.parameters, second.parameters) <= SIMILAR_SIZE * min(first.parameters, second.parameters)


def _printed_too(each: Attained) -> bool:
    """Return True if the document itself prints a utilisation as high as its rate implies: its authors knew that it is high."""
    printed = each.result.interval("hfu") or each.result.interval("mfu")
    return printed is not None and printed.value * SAME_UTILISATION >= each.hardware_share


def _kind(result: AuditedResult) -> str:
    return "full fine-tuning" if result.conditions.method is Method.FULL else "frozen weights"


def _source(result: AuditedResult) -> str:
    # All rounds of a benchmark are one source.
    return "mlperf" if result.converted else result.source


def _quantile(shares: list[float]) -> float:
    return sorted(shares)[int(HIGH_QUANTILE * (len(shares) - 1))]
