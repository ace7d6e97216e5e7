"""What hardware of one's own costs. Rented hardware is priced in the view `costs` of the database."""

import math
from dataclasses import dataclass

HOURS_PER_YEAR = 8_766
"""365.25 days."""


@dataclass(frozen=True, slots=True)
class OwnedHardware:
    """What a machine of one's own costs for an hour of use: the inputs are the owner's, none has a default that hides it.

    Raises
    ------
    ValueError
        For a value that no machine can have; the message names the field, the value and the fix.

    """

    purchase_usd: float
    """Price of the machine."""
    years: float
    """Years over which it is written off."""
    utilisation: float
    """Share of all hours in which it is used, above 0 and at most 1."""
    watts: float
    """Power while in use, cooling included."""
    electricity_usd_per_kwh: float
    """Price of electricity."""
    resale_usd: float = 0.0
    """What it is sold for afterwards."""

    def __post_init__(self) -> None:
        """Refuse what no machine can have."""
        for name in ("purchase_usd", "watts", "electricity_usd_per_kwh", "resale_usd"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; give a finite amount of 0 or more")
        if not 0 < self.years < math.inf:
            raise ValueError(f"years is {self.years}; give a finite number above 0")
        if not 0 < self.utilisation <= 1:
            raise ValueError(f"utilisation is {self.utilisation}; give the share of all hours in which it is used, above 0 and at most 1")
        if self.resale_usd > self.purchase_usd:
            raise ValueError(
                f"resale_usd is {self.resale_usd}, more than purchase_usd ({self.purchase_usd}); give what it is sold for after {self.years} years"
            )

    @property
    def electricity_usd_per_hour(self) -> float:
        """US dollars of electricity for an hour of use: watts / 1,000 x price of a kWh."""
        return self.watts / 1_000 * self.electricity_usd_per_kwh

    @property
    def capital_usd_per_year(self) -> float:
        """US dollars a year that are written off: (purchase - resale) / years."""
        return (self.purchase_usd - self.resale_usd) / self.years

    def usd_per_hour(self) -> float:
        """Return US dollars for an hour of use.

        (purchase - resale) / (years x 8,766 x utilisation) + watts / 1,000 x price of a kWh, with 8,766 hours in a
        year (365.25 days). Hours in which it stands still are paid by the hours in which it is used.
        """
        return self.capital_usd_per_year / (HOURS_PER_YEAR * self.utilisation) + self.electricity_usd_per_hour

    def break_even_hours_per_year(self, cloud_usd_per_hour: float) -> float | None:
        """Return how many hours of use a year make an hour on it as cheap as a rented one.

        (purchase - resale) / years / (cloud - electricity). None when renting is cheaper however much it is used:
        electricity alone costs as much, or a year has too few hours. `utilisation` plays no part in it.
        """
        saved_usd_per_hour = cloud_usd_per_hour - self.electricity_usd_per_hour
        if saved_usd_per_hour <= 0:
            return None
        hours = self.capital_usd_per_year / saved_usd_per_hour
        return hours if hours <= HOURS_PER_YEAR else None
