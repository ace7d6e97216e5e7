"""Run mutation tests: change one detail of the code at a time and check that a test fails.

Usage: python benchmarks/mutants.py [--target NAME] [--sample 60] [--seed 0] [--jobs 2] [--only FILE] [--json]
Example: python benchmarks/mutants.py --target intervals --sample 100 --json > first.json
         python benchmarks/mutants.py --target intervals --only first.json

Python mutants come from cosmic-ray's operators, SQL mutants from the list below. A fixed seed draws the sample, and equivalent
mutants are dropped after the draw. Each mutant runs in a copy of the checkout with the tests of its target, nearest tests first;
a mutant that passes them is tried with the wider tests. A survivor is a change that no test notices: write the test, or list it
in EQUIVALENT with the reason why it changes nothing.
"""

import argparse
import json
import multiprocessing
import os
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Queue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
COPIED = (
    "schema",
    "harness",
    "collector",
    "site",
    "data",
    "submissions",
    "tests",
    "benchmarks",
    "pyproject.toml",
    "mkdocs.yml",
    "Makefile",
)
ROOMS = ("schema", "harness", "collector", "site")
TIMEOUT_S = 300
PRELOADED = ["pytest", "numpy", "scipy.stats", "pydantic", "duckdb", "pyarrow", "hypothesis"]
"""Modules that are imported once for all mutants."""
GOAL = 0.95

OPERATORS = (
    *(f"core/ReplaceComparisonOperator_{a}_{b}" for a, b in (("Lt", "LtE"), ("LtE", "Lt"), ("Gt", "GtE"), ("GtE", "Gt"), ("Eq", "NotEq"))),
    *(f"core/ReplaceComparisonOperator_{a}_{b}" for a, b in (("NotEq", "Eq"), ("Is", "IsNot"), ("IsNot", "Is"))),
    *(f"core/ReplaceBinaryOperator_{a}_{b}" for a, b in (("Add", "Sub"), ("Sub", "Add"), ("Mul", "Div"), ("Div", "Mul"), ("Pow", "Mul"))),
    "core/ReplaceAndWithOr",
    "core/ReplaceOrWithAnd",
    "core/ReplaceTrueWithFalse",
    "core/ReplaceFalseWithTrue",
    "core/AddNot",
    "core/NumberReplacer",
    "core/ReplaceUnaryOperator_Delete_Not",
    "core/ZeroIterationForLoop",
)
"""Operators that change behaviour. Replacing `|` would mostly change type annotations."""

SQL_MUTATIONS = (
    (r"\band\b", "or"),
    (r"\bis not null\b", "is null"),
    (r"\bis null\b", "is not null"),
    (r"(?<=[\w)'\"]) = (?=[\w('\"])", " <> "),
    (r" <= ", " < "),
    (r" >= ", " > "),
    (r"(?<!select) \* (?=[\w(])", " / "),
    (r" / ", " * "),
    (r"\bmin\(", "max("),
    (r"\bmax\(", "min("),
    (r"\bsum\(", "avg("),
    (r"\bleft join\b", "join"),
    (r"\bnot in\b", "in"),
    (r"\bdesc\b", ""),
    (r"\btrue\b", "false"),
    (r"\b1000000\b|\b1e6\b", "1000"),
)
"""Pattern and replacement of textual mutants."""

EQUIVALENT_LINES = {
    r"@dataclass\(": "`frozen` and `slots` reject assignments; no result depends on them",
}
"""Pattern of an original line without a mutant that changes a result -> the reason."""

EQUIVALENT_CHANGES = {
    r"\bzip\(.*strict=False": "`strict` only checks that lengths are equal, which they are by construction",
    r"/ (1000000001|999999999|1000000000001|999999999999)\.0:[,.\d]*[fg]\}": "the ninth digit of a figure that is printed with six or fewer",
}
"""Pattern of a changed line that changes no result -> the reason."""

