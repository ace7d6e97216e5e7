"""Unstated conditions: the device or checkpoint behind a name, the length of a sample, and whether a batch is per device or global."""

import re
from collections.abc import Iterator
from itertools import combinations

from tunemark.collector.audit.bounds import flop_per_token, peak_flop_per_s, weight_bytes
from tunemark.collector.audit.evidence import METHOD_NAME, AuditedResult, Evidence, grouped
from tunemark.collector.audit.rule import AMBIGUOUS, Finding, rule
from tunemark.collector.audit.token_rates import samples_per_s
from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.formats import GIB
from tunemark.schema.vocabulary import Dtype, Method

SAME_PEAK = 1.1
"""Factor within which the peaks, bandwidths and memories of two devices with one name count as equal."""
FIRST_NUMBER = re.compile(r"(?<=\d)(?= )")
"""The end of the first word with a number, which ends the name that variants share: `A100 SXM4 40GB` is an A100."""
FITS = 0.9
"""Share of a printed peak memory that a device must have to be a possible reading."""
SXM_SYSTEMS = frozenset({"dgx", "hgx"})
"""Words for NVIDIA's systems, whose devices are SXM modules."""
SAMPLE_LENGTHS = (1_024, 2_048, 4_096)
"""Lengths that show how utilisation depends on an unstated length."""


@rule(id="device-not-said", family="definitions", verdicts=(AMBIGUOUS,))
def devices(evidence: Evidence) -> Iterator[Finding]:
    """Device name with several variants.

    Devices with the same name can differ in peak, bandwidth and memory, which changes the meaning of a time and of a peak memory.
    """
    cards = list(evidence.facts.accelerators.values())
    spelled = {card.key: _words(" ".join((card.key, card.name, *card.aliases))) for card in cards}
    known = frozenset().union(*spelled.values())
    for (_, _, _, words), rows in grouped(
        _not_said(evidence), lambda row: (row[0].source, row[1].key, row[0].section, _words(row[2]) & known)
    ).items():
        results, card, printed = [result for result, *_ in rows], rows[0][1], rows[0][2]
        peaks_printed = [result.claims["peak_memory_bytes"].value for result in results if "peak_memory_bytes" in result.claims]
        needed = FITS * max(peaks_printed, default=0.0)
        # A card without a peak cannot change the meaning of a time.
        kinds = [
            kind
            for kind in cards
            if kind.vendor == card.vendor
            and words <= spelled[kind.key]
            and (kind.memory_gib or 0) * GIB >= needed
            and Dtype.BF16 in kind.peak_tflops
        ]
        if len(kinds) < 2 or not any(_differ(first, second) for first, second in combinations(kinds, 2)):  # noqa: PLR2004 - one kind leaves nothing open
            continue
        peaks = [kind.peak_tflops[Dtype.BF16] for kind in kinds]
        shown = "; ".join(
            f"read as {kind.name}: {peak:g} TFLOP/s in bf16, {kind.memory_bandwidth_gb_s or 0:g} GB/s, {kind.memory_gib or 0:g} GiB"
            for kind, peak in zip(kinds, peaks, strict=True)
        )
        numbers = {f"bf16_tflops, {kind.key}": peak for kind, peak in zip(kinds, peaks, strict=True)}
        records = tuple(result.id for result in results)
        yield Finding(AMBIGUOUS, records, f"device {printed!r}", shown, numbers, conditions=("accelerator",))


def _not_said(evidence: Evidence) -> Iterator[tuple[AuditedResult, AcceleratorCard, str]]:
    """Yield results with the printed name of their device, unless the instance or the repository states which one it is."""
    for result in evidence.published:
        card, conditions = result.accelerator, result.conditions
        printed = result.labels.get("accelerator")
        if card is None or conditions.instance or "accelerator" in conditions.from_repository:
            continue
        if printed or "accelerator" in conditions.assumed:
            yield result, card, f"{printed or FIRST_NUMBER.split(card.name)[0]}"


