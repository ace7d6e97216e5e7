"""Unstated conditions: what a name, a unit or a missing setting leaves open, with the consequence of each reading.

A new one is one function in `OPEN`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

from tunemark.collector.audit.bounds import flop_per_token, peak_flop_per_s, rates_below_peak, weight_bytes
from tunemark.collector.audit.evidence import AuditedResult, Evidence, grouped
from tunemark.collector.audit.interval import TIMES_TOLERANCE, Interval
from tunemark.collector.audit.rule import AMBIGUOUS, Finding, rule
from tunemark.collector.audit.token_rates import batch_readings, rows_by_rate, samples_per_s
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
FLOP_UNIT = re.compile(r"([0-9][0-9,.]*) ?([KMGTP])(?:F|FLOP|FLOPS|FLOPs)", re.IGNORECASE)
PREFIXES = "KMGTP"
SAME_VALUE = 0.01
"""Share by which a stored figure may differ from the printed one in the unit that was used."""


class Open(NamedTuple):
    """A condition or a figure with several readings, each with its consequence in words."""

    results: Sequence[AuditedResult]
    claim: str
    readings: Mapping[str, str]
    quantities: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()


def devices(evidence: Evidence) -> Iterator[Open]:
    """Yield device names with variants that differ in peak, bandwidth or memory."""
    cards = list(evidence.facts.accelerators.values())
    spelled = {card.key: _words(" ".join((card.key, card.name, *card.aliases))) for card in cards}
    known = frozenset().union(*spelled.values())
    not_said = [
        (result, result.accelerator, printed)
        for result in evidence.published
        # The instance or the repository may state which one it is.
        if result.accelerator and not result.conditions.instance and "accelerator" not in result.conditions.from_repository
        if (printed := result.labels.get("accelerator")) or "accelerator" in result.conditions.assumed
    ]
    named = [(result, card, printed or FIRST_NUMBER.split(card.name)[0]) for result, card, printed in not_said]
    groups = grouped(named, lambda row: (row[0].source, row[1].key, row[0].section, _words(row[2]) & known))
    for (_, _, _, words), rows in groups.items():
        results, (_, card, printed) = [result for result, *_ in rows], rows[0]
        needed = FITS * max((row.claims["peak_memory_bytes"].value for row in results if "peak_memory_bytes" in row.claims), default=0.0)
        # A card without a peak cannot change the meaning of a time.
        kinds = [
            kind
            for kind in cards
            if kind.vendor == card.vendor
            and words <= spelled[kind.key]
            and (kind.memory_gib or 0) * GIB >= needed
            and Dtype.BF16 in kind.peak_tflops
            # A device that cannot reach a rate of its own rows is not meant.
            and all(rates_below_peak(replace(row, accelerator=kind)) or not rates_below_peak(row) for row in results)
        ]
        if any(_differ(first, second) for first, second in combinations(kinds, 2)):
            readings = {
                kind.name: f"{kind.peak_tflops[Dtype.BF16]:g} TFLOP/s in bf16, {kind.memory_bandwidth_gb_s or 0:g} GB/s, {kind.memory_gib or 0:g} GiB"
                for kind in kinds
            }
            yield Open(results, f"device {printed!r}", readings, conditions=("accelerator",))


def _words(name: str) -> frozenset[str]:
    """Return the parts of a name that can tell cards apart: `A100-SXM4-80GB` is a100, sxm4, sxm, 80gb."""
    joined = re.sub(r"(\d+)[ -]?g(?:i?b)?\b", r"\1gb", name.lower())
    parts = {part for part in re.split(r"[^a-z0-9]+", joined) if len(part) > 1}
    sockets = {part.rstrip("0123456789") for part in parts if part.startswith("sxm")} | {"sxm" for _ in parts & SXM_SYSTEMS}
    return frozenset(parts | sockets)


def _differ(first: AcceleratorCard, second: AcceleratorCard) -> bool:
    """Return True if the peak, bandwidth or memory of two cards differ."""
    figures = ((card.peak_tflops[Dtype.BF16], card.memory_bandwidth_gb_s, card.memory_gib) for card in (first, second))
    return any(a and b and max(a, b) > SAME_PEAK * min(a, b) for a, b in zip(*figures, strict=True))


def checkpoints(evidence: Evidence) -> Iterator[Open]:
    """Yield model names that several checkpoints share, some of which end before the rows do. Their weights have the same shapes."""
    for shared in evidence.facts.known.shared_names:
        unnamed = [
            result
            for result in evidence.published
            if result.conditions.model == shared.model
            and result.conditions.sequence_length is not None
            and not any(variant.word in result.labels.get("model", "").lower() for variant in shared.variants)
        ]
        for (_, length), results in grouped(unnamed, lambda result: (result.source, result.conditions.sequence_length or 0)).items():
            within = {variant.word: variant.context_length >= length for variant in shared.variants}
            readings = {
                variant.word: f"{'within' if within[variant.word] else 'beyond'} its context of {variant.context_length:,}"
                for variant in shared.variants
            }
            if len(set(within.values())) > 1:
                claim = f"model {results[0].labels.get('model', shared.model)!r} at {length:,} tokens ({shared.source})"
                yield Open(results, claim, readings, conditions=("model", "sequence_length"))


def memory_of_which_device(evidence: Evidence) -> Iterator[Open]:
    """Yield results that ran out of memory on a device whose size is not named, where the document has several sizes."""
    for result in evidence.published:
        if not result.out_of_memory or result.accelerator is not None or result.model is None:
            continue
        needed, _ = weight_bytes(result.model, result.conditions.method, result.conditions.precision)
        # Each weight has a gradient of the same size.
        needed *= 2 if result.conditions.method is Method.FULL else 1
        sizes = sorted({card.memory_gib for card in evidence.accelerators_of(result.source) if card.memory_gib})
        if any(size * GIB < needed for size in sizes) and any(size * GIB >= needed for size in sizes):
            claim = f"out of memory: {result.model.name}, {result.method_name}, weights {needed / 1e9:.1f} GB, no device named"
            readings = {f"{size:g} GiB": f"{size * GIB / 1e9 - needed / 1e9:+.1f} GB beside the weights" for size in sizes}
            yield Open((result,), claim, readings, conditions=("accelerator",))


def batches(evidence: Evidence) -> Iterator[Open]:
    """Yield batches on several devices that may be per device or global (definitions#throughput)."""
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
        if any((known := rows_by_rate(row)) and _agrees(known, row) for row in results):
            continue
        printed = first.labels.get("batch_size", "")
        rows = int(printed) if printed.isdigit() else first.conditions.micro_batch or 0
        readings = {"per device": f"{rows * first.devices} rows in a micro-step", "global": f"{rows} rows in a micro-step"}
        yield Open(results, f"batch {rows} on {first.devices} devices", readings, conditions=("micro_batch", "global_batch"))


def _agrees(rows: Interval, result: AuditedResult) -> bool:
    """Return True if a reading of the batch gives the rows of a step."""
    return any(reading.widened(TIMES_TOLERANCE).overlaps(rows) for reading in batch_readings(result).values())


def lengths(evidence: Evidence) -> Iterator[Open]:
    """Yield rates of samples without the length of a sample, which determines its work."""
    for result in evidence.results:
        rate, peak, model = samples_per_s(result), peak_flop_per_s(result), result.model
        if rate is None or peak is None or model is None or result.conditions.sequence_length is not None:
            continue
        possible = [length for length in SAMPLE_LENGTHS if length <= model.context_length] or [model.context_length]
        shares = {length: rate[0].value * length * flop_per_token(result, model, length) / peak for length in possible}
        readings = {f"{length:,} tokens": f"{share:.1%} of the dense peak" for length, share in shares.items()}
        claim = f"{rate[1]} = {rate[0].value:.3f} rows/s without the length of a sample"
        yield Open((result,), claim, readings, ("samples_per_s",), ("sequence_length",))


def flop_units(evidence: Evidence) -> Iterator[Open]:
    """Yield FLOPs printed with a decimal prefix but counted in powers of two: G is 10^9 (SI brochure, 9th edition, table 7), Gi is 2^30."""
    for result in evidence.results:
        for name, claim in result.claims.items():
            match = FLOP_UNIT.fullmatch(claim.printed.strip())
            if match is None or claim.readings:
                continue
            printed, power = float(match[1].replace(",", "")), PREFIXES.index(match[2].upper()) + 1
            decimal, binary = printed * 1e3**power, printed * 2.0 ** (10 * power)
            if abs(claim.value / binary - 1) < SAME_VALUE:
                readings = {
                    f"10^{3 * power}": f"{decimal:.4e} FLOP, as the unit means",
                    f"2^{10 * power}": f"{binary:.4e} FLOP, {binary / decimal - 1:.1%} more, as the code of the trainer counts",
                }
                yield Open((result,), result.printed(name), readings, (name,))


OPEN: tuple[Callable[[Evidence], Iterator[Open]], ...] = (devices, checkpoints, memory_of_which_device, batches, lengths, flop_units)


@rule(id="not-said", family="definitions", verdicts=(AMBIGUOUS,))
def not_said(evidence: Evidence) -> Iterator[Finding]:
    """Condition that the document leaves open.

    The variant of a device, the checkpoint behind a name, the length of a sample, the scope of a batch and the unit change what a figure
    means. Each reading is shown with its consequence.
    """
    for find in OPEN:
        for each in find(evidence):
            words = "; ".join(f"read as {reading}: {consequence}" for reading, consequence in each.readings.items())
            records = tuple(result.id for result in each.results)
            yield Finding(AMBIGUOUS, records, each.claim, words, each.quantities, each.conditions)
