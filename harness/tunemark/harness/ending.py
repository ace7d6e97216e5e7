"""When a planned run may stop: once it is sure, or after all that was asked for."""

from typing import Any, Literal

from tunemark.harness.choices import Options, Reasons, data_source
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.workloads import WorkloadCard
from tunemark.schema.records.plan import Measurement
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS
from tunemark.schema.vocabulary import DataSource

DEFAULT_MAX_TRAIN_S = 300.0
DEFAULT_NO_STEP_S = 900.0


def measurement_choice(card: WorkloadCard, options: Options, reasons: Reasons) -> Measurement:
    """Return when the run may stop."""
    source = card.data.source if options.data == "card" else data_source(options.data)
    if options.epochs is not None and card.data.training_rows is None and source is DataSource.SYNTHETIC:
        raise TunemarkError(
            "--epochs", options.epochs, "these synthetic rows have no end; give --set data.training_rows=N, --data file:PATH, or --steps"
        )
    stop = card.stop
    asked = options.max_steps is not None or options.epochs is not None
    limits: dict[Literal["max_steps", "epochs"], int | None] = {"max_steps": stop.max_steps, "epochs": stop.epochs}
    if asked:
        limits = {"max_steps": options.max_steps, "epochs": options.epochs}
    return Measurement(
        **limits,
        **_seconds(card, options, reasons, asked=asked),
        timeout_s=options.timeout_s,
        no_step_s=DEFAULT_NO_STEP_S if options.no_step_s is None else options.no_step_s,
        until_relative_ci=_until(options, reasons, stop.epochs, asked=asked),
        timing="strict" if options.strict_timing else "events",
        evaluate=card.data.evaluation_rows > 0,
        save=options.save,
        cold=options.cold,
        probe=options.probe,
        gates=options.gates,
        seed=card.seed if options.seed is None else options.seed,
    )


def _seconds(card: WorkloadCard, options: Options, reasons: Reasons, *, asked: bool) -> dict[Literal["max_train_s", "min_steps"], Any]:
    """Return how long training may take. Steps that were asked for are all done: a limit of time is for runs that nobody gave an end."""
    field = "measurement.max_train_s"
    if options.max_train_s is not None:
        return {"max_train_s": reasons.give(field, options.max_train_s, "asked for with --seconds")}
    if asked:
        return {"max_train_s": None}
    if card.stop.max_train_s is not None or card.stop.max_steps is not None:
        return {"max_train_s": card.stop.max_train_s}
    fewest = Measurement().min_warmup_steps + RANKABLE_STEPS
    why = f"the default for a run that nobody gave an end; {fewest} steps are done in any case, of which {RANKABLE_STEPS} can be ranked"
    return {"max_train_s": reasons.give(field, DEFAULT_MAX_TRAIN_S, why), "min_steps": fewest}


def _until(options: Options, reasons: Reasons, epochs: int | None, *, asked: bool) -> float | None:
    """Return the relative half-width of the interval of throughput at which a run may stop early, or None."""
    field = "measurement.until_relative_ci"
    if options.until_ci is not None:
        return reasons.give(field, options.until_ci, "asked for with --until-ci")
    if asked:
        return reasons.give(field, None, "all of the steps that were asked for are done")
    whole = f"; --epochs {epochs} does the whole job" if epochs else ""
    why = f"the default: a steady window whose 95% interval is this narrow needs no more steps{whole}"
    return reasons.give(field, Measurement().until_relative_ci, why)
