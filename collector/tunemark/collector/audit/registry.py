"""The rules of the audit, family by family: one module each."""

from tunemark.collector.audit import (
    advice,
    arithmetic,
    catalogue,
    comparison,
    costs,
    definitions,
    duplicates,
    effects,
    epochs,
    formulas,
    memory,
    model_memory,
    ordering,
    outliers,
    prices,
    relative,
    scaling,
    significance,
    statements,
    unsaid,
    utilisation,
    versions,
)
from tunemark.collector.audit.rule import Rule

FAMILIES = (
    utilisation,
    memory,
    model_memory,
    arithmetic,
    epochs,
    definitions,
    unsaid,
    formulas,
    prices,
    costs,
    scaling,
    relative,
    comparison,
    outliers,
    ordering,
    duplicates,
    catalogue,
    versions,
    advice,
    significance,
    statements,
    effects,
)

RULES: tuple[Rule, ...] = tuple(rule for family in FAMILIES for rule in family.RULES)
