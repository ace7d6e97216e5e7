"""A/B: interleaved runs, and a verdict only where the pairs support it."""

import numpy as np
import pytest
from study_making import FACTS, ScriptedBench

from tunemark.harness.plan.resolve import Options
from tunemark.harness.studies.ab_test import order, run_ab
from tunemark.harness.studies.report import verdict
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.vocabulary import Status

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


def test_the_arms_take_turns_in_going_first(tmp_path):
    _, scripted = compare(tmp_path, drifting, pairs=3)
    assert [point[0] for point in scripted.ran] == list("abbaab")
    assert order(1) == ("a", "b")


def test_a_difference_is_found_on_a_machine_that_drifts(tmp_path):
    result, _ = compare(tmp_path, lambda plan, ran: drifting(plan, ran, gain=0.2), pairs=6)
    assert result.throughput.verdict == "higher"
    assert result.throughput.change.low < 0.25 < result.throughput.change.high
    assert result.step_time.verdict == "lower"
    assert "B is faster" in "\n".join(verdict(result))
    assert "sign-flip" in "\n".join(verdict(result))


def test_a_setting_that_changes_the_loss_is_reported(tmp_path):
    result, _ = compare(tmp_path, lambda plan, ran: {**drifting(plan, ran), "loss": 2.5 if is_b(plan) else 2.0})
    assert result.loss_changed
    assert "not comparable" in "\n".join(verdict(result))


def compiling(plan, ran, *, cold_runs):
    """Return a run of an arm A, or of an arm B that compiles for 30 s with a cold cache and for 4 s with a warm one."""
    cold = ran < cold_runs
    took_s, cache = (30.0 if cold else 4.0, "cold" if cold else "warm") if is_b(plan) else (0.0, "none")
    return {"step_s": 0.08 if is_b(plan) else 0.1, "noise": 0.0, "compiled_s": took_s, "cache": cache}


def test_compilation_pays_off_after_its_overhead_over_the_gain_for_each_cache_state(tmp_path):
    result, _ = compare(tmp_path, lambda plan, ran: compiling(plan, ran, cold_runs=2), pairs=4)
    assert [(one.cache, one.pairs, one.steps) for one in result.break_even] == [
        ("cold", 1, pytest.approx(1500)),
        ("warm", 3, pytest.approx(200)),
    ]
    said = "\n".join(verdict(result))
    assert "compilation with a cold cache: pays off after 1,500 steps (1 pair)" in said
    assert "compilation with a warm cache: pays off after 200 steps (3 pairs)" in said


def test_both_runs_of_a_pair_have_one_seed_and_each_pair_another(tmp_path):
    result, _ = compare(tmp_path, drifting, pairs=3)
    seeds = {run.point: run.record.submission.plan.measurement.seed for run in result.runs}
    first = FACTS.workload("smoke-lora").seed
    for pair in (1, 2, 3):
        assert {seed for point, seed in seeds.items() if point.endswith(f"pair {pair}")} == {first + pair - 1}
    last = result.runs[-1].record.submission
    assert last.requested.seed == last.plan.measurement.seed


def test_a_loss_that_differs_from_seed_to_seed_gives_no_verdict_of_its_own(tmp_path):
    def script(plan, ran):
        chance = np.random.default_rng(1000 * plan.measurement.seed + is_b(plan)).normal(0, 0.02)
        return {**drifting(plan, ran), "loss": 2.0 * float(np.exp(chance))}

    result, _ = compare(tmp_path, script)
    assert result.loss.change.high - result.loss.change.low > 0.02
    assert result.loss.verdict == "no significant difference"


@pytest.mark.parametrize(("better", "said"), [(0.05, "accuracy: no significant difference: +5.0"), (0.2, "accuracy: B differs: +20.0")])
def test_accuracies_within_two_standard_errors_do_not_differ(tmp_path, better, said):
    result, _ = compare(tmp_path, lambda plan, ran: {**drifting(plan, ran), "accuracy": 0.7 + better * is_b(plan)}, pairs=3)
    assert said in "\n".join(verdict(result))


def test_an_arm_that_does_not_fit_ends_it_without_a_verdict(tmp_path):
    result, scripted = compare(tmp_path, lambda plan, _ran: {"status": Status.OOM_HOST if is_b(plan) else Status.OK})
    assert len(scripted.ran) == 2
    assert result.exit_code is Exit.UNTRUSTWORTHY
    assert "oom_host" in result.ended


def test_a_pair_with_a_crash_is_left_out(tmp_path):
    result, _ = compare(tmp_path, lambda plan, ran: {"status": Status.CRASH} if ran == 2 else drifting(plan, ran))
    assert result.pairs == 4


def test_a_stopped_comparison_resumes(tmp_path):
    compare(tmp_path, lambda plan, ran: {"status": Status.INTERRUPTED} if ran == 3 else drifting(plan, ran), pairs=3)
    result, scripted = compare(tmp_path, drifting, pairs=3)
    assert result.pairs == 3
    assert len(scripted.ran) == 3


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ("batch_size=4", "batch_size=4", "same plan"),
        ("batch_size", "batch_size=4", "give field=value"),
        ("compile=none", "compile=everything", "blocks"),
        ("compute=fp32", "compute=fp16", "use compute=bf16"),
    ],
)
def test_arms_that_cannot_be_compared_are_refused_before_anything_runs(tmp_path, a, b, said):
    scripted = ScriptedBench(tmp_path)
    with pytest.raises(TunemarkError) as caught:
        run_ab("smoke-lora", a, b, Options(), scripted.bench)
    assert said in str(caught.value)
    assert scripted.ran == []


def test_runs_too_short_for_a_verdict_are_refused_before_the_first(tmp_path):
    scripted = ScriptedBench(tmp_path, drifting)
    with pytest.raises(TunemarkError, match="give --steps 30 or more"):
        run_ab("smoke-lora", A, B, Options(max_steps=25), scripted.bench)
    assert not scripted.ran
