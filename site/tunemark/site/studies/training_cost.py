"""The cost of whole trainings: document 004's examples at today's prices, billed and used, and owning a card against renting."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tunemark.schema.formats import HOUR_S, counted, duration, usd
from tunemark.schema.owned_hardware import OwnedHardware
from tunemark.schema.recommendation import PROVEN
from tunemark.site import tables, wording
from tunemark.site.charts import Chart
from tunemark.site.page import accelerator_path, prices_path, statement_path
from tunemark.site.pages.studies import (
    Evidence,
    Sentence,
    Study,
    ambiguous_caveat,
    bars,
    listed,
    ratio,
    result_link,
    sentence,
    written,
)
from tunemark.site.queries import BASIS_KIND
from tunemark.site.tables import Cell, Column, Row, Table

ORDER = 4
SOURCE = "004"
YEARS, USD_PER_KWH, ALL_HOURS = 3.0, 0.30, 1.0
"""Inputs of owned hardware: years of use and the price of electricity, as in the example of the cost page, and use in all hours."""
MILLION = 1e6
VALUE = "best cloud value"
"""Words of a claim about the cheapest provider."""
BREAK_EVEN, SUSPICIOUS = "break-even", "suspicious"
"""Audit rule on a claimed break-even, and the verdict on figures that are possible but unlikely."""
RATE = """
    select accelerator, evidence, tokens_per_s, tokens_per_s_low, tokens_per_s_high, result_ids from option_rates
    where model = ? and method = ? and sequence_length = ? and devices = 1 and software = 'plain' and memory in ('fits', 'probably', 'ran')
    and tokens_per_s is not null order by accelerator
