"""Checks of the machine: devices against their card and family, cores and memory, versions against their releases, power and clocks."""

import re
from collections.abc import Iterator

from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.names import plain_name
from tunemark.schema.formats import GIB
from tunemark.schema.records.submission import DeviceFacts, Submission
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.vocabulary import Backend, Status, Strategy

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
GRAPHICS_OF_A_CPU = re.compile(r"(\bw/|\bwith)? *radeon .*(graphics|compute cores|\d{3}[ms]).*", re.IGNORECASE)
"""What AMD adds to the name of a CPU with a GPU on the same chip."""
LARGEST_DEVICE_BYTES = 2048 * GIB
PAGE_OF_A_GPU = 64 * 2**10
"""Bytes of the pages in which drivers of NVIDIA count the memory of a device."""
LARGEST_HOST_BYTES, SMALLEST_HOST_BYTES = 64 * 1024 * GIB, GIB // 4
MOST_SWAP = 16
"""Swap as a multiple of memory."""
MEMORY_SHARE = (0.9, 1.02)
"""Memory that a device reports over that of its card: drivers and error correction take up to a tenth, GB against GiB 7%."""
LIMIT_TOLERANCE, SERVER_LIMIT, LOWEST_LIMIT = 1.5, 1.26, 0.1
"""The power limit over the board power: owners may raise that of graphics cards by a third, of a few server boards by a quarter, and
lower it to about a fifth."""
OWNERS_CARDS = re.compile(r"GeForce|Radeon|TITAN|Arc\b")
MOST_WATTS = 3_000
SOCKETS = {r"EPYC \w{4,5}P\b": 1, r"EPYC|Altra|Graviton": 2, r"Ryzen|Threadripper|Core\(TM\)|\bCore i\d|Apple": 1}
"""Sockets of a host by the line of its CPU."""
DESKTOP, LARGEST_DESKTOP_BYTES = re.compile(r"Core\(?(?:TM|tm)?\)? (?:i[3579]|Ultra)|Ryzen [3579] "), 512 * GIB
MOST_SOCKETS, THREADS, LARGEST_DESKTOP = 8, 2, 32
"""Sockets of other hosts, threads of a core of x86, and cores of the largest CPU for desktops."""
NVIDIA_NAMES = re.compile(r"NVIDIA|Tesla|GeForce|Quadro|GRID|TITAN|NVS|Graphics Device|Orin|Xavier|Thor|(RTX )?A\d{1,4}(-|X|G| |$)")
"""The beginning of a name: old drivers leave out the brand of some products."""
SHORTEST_PRODUCT = 6
MOST_CORES, MOST_THREADS_OF_A_CORE = 8_192, 8
SYSTEMS = re.compile(r"(Linux|Darwin|Windows) (\d+)\w*(\.\d+)? (x86_64|aarch64|arm64|AMD64|ARM64|ppc64le|riscv64|s390x)")
NEWEST_SYSTEM = {"Linux": 8, "Darwin": 30, "Windows": 9_999}
OLDEST_SYSTEM = {"Linux": 3, "Darwin": 20, "Windows": 10}
DRIVERS = {
    Backend.CUDA: re.compile(r"(\d{3})\.\d{1,3}(\.\d{1,3})?"),
    Backend.ROCM: re.compile(r"\d+(\.\d+)+([-.+~\w]*)"),
    Backend.NEURON: re.compile(r"\d+(\.\d+)+([-.+~\w]*)"),
    Backend.XPU: re.compile(r"[\w.+~-]*\d[\w.+~-]*"),
}
NEWEST_AMDGPU = 60
"""First number of amdgpu: 5 and 6, since 2025 30 and above, with some years ahead."""
NVIDIA_DRIVERS = range(450, 700)
"""Major versions with which a torch of today runs, and some years ahead."""


