"""The fact base of data/, read once: cards by key and by alias. Unknown names are refused with a suggestion."""

import csv
import hashlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from tunemark.schema.cards import AcceleratorCard, ModelCard, PriceRow, WorkloadCard
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean
from tunemark.schema.files import project_root

Card = TypeVar("Card", AcceleratorCard, ModelCard, WorkloadCard)
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class FactBase:
    """Everything in data/ but the published results."""

    root: Path
    """The folder data/."""

    @classmethod
    def of_project(cls) -> "FactBase":
        """Return the facts of the current checkout."""
        return cls(project_root() / "data")

    @cached_property
    def accelerators(self) -> dict[str, AcceleratorCard]:
        """Accelerator cards by key."""
        return {card.key: card for card in _cards(self.root / "accelerators", AcceleratorCard)}

    @cached_property
    def models(self) -> dict[str, ModelCard]:
        """Model cards by key."""
        return {card.key: card for card in _cards(self.root / "models", ModelCard)}

    @cached_property
    def workloads(self) -> dict[str, WorkloadCard]:
        """Workload cards by key."""
        return {card.key: card for card in _cards(self.root / "workloads", WorkloadCard)}

    @cached_property
    def prices(self) -> tuple[PriceRow, ...]:
        """The price book."""
        path = self.root / "prices" / "prices.csv"
        with path.open(newline="", encoding="utf-8") as file:
            return tuple(
                _validated(PriceRow, {key: value for key, value in row.items() if value != ""}, f"{path}:{line}")
                for line, row in enumerate(csv.DictReader(file), start=2)
            )

    def workload(self, name: str) -> WorkloadCard:
        """Return a workload card; raises TunemarkError with a suggestion for an unknown name."""
        return _find(self.workloads, {}, name, "workload")

    def model(self, name: str) -> ModelCard:
        """Return a model card by key or alias; raises TunemarkError with a suggestion for an unknown name."""
        return _find(
            self.models, {alias.lower(): card.key for card in self.models.values() for alias in (card.name, *card.aliases)}, name, "model"
        )

    def accelerator(self, name: str) -> AcceleratorCard:
        """Return an accelerator card by key, name or alias; raises TunemarkError with a suggestion for an unknown name."""
        return _find(self.accelerators, self._accelerator_aliases, name, "accelerator")

    def recognise_accelerator(self, reported: str) -> AcceleratorCard | None:
        """Return the card of a device by the name it reports, or None: never another chip's card."""
        key = self._accelerator_aliases.get(reported.lower(), reported.lower())
        return self.accelerators.get(key)

    def workload_sha256(self, key: str) -> str:
        """Return the content hash of a workload card's file."""
        return hashlib.sha256((self.root / "workloads" / f"{key}.toml").read_bytes()).hexdigest()

    @cached_property
    def _accelerator_aliases(self) -> dict[str, str]:
        return {alias.lower(): card.key for card in self.accelerators.values() for alias in (card.name, *card.aliases)}


def _cards(folder: Path, kind: type[Card]) -> Iterator[Card]:
    for path in sorted(folder.glob("*.toml")):
        card = _validated(kind, _toml(path), str(path))
        if card.key != path.stem:
            raise TunemarkError(
                f"{path}: key", card.key, f"a card is named as its file; rename one to the other ({path.stem})", exit_code=Exit.INVALID
            )
        yield card


def _toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TunemarkError(str(path), "", f"not valid TOML: {error}", exit_code=Exit.INVALID) from error


def _validated(kind: type[Model], content: dict[str, object], place: str) -> Model:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise TunemarkError(f"{place}: {field}", first.get("input"), first["msg"], exit_code=Exit.INVALID) from error


def _find(cards: dict[str, Card], aliases: dict[str, str], name: str, kind: str) -> Card:
    key = name if name in cards else aliases.get(name.lower(), name.lower())
    if key in cards:
        return cards[key]
    raise TunemarkError(kind, name, f"not in data/{kind}s; {did_you_mean(name, [*cards, *aliases])}")
