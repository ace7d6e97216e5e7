"""What each device family can be asked for: a table that the harness writes from its code, and others read as a file.

Format history:

- `tunemark.support/1`: first format.
"""

from typing import Literal, Self

from pydantic import model_validator

from tunemark.schema.base import Frozen, Text
from tunemark.schema.vocabulary import Backend

FILE = "support.json"


class SupportMatrix(Frozen):
    """Features and families; a family can do what it does not name a reason against."""

    format: Literal["tunemark.support/1"] = "tunemark.support/1"
    """Version of this format."""
    features: tuple[Text, ...]
    """All features, in order."""
    cannot: dict[Backend, dict[Text, Text]]
    """Each family that there is code for: what it cannot do, with the reason and what to do instead."""
    needs: dict[Text, Text]
    """Feature -> the package that it needs."""

    @model_validator(mode="after")
    def _known_features(self) -> Self:
        named = {feature for reasons in self.cannot.values() for feature in reasons} | set(self.needs)
        unknown = sorted(named - set(self.features))
        if unknown:
            msg = f"cannot and needs name {', '.join(unknown)}; every feature is listed in features"
            raise ValueError(msg)
        return self
