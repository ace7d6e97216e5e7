"""SkyPilot catalogues as rows of the price book. Each known trap of a catalogue is a rule with its reason."""

import ast
import csv
import io
import math
import re
import statistics
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from tunemark.collector.commands.terminal import AsJson, date_option, print_json, say
from tunemark.collector.importers.import_io import first_error, read_bytes, write_out
from tunemark.collector.store.fact_rows import price_id
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean
from tunemark.schema.facts.cards import VERSION as DATED
from tunemark.schema.facts.cards import PriceRow
from tunemark.schema.facts.fact_base import FactBase, read_prices
from tunemark.schema.facts.names import AWS, agrees, suggest_accelerator
from tunemark.schema.formats import MIB, counted
from tunemark.schema.vocabulary import PriceKind


def prices(
    file: Annotated[Path, typer.Argument(help="The vms.csv of a provider.", show_default=False)],
    *,
    provider: Annotated[
        str | None,
        typer.Option(
            "--provider",
            help="Provider: aws, gcp, azure, lambda, vast, runpod, ... Default: the file's folder, if it is a known provider.",
            show_default=False,
        ),
    ] = None,
    version: Annotated[
        str | None,
        typer.Option("--catalog-version", help="Version of the catalogue, such as v8. Default: from the path.", show_default=False),
    ] = None,
    read_on: Annotated[
        str | None, typer.Option("--read-on", metavar="DATE", help="Day of reading, as YYYY-MM-DD. Default: today.", show_default=False)
    ] = None,
    source: Annotated[str | None, typer.Option("--source", help="Cited in each row; name the commit.", show_default=False)] = None,
    out: Annotated[Path | None, typer.Option("--out", help="New CSV file to write. Default: standard output.", show_default=False)] = None,
    append: Annotated[bool, typer.Option("--append", help="Add the rows to the end of --out; none of them may be in it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read a SkyPilot catalogue as rows of the price book.

    Known traps are rules, each with its reason: GCP's a2, a3, a4 and g2 rows are the machine without its accelerators,
    700.0 is a filler for TPUs, v4 and v5p slices count cores, Vast's spot price 0.00 is unknown, RunPod repeats the
    on-demand price as spot. Prices of Vast are asks of single hosts and have the kind marketplace. Zones of a region become their median. An accelerator is refused with a suggestion if it is not
    in data/accelerators, if its memory contradicts the card, or if it may be several cards.

    Exit codes: 0 all rows used or dropped for a known reason, 2 usage, 3 rows were refused.

    Examples
    --------
    - `tunemark import prices VMS.csv --provider lambda`

    - `tunemark import prices VMS.csv --provider gcp --out GCP.csv`

    - `tunemark import prices VMS.csv --out data/prices/prices.csv --append`
    """
    if append and out is None:
        raise TunemarkError("--append", "", "adds rows to a file; name it with --out")
    today, day = datetime.now(UTC).date(), date_option("--read-on", read_on)
    if day > today:
        raise TunemarkError("--read-on", read_on, f"is in the future; today is {today.isoformat()}")
    facts = FactBase.of_project()
    owner = provider_of(file, provider, providers(facts))
    catalogue = read_catalogue(read_bytes(file), owner, day, cited(file, owner, version, source), facts)
    if as_json:
        rows = [row.model_dump(mode="json") for row in catalogue.rows]
        print_json({"rows": rows, "lines": catalogue.lines, "dropped": catalogue.reasons()})
    else:
        for reason in catalogue.reasons():
            count = f" ({len(reason['lines'])} rows)" if len(reason["lines"]) > 1 else ""
            say(f"{file.name}:{reason['lines'][0]}: {reason['what']}: {reason['reason']}{count}")
        say(f"{counted(catalogue.lines, 'row')} read, {counted(len(catalogue.rows), 'price')}")
    if out is not None:
        write_prices(out, catalogue.rows, append=append)
        say(f"added {counted(len(catalogue.rows), 'row')} to {out}" if append else f"wrote {out}")
    elif not as_json:
        typer.echo(price_book_text(catalogue.rows), nl=False)
    raise typer.Exit(Exit.INVALID if any(dropped.refused for dropped in catalogue.dropped) else Exit.OK)


# The catalogue -------------------------------------------------------------------------------------

NEEDED = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region", "SpotPrice")
LARGEST_FILE = 256 * MIB


@dataclass(frozen=True, slots=True)
class DroppedRow:
    """A row that is not used."""

    line: int
    what: str
    """Instance or accelerator of the row."""
    reason: str
    refused: bool
    """True if a person has to look at it; false for a known trap and for rows without an accelerator."""


@dataclass(frozen=True, slots=True)
class CatalogueOffer:
    """A row of the catalogue that is used. Prices are in US dollars per hour; None means no price."""

    line: int
    instance: str
    accelerator: str
    count: float
    vcpus: int | None
    memory_gib: float | None
    region: str | None
    on_demand: float | None
    spot: float | None
    notes: tuple[str, ...]


class Drop(Exception):
    """Raised within a row, with the reason why it is dropped."""

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        self.reason, self.refused = reason, refused
        super().__init__(reason)


@dataclass(slots=True)
class CataloguePrices:
    """The contents of a catalogue file."""

    rows: list[PriceRow] = field(default_factory=list)
    dropped: list[DroppedRow] = field(default_factory=list)
    lines: int = 0

    def reasons(self) -> list[dict[str, Any]]:
        """Return one entry per reason with all of its lines."""
        groups: dict[tuple[str, bool], list[DroppedRow]] = {}
        for row in self.dropped:
            groups.setdefault((row.reason, row.refused), []).append(row)
        return [
            {
                "reason": reason,
                "refused": refused,
                "what": ", ".join(dict.fromkeys(row.what for row in rows[:3])),
                "lines": [row.line for row in rows],
            }
            for (reason, refused), rows in groups.items()
        ]


def read_catalogue(content: bytes, provider: str, read_on: date, source: str, facts: FactBase) -> CataloguePrices:
    """Return the price rows of a catalogue file.

    `content` is a vms.csv of SkyPilot's catalogue, which names neither its provider nor the day on which it was read. Each row
    cites `source`. Raises TunemarkError with exit code 3 if the file is not such a catalogue.
    """
    catalogue = CataloguePrices()
    offers: list[CatalogueOffer] = []
    for line, read in _lines(content):
        catalogue.lines += 1
        try:
            offers.append(offer_of(_cells(read), line, provider, facts))
        except Drop as drop:
            what = (read.get("InstanceType") or read.get("AcceleratorName") or "").strip()[:80]
            catalogue.dropped.append(DroppedRow(line, what, drop.reason, drop.refused))
    if not catalogue.lines:
        raise TunemarkError("file", "", "a header without a row; nothing was read", exit_code=Exit.INVALID)
    _add_prices(catalogue, _consistent(offers, catalogue), provider, read_on, source)
    catalogue.dropped.sort(key=lambda row: row.line)
    return catalogue


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


def _cells(read: Mapping[Any, Any]) -> dict[str, str]:
    """Return the values of a row by column; raises Drop if the row has more or fewer columns than the header."""
    missing = [name for name, value in read.items() if value is None]
    if missing:
        present = f"it has {len(read) - len(missing)} columns of {len(read)}"
        raise Drop(f"cut off: {present}, {missing[0]} and what follows is missing", refused=True)
    if None in read:
        raise Drop(f"it has {len(read[None])} columns more than the header", refused=True)
    return {name: value.strip() for name, value in read.items()}


def _consistent(offers: list[CatalogueOffer], catalogue: CataloguePrices) -> Iterator[CatalogueOffer]:
    """Yield the offers of instances with the same accelerators in all rows; the others are refused with their lines."""
    machines: dict[str, set[tuple[str, float]]] = {}
    for offer in offers:
        machines.setdefault(offer.instance, set()).add((offer.accelerator, offer.count))
    for offer in offers:
        accelerators = sorted(machines[offer.instance])
        if len(accelerators) == 1:
            yield offer
        else:
            shown = " and ".join(f"{count:g} {key}" for key, count in accelerators)
            catalogue.dropped.append(
                DroppedRow(offer.line, offer.instance, f"{offer.instance} has {shown} in different rows", refused=True)
            )


def _add_prices(catalogue: CataloguePrices, offers: Iterable[CatalogueOffer], provider: str, read_on: date, source: str) -> None:
    """Add one row per instance, region and kind to a catalogue, with the median price of differing zones or hosts."""
    groups: dict[tuple[str, str | None, str, PriceKind], list[tuple[CatalogueOffer, float]]] = {}
    plain = PriceKind.MARKETPLACE if provider in _names()["marketplaces"] else PriceKind.ON_DEMAND
    for offer in offers:
        for kind, usd in ((plain, offer.on_demand), (PriceKind.SPOT, offer.spot)):
            if usd is not None:
                groups.setdefault((offer.instance, offer.region, offer.accelerator, kind), []).append((offer, usd))
    for (instance, region, accelerator, kind), members in groups.items():
        first, prices = members[0][0], sorted(usd for _, usd in members)
        spread = [f"median of {len(prices)} rows, {prices[0]:g} to {prices[-1]:g}"] if prices[0] != prices[-1] else []
        try:
            price = PriceRow(
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
            catalogue.rows.append(price)
        except ValidationError as error:
            catalogue.dropped.append(DroppedRow(first.line, instance, first_error(error), refused=True))


# One row of a catalogue -----------------------------------------------------------------------------

NAMES_FILE = Path(__file__).with_name("skypilot.toml")
TPU = re.compile(r"tpu-(?P<generation>v\d+\w*?)-(?P<number>\d{1,6})")
CORES_PER_CHIP = 2
TPU_FILLER_USD = 700.0
VAST_FLOOR = (32.0, 64.0)
HOST_ONLY = re.compile(r"(a2|a3|a4x?|g2|g4)-(high|mega|ultra|edge|max|standard)", re.IGNORECASE)
"""GCP's machines for accelerators; no other provider has names of this form."""
LOCAL_ZONE = re.compile(r"^[a-z]{2}-[a-z]+-\d-[a-z]{3}-\d")
COUNTS = (1 / 16, 128)
"""Accelerators in one instance: the smallest share and the largest machine on sale are well within."""
USD_EACH = (0.001, 1_000)
"""US dollars an hour for one accelerator."""


def offer_of(row: Mapping[str, str], line: int, provider: str, facts: FactBase) -> CatalogueOffer:
    """Return a row as an offer; raises Drop for a row that is not used."""
    name, instance = row["AcceleratorName"], row["InstanceType"]
    if not name:
        host_only = "host only: GCP lists the machine without its accelerators, which have separate rows with their price"
        raise Drop(host_only if HOST_ONLY.match(instance) else "no accelerator")
    unknown = facts.refused_aws_size(instance) or facts.unknown_aws_family(instance)
    if unknown:
        raise Drop(unknown, refused=True)
    # The rules for the traps of this provider would not apply to the file of another one.
    if provider != "aws" and AWS.fullmatch(instance.lower()):
        raise Drop(f"{instance!r} is an instance of aws, but the provider is {provider}; use --provider aws", refused=True)
    notes: list[str] = []
    tpu = TPU.fullmatch(name)
    if tpu:
        accelerator, count = _tpu(tpu, notes)
        instance = name
    else:
        count = _count(row["AcceleratorCount"])
        if HOST_ONLY.match(instance) or (provider == "gcp" and not instance):
            raise Drop("accelerator only: GCP's price of it does not include the machine that it needs")
        accelerator = card_of(name, instance, provider, row.get("GpuInfo", ""), count, facts)
    if LOCAL_ZONE.match(row.get("AvailabilityZone", "")):
        raise Drop("a local zone, priced apart from its region")
    on_demand, spot = _usd(row, "Price", count), _usd(row, "SpotPrice", count)
    if tpu and TPU_FILLER_USD in {on_demand, spot}:
        raise Drop("700.0 is a filler for TPUs without a price")
    not_spot = _not_spot(provider, on_demand, spot)
    if not_spot:
        notes.append(not_spot)
        spot = None
    if on_demand is None and spot is None:
        raise Drop("no price")
    vcpus, memory = _host(row, provider, accelerator, count, facts, notes)
    return CatalogueOffer(
        line, instance, accelerator, count, vcpus, memory, row["Region"].lstrip(", ") or None, on_demand, spot, tuple(notes)
    )


def _not_spot(provider: str, on_demand: float | None, spot: float | None) -> str | None:
    """Return the reason why a SpotPrice is not a spot price of the provider, or None."""
    if spot is not None and provider == "runpod" and spot == on_demand:
        return "file repeats the on-demand price as SpotPrice: left blank"
    if spot is not None and provider in _names()["marketplaces"]:
        return "SpotPrice is the ask of a single host for interruptible use: left blank"
    return None


def _count(text: str) -> float:
    count, (fewest, most) = _number(text, "AcceleratorCount"), COUNTS
    if not fewest <= count <= most:
        raise Drop(f"AcceleratorCount is {text[:40]!r}; no instance has fewer than 1/16 or more than {most} accelerators", refused=True)
    return count


def _usd(row: Mapping[str, str], column: str, count: float) -> float | None:
    """Return a price, or None for blank and 0 (Vast writes 0.00 for an unknown spot price)."""
    usd = _number(row[column], column, least=0.0) if row[column] else 0.0
    least, most = USD_EACH
    if usd and not least <= usd / count <= most:
        each = f"{usd / count:g} USD an hour for one accelerator"
        raise Drop(f"{column} is {usd:g}, so {each}; no provider charges less than {least} or more than {most:,}", refused=True)
    return usd or None


def _number(text: str, column: str, least: float = 1e-9) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise Drop(f"{column} is {text[:40]!r}, not a number", refused=True) from error
    if not math.isfinite(value) or value < least:
        raise Drop(f"{column} is {text[:40]!r}, not an amount", refused=True)
    return value


def _tpu(name: re.Match[str], notes: list[str]) -> tuple[str, float]:
    """Return the card and the number of chips of a TPU slice."""
    tpus, generation, number = _names()["tpus"], name["generation"], int(name["number"])
    if generation not in tpus:
        raise Drop(f"TPU {generation!r} is not in the catalogue; {did_you_mean(generation, tpus)}", refused=True)
    unit, card = tpus[generation]["names_count"], str(tpus[generation]["card"])
    cores_per_chip = CORES_PER_CHIP if unit == "cores" else 1
    if number < 1 or number % cores_per_chip:
        raise Drop(f"{name[0]!r} names {number} {unit}; a chip has {CORES_PER_CHIP} cores, so there is no such slice", refused=True)
    if unit == "cores":
        notes.append(f"count = chips; the name counts TensorCores, {CORES_PER_CHIP} a chip")
    return card, number / cores_per_chip


def card_of(name: str, instance: str, provider: str, gpu_info: str, count: float, facts: FactBase) -> str:
    """Return the card of a row's accelerator; raises Drop if it may be several cards."""
    direct = facts.recognise_accelerator(name)
    candidates: list[str] = list(_names()["names"].get(name) or ([direct.key] if direct else []))
    if not candidates:
        known = suggest_accelerator(name, facts.accelerators)
        raise Drop(f"accelerator {name!r} is not in data/accelerators; {known}", refused=True)
    # The price book names the card of an instance; else the form of the instance's name may contain a word of the card's key.
    listed = {row.accelerator for row in facts.prices if row.provider == provider and row.instance == instance}
    forms = [form for form in _names()["forms"] if form.get("provider", provider) == provider]
    word = next((form["word"] for form in forms if re.search(form["pattern"], instance.lower())), None)
    formed = [key for key in candidates if word and word in key]
    matching = [key for key in candidates if key in listed] or formed or candidates
    sizes = _memory_readings(gpu_info, count)
    fitting = [key for key in matching if not sizes or any(agrees(size, facts.accelerators[key]) for size in sizes)]
    if not fitting:
        raise Drop(f"{name}: {sizes[0]:.0f} GiB per device does not match {' or '.join(matching)}; add a card for it", refused=True)
    if len(fitting) > 1:
        fix = "neither the instance's name nor GpuInfo identifies it; add the instance to data/prices/prices.csv with its card"
        raise Drop(f"{name} may be {' or '.join(fitting)}: {fix}", refused=True)
    return fitting[0]


def providers(facts: FactBase) -> frozenset[str]:
    """Return the known providers: all in the price book, and all of SkyPilot."""
    return frozenset(_names()["providers"]) | {row.provider for row in facts.prices}


def _memory_readings(gpu_info: str, count: float) -> list[float]:
    """Return possible meanings of GpuInfo as GiB per device: some providers give MiB of one device, some of all, RunPod GiB as MiB."""
    try:
        size = float(ast.literal_eval(gpu_info)["Gpus"][0]["MemoryInfo"]["SizeInMiB"])
    except (ValueError, SyntaxError, KeyError, IndexError, TypeError, RecursionError, MemoryError):
        return []
    if not math.isfinite(size) or size <= 0:
        return []
    gib = size / 1_024
    return [size] if gib < 1 else [gib / count, gib]


def _host(
    row: Mapping[str, str], provider: str, accelerator: str, count: float, facts: FactBase, notes: list[str]
) -> tuple[int | None, float | None]:
    vcpus = _number(row["vCPUs"], "vCPUs") if row.get("vCPUs") else None
    memory = _number(row["MemoryGiB"], "MemoryGiB", least=0.0) if row.get("MemoryGiB") else None
    card = facts.accelerators[accelerator]
    if provider == "vast" and (vcpus, memory) == VAST_FLOOR:
        notes.append(
            "marketplace ask, varies by host and hour; 32 vCPU and 64 GiB are the catalogue's floor for an offer, not the machine: left blank"
        )
        return None, None
    if provider == "runpod" and memory and card.memory_gib and math.isclose(memory, card.memory_gib * count, rel_tol=0.02):
        notes.append("file gives GPU memory in the MemoryGiB column: host memory left blank")
        memory = None
    return (int(vcpus) if vcpus else None), memory or None


@cache
def _names() -> dict[str, Any]:
    return tomllib.loads(NAMES_FILE.read_text(encoding="utf-8"))


# The price book as a CSV file ----------------------------------------------------------------------

VERSION = re.compile(r"v\d{1,4}")
PLACES = {"vms", "instances", "prices"}
"""Names of catalogue files that do not name a provider."""


def price_book_text(rows: Iterable[PriceRow], *, header: bool = True) -> str:
    """Return rows as CSV in the columns of the price book."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(PriceRow.model_fields), lineterminator="\n")
    if header:
        writer.writeheader()
    for row in rows:
        written = row.model_dump(mode="json")
        writer.writerow({name: int(value) if isinstance(value, float) and value.is_integer() else value for name, value in written.items()})
    return buffer.getvalue()


def write_prices(out: Path, rows: Sequence[PriceRow], *, append: bool) -> None:
    """Write rows to a new file, or add them to the end of a price book.

    Raises TunemarkError if the file exists and `append` is False, or if one of the rows is in it already.
    """
    if not append:
        if out.exists():
            raise TunemarkError("--out", str(out), "already exists; add rows to it with --append, or use another name")
        write_out(out, price_book_text(rows).encode())
        return
    before = out.read_bytes() if out.exists() else price_book_text(()).encode()
    known = {same_price(row): line for line, row in read_prices(out)} if out.exists() else {}
    for row in rows:
        line = known.get(same_price(row))
        if line is not None:
            raise TunemarkError("--append", price_id(row), f"is in {out}:{line} already; nothing was written", exit_code=Exit.INVALID)
    ending = b"" if before.endswith(b"\n") else b"\n"
    write_out(out, before + ending + price_book_text(rows, header=False).encode())


def same_price(row: PriceRow) -> tuple[object, ...]:
    """Return the values that identify a row of a price book."""
    return row.provider, row.instance.lower(), row.region, row.kind, row.effective_on, row.source


def provider_of(file: Path, stated: str | None, known: Iterable[str]) -> str:
    """Return the provider of a catalogue: as stated, or the file's folder if it is the name of a provider.

    Raises TunemarkError for an unknown provider: the rules for its traps would be skipped silently.
    """
    known = sorted(set(known))
    guess = file.absolute().parent.name if file.stem in PLACES else file.stem
    provider = (guess if stated is None else stated).lower()
    if provider in known:
        return provider
    if stated is not None:
        raise TunemarkError("--provider", stated, f"no provider of the price book or of SkyPilot; {did_you_mean(stated, known)}")
    fix = f"give --provider; {provider!r}, from the path of the file, is not a provider; {did_you_mean(provider, known)}"
    raise TunemarkError("--provider", "", fix)


def cited(file: Path, provider: str, version: str | None, source: str | None) -> str:
    """Return the source that each row cites: as given, or the catalogue with its version.

    Raises TunemarkError if neither the path nor an option gives the version: the day of reading alone dates no price.
    """
    if source is not None:
        stated = f"{source}, catalogue version {version}" if version else source
        if not DATED.search(stated):
            raise TunemarkError("--source", source, "names no version of the catalogue; add its commit to it, or give --catalog-version")
        return stated
    folder = next((part for part in reversed(file.parts[:-1]) if VERSION.fullmatch(part)), None)
    if version is None and folder is None:
        fix = "the path of the file has no version; give it, such as v8, or give --source with its commit"
        raise TunemarkError("--catalog-version", "", fix)
    return f"skypilot-org/skypilot-catalog catalogs/{version or folder}/{provider}/vms.csv"
