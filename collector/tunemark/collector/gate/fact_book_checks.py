"""Checks of the price book, workloads with their golden losses, published and converted results, and known facts.

Each fact is compared with its neighbours: prices with those of the same machine, claims with their printed text, releases with
those before and after. A check yields problems; the caller knows the file and the line.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from itertools import pairwise
from pathlib import Path

from packaging.version import Version
from pydantic import BaseModel

from tunemark.collector.gate.fact_checks import Neighbours, day_problems, skeleton, source_problems, text_problems
from tunemark.collector.importers.table_text import PER_DEVICE, printed_value
from tunemark.schema.errors import did_you_mean
from tunemark.schema.facts.cards import AcceleratorCard, ModelCard, PriceRow
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.names import AWS
from tunemark.schema.facts.workloads import GoldenLosses, WorkloadCard
from tunemark.schema.facts.world_facts import Library, WorldFacts
from tunemark.schema.physics.architecture import FAMILIES
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.records.claims import Claim
from tunemark.schema.records.converted import ConvertedResult
from tunemark.schema.records.published import Conditions, PublishedResult, PublishedSet, SourceDocument, Statement, published_results
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.vocabulary import Method, PriceKind, Task, Weights

# Prices ----------------------------------------------------------------------------------------------

Row = tuple[int, PriceRow]
FIRST_CLOUD = date(2015, 1, 1)
"""Before the first cloud accelerator that anybody still trains on (K80, 2016)."""
PRICE_STEP = 3.0
"""A provider's price of an accelerator-hour changes by less between its nearest machines and days: the largest cut was 1.8x (2025)."""
CPU_PRICE_STEP = 1.6
"""CPU machines cost the same per core whatever their size; families with twice the memory per core cost 1.5x."""
LARGEST_DISCOUNT = 0.08
"""Spot prices are up to 90% below those on demand, as their providers say; the lowest of the book is 0.1 of it."""
MARKET_STEP = 4.0
"""Beyond the cheapest and the dearest offer of others, a provider is rarely off by more: the same card differs 4x between clouds."""
USD_PER_PFLOP_H = (0.25, 75.0)
"""Dense 16-bit PFLOP for an hour: 0.8 (old cards on marketplaces) to 24 (V100 at list price), with a factor of three on both sides."""
USD_PER_VCPU_H = (0.003, 0.3)
"""CPU machines cost 0.02 to 0.06 per vCPU-hour at list price."""
GIB_PER_VCPU = (0.5, 64.0)
"""Machines have 1 (vast) to 21 GiB per vCPU."""
SHAPE_STEP = 8.0
"""Machines with the same card at one provider differ less in vCPUs or memory per card: g5.xlarge has 4, g5.24xlarge 24 per card."""
COUNT_IN_NAME = re.compile(
    r"^(\d+)x[_-]|_(\d+)x_|_(\d+)gpu-|-(\d+)g$|gpu-[a-z]+\d+x(\d+)-|^BM\.GPU\..*\.(\d+)$|^(\d+)(?=(?:RTXPRO|[ABHLV])\w+\.\d+)"
)
"""How providers write the number of cards into the name of a machine."""
VCPUS_IN_NAME = re.compile(r"-(\d+)vcpu-|^[acegmn]\d[a-z]?-(?:standard|highcpu|highmem)-(\d+)$")
ODD_NAME = re.compile(r"[^A-Za-z0-9._+-]")


def price_problems(rows: Sequence[Row], beside: Neighbours) -> Iterator[tuple[int, Problem]]:
    """Yield the problems of the rows of a price book, each with its line."""
    machines, offers = defaultdict[str, list[Row]](list), defaultdict[str, list[Row]](list)
    for line, row in rows:
        machines[row.instance].append((line, row))
        offers[row.accelerator].append((line, row))
    families = _families(rows)
    tokens = {card.key: _tokens(card) for card in beside.accelerators.values() if card.unit != "cpu"}
    providers = {skeleton(row.provider): row.provider for _, row in reversed(rows)}
    for line, row in rows:
        card = beside.accelerators.get(row.accelerator)
        same = [other for number, other in machines[row.instance] if number != line]
        others = [other for number, other in offers[row.accelerator] if number != line]
        found = [
            *_price_source(row, card),
            *_machine(row, same, families),
            *_names(row, tokens, providers),
            *_shape(row, card, others),
            *_price(row, card, same, others),
        ]
        for problem in found:
            yield line, problem


