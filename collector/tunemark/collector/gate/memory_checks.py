"""Checks of memory: peaks against what there is, against what the run held at once, and against the prediction from its shapes.

Some peaks are possible but unlikely; these are accepted, and need a second run.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from tunemark.schema.facts.cards import AcceleratorCard, ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import GIB, MIB
from tunemark.schema.physics.memory import estimate_memory
from tunemark.schema.physics.memory_states import MemoryLedger
from tunemark.schema.physics.training_shape import shape_of_plan, shape_problem
from tunemark.schema.records.submission import ModelFacts, Submission
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.vocabulary import (
    DEEPSPEED,
    DEVICE_INTERVAL_S,
    HOST_INTERVAL_S,
    MEMORY_TOOLS,
    SEEN_OF_RESERVED,
    TORCH_MODULES,
    Backend,
    Checkpointing,
    Padding,
    Phase,
    Status,
    Strategy,
)

LARGEST_DEVICE_BYTES = 2048 * GIB
SMALLEST_WORKER_BYTES = 128 * MIB
KERNEL_UNIT_BYTES = 1_024
"""Resident memory of a process that has imported torch."""
FLOOR_TOLERANCE, SURELY_SAVED = 0.95, 0.8
"""Share of the weights and states, and of the predicted activations, below which no peak can be."""
PREDICTED = (0.55, 0.75)
"""Measured over predicted peak below which it is impossible, and unlikely. Of 85 published peaks of known runs the lowest is 0.77
(`benchmarks/memory_errors.py`)."""
BESIDE_STATES, LEAST_BESIDE = (0.55, 0.75), 0.1
"""The same of what is beside weights and states: gradients, activations and logits. In eager mode the ledger knows each of their tensors;
share of the predicted peak from which that is enough to compare."""
PAGE_BYTES = 4096
BLOCK_BYTES = 2 * MIB
"""The allocator of CUDA and ROCm reserves memory in multiples of this."""
ALLOCATORS = (Backend.CUDA, Backend.ROCM)
COUNTED = (*ALLOCATORS, Backend.XPU)
"""Back ends whose allocators count both peaks themselves."""
SEEN_TOGETHER = 0.6
"""Peak of all processes together over the sum of their peaks, at least."""
STATES_SEEN = 0.9
ALIKE_MEMORY = 0.5
"""Peak of a process over the highest one at least, where all processes have the same part of the model and rows of one distribution."""
WHERE = r"( of the first machine)?"


def memory_problems(submission: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield each peak that is impossible, or that another figure contradicts."""
    card, model = facts.accelerators.get(submission.plan.device.accelerator or ""), facts.models.get(submission.plan.model.key)
    yield from _peaks(submission, card)
    yield from _methods(submission)
    yield from _processes(submission)
    yield from _on_the_host(submission)
    if submission.model is not None and model is not None and shape_problem(submission.plan, model) is None:
        yield from _floor(submission, submission.model, model)
        yield from _predicted(submission, model)


def _methods(s: Submission) -> Iterator[Problem]:
    """Yield methods that the harness does not use on this back end."""
    backend, memory = s.environment.backend, s.memory
    torch = TORCH_MODULES.get(backend)
    counters = {name: torch and rf"{re.escape(torch)}\.max_memory_{name}" for name in ("allocated", "reserved")}
    if backend not in COUNTED:
        counters = dict.fromkeys(counters, torch and re.escape(torch) + r"\..+")
    monitor = MEMORY_TOOLS.get(backend)
    used = f"{monitor} every {DEVICE_INTERVAL_S[backend]:g} s, minus what was in use before the run" if monitor else None
    every = f"every {HOST_INTERVAL_S:g} s"
    methods = {
        "device_allocated": counters["allocated"],
        "device_reserved": counters["reserved"],
        # A monitor of the user's own has a name that nobody else uses.
        "device_used": re.escape(used) + WHERE if used else rf"(?!{'|'.join(map(re.escape, MEMORY_TOOLS.values()))}).+",
        "host_rss": rf"peak resident memory of the worker's processes{WHERE} \(ru_maxrss, and {re.escape(every)}\)",
        "host_swap": rf"VmSwap of the worker's processes{WHERE} {re.escape(every)}",
    }
    for name, pattern in methods.items():
        method = getattr(memory, name).method
        if method is not None and backend is not Backend.FAKE and (pattern is None or not re.fullmatch(pattern, method)):
            fix = f"is not a method of the harness on the {backend.value} back end; keep the original record"
            yield Problem(f"memory.{name}.method", repr(method), fix)


