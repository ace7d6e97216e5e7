"""Tuning: only free settings, one lever at a time, what cannot run left out, and the best measured beside the card's."""

from dataclasses import replace

import pytest
from harness_making import make_machine
from study_making import FACTS, ScriptedBench, make_run

from tunemark.harness.plan.options import Options
from tunemark.harness.plan.resolve import resolve
from tunemark.harness.studies.report import tries_table
from tunemark.harness.studies.tune import rate_of_try, run_tune
from tunemark.schema.errors import Exit
from tunemark.schema.facts.workloads import GoldenLosses
from tunemark.schema.records.upgrade import read_record
from tunemark.schema.vocabulary import Checkpointing, Division, Status

OPTIONS = Options(max_steps=120, probe=False)


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


def _resolved():
    return resolve("smoke-lora", FACTS, make_machine(), OPTIONS)
