"""A run in the worker: build the model, check, train, evaluate.

The training loop takes a step's micro-batches, forward, backward, update, mark, and reads the marks once they are reached.
"""

import gc
import math
import os
import resource
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import torch
from accelerate import Accelerator
from transformers import get_scheduler

from tunemark.harness.plan.resolve import Order
from tunemark.harness.run.run_log import MAXRSS_UNIT, STOP_FILE, LogWriter, rank_of_this_process
from tunemark.harness.vendors.protocol import AllocatorState, Device, Stamp, vendor_of
from tunemark.harness.worker import levers, models
from tunemark.harness.worker.data import MicroBatch, Samples, StepsAhead, micro_batches, to_device
from tunemark.harness.worker.engines import Engine, build_optimizer, fused_adamw, open_accelerator, save_weights, shapes_only, shard, wrap
from tunemark.harness.worker.levers import effective
from tunemark.schema.records.plan import Plan
from tunemark.schema.samples import Counts, Sample
from tunemark.schema.statistics.intervals import weighted_mean
from tunemark.schema.vocabulary import EAGER_UPDATE, Backend, Dtype, Padding, Phase, Strategy, Task

AHEAD = 2
"""Steps between the vote to stop and the last step. All processes stop after the same step."""
NAP_S = 1e-4
COLLECT_ALL_EVERY = 100
"""Steps between two looks for garbage among all objects that training has made; after each other step, among the step's own."""
OLDEST_GENERATION = 2
ENDLESS = 1_000_000
"""More steps than any run takes, for schedules and trainers that need a number."""


class LossNotFinite(ArithmeticError):
    """A step's loss is NaN or infinite: continuing would measure nothing."""


@dataclass(frozen=True, slots=True)
class SubmittedStep:
    """A step that was submitted to the device."""

    stamp: Stamp
    own: Stamp | None
    """Mark just before gradients are exchanged."""
    result: Any
    """Loss and vote, shape (2,), readable once the stamp is reached."""
    counts: Counts
    graphs: int
    """Graphs compiled in this step."""
    allocator: AllocatorState | None
    """State of the allocator after this step."""
    micro: tuple[Stamp, ...] = ()
    """Marks after each micro-batch; empty without gradient accumulation."""

    @property
    def marks(self) -> tuple[Stamp, ...]:
        """Return all marks in the order in which the device reaches them. DDP exchanges gradients in the last micro-batch."""
        own = () if self.own is None else (self.own,)
        return (*self.micro[:-1], *own, *self.micro[-1:], self.stamp)


