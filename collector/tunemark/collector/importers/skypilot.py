"""SkyPilot catalogue files as rows of the price book: one row for each instance, region and kind."""

import csv
import io
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from pydantic import ValidationError

from tunemark.collector.importers.skypilot_rows import Drop, Dropped, Offer, offer_of
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.cards import PriceRow
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.vocabulary import PriceKind

NEEDED = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region", "SpotPrice")
LARGEST_FILE = 256 * 2**20


@dataclass(slots=True)
class Prices:
    """What a catalogue file gave."""

    rows: list[PriceRow] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    lines: int = 0


def read_catalogue(content: bytes, provider: str, read_on: date, source: str, facts: FactBase) -> Prices:
    """Return the price rows of a catalogue file.

    Parameters
    ----------
    content
        A vms.csv of SkyPilot's catalogue.
    provider
        Whose it is: the file itself does not say.
    read_on
        The day it was read: a catalogue names a version and no day.
    source
        Cited in each row.
    facts
        Resolves accelerators.

    Raises
    ------
    TunemarkError
        With exit code 3 when it is no such file at all.

    """
    found = Prices()
    offers: list[Offer] = []
    for line, read in _lines(content):
        found.lines += 1
        row = {name: (value or "").strip() for name, value in read.items() if isinstance(name, str)}
        what = (row.get("InstanceType") or row.get("AcceleratorName") or "")[:80]
        try:
            _refuse_other_width(read)
            offers.append(offer_of(row, line, provider, facts))
        except Drop as drop:
            found.dropped.append(Dropped(line, what, drop.reason, drop.refused))
    if not found.lines:
        raise TunemarkError("file", "", "a header without a row; nothing was read", exit_code=Exit.INVALID)
    for price in _prices(_consistent(offers, found), provider, read_on, source):
        if isinstance(price, PriceRow):
            found.rows.append(price)
        else:
            found.dropped.append(price)
    found.dropped.sort(key=lambda one: one.line)
    return found


def _lines(content: bytes) -> Iterator[tuple[int, Mapping[Any, Any]]]:
    if len(content) > LARGEST_FILE:
        raise TunemarkError("file", f"{len(content):,} bytes", "larger than any catalogue", exit_code=Exit.INVALID)
    try:
        reader = csv.DictReader(io.StringIO(content.decode("utf-8"), newline=""))
        missing = [name for name in NEEDED if name not in (reader.fieldnames or ())]
        if missing:
            raise TunemarkError(
                "columns", ", ".join(missing), f"missing; a SkyPilot vms.csv has {', '.join(NEEDED)}", exit_code=Exit.INVALID
            )
        for row in reader:
            yield reader.line_num, row
    except (UnicodeDecodeError, csv.Error) as error:
        raise TunemarkError("file", "", f"not a CSV file in UTF-8: {error}", exit_code=Exit.INVALID) from error


def _refuse_other_width(row: Mapping[Any, Any]) -> None:
    missing = [name for name, value in row.items() if value is None]
    if missing:
        raise Drop(
            f"cut off: it has {len(row) - len(missing)} columns of {len(row)}, {missing[0]} and what follows is missing", refused=True
        )
    if None in row:
        raise Drop(f"it has {len(row[None])} columns more than the header", refused=True)


def _consistent(offers: list[Offer], found: Prices) -> Iterator[Offer]:
    """Yield the offers of instances that have the same accelerators in all rows; the others are refused with their lines."""
    machines: dict[str, set[tuple[str, float]]] = {}
    for offer in offers:
        machines.setdefault(offer.instance, set()).add((offer.accelerator, offer.count))
    for offer in offers:
        said = sorted(machines[offer.instance])
        if len(said) == 1:
            yield offer
        else:
            shown = " and ".join(f"{count:g} {key}" for key, count in said)
            found.dropped.append(Dropped(offer.line, offer.instance, f"{offer.instance} has {shown} in different rows", refused=True))


def _prices(offers: Iterable[Offer], provider: str, read_on: date, source: str) -> Iterator[PriceRow | Dropped]:
    """Yield one row for each instance, region and kind; the median where zones or hosts differ."""
    groups: dict[tuple[str, str | None, str, PriceKind], list[tuple[Offer, float]]] = {}
    for offer in offers:
        for kind, usd in ((PriceKind.ON_DEMAND, offer.on_demand), (PriceKind.SPOT, offer.spot)):
            if usd is not None:
                groups.setdefault((offer.instance, offer.region, offer.accelerator, kind), []).append((offer, usd))
    for (instance, region, accelerator, kind), members in groups.items():
        first, prices = members[0][0], sorted(usd for _, usd in members)
        spread = [f"median of {len(prices)} rows, {prices[0]:g} to {prices[-1]:g}"] if prices[0] != prices[-1] else []
        try:
            yield PriceRow(
                provider=provider,
                instance=instance,
                accelerator=accelerator,
                accelerator_count=first.count,
                vcpus=first.vcpus,
                memory_gib=first.memory_gib,
                region=region,
                kind=kind,
                usd_per_hour=round(statistics.median(prices), 6),
                effective_on=read_on,
                dated_by="catalog",
                source=source,
                notes="; ".join(dict.fromkeys([*spread, *first.notes])) or None,
            )
        except ValidationError as error:
            wrong = error.errors()[0]
            yield Dropped(first.line, instance, ": ".join((*map(str, wrong["loc"]), wrong["msg"])), refused=True)
