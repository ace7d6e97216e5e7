"""Rates and utilisation of published and converted results: the database and the predictor use the same rows."""

from pathlib import Path

import duckdb
import pytest
from factories import calibration_of_checkout


@pytest.fixture(scope="module")
def connection(whole_database: Path) -> duckdb.DuckDBPyConnection:
    return duckdb.connect(str(whole_database), read_only=True)


def values(connection: duckdb.DuckDBPyConnection, result_id: str, *columns: str) -> tuple[float | None, ...]:
    chosen = connection.sql("select * from results").filter(duckdb.ColumnExpression("result_id") == result_id)
    (row,) = chosen.select(*columns).fetchall()
    return row


def test_the_database_has_the_rate_that_calibrates_the_predictor_in_every_row(connection):
    stored = dict(
        connection.execute("""
            select result_id, case when padding = 'static' then samples_per_s * sequence_length else tokens_per_s end
            from results where source <> 'measured'
        """).fetchall()
    )
    used = {result: row.tokens_per_s for result, row in calibration_of_checkout().by_result.items() if result in stored}
    assert len(used) > 200
    assert {result: stored[result] for result in used} == pytest.approx(used)


def test_all_finished_results_of_source_003_have_rate_utilisation_and_a_reason(connection):
    (counts,) = connection.execute("""
        select count(*), count(tokens_per_s), count(samples_per_s), count(step_time_s), count(mfu), count(hfu)
        from results where source = '003' and not failed
    """).fetchall()
    assert counts == (58,) * 6
    reasons = connection.execute("""
        select reason from result_facts where result_id = '003-002' and topic = 'derived' and name = 'tokens_per_s'
    """).fetchall()
    assert reasons == [
        ("64 rows x 8,192 tokens / 204.8 s per step; read as micro-step, the only reading that no audit finding on this document excludes",)
    ]


def test_a_result_whose_rate_the_audit_refutes_has_no_utilisation_but_the_reason(connection):
    (mfu,) = values(connection, "004-005", "mfu")
    ((reason,),) = connection.execute("select reason from result_facts where result_id = '004-005' and name = 'mfu'").fetchall()
    assert mfu is None
    assert reason == "the audit calls it impossible: utilisation"


def test_no_utilisation_is_above_one(connection):
    assert connection.execute("select count(*) from results where mfu > 1 or hfu > 1").fetchall() == [(0,)]


def test_an_unstated_format_gives_no_utilisation_where_the_device_has_fp8(connection):
    unstated = connection.execute("""
        select count(*), count(mfu), count(model_flop_per_s) from results join accelerators using (accelerator)
        where "precision" is null and peak_fp8_tflops is not null and trust = 'converted'
    """).fetchall()
    ((number, with_mfu, with_flops),) = unstated
    assert (number > 100, with_mfu, with_flops > 100) == (True, 0, True)
    reasons = dict(connection.execute("select result_id, reason from result_facts where name = 'mfu'").fetchall())
    assert reasons["mlperf-v5.0-nvidia-tyche-ngpu512-ngc25.04-nemo"].startswith("the format of the products is not stated, and")
    assert reasons["018-001"].endswith("dense; the format of the products is not stated)")


def test_every_accepted_rate_is_used_for_calibration_or_refused_with_a_reason(connection):
    """The site shows both tables: a rate in neither would have no reason, and one in both would have a false one."""
    ((in_neither, in_both, used, refused),) = connection.execute("""
        with rated as (select result_id from results where coalesce(tokens_per_s, samples_per_s, step_time_s) is not null and not failed), used as (select distinct result_id from throughput_errors), refused as (from throughput_refused where reason <> '')
        select (select list(result_id) from rated anti join used using (result_id) anti join refused using (result_id)),
            (select list(result_id) from used semi join refused using (result_id)), (select count(*) from used), (select count(*) from refused)
    """).fetchall()
    assert (in_neither, in_both) == (None, None)
    assert used > 700
    assert refused > 1_400


def test_padded_rows_of_bert_have_the_utilisation_of_their_real_tokens(connection):
    """001-028: 273.489 rows/s x 22.26 tokens of a row on one Trainium chip of 190 TFLOP/s in bf16."""
    tokens_per_s, samples_per_s, mfu = values(connection, "001-028", "tokens_per_s", "samples_per_s", "mfu")
    assert tokens_per_s == pytest.approx(samples_per_s * 22.26)
    matrices = 12 * (4 * 768 * 768 + 2 * 768 * 3072)
    assert mfu == pytest.approx(6 * matrices * tokens_per_s / 190e12, rel=0.03)
