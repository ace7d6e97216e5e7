"""The memory model beside published peaks and beside two other calculators; and what both tables of errors share."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from statistics import median

from tunemark.schema import formats
from tunemark.site import tables, wording
from tunemark.site.page import Page, accelerator_path, model_path, result_path
from tunemark.site.queries import Catalogue, Row
from tunemark.site.tables import Cell, Column, Line, Table

CALCULATORS = (
    ("tunemark estimate", "predicted_bytes"),
    ("formula of document 004", "formula_004_bytes"),
    ("accelerate estimate-memory", "accelerate_bytes"),
)


class Names:
    """Names for readers of cards, and where their pages are."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._accelerators = {row["accelerator"]: row["name"] for row in catalogue.accelerators}
        self._models = {row["model"]: row["name"] for row in catalogue.models}

    def accelerator(self, key: str) -> Cell:
        """Return the cell of an accelerator."""
        return tables.text(self._accelerators.get(key, key), href=accelerator_path(key) if key in self._accelerators else None)

    def model(self, key: str) -> Cell:
        """Return the cell of a model."""
        return tables.text(self._models.get(key, key), href=model_path(key) if key in self._models else None)


def percent(share: float | None, *, signed: bool = False) -> Cell:
    """Return the cell of a share; a dash when unknown."""
    if share is None:
        return tables.text(None)
    return Cell(f"{share:+.0%}" if signed else f"{share:.1%}", sort=share)


def memory_context(catalogue: Catalogue) -> dict[str, object]:
    """Return what a page tells of the memory model; nothing where the database has no published peak."""
    rows, own = catalogue.predictions["memory_errors"], _own(catalogue)
    if not rows:
        return {"memory": None, **own}
    names = Names(catalogue)
    columns = [
        Column("Calculator"),
        Column("Results", numeric=True),
        Column("Median error", numeric=True),
        Column("Worst error", numeric=True),
    ]
    return {
        "memory": tables.table("Errors of memory", columns, (_calculator(rows, *one) for one in CALCULATORS)),
        "memory_rows": _memory_rows(rows, names),
        "reading": " ".join(dict.fromkeys(row["reading"] for row in rows if row["reading"])),
        **own,
    }


def _own(catalogue: Catalogue) -> dict[str, object]:
    """Return how near predictions are to what own runs weighed: tensors one by one, and peaks where a device's allocator tells them."""
    lines = [
        line
        for row in catalogue.results_where(source="measured", status="ok")
        for line in catalogue.seen("memory_lines", row["result_id"])
        if line["measured_bytes"] and line["predicted_bytes"] is not None
    ]
    columns = [
        Column("What was weighed"),
        Column("Results", numeric=True),
        Column("Median error", numeric=True),
        Column("Worst error", numeric=True),
    ]
    made = (_weighed(name, [line for line in lines if line["line"] == name]) for name in dict.fromkeys(line["line"] for line in lines))
    return {
        "weighed": tables.table("Memory of own runs", columns, made) if lines else None,
        "peaks": sum(line["kind"] == "peak" for line in lines),
    }


def _weighed(name: str, lines: list[Row]) -> Line:
    errors = [abs(line["predicted_bytes"] / line["measured_bytes"] - 1) for line in lines]
    return Line(
        (
            tables.text(name),
            Cell(str(len(errors)), sort=len(errors)),
            *(Cell(f"{error:.2%}", sort=error) for error in (median(errors), max(errors))),
        )
    )


def _calculator(rows: Iterable[Row], name: str, column: str) -> Line:
    errors = [abs(row[column] / row["published_bytes"] - 1) for row in rows if row[column] is not None]
    figures = (percent(median(errors)), percent(max(errors))) if errors else (tables.text(None), tables.text(None))
    return Line((tables.text(name), Cell(str(len(errors)), sort=len(errors)), *figures))


def _memory_rows(rows: list[Row], names: Names) -> Table:
    columns = [Column("Result"), Column("Model"), Column("Method"), Column("Published", numeric=True)]
    columns += [Column(name, numeric=True) for name, _ in CALCULATORS]
    return tables.table("Memory, result by result", columns, (_memory_row(row, names) for row in rows), interactive=True, searchable=False)


