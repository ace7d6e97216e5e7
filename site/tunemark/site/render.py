"""Render pages to Markdown. Every value is escaped (text.py), unless the template marks it as Markup."""

import json
import posixpath
import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from statistics import median
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from tunemark.schema import PUBLISHED, as_installed
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.formats import counted
from tunemark.site.columns import FORMATS, Cell, Column, Table, cell
from tunemark.site.page import ENDING, Page, Row
from tunemark.site.text import code_spans, escape, one_line, title_text
from tunemark.site.wording import VERDICTS, web_link

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def front_matter(text: str) -> Markup:
    """Return a title as a YAML string (JSON strings are YAML)."""
    return Markup(json.dumps(title_text(text), ensure_ascii=False))  # noqa: S704 - quoted by JSON, nothing active is left


def script_json(value: object) -> Markup:
    """Return JSON that is safe inside a script element."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026"))  # noqa: S704 - cannot end the element


def compact_json(value: object) -> str:
    """Return JSON without spaces, for data files that scripts read."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def file_name(key: str) -> str:
    """Return a key for use as a file name. Raise TunemarkError if it could leave its folder."""
    if FILE_NAME.fullmatch(key):
        return key
    raise TunemarkError(
        "database key", key, "use only letters, digits, dots, dashes and underscores in names of pages", exit_code=Exit.INVALID
    )


FILE_ENDINGS = frozenset({".csv", ".duckdb", ".js", ".json", ".mjs", ".parquet", ".svg", ".txt", ".xml"})
"""Endings of paths that are files already, not pages."""
BIBTEX = re.compile(r"[\\{}%&#$_~^]")
CITATION = re.compile(r"definitions&#35;([a-z][a-z-]*)")


def markdown(page: Page) -> str:
    """Return the Markdown of a page with its front matter."""
    text = _environment().get_template(page.template).render(page.context, page=page)
    lines = (line.rstrip() for line in text.splitlines())
    return "\n".join(_without_repeated_blanks(lines)).strip() + "\n"


def feed(entries: Sequence[Row], url: str) -> str:
    """Return additions to the data as an Atom feed for a site at this address."""
    return _environment().get_template("feed.xml.j2").render(entries=entries, url=url)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("tunemark.site", "templates"),
        autoescape=True,
        finalize=escape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(front_matter=front_matter, script_json=script_json, here=_here, trusted=_trusted, cited=_cited, cells=_cells)
    environment.filters.update(
        FORMATS, bibtex=bibtex, code_spans=code_spans, counted=counted, listed=listed, phrases=phrases, spread=spread
    )
    environment.globals.update(VERDICTS=VERDICTS, as_installed=as_installed, PUBLISHED=PUBLISHED)
    return environment


@lru_cache(maxsize=100)
def template(text: str) -> Template:
    """Return a template of our own text. Values that it shows are escaped."""
    return _environment().from_string(text)


def inline(text: str, row: Row) -> str:
    """Return our own text with values of a row, unescaped: a path or a title, which are escaped where they are shown."""
    return _inline(text).render(row)


@lru_cache(maxsize=1_000)
def _inline(text: str) -> Template:
    return _environment().overlay(autoescape=False, finalize=None).from_string(text)


def macros(page: Page) -> Any:  # noqa: ANN401 - the macros are attributes
    """Return the macros of macros.html.j2 for use in Python, with links relative to a page."""
    return _environment().get_template("macros.html.j2").make_module({"page": page})


def bibtex(text: str) -> str:
    """Return text for a field of BibTeX, without the characters that are active there or with a backslash before them."""
    return BIBTEX.sub(lambda match: "" if match[0] in "\\{}~^" else f"\\{match[0]}", one_line(str(text)))


def listed(names: Sequence[object]) -> Markup:
    """Return names as a list with `and`."""
    shown = [escape(name) for name in names]
    return shown[0] if len(shown) == 1 else Markup("{} and {}").format(Markup(", ").join(shown[:-1]), shown[-1])


