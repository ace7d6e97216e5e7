"""A finished run is sent to the trackers that people have, through their own interfaces."""

import sys
from types import ModuleType

import pytest
from harness_making import FACTS
from study_making import make_run

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.run.report import refuse_missing_tracker, report, steps_of
from tunemark.schema.errors import TunemarkError


@pytest.fixture
def record(machine):
    return make_run(resolve("smoke-lora", FACTS, machine, Options()), steps=30)


class Told:
    """Notes what a tracker is given; it stands for its module, its run and their contexts."""

    def __init__(self):
        self.said = []

    def __getattr__(self, name):
        def called(*values, **named):
            self.said.append((name, values, named))
            return self

        return called

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    @property
    def summary(self):
        return self


@pytest.mark.parametrize(("tracker", "each"), [("wandb", "log"), ("mlflow", "log_metrics")])
def test_every_step_and_the_headline_numbers_are_sent(monkeypatch, record, tracker, each):
    told = Told()
    module = ModuleType(tracker)
    for name in ("init", "start_run", "log_params", "log_metrics"):
        setattr(module, name, getattr(told, name))
    monkeypatch.setitem(sys.modules, tracker, module)
    report(record, tracker, "a run")
    steps = [(values[0], named["step"]) for name, values, named in told.said if name == each and "step" in named]
    assert [step for _, step in steps] == list(range(1, 31))
    assert [metrics for metrics, _ in steps] == list(steps_of(record))
    assert any("tokens_per_s" in str(values) and "wall_s" in str(values) for _, values, _ in told.said)


def test_a_missing_tracker_is_refused_with_its_package_before_the_run():
    with pytest.raises(TunemarkError, match="pip install wandb"):
        refuse_missing_tracker("wandb")