def _price_source(row: PriceRow, card: AcceleratorCard | None) -> Iterator[Problem]:
    yield from source_problems(row)
    launched = date(card.launch_year, 1, 1) if card is not None and card.launch_year else FIRST_CLOUD
    yield from day_problems("effective_on", row.effective_on, max(launched, FIRST_CLOUD))


def _families(rows: Iterable[Row]) -> dict[tuple[str, str], set[str]]:
    """Return the accelerators of each family of machines; only AWS and Google Cloud name families."""
    found = defaultdict[tuple[str, str], set[str]](set)
    for _, row in rows:
        if family := _family(row):
            found[row.provider, family].add(row.accelerator)
    return found


def _family(row: PriceRow) -> str | None:
    return {"aws": row.instance.partition(".")[0], "gcp": row.instance.rpartition("-")[0]}.get(row.provider)


def _machine(row: PriceRow, same: Sequence[PriceRow], families: dict[tuple[str, str], set[str]]) -> Iterator[Problem]:
    """Yield a problem where a machine has another shape or provider in another row, or its family has another accelerator."""
    for name in ("provider", "accelerator", "accelerator_count", "vcpus", "memory_gib"):
        value = getattr(row, name)
        stated = [getattr(other, name) for other in same if getattr(other, name) is not None]
        if value is not None and stated and stated.count(value) * 2 < len(stated) + 1:
            yield Problem(name, repr(value), f"another row of {row.instance} has {stated[0]!r}; a machine has one shape")
    family = _family(row)
    if family and not same and len(accelerators := families[row.provider, family]) > 1:
        fix = f"the family {family} has {', '.join(sorted(accelerators - {row.accelerator}))} in other rows; a family has one accelerator"
        yield Problem("accelerator", repr(row.accelerator), fix)


def _names(row: PriceRow, tokens: dict[str, set[str]], providers: dict[str, str]) -> Iterator[Problem]:
    """Yield a problem for a name that looks like another, and for an accelerator or numbers that the name of the machine contradicts."""
    if providers[skeleton(row.provider)] != row.provider:
        fix = f"looks like {providers[skeleton(row.provider)]!r}; write a provider the same in all rows"
        yield Problem("provider", repr(row.provider), fix)
    if odd := ODD_NAME.search(row.instance):
        yield Problem("instance", ascii(row.instance), f"{odd[0]!a} is in no name of a machine; write it as the provider does")
    if AWS.fullmatch(row.instance) and row.provider != "aws":
        yield Problem("provider", repr(row.provider), f"{row.instance} is a name of aws; correct the provider or the instance")
    named = {token for known in tokens.values() for token in known if _has(row.instance, token)}
    if row.accelerator in tokens and named and not named & tokens[row.accelerator]:
        owners = sorted(key for key, known in tokens.items() if known & named)
        yield Problem("accelerator", repr(row.accelerator), f"the name {row.instance} says {' or '.join(owners)}")
    for name, pattern in (("accelerator_count", COUNT_IN_NAME), ("vcpus", VCPUS_IN_NAME)):
        match, value = pattern.search(row.instance), getattr(row, name)
        if match and value is not None and int(match[match.lastindex or 1]) != value:
            yield Problem(name, f"{value:g}", f"the name {row.instance} says {match[match.lastindex or 1]}; correct the one or the other")


def _tokens(card: AcceleratorCard) -> set[str]:
    """Return the words of a key that name its device, such as h100, mi300x or rtx4090."""
    joined = re.sub(r"rtx-(pro-)?(a?\d+)", lambda match: f"rtx{'pro' if match[1] else ''}{match[2]}", card.key)
    return {part for part in joined.split("-") if re.fullmatch(r"(?:rtx(?:pro)?a?|gb|gh|mi|[abhlt])\d{1,4}[a-z]{0,2}|v\d{3}", part)}


def _has(instance: str, token: str) -> bool:
    return re.search(rf"(?<![a-z]){token}(?![a-z0-9])", instance.lower().replace("rtx_", "rtx").replace("pro_", "pro")) is not None


