"""FLOPs, utilisation, energy and memory of a measured run, each figure with its formula or the reason why it is not known."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tunemark.schema.formats import MISSING, binary, flop, percent, significant, watts
from tunemark.schema.quantities import QUANTITIES
from tunemark.site import tables, wording
from tunemark.site.charts import Chart, loss_chart, step_time_chart
from tunemark.site.page import Fact, Page, result_path, study_path, workload_path
from tunemark.site.pages.result import result_page, sections
from tunemark.site.queries import Catalogue, Row
from tunemark.site.tables import Cell, Column, Line, Table

UTILISATION = ("mfu", "hfu", "mafu", "mfu_palm", "model_flop_per_s")
ENERGY = ("energy_per_step_j", "energy_per_sample_j", "energy_per_1k_tokens_j")
CLASSES = {
    "forward_matmul": "Forward, matrices of the blocks",
    "forward_attention": "Forward, attention",
    "forward_head": "Forward, head",
    "forward_adapters": "Forward, adapters",
    "backward_input": "Backward, input gradients",
    "backward_weight": "Backward, weight gradients",
    "backward_head": "Backward, head",
    "backward_attention": "Backward, attention",
    "backward_adapters": "Backward, adapters",
    "recompute": "Recomputed activations",
}
FIGURES = [Column("Figure"), Column("Value", numeric=True), Column("How it is computed, or what is missing")]


def utilisation(catalogue: Catalogue, row: Row) -> Table | None:
    """Return MFU and its relatives, each with its formula in words."""
    return _figures(catalogue, row, UTILISATION, "Utilisation")


def energy(catalogue: Catalogue, row: Row) -> Table | None:
    """Return energy per step, sample and token; None where there is no energy."""
    return _figures(catalogue, row, ENERGY, "Energy") if row["energy_per_step_j"] is not None else None


def no_energy(catalogue: Catalogue, row: Row) -> str:
    """Return why there is no energy; empty where there is one."""
    return "" if row["energy_per_step_j"] is not None else _reasons(catalogue, row).get("energy_per_step_j", "")


def no_memory(catalogue: Catalogue, row: Row) -> str:
    """Return why memory could not be predicted; empty where it was."""
    return _reasons(catalogue, row).get("predicted_memory_bytes", "")


def _reasons(catalogue: Catalogue, row: Row) -> dict[str, str]:
    facts = catalogue.facts.get(row["result_id"], ())
    return {fact["name"]: fact["reason"] for fact in facts if fact["topic"] == "derived" and fact["reason"]}


def _figures(catalogue: Catalogue, row: Row, names: tuple[str, ...], title: str) -> Table | None:
    reasons = _reasons(catalogue, row)
    known = [name for name in names if name in reasons]
    lines = (Line((tables.text(QUANTITIES[name].label), tables.quantity(name, row[name]), Cell(reasons[name]))) for name in known)
    return tables.table(title, FIGURES, lines, searchable=False, stacked=True) if known else None


def flops(catalogue: Catalogue, row: Row) -> Table | None:
    """Return the FLOPs of a mean steady step by class, classes without work left out."""
    seen = [line for line in catalogue.seen("flops", row["result_id"]) if line["flop"]]
    if not seen:
        return None
    total = sum(line["flop"] for line in seen)
    columns = [Column("Work"), Column("FLOPs", numeric=True), Column("Share", numeric=True), Column("Formula")]
    lines = (
        Line(
            (
                tables.text(CLASSES.get(line["class"], line["class"])),
                Cell(flop(line["flop"]), sort=line["flop"]),
                Cell(f"{line['flop'] / total:.1%}", sort=line["flop"]),
                Cell(line["formula"]),
            )
        )
        for line in seen
    )
    return tables.table("FLOPs of a step", columns, lines, searchable=False, stacked=True)


def memory(catalogue: Catalogue, row: Row) -> Table | None:
    """Return predicted memory beside what was measured: peaks, and tensors that were weighed."""
    seen = [line for line in catalogue.seen("memory_lines", row["result_id"]) if line["kind"] != "part"]
    columns = [
        Column("Memory"),
        Column("Predicted", numeric=True),
        Column("Measured", numeric=True),
        Column("Predicted is off by", numeric=True),
        Column("How"),
    ]
    lines = (_memory_line(line) for line in sorted(seen, key=lambda line: line["kind"] != "peak"))
    return tables.table("Memory, predicted and measured", columns, lines, searchable=False, stacked=True) if seen else None


def memory_parts(catalogue: Catalogue, row: Row) -> Table | None:
    """Return what else the predicted peak is made of; nothing weighs these one by one."""
    seen = [line for line in catalogue.seen("memory_lines", row["result_id"]) if line["kind"] == "part"]
    columns = [Column("Part"), Column("Predicted", numeric=True), Column("Formula")]
    lines = (
        Line(
            (
                tables.text(wording.sentence(line["line"])),
                Cell(binary(line["predicted_bytes"]), sort=line["predicted_bytes"]),
                Cell(line["note"]),
            )
        )
        for line in seen
    )
    return tables.table("Parts of the predicted peak", columns, lines, searchable=False, stacked=True) if seen else None


def _memory_line(line: Row) -> Line:
    predicted, measured = line["predicted_bytes"], line["measured_bytes"]
    off = predicted / measured - 1 if predicted is not None and measured else None
    return Line(
        (
            tables.text(wording.sentence(line["line"])),
            Cell(MISSING if predicted is None else binary(predicted), sort=predicted),
            Cell(MISSING if measured is None else binary(measured), sort=measured),
            Cell(MISSING if off is None else f"{off:+.1%}", sort=off),
            Cell(line["note"]),
        )
    )


# MOVE: was tunemark.site.pages.measured: What a measured run saw beside its steps, as tables: what really ran, checks, processes, devices, its study.

GATES = {
    "adapter_gradient": "Gradients arrive",
    "packed_documents": "Packed documents do not see each other",
    "loss_band": "Losses are those of a right run",
}
VERDICTS = {True: ("passed", "ok"), False: ("failed", "failed"), None: ("does not apply", "plain")}
STUDIES = {"sweep": "sweep", "frontier": "frontier", "ab": "A/B comparison", "repeat": "repeats"}


def effective(catalogue: Catalogue, row: Row) -> Table | None:
    """Return what was asked for beside what really ran."""
    seen = catalogue.seen("effective", row["result_id"])
    columns = [Column("Setting"), Column("Requested"), Column("Effective")]
    return tables.table("Requested and effective", columns, map(_effective_line, seen), searchable=False) if seen else None


def _effective_line(seen: Row) -> Line:
    differs = seen["agrees"] is False
    was = Cell(seen["effective"], sort=seen["effective"], mark="not what was asked" if differs else "")
    return Line((tables.text(wording.words(seen["setting"])), tables.text(seen["requested"]), was))


def gates(catalogue: Catalogue, row: Row) -> Table | None:
    """Return the checks that training is right, with their verdicts."""
    seen = catalogue.seen("gates", row["result_id"])
    columns = [Column("Check"), Column("Verdict"), Column("What was seen")]
    return tables.table("Checks", columns, map(_gate_line, seen), searchable=False, stacked=True) if seen else None


def _gate_line(seen: Row) -> Line:
    word, kind = VERDICTS[seen["passed"]]
    return Line((tables.text(GATES.get(seen["gate"], seen["gate"])), Cell(word, sort=word, badge=kind), tables.text(seen["detail"])))


def ranks(catalogue: Catalogue, row: Row) -> Table | None:
    """Return the processes of a run, the straggler marked."""
    seen = catalogue.seen("ranks", row["result_id"])
    columns = [
        Column("Rank"),
        tables.head("own_work_s"),
        tables.head("rank_behind"),
        Column("Allocator's peak", numeric=True),
        Column("Allocator held", numeric=True),
        Column("Host memory", numeric=True),
    ]
    return tables.table("Processes", columns, map(_rank_line, seen), interactive=len(seen) > 1, searchable=False) if seen else None


def _rank_line(seen: Row) -> Line:
    return Line(
        (
            Cell(str(seen["rank"]), sort=seen["rank"], mark="slowest" if seen["slowest"] else ""),
            tables.quantity("own_work_s", seen["own_work_s"]),
            tables.quantity("rank_behind", seen["behind"]),
            *(
                Cell(_or_dash(seen[name], binary), sort=seen[name])
                for name in ("device_allocated_bytes", "device_reserved_bytes", "host_rss_bytes")
            ),
        )
    )


def device_use(catalogue: Catalogue, row: Row) -> Table | None:
    """Return each device over the steady window."""
    seen = catalogue.seen("device_use", row["result_id"])
    columns = [
        Column("Device"),
        Column("Busy", numeric=True, explained="Share of time in which something ran on it: mean, and below it the highest sample."),
        Column("Power", numeric=True, explained="Mean, and below it the highest sample."),
        Column("Clock", numeric=True, explained="Mean, and below it the lowest sample."),
        Column("Temperature", numeric=True, explained="Highest sample."),
        Column("Memory in use", numeric=True, explained="Highest sample, other processes included; below it what was in use before."),
        Column("Clocks lowered by"),
    ]
    return tables.table("Devices over the steady window", columns, map(_device_line, seen), searchable=False) if seen else None


def _device_line(seen: Row) -> Line:
    def two(first: str, second: str, show: tables.Show, word: str) -> Cell:
        small = f"{word} {show(seen[second])}" if seen[second] is not None else ""
        return Cell(_or_dash(seen[first], show), small=small, sort=seen[first])

    return Line(
        (
            Cell(str(seen["device"]), sort=seen["device"]),
            two("busy_mean", "busy_peak", percent, "peak"),
            two("power_mean_w", "power_peak_w", watts, "peak"),
            two("clock_mean_mhz", "clock_min_mhz", _megahertz, "lowest"),
            Cell(_or_dash(seen["temperature_peak_c"], lambda value: f"{significant(value)} °C"), sort=seen["temperature_peak_c"]),
            two("memory_used_peak_bytes", "memory_used_before_bytes", binary, "before"),
            tables.text(", ".join(wording.words(reason) for reason in seen["throttle_reasons"]) or "nothing"),
        )
    )


def probe(row: Row) -> list[Fact]:
    """Return what the devices reached in the probe; empty when they were not probed."""
    before, after = row["probe_flop_per_s"], row["probe_after_flop_per_s"]
    if before is None:
        return []
    show = QUANTITIES["probe_flop_per_s"].text
    change = "" if after is None else f"{after / before - 1:+.1%} against before"
    return [
        Fact("Before training", show(before), "matrix products in the run's own format, all devices"),
        Fact("After training", show(after), change),
    ]


def events(catalogue: Catalogue, row: Row) -> str:
    """Return in a sentence which steps compiled graphs or took more memory; empty without any."""
    seen = catalogue.seen("step_events", row["result_id"])
    said = [
        f"{what} in step{'s' * (len(steps) > 1)} {_listed(steps)}"
        for kind, what in (("compile", "graphs were compiled"), ("allocator_growth", "the allocator took more memory"))
        if (steps := [event["step"] for event in seen if event["kind"] == kind])
    ]
    return wording.sentence("; ".join(said)) + "." if said else ""


def _listed(steps: list[int]) -> str:
    most = 6
    shown = ", ".join(str(step) for step in steps[:most])
    return shown + (f" and {len(steps) - most} more" if len(steps) > most else "")


def study(catalogue: Catalogue, row: Row) -> list[Fact]:
    """Return the series that a run is a part of, with links to its siblings; empty when it was asked for alone."""
    if row["study_id"] is None:
        return []
    siblings = sorted(catalogue.results_where(study_id=row["study_id"]), key=lambda one: (one["study_position"], one["result_id"]))
    where = next(index for index, one in enumerate(siblings) if one["result_id"] == row["result_id"])
    around: Iterable[tuple[str, int]] = (("Before it", where - 1), ("After it", where + 1))
    kind = STUDIES.get(row["study_kind"], row["study_kind"])
    return [
        Fact("Series", f"{kind} {row['study_id']}", f"{len(siblings)} runs", href=study_path(row["study_id"])),
        Fact("This run", row["study_point"], f"number {row['study_position']}"),
        *(
            Fact(name, siblings[index]["study_point"], siblings[index]["status"], href=result_path(siblings[index]["result_id"]))
            for name, index in around
            if 0 <= index < len(siblings)
        ),
    ]


def _megahertz(value: float) -> str:
    return f"{significant(value, 4)} MHz"


def _or_dash(value: float | None, show: tables.Show) -> str:
    return MISSING if value is None else show(value)


# MOVE: was tunemark.site.pages.measured: The page of a measured result: from the headline down to the raw steps.

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
        "effective": effective(catalogue, row),
        "gates": gates(catalogue, row),
        "ranks": ranks(catalogue, row),
        "device_use": device_use(catalogue, row),
        "probe": probe(row),
        "events": events(catalogue, row),
        "study": study(catalogue, row),
        "utilisation": utilisation(catalogue, row),
        "flops": flops(catalogue, row),
        "memory_lines": memory(catalogue, row),
        "memory_parts": memory_parts(catalogue, row),
        "no_memory": no_memory(catalogue, row),
        "energy": energy(catalogue, row),
        "no_energy": no_energy(catalogue, row),
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
