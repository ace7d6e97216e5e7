"""Configurations: repeats of a run, pooled, with the variance between runs. See definitions#intervals.

What is ranked is a configuration, never a single run: repeats on the same device do not hold different ranks.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from itertools import combinations
from math import log
from statistics import geometric_mean, stdev

from tunemark.collector.store.rows import Row
from tunemark.schema.comparability import configuration
from tunemark.schema.statistics.intervals import one_more_run
from tunemark.schema.vocabulary import Trust

INDEPENDENT_AFTER = timedelta(hours=1)
"""Series of one configuration that start within this time of each other share the state of the machine."""


def pool_configurations(result_rows: Iterable[Row]) -> list[Row]:
    """Return one row per configuration of rankable measured results, and set `configuration` and `trust` of those results.

    A configuration is `reproduced` if two independent series agree.
    """
    members: dict[str, list[Row]] = {}
    for row in result_rows:
        if row["source"] == "measured" and row["rankable"] and row["tokens_per_s"]:
            row["configuration"] = configuration(row)
            if row["configuration"] is not None:
                members.setdefault(row["configuration"], []).append(row)
    return [_pooled(name, rows) for name, rows in sorted(members.items())]


def _pooled(name: str, rows: Sequence[Row]) -> Row:
    rates = [row["tokens_per_s"] for row in rows]
    pooled = one_more_run(rates) if len(rates) > 1 else None
    series = _independent_series(rows)
    reproduced = any(_agree(a, b) for a, b in combinations(series, 2))
    if reproduced:
        for row in rows:
            row["trust"] = Trust.REPRODUCED.value
    return {
        "configuration": name,
        "runs": len(rows),
        "series": len(series),
        "tokens_per_s": pooled.value if pooled else rates[0],
        "tokens_per_s_low": pooled.low if pooled else None,
        "tokens_per_s_high": pooled.high if pooled else None,
        "between_run_cv": stdev(map(log, rates)) if pooled else None,
        "reproduced": reproduced,
        "result_ids": sorted(row["result_id"] for row in rows),
    }


def _independent_series(rows: Sequence[Row]) -> list[list[float]]:
    """Return the rates of each independent series: runs of one study, or runs that started shortly after each other."""
    series: list[list[float]] = []
    last: Row | None = None
    for row in sorted(rows, key=lambda row: (row["started_at"], row["result_id"])):
        same_study = last is not None and row.get("study_id") is not None and row.get("study_id") == last.get("study_id")
        if last is not None and (same_study or row["started_at"] - last["started_at"] < INDEPENDENT_AFTER):
            series[-1].append(row["tokens_per_s"])
        else:
            series.append([row["tokens_per_s"]])
        last = row
    return series


def _agree(first: Sequence[float], second: Sequence[float]) -> bool:
    """Return True if the mean of one series lies within the interval for one more run of the other, which needs repeats."""
    return any(
        len(a) > 1 and (interval := one_more_run(a)).low <= geometric_mean(b) <= interval.high
        for a, b in ((first, second), (second, first))
    )
