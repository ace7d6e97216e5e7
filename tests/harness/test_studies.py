"""Series of runs: a failed point stops nothing, a stopped series is resumed, and each run is a record of the series."""

import signal
from types import SimpleNamespace

import pytest
import typer
from harness_making import ROOT, make_machine, tunemark
from study_making import FACTS, ScriptedBench

from tunemark.harness.commands.studies import show_sweep
from tunemark.harness.plan.resolve import Options
from tunemark.harness.run.process import stop_signals
from tunemark.harness.run.record import MEASURING, source_content
from tunemark.harness.studies.report import points_table
from tunemark.harness.studies.series import ALIASES, OPTIONS, Point, axis_of, field_named, grid, settings_of, star_of_card
from tunemark.harness.studies.sweep import run_sweep
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.formats import significant
from tunemark.schema.records.submission import Harness
from tunemark.schema.records.upgrade import read_record
from tunemark.schema.statistics.intervals import one_more_run
from tunemark.schema.vocabulary import Division, Status

CARD = FACTS.workload("smoke-lora")


def records(out):
    found = [read_record(path.read_bytes()) for path in out.rglob("*.json")]
    return sorted(found, key=lambda record: record.study.position)


def oom_above(rows):
    return lambda plan, _ran: {"status": Status.OOM_HOST if plan.batch.micro_batch > rows else Status.OK}


def test_each_friendly_name_is_a_setting_of_the_card():
    for name, field in ALIASES.items():
        assert field_named(name, "--over", CARD) == field
    assert all(field_named(field, "--over", CARD) == field for field in OPTIONS)


def test_a_full_name_always_works():
    assert field_named("optimizer.max_grad_norm", "--over", CARD) == "optimizer.max_grad_norm"


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


def test_several_axes_make_a_grid():
    points = grid([("batch.micro_batch", ("2", "4")), ("seed", ("1", "2"))])
    assert [point.text for point in points][:2] == ["batch.micro_batch=2, seed=1", "batch.micro_batch=2, seed=2"]
    assert len(points) == 4


def test_a_setting_in_two_axes_is_refused():
    with pytest.raises(TunemarkError, match="twice"):
        grid([("seed", ("1",)), ("seed", ("2",))])


def test_a_seed_and_devices_are_options_and_no_overrides():
    options = Point((("seed", "7"), ("devices.count", "2"), ("devices.strategy", "ddp"))).applied(Options(overrides=("lora.rank=4",)))
    assert (options.seed, options.devices, options.strategy, options.overrides) == (7, 2, "ddp", ("lora.rank=4",))


def test_an_arm_may_have_several_settings():
    assert settings_of("compile=blocks,lr=1e-3", "--b", CARD).settings == (("compile", "blocks"), ("optimizer.learning_rate", "1e-3"))


def test_the_axes_of_a_card_are_varied_one_at_a_time():
    card = FACTS.workload("bert-emotion")
    points = star_of_card(card)
    assert len(points) == 1 + sum(len(axis.values) for axis in card.axes) + len(card.points)
    assert "batch.micro_batch=32, data.sequence_length=16" in [point.text for point in points]


def test_out_of_memory_is_a_point_and_the_sweep_continues(tmp_path):
    scripted = ScriptedBench(tmp_path, oom_above(16))
    result = run_sweep("smoke-lora", ["batch_size=8,16,32,4"], Options(), scripted.bench)
    assert [row.status for row in result.rows] == ["ok", "ok", "oom_host", "ok"]
    assert result.exit_code is Exit.OK
    study = {record.study.study_id for record in records(tmp_path)}
    assert study == {result.study_id}
    assert [record.study.position for record in records(tmp_path)] == [1, 2, 3, 4]
    assert [record.study.point for record in records(tmp_path)][2] == "batch.micro_batch=32"


def test_speed_is_against_the_first_point_that_has_any(tmp_path):
    scripted = ScriptedBench(tmp_path, lambda plan, _ran: {"step_s": 0.1 if plan.batch.micro_batch == 4 else 0.05, "noise": 0.0})
    rows = run_sweep("smoke-lora", ["batch_size=4,8"], Options(), scripted.bench).rows
    assert [row.speed for row in rows] == pytest.approx([1.0, 4.0])


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


def at_commit(monkeypatch, commit):
    """Measure with the source of another commit from here on."""
    harness = Harness(version="0.1.0", commit=commit, dirty=False)
    monkeypatch.setattr("tunemark.harness.studies.series.source_content", lambda: f"content of {commit}")
    for module in ("run.record", "studies.series"):
        monkeypatch.setattr(f"tunemark.harness.{module}.harness_version", lambda: harness)


