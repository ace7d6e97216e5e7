"""Document 001's own sweeps on Trainium: batch size, sequence length, compiler flags, learning rates, rounding, padding, roofline."""

import json
from collections.abc import Iterator, Sequence

from tunemark.schema.formats import flop_per_s
from tunemark.schema.statistics.intervals import ShareDifference, share_difference
from tunemark.site import tables, wording
from tunemark.site.charts import Chart
from tunemark.site.pages.studies import (
    Evidence,
    Sentence,
    Study,
    ambiguous_caveat,
    ratio,
    result_link,
    scatter,
    sentence,
    share,
    written,
)
from tunemark.site.tables import Column, Row, Table

ORDER = 6
SOURCE = "001"
BATCHES, LENGTHS, COMPILER, RATES, DYNAMIC = (
    "batch scaling",
    "sequence length sweep",
    "compiler optlevel",
    "LR / LLRD tuning",
    "dynamic padding",
)
"""First words of the sections that hold the sweeps."""
DECAY = ", LLRD"
"""Separates the learning rate from the layer-wise decay in the printed configuration."""
PAIR = 2


def study(evidence: Evidence) -> Study:
    """Return the study of the sweeps of document 001."""
    rows = evidence.of_source(SOURCE)
    evaluated = evaluated_rows(evidence)
    sentences = written(
        [
            _batches(evidence, rows),
            _last_batch(evidence, rows),
            *_lengths(evidence, rows, evaluated),
            *_configurations(evidence, rows, evaluated),
            _decay(evidence, rows, evaluated),
            _roofline(evidence, rows),
            *_rounding(evidence, rows, evaluated),
            _padding(evidence, rows),
        ]
    )
    swept = [row for name in (BATCHES, LENGTHS, COMPILER, RATES) for row in _sweep(rows, name)]
    return Study(
        key="bert-tuning",
        title="BERT on Trainium: batch, length, compiler and learning rate",
        question="Which settings make BERT fine-tuning on Trainium faster, and which change its accuracy?",
        sentences=sentences,
        tables=(_table(evidence, swept),) if swept else (),
        draw=(lambda: _chart(evidence, rows),),
        method=(
            f"All results are from document {SOURCE}. Each sweep changes one setting.",
            "The standard error of a difference of two accuracies follows from the number of evaluated rows. A difference is significant if its 95% interval does not contain zero.",
            "The roofline compares attained FLOP/s with arithmetic intensity, both as printed in the document.",
        ),
        caveats=(
            "Each setting was run once or twice, so differences in time include the variation between runs, which the document does not state.",
            "According to the audit, the printed points describe one core and the printed roof two cores, so the roofline shows a trend, not a distance from the peak.",
            "The document states no compile time with a cold or a warm cache, so the effect of the cache is unknown.",
            "Stochastic rounding on and off were evaluated on the same rows. The standard error treats the two accuracies as independent, so it may be too large.",
            *ambiguous_caveat(evidence, sentences),
        ),
    )


def _sweep(rows: Sequence[Row], name: str) -> list[Row]:
    return [row for row in rows if (row["section"] or "").startswith(name)]


def evaluated_rows(evidence: Evidence) -> int | None:
    """Return the number of evaluated rows, which the audit reads from the facts about the dataset."""
    found = {
        json.loads(finding["numbers"])["rows"]
        for finding in evidence.catalogue.findings
        if finding["rule"] == "evaluation-rows" and finding["record_ids"][0].startswith(SOURCE)
    }
    return int(found.pop()) if len(found) == 1 else None


def _timed(evidence: Evidence, rows: Sequence[Row], name: str, by: str) -> list[tuple[Row, float]]:
    """Return the results of a sweep with their time per epoch, in the order of a column."""
    found = [(row, value) for row in _sweep(rows, name) if row[by] is not None and (value := evidence.figure(row, "epoch_time_s"))]
    return sorted(found, key=lambda pair: pair[0][by])


