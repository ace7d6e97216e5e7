"""`tunemark collect`: all or nothing, the same each time, one bad file leaves the others."""

import json
import os
import shutil
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import pytest
from factories import FACTS, Tunemark, make_published, make_submission, run_id, save

from tunemark.collector.audit.load import load_evidence
from tunemark.collector.store import database, loading
from tunemark.collector.store.loading import collect
from tunemark.collector.store.measured_rows import measured_rows
from tunemark.collector.store.sql_query import run_query
from tunemark.schema.derive import derive
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.records.base import canonical_json, content_id
from tunemark.schema.records.published import PublishedSet, SourceDocument
from tunemark.schema.records.submission import Submission


def rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    return run_query(sql, path).rows


def contents(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of all tables in their order."""
    return {name: rows(path, f"from {name}") for name in database.arrow_schemas()}


@pytest.fixture
def db(checkout: Path) -> Path:
    return checkout / "build" / "tunemark.duckdb"


@pytest.mark.usefixtures("published")
def test_all_published_results_are_there(db: Path, tunemark: Tunemark) -> None:
    assert tunemark("collect").code == 0
    said = tunemark("query", "select source, count(*) as n from results group by 1 order by 1", "--csv")
    assert said.out == "source,n\n000,3\n001,49\n002,2\n003,60\n004,58\n"
    assert rows(db, "select count(*) from document_cells")[0][0] > 0


def save_set(checkout: Path, stated: int, **overrides: Any) -> Path:
    """Save a set of two results and its document."""
    folder = checkout / "data" / "published" / "900"
    folder.mkdir(parents=True)
    results = (make_published(), make_published(id="900-002", **overrides))
    (folder / "results.json").write_bytes(PublishedSet(source="900", results=results).lines())
    document = SourceDocument(id="900", title="A table", summary="Rates.", results=stated)
    (folder / "source.json").write_bytes(canonical_json(document))
    return folder / "results.json"


def test_each_result_of_a_set_is_a_row_with_the_file_of_the_set(checkout: Path, db: Path) -> None:
    save_set(checkout, 2)
    collect(checkout, db)
    found = rows(db, "select result_id, file from result_rows order by 1")
    assert found == [("900-001", "data/published/900/results.json"), ("900-002", "data/published/900/results.json")]
    assert {result.id for result in load_evidence(checkout).published} == {"900-001", "900-002"}


def test_a_set_is_counted_and_checked_result_by_result(checkout: Path, tunemark: Tunemark) -> None:
    file = save_set(checkout, 3, **{"conditions.model": "llama-3.1-8"})
    said = tunemark("validate", file.parent)
    assert said.code == 3
    assert "900-002: conditions.model: 'llama-3.1-8': no such card in data/models; did you mean 'llama-3.1-8b'" in said.err
    assert "source.json: results: 3: this source has 2 results" in said.err
    assert tunemark("collect").code == 3


def test_collecting_twice_gives_the_same_contents(published: Path, db: Path) -> None:
    for number in range(3):
        save(published, make_submission(40, run_id=run_id(number), started_at=f"2026-11-20T12:0{number}:00.000001Z"))
    collect(published, db)
    once = contents(db)
    collect(published, db)
    assert contents(db) == once
    assert len(once["result_rows"]) == 175


def test_a_measured_row_is_what_derive_says(checkout: Path, db: Path) -> None:
    submission = make_submission()
    path = save(checkout, submission)
    collect(checkout, db)
    derived = derive(submission)
    row = run_query("select * from results", db).records()[0]
    assert derived.step_time is not None
    assert derived.tokens_per_s is not None
    assert derived.window is not None
    assert row["result_id"] == content_id(path.read_bytes())
    assert row["step_time_s"] == derived.step_time.p50
    assert (row["tokens_per_s"], row["tokens_per_s_low"]) == (derived.tokens_per_s.value, derived.tokens_per_s.low)
    assert (row["stable"], row["steady_steps"], row["rankable"]) == (True, derived.window.steps, True)
    assert row["peak_memory_bytes"] == derived.peak_memory.peak_bytes
    assert (row["source"], row["trust"], row["file"]) == ("measured", "measured", f"submissions/smoke-lora/{path.name}")
    plan = submission.plan
    settings = f"{plan.data.name}/{plan.data.sequence_length}/none/False/{plan.batch.global_batch}"
    assert row["comparability_group"] == f"tiny-llama/causal_lm/lora/{settings}/fp32/adamw/optimizer_step"


def test_steps_phases_facts_and_warnings_are_loaded(checkout: Path, db: Path) -> None:
    submission = make_submission()
    save(checkout, submission)
    collect(checkout, db)
    assert rows(db, "select count(*), sum(real_tokens), count(*) filter (label = 'steady') from steps") == [
        (130, sum(submission.trace.real_tokens), 120)
    ]
    assert rows(db, "select sum(duration_s), sum(share) from phases")[0] == pytest.approx((submission.process.wall_s, 1.0))
    assert rows(db, "select value, reason from result_facts where topic = 'plan' and name = 'device.count'") == [
        ("1", "requested with --devices")
    ]
    assert rows(db, "select value from result_facts where topic = 'packages' and name = 'torch'") == [("2.13.0",)]
    assert rows(db, "select reason from result_facts where topic = 'memory' and name = 'device_allocated'") == [
        ("a CPU has no device memory",)
    ]
    assert rows(db, "select kind from warnings") == [("random_weights",), ("unknown_accelerator",)]


def test_micro_steps_and_devices_of_several_machines_are_loaded() -> None:
    content = make_submission(30).model_dump(mode="json")
    content["plan"]["batch"] |= {"micro_batch": 2, "gradient_accumulation": 2}
    trace = content["trace"]
    starts = [trace["started_at_s"], *trace["completed_at_s"]]
    # The update takes a tenth of each step.
    trace["micro_completed_at_s"] = [[a + (b - a) * share for share in (0.45, 0.9)] for a, b in pairwise(starts)]
    shares = {"hw_slowdown": 0.1, "sw_power_cap": 0.75}
    throttled = {"throttle_reasons": list(shares), "throttle_shares": shares}
    devices = [{"index": 0, "node": 1, "samples": 3, **throttled}, {"index": 0, "samples": 3}]
    content["utilisation"] = {"samples": 3, "interval_s": 0.2, "devices": devices}
    submission = Submission.model_validate(content)
    schemas = database.arrow_schemas()
    tables = measured_rows(submission, derive(submission), FACTS, "a" * 12, "file", "0" * 64)
    (micro,) = (row for row in tables["result_facts"] if row["name"] == "micro_step_time_s")
    steady = submission.trace.step_times_s[10:]
    assert float(micro["value"]) == pytest.approx(median(step_s * 0.45 for step_s in steady))
    assert micro["reason"] == "median of 40 micro-steps in steady steps, without the update"
    assert [(row["node"], row["device"], row["throttle_share"]) for row in tables["device_use"]] == [(1, 0, 0.75), (0, 0, None)]
    for name, rows_of_table in tables.items():
        if name != "result_rows":
            database.as_arrow(rows_of_table, schemas[name])


def test_a_bad_submission_is_noted_and_the_others_load(checkout: Path, db: Path, tunemark: Tunemark) -> None:
    save(checkout, make_submission())
    (checkout / "submissions" / "broken.json").write_bytes(b"\x00\x01")
    said = tunemark("collect", "--json")
    assert said.code == 3
    assert json.loads(said.out)["results"] == {"measured": 1}
    assert "submissions/broken.json: file: not valid JSON" in said.err
    assert rows(db, "select file, field from load_problems") == [("submissions/broken.json", "file")]


def test_a_failed_run_is_a_row(checkout: Path, db: Path) -> None:
    save(
        checkout,
        make_submission(0, **{"outcome.status": "oom_host", "outcome.message": "out of memory", "outcome.fix": "use less", "model": None}),
    )
    collect(checkout, db)
    assert rows(db, "select status, failed, rankable, tokens_per_s, message from results") == [
        ("oom_host", True, False, None, "out of memory")
    ]


def test_too_few_steps_for_an_interval_leave_its_ends_unknown(checkout: Path, db: Path) -> None:
    save(checkout, make_submission(13))
    collect(checkout, db)
    rate, low, high = rows(db, "select tokens_per_s, tokens_per_s_low, tokens_per_s_high from results")[0]
    assert rate > 0
    assert (low, high) == (None, None)


def test_the_second_file_of_a_run_is_a_problem(checkout: Path, db: Path) -> None:
    files = sorted(save(checkout, make_submission(**{"harness.dirty": dirty})).name for dirty in (False, True))
    done = collect(checkout, db)
    assert done.results == {"measured": 1}
    assert [(file.rsplit("/", 1)[-1], problem.field) for file, problem in done.problems] == [(files[1], "run_id")]


def test_a_submission_without_a_device_does_not_stop_the_others(checkout: Path, db: Path) -> None:
    save(checkout, make_submission())
    content = json.loads(canonical_json(make_submission(run_id=run_id(2)))) | {"outcome": {"status": "unsupported", "message": "no"}}
    content["environment"]["devices"] = []
    bad = checkout / "submissions" / "smoke-lora" / "bad-000000000000.json"
    bad.write_text(json.dumps(content), encoding="utf-8")
    done = collect(checkout, db)
    assert rows(db, "select count(*) from results") == [(1,)]
    assert {(file.rsplit("/", 1)[-1], problem.field) for file, problem in done.problems} >= {(bad.name, "environment.devices")}


def test_a_file_name_that_is_not_utf8_does_not_stop_the_others(checkout: Path, db: Path, tunemark: Tunemark) -> None:
    good = save(checkout, make_submission())
    (good.parent / os.fsdecode(b"a\xff-000000000000.json")).write_text("{}", encoding="utf-8")
    done = collect(checkout, db)
    assert rows(db, "select count(*) from results") == [(1,)]
    assert {file.rsplit("/", 1)[-1] for file, _ in done.problems} == {"a\\xff-000000000000.json"}
    assert "a\\xff-000000000000.json" in tunemark("validate").err


def test_a_superseded_result_stays_readable_and_shares_no_ranking(checkout: Path, db: Path) -> None:
    old = make_submission(run_id=run_id(1))
    save(checkout, old)
    old_id = content_id(canonical_json(old))
    new = make_submission(run_id=run_id(2), supersedes=old_id, supersedes_reason="a disturbed run", started_at="2026-11-20T13:00:00Z")
    save(checkout, new)
    collect(checkout, db)
    new_id = content_id(canonical_json(new))
    found = {row["result_id"]: (row["rankable"], row["note"]) for row in run_query("from results", db).records()}
    assert found == {old_id: (False, f"superseded by {new_id}"), new_id: (True, None)}


@pytest.mark.parametrize("failure", [RuntimeError("disk"), KeyboardInterrupt()])
def test_a_failure_midway_leaves_the_old_database_untouched(
    checkout: Path, db: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    save(checkout, make_submission())
    collect(checkout, db)
    before = db.read_bytes()
    save(checkout, make_submission(run_id=run_id(2)))
    insert, calls = database._insert, []

    def fail_at_the_fifth(connection: Any, name: str, table: Any) -> None:
        calls.append(name)
        if len(calls) == 5:
            raise failure
        insert(connection, name, table)

    monkeypatch.setattr(database, "_insert", fail_at_the_fifth)
    with pytest.raises(type(failure)):
        collect(checkout, db)
    assert db.read_bytes() == before
    assert sorted(path.name for path in db.parent.iterdir()) == [db.name]


def test_an_invalid_published_result_stops_collect_and_nothing_is_written(published: Path, db: Path, tunemark: Tunemark) -> None:
    path = published / "data" / "published" / "003" / "003-001.json"
    path.write_text(path.read_text().replace('"llama-3.1-8b"', '"lama-3.1-8b"'))
    said = tunemark("collect")
    assert said.code == 3
    assert "data/published/003/003-001.json: conditions.model: 'lama-3.1-8b'" in said.err
    assert "did you mean 'llama-3.1-8b'" in said.err
    assert not db.exists()


def test_a_missing_published_result_is_noticed(published: Path, db: Path) -> None:
    (published / "data" / "published" / "002" / "002-002.json").unlink()
    with pytest.raises(TunemarkError, match="this source has 1 result"):
        collect(published, db)


def test_a_repeated_published_result_is_noticed(published: Path, db: Path) -> None:
    folder = published / "data" / "published" / "002"
    shutil.copy(folder / "002-001.json", folder / "002-001-copy.json")
    with pytest.raises(TunemarkError, match="give each result a unique number"):
        collect(published, db)


def test_a_price_of_an_unknown_accelerator_stops(checkout: Path, db: Path) -> None:
    book = checkout / "data" / "prices" / "prices.csv"
    book.write_text(book.read_text() + "aws,x1,nvidia-t5,1,,,us-east-1,on_demand,1.0,2026-01-01,provider,a source,\n")
    with pytest.raises(TunemarkError, match="nvidia-t5"):
        collect(checkout, db)


def test_an_eight_device_instance_costs_the_whole_instance_for_one_device(checkout: Path, db: Path) -> None:
    header = (checkout / "data" / "prices" / "prices.csv").read_text().splitlines()[0]
    lines = [
        header,
        "aws,p5.48xlarge,nvidia-h100-80gb-sxm,8,,,us-east-1,on_demand,72.0,2026-01-01,provider,a source,",
        "aws,p5.48xlarge,nvidia-h100-80gb-sxm,8,,,us-east-1,on_demand,90.0,2025-01-01,provider,a source,",
        "aws,p5.48xlarge,nvidia-h100-80gb-sxm,8,,,us-east-1,on_demand,1.0,2999-01-01,provider,a source,",
    ]
    (checkout / "data" / "prices" / "prices.csv").write_text("\n".join(lines) + "\n")
    device = {"plan.device.accelerator": "nvidia-h100-80gb-sxm", "environment.devices.0.name": "NVIDIA H100 80GB HBM3"}
    submission = make_submission(**device, **{"plan.device.backend": "cuda", "environment.backend": "cuda"})
    save(checkout, submission)
    collect(checkout, db)
    derived = derive(submission)
    assert derived.samples_per_s is not None
    instances, hourly, per_1k, per_run = rows(db, "select instances, usd_per_hour, usd_per_1k_samples, usd_per_run from basis_costs")[0]
    assert (instances, hourly) == (1, 72.0)
    assert per_1k == pytest.approx(72 / 3600 / derived.samples_per_s.value * 1_000)
    assert per_run == pytest.approx(72 / 3600 * submission.process.wall_s)


def test_current_prices_are_those_of_the_day_of_collecting(checkout: Path, db: Path, tunemark: Tunemark) -> None:
    book = checkout / "data" / "prices" / "prices.csv"
    line = "aws,p5.48xlarge,nvidia-h100-80gb-sxm,8,,,us-east-1,on_demand,{},{},provider,a source,"
    days = [(72.0, "2026-01-01"), (90.0, "2025-01-01"), (1.0, "2999-01-01")]
    book.write_text("\n".join([book.read_text().splitlines()[0], *(line.format(*day) for day in days)]) + "\n")
    for day, price in (("2025-06-01", 90.0), ("2026-06-01", 72.0), ("2999-06-01", 1.0)):
        assert tunemark("collect", "--as-of", day).code == 0
        assert rows(db, "select usd_per_hour, as_of::varchar from current_prices, collection") == [(price, day)]
    assert tunemark("collect").code == 0
    assert rows(db, "select as_of from collection") == [(datetime.now(tz=UTC).date(),)]
    assert "--as-of: 'soon': not a date" in tunemark("collect", "--as-of", "soon").err


def test_many_submissions_load_through_a_pool_of_processes(checkout: Path, db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        save(checkout, make_submission(20, run_id=run_id(number)))
    collect(checkout, db)
    alone = contents(db)
    in_pool = loading.in_processes
    monkeypatch.setattr(loading, "in_processes", lambda work, files: in_pool(work, files, parallel_above=1))
    collect(checkout, db)
    assert contents(db) == alone


def test_the_database_carries_the_comments_of_views_sql(checkout: Path, db: Path) -> None:
    collect(checkout, db)
    with duckdb.connect(str(db), read_only=True) as connection:
        assert connection.sql("select comment from duckdb_views() where view_name = 'results'").fetchall() == [
            ("All results with readable names. Start here.",)
        ]
        assert connection.sql(
            "select comment from duckdb_columns() where table_name = 'result_rows' and column_name = 'tokens_per_s'"
        ).fetchall() == [("Real tokens per second, all devices.",)]


def test_a_row_with_a_column_that_no_table_has_is_an_error() -> None:
    with pytest.raises(KeyError, match="tokens_per_second"):
        database.as_arrow([{"tokens_per_second": 1.0}], database.arrow_schemas()["result_rows"])


def test_a_database_that_cannot_be_written_is_one_line_of_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for place in (tmp_path / "file" / "tunemark.duckdb", tmp_path / "file" / "folder" / "tunemark.duckdb"):
        with pytest.raises(TunemarkError, match=r"cannot be written \((Not a directory|File exists)\); name a folder of yours") as refused:
            database.build_database(place, {})
        assert refused.value.exit_code == Exit.USAGE
    with pytest.raises(TunemarkError, match="is a folder; name a file"):
        database.build_database(tmp_path, {})
