"""Series of runs: a failed point stops nothing, a stopped series is resumed, and each run is a record of the series."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from harness_making import make_machine
from hypothesis import given
from hypothesis import strategies as st
from study_making import FACTS, ScriptedBench

from tunemark.collector.gate.check import judge
from tunemark.harness.plan.resolve import Options
from tunemark.harness.studies.comparison import run_ab, run_repeats, run_sweep
from tunemark.harness.studies.search import Over, find_largest, run_frontier, run_tune
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.workloads import GoldenLosses
from tunemark.schema.records.reading import read_record
from tunemark.schema.statistics.intervals import one_more_run
from tunemark.schema.vocabulary import Checkpointing, Division, Status


def records_of_series(out):
    found = [read_record(path.read_bytes()) for path in out.rglob("*.json")]
    return sorted(found, key=lambda record: record.study.position)


def test_out_of_memory_is_a_point_and_the_sweep_continues(tmp_path):
    scripted = ScriptedBench(tmp_path, lambda plan, _ran: {"status": Status.OOM_HOST if plan.batch.micro_batch > 16 else Status.OK})
    result = run_sweep("smoke-lora", ["batch_size=8,16,32,4"], Options(), scripted.bench)
    assert [row.status for row in result.points] == ["ok", "ok", "oom_host", "ok"]
    assert (result.exit_code, result.points[2].message) == (Exit.OK, "scripted oom_host")
    study = {record.study.study_id for record in records_of_series(tmp_path)}
    assert study == {result.study_id}
    assert [record.study.position for record in records_of_series(tmp_path)] == [1, 2, 3, 4]
    assert [record.study.point for record in records_of_series(tmp_path)][2] == "batch.micro_batch=32"


def test_a_point_with_more_devices_than_there_are_is_a_result_and_the_sweep_continues(tmp_path):
    result = run_sweep("smoke-lora", ["devices.count=1,64,2"], Options(), ScriptedBench(tmp_path).bench)
    assert [row.status for row in result.points] == ["ok", "unsupported", "ok"]
    assert "give --devices 16 or less" in result.points[1].message


def test_a_point_with_too_few_steady_steps_has_no_speed_and_says_why(tmp_path):
    scripted = ScriptedBench(tmp_path, lambda plan, _ran: {"steps": 12 if plan.batch.micro_batch == 4 else 120})
    few, first, other = run_sweep("smoke-lora", ["batch_size=4,8,16"], Options(), scripted.bench).points
    assert (few.status, few.speed, few.tokens_per_s) == ("timeout", None, None)
    assert "the time limit of 40 s left 2 steps after warm-up; a result needs 20" in few.message
    assert (first.speed, first.warnings) == (1.0, ())
    assert other.speed == pytest.approx(2.0, rel=0.05)


def test_the_same_command_resumes_where_it_stopped_and_again_starts_another_series(tmp_path, capsys):
    def sweep(scripted, **more):
        return run_sweep("smoke-lora", ["batch_size=2,4,8"], Options(), replace(scripted.bench, **more))

    first = sweep(ScriptedBench(tmp_path))
    anew = sweep(ScriptedBench(tmp_path, lambda _plan, ran: {"status": Status.INTERRUPTED if ran == 1 else Status.OK}), again=True)
    assert anew.study_id != first.study_id
    assert (anew.missing, anew.exit_code) == (2, Exit.UNTRUSTWORTHY)
    later = ScriptedBench(tmp_path)
    result = sweep(later)
    assert later.ran == ["batch.micro_batch=4", "batch.micro_batch=8"]
    assert (result.study_id, result.missing, result.exit_code) == (anew.study_id, 0, Exit.OK)
    assert "done before" in capsys.readouterr().err
    resumed = [record.study for record in records_of_series(tmp_path) if record.study.study_id == anew.study_id]
    assert [study.position for study in resumed] == [1, 2, 3, 4]


def test_repeats_are_runs_of_one_point_with_median_and_ends(tmp_path):
    scripted = ScriptedBench(tmp_path, lambda _plan, ran: {"step_s": (0.1, 0.2, 0.4)[ran], "noise": 0.0})
    result = run_repeats("smoke-lora", Options(), scripted.bench, 3)
    (row,) = result.points
    assert (result.kind, row.runs, row.ok) == ("repeat", 3, 3)
    assert (row.step_time_s, row.tokens_per_s) == (pytest.approx(0.2), pytest.approx(2560))
    assert row.tokens_per_s_range == (pytest.approx(1280), pytest.approx(5120))
    further = one_more_run([1280, 2560, 5120])
    assert row.tokens_per_s_interval == (pytest.approx(further.low), pytest.approx(further.high))
    (table,) = result.shown()
    cells = dict(zip(table.columns, table.rows[0], strict=True))
    assert cells["lowest to highest"] == "1,280 to 5,120"
    assert records_of_series(tmp_path)[1].study.point == "as given, repeat 2"
    assert {record.division for record in records_of_series(tmp_path)} == {Division.STANDARD}


def test_axes_that_mean_nothing_here_are_left_out_and_the_card_itself_is_named_by_the_first(tmp_path):
    scripted = ScriptedBench(tmp_path)
    run_sweep("bert-emotion", [], Options(weights="random", data="synthetic"), scripted.bench)
    assert not [point for point in scripted.ran if "neuron" in point]
    assert scripted.ran[:2] == ["batch.micro_batch=8", "batch.micro_batch=2"]
    assert len(scripted.ran) == len(set(scripted.ran)) == 25


@pytest.mark.parametrize(
    "series", [run_repeats, partial(run_sweep, overs=["seq=64"]), run_frontier, run_tune, partial(run_ab, a="batch_size=4", b="seq=64")]
)
def test_a_series_whose_weights_are_nowhere_starts_no_run_unless_it_is_forced(tmp_path, monkeypatch, series):
    """Every kind of series asks the hub before its first run, as a single run does."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    scripted, options = ScriptedBench(tmp_path, speed()), TUNE_OPTIONS.having(weights="pretrained:nobody/nothing")
    counts = {run_repeats: {"repeats": 2}, run_tune: {"runs": 1}}.get(series, {})
    with pytest.raises(TunemarkError, match="model hub"):
        series("smoke-lora", options=options, bench=scripted.bench, **counts)
    assert not scripted.ran
    series("smoke-lora", options=options, bench=replace(scripted.bench, force=True), **counts)
    assert scripted.ran


