"""Catalogue: the existence, capabilities and release dates of instances, devices, models and versions."""

import re
from collections.abc import Iterator
from operator import attrgetter

from tunemark.collector.audit.evidence import AuditedResult, Evidence, grouped, source_of
from tunemark.collector.audit.interval import GB_OR_GIB, Interval
from tunemark.collector.audit.printed_figures import precision_class
from tunemark.collector.audit.rule import AMBIGUOUS, IMPOSSIBLE, INCONSISTENT, SUSPICIOUS, Finding, about_figures, rule
from tunemark.schema.errors import bare
from tunemark.schema.facts.cards import PriceRow
from tunemark.schema.facts.names import agrees, suggest_instance
from tunemark.schema.formats import GIB
from tunemark.schema.physics.architecture import FAMILIES
from tunemark.schema.records.claims import Advice, Device
from tunemark.schema.vocabulary import Dtype

PERFORMANCE_STATE = re.compile(r"/\s*(P(?:[2-9]|1[0-5]))\b")
"""Performance states of NVIDIA devices, P0 to P15 from fastest to idle (nvidia-smi's manual)."""
NUMBER = re.compile(r"[0-9]+")
INSTANCE = re.compile(r"\b[a-z]{1,3}\d[a-z0-9]*(?:-[a-z0-9]+)?[.-]\d*x?large\b", re.IGNORECASE)
"""AWS instance names within other words, such as a device named after its instance."""
CHECKPOINT = attrgetter("source", "conditions.model", "conditions.method")
SERIES_LENGTH = 3
"""Minimum number of lengths of one model in a document that are a series."""
SPLIT_ROWS = ("sequence_parallel", "context_parallel")
"""Settings that split a long row over devices."""
PRE_TRAINING = "pre-training steps"
DATA_TOLERANCE = 0.05
"""Share by which printed bandwidth and power may differ from the card."""


@rule(id="instance-exists", family="catalogue", verdicts=(IMPOSSIBLE, SUSPICIOUS))
def instance_exists(evidence: Evidence) -> Iterator[Finding]:
    """Instance that no provider offers.

    A rented machine is one of the instances that its provider lists (data/prices).
    """
    labelled = [(result.id, result.source, result.labels) for result in evidence.results]
    labelled += [(statement.id, source_of(statement.id), statement.labels) for statement in evidence.statements.values()]
    printed: dict[tuple[str, str], list[str]] = {}
    for record, source, labels in labelled:
        names = {match[0] for text in labels.values() for match in INSTANCE.finditer(text)}
        for name in sorted(names | ({labels["instance"]} if "instance" in labels else set())):
            printed.setdefault((source, name), []).append(record)
    if not printed:
        return
    instances = evidence.facts.instances
    known, plain = {name.lower() for name in instances}, {bare(name): name for name in instances}
    for (_, name), records in printed.items():
        if name.lower() in known:
            continue
        numbers = {"printed": name}
        # Instances that differ in only one number, as the sizes of a family do.
        sizes = sorted(other for other in instances if _without_one_number(name) & _without_one_number(other))
        if bare(name) in plain:
            right = plain[bare(name)]
            verdict, words, numbers["name"] = SUSPICIOUS, f"the provider writes {right!r}, not {name!r}", right
        elif (refused := evidence.facts.refused_aws_size(name)) is not None:
            verdict, words, numbers["near"] = IMPOSSIBLE, refused, suggest_instance(name, instances)
        elif sizes:
            verdict, words, numbers["near"] = SUSPICIOUS, f"the price book has {', '.join(sizes)} and no {name}", sizes[0]
        else:
            continue
        yield Finding(verdict, tuple(records), f"instance {name!r}", words, numbers, conditions=("instance",))


def _without_one_number(name: str) -> set[str]:
    text = name.lower()
    return {f"{text[: digits.start()]}#{text[digits.end() :]}" for digits in NUMBER.finditer(text)}


