"""The page of a measured result, from its headlines to its raw steps.

Each figure is shown with its formula, or with the reason why it is unknown.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from tunemark.schema.formats import MISSING, binary, flop, percent, significant, watts
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.records.division import MEANING
from tunemark.schema.vocabulary import Division
from tunemark.site import tables, wording
from tunemark.site.charts import Chart, loss_chart, step_time_chart
from tunemark.site.page import Fact, Page, result_path, study_path, workload_path
from tunemark.site.queries import Catalogue
from tunemark.site.result_page import result_page, sections
from tunemark.site.tables import Cell, Column, Row, Show, Table, quantity_column, text_column

SMALLEST_SHARE = 0.0005
MAX_LISTED_STEPS = 6
TOPICS = {
    "overrides": "Overrides of the workload card",
    "plan": "Plan with the reason for each choice",
    "environment": "Environment",
    "packages": "Packages",
    "model": "Model",
    "utilisation": "Utilisation",
    "evaluation": "Evaluation",
    "process": "Process",
    "derived": "Derived from the raw steps",
    "harness": "Harness",
}
UTILISATION = ("mfu", "hfu", "mafu", "mfu_palm", "model_flop_per_s")
ENERGY = ("energy_per_step_j", "energy_per_sample_j", "energy_per_1k_tokens_j")
FLOP_CLASSES = {
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
GATES = {
    "adapter_gradient": "Gradients reach the trained weights",
    "packed_documents": "Packed documents do not attend to each other",
    "loss_band": "Losses are inside the expected band",
}
GATE_VERDICTS = {True: ("passed", "ok"), False: ("failed", "failed"), None: ("does not apply", "plain")}
EVENTS = {
    "compile": "graphs were compiled",
    "allocator_growth": "the allocator reserved more memory",
    "allocator_retry": "the allocator found no memory and emptied its cache",
}
DEVICE_COLUMNS = {
    "busy_mean": ("Busy", "Share of time in which the device was busy: mean, with the highest sample below."),
    "power_mean_w": ("Power", "Mean, with the highest sample below."),
    "clock_mean_mhz": ("Clock", "Mean, with the lowest sample below."),
    "memory_used_peak_bytes": ("Memory in use", "Highest sample, other processes included, with the value before the run below."),
}
"""First figure of a column -> its heading and explanation."""


@dataclass(frozen=True, slots=True)
class PhaseBar:
    """A phase of the run as a segment of a bar."""

    name: str
    label: str
    duration: str
    share: str
    width: str
    """Per cent, for the style sheet."""


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield a page for each measured result."""
    for row in catalogue.results_where(source="measured"):
        workload = row["workload"]
        parents = (("Workloads", "workloads/index"), (workload, workload_path(workload))) if workload else (("Results", "results/index"),)
        yield result_page(catalogue, row, "measured.md.j2", parents, partial(_context, catalogue, row))


def _context(catalogue: Catalogue, row: Row) -> dict[str, object]:
    reasons = _reasons(catalogue, row)
    topics = frozenset(fact["topic"] for fact in catalogue.facts.get(row["result_id"], ()))
    return {
        "charts": _charts(catalogue.database.steps(row["result_id"])),
        "phases": _phases(catalogue.phases.get(row["result_id"], [])),
        "wall": QUANTITIES["wall_s"].text(row["wall_s"]),
        "steady": _steady(row),
        "events": _events(catalogue, row),
        "study": _study(catalogue, row),
        "gates": _gates(catalogue, row),
        "effective": _effective(catalogue, row),
        "ranks": _ranks(catalogue, row),
        "device_use": _device_use(catalogue, row),
        "probe": _probe(row),
        "utilisation": _figures(reasons, row, UTILISATION, "Utilisation"),
        "flops": _flops(catalogue, row),
        "memory_lines": _memory(catalogue, row),
        "memory_parts": _memory_parts(catalogue, row),
        "no_memory": reasons.get("predicted_memory_bytes", ""),
        "memory": sections(catalogue, row, {"memory": "Memory"}, leave_out=topics - {"memory"}),
        "energy": _figures(reasons, row, ENERGY, "Energy") if row["energy_per_step_j"] is not None else None,
        "no_energy": reasons.get("energy_per_step_j", "") if row["energy_per_step_j"] is None else "",
        "topics": sections(catalogue, row, TOPICS, leave_out=frozenset({"memory"})),
        "provenance": _provenance(row),
    }


def _charts(steps: list[Row]) -> list[Chart]:
    charts = (step_time_chart(steps), loss_chart(steps)) if steps else ()
    return [chart for chart in charts if chart]


def _phases(rows: list[Row]) -> list[PhaseBar]:
    return [
        PhaseBar(
            row["phase"],
            wording.PHASES.get(row["phase"], wording.words(row["phase"])),
            QUANTITIES["wall_s"].text(row["duration_s"]),
            # Never show a phase that took time as 0.
            "<0.1%" if 0 < row["share"] < SMALLEST_SHARE else f"{row['share']:.1%}",
            f"{row['share'] * 100:.3f}",
        )
        for row in rows
    ]


