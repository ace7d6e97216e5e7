"""Samples are prepared ahead, in order, and training never waits for the device between its first and last step."""

import gc
import threading
import time
from pathlib import Path

import pytest
import torch
from fake_device import Fake, Syncs
from harness_making import make_machine, trained_on

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.run.run_log import LogReader, LogWriter
from tunemark.harness.vendors.cpu import Cpu
from tunemark.harness.worker.data import STEPS_AHEAD, MicroBatch, StepsAhead
from tunemark.harness.worker.loop import prepare, train, train_between_probes
from tunemark.schema.samples import Counts


def batch(number, values=1):
    counts = Counts(1, 1, 1, 1, 1)
    return MicroBatch({"input_ids": torch.full((values,), number)}, counts, counts)


def numbers(step):
    return [int(one.tensors["input_ids"][0]) for one in step]


def stream(count, taken=None, values=1):
    for number in range(count):
        if taken is not None:
            taken.append(number)
        yield batch(number, values)


def settle(taken):
    """Wait until the thread takes no more."""
    before = -1
    while len(taken) != before:
        before = len(taken)
        time.sleep(0.05)


def test_steps_come_in_order_and_the_last_one_may_be_incomplete():
    with StepsAhead(stream(7), 3, Cpu()) as steps:
        assert [numbers(steps.take()) for _ in range(4)] == [[0, 1, 2], [3, 4, 5], [6], []]
        assert steps.take() == []


def test_two_steps_are_prepared_while_one_trains():
    with StepsAhead(stream(100, taken := []), 4, Cpu()) as steps:
        steps.take()
        settle(taken)
        assert len(taken) == 4 * (STEPS_AHEAD + 1)


def test_an_error_in_the_samples_reaches_training_after_the_complete_steps():
    def broken():
        yield from stream(2)
        raise ValueError("row 3 has no text")

    with StepsAhead(broken(), 1, Cpu()) as steps:
        assert [numbers(steps.take()) for _ in range(2)] == [[0], [1]]
        with pytest.raises(ValueError, match="row 3 has no text"):
            steps.take()


def test_the_thread_ends_with_training_even_when_that_failed():
    def failing():
        with StepsAhead(stream(10**6), 1, Cpu()) as steps:
            steps.take()
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        failing()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("samples")]


def test_tensors_are_pinned_in_the_thread_for_a_device_that_copies_while_the_host_goes_on():
    made = []

    class Pinning(Cpu):
        pins_memory = True

        def adopt_thread(self):
            made.append(threading.current_thread().name)

    class Tensor:
        def pin_memory(self):
            made.append(f"pinned in {threading.current_thread().name}")
            return self

    counts = Counts(1, 1, 1, 1, 1)
    tensors = {"input_ids": Tensor(), "max_length_q": 5}
    with StepsAhead(iter([MicroBatch(tensors, counts, counts)]), 1, Pinning()) as steps:
        (one,) = steps.take()
    assert made == ["samples_0", "pinned in samples_0"]
    assert one.tensors["max_length_q"] == 5


# The loop


class Counting(Fake):
    """A scripted device that counts how often the host waits for it."""

    def __init__(self):
        super().__init__((0.1,), marks=3, lag=9)
        self.waited_after = []

    def synchronise(self):
        self.waited_after.append(len(self._marks))
        super().synchronise()


def trained(facts, folder, device, *settings, steps=6, workload="smoke-lora"):
    """Return the trainer and the batches of a small plan; the optimizer is fused, as on a GPU."""
    plan = resolve(workload, facts, make_machine(), Options(overrides=settings, probe=False)).plan
    model, stream = trained_on(plan, facts.model(plan.model.key), folder)
    log = LogWriter(folder / "log.jsonl", 0.0)
    trainer = prepare(plan, model, device, log, steps, Path("none"))
    for group in trainer.engine.optimizer.param_groups:
        group["fused"], group["foreach"] = True, False
    return trainer, stream


SMALL = ("data.sequence_length=16", "batch.micro_batch=1", "batch.gradient_accumulation=2")


@pytest.mark.parametrize("settings", [("gradient_checkpointing=full",), ("data.packing=true", "data.name=random-documents", "method=full")])
def test_the_host_waits_for_the_device_before_the_first_step_and_after_the_last_only(facts, tmp_path, settings):
    device = Counting()
    trainer, stream = trained(facts, tmp_path, device, *SMALL, *settings)
    with Syncs() as syncs:
        train(trainer, stream)
    assert device.waited_after == [0, 6 * 3]
    # The loss and the vote of each step, read once its mark is reached.
    assert syncs.seen == ["aten::_local_scalar_dense"] * 2 * 6
    log = LogReader(tmp_path / "log.jsonl").read()
    assert (len(log.steps), log.data_wait["seconds"] >= 0) == (6, True)
    assert log.trace().data_wait_s == log.data_wait["seconds"]


def test_the_garbage_collector_rests_during_training_and_works_again_after_it(facts, tmp_path):
    states = []

    class Watching(Counting):
        def stamp(self):
            states.append(gc.isenabled())
            return super().stamp()

    trainer, stream = trained(facts, tmp_path, Watching(), *SMALL)
    train_between_probes(trainer, stream)
    assert set(states) == {False}
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, 0)
