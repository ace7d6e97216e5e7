"""Additions to the data, newest first: the Atom feed, and the list on the page of changes."""

from datetime import UTC, datetime
from xml.etree import ElementTree as ET

from tunemark.schema.formats import counted
from tunemark.schema.recommendation import provider_name
from tunemark.site import wording
from tunemark.site.database import Database
from tunemark.site.page import ENDING, FEED, document_path, result_path
from tunemark.site.tables import Row
from tunemark.site.text import one_line

ENTRIES = 50
"""Entries of the feed."""
ATOM = "http://www.w3.org/2005/Atom"
RESULTS = "select *, strftime(make_timestamp(started_us), '%Y-%m-%dT%H:%M:%S') as day from listed_results where source = 'measured' and started_us is not null and workload not in (select workload from workloads where tier = 'smoke')"
DOCUMENTS = """
    select s.*, cast(read_on as varchar) as day, count(r.result_id) as results
    from sources s left join results r using (source) where read_on is not null group by all
"""
PRICES = """
    select provider, cast(effective_on as varchar) as day, count(*) as prices, list_sort(list(distinct coalesce(a.name, accelerator))) as names
    from prices left join accelerators a using (accelerator) group by all
"""


def additions(database: Database) -> list[Row]:
    """Return measured results, documents and prices with the day of each, newest first: `day`, `path`, `title`, `summary`."""
    found = [
        _entry(row["day"], result_path(row["result_id"]), f"Result: {wording.result_title(row)}", wording.summary(row))
        for row in database.rows(RESULTS)
    ]
    found += [
        _entry(
            row["day"], document_path(row["source"]), f"Source: {row['title']}", f"{counted(row['results'], 'result')}. {row['summary']}"
        )
        for row in database.rows(DOCUMENTS)
    ]
    for row in database.rows(PRICES):
        title = f"Prices: {counted(row['prices'], 'price')} from {provider_name(row['provider'])}, in force from {row['day']}"
        found.append(_entry(row["day"], f"cost#{row['provider']}-{row['day']}", title, f"Accelerators: {', '.join(row['names'])}."))
    return sorted(sorted(found, key=lambda row: str(row["path"])), key=lambda row: str(row["day"]), reverse=True)


def _entry(day: str, path: str, title: str, summary: str) -> Row:
    return {"day": day, "path": path, "title": one_line(title), "summary": one_line(summary)}


def atom(database: Database, url: str) -> bytes:
    """Return the Atom feed for a site at this address. It has the date of its newest entry."""
    entries = additions(database)[:ENTRIES]
    feed = ET.Element("feed", xmlns=ATOM)
    for name, text in (
        ("id", url),
        ("title", "Tunemark: new results, documents and prices"),
        ("updated", _time(entries[0]["day"] if entries else "1970-01-01")),
    ):
        ET.SubElement(feed, name).text = text
    ET.SubElement(ET.SubElement(feed, "author"), "name").text = "Tunemark contributors"
    ET.SubElement(feed, "rights").text = "CC-BY-4.0"
    ET.SubElement(feed, "link", href=f"{url}{FEED}", rel="self", type="application/atom+xml")
    ET.SubElement(feed, "link", href=url, rel="alternate", type="text/html")
    for row in entries:
        entry = ET.SubElement(feed, "entry")
        page, _, anchor = row["path"].partition("#")
        address = f"{url}{page}{ENDING}{f'#{anchor}' if anchor else ''}"
        for name, text in (("id", address), ("title", row["title"]), ("updated", _time(row["day"])), ("summary", row["summary"])):
            ET.SubElement(entry, name).text = text
        ET.SubElement(entry, "link", href=address, rel="alternate", type="text/html")
    ET.indent(feed)
    return bytes(ET.tostring(feed, encoding="utf-8", xml_declaration=True))


def _time(day: str) -> str:
    return datetime.fromisoformat(day).replace(tzinfo=UTC).isoformat()
