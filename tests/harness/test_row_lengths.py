"""Lengths of the training rows, and the swap of the host, in the record."""

import pytest
from harness_making import ROOT, make_machine, only_submission, tunemark
from pydantic import ValidationError

from tunemark.harness.commands.doctor import _machine_table, report
from tunemark.harness.plan.machine import detect
from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.run.record import environment
from tunemark.harness.worker.data import lengths_of, load_samples
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.submission import RowLengths

FACTS = FactBase(ROOT / "data")


def rows(*lengths):
    return [{"input_ids": [1] * length} for length in lengths]


def test_the_quantiles_of_a_hundred_rows_are_lengths_of_rows():
    found = RowLengths.model_validate(lengths_of(rows(*range(1, 101))))
    assert (found.rows, found.mean) == (100, 50.5)
    assert (found.minimum, found.median, found.p90, found.p95, found.p99, found.maximum) == (1, 50, 90, 95, 99, 100)


def test_a_single_row_has_all_quantiles():
    assert set(lengths_of(rows(7)).values()) == {1, 7}


@pytest.mark.parametrize("change", [{"median": 200}, {"mean": 0.5}, {"maximum": 3}])
def test_lengths_that_contradict_each_other_are_refused(change):
    with pytest.raises(ValidationError, match="not in order"):
        RowLengths.model_validate(lengths_of(rows(*range(1, 101))) | change)


def test_rows_without_an_end_have_no_lengths():
    plan = resolve("smoke-lora", FACTS, make_machine(), Options()).plan
    assert load_samples(plan, 512, None, None).lengths is None


@pytest.mark.slow
def test_a_run_on_text_records_the_lengths_of_its_rows(tmp_path):
    data = ROOT / "tests" / "harness" / "data" / "emotions"
    done = tunemark(
        *("run", "smoke-bert", "--steps", 3, "--no-probe", "--no-gates", "--data", f"file:{data}"),
        *("--set", "data.evaluation_rows=0", "--out", tmp_path),
    )
    assert done.returncode == 0, done.stderr
    submission = only_submission(tmp_path)
    lengths = submission.row_lengths
    assert lengths.rows == len((data / "train.txt").read_text().splitlines())
    assert lengths.minimum <= lengths.median <= lengths.maximum <= submission.plan.data.sequence_length
    assert submission.environment.swap_bytes is not None


def test_the_swap_of_the_host_is_recorded_and_shown():
    assert detect().swap_bytes is not None
    machine = make_machine(swap_bytes=90 * 2**30)
    assert environment(machine, 1).swap_bytes == 90 * 2**30
    hosts = [list(_machine_table(report(FACTS, make_machine(swap_bytes=size))).columns[1].cells)[3] for size in (0, 90 * 2**30)]
    assert hosts[0].endswith("8.00 GiB, no swap")
    assert hosts[1].endswith("8.00 GiB, 90.0 GiB of swap")
