"""A copy of a measurement is found by its exact readings; honest runs are never called copies."""

import numpy as np
import pytest
from numpy.typing import NDArray

from tunemark.collector.gate.cross_file_checks import Identity, copies

Times = NDArray[np.float64]
RANDOM = np.random.default_rng(11)


def measured(steps: int = 200, step_s: float = 0.05) -> Times:
    """Return step times with rare long steps, as machines have them."""
    return step_s * (1 + 0.01 * RANDOM.normal(size=steps) + (RANDOM.random(steps) < 0.03) * RANDOM.exponential(0.2, steps))


def identity(times: Times, *marks: float) -> Identity:
    return Identity(tuple(np.round(times * 1e9).astype(int).tolist()), frozenset(marks))


ORIGINAL = measured()


@pytest.mark.parametrize(
    "copy",
    [
        identity(ORIGINAL),
        identity(ORIGINAL[len(ORIGINAL) // 3 :]),
        identity(RANDOM.permutation(ORIGINAL)),
        identity(np.where(np.arange(len(ORIGINAL)) % 2, ORIGINAL, ORIGINAL * 1.001)),
        identity(measured(), 7.12345678, 4.98765432e12, 231.4567891),
    ],
    ids=["as it is", "beginning cut", "shuffled", "every other one changed", "other times, same readings"],
)
def test_a_copy_is_found_after_this_change(copy: Identity) -> None:
    original = identity(ORIGINAL, 7.12345678, 4.98765432e12, 231.4567891)
    assert list(copies([("original", original), ("other", identity(measured())), ("copy", copy)])) == [("copy", "original")]


def test_a_copy_of_a_few_steps_is_found_by_all_of_its_times() -> None:
    few = identity(measured(12))
    assert list(copies([("original", few), ("other", identity(measured(12))), ("copy", few)])) == [("copy", "original")]


def test_runs_on_a_clock_with_coarse_ticks_share_times_and_are_no_copies() -> None:
    runs = [np.round(measured(int(RANDOM.integers(40, 300)), 0.01) / 5e-7) * 5e-7 for _ in range(200)]
    assert list(copies([(str(number), identity(run)) for number, run in enumerate(runs)])) == []
