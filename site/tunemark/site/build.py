"""Build the site: database -> build/docs (Markdown) -> build/site (HTML). Result pages are stamped into a shell.

Each folder is replaced as a whole, only after its replacement is complete.
"""

import logging
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib import resources
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

from mkdocs.commands.build import build as lay_out
from mkdocs.config import load_config
from mkdocs.exceptions import Abort, MkDocsException

from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.files import refuse_unwritable, replace_folder
from tunemark.schema.formats import counted
from tunemark.site import charts, data_files, heads, recommend_data, script, share, stamp
from tunemark.site.database import Database
from tunemark.site.page import DEFAULT_URL, FEED, Page
from tunemark.site.pages import other_pages, result_pages
from tunemark.site.records import Catalogue
from tunemark.site.render import feed, markdown
from tunemark.site.script_data import script_data

ADDITIONS = """
    select title, summary, day || case when length(day) = 10 then 'T00:00:00' else '' end || '+00:00' as updated,
        regexp_replace(path, '(#|$)', '.html\\1') as address
    from additions limit 50
"""
Progress = Callable[[str], None]
Made = TypeVar("Made")
OWN_FILE = Path("assets/tunemark.css")
"""A file that marks a folder as built by us, so that no other folder is deleted."""


@dataclass(slots=True)
class Written:
    """The pages of a build."""

    results: Iterator[Page]
    """Pages of results, which are thousands: each is made when it is stamped."""
    stamped: list[stamp.StampedPage] = field(default_factory=list)
    """Pages that are stamped into a shell."""
    laid_out: list[heads.Head] = field(default_factory=list)
    """Heads of the pages that MkDocs lays out."""
    pictures: dict[str, bytes] = field(default_factory=dict)
    """Charts and pictures of studies, by path."""
    large_tables: dict[str, list[str]] = field(default_factory=dict)
    """Large tables of the pages that MkDocs lays out, by the path of the page."""


def build_site(database: Path, out: Path, config: Path, *, strict: bool, progress: Progress, url: str | None = None) -> int:
    """Build the site into `out/site` and return the number of pages. On an error, the previous site is kept.

    `url` is the public address, by default `site_url` of the configuration.
    """
    refuse_unwritable("--out", out)
    for name in ("docs", "site"):
        _refuse_foreign(out / name)
    url = url or _site_url(config)
    with Database(database) as opened:
        catalogue = Catalogue(opened, url)
        progress(f"building the site of {counted(len(catalogue.results), 'result')} from {database}")
        written = _swap(out / "docs", lambda folder: _write_docs(catalogue, folder))
        progress(f"wrote the pages that MkDocs lays out to {out / 'docs'}; running MkDocs, then adding the result pages")

        def make(folder: Path) -> int:
            _lay_out(config, out / "docs", folder, strict=strict, url=url)
            stamp.put_back(folder, written.large_tables)

            def stamped(page: Page) -> stamp.StampedPage:
                written.pictures |= share.pictures(page, url)
                return stamp.stamped_page(page, url)

            number = stamp.stamp(folder, chain(written.stamped, map(stamped, written.results)), url)
            _write_data(catalogue, folder)
            for path, content in written.pictures.items():
                (folder / path).write_bytes(content)
            heads.write(folder, _with_dataset(catalogue, written.laid_out), url)
            _write(folder / "embed/result.html", resources.files("tunemark.site").joinpath("templates/embed.html.j2").read_text("utf-8"))
            return number

        number = _swap(out / "site", make)
        _swap(out / "hub", lambda folder: share.write_hub(catalogue.database, out / "site", folder, url))
    progress(f"built {out / 'site'}")
    return number + sum(1 for path in (out / "docs").rglob("*.md") if not path.name.startswith("shell"))


