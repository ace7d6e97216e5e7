"""Checks of the facts: text and names, and cards, workloads, known facts and prices against physics and the facts beside them.

What a field can say about itself is a bound of the field (`schema.facts`). A check yields problems; the caller knows file and line. The
ratios between fields of accelerator cards are a table, `card_relations.toml`; where a value is compared with those of the other cards of its
architecture, `notes` may explain it: name the field there. A price is compared with those of the same machine and provider.
"""

import json
import math
import re
import tomllib
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import islice, pairwise
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.cards import AcceleratorCard, AwsSizes, ModelCard, PriceBasis, PriceRow
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.names import cpu_name
from tunemark.schema.facts.workloads import GoldenLosses, WorkloadCard
from tunemark.schema.facts.world_facts import WorldFacts
from tunemark.schema.physics.architecture import count_parameters, targets_in
from tunemark.schema.plan.resolve import apply_overrides
from tunemark.schema.records.reading import Problem
from tunemark.schema.safe_text import is_visible
from tunemark.schema.vocabulary import PriceKind, Task, Weights

Content = TypeVar("Content")
DAY = re.compile(r'(?:_on"?\s*[:=]\s*"?|=\s*|,|^)(20\d\d-\d\d-\d\d)(?=[",\s}\]]|$)', re.MULTILINE)
"""A day as a value of TOML, JSON or CSV."""


def missing(field: str, key: str | None, known: Collection[str], folder: str) -> Iterator[Problem]:
    """Yield a problem for the key of a card that does not exist."""
    if key is not None and key not in known:
        yield Problem(field, repr(key), f"no such card in data/{folder}; {did_you_mean(key, known)}")


@dataclass(frozen=True)
class Neighbours(FactBase):
    """The facts that a fact is compared with. Those that cannot be read are left out: they have their own problem."""

    def read_folder(self, folder: str, reader: Callable[[Path], Content]) -> Iterator[Content]:
        """Yield the contents of the readable files of a folder."""
        for path in sorted((self.root / folder).glob("*.toml")):
            with suppress(TunemarkError):
                yield reader(path)

    @cached_property
    def spellings(self) -> dict[str, dict[str, set[str]]]:
        """Keys of the cards by spelling, for GPUs, CPUs and models: a GPU and a CPU may report one name, such as Apple M3 Max."""
        found: dict[str, dict[str, set[str]]] = {"device": {}, "cpu": {}, "model": {}}
        cards: list[AcceleratorCard | ModelCard] = [*self.accelerators.values(), *self.models.values()]
        for card in cards:
            for name in _names(card):
                found[_kind(card)].setdefault(_spelling(name, card), set()).add(card.key)
        return found


# Text ----------------------------------------------------------------------------------------------------

URL = re.compile(r"(?i)\b([a-z][a-z0-9+.-]{1,20})://([^\s\"'<>()\\,;]*)|\b(javascript:|vbscript:|data:[a-z]+/|file:/)")
HOST = re.compile(r"(?i)(?!.*xn--)[a-z0-9-]+(?:\.[a-z0-9-]+)*\.[a-z]{2,}(?::\d+)?(?:[/?#].*)?")
ESCAPE = re.compile(r"\\[uU]([0-9a-fA-F]{8}|[0-9a-fA-F]{4})")
_LIKE_LATIN = r"[\u0391\u0392\u0395-\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u03bf\u0400-\u052f\uff01-\uff5e]"
MIXED = re.compile(rf"[A-Za-z0-9]{_LIKE_LATIN}|{_LIKE_LATIN}[A-Za-z0-9]")
"""A Latin letter or digit beside a Cyrillic or full-width one, or a Greek one that looks Latin; not as in \u0394t."""
MARKUP = re.compile(r"<(?=[A-Za-z/!?])|\{\{|\{%|(?m:^|[,\"'])\s*[=+@-]\s*[A-Za-z.]+\s*[(|]")
"""What a browser, a template or a spreadsheet would run: the beginning of a tag, an expression, a formula that calls."""


