"""A claim in words as records of results: every reading that its words allow, the usual one first."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product
from typing import Any

from tunemark.collector.audit.bounds import weight_bytes
from tunemark.collector.audit.claim_text import CLAIM, CLAIMS, PAIR, ClaimText, amounts, words
from tunemark.collector.audit.printed_figures import WORDS
from tunemark.collector.audit.rules.catalogue import IDLE, WHOLE_MACHINE
from tunemark.schema.facts.cards import APPLE, AcceleratorCard, ModelCard
from tunemark.schema.facts.names import product_of
from tunemark.schema.formats import GB, GIB
from tunemark.schema.plan_search import NODE
from tunemark.schema.records.published import Claim, Conditions, Origin, PublishedResult
from tunemark.schema.vocabulary import Dtype, Method, PublishedStatus

MOST_READINGS = 48
SEVERAL = (16, 64)
"""Devices of a training on several machines that does not state their number."""


def meanings(claim: ClaimText) -> Iterator[ClaimText]:
    """Yield a claim on each variant of its device: with figures that may be of one device as those of all, then as those of each, then without memory that may be of something else."""
    rates = CLAIMS["kinds"]["rates"]
    # `Per GPU` before a list is of all its rates.
    open_scope = {each.kind for each in claim.figures if each.either and each.kind in rates}
    of_each = tuple(replace(each, kind=f"{each.kind}_each") if each.kind in open_scope else each for each in claim.figures)
    in_use = tuple(each for each in of_each if not each.either or each.kind != "peak_memory_bytes" or words("each").search(each.printed))
    cards = claim.devices[0] if len(claim.devices) == 1 else ()
    # A machine full of them has those with a fast link.
    fast = [card for card in cards if not re.search("PCIe|NVL", card.name)] if min(claim.counts[-1:], default=1) >= NODE else []
    for scope in (replace(claim, figures=figures) for figures in dict.fromkeys((claim.figures, of_each, in_use))):
        yield from (replace(scope, devices=((card,),) if card else scope.devices) for card in fast or cards or (None,))


def readings(claim: ClaimText) -> Iterator[PublishedResult]:
    """Yield the readings of a text as records."""
    models: tuple[ModelCard | None, ...] = claim.models or (None,)
    counts = claim.counts[-1:] if len(claim.devices) < PAIR else tuple(dict.fromkeys(claim.counts))
    # Several, whose number is not stated, may be those of a machine.
    counts = counts or ((1, NODE, *SEVERAL) if claim.values("device_hours") or claim.says("many", "machine") else (1,))
    # `H100s` beside a Mac or a CPU are others.
    counts = (1,) if not claim.counts and any(cards[0].unit == "cpu" or cards[0].vendor == APPLE for cards in claim.devices) else counts
    cards: list[AcceleratorCard | None] = [card for variants in claim.devices for card in variants] or [None]
    counts = (NODE,) if counts == (1,) and not claim.counts and _needs_several(claim) else counts
    batches: list[int | None] = []
    batches += [int(value.value) for value in (*claim.values("micro_batch"), *claim.values("batch"))][:1]
    if batches and not claim.values("micro_batch"):
        # A batch without a scope may be that of an optimizer step, in rows of one after another.
        batches = list(dict.fromkeys((*batches, 1))) if counts == (1,) else [*batches, None]
    kinds = (GB, GIB) if any("i" not in each.printed for each in claim.stated("peak_memory_bytes")) else (GIB,)
    rows: list[int | None] = []
    in_time = claim.values("steps") and claim.values("train_time_s")
    if (claim.values("step_time_s") or claim.values("steps_per_s") or in_time) and not claim.says("parallel"):
        # A step is usually one of the optimizer, but some count micro-steps.
        rows += sorted({int(each.value) for _, each in amounts(claim, "rows")}, reverse=True)
    choices = product(models, claim.possible_methods, counts, cards, batches or [None], kinds, _lengths(claim), rows or [None])
    memories = claim.stated("peak_memory_bytes")
    others = tuple(each for each in claim.figures if each not in memories)
    # Of several memories any may be that of a device, and none where one is its size.
    meant = [replace(claim, figures=(*others, each)) for each in memories] if len(memories) >= PAIR else [claim]
    return (_record(one, choice) for choice in islice(choices, MOST_READINGS) for one in meant)


def _needs_several(claim: ClaimText) -> bool:
    """Return True if a text gives a time, a cost or a rate on a device that the weights do not fit in: it trains on several."""
    timed = {each.kind for each in claim.figures} & {"train_time_s", "cost_usd", "mfu", *CLAIMS["kinds"]["rates"]}
    sizes = [weight_bytes(model, method)[0] for model in claim.models for method in claim.possible_methods]
    return bool(timed and sizes and claim.cards) and min(sizes) > max(card.usable_bytes or math.inf for card in claim.cards)


Choice = tuple[ModelCard | None, Method, int, AcceleratorCard | None, int | None, float, int | None, int | None]
"""One meaning of all that a text leaves open: model, method, devices, their card, batch, unit of memory, tokens of a row, and rows of a step."""


def _record(claim: ClaimText, choice: Choice) -> PublishedResult:
    model, method, count, card, batch, unit, stated_length, rows = choice
    figures, split = _figures(claim, card, count, unit, rows), claim.says("parallel")
    in_rows = any(claim.stated(kind) for kind in CLAIMS["kinds"]["in_rows"])
    length = stated_length or (model.usual_length if model and not in_rows else None)
    named = [name for name in claim.formats if card is None or Dtype(name) in card.peak_tflops]
    if method is Method.LORA and claim.says("eight_bits"):
        # Frozen weights of 8 bits take the memory of those in fp8.
        named = ["bf16", "fp8"]
    # Mixed precision has weights of 32 bits besides.
    mixed = "mixed " if claim.says("mixed") else ""
    settings: dict[str, Any] = {
        "attention": next((match[0] for pattern in WORDS["kernels"] if (match := re.search(pattern, claim.text.lower()))), None),
        "offload": claim.offloads or None,
        "unsloth": "unsloth" in claim.text.lower() or None,
        "software": next(iter(claim.said("tuned")), None),
        "sequence_parallel": count if split and count > 1 else None,
        "quantisation": "8 bits" if claim.says("eight_bits") else None,
        "data_parallel": count if claim.values("micro_batch") and not split else None,
        # Of several, it is the one with the smallest states.
        "optimizer": next(
            iter((*claim.said("few_states"), *sorted(claim.said("optimizer"), key=lambda each: not re.search("8|paged", each)))), None
        ),
        "gradient_checkpointing": claim.says("checkpointing") or None,
        "lora_r": next((int(value.value) for value in claim.values("lora_r")), None),
    }
    conditions = Conditions(
        model=model.key if model else None,
        method=method,
        accelerator=product_of(card) if card else None,
        accelerator_count=count,
        sequence_length=length,
        micro_batch=batch,
        gradient_accumulation=next((int(value.value) for value in claim.values("gradient_accumulation")), None) if batch else None,
        global_batch=rows,
        precision=f"{mixed}{'/'.join(named)}" if named else None,
        padding="static" if claim.says("padded") else None,
        packing=claim.says("packed") or None,
        settings={name: value for name, value in settings.items() if value is not None},
    )
    shared = {"section": "claim", "origin": Origin(kind="document"), "labels": {}, "status": PublishedStatus.CLAIMED}
    return PublishedResult(id=CLAIM, source=CLAIM[:3], conditions=conditions, claims=figures, **shared)


def _lengths(claim: ClaimText) -> list[int | None]:
    """Return the tokens of a row: the shortest stated; figures that count rows may be of shorter ones than the longest, which is stated."""
    stated: list[int | None] = (
        [int(min(value.value for value in claim.values("sequence_length")))] if claim.values("sequence_length") else [None]
    )
    in_rows = any(claim.values(kind) for kind in CLAIMS["kinds"]["in_rows"])
    return [*stated, None] if in_rows and stated[0] and claim.says("longest") and not claim.says("full_rows") else stated


def _figures(claim: ClaimText, card: AcceleratorCard | None, count: int, unit: float, rows: int | None) -> dict[str, Claim]:
    """Return the figures of all devices. Of several of a kind, all of which are possible, it is the highest; without it, the lowest."""
    alone = all(len(each) < PAIR for each in (claim.models, claim.devices, claim.methods, claim.counts))
    # Of two numbers of devices, the last has the last rate.
    choose = max if alone else (lambda values: values[-1]) if len(claim.counts) == PAIR and len(claim.devices) < PAIR else min
    found = dict[str, Claim]()
    on_these = replace(claim, counts=(count,), other_counts=())
    for kind in CLAIMS["kinds"]["direct"]:
        if totals := [(each.value, words) for words, each in amounts(on_these, kind)]:
            value, printed = (min if kind == "energy_j" else choose)(totals)
            found[kind] = Claim(value=value, printed=printed)
    # Watts and the energy of a text are judged with its own time; of several devices they may be of one, and those of a machine are not of its devices.
    if claim.says("machine") or count > 1:
        found.pop("power_w", None)
    # What does not fit has no peak: its memory is what it would need.
    # What takes more than a time is not known to be as fast.
    memories = [] if claim.misfits else claim.stated("peak_memory_bytes")
    tokens, spans = _tokens(claim, rows), [each for each in amounts(on_these, "span") if each[1].high < math.inf]
    if len(spans) == 1 and ("energy_j" in found or (tokens and "tokens_per_s" not in found)):
        found["train_time_s"] = Claim(value=spans[0][1].value, printed=spans[0][0])
        if tokens and "tokens_per_s" not in found:
            found["tokens"] = Claim(value=tokens[0], printed=tokens[1])
    power = found["energy_j"].value / found["train_time_s"].value if {"energy_j", "train_time_s"} <= found.keys() else 0.0
    limit = (card.tdp_w or 0.0) * count if card else 0.0
    if claim.says("machine") and (not power or IDLE * limit <= power <= WHOLE_MACHINE * limit):
        found.pop("energy_j", None)
    # Its size in a catalogue is no use of it.
    cards = [each for variants in claim.devices for each in variants]
    sizes = {n * (each.memory_gib or 0) * GB for n, each in product(claim.numbers, cards)}
    memories = [each for each in memories if not any(math.isclose(each.value.value, size, rel_tol=0.01) for size in sizes)]
    if memories:
        last = memories[-1] if alone else min(memories, key=lambda each: each.value.value)
        value = last.value.value * (1.0 if "i" in last.printed else unit / GB)
        capacity = (card.memory_gib or 0) * GIB if card else 0
        # More than a device has may be that of all together.
        value /= count if capacity and value > capacity >= value / count else 1
        found["peak_memory_bytes"] = Claim(value=value, printed=last.printed)
    return found


def _tokens(claim: ClaimText, batch: int | None) -> tuple[float, str] | None:
    """Return the tokens of the run: the fewest that are stated, or those of rows that are full, or of steps on data without lengths of its own."""
    stated, rows = claim.stated("tokens"), claim.stated("samples")
    lengths = list({each.value.value: each for each in claim.stated("sequence_length")}.values())
    if stated:
        least = min(stated, key=lambda each: each.value.value)
        return least.value.value, least.printed
    if len(rows) == len(lengths) == 1 and claim.says("full_rows"):
        epochs = min((value.value for value in claim.values("epochs")), default=1.0)
        return rows[0].value.value * lengths[0].value.value * epochs, f"{rows[0].printed} of {lengths[0].printed}"
    steps, own = claim.stated("steps"), claim.says("longest", "own_rows", "packed") and not claim.says("full_rows")
    if len(steps) == len(lengths) == 1 and batch and not own:
        return steps[0].value.value * batch * lengths[0].value.value, f"{steps[0].printed} of {batch:g} x {lengths[0].printed}"
    return None
