"""When the worker stops. It never judges its own steadiness: that would cost time inside of the window."""

import math
import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from tunemark.harness.run.run_log import LogWriter
from tunemark.harness.vendors import Device, Stamp
from tunemark.harness.worker.data import Counts, MicroBatch
from tunemark.harness.worker.engines import Engine
from tunemark.harness.worker.gates import to_device
from tunemark.harness.worker.levers import compiled_graphs
from tunemark.harness.worker.models import NO_GRADIENTS, Gradients
from tunemark.schema.records.plan import Plan

STOP_FILE = "stop"
"""The parent, which reads the log and judges, makes this file to end training."""


@dataclass(frozen=True, slots=True)
class StopRule:
    """Planned steps, the time limit, or the parent's word, whichever is first."""

    steps: int | None
    """Every process knows these by itself."""
    seconds: float | None
    told: Path
    at_least: int = 0
    """Steps before which time alone ends nothing."""

    def planned(self, done: int) -> bool:
        """Return whether all planned steps are done."""
        return self.steps is not None and done >= self.steps

    def wants(self, trained_s: float, done: int) -> bool:
        """Return whether this process wants to stop now: clocks and files are not the same to all, so several processes vote."""
        late = self.seconds is not None and trained_s >= self.seconds and done >= self.at_least
        return late or os.path.exists(self.told)  # noqa: PTH110 - each step asks, and this is the quicker way


def planned_steps(plan: Plan, training_rows: int | None) -> int | None:
    """Return the number of optimizer steps that a plan asks for; None when only time or steadiness end it."""
    limits = []
    if plan.measurement.max_steps is not None:
        limits.append(plan.measurement.max_steps)
    if plan.measurement.epochs is not None:
        if training_rows is None:
            msg = "epochs need a data set with an end; give data.training_rows, a file or a hub data set"
            raise ValueError(msg)
        limits.append(math.ceil(training_rows * plan.measurement.epochs / plan.batch.global_batch))
    return min(limits) if limits else None


def stop_rule(plan: Plan, training_rows: int | None, folder: Path) -> StopRule:
    """Return the rule of a plan."""
    rules = plan.measurement
    return StopRule(planned_steps(plan, training_rows), rules.max_train_s, folder / STOP_FILE, rules.min_steps)


# MOVE: was tunemark.harness.worker.loop: The training loop: take a step's micro-batches, forward, backward, update, mark; read the marks once they are reached.

AHEAD = 2
"""Steps that processes may be ahead of the one whose vote ends training: all stop after the same step."""
NAP_S = 1e-4


class LossNotFinite(ArithmeticError):
    """A step's loss is NaN or infinite: going on would measure nothing."""


@dataclass(slots=True)
class Trainer:
    """What the loop works with."""

    engine: Engine
    scheduler: Any
    device: Device
    log: LogWriter
    gradient_accumulation: int
    stop: StopRule
    rank: int = 0
    strict: bool = False
    """Wait for the device after each step."""
    effective: dict[str, Any] = field(default_factory=dict)
    """What was seen of the levers, as `submission.effective` holds it."""
    own_work_s: list[float] = field(default_factory=list)
    """Of each step, seconds before gradients are exchanged; filled with several processes only."""
    votes: list[bool] = field(default_factory=list)
    """Of each completed step, whether the first process wants to stop."""


@dataclass(frozen=True, slots=True)
class Done:
    """A step whose work was handed to the device."""

    stamp: Stamp
    own: Stamp | None
    """Just before gradients are exchanged."""
    result: Any
    """Loss and vote, shape (2,), that may be read once the stamp is reached."""
    counts: Counts
    graphs: int
    """Graphs that were compiled in it."""
    held_bytes: int | None
    """What the allocator held after it."""


