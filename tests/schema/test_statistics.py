"""Spread, drift and intervals of step times."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunemark.schema.records.plan import Measurement
from tunemark.schema.records.trace import StepTrace
from tunemark.schema.statistics import intervals
from tunemark.schema.statistics.intervals import Interval, block_length, ratio_interval, spread, theil_sen
from tunemark.schema.statistics.steady_state import drift, long_enough, steady_window

TIMES = st.lists(st.floats(0.001, 10.0), min_size=4, max_size=60).map(np.asarray)


def trace_of(times: list[float]) -> StepTrace:
    ends = tuple(float(end) for end in np.cumsum(times))
    ones = (1,) * len(times)
    return StepTrace(
        completed_at_s=ends, slot_tokens=ones, real_tokens=ones, supervised_tokens=ones, documents=ones, rows=ones, loss=(1.0,) * len(times)
    )


def noisy(n: int, *, seed: int = 1) -> list[float]:
    return list(0.1 + np.random.default_rng(seed).normal(0, 0.002, n))


def test_the_spread_of_one_to_hundred_is_known() -> None:
    found = spread(np.arange(1.0, 101.0))
    assert (found.n, found.p50, found.mad, found.p99) == (100, 50.5, 25.0, pytest.approx(99.01))
    assert found.stall_index == pytest.approx(100 / 50.5)


def test_the_99th_percentile_needs_a_hundred_values() -> None:
    assert spread(np.arange(1.0, 100.0)).p99 is None


@given(TIMES)
def test_percentiles_are_in_order(times: np.ndarray) -> None:
    found = spread(times)
    assert times.min() <= found.p5 <= found.p50 <= found.p90 <= found.p95 <= times.max()


def test_theil_sen_finds_the_slope_of_a_line_and_ignores_outliers() -> None:
    line = 2.0 + 0.5 * np.arange(100.0)
    line[[3, 50, 97]] = 1_000
    assert theil_sen(line).value == pytest.approx(0.5)


def test_theil_sen_of_a_long_series_is_thinned_and_right() -> None:
    assert theil_sen(0.25 * np.arange(5_000.0)).value == pytest.approx(0.25)


@given(TIMES, st.lists(st.integers(1, 100), min_size=60, max_size=60))
def test_throughput_is_a_ratio_of_sums_within_its_interval(times: np.ndarray, work: list[int]) -> None:
    amounts = np.asarray(work[: len(times)], dtype=float)
    found = ratio_interval(amounts, times)
    assert found.value == pytest.approx(amounts.sum() / times.sum())
    assert found.low <= found.high


def test_intervals_are_the_same_each_time_and_in_any_portion(monkeypatch: pytest.MonkeyPatch) -> None:
    times, work = np.asarray(noisy(50)), np.full(50, 8.0)
    whole = ratio_interval(work, times)
    monkeypatch.setattr(intervals, "BOOTSTRAP_CELLS", 1_000)
    assert ratio_interval(work, times) == whole
    assert whole.low < whole.value < whole.high


def test_three_steps_have_no_interval() -> None:
    assert ratio_interval(np.ones(3), np.ones(3)) == Interval(1.0, 0.0, float("inf"))


def test_independent_values_need_no_blocks_and_correlated_ones_do() -> None:
    slow = np.sin(np.arange(200.0) / 20) + 2
    assert block_length(np.asarray(noisy(200))) <= 3
    assert block_length(slow) > 10
    assert block_length(np.ones(50)) == 1


def test_the_width_of_an_interval_is_relative_to_its_value() -> None:
    assert Interval(2.0, 1.9, 2.1).relative_half_width == pytest.approx(0.05)


RULES = Measurement()


def test_a_steady_run_begins_after_ten_steps() -> None:
    window = steady_window(trace_of([1.0, *noisy(150)]), RULES)
    assert (window.first, window.stop, window.stable) == (10, 151, True)


def test_a_slow_start_lengthens_the_warm_up() -> None:
    window = steady_window(trace_of([*np.linspace(0.4, 0.1, 60), *noisy(400)]), RULES)
    assert window.stable
    assert window.first > 40


def test_a_run_that_only_gets_slower_is_never_stable() -> None:
    window = steady_window(trace_of(list(np.linspace(0.1, 0.3, 300))), RULES)
    assert not window.stable
    assert "drifts by +" in window.verdict


@pytest.mark.parametrize(("steps", "left"), [(1, 0), (10, 0), (15, 5)])
def test_a_short_run_is_warm_up_first_and_says_what_is_missing(steps: int, left: int) -> None:
    window = steady_window(trace_of(noisy(steps)), RULES)
    assert (window.steps, window.stable) == (left, False)
    assert "steady needs 100 steps or 60 s" in window.verdict


def test_a_minute_is_long_enough_with_few_steps() -> None:
    assert long_enough(np.full(30, 2.5), RULES)
    assert not long_enough(np.full(30, 0.5), RULES)


def test_noise_is_no_drift() -> None:
    assert drift(np.asarray(noisy(200))) == 0.0


@given(st.lists(st.floats(0.001, 10.0), min_size=1, max_size=80))
def test_every_trace_has_a_window_within_it(times: list[float]) -> None:
    window = steady_window(trace_of(times), RULES)
    assert 0 <= window.first <= window.stop == len(times)


@pytest.mark.parametrize(("share", "n", "error"), [(0.5, 100, 0.05), (0.9, 400, 0.015)])
def test_the_standard_error_of_a_share_is_that_of_the_binomial(share: float, n: int, error: float) -> None:
    assert intervals.share_error(share, n) == pytest.approx(error)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_share_of_none_or_all_rows_is_not_known_without_error(share: float) -> None:
    assert 0 < intervals.share_error(share, 60) < 0.03


@pytest.mark.parametrize(("other", "differs"), [(0.80, False), (0.86, False), (0.95, True)])
def test_accuracies_within_two_standard_errors_do_not_differ(other: float, differs: bool) -> None:
    found = intervals.share_difference(0.80, 200, other, 200)
    assert found.significant is differs
    assert found.difference == pytest.approx(other - 0.80)


def test_the_error_of_a_weighted_mean_is_that_of_many_draws() -> None:
    rng = np.random.default_rng(3)
    weights = rng.integers(5, 15, size=(2_000, 40)).astype(float)
    values = rng.normal(2.0, 0.5, size=weights.shape)
    found = [intervals.weighted_mean(list(v), list(w)) for v, w in zip(values, weights, strict=True)]
    means = [mean for mean, _ in found]
    assert np.mean([error for _, error in found if error is not None]) == pytest.approx(np.std(means), rel=0.1)
    assert intervals.weighted_mean([2.0], [3.0]) == (2.0, None)