def _shape(row: PriceRow, card: AcceleratorCard | None, others: Sequence[PriceRow]) -> Iterator[Problem]:
    """Yield problems of vCPUs, memory and count of a machine: against each other, its CPU, and the provider's machines like it."""
    if row.vcpus and row.memory_gib and not GIB_PER_VCPU[0] <= row.memory_gib / row.vcpus <= GIB_PER_VCPU[1]:
        fix = f"is {row.memory_gib / row.vcpus:.3g} GiB per vCPU; machines have {GIB_PER_VCPU[0]:g} to {GIB_PER_VCPU[1]:g}; check the unit"
        yield Problem("memory_gib", f"{row.memory_gib:g}", fix)
    if card is not None and card.cpu is not None:
        cores = row.accelerator_count * card.cpu.cores
        # One or two threads of each core are sold; the fraction in the book is rounded.
        if row.vcpus and min(abs(row.vcpus / cores - threads) for threads in (1, 2)) > 0.01:  # noqa: PLR2004
            fix = f"{row.vcpus} vCPUs are one or two threads of {row.vcpus} or {row.vcpus / 2:g} of the {card.cpu.cores} cores"
            yield Problem("accelerator_count", f"{row.accelerator_count:g}", f"{fix}; correct it")
        threads = Counter(round(other.vcpus / other.accelerator_count / card.cpu.cores) for other in others if other.vcpus)
        if row.vcpus and threads and round(row.vcpus / cores) not in threads:
            fix = f"is {row.vcpus / cores:.2g} vCPUs per core; other machines with this CPU have {min(threads)}"
            yield Problem("accelerator_count", f"{row.accelerator_count:g}", f"{fix}; correct it")
        return
    if not row.accelerator_count.is_integer():
        yield Problem("accelerator_count", f"{row.accelerator_count:g}", "only CPUs are sold in parts; write whole devices")
    for name in ("vcpus", "memory_gib"):
        value = getattr(row, name)
        per_card = [
            getattr(other, name) / other.accelerator_count for other in others if other.provider == row.provider and getattr(other, name)
        ]
        if value and per_card and not min(per_card) / SHAPE_STEP <= value / row.accelerator_count <= max(per_card) * SHAPE_STEP:
            fix = f"is {value / row.accelerator_count:.3g} per device; other machines of {row.provider} with it have {min(per_card):.3g} to {max(per_card):.3g}"
            yield Problem(name, f"{value:g}", fix)


def _price(row: PriceRow, card: AcceleratorCard | None, same: Sequence[PriceRow], others: Sequence[PriceRow]) -> Iterator[Problem]:
    """Yield a problem for a price far from its neighbours: of the machine, the provider, the market, and the speed that it buys."""
    hourly = row.usd_per_hour / row.accelerator_count
    shown = f"{row.usd_per_hour:g}"
    in_region = [other for other in same if other.region == row.region and other.provider == row.provider]
    if row.kind in {PriceKind.SPOT, PriceKind.RESERVED}:
        list_price = max((other.usd_per_hour for other in in_region if other.kind is PriceKind.ON_DEMAND), default=math.inf)
        if row.usd_per_hour > list_price:
            yield Problem(
                "usd_per_hour", shown, f"a {row.kind.value} price is not above the price on demand, {list_price:g}; swap them or correct it"
            )
            return
        if list_price < math.inf and row.usd_per_hour < LARGEST_DISCOUNT * list_price:
            fix = f"is {row.usd_per_hour / list_price:.1%} of the price on demand, {list_price:g}; prices are for the whole machine"
            yield Problem("usd_per_hour", shown, fix)
            return
    near = [other for other in in_region if other.kind is row.kind] or [
        o for o in others if (o.provider, o.kind) == (row.provider, row.kind)
    ]
    factors = [max(hourly / each, each / hourly) for other in near if (each := other.usd_per_hour / other.accelerator_count)]
    if min(factors, default=1.0) > (PRICE_STEP if card is None or card.cpu is None else CPU_PRICE_STEP):
        fix = f"is {min(factors):.3g}x off the nearest price of {row.provider} for it; prices are US dollars per hour of the whole machine"
        yield Problem("usd_per_hour", shown, fix)
        return
    market = [other.usd_per_hour / other.accelerator_count for other in others]
    if market and not min(market) / MARKET_STEP <= hourly <= max(market) * MARKET_STEP:
        fix = f"is {hourly:.3g} per device, others have {min(market):.3g} to {max(market):.3g}; prices are US dollars per hour of the whole machine"
        yield Problem("usd_per_hour", shown, fix)
        return
    peak = card and max((value for kind, value in card.peak_tflops.items() if kind.value in {"bf16", "fp16"}), default=0.0)
    per: float
    if card is not None and card.cpu is not None:
        per, (low, high), what = row.vcpus or 0, USD_PER_VCPU_H, "vCPU-hour"
    else:
        per, (low, high), what = (peak or 0) / 1000 * row.accelerator_count, USD_PER_PFLOP_H, "dense PFLOP/s-hour"
    if per and not low <= row.usd_per_hour / per <= high:
        yield Problem(
            "usd_per_hour", shown, f"is {row.usd_per_hour / per:.3g} per {what}; the market has {low:g} to {high:g}; check the unit"
        )


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
    rows = beside.world.dataset(card.data.name)
    if rows is not None:
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


