"""Order of methods on the same device, and the same work on different devices."""

from collections import defaultdict
from collections.abc import Iterator

from tunemark.collector.audit.evidence import Base, Run
from tunemark.collector.audit.rule import INCONSISTENT, SUSPICIOUS, Found, Rule
from tunemark.collector.audit.span import Span
from tunemark.collector.audit.token_rates import token_rates
from tunemark.collector.audit.utilisation import possible_rates
from tunemark.schema.physics.architecture import count_parameters
from tunemark.schema.vocabulary import Method

SLOWER = 1.02
"""Beyond what runs differ by chance."""
MORE_MEMORY = 1.05
MORE_PARAMETERS = 1.03


def _pairs(base: Base, first: Method, second: Method) -> Iterator[tuple[Run, Run]]:
    """Yield results of two methods with the same model, device and micro-step, of one source."""
    for one in base.published:
        for other in base.published:
            a, b = one.conditions, other.conditions
            if (
                one.source == other.source
                and (a.method, b.method) == (first, second)
                and a.model is not None
                and (a.model, a.accelerator, a.accelerator_count, a.sequence_length)
                == (b.model, b.accelerator, b.accelerator_count, b.sequence_length)
                and a.micro_batch == b.micro_batch
                and one.section == other.section
                and a.settings.get("fsdp_cpu_offload") == b.settings.get("fsdp_cpu_offload")
            ):
                yield one, other


def _memory(base: Base, less: Method, more: Method, why: str) -> Iterator[Found]:
    for one, other in _pairs(base, less, more):
        small, large = one.readings("peak_memory_bytes"), other.readings("peak_memory_bytes")
        if small and large and small[0][1].low > large[0][1].high * MORE_MEMORY:
            yield Found(
                SUSPICIOUS,
                (one.id, other.id),
                f"{less.value} {one.printed('peak_memory_bytes')}, {more.value} {other.printed('peak_memory_bytes')}",
                f"{less.value} needs {small[0][1].value / large[0][1].value:.2f} times the memory of {more.value}; {why}",
                {"ratio": small[0][1].value / large[0][1].value},
            )


def qlora_memory(base: Base) -> Iterator[Found]:
    """Yield QLoRA in more memory than LoRA."""
    yield from _memory(
        base,
        Method.QLORA,
        Method.LORA,
        "its weights take a quarter and its activations are the same, unless what is not quantised is kept in 32 bits",
    )


def lora_memory(base: Base) -> Iterator[Found]:
    """Yield LoRA in more memory than full fine-tuning."""
    yield from _memory(base, Method.LORA, Method.FULL, "it has neither gradients nor optimizer states of the weights")


def _rates(one: Run, other: Run) -> tuple[Span, Span] | None:
    first, second = possible_rates(one), possible_rates(other)
    return (first[0].tokens_per_s, second[0].tokens_per_s) if len(first) == 1 and len(second) == 1 else None


def slower(base: Base) -> Iterator[Found]:
    """Yield methods that are slower than one that does more work."""
    limit = base.facts.known.practice("qlora-slowdown")
    cases = (
        (Method.LORA, Method.FULL, SLOWER, "executes 6 N where full fine-tuning executes 8 N (definitions.md 10)"),
        (Method.QLORA, Method.LORA, limit, f"only unpacks its weights on top, which costs less than {limit:g} times"),
    )
    for method, reference, allowed, why in cases:
        for one, other in _pairs(base, method, reference):
            rates = _rates(one, other) or _bounded(one, other)
            if rates is None:
                continue
            ratio = rates[1] / rates[0]
            if ratio.low > allowed:
                yield Found(
                    SUSPICIOUS,
                    (one.id, other.id),
                    f"{method.value} {one.printed('step_time_s', 'tokens_per_s')}, {reference.value} {other.printed('step_time_s', 'tokens_per_s')}",
                    f"{rates[0].value:,.0f} against {rates[1].value:,.0f} tokens/s: {method.value} is {ratio.value:.2f} times slower; it {why}",
                    {"slowdown": ratio.value},
                )


def _bounded(one: Run, other: Run) -> tuple[Span, Span] | None:
    """Return the rates in the same reading, where the figure of both is ambiguous in the same way."""
    if one.conditions.gradient_accumulation != other.conditions.gradient_accumulation:
        return None
    first, second = ([rate for rate in token_rates(run) if rate.quantity == "step_time_s" and rate.meaning] for run in (one, other))
    return (first[-1].tokens_per_s, second[-1].tokens_per_s) if first and second else None


