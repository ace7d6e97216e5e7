"""The options that plan, run and the studies share: a user's requests, and how a command receives them from typer.

Each is declared once, in `Options`. What is rarely asked for has no option of its own: `--set name=value` sets it, like a setting of the card.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Annotated, Any, get_type_hints

import typer
from pydantic import Field, TypeAdapter, ValidationError
from typer.models import OptionInfo

from tunemark.schema import formats
from tunemark.schema.errors import TunemarkError, must_be
from tunemark.schema.records.plan import SET_NAMES, Launcher
from tunemark.schema.vocabulary import Backend

Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Workload = Annotated[str, typer.Argument(help="Name of a workload; `tunemark workloads` lists them.")]
PANEL = "What is run"


def count(text: str | int) -> int:
    """Return a whole number of 1 or more, such as `500`, `2k` or `10M`, for typer, which also gives the default."""
    try:
        return formats.whole_number(str(text))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: {error}") from error


def fraction(option: str, text: str) -> float:
    """Return a fraction given as `1%` or `0.01`."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise TunemarkError(option, text, "is not a fraction between 0 and 1; give 1% or 0.01")
    return value


def _option(name: str, help_text: str, metavar: str, **settings: Any) -> Any:  # noqa: ANN401 - typer's settings
    return typer.Option(name, help=help_text, metavar=metavar, rich_help_panel=PANEL, show_default=False, **settings)


SET = (
    "Change a setting: of the card, such as compile=blocks, which leaves the standard division, or of the run: seed, epochs, seconds, "
    "until_ci, timeout, no_step_timeout, strict_timing, probe, gates, save, cold, backend, offload, launcher, nodes, node_rank, rendezvous."
)
WEIGHTS = "Use card, random, pretrained, or pretrained:HUB_ID_OR_DIRECTORY."
DATA = "Use card, synthetic, file:PATH (.txt, .csv or .jsonl, or a folder with train and test files), or hub:NAME."
Seconds = Annotated[float | None, Field(ge=1)]
Number = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user asked for, of every command that plans or runs a workload. Fields without an option are set with `--set`."""

    overrides: Annotated[tuple[str, ...], _option("--set", SET, "NAME=VALUE")] = ()
    weights: Annotated[str, _option("--weights", WEIGHTS, "WEIGHTS")] = "card"
    data: Annotated[str, _option("--data", DATA, "DATA")] = "card"
    max_steps: Annotated[int | None, _option("--steps", "Run exactly N optimizer steps.", "N", parser=count)] = None
    devices: Annotated[int | None, _option("--devices", "Train on N devices, over all machines.", "N", parser=count)] = None
    strategy: Annotated[str | None, _option("--sharding", "Use ddp, fsdp2, zero1, zero2 or zero3.", "NAME")] = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """Of weights, samples and their order."""
    epochs: Number | None = None
    """Passes over the data."""
    max_train_s: Seconds = None
    """Train for at most this long."""
    until_ci: float | None = None
    """Stop once the 95% interval of throughput is within this fraction, such as 1%; the default without `--steps`."""
    timeout_s: Seconds = None
    """Stop the worker after this long in total."""
    no_step_s: Seconds = None
    """Stop the worker after this long without a completed step, or after four times as long while it loads, compiles or evaluates."""
    strict_timing: bool = False
    """Wait for the device after each step instead of at the window's ends."""
    probe: bool = True
    """Measure the device's matrix rate before and after training."""
    gates: bool = True
    """Check first that training is correct."""
    save: bool = False
    """Measure saving the trained weights, which are deleted afterwards."""
    cold: bool = False
    """Compile everything again, with empty caches for this run."""
    backend: Backend | None = None
    """Device family, instead of the fastest one on the machine."""
    offload: str | None = None
    """Keep in host memory: none, optimizer or all."""
    launcher: Launcher = "torchrun"
    nodes: Number = 1
    """Machines; the same command runs on each."""
    node_rank: Annotated[int, Field(ge=0)] = 0
    """Number of this machine. Machine 0 writes the submission."""
    rendezvous: str | None = None
    """HOST:PORT of the first of several machines."""

    def sets(self, name: str) -> bool:
        """Return True if a field of the card is set by name, with --set."""
        return any(assignment.partition("=")[0] == name for assignment in self.overrides)

    def setting(self, assignments: Iterable[str]) -> "Options":
        """Return them with further `name=value`: of the run by the name of its option or in SETTINGS, and else of the card."""
        chosen, sets = {}, []
        for assignment in assignments:
            name, equals, text = assignment.partition("=")
            if equals and name in SETTINGS:
                chosen[SETTINGS[name]] = _read(name, text)
            else:
                sets.append(assignment)
        return replace(self, overrides=(*self.overrides, *sets), **chosen)