def test_an_invalid_file_of_the_series_is_named(tmp_path):
    result = run_sweep("smoke-lora", ["batch_size=2,4"], Options(), ScriptedBench(tmp_path).bench)
    path = next(tmp_path.rglob("*.json"))
    path.write_text(path.read_text().replace('"steady"', '"x"')[:-20])
    assert result.study_id in path.read_text()
    with pytest.raises(TunemarkError, match="fix or remove"):
        run_sweep("smoke-lora", ["batch_size=2,4"], Options(), ScriptedBench(tmp_path).bench)


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


A, B = "batch_size=4", "attention=eager"


def is_b(plan):
    return plan.model.attention == "eager"


def drifting(plan, ran, *, gain=0.0, noise=0.02):
    """Return a run on a machine that slows down by 5% with each run; B is faster by `gain`."""
    chance = np.random.default_rng(ran + 100).normal(0, noise)
    return {"step_s": 0.1 * 1.05**ran * (1 - gain * is_b(plan)) * float(np.exp(chance)), "noise": 0.0}


def compare(tmp_path, script, **more):
    scripted = ScriptedBench(tmp_path, script)
    return run_ab("smoke-lora", A, B, Options(), scripted.bench, **more), scripted


def test_a_difference_is_found_on_a_machine_that_drifts(tmp_path):
    result, _ = compare(tmp_path, lambda plan, ran: drifting(plan, ran, gain=0.2), pairs=6)
    assert result.throughput.verdict == "higher"
    assert result.throughput.change.low < 0.25 < result.throughput.change.high
    assert result.step_time.verdict == "lower"
    assert "B is faster" in "\n".join(result.shown())


