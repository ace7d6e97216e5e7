"""Checks of published and converted results, and of the documents that they come from.

Claims are compared with their printed text, conditions with the labels of the row and the cards, and a document with its rows.
What a document prints is never judged here, only whether it was copied correctly.
"""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import cache
from itertools import pairwise
from pathlib import Path

from packaging.version import Version
from pydantic import BaseModel

from tunemark.collector.gate.fact_checks import day_problems, printed_sizes, text_problems
from tunemark.collector.importers.table_text import PER_DEVICE, printed_value
from tunemark.schema.errors import did_you_mean
from tunemark.schema.facts.cards import AcceleratorCard, ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.world_facts import Library
from tunemark.schema.formats import GIB
from tunemark.schema.physics.architecture import count_parameters
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.records.claims import Claim, Reading
from tunemark.schema.records.converted import ConvertedResult
from tunemark.schema.records.published import Conditions, PublishedResult, PublishedSet, SourceDocument, Statement, published_results
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.vocabulary import Method, PublishedStatus

ROUNDING = 5e-6
"""Relative rounding of a printed figure: the importers of logs print six significant digits."""
WHOLE_BYTE = 1.0
AHEAD = 2
MOST_DEVICES = 1_000_000
LONGEST_ROW = 2**24
METHOD_LABELS = ("method", "mode", "finetuning_method", "peft_method", "train_type")
BATCH_LABELS = ("batch_size", "micro_batch", "batch")
COUNT_LABELS = ("num_gpus", "accelerator_count")
DEVICE_LABELS = ("accelerator", "gpu", "gpus", "device_type", "accelerator_type", "hardware")
MODEL_LABELS = ("model", "model_id", "model_name_or_path", "models", "recipe")
"""Names of labels that hold a table's words about a condition."""
FAILURE = re.compile(r"(?i)oom|out of memory|failed|error|crash(?:ed)?")
RATES = ("tokens/s", "samples/s", "FLOP/s", "steps/s")
DEVICE_WORD = re.compile(r"(?:rtx|gb|gh|mi|[abhltm])a?\d{1,4}[a-z]{0,2}|v\d{3}|v\d[a-z]{1,2}|gaudi\d?")
LABEL_FACTOR = 1.4
"""Names of models round their size: `7B` may leave out embeddings (8.5e9), `8x7B` shares its attention."""
SIZE_WORDS = r"\b(?:base|large|medium|small|mini|xl)\b"
FIRST_DOCUMENT = date(2015, 1, 1)
"""No document about training on the devices and models of the cards is older."""
FIRST_ROUNDS = 2020
"""Round v4 of MLPerf Training was four years later, and so on."""
SHARES = ("accuracy", "f1", "exact_match", "token_accuracy")
"""Shares of rows or tokens, which nothing can exceed. An MFU above 1 is a claim that the audit judges."""


def fact_record_problems(record: BaseModel, content: bytes, path: Path, facts: FactBase) -> Iterator[Problem]:
    """Yield the problems of the file of a document, of a published or converted result, or of a set of results."""
    for line, problem in text_problems(content.decode()):
        yield replace(problem, field=f"line {line}: {problem.field}")
    results = published_results(record)
    for result in results:
        for problem in (*result_problems(result), *_printed_cards(result, facts), *condition_problems(result.conditions, facts)):
            yield replace(problem, field=f"{result.id}: {problem.field}") if isinstance(record, PublishedSet) else problem
    if isinstance(record, SourceDocument):
        yield from _document(record)
    elif isinstance(record, ConvertedResult):
        yield from condition_problems(record.conditions, facts)
        yield from _converted(record, facts)
    yield from _place(path, [record.id] if isinstance(record, SourceDocument) else [result.id for result in results])


def result_problems(result: PublishedResult | Statement) -> Iterator[Problem]:
    """Yield problems of the claims of a result or a statement."""
    conditions = result.conditions if isinstance(result, PublishedResult) else None
    if isinstance(result, PublishedResult):
        yield from _labels(result)
        yield from _status(result)
    for quantity, claim in result.claims.items():
        for problem in claim_problems(quantity, claim, conditions):
            yield Problem(f"claims.{quantity}.{problem.field}", problem.value, problem.fix)


