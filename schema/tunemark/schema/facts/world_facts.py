"""Facts other than devices, models and prices: releases, datasets, generations, bounds from practice.

One file per kind in data/known, each fact with its source.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from packaging.version import Version
from pydantic import Field

from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.cards import ModelFamily
from tunemark.schema.records.base import Day, Frozen, Key, PackageVersion, PositiveCount, ResultId, Source, Text, consistency
from tunemark.schema.vocabulary import Dtype, SoftwareLevel


class Sourced(Frozen):
    """A fact with its source."""

    source: Source
    verified: bool = True
    """False if it was not read at the source."""


class Release(Sourced):
    """The release date of a version of a library."""

    library: Text
    version: Text
    released_on: Day


class Library(Frozen):
    """Release dates of a library as listed by its registry."""

    library: Text
    source: Source
    read_on: Day
    released_on: dict[PackageVersion, Day]
    """Version -> date of its first file."""

    @cached_property
    def newest(self) -> Version:
        """Return the newest version."""
        return max(map(Version, self.released_on))


class VersionSeries(Frozen):
    """A series of versions that has ended, or its point releases up to now; the last point of `Ubuntu 22.04` is 5."""

    library: Text
    prefix: Text
    """Text before the version as documents print it, such as `Ubuntu 22.04`."""
    last_point: PositiveCount
    source: Source


class TokenLengths(Sourced):
    """Lengths of the rows of a dataset in tokens, before truncation and padding."""

    tokenizer: Key
    """Model card whose tokenizer was used."""
    mean: float = Field(gt=0)
    quantiles: dict[str, PositiveCount]
    """Quantile -> tokens: `0` is the shortest row, `0.5` the median, `1` the longest row."""

    @consistency
    def _whole_distribution(self) -> Iterator[str]:
        steps, tokens = self._steps()
        if steps[:1] + steps[-1:] != [0.0, 1.0] or tokens != sorted(tokens) or not tokens[0] <= self.mean <= tokens[-1]:
            yield f"quantiles {self.quantiles} need a shortest row `0`, a longest row `1`, and no shorter row at a higher quantile"

    def mean_cut_to(self, longest: int) -> float:
        """Return the mean number of tokens of rows that are cut to `longest` tokens.

        Exact if no row is longer. Else rows are interpolated between the quantiles, scaled so that without a cut the mean is right.
        """
        steps, tokens = self._steps()
        if longest >= tokens[-1]:
            return self.mean
        places = sorted({*steps, float(np.interp(longest, tokens, steps))})
        lengths = np.interp(places, steps, tokens)
        return self.mean * float(np.trapezoid(np.minimum(lengths, longest), places) / np.trapezoid(lengths, places))

    def _steps(self) -> tuple[list[float], list[int]]:
        by_quantile = sorted((float(quantile), count) for quantile, count in self.quantiles.items())
        return [quantile for quantile, _ in by_quantile], [count for _, count in by_quantile]


class DatasetFact(Sourced):
    """Row counts of a dataset."""

    key: Text
    """Name as documents print it."""
    training_rows: PositiveCount
    validation_rows: PositiveCount | None = None
    test_rows: PositiveCount | None = None
    labels: PositiveCount | None = None
    """Classes, if the dataset is for classification."""
    token_lengths: tuple[TokenLengths, ...] = ()
    """Lengths of its rows, by tokenizer."""

    def lengths_for(self, tokenizer: str | None) -> TokenLengths | None:
        """Return the lengths of the rows for a model's tokenizer, or None."""
        return next((lengths for lengths in self.token_lengths if lengths.tokenizer == tokenizer), None)


class Generation(Sourced):
    """Tensor core generation of an architecture."""

    architecture: Text
    tensor_core_generation: PositiveCount


class ArchitectureSupport(Sourced):
    """The date from which a library supports a family of models."""

    family: ModelFamily
    library: Text
    added_on: Day
    """Date of the commit that added it. Earlier releases do not have it."""


class Requirement(Sourced):
    """What a library needs from a version on, up to that of the next requirement of the same kind."""

    library: Text
    since: PackageVersion
    """First version for which it holds."""
    needs: Text
    """`python`, `cuda`, or a library."""
    least: PackageVersion
    """Oldest version with which it can be installed."""
    newest: PackageVersion | None = None
    """Newest Python or CUDA that its builds are for, or newest minor version of a library that it works with; null without a limit."""

    @consistency
    def _in_order(self) -> Iterator[str]:
        newest = Version(self.newest or self.least).release
        if newest < Version(self.least).release[: len(newest)]:
            yield f"newest is {self.newest!r}, below the oldest, {self.least}; swap them or correct one"


class Variant(Frozen):
    """One of several checkpoints with the same name."""

    word: Text
    """Word that distinguishes it, if printed."""
    context_length: PositiveCount


class SharedName(Sourced):
    """Checkpoints of one name and size with different context lengths."""

    model: Key
    """Model card to which results with this name are assigned."""
    variants: tuple[Variant, ...] = Field(min_length=2)


def applies(when: Mapping[str, re.Pattern[str]], value_of: Callable[[str], object]) -> bool:
    """Return True if each value named in `when` matches its regular expression as a whole."""
    return all(pattern.fullmatch(str(value_of(name))) for name, pattern in when.items())


