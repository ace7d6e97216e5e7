"""A claim about the time of a fine-tuning in MLPerf, against the entries of the rounds that are imported."""

import re
from collections.abc import Iterator
from statistics import fmean

from tunemark.collector.audit.claim_text import ClaimText
from tunemark.collector.gate.read import CONVERTED, read_or_none, records_in
from tunemark.schema.files import project_root
from tunemark.schema.formats import significant
from tunemark.schema.records.converted import ConvertedResult

TASK = "llama-2-70b"
"""Model that MLPerf fine-tunes."""
FEWEST = 3
"""Runs of which MLPerf leaves out the shortest and the longest."""
LOOSE = 0.1
"""Share by which another entry on the same devices may be faster or slower: 15 of 151 entries of v4.0 to v5.1 are further from all others."""


def is_of_mlperf(claim: ClaimText) -> bool:
    """Return True if a text states a time of an entry of MLPerf on a known number of known devices."""
    named = re.search(r"\bml[ -]?perf\b", claim.text, re.IGNORECASE)
    of_task = not claim.models or claim.models[0].key == TASK
    known = named and of_task and (project_root() / CONVERTED).is_dir()
    return bool(known and claim.values("train_time_s") and len(claim.devices) == 1 and len(claim.counts) == 1)


def against_entries(claim: ClaimText) -> tuple[str, str, str]:
    """Return the reading of a claim, the times of the entries with these devices, and if it is `within` or `outside` of them; "" without an entry."""
    [devices], [count], [stated, *_] = claim.devices, claim.counts, claim.values("train_time_s")
    asked = re.search(r"\bv?(\d\.\d)\b", claim.text)
    every = list(_entries({card.key for card in devices}, count))
    entries = [each for each in every if asked and each[0] == f"v{asked[1]}"] or every
    read = f"{count} x {devices[0].name}{f', round v{asked[1]}' if asked else ''}"
    if not entries:
        return read, "no entry of the imported rounds of MLPerf (v4.0 to v5.1) has these devices", ""
    times = [minutes for _, minutes in entries]
    rounds = sorted({name for name, _ in entries})
    span = " to ".join(dict.fromkeys((rounds[0], rounds[-1])))
    ends = " to ".join(dict.fromkeys((significant(min(times)), significant(max(times)))))
    among = min(times) * (1 - LOOSE) * 60 <= stated.high and stated.low <= max(times) * (1 + LOOSE) * 60
    return read, f"{len(times)} entries of MLPerf {span} on these devices take {ends} min", "within" if among else "outside"


def _entries(keys: set[str], count: int) -> Iterator[tuple[str, float]]:
    """Yield round and score in minutes of the entries: the mean time to the target without the shortest and the longest run."""
    for path in records_in(project_root() / CONVERTED).files:
        record = read_or_none(path)
        if isinstance(record, ConvertedResult) and record.conditions.accelerator in keys and record.conditions.accelerator_count == count:
            times = sorted(run.time_to_target_s for run in record.runs if run.time_to_target_s)
            if len(times) == len(record.runs) >= FEWEST:
                yield record.round, fmean(times[1:-1]) / 60
