"""A withdrawn submission stays readable with its reason, and enters no ranking, audit or prediction."""

import json
from pathlib import Path

import pytest
from factories import Tunemark, make_submission, run_id, save

from tunemark.collector.commands.submit import WITHDRAWN
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


def test_a_withdrawn_result_is_kept_with_its_reason_and_is_not_ranked(checkout: Path, result: str, tunemark: Tunemark) -> None:
    db = checkout / "build" / "tunemark.duckdb"
    collect(checkout, db)
    assert run_query("select rankable from results", db).rows == [(True,)]
    said = tunemark("submit", "--withdraw", result, "--reason", REASON, "--json")
    assert said.code == 0
    answer = json.loads(said.out)
    assert (answer["result_id"], answer["reason"], answer["file"]) == (result, REASON, WITHDRAWN)
    assert tunemark("validate").code == 0
    done = collect(checkout, db)
    assert not done.problems
    ((rankable, note, steps),) = run_query("select rankable, note, steps from results", db).rows
    assert (rankable, steps) == (False, 130)
    assert note.startswith("withdrawn on 20")
    assert note.endswith(REASON)
    findings = run_query("select count(*) from findings where list_contains(record_ids, (select result_id from results))", db)
    assert findings.rows == [(0,)]


def test_a_rehearsed_withdrawal_changes_nothing(checkout: Path, result: str, tunemark: Tunemark) -> None:
    path = checkout / "data" / "known" / "withdrawn.toml"
    before = path.read_bytes() if path.exists() else None
    said = tunemark("submit", "--withdraw", result, "--reason", "another job ran on the machine", "--dry-run")
    assert said.code == 0
    assert "would withdraw" in said.out + said.err
    assert (path.read_bytes() if path.exists() else None) == before


def test_entries_are_added_one_after_the_other_and_keep_the_comment_of_the_file(checkout: Path, result: str, tunemark: Tunemark) -> None:
    other = make_submission(run_id=run_id(2), started_at="2026-11-21T12:00:00Z")
    save(checkout, other)
    path = checkout / WITHDRAWN
    path.write_text("# Why results are withdrawn.\n", encoding="utf-8")
    for name in (result, content_id(canonical_json(other))):
        assert tunemark("submit", "--withdraw", name, "--reason", REASON).code == 0
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# Why results are withdrawn.\n")
    assert text.count("[[withdrawn]]") == 2


@pytest.mark.parametrize(
    ("named", "reason", "expected"),
    [
        ("0" * 12, REASON, "no submission has this id"),
        (None, "bad", "say in a sentence what is wrong"),
        (None, "it was run by alice@example.org on her laptop", "looks like an e-mail address"),
    ],
    ids=["another id", "no reason", "an address"],
)
def test_a_withdrawal_needs_a_result_and_a_reason_that_can_be_published(
    checkout: Path, result: str, tunemark: Tunemark, named: str | None, reason: str, expected: str
) -> None:
    before = (checkout / WITHDRAWN).read_bytes() if (checkout / WITHDRAWN).exists() else None
    said = tunemark("submit", "--withdraw", named or result, "--reason", reason)
    assert said.code == 2
    assert expected in said.err
    assert ((checkout / WITHDRAWN).read_bytes() if (checkout / WITHDRAWN).exists() else None) == before
