"""The hourly cost of owned hardware, and the hours of use above which it is cheaper than renting.

Rented hardware is priced in the view `costs`.
"""

import math
from dataclasses import dataclass, fields

from tunemark.schema.errors import TunemarkError, did_you_mean

HOURS_PER_YEAR = 8_766
"""365.25 days."""
EXAMPLE = "purchase=2000,years=3,utilisation=0.5,watts=450,electricity=0.30"


@dataclass(frozen=True, slots=True)
class OwnedHardware:
    """An owned machine that does the work of one accelerator. The owner must give all figures; none has a default.

    Raises ValueError for an impossible value; the message names the field, the value and the fix.
    """

    purchase: float
    """Price of the machine."""
    years: float
    """Years over which it is written off."""
    utilisation: float
    """Share of all hours in which it is used, above 0 and at most 1."""
    watts: float
    """Power while in use, cooling included."""
    electricity: float
    resale: float = 0.0
    """Price at which it is sold at the end."""
    usd_per_hour: float = 0.0
    """What an hour of use costs besides."""

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        for name in ("purchase", "watts", "electricity", "resale", "usd_per_hour"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; give a finite amount of 0 or more")
        if not 0 < self.years < math.inf:
            raise ValueError(f"years is {self.years}; give a finite number above 0")
        if not 0 < self.utilisation <= 1:
            raise ValueError(f"utilisation is {self.utilisation}; give the share of all hours in which it is used, above 0 and at most 1")
        if self.resale > self.purchase:
            raise ValueError(f"resale is {self.resale}, more than purchase ({self.purchase}); give the price after {self.years} years")

    @property
    def running_usd_per_hour(self) -> float:
        """US dollars that only an hour of use costs: watts / 1,000 x price of a kWh, and `usd_per_hour`."""
        return self.watts / 1_000 * self.electricity + self.usd_per_hour

    @property
    def capital_usd_per_year(self) -> float:
        """US dollars written off per year: (purchase - resale) / years."""
        return (self.purchase - self.resale) / self.years

    def hourly_usd(self) -> float:
        """Return US dollars per hour of use; the hours of use pay for the idle ones.

        (purchase - resale) / (years x 8,766 x utilisation) + watts / 1,000 x price of a kWh + what an hour costs besides.
        """
        return self.capital_usd_per_year / (HOURS_PER_YEAR * self.utilisation) + self.running_usd_per_hour

    def break_even_hours_per_year(self, cloud_usd_per_hour: float) -> float | None:
        """Return the hours of use per year at which an hour costs as much as a rented one.

        (purchase - resale) / years / (cloud - running costs). None if renting is always cheaper: running it alone costs as much,
        or a year has too few hours. It does not depend on `utilisation`.
        """
        saved_usd_per_hour = cloud_usd_per_hour - self.running_usd_per_hour
        if saved_usd_per_hour <= 0:
            return None
        hours = self.capital_usd_per_year / saved_usd_per_hour
        return hours if hours <= HOURS_PER_YEAR else None


def parse_owned(text: str, example: str = EXAMPLE, usual_watts: float = 0) -> OwnedHardware:
    """Return the machine described by an option such as `purchase=2000,years=3,...`; `example` shows what the option takes.

    `usual_watts` is the power of one that does not state it, if that is known. One may also have only `usd_per_hour`, a price of `electricity`, or both.
    Raises TunemarkError for an unknown, missing or impossible figure; names it, its value and the fix.
    """
    given, figures = dict[str, float](), [each.name for each in fields(OwnedHardware)]
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in figures:
            raise TunemarkError("--owned", name, f"not a figure of owned hardware; {did_you_mean(name, figures)}; for example {example}")
        if name in given:
            raise TunemarkError(f"--owned {name}", value, "is given twice; give each figure once")
        try:
            given[name] = float(value)
        except ValueError as error:
            raise TunemarkError(f"--owned {name}", value, f"give a number; for example {example}") from error
    paid_off = {"purchase": 0.0, "years": 1.0, "utilisation": 1.0, "electricity": 0.0, "watts": 0.0}
    running = given.keys() & {"usd_per_hour", "electricity"} and given.keys() <= {"usd_per_hour", "electricity", "watts"}
    given = (paid_off if running else {}) | ({"watts": usual_watts} if usual_watts else {}) | given
    missing = [name for name in figures if name not in {*given, "resale", "usd_per_hour"}]
    if missing:
        raise TunemarkError("--owned", text, f"{', '.join(missing)} missing; for example {example}")
    try:
        return OwnedHardware(**given)
    except ValueError as error:
        raise TunemarkError("--owned", text, str(error)) from error