def _write_data(catalogue: Catalogue, folder: Path) -> None:
    """Write all data files below a folder: for other tools and sites, and for the scripts of pages. MkDocs does not see them."""
    database = catalogue.database
    data_files.write(database, folder, catalogue.files)
    texts = {
        **script_data(database),
        "data/prediction_errors.csv": data_files.csv_text(
            database.rows("from throughput_errors order by left_out, left_out_group, result_id")
        ),
        recommend_data.DATA_PATH: recommend_data.data_file(database.rows),
    }
    for path, text in texts.items():
        _write(folder / path, text)
    catalogue.write_files(folder)
    _write(folder / FEED, feed(database.rows(ADDITIONS), catalogue.url))


def _with_dataset(catalogue: Catalogue, laid_out: list[heads.Head]) -> list[heads.Head]:
    """Return the heads, with the description of the dataset on the home page and on the data page."""
    described = data_files.dataset(catalogue.database, catalogue.url)
    return [replace(head, data=described) if head.path in {"index", "data/index"} else head for head in laid_out]


def _site_url(config: Path) -> str:
    """Return the public address in the configuration, ending with a slash."""
    found = re.search(r"^site_url: *(\S+)$", config.read_text(encoding="utf-8"), re.MULTILINE)
    return f"{found[1].rstrip('/')}/" if found else DEFAULT_URL


def _refuse_foreign(folder: Path) -> None:
    """Refuse to replace a folder that we did not build: `--out .` would delete this package's source."""
    if folder.exists() and any(folder.iterdir()) and not (folder / OWN_FILE).is_file():
        raise TunemarkError(
            "--out", str(folder.parent), f"{folder} exists and was not built by `tunemark site build`; choose another folder, such as build"
        )


def _swap(folder: Path, make: Callable[[Path], Made]) -> Made:
    """Build the new version of a folder, then replace the old one. Return the result of `make`."""
    new, old = (folder.with_name(f".{folder.name}.{word}") for word in ("new", "old"))
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        made = make(new)
        replace_folder(folder, new, old)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)
    return made


def _write_docs(catalogue: Catalogue, folder: Path) -> Written:
    """Write the pages that MkDocs lays out, the shells, and the assets. Return all pages."""
    results = result_pages(catalogue)
    # All result pages share one shell, since they have the same layout.
    first = list(islice(results, 1))
    shells, written = {stamp.shell_path(page): stamp.shell_text(page) for page in first}, Written(chain(first, results))
    for page in other_pages(catalogue):
        written.pictures |= share.pictures(page, catalogue.url)
        if stamp.is_stamped(page):
            shells[stamp.shell_path(page)] = stamp.shell_text(page)
            written.stamped.append(stamp.stamped_page(page, catalogue.url))
        else:
            written.laid_out.append(heads.head_of(page, catalogue.url))
            text, large = stamp.without_large_tables(markdown(page))
            if large:
                written.large_tables[page.path] = large
            _write(folder / f"{page.path}.md", text)
    for path, text in shells.items():
        _write(folder / f"{path}.md", text)
    _write_assets(folder / "assets")
    return written


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _write_assets(folder: Path) -> None:
    folder.mkdir()
    for asset in resources.files("tunemark.site").joinpath("assets").iterdir():
        if asset.is_file() and asset.name != script.RUNTIME:
            (folder / asset.name).write_bytes(asset.read_bytes())
    for name in script.SCRIPTS:
        (folder / name).write_text(script.script(name), encoding="utf-8")
    (folder / "vega.bundle.js").write_text(charts.bundle(), encoding="utf-8")


def _lay_out(config: Path, docs: Path, folder: Path, *, strict: bool, url: str) -> None:
    # MkDocs logs to a logger without a handler; Python would print each message.
    logging.getLogger("mkdocs").setLevel(logging.WARNING)
    try:
        lay_out(load_config(str(config), docs_dir=str(docs.resolve()), site_dir=str(folder.resolve()), strict=strict, site_url=url))
    except (MkDocsException, Abort) as error:
        raise TunemarkError("mkdocs", str(config), f"MkDocs failed: {error}", exit_code=Exit.INTERNAL) from error
