"""Under which conditions an MLPerf entry ran: what its logs say, and what the rules of the benchmark fix."""

from typing import Any

from tunemark.collector.importers.mllog import count, finite
from tunemark.collector.importers.mlperf_run import RunLog
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.converted import ConvertedSystem
from tunemark.schema.records.published import Conditions, Scalar
from tunemark.schema.vocabulary import Method, Padding

# What the rules of the benchmark fix and its logs do not say.
SEQUENCE_LENGTH = 8_192
DATASET = "SCROLLS GovReport, packed"
ASSUMED = ("model", "method", "dataset", "sequence_length", "packing", "padding", "settings.optimizer")
SETTINGS = {
    "learning_rate": "opt_base_learning_rate",
    "weight_decay": "opt_adamw_weight_decay",
    "max_grad_norm": "opt_gradient_clip_norm",
    "scheduler_steps": "opt_learning_rate_training_steps",
    "warmup_factor": "opt_learning_rate_warmup_factor",
    "lora_rank": "lora_rank",
    "lora_alpha": "lora_alpha",
    "train_samples": "train_samples",
    "eval_samples": "eval_samples",
}
"""Our name -> key of the log."""


def accelerator_key(spelling: str, facts: FactBase) -> str | None:
    """Return the card of an accelerator by the name a submitter gives it, or None: never another chip's card."""
    card = facts.recognise_accelerator(" ".join(spelling.split()))
    return None if card is None else card.key


def conditions_of(
    system: ConvertedSystem, settings: dict[str, Any], software: dict[str, str], facts: FactBase, assumed: tuple[str, ...] = ()
) -> Conditions:
    """Return the conditions of an entry: what its logs and its system description say, and what the rules of the benchmark fix."""
    printed: dict[str, Scalar | tuple[Scalar, ...]] = {
        name: _plain(finite(settings.get(key))) for name, key in SETTINGS.items() if finite(settings.get(key)) is not None
    }
    devices = system.nodes * system.accelerators_per_node if system.nodes and system.accelerators_per_node else None
    return Conditions(
        model="llama-2-70b",
        method=Method.LORA,
        accelerator=accelerator_key(system.accelerator_printed, facts) if system.accelerator_printed else None,
        accelerator_count=devices,
        gradient_accumulation=count(settings.get("gradient_accumulation_steps")) or None,
        global_batch=count(settings.get("global_batch_size")) or None,
        sequence_length=SEQUENCE_LENGTH,
        padding=Padding.NONE,
        packing=True,
        dataset=DATASET,
        framework=software,
        settings={"optimizer": "adamw", **printed},
        assumed=(*ASSUMED, *assumed),
    )


def agreed(logs: list[RunLog], notes: list[str]) -> dict[str, Any]:
    """Return the settings that all runs of an entry share; one that differs between runs is unknown for the entry."""
    shared: dict[str, Any] = {}
    for key in sorted({key for log in logs for key in log.settings} - {"seed"}):
        values = {repr(log.settings[key]): log.settings[key] for log in logs if key in log.settings}
        if len(values) == 1:
            shared |= {key: next(iter(values.values()))}
        else:
            notes.append(f"{key} differs between its runs: {', '.join(sorted(values))}"[:500])
    return shared


def _plain(value: float | None) -> Scalar:
    return int(value) if value is not None and value.is_integer() and abs(value) >= 1 else value
