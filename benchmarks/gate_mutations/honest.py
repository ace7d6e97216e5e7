"""Honest submissions that the gate must accept: second runs, other machines and software, failures, and studies.

Each is a run of its own, with step times drawn for it. They are judged in a checkout in which the bases are committed.
"""

import json
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gate_mutations.bases import Content, base, identity_of
from gate_mutations.simulated import H100, PACKAGES, Ending, Gpu, Scenario, gpu_machine, machine_of, simulate, step_time
from tunemark.harness.plan.resolve import Options
from tunemark.schema import VERSION
from tunemark.schema.formats import GIB
from tunemark.schema.plan.capabilities import Machine
from tunemark.schema.records.submission import DeviceFacts, Harness
from tunemark.schema.records.trace import Study
from tunemark.schema.vocabulary import Backend

CPU_OPTIONS = {
    "lora": Options(),
    "bert": Options(),
    "fsdp": Options(max_steps=60, devices=2, strategy="fsdp2"),
    "qlora": Options(max_steps=60, overrides=("method=qlora",)),
}
ROWS, DEVICE_SERIES = (Path(__file__).with_name(name) for name in ("honest.toml", "device_series.json"))
LAST = datetime(2026, 11, 22, 16, 0, 12, 90_441, tzinfo=UTC)
"""Start of the last of these runs."""


@dataclass(frozen=True)
class Honest:
    """An honest submission."""

    name: str
    make: Callable[[], Content]


def cpu(name: str, seed: int, **changes: Any) -> Content:
    """Return another run of a committed run on a CPU: the same work with the same seed, timed again. `speed` divides step times."""
    recorded, speed = base(name), changes.pop("speed", 1.0)
    machine = changes.pop("machine", machine_of(recorded))
    scenario = Scenario(
        recorded["plan"]["workload"],
        machine,
        CPU_OPTIONS[name],
        seed=seed,
        step_s=step_time(recorded) / speed,
        noise=0.03,
        recorded=recorded,
        started_at=LAST - timedelta(minutes=7 * seed),
        import_s=6.0,
    )
    return simulate(replace(scenario, **changes))


def cpu_machine(name: str, physical: int | None, logical: int, usable: int, memory_gib: float, **changes: Any) -> Machine:
    """Return a host without an accelerator."""
    memory = int(memory_gib * GIB)
    facts = {"cpu": name, "cpu_physical_cores": physical, "cpu_logical_cores": logical, "cpu_usable_cores": usable, "memory_bytes": memory}
    return machine_of(base("lora"), devices=(DeviceFacts(name=name, memory_bytes=memory),), **facts, **changes)


def gpu(seed: int, kind: Gpu = H100, workload: str = "lora-8b", count: int = 1, **changes: Any) -> Content:
    """Return a run on GPUs of one kind."""
    machine = changes.pop("machine", gpu_machine(kind, count))
    options = changes.pop("options", Options(max_steps=110, devices=count if count > 1 else None))
    started_at = LAST - timedelta(minutes=11 * seed)
    return simulate(replace(Scenario(workload, machine, options, seed=seed, gpu=kind, started_at=started_at), **changes))


TIMES: dict[str, Callable[..., np.ndarray]] = {
    "stall": lambda times, every, factor: np.where(np.arange(len(times)) % every == every - 1, times * factor, times),
    "drift": lambda times, factor: times * np.linspace(1, factor, len(times)),
    "suspended": lambda times, step, seconds: np.where(np.arange(len(times)) == step, seconds, times),
    "stuck": lambda times, after, seconds: np.where(np.arange(len(times)) > after, seconds, times),
}
"""Changes of step times by name."""
CLASSES: dict[str, Callable[..., Any]] = {"options": Options, "harness": partial(Harness, version=VERSION), "study": Study}


