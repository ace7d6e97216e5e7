"""Predict a whole job from a run that stopped early, then run the whole job, and print the error.

    python benchmarks/predict_whole_job.py [workload] [steps] [rounds]

Each round runs both in fresh processes: first the short run, which stops as soon as its throughput is known within 1%,
then the whole job of `steps` steps (default 600). Both the time of training and the time of the whole process are
compared.

The error has two parts. The first is how well the first steps predict the rest of the same process: the whole job is also
predicted from its own first steps. The second is how much processes differ, on a host that may be shared. The number of
cores that other processes of this machine kept busy is printed too; other virtual machines of the host are invisible. At
the end each whole job is predicted from all short runs together.
"""

import statistics
import sys
import tempfile
from pathlib import Path

from tunemark.harness.plan.machine import detect
from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.run.launch import run_once
from tunemark.schema.derive import derive
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.submission import Submission
from tunemark.schema.statistics.job_prediction import Job, predict

GOAL = 0.03
SHORT = {"until_ci": 0.01, "max_steps": 240, "max_train_s": 600.0}
WHOLE = {"max_train_s": 3_600.0}


def one_run(workload: str, out: Path, **limits: float | None) -> Submission:
    """Run a workload without probes and gates, which a job does not have."""
    facts, machine = FactBase.of_project(), detect()
    options = Options(probe=False, gates=False, **limits)  # type: ignore[arg-type]
    return run_once(resolve(workload, facts, machine, options), facts, machine, out)[0]


def main() -> None:
    """Print the error of each round and the median of all."""
    given = sys.argv[1:]
    workload = given[0] if given else "smoke-full"
    steps, rounds = int(given[1]) if len(given) > 1 else 600, int(given[2]) if len(given) > 2 else 3
    errors, walls, own_errors, shorts, wholes = [], [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, rounds + 1):
            short = one_run(workload, Path(folder), **SHORT)
            prediction = predict([short], Job(steps=steps))
            whole = one_run(workload, Path(folder), max_steps=steps, **WHOLE)
            seen_s = derive(whole).train_time_s
            if seen_s is None or len(whole.trace) < steps:
                sys.exit(f"the whole job did {len(whole.trace)} of {steps} steps: {whole.outcome.message}")
            errors.append(prediction.train_s.value / seen_s - 1)
            walls.append(prediction.wall_s.value / whole.process.wall_s - 1)
            own_errors.append(predict([beginning(whole, len(short.trace))], Job(steps=steps)).train_s.value / seen_s - 1)
            shorts.append(short)
            wholes.append(seen_s)
            within = prediction.train_s.low <= seen_s <= prediction.train_s.high
            print(
                f"{number}: from {len(short.trace)} steps {prediction.train_s.value:.1f} s"
                f" [{prediction.train_s.low:.1f}, {prediction.train_s.high:.1f}], seen {seen_s:.1f} s in {len(whole.trace)} steps:"
                f" {errors[-1]:+.1%}, {'inside' if within else 'outside'} the interval; whole process {walls[-1]:+.1%};"
                f" from its own first {len(short.trace)} steps {own_errors[-1]:+.1%};"
                f" other work on {foreign(short)} and {foreign(whole)} cores",
                flush=True,
            )
    middle = statistics.median(abs(error) for error in errors)
    print(f"{workload}, {steps} steps: median error of training {middle:.1%}, of the process {statistics.median(map(abs, walls)):.1%}")
    print(f"from the first steps of the same process: median error {statistics.median(map(abs, own_errors)):.1%}")
    if len(shorts) > 1:
        together = predict(shorts, Job(steps=steps)).train_s
        inside = sum(together.low <= seen_s <= together.high for seen_s in wholes)
        off = statistics.median(abs(together.value / seen_s - 1) for seen_s in wholes)
        print(
            f"from all {len(shorts)} short runs {together.value:.1f} s [{together.low:.1f}, {together.high:.1f}]:"
            f" median error {off:.1%}, {inside} of {len(wholes)} inside"
        )
    print(f"goal {GOAL:.0%}: {'reached' if middle <= GOAL else 'missed'}")


def beginning(run: Submission, steps: int) -> Submission:
    """Return a run as if it had ended after `steps` steps."""
    columns = {name: value[:steps] if isinstance(value, tuple) else value for name, value in run.trace}
    return run.model_copy(update={"trace": run.trace.model_copy(update=columns)})


def foreign(run: Submission) -> str:
    """Return the number of cores that other processes kept busy."""
    busy = run.utilisation.foreign_cpu_busy_mean if run.utilisation else None
    return "unknown" if busy is None else f"{busy:.2f}"


if __name__ == "__main__":
    main()
