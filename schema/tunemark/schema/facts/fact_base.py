"""What each device family can be asked for: a table that the harness writes from its code, and others read as a file.

Format history:

- `tunemark.support/1`: first format.
- `tunemark.support/2`: `needs` is told for each family, whose packages differ.
"""

import csv
import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ValidationError, model_validator

from tunemark.schema.errors import Exit, TunemarkError, did_you_mean
from tunemark.schema.facts.cards import AcceleratorCard, ModelCard, PriceRow
from tunemark.schema.facts.names import AWS, suggest_accelerator, suggest_card, suggest_instance
from tunemark.schema.facts.workloads import GoldenLosses, WorkloadCard, cells
from tunemark.schema.facts.world_facts import Known
from tunemark.schema.files import project_root
from tunemark.schema.records.base import Frozen, Text
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


# MOVE: was tunemark.schema.facts.fact_base: The fact base of data/, read once: cards by key and by alias. Unknown names are refused with a suggestion.

Card = TypeVar("Card", AcceleratorCard, ModelCard)
Model = TypeVar("Model", bound=BaseModel)
Keyed = TypeVar("Keyed", AcceleratorCard, ModelCard, GoldenLosses)


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
        return tuple(row for _, row in read_prices(self.root / "prices" / "prices.csv"))

    @cached_property
    def known(self) -> Known:
        """Releases, data sets, generations and bounds from practice; empty where data/ has none."""
        merged: dict[str, object] = {}
        for path in sorted((self.root / "known").glob("*.toml")):
            merged |= dict(read_known(path))
        return Known.model_validate(merged)

    @cached_property
    def support(self) -> SupportMatrix | None:
        """What each device family can do; None where data/ has no table of it."""
        path = self.root / FILE
        return validated(SupportMatrix, json.loads(path.read_text(encoding="utf-8")), str(path)) if path.exists() else None

    def matrix_of(self, key: str) -> str | None:
        """Return the file of several cells that a workload is one of, or None for a card of its own."""
        if (self.root / "workloads" / f"{key}.toml").exists():
            return None
        stems = (file.stem for file in (self.root / "workloads").glob("*.toml") if key.startswith(f"{file.stem}-"))
        return max(stems, key=len, default=None)

    def workload(self, name: str) -> WorkloadCard:
        """Return a workload card; raises TunemarkError with a suggestion for an unknown name."""
        if name.lower() in self.workloads:
            return self.workloads[name.lower()]
        raise TunemarkError("workload", name, f"not in data/workloads; {did_you_mean(name, self.workloads)}")

    def model(self, name: str) -> ModelCard:
        """Return a model card by key or alias; raises TunemarkError with a suggestion for an unknown name."""
        aliases = {alias.lower(): card.key for card in self.models.values() for alias in (card.name, *card.aliases)}
        key = name if name in self.models else aliases.get(name.lower(), name.lower())
        if key in self.models:
            return self.models[key]
        raise TunemarkError("model", name, f"not in data/models; {suggest_card(name, self.models.values())}")

    def accelerator(self, name: str) -> AcceleratorCard:
        """Return an accelerator card by key, name or alias; raises TunemarkError with a suggestion for an unknown name."""
        card = self.recognise_accelerator(name)
        if card is not None:
            return card
        raise TunemarkError("accelerator", name, f"not in data/accelerators; {suggest_accelerator(name, self.accelerators)}")

    def recognise_accelerator(self, reported: str) -> AcceleratorCard | None:
        """Return the card of a device by the name it reports, or None: never another chip's card."""
        key = self._accelerator_aliases.get(reported.lower(), reported.lower())
        return self.accelerators.get(key)

    @cached_property
    def aws_sizes(self) -> dict[str, tuple[str, ...]]:
        """Sizes of AWS's instance families with accelerators, by family; empty where data/prices has no list of them."""
        path = self.root / "prices" / "aws_sizes.toml"
        families = _toml(path).get("families") if path.exists() else None
        return {name: tuple(sizes) for name, sizes in families.items()} if isinstance(families, dict) else {}

    @cached_property
    def instances(self) -> frozenset[str]:
        """Names of instances: those with a price, and the sizes of AWS's families."""
        return frozenset(row.instance for row in self.prices) | {
            f"{family}.{size}" for family, sizes in self.aws_sizes.items() for size in sizes
        }

    def instance(self, name: str) -> str:
        """Return the name of an instance as its provider writes it; raises TunemarkError with a suggestion for an unknown one."""
        known = {instance.lower(): instance for instance in self.instances}
        if name.lower() in known:
            return known[name.lower()]
        raise TunemarkError("instance", name, f"no instance of data/prices; {suggest_instance(name, self.instances)}")

    def refused_aws_size(self, instance: str) -> str | None:
        """Return why a name of AWS's form names no instance that AWS sells, or None; it does not matter who is said to sell it.

        Of a family that nobody has looked up nothing is known: see `unknown_aws_family`.
        """
        name = self._unlisted_aws(instance)
        if name is None or name["family"] not in self.aws_sizes:
            return None
        return f"AWS has no size {name['size']} of {name['family']}; {suggest_instance(instance, self.instances)}"

    def unknown_aws_family(self, instance: str) -> str | None:
        """Return what to do about a name of AWS's form whose family is not in data/prices/aws_sizes.toml, or None."""
        name = self._unlisted_aws(instance)
        if name is None or name["family"] in self.aws_sizes:
            return None
        near = suggest_instance(instance, self.instances)
        return f"no family {name['family']} of AWS is in data/prices/aws_sizes.toml; add it with its source, or {near}"

    def _unlisted_aws(self, instance: str) -> re.Match[str] | None:
        listed = not self.aws_sizes or instance.lower() in {known.lower() for known in self.instances}
        return None if listed else AWS.fullmatch(instance.lower())

    def read_all(self) -> None:
        """Read every card and price; raises TunemarkError for the first that is wrong."""
        _ = self.accelerators, self.models, self.workloads, self.prices, self.support, self.known

    def workload_sha256(self, key: str) -> str:
        """Return the content hash of a workload: of its file, and of its key where the file holds several."""
        path = self.root / "workloads" / f"{key}.toml"
        if path.exists():
            return hashlib.sha256(path.read_bytes()).hexdigest()
        matrix = path.with_name(f"{self.matrix_of(key)}.toml")
        return hashlib.sha256(matrix.read_bytes() + key.encode()).hexdigest()

    def golden_losses(self, key: str) -> GoldenLosses | None:
        """Return the losses that a right run of a workload reaches, or None where none were taken with this card."""
        path = self.root / "workloads" / "golden" / f"{key}.toml"
        golden = validated(GoldenLosses, _toml(path), str(path)) if path.exists() else None
        return golden if golden and golden.workload_sha256 == self.workload_sha256(key) else None

    @cached_property
    def _accelerator_aliases(self) -> dict[str, str]:
        return {alias.lower(): card.key for card in self.accelerators.values() for alias in (card.name, *card.aliases)}


