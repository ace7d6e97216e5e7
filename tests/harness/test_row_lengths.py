"""Lengths of the training rows, and the swap of the host, in the record."""

import pytest
from harness_making import ROOT, only_submission, tunemark

from tunemark.harness.worker.data import lengths_of
from tunemark.schema.records.submission import RowLengths


def rows(*lengths):
    return [{"input_ids": [1] * length} for length in lengths]


def test_the_quantiles_of_a_hundred_rows_are_lengths_of_rows():
    found = RowLengths.model_validate(lengths_of(rows(*range(1, 101))))
    assert (found.rows, found.mean) == (100, 50.5)
    assert (found.minimum, found.median, found.p90, found.p95, found.p99, found.maximum) == (1, 50, 90, 95, 99, 100)


@pytest.mark.slow
def test_a_run_on_text_records_the_lengths_of_its_rows(tmp_path):
    data = ROOT / "tests" / "harness" / "data" / "emotions"
    done = tunemark(
        *("run", "smoke-bert", "--steps", 3, "--set", "probe=false", "--set", "gates=false", "--data", f"file:{data}"),
        *("--set", "data.evaluation_rows=0", "--out", tmp_path),
    )
    assert done.returncode == 0, done.stderr
    submission = only_submission(tmp_path)
    lengths = submission.row_lengths
    assert lengths.rows == len((data / "train.txt").read_text().splitlines())
    assert lengths.minimum <= lengths.median <= lengths.maximum <= submission.plan.data.sequence_length
    assert submission.environment.swap_bytes is not None
