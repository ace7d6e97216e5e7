"""How findings and rules of the audit become rows."""

import json
from collections.abc import Iterable

from tunemark.collector.audit.registry import RULES
from tunemark.collector.rows import Rows
from tunemark.schema.findings import Finding


def finding_rows(findings: Iterable[Finding]) -> Rows:
    """Return the rows of the audit by table."""
    return {
        "audit_rules": [
            {"rule": rule.id, "family": rule.family, "title": rule.title, "why": rule.why, "verdicts": [one.value for one in rule.verdicts]}
            for rule in RULES
        ],
        "findings": [
            {
                "finding": number,
                "rule": one.rule,
                "verdict": one.verdict.value,
                "record_ids": list(one.records),
                "claim": one.claim,
                "calculation": one.calculation,
                "numbers": json.dumps(one.numbers, ensure_ascii=False),
            }
            for number, one in enumerate(findings, start=1)
        ],
    }
