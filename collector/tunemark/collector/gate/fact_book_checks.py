"""Checks of model cards, of workloads with their golden losses, and of known facts: shapes, and the tables that must agree with each other.

A check yields problems; the caller knows the file and the line.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import date
from itertools import pairwise

from packaging.version import Version
from pydantic import ValidationError

from tunemark.collector.gate.fact_checks import FIRST_TENSOR_CORES, Neighbours, day_problems, name_problems, source_problems
from tunemark.schema.errors import did_you_mean, must_be
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.facts.workloads import GoldenLosses, WorkloadCard
from tunemark.schema.facts.world_facts import DatasetFact, Generation, Requirement, TokenLengths, WorldFacts
from tunemark.schema.physics.architecture import FAMILIES, count_parameters
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.vocabulary import Task, Weights

# Models ----------------------------------------------------------------------------------------------

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
PRINTED_SIZE = re.compile(r"(?i)(?<![a-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])(?![a-z0-9])")
NAME_FACTOR = 1.4
"""Names round: `1B` has 1.32e9 parameters, `8x7B` shares its attention (0.83 of the product), `7B` may leave out embeddings (8.5e9)."""
MODEL_BOUNDS: dict[str, tuple[int, int, int, str]] = {
    "hidden_size": (64, 65_536, 32, "matrix tiles have a multiple of 32"),
    "intermediate_size": (128, 1_048_576, 16, "matrix tiles have a multiple of 16"),
    "layers": (1, 256, 1, "no trained model has more blocks"),
    "attention_heads": (1, 512, 1, "no trained model has more heads"),
    "head_dim": (16, 512, 8, "attention kernels take a multiple of 8"),
    "vocabulary": (256, 1_048_576, 1, "at least all bytes, at most a million tokens"),
    "context_length": (64, 16_777_216, 64, "contexts are multiples of 64"),
}


def model_problems(card: ModelCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield all problems of a model card."""
    yield from name_problems(card, beside)
    yield from source_problems(card)
    for check in (_shapes, _heads, _parameters, _hub):
        yield from check(card)


def _shapes(card: ModelCard) -> Iterator[Problem]:
    """Yield a problem for each size that no model has."""
    for name, (low, high, multiple, why) in MODEL_BOUNDS.items():
        value = getattr(card, name)
        if not low <= value <= high or value % multiple:
            yield Problem(name, str(value), f"must be {low} to {high}, a multiple of {multiple}: {why}")
    ratio = card.intermediate_size / card.hidden_size
    if not 1 <= ratio <= 16:  # noqa: PLR2004 - models have 2.67 to 8; experts may be as narrow as the residual stream
        yield Problem(
            "intermediate_size", str(card.intermediate_size), f"is {ratio:.2g} x hidden_size; feed-forward layers are 1 to 16 times as wide"
        )
    if card.sliding_window is not None and card.sliding_window > card.context_length:
        yield Problem(
            "sliding_window", str(card.sliding_window), f"is longer than the context, {card.context_length}; then there is no window"
        )
    if (card.experts is None) != (card.active_experts is None) or (card.active_experts or 0) > (card.experts or 0):
        yield Problem(
            "active_experts", str(card.active_experts), f"of {card.experts} experts; a mixture has both, and no more active than all"
        )
    if (card.family == "mixtral") != (card.experts is not None):
        yield Problem("family", repr(card.family), f"experts is {card.experts}; of these families only mixtral is a mixture")


def _heads(card: ModelCard) -> Iterator[Problem]:
    """Yield problems of the attention: query heads share key and value heads evenly, and together are about as wide as the stream."""
    if card.attention_heads % card.key_value_heads:
        yield Problem("key_value_heads", str(card.key_value_heads), f"does not divide attention_heads, {card.attention_heads}")
    width = card.attention_heads * card.head_dim / card.hidden_size
    learned = FAMILIES[card.family].learned_positions
    if not 0.5 <= width <= 4 or (learned and width != 1):  # noqa: PLR2004 - 1 to 2 so far; gpt2 and bert split the stream itself
        wanted = "1 in this family" if learned else "0.5 to 4"
        yield Problem("head_dim", str(card.head_dim), f"heads x head_dim is {width:.3g} x hidden_size; must be {wanted}")


