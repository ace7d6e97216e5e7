"""Pages as files: a template with its SQL is a page, or a family of pages. This module runs them.

A file `<name>.md.j2` begins with its description in TOML between two lines `+++`. Markdown with Jinja follows:

    +++
    path = "studies/small-batches"
    title = "Small batches"
    layout = "study_findings.md.j2"

    [queries]
    steps = '''
        select result_id, micro_batch, figure['mfu'] as mfu from usable_results where source = '001' order by micro_batch
    '''
    +++
    ## Findings

    {% call finding(steps) %}MFU rises from {{ steps[0].mfu | share }} to {{ steps[-1].mfu | share }}.{% endcall %}

    {{ table("MFU by batch", steps, ["micro_batch", "mfu"]) }}

- `path`, `title`, `layout` (a file of templates/ that shows `body`), and other keys, which the layout and the template can show.
- `queries` are run in their order. Each is a list of rows in the template (`row.mfu`), and a table in later queries. The views
  of the database are described in the collector's views.sql; `usable_results` is the place to start. `sql("select ...", name=value)`
  runs one more query inside the template, with parameters `$name`.
  A query can be a function of `recommend_data.TABLES` of the rows of a query: `options = {function = "recommended", of = "questions"}`.
- With `each`, a query, the file is a family: one page for each row. Its columns are variables of `path`, `title` and the template,
  and parameters of the queries: `models/{{ model }}`, `where model = $model`.
  Queries under `[grouped]` run once for the family; a page gets the rows whose column `key` (of the description) has its value.
- Formats (`columns.FORMATS`) are filters of the template and functions of SQL: `{{ value | ratio }}`, `select ratio(a / b)`.
- `table(name, rows, columns)` shows rows under a heading. A column is a name of `columns.COLUMNS`, or (name, heading, format).
  A column `x_small` of the query is shown below `x`, `x_href` is its link, `x_mark` a warning, `x_sort` its sort value.
- `results_table(name, rows)` shows rows of the table `listed_results` of pages.sql. `facts([name, value, note, href], ...)` is a list of
  facts, `m` the macros of macros.html.j2.
- `finding(rows, ...)` writes a sentence with links to the results it rests on: those in the columns `result_id`, `result_ids`, or
  with a name that ends with one of these. It writes nothing for fewer than two results, so a finding disappears with its rows.
- `{% call(row) each_finding(rows) %}` writes one for each row, `{% call(key, rows) each_finding(rows | groupby("key")) %}` one for each group.
- `{% call main_point(rows) %}` gives a study its title: the main point with its figure. Without its rows the study keeps its `title`.
  A title about several values gives `values | spread(format)`: the median with the full range.
- Findings are shown up to five sentences, and the others folded below them. Only a first finding that alone is longer is cut.
- `chart(kind, caption, rows, ...)` draws rows with columns `x`, `y`, `series`, `label`; see `charts.row_chart`.
- Values are escaped. A page of the layout study_findings.md.j2 is not made without findings.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import duckdb
from jinja2 import TemplateError
from markupsafe import Markup

from tunemark.schema.errors import Exit, TunemarkError
from tunemark.site import charts, columns, render, wording
from tunemark.site.database import Database, grouped
from tunemark.site.page import Fact, Page, Row
from tunemark.site.recommend_data import TABLES

ENDING = ".md.j2"
FENCE = "+++\n"
PLAIN, STUDY = "plain.md.j2", "study_findings.md.j2"
"""Layouts of a page without one, and of studies."""
LEAST = 2
"""A finding needs this number of results."""
OPEN_SENTENCES = 5
"""Sentences of findings that are not folded: as many as a reader takes in beside the chart."""
SENTENCE_END = re.compile(r"(?<=[.?!]) ")
FURTHER = "<!-- further findings -->"
"""Place of the others."""
MOST_RESULTS = 200
"""Results in a table beside the explorer; the largest pages would have more than a thousand."""
LONG = 60
"""A table with more rows is folded."""
RESULT_COLUMNS = ("result_id", "result_ids")
"""Endings of the columns that name results."""
AMBIGUOUS = "select count(*) as number from results where ambiguous and list_contains($cited, result_id)"


@dataclass(frozen=True, slots=True)
class PageFile:
    """A template with its description."""

    name: str
    head: Mapping[str, Any]
    body: str


def read(file: Path | Traversable, **defaults: Any) -> PageFile:  # noqa: ANN401 - values of descriptions
    """Return the description and the template of a file. Raise TunemarkError if the description is missing or is not TOML."""
    _, fence, rest = file.read_text(encoding="utf-8").partition(FENCE)
    head, end, body = rest.partition(FENCE)
    if not fence or not end:
        raise TunemarkError("page", file.name, "begin the file with its description in TOML between two lines +++", exit_code=Exit.INTERNAL)
    try:
        name = file.name.removesuffix(ENDING)
        return PageFile(name, {**defaults, **tomllib.loads(head)}, body)
    except tomllib.TOMLDecodeError as error:
        raise TunemarkError("page", file.name, f"its description is not TOML: {error}", exit_code=Exit.INTERNAL) from error


def page_files(folder: Path | Traversable, **defaults: Any) -> list[PageFile]:  # noqa: ANN401 - values of descriptions
    """Return the pages of a folder, by their `order` and name."""
    found = [read(file, **defaults) for file in folder.iterdir() if file.name.endswith(ENDING)]
    return sorted(found, key=lambda file: (file.head.get("order", 0), file.name))


@dataclass(frozen=True)
class Runner:
    """Makes pages of files from a database."""

    database: Database
    functions: Mapping[str, object] = field(default_factory=dict)
    """Functions and constants of Python that templates use by name, for what neither SQL nor Jinja can say."""

    @cached_property
    def titles(self) -> dict[str, str]:
        """The title of each result."""
        return {row["result_id"]: row["title"] for row in self.database.rows("select result_id, title from listed_results")}

    def pages(self, folder: Path | Traversable, **defaults: Any) -> Iterator[Page]:  # noqa: ANN401 - values of descriptions
        """Yield the pages of a folder. `defaults` are values for descriptions that lack them."""
        for file in page_files(folder, **defaults):
            yield from self.family(file)

    def family(self, file: PageFile, **more: object) -> Iterator[Page]:
        """Yield the pages of a file: one, or one for each row of its query `each`. `more` are further values for its template."""
        rows = self.database.rows(file.head["each"]) if "each" in file.head else [{}]
        key = file.head.get("key", "")
        owned = {name: grouped(self.database.rows(query), lambda row: row[key]) for name, query in file.head.get("grouped", {}).items()}
        for row in rows:
            page = self.page(file, row, more | {name: groups.get(row[key], []) for name, groups in owned.items()})
            if page is not None:
                yield page

    def page(self, file: PageFile, row: Row, owned: Mapping[str, object] | None = None) -> Page | None:
        """Return the page of a file for a row of its query; None for a study without findings. Raise TunemarkError if it cannot be made."""
        columns_of_row = {"name": file.name, "row": row, **row}
        named = {**self.functions, **columns_of_row}
        head: dict[str, Any] = {
            key: _rendered(value, named) for key, value in file.head.items() if key not in {"each", "queries", "grouped"}
        }
        context: dict[str, object] = dict(head)
        crumbs = tuple((crumb[0], crumb[1]) for crumb in head.get("crumbs", ()) if crumb[0])
        page = Page(head["path"], head["title"], head.get("layout", PLAIN), context, crumbs, head.get("wide", True))
        writer = Writer(self, page, render.macros(page))
        try:
            known = {
                **self.functions,
                **head,
                **columns_of_row,
                **(owned or {}),
                **self._queried(file, row),
                **writer.functions(),
                "m": writer.macros,
            }
            body = render.template(file.body).render(known, page=page)
        except (TemplateError, TypeError, duckdb.Error) as error:
            raise TunemarkError("page", f"{file.name}{ENDING}", str(error), exit_code=Exit.INTERNAL) from error
        finally:
            for name in file.head.get("queries", {}):
                self.database.rows(f"drop table if exists temp.{name}")
        if page.template == STUDY and not writer.findings:
            return None
        body = body.replace(FURTHER, writer.macros.further(writer.further) if writer.further else "")
        context |= {"body": Markup(body), "writer": writer, "row": row}  # noqa: S704 - the template has escaped its values
        return replace(page, title=writer.title or page.title)

    def _queried(self, file: PageFile, row: Row) -> dict[str, list[Row]]:
        """Run the queries of a page. Each result is a temporary table for the next ones and those inside the template, and rows if that names them."""
        rows: dict[str, list[Row]] = {}
        for name, query in file.head.get("queries", {}).items():
            if not isinstance(query, str):
                function, types = TABLES[query["function"]]
                options = {key: value for key, value in query.items() if key not in {"function", "of"}}
                self.database.add(name, types, function(self.database.rows, self.database.rows(f"from {query['of']}"), **options))
            else:
                used = {key: value for key, value in row.items() if re.search(rf"\${key}\b", query)}
                self.database.rows(f"create or replace temp table {name} as {query}", **used)
            if re.search(rf"\b{name}\b", file.body):
                rows[name] = self.database.rows(f"from {name}")
        return rows


def _rendered(value: Any, row: Row) -> Any:  # noqa: ANN401 - a value of the description
    """Return a value of the description with the columns of the row in its texts, such as `models/{{ model }}`."""
    if isinstance(value, list):
        return [_rendered(each, row) for each in value]
    return render.inline(value, row) if isinstance(value, str) and "{{" in value else value


@dataclass(slots=True)
class Writer:
    """The functions that a template calls, and what it has written."""

    runner: Runner
    page: Page
    macros: Any
    """The macros of macros.html.j2, as attributes."""
    findings: list[int] = field(default_factory=list)
    """The number of sentences of each finding."""
    cited: dict[str, None] = field(default_factory=dict)
    drawings: list[charts.Chart] = field(default_factory=list)
    title: str = ""
    """The main point, as text."""
    further: list[Markup] = field(default_factory=list)
    """Findings that are folded."""

    def functions(self) -> dict[str, Callable[..., object]]:
        """Return the functions by their names in templates."""
        names = ("sql", "table", "results_table", "facts", "finding", "each_finding", "main_point", "chart")
        return {name: getattr(self, name) for name in names}

    def sql(self, query: str, **parameters: object) -> list[Row]:
        """Return the rows of a query."""
        return self.runner.database.rows(query, **parameters)

    def table(
        self,
        name: str,
        rows: Sequence[Row],
        chosen: Sequence[columns.Chosen],
        *,
        heading: str = "##",
        most_open: int = LONG,
        **options: Any,  # noqa: ANN401 - options of tables.table
    ) -> Markup:
        """Return a table with its heading; nothing without rows. A table of more than `most_open` rows is folded."""
        if not rows:
            return Markup()
        shown = self.macros.folded(columns.table(name, rows, chosen, **options), most_open)
        return Markup("{} {}\n\n{}").format(Markup(heading), name, shown) if heading else Markup(shown)  # noqa: S704 - our own words

    def results_table(
        self, name: str, rows: Sequence[Row], without: Sequence[str] = (), explorer: str = "", most: int = MOST_RESULTS
    ) -> Markup:
        """Return a table of rows of `listed_results`, without a heading. `explorer` is the same selection in the explorer, as a query."""
        chosen = [name for name in columns.OF_RESULTS if name not in without]
        all_rows = ("All results in the explorer", f"results/index{'?' if explorer else ''}{explorer}")
        made = columns.table(name, rows, chosen, interactive=True, searchable=False, most=most, all_rows=all_rows)
        return Markup(self.macros.table(made))  # noqa: S704 - the macro escapes

    def facts(self, *facts: Sequence[Any] | Row, name: str = "") -> Markup:
        """Return a list of facts: name, value, and perhaps a note and a path, or rows with these columns. An unknown value is a dash."""
        made = [_fact(**fact) if isinstance(fact, Mapping) else _fact(*fact) for fact in facts]
        return Markup(self.macros.facts(made, name))  # noqa: S704 - the macro escapes

    def chart(self, kind: str, caption: str, rows: Sequence[Row], **options: Any) -> Markup:  # noqa: ANN401 - options of charts.row_chart
        """Return a chart; nothing without rows."""
        if not rows:
            return Markup()
        made = charts.row_chart(kind, f"chart-{len(self.drawings) + 1}", caption, list(rows), **options)
        self.drawings.append(made)
        return Markup(self.macros.chart(made))  # noqa: S704 - the macro escapes

    def finding(self, *rows: Row | Sequence[Row], caller: Callable[[], Markup]) -> Markup:
        """Return a sentence with its citations; nothing if it would cite fewer than two results."""
        cited = tuple(sorted(set(_results(rows))))
        if len(cited) < LEAST:
            return Markup()
        self.cited |= dict.fromkeys(cited)
        sentences = SENTENCE_END.split(" ".join(caller().split()))
        self.findings.append(len(sentences))
        # Only the first finding is cut: without it a reader would see none.
        room = OPEN_SENTENCES if len(self.findings) == 1 or sum(self.findings) <= OPEN_SENTENCES else 0
        parts = [Markup(" ".join(part)) for part in (sentences[:room], sentences[room:])]  # noqa: S704 - the template has escaped its values
        shown, folded = (Markup(self.macros.finding(part, cited, self.runner.titles)) if part else part for part in parts)  # noqa: S704 - the macro escapes
        self.further += [folded] if folded else []
        return shown + Markup(FURTHER if folded and len(self.further) == 1 else "")  # noqa: S704 - our own words

    def each_finding(self, rows: Iterable[Any], *others: Row | Sequence[Row], caller: Callable[..., Markup]) -> Markup:
        """Return a finding for each row, or for each group of rows by `groupby`."""
        groups = [each if isinstance(each, tuple) else (each,) for each in rows]
        return Markup("\n\n").join(self.finding(each[-1], *others, caller=partial(caller, *each)) for each in groups)

    def main_point(self, *rows: Row | Sequence[Row], caller: Callable[[], Markup]) -> str:
        """Make a sentence the title of the page, if it rests on enough results."""
        if len(set(_results(rows))) >= LEAST:
            self.title = " ".join(caller().unescape().split())
        return ""

    def ambiguous(self) -> int:
        """Return the number of cited results with an ambiguous figure."""
        return int(self.sql(AMBIGUOUS, cited=list(self.cited))[0]["number"]) if self.cited else 0


def _fact(name: str, value: object, note: str | None = "", href: str | None = None) -> Fact:
    return Fact(name, wording.plain(value), note or "", href)


def _results(values: object) -> Iterator[str]:
    """Yield the result ids in rows, or in lists of rows."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            if name.endswith(RESULT_COLUMNS) and value is not None:
                yield from [value] if isinstance(value, str) else value
    elif isinstance(values, Sequence):
        for value in values:
            yield from _results(value)