def text_problems(text: str) -> Iterator[tuple[int, Problem]]:
    """Yield problems of the text of a file with their lines: hidden characters, look-alike letters, addresses of no web page, days to come.

    Names and sources reach tables, terminals and links of the site: an address is `http(s)` with a host name written in
    ASCII, without a user name in front of it; what cannot be seen does not belong into a fact.
    """
    plain = text.isascii() and not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text)
    for number, line in enumerate(text.splitlines() if not plain or "\\u" in text or "\\U" in text else (), start=1):
        shown = ESCAPE.sub(lambda match: chr(min(int(match[1], 16), 0x10FFFF)), line)
        hidden = next((character for character in shown if character != "\t" and not is_visible(character)), None)
        if hidden is not None:
            yield number, Problem("text", f"U+{ord(hidden):04X}", "a character that nobody can see; remove it")
        elif mixed := MIXED.search(shown):
            yield number, Problem("text", ascii(mixed[0]), "letters of two scripts in one word look like another name; use Latin letters")
    if match := MARKUP.search(text):
        fix = "facts are plain text: no tags, template expressions or formulas; write what it says in words"
        yield text.count("\n", 0, match.end()) + 1, Problem("text", repr(match[0].strip()), fix)
    for match in URL.finditer(text):
        if (match[1] or "").lower() not in {"http", "https"} or not HOST.fullmatch(match[2]):
            fix = "an address is https:// and a host name; name files and repositories without a scheme"
            yield text.count("\n", 0, match.start()) + 1, Problem("source", repr(match[0][:80]), fix)
    # The last day that has come anywhere, which is that of the time zone furthest ahead.
    last = (datetime.now(tz=UTC) + timedelta(days=1)).date().isoformat()
    for match in DAY.finditer(text):
        if match[1] > last:
            yield text.count("\n", 0, match.start()) + 1, Problem("day", match[1], "is in the future; correct the day")


