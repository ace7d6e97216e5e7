"""Document 001's profiles at small batches: busy shares of an A100 and of the engines of Trainium, and MFU."""

from collections.abc import Iterator, Sequence

from tunemark.site import tables, wording
from tunemark.site.charts import Chart
from tunemark.site.pages.studies import (
    Evidence,
    Sentence,
    Study,
    ambiguous_caveat,
    listed,
    ratio,
    result_link,
    scatter,
    sentence,
    share,
    written,
)
from tunemark.site.tables import Column, Row, Table

ORDER = 6.5
SOURCE = "001"
SECTION = "small-batch utilisation"
"""First words of the section with the profiles of both devices."""
TRAINIUM = "aws-trainium1"
LENGTH = 128
"""Tokens per row of the profiles."""
SHARES = {
    "sm_utilisation": "A100 multiprocessors",
    "tensor_engine_active": "Trainium tensor engine",
    "vector_engine_active": "Trainium vector engine",
    "scalar_engine_active": "Trainium scalar engine",
}
"""Quantity -> what is busy, and on which device."""


def study(evidence: Evidence) -> Study:
    """Return the study of small batches."""
    source = evidence.of_source(SOURCE)
    rows = sorted((row for row in source if (row["section"] or "").startswith(SECTION) and row["micro_batch"]), key=_batch)
    worked = _worked(evidence, source)
    sentences = written([*_busy(evidence, rows), _growth(evidence, rows), _work(worked)])
    return Study(
        key="small-batches",
        title="Small batches: how busy an A100 and Trainium are",
        question="How much of an A100 and of Trainium does BERT fine-tuning keep busy at small batches?",
        sentences=sentences,
        tables=tuple(made for made in (_table(evidence, rows, worked),) if made.rows),
        draw=(lambda: _chart(evidence, rows),),
        method=(
            f"The profiles are of bert-base-uncased on one A100 and on Trainium, from document {SOURCE}. Batch sizes are per device.",
            f"MFU is the printed value for the profiled step of {LENGTH} tokens per row on Trainium.",
        ),
        caveats=(
            "The utilisation of multiprocessors and the active share of an engine are different quantities. Only their changes with the batch are comparable.",
            "A busy share is the share of time in which something ran. It does not show how much work was done.",
            "The audit finds that the printed MFU describes a profiled graph: the training run as a whole reaches less.",
            "The document gives no attained FLOP/s on the A100, so it does not show which device does more work at a small batch.",
            *ambiguous_caveat(evidence, sentences),
        ),
    )


def _batch(row: Row) -> int:
    return int(row["micro_batch"])


def _known(evidence: Evidence, rows: Sequence[Row], quantity: str) -> list[tuple[Row, float]]:
    return [(row, value) for row in rows if (value := evidence.figure(row, quantity))]


def _busy(evidence: Evidence, rows: Sequence[Row]) -> Iterator[Sentence | None]:
    """Yield the change of each busy share from the smallest to the largest batch."""
    swept = {name: known for quantity, name in SHARES.items() if len(known := _known(evidence, rows, quantity)) > 1}
    parts = [f"the {name} from {share(known[0][1])} to {share(known[-1][1])}" for name, known in swept.items()]
    if parts:
        yield sentence(
            f"From batch {_batch(rows[0])} to {_batch(rows[-1])} the busy share changes: {listed(parts)}.",
            [row for known in swept.values() for row, _ in known],
        )
    steepest = max(swept.items(), key=lambda item: item[1][-1][1] / item[1][0][1], default=None)
    if steepest:
        (first, low), *_, (last, high) = steepest[1]
        yield sentence(
            f"The {steepest[0]} gains most from a larger batch: its busy share is {ratio(high / low)} as large at batch {_batch(last)} as at batch {_batch(first)}, where it is idle {share(1 - low)} of the time.",
            [row for row, _ in steepest[1]],
        )


def _growth(evidence: Evidence, rows: Sequence[Row]) -> Sentence | None:
    """Return the growth of the busy share of the multiprocessors of the A100 and of the tensor engine of Trainium."""
    first, second = list(SHARES)[:2]
    both = [(row, a, b) for row, a in _known(evidence, rows, first) if (b := evidence.figure(row, second))]
    if len(both) <= 1:
        return None
    (small, a0, b0), *_, (large, a1, b1) = both
    return sentence(
        f"From batch {_batch(small)} to {_batch(large)} the busy share of the {SHARES[first]} grows {ratio(a1 / a0)}, that of the {SHARES[second]} {ratio(b1 / b0)}.",
        [row for row, *_ in both],
    )


def _worked(evidence: Evidence, source: Sequence[Row]) -> list[tuple[Row, float, float]]:
    """Return the profiled steps on Trainium with MFU and the active share of the tensor engine, one for each batch."""
    chosen = [row for row in source if row["accelerator"] == TRAINIUM and row["sequence_length"] == LENGTH and row["micro_batch"]]
    # The printed MFU describes the profiled step. The column of the database is derived from the time of the whole training run.
    printed = [(row, evidence.claim(row, "mfu"), evidence.figure(row, "tensor_engine_active")) for row in chosen]
    known = [(row, mfu, busy) for row, mfu, busy in printed if mfu and busy]
    return sorted({_batch(item[0]): item for item in known}.values(), key=lambda item: _batch(item[0]))


def _work(worked: Sequence[tuple[Row, float, float]]) -> Sentence | None:
    """Return MFU against the active share of the tensor engine."""
    if len(worked) <= 1:
        return None
    (first, low, busy_low), *_, (last, high, busy_high) = worked
    return sentence(
        f"On Trainium the MFU of a step rises from {share(low)} at batch {_batch(first)} to {share(high)} at batch {_batch(last)}, while the active share of "
        f"the tensor engine goes from {share(busy_low)} to {share(busy_high)}. An active engine does not have to work at its peak rate.",
        [row for row, *_ in worked],
    )


def _table(evidence: Evidence, rows: Sequence[Row], worked: Sequence[tuple[Row, float, float]]) -> Table:
    mfu = {_batch(row): value for row, value, _ in worked}

    def busy_column(quantity: str, name: str) -> Column[Row]:
        return Column(wording.sentence(name), lambda row: tables.number(evidence.figure(row, quantity), share), numeric=True)

    columns: list[Column[Row]] = [
        Column("Batch", lambda row: result_link(str(_batch(row)), row)),
        *(busy_column(quantity, name) for quantity, name in SHARES.items()),
        Column("MFU of Trainium", lambda row: tables.number(mfu.get(_batch(row)), share), numeric=True),
    ]
    return tables.table("Busy shares by batch", columns, rows, searchable=False)


def _chart(evidence: Evidence, rows: Sequence[Row]) -> Chart | None:
    values = [
        {"x": _batch(row), "y": round(100 * value, 2), "series": name, "line": name, "label": f"{name}, batch {_batch(row)}"}
        for quantity, name in SHARES.items()
        for row, value in _known(evidence, rows, quantity)
    ]
    caption = "Share of time in which each unit is busy, by batch. Both scales are logarithmic."
    return scatter("busy", caption, values, "batch", "busy (%)", "Unit", lines=True)
