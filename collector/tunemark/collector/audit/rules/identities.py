"""Identities: figures of one record that must multiply, divide or add up to each other within their printed digits, and what offers and bills cover.

An identity is a row of `products` in words.toml, or a function that yields equations. A new one is one row or one function in `IDENTITIES`.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from tunemark.collector.audit.bounds import dense_peak, least_flop_per_token
from tunemark.collector.audit.evidence import AuditedResult, Claimed, Evidence, label, source_of
from tunemark.collector.audit.interval import ROUGHLY, TIMES_TOLERANCE, Interval, products_of
from tunemark.collector.audit.printed_figures import WORDS
from tunemark.collector.audit.published_shape import published_shape
from tunemark.collector.audit.rule import IMPOSSIBLE, INCONSISTENT, SUSPICIOUS, Finding, rule
from tunemark.collector.audit.token_rates import LAST_BATCH, expected_rows, plain_rate, rows_per_step, token_rates
from tunemark.schema.facts.cards import PriceRow
from tunemark.schema.formats import HOUR_S
from tunemark.schema.physics.architecture import count_parameters
from tunemark.schema.records.published import Bill, BreakEven, Claim, Offer, Roof, Statement
from tunemark.schema.vocabulary import AuditVerdict, Padding

DIVIDED_FIRST = 0.006
"""Share by which a printed quotient may differ beyond its digits: documents divide figures before or after rounding them."""
HOURLY = "price_usd_per_hour"
PEAKS = ("hardware_flop /profile_step_time_s /hfu", "attained_flop_per_s /hfu")
"""Products that give the peak which an HFU is a share of."""


def number(value: float) -> str:
    """Return an amount without its unit."""
    return f"{value:,.6g}"


@dataclass(frozen=True, slots=True)
class Equation:
    """Two sides that must agree: the figures as calculated in each reading, and the expected amount."""

    records: tuple[str, ...]
    quantities: tuple[str, ...]
    printed: str
    """The figures as printed."""
    left: tuple[tuple[str, Interval], ...]
    """Each reading's calculation with its value."""
    right: Interval
    meaning: str
    """The expected amount in words."""
    slack: float = DIVIDED_FIRST
    conditions: tuple[str, ...] = ()
    show: Callable[[float], str] = number
    """Prints an amount."""
    verdict: AuditVerdict = INCONSISTENT

    def holds(self) -> bool:
        """Return True if a reading agrees with the expected amount."""
        return any(value.widened(self.slack).overlaps(self.right) for _, value in self.left)

    def finding(self) -> Finding:
        """Return the finding that no reading agrees."""
        words = "; ".join(f"{calculation} = {self.show(value.value)}" for calculation, value in self.left)
        first = self.left[0][1].value
        change = f": {first / self.right.value - 1:+.1%}" if self.right.value else ""
        calculation = f"{words}, but {self.meaning} = {self.show(self.right.value)}{change}"
        return Finding(self.verdict, self.records, self.printed, calculation, self.quantities, self.conditions)


@dataclass(frozen=True, kw_only=True)
class Figures(Claimed):
    """The figures of a result or a statement, with the records that they come from."""

    records: tuple[str, ...]
    others: Mapping[str, Sequence[tuple[str, Interval]]] = field(default_factory=dict)
    """What figures rest on that is not printed as one, such as the number of devices: the values that it may have."""

    def amounts(self, name: str) -> Sequence[tuple[str, Interval]]:
        """Return the values that a figure, or the sum of figures joined by `+`, may have, with the words of each reading."""
        parts = [value for part in name.split("+") if (value := self.interval(part))]
        known = [("", sum(parts[1:], parts[0]))] if len(parts) == len(name.split("+")) else self.readings(name)
        return self.others.get(name) or known


