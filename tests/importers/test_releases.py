"""Days of releases from PyPI's JSON."""

import json
import tomllib
from datetime import date

import pytest

from tunemark.collector.importers.releases import as_toml, library_of
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import FactBase

DAY = date(2026, 11, 21)


def answer(**releases):
    files = {version: [{"upload_time_iso_8601": f"{day}T10:00:00.000000Z"} for day in days] for version, days in releases.items()}
    return json.dumps({"info": {"name": "Peft"}, "releases": files}).encode()


def test_a_version_is_released_with_its_first_file_and_versions_are_sorted():
    content = answer(**{"0.10.0": ["2024-03-21"], "0.9.0": ["2024-02-28", "2024-02-27"]})
    found = library_of(content, DAY)
    assert found.library == "peft"
    assert list(found.released_on.items()) == [("0.9.0", date(2024, 2, 27)), ("0.10.0", date(2024, 3, 21))]


def test_previews_and_versions_without_files_are_left_out():
    assert library_of(answer(**{"1.0rc1": ["2024-01-01"], "1.0": [], "odd version": ["2024-01-01"]}), DAY).released_on == {}


def test_written_releases_are_read_back_unchanged():
    found = library_of(answer(**{"0.9.0": ["2024-02-28"]}), DAY)
    assert tomllib.loads(as_toml([found]))["libraries"] == [found.model_dump()]


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"info": {"name": "a"}, "releases": {"1": [{}]}}'])
def test_other_content_is_refused_with_what_to_fetch(content):
    with pytest.raises(TunemarkError, match="/pypi/NAME/json"):
        library_of(content, DAY)


def test_the_command_takes_a_file(tmp_path, tunemark):
    file, out = tmp_path / "peft.json", tmp_path / "pypi.toml"
    file.write_bytes(answer(**{"0.9.0": ["2024-02-28"]}))
    assert tunemark("import", "releases", file, "--out", out).code == 0
    assert '"0.9.0" = 2024-02-28' in out.read_text()


def test_the_project_knows_the_days_of_the_libraries_that_results_name():
    known = FactBase.of_project().known
    assert known.released_on("transformers", "4.49.0").released_on == date(2025, 2, 17)
    assert known.released_on("torch", "99.0") is None
