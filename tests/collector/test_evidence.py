"""What a run saw beside its steps: checked against what devices can do, and loaded into tables of its own."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from factories import make_submission, save
from gate_mutations.honest import CPU_OPTIONS

from tunemark.collector.store.loading import collect
from tunemark.collector.store.sql_query import run_query

STEPS = CPU_OPTIONS["fsdp"].max_steps or 0
RANKS = [
    {"rank": rank, "own_work_s": [0.04 * (1 + 0.1 * rank) + step % 7 * 1e-4 * (rank + 0.5) for step in range(STEPS)]} for rank in range(2)
]


@pytest.fixture
def db(checkout: Path) -> Path:
    eager = {"effective.attention": "eager", "effective.attention_kernel": None}
    save(checkout, make_submission(of="fsdp", options=CPU_OPTIONS["fsdp"], ranks=RANKS, **eager))
    path = checkout / "build" / "tunemark.duckdb"
    assert collect(checkout, path).problems == []
    return path


def test_ranks_are_loaded_and_the_slowest_is_marked(db: Path) -> None:
    assert run_query("select rank, slowest, round(behind, 3) from ranks order by rank", db).rows == [(0, False, -0.051), (1, True, 0.051)]


def test_a_setting_that_fell_back_is_shown(db: Path) -> None:
    assert run_query("select setting, requested, effective from effective where agrees = false", db).rows == [
        ("attention", "sdpa", "eager")
    ]
    assert run_query("select attention from results", db).rows == [("eager",)]


def test_flops_and_reasons_are_loaded(db: Path) -> None:
    flop, total = run_query(
        "select (select flop_per_step from results), (select sum(flop) from flops where class <> 'recompute')", db
    ).rows[0]
    assert flop == total > 0
    value, reason = run_query("select value, reason from result_facts where topic = 'derived' and name = 'mfu'", db).rows[0]
    assert value is None
    assert "unknown" in reason
    assert run_query("select count(*) from memory_lines where measured_bytes is not null", db).rows[0][0] == 3


def test_the_gate_knows_the_probes_and_throttle_reasons_of_the_harness() -> None:
    from tunemark.collector.gate import physics, run_facts
    from tunemark.harness.vendors.cuda import THROTTLE_REASONS
    from tunemark.harness.vendors.protocol import all_vendors

    sizes = {vendor.backend: vendor.probe_size for vendor in all_vendors() if vendor.probe_size and vendor.backend.value != "fake"}
    known = {backend: physics.QUANTITIES["probe_size"](SimpleNamespace(backend=backend)) for backend in sizes}
    assert known == sizes
    assert set(THROTTLE_REASONS.values()) < set(run_facts.STACKS["telemetry"]["throttle_reasons"])
