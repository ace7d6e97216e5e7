"""Arithmetic: figures of one result, or of one table, that must multiply to each other within their printed digits."""

from collections.abc import Iterator
from operator import attrgetter

from tunemark.collector.audit.evidence import AuditedResult, Evidence, grouped
from tunemark.collector.audit.interval import Interval
from tunemark.collector.audit.rule import INCONSISTENT, SUSPICIOUS, Finding, about_figures, rule
from tunemark.collector.audit.token_rates import LAST_BATCH, expected_rows, rows_per_step
from tunemark.schema.physics.architecture import count_parameters

CPU_TIMES = ("wall_s", "user_s", "system_s")
FEW_STEPS = 3
"""A run with this few steps is mostly warm-up."""
SHORT_RUN_TOLERANCE = 0.15
"""Share by which the step time of a short run may differ from the step time of a longer run."""
EVALUATION_SERIES = ("source", "conditions.model", "conditions.method", "conditions.accelerator", "conditions.sequence_length")
"""Conditions that all results of a series over batch sizes share."""
SERIES_LENGTH = 3
"""Minimum number of batch sizes that can show a proportion."""
SAME_RATE = 0.03
"""Share by which rates per row of the batch may differ and still be proportional to the batch."""


def _wrong_product(result: AuditedResult, quantity: str, factor: str, expected: Interval, meaning: str, slack: float) -> Iterator[Finding]:
    """Yield a finding if no reading of the first figure times the second gives the expected figure."""
    readings, second = result.readings(quantity), result.interval(factor)
    if not readings or second is None:
        return
    products = [(words, first, first * second) for words, first in readings]
    if any(product.widened(slack).overlaps(expected) for _, _, product in products):
        return
    sums = "; ".join(
        f"{first.value:g} x {second.value:g} = {product.value:,.0f}{f' ({words})' if words else ''}" for words, first, product in products
    )
    nearest = products[0][2].value
    text = f"{sums}, but {meaning} = {expected.value:,.0f}: {nearest / expected.value - 1:+.1%}"
    numbers = {"product": nearest, "expected": expected.value}
    yield about_figures(INCONSISTENT, result, (quantity, factor), text, numbers)


@rule(id="rate-times-time", family="arithmetic", verdicts=(INCONSISTENT,))
def rate_times_time(evidence: Evidence) -> Iterator[Finding]:
    """Sample count that differs from rate x time.

    A rate is work over time, so rate x time is the work: epochs x rows, or steps x rows per step.
    """
    slack = evidence.facts.known.practice("clock-slack")
    for result in evidence.results:
        rows, steps, batch = expected_rows(result), result.interval("steps"), rows_per_step(result)
        if rows is not None and result.finished:
            # Trainers count all rows of the data, but drop the last steps that are not full.
            left_out = (batch or 0) / rows.value
            work = Interval(rows.value, rows.low, rows.high * (1 + max(LAST_BATCH, left_out)))
            meaning = f"epochs x rows of the dataset = {result.claims['epochs'].value:g} x {result.training_rows:,}"
        elif rows is None and steps is not None and batch is not None:
            work, meaning = steps * batch, f"steps x rows per step = {steps.value:g} x {batch}"
        else:
            continue
        for quantity in ("samples_per_s", "samples_per_s_reported"):
            yield from _wrong_product(result, quantity, "train_time_s", work, meaning, slack)


