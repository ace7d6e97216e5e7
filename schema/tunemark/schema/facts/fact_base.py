"""The fact base: loads the cards, prices, workloads and other facts of data/.

Cards are found by key, name or alias. Unknown names raise an error with a suggestion.
"""

import csv
import hashlib
import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from tunemark.schema.errors import Exit, TunemarkError, did_you_mean, problems_of
from tunemark.schema.facts import names
from tunemark.schema.facts.cards import APPLE, AcceleratorCard, AwsSizes, ModelCard, PriceBasis, PriceRow
from tunemark.schema.facts.workloads import GoldenLosses, WorkloadCard, cells
from tunemark.schema.files import data_folder, project_root
from tunemark.schema.vocabulary import Backend

if TYPE_CHECKING:
    from tunemark.schema.facts.world_facts import WorldFacts
    from tunemark.schema.plan.capabilities import SupportMatrix

SUPPORT_FILE = "support.json"
MOST_SHARING = 8
"""Accelerators that a message lists as what a part of a name may mean."""
BASIS_FILE = "basis.toml"
"""File of the price basis, in data/prices."""
Content = TypeVar("Content")
Model = TypeVar("Model", bound=BaseModel)
Keyed = TypeVar("Keyed", AcceleratorCard, ModelCard, GoldenLosses)


