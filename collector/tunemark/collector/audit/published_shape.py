"""The shape of a published training step: from its printed conditions, and what is known of its training code."""

import re
from collections.abc import Callable, Iterator
from typing import Any, get_args

from tunemark.collector.audit.printed_figures import WORDS, narrow_format, precision_class
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.world_facts import MemoryConvention, MemoryLever, applies
from tunemark.schema.physics.memory import SHARDED
from tunemark.schema.physics.training_shape import ALL_LINEAR, Sharding, TrainingShape
from tunemark.schema.records.published import Conditions
from tunemark.schema.vocabulary import Checkpointing, Dtype, Loss, Method

COVERED = (Method.FULL, Method.LORA, Method.QLORA)
FORMATS = {"parameters", "activations", "autocast", "adapters", "block_format"}
ENUMS: dict[str, Callable[[Any], object]] = {"checkpointing": Checkpointing} | dict.fromkeys(FORMATS, Dtype)


def published_shape(conditions: Conditions, facts: FactBase, convention: MemoryConvention | None) -> TrainingShape | None:
    """Return the shape of a published step, or None. Adapters that are trained side by side count as one of their joint rank.

    None if model, length or micro-batch is unknown, if the conditions contradict each other, or if the memory model does not cover them.
    """
    if conditions.model is None or conditions.sequence_length is None or conditions.micro_batch is None or conditions.method not in COVERED:
        return None
    settings, devices = conditions.settings, conditions.accelerator_count or 1
    if any(settings.get(split, 1) != 1 for split in ("pipeline_parallel", "context_parallel")):
        return None
    tensor_parallel, rank, dropout, recomputed = map(settings.get, ("tensor_parallel", "lora_r", "lora_dropout", "gradient_checkpointing"))
    ranks = tensor_parallel if isinstance(tensor_parallel, int) else 1
    replicas = max(1, devices // ranks)
    stored = Dtype(WORDS["shape"]["stored"].get(precision_class(conditions.precision), "bf16"))
    optimizer = str(settings.get("optimizer") or "").lower()
    given: dict[str, Any] = {
        "gradient_accumulation": conditions.gradient_accumulation or 1,
        "lora_rank": (rank if isinstance(rank, int) else 8) * int(str(settings.get("concurrent_adapters", 1))),
        "lora_targets": _targets(settings.get("lora_targets")),
        "lora_dropout": float(dropout) if isinstance(dropout, int | float) else 0.0,
        "checkpointing": Checkpointing.SELECTIVE if recomputed == "selective" else Checkpointing.FULL if recomputed else Checkpointing.NONE,
        "attention": "eager" if settings.get("attention") == "eager" else "sdpa",
        "parameters": stored,
        "activations": stored,
        "block_format": narrow_format(conditions.precision) if conditions.method in (Method.FULL, Method.LORA) else None,
        # Scales of GPTQ, 2.5 bytes for 128 weights, are as small as those that are quantised too.
        "double_quantisation": settings.get("quantisation") != "nf4",
        "optimizer": next((kind for word, kind in WORDS["shape"]["optimizers"].items() if re.search(word, optimizer)), "adamw"),
        "loss": settings["loss"] if settings.get("loss") in get_args(Loss) else "upcast",
        "compiled": bool(settings.get("compile")),
        "optimizer_in_backward": bool(settings.get("optimizer_in_backward")),
        "activation_offload": bool(settings.get("activation_offload")),
        "sharding": _sharding(settings.get("sharding", settings.get("strategy")), replicas),
        "world_size": replicas,
        "tensor_parallel": ranks,
        "offload": bool(settings.get("fsdp_cpu_offload")),
        "optimizer_offload": bool(settings.get("optimizer_offload")),
    }
    for lever in levers_of(conditions, convention) if convention else ():
        given |= {name: ENUMS[name](value) if name in ENUMS else value for name, value in lever.shape.items()}
    try:
        return TrainingShape(facts.model(conditions.model), conditions.method, conditions.sequence_length, conditions.micro_batch, **given)
    except TunemarkError:
        # For example an adapter on a layer that the model does not have.
        return None


def levers_of(conditions: Conditions, convention: MemoryConvention) -> Iterator[MemoryLever]:
    """Return the levers of a document's convention that apply to these conditions."""
    return (lever for lever in convention.levers if applies(lever.when, conditions.stated))


def _targets(printed: object) -> tuple[str, ...]:
    """Return the names of the adapted layers. Documents shorten q_proj to q."""
    if not isinstance(printed, str | tuple) or printed in {"all", "all-linear"}:
        return ALL_LINEAR
    names = printed if isinstance(printed, tuple) else printed.replace(" ", "").split(",")
    return tuple(str(name) if "_" in str(name) or "." in str(name) else f"{name}_proj" for name in names)


def _sharding(printed: object, devices: int) -> Sharding:
    if devices == 1:
        return "single"
    word = str(printed or "fsdp1").lower().replace("-", "").replace(" ", "").removeprefix("deepspeed").removeprefix("_")
    return word if word in SHARDED else WORDS["shape"]["strategies"].get(word, "fsdp1")  # type: ignore[return-value]
