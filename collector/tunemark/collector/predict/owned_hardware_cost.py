"""What hardware of one's own costs. Rented hardware is priced in the view `costs` of the database."""

import math
from dataclasses import dataclass

from tunemark.collector.predict.price_book import Offer
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.formats import MISSING, usd

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


# MOVE: was tunemark.collector.predict.owned_hardware_cost: Hardware of one's own beside rented hardware: the owner's figures from one option, and from how much use on it pays.

FIELDS = {
    "purchase": "purchase_usd",
    "years": "years",
    "utilisation": "utilisation",
    "watts": "watts",
    "electricity": "electricity_usd_per_kwh",
    "resale": "resale_usd",
}
OPTIONAL = {"resale"}
NEVER = f"{MISSING}: renting is cheaper, however much it is used"
EXAMPLE = "purchase=2000,years=3,utilisation=0.5,watts=450,electricity=0.30"


@dataclass(frozen=True, slots=True)
class OwnedMachine:
    """A machine of one's own that does the work of one accelerator of an offer."""

    hardware: OwnedHardware

    def break_even_hours_per_year(self, offer: Offer) -> float | None:
        """Return from how many hours of use a year it is cheaper than one accelerator of the offer; None when it never is."""
        return self.hardware.break_even_hours_per_year(offer.usd_per_accelerator_hour)

    def facts(self, offer: Offer | None = None) -> dict[str, float | None]:
        """Return the comparison as plain data; without an offer only what an hour of use costs."""
        cost: dict[str, float | None] = {"owned_usd_per_hour": self.hardware.usd_per_hour()}
        return cost if offer is None else cost | {"owned_break_even_hours_per_year": self.break_even_hours_per_year(offer)}

    def sentence(self) -> str:
        """Return what an hour of use costs, in words."""
        return (
            f"owned: {usd(self.hardware.usd_per_hour())} an hour of use, of which electricity {usd(self.hardware.electricity_usd_per_hour)}"
        )

    def cell(self, offer: Offer) -> str:
        """Return the break-even for a table."""
        hours = self.break_even_hours_per_year(offer)
        return MISSING if hours is None else f"{hours:,.0f}"


def parse_owned(text: str) -> OwnedMachine:
    """Return the machine that an option such as `purchase=2000,years=3,...` describes.

    Raises
    ------
    TunemarkError
        For an unknown, missing or impossible figure; names it, its value and the fix.

    """
    given: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in FIELDS:
            raise TunemarkError("--owned", name, f"not a figure of owned hardware; {did_you_mean(name, FIELDS)}; for example {EXAMPLE}")
        if FIELDS[name] in given:
            raise TunemarkError(f"--owned {name}", value, "is given twice; give each figure once")
        try:
            given[FIELDS[name]] = float(value)
        except ValueError as error:
            raise TunemarkError(f"--owned {name}", value, f"give a number; for example {EXAMPLE}") from error
    missing = [name for name in FIELDS if name not in OPTIONAL and FIELDS[name] not in given]
    if missing:
        raise TunemarkError("--owned", text, f"{', '.join(missing)} missing; for example {EXAMPLE}")
    try:
        return OwnedMachine(OwnedHardware(**given))
    except ValueError as error:
        raise TunemarkError("--owned", text, _as_typed(str(error))) from error


def _as_typed(message: str) -> str:
    """Return a message with the names of figures as they are typed."""
    for typed, name in FIELDS.items():
        message = message.replace(name, typed)
    return message