def products(evidence: Evidence) -> Iterator[Equation]:
    """Yield the products of figures that one record prints."""
    slack = max(evidence.facts.known.practice("clock-slack"), DIVIDED_FIRST)
    of_results = [figures_of(evidence, result) for result in evidence.results]
    every = [*of_results, *(_figures_stated(evidence, statement) for statement in evidence.statements.values())]
    for figures, (total, factors, *bound) in product(every, WORDS["products"]):
        # A total over several devices is not the peak of one.
        totals = [each for each in figures.others.get(total) or figures.readings(total) if "together" not in each[0]]
        left = tuple(products_of(factors.split(), figures.amounts)) if len(totals) == 1 else ()
        if left:
            names = tuple(name for name in (*re.split("[ +/!]+", factors), total) if name in figures.claims)
            (words, whole), limit = totals[0], " ".join(bound[:1])
            right, meaning = replace(whole, low=0.0) if limit else whole, f"{limit} {label(total).replace('_', ' ')} {words}".strip()
            about, verdict = tuple(WORDS["settings"].get(total, ())), AuditVerdict(bound[1]) if bound[1:] else INCONSISTENT
            yield Equation(figures.records, names, figures.printed(*names), left, right, meaning, slack, about, verdict=verdict)


def figures_of(evidence: Evidence, result: AuditedResult) -> Figures:
    """Return the figures of a result with its devices, the cores of its machine, the rows of its test set and a step, its ranks, and the parameters of its model."""
    stated, card, dataset = result.conditions, result.accelerator, result.dataset
    instance = evidence.facts.by_instance.get((stated.instance or "").lower())
    known = {"devices": result.devices, "cores": instance and instance.vcpus, "evaluation_rows": dataset and dataset.test_rows}
    if result.model and "total_flops" in result.claims:
        count = count_parameters(result.model)
        known |= {"model_parameters": count.total, "block_parameters": count.total - count.embedding - count.head}
    if "trainable_parameters" in result.claims and {"lora_r", "lora_targets"} <= stated.settings.keys():
        # Rank x (inputs + outputs) of each adapted matrix (Hu et al. 2021, section 4.1).
        more = set(WORDS["settings"]["more_trained"]) & set(stated.settings)
        shape = published_shape(stated.model_copy(update={"sequence_length": 1, "micro_batch": 1}), evidence.facts, None)
        known["adapter_weights"] = shape.adapter_weights if shape and shape.adapted and not more else None
    others = {name: [("", Interval.exact(float(amount)))] for name, amount in known.items() if amount}
    # Each rank may see a part of an evaluation.
    ranks = max(result.setting("processes") or result.setting("nproc") or 1, ((card and card.cores_per_unit) or 1) * result.devices)
    if "eval_time_s" in result.claims:
        others["ranks"] = [("ranks", Interval.exact(float(each)).widened(LAST_BATCH)) for each in range(1, ranks + 1)]
    batch = [each for each in (stated.micro_batch, stated.gradient_accumulation or 1, result.replicas) if each]
    # With known rows of the data, the rows of a training settle an ambiguous rate.
    if len(batch) == 3 and (len(result.readings("samples_per_s")) < 2 or expected_rows(result) is None):  # noqa: PLR2004 - of factors, of readings
        # Trainers count all rows of the data, so the rate may include a last step that was not full.
        rate, time = result.interval("steps_per_s"), result.interval("train_time_s")
        steps = result.interval("steps") or (rate * time if rate and time else None)
        wide = max(0.0, 1 / steps.value - DIVIDED_FIRST) if steps else 0.0
        others["rows_of_a_step"] = [(f"= {' x '.join(map(str, batch))}", Interval.exact(float(math.prod(batch))).widened(wide))]
    return Figures(records=(result.id,), claims=result.claims, others=others)


def _figures_stated(evidence: Evidence, statement: Statement) -> Figures:
    """Return the figures of a statement: of a bill with the price of its offer, the epochs and the rate of its result, or the most tokens/s that its device can execute."""
    bill = statement.assertion
    if not isinstance(bill, Bill):
        return Figures(records=(statement.id,), claims=statement.claims)
    price, run = price_of(evidence, statement.id, bill), evidence.by_id.get(bill.result or "")
    # The bills of the same table give the tokens of a sample, if their results agree.
    place = (source_of(statement.id), statement.section)
    table = [other_bill for other, other_bill in evidence.assertions(Bill) if (source_of(other.id), other.section) == place]
    results = [run] if run else evidence.with_ids(row.result or "" for row in table)
    lengths = [float(length) for length in {result.conditions.sequence_length for result in results} if length]
    model, peak = evidence.facts.models.get(bill.model or ""), dense_peak(evidence.facts.accelerators.get(bill.accelerator or ""))
    rate, others = plain_rate(run) if run else None, dict[str, list[tuple[str, Interval]]]()
    if price and len(lengths) == 1:
        others |= {"price": [("", Interval.of(price[1]))], "length": [("", Interval.exact(lengths[0]))]}
        if rate:
            others["tokens_per_s"] = [("", rate.tokens_per_s)]
        elif bill.result is None and model and bill.method and peak:
            each = least_flop_per_token(model, bill.method, int(lengths[0]))
            words = f"tokens/s, {peak / 1e12:g} TFLOP/s dense / {each / 1e9:.1f} GFLOP"
            others["most_tokens_per_s"] = [(words, Interval.exact(peak / each))]
    of_run = {name: run.claims[name] for name in ("epoch_time_s",) if name in run.claims} if run else {}
    records = (statement.id, *([run.id] if run else ()), *([price[0]] if price else ()))
    return Figures(records=records, claims={**statement.claims, **of_run, **({HOURLY: price[1]} if price else {})}, others=others)


