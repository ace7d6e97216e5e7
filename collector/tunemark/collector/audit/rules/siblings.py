"""Siblings: a rate against like rows of its document, and a printed share against the rate of its row."""

from collections.abc import Iterator, Sequence
from operator import attrgetter
from statistics import median

from tunemark.collector.audit.bounds import flop_conventions
from tunemark.collector.audit.distributions import Attained, attained, similar_size
from tunemark.collector.audit.evidence import AuditedResult, Evidence, grouped, label
from tunemark.collector.audit.interval import Interval
from tunemark.collector.audit.rule import INCONSISTENT, SUSPICIOUS, Finding, rule

SETUP = attrgetter(
    *("source", "conditions.method", "conditions.accelerator", "conditions.precision", "conditions.packing"),
    "offloads_to_host",
)
"""Conditions that siblings share. Software may differ: its versions change a rate by less than the limit."""
OFFLOADS = ("offload", "activation_offload", "peft_method")
"""Settings that change a rate by more than the limit."""
SIMILAR_ROWS = 4
"""Factor within which the length of rows, and the tokens of a micro-step, are alike."""
SIMILAR_DEVICES = 8
"""Factor within which numbers of devices are alike: communication slows steps down."""
FEWEST_SIBLINGS = 3
"""Minimum number of siblings with a median that one wrong row does not set."""
PLACE = attrgetter("source", "section", "conditions.accelerator", "conditions.precision", "conditions.method")
FEWEST_ROWS = 5
"""Minimum number of rows that show by which convention a table counts."""
AGREEING = 0.8
"""Share of the rows of a table that must follow one convention."""
RELATION_TOLERANCE = 0.03
"""Share by which a printed utilisation may differ from its table's convention beyond its digits: rates are rounded as well."""


@rule(id="far-from-siblings", family="comparison", verdicts=(SUSPICIOUS,))
def far_from_siblings(evidence: Evidence) -> Iterator[Finding]:
    """Rate far above or below like rows of the same document.

    Versions of software, batch and number of devices change the work per second and device by tens of per cent. A large factor
    means another unit, another device, or rows that were not alike: per core and per device, per device and all, per step and row.
    """
    limit = evidence.facts.known.practice("siblings")
    published = (each for each in attained(evidence) if not each.result.measured and not each.result.converted)
    for rows in grouped(published, _setup).values():
        for each in rows:
            siblings = [other for other in rows if other is not each and similar_size(each, other) and _alike(each.result, other.result)]
            if len(siblings) < FEWEST_SIBLINGS:
                continue
            middle = median(other.share for other in siblings)
            if middle / limit <= each.share <= middle * limit:
                continue
            words = (
                f"{each.share:.1%} of the dense peak. The median of {len(siblings)} results with the same method and device, and models of this size, is "
                f"{middle:.1%}: {max(each.share / middle, middle / each.share):.1f} times {'less' if each.share > middle else 'more'}"
            )
            records = (each.result.id, *(other.result.id for other in siblings))
            numbers = {"utilisation": each.share, "siblings": middle}
            claim, quantity = f"{each.result.printed(each.rate.quantity)} on {each.result.device_name}", each.rate.quantity
            yield Finding(SUSPICIOUS, records, claim, words, numbers, quantities=(quantity,))


def _setup(each: Attained) -> tuple[object, ...]:
    return (*SETUP(each.result), *(each.result.conditions.settings.get(name) for name in OFFLOADS))


def _alike(result: AuditedResult, other: AuditedResult) -> bool:
    """Return True if the length of rows, the tokens of a micro-step, and the number of devices are similar."""
    first, second = result.conditions, other.conditions
    tokens = ((each.micro_batch or 0) * (each.sequence_length or 0) for each in (first, second))
    pairs = (
        (*tokens, SIMILAR_ROWS),
        (first.sequence_length, second.sequence_length, SIMILAR_ROWS),
        (result.devices, other.devices, SIMILAR_DEVICES),
    )
    return all(not a or not b or max(a, b) <= factor * min(a, b) for a, b, factor in pairs)


@rule(id="share-of-table", family="comparison", verdicts=(INCONSISTENT,))
def shares_of_a_table(evidence: Evidence) -> Iterator[Finding]:
    """Utilisation in print that leaves the convention of its table.

    MFU, HFU and FLOP/s are tokens per second times the FLOPs of a token, over the same peak in all rows. Conventions differ
    (attention left out, causal half or whole square, recomputed work), but a table keeps to one.
    """
    for quantity in ("mfu", "hfu", "model_flop_per_s"):
        rows = [result for result in evidence.with_figure(quantity) if result.interval("tokens_per_s") and result.model]
        for results in grouped(rows, PLACE).values():
            yield from _off_convention(quantity, [result for result in results if result.conditions.sequence_length])


def _off_convention(quantity: str, results: Sequence[AuditedResult]) -> Iterator[Finding]:
    if len(results) < FEWEST_ROWS:
        return
    ratios = {name: [_ratio(result, quantity, name) for result in results] for name in _conventions(results[0])}
    middles = {name: median(ratio.value for ratio in values) for name, values in ratios.items()}
    off = {
        name: [not ratio.widened(RELATION_TOLERANCE).overlaps(Interval.exact(middles[name])) for ratio in ratios[name]] for name in ratios
    }
    convention = min(off, key=lambda name: sum(off[name]))
    if sum(off[convention]) > (1 - AGREEING) * len(results):
        return
    for result, ratio, wrong in zip(results, ratios[convention], off[convention], strict=True):
        if wrong:
            factor = ratio.value / middles[convention]
            words = (
                f"{len(results)} rows of the table follow tokens/s x FLOPs of a token ({convention}); by this row's rate its figure "
                f"would be {factor:.2f} times smaller"
                if factor > 1
                else f"{len(results)} rows of the table follow tokens/s x FLOPs of a token ({convention}); by this row's rate its figure "
                f"would be {1 / factor:.2f} times larger"
            )
            claim, numbers = result.printed(quantity, "tokens_per_s"), {f"{label(quantity)}, relative": factor}
            yield Finding(INCONSISTENT, (result.id,), claim, words, numbers, quantities=(quantity, "tokens_per_s"))


def _conventions(result: AuditedResult) -> tuple[str, ...]:
    return tuple(_flop_per_token(result))


def _flop_per_token(result: AuditedResult) -> dict[str, float]:
    length = result.conditions.sequence_length
    return flop_conventions(result.model, result.conditions.method, length) if result.model and length else {}


def _ratio(result: AuditedResult, quantity: str, convention: str) -> Interval:
    """Return a printed share per device, or a printed FLOP/s of all devices, over the FLOP/s of the rate by a convention."""
    rate, claim = result.interval("tokens_per_s"), result.interval(quantity)
    if rate is None or claim is None:
        return Interval.exact(1.0)
    return claim * (result.devices if quantity != "model_flop_per_s" else 1) / (rate * _flop_per_token(result)[convention])
