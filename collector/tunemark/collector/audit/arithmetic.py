"""Arithmetic: figures of one result that must multiply to each other within their printed digits."""

from collections.abc import Iterator

from tunemark.collector.audit.evidence import Base, Run
from tunemark.collector.audit.rule import INCONSISTENT, Found, Rule
from tunemark.collector.audit.settled import TAIL, expected_rows
from tunemark.collector.audit.span import Span
from tunemark.collector.audit.token_rates import rows_per_step
from tunemark.schema.physics.architecture import count_parameters


def product(run: Run, one: str, other: str, expected: Span, what: str, slack: float) -> Iterator[Found]:
    """Yield a finding where no reading of two figures multiplies to what is expected."""
    readings, second = run.readings(one), run.span(other)
    if not readings or second is None:
        return
    products = [(meaning, span, span * second) for meaning, span in readings]
    if any(result.widened(slack).overlaps(expected) for _, _, result in products):
        return
    words = "; ".join(
        f"{span.value:g} x {second.value:g} = {result.value:,.0f}{f' ({meaning})' if meaning else ''}" for meaning, span, result in products
    )
    nearest = products[0][2].value
    yield Found(
        INCONSISTENT,
        (run.id,),
        run.printed(one, other),
        f"{words}, where {what} = {expected.value:,.0f}: {nearest / expected.value - 1:+.1%}",
        {"product": nearest, "expected": expected.value},
    )


def rate_times_time(base: Base) -> Iterator[Found]:
    """Yield rates of samples that do not give the rows of the training over its time."""
    slack = base.facts.known.practice("clock-slack")
    for run in base.runs:
        rows = expected_rows(run)
        if rows is not None and _done(run):
            words = f"epochs x rows of the data set = {run.claims['epochs'].value:g} x {run.training_rows:,}"
            padded = Span(rows.value, rows.low, rows.high * (1 + TAIL))
            for quantity in ("samples_per_s", "samples_per_s_reported"):
                yield from product(run, quantity, "train_time_s", padded, words, slack)
        steps, batch = run.span("steps"), rows_per_step(run)
        if steps is not None and batch is not None and rows is None:
            for quantity in ("samples_per_s", "samples_per_s_reported"):
                yield from product(
                    run, quantity, "train_time_s", steps * batch, f"steps x rows of a step = {steps.value:g} x {batch}", slack
                )


def _done(run: Run) -> bool:
    steps, planned = run.span("steps"), run.span("total_steps")
    return steps is None or planned is None or steps.value >= planned.value


def rows_of_a_step(base: Base) -> Iterator[Found]:
    """Yield rates whose ratio is not the rows of a step."""
    slack = base.facts.known.practice("clock-slack")
    for run in base.runs:
        conditions, steps = run.conditions, run.span("steps_per_s")
        if steps is None or conditions.micro_batch is None or run.replicas is None:
            continue
        expected = conditions.micro_batch * (conditions.gradient_accumulation or 1) * run.replicas
        ratios = [(meaning, span / steps) for meaning, span in run.readings("samples_per_s")]
        # A rate of one of several ranks is one reading of a rate that does not say of how many it is.
        if not ratios or any(ratio.widened(slack).overlaps(Span.exact(float(expected))) for _, ratio in ratios[:1]):
            continue
        if len(ratios) > 1 and expected_rows(run) is not None:
            continue
        yield Found(
            INCONSISTENT,
            (run.id,),
            run.printed("samples_per_s", "steps_per_s", "steps", "train_time_s"),
            f"{run.claims['samples_per_s'].printed} / {run.claims['steps_per_s'].printed} = {ratios[0][1].value:.1f} rows a step, where micro-batch x "
            f"accumulation x replicas = {conditions.micro_batch} x {conditions.gradient_accumulation or 1} x {run.replicas} = {expected}",
            {"rows_per_step": ratios[0][1].value, "expected": expected},
        )


def steps_times_step(base: Base) -> Iterator[Found]:
    """Yield steps whose time does not add up to the training time."""
    slack = base.facts.known.practice("clock-slack")
    for run in base.runs:
        steps, time = run.span("steps"), run.span("train_time_s")
        if steps is None or time is None:
            continue
        yield from product(run, "step_time_s", "steps", time, "training time in seconds", slack)
        yield from product(run, "steps_per_s", "train_time_s", steps, "steps", slack)


