"""The command `audit`: findings with their calculation, on 80 columns or as JSON."""

import json

import pytest

from tunemark.schema.errors import Exit


@pytest.mark.usefixtures("published")
def test_findings_of_a_source_are_printed_with_their_calculation(tunemark):
    said = tunemark("audit", "--source", "004")
    assert said.code == Exit.OK
    assert "IMPOSSIBLE  memory-floor  004-015" in said.out
    assert "7,241,732,096 parameters x 2" in said.out
    assert "findings about" in said.err


@pytest.mark.usefixtures("published")
def test_nothing_is_wider_than_eighty_columns(tunemark):
    lines = tunemark("audit").out.splitlines()
    assert lines
    assert max(len(line) for line in lines) <= 80


@pytest.mark.usefixtures("published")
def test_json_is_clean_and_has_the_numbers(tunemark):
    found = json.loads(tunemark("audit", "--rule", "utilisation", "--verdict", "impossible", "--json").out)
    assert {one["rule"] for one in found} == {"utilisation"}
    assert {one["verdict"] for one in found} == {"impossible"}
    assert all(one["numbers"]["utilisation"] > 1 for one in found if "utilisation" in one["numbers"])


def test_a_file_is_audited_among_the_others(published, tunemark):
    found = json.loads(tunemark("audit", published / "data" / "published" / "003" / "003-002.json", "--json").out)
    assert found
    assert all("003-002" in one["records"] for one in found)


def test_a_changed_file_is_audited_as_it_is(published, tunemark, tmp_path):
    record = json.loads((published / "data" / "published" / "004" / "004-024.json").read_text())
    record["claims"]["tokens_per_s"] |= {"value": 9_000.0, "printed": "9,000 tok/s"}
    changed = tmp_path / "004-024.json"
    changed.write_text(json.dumps(record))
    assert "impossible" in {one["verdict"] for one in json.loads(tunemark("audit", changed, "--rule", "utilisation", "--json").out)}


@pytest.mark.usefixtures("published")
def test_an_unknown_rule_verdict_source_or_file_is_refused_with_a_suggestion(tunemark):
    for option, word, near in (
        ("--rule", "utilization", "utilisation"),
        ("--verdict", "imposible", "impossible"),
        ("--source", "04", "004"),
    ):
        said = tunemark("audit", option, word)
        assert said.code == Exit.USAGE
        assert near in said.err
    assert tunemark("audit", "no-such-file.json").code == Exit.USAGE


@pytest.mark.usefixtures("published")
def test_a_file_that_is_no_record_is_refused(tunemark, tmp_path):
    (tmp_path / "x.json").write_text("{}")
    said = tunemark("audit", tmp_path / "x.json")
    assert said.code == Exit.INVALID
    assert "not a record" in said.err


@pytest.mark.usefixtures("checkout")
def test_the_rules_are_listed_with_what_they_look_for(tunemark):
    said = tunemark("audit", "--rules")
    assert said.code == Exit.OK
    assert "memory-floor" in said.out
    assert all(one["why"] for one in json.loads(tunemark("audit", "--rules", "--json").out))


@pytest.mark.usefixtures("checkout")
def test_a_checkout_without_records_has_no_findings(tunemark):
    assert json.loads(tunemark("audit", "--json").out) == []
