"""Checks of the price book, and of the files beside it: the basis of costs, and the sizes that AWS sells.

A price is compared with those of the same machine, of other machines of the provider, and of the market.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from typing import Any

from tunemark.collector.gate.fact_checks import EARLIEST, PLACEHOLDER, Neighbours, day_problems, skeleton, source_problems
from tunemark.schema.errors import did_you_mean
from tunemark.schema.facts.cards import AcceleratorCard, PriceBasis, PriceRow
from tunemark.schema.records.reading import Problem
from tunemark.schema.vocabulary import PriceKind

Row = tuple[int, PriceRow]
FIRST_CLOUD = date(2015, 1, 1)
"""Before the first cloud accelerator that anybody still trains on (K80, 2016)."""
PRICE_STEP = 3.0
"""A provider's price of an accelerator-hour changes by less between its nearest machines and days: the largest cut was 1.8x (2025)."""
LARGEST_DISCOUNT = 0.08
"""Spot prices are up to 90% below those on demand, as their providers say; the lowest of the book is 0.1 of it."""
MARKET_STEP = 4.0
"""A price is rarely this many times below the cheapest or above the dearest offer of others: the same card differs 4x between clouds."""
WORTH = 0.4
"""Share of the cheapest, and of the dearest, list price of compute of a vendor's other devices at a provider: 0.46 so far (TPU v6e at
gcp). Spot prices are set by markets and differ more."""
SAME_TIME_DAYS = 180
"""Prices of a provider within half a year are compared as one list; price cuts are rarer."""
GIB_PER_VCPU = (0.5, 64.0)
"""Machines have 1 (vast) to 21 GiB per vCPU."""
SIZE_OF_AWS = re.compile(r"(?:\d{1,3})?xlarge|large|medium|small|metal(?:-\d{1,3}xl)?")
ODD_NAME = re.compile(r"[^A-Za-z0-9._+-]")


def price_problems(rows: Sequence[Row], beside: Neighbours) -> Iterator[tuple[int, Problem]]:
    """Yield the problems of the rows of a price book, each with its line."""
    machines, offers, lists = defaultdict[str, list[Row]](list), defaultdict[str, list[Row]](list), defaultdict[str, list[PriceRow]](list)
    for line, row in rows:
        machines[row.instance].append((line, row))
        offers[row.accelerator].append((line, row))
        if row.kind is not PriceKind.MARKETPLACE:
            # On a marketplace each host has its own price.
            lists[row.provider].append(row)
    providers = {skeleton(row.provider): row.provider for _, row in reversed(rows)}
    for line, row in rows:
        card = beside.accelerators.get(row.accelerator)
        same = [other for number, other in machines[row.instance] if number != line]
        others = [other for number, other in offers[row.accelerator] if number != line]
        far_off = next(_price(row, same, others), None) or next(_worth(row, lists[row.provider], beside), None)
        for problem in (*_source(row, card), *_machine(row, card, same, providers, beside), *([far_off] if far_off else [])):
            yield line, problem


def _source(row: PriceRow, card: AcceleratorCard | None) -> Iterator[Problem]:
    yield from source_problems(row)
    launched = date(card.launch_year, 1, 1) if card is not None and card.launch_year else FIRST_CLOUD
    yield from day_problems("effective_on", row.effective_on, max(launched, FIRST_CLOUD))


def _machine(
    row: PriceRow, card: AcceleratorCard | None, same: Sequence[PriceRow], providers: dict[str, str], beside: Neighbours
) -> Iterator[Problem]:
    """Yield a problem for a machine that other rows describe otherwise, that AWS does not sell, or that cannot exist."""
    if providers[skeleton(row.provider)] != row.provider:
        fix = f"looks like {providers[skeleton(row.provider)]!r}; write a provider the same in all rows"
        yield Problem("provider", repr(row.provider), fix)
    if odd := ODD_NAME.search(row.instance):
        yield Problem("instance", ascii(row.instance), f"names of machines do not contain {odd[0]!a}; write it as the provider does")
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
    """Yield a problem for a price far from its neighbours: of the machine on demand, of the provider, and of the market."""
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
    hourly, market = row.usd_per_hour / row.accelerator_count, [other.usd_per_hour / other.accelerator_count for other in others]
    if market and not min(market) / MARKET_STEP <= hourly <= max(market) * MARKET_STEP:
        fix = f"is {hourly:.3g} per device, others have {min(market):.3g} to {max(market):.3g}"
        yield Problem("usd_per_hour", shown, f"{fix}; prices are US dollars per hour of the whole machine")


