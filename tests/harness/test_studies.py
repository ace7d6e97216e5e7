"""Series of runs: a failed point stops nothing, a stopped series is resumed, and each run is a record of the series."""

import pytest
from harness_making import make_machine
from study_making import FACTS, ScriptedBench

from tunemark.harness.plan.resolve import Options
from tunemark.harness.studies.report import points_table
from tunemark.harness.studies.series import Point, axis_of, settings_of
from tunemark.harness.studies.sweep import run_sweep
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.formats import significant
from tunemark.schema.records.upgrade import read_record
from tunemark.schema.statistics.intervals import one_more_run
from tunemark.schema.vocabulary import Division, Status

CARD = FACTS.workload("smoke-lora")


def records(out):
    found = [read_record(path.read_bytes()) for path in out.rglob("*.json")]
    return sorted(found, key=lambda record: record.study.position)


def oom_above(rows):
    return lambda plan, _ran: {"status": Status.OOM_HOST if plan.batch.micro_batch > rows else Status.OK}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("batchsize=8", "did you mean 'batch_size'"),
        ("batch_size", "such as batch_size=8,16,32"),
        ("batch_size=", "such as batch_size=8,16,32"),
        ("batch_size=8,8", "8 is given twice"),
    ],
)
def test_an_axis_that_cannot_be_used_is_refused(text, said):
    with pytest.raises(TunemarkError, match=r".+: .+: .+") as caught:
        axis_of(text, CARD)
    assert said in str(caught.value)


def test_an_axis_without_values_takes_those_of_the_card():
    assert axis_of("seq", FACTS.workload("bert-emotion")) == ("data.sequence_length", ("16", "32", "64", "128"))


def test_a_seed_and_devices_are_options_and_no_overrides():
    options = Point((("seed", "7"), ("devices.count", "2"), ("devices.strategy", "ddp"))).applied(Options(overrides=("lora.rank=4",)))
    assert (options.seed, options.devices, options.strategy, options.overrides) == (7, 2, "ddp", ("lora.rank=4",))


def test_an_arm_may_have_several_settings():
    assert settings_of("compile=blocks,lr=1e-3", "--b", CARD).settings == (("compile", "blocks"), ("optimizer.learning_rate", "1e-3"))


def test_out_of_memory_is_a_point_and_the_sweep_continues(tmp_path):
    scripted = ScriptedBench(tmp_path, oom_above(16))
    result = run_sweep("smoke-lora", ["batch_size=8,16,32,4"], Options(), scripted.bench)
    assert [row.status for row in result.rows] == ["ok", "ok", "oom_host", "ok"]
    assert result.exit_code is Exit.OK
    study = {record.study.study_id for record in records(tmp_path)}
    assert study == {result.study_id}
    assert [record.study.position for record in records(tmp_path)] == [1, 2, 3, 4]
    assert [record.study.point for record in records(tmp_path)][2] == "batch.micro_batch=32"


def test_a_point_with_too_few_steady_steps_has_no_speed_and_says_why(tmp_path):
    scripted = ScriptedBench(tmp_path, lambda plan, _ran: {"steps": 12 if plan.batch.micro_batch == 4 else 120})
    few, first, other = run_sweep("smoke-lora", ["batch_size=4,8,16"], Options(), scripted.bench).rows
    assert (few.status, few.speed, few.tokens_per_s) == ("timeout", None, None)
    assert "the time limit of 40 s left 2 steps after warm-up; a result needs 20" in few.message
    assert (first.speed, first.warnings) == (1.0, ())
    assert other.speed == pytest.approx(2.0, rel=0.05)


def test_a_sweep_without_one_good_point_is_not_to_be_trusted(tmp_path):
    result = run_sweep("smoke-lora", ["batch_size=8,16"], Options(), ScriptedBench(tmp_path, oom_above(1)).bench)
    assert result.exit_code is Exit.UNTRUSTWORTHY
    assert "scripted" in result.rows[0].message


def test_the_same_command_resumes_where_it_stopped(tmp_path, capsys):
    stopped = ScriptedBench(tmp_path, lambda _plan, ran: {"status": Status.INTERRUPTED if ran == 1 else Status.OK})
    first = run_sweep("smoke-lora", ["batch_size=2,4,8"], Options(), stopped.bench)
    assert (first.missing, first.exit_code) == (2, Exit.UNTRUSTWORTHY)
    second = ScriptedBench(tmp_path)
    result = run_sweep("smoke-lora", ["batch_size=2,4,8"], Options(), second.bench)
    assert second.ran == ["batch.micro_batch=4", "batch.micro_batch=8"]
    assert (result.study_id, result.missing, result.exit_code) == (first.study_id, 0, Exit.OK)
    assert "done before" in capsys.readouterr().err
    assert [record.study.position for record in records(tmp_path)] == [1, 2, 3, 4]


