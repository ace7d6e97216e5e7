"""The interface of a vendor: find devices, run work on one, monitor them, and list what they cannot do.

A module of this package that defines `VENDOR`, or `VENDORS`, describes device families. It is imported where such devices may be, and
imports torch and the vendor's libraries inside functions.
"""

import contextlib
import platform
import shutil
import subprocess
import threading
import time
import tomllib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import Field

from tunemark.schema.facts.fact_base import validated
from tunemark.schema.formats import GIB
from tunemark.schema.plan.capabilities import Family, Feature, Need
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.vocabulary import Backend

# What a family can do, by the table families.toml

FILE = Path(__file__).with_name("families.toml")
_content = tomllib.loads(FILE.read_text(encoding="utf-8"))
NEEDS = {Feature(feature): Need(**need) for feature, need in _content.pop("needs").items()}
"""Packages that features need in our own loop."""
_shared = _content.pop("shared")


class Chip(NamedTuple):
    """What a number on the PCI bus stands for; its devices of torch share its memory."""

    name: str
    memory_gib: int
    devices: int


class Row(Family):
    """The table of a family. The last five fields are for packages that add a device to torch."""

    module: str = ""
    """Its file in this package, if that has not the name of the family."""
    tools: tuple[str, ...] = ()
    """Commands or paths of which a machine with such devices has one; empty where finding them needs none."""
    preference: int = 0
    """The found family with the highest preference is used unless `--set backend` names another."""
    masks: tuple[str, ...] = ()
    """Environment variables that choose among its devices."""
    names: dict[str, dict[str, str]] = Field(default_factory=dict)
    """Our names of the constants of its libraries."""
    need: Need | None = None
    driver: Need | None = None
    """What torch needs below it: a kernel module, or an operating system."""
    library: Need | None = None
    """The package that its monitor asks."""
    also_needed_for: tuple[Feature, ...] = ()
    modules: tuple[str, ...] = ()
    no_reserved: str | None = None
    pci_maker: str | None = None
    chips: dict[str, Chip] = Field(default_factory=dict)


def _with_shared(row: dict[str, Any]) -> dict[str, Any]:
    """Return a table with the reasons that it shares; its own count more."""
    lists = (*(_shared[name] for name in row.pop("shares", ())), row.get("cannot", {}))
    return row | {"cannot": {feature: reason for each in lists for feature, reason in each.items()}}


def row_of(name: str, content: dict[str, Any]) -> Row:
    """Return the table of a family. Raises TunemarkError that names the family and the field for one that is unknown or invalid."""
    generations = [_with_shared(each) for each in content.get("generations", ())]
    return validated(Row, _with_shared(content) | {"generations": generations}, f"{FILE.name}: {name}")


TABLE = {Backend(name): row_of(name, content) for name, content in _content.items()}


def versions(need: Need | None) -> str:
    """Return the version of a package, kernel module or operating system that is here, the oldest that will do, and how to get it; "" for none."""
    if need is None:
        return ""
    module, systems = Path("/sys/module", need.package, "version"), {"Linux": platform.release(), "macOS": platform.mac_ver()[0]}
    found = next((each.version for each in metadata.distributions(name=need.package)), None) or systems.get(need.package)
    found = found or (module.read_text().strip() if module.exists() else "not installed")
    least = "" if need.oldest == "0" else f", and {need.oldest} or newer is needed"
    return f"{need.package} is {found}{least}: {need.install}"


# Find devices

PCI = Path("/sys/bus/pci/devices")


@dataclass(frozen=True, slots=True)
class FoundDevice:
    """A device as its vendor's tool or library lists it."""

    index: int | None
    """Number that the vendor's monitor knows it by; None for a device without one."""
    facts: DeviceFacts


