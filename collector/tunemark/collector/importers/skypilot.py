"""SkyPilot catalogue files as rows of the price book: one row for each instance, region and kind."""

import csv
import io
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date

from pydantic import ValidationError

from tunemark.collector.importers.skypilot_rows import Drop, Dropped, Offer, offer_of
from tunemark.schema.cards import PriceRow
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts import FactBase
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
    for line, row in _lines(content):
        found.lines += 1
        what = (row.get("InstanceType") or row.get("AcceleratorName") or "")[:80]
        try:
            offers.append(offer_of(row, provider, facts))
        except Drop as drop:
            found.dropped.append(Dropped(line, what, drop.reason, drop.refused))
    for price in _prices(offers, provider, read_on, source):
        if isinstance(price, PriceRow):
            found.rows.append(price)
        else:
            found.dropped.append(price)
    return found


def _lines(content: bytes) -> Iterator[tuple[int, Mapping[str, str]]]:
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
            yield (
                reader.line_num,
                {name: (value or "").strip() for name, value in row.items() if isinstance(name, str) and not isinstance(value, list)},
            )
    except (UnicodeDecodeError, csv.Error) as error:
        raise TunemarkError("file", "", f"not a CSV file in UTF-8: {error}", exit_code=Exit.INVALID) from error


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
            yield Dropped(0, instance, f"{error.errors()[0]['loc'][0]}: {error.errors()[0]['msg']}", refused=True)


def price_book_text(rows: Iterable[PriceRow]) -> str:
    """Return rows as CSV in the columns of the price book."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(PriceRow.model_fields), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        written = {name: "" if value is None else value for name, value in row.model_dump(mode="json").items()}
        writer.writerow({name: int(value) if isinstance(value, float) and value.is_integer() else value for name, value in written.items()})
    return buffer.getvalue()