@dataclass(slots=True)
class Trainer:
    """The objects that the loop works with; it logs steps as the device completes them, oldest first."""

    engine: Engine
    scheduler: Any
    device: Device
    log: LogWriter
    plan: Plan
    steps: int | None
    """Planned steps, which every process knows."""
    stop_file: Path
    rank: int = 0
    pending: deque[SubmittedStep] = field(default_factory=deque)
    reached_s: list[float] = field(default_factory=list)
    """Times of the marks of the oldest step that the device has reached."""
    before_s: float = 0.0
    """Time at which the last completed step ended."""
    allocator: AllocatorState | None = None
    """The most bytes that the allocator held so far, and its retries so far."""
    own_work_s: list[float] = field(default_factory=list)
    """Seconds of each step before gradients are exchanged; filled with several processes only."""
    votes: list[bool] = field(default_factory=list)
    """For each completed step, True if the first process wants to stop."""

    def begin(self) -> float:
        """Start measuring, and return the time."""
        self.device.begin()
        self.before_s, self.allocator = self.device.now(), self.device.allocator()
        self.log.event("training", started_at_s=self.log.since_spawn(self.before_s))
        return self.before_s

    def log_reached(self) -> None:
        """Log the steps that the device has completed, without waiting for the others."""
        log = self.log
        while self.pending and self._completed(self.pending[0]):
            done = self.pending.popleft()
            (*micro_s, completed_s), self.reached_s = self.reached_s, []
            if done.own is not None:
                self.own_work_s.append(micro_s.pop(max(0, len(done.micro) - 1)) - self.before_s)
            self.before_s = completed_s
            loss, vote = float(done.result[0]), float(done.result[1])
            self.votes.append(vote > 0)
            self._log_disturbances(done)
            finite = math.isfinite(loss)
            micro = {"micro_completed_at_s": [log.since_spawn(at_s) for at_s in micro_s]} if micro_s else {}
            log.event("step", completed_at_s=log.since_spawn(completed_s), loss=loss if finite else None, **done.counts._asdict(), **micro)
            if not finite:
                msg = f"the loss became {loss}"
                raise LossNotFinite(msg)

    def _log_disturbances(self, done: SubmittedStep) -> None:
        amounts = {"compile": done.graphs}
        if done.allocator is not None and self.allocator is not None:
            amounts["allocator_growth"] = done.allocator.held_bytes - self.allocator.held_bytes
            amounts["allocator_retry"] = done.allocator.retries - self.allocator.retries
            self.allocator = AllocatorState(*map(max, done.allocator, self.allocator))
        for what, amount in amounts.items():
            if amount > 0:
                self.log.event("disturbed", step=len(self.votes), what=what, amount=amount)

    def _completed(self, step: SubmittedStep) -> bool:
        """Return True once the device has reached all marks of a step. Each mark is asked for until it is reached, in order."""
        for mark in step.marks[len(self.reached_s) :]:
            at_s = self.device.reached(mark)
            if at_s is None:
                return False
            self.reached_s.append(at_s)
        return True

    def wants_to_stop(self, trained_s: float, done: int) -> bool:
        """Return True if this process wants to stop now, for the time limit or the parent's stop file.

        Clocks and files differ between processes, so they vote. The worker never judges its own steadiness: that would take time inside
        the window.
        """
        limits = self.plan.measurement
        late = limits.max_train_s is not None and trained_s >= limits.max_train_s and done >= limits.min_steps
        return late or os.path.exists(self.stop_file)  # noqa: PTH110 - each step asks, and this is the faster way

    def voted_to_stop(self, step: int) -> bool:
        """Return True if the first process wanted to stop. Several processes read the vote of the same earlier step, waiting for it."""
        if self.engine.processes == 1:
            return self.votes[-1:] == [True]
        while len(self.votes) < step - AHEAD:
            time.sleep(NAP_S)
            self.log_reached()
        return step > AHEAD and self.votes[step - AHEAD - 1]


def run_by_loop(order: Order, samples: Samples, device: Device, log: LogWriter, folder: Path) -> Trainer:
    """Build the model, check, train and evaluate; log the measurements. Return the objects to keep alive until the process ends."""
    plan, rank = order.resolved.plan, rank_of_this_process()
    drawn = models.drawn_on_device(plan, order.card, device)
    scratch, empty = folder / f"weights-{rank}", shapes_only(plan, rank, drawn=drawn)
    # DeepSpeed must know its settings before transformers builds a model that it shards.
    accelerator = open_accelerator(plan, device, load_sharded=True) if models.loaded_sharded(plan, order.card) else None
    model = models.build_model(plan, order.card, order.resolved.weights_from, samples.vocabulary, scratch, device, empty=empty)
    log.event("model", **models.model_facts(model))

    batches = micro_batches(plan, samples.training, rank, plan.batch.data_parallel)
    if plan.measurement.gates:
        # With the first micro-batch, which is then trained on too. The model moves to the device.
        log.phase(Phase.CHECK, device.now())
        first = next(batches)
        for gate in models.check(plan, model, device, first):
            log.event("gate", **gate)
        batches = chain([first], batches)
    # After the gates, so that compilation is part of the first step that needs it.
    levers.compile_model(plan, model)
    steps = plan.planned_steps(samples.training_rows)
    trainer = prepare(plan, model, device, log, steps, folder / STOP_FILE, accelerator=accelerator, drawn=drawn)
    train_between_probes(trainer, batches)
    log.event("model", **models.model_facts(trainer.engine.model, trainer.engine.optimizer))
    states = (value for state in trainer.engine.optimizer.state.values() for value in state.values())
    log.event("effective", optimizer_states_on=levers.places_of(states))

    if samples.evaluation:
        log.phase(Phase.EVAL, device.now())
        log.event("evaluation", split=samples.evaluation_split, **evaluate(plan, trainer.engine.model, device, samples.evaluation))
    if plan.measurement.save:
        log.phase(Phase.SAVE, device.now())
        log.event("saved", bytes=save_weights(trainer.engine, folder / "saved", rank=rank))
    log.phase(Phase.TEARDOWN, device.now())
    log.event("compile_cache", **levers.cache_state(plan))
    report_ranks(trainer)
    # Some runs abort at exit if they have not left the process group.
    trainer.engine.accelerator.end_training()
    return trainer


