"""Time what a pull request and a publication wait for: reading, judging and loading many submissions.

    python benchmarks/ingest.py [--files 1000] [--json]

The submissions are simulated runs of lora-8b on one H100 (gate_mutations/simulated.py), each with noise of its own, in a temporary
checkout with the facts of this repository and no published results. The floor reads, hashes and parses each file into the record.
Each figure is one pass; the floor is timed before and after, and ratios are to their mean.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from gate_mutations.bases import write
from gate_mutations.checkout import git, make_checkout
from gate_mutations.honest import gpu

from tunemark.collector.gate.check import judge
from tunemark.collector.store.loading import collect, submission_files
from tunemark.harness.plan.options import Options
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.upgrade import read_record

FIRST_RUN = datetime(2026, 11, 21, 1, tzinfo=UTC)
STEPS = 40


def make_file(number: int, root: Path) -> None:
    """Write the submission of one simulated run."""
    started_at = FIRST_RUN + timedelta(seconds=71 * number, microseconds=1009 * number % 999_983)
    write(gpu(10_000 + number, options=Options(max_steps=STEPS), started_at=started_at), root)


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that work takes."""
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def floor(files: list[Path]) -> None:
    """Read, hash and parse files."""
    for path in files:
        content = path.read_bytes()
        sha256(content).hexdigest()
        read_record(content)


def measure(count: int, root: Path) -> dict[str, Any]:
    """Return the times in a checkout with this number of submissions."""
    with ProcessPoolExecutor(2) as pool:
        generate_s = timed(lambda: list(pool.map(partial(make_file, root=root), range(count), chunksize=8)))
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "Results")
    facts, files = FactBase(root / "data"), submission_files(root).files
    facts.read_all()
    database, day = root / "build" / "ingest.duckdb", FIRST_RUN.date() + timedelta(days=2)
    load = partial(collect, root, database, lambda: None, day)
    floors = [timed(lambda: floor(files))]
    rejected = [path.name for path in files if judge(path, facts).problems]
    times = {"judge": timed(lambda: [judge(path, facts) for path in files])}
    times["collect"] = timed(load)
    command = [sys.executable, "-m", "tunemark", "validate", str(files[0])]
    times["validate one file, from the shell"] = timed(lambda: subprocess.run(command, cwd=root, check=False, capture_output=True))  # noqa: S603 - our own command line
    floors.append(timed(lambda: floor(files)))
    sizes = [path.stat().st_size for path in files]
    return {
        "files": count,
        "bytes_a_file": round(sum(sizes) / len(sizes)),
        "rejected": len(rejected),
        "generate_s": generate_s,
        "floor_s": sum(floors) / 2,
        "times_s": times,
        "peak_bytes": 1024 * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000, help="number of submissions (default: 1000)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ingest-") as name:
        result = measure(given.files, make_checkout(Path(name) / "checkout").root)
    if given.json:
        sys.stdout.write(json.dumps(result, indent=1) + "\n")
        return
    lines = [
        f"{result['files']:,} files of {result['bytes_a_file']:,} bytes, {result['rejected']} rejected",
        "",
        "| what | time | ratio to the floor |",
        "|---|---|---|",
    ]
    for what, seconds in {"floor: read, hash, parse": result["floor_s"], **result["times_s"]}.items():
        lines.append(f"| {what} | {seconds:.2f} s | {seconds / result['floor_s']:.1f} |")
    lines.append(f"\nPeak memory of one process: {result['peak_bytes'] / 2**20:.0f} MiB")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
