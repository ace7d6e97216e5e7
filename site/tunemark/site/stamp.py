"""Pages that MkDocs does not lay out: they are stamped into a shell that it laid out, one for each folder.

MkDocs takes 20 ms per page, and there are thousands of pages. Only the home page, the lists and the guide go through it; large tables
bypass it. The text of a stamped page is HTML with Markdown headings and plain paragraphs. A page with any other Markdown is converted by
python-markdown, as MkDocs would.
"""

import html
import json
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown import Markdown  # type: ignore[import-untyped]
from markdown.extensions.toc import slugify  # type: ignore[import-untyped]

from tunemark.schema.errors import Exit, TunemarkError
from tunemark.site.heads import Head, head_of, with_head
from tunemark.site.page import ENDING, Page
from tunemark.site.render import markdown
from tunemark.site.text import one_line, title_text

LAID_OUT = ("guide", "")
"""Folders whose pages all go through MkDocs."""
TITLE, HEADING = "tunemark-title", "tunemark-heading"
SHELL_TEXT = f"""---
title: {TITLE}
hide:
  - navigation
%ssearch:
  exclude: true
---

# {TITLE}

## {HEADING}
"""
EXTENSIONS = ["toc", "tables", "fenced_code"]
"""Those of MkDocs and mkdocs.yml."""
FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
HEADINGS = re.compile(r"^(#{1,3}) (.+)$", re.MULTILINE)
MARKUP = re.compile(r"\A(?:\d+[.)]|[-+>:=]|    )|[*_`\[\]|\\<]")
"""Markdown in a block: a list, a quote, indented code, or an active character."""
CONTENT = re.compile(rf'<h1 id="{TITLE}".*?<h2 id="{HEADING}".*?</h2>', re.DOTALL)
ENTRY = re.compile(rf'<li class="md-nav__item">(?:(?!</li>).)*?#{HEADING}.*?</li>\s*', re.DOTALL)
LARGE_TABLE = 80_000
"""Tables of at least this many characters bypass MkDocs, which would parse each as Markdown and again for the search."""
LARGE_PART = 1_000
"""The same for a table or a drawing that the search does not have."""
PARTS = re.compile(
    r'(?P<excluded><div class="tm-table-box[^>]* data-search-exclude>\n<div [^>]*>\n)?(?P<part><table[ >].*?</table>)|(?P<drawing><svg[ >].*?</svg>)',
    re.DOTALL,
)
NO_CONTENTS = re.compile(r'<label class="md-nav__title" for="__toc">(?:(?!</ul>).)*</ul>', re.DOTALL)
"""The table of contents of a page without headings."""
TAB = re.compile(r'<li class="md-tabs__item">(?=\s*<a href="(?:index|\.\./guide/index)\.html")')
"""The tab of a page that is in no navigation: that of its folder, else the one of data and method."""
SEARCH = Path("search/search_index.json")


@dataclass(frozen=True, slots=True)
class Content:
    """The HTML of a page, and its headings of the second level: id and text."""

    body: str
    headings: tuple[tuple[str, str], ...]
    top: str = ""
    """Id of the page's own heading, to which "skip to content" leads."""


@dataclass(frozen=True, slots=True)
class StampedPage:
    """What is stamped into a shell."""

    path: str
    title: str
    head: Head
    shell: str
    found_by: str
    """Text of its entry in the search."""
    content: Content


def is_stamped(page: Page) -> bool:
    """Return True for a page inside a folder other than the guide, unless it is the folder's list."""
    folder, name = posixpath.split(page.path)
    return folder not in LAID_OUT and name != "index"


def shell_path(page: Page) -> str:
    """Return the path of a page's shell. It is in the same folder, so that links are the same."""
    return posixpath.join(posixpath.dirname(page.path), "shell-wide" if page.wide else "shell")


def shell_text(page: Page) -> str:
    """Return the Markdown of a page's shell."""
    return SHELL_TEXT % ("  - toc\n" if page.wide else "")


def stamped_page(page: Page, url: str) -> StampedPage:
    """Return a page in the form in which it is stamped."""
    found_by = html.escape(one_line(", ".join([Path(page.path).name, *(label for label, _ in page.crumbs)])))
    return StampedPage(page.path, page.title, head_of(page, url), shell_path(page), found_by, content_of(markdown(page)))


def without_large_tables(text: str) -> tuple[str, list[str]]:
    """Return a page with an empty table in place of each large table or drawing, and these."""
    tables: list[str] = []

    def taken_out(match: re.Match[str]) -> str:
        searched = match["part"] and not match["excluded"]
        if len(match[0]) < (LARGE_TABLE if searched else LARGE_PART):
            return match[0]
        tables.append(match["part"] or match["drawing"])
        return f"{match['excluded'] or ''}{_placeholder(len(tables))}"

    return PARTS.sub(taken_out, text), tables


