"""Studies (sweep, frontier, A/B comparison, repeats): a list, and a page for each with all of its runs."""

from collections.abc import Iterator

from tunemark.schema.formats import MISSING, percent
from tunemark.schema.statistics.comparison import ARMS, Change, arm_run, paired_change
from tunemark.schema.statistics.intervals import share_difference
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS
from tunemark.site import tables, wording
from tunemark.site.page import Fact, Page, result_path, study_path, workload_path
from tunemark.site.pages.measured import STUDIES
from tunemark.site.queries import Catalogue
from tunemark.site.results_table import accuracy_cell, cost_cell, memory_cell, rate_cell, status_cell
from tunemark.site.tables import Column, Row, Table, quantity_column, text_column

CRUMBS = (("Studies", "studies/index"),)
OUT_OF_MEMORY = ("oom_device", "oom_host")
MEANING = {
    "sweep": "Vary one or several settings. A point that fails is a result and does not stop the others.",
    "frontier": "Find the largest batch and sequence length that fit, by doubling and bisection in fresh processes.",
    "ab": "Run two arms in turn in fresh processes, so that slow drifts of the machine cancel in their ratio.",
    "repeat": "Repeat the same run in fresh processes to see how much results on one machine vary.",
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
    columns: list[Column[Row]] = [
        Column(
            "Study",
            lambda row: tables.text(
                STUDIES.get(row["study_kind"], row["study_kind"]), href=study_path(row["study_id"]), small=row["study_id"]
            ),
        ),
        Column("Workload", lambda row: tables.text(row["workload"], href=workload_path(row["workload"]))),
        text_column("Device", "accelerator_name"),
        Column("Points", lambda row: tables.number(row["points"]), numeric=True),
        Column("Runs", lambda row: tables.number(row["runs"]), numeric=True),
        Column("Failed", lambda row: tables.number(row["failed"]), numeric=True),
        Column("Date", lambda row: tables.text(wording.day(row["started_us"])), tight=True),
    ]
    return tables.table("Studies", columns, catalogue.studies, interactive=True) if catalogue.studies else None


def _facts(study: Row) -> list[Fact]:
    return [
        Fact("Workload", study["workload"], href=workload_path(study["workload"])),
        Fact("Device", wording.plain(study["accelerator_name"])),
        Fact("Points", wording.plain(study["points"])),
        Fact("Runs", wording.plain(study["runs"]), f"{study['failed']} failed" if study["failed"] else "all succeeded"),
        Fact("Started", wording.moment(study["started_us"])),
        Fact("Study", study["study_id"], "shared by all of its runs"),
    ]


def _table(catalogue: Catalogue, runs: list[Row]) -> Table:
    first = next((row["tokens_per_s"] for row in runs if row["tokens_per_s"]), None)
    classified = any(row["accuracy"] is not None for row in runs)
    columns: list[Column[Row]] = [
        Column(
            "Point",
            lambda row: tables.text(
                row["study_point"],
                small=f"run {row['study_position']}",
                href=result_path(row["result_id"]),
                sort=row["study_position"],
            ),
            explained="Links to the result.",
        ),
        Column("Status", status_cell),
        quantity_column("tokens_per_s", lambda row: rate_cell(row, "tokens_per_s")),
        Column(
            "Relative to the first",
            lambda row: tables.quantity("relative_speed", row["tokens_per_s"] / first if row["tokens_per_s"] and first else None),
            numeric=True,
            explained="Tokens/s divided by the tokens/s of the first point with a rate.",
        ),
        quantity_column("step_time_s"),
        quantity_column("peak_memory_bytes", memory_cell),
        quantity_column("train_loss"),
        *([quantity_column("accuracy", accuracy_cell)] if classified else []),
        Column("Cost per 1k samples", lambda row: cost_cell(catalogue.basis_costs.get(row["result_id"])), numeric=True),
    ]
    return tables.table("Runs of this study", columns, runs, last=lambda row: row["failed"], interactive=True, searchable=False)


def _verdict(catalogue: Catalogue, kind: str, runs: list[Row]) -> str:
    """Return the result of a study in a sentence; empty if its table is the result."""
    if kind == "ab":
        return _ab_verdict([row for row in runs if _counts(catalogue, row)])
    rates = [row["tokens_per_s"] for row in runs if row["tokens_per_s"] and not row["failed"]]
    if kind == "frontier":
        fits = [row["study_point"] for row in runs if not row["failed"]]
        full = [row["study_point"] for row in runs if row["status"] in OUT_OF_MEMORY]
        return f"Fits: {'; '.join(fits) or 'nothing'}. Out of memory: {'; '.join(full) or 'nothing that was tried'}."
    if kind == "repeat" and len(rates) > 1:
        return f"Tokens/s of {len(rates)} runs differ by {percent(max(rates) / min(rates) - 1)} from the lowest to the highest."
    return ""


def _counts(catalogue: Catalogue, row: Row) -> bool:
    """Return True if a run's speed counts: it succeeded, is long enough to be compared, and no check failed."""
    checked = all(gate["passed"] is not False for gate in catalogue.seen("gates", row["result_id"]))
    return not row["failed"] and (row["steady_steps"] or 0) >= RANKABLE_STEPS and checked


def _ab_verdict(runs: list[Row]) -> str:
    """Return the verdict on the tokens/s of arm B compared with arm A, from the pairs in which both runs count."""
    arms: dict[str, dict[int, Row]] = {arm: {} for arm in ARMS}
    settings = dict.fromkeys(ARMS, MISSING)
    for row in runs:
        run = arm_run(row["study_point"])
        if run is not None and run.pair and row["tokens_per_s"]:
            settings[run.arm] = run.settings
            arms[run.arm][run.pair] = row
    pairs = sorted(set(arms["a"]) & set(arms["b"]))
    if not pairs:
        return f"No verdict: no pair has two successful runs with passed checks and {RANKABLE_STEPS} steady steps."
    a, b = ([arms[arm][pair] for pair in pairs] for arm in ARMS)
    change = paired_change([row["tokens_per_s"] for row in a], [row["tokens_per_s"] for row in b])
    classified = [(first, second) for first, second in zip(a, b, strict=True) if _has_accuracy(first) and _has_accuracy(second)]
    accuracy = _accuracy_verdict([first for first, _ in classified], [second for _, second in classified])
    return f"Tokens/s of B ({settings['b']}) compared with A ({settings['a']}): {_change(change)}.{accuracy}"


def _has_accuracy(row: Row) -> bool:
    return row["accuracy"] is not None and bool(row["evaluation_rows"])


def _accuracy_verdict(a: list[Row], b: list[Row]) -> str:
    """Return the comparison of the mean accuracies of two arms; empty if nothing was classified.

    All runs of an arm classify the same rows, so their mean has the standard error of a single run.
    """
    if not a or not b:
        return ""
    means = [sum(row["accuracy"] for row in rows) / len(rows) for rows in (a, b)]
    test = share_difference(means[0], min(row["evaluation_rows"] for row in a), means[1], min(row["evaluation_rows"] for row in b))
    verdict = "differs" if test.significant else "no significant difference"
    error = f"standard error {wording.standard_error('accuracy', test.standard_error)}"
    return f" Accuracy: {verdict}, {means[0]:.1%} and {means[1]:.1%} ({100 * test.difference:+.1f} points, {error})."


def _change(change: Change) -> str:
    value = change.change
    interval = f", 95% interval {value.low:+.1%} to {value.high:+.1%}" if value.bounded else ""
    return f"{change.verdict}, {value.value:+.1%}{interval}, from {change.pairs} pair{'s' * (change.pairs != 1)}"
