"""The cost of whole training runs: the examples of document 004 at today's prices, billed and used, and owning compared with renting."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tunemark.schema.formats import HOUR_S, counted, duration, ordinal, usd
from tunemark.schema.owned_hardware import OwnedHardware
from tunemark.schema.recommendation import PROVEN, provider_name
from tunemark.schema.recommendation_words import KINDS_OF_EVIDENCE
from tunemark.site import tables, wording
from tunemark.site.charts import Chart
from tunemark.site.page import accelerator_path, prices_path, result_path, statement_path
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
SHOWN = 3
"""Results that a cell names."""
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
class TrainingRun:
    """A number of epochs with the time per epoch of a result, and its cheapest offers in force."""

    row: Row
    epochs: float
    seconds: float
    offers: tuple[Row, ...]
    """Costs of the result on each on-demand offer, one for each provider, the cheapest first."""

    def billed(self, offer: Row) -> float:
        """Return the cost of the training run for the whole instance."""
        return float(offer["usd_per_hour"] * self.seconds / HOUR_S)

    def used(self, offer: Row) -> float:
        """Return the part of the cost for the accelerators in use."""
        return self.billed(offer) * float(self.row["accelerator_count"] / (offer["accelerator_count"] * offer["instances"]))


@dataclass(frozen=True, slots=True)
class Owned:
    """An accelerator to buy for the training run of the first example, compared with renting."""

    accelerator: Row
    hours: float
    """Hours of one training run."""
    evidence: str
    rows: tuple[Row, ...]
    machine: OwnedHardware
    rent: Row | None
    """The cheapest on-demand offer of one such accelerator alone."""

    @property
    def electricity_usd(self) -> float:
        """Cost of the electricity for one training run."""
        return self.hours * self.machine.electricity_usd_per_hour

    def runs_per_year(self, rented_usd: float) -> float | None:
        """Return the training runs per year above which owning is cheaper; None if it never is."""
        hours = self.machine.break_even_hours_per_year(rented_usd / self.hours)
        return None if hours is None else hours / self.hours


def study(evidence: Evidence) -> Study:
    """Return the study of whole training runs."""
    examples = _statements(evidence, "cost_local_usd")
    training_runs = list(_training_runs(evidence, examples))
    cheapest = min((training.billed(training.offers[0]) for training in training_runs), default=None)
    owned = list(_owned(evidence, training_runs))
    samples = list(_samples(evidence))
    sentences = written(
        [
            _times(training_runs),
            _cheapest(training_runs),
            _whole(training_runs),
            *_best_provider(evidence, training_runs),
            *_to_own(evidence, owned, training_runs, cheapest),
            _per_sample(samples),
        ]
    )
    made = (
        _offer_table(training_runs),
        _owned_table(owned, cheapest),
        _claim_table(evidence, examples, training_runs),
        _sample_table(samples),
    )
    return Study(
        key="training-cost",
        title="What a whole training run costs, rented and owned",
        question="What does a training run of several epochs cost today, for the instance that is billed and for the accelerator in use, and when does owning pay off?",
        sentences=sentences,
        tables=tuple(table for table in made if table.rows) if sentences else (),
        answers=2,
        draw=(lambda: _chart(training_runs),),
        method=(
            f"The training runs are the examples of document {SOURCE}. Their time is the number of epochs multiplied by the printed time per epoch. Results that are impossible as printed have no time.",
            "Billed is the price of the whole instance multiplied by the time. Used is the part of it for the accelerators in use. Prices are the newest on-demand prices of the price book.",
            f"Owned hardware is the accelerator alone, at its list price at launch, depreciated over {YEARS:g} years without resale value, at its rated board power and {usd(USD_PER_KWH)} per kWh. Its time follows from the rate that the recommendation uses, for the same number of tokens.",
            "Break-even runs per year are the yearly depreciation divided by (rent \N{MINUS SIGN} electricity) per training run. The form on the cost page computes them for your own figures.",
            "The cost of a million samples is the time for a million rows at the printed rate, multiplied by an hourly price.",
        ),
        caveats=(
            "The price of electricity and the years of use are assumptions. The rest of the machine, space, network, wages and repairs are not included, so owning costs more than shown.",
            "List prices at launch are not today's prices. The data contains no purchase prices of data-center accelerators such as the A100, so their break-even is unknown.",
            "Loading, compiling, evaluation and minimum billing are not included.",
            *_suspicious(evidence, training_runs),
            *ambiguous_caveat(evidence, sentences),
        ),
    )


def _suspicious(evidence: Evidence, training_runs: Sequence[TrainingRun]) -> Iterator[str]:
    """Yield the caveat about training runs with a rate that the audit calls suspicious."""
    about = evidence.catalogue.findings_about
    suspicious = [
        training.row["result_id"]
        for training in training_runs
        if any(row["verdict"] == SUSPICIOUS and "tokens_per_s" in row["quantities"] for row in about.get(training.row["result_id"], ()))
    ]
    if suspicious:
        yield f"The audit calls the rates of {listed(suspicious)} suspicious. If they are too high, these training runs take longer and cost more."


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


def _training_runs(evidence: Evidence, examples: Sequence[tuple[str, dict[str, Row], dict[str, str]]]) -> Iterator[TrainingRun]:
    """Yield the training runs of the examples on each accelerator with a possible result and an offer."""
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
            yield TrainingRun(row, number, number * (evidence.figure(row, "epoch_time_s") or 0.0), tuple(cheapest.values()))


def _instance(offer: Row) -> str:
    """Return the provider and the instance of an offer."""
    return f"{provider_name(offer['provider'])} {offer['instance']}"


def _name(training: TrainingRun) -> str:
    return f"{training.row['model_name']} with {wording.method(training.row)} on {training.row['accelerator_name']}"


def _times(training_runs: Sequence[TrainingRun]) -> Sentence | None:
    parts = [f"{duration(training.seconds)} for {_name(training)}" for training in training_runs]
    if not parts:
        return None
    return sentence(
        f"{training_runs[0].epochs:g} epochs take {listed(parts)}, by the printed times per epoch.",
        [training.row for training in training_runs],
    )


def _cheapest(training_runs: Sequence[TrainingRun]) -> Sentence | None:
    """Return the cheapest and the most expensive provider of each training run."""
    parts = []
    for training in training_runs:
        first, last = training.offers[0], training.offers[-1]
        parts.append(
            f"{_name(training)} from {usd(training.billed(first))} ({_instance(first)}, {first['effective_on']}) to "
            f"{usd(training.billed(last))} ({_instance(last)}, {last['effective_on']})"
        )
    return (
        sentence(
            f"Cost of {training_runs[0].epochs:g} epochs, billed on demand: {'; '.join(parts)}.",
            [training.row for training in training_runs],
        )
        if parts
        else None
    )


def _whole(training_runs: Sequence[TrainingRun]) -> Sentence | None:
    """Return the offers that bill several accelerators for a training run on one."""
    parts, rows = [], []
    for training in training_runs:
        large = [offer for offer in training.offers if offer["accelerator_count"] > training.row["accelerator_count"]]
        for offer in large[:1]:
            parts.append(
                f"{_instance(offer)} bills {usd(training.billed(offer))} for {offer['accelerator_count']:g} accelerators, of which {usd(training.used(offer))} "
                f"is for the one in use ({_name(training)})"
            )
            rows.append(training.row)
    return sentence(f"Some providers rent only instances with several accelerators: {'; '.join(parts)}.", rows) if parts else None


def _best_provider(evidence: Evidence, training_runs: Sequence[TrainingRun]) -> Iterator[Sentence | None]:
    """Yield the ranks of a provider that the document calls the best value, among the offers in force."""
    for statement in evidence.catalogue.statements:
        labels = {label["label"]: label["printed"] for label in evidence.catalogue.labels.get(statement["statement_id"], ())}
        claim = labels.get("claim", "")
        if statement["source"] != SOURCE or VALUE not in claim:
            continue
        parts, rows = [], []
        for training in training_runs:
            providers = [offer["provider"] for offer in training.offers]
            named = next((provider for provider in providers if provider in claim.lower()), None)
            if named:
                place = providers.index(named) + 1
                parts.append(
                    f"{provider_name(named)} ranks {ordinal(place)} of {len(providers)} providers for one {training.row['accelerator_name']}, after {listed([provider_name(each) for each in providers[: place - 1]])}"
                    if place > 1
                    else f"{provider_name(named)} is the cheapest of {len(providers)} providers for one {training.row['accelerator_name']}"
                )
                rows.append(training.row)
        if parts:
            yield sentence(f"The document claims: '{claim}'. By the cost billed today, {'; '.join(parts)}.", rows)


# Owned ---------------------------------------------------------------------------------------------


def _owned(evidence: Evidence, training_runs: Sequence[TrainingRun]) -> Iterator[Owned]:
    """Yield the accelerators with a list price and enough memory for the first training run. All train on the same number of tokens."""
    if not training_runs:
        return
    example = training_runs[0]
    tokens = (evidence.figure(example.row, "tokens_per_s") or 0.0) * example.seconds
    usable = {row["result_id"]: row for row in evidence.results}
    priced = {row["accelerator"]: row for row in evidence.catalogue.accelerators if row["msrp_usd"] and row["tdp_w"]}
    for rate in evidence.catalogue.database.rows(RATE, example.row["model"], example.row["method"], example.row["sequence_length"]):
        accelerator = priced.get(rate["accelerator"])
        if accelerator is None or not tokens or not set(rate["result_ids"]) <= usable.keys():
            continue
        offers = [
            row
            for row in evidence.catalogue.prices
            if row["newest"] and row["accelerator"] == rate["accelerator"] and row["kind"] == BASIS_KIND and row["accelerator_count"] == 1
        ]
        yield Owned(
            accelerator,
            tokens / rate["tokens_per_s"] / HOUR_S,
            rate["evidence"],
            tuple(usable[result] for result in rate["result_ids"]),
            OwnedHardware(accelerator["msrp_usd"], YEARS, ALL_HOURS, accelerator["tdp_w"], USD_PER_KWH),
            min(offers, key=lambda row: row["usd_per_hour"], default=None),
        )


def _runs(value: float | None) -> str:
    return "never" if value is None else f"above {value:,.0f} runs per year"


def _to_own(
    evidence: Evidence, owned: Sequence[Owned], training_runs: Sequence[TrainingRun], cheapest: float | None
) -> Iterator[Sentence | None]:
    """Yield the break-even of each accelerator with a rate based on results, and the break-even that the document claims."""
    claims = [row["claim"] for row in evidence.catalogue.findings if row["rule"] == BREAK_EVEN and row["record_ids"][0].startswith(SOURCE)]
    printed = f" The document claims: {claims[0]}." if claims else ""
    for each in owned:
        if each.evidence not in PROVEN or cheapest is None:
            continue
        same = ""
        if each.rent:
            rented = each.rent["usd_per_hour"] * each.hours
            same = f" Compared with renting one at {provider_name(each.rent['provider'])} ({usd(each.rent['usd_per_hour'])}/h, {usd(rented)} per run), owning pays off {_runs(each.runs_per_year(rented))}."
        yield sentence(
            f"On an owned {each.accelerator['name']} (${each.accelerator['msrp_usd']:,.0f} at launch, {YEARS:g} years, {each.accelerator['tdp_w']:g} W, {usd(USD_PER_KWH)}/kWh) the same number of tokens takes "
            f"{duration(each.hours * HOUR_S)} and {usd(each.electricity_usd)} of electricity.{same} Compared with the cheapest rented training run above "
            f"({usd(cheapest)}), owning pays off {_runs(each.runs_per_year(cheapest))}.{printed}",
            [*each.rows, *(training.row for training in training_runs)],
        )


# Samples -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Samples:
    """A claimed cost of a million samples, and the cost computed from the printed rate and an hourly price."""

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
        f"{usd(each.recomputed)} for {each.row['model_name']}, {wording.method(each.row)}, {each.row['accelerator_name']} (printed: {each.printed}, ratio {ratio(each.recomputed / each.claimed)})"
        for each in samples
    ]
    text = "Cost of a million samples at the document's own rates and lowest prices:"
    return sentence(f"{text} {'; '.join(parts)}.", [each.row for each in samples]) if parts else None


# Tables and chart ----------------------------------------------------------------------------------


def _offer_table(training_runs: Sequence[TrainingRun]) -> Table:
    rows = [(training, offer) for training in training_runs for offer in training.offers]
    columns: list[Column[tuple[TrainingRun, Row]]] = [
        Column("Accelerator", lambda item: result_link(wording.devices(item[0].row), item[0].row)),
        Column(
            "Training run",
            lambda item: tables.text(f"{item[0].epochs:g} epochs", small=f"{item[0].row['model_name']}, {wording.method(item[0].row)}"),
        ),
        Column("Time", lambda item: tables.number(item[0].seconds, duration), numeric=True),
        Column(
            "Offer",
            lambda item: tables.text(
                _instance(item[1]),
                small=f"{counted(int(item[1]['accelerator_count']), 'accelerator')}, {item[1]['effective_on']}",
                href=prices_path(item[0].row["accelerator"]),
            ),
        ),
        Column("Price per hour", lambda item: tables.quantity("price_usd_per_hour", item[1]["usd_per_hour"]), numeric=True),
        Column("Billed", lambda item: tables.number(item[0].billed(item[1]), usd), numeric=True, explained="Cost of the whole instance."),
        Column(
            "Used",
            lambda item: tables.number(item[0].used(item[1]), usd),
            numeric=True,
            explained="The part of it for the accelerators in use.",
        ),
    ]
    return tables.table("Cost by provider", columns, rows, interactive=True, searchable=False, stacked=True)


def _evidence_cell(each: Owned) -> Cell:
    """Return the kind of evidence of a time, with the link to its first result."""
    first = each.rows[0]["result_id"] if each.rows else None
    small = ", ".join(row["result_id"] for row in each.rows[:SHOWN]) if each.evidence in PROVEN else "no result of this accelerator is used"
    href = result_path(first) if first and each.evidence in PROVEN else None
    return tables.text(KINDS_OF_EVIDENCE[each.evidence], small=small, href=href)


def _owned_table(owned: Sequence[Owned], cheapest: float | None) -> Table:
    def against(each: Owned, rented: float | None) -> Cell:
        if rented is None:
            return tables.text("no data", small="no on-demand offer of a single accelerator")
        runs = each.runs_per_year(rented)
        return tables.text(_runs(runs), small=f"rent {usd(rented)} per run", sort=float("inf") if runs is None else runs)

    columns: list[Column[Owned]] = [
        Column(
            "Accelerator",
            lambda each: tables.text(
                each.accelerator["name"],
                small=f"${each.accelerator['msrp_usd']:,.0f} at launch",
                href=accelerator_path(each.accelerator["accelerator"]),
            ),
        ),
        Column("Evidence", _evidence_cell),
        Column("Time per run", lambda each: tables.number(each.hours * HOUR_S, duration), numeric=True),
        Column(
            "Electricity per run",
            lambda each: replace(tables.number(each.electricity_usd, usd), small=f"{each.accelerator['tdp_w']:g} W"),
            numeric=True,
        ),
        Column(
            "Owning pays off, same accelerator",
            lambda each: against(each, each.rent["usd_per_hour"] * each.hours if each.rent else None),
            numeric=True,
        ),
        Column("Owning pays off, cheapest rent", lambda each: against(each, cheapest), numeric=True),
    ]
    return tables.table("Owning compared with renting", columns, owned, searchable=False, stacked=True)


def _claim_table(
    evidence: Evidence, examples: Sequence[tuple[str, dict[str, Row], dict[str, str]]], training_runs: Sequence[TrainingRun]
) -> Table:
    times = {evidence.label(training.row, "accelerator"): training for training in training_runs}

    def printed(claims: dict[str, Row], quantity: str) -> Cell:
        claim = claims.get(quantity)
        return tables.text(claim["printed"] if claim else None, sort=claim["value"] if claim else None)

    def verdict(claims: dict[str, Row]) -> Cell:
        rented, local = claims["cost_usd"]["value"], claims["cost_local_usd"]["value"]
        return tables.text(
            "owning is always cheaper" if local < rented else "renting is always cheaper",
            small="the printed cost per run does not depend on the number of runs",
        )

    def recomputed(labels: dict[str, str]) -> Cell:
        training = times.get(labels.get("accelerator", "").partition(" (")[0])
        return tables.text("no data", small="no usable result") if training is None else tables.number(training.seconds, duration)

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
                replace(
                    tables.number(each.today["usd_per_1m_samples"], usd), small=f"{_instance(each.today)}, {each.today['effective_on']}"
                )
                if each.today
                else tables.text(None)
            ),
            numeric=True,
        ),
    ]
    return tables.table("Cost of a million samples", columns, samples, searchable=False, stacked=True)


def _chart(training_runs: Sequence[TrainingRun]) -> Chart | None:
    values = [
        {"label": _bar(training, offer), "x": round(cost, 2), "series": series}
        for training in training_runs
        for offer in training.offers
        for cost, series in ((training.billed(offer), "billed"), (training.used(offer), "accelerators in use"))
    ]
    return bars(
        "cost",
        "Cost of a training run by provider: for the whole instance, and for the accelerators in use. Where the run uses one of several accelerators of an instance, the label says so.",
        values,
        "cost (USD)",
        "Cost",
    )


def _bar(training: TrainingRun, offer: Row) -> str:
    """Return the label of an offer, with the accelerators in use where they are not all of the instance."""
    used, rented = training.row["accelerator_count"], offer["accelerator_count"] * offer["instances"]
    part = f" ({used} of {rented:g})" if rented > used else ""
    return f"{training.row['accelerator_name']}, {provider_name(offer['provider'])}{part}"
