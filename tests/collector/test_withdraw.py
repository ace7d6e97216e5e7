"""A withdrawn submission stays readable with its reason, and enters no ranking, audit or prediction."""

from pathlib import Path

import pytest
from factories import Tunemark, make_submission, run_id, save

from tunemark.collector.store.loading import collect
from tunemark.collector.store.sql_query import run_query
from tunemark.schema.records.base import canonical_json, content_id

REASON = "another job ran on the machine"


@pytest.fixture
def result(checkout: Path) -> str:
    """The id of a result in submissions."""
    submission = make_submission(run_id=run_id(1))
    save(checkout, submission)
    return content_id(canonical_json(submission))


def withdraw(checkout: Path, result: str, reason: str = REASON) -> Path:
    path = checkout / "data" / "known" / "withdrawn.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'[[withdrawn]]\nresult_id = "{result}"\nwithdrawn_on = 2026-11-20\nreason = "{reason}"\n', encoding="utf-8")
    return path


def test_a_withdrawn_result_is_kept_with_its_reason_and_is_not_ranked(checkout: Path, result: str, tunemark: Tunemark) -> None:
    db = checkout / "build" / "tunemark.duckdb"
    collect(checkout, db)
    assert run_query("select rankable from results", db).rows == [(True,)]
    withdraw(checkout, result)
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
    checkout: Path, result: str, tunemark: Tunemark, named: str | None, reason: str, expected: str
) -> None:
    said = tunemark("validate", withdraw(checkout, named or result, reason))
    assert said.code == 3
    assert expected in said.out + said.err
