"""Print the lines of each room beside its budget, and the longest chain of imports.

Usage: python benchmarks/structure.py

Lines are counted as the formatter leaves them, blank lines and docstrings included. Every figure is computed from the source. The longest
chain counts imports at the top of modules; single importers and cycles count imports inside functions too, since a reader follows them.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("schema", "harness", "collector", "site")
ALL_ROOMS_GOAL = 31_000
"""Goal for the lines of all rooms together, which is below the sum of their goals."""


@dataclass(frozen=True)
class Budget:
    """The most lines that a part of the repository may have."""

    name: str
    folders: str
    endings: tuple[str, ...]
    limit: int
    """Lines that a test holds. It only ever falls: a rise is a decision with a reason."""
    goal: int

    def lines(self, root: Path) -> int:
        """Return the lines of its files."""
        roots = [root / folder for folder in self.folders.split()]
        files = [path for each in roots for path in each.rglob("*") if path.suffix in self.endings and "__pycache__" not in path.parts]
        return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


PYTHON, CORE = (".py",), ("plan", "run", "vendors", "worker")
BUDGETS = (
    # Schema and collector raised by 686 on 2026-11-27: questions and claims in words, unused results, rows of files, free hardware; by 260 for hybrid models, 147 for ten families, Liger and what readers missed; by 130 on 2026-11-29 for prices, software and cards that a claim names; by 76 on 2026-11-30 for divisions of other software, times of MLPerf and TPUs, of which 37 are paid by the site. Schema by 15 on 2026-12-01 for 18 families of older, Korean, Arabic and Chinese models.
    Budget("schema", "schema", PYTHON, 11_727, 8_000),
    # What is left has no second copy and no dead code: less would be fewer device families, studies or settings.
    Budget("harness", "harness", PYTHON, 8_408, 7_000),
    Budget("of it the core", " ".join(f"harness/tunemark/harness/{name}" for name in CORE), PYTHON, 6_201, 6_371),
    Budget("collector", "collector", PYTHON, 15_232, 12_000),
    Budget("of it the gate", "collector/tunemark/collector/gate", PYTHON, 2_989, 3_400),
    Budget("site", "site", PYTHON, 4_109, 4_600),
    Budget("site, scripts and styles", "site", (".js", ".css"), 2_597, 2_600),
    Budget("site, templates", "site", (".j2",), 3_998, 4_000),
    Budget("collector and site, SQL", "collector site", (".sql",), 2_234, 2_600),
    # Raised by 60 on 2026-12-01 for the rows of 18 families.
    Budget("rooms, tables of rules", " ".join(ROOMS), (".toml", ".txt"), 4_123, 4_124),
    Budget("tests", "tests", PYTHON, 16_000, 16_000),
    Budget("benchmarks", "benchmarks", PYTHON, 4_000, 4_000),
)


def source_files(root: Path) -> dict[str, Path]:
    """Return the Python files of the rooms by module name without `tunemark.`."""
    files = {}
    for room in ROOMS:
        for path in sorted((root / room / "tunemark").rglob("*.py")):
            parts = path.relative_to(root / room / "tunemark").with_suffix("").parts
            files[".".join(parts).removesuffix(".__init__")] = path
    return files


def imported_modules(path: Path, known: dict[str, Path], *, lazy: bool) -> Iterator[str]:
    """Yield the modules of this repository that a file imports; with `lazy`, also inside functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if lazy else tree.body:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (name.removeprefix("tunemark.") for name in names if name.removeprefix("tunemark.") in known)


def longest_chain(graph: dict[str, set[str]]) -> int:
    """Return the modules in the longest chain of imports, which form no circle."""
    best: dict[str, int] = {}
    for node in TopologicalSorter(graph).static_order():
        best[node] = 1 + max((best[target] for target in graph[node]), default=0)
    return max(best.values())


def measure(root: Path) -> dict[str, int]:
    """Return the figures of a checkout. Raises CycleError, which names the modules, where imports form a circle."""
    files = source_files(root)
    modules = {name: path for name, path in files.items() if path.name != "__init__.py" or len(path.read_text().splitlines()) > 1}
    graph, top = (
        {
            name: {target for target in imported_modules(path, files, lazy=lazy) if target in modules and target != name}
            for name, path in modules.items()
        }
        for lazy in (True, False)
    )
    TopologicalSorter(graph).prepare()
    importers = Counter(target for targets in graph.values() for target in targets)
    return {
        "modules": len(modules),
        "longest import chain": longest_chain(top),
        "single-importer modules": sum(count == 1 for count in importers.values()),
    }


def main() -> None:
    """Print the figures."""
    print(f"{'lines':28}{'now':>8}{'limit':>8}{'goal':>8}")
    lines = {budget.name: budget.lines(ROOT) for budget in BUDGETS}
    for budget in BUDGETS:
        print(f"{budget.name:28}{lines[budget.name]:8,}{budget.limit:8,}{budget.goal:8,}")
    print(f"{'four rooms, Python':28}{sum(lines[name] for name in ROOMS):8,}{'':8}{ALL_ROOMS_GOAL:8,}\n")
    for name, value in measure(ROOT).items():
        print(f"{name:36}{value}")


if __name__ == "__main__":
    main()