def _batches(evidence: Evidence, rows: Sequence[Row]) -> Sentence | None:
    sweep = _timed(evidence, rows, BATCHES, "micro_batch")
    if len(sweep) < PAIR:
        return None
    (first, slow), (last, fast) = sweep[0], sweep[-1]
    return sentence(
        f"From batch {first['micro_batch']} to {last['micro_batch']} at {first['sequence_length']} tokens, an epoch gets {ratio(slow / fast)} faster: "
        f"{wording.seconds(slow)} to {wording.seconds(fast)}.",
        [row for row, _ in sweep],
    )


def _last_batch(evidence: Evidence, rows: Sequence[Row]) -> Sentence | None:
    sweep = _timed(evidence, rows, BATCHES, "micro_batch")
    if len(sweep) <= PAIR:
        return None
    (first, slow), (second, faster), *_, (before, nearly), (last, fast) = sweep
    return sentence(
        f"The gain shrinks: batch {second['micro_batch']} is {ratio(slow / faster)} faster than batch {first['micro_batch']}, "
        f"batch {last['micro_batch']} only {ratio(nearly / fast)} faster than batch {before['micro_batch']}.",
        [first, second, before, last],
    )


def _difference(evidence: Evidence, row: Row, other: Row, evaluated: int | None) -> ShareDifference | None:
    """Return the difference of two accuracies with its standard error."""
    values = [evidence.figure(each, "accuracy") for each in (row, other)]
    if evaluated is None or values[0] is None or values[1] is None:
        return None
    return share_difference(values[1], evaluated, values[0], evaluated)


def _points(difference: ShareDifference) -> str:
    verdict = "significant" if difference.significant else "not significant"
    return f"{100 * difference.difference:+.2f} percentage points, standard error {100 * difference.standard_error:.2f}, {verdict}"


def _lengths(evidence: Evidence, rows: Sequence[Row], evaluated: int | None) -> Iterator[Sentence | None]:
    sweep = _timed(evidence, rows, LENGTHS, "sequence_length")
    if len(sweep) < PAIR:
        return
    (first, fast), (last, slow) = sweep[0], sweep[-1]
    yield sentence(
        f"Rows of {first['sequence_length']} tokens take {wording.seconds(fast)} for an epoch, rows of {last['sequence_length']} tokens {wording.seconds(slow)}: "
        f"{ratio(last['sequence_length'] / first['sequence_length'])} the length for {ratio(slow / fast)} the time.",
        [row for row, _ in sweep],
    )
    parts = [(row, _difference(evidence, row, last, evaluated)) for row, _ in sweep[:-1]]
    known = [(row, difference) for row, difference in parts if difference]
    if known:
        shown = [f"{row['sequence_length']} tokens: {_points(difference)}" for row, difference in known]
        yield sentence(
            f"Accuracy compared with rows of {last['sequence_length']} tokens: {'; '.join(shown)}.", [last, *(row for row, _ in known)]
        )


def _configurations(evidence: Evidence, rows: Sequence[Row], evaluated: int | None) -> Iterator[Sentence | None]:
    """Yield the effect of the compiler flags and of the learning rates."""
    flags = [row for row in _sweep(rows, COMPILER) if evidence.figure(row, "epoch_time_s") and evidence.label(row, "configuration")]
    if len(flags) >= PAIR:
        fast, slow = (pick(flags, key=lambda row: row["epoch_time_s"]) for pick in (min, max))
        difference = _difference(evidence, fast, slow, evaluated)
        accuracy = f" Accuracy of the first minus the second: {_points(difference)}." if difference else ""
        yield sentence(
            f"{len(flags)} sets of compiler flags differ by {share(slow['epoch_time_s'] / fast['epoch_time_s'] - 1)} in time per epoch, from "
            f"{wording.seconds(fast['epoch_time_s'])} ({_flags(evidence, fast)}) to {wording.seconds(slow['epoch_time_s'])} ({_flags(evidence, slow)}).{accuracy}",
            flags,
        )
    rates = [row for row in _sweep(rows, RATES) if evidence.figure(row, "accuracy") and evidence.label(row, "configuration")]
    if len(rates) >= PAIR:
        best, worst = (pick(rates, key=lambda row: row["accuracy"]) for pick in (max, min))
        differences = [difference for row in rates if row is not best and (difference := _difference(evidence, row, best, evaluated))]
        same = sum(not difference.significant for difference in differences)
        text = (
            f"Across {len(rates)} settings of the learning rate and its decay, the accuracy ranges from {worst['accuracy']:.2%} ({evidence.label(worst, 'configuration')}) to "
            f"{best['accuracy']:.2%} ({evidence.label(best, 'configuration')})."
        )
        yield sentence(
            f"{text} {same} of the other {len(differences)} do not differ significantly from the best." if differences else text, rates
        )


