"""Checks of the price book, and of the files beside it: the basis of costs, and the sizes that AWS sells.

A price is compared with those of the same machine, and of other machines of the provider.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from tunemark.collector.gate.fact_checks import Neighbours
from tunemark.schema.errors import did_you_mean
from tunemark.schema.facts.cards import AcceleratorCard, AwsSizes, PriceBasis, PriceRow
from tunemark.schema.records.reading import Problem
from tunemark.schema.vocabulary import PriceKind

Row = tuple[int, PriceRow]
PRICE_STEP = 3.0
"""A provider's price of an accelerator-hour changes by less between its nearest machines and days: the largest cut was 1.8x (2025)."""
LARGEST_DISCOUNT = 0.08
"""Spot prices are up to 90% below those on demand, as their providers say; the lowest of the book is 0.1 of it."""
GIB_PER_VCPU = (0.5, 64.0)
"""Machines have 1 (vast) to 21 GiB per vCPU."""


def price_problems(rows: Sequence[Row], beside: Neighbours) -> Iterator[tuple[int, Problem]]:
    """Yield the problems of the rows of a price book, each with its line."""
    machines, offers = defaultdict[str, list[Row]](list), defaultdict[str, list[Row]](list)
    for line, row in rows:
        machines[row.instance].append((line, row))
        offers[row.accelerator].append((line, row))
    for line, row in rows:
        card = beside.accelerators.get(row.accelerator)
        same = [other for number, other in machines[row.instance] if number != line]
        others = [other for number, other in offers[row.accelerator] if number != line]
        for problem in (*_machine(row, card, same, beside), *islice(_price(row, same, others), 1)):
            yield line, problem


def _machine(row: PriceRow, card: AcceleratorCard | None, same: Sequence[PriceRow], beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a machine that other rows describe otherwise, that AWS does not sell, or that cannot exist."""
    if card is not None and card.launch_year and row.effective_on.year < card.launch_year:
        yield Problem("effective_on", str(row.effective_on), f"the device was launched in {card.launch_year}; correct the day")
    for name in ("provider", "accelerator", "accelerator_count", "vcpus", "memory_gib"):
        value = getattr(row, name)
        stated = [getattr(other, name) for other in same if getattr(other, name) is not None]
        if value is not None and stated and stated.count(value) * 2 < len(stated) + 1:
            yield Problem(name, repr(value), f"another row of {row.instance} has {stated[0]!r}; a machine has one shape")
    family, _, size = row.instance.partition(".")
    listed = beside.aws_sizes.get(family, ())
    if row.provider == "aws" and listed and size not in listed:
        yield Problem("instance", repr(row.instance), f"AWS sells no {size} of {family}; {did_you_mean(size, listed)}")
    elif row.provider == "aws" and beside.aws_sizes and not listed and (card is None or card.cpu is None):
        yield Problem("instance", repr(row.instance), f"the family {family} is not in aws_sizes.toml; add it with its sizes and source")
    if row.vcpus and row.memory_gib and not GIB_PER_VCPU[0] <= row.memory_gib / row.vcpus <= GIB_PER_VCPU[1]:
        fix = f"is {row.memory_gib / row.vcpus:.3g} GiB per vCPU; machines have {GIB_PER_VCPU[0]:g} to {GIB_PER_VCPU[1]:g}; check the unit"
        yield Problem("memory_gib", f"{row.memory_gib:g}", fix)
    if card is not None and card.cpu is None and not row.accelerator_count.is_integer():
        yield Problem("accelerator_count", f"{row.accelerator_count:g}", "only CPUs are sold in parts; write whole devices")


def _price(row: PriceRow, same: Sequence[PriceRow], others: Sequence[PriceRow]) -> Iterator[Problem]:
    """Yield a problem for a price far from its neighbours: of the machine on demand, and of the provider."""
    shown, in_region = f"{row.usd_per_hour:g}", [other for other in same if (other.region, other.provider) == (row.region, row.provider)]
    if row.kind in {PriceKind.SPOT, PriceKind.RESERVED}:
        on_demand = [other for other in in_region if other.kind is PriceKind.ON_DEMAND]
        # The price on demand that held on the day; without one, the highest of any day.
        latest_day = max((other.effective_on for other in on_demand if other.effective_on <= row.effective_on), default=None)
        list_price = max((other.usd_per_hour for other in on_demand if latest_day in {None, other.effective_on}), default=math.inf)
        if row.usd_per_hour > list_price:
            fix = f"a {row.kind.value} price is not above the price on demand, {list_price:g}; swap them or correct it"
            yield Problem("usd_per_hour", shown, fix)
        elif list_price < math.inf and row.usd_per_hour < LARGEST_DISCOUNT * list_price:
            fix = f"is {row.usd_per_hour / list_price:.1%} of the price on demand, {list_price:g}; prices are for the whole machine"
            yield Problem("usd_per_hour", shown, fix)
    near = [other for other in in_region if other.kind is row.kind]
    near = near or [other for other in others if (other.provider, other.kind) == (row.provider, row.kind)]
    nearest = min((_factor(row, other) for other in near), default=1.0)
    if nearest > PRICE_STEP:
        fix = f"differs by a factor of {nearest:.3g} from the nearest price of {row.provider} for it"
        yield Problem("usd_per_hour", shown, f"{fix}; prices are US dollars per hour of the whole machine")


def _factor(row: PriceRow, other: PriceRow) -> float:
    """Return the factor between two prices for each device, or for each vCPU if that is smaller: large machines have one device too."""
    parts = [(row.accelerator_count, other.accelerator_count), (row.vcpus, other.vcpus)]
    ratios = [row.usd_per_hour / one / (other.usd_per_hour / two) for one, two in parts if one and two]
    return min(max(ratio, 1 / ratio) for ratio in ratios)


# The files beside the price book -----------------------------------------------------------------------


def basis_problems(basis: PriceBasis, offers: Sequence[dict[str, Any]]) -> Iterator[Problem]:
    """Yield the providers and instances of a price basis that are not in the price book, and providers without a list price."""
    known = {str(row["provider"]) for row in offers}
    with_lists = {str(row["provider"]) for row in offers if row["kind"] == PriceKind.ON_DEMAND.value}
    for provider in basis.providers:
        if provider not in known:
            yield Problem("providers", repr(provider), f"has no price in prices.csv; {did_you_mean(provider, known)}")
        elif provider not in with_lists:
            fix = "has no price on demand in prices.csv; the basis holds providers with list prices, no marketplaces"
            yield Problem("providers", repr(provider), fix)
    sold = {(str(row["provider"]), str(row["instance"])) for row in offers}
    for entry in basis.fabric:
        if (entry.provider, entry.instance) not in sold:
            named = {instance for provider, instance in sold if provider == entry.provider}
            fix = f"{entry.provider} has no price of it in prices.csv; {did_you_mean(entry.instance, named)}"
            yield Problem("instance", repr(entry.instance), fix)


def size_problems(sizes: AwsSizes, offers: Sequence[dict[str, Any]]) -> Iterator[Problem]:
    """Yield the sizes with a price that the list of sizes that AWS sells lacks."""
    for instance in dict.fromkeys(str(row["instance"]) for row in offers if row["provider"] == "aws"):
        family, _, size = instance.partition(".")
        if size not in sizes.families.get(family, [size]):
            yield Problem(family, repr(size), f"is missing: {instance} has a price in prices.csv; add it, or correct the price")
