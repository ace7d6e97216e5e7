"""Advice: what is recommended must exist, fit, and not be advised against on another page."""

from collections import defaultdict
from collections.abc import Iterator

from tunemark.collector.audit.evidence import Base, Run
from tunemark.collector.audit.rule import INCONSISTENT, SUSPICIOUS, Found, Rule
from tunemark.collector.audit.span import Span
from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.physics.architecture import count_parameters
from tunemark.schema.records.claims import Advice
from tunemark.schema.records.published import Statement

GIB = 2**30
BILLION = 1e9
FAR = 1.25
ROOM = 1.1
"""Room that a device should have beyond what is needed."""


def contradictions(base: Base) -> Iterator[Found]:
    """Yield advice for what the same document advises against."""
    advice = list(base.assertions(Advice))
    for statement, yes in advice:
        for other, no in advice:
            if statement.id[:3] != other.id[:3] or yes.says != "possible" or no.says == "possible" or yes.devices > 1:
                continue
            devices = set(yes.accelerators) & set(no.accelerators)
            methods = not yes.methods or not no.methods or set(yes.methods) & set(no.methods)
            if devices and methods and _overlap(yes, no):
                yield Found(
                    INCONSISTENT,
                    (statement.id, other.id),
                    f"{_size(yes)} on {', '.join(sorted(devices))}: possible in one place, '{no.says}' in another",
                    f"{_words(statement)} against {_words(other)}: {_size(yes)} lies in {_size(no)}",
                    {"device": ", ".join(sorted(devices))},
                )


def _overlap(yes: Advice, no: Advice) -> bool:
    low, high = yes.parameters_from_b or 0.0, yes.parameters_to_b or float("inf")
    from_, to = no.parameters_from_b or 0.0, no.parameters_to_b or float("inf")
    # A single size on the edge is inside; two ranges that only touch do not overlap.
    return from_ <= low <= to if low == high else max(low, from_) < min(high, to)


def _size(advice: Advice) -> str:
    low, high = advice.parameters_from_b, advice.parameters_to_b
    if low == high and low is not None:
        return f"{low:g}B"
    return f"{low or 0:g}B to {high:g}B" if high is not None else f"{low or 0:g}B and more"


def _words(statement: Statement) -> str:
    return f"{statement.id} ({', '.join(statement.labels.values())})"


def advice_against_tables(base: Base) -> Iterator[Found]:
    """Yield advice for a device that the memory of the same document's tables does not fit into."""
    for statement, advice in base.assertions(Advice):
        cards = [base.facts.accelerators[key] for key in advice.accelerators if key in base.facts.accelerators]
        memory = max((card.memory_gib or 0 for card in cards), default=0)
        if advice.says != "possible" or not memory or advice.devices > 1 or not advice.methods:
            continue
        for run in _needs(base, statement.id[:3], advice):
            needed = run.span("peak_memory_bytes")
            if needed and needed.low > memory * GIB:
                yield Found(
                    INCONSISTENT,
                    (statement.id, run.id),
                    f"{_size(advice)} {'/'.join(method.value for method in advice.methods)} on {memory:g} GB",
                    f"{_words(statement)}: {run.id} says {run.claims['peak_memory_bytes'].printed} for {run.model.name if run.model else run.conditions.model}, {run.conditions.method.value}: {needed.value / BILLION:.0f} GB > {memory * GIB / BILLION:.0f} GB",
                    {"needed_bytes": needed.value, "memory_bytes": memory * GIB},
                )


def _needs(base: Base, source: str, advice: Advice) -> Iterator[Run]:
    """Yield what the tables of a document say that models of these sizes and methods need, whatever the device."""
    for run in base.runs:
        if run.source != source or run.model is None or run.accelerator is not None or run.conditions.method not in advice.methods:
            continue
        size = run.claims["parameters"].value / BILLION if "parameters" in run.claims else count_parameters(run.model).total / BILLION
        if (advice.parameters_from_b or 0) <= size <= (advice.parameters_to_b or float("inf")) * 1.02:
            yield run


