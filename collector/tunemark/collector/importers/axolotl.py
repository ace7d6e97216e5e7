"""Axolotl configurations as workload cards; `axolotl.toml` says what each key means.

Settings that a card cannot express are listed, never dropped silently.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import tomlkit
import typer
import yaml
from pydantic import ValidationError

from tunemark.collector.commands.terminal import named_as, print_json, say
from tunemark.collector.importers.import_io import Request, option_of, read_bytes, refuse_existing, write_out
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.workloads import WorkloadCard
from tunemark.schema.records.plan import LoraSettings
from tunemark.schema.vocabulary import Method

SETTINGS = {"key": "key of the card; by default the name of the file", "model": "model card, if no card has the name in base_model"}
OTHER_TASKS = ("rl", "reward_model", "process_reward_model")
"""Keys of tasks other than predicting the next token."""


def axolotl(request: Request) -> None:
    """Make a workload card from an axolotl configuration; its `not_stated` lists the defaults that it relies on."""
    settings, file = request.known(SETTINGS), request.file()
    card, not_expressed = workload_of(read_bytes(file), file.name, FactBase.of_project(), settings.get("key"), settings.get("model"))
    for text in not_expressed:
        say(f"not expressed: {text}")
    if request.out is not None:
        path = request.out / f"{card.key}.toml"
        refuse_existing(path)
        write_out(path, card_text(card).encode())
        say(f"wrote {path}")
    if request.as_json:
        print_json({"card": card.model_dump(mode="json"), "not_expressed": not_expressed})
    elif request.out is None:
        typer.echo(card_text(card), nl=False)


def card_text(card: WorkloadCard) -> str:
    """Return a card as the TOML of its file, plain fields before tables.

    TOML has no null: null fields are left out, so a card must not contain null where the default is another value.
    """
    content = card.model_dump(mode="json", exclude_none=True)
    plain = {name: value for name, value in content.items() if not isinstance(value, dict) and value != []}
    return tomlkit.dumps(plain | {name: part for name, part in content.items() if isinstance(part, dict) and part})


@cache
def _meanings() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("axolotl.toml").read_text(encoding="utf-8"))


@dataclass(slots=True)
class Config:
    """A configuration, with the defaults it relies on and the settings that a card cannot express."""

    raw: Mapping[str, Any]
    card: dict[str, Any] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)
    not_expressed: list[str] = field(default_factory=list)

    def put(self, place: str, value: object) -> None:
        """Set a field of the card, such as `data.name`."""
        *path, name = place.split(".")
        inside = self.card
        for part in path:
            inside = inside.setdefault(part, {})
        inside[name] = value

    def cannot(self, key: str, why: str) -> None:
        """Note a setting that the card cannot express."""
        text = " ".join(str(self.raw.get(key)).split())
        self.not_expressed.append(f"{key}: {text[:80]} ({why})")


def workload_of(
    content: bytes, file: str, facts: FactBase, key: str | None = None, model: str | None = None
) -> tuple[WorkloadCard, tuple[str, ...]]:
    """Return the workload card of a configuration, and its settings that the card cannot express.

    Raises TunemarkError with exit code 3 for an invalid configuration; names the field, the value and the fix.
    """
    config = Config(_loaded(content, file))
    for name in OTHER_TASKS:
        if config.raw.get(name):
            raise _invalid(name, config.raw[name], "is another task; workload cards predict the next token or classify")
    adapter = config.raw.get("adapter") or "full"
    if adapter not in {"full", "lora", "qlora"}:
        raise _invalid("adapter", adapter, f"a workload is full, lora or qlora; {did_you_mean(str(adapter), ['lora', 'qlora'])}")
    base_model = str(config.raw["base_model"])
    with named_as(option_of("model") if model else "base_model"):
        card = facts.model(model or base_model)
    config.card |= {
        "key": key or re.sub(r"[^a-z0-9._-]+", "-", file.rsplit(".", 1)[0].lower()).strip("-._")[:80] or "imported",
        "title": f"{adapter} of {base_model} (axolotl)"[:2_000],
        "description": f"Imported from the axolotl configuration {file}.",
        "source": f"axolotl configuration {file}",
        "task": "causal_lm",
        "model": card.key,
        "weights": "pretrained",
        "method": adapter,
    }
    _add_keys(config, Method(adapter))
    _add_data(config)
    _add_adapters(config, Method(adapter))
    _add_computation(config)
    read = {*_meanings()["keys"], *_meanings()["attention"], *_meanings()["other"]["read"], *_meanings()["other"]["without_effect"]}
    for other, value in config.raw.items():
        if other not in read and not other.startswith("liger_") and value not in (None, False, "", [], {}, 0):
            config.cannot(other, "no field of a workload card")
    not_expressed = tuple(config.not_expressed)
    config.card["not_stated"] = [*config.assumed, *(f"not expressed: {text}" for text in not_expressed)]
    try:
        return WorkloadCard.model_validate(config.card), not_expressed
    except ValidationError as error:
        first = error.errors()[0]
        raise _invalid(".".join(map(str, first["loc"])), first.get("input"), first["msg"]) from error


def _loaded(content: bytes, file: str) -> dict[str, Any]:
    """Return the settings of a configuration; raises TunemarkError (exit code 3) for anything else."""
    try:
        raw = yaml.safe_load(content.decode("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise _invalid(file, "", f"not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict) or not raw.get("base_model"):
        raise _invalid(file, "", "not an axolotl configuration: it has no base_model")
    return {str(name): value for name, value in raw.items()}


def _invalid(name: str, value: object, fix: str) -> TunemarkError:
    return TunemarkError(name, value, fix, exit_code=Exit.INVALID)


def _add_keys(config: Config, method: Method) -> None:
    """Add the settings that are fields of the card, with axolotl's defaults."""
    for name, (place, kind, *default) in _meanings()["keys"].items():
        if place.startswith("lora.") and method is Method.FULL:
            continue
        value = config.raw.get(name)
        if value is None and not default:
            raise _invalid(name, None, "give one; axolotl has no default")
        if value is None:
            config.assumed.append(f"{name} ({default[0]} by default)")
        config.put(place, _read(name, kind, default[0] if value is None else value))
    optimizer, stop = config.card["optimizer"], config.card["stop"]
    optimizer["betas"] = list(optimizer["betas"].values())
    if not optimizer["max_grad_norm"]:
        optimizer["max_grad_norm"] = 1.0
        config.cannot("max_grad_norm", "a card cannot state that gradients are not clipped; it has 1.0")
    stop["max_steps"] = stop["max_steps"] if stop["max_steps"] > 0 else None
    if float(stop["epochs"]).is_integer() and stop["epochs"] >= 1:
        stop["epochs"] = int(stop["epochs"])
    else:
        del stop["epochs"]
        config.cannot("num_epochs", "the card counts whole epochs")


