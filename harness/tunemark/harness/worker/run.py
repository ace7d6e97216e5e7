"""One run from start to end inside of the worker process: phases in order, each marked in the log."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tunemark.harness.devices import Device
from tunemark.harness.devices.protocol import DeviceUnavailable
from tunemark.harness.worker.log import Log
from tunemark.schema.cards import ModelCard
from tunemark.schema.plan import Plan
from tunemark.schema.vocabulary import Dtype, Phase


class Order(BaseModel):
    """What the parent hands to the worker, as a file. It holds paths of this machine and is not kept."""

    plan: Plan
    card: ModelCard
    device_name: str
    weights_from: str | None
    data_from: str | None
    spawned_at_s: float


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that training needs."""

    accelerator: Any
    model: Any
    optimizer: Any
    scheduler: Any


def run(order: Order, device: Device, log: Log, folder: Path) -> None:
    """Load, train, evaluate, and log what the model weighs and which peaks the device saw."""
    from tunemark.harness.worker.batches import load_samples, micro_batches  # noqa: PLC0415 - the import phase is over
    from tunemark.harness.worker.evaluation import evaluate  # noqa: PLC0415
    from tunemark.harness.worker.loop import Trainer, train  # noqa: PLC0415
    from tunemark.harness.worker.models import build_model, model_facts  # noqa: PLC0415
    from tunemark.harness.worker.stopping import planned_steps, stop_rule  # noqa: PLC0415

    plan = order.plan
    if device.name() not in {None, order.device_name}:
        msg = f"torch uses {device.name()!r}, the plan is for {order.device_name!r}; choose the device with CUDA_VISIBLE_DEVICES"
        raise DeviceUnavailable(msg)
    log.phase(Phase.DATA, device.now())
    samples = load_samples(plan, order.card.vocabulary, order.data_from, order.weights_from)
    log.phase(Phase.LOAD, device.now())
    model = build_model(plan, order.card, order.weights_from, samples.vocabulary)
    log.event("model", **model_facts(model))
    steps = planned_steps(plan, samples.training_rows)
    prepared = prepare(plan, model, device, steps)
    log.phase(Phase.TRAIN, device.now())
    trainer = Trainer(
        accelerator=prepared.accelerator,
        model=prepared.model,
        optimizer=prepared.optimizer,
        scheduler=prepared.scheduler,
        device=device,
        log=log,
        gradient_accumulation=plan.batch.gradient_accumulation,
        max_grad_norm=plan.optimizer.max_grad_norm,
        should_stop=stop_rule(plan, samples.training_rows, folder),
    )
    try:
        gradients = train(trainer, micro_batches(plan, samples.training))
    finally:
        peaks = device.memory()
        log.event("memory", allocated=peaks.allocated.model_dump(), reserved=peaks.reserved.model_dump())
    log.event("model", **model_facts(model, prepared.optimizer, gradients))
    if samples.evaluation:
        log.phase(Phase.EVAL, device.now())
        log.event("evaluation", split=samples.evaluation_split, **evaluate(plan, prepared.model, device, samples.evaluation))
    log.phase(Phase.TEARDOWN, device.now())
    prepared.accelerator.end_training()


def prepare(plan: Plan, model: Any, device: Device, steps: int | None) -> Prepared:  # noqa: ANN401 - a torch module
    """Return model, optimizer and learning-rate schedule, prepared by accelerate.

    Raises
    ------
    RuntimeError
        When accelerate runs with another number of processes than the plan says.

    """
    import torch  # noqa: PLC0415

    # fp32 is fp32 unless the plan says tf32: a GPU would round its inputs silently otherwise.
    torch.set_float32_matmul_precision("high" if plan.precision.compute is Dtype.TF32 else "highest")
    from accelerate import Accelerator  # noqa: PLC0415
    from transformers import get_scheduler  # noqa: PLC0415

    autocast = plan.precision.compute in {Dtype.BF16, Dtype.FP16} and plan.precision.parameters is Dtype.FP32
    accelerator = Accelerator(cpu=device.torch_name == "cpu", mixed_precision=plan.precision.compute.value if autocast else "no")
    if accelerator.num_processes != plan.batch.data_parallel:
        msg = f"accelerate runs {accelerator.num_processes} processes, the plan has {plan.batch.data_parallel}"
        raise RuntimeError(msg)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        trainable, lr=plan.optimizer.learning_rate, weight_decay=plan.optimizer.weight_decay, fused=device.torch_name.startswith("cuda")
    )
    # A schedule that falls needs an end; without one it is laid over more steps than any run takes.
    scheduler = get_scheduler(plan.optimizer.scheduler, optimizer, num_warmup_steps=0, num_training_steps=steps or 1_000_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        prepared_model, prepared_optimizer = accelerator.prepare(model, optimizer)
    return Prepared(accelerator, prepared_model, prepared_optimizer, scheduler)