def not_the_least(base: Base) -> Iterator[Found]:
    """Yield devices that are said to be the smallest that will do, where the document's own memory fits a smaller one of its own."""
    for statement, advice in base.assertions(Advice):
        source = statement.id[:3]
        cards = [base.facts.accelerators[key] for key in advice.accelerators if key in base.facts.accelerators]
        said = min((card.memory_gib or 0 for card in cards), default=0)
        needs = [run for run in _needs(base, source, advice) if not advice.models or run.conditions.model in advice.models]
        if not advice.least or not said or advice.devices > 1 or not needs:
            continue
        most = max(needs, key=_peak)
        smaller = [
            card for card in base.accelerators_of(source) if card.memory_gib and _peak(most) * ROOM <= card.memory_gib * GIB < said * GIB
        ]
        if smaller:
            best = min(smaller, key=lambda card: (card.memory_gib or 0, card.key))
            yield Found(
                INCONSISTENT,
                (statement.id, most.id),
                f"smallest device: {_words(statement)}",
                f"{most.id} says {most.claims['peak_memory_bytes'].printed}: with a tenth more, {_peak(most) * ROOM / BILLION:.1f} GB, it fits {best.name} with {best.memory_gib:g} GiB, which the document has too",
                {"needed_bytes": _peak(most) * ROOM, "memory_bytes": (best.memory_gib or 0) * GIB},
            )


def requirements(base: Base) -> Iterator[Found]:
    """Yield tables of one document that say different memory for the same model and method, and results in less than a table needs."""
    groups: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in base.runs:
        if (
            run.model is not None
            and run.span("peak_memory_bytes")
            and run.devices == 1
            and not run.measured
            and "variant" not in run.conditions.settings
        ):
            groups[run.source, run.conditions.model, run.conditions.method].append(run)
    for runs in groups.values():
        tables = [run for run in runs if run.accelerator is None]
        if not tables:
            continue
        least, most = min(tables, key=_peak), max(tables, key=_peak)
        below = [
            run
            for run in runs
            if run.accelerator and Span.of(run.claims["peak_memory_bytes"]).high < Span.of(least.claims["peak_memory_bytes"]).low
        ]
        apart = Span.of(most.claims["peak_memory_bytes"]).low > Span.of(least.claims["peak_memory_bytes"]).high * FAR
        if apart or below:
            named = sorted({run.id: run for run in (*below, *tables)}.values(), key=_peak)
            what = f"{least.model.name if least.model else ''} {least.conditions.method.value}"
            yield Found(
                INCONSISTENT,
                tuple(run.id for run in named),
                "; ".join(f"{run.claims['peak_memory_bytes'].printed} ({run.id}, {run.section})" for run in named),
                (
                    f"tables of one document need {_peak(least) / BILLION:g} to {_peak(most) / BILLION:g} GB for {what}"
                    if apart
                    else f"a table of the document needs {_peak(least) / BILLION:g} GB for {what}"
                )
                + (f"; {', '.join(run.id for run in below)} ran in less" if below else ""),
                {"lowest": _peak(named[0]), "highest": _peak(most)},
            )


def _peak(run: Run) -> float:
    return run.claims["peak_memory_bytes"].value


def budgets(base: Base) -> Iterator[Found]:
    """Yield devices that cost more than the budget they are advised for."""
    for statement, advice in base.assertions(Advice):
        cards: list[AcceleratorCard] = [base.facts.accelerators[key] for key in advice.accelerators if key in base.facts.accelerators]
        for card in cards:
            if advice.budget_to_usd and card.msrp_usd and card.msrp_usd * advice.devices > advice.budget_to_usd:
                yield Found(
                    SUSPICIOUS,
                    (statement.id,),
                    f"{card.name} for up to ${advice.budget_to_usd:,.0f}",
                    f"its list price was ${card.msrp_usd:,.0f}",
                    {"msrp_usd": card.msrp_usd, "budget_usd": advice.budget_to_usd},
                )


RULES = (
    Rule(
        "advice-contradicts",
        "advised in one place, advised against in another",
        "statements",
        "One document cannot call the same thing possible and not.",
        (INCONSISTENT,),
        contradictions,
    ),
    Rule(
        "advice-and-tables",
        "advice that the document's memory tables do not allow",
        "statements",
        "What a table says is needed has to fit into the device that is advised.",
        (INCONSISTENT,),
        advice_against_tables,
    ),
    Rule(
        "memory-tables",
        "tables that say different memory for the same",
        "statements",
        "A model and a method need one amount; the batch changes activations, never the states that a table lists.",
        (INCONSISTENT,),
        requirements,
    ),
    Rule(
        "not-the-least",
        "a smallest device that is not the smallest",
        "statements",
        "The smallest device that will do is the smallest of those with room for what the document itself says is needed.",
        (INCONSISTENT,),
        not_the_least,
    ),
    Rule(
        "budget",
        "a device above the budget it is advised for",
        "prices",
        "A list price above the budget leaves it out.",
        (SUSPICIOUS,),
        budgets,
    ),
)
