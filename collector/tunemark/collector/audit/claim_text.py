"""Claims in words, read by what they name: models, devices with their number, methods, formats, and figures by number and unit.

The whole text is scanned for each kind of thing in turn, and what one has read is not read again. `claims.toml` holds the words.
"""

import math
import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path

from tunemark.collector.audit.interval import APPROXIMATE, ROUGHLY, UNIT_S, Interval, duration, products_of
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.any_model import model_of_size, size_in_words
from tunemark.schema.facts.cards import AcceleratorCard, ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.names import sold_with, with_memory, words_of
from tunemark.schema.formats import GB, GIB, SIZES
from tunemark.schema.option_rates import TRAINED
from tunemark.schema.physics.architecture import count_parameters
from tunemark.schema.physics.families import FAMILIES
from tunemark.schema.plan_search import NODE
from tunemark.schema.records.published import Claim
from tunemark.schema.vocabulary import Method

CLAIMS = tomllib.loads(Path(__file__).with_name("claims.toml").read_text(encoding="utf-8"))
"""Words of claims, and the products that their figures must keep."""
CLAIM: str = CLAIMS["id"]
"""The record that a claim is audited as."""
WORD = re.compile(r"(?<![\w.,])[A-Za-z0-9][A-Za-z0-9.+]*(?<![.])")
GAP = re.compile(r"[ /_-]{1,2}")
LONGEST = 6
"""Words of a name at most."""
PAIR = 2
"""Figures before and after a change, or things that are compared."""
ITEM = re.compile(r"(?:[-*\N{BULLET}]|\d{1,2}[.)]) +(.*)")
"""A row of a list."""
SENTENCE = re.compile(r"[.;!?] ")
"""The end of a sentence within a text."""
ENDS = re.compile(r"[ :][~<>]?[\d.,]+[kKM]?$")
"""The end of a row that is a bare number."""
RULE = re.compile(r"[|: -]+")
"""The line between the heading and the rows of a table in Markdown."""
READ = "\N{BULLET}"
"""Stands in place of what was read."""
COUNT = rf"(?<![\w.,$€£-])(\d{{1,3}},\d{{3}}|\d{{1,5}}|\d{{1,3}}(?:\.\d)?k|{'|'.join(CLAIMS['numbers'])})"
MOST_IN_NODE = 16
"""Devices of a machine at most; a larger number is that of all machines."""
LITTLE_LESS = 0.8
"""Share of a figure that `just under` it may be."""
SAME_SIZE = 0.03
"""Share by which the size of a device may be rounded."""
FEWEST = 8
"""Tokens that a sample has at least."""
FEWEST_OF_JOB = 20_000
"""Tokens of a training at least: fewer are those of a row."""
IN_VOCABULARY = 0.05
"""Largest share of parameters in the embedding of the models that a size stands for in a claim: others need more memory than it may be about."""
Way = tuple[str, Interval]
"""A calculation, a figure as printed, or a fact in words, with its value."""
Variants = tuple[AcceleratorCard, ...]
"""The cards that a name of a device may mean, the usual one first."""


@dataclass(frozen=True, slots=True)
class Stated:
    """A figure of a text."""

    kind: str
    value: Interval
    printed: str
    place: int
    either: bool = False
    """True of a rate if words such as `per GPU` may make it one of each device, and of a memory if no word near it says that it is in use."""


