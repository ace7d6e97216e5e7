"""A run whose losses leave the reference band fails the gate, and its speed does not count."""

import pytest
import torch
from harness_making import finished, run_of
from study_making import make_log

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.run.record import assemble
from tunemark.harness.vendors.cpu import Cpu
from tunemark.harness.worker.gates import matrix_rate
from tunemark.schema.derive import derive
from tunemark.schema.measurement_warnings import loss_band
from tunemark.schema.records.trace import StepTrace
from tunemark.schema.vocabulary import Backend, Dtype

STEPS = 60


def trace_of(losses):
    ones = (1,) * len(losses)
    return StepTrace(
        completed_at_s=tuple(float(step) for step in range(1, len(losses) + 1)),
        slot_tokens=ones, real_tokens=ones, supervised_tokens=ones, documents=ones, rows=ones, loss=tuple(losses),
    )  # fmt: skip


def test_a_changed_or_short_run_is_not_compared_and_says_why(facts, machine):
    golden = facts.golden_losses("smoke-full")
    plan = resolve("smoke-full", facts, machine, Options()).plan
    assert "changes settings" in loss_band(golden, plan, trace_of([1.0] * STEPS), changed=True).detail
    assert "ended before" in loss_band(golden, plan, trace_of([1.0] * 5), changed=False).detail
    other = resolve("smoke-full", facts, machine, Options(seed=5)).plan
    assert "seed" in loss_band(golden, other, trace_of([1.0] * STEPS), changed=False).detail
    assert loss_band(None, plan, trace_of([1.0] * STEPS), changed=False).passed is None


@pytest.mark.parametrize(
    ("overrides", "division", "passed"),
    [
        ((), "standard", False),
        (("compile=blocks",), "tuned", False),
        (("batch.micro_batch=2", "batch.gradient_accumulation=2"), "tuned", False),
        (("optimizer.learning_rate=0.1",), "open", None),
    ],
)
def test_a_tuned_run_must_train_as_its_card_does_and_an_open_one_is_not_compared(facts, machine, overrides, division, passed):
    golden = facts.golden_losses("smoke-lora")
    resolved = resolve("smoke-lora", facts, machine, Options(overrides=overrides, max_steps=60))
    log = make_log(resolved.plan, steps=60, loss=1.3 * golden.losses[50])
    record = assemble(resolved, machine, finished(log), golden=golden)
    band = next(gate for gate in record.gates if gate.name == "loss_band")
    assert (record.division.value, band.passed) == (division, passed), band.detail
    assert not (band.passed is False and derive(record).rankable)


@pytest.mark.nightly
@pytest.mark.process
def test_another_split_of_the_batch_trains_on_the_same_rows_in_each_step(tmp_path):
    quick, split = ("probe=false", "gates=false"), ("batch.micro_batch=2", "batch.gradient_accumulation=2")
    _, card = run_of(tmp_path / "card", "smoke-lora", *quick, steps=12)
    _, tuned = run_of(tmp_path / "tuned", "smoke-lora", *quick, *split, steps=12)
    assert tuned.plan.batch.gradient_accumulation == 2
    assert card.trace.real_tokens == tuned.trace.real_tokens
    assert card.trace.loss == pytest.approx(tuned.trace.loss, rel=1e-4)


class Capped(Cpu):
    """A device on which a product takes 1 ms, and three times as long once the power cap of its driver applies, after 0.1 s."""

    def __init__(self):
        self.clock_s = 0.0

    def now(self):
        return self.clock_s


def test_the_probe_lasts_half_a_second_and_does_not_count_the_burst_before_a_power_cap(monkeypatch):
    device = Capped()

    def timed(*_, out):
        device.clock_s += 0.003 if device.clock_s > 0.1 else 0.001
        return out

    monkeypatch.setattr(torch, "matmul", timed)
    found = matrix_rate(device, Backend.CPU, Dtype.FP32)
    assert device.clock_s >= 0.5
    assert found["flop_per_s"] == pytest.approx(2 * 1024**3 / 0.003)