def test_a_commit_of_results_is_no_other_source():
    assert {folder.split("/")[0] for folder in MEASURING} == {"schema", "harness", "data"}
    assert all((ROOT / folder).is_dir() for folder in MEASURING)
    assert source_content() == source_content()


def test_a_wrong_value_is_refused_before_anything_runs(tmp_path):
    scripted = ScriptedBench(tmp_path)
    with pytest.raises(TunemarkError, match="scheduler"):
        run_sweep("smoke-lora", ["optimizer.scheduler=cosine,wave"], Options(), scripted.bench)
    assert scripted.ran == []


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


def shown_by(result, capsys):
    """Return the output of a sweep."""
    with pytest.raises(typer.Exit):
        show_sweep("smoke-lora", result, as_json=False)
    return capsys.readouterr().out


def test_the_line_below_a_sweep_says_that_its_intervals_cover_this_run_only(tmp_path, capsys):
    once = run_sweep("smoke-lora", ["batch_size=2,4"], Options(), ScriptedBench(tmp_path / "1").bench)
    assert shown_by(once, capsys).count("The 95% interval covers this run only") == 1
    repeated = run_sweep("smoke-lora", [], Options(), ScriptedBench(tmp_path / "2").bench, repeats=3)
    assert "covers this run only" not in shown_by(repeated, capsys)


def test_a_sweep_without_a_finished_run_prints_no_table(capsys):
    assert shown_by(SimpleNamespace(rows=(), exit_code=6), capsys) == ""


def test_a_point_with_one_run_has_the_interval_within_it_and_one_rate_of_several_runs_none(tmp_path):
    (single,) = run_sweep("smoke-lora", ["batch_size=2"], Options(), ScriptedBench(tmp_path / "1").bench).rows
    assert single.tokens_per_s_low < single.tokens_per_s < single.tokens_per_s_high
    assert single.tokens_per_s_lowest == single.tokens_per_s == single.tokens_per_s_highest
    assert "95% interval" in [column.header for column in points_table([single]).columns]
    failing = ScriptedBench(tmp_path / "2", lambda _plan, ran: {"status": Status.OK if ran else Status.CRASH})
    (row,) = run_sweep("smoke-lora", [], Options(), failing.bench, repeats=2).rows
    assert (row.ok, row.tokens_per_s_low, row.tokens_per_s_lowest) == (1, None, row.tokens_per_s)


def test_repeats_of_several_points_are_made_in_turn(tmp_path):
    scripted = ScriptedBench(tmp_path)
    run_sweep("smoke-lora", ["batch_size=2,4"], Options(), scripted.bench, repeats=2)
    assert [point.partition("=")[2] for point in scripted.ran] == ["2, repeat 1", "4, repeat 1", "2, repeat 2", "4, repeat 2"]


def test_a_point_on_an_axis_of_the_card_stays_in_the_standard_division(tmp_path):
    options = Options(weights="card", data="card", max_steps=60)
    scripted = ScriptedBench(tmp_path)
    run_sweep("llama2-7b-lora-2k", ["lora.rank=8,64"], options, scripted.bench)
    card = FACTS.workload("llama2-7b-lora-2k")
    on_axis = {str(value) for axis in card.axes if axis.field == "lora.rank" for value in axis.values}
    for record in records(tmp_path):
        value = record.study.point.partition("=")[2]
        standard = value in on_axis or value == str(card.lora.rank)
        assert (record.division is Division.STANDARD) == standard


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


def test_a_workload_with_axes_is_repeated_as_requested(tmp_path):
    from tunemark.harness.studies.sweep import run_repeats

    scripted = ScriptedBench(tmp_path)
    result = run_repeats("bert-emotion", Options(weights="random", data="synthetic"), scripted.bench, 2)
    assert (result.kind, result.rows[0].runs) == ("repeat", 2)


def test_several_runs_replace_no_single_result():
    done = tunemark("run", "smoke-lora", "--repeats", 2, "--supersedes", "aaaaaaaaaaaa")
    assert done.returncode == 2
    assert "remove --repeats" in done.stderr


def test_a_stop_request_between_two_runs_ends_the_next_run():
    with stop_signals() as series:
        signal.raise_signal(signal.SIGINT)
        with stop_signals() as run:
            assert run.is_set()
        assert series.is_set()
    with stop_signals() as later:
        assert not later.is_set()
