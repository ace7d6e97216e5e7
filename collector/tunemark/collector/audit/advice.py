"""Advice: what is recommended must exist, fit, and not be advised against on another page."""

from collections import defaultdict
from collections.abc import Iterator

from tunemark.collector.audit.evidence import Base, Run
from tunemark.collector.audit.rule import IMPOSSIBLE, INCONSISTENT, SUSPICIOUS, Found, Rule
from tunemark.collector.audit.span import Span
from tunemark.schema.architecture import count_parameters
from tunemark.schema.assertions_of_hardware import Advice, Device
from tunemark.schema.cards import AcceleratorCard
from tunemark.schema.naming import agrees
from tunemark.schema.published import Statement

GIB = 2**30
BILLION = 1e9
FAR = 1.25
DEVICE_TOLERANCE = 0.05


def printed_memory(base: Base) -> Iterator[Found]:
    """Yield devices with a memory that they are not sold with."""
    said = [(statement, key, advice.printed_memory_gb) for statement, advice in base.assertions(Advice) for key in advice.accelerators]
    said += [(statement, device.accelerator, device.printed_memory_gb) for statement, device in base.assertions(Device)]
    for statement, key, memory in said:
        card = base.facts.accelerators.get(key)
        if card is None or memory is None or agrees(memory, card):
            continue
        others = [
            one.name
            for one in base.facts.accelerators.values()
            if one.architecture == card.architecture and one.vendor == card.vendor and one.memory_gib == memory
        ]
        also = f"; {memory:g} GB have {', '.join(others)}" if others else ""
        yield Found(
            IMPOSSIBLE,
            (statement.id,),
            f"{card.name} with {memory:g} GB",
            f"the {card.name} has {card.memory_gib:g} GB{also} ({card.source})",
            {"claimed_gb": memory, "card_gib": card.memory_gib or 0},
        )


def device_data(base: Base) -> Iterator[Found]:
    """Yield data of devices that their cards contradict."""
    fields = (
        ("memory_bandwidth_bytes_per_s", "memory_bandwidth_gb_s", 1e9, "memory bandwidth"),
        ("tdp_w", "tdp_w", 1.0, "power"),
        ("device_memory_each_bytes", "memory_gib", GIB, "memory"),
    )
    for statement, device in base.assertions(Device):
        card = base.facts.accelerators.get(device.accelerator)
        if card is None:
            continue
        generation = base.facts.known.generation(card.architecture)
        if device.tensor_core_generation and generation and device.tensor_core_generation != generation:
            yield Found(
                INCONSISTENT,
                (statement.id,),
                f"tensor cores of generation {device.tensor_core_generation}",
                f"{card.name} is {card.architecture}, whose tensor cores are of generation {generation}",
                {"claimed": device.tensor_core_generation, "generation": generation},
            )
        for quantity, field, scale, what in fields:
            claim, there = statement.claims.get(quantity), getattr(card, field)
            if claim is None or there is None:
                continue
            tolerance = 0.09 if field == "memory_gib" else DEVICE_TOLERANCE
            if not Span.of(claim).widened(tolerance).overlaps(Span.exact(there * scale)):
                yield Found(
                    INCONSISTENT,
                    (statement.id,),
                    f"{what} {claim.printed}",
                    f"the card of {card.name} has {there:g} ({card.source})",
                    {"claimed": claim.value, "card": there * scale},
                )


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
        "device-memory",
        "a device with a memory it is not sold with",
        "catalogue",
        "A device has the memory of its card; another amount is another device.",
        (IMPOSSIBLE,),
        printed_memory,
    ),
    Rule(
        "device-data",
        "data of a device that its card contradicts",
        "catalogue",
        "Bandwidth, power and generation are the maker's.",
        (INCONSISTENT,),
        device_data,
    ),
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
        "budget",
        "a device above the budget it is advised for",
        "prices",
        "A list price above the budget leaves it out.",
        (SUSPICIOUS,),
        budgets,
    ),
)