EQUIVALENT: dict[str, str] = {
    "steady_state.py: def steady_window(trace: StepTrace, rules: Measurement, settled_after: int = -1) -> SteadyWindow:": (
        "it is compared with the minimum of warm-up steps, which is 0 or more"
    ),
    "catalogue.py: results, (_, model, length) = [result for result, *_ in rows], rows[ -1]": "grouped rows share model and length",
    "comparison.py: return rates[ -1].tokens_per_s.value * flop_per_token(result, result.model, length) / peak, rates[0].quantity": (
        "there is exactly one rate"
    ),
    "bounds.py: weights = count_weights(least_shape(model, method, 2, 1))": "the number of weights does not depend on rows and length",
    "bounds.py: weights = count_weights(least_shape(model, method, 1, 2))": "as above",
    "unstated_conditions.py: for (_, length), results in grouped(unnamed, lambda result: (result.source, result.conditions.sequence_length or 1)).items():": (
        "no context is shorter than one token"
    ),
    "comparison.py: logs[np.abs(logs) <= ROUNDING] = 0.0": (
        "a difference of two logarithms of this size is within 4% of a multiple of 2^-53, and 1e-9 is 25% away from the next"
    ),
    "intervals.py: for k in range(3 if degrees % 2 else 2, degrees - 0, 2):": "k has the parity of degrees, and degrees itself is excluded",
    "intervals.py: low, high = -1.0, 1.0": "the same quantile within 1e-12, relative, for probabilities above 0.5",
    "intervals.py: low, high = 0.0, 2.0": "as above",
    "intervals.py: high *= 3": "as above",
    "intervals.py: low, high = (middle, high) if t_cdf(middle, degrees) <= probability else (low, middle)": "as above",
    "intervals.py: while t_cdf(high, degrees) <= probability:": "one more doubling; the same quantile",
    "intervals.py: for _ in range( 101):": "the interval is a single number after about 60 halvings",
    "intervals.py: for _ in range( 99):": "as above",
}
"""`file name: changed line` of a mutant that changes no result -> the reason."""


@dataclass(frozen=True, slots=True)
class Target:
    """Files to mutate, with the tests that must notice."""

    files: tuple[str, ...]
    """Glob patterns relative to the checkout."""
    tests: tuple[str, ...]
    """The nearest tests, fastest first."""
    wider: tuple[str, ...] = ()
    """Tests for a mutant that the nearest do not notice."""


