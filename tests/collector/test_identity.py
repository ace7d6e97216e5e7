"""A copy of a measurement is found after it was changed; honest runs are never called copies."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from tunemark.collector.gate.identity import Identity, KnownMeasurements, copies, noise

Times = NDArray[np.float64]
RANDOM = np.random.default_rng(11)


def measured(steps: int = 200, step_s: float = 0.05) -> Times:
    """Return step times with correlated noise and rare long steps, as machines have them."""
    draws = RANDOM.normal(size=steps) * 0.01
    for step in range(1, steps):
        draws[step] += 0.3 * draws[step - 1]
    return step_s * (1 + draws + (RANDOM.random(steps) < 0.03) * RANDOM.exponential(0.2, steps))


def identity(times: Times) -> Identity:
    return Identity((noise(times, np.ones(len(times))),), tuple(np.round(times * 1e9).astype(int).tolist()))


CHANGES: dict[str, Callable[[Times], Times]] = {
    "scaled": lambda times: times * 0.93,
    "shifted": lambda times: times + 0.004,
    "each half scaled": lambda times: times * np.where(np.arange(len(times)) < len(times) / 2, 0.9, 1.1),
    "with noise": lambda times: times * (1 + 1e-4 * RANDOM.normal(size=len(times))),
    "beginning cut": lambda times: times[len(times) // 3 :],
    "end cut": lambda times: times[: -len(times) // 4],
    "rounded": lambda times: np.round(times, 5),
    "reversed": lambda times: times[::-1],
    "mirrored at the median": lambda times: 2 * np.median(times) - times,
    "every other one drawn again": lambda times: np.where(np.arange(len(times)) % 2, times, RANDOM.permutation(times) * 1.001),
    "halves exchanged": lambda times: np.roll(times, len(times) // 2),
    "shuffled": RANDOM.permutation,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_copy_is_found_after_this_change(change: str) -> None:
    original = measured()
    known = [("original", identity(original)), ("other", identity(measured())), ("copy", identity(CHANGES[change](original)))]
    [(name, (earlier, _))] = copies(known)
    assert (name, earlier) == ("copy", "original")


def test_no_honest_run_is_a_copy_of_another() -> None:
    seen = KnownMeasurements()
    for number in range(600):
        one = identity(measured(int(RANDOM.integers(40, 300)), 3.0 if number % 2 else 0.05))
        assert seen.copy_of(one) is None
        seen.add(str(number), one)


def test_runs_on_the_same_data_share_the_times_of_their_shapes_and_are_no_copies() -> None:
    work = RANDOM.integers(1, 12, 300) * 64.0
    runs = [0.05 * work / 400 * (1 + 0.05 * np.sin(work)) * (1 + 0.003 * RANDOM.normal(size=300)) for _ in range(40)]
    assert list(copies([(str(number), Identity((noise(times, work),))) for number, times in enumerate(runs)])) == []


def test_runs_on_a_clock_with_coarse_ticks_share_times_and_are_no_copies() -> None:
    seen = KnownMeasurements()
    for number in range(400):
        ticks = np.round(measured(int(RANDOM.integers(40, 300)), 0.01) / 5e-7) * 5e-7
        one = identity(ticks)
        assert seen.copy_of(one) is None
        seen.add(str(number), one)
    assert seen.copy_of(one) == ("399", True)
