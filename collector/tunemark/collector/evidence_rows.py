"""What a run saw beside its steps, as rows: requested against effective, gates, ranks, events, device use, its study."""

from collections.abc import Iterator

import numpy as np

from tunemark.collector.rows import Row, Rows
from tunemark.schema.derive import Derived
from tunemark.schema.records.effective import compared
from tunemark.schema.records.submission import Submission


def evidence_rows(submission: Submission, derived: Derived, result_id: str) -> Rows:
    """Return the rows by table."""
    tables: dict[str, Iterator[Row]] = {
        "step_events": _events(submission),
        "effective": _effective(submission),
        "gates": _gates(submission),
        "ranks": _ranks(submission, derived),
        "device_use": _device_use(submission),
    }
    return {name: [{"result_id": result_id, **row} for row in rows] for name, rows in tables.items()}


def evidence_columns(submission: Submission, derived: Derived) -> Row:
    """Return what the row of a result holds of it."""
    seen, study, probe, slowest = submission.effective, submission.study, submission.probe, derived.slowest_rank
    verdicts = [gate.passed for gate in submission.gates if gate.passed is not None]
    return {
        "nodes": submission.plan.device.nodes,
        **(
            {}
            if seen is None
            else seen.model_dump(include={"attention", "fused_kernels", "compile", "gradient_checkpointing", "process_group"})
        ),
        **(
            {}
            if study is None
            else {
                "study_id": study.study_id,
                "study_kind": study.kind,
                "study_point": study.point,
                "study_position": study.position,
            }
        ),
        "gates": None if not verdicts else "passed" if all(verdicts) else "failed",
        "compile_overhead_s": derived.compile_overhead_s,
        "probe_flop_per_s": probe.before_flop_per_s * submission.plan.device.count if probe else None,
        "probe_after_flop_per_s": probe.after_flop_per_s * submission.plan.device.count if probe and probe.after_flop_per_s else None,
        **({} if slowest is None else {"slowest_rank": slowest.rank, "rank_behind": slowest.behind}),
    }


def _events(submission: Submission) -> Iterator[Row]:
    for event in submission.events:
        yield event.model_dump()


def _gates(submission: Submission) -> Iterator[Row]:
    for gate in submission.gates:
        yield {"gate": gate.name, "passed": gate.passed, "detail": gate.detail}


def _effective(submission: Submission) -> Iterator[Row]:
    if submission.effective is None:
        return
    levers = compared(submission.plan, submission.effective, submission.trace)
    for position, lever in enumerate(levers, start=1):
        yield {"position": position, **lever._asdict()}


def _ranks(submission: Submission, derived: Derived) -> Iterator[Row]:
    window = derived.window
    part = slice(window.first, window.stop) if window is not None else slice(0)
    medians = {rank.rank: float(np.median(own)) if len(own := rank.own_work_s[part]) else None for rank in submission.ranks}
    known = [own for own in medians.values() if own is not None]
    typical = float(np.median(known)) if known else 0.0
    slowest = derived.slowest_rank.rank if derived.slowest_rank else None
    for rank in submission.ranks:
        own_s = medians[rank.rank]
        yield {
            "rank": rank.rank,
            "own_work_s": own_s,
            "behind": own_s / typical - 1 if own_s is not None and typical else None,
            "slowest": rank.rank == slowest,
            **rank.model_dump(include={"device_allocated_bytes", "device_reserved_bytes", "host_rss_bytes"}),
        }


def _device_use(submission: Submission) -> Iterator[Row]:
    for use in submission.utilisation.devices if submission.utilisation else ():
        row = use.model_dump(mode="json")
        yield {"device": row.pop("index"), **row}
