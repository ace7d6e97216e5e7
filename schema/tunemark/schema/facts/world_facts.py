"""Facts other than devices, models and prices: releases, datasets, generations, bounds from practice.

One file per kind in data/known, each fact with its source.
"""

from datetime import date
from typing import Literal

from pydantic import Field

from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.records.base import Frozen, Key, PositiveCount, Text


class Release(Frozen):
    """The release date of a version of a library."""

    library: Text
    version: Text
    released_on: date
    source: Text
    verified: bool = True
    """False if the date was not read at the source."""


class Library(Frozen):
    """Release dates of a library as listed by its registry."""

    library: Text
    source: Text
    read_on: date
    released_on: dict[str, date]
    """Version -> date of its first file."""


class VersionSeries(Frozen):
    """All versions of a series up to now, or all of a series that has ended."""

    library: Text
    prefix: Text
    """Text before the version as documents print it, such as `Ubuntu 22.04`."""
    versions: tuple[Text, ...]
    source: Text


class DatasetFact(Frozen):
    """Row counts of a dataset."""

    key: Text
    """Name as documents print it."""
    training_rows: PositiveCount
    validation_rows: PositiveCount | None = None
    test_rows: PositiveCount | None = None
    source: Text
    verified: bool = True
    """False if it was not read at the source."""


class Generation(Frozen):
    """Tensor core generation of an architecture."""

    architecture: Text
    tensor_core_generation: PositiveCount
    source: Text
    verified: bool = True
    """False if it was not read at the source."""


class ArchitectureSupport(Frozen):
    """The date from which a library supports a family of models."""

    family: Text
    """As model cards name it."""
    library: Text
    added_on: date
    """Date of the commit that added it. Earlier releases do not have it."""
    source: Text
    verified: bool = True
    """False if the date was not read at the source."""


class Variant(Frozen):
    """One of several checkpoints with the same name."""

    word: Text
    """Word that distinguishes it, if printed."""
    context_length: PositiveCount


class SharedName(Frozen):
    """Checkpoints of one name and size with different context lengths."""

    model: Key
    """Model card to which results with this name are assigned."""
    variants: tuple[Variant, ...] = Field(min_length=2)
    source: Text
    verified: bool = True
    """False if it was not read at the source."""


class MemoryLever(Frozen):
    """Fields of `TrainingShape` for the results whose conditions match."""

    when: dict[str, Text] = Field(default_factory=dict)
    """Condition or setting -> regular expression that its value matches as a whole. Without any: all results of the document."""
    shape: dict[str, bool | int | float | Text | tuple[Text, ...]]
    """Field of `TrainingShape` -> value."""


class MemoryConvention(Frozen):
    """How the memory figures of a document are read, and properties of its training code that its tables do not state."""

    source: Text
    """The document."""
    unit: Literal["printed", "GB"] = "printed"
    """`GB`: the number is in 10^9 bytes, whatever unit is printed."""
    quantity: Literal["allocated", "reserved"] = "allocated"
    """Which peak the document reports."""
    levers: tuple[MemoryLever, ...] = ()
    """Properties of the training code that change its memory; later ones override earlier ones."""
    left_out: dict[str, Text] = Field(default_factory=dict)
    """Result -> reason why its memory is not compared: conditions that the memory model needs and nobody states."""
    because: tuple[Text, ...] = ()
    """The evidence."""


class Practice(Frozen):
    """A bound from practice used by audit rules."""

    key: Key
    value: float
    meaning: Text
    source: Text
    verified: bool = True
    """False if it was not read at the source."""


class WorldFacts(Frozen):
    """All facts in data/known."""

    releases: tuple[Release, ...] = ()
    libraries: tuple[Library, ...] = ()
    series: tuple[VersionSeries, ...] = ()
    datasets: tuple[DatasetFact, ...] = ()
    generations: tuple[Generation, ...] = ()
    architectures: tuple[ArchitectureSupport, ...] = ()
    shared_names: tuple[SharedName, ...] = ()
    memory_readings: tuple[MemoryConvention, ...] = ()
    practices: tuple[Practice, ...] = Field(default=())

    def released_on(self, library: str, version: str) -> Release | None:
        """Return the release of a version, or None if it is unknown."""
        listed = next((entry for entry in self.libraries if entry.library == library and version in entry.released_on), None)
        if listed is not None:
            return Release(library=library, version=version, released_on=listed.released_on[version], source=listed.source)
        return next((release for release in self.releases if (release.library, release.version) == (library, version)), None)

    def memory_reading(self, source: str) -> MemoryConvention:
        """Return the convention by which the memory figures of a document are read. By default they are taken as printed."""
        return next((entry for entry in self.memory_readings if entry.source == source), MemoryConvention(source=source))

    def dataset(self, printed: str | None) -> DatasetFact | None:
        """Return the dataset named in printed text, or None."""
        words = (printed or "").lower()
        return next((dataset for dataset in self.datasets if dataset.key.lower() in words), None)

    def generation(self, architecture: str | None) -> int | None:
        """Return the tensor core generation of an architecture, or None."""
        return next((entry.tensor_core_generation for entry in self.generations if entry.architecture == architecture), None)

    def practice(self, key: str) -> float:
        """Return a bound. Raise TunemarkError if it is missing."""
        value = next((practice.value for practice in self.practices if practice.key == key), None)
        if value is None:
            raise TunemarkError("data/known/practices.toml", key, "is missing; the audit needs this bound", exit_code=Exit.INVALID)
        return value
