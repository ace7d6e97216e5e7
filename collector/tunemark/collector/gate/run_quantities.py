"""Quantities and conditions of relations.toml: about the run and its data, and about host, devices, software, memory and telemetry."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from math import log, sqrt
from typing import Any

import numpy as np
from packaging.version import InvalidVersion, Version

from tunemark.collector.gate.cross_file_checks import CLOCK
from tunemark.collector.gate.run_facts import MANY_SAMPLES, MANY_STEPS, SOME_SAMPLES, STACKS, Run
from tunemark.schema import VERSION
from tunemark.schema.errors import TunemarkError
from tunemark.schema.formats import GIB
from tunemark.schema.physics.architecture import adapted_linears, adapts_tokens
from tunemark.schema.physics.utilisation import PARTS
from tunemark.schema.records.trace import ARM_POINT, MOST_MICRO_STEPS, OPTIMIZER_LIBRARIES
from tunemark.schema.samples import SPECIAL_TOKENS, UNIFORM
from tunemark.schema.vocabulary import (
    BEFORE_AMPERE,
    DEEPSPEED,
    DEVICE_INTERVAL_S,
    HOST_INTERVAL_S,
    MEMORY_TOOLS,
    PACKAGES,
    PACKING_NOISE,
    SHARDED_STATES,
    SHARDED_WEIGHTS,
    TORCH_MODULES,
    TRIES,
    VENDOR_PACKAGES,
    Backend,
    DataSource,
    Method,
    Phase,
    Status,
)

FIRST_RUN = datetime(2026, 11, 20, tzinfo=UTC)
"""The day of the first commit: no harness existed before."""
TICK_S = 1e-6  # Times in one microsecond count as equal: clocks tick more often.
SAME_LOSS = 1e-5
"""Relative difference of the ratios of two series of losses below which one repeats the other: 0 of 10 real series of losses doubted."""
OUT_OF_MEMORY = re.compile(
    r"CUDA out of memory. Tried to allocate (?P<wanted>[\d.]+) GiB. GPU (?P<number>\d+) has a total capacity of (?P<total>[\d.]+) GiB of which "
    r"(?P<free>[\d.]+) GiB is free. Including non-PyTorch memory, this process has (?P<used>[\d.]+) GiB"
)
"""The words of torch since 2.1."""
FEW_LOSSES = 4
"""Losses that may all be equal by chance; of more, that is out of the question."""
MOST_DEVICES = 128
"""No machine of today has as many."""
FEW_SAMPLES = 5
"""Samples of which a mean says something."""
LAST_YEAR = 2_100
"""Some packages use the year as their first number."""
LOCAL = {"none", "word-level"}
"""Tokenizers that no hub has."""
MOST_WATTS = 3_000.0
"""No board of today takes more."""

DIFFERENCE = r"by ([\d.]+(?:e[+-]?\d+)?) of their spread"
"""In the words of the check of packed documents."""
QUANTITIES: dict[str, Callable[..., Any]] = {
    "first_run": lambda _: FIRST_RUN - CLOCK,
    "launch_of_device": lambda r: datetime(r.card.launch_year, 1, 1, tzinfo=UTC) - CLOCK if r.card and r.card.launch_year else None,
    "latest_start": lambda _: datetime.now(tz=UTC) + CLOCK,
    "utc_offset_s": lambda r: r.s.started_at.utcoffset().total_seconds(),
    "times_in_order": lambda r: (times := [mark.at_s for mark in r.s.timeline]) == sorted(times),
    "last_step_s": lambda r: r.trace.completed_at_s[-1] if r.steps else None,
    "train_ends_early_s": lambda r: r.train_ends_s - 0.25 - 0.01 * r.trained_s if r.train_ends_s is not None else None,
    "says_out_of_memory": lambda r: _says(r, r"out of memory|OutOfMemoryError|can.t allocate memory|cannot allocate memory"),
    "says_killed": lambda r: _says(r, r"kernel killed|oom.?killer|SIGKILL|lack of (host )?memory"),
    "probed_after": lambda r: Phase.TRAIN in r.phases and Phase.PROBE in r.phases[r.phases.index(Phase.TRAIN) :],
    "each_rank_once": lambda r: sorted(rank.rank for rank in r.s.ranks) == list(range(r.count)),
    "own_work_s": lambda _, rank: sum(rank.own_work_s),
    "own_work_is_its_own": lambda r, rank: not rank.own_work_s or sum(rank.own_work_s == each.own_work_s for each in r.s.ranks) == 1,
    "core_seconds": lambda r: r.process.wall_s * r.environment.cpu_logical_cores * r.device.nodes,
    "trial": lambda r: r.s.study is not None and r.s.study.kind in TRIES,
    "deepspeed": lambda r: r.device.strategy in DEEPSPEED,
    "compiles_kernels": lambda r: r.plan.model.fused_kernels != "none" or r.device.strategy in DEEPSPEED or r.plan.compiles_update,
    "timed_micro_steps": lambda r: sum(map(len, r.trace.micro_completed_at_s)) or None,
    "gradient_gate": lambda r: (gate := r.gate("adapter_gradient")) and gate.detail,
    "packing_difference": lambda _, gate: float(found[1]) if (found := re.search(DIFFERENCE, gate.detail)) else None,
    "packing_noise": lambda r: PACKING_NOISE.get(r.plan.precision.compute.value, 1.0),
    "shards_weights": lambda r: r.device.strategy in SHARDED_WEIGHTS,
    "rows_of_a_step": lambda r: r.plan.batch.micro_batch * r.plan.batch.gradient_accumulation * r.plan.batch.data_parallel,
    "slots_of_a_step": lambda r: r.plan.batch.global_batch * r.plan.data.sequence_length,
    "most_rows": lambda r: max(r.trace.rows, default=None),
    "fewest_rows": lambda r: min(r.trace.rows[:-1] if r.plan.data.finite else r.trace.rows, default=None),
    "most_slots": lambda r: max(r.trace.slot_tokens, default=None),
    "unknown_losses": lambda r: r.trace.loss.count(None),
    "shards": lambda r: r.device.strategy in SHARDED_STATES,
    "loss_of_guessing": lambda r: log(r.plan.model.labels) if r.plan.model.labels else None,
    "lowest_loss": lambda r: float(r.losses.min()) if len(r.losses) else None,
    "different_losses": lambda r: len(np.unique(r.losses)) if len(r.losses) > FEW_LOSSES else None,
    "whole_pages": lambda _, device: not device.memory_bytes or device.memory_bytes % 2**16 == 0,
    "owners_card": lambda r: r.card is not None and re.search(r"GeForce|Radeon|TITAN|Arc\b", r.card.name) is not None,
    "driver_of_back_end": lambda r, device: re.fullmatch(STACKS["drivers"].get(r.backend.value, ".*"), device.driver or "") is not None,
    "commit_varies": lambda r: r.s.harness.commit is None or len(set(r.s.harness.commit)) > 1,
    "allocated_or_none": lambda r: r.memory.device_allocated.peak_bytes or 0,
    "reserved_by_all": lambda r: r.memory.device_reserved.peak_bytes and r.memory.device_reserved.peak_bytes * r.count,
    "grown_bytes": lambda r: sum(event.amount for event in r.s.events if event.kind == "allocator_growth"),
    "least_evaluation_loss": lambda r: None if (held := r.s.evaluation) is None or held.accuracy is None else (1 - held.accuracy) * log(2),
    "broken_rows": lambda r: (
        (held := r.s.evaluation) and held.accuracy is not None and abs((correct := held.accuracy * held.rows) - round(correct)) / held.rows
    ),
    "many_steps": lambda r: r.steps >= MANY_STEPS,
    "steps_alike": lambda r: not np.ptp(r.trace.slot_tokens),
    # Of the times, or of their differences, whichever is smaller.
    "share_of_different_times": lambda r: (
        min(len(np.unique(np.round(values / TICK_S))) for values in (r.times[1:], np.diff(r.times[1:]))) / (r.steps - 1)
    ),
    "scatter": lambda r: float(np.subtract(*np.percentile(r.times[1:], (75, 25))) / np.median(r.times[1:])),
    "has_room": lambda r: (
        r.cpu or not r.device_bytes or (r.memory.device_reserved.peak_bytes or r.memory.device_used.peak_bytes or 0) < 0.9 * r.device_bytes
    ),
    "from_hub": lambda r: r.plan.model.hub_id is not None or (data := r.plan.data).source is DataSource.HUB or data.tokenizer not in LOCAL,
    "harness_version": lambda r: (known := version_of(r.s.harness.version)) is not None and Version("0.1.0") <= known <= Version(VERSION),
    "host_interval_s": lambda _: HOST_INTERVAL_S,
    "host_samples_fit": lambda r: (r.trained_s or r.process.wall_s) / HOST_INTERVAL_S * 1.1 * r.device.nodes + 2,
    "used_cores": lambda r: (r.used_cpu_s or 0.0) / r.process.wall_s if r.process.wall_s else 0.0,
    "highest_mhz": lambda r: 1.35 * r.card.peak_clock_mhz if r.card and r.card.peak_clock_mhz else 4_500.0,
    "board_w": lambda r: (r.card and r.card.tdp_w) or MOST_WATTS,
    "boards_w": lambda r: r.count * ((r.card and r.card.tdp_w) or MOST_WATTS),
    "sampled": lambda _, use: use.samples >= FEW_SAMPLES,
    "power_was_read": lambda r: r.gpu and r.device.nodes == 1 and len(r.powers_w) == r.count and fewest_samples(r) >= MANY_SAMPLES,
    "often_sampled_w": lambda r: sampled_w(r) if fewest_samples(r) >= MANY_SAMPLES else None,
    "mean_rate": lambda r: float(r.flops.sum() / r.times.sum()) if r.flops.sum() else None,
    "share_of_peak": lambda r: (rate := QUANTITIES["mean_rate"](r)) and r.peak and rate / r.peak,
    "clock_of_rate_mhz": lambda r: (share := QUANTITIES["share_of_peak"](r)) and r.card and share * (r.card.peak_clock_mhz or 0.0),
    "before_ampere": lambda r: r.card is not None and r.card.architecture in BEFORE_AMPERE,
    "card_bytes": lambda r: r.card.memory_gib * GIB if r.card and r.card.memory_gib and not r.cpu else None,
    "card_part_bytes": lambda r: (whole := QUANTITIES["card_bytes"](r)) and whole / ((r.backend in PARTS and r.card.cores_per_unit) or 1),
    "host_of_superchip": lambda r: r.card is None or not re.match("GH200|GB[123]", r.card.name) or not r.environment.os.endswith("x86_64"),
    "odd_allocated": lambda r: (r.memory.device_allocated.peak_bytes or 0) % 512,
    "odd_reserved": lambda r: (r.memory.device_reserved.peak_bytes or 0) % 2**21,
    "wide_losses": lambda r: int(np.sum(r.losses != np.float32(r.losses))),
    "whole_kib": lambda r: r.memory.host_rss.peak_bytes % 1_024 == 0,
    "throttled_for_reasons": lambda _, use: (
        set(use.throttle_shares) <= set(use.throttle_reasons or ()) <= set(STACKS["telemetry"]["throttle_reasons"])
        and all(use.throttle_shares.values())
    ),
    "usual_host_samples": lambda r: _usual_samples(r, HOST_INTERVAL_S),
    "usual_device_samples": lambda r, _: _usual_samples(r, DEVICE_INTERVAL_S.get(r.environment.backend)),
    "shortest_energy_s": lambda r: r.window_s and 0.8 * r.window_s - 4 * DEVICE_INTERVAL_S.get(r.backend, 1.0),
}
"""Name in relations.toml -> quantity or condition; those below are of several lines."""


# Time line


def phases_in_order(r: Run) -> bool:
    """Return True if the phases are those of the plan; a sharded model is loaded a second time, after its checks."""
    rules, split = r.rules, r.phases.index(Phase.TRAIN) if Phase.TRAIN in r.phases else len(r.phases)
    if r.neuron:
        return r.phases[0] is Phase.IMPORT and (not r.ok or r.phases[-1] is Phase.TEARDOWN)
    before = {Phase.IMPORT: True, Phase.DATA: True, Phase.LOAD: True, Phase.CHECK: rules.gates, Phase.PROBE: rules.probe, Phase.TRAIN: True}
    after = {Phase.PROBE: rules.probe, Phase.EVAL: rules.evaluate, Phase.SAVE: rules.save, Phase.TEARDOWN: True}
    expected = [phase for phase, planned in (*before.items(), *after.items()) if planned]
    observed = [*dict.fromkeys(r.phases[:split]), *r.phases[split:]]
    return observed == (expected if r.ok else expected[: len(observed)]) and (not r.steps or Phase.TRAIN in r.phases)


# Outcome


def planned_steps(r: Run) -> int | None:
    """Return the steps that the plan asks for; how many rows documents are packed into is unknown."""
    data = r.plan.data
    rows = None if data.packing else data.training_rows or (r.s.row_lengths.rows if r.s.row_lengths else None)
    return r.plan.planned_steps(rows)


def stopped_for_a_reason(r: Run) -> bool | None:
    """Return False if a successful run ended before its steps, its time limit and its interval."""
    planned = planned_steps(r)
    if not r.ok or not r.steps or (planned is not None and r.steps >= planned):
        return None
    rules, rate = r.rules, r.derived.tokens_per_s if r.derived else None
    out_of_time = rules.max_train_s is not None and r.steps >= rules.min_steps and r.trained_s >= rules.max_train_s / 1.05
    narrow = rules.until_relative_ci is not None and rate is not None and rate.relative_half_width <= 2 * rules.until_relative_ci
    return out_of_time or narrow or (rules.epochs is None and r.plan.data.source is not DataSource.SYNTHETIC)


def _says(r: Run, pattern: str) -> bool:
    return re.search(pattern, r.s.outcome.message or "", re.IGNORECASE) is not None


# Processes


def sampled_cpu_s(r: Run) -> float | None:
    """Return the CPU time of the sampled busy cores; on a CPU, steps outside of the steady window do the same work."""
    if r.use is None or r.use.cpu_busy_mean is None:
        return None
    all_alike = r.cpu and r.ok and r.sampled_often
    return r.use.cpu_busy_mean * (r.trained_s if all_alike else min(r.use.samples * r.use.interval_s, r.trained_s))


def micro_steps_complete(r: Run) -> bool:
    """Return True if all steps, or the last ones of a long run, have the times of all micro-steps."""
    micro, accumulated, last = r.trace.micro_completed_at_s, r.plan.batch.gradient_accumulation, r.steps - 1
    first = next(step for step, inside in enumerate(micro) if inside)
    cut = first and sum(map(len, micro)) < MOST_MICRO_STEPS - accumulated
    return not cut and all(
        len(micro[step]) == accumulated or (step == last and len(micro[step]) < accumulated and (r.plan.data.finite or not r.ok))
        for step in range(first, r.steps)
    )


def point_was_requested(r: Run) -> bool:
    """Return True if the point is one of its kind of study, and names settings that were requested."""
    if r.s.study is None:
        return True
    kind, point, asked = r.s.study.kind, r.s.study.point, r.s.requested
    arm, limit = re.fullmatch(ARM_POINT, point), r"(, memory limited to (?!0\.0+ |-)[\d.]+ .+)?"
    patterns = {
        "frontier": rf"data\.sequence_length=\d+, batch\.micro_batch=\d+{limit}",
        "repeat": r".+, repeat \d+",
        "sweep": r".*=.*",
        "tune": rf"(.*=.*|as given){limit}",
        "ab": ".+",
    }
    settings = arm["settings"] if arm else re.sub(r"(, repeat \d+|, memory limited to .+)$", "", point)
    options: dict[str, object] = {"devices.count": asked.devices, "devices.strategy": asked.strategy, "devices.offload": asked.offload}
    options |= {"seed": asked.seed, "weights": asked.weights}
    given = {name: str(value) for name, value in options.items() if value}
    given |= dict(assignment.split("=", 1) for assignment in asked.overrides)
    named = dict(re.findall(r"([a-z_]+(?:\.[a-z_]+)*)=([^,]+)", settings))
    return (arm is not None) == (kind == "ab") and re.fullmatch(patterns[kind], point) is not None and named.items() <= given.items()


# Settings in effect


def optimizer_of_harness(r: Run) -> bool:
    """Return True if the class of the optimizer comes from the library that the harness takes it from."""
    library, _, name = r.s.effective.optimizer.rpartition(" ") if r.s.effective else ("", "", "")
    return library in {"", OPTIMIZER_LIBRARIES[name]} if name in OPTIMIZER_LIBRARIES else r.device.strategy in DEEPSPEED or r.neuron


def gradients_reach(r: Run) -> bool:
    """Return True if the verdict on gradients follows from its count, and the count from the plan."""
    gate, full = r.gate("adapter_gradient"), r.plan.method is Method.FULL
    if gate is None:
        return True
    sharded = r.device.strategy in SHARDED_WEIGHTS
    found = re.match(r"a gradient reaches (\d+) of (\d+) (weights|adapters)", gate.detail)
    if sharded or found is None:
        return sharded and gate.passed is None and gate.detail.startswith(f"the model is sharded by {r.device.strategy.value}")
    reached, relevant = int(found[1]), int(found[2])
    enough = reached > 0 and (reached <= relevant if full else reached == relevant) and "none exists" not in gate.detail
    if gate.passed is not enough or reached > relevant or (found[3] == "weights") != full:
        return False
    if full or r.model is None or r.plan.lora is None or r.model.experts is not None or adapts_tokens(r.model, r.plan.lora.target_modules):
        return True
    try:
        return relevant == sum(linear.times() for linear in adapted_linears(r.model, r.plan.lora.target_modules))
    except TunemarkError:
        return False


def loss_of_random_tokens(r: Run) -> float | None:
    """Return the lowest mean loss of a step on uniformly random tokens: their entropy, less five standard errors and rounding of bf16."""
    data = r.plan.data
    endless = data.source is DataSource.SYNTHETIC and data.name in UNIFORM and data.training_rows is None
    if not endless or r.model is None or r.plan.model.labels or not r.steps:
        return None
    # The loss of a token deviates by 2 nats at most.
    return log(r.model.vocabulary - SPECIAL_TOKENS) - 5 * 2.0 / sqrt(max(1, min(r.trace.supervised_tokens))) - 0.02


# Statistics of a series, which only ask for a second run


def roughness(r: Run) -> float | None:
    """Return the second differences of losses over the first ones, in the median; 0 for whole numbers."""
    losses = r.losses
    if len(losses) < MANY_STEPS or (losses == np.round(losses)).all():
        return None if len(losses) < MANY_STEPS else 0.0
    change = np.median(np.abs(np.diff(losses)))
    return float(np.median(np.abs(np.diff(losses, 2))) / change) if change else None


def repeats_after(r: Run) -> int | None:
    """Return the number of steps after which losses repeat those from the first step on, but for a factor; 0 if they do not."""
    losses = r.losses
    for lag in range(SOME_SAMPLES, len(losses) - SOME_SAMPLES + 1) if len(losses) >= MANY_STEPS else ():
        earlier, later = losses[: len(losses) - lag], losses[lag:]
        ratios = later / np.where(earlier == 0, 1, earlier)
        if ratios.std() < SAME_LOSS * abs(ratios.mean()) and later.std() > SAME_LOSS * abs(later.mean()):
            return lag
    return 0


def words_of_cuda_agree(r: Run) -> bool:
    """Return True unless the figures of CUDA about its memory contradict each other, or the record."""
    said = OUT_OF_MEMORY.search(r.s.outcome.message or "")
    if said is None:
        return True
    wanted, total, free, used = (float(said[name]) for name in ("wanted", "total", "free", "used"))
    reserved = r.memory.device_reserved.peak_bytes
    of_device = r.status is not Status.OOM_HOST and int(said["number"]) < r.count
    return of_device and wanted >= free and free + used <= total and (reserved is None or reserved >= used * GIB / 2)


def _usual_samples(r: Run, every_s: float | None) -> float | None:
    """Return the samples of which most fit into the steady window; None for few."""
    fitting = r.window_s / every_s if r.window_s and every_s else 0.0
    return 0.6 * fitting if fitting > SOME_SAMPLES else None


# Software


def foreign_library(r: Run) -> str:
    """Return the first library of the runtime that is of another stack or has no version, or an empty text."""
    known = STACKS["runtimes"].get(r.backend.value, ".+")
    version = r"\d+(\.\d+){0,4}[\w.+~-]*"
    runtime = r.environment.runtime.items()
    return next((name for name, text in runtime if not (re.fullmatch(known, name) and re.fullmatch(version, text))), "")


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


def torch_has_kernels(r: Run) -> bool:
    """Return True if this build of torch has kernels for the device, and its CUDA runs with the driver."""
    version = version_of(r.environment.packages.get("torch", ""))
    if version is None:
        return True
    wrong, local = STACKS["builds_without_kernels"].get(r.backend.value), version.local or ""
    if (version < Version("2.1") and not r.neuron) or (wrong and re.match(wrong, local)):
        return False
    oldest = STACKS["nvidia"]["oldest_driver"]
    first, *_, last = map(int, oldest)
    built, runtime = re.search(r"\bcu(\d{2})\d\b", local), re.match(r"(\d+)\.", r.environment.runtime.get("cuda", ""))
    majors = {int(found[1]) for found in (built, runtime) if found}
    driver = re.match(r"\d+", r.environment.devices[0].driver or "") if r.backend is Backend.CUDA else None
    old = driver is not None and any(int(driver[0]) < oldest.get(str(major), 0) for major in majors)
    gone = r.card is not None and r.card.architecture in STACKS["nvidia"]["before_cuda_13"] and any(major >= last for major in majors)
    return not old and not gone and all(major >= first for major in majors) and (not built or not runtime or built[1] == runtime[1])


def unlike_versions(r: Run) -> Iterator[tuple[str, str, str]]:
    """Yield field, value and reason of versions that this catalogue does not know, that came out after the run, or that do not go together by it."""
    versions = {name: version for name, text in r.environment.packages.items() if (version := version_of(text)) is not None}
    python = version_of(".".join(r.environment.python.split(".")[:2]))
    known = versions | ({"python": python} if python else {})
    for name, version in versions.items():
        field, listed = f"environment.packages.{name}", next((each for each in r.facts.known.libraries if each.library == name), None)
        own = version.is_prerelease or version.is_postrelease or not re.fullmatch(r"(cpu|cu\d+|rocm[\d.]*|xpu)?", version.local or "")
        day = listed.released_on.get(version.base_version) if listed else None
        if listed and day is None and (not own or version.major > listed.newest.major + 1):
            yield field, str(version), f"is not among the releases that were known on {listed.read_on}"
        elif day is not None and not version.is_prerelease and (day - r.s.started_at.date()).days > 1:
            yield field, str(version), f"was released on {day}, after this run"
        for needed, requirement in r.facts.known.requirements_of(name, Version(version.base_version)).items():
            other = known.get(needed)
            low, high = Version(requirement.least), Version(requirement.newest) if requirement.newest else None
            if other is not None and (Version(other.base_version) < low or (high is not None and other.release[:2] > high.release[:2])):
                yield field, str(version), f"is for {needed} {low}{f' to {high}' if high else ' or newer'}, and the record has {other}"


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
    strange = (f"{name}: {method}" for name, method, pattern in methods if method and not (pattern and re.fullmatch(pattern, method)))
    return next(strange, "")


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


def energy_w(r: Run) -> float | None:
    """Return the mean power by the energy of all devices."""
    energy = r.use.energy if r.use else None
    return energy.joules / energy.window_s if energy and energy.joules is not None and energy.window_s else None


def sampled_w(r: Run) -> float | None:
    """Return the sampled mean power of all devices, if each reports it."""
    total = sum(r.powers_w)
    return total if len(r.powers_w) == r.count and total else None


def energy_over_samples(r: Run) -> float | None:
    """Return the power by the energy of all devices over the sampled power, of many samples."""
    watts, sampled = energy_w(r), sampled_w(r)
    return watts / sampled if watts and sampled and fewest_samples(r) >= MANY_SAMPLES else None


def fewest_samples(r: Run) -> int:
    """Return the samples of the device with the fewest."""
    return min((use.samples for use in r.use.devices), default=0) if r.use else 0
