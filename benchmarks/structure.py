"""Measure the structure of the code: modules, lines, import chains, single-importer modules, cycles and reading walks.

Usage: python benchmarks/structure.py [--root DIR] [--json] [--longest]

Every figure is computed from the source. The longest chain counts imports at the top of modules; single importers and cycles
count imports inside functions too, since a reader has to follow them.
A package counts as a module when its `__init__.py` holds more than a docstring.
"""

import argparse
import ast
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOMS = ("schema", "harness", "collector", "site")

WALKS = {
    "plan to run": (
        "harness.commands.run",
        "harness.plan.resolve",
        "harness.run.launch",
        "harness.worker.entry",
        "harness.worker.loop",
        "harness.worker.engines",
        "harness.run.record",
        "schema.records.submission",
    ),
    "submission to database rows": (
        "collector.commands.database",
        "collector.store.loading",
        "collector.gate.read",
        "collector.gate.check",
        "collector.store.measured_rows",
    ),
}
"""The files that a reader opens, in this order, to follow one run and one submission. Each must be there."""


def source_files(root: Path) -> dict[str, Path]:
    """Return every module by its name without the prefix `tunemark.`."""
    files = {}
    for room in ROOMS:
        base = root / room / "tunemark"
        for path in sorted(base.rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def imported_modules(path: Path, modules: dict[str, Path], *, lazy: bool = True) -> Iterator[str]:
    """Yield the modules of ours that a file imports: at its top, and inside functions too when `lazy`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if lazy else tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tunemark"):
            package = node.module.removeprefix("tunemark").lstrip(".")
            for alias in node.names:
                name = f"{package}.{alias.name}".lstrip(".")
                yield name if name in modules else package


def strong_components(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components, dependencies first (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph[node]):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            at = stack.index(node)
            components.append(stack[at:])
            del stack[at:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return components


def longest_chain(graph: dict[str, set[str]]) -> list[str]:
    """Return the longest chain of imports; the modules of a cycle count as one step each."""
    best: dict[str, list[str]] = {}
    for component in strong_components(graph):
        inside = set(component)
        below = max((best[target] for node in component for target in graph[node] - inside), key=len, default=[])
        for node in component:
            best[node] = [*component, *below]
    return max(best.values(), key=len)


def measure(root: Path) -> dict[str, object]:
    """Return the figures of a checkout."""
    files = source_files(root)
    modules = {name: path for name, path in files.items() if path.name != "__init__.py" or len(path.read_text().splitlines()) > 1}
    graph, top = (
        {
            name: {target for target in imported_modules(path, files, lazy=lazy) if target in modules and target != name}
            for name, path in modules.items()
        }
        for lazy in (True, False)
    )
    importers: dict[str, set[str]] = defaultdict(set)
    for name, targets in graph.items():
        for target in targets:
            importers[target].add(name)
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in files.items()}
    chain = longest_chain(top)
    return {
        "modules": len(modules),
        "lines": sum(lines.values()),
        "lines by room": {room: sum(n for name, n in lines.items() if files[name].relative_to(root).parts[0] == room) for room in ROOMS},
        "modules by room": {room: sum(files[name].relative_to(root).parts[0] == room for name in modules) for room in ROOMS},
        "longest module": max(lines.items(), key=lambda item: item[1]),
        "longest import chain": len(chain),
        "chain": chain,
        "single-importer modules": sum(len(importers[name]) == 1 for name in modules),
        "cycles": sum(len(component) > 1 for component in strong_components(graph)),
        "cyclic": [component for component in strong_components(graph) if len(component) > 1],
        **{f"files, {walk}": len(steps) if all(step in modules for step in steps) else None for walk, steps in WALKS.items()},
        "missing on a walk": [step for steps in WALKS.values() for step in steps if step not in modules],
        "single": sorted(f"{name} <- {next(iter(importers[name]))} ({lines[name]})" for name in modules if len(importers[name]) == 1),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--longest", action="store_true", help="also print the longest chain, the cycles and the single-importer modules")
    args = parser.parse_args()
    figures = measure(args.root)
    if args.json:
        print(json.dumps(figures, indent=1))
        return
    details = ("chain", "cyclic", "single")
    for name, value in figures.items():
        if name not in details or args.longest:
            print(f"{name:32} {value if not isinstance(value, list) else chr(10) + chr(10).join(f'    {item}' for item in value)}")


if __name__ == "__main__":
    main()
