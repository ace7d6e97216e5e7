"""Checks of the price book, and of the files beside it: the basis of costs, and the sizes that AWS sells.

A price is compared with those of the same machine, of other machines of the provider, and of the market.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from functools import partial
from typing import Any

from tunemark.collector.gate.fact_checks import EARLIEST, PLACEHOLDER, Neighbours, day_problems, skeleton, source_problems
from tunemark.schema.errors import did_you_mean
from tunemark.schema.facts.cards import AcceleratorCard, PriceBasis, PriceRow
from tunemark.schema.facts.names import AWS
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.vocabulary import PriceKind

Row = tuple[int, PriceRow]
FIRST_CLOUD = date(2015, 1, 1)
"""Before the first cloud accelerator that anybody still trains on (K80, 2016)."""
PRICE_STEP = 3.0
"""A provider's price of an accelerator-hour changes by less between its nearest machines and days: the largest cut was 1.8x (2025)."""
CPU_PRICE_STEP = 1.6
"""CPU machines cost the same per core whatever their size; families with twice the memory per core cost 1.5x."""
LARGEST_DISCOUNT = 0.08
"""Spot prices are up to 90% below those on demand, as their providers say; the lowest of the book is 0.1 of it."""
MARKET_STEP = 4.0
"""A price is rarely this many times below the cheapest or above the dearest offer of others: the same card differs 4x between clouds."""
USD_PER_PFLOP_H = (0.25, 75.0)
"""Dense 16-bit PFLOP for an hour: 0.8 (old cards on marketplaces) to 24 (V100 at list price), with a factor of three on both sides."""
USD_PER_VCPU_H = (0.003, 0.3)
"""CPU machines cost 0.02 to 0.06 per vCPU-hour at list price."""
GIB_PER_VCPU = (0.5, 64.0)
"""Machines have 1 (vast) to 21 GiB per vCPU."""
SHAPE_STEP = 8.0
"""Machines with the same card at one provider differ less in vCPUs or memory per card: g5.xlarge has 4, g5.24xlarge 24 per card."""
COUNT_IN_NAME = re.compile(
    r"^(\d+)x[_-]|_(\d+)x_|_(\d+)gpu-|-(\d+)g$|gpu-[a-z]+\d+x(\d+)-|^BM\.GPU\..*\.(\d+)$|^(\d+)(?=(?:RTXPRO|[ABHLV])\w+\.\d+)"
)
"""How providers write the number of cards into the name of a machine."""
VCPUS_IN_NAME = re.compile(
    r"-(\d+)vcpu-|^[acegmn]\d[a-z]?-(?:standard|highcpu|highmem)-(\d+)$|^Standard_N[A-Z]+?(\d+)[a-z]|^\d+[A-Z]\w+(?:\.\w+)?\.(\d+)V$"
    r"|^\d+x-\w+-(\d+)-\d+$"
)
MEMORY_IN_NAME = re.compile(r"vcpu-(\d+)gb$")
SIZE_OF_AWS = re.compile(r"(?:\d{1,3})?xlarge|large|medium|small|metal(?:-\d{1,3}xl)?")
VCPUS_OF_XLARGE = 4
"""AWS counts sizes in `xlarge` of four vCPUs: 24xlarge has 96."""
CORES_OF_TPU = {"v2": 2, "v3": 2, "v4": 2, "v5p": 2, "v5litepod": 1, "v6e": 1}
"""Google's names of TPU slices count TensorCores up to v5p, and chips since; a chip of the former has two."""
SCALE = 1.2
"""A provider's machines with the same accelerator cost the sum of their parts: a price rises at least as much as the part that grows
least, and at most as much as the part that grows most. Discounts for whole machines, and prices of data centres, are up to 18% in the book."""
SAME_RATIO = 0.02
"""Rounding of prices."""
WORTH = 0.4
"""Share of the cheapest, and of the dearest, list price of compute of a vendor's other devices at a provider: 0.46 so far (TPU v6e at
gcp). Spot prices are set by markets and differ more."""
SAME_TIME_DAYS = 180
"""Prices of a provider within half a year are compared as one list; price cuts are rarer."""
FORM_FACTOR = re.compile(r"(?<![a-z])(sxm|pcie|nvl)\d?(?![a-z])", re.IGNORECASE)
AZURE_FAMILY = re.compile(r"Standard_(N[A-Z]+)\d+[a-z]+_(.+)")
AWS_MULTIPLES = {"", *map(str, (2, 3, 4, 6, 8, 9, 10, 12, 16, 18, 24, 32, 36, 48, 56, 64, 72, 96, 112, 192, 224))}
"""Numbers in front of `xlarge` in the sizes that AWS sells."""
ODD_NAME = re.compile(r"[^A-Za-z0-9._+-]")


