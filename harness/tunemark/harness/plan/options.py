"""The options that plan, run and the studies share: a user's requests, and how a command receives them from typer.

The fields, their types and bounds are those of the record's `Requested`. What is rarely asked for has no option of its own:
`--set name=value` sets it, like a setting of the card.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, get_type_hints

import typer
from pydantic import Field, ValidationError
from typer.models import OptionInfo

from tunemark.schema import formats
from tunemark.schema.errors import TunemarkError, must_be
from tunemark.schema.records.plan import OPTIONS, SET_NAMES, RunOptions

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


WEIGHTS = "Use card, random, pretrained, or pretrained:HUB_ID_OR_DIRECTORY."
DATA = "Use card, synthetic, file:PATH (.txt, .csv or .jsonl, or a folder with train and test files), or hub:NAME."


class Options(RunOptions):
    """What the user asked for, of every command that plans or runs a workload: the request, and what no record holds."""

    weights: str = "card"
    """As in the record, but with the path of a directory."""
    data: str = "card"
    """As in the record, but with the path of a file."""
    node_rank: Annotated[int, Field(ge=0)] = 0
    """Number of this machine. Machine 0 writes the submission."""
    rendezvous: str | None = None
    """HOST:PORT of the first of several machines."""

    def having(self, **changes: Any) -> "Options":  # noqa: ANN401 - of any field
        """Return them with other values of some fields."""
        return self.model_copy(update=changes)

    def setting(self, assignments: Iterable[str]) -> "Options":
        """Return them with further `name=value`: of the run by the name of its option or in SETTINGS, and else of the card."""
        options, sets = self, list(self.overrides)
        for assignment in assignments:
            name, equals, text = assignment.partition("=")
            if not equals or name not in SETTINGS:
                sets.append(assignment)
                continue
            value = fraction(f"--set {name}", text) if name == "until_ci" else text
            try:
                options = Options.model_validate(dict(options) | {SETTINGS[name]: value})
            except ValidationError as error:
                raise TunemarkError(f"--set {name}", text, must_be(error.errors()[0]["msg"])) from error
        return options.having(overrides=tuple(sets))


RARE = {SET_NAMES.get(name, name): name for name in Options.model_fields if name not in {*OPTIONS, "data_sha256"}}
"""Settings of a run that only `--set` sets -> field of Options."""
SETTINGS = RARE | {"devices.count": "devices", "devices.strategy": "strategy", "devices.offload": "offload"}
"""All settings that are the run's and not the card's. A series varies the devices by the names of the card."""
SET = f"Change a setting: of the card, such as compile=blocks, which leaves the standard division, or of the run: {', '.join(RARE)}."
RUN_OPTIONS: dict[str, tuple[Any, OptionInfo]] = {
    "overrides": (list[str] | None, _option("--set", SET, "NAME=VALUE")),
    "weights": (str, _option("--weights", WEIGHTS, "WEIGHTS")),
    "data": (str, _option("--data", DATA, "DATA")),
    "max_steps": (int | None, _option("--steps", "Run exactly N optimizer steps.", "N", parser=count)),
    "devices": (int | None, _option("--devices", "Train on N devices, over all machines.", "N", parser=count)),
    "strategy": (str | None, _option("--sharding", "Use ddp, fsdp2, zero1, zero2 or zero3.", "NAME")),
}
"""Fields with an option of their own."""
CARD_OPTIONS: dict[str, tuple[str, Any, OptionInfo]] = {
    "method": ("method", str | None, _option("--method", "Use full, lora or qlora.", "METHOD")),
    "rank": ("lora.rank", int | None, _option("--rank", "Rank of the adapters.", "N", parser=count)),
    "seq": ("data.sequence_length", int | None, _option("--seq", "Tokens in a row.", "N", parser=count)),
    "micro_batch": (
        "batch.micro_batch",
        int | None,
        _option("--micro-batch", "Rows of one forward pass on one device.", "N", parser=count),
    ),
    "checkpointing": ("gradient_checkpointing", str | None, _option("--checkpointing", "Use none, selective or full.", "KIND")),
}
"""Options that stand for a setting of the card -> that setting."""


def takes_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the options above, which it receives as its parameter `options`. Its own ones of the same name stay its own."""
    hints, parameters = get_type_hints(command, include_extras=True), inspect.signature(command).parameters
    own = [parameters[name].replace(annotation=hints[name]) for name in parameters if name != "options"]
    short = {name: declared for name, declared in CARD_OPTIONS.items() if name not in parameters}

    def run(**arguments: Any) -> None:  # noqa: ANN401 - what typer read
        given = {name: arguments.pop(name) for name in short}
        chosen = {name: arguments.pop(name) for name in RUN_OPTIONS}
        sets = [f"{short[name][0]}={value}" for name, value in given.items() if value is not None]
        try:
            options = Options(**chosen | {"overrides": ()})
        except ValidationError as error:
            wrong = error.errors()[0]
            # typer keeps the name of an annotated option as its default.
            option = str(RUN_OPTIONS[str(wrong["loc"][0])][1].default)
            raise TunemarkError(option, wrong["input"], must_be(wrong["msg"])) from error
        options = options.setting((*sets, *(chosen["overrides"] or ())))
        command(**arguments, options=options)

    shared = [*((name, kind, info, None) for name, (_, kind, info) in short.items())]
    for name, (kind, info) in RUN_OPTIONS.items():
        shared.append((name, kind, info, Options.model_fields[name].default or None))
    further = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])
        for name, kind, info, default in shared
    ]
    run.__signature__ = inspect.Signature([*own, *further])  # type: ignore[attr-defined]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run
