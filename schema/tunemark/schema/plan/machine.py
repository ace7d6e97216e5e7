"""The machine of a plan: its devices, what their family can do, and the host. A frozen value that a record's environment gives again."""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from tunemark.schema.features import Feature
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.vocabulary import Backend, Dtype

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The device family that is used, and the host around it."""

    backend: Backend
    family: Family
    """What the devices can do."""
    backend_reason: str
    """How the devices were found."""
    devices: tuple[DeviceFacts, ...]
    """All devices of the family; one entry for the CPU."""
    os: str
    python: str
    packages: dict[str, str]
    cpu: str
    cpu_physical_cores: int | None
    cpu_logical_cores: int
    cpu_usable_cores: int
    memory_bytes: int | None
    """Memory of the host; None where it is unknown, of another machine."""
    swap_bytes: int | None = None
    """Swap space of the host."""
    free_disk_bytes: int = 0
    """Free disk space of this machine; no record has it."""
    indexes: tuple[int, ...] = ()
    """Number of each device in its vendor's tools, which no record has; empty for the CPU."""

    @property
    def target(self) -> str | None:
        """Compile target of the first device; None where unknown."""
        return self.devices[0].target
