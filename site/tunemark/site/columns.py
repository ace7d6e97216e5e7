"""Formats of values and columns of tables, declared once. A format is a filter of templates and a function of SQL."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from duckdb import CatalogException, DuckDBPyConnection

from tunemark.schema import formats
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.recommendation import provider_name
from tunemark.schema.recommendation_words import KINDS_OF_EVIDENCE
from tunemark.site import wording
from tunemark.site.page import Row
from tunemark.site.text import code_spans

Format = Callable[[Any], str]


def _named(names: Mapping[str, str]) -> Format:
    """Return the format that shows a key by its name; an unknown key is unchanged."""
    return lambda key: names.get(key, key)


NUMBERS: dict[str, Format] = {
    "binary": formats.binary,
    "flop": formats.flop,
    "accuracy": lambda value: f"{value:.2%}",
    "billions": lambda value: f"{value / 1e9:.2f}B",
    "change": lambda value: f"{value:+.1%}",
    "day": wording.day,
    "duration": formats.duration,
    "estimated_duration": formats.estimated_duration,
    "fixed1": lambda value: f"{value:.1f}",
    "fixed2": lambda value: f"{value:.2f}",
    "fixed4": lambda value: f"{value:.4f}",
    "flop_per_s": formats.flop_per_s,
    "gb": formats.gb,
    "gib": formats.gib,
    "moment": wording.moment,
    "ordinal": lambda value: formats.ordinal(int(value)),
    "percent": formats.percent,
    "percent1": lambda value: f"{value:.1%}",
    "plain": formats.plain,
    "points": lambda value: f"{100 * value:+.2f}",
    "ratio": lambda value: f"{formats.significant(value)}\N{MULTIPLICATION SIGN}",
    "share": lambda value: f"{formats.significant(100 * value)}%",
    "signed4": lambda value: f"{value:+.4f}",
    "significant": formats.significant,
    "usd": formats.usd,
    "usd_whole": lambda value: f"${value:,.0f}",
    "watts": formats.watts,
    "whole": lambda value: f"{value:,.0f}",
}
"""Formats of numbers. A column with one of them is aligned right and sorted by the number."""
TEXTS: dict[str, Format] = {
    "backend": wording.backend,
    "code": code_spans,
    "evidence": _named(KINDS_OF_EVIDENCE),
    "method": _named(wording.METHODS),
    "meaning_of_series": _named(wording.SERIES_MEANING),
    "provider": provider_name,
    "sentence_case": wording.sentence,
    "series": _named(wording.SERIES),
    "task_name": _named(wording.TASKS),
    "text": wording.plain,
    "words": wording.words,
}
"""Formats of text."""
FORMATS = NUMBERS | TEXTS


def _quantity_text(key: str, value: float | None) -> str | None:
    return None if value is None else QUANTITIES[key].text(value) if key in QUANTITIES else wording.plain(value)


def _part(part: float | None, whole: float | None) -> str:
    return f"{part:,.0f} of {whole:,.0f}" if part is not None and whole else "none"


OF_SEVERAL: dict[str, tuple[Callable[..., str | None], list[str]]] = {
    "part": (_part, ["DOUBLE"] * 2),
    "offer": (wording.offer_text, ["DOUBLE", "VARCHAR", "VARCHAR", "VARCHAR", "VARCHAR"]),
    "quantity_label": (lambda key: QUANTITIES[key].label if key in QUANTITIES else wording.words(key), ["VARCHAR"]),
    "quantity_meaning": (lambda key: QUANTITIES[key].meaning if key in QUANTITIES else "", ["VARCHAR"]),
    "quantity_text": (_quantity_text, ["VARCHAR", "DOUBLE"]),
    "rate": (wording.rate, ["DOUBLE"] * 3),
    "recorded": (wording.recorded, ["VARCHAR"] * 3),
    "recorded_value": (wording.code, ["VARCHAR"]),
    "setting": (wording.setting, ["VARCHAR"]),
    "short_commits": (wording.short_commits, ["VARCHAR"]),
    "trust_label": (wording.trust_label, ["VARCHAR"] * 2),
    "trust_meaning": (wording.trust_meaning, ["VARCHAR"] * 2),
    "web_link": (wording.web_link, ["VARCHAR"]),
}
"""Functions of SQL with several arguments, or for values that can be null, with the types of their arguments."""


def add_to(connection: DuckDBPyConnection) -> None:
    """Add the formats to a connection as functions of SQL; `text` is a type there."""
    # Another connection of this process to the same file may have added them.
    with suppress(CatalogException):
        for name, show in FORMATS.items():
            if name not in {"code", "text"}:
                connection.create_function(name, partial(_shown, show), ["DOUBLE" if name in NUMBERS else "VARCHAR"], "VARCHAR")
        for name, (function, types) in OF_SEVERAL.items():
            connection.create_function(name, function, types, "VARCHAR", null_handling="special")


def _shown(show: Format, value: Any) -> str:  # noqa: ANN401 - a value of the database
    return show(value)


@dataclass(frozen=True, slots=True)
class Column:
    """A column that queries can select by its name."""

    heading: str
    show: Format
    numeric: bool
    link: str = ""
    """Path of the page that a cell links to, made of other columns of the row, such as `results/{result_id}`."""
    explained: str = ""
    """One sentence, shown on hover and read by screen readers."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table: its main text and the details around it."""

    text: str
    small: str
    """Secondary text below the main text."""
    href: str | None
    """Path of a page of the site, or a web address."""
    sort: float | str | None
    """Sort value; None is sorted last in both directions."""
    badge: str | None
    """Kind of badge, if the text is shown as one."""
    explained: str
    """One sentence about a badge, shown on hover and read by screen readers."""
    mark: str
    """A warning shown next to the text, such as `ambiguous`."""
    mark_href: str | None
    """Path of the page that explains the warning."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a query under columns; its HTML is in templates/macros.html.j2. `name` is its accessible caption."""

    name: str
    columns: list[tuple[str, Column]]
    """Each with its name in the rows."""
    rows: Sequence[Row]
    """Those with a true column `last` stay below the others, for example failed runs."""
    interactive: bool = False
    """Add sorting and a text filter with tables.js."""
    searchable: bool = True
    """Index the text for the site search. Off for large tables that repeat the pages they link to."""
    stacked: bool = False
    """On a phone, show each row as a list of cells, so that long text in late columns is visible."""
    left_out: int = 0
    """Rows beyond the most that a page shows."""
    all_rows: tuple[str, str] | None = None
    """Label and path of the place that has all rows."""