@cache
def _hints() -> dict[str, Any]:
    return get_type_hints(Options, include_extras=True)


def _named(name: str) -> bool:
    return any(isinstance(extra, OptionInfo) for extra in getattr(_hints()[name], "__metadata__", ()))


RARE = {SET_NAMES.get(field.name, field.name): field.name for field in fields(Options) if not _named(field.name)}
"""Settings of a run that only `--set` sets -> field of Options."""
SETTINGS = RARE | {"devices.count": "devices", "devices.strategy": "strategy", "devices.offload": "offload"}
"""All settings that are the run's and not the card's. A series varies the devices by the names of the card."""


def _read(name: str, text: str) -> Any:  # noqa: ANN401 - as declared
    field = SETTINGS[name]
    if field == "until_ci":
        return fraction(f"--set {name}", text)
    try:
        return TypeAdapter(_hints()[field]).validate_python(text)
    except ValidationError as error:
        raise TunemarkError(f"--set {name}", text, must_be(error.errors()[0]["msg"])) from error


CARD_OPTIONS: dict[str, tuple[str, type, OptionInfo]] = {
    "method": ("method", str, _option("--method", "Use full, lora or qlora.", "METHOD")),
    "rank": ("lora.rank", int, _option("--rank", "Rank of the adapters.", "N", parser=count)),
    "seq": ("data.sequence_length", int, _option("--seq", "Tokens in a row.", "N", parser=count)),
    "micro_batch": ("batch.micro_batch", int, _option("--micro-batch", "Rows of one forward pass on one device.", "N", parser=count)),
    "checkpointing": ("gradient_checkpointing", str, _option("--checkpointing", "Use none, selective or full.", "KIND")),
}
"""Options that stand for a setting of the card -> that setting."""


def takes_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the options above, which it receives as its parameter `options`. Its own ones of the same name stay its own."""
    hints, own_hints = _hints(), get_type_hints(command, include_extras=True)
    parameters = inspect.signature(command).parameters
    own = [parameters[name].replace(annotation=own_hints[name]) for name in parameters if name != "options"]
    named = [field for field in fields(Options) if _named(field.name)]
    short = {name: declared for name, declared in CARD_OPTIONS.items() if name not in parameters}

    def run(**arguments: Any) -> None:  # noqa: ANN401 - what typer read
        given = {name: arguments.pop(name) for name in short}
        chosen = {field.name: arguments.pop(field.name) for field in named}
        sets = [f"{short[name][0]}={value}" for name, value in given.items() if value is not None]
        options = Options(**{**chosen, "overrides": ()}).setting((*sets, *(chosen["overrides"] or ())))
        command(**arguments, options=options)

    def parameter(name: str, kind: Any, info: OptionInfo, default: Any = None) -> inspect.Parameter:  # noqa: ANN401 - for typer
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])

    shared = [parameter(name, kind | None, info) for name, (_, kind, info) in short.items()]
    for field in named:
        (info,) = hints[field.name].__metadata__
        listed = field.name == "overrides"
        shared.append(
            parameter(field.name, list[str] | None if listed else hints[field.name].__origin__, info, None if listed else field.default)
        )
    run.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run
