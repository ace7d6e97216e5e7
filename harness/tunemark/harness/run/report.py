"""Send a finished run to the experiment tracker that its user already has, through accelerate: Weights & Biases, MLflow or TensorBoard."""

import math
import os
from collections.abc import Iterator
from importlib.util import find_spec

from tunemark.harness.run.show import summary
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean
from tunemark.schema.records.base import flattened
from tunemark.schema.records.submission import Submission

TRACKERS = ("wandb", "mlflow", "tensorboard")


def steps_of(submission: Submission) -> Iterator[dict[str, float]]:
    """Yield the metrics of each step: its loss where it is finite, its time, and its rate."""
    trace = submission.trace
    for seconds, loss, tokens in zip(trace.step_times_s, trace.loss, trace.real_tokens, strict=True):
        found = {"loss": loss, "step_time_s": seconds, "tokens_per_s": tokens / seconds}
        yield {name: value for name, value in found.items() if value is not None}


def refuse_missing_tracker(tracker: str) -> None:
    """Raise TunemarkError for another tracker, or if its package is not installed."""
    if tracker not in TRACKERS:
        raise TunemarkError("--report-to", tracker, did_you_mean(tracker, TRACKERS))
    if find_spec(tracker) is None:
        raise TunemarkError("--report-to", tracker, f"needs its package, which is not installed: pip install {tracker}")


def report(submission: Submission, tracker: str, name: str) -> None:
    """Send settings, steps and headline numbers of a run. Raises TunemarkError if the tracker refuses it; the record is written before."""
    from accelerate import Accelerator  # noqa: PLC0415 - imports torch

    settings = {key: str(value) for key, value in flattened(submission.plan.settings) if value is not None}
    final = {name: float(value) for name, value in summary(submission).items() if isinstance(value, int | float) and math.isfinite(value)}
    # TensorBoard has folders of runs instead of projects.
    project = name if tracker == "tensorboard" else os.environ.get("WANDB_PROJECT", "tunemark")
    named = {"wandb": {"name": name}, "mlflow": {"run_name": name}}
    try:
        sent = Accelerator(cpu=True, log_with=tracker, project_dir=os.environ.get("TENSORBOARD_LOGGING_DIR", "runs"))
        sent.init_trackers(project, settings, named)
        for step, metrics in enumerate(steps_of(submission), start=1):
            sent.log(metrics, step=step)
        sent.log({f"run/{name}": value for name, value in final.items()}, step=len(submission.trace))
        sent.end_training()
    except Exception as error:
        fix = f"did not take the run ({type(error).__name__}: {error}); the record is written all the same"
        raise TunemarkError("--report-to", tracker, fix, exit_code=Exit.INTERNAL) from error
