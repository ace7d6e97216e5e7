"""What one file may do to others: replace its own kind or withdraw a result, and nothing else."""

from pathlib import Path
from typing import Any

import pytest
from factories import Tunemark, make_submission, run_id, save
from gate_mutations.honest import cpu_machine

from tunemark.collector.commands.database import run_query
from tunemark.collector.gate.cross_file_checks import Verdict, accept
from tunemark.collector.store import loading
from tunemark.collector.store.database import Rows
from tunemark.collector.store.loading import collect
from tunemark.harness.plan.resolve import Options
from tunemark.schema.records.base import canonical_json, content_id
from tunemark.schema.records.submission import Submission


@pytest.fixture
def old(checkout: Path) -> str:
    """The id of a result in submissions."""
    submission = make_submission(run_id=run_id(1))
    save(checkout, submission)
    return content_id(canonical_json(submission))


def test_only_an_existing_result_can_be_superseded(checkout: Path, tunemark: Tunemark) -> None:
    save(checkout, make_submission(supersedes="0" * 12))
    for command in ("validate", "collect"):
        said = tunemark(command)
        assert said.code == 3
        assert "there is no valid result of this id" in said.err


LATER = {"started_at": "2026-11-20T13:00:00Z", "supersedes_reason": "the first run was disturbed by a backup"}
CRASHED = {"outcome.status": "crash", "outcome.message": "boom", "outcome.fix": "run it again"}


def test_a_run_on_another_device_supersedes_nothing(checkout: Path, old: str, tunemark: Tunemark) -> None:
    save(checkout, make_submission(run_id=run_id(2), supersedes=old, machine=cpu_machine("Faster CPU", 2, 4, 2, 8.0), **LATER))
    assert "its device is 'Test CPU', but this run has 'Faster CPU'" in tunemark("validate").err
    db = checkout / "build" / "tunemark.duckdb"
    collect(checkout, db)
    assert run_query("select result_id, rankable from results", db).rows == [(old, True)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, ""),
        ({"supersedes_reason": None}, "say why the earlier result is replaced"),
        ({"started_at": "2026-11-20T11:00:00Z"}, "only a newer run replaces a result"),
        (CRASHED, "only a run that got at least as far can replace a result"),
        ({"options": Options(max_steps=130, seed=99)}, "its plan has other settings"),
        ({"machine": cpu_machine("Test CPU", 4, 4, 4, 8.0)}, "its machine is"),
    ],
)
def test_only_a_newer_successful_run_of_the_same_plan_and_machine_with_a_reason_replaces_a_result(
    change: dict[str, object], said: str, checkout: Path, old: str, tunemark: Tunemark
) -> None:
    save(checkout, make_submission(run_id=run_id(2), supersedes=old, **{**LATER, **change}))
    answer = tunemark("validate")
    assert (answer.code == 0) is (not said), answer.err
    assert said in answer.err


def test_one_result_is_superseded_once(checkout: Path, old: str, tunemark: Tunemark) -> None:
    for number in (2, 3):
        save(checkout, make_submission(run_id=run_id(number), supersedes=old, **LATER))
    assert "supersedes it already" in tunemark("validate").err


def test_a_run_of_other_settings_does_not_join_a_study(checkout: Path, tunemark: Tunemark) -> None:
    for number, settings in ((1, "e4" * 32), (2, "f5" * 32)):
        study = {
            "kind": "repeat",
            "study_id": "9c02fd7803f9",
            "point": f"as given, repeat {number}",
            "position": number,
            "settings_sha256": settings,
        }
        save(checkout, make_submission(run_id=run_id(number), study=study, started_at=f"2026-11-20T1{number}:00:00Z"))
    said = tunemark("validate")
    assert said.code == 3
    assert "is of the same study, with another kind or other settings" in said.err


def test_a_file_alone_finds_what_it_supersedes_in_the_checkout(checkout: Path, old: str, tunemark: Tunemark) -> None:
    path = save(checkout, make_submission(run_id=run_id(2), supersedes=old, **LATER))
    assert tunemark("validate", path).code == 0


def test_a_copy_of_a_committed_run_under_an_earlier_name_does_not_displace_it() -> None:
    submission = make_submission()
    copy, committed = (Verdict(record=submission, result_id=name * 12, file=file) for file, name in ("ab", "ba"))
    done = accept([copy, committed], frozenset({"b"}))
    assert [kept.file for kept in done.kept] == ["b"]
    assert [(file, problem.field) for file, problem in done.problems] == [("a", "run_id")]


def test_two_results_cannot_share_an_id() -> None:
    files = [Verdict(record=make_submission(run_id=run_id(number)), result_id="a" * 12, file=name) for number, name in enumerate("xy")]
    assert "is the id of x already" in str(accept(files, frozenset()).problems[0][1])


def test_a_value_that_the_database_cannot_hold_stops_its_own_file_only(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(checkout, make_submission(run_id=run_id(1)))
    save(checkout, make_submission(run_id=run_id(2)))
    rows = loading.measured_rows

    def with_a_strange_one(submission: Submission, *rest: Any) -> Rows:
        made = rows(submission, *rest)
        if submission.run_id == run_id(2):
            made["result_rows"][0]["steps"] = 2**40
        return made

    monkeypatch.setattr(loading, "measured_rows", with_a_strange_one)
    db = checkout / "build" / "tunemark.duckdb"
    done = collect(checkout, db)
    assert done.results == {"measured": 1}
    assert "contains a value that the database cannot store" in str(done.problems[0][1])
    assert len(run_query("from load_problems", db).rows) == 1


# A withdrawn submission stays readable with its reason, and enters no ranking, audit or prediction.
REASON = "another job ran on the machine"


def withdraw(checkout: Path, result: str, reason: str = REASON) -> Path:
    path = checkout / "data" / "known" / "withdrawn.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'[[withdrawn]]\nresult_id = "{result}"\nwithdrawn_on = 2026-11-20\nreason = "{reason}"\n', encoding="utf-8")
    return path


def test_a_withdrawn_result_is_kept_with_its_reason_and_is_not_ranked(checkout: Path, old: str, tunemark: Tunemark) -> None:
    db = checkout / "build" / "tunemark.duckdb"
    collect(checkout, db)
    assert run_query("select rankable from results", db).rows == [(True,)]
    withdraw(checkout, old)
    assert tunemark("validate").code == 0
    done = collect(checkout, db)
    assert not done.problems
    ((rankable, note, steps),) = run_query("select rankable, note, steps from results", db).rows
    assert (rankable, note, steps) == (False, f"withdrawn on 2026-11-20: {REASON}", 130)
    findings = run_query("select count(*) from findings where list_contains(record_ids, (select result_id from results))", db)
    assert findings.rows == [(0,)]


@pytest.mark.parametrize(
    ("named", "reason", "expected"),
    [
        ("0" * 12, REASON, "no submission has this id"),
        (None, "bad", "must have at least 12 characters"),
        (None, "it was run by alice@example.org on her laptop", "looks like an e-mail address"),
    ],
    ids=["another id", "no reason", "an address"],
)
def test_a_withdrawal_needs_a_result_and_a_reason_that_can_be_published(
    checkout: Path, old: str, tunemark: Tunemark, named: str | None, reason: str, expected: str
) -> None:
    said = tunemark("validate", withdraw(checkout, named or old, reason))
    assert said.code == 3
    assert expected in said.out + said.err
