"""Page heads (description, canonical address, link preview, feed), the sitemap, and the page for unknown addresses.

These need absolute addresses, unlike the pages, which work under any address and offline. The address is `site_url` of mkdocs.yml
or `tunemark site build --site-url`.
"""

import html
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from tunemark.schema.errors import Exit, TunemarkError
from tunemark.site import share
from tunemark.site.page import ENDING, FEED, NAME, QUESTION, Page, address
from tunemark.site.render import script_json
from tunemark.site.text import one_line, title_text

CARD = "assets/card.png"
"""Picture of 1200 x 630 px that other sites show with a link."""
LONGEST = 300
"""Characters of a description."""
NOT_FOUND_FILE = "404.html"
DESCRIPTION = re.compile(r'<meta name="description" content="[^"]*">')
CANONICAL = re.compile(r'\s*<link rel="canonical" href="[^"]*">')
SEARCH_DIALOG = 'data-md-component="search" role="dialog"'
"""Of the theme, which gives it no name for screen readers."""
NOT_FOUND_HEADING = "<h1>404 - Not found</h1>"
NOT_FOUND = """<h1>Page not found</h1>
<p>There is no page at this address. Each result, accelerator and model has its own page.</p>
<ul>
<li><a href="{root}index.html">Home</a></li>
<li><a href="{root}results/index.html">All results</a></li>
<li><a href="{root}accelerators/index.html">Accelerators</a> and <a href="{root}models/index.html">models</a></li>
<li><a href="{root}data/index.html">Data and API</a></li>
</ul>"""


@dataclass(frozen=True, slots=True)
class Head:
    """The contents of the head of a page."""

    path: str
    title: str
    description: str
    kind: str = "article"
    """OpenGraph type: `website` or `article`."""
    data: Any = None
    """JSON-LD, or None."""
    picture: str = CARD


def head_of(page: Page, url: str) -> Head:
    """Return the title, the description, the picture and the JSON-LD of a page."""
    title, described = title_text(page.title), description(page)
    data = share.linked_data(page, title, described, url)
    kind = "website" if page.path == "index" else "article"
    return Head(page.path, title, described, kind, data, share.picture_path(page) or CARD)


def description(page: Page) -> str:
    """Return the description of a page."""
    told = page.context.get("description") or f"{title_text(page.title)}. Fine-tuning results with their conditions and evidence."
    return textwrap.shorten(one_line(str(told)), LONGEST, placeholder="…")


def with_head(text: str, head: Head, url: str) -> str:
    """Return a page of HTML with the tags of its head. Raise TunemarkError if the theme has another layout."""
    text, replaced = DESCRIPTION.subn(lambda _: "\n      ".join(_tags(head, url)), CANONICAL.sub("", text, count=1), count=1)
    if not replaced:
        raise TunemarkError("mkdocs", head.path, "the theme writes no description tag; adapt site/heads.py", exit_code=Exit.INTERNAL)
    return _named_search(text)


def _named_search(text: str) -> str:
    return text.replace(SEARCH_DIALOG, f'{SEARCH_DIALOG} aria-label="Search"', 1)


def _tags(head: Head, url: str) -> Iterable[str]:
    title, description, here = (html.escape(text) for text in (head.title, head.description, address(url, head.path)))
    up = "../" * head.path.count("/")
    yield f'<meta name="description" content="{description}">'
    yield f'<link rel="canonical" href="{here}">'
    # The theme takes a link with nothing but `alternate` for another language, and reads the sitemap for it.
    yield f'<link rel="alternate feed" type="application/atom+xml" title="{NAME}: new data" href="{up}{FEED}">'
    width, height = share.RESULT_PIXELS if head.picture.startswith("results/") else share.PIXELS
    properties = {
        "og:type": head.kind,
        "og:site_name": NAME,
        "og:title": title,
        "og:description": description,
        "og:url": here,
        "og:image": f"{html.escape(url)}{head.picture}",
        "og:image:width": str(width),
        "og:image:height": str(height),
        "og:image:alt": f"{NAME}. {QUESTION}" if head.picture == CARD else title,
    }
    for name, value in properties.items():
        yield f'<meta property="{name}" content="{value}">'
    yield '<meta name="twitter:card" content="summary_large_image">'
    yield f"<script>{_head_script()}</script>"
    if head.data is not None:
        yield f'<script type="application/ld+json">{script_json(head.data)}</script>'


@cache
def _head_script() -> str:
    """Return the script in the head of each page, without comments."""
    text = resources.files("tunemark.site").joinpath("assets", "head.js").read_text(encoding="utf-8")
    return "\n".join(line for line in map(str.strip, text.splitlines()) if not line.startswith("//"))


def not_found(text: str) -> str:
    """Return the page for unknown addresses with links. Its links start at the root of the site, since its address can be any."""
    root = re.search(r'href="([^"]*)assets/', text)
    if NOT_FOUND_HEADING not in text or root is None:
        raise TunemarkError("mkdocs", "404.html", "the error page of the theme has changed; adapt site/heads.py", exit_code=Exit.INTERNAL)
    text = text.replace(NOT_FOUND_HEADING, NOT_FOUND.replace("{root}", root[1]))
    text = text.replace(f"<title>{NAME}</title>", f"<title>Page not found - {NAME}</title>")
    return DESCRIPTION.sub('<meta name="robots" content="noindex">', _named_search(text), count=1)


def sitemap(site: Path, url: str) -> str:
    """Return the sitemap of all pages in a folder."""
    paths = (path.relative_to(site).with_suffix("").as_posix() for path in site.rglob(f"*{ENDING}") if path.name != NOT_FOUND_FILE)
    addresses = sorted(html.escape(address(url, path)) for path in paths)
    lines = "".join(f"<url><loc>{each}</loc></url>\n" for each in addresses)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{lines}</urlset>\n'


def write(site: Path, heads: Iterable[Head], url: str) -> None:
    """Complete the pages that MkDocs laid out, and write the sitemap. Stamped pages are already complete."""
    for head in heads:
        path = site / f"{head.path}{ENDING}"
        path.write_text(with_head(path.read_text(encoding="utf-8"), head, url), encoding="utf-8")
    missing = site / NOT_FOUND_FILE
    missing.write_text(not_found(missing.read_text(encoding="utf-8")), encoding="utf-8")
    (site / "sitemap.xml").write_text(sitemap(site, url), encoding="utf-8")
    (site / "sitemap.xml.gz").unlink(missing_ok=True)
