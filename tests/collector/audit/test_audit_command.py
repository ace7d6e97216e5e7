"""The command `audit` prints findings with their calculation in 80 columns, or as JSON."""

import json
import re
import shutil

import pytest
import yaml
from factories import CHECKOUT

from tunemark.schema.errors import Exit


@pytest.mark.usefixtures("published")
def test_findings_of_a_source_are_printed_with_their_calculation(tunemark):
    answer = tunemark("audit", "--source", "004")
    assert answer.code == Exit.OK
    assert "IMPOSSIBLE  memory-needs  004-015" in answer.out
    assert "7,241,732,096 parameters x 2" in answer.out
    assert re.search(r"None is measured: .*\nFindings: \d+ about \d+ records", answer.err)


@pytest.mark.usefixtures("published")
def test_json_holds_the_findings_that_options_select(tunemark):
    findings = json.loads(tunemark("audit", "--rule", "utilisation", "--verdict", "impossible", "--json").out)
    assert {finding["rule"] for finding in findings} == {"utilisation"}
    assert {finding["verdict"] for finding in findings} == {"impossible"}


def test_a_file_is_audited_together_with_all_others(published, tunemark):
    findings = json.loads(tunemark("audit", published / "data" / "published" / "003" / "003-002.json", "--json").out)
    assert findings
    assert all("003-002" in finding["records"] for finding in findings)


def test_the_hook_for_other_repositories_passes_honest_numbers_and_stops_wrong_ones(published, tunemark, tmp_path):
    """It runs `tunemark check` on the files of a commit; the action runs the same."""
    (hook,) = yaml.safe_load((CHECKOUT / ".pre-commit-hooks.yaml").read_text())
    words = hook["entry"].split()
    assert f"{' '.join(words)} $FILES".replace("tunemark ", 'tunemark" ', 1) in (CHECKOUT / "action.yml").read_text()
    good = shutil.copy(CHECKOUT / "submissions" / "smoke-lora" / "20261124-cpu-64bd0b9a841b.json", tmp_path)
    wrong = published / "data" / "published" / "003" / "003-002.json"
    answers = [tunemark(*words[1:], *files) for files in ([good], [good, wrong], [published / "README.md"])]
    assert [answer.code for answer in answers[:2]] == [Exit.OK, Exit.INVALID]
    assert answers[2].code in {Exit.INVALID, Exit.USAGE}
    assert "calculation" in answers[1].out


@pytest.mark.usefixtures("checkout")
def test_the_rules_are_listed_with_what_they_look_for(tunemark):
    answer = tunemark("audit", "--rules")
    assert answer.code == Exit.OK
    assert "memory-needs" in answer.out
    assert all(finding["why"] for finding in json.loads(tunemark("audit", "--rules", "--json").out))
    answer = tunemark("audit", "--rules", "--rule", "memory-needs")
    assert "reason       Weights, the gradient of one matrix" in answer.out
