"""Siblings: the rate of a result against like results of its own document, and of other sources."""

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from statistics import median

from tunemark.collector.audit.bounds import flop_per_token, least_flop_per_token, rates_below_peak
from tunemark.collector.audit.distributions import UsualUtilisation, similar_size
from tunemark.collector.audit.evidence import DEVICES_SETTINGS, AuditedResult, Evidence, grouped, same_settings
from tunemark.collector.audit.rule import SUSPICIOUS, Finding, rule
from tunemark.collector.audit.token_rates import samples_per_s
from tunemark.schema.physics.architecture import count_parameters

SETUP = attrgetter(
    *("source", "conditions.method", "conditions.accelerator", "conditions.precision", "conditions.packing", "conditions.padding"),
    *("conditions.dataset", "offloads_to_host"),
)
"""Conditions that siblings share. Versions of software change a rate by less than the limit."""
OFFLOADS = ("offload", "activation_offload")
"""Settings that change a rate by more than the limit."""
NEAR, COMPANY = 1.5, 1 / 3
"""Factor within which siblings support a rate, and the share of siblings that makes it one of two usual rates."""
OTHER_SETTINGS = 2
"""Factor that other settings may add to the limit: kernels for experts, and kinds of adapters, change rates by up to five times."""
SIMILAR_ROWS = 4
"""Factor within which the length of rows, and the tokens of a micro-step, are alike."""
SIMILAR_DEVICES = 8
"""Factor within which numbers of devices are alike: communication slows steps down."""
FEWEST_SIBLINGS = 3
"""Minimum number of siblings with a median that one wrong row does not set."""
LIKE = attrgetter("level", "result.conditions.accelerator", "result.conditions.method", "result.devices")
"""What results of different sources must share to be compared."""


@dataclass(frozen=True, slots=True)
class _Pace:
    """Work of a result per second and device, by its only possible rate. No peak is needed."""

    result: AuditedResult
    quantity: str
    """The figure that the rate follows from."""
    unit: str
    """`tokens`, or `rows` whose length is not known."""
    parameters: int
    flop_per_s: float
    """Model FLOPs per second and device; of rows of unknown length, of one token of each."""


@rule(id="far-from-siblings", family="comparison", verdicts=(SUSPICIOUS,))
def far_from_siblings(evidence: Evidence) -> Iterator[Finding]:
    """Rate far above or below like rows of the same document.

    Versions of software, batch and number of devices change the work per second and device by tens of per cent. A large factor
    means another unit, another device, or rows that were not alike: per core and per device, per device and all, per step and row.
    """
    limit = evidence.facts.known.practice("siblings")
    paces = [pace for result in evidence.published if (pace := _pace(result))]
    for rows in grouped(paces, lambda pace: (pace.unit, *SETUP(pace.result), *map(pace.result.conditions.settings.get, OFFLOADS))).values():
        for each in rows:
            siblings = [other for other in rows if other is not each and similar_size(each, other) and _alike(each.result, other.result)]
            close = [other for other in siblings if same_settings(each.result, other.result, DEVICES_SETTINGS)]
            if len(close) >= FEWEST_SIBLINGS:
                siblings = close
            allowed = limit if siblings == close else limit * OTHER_SETTINGS
            if len(siblings) < FEWEST_SIBLINGS:
                continue
            usual = sorted(siblings, key=lambda other: other.flop_per_s)[len(siblings) // 2]
            middle = median(other.flop_per_s for other in siblings)
            factor = _factor(each.flop_per_s, middle)
            near = sum(_factor(each.flop_per_s, other.flop_per_s) <= NEAR for other in siblings)
            if factor <= allowed or near >= COMPANY * len(siblings):
                continue
            words = (
                f"{each.flop_per_s / 1e12:.3g} TFLOP/s on each device. The median of {len(siblings)} results with the same method and device, "
                f"and models of this size, such as {usual.result.id}, is {middle / 1e12:.3g}: {factor:.1f} times {'less' if each.flop_per_s > middle else 'more'}"
            )
            numbers = {"flop_per_s": each.flop_per_s, "siblings": middle}
            device = each.result.device_name or each.result.labels.get("accelerator", "a device")
            # A finding concerns all of its records, and siblings are right.
            claim = f"{each.result.printed(each.quantity)} on {device}"
            yield Finding(SUSPICIOUS, (each.result.id,), claim, words, numbers, quantities=(each.quantity,))


def _pace(result: AuditedResult) -> _Pace | None:
    """Return the work of a result per second and device, or None if its model or rate is unknown, or its rate ambiguous."""
    model, length, rates = result.model, result.conditions.sequence_length, rates_below_peak(result)
    rows = samples_per_s(result) if length is None and not rates else None
    if model is None or (len(rates) != 1 and rows is None):
        return None
    rate, quantity, unit = (
        (rates[0].tokens_per_s, rates[0].quantity, "tokens") if rates else (rows[0], "samples_per_s", "rows") if rows else (None, "", "")
    )
    if rate is None:
        return None
    # Without a length, attention is left out.
    each = flop_per_token(result, model, length) if length else least_flop_per_token(model, result.conditions.method, 1)
    return _Pace(result, quantity, unit, count_parameters(model).total, rate.value * each / result.devices)


def _factor(first: float, second: float) -> float:
    return max(first / second, second / first)


def _alike(result: AuditedResult, other: AuditedResult) -> bool:
    """Return True if the length of rows, the tokens of a micro-step, and the number of devices are similar."""
    first, second = result.conditions, other.conditions
    tokens = ((each.micro_batch or 0) * (each.sequence_length or 1) for each in (first, second))
    pairs = (
        (*tokens, SIMILAR_ROWS),
        (first.sequence_length, second.sequence_length, SIMILAR_ROWS),
        (result.devices, other.devices, SIMILAR_DEVICES),
    )
    return all(not a or not b or max(a, b) <= factor * min(a, b) for a, b, factor in pairs)


@rule(id="cross-source", family="comparison", verdicts=(SUSPICIOUS,))
def across_sources(evidence: Evidence) -> Iterator[Finding]:
    """Far better than other sources on the same device.

    For one method, device and level of software, utilisation changes slowly with the model. A large factor needs an explanation,
    unless two other sources reach as much with like devices.
    """
    factor, usual = evidence.facts.known.practice("cross-source"), UsualUtilisation(evidence)
    for group in grouped(usual.attained.values(), LIKE).values():
        published = [item for item in group if not item.result.measured]
        for item in group:
            # Measured results may be many: each is compared with documents only.
            peers = [other for other in published if other.result.source != item.result.source and similar_size(item, other)]
            middle = sorted(other.share for other in peers)[len(peers) // 2] if peers else item.share
            limit = usual.limit(item.result)
            if item.share > factor * middle and (item.hardware_share > limit.share or not limit.measured):
                claim = f"{item.result.printed(item.rate.quantity)} on {item.result.device_name}"
                words = (
                    f"{item.share:.1%} of the dense peak. {len(peers)} results of other sources with the same device, method, software level "
                    f"and model size reach {middle:.1%}: {item.share / middle:.1f} times less{f'; {limit.words}' if limit.measured else ''}"
                )
                records = (item.result.id, *(other.result.id for other in peers))
                numbers = {"utilisation": item.share, "peers": middle}
                yield Finding(SUSPICIOUS, records, claim, words, numbers, quantities=(item.rate.quantity,))
