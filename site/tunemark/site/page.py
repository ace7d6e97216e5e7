"""A page before it is written (path, title, template, context), and the paths of all kinds of pages."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Crumb = tuple[str, str]
"""Label and path of a parent page."""


DEFAULT_URL = "https://tunemark.dev/"
"""Public address of the site, as in mkdocs.yml. The `$id` of each JSON Schema is a file below it."""

FEED = "feed.xml"
BADGES = "badges"
RATES = ("tokens_per_s", "samples_per_s")
"""The rate of a result is the first of these that it has."""


@dataclass(frozen=True, slots=True)
class SiteOptions:
    """Options of a build that pages depend on."""

    url: str = DEFAULT_URL
    """Public address, ending with a slash. Links within the site are relative and do not use it."""
    sql_bytes: tuple[int, int] | None = None
    """Bytes that the SQL page downloads with and without compression, without the database; None if the site has no SQL page."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the site."""

    path: str
    """Path in the site without its ending, such as `results/003-001`."""
    title: str
    template: str
    """A file of templates/. `tables.md.j2` shows an introduction and a list of tables."""
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


@dataclass(frozen=True, slots=True)
class Section:
    """A titled list of facts."""

    title: str
    facts: tuple[Fact, ...] = ()


def result_path(result_id: str) -> str:
    """Return the path of a result's page."""
    return f"results/{result_id}"


def api_path(name: str) -> str:
    """Return the path of a file of the API, such as `results/003-001`."""
    return f"api/v1/{name}.json"


def badge_path(row: Mapping[str, Any]) -> str | None:
    """Return the path of a result's badge, or None if the result failed, is impossible, or has no rate."""
    if row["failed"] or row["impossible"] or all(row[name] is None for name in RATES):
        return None
    return badge_file(row["result_id"])


def badge_file(result_id: str) -> str:
    """Return the path of the badge of a result that has one."""
    return f"{BADGES}/{result_id}.svg"


def accelerator_path(accelerator: str) -> str:
    """Return the path of an accelerator's page."""
    return f"accelerators/{accelerator}"


def prices_path(accelerator: str) -> str:
    """Return the path of an accelerator's prices and their sources."""
    return f"{accelerator_path(accelerator)}#prices"


def model_path(model: str) -> str:
    """Return the path of a model's page."""
    return f"models/{model}"


def workload_path(workload: str) -> str:
    """Return the path of a workload's page."""
    return f"workloads/{workload}"


def study_path(study: str) -> str:
    """Return the path of a study's page."""
    return f"studies/{study}"


def document_path(source: str) -> str:
    """Return the path of a source document's page."""
    return f"documents/{source}"


def statement_path(source: str, statement: str) -> str:
    """Return the path of a statement on its document's page."""
    return f"{document_path(source)}#{statement}"


def audit_path(source: str) -> str:
    """Return the path of the findings about a source."""
    return f"audit/{source}"


def rule_path(rule: str) -> str:
    """Return the path of an audit rule's explanation."""
    return f"audit/rules#rule-{rule}"
