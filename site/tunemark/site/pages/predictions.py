"""Errors of predictions: throughput by cross-validation, and memory compared with published and measured peaks."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median, quantiles

from tunemark.schema import formats
from tunemark.site import tables, wording
from tunemark.site.page import Page, accelerator_path, model_path, result_path
from tunemark.site.queries import Catalogue, grouped
from tunemark.site.results_table import MOST_RESULTS
from tunemark.site.tables import Cell, Column, Row, Table, text_column

ERRORS_CSV = "data/prediction_errors.csv"
CRUMBS = (("Guide", "guide/index"),)
LARGEST_MEDIAN = 0.20
LEAST_COVERED, MOST_COVERED = 0.85, 0.95
SHOWN_PARAMETERS = ("factor", "factor of level", "slope", "level", "level, method", "stack", "generation", "release")
"""Kinds of parameters shown on the page; the database has all of them."""


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the page of prediction errors."""
    context = {**_throughput(catalogue), **_memory(catalogue), **_own_memory(catalogue), **_rules(catalogue)}
    yield Page("guide/predictions", "Prediction errors", "predictions.md.j2", context, CRUMBS)


class CardCells:
    """Cells that name accelerators and models and link to their pages."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._accelerators = {row["accelerator"]: row["name"] for row in catalogue.accelerators}
        self._models = {row["model"]: row["name"] for row in catalogue.models}

    def accelerator(self, key: str) -> Cell:
        """Return the cell of an accelerator."""
        return tables.text(self._accelerators.get(key, key), href=accelerator_path(key) if key in self._accelerators else None)

    def model(self, key: str) -> Cell:
        """Return the cell of a model."""
        return tables.text(self._models.get(key, key), href=model_path(key) if key in self._models else None)

    def result(self, row: Row) -> Cell:
        """Return the cell that links to a result by its devices."""
        name = self.accelerator(row["accelerator"]).text if row["accelerator"] else "unknown"
        return tables.text(
            f"{name}{wording.TIMES}{row['accelerator_count']}",
            small=row["result_id"],
            href=result_path(row["result_id"]),
            sort=row["result_id"],
        )


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Errors of a group of predictions. Shares are None for an empty group."""

    labels: tuple[Cell, ...]
    rows: int
    median_error: float | None
    worst_error: float | None
    coverage: float | None
    """Share of results inside their 90% interval."""
    no_data: int
    """Results without a prediction."""


def _percent(share: float | None, decimals: int = 1) -> Cell:
    return tables.number(share, lambda value: f"{value:.{decimals}%}")


FIGURES: tuple[Column[ErrorSummary], ...] = (
    Column("Results", lambda item: tables.number(item.rows), numeric=True),
    Column("Median error", lambda item: _percent(item.median_error), numeric=True, explained="Median of the absolute errors."),
    Column("Worst error", lambda item: _percent(item.worst_error), numeric=True),
    Column("Inside", lambda item: _percent(item.coverage), numeric=True, explained="Share of results inside their predicted 90% interval."),
    Column(
        "No data", lambda item: tables.number(item.no_data), numeric=True, explained="Results without any similar result among the others."
    ),
)


def _label_columns(*heads: str) -> list[Column[ErrorSummary]]:
    return [Column(head, lambda item, index=index: item.labels[index]) for index, head in enumerate(heads)]  # type: ignore[misc]


def _throughput(catalogue: Catalogue) -> dict[str, object]:
    accuracy, errors = catalogue.predictions["throughput_accuracy"], catalogue.predictions["throughput_errors"]
    if not any(row["rows"] for row in accuracy):
        return {"summary": None}
    cells = CardCells(catalogue)
    stacks = Counter(row["stack"] for row in errors if row["left_out"] == "accelerator")
    return {
        "verdict": _verdict(accuracy),
        "summary": _summary("Errors of throughput", [row for row in accuracy if row["stack"] == "all"]),
        "software": _summary("Errors by software", [row for row in accuracy if row["stack"] != "all"]),
        "methods": _methods(errors),
        "sources": _left_out(errors, "source", lambda row: tables.text(row["left_out_group"])),
        "accelerators": _left_out(errors, "accelerator", lambda row: cells.accelerator(row["accelerator"])),
        "models": _left_out(errors, "model", lambda row: cells.model(row["model"])),
        "rows": _each_result(errors, cells),
        "parameters": _parameters(catalogue.predictions["throughput_model"]),
        "used": len({row["result_id"] for row in errors}),
        "most": stacks.most_common(1)[0],
        "refused": _refused(catalogue.predictions["throughput_refused"]),
    }


def _verdict(accuracy: list[Row]) -> str:
    """Return a sentence on the goal: met or missed over all results, by what was left out."""
    overall = [
        f"{'software level' if row['left_out'] == 'level' else row['left_out']} left out: {_goal(row)}"
        for row in accuracy
        if row["stack"] == "all" and row["rows"]
    ]
    return f"Over all results: {'; '.join(overall)}."


