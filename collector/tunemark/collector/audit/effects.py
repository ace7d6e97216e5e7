"""Effects of a measure: against the rows that show it, and against what memory does with length."""

import math
from collections import Counter
from collections.abc import Iterator

from tunemark.collector.audit.evidence import Base, label
from tunemark.collector.audit.rule import INCONSISTENT, SUSPICIOUS, Found, Rule
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.physics.architecture import FAMILIES
from tunemark.schema.physics.memory import estimate_memory
from tunemark.schema.physics.training_shape import TrainingShape
from tunemark.schema.records.claims import Driver, Effect
from tunemark.schema.vocabulary import Method

TOLERANCE = 0.05
"""Printed effects are round numbers: five points either way."""
POWER = {"linear": 1.0, "quadratic": 2.0}


def shown(base: Base) -> Iterator[Found]:
    """Yield effects that the rows with and without the measure do not have, and effects that no row shows."""
    for statement, effect in base.assertions(Effect):
        if effect.low is None and effect.high is None:
            continue
        runs = base.named(effect.records)
        pairs = list(zip(runs[::2], runs[1::2], strict=False))
        if not pairs:
            yield Found(
                SUSPICIOUS,
                (statement.id,),
                f"{effect.measure}: {effect.printed}",
                f"no two results with and without {effect.measure} are given",
                {"measure": effect.measure},
            )
        for with_it, without in pairs:
            after, before = with_it.claims.get(effect.quantity), without.claims.get(effect.quantity)
            if after is None or before is None or not before.value:
                continue
            fell = 1 - after.value / before.value
            low, high = effect.low if effect.low is not None else -math.inf, effect.high if effect.high is not None else math.inf
            if not low - TOLERANCE <= fell <= high + TOLERANCE:
                yield Found(
                    INCONSISTENT,
                    (statement.id, with_it.id, without.id),
                    f"{effect.measure}: {effect.printed}",
                    f"1 - {after.printed} / {before.printed} = {fell:.1%}, and {low:.0%} to {high:.0%} is claimed",
                    {"measured": fell},
                )


def growth(base: Base) -> Iterator[Found]:
    """Yield claims of how memory grows with the length of a row that the memory model does not have."""
    for statement, effect in base.assertions(Effect):
        card = _reference(base, statement.id[:3])
        if effect.grows is None or effect.over != "sequence_length" or effect.quantity != "peak_memory_bytes" or card is None:
            continue
        lengths = (card.context_length // 2, card.context_length)
        powers = {kernel: _power(card, lengths, kernel) for kernel in ("flash", "eager")}
        flash = any(other.measure == "flash-attention" for one, other in base.assertions(Effect) if one.id[:3] == statement.id[:3])
        if abs(powers["flash"] - POWER[effect.grows]) > 0.5:  # noqa: PLR2004 - nearer to another power
            advised = ", which the same document advises" if flash else ""
            yield Found(
                SUSPICIOUS,
                (statement.id,),
                f"{effect.measure}: {effect.printed}",
                f"activations of {card.name} from {lengths[0]:,} to {lengths[1]:,} tokens grow with the power {powers['flash']:.2f} under a kernel that stores no scores{advised} "
                f"(Dao et al. 2022), {powers['eager']:.2f} with stored scores; {effect.grows} would be {POWER[effect.grows]:g}",
                {f"power, {kernel}": power for kernel, power in powers.items()},
            )


def _reference(base: Base, source: str) -> ModelCard | None:
    """Return the decoder that most results of a document are of, as an example to compute with."""
    decoders = Counter(
        run.model.key for run in base.published if run.source == source and run.model and not FAMILIES[run.model.family].encoder
    )
    return base.facts.models[max(sorted(decoders), key=lambda key: decoders[key])] if decoders else None


def _power(card: ModelCard, lengths: tuple[int, int], kernel: str) -> float:
    sizes = []
    for length in lengths:
        ledger = estimate_memory(TrainingShape(card, Method.LORA, length, attention=kernel))  # type: ignore[arg-type]
        sizes.append(sum(line.bytes for line in ledger.lines if line.group == "activations"))
    return math.log(sizes[1] / sizes[0]) / math.log(lengths[1] / lengths[0])


def drivers(base: Base) -> Iterator[Found]:
    """Yield properties that are said to decide a quantity, where devices with less of it have more."""
    for statement, driver in base.assertions(Driver):
        runs = [
            run
            for run in base.named(driver.records)
            if run.accelerator and run.span(driver.quantity) and getattr(run.accelerator, driver.property)
        ]
        against = [
            (less, more)
            for less in runs
            for more in runs
            if less.conditions.micro_batch == more.conditions.micro_batch
            and _of(less, driver) < _of(more, driver)
            and less.claims[driver.quantity].value > more.claims[driver.quantity].value
        ]
        if against:
            yield Found(
                SUSPICIOUS,
                (statement.id, *dict.fromkeys(run.id for pair in against for run in pair)),
                f"{driver.property} decides {label(driver.quantity)}",
                "; ".join(
                    f"{less.accelerator.name if less.accelerator else ''} with {_of(less, driver):g} has {less.claims[driver.quantity].printed}, {more.accelerator.name if more.accelerator else ''} with {_of(more, driver):g} has {more.claims[driver.quantity].printed}"
                    for less, more in against
                ),
                {"pairs against it": len(against)},
            )


def _of(run: object, driver: Driver) -> float:
    value = getattr(getattr(run, "accelerator", None), driver.property, None)
    return float(value) if value else 0.0


RULES = (
    Rule(
        "effect",
        "an effect that the rows do not show",
        "statements",
        "The effect of a measure is the difference between rows with and without it.",
        (INCONSISTENT, SUSPICIOUS),
        shown,
    ),
    Rule(
        "growth",
        "a growth with length that memory does not have",
        "statements",
        "Without stored scores all activations are per token, so they grow linearly (Dao et al. 2022, FlashAttention).",
        (SUSPICIOUS,),
        growth,
    ),
    Rule(
        "driver",
        "a property that is said to decide, and does not",
        "statements",
        "Where a property decides, more of it goes with more of the quantity at equal work.",
        (SUSPICIOUS,),
        drivers,
    ),
)
