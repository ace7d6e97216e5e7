"""A new importer is one source file: its command is found without any registration."""

import sys
from pathlib import Path

import pytest
from factories import Tunemark

from tunemark.collector import commands, importers

SOURCE = '''
"""Notes of a benchmark that does not exist."""

import typer


def lab_notes(request) -> None:
    """Read the notes of a lab."""
    typer.echo(f"read {request.file()}")
'''


def forget(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """Have modules imported again, now and after the test."""
    for name in modules:
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.fixture
def lab_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module `lab_notes` among the importers."""
    (tmp_path / "lab_notes.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.setattr(importers, "__path__", [*importers.__path__, str(tmp_path)])
    monkeypatch.setattr(commands, "import_files", None, raising=False)
    forget(monkeypatch, "tunemark.collector.commands.import_files", f"{importers.__name__}.lab_notes")


@pytest.mark.usefixtures("lab_notes")
def test_a_new_module_is_a_command_that_help_lists_and_that_runs(tunemark: Tunemark) -> None:
    shown = tunemark("import", "--help").out
    assert "lab-notes" in shown
    assert "Read the notes of a lab." in shown
    assert tunemark("import", "lab-notes", "a.txt").out == "read a.txt\n"