def _flags(evidence: Evidence, row: Row) -> str:
    return (evidence.label(row, "configuration") or "").rpartition("--")[2]


def _decay(evidence: Evidence, rows: Sequence[Row], evaluated: int | None) -> Sentence | None:
    """Return the effect of the layer-wise decay at each learning rate that was run with and without it."""
    named = [(row, evidence.label(row, "configuration") or "") for row in _sweep(rows, RATES)]
    plain = {label: row for row, label in named if DECAY not in label}
    pairs = [(label, row, plain[rate]) for row, label in named if DECAY in label and (rate := label.partition(DECAY)[0]) in plain]
    known = [(label, row, other, difference) for label, row, other in pairs if (difference := _difference(evidence, row, other, evaluated))]
    if not known:
        return None
    significant = sum(difference.significant for *_, difference in known)
    low, high = (pick(100 * difference.difference for *_, difference in known) for pick in (min, max))
    return sentence(
        f"Layer-wise decay changes the accuracy by {low:+.2f} to {high:+.2f} percentage points at {len(known)} settings with the same learning rate; "
        f"{significant or 'none'} of these differences {'is' if significant <= 1 else 'are'} significant.",
        [each for _, row, other, _ in known for each in (row, other)],
    )


def _roof_points(evidence: Evidence, rows: Sequence[Row]) -> list[tuple[Row, float, float]]:
    found = [
        (row, evidence.figure(row, "arithmetic_intensity"), evidence.figure(row, "attained_flop_per_s")) for row in _sweep(rows, BATCHES)
    ]
    return sorted(((row, x, y) for row, x, y in found if x and y), key=lambda point: point[0]["micro_batch"])


def _roofline(evidence: Evidence, rows: Sequence[Row]) -> Sentence | None:
    points = _roof_points(evidence, rows)
    if len(points) < PAIR:
        return None
    (first, x0, y0), (last, x1, y1) = points[0], points[-1]
    ridge = _ridge(evidence, rows)
    left = sum(x < ridge for _, x, _ in points) if ridge else 0
    limit = (
        f" {left} of {len(points)} points are left of the ridge point of the accelerator ({ridge:.1f} FLOP/byte), where memory bandwidth, not compute, sets the upper bound."
        if ridge
        else ""
    )
    return sentence(
        f"From batch {first['micro_batch']} to {last['micro_batch']} the arithmetic intensity rises from {x0:.1f} to {x1:.1f} FLOP/byte and the attained rate from "
        f"{flop_per_s(y0)} to {flop_per_s(y1)}: {ratio(x1 / x0)} the intensity, {ratio(y1 / y0)} the rate.{limit}",
        [row for row, *_ in points],
    )


def rounded(evidence: Evidence, rows: Sequence[Row], evaluated: int | None) -> list[tuple[Row, ShareDifference]]:
    """Return the results with the change of accuracy by stochastic rounding and its standard error."""
    known = ((row, evidence.figure(row, "accuracy"), evidence.figure(row, "accuracy_stochastic_rounding")) for row in rows)
    return [(row, share_difference(off, evaluated, on, evaluated)) for row, off, on in known if evaluated and off and on]


