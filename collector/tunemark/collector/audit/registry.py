"""The rules of the audit, family by family: one module each."""

from tunemark.collector.audit import arithmetic, catalogue, duplicates, epochs, memory, ordering, relative, scaling, utilisation
from tunemark.collector.audit.rule import Rule

RULES: tuple[Rule, ...] = (
    *utilisation.RULES,
    *memory.RULES,
    *arithmetic.RULES,
    *epochs.RULES,
    *relative.RULES,
    *scaling.RULES,
    *ordering.RULES,
    *duplicates.RULES,
    *catalogue.RULES,
)
