"""Step times, clocks and messages that no run has are refused; each case changes a committed submission, coherently."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tunemark.collector.gate.check import judge_bytes
from tunemark.collector.gate.cross_file_checks import Candidate, Subject, accept
from tunemark.collector.gate.outcome_checks import unlikely
from tunemark.collector.gate.trace_checks import _repeated_block
from tunemark.schema.derive import derive
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.base import canonical_json
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.trace import Study

ROOT = Path(__file__).parents[2]
FACTS = FactBase(ROOT / "data")
LORA = "smoke-lora/20261124-cpu-41a46f99b0e0.json"
BERT = "smoke-bert/20261124-cpu-70bc58de1ffa.json"
FSDP = "smoke-full/20261124-cpu-c46c5f3ac432.json"
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


def test_a_first_step_of_seconds_on_a_cpu_asks_for_a_second_run() -> None:
    for factor, doubted in ((5, False), (40, True)):
        content = retimed(submission(LORA), lambda times, factor=factor: np.where(order(times) == 0, factor * np.median(times), times))
        record = Submission.model_validate(content)
        doubts = [f"{doubt.value}: {doubt.fix}" for doubt in unlikely(record, derive(record))]
        assert any("for the first step" in doubt for doubt in doubts) == doubted


def test_a_run_that_ended_before_its_model_was_loaded_has_no_facts_of_it() -> None:
    crashed = submission("smoke-lora/20261124-cpu-3f49fae464be.json")
    assert said(crashed) == []
    assert any(problem.startswith("model: ") for problem in said(crashed | {"model": submission(LORA)["model"]}))


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


def no_kernel_time(content: Content) -> None:
    content["process"]["system_s"] = 0.0


def other_work_unknown(content: Content) -> None:
    content["utilisation"]["foreign_cpu_busy_mean"] = None


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
        (LORA, no_kernel_time, "process.system_s"),
        (LORA, other_work_unknown, "utilisation.foreign_cpu_busy_mean"),
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
    [
        lambda own: own,
        lambda own: [*own[1:], own[0]],
        lambda own: own[::-1],
        lambda own: [1.003 * value for value in own],
        lambda own: [value * (1 + 1e-4 * (step % 2)) for step, value in enumerate(own)],
    ],
    ids=["equal", "one step late", "in reverse", "scaled", "with noise"],
)
def test_each_process_measures_its_own_work(copied: Callable[[list[float]], list[float]]) -> None:
    content = submission(FSDP)
    content["ranks"][1]["own_work_s"] = copied(content["ranks"][0]["own_work_s"])
    assert any(problem.startswith("ranks.1.own_work_s") for problem in said(content))


def test_the_memory_of_all_processes_is_not_that_of_one() -> None:
    content = submission(FSDP)
    content["memory"]["host_rss"]["peak_bytes"] = content["ranks"][1]["host_rss_bytes"]
    assert any(problem.startswith("memory.host_rss.peak_bytes") for problem in said(content))


def at(content: Content, path: str, value: object) -> Content:
    *sections, last = path.split(".")
    part = content
    for section in sections:
        part = part[section]
    part[last] = value
    return content


def swapped(content: Content) -> Content:
    marks = {mark["phase"]: mark for mark in content["timeline"] if mark["phase"] in {"data", "load"}}
    marks["data"]["phase"], marks["load"]["phase"] = "load", "data"
    return content


def slowed(content: Content) -> Content:
    """Scale the own work of a rank."""
    content["ranks"][0]["own_work_s"] = [1.9 * own for own in content["ranks"][0]["own_work_s"]]
    return content


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        (LORA, swapped, "timeline: "),
        (FSDP, slowed, "ranks.0.own_work_s: "),
        (LORA, lambda content: at(at(content, "process.user_s", 0.0), "process.system_s", 55.0), "process.user_s: "),
        (
            LORA,
            lambda content: at(at(content, "process.compile_cache", None), "process.compile_cache_reason", "unreadable"),
            "process.compile_cache: ",
        ),
        (LORA, lambda content: at(content, "started_at", "2026-11-14T10:00:00.000001Z"), "started_at: "),
        (FSDP, lambda content: at(content, "gates.0.detail", "the model is sharded by zero3; run the workload on one device"), "gates."),
    ],
    ids=["phases", "own work", "kernel time", "cache", "before the harness", "another engine"],
)
def test_a_log_that_the_harness_cannot_write_is_refused(name: str, change: Callable[[Content], Content], expected: str) -> None:
    assert not any(problem.startswith(expected) for problem in said(submission(name)))
    content = submission(name)
    if expected == "gates.":
        content["gates"] = {str(index): gate for index, gate in enumerate(content["gates"])}
    changed = change(content)
    if expected == "gates.":
        changed["gates"] = list(changed["gates"].values())
    assert any(problem.startswith(expected) for problem in said(changed))


def test_the_second_of_two_runs_of_a_study_contradicts_the_first() -> None:
    def run(file: str, minute: int, study_id: str = "5" * 12, position: int = 1, settings: str = "7", workload: str = "w") -> Candidate:
        study = Study(kind="repeat", study_id=study_id, point=f"repeat {position}", position=position, settings_sha256=settings * 64)
        started_at = datetime(2026, 11, 21, 10, minute, 0, 1, tzinfo=UTC)
        return Candidate(file, (), file * 8, file * 12, subject=Subject(workload), study=study, started_at=started_at)

    first = run("a", 1)
    for other, field in (
        (run("b", 2, position=2), None),
        (run("b", 2, study_id="6" * 12), None),
        (run("b", 2, position=2, settings="8"), "study.settings_sha256"),
        (run("b", 2, position=2, workload="other"), "study.study_id"),
        (run("b", 2, position=1), "study.position"),
    ):
        found = accept([first, other], frozenset({"a"})).problems
        assert [problem.field for _, problem in found] == ([field] if field else [])


def test_a_commit_that_was_made_after_the_run_asks_for_a_second_one() -> None:
    run = Candidate("a", (), "1" * 32, "a" * 12, commit="c" * 40, started_at=datetime(2026, 11, 21, tzinfo=UTC))
    for day, notes in ((20, 0), (21, 0), (24, 1)):
        made_at = datetime(2026, 11, day, 12, tzinfo=UTC)
        assert len(accept([run], frozenset(), is_known=lambda _, made_at=made_at: {"c" * 40: made_at}).doubts) == notes


def test_blocks_of_losses_repeat_by_chance_only_where_they_have_few_values() -> None:
    random = np.random.default_rng(1)
    losses = random.normal(2.0, 0.1, 400)
    assert _repeated_block(losses) is None
    assert _repeated_block(np.tile(np.round(losses[:10], 1), 40)) is None
    assert _repeated_block(np.concatenate([losses[:300], losses[200:240]])) == (200, 300)