@rule(id="rows-of-a-step", family="arithmetic", verdicts=(INCONSISTENT,))
def rows_of_a_step(evidence: Evidence) -> Iterator[Finding]:
    """Batch that differs from samples/s over steps/s.

    Both rates cover the same time, so their ratio is the rows of a step: micro-batch x accumulation x data-parallel replicas.
    """
    slack = evidence.facts.known.practice("clock-slack")
    for result, (steps,) in evidence.with_intervals("steps_per_s"):
        conditions, readings = result.conditions, result.readings("samples_per_s")
        if conditions.micro_batch is None or result.replicas is None or not readings:
            continue
        accumulation = conditions.gradient_accumulation or 1
        expected = conditions.micro_batch * accumulation * result.replicas
        # Trainers count all rows of the data, so the rate of rows may hold a last step that was not full.
        number, time = result.interval("steps"), result.interval("train_time_s")
        number = number or (steps * time if time else None)
        last = 1 / number.value if number else 0.0
        # Only the literal reading is a printed rate. With known rows of the dataset, rate-times-time settles an ambiguous rate.
        ratio = readings[0][1] / steps
        if ratio.widened(max(slack, last)).overlaps(Interval.exact(float(expected))) or (
            len(readings) > 1 and expected_rows(result) is not None
        ):
            continue
        claim = result.printed("samples_per_s", "steps_per_s", "steps", "train_time_s")
        words = (
            f"{result.claims['samples_per_s'].printed} / {result.claims['steps_per_s'].printed} = {ratio.value:.1f} rows per step, but micro-batch x "
            f"accumulation x replicas = {conditions.micro_batch} x {accumulation} x {result.replicas} = {expected}"
        )
        numbers = {"rows_per_step": ratio.value, "expected": expected}
        # The verdict applies to the batch settings too: the document does not show which side is wrong.
        quantities, batch = ("samples_per_s", "steps_per_s"), ("micro_batch", "gradient_accumulation", "data_parallel")
        yield Finding(INCONSISTENT, (result.id,), claim, words, numbers, quantities, batch)


@rule(id="steps-times-step", family="arithmetic", verdicts=(INCONSISTENT,))
def steps_times_step(evidence: Evidence) -> Iterator[Finding]:
    """Training time that differs from steps x step time.

    Steps run one after another without a gap, so the total is their number times the step time (definitions#step-time).
    """
    slack = evidence.facts.known.practice("clock-slack")
    for result, (steps, time) in evidence.with_intervals("steps", "train_time_s"):
        yield from _wrong_product(result, "step_time_s", "steps", time, "training time in seconds", slack)
        yield from _wrong_product(result, "steps_per_s", "train_time_s", steps, "steps", slack)


@rule(id="epoch-times", family="arithmetic", verdicts=(INCONSISTENT,))
def epoch_times(evidence: Evidence) -> Iterator[Finding]:
    """Training time that differs from epochs x epoch time.

    Epochs run one after another without a gap, so the total is their number times the epoch time.
    """
    slack = evidence.facts.known.practice("clock-slack")
    for result, (time,) in evidence.with_intervals("train_time_s"):
        yield from _wrong_product(result, "epoch_time_s", "epochs", time, "training time in seconds", slack)


@rule(id="wall-covers-training", family="arithmetic", verdicts=(INCONSISTENT,))
def wall_covers_training(evidence: Evidence) -> Iterator[Finding]:
    """Wall time below the training time.

    Training is a phase of the process (definitions#phases).
    """
    slack = evidence.facts.known.practice("clock-slack")
    for result, (wall, time) in evidence.with_intervals("wall_s", "train_time_s"):
        if wall.high * (1 + slack) < time.low:
            words = f"wall {wall.value:,.1f} s < training {time.value:,.1f} s, which is part of it"
            numbers = {"wall_s": wall.value, "train_time_s": time.value}
            yield about_figures(INCONSISTENT, result, ("wall_s", "train_time_s"), words, numbers)


@rule(id="cpu-time", family="arithmetic", verdicts=(INCONSISTENT,))
def cpu_time(evidence: Evidence) -> Iterator[Finding]:
    """More CPU time than the cores provide.

    A core provides at most one CPU second per second.
    """
    cores = {row.instance: row.vcpus for row in evidence.facts.prices if row.vcpus}
    for result, (wall, user, system) in evidence.with_intervals(*CPU_TIMES):
        count = cores.get(result.conditions.instance or "")
        if count and (user + system).low > wall.high * count:
            total = (user + system).value
            words = f"{total:,.0f} CPU seconds > {wall.value:,.0f} s x {count} cores"
            yield about_figures(INCONSISTENT, result, CPU_TIMES, words, {"cpu_s": total, "cores": count})