def _words(name: str) -> frozenset[str]:
    """Return the parts of a name that can tell cards apart: `A100-SXM4-80GB` is a100, sxm4, sxm, 80gb."""
    joined = re.sub(r"(\d+)[ -]?g(?:i?b)?\b", r"\1gb", name.lower())
    parts = {part for part in re.split(r"[^a-z0-9]+", joined) if len(part) > 1}
    sockets = {part.rstrip("0123456789") for part in parts if part.startswith("sxm")} | {"sxm" for _ in parts & SXM_SYSTEMS}
    return frozenset(parts | sockets)


def _differ(first: AcceleratorCard, second: AcceleratorCard) -> bool:
    """Return True if the peak, bandwidth or memory of two cards differ."""
    pairs = (
        (first.peak_tflops[Dtype.BF16], second.peak_tflops[Dtype.BF16]),
        (first.memory_bandwidth_gb_s, second.memory_bandwidth_gb_s),
        (first.memory_gib, second.memory_gib),
    )
    return any(a and b and max(a, b) > SAME_PEAK * min(a, b) for a, b in pairs)


@rule(id="checkpoint-not-said", family="definitions", verdicts=(AMBIGUOUS,))
def checkpoints(evidence: Evidence) -> Iterator[Finding]:
    """Model name that several checkpoints share.

    Checkpoints with the same name may differ in context length, which determines the row lengths that they support.
    """
    for shared in evidence.facts.known.shared_names:
        unnamed = [
            result
            for result in evidence.published
            if result.conditions.model == shared.model
            and result.conditions.sequence_length is not None
            and not any(variant.word in result.labels.get("model", "").lower() for variant in shared.variants)
        ]
        for (_, length), results in grouped(unnamed, lambda result: (result.source, result.conditions.sequence_length or 0)).items():
            short = [variant for variant in shared.variants if variant.context_length < length]
            long = [variant for variant in shared.variants if variant.context_length >= length]
            if not short or not long:
                continue
            meanings = [f"read as {variant.word}: beyond its context of {variant.context_length:,}" for variant in short]
            meanings += [f"read as {variant.word}: within its context of {variant.context_length:,}" for variant in long]
            claim = f"model {results[0].labels.get('model', shared.model)!r} at {length:,} tokens"
            words = f"{'; '.join(meanings)} ({shared.source}). Their weights have the same shapes, so no other figure can distinguish them"
            numbers = {f"context, {variant.word}": variant.context_length for variant in shared.variants}
            yield Finding(AMBIGUOUS, tuple(result.id for result in results), claim, words, numbers, conditions=("model", "sequence_length"))


@rule(id="memory-of-which-device", family="definitions", verdicts=(AMBIGUOUS,))
def memory_ran_out(evidence: Evidence) -> Iterator[Finding]:
    """Out of memory on a device that is not named.

    Running out of memory is a statement about a model and a device together.
    """
    for result in evidence.published:
        if not result.out_of_memory or result.accelerator is not None or result.model is None:
            continue
        needed, words = weight_bytes(result.model, result.conditions.method, result.conditions.precision)
        if result.conditions.method is Method.FULL:
            # Each weight has a gradient of the same size.
            needed, words = 2 * needed, f"{words}, and the same for gradients"
        sizes = sorted({card.memory_gib * GIB for card in evidence.accelerators_of(result.source) if card.memory_gib})
        small, large = [size for size in sizes if size < needed], [size for size in sizes if size >= needed]
        if not small or not large:
            continue
        claim = f"out of memory: {result.model.name}, {result.method_name}"
        calculation = (
            f"weights {needed / 1e9:.1f} GB ({words}). No device is named. On the document's devices with {', '.join(f'{size / GIB:g}' for size in small)} GiB "
            f"the weights alone do not fit. On the one with {large[-1] / GIB:g} GiB they leave {(large[-1] - needed) / 1e9:.1f} GB for the rest, "
            "which may be enough"
        )
        numbers = {"weights_bytes": needed, **{f"memory_bytes, {number}": size for number, size in enumerate(sizes, start=1)}}
        yield Finding(AMBIGUOUS, (result.id,), claim, calculation, numbers, conditions=("accelerator",))