def _parameters(card: ModelCard) -> Iterator[Problem]:
    """Yield a problem where the stated parameters, to their last digit that is not zero, are not those counted from the shapes.

    A size in the names agrees with the count within `NAME_FACTOR`.
    """
    counted = count_parameters(card).total
    if card.parameters is not None:
        unit = 10 ** (len(digits := str(card.parameters)) - len(digits.rstrip("0")))
        if abs(card.parameters - counted) > unit / 2:
            yield Problem("parameters", str(card.parameters), f"the shapes on this card have {counted}; correct one of them")
    for name in dict.fromkeys((card.key, card.name, *card.aliases, *((card.hub_id,) if card.hub_id else ()))):
        for experts, size, scale in PRINTED_SIZE.findall(name):
            printed = int(experts or 1) * float(size) * (1e9 if scale in "bB" else 1e6)
            if not 1 / NAME_FACTOR <= counted / printed <= NAME_FACTOR:
                where = next((part for part in ("key", "name", "hub_id") if getattr(card, part) == name), "aliases")
                yield Problem(
                    where, repr(name), f"the shapes on this card have {counted / 1e9:.3g}e9 parameters; correct the name or the shapes"
                )


def _hub(card: ModelCard) -> Iterator[Problem]:
    """Yield a problem for a repository that is not `owner/name`, and for a licence gate without a repository."""
    if card.hub_id is not None and not HUB_ID.fullmatch(card.hub_id):
        yield Problem("hub_id", repr(card.hub_id), "is not a repository; write owner/name, without address or revision")
    if card.gated is not None and card.hub_id is None:
        yield Problem("gated", str(card.gated), "there is no hub_id that could be gated; add it, or leave this out")


# Workloads -------------------------------------------------------------------------------------------

STRETCH = 4
"""Models with rotary or linear positions are trained at up to four times their context; learned positions end with the table."""
WORKLOAD_BOUNDS: dict[str, tuple[float, float, str]] = {
    "data.sequence_length": (8, 2_097_152, "tokens of one row"),
    "batch.micro_batch": (1, 4096, "rows that one device holds at once"),
    "batch.gradient_accumulation": (1, 8192, "micro-steps of one step"),
    "optimizer.learning_rate": (1e-8, 1, "peak learning rates of fine-tuning are about 1e-6 to 1e-2"),
    "optimizer.weight_decay": (0, 1, "a share of the weights per unit of learning rate"),
    "optimizer.warmup_steps": (0, 100_000, "steps"),
    "devices.count": (1, 100_000, "devices of one run"),
    "labels": (2, 100_000, "classes"),
    "stop.max_steps": (1, 10_000_000, "steps"),
    "stop.epochs": (1, 1000, "passes over the rows"),
    "stop.max_train_s": (1, 31_536_000, "at most a year"),
    "lora.rank": (1, 4096, "not above the width of a layer"),
    "lora.alpha": (1, 16_384, "a few times the rank"),
}
LARGEST_STEP = 2**28
"""Tokens of one optimizer step: the largest pretraining runs use 2^24."""
NEAR_LN = 0.15
"""Untrained weights guess: their loss is the logarithm of the number of choices, a few percent above it for finite initial scales."""
TOLERANCES = (1e-4, 0.3)
"""Rounding of kernels is above 1e-4 of the loss; with 0.3 a run that learns nothing could pass."""


