"""The worker process: `python -m tunemark.harness.worker.entry FOLDER`, with an order in the folder.

`loop.run` loads, checks, trains and evaluates. The last line of the log is the end or the failure. Heavy imports are inside `main`, since
the time they take is the phase `import`.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil

from tunemark.harness.run.run_log import LOG_FILE, ORDER_FILE, PARENT, LogWriter, Order, describe, rank_of_this_process
from tunemark.harness.vendors.protocol import vendor_of
from tunemark.schema.vocabulary import Phase

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
        from tunemark.harness.worker.loop import run  # noqa: PLC0415

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


if __name__ == "__main__":
    exit_now(main())