def phrases(rows: Iterable[Row], text: str) -> list[Markup]:
    """Return a text for each row, whose columns it shows: `{{ efficiency | share }} on {{ accelerator_name }}`."""
    each = template(text)
    return [Markup(each.render(row)) for row in rows]  # noqa: S704 - the template escapes its values


def spread(values: Iterable[float], show: str) -> str:
    """Return the median of values in a format, and their full range in brackets: the rule of all titles and findings about several values."""
    known = list(values)
    middle, low, high = (FORMATS[show](pick(known)) for pick in (median, min, max))
    return middle if low == high else f"{middle} ({low} to {high})"


@pass_context
def _here(context: Context, target: str) -> str:
    """Return the address of a page relative to the page being written. Web addresses are returned unchanged."""
    page: Page = context["page"]
    return _relative(target, posixpath.dirname(page.path))


@lru_cache(maxsize=100_000)
def _relative(target: str, folder: str) -> str:
    """Return the address of a page relative to a folder of the site. Web addresses are returned unchanged."""
    if web_link(target):
        return target
    target, _, anchor = target.partition("#")
    path, asked, query = target.partition("?")
    for part in path.split("/"):
        file_name(part)
    ending = "" if posixpath.splitext(path)[1] in FILE_ENDINGS else ENDING
    relative = posixpath.relpath(path + ending, folder or ".") + asked + query
    return f"{relative}#{anchor}" if anchor else relative


@pass_context
def _cited(context: Context, value: object) -> Markup:
    """Return escaped text in which citations such as `definitions#mfu` link to the heading of the definitions page."""
    link = r'<a href="{}">definitions: {}</a>'
    return Markup(  # noqa: S704 - the text is escaped, and a citation has letters and dashes only
        CITATION.sub(lambda match: link.format(_here(context, f"guide/definitions#{match[1]}"), match[1].replace("-", " ")), escape(value))
    )


@pass_context
def _cells(context: Context, row: Row, table: Table) -> Markup:
    """Return the cells of a table's row, one on each line. Pages are mostly cells, and a template takes five times as long for one."""
    cells = (_cell(context, cell(name, column, row), column, table, first=not place) for place, (name, column) in enumerate(table.columns))
    return Markup("\n".join(cells))  # noqa: S704 - each part is escaped


def _cell(context: Context, cell: Cell, column: Column, table: Table, *, first: bool) -> str:
    tag, classes = "th" if first else "td", ["tm-num"] if column.numeric else []
    parts = ["<th scope=row" if first else "<td"]
    if classes:
        parts.append(f' class="{" ".join(classes)}"')
    if cell.sort is not None and table.interactive:
        parts.append(f' data-sort="{escape(cell.sort)}"')
    parts.append(">")
    if cell.badge:
        explained = f' title="{escape(cell.explained)}"' if cell.explained else ""
        parts.append(f'<span class="tm-badge tm-is-{escape(cell.badge)}"{explained}>{escape(cell.text)}</span>')
    elif cell.href:
        rel = ' rel="nofollow noopener"' if cell.href.startswith("http") else ""
        parts.append(f'<a href="{escape(_here(context, cell.href))}"{rel}>{escape(cell.text)}</a>')
    else:
        parts.append(_cited(context, cell.text).strip())
    if cell.mark:
        kind = f" tm-is-{cell.mark}" if cell.mark in VERDICTS else ""
        opened, closed = (f'a href="{escape(_here(context, cell.mark_href))}"', "a") if cell.mark_href else ("span", "span")
        parts.append(f' <{opened} class="tm-mark{kind}">{escape(cell.mark)}</{closed}>')
    if cell.small:
        parts.append(f"<small>{_cited(context, cell.small)}</small>")
    return "".join(parts) + f"</{tag}>"


def _trusted(text: str) -> Markup:
    """Return our own markup, such as the SVG of a chart, unescaped."""
    return Markup(text)  # noqa: S704 - by its name


def _without_repeated_blanks(lines: Iterable[str]) -> Iterable[str]:
    blank = False
    for line in lines:
        if line or not blank:
            yield line
        blank = not line