def _labels(result: PublishedResult) -> Iterator[Problem]:
    """Yield conditions that the words of the document's own table contradict: method, number of devices, tokens per row."""
    labels, conditions = result.labels, result.conditions
    printed = [*_printed(labels, METHOD_LABELS, r"(?i)\b(q?lora|full)\b")]
    for name, words in printed:
        # Tables call adapters on quantised weights LoRA too.
        alike = {"lora": {Method.LORA, Method.QLORA}, "qlora": {Method.QLORA}, "full": {Method.FULL}}[words[1].lower()]
        if conditions.method is not None and conditions.method not in alike:
            yield Problem("conditions.method", repr(conditions.method.value), f"the label {name} of the table is {labels[name]!r}")
    devices = [
        *_printed(labels, ("accelerator",), r"\bx ?(\d+)\b|\u00d7 ?(\d+)\b|^(\d+) ?[x\u00d7]"),
        *_printed(labels, COUNT_LABELS, r"^(\d+)x?$"),
    ]
    for name, words in devices:
        count = next(int(number) for number in words.groups() if number)
        if conditions.accelerator_count not in {None, count}:
            yield Problem("conditions.accelerator_count", str(conditions.accelerator_count), f"the label {name} is {labels[name]!r}")
    micro, accumulated, count = conditions.micro_batch or 0, conditions.gradient_accumulation or 1, conditions.accelerator_count or 1
    batches = {micro, micro * accumulated, micro * count, micro * accumulated * count, conditions.global_batch}
    for name, words in _printed(labels, BATCH_LABELS, r"^(\d+)$"):
        if micro and int(words[1]) not in batches:
            yield Problem("conditions.micro_batch", str(micro), f"the label {name} of the table is {labels[name]!r}")
    for name, words in _printed(labels, ("sequence_length", "seqlen"), r"^(\d+)([kKM]?)$"):
        tokens = int(words[1]) * (10**6 if words[2] == "M" else 1)
        if conditions.sequence_length not in {None, *(tokens * unit for unit in (1, 1000, 1024, 1.048576))}:
            yield Problem("conditions.sequence_length", str(conditions.sequence_length), f"the label {name} is {labels[name]!r}")


