"""How findings and rules of the audit become rows."""

import json
from collections.abc import Iterable

from tunemark.collector.audit.rule import Finding, all_rules
from tunemark.collector.rows import Rows


def finding_rows(findings: Iterable[Finding]) -> Rows:
    """Return the rows of the audit by table."""
    return {
        "audit_rules": [
            {"rule": rule.id, "family": rule.family, "title": rule.title, "why": rule.why, "verdicts": [one.value for one in rule.verdicts]}
            for rule in all_rules()
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
