"""One row of a SkyPilot catalogue: an offer that is believed, or the reason why not. Each known trap is a rule here."""

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

from tunemark.collector.commands.terminal import AsJson, print_json, say
from tunemark.collector.importers.import_io import grouped, read_bytes
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean, nearest, suggested
from tunemark.schema.facts.cards import VERSION as DATED
from tunemark.schema.facts.cards import PriceRow
from tunemark.schema.facts.fact_base import FactBase, read_prices
from tunemark.schema.facts.names import AWS, agrees, suggest_accelerator
from tunemark.schema.files import write_atomically
from tunemark.schema.vocabulary import PriceKind

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


@dataclass(frozen=True, slots=True)
class DroppedRow:
    """A row that is no price of the price book."""

    line: int
    what: str
    """Instance or accelerator of the row."""
    reason: str
    refused: bool
    """True for what a person has to look at; false for a known trap and for rows without an accelerator."""


@dataclass(frozen=True, slots=True)
class CatalogueOffer:
    """A row of the catalogue that is believed; prices in US dollars an hour, None where there is none."""

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
    """Raised within a row; says why it is dropped."""

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        self.reason, self.refused = reason, refused
        super().__init__(reason)


def offer_of(row: Mapping[str, str], line: int, provider: str, facts: FactBase) -> CatalogueOffer:
    """Return a row as an offer; raises Drop where it is none."""
    name, instance = row["AcceleratorName"], row["InstanceType"]
    if not name:
        if HOST_ONLY.match(instance):
            raise Drop("host only: GCP lists the machine without its accelerators, whose price is in rows of their own")
        raise Drop("no accelerator")
    _refuse_foreign_instance(provider, instance, facts)
    notes: list[str] = []
    on_demand, spot = _usd(row["Price"], "Price"), _usd(row["SpotPrice"], "SpotPrice")
    tpu = TPU.fullmatch(name)
    if tpu:
        accelerator, count = _tpu(tpu, notes)
        if TPU_FILLER_USD in {on_demand, spot}:
            raise Drop("700.0 is a filler for TPUs without a price")
        instance = name
    else:
        count = _count(row["AcceleratorCount"])
        if HOST_ONLY.match(instance) or (provider == "gcp" and not instance):
            raise Drop("accelerator only: GCP's price of it does not include the machine that it needs")
        accelerator = card_of(name, instance, provider, row.get("GpuInfo", ""), count, facts)
    if LOCAL_ZONE.match(row.get("AvailabilityZone", "")):
        raise Drop("a local zone, priced apart from its region")
    if spot is not None and provider == "runpod" and spot == on_demand:
        notes.append("file repeats the on-demand price as SpotPrice: left blank")
        spot = None
    if on_demand is None and spot is None:
        raise Drop("no price")
    for column, usd in (("Price", on_demand), ("SpotPrice", spot)):
        _refuse_impossible(column, usd, count)
    vcpus, memory = _host(row, provider, accelerator, count, facts, notes)
    return CatalogueOffer(
        line, instance, accelerator, count, vcpus, memory, row["Region"].lstrip(", ") or None, on_demand, spot, tuple(notes)
    )


def _refuse_foreign_instance(provider: str, instance: str, facts: FactBase) -> None:
    """Refuse what AWS does not sell, and what it sells in a file of somebody else: a wrong provider would switch its traps off."""
    unknown = facts.refused_aws_size(instance) or facts.unknown_aws_family(instance)
    if unknown:
        raise Drop(unknown, refused=True)
    if provider != "aws" and AWS.fullmatch(instance.lower()):
        raise Drop(f"{instance!r} is an instance of aws, and the file is said to be of {provider}; give --provider aws", refused=True)


def _refuse_impossible(column: str, usd: float | None, count: float) -> None:
    least, most = USD_EACH
    if usd is not None and not least <= usd / count <= most:
        raise Drop(
            f"{column} is {usd:g}, so {usd / count:g} USD an hour for one accelerator; nobody asks less than {least} or more than {most:,}",
            refused=True,
        )


def _count(text: str) -> float:
    count, (least, most) = _number(text, "AcceleratorCount"), COUNTS
    if not least <= count <= most:
        raise Drop(f"AcceleratorCount is {text[:40]!r}; no instance has fewer than 1/16 or more than {most} accelerators", refused=True)
    return count


def _usd(text: str, column: str) -> float | None:
    """Return a price; blank and 0 are no price (Vast writes 0.00 for a spot price that is not known)."""
    if not text:
        return None
    value = _number(text, column, least=0.0)
    return value or None