def _printed(labels: Mapping[str, str], names: Collection[str], pattern: str) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield the labels of some names in which a pattern occurs, with the match."""
    for name in names:
        if match := re.search(pattern, labels.get(name) or ""):
            yield name, match


def _status(result: PublishedResult) -> Iterator[Problem]:
    """Yield a problem for a status that the labels or the claims of the row contradict."""
    words = {name: text for name, text in result.labels.items() if FAILURE.fullmatch(text.strip())}
    if words and result.status not in {PublishedStatus.OOM, PublishedStatus.FAILED, PublishedStatus.PARTIAL}:
        name = next(iter(words))
        yield Problem(
            "status", repr(result.status.value), f"the label {name} of the row is {words[name]!r}; a run that failed has no result"
        )
    elif result.status is PublishedStatus.FAILED and any("OOM" in text for text in words.values()):
        yield Problem("status", repr(result.status.value), "the labels of the row say OOM; write 'oom'")
    rates = sorted(quantity for quantity in result.claims if QUANTITIES[quantity].unit in RATES or quantity == "step_time_s")
    if result.status in {PublishedStatus.OOM, PublishedStatus.FAILED} and rates:
        yield Problem("status", repr(result.status.value), f"the row has {', '.join(rates)}, and a run that failed has no speed")
    if result.status in {PublishedStatus.OK, PublishedStatus.CLAIMED} and not result.claims:
        yield Problem("claims", "", f"is empty, and the status is {result.status.value!r}; copy the figures, or correct the status")


def _printed_cards(result: PublishedResult, facts: FactBase) -> Iterator[Problem]:
    """Yield a card of a device or model that the labels of the row contradict: another device, memory, family, version or size."""
    card = facts.accelerators.get(result.conditions.accelerator or "")
    for name in DEVICE_LABELS if card is not None else ():
        text = _words(result.labels.get(name) or "")
        named = _named_devices(text, facts)
        if card is not None and named and not any(card.key in keys for keys in named) and not _is_named(card, text):
            yield Problem("conditions.accelerator", repr(card.key), f"the label {name} of the row is {result.labels[name]!r}")
        # Apple's machines are sold with several sizes of memory.
        memory = re.search(r"\b(\d+) ?(?:gb|gib)\b", text) if card is not None and card.vendor != "Apple" else None
        if card is not None and memory and card.memory_gib and not 0.8 <= float(memory[1]) / card.memory_gib <= 1.25:  # noqa: PLR2004
            fix = f"has {card.memory_gib:g} GiB, and the label {name} of the row is {result.labels[name]!r}"
            yield Problem("conditions.accelerator", repr(card.key), fix)
    model = facts.models.get(result.conditions.model or "")
    says = _family_names(tuple(facts.models)).search(result.section.lower())
    if model is not None and says and (wrong := _another_model(result.section, model, facts)):
        yield Problem("conditions.model", repr(model.key), f"the section of the row is {result.section!r}: {wrong}")
    for name in MODEL_LABELS if model is not None else ():
        if model is not None and name in result.labels and (wrong := _another_model(result.labels[name], model, facts)):
            yield Problem("conditions.model", repr(model.key), f"the label {name} of the row is {result.labels[name]!r}: {wrong}")


def _words(text: str) -> str:
    """Return a label in lower case with `RTX 4090` as one word and underscores as blanks."""
    plain = re.sub(r"\((?:r|tm)\)", "", text.lower().replace("_", " "))
    return re.sub(r"\b(rtx|gaudi)[ _-]?(?=a?\d)", r"\1", plain)


def _is_named(card: AcceleratorCard, label: str) -> bool:
    """Return True if a label contains a name of a card: `Pro 6000 x 1` is an RTX PRO 6000, although 6000 is in other names too."""
    return any(re.search(rf"(?<![a-z0-9]){re.escape(_words(name))}(?![a-z0-9])", label) for name in (card.name, *card.aliases))


def _named_devices(text: str, facts: FactBase) -> list[set[str]]:
    """Return the keys of the cards for each device that a text in the form of `_words` names."""
    known = _devices(tuple(facts.accelerators))
    return [keys for word, keys in known.items() if word in text and re.search(rf"(?<![a-z0-9]){word}(?![a-z0-9])", text)]


@cache
def _devices(keys: tuple[str, ...]) -> dict[str, set[str]]:
    """Return the keys of the cards by the word that names a device in tables, such as h100, mi300x, rtx4090 or gaudi2."""
    found = defaultdict[str, set[str]](set)
    for key in keys:
        for part in re.sub(r"rtx-(?=a?\d)", "rtx", key).split("-"):
            if DEVICE_WORD.fullmatch(part):
                found[part].add(key)
    # Tables also print Gaudi as Gaudi 1, and cards such as RTX A6000 without RTX.
    for word in list(found):
        for other in {re.sub(r"^rtxa(?=\d)", "a", word), re.sub(r"^rtx(?=\d)", "", word), "gaudi1" if word == "gaudi" else word} - {word}:
            found[other] |= found[word]
    return dict(found)


def _another_model(label: str, card: ModelCard, facts: FactBase) -> str:
    """Return the reason why a label does not fit a model card, or an empty text: family, version, size in parameters, or size in words."""
    text = label.lower()
    family, version = _family(card.key)
    if family and family not in text:
        others = {name for name, _ in map(_family, facts.models) if name and re.search(rf"(?<![a-z]){name}|{name}(?![a-z])", text)}
        if others:
            return f"it names {' and '.join(sorted(others))}"
    printed = re.search(rf"{family}[-_ ]?v?(\d(?:\.\d)?)(?![\d.]*[bm]\b|\d|\.\d|x)", text) if family else None
    if printed and not version.startswith(printed[1]):
        return f"it has version {printed[1]}"
    counted = count_parameters(card).total
    for _, stated in printed_sizes(text):
        if not 1 / LABEL_FACTOR <= counted / stated <= LABEL_FACTOR:
            return f"the card has {counted / 1e9:.3g}e9 parameters"
    sizes = set(re.findall(SIZE_WORDS, text)), set(re.findall(SIZE_WORDS, card.key))
    return f"it says {', '.join(sorted(sizes[0]))}" if all(sizes) and not sizes[0] & sizes[1] else ""


@cache
def _family_names(keys: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern for the name of the family of any model."""
    return re.compile(rf"(?<![a-z])(?:{'|'.join(sorted({name for name, _ in map(_family, keys) if name}))})(?![a-z])")