def _read(name: str, kind: str, value: Any) -> Any:  # noqa: ANN401 - any YAML value
    if kind not in {"whole", "number"}:
        words = _meanings()[kind]
        if str(value) not in words:
            raise _invalid(name, value, f"nothing that a workload card has; {did_you_mean(str(value), words)}")
        return words[str(value)]
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise _invalid(name, value, "give a number") from error
    if kind == "whole" and not number.is_integer():
        raise _invalid(name, value, "must be a whole number")
    return int(number) if kind == "whole" else number


def _add_data(config: Config) -> None:
    datasets = config.raw.get("datasets") or []
    first = datasets[0] if isinstance(datasets, list) and datasets and isinstance(datasets[0], dict) else {}
    if not first.get("path"):
        raise _invalid("datasets", datasets or None, "give a list; its first entry needs a path")
    details = ", ".join(f"{name} {value}" for name, value in first.items() if name != "path" and value is not None)
    if details:
        config.not_expressed.append(f"datasets.0: {details} (how rows become text)")
    if len(datasets) > 1:
        config.not_expressed.append(f"datasets: {len(datasets)} of them, the card names the first")
    packing, path = bool(config.raw.get("sample_packing")), str(first["path"])
    local = path.startswith((".", "/", "~")) or path.endswith((".json", ".jsonl", ".csv", ".parquet"))
    config.card["data"] |= {
        "source": "file" if local else "hub",
        "name": path.rsplit("/", 1)[-1] if local else path,
        "packing": packing,
        "padding": "static" if config.raw.get("pad_to_sequence_len") else "none" if packing else "dynamic",
    }
    config.assumed.append("training_rows")


def _add_adapters(config: Config, method: Method) -> None:
    if method is Method.FULL:
        return
    targets = config.raw.get("lora_target_modules") or ()
    modules = list(map(str, targets)) if isinstance(targets, list | tuple) else [str(targets)]
    if config.raw.get("lora_target_linear") or not modules:
        if not config.raw.get("lora_target_linear"):
            config.assumed.append("lora_target_modules (all linear layers of a block by default)")
        modules = list(LoraSettings().target_modules)
    config.put("lora.target_modules", modules)
    if method is Method.QLORA:
        kwargs = config.raw.get("bnb_config_kwargs") or {}
        config.put("quantisation.format", kwargs.get("bnb_4bit_quant_type", "nf4"))
        config.put("quantisation.double", bool(kwargs.get("bnb_4bit_use_double_quant", True)))
    elif config.raw.get("load_in_4bit"):
        config.cannot("load_in_4bit", "a card quantises with qlora only")


def _add_computation(config: Config) -> None:
    """Add number format, recomputation, kernels and sharding, which follows from the name of axolotl's own DeepSpeed file."""
    raw = config.raw
    half = "bf16" if raw.get("bf16") in {True, "true", "full"} else "fp16" if raw.get("fp16") else None
    recompute, named = raw.get("gradient_checkpointing"), str(raw.get("deepspeed") or "").rsplit("/", 1)[-1]
    kernel = next((kernel for name, kernel in _meanings()["attention"].items() if raw.get(name)), raw.get("attn_implementation"))
    config.card |= {
        "compute": half or ("auto" if raw.get("bf16") == "auto" else "tf32" if raw.get("tf32") else "fp32"),
        "gradient_checkpointing": "full" if recompute else "none",
        "attention": kernel or "sdpa",
        # The card has one switch for all of Liger's kernels.
        "fused_kernels": "liger" if any(value and name.startswith("liger_") for name, value in raw.items()) else "none",
    }
    if recompute not in {None, True, False}:
        config.cannot("gradient_checkpointing", "the card knows the values none, selective and full")
    sharded = [key for key in ("fsdp", "fsdp_config") if raw.get(key)]
    if named in _meanings()["deepspeed"]:
        config.card["devices"] = dict(_meanings()["deepspeed"][named])
    elif named:
        config.cannot("deepspeed", "only axolotl's own zero1, zero2 and zero3 files are known by name")
    elif sharded and str(raw.get("fsdp_version")) == "2":
        config.card["devices"] = {"strategy": "fsdp2"}
    else:
        for key in sharded:
            config.cannot(key, "the card has the second version of FSDP only")
    if "devices" in config.card:
        config.assumed.append("devices.count")