def _memory_row(row: Row, names: Names) -> Line:
    devices = f"{row['accelerator_count']} x " if row["accelerator_count"] > 1 else ""
    where = names.accelerator(row["accelerator"]).text if row["accelerator"] else "unknown"
    published = row["published_bytes"]
    return Line(
        (
            Cell(devices + where, small=row["result_id"], href=result_path(row["result_id"]), sort=row["result_id"]),
            names.model(row["model"]),
            tables.text(row["method"]),
            Cell(formats.gb(published), sort=published),
            *(_beside(row[column], published) for _, column in CALCULATORS),
        )
    )


def _beside(predicted: float | None, published: float) -> Cell:
    if predicted is None:
        return tables.text(None)
    return Cell(formats.gb(predicted), small=f"{predicted / published - 1:+.0%}", sort=predicted)


# MOVE: was tunemark.site.pages.predictions: How good predictions are: throughput with each accelerator and each model left out, and memory beside published peaks.

CRUMBS = (("Guide", "guide/index"),)
LARGEST_MEDIAN = 0.15
LEAST_COVERED, MOST_COVERED = 0.85, 0.95
SHOWN_KINDS = ("factor", "slope", "stack", "generation", "release")
"""Parameters of the page; the database has all of them."""
FIGURES = (
    Column("Results", numeric=True),
    Column("Median error", numeric=True, explained="Of the absolute errors."),
    Column("Worst error", numeric=True),
    Column("Inside", numeric=True, explained="Share of results that lie in their predicted interval of 90%."),
    Column("No data", numeric=True, explained="Results for which nothing similar was left."),
)


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the page of errors."""
    yield Page(
        "guide/predictions",
        "How good predictions are",
        "predictions.md.j2",
        {**_throughput(catalogue), **memory_context(catalogue)},
        CRUMBS,
    )


def _throughput(catalogue: Catalogue) -> dict[str, object]:
    known = catalogue.predictions
    accuracy, errors = known["throughput_accuracy"], known["throughput_errors"]
    if not any(row["rows"] for row in accuracy):
        return {"summary": None}
    names = Names(catalogue)
    return {
        "verdict": _verdict(accuracy),
        "summary": tables.table(
            "Errors of throughput",
            [Column("Left out"), Column("Software of"), *FIGURES, Column("Goal")],
            map(_summary, accuracy),
            stacked=True,
        ),
        "methods": _methods(errors),
        "accelerators": _groups(errors, "accelerator", lambda row: names.accelerator(row["accelerator"])),
        "models": _groups(errors, "model", lambda row: names.model(row["model"])),
        "rows": _rows(errors, names),
        "parameters": _parameters(known["throughput_model"]),
        "learnt": len({row["result_id"] for row in errors}),
        "most": Counter(row["stack"] for row in errors if row["left_out"] == "accelerator").most_common(1)[0],
        "refused": _refused(known["throughput_refused"]),
    }


def _verdict(accuracy: list[Row]) -> str:
    """Return whether the goal is met by all rows together, way by way, and where a software misses it."""
    ways = [f"{row['left_out']} left out: {_goal(row)}" for row in accuracy if row["stack"] == "all" and row["rows"]]
    missed = [
        f"{row['left_out']} left out, {row['stack']}" for row in accuracy if row["stack"] != "all" and row["rows"] and _goal(row) != "met"
    ]
    return f"Over all results: {'; '.join(ways)}. " + (f"By software alone it is not met for: {'; '.join(missed)}." if missed else "")


def _goal(row: Row) -> str:
    close = row["median_error"] <= LARGEST_MEDIAN
    return "met" if close and LEAST_COVERED <= row["coverage"] <= MOST_COVERED else "error met, interval missed" if close else "missed"


def _summary(row: Row) -> Line:
    goal = _goal(row) if row["rows"] else ""
    cell = Cell(goal, badge="ok" if goal == "met" else "ambiguous", sort=goal) if goal else tables.text("no data")
    return Line((tables.text(row["left_out"]), tables.text(row["stack"]), *_figures(row), cell))


def _figures(row: Row) -> tuple[Cell, ...]:
    return (
        Cell(str(row["rows"]), sort=row["rows"]),
        percent(row["median_error"]),
        percent(row["worst_error"]),
        percent(row["coverage"]),
        Cell(str(row["no_data"]), sort=row["no_data"]),
    )


def _methods(errors: list[Row]) -> Table:
    """Return the errors by fine-tuning method: a method of few results and of stacks that differ is predicted worse."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in errors:
        groups.setdefault((row["left_out"], row["method"]), []).append(row)
    lines = (
        Line((tables.text(left_out), tables.text(wording.METHODS.get(method, method)), *_figures(_summed(rows))))
        for (left_out, method), rows in sorted(groups.items())
    )
    return tables.table("Errors by method", [Column("Left out"), Column("Method"), *FIGURES], lines, stacked=True)


