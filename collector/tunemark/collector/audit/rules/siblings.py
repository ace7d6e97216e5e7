"""Siblings: a rate against like rows of its document, and a printed share against the rate of its row."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import median

from tunemark.collector.audit.bounds import flop_conventions, flop_per_token, least_flop_per_token, rates_below_peak
from tunemark.collector.audit.distributions import similar_size, states_recompute
from tunemark.collector.audit.evidence import DEVICES_SETTINGS, AuditedResult, Evidence, grouped, label, same_settings
from tunemark.collector.audit.interval import Interval
from tunemark.collector.audit.rule import INCONSISTENT, SUSPICIOUS, Finding, rule
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
ONE_PEAK = ("source", "conditions.method", "conditions.accelerator", "conditions.precision")
KINDS_OF_ROWS: dict[str, Callable[[AuditedResult], tuple[object, ...]]] = {
    "model_flop_per_s": attrgetter(*ONE_PEAK[:2]),
    "mfu": attrgetter(*ONE_PEAK),
    "hfu": lambda result: (*attrgetter(*ONE_PEAK)(result), states_recompute(result)),
}
"""What rows share that follow one convention, and for shares of a peak, one peak."""
FEWEST_ROWS = 5
"""Minimum number of rows that show by which convention a table counts."""
ONE_WRONG_OF = 5
"""Rows of a table among which at most one may leave the convention."""
RELATION_TOLERANCE = 0.05
"""Share by which a printed utilisation may differ from its table's convention beyond its digits: rates are rounded as well."""


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
            claim = (
                f"{each.result.printed(each.quantity)} on {each.result.device_name or each.result.labels.get('accelerator', 'a device')}"
            )
            # A finding concerns all of its records, and siblings are right.
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


@rule(id="share-of-table", family="comparison", verdicts=(INCONSISTENT,))
def shares_of_a_table(evidence: Evidence) -> Iterator[Finding]:
    """Utilisation in print that leaves the convention of its table.

    MFU, HFU and FLOP/s are tokens per second times the FLOPs of a token, over the same peak in all rows. Conventions differ
    (attention left out, causal half or whole square, recomputed work), but a table keeps to one.
    """
    for quantity in ("mfu", "hfu", "model_flop_per_s"):
        published = (result for result in evidence.with_figure(quantity) if not result.measured)
        rows = [result for result in published if result.interval("tokens_per_s") and result.model and result.conditions.sequence_length]
        for results in grouped(rows, KINDS_OF_ROWS[quantity]).values():
            yield from _off_convention(quantity, results)


def _off_convention(quantity: str, results: Sequence[AuditedResult]) -> Iterator[Finding]:
    if len(results) < FEWEST_ROWS:
        return
    ratios = {name: [_ratio(result, quantity, name) for result in results] for name in _conventions(results[0])}
    middles = {name: median(ratio.value for ratio in values) for name, values in ratios.items()}
    off = {
        name: [not ratio.widened(RELATION_TOLERANCE).overlaps(Interval.exact(middles[name])) for ratio in ratios[name]] for name in ratios
    }
    convention = min(off, key=lambda name: (sum(off[name]), _spread(ratios[name], middles[name])))
    if sum(off[convention]) * ONE_WRONG_OF > len(results):
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


def _spread(ratios: Sequence[Interval], middle: float) -> float:
    return sum(abs(ratio.value / middle - 1) for ratio in ratios)


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