def _cards(folder: Path, kind: type[Card]) -> Iterator[Card]:
    for path in sorted(folder.glob("*.toml")):
        yield read_card(path, kind)


def read_card(path: Path, kind: type[Keyed]) -> Keyed:
    """Return the card in a file; raises TunemarkError (exit code 3) for what is none."""
    card = validated(kind, _toml(path), str(path))
    if card.key != path.stem:
        raise TunemarkError(
            f"{path}: key", card.key, f"a card is named as its file; rename one to the other ({path.stem})", exit_code=Exit.INVALID
        )
    return card


def read_known(path: Path) -> dict[str, object]:
    """Return what a file of data/known holds, by kind; raises TunemarkError (exit code 3) for what is no such file."""
    known = validated(Known, _toml(path), str(path))
    return {name: getattr(known, name) for name in known.model_fields_set}


def read_prices(path: Path) -> Iterator[tuple[int, PriceRow]]:
    """Yield the rows of a price book with their lines; raises TunemarkError for the first that is none."""
    for line, cells_of_row in price_lines(path):
        yield line, price_of(cells_of_row, f"{path}:{line}")


def price_lines(path: Path) -> Iterator[tuple[int, dict[Any, Any]]]:
    """Yield the cells of a price book by column, with their lines; cells beyond the last column stand under None."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        for row in reader:
            yield reader.line_num, dict(row)


def price_of(row: Mapping[Any, Any], place: str) -> PriceRow:
    """Return a line of a price book as a price; raises TunemarkError that names its place, the field, its value and the fix."""
    if None in row:
        raise TunemarkError(
            f"{place}: columns",
            len(row) - 1 + len(row[None]),
            f"the header has {len(row) - 1}; a text with a comma needs quotes",
            exit_code=Exit.INVALID,
        )
    return validated(PriceRow, {str(name): value for name, value in row.items() if value not in {None, ""}}, place)


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
        yield validated(WorkloadCard, cell, place)


def _toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TunemarkError(str(path), "", f"not valid TOML: {error}", exit_code=Exit.INVALID) from error


def validated(kind: type[Model], content: dict[str, object], place: str) -> Model:
    """Return content as a record; raises TunemarkError that names its place, the first wrong field, its value and the fix."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        if first["type"] == "missing":
            raise TunemarkError(f"{place}: {field}", "", f"no {field}; add it", exit_code=Exit.INVALID) from error
        # A rule between fields has no field of its own, and its input is the whole record: its sentence says it all.
        where, value = (f"{place}: {field}", first.get("input")) if field else (place, content.get("key", content.get("instance", "")))
        raise TunemarkError(where, value, first["msg"].removeprefix("Value error, "), exit_code=Exit.INVALID) from error
