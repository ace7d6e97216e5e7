"""Arithmetic of epochs and evaluations: one data set has one size, and an evaluation goes through it once."""

from collections import defaultdict
from collections.abc import Iterator

from tunemark.collector.audit.arithmetic import product
from tunemark.collector.audit.evidence import Base, Run
from tunemark.collector.audit.rule import INCONSISTENT, SUSPICIOUS, Found, Rule
from tunemark.collector.audit.settled import TAIL
from tunemark.collector.audit.span import Span


def evaluation(base: Base) -> Iterator[Found]:
    """Yield rates of an evaluation that do not give the rows that were evaluated."""
    for run in base.runs:
        rows = run.dataset.test_rows if run.dataset else None
        rate, time = run.span("eval_samples_per_s"), run.span("eval_time_s")
        if rows is None or rate is None or time is None:
            continue
        # One of two ranks sees half of them: any whole part is a reading.
        seen, ranks = rate * time, run.setting("processes") or run.setting("nproc") or 1
        if any(seen.widened(TAIL).overlaps(Span.exact(rows / part)) for part in range(1, max(ranks, run_cores(run)) + 1)):
            continue
        yield Found(
            INCONSISTENT,
            (run.id,),
            run.printed("eval_samples_per_s", "eval_time_s"),
            f"{rate.value:g} x {time.value:g} s = {seen.value:,.0f} rows, of {rows:,} that there are",
            {"product": seen.value, "rows": rows},
        )


def run_cores(run: Run) -> int:
    """Return how many cores share the rows of the devices of a result."""
    return (run.accelerator.cores_per_unit or 1) * run.devices if run.accelerator else 1


def epoch_times(base: Base) -> Iterator[Found]:
    """Yield times of an epoch that do not give the training time."""
    slack = base.facts.known.practice("clock-slack")
    for run in base.runs:
        time = run.span("train_time_s")
        if time is not None:
            yield from product(run, "epoch_time_s", "epochs", time, "training time in seconds", slack)


def work_of_an_epoch(base: Base) -> Iterator[Found]:
    """Yield tables whose rows, of one data set, have epochs of different size."""
    slack, spread = base.facts.known.practice("clock-slack"), base.facts.known.practice("tokeniser-spread")
    sections: dict[tuple[str, str], list[tuple[Run, Span]]] = defaultdict(list)
    for run in base.runs:
        rate, time = run.span("tokens_per_s"), run.span("epoch_time_s")
        if rate and time:
            sections[run.source, run.section].append((run, (rate * time).widened(slack)))
    for rows in sections.values():
        low, high = min(rows, key=lambda row: row[1].value), max(rows, key=lambda row: row[1].value)
        same_words = low[0].model is not None and high[0].model is not None and low[0].model.vocabulary == high[0].model.vocabulary
        allowed = 1.0 if same_words else spread
        if low[1].high * allowed >= high[1].low:
            continue
        yield Found(
            INCONSISTENT,
            tuple(run.id for run, _ in rows),
            "tokens a second and the time of an epoch, row by row",
            "; ".join(
                f"{run.id} {run.claims['tokens_per_s'].printed} x {run.claims['epoch_time_s'].printed} = {span.value / 1e6:.1f}M tokens"
                for run, span in rows
            )
            + f": an epoch of one data set is not {high[1].value / low[1].value:.1f} times another",
            {f"tokens, {run.id}": span.value for run, span in rows},
        )


def short_runs(base: Base) -> Iterator[Found]:
    """Yield results of so few steps that warm-up decides them, where a longer one of the same source says something else."""
    few, far = 3, 0.15
    for run in base.runs:
        steps, time = run.span("steps"), run.span("step_time_s")
        if run.measured or steps is None or time is None or steps.value > few:
            continue
        longer = [
            one for one in base.runs if one.source == run.source and one.conditions.model == run.conditions.model and one.id != run.id
        ]
        for other in longer:
            theirs, more = other.span("step_time_s"), other.span("steps")
            if theirs and more and more.value > steps.value and abs(time.value / theirs.value - 1) > far:
                yield Found(
                    SUSPICIOUS,
                    (run.id, other.id),
                    f"{run.printed('step_time_s', 'steps')} and {other.printed('step_time_s', 'steps')}",
                    f"{time.value:g} s over {steps.value:g} steps against {theirs.value:g} s over {more.value:g}: {time.value / theirs.value - 1:+.1%}",
                    {"step_time_s": time.value, "longer_step_time_s": theirs.value},
                )


RULES = (
    Rule(
        "evaluation-rows",
        "evaluation rate x time is not the evaluated rows",
        "arithmetic",
        "An evaluation goes once through a fixed set of rows, whatever the training batch is.",
        (INCONSISTENT,),
        evaluation,
    ),
    Rule(
        "epoch-times",
        "epochs x time of an epoch is not the training time",
        "arithmetic",
        "Epochs follow each other without gap.",
        (INCONSISTENT,),
        epoch_times,
    ),
    Rule(
        "epoch-work",
        "epochs of one table differ in size",
        "arithmetic",
        "Tokens/s x time of an epoch is the data set in tokens; only another tokeniser changes it, by tens of per cent.",
        (INCONSISTENT,),
        work_of_an_epoch,
    ),
    Rule(
        "short-run",
        "a handful of steps that a longer run contradicts",
        "arithmetic",
        "First steps compile, fill caches and grow the allocator (definitions.md 4).",
        (SUSPICIOUS,),
        short_runs,
    ),
)
