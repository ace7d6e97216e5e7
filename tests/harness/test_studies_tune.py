"""Tuning: only free settings, one lever at a time, what cannot run left out, and the best measured beside the card's."""

import math
from dataclasses import replace

import pytest
from harness_making import make_machine
from study_making import FACTS, ScriptedBench, make_run

from tunemark.harness.plan.options import Options
from tunemark.harness.plan.resolve import resolve
from tunemark.harness.studies.report import tries_table
from tunemark.harness.studies.tune import LEVERS, SPLIT, Tuner, rate_of_try, run_tune, try_options, within
from tunemark.harness.vendors.protocol import vendor_of
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.workloads import GoldenLosses
from tunemark.schema.records.division import FREE_SETTINGS
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.records.trace import StepEvent
from tunemark.schema.records.upgrade import read_record
from tunemark.schema.vocabulary import Backend, Checkpointing, Division, Status

OPTIONS = Options(max_steps=120, probe=False)
CARD = FACTS.workload("smoke-lora")


@pytest.fixture(autouse=True)
def _losses_of_scripted_runs(monkeypatch):
    # Their loss is 2 in each step.
    real = type(FACTS).golden_losses

    def golden(facts, key):
        found = real(facts, key)
        return found and GoldenLosses.model_validate(found.model_dump() | {"losses": dict.fromkeys(found.losses, 2.0)})

    monkeypatch.setattr(type(FACTS), "golden_losses", golden)


def speed(*, most_rows=10**6, compile_gain=1.25, crash=None):
    """Return a script: compiling and large micro-batches are faster, checkpointing is slower, and too many rows do not fit."""

    def script(plan, _ran):
        batch, model = plan.batch, plan.model
        rows = batch.micro_batch * (1 if model.gradient_checkpointing is Checkpointing.NONE else 0.5)
        if rows > most_rows:
            return {"status": Status.OOM_HOST}
        if crash and getattr(model, crash[0]) == crash[1]:
            return {"status": Status.CRASH}
        row_s = 0.02 * (1 + 1 / batch.micro_batch) / (compile_gain if model.compile == "blocks" else 1)
        row_s *= {"none": 1.0, "selective": 1.1, "full": 1.3}[model.gradient_checkpointing.value]
        row_s *= 2 if model.attention == "eager" else 1
        return {"step_s": row_s * batch.global_batch, "noise": 0.001, "steps": plan.measurement.max_steps}

    return script


def tuned(out, script, workload="smoke-lora", options=OPTIONS, **more):
    scripted = ScriptedBench(out, script)
    return run_tune(workload, options, scripted.bench, runs=3, **more), scripted


def records(out):
    return [read_record(path.read_bytes()) for path in out.rglob("*.json")]


def test_every_lever_is_a_free_setting_of_the_tuned_division():
    assert set(LEVERS) | {"batch.micro_batch", "batch.gradient_accumulation"} <= set(FREE_SETTINGS)


def test_the_fastest_settings_are_found_and_measured_beside_the_cards(tmp_path):
    result, scripted = tuned(tmp_path, speed())
    assert result.best == "compile=blocks"
    assert (result.complete, result.exit_code) == (True, Exit.OK)
    assert result.comparison.throughput.change.value == pytest.approx(0.25, abs=0.01)
    arms = [record for record in records(tmp_path) if record.study.kind == "ab"]
    assert sorted(record.division for record in arms) == [Division.STANDARD] * 3 + [Division.TUNED] * 3
    assert len(result.runs) == 6
    assert len(scripted.ran) == len(set(scripted.ran))
    verdicts = {tried.settings: tried.verdict for tried in result.tries}
    assert verdicts["as given"] == "card"
    assert verdicts["attention=eager, compile=blocks"] == "no gain"
    assert verdicts["compile=blocks, fused_kernels=liger"] == verdicts["attention=flash_attention_3, compile=blocks"] == "excluded"
    # A CPU has fp8 products, and the script gives them no gain.
    assert verdicts["compile=blocks, frozen_weights=fp8"] == "no gain"
    reasons = [tried.reason for tried in result.tries if tried.verdict == "excluded"]
    assert len(reasons) == len(set(reasons))
    shown = tries_table(result.tries)
    assert shown.row_count == len(result.tries)