def _rounding(evidence: Evidence, rows: Sequence[Row], evaluated: int | None) -> Iterator[Sentence | None]:
    """Yield the effect of stochastic rounding on the accuracy."""
    pairs = rounded(evidence, rows, evaluated)
    if pairs:
        parts = [f"{row['sequence_length']} tokens: {_points(difference)}" for row, difference in pairs]
        yield sentence(f"Accuracy with stochastic rounding minus accuracy without it. {'; '.join(parts)}.", [row for row, _ in pairs])


def padded(evidence: Evidence, rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return the results with dynamic padding, which failed, and those with rows of a fixed length."""
    failed = [row for row in evidence.catalogue.results if row["source"] == SOURCE and row["failed"] and row["section"] == DYNAMIC]
    return failed, [row for row in _sweep(rows, LENGTHS) if evidence.figure(row, "train_time_s")]


def _padding(evidence: Evidence, rows: Sequence[Row]) -> Sentence | None:
    """Return the outcome of dynamic padding compared with rows of a fixed length."""
    failed, static = padded(evidence, rows)
    if not failed or not static:
        return None
    passed = evidence.claim(failed[0], "wall_s")
    shown = f" after {wording.seconds(passed)}" if passed else ""
    times = [evidence.figure(row, "train_time_s") or 0.0 for row in static]
    return sentence(
        f"The training run with dynamic padding failed{shown}; the document names the compilation of each new shape as the cause. With rows of a fixed length a training run took "
        f"{wording.seconds(min(times))} to {wording.seconds(max(times))}.",
        [*failed, *static],
    )


def _table(evidence: Evidence, rows: Sequence[Row]) -> Table:
    columns: list[Column[Row]] = [
        Column("Setting", lambda row: result_link(evidence.label(row, "configuration") or row["section"], row)),
        Column("Tokens per row", lambda row: tables.number(row["sequence_length"]), numeric=True),
        Column("Batch", lambda row: tables.number(row["micro_batch"]), numeric=True),
        Column("Time per epoch", lambda row: tables.number(evidence.figure(row, "epoch_time_s"), wording.seconds), numeric=True),
        Column("Accuracy", lambda row: tables.number(evidence.figure(row, "accuracy"), lambda value: f"{value:.2%}"), numeric=True),
    ]
    return tables.table("Sweeps", columns, rows, interactive=True, searchable=False)


def _ridge(evidence: Evidence, rows: Sequence[Row]) -> float | None:
    """Return the ridge point in FLOP/byte: peak FLOP/s / memory bandwidth, from the record of the accelerator.

    It is the same for one core and for the chip, since both have the same share of the peak and of the bandwidth.
    """
    used = {row["accelerator"] for row, *_ in _roof_points(evidence, rows)}
    records = [row for row in evidence.catalogue.accelerators if row["accelerator"] in used]
    if len(records) != 1 or not records[0]["peak_bf16_tflops"] or not records[0]["memory_bandwidth_gb_s"]:
        return None
    return float(1000 * records[0]["peak_bf16_tflops"] / records[0]["memory_bandwidth_gb_s"])


def _chart(evidence: Evidence, rows: Sequence[Row]) -> Chart | None:
    values = [
        {"x": x, "y": y / 1e12, "series": "Trainium", "line": "batches", "label": f"batch {row['micro_batch']}"}
        for row, x, y in _roof_points(evidence, rows)
    ]
    ridge = _ridge(evidence, rows)
    caption = "Attained TFLOP/s over arithmetic intensity, one point per batch size, on logarithmic scales."
    caption += (
        f" The dashed line is the ridge point of the accelerator, {ridge:.1f} FLOP/byte. To its left, memory bandwidth sets the upper bound."
        if ridge
        else ""
    )
    return scatter("roofline", caption, values, "FLOP/byte", "TFLOP/s", None, lines=True, rule=ridge)
