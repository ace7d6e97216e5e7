"""Catalogue: the existence, contents and dates of instances, devices, models and versions."""

import re
from collections.abc import Iterator
from datetime import date
from operator import attrgetter
from typing import NamedTuple

from tunemark.collector.audit.evidence import Evidence, grouped, source_of
from tunemark.collector.audit.interval import GB_OR_GIB, Interval
from tunemark.collector.audit.printed_figures import precision_class
from tunemark.collector.audit.rule import AMBIGUOUS, IMPOSSIBLE, INCONSISTENT, SUSPICIOUS, Finding, rule
from tunemark.schema.errors import bare
from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.facts.names import agrees, suggest_instance
from tunemark.schema.formats import GIB
from tunemark.schema.physics.architecture import FAMILIES
from tunemark.schema.records.claims import Advice, Device
from tunemark.schema.records.published import Statement
from tunemark.schema.vocabulary import AuditVerdict, Dtype

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
    yield from _unknown_instances(evidence)
    yield from _other_devices(evidence)


def _unknown_instances(evidence: Evidence) -> Iterator[Finding]:
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
        if bare(name) in plain:
            right = plain[bare(name)]
            verdict, words = SUSPICIOUS, f"the provider writes {right!r}, not {name!r}"
        elif (refused := evidence.facts.refused_aws_size(name)) is not None:
            verdict, words, right = IMPOSSIBLE, refused, suggest_instance(name, instances)
        else:
            continue
        yield Finding(verdict, tuple(records), f"instance {name!r}", words, conditions=("instance",))


def _other_devices(evidence: Evidence) -> Iterator[Finding]:
    """Yield results on an instance that has other devices, or fewer, than claimed."""
    rows = {row.instance.lower(): row for row in evidence.facts.prices}
    for result in evidence.results:
        printed = result.labels.get("instance", result.conditions.instance or "")
        row = rows.get(printed.lower()) or rows.get((result.conditions.instance or "").lower())
        if row is None or result.accelerator is None:
            continue
        card, count = evidence.facts.accelerators.get(row.accelerator), result.conditions.accelerator_count or 0
        other = row.accelerator != result.accelerator.key
        if other or count > row.accelerator_count:
            held = f"{row.instance} has {row.accelerator_count:g} x {card.name if card else row.accelerator}"
            claim = f"{count or ''} {result.labels.get('accelerator', result.accelerator.name)} on {printed}".strip()
            about = ("instance", "accelerator" if other else "accelerator_count")
            yield Finding(INCONSISTENT if other else IMPOSSIBLE, (result.id,), claim, held, conditions=about)