def prepare(
    plan: Plan,
    model: torch.nn.Module,
    device: Device,
    log: LogWriter,
    steps: int | None,
    stop_file: Path,
    *,
    accelerator: Accelerator | None = None,
    drawn: bool = False,
) -> Trainer:
    """Return the trainer: model, optimizer and schedule as the plan's strategy wraps them. Log the settings in effect.

    `drawn` says that the processes draw the weights of a sharded model themselves; `accelerator` had to be opened earlier.
    """
    # fp32 is fp32 unless the plan has tf32: a GPU would silently round its inputs otherwise.
    torch.set_float32_matmul_precision("high" if plan.precision.compute is Dtype.TF32 else "highest")
    # Preparation is a part of loading, even after the gates: weights are sharded, and updates compiled.
    log.phase(Phase.LOAD, device.now())
    accelerator = accelerator or open_accelerator(plan, device)
    if plan.device.strategy is Strategy.FSDP2:
        shard(plan, model, device, drawn=drawn)
    elif plan.optimizer.master_weights or plan.compiles_update:
        # Copies are made, and updates compiled, where the weights are; without gates the model is still on the host.
        model.to(device.torch_name)
    optimizer = build_optimizer(plan, model, fused=fused_adamw(device.torch_name))
    if getattr(optimizer, "eager_reason", None) is not None:
        log.event("note", source=EAGER_UPDATE, level="warning", message=optimizer.eager_reason)
    engine = wrap(plan, accelerator, model, optimizer)
    # A falling schedule needs an end; without one it is stretched over more steps than any run takes.
    scheduler = get_scheduler(plan.optimizer.scheduler, optimizer, plan.optimizer.warmup_steps, steps or ENDLESS)
    group = torch.distributed.get_backend() if engine.processes > 1 else None
    log.event("effective", **effective(plan, engine.model, optimizer, engine.processes, group, engine.sharding))
    # The number format is known after the first step, the place of the states after training.
    levers.watch_compute(engine.bare, levers.blocks(engine.bare), lambda seen: log.event("effective", compute=seen))
    return Trainer(engine, scheduler, device, log, plan, steps, stop_file, rank=rank_of_this_process())


def train_between_probes(trainer: Trainer, batches: Iterator[MicroBatch]) -> None:
    """Train, and measure the device's matrix rate before and after."""
    plan, device, log = trainer.plan, trainer.device, trainer.log

    def probe(when: str) -> None:
        if plan.measurement.probe:
            log.phase(Phase.PROBE, device.now())
            if rate := matrix_rate(device, plan.device.backend, plan.precision.compute):
                log.event("probe", dtype=rate["dtype"], size=rate["size"], **{f"{when}_flop_per_s": rate["flop_per_s"]})

    probe("before")
    with collector_at_rest():
        log.phase(Phase.TRAIN, device.now())
        try:
            train(trainer, batches)
        finally:
            log.event("memory", **device.memory())
    probe("after")


# The loop


