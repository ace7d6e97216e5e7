"""Warnings state the figures that the trace gives."""

import pytest
from changed_bases import changed

from tunemark.collector.gate.warning_checks import missing_statistics, warning_problems
from tunemark.schema.derive import derive

WIDE = "the 95% interval of throughput is +-{}%"
FEW = "{} steps in {} s after warm-up; steady needs 100 steps or 60 s, and 20 steps"


def problems(name: str, kind: str, message: str) -> list[str]:
    submission = changed(name, {})
    listed = [{"kind": each.kind.value, "message": each.message} for each in submission.warnings if each.kind.value != kind]
    submission = changed(name, {"warnings": [*listed, {"kind": kind, "message": message}]})
    return [problem.fix for problem in warning_problems(submission, derive(submission)) if problem.field != "warnings"]


def test_the_warnings_of_earlier_versions_of_the_rules_are_accepted() -> None:
    for name in ("lora", "bert", "fsdp", "qlora", "h100", "ddp"):
        submission = changed(name, {})
        assert list(warning_problems(submission, derive(submission))) == []


def test_a_missing_warning_of_speed_asks_for_a_second_run() -> None:
    submission = changed("bert", {"warnings": []})
    shown = [str(problem) for problem in missing_statistics(submission, derive(submission))]
    for kind in ("not_stable", "wide_interval"):
        assert any(line.startswith(f"warnings: today's rules would add the warning {kind} (") for line in shown)


@pytest.mark.parametrize(
    ("name", "kind", "message", "expected"),
    [
        ("qlora", "wide_interval", WIDE.format("12.9"), 0),
        ("qlora", "wide_interval", WIDE.format("7.3"), 0),
        ("qlora", "wide_interval", WIDE.format("2.4"), 1),
        ("h100", "wide_interval", WIDE.format("9.0"), 1),
        ("bert", "wide_interval", WIDE.format("1.1"), 1),
        ("fsdp", "not_stable", FEW.format(50, "30.6"), 0),
        ("fsdp", "not_stable", FEW.format(50, "59.8"), 1),
        ("fsdp", "not_stable", FEW.format(20, "12.1"), 1),
        ("h100", "not_stable", FEW.format(110, "428.0"), 2),
        ("bert", "not_stable", "step time changes by -26.4% at step 216", 0),
        ("bert", "not_stable", "step time changes by -3.0% at step 216", 1),
        ("bert", "not_stable", "step time drifts by -0.4% over the window", 1),
        ("bert", "not_stable", "it was a little uneven", 2),
        ("ddp", "fallback", "update of the weights: not compiled", 0),
        ("h100", "fallback", "update of the weights: not compiled", 1),
    ],
)
def test_a_warning_of_speed_states_the_figures_of_the_steps(name: str, kind: str, message: str, expected: int) -> None:
    assert len(problems(name, kind, message)) == expected
