"""One run from start to end inside of the worker process: phases in order, each marked in the log."""

import logging
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
from pydantic import BaseModel

from tunemark.harness.plan.capabilities import by_trainer
from tunemark.harness.run.run_log import LogWriter
from tunemark.harness.vendors import Device
from tunemark.harness.vendors.protocol import DeviceUnavailable
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import Backend, Dtype, Phase, Strategy

if TYPE_CHECKING:
    from tunemark.harness.worker.data import MicroBatch
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


def run(order: Order, device: Device, log: LogWriter, folder: Path) -> "Trainer":
    """Load, check, train, evaluate, and log what was seen on the way. Returns what is to be held until the process ends."""
    from tunemark.harness.worker.compile_cache import CacheWatch  # noqa: PLC0415
    from tunemark.harness.worker.data import Share, load_samples, micro_batches  # noqa: PLC0415 - the import phase is over
    from tunemark.harness.worker.engines import (  # noqa: PLC0415
        rank_of_this_process,
        report_ranks,
        save_weights,
        shapes_only,
    )
    from tunemark.harness.worker.gates import evaluate  # noqa: PLC0415
    from tunemark.harness.worker.levers import (
        compile_model,
        states_of,
    )
    from tunemark.harness.worker.loop import planned_steps, stop_rule  # noqa: PLC0415
    from tunemark.harness.worker.models import build_model, model_facts, shape_of  # noqa: PLC0415

    if order.plan.device.backend is Backend.NEURON and by_trainer(order.plan):
        from tunemark.harness.worker.neuron_trainer import run_by_trainer as run_by_trainer  # noqa: PLC0415

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
        log.event("saved", bytes=save_weights(trainer.engine, folder / "saved", rank=share.rank))
    log.phase(Phase.TEARDOWN, device.now())
    log.event("compile_cache", **caches.state())
    report_ranks(trainer, log)
    trainer.engine.close()
    return trainer


def _refuse_another_device(order: Order, device: Device) -> None:
    if device.name() not in {None, order.device_name}:
        msg = f"torch uses {device.name()!r}, the plan is for {order.device_name!r}; choose the device with CUDA_VISIBLE_DEVICES"
        raise DeviceUnavailable(msg)


def prepare(plan: Plan, model: Any, device: Device, log: LogWriter, steps: int | None) -> "Trainer":  # noqa: ANN401 - a torch module
    """Return the trainer: model, optimizer and schedule as the plan's strategy wraps them. What took effect is logged."""
    import torch  # noqa: PLC0415
    from transformers import get_scheduler  # noqa: PLC0415

    from tunemark.harness.worker.engines import (  # noqa: PLC0415
        open_accelerator,
        shard,
        wrap,
    )
    from tunemark.harness.worker.levers import (  # noqa: PLC0415
        blocks,
        effective,
        watch_compute,
    )
    from tunemark.harness.worker.loop import (
        StopRule,
        Trainer,
    )
    from tunemark.harness.worker.models import build_optimizer  # noqa: PLC0415

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


def check_first(plan: Plan, model: Any, device: Device, log: LogWriter, batches: Iterator["MicroBatch"]) -> Iterator["MicroBatch"]:  # noqa: ANN401
    """Check with the first micro-batch that training is right, and give it back to the stream. The model moves to the device."""
    from tunemark.harness.worker.gates import check  # noqa: PLC0415

    log.phase(Phase.CHECK, device.now())
    first = next(batches)
    for gate in check(plan, model, device, first):
        log.event("gate", **gate)
    return chain([first], batches)


def train_between_probes(plan: Plan, trainer: "Trainer", batches: Iterator["MicroBatch"]) -> "Gradients":
    """Train, with a look at the device's matrix rate before and after; return what the gradients weigh."""
    from tunemark.harness.worker.gates import matrix_rate  # noqa: PLC0415
    from tunemark.harness.worker.loop import train  # noqa: PLC0415

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


# MOVE: was tunemark.harness.worker.entry: Entry of the worker process: `python -m tunemark.harness.worker FOLDER`, with an order in the folder.

ORDER_FILE = "order.json"
PARENT = "TUNEMARK_PARENT"
"""Variable that tells the worker the process whose run it is."""
LOOK_S = 1.0
LOG_FILE = "log.jsonl"


def main() -> int:
    """Do the order in the folder; whatever happens is the log's last line."""
    from tunemark.harness.run.run_log import LogWriter  # noqa: PLC0415 - what is imported here is timed

    # MOVE: import vanished
    from tunemark.harness.worker.engines import rank_of_this_process  # noqa: PLC0415

    # MOVE: import vanished
    from tunemark.schema.vocabulary import Phase  # noqa: PLC0415

    end_with_parent(int(os.environ.get(PARENT, "0")))
    # An interactive Ctrl-C reaches the parent, which ends this process and still writes its record.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    folder, rank = Path(sys.argv[1]), rank_of_this_process()
    order = Order.model_validate_json((folder / ORDER_FILE).read_bytes())
    # The first process tells of the run; the others are heard when they fail.
    log = LogWriter(folder / (LOG_FILE if rank == 0 else f"rank-{rank}-{LOG_FILE}"), order.spawned_at_s)
    log.phase(Phase.IMPORT, order.spawned_at_s)
    keep_notes(log)
    try:
        import accelerate  # noqa: F401, PLC0415
        import peft  # noqa: F401, PLC0415
        import torch  # noqa: F401, PLC0415
        import transformers  # noqa: PLC0415

        from tunemark.harness.vendors import open_device  # noqa: PLC0415

        transformers.logging.set_verbosity_error()
        device = open_device(order.plan.device.backend, order.plan.device.threads, int(os.environ.get("LOCAL_RANK", "0")))
        # Held until the process exits: taking down what several processes shared has hung.
        held = run(order, device, log, folder)
    except BaseException as error:  # noqa: BLE001 - the record of any failure is written by the parent
        from tunemark.harness.run.run_outcome import describe  # noqa: PLC0415

        log.event("failure", at_s=log.since_spawn(time.monotonic()), **describe(error))
        return 1
    log.event("end")
    exit_now(0, held)
    return 0


def end_with_parent(pid: int) -> None:
    """End this process once the one whose run it is is gone: nobody would write its record, and it would disturb the next run."""

    def watch() -> None:
        while psutil.pid_exists(pid):
            time.sleep(LOOK_S)
        os._exit(1)

    if pid:
        threading.Thread(target=watch, daemon=True, name="end-with-parent").start()


def exit_now(code: int, *_held: object) -> None:
    """End the process while what it holds is still held: nothing is left to do, and interpreters with many threads have hung at exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    exit_now(main())


# MOVE: was tunemark.harness.worker.entry: What libraries say that misleads a reader of the terminal goes into the worker's log instead of its output.

LOGGERS = (
    # On CPUs with bf16 units it looks for a fused 4-bit product in another package, and says that it failed to load. That
    # product is for inference: training multiplies with dequantised weights and is no slower without it.
    "bitsandbytes.backends.cpu.ops",
)
"""Loggers of libraries whose words are kept in the log only."""


class ToLog(logging.Handler):
    """Writes each record of a logger as an event `note`."""

    def __init__(self, log: LogWriter) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        self._log.event("note", source=record.name, level=record.levelname.lower(), message=record.getMessage())


def keep_notes(log: LogWriter) -> None:
    """Let these loggers write to the log and nowhere else."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [ToLog(log)], False
