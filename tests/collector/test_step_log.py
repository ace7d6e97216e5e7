"""Step times, clocks and messages that no run has are refused; each case changes a committed submission, coherently."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tunemark.collector.gate.check import judge_bytes
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.base import canonical_json

ROOT = Path(__file__).parents[2]
FACTS = FactBase(ROOT / "data")
LORA = "smoke-lora/20261122-cpu-f97f7c8bd82f.json"
BERT = "smoke-bert/20261122-cpu-d2076b226ba5.json"
FSDP = "smoke-full/20261122-cpu-15aa6917cd6a.json"
Content = dict[str, Any]
Times = NDArray[np.float64]


def submission(name: str) -> Content:
    content: Content = json.loads((ROOT / "submissions" / name).read_bytes())
    return content


def said(content: Content) -> list[str]:
    return [str(problem) for problem in judge_bytes(canonical_json(content), Path("a.json"), FACTS).problems]


def phase(content: Content, name: str) -> Content:
    mark: Content = next(mark for mark in reversed(content["timeline"]) if mark["phase"] == name)
    return mark


def retimed(content: Content, change: Callable[[Times], Times]) -> Content:
    """Change the step times, scaled to the same sum so that all phases stay where they are."""
    trace = content["trace"]
    times = np.diff([trace["started_at_s"], *trace["completed_at_s"]])
    changed = change(times)
    trace["completed_at_s"] = (trace["started_at_s"] + np.cumsum(changed * times.sum() / changed.sum())).tolist()
    return content


def order(times: Times) -> Times:
    return np.arange(len(times), dtype=float)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (np.sort, "measured times scatter"),
        (lambda times: -np.sort(-times), "measured times scatter"),
        (lambda times: 1 + 0.02 * np.sin(order(times) / 9), "measured times scatter"),
        (lambda times: np.concatenate([times[:120], times[:120][::-1]]), "in the opposite order"),
        (lambda times: np.repeat(times[::2], 2), "in the same order"),
        (lambda times: np.tile(times[:60], 4), "in the same order"),
        (lambda times: np.where(order(times) == 0, np.median(times) / 12, times), "the first step fills caches"),
        (lambda times: np.where(order(times) % 7 == 3, times / 5, times), "single steps of the same work are never that much shorter"),
    ],
    ids=["ascending", "descending", "a sine", "a palindrome", "pairs", "a repeated part", "a short first step", "one in seven at a fifth"],
)
def test_step_times_that_no_clock_measures_are_refused(change: Callable[[Times], Times], expected: str) -> None:
    problems = said(retimed(submission(LORA), change))
    assert any(problem.startswith("trace.completed_at_s") and expected in problem for problem in problems)


def shifted(content: Content, by_s: float) -> None:
    """Move all but the first phase."""
    for mark in content["timeline"][1:]:
        mark["at_s"] += by_s
    content["trace"]["started_at_s"] += by_s
    content["trace"]["completed_at_s"] = [at_s + by_s for at_s in content["trace"]["completed_at_s"]]
    content["process"]["wall_s"] += by_s


def imported_at_once(content: Content) -> None:
    shifted(content, 0.05 - content["timeline"][1]["at_s"])


def checked_at_once(content: Content) -> None:
    phase(content, "check")["at_s"] = content["timeline"][4]["at_s"] - 1e-6


def evaluated_at_once(content: Content) -> None:
    phase(content, "eval")["at_s"] = phase(content, "teardown")["at_s"] - 1e-6


def ended_at_once(content: Content) -> None:
    content["process"]["wall_s"] = content["timeline"][-1]["at_s"]


def more_cpu_time(content: Content) -> None:
    content["process"]["user_s"] *= 2.55


def less_cpu_time(content: Content) -> None:
    content["process"]["user_s"] /= 3


def generated_test_split(content: Content) -> None:
    content["evaluation"]["split"] = "test"


def hardly_any_spread(content: Content) -> None:
    content["evaluation"]["loss_standard_error"] = 1e-6


def never_stopped(content: Content) -> None:
    content["plan"]["measurement"] |= {"max_steps": None, "max_train_s": 7_200.0, "until_relative_ci": 0.0001}


def more_warm_up(content: Content) -> None:
    content["plan"]["measurement"]["min_warmup_steps"] = 60


def at_least_500(content: Content) -> None:
    content["plan"]["measurement"]["min_steps"] = 500


def not_rankable(content: Content) -> None:
    content["outcome"]["message"] = "not rankable: 3 steps after warm-up, and a rank needs 20"


def kinder_warning(content: Content) -> None:
    warning = next(warning for warning in content["warnings"] if warning["kind"] == "busy_host")
    warning["message"] = warning["message"].replace("1.", "0.")


def wider_band(content: Content) -> None:
    gate = next(gate for gate in content["gates"] if gate["name"] == "loss_band")
    gate["detail"] = gate["detail"].replace("15%", "45%")


@pytest.mark.parametrize(
    ("name", "change", "field"),
    [
        (LORA, imported_at_once, "timeline.1.at_s"),
        (LORA, checked_at_once, "timeline"),
        (BERT, evaluated_at_once, "timeline"),
        (LORA, ended_at_once, "process.wall_s"),
        (BERT, more_cpu_time, "process.user_s"),
        (LORA, less_cpu_time, "process.user_s"),
        (BERT, generated_test_split, "evaluation.split"),
        (BERT, hardly_any_spread, "evaluation.loss_standard_error"),
        (LORA, never_stopped, "trace"),
        (LORA, more_warm_up, "plan.measurement.min_warmup_steps"),
        (LORA, at_least_500, "plan.measurement.min_steps"),
        (LORA, not_rankable, "outcome.message"),
        (BERT, kinder_warning, "warnings."),
        (BERT, wider_band, "gates.loss_band"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_no_run_records_is_refused(name: str, change: Callable[[Content], None], field: str) -> None:
    content = submission(name)
    assert said(content) == []
    change(content)
    assert any(problem.startswith(field) for problem in said(content)), said(content)


@pytest.mark.parametrize(
    "copied",
    [lambda own: own, lambda own: [*own[1:], own[0]], lambda own: own[::-1], lambda own: [1.003 * value for value in own]],
    ids=["equal", "one step late", "in reverse", "scaled"],
)
def test_each_process_measures_its_own_work(copied: Callable[[list[float]], list[float]]) -> None:
    content = submission(FSDP)
    content["ranks"][1]["own_work_s"] = copied(content["ranks"][0]["own_work_s"])
    assert any(problem.startswith("ranks.1.own_work_s") for problem in said(content))


def test_the_memory_of_all_processes_is_not_that_of_one() -> None:
    content = submission(FSDP)
    content["memory"]["host_rss"]["peak_bytes"] = content["ranks"][1]["host_rss_bytes"]
    assert any(problem.startswith("memory.host_rss.peak_bytes") for problem in said(content))