def _number(text: str, column: str, least: float = 1e-9) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise Drop(f"{column} is {text[:40]!r}, not a number", refused=True) from error
    if not math.isfinite(value) or value < least:
        raise Drop(f"{column} is {text[:40]!r}, not an amount", refused=True)
    return value


def _tpu(name: re.Match[str], notes: list[str]) -> tuple[str, float]:
    known = _names()["tpus"].get(name["generation"])
    if known is None:
        raise Drop(
            f"TPU {name['generation']!r} is not in the catalogue; {did_you_mean(name['generation'], _names()['tpus'])}", refused=True
        )
    number = int(name["number"])
    of_cores = known["names_count"] == "cores"
    if number < 1 or (of_cores and number % CORES_PER_CHIP):
        raise Drop(
            f"{name[0]!r} names {number} {known['names_count']}; a chip has {CORES_PER_CHIP} cores, so there is no such slice", refused=True
        )
    if of_cores:
        notes.append(f"count = chips; the name counts TensorCores, {CORES_PER_CHIP} a chip")
        return str(known["card"]), number / CORES_PER_CHIP
    return str(known["card"]), float(number)


def card_of(name: str, instance: str, provider: str, gpu_info: str, count: float, facts: FactBase) -> str:
    """Return the card of a row's accelerator; raises Drop where the row leaves open which of several it is."""
    direct = facts.recognise_accelerator(name)
    candidates = list(_names()["names"].get(name) or ([direct.key] if direct else []))
    if not candidates:
        known = suggest_accelerator(name, facts.accelerators)
        raise Drop(f"accelerator {name!r} is not in data/accelerators; {known}", refused=True)
    sizes = _memory_readings(gpu_info, count)
    formed = _of_known_instance(candidates, provider, instance, facts) or _of_form(candidates, provider, instance)
    fitting = [key for key in formed if not sizes or any(agrees(size, facts.accelerators[key]) for size in sizes)]
    if not fitting:
        raise Drop(f"{name} with {sizes[0]:.0f} GiB a device is none of {', '.join(formed)}; add a card for it", refused=True)
    if len(fitting) > 1:
        fix = "neither the instance's name nor GpuInfo says which; add the instance to data/prices/prices.csv with its card"
        raise Drop(f"{name} may be {' or '.join(fitting)}: {fix}", refused=True)
    return str(fitting[0])


def _of_known_instance(candidates: list[str], provider: str, instance: str, facts: FactBase) -> list[str]:
    """Return the card that the price book gives an instance, where it is one of the candidates."""
    known = {row.accelerator for row in facts.prices if row.provider == provider and row.instance == instance}
    return [key for key in candidates if key in known]


def _of_form(candidates: list[str], provider: str, instance: str) -> list[str]:
    word = next(
        (
            form["word"]
            for form in _names()["forms"]
            if form.get("provider", provider) == provider and re.search(form["pattern"], instance.lower())
        ),
        None,
    )
    # A form that none of the cards has says nothing about them.
    return [key for key in candidates if word and word in key] or candidates


def providers(facts: FactBase) -> frozenset[str]:
    """Return whose catalogues are known: those with a price in the book, and those that SkyPilot has."""
    return frozenset(_names()["providers"]) | {row.provider for row in facts.prices}


def _memory_readings(gpu_info: str, count: float) -> list[float]:
    """Return what GpuInfo may mean as GiB of one device: some providers give MiB of one, some of all, RunPod GiB as MiB."""
    try:
        size = float(ast.literal_eval(gpu_info)["Gpus"][0]["MemoryInfo"]["SizeInMiB"])
    except (ValueError, SyntaxError, KeyError, IndexError, TypeError, RecursionError, MemoryError):
        return []
    if not math.isfinite(size) or size <= 0:
        return []
    one_gib = 1_024
    return [size] if size < one_gib else [size / one_gib / count, size / one_gib]


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


# MOVE: was tunemark.collector.importers.prices: SkyPilot catalogue files as rows of the price book: one row for each instance, region and kind.

NEEDED = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region", "SpotPrice")
LARGEST_FILE = 256 * 2**20


@dataclass(slots=True)
class CataloguePrices:
    """What a catalogue file gave."""

    rows: list[PriceRow] = field(default_factory=list)
    dropped: list[DroppedRow] = field(default_factory=list)
    lines: int = 0