def test_a_setting_that_changes_the_loss_is_reported(tmp_path):
    def script(plan, ran):
        return {"status": Status.CRASH} if ran == 2 else {**drifting(plan, ran), "loss": 2.5 if is_b(plan) else 2.0}

    result, _ = compare(tmp_path, script)
    # The pair with a crash is left out.
    assert (result.pairs, result.loss_changed) == (4, True)
    assert "not comparable" in "\n".join(result.shown())


def test_compilation_pays_off_after_its_overhead_over_the_gain(tmp_path):
    def compiling(plan, ran):
        took_s = (30.0 if ran < 2 else 4.0) * is_b(plan)
        return {"step_s": 0.08 if is_b(plan) else 0.1, "noise": 0.0, "compiled_s": took_s, "cache": "warm" if is_b(plan) else "none"}

    for cold, caches in ((False, "the caches as they were; --set cold=true measures it with empty ones"), (True, "empty caches")):
        result = run_ab("smoke-lora", A, B, Options(cold=cold), ScriptedBench(tmp_path, compiling).bench, pairs=4)
        assert result.compiling_pays_after_steps == pytest.approx(200)
        assert list(result.shown())[-1] == f"compiling pays off after 200 steps with {caches}"


def test_both_runs_of_a_pair_have_one_seed_and_each_pair_another(tmp_path):
    _, scripted = compare(tmp_path, drifting, pairs=3)
    # The arms take turns in going first.
    assert [point[0] for point in scripted.ran] == list("abbaab")
    runs = records_of_series(tmp_path)
    seeds = {run.study.point: run.plan.measurement.seed for run in runs}
    first = FACTS.workload("smoke-lora").seed
    for pair in (1, 2, 3):
        assert {seed for point, seed in seeds.items() if point.endswith(f"pair {pair}")} == {first + pair - 1}
    assert runs[-1].requested.seed == runs[-1].plan.measurement.seed


@pytest.mark.parametrize(("better", "said"), [(0.05, "accuracy: no significant difference: +5.0"), (0.2, "accuracy: B differs: +20.0")])
def test_accuracies_within_two_standard_errors_do_not_differ(tmp_path, better, said):
    result, _ = compare(tmp_path, lambda plan, ran: {**drifting(plan, ran), "accuracy": 0.7 + better * is_b(plan)}, pairs=3)
    assert said in "\n".join(result.shown())


def test_an_arm_that_does_not_fit_ends_it_without_a_verdict(tmp_path):
    result, scripted = compare(tmp_path, lambda plan, _ran: {"status": Status.OOM_HOST if is_b(plan) else Status.OK})
    assert len(scripted.ran) == 2
    assert result.exit_code is Exit.UNTRUSTWORTHY
    assert "oom_host" in result.ended


def fits_tokens(most):
    return lambda plan, _ran: {
        "status": Status.OK if plan.batch.micro_batch * plan.data.sequence_length <= most else Status.OOM_HOST,
        "steps": 3,
    }


def frontier(scripted, **question):
    return run_frontier("smoke-lora", Options(), scripted.bench, **question)


@given(st.integers(0, 3000), st.integers(1, 4000), st.integers(1, 4000))
def test_the_largest_that_fits_is_found_with_few_questions(edge, start, most):
    asked = []
    fits, fails = find_largest(lambda number: asked.append(number) or number <= edge, start, most)
    assert fits == (min(edge, most) or None)
    assert fails == (edge + 1 if edge < most else None)
    assert len(asked) == len(set(asked)) <= 26


def test_the_largest_micro_batch_and_the_first_that_failed_are_found(tmp_path):
    scripted = ScriptedBench(tmp_path, fits_tokens(128 * 11))
    search = frontier(scripted)
    assert search.ended is None
    (edge,) = search.edges
    assert (edge.sequence_length, edge.micro_batch, edge.first_failed) == (128, 11, "12 rows")
    assert edge.tries == len(scripted.ran) == 8
    assert edge.peak_memory_bytes > 0