def price_problems(rows: Sequence[Row], beside: Neighbours) -> Iterator[tuple[int, Problem]]:
    """Yield the problems of the rows of a price book, each with its line."""
    machines, offers = defaultdict[str, list[Row]](list), defaultdict[str, list[Row]](list)
    for line, row in rows:
        machines[row.instance].append((line, row))
        offers[row.accelerator].append((line, row))
    families = _families(rows)
    tokens = {card.key: _tokens(card) for card in beside.accelerators.values() if card.unit != "cpu"}
    providers = {skeleton(row.provider): row.provider for _, row in reversed(rows)}
    machines_of = _by_provider(rows)
    for line, row in rows:
        card = beside.accelerators.get(row.accelerator)
        same = [other for number, other in machines[row.instance] if number != line]
        others = [other for number, other in offers[row.accelerator] if number != line]
        far_off = list(_price(row, card, same, others))
        for check in (_scale, partial(_worth, beside=beside)):
            far_off = far_off or list(check(row, machines_of[row.provider]))
        found = [
            *_price_source(row, card),
            *_machine(row, same, families),
            *_names(row, tokens, providers),
            *_aws_size(row, card, beside.aws_sizes),
            *_shape(row, card, others),
            *far_off,
        ]
        for problem in found:
            yield line, problem


def _price_source(row: PriceRow, card: AcceleratorCard | None) -> Iterator[Problem]:
    yield from source_problems(row)
    launched = date(card.launch_year, 1, 1) if card is not None and card.launch_year else FIRST_CLOUD
    yield from day_problems("effective_on", row.effective_on, max(launched, FIRST_CLOUD))


def _families(rows: Iterable[Row]) -> dict[tuple[str, str], set[str]]:
    """Return the accelerators of each family of machines; only AWS, Google Cloud and Azure name families."""
    found = defaultdict[tuple[str, str], set[str]](set)
    for _, row in rows:
        if family := _family(row):
            found[row.provider, family].add(row.accelerator)
    return found


def _family(row: PriceRow) -> str | None:
    azure = AZURE_FAMILY.fullmatch(row.instance)
    names = {
        "aws": row.instance.partition(".")[0],
        "gcp": row.instance.rpartition("-")[0],
        "azure": "_".join(azure.groups()) if azure else None,
    }
    return names.get(row.provider)


def _machine(row: PriceRow, same: Sequence[PriceRow], families: dict[tuple[str, str], set[str]]) -> Iterator[Problem]:
    """Yield a problem where a machine has another shape or provider in another row, or its family has another accelerator."""
    for name in ("provider", "accelerator", "accelerator_count", "vcpus", "memory_gib"):
        value = getattr(row, name)
        stated = [getattr(other, name) for other in same if getattr(other, name) is not None]
        if value is not None and stated and stated.count(value) * 2 < len(stated) + 1:
            yield Problem(name, repr(value), f"another row of {row.instance} has {stated[0]!r}; a machine has one shape")
    family = _family(row)
    if family and not same and len(accelerators := families[row.provider, family]) > 1:
        fix = f"the family {family} has {', '.join(sorted(accelerators - {row.accelerator}))} in other rows; a family has one accelerator"
        yield Problem("accelerator", repr(row.accelerator), fix)