"""


@dataclass(frozen=True, slots=True)
class Training:
    """A number of epochs at the time of an epoch that a result has, with its cheapest offers in force."""

    row: Row
    epochs: float
    seconds: float
    offers: tuple[Row, ...]
    """Costs of the result on each on-demand offer, one for each provider, the cheapest for this training first."""

    def billed(self, offer: Row) -> float:
        """Return the cost of the training for the whole instance."""
        return float(offer["usd_per_hour"] * self.seconds / HOUR_S)

    def used(self, offer: Row) -> float:
        """Return the part of the cost that is that of the accelerators in use."""
        return self.billed(offer) * float(self.row["accelerator_count"] / (offer["accelerator_count"] * offer["instances"]))


@dataclass(frozen=True, slots=True)
class Owned:
    """A card to buy, for the training of the example, against renting."""

    card: Row
    hours: float
    """Hours of one training."""
    evidence: str
    rows: tuple[Row, ...]
    machine: OwnedHardware
    rent: Row | None
    """The cheapest on-demand offer of the same card."""

    @property
    def electricity_usd(self) -> float:
        """Electricity of one training."""
        return self.hours * self.machine.electricity_usd_per_hour

    def runs_per_year(self, rented_usd: float) -> float | None:
        """Return the trainings per year above which owning is cheaper; None if it never is."""
        hours = self.machine.break_even_hours_per_year(rented_usd / self.hours)
        return None if hours is None else hours / self.hours


def study(evidence: Evidence) -> Study:
    """Return the study of whole trainings."""
    examples = _statements(evidence, "cost_local_usd")
    trainings = list(_trainings(evidence, examples))
    cheapest = min((training.billed(training.offers[0]) for training in trainings), default=None)
    owned = list(_owned(evidence, trainings))
    samples = list(_samples(evidence))
    sentences = written(
        [
            _times(trainings),
            _cheapest(trainings),
            _whole(trainings),
            *_best_provider(evidence, trainings),
            *_to_own(evidence, owned, trainings, cheapest),
            _per_sample(samples),
        ]
    )
    made = (_offer_table(trainings), _owned_table(owned, cheapest), _claim_table(evidence, examples, trainings), _sample_table(samples))
    return Study(
        key="training-cost",
        title="What a whole training costs, rented and owned",
        question="What does a training of several epochs cost today, for the instance that is billed and for the accelerator in use, and when does owning pay?",
        sentences=sentences,
        tables=tuple(table for table in made if table.rows) if sentences else (),
        draw=lambda: _chart(trainings),
        method=(
            f"The trainings are the examples of document {SOURCE}. Their time is the number of epochs multiplied by the printed time of an epoch; results that are impossible as printed have no time.",
            "Billed is the price of the whole instance multiplied by the time. Used is the share of the accelerators in use. Prices are the newest on-demand prices of the price book.",
            f"Owned hardware is the card alone, at its list price at launch, written off over {YEARS:g} years without resale, at the board power of its card and {usd(USD_PER_KWH)} per kWh. Its time follows from the rate of the recommendation for the same tokens.",
            "Break-even runs per year are the yearly write-off divided by rent less electricity for one training. The form on the cost page computes it for your own figures.",
            "The cost of a million samples is the time for a million rows at the printed rate, multiplied by an hourly price.",
        ),
        caveats=(
            "Electricity and years are assumptions. The machine around the card, space, network, wages and repairs are not included, so owning is more expensive than shown.",
            "List prices at launch are not today's prices. There is no purchase price of data-center accelerators such as the A100 in the data, so they have no break-even: no data.",
            "Loading, compiling, evaluation and minimum billing are not included.",
            *_doubts(evidence, trainings),
            *ambiguous_caveat(evidence, sentences),
        ),
    )


def _doubts(evidence: Evidence, trainings: Sequence[Training]) -> Iterator[str]:
    """Yield the caveat about trainings whose rate the audit calls suspicious."""
    about = evidence.catalogue.findings_about
    doubted = [
        training.row["result_id"]
        for training in trainings
        if any(row["verdict"] == SUSPICIOUS and "tokens_per_s" in row["quantities"] for row in about.get(training.row["result_id"], ()))
    ]
    if doubted:
        yield f"The audit calls the rates of {listed(doubted)} suspicious. If they are too high, these trainings take longer and cost more."


def _statements(evidence: Evidence, quantity: str) -> list[tuple[str, dict[str, Row], dict[str, str]]]:
    """Return the statements of the document that claim a quantity, with their claims and labels."""
    found = []
    for row in evidence.catalogue.statements:
        claims = {claim["quantity"]: claim for claim in evidence.catalogue.claims.get(row["statement_id"], ())}
        if row["source"] == SOURCE and quantity in claims:
            labels = {label["label"]: label["printed"] for label in evidence.catalogue.labels.get(row["statement_id"], ())}
            found.append((row["statement_id"], claims, labels))
    return found


def _matching(evidence: Evidence, rows: Sequence[Row], labels: dict[str, str]) -> list[Row]:
    """Return the results of the printed model and method."""
    method = labels.get("method", "").lower()
    return [row for row in rows if evidence.label(row, "model") == labels.get("model") and row["method"] == method]


# Rented --------------------------------------------------------------------------------------------


def _trainings(evidence: Evidence, examples: Sequence[tuple[str, dict[str, Row], dict[str, str]]]) -> Iterator[Training]:
    """Yield the trainings of the examples on each accelerator with a possible result and an offer."""
    epochs = {claims["epochs"]["value"] for _, claims, _ in examples if "epochs" in claims}
    if len(epochs) != 1:
        return
    (number,) = epochs
    rows = [row for row in evidence.of_source(SOURCE) if row["accelerator_count"] == 1 and evidence.figure(row, "epoch_time_s")]
    chosen = {row["result_id"]: row for _, _, labels in examples for row in _matching(evidence, rows, labels)}
    for row in chosen.values():
        offers = [
            cost
            for cost in evidence.catalogue.costs.get(row["result_id"], ())
            if cost["kind"] == BASIS_KIND and cost["provider_rank"] is not None
        ]
        cheapest: dict[str, Row] = {}
        for cost in sorted(offers, key=lambda cost: (cost["usd_per_hour"], cost["instance"])):
            cheapest.setdefault(cost["provider"], cost)
        if cheapest:
            yield Training(row, number, number * (evidence.figure(row, "epoch_time_s") or 0.0), tuple(cheapest.values()))


def _name(training: Training) -> str:
    return f"{training.row['model_name']} with {wording.method(training.row)} on {training.row['accelerator_name']}"


def _times(trainings: Sequence[Training]) -> Sentence | None:
    parts = [f"{duration(training.seconds)} for {_name(training)}" for training in trainings]
    if not parts:
        return None
    return sentence(
        f"{trainings[0].epochs:g} epochs take {listed(parts)}, by the printed times of an epoch.", [training.row for training in trainings]
    )


def _cheapest(trainings: Sequence[Training]) -> Sentence | None:
    """Return the cheapest and the most expensive provider of each training."""
    parts = []
    for training in trainings:
        first, last = training.offers[0], training.offers[-1]
        parts.append(
            f"{_name(training)} from {usd(training.billed(first))} ({first['provider']} {first['instance']}, {first['effective_on']}) to "
            f"{usd(training.billed(last))} ({last['provider']} {last['instance']}, {last['effective_on']})"
        )
    return (
        sentence(f"{trainings[0].epochs:g} epochs cost, billed on demand: {'; '.join(parts)}.", [training.row for training in trainings])
        if parts
        else None
    )


def _whole(trainings: Sequence[Training]) -> Sentence | None:
    """Return the offers that bill several accelerators for a training on one."""
    parts, rows = [], []
    for training in trainings:
        large = [offer for offer in training.offers if offer["accelerator_count"] > training.row["accelerator_count"]]
        for offer in large[:1]:
            parts.append(
                f"{offer['provider']} {offer['instance']} bills {usd(training.billed(offer))} for {offer['accelerator_count']:g} accelerators, of which {usd(training.used(offer))} "
                f"are for the one in use ({_name(training)})"
            )
            rows.append(training.row)
    return sentence(f"Where a provider rents several accelerators only: {'; '.join(parts)}.", rows) if parts else None


def _best_provider(evidence: Evidence, trainings: Sequence[Training]) -> Iterator[Sentence | None]:
    """Yield the places of a provider that the document calls the best value, among the offers in force."""
    for statement in evidence.catalogue.statements:
        labels = {label["label"]: label["printed"] for label in evidence.catalogue.labels.get(statement["statement_id"], ())}
        claim = labels.get("claim", "")
        if statement["source"] != SOURCE or VALUE not in claim:
            continue
        parts, rows = [], []
        for training in trainings:
            providers = [offer["provider"] for offer in training.offers]
            named = next((provider for provider in providers if provider in claim.lower()), None)
            if named:
                place = providers.index(named) + 1
                parts.append(
                    f"{named} is number {place} of {len(providers)} for one {training.row['accelerator_name']}, after {listed(providers[: place - 1])}"
                    if place > 1
                    else f"{named} is the cheapest of {len(providers)} for one {training.row['accelerator_name']}"
                )
                rows.append(training.row)
        if parts:
            yield sentence(f"The document: '{claim}'. By the amount that is billed today, {'; '.join(parts)}.", rows)


# Owned ---------------------------------------------------------------------------------------------


def _owned(evidence: Evidence, trainings: Sequence[Training]) -> Iterator[Owned]:
    """Yield the cards with a list price that can do the first training, which counts the same tokens for all."""
    if not trainings:
        return
    example = trainings[0]
    tokens = (evidence.figure(example.row, "tokens_per_s") or 0.0) * example.seconds
    usable = {row["result_id"]: row for row in evidence.results}
    cards = {row["accelerator"]: row for row in evidence.catalogue.accelerators if row["msrp_usd"] and row["tdp_w"]}
    for rate in evidence.catalogue.database.rows(RATE, example.row["model"], example.row["method"], example.row["sequence_length"]):
        card = cards.get(rate["accelerator"])
        if card is None or not tokens or not set(rate["result_ids"]) <= usable.keys():
            continue
        offers = [
            row
            for row in evidence.catalogue.prices
            if row["newest"] and row["accelerator"] == rate["accelerator"] and row["kind"] == BASIS_KIND and row["accelerator_count"] == 1
        ]
        yield Owned(
            card,
            tokens / rate["tokens_per_s"] / HOUR_S,
            rate["evidence"],
            tuple(usable[result] for result in rate["result_ids"]),
            OwnedHardware(card["msrp_usd"], YEARS, ALL_HOURS, card["tdp_w"], USD_PER_KWH),
            min(offers, key=lambda row: row["usd_per_hour"], default=None),
        )


def _runs(value: float | None) -> str:
    return "never" if value is None else f"{value:,.0f} runs a year"


def _to_own(evidence: Evidence, owned: Sequence[Owned], trainings: Sequence[Training], cheapest: float | None) -> Iterator[Sentence | None]:
    """Yield the break-even of each card whose rate is based on results, with the break-even that the document claims."""
    claims = [row["claim"] for row in evidence.catalogue.findings if row["rule"] == BREAK_EVEN and row["record_ids"][0].startswith(SOURCE)]
    printed = f" The document: {claims[0]}." if claims else ""
    for each in owned:
        if each.evidence not in PROVEN or cheapest is None:
            continue
        same = ""
        if each.rent:
            rented = each.rent["usd_per_hour"] * each.hours
            same = f" Against the same card at {each.rent['provider']} ({usd(each.rent['usd_per_hour'])}/h, {usd(rented)} a run) the break-even is {_runs(each.runs_per_year(rented))}."
        yield sentence(
            f"On an owned {each.card['name']} (${each.card['msrp_usd']:,.0f} at launch, {YEARS:g} years, {each.card['tdp_w']:g} W, {usd(USD_PER_KWH)}/kWh) the same tokens take "
            f"{duration(each.hours * HOUR_S)} and {usd(each.electricity_usd)} of electricity.{same} Against the cheapest rented training above "
            f"({usd(cheapest)}) it is {_runs(each.runs_per_year(cheapest))}.{printed}",
            [*each.rows, *(training.row for training in trainings)],
        )


# Samples -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Samples:
    """A claimed cost of a million samples, and the cost that the printed rate and an hourly price give."""

    statement: str
    row: Row
    printed: str
    claimed: float
    hourly: float
    """The lowest hourly price that the document prints for the accelerator."""
    today: Row | None
    """The cost of the result on the cheapest on-demand offer in force."""
    recomputed: float


def _samples(evidence: Evidence) -> Iterator[Samples]:
    """Yield the claimed costs of a million samples whose result is possible."""
    hourly: dict[str, float] = {}
    for _, claims, labels in _statements(evidence, "price_usd_per_hour"):
        name, price = labels.get("accelerator", ""), claims["price_usd_per_hour"]["value"]
        hourly[name] = min(price, hourly.get(name, price))
    rows = [row for row in evidence.of_source(SOURCE) if row["accelerator_count"] == 1 and row["sequence_length"]]
    for key, claims, labels in _statements(evidence, "cost_per_1m_samples_usd"):
        name = labels.get("accelerator", "")
        matching = [
            row
            for row in _matching(evidence, rows, labels)
            if evidence.label(row, "accelerator") == name and evidence.figure(row, "tokens_per_s")
        ]
        if not matching or name not in hourly:
            continue
        row = matching[0]
        hours = MILLION * row["sequence_length"] / (evidence.figure(row, "tokens_per_s") or 1.0) / HOUR_S
        offers = [
            cost for cost in evidence.catalogue.costs.get(row["result_id"], ()) if cost["kind"] == BASIS_KIND and cost["usd_per_1m_samples"]
        ]
        claim = claims["cost_per_1m_samples_usd"]
        today = min(offers, key=lambda cost: cost["usd_per_1m_samples"], default=None)
        yield Samples(key, row, claim["printed"], claim["value"], hourly[name], today, hours * hourly[name])


def _per_sample(samples: Sequence[Samples]) -> Sentence | None:
    parts = [
        f"{each.row['model_name']}, {wording.method(each.row)}, {each.row['accelerator_name']} {usd(each.recomputed)} instead of the printed {each.printed} ({ratio(each.recomputed / each.claimed)})"
        for each in samples
    ]
    text = "A million samples cost, by the document's own rates and its own lowest prices:"
    return sentence(f"{text} {'; '.join(parts)}.", [each.row for each in samples]) if parts else None


# Tables and chart ----------------------------------------------------------------------------------


def _offer_table(trainings: Sequence[Training]) -> Table:
    rows = [(training, offer) for training in trainings for offer in training.offers]
    columns: list[Column[tuple[Training, Row]]] = [
        Column("Accelerator", lambda item: result_link(wording.devices(item[0].row), item[0].row)),
        Column(
            "Training",
            lambda item: tables.text(f"{item[0].epochs:g} epochs", small=f"{item[0].row['model_name']}, {wording.method(item[0].row)}"),
        ),
        Column("Time", lambda item: tables.number(item[0].seconds, duration), numeric=True),
        Column(
            "Offer",
            lambda item: tables.text(
                f"{item[1]['provider']} {item[1]['instance']}",
                small=f"{counted(int(item[1]['accelerator_count']), 'accelerator')}, {item[1]['effective_on']}",
                href=prices_path(item[0].row["accelerator"]),
            ),
        ),
        Column("Price per hour", lambda item: tables.quantity("price_usd_per_hour", item[1]["usd_per_hour"]), numeric=True),
        Column("Billed", lambda item: tables.number(item[0].billed(item[1]), usd), numeric=True, explained="For the whole instance."),
        Column(
            "Used", lambda item: tables.number(item[0].used(item[1]), usd), numeric=True, explained="The share of the accelerators in use."
        ),
    ]
    return tables.table("Cost by provider", columns, rows, interactive=True, searchable=False, stacked=True)


def _owned_table(owned: Sequence[Owned], cheapest: float | None) -> Table:
    def against(each: Owned, rented: float | None) -> Cell:
        if rented is None:
            return tables.text("no data", small="no on-demand offer")
        runs = each.runs_per_year(rented)
        return tables.text(_runs(runs), small=f"rent {usd(rented)} a run", sort=float("inf") if runs is None else runs)

    columns: list[Column[Owned]] = [
        Column(
            "Card",
            lambda each: tables.text(
                each.card["name"], small=f"${each.card['msrp_usd']:,.0f} at launch", href=accelerator_path(each.card["accelerator"])
            ),
        ),
        Column(
            "Time of a run",
            lambda each: replace(
                tables.number(each.hours * HOUR_S, duration), small="from results" if each.evidence in PROVEN else "predicted"
            ),
            numeric=True,
        ),
        Column(
            "Electricity of a run",
            lambda each: replace(tables.number(each.electricity_usd, usd), small=f"{each.card['tdp_w']:g} W"),
            numeric=True,
        ),
        Column(
            "Break-even, same card", lambda each: against(each, each.rent["usd_per_hour"] * each.hours if each.rent else None), numeric=True
        ),
        Column("Break-even, cheapest rent", lambda each: against(each, cheapest), numeric=True),
    ]
    return tables.table("Owning against renting", columns, owned, searchable=False, stacked=True)


def _claim_table(
    evidence: Evidence, examples: Sequence[tuple[str, dict[str, Row], dict[str, str]]], trainings: Sequence[Training]
) -> Table:
    times = {evidence.label(training.row, "accelerator"): training for training in trainings}

    def printed(claims: dict[str, Row], quantity: str) -> Cell:
        claim = claims.get(quantity)
        return tables.text(claim["printed"] if claim else None, sort=claim["value"] if claim else None)

    def verdict(claims: dict[str, Row]) -> Cell:
        rented, local = claims["cost_usd"]["value"], claims["cost_local_usd"]["value"]
        return tables.text(
            "owning, always" if local < rented else "renting, always",
            small="the printed cost of a run does not depend on the number of runs",
        )

    def recomputed(labels: dict[str, str]) -> Cell:
        training = times.get(labels.get("accelerator", "").partition(" (")[0])
        return tables.text("no data", small="no possible result") if training is None else tables.number(training.seconds, duration)

    columns: list[Column[tuple[str, dict[str, Row], dict[str, str]]]] = [
        Column(
            "Example",
            lambda item: tables.text(
                item[2].get("accelerator"), small=f"{item[2].get('model')}, {item[2].get('method')}", href=statement_path(SOURCE, item[0])
            ),
        ),
        Column("Time, printed", lambda item: printed(item[1], "train_time_s"), numeric=True),
        Column("Time, recomputed", lambda item: recomputed(item[2]), numeric=True),
        Column("Rented, printed", lambda item: printed(item[1], "cost_usd"), numeric=True),
        Column("Owned, printed", lambda item: printed(item[1], "cost_local_usd"), numeric=True),
        Column("These figures imply", lambda item: verdict(item[1])),
    ]
    chosen = [item for item in examples if "cost_usd" in item[1]]
    return tables.table("The document's own examples", columns, chosen, searchable=False, stacked=True)


def _sample_table(samples: Sequence[Samples]) -> Table:
    columns: list[Column[Samples]] = [
        Column("Accelerator", lambda each: result_link(wording.devices(each.row), each.row)),
        Column("Model", lambda each: tables.text(each.row["model_name"], small=wording.method(each.row))),
        Column(
            "Printed", lambda each: tables.text(each.printed, href=statement_path(SOURCE, each.statement), sort=each.claimed), numeric=True
        ),
        Column(
            "Recomputed",
            lambda each: replace(tables.number(each.recomputed, usd), small=f"at the printed {usd(each.hourly)}/h"),
            numeric=True,
        ),
        Column(
            "Today",
            lambda each: (
                replace(tables.number(each.today["usd_per_1m_samples"], usd), small=wording.offer(each.today))
                if each.today
                else tables.text(None)
            ),
            numeric=True,
        ),
    ]
    return tables.table("Cost of a million samples", columns, samples, searchable=False, stacked=True)


def _chart(trainings: Sequence[Training]) -> Chart | None:
    values = [
        {"label": f"{training.row['accelerator_name']}, {offer['provider']}", "x": round(cost, 2), "series": series}
        for training in trainings
        for offer in training.offers
        for cost, series in ((training.billed(offer), "billed"), (training.used(offer), "accelerators in use"))
    ]
    return bars(
        "cost", "Cost of a training by provider: for the whole instance, and for the accelerators in use.", values, "cost (USD)", "Cost"
    )
