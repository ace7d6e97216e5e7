"""With a scripted device everything that is measured is known beforehand."""

import pytest
from fake_device import Fake
from harness_making import finished, make_machine, worked

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.run.launch import SteadinessJudge
from tunemark.harness.run.record import assemble
from tunemark.harness.run.run_log import LogReader, LogWriter, RunLog
from tunemark.harness.vendors.protocol import AllocatorState
from tunemark.harness.worker.engines import Engine
from tunemark.harness.worker.loop import SubmittedStep, Trainer
from tunemark.schema.derive import derive
from tunemark.schema.samples import Counts

WARM_UP = (2.0,) + (0.5,) * 9
STEADY_S = 0.25


@pytest.fixture(scope="module")
def submission(tmp_path_factory, facts):
    """A real worker run of smoke-full, 130 steps, on a device whose first ten steps are slow."""
    folder = tmp_path_factory.mktemp("worker")
    machine = make_machine()
    options = Options(max_steps=130, probe=False, overrides=("data.sequence_length=16", "batch.micro_batch=1"))
    resolved = resolve("smoke-full", facts, machine, options)
    # Marks of two micro-batches and of the step.
    device = Fake((*WARM_UP, STEADY_S), marks=3, peak_bytes=123_456)
    log = worked(resolved, facts, device, folder)
    return assemble(resolved, machine, finished(log, wall_s=device.now() + 1.0))


def test_micro_steps_of_an_accumulated_batch_are_stored_and_have_the_scripted_times(submission):
    trace, third = submission.trace, STEADY_S / 3
    assert {len(inside) for inside in trace.micro_completed_at_s} == {2}
    assert trace.micro_step_times_s(0, 1) == pytest.approx((2.0 / 3,) * 2)
    assert trace.micro_step_times_s(10, 130) == pytest.approx((third,) * 240)
    micro = derive(submission).micro_steps
    assert (micro.time.p50, micro.count, micro.steady) == (pytest.approx(third), 240, True)


def test_the_mark_before_gradients_are_exchanged_lies_inside_the_last_micro_batch(tmp_path):
    device, log = Fake((0.1,), lag=2), LogWriter(tmp_path / "log.jsonl", 0.0)
    trainer = Trainer(Engine(None, None, None, None), None, device, log, None, None, tmp_path / "stop")
    first, own, second, stamp = (device.stamp() for _ in range(4))
    trainer.pending.append(SubmittedStep(stamp, own, (1.0, 0.0), Counts(8, 8, 7, 1, 1), 0, None, (first, second)))
    trainer.log_reached()
    assert not trainer.own_work_s
    device.synchronise()
    trainer.log_reached()
    (step,) = LogReader(tmp_path / "log.jsonl").read().steps
    assert trainer.own_work_s == pytest.approx([0.2])
    assert (step["micro_completed_at_s"], step["completed_at_s"]) == (pytest.approx([0.1, 0.3]), pytest.approx(0.4))


def test_step_times_window_rate_and_phases_are_those_of_the_script(submission):
    assert submission.trace.step_times_s == pytest.approx(WARM_UP + (STEADY_S,) * 120)
    derived = derive(submission)
    window, rate, phases = derived.window, derived.tokens_per_s, derived.phases
    assert (window.first, window.stop, window.stable) == (10, 130, True)
    # Two micro-batches of one row of 16 tokens in each step.
    assert rate.value == pytest.approx(32 / STEADY_S)
    assert rate.low == pytest.approx(rate.high)
    assert sum(phases.values()) == pytest.approx(submission.process.wall_s)
    scripted = {"first_step": 2.0, "warmup": 4.5, "steady": 120 * STEADY_S}
    assert {name: phases[name] for name in scripted} == pytest.approx(scripted)


def test_compilation_and_the_growth_and_retries_of_the_allocator_are_logged_by_step(tmp_path):
    device, log = Fake((0.1,), lag=0), LogWriter(tmp_path / "log.jsonl", 0.0)
    trainer = Trainer(Engine(None, None, None, None), None, device, log, None, None, tmp_path / "stop")
    # Graphs of the step; bytes that the allocator holds after it, and its retries since the process began.
    seen = [(2, 10, 1), (0, 10, 1), (0, 30, 1), (0, 20, 4)]
    counts = Counts(8, 8, 7, 1, 1)
    for graphs, held, retries in seen:
        trainer.pending.append(SubmittedStep(device.stamp(), None, (1.0, 0.0), counts, graphs, AllocatorState(held, retries)))
    trainer.allocator = AllocatorState(10, 1)
    trainer.log_reached()
    events = [(event["step"], event["what"], event["amount"]) for event in LogReader(tmp_path / "log.jsonl").read().events]
    assert events == [(1, "compile", 2), (3, "allocator_growth", 20), (4, "allocator_retry", 3)]


def test_the_parent_stops_a_run_once_its_throughput_is_sure(submission):
    rules = submission.plan.measurement.model_copy(update={"until_relative_ci": 0.01})
    judge = SteadinessJudge(rules)
    steps = [{"completed_at_s": at, "loss": 1.0, **Counts(8, 8, 7, 1, 1)._asdict()} for at in submission.trace.completed_at_s]

    def sure(count):
        judge._next = 0
        return judge.sure(RunLog(started_at_s=submission.trace.started_at_s, steps=steps[:count]))

    assert not sure(60)
    assert sure(130)
