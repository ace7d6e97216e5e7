"""Examine the gate: apply every corruption of `gate_mutations` and count what is refused.

    python benchmarks/gate_mutation_score.py [--family NAME] [--extra FOLDER] [--json] [--missed] [--out FILE]

A corruption is caught on a base if the gate refuses it, or asks for a second run where the corruption is possible but unlikely, and
names one of the fields that are wrong. Submissions are judged in process, in a temporary checkout with this repository's facts.
Exit code 1 if an honest submission is refused.
"""

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from gate_mutations.bases import bases
from gate_mutations.checkout import Checkout, Judgement, make_checkout
from gate_mutations.corpus import CORRUPTIONS
from gate_mutations.corruptions import Corruption
from gate_mutations.honest import Honest, honest

COMMITTED_FAMILIES = ("identity", "supersede")
"""Families that are judged beside the committed bases. Elsewhere each copy of a base would be refused as a copy."""
PROCESSES = 2


@dataclass(frozen=True)
class Case:
    """One corruption of one base."""

    family: str
    name: str
    base: str
    caught: bool
    """Refused, or a second run requested where that is enough."""
    named: bool
    """A problem names one of the wrong fields."""
    crash: str
    said: tuple[str, ...]


def examine(corruption: Corruption, alone: Checkout, committed: Checkout) -> list[Case]:
    """Return the cases of a corruption. Its bases are different runs, so that they are judged together."""
    chosen = corruption.bases
    checkout = committed if corruption.family in COMMITTED_FAMILIES else alone
    changed = [corruption.applied(base) for base in chosen]
    if any(len(contents) > 1 for contents in changed):
        judged = [checkout.judge(contents) for contents in changed]
    else:
        single = [contents[0] for contents in changed]
        judged = [[one] for one in checkout.judge(single, [corruption.place(content) for content in single])]
        if any(one.crash for (one,) in judged):
            judged = [checkout.judge(contents, [corruption.place(contents[0])]) for contents in changed]
    return [_case(corruption, base.name, judgements) for base, judgements in zip(chosen, judged, strict=True)]


def _case(corruption: Corruption, base: str, judgements: Sequence[Judgement]) -> Case:
    said = tuple(text for judgement in judgements for text in (*judgement.problems, *(judgement.notes if corruption.flag else ())))
    caught = any(judgement.refused or (corruption.flag and judgement.flagged) for judgement in judgements)
    crash = next((judgement.crash for judgement in judgements if judgement.crash), "")
    return Case(corruption.family, corruption.name, base, caught, caught and any(map(corruption.names, said)), crash, said)


# Run everything, in two processes


_STATE: dict[str, Any] = {}


def _begin(folder: str, extra: str | None) -> None:
    """Prepare a process: its own checkouts, and the corruptions of an extra folder."""
    root = Path(tempfile.mkdtemp(dir=folder))
    _STATE["alone"] = make_checkout(root / "alone")
    _STATE["committed"] = make_checkout(root / "committed", [base.content for base in bases()])
    _STATE["corruptions"] = all_corruptions(extra)


def _examine(index: int) -> list[Case]:
    return examine(_STATE["corruptions"][index], _STATE["alone"], _STATE["committed"])


def all_corruptions(extra: str | None) -> list[Corruption]:
    """Return the corruptions of this repository, or those of an extra folder."""
    return list(CORRUPTIONS) if extra is None else list(extra_module(extra, "corruptions").CORRUPTIONS)