def test_the_global_batch_stays_that_of_the_card(tmp_path):
    options = replace(OPTIONS, overrides=())
    result, _ = tuned(tmp_path, speed(), "smoke-bert", options)
    tries = [record for record in records(tmp_path) if record.study.kind == "tune"]
    card = FACTS.workload("smoke-bert")
    rows = card.batch.micro_batch * card.batch.gradient_accumulation
    assert all(rows % record.plan.batch.micro_batch == 0 for record in tries)
    assert {record.plan.batch.global_batch for record in records(tmp_path) if record.study.kind == "ab"} == {rows}
    assert any(tried.lever == SPLIT for tried in result.tries)


def test_a_smaller_micro_batch_is_chosen_where_the_cards_does_not_fit(tmp_path):
    result, _ = tuned(tmp_path, speed(most_rows=2, compile_gain=0.5))
    assert "gradient_checkpointing" in result.best or "batch.micro_batch=2, " in result.best or result.best.endswith("batch.micro_batch=2")
    assert result.comparison is None
    assert {record.division for record in records(tmp_path) if record.study.kind == "repeat"} == {Division.TUNED}
    assert result.tries[0].verdict == "does not fit"
    assert len(result.runs) == 3


def test_without_a_faster_lever_the_cards_settings_are_measured(tmp_path):
    result, _ = tuned(tmp_path, speed(compile_gain=1.0))
    assert (result.best, result.comparison, result.exit_code) == ("as given", None, Exit.OK)
    assert {record.division for record in records(tmp_path) if record.study.kind == "repeat"} == {Division.STANDARD}


def test_a_crash_of_one_lever_does_not_end_the_search(tmp_path):
    result, _ = tuned(tmp_path, speed(crash=("compile", "blocks")))
    assert result.complete
    assert next(tried.verdict for tried in result.tries if tried.settings == "compile=blocks") == "failed"


def test_a_lever_that_the_user_sets_is_not_tried(tmp_path):
    result, _ = tuned(tmp_path, speed(), options=replace(OPTIONS, overrides=("compile=none",)))
    assert not [tried for tried in result.tries if tried.lever == "compile"]
    assert result.best == "as given"


def test_a_spent_budget_ends_the_search_and_a_larger_one_resumes_it(tmp_path):
    with pytest.raises(TunemarkError, match="spent before the first trial") as caught:
        tuned(tmp_path, speed(), budget_s=-1.0)
    assert caught.value.exit_code is Exit.USAGE
    whole, scripted = tuned(tmp_path, speed())
    assert scripted.ran
    again, resumed = tuned(tmp_path, speed(), budget_s=-1.0)
    assert resumed.ran == []
    assert (again.best, again.complete, again.tries) == (whole.best, True, whole.tries)


class Clock:
    """A clock that only scripted trials advance."""

    def __init__(self, monkeypatch):
        self.now_s, self.limits_s = 0.0, []
        monkeypatch.setattr("tunemark.harness.studies.tune.time.monotonic", lambda: self.now_s)

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
    spent_s = sum(record.process.wall_s for record in records(tmp_path) if record.study.kind == "tune")
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
    (ended,) = (record.study.point for record in records(tmp_path) if record.outcome.status is Status.TIMEOUT)
    assert "attention=eager" in ended
    assert "attention=eager" not in [tried.settings for tried in result.tries]
    _, scripted = tuned(tmp_path, clock.script, budget_s=300.0)
    assert ended in scripted.ran


