"""Measure the structure of the code: modules, lines, import chains, single-importer modules, cycles and reading lists.

Usage: python benchmarks/structure.py [--root DIR] [--json] [--longest] [--called]

Every figure is computed from the source. The longest chain counts imports at the top of modules; single importers and cycles
count imports inside functions too, since a reader has to follow them.
A reading list is chosen by hand. Its length is printed with the number of other modules that its files import. With --called, a run of
three steps on the CPU counts the modules of which functions are called; this takes half a minute and needs the installed harness.
A package counts as a module when its `__init__.py` holds more than a docstring.
"""

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOMS = ("schema", "harness", "collector", "site")

READING_LISTS = {
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
"""Files to open first, in this order, to follow one run and one submission: chosen by hand, and only checked to exist."""

CALLS = (("plan", "smoke-lora"), ("run", "smoke-lora", "--steps", "3", "--out", "."))
"""The commands whose modules --called counts."""
NOTE_CALLS = """
import os, sys, threading
seen = set()
def note(frame, event, _):
    code = frame.f_code
    # Bodies of modules, of classes and of comprehensions also run at import.
    if event == "call" and code.co_flags & 1 and not code.co_name.startswith("<") and code.co_filename not in seen:
        seen.add(code.co_filename)
        with open(os.environ["TUNEMARK_CALLED"], "a", encoding="utf-8") as file:
            file.write(code.co_filename + "\\n")
sys.setprofile(note)
threading.setprofile(note)
"""
"""A sitecustomize.py, which every Python process reads at its start, so that worker processes are counted too."""


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


def called_modules(root: Path) -> list[str]:
    """Return the modules of which a function is called while a smoke workload is planned and run, in all of its processes."""
    with tempfile.TemporaryDirectory() as folder:
        called = Path(folder) / "called"
        (Path(folder) / "sitecustomize.py").write_text(NOTE_CALLS, encoding="utf-8")
        environment = os.environ | {"PYTHONPATH": folder, "TUNEMARK_CALLED": str(called), "TUNEMARK_ROOT": str(root)}
        for words in CALLS:
            command = [sys.executable, "-c", "from tunemark.cli import main; main()", *words]
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - our own arguments
            if done.returncode not in {0, 6}:  # three steps have no steady window
                sys.exit(f"tunemark {' '.join(words)} failed:\n{done.stderr}")
        files = set(called.read_text(encoding="utf-8").splitlines())
    return [name for name, path in source_files(root).items() if str(path) in files]


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
        **{f"reading list, {name}": _reading(steps, graph) for name, steps in READING_LISTS.items()},
        "missing in a reading list": [step for steps in READING_LISTS.values() for step in steps if step not in modules],
        "single": sorted(f"{name} <- {next(iter(importers[name]))} ({lines[name]})" for name in modules if len(importers[name]) == 1),
    }


def _reading(steps: tuple[str, ...], graph: dict[str, set[str]]) -> str:
    imported = set().union(*(graph.get(step, set()) for step in steps)) - set(steps)
    return f"{len(steps)} files, which import {len(imported)} others"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--longest", action="store_true", help="also print the longest chain, the cycles and the single-importer modules")
    parser.add_argument("--called", action="store_true", help="also count the modules of which a smoke run calls functions")
    args = parser.parse_args()
    figures = measure(args.root)
    if args.called:
        called = called_modules(args.root)
        for room in ("harness", "schema"):
            inside = [name for name in called if name.startswith(f"{room}.")]
            figures[f"{room} modules called, plan to run"] = len(inside)
            figures[f"called in {room}"] = inside
    if args.json:
        print(json.dumps(figures, indent=1))
        return
    details = ("chain", "cyclic", "single", "called in harness", "called in schema")
    for name, value in figures.items():
        if name not in details or args.longest:
            print(f"{name:42} {value if not isinstance(value, list) else chr(10) + chr(10).join(f'    {item}' for item in value)}")


if __name__ == "__main__":
    main()
