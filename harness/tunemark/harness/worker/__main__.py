"""Entry of the worker process: `python -m tunemark.harness.worker FOLDER`, with an order in the folder."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil

ORDER_FILE = "order.json"
PARENT = "TUNEMARK_PARENT"
"""Variable that tells the worker the process whose run it is."""
LOOK_S = 1.0
LOG_FILE = "log.jsonl"


def main() -> int:
    """Do the order in the folder; whatever happens is the log's last line."""
    from tunemark.harness.worker.log import Log  # noqa: PLC0415 - what is imported here is timed
    from tunemark.harness.worker.notes import keep_notes  # noqa: PLC0415
    from tunemark.harness.worker.ranks import rank_of_this_process  # noqa: PLC0415
    from tunemark.harness.worker.run import Order, run  # noqa: PLC0415
    from tunemark.schema.vocabulary import Phase  # noqa: PLC0415

    end_with_parent(int(os.environ.get(PARENT, "0")))
    # An interactive Ctrl-C reaches the parent, which ends this process and still writes its record.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    folder, rank = Path(sys.argv[1]), rank_of_this_process()
    order = Order.model_validate_json((folder / ORDER_FILE).read_bytes())
    # The first process tells of the run; the others are heard when they fail.
    log = Log(folder / (LOG_FILE if rank == 0 else f"rank-{rank}-{LOG_FILE}"), order.spawned_at_s)
    log.phase(Phase.IMPORT, order.spawned_at_s)
    keep_notes(log)
    try:
        import accelerate  # noqa: F401, PLC0415
        import peft  # noqa: F401, PLC0415
        import torch  # noqa: F401, PLC0415
        import transformers  # noqa: PLC0415

        from tunemark.harness.devices import open_device  # noqa: PLC0415

        transformers.logging.set_verbosity_error()
        device = open_device(order.plan.device.backend, order.plan.device.threads, int(os.environ.get("LOCAL_RANK", "0")))
        # Held until the process exits: taking down what several processes shared has hung.
        held = run(order, device, log, folder)
    except BaseException as error:  # noqa: BLE001 - the record of any failure is written by the parent
        from tunemark.harness.worker.failures import describe  # noqa: PLC0415

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
