"""Owned hardware: what an hour of use costs, and from how many hours on it is cheaper than renting."""

import pytest

from tunemark.schema.owned_hardware import OwnedHardware, parse_owned


def test_an_hour_of_use_is_capital_and_electricity():
    # 2,000 USD over two years of 8,766 h, used half of the time, and 0.5 kW at 0.30 USD.
    assert OwnedHardware(2_000, 2, 0.5, 500, 0.30).usd_per_hour() == pytest.approx(1_000 / 4_383 + 0.15)
    assert OwnedHardware(2_000, 2, 0.5, 500, 0.30, resale=1_000).usd_per_hour() == pytest.approx(500 / 4_383 + 0.15)


def test_break_even_is_where_capital_equals_what_is_saved():
    machine = OwnedHardware(2_000, 2, 0.5, 500, 0.30)
    assert machine.break_even_hours_per_year(1.15) == pytest.approx(1_000)
    assert machine.break_even_hours_per_year(0.15) is None, "electricity alone costs as much"
    assert machine.break_even_hours_per_year(0.20) is None, "a year has too few hours"


def test_an_option_describes_owned_hardware_and_a_wrong_figure_is_named() -> None:
    machine = parse_owned("purchase=2000, years=3, utilisation=0.5, watts=450, electricity=0.30")
    assert machine == OwnedHardware(2000, 3, 0.5, 450, 0.30)
