"""A verdict needs a difference that chance would not make, and equal arms are rarely called different."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunemark.schema.records.trace import StepTrace
from tunemark.schema.statistics.comparison import break_even_steps, loss_after, paired_change, sign_flip_p, t_cdf, t_quantile

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
