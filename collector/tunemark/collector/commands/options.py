"""Options that all commands share, and how their values are read."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer
from pydantic import TypeAdapter, ValidationError

from tunemark.schema.errors import TunemarkError, bare, did_you_mean, must_be
from tunemark.schema.facts.any_model import any_model
from tunemark.schema.facts.cards import APPLE, USUAL_LENGTH, AcceleratorCard, ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.names import memory_in, words_of
from tunemark.schema.files import project_root
from tunemark.schema.formats import tokens_in_row, whole_number
from tunemark.schema.physics.families import FAMILIES
from tunemark.schema.physics.stacks import STACKS
from tunemark.schema.physics.training_shape import TrainingShape
from tunemark.schema.recommendation import LEVELS, Rate
from tunemark.schema.records.plan import Compile
from tunemark.schema.vocabulary import Checkpointing, Dtype, Method, PriceKind, SoftwareLevel
from tunemark.terminal import say


def option(*words: str, metavar: str | None = None) -> Any:  # noqa: ANN401 - typer's own class
    """Return an option without a default in its help: its names, and the help last."""
    return typer.Option(*words[:-1], help=words[-1], metavar=metavar, show_default=False)


# Options of several commands: one name and one meaning everywhere.
Database = Annotated[Path | None, option("--db", "The DuckDB file. Default: `build/tunemark.duckdb` of the checkout.")]
Model = option("--model", "-m", "A model: name, hub id, config.json, or a size such as 13B.")
ModelName = Annotated[str, Model]
Accelerators = Annotated[list[str] | None, option("--accelerator", "-a", "An accelerator, or as in '8 x H100'; repeatable. Default: all.")]
Length = Annotated[str | None, option("--seq", "Tokens in a row (8k), on average if they vary. Default: 2048.")]
USUAL_JOB = "10M"
"""Tokens of a job whose size is not given, as in the field of the home page: some thousand rows of usual length."""
Tokens = Annotated[str | None, option("--tokens", "Tokens of the data, such as 10M.")]
Samples = Annotated[str | None, option("--samples", "Full rows instead of --tokens: 10k.")]
StackName = Annotated[str | None, option("--stack", "Software whose memory and speed count. Default: hf, or megatron.")]
Software = Annotated[str | None, option("--software", "plain (default), tuned or vendor.")]
Settings = Annotated[list[str] | None, option("--set", "A rare setting; --set ? lists them.", metavar="NAME=VALUE")]
OnDay = Annotated[str | None, option("--on", "Day, as YYYY-MM-DD. Default: today.", metavar="DATE")]
ACCELERATOR = "--accelerator/-a"
OPTIONS = {"model": "--model/-m", "accelerator": ACCELERATOR, "method": "--method", "sequence_length": "--seq"}
"""Fields of facts, shapes and questions, and the options that set them in all commands."""
Word = TypeVar("Word", bound=str)
Read = TypeVar("Read", int, float)


@contextmanager
def named_as(options: Mapping[str, str] | str) -> Iterator[None]:
    """Name what was typed in an error: by the field that it sets, or always the same. Also a decorator of a command."""
    try:
        yield
    except TunemarkError as error:
        field = options if isinstance(options, str) else options.get(error.field, error.field)
        raise TunemarkError(field, error.value, error.fix, exit_code=error.exit_code) from error


def database_of(path: Path | None) -> Path:
    """Return the named database, or the one in the checkout."""
    return project_root() / "build" / "tunemark.duckdb" if path is None else path


def date_option(option: str, text: str | None) -> date:
    """Return the date given by an option, or today's date. Raises TunemarkError for any form but YYYY-MM-DD."""
    try:
        return datetime.now(tz=UTC).date() if text is None else date.fromisoformat(text)
    except ValueError as error:
        raise TunemarkError(option, text, "not a date; write it as YYYY-MM-DD") from error


