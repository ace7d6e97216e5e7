"""Pages of single results: stamped into one shell that MkDocs laid out, instead of going through it one by one.

MkDocs takes 20 ms per page, and there are thousands of these pages. Their text is HTML with Markdown headings and plain paragraphs.
A page with any other Markdown is converted by python-markdown, as MkDocs would.
"""

import html
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown import Markdown  # type: ignore[import-untyped]
from markdown.extensions.toc import slugify  # type: ignore[import-untyped]

from tunemark.schema.errors import Exit, TunemarkError
from tunemark.site.page import Page
from tunemark.site.render import ENDING, one_line, title_text

FOLDER = "results"
SHELL = f"{FOLDER}/shell"
"""Page that is laid out by MkDocs and removed afterwards. It is in the folder of the stamped pages, so that links are the same."""
TITLE, HEADING = "tunemark-title", "tunemark-heading"
SHELL_TEXT = f"""---
title: {TITLE}
hide:
  - navigation
search:
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
SEARCH = Path("search/search_index.json")


@dataclass(frozen=True, slots=True)
class StampedPage:
    """A page with its Markdown."""

    page: Page
    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """The HTML of a page, and its headings of the second level: id and text."""

    body: str
    headings: tuple[tuple[str, str], ...]


def is_stamped(page: Page) -> bool:
    """Return True for the page of a single result."""
    return page.path.startswith(f"{FOLDER}/") and page.path != f"{FOLDER}/index"


def stamp(site: Path, pages: Iterable[StampedPage]) -> int:
    """Write the pages into a site that MkDocs has laid out, remove the shell, and add the pages to the search. Return their number."""
    path = site / f"{SHELL}{ENDING}"
    shell = path.read_text(encoding="utf-8")
    path.unlink()
    entries = []
    for stamped in pages:
        page = stamped.page
        (site / f"{page.path}{ENDING}").write_text(filled(shell, page.title, content_of(stamped.text)), encoding="utf-8")
        parents = ", ".join(label for label, _ in page.crumbs)
        entries.append(
            {
                "location": f"{page.path}{ENDING}",
                "title": html.escape(one_line(page.title)),
                "text": html.escape(f"{Path(page.path).name} {one_line(parents)}"),
            }
        )
    index = json.loads((site / SEARCH).read_text(encoding="utf-8"))
    index["docs"] = [entry for entry in index["docs"] if not entry["location"].startswith(SHELL)] + entries
    (site / SEARCH).write_text(json.dumps(index, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
    return len(entries)


def filled(shell: str, title: str, content: Content) -> str:
    """Return the shell with a title, a body and a table of contents. Raise TunemarkError if MkDocs laid the shell out in another way."""
    entry, place = ENTRY.search(shell), CONTENT.search(shell)
    if entry is None or place is None:
        raise TunemarkError("mkdocs", SHELL, "the theme lays pages out in another way; adapt site/stamp.py", exit_code=Exit.INTERNAL)
    items = "".join(entry[0].replace(f"#{HEADING}", f"#{anchor}").replace(HEADING, text) for anchor, text in content.headings)
    parts = shell[: entry.start()], items, shell[entry.end() : place.start()], content.body, shell[place.end() :]
    before, toc, between, body, after = parts
    shown = title_text(title)
    return "".join((before.replace(TITLE, shown), toc, between.replace(TITLE, shown), body, after.replace(TITLE, shown)))


def content_of(text: str) -> Content:
    """Return the content of a page from its Markdown."""
    text = FRONT_MATTER.sub("", text)
    blocks = [block.strip("\n") for block in text.split("\n\n") if block.strip()]
    if any(not block.startswith(("<", "#")) and MARKUP.search(block) for block in blocks):
        return _converted(text)
    text = "\n\n".join(block if block.startswith(("<", "#")) else f"<p>{block}</p>" for block in blocks)
    headings: list[tuple[str, str]] = []
    used: set[str] = set()

    def heading(match: re.Match[str]) -> str:
        level, words = len(match[1]), match[2].strip()
        anchor = slug = slugify(html.unescape(words), "-")
        number = 0
        while anchor in used:
            number += 1
            anchor = f"{slug}_{number}"
        used.add(anchor)
        if level == 2:  # noqa: PLR2004 - the level of the table of contents
            headings.append((anchor, words))
        return f'<h{level} id="{anchor}">{words}</h{level}>'

    return Content(HEADINGS.sub(heading, text), tuple(headings))


def _converted(text: str) -> Content:
    """Return the content of a page with Markdown other than headings."""
    converter = _converter()
    converter.reset()
    body = converter.convert(text)
    tokens = converter.toc_tokens
    headings = [child for token in tokens for child in (token["children"] if token["level"] == 1 else [token])]
    return Content(body, tuple((str(each["id"]), html.escape(str(each["name"]), quote=False)) for each in headings))


@cache
def _converter() -> Markdown:
    return Markdown(extensions=EXTENSIONS, extension_configs={"toc": {"toc_depth": 2}})
