"""Put the commit that a distribution is built from into it, since an installed package has no checkout to ask."""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FILE = "tunemark/harness/built_from.json"
"""Place in a wheel, where `tunemark.harness.run.record` looks for it."""


class BuiltFrom(BuildHookInterface):
    """Adds the file to what is built in a checkout. A source distribution has it among its modules, and so has a wheel built from one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the file outside the tree and include it."""
        root = Path(self.root)
        if version == "editable" or git(root, "rev-parse", "--show-toplevel") != str(root.resolve()):
            return
        self.folder = tempfile.TemporaryDirectory()
        file = Path(self.folder.name, "built_from.json")
        dirty = bool(git(root, "status", "--porcelain", "--untracked-files=no"))
        file.write_text(json.dumps({"commit": git(root, "rev-parse", "HEAD"), "dirty": dirty}) + "\n", encoding="utf-8")
        build_data["force_include"][str(file)] = FILE if self.target_name == "wheel" else f"harness/{FILE}"


def git(root: Path, *arguments: str) -> str | None:
    """Return git's output about a folder, or None without git or outside a checkout."""
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)  # noqa: S603, S607
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
