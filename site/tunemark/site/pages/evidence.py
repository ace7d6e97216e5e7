"""What a measured run saw beside its steps, as tables: what really ran, checks, processes, devices, its study."""

from collections.abc import Iterable

from tunemark.schema.formats import MISSING, binary, percent, significant, watts
from tunemark.schema.quantities import QUANTITIES
from tunemark.site import tables, wording
from tunemark.site.page import Fact, result_path, study_path
from tunemark.site.queries import Catalogue, Row
from tunemark.site.tables import Cell, Column, Line, Table

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
