"""Data of devices as documents print them, against their cards."""

from collections.abc import Iterator

from tunemark.collector.audit.evidence import Base
from tunemark.collector.audit.rule import IMPOSSIBLE, INCONSISTENT, Found, Rule
from tunemark.collector.audit.span import Span
from tunemark.schema.facts.names import agrees
from tunemark.schema.records.claims import Advice, Device

GIB = 2**30
DEVICE_TOLERANCE = 0.05


def printed_memory(base: Base) -> Iterator[Found]:
    """Yield devices with a memory that they are not sold with."""
    said = [(statement, key, advice.printed_memory_gb) for statement, advice in base.assertions(Advice) for key in advice.accelerators]
    said += [(statement, device.accelerator, device.printed_memory_gb) for statement, device in base.assertions(Device)]
    for statement, key, memory in said:
        card = base.facts.accelerators.get(key)
        if card is None or memory is None or agrees(memory, card):
            continue
        others = [
            one.name
            for one in base.facts.accelerators.values()
            if one.architecture == card.architecture and one.vendor == card.vendor and one.memory_gib == memory
        ]
        also = f"; {memory:g} GB have {', '.join(others)}" if others else ""
        yield Found(
            IMPOSSIBLE,
            (statement.id,),
            f"{card.name} with {memory:g} GB",
            f"the {card.name} has {card.memory_gib:g} GB{also} ({card.source})",
            {"claimed_gb": memory, "card_gib": card.memory_gib or 0},
        )


def device_data(base: Base) -> Iterator[Found]:
    """Yield data of devices that their cards contradict."""
    fields = (
        ("memory_bandwidth_bytes_per_s", "memory_bandwidth_gb_s", 1e9, "memory bandwidth"),
        ("tdp_w", "tdp_w", 1.0, "power"),
        ("device_memory_each_bytes", "memory_gib", GIB, "memory"),
    )
    for statement, device in base.assertions(Device):
        card = base.facts.accelerators.get(device.accelerator)
        if card is None:
            continue
        generation = base.facts.known.generation(card.architecture)
        if device.tensor_core_generation and generation and device.tensor_core_generation != generation:
            yield Found(
                INCONSISTENT,
                (statement.id,),
                f"tensor cores of generation {device.tensor_core_generation}",
                f"{card.name} is {card.architecture}, whose tensor cores are of generation {generation}",
                {"claimed": device.tensor_core_generation, "generation": generation},
            )
        for quantity, field, scale, what in fields:
            claim, there = statement.claims.get(quantity), getattr(card, field)
            if claim is None or there is None:
                continue
            tolerance = 0.09 if field == "memory_gib" else DEVICE_TOLERANCE
            if not Span.of(claim).widened(tolerance).overlaps(Span.exact(there * scale)):
                yield Found(
                    INCONSISTENT,
                    (statement.id,),
                    f"{what} {claim.printed}",
                    f"the card of {card.name} has {there:g} ({card.source})",
                    {"claimed": claim.value, "card": there * scale},
                )


RULES = (
    Rule(
        "device-memory",
        "a device with a memory it is not sold with",
        "catalogue",
        "A device has the memory of its card; another amount is another device.",
        (IMPOSSIBLE,),
        printed_memory,
    ),
    Rule(
        "device-data",
        "data of a device that its card contradicts",
        "catalogue",
        "Bandwidth, power and generation are the maker's.",
        (INCONSISTENT,),
        device_data,
    ),
)
