"""Commands that run series: sweep, frontier, ab; and predict, which tells the whole job from a short run. Thin: the work is in studies/."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.markup import escape

from tunemark.harness.commands.options import RunOptions, share, takes_run_options
from tunemark.harness.run.show import answers
from tunemark.harness.studies.frontier import Over, Question
from tunemark.harness.studies.resume import read_submission
from tunemark.schema import formats
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import usd as dollars
from tunemark.schema.records.submission import Submission
from tunemark.schema.statistics.job_prediction import price_of, stranger

if TYPE_CHECKING:
    from tunemark.harness.studies.sweep import SweepResult

app = typer.Typer(rich_markup_mode="rich", context_settings={"help_option_names": ["-h", "--help"]})

STUDY = "Which runs"
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Workload = Annotated[str, typer.Argument(help="Name of a workload; `tunemark workloads` lists them.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for the submissions; by default submissions/ of the checkout.")]
Again = Annotated[
    bool,
    typer.Option(
        "--again",
        help="Begin anew instead of going on with what an earlier such command did. Runs of another source of the harness or of other "
        "library versions are never gone on with: they are named, and all is measured anew.",
    ),
]


def _print_json(content: Any) -> None:  # noqa: ANN401 - any JSON value
    sys.stdout.write(json.dumps(content, indent=1, default=str) + "\n")


@app.command(
    epilog="Examples: tunemark sweep smoke-bert --over batch_size=8,16,32,48,64 | tunemark sweep smoke-lora --over seq=64,128 --over rank=8,16 | tunemark sweep smoke-lora --repeats 5"
)
@takes_run_options
def sweep(
    workload: Workload,
    *,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="FIELD[=V1,V2,..]",
            rich_help_panel=STUDY,
            help="Vary this setting; several make a grid. Without values: those of the card. Without it: the card's axes, one after the other.",
        ),
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, rich_help_panel=STUDY, help="Run each point so often, in turn.")] = 1,
    out: Out = None,
    again: Again = False,
    as_json: Json = False,
    chosen: RunOptions,
) -> None:
    """Run a workload at several points, each in a fresh process, each a submission.

    A point that runs out of memory or crashes is a result and stops nothing. Ctrl-C stops after the present record;
    the same command goes on where it was. A point on an axis of the card stays in the standard division.
    """
    from tunemark.harness.studies.series import Bench  # noqa: PLC0415 - only a series needs processes and statistics
    from tunemark.harness.studies.sweep import run_sweep  # noqa: PLC0415

    bench = Bench.here(FactBase.of_project(), chosen.machine(), out)
    result = run_sweep(workload, over or (), chosen.options(), bench, repeats=repeats, again=again)
    tell_sweep(workload, result, as_json=as_json)


def tell_sweep(workload: str, result: "SweepResult", *, as_json: bool) -> NoReturn:
    """Print the points of a sweep and end with its exit code."""
    from tunemark.harness.studies.report import as_json as plain  # noqa: PLC0415 - as above
    from tunemark.harness.studies.report import points_table  # noqa: PLC0415

    if as_json:
        head = {"workload": workload, "kind": result.kind, "study_id": result.study_id, "missing": result.missing}
        _print_json({**head, "points": plain(result.rows)})
    else:
        answers().print(points_table(result.rows))
    raise typer.Exit(result.exit_code)


@app.command(
    epilog="Examples: tunemark frontier smoke-lora --limit-memory 2 | tunemark frontier smoke-lora --sequence-lengths 128,256,512 --within 10% | tunemark frontier smoke-lora --over both"
)
@takes_run_options
def frontier(
    workload: Workload,
    *,
    over: Annotated[Over, typer.Option("--over", rich_help_panel=STUDY, help="What is made as large as possible.")] = Over.MICRO_BATCH,
    sequence_lengths: Annotated[
        str | None, typer.Option("--sequence-lengths", metavar="N,N,..", rich_help_panel=STUDY, help="Lengths to find the micro-batch for.")
    ] = None,
    limit_memory: Annotated[
        float | None,
        typer.Option(
            "--limit-memory",
            metavar="GIB",
            min=0.1,
            rich_help_panel=STUDY,
            help="Resident memory of the host to stay within, all processes of a run together; by default 80% of it.",
        ),
    ] = None,
    most: Annotated[int, typer.Option("--most", min=1, rich_help_panel=STUDY, help="Largest micro-batch to try.")] = 65_536,
    within: Annotated[
        str | None, typer.Option("--within", rich_help_panel=STUDY, help="How near is near enough, such as 10%; exact when left out.")
    ] = None,
    out: Out = None,
    again: Again = False,
    as_json: Json = False,
    chosen: RunOptions,
) -> None:
    """Find the largest micro-batch and the longest sequence that fit, by doubling and halving.

    Each try is a short run in a process of its own, on full rows, and a submission. Out of memory means that it does
    not fit; any other failure ends the search with its reason. The same command goes on where it was stopped.
    """
    from tunemark.harness.studies.frontier import Frontier  # noqa: PLC0415 - only a series needs processes and statistics
    from tunemark.harness.studies.report import edges_table  # noqa: PLC0415
    from tunemark.harness.studies.series import Bench  # noqa: PLC0415

    question = Question(
        over=over,
        lengths=whole_numbers("--sequence-lengths", sequence_lengths),
        limit_bytes=None if limit_memory is None else int(limit_memory * formats.GIB),
        most=most,
        within=share("--within", within) or 0.0,
    )
    bench = Bench.here(FactBase.of_project(), chosen.machine(), out)
    found = Frontier.of(workload, chosen.options(), bench, question, again=again)
    ended = found.search()
    if as_json:
        head = {"workload": workload, "kind": "frontier", "study_id": found.series.study_id, "ended": ended}
        _print_json({**head, "edges": [asdict(edge) for edge in found.edges]})
    else:
        answers().print(edges_table(found.edges))
    if ended:
        sys.stderr.write(f"tunemark: {ended}\n")
        raise typer.Exit(Exit.UNTRUSTWORTHY)


def whole_numbers(option: str, text: str | None) -> tuple[int, ...]:
    """Return the numbers of a list parted by commas; raises BadParameter where one is no whole number above 0."""
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"{text!r} is no list of whole numbers above 0; give such as 512,1024", param_hint=option)
    return tuple(int(part) for part in parts)


@app.command(
    epilog="Examples: tunemark ab smoke-lora --a compile=none --b compile=blocks | tunemark ab smoke-lora --a attention=eager --b attention=sdpa --pairs 8 --steps 100"
)
@takes_run_options
def ab(
    workload: Workload,
    *,
    a: Annotated[str, typer.Option("--a", metavar="FIELD=VALUE,..", rich_help_panel=STUDY, help="Settings of A, the one to compare with.")],
    b: Annotated[str, typer.Option("--b", metavar="FIELD=VALUE,..", rich_help_panel=STUDY, help="Settings of B.")],
    pairs: Annotated[int, typer.Option("--pairs", min=1, rich_help_panel=STUDY, help="Runs of each; three are needed for a verdict.")] = 5,
    out: Out = None,
    again: Again = False,
    as_json: Json = False,
    chosen: RunOptions,
) -> None:
    """Compare two settings: A B, B A, A B .. in fresh processes, each a submission, and a verdict with its interval.

    B is called faster only when the 95% interval of the pairs' ratios lies wholly above nothing gained. Memory and
    loss are compared too: a setting that changes the loss is said to. Both runs of a pair have the same seed, each pair
    another. With compilation, how many steps earn it back, with a cold cache (the first pair, or --cold) and a warm one.
    """
    from tunemark.harness.studies.ab_test import run_ab  # noqa: PLC0415 - only a series needs processes and statistics
    from tunemark.harness.studies.report import verdict  # noqa: PLC0415
    from tunemark.harness.studies.series import Bench  # noqa: PLC0415

    bench = Bench.here(FactBase.of_project(), chosen.machine(), out)
    result = run_ab(workload, a, b, chosen.options(), bench, pairs=pairs, again=again)
    if as_json:
        content = asdict(replace(result, runs=()))
        _print_json(
            {**content, "workload": workload, "loss_changed": result.loss_changed, "runs": [str(run.record.path) for run in result.runs]}
        )
    else:
        for line in verdict(result):
            answers().print(line, soft_wrap=True, markup=False)
    if result.ended:
        sys.stderr.write(f"tunemark: {result.ended}\n")
    raise typer.Exit(result.exit_code)


@app.command(
    epilog="Examples: tunemark predict submissions/smoke-lora/RUN.json --samples 16000 --epochs 3 | tunemark predict RUN.json --job-steps 5000 --usd-per-hour 4.10 --json | tunemark run smoke-lora --repeats 3 --out r && tunemark predict r/smoke-lora/*.json --job-steps 5000"
)
def predict(
    submissions: Annotated[
        list[Path], typer.Argument(help="The submission of a short run, or those of its repeats.", exists=True, dir_okay=False)
    ],
    *,
    job_steps: Annotated[int | None, typer.Option("--job-steps", min=1, help="The job is so many optimizer steps.")] = None,
    samples: Annotated[int | None, typer.Option("--samples", min=1, help="The job's data set has so many samples.")] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", min=1, help="The job's data set has so many real tokens.")] = None,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Passes over them, each with an evaluation if the run had one.")] = 1,
    usd_per_hour: Annotated[
        float | None,
        typer.Option("--usd-per-hour", min=0, help="What the machines cost together; by default the cheapest of the price book."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict time and cost of a whole job from short runs of it on the same machine.

    From one run the interval is that of its own steps. From its repeats, each a fresh process, it is that of one process more.
    """
    from tunemark.harness.studies.report import prediction_table  # noqa: PLC0415

    # MOVE: import vanished
    from tunemark.schema.statistics.job_prediction import Job  # noqa: PLC0415
    from tunemark.schema.statistics.job_prediction import predict as whole_job  # noqa: PLC0415

    runs = read_runs(submissions)
    run = runs[0]
    if job_steps is None and tokens is None and samples is None:
        samples = run.plan.data.training_rows
    usd, price = hourly(run, FactBase.of_project(), usd_per_hour)
    found = whole_job(runs, Job(steps=job_steps, samples=samples, tokens=tokens, epochs=epochs), usd)
    if as_json:
        _print_json({"label": "predicted", "runs": len(runs), **asdict(found), "usd_per_hour": usd, "price": price})
        return
    answers().print(prediction_table(found, price))
    for doubt in found.doubts:
        answers().print(f"  [yellow]doubt[/yellow] {escape(doubt)}", soft_wrap=True)


