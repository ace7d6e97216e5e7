"""A verdict needs a difference that chance would not make, and equal arms are rarely called different."""

import numpy as np
import pytest
import scipy.stats

from tunemark.schema.records.trace import StepTrace
from tunemark.schema.statistics.comparison import ArmRun, arm_run, loss_after, paired_change

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([1.0], [-1.0])])
def test_what_cannot_be_paired_is_refused(a, b):
    with pytest.raises(ValueError, match=r"give|above 0"):
        paired_change(a, b)


@pytest.mark.parametrize("pairs", [3, 4, 9])
def test_the_interval_of_a_change_is_the_paired_t_interval_of_scipy(pairs):
    rng = np.random.default_rng(pairs)
    a, b = rng.uniform(0.3, 0.9, pairs), rng.uniform(0.3, 0.9, pairs)
    reference = scipy.stats.ttest_rel(np.log(b), np.log(a)).confidence_interval(0.95)
    found = paired_change(list(a), list(b))
    assert found.pairs == pairs
    assert found.change.value == pytest.approx(scipy.stats.gmean(b / a) - 1)
    assert (found.change.low, found.change.high) == pytest.approx((np.expm1(reference.low), np.expm1(reference.high)))


@pytest.mark.parametrize(
    "run", [ArmRun("a", "compile=blocks", 0), ArmRun("b", "compile=blocks", 1), ArmRun("b", "batch.micro_batch=4, compile=none", 12)]
)
def test_the_name_of_a_run_gives_its_arm_and_pair_back(run):
    assert arm_run(run.point) == run


def trace_with(losses):
    """Return steps of 8 tokens with the losses."""
    ones = (1,) * len(losses)
    ends = tuple(float(end) for end in range(1, len(losses) + 1))
    return StepTrace(
        completed_at_s=ends, slot_tokens=(8,) * len(losses), real_tokens=(8,) * len(losses),
        supervised_tokens=ones, documents=ones, rows=ones, loss=losses,
    )  # fmt: skip


def test_the_loss_after_tokens_is_the_mean_of_the_last_five_steps_or_of_fewer():
    trace = trace_with((9.0, 8.0, 6.0, 5.0, 3.0, 2.0, 1.0))
    assert loss_after(trace, 8 * 7) == pytest.approx(17 / 5)
    assert loss_after(trace, 8 * 2) == pytest.approx(8.5)
    assert loss_after(trace, 8 * 7, steps=2) == pytest.approx(1.5)
