"""Checks of the machine: devices against their card and family, cores and memory, versions against their releases, power and clocks."""

import re
import unicodedata
from collections.abc import Iterator
from datetime import timedelta

from packaging.version import InvalidVersion, Version

from tunemark.schema import VERSION
from tunemark.schema.derive import Derived
from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import GIB
from tunemark.schema.records.submission import DeviceFacts, Submission
from tunemark.schema.records.trace import DeviceUse
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.vocabulary import PACKAGES, VENDOR_PACKAGES, Backend, Method, Phase, Status, Strategy

VENDORS = {
    Backend.CUDA: "NVIDIA",
    Backend.ROCM: "AMD",
    Backend.NEURON: "AWS",
    Backend.XPU: "Intel",
    Backend.MPS: "Apple",
}
"""The vendor whose devices a family holds."""
VENDOR_WORDS = {
    "NVIDIA": r"nvidia|geforce|tesla|quadro|\b[ahb][1-3]00\b|\bl40s?\b|\brtx\b",
    "AMD": r"instinct|radeon|\bmi\d{3}",
    "AWS": r"trainium|inferentia|neuron",
}
"""Words in the name of a device without a card by which its vendor is recognised."""
LARGEST_DEVICE_BYTES = 2048 * GIB
LARGEST_HOST_BYTES, SMALLEST_HOST_BYTES = 64 * 1024 * GIB, GIB // 4
MOST_SWAP = 16
"""Swap as a multiple of memory."""
MEMORY_SHARE = (0.85, 1.06)
"""Memory that a device reports over that of its card: drivers and error correction take up to a tenth, GB against GiB 7%."""
POWER_TOLERANCE = 1.3
"""Board power is a limit of means over milliseconds; readings overshoot it."""
LIMIT_TOLERANCE, LOWEST_LIMIT = 1.5, 0.1
"""The power limit over the board power: owners may raise that of some boards by a third, and lower it to about a fifth."""
MOST_WATTS = 3_000
MOST_DEVICES_OF_A_NODE = 128
FASTEST_MHZ = 4_500
HOTTEST_C = 130
IDLE_TOLERANCE = 0.8
ENERGY_AGREES = (0.5, 2.0)
"""Energy over mean power x time. The counter and the samples are two instruments, and a short window has few samples."""
SEEN_OF_RESERVED = 0.98
"""Memory in use over memory reserved: the framework keeps what it has reserved, so that no sample misses it."""
MEMORY_METHODS = {
    "device_allocated": r"torch\.|Neuron|neuron",
    "device_reserved": r"torch\.",
    "host_rss": r"peak resident memory",
    "host_swap": r"VmSwap|swap",
}
"""The beginning of each method that the harness uses."""
SLOWEST_MHZ = 100
HBM_GB_S, HBM_GIB, FASTEST_HBM_MHZ = 1_500, 40, 2_500
"""Devices with so much memory of such a bandwidth have stacked memory; their compute units never run faster."""
WINDOW_AGREES = (0.4, 2.5)
"""Time between the readings of energy over the time of the steady window."""
MOST_CORES, MOST_THREADS_OF_A_CORE = 8_192, 8
OLDEST_TORCH = Version("2.1")
SYSTEMS = re.compile(r"(Linux|Darwin|Windows) (\d+)\w*(\.\d+)? (x86_64|aarch64|arm64|AMD64|ARM64|ppc64le|riscv64|s390x)")
NEWEST_SYSTEM = {"Linux": 8, "Darwin": 30, "Windows": 9_999}
OLDEST_SYSTEM = {"Linux": 3, "Darwin": 20, "Windows": 10}
BUILDS = {Backend.CUDA: "cpu|rocm|xpu", Backend.ROCM: "cpu|cu|xpu", Backend.XPU: "cpu|cu|rocm", Backend.CPU: "", Backend.NEURON: "rocm|xpu"}
"""Builds of torch that have no kernels for a family."""
RUNTIMES = {
    Backend.CUDA: "cuda|cudnn|nccl",
    Backend.ROCM: "rocm|hip|miopen|rccl",
    Backend.NEURON: "neuronx?-.+|aws-neuronx-.+",
    Backend.XPU: ".+",
    Backend.MPS: "metal|macos",
}
THROTTLE_REASONS = {"application_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown"}
THROTTLE_REASONS |= {"hw_power_brake_slowdown", "display_clock_setting", "throttled"}
DAY = timedelta(days=1)
DRIVERS = {
    Backend.CUDA: re.compile(r"(\d{3})\.\d{1,3}(\.\d{1,3})?"),
    Backend.ROCM: re.compile(r"\d+(\.\d+)+([-.+~\w]*)"),
    Backend.NEURON: re.compile(r"\d+(\.\d+)+([-.+~\w]*)"),
    Backend.XPU: re.compile(r"[\w.+~-]*\d[\w.+~-]*"),
}
FIRST_VERSION = Version("0.1.0")
NVIDIA_DRIVERS = range(450, 700)
"""Major versions with which a torch of today runs, and some years ahead."""
PYTHONS = range(9, 20)
"""Minor versions of Python 3 that the libraries support, or may soon."""
MINORS_AHEAD = 6
LARGEST_MAJOR = 100
"""Largest first number of a version; some packages use the year."""


