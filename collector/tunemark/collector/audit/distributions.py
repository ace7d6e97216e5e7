"""Utilisation that credible results reach: the yardstick of all rules that call a rate too high."""

from collections.abc import Iterator
from typing import NamedTuple

from tunemark.collector.audit.bounds import rates_below_peak, utilisation
from tunemark.collector.audit.evidence import AuditedResult, Evidence
from tunemark.collector.audit.token_rates import TokenRate
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.world_facts import Software
from tunemark.schema.physics.architecture import count_parameters

SIMILAR_SIZE = 1.6
"""Factor within which models have about the same size."""


class Attained(NamedTuple):
    """The utilisation of one result, by its only possible rate."""

    result: AuditedResult
    source: str
    """Its document; all rounds of a benchmark are one source."""
    rate: TokenRate
    share: float
    """Model FLOPs per second as a share of the dense peak."""
    hardware_share: float
    """The same with recomputed blocks, if the result states checkpointing."""
    parameters: int
    level: str
    """Level of the software: plain, tuned or vendor."""

    def has_size_of(self, other: "Attained") -> bool:
        """Return True if both models have about the same number of parameters: utilisation changes slowly with size."""
        return max(self.parameters, other.parameters) <= SIMILAR_SIZE * min(self.parameters, other.parameters)


def software_of(run: AuditedResult, facts: FactBase) -> Software:
    """Return the software of a run of a document."""

    def value_of(name: str) -> object:
        return run.section if name == "section" else run.conditions.stated(name)

    return facts.known.software_of("mlperf" if run.converted else run.source, value_of)


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
        source, level = "mlperf" if result.converted else result.source, software_of(result, evidence.facts).level
        yield Attained(result, source, rates[0], plain[0].value, hardware, count_parameters(result.model).total, level)


def usual_limit(result: AuditedResult, facts: FactBase) -> tuple[float, str]:
    """Return the share of the dense peak, recomputed work included, above which a rate of its level of software is doubted, with words."""
    level = software_of(result, facts).level
    share = facts.known.practice("high-utilisation-plain" if level == "plain" else "high-utilisation")
    return share, f"above the limit of {share:.0%} for {level} software"
