"""The whole job from a short run: exact where nothing varies, with an interval that covers the truth where it does."""

import math

import numpy as np
import pytest
from harness_making import planned
from hypothesis import given
from hypothesis import strategies as st
from study_making import make_run

from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.statistics.job_prediction import Job, predict


def short_run(workload="smoke-lora", **script):
    return make_run(planned(workload), **{"noise": 0.0, **script})


def test_a_job_of_even_steps_is_predicted_exactly():
    found = predict([short_run(step_s=0.1)], Job(steps=1000), usd_per_hour=3.6)
    assert found.step_time_s.value == pytest.approx(0.1)
    assert found.train_s.value == pytest.approx(100.0)
    # Import takes 3 s and loading 2 s.
    assert found.once_s == pytest.approx(5.0)
    assert found.wall_s.value == pytest.approx(105.0)
    assert found.usd.value == pytest.approx(0.105)


@given(st.integers(1, 10), st.integers(1, 100_000))
def test_samples_and_tokens_of_the_same_rows_are_the_same_job(epochs, samples):
    run = EVEN
    rows, length = run.plan.batch.global_batch, run.plan.data.sequence_length
    found = predict([run], Job(samples=samples, epochs=epochs))
    assert found.steps == math.ceil(samples / rows) * epochs
    assert found == predict([run], Job(tokens=samples * length, epochs=epochs))


EVEN = short_run()


def test_the_interval_covers_the_whole_job_in_nineteen_of_twenty():
    inside = 0
    for seed in range(100):
        found = predict([short_run(step_s=0.1, noise=0.05, seed=seed)], Job(steps=600))
        seen = 0.1 * (1 + np.random.default_rng(10_000 + seed).normal(0, 0.05, 600)).sum()
        inside += found.train_s.low <= seen <= found.train_s.high
    assert inside >= 90


def test_a_run_without_a_steady_window_predicts_nothing():
    with pytest.raises(TunemarkError, match="--steps 150") as caught:
        predict([short_run(steps=15)], Job(steps=1000))
    assert caught.value.exit_code is Exit.UNTRUSTWORTHY


def test_what_was_not_measured_is_said():
    assert any("did not evaluate" in caveat for caveat in predict([EVEN], Job(steps=5)).caveats)


def test_a_prediction_from_one_run_says_what_one_run_cannot_know():
    again = [short_run(step_s=0.1), short_run(step_s=0.11)]
    assert any("covers this run only" in caveat for caveat in predict(again[:1], Job(steps=600)).caveats)
    both = predict(again, Job(steps=600))
    assert not any("covers this run only" in caveat for caveat in both.caveats)
    assert both.step_time_s.value == pytest.approx(math.sqrt(0.1 * 0.11), rel=1e-3)
