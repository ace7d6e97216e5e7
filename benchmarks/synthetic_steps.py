"""Measure the intervals of rates and the steady window on synthetic step times, whose true rate is known.

Usage: python benchmarks/synthetic_steps.py [--runs 2000] [--traces 1000] [--seed 0]

Intervals: how often the 95% interval of a rate contains the true rate. AR(1): normal step times with correlation phi between neighbours.
Log-normal: the exponential of it, with a long tail. Stalls: every k-th step takes twice as long. Slow and fast: AR(1) noise with phi 0.9 plus
independent noise of the same size.

Windows: how often a window called stable has the true rate, and how often a steady trace is refused. The true rate is that of the last level:
after a slow start, a change of level or throttling, and that without a slow spell. A trace that drifts by more than 2% or rises and falls
in one to three slow waves has none. Noise is log-normal with 0.3, 1 or 3% and a
correlation of 0, 0.3 or 0.6 between neighbours.
"""

import argparse
import math
from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np

from tunemark.schema.records.plan import Measurement
from tunemark.schema.records.trace import StepTrace
from tunemark.schema.statistics.intervals import Floats, ratio_interval
from tunemark.schema.statistics.steady_state import steady_window

BURN_IN = 200
Generator = np.random.Generator


def ar1(rng: Generator, n: int, phi: float) -> Floats:
    """Return a stationary AR(1) series of n values with mean 0 and variance 1."""
    shocks, values = rng.standard_normal(n + BURN_IN), np.zeros(n + BURN_IN)
    for i in range(1, n + BURN_IN):
        values[i] = phi * values[i - 1] + shocks[i]
    return values[BURN_IN:] * math.sqrt(1 - phi**2)


# Intervals


def stalls(rng: Generator, n: int, every: float) -> tuple[Floats, float]:
    """Return step times of which every k-th takes twice as long, and their true mean."""
    times = 1 + 0.01 * rng.standard_normal(n)
    times[int(rng.integers(every)) :: int(every)] += 1
    return times, 1 + 1 / every


CASES: dict[str, Callable[[Generator, int], tuple[Floats, float]]] = {
    **{f"AR(1), phi {phi:g}": lambda rng, n, phi=phi: (1 + 0.03 * ar1(rng, n, phi), 1.0) for phi in (0.0, 0.3, 0.5, 0.7, 0.8)},
    **{
        f"log-normal, phi {phi:g}": lambda rng, n, phi=phi: (np.exp(0.3 * ar1(rng, n, phi)), math.exp(0.3**2 / 2))
        for phi in (0.0, 0.5, 0.8)
    },
    **{f"stall every {every}": lambda rng, n, every=every: stalls(rng, n, every) for every in (10, 25)},
    "slow and fast": lambda rng, n: (1 + 0.03 * (ar1(rng, n, 0.9) + rng.standard_normal(n)), 1.0),
}
"""Name -> step times and their true mean."""
LENGTHS = (60, 100, 150, 400)


def coverage(case: str, n: int, runs: int, seed: int = 0) -> tuple[float, float]:
    """Return the share of intervals that contain the true rate, and their median relative half-width."""
    rng = np.random.default_rng([seed, n, list(CASES).index(case)])
    hits, widths = 0, []
    for _ in range(runs):
        times, mean = CASES[case](rng, n)
        interval = ratio_interval(np.ones(n), times)
        hits += interval.low <= 1 / mean <= interval.high
        widths.append(interval.relative_half_width)
    return hits / runs, float(np.median(widths))


# Steady windows

RATE_ERROR, NO_DRIFT = 0.01, 0.02
STEADY = ("steady", "regular stalls", "alternating")
KINDS = (
    *("steady", "steady", "steady", "regular stalls", "alternating", "bimodal", "slow start", "slow start", "slow start"),
    *("decaying start", "drift", "change of level", "throttled at half", "slow spell", "slow wave"),
)
"""The mixture: traces take these kinds in turn."""
RULES = Measurement(min_warmup_steps=10, min_steady_steps=100, min_steady_s=60.0)


