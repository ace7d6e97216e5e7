"""Functions of SQL for what SQL cannot say: the statistics and the arithmetic of the ground floor."""

import json
import re
from contextlib import suppress
from typing import Any

from duckdb import CatalogException, DuckDBPyConnection

from tunemark.schema.comparability import configuration
from tunemark.schema.owned_hardware import OwnedHardware
from tunemark.schema.physics.families import FAMILIES
from tunemark.schema.statistics import intervals
from tunemark.schema.statistics.intervals import paired_change
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS
from tunemark.site import wording

MACRO = "create or replace temp macro"
ENOUGH = 3
"""Values from which an interval for one more is given."""
FIGURE = re.compile(r"\d[\d,]*(\.\d+)?")


def add_to(connection: DuckDBPyConnection) -> None:
    """Add the functions to a connection."""
    learned = [key for key in FAMILIES if FAMILIES[key].learned_positions]
    connection.execute(f"{MACRO} rankable_steps() as {RANKABLE_STEPS}; {MACRO} learned_positions() as {learned}")
    # Another connection of this process to the same file may have added them.
    with suppress(CatalogException):
        for function, parameters, returned in (
            (
                share_difference,
                ["double", "bigint", "double", "bigint"],
                "struct(difference double, standard_error double, significant boolean)",
            ),
            (one_more_run, ["double[]"], 'struct("value" double, low double, high double)'),
            (ab_change, ["double[]", "double[]"], "struct(verdict varchar, change double, low double, high double, pairs bigint)"),
            (shown_interval, ["double", "double"], "varchar"),
            (break_even_hours, ["double", "double", "double", "double", "double"], "double"),
            (rounded_half, ["varchar"], "double"),
            (configuration_of_any_software, ["json"], "varchar"),
        ):
            connection.create_function(function.__name__, function, parameters, returned, null_handling="special")


def share_difference(first: float | None, n_first: int | None, second: float | None, n_second: int | None) -> dict[str, Any] | None:
    """Return the second share of rows minus the first, its standard error, and if it is significant; NULL if a figure is unknown."""
    if first is None or second is None or not n_first or not n_second:
        return None
    difference = intervals.share_difference(first, n_first, second, n_second)
    return {"difference": difference.difference, "standard_error": difference.standard_error, "significant": difference.significant}


def one_more_run(values: list[float] | None) -> dict[str, float] | None:
    """Return the geometric mean of values with the 95% interval of one more; NULL for fewer than three."""
    if values is None or len(values) < ENOUGH:
        return None
    interval = intervals.one_more_run(values)
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def ab_change(a: list[float] | None, b: list[float] | None) -> dict[str, Any] | None:
    """Return the verdict on the change from A to B, in pairs of runs, with its 95% interval if it has one; NULL without pairs."""
    if not a or not b:
        return None
    change = paired_change(a, b)
    bounded = change.change.bounded
    return {
        "verdict": change.verdict,
        "change": change.change.value,
        "low": change.change.low if bounded else None,
        "high": change.change.high if bounded else None,
        "pairs": change.pairs,
    }


def shown_interval(low: float | None, high: float | None) -> str:
    """Return a 95% interval as `12,300 to 12,700`; empty if there is none."""
    return wording.interval(low, high)


def break_even_hours(
    purchase_usd: float | None, years: float, watts: float | None, usd_per_kwh: float, rented_usd_per_hour: float | None
) -> float | None:
    """Return the hours of use per year above which owning is cheaper than renting; NULL if it never is, or a price is unknown."""
    if purchase_usd is None or watts is None or rented_usd_per_hour is None:
        return None
    return OwnedHardware(purchase_usd, years, 1.0, watts, usd_per_kwh).break_even_hours_per_year(rented_usd_per_hour)


def rounded_half(printed: str | None) -> float | None:
    """Return half a unit of the last printed digit, relative to the printed figure: 0.0011 for `4,650`; NULL without a figure.

    Zeros at the end of an integer may come from rounding: 4,650 is 4,645 to 4,655.
    """
    digits = FIGURE.search(printed or "")
    number = digits[0].replace(",", "") if digits else "0"
    if not digits or not float(number):
        return None
    places = len(digits[1]) - 1 if digits[1] else len(number.rstrip("0")) - len(number)
    return float(0.5 * 10.0**-places / float(number))


def configuration_of_any_software(row: str) -> str | None:
    """Return the name of a run's configuration, equal for all versions of the software; NULL without a comparability group."""
    return configuration(json.loads(row), any_software=True)