def test_the_longest_sequence_is_found_within_the_models_context(tmp_path):
    search = frontier(ScriptedBench(tmp_path, fits_tokens(4 * 300)), over=Over.SEQUENCE_LENGTH)
    assert [(edge.sequence_length, edge.micro_batch, edge.first_failed) for edge in search.edges] == [(256, 4, "320 tokens")]
    unlimited = frontier(ScriptedBench(tmp_path / "all", fits_tokens(10**9)), over=Over.SEQUENCE_LENGTH)
    assert unlimited.edges[0].sequence_length == FACTS.model("tiny-llama").context_length


def test_a_failure_that_is_not_memory_ends_the_search_with_its_reason(tmp_path):
    failing = ScriptedBench(tmp_path / "other", lambda _plan, ran: {"status": Status.CRASH if ran else Status.OK, "steps": 3})
    assert "scripted crash" in frontier(failing).ended


def test_a_run_that_ends_above_the_limit_does_not_fit(tmp_path):
    # Each scripted run has a peak of half a GiB.
    below = frontier(ScriptedBench(tmp_path / "below", fits_tokens(1024)), limit_bytes=2**28)
    assert below.edges[0].micro_batch is None
    above = frontier(ScriptedBench(tmp_path / "above", fits_tokens(1024)), limit_bytes=2**30)
    assert above.edges[0].micro_batch == 8


TUNE_OPTIONS = Options(max_steps=120, probe=False)


@pytest.fixture(autouse=True)
def _losses_of_scripted_runs(monkeypatch):
    # Their loss is 2 in each step.
    real = type(FACTS).golden_losses

    def golden(facts, key):
        found = real(facts, key)
        return found and GoldenLosses.model_validate(found.model_dump() | {"losses": dict.fromkeys(found.losses, 2.0)})

    monkeypatch.setattr(type(FACTS), "golden_losses", golden)


def speed(*, most_rows=10**6, compile_gain=1.25):
    """Return a script: compiling and large micro-batches are faster, checkpointing is slower, and too many rows do not fit."""

    def script(plan, _ran):
        batch, model = plan.batch, plan.model
        rows = batch.micro_batch * (1 if model.gradient_checkpointing is Checkpointing.NONE else 0.5)
        if rows > most_rows:
            return {"status": Status.OOM_HOST}
        row_s = 0.02 * (1 + 1 / batch.micro_batch) / (compile_gain if model.compile == "blocks" else 1)
        row_s *= {"none": 1.0, "selective": 1.1, "full": 1.3}[model.gradient_checkpointing.value]
        row_s *= 2 if model.attention == "eager" else 1
        return {"step_s": row_s * batch.global_batch, "noise": 0.001, "steps": plan.measurement.max_steps}

    return script


def tuned(out, script, workload="smoke-lora", options=TUNE_OPTIONS, **more):
    scripted = ScriptedBench(out, script, make_machine(packages={"torch": "2.13.0", "bitsandbytes": "0.50.2"}))
    return run_tune(workload, options, scripted.bench, runs=3, **more), scripted