def on_pci_bus(row: Row) -> list[FoundDevice]:
    """Return the devices of the chips of a row on the PCI bus."""
    numbers = ([(path / name).read_text().strip() for name in ("vendor", "device")] for path in sorted(PCI.glob("*")))
    chips = (row.chips[number] for maker, number in numbers if maker == row.pci_maker and number in row.chips)
    parts = ((chip.name, chip.memory_gib * GIB // chip.devices) for chip in chips for _ in range(chip.devices))
    return [FoundDevice(None, DeviceFacts(name=name, memory_bytes=memory)) for name, memory in parts]


def may_be_here(row: Row) -> bool:
    """Return False if this machine has no such device for sure, by what is installed or on the PCI bus."""
    if row.chips:
        return bool(on_pci_bus(row))
    return not row.tools or any(Path(tool).exists() if tool.startswith("/") else shutil.which(tool) for tool in row.tools)


# Run work on a device

Stamp = Any
"""A mark in the device's queue of work; its type belongs to the device."""


UNSUPPORTED = (RuntimeError, AttributeError, TypeError)
"""What a function that a device does not have raises; NotImplementedError is a RuntimeError."""


class DeviceUnavailable(RuntimeError):
    """Torch cannot use a device here, or the vendor's library or tool cannot monitor it, for the reason in the message."""


class AllocatorState(NamedTuple):
    """What the allocator of this process holds now."""

    held_bytes: int
    """Bytes that it has reserved."""
    retries: int = 0
    """Times since the process began that it found no memory, emptied its cache, which waits for the device, and tried again."""


def functions_of(**known: Any) -> SimpleNamespace:  # noqa: ANN401 - functions by torch's names
    """Return the functions of torch's module of a device that `Device` calls: the known ones, and others without effect."""
    without: dict[str, Any] = dict.fromkeys(("synchronize", "empty_cache", "set_device", "reset_peak_memory_stats"), lambda *_: None)
    without |= {"Event": None, "memory_stats": dict, "max_memory_allocated": int, "max_memory_reserved": int}
    return SimpleNamespace(**{**without, **known})


class Device:
    """The device of one process. Times are seconds on the host's monotonic clock.

    Steps are timed by events in its queue of work, so that nothing waits inside the measured window. A device without events is waited for
    at every mark.
    """

    row: ClassVar[Row]
    """What families.toml says of the device."""
    family = "cpu"
    """Name of its torch module."""
    torch_name = "cpu"
    """Name of the device in torch: `cpu`, `cuda:0`, `mps`."""
    counted_by = ""
    """The module of torch whose allocator counts."""
    free_marks = False
    """True if a mark inside a step does not wait for the device, so that micro-steps can be marked without slowing them."""
    draws_weights = False
    """True if its own generator draws random weights much faster than the host's."""
    pins_memory = False
    """True if it copies from pinned host memory while the host goes on."""
    no_peaks = "torch has no allocator for it that counts peaks"
    """Why there are no memory peaks, where its allocator counts none."""
    libraries: ClassVar[dict[str, Callable[[Any], str | None]]] = {}
    """Library of the vendor -> its version, as torch tells it."""
    _torch: Any = None
    _api: Any = functions_of()
    """Torch's module of the device."""
    _index = 0

    @classmethod
    def open(cls, threads: int | None, local_rank: int = 0) -> Self:
        """Return the device of a process; `threads` limits CPU threads. Raises DeviceUnavailable when torch cannot use it."""
        import torch  # noqa: PLC0415

        if threads is not None:
            # More threads than cores only add noise.
            torch.set_num_threads(threads)
        try:
            return cls.opened(torch, local_rank)
        except (ImportError, *UNSUPPORTED) as error:
            reason, missing = str(error).strip().partition("\n")[0].rstrip("."), versions(cls.row.driver or cls.row.need)
            msg = f"torch {torch.__version__} cannot use {cls.family}:{local_rank}: {reason}; {missing}"
            raise DeviceUnavailable(msg) from error

    @classmethod
    def opened(cls, torch: Any, local_rank: int) -> Self:  # noqa: ANN401, ARG003 - a module, imported late; a process has one host
        """Return the device of a process. Any of `UNSUPPORTED` says why torch cannot use it."""
        return cls()

    def adopt_thread(self) -> None:
        """Make this the device of another thread of the process, which may then pin memory. A new thread would open another one's context."""
        self._api.set_device(self._index)

    def now(self) -> float:
        """Return the host's clock."""
        return time.monotonic()

    def name(self) -> str | None:
        """Return the name that torch reports, or None where it cannot be compared with the vendor's."""
        return None

    def stack(self) -> dict[str, str]:
        """Return the versions of the vendor's libraries that torch uses, by name; empty where it uses none."""
        return {library: version for library, ask in self.libraries.items() if (version := ask(self._torch))}

    def seed(self, seed: int) -> None:
        """Seed the random number generators of the process and of the device."""
        import torch  # noqa: PLC0415

        torch.manual_seed(seed)

    def begin(self) -> None:
        """Start measuring: wait for all work, tie the clock of marks to the host's, and reset memory peaks to what is in use.

        Blocks that only loading, gates and the probe used are released: reserved memory is to be that of steps.
        """
        self.synchronise()
        self.release_cache()
        if self._api.Event:
            self._last = self._api.Event(enable_timing=True)
            self._last.record()
            self._last.synchronize()
        self._last_s = time.monotonic()
        self._api.reset_peak_memory_stats()

    def synchronise(self) -> None:
        """Wait until all submitted work is done."""
        self._api.synchronize()

    def host_copy(self, scalar: Any) -> Any:  # noqa: ANN401 - a torch tensor
        """Return a copy of a small tensor that can be read without waiting once a later mark is reached.

        It is in pinned memory. Without such memory it is the tensor itself, to be read later.
        """
        if not self.pins_memory:
            return scalar
        copy = self._torch.empty(scalar.shape, dtype=self._torch.float32, pin_memory=True)
        copy.copy_(scalar, non_blocking=True)
        return copy

    def stamp(self) -> Stamp:
        """Return a mark at this point in the device's queue of work; without events, the time at which all work is done."""
        if not self._api.Event:
            self.synchronise()
            return self.now()
        event = self._api.Event(enable_timing=True)
        event.record()
        return event

    def reached(self, stamp: Stamp) -> float | None:
        """Return the time at which the device reached a mark, or None if it has not. Call in the order of the marks.

        Measured from the previous event: `elapsed_time` is a 32-bit float of milliseconds and loses digits over hours.
        """
        if isinstance(stamp, float):
            return stamp
        if not stamp.query():
            return None
        self._last_s += self._last.elapsed_time(stamp) / 1e3
        self._last = stamp
        return float(self._last_s)

    def allocator(self) -> AllocatorState | None:
        """Return the state of the allocator by its own counters, without waiting; None where unknown."""
        counters = self._api.memory_stats()
        held = counters.get("reserved_bytes.all.current")
        return None if held is None else AllocatorState(int(held), int(counters.get("num_alloc_retries", 0)))

    def release_cache(self) -> None:
        """Give memory that the allocator reserves and no tensor uses back to the system."""
        self._api.empty_cache()

    def memory(self) -> dict[str, dict[str, Any]]:
        """Return the peaks of what this process's allocator has `allocated` and `reserved` since `begin`, each as a `MemoryReading` holds it.

        Those that torch cannot ask for are 0, and then the reason is given.
        """
        peaks = {"allocated": self._api.max_memory_allocated(), "reserved": self._api.max_memory_reserved()}
        if not peaks["allocated"]:
            return {kind: {"peak_bytes": None, "reason": self.no_peaks} for kind in peaks}
        return {kind: {"peak_bytes": peak, "method": f"{self.counted_by}.max_memory_{kind}"} for kind, peak in peaks.items()}


class Gpu(Device):
    """A GPU that torch itself is built for."""

    family = "cuda"
    build = "cuda"
    """What `torch.version` calls the library that torch must be built for: `cuda`, `hip`, `xpu`."""
    free_marks = True
    draws_weights = True
    pins_memory = True

    def __init__(self, torch: Any, api: Any, local_rank: int = 0) -> None:  # noqa: ANN401 - modules, imported late
        self._torch, self._api, self._index = torch, api, local_rank
        self.torch_name, self.counted_by = f"{self.family}:{local_rank}", f"torch.{self.family}"

    @classmethod
    def opened(cls, torch: Any, local_rank: int) -> Self:  # noqa: ANN401 - a module, imported late
        """Return the GPU of a process."""
        if getattr(torch.version, cls.build, None) is None:
            msg = f"it is not built for {cls.build.upper()}; install a build that is"
            raise RuntimeError(msg)
        api = getattr(torch, cls.family)
        api.init()
        api.set_device(local_rank)
        return cls(torch, api, local_rank)


# Monitor devices from the parent process


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """One device at one moment. None where the vendor does not report a value."""

    busy: float | None = None
    """Fraction of the last interval in which something ran, 0 to 1."""
    power_w: float | None = None
    clock_mhz: float | None = None
    """Clock of the arithmetic units."""
    temperature_c: float | None = None
    memory_used_bytes: int | None = None
    """Memory used by all processes."""
    energy_j: float | None = None
    """The hardware's energy counter, which starts at an arbitrary value."""
    throttle_reasons: frozenset[str] | None = None
    """Why the clocks are lowered, in the driver's words. Idle is not a reason."""
    memory_clock_mhz: float | None = None
    errors: frozenset[str] | None = None
    """Errors of the hardware since the last reading."""


class DeviceMonitor:
    """Base of a monitor, which reads sensors of devices from a process that does not use them."""

    tool: str
    """Name of the library or tool, for the reasons of unknown values."""

    read: Callable[[], tuple[DeviceReading, ...]]
    """Return one reading per device, in the requested order; empty without new values. Never raises for a missing value."""
    close: Callable[[], None]
    """Release the vendor's library or tool."""
    _processes: tuple[frozenset[int], ...] | None = None

    def processes(self) -> tuple[frozenset[int], ...] | None:
        """Return the process ids on each device, as they were last seen; None where the vendor does not report them."""
        return self._processes

    def why(self, place: int, figure: str) -> str:  # noqa: ARG002 - one signature for all
        """Return the reason why a device has no value of a field of its readings, or of `processes`."""
        return f"{self.tool} does not report it"


Question = Callable[[Any, Any], Any]
"""Ask a vendor's library, the first argument, about the device with a handle, the second. It may fail where a value is missing."""


class LibraryMonitor(DeviceMonitor):
    """Base of a monitor that asks a vendor's Python library, with a handle for each device. Its questions are tables."""

    row: ClassVar[Row]
    """What families.toml says of the devices."""
    module: str
    begin: str
    end: str
    error: str
    """The library, its functions that begin and end its use, and its error."""
    handles: Callable[[Any, Sequence[int] | None], Iterable[Any]]
    """Handles of some devices, or of all."""
    readings: ClassVar[dict[str, Question]]
    """Field of a reading -> its value, in our units."""
    since_last: ClassVar[dict[str, str]] = {}
    """Field of a reading -> the method that answers for the time since the last reading."""
    facts: ClassVar[dict[str, Question]]
    """Field of `DeviceFacts` -> its value."""
    link: Callable[[Any, Any, Any], str]
    """Connection of a device with another one."""
    processes_on: Question
    """Process ids on a device."""

    def __init__(self, library: Any, indexes: Sequence[int] | None) -> None:  # noqa: ANN401 - a module
        self._library, self._handles = library, tuple(type(self).handles(library, indexes))
        self._error: type[Exception] = getattr(library, self.error)
        self._failed: dict[tuple[int, Question | None], str] = {}
        self._questions = self.readings | {field: getattr(self, method) for field, method in self.since_last.items()}
        self._before: dict[int, Any] = {}
        """By place, what a method of `since_last` keeps for the next reading."""

    @classmethod
    def open(cls, indexes: Sequence[int] | None = None) -> Self:
        """Return a monitor of some devices, or of all. Raises DeviceUnavailable without the library or without a driver."""
        need = cls.row.library
        try:
            library = import_module(cls.module)
            need = cls.row.driver
            getattr(library, cls.begin)()
            return cls(library, indexes)
        except Exception as error:  # without ROCm, the import of amdsmi fails with a KeyError
            # Its text may hold a path.
            msg = f"{cls.tool} cannot be used here ({type(error).__name__}); {versions(need)}"
            raise DeviceUnavailable(msg) from error

    def ask(self, place: int, question: Question) -> Any:  # noqa: ANN401 - the library's answers
        """Return the answer about the device at a place, or None, with the reason kept."""
        try:
            return question(self._library, self._handles[place])
        except self._error as error:
            self._failed[place, question] = f"{self.tool}: {' '.join(str(error).split()) or type(error).__name__}"
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            self._failed[place, question] = f"this version of {self.tool} does not report it ({type(error).__name__})"
        return None

    def why(self, place: int, figure: str) -> str:
        """Return the library's own error where there was one."""
        question = (self._questions | {"processes": type(self).processes_on}).get(figure)
        return self._failed.get((place, question), super().why(place, figure))

    def described(self, place: int, visible: Sequence[int]) -> dict[str, Any]:
        """Return the facts of a device as `DeviceFacts` has them, with the reasons of missing ones; `visible` are the devices of a run."""

        def links(library: Any, handle: Any) -> tuple[str, ...]:  # noqa: ANN401 - the module and a handle
            return tuple(type(self).link(library, handle, self._handles[other]) for other in visible if other != place)

        questions = {**self.facts, "links": links}
        values = {name: self.ask(place, question) for name, question in questions.items()}
        unknown = (name for name, value in values.items() if value is None)
        reasons = {name: self._failed.get((place, questions[name]), f"{self.tool} does not report it") for name in unknown}
        return values | {"unknown": reasons}

    def read(self) -> tuple[DeviceReading, ...]:
        """Return one reading per device."""
        places = range(len(self._handles))
        return tuple(DeviceReading(**{name: self.ask(place, question) for name, question in self._questions.items()}) for place in places)

    def processes(self) -> tuple[frozenset[int], ...] | None:
        """Return the process ids on each device."""
        listed = [self.ask(place, type(self).processes_on) for place in range(len(self._handles))]
        return tuple(frozenset(ids) for ids in listed if ids is not None) if None not in listed else None

    def close(self) -> None:
        """Unload the library."""
        with contextlib.suppress(self._error):
            getattr(self._library, self.end)()


class LineMonitor(DeviceMonitor):
    """Base of a monitor that reads the lines of a vendor's tool, which prints them in each period. The indexes are the tool's numbers."""

    command: Callable[[Sequence[int]], list[str]]
    """The tool and its arguments for some devices."""
    _process: subprocess.Popen[str]
    _thread: threading.Thread

    def __init__(self, indexes: Sequence[int]) -> None:
        self._indexes, self.tool = tuple(indexes), self.command(indexes)[0]
        # A deque may be filled by one thread and emptied by another.
        self._lines: deque[str] = deque()

    @classmethod
    def open(cls, indexes: Sequence[int]) -> Self:
        """Start the tool, and collect its lines in a thread until it is closed. Raises DeviceUnavailable without it."""
        monitor = cls(indexes)
        if shutil.which(monitor.tool) is None:
            msg = f"{monitor.tool} is not installed"
            raise DeviceUnavailable(msg)
        try:
            command, silent = cls.command(indexes), subprocess.DEVNULL
            monitor._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=silent, stdin=silent, text=True, errors="replace")  # noqa: S603 - fixed commands
        except OSError as error:
            msg = f"{monitor.tool} could not be started ({error.strerror})"
            raise DeviceUnavailable(msg) from error
        monitor._thread = threading.Thread(target=monitor._lines.extend, args=(monitor._process.stdout,), daemon=True)
        monitor._thread.start()
        return monitor

    def new_lines(self) -> list[str]:
        """Return the lines printed since the last call."""
        return [self._lines.popleft() for _ in range(len(self._lines))]

    def close(self) -> None:
        """Stop the tool."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)
        self._process.kill()
        self._process.wait()
        self._thread.join(timeout=2)


# A vendor


class Vendor(Row):
    """Everything the harness knows about one device family: what its devices can do, and how it uses them."""

    backend: Backend
    device: type[Device]
    needs: dict[Feature, Need] = Field(default_factory=lambda: NEEDS)
    find: Callable[[], list[FoundDevice]] = list
    """Return the visible devices of this machine; empty without a driver. Raises DeviceUnavailable if it seems to have some, but lacks something."""
    monitor: Callable[[Sequence[int]], DeviceMonitor] | None = None
    """Open a monitor of some devices, or raise DeviceUnavailable."""
    environment: Callable[[Plan, Mapping[str, str]], dict[str, str]] = lambda _plan, _given: {}
    """Return further variables of the worker's environment, given those that the user has set."""
    usable_bytes: Callable[[int, bool], int] = lambda memory, _here: memory
    """Return the bytes that a process may use of a device's memory, of this machine or of one to plan for."""
    probe_size: int | None = 8192
    """Rows of the square matrices that measure the matrix rate; None where it cannot be measured."""

    @property
    def family(self) -> Family:
        """What its devices can do, as data/support.json holds it."""
        needs = {feature: need for feature, need in self.needs.items() if feature not in self.cannot}
        return Family(**{name: getattr(self, name) for name in Family.model_fields} | {"needs": needs})


def vendor(backend: Backend, **own: Any) -> Vendor:  # noqa: ANN401 - fields of a vendor
    """Return the vendor of a family in the table; `own` are the fields that it does not hold."""
    row = TABLE[backend]
    needs = dict.fromkeys((Feature.FULL, Feature.LORA, *row.also_needed_for), row.need) if row.need else {}
    return Vendor(**dict(row) | {"backend": backend, "needs": NEEDS | needs} | own)


PACKAGE = "tunemark.harness.vendors"


def vendor_of(backend: Backend) -> Vendor:
    """Return the vendor of a device family, which its module defines as `VENDOR` or in `VENDORS`. No other module is imported."""
    name = TABLE[backend].module if backend in TABLE else ""
    defined = vars(import_module(f"{PACKAGE}.{name or backend.value}"))
    vendors: list[Vendor] = defined.get("VENDORS") or [defined["VENDOR"]]
    return next(vendor for vendor in vendors if vendor.backend is backend)


def all_vendors(*, here: bool = False) -> list[Vendor]:
    """Return every vendor, or those with devices that may be `here`, the preferred one first."""
    known = (backend for backend in Backend if backend in TABLE or find_spec(f"{PACKAGE}.{backend.value}"))
    possible = (each for each in known if not here or each not in TABLE or may_be_here(TABLE[each]))
    return sorted(map(vendor_of, possible), key=lambda vendor: -vendor.preference)