# MOVE: was tunemark.harness.commands.studies: The run that a whole job is predicted from, and what its machines cost.


def read_run(path: Path) -> Submission:
    """Return the submission of a file; raises TunemarkError where it holds another record."""
    record = read_submission(path, path.read_bytes())
    if record is None:
        raise TunemarkError("submission", str(path), "is another record; give the file that `tunemark run` wrote")
    return record


def read_runs(paths: Sequence[Path]) -> list[Submission]:
    """Return the submissions of repeats; raises TunemarkError for a file that is none of the first one."""
    runs = [read_run(path) for path in paths]
    found = stranger(runs)
    if found is not None:
        which, why = found
        raise TunemarkError("submission", paths[which].name, why)
    return runs


def hourly(run: Submission, facts: FactBase, given_usd: float | None) -> tuple[float | None, str]:
    """Return US dollars an hour of all machines of a run, and where that price is from or why there is none."""
    if given_usd is not None:
        return given_usd, f"{dollars(given_usd)} an hour, as given"
    device = run.plan.device
    if device.accelerator is None:
        return None, "none: the device is not in data/accelerators; give --usd-per-hour"
    row = price_of(facts.prices, device.accelerator, device.count // device.nodes)
    if row is None:
        return None, f"none: no on-demand price of {device.count // device.nodes} x {device.accelerator}; give --usd-per-hour"
    machines = f"{device.nodes} x " if device.nodes > 1 else ""
    place = f"{row.provider} {row.instance}{f' in {row.region}' if row.region else ''}"
    return row.usd_per_hour * device.nodes, f"{machines}{dollars(row.usd_per_hour)} an hour, {place}, of {row.effective_on.isoformat()}"
