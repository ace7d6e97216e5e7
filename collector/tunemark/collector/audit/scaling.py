"""Scaling: more devices do not do more than their number, and need no more memory each."""

from collections.abc import Iterator
from itertools import product

from tunemark.collector.audit.evidence import Base, Run
from tunemark.collector.audit.rule import IMPOSSIBLE, SUSPICIOUS, Found, Rule
from tunemark.collector.audit.span import Span

SUPERLINEAR = 1.05
"""A few per cent above linear happen, where shards fit into caches or free memory for a larger batch."""
TWICE = 2.0
MORE_MEMORY = 1.05


def pairs(base: Base) -> Iterator[tuple[Run, Run]]:
    """Yield results that differ in the number of devices only: fewer devices first."""
    for group in base.alike:
        counted = _one_of_each([run for run in group if run.conditions.accelerator_count is not None])
        if len({run.devices for run in counted}) < 2:  # noqa: PLR2004 - nothing to compare
            continue
        for few, many in product(counted, counted):
            a, b = few.conditions, many.conditions
            work = (a.micro_batch, a.sequence_length, a.dataset) == (b.micro_batch, b.sequence_length, b.dataset)
            if few.devices < many.devices and work and a.settings.get("fsdp_cpu_offload") == b.settings.get("fsdp_cpu_offload"):
                yield few, many


def _one_of_each(runs: list[Run]) -> list[Run]:
    """Return results with one measured result for each number of devices and kind of work: there may be many."""
    kept: dict[object, Run] = {}
    for run in runs:
        conditions = run.conditions
        key = (run.devices, conditions.micro_batch, conditions.sequence_length, conditions.dataset) if run.measured else run.id
        kept[key] = run
    return list(kept.values())


def speedups(few: Run, many: Run) -> Iterator[tuple[str, Span]]:
    """Yield how much faster more devices are, by each figure both have."""
    for quantity in ("train_time_s", "wall_s", "epoch_time_s", "step_time_s"):
        slow, fast = few.span(quantity), many.span(quantity)
        if slow and fast:
            yield f"{quantity} {slow.value:,.0f} s / {fast.value:,.0f} s", slow / fast
    slow, fast = few.span("tokens_per_s"), many.span("tokens_per_s")
    if slow and fast:
        yield f"tokens/s {fast.value:,.0f} / {slow.value:,.0f}", fast / slow


def efficiency(base: Base) -> Iterator[Found]:
    """Yield speedups beyond the number of devices."""
    for few, many in pairs(base):
        by = many.devices / few.devices
        for words, speedup in speedups(few, many):
            share = speedup / by
            if share.low <= SUPERLINEAR:
                continue
            verdict = IMPOSSIBLE if share.low > TWICE else SUSPICIOUS
            yield Found(
                verdict,
                (many.id, few.id),
                f"{many.devices} devices against {few.devices}",
                f"{words} = {speedup.value:.2f}x with {by:g} times the devices: efficiency {share.value:.0%}",
                {"speedup": speedup.value, "efficiency": share.value},
            )


def memory_each(base: Base) -> Iterator[Found]:
    """Yield more memory on each device where states are divided over more of them."""
    for few, many in pairs(base):
        one, several = few.readings("peak_memory_bytes"), [r for r in many.readings("peak_memory_bytes") if "together" not in r[0]]
        if not one or not several:
            continue
        low, high = several[0][1], one[0][1]
        if low.low > high.high * MORE_MEMORY:
            yield Found(
                SUSPICIOUS,
                (many.id, few.id),
                f"{many.printed('peak_memory_bytes')} on {many.devices} devices, {few.printed('peak_memory_bytes')} on {few.devices}",
                f"{high.value / 1e9:.1f} GB -> {low.value / 1e9:.1f} GB on each device ({low.value / high.value - 1:+.0%}), with the same rows on each and states divided over {many.devices}",
                {"bytes each, fewer": high.value, "bytes each, more": low.value},
            )


def host_memory(base: Base) -> Iterator[Found]:
    """Yield host memory that grows faster than the processes."""
    for few, many in pairs(base):
        amounts = [_host_bytes(run) for run in (few, many)]
        if amounts[0] is None or amounts[1] is None:
            continue
        growth = amounts[1] / amounts[0]
        by = many.devices / few.devices
        if growth.low > by * TWICE:
            yield Found(
                SUSPICIOUS,
                (many.id, few.id),
                f"host memory {many.printed('host_memory_peak_share', 'host_memory_total_bytes')} against {few.printed('host_memory_peak_share', 'host_memory_total_bytes')}",
                f"{amounts[0].value / 1e9:.2f} GB -> {amounts[1].value / 1e9:.2f} GB: {growth.value:.1f} times with {by:g} times the processes",
                {"bytes, fewer": amounts[0].value, "bytes, more": amounts[1].value},
            )


def host_below_weights(base: Base) -> Iterator[Found]:
    """Yield peaks of host memory below the weights that were read through it."""
    for run in base.runs:
        amount = _host_bytes(run)
        if amount is None or run.model is None or not run.model.parameters:
            continue
        weights = 2.0 * run.model.parameters
        if amount.high < weights / 2:
            yield Found(
                SUSPICIOUS,
                (run.id,),
                run.printed("host_memory_peak_share", "host_memory_total_bytes"),
                f"peak {amount.value / 1e9:.2f} GB, where the 16-bit weights of {run.model.name} are {weights / 1e9:.1f} GB: a peak that saw their loading cannot be so low, unless files are mapped piece by piece",
                {"host_bytes": amount.value, "weight_bytes": weights},
            )


def _host_bytes(run: Run) -> Span | None:
    share, total = run.span("host_memory_peak_share"), run.span("host_memory_total_bytes")
    return share * total if share and total else None


RULES = (
    Rule(
        "scaling-efficiency",
        "faster than the number of devices",
        "scaling",
        "n devices do at most n times the work of one (Amdahl 1967); caches may add a few per cent.",
        (SUSPICIOUS, IMPOSSIBLE),
        efficiency,
    ),
    Rule(
        "memory-with-devices",
        "more memory each on more devices",
        "scaling",
        "Data-parallel devices hold the same activations and no more states than one; ZeRO divides states (Rajbhandari et al. 2020).",
        (SUSPICIOUS,),
        memory_each,
    ),
    Rule(
        "host-memory-with-devices",
        "host memory grows faster than processes",
        "scaling",
        "Each process holds about the same on the host.",
        (SUSPICIOUS,),
        host_memory,
    ),
    Rule(
        "host-memory-floor",
        "less host memory than the weights that pass through it",
        "memory",
        "Weights are read through host memory.",
        (SUSPICIOUS,),
        host_below_weights,
    ),
)
