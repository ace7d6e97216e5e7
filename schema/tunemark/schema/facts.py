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

from tunemark.schema.cards import AcceleratorCard, ModelCard, PriceRow
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean
from tunemark.schema.files import project_root
from tunemark.schema.workload_cards import GoldenLosses, WorkloadCard
from tunemark.schema.workload_matrix import cells

Card = TypeVar("Card", AcceleratorCard, ModelCard)
Model = TypeVar("Model", bound=BaseModel)
Found = TypeVar("Found", bound=BaseModel)


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
        return {card.key: card for path in sorted((self.root / "workloads").glob("*.toml")) for card in workloads_of(path)}

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
        """Return the content hash of a workload: of its file, and of its key where the file holds several."""
        path = self.root / "workloads" / f"{key}.toml"
        if path.exists():
            return hashlib.sha256(path.read_bytes()).hexdigest()
        files = (file for file in path.parent.glob("*.toml") if key.startswith(f"{file.stem}-"))
        matrix = max(files, key=lambda file: len(file.stem))
        return hashlib.sha256(matrix.read_bytes() + key.encode()).hexdigest()

    def golden_losses(self, key: str) -> GoldenLosses | None:
        """Return the losses that a right run of a workload reaches, or None where none were taken with this card."""
        path = self.root / "workloads" / "golden" / f"{key}.toml"
        golden = _validated(GoldenLosses, _toml(path), str(path)) if path.exists() else None
        return golden if golden and golden.workload_sha256 == self.workload_sha256(key) else None

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


def workloads_of(path: Path) -> Iterator[WorkloadCard]:
    """Yield the workload of a file, or each cell of the matrix in it."""
    content = _toml(path)
    if content.get("key") != path.stem:
        raise TunemarkError(
            f"{path}: key",
            content.get("key"),
            f"a card is named as its file; rename one to the other ({path.stem})",
            exit_code=Exit.INVALID,
        )
    for place, cell in cells(content, str(path)):
        yield _validated(WorkloadCard, cell, place)


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


def _find(cards: dict[str, Found], aliases: dict[str, str], name: str, kind: str) -> Found:
    key = name if name in cards else aliases.get(name.lower(), name.lower())
    if key in cards:
        return cards[key]
    raise TunemarkError(kind, name, f"not in data/{kind}s; {did_you_mean(name, [*cards, *aliases])}")
