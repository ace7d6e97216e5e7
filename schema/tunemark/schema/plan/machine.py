"""The machine of a plan: its devices, what their family can do, and the host. A frozen value that a record's environment gives again."""

from dataclasses import dataclass

from tunemark.schema.plan.families import Family
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.vocabulary import Backend


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