# name | heading | format | link | explanation
_TABLE = """
accelerator_count | Accelerators | whole | - | -
accelerator_name | Accelerator | text | accelerators/{accelerator} | -
devices | Accelerator | text | results/{result_id} | Accelerator and device count; links to the result.
efficiency | Efficiency | share | - | Speed-up divided by the ratio of the device counts.
best_cost | Lowest cost per 1M tokens | usd | - | At the cheapest on-demand list price, for whole instances.
best_rate | Highest tokens/s per device | significant | - | Conditions such as sequence length differ between results.
global_batch | Global batch | whole | - | -
known_on | Known on | text | - | -
origin | From | text | - | Workload of a measured result, or the document that published it.
results | Results | whole | - | -
status | Status | words | - | -
time_to_target_s | Time to target | duration | - | Time to the target loss of MLPerf or of the workload.
trust | Trust | text | - | The evidence behind the result.
usd_per_1k_samples | Cost per 1k samples | usd | - | At the cheapest on-demand list price, for whole instances.
usd_per_1m_tokens | Cost per 1M tokens | usd | - | At the cheapest on-demand list price, for whole instances.
method | Method | method | - | -
micro_batch | Micro-batch | whole | - | -
model_label | Model | text | - | -
model_name | Model | text | models/{model} | -
parameters | Parameters | billions | - | -
provider | Provider | provider | - | -
result_id | Result | text | results/{result_id} | -
sequence_length | Tokens per sequence | whole | - | -
source | Source | text | documents/{source} | -
speed_up | Speed-up | ratio | - | -
usd_per_hour | Price per hour | usd | - | Price of the whole instance.
workload | Workload | text | workloads/{workload} | -
"""


def _declared() -> dict[str, Column]:
    columns = {key: Column(each.label, each.show, numeric=True, explained=each.meaning) for key, each in QUANTITIES.items()}
    for line in _TABLE.strip().splitlines():
        name, heading, show, link, explained = ("" if part == "-" else part for part in map(str.strip, line.split("|")))
        columns[name] = Column(heading, FORMATS[show], show in NUMBERS, link, explained)
    return columns


COLUMNS = _declared()
"""Every registered quantity, and the other columns that several pages show."""
Chosen = str | Sequence[str]
"""A declared name; or a name, a heading, and a format if the column is not declared or has another one."""


OF_RESULTS = (
    *("devices", "model_name", "method", "status", "step_time_s", "tokens_per_s", "samples_per_s"),
    *("mfu", "peak_memory_bytes", "usd_per_1k_samples", "trust", "origin"),
)
"""Columns of a table of results, whose rows are those of `listed_results`."""


def column(chosen: Chosen) -> tuple[str, Column]:
    """Return the name of a column in the row, and its declaration."""
    if isinstance(chosen, str):
        return chosen, COLUMNS[chosen]
    name, heading, *show = chosen
    declared = COLUMNS.get(name, Column(heading, FORMATS["text"], numeric=False))
    if show:
        return name, Column(heading, FORMATS[show[0]], show[0] in NUMBERS, declared.link, declared.explained)
    return name, Column(heading, declared.show, declared.numeric, declared.link, declared.explained)


def cell(name: str, declared: Column, row: Row) -> Cell:
    """Return the cell of a row. Columns such as `x_shown`, `x_small`, `x_href` and `x_mark` of the row describe the cell of `x`."""
    value = row[name]
    shown = formats.MISSING if value is None or value == "" else declared.show(value)
    sort = row.get(f"{name}_sort", value if declared.numeric else shown.lower())
    return Cell(
        text=row.get(f"{name}_shown") or shown,
        small=row.get(f"{name}_small") or "",
        href=row[f"{name}_href"] if f"{name}_href" in row else _link(declared.link, row),
        sort=None if shown == formats.MISSING and f"{name}_sort" not in row else sort,
        badge=row.get(f"{name}_badge"),
        explained=row.get(f"{name}_explained") or "",
        mark=row.get(f"{name}_mark") or "",
        mark_href=row.get(f"{name}_mark_href"),
    )


def _link(link: str, row: Mapping[str, object]) -> str | None:
    """Return the address of a declared link, or None if the row lacks a column of it."""
    try:
        made = link.format_map(row)
    except KeyError:
        return None
    return None if not link or "None" in made else made


def table(name: str, rows: Sequence[Row], chosen: Sequence[Chosen], *, most: int | None = None, **options: Any) -> Table:  # noqa: ANN401 - fields of Table
    """Return a table of the rows of a query, of at most the first `most`."""
    return Table(name, [column(each) for each in chosen], rows[:most], left_out=len(rows) - len(rows[:most]), **options)
