"""Send a finished run to the experiment tracker that its user already has: Weights & Biases, MLflow or TensorBoard."""

import math
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

from tunemark.harness.run.show import summary
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean
from tunemark.schema.records.base import flattened
from tunemark.schema.records.submission import Submission


def steps_of(submission: Submission) -> Iterator[dict[str, float]]:
    """Yield the metrics of each step: its loss where it is finite, its time, and its rate."""
    trace = submission.trace
    for (before, after), loss, tokens in zip(
        pairwise((trace.started_at_s, *trace.completed_at_s)), trace.loss, trace.real_tokens, strict=True
    ):
        found = {"loss": loss, "step_time_s": after - before, "tokens_per_s": tokens / (after - before)}
        yield {name: value for name, value in found.items() if value is not None}


def final_of(submission: Submission) -> dict[str, float]:
    """Return the headline numbers of a run."""
    return {name: float(value) for name, value in summary(submission).items() if isinstance(value, int | float) and math.isfinite(value)}


def to_wandb(submission: Submission, settings: dict[str, str], name: str) -> None:
    """Log to Weights & Biases; its own variables choose project and mode."""
    import wandb  # noqa: PLC0415 - optional

    with wandb.init(name=name, config=settings) as run:
        for step, metrics in enumerate(steps_of(submission), start=1):
            run.log(metrics, step=step)
        run.summary.update(final_of(submission))


def to_mlflow(submission: Submission, settings: dict[str, str], name: str) -> None:
    """Log to MLflow; MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME choose the place."""
    import mlflow  # noqa: PLC0415 - optional

    with mlflow.start_run(run_name=name):
        mlflow.log_params(settings)
        for step, metrics in enumerate(steps_of(submission), start=1):
            mlflow.log_metrics(metrics, step=step)
        mlflow.log_metrics({f"run.{key}": value for key, value in final_of(submission).items()})


def to_tensorboard(submission: Submission, settings: dict[str, str], name: str) -> None:
    """Write events for TensorBoard to runs/NAME, or to the folder in TENSORBOARD_LOGGING_DIR."""
    from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - optional

    with SummaryWriter(os.path.join(os.environ.get("TENSORBOARD_LOGGING_DIR", "runs"), name)) as writer:  # noqa: PTH118
        writer.add_text("settings", "\n".join(f"    {key} = {value}" for key, value in settings.items()))
        for step, metrics in enumerate(steps_of(submission), start=1):
            for key, value in metrics.items():
                writer.add_scalar(key, value, step)
        for key, value in final_of(submission).items():
            writer.add_scalar(f"run/{key}", value, len(submission.trace))


TRACKERS: dict[str, Callable[[Submission, dict[str, str], str], None]] = {
    "wandb": to_wandb,
    "mlflow": to_mlflow,
    "tensorboard": to_tensorboard,
}


def refuse_missing_tracker(tracker: str) -> None:
    """Raise TunemarkError for another tracker, or if its package is not installed."""
    if tracker not in TRACKERS:
        raise TunemarkError("--report-to", tracker, did_you_mean(tracker, TRACKERS))
    if find_spec(tracker) is None:
        raise TunemarkError("--report-to", tracker, f"needs its package, which is not installed: pip install {tracker}")


def report(submission: Submission, tracker: str, name: str) -> None:
    """Send a run. Raises TunemarkError if the tracker refuses it; the record is written before."""
    shown: Any = flattened(submission.plan.settings)
    settings = {key: str(value) for key, value in shown if value is not None}
    try:
        TRACKERS[tracker](submission, settings, name)
    except Exception as error:
        fix = f"did not take the run ({type(error).__name__}: {error}); the record is written all the same"
        raise TunemarkError("--report-to", tracker, fix, exit_code=Exit.INTERNAL) from error
