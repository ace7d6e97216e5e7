"""Memory: never above the device, never below what must be there at the same time."""

from collections.abc import Iterator

from tunemark.collector.audit.evidence import Base, Run
from tunemark.collector.audit.physics_of import kept_with_recompute, weight_bytes
from tunemark.collector.audit.rule import IMPOSSIBLE, INCONSISTENT, SUSPICIOUS, Found, Rule
from tunemark.collector.audit.span import Span
from tunemark.collector.store.rates import precision_class
from tunemark.schema.physics.architecture import count_parameters
from tunemark.schema.physics.memory import CONTEXT
from tunemark.schema.vocabulary import Method

GIB = 2**30


def above_capacity(base: Base) -> Iterator[Found]:
    """Yield peaks of memory that are larger than the device, or than what a process can get of it."""
    usable = base.facts.known.practice("usable-memory")
    for run in base.runs:
        capacity = run.accelerator.memory_gib * GIB if run.accelerator and run.accelerator.memory_gib else None
        readings = run.readings("peak_memory_bytes")
        # A figure of several devices together is no figure of one.
        readings = [(meaning, span) for meaning, span in readings if "together" not in meaning]
        if capacity is None or not readings:
            continue
        room = capacity * usable
        over = [(meaning, span) for meaning, span in readings if (span.value if len(readings) > 1 else span.low) > room]
        if not over:
            continue
        verdict = INCONSISTENT if len(over) < len(readings) else IMPOSSIBLE
        fits = [meaning for meaning, span in readings if (meaning, span) not in over]
        ending = f"; it fits when read as {fits[0]}, so the printed unit is wrong" if fits else ""
        yield Found(
            verdict,
            (run.id,),
            run.printed("peak_memory_bytes"),
            f"{over[0][1].value / GIB:.1f} GiB > {room / GIB:.1f} GiB, the {usable:.1%} of {capacity / GIB:g} GiB that a process can get{ending}",
            {"claimed_bytes": over[0][1].value, "usable_bytes": room},
        )


def below_floor(base: Base) -> Iterator[Found]:
    """Yield peaks that are smaller than weights, gradients and the activations that even full checkpointing keeps."""
    for run, readings in _of_one_device(base):
        high = max(span.high for _, span in readings)
        floor, words = _floor(run)
        if high < floor:
            yield Found(
                IMPOSSIBLE,
                (run.id,),
                run.printed("peak_memory_bytes"),
                f"{words} = {floor / 1e9:.1f} GB, more than {high / 1e9:.1f} GB even at the upper end of the last digit",
                {"claimed_bytes": readings[0][1].value, "floor_bytes": floor},
            )


def below_usual_states(base: Base) -> Iterator[Found]:
    """Yield full fine-tunings in less memory than the usual optimizer's states, logits and checkpoints take in the stated precision."""
    for run, readings in _of_one_device(base):
        if run.model is None or run.conditions.method is not Method.FULL:
            continue
        each, why = (
            (8, "16-bit weights, gradients and both moments of Adam")
            if _pure_sixteen_bit(run)
            else (16, "fp32 weights, gradients and both moments of Adam, as mixed precision keeps them")
        )
        states = each * count_parameters(run.model).total
        length, rows = run.conditions.sequence_length, run.conditions.micro_batch
        logits = _logits(run)
        kept = kept_with_recompute(run, length, rows)[0] if length and rows else 0.0
        needed, high = states + logits + kept, max(span.high for _, span in readings)
        if high < needed:
            yield Found(
                SUSPICIOUS,
                (run.id,),
                run.printed("peak_memory_bytes"),
                f"{count_parameters(run.model).total:,} parameters x {each} bytes ({why}) = {states / 1e9:.1f} GB, logits {logits / 1e9:.1f} GB, "
                f"inputs of blocks {kept / 1e9:.1f} GB: {needed / 1e9:.1f} GB > {high / 1e9:.1f} GB. It needs another optimizer or precision than the document states",
                {"claimed_bytes": readings[0][1].value, "needed_bytes": needed},
            )


def out_of_memory(base: Base) -> Iterator[Found]:
    """Yield a failure for want of memory on a device that holds what the same work is said to need elsewhere."""
    usable = base.facts.known.practice("usable-memory")
    for run in base.runs:
        if not run.out_of_memory or run.accelerator is None or run.accelerator.memory_gib is None:
            continue
        room = run.accelerator.memory_gib * GIB * usable
        for other in base.published:
            readings = other.readings("peak_memory_bytes")
            if other.source == run.source and readings and same_work(run, other) and max(span.high for _, span in readings) < room:
                yield Found(
                    INCONSISTENT,
                    (run.id, other.id),
                    f"out of memory, and {other.printed('peak_memory_bytes')} elsewhere",
                    f"{readings[0][1].value / GIB:.1f} GiB of the same work fit into {room / GIB:.1f} GiB",
                    {"needed_bytes": readings[0][1].value, "usable_bytes": room},
                )


