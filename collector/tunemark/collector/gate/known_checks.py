"""Checks of known facts: releases, requirements, datasets, architectures and bounds of practice, which must agree with each other.

A check yields problems; the caller knows the file and the line.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from itertools import pairwise

from packaging.version import Version

from tunemark.collector.gate.fact_checks import FIRST_TENSOR_CORES, Neighbours, day_problems, source_problems
from tunemark.schema.errors import did_you_mean
from tunemark.schema.facts.world_facts import DatasetFact, Generation, Requirement, TokenLengths, WorldFacts
from tunemark.schema.physics.architecture import FAMILIES
from tunemark.schema.records.upgrade import Problem

MOST_MISSING = 0.2
"""Documents that are named and missing over those that are there: in a whole checkout, hardly any."""
MOST_FINAL = 10
"""Lists of which more than a tenth are prereleases may hold them."""
AUDITED = {
    "clock-slack", "cross-source", "high-utilisation", "lora-slowdown", "low-utilisation", "price-tolerance",
    "qlora-slowdown", "same-run", "same-work-memory", "siblings", "superlinear", "tokeniser-spread", "usable-memory",
}  # fmt: skip
"""Bounds without which the audit ends. A test compares them with those that its rules read."""
THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+")
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
    for check in (
        _repeated,
        _series,
        _documents,
        _releases,
        _requirements,
        _datasets,
        _architectures,
        _generations,
        _shared_names,
        _practices,
    ):
        yield from check(known, beside)
    for source in (reading.source for readings in (known.software, known.memory_readings) for reading in readings):
        if not DOCUMENT_NAME.fullmatch(source):
            yield Problem("source", repr(source), "is not a document; write its three digits, or the harness of converted results")


def _repeated(known: WorldFacts, _: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a fact that is stated twice: only one of them would be read."""
    stated: tuple[tuple[str, Iterable[tuple[str, ...]]], ...] = (
        ("library", ((entry.library,) for entry in known.libraries)),
        ("version", ((entry.library, entry.version) for entry in known.releases)),
        ("architecture", ((entry.architecture,) for entry in known.generations)),
        ("family", ((entry.family, entry.library) for entry in known.architectures)),
        ("key", ((entry.key,) for entry in known.practices)),
        ("key", ((entry.key,) for entry in known.datasets)),
        ("source", ((entry.source,) for entry in known.memory_readings)),
    )
    for field, keys in stated:
        for key, times in Counter(keys).items():
            if times > 1:
                yield Problem(field, repr(" ".join(key)), f"is stated {times} times; keep one entry")


def _series(known: WorldFacts, _: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a version outside of its series, and for a prerelease among final versions."""
    for series in known.series:
        number = re.search(r"\d+(?:\.\d+)*$", series.prefix)
        strange = [each for each in series.versions if number and each != number[0] and not each.startswith(f"{number[0]}.")]
        if strange:
            yield Problem("versions", repr(strange[0]), f"is no version of {series.prefix}; correct it or the prefix")
    for library in known.libraries:
        early = [version for version in library.released_on if VERSION.fullmatch(version) and Version(version).is_prerelease]
        if early and len(early) * MOST_FINAL < len(library.released_on):
            yield Problem(early[0], repr(early[0]), f"is a prerelease, and the other versions of {library.library} are final; leave it out")


def _documents(known: WorldFacts, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a document or a result that is not there, for a pattern that cannot be compiled, and for a bound that is missing."""
    documents = {path.name for path in (beside.data / "published").iterdir()} if (beside.data / "published").is_dir() else set()
    named = {reading.source for readings in (known.software, known.memory_readings) for reading in readings}
    missing = {source for source in named if re.fullmatch(r"\d{3}", source)} - documents
    # A checkout with some of the documents is not judged.
    for source in sorted(missing) if len(missing) < MOST_MISSING * len(documents) else ():
        yield Problem("source", repr(source), "there is no such document in data/published; correct the number")
    for software in known.software:
        for name, pattern in software.when.items():
            try:
                re.compile(pattern)
            except re.error as error:
                yield Problem(name, repr(pattern), f"is no regular expression: {error}")
    for reading in known.memory_readings:
        rows = beside.results_of(reading.source) if reading.left_out else set()
        for result in sorted(set(reading.left_out) - rows if rows else ()):
            yield Problem("left_out", repr(result), f"is no result of {reading.source}; {did_you_mean(result, rows)}")
    keys = {practice.key for practice in known.practices}
    for key in sorted(AUDITED - keys if keys else ()):
        yield Problem("practices", repr(key), "is missing, and the audit compares with it; add it again")


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
    """Yield a problem for a dataset with one class, with more classes or held-out rows than rows for training, or with other rows than its source."""
    stated = {int(number.replace(",", "")) for number in THOUSANDS.findall(dataset.source)}
    if stated and dataset.training_rows not in stated:
        yield Problem("training_rows", str(dataset.training_rows), f"the source says {', '.join(f'{rows:,}' for rows in sorted(stated))}")
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