@rule(id="instance-holds", family="catalogue", verdicts=(INCONSISTENT, IMPOSSIBLE))
def instance_holds(evidence: Evidence) -> Iterator[Finding]:
    """Instance with other devices or memory than claimed.

    An instance has the devices and the memory that its provider lists.
    """
    rows = {row.instance.lower(): row for row in evidence.facts.prices}
    for result in evidence.results:
        used = result.conditions.instance or ""
        printed = result.labels.get("instance", used)
        row = rows.get(printed.lower()) or rows.get(used.lower())
        if row is None or result.accelerator is None:
            continue
        if row.accelerator != result.accelerator.key:
            card = evidence.facts.accelerators.get(row.accelerator)
            claim = f"{result.labels.get('accelerator', result.accelerator.name)} on {printed}"
            held = f"{row.instance} has {row.accelerator_count:g} x {card.name if card else row.accelerator}"
            words = f"{held}, but the run used {result.accelerator.name}"
            numbers = {"holds": row.accelerator, "claimed": result.accelerator.key}
            yield Finding(INCONSISTENT, (result.id,), claim, words, numbers, conditions=("instance", "accelerator"))
            continue
        count = result.conditions.accelerator_count
        if count and count > row.accelerator_count:
            claim, words = f"{count} devices on {printed}", f"{row.instance} has {row.accelerator_count:g}"
            counts = {"holds": row.accelerator_count, "claimed": count}
            yield Finding(IMPOSSIBLE, (result.id,), claim, words, counts, conditions=("instance", "accelerator_count"))
        yield from _wrong_totals(result, row, (evidence.facts.accelerators[row.accelerator].memory_gib or 0) * GIB)


def _wrong_totals(result: AuditedResult, row: PriceRow, memory_each: float) -> Iterator[Finding]:
    totals = (
        ("device_memory_total_bytes", memory_each * row.accelerator_count, "device memory"),
        ("device_memory_each_bytes", memory_each, "memory of one device"),
        ("host_memory_total_bytes", (row.memory_gib or 0) * GIB, "host memory"),
    )
    for quantity, listed, name in totals:
        claimed = result.interval(quantity)
        if claimed and listed and abs(claimed.value / listed - 1) > GB_OR_GIB:
            words = f"{row.instance} has {listed / GIB:g} GiB of {name}, but the claim is {claimed.value / GIB:.1f} GiB"
            numbers = {"there": listed, "claimed": claimed.value}
            yield about_figures(INCONSISTENT, result, (quantity,), words, numbers, ("instance",))


@rule(id="context-length", family="catalogue", verdicts=(AMBIGUOUS, SUSPICIOUS, INCONSISTENT))
def context_length(evidence: Evidence) -> Iterator[Finding]:
    """Rows longer than the model's context.

    A checkpoint is trained for a fixed number of positions. Learned positions do not exist beyond it. A series of lengths measures
    speed, which does not depend on what the checkpoint has learned. Pre-training builds the model for the length of its rows.
    """
    lengths = grouped(evidence.published, CHECKPOINT)
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
        learned = FAMILIES[model.family].learned_positions
        series = {other.conditions.sequence_length for other in lengths.get(CHECKPOINT(results[0]), [])}
        verdict, reason = SUSPICIOUS, "rotary positions beyond it run, but the model was never trained on them"
        if learned:
            verdict, reason = INCONSISTENT, "its position table has that size, so the run fails at once"
        elif len(series) >= SERIES_LENGTH or any((results[0].setting(name) or 1) > 1 for name in SPLIT_ROWS):
            verdict, reason = (
                AMBIGUOUS,
                f"{reason}. Read as a measurement of speed, the figure stands; the text does not say how positions are scaled",
            )
        yield Finding(
            verdict,
            tuple(result.id for result in results),
            f"{model.name} at {length:,} tokens",
            f"{length:,} > {model.context_length:,}, the context of {model.name}: {reason}",
            {"sequence_length": length, "context_length": model.context_length},
            # A run that fails has no figures at all.
            quantities=tuple(dict.fromkeys(name for result in results for name in result.claims)) if learned else (),
            conditions=("sequence_length", "model"),
        )


