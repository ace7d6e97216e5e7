"""A page before it is written: its path, its title, its template and what the template is given."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Crumb = tuple[str, str]
"""Label and path of a page above."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the site."""

    path: str
    """Path in the site without ending, such as `results/003-001`."""
    title: str
    template: str
    context: Mapping[str, object]
    crumbs: tuple[Crumb, ...] = ()
    wide: bool = True
    """Without a table of contents beside it."""


def result_path(result_id: str) -> str:
    """Return the path of a result's page."""
    return f"results/{result_id}"


def accelerator_path(accelerator: str) -> str:
    """Return the path of an accelerator's page."""
    return f"accelerators/{accelerator}"


def prices_path(accelerator: str) -> str:
    """Return where the prices of an accelerator are, with their sources."""
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
    """Return where a document's page has a statement."""
    return f"{document_path(source)}#{statement}"


def audit_path(source: str) -> str:
    """Return the path of the page with the findings about a source."""
    return f"audit/{source}"


def rule_path(rule: str) -> str:
    """Return where a rule of the audit is explained."""
    return f"audit/rules#rule-{rule}"


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
    facts: tuple[Fact, ...] = field(default=())