def _factor(row: PriceRow, other: PriceRow) -> float:
    """Return the factor between two prices for each device, or for each vCPU if that is smaller: large machines have one device too."""
    parts = [(row.accelerator_count, other.accelerator_count), (row.vcpus, other.vcpus)]
    ratios = [row.usd_per_hour / one / (other.usd_per_hour / two) for one, two in parts if one and two]
    return min(max(ratio, 1 / ratio) for ratio in ratios)


def _worth(row: PriceRow, others: Iterable[PriceRow], beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a price of dense 16-bit compute far from what the provider asks for it on the vendor's other devices."""
    worth, card = _usd_per_pflop(row, beside), beside.accelerators.get(row.accelerator)
    asked = [
        price
        for other in others
        if other.kind is row.kind
        and other.accelerator != row.accelerator
        and abs((row.effective_on - other.effective_on).days) <= SAME_TIME_DAYS
        and card is not None
        and (lesser := beside.accelerators.get(other.accelerator)) is not None
        and lesser.vendor == card.vendor
        and (price := _usd_per_pflop(other, beside))
    ]
    listed = row.kind not in {PriceKind.SPOT, PriceKind.MARKETPLACE}
    if listed and worth and len(asked) > 1 and not min(asked) * WORTH <= worth <= max(asked) / WORTH:
        fix = f"is {worth:.3g} per dense PFLOP/s-hour; {row.provider} asks {min(asked):.3g} to {max(asked):.3g} on other devices of the vendor"
        yield Problem("usd_per_hour", f"{row.usd_per_hour:g}", f"{fix}: prices are for the whole machine")


def _usd_per_pflop(row: PriceRow, beside: Neighbours) -> float:
    """Return the price of a dense 16-bit PFLOP/s for an hour, or 0 if the peak is unknown."""
    card = beside.accelerators.get(row.accelerator)
    peaks = [card.value(f"peak_tflops.{name}") or 0.0 for name in ("bf16", "fp16")] if card is not None and card.cpu is None else [0.0]
    return 1000 * row.usd_per_hour / row.accelerator_count / max(peaks) if max(peaks) else 0.0


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


def size_problems(content: dict[str, Any], offers: Sequence[dict[str, Any]]) -> Iterator[Problem]:
    """Yield problems of the list of sizes that AWS sells: its form, source and day, and sizes with a price that it lacks."""
    families = content.get("families")
    if not isinstance(families, dict) or not all(isinstance(sizes, list) and sizes for sizes in families.values()):
        yield Problem("families", "", 'must be a table of family = ["size", ...]')
        return
    if not isinstance(content.get("source"), str) or PLACEHOLDER.fullmatch(content["source"]):
        yield Problem("source", repr(content.get("source")), "says nothing; name the page, or repository, file and commit")
    if not isinstance(content.get("read_on"), date):
        yield Problem("read_on", repr(content.get("read_on")), "must be a day, such as 2026-11-20")
    else:
        yield from day_problems("read_on", content["read_on"], EARLIEST)
    for family, sizes in families.items():
        for size in sizes:
            if not (isinstance(size, str) and SIZE_OF_AWS.fullmatch(size)) or sizes.count(size) > 1:
                yield Problem(family, repr(size), "is listed twice, or no size such as 12xlarge or metal")
    for instance in dict.fromkeys(str(row["instance"]) for row in offers if row["provider"] == "aws"):
        family, _, size = instance.partition(".")
        if size not in families.get(family, [size]):
            yield Problem(family, repr(size), f"is missing: {instance} has a price in prices.csv; add it, or correct the price")