def _goal(row: Row) -> str:
    close = row["median_error"] <= LARGEST_MEDIAN
    return "met" if close and LEAST_COVERED <= row["coverage"] <= MOST_COVERED else "error met, interval missed" if close else "missed"


def _summary(title: str, accuracy: list[Row]) -> Table:
    def goal(item: ErrorSummary) -> Cell:
        return item.labels[2]

    def summary(row: Row) -> ErrorSummary:
        verdict = _goal(row) if row["rows"] else ""
        cell = Cell(verdict, badge="ok" if verdict == "met" else "ambiguous", sort=verdict) if verdict else tables.text("no data")
        labels = (tables.text(row["left_out"]), tables.text(row["stack"]), cell)
        return ErrorSummary(labels, row["rows"], row["median_error"], row["worst_error"], row["coverage"], row["no_data"])

    columns = [*_label_columns("Left out", "Software"), *FIGURES, Column("Goal", goal)]
    return tables.table(title, columns, map(summary, accuracy), stacked=True)


def _methods(errors: list[Row]) -> Table:
    groups = sorted(grouped(errors, lambda row: (row["left_out"], row["method"])).items())
    items = (
        _summarise((tables.text(left_out), tables.text(wording.METHODS.get(method, method))), rows) for (left_out, method), rows in groups
    )
    return tables.table("Errors by method", [*_label_columns("Left out", "Method"), *FIGURES], items, stacked=True)


def _left_out(errors: list[Row], left_out: str, name: Callable[[Row], Cell]) -> Table:
    rows = [row for row in errors if row["left_out"] == left_out]
    groups = grouped(rows, lambda row: (row["left_out_group"], row["stack"]))
    items = (_summarise((name(members[0]), tables.text(stack)), members) for (_, stack), members in groups.items())
    columns = [*_label_columns(left_out.capitalize(), "Software"), *FIGURES]
    return tables.table(f"Errors with the {left_out} left out", columns, items, interactive=True)


def _summarise(labels: tuple[Cell, ...], rows: list[Row]) -> ErrorSummary:
    errors = [abs(row["error"]) for row in rows if row["error"] is not None]
    covered = [row["covered"] for row in rows if row["covered"] is not None]
    return ErrorSummary(
        labels,
        len(errors),
        median(errors) if errors else None,
        max(errors, default=None),
        sum(covered) / len(covered) if covered else None,
        len(rows) - len(errors),
    )


def _each_result(errors: list[Row], cells: CardCells) -> Table:
    columns: list[Column[Row]] = [
        Column("Result", cells.result),
        Column("Model", lambda row: cells.model(row["model"])),
        text_column("Method", "method"),
        text_column("Left out", "left_out"),
        Column(
            "Tokens/s",
            lambda row: tables.number(row["tokens_per_s"], formats.significant),
            numeric=True,
            explained="Measured or published, all devices.",
        ),
        Column("Predicted tokens/s", _predicted_cell, numeric=True, explained="Predicted from all other results, with a 90% interval."),
        Column("Error", lambda row: tables.number(row["error"], lambda share: f"{share:+.0%}"), numeric=True),
        Column("Inside", _inside_cell),
    ]
    worst = sorted(errors, key=lambda row: (row["error"] is None, -abs(row["error"] or 0), row["left_out"], row["result_id"]))
    return tables.table(
        "Each result left out",
        columns,
        worst,
        interactive=True,
        searchable=False,
        most=MOST_RESULTS,
        all_rows=("All rows as CSV", ERRORS_CSV),
    )


def _predicted_cell(row: Row) -> Cell:
    predicted = row["predicted_tokens_per_s"]
    if predicted is None:
        return Cell("no data", small=row["no_data"] or "")
    interval = f"{formats.significant(row['predicted_low'])} to {formats.significant(row['predicted_high'])}"
    return Cell(formats.significant(predicted), small=interval, sort=predicted)


def _inside_cell(row: Row) -> Cell:
    if row["predicted_tokens_per_s"] is None:
        return tables.text(None)
    return Cell("yes", badge="ok", sort="yes") if row["covered"] else Cell("no", badge="ambiguous", sort="no")


def _parameters(rows: list[Row]) -> Table:
    columns: list[Column[Row]] = [
        text_column("Parameter", "parameter"),
        Column(
            "Times longer",
            lambda row: Cell(f"{row['value']:.2f}", small=f"{row['low']:.2f} to {row['high']:.2f}", sort=row["value"]),
            numeric=True,
            explained="For a factor, 1 is the limit of the card. For an effect, 1 is the mean of all results.",
        ),
        Column("Results", lambda row: tables.number(row["rows"]), numeric=True, explained="Results that determine the parameter."),
        text_column("Meaning", "meaning"),
    ]
    shown = [row for row in rows if row["kind"] in SHOWN_PARAMETERS]
    by_kind = sorted(shown, key=lambda row: SHOWN_PARAMETERS.index(row["kind"]))
    return tables.table("Parameters", columns, by_kind, interactive=True, searchable=False, stacked=True)


