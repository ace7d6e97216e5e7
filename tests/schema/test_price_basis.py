"""The default price basis: the cheapest on-demand list price of its providers, and the instances with a training fabric."""

from datetime import date
from typing import Any

import pytest
from pydantic import ValidationError

from tunemark.schema.facts.cards import PriceBasis, PriceRow, TrainingFabric
from tunemark.schema.vocabulary import PriceKind

ACCELERATOR = "nvidia-a100-40gb-sxm"
EFA = TrainingFabric(provider="aws", instance="p4d.24xlarge", fabric="EFA, 400 Gb/s", source="a page of the vendor")
BASIS = PriceBasis(providers=("gcp", "aws"), reason="two catalogues", fabric=(EFA,))


def price(**changes: Any) -> PriceRow:
    row = {"provider": "aws", "instance": "p4d.24xlarge", "accelerator": ACCELERATOR, "accelerator_count": 8, "region": "us-east-1"}
    dated = {"kind": PriceKind.ON_DEMAND, "usd_per_hour": 32.0, "effective_on": date(2025, 1, 1), "source": "a price list"}
    return PriceRow(**{**row, **dated, **changes})


def test_the_cheapest_listed_provider_counts() -> None:
    offers = [
        price(usd_per_hour=41.0),
        price(provider="gcp", instance="a2-highgpu-8g", usd_per_hour=40.0),
        price(provider="acme", usd_per_hour=1.0),
    ]
    found = BASIS.offer(offers, ACCELERATOR, 8)
    assert found is not None
    assert found.provider == "gcp"


@pytest.mark.parametrize("kind", [PriceKind.SPOT, PriceKind.RESERVED, PriceKind.MARKETPLACE, PriceKind.OWNED])
def test_other_kinds_of_price_are_not_part_of_the_basis(kind: PriceKind) -> None:
    assert BASIS.offer([price(kind=kind)], ACCELERATOR, 1) is None


def test_the_newest_price_in_force_counts() -> None:
    offers = [price(usd_per_hour=20.0, effective_on=date(2024, 1, 1)), price(), price(usd_per_hour=9.0, effective_on=date(2026, 1, 1))]
    found = [BASIS.offer(offers, ACCELERATOR, 8, on=day) for day in (date(2025, 6, 1), date(2023, 1, 1), None)]
    assert [row and row.usd_per_hour for row in found] == [32.0, None, 9.0]


@pytest.mark.parametrize("changed", [{"providers": ("aws", "aws")}, {"fabric": (EFA, EFA)}])
def test_a_provider_or_an_instance_listed_twice_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="is listed twice"):
        PriceBasis.model_validate({**BASIS.model_dump(), **changed})