def machine_problems(submission: Submission, derived: Derived | None, facts: FactBase) -> Iterator[Problem]:
    """Yield each impossible fact about the machine, and each that contradicts another."""
    card = facts.accelerators.get(submission.plan.device.accelerator or "")
    yield from _host(submission)
    for index, device in enumerate(submission.environment.devices):
        yield from _device(submission, device, f"environment.devices.{index}", card, facts)
    yield from _alike(submission)
    yield from _versions(submission, facts)
    yield from _needed_packages(submission)
    yield from _strategy(submission)
    if card is not None and card.launch_year is not None and submission.started_at.year < card.launch_year:
        yield Problem("started_at", f"{submission.started_at:%Y-%m-%d}", f"{card.name} was launched in {card.launch_year}")
    yield from _peaks(submission, card)
    yield from _use(submission, card)
    yield from _energy(submission, derived, card)


def _host(s: Submission) -> Iterator[Problem]:
    e = s.environment
    system = SYSTEMS.fullmatch(e.os)
    if system is None or int(system[2]) < OLDEST_SYSTEM[system[1]] or int(system[2]) > NEWEST_SYSTEM[system[1]]:
        yield Problem("environment.os", repr(e.os), "is no system with its major.minor version and machine, such as 'Linux 6.8 x86_64'")
    elif system[1] == "Darwin" and e.backend not in {Backend.MPS, Backend.CPU}:
        yield Problem("environment.os", repr(e.os), f"the {e.backend.value} back end does not exist on this system")
    makers = ((r"^Apple ", "^Darwin"), (r"Intel|AMD|Xeon|EPYC|Ryzen", "x86_64|AMD64"), (r"Neoverse|Graviton|Cortex", "aarch64|arm64|ARM64"))
    if system is not None and any(re.search(maker, e.cpu) and not re.search(machines, e.os) for maker, machines in makers):
        yield Problem("environment.cpu", repr(e.cpu), f"does not run under {e.os!r}")
    if not re.search(r"[A-Za-z]{2}", e.cpu) or (e.backend is not Backend.CPU and re.search(VENDOR_WORDS["NVIDIA"], e.cpu, re.IGNORECASE)):
        yield Problem("environment.cpu", repr(e.cpu), "is no name of a CPU")
    if e.cpu_logical_cores > MOST_CORES:
        yield Problem("environment.cpu_logical_cores", str(e.cpu_logical_cores), "no host has that many cores")
    if e.cpu_physical_cores and e.cpu_logical_cores > MOST_THREADS_OF_A_CORE * e.cpu_physical_cores:
        fix = f"more than {MOST_THREADS_OF_A_CORE} threads for each of {e.cpu_physical_cores} physical cores"
        yield Problem("environment.cpu_logical_cores", str(e.cpu_logical_cores), fix)
    if s.plan.device.threads is not None and e.backend is not Backend.CPU:
        yield Problem("plan.device.threads", str(s.plan.device.threads), "only runs on a CPU set the threads that compute")
    physical = e.cpu_physical_cores
    if e.cpu_usable_cores > e.cpu_logical_cores:
        yield Problem("environment.cpu_usable_cores", str(e.cpu_usable_cores), f"the host has {e.cpu_logical_cores} logical cores")
    if physical is not None and physical > e.cpu_logical_cores:
        yield Problem("environment.cpu_physical_cores", str(physical), f"the host has {e.cpu_logical_cores} logical cores")
    if s.plan.device.threads is not None and s.plan.device.threads > e.cpu_logical_cores:
        yield Problem("plan.device.threads", str(s.plan.device.threads), f"the host has {e.cpu_logical_cores} logical cores")
    if not SMALLEST_HOST_BYTES <= e.memory_bytes <= LARGEST_HOST_BYTES:
        yield Problem("environment.memory_bytes", str(e.memory_bytes), "no host has that much or that little memory; check the unit")
    if e.swap_bytes is not None and e.swap_bytes > MOST_SWAP * e.memory_bytes:
        yield Problem("environment.swap_bytes", str(e.swap_bytes), f"more than {MOST_SWAP} times the memory of the host; check the unit")
    use = s.utilisation
    if use is not None:
        for name, most in (("cpu_busy_peak", e.cpu_logical_cores), ("foreign_cpu_busy_mean", e.cpu_logical_cores)):
            value = getattr(use, name)
            if value is not None and value > most * POWER_TOLERANCE + 1:
                yield Problem(f"utilisation.{name}", f"{value:g} cores", f"the host has {most} logical cores")