def name_problems(card: AcceleratorCard | ModelCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a name of another card, in any spelling, and for letters that are not plain Latin.

    Devices are recognised and models found by these names; names compare without case, blanks and punctuation, and with
    the digits 0 and 1 as the letters that they look like.
    """
    vendor = (card.vendor, card.architecture or "") if isinstance(card, AcceleratorCard) else ()
    for name in (card.name, *card.aliases, *vendor):
        strange = next((letter for letter in name if not letter.isascii() and unicodedata.category(letter)[0] in "LNZM"), None)
        if strange is not None or name != name.strip():
            fix = "only Latin letters without accents, digits and single blanks are in names"
            yield Problem("aliases" if name in card.aliases else "name", ascii(name), fix)
    for name in _names(card):
        others = beside.spellings[_kind(card)].get(_spelling(name, card), set()) - {card.key}
        if others:
            where = "key" if name == card.key else "name" if name == card.name else "hub_id" if name not in card.aliases else "aliases"
            yield Problem(where, repr(name), f"is a name of {' and '.join(sorted(others))} too; a name belongs to one card")


def _names(card: AcceleratorCard | ModelCard) -> tuple[str, ...]:
    return (card.key, card.name, *card.aliases, *((card.hub_id,) if isinstance(card, ModelCard) and card.hub_id else ()))


def _kind(card: AcceleratorCard | ModelCard) -> str:
    return "model" if isinstance(card, ModelCard) else "cpu" if card.unit == "cpu" else "device"


def _spelling(name: str, card: AcceleratorCard | ModelCard) -> str:
    return skeleton(cpu_name(name) if _kind(card) == "cpu" else name)


def skeleton(name: str) -> str:
    """Return a name by its looks: lower case, no blanks and punctuation, l for 1, i and |, o for 0. A plus counts: 8480+."""
    looks = unicodedata.normalize("NFKC", name).casefold().translate(str.maketrans("01i|", "olll"))
    return re.sub(r"[^\w+]|_", "", looks)


# Accelerators ------------------------------------------------------------------------------------------

OF_FORMATS = "units of half the width do twice the work of a cycle, and matrix units multiply that by a power of two; figures are dense"
OF_OTHERS = "the known cards are within these limits"


@dataclass(frozen=True)
class Relation:
    """A row of the table: a field, or its ratio to another one, which physics bounds, and which is near that of a sibling."""

    of: str
    over: str = ""
    low: float = 0.0
    high: float = inf
    steps: Sequence[float] = ()
    off: float = 1.0
    siblings: float = inf
    because: str = ""
    given: str = ""
    """The row is only for cards that state this field."""
    before: int = 9999
    """The row is only for cards that were launched before this year."""
    cpu: bool = False

    def holds(self, ratio: float) -> bool:
        """Return True if a ratio is possible."""
        near = not self.steps or any(_factor(ratio, step) <= self.off for step in self.steps)
        return near and self.low <= ratio <= self.high


RELATIONS = [
    Relation(**row) for row in tomllib.loads(Path(__file__).with_name("card_relations.toml").read_text(encoding="utf-8"))["relations"]
]
LINES = ("GeForce", "RTX", "Radeon")
"""Lines of graphics cards. A line keeps its ratios over generations: GeForce halves products with fp32 sums, server cards do not."""
PRINTED_MEMORY = re.compile(r"(?i)(?<![\d.])(\d+(?:\.\d+)?)\s?-?g(?:i)?b\b")
KEPT_BY_DRIVER = 1.01  # Factor of a rounded size in a name over that on a card.


def accelerator_problems(card: AcceleratorCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield all problems of an accelerator card."""
    yield from name_problems(card, beside)
    yield from _identity(card, beside)
    siblings = _siblings(card, beside)
    for relation in RELATIONS:
        yield from _relation_problems(relation, card, siblings)
    # Superchips also print the memory of their CPU.
    printed = [float(size) for name in (card.key, card.name, *card.aliases) for size in PRINTED_MEMORY.findall(name.replace("-", " "))]
    if card.memory_gib and printed and all(_factor(size, card.memory_gib) > KEPT_BY_DRIVER for size in printed):
        yield Problem("memory_gib", f"{card.memory_gib:g}", f"the names of the card say {printed[0]:g}; a name and its card agree")


def _factor(one: float, other: float) -> float:
    return max(one / other, other / one)


def _identity(card: AcceleratorCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a key that begins with another vendor, and for another vendor's architecture."""
    if skeleton(card.key.split("-")[0]) != skeleton(card.vendor.split()[0]):
        yield Problem("vendor", repr(card.vendor), f"the key is {card.key}; a key begins with its vendor")
    others = [other for other in beside.accelerators.values() if other.key != card.key]
    written = {other.vendor for other in others if other.key.split("-")[0] == card.key.split("-")[0]}
    if written and card.vendor not in written:
        yield Problem("vendor", repr(card.vendor), f"other cards have {' and '.join(sorted(written))}; write it the same")
    owners = {other.vendor for other in others if other.architecture == card.architecture and card.architecture and card.cpu is None}
    if owners and card.vendor not in owners:
        yield Problem("architecture", repr(card.architecture), f"is one of {' and '.join(sorted(owners))}; correct it")


def _siblings(card: AcceleratorCard, beside: Neighbours) -> list[AcceleratorCard]:
    """Return the other cards that are built alike: of the same line of graphics cards, else of the same architecture."""

    def kind(of: AcceleratorCard) -> tuple[str, str | None, bool]:
        line = next((line for line in LINES if line in of.name.split()), "")
        return of.vendor, line or of.architecture, of.cpu is not None

    alike = kind(card)
    return [other for other in beside.accelerators.values() if other.key != card.key and alike[1] is not None and kind(other) == alike]


def _ratio(relation: Relation, card: AcceleratorCard) -> float | None:
    of, over = card.value(relation.of), card.value(relation.over) if relation.over else 1.0
    given = (not relation.given or card.value(relation.given) is not None) and (card.launch_year or 0) < relation.before
    return None if of is None or over is None or not given or (card.cpu is not None) != relation.cpu else of / over


def _relation_problems(relation: Relation, card: AcceleratorCard, siblings: list[AcceleratorCard]) -> Iterator[Problem]:
    """Yield a problem for a ratio that is impossible, or unlike that of all siblings."""
    ratio = _ratio(relation, card)
    if ratio is None:
        return
    # What a CPU does follows from its cores.
    field, what = relation.over if relation.cpu and relation.over else relation.of, " / ".join(filter(None, (relation.of, relation.over)))
    if not relation.holds(ratio):
        wanted = f"near {', '.join(f'{step:g}' for step in relation.steps)}" if relation.steps else f"{relation.low:g} to {relation.high:g}"
        fix = f"{what} is {ratio:.3g}, but must be {wanted}: {relation.because or (OF_FORMATS if relation.steps else OF_OTHERS)}; use figures of one table, and check the unit"
        yield Problem(field, f"{card.value(field):g}", fix)
        return
    # A card that is wrong by itself makes no other card wrong.
    known = [other for sibling in siblings if (other := _ratio(relation, sibling)) is not None and relation.holds(other)]
    nearest = min(known, key=lambda other: _factor(ratio, other), default=ratio)
    explained = any(name and name.removeprefix("cpu.") in (card.notes or "") for name in (relation.of, relation.over))
    if _factor(ratio, nearest) > relation.siblings and not explained:
        fix = f"{what} is {ratio:.3g}, and the nearest card of its kind has {nearest:.3g}; correct it, or explain the field in notes"
        yield Problem(field, f"{card.value(field):g}", fix)


# Models ----------------------------------------------------------------------------------------------


def model_problems(card: ModelCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield all problems of a model card."""
    yield from name_problems(card, beside)
    yield from _parameters(card)
    owner, owners = _owner(card), {_owner(other) for other in beside.models.values() if other.key != card.key} - {""}
    alike = {name for name in owners if skeleton(name) == skeleton(owner) and name != owner}
    if owner and alike:
        fix = f"its owner looks like {' and '.join(sorted(alike))}; write an owner the same on all cards"
        yield Problem("hub_id", repr(card.hub_id), fix)


def _owner(card: ModelCard) -> str:
    return (card.hub_id or "").partition("/")[0]


def _parameters(card: ModelCard) -> Iterator[Problem]:
    """Yield a problem where the stated parameters, to their last digit that is not zero, are not those counted from the shapes."""
    counted = count_parameters(card).total
    if card.parameters is not None:
        unit = 10 ** (len(digits := str(card.parameters)) - len(digits.rstrip("0")))
        if abs(card.parameters - counted) > unit / 2:
            yield Problem("parameters", str(card.parameters), f"the shapes on this card have {counted}; correct one of them")


# Workloads -------------------------------------------------------------------------------------------

PRINTED_SIZE = re.compile(r"(?i)(?<![a-z0-9.])((?:(\d+)x)?(\d+(?:\.\d+)?)([bm]))(?![a-z0-9])")
"""A number of parameters, such as `8x7B`: whole, experts, size and scale."""
NAME_FACTOR = 1.7
"""Titles round: `1B` may have 1.67e9 parameters (Falcon 3), `8x7B` shares its attention (0.83 of the product), `7B` may leave out embeddings (8.5e9)."""
MOST_ROWS, HIGHEST_RATE = 4096, 1.0
"""Rows that one device holds at once, and peak learning rate (of fine-tuning about 1e-6 to 1e-2), on a card. A run may have more, to see it fail."""
NEAR_LN = 0.15
"""Untrained weights guess: their loss is the logarithm of the number of choices, a few percent above it for finite initial scales."""


def workload_problems(card: WorkloadCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield problems of a workload card: settings that no run has, and those that its model or dataset contradict."""
    data, rows = card.data, beside.known.dataset(card.data.name)
    held_out = max(rows.validation_rows or 0, rows.test_rows or 0) if rows else 0
    for name, value, most, of in (
        ("batch.micro_batch", card.batch.micro_batch, MOST_ROWS, "a card"),
        ("optimizer.learning_rate", card.optimizer.learning_rate, HIGHEST_RATE, "a card"),
        ("training_rows", data.training_rows or 0, rows.training_rows if rows else 0, data.name),
        ("evaluation_rows", data.evaluation_rows, held_out, data.name),
    ):
        if value > most > 0:
            yield Problem(name, str(value), f"{of} has {most} at most")
    if (model := beside.models.get(card.model)) is not None:
        yield from _against_model(card, model)


def _against_model(card: WorkloadCard, model: ModelCard) -> Iterator[Problem]:
    """Yield settings that the model contradicts: its size in the title, and its layers."""
    counted = count_parameters(model).total
    for shown, experts, size, scale in PRINTED_SIZE.findall(card.title):
        printed = int(experts or 1) * float(size) * (1e9 if scale in "bB" else 1e6)
        if not 1 / NAME_FACTOR <= counted / printed <= NAME_FACTOR:
            fix = f"the title says {shown}, and {card.model} has {counted / 1e9:.3g}e9 parameters; correct the title or the model"
            yield Problem("model", repr(card.model), fix)
    try:
        targets_in(model, card.lora.target_modules if card.lora else ())
    except TunemarkError as error:
        yield Problem("target_modules", repr(error.value), error.fix)


def setting_problems(card: WorkloadCard) -> Iterator[Problem]:
    """Yield problems of the axes and points of a card: settings that a card does not have, and values that they cannot take."""
    varied = [(axis.field, {**axis.at, axis.field: value}) for axis in card.axes for value in axis.values]
    varied += [("", settings) for settings in card.points]
    for name, settings in varied:
        try:
            apply_overrides(card, tuple(f"{field}={json.dumps(value)}" for field, value in settings.items()))
        except TunemarkError as error:
            yield Problem("field", repr(error.value or name), f"{error.fix}; correct the axis or the point")


def golden_problems(golden: GoldenLosses, beside: Neighbours) -> Iterator[Problem]:
    """Yield problems of golden losses: not of this card, not those of a run that starts untrained and learns."""
    yield from missing("key", golden.key, beside.workloads, "workloads")
    card = beside.workloads.get(golden.key)
    if card is None:
        return
    model, sha256 = beside.models.get(card.model), beside.workload_sha256(card.key)
    if golden.workload_sha256 != sha256:
        yield Problem("workload_sha256", golden.workload_sha256, f"the card has {sha256}; record the losses again with the card as it is")
    steps = sorted(golden.losses.items())
    choices = card.labels if card.task is Task.SEQUENCE_CLASSIFICATION else model and model.vocabulary
    if card.weights is Weights.RANDOM and choices and steps and abs(steps[0][1] / math.log(choices) - 1) > NEAR_LN:
        fix = f"random weights begin near ln({choices}) = {math.log(choices):.4f}; record the losses again"
        yield Problem(str(steps[0][0]), f"{steps[0][1]:g}", fix)
    for (_, before), (step, loss) in pairwise(steps):
        if not 0 < loss <= before * (1 + golden.tolerance):
            yield Problem(str(step), f"{loss:g}", f"follows {before:g}, and losses fall, to more than 0; check the digits")


# Known facts -----------------------------------------------------------------------------------------

THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+")


def known_problems(known: WorldFacts, beside: Neighbours) -> Iterator[Problem]:
    """Yield problems of known facts."""
    for entries, fields in ONCE.items():
        keys = Counter(" ".join(str(getattr(entry, field)) for field in fields) for entry in getattr(known, entries))
        yield from (Problem(fields[-1], repr(key), f"is stated {times} times; keep one entry") for key, times in keys.items() if times > 1)
    yield from _references(known, beside)
    for dataset in known.datasets:
        stated = {int(number.replace(",", "")) for number in THOUSANDS.findall(dataset.source)}
        if stated and dataset.training_rows not in stated:
            said = ", ".join(f"{rows:,}" for rows in sorted(stated))
            yield Problem("training_rows", str(dataset.training_rows), f"the source says {said}")


ONCE = {
    "libraries": ["library"], "releases": ["library", "version"], "generations": ["architecture"], "architectures": ["family", "library"],
    "requirements": ["library", "needs", "since"], "practices": ["key"], "datasets": ["key"], "memory_readings": ["source"],
    "withdrawn": ["result_id"],
}  # fmt: skip
"""Entries of known facts -> the fields that no two of them share: only one would be read."""


def _references(known: WorldFacts, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a name without a card."""
    named = [("tokenizer", lengths.tokenizer) for dataset in known.datasets for lengths in dataset.token_lengths]
    named += [("model", shared.model) for shared in known.shared_names]
    for field, model in named:
        yield from missing(field, model, beside.models, "models")
    architectures = {card.architecture for card in beside.accelerators.values() if card.vendor == "NVIDIA" and card.architecture}
    for entry in known.generations:
        if entry.architecture not in architectures:
            fix = f"no card of NVIDIA has this architecture; {did_you_mean(entry.architecture, architectures)}"
            yield Problem("architecture", repr(entry.architecture), fix)


# Prices --------------------------------------------------------------------------------------------------

Row = tuple[int, PriceRow]
PRICE_STEP = 3.0
"""A provider's price of an accelerator-hour changes by less between its nearest machines and days: the largest cut was 1.8x (2025)."""


def price_problems(rows: Sequence[Row], beside: Neighbours) -> Iterator[tuple[int, Problem]]:
    """Yield the problems of the rows of a price book, each with its line."""
    machines, offers = defaultdict[str, list[Row]](list), defaultdict[str, list[Row]](list)
    for line, row in rows:
        machines[row.instance].append((line, row))
        offers[row.accelerator].append((line, row))
    for line, row in rows:
        card = beside.accelerators.get(row.accelerator)
        same = [other for number, other in machines[row.instance] if number != line]
        others = [other for number, other in offers[row.accelerator] if number != line]
        for problem in (*_machine(row, card, same), *islice(_price(row, same, others), 1)):
            yield line, problem


def _machine(row: PriceRow, card: AcceleratorCard | None, same: Sequence[PriceRow]) -> Iterator[Problem]:
    """Yield a problem for a machine that other rows describe otherwise, or that cannot exist."""
    if card is not None and card.launch_year and row.effective_on.year < card.launch_year:
        yield Problem("effective_on", str(row.effective_on), f"the device was launched in {card.launch_year}; correct the day")
    for name in ("provider", "accelerator", "accelerator_count", "vcpus", "memory_gib"):
        value = getattr(row, name)
        stated = [getattr(other, name) for other in same if getattr(other, name) is not None]
        if value is not None and stated and stated.count(value) * 2 < len(stated) + 1:
            yield Problem(name, repr(value), f"another row of {row.instance} has {stated[0]!r}; a machine has one shape")
    if card is not None and card.cpu is None and not row.accelerator_count.is_integer():
        yield Problem("accelerator_count", f"{row.accelerator_count:g}", "only CPUs are sold in parts; write whole devices")


def _price(row: PriceRow, same: Sequence[PriceRow], others: Sequence[PriceRow]) -> Iterator[Problem]:
    """Yield a problem for a price far from its neighbours: of the machine on demand, and of the provider."""
    shown, in_region = f"{row.usd_per_hour:g}", [other for other in same if (other.region, other.provider) == (row.region, row.provider)]
    if row.kind in {PriceKind.SPOT, PriceKind.RESERVED}:
        on_demand = [other for other in in_region if other.kind is PriceKind.ON_DEMAND]
        # The price on demand that held on the day; without one, the highest of any day.
        latest_day = max((other.effective_on for other in on_demand if other.effective_on <= row.effective_on), default=None)
        list_price = max((other.usd_per_hour for other in on_demand if latest_day in {None, other.effective_on}), default=math.inf)
        if row.usd_per_hour > list_price:
            fix = f"a {row.kind.value} price is not above the price on demand, {list_price:g}; swap them or correct it"
            yield Problem("usd_per_hour", shown, fix)
    near = [other for other in in_region if other.kind is row.kind]
    near = near or [other for other in others if (other.provider, other.kind) == (row.provider, row.kind)]
    nearest = min((_price_factor(row, other) for other in near), default=1.0)
    if nearest > PRICE_STEP:
        fix = f"differs by a factor of {nearest:.3g} from the nearest price of {row.provider} for it"
        yield Problem("usd_per_hour", shown, f"{fix}; prices are US dollars per hour of the whole machine")


def _price_factor(row: PriceRow, other: PriceRow) -> float:
    """Return the factor between two prices for each device, or for each vCPU if that is smaller: large machines have one device too."""
    parts = [(row.accelerator_count, other.accelerator_count), (row.vcpus, other.vcpus)]
    return min(_factor(row.usd_per_hour / one, other.usd_per_hour / two) for one, two in parts if one and two)


# The files beside the price book -----------------------------------------------------------------------


def basis_problems(basis: PriceBasis, offers: Sequence[dict[str, Any]]) -> Iterator[Problem]:
    """Yield the providers and instances of a price basis that are not in the price book, and providers without a list price."""
    known = {str(row["provider"]) for row in offers}
    with_lists = {str(row["provider"]) for row in offers if row["kind"] == PriceKind.ON_DEMAND.value}
    for provider in basis.providers:
        if provider not in known:
            yield Problem("providers", repr(provider), f"has no price in prices.csv; {did_you_mean(provider, known)}")
        elif provider not in with_lists:
            fix = "has no price on demand in prices.csv; the basis holds providers with list prices, no marketplaces"
            yield Problem("providers", repr(provider), fix)
    sold = {(str(row["provider"]), str(row["instance"])) for row in offers}
    for entry in basis.fabric:
        if (entry.provider, entry.instance) not in sold:
            named = {instance for provider, instance in sold if provider == entry.provider}
            fix = f"{entry.provider} has no price of it in prices.csv; {did_you_mean(entry.instance, named)}"
            yield Problem("instance", repr(entry.instance), fix)


def size_problems(sizes: AwsSizes, offers: Sequence[dict[str, Any]]) -> Iterator[Problem]:
    """Yield the instances of AWS with a price that are not among the sizes that AWS sells."""
    for instance in dict.fromkeys(str(row["instance"]) for row in offers if row["provider"] == "aws"):
        family, _, size = instance.partition(".")
        if size not in sizes.families.get(family, [size]):
            yield Problem(family, repr(size), f"is missing: {instance} has a price in prices.csv; add it, or correct the price")
