"""`tunemark plan`, `run`, `recover` and `runs`: show how a workload would run, run it, and list or remove what was recorded.

Also the options that these commands share with those of series.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer
import yaml
from pydantic import ValidationError

from tunemark.harness.plan import resolve as planning
from tunemark.harness.run.show import TRACKERS, print_summary, refuse_missing_tracker, report, summary
from tunemark.schema import formats
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.plan.capabilities import Machine, shared_cores
from tunemark.schema.plan.resolve import ALIASES
from tunemark.schema.privacy import is_hash
from tunemark.schema.records.base import flattened
from tunemark.schema.records.plan import OPTIONS
from tunemark.schema.records.submission import Submission
from tunemark.schema.vocabulary import Status
from tunemark.terminal import AsJson, Table, print_json, print_table, say, tell

if TYPE_CHECKING:
    from tunemark.harness.studies.series import StudyResult

app = typer.Typer(rich_markup_mode="markdown", context_settings={"help_option_names": ["-h", "--help"]})
EXIT_BY_STATUS = {
    Status.OK: Exit.OK,
    Status.UNSUPPORTED: Exit.UNSUPPORTED,
    Status.OOM_DEVICE: Exit.OUT_OF_MEMORY,
    Status.OOM_HOST: Exit.OUT_OF_MEMORY,
}

SHOWN_OF_HASH = 12

# The options that plan, run and the studies share


def option(name: str, text: str, metavar: str | None = None, **settings: Any) -> Any:  # noqa: ANN401 - of typer's own class
    """Return an option of a command: its name, its help, and the word for its value."""
    return typer.Option(name, help=text, metavar=metavar, **settings)


Out = Annotated[Path | None, option("--out", "Where submissions go. Default: submissions/.", "FOLDER")]
Workload = Annotated[str, typer.Argument(help="Name or .toml of a card, or options (.yml).")]


def count(text: str | int, read: Callable[[str], int] = formats.whole_number) -> int:
    """Return a whole number of 1 or more, such as `500`, `2k` or `10M`, for typer, which also gives the default."""
    try:
        return read(str(text))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: {error}") from error


def row_length(text: str | int) -> int:
    """Return the tokens of a row: `8k` is 8,192."""
    return count(text, formats.tokens_in_row)


DATA = "Use card, synthetic, file:PATH (.txt, .csv, .jsonl, or a folder with train and test) or hub:NAME."
SET = f"Change a setting of the card, such as compile=blocks, or of the run: {', '.join(planning.RARE)}."


class Shared(NamedTuple):
    """An option of all commands that plan or run a workload."""

    name: str
    help_text: str
    metavar: str
    kind: Any = str | None
    setting: str | None = None
    """The setting of the card that it stands for; None for a field of the request."""
    parser: Callable[[str | int], int] | None = None


SHARED: dict[str, Shared] = {
    "method": Shared("--method", "Use full, lora or qlora.", "METHOD", setting="method"),
    "rank": Shared("--rank", "Rank of the adapters.", "N", int | None, "lora.rank", count),
    "seq": Shared("--seq", "Tokens in a row.", "N", int | None, "data.sequence_length", row_length),
    "micro_batch": Shared("--micro-batch", "Rows of one forward pass on one device.", "N", int | None, "batch.micro_batch", count),
    "checkpointing": Shared("--checkpointing", "Use none, selective or full.", "KIND", setting="gradient_checkpointing"),
    "overrides": Shared("--set", SET, "NAME=VALUE", list[str] | None),
    "weights": Shared("--weights", "Use card, random, pretrained, or pretrained:HUB_ID_OR_DIRECTORY.", "WEIGHTS", str),
    "model": Shared("--model", "Another model: name, hub id, size, folder, config.json.", "MODEL"),
    "data": Shared("--data", DATA, "DATA", str),
    "max_steps": Shared("--steps", "Run exactly N optimizer steps.", "N", int | None, parser=count),
    "devices": Shared("--devices", "Train on N devices, over all machines.", "N", int | None, parser=count),
    "strategy": Shared("--sharding", "Use ddp, fsdp2, zero1, zero2 or zero3.", "NAME"),
}
"""Parameter of a command, which for the request is a field of Options, and its option."""


def with_own_cards(workload: str, model: str | None, options: planning.Options) -> tuple[str, planning.Options]:
    """Return a workload's key, and options with the facts that it needs: `workload` may be a card's file, `model` as in `any_model`.

    Without that model's weights, its shape is trained from random ones. A file with options holds `workload`, and the names of options or
    settings; what the command line gives counts more.
    """
    facts = options.facts
    if workload.endswith((".yml", ".yaml")):
        content = _options_in(Path(workload))
        for name in ("workload", "model", "weights", "data"):
            value = str(content.get(name) or "")
            # A known name is no folder, unless it is a path.
            other = name == "model" and ("/" in value or value.lower() not in facts.model_keys)
            if value.endswith(".toml") or name in {"weights", "data"} or other:
                content |= {name: _beside(Path(workload), value)} if value else {}
        workload, model = str(content.pop("workload", "")), model or content.pop("model", None)
        given = {name: value for name, value in dict(options).items() if value != planning.Options.model_fields[name].get_default()}
        named = {shared.name.removeprefix("--"): shared.setting or name for name, shared in SHARED.items()}
        read = {named.get(name, name): str(value) for name, value in content.items()}
        request = {name: read.pop(name) for name in list(read) if name in planning.Options.model_fields}
        asked = planning.valid(request, OPTIONS).setting(f"{name}={value}" for name, value in read.items())
        options = asked.having(**given | {"overrides": (*asked.overrides, *options.overrides)})
    if workload.endswith(".toml"):
        if not Path(workload).is_file():
            raise TunemarkError("workload", workload, "no such file; name a card of yours, or one that `tunemark workloads` lists")
        facts, workload = replace(facts, own_workloads=(Path(workload),)), Path(workload).stem
    if model is not None:
        from tunemark.schema.facts.any_model import any_model  # noqa: PLC0415 - only for a model that was asked for

        card = any_model(facts, str(model))
        if facts.models.get(card.key) != card:
            card = card.model_copy(update={"key": f"own-{card.key}" if card.key in facts.models else card.key})
            facts = replace(facts, own_models=(card,))
        options = options.having(overrides=(f"model={card.key}", *options.overrides))
    return workload, options.having(facts=facts)


def _beside(file: Path, value: str) -> str:
    """Return a value of an options file with a path that is there beside the file, such as `file:texts`, as a path from here."""
    kind, colon, place = value.rpartition(":")
    return f"{kind}{colon}{file.parent / place}" if place and (file.parent / place).exists() else value


def _options_in(path: Path) -> dict[str, Any]:
    """Return the options in a YAML file. Raises TunemarkError for a file that holds none."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        raise TunemarkError("workload", str(path), f"cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or "workload" not in content:
        raise TunemarkError("workload", str(path), "name the workload and options, such as `workload: lora-8b` and `seq: 2048`")
    # Settings may stand below `set`, and their parts below one another.
    below = content.pop("set", {})
    if not isinstance(below, dict):
        raise TunemarkError("set", below, f"write each setting as `name: value` below `set:` in {path}")
    return dict(flattened({**below, **content}))


