"""Measure the site build for 358, 2,000 and 10,000 results: time, peak memory and size, and the time after one result changed.

    python benchmarks/site_scale.py                    # after `tunemark collect`
    python benchmarks/site_scale.py --results 2000 --jobs 1

The database is copied. Its results are left out, or repeated under other ids with all rows that belong to them. Charts of repeated
results are drawn only once, because their numbers are equal; a new chart takes 60 ms. Builds after the first are repeated, and the
median counts. Each time is wall time, followed by the processor time of all processes, which other work on the machine changes less.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import duckdb
import psutil

from tunemark.schema.formats import GIB

ROOT = Path(__file__).resolve().parents[1]
SIZES = (358, 2_000, 10_000)
REPEATS = 3
BY_SOURCE = """
    select result_id from result_rows
    order by case when source in ('measured', '000', '001', '002', '003', '004') or source like 'mlperf%' then 0 else 1 end, source, result_id
"""
"""The first 358 are those of the five source documents, MLPerf and our own."""
KEYS = ("result_id", "record_id")
LISTS = ("result_ids", "record_ids")


@dataclass(frozen=True)
class Build:
    """What one build took."""

    wall_s: float
    processor_s: float
    """Of all processes together."""
    memory: int
    """Peak in bytes, of all processes together."""


def main() -> None:
    """Print one row for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=int, nargs="+", default=SIZES)
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--db", type=Path, default=ROOT / "build" / "tunemark.duckdb")
    options = parser.parse_args()
    print("| results | first build | again, nothing changed | one result changed | peak memory | pages | site | largest page |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for number in options.results:
            print(measured(options.db, Path(folder) / str(number), number, options.jobs), flush=True)


def measured(database: Path, out: Path, number: int, jobs: int | None) -> str:
    """Return the table row of one size."""
    out.mkdir()
    copy = out / "copy.duckdb"
    shutil.copyfile(database, copy)
    with duckdb.connect(str(copy)) as connection:
        resize(connection, number)
    first = build(copy, out, jobs)
    again = [build(copy, out, jobs) for _ in range(REPEATS)]
    changed = [after_a_change(copy, out, jobs) for _ in range(REPEATS)]
    pages = [path.stat().st_size for path in (out / "site").rglob("*.html")]
    size = sum(path.stat().st_size for path in (out / "site").rglob("*") if path.is_file())
    shutil.rmtree(out)
    return (
        f"| {number:,} | {shown([first])} | {shown(again)} | {shown(changed)} | {first.memory / GIB:.2f} GiB "
        f"| {len(pages):,} | {size / 1e6:.0f} MB | {max(pages) / 1e3:.0f} kB |"
    )


def shown(builds: list[Build]) -> str:
    """Return the median wall time and the median processor time of builds."""
    return f"{median(each.wall_s for each in builds):.0f} s, {median(each.processor_s for each in builds):.0f} s"


def after_a_change(database: Path, out: Path, jobs: int | None) -> Build:
    """Return a build after one result has changed."""
    with duckdb.connect(str(database)) as connection:
        one = connection.execute("select min(result_id) from result_rows where tokens_per_s is not null").fetchone()
        connection.execute("update result_rows set tokens_per_s = tokens_per_s * 1.01 where result_id = ?", one)
        # The version of the data changes with every change, and is in every file of the API.
        connection.execute("update collection set inputs_sha256 = sha256(inputs_sha256)")
    return build(database, out, jobs)


def resize(connection: duckdb.DuckDBPyConnection, number: int) -> None:
    """Leave out or repeat results to get the wanted number."""
    ids = [row[0] for row in connection.execute("select result_id from result_rows order by hash(result_id)").fetchall()]
    pairs = list(repeated(ids, number))
    connection.execute("create temp table wanted (old varchar, new varchar)")
    connection.executemany("insert into wanted values (?, ?)", pairs)
    names = connection.execute("select table_name from information_schema.tables where table_type = 'BASE TABLE' and table_schema = 'main'")
    for (table,) in names.fetchall():
        columns = [
            row[0]
            for row in connection.execute("select column_name from information_schema.columns where table_name = ?", [table]).fetchall()
        ]
        key = next((name for name in KEYS if name in columns), None)
        if key and table != "wanted":
            selected = f'select t.* replace (w.new as {key}) from "{table}" t join wanted w on t.{key} = w.old'  # noqa: S608 - our own names
            connection.execute(f"create temp table changed as {selected}")
            # Records that are statements, not results, stay as they are.
            replaced = f'"{table}" where {key} in (select unnest($1::varchar[]))'
            connection.execute(f"delete from {replaced}", [ids])  # noqa: S608 - our own names
            connection.execute(f'insert into "{table}" select * from changed')  # noqa: S608 - our own names
            connection.execute("drop table changed")
    # A repeated result is not in the file of its source, so it has no record to download.
    connection.execute("update result_rows set file = '' where result_id in (select new from wanted where old <> new)")
    for table, column in (("findings", "record_ids"), ("document_cells", "result_ids"), ("configurations", "result_ids")):
        gone = "select unnest($1::varchar[]) except select new from wanted"
        connection.execute(f"delete from {table} where list_has_any({column}, (select list(id) from ({gone}) as g(id)))", [ids])  # noqa: S608 - our own names
    connection.execute("drop table wanted")


def repeated(ids: list[str], number: int) -> Iterator[tuple[str, str]]:
    """Yield the old and the new id of each result."""
    for position in range(number):
        old = ids[position % len(ids)]
        turn = position // len(ids)
        yield old, f"{old}-copy{turn}" if turn else old


def build(database: Path, out: Path, jobs: int | None) -> Build:
    """Build the site and return what it took."""
    command = [sys.executable, "-m", "tunemark", "site", "build", "--db", str(database), "--out", str(out)]
    start, before = time.monotonic(), os.times()
    process = subprocess.Popen([*command, *(["--jobs", str(jobs)] if jobs else [])], stdout=subprocess.DEVNULL)  # noqa: S603 - our own command
    peak = 0

    def watch() -> None:
        nonlocal peak
        while process.poll() is None:
            try:
                whole = psutil.Process(process.pid)
                peak = max(peak, sum(each.memory_full_info().pss for each in (whole, *whole.children(recursive=True))))
            except psutil.Error:
                pass
            time.sleep(0.2)

    watcher = threading.Thread(target=watch)
    watcher.start()
    failed = process.wait()
    watcher.join()
    if failed:
        sys.exit("the build failed")
    after = os.times()
    processor_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Build(time.monotonic() - start, processor_s, peak)


if __name__ == "__main__":
    main()
