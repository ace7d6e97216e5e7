"""The options that plan, run and the studies share, said once: typer reads them from the signature made here."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Any, get_type_hints

import typer

from tunemark.harness.plan.machine import Machine, detect
from tunemark.harness.plan.sections import Options
from tunemark.harness.run.process import Node
from tunemark.schema.errors import TunemarkError
from tunemark.schema.records.plan import Launcher
from tunemark.schema.vocabulary import Backend

Family = StrEnum("Family", {backend.name: backend.value for backend in Backend if backend is not Backend.FAKE})  # type: ignore[misc]
"""Device families that may be asked for."""


class Starter(StrEnum):
    """What starts several processes."""

    TORCHRUN = "torchrun"
    ACCELERATE = "accelerate"


WORK, TIME, DEVICES = "What is run", "How long", "On which devices"


def _option(name: str, help_text: str, panel: str, **settings: Any) -> Any:  # noqa: ANN401 - typer's settings
    return typer.Option(name, help=help_text, rich_help_panel=panel, **settings)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of everything that plans or runs a workload."""

    overrides: Annotated[
        list[str] | None,
        _option(
            "--set",
            "Change a setting of the workload card, such as batch.micro_batch=16. The result is in the open division.",
            WORK,
            metavar="FIELD=VALUE",
        ),
    ] = None
    weights: Annotated[str, _option("--weights", "card, random, pretrained, or pretrained:HUB_ID_OR_DIRECTORY.", WORK)] = "card"
    data: Annotated[
        str,
        _option(
            "--data",
            "card, synthetic, file:PATH (a .txt, .csv or .jsonl file, or a folder with train and test files), or hub:NAME.",
            WORK,
        ),
    ] = "card"
    seed: Annotated[int | None, _option("--seed", "Seed of weights, samples and their order.", WORK, min=0)] = None
    max_steps: Annotated[int | None, _option("--steps", "Do exactly so many optimizer steps.", TIME, min=1)] = None
    epochs: Annotated[int | None, _option("--epochs", "Do so many passes over the data.", TIME, min=1)] = None
    max_train_s: Annotated[float | None, _option("--seconds", "Train for so long at most.", TIME, min=1)] = None
    until_ci: Annotated[
        str | None,
        _option(
            "--until-ci", "Stop once the 95% interval of throughput is within this share, such as 1%; the default without --steps.", TIME
        ),
    ] = None
    timeout_s: Annotated[
        float | None, _option("--timeout", "End the worker after so many seconds in all; without it no time is too long.", TIME, min=1)
    ] = None
    no_step_s: Annotated[
        float | None,
        _option(
            "--no-step-timeout",
            "End the worker after so many seconds without a completed step; four times as many while it loads, compiles or evaluates. "
            "900 unless given.",
            TIME,
            min=1,
        ),
    ] = None
    strict_timing: Annotated[
        bool, _option("--strict-timing", "Wait for the device after each step instead of at the window's ends.", TIME)
    ] = False
    probe: Annotated[bool, _option("--probe/--no-probe", "Measure the device's matrix rate before and after.", TIME)] = True
    gates: Annotated[bool, _option("--gates/--no-gates", "Check first that training is right.", TIME)] = True
    save: Annotated[
        bool,
        _option("--save", "Write what was trained to a temporary folder at the end: the phase save. It is removed again.", TIME),
    ] = False
    cold: Annotated[
        bool,
        _option("--cold", "Compile everything anew: caches of compiled graphs are in folders of the run, and removed with it.", TIME),
    ] = False
    backend: Annotated[Family | None, _option("--backend", "Use this device family of the machine instead of the fastest.", DEVICES)] = None
    devices: Annotated[int | None, _option("--devices", "Train on so many devices, over all nodes.", DEVICES, min=1)] = None
    strategy: Annotated[str | None, _option("--strategy", "How they share the work: ddp, fsdp2, zero1, zero2 or zero3.", DEVICES)] = None
    offload: Annotated[str | None, _option("--offload", "Keep in host memory: none, optimizer or all.", DEVICES)] = None
    launcher: Annotated[Starter, _option("--launcher", "What starts several processes.", DEVICES)] = Starter.TORCHRUN
    nodes: Annotated[int, _option("--nodes", "Machines; run the same command on each.", DEVICES, min=1)] = 1
    node_rank: Annotated[int, _option("--node-rank", "Number of this machine, from 0; 0 writes the submission.", DEVICES, min=0)] = 0
    rendezvous: Annotated[
        str | None, _option("--rendezvous", "Address of the first machine, for several.", DEVICES, metavar="HOST:PORT")
    ] = None

    def machine(self) -> Machine:
        """Return this machine, as the device family that was asked for."""
        return detect(None if self.backend is None else Backend(str(self.backend)))

    def options(self) -> Options:
        """Return what planning needs."""
        if self.node_rank >= self.nodes:
            fix = f"machines are numbered from 0 to {self.nodes - 1}; give --nodes, the same on each machine"
            raise TunemarkError("--node-rank", self.node_rank, fix)
        launcher: Launcher = "torchrun" if self.launcher is Starter.TORCHRUN else "accelerate"
        return Options(
            overrides=tuple(self.overrides or ()),
            weights=self.weights,
            data=self.data,
            max_steps=self.max_steps,
            epochs=self.epochs,
            max_train_s=self.max_train_s,
            timeout_s=self.timeout_s,
            no_step_s=self.no_step_s,
            seed=self.seed,
            devices=self.devices,
            strategy=self.strategy,
            offload=self.offload,
            nodes=self.nodes,
            node=Node(self.node_rank, self.rendezvous),
            launcher=launcher,
            until_ci=share("--until-ci", self.until_ci),
            strict_timing=self.strict_timing,
            probe=self.probe,
            gates=self.gates,
            save=self.save,
            cold=self.cold,
        )


def share(option: str, text: str | None) -> float | None:
    """Return a share given as `1%` or `0.01`.

    Raises
    ------
    typer.BadParameter
        When it is no share between 0 and 1.

    """
    if text is None:
        return None
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise typer.BadParameter(f"{text!r} is no share; give 1% or 0.01", param_hint=option)
    return value


def takes_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, whose parameter `chosen` is a RunOptions, an option for each of its fields."""
    names = [field.name for field in fields(RunOptions)]
    hints = get_type_hints(RunOptions, include_extras=True)

    def run(**arguments: Any) -> None:  # noqa: ANN401 - what typer read
        own = {name: value for name, value in arguments.items() if name not in names}
        command(**own, chosen=RunOptions(**{name: arguments[name] for name in names}))

    shared = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name])
        for field in fields(RunOptions)
    ]
    own_hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=own_hints[name])
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "chosen"
    ]
    first = [parameter for parameter in own if parameter.kind is not inspect.Parameter.KEYWORD_ONLY]
    rest = [parameter for parameter in own if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    run.__signature__ = inspect.Signature([*first, *rest, *shared])  # type: ignore[attr-defined]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run
