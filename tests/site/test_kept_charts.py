"""Charts are kept for the next build: the same rows are never drawn twice, and new rows are drawn."""

from pathlib import Path

import pytest

from tunemark.site import charts

STEPS = [{"step": number, "step_time_s": 0.5 + number / 100, "label": "steady", "loss": 3.0 - number / 10} for number in range(1, 6)]


def test_a_kept_chart_is_the_drawn_one_and_is_not_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = charts.loss_chart(STEPS)
    with charts.kept_in(tmp_path):
        assert charts.loss_chart(STEPS) == drawn
    monkeypatch.setattr(charts, "drawn", lambda *_: pytest.fail("the chart is drawn although it was kept"))
    with charts.kept_in(tmp_path):
        assert charts.loss_chart(STEPS) == drawn
        assert charts.loss_chart([row | {"loss": None} for row in STEPS]) is None


def test_other_rows_are_another_chart_and_unused_charts_are_removed(tmp_path: Path) -> None:
    with charts.kept_in(tmp_path):
        first = charts.step_time_chart(STEPS)
        assert charts.step_time_chart(STEPS[:3]) != first
    assert len(list(tmp_path.glob("*.json"))) == 2
    with charts.kept_in(tmp_path) as keep:
        charts.step_time_chart(STEPS)
    charts.forget_all_but(keep)
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_a_set_of_runs_is_part_of_the_key(tmp_path: Path) -> None:
    curve = [{"run": run, "seconds": 60.0, "samples": 10, "eval_loss": 0.9} for run in (1, 2)]
    with charts.kept_in(tmp_path):
        assert charts.loss_of_runs(curve, {1}, None) != charts.loss_of_runs(curve, {1, 2}, None)
