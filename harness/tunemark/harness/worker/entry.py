"""The worker process: `python -m tunemark.harness.worker.entry FOLDER`, with an order in the folder.

Loads, checks, trains and evaluates, and logs each phase. The last line of the log is the end or the failure. Heavy imports
are inside functions, since the time they take is the phase `import`.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tunemark.harness.run.run_log import LOG_FILE, ORDER_FILE, PARENT, LogWriter, Order, describe, rank_of_this_process
from tunemark.harness.vendors.protocol import Device, DeviceUnavailable, vendor_of
from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import COMPILED_UPDATE, EAGER_UPDATE, Backend, Dtype, Phase, Strategy

if TYPE_CHECKING:
    from tunemark.harness.worker.data import MicroBatch
    from tunemark.harness.worker.loop import StopRule, Trainer
    from tunemark.harness.worker.models import Gradients

PARENT_CHECK_S = 1.0


def main() -> int:
    """Run the order in the folder; return the exit code."""
    end_with_parent(int(os.environ.get(PARENT, "0")))
    # An interactive Ctrl-C reaches the parent, which ends this process and still writes its record.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    folder, rank = Path(sys.argv[1]), rank_of_this_process()
    order = Order.model_validate_json((folder / ORDER_FILE).read_bytes())
    # The first process logs the run; the parent reads the others' logs when they fail.
    log = LogWriter(folder / (LOG_FILE if rank == 0 else f"rank-{rank}-{LOG_FILE}"), order.spawned_at_s)
    log.phase(Phase.IMPORT, order.spawned_at_s)
    try:
        import accelerate  # noqa: F401, PLC0415
        import peft  # noqa: F401, PLC0415
        import torch  # noqa: F401, PLC0415
        import transformers  # noqa: PLC0415

        transformers.logging.set_verbosity_error()
        place = order.plan.device
        device = vendor_of(place.backend).device.open(place.threads, int(os.environ.get("LOCAL_RANK", "0")))
        # Held until the process exits: tearing down objects that several processes share has hung.
        held = run(order, device, log, folder)
    except BaseException as error:  # noqa: BLE001 - the parent writes the record of any failure
        log.event("failure", at_s=log.since_spawn(time.monotonic()), **describe(error))
        return 1
    log.event("end")
    exit_now(0, held)
    return 0


def end_with_parent(pid: int) -> None:
    """End this process once its parent is gone: nobody would write its record, and it would disturb the next run."""

    def watch() -> None:
        while psutil.pid_exists(pid):
            time.sleep(PARENT_CHECK_S)
        os._exit(1)

    if pid:
        threading.Thread(target=watch, daemon=True, name="end-with-parent").start()


def exit_now(code: int, *_held: object) -> None:
    """End the process while its objects are still held: interpreters with many threads have hung at exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(order: Order, device: Device, log: LogWriter, folder: Path) -> "Trainer":
    """Load, check, train and evaluate; log the measurements. Return the objects to keep alive until the process ends."""
    from tunemark.harness.worker.data import load_samples, micro_batches, shape_of  # noqa: PLC0415 - the import phase is over
    from tunemark.harness.worker.engines import open_accelerator, save_weights, shapes_only  # noqa: PLC0415
    from tunemark.harness.worker.gates import check, evaluate  # noqa: PLC0415
    from tunemark.harness.worker.levers import cache_state, compile_model, states_of  # noqa: PLC0415
    from tunemark.harness.worker.loop import report_ranks, stop_rule  # noqa: PLC0415
    from tunemark.harness.worker.models import build_model, drawn_on_device, loaded_sharded, model_facts  # noqa: PLC0415

    plan, rank = order.plan, rank_of_this_process()
    if device.name() not in {None, order.device_name}:
        msg = f"torch uses {device.name()!r}, the plan is for {order.device_name!r}; choose the device with CUDA_VISIBLE_DEVICES"
        raise DeviceUnavailable(msg)

    log.event("stack", versions=device.stack())
    log.phase(Phase.DATA, device.now())
    samples = load_samples(plan, order.card.vocabulary, order.data_from, order.weights_from)
    if samples.lengths is not None:
        log.event("row_lengths", **samples.lengths)
    log.phase(Phase.LOAD, device.now())
    if plan.device.backend is Backend.NEURON_XLA:
        from tunemark.harness.worker.neuron_trainer import run_by_trainer  # noqa: PLC0415

        return run_by_trainer(order, samples, device, log, folder)
    drawn = drawn_on_device(plan, order.card, device)
    scratch, empty = folder / f"weights-{rank}", shapes_only(plan, rank, drawn=drawn)
    # DeepSpeed must know its settings before transformers builds a model that it shards.
    accelerator = open_accelerator(plan, device, load_sharded=True) if loaded_sharded(plan, order.card) else None
    model = build_model(plan, order.card, order.weights_from, samples.vocabulary, scratch, device, empty=empty)
    log.event("model", **model_facts(model))

    shape = shape_of(plan, order.card)
    batches = micro_batches(plan, samples.training, shape, rank, plan.batch.data_parallel)
    if plan.measurement.gates:
        # With the first micro-batch, which is then trained on too. The model moves to the device.
        log.phase(Phase.CHECK, device.now())
        first = next(batches)
        for gate in check(plan, model, device, first):
            log.event("gate", **gate)
        batches = chain([first], batches)
    # After the gates, so that compilation is part of the first step that needs it.
    compile_model(plan, model)
    trainer = prepare(plan, model, device, log, stop_rule(plan, samples.training_rows, folder), accelerator, drawn=drawn)
    gradients = train_between_probes(plan, trainer, batches)
    log.event("model", **model_facts(trainer.engine.model, trainer.engine.optimizer, gradients))
    log.event("effective", **trainer.effective, optimizer_states_on=states_of(trainer.engine.optimizer))

    if samples.evaluation:
        log.phase(Phase.EVAL, device.now())
        log.event("evaluation", split=samples.evaluation_split, **evaluate(plan, trainer.engine.model, shape, device, samples.evaluation))
    if plan.measurement.save:
        log.phase(Phase.SAVE, device.now())
        log.event("saved", bytes=save_weights(trainer.engine, folder / "saved", rank=rank))
    log.phase(Phase.TEARDOWN, device.now())
    log.event("compile_cache", **cache_state(plan))
    report_ranks(trainer)
    trainer.engine.close()
    return trainer