def _groups(errors: list[Row], left_out: str, name: Callable[[Row], Cell]) -> Table:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in errors:
        if row["left_out"] == left_out:
            groups.setdefault((row["left_out_group"], row["stack"]), []).append(row)
    lines = (Line((name(rows[0]), tables.text(stack), *_figures(_summed(rows)))) for (_, stack), rows in groups.items())
    return tables.table(
        f"Errors with the {left_out} left out", [Column(left_out.capitalize()), Column("Software of"), *FIGURES], lines, interactive=True
    )


def _summed(rows: list[Row]) -> Row:
    errors = [abs(row["error"]) for row in rows if row["error"] is not None]
    covered = [row["covered"] for row in rows if row["covered"] is not None]
    return {
        "rows": len(errors),
        "no_data": len(rows) - len(errors),
        "median_error": median(errors) if errors else None,
        "worst_error": max(errors, default=None),
        "coverage": sum(covered) / len(covered) if covered else None,
    }


def _rows(errors: list[Row], names: Names) -> Table:
    columns = [
        Column("Result"),
        Column("Model"),
        Column("Method"),
        Column("Left out"),
        Column("Tokens/s", numeric=True, explained="Of the result, all devices."),
        Column("Predicted tokens/s", numeric=True, explained="From all others, with its interval of 90%."),
        Column("Error", numeric=True),
        Column("Inside"),
    ]
    return tables.table("Each result left out", columns, (_row(row, names) for row in errors), interactive=True, searchable=False)


def _row(row: Row, names: Names) -> Line:
    many = f"{row['accelerator_count']} x " if row["accelerator_count"] > 1 else ""
    known = row["predicted_tokens_per_s"] is not None
    predicted = (
        Cell(
            formats.significant(row["predicted_tokens_per_s"]),
            small=f"{formats.significant(row['predicted_low'])} to {formats.significant(row['predicted_high'])}",
            sort=row["predicted_tokens_per_s"],
        )
        if known
        else Cell("no data", small=row["no_data"] or "")
    )
    return Line(
        (
            Cell(
                many + names.accelerator(row["accelerator"]).text,
                small=row["result_id"],
                href=result_path(row["result_id"]),
                sort=row["result_id"],
            ),
            names.model(row["model"]),
            tables.text(row["method"]),
            tables.text(row["left_out"]),
            Cell(formats.significant(row["tokens_per_s"]), sort=row["tokens_per_s"]),
            predicted,
            percent(row["error"], signed=True),
            tables.text(None)
            if not known
            else Cell("yes", badge="ok", sort="yes")
            if row["covered"]
            else Cell("no", badge="ambiguous", sort="no"),
        )
    )


def _parameters(rows: list[Row]) -> Table:
    columns = [
        Column("Parameter"),
        Column("Times longer", numeric=True, explained="1 is the limit of the card for a factor, and the mean of all for an effect."),
        Column("Results", numeric=True, explained="Results that speak of it."),
        Column("Meaning"),
    ]
    shown = [row for row in rows if row["kind"] in SHOWN_KINDS]
    lines = (
        Line(
            (
                tables.text(row["parameter"]),
                Cell(f"{row['value']:.2f}", small=f"{row['low']:.2f} to {row['high']:.2f}", sort=row["value"]),
                Cell(str(row["rows"]), sort=row["rows"]),
                tables.text(row["meaning"]),
            )
        )
        for row in sorted(shown, key=lambda row: SHOWN_KINDS.index(row["kind"]))
    )
    return tables.table("Parameters", columns, lines, interactive=True, searchable=False, stacked=True)


def _refused(rows: list[Row]) -> Table | None:
    if not rows:
        return None
    counted = Counter(row["reason"] for row in rows)
    lines = (Line((tables.text(reason), Cell(str(number), sort=number))) for reason, number in sorted(counted.items()))
    return tables.table("Results that teach nothing", [Column("Why"), Column("Results", numeric=True)], lines, searchable=False)
