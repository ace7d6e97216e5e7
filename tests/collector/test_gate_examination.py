"""The examination of the gate: each corruption on one of its bases. `make mutation-score` tries all of them and prints the figures."""

from functools import cache

import pytest
from gate_mutations import examination, file_attacks
from gate_mutations.bases import bases
from gate_mutations.checkout import make_checkout, run_command
from gate_mutations.corruptions import CORRUPTIONS

from tunemark.collector.gate import cross_file_checks

MISSED = {"probe after training fifty times the one before"}
"""Corruptions that the gate accepts: no relation of its own was worth the one case."""
FAMILIES = sorted({corruption.family for corruption in CORRUPTIONS})


@pytest.fixture(scope="module", autouse=True)
def _a_history_is_read_once():
    """Each case would ask git twice for the commits of a checkout, which do not change."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cross_file_checks, "known_commits", cache(cross_file_checks.known_commits))
        yield


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return make_checkout(tmp_path_factory.mktemp("alone") / "checkout")


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    return make_checkout(tmp_path_factory.mktemp("committed") / "checkout", [base.content for base in bases()])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_corruption_of_each_family_is_caught_on_all_of_its_bases_and_a_wrong_field_is_named(family, alone, committed):
    cases = examination.examine(next(corruption for corruption in CORRUPTIONS if corruption.family == family), alone, committed)
    assert cases
    assert [case for case in cases if not case.caught or not case.named] == []


def test_each_corruption_has_a_name_of_its_own_and_changes_its_bases():
    assert len({(corruption.family, corruption.name) for corruption in CORRUPTIONS}) == len(CORRUPTIONS)
    simulated = ("supersede", "identity")
    unchanged = [
        corruption.name
        for corruption in CORRUPTIONS
        if corruption.family not in simulated and not corruption.name.startswith("file name of")
        if corruption.applied(corruption.bases[0]) == [corruption.bases[0].content]
    ]
    assert unchanged == []


def test_a_hostile_file_stops_no_other_file(tmp_path):
    old, new = file_attacks.committed_and_new()
    root = make_checkout(tmp_path / "checkout", [old]).root
    place = file_attacks.Place(root, root / "submissions" / file_attacks.file_name(old), new)
    for name in ("unsupported without devices", "name not UTF-8", "fifo named .json", "depth 100,000", "half a surrogate pair"):
        file_attacks.ATTACKS[name](place)
    answer = run_command(root, "validate", "submissions")
    assert answer.code == 3
    good = [line for line in (answer.out + answer.err).splitlines() if place.committed.name in line]
    assert [line for line in good if ": note:" not in line] == []


@pytest.mark.slow
def test_each_corruption_is_refused_or_doubted_on_one_of_its_bases(alone, committed):
    """Each on another base, by its place in the list; `make mutation-score` tries all bases."""
    missed = set()
    for place, corruption in enumerate(CORRUPTIONS):
        (case,) = examination.examine(corruption, alone, committed, on=[corruption.bases[place % len(corruption.bases)]])
        missed |= set() if case.caught else {case.name}
    assert missed <= MISSED


@pytest.mark.slow
def test_each_honest_variant_is_accepted(tmp_path):
    judged = examination.run_honest(tmp_path, None)
    assert {name: (*one.problems, one.crash) for name, one in judged.items() if one.problems or one.crash} == {}


@pytest.mark.nightly
def test_hardly_any_corrupted_fact_is_accepted(tmp_path):
    assert sum(not case.refused for case in examination.run(tmp_path, None, ["facts"])) <= 6
