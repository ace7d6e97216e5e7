"""Scaling: N devices do at most N times the work of one, and each needs no more memory."""

from collections.abc import Iterator
from itertools import product

from tunemark.collector.audit.evidence import DEVICES_SETTINGS, SETUP, AuditedResult, Evidence, Pair, grouped, same_software, with_model
from tunemark.collector.audit.interval import MORE_MEMORY
from tunemark.collector.audit.rule import INCONSISTENT, SUSPICIOUS, Finding, rule
from tunemark.collector.audit.rules.comparison import TABLE, wrong_column
from tunemark.collector.audit.rules.memory import HOST_MEMORY, host_bytes
from tunemark.schema.formats import GIB
from tunemark.schema.physics.architecture import block_linears

GATHERED_BLOCKS = 2
"""Blocks whose weights are gathered at a time: the current one and the next (FSDP's prefetch, Zhao et al. 2023, section 3.3)."""
COMMUNICATION_BYTES = GIB
"""Memory of communication buffers, and of gradient buckets, that one device alone does not need."""
TWICE = 2.0
"""Efficiency above which one of two rates must be wrong or starved of memory, and growth per process above which host memory is suspicious."""
TIMES = ("train_time_s", "wall_s", "epoch_time_s", "step_time_s")


def _pairs(evidence: Evidence) -> Iterator[Pair]:
    """Yield pairs of results that differ only in the number of devices, fewer devices first."""
    counted = [result for result in with_model(evidence.results) if result.conditions.accelerator_count is not None]
    for group in grouped(counted, SETUP).values():
        # Measured results may be many, so keep one per number of devices and kind of work.
        results = {(result.devices, *_work(result)[:3]) if result.measured else result.id: result for result in group}.values()
        for few, many in product(results, results):
            if few.devices < many.devices and _work(few) == _work(many) and same_software(few, many, DEVICES_SETTINGS):
                yield few, many


def _work(result: AuditedResult) -> tuple[object, ...]:
    conditions = result.conditions
    return conditions.micro_batch, conditions.sequence_length, conditions.dataset, result.offloads_to_host, conditions.packing


def _larger_steps(few: AuditedResult, many: AuditedResult) -> bool:
    """Return True if each of the more devices does more work in a step, so that fixed costs of a step weigh less."""
    before, after = few.conditions.global_batch, many.conditions.global_batch
    return bool(before and after and after / many.devices > before / few.devices)


@rule(id="scaling-efficiency", family="scaling", verdicts=(SUSPICIOUS, INCONSISTENT))
def efficiency(evidence: Evidence) -> Iterator[Finding]:
    """Speed-up above the number of devices.

    N devices do at most N times the work of one (Amdahl 1967). A device that shares the states has more free memory, so that its
    allocator and caches work better: published results show by how much.
    """
    superlinear = evidence.facts.known.practice("superlinear")
    for few, many in _pairs(evidence):
        if _larger_steps(few, many):
            continue
        factor = many.devices / few.devices
        for quantity in (*TIMES, "tokens_per_s"):
            before, after = few.interval(quantity), many.interval(quantity)
            if before is None or after is None:
                continue
            if quantity in TIMES:
                speedup, words = before / after, f"{quantity} {before.value:,.0f} s / {after.value:,.0f} s"
            else:
                speedup, words = after / before, f"tokens/s {after.value:,.0f} / {before.value:,.0f}"
            share = speedup / factor
            if share.low > superlinear:
                verdict, claim = INCONSISTENT if share.low > TWICE else SUSPICIOUS, f"{many.devices} devices compared with {few.devices}"
                calculation = f"{words} = {speedup.value:.2f}x with {factor:g} times the devices: efficiency {share.value:.0%}"
                numbers = {"speedup": speedup.value, "efficiency": share.value}
                yield Finding(verdict, (many.id, few.id), claim, calculation, numbers, quantities=(quantity,))


@rule(id="memory-with-devices", family="scaling", verdicts=(SUSPICIOUS,))
def memory_per_device(evidence: Evidence) -> Iterator[Finding]:
    """More memory on each device with more devices.

    Data-parallel devices hold the same activations as one device and no more states. ZeRO divides the states (Rajbhandari et al. 2020).
    Only gathered weights of two blocks and communication buffers are added.
    """
    for few, many in _pairs(evidence):
        fewer = few.readings("peak_memory_bytes")
        larger = [peak for meaning, peak in many.readings("peak_memory_bytes") if "together" not in meaning]
        if fewer and larger and larger[0].low > fewer[0][1].high * MORE_MEMORY + _buffers(few):
            before, after = fewer[0][1].value, larger[0].value
            claim = f"{many.printed('peak_memory_bytes')} on {many.devices} devices, {few.printed('peak_memory_bytes')} on {few.devices}"
            words = (
                f"{before / 1e9:.1f} GB -> {after / 1e9:.1f} GB on each device ({after / before - 1:+.0%}), with the same rows on each and states "
                f"divided over {many.devices}"
            )
            numbers = {"bytes each, fewer": before, "bytes each, more": after}
            yield Finding(SUSPICIOUS, (many.id, few.id), claim, words, numbers, quantities=("peak_memory_bytes",))


def _buffers(result: AuditedResult) -> float:
    """Return the bytes that several devices need in addition to those of one: gathered weights and communication buffers."""
    block = sum(linear.weights for linear in block_linears(result.model)) if result.model else 0
    return GATHERED_BLOCKS * 2.0 * block + COMMUNICATION_BYTES


@rule(id="host-memory-with-devices", family="scaling", verdicts=(SUSPICIOUS,))
def host_memory(evidence: Evidence) -> Iterator[Finding]:
    """Host memory that grows faster than the number of processes.

    Each process holds about the same amount of host memory.
    """
    for few, many in _pairs(evidence):
        before, after, factor = host_bytes(few), host_bytes(many), many.devices / few.devices
        if before is None or after is None or (after / before).low <= factor * TWICE:
            continue
        growth = after.value / before.value
        claim = f"{many.printed(*HOST_MEMORY)} compared with {few.printed(*HOST_MEMORY)}"
        words = f"{before.value / 1e9:.2f} GB -> {after.value / 1e9:.2f} GB: {growth:.1f} times with {factor:g} times the processes"
        numbers = {"bytes, fewer": before.value, "bytes, more": after.value}
        yield Finding(SUSPICIOUS, (many.id, few.id), claim, words, numbers, quantities=HOST_MEMORY)


@rule(id="efficiency-column", family="scaling", verdicts=(INCONSISTENT,))
def efficiency_column(evidence: Evidence) -> Iterator[Finding]:
    """Scaling efficiency that differs from the ratio.

    Efficiency is throughput divided by (devices x the throughput of one device).
    """
    for results in grouped(evidence.with_figure("scaling_efficiency"), TABLE).values():
        single = next((result for result in results if result.devices == 1), None)
        base = single.interval("tokens_per_s") if single else None
        for result in results:
            rate = result.interval("tokens_per_s")
            if single and rate and base:
                words = f"{rate.value:g} / ({result.devices} x {base.value:g})"
                yield from wrong_column(result, single, "scaling_efficiency", rate / (base * result.devices), words)
