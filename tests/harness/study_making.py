"""A bench whose runs are scripted: real plans, real records and files, no process."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from harness_making import FACTS, make_machine

from tunemark.harness.run.record import assemble, refused_run, write
from tunemark.harness.run.run_log import RunLog
from tunemark.harness.studies.series import Bench
from tunemark.schema.vocabulary import Phase, Status

STEPS = 120


def make_log(
    plan,
    *,
    step_s=0.1,
    steps=STEPS,
    noise=0.01,
    seed=1,
    loss=2.0,
    rise=0.0,
    first_s=0.0,
    compiled_s=0.0,
    cache=None,
    accuracy=None,
    own_work=(),
):
    """Return the log of a worker whose steps take about `step_s`, the first one `compiled_s` longer; of each rank `own_work` is its part of a step."""
    rows = plan.batch.global_batch
    tokens = rows * plan.data.sequence_length
    times = step_s * (1 + np.random.default_rng(seed).normal(0, noise, steps))
    peaks = {"device_allocated_bytes": None, "device_reserved_bytes": None, "host_rss_bytes": 10**9}
    times[0] += compiled_s
    ends = 5.0 + first_s + np.cumsum(times)
    counts = {"slot_tokens": tokens, "real_tokens": tokens, "supervised_tokens": tokens, "documents": rows, "rows": rows}
    return RunLog(
        phases=[{"phase": "import", "at_s": 0.0}, {"phase": "load", "at_s": 3.0}, {"phase": "train", "at_s": 5.0}],
        started_at_s=5.0 + first_s,
        steps=[
            {"completed_at_s": float(end), "loss": float(now), **counts}
            for end, now in zip(ends, np.linspace(loss, loss + rise, steps), strict=True)
        ],
        memory={"allocated": {"peak_bytes": 2**30, "method": "scripted"}, "reserved": {"peak_bytes": 2**30, "method": "scripted"}},
        events=[{"step": 1, "what": "compile", "amount": 1}] if compiled_s else [],
        compile_cache={"state": cache or ("warm" if compiled_s else "none"), "reason": None},
        evaluation=None if accuracy is None else {"split": "scripted", "rows": 100, "loss": 1.0, "accuracy": accuracy},
        ranks=[{"rank": rank, "own_work_s": [own] * steps, **peaks} for rank, own in enumerate(own_work)],
        ended=True,
    )


def make_run(resolved, study=None, *, status=Status.OK, phase=Phase.TRAIN, machine=None, **log):
    """Return the submission of a scripted run."""
    if resolved.unsupported:
        finished = refused_run(resolved.unsupported)
    elif status is Status.INTERRUPTED:
        finished = replace(refused_run("-"), log=RunLog(), ended_by="interrupted", max_rss_bytes=2**28)
    elif status is not Status.OK:
        failure = {"status": status.value, "message": f"scripted {status.value}", "fix": "do less"}
        marks = [{"phase": "import", "at_s": 0.0}, *([{"phase": phase.value, "at_s": 0.5}] if phase is not Phase.IMPORT else [])]
        finished = replace(refused_run("-"), log=RunLog(failure=failure, phases=marks), wall_s=1.0, max_rss_bytes=2**28)
    else:
        written = make_log(resolved.plan, **log)
        finished = replace(refused_run("-"), log=written, wall_s=written.steps[-1]["completed_at_s"] + 1.0, max_rss_bytes=2**29)
    return assemble(resolved, machine or make_machine(), finished, study=study)


class ScriptedBench:
    """Runs by a script: `script(plan, how many ran before)` gives what `make_run` takes beside the plan."""

    def __init__(self, out: Path, script=lambda _plan, _ran: {}, machine=None):
        self.script, self.ran, self.machine = script, [], machine or make_machine()
        self.bench = Bench(FACTS, self.machine, out, self._run)
        self.out = out

    def _run(self, resolved, study):
        submission = make_run(resolved, study, machine=self.machine, **self.script(resolved.plan, len(self.ran)))
        self.ran.append(study.point)
        return submission, write(submission, self.out)
