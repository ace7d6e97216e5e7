"""The explorer of all results: its page, with a plain table for readers without JavaScript, and its data.

The data are compact columns in one JSON file, which assets/explorer.js filters and sorts. Unknown values are null. Repeated texts
are dictionary-encoded: a column holds `values` once, and `codes` into them.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from tunemark.schema.quantities import QUANTITIES
from tunemark.site import tables, wording
from tunemark.site.page import Page
from tunemark.site.queries import Catalogue
from tunemark.site.render import compact_json, one_line
from tunemark.site.results_table import MOST_RESULTS, ordered, results_table
from tunemark.site.tables import Row, Table, text_column

EXPLORER_PATH = "data/explorer.json"
FORMAT = "tunemark.explorer/1"
TOY_PARAMETERS = 20_000_000
"""Models with fewer parameters test the harness; nobody fine-tunes them for use."""
SMOKE = "smoke"
"""Tier of the workloads that test the harness."""
FAILED, IMPOSSIBLE, TOY, PRETRAINING = 1, 2, 4, 8
"""Reasons to keep a result out of the default view, as bits."""
LAST = FAILED | IMPOSSIBLE
DIGITS = 6
"""Significant digits of a figure in the file."""
FIGURES = ("tokens_per_s", "samples_per_s", "mfu", "step_time_s", "peak_memory_bytes")
"""Columns whose cells carry the mark of an ambiguous figure."""
PRETRAINING_TASK = "pre-training steps"
"""Recorded task of results that time the steps of pre-training: full training, of the same work per token as full fine-tuning."""
VENDOR = re.compile(r"^(?:NVIDIA|AMD|Intel\(R\)|Intel)\s+", re.IGNORECASE)
COUNT = re.compile(r"^\d+ ?[x\N{MULTIPLICATION SIGN}] ?")
LIST = re.compile(r", | and ")
SEVERAL = "several accelerators"
NO_NAME = re.compile(r"[^a-z0-9]+")
YEAR = re.compile(r"(?<!\d)20\d\d(?!\d)")
Kind = Literal["text", "count", "rate", "percent", "bytes", "usd", "seconds", "flop_per_s"]


# The page ----------------------------------------------------------------------------------------


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the page with all results."""
    rows = catalogue.results
    shown = [row["id"] for row in explorer_rows(catalogue) if not row["flags"]]
    context = {
        "table": plain_table(catalogue, shown[:MOST_RESULTS]),
        "data": f"../{EXPLORER_PATH}",
        "total": len(rows),
        "shown": len(shown),
        "most": MOST_RESULTS,
        "trust": sorted(Counter(row["trust"] for row in rows).items()),
        "problems": _problems(catalogue),
    }
    yield Page("results/index", "Results", "results.md.j2", context)


def plain_table(catalogue: Catalogue, result_ids: list[str]) -> Table:
    """Return a table of these results in their order, without a script."""
    place = {result: number for number, result in enumerate(result_ids)}
    rows = [row for row in catalogue.results if row["result_id"] in place]
    table = results_table(catalogue, rows, "Finished results")
    lines = {row["result_id"]: line for row, line in zip(ordered(rows), table.rows, strict=True)}
    return replace(table, rows=tuple(lines[result] for result in result_ids), interactive=False, stacked=True)


def _problems(catalogue: Catalogue) -> Table | None:
    if not catalogue.problems:
        return None
    columns = [text_column("File", "file"), text_column("Field", "field"), text_column("Value", "value"), text_column("Fix", "fix")]
    return tables.table("Files that were not loaded", columns, catalogue.problems, searchable=False)


# The data ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Field:
    """A column of the explorer."""

    key: str
    label: str
    kind: Kind
    shown: bool = False
    """Shown unless the reader chooses other columns."""
    facet: bool = False
    """Offered as a filter with counts."""
    explained: str = ""


def _quantity(key: str, kind: Kind, registered: str | None = None, *, shown: bool = False) -> Field:
    quantity = QUANTITIES[registered or key]
    return Field(key, quantity.label, kind, shown=shown, explained=quantity.meaning)


