"""Spread, drift and intervals of step times."""

import math
import re

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from interval_coverage import coverage
from steady_traces import outcomes, shares

from tunemark.schema.records.plan import Measurement
from tunemark.schema.records.trace import StepTrace
from tunemark.schema.statistics import intervals
from tunemark.schema.statistics.intervals import (
    Interval,
    ShareDifference,
    ar1_steps,
    lag_one,
    pairwise_steps,
    ratio_interval,
    spread,
    t_quantile,
    theil_sen,
)
from tunemark.schema.statistics.steady_state import (
    LevelChange,
    SteadyWindow,
    drift,
    largest_change,
    long_enough,
    settled_after,
    steady_window,
)

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


def test_three_steps_have_no_interval() -> None:
    assert ratio_interval(np.ones(3), np.ones(3)) == Interval(1.0, 0.0, float("inf"))


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
    assert "step time drifts by +" in window.verdict
    slowly = steady_window(trace_of(list(np.linspace(0.1, 0.103, 300) * (1 + 0.02 * np.sin(np.arange(300))))), RULES)
    assert not slowly.stable
    assert slowly.verdict == "step time drifts by +2.9% over the window"


@pytest.mark.parametrize(
    ("slow_steps", "factor", "total"), [(20, 5, 200), (30, 3, 200), (25, 2, 200), (35, 1.2, 150), (12, 1.05, 130), (40, 1.05, 400)]
)
def test_a_slow_start_is_warm_up_or_the_run_is_not_stable(slow_steps: int, factor: float, total: int) -> None:
    times = np.asarray(noisy(total)) * np.where(np.arange(total) < slow_steps, factor, 1.0)
    window = steady_window(trace_of(list(times)), RULES)
    assert not window.stable or abs(times[window.first :].mean() / 0.1 - 1) < 0.01


def test_a_change_late_in_the_run_makes_it_unstable_and_names_the_step() -> None:
    times = np.asarray(noisy(300)) * np.where(np.arange(300) < 150, 1.0, 1.03)
    window = steady_window(trace_of(list(times)), RULES)
    assert (window.first, window.stable) == (10, False)
    assert re.fullmatch(r"step time changes by \+[23]\.\d% at step 1[45]\d", window.verdict)
    sharp = steady_window(trace_of(list(np.asarray(noisy(300)) * np.where(np.arange(300) < 150, 1.0, 1.5))), RULES)
    assert sharp.verdict.endswith("at step 151")


def test_the_largest_change_is_the_split_with_the_largest_standardised_difference() -> None:
    times = np.array([2.0, 2.2, 1.8, 2.0, 1.0, 1.1, 0.9, 1.0, 1.0])
    change = largest_change(times)
    assert (change.index, change.relative) == (4, pytest.approx(-0.5))
    assert change.errors == pytest.approx(1 / (np.sqrt(0.1 / 7) * np.sqrt(1 / 4 + 1 / 5)))
    assert largest_change(np.array([1.0, 1.0, 1.0, 2.0, 2.0])).errors == math.inf
    assert not largest_change(np.ones(5)).matters


def test_windows_called_stable_have_the_true_rate_and_steady_traces_are_kept() -> None:
    right, refused = shares(outcomes(260, seed=5))
    assert right >= 0.95
    assert refused <= 0.08


@pytest.mark.parametrize(("steps", "left"), [(1, 0), (10, 0), (15, 5)])
def test_a_short_run_is_warm_up_first_and_says_what_is_missing(steps: int, left: int) -> None:
    window = steady_window(trace_of(noisy(steps)), RULES)
    assert (window.steps, window.stable) == (left, False)
    assert "a steady window needs 100 steps or 60 s" in window.verdict


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


def test_each_percentile_of_0_to_100_is_its_own_number() -> None:
    found = spread(np.arange(101.0))
    assert (found.p5, found.p50, found.p90, found.p95, found.p99) == (5.0, 50.0, 90.0, 95.0, 99.0)


def test_variation_is_standard_deviation_over_mean_and_stalls_are_maximum_over_median() -> None:
    found = spread(np.array([1.0, 2.0, 3.0, 10.0]))
    assert found.cv == pytest.approx(math.sqrt((9 + 4 + 1 + 36) / 4) / 4)
    assert found.stall_index == 4.0
    assert found.mad == 1.0


