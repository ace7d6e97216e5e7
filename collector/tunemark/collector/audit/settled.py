"""Which reading of an ambiguous figure the other figures of a result settle, if any."""

from tunemark.collector.audit.evidence import Run
from tunemark.collector.audit.span import Span

TAIL = 0.01
"""The last batch of an epoch may be filled up: at most one batch in a hundred."""


def expected_rows(run: Run) -> Span | None:
    """Return the rows of a whole training: epochs x rows of the data set; None where rows are packed or unknown."""
    epochs, rows = run.span("epochs"), run.training_rows
    return epochs * rows if epochs and rows and not run.conditions.packing else None


def settled_reading(run: Run, quantity: str) -> tuple[str, Span] | None:
    """Return the one reading of a rate of samples that gives the rows of the data set, times the training time; else None."""
    rows, time = expected_rows(run), run.span("train_time_s")
    readings = run.readings(quantity)
    if rows is None or time is None or len(readings) < 2 or not quantity.startswith("samples"):  # noqa: PLR2004 - one reading is no choice
        return None
    fitting = [(meaning, rate) for meaning, rate in readings if (rate * time).widened(TAIL).overlaps(rows)]
    return fitting[0] if len(fitting) == 1 else None
