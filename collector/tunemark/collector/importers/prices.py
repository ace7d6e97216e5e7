"""Price catalogues as rows of the price book.

A catalogue is CSV in the columns of SkyPilot's `vms.csv`. What its names mean and where it is wrong are rules of `skypilot.toml`, each
with its reason: rows to drop, and cells to leave blank.
"""

import csv
import io
import re
import statistics
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError

from tunemark.collector.audit.evidence import grouped
from tunemark.collector.commands.options import chosen, date_option, named_as
from tunemark.collector.importers.import_io import Request, first_error, read_bytes, write_out
from tunemark.collector.store.database import price_id
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean
from tunemark.schema.facts.cards import VERSION as DATED
from tunemark.schema.facts.cards import PriceRow
from tunemark.schema.facts.fact_base import FactBase, price_lines, price_of
from tunemark.schema.facts.names import AWS, agrees, suggest_accelerator
from tunemark.schema.formats import counted
from tunemark.schema.vocabulary import PriceKind
from tunemark.terminal import say

RULES = tomllib.loads(Path(__file__).with_name("skypilot.toml").read_text(encoding="utf-8"))
SETTINGS = {
    "provider": "whose catalogue it is",
    "version": "version of the catalogue, such as v8",
    "read_on": "day of reading; by default today",
}


def prices(request: Request) -> None:
    """Read a SkyPilot catalogue (`vms.csv`) as rows of the price book; rows are added to the end of `--out` if it exists."""
    if len(request.files) > 1:
        raise TunemarkError("FILE", str(request.files[1]), "this import reads one catalogue at a time")
    settings, facts, file = request.known(SETTINGS), FactBase.of_project(), request.files[0]
    today, day = datetime.now(UTC).date(), date_option("--set read_on", settings.get("read_on"))
    if day > today:
        raise TunemarkError("--set read_on", settings.get("read_on"), f"is in the future; today is {today.isoformat()}")
    # The traps of an unknown provider are unknown.
    provider = chosen("--set provider", settings.get("provider", ""), {*RULES["providers"], *(row.provider for row in facts.prices)})
    if not DATED.fullmatch(version := settings.get("version", "")):
        fix = "give the version of the catalogue, such as v8: the day of reading alone dates no price"
        raise TunemarkError("--set version", version, fix)
    source, content = f"skypilot-org/skypilot-catalog catalogs/{version}/{provider}/vms.csv", read_bytes(file)
    with named_as(str(file)):
        catalogue = read_catalogue(content, provider, day, source, facts)
    for first, *others in grouped(sorted(catalogue.dropped, key=lambda drop: drop.line), lambda drop: drop.reason).values():
        say(f"{file.name}:{first.line}: {first.what}: {first.reason}{f' ({len(others) + 1} rows)' if others else ''}")
    say(f"{counted(catalogue.lines, 'row')} read, {counted(len(catalogue.rows), 'price')}")
    if request.out is not None:
        add_prices(request.out, catalogue.rows)
        say(f"added {counted(len(catalogue.rows), 'row')} to {request.out}")
    else:
        typer.echo(price_book_text(catalogue.rows), nl=False)
    raise typer.Exit(Exit.INVALID if any(dropped.refused for dropped in catalogue.dropped) else Exit.OK)


# The catalogue -------------------------------------------------------------------------------------

NEEDED = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region", "SpotPrice")
TPU = re.compile(r"tpu-(?P<generation>v\d+\w*?)-(?P<number>\d{1,6})")


class Drop(Exception):
    """A row that is not used; `refused` if a person has to look at it, and not a known trap or a row without an accelerator."""

    def __init__(self, reason: str, *, refused: bool = True, line: int = 0, what: str = "") -> None:
        super().__init__(reason)
        self.reason, self.refused, self.line, self.what = reason, refused, line, what


@dataclass(slots=True)
class CataloguePrices:
    """The contents of a catalogue file."""

    rows: list[PriceRow] = field(default_factory=list)
    dropped: list[Drop] = field(default_factory=list)
    lines: int = 0