def chosen(option: str, word: str, known: Iterable[Word]) -> Word:
    """Return the member of a closed list that an option names, in any case; raises TunemarkError with a suggestion."""
    members = list(known)
    word = next((each for each in SWITCHES.get(word.lower(), ()) if each in members and "none" in members), word)
    if word.lower() in members:
        return next(member for member in members if member == word.lower())
    raise TunemarkError(option, word, did_you_mean(word, members))


def software_of(stack: str | None, level: str | None) -> tuple[str | None, SoftwareLevel]:
    """Return the name of the software stack of --stack, and the level of --software: without one, that of the stack, else plain."""
    named = chosen("--stack", stack, STACKS) if stack else None
    return named, chosen("--software", level, LEVELS) if level else STACKS[named].level if named else "plain"


SWITCHES = dict.fromkeys(("true", "on", "yes"), ("full", "blocks")) | dict.fromkeys(("false", "off", "no"), ("none",))
"""Words of a switch -> the members that they mean in lists without them."""
OTHER_TRAINING = frozenset(("dpo", "ppo", "grpo", "orpo", "kto", "rlhf", "rl", "pretraining"))
"""Training that people ask for and that is not fine-tuning on examples."""


FOUR_BITS = re.compile(r"[-_.](bnb-4bit|4bit|nf4|int4|awq|gptq(?!-int8)|(?:nv|mx)?fp4|w4a\d+)\b", re.IGNORECASE)
"""In the names of models whose weights are stored in 4 bits."""
OTHER_BITS = re.compile(r"[-_.:](gguf|exl\d|aqlm|fp8|8bit|int8|w8a\d+|i?q\d_\w+)\b", re.IGNORECASE)
"""In the names of models whose weights are stored in other formats than they are trained in."""


def training_method(word: str | None, known: Iterable[Word], model: ModelCard | None, name: str) -> Word:
    """Return the method that `--method` names, else what people usually do: full fine-tuning of encoders, LoRA of other models.

    Adapters of a model whose `name`, or configuration, says that its weights have 4 bits are QLoRA.

    Raises TunemarkError with the reason for training of another kind.
    """
    if word is None and FOUR_BITS.search(f"{name} {model.name if model else ''}"):
        say(f"tunemark: {name!r} has weights in 4 bits, so the method is QLoRA; --method lora is with weights in 16 bits")
        word = Method.QLORA.value
    elif (word or "").lower() in {"", "lora", "full"} and (stored := FOUR_BITS.search(name) or OTHER_BITS.search(name)):
        say(f"tunemark: {name!r} has weights in {stored[1]}; the answer is for the original ones in 16 bits")
    word = word or (Method.FULL if model and FAMILIES[model.family].encoder else Method.LORA).value
    if word.lower() in OTHER_TRAINING:
        fix = "is not covered: its steps differ from those of supervised fine-tuning, whose methods are full, lora and qlora"
        raise TunemarkError("--method", word, fix)
    return chosen("--method", word, known)


def price_kind(word: str) -> PriceKind:
    """Return the kind of price that `--kind` names; prices of owned hardware are not in the price book."""
    return chosen("--kind", word.replace("-", "_"), [kind for kind in PriceKind if kind is not PriceKind.OWNED])


def named_settings(texts: Iterable[str] | None, known: Iterable[str] | None = None) -> dict[str, str]:
    """Return the settings of `--set NAME=VALUE` by name; raises TunemarkError for one that is not known, if only some are."""
    names, settings = list(known or ()), dict[str, str]()
    for text in texts or ():
        name, equals, value = text.partition("=")
        if names and text == "?":
            typer.echo("\n".join(names))
            raise typer.Exit
        if not equals and text != "?":
            raise TunemarkError("--set", text, f"give NAME=VALUE{'; known: ' if names else ''}{', '.join(names)}")
        if known is not None and name not in names:
            similar = did_you_mean(name, names)
            listed = "" if similar.startswith("known: ") else f"; known: {', '.join(names)}"
            raise TunemarkError("--set", name, f"{similar}{listed}")
        settings[name] = value
    return settings