def price_of(evidence: Evidence, statement: str, bill: Bill) -> tuple[str, Claim] | None:
    """Return the hourly price of a bill with its statement: of its offer, else the document's lowest price for the device."""
    if bill.offer is not None:
        claim = evidence.claims_of(bill.offer).get(HOURLY)
        return (bill.offer, claim) if claim else None
    offers = [
        (other.id, other.claims[HOURLY])
        for other, offer in evidence.assertions(Offer)
        if source_of(other.id) == source_of(statement) and offer.accelerator == bill.accelerator and HOURLY in other.claims
    ]
    return min(offers, key=lambda price: price[1].value, default=None)


def rows_of_a_training(evidence: Evidence) -> Iterator[Equation]:
    """Yield rate x time, and steps x rows of a step, against epochs x rows of the data; without these, the first against the second."""
    clocks = evidence.facts.known.practice("clock-slack")
    for result in evidence.results:
        rows, steps, batch = expected_rows(result), result.interval("steps"), rows_per_step(result)
        done = (f"{steps.value:g} steps x {batch} rows", steps * batch) if steps and batch else None
        if rows is not None and result.finished:
            # Trainers count all rows of the data, but drop the last steps that are not full, or fill them up.
            last, epochs = max(LAST_BATCH, (batch or 0) / rows.value), result.claims["epochs"].value
            work = Interval(rows.value, rows.low, rows.high * (1 + last))
            meaning = f"epochs x rows of the data = {epochs:g} x {result.training_rows:,}"
            if done:
                # Packed rows, and those that are too long, leave fewer steps; nothing makes more of them.
                right = work if result.conditions.packing is False else Interval(work.value, 0.0, work.high)
                names = ("steps", "epochs")
                yield Equation((result.id,), names, result.printed(*names), (done,), right, meaning, last * epochs, ("global_batch",))
        elif rows is None and done:
            meaning, work = done
        else:
            continue
        time = result.interval("train_time_s")
        for name in ("samples_per_s", "samples_per_s_reported"):
            names, readings = (name, "train_time_s"), result.readings(name)
            if time and readings:
                shown = [(f"{rate.value:g} x {time.value:g}{f' ({words})' if words else ''}", rate * time) for words, rate in readings]
                yield Equation((result.id,), names, result.printed(*names), tuple(shown), work, meaning, clocks)


def tokens_of_rows(evidence: Evidence) -> Iterator[Equation]:
    """Yield tokens/s against the slots of the rows of the same time: no row holds more tokens than its length, and full rows hold about as many."""
    for result, (tokens,) in evidence.with_intervals("tokens_per_s"):
        full = result.conditions.packing or result.conditions.padding is Padding.NONE
        # A document that is packed with others may be longer than a row.
        known = {"step_time_s", "steps_per_s"} | (set() if result.conditions.packing else {"samples_per_s"})
        for rate in (rate for rate in token_rates(result) if rate.quantity in known and not rate.meaning):
            names, most = ("tokens_per_s", rate.quantity), rate.tokens_per_s
            left, right = ((label("tokens_per_s"), tokens),), Interval(most.value, most.low / ROUGHLY if full else 0.0, most.high)
            yield Equation((result.id,), names, result.printed(*names), left, right, rate.formula, TIMES_TOLERANCE, rate.conditions)