def read_catalogue(content: bytes, provider: str, read_on: date, source: str, facts: FactBase) -> CataloguePrices:
    """Return the price rows of a catalogue, dated by the day on which it was read, and the rows that are not used with their reasons.

    The price of an instance in a region is the median of its zones or hosts. Raises TunemarkError with exit code 3 if the file is not
    such a catalogue.
    """
    catalogue, offers = CataloguePrices(), list[PriceRow]()
    for line, cells in _rows(content):
        catalogue.lines += 1
        try:
            shared = {"provider": provider, "effective_on": read_on, "dated_by": "catalog", "source": source}
            offers += [PriceRow.model_validate(shared | offer) for offer in offers_of(cells, provider, facts)]
        except (Drop, ValidationError) as error:
            drop = error if isinstance(error, Drop) else Drop(first_error(error))
            drop.line, drop.what = line, (cells.get("InstanceType") or cells.get("AcceleratorName") or "").strip()[:80]
            catalogue.dropped.append(drop)
    if not catalogue.lines:
        raise TunemarkError("FILE", "", "a header without a row; nothing was read", exit_code=Exit.INVALID)
    # The gate refuses an instance that is two machines.
    same = grouped(offers, lambda row: (row.instance, row.region, row.kind, row.accelerator, row.accelerator_count))
    for first, *others in same.values():
        usd = sorted(row.usd_per_hour for row in (first, *others))
        spread = f"median of {len(usd)} rows, {usd[0]:g} to {usd[-1]:g}" if usd[0] != usd[-1] else None
        notes = "; ".join(filter(None, (spread, first.notes))) or None
        catalogue.rows.append(first.model_copy(update={"usd_per_hour": round(statistics.median(usd), 6), "notes": notes}))
    return catalogue


def _rows(content: bytes) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        reader = csv.DictReader(io.StringIO(content.decode("utf-8"), newline=""), restval="", restkey="")
        missing = [name for name in NEEDED if name not in (reader.fieldnames or ())]
        if missing:
            fix = f"missing; a SkyPilot vms.csv has {', '.join(NEEDED)}"
            raise TunemarkError("FILE", ", ".join(missing), fix, exit_code=Exit.INVALID)
        for row in reader:
            yield reader.line_num, {name: value.strip() for name, value in row.items() if name}
    except (UnicodeDecodeError, csv.Error) as error:
        raise TunemarkError("FILE", "", f"not a CSV file in UTF-8: {error}", exit_code=Exit.INVALID) from error


# One row of a catalogue -----------------------------------------------------------------------------


def offers_of(row: dict[str, str], provider: str, facts: FactBase) -> list[dict[str, Any]]:
    """Return the fields of the prices in a row; raises Drop for a row that is not used."""
    row, notes = dict(row), list[str]()
    for rule in RULES["rules"]:
        meant = all(re.fullmatch(form, row.get(name, "")) for name, form in rule["where"].items())
        if rule.get("provider", provider) != provider or not meant or len({row.get(name, "") for name in rule.get("equal", ())}) > 1:
            continue
        if "drop" in rule:
            raise Drop(rule["drop"], refused=False)
        row |= dict.fromkeys(rule["blank"], "")
        notes.append(rule["note"])
    instance, name = row["InstanceType"], row["AcceleratorName"]
    unknown = facts.refused_aws_size(instance, families=True)
    if unknown:
        raise Drop(unknown)
    if provider != "aws" and AWS.fullmatch(instance.lower()):
        raise Drop(f"{instance!r} is an instance of aws, but the provider is {provider}; use --set provider=aws")
    tpu = TPU.fullmatch(name)
    if tpu:
        instance = name
        accelerator, count = _tpu(tpu, notes)
    else:
        count = _number(row, "AcceleratorCount")
        accelerator = card_of(name, instance, provider, row.get("GpuInfo", ""), count, facts)
    usual = PriceKind.MARKETPLACE if provider in RULES["marketplaces"] else PriceKind.ON_DEMAND
    # Blank and 0 stand for an unknown price.
    usd = {kind: _number(row, column) for kind, column in ((usual, "Price"), (PriceKind.SPOT, "SpotPrice")) if row[column]}
    prices = {kind: price for kind, price in usd.items() if price}
    if not prices:
        raise Drop("no price", refused=False)
    vcpus, memory = (_number(row, column) if row.get(column) else None for column in ("vCPUs", "MemoryGiB"))
    offer = {
        "instance": instance,
        "accelerator": accelerator,
        "accelerator_count": count,
        "vcpus": int(vcpus) if vcpus else None,
        "memory_gib": memory or None,
        "region": row["Region"].lstrip(", ") or None,
        "notes": "; ".join(dict.fromkeys(notes)) or None,
    }
    return [offer | {"kind": kind, "usd_per_hour": round(price, 6)} for kind, price in prices.items()]


