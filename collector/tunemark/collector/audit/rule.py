"""What a rule is: a pure function from the evidence to what it found, with a reason for being."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from tunemark.collector.audit.evidence import Base
from tunemark.schema.findings import Finding
from tunemark.schema.vocabulary import AuditVerdict

IMPOSSIBLE, INCONSISTENT = AuditVerdict.IMPOSSIBLE, AuditVerdict.INCONSISTENT
SUSPICIOUS, AMBIGUOUS = AuditVerdict.SUSPICIOUS, AuditVerdict.AMBIGUOUS

Family = Literal[
    "utilisation",
    "memory",
    "arithmetic",
    "definitions",
    "prices",
    "scaling",
    "comparison",
    "ordering",
    "duplicates",
    "catalogue",
    "significance",
    "statements",
]


@dataclass(frozen=True, slots=True)
class Found:
    """What a rule found, before it is stamped with the rule."""

    verdict: AuditVerdict
    records: tuple[str, ...]
    claim: str
    calculation: str
    numbers: dict[str, float | int | str] = field(default_factory=dict)


Check = Callable[[Base], Iterable[Found]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule."""

    id: str
    title: str
    """What it looks for, in a few words."""
    family: Family
    why: str
    """Why that is wrong, from first principles, with the source of the formula."""
    verdicts: tuple[AuditVerdict, ...]
    """Verdicts that it can give."""
    check: Check

    def findings(self, base: Base) -> Iterator[Finding]:
        """Yield the findings of this rule."""
        for found in self.check(base):
            if found.verdict not in self.verdicts:
                message = f"rule {self.id} gave {found.verdict.value}, which it does not declare"
                raise ValueError(message)
            yield Finding(
                rule=self.id,
                verdict=found.verdict,
                records=tuple(dict.fromkeys(found.records)),
                claim=found.claim,
                calculation=found.calculation,
                numbers={name: round_off(value) for name, value in found.numbers.items()},
            )


def round_off(value: float | str) -> float | int | str:
    """Return a number with nine significant digits: more are noise of the last bit, which differs between machines."""
    return float(f"{value:.9g}") if isinstance(value, float) else value
