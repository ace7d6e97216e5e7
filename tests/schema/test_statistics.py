"""Spread, drift and intervals of step times, and verdicts, which need a difference that chance would not make."""

import math
import re

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from synthetic_steps import coverage, outcomes, shares

from tunemark.schema.records.plan import Measurement
from tunemark.schema.records.trace import StepTrace
from tunemark.schema.statistics import intervals
from tunemark.schema.statistics.intervals import Interval, paired_change, ratio_interval, spread, t_quantile, theil_sen
from tunemark.schema.statistics.steady_state import SteadyWindow, steady_window

TIMES = st.lists(st.floats(0.001, 10.0), min_size=4, max_size=60).map(np.asarray)


def trace_of(times: list[float], loss: tuple[float, ...] | None = None) -> StepTrace:
    ends = tuple(float(end) for end in np.cumsum(times))
    ones = (1,) * len(times)
    return StepTrace(
        completed_at_s=ends,
        slot_tokens=ones,
        real_tokens=ones,
        supervised_tokens=ones,
        documents=ones,
        rows=ones,
        loss=loss or (1.0,) * len(times),
    )


def noisy(n: int, *, seed: int = 1) -> list[float]:
    return list(0.1 + np.random.default_rng(seed).normal(0, 0.002, n))


def test_the_spread_of_one_to_hundred_is_known() -> None:
    found = spread(np.arange(1.0, 101.0))
    assert (found.n, found.p50, found.mad, found.p99) == (100, 50.5, 25.0, pytest.approx(99.01))
    assert found.stall_index == pytest.approx(100 / 50.5)


@given(TIMES, st.lists(st.integers(1, 100), min_size=60, max_size=60))
def test_throughput_is_a_ratio_of_sums_within_its_interval(times: np.ndarray, work: list[int]) -> None:
    amounts = np.asarray(work[: len(times)], dtype=float)
    found = ratio_interval(amounts, times)
    assert found.value == pytest.approx(amounts.sum() / times.sum())
    assert found.low <= found.high


def test_three_steps_have_no_interval() -> None:
    assert ratio_interval(np.ones(3), np.ones(3)) == Interval(1.0, 0.0, float("inf"))


RULES = Measurement()


def test_timed_micro_steps_make_a_window_long_enough() -> None:
    times = [0.1 * step for step in range(1, 32)]
    trace = trace_of([0.1] * 31)
    assert not steady_window(trace, RULES).stable
    halves = tuple((end - 0.08, end - 0.06, end - 0.04, end - 0.03, end - 0.01) for end in times)
    assert steady_window(trace.model_copy(update={"micro_completed_at_s": halves}), RULES).stable


def test_a_run_that_only_gets_slower_is_never_stable() -> None:
    window = steady_window(trace_of(list(np.linspace(0.1, 0.3, 300))), RULES)
    assert not window.stable
    assert "step time drifts by +" in window.verdict
    slowly = steady_window(trace_of(list(np.linspace(0.1, 0.103, 300) * (1 + 0.02 * np.sin(np.arange(300))))), RULES)
    assert not slowly.stable
    assert slowly.verdict == "step time drifts by +2.9% over the window"


def test_a_change_late_in_the_run_makes_it_unstable_and_names_the_step() -> None:
    times = np.asarray(noisy(300)) * np.where(np.arange(300) < 150, 1.0, 1.03)
    window = steady_window(trace_of(list(times)), RULES)
    assert (window.first, window.stable) == (10, False)
    assert re.fullmatch(r"step time changes by \+[23]\.\d% at step 1[45]\d", window.verdict)
    sharp = steady_window(trace_of(list(np.asarray(noisy(300)) * np.where(np.arange(300) < 150, 1.0, 1.5))), RULES)
    assert sharp.verdict.endswith("at step 151")


def test_windows_called_stable_have_the_true_rate_and_steady_traces_are_kept() -> None:
    table = outcomes(450, seed=5)
    right, refused = shares(table)
    assert right >= 0.95
    assert refused <= 0.08
    # A spell that ends and a slow wave leave no lasting change of level.
    assert table["slow spell"]["stable"] + table["slow wave"]["stable"] <= 3


def test_a_slow_spell_is_named_with_its_steps() -> None:
    times = np.asarray(noisy(300)) * np.where((np.arange(300) >= 120) & (np.arange(300) < 165), 2.0, 1.0)
    assert steady_window(trace_of(list(times)), RULES).verdict.endswith("from step 121 to 165")


@given(st.lists(st.floats(0.001, 10.0), min_size=1, max_size=80))
def test_every_trace_has_a_window_within_it(times: list[float]) -> None:
    window = steady_window(trace_of(times), RULES)
    assert 0 <= window.first <= window.stop == len(times)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_share_of_none_or_all_rows_is_not_known_without_error(share: float) -> None:
    assert 0 < intervals.share_error(share, 60) < 0.03