def roofs(evidence: Evidence) -> Iterator[Equation]:
    """Yield the peak that attained FLOP/s and HFU of points imply against their roof, at most: both are of one unit (Williams et al. 2009)."""
    for statement, roof in evidence.assertions(Roof):
        points = [(point.id, figures_of(evidence, point)) for point in evidence.with_ids(roof.records)]
        ways = [(record, way) for record, figures in points for factors in PEAKS for way in products_of(factors.split(), figures.amounts)]
        card, peak = evidence.facts.accelerators.get(roof.accelerator), Interval.of(roof.peak_flop_per_s)
        if card and ways:
            left = tuple((f"{record}: {words}", value) for record, (words, value) in ways)
            records = (statement.id, *(each for each, _ in ways))
            claim, words = f"roof {roof.peak_flop_per_s.printed}", f"the roof of a device of {card.cores_per_unit or 1} cores"
            right, names = Interval(peak.value, peak.low, math.inf), ("attained_flop_per_s", "hfu")
            yield Equation(records, names, claim, left, right, words, ROUGHLY - 1, show=lambda flop: f"{flop / 1e12:,.1f} TFLOP/s")


IDENTITIES = (products, rows_of_a_training, tokens_of_rows, roofs)


@rule(id="identity", family="arithmetic", verdicts=(IMPOSSIBLE, INCONSISTENT))
def identities(evidence: Evidence) -> Iterator[Finding]:
    """Figures that do not multiply to each other.

    A rate is work over time, a total is the number of its parts times one part, a cost is hours times the price of an hour, and a share is a
    part of its total. Figures of one record that state all factors must agree within their printed digits. A cost for which a device would
    have to execute more than its dense peak is impossible.
    """
    for identity in IDENTITIES:
        for equation in identity(evidence):
            if not equation.holds():
                yield equation.finding()


# Prices and costs ---------------------------------------------------------------------------------


DEVICE_PRICE_SPREAD = 2.0
"""Factor by which prices of one provider for one device move in a few years."""
INSTANCE_PRICE_SPREAD = 1.1
"""Factor by which prices of one named machine differ between regions and days."""


@rule(id="offer", family="prices", verdicts=(IMPOSSIBLE, INCONSISTENT, SUSPICIOUS))
def offers(evidence: Evidence) -> Iterator[Finding]:
    """Offer of devices that the machine does not have, or at the price of something else.

    A machine is rented with all of its devices, unless its provider divides it: an offer of other devices does not exist. The price book
    holds prices of whole instances: the price of one device is the price of the instance divided by the number of devices.
    """
    for statement, offer in evidence.assertions(Offer):
        price, named = statement.claims.get(HOURLY), (offer.instance or "").lower()
        rows = [row for row in evidence.facts.prices if row.provider == offer.provider]
        rows = [row for row in rows if not named or row.instance.lower() == named or row.instance.lower().startswith(f"{named}.")]
        name, records = _device_name(evidence, offer.accelerator), (statement.id, *offer.used_for)
        claim = f"{offer.accelerators} x {name}, {f'{price.printed} an hour' if price else 'no price'}"
        if offer.instance and rows and not any(row.accelerator == offer.accelerator for row in rows):
            row = rows[-1]
            held = f"{row.accelerator_count:g} x {_device_name(evidence, row.accelerator)}"
            words = f"{row.instance} has {held} and no {name} (price book, {row.effective_on})"
            verdict = INCONSISTENT if offer.used_for else IMPOSSIBLE
            yield Finding(verdict, records, claim, words, (HOURLY,), ("instance", "accelerator"))
        least = min(rows, key=lambda row: row.accelerator_count, default=None) if offer.instance else None
        if least and offer.accelerators < least.accelerator_count and offer.used_for:
            whole = f"{least.instance} is rented whole, with {least.accelerator_count:g} devices: ${least.usd_per_hour:.4g}/h, ${_per_device(least):.4g} for each"
            words = f"{whole}; {offer.accelerators} of them cannot be rented"
            yield Finding(INCONSISTENT, records, claim, words, (HOURLY,), ("instance", "accelerator_count"))
        reason = _other_price(evidence, offer, rows, price.value) if price else None
        if reason and price:
            yield Finding(reason[0], records, claim, reason[1], quantities=(HOURLY,))


