"""Rows of the facts of data/: accelerators, models, workloads, support, prices."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tunemark.collector.store.database import Row, Rows, as_text, columns_of
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.cards import AcceleratorCard, PriceBasis, PriceRow
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.workloads import WorkloadCard
from tunemark.schema.physics.architecture import count_parameters

if TYPE_CHECKING:
    from tunemark.schema.plan.capabilities import SupportMatrix


def fact_rows(facts: FactBase) -> Rows:
    """Return all rows of the fact base; raises TunemarkError (exit code 3) if facts contradict each other."""
    for workload in facts.workloads.values():
        facts.model(workload.model)
    for line, row in enumerate(facts.prices, start=2):
        if row.accelerator not in facts.accelerators:
            place = f"data/prices/prices.csv:{line}: accelerator"
            fix = "no such card in data/accelerators; add the card or correct the key"
            raise TunemarkError(place, row.accelerator, fix, exit_code=Exit.INVALID)
    return {
        "accelerators": [_accelerator(card) for card in facts.accelerators.values()],
        "models": [
            {
                **columns_of("models", card),
                "matrix_parameters": count_parameters(card).matrix_multiplied,
                **card.model_dump(exclude={"key"}),
            }
            for card in facts.models.values()
        ],
        "workloads": [_workload(card, facts.matrix_of(card.key)) for card in facts.workloads.values()],
        "workload_axes": [row for card in facts.workloads.values() for row in _axes(card)],
        "support": list(_support(facts.support)) if facts.support else [],
        "gate_scores": [{"position": place, **row} for place, row in enumerate(facts.gate_scores, start=1)],
        "prices": price_rows(facts.prices, facts.price_basis),
        "releases": [
            *(columns_of("releases", row) for row in facts.known.releases),
            *(
                {"library": listed.library, "version": version, "released_on": day, "source": listed.source}
                for listed in facts.known.libraries
                for version, day in listed.released_on.items()
            ),
        ],
    }


def price_id(row: PriceRow) -> str:
    """Return the id of a price: provider/instance/region/kind/date, with `any` for a price of all regions."""
    return f"{row.provider}/{row.instance}/{row.region or 'any'}/{row.kind.value}/{row.effective_on.isoformat()}"


def price_rows(prices: Sequence[PriceRow], basis: PriceBasis) -> list[Row]:
    """Return the price book with an id, the rank of the provider and the fabric for each price."""
    placed = [{"provider_rank": basis.rank(row.provider), "fabric": basis.fabric_of(row.provider, row.instance)} for row in prices]
    stated = [{"price": price_id(row), **row.model_dump(mode="python", exclude={"kind"}), "kind": row.kind.value} for row in prices]
    return [row | place for row, place in zip(stated, placed, strict=True)]


def _accelerator(card: AcceleratorCard) -> Row:
    own = card.model_dump(exclude={"key", "cores_per_unit", "peak_tflops", "cpu"})
    return own | columns_of("accelerators", card) | {"cpu_clock": card.cpu.clock_words() if card.cpu and card.peak_tflops else None}


def _workload(card: WorkloadCard, matrix: str | None) -> Row:
    return columns_of("workloads", card) | {
        "matrix": matrix,
        "lora": card.lora and f"rank {card.lora.rank}, alpha {card.lora.alpha}, on {', '.join(card.lora.target_modules)}",
        "quantisation": card.quantisation and card.quantisation.format + (", scales quantised too" if card.quantisation.double else ""),
    }


def _axes(card: WorkloadCard) -> Iterator[Row]:
    rows = []
    for axis in card.axes:
        at = ", ".join(f"{field}={as_text(value)}" for field, value in axis.at.items())
        rows.append((f"{axis.field} at {at}" if at else axis.field, [as_text(value) or "none" for value in axis.values]))
    rows += [(", ".join(point), [", ".join(as_text(value) or "none" for value in point.values())]) for point in card.points]
    for position, (field, choices) in enumerate(rows, start=1):
        yield {"workload": card.key, "position": position, "field": field, "choices": choices}


def _support(matrix: "SupportMatrix") -> Iterator[Row]:
    for backend, family in matrix.families.items():
        for position, feature in enumerate(matrix.features, start=1):
            reason, need = family.cannot.get(feature), family.needs.get(feature)
            supported = {"supported": reason is None, "reason": reason, "needs": need.package if need and reason is None else None}
            yield {"backend": backend.value, "position": position, "feature": feature.value, **supported}
