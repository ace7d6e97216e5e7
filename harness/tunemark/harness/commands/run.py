"""The harness' commands: doctor, workloads, plan, run."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from tunemark.harness.commands import doctor as doctor_report
from tunemark.harness.commands.emit import Accelerator, Emit, Instance, script
from tunemark.harness.commands.options import RunOptions, takes_run_options
from tunemark.harness.plan.machine import detect
from tunemark.harness.plan.resolve import Resolved, refuse_unsupported, resolve
from tunemark.harness.run.show import answers, as_text
from tunemark.schema import formats
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.vocabulary import Status

app = typer.Typer(rich_markup_mode="rich", context_settings={"help_option_names": ["-h", "--help"]})

Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Workload = Annotated[str, typer.Argument(help="Name of a workload; `tunemark workloads` lists them.")]
EXIT_BY_STATUS = {
    Status.OK: Exit.OK,
    Status.UNSUPPORTED: Exit.UNSUPPORTED,
    Status.OOM_DEVICE: Exit.OUT_OF_MEMORY,
    Status.OOM_HOST: Exit.OUT_OF_MEMORY,
}


def _print_json(content: Any) -> None:  # noqa: ANN401 - any JSON value
    sys.stdout.write(json.dumps(content, indent=1, default=str) + "\n")


@app.command(epilog="Examples: tunemark doctor | tunemark doctor --json")
def doctor(*, as_json: Json = False) -> None:
    """Say what this machine has and which workloads it can run."""
    content = doctor_report.report(FactBase.of_project(), detect())
    if as_json:
        _print_json(content)
        return
    screen, machine = answers(), content["machine"]
    table = Table(show_header=False, box=None, padding=(0, 2))
    device = machine["devices"][0]
    table.add_row("device", f"{len(machine['devices'])} x {device['name']} ({machine['backend']}: {machine['backend_reason']})")
    table.add_row("catalogue", content["accelerator"] or "not in data/accelerators: peaks and prices are unknown")
    table.add_row("compute", ", ".join(machine["compute_dtypes"]))
    table.add_row(
        "host",
        f"{machine['cpu']}, {machine['cpu_usable_cores']} of {machine['cpu_logical_cores']} hardware threads, {formats.gib(machine['memory_bytes'])}",
    )
    table.add_row("disk", f"{formats.gib(machine['free_disk_bytes'])} free here")
    table.add_row(
        "software",
        f"{machine['os']}, Python {machine['python']}, " + ", ".join(f"{name} {number}" for name, number in machine["packages"].items()),
    )
    table.add_row("not installed", ", ".join(content["missing_required"] + content["missing_optional"]) or "nothing")
    table.add_row(
        "model hub", "offline (HF_HUB_OFFLINE is set)" if content["offline"] else "asked only for pretrained weights and hub data"
    )
    screen.print(table)
    for row in content["workloads"]:
        verdict, why = "[green]can run[/green]   ", row["title"]
        if row["reason"] is not None:
            verdict, why = "[red]cannot run[/red]", row["reason"]
        elif row["too_large"]:
            why = f"needs about {formats.gib(row['needed_bytes'])} on each of its devices, there are {formats.gib(row['memory_bytes'])}"
            verdict = "[yellow]too large[/yellow] "
        screen.print(f"  {verdict} {row['workload']}: {escape(why)}")
    if content["missing_required"]:
        screen.print(f"[red]missing: {', '.join(content['missing_required'])}[/red]; install with `make setup`")
        raise typer.Exit(Exit.UNSUPPORTED)


@app.command(epilog="Examples: tunemark workloads | tunemark workloads --json")
def workloads(*, as_json: Json = False) -> None:
    """List the standard workloads."""
    cards = FactBase.of_project().workloads
    if as_json:
        _print_json([card.model_dump(mode="json") for card in cards.values()])
        return
    table = Table(box=None, padding=(0, 2))
    for head in ("workload", "tier", "model", "method", "tokens x rows", "what"):
        table.add_column(head)
    for card in cards.values():
        rows = card.batch.micro_batch * card.batch.gradient_accumulation
        table.add_row(card.key, card.tier, card.model, card.method.value, f"{card.data.sequence_length} x {rows}", card.title)
    answers().print(table)


@app.command(
    epilog="Examples: tunemark plan smoke-lora | tunemark plan smoke-bert --set batch.micro_batch=32 --json | tunemark plan smoke-lora --emit slurm --instance p4d.24xlarge --nodes 2"
)
@takes_run_options
def plan(
    workload: Workload,
    *,
    as_json: Json = False,
    emit: Emit = None,
    accelerator: Accelerator = None,
    instance: Instance = None,
    chosen: RunOptions,
) -> None:
    """Show how a workload would run here, each value with its reason; or write the script that runs it elsewhere."""
    if emit is not None:
        sys.stdout.write(script(emit, workload, chosen, FactBase.of_project(), accelerator, instance))
        return
    for option, value in (("--accelerator", accelerator), ("--instance", instance)):
        if value is not None:
            raise TunemarkError(option, value, "is for scripts that run elsewhere; give --emit slurm or --emit skypilot with it")
    resolved = resolve(workload, FactBase.of_project(), chosen.machine(), chosen.options())
    if as_json:
        _print_json(
            {
                "plan": resolved.plan.model_dump(mode="json"),
                "overrides": [o.model_dump() for o in resolved.overrides],
                "unsupported": resolved.unsupported,
            }
        )
    else:
        _print_plan(resolved)
    refuse_unsupported(resolved)


def _print_plan(resolved: Resolved) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("field", no_wrap=True)
    table.add_column("value", overflow="fold", max_width=24)
    table.add_column("reason")
    overridden = {override.field: override.card for override in resolved.overrides}
    for field, value in _flat(resolved.plan.model_dump(mode="json", exclude={"reasons"})):
        reason = f"overridden; the card has {overridden[field]}" if field in overridden else resolved.plan.reasons.get(field, "")
        table.add_row(*as_text(field, value, reason))
    answers().print(table)


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return formats.MISSING if value is None else str(value)


def _flat(content: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in content.items():
        rows.extend(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", _cell(value))])
    return rows


@app.command(
    epilog="Examples: tunemark run smoke-lora | tunemark run smoke-bert --data file:emotion --steps 200 | tunemark run smoke-lora --weights pretrained:MODEL_FOLDER | tunemark run smoke-lora --repeats 5"
)
@takes_run_options
def run(
    workload: Workload,
    *,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the submission; by default submissions/ of the checkout.")] = None,
    supersedes: Annotated[
        str | None, typer.Option("--supersedes", metavar="ID", help="Id of an earlier result of this machine that this one replaces.")
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Run it so often, each in a fresh process: median and ends are told.")
    ] = 1,
    as_json: Json = False,
    chosen: RunOptions,
) -> None:
    """Fine-tune once in a fresh process and write one submission.

    Whatever happens to the run, a submission with its status is written: Ctrl-C, a crash and out of memory are results too.
    """
    from tunemark.harness.commands.studies import tell_sweep  # noqa: PLC0415
    from tunemark.harness.run.launch import check_superseded, help_another_node, run_once  # noqa: PLC0415 - only a run needs processes and statistics
    from tunemark.harness.run.show import print_summary, summary  # noqa: PLC0415
    from tunemark.harness.studies.series import Bench  # noqa: PLC0415
    from tunemark.harness.studies.sweep import refuse_superseding, run_repeats  # noqa: PLC0415

    facts, machine = FactBase.of_project(), chosen.machine()
    if repeats > 1:
        refuse_superseding(supersedes)
        tell_sweep(workload, run_repeats(workload, chosen.options(), Bench.here(facts, machine, out), repeats), as_json=as_json)
    resolved = resolve(workload, facts, machine, chosen.options())
    if resolved.node.rank:
        raise typer.Exit(Exit.UNTRUSTWORTHY if help_another_node(resolved, facts, machine) else Exit.OK)
    check_superseded(supersedes, resolved.plan, out)
    submission, path = run_once(resolved, facts, machine, out, supersedes)
    if as_json:
        _print_json(summary(submission) | {"file": str(path)})
    else:
        print_summary(submission, str(path))
    raise typer.Exit(EXIT_BY_STATUS.get(submission.outcome.status, Exit.UNTRUSTWORTHY))
