"""The results to measure again: how far the software of a result is behind, and what has never been measured."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tunemark.site import tables, wording
from tunemark.site.page import Page, accelerator_path, result_path, workload_path
from tunemark.site.queries import Catalogue
from tunemark.site.tables import Cell, Column, Row, Table

CRUMBS = (("Guide", "guide/index"),)
PACKAGES = ("torch", "transformers")
VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.\d+)*(?:[+.-].*)?")
"""An exact version; `>=2.0` is none."""
MOST = 50
SMOKE = "smoke"
"""Tier of toy models, whose results no reader uses."""
BASIS = "The age of a version is the number of newer minor releases on the day of the collection."


@dataclass(frozen=True, slots=True)
class Age:
    """The version of a package in a result, and the number of newer minor releases."""

    package: str
    version: str
    newest: str
    behind: int

    @property
    def text(self) -> str:
        """The age in words."""
        if not self.behind:
            return f"{self.package} {self.version}, the newest minor release"
        releases = "minor release" if self.behind == 1 else "minor releases"
        return f"{self.package} {self.version}, {self.behind} {releases} behind {self.newest}"


def minor(version: str | None) -> tuple[int, int] | None:
    """Return the major and minor number of an exact version, or None."""
    match = VERSION.fullmatch(version or "")
    return (int(match[1]), int(match[2])) if match else None


def ages(catalogue: Catalogue, row: Row) -> list[Age]:
    """Return the age of each package of a result whose version is known."""
    versions = catalogue.packages.get(row["result_id"], {})
    made = []
    for package in PACKAGES:
        own = minor(versions.get(package))
        if own is not None:
            seen = {number for number in map(minor, catalogue.package_versions[package]) if number}
            newest = max(seen)
            made.append(Age(package, versions[package], f"{newest[0]}.{newest[1]}", sum(number > own for number in seen)))
    return made


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the list of results to measure again."""
    smoke = {row["workload"] for row in catalogue.workloads if row["tier"] == SMOKE}
    measured = [row for row in catalogue.results_where(source="measured") if row["workload"] not in smoke]
    context = {"basis": BASIS, "old": _oldest(catalogue, measured), "missing": _missing(catalogue, measured), "measured": len(measured)}
    yield Page("guide/rerun", "Please re-run", "rerun.md.j2", context, CRUMBS)


def _oldest(catalogue: Catalogue, measured: list[Row]) -> Table | None:
    """Return the measured results with the oldest software, oldest first."""

    def releases(row: Row, package: str) -> int | None:
        return next((age.behind for age in ages(catalogue, row) if age.package == package), None)

    def version(row: Row, package: str) -> Cell:
        behind = releases(row, package)
        small = "" if behind is None else "newest" if not behind else f"{behind} behind"
        return tables.text(catalogue.packages.get(row["result_id"], {}).get(package), small=small, sort=behind)

    def age(row: Row) -> tuple[object, ...]:
        behind = sum(releases(row, package) or 0 for package in PACKAGES)
        return (minor(row["harness_version"]) or (0, 0), -behind, row["started_us"] or 0, row["result_id"])

    columns: list[Column[Row]] = [
        Column("Workload", lambda row: tables.text(row["workload"], href=result_path(row["result_id"]), small=row["result_id"])),
        Column("Device", lambda row: tables.text(wording.devices(row))),
        Column("Harness", lambda row: tables.text(row["harness_version"], small=(row["harness_commit"] or "")[:7])),
        *(Column[Row](package, lambda row, package=package: version(row, package)) for package in PACKAGES),  # type: ignore[misc]
        Column("Measured on", lambda row: tables.text(wording.day(row["started_us"])), tight=True),
    ]
    return tables.table("Oldest measured results", columns, sorted(measured, key=age)[:MOST], interactive=True) if measured else None


def _missing(catalogue: Catalogue, measured: list[Row]) -> Table | None:
    """Return the workloads that have published results on an accelerator, and no measured result on it."""
    done = {(row["workload"], row["accelerator"]) for row in measured}
    names = {row["accelerator"]: row["name"] for row in catalogue.accelerators}
    missing: list[tuple[Row, str, int]] = []
    for workload in catalogue.workloads:
        published = catalogue.published_by_work.get((workload["model"], workload["method"]), ())
        counts = Counter(row["accelerator"] for row in published if row["accelerator"] in names)
        missing += [(workload, key, number) for key, number in counts.items() if (workload["workload"], key) not in done]
    columns: list[Column[tuple[Row, str, int]]] = [
        Column("Workload", lambda item: tables.text(item[0]["title"], href=workload_path(item[0]["workload"]), small=item[0]["workload"])),
        Column("Accelerator", lambda item: tables.text(names[item[1]], href=accelerator_path(item[1]))),
        Column(
            "Published results",
            lambda item: tables.number(item[2]),
            numeric=True,
            explained="Published and converted results with the same model and method on this accelerator.",
        ),
    ]
    most_first = sorted(missing, key=lambda item: (-item[2], item[0]["workload"], item[1]))
    return tables.table("Workloads without a measured result", columns, most_first, interactive=True, searchable=False) if missing else None