@rule(id="trainer-flops", family="arithmetic", verdicts=(INCONSISTENT,))
def trainer_flops(evidence: Evidence) -> Iterator[Finding]:
    """Trainer FLOPs that imply another sequence length.

    The Trainer estimates 6 x parameters without embeddings x tokens, padding included (transformers, floating_point_ops). The
    estimate therefore implies the length of the rows.
    """
    for result, (flops, time) in evidence.with_intervals("total_flops", "train_time_s"):
        rates, length = result.readings("samples_per_s"), result.conditions.sequence_length
        if not rates or length is None or result.model is None:
            continue
        count = count_parameters(result.model)
        tokens = flops / (6.0 * (count.total - count.embedding))
        lengths = [tokens / (rate * time) for _, rate in rates]
        if any(each.widened(LAST_BATCH).overlaps(Interval.exact(float(length))) for each in lengths):
            continue
        claim = result.printed("total_flops", "samples_per_s", "train_time_s")
        words = (
            f"{flops.value:.4g} / (6 x {count.total - count.embedding:,}) = {tokens.value:,.0f} tokens, over {(rates[0][1] * time).value:,.0f} rows "
            f"= {lengths[0].value:.1f} tokens per row, not {length}"
        )
        numbers = {"tokens_per_row": lengths[0].value, "sequence_length": length}
        yield Finding(INCONSISTENT, (result.id,), claim, words, numbers, quantities=("total_flops",), conditions=("sequence_length",))


@rule(id="evaluation-rows", family="arithmetic", verdicts=(INCONSISTENT,))
def evaluation_rows(evidence: Evidence) -> Iterator[Finding]:
    """Row count of an evaluation that differs from its rate x time.

    An evaluation processes a fixed set of rows once, whatever the training batch is.
    """
    for result, (rate, time) in evidence.with_intervals("eval_samples_per_s", "eval_time_s"):
        rows = result.dataset.test_rows if result.dataset else None
        if rows is None:
            continue
        # One of two ranks sees half of the rows: any whole part is a possible reading.
        seen, ranks = rate * time, result.setting("processes") or result.setting("nproc") or 1
        cores = (result.accelerator.cores_per_unit or 1) * result.devices if result.accelerator else 1
        if any(seen.widened(LAST_BATCH).overlaps(Interval.exact(rows / part)) for part in range(1, max(ranks, cores) + 1)):
            continue
        words = f"{rate.value:g} x {time.value:g} s = {seen.value:,.0f} rows, but the set has {rows:,}"
        yield about_figures(INCONSISTENT, result, ("eval_samples_per_s", "eval_time_s"), words, {"product": seen.value, "rows": rows})