@rule(id="batch-scope", family="definitions", verdicts=(AMBIGUOUS,))
def batches(evidence: Evidence) -> Iterator[Finding]:
    """Batch that may be per device or global.

    A micro-batch is per device, a global batch covers all devices (definitions#throughput). The reading changes throughput by the number of
    devices.
    """
    unscoped = [
        result
        for result in evidence.published
        if result.devices > 1
        and result.conditions.micro_batch is not None
        and result.conditions.sequence_length is not None
        and result.conditions.global_batch is None
        and result.setting("data_parallel") is None
    ]
    for results in grouped(unscoped, lambda result: (result.source, result.section)).values():
        first = results[0]
        printed = first.labels.get("batch_size", "")
        rows = int(printed) if printed.isdigit() else first.conditions.micro_batch or 0
        claim = f"batch {rows} on {first.devices} devices"
        words = f"read as per device: {rows} x {first.devices} = {rows * first.devices} rows in a micro-step; read as global: {rows}"
        numbers = {"rows, of each": rows * first.devices, "rows, of all": rows}
        yield Finding(AMBIGUOUS, tuple(result.id for result in results), claim, words, numbers, conditions=("micro_batch", "global_batch"))


@rule(id="sample-length", family="definitions", verdicts=(AMBIGUOUS,))
def missing_length(evidence: Evidence) -> Iterator[Finding]:
    """Rate of samples without the length of a sample.

    Work grows with the length of a row. Without the length, a rate of rows does not describe a device.
    """
    for result in evidence.results:
        rate, peak, model = samples_per_s(result), peak_flop_per_s(result), result.model
        if rate is None or peak is None or model is None or result.conditions.sequence_length is not None:
            continue
        lengths = [length for length in SAMPLE_LENGTHS if length <= model.context_length] or [model.context_length]
        shares = {length: rate[0].value * length * flop_per_token(result, model, length) / peak for length in lengths}
        claim = "a rate of samples without the length of a sample"
        words = f"{rate[1]} = {rate[0].value:.3f} rows/s; " + ", ".join(
            f"{share:.1%} of the dense peak at {length:,} tokens" for length, share in shares.items()
        )
        numbers = {f"utilisation at {length}": share for length, share in shares.items()}
        yield Finding(AMBIGUOUS, (result.id,), claim, words, numbers, quantities=("samples_per_s",), conditions=("sequence_length",))


@rule(id="method-not-said", family="definitions", verdicts=(AMBIGUOUS,))
def method_not_said(evidence: Evidence) -> Iterator[Finding]:
    """Unstated method, LoRA or QLoRA.

    Parameter-efficient can mean LoRA or QLoRA, which have 16-bit or 4-bit weights and different speeds.
    """
    for result in evidence.published:
        if "method" not in result.conditions.assumed or result.model is None:
            continue
        sizes = {method: weight_bytes(result.model, method)[0] for method in (Method.LORA, Method.QLORA)}
        peak = result.readings("peak_memory_bytes")
        both_fit = bool(peak) and peak[0][1].value > max(sizes.values())
        claim = f"method: {result.labels.get('method', 'not stated')}"
        words = "; ".join(f"read as {METHOD_NAME[method]}: weights of {size / 1e9:.1f} GB" for method, size in sizes.items()) + (
            f". Both fit into {result.claims['peak_memory_bytes'].printed}" if both_fit else ""
        )
        numbers = {f"bytes, {method.value}": size for method, size in sizes.items()}
        yield Finding(AMBIGUOUS, (result.id,), claim, words, numbers, conditions=("method",))
