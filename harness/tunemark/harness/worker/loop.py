"""The training loop: take a step's micro-batches, forward, backward, update, mark; read the marks once they are reached."""

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tunemark.harness.devices import Device, Stamp
from tunemark.harness.worker.batches import Counts, MicroBatch
from tunemark.harness.worker.log import Log
from tunemark.harness.worker.models import gradient_bytes


class LossNotFinite(ArithmeticError):
    """A step's loss is NaN or infinite: going on would measure nothing."""


@dataclass(frozen=True, slots=True)
class Trainer:
    """What the loop works with."""

    accelerator: Any
    model: Any
    optimizer: Any
    scheduler: Any
    device: Device
    log: Log
    gradient_accumulation: int
    max_grad_norm: float | None
    should_stop: Callable[[int, float], bool]
    """Given steps done and seconds trained: whether to stop."""


@dataclass(frozen=True, slots=True)
class Done:
    """A step whose work was handed to the device."""

    stamp: Stamp
    loss: Any
    """Zero-dimensional tensor that may be read once the stamp is reached."""
    counts: Counts


def train(trainer: Trainer, batches: Iterator[MicroBatch]) -> int:
    """Train until told to stop or the batches end; return the bytes of gradients. Each step is logged as it completes.

    Raises
    ------
    LossNotFinite
        After logging the step whose loss is not a finite number.

    """
    device, pending, gradients, step = trainer.device, deque[Done](), 0, 0
    device.begin()
    started_s = device.now()
    trainer.log.event("training", started_at_s=trainer.log.since_spawn(started_s))
    while not trainer.should_stop(step, device.now() - started_s):
        micro_batches = list(islice(batches, trainer.gradient_accumulation))
        if not micro_batches:
            break
        loss, counts = accumulate_gradients(trainer, micro_batches)
        if trainer.max_grad_norm is not None:
            trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), trainer.max_grad_norm)
        trainer.optimizer.step()
        trainer.scheduler.step()
        gradients = gradients or gradient_bytes(trainer.model)
        trainer.optimizer.zero_grad(set_to_none=True)
        loss = device.host_copy(loss)
        pending.append(Done(device.stamp(), loss, counts))
        step += 1
        log_reached(trainer, pending)
    device.synchronise()
    log_reached(trainer, pending)
    return gradients


def accumulate_gradients(trainer: Trainer, micro_batches: list[MicroBatch]) -> tuple[Any, Counts]:
    """Run forward and backward of a step; return its supervised-token-weighted loss, still on the device, and its counts."""
    counts = Counts()
    for micro_batch in micro_batches:
        counts = counts.plus(micro_batch.counts)
    step_loss: Any = 0.0
    for number, micro_batch in enumerate(micro_batches, start=1):
        tensors = {name: tensor.to(trainer.device.torch_name, non_blocking=True) for name, tensor in micro_batch.tensors.items()}
        # Ranks exchange gradients once a step, with the last micro-batch.
        last = number == len(micro_batches)
        with contextlib.nullcontext() if last else trainer.accelerator.no_sync(trainer.model):
            loss = trainer.model(**tensors).loss * (micro_batch.counts.supervised_tokens / counts.supervised_tokens)
            trainer.accelerator.backward(loss)
        step_loss = step_loss + loss.detach()
    return step_loss, counts


def log_reached(trainer: Trainer, pending: deque[Done]) -> None:
    """Log the steps that the device has completed, oldest first, without waiting for the others."""
    while pending and (completed_s := trainer.device.reached(pending[0].stamp)) is not None:
        done = pending.popleft()
        loss = float(done.loss)
        finite = math.isfinite(loss)
        trainer.log.event(
            "step", completed_at_s=trainer.log.since_spawn(completed_s), loss=loss if finite else None, **done.counts._asdict()
        )
        if not finite:
            msg = f"the loss became {loss}"
            raise LossNotFinite(msg)
