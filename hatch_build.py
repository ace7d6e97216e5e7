"""Add what only a checkout can say to the distributions: the commit, and the fitted throughput model that answers `tunemark recommend`."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMMIT = "tunemark/harness/built_from.json"
"""Place in a wheel, where `tunemark.harness.run.record` looks for it."""
EVIDENCE = "data/evidence.json"
"""Place in a source distribution, and in a wheel below `tunemark/schema`, where `tunemark recommend` looks for it."""
FIT = """
import sys, pathlib
from tunemark.collector.predict.cross_validation import evidence_rows
from tunemark.collector.predict.estimate import inputs_sha256, keep_evidence
from tunemark.schema.facts.fact_base import FactBase
root, evidence = map(pathlib.Path, sys.argv[1:])
keep_evidence(evidence, inputs_sha256(root), evidence_rows(root, FactBase.of_root(root)))
"""


class BuiltFrom(BuildHookInterface):
    """Adds both files to what is built in a checkout. A source distribution has them, and so has a wheel built from one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the files outside the tree and include them. An editable installation has a checkout to ask."""
        if version == "editable":
            return
        root, wheel, include = Path(self.root), self.target_name == "wheel", build_data["force_include"]
        self.folder = tempfile.TemporaryDirectory()
        if git(root, "rev-parse", "--show-toplevel") == str(root.resolve()):
            dirty = bool(git(root, "status", "--porcelain", "--untracked-files=no"))
            commit = Path(self.folder.name, "built_from.json")
            commit.write_text(json.dumps({"commit": git(root, "rev-parse", "HEAD"), "dirty": dirty}) + "\n", encoding="utf-8")
            include[str(commit)] = COMMIT if wheel else f"harness/{COMMIT}"
        if not (evidence := root / EVIDENCE).exists():
            evidence = Path(self.folder.name, "evidence.json")
            # An isolated build finds its requirements by the path of this process alone.
            path = os.pathsep.join([str(root / "schema"), str(root / "collector"), *sys.path])
            clean = {name: value for name, value in os.environ.items() if name != "TUNEMARK_ROOT"} | {"PYTHONPATH": path}
            subprocess.run([sys.executable, "-c", FIT, str(root), str(evidence)], check=True, env=clean)  # noqa: S603 - our own code
        include[str(evidence)] = f"tunemark/schema/{EVIDENCE}" if wheel else EVIDENCE


def git(root: Path, *arguments: str) -> str | None:
    """Return git's output about a folder, or None without git or outside a checkout."""
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)  # noqa: S603, S607
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