class MemoryLever(Frozen):
    """Fields of `TrainingShape` for the results whose conditions match."""

    when: dict[str, re.Pattern[str]] = Field(default_factory=dict)
    """Condition or setting -> regular expression that its value matches as a whole. Without any: all results of the document."""
    shape: dict[str, bool | int | float | Text | tuple[Text, ...]]
    """Field of `TrainingShape` -> value."""


class MemoryConvention(Frozen):
    """How the memory figures of a document are read, and properties of its training code that its tables do not state."""

    source: Text
    unit: Literal["printed", "GB"] = "printed"
    """`GB`: the number is in 10^9 bytes, whatever unit is printed."""
    quantity: Literal["allocated", "reserved"] = "allocated"
    """Which peak the document reports."""
    stack: Text | None = None
    """The stack of the memory model that was read in the same software, if one software made all its figures."""
    levers: tuple[MemoryLever, ...] = ()
    """Properties of the training code that change its memory; later ones override earlier ones."""
    left_out: dict[str, Text] = Field(default_factory=dict)
    """Result -> reason why its memory is not compared: conditions that the memory model needs and nobody states."""
    because: tuple[Text, ...] = ()


class Software(Frozen):
    """How far the software of a document is tuned."""

    source: Text
    """The document, or the harness of converted results."""
    when: dict[str, re.Pattern[str]] = Field(default_factory=dict)
    """Condition, setting or `section` -> regular expression that its value matches as a whole. Without any: all results."""
    name: Text | None = None
    """Name of this software, where a document has more than one; by default the document."""
    level: SoftwareLevel
    block_format: Dtype | None = None
    """Format below 16 bits in which matrices multiply, where its results do not state one."""
    because: Text
    left_out: Text | None = None
    """Reason why its rates do not calibrate predictions."""


class Practice(Sourced):
    """A bound from practice used by audit rules."""

    key: Key
    value: float
    meaning: Text


class Withdrawal(Frozen):
    """A submission that is no longer trusted. It stays readable, and enters no ranking, audit or prediction."""

    result_id: ResultId
    withdrawn_on: Day
    reason: Annotated[str, Field(min_length=12, max_length=2_000)]


class WorldFacts(Frozen):
    """All facts in data/known."""

    releases: tuple[Release, ...] = ()
    libraries: tuple[Library, ...] = ()
    series: tuple[VersionSeries, ...] = ()
    datasets: tuple[DatasetFact, ...] = ()
    generations: tuple[Generation, ...] = ()
    architectures: tuple[ArchitectureSupport, ...] = ()
    requirements: tuple[Requirement, ...] = ()
    shared_names: tuple[SharedName, ...] = ()
    memory_readings: tuple[MemoryConvention, ...] = ()
    software: tuple[Software, ...] = ()
    practices: tuple[Practice, ...] = Field(default=())
    withdrawn: tuple[Withdrawal, ...] = ()

    def released_on(self, library: str, version: str) -> Release | None:
        """Return the release of a version, or None if it is unknown."""
        listed = next((entry for entry in self.libraries if entry.library == library and version in entry.released_on), None)
        if listed is not None:
            return Release(library=library, version=version, released_on=listed.released_on[version], source=listed.source)
        return next((release for release in self.releases if (release.library, release.version) == (library, version)), None)

    def requirements_of(self, library: str, version: Version) -> dict[str, Requirement]:
        """Return the requirements of a version of a library: `python` or a library -> requirement. Empty where they are unknown."""
        oldest_first = sorted((Version(entry.since), place) for place, entry in enumerate(self.requirements) if entry.library == library)
        return {self.requirements[place].needs: self.requirements[place] for since, place in oldest_first if since <= version}

    def memory_reading(self, source: str) -> MemoryConvention:
        """Return the convention by which the memory figures of a document are read. By default they are taken as printed."""
        return next((entry for entry in self.memory_readings if entry.source == source), MemoryConvention(source=source))

    def software_of(self, source: str, value_of: Callable[[str], object]) -> Software:
        """Return the software of a result; `value_of` returns a condition, a setting or the section. By default it is plain."""
        matching = (entry for entry in reversed(self.software) if entry.source == source and applies(entry.when, value_of))
        return next(matching, Software(source=source, level="plain", because="not known"))

    def dataset(self, printed: str | None) -> DatasetFact | None:
        """Return the dataset named in printed text, or None."""
        words = (printed or "").lower()
        return next((dataset for dataset in self.datasets if dataset.key.lower() in words), None)

    def generation(self, architecture: str | None) -> int | None:
        """Return the tensor core generation of an architecture, or None."""
        return next((entry.tensor_core_generation for entry in self.generations if entry.architecture == architecture), None)

    def withdrawal(self, result_id: str) -> Withdrawal | None:
        """Return the withdrawal of a result, or None."""
        return next((entry for entry in self.withdrawn if entry.result_id == result_id), None)

    def practice(self, key: str) -> float:
        """Return a bound. Raise TunemarkError if it is missing."""
        value = next((practice.value for practice in self.practices if practice.key == key), None)
        if value is None:
            raise TunemarkError("data/known/practices.toml", key, "is missing; the audit needs this bound", exit_code=Exit.INVALID)
        return value
