"""Build the site with Zensical in place of MkDocs, and compare the text of all pages with those of the site that MkDocs laid out.

Usage: python benchmarks/zensical_site.py, after `tunemark site build` and `pip install zensical`. Exit code 1 if a page is missing or has
another text. Not compared: the search, whose index has another format, and the page for unknown addresses, which the theme writes.
"""

import html
import re
import subprocess
import sys
from pathlib import Path

from tunemark.site import build, heads, stamp

BUILD = Path("build")
ARTICLE = re.compile(r"<article.*?</article>", re.DOTALL)
NO_TEXT = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL)
FOLDERS = re.compile(r"^(docs_dir|site_dir|site_url):.*\n", re.MULTILINE)


def text_of(page: Path) -> str:
    """Return the words of a page."""
    article = ARTICLE.search(page.read_text(encoding="utf-8"))
    return " ".join(html.unescape(NO_TEXT.sub("", article[0])).split()) if article else ""


def lay_out(config: Path, docs: Path, folder: Path, *, strict: bool, url: str) -> None:  # noqa: ARG001
    """Lay pages out as the function of the site does, with Zensical."""
    own = docs.with_name("zensical.yml")
    settings = FOLDERS.sub("", config.read_text(encoding="utf-8"))
    own.write_text(f"{settings}docs_dir: {docs.name}\nsite_dir: {folder.name}\nsite_url: {url}\n", encoding="utf-8")
    # Not strict, unlike MkDocs: it does not know the addresses `compare.html#a,b`, which a script reads.
    subprocess.run(["zensical", "build", "-f", own.name], cwd=own.parent, check=True)  # noqa: S603, S607
    (folder / stamp.SEARCH.parent).mkdir()
    (folder / stamp.SEARCH).write_text('{"docs": []}', encoding="utf-8")
    (folder / heads.NOT_FOUND_FILE).write_text((BUILD / "site" / heads.NOT_FOUND_FILE).read_text(encoding="utf-8"), encoding="utf-8")


def main() -> None:
    """Build, compare, and print the pages that differ."""
    build._lay_out = lay_out  # noqa: SLF001 - the one step that another builder takes
    heads.not_found = str  # the page is that of MkDocs, complete
    out = BUILD / "zensical"
    build.build_site(BUILD / "tunemark.duckdb", out, Path("mkdocs.yml"), strict=True, progress=print)
    pages = [{page.relative_to(site) for page in site.rglob("*.html")} for site in (BUILD / "site", out / "site")]
    different = [page for page in pages[0] & pages[1] if text_of(BUILD / "site" / page) != text_of(out / "site" / page)]
    for page in sorted({*different, *(pages[0] ^ pages[1])}):
        print(f"differs: {page}")
    print(f"{len(pages[0] & pages[1]) - len(different)} of {len(pages[0] | pages[1])} pages have the same text")
    sys.exit(bool(different or pages[0] ^ pages[1]))


if __name__ == "__main__":
    main()