def _names(row: PriceRow, tokens: dict[str, set[str]], providers: dict[str, str]) -> Iterator[Problem]:
    """Yield a problem for a name that looks like another, and for an accelerator or numbers that the name of the machine contradicts."""
    if providers[skeleton(row.provider)] != row.provider:
        fix = f"looks like {providers[skeleton(row.provider)]!r}; write a provider the same in all rows"
        yield Problem("provider", repr(row.provider), fix)
    if odd := ODD_NAME.search(row.instance):
        yield Problem("instance", ascii(row.instance), f"names of machines do not contain {odd[0]!a}; write it as the provider does")
    if AWS.fullmatch(row.instance) and row.provider != "aws":
        yield Problem("provider", repr(row.provider), f"{row.instance} is a name of aws; correct the provider or the instance")
    named = {token for known in tokens.values() for token in known if _has(row.instance, token)}
    if row.accelerator in tokens and named and not named & tokens[row.accelerator]:
        owners = sorted(key for key, known in tokens.items() if known & named)
        yield Problem("accelerator", repr(row.accelerator), f"the name {row.instance} says {' or '.join(owners)}")
    forms = [{form.lower() for form in FORM_FACTOR.findall(name)} for name in (row.instance, row.accelerator)]
    if all(forms) and not forms[0] & forms[1]:
        yield Problem(
            "accelerator", repr(row.accelerator), f"the name {row.instance} says {' or '.join(sorted(forms[0]))}; correct one of them"
        )
    for name, pattern in (("accelerator_count", COUNT_IN_NAME), ("vcpus", VCPUS_IN_NAME), ("memory_gib", MEMORY_IN_NAME)):
        match, value = pattern.search(row.instance), getattr(row, name)
        if match and value is not None and int(match[match.lastindex or 1]) != value:
            yield Problem(name, f"{value:g}", f"the name {row.instance} says {match[match.lastindex or 1]}; correct one of them")


def _aws_size(row: PriceRow, card: AcceleratorCard | None, sizes: dict[str, tuple[str, ...]]) -> Iterator[Problem]:
    """Yield a problem for a size that AWS does not sell, for vCPUs or TPU chips that the name of the machine contradicts."""
    family, dot, size = row.instance.partition(".")
    if row.provider == "aws" and dot:
        listed = sizes.get(family, ())
        if listed and size not in listed:
            yield Problem("instance", repr(row.instance), f"AWS sells no {size} of {family}; {did_you_mean(size, listed)}")
        elif sizes and not listed and (card is None or card.cpu is None):
            yield Problem("instance", repr(row.instance), f"the family {family} is not in aws_sizes.toml; add it with its sizes and source")
        number = re.fullmatch(r"(\d*)xlarge", size)
        if number and row.vcpus is not None and row.vcpus != VCPUS_OF_XLARGE * int(number[1] or 1):
            yield Problem("vcpus", str(row.vcpus), f"{size} has {VCPUS_OF_XLARGE * int(number[1] or 1)}; correct one of them")
    slice_of = re.fullmatch(r"tpu-(v\d\w*)-(\d+)", row.instance)
    if slice_of and slice_of[1] in CORES_OF_TPU and int(slice_of[2]) != row.accelerator_count * CORES_OF_TPU[slice_of[1]]:
        fix = f"the name says {int(slice_of[2]) / CORES_OF_TPU[slice_of[1]]:g} chips; correct one of them"
        yield Problem("accelerator_count", f"{row.accelerator_count:g}", fix)


def _tokens(card: AcceleratorCard) -> set[str]:
    """Return the words of a key that name its device, such as h100, mi300x or rtx4090."""
    joined = re.sub(r"rtx-(pro-)?(a?\d+)", lambda match: f"rtx{'pro' if match[1] else ''}{match[2]}", card.key)
    return {part for part in joined.split("-") if re.fullmatch(r"(?:rtx(?:pro)?a?|gb|gh|mi|[abhlt])\d{1,4}[a-z]{0,2}|v\d{3}", part)}