def prepare(
    plan: Plan,
    model: Any,  # noqa: ANN401 - a torch module
    device: Device,
    log: LogWriter,
    stop: "StopRule",
    accelerator: Any = None,  # noqa: ANN401 - accelerate's, if it had to be opened earlier
    *,
    drawn: bool = False,
) -> "Trainer":
    """Return the trainer: model, optimizer and schedule as the plan's strategy wraps them. Log the settings in effect.

    `drawn` says that the processes draw the weights of a sharded model themselves.
    """
    import torch  # noqa: PLC0415
    from transformers import get_scheduler  # noqa: PLC0415

    from tunemark.harness.worker.engines import open_accelerator, shard, wrap  # noqa: PLC0415
    from tunemark.harness.worker.levers import blocks, effective, watch_compute  # noqa: PLC0415
    from tunemark.harness.worker.loop import ENDLESS, Trainer  # noqa: PLC0415
    from tunemark.harness.worker.optimizers import build_optimizer, fused_adamw  # noqa: PLC0415

    # fp32 is fp32 unless the plan has tf32: a GPU would silently round its inputs otherwise.
    torch.set_float32_matmul_precision("high" if plan.precision.compute is Dtype.TF32 else "highest")
    # Preparation is a part of loading, even after the gates: weights are sharded, and updates compiled.
    log.phase(Phase.LOAD, device.now())
    accelerator = accelerator or open_accelerator(plan, device)
    if plan.device.strategy is Strategy.FSDP2:
        shard(plan, model, device, drawn=drawn)
    elif plan.optimizer.master_weights or (plan.optimizer_rounds_stochastically and plan.device.backend in COMPILED_UPDATE):
        # Copies are made, and updates compiled, where the weights are; without gates the model is still on the host.
        model.to(device.torch_name)
    optimizer = build_optimizer(plan, model, fused=fused_adamw(device.torch_name))
    if getattr(optimizer, "eager_reason", None) is not None:
        log.event("note", source=EAGER_UPDATE, level="warning", message=optimizer.eager_reason)
    engine = wrap(plan, accelerator, model, optimizer)
    # A falling schedule needs an end; without one it is stretched over more steps than any run takes.
    scheduler = get_scheduler(plan.optimizer.scheduler, optimizer, plan.optimizer.warmup_steps, stop.steps or ENDLESS)
    group = torch.distributed.get_backend() if engine.processes > 1 else None
    settings = effective(plan, engine.model, optimizer, engine.processes, group, engine.sharding)
    log.event("effective", **settings)

    def log_compute(number_format: str) -> None:
        settings["compute"] = number_format
        log.event("effective", **settings)

    # The number format is known after the first step, the place of the states after training.
    watch_compute(engine.bare, blocks(engine.bare), log_compute)
    return Trainer(
        engine=engine,
        scheduler=scheduler,
        device=device,
        log=log,
        gradient_accumulation=plan.batch.gradient_accumulation,
        stop=stop,
        rank=rank_of_this_process(),
        strict=plan.measurement.timing == "strict",
        effective=settings,
        compiled=plan.model.compile != "none",
        cuda_graphs=plan.model.compile_mode == "reduce-overhead",
    )


def train_between_probes(plan: Plan, trainer: "Trainer", batches: Iterator["MicroBatch"]) -> "Gradients":
    """Train, and measure the device's matrix rate before and after; return the size of the gradients."""
    from tunemark.harness.worker.gates import matrix_rate  # noqa: PLC0415
    from tunemark.harness.worker.loop import collector_at_rest, train  # noqa: PLC0415

    device, log = trainer.device, trainer.log

    def probe(when: str) -> None:
        if plan.measurement.probe:
            log.phase(Phase.PROBE, device.now())
            log.event("probe", when=when, result=matrix_rate(device, plan.device.backend, plan.precision.compute))

    probe("before")
    with collector_at_rest():
        log.phase(Phase.TRAIN, device.now())
        try:
            gradients = train(trainer, batches)
        finally:
            peaks = device.memory()
            log.event("memory", allocated=peaks.allocated.model_dump(), reserved=peaks.reserved.model_dump())
    probe("after")
    return gradients


if __name__ == "__main__":
    exit_now(main())
