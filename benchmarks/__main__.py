"""List the benchmarks with what each measures, or run one: `python benchmarks NAME [OPTIONS]`."""

import ast
import runpy
import sys
from pathlib import Path

HERE = Path(__file__).parent


def _benchmarks() -> dict[str, str]:
    """Return the first line of the docstring of each benchmark by its name."""
    files = (path for path in sorted(HERE.glob("*.py")) if "__main__" in path.read_text(encoding="utf-8") and path != Path(__file__))
    return {path.stem: (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0] for path in files}


def main() -> None:
    """Run the named benchmark with the remaining arguments, or list all."""
    known = _benchmarks()
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in known:
        sys.stdout.write("".join(f"{each:24}{summary}\n" for each, summary in known.items()))
        sys.exit(f"benchmarks: no benchmark is called {name!r}" if name and not name.startswith("-") else 0)
    sys.argv = [f"benchmarks {name}", *sys.argv[2:]]
    runpy.run_path(str(HERE / f"{name}.py"), run_name="__main__")


if __name__ == "__main__":
    main()
