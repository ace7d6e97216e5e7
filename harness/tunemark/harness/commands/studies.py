"""`tunemark sweep`, `frontier`, `tune`, `ab` and `predict`: series of runs, and a whole job predicted from short runs."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from tunemark.harness.commands.run import Out, Workload, answer, count, option, row_length, takes_run_options
from tunemark.harness.plan.resolve import Options, fraction
from tunemark.harness.studies.comparison import run_ab, run_sweep
from tunemark.harness.studies.search import Over, run_frontier, run_tune
from tunemark.harness.studies.series import Bench, read_submission
from tunemark.schema import formats
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.utilisation import units_per_node
from tunemark.schema.records.submission import Submission
from tunemark.schema.statistics.intervals import FEWEST_PAIRS, Interval
from tunemark.terminal import AsJson, print_json, print_table, tell

app = typer.Typer(rich_markup_mode="markdown", context_settings={"help_option_names": ["-h", "--help"]})

OVER = "Vary this setting; several form a grid. Without values: those of the card. Without --over: the card's axes, one at a time."
Again = Annotated[bool, option("--again", "Start again instead of resuming.")]


@app.command()
@takes_run_options
def sweep(
    workload: Workload,
    *,
    over: Annotated[list[str] | None, option("--over", OVER, "FIELD[=V1,V2,..]")] = None,
    repeats: Annotated[int, option("--repeats", "Run each point N times, alternating between points.", "N", min=1)] = 1,
    out: Out = None,
    again: Again = False,
    as_json: AsJson = False,
    options: Options,
) -> None:
    """Run a workload at several points. Each point has a fresh process and its own submission.

    A point that runs out of memory or crashes is a result and does not stop the others. Ctrl-C stops after the current
    submission; the same command resumes. A point on an axis of the card stays in the standard division.

    Examples
    --------
    - `tunemark sweep smoke-bert --over batch_size=8,16,32,48,64`
    - `tunemark sweep smoke-lora --over seq=64,128 --over rank=8,16`
    """
    bench = Bench.here(options, out, again=again)
    answer(run_sweep(workload, over or (), options, bench, repeats=repeats), as_json=as_json)


def counts(text: str | tuple[int, ...]) -> tuple[int, ...]:
    """Return the row lengths of a list, for typer, which also gives the default."""
    return text if isinstance(text, tuple) else tuple(row_length(part) for part in text.split(","))


@app.command()
@takes_run_options
def frontier(
    workload: Workload,
    *,
    over: Annotated[Over, option("--over", "Maximise micro_batch or sequence_length.", "FIELD")] = Over.MICRO_BATCH,
    seq: Annotated[Any, option("--seq", "Largest micro-batch at these lengths.", "N,N,..", parser=counts)] = (),  # noqa: ANN401 - what the parser returns
    limit_memory: Annotated[float | None, option("--limit-memory", "Host memory at most. Default: 80%.", "GIB", min=0.1)] = None,
    most: Annotated[int, option("--most", "Try micro-batches up to this size.", "N", parser=count)] = 65_536,
    within: Annotated[str | None, option("--within", "Tolerance, as 10%. Default: exact.", "SHARE")] = None,
    out: Out = None,
    again: Again = False,
    as_json: AsJson = False,
    options: Options,
) -> None:
    """Find the largest micro-batch and the longest sequence that fit, by doubling and then bisection.

    Each trial is a short run on full rows. Out of memory means that it does not fit; any other failure ends the search with its reason. The
    same command resumes where it stopped.

    Examples
    --------
    - `tunemark frontier smoke-lora --limit-memory 2`
    - `tunemark frontier smoke-lora --seq 128,256 --within 10%`
    - `tunemark frontier smoke-lora --over sequence_length`
    """
    question = {"over": over, "lengths": seq, "most": most, "within": fraction("--within", within) if within else 0.0}
    limit_bytes = None if limit_memory is None else int(limit_memory * formats.GIB)
    bench = Bench.here(options, out, again=again)
    answer(run_frontier(workload, options, bench, limit_bytes=limit_bytes, **question), as_json=as_json)


@app.command()
@takes_run_options
def tune(
    workload: Workload,
    *,
    minutes: Annotated[float, option("--minutes", "Search for at most N minutes, earlier trials included.", "N", min=0.1)] = 30.0,
    repeats: Annotated[int, option("--repeats", "Measure both settings N times; a verdict needs three.", "N", min=1)] = 3,
    out: Out = None,
    again: Again = False,
    as_json: AsJson = False,
    options: Options,
) -> None:
    """Find the fastest configuration of the tuned division on this machine, then measure it beside the card's.

    It varies one setting at a time: checkpointing, the split of the global batch, compilation, fp8 frozen weights, fused kernels,
    attention, the SDPA kernel, the compile mode and, with several devices, the strategy. A setting given with --set is not varied. Trials
    are short and are not ranked. The final measurement runs in fresh processes, interleaved as in `ab`. Its submissions are in the standard
    and tuned divisions. Run the same command again to resume.

    Examples
    --------
    - `tunemark tune lora-8b`
    - `tunemark tune smoke-lora --minutes 5 --repeats 5`
    - `tunemark tune full-8b --devices 8 --set compile=none --json`
    """
    bench = Bench.here(options, out, again=again)
    answer(run_tune(workload, options, bench, budget_s=60 * minutes, runs=repeats), as_json=as_json)


@app.command()
@takes_run_options
def ab(
    workload: Workload,
    *,
    a: Annotated[str, option("--a", "Set A, the baseline.", "FIELD=VALUE,..")],
    b: Annotated[str, option("--b", "Set B.", "FIELD=VALUE,..")],
    repeats: Annotated[int, option("--repeats", "Run each setting N times; a verdict needs three.", "N", min=FEWEST_PAIRS)] = 5,
    out: Out = None,
    again: Again = False,
    as_json: AsJson = False,
    options: Options,
) -> None:
    """Compare two settings in interleaved runs A B, B A, A B .. in fresh processes. Each run writes a submission.

    B is faster only when the 95% interval of the pairs' ratios lies entirely above 1. Memory and loss are compared too, and a
    changed loss is reported. Both runs of a pair share a seed; the seed differs between pairs. With compilation, the report shows
    after how many steps it pays off.

    Examples
    --------
    - `tunemark ab smoke-lora --a compile=none --b compile=blocks`
    - `tunemark ab smoke-lora --a attention=eager --b attention=sdpa --repeats 8`
    """
    bench = Bench.here(options, out, again=again)
    answer(run_ab(workload, a, b, options, bench, pairs=repeats), as_json=as_json)


@app.command()
def predict(
    submissions: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="The submission of a short run, or the submissions of its repeats.")
    ],
    *,
    steps: Annotated[int | None, option("--steps", "Optimizer steps in the job.", "N", parser=count)] = None,
    samples: Annotated[int | None, option("--samples", "Samples in the job's dataset, such as 50k.", "N", parser=count)] = None,
    tokens: Annotated[int | None, option("--tokens", "Real tokens in the job's dataset, such as 10M.", "N", parser=count)] = None,
    epochs: Annotated[int, option("--epochs", "Passes over the data, each with an evaluation if the run had one.", "N", parser=count)] = 1,
    usd_per_hour: Annotated[
        float | None, option("--usd-per-hour", "Price of all machines. Default: the on-demand list price in data/prices.", "USD", min=0)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict the time and cost of a whole job from short runs on the same machine.

    With one run, the interval covers the rest of the same process. With repeats, it covers a new process.

    Examples
    --------
    - `tunemark predict RUN.json --samples 16k --epochs 3`
    - `tunemark predict RUN.json --steps 5000 --usd-per-hour 4.10 --json`
    - `tunemark predict FIRST.json SECOND.json THIRD.json --steps 5000`
    """
    from tunemark.schema.statistics.job_prediction import Job  # noqa: PLC0415 - statistics are for this command only
    from tunemark.schema.statistics.job_prediction import predict as predict_job  # noqa: PLC0415

    runs = read_runs(submissions)
    if steps is None and tokens is None and samples is None:
        samples = runs[0].plan.data.training_rows
    usd_hourly, price = hourly(runs[0], FactBase.of_project(), usd_per_hour)
    prediction = predict_job(runs, Job(steps=steps, samples=samples, tokens=tokens, epochs=epochs), usd_hourly)
    if as_json:
        print_json({"label": "predicted", "runs": len(runs), **asdict(prediction), "usd_per_hour": usd_hourly, "price": price})
        return
    usd, columns = prediction.usd, ("", "predicted", "95% interval")
    rows = [
        ("optimizer steps", f"{prediction.steps:,}", ""),
        ("one step", formats.duration(prediction.step_time_s.value), _between(prediction.step_time_s)),
        ("start-up", formats.duration(prediction.once_s), ""),
        ("training", formats.duration(prediction.train_s.value), _between(prediction.train_s)),
        ("evaluations", formats.duration(prediction.evaluation_s), ""),
        ("whole job", formats.duration(prediction.wall_s.value), _between(prediction.wall_s)),
        *([("cost", formats.usd(usd.value), f"{formats.usd(usd.low)} to {formats.usd(usd.high)}")] if usd else []),
        ("price", price, ""),
    ]
    print_table(columns, rows)
    for warning in prediction.caveats:
        tell(f"warning: {warning}")


