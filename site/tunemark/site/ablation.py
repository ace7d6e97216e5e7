"""Pairs of results that differ in one setting alone, from all documents and from measured results.

A pair is two results of one document that agree in the model and in all other stated conditions and settings.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import fmean

from tunemark.site.page import RATES
from tunemark.site.pages.studies import Evidence, gathered
from tunemark.site.tables import Row

SAME = (
    *("source", "section", "accelerator", "accelerator_count", "dataset", "sequence_length", "padding", "packing", "precision"),
    *("micro_batch", "attention", "strategy", "gradient_checkpointing", "fused_kernels", "compile", "software"),
)
"""Columns that are equal in a pair, besides the model."""
CONDITIONS = (
    *SAME,
    *("method", "gradient_accumulation", "global_batch", "optimizer", "weights", "workload", "nodes", "task"),
)
"""Columns that are equal in a pair, besides the model and the recorded settings."""
PEAK = "peak_memory_bytes"
MEMORY = ("peak_memory_bytes", "device_memory_total_bytes")
"""The second counts only on one device, where the sum over devices is that of the device."""
LEAST_RISE = 0.05
"""Smallest rise of memory between two lengths from which an exponent is computed, as a share of the memory at the shortest."""


# Pairs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Switch:
    """A setting with values that mean off and on. `also` are conditions that change with it."""

    name: str
    off: frozenset[str | None]
    on: frozenset[str | None]
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pair:
    """Results without and with a setting; several of one kind are repeats and count as their geometric mean."""

    before: tuple[Row, ...]
    after: tuple[Row, ...]
    change: str
    """What differs, in words."""
    speed: float | None
    memory: float | None
    exponent: float | None = None
    """p where memory grows as length^p, for a sweep of three lengths."""

    @property
    def rows(self) -> tuple[Row, ...]:
        """All results."""
        return (*self.before, *self.after)

    @property
    def source(self) -> str:
        """The document, or `measured`."""
        return str(self.before[0]["source"])

    @property
    def on_cpu(self) -> bool:
        """True if the results are from a CPU."""
        return bool(self.before[0]["backend"] == "cpu")


def peak_memory(evidence: Evidence, row: Row) -> float | None:
    """Return the peak memory in bytes, or None. On one device, a total over all devices counts as well."""
    single = row["accelerator_count"] == 1
    return next((value for key in (MEMORY if single else MEMORY[:1]) if (value := evidence.figure(row, key))), None)


@dataclass(frozen=True)
class Pool:
    """The usable results with their conditions and settings, to be grouped by all but some of these."""

    evidence: Evidence

    @cached_property
    def conditions(self) -> list[tuple[Row, dict[str, object]]]:
        """The results outside of MLPerf, each with its conditions and settings by name."""
        facts = self.evidence.catalogue.facts
        found = []
        for row in self.evidence.results:
            if row["trust"] != "converted":
                settings = {fact["name"]: fact["value"] for fact in facts.get(row["result_id"], ()) if fact["topic"] == "settings"}
                columns = {name: row[name] for name in CONDITIONS if row[name] is not None}
                found.append((row, {"model": self.evidence.model(row)} | settings | columns))
        return found

    @cached_property
    def _stated(self) -> list[tuple[frozenset[tuple[str, object]], tuple[Row, dict[str, object]]]]:
        return [(frozenset(item[1].items()), item) for item in self.conditions]

    def groups(self, *names: str, sources: Collection[str] | None = None) -> Iterator[list[tuple[Row, dict[str, object]]]]:
        """Yield the results that agree in everything but these conditions. `sources` are the only documents to search, by default all."""

        def others(stated: tuple[frozenset[tuple[str, object]], tuple[Row, dict[str, object]]]) -> frozenset[tuple[str, object]]:
            conditions = stated[1][1]
            return stated[0].difference((name, conditions.get(name)) for name in names)

        groups = gathered((item for item in self._stated if sources is None or item[1][0]["source"] in sources), others)
        yield from ([item for _, item in group] for group in groups.values() if len(group) > 1)

    def pair(self, before: Sequence[Row], after: Sequence[Row], change: str, *, per_doubling: float | None = None) -> Pair | None:
        """Return the ratios of two sets of repeats; None without a figure. `per_doubling` is the ratio of two sizes."""
        exponent = 1 / math.log2(per_doubling) if per_doubling else 1.0
        rates = ((self._mean(before, name), self._mean(after, name)) for name in RATES)
        speed = next(((second / first) ** exponent for first, second in rates if first and second), None)
        of_before, of_after = self._mean(before, PEAK), self._mean(after, PEAK)
        saved = (of_after / of_before) ** exponent if of_before and of_after else None
        return Pair(tuple(before), tuple(after), change, speed, saved) if speed or saved else None

    def figure(self, row: Row, quantity: str) -> float | None:
        """Return a figure of a result. For peak memory on one device, a total over all devices counts as well."""
        return peak_memory(self.evidence, row) if quantity == PEAK else self.evidence.figure(row, quantity)

    def _mean(self, rows: Sequence[Row], quantity: str) -> float | None:
        values = [self.figure(row, quantity) for row in rows]
        return math.exp(fmean(math.log(value) for value in values if value)) if values and all(values) else None


def switched(pool: Pool, switch: Switch) -> Iterator[Pair]:
    """Yield the pairs of a setting that is off and on."""
    # Most settings occur in a few documents, and comparing all conditions of all results takes a second.
    off, on = (
        {row["source"] for row, conditions in pool.conditions if conditions.get(switch.name) in kind} for kind in (switch.off, switch.on)
    )
    for group in pool.groups(switch.name, *switch.also, sources=off & on):
        value = {row["result_id"]: conditions.get(switch.name) for row, conditions in group}
        before, after = ([row for row, _ in group if value[row["result_id"]] in kind] for kind in (switch.off, switch.on))
        if before and after:
            change = f"{switch.name.replace('_', ' ')}: {value[before[0]['result_id']] or 'not stated'} \N{RIGHTWARDS ARROW} {value[after[0]['result_id']]}"
            made = pool.pair(before, after, change)
            if made:
                yield made


def doubled(pool: Pool) -> Iterator[Pair]:
    """Yield the pairs of neighbouring micro-batches, with the effect of one doubling."""
    for group in pool.groups("section", "micro_batch", "global_batch"):
        by_size = gathered((row for row, _ in group if row["micro_batch"]), lambda row: int(row["micro_batch"]))
        for small, large in pairwise(sorted(by_size)):
            made = pool.pair(
                by_size[small], by_size[large], f"micro-batch {small} \N{RIGHTWARDS ARROW} {large}", per_doubling=large / small
            )
            if made:
                yield made


def accumulated(pool: Pool) -> Iterator[Pair]:
    """Yield the pairs with the same global batch in more and smaller micro-steps."""
    for group in pool.groups("section", "micro_batch", "gradient_accumulation"):
        known = [row for row, _ in group if row["global_batch"] and row["gradient_accumulation"] and row["micro_batch"]]
        by_steps = gathered(known, lambda row: int(row["gradient_accumulation"]))
        for few, many in pairwise(sorted(by_steps)):
            made = pool.pair(by_steps[few], by_steps[many], f"micro-steps {few} \N{RIGHTWARDS ARROW} {many}")
            if made:
                yield made


def by_length(pool: Pool) -> Iterator[Pair]:
    """Yield the three longest lengths of each sweep, with the exponent p where memory grows as length^p.

    Memory M has a fixed part and a part proportional to L^p for the length L. Three lengths give p, by
    (L3^p - L2^p) / (L2^p - L1^p) = (M3 - M2) / (M2 - M1). Small differences are noise and give no exponent.
    """
    for group in pool.groups("section", "sequence_length"):
        known = [
            (int(row["sequence_length"]), memory, row) for row, _ in group if row["sequence_length"] and (memory := pool.figure(row, PEAK))
        ]
        ordered = sorted(known, key=lambda item: item[0])[-3:]
        if len({length for length, *_ in ordered}) < 3:  # noqa: PLR2004 - three unknowns
            continue
        (l1, m1, first), (l2, m2, second), (l3, m3, third) = ordered
        exponent = exponent_of_length((l1, l2, l3), (m3 - m2) / (m2 - m1)) if min(m2 - m1, m3 - m2) > LEAST_RISE * m1 else None
        if exponent is not None:
            yield Pair((first,), (second, third), f"{l1:,}, {l2:,} and {l3:,} tokens", None, None, exponent)


def exponent_of_length(lengths: tuple[int, int, int], rise: float) -> float | None:
    """Return the exponent p by bisection, or None if it is outside 0 to 4."""
    second, third = lengths[1] / lengths[0], lengths[2] / lengths[0]

    def rise_of(exponent: float) -> float:
        return float((third**exponent - second**exponent) / (second**exponent - 1))

    low, high = 1e-3, 4.0
    if not rise_of(low) <= rise <= rise_of(high):
        return None
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if rise_of(middle) < rise else (low, middle)
    return high
