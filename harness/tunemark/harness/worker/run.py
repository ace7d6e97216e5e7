"""One run from start to end inside of the worker process: phases in order, each marked in the log."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from tunemark.harness.devices import Device
from tunemark.harness.devices.protocol import DeviceUnavailable
from tunemark.harness.neuron_rules import by_trainer
from tunemark.harness.worker.log import Log
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import Backend, Dtype, Phase, Strategy

if TYPE_CHECKING:
    from tunemark.harness.worker.batches import MicroBatch
    from tunemark.harness.worker.loop import Trainer
    from tunemark.harness.worker.models import Gradients

ENDLESS = 1_000_000
"""Steps that no run takes."""


class Order(BaseModel):
    """What the parent hands to the worker, as a file. It holds paths of this machine and is not kept."""

    plan: Plan
    card: ModelCard
    device_name: str
    weights_from: str | None
    data_from: str | None
    spawned_at_s: float


def run(order: Order, device: Device, log: Log, folder: Path) -> "Trainer":
    """Load, check, train, evaluate, and log what was seen on the way. Returns what is to be held until the process ends."""
    from tunemark.harness.worker.batches import Share, load_samples, micro_batches  # noqa: PLC0415 - the import phase is over
    from tunemark.harness.worker.compile_cache import CacheWatch  # noqa: PLC0415
    from tunemark.harness.worker.evaluation import evaluate  # noqa: PLC0415
    from tunemark.harness.worker.levers import compile_model  # noqa: PLC0415
    from tunemark.harness.worker.models import build_model, model_facts, shape_of  # noqa: PLC0415
    from tunemark.harness.worker.observed import states_of  # noqa: PLC0415
    from tunemark.harness.worker.ranks import rank_of_this_process, report_ranks  # noqa: PLC0415
    from tunemark.harness.worker.saving import save  # noqa: PLC0415
    from tunemark.harness.worker.shards import shapes_only  # noqa: PLC0415
    from tunemark.harness.worker.stopping import planned_steps, stop_rule  # noqa: PLC0415

    if order.plan.device.backend is Backend.NEURON and by_trainer(order.plan):
        from tunemark.harness.worker.neuron.run import run as run_by_trainer  # noqa: PLC0415

        return run_by_trainer(order, device, log, folder)
    plan, share = order.plan, Share(rank_of_this_process(), order.plan.batch.data_parallel)
    _refuse_another_device(order, device)
    caches = CacheWatch.of(plan, folder)
    log.phase(Phase.DATA, device.now())
    samples = load_samples(plan, order.card.vocabulary, order.data_from, order.weights_from)
    log.phase(Phase.LOAD, device.now())
    scratch, empty = folder / f"weights-{share.rank}", shapes_only(plan, share.rank)
    model = build_model(plan, order.card, order.weights_from, samples.vocabulary, scratch, device, empty=empty)
    log.event("model", **model_facts(model))
    shape = shape_of(plan, order.card)
    batches = micro_batches(plan, samples.training, shape, share)
    if plan.measurement.gates:
        batches = check_first(plan, model, device, log, batches)
    # After the checks, so that compiling is part of the first step that needs it.
    compile_model(plan, model)
    trainer = prepare(plan, model, device, log, planned_steps(plan, samples.training_rows))
    trainer.stop, trainer.rank = stop_rule(plan, samples.training_rows, folder), share.rank
    gradients = train_between_probes(plan, trainer, batches)
    log.event("model", **model_facts(trainer.engine.model, trainer.engine.optimizer, gradients))
    log.event("effective", **_with(trainer.effective, optimizer_states_on=states_of(trainer.engine.optimizer)))
    if samples.evaluation:
        log.phase(Phase.EVAL, device.now())
        log.event("evaluation", split=samples.evaluation_split, **evaluate(plan, trainer.engine.model, shape, device, samples.evaluation))
    if plan.measurement.save:
        log.phase(Phase.SAVE, device.now())
        log.event("saved", bytes=save(trainer.engine, folder / "saved", rank=share.rank))
    log.phase(Phase.TEARDOWN, device.now())
    log.event("compile_cache", **caches.state())
    report_ranks(trainer, log)
    trainer.engine.close()
    return trainer


def _refuse_another_device(order: Order, device: Device) -> None:
    if device.name() not in {None, order.device_name}:
        msg = f"torch uses {device.name()!r}, the plan is for {order.device_name!r}; choose the device with CUDA_VISIBLE_DEVICES"
        raise DeviceUnavailable(msg)


def prepare(plan: Plan, model: Any, device: Device, log: Log, steps: int | None) -> "Trainer":  # noqa: ANN401 - a torch module
    """Return the trainer: model, optimizer and schedule as the plan's strategy wraps them. What took effect is logged."""
    import torch  # noqa: PLC0415
    from transformers import get_scheduler  # noqa: PLC0415

    from tunemark.harness.worker.engines import open_accelerator, wrap  # noqa: PLC0415
    from tunemark.harness.worker.levers import blocks, effective  # noqa: PLC0415
    from tunemark.harness.worker.loop import Trainer  # noqa: PLC0415
    from tunemark.harness.worker.observed import watch_compute  # noqa: PLC0415
    from tunemark.harness.worker.optimizers import build_optimizer  # noqa: PLC0415
    from tunemark.harness.worker.shards import shard  # noqa: PLC0415
    from tunemark.harness.worker.stopping import StopRule  # noqa: PLC0415

    # fp32 is fp32 unless the plan says tf32: a GPU would round its inputs silently otherwise.
    torch.set_float32_matmul_precision("high" if plan.precision.compute is Dtype.TF32 else "highest")
    accelerator = open_accelerator(plan, device)
    if plan.device.strategy is Strategy.FSDP2:
        # Handing out the weights is a part of loading, also where checks came between.
        log.phase(Phase.LOAD, device.now())
        shard(plan, model, device)
    optimizer = build_optimizer(plan, model, fused=device.torch_name.startswith("cuda"))
    engine = wrap(plan, accelerator, model, optimizer)
    # A schedule that falls needs an end; without one it is laid over more steps than any run takes.
    scheduler = get_scheduler(plan.optimizer.scheduler, optimizer, plan.optimizer.warmup_steps, steps or ENDLESS)
    group = torch.distributed.get_backend() if engine.processes > 1 else None
    seen = effective(plan, engine.model, optimizer, engine.processes, group, engine.sharding)
    log.event("effective", **seen)
    bare = engine.bare
    # What the first step shows is written over it, and where states live once there are some.
    watch_compute(bare, blocks(bare), lambda kind: log.event("effective", **_with(seen, compute=kind)))
    return Trainer(
        engine=engine,
        scheduler=scheduler,
        device=device,
        log=log,
        gradient_accumulation=plan.batch.gradient_accumulation,
        stop=StopRule(steps, None, Path()),
        strict=plan.measurement.timing == "strict",
        effective=seen,
    )