def _device(s: Submission, device: DeviceFacts, field: str, card: AcceleratorCard | None, facts: FactBase) -> Iterator[Problem]:
    backend, environment = s.environment.backend, s.environment
    if backend is Backend.CPU:
        for name in ("driver", "power_limit_w"):
            if getattr(device, name) is not None:
                yield Problem(f"{field}.{name}", repr(getattr(device, name)), "a CPU reports none; write null")
        if device.name != environment.cpu:
            yield Problem(
                f"{field}.name", repr(device.name), f"environment.cpu is {environment.cpu!r}; with the CPU back end they are the same"
            )
        if device.memory_bytes is not None and device.memory_bytes != environment.memory_bytes:
            fix = f"environment.memory_bytes is {environment.memory_bytes}; the memory of a CPU is that of its host"
            yield Problem(f"{field}.memory_bytes", str(device.memory_bytes), fix)
        if environment.runtime:
            fix = "the CPU back end uses no vendor's stack; leave it empty"
            yield Problem("environment.runtime", ", ".join(environment.runtime), fix)
    yield from _family(device.name, f"{field}.name", backend, card, facts)
    memory = device.memory_bytes
    if memory is None:
        if backend in {Backend.CUDA, Backend.ROCM}:
            yield Problem(f"{field}.memory_bytes", "null", f"a device of the {backend.value} back end always reports its memory")
    elif backend is not Backend.CPU:
        yield from _memory(memory, f"{field}.memory_bytes", backend, card)
    if device.power_limit_w is not None:
        board_w = card.tdp_w if card else None
        most = board_w * LIMIT_TOLERANCE if board_w else MOST_WATTS
        if not (board_w or 0) * LOWEST_LIMIT <= device.power_limit_w <= most:
            fix = f"{card.name} has a board power of {board_w:g} W" if card and board_w else f"no board takes more than {MOST_WATTS} W"
            yield Problem(f"{field}.power_limit_w", f"{device.power_limit_w:g} W", f"{fix}; check the unit")
    yield from _driver(device.driver, f"{field}.driver", backend)


def _alike(s: Submission) -> Iterator[Problem]:
    """Yield devices of one machine with different drivers."""
    drivers = {device.driver for device in s.environment.devices}
    if len(drivers) > 1:
        yield Problem(
            "environment.devices", ", ".join(map(repr, sorted(map(str, drivers)))), "a machine has one driver for all of its devices"
        )