def _has(instance: str, token: str) -> bool:
    return re.search(rf"(?<![a-z]){token}(?![a-z0-9])", instance.lower().replace("rtx_", "rtx").replace("pro_", "pro")) is not None


def _shape(row: PriceRow, card: AcceleratorCard | None, others: Sequence[PriceRow]) -> Iterator[Problem]:
    """Yield problems of vCPUs, memory and count of a machine: against each other, its CPU, and the provider's machines like it."""
    if row.vcpus and row.memory_gib and not GIB_PER_VCPU[0] <= row.memory_gib / row.vcpus <= GIB_PER_VCPU[1]:
        fix = f"is {row.memory_gib / row.vcpus:.3g} GiB per vCPU; machines have {GIB_PER_VCPU[0]:g} to {GIB_PER_VCPU[1]:g}; check the unit"
        yield Problem("memory_gib", f"{row.memory_gib:g}", fix)
    if card is not None and card.cpu is not None:
        cores = row.accelerator_count * card.cpu.cores
        # One or two threads of each core are sold; the fraction in the book is rounded.
        if row.vcpus and min(abs(row.vcpus / cores - threads) for threads in (1, 2)) > 0.01:  # noqa: PLR2004
            fix = f"{row.vcpus} vCPUs are one or two threads of {row.vcpus} or {row.vcpus / 2:g} of the {card.cpu.cores} cores"
            yield Problem("accelerator_count", f"{row.accelerator_count:g}", f"{fix}; correct it")
        threads = Counter(round(other.vcpus / other.accelerator_count / card.cpu.cores) for other in others if other.vcpus)
        if row.vcpus and threads and round(row.vcpus / cores) not in threads:
            fix = f"is {row.vcpus / cores:.2g} vCPUs per core; other machines with this CPU have {min(threads)}"
            yield Problem("accelerator_count", f"{row.accelerator_count:g}", f"{fix}; correct it")
        return
    if not row.accelerator_count.is_integer():
        yield Problem("accelerator_count", f"{row.accelerator_count:g}", "only CPUs are sold in parts; write whole devices")
    for name in ("vcpus", "memory_gib"):
        value = getattr(row, name)
        per_card = [
            getattr(other, name) / other.accelerator_count for other in others if other.provider == row.provider and getattr(other, name)
        ]
        if value and per_card and not min(per_card) / SHAPE_STEP <= value / row.accelerator_count <= max(per_card) * SHAPE_STEP:
            fix = f"is {value / row.accelerator_count:.3g} per device; other machines of {row.provider} with it have {min(per_card):.3g} to {max(per_card):.3g}"
            yield Problem(name, f"{value:g}", fix)