@dataclass(frozen=True, kw_only=True)
class ClaimText:
    """What a text names and states."""

    text: str
    models: tuple[ModelCard, ...]
    devices: tuple[Variants, ...]
    """Each named device with the variants that its name may mean, the usual one first."""
    counts: tuple[int, ...]
    """Numbers of devices; empty if none is stated."""
    other_counts: tuple[int, ...]
    """Numbers of GPUs in general, beside those of a named device."""
    methods: tuple[Method, ...]
    formats: tuple[str, ...]
    targets: str | None
    memory_gib: float | None
    """Memory of a device without a name."""
    places: tuple[tuple[int, int, Variants], ...] = ()
    """Where the names of devices begin and end, with the variants of each."""
    between: str = ""
    """The text between the names of the first two devices."""
    sizes: tuple[float, ...] = ()
    """The parameters of each model if these are models of a size alone."""
    figures: tuple[Stated, ...] = ()
    left: tuple[str, ...] = ()
    """Numbers that were not understood, with the word after them."""
    several: frozenset[str] = frozenset()
    """Kinds of figures that the text states several of, and `models`, `methods` or `devices` if it names several."""

    @property
    def misfits(self) -> bool:
        """True if training is said not to fit, or to need more than all named devices have."""
        held = max((card.memory_gib or 0 for cards in self.devices for card in cards), default=0.0) * GIB * max(self.counts, default=1)
        needed = held and (self.counts or not self.says("many")) and self.says("needs")
        return self.says("not_fitting") or bool(needed and any(value.low > held for value in self.values("peak_memory_bytes")))

    @property
    def sized(self) -> float:
        """The parameters of the first model if it is one of a size alone; else 0."""
        return self.sizes[0] if self.sizes else 0.0

    def says(self, *kinds: str) -> bool:
        """Return True if one of the words of some kinds is in the text."""
        return any(words(kind).search(self.text) for kind in kinds)

    def said(self, kind: str) -> list[str]:
        """Return the words of a kind in the text, in lower case."""
        return [match[0].lower() for match in words(kind).finditer(self.text)]

    def stated(self, kind: str) -> list[Stated]:
        """Return the figures of a kind, in order."""
        return [each for each in self.figures if each.kind == kind]

    def values(self, kind: str) -> list[Interval]:
        """Return the values of a kind, in order."""
        return [each.value for each in self.stated(kind)]

    @property
    def growing(self) -> tuple[int, ...]:
        """The numbers of devices if they and the rates grow in the text; else none."""
        every, rates = [*self.counts, *self.other_counts], [each.value for each in self.values("tokens_per_s")]
        alone = max(len(self.models), len(self.methods), len(self.devices)) < PAIR <= len(every)
        return tuple(sorted(every)) if alone and (not rates or (every == sorted(every) and rates == sorted(rates))) else ()

    @property
    def cards(self) -> list[AcceleratorCard]:
        """The cards of all variants of the named devices."""
        return [card for variants in self.devices for card in variants]

    @property
    def counted(self) -> bool:
        """True if the text names devices or states their number."""
        return bool(self.devices or self.counts or self.other_counts)

    @property
    def numbers(self) -> list[int]:
        """The numbers of devices that a figure of a catalogue may be of: one, or as many as the text names."""
        return sorted({1, *self.counts, *self.other_counts})

    @property
    def possible_methods(self) -> tuple[Method, ...]:
        """The methods that are named, else all, and of encoders the usual one. Checkpoints of gpt-oss have experts of 4 bits, with any adapters."""
        encoders = self.models and all(FAMILIES[each.family].encoder for each in self.models)
        named = self.methods or ((Method.FULL,) if encoders else TRAINED)
        return (*named, Method.QLORA) if Method.QLORA not in named and any(each.family == "gpt_oss" for each in self.models) else named

    @property
    def other_work(self) -> str:
        """What it is about instead of supervised training; "" if it is about that."""
        others = ("reinforcement learning", "preference training", "inference")
        return next((name for name in others if self.says(name) and not self.says("supervised" if name == "inference" else "sft")), "")

    @property
    def offloads(self) -> bool:
        """True if states or weights wait in host memory."""
        return bool(words("offload").search(words("no_offload").sub(" ", self.text)))


def amounts(claim: ClaimText, kind: str) -> list[Way]:
    """Return the values of a figure with words: as stated, else by the first row of `derived` in claims.toml that gives any."""
    if kind == "devices":
        return [("", Interval.exact(float(count))) for count in (*claim.counts, *claim.other_counts)]
    derived = (products_of(row.split(), partial(amounts, claim)) for row in CLAIMS["derived"].get(kind, ()))
    stated = [(each.printed, each.value) for each in claim.stated(kind)]
    return stated or next((found for ways in derived if (found := list(ways))), [])