# Published and converted results -----------------------------------------------------------------------

ROUNDING = 5e-6
"""Relative rounding of a printed figure: the importers of logs print six significant digits."""
WHOLE_BYTE = 1.0
AHEAD = 2
MOST_DEVICES = 1_000_000
LONGEST_ROW = 2**24
SHARES = ("accuracy", "f1", "exact_match", "token_accuracy")
"""Shares of rows or tokens, which nothing can exceed. An MFU above 1 is a claim that the audit judges."""


def fact_record_problems(record: BaseModel, content: bytes, path: Path, facts: FactBase) -> Iterator[Problem]:
    """Yield the problems of the file of a document, of a published or converted result, or of a set of results."""
    for line, problem in text_problems(content.decode()):
        yield replace(problem, field=f"line {line}: {problem.field}")
    results = published_results(record)
    for result in results:
        for problem in (*result_problems(result), *condition_problems(result.conditions, facts)):
            yield replace(problem, field=f"{result.id}: {problem.field}") if isinstance(record, PublishedSet) else problem
    if isinstance(record, SourceDocument):
        yield from _document(record)
    elif isinstance(record, ConvertedResult):
        yield from condition_problems(record.conditions, facts)
        yield from _converted(record)
    yield from _place(path, [record.id] if isinstance(record, SourceDocument) else [result.id for result in results])


def result_problems(result: PublishedResult | Statement) -> Iterator[Problem]:
    """Yield problems of the claims of a result or a statement."""
    conditions = result.conditions if isinstance(result, PublishedResult) else None
    yield from _labels(result) if isinstance(result, PublishedResult) else ()
    for quantity, claim in result.claims.items():
        for problem in claim_problems(quantity, claim, conditions):
            yield Problem(f"claims.{quantity}.{problem.field}", problem.value, problem.fix)


def _labels(result: PublishedResult) -> Iterator[Problem]:
    """Yield conditions that the words of the document's own table contradict: the method, and the number of devices."""
    labels, conditions = result.labels, result.conditions
    words = re.search(r"\b(q?lora|full)\b", labels.get("method") or "", re.IGNORECASE)
    # Tables call adapters on quantised weights LoRA too.
    printed_method = words[1].lower() if words else None
    alike = {"lora": {Method.LORA, Method.QLORA}, "qlora": {Method.QLORA}, "full": {Method.FULL}}.get(printed_method or "")
    if alike is not None and conditions.method is not None and conditions.method not in alike:
        yield Problem("conditions.method", repr(conditions.method.value), f"the label of the table is {labels['method']!r}")
    printed = re.search(r"\bx ?(\d+)\b|\u00d7 ?(\d+)\b|^(\d+) ?[x\u00d7]", labels.get("accelerator") or "")
    count = next((int(number) for number in printed.groups() if number), None) if printed else None
    if count is not None and conditions.accelerator_count not in {None, count}:
        yield Problem(
            "conditions.accelerator_count", str(conditions.accelerator_count), f"the label of the table is {labels['accelerator']!r}"
        )


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
        newest = max((int(found[0]) for version in library.released_on if (found := re.match(r"\d+", version))), default=0)
        if match and int(match[1]) > newest + AHEAD:
            fix = f"{newest} is the newest major version known on {library.read_on}; correct it, or run `tunemark import releases`"
            yield Problem(f"conditions.framework.{library.library}", repr(conditions.framework[library.library]), fix)


def _never_released(printed: str, library: Library) -> bool:
    """Return True for a final version of a series of which other releases are known, and this one is not."""
    if not re.fullmatch(r"v?\d+\.\d+\.\d+", printed):
        return False
    version, known = Version(printed), set(map(Version, library.released_on))
    return version < library.newest and version not in known and any(other.release[:2] == version.release[:2] for other in known)


