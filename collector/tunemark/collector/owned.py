"""Hardware of one's own beside rented hardware: the owner's figures from one option, and from how much use on it pays."""

from dataclasses import dataclass

from tunemark.collector.price_book import Offer
from tunemark.schema.cost import OwnedHardware
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.formats import MISSING, usd

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
class Owned:
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


def owned(text: str) -> Owned:
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
        return Owned(OwnedHardware(**given))
    except ValueError as error:
        raise TunemarkError("--owned", text, _as_typed(str(error))) from error


def _as_typed(message: str) -> str:
    """Return a message with the names of figures as they are typed."""
    for typed, name in FIELDS.items():
        message = message.replace(name, typed)
    return message