def scattered(n: int, *, seed: int = 5) -> np.ndarray:
    """Return values with a weak slope, all different."""
    return 0.001 * np.arange(n) + np.random.default_rng(seed).normal(1.0, 0.05, n)


@pytest.mark.parametrize("n", [2, 3, 4, 9, 20, 101, 399, 400])
def test_the_slope_is_that_of_scipy_and_its_interval_within_one_rank(n: int) -> None:
    values = scattered(n)
    found, reference = theil_sen(values), scipy.stats.theilslopes(values, alpha=0.95)
    assert found.value == pytest.approx(reference.slope, rel=1e-9)
    slopes = np.sort([(values[j] - values[i]) / (j - i) for i in range(n) for j in range(i + 1, n)])
    ours = np.searchsorted(slopes, [found.low - 1e-12, found.high - 1e-12])
    theirs = np.searchsorted(slopes, [reference.low_slope - 1e-12, reference.high_slope - 1e-12])
    assert np.abs(ours - theirs).max() <= 1, "scipy rounds the ranks, we widen the interval to whole ones"


@pytest.mark.parametrize("n", [3, 8, 15, 16, 17, 18, 19, 20, 21, 50, 100, 250, 400])
def test_the_ends_of_the_interval_of_the_slope_are_the_ranks_that_kendalls_variance_gives(n: int) -> None:
    values = scattered(n)
    slopes = np.sort([(values[j] - values[i]) / (j - i) for i in range(n) for j in range(i + 1, n)])
    half = scipy.stats.norm.ppf(0.975) * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low, high = max(0, math.floor((len(slopes) - half) / 2)), min(len(slopes) - 1, math.ceil((len(slopes) + half) / 2))
    found = theil_sen(values)
    assert (found.low, found.high) == pytest.approx((slopes[low], slopes[high]), rel=1e-9)


def test_a_series_longer_than_400_is_thinned_to_400_points_from_the_first_to_the_last() -> None:
    values = scattered(2_001)
    kept = np.linspace(0, 2_000, 400).round()
    assert theil_sen(values).value == pytest.approx(scipy.stats.theilslopes(values[kept.astype(int)], kept).slope, rel=1e-9)


def test_four_steps_have_an_interval() -> None:
    assert ratio_interval(np.ones(4), np.array([1.0, 2.0, 3.0, 4.0])).bounded


def lag_correlation(values: np.ndarray, lag: int) -> float:
    """Return the autocorrelation by its definition."""
    centred = values - values.mean()
    return sum(centred[i] * centred[i + lag] for i in range(len(centred) - lag)) / sum(centred**2)