def _processes(s: Submission) -> Iterator[Problem]:
    """Yield peaks of processes that contradict each other, or the peak of all of them."""
    alike = s.plan.device.pipeline_parallel == 1 and s.outcome.status is Status.OK
    for index, rank in enumerate(s.ranks):
        allocated, reserved = rank.device_allocated_bytes, rank.device_reserved_bytes
        if allocated is not None and reserved is not None and allocated > reserved:
            fix = f"below the {allocated} bytes that were allocated from it"
            yield Problem(f"ranks.{index}.device_reserved_bytes", str(reserved), fix)
        for name, peak, of_all in (
            ("device_allocated_bytes", allocated, s.memory.device_allocated.peak_bytes),
            ("device_reserved_bytes", reserved, s.memory.device_reserved.peak_bytes),
        ):
            if peak is not None and (of_all is None or peak > of_all):
                fix = f"memory has {of_all or 'no peak'} of all processes; it is the highest of them"
                yield Problem(f"ranks.{index}.{name}", str(peak), fix)
            elif peak is not None and of_all is not None and alike and peak < ALIKE_MEMORY * of_all:
                yield Problem(
                    f"ranks.{index}.{name}", str(peak), f"another process holds {of_all}, and all have the same part of the model"
                )
        if rank.host_rss_bytes is None and s.outcome.status is Status.OK and any(other.host_rss_bytes for other in s.ranks):
            yield Problem(f"ranks.{index}.host_rss_bytes", "null", "that of another process is known; all are read alike")
    sizes = [rank.host_rss_bytes for rank in s.ranks if rank.host_rss_bytes is not None]
    total = s.memory.host_rss.peak_bytes
    if total is None or s.plan.device.nodes > 1 or len(sizes) < 2:  # noqa: PLR2004 - one process is compared with nothing
        return
    # Processes share some pages, and peak at about the same time.
    least = max(max(sizes) + (len(sizes) - 1) * SMALLEST_WORKER_BYTES, int(SEEN_TOGETHER * sum(sizes)))
    if total < least:
        fix = f"the processes alone held {max(sizes)} bytes each, {len(sizes)} at once; the peak is that of all of them together"
        yield Problem("memory.host_rss.peak_bytes", str(total), fix)


def _on_the_host(s: Submission) -> Iterator[Problem]:
    """Yield optimizer states in the memory of the host that its peak does not hold."""
    states, ran = s.model.optimizer_state_bytes if s.model else None, s.effective
    total = (s.memory.host_rss.peak_bytes or 0) + (s.memory.host_swap.peak_bytes or 0)
    on_host = ran is not None and "cpu" in ran.optimizer_states_on and s.environment.backend is not Backend.CPU
    if not states or not on_host or not total or s.plan.device.nodes > 1:
        return
    needed = states * s.plan.device.count
    if total < STATES_SEEN * needed:
        fix = f"the {s.plan.device.count} processes keep {needed:,} bytes of optimizer states in host memory"
        yield Problem("memory.host_rss.peak_bytes", f"{total:,}", fix)