@rule(id="precision-on-device", family="catalogue", verdicts=(SUSPICIOUS,))
def precision_on_device(evidence: Evidence) -> Iterator[Finding]:
    """Precision that the device does not have.

    A format without matrix units is emulated, or another one was used.
    """
    for result in evidence.results:
        named, card = precision_class(result.conditions.precision), result.accelerator
        if card is None or named is None or "/" in named or not card.peak_tflops or Dtype(named) in card.peak_tflops:
            continue
        formats = ", ".join(dtype.value for dtype in card.peak_tflops)
        words = f"the matrix units of {card.name} have {formats}, but not {named}: another format was used, or it was emulated"
        claim, numbers = f"{result.conditions.precision} on {card.name}", {"claimed": named, "has": formats}
        yield Finding(SUSPICIOUS, (result.id,), claim, words, numbers, conditions=("precision", "accelerator"))


@rule(id="device-name", family="catalogue", verdicts=(SUSPICIOUS,))
def device_names(evidence: Evidence) -> Iterator[Finding]:
    """Device name that contains a performance state.

    A performance state is not part of the name that the manufacturer gave the device.
    """
    for result in evidence.results:
        name = result.labels.get("accelerator", "")
        match = PERFORMANCE_STATE.search(name)
        if match and result.accelerator is not None:
            words = f"the device is {result.accelerator.name}; {match[1]} is a performance state, which nvidia-smi shows next to the name of an idle device"
            numbers = {"printed": name, "state": match[1]}
            yield Finding(SUSPICIOUS, (result.id,), f"device {name!r}", words, numbers, conditions=("accelerator",))


@rule(id="device-memory", family="catalogue", verdicts=(IMPOSSIBLE,))
def printed_memory(evidence: Evidence) -> Iterator[Finding]:
    """Device with a memory size that is not sold.

    A device has the memory size that its card lists. Another size means another device.
    """
    cards = evidence.facts.accelerators
    printed = [
        (statement, key, advice.printed_memory_gb) for statement, advice in evidence.assertions(Advice) for key in advice.accelerators
    ]
    printed += [(statement, device.accelerator, device.printed_memory_gb) for statement, device in evidence.assertions(Device)]
    for statement, key, memory in printed:
        card = cards.get(key)
        if card is None or memory is None or agrees(memory, card):
            continue
        same_maker = [other for other in cards.values() if (other.architecture, other.vendor) == (card.architecture, card.vendor)]
        others = ", ".join(other.name for other in same_maker if other.memory_gib == memory)
        also = f", unlike {others} with {memory:g} GB" if others else ""
        words = f"the {card.name} has {card.memory_gib:g} GB{also} ({card.source})"
        numbers, quantities = {"claimed_gb": memory, "card_gib": card.memory_gib or 0}, ("device_memory_each_bytes",)
        yield Finding(IMPOSSIBLE, (statement.id,), f"{card.name} with {memory:g} GB", words, numbers, quantities, ("accelerator",))


@rule(id="device-data", family="catalogue", verdicts=(INCONSISTENT,))
def device_data(evidence: Evidence) -> Iterator[Finding]:
    """Device data that the card contradicts.

    Bandwidth, power and generation are fixed by the manufacturer.
    """
    for statement, device in evidence.assertions(Device):
        card = evidence.facts.accelerators.get(device.accelerator)
        if card is None:
            continue
        claimed, generation = device.tensor_core_generation, evidence.facts.known.generation(card.architecture)
        if claimed and generation and claimed != generation:
            words = f"{card.name} is {card.architecture}, which has tensor cores of generation {generation}"
            numbers = {"claimed": claimed, "generation": generation}
            yield Finding(
                INCONSISTENT, (statement.id,), f"tensor cores of generation {claimed}", words, numbers, conditions=("accelerator",)
            )
        fields = (
            ("memory_bandwidth_bytes_per_s", card.memory_bandwidth_gb_s, 1e9, "memory bandwidth", DATA_TOLERANCE),
            ("tdp_w", card.tdp_w, 1.0, "power", DATA_TOLERANCE),
            ("device_memory_each_bytes", card.memory_gib, GIB, "memory", GB_OR_GIB),
        )
        for quantity, listed, scale, name, tolerance in fields:
            claim = statement.claims.get(quantity)
            if claim is None or listed is None or Interval.of(claim).widened(tolerance).overlaps(Interval.exact(listed * scale)):
                continue
            words, values = f"the card of {card.name} has {listed:g} ({card.source})", {"claimed": claim.value, "card": listed * scale}
            yield Finding(INCONSISTENT, (statement.id,), f"{name} {claim.printed}", words, values, (quantity,), ("accelerator",))


