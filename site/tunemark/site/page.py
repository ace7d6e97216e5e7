"""A page before it is written (path, title, template, context), and the paths of all kinds of pages."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
"""A row of the database, by column."""

Crumb = tuple[str, str]
"""Label and path of a parent page."""


DEFAULT_URL = "https://tunemark.dev/"
"""Public address of the site, as in mkdocs.yml. The `$id` of each JSON Schema is a file below it."""

ENDING = ".html"
NAME = "Tunemark"
QUESTION = "Which accelerator should I fine-tune this model on, how long will it take, and what will it cost?"
FEED = "feed.xml"
RATES = ("tokens_per_s", "samples_per_s")
"""The rate of a result is the first of these that it has."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the site."""

    path: str
    """Path in the site without its ending, such as `results/003-001`."""
    title: str
    template: str
    """A file of templates/."""
    context: Mapping[str, object]
    crumbs: tuple[Crumb, ...] = ()
    wide: bool = True
    """Hide the table of contents."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A line of a two-column list."""

    name: str
    value: str
    note: str = ""
    href: str | None = None


def result_path(result_id: str) -> str:
    """Return the path of a result's page."""
    return f"results/{result_id}"


def address(url: str, path: str) -> str:
    """Return the public address of a page. The first page of a folder is the folder."""
    folder, _, last = path.rpartition("/")
    if last == "index":
        return f"{url}{folder}/" if folder else url
    return f"{url}{path}{ENDING}"