def _steady(row: Row) -> str:
    if row["steady_steps"] is None:
        return "No steady window was found, so no figure is derived from this run."
    verdict = f": {row['steady_verdict']}" if row["steady_verdict"] else ""
    return f"{'Stable' if row['stable'] else 'Not stable'} over {row['steady_steps']:,} steps{verdict}."


def _events(catalogue: Catalogue, row: Row) -> str:
    """Return a sentence that lists the steps with compilations or allocator growth; empty without any."""
    events = catalogue.seen("step_events", row["result_id"])
    parts = [
        f"{label} in step{'s' * (len(steps) > 1)} {_listed(steps)}"
        for kind, label in EVENTS.items()
        if (steps := [event["step"] for event in events if event["kind"] == kind])
    ]
    return wording.sentence("; ".join(parts)) + "." if parts else ""


def _listed(steps: list[int]) -> str:
    more = len(steps) - MAX_LISTED_STEPS
    return ", ".join(map(str, steps[:MAX_LISTED_STEPS])) + (f" and {more} more" if more > 0 else "")


def _study(catalogue: Catalogue, row: Row) -> list[Fact]:
    """Return the study that a run belongs to, with links to its neighbours; empty for a single run."""
    if row["study_id"] is None:
        return []
    siblings = sorted(
        catalogue.results_where(study_id=row["study_id"]), key=lambda sibling: (sibling["study_position"], sibling["result_id"])
    )
    here = next(index for index, sibling in enumerate(siblings) if sibling["result_id"] == row["result_id"])
    neighbours = [(name, siblings[index]) for name, index in (("Previous", here - 1), ("Next", here + 1)) if 0 <= index < len(siblings)]
    kind = wording.SERIES.get(row["study_kind"], row["study_kind"])
    return [
        Fact("Study", f"{kind} {row['study_id']}", f"{len(siblings)} runs", href=study_path(row["study_id"])),
        Fact("This run", row["study_point"], f"number {row['study_position']}"),
        *(Fact(name, other["study_point"], other["status"], href=result_path(other["result_id"])) for name, other in neighbours),
    ]


def _gates(catalogue: Catalogue, row: Row) -> Table | None:
    def verdict(gate: Row) -> Cell:
        word, kind = GATE_VERDICTS[gate["passed"]]
        return Cell(word, sort=word, badge=kind)

    gates = catalogue.seen("gates", row["result_id"])
    columns: list[Column[Row]] = [
        text_column("Check", "gate", lambda gate: GATES.get(gate, gate)),
        Column("Verdict", verdict),
        text_column("Observed", "detail"),
    ]
    return tables.table("Checks", columns, gates, searchable=False, stacked=True) if gates else None


def _effective(catalogue: Catalogue, row: Row) -> Table | None:
    settings = catalogue.seen("effective", row["result_id"])
    columns: list[Column[Row]] = [
        text_column("Setting", "setting", wording.words),
        text_column("Requested", "requested"),
        Column(
            "Effective",
            lambda setting: Cell(setting["effective"], sort=setting["effective"], mark="differs" if setting["agrees"] is False else ""),
        ),
    ]
    return tables.table("Requested and effective", columns, settings, searchable=False) if settings else None


def _ranks(catalogue: Catalogue, row: Row) -> Table | None:
    ranks = catalogue.seen("ranks", row["result_id"])
    columns: list[Column[Row]] = [
        Column("Rank", lambda rank: Cell(str(rank["rank"]), sort=rank["rank"], mark="slowest" if rank["slowest"] else "")),
        quantity_column("own_work_s"),
        quantity_column("rank_behind", lambda rank: tables.quantity("rank_behind", rank["behind"])),
        Column("Allocated, peak", lambda rank: tables.number(rank["device_allocated_bytes"], binary), numeric=True),
        Column("Reserved, peak", lambda rank: tables.number(rank["device_reserved_bytes"], binary), numeric=True),
        Column("Host memory", lambda rank: tables.number(rank["host_rss_bytes"], binary), numeric=True),
    ]
    return tables.table("Processes", columns, ranks, interactive=len(ranks) > 1, searchable=False) if ranks else None


def _device_use(catalogue: Catalogue, row: Row) -> Table | None:
    devices = catalogue.seen("device_use", row["result_id"])

    def two(first: str, second: str, show: Show, word: str) -> Column[Row]:
        """Return the column of one figure with a second one below it."""
        head, explained = DEVICE_COLUMNS[first]

        def cell(device: Row) -> Cell:
            small = f"{word} {show(device[second])}" if device[second] is not None else ""
            return Cell(MISSING if device[first] is None else show(device[first]), small=small, sort=device[first])

        return Column(head, cell, numeric=True, explained=explained)

    def throttled(device: Row) -> Cell:
        share = device["throttle_share"]
        reasons = ", ".join(map(wording.words, device["throttle_reasons"]))
        return tables.text(reasons or "nothing", small="" if share is None else f"for up to {percent(share)} of the time")

    columns: list[Column[Row]] = [
        *([Column("Node", lambda device: tables.number(device["node"]))] if any(device["node"] for device in devices) else []),
        Column("Device", lambda device: tables.number(device["device"])),
        two("busy_mean", "busy_peak", percent, "peak"),
        two("power_mean_w", "power_peak_w", watts, "peak"),
        two("clock_mean_mhz", "clock_min_mhz", lambda value: f"{significant(value, 4)} MHz", "lowest"),
        Column(
            "Temperature",
            lambda device: tables.number(device["temperature_peak_c"], lambda value: f"{significant(value)} °C"),
            numeric=True,
            explained="Highest sample.",
        ),
        two("memory_used_peak_bytes", "memory_used_before_bytes", binary, "before"),
        Column("Throttled by", throttled),
    ]
    return tables.table("Devices over the steady window", columns, devices, searchable=False) if devices else None


