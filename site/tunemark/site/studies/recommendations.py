"""Recommendations by budget and by number of devices: the questions of document 004, answered from results and today's prices."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

from tunemark.schema.formats import counted, estimated_duration, usd
from tunemark.schema.recommendation import ANY, PROVEN, Offer, Option, Question, Rate, recommend
from tunemark.schema.recommendation_words import hardware, hourly, place
from tunemark.site import recommend_data, tables, wording
from tunemark.site.page import accelerator_path, audit_path, prices_path, statement_path
from tunemark.site.pages.studies import Evidence, Sentence, Study, ambiguous_caveat, gathered, sentence, share, written
from tunemark.site.studies import scaling
from tunemark.site.tables import Cell, Column, Row, Table

ORDER = 0
SOURCE = "004"
LENGTH, TOKENS = 2_048, 10_000_000
"""Row length and tokens of the priced training run, as in the first question on the home page."""
RATES = """
    select * from option_rates
    where evidence in ('direct', 'near') and sequence_length = ? and software = 'plain' and memory <> 'no' order by all
"""
CLASS_LOW, CLASS_HIGH = 0.8, 1.25
"""Range of parameter counts of a class, relative to its name: 7B is 5.6 to 8.75 billion."""
JOB = re.compile(r"(up to )?(\d+)B(?:\+|\))*(?: with (QLoRA|LoRA))?")
"""A model size in a printed use case, with its method."""
DEVICES = re.compile(r"(?:(\d+)-)?(\d+)x")
MOST = 64
"""Devices of the largest cluster for which options are computed."""
LARGE_CLASS, SMALL_CLASS = 70.0, 7.0
VERDICTS = ("impossible", "inconsistent", "suspicious")
"""Verdicts of the audit that mark a piece of advice, worst first."""
NODE = 8
"""Most devices of one machine. Use cases with this number of devices or more are assumed to be about 70B models."""


# Questions -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Job:
    """A training job: models of about this size, with a method."""

    billions: float
    method: str = ANY
    up_to: bool = False
    """True if a smaller class is used when this one has no results."""

    @property
    def name(self) -> str:
        """The job in words."""
        return f"{'up to ' * self.up_to}{self.billions:g}B, {'any method' if self.method == ANY else wording.METHODS[self.method]}"


@dataclass(frozen=True, slots=True)
class Persona:
    """A reader with a budget, as document 004 prints it."""

    statement: str
    name: str
    low_usd: float
    high_usd: float | None
    """None without an upper end."""
    advice: str
    jobs: tuple[Job, ...]

    @property
    def limit_usd(self) -> float:
        """The budget that an option must not exceed."""
        return self.high_usd or self.low_usd

    @property
    def budget(self) -> str:
        """The budget in words."""
        return f"{_whole_usd(self.low_usd)} to {_whole_usd(self.high_usd)}" if self.high_usd else f"{_whole_usd(self.low_usd)} or more"


@dataclass(frozen=True, slots=True)
class UseCase:
    """A use of several devices, as document 004 prints it."""

    statement: str
    name: str
    advice: str
    least: int
    most: int

    @property
    def devices(self) -> str:
        """The device counts in words."""
        return f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class Choice:
    """An option that is based on results, with its model."""

    model: str
    option: Option
    rows: tuple[Row, ...]

    @property
    def words(self) -> str:
        """Accelerator, offer, price, cost and time."""
        terms = f"{place(self.option)}, {hourly(self.option)}, {self.option.offer.effective_on}"
        method = wording.METHODS[self.option.rate.method]
        return f"{self.hardware} ({self.model}, {method}; {terms}) for {usd(self.option.usd)} in {estimated_duration(self.option.seconds)}"

    @property
    def hardware(self) -> str:
        """Device count and accelerator."""
        return hardware(self.option)


@dataclass(frozen=True)
class Market:
    """The rates that are based on usable results, and the offers in force."""

    evidence: Evidence

    @cached_property
    def usable(self) -> dict[str, Row]:
        """The usable results by id."""
        return {row["result_id"]: row for row in self.evidence.results}

    @cached_property
    def offers(self) -> list[Offer]:
        """All offers in force."""
        return recommend_data.offers(self.evidence.catalogue)

    @cached_property
    def rates(self) -> dict[str, list[Rate]]:
        """The rates by model. A rate is left out if one of its results is not usable."""
        rows = self.evidence.catalogue.database.rows(RATES, LENGTH)
        kept = [row for row in rows if row["evidence"] in PROVEN and row["result_ids"] and set(row["result_ids"]) <= self.usable.keys()]
        return {model: [Rate.of_row(row) for row in group] for model, group in gathered(kept, lambda row: row["model"]).items()}

    def models(self, job: Job) -> list[Row]:
        """Return the models of a job's class that have rates, or those of the largest smaller class if the job allows it."""
        known = [row for row in self.evidence.catalogue.models if row["parameters"] and self._answers(row["model"], job.method)]
        size = job.billions * 1e9
        chosen = [row for row in known if CLASS_LOW * size <= row["parameters"] <= CLASS_HIGH * size]
        if chosen or not job.up_to:
            return chosen
        largest = max((row["parameters"] for row in known if row["parameters"] <= size), default=0)
        return [row for row in known if row["parameters"] == largest]

    def _answers(self, model: str, method: str) -> bool:
        return any(method in {ANY, rate.method} for rate in self.rates.get(model, ()))

    def choices(self, job: Job, *, budget_usd: float | None = None, devices: tuple[int, int] = (1, MOST)) -> list[Choice]:
        """Return the options of a job within a budget and a range of device counts, cheapest first, one for each accelerator and count."""
        found = []
        for model in self.models(job):
            question = Question(job.method, TOKENS, LENGTH, budget_usd=budget_usd, most_devices=devices[1])
            for option in recommend(question, self.rates[model["model"]], self.offers).ranked:
                rows = tuple(self.usable[result] for result in option.rate.result_ids)
                found += [Choice(model["name"], option, rows)] if option.devices >= devices[0] else []
        found.sort(key=lambda choice: (choice.option.usd, choice.model, choice.option.offer.instance))
        first: dict[tuple[str, int], Choice] = {}
        for choice in found:
            first.setdefault((choice.option.offer.accelerator, choice.option.devices), choice)
        return list(first.values())

    def to_buy(self, job: Job, budget_usd: float) -> Row | None:
        """Return the accelerator with the highest rate for a job among those with a list price at launch within a budget."""
        affordable = {
            row["accelerator"]: row for row in self.evidence.catalogue.accelerators if row["msrp_usd"] and row["msrp_usd"] <= budget_usd
        }
        rates = [
            (rate, model)
            for model in self.models(job)
            for rate in self.rates[model["model"]]
            if rate.devices == 1 and rate.accelerator in affordable and job.method in {ANY, rate.method} and rate.memory != "tight"
        ]
        best = max(rates, key=lambda item: (item[0].tokens_per_s or 0, item[0].accelerator), default=None)
        if best is None:
            return None
        return affordable[best[0].accelerator] | {"rows": tuple(self.usable[result] for result in best[0].result_ids)}


