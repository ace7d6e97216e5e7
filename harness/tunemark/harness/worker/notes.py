"""What libraries say that misleads a reader of the terminal goes into the worker's log instead of its output."""

import logging

from tunemark.harness.worker.log import Log

LOGGERS = (
    # On CPUs with bf16 units it looks for a fused 4-bit product in another package, and says that it failed to load. That
    # product is for inference: training multiplies with dequantised weights and is no slower without it.
    "bitsandbytes.backends.cpu.ops",
)
"""Loggers of libraries whose words are kept in the log only."""


class ToLog(logging.Handler):
    """Writes each record of a logger as an event `note`."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        self._log.event("note", source=record.name, level=record.levelname.lower(), message=record.getMessage())


def keep_notes(log: Log) -> None:
    """Let these loggers write to the log and nowhere else."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [ToLog(log)], False