def _family(name: str, field: str, backend: Backend, card: AcceleratorCard | None, facts: FactBase) -> Iterator[Problem]:
    """Yield a device that belongs to another family than its back end, or whose name is a disguised one of the catalogue."""
    vendor = VENDORS.get(backend)
    known = facts.recognise_accelerator(name)
    if backend is Backend.CPU and known is not None and known.unit != "cpu" and known.vendor not in {"Apple", "Intel"}:
        yield Problem(field, repr(name), f"is the {known.name}, and the back end is the CPU; write the name that the CPU reports")
    elif backend is not Backend.CPU and known is not None and vendor is not None and known.vendor != vendor:
        yield Problem(field, repr(name), f"is a device of {known.vendor}; the back end {backend.value} runs those of {vendor}")
    elif known is None:
        words = [owner for owner, pattern in VENDOR_WORDS.items() if re.search(pattern, name, re.IGNORECASE)]
        if words and vendor not in words and not (vendor is None and backend is not Backend.CPU):
            yield Problem(field, repr(name), f"is the name of a device of {words[0]}, and the back end is {backend.value}")
        alike = _plain_names(facts).get(plain_name(name))
        if alike is not None and card is None and backend is not Backend.CPU:
            yield Problem(
                field, repr(name), f"is written unlike {alike!r}, an alias in the catalogue; keep the name that the device reports"
            )


def plain_name(name: str) -> str:
    """Return the letters and digits of a name in a form in which spellings of one name are equal."""
    return "".join(letter for letter in unicodedata.normalize("NFKC", name).casefold() if letter.isalnum())


def _plain_names(facts: FactBase) -> dict[str, str]:
    cards = facts.accelerators.values()
    return {plain_name(alias): alias for card in cards if card.unit != "cpu" for alias in (card.name, *card.aliases)}


def _memory(memory: int, field: str, backend: Backend, card: AcceleratorCard | None) -> Iterator[Problem]:
    if card is None or card.memory_gib is None:
        if memory > LARGEST_DEVICE_BYTES:
            yield Problem(field, str(memory), "no device has that much memory; check the unit")
        return
    parts = (card.cores_per_unit or 1) if backend in {Backend.ROCM, Backend.NEURON} else 1
    ratios = [memory / (card.memory_gib * GIB / part) for part in {1, parts}]
    # Apple's devices share the memory of the host, of which a card names one size only.
    if backend is not Backend.MPS and not any(MEMORY_SHARE[0] <= ratio <= MEMORY_SHARE[1] for ratio in ratios):
        yield Problem(field, str(memory), f"{card.name} has {card.memory_gib:g} GiB; check the unit, or the device is another one")


def _driver(driver: str | None, field: str, backend: Backend) -> Iterator[Problem]:
    if driver is None or backend is Backend.CPU:
        return
    pattern = DRIVERS.get(backend)
    form = pattern.fullmatch(driver) if pattern else None
    if form is None:
        yield Problem(field, repr(driver), f"is no version of a driver of the {backend.value} back end; write null if it is unknown")
    elif backend is Backend.CUDA and int(form[1]) not in NVIDIA_DRIVERS:
        yield Problem(field, repr(driver), f"no driver of NVIDIA has this version; those in use are {NVIDIA_DRIVERS[0]} and newer")


# Versions


