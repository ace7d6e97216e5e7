"""Axolotl configurations as workload cards. What a card cannot express is listed, never dropped in silence."""

import re
from dataclasses import dataclass
from difflib import SequenceMatcher

from pydantic import ValidationError

from tunemark.collector.importers.axolotl_config import Config, loaded, shown, wrong
from tunemark.collector.importers.axolotl_keys import OTHER_TASKS, USED, WITHOUT_EFFECT
from tunemark.collector.importers.axolotl_parts import (
    attention_of,
    checkpointing_of,
    compute_of,
    data_of,
    devices_of,
    fused_of,
    lora_of,
    optimizer_of,
    quantisation_of,
    stop_of,
)
from tunemark.schema.errors import did_you_mean, nearest, suggested
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.workloads import WorkloadBatch, WorkloadCard
from tunemark.schema.vocabulary import Method, Task, Weights

SLIPS = 2
"""Letters by which a misspelt key may be longer or shorter."""
MISSPELT = 0.88
"""Least similarity of a misspelt key, as difflib's ratio."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A card and what it does not hold."""

    card: WorkloadCard
    not_expressed: tuple[str, ...]
    """Settings of the configuration that the card cannot express, as `key: value`."""


def workload_of(content: bytes, file: str, facts: FactBase, key: str | None = None, model: str | None = None) -> Imported:
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
    model
        The model card, where `base_model` is a name that no card has.

    Raises
    ------
    TunemarkError
        With exit code 3 for what is no configuration; names the field, the value and the fix.

    """
    config = Config(loaded(content, file))
    _refuse_other_tasks(config)
    adapter = config.raw.get("adapter") or None
    if adapter not in {None, "lora", "qlora"}:
        raise wrong("adapter", adapter, f"a workload is full, lora or qlora; {did_you_mean(str(adapter), ['lora', 'qlora'])}")
    method = Method(adapter) if adapter else Method.FULL
    name = key or re.sub(r"[^a-z0-9._-]+", "-", file.rsplit("/", 1)[-1].rsplit(".", 1)[0].lower()).strip("-._")[:80] or "imported"
    try:
        card = WorkloadCard(
            key=name,
            title=f"{method.value} of {_model_name(config)} (axolotl)"[:2_000],
            description=f"Imported from the axolotl configuration {file.rsplit('/', 1)[-1]}.",
            source=f"axolotl configuration {file.rsplit('/', 1)[-1]}",
            task=Task.CAUSAL_LM,
            model=facts.model(model or _model_name(config)).key,
            weights=Weights.PRETRAINED,
            method=method,
            lora=lora_of(config) if method is not Method.FULL else None,
            quantisation=quantisation_of(config) if method is Method.QLORA else None,
            data=data_of(config),
            batch=WorkloadBatch(
                micro_batch=config.whole("micro_batch_size"), gradient_accumulation=config.whole("gradient_accumulation_steps")
            ),
            optimizer=optimizer_of(config),
            compute=compute_of(config),
            gradient_checkpointing=checkpointing_of(config),
            attention=attention_of(config),
            fused_kernels=fused_of(config),
            devices=devices_of(config),
            stop=stop_of(config),
            seed=config.whole("seed"),
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise wrong(".".join(map(str, first["loc"])), first.get("input"), first["msg"]) from error
    _others(config, method)
    return Imported(
        card.model_copy(update={"not_stated": (*config.assumed, *(f"not expressed: {text}" for text in config.not_expressed))}),
        tuple(config.not_expressed),
    )


def _model_name(config: Config) -> str:
    return str(config.raw["base_model"])


def _refuse_other_tasks(config: Config) -> None:
    for name, what in OTHER_TASKS.items():
        value = config.raw.get(name)
        if value not in {None, False, ""}:
            raise wrong(name, value, f"tunes {what} {shown(value)}; a workload card predicts the next token, so this is another task")


def _others(config: Config, method: Method) -> None:
    """Note what is set and neither expressed by the card nor without effect."""
    known = USED | WITHOUT_EFFECT
    for name, value in config.raw.items():
        if name in known or name.startswith("liger_") or value in (None, False, "", [], {}):
            continue
        near = [one for one in nearest(name, {key: (key,) for key in known}, most=1) if _nearly(name, one)]
        config.cannot(name, suggested(near) if near else "no field of a workload card")
    if method is not Method.QLORA and config.raw.get("load_in_4bit"):
        config.cannot("load_in_4bit", "a card quantises with qlora only")
    if config.raw.get("load_in_8bit"):
        config.cannot("load_in_8bit", "a card stores frozen weights in four bits or in those of its number format")


def _nearly(name: str, other: str) -> bool:
    """Return whether two keys differ by a slip of the fingers: related keys share words, misspelt ones nearly all letters."""
    return abs(len(name) - len(other)) <= SLIPS and SequenceMatcher(None, name, other).ratio() > MISSPELT
