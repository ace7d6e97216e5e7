"""Command-line options that plan, run and the studies share. typer reads them from a signature that is built here."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Any, get_type_hints

import typer

from tunemark.harness.plan.machine import Machine, detect
from tunemark.harness.plan.sections import Node, Options
from tunemark.schema.errors import TunemarkError
from tunemark.schema.vocabulary import Backend

Family = StrEnum("Family", {backend.name: backend.value for backend in Backend if backend is not Backend.FAKE})  # type: ignore[misc]
"""Device families that can be requested."""
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Workload = Annotated[str, typer.Argument(help="Name of a workload; `tunemark workloads` lists them.")]
WORK, TIME, DEVICES = "What is run", "How long", "On which devices"


class Starter(StrEnum):
    """Programs that start several processes."""

    TORCHRUN = "torchrun"
    ACCELERATE = "accelerate"


def _option(name: str, help_text: str, panel: str, **settings: Any) -> Any:  # noqa: ANN401 - typer's settings
    return typer.Option(name, help=help_text, rich_help_panel=panel, **settings)


SET = "Change a setting of the workload card, such as batch.micro_batch=16. The result is in the open division."
DATA = "Use card, synthetic, file:PATH (a .txt, .csv or .jsonl file, or a folder with train and test files), or hub:NAME."
UNTIL_CI = "Stop once the 95% interval of throughput is within this fraction, such as 1%; the default without --steps."
NO_STEP = "Stop the worker after N seconds without a completed step, or after 4 N while it loads, compiles or evaluates. Default: 900."


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of every command that plans or runs a workload."""

    overrides: Annotated[list[str] | None, _option("--set", SET, WORK, metavar="FIELD=VALUE")] = None
    weights: Annotated[str, _option("--weights", "Use card, random, pretrained, or pretrained:HUB_ID_OR_DIRECTORY.", WORK)] = "card"
    data: Annotated[str, _option("--data", DATA, WORK)] = "card"
    seed: Annotated[int | None, _option("--seed", "Set the seed of weights, samples and their order.", WORK, min=0)] = None
    max_steps: Annotated[int | None, _option("--steps", "Run exactly N optimizer steps.", TIME, min=1)] = None
    epochs: Annotated[int | None, _option("--epochs", "Make N passes over the data.", TIME, min=1)] = None
    max_train_s: Annotated[float | None, _option("--seconds", "Train for at most N seconds.", TIME, min=1)] = None
    until_ci: Annotated[str | None, _option("--until-ci", UNTIL_CI, TIME)] = None
    timeout_s: Annotated[
        float | None, _option("--timeout", "Stop the worker after N seconds in total. Default: no limit.", TIME, min=1)
    ] = None
    no_step_s: Annotated[float | None, _option("--no-step-timeout", NO_STEP, TIME, min=1)] = None
    strict_timing: Annotated[
        bool, _option("--strict-timing", "Wait for the device after each step instead of at the window's ends.", TIME)
    ] = False
    probe: Annotated[bool, _option("--probe/--no-probe", "Measure the device's matrix rate before and after training.", TIME)] = True
    gates: Annotated[bool, _option("--gates/--no-gates", "Check first that training is correct.", TIME)] = True
    save: Annotated[bool, _option("--save", "Measure saving: write the trained weights to a temporary folder, then delete them.", TIME)] = (
        False
    )
    cold: Annotated[bool, _option("--cold", "Compile everything again, with empty caches for this run.", TIME)] = False
    backend: Annotated[
        Family | None, _option("--backend", "Use this device family instead of the fastest one on the machine.", DEVICES)
    ] = None
    devices: Annotated[int | None, _option("--devices", "Train on N devices, over all nodes.", DEVICES, min=1)] = None
    strategy: Annotated[str | None, _option("--strategy", "Distribute the work with ddp, fsdp2, zero1, zero2 or zero3.", DEVICES)] = None
    offload: Annotated[str | None, _option("--offload", "Keep in host memory: none, optimizer or all.", DEVICES)] = None
    launcher: Annotated[Starter, _option("--launcher", "Start several processes with torchrun or accelerate.", DEVICES)] = Starter.TORCHRUN
    nodes: Annotated[int, _option("--nodes", "Use N machines; run the same command on each.", DEVICES, min=1)] = 1
    node_rank: Annotated[
        int, _option("--node-rank", "Number of this machine, starting at 0. Machine 0 writes the submission.", DEVICES, min=0)
    ] = 0
    rendezvous: Annotated[
        str | None, _option("--rendezvous", "Address of the first of several machines.", DEVICES, metavar="HOST:PORT")
    ] = None

    def machine(self) -> Machine:
        """Return this machine, with the requested device family."""
        return detect(None if self.backend is None else Backend(str(self.backend)))

    def options(self) -> Options:
        """Return the options for planning."""
        if self.node_rank >= self.nodes:
            fix = f"machines are numbered from 0 to {self.nodes - 1}; give --nodes, the same on each machine"
            raise TunemarkError("--node-rank", self.node_rank, fix)
        parsed: dict[str, Any] = {
            "overrides": tuple(self.overrides or ()),
            "node": Node(self.node_rank, self.rendezvous),
            "launcher": self.launcher.value,
            "until_ci": fraction("--until-ci", self.until_ci),
        }
        same = {field.name: getattr(self, field.name) for field in fields(Options) if field.name not in parsed}
        return Options(**same, **parsed)


def fraction(option: str, text: str | None) -> float | None:
    """Return a fraction given as `1%` or `0.01`. Raises BadParameter if it is not between 0 and 1."""
    if text is None:
        return None
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise typer.BadParameter(f"{text!r} is not a fraction between 0 and 1; give 1% or 0.01", param_hint=option)
    return value


def takes_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option for each field of RunOptions, which it receives as its parameter `chosen`."""
    names = [field.name for field in fields(RunOptions)]
    hints = get_type_hints(RunOptions, include_extras=True)

    def run(**arguments: Any) -> None:  # noqa: ANN401 - what typer read
        own = {name: value for name, value in arguments.items() if name not in names}
        command(**own, chosen=RunOptions(**{name: arguments[name] for name in names}))

    keyword = inspect.Parameter.KEYWORD_ONLY
    shared = [inspect.Parameter(field.name, keyword, default=field.default, annotation=hints[field.name]) for field in fields(RunOptions)]
    own_hints = get_type_hints(command, include_extras=True)
    parameters = {name: parameter for name, parameter in inspect.signature(command).parameters.items() if name != "chosen"}
    own = [parameter.replace(annotation=own_hints[name]) for name, parameter in parameters.items()]
    positional = [parameter for parameter in own if parameter.kind is not keyword]
    keywords = [parameter for parameter in own if parameter.kind is keyword]
    run.__signature__ = inspect.Signature([*positional, *keywords, *shared])  # type: ignore[attr-defined]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run
