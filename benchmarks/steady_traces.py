"""Measure how often a window called stable has the true rate, and how often a steady trace is refused, on synthetic traces.

Usage: python benchmarks/steady_traces.py [--traces 1000] [--seed 0] [--json]
Example: python benchmarks/steady_traces.py --seed 7

The true rate of a trace is that of its last level: after a slow start, a change of level or throttling. A trace that drifts by more
than 2% has none, so a stable window over the drift is wrong. Noise is log-normal with 0.3, 1 or 3% and a correlation of 0, 0.3 or 0.6
between neighbours.
"""

import argparse
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from interval_coverage import ar1

from tunemark.schema.records.plan import Measurement
from tunemark.schema.records.trace import StepTrace
from tunemark.schema.statistics.intervals import Floats
from tunemark.schema.statistics.steady_state import steady_window

RATE_ERROR = 0.01
NO_DRIFT = 0.02
KINDS = (
    *("steady",) * 3,
    "regular stalls",
    "alternating",
    "bimodal",
    *("slow start",) * 3,
    "decaying start",
    "drift",
    "change of level",
    "throttled at half",
)
"""The mixture: traces take these kinds in turn."""
STEADY = ("steady", "regular stalls", "alternating")
RULES = Measurement(min_warmup_steps=10, min_steady_steps=100, min_steady_s=60.0)


@dataclass(frozen=True, slots=True)
class SyntheticTrace:
    """Step times with a known truth."""

    kind: str
    times: Floats
    levels: Floats
    """Step times without noise."""
    mean: float | None
    """True mean step time once steady; None if it drifts."""


def levels_of(rng: np.random.Generator, kind: str, n: int) -> tuple[Floats, float | None]:
    """Return the relative step times of a kind without noise, shape (n,), and their true mean once steady."""
    levels, start = np.ones(n), int(rng.integers(2, 41))
    if kind == "regular stalls":
        every = int(rng.integers(10, 40))
        levels[int(rng.integers(every)) :: every] += rng.uniform(0.2, 2)
        return levels, float(levels.mean())
    if kind == "alternating":
        levels[::2] = rng.uniform(1.05, 2)
        return levels, float(levels.mean())
    if kind == "bimodal":
        slow, share = rng.uniform(1.05, 1.5), rng.uniform(0.2, 0.8)
        levels[rng.random(n) < share] = slow
        return levels, 1 + (slow - 1) * share
    if kind == "slow start":
        levels[:start] = rng.uniform(1.05, 5)
    elif kind == "decaying start":
        levels += (rng.uniform(1.05, 5) - 1) * np.exp(-np.arange(n) * 3 / start)
    elif kind == "drift":
        return np.linspace(1, 1 + rng.choice([-1, 1]) * rng.uniform(0.02, 0.2), n), None
    elif kind == "change of level":
        levels[int(n * rng.uniform(0.2, 0.8)) :] *= 1 + rng.choice([-1, 1]) * rng.uniform(0.03, 0.3)
        return levels, float(levels[-1])
    elif kind == "throttled at half":
        levels[n // 2 :] *= 1 + rng.uniform(0.03, 0.5)
        return levels, float(levels[-1])
    return levels, 1.0


def traces(count: int, seed: int) -> Iterator[SyntheticTrace]:
    """Yield traces of all kinds in turn, with 120 to 400 steps of 0.05 to 0.5 s."""
    rng = np.random.default_rng(seed)
    for index in range(count):
        kind, n = KINDS[index % len(KINDS)], int(rng.integers(120, 401))
        noise, phi, step_s = float(rng.choice([0.003, 0.01, 0.03])), float(rng.choice([0.0, 0.3, 0.6])), rng.uniform(0.05, 0.5)
        levels, mean = levels_of(rng, kind, n)
        times = step_s * levels * np.exp(noise * ar1(rng, n, phi))
        yield SyntheticTrace(kind, times, step_s * levels, None if mean is None else step_s * mean * math.exp(noise**2 / 2))


def trace_of(times: Floats) -> StepTrace:
    """Return the step log of a run with these step times."""
    n = len(times)
    return StepTrace(
        started_at_s=0.0,
        completed_at_s=list(np.cumsum(times)),
        loss=[1.0] * n,
        slot_tokens=[8] * n,
        real_tokens=[8] * n,
        supervised_tokens=[8] * n,
        documents=[1] * n,
        rows=[1] * n,
    )


def outcomes(count: int, seed: int) -> dict[str, Counter[str]]:
    """Return by kind the number of traces, stable windows, wrong ones among these, and steady traces refused."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for trace in traces(count, seed):
        window = steady_window(trace_of(trace.times), RULES)
        row = table[trace.kind]
        row["traces"] += 1
        row["stable"] += window.stable
        row["refused"] += not window.stable and trace.kind in STEADY
        part = slice(window.first, window.stop)
        if trace.mean is None:
            right = trace.levels[part].max() / trace.levels[part].min() - 1 < NO_DRIFT
        else:
            right = abs(float(trace.times[part].mean()) / trace.mean - 1) < RATE_ERROR
        row["wrong"] += window.stable and not right
    return dict(table)


def shares(table: dict[str, Counter[str]]) -> tuple[float, float]:
    """Return the share of stable windows with the true rate, and the share of steady traces that were refused."""
    stable, wrong = (sum(row[name] for row in table.values()) for name in ("stable", "wrong"))
    return 1 - wrong / stable, sum(row["refused"] for row in table.values()) / sum(table[kind]["traces"] for kind in STEADY)


def main() -> None:
    """Print the outcomes by kind of trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    table = outcomes(options.traces, options.seed)
    right, refused = shares(table)
    if options.json:
        print(json.dumps({"kinds": table, "right_if_stable": right, "steady_refused": refused}, indent=1))
        return
    columns = ("traces", "stable", "wrong", "refused")
    print(f"{'kind':18}" + "".join(f"{name:>9}" for name in columns))
    for kind, row in table.items():
        print(f"{kind:18}" + "".join(f"{row[name]:9}" for name in columns))
    print(f"stable windows within {RATE_ERROR:.0%} of the true rate: {right:.1%}; steady traces refused: {refused:.1%}")


if __name__ == "__main__":
    main()