def _refused(rows: list[Row]) -> Table | None:
    columns: list[Column[tuple[str, int]]] = [
        Column("Reason", lambda item: tables.text(item[0])),
        Column("Results", lambda item: tables.number(item[1]), numeric=True),
    ]
    counted = sorted(Counter(row["reason"] for row in rows).items())
    return tables.table("Results not used for calibration", columns, counted, searchable=False) if rows else None


def _memory(catalogue: Catalogue) -> dict[str, object]:
    """Return the tables of the memory model compared with published peaks."""
    rows, cells = catalogue.predictions["memory_errors"], CardCells(catalogue)
    if not rows:
        return {"memory": None}
    columns: list[Column[Row]] = [
        Column("Result", cells.result),
        Column("Model", lambda row: cells.model(row["model"])),
        text_column("Method", "method"),
        Column("Devices", lambda row: tables.number(row["accelerator_count"]), numeric=True),
        text_column("Figure", "quantity"),
        Column("Published", lambda row: tables.number(row["published_bytes"], formats.gb), numeric=True),
        Column(
            "Predicted",
            lambda row: Cell(
                formats.gb(row["predicted_bytes"]),
                small=f"{formats.gb(row['predicted_low'])} to {formats.gb(row['predicted_high'])}",
                sort=row["predicted_bytes"],
            ),
            numeric=True,
        ),
        Column("Error", lambda row: _percent(row["error"]), numeric=True),
    ]
    return {
        "memory": _error_table("Errors of the memory model by document and figure", "Document", _by_source(rows), decimals=1),
        "memory_rows": tables.table("Memory, result by result", columns, rows, interactive=True, searchable=False),
        "reading": " ".join(dict.fromkeys(row["reading"] for row in rows if row["reading"])),
    }


def _rules(catalogue: Catalogue) -> dict[str, object]:
    """Return the errors of calculators and rules of thumb on the same results as our own models, by kind."""
    rows = catalogue.predictions["rule_errors"]
    return {f"{kind}_rules": _rule_table(kind, [row for row in rows if row["kind"] == kind]) for kind in ("memory", "speed")}


def _rule_table(kind: str, rows: list[Row]) -> Table | None:
    columns: list[Column[tuple[Row, list[float]]]] = [
        Column("Rule", lambda group: tables.text(group[0]["rule"])),
        Column("Results", lambda group: tables.number(len(group[1])), numeric=True),
        Column(
            "Median error", lambda group: _percent(median(map(abs, group[1]))), numeric=True, explained="Median of the absolute errors."
        ),
        Column(
            "Middle half of the errors",
            lambda group: _middle_half(group[1]),
            explained="From the lower to the upper quartile of the errors.",
        ),
        Column("Formula", lambda group: tables.text(group[0]["formula"], small=group[0]["source"])),
    ]
    groups = grouped(rows, lambda row: row["rule"])
    items = [(members[0], [row["error"] for row in members]) for members in groups.values()]
    items.sort(key=lambda group: median(map(abs, group[1])))
    return tables.table(f"Rules for {kind}", columns, items, stacked=True) if items else None


def _middle_half(errors: list[float]) -> Cell:
    low, high = quantiles(errors * 2 if len(errors) == 1 else errors, n=4, method="inclusive")[::2]
    return Cell(f"{low:+.0%} to {high:+.0%}", sort=low)


def _by_source(rows: list[Row]) -> list[tuple[str, list[float]]]:
    """Return the absolute errors by document, figure, and one or several devices."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        devices = "one device" if row["accelerator_count"] == 1 else "several devices"
        groups.setdefault(f"{row['result_id'][:3]}, {row['quantity']}, {devices}", []).append(abs(row["error"]))
    return sorted(groups.items())


def _own_memory(catalogue: Catalogue) -> dict[str, object]:
    """Return the errors of predicted memory in measured runs: single tensors, and peaks where a device allocator reports them."""
    lines = [
        line
        for row in catalogue.results_where(source="measured", status="ok")
        for line in catalogue.seen("memory_lines", row["result_id"])
        if line["measured_bytes"] and line["predicted_bytes"] is not None
    ]
    per_line = [
        (name, [abs(line["predicted_bytes"] / line["measured_bytes"] - 1) for line in lines if line["line"] == name])
        for name in dict.fromkeys(line["line"] for line in lines)
    ]
    return {
        "weighed": _error_table("Memory of measured runs", "Tensors", per_line, decimals=2) if lines else None,
        "peaks": sum(line["kind"] == "peak" for line in lines),
    }


def _error_table(title: str, head: str, groups: list[tuple[str, list[float]]], *, decimals: int) -> Table:
    columns: list[Column[tuple[str, list[float]]]] = [
        Column(head, lambda group: tables.text(group[0])),
        Column("Results", lambda group: tables.number(len(group[1])), numeric=True),
        Column("Median error", lambda group: _percent(median(group[1]) if group[1] else None, decimals), numeric=True),
        Column("Worst error", lambda group: _percent(max(group[1], default=None), decimals), numeric=True),
    ]
    return tables.table(title, columns, groups)