def _number(row: dict[str, str], column: str) -> float:
    """Return an amount in a row; raises Drop for anything else."""
    if not re.fullmatch(r"\d{1,12}(\.\d*)?", row[column]):
        raise Drop(f"{column} is {row[column][:40]!r}, not an amount")
    return float(row[column])


def _tpu(name: re.Match[str], notes: list[str]) -> tuple[str, float]:
    """Return the card and the number of chips of a TPU slice."""
    tpus, generation, number = RULES["tpus"], name["generation"], int(name["number"])
    if generation not in tpus:
        raise Drop(f"TPU {generation!r} is not in the catalogue; {did_you_mean(generation, tpus)}")
    cores = tpus[generation]["cores_per_chip"]
    if number < 1 or number % cores:
        raise Drop(f"{name[0]!r} names {number} cores; a chip has {cores}, so there is no such slice")
    notes.extend([f"count = chips; the name counts TensorCores, {cores} a chip"] if cores > 1 else [])
    return str(tpus[generation]["card"]), number / cores


def card_of(name: str, instance: str, provider: str, gpu_info: str, count: float, facts: FactBase) -> str:
    """Return the card of a row's accelerator; raises Drop if it may be several cards."""
    direct = facts.recognise_accelerator(name)
    candidates: list[str] = list(RULES["names"].get(name) or ([direct.key] if direct else []))
    if not candidates:
        raise Drop(f"accelerator {name!r} is not in data/accelerators; {suggest_accelerator(name, facts.accelerators)}")
    # The price book names the card of an instance; else the form of the instance's name may contain a word of the card's key.
    listed = {row.accelerator for row in facts.prices if row.provider == provider and row.instance == instance}
    forms = [form for form in RULES["forms"] if form.get("provider", provider) == provider]
    word = next((form["word"] for form in forms if re.search(form["pattern"], instance.lower())), None)
    formed = [key for key in candidates if word and word in key]
    matching = [key for key in candidates if key in listed] or formed or candidates
    sizes = _memory_readings(gpu_info, count)
    fitting = [key for key in matching if not sizes or any(agrees(size, facts.accelerators[key]) for size in sizes)]
    if not fitting:
        raise Drop(f"{name}: {sizes[0]:.0f} GiB per device does not match {' or '.join(matching)}; add a card for it")
    if len(fitting) > 1:
        fix = "neither the instance's name nor GpuInfo identifies it; add the instance to data/prices/prices.csv with its card"
        raise Drop(f"{name} may be {' or '.join(fitting)}: {fix}")
    return fitting[0]


MIB_OF_GIB = 1024


def _memory_readings(gpu_info: str, count: float) -> list[float]:
    """Return possible meanings of GpuInfo as GiB per device: some providers give MiB of one device, some of all, RunPod GiB as MiB."""
    printed = re.search(r"'SizeInMiB': (\d+)", gpu_info)
    size = float(printed[1]) if printed else 0.0
    return [] if not size else [size] if size < MIB_OF_GIB else [size / MIB_OF_GIB / (count or 1), size / MIB_OF_GIB]


# The price book as a CSV file ----------------------------------------------------------------------


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


def add_prices(out: Path, rows: Sequence[PriceRow]) -> None:
    """Add rows to the end of a price book, or to a new one; raises TunemarkError if one of them is in it already."""
    if not out.exists():
        write_out(out, price_book_text(rows).encode())
        return
    known = {price_id(price_of(cells, f"{out}:{line}")).lower(): line for line, cells in price_lines(out)}
    for row in rows:
        line = known.get(price_id(row).lower())
        if line is not None:
            raise TunemarkError("--out", price_id(row), f"is in {out}:{line} already; nothing was written", exit_code=Exit.INVALID)
    before = out.read_bytes()
    write_out(out, before + (b"" if before.endswith(b"\n") else b"\n") + price_book_text(rows, header=False).encode())
