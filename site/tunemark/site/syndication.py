"""The Atom feed of new data, and badges for other sites."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from html import escape
from pathlib import Path

from feedgen.feed import FeedGenerator

from tunemark.schema.formats import counted
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.recommendation import provider_name
from tunemark.site import wording
from tunemark.site.page import BADGES, FEED, RATES, accelerator_path, badge_path, document_path, result_path
from tunemark.site.queries import Catalogue, grouped
from tunemark.site.render import ENDING, file_name, one_line
from tunemark.site.tables import Row

ENTRIES = 50
"""Entries of the feed, newest first."""
COLORS = {"reproduced": "#15803d", "measured": "#0f766e", "converted": "#4b5763", "published": "#4b5763"}
"""Trust level -> background; white text has a contrast of at least 4.5 on each."""
NAME_COLOR, VALUE_COLOR = "#17212b", "#33414d"
CHARACTER = 6.6
"""Mean width of a character in 11 px Verdana or DejaVu Sans, in px."""
PADDING = 12


# Feed ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the feed."""

    day: str
    """Date, or date and time in UTC, in ISO 8601."""
    id: str
    """Permanent id, as a path relative to the address of the site."""
    path: str
    title: str
    summary: str

    @property
    def updated(self) -> datetime:
        """The time of the entry; midnight if only the day is known."""
        return datetime.fromisoformat(self.day).replace(tzinfo=UTC)


def atom(catalogue: Catalogue) -> bytes:
    """Return the Atom feed: measured results, documents and prices, newest first. It has the date of its newest entry."""
    url = catalogue.site.url
    found = entries(catalogue)
    feed = FeedGenerator()
    feed.id(url)
    feed.title("Tunemark: new results, documents and prices")
    feed.subtitle("Which accelerator to fine-tune on, how long it takes, and what it costs.")
    feed.author({"name": "Tunemark contributors"})
    feed.link(href=f"{url}{FEED}", rel="self", type="application/atom+xml")
    feed.link(href=url, rel="alternate", type="text/html")
    feed.rights("CC-BY-4.0")
    feed.generator("Tunemark")
    feed.updated(found[0].updated if found else wording.EPOCH)
    for entry in found:
        made = feed.add_entry(order="append")
        made.id(f"{url}{entry.id}")
        made.title(entry.title)
        made.link(href=f"{url}{entry.path}", rel="alternate", type="text/html")
        made.updated(entry.updated)
        made.summary(entry.summary)
    return bytes(feed.atom_str(pretty=True))


def entries(catalogue: Catalogue, most: int = ENTRIES) -> list[Entry]:
    """Return the newest additions to the data, newest first; by default those of the feed."""
    found = [*_results(catalogue), *_documents(catalogue), *_prices(catalogue)]
    return sorted(found, key=lambda entry: (-entry.updated.timestamp(), entry.id))[:most]


def _results(catalogue: Catalogue) -> Iterable[Entry]:
    for row in catalogue.results:
        if row["source"] == "measured" and row["started_us"] is not None:
            started = wording.EPOCH + timedelta(microseconds=row["started_us"])
            path = f"{result_path(file_name(row['result_id']))}{ENDING}"
            yield Entry(started.isoformat(), path, path, one_line(f"Result: {wording.result_title(row)}"), one_line(wording.summary(row)))


def _documents(catalogue: Catalogue) -> Iterable[Entry]:
    sizes = {source: len(rows) for source, rows in grouped(catalogue.results, lambda row: str(row["source"])).items()}
    for row in catalogue.sources:
        if row["read_on"] is not None:
            path = f"{document_path(file_name(row['source']))}{ENDING}"
            number = counted(sizes.get(row["source"], 0), "result")
            yield Entry(str(row["read_on"]), path, path, one_line(f"Source: {row['title']}"), one_line(f"{number}. {row['summary']}"))


def _prices(catalogue: Catalogue) -> Iterable[Entry]:
    names = {row["accelerator"]: str(row["name"]) for row in catalogue.accelerators}
    days = grouped(catalogue.prices, lambda row: (str(row["provider"]), str(row["effective_on"])))
    for (provider, day), rows in days.items():
        accelerators = sorted({names.get(row["accelerator"]) or str(row["accelerator"]) for row in rows}, key=str.lower)
        title = f"Prices: {counted(len(rows), 'price')} from {provider_name(provider)}, in force from {date.fromisoformat(day)}"
        yield Entry(
            day, f"cost{ENDING}#{provider}-{day}", f"cost{ENDING}", one_line(title), one_line(f"Accelerators: {', '.join(accelerators)}.")
        )


# Badges --------------------------------------------------------------------------------------------


def result_badge(row: Row) -> str:
    """Return the badge of a result: its rate and its trust level."""
    name = next(name for name in RATES if row[name] is not None)
    rate = f"{short(row[name])} {QUANTITIES[name].unit}"
    return badge((("Tunemark", NAME_COLOR), (rate, VALUE_COLOR), (wording.trust(row), COLORS[row["trust"]])))


def accelerator_badge(name: str, results: int) -> str:
    """Return the badge of an accelerator: the number of its results."""
    return badge((("Tunemark", NAME_COLOR), (name, VALUE_COLOR), (counted(results, "result"), COLORS["measured"])))


def short(value: float) -> str:
    """Return a number with three digits and a letter for thousands or millions.

    >>> short(14_823), short(151), short(2_140_000)
    ('14.8k', '151', '2.14M')
    """
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if round(value, 1) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def badge(parts: Iterable[tuple[str, str]]) -> str:
    """Return a badge as SVG: texts with their background colors from left to right. The title is read by screen readers."""
    cells, left = [], 0
    texts = [(one_line(text), color) for text, color in parts]
    for text, color in texts:
        inner = round(CHARACTER * len(text))
        width = inner + PADDING
        cells.append(
            f'<rect x="{left}" width="{width}" height="20" fill="{color}"/>'
            f'<text x="{left + PADDING // 2}" y="14" textLength="{inner}" lengthAdjust="spacingAndGlyphs">{escape(text)}</text>'
        )
        left += width
    title = escape(": ".join((texts[0][0], ", ".join(text for text, _ in texts[1:]))))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left}" height="20" role="img" aria-labelledby="t"><title id="t">{title}</title>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">{"".join(cells)}</g></svg>\n'
    )


def write(catalogue: Catalogue, site: Path) -> None:
    """Write the feed and all badges below a folder."""
    (site / FEED).write_bytes(atom(catalogue))
    (site / BADGES).mkdir()
    for row in catalogue.results:
        file_name(row["result_id"])
        path = badge_path(row)
        if path:
            (site / path).write_text(result_badge(row), encoding="utf-8")
    for accelerator in catalogue.accelerators:
        number = len(catalogue.results_where(accelerator=accelerator["accelerator"]))
        if number:
            target = site / BADGES / f"{accelerator_path(file_name(accelerator['accelerator']))}.svg"
            target.parent.mkdir(exist_ok=True)
            target.write_text(accelerator_badge(accelerator["name"], number), encoding="utf-8")