@dataclass(frozen=True)
class FactBase:
    """All facts of data/ except published results. Each kind is read on first use."""

    root: Path
    """The folder data/."""
    own_workloads: tuple[Path, ...] = ()
    """Workload cards of the user's."""
    own_models: tuple[ModelCard, ...] = ()
    """Models of the user's."""

    @classmethod
    def of_project(cls) -> "FactBase":
        """Return the facts of the current checkout, or those of the installed package."""
        return cls.of_root(project_root())

    @classmethod
    def of_root(cls, root: Path) -> "FactBase":
        """Return the facts of a checkout, or those of the installed package for any other folder."""
        return cls(data_folder(root))

    def read_folder(self, folder: str, reader: Callable[[Path], Content]) -> Iterator[Content]:
        """Yield the contents of the files of a folder. Raise TunemarkError for the first invalid one."""
        yield from map(reader, sorted((self.root / folder).glob("*.toml")))

    @cached_property
    def accelerators(self) -> dict[str, AcceleratorCard]:
        """Accelerator cards by key."""
        return {card.key: card for card in self.read_folder("accelerators", partial(read_card, kind=AcceleratorCard))}

    @cached_property
    def models(self) -> dict[str, ModelCard]:
        """Model cards by key."""
        return {card.key: card for card in (*self.read_folder("models", partial(read_card, kind=ModelCard)), *self.own_models)}

    @cached_property
    def workloads(self) -> dict[str, WorkloadCard]:
        """Workload cards by key."""
        files = (*sorted((self.root / "workloads").glob("*.toml")), *self.own_workloads)
        return {card.key: card for path in files for card in workloads_of(path)}

    @cached_property
    def prices(self) -> tuple[PriceRow, ...]:
        """The price book."""
        path = self.root / "prices" / "prices.csv"
        return tuple(price_of(cells_of_row, f"{path}:{line}") for line, cells_of_row in price_lines(path))

    @cached_property
    def by_instance(self) -> dict[str, PriceRow]:
        """The last price of each instance by its name in lower case."""
        return {row.instance.lower(): row for row in self.prices}

    @cached_property
    def price_basis(self) -> PriceBasis:
        """The default basis of costs."""
        return read_facts(self.root / "prices" / BASIS_FILE, PriceBasis)

    @cached_property
    def known(self) -> "WorldFacts":
        """Releases, datasets, generations and bounds from practice."""
        from tunemark.schema.facts.world_facts import WorldFacts  # noqa: PLC0415 - imports 17 kinds of rows, which no run needs

        merged: dict[str, object] = {}
        for stated in self.read_folder("known", partial(read_facts, kind=WorldFacts)):
            merged |= {name: getattr(stated, name) for name in stated.model_fields_set}
        return WorldFacts.model_validate(merged)

    @cached_property
    def support(self) -> "SupportMatrix | None":
        """The support matrix, or None if data/ has none."""
        from tunemark.schema.plan.capabilities import SupportMatrix  # noqa: PLC0415 - imports the records of runs, which few commands need

        path = self.root / SUPPORT_FILE
        return validated(SupportMatrix, json.loads(path.read_text(encoding="utf-8")), str(path)) if path.exists() else None

    @cached_property
    def gate_scores(self) -> tuple[dict[str, Any], ...]:
        """The outcome of the examination of the checks, which `make mutation-score` writes, by the columns of its table; empty without any."""
        path = self.root / "evaluations" / "gate.csv"
        rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines()) if path.exists() else ()
        return tuple({name: int(cell) if cell.isdecimal() else cell or None for name, cell in row.items()} for row in rows)

    def matrix_of(self, key: str) -> str | None:
        """Return the name of the matrix file that contains a workload, or None if it has a card of its own."""
        if (self.root / "workloads" / f"{key}.toml").exists():
            return None
        stems = (file.stem for file in (self.root / "workloads").glob("*.toml") if key.startswith(f"{file.stem}-"))
        return max(stems, key=len, default=None)

    def workload(self, name: str) -> WorkloadCard:
        """Return a workload card. Raise TunemarkError with a suggestion for an unknown name."""
        if name.lower() in self.workloads:
            return self.workloads[name.lower()]
        near = did_you_mean(name, self.workloads)
        raise TunemarkError("workload", name, f"no workload has this name; {near}; `tunemark workloads` lists them")

    def model(self, name: str) -> ModelCard:
        """Return a model card by key or alias; a variant of a model with the same architecture has its card.

        Raise TunemarkError with a suggestion for an unknown name.
        """
        card = self.find_model(name)
        if card is None:
            works = "" if names.not_modelled(name) else "; a config.json of the hub, or a size such as 8B, works too"
            raise TunemarkError("model", name, f"not a known model; {names.suggest_card(name, self.models.values())}{works}")
        return card

    def find_model(self, name: str) -> ModelCard | None:
        """Return the card of a model, or None for an unknown name; see `model`."""
        key = names.key_of_model(self.model_keys, name)
        return None if key is None else self.models[key]

    @cached_property
    def model_keys(self) -> dict[str, str]:
        """Models by their spellings in lower case."""
        return names.model_keys(self.models.values())

    def accelerator(self, name: str, option: str = "accelerator", *, usual: bool = False) -> AcceleratorCard:
        """Return an accelerator card by key, name or alias, or by a part of one that a single card has: `3090`, `h100 sxm`.

        `usual` allows a part that variants of one product share, such as `h100`: it is the one with the most prices. A Mac has the memory in
        its name, as in `M4 Max 64GB`. Raise TunemarkError about the option with a suggestion for an unknown name, and with the candidates for one that several cards have.
        """
        if card := self.recognise_accelerator(name):
            return card
        words, sharing, variants = names.words_of_device(name), self.sharing_name(name), self.variants_of(name)
        parts = [key for key in sharing if any(not (spelling - words) & names.MODELS_APART for spelling in self._spelled[key])]
        prices = Counter(row.accelerator for row in self.prices if row.accelerator in variants) if usual and len(variants) > 1 else {}
        most_priced = [key for key, count in prices.items() if count == max(prices.values())]
        # Some Macs have the largest memory of their kind only with fewer or with more cores.
        cards, memory = self.accelerators, names.memory_in(name)
        largest = [key for key in parts if cards[key].vendor == APPLE and cards[key].memory_gib == memory]
        for found in (largest, variants, sharing if parts == sharing else [], most_priced):
            if len(found) == 1:
                return names.with_memory(cards[found[0]], memory)
        if cpu := self._cpus.get(names.cpu_name(name)):
            return cpu
        fix = f"not a known accelerator; {names.suggest_accelerator(name, self.accelerators)}"
        if len(sharing) == 1:
            fix = f"not a known accelerator; another model of it is {sharing[0]!r}"
        elif 1 < len(sharing) <= MOST_SHARING:
            fix = f"may be {' or '.join(sharing)}; give one of them"
        raise TunemarkError(option, name, fix if words else "give the name of an accelerator, such as 'RTX 4090' or 'M4 Pro 24GB'")

    def counted(self, name: str, option: str = "accelerator") -> tuple[int | None, str]:
        """Return the number of devices in a name such as `8 x H100` or `H100:8`, None without one, and the name of the accelerator."""
        if slice_of := names.TPU_SLICE.fullmatch(name.strip()):
            # Slices of v4 and v5p are named after their cores, of which a chip has two.
            kind = "v5e" if "lite" in name.lower() else slice_of[1].lower()
            return int(slice_of[2]) // (2 if kind in {"v4", "v5p"} else 1) or 1, f"TPU {kind}"
        parts = None if self.sharing_name(name) else names.COUNTED.fullmatch(names.MACHINE.sub(" ", name).strip(" ()"))
        if parts is None:
            return None, name
        number = parts[1] or parts[3]
        if number and (int(number) == 0 or (parts[1] and parts[3])):
            raise TunemarkError(option, name, "give one number of accelerators, 1 or more, as in '8 x H100'")
        several = names.SEVERAL.fullmatch(parts[2])
        return int(number) if number else None, several[1] if several and not self.sharing_name(parts[2]) else parts[2]

    def sharing_name(self, name: str) -> list[str]:
        """Return the keys of the accelerators, CPUs left out, whose spellings hold all words of a name and whose memory is that in it, if any."""
        words, memory = names.words_of_device(name), names.memory_in(name)
        # A small number alone is one of cores.
        named = any(len(word) > 2 or not word.isdigit() for word in words)  # noqa: PLR2004 - such as `L4`, and not 40
        return sorted(
            key
            for key, spellings in self._spelled.items()
            if named and words <= frozenset().union(*spellings) and (memory is None or names.sold_with(self.accelerators[key], memory))
        )

    def variants_of(self, name: str) -> list[str]:
        """Return the keys of the accelerators of a name that differ in memory, board or maker alone."""
        words = names.words_of_device(name)
        spelled = {key: [spelling - words for spelling in self._spelled[key]] for key in self.sharing_name(name)}
        return [key for key, beyond in spelled.items() if any(all(map(names.VARIANT.fullmatch, each)) for each in beyond)]

    @cached_property
    def _spelled(self) -> dict[str, list[set[str]]]:
        """The words of each spelling of each accelerator that is not a CPU."""
        cards = [card for card in self.accelerators.values() if card.unit != "cpu"]
        return {card.key: [names.words_of_device(name) for name in (card.key, card.name, *card.aliases)] for card in cards}

    def recognise_accelerator(self, reported: str) -> AcceleratorCard | None:
        """Return the card of a device by the name that it reports, or None if there is no card with exactly that name."""
        key = self._accelerator_aliases.get(reported.lower(), reported.lower())
        return self.accelerators.get(key)

    def recognise_device(self, reported: str, backend: Backend) -> AcceleratorCard | None:
        """Return the card of a device of a family, or None. A CPU and a GPU may report one name, such as Apple M3 Max.

        Of a CPU, trademark signs, clock and number of cores in the name do not count. A name without a model has no card: it would also
        match other CPUs.
        """
        return self._cpus.get(names.cpu_name(reported)) if backend is Backend.CPU else self.recognise_accelerator(reported)

    @cached_property
    def aws_sizes(self) -> dict[str, tuple[str, ...]]:
        """Sizes of AWS instance families with accelerators, by family. Empty if data/prices has no list."""
        path = self.root / "prices" / "aws_sizes.toml"
        return read_facts(path, AwsSizes).families if path.exists() else {}

    @cached_property
    def instances(self) -> frozenset[str]:
        """Names of all instances with a price, and all sizes of AWS families."""
        sizes = (f"{family}.{size}" for family, sizes in self.aws_sizes.items() for size in sizes)
        return frozenset(sizes) | {row.instance for row in self.prices}

    def refused_aws_size(self, instance: str, *, families: bool = False) -> str | None:
        """Return the reason why a name in the form of AWS is not an instance that AWS sells, or None.

        With `families`, a family that data/prices/aws_sizes.toml does not list is refused too.
        """
        name = names.AWS.fullmatch(instance.lower())
        if name is None or not self.aws_sizes or instance.lower() in map(str.lower, self.instances):
            return None
        near = names.suggest_instance(instance, self.instances)
        if name["family"] in self.aws_sizes:
            return f"AWS has no size {name['size']} of {name['family']}; {near}"
        unlisted = f"the AWS family {name['family']} is not in data/prices/aws_sizes.toml; add it with its source, or {near}"
        return unlisted if families else None

    def workload_sha256(self, key: str) -> str:
        """Return the content hash of a workload: of its file, together with its key if the file holds several."""
        path = next((own for own in self.own_workloads if own.stem == key), self.root / "workloads" / f"{key}.toml")
        if path.exists():
            return hashlib.sha256(path.read_bytes()).hexdigest()
        matrix = path.with_name(f"{self.matrix_of(key)}.toml")
        return hashlib.sha256(matrix.read_bytes() + key.encode()).hexdigest()

    def golden_losses(self, key: str) -> GoldenLosses | None:
        """Return the expected losses of a workload, or None if none were recorded with this version of the card."""
        path = self.root / "workloads" / "golden" / f"{key}.toml"
        golden = read_facts(path, GoldenLosses) if path.exists() else None
        return golden if golden and golden.workload_sha256 == self.workload_sha256(key) else None

    @cached_property
    def _accelerator_aliases(self) -> dict[str, str]:
        """Keys by name and alias in lower case. Aliases of CPUs are not among them, because GPUs may have the same."""
        cards = self.accelerators.values()
        return {alias.lower(): card.key for card in cards for alias in (card.name, *(() if card.unit == "cpu" else card.aliases))}

    @cached_property
    def _cpus(self) -> dict[str, AcceleratorCard]:
        cards = [card for card in self.accelerators.values() if card.unit == "cpu"]
        return {names.cpu_name(alias): card for card in cards for alias in (card.name, *card.aliases)}