def test_the_fastest_settings_are_found_and_measured_beside_the_cards(tmp_path):
    result, scripted = tuned(tmp_path, speed())
    assert result.best == "compile=blocks"
    assert (result.complete, result.exit_code) == (True, Exit.OK)
    assert result.comparison.throughput.change.value == pytest.approx(0.25, abs=0.01)
    arms = [record for record in records_of_series(tmp_path) if record.study.kind == "ab"]
    assert sorted(record.division for record in arms) == [Division.STANDARD] * 3 + [Division.TUNED] * 3
    assert len(result.runs) == 6
    problems = [problem for path in tmp_path.rglob("*.json") for problem in judge(path, FACTS).problems]
    assert not [problem for problem in problems if problem.field.startswith("study")]
    assert len(scripted.ran) == len(set(scripted.ran))
    verdicts = {tried.settings: tried.verdict for tried in result.tries}
    assert verdicts["as given"] == "card"
    assert verdicts["attention=eager, compile=blocks"] == "no gain"
    assert verdicts["compile=blocks, fused_kernels=liger"] == verdicts["attention=flash_attention_3, compile=blocks"] == "excluded"
    # A CPU has fp8 products, and the script gives them no gain.
    assert verdicts["compile=blocks, frozen_weights=fp8"] == "no gain"
    reasons = [tried.reason for tried in result.tries if tried.verdict == "excluded"]
    assert len(reasons) == len(set(reasons))
    assert len(next(result.shown()).rows) == len(result.tries)


def test_a_smaller_micro_batch_is_chosen_where_the_cards_does_not_fit(tmp_path):
    result, _ = tuned(tmp_path, speed(most_rows=2, compile_gain=0.5))
    assert "gradient_checkpointing" in result.best or "batch.micro_batch=2, " in result.best or result.best.endswith("batch.micro_batch=2")
    assert result.comparison is None
    assert {record.division for record in records_of_series(tmp_path) if record.study.kind == "repeat"} == {Division.TUNED}
    assert result.tries[0].verdict == "does not fit"
    assert len(result.runs) == 3


@pytest.mark.parametrize(("asked", "best"), [("compile=none", "as given"), ("method=qlora", "compile=blocks")])
def test_what_the_user_sets_is_not_tried_and_four_bit_weights_are_compiled_too(tmp_path, asked, best):
    result, _ = tuned(tmp_path, speed(), options=TUNE_OPTIONS.having(overrides=(asked,)))
    assert asked.partition("=")[0] not in {tried.lever for tried in result.tries}
    assert result.best == best


class Clock:
    """A clock that only scripted trials advance."""

    def __init__(self, monkeypatch):
        self.now_s, self.limits_s = 0.0, []
        monkeypatch.setattr("tunemark.harness.studies.search.time.monotonic", lambda: self.now_s)

    def script(self, plan, ran):
        """Let a trial take as long as its record says; end it at its limit, as the watchdog does."""
        limit_s = plan.measurement.timeout_s
        made = speed()(plan, ran)
        if plan.measurement.max_steps != 8:
            return made
        takes_s = (30.0 if plan.model.attention == "eager" else 6.0) + made["step_s"] * made["steps"]
        self.limits_s.append(limit_s)
        self.now_s += min(takes_s, limit_s)
        return made if takes_s <= limit_s else {"status": Status.TIMEOUT}


def test_a_resumed_search_has_only_what_earlier_trials_left_of_the_budget(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    first, _ = tuned(tmp_path, clock.script, budget_s=42.0)
    assert not first.complete
    spent_s = sum(record.process.wall_s for record in records_of_series(tmp_path) if record.study.kind == "tune")
    assert 25.0 < spent_s < 42.0
    clock.now_s = 1000.0
    again, scripted = tuned(tmp_path, clock.script, budget_s=spent_s)
    assert (again.complete, scripted.ran) == (False, [])
    _, scripted = tuned(tmp_path, clock.script, budget_s=spent_s + 20.0)
    assert scripted.ran


def test_no_trial_may_take_longer_than_what_is_left_and_one_that_the_budget_ended_is_run_again(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    result, _ = tuned(tmp_path, clock.script, budget_s=60.0)
    assert clock.limits_s[0] == 60.0
    assert clock.limits_s == sorted(clock.limits_s, reverse=True)
    assert clock.now_s == pytest.approx(60.0)
    assert not result.complete
    (ended,) = (record.study.point for record in records_of_series(tmp_path) if record.outcome.status is Status.TIMEOUT)
    assert "attention=eager" in ended
    assert "attention=eager" not in [tried.settings for tried in result.tries]
    _, scripted = tuned(tmp_path, clock.script, budget_s=300.0)
    assert ended in scripted.ran
