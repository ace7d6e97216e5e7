"""Series of runs: a sweep, a frontier, an A/B comparison or repeats, each a page with all of its runs."""

from collections.abc import Iterator

from tunemark.schema.formats import MISSING, percent
from tunemark.schema.statistics.comparison import ARMS, Change, arm_run, paired_change
from tunemark.schema.statistics.intervals import share_difference
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS
from tunemark.site import tables, wording
from tunemark.site.page import Fact, Page, result_path, study_path, workload_path
from tunemark.site.pages.measured import STUDIES
from tunemark.site.queries import Catalogue, Row
from tunemark.site.results_table import accuracy_cell, cost_cell, memory_cell, rate_cell, status_cell
from tunemark.site.tables import Cell, Column, Line, Table

CRUMBS = (("Studies", "studies/index"),)
OUT_OF_MEMORY = ("oom_device", "oom_host")
MEANING = {
    "sweep": "One setting after the other is varied; a point that fails is a result and stops nothing.",
    "frontier": "The largest batch and sequence that fit, found by doubling and halving in fresh processes.",
    "ab": "Two arms run in turn in fresh processes, so that what disturbs a machine for minutes falls out of their ratio.",
    "repeat": "The same run again in fresh processes: how far results of one machine differ.",
}


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the list of studies and a page for each."""
    yield Page("studies/index", "Studies", "studies.md.j2", {"table": _list(catalogue), "meaning": MEANING, "names": STUDIES})
    for study in catalogue.studies:
        runs = sorted(catalogue.results_where(study_id=study["study_id"]), key=lambda row: (row["study_position"] or 0, row["result_id"]))
        context = {
            "meaning": MEANING.get(study["study_kind"], ""),
            "facts": _facts(study),
            "table": _table(catalogue, runs),
            "verdict": _verdict(catalogue, study["study_kind"], runs),
        }
        yield Page(study_path(study["study_id"]), _title(study), "study.md.j2", context, CRUMBS)


def _title(study: Row) -> str:
    return wording.sentence(f"{STUDIES.get(study['study_kind'], study['study_kind'])} of {study['workload']}")


def _list(catalogue: Catalogue) -> Table | None:
    columns = [
        Column("Study"),
        Column("Workload"),
        Column("Device"),
        Column("Points", numeric=True),
        Column("Runs", numeric=True),
        Column("Did not end well", numeric=True),
        Column("Date", tight=True),
    ]
    lines = (
        Line(
            (
                tables.text(STUDIES.get(row["study_kind"], row["study_kind"]), href=study_path(row["study_id"]), small=row["study_id"]),
                tables.text(row["workload"], href=workload_path(row["workload"])),
                tables.text(row["accelerator_name"]),
                *(Cell(str(row[name]), sort=row[name]) for name in ("points", "runs", "failed")),
                tables.text(wording.day(row["started_us"])),
            )
        )
        for row in catalogue.studies
    )
    return tables.table("Studies", columns, lines, interactive=True) if catalogue.studies else None


def _facts(study: Row) -> list[Fact]:
    return [
        Fact("Workload", study["workload"], href=workload_path(study["workload"])),
        Fact("Device", wording.plain(study["accelerator_name"])),
        Fact("Points", wording.plain(study["points"])),
        Fact("Runs", wording.plain(study["runs"]), f"{study['failed']} did not end well" if study["failed"] else "all ended well"),
        Fact("Begun", wording.moment(study["started_us"])),
        Fact("Study", study["study_id"], "shared by all of its runs"),
    ]


def _table(catalogue: Catalogue, runs: list[Row]) -> Table:
    first = next((row["tokens_per_s"] for row in runs if row["tokens_per_s"]), None)
    judged = any(row["accuracy"] is not None for row in runs)
    columns = [
        Column("Point", explained="Leads to the result."),
        Column("Status"),
        tables.head("tokens_per_s"),
        Column("Against the first", numeric=True, explained="Tokens a second over those of the first point that has any."),
        tables.head("step_time_s"),
        tables.head("peak_memory_bytes"),
        tables.head("train_loss"),
        *([tables.head("accuracy")] if judged else []),
        Column("Cost per 1k samples", numeric=True),
    ]
    return tables.table(
        "Runs of this study", columns, (_line(catalogue, row, first, judged=judged) for row in runs), interactive=True, searchable=False
    )


def _line(catalogue: Catalogue, row: Row, first: float | None, *, judged: bool) -> Line:
    against = row["tokens_per_s"] / first if row["tokens_per_s"] and first else None
    point = Cell(row["study_point"], small=f"run {row['study_position']}", href=result_path(row["result_id"]), sort=row["study_position"])
    cells = (
        point,
        status_cell(row),
        rate_cell(row, "tokens_per_s"),
        tables.quantity("relative_speed", against),
        tables.quantity("step_time_s", row["step_time_s"]),
        memory_cell(row),
        tables.quantity("train_loss", row["train_loss"]),
        *([accuracy_cell(row)] if judged else []),
        cost_cell(catalogue.cheapest.get(row["result_id"])),
    )
    return Line(cells, last=row["failed"])


def _verdict(catalogue: Catalogue, kind: str, runs: list[Row]) -> str:
    """Return what the series says, in a sentence; empty where it is only a table."""
    if kind == "ab":
        return _of_arms([row for row in runs if _counts(catalogue, row)])
    rates = [row["tokens_per_s"] for row in runs if row["tokens_per_s"] and not row["failed"]]
    if kind == "frontier":
        fits = [row["study_point"] for row in runs if not row["failed"]]
        full = [row["study_point"] for row in runs if row["status"] in OUT_OF_MEMORY]
        return f"Fits: {'; '.join(fits) or 'nothing'}. Out of memory: {'; '.join(full) or 'nothing that was tried'}."
    if kind == "repeat" and len(rates) > 1:
        return f"Tokens/s of {len(rates)} runs differ by {percent(max(rates) / min(rates) - 1)} from the lowest to the highest."
    return ""


def _counts(catalogue: Catalogue, row: Row) -> bool:
    """Return whether a run's speed counts: it ended well, is long enough to be compared, and no check failed."""
    checked = all(gate["passed"] is not False for gate in catalogue.seen("gates", row["result_id"]))
    return not row["failed"] and (row["steady_steps"] or 0) >= RANKABLE_STEPS and checked