def read_facts(path: Path, kind: type[Model]) -> Model:
    """Return the facts in a TOML file. Raise TunemarkError (exit code 3) if it is missing or invalid."""
    return validated(kind, _toml(path), str(path))


def read_card(path: Path, kind: type[Keyed]) -> Keyed:
    """Return the card in a file of its name. Raise TunemarkError (exit code 3) if it is invalid."""
    card = read_facts(path, kind)
    if card.key != path.stem:
        raise _misnamed(path, card.key)
    return card


def price_lines(path: Path) -> Iterator[tuple[int, dict[Any, Any]]]:
    """Yield the cells of each line of a price book by column, with the line number. Extra cells have the key None."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        for row in reader:
            yield reader.line_num, dict(row)


def price_of(row: Mapping[Any, Any], place: str) -> PriceRow:
    """Return the price in a line of a price book. Raise TunemarkError with place, field, value and fix if it is invalid."""
    if None in row:
        fix = f"the header has {len(row) - 1}; quote text that contains a comma"
        raise TunemarkError(f"{place}: columns", len(row) - 1 + len(row[None]), fix, exit_code=Exit.INVALID)
    return validated(PriceRow, {str(name): value for name, value in row.items() if value not in {None, ""}}, place)


def workloads_of(path: Path) -> Iterator[WorkloadCard]:
    """Yield the workload in a file, or each cell of the matrix in it."""
    content = _toml(path)
    if content.get("key") != path.stem:
        raise _misnamed(path, content.get("key"))
    for place, cell in cells(content, str(path)):
        yield validated(WorkloadCard, cell, place)


def _misnamed(path: Path, key: object) -> TunemarkError:
    return TunemarkError(f"{path}: key", key, f"the key must equal the file name ({path.stem}); rename one of them", exit_code=Exit.INVALID)


def _toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise TunemarkError(
            "file", str(path), "is missing; name another file, or restore it if it is one of the repository", exit_code=Exit.INVALID
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TunemarkError(str(path), "", f"not valid TOML: {error}", exit_code=Exit.INVALID) from error


def validated(kind: type[Model], content: dict[str, object], place: str) -> Model:
    """Return the content as a record. Raise TunemarkError with place, first invalid field, value and fix."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        field, value, fix = next(problems_of(error, kind))
        # The input of a rule between fields is the whole record, so show its key instead.
        where, value = (f"{place}: {field}", value) if field else (place, content.get("key", content.get("instance", "")))
        raise TunemarkError(where, value, fix, exit_code=Exit.INVALID) from error