def made(row: dict[str, Any], seed: int) -> Content:
    """Return the submission of a row of `honest.toml`."""
    recorded, changes = row.get("base"), {name: value for name, value in row.items() if name not in OWN}
    for name in CLASSES.keys() & row.keys():
        changes[name] = CLASSES[name](**row[name])
    if "ending" in row:
        ending = dict(row["ending"])
        if ending.get("failure") == "as in oom":
            ending["failure"] = {name: base("oom")["outcome"][name] for name in ("status", "message", "fix")}
        changes["ending"] = Ending(**ending)
    if "times" in row:
        name, *values = row["times"]
        changes["before"] = lambda times: TIMES[name](times, *values)
    if "supersedes" in row:
        changes["supersedes"] = {"supersedes": identity_of("h100"), "supersedes_reason": row["supersedes"]}
    if "ahead_h" in row:
        changes["started_at"] = datetime.now(UTC) + timedelta(hours=row["ahead_h"])
    host = _host(row)
    if recorded:
        return cpu(recorded, seed, machine=machine_of(base(recorded), **host), **changes)
    kind = Gpu(*row["gpu"]) if "gpu" in row else H100
    kind = kind._replace(backend=Backend(kind.backend))
    return gpu(seed, kind, machine=gpu_machine(kind, row.get("installed", row.get("count", 1)), **host), **changes)


def _host(row: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the machine that a row changes."""
    host = {name: None if value == "unknown" else value for name, value in row.get("machine", {}).items()}
    if "memory_gib" in host:
        host["memory_bytes"] = int(host.pop("memory_gib") * GIB)
    if "packages" in row or "only" in row:
        packages = PACKAGES | row.get("packages", {})
        host["packages"] = {name: version for name, version in packages.items() if name in row.get("only", packages)}
    if "cpu" in host:
        host["devices"] = (DeviceFacts(name=host["cpu"], memory_bytes=host["memory_bytes"]),)
    return host


OWN = {"name", "base", "gpu", "installed", "machine", "packages", "only", "times", "ending", "supersedes", "ahead_h", *CLASSES}
"""Names in a row that `made` reads; the others are arguments of `cpu` and `gpu`."""


def with_stack() -> Content:
    """Return a run on an H100 with the versions of the libraries that its torch uses."""
    content = gpu(199)
    content["environment"]["runtime"] = {"cuda": "13.0", "cudnn": "9.10.2", "nccl": "2.27.5"}
    return content


def honest() -> tuple[Honest, ...]:
    """Return all honest variants, each with a seed of its own."""
    rows = [row for section in tomllib.loads(ROWS.read_text(encoding="utf-8")).values() for row in section]
    variants = [Honest(row["name"], partial(made, row, seed)) for seed, row in enumerate(rows, start=1)]
    return (*variants, Honest("versions of CUDA, cuDNN and NCCL", with_stack))


def device_series() -> Iterator[Honest]:
    """Yield runs with the step times of real accelerators, from public logs, scaled to the median step of the simulated run.

    The file holds microseconds; stamps that were printed in whole milliseconds are spread within them.
    """
    for number, series in enumerate(json.loads(DEVICE_SERIES.read_text(encoding="utf-8"))):
        stamps = np.asarray(series["step_us"]) / 1e6
        spread = series["resolution_us"] / 1e6 * np.random.default_rng(number).uniform(-0.5, 0.5, len(stamps))
        scaled = (stamps + spread) / np.median(stamps)
        kind, options = (("full-1b", 2, 0.36), ("lora-8b", 1, 0.42))[number % 2], Options(max_steps=len(scaled))
        workload, devices, hfu = kind
        settings = {"options": options.having(devices=devices) if devices > 1 else options, "count": devices, "hfu": hfu}
        settings |= {"workload": workload, "started_at": LAST - timedelta(minutes=11 * number % 2_000)}
        before = partial(lambda scaled, times: scaled * np.median(times), scaled)
        yield Honest(f"{series['name']} ({number})", partial(gpu, 300 + number, before=before, **settings))