def takes_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the options above, which it receives as its parameter `options`. Its own ones of the same name stay its own.

    Its errors name options and settings as the user typed them.
    """
    parameters = inspect.signature(command, eval_str=True).parameters
    shared = {name: known for name, known in SHARED.items() if name not in parameters}

    def run(**arguments: Any) -> None:  # noqa: ANN401 - what typer read
        given = {name: arguments.pop(name) for name in shared}
        assigned, model = given.pop("overrides") or (), given.pop("model")
        typed, sets, request = dict[str, str](), list[str](), dict[str, Any]()
        for name, value in given.items():
            setting = shared[name].setting
            if setting is None:
                request[name] = value
            elif value is not None:
                typed[setting] = shared[name].name
                sets.append(f"{setting}={value}")
        for name in (assignment.partition("=")[0] for assignment in assigned):
            setting = ALIASES.get(name, name)
            typed[OPTIONS.get(planning.SETTINGS.get(setting, ""), setting)] = f"--set {name}"
        try:
            options = planning.valid(request, OPTIONS).setting((*sets, *assigned))
            arguments["workload"], options = with_own_cards(arguments["workload"], model, options)
            command(**arguments, options=options)
        except TunemarkError as error:
            raise _as_typed(error, typed, command.__name__) from error
        except ValidationError as error:
            # Of the request: an empty text, which no record may hold.
            raise planning.refused(error, OPTIONS) from error

    own = [parameters[name] for name in parameters if name != "options"]
    for name, (named, text, metavar, kind, _, parser) in shared.items():
        info = option(named, text, metavar, parser=parser, rich_help_panel="What is run", show_default=False)
        default = (planning.Options.model_fields[name].default or None) if name in planning.Options.model_fields else None
        own.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]))
    run.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def _as_typed(error: TunemarkError, typed: Mapping[str, str], command: str) -> TunemarkError:
    """Return an error that names the options that were typed; `typed` is by the setting, or by the option that has the same meaning."""
    field, value, fix = error.field, error.value, error.fix
    if field == "--set" and value in typed and typed[str(value)] != f"--set {value}":
        field, value = str(value), None
    if field == "--set" and fix.endswith("with its settings"):
        fix += f", and `tunemark {command} --help` those of a run"
    # One rule may be about several settings: `--set method, lora`.
    first, *others = field.removeprefix("--set ").split(", ")
    names = (typed.get(first, field.split(", ")[0]), *(typed.get(name, f"--set {name}") for name in others))
    return type(error)(", ".join(dict.fromkeys(names)), value, fix, exit_code=error.exit_code)


# The commands


@app.command()
@takes_run_options
def plan(
    workload: Workload,
    *,
    accelerator: Annotated[
        str | None, option("--accelerator", "Plan for another accelerator, such as nvidia-h100-80gb-sxm.", "KEY")
    ] = None,
    as_json: AsJson = False,
    options: planning.Options,
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
        machine = planning.detect(options.backend)
    else:
        counted, accelerator = facts.counted(accelerator, "--accelerator")
        asked = options.devices or counted or (options.nodes if options.nodes > 1 else None)
        devices = asked or 1
        if counted not in {None, devices}:
            raise TunemarkError("--devices", devices, f"differs from {counted} in the name of the accelerator; give one of them")
        options, machine = options.having(devices=asked), planning.machine_with(facts, accelerator, devices, options.nodes)
    resolved = planning.resolve(workload, facts, machine, options)
    warn_of_plan(resolved, facts, machine)
    memory = planning.step_memory(resolved.plan, facts.model(resolved.plan.model.key), machine)
    if as_json:
        answer: dict[str, Any] = {"requested": resolved.requested.model_dump(mode="json"), "plan": resolved.plan.model_dump(mode="json")}
        answer |= {"overrides": [override.model_dump() for override in resolved.overrides], "unsupported": resolved.unsupported}
        print_json(answer | {"memory": {"too_large": memory.too_large, "words": memory.words, "fix": memory.fix}})
    else:
        verdict = f"cannot run: {resolved.unsupported}" if resolved.unsupported else "can run"
        if memory.too_large and not resolved.unsupported:
            verdict = f"is too large, and `tunemark run` refuses it without --set force=true; {memory.fix}"
        tell(f"{workload}: {verdict}")
        if memory.words:
            tell(f"A step {memory.words} by the memory model.")
        reasons = resolved.plan.reasons | {each.field: f"overridden; the card has {each.card}" for each in resolved.overrides}
        settings = (
            (name, value[:SHOWN_OF_HASH] if value and is_hash(name) else value) for name, value in flattened(resolved.plan.settings)
        )
        print_table(("field", "value", "reason"), [(name, value, reasons.get(name, "")) for name, value in settings])
    planning.refuse_unsupported(resolved)


def warn_of_plan(resolved: planning.Resolved, facts: FactBase, machine: Machine) -> None:
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
    supersedes: Annotated[str | None, option("--supersedes", "Replace an earlier result of this machine, given by its id.", "ID")] = None,
    reason: Annotated[str | None, option("--reason", "Why it replaces that result.", "TEXT")] = None,
    repeats: Annotated[int, option("--repeats", "Run N times, each in a fresh process, and report median and range.", "N", min=1)] = 1,
    report_to: Annotated[str | None, option("--report-to", f"Also log the finished run to {', '.join(TRACKERS)}.", "NAME")] = None,
    as_json: AsJson = False,
    options: planning.Options,
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

    if repeats > 1:
        from tunemark.harness.studies.comparison import run_repeats  # noqa: PLC0415
        from tunemark.harness.studies.series import Bench  # noqa: PLC0415 - only a series needs statistics

        for single, value in (("--supersedes", supersedes), ("--report-to", report_to)):
            if value is not None:
                raise TunemarkError(single, value, "is for a single run; remove --repeats")
        answer(run_repeats(workload, options, Bench.here(options, out), repeats), as_json=as_json)
    if report_to is not None:
        refuse_missing_tracker(report_to)
    facts, machine = options.facts, planning.detect(options.backend)
    resolved = planning.resolve(workload, facts, machine, options)
    warn_of_plan(resolved, facts, machine)
    planning.refuse_missing_devices(options, machine)
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
        report(submission, report_to, f"{submission.plan.workload}-{path.stem}")
    raise typer.Exit(EXIT_BY_STATUS.get(submission.outcome.status, Exit.UNTRUSTWORTHY))


def answer(result: "StudyResult", *, as_json: bool) -> NoReturn:
    """Print the result of a series as JSON, or its tables and lines, then why it ended early, and exit with its code."""
    if as_json:
        print_json(asdict(result))
    else:
        for part in result.shown():
            print_table(*part) if isinstance(part, Table) else tell(part)
    if result.ended:
        say(f"tunemark: {result.ended}")
    raise typer.Exit(result.exit_code)


@app.command()
def recover(*, as_json: AsJson = False) -> None:
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
    for folder, begun in recovery.orphans():
        say(f"recovering {folder}")
        try:
            submission, path = recovery.recover(folder, begun, facts)
        except (OSError, ValueError) as error:
            failed = True
            say(f"tunemark: {folder}: cannot be recovered: {error}")
            continue
        written.append({"workload": submission.plan.workload, "steps": len(submission.trace), "file": str(path)})
    if as_json:
        print_json(written)
    else:
        for row in written:
            typer.echo(f"recovered {row['workload']} with {formats.counted(row['steps'], 'step')}: {row['file']}")
        if not written and not failed:
            typer.echo("no killed run was found in the temporary folder")
    raise typer.Exit(Exit.INTERNAL if failed else Exit.OK)


ALL_TRIES = "tries"


@app.command()
def runs(
    *,
    out: Out = None,
    remove: Annotated[
        list[str] | None, option("--remove", "Remove the run with this id, or all `tries`. What git tracks stays.", "ID")
    ] = None,
    as_json: AsJson = False,
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
        print_table(columns, [[row[name] for name in columns] for row in shown])
    elif not remove:
        typer.echo("no run here that git does not track; `tunemark run` makes one")


def _files(folder: Path) -> list[Path]:
    return [path.absolute() for path in folder.glob("*/*.json")]