FIELDS = (
    Field("accelerator", "Accelerator", "text", shown=True, facet=True, explained="Accelerator and device count; links to the result."),
    Field("devices", "Devices", "count", facet=True, explained="Number of accelerators of the run."),
    Field("model", "Model", "text", shown=True, facet=True),
    Field("method", "Method", "text", shown=True, facet=True, explained="Fine-tuning method."),
    Field("row_length", "Row length", "count", shown=True, facet=True, explained="Tokens of a row, padding included."),
    _quantity("tokens_per_s", "rate", shown=True),
    _quantity("samples_per_s", "rate", shown=True),
    Field(
        "model_flop_per_s_per_device",
        "Model FLOP/s per device",
        "flop_per_s",
        shown=True,
        explained="Model FLOPs per second of one device, without recomputed FLOPs. It depends less on the model than tokens/s.",
    ),
    Field("mfu", "MFU", "percent", explained="Model FLOPs utilisation: without recomputed work."),
    _quantity("step_time_s", "seconds"),
    _quantity("peak_memory_bytes", "bytes", shown=True),
    _quantity("usd_per_1k_samples", "usd", "cost_per_1k_samples_usd"),
    _quantity("usd_per_1m_tokens", "usd", "cost_per_1m_tokens_usd", shown=True),
    Field("time_to_target_s", "Time to target", "seconds", explained="Time to the target loss of MLPerf or of the workload."),
    Field("trust", "Trust", "text", shown=True, facet=True, explained="The evidence behind the result."),
    Field(
        "software_level",
        "Software level",
        "text",
        facet=True,
        explained="How far the training loop is tuned: plain, tuned (fused kernels or compile) or vendor.",
    ),
    Field("framework", "Framework", "text", facet=True, explained="Training framework as stated by the source."),
    Field("status", "Status", "text", facet=True),
    Field("year", "Year", "text", shown=True, facet=True, explained="Year of a measured run, else the year or years of the source."),
    Field("source", "Source", "text", shown=True, facet=True, explained="The document or the MLPerf round, or a Tunemark run."),
)


def explorer_json(catalogue: Catalogue) -> str:
    """Return the explorer's file."""
    titles = {row["source"]: one_line(row["source_title"]) for row in catalogue.results}
    return compact_json(encoded(explorer_rows(catalogue), titles))


def explorer_rows(catalogue: Catalogue) -> list[Row]:
    """Return one row per result with a value for each field, in the default order.

    That is by model FLOP/s per device, highest first. Failed and impossible results are last.
    """
    toys = {row["model"] for row in catalogue.models if row["parameters"] is not None and row["parameters"] < TOY_PARAMETERS}
    smoke = {row["workload"] for row in catalogue.workloads if row["tier"] == SMOKE}
    years = {row["source"]: years_of(row["published_on"]) for row in catalogue.sources}
    pretraining = catalogue.with_task(PRETRAINING_TASK)
    names: dict[str, Counter[str]] = {}
    for name in (printed_accelerator(row) for row in catalogue.results if row["accelerator"] is None):
        names.setdefault(normalised(name), Counter())[name] += 1
    rows = []
    for row in catalogue.results:
        result, devices = row["result_id"], row["accelerator_count"]
        cost = catalogue.basis_costs.get(result) or {}
        toy = row["model"] in toys or row["workload"] in smoke
        measured = row["source"] == "measured"
        figures = {key: row[key] for key in (*FIGURES, "time_to_target_s")}
        rows.append(
            figures
            | {
                "id": result,
                "flags": FAILED * row["failed"] | IMPOSSIBLE * row["impossible"] | TOY * toy | PRETRAINING * (result in pretraining),
                "ambiguous": ambiguous_figures(catalogue, result),
                "accelerator": row["accelerator_name"]
                if row["accelerator"]
                else names[normalised(printed_accelerator(row))].most_common(1)[0][0] or None,
                "devices": devices,
                "model": row["model_name"],
                "method": wording.method(row),
                "row_length": row["sequence_length"],
                "model_flop_per_s_per_device": row["model_flop_per_s"] / devices if row["model_flop_per_s"] and devices else None,
                "usd_per_1k_samples": cost.get("usd_per_1k_samples"),
                "usd_per_1m_tokens": cost.get("usd_per_1m_tokens"),
                "trust": wording.trust(row),
                "software_level": row["software_level"],
                "framework": "Tunemark harness" if measured else _framework(catalogue, result),
                "status": wording.words(row["status"]),
                "year": wording.day(row["started_us"])[:4] if measured else years.get(row["source"]),
                "source": row["source"],
            }
        )
    return sorted(rows, key=_default_order)