def listed(texts: Iterable[str] | None) -> list[str]:
    """Return the words of an option that is repeatable and may have several, separated by commas."""
    return [part.strip() for text in texts or () for part in text.split(",")]


def named_accelerators(facts: FactBase, names: Iterable[str], option: str = ACCELERATOR) -> dict[str, tuple[AcceleratorCard, int | None]]:
    """Return the cards of accelerators by name, each with the number of devices that its name gives, as in `8 x H100`; and say how names were read.

    Names without a card are left out, with a message. Raises TunemarkError about the option if no name has one.
    """
    found, unknown = dict[str, tuple[AcceleratorCard, int | None]](), list[TunemarkError]()
    for text in dict.fromkeys(names):
        try:
            count, name = facts.counted(text, option)
            # Azure's names are also written without their first word, and with spaces.
            named = bare(name).removeprefix("standard")
            instance = next((row for each, row in facts.by_instance.items() if bare(each).removeprefix("standard") == named), None)
            if instance is not None and instance.accelerator_count.is_integer():
                count, name = (count or 1) * int(instance.accelerator_count), instance.accelerator
                say(f"tunemark: {option}: {text!r} is read as its {count} x {facts.accelerators[name].name}, at any provider")
            card, whole = facts.accelerator(name, option, usual=True), memory_in(name) is None
        except TunemarkError as error:
            unknown.append(error)
            continue
        most = (
            f" with {card.memory_gib:g} GB; another size is given as in '{name} {(card.memory_gib or 0) / 2:g}GB'"
            if card.vendor == APPLE and whole
            else ""
        )
        if most or facts.recognise_accelerator(name) is None:
            say(f"tunemark: {option}: {name!r} is read as {card.name}{most}")
        found[text] = (card, count)
    if unknown and not found:
        raise unknown[0]
    for each in unknown:
        say(f"tunemark: {each}; it is left out")
    return found


def named_model(facts: FactBase, name: str) -> ModelCard:
    """Return the card of a model by name, file or size, and say how a name that is not its own was read."""
    card = any_model(facts, name)
    if all(words_of(name) != words_of(each) for each in (card.key, card.name, card.hub_id or "")):
        say(f"tunemark: --model/-m: {name!r} is read as {card.name}")
    return card


def row_length(card: ModelCard | None, text: str | None = None) -> int:
    """Return the tokens of a row by `--seq`, else the usual ones of the model."""
    usual = card.usual_length if card else USUAL_LENGTH
    return usual if text is None else read_number("--seq", text, tokens_in_row)


def job_tokens(tokens: str | None, samples: str | None, length: int, epochs: int) -> int:
    """Return the tokens of a job over all epochs, with full rows; those of a usual job, said so, without the size of the data."""
    if epochs < 1:
        raise TunemarkError("--epochs", epochs, "must be 1 or more")
    if tokens is not None and samples is not None:
        raise TunemarkError("--samples", samples, "give the size of the data with either --tokens or --samples")
    if samples is not None:
        rows = read_number("--samples", samples)
        say(f"tunemark: --samples: each counts as {length:,} tokens; if yours are shorter, give their average length (--seq) or --tokens")
        return rows * length * epochs
    if tokens is None:
        say(f"tunemark: --tokens: {USUAL_JOB} are assumed; give the size of your data with --tokens or --samples")
    return read_number("--tokens", USUAL_JOB if tokens is None else tokens) * epochs


def read_number(option: str, text: str, reader: Callable[[str], Read] = whole_number) -> Read:
    """Return the number in a text such as `82k`, or what another reader of `formats` reads. Raises TunemarkError that names the option."""
    try:
        return reader(text)
    except ValueError as error:
        raise TunemarkError(option, text, str(error)) from error


def cited(rate: Rate) -> str:
    """Return the kind of evidence with the first results."""
    more = f" and {rate.results - 2} more" if rate.results > 2 else ""  # noqa: PLR2004 - two are named
    kind = f"{rate.usual_software} software, {rate.evidence}" if rate.usual_software else rate.evidence
    return f"{kind}: {', '.join(rate.result_ids[:2])}{more}" if rate.result_ids else kind