def test_independent_residuals_have_the_t_interval_of_a_ratio_of_sums() -> None:
    # An alternating series has a negative correlation, which counts as none.
    times = 1.0 + np.array([0.01, -0.01] * 20) * np.linspace(0.5, 1.5, 40)
    work = np.full(40, 6.0)
    residuals = work - work.sum() / times.sum() * times
    half = scipy.stats.t.ppf(0.975, 39) * residuals.std(ddof=1) / math.sqrt(40) / times.mean()
    interval = ratio_interval(work, times)
    assert (interval.low, interval.high) == pytest.approx((interval.value - half, interval.value + half), rel=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_the_lag_one_correlation_is_corrected_for_its_bias(seed: int) -> None:
    values = np.cumsum(np.random.default_rng(seed).normal(size=60)) / 5 + np.random.default_rng(seed + 9).normal(size=60)
    r = lag_correlation(values, 1)
    assert lag_one(values) == pytest.approx(min(max(0.0, r + (1 + 4 * r) / 60), 0.95))
    assert ar1_steps(values) == pytest.approx(max(2.0, 60 * (1 - lag_one(values)) / (1 + lag_one(values))))


def test_the_correlation_of_a_constant_series_is_0_and_that_of_a_line_is_limited() -> None:
    assert lag_one(np.ones(30)) == 0.0
    assert lag_one(np.arange(400.0)) == 0.95
    assert lag_one(np.array([1.0, -1.0] * 30)) == 0.0
    assert ar1_steps(np.arange(6.0)) == 2.0


@pytest.mark.parametrize("seed", range(5))
def test_pairwise_steps_sum_the_autocovariances_in_positive_decreasing_pairs(seed: int) -> None:
    noise = np.random.default_rng(seed).normal(size=(2, 90))
    values = np.convolve(noise[0], np.ones(7), "same") + noise[1]
    covariances = [float(np.mean((values - values.mean()) ** 2)) * lag_correlation(values, lag) for lag in range(90)]
    total, smallest = -covariances[0], math.inf
    for pair in range(30):
        smallest = min(smallest, covariances[2 * pair] + covariances[2 * pair + 1])
        if smallest <= 0:
            break
        total += 2 * smallest
    assert pairwise_steps(values) == pytest.approx(max(2.0, 90 * min(1.0, covariances[0] / total)))


def test_equal_values_are_worth_as_many_steps_as_there_are() -> None:
    assert pairwise_steps(np.ones(12)) == 12.0
    assert pairwise_steps(np.array([1.0, -1.0] * 30)) == 60.0


@pytest.mark.parametrize(("phi", "n"), [(0.0, 60), (0.5, 60), (0.8, 60), (0.5, 150), (0.8, 150)])
def test_an_interval_within_a_run_contains_the_true_rate_in_93_to_98_of_100_runs(phi: float, n: int) -> None:
    share, _ = coverage(f"AR(1), phi {phi:g}", n, runs=600, seed=3)
    # The standard error of the share is 0.9 points.
    assert 0.92 <= share <= 0.985


def test_slow_changes_under_fast_noise_widen_the_interval() -> None:
    rng = np.random.default_rng(4)
    fast = rng.normal(size=300)
    slow = 0.5 * np.repeat(rng.normal(size=15), 20) + fast
    assert pairwise_steps(slow) < ar1_steps(slow) / 2


def test_an_interval_never_begins_below_0() -> None:
    assert ratio_interval(np.ones(5), np.array([1.0, 1.0, 1.0, 1.0, 500.0])).low == 0.0


def test_one_more_run_lies_in_the_t_interval_of_the_logarithms() -> None:
    rates = [100.0, 104.0, 97.0, 101.0]
    logs = np.log(rates)
    half = scipy.stats.t.ppf(0.975, 3) * logs.std(ddof=1) * math.sqrt(1 + 1 / 4)
    interval = intervals.one_more_run(rates)
    expected = [math.exp(logs.mean() + sign * half) for sign in (0, -1, 1)]
    assert (interval.value, interval.low, interval.high) == pytest.approx(expected, rel=1e-6)


@given(st.floats(0.51, 0.999), st.floats(1.0, 500.0))
def test_quantiles_of_t_for_any_degrees_agree_with_scipy(probability: float, degrees: float) -> None:
    exact = scipy.stats.t.ppf(probability, degrees)
    tolerance = 0.06 if degrees < 2 else 0.02 if degrees < 3 else 0.005
    assert t_quantile(probability, degrees) == pytest.approx(exact, rel=1e-9 if degrees.is_integer() and degrees < 20 else tolerance)


def test_quantiles_of_t_from_20_degrees_on_are_exact_to_six_digits() -> None:
    for degrees in (20, 20.5, 50, 1e6):
        assert t_quantile(0.975, degrees) == pytest.approx(scipy.stats.t.ppf(0.975, degrees), rel=2e-6)


def test_an_estimate_of_0_has_no_relative_width() -> None:
    assert Interval(0.0, -1.0, 1.0).relative_half_width == math.inf
    assert Interval(4.0, 3.0, 5.0).relative_half_width == 0.25


def test_a_difference_of_exactly_two_standard_errors_is_not_significant() -> None:
    assert not ShareDifference(0.5, 0.25).significant
    assert ShareDifference(-0.51, 0.25).significant
    assert not ShareDifference(0.02, 0.25).significant


@pytest.mark.parametrize(("share", "smoothed"), [(0.0, 1 / 12), (1.0, 11 / 12), (0.3, 0.3)])
def test_a_share_of_0_or_1_is_taken_with_one_more_row_of_each_kind(share: float, smoothed: float) -> None:
    assert intervals.share_error(share, 10) == pytest.approx(math.sqrt(smoothed * (1 - smoothed) / 10))


def test_the_error_of_a_difference_is_the_root_of_the_summed_squares() -> None:
    found = intervals.share_difference(0.5, 100, 0.9, 400)
    assert found.standard_error == pytest.approx(math.sqrt(0.05**2 + 0.015**2))


def test_equal_weights_give_the_plain_mean_and_its_standard_error() -> None:
    values = [1.0, 2.0, 4.0, 9.0]
    mean, error = intervals.weighted_mean(values, [3.0] * 4)
    assert mean == 4.0
    assert error == pytest.approx(scipy.stats.sem(values))


def test_two_weighted_values_have_the_error_of_the_formula() -> None:
    mean, error = intervals.weighted_mean([1.0, 5.0], [3.0, 1.0])
    assert mean == 2.0
    assert error == pytest.approx(math.sqrt(2 / 1 * ((3 * -1) ** 2 + (1 * 3) ** 2)) / 4)


def rules(*, warmup: int = 0, steps: int = 20, seconds: float = 1e8) -> Measurement:
    return Measurement(min_warmup_steps=warmup, min_steady_steps=steps, min_steady_s=seconds)


def test_a_window_of_exactly_the_required_steps_or_seconds_is_long_enough() -> None:
    assert long_enough(np.ones(20), rules(steps=20))
    assert not long_enough(np.ones(19), rules(steps=20))
    assert long_enough(np.ones(8), rules(seconds=8.0))
    assert not long_enough(np.ones(8), rules(seconds=8.5))


def test_twenty_equal_steps_after_warm_up_are_steady_and_nineteen_are_not() -> None:
    equal = trace_of([1.0] * 30)
    assert steady_window(equal, rules(warmup=10)) == SteadyWindow(10, 30, stable=True, verdict="no change above 1% over 20 steps")
    short = steady_window(equal, rules(warmup=11, steps=5))
    assert (short.first, short.stable) == (11, False)
    assert short.verdict == "only 19 steps in 19.0 s after warm-up; a steady window needs 5 steps or 1e+08 s, and at least 20 steps"


def test_an_undisturbed_run_without_warm_up_is_steady_from_its_first_step() -> None:
    assert steady_window(trace_of([1.0] * 30), rules()).first == 0


def test_the_window_begins_after_the_last_disturbed_step() -> None:
    trace = trace_of([1.0] * 60)
    assert steady_window(trace, rules(warmup=5), 12).first == 12
    assert steady_window(trace, rules(warmup=15), 12).first == 15


def test_disturbed_steps_count_in_the_first_half_only() -> None:
    assert settled_after([2, 5, 6], 10) == 5
    assert settled_after([5, 6], 11) == 5
    assert settled_after([6], 10) == 0
    assert settled_after([4], 10) == 4
    assert settled_after([], 10) == 0


def test_drift_is_the_slope_times_the_window_over_the_median() -> None:
    assert drift(100.0 + 2.0 * np.arange(51.0)) == pytest.approx(2.0 * 51 / 150)
    assert drift(100.0 - np.arange(51.0)) == pytest.approx(-51 / 75)
    assert drift(100.0 + np.arange(51.0)) == pytest.approx(51 / 125)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_slope_with_an_interval_that_ends_at_0_may_be_due_to_chance(sign: int) -> None:
    times = 100.0 + sign * np.array([2, 2, 2, 4, 3, 1, 6, 5, 5, 5, 8, 5])
    slope = theil_sen(times)
    assert 0.0 in {slope.low, slope.high}
    assert slope.value * sign > 0
    assert drift(times) == 0.0


def correlated(random: np.random.Generator, steps: int, correlation: float) -> np.ndarray:
    """Return an AR(1) series with unit variance."""
    noise = random.normal(size=steps)
    series = noise.copy()
    for step in range(1, steps):
        series[step] = correlation * series[step - 1] + np.sqrt(1 - correlation**2) * noise[step]
    return series


def test_a_change_matters_from_five_errors_and_one_percent_on() -> None:
    def matters(relative: float, errors: float) -> bool:
        return LevelChange(50, relative, errors).matters

    assert matters(0.02, 5.1)
    assert matters(-0.02, 5.1)
    assert matters(0.0101, 9.0)
    assert not matters(0.02, 5.0)
    assert not matters(0.01, 9.0)


def test_a_drift_that_is_larger_than_its_noise_is_found_with_its_size_and_sign() -> None:
    random = np.random.default_rng(3)
    for size in (0.03, -0.03):
        times = 1 + size * np.arange(200) / 200 + 0.01 * random.normal(size=200)
        assert drift(times) == pytest.approx(size, abs=0.006)


def test_correlated_noise_is_rarely_called_a_drift_in_either_direction() -> None:
    random = np.random.default_rng(1)
    drifts = [drift(1 + 0.01 * correlated(random, 120, 0.7)) for _ in range(300)]
    assert np.mean([found > 0 for found in drifts]) < 0.06
    assert np.mean([found < 0 for found in drifts]) < 0.06
