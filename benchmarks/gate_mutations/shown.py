"""Whether a hostile message that the gate accepts is harmless where it is shown: terminal, CSV, export and pages."""

import csv
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path

from gate_mutations.bases import write
from gate_mutations.checkout import make_checkout
from gate_mutations.simulated import ROOT
from gate_mutations.texts import MESSAGE, Text, with_text

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
COMMAND = re.compile(r"^(::|##\[)", re.MULTILINE)
FORMULA = re.compile(r"[=+@\t\r]|-(?!\d)")
"""Begins a formula in a spreadsheet."""
LIVE = re.compile(r"evil\.example|tracker\.example|^\s*(javascript|data:text/html)", re.IGNORECASE)
ROOMS = ("schema", "harness", "collector", "site")


class _Page(HTMLParser):
    """Collects what a browser would run or fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.live: list[str] = []
        self._script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note handlers, hostile links and hostile frames."""
        self._script = tag == "script" and not any(name == "type" and "json" in (value or "") for name, value in attrs)
        for name, value in attrs:
            if (name.startswith("on") and "alert" in (value or "")) or name == "srcdoc" or LIVE.search(value or ""):
                self.live.append(f"<{tag} {name}={value!r}>")

    def handle_data(self, data: str) -> None:
        """Note hostile scripts."""
        if self._script and "alert(1)" in data:
            self.live.append(f"<script>{data[:60]}")

    def handle_endtag(self, _tag: str) -> None:
        """End a script."""
        self._script = False


def alive(root: Path, texts: Sequence[Text]) -> list[str]:
    """Return each place in which a text acts, after accepting, loading and publishing submissions with these messages."""
    checkout = make_checkout(root).root
    for number, text in enumerate(texts):
        write({**with_text(MESSAGE, text.text), "run_id": f"{number:032x}"}, checkout)
    (checkout / "mkdocs.yml").write_bytes((ROOT / "mkdocs.yml").read_bytes())
    outputs = {"collect": _run(checkout, "collect")}
    for form in ((), ("--csv",), ("--json",)):
        outputs[f"query {''.join(form)}".strip()] = _run(checkout, "query", "select message from results", *form)
    _run(checkout, "export", str(checkout / "exported"))
    for path in sorted((checkout / "exported").rglob("*.csv")):
        outputs[f"export {path.name}"] = path.read_text(encoding="utf-8")
    found = [f"{name}: {problem}" for name, output in outputs.items() for problem in _in_text(name, output)]
    _run(checkout, "site", "build", "--out", str(checkout / "built"))
    for path in sorted((checkout / "built" / "site").rglob("*.html")):
        page = _Page()
        page.feed(path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(checkout / 'built' / 'site')}: {live}" for live in page.live]
    return found


def _in_text(name: str, output: str) -> Iterator[str]:
    for pattern in (CONTROL, COMMAND):
        match = pattern.search(output)
        if match and not (pattern is COMMAND and name.endswith("csv")):
            yield repr(output[match.start() : match.start() + 40])
    if name.endswith("csv"):
        yield from (repr(cell[:40]) for row in csv.reader(io.StringIO(output)) for cell in row if FORMULA.match(cell))


def _run(checkout: Path, *arguments: str) -> str:
    """Run a command of tunemark on a checkout and return its output."""
    environment = os.environ | {"TUNEMARK_ROOT": str(checkout), "PYTHONPATH": os.pathsep.join(str(ROOT / room) for room in ROOMS)}
    command = [sys.executable, "-m", "tunemark", *arguments]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
    return done.stdout + done.stderr