def test_the_error_of_a_weighted_mean_is_that_of_many_draws() -> None:
    rng = np.random.default_rng(3)
    weights = rng.integers(5, 15, size=(2_000, 40)).astype(float)
    values = rng.normal(2.0, 0.5, size=weights.shape)
    found = [intervals.weighted_mean(list(v), list(w)) for v, w in zip(values, weights, strict=True)]
    means = [mean for mean, _ in found]
    assert np.mean([error for _, error in found if error is not None]) == pytest.approx(np.std(means), rel=0.1)
    assert intervals.weighted_mean([2.0], [3.0]) == (2.0, None)


def scattered(n: int, *, seed: int = 5) -> np.ndarray:
    """Return values with a weak slope, all different."""
    return 0.001 * np.arange(n) + np.random.default_rng(seed).normal(1.0, 0.05, n)


@pytest.mark.parametrize("n", [2, 3, 20, 400])
def test_the_slope_is_that_of_scipy_and_its_interval_within_one_rank(n: int) -> None:
    values = scattered(n)
    found, reference = theil_sen(values), scipy.stats.theilslopes(values, alpha=0.95)
    assert found.value == pytest.approx(reference.slope, rel=1e-9)
    slopes = np.sort([(values[j] - values[i]) / (j - i) for i in range(n) for j in range(i + 1, n)])
    ours = np.searchsorted(slopes, [found.low - 1e-12, found.high - 1e-12])
    theirs = np.searchsorted(slopes, [reference.low_slope - 1e-12, reference.high_slope - 1e-12])
    assert np.abs(ours - theirs).max() <= 1, "scipy rounds the ranks, we widen the interval to whole ones"


def test_a_series_longer_than_400_is_thinned_to_400_points_from_the_first_to_the_last() -> None:
    values = scattered(2_001)
    kept = np.linspace(0, 2_000, 400).round()
    assert theil_sen(values).value == pytest.approx(scipy.stats.theilslopes(values[kept.astype(int)], kept).slope, rel=1e-9)


def test_independent_residuals_have_the_t_interval_of_a_ratio_of_sums() -> None:
    # An alternating series has a negative correlation, which counts as none.
    times = 1.0 + np.array([0.01, -0.01] * 20) * np.linspace(0.5, 1.5, 40)
    work = np.full(40, 6.0)
    residuals = work - work.sum() / times.sum() * times
    half = scipy.stats.t.ppf(0.975, 39) * residuals.std(ddof=1) / math.sqrt(40) / times.mean()
    interval = ratio_interval(work, times)
    assert (interval.low, interval.high) == pytest.approx((interval.value - half, interval.value + half), rel=1e-4)


@pytest.mark.parametrize(("phi", "n"), [(0.0, 60), (0.5, 60), (0.8, 60), (0.5, 150), (0.8, 150)])
def test_an_interval_within_a_run_contains_the_true_rate_in_93_to_98_of_100_runs(phi: float, n: int) -> None:
    share, _ = coverage(f"AR(1), phi {phi:g}", n, runs=600, seed=3)
    # The standard error of the share is 0.9 points.
    assert 0.92 <= share <= 0.985


@given(st.floats(0.51, 0.999), st.floats(1.0, 500.0))
def test_quantiles_of_t_for_any_degrees_agree_with_scipy(probability: float, degrees: float) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(scipy.stats.t.ppf(probability, degrees), rel=1e-5)


def rules(*, warmup: int = 0, steps: int = 20, seconds: float = 1e8) -> Measurement:
    return Measurement(min_warmup_steps=warmup, min_steady_steps=steps, min_steady_s=seconds)


def test_twenty_equal_steps_after_warm_up_are_steady_and_nineteen_are_not() -> None:
    equal = trace_of([1.0] * 30)
    assert steady_window(equal, rules(warmup=10)) == SteadyWindow(10, 30, stable=True, verdict="no change above 1% over 20 steps")
    short = steady_window(equal, rules(warmup=11, steps=5))
    assert (short.first, short.stable) == (11, False)
    assert (
        short.verdict
        == "only 19 steps in 19.0 s after warm-up; a steady window needs 5 steps or micro-steps, or 1e+08 s, and at least 20 steps"
    )


@pytest.mark.parametrize("pairs", [3, 4, 9])
def test_the_interval_of_a_change_is_the_paired_t_interval_of_scipy(pairs):
    rng = np.random.default_rng(pairs)
    a, b = rng.uniform(0.3, 0.9, pairs), rng.uniform(0.3, 0.9, pairs)
    reference = scipy.stats.ttest_rel(np.log(b), np.log(a)).confidence_interval(0.95)
    found = paired_change(list(a), list(b))
    assert found.pairs == pairs
    assert found.change.value == pytest.approx(scipy.stats.gmean(b / a) - 1)
    assert (found.change.low, found.change.high) == pytest.approx((np.expm1(reference.low), np.expm1(reference.high)))


def test_the_loss_after_tokens_is_the_mean_of_the_last_five_steps_or_of_fewer():
    trace = trace_of([1.0] * 7, (9.0, 8.0, 6.0, 5.0, 3.0, 2.0, 1.0))
    assert trace.loss_after(7) == pytest.approx(17 / 5)
    assert trace.loss_after(2) == pytest.approx(8.5)
    assert trace.loss_after(7, steps=2) == pytest.approx(1.5)