def machine_problems(submission: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield each impossible fact about the machine, and each that contradicts another."""
    card = facts.accelerators.get(submission.plan.device.accelerator or "")
    yield from _host(submission, facts)
    for index, device in enumerate(submission.environment.devices):
        yield from _device(submission, device, f"environment.devices.{index}", card, facts)
    yield from _alike(submission)
    yield from _strategy(submission)
    if card is not None and card.launch_year is not None and submission.started_at.year < card.launch_year:
        yield Problem("started_at", f"{submission.started_at:%Y-%m-%d}", f"{card.name} was launched in {card.launch_year}")


def _host(s: Submission, facts: FactBase) -> Iterator[Problem]:
    e = s.environment
    system = SYSTEMS.fullmatch(e.os)
    if system is None or int(system[2]) < OLDEST_SYSTEM[system[1]] or int(system[2]) > NEWEST_SYSTEM[system[1]]:
        yield Problem("environment.os", repr(e.os), "is not a system with its major.minor version and machine, such as 'Linux 6.8 x86_64'")
    elif system[1] == "Darwin" and e.backend not in {Backend.MPS, Backend.CPU}:
        yield Problem("environment.os", repr(e.os), f"the {e.backend.value} back end does not exist on this system")
    makers = ((r"^Apple ", "^Darwin"), (r"Intel|AMD|Xeon|EPYC|Ryzen", "x86_64|AMD64"), (r"Neoverse|Graviton|Cortex", "aarch64|arm64|ARM64"))
    if system is not None and any(re.search(maker, e.cpu) and not re.search(machines, e.os) for maker, machines in makers):
        yield Problem("environment.cpu", repr(e.cpu), f"does not run under {e.os!r}")
    if not re.search(r"[A-Za-z]{2}", e.cpu) or (e.backend is not Backend.CPU and re.search(VENDOR_WORDS["NVIDIA"], e.cpu, re.IGNORECASE)):
        yield Problem("environment.cpu", repr(e.cpu), "is not a name of a CPU")
    if e.cpu_logical_cores > MOST_CORES:
        yield Problem("environment.cpu_logical_cores", str(e.cpu_logical_cores), "no host has that many cores")
    if e.cpu_physical_cores and e.cpu_logical_cores > MOST_THREADS_OF_A_CORE * e.cpu_physical_cores:
        fix = f"more than {MOST_THREADS_OF_A_CORE} threads for each of {e.cpu_physical_cores} physical cores"
        yield Problem("environment.cpu_logical_cores", str(e.cpu_logical_cores), fix)
    yield from _sockets(s, facts)
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


def _sockets(s: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield more cores than a host of this CPU can have. A virtual machine may count the threads of its host as cores."""
    name, physical, card = s.environment.cpu, s.environment.cpu_physical_cores, facts.recognise_cpu(s.environment.cpu)
    sockets = next((most for pattern, most in SOCKETS.items() if re.search(pattern, name)), MOST_SOCKETS)
    printed = re.search(r"(\d+)-Core", name)
    cores = card.cpu.cores if card is not None and card.cpu is not None else int(printed[1]) if printed else None
    most = THREADS * sockets * (cores or LARGEST_DESKTOP) if cores or sockets == 1 else None
    if (
        sockets == 1
        and s.environment.memory_bytes > LARGEST_DESKTOP_BYTES
        and cores is not None
        and cores <= LARGEST_DESKTOP
        and DESKTOP.search(name)
    ):
        fix = f"{name} is for desktops, which hold at most {LARGEST_DESKTOP_BYTES // GIB} GiB; check the unit"
        yield Problem("environment.memory_bytes", str(s.environment.memory_bytes), fix)
    threads = sockets * cores * THREADS if cores and re.search(r"x86_64|AMD64", s.environment.os) else None
    if threads is not None and s.environment.cpu_logical_cores > threads:
        fix = f"{name} has {cores} cores of {THREADS} threads, and a host of it {sockets} socket{'s' if sockets > 1 else ''} at most"
        yield Problem("environment.cpu_logical_cores", str(s.environment.cpu_logical_cores), fix)
    if physical is not None and most is not None and physical > most:
        fix = f"{name} has {cores or f'at most {LARGEST_DESKTOP}'} cores, and a host of it {sockets} socket{'s' if sockets > 1 else ''} at most"
        yield Problem("environment.cpu_physical_cores", str(physical), fix)


def unlikely_machine(s: Submission) -> Iterator[Problem]:
    """Yield a host that is possible, but unlike known ones: a reason to ask for a second run."""
    e = s.environment
    if e.cpu_physical_cores and re.search(r"x86_64|AMD64", e.os) and e.cpu_logical_cores > THREADS * e.cpu_physical_cores:
        fix = f"more than {THREADS} threads for each of {e.cpu_physical_cores} physical cores"
        yield Problem("environment.cpu_logical_cores", str(e.cpu_logical_cores), fix)


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
        if backend is Backend.CUDA and memory % PAGE_OF_A_GPU:
            fix = f"is not a multiple of {PAGE_OF_A_GPU:,}; the driver counts whole pages"
            yield Problem(f"{field}.memory_bytes", f"{memory:,}", fix)
    if device.power_limit_w is not None:
        board_w = card.tdp_w if card else None
        raised = LIMIT_TOLERANCE if card and OWNERS_CARDS.search(card.name) else SERVER_LIMIT
        most = board_w * raised if board_w else MOST_WATTS
        if not (board_w or 0) * LOWEST_LIMIT <= device.power_limit_w <= most:
            yield Problem(f"{field}.power_limit_w", f"{device.power_limit_w:g} W", board_words(card))
    yield from _driver(device.driver, f"{field}.driver", backend)
    if device.driver is None and backend is Backend.CUDA and s.utilisation is not None and s.utilisation.devices:
        yield Problem(f"{field}.driver", "null", "NVML read the devices of this run, and it knows its driver")


def board_words(card: AcceleratorCard | None) -> str:
    """Return the power that a board takes, as a fix."""
    takes = f"{card.name} has a board power of {card.tdp_w:g} W" if card and card.tdp_w else f"no board takes more than {MOST_WATTS} W"
    return f"{takes}; check the unit"


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
        yield from _disguised(name, field, backend, facts)
        own_name = GRAPHICS_OF_A_CPU.sub("", name) if backend is Backend.CPU and name.startswith("AMD ") else name
        words = [owner for owner, pattern in VENDOR_WORDS.items() if re.search(pattern, own_name, re.IGNORECASE)]
        if words and vendor not in words and not (vendor is None and backend is not Backend.CPU):
            yield Problem(field, repr(name), f"is the name of a device of {words[0]}, and the back end is {backend.value}")
        alike = facts.plain_names.get(plain_name(name)) if card is None and backend is not Backend.CPU else None
        if alike is not None:
            yield Problem(
                field, repr(name), f"is written unlike {alike!r}, an alias in the catalogue; keep the name that the device reports"
            )


def _disguised(name: str, field: str, backend: Backend, facts: FactBase) -> Iterator[Problem]:
    """Yield a device without a card whose name is none of its driver, or a product of the catalogue with something added."""
    if backend is not Backend.CUDA:
        return
    if not NVIDIA_NAMES.match(name):
        yield Problem(field, repr(name), "is not a name that the NVIDIA driver reports; those begin with the brand of the product")
        return
    plain = plain_name(name)
    products = {spelling for spelling in facts.plain_names if len(spelling) >= SHORTEST_PRODUCT and spelling in plain}
    twice = [product for product in products if plain.count(product) > 1]
    added = re.search(r"\((?!nvgpu)|[/,;+&|]|\s(?!with\b|nvgpu\b)[a-z]{3,}", name)
    if products and (twice or added):
        longest = facts.plain_names[max(products, key=len)]
        fix = f"is {longest!r} with something added, so that it has no card; keep the name that the device reports"
        yield Problem(field, repr(name), fix)


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
        yield Problem(field, repr(driver), f"is not a version of a driver of the {backend.value} back end; write null if it is unknown")
    elif backend is Backend.ROCM and int(driver.partition(".")[0]) > NEWEST_AMDGPU:
        yield Problem(field, repr(driver), f"no driver of AMD has this version; the newest begin with {NEWEST_AMDGPU} at most")
    elif backend is Backend.CUDA and int(form[1]) not in NVIDIA_DRIVERS:
        yield Problem(field, repr(driver), f"no driver of NVIDIA has this version; those in use are {NVIDIA_DRIVERS[0]} and newer")


def _strategy(s: Submission) -> Iterator[Problem]:
    device, refused = s.plan.device, s.outcome.status is Status.UNSUPPORTED
    if refused:
        return
    replicas = device.tensor_parallel * device.pipeline_parallel
    if device.count % replicas or device.count % device.nodes:
        yield Problem(
            "plan.device.count", str(device.count), f"is not a multiple of {replicas} devices of a replica, or of {device.nodes} nodes"
        )
    if device.count == 1 and device.strategy is Strategy.DDP:
        yield Problem("plan.device.strategy", "'ddp'", "one device has no replicas; use single")
    if device.count > 1 and device.launcher is None and device.backend is not Backend.NEURON:
        yield Problem("plan.device.launcher", "null", f"{device.count} processes need a launcher")
    if device.count > replicas and device.strategy is Strategy.SINGLE:
        yield Problem("plan.device.strategy", "'single'", f"{device.count} devices need a strategy")
