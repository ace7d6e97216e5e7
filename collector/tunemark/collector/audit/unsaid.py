"""What a source leaves open: which device or checkpoint of a name, whose memory ran out, and whether a batch is of one device or of all."""

from collections import defaultdict
from collections.abc import Iterator

from tunemark.collector.audit.evidence import Base, Run
from tunemark.collector.audit.physics_of import weight_bytes
from tunemark.collector.audit.rule import AMBIGUOUS, Found, Rule
from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.vocabulary import Dtype, Method

GIB = 2**30
FAR = 1.1
"""Kinds whose peaks are nearer than this say the same."""


def devices(base: Base) -> Iterator[Found]:
    """Yield devices that are sold in several kinds, of which the source does not say which; those too small fall out."""
    groups: dict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for run in base.published:
        if run.accelerator is not None and "accelerator" in run.conditions.assumed:
            groups[run.source, run.accelerator.key, run.section].append(run)
    for (_, key, _), runs in groups.items():
        card = base.facts.accelerators[key]
        needed = max((run.claims["peak_memory_bytes"].value for run in runs if "peak_memory_bytes" in run.claims), default=0.0)
        kinds = [one for one in base.facts.accelerators.values() if _same_name(one, card) and (one.memory_gib or 0) * GIB >= needed * 0.9]
        peaks = [one.peak_tflops.get(Dtype.BF16, 0.0) for one in kinds]
        if len(kinds) < 2 or max(peaks) <= min(peaks) * FAR:  # noqa: PLR2004 - one kind leaves nothing open
            continue
        yield Found(
            AMBIGUOUS,
            tuple(run.id for run in runs),
            f"device {runs[0].labels.get('accelerator', card.name)!r}",
            "; ".join(
                f"read as {one.name}: {one.peak_tflops.get(Dtype.BF16, 0):g} TFLOP/s in bf16, {one.memory_bandwidth_gb_s or 0:g} GB/s"
                for one in kinds
            ),
            {f"bf16_tflops, {one.key}": one.peak_tflops.get(Dtype.BF16, 0.0) for one in kinds},
        )


def _same_name(one: AcceleratorCard, card: AcceleratorCard) -> bool:
    return one.vendor == card.vendor and one.name.split()[0] == card.name.split()[0]


def batches(base: Base) -> Iterator[Found]:
    """Yield batches on several devices of which the source does not say whether they are of one device or of all."""
    groups: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in base.published:
        conditions = run.conditions
        open_ = (
            run.devices > 1
            and conditions.micro_batch is not None
            and conditions.global_batch is None
            and run.setting("data_parallel") is None
        )
        if open_ and conditions.sequence_length is not None:
            groups[run.source, run.section].append(run)
    for runs in groups.values():
        first = runs[0]
        printed = first.labels.get("batch_size", "")
        rows = int(printed) if printed.isdigit() else first.conditions.micro_batch or 0
        yield Found(
            AMBIGUOUS,
            tuple(run.id for run in runs),
            f"batch {rows} on {first.devices} devices",
            f"read as rows of each device: {rows} x {first.devices} = {rows * first.devices} rows in a micro-step; read as rows of all devices: {rows}",
            {"rows, of each": rows * first.devices, "rows, of all": rows},
        )


def checkpoints(base: Base) -> Iterator[Found]:
    """Yield models of a name that several checkpoints share, at a length that fits only some of them."""
    for shared in base.facts.known.shared_names:
        groups: dict[tuple[str, int], list[Run]] = defaultdict(list)
        for run in base.published:
            length, printed = run.conditions.sequence_length, run.labels.get("model", "").lower()
            named = any(variant.word in printed for variant in shared.variants)
            if run.conditions.model == shared.model and length is not None and not named:
                groups[run.source, length].append(run)
        for (_, length), runs in groups.items():
            short = [variant for variant in shared.variants if variant.context_length < length]
            long = [variant for variant in shared.variants if variant.context_length >= length]
            if not short or not long:
                continue
            yield Found(
                AMBIGUOUS,
                tuple(run.id for run in runs),
                f"model {runs[0].labels.get('model', shared.model)!r} at {length:,} tokens",
                "; ".join(
                    [f"read as {one.word}: beyond its context of {one.context_length:,}" for one in short]
                    + [f"read as {one.word}: within its context of {one.context_length:,}" for one in long]
                )
                + f" ({shared.source}). Their weights have the same shapes, so no other figure tells",
                {f"context, {one.word}": one.context_length for one in shared.variants},
            )


def memory_ran_out(base: Base) -> Iterator[Found]:
    """Yield runs that are out of memory on a device that nobody names: the weights fit on some devices of the document and not on others."""
    for run in base.published:
        if not run.out_of_memory or run.accelerator is not None or run.model is None:
            continue
        needed, words = weight_bytes(run.model, run.conditions.method)
        if run.conditions.method is Method.FULL:
            # Each weight has a gradient, which takes as much.
            needed, words = 2 * needed, f"{words}, and as much for gradients"
        sizes = sorted({card.memory_gib * GIB for card in base.accelerators_of(run.source) if card.memory_gib})
        small, large = [size for size in sizes if size < needed], [size for size in sizes if size >= needed]
        if small and large:
            shown = " and ".join(f"{size / GIB:g}" for size in small)
            yield Found(
                AMBIGUOUS,
                (run.id,),
                f"out of memory: {run.model.name}, {run.conditions.method.value}",
                f"weights {needed / 1e9:.1f} GB ({words}). No device is named: on the document's devices of {shown} GiB they alone do not fit; on that "
                f"of {large[-1] / GIB:g} GiB they leave {(large[-1] - needed) / 1e9:.1f} GB for the rest, which may be enough",
                {"weights_bytes": needed, **{f"memory_bytes, {number}": size for number, size in enumerate(sizes, start=1)}},
            )


RULES = (
    Rule(
        "device-not-said",
        "a device that is sold in several kinds",
        "definitions",
        "Kinds of one name differ in peak and bandwidth, and so in what a time means.",
        (AMBIGUOUS,),
        devices,
    ),
    Rule(
        "checkpoint-not-said",
        "a model whose name several checkpoints share",
        "definitions",
        "Checkpoints of one name may differ in the length of their context, which decides whether a length makes sense for them.",
        (AMBIGUOUS,),
        checkpoints,
    ),
    Rule(
        "memory-of-which-device",
        "out of memory, on a device that is not named",
        "definitions",
        "That memory runs out is a statement about a model and a device together.",
        (AMBIGUOUS,),
        memory_ran_out,
    ),
    Rule(
        "batch-scope",
        "a batch of one device or of all",
        "definitions",
        "Micro-batch is of one device, global batch of all (definitions.md 5); which was meant changes throughput by the number of devices.",
        (AMBIGUOUS,),
        batches,
    ),
)