def _probe(row: Row) -> list[Fact]:
    """Return the matrix rates that the probe measured; empty if the devices were not probed."""
    before, after = row["probe_flop_per_s"], row["probe_after_flop_per_s"]
    if before is None:
        return []
    show = QUANTITIES["probe_flop_per_s"].text
    change = "" if after is None else f"{after / before - 1:+.1%} compared with before"
    return [
        Fact("Before training", show(before), "matrix products in the run's own format, all devices"),
        Fact("After training", show(after), change),
    ]


def _reasons(catalogue: Catalogue, row: Row) -> dict[str, str]:
    """Return the formula of each derived figure, or the reason why it is unknown."""
    facts = catalogue.facts.get(row["result_id"], ())
    return {fact["name"]: fact["reason"] for fact in facts if fact["topic"] == "derived" and fact["reason"]}


def _figures(reasons: dict[str, str], row: Row, names: tuple[str, ...], title: str) -> Table | None:
    columns: list[Column[str]] = [
        Column("Figure", lambda name: tables.text(QUANTITIES[name].label)),
        Column("Value", lambda name: tables.quantity(name, row[name]), numeric=True),
        Column("Formula, or what is missing", lambda name: Cell(reasons[name])),
    ]
    known = [name for name in names if name in reasons]
    return tables.table(title, columns, known, searchable=False, stacked=True) if known else None


def _flops(catalogue: Catalogue, row: Row) -> Table | None:
    """Return the FLOPs of a mean steady step by class; classes without work are left out."""
    lines = [line for line in catalogue.seen("flops", row["result_id"]) if line["flop"]]
    total = sum(line["flop"] for line in lines)
    columns: list[Column[Row]] = [
        text_column("Work", "class", lambda name: FLOP_CLASSES.get(name, name)),
        Column("FLOPs", lambda line: tables.number(line["flop"], flop), numeric=True),
        Column("Share", lambda line: Cell(f"{line['flop'] / total:.1%}", sort=line["flop"]), numeric=True),
        Column("Formula", lambda line: Cell(line["formula"])),
    ]
    return tables.table("FLOPs of a step", columns, lines, searchable=False, stacked=True) if lines else None


def _memory(catalogue: Catalogue, row: Row) -> Table | None:
    """Return predicted and measured memory: peaks first, then tensors that were measured one by one."""

    def error(line: Row) -> float | None:
        predicted, measured = line["predicted_bytes"], line["measured_bytes"]
        return predicted / measured - 1 if predicted is not None and measured else None

    lines = [line for line in catalogue.seen("memory_lines", row["result_id"]) if line["kind"] != "part"]
    columns: list[Column[Row]] = [
        text_column("Memory", "line", wording.sentence),
        Column("Predicted", lambda line: tables.number(line["predicted_bytes"], binary), numeric=True),
        Column("Measured", lambda line: tables.number(line["measured_bytes"], binary), numeric=True),
        Column("Prediction error", lambda line: tables.number(error(line), lambda share: f"{share:+.1%}"), numeric=True),
        Column("Formula and method", lambda line: Cell(line["note"])),
    ]
    peaks_first = sorted(lines, key=lambda line: line["kind"] != "peak")
    return tables.table("Memory, predicted and measured", columns, peaks_first, searchable=False, stacked=True) if lines else None


def _memory_parts(catalogue: Catalogue, row: Row) -> Table | None:
    """Return the parts of the predicted peak that cannot be measured one by one."""
    parts = [line for line in catalogue.seen("memory_lines", row["result_id"]) if line["kind"] == "part"]
    columns: list[Column[Row]] = [
        text_column("Part", "line", wording.sentence),
        Column("Predicted", lambda line: tables.number(line["predicted_bytes"], binary), numeric=True),
        Column("Formula", lambda line: Cell(line["note"])),
    ]
    return tables.table("Parts of the predicted peak", columns, parts, searchable=False, stacked=True) if parts else None


def _provenance(row: Row) -> list[Fact]:
    return [
        Fact("Result", row["result_id"], "permanent id: the content hash of the file"),
        Fact("File", row["file"]),
        Fact("SHA-256", row["sha256"]),
        Fact("Started", wording.moment(row["started_us"])),
        Fact("Division", wording.plain(row["division"]), MEANING[Division(row["division"])]),
        Fact("Harness", wording.plain(row["harness_version"]), f"commit {row['harness_commit']}" if row["harness_commit"] else ""),
    ]