def _versions(s: Submission, facts: FactBase) -> Iterator[Problem]:
    yield from _python(s.environment.python)
    yield from _harness(s)
    backend = s.environment.backend
    for package, text in s.environment.packages.items():
        field = f"environment.packages.{package}"
        if package not in {*PACKAGES, *VENDOR_PACKAGES}:
            yield Problem(field, repr(text), "is not among the packages that a record lists; see `tunemark doctor`")
            continue
        version = _version(text)
        if version is None or version.major > LARGEST_MAJOR:
            yield Problem(field, repr(text), "is no version of a Python package")
            continue
        if package == "torch" and len(s.trace):
            if version < OLDEST_TORCH and backend is not Backend.NEURON:
                yield Problem(field, repr(text), f"the harness needs torch {OLDEST_TORCH} or newer")
            wrong = BUILDS.get(backend)
            if wrong and version.local and re.match(wrong, version.local):
                yield Problem(field, repr(text), f"this build has no kernels for the {backend.value} back end")
        listed = next((library for library in facts.known.libraries if library.library == package), None)
        if listed is None:
            continue
        day = listed.released_on.get(version.base_version) if not version.is_prerelease else None
        newest = max(map(Version, listed.released_on))
        if day is not None:
            if s.started_at.date() < day - DAY:
                fix = f"was released on {day}, after this run on {s.started_at:%Y-%m-%d}; set the clock of the machine"
                yield Problem(field, repr(text), fix)
        elif (
            version > newest and (_far_ahead(version, newest) or s.started_at.date() <= listed.read_on - DAY) and not version.is_prerelease
        ) or (version.is_prerelease and version.major > newest.major + 1):
            yield Problem(field, repr(text), f"does not exist: the newest release of {package} is {newest}")
        elif version < newest and not (version.is_prerelease or version.local or version.is_postrelease):
            yield Problem(field, repr(text), f"{package} has no release of this version; keep the version that is installed")
    for name, text in s.environment.runtime.items():
        if backend in RUNTIMES and not re.fullmatch(RUNTIMES[backend], name):
            yield Problem(f"environment.runtime.{name}", repr(text), f"belongs to another stack than that of the {backend.value} back end")
        if not re.fullmatch(r"\d+(\.\d+){0,4}[\w.+~-]*", text):
            yield Problem(f"environment.runtime.{name}", repr(text), "is no version")


def _far_ahead(version: Version, newest: Version) -> bool:
    """Return True for a version that no library reaches before its list of releases is read again."""
    if version.major == newest.major:
        return version.minor > newest.minor + MINORS_AHEAD
    return version.major > newest.major + 1 or version.minor > MINORS_AHEAD


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _python(text: str) -> Iterator[Problem]:
    form = re.fullmatch(r"3\.(\d+)\.(\d+)((a|b|rc)\d+)?\+?", text)
    if form is None or int(form[1]) not in PYTHONS:
        yield Problem("environment.python", repr(text), f"is no version of Python that the libraries support, 3.{PYTHONS[0]} or newer")


def _harness(s: Submission) -> Iterator[Problem]:
    harness = s.harness
    version = _version(harness.version)
    if version is None or not FIRST_VERSION <= version <= Version(VERSION):
        yield Problem("harness.version", repr(harness.version), f"is no version of Tunemark; the newest is {VERSION}")
    if harness.commit is not None and len(set(harness.commit)) == 1:
        yield Problem("harness.commit", repr(harness.commit), "is no commit")
    if (harness.commit is None) != (harness.dirty is None):
        fix = "an installed package has neither commit nor dirty, a checkout has both"
        yield Problem("harness.dirty", str(harness.dirty), f"harness.commit is {harness.commit!r}; {fix}")


def _needed_packages(s: Submission) -> Iterator[Problem]:
    """Yield the packages without which the run could not have trained."""
    plan = s.plan
    if not len(s.trace) or not s.environment.packages:
        if len(s.trace):
            yield Problem("environment.packages", "{}", "a run that trained used torch and transformers; list their versions")
        return
    needed = {"torch": True, "transformers": True, "accelerate": True, "peft": plan.method is not Method.FULL}
    needed["bitsandbytes"] = plan.method is Method.QLORA or "8bit" in plan.optimizer.name
    needed["deepspeed"] = plan.device.strategy in {Strategy.ZERO1, Strategy.ZERO2, Strategy.ZERO3}
    needed["liger-kernel"] = s.effective is not None and s.effective.fused_kernels == "liger"
    needed["flash-attn"] = plan.model.attention == "flash_attention_2" and plan.device.backend in {Backend.CUDA, Backend.ROCM}
    for package, used in needed.items():
        if used and package not in s.environment.packages:
            yield Problem("environment.packages", f"no {package}", "the plan cannot run without it; list the versions of all packages used")