def _of_arms(runs: list[Row]) -> str:
    """Return the verdict on tokens a second of arm B against arm A, from the pairs of which both runs count."""
    arms: dict[str, dict[int, Row]] = {arm: {} for arm in ARMS}
    settings = dict.fromkeys(ARMS, MISSING)
    for row in runs:
        run = arm_run(row["study_point"])
        if run is not None and run.pair and row["tokens_per_s"]:
            settings[run.arm] = run.settings
            arms[run.arm][run.pair] = row
    pairs = sorted(set(arms["a"]) & set(arms["b"]))
    if not pairs:
        return f"No pair has two runs that ended well, pass their checks and have {RANKABLE_STEPS} steady steps, so there is no verdict."
    a, b = ([arms[arm][pair] for pair in pairs] for arm in ARMS)
    change = paired_change([row["tokens_per_s"] for row in a], [row["tokens_per_s"] for row in b])
    judged = [(one, other) for one, other in zip(a, b, strict=True) if _judged(one) and _judged(other)]
    return (
        f"Tokens/s of B ({settings['b']}) against A ({settings['a']}): {_said(change)}."
        f"{_accuracies([one for one, _ in judged], [other for _, other in judged])}"
    )


def _judged(row: Row) -> bool:
    return row["accuracy"] is not None and bool(row["evaluation_rows"])


def _accuracies(a: list[Row], b: list[Row]) -> str:
    """Return whether the mean accuracies of two arms differ; empty where nothing was classified.

    All runs of an arm classify the same rows, so that they say no more of other rows than one of them does.
    """
    if not a or not b:
        return ""
    means = [sum(row["accuracy"] for row in rows) / len(rows) for rows in (a, b)]
    found = share_difference(means[0], min(row["evaluation_rows"] for row in a), means[1], min(row["evaluation_rows"] for row in b))
    verdict = "differs" if found.significant else "no significant difference"
    errors = f"standard error {wording.standard_error('accuracy', found.standard_error)}"
    return f" Accuracy: {verdict}, {means[0]:.1%} and {means[1]:.1%} ({100 * found.difference:+.1f} points, {errors})."


def _said(change: Change) -> str:
    value, interval = change.change, ""
    if value.bounded:
        interval = f", 95% interval {value.low:+.1%} to {value.high:+.1%}"
    return f"{change.verdict}, {value.value:+.1%}{interval}, from {change.pairs} pair{'s' * (change.pairs != 1)}"