def _family(key: str) -> tuple[str, str]:
    """Return the name and version of the family in a key: llama and 3.1 of llama-3.1-8b, gpt and 2 of gpt2-xl, gemma and nothing of gemma-2b."""
    match = re.match(r"([a-z]+)-?(\d+(?:\.\d+)?)?(?=-|$)|([a-z]+)", key)
    return (match[1] or match[3], match[2] or "") if match else ("", "")


def condition_problems(conditions: Conditions, facts: FactBase) -> Iterator[Problem]:
    """Yield problems of the conditions of a result: cards that do not exist, numbers above those of any run, versions to come."""
    for name, key, cards in (("model", conditions.model, facts.models), ("accelerator", conditions.accelerator, facts.accelerators)):
        if key is not None and key not in cards:
            yield Problem(f"conditions.{name}", repr(key), f"no such card in data/{name}s; {did_you_mean(key, cards)}")
    limits = {"accelerator_count": MOST_DEVICES, "sequence_length": LONGEST_ROW, "micro_batch": MOST_DEVICES, "global_batch": LONGEST_ROW}
    for name, most in limits.items():
        if (value := getattr(conditions, name)) is not None and value > most:
            yield Problem(f"conditions.{name}", str(value), f"is above {most}, more than any run; correct it")
    yield from _versions(conditions, facts)
    yield from _batch(conditions, facts)
    yield from _instance(conditions, facts)


def _batch(conditions: Conditions, facts: FactBase) -> Iterator[Problem]:
    """Yield a problem for replicas that the devices do not make, and for a global batch that the replicas do not make.

    Of a chip, each core may be a device of its own, and of a CPU each socket may run several processes.
    """
    count, settings, card = conditions.accelerator_count, conditions.settings, facts.accelerators.get(conditions.accelerator or "")
    if count is None or (card is not None and card.cpu is not None):
        return
    devices = {count, count * ((card.cores_per_unit if card is not None else None) or 1)}
    apart = math.prod(_whole(settings.get(name)) for name in ("tensor_parallel", "pipeline_parallel", "context_parallel"))
    # Rows may be split over devices of their own, or over those of another degree.
    made = {
        number // each for number in devices for each in (apart, apart * _whole(settings.get("sequence_parallel"))) if not number % each
    }
    replicas = settings.get("data_parallel")
    if isinstance(replicas, int) and not isinstance(replicas, bool):
        if replicas not in made:
            fix = f"{count} devices with {apart} for each replica make {' or '.join(map(str, sorted(made))) or 'no whole number'}; correct one of them"
            yield Problem("conditions.settings.data_parallel", str(replicas), fix)
        made = {replicas}
    rows, accumulated, batch = conditions.micro_batch, conditions.gradient_accumulation, conditions.global_batch
    if rows and accumulated and batch and made and batch not in {rows * accumulated * number for number in made}:
        fix = f"{rows} rows x {accumulated} micro-steps x {' or '.join(map(str, sorted(made)))} replicas make another number; correct one of them"
        yield Problem("conditions.global_batch", str(batch), fix)