@cache
def words(name: str) -> re.Pattern[str]:
    """Return the pattern of a kind of words."""
    return pattern_of(CLAIMS["words"][name])


@cache
def pattern_of(text: str) -> re.Pattern[str]:
    """Return a pattern of `claims.toml` with its parts."""
    for name, part in {**CLAIMS["parts"], "count": COUNT}.items():
        text = text.replace(f"{{{name}}}", part)
    return re.compile(text, re.IGNORECASE)


def rows_of(text: str) -> list[str]:
    """Return each row of a table in Markdown, or of a list, in words behind what stands before all of them; without several rows the text alone."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip() and not RULE.fullmatch(line.strip())]
    items = [(place, place + 1, match[1]) for place, line in enumerate(lines) if (match := ITEM.match(line))]
    tables = [(place, [cell.strip() for cell in line.strip("|").split("|")]) for place, line in enumerate(lines) if "|" in line]
    if len(tables) > PAIR:
        (first, heads), *rows = tables
        items = [(first, place + 1, ", ".join(_cell(*each) for each in zip(heads, row, strict=False) if each[1])) for place, row in rows]
    if len(items) < PAIR:
        return [text]
    before, after = " ".join(lines[: items[0][0]]), " ".join(lines[items[-1][1] :])
    # `Tokens per second:` before a list is the unit of its numbers.
    unit = before.rstrip(" :)").rpartition("(" if before.endswith("):") else ",")[2].strip()
    unit = f" {unit}" if words("unit").search(unit) else ""
    # Figures that are stated of all rows together are of none alone.
    after = "" if words("comparison").search(after) or words("result").search(after) else after
    return [f"{before} {item}{unit if ENDS.search(item) else ''}. {after}".strip() for *_, item in items]


def _cell(head: str, cell: str) -> str:
    """Return a cell of a table in words: a bare number with its heading, which may be a unit or have one in brackets."""
    name, unit = re.fullmatch(r"(.*?)(?: ?\(([^)]*)\))?", head).groups(default="")  # type: ignore[union-attr]
    bare = re.fullmatch(r"[~<>]?[\d.,]+[kKM]?", cell)
    if bare and words("unit").search(name):
        return f"{cell} {head}"
    return f"{name} {cell} {unit}".rstrip() if bare or re.search(r"\d", f"{name}{cell}") else cell


def read_claim(facts: FactBase, text: str) -> ClaimText:
    """Return the names, figures and words of a text."""
    for row in CLAIMS["cleaned"]:
        text = pattern_of(row["words"]).sub(row["as"], text)
    text = re.sub(r"(?<![\w.])(\d+(?:\.\d+)?) ?(?:cents?\b|¢)", lambda match: f"${float(match[1]) / 100:g}", " ".join(text.split()))
    # Numbers in words before a size or a time.
    text = words("in_words").sub(lambda match: str(sum(CLAIMS["numbers"][each] for each in match[0].lower().split("-"))), text)
    text = words("coin_behind").sub(lambda match: f"{CLAIMS['coins'].get(match[2][0].lower(), match[2])}{match[1]}", text)
    scan = _Scan(text)
    models, nameless = _models(facts, scan), list[re.Match[str]]()
    while match := scan.take(words("nameless")):
        nameless.append(match)
    places, counts, others = _devices(facts, scan)
    counts = (*counts, *(_count(each[1]) for each in nameless[:1] if each[1]))
    on_cpu = words("on_cpu").search(text)
    scan.take(words("date"))
    figures = tuple(sorted(_of_rows(list(_figures(scan, text))), key=lambda each: each.place))
    sized = dict[float, ModelCard]()
    for size in () if models else words("size_of_model").finditer(text):
        every = facts.models.values()
        lean = [card for card in every if card.vocabulary * card.hidden_size <= IN_VOCABULARY * count_parameters(card).total]
        for cards in (every, lean):
            # No known model may have about this size.
            with suppress(TunemarkError):
                if found := model_of_size(cards, size[1]):
                    sized[_number(size[1]) or 0.0] = found.model_copy(update={"name": size_in_words(found, size[1])})
    claim = ClaimText(
        text=text,
        models=models or tuple(sized.values()),
        sizes=tuple(sized),
        devices=tuple({cards[0].key: cards for *_, cards in places if not on_cpu or cards[0].unit == "cpu"}.values()),
        counts=counts,
        other_counts=others,
        methods=tuple(Method(name) for name in ("full", "lora", "qlora", "peft") if name in _named(text, "methods")),
        formats=tuple(_named(words("stored").sub(" ", words("denied").sub(" ", text)), "formats")),
        targets=",".join(dict.fromkeys(re.findall(r"\b(?:[qkvo]|gate|up|down)_proj\b", text))) or next(iter(_named(text, "targets")), None),
        memory_gib=max((float(each[2]) for each in nameless), default=None),
        places=places,
        between=text[places[0][1] : places[1][0]] if len(places) >= PAIR else "",
        figures=figures,
        left=tuple(match[0].strip(" ,") for match in words("unread").finditer(words("version").sub(" ", scan.rest))),
    )
    return replace(claim, several=_several(claim))


def _several(claim: ClaimText) -> frozenset[str]:
    """Return the kinds of which a text has several, beside the sizes of its devices."""
    sizes = [n * (card.memory_gib or 0) * unit for cards in claim.devices for card in cards for n in claim.numbers for unit in (GB, GIB)]
    found = dict[str, set[str]]()
    for each in claim.figures:
        of_device = each.kind == "peak_memory_bytes" and any(math.isclose(each.value.value, size, rel_tol=SAME_SIZE) for size in sizes)
        if each.kind not in CLAIMS["kinds"]["by_model"] and not of_device:
            found.setdefault(each.kind.removesuffix("_each"), set()).add(f"{each.value.value:.3g}")
    named = {"models": claim.models, "methods": claim.methods, "devices": claim.devices}
    return frozenset(kind for kind, values in (found | named).items() if len(values) >= PAIR)


def _named(text: str, table: str) -> list[str]:
    """Return the names of a table whose words are in a text."""
    return [name for name, pattern in CLAIMS[table].items() if pattern_of(pattern).search(text)]


class _Scan:
    """A text, and what of it is not read yet."""

    def __init__(self, text: str) -> None:
        self.rest = text

    def read(self, start: int, end: int) -> None:
        """Mark a part as read."""
        self.rest = self.rest[:start] + READ * (end - start) + self.rest[end:]

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Return the first match, and mark it as read."""
        match = pattern.search(self.rest)
        if match:
            self.read(*match.span())
        return match

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield beginnings and ends of unread runs of words that are joined without a comma, the longest first."""
        spans = [match.span() for match in WORD.finditer(self.rest)]
        for length in range(LONGEST, 0, -1):
            for run in zip(*(spans[start:] for start in range(length)), strict=False):
                joined = all(GAP.fullmatch(self.rest[before[1] : after[0]]) for before, after in pairwise(run))
                if joined and READ not in self.rest[run[0][0] : run[-1][1]]:
                    yield run[0][0], run[-1][1]


def _models(facts: FactBase, scan: _Scan) -> tuple[ModelCard, ...]:
    """Return the models in order: those with a known name, then fine-tuned ones, whose name without a space holds that of the base and its size."""
    found = dict[int, str]()
    for exact in (True, False):
        for start, end in scan.runs():
            name = scan.rest[start:end]
            spelled = "".join(words_of(name))
            if exact and re.search(r"[a-z].*\d|bert|gpt", spelled):
                key = facts.model_keys.get(spelled) or facts.model_keys.get(name.lower())
            else:
                other = facts.find_model(name) if not exact and re.fullmatch(r"[^ ]*[a-z][^ ]*\d[bm]\b[^ ]*", name, re.IGNORECASE) else None
                key = other.key if other else None
            if key:
                found[start] = key
                scan.read(start, end)
    return tuple(facts.models[key] for key in dict.fromkeys(found[start] for start in sorted(found)))


def _variants(facts: FactBase, name: str, before: str, after: str) -> Variants:
    """Return the cards that a name of a device may mean, the usual one first; none, without a search for similar names, for words that name no device."""
    name = re.sub(r"\b(\d{2,3})GB?\b", r"\1GB", re.sub(r"(?<=[\dA-Za-z])s\b", "", name), flags=re.IGNORECASE)
    bare = re.sub(r"\b\d+ ?GB\b", "", name)
    alone = words("number_alone").search(before) and words("number_behind").match(after)
    number_alone = re.fullmatch(r"\d0[5-9]0", name) and (alone or words("number_before").search(before))
    card = facts.recognise_accelerator(name)
    named = card or number_alone or (re.search(r"\d", bare) and re.search(r"[A-Za-z]", bare))
    unlike = re.search(r"\b(?:gpus?|chips?|hbm\d?e?|gddr\d?x?)\b", name, re.IGNORECASE)
    if not named or unlike or not (card or facts.sharing_name(name)):
        return ()
    variants = [facts.accelerators[key] for key in facts.variants_of(name)]
    # None of several memories may be the usual one.
    with suppress(TunemarkError):
        usual = card or facts.accelerator(name, usual=True)
        variants = [usual, *(variants if usual.unit != "cpu" else [])]
    size = re.search(r"(\d+)GB", name)
    exact = [card for card in variants if size and card.memory_gib == float(size[1])]
    return tuple({each.key: each for each in exact or variants}.values())


def _devices(facts: FactBase, scan: _Scan) -> tuple[tuple[tuple[int, int, Variants], ...], tuple[int, ...], tuple[int, ...]]:
    """Return the places of the names of devices with their variants, and their numbers.

    Numbers are those next to the names, or else of GPUs in general; these else are others.
    """
    places, counts, others = list[tuple[int, int, Variants]](), list[int](), list[int]()
    nodes, racks = (
        [_count(each[1]) for each in words("nodes").finditer(scan.rest)],
        [int(each) for each in words("racks").findall(scan.rest)],
    )
    for start, end in scan.runs():
        name, before = scan.rest[start:end], scan.rest[:start]
        row = facts.by_instance.get(name.lower()) if "." in name else None
        variants = (facts.accelerators[row.accelerator],) if row else _variants(facts, name, before, scan.rest[end:])
        variants = () if words("laptop").match(scan.rest[end:]) else variants
        if variants:
            number, begin, until = _beside(before, scan.rest[end:], variants[0])
            counts += [int(each * (row.accelerator_count if row else 1)) for each in number or ([1] if row else [])]
            # A memory beside the name is that of the device, if it is sold with it.
            size = words("size").match(scan.rest[end:])
            if size and (sold := [with_memory(card, float(size[1])) for card in variants if sold_with(card, float(size[1]))]):
                variants, until = tuple(sold), max(until, size.end())
            scan.read(begin, end + until)
            places.append((begin, end + until, variants))
    if between := scan.take(words("from_to")):
        counts = counts or [_count(between[1]), _count(between[2])]
    while match := scan.take(words("devices")) or scan.take(words("rate_on")):
        others.append(_count(match[1]))
    others += racks
    if not counts or not places:
        # Of one device two numbers are before and after a change.
        first = 1 if places and not (len(places) == 1 and len(others) == PAIR) else len(others)
        counts, others = [*counts, *others[:first]], others[first:]
    if len(counts) == len(others) == 1 and words("more_of_them").search(scan.rest):
        counts, others = [*counts, *others], []
    if nodes and words("of_nodes").search(scan.rest):
        counts = [count * each if count <= MOST_IN_NODE else count for count, each in product(counts, nodes)]
    if counts:
        scan.take(words("nodes"))
    places.sort(key=lambda each: each[0])
    return (
        tuple(places),
        tuple(dict.fromkeys(filter(None, counts))),
        tuple(each for each in dict.fromkeys(others) if each and each not in counts),
    )


def _beside(before: str, after: str, card: AcceleratorCard) -> tuple[list[int], int, int]:
    """Return the numbers of devices around a name, two for `from 1 to 8`, where they begin, and how far they reach behind the name."""
    first, last = None if words("hours").match(after) else words("before").search(before), words("after").match(after)
    number = _count(first[1]) if first else 0
    if words("of_eight").search(before) and not card.name.startswith("GB"):
        number = max(number, 1) * NODE
    begin, until = first.start(1) if first else len(before), 0
    if last and (not last[3] or card.vendor == "Google"):
        # The slices of TPU v4 and v5p are named after their cores.
        number = max(number, 1) * int(next(filter(None, last.groups()))) // ((card.cores_per_unit or 1) if last[3] else 1)
        until = last.end()
    earlier = words("from").search(before[:begin]) if first else None
    numbers = [*([_count(earlier[1])] if earlier else []), *([number] if number else [])]
    return numbers, earlier.start(1) if earlier else begin, until


def _count(word: str) -> int:
    return int(CLAIMS["numbers"].get(word.lower()) or _number(word) or 0)


def _figures(scan: _Scan, text: str) -> Iterator[Stated]:
    """Yield the figures, with the one before a change first."""
    clear = text
    for kind, pattern in ((row["kind"], pattern) for row in CLAIMS["figures"] for pattern in row["patterns"]):
        place = 0
        while match := pattern_of(pattern).search(scan.rest, place):
            place, begin = match.end(), match.start()
            if stated := _stated(kind, match, text, clear):
                scale = stated.value.value / (_number(match["n"]) or _number(match["n"].split()[0]) or 1.0)
                least, first = (words(kind).search(scan.rest[:begin]) for kind in ("least", "first"))
                if least and (low := (_number(least[1]) or 0.0) * scale) < stated.value.value:
                    begin = least.start(1)
                    stated = replace(stated, value=replace(stated.value, low=low), printed=f"{least[0]}{stated.printed}")
                elif first and (earlier := _number(first[1])) and (first[2] or "")[:3].lower() in match[0].lower():
                    begin = first.start(1)
                    yield replace(stated, value=_interval(first[1], earlier) * scale, printed=first[1], place=begin)
                yield stated
                scan.read(begin, place)
                # What one figure is per says nothing about the next.
                clear = f"{clear[:begin]}{READ * (place - begin)}{clear[place:]}"


def _of_rows(figures: list[Stated]) -> Iterator[Stated]:
    """Yield the figures, with tokens that are too few for a training as those of a row, if no others are."""
    kinds = {each.kind for each in figures}
    rows = max((each.value.value for each in figures if each.kind == "samples"), default=0.0)
    for each in figures:
        few = each.kind == "tokens" and each.value.value < max(FEWEST * rows, FEWEST_OF_JOB)
        if not few or "sequence_length" not in kinds:
            yield replace(each, kind="sequence_length") if few else each


def _stated(kind: str, match: re.Match[str], text: str, clear: str) -> Stated | None:
    """Return a figure in the unit of its kind, a rate of one device as a kind of its own; None for another one. `clear` is without read figures."""
    start, end = match.span()
    number, before, after = match["n"].strip(), text[max(0, start - 40) : start], text[end : end + 24]
    if kind == "train_time_s" and not match.groupdict().get("t"):
        # `5:03h` is in hours and minutes, and a bare number in seconds.
        number = re.sub(r"^\d+:\d\d$", r"0:\g<0>" if "min" in match[0].lower() else r"\g<0>:00", re.sub(r"^[\d.]+$", r"\g<0> s", number))
        value = duration(number.rstrip(", ").replace(",", "").replace("-", " "))
    elif kind == "sequence_length" and re.fullmatch(r"\d+ ?k", number, re.IGNORECASE):
        value = 1024.0 * int(number[:-1])
    else:
        value = _number(number)
    ahead = f"{text[:start]}{match[0].partition(number)[0]}"
    kind = next((row["as"] for row in CLAIMS["turned"] if kind == row["kind"] and words(row["behind"]).search(ahead)), kind)
    clause = re.split(r"[;.,](?!\d)", before)[-1][-32:]
    behind_it = re.sub(r"^ (?:out )?of (?:the |its )?[\d.,]+ ?[GT]i?B", "", after)
    around = f"{clause} {READ} {re.split('[,(;.]', behind_it)[0][:16]}"
    small = (match.groupdict().get("p") or "").upper().startswith("M") and not words("of_memory").search(around)
    if not value or (kind == "peak_memory_bytes" and (small or words("not_of_device").search(around))):
        return None
    if kind == "train_time_s" and re.match(r" ?(?:per|an|/|each) ?(?:full |training )?epoch", after, re.IGNORECASE):
        kind = "epoch_time_s"
    near, behind = clear[max(0, start - 40) : start], clear[end : end + 24]
    whole = words("total").search(clause) or re.match(r" ?(?:in total|total|across|overall|together|aggregate|for the|combined)", after)
    beside = words("each_behind").match(behind) or words("each_before").search(clear[:start])
    alone = words("each").search(match[0]) or (beside and not whole)
    either = kind in CLAIMS["kinds"]["rates"] and not (alone or whole) and bool(words("each").search(f"{near} {READ} {behind}"))
    either = either or (
        kind == "peak_memory_bytes" and bool(re.search(r"\((?:about |around |~)?$", before) or not words("of_device").search(around))
    )
    amount = _in_unit(kind, _interval(number, value), match.groupdict())
    if kind in CLAIMS["kinds"]["changes"] and APPROXIMATE.search(f"{before[-12:]}{match[0]}".rpartition(number)[0]):
        amount = amount.widened(ROUGHLY - 1)
    if kind in {"cost_usd", "train_time_s", "weights_bytes"} and words("at_most").search(ahead):
        amount = replace(amount, low=LITTLE_LESS * amount.low if words("just").search(ahead) else 0.0)
    if kind in {"cost_usd", "train_time_s", *CLAIMS["kinds"]["rates"]} and words("at_least").search(ahead):
        amount = replace(amount, high=math.inf)
    return Stated(
        f"{kind}_each" if kind in CLAIMS["kinds"]["rates"] and alone else kind, amount, text[start:end].strip(" ,"), start, either
    )


def _in_unit(kind: str, amount: Interval, parts: dict[str, str]) -> Interval:
    """Return an amount in the unit of its kind: per second, in seconds, with the prefix of its unit, or as a share."""
    if per := (parts.get("t") or "").lower():
        seconds = UNIT_S["ms" if per.startswith(("ms", "milli")) else per[0]]
        return amount / seconds if kind.endswith("_per_s") else amount * seconds
    if kind in CLAIMS["kinds"]["shares"]:
        return amount * 0.01
    prefix = next((size for unit, size in CLAIMS["units"].items() if unit.lower() == (parts.get("p") or "").lower()), 1.0)
    return amount * prefix * (CLAIMS["units"]["Wh"] if kind == "energy_j" else 1.0)


def _number(text: str) -> float | None:
    """Return a number with its size."""
    low = text.strip().lower()
    match = re.fullmatch(r"([\d,]*\.?\d+) ?([a-z]*)", low)
    if match is None:
        return float((CLAIMS["numbers"] | CLAIMS["multiples"]).get(low, 0))
    return float(match[1].replace(",", "")) * SIZES[match[2]] if match[2] in SIZES else None


def _interval(printed: str, value: float) -> Interval:
    # `Twice` is as precise as `2x`.
    return Interval.of(Claim(value=value, printed=printed if re.search(r"\d", printed) else f"{value:g}"))