def _device_name(evidence: Evidence, key: str) -> str:
    card = evidence.facts.accelerators.get(key)
    return card.name if card else key


def _per_device(row: PriceRow) -> float:
    return row.usd_per_hour / row.accelerator_count


def _other_price(evidence: Evidence, offer: Offer, rows: list[PriceRow], claimed: float) -> tuple[AuditVerdict, str] | None:
    """Return a finding if the price belongs to a whole machine, or if all known prices differ by more than regions and years explain."""
    tolerance = evidence.facts.known.practice("price-tolerance")
    own = [_per_device(row) * offer.accelerators for row in rows if row.accelerator == offer.accelerator]
    if any(abs(claimed / price - 1) <= tolerance for price in own):
        return None
    whole = [row for row in rows if row.accelerator_count > offer.accelerators and abs(claimed / row.usd_per_hour - 1) <= tolerance]
    if whole:
        row = min(whole, key=lambda row: abs(row.usd_per_hour - claimed))
        devices = f"{row.accelerator_count:g} x {_device_name(evidence, row.accelerator)}"
        known = f"${row.usd_per_hour:.5g}/h on {row.effective_on}"
        words = f"${claimed:g}/h is the price of a whole {row.instance} with {devices} ({known}): ${_per_device(row):.4g} for each"
        return INCONSISTENT, words
    limit, what, prices = DEVICE_PRICE_SPREAD, f"{_device_name(evidence, offer.accelerator)} at {offer.provider}", set(own)
    if offer.instance:
        prices = {_per_device(row) * offer.accelerators for row in rows} | {row.usd_per_hour for row in rows}
        limit, what = INSTANCE_PRICE_SPREAD, f"one device of {offer.instance} or the whole instance"
    nearest = min(sorted(prices), key=lambda price: abs(price - claimed), default=None)
    if nearest is None or 1 / limit <= claimed / nearest <= limit:
        return None
    shown = ", ".join(f"${price:.4g}" for price in sorted(prices))
    words = f"${claimed:g}/h is {claimed / nearest:.2f} times the nearest known price of {what}; known prices: {shown}"
    return INCONSISTENT if offer.instance else SUSPICIOUS, words


@rule(id="owned-hardware", family="prices", verdicts=(SUSPICIOUS, INCONSISTENT))
def owned_hardware(evidence: Evidence) -> Iterator[Finding]:
    """Cost on owned hardware without its inputs, or a break-even that does not follow from it.

    The cost of an hour follows from purchase price, years, hours of use, watts and electricity. Owning pays after purchase price / saving
    per run, so costs that are already amortised have no break-even number of runs.
    """
    lines = {}
    for statement, bill in evidence.assertions(Bill):
        cost, time = statement.claims.get("cost_local_usd"), statement.claims.get("train_time_s")
        if cost and time and time.value and not bill.owned_inputs:
            rate, device = cost.value / time.value * HOUR_S, _device_name(evidence, bill.accelerator or "")
            lines[statement.id] = f"{statement.id}: {cost.printed} / {time.printed} = ${rate:.2f} an hour on {device}"
    if lines:
        claim = "amortised cost on owned hardware, without purchase price, years, hours of use, watts and electricity"
        words = f"{'; '.join(lines.values())}. The sum purchase / (years x hours of use) + watts x electricity cannot be checked"
        yield Finding(SUSPICIOUS, tuple(lines), claim, words, quantities=("cost_local_usd",))
    for statement, claimed in evidence.assertions(BreakEven):
        costs = [(bill, evidence.claims_of(bill).get("cost_usd"), evidence.claims_of(bill).get("cost_local_usd")) for bill in claimed.bills]
        pays = [
            f"{bill}: {local.printed} owned and {cloud.printed} rented per run, so owning {'always' if local.value < cloud.value else 'never'} pays"
            for bill, cloud, local in costs
            if cloud and local
        ]
        if pays:
            claim = f"owning pays at {claimed.runs_per_year.printed}"
            words = "; ".join(pays) + ". Amortised costs of a run do not depend on the number of runs, so they have no break-even number"
            yield Finding(INCONSISTENT, (statement.id, *claimed.bills), claim, words, quantities=("cost_usd", "cost_local_usd"))
