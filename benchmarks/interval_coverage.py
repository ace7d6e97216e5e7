"""Measure how often the 95% interval of a rate contains the true rate, on simulated step times.

Usage: python benchmarks/interval_coverage.py [--runs 2000] [--seed 0] [--json]
Example: python benchmarks/interval_coverage.py --runs 500

AR(1): normal step times with correlation phi between neighbours. Log-normal: the exponential of it, with a long tail. Stalls: every
k-th step takes twice as long. Slow and fast: AR(1) noise with phi 0.9 plus independent noise of the same size.
"""

import argparse
import json
import math
from collections.abc import Callable

import numpy as np

from tunemark.schema.statistics.intervals import Floats, ratio_interval

BURN_IN = 200
Generator = np.random.Generator


def ar1(rng: Generator, n: int, phi: float) -> Floats:
    """Return a stationary AR(1) series of n values with mean 0 and variance 1."""
    shocks, values = rng.standard_normal(n + BURN_IN), np.zeros(n + BURN_IN)
    for i in range(1, n + BURN_IN):
        values[i] = phi * values[i - 1] + shocks[i]
    return values[BURN_IN:] * math.sqrt(1 - phi**2)


def normal(rng: Generator, n: int, phi: float) -> tuple[Floats, float]:
    """Return step times with 3% noise, and their true mean."""
    return 1 + 0.03 * ar1(rng, n, phi), 1.0


def log_normal(rng: Generator, n: int, phi: float) -> tuple[Floats, float]:
    """Return step times with a long tail, and their true mean."""
    return np.exp(0.3 * ar1(rng, n, phi)), math.exp(0.3**2 / 2)


def stalls(rng: Generator, n: int, every: float) -> tuple[Floats, float]:
    """Return step times of which every k-th takes twice as long, and their true mean."""
    times = 1 + 0.01 * rng.standard_normal(n)
    times[int(rng.integers(every)) :: int(every)] += 1
    return times, 1 + 1 / every


def slow_and_fast(rng: Generator, n: int, phi: float) -> tuple[Floats, float]:
    """Return step times with slow and fast noise of the same size, and their true mean."""
    return 1 + 0.03 * (ar1(rng, n, phi) + rng.standard_normal(n)), 1.0


CASES: dict[str, tuple[Callable[[Generator, int, float], tuple[Floats, float]], float]] = {
    **{f"AR(1), phi {phi:g}": (normal, phi) for phi in (0.0, 0.3, 0.5, 0.7, 0.8)},
    **{f"log-normal, phi {phi:g}": (log_normal, phi) for phi in (0.0, 0.5, 0.8)},
    "stall every 10": (stalls, 10),
    "stall every 25": (stalls, 25),
    "slow and fast": (slow_and_fast, 0.9),
}
LENGTHS = (60, 100, 150, 400)


def coverage(case: str, n: int, runs: int, seed: int = 0) -> tuple[float, float]:
    """Return the share of intervals that contain the true rate, and their median relative half-width."""
    rng = np.random.default_rng([seed, n, list(CASES).index(case)])
    make, setting = CASES[case]
    hits, widths = 0, []
    for _ in range(runs):
        times, mean = make(rng, n, setting)
        interval = ratio_interval(np.ones(n), times)
        hits += interval.low <= 1 / mean <= interval.high
        widths.append(interval.relative_half_width)
    return hits / runs, float(np.median(widths))


def main() -> None:
    """Print the coverage of each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000, help="simulated runs per case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    table = {case: {n: coverage(case, n, options.runs, options.seed) for n in LENGTHS} for case in CASES}
    if options.json:
        print(json.dumps(table, indent=1))
        return
    print(f"{'step times':22}" + "".join(f"{f'{n} steps':>20}" for n in LENGTHS))
    for case, row in table.items():
        print(f"{case:22}" + "".join(f"{f'{share:.1%} (±{width:.2%})':>20}" for share, width in row.values()))


if __name__ == "__main__":
    main()