@rule(id="versions", family="catalogue", verdicts=(SUSPICIOUS, IMPOSSIBLE))
def versions(evidence: Evidence) -> Iterator[Finding]:
    """Version that does not exist, or is newer than its document.

    Nothing can be used before it is released.
    """
    known = evidence.facts.known
    used: dict[tuple[str, str, str], list[str]] = {}
    for result in evidence.results:
        for library, version in {}.items() if result.measured else result.conditions.framework.items():
            used.setdefault((result.source, library, version), []).append(result.id)
    for statement in evidence.statements.values():
        if {"library", "version"} <= set(statement.labels):
            named = source_of(statement.id), statement.labels["library"], statement.labels["version"]
            used.setdefault(named, []).append(statement.id)
    for (source, library, version), ids in sorted(used.items()):
        records, document = tuple(ids), evidence.documents_by_id.get(source)
        number = re.match(r"[A-Za-z ]*([0-9][0-9.]*)", version)
        for series in known.series:
            if series.library == library and version.startswith(series.prefix) and number and number[1].rstrip(".") not in series.versions:
                words = f"{series.prefix} has {', '.join(series.versions)}; {number[1]} does not exist ({series.source})"
                yield Finding(SUSPICIOUS, records, f"{library} {version}", words, {"version": version}, conditions=("framework",))
        release = known.released_on(library, version)
        if document and document.stated_on and release and release.released_on > document.stated_on:
            days = (release.released_on - document.stated_on).days
            claim = f"{library} {version} in a document of {document.stated_on}"
            calculation = f"{library} {version} was released on {release.released_on} ({release.source}), {days} days after the stated date of the document"
            numbers = {"released_on": release.released_on.isoformat(), "stated_on": document.stated_on.isoformat()}
            yield Finding(IMPOSSIBLE, records, claim, calculation, numbers, conditions=("framework", "date"))


@rule(id="architecture-in-library", family="catalogue", verdicts=(IMPOSSIBLE,))
def before_the_architecture(evidence: Evidence) -> Iterator[Finding]:
    """Model in a library version that cannot load it.

    A library version can load only the architectures that existed in it at its release.
    """
    for support in evidence.facts.known.architectures:
        library = support.library
        used = [
            (result.id, result.conditions.framework[library], result.model.name)
            for result in evidence.results
            if result.model is not None
            and result.model.family == support.family
            and not result.measured
            and result.conditions.framework.get(library)
        ]
        for (version, model), results in grouped(used, lambda item: item[1:]).items():
            release = evidence.facts.known.released_on(library, version)
            if release is None or release.released_on >= support.added_on:
                continue
            days = (support.added_on - release.released_on).days
            claim = f"{model} with {library} {version}"
            words = (
                f"{library} {version} was released on {release.released_on} ({release.source}), {days} days before the architecture {support.family} "
                f"was added on {support.added_on} ({support.source}): that version cannot load it"
            )
            numbers = {"released_on": release.released_on.isoformat(), "added_on": support.added_on.isoformat()}
            yield Finding(IMPOSSIBLE, tuple(record for record, *_ in results), claim, words, numbers, conditions=("framework", "model"))


@rule(id="document-date", family="catalogue", verdicts=(SUSPICIOUS,))
def document_dates(evidence: Evidence) -> Iterator[Finding]:
    """Date before the document existed.

    A document cannot be finished before it is started.
    """
    for document in evidence.documents:
        stated, committed = document.stated_on, document.committed_on
        about = tuple(statement.id for statement in document.statements if "last_updated" in statement.labels)
        if stated and committed and stated < committed and about:
            words = f"its repository first contained it on {committed}, {(committed - stated).days} days later"
            numbers = {"stated_on": stated.isoformat(), "committed_on": committed.isoformat()}
            yield Finding(SUSPICIOUS, about, f"dated {stated}", words, numbers, conditions=("date",))
