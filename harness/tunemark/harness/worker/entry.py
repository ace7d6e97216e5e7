"""The worker process: `python -m tunemark.harness.worker.entry FOLDER`, with an order in the folder.

The last line of the log is the end or the failure. Heavy imports are inside functions, since the time they take is the phase `import`.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil

from tunemark.harness.plan.resolve import Order
from tunemark.harness.run.run_log import LOG_FILE, ORDER_FILE, LogWriter, describe, rank_of_this_process
from tunemark.harness.vendors.protocol import Device, DeviceUnavailable, vendor_of
from tunemark.schema.vocabulary import Backend, Phase

PARENT_CHECK_S = 1.0


def main() -> int:
    """Run the order in the folder; return the exit code."""
    # An interactive Ctrl-C reaches the parent, which ends this process and still writes its record.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    folder, rank = Path(sys.argv[1]), rank_of_this_process()
    order = Order.model_validate_json((folder / ORDER_FILE).read_bytes())
    threading.Thread(target=end_with_parent, args=(order.parent_pid,), daemon=True, name="end-with-parent").start()
    # The first process logs the run; the parent reads the others' logs when they fail.
    log = LogWriter(folder / (LOG_FILE if rank == 0 else f"rank-{rank}-{LOG_FILE}"), order.spawned_at_s)
    log.phase(Phase.IMPORT, order.spawned_at_s)
    try:
        import accelerate  # noqa: F401, PLC0415
        import peft  # noqa: F401, PLC0415
        import torch  # noqa: F401, PLC0415
        import transformers  # noqa: PLC0415

        transformers.logging.set_verbosity_error()
        place = order.resolved.plan.device
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
    while psutil.pid_exists(pid):
        time.sleep(PARENT_CHECK_S)
    os._exit(1)


def exit_now(code: int, *_held: object) -> None:
    """End the process while its objects are still held: interpreters with many threads have hung at exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(order: Order, device: Device, log: LogWriter, folder: Path) -> object:
    """Load the samples, and train in our own loop or by optimum-neuron's trainer. Return the objects to keep alive until the process ends."""
    from tunemark.harness.worker.data import load_samples  # noqa: PLC0415 - the import phase is over
    from tunemark.harness.worker.loop import run_by_loop  # noqa: PLC0415

    plan, expected = order.resolved.plan, order.machine.devices[0].name
    if device.name() not in {None, expected}:
        msg = f"torch uses {device.name()!r}, the plan is for {expected!r}; choose the device with CUDA_VISIBLE_DEVICES"
        raise DeviceUnavailable(msg)

    log.event("stack", versions=device.stack())
    log.phase(Phase.DATA, device.now())
    samples = load_samples(plan, order.card.vocabulary, order.resolved.data_from, order.resolved.weights_from)
    if samples.lengths is not None:
        log.event("row_lengths", **samples.lengths)
    log.phase(Phase.LOAD, device.now())
    if plan.device.backend is Backend.NEURON_XLA:
        from tunemark.harness.worker.neuron_trainer import run_by_trainer  # noqa: PLC0415

        return run_by_trainer(order, samples, device, log, folder)
    return run_by_loop(order, samples, device, log, folder)


if __name__ == "__main__":
    exit_now(main())