def personas(evidence: Evidence) -> Iterator[Persona]:
    """Yield the personas of document 004."""
    for key, labels in _statements(evidence):
        claims = {claim["quantity"]: claim["value"] for claim in evidence.catalogue.claims.get(key, ())}
        if "budget_low_usd" in claims and "persona" in labels:
            use = labels.get("use_case", "")
            jobs = tuple(Job(float(size), (method or ANY).lower(), bool(up_to)) for up_to, size, method in JOB.findall(use))
            yield Persona(
                key, labels["persona"], claims["budget_low_usd"], claims.get("budget_high_usd"), labels.get("best_choice", ""), jobs
            )


def use_cases(evidence: Evidence) -> Iterator[UseCase]:
    """Yield the uses of several devices of document 004. A cluster without a printed size has 16 to 64 devices."""
    for key, labels in _statements(evidence):
        if "configuration" in labels and "use_case" in labels:
            counts = DEVICES.search(labels["configuration"])
            least, most = (int(counts[1] or counts[2]), int(counts[2])) if counts else (2 * NODE, MOST)
            yield UseCase(key, labels["use_case"], labels["configuration"], least, most)


def _statements(evidence: Evidence) -> Iterator[tuple[str, dict[str, str]]]:
    for row in evidence.catalogue.statements:
        if row["source"] == SOURCE:
            key = row["statement_id"]
            yield key, {label["label"]: label["printed"] for label in evidence.catalogue.labels.get(key, ())}


