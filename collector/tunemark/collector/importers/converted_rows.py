"""How converted results become rows: their statistics, the raw values of their runs, and the round they belong to."""

import statistics
from collections.abc import Callable, Iterable, Iterator

from tunemark.collector.rows import Row, Rows, merge, text
from tunemark.schema.comparability import comparability_group
from tunemark.schema.records.converted import ConvertedResult, TimeToTarget, time_to_target, training_rate
from tunemark.schema.statistics.intervals import Interval
from tunemark.schema.vocabulary import Task, Trust

REPOSITORY = "https://github.com/mlcommons/training_results_{}"
PUBLISHED_ON = {"v4.1": "2024-11-13", "v5.0": "2025-06-04", "v5.1": "2025-11-12"}
"""Days on which MLCommons published the rounds."""
CAVEATS = (
    "Submitters choose batch size, learning rate and number format within the rules of the benchmark; the number format is not in the logs.",
    "A sample is a packed row of 8,192 tokens, not a document; the logs do not count tokens.",
    "Model, data set, sequence length and packing are those of the benchmark's rules; the logs do not say them.",
    "Time to target runs from run_start to run_stop: evaluation is part of it, loading and compiling are not.",
    "Samples a second are counted while training, evaluation left out.",
    "MLPerf is a trademark of MLCommons Association. The logs are under Apache-2.0.",
)


def source_id(result: ConvertedResult) -> str:
    """Return the source of a result: its harness and round, such as `mlperf-v5.1`."""
    return f"{result.harness}-{result.round}"


def converted_rows(results: Iterable[tuple[ConvertedResult, str, str]]) -> Rows:
    """Return the rows of converted results, each with its file and the hash of it, and of the rounds they belong to."""
    rows: Rows = {}
    rounds: dict[str, list[ConvertedResult]] = {}
    for result, file, sha256 in results:
        rounds.setdefault(source_id(result), []).append(result)
        merge(rows, result_rows(result, file, sha256))
    merge(rows, {"sources": [_source(name, members) for name, members in sorted(rounds.items())]})
    return rows


def result_rows(result: ConvertedResult, file: str, sha256: str) -> Rows:
    """Return the rows of one result by table."""
    times, rate = time_to_target(result), training_rate(result)
    return {
        "result_rows": [_headline(result, times, rate) | {"file": file, "sha256": sha256}],
        "runs": [
            {
                "result_id": result.id,
                "run": number,
                "samples_per_s": run.samples_per_s,
                **run.model_dump(mode="json", include={"file", "status", "seed", "init_s", "time_to_target_s", "samples"}),
            }
            for number, run in enumerate(result.runs, start=1)
        ],
        "run_curves": [
            {"result_id": result.id, "run": number, "evaluation": index, "samples": samples, "seconds": at_s, "eval_loss": loss}
            for number, run in enumerate(result.runs, start=1)
            for index, (samples, at_s, loss) in enumerate(zip(run.curve.samples, run.curve.at_s, run.curve.eval_loss, strict=True), start=1)
        ],
        "result_facts": [{"result_id": result.id, **fact} for fact in (*_derived(result, times, rate), *_printed(result))],
    }


def _headline(result: ConvertedResult, times: TimeToTarget, rate: Interval | None) -> Row:
    conditions = result.conditions
    optimizer = conditions.settings.get("optimizer")
    compared: Row = {
        "model": conditions.model,
        "task": Task.CAUSAL_LM.value,
        "method": conditions.method.value,
        "dataset": conditions.dataset,
        "sequence_length": conditions.sequence_length,
        "padding": None if conditions.padding is None else conditions.padding.value,
        "packing": conditions.packing,
        "global_batch": conditions.global_batch,
        "precision": conditions.precision,
        "optimizer": None if optimizer is None else str(optimizer),
        "step_definition": "optimizer_step",
    }
    median = times.median
    return {
        "result_id": result.id,
        "source": source_id(result),
        "trust": Trust.CONVERTED.value,
        "section": f"{result.submitter}: {result.system.name}",
        **compared,
        "comparability_group": comparability_group(compared),
        "rankable": False,
        "accelerator": conditions.accelerator,
        "accelerator_printed": result.system.accelerator_printed,
        "accelerator_count": conditions.accelerator_count,
        "nodes": result.system.nodes,
        "status": "ok" if times.score_s is not None else "partial",
        "gradient_accumulation": conditions.gradient_accumulation,
        "step_time_s": conditions.global_batch / rate.value if conditions.global_batch and rate and rate.value else None,
        "train_time_s": None if median is None else median.value,
        "time_to_target_s": None if median is None else median.value,
        "time_to_target_low_s": median.low if median and median.bounded else None,
        "time_to_target_high_s": median.high if median and median.bounded else None,
        "samples_per_s": None if rate is None else rate.value,
        "samples_per_s_low": rate.low if rate and rate.bounded else None,
        "samples_per_s_high": rate.high if rate and rate.bounded else None,
        "eval_loss": _median(run.curve.eval_loss[-1] for run in result.runs if run.status == "ok" and run.curve.eval_loss),
        "epochs": _epochs(result),
        "evaluation_rows": _whole(conditions.settings.get("eval_samples")),
        "note": " ".join((f"{result.label}.", *_missing_runs(times), *result.notes)),
    }


