"""Catalogue: the existence, contents and dates of instances, devices, models and versions, and what a name or a missing setting leaves open."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from itertools import combinations
from operator import attrgetter

from tunemark.collector.audit.bounds import flop_per_token, peak_flop_per_s, rates_below_peak, weight_bytes
from tunemark.collector.audit.evidence import AuditedResult, Evidence, grouped, source_of
from tunemark.collector.audit.interval import GB_OR_GIB, TIMES_TOLERANCE, Interval
from tunemark.collector.audit.printed_figures import WORDS, precision_class
from tunemark.collector.audit.rule import AMBIGUOUS, IMPOSSIBLE, INCONSISTENT, SUSPICIOUS, Finding, rule
from tunemark.collector.audit.token_rates import batch_readings, rows_by_rate, samples_per_s
from tunemark.schema.errors import bare
from tunemark.schema.facts.cards import APPLE, AcceleratorCard
from tunemark.schema.facts.names import agrees
from tunemark.schema.formats import GIB
from tunemark.schema.physics.families import FAMILIES
from tunemark.schema.plan_search import NODE
from tunemark.schema.records.published import Advice, Device, Statement
from tunemark.schema.vocabulary import AuditVerdict, Dtype, Method

WHOLE_MACHINE = 2.0
"""Power of a machine at most, in that of its accelerators: a DGX H100 takes 10.2 kW with eight of 700 W, and its fans and links are counted."""
IDLE = 0.12
"""Power of a device without work in that of its board: an H100 SXM of 700 W shows 70 to 80 W."""
PERFORMANCE_STATE = re.compile(r"/\s*(P(?:[2-9]|1[0-5]))\b")
"""Performance states of NVIDIA devices, P0 to P15 from fastest to idle (nvidia-smi's manual)."""
INSTANCE = re.compile(r"\b[a-z]{1,3}\d[a-z0-9]*(?:-[a-z0-9]+)?[.-]\d*x?large\b", re.IGNORECASE)
"""AWS instance names within other words, such as a device named after its instance."""
SERIES_LENGTH = 3
"""Minimum number of lengths of one model in a document that are a series."""
SPLIT_ROWS = ("sequence_parallel", "context_parallel")
"""Settings that split a long row over devices."""
PRE_TRAINING = "pre-training steps"
DATA_TOLERANCE = 0.05
"""Share by which printed bandwidth and power may differ from the card."""


@rule(id="instance", family="catalogue", verdicts=(IMPOSSIBLE, INCONSISTENT, SUSPICIOUS))
def instances(evidence: Evidence) -> Iterator[Finding]:
    """Instance that no provider offers, or that has other devices than claimed.

    A rented machine is one of the instances that its provider lists, with the devices that it lists (data/prices).
    """
    facts, printed = evidence.facts, defaultdict[tuple[str, str], list[str]](list)
    labels = {each.id: each.labels for each in evidence.results} | {each.id: each.labels for each in evidence.statements.values()}
    for record, of_record in labels.items():
        names = {match[0] for text in of_record.values() for match in INSTANCE.finditer(text)}
        for name in sorted(names | ({of_record["instance"]} if "instance" in of_record else set())):
            printed[source_of(record), name].append(record)
    known, plain = {name.lower() for name in facts.instances}, {bare(name): name for name in facts.instances}
    for (_, name), records in printed.items():
        if name.lower() in known:
            continue
        if bare(name) in plain:
            verdict, words = SUSPICIOUS, f"the provider writes {plain[bare(name)]!r}, not {name!r}"
        elif (refused := facts.refused_aws_size(name)) is not None:
            verdict, words = IMPOSSIBLE, refused
        else:
            continue
        yield Finding(verdict, tuple(records), f"instance {name!r}", words, conditions=("instance",))
    for result in evidence.results:
        name = result.labels.get("instance", result.conditions.instance or "")
        row = facts.by_instance.get(name.lower()) or facts.by_instance.get((result.conditions.instance or "").lower())
        if row is None or result.accelerator is None:
            continue
        card, count = facts.accelerators.get(row.accelerator), result.conditions.accelerator_count or 0
        other = row.accelerator != result.accelerator.key
        if other or count > row.accelerator_count * (result.setting("nodes") or 1):
            held = f"{row.instance} has {row.accelerator_count:g} x {card.name if card else row.accelerator}"
            claim = f"{count or ''} {result.labels.get('accelerator', result.accelerator.name)} on {name}".strip()
            about = ("instance", "accelerator" if other else "accelerator_count")
            yield Finding(INCONSISTENT if other else IMPOSSIBLE, (result.id,), claim, held, conditions=about)


@rule(id="context-length", family="catalogue", verdicts=(AMBIGUOUS, SUSPICIOUS, INCONSISTENT))
def context_length(evidence: Evidence) -> Iterator[Finding]:
    """Rows longer than the model's context.

    A checkpoint is trained for a fixed number of positions. Learned positions do not exist beyond it. A result without a learning rate,
    losses or accuracies, or a series of lengths, measures speed, which does not depend on what the checkpoint has learned. Pre-training
    builds the model for the length of its rows.
    """
    lengths = grouped(evidence.published, attrgetter("source", "conditions.model", "conditions.method"))
    beyond = [
        (result, result.model, length)
        for result in evidence.results
        if result.model is not None
        and (length := result.conditions.sequence_length) is not None
        and length > result.model.context_length
        # A length that is fixed by the rules of a benchmark is no choice of its entries.
        and not (result.converted and "sequence_length" in result.conditions.assumed)
        and result.conditions.settings.get("task") != PRE_TRAINING
    ]
    for rows in grouped(beyond, lambda row: (row[0].source, row[1].key, row[2])).values():
        results, (_, model, length) = [result for result, *_ in rows], rows[0]
        first, learned = results[0], FAMILIES[model.family].learned_positions
        group = lengths.get((first.source, first.conditions.model, first.conditions.method), [])
        series = {other.conditions.sequence_length for other in group}
        verdict, reason = SUSPICIOUS, "rotary positions beyond it run, but the model was never trained on them"
        if learned:
            verdict, reason = INCONSISTENT, "its position table has that size, so the run fails at once"
        elif (
            not any(result.learns for result in results)
            or len(series) >= SERIES_LENGTH
            or any((first.setting(name) or 1) > 1 for name in SPLIT_ROWS)
        ):
            verdict = AMBIGUOUS
            reason += ". Read as a measurement of speed, the figure stands; the text does not say how positions are scaled"
        yield Finding(
            verdict,
            tuple(result.id for result in results),
            f"{model.name} at {length:,} tokens",
            f"{length:,} > {model.context_length:,}, the context of {model.name}: {reason}",
            # A run that fails has no figures at all.
            quantities=tuple(dict.fromkeys(name for result in results for name in result.claims)) if learned else (),
            conditions=("sequence_length", "model"),
        )


@rule(id="device-data", family="catalogue", verdicts=(IMPOSSIBLE, INCONSISTENT, SUSPICIOUS))
def device_data(evidence: Evidence) -> Iterator[Finding]:
    """Device with a memory, a power, a number format or a name that it does not have.

    Memory, bandwidth, power and generation are fixed by the manufacturer. A format without matrix units is emulated, or another one was
    used. A performance state is not part of a name.
    """
    cards, about = evidence.facts.accelerators, ("accelerator",)
    for statement, advice in evidence.assertions(Advice):
        for card in (cards[key] for key in advice.accelerators if key in cards):
            memory = advice.printed_memory_gb
            if memory is not None and not agrees(memory, card):
                words, claim = f"the {card.name} has {card.memory_gib:g} GB ({card.source})", f"{card.name} with {memory:g} GB"
                yield Finding(IMPOSSIBLE, (statement.id,), claim, words, ("device_memory_each_bytes",), about)
    for statement, device in evidence.assertions(Device):
        if device.accelerator in cards:
            yield from _against_card(evidence, statement, device, cards[device.accelerator])
    for result in evidence.results:
        if result.accelerator is not None:
            yield from _unlike(evidence, result, result.accelerator)


def _unlike(evidence: Evidence, result: AuditedResult, own: AcceleratorCard) -> Iterator[Finding]:
    """Yield findings on what a result states of a device that it does not have."""
    named, kernel = precision_class(result.conditions.precision), str(result.conditions.settings.get("attention"))
    if named and "/" not in named and own.vendor != APPLE and own.peak_tflops and Dtype(named) not in own.peak_tflops:
        formats = ", ".join(dtype.value for dtype in own.peak_tflops)
        words = f"the matrix units of {own.name} have {formats}, but not {named}: another format was used, or it was emulated"
        yield Finding(SUSPICIOUS, (result.id,), f"{named} on {own.name}", words, conditions=("precision", "accelerator"))
    generation = evidence.facts.known.generation(own.architecture)
    least = next((first for pattern, first in WORDS["kernels"].items() if re.fullmatch(pattern, kernel)), 0)
    if generation and generation < least:
        words = f"{own.name} has tensor cores of generation {generation}, and {kernel} needs {least}: another kernel was used"
        yield Finding(SUSPICIOUS, (result.id,), f"{kernel} on {own.name}", words, conditions=("attention", "accelerator"))
    energy, time = result.interval("energy_j"), result.interval("train_time_s")
    power, limit = result.interval("power_w") or (energy / time if energy and time else None), (own.tdp_w or 0) * result.devices
    if power and limit and power.low > limit * (1 + DATA_TOLERANCE):
        words = f"a mean of {power.value:,.0f} W, but {result.devices} x {own.name} have {limit:,.0f} W: a limit was raised, or the host, its fans and the cooling were measured too"
        names, whole = ("power_w", "energy_j", "train_time_s"), result.devices >= NODE and power.low <= WHOLE_MACHINE * limit
        yield Finding(AMBIGUOUS if whole else SUSPICIOUS, (result.id,), result.printed(*names), words, names[:2], ("accelerator",))
    if power and limit and power.high < IDLE * limit:
        words = f"a mean of {power.value:,.0f} W, but {result.devices} x {own.name} without work take about {IDLE * limit:,.0f} W"
        yield Finding(SUSPICIOUS, (result.id,), result.printed("power_w", "energy_j"), words, ("power_w", "energy_j"), ("accelerator",))
    if state := PERFORMANCE_STATE.search(result.labels.get("accelerator", "")):
        words = f"the device is {own.name}; {state[1]} is a performance state, which nvidia-smi shows next to the name of an idle device"
        yield Finding(SUSPICIOUS, (result.id,), f"device {result.labels['accelerator']!r}", words, conditions=("accelerator",))


def _against_card(evidence: Evidence, statement: Statement, device: Device, card: AcceleratorCard) -> Iterator[Finding]:
    claimed, generation = device.tensor_core_generation, evidence.facts.known.generation(card.architecture)
    if claimed and generation and claimed != generation:
        words = f"{card.name} is {card.architecture}, of generation {generation}"
        yield Finding(INCONSISTENT, (statement.id,), f"tensor cores of generation {claimed}", words, conditions=("accelerator",))
    fields = (
        ("memory_bandwidth_bytes_per_s", card.memory_bandwidth_gb_s, 1e9, DATA_TOLERANCE),
        ("tdp_w", card.tdp_w, 1.0, DATA_TOLERANCE),
        ("device_memory_each_bytes", card.memory_gib, GIB, GB_OR_GIB),
    )
    for quantity, listed, scale, tolerance in fields:
        claim = statement.claims.get(quantity)
        if claim and listed and not Interval.of(claim).widened(tolerance).overlaps(Interval.exact(listed * scale)):
            words = f"the card of {card.name} has {listed:g} ({card.source})"
            yield Finding(INCONSISTENT, (statement.id,), claim.printed, words, (quantity,), ("accelerator",))


@rule(id="dates", family="catalogue", verdicts=(SUSPICIOUS, IMPOSSIBLE))
def dates(evidence: Evidence) -> Iterator[Finding]:
    """Version, architecture or document that did not exist yet, or never did.

    Nothing can be used before it is released: a version in a document, an architecture in a version, a document before its first commit.
    """
    for verdict, records, thing, exists_from, use, used_on, conditions in _dated(evidence):
        if exists_from > used_on:
            words = f"{thing} on {exists_from}, {(exists_from - used_on).days} days after {use} of {used_on}"
            yield Finding(verdict, records, f"{use} of {used_on}", words, conditions=conditions)
    for (_, library, version), named in _versions(evidence).items():
        for series in (each for each in evidence.facts.known.series if each.library == library):
            point = re.match(rf"{re.escape(series.prefix)}\.(\d+)", version)
            if point and int(point[1]) > series.last_point:
                words = f"{series.prefix}.{series.last_point} is the last point release: {point[0]} does not exist ({series.source})"
                yield Finding(SUSPICIOUS, tuple(named), f"{library} {version}", words, conditions=("framework",))


def _versions(evidence: Evidence) -> dict[tuple[str, str, str], list[str]]:
    """Return the records by source, library and version."""
    used: dict[tuple[str, str, str], list[str]] = {}
    for result in (each for each in evidence.results if not each.measured):
        for library, version in result.conditions.framework.items():
            used.setdefault((result.source, library, version), []).append(result.id)
    return dict(sorted(used.items()))


def _dated(evidence: Evidence) -> Iterator[tuple[AuditVerdict, tuple[str, ...], str, date, str, date, tuple[str, ...]]]:
    """Yield verdict, records, a thing, the day since when it exists, its use, the day of the use, and the conditions concerned."""
    known = evidence.facts.known
    for (source, library, version), records in _versions(evidence).items():
        document, release = evidence.documents_by_id.get(source), known.released_on(library, version)
        if release is None:
            continue
        if document and document.stated_on:
            thing, use = f"{library} {version} was released ({release.source})", f"{library} {version} in a document"
            yield IMPOSSIBLE, tuple(records), thing, release.released_on, use, document.stated_on, ("framework", "date")
        for support in (support for support in known.architectures if support.library == library):
            results = evidence.with_ids(records)
            models = {result.id: result.model.name for result in results if result.model and result.model.family == support.family}
            if models:
                thing = f"the architecture {support.family} was added ({support.source})"
                use = f"{', '.join(sorted(set(models.values())))} with {library} {version}"
                yield IMPOSSIBLE, tuple(models), thing, support.added_on, use, release.released_on, ("framework", "model")
    for result in evidence.published:
        document, card = evidence.documents_by_id.get(result.source), result.accelerator
        if document and document.stated_on and card and card.launch_year:
            thing, first = f"the {card.name} was launched ({card.source})", date(card.launch_year, 1, 1)
            yield SUSPICIOUS, (result.id,), thing, first, f"the {card.name} in a document", document.stated_on, ("accelerator", "date")
    for document in evidence.documents:
        dated = tuple(statement.id for statement in document.statements if "last_updated" in statement.labels)
        if document.stated_on and document.committed_on and dated:
            thing = "its repository first contained it"
            yield SUSPICIOUS, dated, thing, document.committed_on, "the document", document.stated_on, ("date",)


# What is not said ---------------------------------------------------------------------------------


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
Names = tuple[str, ...]
SAME_VALUE = 0.01
"""Share by which a stored figure may differ from the printed one in the unit that was used."""


def open_to(results: list[AuditedResult], claim: str, readings: dict[str, str], quantities: Names = (), conditions: Names = ()) -> Finding:
    """Return a finding about a condition or a figure with several readings, each with its consequence in words."""
    words = "; ".join(f"read as {reading}: {consequence}" for reading, consequence in readings.items())
    return Finding(AMBIGUOUS, tuple(result.id for result in results), claim, words, quantities, conditions)


def devices(evidence: Evidence) -> Iterator[Finding]:
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
            figures = [(each.name, each.peak_tflops[Dtype.BF16], each.memory_bandwidth_gb_s or 0, each.memory_gib or 0) for each in kinds]
            readings = {name: f"{peak:g} TFLOP/s in bf16, {speed:g} GB/s, {memory:g} GiB" for name, peak, speed, memory in figures}
            yield open_to(results, f"device {printed!r}", readings, conditions=("accelerator",))


def _words(name: str) -> frozenset[str]:
    """Return the parts of a name that can tell cards apart: `4xA100-SXM4-80GB` is a100, sxm4, sxm, 80gb."""
    joined = re.sub(r"\b\d+x(?=[a-z])", "", re.sub(r"(\d+)[ -]?g(?:i?b)?\b", r"\1gb", name.lower()))
    parts = {part for part in re.split(r"[^a-z0-9]+", joined) if len(part) > 1}
    sockets = {part.rstrip("0123456789") for part in parts if part.startswith("sxm")} | {"sxm" for _ in parts & SXM_SYSTEMS}
    return frozenset(parts | sockets)


def _differ(first: AcceleratorCard, second: AcceleratorCard) -> bool:
    """Return True if the peak, bandwidth or memory of two cards differ."""
    figures = ((card.peak_tflops[Dtype.BF16], card.memory_bandwidth_gb_s, card.memory_gib) for card in (first, second))
    return any(a and b and max(a, b) > SAME_PEAK * min(a, b) for a, b in zip(*figures, strict=True))


def checkpoints(evidence: Evidence) -> Iterator[Finding]:
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
                yield open_to(results, claim, readings, conditions=("model", "sequence_length"))


def memory_of_which_device(evidence: Evidence) -> Iterator[Finding]:
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
            yield open_to([result], claim, readings, conditions=("accelerator",))


def batches(evidence: Evidence) -> Iterator[Finding]:
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
        # A reading of the batch that gives the rows of a step settles it.
        settled = [(known, reading) for row in results if (known := rows_by_rate(row)) for reading in batch_readings(row).values()]
        if any(reading.widened(TIMES_TOLERANCE).overlaps(known) for known, reading in settled):
            continue
        printed = first.labels.get("batch_size", "")
        rows = int(printed) if printed.isdigit() else first.conditions.micro_batch or 0
        readings = {"per device": f"{rows * first.devices} rows in a micro-step", "global": f"{rows} rows in a micro-step"}
        yield open_to(results, f"batch {rows} on {first.devices} devices", readings, conditions=("micro_batch", "global_batch"))


def lengths(evidence: Evidence) -> Iterator[Finding]:
    """Yield rates of samples without the length of a sample, which determines its work."""
    for result in evidence.results:
        rate, peak, model = samples_per_s(result), peak_flop_per_s(result), result.model
        if rate is None or peak is None or model is None or result.conditions.sequence_length is not None:
            continue
        possible = [length for length in SAMPLE_LENGTHS if length <= model.context_length] or [model.context_length]
        shares = {length: rate[0].value * length * flop_per_token(result, model, length) / peak for length in possible}
        readings = {f"{length:,} tokens": f"{share:.1%} of the dense peak" for length, share in shares.items()}
        claim = f"{rate[1]} = {rate[0].value:.3f} rows/s without the length of a sample"
        yield open_to([result], claim, readings, ("samples_per_s",), ("sequence_length",))


def flop_units(evidence: Evidence) -> Iterator[Finding]:
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
                yield open_to([result], result.printed(name), readings, (name,))


OPEN: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (devices, checkpoints, memory_of_which_device, batches, lengths, flop_units)


@rule(id="not-said", family="definitions", verdicts=(AMBIGUOUS,))
def not_said(evidence: Evidence) -> Iterator[Finding]:
    """Condition that the document leaves open.

    The variant of a device, the checkpoint behind a name, the length of a sample, the scope of a batch and the unit change what a figure
    means. Each reading is shown with its consequence.
    """
    for find in OPEN:
        yield from find(evidence)