def levels_of(rng: Generator, kind: str, n: int) -> tuple[Floats, float | None]:
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
    if kind == "drift":
        return np.linspace(1, 1 + rng.choice([-1, 1]) * rng.uniform(0.02, 0.2), n), None
    if kind == "slow wave":
        return 1 + rng.uniform(0.02, 0.2) * np.sin(2 * np.pi * (rng.uniform(1, 3) * np.arange(n) / n + rng.random())), None
    if kind == "slow spell":
        begin = int(n * rng.uniform(0.05, 0.75))
        levels[begin : begin + int(n * rng.uniform(0.1, 0.2))] = rng.uniform(1.2, 2.2)
    elif kind == "slow start":
        levels[:start] = rng.uniform(1.05, 5)
    elif kind == "decaying start":
        levels += (rng.uniform(1.05, 5) - 1) * np.exp(-np.arange(n) * 3 / start)
    elif kind in ("change of level", "throttled at half"):
        place, sign, most = (0.5, 1, 0.5) if kind == "throttled at half" else (rng.uniform(0.2, 0.8), rng.choice([-1, 1]), 0.3)
        levels[int(n * place) :] *= 1 + sign * rng.uniform(0.03, most)
    return levels, 1.0 if kind.endswith(("steady", "start", "spell")) else float(levels[-1])


def trace_of(times: Floats) -> StepTrace:
    """Return the step log of a run with these step times."""
    n = len(times)
    counts = {"slot_tokens": 8, "real_tokens": 8, "supervised_tokens": 8, "documents": 1, "rows": 1, "loss": 1.0}
    return StepTrace(completed_at_s=tuple(np.cumsum(times)), **{name: (count,) * n for name, count in counts.items()})


def outcomes(count: int, seed: int) -> dict[str, Counter[str]]:
    """Return by kind the number of traces, stable windows, wrong ones among these, and steady traces refused.

    Traces have 120 to 400 steps of 0.05 to 0.5 s.
    """
    rng, table = np.random.default_rng(seed), defaultdict[str, Counter[str]](Counter)
    for index in range(count):
        kind, n = KINDS[index % len(KINDS)], int(rng.integers(120, 401))
        noise, phi, step_s = float(rng.choice([0.003, 0.01, 0.03])), float(rng.choice([0.0, 0.3, 0.6])), rng.uniform(0.05, 0.5)
        levels, mean = levels_of(rng, kind, n)
        times = step_s * levels * np.exp(noise * ar1(rng, n, phi))
        window, row = steady_window(trace_of(times), RULES), table[kind]
        part = slice(window.first, window.stop)
        if mean is None:
            right = levels[part].max() / levels[part].min() - 1 < NO_DRIFT
        else:
            right = abs(float(times[part].mean()) / (step_s * mean * math.exp(noise**2 / 2)) - 1) < RATE_ERROR
        row.update(traces=1, stable=window.stable, refused=not window.stable and kind in STEADY, wrong=window.stable and not right)
    return dict(table)


def shares(table: dict[str, Counter[str]]) -> tuple[float, float]:
    """Return the share of stable windows with the true rate, and the share of steady traces that were refused."""
    stable, wrong = (sum(row[name] for row in table.values()) for name in ("stable", "wrong"))
    return 1 - wrong / stable, sum(row["refused"] for row in table.values()) / sum(table[kind]["traces"] for kind in STEADY)


def main() -> None:
    """Print the coverage of each case, and the outcomes by kind of trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000, help="simulated runs per case of an interval")
    parser.add_argument("--traces", type=int, default=1000, help="traces for the steady window")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"{'step times':22}" + "".join(f"{f'{n} steps':>20}" for n in LENGTHS))
    for case in CASES:
        row = [coverage(case, n, options.runs, options.seed) for n in LENGTHS]
        print(f"{case:22}" + "".join(f"{f'{share:.1%} (±{width:.2%})':>20}" for share, width in row))
    table, columns = outcomes(options.traces, options.seed), ("traces", "stable", "wrong", "refused")
    right, refused = shares(table)
    print(f"\n{'kind':18}" + "".join(f"{name:>9}" for name in columns))
    for kind, counts in table.items():
        print(f"{kind:18}" + "".join(f"{counts[name]:9}" for name in columns))
    print(f"stable windows within {RATE_ERROR:.0%} of the true rate: {right:.1%}; steady traces refused: {refused:.1%}")


if __name__ == "__main__":
    main()
