"""The page of a measured result: from the headline down to the raw steps."""

from collections.abc import Iterator
from dataclasses import dataclass

from tunemark.schema.quantities import QUANTITIES
from tunemark.site import wording
from tunemark.site.charts import Chart, loss_chart, step_time_chart
from tunemark.site.page import Fact, Page, workload_path
from tunemark.site.pages import evidence, physics
from tunemark.site.pages.result import result_page, sections
from tunemark.site.queries import Catalogue, Row

SMALLEST_SHARE = 0.0005
TOPICS = {
    "overrides": "Overrides of the workload card",
    "plan": "Plan, each choice with its reason",
    "environment": "Environment",
    "packages": "Packages",
    "model": "Model",
    "utilisation": "Utilisation",
    "evaluation": "Evaluation",
    "process": "Process",
    "derived": "Derived from the raw steps",
    "harness": "Harness",
}


@dataclass(frozen=True, slots=True)
class PhaseBar:
    """A phase of the run as a part of a bar."""

    name: str
    label: str
    duration: str
    share: str
    width: str
    """Per cent, for the style sheet."""


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield a page for each measured result."""
    for row in catalogue.results:
        if row["source"] == "measured":
            yield _page(catalogue, row)


def _page(catalogue: Catalogue, row: Row) -> Page:
    steps = catalogue.database.steps(row["result_id"])
    crumbs = (
        (("Workloads", "workloads/index"), (row["workload"], workload_path(row["workload"])))
        if row["workload"]
        else (("Results", "results/index"),)
    )
    more: dict[str, object] = {
        "charts": _charts(steps),
        "phases": _phases(catalogue.phases.get(row["result_id"], [])),
        "wall": QUANTITIES["wall_s"].text(row["wall_s"]),
        "memory": sections(
            catalogue,
            row,
            {"memory": "Memory"},
            leave_out=frozenset({fact["topic"] for fact in catalogue.facts.get(row["result_id"], ())} - {"memory"}),
        ),
        "topics": sections(catalogue, row, TOPICS, leave_out=frozenset({"memory"})),
        "provenance": _provenance(row),
        "steady": _steady(row),
        **_evidence(catalogue, row),
    }
    return result_page(catalogue, row, "measured.md.j2", crumbs, more)


def _evidence(catalogue: Catalogue, row: Row) -> dict[str, object]:
    return {
        "effective": evidence.effective(catalogue, row),
        "gates": evidence.gates(catalogue, row),
        "ranks": evidence.ranks(catalogue, row),
        "device_use": evidence.device_use(catalogue, row),
        "probe": evidence.probe(row),
        "events": evidence.events(catalogue, row),
        "study": evidence.study(catalogue, row),
        "utilisation": physics.utilisation(catalogue, row),
        "flops": physics.flops(catalogue, row),
        "memory_lines": physics.memory(catalogue, row),
        "memory_parts": physics.memory_parts(catalogue, row),
        "no_memory": physics.no_memory(catalogue, row),
        "energy": physics.energy(catalogue, row),
        "no_energy": physics.no_energy(catalogue, row),
    }


def _charts(steps: list[Row]) -> list[Chart]:
    if not steps:
        return []
    loss = loss_chart(steps)
    return [step_time_chart(steps), *([loss] if loss else [])]


def _phases(rows: list[Row]) -> list[PhaseBar]:
    show = QUANTITIES["wall_s"].text
    return [
        PhaseBar(
            row["phase"],
            wording.PHASES.get(row["phase"], wording.words(row["phase"])),
            show(row["duration_s"]),
            _share(row["share"]),
            f"{row['share'] * 100:.3f}",
        )
        for row in rows
    ]


def _steady(row: Row) -> str:
    if row["steady_steps"] is None:
        return "No steady window was found, so no figure is derived from this run."
    verdict = f": {row['steady_verdict']}" if row["steady_verdict"] else ""
    found = "Stable" if row["stable"] else "Not stable"
    return f"{found} over {row['steady_steps']:,} steps{verdict}."


def _provenance(row: Row) -> list[Fact]:
    return [
        Fact("Result", row["result_id"], "permanent id: the content hash of the file"),
        Fact("File", row["file"]),
        Fact("SHA-256", row["sha256"]),
        Fact("Started", wording.moment(row["started_us"])),
        Fact("Division", wording.plain(row["division"]), "standard: the workload card untouched; open: with declared overrides"),
        Fact("Harness", wording.plain(row["harness_version"]), f"commit {row['harness_commit']}" if row["harness_commit"] else ""),
    ]


def _share(share: float) -> str:
    # A phase that took time at all is not shown as nothing.
    return "<0.1%" if 0 < share < SMALLEST_SHARE else f"{share:.1%}"