@rule(id="context-length", family="catalogue", verdicts=(AMBIGUOUS, SUSPICIOUS, INCONSISTENT))
def context_length(evidence: Evidence) -> Iterator[Finding]:
    """Rows longer than the model's context.

    A checkpoint is trained for a fixed number of positions. Learned positions do not exist beyond it. A series of lengths measures
    speed, which does not depend on what the checkpoint has learned. Pre-training builds the model for the length of its rows.
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
        elif len(series) >= SERIES_LENGTH or any((first.setting(name) or 1) > 1 for name in SPLIT_ROWS):
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
    printed = [
        (statement, key, advice.printed_memory_gb) for statement, advice in evidence.assertions(Advice) for key in advice.accelerators
    ]
    for statement, key, memory in printed:
        card = cards.get(key)
        if card is not None and memory is not None and not agrees(memory, card):
            words = f"the {card.name} has {card.memory_gib:g} GB ({card.source})"
            claim = f"{card.name} with {memory:g} GB"
            yield Finding(IMPOSSIBLE, (statement.id,), claim, words, ("device_memory_each_bytes",), about)
    for statement, device in evidence.assertions(Device):
        if device.accelerator in cards:
            yield from _against_card(evidence, statement, device, cards[device.accelerator])
    for result in evidence.results:
        named, card = precision_class(result.conditions.precision), result.accelerator
        if card is None:
            continue
        if named and "/" not in named and card.peak_tflops and Dtype(named) not in card.peak_tflops:
            formats = ", ".join(dtype.value for dtype in card.peak_tflops)
            words = f"the matrix units of {card.name} have {formats}, but not {named}: another format was used, or it was emulated"
            claim = f"{result.conditions.precision} on {card.name}"
            yield Finding(SUSPICIOUS, (result.id,), claim, words, conditions=("precision", "accelerator"))
        state = PERFORMANCE_STATE.search(result.labels.get("accelerator", ""))
        if state:
            words = (
                f"the device is {card.name}; {state[1]} is a performance state, which nvidia-smi shows next to the name of an idle device"
            )
            yield Finding(SUSPICIOUS, (result.id,), f"device {result.labels['accelerator']!r}", words, conditions=about)


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


class _Dates(NamedTuple):
    """A thing that was used before it existed, if its date is later."""

    verdict: AuditVerdict
    records: tuple[str, ...]
    thing: str
    exists_from: date
    use: str
    used_on: date
    conditions: tuple[str, ...]


@rule(id="dates", family="catalogue", verdicts=(SUSPICIOUS, IMPOSSIBLE))
def dates(evidence: Evidence) -> Iterator[Finding]:
    """Version, architecture or document that did not exist yet, or never did.

    Nothing can be used before it is released: a version in a document, an architecture in a version, a document before its first commit.
    """
    for each in _dated(evidence):
        if each.exists_from > each.used_on:
            days = (each.exists_from - each.used_on).days
            words = f"{each.thing} on {each.exists_from}, {days} days after {each.use} of {each.used_on}"
            yield Finding(each.verdict, each.records, f"{each.use} of {each.used_on}", words, conditions=each.conditions)
    for (_, library, version), records in _versions(evidence).items():
        number = re.match(r"[A-Za-z ]*([0-9][0-9.]*)", version)
        for series in evidence.facts.known.series:
            if series.library == library and version.startswith(series.prefix) and number and number[1].rstrip(".") not in series.versions:
                words = f"{series.prefix} has {', '.join(series.versions)}; {number[1]} does not exist ({series.source})"
                yield Finding(SUSPICIOUS, tuple(records), f"{library} {version}", words, conditions=("framework",))


def _versions(evidence: Evidence) -> dict[tuple[str, str, str], list[str]]:
    """Return the records by source, library and version."""
    used: dict[tuple[str, str, str], list[str]] = {}
    for result in evidence.results:
        for library, version in {}.items() if result.measured else result.conditions.framework.items():
            used.setdefault((result.source, library, version), []).append(result.id)
    for statement in evidence.statements.values():
        if {"library", "version"} <= set(statement.labels):
            key = source_of(statement.id), statement.labels["library"], statement.labels["version"]
            used.setdefault(key, []).append(statement.id)
    return dict(sorted(used.items()))


def _dated(evidence: Evidence) -> Iterator[_Dates]:
    known = evidence.facts.known
    for (source, library, version), records in _versions(evidence).items():
        document, release = evidence.documents_by_id.get(source), known.released_on(library, version)
        if document and document.stated_on and release:
            thing = f"{library} {version} was released ({release.source})"
            about = ("framework", "date")
            yield _Dates(
                IMPOSSIBLE, tuple(records), thing, release.released_on, f"{library} {version} in a document", document.stated_on, about
            )
        for support in known.architectures:
            models = {
                result.id: result.model.name
                for result in evidence.with_ids(records)
                if library == support.library and result.model and result.model.family == support.family
            }
            if release and models:
                thing = f"the architecture {support.family} was added ({support.source})"
                use = f"{', '.join(sorted(set(models.values())))} with {library} {version}"
                yield _Dates(IMPOSSIBLE, tuple(models), thing, support.added_on, use, release.released_on, ("framework", "model"))
    for document in evidence.documents:
        dated = tuple(statement.id for statement in document.statements if "last_updated" in statement.labels)
        if document.stated_on and document.committed_on and dated:
            thing = "its repository first contained it"
            yield _Dates(SUSPICIOUS, dated, thing, document.committed_on, "the document", document.stated_on, ("date",))