def read_catalogue(content: bytes, provider: str, read_on: date, source: str, facts: FactBase) -> CataloguePrices:
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
    found = CataloguePrices()
    offers: list[CatalogueOffer] = []
    for line, read in _lines(content):
        found.lines += 1
        row = {name: (value or "").strip() for name, value in read.items() if isinstance(name, str)}
        what = (row.get("InstanceType") or row.get("AcceleratorName") or "")[:80]
        try:
            _refuse_other_width(read)
            offers.append(offer_of(row, line, provider, facts))
        except Drop as drop:
            found.dropped.append(DroppedRow(line, what, drop.reason, drop.refused))
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


def _consistent(offers: list[CatalogueOffer], found: CataloguePrices) -> Iterator[CatalogueOffer]:
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
            found.dropped.append(DroppedRow(offer.line, offer.instance, f"{offer.instance} has {shown} in different rows", refused=True))


def _prices(offers: Iterable[CatalogueOffer], provider: str, read_on: date, source: str) -> Iterator[PriceRow | DroppedRow]:
    """Yield one row for each instance, region and kind; the median where zones or hosts differ."""
    groups: dict[tuple[str, str | None, str, PriceKind], list[tuple[CatalogueOffer, float]]] = {}
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
            yield DroppedRow(first.line, instance, ": ".join((*map(str, wrong["loc"]), wrong["msg"])), refused=True)


# MOVE: was tunemark.collector.importers.prices: Rows of the price book as a CSV file: written anew, or added to one that is there; never written over.

VERSION = re.compile(r"v\d{1,4}")
PLACES = {"vms", "instances", "prices"}
"""Names of catalogue files that say nothing about whose they are."""


