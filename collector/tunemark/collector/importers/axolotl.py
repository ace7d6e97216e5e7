"""Axolotl configurations as workload cards. What a card cannot express is listed, never dropped in silence."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml  # type: ignore[import-untyped]
from pydantic import ValidationError

from tunemark.collector.importers.axolotl_keys import ADAMW, DEFAULTS, USED, WITHOUT_EFFECT
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean
from tunemark.schema.facts import FactBase
from tunemark.schema.plan import LoraSettings, Optimizer
from tunemark.schema.vocabulary import Checkpointing, DataSource, Method, Padding, Task, Weights
from tunemark.schema.workload_cards import WorkloadBatch, WorkloadCard, WorkloadData, WorkloadStop

LARGEST_FILE = 2**20


@dataclass(frozen=True, slots=True)
class Imported:
    """A card and what it does not hold."""

    card: WorkloadCard
    not_expressed: tuple[str, ...]
    """Settings of the configuration that the card cannot express, as `key: value`."""


@dataclass(slots=True)
class _Config:
    """A configuration, and which of its defaults were needed."""

    raw: Mapping[str, Any]
    assumed: list[str] = field(default_factory=list)
    not_expressed: list[str] = field(default_factory=list)

    def get(self, key: str) -> Any:  # noqa: ANN401 - any YAML value
        """Return a setting, or its default, which is then noted."""
        value = self.raw.get(key)
        if value is None and key in DEFAULTS:
            self.assumed.append(f"{key} ({DEFAULTS[key]} by default)")
            return DEFAULTS[key]
        return value

    def number(self, key: str) -> float:
        """Return a number; YAML reads 1e-4 as a word."""
        value = self.get(key)
        try:
            return float(value)
        except (TypeError, ValueError) as error:
            raise _wrong(key, value, "give a number") from error

    def whole(self, key: str) -> int:
        """Return a whole number."""
        value = self.number(key)
        if not value.is_integer():
            raise _wrong(key, self.get(key), "give a whole number")
        return int(value)

    def cannot(self, key: str, why: str) -> None:
        """Note a setting that the card cannot express."""
        self.not_expressed.append(f"{key}: {_shown(self.raw.get(key))} ({why})")


def workload_of(content: bytes, file: str, facts: FactBase, key: str | None = None) -> Imported:
    """Return the workload card of a configuration.

    Parameters
    ----------
    content
        The YAML file; it is parsed without any Python object in it.
    file
        Its name, for messages and for the key of the card.
    facts
        Resolves the name of the model.
    key
        Key of the card; made of the file's name when left out.

    Raises
    ------
    TunemarkError
        With exit code 3 for what is no configuration; names the field, the value and the fix.

    """
    config = _Config(_loaded(content, file))
    adapter = config.raw.get("adapter") or None
    if adapter not in {None, "lora", "qlora"}:
        raise _wrong("adapter", adapter, f"a workload is full, lora or qlora; {did_you_mean(str(adapter), ['lora', 'qlora'])}")
    method = Method(adapter) if adapter else Method.FULL
    name = key or re.sub(r"[^a-z0-9._-]+", "-", file.rsplit("/", 1)[-1].rsplit(".", 1)[0].lower()).strip("-._")[:80] or "imported"
    try:
        card = WorkloadCard(
            key=name,
            title=f"{method.value} of {_model_name(config)} (axolotl)"[:2_000],
            description=f"Imported from the axolotl configuration {file.rsplit('/', 1)[-1]}.",
            source=f"axolotl configuration {file.rsplit('/', 1)[-1]}",
            task=Task.CAUSAL_LM,
            model=facts.model(_model_name(config)).key,
            weights=Weights.PRETRAINED,
            method=method,
            lora=_lora(config) if method is not Method.FULL else None,
            data=_data(config),
            batch=WorkloadBatch(
                micro_batch=config.whole("micro_batch_size"), gradient_accumulation=config.whole("gradient_accumulation_steps")
            ),
            optimizer=_optimizer(config),
            compute=_compute(config),
            gradient_checkpointing=_checkpointing(config),
            stop=_stop(config),
            seed=config.whole("seed"),
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise _wrong(".".join(map(str, first["loc"])), first.get("input"), first["msg"]) from error
    _others(config, method)
    return Imported(
        card.model_copy(update={"not_stated": (*config.assumed, *(f"not expressed: {text}" for text in config.not_expressed))}),
        tuple(config.not_expressed),
    )


def _loaded(content: bytes, file: str) -> Mapping[str, Any]:
    if len(content) > LARGEST_FILE:
        raise TunemarkError(file, f"{len(content):,} bytes", "too large for a configuration", exit_code=Exit.INVALID)
    try:
        # Aliases can make a small file huge when it is walked; a configuration has no use for them.
        text = content.decode("utf-8")
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise TunemarkError(file, "an alias (*name)", "write the setting out", exit_code=Exit.INVALID)
        raw = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise TunemarkError(file, "", f"not valid YAML: {' '.join(str(error).split())}", exit_code=Exit.INVALID) from error
    if not isinstance(raw, dict) or not raw.get("base_model"):
        raise TunemarkError(file, "", "not an axolotl configuration: it has no base_model", exit_code=Exit.INVALID)
    return {str(name): value for name, value in raw.items()}


def _model_name(config: _Config) -> str:
    return str(config.raw["base_model"])


def _lora(config: _Config) -> LoraSettings:
    targets = config.raw.get("lora_target_modules") or ()
    modules = tuple(map(str, targets)) if isinstance(targets, list | tuple) else (str(targets),)
    if config.raw.get("lora_target_linear"):
        if modules:
            config.cannot("lora_target_modules", "lora_target_linear adapts all linear layers")
        modules = LoraSettings().target_modules
    elif not modules:
        config.assumed.append("lora_target_modules (all linear layers of a block by default)")
        modules = LoraSettings().target_modules
    return LoraSettings(
        rank=config.whole("lora_r"), alpha=config.whole("lora_alpha"), dropout=config.number("lora_dropout"), target_modules=modules
    )


def _data(config: _Config) -> WorkloadData:
    datasets = config.raw.get("datasets") or []
    first = datasets[0] if isinstance(datasets, list) and datasets and isinstance(datasets[0], dict) else {}
    if not first.get("path"):
        raise _wrong("datasets", datasets, "give a list whose first entry has a path")
    if len(datasets) > 1:
        config.not_expressed.append(f"datasets: {len(datasets)} of them, the card names the first")
    details = {name: value for name, value in first.items() if name != "path" and value is not None}
    if details:
        config.not_expressed.append(
            f"datasets.0: {', '.join(f'{name} {_shown(value)}' for name, value in details.items())} (how rows become text)"
        )
    if config.raw.get("val_set_size"):
        config.cannot("val_set_size", "the card counts held-out rows, and the number of rows is not stated")
    config.assumed.append("training_rows")
    packing = bool(config.raw.get("sample_packing"))
    padding = Padding.STATIC if config.raw.get("pad_to_sequence_len") else Padding.NONE if packing else Padding.DYNAMIC
    path = str(first["path"])
    local = path.startswith((".", "/", "~")) or path.endswith((".json", ".jsonl", ".csv", ".parquet"))
    name = path.rsplit("/", 1)[-1] if local else path
    return WorkloadData(
        source=DataSource.FILE if local else DataSource.HUB,
        name=name,
        sequence_length=config.whole("sequence_len"),
        padding=padding,
        packing=packing,
    )


def _optimizer(config: _Config) -> Optimizer:
    if config.raw.get("learning_rate") is None:
        raise _wrong("learning_rate", None, "give one; axolotl has no default")
    name = str(config.get("optimizer"))
    norm = config.number("max_grad_norm")
    if not norm:
        config.cannot("max_grad_norm", "the file of a card cannot say that gradients are not clipped; it says 1.0")
    return Optimizer(
        name="adamw" if name in ADAMW else name,
        learning_rate=config.number("learning_rate"),
        weight_decay=config.number("weight_decay"),
        scheduler=str(config.get("lr_scheduler")),
        max_grad_norm=norm or 1.0,
    )


def _compute(config: _Config) -> Any:  # noqa: ANN401 - a Literal of the card
    bf16, fp16, tf32 = (config.raw.get(name) for name in ("bf16", "fp16", "tf32"))
    if bf16 in {True, "true", "full"}:
        return "bf16"
    if fp16:
        return "fp16"
    return "auto" if bf16 == "auto" else "tf32" if tf32 else "fp32"


def _checkpointing(config: _Config) -> Checkpointing:
    value = config.raw.get("gradient_checkpointing")
    if value not in {None, True, False}:
        config.cannot("gradient_checkpointing", "the card has none, selective and full")
    return Checkpointing.FULL if value else Checkpointing.NONE


def _stop(config: _Config) -> WorkloadStop:
    steps = config.whole("max_steps") if config.raw.get("max_steps") is not None else 0
    epochs = config.number("num_epochs")
    if not epochs.is_integer() or epochs < 1:
        config.cannot("num_epochs", "the card counts whole epochs")
        return WorkloadStop(max_steps=steps if steps > 0 else None)
    return WorkloadStop(max_steps=steps if steps > 0 else None, epochs=int(epochs))


def _others(config: _Config, method: Method) -> None:
    """Note what is set and neither expressed by the card nor without effect."""
    for name, value in config.raw.items():
        if name in USED | WITHOUT_EFFECT or value in (None, False, "", [], {}):
            continue
        config.cannot(name, "no field of a workload card")
    if method is not Method.QLORA and config.raw.get("load_in_4bit"):
        config.cannot("load_in_4bit", "a card quantises with qlora only")


def _shown(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."  # noqa: PLR2004 - one line of a terminal


def _wrong(field_name: str, value: object, fix: str) -> TunemarkError:
    return TunemarkError(field_name, value, fix, exit_code=Exit.INVALID)