def _peaks(s: Submission, card: AcceleratorCard | None) -> Iterator[Problem]:
    """Yield peaks beyond the memory that there is, or below what a process needs to run at all."""
    memory, environment = s.memory, s.environment
    if memory.host_swap.peak_bytes is not None and not environment.os.startswith("Linux"):
        yield Problem(
            "memory.host_swap.peak_bytes", str(memory.host_swap.peak_bytes), f"{environment.os!r} has no VmSwap; write null and a reason"
        )
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
    if allocated and allocated == reserved and s.environment.backend in ALLOCATORS:
        fix = "is what was allocated too, to the byte; the allocator reserves whole blocks, and tensors never fill all of them"
        yield Problem("memory.device_reserved.peak_bytes", str(reserved), fix)
    sizes = [s.memory.device_reserved.peak_bytes, *(rank.device_reserved_bytes for rank in s.ranks)]
    odd = next((size for size in sizes if size is not None and size % BLOCK_BYTES), None)
    if odd is not None and s.environment.backend in ALLOCATORS:
        yield Problem("memory.device_reserved.peak_bytes", str(odd), f"is not a multiple of the allocator's blocks of {BLOCK_BYTES} bytes")
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
    ranked = [rank.device_allocated_bytes for rank in s.ranks if rank.device_allocated_bytes is not None]
    if allocated is not None and ranked and max(ranked) != allocated:
        yield Problem("memory.device_allocated.peak_bytes", str(allocated), f"the highest peak of all ranks is {max(ranked)}")
    if rss is not None and Phase.LOAD in {mark.phase for mark in s.timeline} and rss < SMALLEST_WORKER_BYTES:
        fix = "a process that has imported torch holds more than 128 MiB; check the unit"
        yield Problem("memory.host_rss.peak_bytes", str(rss), fix)
    if s.plan.device.backend is Backend.CPU and allocated is not None:
        yield Problem("memory.device_allocated.peak_bytes", str(allocated), "a CPU has no device allocator; write null and the reason")


def _floor(s: Submission, ran: ModelFacts, model: ModelCard) -> Iterator[Problem]:
    """Yield peaks below the tensors that the run held at once: weights and states, and what the backward pass needs beside them."""
    if not len(s.trace) or s.plan.device.offload != "none":
        return
    held = sum(ran.parameter_bytes.values())
    if s.plan.device.strategy is Strategy.ZERO3:
        held = int(held / 2)
    if not s.plan.optimizer.name.startswith("paged"):
        held += ran.optimizer_state_bytes or 0
    held += ran.gradient_bytes or 0
    cpu = s.plan.device.backend is Backend.CPU
    saved = 0 if cpu else _saved(s, model)
    between = (ran.gradient_bytes or 0) if s.plan.batch.gradient_accumulation == 1 else 0
    names = ("host_rss",) if cpu else ("device_allocated", "device_reserved", "device_used")
    for name in names:
        peak = getattr(s.memory, name).peak_bytes
        if peak is not None and peak < held * (FLOOR_TOLERANCE if name != "device_used" else 0.8):
            fix = f"below the {held:,} bytes of weights, gradients and optimizer states; check the unit and the device"
            yield Problem(f"memory.{name}.peak_bytes", f"{peak:,}", fix)
        elif peak is not None and peak < (held - between) * FLOOR_TOLERANCE + saved:
            fix = f"below the {held - between:,} bytes of weights and states with the {saved:,} that the backward pass needs beside them"
            yield Problem(f"memory.{name}.peak_bytes", f"{peak:,}", fix)
    known = s.plan.device.backend in {Backend.CUDA, Backend.ROCM, Backend.CPU} and s.outcome.status is Status.OK
    for name in names[:2] if known else ():
        if getattr(s.memory, name).peak_bytes is None:
            yield Problem(f"memory.{name}.peak_bytes", "null", "this back end reports its peak; a successful run has it")


def _ledger(s: Submission, model: ModelCard) -> MemoryLedger | None:
    """Return the predicted memory of a device, or None where rows are narrower than the plan's or states may be elsewhere."""
    plan = s.plan
    # Rows of other widths, and engines that move states, are not predicted well enough to refuse a record.
    full = plan.data.packing or plan.data.padding in {Padding.NONE, Padding.STATIC}
    if not full or plan.device.strategy in DEEPSPEED or plan.device.offload != "none" or plan.device.tensor_parallel > 1:
        return None
    return estimate_memory(shape_of_plan(plan, model))


def _saved(s: Submission, model: ModelCard) -> int:
    """Return bytes of activations that are surely alive when the backward pass begins, without those of the loss."""
    ledger = _ledger(s, model)
    if ledger is None or s.environment.backend not in ALLOCATORS:
        return 0
    saved, recomputed = _activations(ledger), s.effective.gradient_checkpointing if s.effective else ""
    if recomputed.isdigit() and s.plan.model.gradient_checkpointing is not Checkpointing.NONE:
        # The other blocks keep all of theirs.
        whole = estimate_memory(replace(shape_of_plan(s.plan, model), checkpointing=Checkpointing.NONE))
        saved += max(0.0, 1 - int(recomputed) / model.layers) * _activations(whole)
    return int(SURELY_SAVED * saved)


