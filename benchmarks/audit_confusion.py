"""Confusion tables of the audit over the checked cases, and how many findings each rule makes elsewhere.

    python benchmarks/audit_confusion.py

A case is reached when a rule that may answer it gives its verdict about its records. A control is a false alarm when
such a rule calls it impossible, inconsistent or suspicious. Whatever else is found about the records of a control is
listed too, since a reader sees all of it.

The sixty cases were in sight when the rules were made. Of the further ones, written from the documents without sight of
the rules, it is also told how many were reached before rules were made of those that were missed.
"""

import json
import time
from collections import Counter
from pathlib import Path

from tunemark.collector.audit.load import load_evidence
from tunemark.collector.audit.rule import Finding, all_rules, audit
from tunemark.schema.vocabulary import AuditVerdict

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "collector" / "audit" / "data"
SETS = {
    "the sixty cases": ("audit_cases", "case_records"),
    "further cases, written without sight of the rules": ("further_cases", "further_case_records"),
}
"""Title -> files of the cases and of what they are about."""
VERDICTS = [verdict.value for verdict in AuditVerdict]


def answer(findings: tuple[Finding, ...], about: dict[str, list[str]], expected: str) -> str:
    """Return the verdict that the rules of a case give about its records: the expected one when it is among them."""
    mine = [one for one in findings if one.rule in about["rules"] and set(one.records) & set(about["records"])]
    given = {one.verdict.value for one in mine}
    if expected in given:
        reached = {record for one in mine if one.verdict.value == expected for record in one.records} & set(about["records"])
        return expected if not about.get("all") or reached == set(about["records"]) else "partly"
    return next((verdict for verdict in VERDICTS if verdict in given), "ok")


def confusion(findings: tuple[Finding, ...], cases: list[dict[str, str]], about: dict[str, dict[str, list[str]]]) -> None:
    """Print how cases are judged, with recall on bad claims and false alarms on controls."""
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


def others(findings: tuple[Finding, ...], cases: list[dict[str, str]], about: dict[str, dict[str, list[str]]]) -> None:
    """Print what else is found about the records of controls."""
    print("\nother findings about the records of controls:")
    for case in cases:
        if case["verdict"] == "ok":
            other = Counter(f"{one.rule} {one.verdict.value}" for one in findings if set(one.records) & set(about[case["id"]]["records"]))
            print(f"  {case['id']}: {', '.join(f'{name} x{number}' for name, number in other.items()) or 'none'}")


def main() -> None:
    """Print the tables, recall, false alarms and the findings by rule."""
    began = time.perf_counter()
    base = load_evidence(ROOT)
    loaded = time.perf_counter()
    findings = audit(base)
    ended = time.perf_counter()
    for title, files in SETS.items():
        cases, about = (json.loads((DATA / f"{name}.json").read_text(encoding="utf-8")) for name in files)
        print(f"{title}\n")
        confusion(findings, cases, about)
        others(findings, cases, about)
        print()
    print(f"findings by rule, of {len(base.results)} results and {len(base.statements)} statements:")
    counted = Counter((one.rule, one.verdict.value) for one in findings)
    for rule in all_rules():
        mine = ", ".join(f"{counted[rule.id, verdict]} {verdict}" for verdict in VERDICTS if counted[rule.id, verdict])
        print(f"  {rule.id:28} {rule.family:14} {mine or '-'}")
    print(f"\n{len(findings)} findings; read in {loaded - began:.2f} s, audited in {ended - loaded:.2f} s")


if __name__ == "__main__":
    main()