def _whole(degree: object) -> int:
    return degree if isinstance(degree, int) and not isinstance(degree, bool) and degree > 0 else 1


def _instance(conditions: Conditions, facts: FactBase) -> Iterator[Problem]:
    """Yield a problem for an instance with other devices than those of the row, or with too few of them."""
    if conditions.instance is None:
        return
    family, _, size = conditions.instance.partition(".")
    sizes = facts.aws_sizes.get(family, ())
    if sizes and size not in sizes:
        yield Problem("conditions.instance", repr(conditions.instance), f"AWS sells no {size} of {family}; {did_you_mean(size, sizes)}")
    offer = next((price for price in facts.prices if price.instance == conditions.instance), None)
    if offer is None or conditions.accelerator is None:
        return
    if offer.accelerator != conditions.accelerator:
        yield Problem("conditions.instance", repr(conditions.instance), f"has {offer.accelerator}, and the row {conditions.accelerator}")
    elif (conditions.accelerator_count or 0) > offer.accelerator_count and (conditions.accelerator_count or 0) % offer.accelerator_count:
        yield Problem(
            "conditions.accelerator_count", str(conditions.accelerator_count), f"{conditions.instance} has {offer.accelerator_count:g}"
        )


def _versions(conditions: Conditions, facts: FactBase) -> Iterator[Problem]:
    """Yield a problem for a library whose major version is more than two above all that are released.

    Betas and versions installed from a repository, such as FlashAttention 4 where 2 is the newest released, come earlier.
    """
    for library in (each for each in facts.known.libraries if each.library in conditions.framework):
        printed = conditions.framework[library.library]
        if _never_released(printed, library):
            fix = f"{library.library} has no release of this version; copy it from the document"
            yield Problem(f"conditions.framework.{library.library}", repr(printed), fix)
        match = re.match(r"v?(\d+)\.\d", conditions.framework[library.library])
        newest = library.newest.major
        if match and int(match[1]) > newest + AHEAD:
            fix = f"{newest} is the newest major version known on {library.read_on}; correct it, or run `tunemark import releases`"
            yield Problem(f"conditions.framework.{library.library}", repr(conditions.framework[library.library]), fix)


def _never_released(printed: str, library: Library) -> bool:
    """Return True for a final version of a series of which other releases are known, and this one is not."""
    if not re.fullmatch(r"v?\d+\.\d+\.\d+", printed):
        return False
    version = Version(printed)
    same_series = any(other.release[:2] == version.release[:2] for other in library.versions)
    return version < library.newest and version not in library.versions and same_series


def claim_problems(quantity: str, claim: Claim, conditions: Conditions | None) -> Iterator[Problem]:
    """Yield a problem if a value is not its printed figure in the unit of its quantity.

    A note may state how one follows from the other: per device, divided by a number, or worked out from two printed figures.
    """
    values = [claim.value, *(reading.value for reading in claim.readings)]
    if min(values) < 0:
        yield Problem("value", f"{min(values):g}", "is negative; no quantity here is")
    if quantity.startswith(SHARES) and max(values) > 1:
        yield Problem("value", f"{max(values):g}", "is above 1; a share of all rows is stored as 0 to 1")
    for reading in claim.readings:
        yield from _reading(quantity, claim, reading, conditions)
    if claim.readings and claim.value not in values[1:]:
        yield Problem("readings", repr(values[1:]), f"no reading has the value, {claim.value:g}; the value must be the literal reading")
    printed = printed_value(quantity, claim.printed)
    if printed is None:
        yield Problem("printed", repr(claim.printed), "has no figure in a unit of this quantity; write it as the document does")
        return
    note = claim.note or ""
    if "worked out" in note.lower():
        return
    factors = [1.0]
    if PER_DEVICE in note:
        factors = [float(conditions.accelerator_count or 1)] if conditions is not None else factors
    if divisor := re.search(r"\bdivided by (\d+)\b", note):
        factors = [1 / int(divisor[1])]
    room = WHOLE_BYTE if QUANTITIES[quantity].unit == "bytes" else 0.0
    if not any(abs(claim.value - printed * factor) <= max(ROUNDING * abs(printed * factor), room) for factor in factors):
        fix = f"{claim.printed!r} is {printed * factors[0]:.10g} {QUANTITIES[quantity].unit}; correct the value, or say in a note how it follows"
        yield Problem("value", f"{claim.value:.10g}", fix)


