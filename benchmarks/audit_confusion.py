"""Confusion table of the audit over the sixty checked cases, and how many findings each rule makes elsewhere.

    python benchmarks/audit_confusion.py

A case is reached when a rule that may answer it gives its verdict about its records. A control is a false alarm when
such a rule calls it impossible, inconsistent or suspicious. Whatever else is found about the records of a control is
listed too, since a reader sees all of it.
"""

import json
import time
from collections import Counter
from pathlib import Path

from tunemark.collector.audit.engine import audit
from tunemark.collector.audit.loaded import base_of
from tunemark.collector.audit.registry import RULES
from tunemark.schema.findings import Finding
from tunemark.schema.vocabulary import AuditVerdict

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "collector" / "audit" / "data"
VERDICTS = [verdict.value for verdict in AuditVerdict]


def answer(findings: tuple[Finding, ...], about: dict[str, list[str]], expected: str) -> str:
    """Return the verdict that the rules of a case give about its records: the expected one when it is among them."""
    mine = [one for one in findings if one.rule in about["rules"] and set(one.records) & set(about["records"])]
    given = {one.verdict.value for one in mine}
    if expected in given:
        reached = {record for one in mine if one.verdict.value == expected for record in one.records} & set(about["records"])
        return expected if not about.get("all") or reached == set(about["records"]) else "partly"
    return next((verdict for verdict in VERDICTS if verdict in given), "ok")


def main() -> None:
    """Print the table, recall, false alarms and the findings by rule."""
    cases = json.loads((DATA / "audit_cases.json").read_text(encoding="utf-8"))
    about = json.loads((DATA / "case_records.json").read_text(encoding="utf-8"))
    began = time.perf_counter()
    base = base_of(ROOT)
    loaded = time.perf_counter()
    findings = audit(base)
    ended = time.perf_counter()
    table = Counter((case["verdict"], answer(findings, about[case["id"]], case["verdict"])) for case in cases)
    columns = [*VERDICTS, "partly", "ok"]
    print(f"{'expected':14}" + "".join(f"{name:>14}" for name in columns))
    for expected in [*VERDICTS, "ok"]:
        print(f"{expected:14}" + "".join(f"{table[expected, name]:>14}" for name in columns))
    bad = [case for case in cases if case["verdict"] != "ok"]
    controls = [case for case in cases if case["verdict"] == "ok"]
    reached = sum(number for (expected, given), number in table.items() if expected == given and expected != "ok")
    alarms = sum(number for (expected, given), number in table.items() if expected == "ok" and given not in {"ok", "ambiguous"})
    print(f"\nrecall on bad claims: {reached} of {len(bad)}; false alarms on controls: {alarms} of {len(controls)}")
    print("\nother findings about the records of controls:")
    for case in controls:
        other = Counter(f"{one.rule} {one.verdict.value}" for one in findings if set(one.records) & set(about[case["id"]]["records"]))
        print(f"  {case['id']}: {', '.join(f'{name} x{number}' for name, number in other.items()) or 'none'}")
    print(f"\nfindings by rule, of {len(base.runs)} results and {len(base.statements)} statements:")
    counted = Counter((one.rule, one.verdict.value) for one in findings)
    for rule in RULES:
        mine = ", ".join(f"{counted[rule.id, verdict]} {verdict}" for verdict in VERDICTS if counted[rule.id, verdict])
        print(f"  {rule.id:28} {rule.family:14} {mine or '-'}")
    print(f"\n{len(findings)} findings; read in {loaded - began:.2f} s, audited in {ended - loaded:.2f} s")


if __name__ == "__main__":
    main()