def printed_accelerator(row: Row) -> str:
    """Return the printed name of an accelerator without a card, without its count; `several accelerators` for a list.

    >>> printed_accelerator({"accelerator_name": "4x RTX 6000 Ada"}), printed_accelerator({"accelerator_name": "a100, Trn"})
    ('RTX 6000 Ada', 'several accelerators')
    """
    name = COUNT.sub("", row["accelerator_name"] or "")
    return SEVERAL if LIST.search(name) else name


def normalised(name: str) -> str:
    """Return a printed name without vendor, case, spaces and punctuation: documents print one accelerator in several ways.

    >>> normalised("NVIDIA TITAN RTX") == normalised("Titan RTX")
    True
    """
    return NO_NAME.sub("", VENDOR.sub("", name).lower())


def _default_order(row: Row) -> tuple[Any, ...]:
    return bool(row["flags"] & LAST), -(row["model_flop_per_s_per_device"] or 0), -(row["tokens_per_s"] or 0), row["id"]


def ambiguous_figures(catalogue: Catalogue, result_id: str) -> str | None:
    """Return the columns of a result whose figure has several readings, separated by spaces, or None."""
    quantities = {reading["quantity"] for reading in catalogue.readings.get(result_id, ())}
    return " ".join(key for key in FIGURES if key in quantities) or None


def _framework(catalogue: Catalogue, result_id: str) -> str | None:
    return next((fact["value"] for fact in catalogue.facts.get(result_id, ()) if fact["name"] == "framework" and fact["value"]), None)


def years_of(published_on: str | None) -> str | None:
    """Return the year of a document's date as printed, `2024 to 2025` for a range, or None.

    >>> years_of("2024-05-13 to 2025-06-16 (first and last version)")
    '2024 to 2025'
    """
    years = sorted(YEAR.findall(published_on or ""))
    if not years:
        return None
    return years[0] if years[0] == years[-1] else f"{years[0]} to {years[-1]}"


def encoded(rows: Sequence[Row], titles: dict[str, str]) -> dict[str, Any]:
    """Return rows as columns. `titles` are the titles of sources, shown after their ids."""
    columns: dict[str, Any] = {"id": [row["id"] for row in rows], "flags": [row["flags"] for row in rows]}
    columns["ambiguous"] = _dictionary(row["ambiguous"] for row in rows)
    for field in FIELDS:
        values = (row[field.key] for row in rows)
        columns[field.key] = _dictionary(values) if field.kind == "text" else [_rounded(value) for value in values]
    columns["source"]["titles"] = [titles.get(value, "") for value in columns["source"]["values"]]
    return {"format": FORMAT, "fields": [asdict(field) for field in FIELDS], "columns": columns}


def _dictionary(values: Iterable[str | None]) -> dict[str, Any]:
    """Return texts as `values`, each once, and `codes`; the code of an unknown value is null."""
    numbers: dict[str, int] = {}
    codes = [None if value is None else numbers.setdefault(one_line(value), len(numbers)) for value in values]
    return {"values": list(numbers), "codes": codes}


def _rounded(value: float | None) -> float | None:
    if value is None or isinstance(value, int):
        return value
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded
