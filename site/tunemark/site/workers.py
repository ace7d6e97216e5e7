"""Result pages are most of a build, so several processes render them while the build does the rest.

Each process opens the database itself and writes its share of the pages into a file. The build stamps them into the site.
"""

import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tunemark.site import charts
from tunemark.site.page import Page, SiteOptions, result_path
from tunemark.site.pages import result_pages
from tunemark.site.queries import Catalogue, Database
from tunemark.site.stamp import Content, StampedPage, stamped_page

WORTH_IT = 400
"""Fewest results for which processes are started: one takes about two seconds to start."""
MOST_JOBS = 8
FOLDER = ".pages"
Rendered = Callable[[], Iterator[StampedPage]]


@dataclass(frozen=True, slots=True)
class Share:
    """The results whose pages one process renders into a file."""

    database: Path
    charts: Path
    file: Path
    results: list[str]
    site: SiteOptions = field(default_factory=SiteOptions)


@contextmanager
def rendering(
    catalogue: Catalogue, database: Path, out: Path, keep: charts.Keep, jobs: int | None, results: Sequence[str]
) -> Iterator[Rendered]:
    """Start to render the pages of some results. The returned function waits for them and yields them, in any order."""
    jobs = jobs or min(_cores(), MOST_JOBS)
    if jobs == 1 or len(results) < WORTH_IT:
        yield lambda: map(stamped_page, pages_of(catalogue, results))
        return
    folder = out / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shares = [
        Share(database.absolute(), keep.folder.absolute(), folder / f"{number}.jsonl", list(results[number::jobs]), catalogue.site)
        for number in range(jobs)
    ]
    # Start fresh processes: the threads of DuckDB and of the chart library do not survive a fork.
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        futures = [pool.submit(render_share, share) for share in shares]
        yield lambda: _read(futures, shares)
    finally:
        pool.shutdown(cancel_futures=True)
        shutil.rmtree(folder, ignore_errors=True)


def pages_of(catalogue: Catalogue, results: Iterable[str]) -> Iterator[Page]:
    """Return the pages of some results."""
    wanted = set(map(result_path, results))
    return (page for page in result_pages(catalogue) if page.path in wanted)


def render_share(share: Share) -> None:
    """Render the pages of a share into its file."""
    with Database(share.database) as opened, charts.kept_in(share.charts), share.file.open("w", encoding="utf-8") as file:
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


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