def _strategy(s: Submission) -> Iterator[Problem]:
    device, refused = s.plan.device, s.outcome.status is Status.UNSUPPORTED
    if refused:
        return
    replicas = device.tensor_parallel * device.pipeline_parallel
    if device.count % replicas or device.count % device.nodes:
        yield Problem(
            "plan.device.count", str(device.count), f"is no multiple of {replicas} devices of a replica, or of {device.nodes} nodes"
        )
    if device.count == 1 and device.strategy is Strategy.DDP:
        yield Problem("plan.device.strategy", "'ddp'", "one device has no replicas; use single")
    if device.count > 1 and device.launcher is None and device.backend is not Backend.NEURON:
        yield Problem("plan.device.launcher", "null", f"{device.count} processes need a launcher")
    if device.count > replicas and device.strategy is Strategy.SINGLE:
        yield Problem("plan.device.strategy", "'single'", f"{device.count} devices need a strategy")


# Memory, use, power


def _peaks(s: Submission, card: AcceleratorCard | None) -> Iterator[Problem]:
    """Yield peaks beyond the memory that there is, or below what a process needs to run at all."""
    memory, environment = s.memory, s.environment
    device_bytes = max((device.memory_bytes or 0 for device in environment.devices), default=0)
    if not device_bytes and card is not None and card.memory_gib:
        device_bytes = int(card.memory_gib * GIB)
    if s.plan.device.backend is Backend.CPU:
        device_bytes = environment.memory_bytes
    for name in ("device_allocated", "device_reserved", "device_used", "host_rss", "host_swap"):
        host = name.startswith("host")
        capacity = (
            environment.memory_bytes if name == "host_rss" else environment.swap_bytes if host else device_bytes or LARGEST_DEVICE_BYTES
        )
        peak = getattr(memory, name).peak_bytes
        if peak is not None and capacity is not None and peak > capacity:
            fix = f"more than the {capacity} bytes there are; check the unit and which device was read"
            yield Problem(f"memory.{name}.peak_bytes", str(peak), fix)
    allocated, reserved = memory.device_allocated.peak_bytes, memory.device_reserved.peak_bytes
    if allocated is not None and reserved is not None and allocated > reserved:
        yield Problem("memory.device_allocated.peak_bytes", str(allocated), f"above the {reserved} bytes that were reserved for it")
    if s.plan.device.nodes > 1 and s.plan.device.count > 1 and s.utilisation is not None and s.utilisation.devices:
        seen = {use.node for use in s.utilisation.devices}
        if len(seen) < s.plan.device.nodes:
            yield Problem(
                "utilisation.devices", f"{len(seen)} machines", f"plan.device.nodes is {s.plan.device.nodes}; list the devices of each"
            )
    used = memory.device_used.peak_bytes
    if reserved is not None and used is not None and used < reserved * SEEN_OF_RESERVED:
        yield Problem("memory.device_used.peak_bytes", str(used), f"the framework alone reserved {reserved} bytes")
    rss = memory.host_rss.peak_bytes
    if rss is None and s.outcome.status is Status.OK:
        yield Problem("memory.host_rss.peak_bytes", "null", "the parent always sees the memory of a process that trained")
    for name, pattern in MEMORY_METHODS.items():
        method = getattr(memory, name).method
        if method is not None and not re.match(pattern, method):
            yield Problem(f"memory.{name}.method", repr(method), "is no method of the harness; keep the original record")
    ranked = [rank.device_allocated_bytes for rank in s.ranks if rank.device_allocated_bytes is not None]
    if allocated is not None and ranked and max(ranked) != allocated:
        yield Problem("memory.device_allocated.peak_bytes", str(allocated), f"the highest peak of all ranks is {max(ranked)}")
    if rss is not None and Phase.LOAD in {mark.phase for mark in s.timeline} and rss < SMALLEST_HOST_BYTES // 2:
        fix = "a process that has imported torch holds more than 128 MiB; check the unit"
        yield Problem("memory.host_rss.peak_bytes", str(rss), fix)
    if s.plan.device.backend is Backend.CPU and allocated is not None:
        yield Problem("memory.device_allocated.peak_bytes", str(allocated), "a CPU has no device allocator; write null and the reason")


