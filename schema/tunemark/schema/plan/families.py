"""What the devices of a family and of a generation can do: the harness declares it per vendor and writes all of it to data/support.json."""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from tunemark.schema.features import Feature
from tunemark.schema.vocabulary import Dtype

FEATURE_OF_FORMAT: dict[Dtype, Feature] = {Dtype.BF16: Feature.BF16, Dtype.FP16: Feature.FP16, Dtype.TF32: Feature.TF32}


class Need(NamedTuple):
    """A package that a feature needs, by its distribution name, and how to install it."""

    package: str
    install: str


@dataclass(frozen=True, slots=True)
class Generation:
    """GPUs of one family that lack the same features."""

    name: str
    """One of these GPUs, in words."""
    target: str
    """Pattern of the compile target: NVIDIA's compute capability, AMD's gfx name."""
    architectures: tuple[str, ...]
    """Architecture names on accelerator cards."""
    cannot: dict[Feature, str]
    """Missing features, with the reason and what to use instead."""

    def formats(self, family_formats: tuple[Dtype, ...]) -> tuple[Dtype, ...]:
        """Return the number formats of the family that this generation has."""
        return tuple(dtype for dtype in family_formats if FEATURE_OF_FORMAT.get(dtype) not in self.cannot)


@dataclass(frozen=True, slots=True)
class Family:
    """What the devices of a family can do. The harness declares it per vendor and writes all of them to data/support.json."""

    found_by: str
    """Reason that a plan gives when devices of the family are found."""
    formats: tuple[Dtype, ...]
    """Number formats of the matrix units, fastest first; a generation may lack some."""
    cannot: dict[Feature, str]
    """Features that no device of the family has, each with the reason and what to use instead."""
    needs: dict[Feature, Need] = field(default_factory=dict)
    """Packages that features need."""
    generations: tuple[Generation, ...] = ()
    """Generations that lack more than the family does."""
    on_host: bool = False
    """True where all processes of a machine share the CPU."""

    def generation(self, target: str | None, architecture: str | None) -> Generation | None:
        """Return the generation of a device if it lacks something, else None. The card's architecture counts only without a target."""
        for generation in self.generations:
            if re.fullmatch(generation.target, target) if target else architecture in generation.architectures:
                return generation
        return None