def price_book_text(rows: Iterable[PriceRow], *, header: bool = True) -> str:
    """Return rows as CSV in the columns of the price book."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(PriceRow.model_fields), lineterminator="\n")
    if header:
        writer.writeheader()
    for row in rows:
        written = {name: "" if value is None else value for name, value in row.model_dump(mode="json").items()}
        writer.writerow({name: int(value) if isinstance(value, float) and value.is_integer() else value for name, value in written.items()})
    return buffer.getvalue()


def write_prices(out: Path, rows: Sequence[PriceRow], *, append: bool) -> None:
    """Write rows to a file that is not there yet, or add them to the end of a price book.

    Raises
    ------
    TunemarkError
        When the file is there and nothing says that rows are to be added; and when one of the rows is in it already.

    """
    if not append:
        if out.exists():
            raise TunemarkError("--out", str(out), "is there already; --append adds rows to it, or take another name")
        write_atomically(out, price_book_text(rows).encode())
        return
    before = out.read_bytes() if out.exists() else price_book_text(()).encode()
    known = {same_price(row): line for line, row in read_prices(out)} if out.exists() else {}
    for row in rows:
        line = known.get(same_price(row))
        if line is not None:
            place = "/".join((row.provider, row.instance, row.region or "any", row.kind.value, row.effective_on.isoformat()))
            raise TunemarkError("--append", place, f"is in {out}:{line} already; nothing was written", exit_code=Exit.INVALID)
    ending = b"" if before.endswith(b"\n") else b"\n"
    write_atomically(out, before + ending + price_book_text(rows, header=False).encode())


def same_price(row: PriceRow) -> tuple[object, ...]:
    """Return what no two rows of a price book have in common."""
    return row.provider, row.instance.lower(), row.region, row.kind, row.effective_on, row.source


def provider_of(file: Path, said: str | None, known: Iterable[str]) -> str:
    """Return whose catalogue a file is: what was said, or its folder where that is the name of a provider.

    Raises
    ------
    TunemarkError
        For a provider that nobody knows: the rules for its traps would be switched off in silence.

    """
    known = sorted(set(known))
    if said is not None:
        if said.lower() not in known:
            raise TunemarkError("--provider", said, f"no provider of the price book or of SkyPilot; {_meant(said, known)}")
        return said.lower()
    guess = (file.absolute().parent.name if file.stem in PLACES else file.stem).lower()
    if guess not in known:
        raise TunemarkError(
            "--provider", "", f"say whose prices these are; {guess!r}, from the path of the file, is no provider; {_meant(guess, known)}"
        )
    return guess


def _meant(word: str, known: list[str]) -> str:
    near = nearest(word, {name: (name,) for name in known})
    return suggested(near) if near else f"known are {', '.join(known)}"


def cited(file: Path, provider: str, version: str | None, source: str | None) -> str:
    """Return what each row cites: the source that was given, or the catalogue with its version.

    Raises
    ------
    TunemarkError
        When neither the path nor an option says which version it is: the day of reading alone dates no price.

    """
    if source is not None:
        said = f"{source}, catalogue version {version}" if version else source
        if not DATED.search(said):
            raise TunemarkError("--source", source, "names no version of the catalogue; add its commit to it, or give --catalog-version")
        return said
    folder = next((part for part in reversed(file.parts[:-1]) if VERSION.fullmatch(part)), None)
    if version is None and folder is None:
        raise TunemarkError(
            "--catalog-version", "", "the path of the file names no version; say which it is, such as v8, or give --source with its commit"
        )
    return f"skypilot-org/skypilot-catalog catalogs/{version or folder}/{provider}/vms.csv"


def day_read(text: str | None) -> date:
    """Return the day on which a catalogue was read, today when left out; no day can be in the future."""
    today = datetime.now(UTC).date()
    if text is None:
        return today
    try:
        day = date.fromisoformat(text)
    except ValueError as error:
        raise TunemarkError("--read-on", text, "give a day as YYYY-MM-DD") from error
    if day > today:
        raise TunemarkError("--read-on", text, f"is in the future; today is {today.isoformat()}")
    return day


# MOVE: was tunemark.collector.importers.prices: `tunemark import prices`: a catalogue becomes rows of the price book.


# The importer is imported when it is called, so that --help is instant.


def prices(
    file: Annotated[Path, typer.Argument(help="The vms.csv of a provider.", show_default=False)],
    *,
    layout: Annotated[str, typer.Option("--format", help="Whose file it is; `skypilot` is known.")] = "skypilot",
    provider: Annotated[
        str | None,
        typer.Option(
            "--provider",
            help="Whose prices: aws, gcp, azure, lambda, vast, runpod, ...; the file's folder when left out, if it is a known provider.",
            show_default=False,
        ),
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(
            "--catalog-version", help="Version of the catalogue, such as v8; read from the path where that has it.", show_default=False
        ),
    ] = None,
    read_on: Annotated[
        str | None, typer.Option("--read-on", metavar="DATE", help="YYYY-MM-DD; today when left out.", show_default=False)
    ] = None,
    source: Annotated[str | None, typer.Option("--source", help="Cited in each row; name the commit.", show_default=False)] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="CSV file to write, which is not there yet; standard output when left out.", show_default=False),
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="Add the rows to the end of --out; none of them may be in it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read a SkyPilot catalogue as rows of the price book.

    Known traps are rules, each with its reason: GCP's a2, a3, a4 and g2 rows are the machine without its accelerators,
    700.0 is a filler for TPUs, v4 and v5p slices count cores, Vast's spot price 0.00 is unknown, RunPod repeats the
    on-demand price as spot. Zones of a region become their median. An accelerator that is not in data/accelerators, whose
    memory contradicts it, or that may be several cards is refused with a suggestion.

    Exit codes: 0 all rows used or dropped for a known reason, 2 usage, 3 rows were refused.

    Examples
    --------
    - `tunemark import prices catalogs/v8/lambda/vms.csv`

    - `tunemark import prices vms.csv --provider gcp --catalog-version v8 --read-on 2026-11-20 --out gcp.csv`

    - `tunemark import prices catalogs/v8/aws/vms.csv --out data/prices/prices.csv --append`
    """
    if layout != "skypilot":
        raise TunemarkError("--format", layout, did_you_mean(layout, ["skypilot"]))
    if append and out is None:
        raise TunemarkError("--append", "", "adds rows to a file; name it with --out")
    facts = FactBase.of_project()
    owner = provider_of(file, provider, providers(facts))
    found = read_catalogue(read_bytes(file), owner, day_read(read_on), cited(file, owner, version, source), facts)
    _report(file, found, as_json=as_json)
    if out is not None:
        write_prices(out, found.rows, append=append)
        say(f"added {len(found.rows)} rows to {out}" if append else f"wrote {out}")
    elif not as_json:
        typer.echo(price_book_text(found.rows), nl=False)
    raise typer.Exit(Exit.INVALID if any(dropped.refused for dropped in found.dropped) else Exit.OK)


def _report(file: Path, found: "CataloguePrices", *, as_json: bool) -> None:
    reasons = grouped(found.dropped)
    if as_json:
        print_json({"rows": [row.model_dump(mode="json") for row in found.rows], "lines": found.lines, "dropped": reasons})
        return
    for reason in reasons:
        lines = reason["lines"]
        say(f"{file.name}:{lines[0]}: {reason['what']}: {reason['reason']}" + (f" ({len(lines)} rows)" if len(lines) > 1 else ""))
    say(f"{found.lines} rows read, {len(found.rows)} prices")
