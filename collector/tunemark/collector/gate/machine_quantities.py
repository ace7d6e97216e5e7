"""Quantities and conditions of relations.toml about the machine: host, devices, software, memory and telemetry."""

import re
from collections.abc import Callable
from typing import Any

from packaging.version import InvalidVersion, Version

from tunemark.collector.gate.run_facts import MANY_SAMPLES, Run
from tunemark.schema import VERSION
from tunemark.schema.formats import GIB
from tunemark.schema.physics.utilisation import PARTS
from tunemark.schema.records.trace import DeviceUse
from tunemark.schema.vocabulary import (
    DEEPSPEED,
    DEVICE_INTERVAL_S,
    HOST_INTERVAL_S,
    MEMORY_TOOLS,
    NATIVE,
    PACKAGES,
    TORCH_MODULES,
    VENDOR_PACKAGES,
    Backend,
    Method,
)

DRIVERS = {
    Backend.CUDA: r"(4[5-9]\d|[56]\d\d)(\.\d{1,3}){1,2}",
    Backend.ROCM: r"[1-6]?\d(\.\d+)+[-.+~\w]*",
    **dict.fromkeys((Backend.NEURON, Backend.NEURON_XLA), r"\d+(\.\d+)+[-.+~\w]*"),
}
"""Versions of drivers: of NVIDIA those with which a torch of today runs and some years ahead, of AMD those below 70."""
RUNTIMES = {
    Backend.CUDA: "cuda|cudnn|nccl",
    Backend.ROCM: "rocm|hip|miopen|rccl",
    **dict.fromkeys((Backend.NEURON, Backend.NEURON_XLA), r"(aws-)?neuronx?-.+"),
    Backend.MPS: "metal|macos",
}
BUILDS = {Backend.CUDA: "cpu|rocm|xpu", Backend.ROCM: "cpu|cu|xpu", Backend.XPU: "cpu|cu|rocm"} | dict.fromkeys(
    (*NATIVE, Backend.NEURON_XLA), "rocm|xpu"
)
"""Builds of torch that have no kernels for a family."""
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
"""Major release of CUDA -> oldest driver of NVIDIA that runs it (release notes of CUDA)."""
BEFORE_CUDA_13 = {"Kepler", "Maxwell", "Pascal", "Volta"}
"""Architectures without kernels in CUDA 13 (its release notes)."""
THROTTLE_REASONS = {"application_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown"}
THROTTLE_REASONS |= {"hw_power_brake_slowdown", "display_clock_setting", "throttled", "package_power"}
THROTTLE_REASONS |= {f"{part}_thermal" for part in ("prochot", "socket", "regulator", "hbm")}
"""Reasons for lowered clocks as NVML and amd-smi name them."""
MOST_DEVICES = 128
"""No machine of today has as many."""
FEW_SAMPLES = 5
"""Samples of which a mean says something."""
LAST_YEAR = 2_100
"""Some packages use the year as their first number."""
MOST_WATTS = 3_000.0
"""No board of today takes more."""

