"""The options that plan, run and the studies share: a user's requests, and how a command receives them from typer."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Any, get_args, get_type_hints

import typer

from tunemark.harness.plan.machine import detect, masks_without_devices
from tunemark.harness.vendors.protocol import vendor_of
from tunemark.schema.plan.machine import Machine
from tunemark.schema.records.plan import Launcher
from tunemark.schema.vocabulary import Backend

Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Workload = Annotated[str, typer.Argument(help="Name of a workload; `tunemark workloads` lists them.")]
WORK, TIME, DEVICES = "What is run", "How long", "On which devices"


def _option(name: str, help_text: str, panel: str, **settings: Any) -> Any:  # noqa: ANN401 - typer's settings
    return typer.Option(name, help=help_text, rich_help_panel=panel, **settings)


SET = "Change a setting of the workload card, such as compile=blocks. The result is then in the tuned or the open division."
WEIGHTS = "Use card, random, pretrained, or pretrained:HUB_ID_OR_DIRECTORY."
DATA = "Use card, synthetic, file:PATH (a .txt, .csv or .jsonl file, or a folder with train and test files), or hub:NAME."
UNTIL_CI = "Stop once the 95% interval of throughput is within this fraction, such as 1%; the default without --steps."
STEPS = "Run exactly N optimizer steps. The run ends with status ok without steady steps too, but then it is not ranked."
TIMEOUT = "Stop the worker after N seconds in total. Default: no limit."
NO_STEP = "Stop the worker after N seconds without a completed step, or after 4 N while it loads, compiles or evaluates. Default: 900."
STRICT = "Wait for the device after each step instead of at the window's ends."
PROBE = "Measure the device's matrix rate before and after training."
SAVE = "Measure saving: write the trained weights to a temporary folder, then delete them."
BACKEND = "Use this device family instead of the fastest one on the machine."
NODE_RANK = "Number of this machine, starting at 0. Machine 0 writes the submission."


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user asked for. Each field is an option of every command that plans or runs a workload."""

    overrides: Annotated[tuple[str, ...], _option("--set", SET, WORK, metavar="FIELD=VALUE")] = ()
    weights: Annotated[str, _option("--weights", WEIGHTS, WORK)] = "card"
    data: Annotated[str, _option("--data", DATA, WORK)] = "card"
    seed: Annotated[int | None, _option("--seed", "Set the seed of weights, samples and their order.", WORK, min=0, max=2**31 - 1)] = None
    max_steps: Annotated[int | None, _option("--steps", STEPS, TIME, min=1)] = None
    epochs: Annotated[int | None, _option("--epochs", "Make N passes over the data.", TIME, min=1)] = None
    max_train_s: Annotated[float | None, _option("--seconds", "Train for at most N seconds.", TIME, min=1)] = None
    until_ci: Annotated[float | None, _option("--until-ci", UNTIL_CI, TIME)] = None
    timeout_s: Annotated[float | None, _option("--timeout", TIMEOUT, TIME, min=1)] = None
    no_step_s: Annotated[float | None, _option("--no-step-timeout", NO_STEP, TIME, min=1)] = None
    strict_timing: Annotated[bool, _option("--strict-timing", STRICT, TIME)] = False
    probe: Annotated[bool, _option("--probe/--no-probe", PROBE, TIME)] = True
    gates: Annotated[bool, _option("--gates/--no-gates", "Check first that training is correct.", TIME)] = True
    save: Annotated[bool, _option("--save", SAVE, TIME)] = False
    cold: Annotated[bool, _option("--cold", "Compile everything again, with empty caches for this run.", TIME)] = False
    backend: Annotated[Backend | None, _option("--backend", BACKEND, DEVICES)] = None
    devices: Annotated[int | None, _option("--devices", "Train on N devices, over all nodes.", DEVICES, min=1)] = None
    strategy: Annotated[str | None, _option("--strategy", "Distribute the work with ddp, fsdp2, zero1, zero2 or zero3.", DEVICES)] = None
    offload: Annotated[str | None, _option("--offload", "Keep in host memory: none, optimizer or all.", DEVICES)] = None
    launcher: Annotated[Launcher, _option("--launcher", "Start several processes with torchrun or accelerate.", DEVICES)] = "torchrun"
    nodes: Annotated[int, _option("--nodes", "Use N machines; run the same command on each.", DEVICES, min=1)] = 1
    node_rank: Annotated[int, _option("--node-rank", NODE_RANK, DEVICES, min=0)] = 0
    rendezvous: Annotated[
        str | None, _option("--rendezvous", "Address of the first of several machines.", DEVICES, metavar="HOST:PORT")
    ] = None

    def sets(self, name: str) -> bool:
        """Return True if a field is set by name, with --set."""
        return any(assignment.partition("=")[0] == name for assignment in self.overrides)

    def machine(self) -> Machine:
        """Return this machine, with the requested device family. Warn if an environment variable chooses among devices and it has none."""
        found = detect(self.backend)
        absent = masks_without_devices() if self.backend is None and vendor_of(found.backend).on_host else []
        if absent:
            sys.stderr.write(f"tunemark: warning: {'; '.join(absent)}: the CPU is used; --backend cpu or an empty value requests it\n")
        return found


Family = StrEnum("Family", {backend.name: backend.value for backend in Backend if backend is not Backend.FAKE})  # type: ignore[misc]
"""Device families that can be requested."""
Starter = StrEnum("Starter", {name.upper(): name for name in get_args(Launcher)})  # type: ignore[misc]
"""Programs that start several processes."""
READ_AS: dict[str, Any] = {"overrides": list[str] | None, "until_ci": str | None, "backend": Family | None, "launcher": Starter}
"""Types that typer reads, for options whose field has a type that it does not know."""


def takes_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option for each field of Options, which it receives as its parameter `options`."""
    hints, own_hints = get_type_hints(Options, include_extras=True), get_type_hints(command, include_extras=True)

    def run(**arguments: Any) -> None:  # noqa: ANN401 - what typer read
        chosen = {field.name: arguments.pop(field.name) for field in fields(Options)}
        chosen["overrides"] = tuple(chosen["overrides"] or ())
        chosen["until_ci"] = fraction("--until-ci", chosen["until_ci"])
        chosen["backend"] = Backend(chosen["backend"].value) if chosen["backend"] else None
        chosen["launcher"] = Starter(chosen["launcher"]).value
        command(**arguments, options=Options(**chosen))

    parameters = inspect.signature(command).parameters
    own = [parameters[name].replace(annotation=own_hints[name]) for name in parameters if name != "options"]
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=Annotated[READ_AS.get(field.name, hints[field.name].__origin__), *hints[field.name].__metadata__],
        )
        for field in fields(Options)
    ]
    run.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


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