def _reading(quantity: str, claim: Claim, reading: Reading, conditions: Conditions | None) -> Iterator[Problem]:
    """Yield a problem for a reading whose value is not what its meaning says of the printed figure: x 32, = 80 s, GiB or GB."""
    meaning, unit, wanted = reading.meaning, QUANTITIES[quantity].unit, dict[str, float]()
    if factor := re.search(r"\bx ?(\d+)\b", meaning):
        wanted[factor[0]] = claim.value * int(factor[1])
        accumulated = conditions.gradient_accumulation if conditions is not None else None
        if meaning.startswith("micro-step") and accumulated is not None and int(factor[1]) != accumulated:
            yield Problem("readings", repr(meaning), f"gradient_accumulation is {accumulated}; a step has as many micro-steps")
    if stated := re.search(r"= ?([\d,.]+) s\b", meaning):
        wanted[stated[0]] = float(stated[1].replace(",", ""))
    printed = re.search(r"[\d,]+(?:\.\d+)?", claim.printed)
    size = re.match(r"(?:GiB|2\^30 bytes)|(GB|10\^9 bytes)", meaning)
    if size and printed and unit == "bytes":
        wanted[meaning[:12]] = float(printed[0].replace(",", "")) * (1e9 if size[1] else GIB)
    if conditions is not None and meaning == "of one device" and conditions.accelerator_count:
        wanted[meaning] = claim.value * conditions.accelerator_count
    for words, value in wanted.items():
        if abs(reading.value - value) > max(ROUNDING * abs(value), WHOLE_BYTE if unit == "bytes" else 0.0):
            yield Problem(
                "readings", f"{reading.value:.10g}", f"is not {value:.10g}, which its meaning says ({words}); correct one of them"
            )
    if re.match(r"(?:optimizer |micro-)step\b", meaning) and unit != "s":
        yield Problem("readings", repr(meaning), f"is about the time of a step, and the unit of {quantity} is {unit}; use step_time_s")


def _document(document: SourceDocument) -> Iterator[Problem]:
    """Yield problems of a document: its address and days, and the ids and claims of its statements."""
    if document.url is not None and not re.match(r"https?://", document.url):
        yield Problem("url", repr(document.url[:80]), "must begin with https://")
    for name in ("stated_on", "committed_on", "read_on"):
        if (day := getattr(document, name)) is not None:
            yield from day_problems(name, day, FIRST_DOCUMENT)
            if document.read_on is not None and day > document.read_on:
                yield Problem(name, str(day), f"is after it was read, {document.read_on}; correct one of them")
    yield from _publication(document)
    ids = [statement.id for statement in document.statements]
    for statement in document.statements:
        if not statement.id.startswith(f"{document.id}-") or ids.count(statement.id) > 1:
            yield Problem("statements", repr(statement.id), f"an id begins with {document.id}- and is used once")
        for problem in result_problems(statement):
            yield Problem(f"{statement.id}: {problem.field}", problem.value, problem.fix)


def _publication(document: SourceDocument) -> Iterator[Problem]:
    """Yield a problem for days of publication that are impossible, out of order, or after the document was read: `2024-03 to 2025-01-31`."""
    days, last = list[str](), (document.read_on or date.max).isoformat()
    for match in re.finditer(r"\b(\d{4})(?:-(\d{2}))?(?:-(\d{2}))?\b", document.published_on or ""):
        try:
            date(int(match[1]), int(match[2] or 1), int(match[3] or 1))
        except ValueError:
            yield Problem("published_on", repr(match[0]), "is not a date; write YYYY, YYYY-MM or YYYY-MM-DD")
            continue
        days.append(match[0])
        if match[0] > last[: len(match[0])] or int(match[1]) < FIRST_DOCUMENT.year:
            yield Problem(
                "published_on", repr(match[0]), f"must be from {FIRST_DOCUMENT.year} to the day on which it was read, {document.read_on}"
            )
    if any(later < earlier[: len(later)] for earlier, later in pairwise(days)):
        yield Problem("published_on", repr(document.published_on), "ends before it begins; swap the days")


