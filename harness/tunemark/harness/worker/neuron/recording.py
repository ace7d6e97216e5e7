"""Logs the steps of optimum-neuron's trainer as our own loop logs its own.

`on_step_end` fires when a step is recorded, before the lazy graph runs. So the step's loss and vote are put into that
graph there, and read when the next step begins and has been handed over: always one step behind, so that the device
never waits for the host, and with a full wait at both ends of training (definitions.md, 3). That the device is then
busy without a gap is something that only a device can prove.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from tunemark.harness.worker.levers import compiled_graphs, effective
from tunemark.harness.worker.loop import Done, Reading, Trainer, agree
from tunemark.harness.worker.models import NO_GRADIENTS, gradients_of
from tunemark.harness.worker.neuron.rows import Rows
from tunemark.schema.records.plan import Plan


class Recorder(TrainerCallback):  # type: ignore[misc] # transformers ships no types that are read here
    """A callback of the trainer that writes our log and ends training when told to."""

    def __init__(self, plan: Plan, trainer: Trainer, rows: Rows, sharding: str | None) -> None:
        self._plan, self._trainer, self._rows, self._sharding = plan, trainer, rows, sharding
        self._losses: list[Any] = []
        self._pending: deque[Done] = deque()
        self._last: tuple[Any, Any] | None = None
        self._reading: Reading | None = None
        self._started_s, self._graphs, self._steps = 0.0, 0, 0
        self.gradients = NO_GRADIENTS

    def watching(self, training_step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the trainer's `training_step`, which returns a micro-batch's part of the step's loss, with its results kept."""

        def watched(*arguments: Any, **settings: Any) -> Any:  # noqa: ANN401 - the trainer's own arguments
            loss = training_step(*arguments, **settings)
            self._losses.append(loss.detach())
            return loss

        return watched

    def on_train_begin(self, args: Any, state: Any, control: Any, **seen: Any) -> None:  # noqa: ANN401, ARG002 - the library's signature
        """Note what takes effect, wait for the device, and let measuring begin."""
        trainer = self._trainer
        model = getattr(seen["model"], "original_torch_module", seen["model"])
        group = "xla" if trainer.engine.processes > 1 else None
        trainer.log.event("effective", **effective(self._plan, model, seen["optimizer"], trainer.engine.processes, group, self._sharding))
        trainer.device.begin()
        self._started_s, self._graphs = trainer.device.now(), compiled_graphs()
        self._reading = Reading(trainer, self._pending, self._started_s, None)
        trainer.log.event("training", started_at_s=trainer.log.since_spawn(self._started_s))

    def on_step_begin(self, args: Any, state: Any, control: Any, **seen: Any) -> None:  # noqa: ANN401, ARG002 - the library's signature
        """Mark the step before, whose last graph has been handed over, and log those whose results are there."""
        self._mark()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **seen: Any) -> None:  # noqa: ANN401, ARG002 - the library's signature
        """Weigh the gradients once; no value of them is looked at."""
        if self.gradients.bytes is None:
            self.gradients = gradients_of(seen["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **seen: Any) -> None:  # noqa: ANN401, ARG002 - the library's signature
        """Put the step's loss and vote into its graph; end training once the first process has voted so.

        All processes have read the same steps here, so all end after the same one.
        """
        trainer = self._trainer
        self._steps += 1
        replicas = trainer.engine.processes // self._plan.device.pipeline_parallel
        wants = trainer.stop.wants(trainer.device.now() - self._started_s, self._steps)
        # Summed over all processes: of a pipeline's stages only the last has a loss, and tensor-parallel ones have the same.
        result = agree(trainer, sum(self._losses) / replicas, wants=wants)
        self._losses.clear()
        self._last = (trainer.device.host_copy(result), self._rows.take(trainer.gradient_accumulation))
        if trainer.strict:
            self._mark()
            trainer.device.synchronise()
        if trainer.votes and trainer.votes[-1]:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **seen: Any) -> None:  # noqa: ANN401, ARG002 - the library's signature
        """Wait for the device and log the rest."""
        self._mark()
        self._trainer.device.synchronise()
        if self._reading:
            self._reading.reached()

    def _mark(self) -> None:
        if self._last is not None:
            graphs = compiled_graphs()
            (result, counts), self._last = self._last, None
            self._pending.append(Done(self._trainer.device.stamp(), None, result, counts, graphs - self._graphs, None))
            self._graphs = graphs
        if self._reading:
            self._reading.reached()
