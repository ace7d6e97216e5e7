"""Rows of the price book as a CSV file: written anew, or added to one that is there; never written over."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from pathlib import Path

from tunemark.schema.errors import Exit, TunemarkError, nearest, suggested
from tunemark.schema.facts.cards import VERSION as DATED
from tunemark.schema.facts.cards import PriceRow
from tunemark.schema.facts.fact_base import read_prices
from tunemark.schema.files import write_atomically

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
