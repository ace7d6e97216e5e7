"""Result pages are most of a build, so several processes render them while the build does the rest.

Each process opens the database itself and writes its share of the pages into a file. The build stamps them into the site.
"""

import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

from tunemark.site import charts
from tunemark.site.page import SiteOptions
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
    """The pages that one process renders: every `count`-th page, starting at `number`."""

    database: Path
    charts: Path
    file: Path
    number: int
    count: int
    site: SiteOptions = field(default_factory=SiteOptions)


@contextmanager
def rendering(catalogue: Catalogue, database: Path, out: Path, keep: charts.Keep, jobs: int | None) -> Iterator[Rendered]:
    """Start to render the result pages. The returned function waits for them and yields them, in any order."""
    jobs = jobs or min(_cores(), MOST_JOBS)
    if jobs == 1 or len(catalogue.results) < WORTH_IT:
        yield lambda: map(stamped_page, result_pages(catalogue))
        return
    folder = out / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shares = [
        Share(database.absolute(), keep.folder.absolute(), folder / f"{number}.jsonl", number, jobs, catalogue.site)
        for number in range(jobs)
    ]
    # Start fresh processes: the threads of DuckDB and of the chart library do not survive a fork.
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        futures = [pool.submit(render_share, share) for share in shares]
        yield lambda: _read(futures, shares, keep)
    finally:
        pool.shutdown(cancel_futures=True)
        shutil.rmtree(folder, ignore_errors=True)


def render_share(share: Share) -> set[Path]:
    """Render the pages of a share into its file. Return the charts that they use."""
    with Database(share.database) as opened, charts.kept_in(share.charts) as keep, share.file.open("w", encoding="utf-8") as file:
        for page in islice(result_pages(Catalogue.read(opened, share.site)), share.number, None, share.count):
            json.dump(asdict(stamped_page(page)), file, ensure_ascii=False)
            file.write("\n")
    return keep.used


def _read(futures: list[Future[set[Path]]], shares: list[Share], keep: charts.Keep) -> Iterator[StampedPage]:
    for future, share in zip(futures, shares, strict=True):
        keep.used.update(future.result())
        with share.file.open(encoding="utf-8") as file:
            for line in file:
                page = json.loads(line)
                headings = tuple((anchor, words) for anchor, words in page["content"]["headings"])
                yield StampedPage(**page | {"content": Content(**page["content"] | {"headings": headings})})


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