def _use(s: Submission, card: AcceleratorCard | None) -> Iterator[Problem]:
    devices, count = s.utilisation.devices if s.utilisation else (), s.plan.device.count
    if s.plan.device.backend is Backend.CPU and devices:
        yield Problem("utilisation.devices", f"{len(devices)} devices", "the CPU back end monitors no devices")
    indexes = [f"node {use.node}, device {use.index}" for use in devices]
    for index in sorted({index for index in indexes if indexes.count(index) > 1}):
        yield Problem("utilisation.devices", index, "is listed twice; list each device once")
    strange = [use for use in devices if use.node >= s.plan.device.nodes or use.index >= MOST_DEVICES_OF_A_NODE]
    if strange:
        place = f"node {strange[0].node}, device {strange[0].index}"
        yield Problem("utilisation.devices", place, f"plan.device.nodes is {s.plan.device.nodes}; list the devices used")
    per_node = s.plan.device.count // s.plan.device.nodes
    if devices and s.plan.device.backend in {Backend.CUDA, Backend.ROCM} and len({use.index for use in devices if not use.node}) < per_node:
        yield Problem("utilisation.devices", f"{len(devices)} devices", f"{per_node} were used on this machine; list each")
    if len(set(indexes)) > count:
        yield Problem("utilisation.devices", str(len(indexes)), f"plan.device.count is {count}; list the devices used")
    figures = [(use.power_mean_w, use.power_peak_w, use.clock_mean_mhz) for use in devices if use.power_mean_w and use.clock_mean_mhz]
    if len(figures) > len(set(figures)):
        yield Problem(
            "utilisation.devices", f"{len(figures)} devices", "two have the same figures to the digit; each is measured by itself"
        )
    memory = max((device.memory_bytes or 0 for device in s.environment.devices), default=0)
    for position, use in enumerate(devices):
        yield from _use_of(use, f"utilisation.devices.{position}", memory, card)
        if use.busy_peak is not None and use.busy_peak < 0.01 and use.samples >= 5 and len(s.trace):  # noqa: PLR2004 - never busy in five samples
            yield Problem(f"utilisation.devices.{position}.busy_peak", f"{use.busy_peak:g}", "a device that trains is busy at times")