QUANTITIES: dict[str, Callable[..., Any]] = {
    "apple": lambda r: r.backend is Backend.MPS,
    "whole_pages": lambda _, device: not device.memory_bytes or device.memory_bytes % 2**16 == 0,
    "owners_card": lambda r: r.card is not None and re.search(r"GeForce|Radeon|TITAN|Arc\b", r.card.name) is not None,
    "driver_of_back_end": lambda r, device: r.backend not in DRIVERS or re.fullmatch(DRIVERS[r.backend], device.driver or "") is not None,
    "commit_varies": lambda r: r.s.harness.commit is None or len(set(r.s.harness.commit)) > 1,
    "allocated_or_none": lambda r: r.memory.device_allocated.peak_bytes or 0,
    "reserved_by_all": lambda r: r.memory.device_reserved.peak_bytes and r.memory.device_reserved.peak_bytes * r.count,
    "grown_bytes": lambda r: sum(event.amount for event in r.s.events if event.kind == "allocator_growth"),
    "host_interval_s": lambda _: HOST_INTERVAL_S,
    "host_samples_fit": lambda r: (r.trained_s or r.process.wall_s) / HOST_INTERVAL_S * 1.1 * r.device.nodes + 2,
    "used_cores": lambda r: (r.used_cpu_s or 0.0) / r.process.wall_s if r.process.wall_s else 0.0,
    "monitored_devices": lambda r: len(r.use.devices) or None if r.use else None,
    "highest_mhz": lambda r: 1.35 * r.card.peak_clock_mhz if r.card and r.card.peak_clock_mhz else 4_500.0,
    "has_energy": lambda r: r.use is not None and r.use.energy is not None and r.use.energy.joules is not None,
    "card_board_w": lambda r: r.card.tdp_w if r.card else None,
    "board_w": lambda r: (r.card and r.card.tdp_w) or MOST_WATTS,
    "boards_w": lambda r: r.count * ((r.card and r.card.tdp_w) or MOST_WATTS),
    "sampled": lambda _, use: use.samples >= FEW_SAMPLES,
    "first_driver": lambda r: r.environment.devices[0].driver,
    "power_was_read": lambda r: r.gpu and r.one_node and len(r.powers_w) == r.count and fewest_samples(r) >= MANY_SAMPLES,
    "shortest_energy_s": lambda r: r.window_s and 0.8 * r.window_s - 4 * DEVICE_INTERVAL_S.get(r.backend, 1.0),
}
"""Name in relations.toml -> quantity or condition; those below are of several lines."""


# Devices


def card_bytes(r: Run) -> float | None:
    """Return the memory of the card."""
    return r.card.memory_gib * GIB if r.card and r.card.memory_gib and not r.cpu else None


def card_part_bytes(r: Run) -> float | None:
    """Return the memory of the smallest device that is a part of the card."""
    parts = (r.card.cores_per_unit or 1) if r.card and r.backend in PARTS else 1
    whole = card_bytes(r)
    return whole and whole / parts


# Software


def foreign_library(r: Run) -> str:
    """Return the first library of the runtime that is of another stack or has no version, or an empty text."""
    known = "" if r.cpu else RUNTIMES.get(r.backend, ".+")
    version = r"\d+(\.\d+){0,4}[\w.+~-]*"
    return next(
        (name for name, text in r.environment.runtime.items() if not (re.fullmatch(known, name) and re.fullmatch(version, text))), ""
    )


def foreign_package(r: Run) -> str:
    """Return the first package that no record lists or that has no version, or an empty text."""
    listed = {*PACKAGES, *VENDOR_PACKAGES}
    return next((f"{name} {text}" for name, text in r.environment.packages.items() if name not in listed or version_of(text) is None), "")


def version_of(text: str) -> Version | None:
    """Return a version of a Python package, or None; none looks like an address."""
    try:
        version = Version(text)
    except InvalidVersion:
        return None
    if re.fullmatch(r"(\d{1,3}\.){3}\d{1,3}", text):
        return None
    return version if version.major <= LAST_YEAR else None


def missing_package(r: Run) -> str:
    """Return the first package that the plan cannot run without and that is not listed, or an empty text."""
    plan = r.plan
    needed = {
        "torch": True,
        "transformers": True,
        "accelerate": True,
        "peft": plan.method is not Method.FULL,
        "bitsandbytes": plan.method is Method.QLORA or "8bit" in plan.optimizer.name,
        "deepspeed": r.device.strategy in DEEPSPEED,
        # All that is read of a GPU of NVIDIA is read through it.
        "nvidia-ml-py": r.backend is Backend.CUDA and bool(r.use and r.use.devices),
        "torchao": plan.model.fp8_training != "none",
    }
    return next((f"no {package}" for package, used in needed.items() if used and package not in r.environment.packages), "")


def torch_has_kernels(r: Run) -> bool:
    """Return True if this build of torch has kernels for the device, and its CUDA runs with the driver."""
    version = version_of(r.environment.packages.get("torch", ""))
    if version is None:
        return True
    wrong, local = BUILDS.get(r.backend), version.local or ""
    if (version < Version("2.1") and not r.neuron) or (wrong and re.match(wrong, local)):
        return False
    built, runtime = re.search(r"\bcu(\d{2})\d\b", local), re.match(r"(\d+)\.", r.environment.runtime.get("cuda", ""))
    majors = {int(found[1]) for found in (built, runtime) if found}
    driver = re.match(r"\d+", r.environment.devices[0].driver or "") if r.backend is Backend.CUDA else None
    old = driver is not None and any(int(driver[0]) < OLDEST_DRIVER.get(major, 0) for major in majors)
    gone = r.card is not None and r.card.architecture in BEFORE_CUDA_13 and any(major >= max(OLDEST_DRIVER) for major in majors)
    return (
        not old
        and not gone
        and all(major >= min(OLDEST_DRIVER) for major in majors)
        and (not built or not runtime or built[1] == runtime[1])
    )