# Answers -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Advised:
    """The answer for one job of a persona."""

    persona: Persona
    job: Job
    choices: tuple[Choice, ...]
    accelerator: Row | None
    """The accelerator to buy."""

    @property
    def training_runs(self) -> int:
        """Number of training runs that the budget pays for at least, on the cheapest option."""
        return int(self.persona.limit_usd // self.choices[0].option.usd_high) if self.choices else 0


@dataclass(frozen=True, slots=True)
class Several:
    """The answer for a use of several devices."""

    case: UseCase
    job: Job
    choices: tuple[Choice, ...]
    points: tuple[scaling.Point, ...]
    """Speed-ups at device counts of the use: on the accelerator of the first choice if there are any, otherwise on all."""

    @property
    def efficiency(self) -> float | None:
        """Median efficiency."""
        return median(point.efficiency for point in self.points) if self.points else None


def _advised(market: Market) -> list[Advised]:
    return [
        Advised(
            persona, job, tuple(market.choices(job, budget_usd=persona.limit_usd, devices=(1, NODE))), market.to_buy(job, persona.limit_usd)
        )
        for persona in personas(market.evidence)
        for job in persona.jobs
    ]


def _several(market: Market) -> Iterator[Several]:
    points = [point for point in scaling.speed_ups(market.evidence) if point.efficiency <= scaling.SUPERLINEAR]
    for case in use_cases(market.evidence):
        job = Job(LARGE_CLASS if case.least >= NODE else SMALL_CLASS)
        choices = tuple(market.choices(job, devices=(case.least, case.most)))
        alike = [point for point in points if case.least <= point.row["accelerator_count"] <= case.most]
        if case.most <= NODE:
            alike = [point for point in alike if point.base["accelerator_count"] == 1]
        chosen = choices[0].option.offer.accelerator if choices else None
        yield Several(case, job, choices, tuple([point for point in alike if point.row["accelerator"] == chosen] or alike))


def study(evidence: Evidence) -> Study:
    """Return the study of recommendations."""
    market = Market(evidence)
    advised, several = _advised(market), list(_several(market))
    sentences = written([_summary(advised), *map(_of_budget, advised), *map(_of_devices, several)])
    return Study(
        key="recommendations",
        title="Recommendations by budget and by number of devices",
        question=f"Which accelerator suits each budget and each number of devices? Costs are for one training run on {TOKENS / 1e6:g} million tokens.",
        sentences=sentences,
        tables=(_budget_table(evidence, advised), _devices_table(evidence, several)) if sentences else (),
        answers=2,
        method=(
            f"The budgets, uses and device counts come from document {SOURCE}. For its cluster without a printed size, {2 * NODE} to {MOST} devices are assumed. The recommendations do not come from the document: they are computed from results and from the prices in force.",
            f"The priced training run has {TOKENS / 1e6:g} million tokens in rows of {LENGTH:,} tokens, uses plain software and takes 5 minutes to start. Only rates that are based on results of the same model, method and accelerator are used; the number of devices and the row length may differ.",
            f"A size such as 7B stands for models with {CLASS_LOW:g} to {CLASS_HIGH:g} times as many parameters. Uses of fewer than {NODE} devices are assumed to be about {SMALL_CLASS:g}B models, the others about {LARGE_CLASS:g}B.",
            "If a use case says 'up to' a size and no result has that size, the largest smaller model with results is used instead.",
            "An option is within a budget if the upper end of its 90% cost interval does not exceed it. An accelerator to buy is within a budget if its list price at launch does not exceed it.",
            "The efficiency is the speed-up divided by the ratio of the device counts, as in the study of several accelerators.",
        ),
        caveats=(
            "The home page also ranks options that are only predicted. They are left out here because they cite no results, so a cheaper option may exist.",
            "Models of one class differ in size: an option may be cheaper only because its model is smaller.",
            "List prices at launch are not today's prices, and they do not include the rest of the machine.",
            *ambiguous_caveat(evidence, sentences),
        ),
    )


def _summary(advised: Sequence[Advised]) -> Sentence | None:
    """Return the cheapest accelerator of each job."""
    first = {each.job.name: each.choices[0] for each in advised if each.choices}
    parts = [f"{choice.hardware} for {name}" for name, choice in first.items()]
    return (
        sentence(f"Cheapest to rent, of those with results: {'; '.join(parts)}.", [row for choice in first.values() for row in choice.rows])
        if parts
        else None
    )


def _of_budget(each: Advised) -> Sentence | None:
    if not each.choices:
        return None
    cheapest, fastest = each.choices[0], _fastest(each.choices)
    used = [cheapest]
    text = f"{each.persona.name} ({each.persona.budget}), {each.job.name}. Cheapest to rent, of those with results: {cheapest.words}."
    if fastest and fastest is not cheapest:
        used.append(fastest)
        text += f" Fastest on one machine: {fastest.words}."
    text += f" {_whole_usd(each.persona.limit_usd)} pays for at least {counted(each.training_runs, 'such training run')} on the cheapest option."
    rows = [row for choice in used for row in choice.rows]
    if each.accelerator:
        text += f" To buy: {each.accelerator['name']}, {_whole_usd(each.accelerator['msrp_usd'])} at launch."
        rows += each.accelerator["rows"]
    return sentence(text, rows)


def _fastest(choices: Sequence[Choice]) -> Choice | None:
    return min(choices, key=lambda choice: choice.option.seconds, default=None)


def _whole_usd(value: float) -> str:
    return f"${value:,.0f}"


def _of_devices(each: Several) -> Sentence | None:
    if not each.choices or each.efficiency is None:
        return None
    names = list(dict.fromkeys(point.row["accelerator_name"] for point in each.points))
    where = names[0] if len(names) == 1 else f"{len(names)} accelerators"
    count = counted(len(each.points), "result")
    return sentence(
        f"{each.case.name} ({each.case.devices} devices), {each.job.name}. Cheapest: {each.choices[0].words}. The median efficiency on {where} at these counts, over results of all models, is "
        f"{share(each.efficiency)}, from {count}: the same work takes {1 / each.efficiency - 1:.0%} more device-hours than on the smallest device counts of these results.",
        [*each.choices[0].rows, *(row for point in each.points for row in (point.base, point.row))],
    )


# Tables --------------------------------------------------------------------------------------------


def _choice_cell(choice: Choice | None) -> Cell:
    if choice is None:
        return tables.text("no data", small="no result of this size and method")
    offer = choice.option.offer
    small = f"{usd(choice.option.usd)} ({usd(choice.option.usd_low)} to {usd(choice.option.usd_high)}), {estimated_duration(choice.option.seconds)}; {choice.model}"
    return tables.text(choice.hardware, small=small, href=accelerator_path(offer.accelerator))


def _offer_cell(choice: Choice | None) -> Cell:
    if choice is None:
        return tables.text(None)
    offer = choice.option.offer
    small = f"{hourly(choice.option)}, {offer.effective_on}"
    return tables.text(place(choice.option), small=small, href=prices_path(offer.accelerator))


def _first(choices: Sequence[Choice], number: int = 0) -> Choice | None:
    return choices[number] if len(choices) > number else None


def _advice_cell(evidence: Evidence, advice: str, statement: str) -> Cell:
    """Return the advice of the document, marked with the worst verdict of the audit on it."""
    verdicts = {row["verdict"] for row in evidence.catalogue.findings_about.get(statement, ())}
    worst = next((verdict for verdict in VERDICTS if verdict in verdicts), "")
    return replace(tables.text(advice, href=statement_path(SOURCE, statement)), mark=worst, mark_href=audit_path(SOURCE) if worst else None)


def _budget_table(evidence: Evidence, advised: Sequence[Advised]) -> Table:
    columns: list[Column[Advised]] = [
        Column("Budget", lambda each: tables.text(each.persona.budget, small=each.persona.name, sort=each.persona.low_usd)),
        Column("Models and method", lambda each: tables.text(each.job.name)),
        Column("Cheapest with results", lambda each: _choice_cell(_first(each.choices))),
        Column("Offer", lambda each: _offer_cell(_first(each.choices))),
        Column("Fastest on one machine", lambda each: _choice_cell(_fastest(each.choices))),
        Column(
            "To buy",
            lambda each: (
                tables.text(
                    each.accelerator["name"],
                    small=f"{_whole_usd(each.accelerator['msrp_usd'])} at launch",
                    href=accelerator_path(each.accelerator["accelerator"]),
                )
                if each.accelerator
                else tables.text("no data", small="no accelerator with a list price and a result")
            ),
        ),
        Column("The document's advice", lambda each: _advice_cell(evidence, each.persona.advice, each.persona.statement)),
    ]
    return tables.table("By budget", columns, advised, stacked=True)


def _devices_table(evidence: Evidence, several: Sequence[Several]) -> Table:
    columns: list[Column[Several]] = [
        Column("Use", lambda each: tables.text(each.case.name, small=f"{each.case.devices} devices")),
        Column("Models", lambda each: tables.text(each.job.name)),
        Column("Cheapest", lambda each: _choice_cell(_first(each.choices))),
        Column("Offer", lambda each: _offer_cell(_first(each.choices))),
        Column("Second cheapest", lambda each: _choice_cell(_first(each.choices, 1))),
        Column(
            "Median efficiency",
            lambda each: replace(tables.number(each.efficiency, share), small=counted(len(each.points), "result") if each.points else ""),
            numeric=True,
        ),
        Column("The document's advice", lambda each: _advice_cell(evidence, each.case.advice, each.case.statement)),
    ]
    return tables.table("By number of devices", columns, several, stacked=True)
