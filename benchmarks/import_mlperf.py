"""Time `import mlperf` into the database against a plain parse of the same logs, interleaved in one run.

    python benchmarks/import_mlperf.py mlperf-training-llama2-70b-lora.tar.xz [rounds]

The plain parse reads the archive and parses each MLLOG line as JSON: nothing that keeps results can be faster
without parsing less. The import reads the same archive, converts it, makes the rows and writes the database.
Both run alternately, so that a busy machine slows both; the ratio of the medians is what to compare.
"""

import json
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tunemark.collector.importers.mlperf import read_entries
from tunemark.collector.store.database import arrow_schemas, as_arrow, build_database, merge
from tunemark.collector.store.fact_rows import fact_rows
from tunemark.collector.store.published_rows import converted_rows
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.base import canonical_json, content_id

MARK = b":::MLLOG"


def plain_parse(archive: Path) -> int:
    """Parse every MLLOG line of every log; return how many there are."""
    events = 0
    with tarfile.open(archive, "r|*") as stream:
        for entry in stream:
            file = stream.extractfile(entry) if entry.isreg() and entry.name.endswith(".txt") else None
            if file is None:
                continue
            for line in file.read().splitlines():
                at = line.find(MARK)
                if at >= 0:
                    json.loads(line[at + len(MARK) :])
                    events += 1
    return events


def into_database(archive: Path, facts: FactBase, database: Path) -> int:
    """Convert the archive and write a database of it; return how many runs are in it."""
    found = read_entries([archive], facts)
    rows = fact_rows(facts)
    merge(rows, converted_rows((result, result.id, content_id(canonical_json(result))) for result in found.results))
    build_database(database, {name: as_arrow(rows.get(name, []), schema) for name, schema in arrow_schemas().items()})
    return len(rows["runs"])


def timed(work: Callable[[], int]) -> tuple[float, float, int]:
    """Return wall seconds, CPU seconds and the answer of a piece of work."""
    wall, cpu = time.perf_counter(), time.process_time()
    answer = work()
    return time.perf_counter() - wall, time.process_time() - cpu, answer


def main() -> None:
    """Time both alternately and print medians and their ratio."""
    if len(sys.argv) not in {2, 3}:
        sys.exit(__doc__)
    archive, rounds = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else 5
    facts = FactBase.of_project()
    plain, imported = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            plain.append(timed(lambda: plain_parse(archive)))
            imported.append(timed(lambda: into_database(archive, facts, Path(folder) / "mlperf.duckdb")))
    for name, times, unit in (("plain parse", plain, "events"), ("import into the database", imported, "runs")):
        wall, cpu = (statistics.median(column) for column in ([one[0] for one in times], [one[1] for one in times]))
        print(f"{name}: {wall:.2f} s wall (best {min(one[0] for one in times):.2f}), {cpu:.2f} s CPU, {times[0][2]:,} {unit}")
    ratio = statistics.median(one[0] for one in imported) / statistics.median(one[0] for one in plain)
    print(f"ratio: {ratio:.2f} (medians of {rounds} interleaved rounds)")


if __name__ == "__main__":
    main()