def harness_version(r: Run) -> bool:
    """Return True if the version of the harness is one of Tunemark's, the newest of which is this one."""
    version = version_of(r.s.harness.version)
    return version is not None and Version("0.1.0") <= version <= Version(VERSION)


# Memory


def strange_method(r: Run) -> str:
    """Return the first reading of memory with a method that the harness does not use on this back end, or an empty text."""
    torch, monitor, where = TORCH_MODULES.get(r.backend), MEMORY_TOOLS.get(r.backend), r"( of the first machine)?"
    every, counted = re.escape(f"every {HOST_INTERVAL_S:g} s"), r.gpu or r.backend is Backend.XPU
    used = monitor and re.escape(f"{monitor} every {DEVICE_INTERVAL_S[r.backend]:g} s, minus what was in use before the run") + where
    patterns = {
        **{
            f"device_{kind}": torch and re.escape(torch) + (rf"\.max_memory_{kind}" if counted else r"\..+")
            for kind in ("allocated", "reserved")
        },
        # A monitor of the user's own has a name that nobody else uses.
        "device_used": used or rf"(?!{'|'.join(map(re.escape, MEMORY_TOOLS.values()))}).+",
        "host_rss": rf"peak resident memory of the worker's processes{where} \(ru_maxrss, and {every}\)",
        "host_swap": rf"VmSwap of the worker's processes{where} {every}",
    }
    methods = ((name, getattr(r.memory, name).method, pattern) for name, pattern in patterns.items())
    return next(
        (f"{name}: {method}" for name, method, pattern in methods if method and not (pattern and re.fullmatch(pattern, method))), ""
    )


def least_reserved(r: Run) -> int | None:
    """Return the least memory that a process reserved."""
    sizes = [rank.device_reserved_bytes for rank in r.s.ranks if rank.device_reserved_bytes is not None]
    return min(sizes, default=r.memory.device_reserved.peak_bytes) if r.ok else None


# Telemetry


def device_samples_fit(r: Run) -> float | None:
    """Return the samples of devices that fit between the readings of energy, or into training."""
    every_s, trained_s = DEVICE_INTERVAL_S.get(r.environment.backend), r.trained_s or r.process.wall_s
    between_s = r.use.energy.window_s if r.use and r.use.energy and r.use.energy.window_s else trained_s
    return None if every_s is None else min(trained_s, between_s) / every_s * 1.1 + 2


def devices_listed(r: Run) -> bool:
    """Return True if each device of the plan is listed once, on its machine."""
    places, nodes = [(use.node, use.index) for use in r.use.devices] if r.use else [], r.device.nodes
    first = {index for node, index in places if node == 0}
    complete = not r.gpu or (len(first) == r.count // nodes and len({node for node, _ in places}) == nodes)
    return complete and len(places) == len(set(places)) <= r.count and all(node < nodes and index < MOST_DEVICES for node, index in places)


def throttled_for_reasons(_: Run, use: DeviceUse) -> bool:
    """Return True if all reasons are a driver's, and each share is of a listed reason and above 0."""
    listed, shares = set(use.throttle_reasons or ()), use.throttle_shares
    return listed <= THROTTLE_REASONS and set(shares) <= listed and all(shares.values())


def energy_w(r: Run) -> float | None:
    """Return the mean power by the energy of all devices."""
    energy = r.use.energy if r.use else None
    return energy.joules / energy.window_s if energy and energy.joules is not None and energy.window_s else None


def sampled_w(r: Run) -> float | None:
    """Return the sampled mean power of all devices, if each reports it."""
    total = sum(r.powers_w)
    return total if len(r.powers_w) == r.count and total else None


def fewest_samples(r: Run) -> int:
    """Return the samples of the device with the fewest."""
    return min((use.samples for use in r.use.devices), default=0) if r.use else 0
