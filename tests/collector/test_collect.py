"""`tunemark collect`: all or nothing, the same each time, one bad file leaves the others."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest
from factories import Tunemark, make_submission, run_id, save
from gate_mutations.honest import CPU_OPTIONS

from tunemark.collector.commands.database import run_query
from tunemark.collector.store import database, loading
from tunemark.collector.store.loading import collect
from tunemark.schema.derive import derive
from tunemark.schema.records.base import content_id


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
    said = tunemark("query", "select source, count(*) as n from results group by 1 order by 1", "--json")
    assert [tuple(row.values()) for row in json.loads(said.out)] == [("000", 3), ("001", 49), ("002", 2), ("003", 60), ("004", 58)]
    assert rows(db, "select count(*) from document_cells")[0][0] > 0


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
        ("1", "the workload card sets it")
    ]
    assert rows(db, "select value from result_facts where topic = 'packages' and name = 'torch'") == [("2.13.0+cpu",)]
    assert rows(db, "select reason from result_facts where topic = 'memory' and name = 'device_allocated'") == [
        ("torch has no allocator for it that counts peaks",)
    ]
    assert rows(db, "select kind from warnings") == [("random_weights",), ("unknown_accelerator",)]


def test_a_bad_submission_is_noted_and_the_others_load(checkout: Path, db: Path, tunemark: Tunemark) -> None:
    save(checkout, make_submission())
    (checkout / "submissions" / "broken.json").write_bytes(b"\x00\x01")
    said = tunemark("collect", "--json")
    assert said.code == 3
    assert json.loads(said.out)["results"] == {"measured": 1}
    assert "submissions/broken.json: file: not valid JSON" in said.err
    assert rows(db, "select file, field from load_problems") == [("submissions/broken.json", "file")]


@pytest.mark.parametrize("failure", [RuntimeError("disk"), KeyboardInterrupt()])
def test_a_failure_midway_leaves_the_old_database_untouched(
    checkout: Path, db: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    save(checkout, make_submission())
    collect(checkout, db)
    before = db.read_bytes()
    save(checkout, make_submission(run_id=run_id(2)))
    build = loading.build_database

    def tables_until_the_fifth(tables: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        yield from islice(tables.items(), 4)
        raise failure

    def fail_midway(path: Path, tables: dict[str, Any]) -> None:
        build(path, SimpleNamespace(items=lambda: tables_until_the_fifth(tables)))  # type: ignore[arg-type]

    monkeypatch.setattr(loading, "build_database", fail_midway)
    with pytest.raises(type(failure)):
        collect(checkout, db)
    assert db.read_bytes() == before
    assert sorted(path.name for path in db.parent.iterdir()) == ["evidence.json", db.name]


def test_an_invalid_published_result_stops_collect_and_nothing_is_written(published: Path, db: Path, tunemark: Tunemark) -> None:
    path = published / "data" / "published" / "003" / "003-001.json"
    path.write_text(path.read_text().replace('"llama-3.1-8b"', '"lama-3.1-8b"'))
    said = tunemark("collect")
    assert said.code == 3
    assert "data/published/003/003-001.json: conditions.model: 'lama-3.1-8b'" in said.err
    assert "did you mean 'llama-3.1-8b'" in said.err
    assert not db.exists()


def test_the_database_carries_the_comments_of_views_sql(checkout: Path, db: Path) -> None:
    collect(checkout, db)
    with duckdb.connect(str(db), read_only=True) as connection:
        assert connection.sql("select comment from duckdb_views() where view_name = 'results'").fetchall() == [
            ("All results with readable names. Start here.",)
        ]
        assert connection.sql(
            "select comment from duckdb_columns() where table_name = 'result_rows' and column_name = 'tokens_per_s'"
        ).fetchall() == [("Real tokens per second, all devices.",)]


def test_what_a_run_saw_beside_its_steps_is_loaded_into_tables_of_its_own(checkout: Path, db: Path) -> None:
    """Of two ranks, the slowest is marked; a setting that fell back is shown; FLOPs and lines of memory have their reasons."""
    steps = CPU_OPTIONS["fsdp"].max_steps or 0
    works = ([0.04 * (1 + 0.1 * rank) + step % 7 * 1e-4 * (rank + 0.5) for step in range(steps)] for rank in range(2))
    ranks = [{"rank": rank, "own_work_s": work} for rank, work in enumerate(works)]
    eager = {"effective.attention": "eager", "effective.attention_kernel": None}
    save(checkout, make_submission(of="fsdp", options=CPU_OPTIONS["fsdp"], ranks=ranks, **eager))
    assert collect(checkout, db).problems == []
    assert rows(db, "select rank, slowest, round(behind, 3) from ranks order by rank") == [(0, False, -0.051), (1, True, 0.051)]
    assert rows(db, "select setting, requested, effective from effective where agrees = false") == [("attention", "sdpa", "eager")]
    ((attention, flop, total),) = rows(
        db, "select attention, flop_per_step, (select sum(flop) from flops where class <> 'recompute') from results"
    )
    assert (attention, flop) == ("eager", total)
    assert flop > 0
    ((mfu, reason),) = rows(db, "select value, reason from result_facts where topic = 'derived' and name = 'mfu'")
    assert (mfu, "unknown" in reason) == (None, True)
    assert rows(db, "select count(*) from memory_lines where measured_bytes is not null") == [(3,)]