def _activations(ledger: MemoryLedger) -> float:
    """Return the bytes of activations that are alive when the backward pass begins."""
    return sum(line.bytes for line in ledger.lines if line.group == "activations" and "backward begins" in line.moments)


def _share_of_predicted(s: Submission, model: ModelCard) -> float | None:
    """Return the measured peak of tensors over the predicted one, or None."""
    ledger, peak = _ledger(s, model), s.memory.device_allocated.peak_bytes
    trained = s.outcome.status is Status.OK and s.environment.backend in ALLOCATORS
    return peak / ledger.peak_allocated if ledger is not None and peak and trained else None


def _beside_states(s: Submission, model: ModelCard) -> float | None:
    """Return the measured over the predicted memory beside weights and states; None where that is a small part."""
    ledger, peak, ran = _ledger(s, model), s.memory.device_allocated.peak_bytes, s.model
    if ledger is None or not peak or ran is None or _share_of_predicted(s, model) is None or s.plan.model.compile != "none":
        return None
    held = sum(ran.parameter_bytes.values()) + (ran.optimizer_state_bytes or 0)
    beside = ledger.peak_allocated - held
    return (peak - held) / beside if beside > LEAST_BESIDE * ledger.peak_allocated else None


def _predicted(s: Submission, model: ModelCard) -> Iterator[Problem]:
    """Yield a peak far below the prediction from the shapes of the plan."""
    beside = _beside_states(s, model)
    if beside is not None and beside < BESIDE_STATES[0]:
        fix = f"without weights and states {beside:.0%} of what follows from the plan; a step of these shapes needs more"
        yield Problem("memory.device_allocated.peak_bytes", f"{s.memory.device_allocated.peak_bytes:,}", fix)
    share = _share_of_predicted(s, model)
    if share is not None and share < PREDICTED[0]:
        fix = f"{share:.0%} of the peak that follows from the plan; a step of these shapes needs more"
        yield Problem("memory.device_allocated.peak_bytes", f"{s.memory.device_allocated.peak_bytes:,}", fix)


def unlikely_memory(s: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield peaks that are possible, but unlike those of known runs: a reason to ask for a second run."""
    model = facts.models.get(s.plan.model.key)
    if model is not None and shape_problem(s.plan, model) is None:
        share = _share_of_predicted(s, model)
        if share is not None and share < PREDICTED[1]:
            fix = f"{share:.0%} of the peak that follows from the plan"
            yield Problem("memory.device_allocated.peak_bytes", f"{s.memory.device_allocated.peak_bytes:,}", fix)
        beside = _beside_states(s, model)
        if beside is not None and BESIDE_STATES[0] <= beside < BESIDE_STATES[1]:
            fix = f"without weights and states {beside:.0%} of what follows from the plan"
            yield Problem("memory.device_allocated.peak_bytes", f"{s.memory.device_allocated.peak_bytes:,}", fix)
    for index, device in enumerate(s.environment.devices):
        if (
            s.environment.backend in ALLOCATORS
            and device.memory_bytes
            and (device.memory_bytes % PAGE_BYTES or not device.memory_bytes % 10**9)
        ):
            fix = "is not a whole number of pages, or a whole number of billions; a driver reports what it leaves of the memory"
            yield Problem(f"environment.devices.{index}.memory_bytes", str(device.memory_bytes), fix)
    rss = s.memory.host_rss.peak_bytes
    if rss is not None and rss % KERNEL_UNIT_BYTES:
        yield Problem(
            "memory.host_rss.peak_bytes", str(rss), "is not a whole number of KiB, in which kernels count the memory of a process"
        )
    held = [rank.host_rss_bytes for rank in s.ranks if rank.host_rss_bytes is not None]
    if len(held) > len(set(held)):
        yield Problem("ranks", f"{held[0]} bytes", "two processes had the same peak of host memory to the byte")