def extra_module(folder: str, name: str) -> ModuleType:
    """Import a module of a folder with further corruptions, which has the form of this package."""
    spec = importlib.util.spec_from_file_location(f"extra_{name}", Path(folder) / f"{name}.py")
    if spec is None or spec.loader is None:
        msg = f"{folder} has no {name}.py"
        raise FileNotFoundError(msg)
    before = len(CORRUPTIONS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if name == "corruptions":
        module.CORRUPTIONS = CORRUPTIONS[before:]
    return module


def run_corruptions(folder: str, extra: str | None, family: str | None) -> list[Case]:
    """Return the cases of all corruptions, or of one family."""
    corruptions = all_corruptions(extra)
    chosen = [index for index, corruption in enumerate(corruptions) if family in {None, corruption.family}]
    with ProcessPoolExecutor(PROCESSES, initializer=_begin, initargs=(folder, extra)) as pool:
        return [case for cases in pool.map(_examine, chosen, chunksize=8) for case in cases]


def run_honest(folder: str, variants: Iterable[Honest]) -> dict[str, Judgement]:
    """Return the judgement of each honest variant, in a checkout in which the bases are committed."""
    checkout = make_checkout(Path(tempfile.mkdtemp(dir=folder)) / "honest", [base.content for base in bases()])
    variants = list(variants)
    return dict(zip((variant.name for variant in variants), checkout.judge([variant.make() for variant in variants]), strict=True))


# Tables


def table(rows: Sequence[Sequence[object]], header: Sequence[str]) -> str:
    """Return rows as a Markdown table."""
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def by_family(cases: Iterable[Case]) -> dict[str, dict[str, int]]:
    """Return the counts of each family, and of all."""
    groups: dict[str, dict[str, list[Case]]] = defaultdict(lambda: defaultdict(list))
    for case in cases:
        for family in (case.family, "all"):
            groups[family][f"{case.family}: {case.name}"].append(case)
    counts = {}
    for family, corruptions in groups.items():
        listed = [case for group in corruptions.values() for case in group]
        counts[family] = {
            "corruptions": len(corruptions),
            "caught_on_every_base": sum(all(case.caught for case in group) for group in corruptions.values()),
            "cases": len(listed),
            "cases_caught": sum(case.caught for case in listed),
            "field_named": sum(case.named for case in listed),
            "crashes": sum(bool(case.crash) for case in listed),
        }
    return dict(sorted(counts.items(), key=lambda entry: (entry[0] == "all", entry[0])))


def share(part: int, whole: int) -> str:
    """Return `part of whole (percent)`."""
    return f"{part} of {whole} ({part / whole:.1%})" if whole else "0"


def report(result: dict[str, Any]) -> Iterator[str]:
    """Yield the sections of the report."""
    rows = [
        (
            name,
            c["corruptions"],
            share(c["caught_on_every_base"], c["corruptions"]),
            share(c["cases_caught"], c["cases"]),
            share(c["field_named"], c["cases"]),
            c["crashes"],
        )
        for name, c in result["families"].items()
    ]
    yield table(rows, ("family", "corruptions", "caught on every base", "cases caught", "and the field named", "crashes"))
    accepted = result["honest"]["variants"] - len(result["honest"]["refused"])
    yield f"Honest submissions accepted: {share(accepted, result['honest']['variants'])}"
    for name, problems in result["honest"]["refused"].items():
        yield f"  refused: {name}: {'; '.join(problems)[:400]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the examination; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family")
    parser.add_argument("--extra", help="a folder with further corruptions in the form of gate_mutations")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--missed", action="store_true", help="list what was not caught, and what was caught for another reason")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    options = parser.parse_args(arguments)
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gate-") as folder:
        cases = run_corruptions(folder, options.extra, options.family)
        variants = extra_module(options.extra, "honest").honest() if options.extra else honest()
        judged = {} if options.family else run_honest(folder, variants)
    refused = {
        name: [judgement.crash] if judgement.crash else list(judgement.problems)
        for name, judgement in judged.items()
        if judgement.problems or judgement.crash
    }
    result = {
        "families": by_family(cases),
        "honest": {"variants": len(judged), "refused": refused},
        "missed": [asdict(case) for case in cases if not case.caught],
        "other_field": [asdict(case) for case in cases if case.caught and not case.named],
        "seconds": round(time.monotonic() - started_s),
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.json:
        print(json.dumps(result, indent=1, ensure_ascii=False))
    else:
        print("\n\n".join(report(result)))
        if options.missed:
            for kind in ("missed", "other_field"):
                for case in result[kind]:
                    print(f"{kind}: {case['family']}: {case['name']} [{case['base']}] {case['crash']} {'; '.join(case['said'])[:300]}")
        print(f"{result['seconds']} s")
    return int(bool(refused))


if __name__ == "__main__":
    sys.exit(main())