_SCHEMA = "schema/tunemark/schema"
_COLLECTOR = "collector/tunemark/collector"
_INTERVALS, _COMPARISON, *_DERIVED = tuple(
    f"tests/schema/test_{name}.py" for name in ("statistics", "comparison", "derive_physics", "records")
)
_AUDIT = tuple(
    f"tests/collector/audit/test_{name}.py"
    for name in ("variations", "thresholds", "rules", "interval", "printed_figures", "cases", "engine", "audit_command")
)
TARGETS = {
    "derive": Target((f"{_SCHEMA}/derive.py",), tuple(_DERIVED)),
    "steady state": Target((f"{_SCHEMA}/statistics/steady_state.py",), (_INTERVALS,), tuple(_DERIVED)),
    "intervals": Target((f"{_SCHEMA}/statistics/intervals.py",), (_INTERVALS,), (_COMPARISON, *_DERIVED)),
    "comparison": Target((f"{_SCHEMA}/statistics/comparison.py",), (_COMPARISON,)),
    "views": Target(
        (f"{_COLLECTOR}/store/views.sql",),
        ("tests/collector/test_views.py", "tests/collector/test_costs.py"),
        tuple(f"tests/collector/test_{name}.py" for name in ("evidence", "standard_runs", "collect")),
    ),
    "calibration": Target(
        (f"{_COLLECTOR}/predict/calibration_rows.py",),
        ("tests/collector/test_calibration_outcomes.py",),
        ("tests/collector/test_calibration_rows.py",),
    ),
    "audit": Target((f"{_COLLECTOR}/audit/*.py", f"{_COLLECTOR}/audit/rules/*.py"), _AUDIT),
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed file."""

    path: str
    line: int
    operator: str
    code: str
    """The whole changed file."""

    @property
    def name(self) -> str:
        """Name in reports."""
        return f"{self.path}:{self.line}:{self.operator}: {self.changed_line}"

    @property
    def changed_line(self) -> str:
        """The line after the change, without indentation."""
        return " ".join(self.code.splitlines()[self.line - 1].split()) if self.line else ""

    def equivalent(self, original: str) -> bool:
        """Return True if a table says that this mutant of the original file changes no result."""
        line = original.splitlines()[self.line - 1].strip() if self.line else ""
        return (
            any(re.match(pattern, line) for pattern in EQUIVALENT_LINES)
            or any(re.search(pattern, self.changed_line) for pattern in EQUIVALENT_CHANGES)
            or f"{Path(self.path).name}: {self.changed_line}" in EQUIVALENT
        )


class Site(NamedTuple):
    """A place to mutate."""

    path: str
    operator: str
    mutant: Callable[[], Mutant]
    """Building a Python mutant takes a walk of the syntax tree, so that only those of the sample are built."""


def sites(path: Path) -> Iterator[Site]:
    """Yield every place to mutate in a file."""
    yield from sql_sites(path) if path.suffix == ".sql" else python_sites(path)


def sql_sites(path: Path) -> Iterator[Site]:
    """Yield the textual mutations of a SQL file, outside of comments."""
    text, name = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
    comments = [match.span() for match in re.finditer(r"--.*$|^\s*comment on .*$", text, re.MULTILINE | re.IGNORECASE)]
    for pattern, replacement in SQL_MUTATIONS:
        for match in re.finditer(pattern, text, re.IGNORECASE):
            if not any(start <= match.start() < end for start, end in comments):
                changed = text[: match.start()] + replacement + text[match.end() :]
                line, operator = text.count("\n", 0, match.start()) + 1, f"{match[0].strip()} -> {replacement}"
                yield Site(name, operator, partial(Mutant, name, line, operator, changed))


def python_sites(path: Path) -> Iterator[Site]:
    """Yield the mutations of a Python file by cosmic-ray's operators."""
    from cosmic_ray.ast import ast_nodes, get_ast  # noqa: PLC0415 - installed by `make mutants`
    from cosmic_ray.plugins import get_operator  # noqa: PLC0415 - as above

    nodes, name = list(ast_nodes(get_ast(path.read_text(encoding="utf-8")))), str(path.relative_to(ROOT))
    for operator in OPERATORS:
        count = sum(1 for node in nodes for _ in get_operator(operator)().mutation_positions(node))
        for occurrence in range(count):
            yield Site(name, operator.removeprefix("core/"), partial(python_mutant, path, operator, occurrence))


def python_mutant(path: Path, operator: str, occurrence: int) -> Mutant:
    """Return a Python file with one occurrence of an operator mutated."""
    from cosmic_ray.mutating import mutate_code  # noqa: PLC0415 - installed by `make mutants`
    from cosmic_ray.plugins import get_operator  # noqa: PLC0415 - as above

    code = path.read_text(encoding="utf-8")
    changed = mutate_code(code, get_operator(operator)(), occurrence)
    line = next((n for n, (a, b) in enumerate(zip(code.splitlines(), changed.splitlines(), strict=False), start=1) if a != b), 0)
    return Mutant(str(path.relative_to(ROOT)), line, operator.removeprefix("core/"), changed)


def copy_checkout(folder: Path) -> Path:
    """Return a copy of the files that tests need."""
    for name in COPIED:
        source = ROOT / name
        target = folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)
    return folder


def killed(mutant: Mutant, target: Target, checkout: Path) -> bool:
    """Return True if a test fails with the mutant in place."""
    path = checkout / mutant.path
    original = path.read_text(encoding="utf-8")
    path.write_text(mutant.code, encoding="utf-8")
    for cached in path.parent.glob(f"__pycache__/{path.stem}.*"):
        cached.unlink()
    try:
        return any(tests and run_tests(tests, checkout) != 0 for tests in (target.tests, target.wider))
    finally:
        path.write_text(original, encoding="utf-8")


def run_tests(tests: tuple[str, ...], checkout: Path, *, keep_bytecode: bool = False) -> int:
    """Return the exit status of the tests in a process of their own; a time-out counts as a failure."""
    process = multiprocessing.get_context("forkserver").Process(target=pytest_process, args=(tests, checkout, keep_bytecode))
    process.start()
    process.join(TIMEOUT_S)
    if process.exitcode is None:
        process.kill()
        process.join()
    return process.exitcode or 0