def train(trainer: Trainer, batches: Iterator[MicroBatch]) -> None:
    """Train until the stop rule or the end of the batches; log each completed step, and once the size of the gradients.

    Raises LossNotFinite after logging a step with a loss that is not a finite number.
    """
    with StepsAhead(batches, trainer.plan.batch.gradient_accumulation, trainer.device) as steps:
        try:
            train_steps(trainer, steps)
        finally:
            trainer.log.event("data_wait", seconds=steps.waited_s)


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Keep the garbage collector from interrupting steps: what exists now is not examined, and what a step makes, at its end.

    Enter it before training is timed: it looks for garbage once, among the younger objects, which take no time.
    """
    gc.collect(OLDEST_GENERATION - 1)
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def train_steps(trainer: Trainer, steps: StepsAhead) -> None:
    """Train as `train` describes."""
    device, engine, step, compiling_s, graphs = trainer.device, trainer.engine, 0, 0.0, levers.compiled_graphs()
    started_s = step_started_s = trainer.begin()
    while step != trainer.steps and not trainer.voted_to_stop(step):
        micro_batches = steps.take()
        if not micro_batches:
            break
        loss, counts, own, micro = accumulate_gradients(trainer, micro_batches)
        engine.update()
        trainer.scheduler.step()
        if not step:
            trainer.log.event("model", **engine.gradients())
        engine.forget_gradients()
        step += 1
        graphs_before, graphs = graphs, levers.compiled_graphs()
        now_s = device.now()
        if graphs > graphs_before:
            # Compiling does not use up the time limit of training.
            compiling_s += now_s - step_started_s
        step_started_s = now_s
        result = device.host_copy(agree(trainer, loss, wants=trainer.wants_to_stop(now_s - started_s - compiling_s, step)))
        trainer.pending.append(SubmittedStep(device.stamp(), own, result, counts, graphs - graphs_before, device.allocator(), micro))
        if trainer.plan.measurement.timing == "strict":
            device.synchronise()
        trainer.log_reached()
        gc.collect(OLDEST_GENERATION if step % COLLECT_ALL_EVERY == 0 else 0)
    device.synchronise()
    trainer.log_reached()


def accumulate_gradients(trainer: Trainer, micro_batches: list[MicroBatch]) -> tuple[Any, Counts, Stamp | None, tuple[Stamp, ...]]:
    """Run forward and backward of a step.

    Return this process's share of its loss, the counts of all, the mark before the exchange, and those of the micro-batches.

    Each micro-batch is weighted by its supervised tokens among those of all processes, so that the gradient equals that of
    a single process with the same global batch.
    """
    engine, counts = trainer.engine, reduce(Counts.plus, (micro_batch.everywhere for micro_batch in micro_batches))
    share: Any = 0.0
    own: Stamp | None = None
    micro: list[Stamp] = []
    for number, micro_batch in enumerate(micro_batches, start=1):
        tensors = to_device(micro_batch.tensors, trainer.device.torch_name)
        if trainer.plan.model.compile != "none":
            levers.lengths_vary(tensors)
        last = number == len(micro_batches)
        if trainer.plan.model.compile_mode == "reduce-overhead":
            # The results of CUDA graphs live until the next micro-batch.
            torch.compiler.cudagraph_mark_step_begin()
        with engine.exchange(last=last):
            loss = engine.model(**tensors).loss
            weight = micro_batch.counts.supervised_tokens / counts.supervised_tokens
            if last and engine.processes > 1:
                own = trainer.device.stamp()
            # The engines average over processes; the weights already sum to one over all of them.
            engine.backward(loss * (weight * engine.processes), last=last)
        share = share + loss.detach() * weight
        if len(micro_batches) > 1 and trainer.device.free_marks:
            micro.append(trainer.device.stamp())
    return share, counts, own, tuple(micro)


def agree(trainer: Trainer, share: Any, *, wants: bool) -> Any:  # noqa: ANN401 - torch tensors
    """Return the loss over all processes and the first one's vote to stop, shape (2,), still on the device."""
    result = torch.stack([share.float(), torch.full_like(share, float(wants and trainer.rank == 0), dtype=torch.float32)])
    if trainer.engine.processes > 1:
        torch.distributed.all_reduce(result)
    return result