# Settings of a training step that `estimate` and `recommend` keep

SAME_NAME = ("attention", "loss", "reentrant", "activation_offload", "optimizer_in_backward", "gradient_accumulation", "parameters")
STEP_SETTINGS = {name: name for name in (*SAME_NAME, "activations", "autocast", "adapters", "block_format", "tensor_parallel", "offload")}
STEP_SETTINGS |= {"compile": "compiled", "lora.target_modules": "lora_targets", "lora.dropout": "lora_dropout"}
STEP_SETTINGS |= {"quantisation.double": "double_quantisation", "optimizer.master_weights": "master_weights"}
"""What `--set` sets, by its name in `tunemark run` -> field of the shape of a step."""
STEP_OPTIONS = {"rank": "lora_rank"} | {name: name for name in ("micro_batch", "checkpointing", "sharding", "optimizer")}
"""The same of those that `estimate` has options for."""
OPTIONS_OF_SHAPE = {"world_size": "--devices"} | {field: f"--{name.replace('_', '-')}" for name, field in STEP_OPTIONS.items()}
OPTIONS_OF_SHAPE |= {field: f"--set {name}" for name, field in STEP_SETTINGS.items()}
FORMATS = dict.fromkeys(("parameters", "activations", "autocast", "adapters"), (Dtype.BF16, Dtype.FP16, Dtype.FP32))
CHOICES: dict[str, Iterable[str]] = FORMATS | {"block_format": Dtype, "checkpointing": Checkpointing}
OF_ADAPTERS = Method.FULL, "full fine-tuning has no adapters; use it with --method lora or qlora"
WITHOUT_EFFECT = dict.fromkeys(("lora_rank", "lora_targets", "lora_dropout", "adapters"), OF_ADAPTERS)
WITHOUT_EFFECT["block_format"] = Method.QLORA, "the frozen weights of QLoRA are in 4 bits; use it with full or lora"
"""Field -> the method with which it does nothing, and why."""


def fields_of_step(texts: Mapping[str, str], method: str) -> dict[str, Any]:
    """Return the fields of a step that texts give, by name. Raises TunemarkError for a value that is not one, or that has no effect with the method."""
    for name in texts:
        if name in WITHOUT_EFFECT and WITHOUT_EFFECT[name][0] == method:
            raise TunemarkError(OPTIONS_OF_SHAPE[name], texts[name], f"has no effect here: {WITHOUT_EFFECT[name][1]}")
    kept = {name: _value(name, text) for name, text in texts.items()}
    if "parameters" in kept:
        kept = {"activations": kept["parameters"]} | kept
    if kept.get("autocast") in {Dtype.BF16, Dtype.FP16} and not {"parameters", "activations"} & kept.keys():
        # Products in 16 bits are the default, with weights in the format that the software has for it.
        kept.pop("autocast", None)
    return kept


def _value(name: str, text: str) -> Any:  # noqa: ANN401 - of the type of the field
    option, default = OPTIONS_OF_SHAPE[name], TrainingShape.__dataclass_fields__[name].default
    if name in CHOICES:
        return chosen(option, text, CHOICES[name])
    if name == "compiled":
        return chosen(option, text, get_args(Compile)) != "none"
    if name == "optimizer":
        return re.sub("-(?:torch|bnb|hf|32bit)(?=-|$)", "", text.lower().replace("_", "-"))
    if name in {"micro_batch", "lora_rank"}:
        return read_number(option, text)
    if isinstance(default, bool | int | float):
        try:
            return TypeAdapter(type(default)).validate_python(text)
        except ValidationError as error:
            raise TunemarkError(option, text, must_be(error.errors()[0]["msg"])) from error
    return tuple(word.strip() for word in text.split(",")) if isinstance(default, tuple) else text