def _place(path: Path, ids: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for results in the folder or file of another id: NNN/NNN-001.json, or NNN/results.json."""
    wrong = next((name for name in ids if name[:3] != path.parent.name), None)
    if re.fullmatch(r"\d{3}", path.parent.name) and wrong is not None:
        yield Problem("id", repr(wrong), f"is in the folder {path.parent.name}; an id begins with its folder")
    if len(ids) == 1 and re.fullmatch(r"\d{3}-\d{3}", path.stem) and ids[0] != path.stem:
        yield Problem("id", repr(ids[0]), f"is in the file {path.name}; a file has the name of its id")


def _round_year(name: str) -> int | None:
    """Return the year of a round of MLPerf Training: 2024 of v4.1."""
    match = re.match(r"v(\d+)\.", name)
    return FIRST_ROUNDS + int(match[1]) if match else None


def _converted(result: ConvertedResult, facts: FactBase) -> Iterator[Problem]:
    """Yield problems of a converted result: evaluations out of order, times and samples that contradict each other."""
    system, count = result.system, result.conditions.accelerator_count
    card = facts.accelerators.get(result.conditions.accelerator or "")
    if system.nodes and system.accelerators_per_node and count and system.nodes * system.accelerators_per_node != count:
        fix = f"the system has {system.nodes} nodes of {system.accelerators_per_node}; correct one of them"
        yield Problem("conditions.accelerator_count", str(count), fix)
    if card is not None and (year := _round_year(result.round)) and card.launch_year is not None and card.launch_year > year:
        yield Problem("conditions.accelerator", repr(card.key), f"came in {card.launch_year}, and round {result.round} was in {year}")
    named = _named_devices(_words(system.accelerator_printed or ""), facts)
    if card is not None and named and not any(card.key in keys for keys in named):
        yield Problem("conditions.accelerator", repr(card.key), f"the system says {system.accelerator_printed!r}")
    for number, run in enumerate(result.runs):
        place, curve = f"runs.{number}", run.curve
        target, reached = result.target_eval_loss, run.status == "ok" and curve.eval_loss
        if target is not None and reached and min(curve.eval_loss) > target:
            fix = f"the lowest loss of a run that reached it is {min(curve.eval_loss):.4g}; correct the target or the status of the run"
            yield Problem("target_eval_loss", f"{target:g}", fix)
        for name in ("samples", "at_s"):
            if any(later < earlier for earlier, later in pairwise(getattr(curve, name))):
                yield Problem(f"{place}.curve.{name}", "", "falls from one evaluation to the next; restore the order of the log")
        if any(not 0 < loss < 20 for loss in curve.eval_loss):  # noqa: PLR2004 - ln of the largest vocabulary is 12.5
            yield Problem(f"{place}.curve.eval_loss", "", "must be above 0 and below 20; a uniform guess over a vocabulary is about 10")
        if run.time_to_target_s is not None:
            # Clocks of logs are rounded to milliseconds.
            if curve.at_s and curve.at_s[-1] > run.time_to_target_s + 1:
                yield Problem(
                    f"{place}.time_to_target_s", f"{run.time_to_target_s:g}", f"is before the last evaluation, {curve.at_s[-1]:g}"
                )
            if run.train_s is not None and run.train_s > run.time_to_target_s + 1:
                yield Problem(f"{place}.train_s", f"{run.train_s:g}", f"is longer than the run, {run.time_to_target_s:g}")
        if run.samples is not None and curve.samples and run.samples < curve.samples[-1]:
            yield Problem(f"{place}.samples", str(run.samples), f"is fewer than at the last evaluation, {curve.samples[-1]}")