def _price(row: PriceRow, card: AcceleratorCard | None, same: Sequence[PriceRow], others: Sequence[PriceRow]) -> Iterator[Problem]:
    """Yield a problem for a price far from its neighbours: of the machine, the provider, the market, and the speed that it buys."""
    hourly = row.usd_per_hour / row.accelerator_count
    shown = f"{row.usd_per_hour:g}"
    in_region = [other for other in same if other.region == row.region and other.provider == row.provider]
    if row.kind in {PriceKind.SPOT, PriceKind.RESERVED}:
        on_demand = [other for other in in_region if other.kind is PriceKind.ON_DEMAND]
        # The price on demand that held on the day; without one, the highest of any day.
        latest_day = max((other.effective_on for other in on_demand if other.effective_on <= row.effective_on), default=None)
        list_price = max((other.usd_per_hour for other in on_demand if latest_day in {None, other.effective_on}), default=math.inf)
        if row.usd_per_hour > list_price:
            yield Problem(
                "usd_per_hour", shown, f"a {row.kind.value} price is not above the price on demand, {list_price:g}; swap them or correct it"
            )
            return
        if list_price < math.inf and row.usd_per_hour < LARGEST_DISCOUNT * list_price:
            fix = f"is {row.usd_per_hour / list_price:.1%} of the price on demand, {list_price:g}; prices are for the whole machine"
            yield Problem("usd_per_hour", shown, fix)
            return
    near = [other for other in in_region if other.kind is row.kind] or [
        o for o in others if (o.provider, o.kind) == (row.provider, row.kind)
    ]
    factors = [_price_factor(row, other) for other in near if other.usd_per_hour]
    if min(factors, default=1.0) > (PRICE_STEP if card is None or card.cpu is None else CPU_PRICE_STEP):
        fix = f"differs by a factor of {min(factors):.3g} from the nearest price of {row.provider} for it; prices are US dollars per hour of the whole machine"
        yield Problem("usd_per_hour", shown, fix)
        return
    market = [other.usd_per_hour / other.accelerator_count for other in others]
    if market and not min(market) / MARKET_STEP <= hourly <= max(market) * MARKET_STEP:
        fix = f"is {hourly:.3g} per device, others have {min(market):.3g} to {max(market):.3g}; prices are US dollars per hour of the whole machine"
        yield Problem("usd_per_hour", shown, fix)
        return
    peak = card and max((value for kind, value in card.peak_tflops.items() if kind.value in {"bf16", "fp16"}), default=0.0)
    per: float
    if card is not None and card.cpu is not None:
        per, (low, high), what = row.vcpus or 0, USD_PER_VCPU_H, "vCPU-hour"
    else:
        per, (low, high), what = (peak or 0) / 1000 * row.accelerator_count, USD_PER_PFLOP_H, "dense PFLOP/s-hour"
    if per and not low <= row.usd_per_hour / per <= high:
        yield Problem(
            "usd_per_hour", shown, f"is {row.usd_per_hour / per:.3g} per {what}; the market has {low:g} to {high:g}; check the unit"
        )


def _price_factor(row: PriceRow, other: PriceRow) -> float:
    """Return the factor between two prices for each device, or for each vCPU if that is smaller: large machines have one device too."""
    parts = [(row.accelerator_count, other.accelerator_count), (row.vcpus, other.vcpus)]
    ratios = [row.usd_per_hour / one / (other.usd_per_hour / two) for one, two in parts if one and two]
    return min(max(ratio, 1 / ratio) for ratio in ratios)


def _by_provider(rows: Iterable[Row]) -> dict[str, list[PriceRow]]:
    """Return the rows of each provider without those of marketplaces, where each host has its own price."""
    found = defaultdict[str, list[PriceRow]](list)
    for _, row in rows:
        if row.kind is not PriceKind.MARKETPLACE:
            found[row.provider].append(row)
    return found


def _scale(row: PriceRow, others: Iterable[PriceRow]) -> Iterator[Problem]:
    """Yield a problem for a price, count, vCPUs or memory that the other sizes of the machine contradict.

    If a price is a sum over devices, vCPUs and memory, the ratio of two prices is between the smallest and the largest ratio of
    these parts. Of two machines that contradict each other, the one that contradicts more of the others is named.
    """
    alike = _other_sizes(row, others)
    wrong = [other for other in alike if not _scales(row, other)]
    # Between two machines alone both are named: either may be wrong.
    if wrong and 2 * len(wrong) >= len(alike):
        nearest = wrong[0]
        fix = (
            f"is {row.usd_per_hour / nearest.usd_per_hour:.3g}x the price of {nearest.instance}, with "
            f"{', '.join(f'{ratio:.3g}x its {name}' for name, ratio in _parts(row, nearest).items())}; correct the price or the machine"
        )
        yield Problem("usd_per_hour", f"{row.usd_per_hour:g}", fix)
        return
    comparable = [other for other in alike if _in_proportion(row, other)]
    counted = [other for other in comparable if _miscounted(row, other)]
    if counted and 2 * len(counted) >= len(comparable):
        fix = f"is that of {counted[0].instance}, but price and vCPUs differ by the same factor; correct the count"
        if row.accelerator_count != counted[0].accelerator_count:
            fix = f"{counted[0].instance} has {counted[0].accelerator_count:g}, but price and vCPUs differ by another factor; correct the count"
        yield Problem("accelerator_count", f"{row.accelerator_count:g}", fix)