def test_no_trial_begins_in_less_time_than_any_took(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    result, _ = tuned(tmp_path, clock.script, budget_s=16.0)
    assert (len(clock.limits_s), result.complete) == (2, False)
    assert clock.now_s < 15.0


def test_the_users_own_time_limit_of_a_run_stays_if_it_is_shorter():
    limits = [within(replace_timeout(_resolved(), own_s), left_s).plan.measurement.timeout_s for own_s, left_s in ((5.0, 9.0), (9.0, 5.0))]
    assert limits == [5.0, 5.0]
    assert within(_resolved(), math.inf).plan.measurement.timeout_s is None


def replace_timeout(resolved, seconds):
    rules = resolved.plan.measurement.model_copy(update={"timeout_s": seconds})
    return replace(resolved, plan=resolved.plan.model_copy(update={"measurement": rules}))


def levers_tried(tmp_path, workload, machine):
    scripted = ScriptedBench(tmp_path, speed(), machine)
    tuner = Tuner.of(workload, OPTIONS, scripted.bench, math.inf)
    tuner.search()
    return list(dict.fromkeys(tried.lever for tried in tuner.tries)), set(tuner.rates)


def test_memory_is_freed_and_used_before_the_other_levers_are_tried(tmp_path):
    order, _ = levers_tried(tmp_path, "smoke-bert", make_machine())
    assert order[:4] == ["card", "gradient_checkpointing", SPLIT, "compile"]


def test_kernels_that_hold_all_scores_are_tried_on_cpus_only(tmp_path):
    gpu = make_machine(
        backend=Backend.CUDA,
        devices=(DeviceFacts(name="NVIDIA H200", memory_bytes=140 * 2**30),),
        compute_dtypes=vendor_of(Backend.CUDA).formats,
        target="9.0",
    )
    for machine, tried in ((gpu, False), (make_machine(), True)):
        _, settings = levers_tried(tmp_path / machine.backend.value, "smoke-lora", machine)
        assert any("attention=eager" in name for name in settings) is tried
        assert any("attention=flash_attention_2" in name for name in settings)
        assert any("sdpa_kernel=math" in name for name in settings) is tried


def test_an_interrupted_search_resumes_at_the_try(tmp_path):
    def interrupted(plan, ran):
        return {"status": Status.INTERRUPTED} if ran == 2 else speed()(plan, ran)

    stopped, _ = tuned(tmp_path, interrupted)
    assert "the same command resumes there" in stopped.ended
    assert stopped.exit_code is Exit.UNTRUSTWORTHY
    result, scripted = tuned(tmp_path, speed())
    assert result.best == "compile=blocks"
    assert "gradient_checkpointing=selective, batch.gradient_accumulation=1" not in [
        point.partition(", memory")[0] for point in scripted.ran
    ]


def test_a_search_that_ends_within_a_lever_keeps_the_best_value_so_far(tmp_path):
    def interrupted(plan, ran):
        return {"status": Status.INTERRUPTED} if plan.model.compile == "model" else speed()(plan, ran)

    stopped, _ = tuned(tmp_path, interrupted)
    assert [tried.settings for tried in stopped.tries if tried.verdict == "kept"] == ["compile=blocks"]
    assert (stopped.best, stopped.complete) == ("compile=blocks", False)


def test_a_workload_that_cannot_run_here_is_refused(tmp_path):
    with pytest.raises(TunemarkError) as caught:
        tuned(tmp_path, speed(), "lora-70b")
    assert caught.value.exit_code is Exit.UNSUPPORTED


def test_the_rate_of_a_long_step_follows_from_its_micro_steps_and_its_update():
    run = make_run(_resolved(), step_s=1.0, steps=8, noise=0.0)
    ends = run.trace.completed_at_s
    starts = (run.trace.started_at_s, *ends[:-1])
    micro = tuple((start + 0.4, start + 0.8) for start in starts)
    timed = run.model_copy(update={"trace": run.trace.model_copy(update={"micro_completed_at_s": micro})})
    tokens = run.trace.real_tokens[0]
    # Two micro-steps of 0.4 s and an update of 0.2 s; with eight micro-steps, 3.2 s and 0.2 s.
    assert rate_of_try(timed, 1.0) == pytest.approx(tokens)
    assert rate_of_try(timed, 4.0) == pytest.approx(4 * tokens / 3.4)


def test_a_step_that_compiles_is_no_measure():
    run = make_run(_resolved(), step_s=1.0, steps=4, noise=0.0)
    slow = tuple(at + (9.0 if step >= 2 else 0.0) for step, at in enumerate(run.trace.completed_at_s))
    trace = run.trace.model_copy(update={"completed_at_s": slow})
    changed = run.model_copy(update={"trace": trace, "events": (StepEvent(step=3, kind="compile", amount=1),)})
    assert rate_of_try(changed, 1.0) == pytest.approx(run.trace.real_tokens[0])


def test_a_try_is_short_and_only_trains():
    short = try_options(FACTS.workload("smoke-bert"), Options(until_ci=0.01, max_train_s=60.0))
    assert (short.max_steps, short.max_train_s, short.until_ci, short.probe, short.gates) == (8, None, None, False, False)
    assert "data.evaluation_rows=0" in short.overrides


def _resolved():
    return resolve("smoke-lora", FACTS, make_machine(), OPTIONS)