def same_work(one: Run, other: Run) -> bool:
    """Return whether two results do the same micro-step: model, method, rows, length, precision and the settings that change memory."""
    a, b = one.conditions, other.conditions
    same = (a.model, a.method, a.micro_batch, a.sequence_length, a.accelerator_count, precision_class(a.precision)) == (
        b.model,
        b.method,
        b.micro_batch,
        b.sequence_length,
        b.accelerator_count,
        precision_class(b.precision),
    )
    names = {"gradient_checkpointing", "fsdp_cpu_offload", "quantisation", "lora_r", "variant"}
    return same and a.model is not None and all(a.settings.get(name) == b.settings.get(name) for name in names)


def _of_one_device(base: Base) -> Iterator[tuple[Run, list[tuple[str, Span]]]]:
    """Yield published results whose peak is that of one device which holds a whole known model, with the readings of that peak."""
    for run in base.runs:
        readings = run.readings("peak_memory_bytes")
        whole = run.devices == 1 and not run.conditions.settings.get("fsdp_cpu_offload")
        if run.model is not None and whole and readings and not run.measured:
            yield run, readings


def _floor(run: Run) -> tuple[float, str]:
    if run.model is None:
        raise ValueError(run.id)
    size, words = weight_bytes(run.model, run.conditions.method)
    parts = [f"weights {size / 1e9:.2f} GB ({words})"]
    if run.conditions.method is Method.FULL:
        gradients = 2.0 * count_parameters(run.model).total
        size, parts = size + gradients, [*parts, f"gradients {gradients / 1e9:.2f} GB"]
    length, rows = run.conditions.sequence_length, run.conditions.micro_batch
    if length is not None:
        kept, how = kept_with_recompute(run, length, rows or 1)
        size, parts = size + kept, [*parts, f"inputs of blocks {kept / 1e9:.2f} GB ({how})"]
    return size, " + ".join(parts)


def _pure_sixteen_bit(run: Run) -> bool:
    """Return whether the source says that the model itself is in 16 bits, or nothing of mixed precision."""
    words = (run.conditions.precision or "").lower()
    return "mixed" not in words


def _logits(run: Run) -> float:
    length, rows = run.conditions.sequence_length, run.conditions.micro_batch
    if run.model is None or length is None or rows is None or run.model.family == "bert":
        return 0.0
    return 2.0 * rows * length * run.model.vocabulary


def below_usual_needs(base: Base) -> Iterator[Found]:
    """Yield adapters in so little memory that no room is left for logits and what a device needs to run at all."""
    for run in base.runs:
        readings, length, rows = run.readings("peak_memory_bytes"), run.conditions.sequence_length, run.conditions.micro_batch or 1
        if run.model is None or length is None or run.conditions.method is Method.FULL or run.devices > 1 or not readings or run.measured:
            continue
        if run.conditions.settings.get("fsdp_cpu_offload"):
            continue
        floor, words = _floor(run)
        logits = 2.0 * rows * length * run.model.vocabulary if run.model.family != "bert" else 0.0
        needed, high = floor + logits + CONTEXT, max(span.high for _, span in readings)
        if floor <= high < needed:
            yield Found(
                SUSPICIOUS,
                (run.id,),
                run.printed("peak_memory_bytes"),
                f"{words}, logits of {rows} x {length:,} tokens {logits / 1e9:.2f} GB, the device's own {CONTEXT / 1e9:.2f} GB = {needed / 1e9:.1f} GB > {high / 1e9:.1f} GB; only a fused loss and a tool that leaves out the device's own come below",
                {"claimed_bytes": readings[0][1].value, "needed_bytes": needed},
            )


RULES = (
    Rule(
        "memory-capacity",
        "more memory than the device has",
        "memory",
        "A peak cannot exceed the memory of the device, nor what the driver leaves a process of it.",
        (IMPOSSIBLE, INCONSISTENT),
        above_capacity,
    ),
    Rule(
        "memory-floor",
        "less memory than the weights need",
        "memory",
        "Weights, with full fine-tuning their gradients, and the inputs of all blocks are in memory together whatever the optimizer "
        "(Rajbhandari et al. 2020, section 3; Chen et al. 2016).",
        (IMPOSSIBLE,),
        below_floor,
    ),
    Rule(
        "memory-states",
        "less memory than the usual optimizer's states need",
        "memory",
        "AdamW in mixed precision keeps 16 bytes a parameter, in pure 16 bits 8 (Rajbhandari et al. 2020, section 3.1); logits and "
        "the inputs of blocks come on top.",
        (SUSPICIOUS,),
        below_usual_states,
    ),
    Rule(
        "memory-failure",
        "out of memory where the same work fits",
        "memory",
        "The same micro-step needs about the same memory on any device.",
        (INCONSISTENT,),
        out_of_memory,
    ),
    Rule(
        "memory-usual",
        "adapters in less memory than logits and the device leave",
        "memory",
        "Beside weights and the inputs of blocks there are the logits of a plain loss, and half a GiB that the driver takes.",
        (SUSPICIOUS,),
        below_usual_needs,
    ),
)
