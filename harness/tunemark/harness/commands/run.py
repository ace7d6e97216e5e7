"""`tunemark plan`, `run`, `recover` and `runs`: show how a workload would run, run it, and list or remove what was recorded."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from tunemark.harness.plan.machine import detect, machine_with, too_large
from tunemark.harness.plan.resolve import (
    Json,
    Options,
    Out,
    Resolved,
    Workload,
    refuse_missing_devices,
    refuse_unsupported,
    resolve,
    step_memory,
    takes_run_options,
)
from tunemark.harness.run.report import TRACKERS, refuse_missing_tracker, report
from tunemark.harness.run.show import answers, as_text, print_json, say, summary, table
from tunemark.schema import formats
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.plan.capabilities import Machine, shared_cores
from tunemark.schema.records.base import flattened
from tunemark.schema.records.submission import Submission
from tunemark.schema.vocabulary import Status

app = typer.Typer(rich_markup_mode="markdown", context_settings={"help_option_names": ["-h", "--help"]})
EXIT_BY_STATUS = {
    Status.OK: Exit.OK,
    Status.UNSUPPORTED: Exit.UNSUPPORTED,
    Status.OOM_DEVICE: Exit.OUT_OF_MEMORY,
    Status.OOM_HOST: Exit.OUT_OF_MEMORY,
}


@app.command()
@takes_run_options
def plan(
    workload: Workload,
    *,
    accelerator: Annotated[
        str | None, typer.Option("--accelerator", metavar="KEY", help="Plan for another accelerator, such as nvidia-h100-80gb-sxm.")
    ] = None,
    as_json: Json = False,
    options: Options,
) -> None:
    """Show how a workload would run here, or on other machines, with the reason for each value.

    `harness/scripts` has templates that start a run on several nodes with SLURM or SkyPilot.

    Examples
    --------
    - `tunemark plan smoke-lora`
    - `tunemark plan smoke-bert --set batch.micro_batch=32 --json`
    - `tunemark plan lora-8b --accelerator nvidia-h100-80gb-sxm`
    - `tunemark plan lora-8b --accelerator nvidia-l4 --devices 8 --set nodes=2`
    - `tunemark plan lora-8b --model MODEL_FOLDER`
    """
    facts = options.facts
    if accelerator is None:
        machine = detect(options.backend)
    else:
        counted, accelerator = facts.counted(accelerator, "--accelerator")
        devices = options.devices or counted or options.nodes
        if counted not in {None, devices}:
            raise TunemarkError("--devices", devices, f"differs from {counted} in the name of the accelerator; give one of them")
        options, machine = options.having(devices=devices), machine_with(facts, accelerator, devices, options.nodes)
        if note := too_large(facts, accelerator, devices, options.nodes):
            say(f"note: {note}")
    resolved = resolve(workload, facts, machine, options)
    warn_of_plan(resolved, facts, machine)
    memory = step_memory(resolved.plan, facts.model(resolved.plan.model.key), machine)
    if as_json:
        answer: dict[str, Any] = {"requested": resolved.requested.model_dump(mode="json"), "plan": resolved.plan.model_dump(mode="json")}
        answer |= {"overrides": [override.model_dump() for override in resolved.overrides], "unsupported": resolved.unsupported}
        print_json(answer | {"memory": {"too_large": memory.too_large, "words": memory.words, "fix": memory.fix}})
    else:
        verdict = f"cannot run: {resolved.unsupported}" if resolved.unsupported else "can run"
        if memory.too_large and not resolved.unsupported:
            verdict = f"is too large, and `tunemark run` refuses it without --set force=true; {memory.fix}"
        answers().print(*as_text(f"{workload}: {verdict}"), soft_wrap=True)
        if memory.words:
            answers().print(*as_text(f"A step {memory.words} by the memory model."), soft_wrap=True)
        field_column, value_column = Column("field", no_wrap=True), Column("value", overflow="fold", max_width=24)
        table = Table(field_column, value_column, "reason", box=None, padding=(0, 2, 0, 0))
        overridden = {override.field: override.card for override in resolved.overrides}
        for field, value in flattened(resolved.plan.model_dump(mode="json", exclude={"reasons"})):
            reason = f"overridden; the card has {overridden[field]}" if field in overridden else resolved.plan.reasons.get(field, "")
            text = ", ".join(map(str, value)) if isinstance(value, list) else formats.MISSING if value is None else str(value)
            table.add_row(*as_text(field, text, reason))
        answers().print(table)
    refuse_unsupported(resolved)


def warn_of_plan(resolved: Resolved, facts: FactBase, machine: Machine) -> None:
    """Write a warning if more processes than cores are requested, or longer rows than the model has read."""
    plan, card = resolved.plan, facts.model(resolved.plan.model.key)
    warnings = [shared_cores(plan.device, machine)]
    if plan.data.sequence_length > card.context_length:
        warnings.append(f"rows of {plan.data.sequence_length:,} tokens are longer than the context of {card.name}, {card.context_length:,}")
    for warning in filter(None, () if resolved.unsupported else warnings):
        say(f"tunemark: warning: {warning}")


@app.command()
@takes_run_options
def run(
    workload: Workload,
    *,
    out: Out = None,
    supersedes: Annotated[
        str | None, typer.Option("--supersedes", metavar="ID", help="Replace an earlier result of this machine, given by its id.")
    ] = None,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why it replaces that result.")] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", min=1, help="Run N times, each in a fresh process, and report median and range.")
    ] = 1,
    report_to: Annotated[
        str | None, typer.Option("--report-to", metavar="NAME", help=f"Also log the finished run to {', '.join(TRACKERS)}.")
    ] = None,
    as_json: Json = False,
    options: Options,
) -> None:
    """Fine-tune once in a fresh process and write one submission.

    A record with a status is always written, even after Ctrl-C, a crash or out of memory: as a submission if it trained or ran out of
    memory, else to `build/tries`.

    Examples
    --------
    - `tunemark run smoke-lora`
    - `tunemark run smoke-bert --data file:DATA_FOLDER --steps 200`
    - `tunemark run lora-8b --model MODEL_FOLDER --weights pretrained:MODEL_FOLDER`
    - `tunemark run my-options.yml`
    - `tunemark run smoke-lora --repeats 5`
    """
    from tunemark.harness.run.launch import help_another_node, refuse_hopeless, run_once, superseded  # noqa: PLC0415 - only a run needs processes
    from tunemark.harness.run.record import is_submission  # noqa: PLC0415
    from tunemark.harness.run.show import print_summary  # noqa: PLC0415

    if repeats > 1:
        from tunemark.harness.commands.studies import answer  # noqa: PLC0415 - only a series needs statistics
        from tunemark.harness.studies.series import Bench  # noqa: PLC0415
        from tunemark.harness.studies.sweep import run_repeats  # noqa: PLC0415

        for option, value in (("--supersedes", supersedes), ("--report-to", report_to)):
            if value is not None:
                raise TunemarkError(option, value, "is for a single run; remove --repeats")
        answer(run_repeats(workload, options, Bench.here(options, out), repeats), as_json=as_json)
    if report_to is not None:
        refuse_missing_tracker(report_to)
    facts, machine = options.facts, detect(options.backend)
    resolved = resolve(workload, facts, machine, options)
    warn_of_plan(resolved, facts, machine)
    refuse_missing_devices(options, machine)
    if not options.force:
        refuse_hopeless([resolved], facts, machine)
    if resolved.node_rank:
        raise typer.Exit(Exit.UNTRUSTWORTHY if help_another_node(resolved, facts, machine) else Exit.OK)
    replaced = superseded(supersedes, reason, resolved.plan, out)
    submission, path = run_once(resolved, facts, machine, out, supersedes=replaced)
    if as_json:
        print_json(summary(submission) | {"file": str(path)})
    else:
        print_summary(
            submission, str(path) if is_submission(submission) else f"{path} (nothing was trained, so `tunemark submit` leaves it out)"
        )
    if report_to is not None:
        report(submission, report_to, f"{submission.workload}-{path.stem}")
    raise typer.Exit(EXIT_BY_STATUS.get(submission.outcome.status, Exit.UNTRUSTWORTHY))


@app.command()
def recover(*, as_json: Json = False) -> None:
    """Write the submissions of runs whose tunemark process was killed, from the logs in the temporary folder.

    It waits until the worker of such a run has ended.

    Exit codes: 0 all were written, or there are none; 1 a log could not be used, or its worker is still running.

    Examples
    --------
    - `tunemark recover`
    - `tunemark recover --json`
    """
    from tunemark.harness.run import launch as recovery  # noqa: PLC0415 - only this command needs processes

    facts, failed = FactBase.of_project(), False
    written: list[dict[str, Any]] = []
    for folder, note in recovery.orphans():
        if recovery.running(folder, 0.0):
            say(f"tunemark: {folder}: its worker is still running; waiting for it to end")
        still = recovery.running(folder, recovery.WORKER_ENDS_S)
        if still:
            failed, numbers = True, " ".join(map(str, still))
            fix = f"end it with `kill {numbers}`, then run `tunemark recover` again"
            say(f"tunemark: {folder}: its worker (process {numbers}) is still running after {recovery.WORKER_ENDS_S:g} s; {fix}")
            continue
        try:
            submission, path = recovery.recover(folder, note, facts)
        except (OSError, ValueError) as error:
            failed = True
            say(f"tunemark: {folder}: cannot be recovered: {error}; its log is {folder / 'log.jsonl'}")
            continue
        written.append({"workload": submission.plan.workload, "steps": len(submission.trace), "file": str(path)})
    if as_json:
        print_json(written)
    else:
        for row in written:
            answers().print(
                f"recovered {row['workload']} with {formats.counted(row['steps'], 'step')}: {row['file']}", soft_wrap=True, markup=False
            )
        if not written and not failed:
            answers().print("no killed run was found in the temporary folder")
    raise typer.Exit(Exit.INTERNAL if failed else Exit.OK)


ALL_TRIES = "tries"


@app.command()
def runs(
    *,
    out: Out = None,
    remove: Annotated[
        list[str] | None,
        typer.Option("--remove", metavar="ID", help="Remove the run with this id, or all `tries`. What git tracks stays."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the runs on this machine that git does not track, newest first: submissions, and tries, which are not sent.

    Examples
    --------
    - `tunemark runs`
    - `tunemark runs --remove 24749ae9966b`
    - `tunemark runs --remove tries`
    """
    from tunemark.harness.run.record import submissions, tracked, tries  # noqa: PLC0415 - as above
    from tunemark.schema.records.reading import InvalidRecord, read_record  # noqa: PLC0415

    folder = submissions(out)
    untracked = set(_files(folder)) - tracked(folder)
    tried = set(_files(tries(folder))) if tries(folder) != folder else set()
    rows = []
    for path in sorted(untracked | tried, key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            record = read_record(path.read_bytes())
        except InvalidRecord:
            continue
        if isinstance(record, Submission):
            rows.append({"id": path.stem.rsplit("-", 1)[-1], "try": path in tried, **summary(record), "file": str(path)})
    if remove:
        chosen = [row for row in rows if row["id"] in remove or (row["try"] and ALL_TRIES in remove)]
        for name in set(remove) - {ALL_TRIES} - {row["id"] for row in chosen}:
            known = did_you_mean(name, [row["id"] for row in rows]) if rows else "there is none"
            raise TunemarkError("--remove", name, f"no run that git does not track has this id; {known}")
        for row in chosen:
            Path(row["file"]).unlink()
        say(f"removed {formats.counted(len(chosen), 'run')}")
        rows = [row for row in rows if row not in chosen]
    if as_json:
        print_json(rows)
    elif rows:
        columns = ("id", "workload", "status", "steps", "tokens/s", "file")
        shown = (row | {"tokens/s": row["tokens_per_s"] and formats.significant(row["tokens_per_s"])} for row in rows)
        answers().print(table(columns, ([row[name] for name in columns] for row in shown), folded=("workload", "status", "file")))
    elif not remove:
        answers().print("no run here that git does not track; `tunemark run` makes one")


def _files(folder: Path) -> list[Path]:
    return [path.absolute() for path in folder.glob("*/*.json")]
