"""Confusion tables of the audit over the checked cases.

    python benchmarks/audit_confusion.py

A case is reached when one of its rules gives the verdict of the case about its records. A control is a false alarm when
one of its rules calls it impossible, inconsistent or suspicious.

The sixty cases were known when the rules were written. The further cases were written from the documents alone, without sight
of the rules. For these, recall is also printed as it was before new rules were made of the missed cases.
"""

import json
from collections import Counter
from pathlib import Path

from tunemark.collector.audit.load import load_evidence
from tunemark.collector.audit.rule import Finding
from tunemark.collector.predict.cross_validation import audit_all
from tunemark.schema.vocabulary import AuditVerdict

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "collector" / "audit" / "data"
SETS = {
    "the sixty cases": ("audit_cases", "case_records"),
    "further cases, written independently of the rules": ("further_cases", "further_case_records"),
}
"""Title: files of the cases, and of the records and rules of each case."""
VERDICTS = [verdict.value for verdict in AuditVerdict]

Findings = tuple[Finding, ...]
Cases = list[dict[str, str]]
About = dict[str, dict[str, list[str]]]


def answer(findings: Findings, about: dict[str, list[str]], expected: str) -> str:
    """Return the verdict of the rules of a case about its records: the expected one if it is among them."""
    figures = set(about.get("quantities", ()))
    relevant = [each for each in findings if each.rule in about["rules"] and set(each.records) & set(about["records"])]
    relevant = [each for each in relevant if not figures or figures & set(each.quantities)]
    given = {each.verdict.value for each in relevant}
    if expected in given:
        reached = {record for each in relevant if each.verdict.value == expected for record in each.records}
        return "partly" if about.get("all") and not set(about["records"]) <= reached else expected
    return next((verdict for verdict in VERDICTS if verdict in given), "ok")


def print_confusion(findings: Findings, cases: Cases, about: About) -> None:
    """Print the verdicts on cases, with recall on bad claims and false alarms on controls."""
    given = {case["id"]: answer(findings, about[case["id"]], case["verdict"]) for case in cases}
    table = Counter((case["verdict"], given[case["id"]]) for case in cases)
    columns = [*VERDICTS, "partly", "ok"]
    print(f"{'expected':14}" + "".join(f"{name:>14}" for name in columns))
    for expected in [*VERDICTS, "ok"]:
        print(f"{expected:14}" + "".join(f"{table[expected, name]:>14}" for name in columns))
    bad = [case for case in cases if case["verdict"] != "ok"]
    controls = [case for case in cases if case["verdict"] == "ok"]
    reached = sum(given[case["id"]] == case["verdict"] for case in bad)
    alarms = sum(given[case["id"]] not in {"ok", "ambiguous"} for case in controls)
    print(f"\nrecall on bad claims: {reached} of {len(bad)}; false alarms on controls: {alarms} of {len(controls)}")
    first = [case for case in bad if case.get("reached_at_first", True)]
    if len(first) < len(bad):
        print(f"before rules were made of what was missed: {len(first)} of {len(bad)}")


def main() -> None:
    """Print the tables, recall and false alarms."""
    findings = audit_all(load_evidence(ROOT))
    for title, files in SETS.items():
        cases, about = (json.loads((DATA / f"{name}.json").read_text(encoding="utf-8")) for name in files)
        print(f"{title}\n")
        print_confusion(findings, cases, about)
        print()


if __name__ == "__main__":
    main()