@rule(id="counter-not-rate", family="arithmetic", verdicts=(SUSPICIOUS,))
def proportional_to_batch(evidence: Evidence) -> Iterator[Finding]:
    """Rate in exact proportion to the batch.

    The time to evaluate a fixed set of rows does not depend on the training batch, so the rate cannot be proportional to the
    batch to within a per cent.
    """
    evaluated = [result for result, _ in evidence.with_intervals("eval_samples_per_s") if result.conditions.micro_batch]
    for results in grouped(evaluated, attrgetter(*EVALUATION_SERIES)).values():
        rates = {
            batch: (result, result.claims["eval_samples_per_s"].value / batch)
            for result in reversed(results)
            if (batch := result.conditions.micro_batch)
        }
        middle = sorted(each for _, each in rates.values())[len(rates) // 2]
        same = [(batch, *rates[batch]) for batch in sorted(rates) if abs(rates[batch][1] / middle - 1) <= SAME_RATE]
        if len(same) < SERIES_LENGTH or same[-1][0] < 2 * same[0][0]:
            continue
        printed = [(result.claims["eval_samples_per_s"], batch, each) for batch, result, each in same]
        shown = "evaluation rates " + ", ".join(f"{claim.printed} at batch {batch}" for claim, batch, _ in printed)
        words = (
            "; ".join(f"{claim.value:g} / {batch} = {each:.2f}" for claim, batch, each in printed)
            + " batches/s: a rate in exact proportion to the training batch counts batches"
        )
        numbers = {f"batches/s at {batch}": each for _, batch, each in printed}
        yield Finding(SUSPICIOUS, tuple(result.id for _, result, _ in same), shown, words, numbers, quantities=("eval_samples_per_s",))


@rule(id="epoch-work", family="arithmetic", verdicts=(INCONSISTENT,))
def work_of_an_epoch(evidence: Evidence) -> Iterator[Finding]:
    """Epochs of one table that differ in size.

    Tokens/s x epoch time is the size of the dataset in tokens. Only another tokenizer changes it, by tens of per cent.
    """
    slack, spread = evidence.facts.known.practice("clock-slack"), evidence.facts.known.practice("tokeniser-spread")
    timed = [(result, (rate * time).widened(slack)) for result, (rate, time) in evidence.with_intervals("tokens_per_s", "epoch_time_s")]
    for rows in grouped(timed, lambda row: (row[0].source, row[0].section)).values():
        (low, least), (high, most) = min(rows, key=lambda row: row[1].value), max(rows, key=lambda row: row[1].value)
        same_vocabulary = low.model is not None and high.model is not None and low.model.vocabulary == high.model.vocabulary
        if least.high * (1.0 if same_vocabulary else spread) >= most.low:
            continue
        records = tuple(result.id for result, _ in rows)
        claim = "tokens per second and epoch time, row by row"
        words = (
            "; ".join(
                f"{result.id} {result.claims['tokens_per_s'].printed} x {result.claims['epoch_time_s'].printed} = {tokens.value / 1e6:.1f}M tokens"
                for result, tokens in rows
            )
            + f": epochs of one dataset cannot differ by a factor of {most.value / least.value:.1f}"
        )
        numbers = {f"tokens, {result.id}": tokens.value for result, tokens in rows}
        yield Finding(INCONSISTENT, records, claim, words, numbers, quantities=("tokens_per_s", "epoch_time_s"))


@rule(id="short-run", family="arithmetic", verdicts=(SUSPICIOUS,))
def short_runs(evidence: Evidence) -> Iterator[Finding]:
    """Step time from a few steps that a longer run contradicts.

    The first steps compile, fill caches and grow the allocator (definitions#steady-window).
    """
    for result in evidence.results:
        steps, time = result.interval("steps"), result.interval("step_time_s")
        if result.measured or steps is None or time is None or steps.value > FEW_STEPS:
            continue
        for other in evidence.results:
            longer, reference = other.interval("steps"), other.interval("step_time_s")
            if (other.source, other.conditions.model) != (result.source, result.conditions.model) or not longer or not reference:
                continue
            ratio = time.value / reference.value
            if longer.value > steps.value and abs(ratio - 1) > SHORT_RUN_TOLERANCE:
                claim = f"{result.printed('step_time_s', 'steps')} and {other.printed('step_time_s', 'steps')}"
                words = f"{time.value:g} s over {steps.value:g} steps, {reference.value:g} s over {longer.value:g} steps: {ratio - 1:+.1%}"
                numbers = {"step_time_s": time.value, "longer_step_time_s": reference.value}
                yield Finding(SUSPICIOUS, (result.id, other.id), claim, words, numbers, quantities=("step_time_s",))


@rule(id="share-of-total", family="arithmetic", verdicts=(INCONSISTENT,))
def shares_of_totals(evidence: Evidence) -> Iterator[Finding]:
    """Memory that differs from its share of the total.

    A share times its total is the amount. A total over several devices is divided by their number.
    """
    names = ("device_memory_peak_share", "device_memory_total_bytes", "peak_memory_bytes")
    for result, (share, total) in evidence.with_intervals("device_memory_peak_share", "device_memory_total_bytes"):
        each = share * total / result.devices
        for meaning, peak in result.readings("peak_memory_bytes"):
            if "together" not in meaning and not each.overlaps(peak):
                sums = f"{share.value:.2%} x {total.value / 1e9:g} GB / {result.devices} = {each.value / 1e9:.1f} GB"
                numbers = {"computed": each.value, "printed": peak.value}
                yield about_figures(INCONSISTENT, result, names, f"{sums}, not {peak.value / 1e9:.1f} GB", numbers)
