"""Predicted against published memory: errors by source, and verdicts against what ran and what ran out of memory.

    python benchmarks/memory_errors.py

A row is a published peak with a known reading (data/known/memory_readings.toml). `left out` repeats the fit of the one fitted number, the
share of freed memory that the allocator does not reuse, and of the interval without the rows of the source that is judged.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tunemark.collector.audit.load import load_evidence
from tunemark.collector.audit.published_shape import published_shape
from tunemark.collector.predict.predicted_vs_measured import memory_error_rows
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import GIB
from tunemark.schema.physics import memory_states
from tunemark.schema.physics.memory import estimate_memory
from tunemark.schema.records.published import PublishedResult
from tunemark.schema.vocabulary import PublishedStatus

CHECKOUT = Path(__file__).parents[1]
SHARES = tuple(share / 20 for share in range(4, 19))
"""Values of the fitted share that are tried."""


@dataclass(frozen=True)
class Errors:
    """Errors of a group of rows, predicted / published - 1."""

    group: str
    errors: tuple[float, ...]

    def line(self) -> str:
        """Return a row of the table."""
        low = sum(error < -0.1 for error in self.errors)
        size = median(abs(error) for error in self.errors)
        return f"| {self.group} | {len(self.errors)} | {size:.1%} | {min(self.errors):+.1%} | {max(self.errors):+.1%} | {low} |"


def published(facts: FactBase) -> tuple[PublishedResult, ...]:
    """Return all published results."""
    return tuple(record for record in load_evidence(CHECKOUT, facts).records if isinstance(record, PublishedResult))


def errors_by_group(facts: FactBase, results: Iterable[PublishedResult]) -> list[Errors]:
    """Return the errors by source, quantity and one or several devices."""
    groups: dict[str, list[float]] = defaultdict(list)
    for row in memory_error_rows(facts, results):
        devices = "several devices" if row["accelerator_count"] > 1 else "one device"
        groups[f"{row['result_id'][:3]}, {row['quantity']}, {devices}"].append(row["error"])
    return [Errors(name, tuple(groups[name])) for name in sorted(groups)]


def verdicts(facts: FactBase, results: Iterable[PublishedResult]) -> Counter[tuple[str, str]]:
    """Count the verdicts on steps that ran and on steps that ran out of memory, for documents whose training code is known."""
    counted: Counter[tuple[str, str]] = Counter()
    known = {reading.source for reading in facts.known.memory_readings}
    for result in results:
        device = facts.accelerators.get(result.conditions.accelerator or "")
        judged = result.source in known and result.status in {PublishedStatus.OK, PublishedStatus.OOM}
        if not judged or device is None or device.memory_gib is None or result.id in facts.known.memory_reading(result.source).left_out:
            continue
        shape = published_shape(result.conditions, facts, facts.known.memory_reading(result.source))
        if shape is not None:
            counted[(result.status.value, estimate_memory(shape).fit_on(int(device.memory_gib * GIB)))] += 1
    return counted


def left_out(facts: FactBase, results: Sequence[PublishedResult]) -> list[Errors]:
    """Return the errors of reserved and used memory, each source judged with the share that fits all other sources best."""
    by_share = {}
    kept = memory_states.NOT_REUSED
    for share in SHARES:
        memory_states.NOT_REUSED = share
        by_share[share] = [row for row in memory_error_rows(facts, results) if row["quantity"] != "allocated"]
    memory_states.NOT_REUSED = kept
    judged = []
    for source in sorted({row["result_id"][:3] for row in by_share[kept]}):

        def size(share: float, source: str = source) -> float:
            others: dict[str, list[float]] = defaultdict(list)
            for row in by_share[share]:
                if row["result_id"][:3] != source:
                    others[row["result_id"][:3]].append(abs(row["error"]))
            return sum(median(errors) for errors in others.values())

        best = min(SHARES, key=size)
        rows = tuple(row["error"] for row in by_share[best] if row["result_id"][:3] == source)
        judged.append(Errors(f"{source}, share {best:g} from the others", rows))
    return judged


def coverage(facts: FactBase, results: Iterable[PublishedResult]) -> dict[str, tuple[int, int]]:
    """Return the number of figures within their interval, and of all of them, by quantity."""
    counted: dict[str, tuple[int, int]] = {}
    for row in memory_error_rows(facts, results):
        inside, total = counted.get(row["quantity"], (0, 0))
        counted[row["quantity"]] = inside + row["covered"], total + 1
    return counted


def main() -> None:
    """Print all tables."""
    facts = FactBase(CHECKOUT / "data")
    results = published(facts)
    head = "| {} | Rows | Median error | Lowest | Highest | More than 10% low |\n|---|---|---|---|---|---|"
    print(head.format("Source, quantity"))
    for errors in errors_by_group(facts, results):
        print(errors.line())
    print("\n" + head.format("Left out"))
    for errors in left_out(facts, results):
        print(errors.line())
    print()
    for quantity, (inside, total) in sorted(coverage(facts, results).items()):
        print(f"{quantity}: {inside} of {total} in the 90% interval ({inside / total:.1%})")
    print()
    counted = verdicts(facts, results)
    print("| Outcome | fits | probably | tight | no |\n|---|---|---|---|---|")
    for outcome in ("ok", "oom"):
        print(f"| {outcome} | " + " | ".join(str(counted[(outcome, verdict)]) for verdict in ("fits", "probably", "tight", "no")) + " |")


if __name__ == "__main__":
    main()
