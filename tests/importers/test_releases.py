"""Days of releases from PyPI's JSON."""

import json
import tomllib
from datetime import date

import pytest

from tunemark.collector.importers.releases import library_of
from tunemark.schema.errors import TunemarkError

DAY = date(2026, 11, 21)


def answer(**releases):
    files = {version: [{"upload_time_iso_8601": f"{day}T10:00:00.000000Z"} for day in days] for version, days in releases.items()}
    return json.dumps({"info": {"name": "Peft"}, "releases": files}).encode()


def test_a_version_is_released_with_its_first_file_and_versions_are_sorted():
    content = answer(**{"0.10.0": ["2024-03-21"], "0.9.0": ["2024-02-28", "2024-02-27"]})
    found = library_of(content, DAY)
    assert found.library == "peft"
    assert list(found.released_on.items()) == [("0.9.0", date(2024, 2, 27)), ("0.10.0", date(2024, 3, 21))]


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"info": {"name": "a"}, "releases": {"1": [{}]}}'])
def test_other_content_is_refused_with_what_to_fetch(content):
    with pytest.raises(TunemarkError, match="/pypi/NAME/json"):
        library_of(content, DAY)


def test_the_command_takes_a_file(tmp_path, tunemark):
    file, out = tmp_path / "peft.json", tmp_path / "pypi.toml"
    file.write_bytes(answer(**{"0.9.0": ["2024-02-28"]}))
    assert tunemark("import", "releases", file, "--out", out).code == 0
    (written,) = tomllib.loads(out.read_text())["libraries"]
    assert written == library_of(file.read_bytes(), written["read_on"]).model_dump()
    (tmp_path / "a file").write_text("not a folder")
    said = tunemark("import", "releases", file, "--out", tmp_path / "a file" / "inside")
    assert said.code == 2
    assert "cannot be written" in said.err
    assert "name a place that you may write to" in said.err