def _use_of(use: DeviceUse, field: str, memory: int, card: AcceleratorCard | None) -> Iterator[Problem]:
    highest = (
        ("busy_mean", use.busy_mean, use.busy_peak),
        ("power_mean_w", use.power_mean_w, use.power_peak_w),
        ("clock_min_mhz", use.clock_min_mhz, use.clock_mean_mhz),
    )
    for name, low, high in highest:
        if low is not None and high is not None and low > high * 1.000001:
            what = "mean" if name == "clock_min_mhz" else "highest sample"
            yield Problem(f"{field}.{name}", f"{low:g}", f"above its {what} {high:g}")
    board_w = card.tdp_w if card else None
    for name, factor in (("power_mean_w", POWER_TOLERANCE), ("power_peak_w", 2 * POWER_TOLERANCE)):
        power = getattr(use, name)
        most = factor * (board_w or MOST_WATTS)
        if power is not None and power > most:
            fix = f"{card.name} has a board power of {board_w:g} W" if card and board_w else f"no board takes more than {MOST_WATTS} W"
            yield Problem(f"{field}.{name}", f"{power:g} W", f"{fix}; check the unit")
    stacked = card is not None and (card.memory_gib or 0) >= HBM_GIB and (card.memory_bandwidth_gb_s or 0) >= HBM_GB_S
    fastest = FASTEST_HBM_MHZ if stacked else FASTEST_MHZ
    for name in ("clock_mean_mhz", "clock_min_mhz"):
        clock = getattr(use, name)
        if clock is not None and clock > fastest:
            yield Problem(f"{field}.{name}", f"{clock:g} MHz", f"no such accelerator runs above {fastest} MHz; check the unit")
    if use.clock_mean_mhz is not None and use.clock_mean_mhz < SLOWEST_MHZ:
        yield Problem(f"{field}.clock_mean_mhz", f"{use.clock_mean_mhz:g} MHz", "a device that trains has a clock; check the unit")
    unknown = sorted({*use.throttle_reasons, *use.throttle_shares} - THROTTLE_REASONS)
    if unknown:
        yield Problem(
            f"{field}.throttle_reasons", repr(unknown[0]), f"is no reason of a driver; known are {', '.join(sorted(THROTTLE_REASONS))}"
        )
    if use.temperature_peak_c is not None and not 0 < use.temperature_peak_c < HOTTEST_C:
        yield Problem(f"{field}.temperature_peak_c", f"{use.temperature_peak_c:g}", "no device works at this temperature; check the unit")
    for name in ("memory_used_peak_bytes", "memory_used_before_bytes"):
        used = getattr(use, name)
        if memory and used is not None and used > memory:
            yield Problem(f"{field}.{name}", str(used), f"more than the {memory} bytes there are; check the unit")
    if sum(use.throttle_shares.values()) > len(use.throttle_shares) or set(use.throttle_shares) - set(use.throttle_reasons):
        yield Problem(f"{field}.throttle_shares", "", "names a reason that is not in throttle_reasons")


def _energy(s: Submission, derived: Derived | None, card: AcceleratorCard | None) -> Iterator[Problem]:
    energy = s.utilisation.energy if s.utilisation else None
    if s.utilisation is None or energy is None or energy.joules is None:
        return
    if not energy.window_s:
        fix = "energy needs the time between the readings; write both"
        yield Problem("utilisation.energy.window_s", str(energy.window_s), fix)
        return
    if energy.window_s > s.process.wall_s:
        fix = f"longer than the whole process, {s.process.wall_s:g} s; it is the time between two readings"
        yield Problem("utilisation.energy.window_s", f"{energy.window_s:g}", fix)
    if s.plan.device.backend is Backend.CPU:
        yield Problem("utilisation.energy.source", repr(energy.source), "the CPU back end measures no energy")
    window_s = derived.window.steps * derived.step_time.p50 if derived and derived.window and derived.step_time else None
    if window_s and not WINDOW_AGREES[0] <= energy.window_s / window_s <= WINDOW_AGREES[1]:
        fix = f"the steady window lasted about {window_s:.1f} s; energy is measured over it"
        yield Problem("utilisation.energy.window_s", f"{energy.window_s:g}", fix)
    count, watts = s.plan.device.count, energy.joules / energy.window_s
    board_w = card.tdp_w if card and card.tdp_w else MOST_WATTS
    if watts > count * board_w * POWER_TOLERANCE:
        fix = f"{watts:,.0f} W on {count} devices of {board_w:g} W; check the unit, and that no other device was counted"
        yield Problem("utilisation.energy.joules", f"{energy.joules:g}", fix)
    if energy.idle_w is not None and watts < energy.idle_w * IDLE_TOLERANCE:
        fix = f"{watts:.0f} W over the window, and {energy.idle_w:g} W before the run; training takes no less than idling"
        yield Problem("utilisation.energy.joules", f"{energy.joules:g}", fix)
    powers = [use.power_mean_w for use in s.utilisation.devices if use.power_mean_w is not None]
    if len(powers) == count and any(powers):
        ratio = watts / sum(powers)
        if not ENERGY_AGREES[0] <= ratio <= ENERGY_AGREES[1]:
            fix = f"{watts:,.0f} W, and the devices report a mean of {sum(powers):,.0f} W; check the unit and the window"
            yield Problem("utilisation.energy.joules", f"{energy.joules:g}", fix)