def _in_proportion(row: PriceRow, other: PriceRow) -> bool:
    """Return True if price, vCPUs and memory of two machines have one ratio."""
    parts, price = _parts(row, other), row.usd_per_hour / other.usd_per_hour
    del parts["accelerator_count"]
    return bool(parts) and all(abs(ratio / price - 1) < SAME_RATIO for ratio in parts.values())


def _miscounted(row: PriceRow, other: PriceRow) -> bool:
    """Return True if the ratio of the numbers of devices is not that of the prices."""
    ratio = (row.accelerator_count / other.accelerator_count) / (row.usd_per_hour / other.usd_per_hour)
    return not 1 / SCALE <= ratio <= SCALE


def _list_of(row: PriceRow) -> tuple[object, ...]:
    """Return the common properties of prices of one list: sizes of one family with one device, in one region, on one day."""
    return row.accelerator, row.kind, row.region, row.effective_on, _family(row) if row.provider == "aws" else None


def _other_sizes(row: PriceRow, others: Iterable[PriceRow]) -> list[PriceRow]:
    """Return the other machines of the list of a row."""
    return [other for other in others if other.instance != row.instance and _list_of(other) == _list_of(row)]


def _parts(row: PriceRow, other: PriceRow) -> dict[str, float]:
    """Return the ratios of the parts that are known of two machines."""
    parts = {name: (getattr(row, name), getattr(other, name)) for name in ("accelerator_count", "vcpus", "memory_gib")}
    return {name: one / two for name, (one, two) in parts.items() if one and two}


def _scales(row: PriceRow, other: PriceRow) -> bool:
    ratios, price = _parts(row, other).values(), row.usd_per_hour / other.usd_per_hour
    return min(ratios) / SCALE <= price <= max(ratios) * SCALE


def _worth(row: PriceRow, others: Iterable[PriceRow], *, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a price of dense 16-bit compute far from what the provider asks for it on the vendor's other devices."""
    worth = _usd_per_pflop(row, beside)
    card = beside.accelerators.get(row.accelerator)
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
    if row.kind is not PriceKind.SPOT and worth and len(asked) > 1 and not min(asked) * WORTH <= worth <= max(asked) / WORTH:
        fix = f"is {worth:.3g} per dense PFLOP/s-hour; {row.provider} asks {min(asked):.3g} to {max(asked):.3g} on other devices of the vendor"
        yield Problem("usd_per_hour", f"{row.usd_per_hour:g}", f"{fix}: prices are for the whole machine")


def _usd_per_pflop(row: PriceRow, beside: Neighbours) -> float:
    """Return the price of a dense 16-bit PFLOP/s for an hour, or 0 if the peak is unknown."""
    card = beside.accelerators.get(row.accelerator)
    peak = _peak(card) if card is not None and card.cpu is None else 0.0
    return 1000 * row.usd_per_hour / row.accelerator_count / peak if peak else 0.0


def _peak(card: AcceleratorCard) -> float:
    return max((value for kind, value in card.peak_tflops.items() if kind.value in {"bf16", "fp16"}), default=0.0)


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
            known = isinstance(size, str) and SIZE_OF_AWS.fullmatch(size)
            if not known or sizes.count(size) > 1 or (size.endswith("xlarge") and size.removesuffix("xlarge") not in AWS_MULTIPLES):
                yield Problem(family, repr(size), "is listed twice, or no size such as 12xlarge or metal")
    for instance in dict.fromkeys(str(row["instance"]) for row in offers if row["provider"] == "aws"):
        family, _, size = instance.partition(".")
        if size not in families.get(family, [size]):
            yield Problem(family, repr(size), f"is missing: {instance} has a price in prices.csv; add it, or correct the price")
