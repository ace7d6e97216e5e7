"""Sense of the rates of options: how often a weaker device, more work or plainer software is predicted to be faster.

Run: python benchmarks sense

Rates of every model at four row lengths, on every accelerator with 1, 2, 4 and 8 devices. A pair is a violation if the one that cannot be
faster is faster by more than 2%. A device is *dominated* by one with at least its peak, memory, memory bandwidth and link. With another
plan, more devices or less memory can be faster for a reason: what did not fit needs neither sharding nor recomputation any more.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from itertools import chain, permutations
from operator import ge
from pathlib import Path

from tunemark.collector.audit.load import load_evidence
from tunemark.collector.predict.cross_validation import fit_and_audit
from tunemark.schema.facts.cards import AcceleratorCard, ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.option_rates import LEVELS, Evidence, option_rates
from tunemark.schema.physics.work import SIXTEEN_BIT
from tunemark.schema.recommendation import Rate
from tunemark.schema.vocabulary import Dtype

ROOT = Path(__file__).parents[1]
LENGTHS = (512, 2048, 4096, 8192)
DEVICES = (1, 2, 4, 8)
MARGIN = 1.02
FIELDS = ("method", "sequence_length", "software", "accelerator", "devices")
Above = set[tuple[str, str]]
"""Pairs of accelerators: the first dominates the second."""
Rates = dict[tuple[str | int, ...], Rate]
"""Rates by `FIELDS`."""


def dominating(cards: dict[str, AcceleratorCard]) -> Above:
    """Return the pairs in which the first accelerator is never below the second in peak, memory, bandwidth and link, and above it in one."""

    def limits(card: AcceleratorCard) -> tuple[float, ...]:
        peak = card.peak_tflops.get(Dtype.BF16, card.peak_tflops.get(SIXTEEN_BIT[Dtype.BF16], 0.0))
        return peak, card.memory_gib or 0, card.memory_bandwidth_gb_s or 0, card.interconnect_gb_s or 64

    known = {key: limits(card) for key, card in cards.items()}
    return {(one, other) for one, other in permutations(known, 2) if known[one] != known[other] and all(map(ge, known[one], known[other]))}


def most(field: str, one: str | int, other: str | int, above: Above) -> float | None:
    """Return the most that `other` can be faster than `one`, as a factor, or None if a field does not say."""
    if field in {"sequence_length", "devices"}:
        times = int(other) / int(one)
        return (times if field == "devices" else 1.0) if times > 1 else None
    known = {"accelerator": (one, other) in above, "method": one == "lora", "software": (one, other) == ("tuned", "plain")}
    return 1.0 if known[field] else None


def pairs_of(rates: Rates, above: Above) -> Iterator[tuple[str, bool]]:
    """Yield the check, and whether it is violated, for each two rates that differ in one field."""
    for place, field in enumerate(FIELDS):
        groups: dict[tuple[str | int, ...], dict[str | int, Rate]] = defaultdict(dict)
        for key, rate in rates.items():
            groups[key[:place] + key[place + 1 :]][key[place]] = rate
        for group in groups.values():
            for one, other in permutations(group, 2):
                times = most(field, one, other, above)
                if times is not None:
                    yield name_of(field, group[one], group[other]), speed(group[other]) > MARGIN * times * speed(group[one])


def name_of(field: str, one: Rate, other: Rate) -> str:
    """Return the name of a check: with the evidence of a dominated device, else with whether the plans are the same."""
    if field == "accelerator":
        return f"dominated accelerator, {' and '.join(sorted((one.evidence, other.evidence)))}"
    plans = [(rate.sharding, rate.checkpointing, (rate.micro_batch or 1) * rate.sequence_length) for rate in (one, other)]
    gathered = "" if one.sharding in {"single", "ddp"} else ", weights gathered"
    name = {"method": f"{other.method} against lora{gathered}", "devices": "efficiency above 1.02", "software": "plain against tuned"}
    return f"{name.get(field, 'longer rows')}, {'one plan' if plans[0] == plans[1] else 'another plan'}"


def larger_models(found: dict[ModelCard, Rates]) -> Iterator[tuple[str, bool]]:
    """Yield pairs of models of one family. The first is at least as large in every dimension, so it cannot be faster."""

    def size(model: ModelCard) -> tuple[int, ...]:
        heads = (model.attention_heads, model.key_value_heads, model.head_dim)
        return model.layers, model.hidden_size, model.intermediate_size, model.vocabulary, model.active_experts or 1, *heads

    for one, other in permutations(found, 2):
        larger = one.family == other.family and size(one) != size(other) and all(map(ge, size(one), size(other)))
        for key in found[one].keys() & found[other].keys() if larger else ():
            yield "larger model", speed(found[one][key]) > MARGIN * speed(found[other][key])


def speed(rate: Rate) -> float:
    """Return the tokens per second of a rate that there is."""
    assert rate.tokens_per_s is not None
    return rate.tokens_per_s


def measured(root: Path, models: Collection[str] = ()) -> dict[str, Counter[bool]]:
    """Return the number of pairs by check, and by whether they violate it, for models by key, all by default."""
    facts = FactBase(root / "data")
    fitted, _ = fit_and_audit(load_evidence(root, facts))
    evidence = Evidence(fitted.effects, fitted.known)
    cards = {key: card for key, card in facts.accelerators.items() if card.unit != "cpu" and card.memory_gib is not None}
    above, places = dominating(cards), [(card, devices) for card in cards.values() for devices in DEVICES]
    counts: dict[str, Counter[bool]] = defaultdict(Counter)
    found: dict[ModelCard, Rates] = {}
    for model in (facts.models[key] for key in models or facts.models):
        lengths = [length for length in LENGTHS if length <= model.context_length]
        rates = [rate for length in lengths for rate in option_rates(model, length, places, evidence, LEVELS)]
        found[model] = {tuple(getattr(rate, field) for field in FIELDS): rate for rate in rates if rate.tokens_per_s is not None}
    for name, violated in chain(larger_models(found), *(pairs_of(rates, above) for rates in found.values())):
        counts[name][violated] += 1
    return counts


def main() -> None:
    """Print the table."""
    print(f"{'faster although it cannot be':<52}{'pairs':>10}{'violations':>12}{'share':>9}")
    for name, count in sorted(measured(ROOT).items()):
        print(f"{name:<52}{count.total():>10,}{count[True]:>12,}{count[True] / count.total():>9.2%}")


if __name__ == "__main__":
    main()