def wall_covers_training(base: Base) -> Iterator[Found]:
    """Yield processes that are shorter than the training in them."""
    slack = base.facts.known.practice("clock-slack")
    for run in base.runs:
        wall, time = run.span("wall_s"), run.span("train_time_s")
        if wall and time and wall.high * (1 + slack) < time.low:
            yield Found(
                INCONSISTENT,
                (run.id,),
                run.printed("wall_s", "train_time_s"),
                f"wall {wall.value:,.1f} s < training {time.value:,.1f} s, which is a part of it",
                {"wall_s": wall.value, "train_time_s": time.value},
            )


def cpu_time(base: Base) -> Iterator[Found]:
    """Yield processes with more CPU seconds than their cores have."""
    cores = {row.instance: row.vcpus for row in base.facts.prices if row.vcpus}
    for run in base.runs:
        wall, user, system, count = run.span("wall_s"), run.span("user_s"), run.span("system_s"), cores.get(run.conditions.instance or "")
        if wall and user and system and count and (user + system).low > wall.high * count:
            yield Found(
                INCONSISTENT,
                (run.id,),
                run.printed("wall_s", "user_s", "system_s"),
                f"{(user + system).value:,.0f} CPU seconds > {wall.value:,.0f} s x {count} cores",
                {"cpu_s": (user + system).value, "cores": count},
            )


def trainer_flops(base: Base) -> Iterator[Found]:
    """Yield FLOPs of a trainer that are not those of the rows, at the stated length, that its rate gives.

    transformers estimates 6 x parameters outside of embeddings x tokens (floating_point_ops), padding included.
    """
    for run in base.runs:
        flops, rate, time = run.span("total_flops"), run.readings("samples_per_s"), run.span("train_time_s")
        length = run.conditions.sequence_length
        if flops is None or not rate or time is None or length is None or run.model is None:
            continue
        count = count_parameters(run.model)
        tokens = flops / (6.0 * (count.total - count.embedding))
        seen = [tokens / (one * time) for _, one in rate]
        if any(one.widened(TAIL).overlaps(Span.exact(float(length))) for one in seen):
            continue
        rows = rate[0][1] * time
        yield Found(
            INCONSISTENT,
            (run.id,),
            run.printed("total_flops", "samples_per_s", "train_time_s"),
            f"{flops.value:.4g} / (6 x {count.total - count.embedding:,}) = {tokens.value:,.0f} tokens, over {rows.value:,.0f} rows = {seen[0].value:.1f} tokens a row, not {length}",
            {"tokens_per_row": seen[0].value, "sequence_length": length},
        )


RULES = (
    Rule(
        "rate-times-time",
        "rate x time is not the number of samples",
        "arithmetic",
        "A rate is work over time, so rate x time is the work: epochs x rows, or steps x rows of a step.",
        (INCONSISTENT,),
        rate_times_time,
    ),
    Rule(
        "rows-of-a-step",
        "samples/s over steps/s is not the batch",
        "arithmetic",
        "Both rates are over the same time, so their ratio is the rows of a step: micro-batch x accumulation x data-parallel replicas.",
        (INCONSISTENT,),
        rows_of_a_step,
    ),
    Rule(
        "steps-times-step",
        "steps x step time is not the training time",
        "arithmetic",
        "Steps follow each other without gap (definitions.md 3).",
        (INCONSISTENT,),
        steps_times_step,
    ),
    Rule(
        "wall-covers-training",
        "the process is shorter than its training",
        "arithmetic",
        "Training is a phase of the process (definitions.md 2).",
        (INCONSISTENT,),
        wall_covers_training,
    ),
    Rule(
        "cpu-time",
        "more CPU time than the cores have",
        "arithmetic",
        "A core works at most one second a second.",
        (INCONSISTENT,),
        cpu_time,
    ),
    Rule(
        "trainer-flops",
        "FLOPs of a trainer that are of another length",
        "arithmetic",
        "A trainer's estimate is 6 x parameters outside of embeddings x tokens, so it tells how long rows were.",
        (INCONSISTENT,),
        trainer_flops,
    ),
)