def test_again_starts_another_series_which_can_be_resumed(tmp_path):
    def sweep(scripted, **more):
        return run_sweep("smoke-lora", ["batch_size=2,4"], Options(), scripted.bench, **more)

    first = sweep(ScriptedBench(tmp_path))
    anew = sweep(ScriptedBench(tmp_path, lambda _plan, ran: {"status": Status.INTERRUPTED if ran else Status.OK}), again=True)
    later = ScriptedBench(tmp_path)
    result = sweep(later)
    assert anew.study_id != first.study_id
    assert result.study_id == anew.study_id
    assert later.ran == ["batch.micro_batch=4"]


def test_another_machine_or_setting_is_another_series(tmp_path):
    def study(machine, **options):
        return run_sweep("smoke-lora", ["batch_size=2,4"], Options(**options), ScriptedBench(tmp_path, machine=machine).bench).study_id

    here = study(make_machine())
    assert len({here, study(make_machine(packages={"torch": "2.14.0"})), study(make_machine(), max_steps=50)}) == 3


def test_nothing_to_vary_is_refused_with_both_ways_out(tmp_path):
    with pytest.raises(TunemarkError, match=r"--over batch_size.*--repeats"):
        run_sweep("smoke-lora", [], Options(), ScriptedBench(tmp_path).bench)


def test_repeats_are_runs_of_one_point_with_median_and_ends(tmp_path):
    scripted = ScriptedBench(tmp_path, lambda _plan, ran: {"step_s": (0.1, 0.2, 0.4)[ran], "noise": 0.0})
    result = run_sweep("smoke-lora", [], Options(), scripted.bench, repeats=3)
    (row,) = result.rows
    assert (result.kind, row.runs, row.ok) == ("repeat", 3, 3)
    assert (row.step_time_s, row.tokens_per_s) == (pytest.approx(0.2), pytest.approx(2560))
    assert (row.tokens_per_s_lowest, row.tokens_per_s_highest) == (pytest.approx(1280), pytest.approx(5120))
    further = one_more_run([1280, 2560, 5120])
    assert (row.tokens_per_s_low, row.tokens_per_s_high) == (pytest.approx(further.low), pytest.approx(further.high))
    table = points_table(result.rows)
    cells = {column.header: next(iter(column.cells)).plain for column in table.columns}
    assert cells["lowest to highest"] == "1,280 to 5,120"
    assert cells["95% for one more run"] == f"{significant(further.low)} to {significant(further.high)}"
    assert records(tmp_path)[1].study.point == "as given, repeat 2"
    assert {record.division for record in records(tmp_path)} == {Division.STANDARD}


def test_axes_that_mean_nothing_here_are_left_out(tmp_path):
    scripted = ScriptedBench(tmp_path)
    options = Options(weights="random", data="synthetic")
    run_sweep("bert-emotion", [], options, scripted.bench)
    assert not [point for point in scripted.ran if "neuron" in point]
    assert scripted.ran[0] == "as given"
    assert "batch.micro_batch=64" in scripted.ran
    assert "batch.micro_batch=8" not in scripted.ran


def test_an_invalid_file_of_the_series_is_named(tmp_path):
    result = run_sweep("smoke-lora", ["batch_size=2,4"], Options(), ScriptedBench(tmp_path).bench)
    path = next(tmp_path.rglob("*.json"))
    path.write_text(path.read_text().replace('"steady"', '"x"')[:-20])
    assert result.study_id in path.read_text()
    with pytest.raises(TunemarkError, match="fix or remove"):
        run_sweep("smoke-lora", ["batch_size=2,4"], Options(), ScriptedBench(tmp_path).bench)


def test_a_signal_between_two_runs_stops_before_the_next(tmp_path):
    import os
    import signal

    scripted = ScriptedBench(tmp_path, lambda _plan, ran: os.kill(os.getpid(), signal.SIGINT) or {} if ran == 1 else {})
    result = run_sweep("smoke-lora", ["batch_size=2,4,8"], Options(), scripted.bench)
    assert scripted.ran == ["batch.micro_batch=2", "batch.micro_batch=4"]
    assert (result.missing, [row.status for row in result.rows]) == (1, ["ok", "ok"])


def test_the_same_series_does_not_run_twice_at_once(tmp_path):
    refused = []

    def beside(_plan, _ran):
        with pytest.raises(TunemarkError, match="another command runs this series now") as error:
            run_sweep("smoke-lora", ["batch_size=2,4"], Options(), ScriptedBench(tmp_path).bench)
        refused.append(error.value.field)
        return {}

    run_sweep("smoke-lora", ["batch_size=2,4"], Options(), ScriptedBench(tmp_path, beside).bench)
    assert refused == ["sweep", "sweep"]
    # And once it has ended, the command finds all points done.
    assert run_sweep("smoke-lora", ["batch_size=2,4"], Options(), ScriptedBench(tmp_path).bench).missing == 0
