"""A worker is ended when it makes no progress, not because its work is long."""

from pathlib import Path

from tunemark.harness.run.launch import Watchdog
from tunemark.harness.run.run_log import RunLog
from tunemark.harness.worker.loop import StopRule
from tunemark.schema.records.plan import Measurement

RULES = Measurement(no_step_s=100.0)


def log_of(*step_times_s, phase="train"):
    ends, now = [], 10.0
    for seconds in step_times_s:
        now += seconds
        ends.append({"completed_at_s": now})
    return RunLog(phases=[{"phase": phase, "at_s": 1.0}], started_at_s=10.0, steps=ends)


def test_a_hang_after_some_steps_is_detected():
    watchdog, log = Watchdog(RULES, 0.0), log_of(1.0, 1.0, 1.0)
    assert watchdog.expired(log, 50.0) is None
    assert watchdog.expired(log, 149.0) is None
    assert watchdog.expired(log, 151.0) == "no step"


def test_loading_and_the_first_steps_which_compile_have_four_times_as_long():
    for log in (log_of(phase="load"), log_of(), log_of(300.0)):
        watchdog = Watchdog(RULES, 0.0)
        watchdog.expired(log, 0.0)
        assert watchdog.expired(log, 399.0) is None
        assert watchdog.expired(log, 401.0) == "no step"


def test_slow_steps_may_take_ten_times_the_longest():
    watchdog, log = Watchdog(RULES, 0.0), log_of(90.0, 90.0, 90.0)
    watchdog.expired(log, 0.0)
    assert watchdog.expired(log, 899.0) is None
    assert watchdog.expired(log, 901.0) == "no step"


def test_a_limit_of_all_the_time_holds_where_one_was_given():
    assert Watchdog(Measurement(timeout_s=60.0), 0.0).expired(log_of(1.0), 61.0) == "timeout"
    assert Watchdog(Measurement(), 0.0).expired(log_of(1.0), 1e9) is None


def test_a_limit_of_training_time_leaves_the_steps_that_can_be_ranked(tmp_path):
    rule = StopRule(None, 300.0, Path(tmp_path / "stop"), at_least=30)
    assert not rule.wants(2_400.0, 29)
    assert rule.wants(2_430.0, 30)
    rule.stop_file.touch()
    assert rule.wants(0.0, 1)
