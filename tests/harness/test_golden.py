"""A run whose losses leave the reference band fails the gate, and its speed does not count."""

import pytest
import torch
from harness_making import finished, make_machine, run_of
from study_making import make_log

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.run.record import assemble
from tunemark.harness.vendors.cpu import Cpu
from tunemark.harness.worker.gates import matrix_rate
from tunemark.schema.derive import derive
from tunemark.schema.vocabulary import Backend, Dtype


@pytest.mark.parametrize(
    ("overrides", "options", "division", "passed", "detail"),
    [
        ((), {}, "standard", False, ""),
        (("compile=blocks",), {}, "tuned", False, ""),
        (("batch.micro_batch=2", "batch.gradient_accumulation=2"), {}, "tuned", False, ""),
        (("optimizer.learning_rate=0.1",), {}, "open", None, "changes settings"),
        ((), {"max_steps": 5}, "standard", None, "ended before"),
        ((), {"seed": 5}, "standard", None, "seed"),
    ],
)
def test_a_run_must_train_as_its_card_does_and_one_that_cannot_be_compared_says_why(facts, overrides, options, division, passed, detail):
    golden, machine = facts.golden_losses("smoke-lora"), make_machine()
    resolved = resolve("smoke-lora", facts, machine, Options(overrides=overrides, **{"max_steps": 60} | options))
    log = make_log(resolved.plan, steps=resolved.plan.measurement.max_steps, loss=1.3 * golden.losses[50])
    record = assemble(resolved, machine, finished(log), golden=golden)
    band = next(gate for gate in record.gates if gate.name == "loss_band")
    assert (record.division.value, band.passed) == (division, passed), band.detail
    assert detail in band.detail
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
