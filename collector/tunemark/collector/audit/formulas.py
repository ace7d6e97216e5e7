"""Formulas: the units of both sides, factors that cannot be in them, and what the document's own tables say."""

from collections import defaultdict
from collections.abc import Iterator

from tunemark.collector.audit.evidence import Base, Run, label
from tunemark.collector.audit.rule import INCONSISTENT, Found, Rule
from tunemark.schema.physics.architecture import count_parameters
from tunemark.schema.records.claims import Formula, Term

NOT_OF_MEMORY = {"gradient_accumulation": "micro-steps follow each other, so activations of two are never in memory together"}
"""Factors that a formula for memory must not have, and why."""
FAR = 1.25
"""Rules of thumb are within a quarter, or say nothing."""


def formulas(base: Base) -> Iterator[Found]:
    """Yield formulas whose units do not give the unit of the result, or that have a factor it cannot depend on."""
    for statement, formula in base.assertions(Formula):
        written = " x ".join(f"{term.name}{'' if term.power == 1 else f'^{term.power}'} [{term.unit}]" for term in formula.terms)
        units = _units_of(formula.terms)
        wanted = _parsed(formula.unit)
        if units != wanted:
            yield Found(
                INCONSISTENT,
                (statement.id,),
                f"a formula for {label(formula.quantity)} in {formula.unit}",
                f"{written} has the unit {_written(units)}, not {formula.unit}",
                {"unit": _written(units)},
            )
        for term in formula.terms:
            why = NOT_OF_MEMORY.get(term.name)
            if why and formula.quantity.endswith("_bytes"):
                yield Found(
                    INCONSISTENT,
                    (statement.id,),
                    f"a formula in which {label(formula.quantity)} grows with {term.name}",
                    f"{written}: {why}",
                    {"factor": term.name},
                )


def formulas_against_results(base: Base) -> Iterator[Found]:
    """Yield formulas whose values the same document's results contradict."""
    for statement, formula in base.assertions(Formula):
        for run in base.named(formula.records):
            claim = run.span(formula.quantity)
            value = _evaluated(formula, run)
            if claim is None or value is None or claim.low / FAR <= value <= claim.high * FAR:
                continue
            yield Found(
                INCONSISTENT,
                (statement.id, run.id),
                f"{label(formula.quantity)} {run.claims[formula.quantity].printed} in a table, and a formula for it",
                f"{' x '.join(_factor(term, run) for term in formula.terms)} = {value / 1e9:.4g} x 10^9, {value / claim.value:.2f} times the table",
                {"formula": value, "table": claim.value},
            )


def _evaluated(formula: Formula, run: Run) -> float | None:
    value = 1.0
    for term in formula.terms:
        factor = term.value if term.value is not None else _from_card(term, run)
        if factor is None:
            return None
        value *= factor**term.power
    return value


def _from_card(term: Term, run: Run) -> float | None:
    if term.name != "parameters":
        return None
    printed = run.claims.get("parameters")
    return printed.value if printed else float(count_parameters(run.model).total) if run.model else None


def _factor(term: Term, run: Run) -> str:
    value = term.value if term.value is not None else _from_card(term, run)
    return f"{value:.4g} {term.name}" if value is not None else term.name


def _units_of(terms: tuple[Term, ...]) -> dict[str, int]:
    total: dict[str, int] = defaultdict(int)
    for term in terms:
        for unit, power in _parsed(term.unit).items():
            total[unit] += power * term.power
    return {unit: power for unit, power in total.items() if power}


def _parsed(text: str) -> dict[str, int]:
    """Return powers of units: `FLOP/token*s` is FLOP per token and per second."""
    above, _, below = text.replace(" ", "").partition("/")
    powers: dict[str, int] = defaultdict(int)
    for part, sign in ((above, 1), (below, -1)):
        for unit in part.replace("/", "*").split("*"):
            if unit and unit != "1":
                powers[unit] += sign
    return {unit: power for unit, power in powers.items() if power}


def _written(units: dict[str, int]) -> str:
    return " ".join(f"{unit}^{power}" if power != 1 else unit for unit, power in sorted(units.items(), key=lambda one: -one[1])) or "1"


RULES = (
    Rule(
        "formula-units",
        "a formula whose units are wrong",
        "definitions",
        "Both sides of an equation have the same unit, and memory of one micro-step does not grow with their number.",
        (INCONSISTENT,),
        formulas,
    ),
    Rule(
        "formula-values",
        "a formula that the document's tables contradict",
        "definitions",
        "A formula and a table of one document describe the same amounts.",
        (INCONSISTENT,),
        formulas_against_results,
    ),
)
