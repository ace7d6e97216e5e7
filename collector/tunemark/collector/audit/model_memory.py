"""Memory of the model itself: what its parameters take in any format, and in which unit a figure is right."""

from collections import defaultdict
from collections.abc import Iterator

from tunemark.collector.audit.evidence import Base, Run
from tunemark.collector.audit.physics_of import weight_bytes
from tunemark.collector.audit.rule import INCONSISTENT, SUSPICIOUS, Found, Rule
from tunemark.collector.audit.span import Span
from tunemark.schema.physics.architecture import count_parameters
from tunemark.schema.vocabulary import Method

GIB = 2**30
MODEL_MEMORY_TOLERANCE = 0.1
"""Buffers, rounding of the allocator and adapters that are counted with the model."""


def model_memory(base: Base) -> Iterator[Found]:
    """Yield memory of a model that is not the memory of its parameters in any format the method allows."""
    for run in base.runs:
        readings = run.readings("model_memory_bytes")
        if run.model is None or not readings:
            continue
        expected = _model_bytes(run)
        if any(span.widened(MODEL_MEMORY_TOLERANCE).overlaps(Span.exact(size)) for _, span in readings for size in expected.values()):
            continue
        said = " or ".join(f"{size / 1e9:.1f} GB ({how})" for how, size in expected.items())
        yield Found(
            INCONSISTENT,
            (run.id,),
            run.printed("model_memory_bytes"),
            f"the parameters take {said}; {readings[0][1].value / 1e9:.1f} GB is neither within {MODEL_MEMORY_TOLERANCE:.0%}",
            {"claimed_bytes": readings[0][1].value, **{f"bytes, {how}": size for how, size in expected.items()}},
        )


def unit_of_memory(base: Base) -> Iterator[Found]:
    """Yield memory of a model that is right in one unit only, and not in the printed one."""
    for run in base.runs:
        readings = run.readings("model_memory_bytes")
        if run.model is None or len(readings) < 2 or run.conditions.method is Method.QLORA:  # noqa: PLR2004 - one reading is no choice
            continue
        size = 2.0 * count_parameters(run.model).total
        fitting = [(meaning, span) for meaning, span in readings if span.low <= size <= span.high]
        printed = readings[0]
        if fitting and printed not in fitting and abs(printed[1].value / size - 1) > abs(fitting[0][1].value / size - 1):
            yield Found(
                INCONSISTENT,
                (run.id,),
                run.printed("model_memory_bytes"),
                f"{size / 2:,.0f} parameters x 2 bytes = {size / 1e9:.2f} GB = {size / GIB:.2f} GiB: the figure is right as {fitting[0][0]}, and wrong as printed",
                {"claimed_bytes": printed[1].value, "parameter_bytes": size},
            )


def across_devices(base: Base) -> Iterator[Found]:
    """Yield the same model and method with other memory of the model on other devices."""
    groups: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in base.runs:
        if "model_memory_bytes" in run.claims and run.accelerator is not None and not run.measured:
            groups[run.source, run.conditions.model, run.conditions.method, run.devices].append(run)
    for runs in groups.values():
        low, high = min(runs, key=_printed), max(runs, key=_printed)
        spans = Span.of(low.claims["model_memory_bytes"]), Span.of(high.claims["model_memory_bytes"])
        if spans[0].overlaps(spans[1]):
            continue
        ratio = spans[1].value / spans[0].value
        yield Found(
            INCONSISTENT if ratio > 1 + MODEL_MEMORY_TOLERANCE else SUSPICIOUS,
            tuple(run.id for run in sorted(runs, key=_printed)),
            ", ".join(
                f"{run.claims['model_memory_bytes'].printed} ({run.accelerator.name if run.accelerator else ''})"
                for run in sorted(runs, key=_printed)
            ),
            f"{ratio:.2f} times for the same parameters in the same format; parameters do not change with the device",
            {"ratio": ratio},
        )


def _printed(run: Run) -> float:
    return run.claims["model_memory_bytes"].value


def _model_bytes(run: Run) -> dict[str, float]:
    if run.model is None:
        raise ValueError(run.id)
    total = count_parameters(run.model).total
    if run.conditions.method is not Method.QLORA:
        return {"16 bits": 2.0 * total, "32 bits": 4.0 * total}
    low, _ = weight_bytes(run.model, Method.QLORA)
    count = count_parameters(run.model)
    plain = count.total - count.attention - count.feed_forward
    return {"4 bits, the rest in 16": low, "4 bits, the rest in 32": low + 2.0 * plain}


RULES = (
    Rule(
        "model-memory",
        "memory of the model that its parameters do not have",
        "memory",
        "Parameters x bytes of their format; 4-bit weights carry a scale for 64 (Dettmers et al. 2023).",
        (INCONSISTENT,),
        model_memory,
    ),
    Rule(
        "memory-unit",
        "a unit of memory that the parameters contradict",
        "definitions",
        "GiB is 2^30 bytes and GB 10^9: 7% apart, enough for a model's parameters to tell which was meant.",
        (INCONSISTENT,),
        unit_of_memory,
    ),
    Rule(
        "model-memory-across-devices",
        "the same model in other memory on other devices",
        "ordering",
        "Parameters and their format are those of the model and the method, not of the device.",
        (SUSPICIOUS, INCONSISTENT),
        across_devices,
    ),
)
