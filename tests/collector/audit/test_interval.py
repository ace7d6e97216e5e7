"""A figure is as wide as its last printed digit, and arithmetic carries the bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunemark.collector.audit.interval import Interval, half_digit
from tunemark.schema.records.claims import Claim

amounts = st.floats(min_value=1e-6, max_value=1e9)
shares = st.floats(min_value=0, max_value=0.5)


def claim(value, printed):
    return Claim(value=value, printed=printed)


@pytest.mark.parametrize(
    ("value", "printed", "low", "high"),
    [
        (4.7, "4.7", 4.65, 4.75),
        (5420.0, "5,420", 5419.5, 5420.5),
        (5217.0, "1:26:57", 5216.5, 5217.5),
        (5501.436, "91m41.436s", 5501.4355, 5501.4365),
        (40_080.0, "11 hours and 8 minutes", 40_050.0, 40_110.0),
        (0.71, "71% vs Full", 0.705, 0.715),
    ],
)
def test_a_printed_figure_is_as_wide_as_its_last_digit(value, printed, low, high):
    interval = Interval.of(claim(value, printed))
    assert interval.low == pytest.approx(low, rel=1e-9)
    assert interval.high == pytest.approx(high, rel=1e-9)


def test_a_word_has_no_width():
    assert half_digit(claim(3.0, "thrice")) == 0


@given(amounts, amounts, shares, shares)
def test_bounds_contain_every_product_and_quotient(a, b, wide, narrow):
    one, other = Interval.exact(a).widened(wide), Interval.exact(b).widened(narrow)
    for result, at in ((one * other, (lambda x, y: x * y)), (one / other, (lambda x, y: x / y)), (one + other, (lambda x, y: x + y))):
        for x in (one.low, a, one.high):
            for y in (other.low, b, other.high):
                assert result.low * (1 - 1e-9) <= at(x, y) <= result.high * (1 + 1e-9)