def train(trainer: Trainer, batches: Iterator[MicroBatch]) -> Gradients:
    """Train until told to stop or the batches end; return what the gradients weigh. Each step is logged as it completes.

    Raises
    ------
    LossNotFinite
        After logging the step whose loss is not a finite number.

    """
    device, engine, pending, gradients, step = trainer.device, trainer.engine, deque[Done](), NO_GRADIENTS, 0
    device.begin()
    started_s = device.now()
    graphs = compiled_graphs()
    reading = Reading(trainer, pending, started_s, device.held_bytes())
    trainer.log.event("training", started_at_s=trainer.log.since_spawn(started_s))
    while not trainer.stop.planned(step) and not reading.voted_to_stop(step):
        micro_batches = list(islice(batches, trainer.gradient_accumulation))
        if not micro_batches:
            break
        loss, counts, own = accumulate_gradients(trainer, micro_batches)
        engine.update()
        trainer.scheduler.step()
        if not step:
            gradients = engine.gradients()
        engine.forget_gradients()
        step += 1
        result = device.host_copy(agree(trainer, loss, wants=trainer.stop.wants(device.now() - started_s, step)))
        graphs_before, graphs = graphs, compiled_graphs()
        pending.append(Done(device.stamp(), own, result, counts, graphs - graphs_before, device.held_bytes()))
        if trainer.strict:
            device.synchronise()
        reading.reached()
    device.synchronise()
    reading.reached()
    return gradients


def accumulate_gradients(trainer: Trainer, micro_batches: list[MicroBatch]) -> tuple[Any, Counts, Stamp | None]:
    """Run forward and backward of a step; return this process' share of its loss, the counts of all, and the mark before the exchange.

    Each micro-batch weighs by its supervised tokens among those of all processes, so that the gradient is the one that
    a single process with the same global batch would have.
    """
    counts, engine = Counts(), trainer.engine
    for micro_batch in micro_batches:
        counts = counts.plus(micro_batch.everywhere)
    share: Any = 0.0
    own: Stamp | None = None
    for number, micro_batch in enumerate(micro_batches, start=1):
        tensors = to_device(micro_batch.tensors, trainer.device.torch_name)
        last = number == len(micro_batches)
        with engine.exchange(last=last):
            loss = engine.model(**tensors).loss
            weight = micro_batch.counts.supervised_tokens / counts.supervised_tokens
            if last and engine.processes > 1:
                own = trainer.device.stamp()
            # The engines average over processes; the weights already sum to one over all of them.
            engine.backward(loss * (weight * engine.processes), last=last)
        share = share + loss.detach() * weight
    return share, counts, own


def agree(trainer: Trainer, share: Any, *, wants: bool) -> Any:  # noqa: ANN401 - torch tensors
    """Return the loss over all processes and the first one's vote to stop, shape (2,), still on the device."""
    import torch  # noqa: PLC0415

    result = torch.stack([share.float(), torch.full_like(share, float(wants and trainer.rank == 0), dtype=torch.float32)])
    if trainer.engine.processes > 1:
        torch.distributed.all_reduce(result)
    return result


@dataclass(slots=True)
class Reading:
    """Takes in steps as the device completes them, oldest first."""

    trainer: Trainer
    pending: deque[Done]
    before_s: float
    held_bytes: int | None

    def reached(self) -> None:
        """Log the steps that the device has completed, without waiting for the others."""
        device, log = self.trainer.device, self.trainer.log
        while self.pending:
            done = self.pending[0]
            own_s = None if done.own is None else device.reached(done.own)
            if done.own is not None and own_s is None:
                return
            completed_s = device.reached(done.stamp)
            if completed_s is None:
                return
            self.pending.popleft()
            if own_s is not None:
                self.trainer.own_work_s.append(own_s - self.before_s)
            self.before_s = completed_s
            loss, vote = float(done.result[0]), float(done.result[1])
            self.trainer.votes.append(vote > 0)
            self._events(done)
            finite = math.isfinite(loss)
            log.event("step", completed_at_s=log.since_spawn(completed_s), loss=loss if finite else None, **done.counts._asdict())
            if not finite:
                msg = f"the loss became {loss}"
                raise LossNotFinite(msg)

    def _events(self, done: Done) -> None:
        step = len(self.trainer.votes)
        if done.graphs:
            self.trainer.log.event("disturbed", step=step, what="compile", amount=done.graphs)
        if done.held_bytes is not None and self.held_bytes is not None and done.held_bytes > self.held_bytes:
            self.trainer.log.event("disturbed", step=step, what="allocator_growth", amount=done.held_bytes - self.held_bytes)
            self.held_bytes = done.held_bytes

    def voted_to_stop(self, step: int) -> bool:
        """Return whether the first process wanted to stop; several look at the vote of the same earlier step, waiting for it."""
        ahead = AHEAD if self.trainer.engine.processes > 1 else 0
        votes = self.trainer.votes
        while ahead and len(votes) < step - ahead:
            time.sleep(NAP_S)
            self.reached()
        return step > ahead and votes[step - ahead - 1] if ahead else bool(votes) and votes[-1]