def pytest_process(tests: tuple[str, ...], checkout: Path, keep_bytecode: bool) -> None:  # noqa: FBT001 - positional in `args`
    """Run the tests on a checkout and exit with the status of pytest."""
    import pytest  # noqa: PLC0415 - not needed to list mutants

    rooms = [str(checkout / room) for room in ROOMS]
    own = {str(ROOT / room) for room in ROOMS}
    sys.path[:] = [*rooms, *(path for path in sys.path if path not in own)]
    sys.dont_write_bytecode = not keep_bytecode
    os.environ |= {
        "PYTHONPATH": os.pathsep.join(rooms),
        "TUNEMARK_ROOT": str(checkout),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "" if keep_bytecode else "1",
    }
    os.chdir(checkout)
    output = os.open(os.devnull, os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests]))


def measure(name: str, sample: int, seed: int, jobs: int, only: set[str] | None = None) -> dict[str, object]:
    """Return the mutation score of a target, with its survivors. `only` restricts it to mutants with these names."""
    target = TARGETS[name]
    files = sorted(path for pattern in target.files for path in ROOT.glob(pattern) if path.name != "__init__.py")
    originals = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}
    every = [site for path in files for site in sites(path)]
    if only is None:
        drawn = [site.mutant() for site in random.Random(seed).sample(every, min(sample, len(every)))]  # noqa: S311 - a reproducible sample
    else:
        candidates = [site.mutant() for site in every if any(f"{site.path}:" in name and f":{site.operator}: " in name for name in only)]
        drawn = [mutant for mutant in candidates if mutant.name in only]
    chosen = [mutant for mutant in drawn if not mutant.equivalent(originals[mutant.path])]
    with tempfile.TemporaryDirectory() as folder:
        checkouts: Queue[Path] = Queue()
        for job in range(jobs):
            checkout = copy_checkout(Path(folder) / str(job))
            if run_tests((*target.tests, *target.wider), checkout, keep_bytecode=True) != 0:
                sys.exit(f"{name}: the tests fail without a mutant")
            checkouts.put(checkout)

        def judge(mutant: Mutant) -> tuple[Mutant, bool]:
            checkout = checkouts.get()
            try:
                return mutant, killed(mutant, target, checkout)
            finally:
                checkouts.put(checkout)

        judged = []
        with ThreadPoolExecutor(jobs) as pool:
            for number, (mutant, dead) in enumerate(pool.map(judge, chosen), start=1):
                judged.append((mutant, dead))
                sys.stderr.write(f"{name}: {number} of {len(chosen)}: {'killed' if dead else 'SURVIVED'} {mutant.name}\n")
    survivors = sorted(mutant.name for mutant, dead in judged if not dead)
    score = 1 - len(survivors) / len(judged) if judged else 1.0
    equivalent = len(drawn) - len(chosen)
    return {"target": name, "mutants": len(every), "sampled": len(judged), "equivalent": equivalent, "score": score, "survivors": survivors}


def main() -> None:
    """Print the mutation score of each target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=TARGETS, action="append", help="run only this target; may be repeated")
    parser.add_argument("--sample", type=int, default=60, help="mutants per target (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time")
    parser.add_argument("--only", type=Path, metavar="FILE", help="run only the survivors listed in the JSON of a former run")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    only = {name for result in json.loads(args.only.read_text(encoding="utf-8")) for name in result["survivors"]} if args.only else None
    results = [measure(name, args.sample, args.seed, args.jobs, only) for name in args.target or TARGETS]
    if args.json:
        print(json.dumps(results, indent=1))
        return
    for result in results:
        print(
            f"{result['target']:14} {result['score']:.1%} of {result['sampled']} sampled of {result['mutants']} mutants killed, "
            f"{result['equivalent']} of the sample equivalent; goal {GOAL:.0%}"
        )
        for survivor in result["survivors"]:  # type: ignore[attr-defined]
            print(f"    survived: {survivor}")


if __name__ == "__main__":
    main()