def workload_problems(card: WorkloadCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield problems of a workload card: settings that no run has, rows longer than the positions of its model."""
    yield from source_problems(card)
    for name, (low, high, meaning) in WORKLOAD_BOUNDS.items():
        value = _at(card, name)
        if value is not None and not low <= value <= high:
            yield Problem(name.rsplit(".", 1)[-1], f"{value:g}", f"must be {low:g} to {high:g}: {meaning}")
    tokens = card.batch.micro_batch * card.batch.gradient_accumulation * card.data.sequence_length * card.devices.count
    if tokens > LARGEST_STEP:
        yield Problem("micro_batch", str(card.batch.micro_batch), f"a step would have {tokens} tokens; at most {LARGEST_STEP} make sense")
    rows = beside.known.dataset(card.data.name)
    if rows is not None:
        if rows.labels is not None and card.labels is not None and card.labels != rows.labels:
            yield Problem("labels", str(card.labels), f"{rows.key} has {rows.labels} classes")
        for name, stated, most in (
            ("training_rows", card.data.training_rows or 0, rows.training_rows),
            ("evaluation_rows", card.data.evaluation_rows, max(rows.validation_rows or 0, rows.test_rows or 0)),
        ):
            if stated > most > 0:
                yield Problem(name, str(stated), f"{rows.key} has {most} of them")
    model = beside.models.get(card.model)
    if model is not None:
        longest = model.context_length * (
            1 if FAMILIES[model.family].learned_positions and "alibi" not in (model.notes or "").lower() else STRETCH
        )
        if card.data.sequence_length > longest:
            fix = f"{card.model} has a context of {model.context_length} and can be trained at {longest} at most"
            yield Problem("sequence_length", str(card.data.sequence_length), fix)
        if card.lora is not None and card.lora.rank > model.hidden_size:
            yield Problem("rank", str(card.lora.rank), f"is above the width of the model, {model.hidden_size}; it would not be low-rank")


def setting_problems(card: WorkloadCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield problems of the axes and points of a card: settings that a card does not have, and values that no run has.

    Each value is set on the card, and the card is checked with it.
    """
    fixed = {problem.field for problem in workload_problems(card, beside)}
    varied = [(axis.field, {**axis.at, axis.field: value}) for axis in card.axes for value in axis.values]
    varied += [("", settings) for settings in card.points]
    for name, settings in varied:
        try:
            other = WorkloadCard.model_validate(_with(card, settings))
        except ValidationError as error:
            first = error.errors()[0]
            wrong = ".".join(map(str, first["loc"])) or name
            fix = "is not a setting of a workload card" if first["type"] == "extra_forbidden" else must_be(first["msg"])
            yield Problem("field", repr(wrong), f"{fix}; correct the axis or the point")
            continue
        for problem in workload_problems(other, beside):
            if problem.field not in fixed:
                yield Problem("values", repr(settings), f"{problem.field} {problem.fix}")


def _with(card: WorkloadCard, settings: Mapping[str, object]) -> dict[str, object]:
    """Return the content of a card with dotted settings replaced, without its axes and points."""
    content = deepcopy(card.model_dump(mode="json", exclude={"axes", "points"}, exclude_defaults=True))
    for name, value in settings.items():
        *sections, last = name.split(".")
        place = content
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return content


def _at(record: object, path: str) -> float | None:
    for name in path.split("."):
        record = getattr(record, name, None)
    return record if isinstance(record, int | float) else None


def golden_problems(golden: GoldenLosses, card: WorkloadCard | None, sha256: str, model: ModelCard | None) -> Iterator[Problem]:
    """Yield problems of golden losses: not of this card, not those of a run that starts untrained and learns."""
    if card is None:
        yield Problem("key", repr(golden.key), "there is no workload of this name in data/workloads")
        return
    yield from source_problems(golden)
    if golden.workload_sha256 != sha256:
        yield Problem("workload_sha256", golden.workload_sha256, f"the card has {sha256}; record the losses again with the card as it is")
    if golden.seed != card.seed:
        yield Problem("seed", str(golden.seed), f"the card has {card.seed}; record the losses with the seed of the card")
    if not TOLERANCES[0] <= golden.tolerance <= TOLERANCES[1]:
        yield Problem("tolerance", f"{golden.tolerance:g}", f"must be {TOLERANCES[0]:g} to {TOLERANCES[1]:g}, a relative difference")
    steps = sorted(golden.losses.items())
    if len(steps) < 2 or steps[0][0] < 1 or steps[-1][0] > (card.stop.max_steps or math.inf):  # noqa: PLR2004
        yield Problem("losses", repr([step for step, _ in steps]), "needs two steps or more, from 1 to the last step of the card")
        return
    choices = card.labels if card.task is Task.SEQUENCE_CLASSIFICATION else model and model.vocabulary
    if card.weights is Weights.RANDOM and choices and abs(steps[0][1] / math.log(choices) - 1) > NEAR_LN:
        fix = f"random weights begin near ln({choices}) = {math.log(choices):.4f}; record the losses again"
        yield Problem(str(steps[0][0]), f"{steps[0][1]:g}", fix)
    for (_, before), (step, loss) in pairwise(steps):
        if not 0 < loss <= before * (1 + golden.tolerance):
            yield Problem(str(step), f"{loss:g}", f"is above the loss before it, {before:g}, by more than the tolerance; losses fall")
    if steps[-1][1] >= steps[0][1]:
        yield Problem(
            str(steps[-1][0]),
            f"{steps[-1][1]:g}",
            f"is not below the first loss, {steps[0][1]:g}; a workload that learns nothing proves nothing",
        )


# Known facts -----------------------------------------------------------------------------------------

VERSION = re.compile(r"\d+(?:\.\d+)*(?:(?:a|b|rc|\.post|\.dev)\d+)*")
FIRST_LIBRARY = date(2010, 1, 1)
"""The oldest software that results name (CUDA 3) came out in this year."""


LONGEST_ROW = 2**24
KINDS_OF_PRACTICE = (
    (r"relative difference", 0.0, 0.5, "a relative difference, above 0 and at most 0.5: not percent"),
    (r"share", 0.0, 1.0, "a share, above 0 and at most 1: not percent"),
    (r"(?:Maximum|Minimum) (?:ratio|efficiency)", 1.0, 10.0, "a ratio of the larger to the smaller, 1 to 10"),
    (r"GiB", 0.0, 16.0, "GiB that a driver keeps, above 0 and at most 16"),
)
"""Words in the meaning of a bound from practice, with the smallest and the largest value, and what it is."""
PYTHONS = re.compile(r"3\.(?:[6-9]|[12]\d)")
DOCUMENT_NAME = re.compile(r"\d{3}|[a-z][a-z0-9-]*")
"""A document of data/published, or the harness of converted results."""


def known_problems(known: WorldFacts, beside: Neighbours) -> Iterator[Problem]:
    """Yield problems of known facts: days and versions out of order, empty sources, impossible bounds, and names without a card."""
    kinds = (known.releases, known.libraries, known.series, known.datasets, known.generations, known.architectures, known.requirements)
    for entries in (*kinds, known.practices, known.shared_names):
        for entry in entries:
            yield from source_problems(entry)
    for check in (_releases, _requirements, _datasets, _architectures, _generations, _shared_names, _practices):
        yield from check(known, beside)
    for source in (reading.source for readings in (known.software, known.memory_readings) for reading in readings):
        if not DOCUMENT_NAME.fullmatch(source):
            yield Problem("source", repr(source), "is not a document; write its three digits, or the harness of converted results")


def _releases(known: WorldFacts, _: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a release that is no version, or whose day is impossible or out of order."""
    for library in known.libraries:
        for version, day in library.released_on.items():
            if not VERSION.fullmatch(version):
                yield Problem(
                    version, repr(version), f"is not a version of {library.library}; write it as its registry does, such as 2.13.0"
                )
            if not FIRST_LIBRARY <= day <= library.read_on:
                yield Problem(version, str(day), f"must be from {FIRST_LIBRARY} to {library.read_on}, when {library.library} was read")
        yield from _order(library.library, library.released_on)
    for release in known.releases:
        yield from (Problem("released_on", problem.value, problem.fix) for problem in day_problems("", release.released_on, FIRST_LIBRARY))


def _requirements(known: WorldFacts, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a requirement that names versions that do not exist, or that is lower than that of an earlier version of the library."""
    for entry in known.requirements:
        # A newest version is a bound: its series exists, and perhaps not the patch.
        newest = entry.newest and ".".join(entry.newest.split(".")[:2])
        for name, owner, version in (
            ("since", entry.library, entry.since),
            ("least", entry.needs, entry.least),
            ("newest", entry.needs, newest),
        ):
            if version is not None and not VERSION.fullmatch(version):
                yield Problem("requirements", repr(version), f"is not a version; correct the requirement of {entry.library}")
            elif version is not None and not _exists(version, owner, beside.known):
                yield Problem(name, repr(version), f"{owner} has no such release; correct the requirement of {entry.library}")
    lines = defaultdict[tuple[str, str], list[Requirement]](list)
    for entry in known.requirements:
        if all(VERSION.fullmatch(version) for version in (entry.since, entry.least, entry.newest or "1")):
            lines[entry.library, entry.needs].append(entry)
            yield from _span(entry)
    for (library, needs), entries in lines.items():
        for before, after in pairwise(sorted(entries, key=lambda entry: Version(entry.since))):
            for name in ("least", "newest"):
                earlier, later = getattr(before, name), getattr(after, name)
                if earlier and later and _below(later, earlier):
                    fix = f"{library} {after.since} needs {needs} {later}, and {library} {before.since} needs {earlier}: requirements do not fall"
                    yield Problem(name, repr(later), fix)
            if before.since == after.since:
                yield Problem("since", repr(after.since), f"{library} has two requirements of {needs} since this version; keep one")


def _span(entry: Requirement) -> Iterator[Problem]:
    """Yield a problem for a newest version below the oldest one. The newest may be a minor version, such as 0.23 for 0.23.1."""
    if entry.newest is not None and _below(entry.newest, entry.least):
        yield Problem("newest", repr(entry.newest), f"is below the oldest, {entry.least}; swap them or correct one")


def _below(version: str, other: str) -> bool:
    """Return True if a version is below another one, to the digits that both have: 0.23 is not below 0.23.1."""
    first, second = Version(version).release, Version(other).release
    digits = min(len(first), len(second))
    return first[:digits] < second[:digits]


def _exists(version: str, library: str, known: WorldFacts) -> bool:
    """Return False if a version, or any release of this minor version, is not among those of a library whose releases are known."""
    if library == "python":
        return PYTHONS.fullmatch(".".join(version.split(".")[:2])) is not None
    listed = next((entry.released_on for entry in known.libraries if entry.library == library), None)
    return listed is None or any(release == version or release.startswith(f"{version}.") for release in listed)


def _datasets(known: WorldFacts, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for lengths of rows that contradict each other, and for classes and rows that no dataset has."""
    for dataset in known.datasets:
        yield from _splits(dataset)
        for lengths in dataset.token_lengths:
            if max(lengths.quantiles.values()) > LONGEST_ROW:
                yield Problem("quantiles", str(max(lengths.quantiles.values())), f"no row has more than {LONGEST_ROW} tokens")
            low, high = _means(lengths)
            if not low <= lengths.mean <= high:
                yield Problem("mean", f"{lengths.mean:g}", f"must be {low:.4g} to {high:.4g}, as the quantiles say")
            if lengths.tokenizer not in beside.models:
                fix = f"no such card in data/models; {did_you_mean(lengths.tokenizer, beside.models)}"
                yield Problem("tokenizer", repr(lengths.tokenizer), fix)


def _splits(dataset: DatasetFact) -> Iterator[Problem]:
    """Yield a problem for a dataset with one class, or with more classes or held-out rows than rows for training."""
    if dataset.labels is not None and not 2 <= dataset.labels <= dataset.training_rows:  # noqa: PLR2004 - one class needs no classifier
        yield Problem("labels", str(dataset.labels), f"must be 2 to {dataset.training_rows}, the rows for training")
    for name in ("validation_rows", "test_rows"):
        if (getattr(dataset, name) or 0) > dataset.training_rows:
            yield Problem(name, str(getattr(dataset, name)), f"is above training_rows, {dataset.training_rows}; swap the splits")


def _means(lengths: TokenLengths) -> tuple[float, float]:
    """Return the smallest and the largest mean of rows with these quantiles: all rows between two of them at the lower, or at the upper."""
    steps = sorted((float(quantile), tokens) for quantile, tokens in lengths.quantiles.items())
    spans = [(end - start, low, high) for (start, low), (end, high) in pairwise(steps)]
    return sum(share * low for share, low, _ in spans), sum(share * high for share, _, high in spans)


def _architectures(known: WorldFacts, _: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a family that no model card can have, and for one that was added before the family that it follows."""
    for support in known.architectures:
        # The first model of these families is BERT.
        yield from day_problems("added_on", support.added_on, date(2018, 10, 1))
        if support.family not in FAMILIES:
            yield Problem("family", repr(support.family), f"no model card has it; {did_you_mean(support.family, FAMILIES)}")
        series = re.sub(r"\d+$", "", support.family)
        for other in known.architectures:
            # gemma2 follows gemma, and qwen3 follows qwen2.
            alike = re.sub(r"\d+$", "", other.family) == series and other.library == support.library
            if alike and other.family < support.family and other.added_on > support.added_on:
                fix = f"{other.family} was added on {other.added_on}, and {support.family} follows it; correct one of the days"
                yield Problem("added_on", str(support.added_on), fix)


def _generations(known: WorldFacts, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a generation of tensor cores that does not follow from the launches of its devices and their formats."""
    launches = defaultdict[str, list[int]](list)
    for card in beside.accelerators.values():
        if card.vendor == "NVIDIA" and card.architecture:
            launches[card.architecture].append(card.launch_year or date.max.year)
    for entry in known.generations:
        if entry.architecture not in launches:
            fix = f"no card of NVIDIA has this architecture; {did_you_mean(entry.architecture, launches)}"
            yield Problem("architecture", repr(entry.architecture), fix)
    dated = sorted(
        (entry for entry in known.generations if entry.architecture in launches), key=lambda entry: min(launches[entry.architecture])
    )
    for before, after in pairwise(dated):
        step = after.tensor_core_generation - before.tensor_core_generation
        if step not in {0, 1} and min(launches[after.architecture]) > min(launches[before.architecture]):
            fix = f"{before.architecture} before it has {before.tensor_core_generation}; generations rise by one"
            yield Problem("tensor_core_generation", str(after.tensor_core_generation), fix)
    for entry in known.generations:
        yield from _formats_of(entry, beside)


def _formats_of(entry: Generation, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a generation without a format that devices of the architecture have."""
    cards = [card for card in beside.accelerators.values() if (card.vendor, card.architecture) == ("NVIDIA", entry.architecture)]
    for name, first in FIRST_TENSOR_CORES.items():
        have = [card.key for card in cards if name in {kind.value for kind in card.peak_tflops}]
        if have and entry.tensor_core_generation < first:
            fix = f"{have[0]} has {name}, which began with generation {first}; correct the generation or the card"
            yield Problem("tensor_core_generation", str(entry.tensor_core_generation), fix)


def _shared_names(known: WorldFacts, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for variants of a model that has no card, or whose card is none of the variants."""
    for shared in known.shared_names:
        card = beside.models.get(shared.model)
        lengths, words = [variant.context_length for variant in shared.variants], [variant.word for variant in shared.variants]
        if card is None:
            yield Problem("model", repr(shared.model), f"no such card in data/models; {did_you_mean(shared.model, beside.models)}")
        elif card.context_length not in lengths:
            fix = f"the card {shared.model} has a context of {card.context_length}, which is none of the variants"
            yield Problem("variants", repr(lengths), fix)
        if len(set(words)) < len(words) or len(set(lengths)) < len(lengths):
            yield Problem("variants", repr(words), "two variants have one word or one context; a variant has its own")
        for variant in shared.variants:
            size = re.fullmatch(r"(\d+)k", variant.word)
            if size and variant.context_length not in {int(size[1]) * 1000, int(size[1]) * 1024}:
                yield Problem("variants", str(variant.context_length), f"the word {variant.word!r} says {int(size[1]) * 1024}")


def _practices(known: WorldFacts, _beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a bound outside the range of the kind that its meaning describes."""
    values = {practice.key: practice.value for practice in known.practices}
    for practice in known.practices:
        matching = (kind for kind in KINDS_OF_PRACTICE if re.search(kind[0], practice.meaning, re.IGNORECASE))
        _words, low, high, what = next(matching, ("", 0.0, 1000.0, "a share or a ratio, above 0 and at most 1000"))
        if not low <= practice.value <= high or practice.value <= 0:
            yield Problem("value", f"{practice.value:g}", f"{practice.key} is {what}")
        above = values.get(practice.key.replace("low-", "high-", 1))
        if practice.key.startswith("low-") and above is not None and practice.value >= above:
            yield Problem(
                "value", f"{practice.value:g}", f"{practice.key} is not below {practice.key.replace('low-', 'high-', 1)}, {above:g}"
            )


def _order(library: str, released_on: dict[str, date]) -> Iterator[Problem]:
    """Yield a problem for a version that came out before the one it follows: x.y.z after x.y.(z-1), and x.y.0 after x.(y-1).0.

    A patch of an old series may come after a new series. Of two in the wrong order, the one that disagrees with more versions is named.
    """
    numbers = {version: tuple(map(int, version.split("."))) for version in released_on if re.fullmatch(r"\d+(\.\d+)*", version)}
    series = defaultdict[tuple[int, ...], list[str]](list)
    for version in sorted(numbers, key=lambda version: numbers[version]):
        series[numbers[version][:2]].append(version)
    for line in (*series.values(), [versions[0] for versions in series.values()]):
        for version in _out_of_order(line, lambda version: released_on[version]):
            fix = f"{library} {version} came out between the versions before and after it; correct the day"
            yield Problem(version, str(released_on[version]), fix)


def _out_of_order(line: Sequence[str], day: Callable[[str], date]) -> list[str]:
    """Return the versions to leave out so that the days of the others never fall, fewest first found."""
    left, wrong = list(line), list[str]()
    while True:
        clashes = {
            version: sum((day(other) > day(version)) if left.index(other) < place else (day(other) < day(version)) for other in left)
            for place, version in enumerate(left)
        }
        worst = max(clashes, key=lambda version: clashes[version], default=None)
        if worst is None or not clashes[worst]:
            return wrong
        wrong.append(worst)
        left.remove(worst)