def claim_problems(quantity: str, claim: Claim, conditions: Conditions | None) -> Iterator[Problem]:
    """Yield a problem if a value is not its printed figure in the unit of its quantity.

    A note may state how one follows from the other: per device, divided by a number, or worked out from two printed figures.
    """
    values = [claim.value, *(reading.value for reading in claim.readings)]
    if min(values) < 0:
        yield Problem("value", f"{min(values):g}", "is negative; no quantity here is")
    if quantity.startswith(SHARES) and max(values) > 1:
        yield Problem("value", f"{max(values):g}", "is above 1; a share of all rows is stored as 0 to 1")
    if claim.readings and claim.value not in values[1:]:
        yield Problem("readings", repr(values[1:]), f"none is the value, {claim.value:g}; the value is the literal reading")
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


def _document(document: SourceDocument) -> Iterator[Problem]:
    """Yield problems of a document: its address and days, and the ids and claims of its statements."""
    if document.url is not None and not re.match(r"https?://", document.url):
        yield Problem("url", repr(document.url[:80]), "must begin with https://")
    for name in ("stated_on", "committed_on", "read_on"):
        if (day := getattr(document, name)) is not None:
            yield from day_problems(name, day, date(2015, 1, 1))
    if document.read_on is not None and document.stated_on is not None and document.stated_on > document.read_on:
        yield Problem("stated_on", str(document.stated_on), f"is after it was read, {document.read_on}; correct one of them")
    ids = [statement.id for statement in document.statements]
    for statement in document.statements:
        if not statement.id.startswith(f"{document.id}-") or ids.count(statement.id) > 1:
            yield Problem("statements", repr(statement.id), f"an id begins with {document.id}- and is used once")
        for problem in result_problems(statement):
            yield Problem(f"{statement.id}: {problem.field}", problem.value, problem.fix)


def _place(path: Path, ids: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for results in the folder or file of another id: NNN/NNN-001.json, or NNN/results.json."""
    wrong = next((name for name in ids if name[:3] != path.parent.name), None)
    if re.fullmatch(r"\d{3}", path.parent.name) and wrong is not None:
        yield Problem("id", repr(wrong), f"is in the folder {path.parent.name}; an id begins with its folder")
    if len(ids) == 1 and re.fullmatch(r"\d{3}-\d{3}", path.stem) and ids[0] != path.stem:
        yield Problem("id", repr(ids[0]), f"is in the file {path.name}; a file has the name of its id")


def _converted(result: ConvertedResult) -> Iterator[Problem]:
    """Yield problems of a converted result: evaluations out of order, times and samples that contradict each other."""
    system, count = result.system, result.conditions.accelerator_count
    if system.nodes and system.accelerators_per_node and count and system.nodes * system.accelerators_per_node != count:
        fix = f"the system has {system.nodes} nodes of {system.accelerators_per_node}; correct one of them"
        yield Problem("conditions.accelerator_count", str(count), fix)
    for number, run in enumerate(result.runs):
        place, curve = f"runs.{number}", run.curve
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
            yield Problem(f"{place}.samples", str(run.samples), f"fewer than at the last evaluation, {curve.samples[-1]}")


# Known facts -----------------------------------------------------------------------------------------

VERSION = re.compile(r"\d+(?:\.\d+)*(?:(?:a|b|rc|\.post|\.dev)\d+)*")
FIRST_LIBRARY = date(2010, 1, 1)
"""The oldest software that results name (CUDA 3) came out in this year."""


def known_problems(known: WorldFacts) -> Iterator[Problem]:
    """Yield problems of known facts: days of releases out of order or after they were read, empty sources, impossible bounds."""
    kinds = (known.releases, known.libraries, known.series, known.datasets, known.generations, known.architectures, known.requirements)
    for entries in (*kinds, known.practices):
        for entry in entries:
            yield from source_problems(entry)
    for requirement in known.requirements:
        for version in filter(None, (requirement.since, requirement.least, requirement.newest)):
            if not VERSION.fullmatch(version):
                yield Problem("requirements", repr(version), f"is not a version; correct the requirement of {requirement.library}")
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
    for support in known.architectures:
        # The first model of these families is BERT.
        yield from day_problems("added_on", support.added_on, date(2018, 10, 1))
    for dataset in known.datasets:
        for lengths in dataset.token_lengths:
            if max(lengths.quantiles.values()) > LONGEST_ROW:
                yield Problem("quantiles", str(max(lengths.quantiles.values())), f"no row has more than {LONGEST_ROW} tokens")
    for practice in known.practices:
        if not 0 < practice.value <= 1000:  # noqa: PLR2004 - shares and ratios
            yield Problem("value", f"{practice.value:g}", f"{practice.key} is a share or a ratio, above 0 and at most 1000")


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
