"""A verdict needs a difference that chance would not make, and equal arms are rarely called different."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from tunemark.schema.records.trace import StepTrace
from tunemark.schema.statistics.comparison import (
    SIGN_TEST_PAIRS,
    ArmRun,
    arm_run,
    break_even_steps,
    loss_after,
    paired_change,
    sign_flip_p,
)
from tunemark.schema.statistics.intervals import t_cdf, t_quantile

pytestmark = pytest.mark.timeout(60)

VALUES = st.lists(st.floats(0.1, 10.0), min_size=3, max_size=12)


def arms(rng, pairs, *, ratio=1.0, noise=0.03):
    """Return A and B of pairs that share a disturbance of up to a factor of two."""
    moment = np.exp(rng.uniform(0, math.log(2), pairs))
    a, b = (list(moment * np.exp(rng.normal(0, noise, pairs))) for _ in range(2))
    return a, [value * ratio for value in b]


@pytest.mark.parametrize(("degrees", "quantile"), [(1, 12.7062), (2, 4.30265), (4, 2.77645), (5, 2.57058), (29, 2.04523), (120, 1.97993)])
def test_quantiles_of_t_are_those_of_the_tables(degrees, quantile):
    assert t_quantile(0.975, degrees) == pytest.approx(quantile, rel=1e-5)


@given(st.floats(-50, 50), st.integers(1, 60))
def test_t_is_symmetric(value, degrees):
    assert t_cdf(value, degrees) + t_cdf(-value, degrees) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("pairs", [3, 5, 8])
def test_equal_arms_are_called_different_in_about_one_of_twenty_series(pairs):
    rng = np.random.default_rng(7)
    called = sum(paired_change(*arms(rng, pairs)).significant for _ in range(1500))
    assert 0.03 < called / 1500 < 0.07


def test_heavy_tails_do_not_raise_the_false_verdicts():
    rng = np.random.default_rng(8)
    called = 0
    for _ in range(1000):
        a, b = (list(np.exp(0.02 * rng.standard_t(2, 5))) for _ in range(2))
        called += paired_change(a, b).significant
    assert called / 1000 < 0.06


def test_the_interval_covers_the_true_ratio_in_nineteen_of_twenty_series():
    rng = np.random.default_rng(9)
    inside = 0
    for _ in range(1000):
        found = paired_change(*arms(rng, 5, ratio=1.1)).change
        inside += found.low <= 0.1 <= found.high
    assert 0.93 < inside / 1000 < 0.97


def test_a_gain_of_ten_percent_is_found_in_noise_of_three():
    rng = np.random.default_rng(10)
    found = [paired_change(*arms(rng, 8, ratio=1.1)).verdict for _ in range(200)]
    assert found.count("higher") > 190


@given(VALUES, st.randoms(use_true_random=False))
def test_swapping_the_arms_turns_the_ratio_over(a, chance):
    b = [value * chance.uniform(0.5, 2.0) for value in a]
    there, back = paired_change(a, b), paired_change(b, a)
    assert (1 + there.change.value) * (1 + back.change.value) == pytest.approx(1.0)
    assert there.significant == back.significant
    assert there.sign_p == pytest.approx(back.sign_p)


@given(VALUES, st.floats(0.01, 100.0))
def test_a_scale_changes_nothing(a, scale):
    b = list(reversed(a))
    scaled = paired_change([value * scale for value in a], [value * scale for value in b])
    assert scaled.change.value == pytest.approx(paired_change(a, b).change.value, abs=1e-9)


@given(VALUES)
def test_an_arm_does_not_differ_from_itself(a):
    found = paired_change(a, a)
    assert (found.change.value, found.change.low, found.change.high, found.sign_p) == (0.0, 0.0, 0.0, 1.0)
    assert found.verdict == "no significant difference"


def test_two_pairs_are_too_few():
    found = paired_change([1.0, 1.0], [2.0, 2.0])
    assert found.verdict == "too few pairs"
    assert not found.change.bounded


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([1.0], [-1.0])])
def test_what_cannot_be_paired_is_refused(a, b):
    with pytest.raises(ValueError, match=r"give|above 0"):
        paired_change(a, b)


def test_equal_signs_have_the_chance_that_counting_gives():
    assert sign_flip_p(np.ones(5)) == 2 / 2**5
    assert sign_flip_p(np.array([1.0, -1.0])) == 1.0


def test_many_pairs_are_drawn_and_not_counted():
    assert sign_flip_p(np.full(30, 0.1)) < 0.001
    assert sign_flip_p(np.array([0.1, -0.1] * 15)) > 0.9


@given(st.floats(-100, 1000), st.floats(1e-6, 10))
def test_breaking_even_earns_back_exactly_the_overhead(overhead_s, gain_s):
    steps = break_even_steps(overhead_s, gain_s)
    assert steps * gain_s == pytest.approx(max(0.0, overhead_s))


def test_without_a_gain_nothing_is_earned_back():
    assert break_even_steps(10.0, 0.0) is None
    assert break_even_steps(10.0, -1.0) is None


def test_losses_are_compared_after_equal_tokens():
    losses = tuple(float(10 - step) for step in range(10))
    ones = (1,) * 10
    trace = StepTrace(
        completed_at_s=tuple(map(float, range(1, 11))),
        slot_tokens=(8,) * 10,
        real_tokens=(8,) * 10,
        supervised_tokens=ones,
        documents=ones,
        rows=ones,
        loss=losses,
    )
    assert loss_after(trace, 8 * 5) == pytest.approx(8.0)
    assert loss_after(trace, 8 * 10 + 3) == pytest.approx(3.0)
    assert loss_after(trace, 7) is None


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 30, 31, 100])
def test_the_distribution_and_quantiles_of_t_are_those_of_scipy(degrees):
    for value in (-8.0, -1.0, -0.3, 0.0, 0.2, 0.7, 1.0, 2.5, 12.0):
        assert t_cdf(value, degrees) == pytest.approx(scipy.stats.t.cdf(value, degrees), abs=1e-12)
    for probability in (0.51, 0.6, 0.75, 0.9, 0.975, 0.995, 0.9995):
        assert t_quantile(probability, degrees) == pytest.approx(scipy.stats.t.ppf(probability, degrees), rel=2e-6)


@pytest.mark.parametrize("pairs", [3, 4, 9])
def test_the_interval_of_a_change_is_the_paired_t_interval_of_scipy(pairs):
    rng = np.random.default_rng(pairs)
    a, b = rng.uniform(0.3, 0.9, pairs), rng.uniform(0.3, 0.9, pairs)
    reference = scipy.stats.ttest_rel(np.log(b), np.log(a)).confidence_interval(0.95)
    found = paired_change(list(a), list(b))
    assert found.pairs == pairs
    assert found.change.value == pytest.approx(scipy.stats.gmean(b / a) - 1)
    assert (found.change.low, found.change.high) == pytest.approx((np.expm1(reference.low), np.expm1(reference.high)))


@pytest.mark.parametrize("pairs", [2, 3, 7, 13, 14])
def test_the_sign_test_up_to_14_pairs_is_the_exact_permutation_test_of_scipy(pairs):
    differences = np.random.default_rng(pairs).normal(0.3, 1.0, pairs)
    reference = scipy.stats.permutation_test(
        (differences,), lambda x, axis: abs(x.sum(axis=axis)), permutation_type="samples", alternative="greater", n_resamples=np.inf
    )
    assert sign_flip_p(differences) == pytest.approx(reference.pvalue, rel=1e-12)


def test_the_sign_test_has_the_fewest_pairs_that_can_reach_5_percent():
    assert sign_flip_p(np.ones(SIGN_TEST_PAIRS)) < 0.05 < sign_flip_p(np.ones(SIGN_TEST_PAIRS - 1))


def test_fourteen_pairs_are_enumerated_and_fifteen_are_drawn():
    assert sign_flip_p(np.ones(14)) == 2 / 2**14
    assert sign_flip_p(np.ones(15)) * 20_001 == pytest.approx(round(sign_flip_p(np.ones(15)) * 20_001), abs=1e-9)


def test_drawn_signs_count_the_observed_ones_as_one_more_draw():
    differences = np.random.default_rng(4).normal(0.25, 1.0, 20)
    signs = np.random.default_rng(20_261_120).choice([-1.0, 1.0], size=(20_000, 20))
    as_far = sum(abs(row @ differences) >= abs(differences.sum()) * (1 - 1e-12) for row in signs)
    assert 100 < as_far < 19_000
    assert sign_flip_p(differences) == (as_far + 1) / 20_001


def test_ratios_that_differ_in_the_last_digits_are_equal():
    found = paired_change([1.0, 2.0, 3.0], [1.0 + 1e-12, 2.0, 3.0 + 1e-12])
    assert (found.change.value, found.sign_p, found.verdict) == (0.0, 1.0, "no significant difference")
    assert paired_change([1.0] * 3, [1.0 + 1e-8] * 3).change.value == pytest.approx(1e-8, rel=1e-3)


def test_equal_changes_of_three_pairs_are_a_verdict_and_of_two_are_not():
    assert (paired_change([2.0] * 3, [1.0] * 3).verdict, paired_change([1.0] * 3, [2.0] * 3).verdict) == ("lower", "higher")
    two = paired_change([1.0, 1.0], [2.0, 2.0])
    assert (two.change.value, two.change.low, two.change.high) == (pytest.approx(1.0), -1.0, math.inf)
    assert (two.pairs, two.significant) == (2, False)


@pytest.mark.parametrize("lowest", [0.0, -0.5, -1e-9])
def test_a_value_of_0_or_less_has_no_ratio(lowest):
    for a, b in (([1.0, lowest], [1.0, 1.0]), ([1.0, 1.0], [1.0, lowest])):
        with pytest.raises(ValueError, match=f"the lowest value is {lowest}; ratios are of values above 0"):
            paired_change(a, b)


@pytest.mark.parametrize(
    "run", [ArmRun("a", "compile=blocks", 0), ArmRun("b", "compile=blocks", 1), ArmRun("b", "batch.micro_batch=4, compile=none", 12)]
)
def test_the_name_of_a_run_gives_its_arm_and_pair_back(run):
    assert arm_run(run.point) == run


def test_the_name_of_an_arm_has_no_pair_and_other_names_are_no_arm():
    assert ArmRun("a", "x=1", 0).point == "a: x=1"
    assert ArmRun("b", "x=1", 3).point == "b: x=1, pair 3"
    assert arm_run("batch.micro_batch=16") is None


def trace_with(losses):
    """Return steps of 8 tokens with the losses."""
    ones = (1,) * len(losses)
    ends = tuple(float(end) for end in range(1, len(losses) + 1))
    return StepTrace(
        completed_at_s=ends, slot_tokens=(8,) * len(losses), real_tokens=(8,) * len(losses),
        supervised_tokens=ones, documents=ones, rows=ones, loss=losses,
    )  # fmt: skip


def test_the_loss_after_tokens_is_the_mean_of_the_last_five_steps_or_of_fewer():
    trace = trace_with((9.0, 8.0, 6.0, 5.0, 3.0, 2.0, 1.0))
    assert loss_after(trace, 8 * 7) == pytest.approx(17 / 5)
    assert loss_after(trace, 8 * 2) == pytest.approx(8.5)
    assert loss_after(trace, 8 * 7, steps=2) == pytest.approx(1.5)


def test_a_loss_that_is_not_finite_leaves_no_mean():
    trace = trace_with((9.0, None, 6.0, 5.0, 3.0, 2.0, 1.0))
    assert loss_after(trace, 8 * 4) is None
    assert loss_after(trace, 8 * 7) == pytest.approx(17 / 5)
    assert loss_after(trace_with((None,)), 8) is None