def put_back(site: Path, tables: Mapping[str, Sequence[str]]) -> None:
    """Put the large tables into the pages that MkDocs has laid out. `tables` has them by the path of their page."""
    for path, large in tables.items():
        page = site / f"{path}{ENDING}"
        text = page.read_text(encoding="utf-8")
        for number, table in enumerate(large, 1):
            before, place, after = text.partition(_placeholder(number))
            if not place:
                raise TunemarkError(
                    "mkdocs", path, "the placeholder of a large table is missing; update site/stamp.py", exit_code=Exit.INTERNAL
                )
            text = f"{before}{table}{after}"
        page.write_text(text, encoding="utf-8")


def _placeholder(number: int) -> str:
    return f'<table id="tunemark-table-{number}"></table>'


def stamp(site: Path, pages: Iterable[StampedPage], url: str) -> int:
    """Write the pages into a site that MkDocs has laid out, remove the shells, and add the pages to the search. Return their number.

    `url` is the public address of the site.
    """
    shells = {shell.relative_to(site).with_suffix("").as_posix(): shell for shell in site.rglob(f"shell*{ENDING}")}
    active = '<li class="md-tabs__item md-tabs__item--active">'
    texts = {name: TAB.sub(active, shell.read_text(encoding="utf-8"), count=1) for name, shell in shells.items()}
    entries = []
    for page in pages:
        text = filled(texts[page.shell], page.title, page.content)
        (site / f"{page.path}{ENDING}").write_text(with_head(text, page.head, url), encoding="utf-8")
        entries.append({"location": f"{page.path}{ENDING}", "title": html.escape(one_line(page.title)), "text": page.found_by})
    for shell in shells.values():
        shell.unlink()
    index = json.loads((site / SEARCH).read_text(encoding="utf-8"))
    left_out = tuple(shells)
    kept = [entry for entry in index["docs"] if not entry["location"].startswith(left_out)]
    index["docs"] = kept + sorted(entries, key=lambda entry: entry["location"])
    (site / SEARCH).write_text(json.dumps(index, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
    return len(entries)


def filled(shell: str, title: str, content: Content) -> str:
    """Return the shell with a title, a body and a table of contents. Raise TunemarkError if MkDocs laid the shell out in another way."""
    entry, place = ENTRY.search(shell), CONTENT.search(shell)
    if entry is None or place is None:
        raise TunemarkError("mkdocs", "shell", "the theme lays pages out in another way; adapt site/stamp.py", exit_code=Exit.INTERNAL)
    items = "".join(entry[0].replace(f"#{HEADING}", f"#{anchor}").replace(HEADING, text) for anchor, text in content.headings)
    before, between, after = shell[: entry.start()], shell[entry.end() : place.start()], shell[place.end() :]
    text = f"{_titled(before, title, content.top)}{items}{_titled(between, title, content.top)}{content.body}{_titled(after, title, content.top)}"
    return text if items else NO_CONTENTS.sub("", text, count=1)


def _titled(text: str, title: str, top: str) -> str:
    return text.replace(f'"#{TITLE}"', f'"#{top}"').replace(TITLE, title_text(title))


def content_of(text: str) -> Content:
    """Return the content of a page from its Markdown."""
    text = FRONT_MATTER.sub("", text)
    blocks = [block.strip("\n") for block in text.split("\n\n") if block.strip()]
    if any(not block.startswith(("<", "#")) and MARKUP.search(block) for block in blocks):
        return _converted(text)
    text = "\n\n".join(block if block.startswith(("<", "#")) else f"<p>{block}</p>" for block in blocks)
    headings: list[tuple[str, str]] = []
    used: dict[str, int] = {}

    def heading(match: re.Match[str]) -> str:
        level, words = len(match[1]), match[2].strip()
        anchor = slug = slugify(html.unescape(words), "-")
        number = 0
        while anchor in used:
            number += 1
            anchor = f"{slug}_{number}"
        used[anchor] = level
        if level == 2:  # noqa: PLR2004 - the level of the table of contents
            headings.append((anchor, words))
        return f'<h{level} id="{anchor}">{words}</h{level}>'

    body = HEADINGS.sub(heading, text)
    return Content(body, tuple(headings), next((anchor for anchor, level in used.items() if level == 1), ""))


def _converted(text: str) -> Content:
    """Return the content of a page with Markdown other than headings."""
    converter = _converter()
    converter.reset()
    body = converter.convert(text)
    tokens = converter.toc_tokens
    headings = [child for token in tokens for child in (token["children"] if token["level"] == 1 else [token])]
    top = next((str(token["id"]) for token in tokens if token["level"] == 1), "")
    return Content(body, tuple((str(each["id"]), html.escape(str(each["name"]), quote=False)) for each in headings), top)


@cache
def _converter() -> Markdown:
    return Markdown(extensions=EXTENSIONS, extension_configs={"toc": {"toc_depth": 2}})
