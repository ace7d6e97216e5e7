"""Which source measures: its version and commit for the record, and the content that a measurement depends on."""

import shutil
import subprocess
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from tunemark.schema.records.submission import Harness

MEASURING = ("schema", "harness", "data/models")
"""Folders of the checkout that a measurement depends on; a commit of results or of pages changes none of them."""


def harness_version() -> Harness:
    """Return version and, in a checkout, commit and whether there are changes."""
    commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--untracked-files=no")
    return Harness(version=version("tunemark"), commit=commit or None, dirty=None if not commit or changes is None else bool(changes))


def _git(*arguments: str) -> str | None:
    """Return what git says of the checkout that this source is in; None when it is installed elsewhere or git is missing."""
    root, git = Path(__file__).resolve().parents[3], shutil.which("git")
    if git is None or not (root / "data" / "accelerators").is_dir():
        return None
    try:
        done = subprocess.run([git, "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=10)  # noqa: S603 - fixed arguments
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def source_content() -> str:
    """Return what tells one source that measures from another: the content of its folders, changes that are not committed included.

    Of a source that is installed elsewhere, the version.
    """
    folders = _git("rev-parse", *(f"HEAD:{folder}" for folder in MEASURING))
    changes = _git("diff", "HEAD", "--", *MEASURING)
    if folders is None or changes is None:
        return version("tunemark")
    return sha256(f"{folders}\n{changes}".encode()).hexdigest()