def _between(interval: Interval) -> str:
    return f"{formats.duration(interval.low)} to {formats.duration(interval.high)}"


def read_runs(paths: Sequence[Path]) -> list[Submission]:
    """Return the submissions of repeats. Raises TunemarkError for a file that is not a repeat of the first one."""
    from tunemark.schema.statistics.job_prediction import stranger  # noqa: PLC0415

    runs = []
    for path in paths:
        if not path.is_file():
            missing = "no such file; `tunemark run` writes submissions to submissions/WORKLOAD/, and names the file"
            raise TunemarkError("FILE", str(path), "is a folder; name the submissions in it" if path.is_dir() else missing)
        submission = read_submission(path, path.read_bytes())
        if submission is None:
            raise TunemarkError("FILE", str(path), "is not a submission; give the file that `tunemark run` wrote")
        runs.append(submission)
    problem = stranger(runs)
    if problem is not None:
        which, why = problem
        raise TunemarkError("FILE", paths[which].name, why)
    return runs


def hourly(run: Submission, facts: FactBase, given_usd: float | None) -> tuple[float | None, str]:
    """Return US dollars per hour for all machines of a run, and the source of that price, or the reason why it is unknown."""
    device = run.plan.device
    if given_usd is not None:
        return given_usd, f"{formats.usd(given_usd)} per hour, as given"
    if device.accelerator is None:
        return None, "none: the device is not in data/accelerators; give --usd-per-hour"
    units = units_per_node(run, facts.accelerators.get(device.accelerator))
    row = facts.price_basis.offer(facts.prices, device.accelerator, units, nodes=device.nodes)
    if row is None:
        connected = " with a fabric between nodes" if device.nodes > 1 else ""
        return None, f"none: no on-demand price of {units:.3g} x {device.accelerator}{connected}; give --usd-per-hour"
    machines = f"{device.nodes} x " if device.nodes > 1 else ""
    place = f"{row.provider} {row.instance}{f' in {row.region}' if row.region else ''}"
    return row.usd_per_hour * device.nodes, f"{machines}{formats.usd(row.usd_per_hour)} per hour, {place}, {row.effective_on.isoformat()}"
