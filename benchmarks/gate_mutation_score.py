"""Examine the gate: apply every corruption of `gate_mutations` and count what is refused.

    python benchmarks/gate_mutation_score.py [--only KIND ...] [--extra FOLDER] [--missed] [--out FILE]

The gate refuses a corruption, or accepts it with a request for a second run where it is possible but unlikely. It names the
field if a problem mentions one of those that are wrong. Submissions are judged in process, in temporary checkouts with the facts of
this repository. Exit code 1 if an honest submission or message is refused, or if the gate crashes.
"""

import argparse
import csv
import io
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gate_mutations.examination import Case, control, run, run_honest

COLUMNS = ("kind", "family", "attempts", "caught_everywhere", "cases", "cases_caught", "named")
SUFFIX = " kept back"
"""Ending of the kinds of cases from an extra folder."""
KINDS = ("corruptions", "honest", "texts", "files", "facts")
GROUPED = {"corruptions": "corruption", "texts": "text", "files": "file", "facts": "fact"}
"""Kinds of which the cases are counted by family."""


def grouped(cases: Iterable[Case]) -> dict[str, dict[str, int]]:
    """Return the counts of each family, and of all."""
    groups: dict[str, dict[tuple[str, str], list[Case]]] = defaultdict(lambda: defaultdict(list))
    for case in cases:
        for family in (case.family, "all"):
            groups[family][case.family, case.name].append(case)
    counts = {}
    for family, corruptions in groups.items():
        listed = [case for group in corruptions.values() for case in group]
        counts[family] = {
            "corruptions": len(corruptions),
            "caught_everywhere": sum(all(case.refused for case in group) for group in corruptions.values()),
            "cases": len(listed),
            "cases_caught": sum(case.refused for case in listed),
            "field_named": sum(case.caught and case.named for case in listed),
            "crashes": sum(bool(case.crash) for case in listed),
            "refused_or_doubted": sum(case.caught for case in listed),
        }
    return dict(sorted(counts.items(), key=lambda entry: (entry[0] == "all", entry[0])))


def examined(extra: Path | None, kinds: Sequence[str]) -> tuple[dict[str, Any], list[Case]]:
    """Run the examination and return its result as JSON content, with all cases."""
    started_s, result = time.monotonic(), dict[str, Any]()
    with tempfile.TemporaryDirectory(prefix="gate-") as name:
        folder = Path(name)
        if wrong := control(folder):
            sys.exit(f"the gate refuses the bases or the facts themselves, so that no score means anything: {wrong[:3]}")
        cases = list(run(folder, extra, kinds))
        result |= {kind: grouped(case for case in cases if case.kind == name) for kind, name in GROUPED.items() if kind in kinds}
        if "honest" in kinds:
            judged = run_honest(folder, extra)
            refused = {name: [*one.problems, one.crash] for name, one in judged.items() if one.problems or one.crash}
            again = [name for name, one in judged.items() if one.requests_second_run]
            result["honest"] = {"variants": len(judged), "refused": refused, "second_run_requested": again}
        if "texts" in kinds:
            messages = [case for case in cases if case.kind == "message"]
            refused = {case.name: list(case.said) for case in messages if not case.caught}
            result["messages"] = {"messages": len(messages), "refused": refused}
    result["crashes"] = sum(bool(case.crash) for case in cases)
    result["seconds"] = round(time.monotonic() - started_s)
    return result, cases


# The report


def share(part: int, whole: int) -> str:
    """Return `part of whole (percent)`."""
    return f"{part} of {whole} ({part / whole:.1%})" if whole else "none"


def report(result: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the report."""
    counted = {"cases_caught": "refused", "refused_or_doubted": "refused or doubted", "field_named": "place named, output harmless"}
    for kind in GROUPED:
        for family, c in result.get(kind, {}).items():
            if kind in {"corruptions", "facts"} or family == "all":
                shares = [f"{words} {share(c[part], c['cases'])}" for part, words in counted.items()]
                everywhere = f"refused on all bases {share(c['caught_everywhere'], c['corruptions'])}"
                yield f"{kind}, {family}: {', '.join([*shares, everywhere])}, {c['crashes']} crashes"
    for kind, count in (("honest", "variants"), ("messages", "messages")):
        if kind in result:
            refused = [f"  refused: {name}: {'; '.join(said)[:300]}" for name, said in result[kind]["refused"].items()]
            yield "\n".join([f"{kind}: accepted {share(result[kind][count] - len(refused), result[kind][count])}", *refused])
    if result.get("honest", {}).get("second_run_requested"):
        yield f"honest, accepted with a request for a second run: {', '.join(result['honest']['second_run_requested'])}"
    yield f"{result['crashes']} crashes, {result['seconds']} s"


def scores(result: dict[str, Any], suffix: str) -> Iterator[dict[str, object]]:
    """Yield the rows of the result for the site."""
    for kind in GROUPED:
        for family, counts in result.get(kind, {}).items():
            if kind != "files" or family == "all":
                yield dict(zip(COLUMNS, (kind + suffix, family, *list(counts.values())[:5]), strict=True))
    for kind, name in (("honest", "variants"), ("messages", "messages")):
        if result.get(kind, {}).get(name):
            accepted, count = result[kind][name] - len(result[kind]["refused"]), result[kind][name]
            yield dict(zip(COLUMNS, (kind + suffix, "all", count, accepted, count, accepted, accepted), strict=True))


def write_scores(path: Path, result: dict[str, Any], suffix: str) -> None:
    """Write the scores; those of the other kinds in the file stay."""
    rows = list(scores(result, suffix))
    old = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) if path.exists() else []
    kept = [row for row in old if row["kind"] not in {new["kind"] for new in rows}]
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(sorted([*kept, *rows], key=lambda row: SUFFIX in str(row["kind"])))
    path.parent.mkdir(exist_ok=True)
    path.write_text(text.getvalue(), encoding="utf-8")


def missed(cases: Iterable[Case]) -> Iterator[str]:
    """Yield one line for each case that was not caught, or caught for another reason."""
    for case in cases:
        if not case.caught or not case.named or case.crash:
            why = "crash" if case.crash else "missed" if not case.caught else "another field"
            yield f"{why}: {case.kind}: {case.family}: {case.name} [{case.base}] {'; '.join(filter(None, (case.crash, *case.said)))[:200]!r}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the examination; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=KINDS, nargs="+", default=KINDS)
    parser.add_argument("--extra", type=Path, help="a folder with further cases in the form of gate_mutations")
    parser.add_argument("--missed", action="store_true", help="list what was not caught, or caught for another reason")
    parser.add_argument("--out", type=Path, help="write the scores as CSV, for the site")
    options = parser.parse_args(arguments)
    result, cases = examined(options.extra, options.only)
    if options.out:
        write_scores(options.out, result, SUFFIX if options.extra else "")
    print("\n".join([*report(result), *(missed(cases) if options.missed else ())]))
    refused = result.get("honest", {}).get("refused") or result.get("messages", {}).get("refused")
    return int(bool(refused or result["crashes"]))


if __name__ == "__main__":
    sys.exit(main())