def _missing_runs(times: TimeToTarget) -> Iterator[str]:
    if times.reached < times.runs:
        yield f"{times.reached} of {times.runs} runs reached the target; the others count as longer than any of them."


def _derived(result: ConvertedResult, times: TimeToTarget, rate: Interval | None) -> Iterator[Row]:
    interval = "order statistics of the runs; at least 95%"
    figures: list[tuple[str, object, str]] = [
        ("time_to_target.runs", times.runs, "logs of the entry"),
        ("time_to_target.reached", times.reached, "runs whose run_stop says success after an evaluation at the target"),
        ("time_to_target.score_s", times.score_s, "mean without the fastest and the slowest run, the rule of MLPerf Training"),
        (
            "time_to_target.median_s",
            times.median and times.median.value,
            "median of all runs; one that did not reach the target counts as longer than any other",
        ),
        ("time_to_target.low_s", times.median and times.median.low, interval),
        ("time_to_target.high_s", times.median.high if times.median and times.median.bounded else None, interval),
        ("time_to_target.fastest_s", times.fastest_s, "fastest run"),
        ("time_to_target.slowest_s", times.slowest_s, "slowest run that reached the target"),
        ("train_time_s", times.median and times.median.value, "median time to target, evaluation included"),
        ("samples_per_s", rate and rate.value, "samples of all runs / seconds in their training blocks; 95% interval over the runs"),
        (
            "step_time_s",
            rate and result.conditions.global_batch and result.conditions.global_batch / rate.value,
            "global batch / samples a second",
        ),
        (
            "eval_loss",
            _median(run.curve.eval_loss[-1] for run in result.runs if run.status == "ok" and run.curve.eval_loss),
            "median of the last evaluations",
        ),
        ("epochs", _epochs(result), "median samples of the runs / train_samples"),
    ]
    for name, value, reason in figures:
        if value is not None:
            yield {"topic": "derived", "name": name, "value": text(value), "reason": reason}


def _printed(result: ConvertedResult) -> Iterator[Row]:
    conditions = result.conditions
    entry = result.model_dump(
        mode="json", include={"label", "benchmark", "round", "division", "submitter", "source", "folder", "target_eval_loss"}
    )
    for topic, values, reason in (
        ("entry", entry, lambda name: _rule(name, conditions.assumed)),
        ("system", result.system.model_dump(mode="json"), _never),
        ("packages", dict(conditions.framework), _never),
        ("settings", dict(conditions.settings), lambda name: _rule(f"settings.{name}", conditions.assumed)),
        (
            "conditions",
            conditions.model_dump(mode="json", exclude={"framework", "settings", "assumed", "from_repository"}),
            lambda name: _rule(name, conditions.assumed),
        ),
    ):
        yield from _topic(topic, values, reason)


def _topic(topic: str, values: Row, reason: Callable[[str], str | None]) -> Iterator[Row]:
    for name, value in values.items():
        if value not in (None, []):
            yield {"topic": topic, "name": name, "value": text(value), "reason": reason(name)}


def _never(_: str) -> None:
    """Return no reason: what is printed is printed."""


def _rule(name: str, assumed: tuple[str, ...]) -> str | None:
    return "fixed by the rules of the benchmark; the logs do not say it" if name in assumed else None


def _source(name: str, results: list[ConvertedResult]) -> Row:
    first = results[0]
    submitters = {result.submitter for result in results}
    runs = sum(len(result.runs) for result in results)
    targets = sorted({result.target_eval_loss for result in results if result.target_eval_loss is not None})
    target = f"an eval loss of {targets[0]:g}" if len(targets) == 1 else "the target"
    return {
        "source": name,
        "title": f"MLPerf Training {first.round}, Llama 2 70B LoRA",
        "authors": f"{len(submitters)} submitters; MLCommons Association",
        "published_on": PUBLISHED_ON.get(first.round),
        "url": REPOSITORY.format(first.round),
        "origin_repository": first.source,
        "summary": f"Time to tune LoRA adapters of Llama 2 70B to {target}: {len(results)} entries of {len(submitters)} submitters, {runs} runs.",
        "caveats": [f"{first.label}.", *CAVEATS],
    }


def _epochs(result: ConvertedResult) -> float | None:
    samples, rows = (
        _median(run.samples for run in result.runs if run.status == "ok" and run.samples),
        _whole(result.conditions.settings.get("train_samples")),
    )
    return samples / rows if samples and rows else None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(statistics.median(known)) if known else None


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