# Around training: the device's matrix rate, and held-out quality

ROUND_S = 0.02
"""Least time of a round of products: between rounds, the host waits for the device."""
PROBE_S = 0.5
"""Least time of all rounds: a device lowers its clocks for power and heat only after some tenths of a second."""


def matrix_rate(device: Device, backend: Backend, dtype: Dtype) -> dict[str, Any] | None:
    """Return `dtype`, `size` and `flop_per_s` of products of square matrices over at least half a second; None without memory for them.

    The rate is the median of all rounds, which a short burst or a short disturbance does not change. It reveals a device that
    is throttled, shared or slower than others of its kind. MAFU is measured against it (definitions#mfu).
    """
    size = vendor_of(backend).probe_size
    if size is None:
        return None
    rates: list[float] = []
    try:
        # A generator of its own: training is the same with and without a probe.
        place = device.torch_name if device.draws_weights else "cpu"
        own = torch.Generator(device=place).manual_seed(0)
        drawn = (torch.randn(size, size, generator=own, dtype=models.torch_dtype(dtype), device=place) for _ in range(2))
        left, right = (matrix.to(device.torch_name) for matrix in drawn)
        product = left @ right
        products, probed_s = 1, 0.0
        while probed_s < PROBE_S or not rates:
            device.synchronise()
            started_s = device.now()
            for _ in range(products):
                torch.matmul(left, right, out=product)
            device.synchronise()
            round_s = device.now() - started_s
            probed_s += round_s
            if round_s < ROUND_S:
                # Too short a round counts for the time, and the next one is longer.
                products = max(products + 1, round(products * ROUND_S / round_s))
            else:
                rates.append(2 * size**3 * products / round_s)
    except (RuntimeError, MemoryError):
        return None
    finally:
        left = right = product = None
        gc.collect()
    return {"dtype": dtype.value, "size": size, "flop_per_s": median(rates)}


def evaluate(plan: Plan, model: Any, device: Device, samples: list[Sample]) -> dict[str, Any]:  # noqa: ANN401 - a torch module
    """Return mean loss on held-out rows, weighted by supervised tokens, its standard error, and the accuracy of a classifier."""
    # One held-out document per row: packing would drop those that do not fill a row.
    if plan.data.packing:
        plan = plan.model_copy(update={"data": plan.data.model_copy(update={"packing": False, "padding": Padding.DYNAMIC})})
    classified = plan.model.task is Task.SEQUENCE_CLASSIFICATION
    models.switch_to_evaluation(model)
    losses, supervised, correct, rows = [], [], 0, 0
    with torch.no_grad():
        for batch in micro_batches(plan, iter(samples)):
            tensors = to_device(batch.tensors, device.torch_name)
            output = model(**tensors)
            losses.append(float(output.loss))
            supervised.append(batch.counts.supervised_tokens)
            rows += batch.counts.rows
            if classified:
                correct += int((output.logits.argmax(dim=-1) == tensors["labels"]).sum())
    loss, error = weighted_mean(losses, supervised)
    return {
        "rows": rows,
        "loss": loss if math.isfinite(loss) else None,
        "loss_standard_error": error if error is not None and math.isfinite(error) else None,
        "accuracy": correct / rows if classified else None,
    }


def report_ranks(trainer: Trainer) -> None:
    """Gather each process's measurements and log them, as `submission.ranks` holds them; nothing for a single process."""
    if trainer.engine.processes == 1:
        return
    own: dict[str, Any] = {"rank": trainer.rank, "own_work_s": trainer.own_work_s}
    own |= {f"device_{kind}_bytes": reading["peak_bytes"] for kind, reading in trainer.device.memory().items()}
    own["host_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT
    everyone: list[Any] = [None] * trainer.engine.processes
    torch.distributed.all_gather_object(everyone, own)
    for process in everyone:
        trainer.log.event("rank", **process)
