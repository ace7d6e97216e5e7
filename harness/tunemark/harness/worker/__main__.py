"""Entry of the worker process: `python -m tunemark.harness.worker FOLDER`, with an order in the folder."""

import os
import signal
import sys
import time
from pathlib import Path

ORDER_FILE = "order.json"
LOG_FILE = "log.jsonl"


def main() -> int:
    """Do the order in the folder; whatever happens is the log's last line."""
    from tunemark.harness.worker.log import Log  # noqa: PLC0415 - what is imported here is timed
    from tunemark.harness.worker.run import Order, run  # noqa: PLC0415
    from tunemark.schema.vocabulary import Phase  # noqa: PLC0415

    # An interactive Ctrl-C reaches the parent, which ends this process and still writes its record.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    folder = Path(sys.argv[1])
    order = Order.model_validate_json((folder / ORDER_FILE).read_bytes())
    log = Log(folder / LOG_FILE, order.spawned_at_s)
    log.phase(Phase.IMPORT, order.spawned_at_s)
    try:
        import accelerate  # noqa: F401, PLC0415
        import peft  # noqa: F401, PLC0415
        import torch  # noqa: F401, PLC0415
        import transformers  # noqa: PLC0415

        from tunemark.harness.devices import open_device  # noqa: PLC0415

        transformers.logging.set_verbosity_error()
        device = open_device(order.plan.device.backend, order.plan.device.threads)
        run(order, device, log, folder)
    except BaseException as error:  # noqa: BLE001 - the record of any failure is written by the parent
        from tunemark.harness.worker.failures import describe  # noqa: PLC0415

        log.event("failure", at_s=log.since_spawn(time.monotonic()), **describe(error))
        return 1
    log.event("end")
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Nothing is left to do, and interpreters with many threads have hung at exit.
    os._exit(code)
