"""Facts about the world that are neither a device, a model nor a price: releases, data sets, generations, practice.

One file per kind in data/known, each with its source. What is not there is unknown, never assumed.
"""

from datetime import date
from typing import Literal

from pydantic import Field

from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.physics.training_shape import Loss
from tunemark.schema.records.base import Frozen, Key, PositiveCount, Text


class Release(Frozen):
    """When a version of a library came out."""

    library: Text
    version: Text
    released_on: date
    source: Text
    verified: bool = True
    """False when the day was not read at the source."""


class Library(Frozen):
    """When each version of a library came out, as its registry says."""

    library: Text
    source: Text
    read_on: date
    released_on: dict[str, date]
    """Version -> day of its first file."""


class Series(Frozen):
    """All versions of a series that has ended, or those so far."""

    library: Text
    prefix: Text
    """Text in front of the version as documents print it, such as `Ubuntu 22.04`."""
    versions: tuple[Text, ...]
    source: Text


class DatasetFact(Frozen):
    """Rows of a data set."""

    key: Text
    """Its name, as documents print it."""
    training_rows: PositiveCount
    validation_rows: PositiveCount | None = None
    test_rows: PositiveCount | None = None
    source: Text
    verified: bool = True
    """False when it was not read at the source."""


class Generation(Frozen):
    """Tensor cores of an architecture."""

    architecture: Text
    tensor_core_generation: PositiveCount
    source: Text
    verified: bool = True
    """False when it was not read at the source."""


class ArchitectureSupport(Frozen):
    """Since when a library can load a family of models."""

    family: Text
    """As model cards name it."""
    library: Text
    added_on: date
    """When it came into the library's repository: no version released before has it."""
    source: Text
    verified: bool = True
    """False when the day was not read at the source."""


class Variant(Frozen):
    """A checkpoint of a name that several checkpoints share."""

    word: Text
    """What tells it from the others, where it is printed."""
    context_length: PositiveCount


class SharedName(Frozen):
    """Checkpoints of one name and size that differ in the length of their context."""

    model: Key
    """The model card that results of the name are filed under."""
    variants: tuple[Variant, ...] = Field(min_length=2)
    source: Text
    verified: bool = True
    """False when it was not read at the source."""


class MemoryReading(Frozen):
    """How the memory figures of a document are read, and what its training code does that its tables do not say."""

    source: Text
    """The document."""
    unit: Literal["printed", "GB"] = "printed"
    """`GB`: the number is in 10^9 bytes whatever is printed."""
    quantity: Literal["allocated", "reserved"] = "allocated"
    """Which peak it is."""
    loss: Loss = "upcast"
    """What its loss keeps."""
    reentrant: bool = False
    """Which checkpointing function."""
    because: tuple[Text, ...] = ()
    """The evidence."""


class Practice(Frozen):
    """A bound from practice that rules compare with."""

    key: Key
    value: float
    meaning: Text
    source: Text
    verified: bool = True
    """False when it was not read at the source."""


class Known(Frozen):
    """Everything in data/known."""

    releases: tuple[Release, ...] = ()
    libraries: tuple[Library, ...] = ()
    series: tuple[Series, ...] = ()
    datasets: tuple[DatasetFact, ...] = ()
    generations: tuple[Generation, ...] = ()
    architectures: tuple[ArchitectureSupport, ...] = ()
    shared_names: tuple[SharedName, ...] = ()
    memory_readings: tuple[MemoryReading, ...] = ()
    practices: tuple[Practice, ...] = Field(default=())

    def released_on(self, library: str, version: str) -> Release | None:
        """Return the release of a version, or None when it is not known."""
        listed = next((one for one in self.libraries if one.library == library and version in one.released_on), None)
        if listed is not None:
            return Release(library=library, version=version, released_on=listed.released_on[version], source=listed.source)
        return next((one for one in self.releases if one.library == library and one.version == version), None)

    def memory_reading(self, source: str) -> MemoryReading:
        """Return how the memory figures of a document are read; as printed where nothing is known of it."""
        return next((one for one in self.memory_readings if one.source == source), MemoryReading(source=source))

    def dataset(self, printed: str | None) -> DatasetFact | None:
        """Return the data set that printed words name, or None."""
        words = (printed or "").lower()
        return next((one for one in self.datasets if one.key.lower() in words), None)

    def generation(self, architecture: str | None) -> int | None:
        """Return the generation of an architecture's tensor cores, or None."""
        return next((one.tensor_core_generation for one in self.generations if one.architecture == architecture), None)

    def practice(self, key: str) -> float:
        """Return a bound; raises TunemarkError for one that is not there."""
        found = next((one.value for one in self.practices if one.key == key), None)
        if found is None:
            raise TunemarkError("data/known/practices.toml", key, "is not there; the audit needs this bound", exit_code=Exit.INVALID)
        return found
