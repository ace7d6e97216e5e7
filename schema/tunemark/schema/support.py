"""What each device family can be asked for: a table that the harness writes from its code, and others read as a file.

Format history:

- `tunemark.support/1`: first format.
- `tunemark.support/2`: `needs` is told for each family, whose packages differ.
"""

from typing import Literal, Self

from pydantic import model_validator

from tunemark.schema.base import Frozen, Text
from tunemark.schema.vocabulary import Backend

FILE = "support.json"


class SupportMatrix(Frozen):
    """Features and families; a family can do what it does not name a reason against."""

    format: Literal["tunemark.support/2"] = "tunemark.support/2"
    """Version of this format."""
    features: tuple[Text, ...]
    """All features, in order."""
    cannot: dict[Backend, dict[Text, Text]]
    """Each family that there is code for: what it cannot do, with the reason and what to do instead."""
    needs: dict[Backend, dict[Text, Text]]
    """Each family: feature -> the package that it needs there."""

    @model_validator(mode="after")
    def _known_features(self) -> Self:
        named = {feature for table in (*self.cannot.values(), *self.needs.values()) for feature in table}
        unknown = sorted(named - set(self.features))
        if unknown:
            msg = f"cannot and needs name {', '.join(unknown)}; every feature is listed in features"
            raise ValueError(msg)
        return self