def _with(seen: dict[str, Any], **more: object) -> dict[str, Any]:
    """Return what takes effect with more of it, which later calls know too."""
    seen.update(more)
    return seen


def check_first(plan: Plan, model: Any, device: Device, log: Log, batches: Iterator["MicroBatch"]) -> Iterator["MicroBatch"]:  # noqa: ANN401
    """Check with the first micro-batch that training is right, and give it back to the stream. The model moves to the device."""
    from tunemark.harness.worker.gates import check  # noqa: PLC0415

    log.phase(Phase.CHECK, device.now())
    first = next(batches)
    for gate in check(plan, model, device, first):
        log.event("gate", **gate)
    return chain([first], batches)


def train_between_probes(plan: Plan, trainer: "Trainer", batches: Iterator["MicroBatch"]) -> "Gradients":
    """Train, with a look at the device's matrix rate before and after; return what the gradients weigh."""
    from tunemark.harness.worker.loop import train  # noqa: PLC0415
    from tunemark.harness.worker.probe import matrix_rate  # noqa: PLC0415

    device, log = trainer.device, trainer.log

    def probe(when: str) -> None:
        if plan.measurement.probe:
            log.phase(Phase.PROBE, device.now())
            log.event("probe", when=when, found=matrix_rate(device, plan.device.backend, plan.precision.compute))

    probe("before")
    log.phase(Phase.TRAIN, device.now())
    try:
        gradients = train(trainer, batches)
    finally:
        peaks = device.memory()
        log.event("memory", allocated=peaks.allocated.model_dump(), reserved=peaks.reserved.model_dump())
    probe("after")
    return gradients
