"""A disturbed run has warnings, and one that leaves the reference losses does not count. Records are assembled from scripted logs."""

import signal

import pytest
import torch
from harness_making import finished, make_machine, planned, run_of
from study_making import make_log

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.run.record import LOW_DISK_BYTES, assemble, outcome_of
from tunemark.harness.run.telemetry import Sample, Telemetry
from tunemark.harness.vendors.cpu import Cpu
from tunemark.harness.worker.loop import matrix_rate
from tunemark.schema.derive import BUSY_HOST_CORES, SLOW_RANK, derive
from tunemark.schema.records.plan import Measurement
from tunemark.schema.vocabulary import Backend, Dtype, Status, WarningKind

STEPS = 130
LOUD = {
    WarningKind.ALLOCATOR_RETRIES,
    WarningKind.LOW_DISK,
    WarningKind.BUSY_HOST,
    WarningKind.STRAGGLER,
    WarningKind.WIDE_INTERVAL,
    WarningKind.LOSS_ROSE,
}


PLAN = planned("smoke-full").plan


def warned(machine=None, devices=1, log=None, **changes):
    """Return the record's warnings of the kinds tested here, with their messages."""
    here = machine or make_machine()
    resolved = planned("smoke-full", machine=here, max_steps=STEPS, devices=devices)
    assert resolved.unsupported is None
    submission = assemble(resolved, here, finished(make_log(resolved.plan, steps=STEPS, **(log or {})), **changes))
    return {warned.kind: warned.message for warned in submission.warnings if warned.kind in LOUD}


def host(foreign_cores):
    """Return samples of a host on which other processes kept `foreign_cores` cores busy."""
    return Telemetry(samples=[Sample(0.2 * number, 10**9, 0, 1.0, foreign_cores) for number in range(100)])


def disk(free_bytes):
    return make_machine(free_disk_bytes=free_bytes)


def slow_rank(share):
    return {"log": {"own_work": (0.08, 0.08, 0.08 * (1 + share), 0.08)}, "devices": 4}


def test_an_undisturbed_run_has_none_of_these_warnings():
    assert warned(telemetry=host(0.0)) == {}
    assert warned(log={"own_work": (0.08, 0.08)}, devices=2) == {}


@pytest.mark.parametrize(
    ("kind", "quiet", "loud", "message"),
    [
        ("LOW_DISK", {"machine": disk(LOW_DISK_BYTES)}, {"machine": disk(LOW_DISK_BYTES - 1)}, "2.0 GiB of disk were free"),
        ("BUSY_HOST", {"telemetry": host(BUSY_HOST_CORES)}, {"telemetry": host(BUSY_HOST_CORES + 0.5)}, "0.8 of 4 cores busy"),
        ("STRAGGLER", slow_rank(SLOW_RANK / 2), slow_rank(2 * SLOW_RANK), "rank 2 needs 10% longer for its own work"),
        ("WIDE_INTERVAL", {"log": {"noise": 0.03}}, {"log": {"noise": 0.33}}, "the 95% interval of throughput is +-"),
        ("LOSS_ROSE", {"log": {"rise": 0.9}}, {"log": {"rise": 5.0}}, "the loss rose from 2.08 to 6.92: the training diverges"),
    ],
)
def test_a_disturbance_is_a_warning_from_its_limit_on(kind, quiet, loud, message):
    assert warned(**quiet) == {}
    ((found, said),) = warned(**loud).items()
    assert (found, message in said) == (WarningKind[kind], True)


@pytest.mark.parametrize(
    ("ending", "status", "message"),
    [
        ({"exit_code": -signal.SIGKILL, "host_oom_kills": 1}, Status.OOM_HOST, "the kernel killed the worker for lack of memory"),
        # Another process' end is no reason for this one's.
        ({"exit_code": -signal.SIGSEGV, "host_oom_kills": 1}, Status.CRASH, "the worker was killed by SIGSEGV"),
        ({"exit_code": -signal.SIGKILL, "host_oom_kills": 0}, Status.CRASH, "the worker was killed by SIGKILL"),
        (
            {"exit_code": 1, "host_oom_kills": 2, "output_tail": "  rank      : 3 (local_rank: 3)\n  exitcode  : -9 (pid: 7)\n"},
            Status.OOM_HOST,
            "the kernel killed rank 3 for lack of memory",
        ),
    ],
)
def test_a_worker_that_the_kernel_killed_for_memory_is_out_of_memory_and_no_crash(ending, status, message):
    log = make_log(PLAN, steps=5)
    log.ended = False
    found = outcome_of(finished(log, **ending), Measurement())
    assert (found.status, found.message, found.last_good_step) == (status, message, 5)
    assert ("micro_batch" in found.fix) is (status is Status.OOM_HOST)
    record = assemble(planned("smoke-full"), make_machine(), finished(log, **ending))
    assert record.outcome == found
    assert len(record.trace) == 5


@pytest.mark.parametrize(
    ("rules", "status"),
    [
        (Measurement(max_train_s=40.0), Status.TIMEOUT),
        (Measurement(max_train_s=40.0, max_steps=300), Status.TIMEOUT),
        # The planned steps were completed.
        (Measurement(max_train_s=40.0, max_steps=29), Status.OK),
        (Measurement(max_train_s=40.0, epochs=1), Status.OK),
        (Measurement(max_train_s=40.0, min_warmup_steps=9), Status.OK),
        (Measurement(), Status.OK),
    ],
)
def test_a_run_with_fewer_than_20_steady_steps_is_a_timeout_by_its_time_limit_and_else_not_rankable(rules, status):
    outcome = outcome_of(finished(make_log(PLAN, steps=29)), rules)
    assert outcome.status is status
    if status is Status.TIMEOUT:
        assert outcome.message == "the time limit of 40 s left 19 steps after warm-up; a result needs 20"
        assert "--set seconds" in outcome.fix
    elif rules.min_warmup_steps == 10:
        assert outcome.message == "not rankable: 19 steps after warm-up, and a rank needs 20"
        assert outcome.fix == "train 30 steps or more, or leave out --steps"
    else:
        assert (outcome.message, outcome.fix) == (None, None)


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