def memory_across_models(base: Base) -> Iterator[Found]:
    """Yield models with more parameters in less memory, where width, depth and vocabulary are the same: only weights tell them apart."""
    groups: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in base.published:
        card, c = run.model, run.conditions
        if card is not None and run.span("peak_memory_bytes"):
            shape = (card.hidden_size, card.layers, card.vocabulary)
            groups[run.source, run.section, c.method, c.accelerator, c.micro_batch, c.sequence_length, *shape].append(run)
    for runs in groups.values():
        for large in runs:
            for small in runs:
                if large.model is None or small.model is None or large.model.key == small.model.key:
                    continue
                more, less = count_parameters(large.model).total, count_parameters(small.model).total
                high, low = large.span("peak_memory_bytes"), small.span("peak_memory_bytes")
                if more > less * MORE_PARAMETERS and high and low and high.high <= low.low:
                    yield Found(
                        SUSPICIOUS,
                        (large.id, small.id),
                        f"{large.model.name} {large.printed('peak_memory_bytes')}, {small.model.name} {small.printed('peak_memory_bytes')}, {large.conditions.method.value}",
                        f"{more:,} parameters in {high.value / 1e9:g} GB, {less:,} in {low.value / 1e9:g} GB: the larger model of the same width, depth and vocabulary needs more, not less",
                        {"parameters": more, "parameters, other": less},
                    )


def memory_across_devices(base: Base) -> Iterator[Found]:
    """Yield the same micro-step with far different memory on different devices."""
    limit = base.facts.known.practice("same-work-memory")
    groups: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in base.runs:
        conditions = run.conditions
        if run.accelerator and "peak_memory_bytes" in run.claims and conditions.micro_batch and not run.measured:
            key = (conditions.model, conditions.method, conditions.micro_batch, conditions.sequence_length, conditions.accelerator_count)
            groups[run.source, *key, conditions.settings.get("gradient_checkpointing")].append(run)
    for runs in groups.values():
        by_size = sorted(runs, key=lambda run: run.claims["peak_memory_bytes"].value)
        low, high = by_size[0], by_size[-1]
        if len({run.conditions.accelerator for run in runs}) < 2:  # noqa: PLR2004 - two devices
            continue
        ratio = Span.of(high.claims["peak_memory_bytes"]) / Span.of(low.claims["peak_memory_bytes"])
        if ratio.low > limit:
            yield Found(
                INCONSISTENT,
                tuple(run.id for run in by_size),
                ", ".join(
                    f"{run.claims['peak_memory_bytes'].printed} ({run.accelerator.name if run.accelerator else ''})" for run in by_size
                ),
                f"the same rows of the same model and method: {high.claims['peak_memory_bytes'].value / 1e9:.0f} / {low.claims['peak_memory_bytes'].value / 1e9:.0f} GB = {ratio.value:.2f} times; tensors do not change with the device",
                {"ratio": ratio.value},
            )


RULES = (
    Rule(
        "qlora-memory",
        "QLoRA in more memory than LoRA",
        "ordering",
        "4-bit weights take a quarter of 16-bit ones, and all else is the same (Dettmers et al. 2023).",
        (SUSPICIOUS,),
        qlora_memory,
    ),
    Rule(
        "lora-memory",
        "LoRA in more memory than full fine-tuning",
        "ordering",
        "Frozen weights have no gradients and no optimizer states (Hu et al. 2021, section 4.2).",
        (SUSPICIOUS,),
        lora_memory,
    ),
    Rule(
        "slower-with-less-work",
        "slower than a method that does more work",
        "ordering",
        "Frozen weights need no weight gradients: a third less work than full fine-tuning, a quarter less with recompute.",
        (SUSPICIOUS,),
        slower,
    ),
    Rule(
        "memory-across-devices",
        "the same work in far different memory",
        "ordering",
        "Tensors of a micro-step have the same size on every device.",
        (INCONSISTENT,),
        memory_across_devices,
    ),
    Rule(
        "memory-of-larger-model",
        "a model with more parameters in less memory",
        "ordering",
        "Where width, depth and vocabulary are the same, activations are about the same and weights, gradients and states grow with the parameters.",
        (SUSPICIOUS,),
        memory_across_models,
    ),
)
