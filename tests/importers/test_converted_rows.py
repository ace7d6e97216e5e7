"""Converted results in the database: rows with their statistics, the raw runs, and the round with its caveats."""

import json
from pathlib import Path
from typing import Any

import pytest
from factories import CHECKOUT, copy_data

from tunemark.collector.commands.database import run_query
from tunemark.collector.store.loading import collect
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.records.base import canonical_json

NAME = "mlperf-v5.0-nvidia-tyche-ngpu512-ngc25.04-nemo"


def asked(database: Path, sql: str) -> list[dict[str, Any]]:
    return run_query(sql, database).records()


def test_a_result_has_its_conditions_and_statistics(whole_database: Path):
    (row,) = asked(whole_database, "select * from results where result_id = 'NAME'".replace("NAME", NAME))
    assert (row["source"], row["trust"], row["status"], row["rankable"], row["failed"]) == ("mlperf-v5.0", "converted", "ok", False, False)
    assert (row["accelerator"], row["accelerator_count"], row["model"], row["method"]) == ("nvidia-gb200", 512, "llama-2-70b", "lora")
    assert (row["sequence_length"], row["packing"], row["optimizer"]) == (8_192, True, "adamw")
    assert row["comparability_group"] is None, "the number format is not in the logs"
    assert row["time_to_target_low_s"] < row["time_to_target_s"] < row["time_to_target_high_s"]
    assert row["samples_per_s_low"] < row["samples_per_s"] < row["samples_per_s_high"]
    assert row["note"].startswith("MLPerf, unofficial conversion, not verified by MLCommons Association.")


def test_an_entry_with_a_run_that_missed_the_target_has_a_note(whole_database: Path):
    rows = asked(
        whole_database, "select result_id, note, time_to_target_s from results where note like '%runs reached the target%' order by 1"
    )
    short = rows[0]
    assert " of 10 runs reached the target; the others count as longer than any of them." in short["note"]
    assert short["time_to_target_s"] is not None
    medians = asked(whole_database, "select result_id, median(coalesce(time_to_target_s, 'inf'::double)) as m from runs group by 1")
    (median,) = [row for row in medians if row["result_id"] == short["result_id"]]
    assert short["time_to_target_s"] == pytest.approx(median["m"])


def test_a_converted_result_that_is_wrong_stops_with_its_field(tmp_path: Path):
    place = Path("data/converted/mlperf/v5.0") / f"{NAME}.json"
    path, content = copy_data(tmp_path) / place, json.loads((CHECKOUT / place).read_bytes())
    path.parent.mkdir(parents=True)
    content["conditions"]["accelerator"] = "nvidia-gb20"
    path.write_bytes(canonical_json(content))
    with pytest.raises(TunemarkError, match="did you mean 'nvidia-gb200'") as stopped:
        collect(tmp_path, tmp_path / "build" / "t.duckdb")
    assert stopped.value.exit_code == Exit.INVALID
    assert "conditions.accelerator" in str(stopped.value)
