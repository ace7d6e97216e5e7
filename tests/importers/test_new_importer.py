"""A new importer is one source file: it becomes a kind of `tunemark import` without an edit elsewhere."""

from pathlib import Path

import pytest
from factories import Tunemark

from tunemark.collector import importers

SOURCE = '''
"""Lines of `NAME tokens/s`."""

import typer


def speeds_of_a_friend(request):
    """Print the figures of a file of `NAME tokens/s` lines."""
    for line in request.files[0].read_text().splitlines():
        name, speed = line.split()
        typer.echo(f"{name}: {float(speed):,.0f} tokens/s, {request.settings.get('method')}")
'''


def test_a_module_with_a_function_of_its_name_is_an_importer(tmp_path: Path, tunemark: Tunemark, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "importers").mkdir()
    (tmp_path / "importers" / "speeds_of_a_friend.py").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "speeds.txt").write_text("L4 1500\nA10G 2500\n", encoding="utf-8")
    monkeypatch.setattr(importers, "__path__", [*importers.__path__, str(tmp_path / "importers")])
    said = tunemark("import", "speeds-of-a-friend", tmp_path / "speeds.txt", "--method", "lora")
    assert said.out.splitlines() == ["L4: 1,500 tokens/s, lora", "A10G: 2,500 tokens/s, lora"]
    assert "speeds-of-a-friend" in tunemark("import", "speeds-of-a-frend", tmp_path / "speeds.txt").err
