"""A checkout of its own for each test: real facts, no records."""

import shutil
from pathlib import Path

import pytest
from factories import CHECKOUT, copy_data


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout without records; the current directory and TUNEMARK_ROOT point at it."""
    root = copy_data(tmp_path / "checkout")
    monkeypatch.setenv("TUNEMARK_ROOT", str(root))
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def published(checkout: Path) -> Path:
    """The checkout with the published results that were read by hand; sets of imported tables take too long for each test."""
    for source in ("000", "001", "002", "003", "004"):
        shutil.copytree(CHECKOUT / "data" / "published" / source, checkout / "data" / "published" / source)
    return checkout
