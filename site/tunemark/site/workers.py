"""Result pages and data files are most of a build, so other processes make them while the build does the rest.

Each process opens the database itself. Pages are written into files, from which the build stamps them into the site.
"""

import gc
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from tunemark.schema.processes import process_pool, worker_count
from tunemark.site import charts, costs, downloads, recommend_data, reproduce, syndication
from tunemark.site.api import Api
from tunemark.site.kept_results import KeptResults, paths_of
from tunemark.site.page import Page, SiteOptions, result_path
from tunemark.site.pages import compare, predictions, result_pages
from tunemark.site.pages.results import EXPLORER_PATH, explorer_json
from tunemark.site.queries import Catalogue, Database
from tunemark.site.stamp import Content, StampedPage, stamped_page

WORTH_IT = 400
"""Fewest results for which processes are started: one takes about two seconds to start."""
SHARES_PER_JOB = 2
"""The process that writes the data files has less time for pages than the others."""
FOLDER = ".pages"


@dataclass(frozen=True, slots=True)
class Share:
    """The results whose pages one process renders into a file."""

    database: Path
    charts: Path
    file: Path
    results: list[str]
    site: SiteOptions = field(default_factory=SiteOptions)


@dataclass(frozen=True, slots=True)
class Work:
    """What other processes make. Both functions wait for it."""

    pages: Callable[[], Iterator[StampedPage]]
    """Return the result pages, in any order."""
    data: Callable[[Path], None]
    """Move the data files into a folder."""


@contextmanager
def working(catalogue: Catalogue, database: Path, out: Path, kept: KeptResults, *, keep: charts.Keep, jobs: int | None) -> Iterator[Work]:
    """Start to make the data files and the pages of the results that are not kept."""
    results = [row["result_id"] for row in catalogue.results if row["result_id"] not in kept.files]
    jobs = jobs or worker_count()
    folder = out / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    data = folder / "data"
    data.mkdir(parents=True)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        pool = stack.enter_context(process_pool(jobs))
        written: Callable[[], None] = partial(write_data, catalogue, data, kept)
        if jobs > 1 and len(catalogue.results) >= WORTH_IT:
            written = pool.submit(_write_data_alone, database.absolute(), catalogue.site, data.absolute(), kept).result
        few = jobs == 1 or len(results) < WORTH_IT
        number = 0 if few else jobs * SHARES_PER_JOB
        shares = [
            Share(database.absolute(), keep.folder.absolute(), folder / f"{place}.jsonl", list(results[place::number]), catalogue.site)
            for place in range(number)
        ]
        futures = [pool.submit(render_share, share) for share in shares]

        def move(target: Path) -> None:
            written()
            _move(data, target)

        yield Work(lambda: map(stamped_page, pages_of(catalogue, results)) if few else _read(futures, shares), move)


def _write_data_alone(database: Path, site: SiteOptions, folder: Path, kept: KeptResults) -> None:
    """Write the data files in a process of its own."""
    with uncollected(), Database(database) as opened:
        write_data(Catalogue.read(opened, site), folder, kept)


def write_data(catalogue: Catalogue, folder: Path, kept: KeptResults) -> None:
    """Write all data files below a folder: for other tools and sites, for the API, and for the scripts of pages. MkDocs does not see them."""
    for path in (path for files in kept.data.values() for path in files.marks):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        kept.link(path, folder)
    tables = downloads.write_files(catalogue.database, folder, kept.data)
    downloads.write_duckdb(catalogue.database, folder)
    texts = {
        compare.DATA_PATH: compare.compare_json(catalogue),
        costs.DATA_PATH: costs.cost_json(catalogue),
        costs.CSV_PATH: downloads.csv_text(costs.default_costs(catalogue)),
        EXPLORER_PATH: explorer_json(catalogue),
        predictions.ERRORS_CSV: downloads.csv_text(catalogue.predictions["throughput_errors"]),
        **({} if recommend_data.FOLDER in kept.data else dict(recommend_data.data_files(catalogue))),
    }
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    reproduce.write_files(catalogue, folder, kept.files)
    syndication.write(catalogue, folder, kept.files)
    Api(catalogue, tables).write(folder, kept.files)
    for result, files in kept.files.items():
        page, _ = paths_of(result)
        for path in files.marks:
            if path != page:
                kept.link(path, folder)


@contextmanager
def uncollected() -> Iterator[None]:
    """Stop the search for cyclic garbage. With the rows of all results in memory it takes a sixth of a build, and finds little."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def pages_of(catalogue: Catalogue, results: Iterable[str]) -> Iterator[Page]:
    """Return the pages of some results."""
    wanted = set(map(result_path, results))
    return (page for page in result_pages(catalogue) if page.path in wanted)


def render_share(share: Share) -> None:
    """Render the pages of a share into its file."""
    with uncollected(), Database(share.database) as opened, charts.kept_in(share.charts), share.file.open("w", encoding="utf-8") as file:
        for page in pages_of(Catalogue.read(opened, share.site, share.results), share.results):
            json.dump(asdict(stamped_page(page)), file, ensure_ascii=False)
            file.write("\n")


def _read(futures: list[Future[None]], shares: list[Share]) -> Iterator[StampedPage]:
    for future, share in zip(futures, shares, strict=True):
        future.result()
        with share.file.open(encoding="utf-8") as file:
            for line in file:
                page = json.loads(line)
                headings = tuple((anchor, words) for anchor, words in page["content"]["headings"])
                yield StampedPage(
                    **page | {"content": Content(**page["content"] | {"headings": headings}), "charts": tuple(page["charts"])}
                )


def _move(source: Path, target: Path) -> None:
    """Move everything in a folder into another one on the same file system, which can have folders of the same names."""
    for path in source.iterdir():
        place = target / path.name
        if path.is_dir() and place.is_dir():
            _move(path, place)
        else:
            path.rename(place)
