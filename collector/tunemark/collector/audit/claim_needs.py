"""A claim about the memory that training needs, without a device, against the memory model in all settings that the text leaves open."""

from collections.abc import Iterator
from itertools import product
from typing import Any

from tunemark.collector.audit.bounds import weight_bytes
from tunemark.collector.audit.claim_text import ClaimText
from tunemark.collector.audit.claim_text import words as words_of_claim
from tunemark.collector.audit.evidence import AuditedResult
from tunemark.collector.audit.interval import ROUGHLY
from tunemark.schema.facts.cards import AcceleratorCard, ModelCard
from tunemark.schema.formats import gib
from tunemark.schema.physics.memory import estimate_memory
from tunemark.schema.physics.memory_states import MemoryLedger
from tunemark.schema.physics.stacks import STACKS, USUAL_STACK, on_stack
from tunemark.schema.plan_search import Asked, step_on
from tunemark.schema.vocabulary import Checkpointing, Method

SHORT, LONG = 512, 8192
"""Tokens of rows whose length is not stated."""
NEAR = 40
"""Letters before a figure, and half as many from its beginning, in which a text says that it is needed."""
MOST_ROWS = 8
"""Rows of a micro-batch that is not stated, at most."""


def against_model(claim: ClaimText, run: AuditedResult, model: ModelCard, card: AcceleratorCard) -> tuple[str, str]:
    """Return a comparison of a stated memory of each device with that of the memory model, and its verdict.

    `card` is a usual device. What somebody needs is compared with the leanest settings, and what a run takes with all of them.
    """
    stated, method = run.claims["peak_memory_bytes"], Method.LORA if run.conditions.method is Method.PEFT else run.conditions.method
    found = list(_ledgers(claim, run, model, card, method))
    low, least = min((ledger.needed_low, words) for ledger, words in found)
    usual = [(ledger.sharded, ledger.fit_limits["fits"]) for ledger, words in found if words.startswith(f"{USUAL_STACK['plain']}, ")]
    # Of several devices, each may have the whole model.
    least_usual = max(min(bytes_ for known, bytes_ in usual if known is sharded) for sharded in {known for known, _ in usual})
    high = max(ledger.reserved_interval[1] + ledger.outside for ledger, _ in found)
    held = weight_bytes(model, method, "fp8" if claim.says("eight_bits") else None)[0] / run.devices
    reason = f"by the memory model, a step needs {gib(low)} ({least}) at least, and {gib(least_usual)} with usual software"
    if claim.offloads or claim.says("few_states"):
        return (
            f"{reason}; less is possible where states wait in host memory or are never whole",
            "not judged" if stated.value < low else "plausible",
        )
    if stated.value < low:
        weights = f"weights alone take {gib(held)}; " if stated.value < held else ""
        return f"{weights}{reason}", "impossible" if weights else "suspicious"
    [place, *_] = (each.place for each in claim.stated("peak_memory_bytes"))
    near = claim.text[max(0, place - NEAR) : place + NEAR // 2]
    if words_of_claim("needs").search(near) and stated.value > ROUGHLY * least_usual:
        return f"{reason}: less than {stated.printed} is enough", "ambiguous" if stated.value <= 2 * least_usual else "suspicious"
    return reason, "plausible" if stated.value <= high else "ambiguous"


def _ledgers(
    claim: ClaimText, run: AuditedResult, model: ModelCard, card: AcceleratorCard, method: Method
) -> Iterator[tuple[MemoryLedger, str]]:
    """Yield the memory of a step in each setting that is open, with its stack and its settings in words; short rows one at a time come first."""
    lengths = [run.conditions.sequence_length] if claim.values("sequence_length") else [SHORT, LONG]
    rows = [run.conditions.micro_batch] if run.conditions.micro_batch else [1, MOST_ROWS]
    kept = [Checkpointing.FULL] if claim.says("checkpointing") else [Checkpointing.FULL, Checkpointing.NONE]
    layouts: list[dict[str, Any]] = [{}] if run.devices == 1 or claim.says("sharding") else [{}, {"sharding": "ddp"}]
    for length, batch, recomputed, stack, layout in product(lengths, rows, kept, STACKS, layouts):
        given = {"micro_batch": batch, "checkpointing": recomputed} | layout
        shape = step_on(card, model, method, length or model.usual_length, run.devices, Asked(given))
        if STACKS[stack].runs(shape, card.vendor):
            how = ", gradient checkpointing" if recomputed is Checkpointing.FULL else ""
            yield estimate_memory(on_stack(shape, stack)), f"{stack}, {batch} x {shape.sequence_length:,} tokens{how}"
