"""Statements: settings said in two places, conclusions and what stands behind them, links that lead nowhere."""

from collections import defaultdict
from collections.abc import Iterator

from tunemark.collector.audit.evidence import Base, Run, label, quoted
from tunemark.collector.audit.physics_of import flop_per_token, peak_flop_per_s, weight_bytes
from tunemark.collector.audit.rule import AMBIGUOUS, INCONSISTENT, SUSPICIOUS, Found, Rule
from tunemark.collector.audit.token_rates import samples_per_s, token_rates
from tunemark.schema.records.claims import Conclusion, Link, Scalar, Stated
from tunemark.schema.vocabulary import Method

HELD_OUT = frozenset(
    {"eval_loss", "accuracy", "token_accuracy", "eval_loss_epoch1", "eval_loss_epoch2", "accuracy_epoch1", "accuracy_epoch2"}
)
BUSY = frozenset({"device_utilisation_peak", "sm_utilisation", "device_busy_mean"})
SHOWN = 4


def _value(run: Run, name: str) -> Scalar:
    """Return a condition or setting of a result, or None."""
    if name in type(run.conditions).model_fields:
        value = getattr(run.conditions, name)
        return value if isinstance(value, str | int | float | bool) else None
    value = run.conditions.settings.get(name)
    return None if isinstance(value, tuple) else value


def stated_twice(base: Base) -> Iterator[Found]:
    """Yield settings that are said differently in two places, a result's own conditions being one."""
    said: dict[tuple[str, str], list[tuple[str, Stated]]] = defaultdict(list)
    for statement, stated in base.assertions(Stated):
        for record in stated.records:
            said[record, stated.setting].append((statement.id, stated))
    differing: dict[tuple[str, ...], tuple[list[str], list[str]]] = {}
    for (record, setting), places in said.items():
        run = base.by_id.get(record)
        values = [(name, stated.place, stated.value, stated.at_most) for name, stated in places]
        own = _value(run, setting) if run else None
        if own is not None:
            values.append((record, f"the conditions of {record}", own, False))
        wrong = [one for one in values if any(_contradict(one, other) for other in values)]
        if not wrong:
            continue
        key = (setting, *(name for name, *_ in wrong if name != record))
        lines, records = differing.setdefault(
            key, ([f"{setting} is {value!r} in {place}" for name, place, value, _ in wrong if name != record], [])
        )
        records.append(record)
        lines.extend(f"{value!r} in {place}" for name, place, value, _ in wrong if name == record)
    for (setting, *names), (lines, records) in differing.items():
        shown = lines if len(lines) <= SHOWN + 1 else [*lines[: SHOWN + 1], f"and so for {len(lines) - SHOWN - 1} more"]
        yield Found(INCONSISTENT, (*names, *records), f"{setting}, said in two places", "; ".join(shown), {"setting": setting})


def _contradict(one: tuple[str, str, Scalar, bool], other: tuple[str, str, Scalar, bool]) -> bool:
    if one[2] == other[2]:
        return False
    limit, value = (one, other) if one[3] else (other, one)
    if limit[3] and isinstance(limit[2], int | float) and isinstance(value[2], int | float):
        return value[2] > limit[2]
    return True


def conclusions(base: Base) -> Iterator[Found]:
    """Yield conclusions that nothing, or the wrong quantity, stands behind."""
    for statement, said in base.assertions(Conclusion):
        reason = _unsupported(base, said)
        if reason:
            yield Found(
                SUSPICIOUS,
                (statement.id, *said.records),
                f"a conclusion about {said.about}{quoted(statement)}",
                reason,
                {"about": said.about},
            )


def _unsupported(base: Base, said: Conclusion) -> str:
    runs = base.named(said.records)
    shown = {quantity for record in said.records for quantity in base.claims_of(record)} & set(said.basis)
    if said.against is not None and not _has_figures_of(base, said):
        return f"it compares with {said.against}, of which it gives no figure"
    if said.over is not None:
        seen = sorted({str(_value(run, said.over)) for run in runs})
        if len(seen) < 2:  # noqa: PLR2004 - a trend needs two
            return f"it holds a threshold over {said.over}, and all {len(runs)} results have {said.over} = {', '.join(seen) or 'unknown'}: nothing was varied"
    if said.about == "quality" and not shown & HELD_OUT:
        tail = _training_only(runs)
        return f"it rests on {', '.join(label(one) for one in sorted(shown)) or 'no figure'}{tail}; a loss on training rows cannot tell learning from memorising, and no held-out figure is given"
    if said.about == "utilisation" and shown and shown <= BUSY:
        return f"it rests on {', '.join(f'{run.printed(*sorted(shown))} ({run.id})' for run in runs)}, the share of time in which something ran, which says nothing of how much: {_attained(runs)}"
    if not shown:
        return f"no figure of {said.about} stands behind it"
    return ""


def _has_figures_of(base: Base, said: Conclusion) -> bool:
    """Return whether the source of a conclusion has results of what it compares with: named in their software, device or words."""
    sources, wanted = {run.source for run in base.named(said.records)}, (said.against or "").lower()
    return any(
        wanted in " ".join((*run.conditions.framework, *run.labels.values(), run.section)).lower()
        for run in base.runs
        if run.source in sources and run.claims and run.id not in said.records
    )


def _training_only(runs: list[Run]) -> str:
    epochs = [
        f"{run.claims['epochs'].value:g} epochs over {run.training_rows:,} rows"
        for run in runs
        if "epochs" in run.claims and run.training_rows
    ]
    return f" after {', '.join(dict.fromkeys(epochs))}" if epochs else ""


def _attained(runs: list[Run]) -> str:
    parts = []
    for run in runs:
        peak, rate = peak_flop_per_s(run), samples_per_s(run)
        if peak is None or run.model is None:
            continue
        length = run.conditions.sequence_length
        if length is not None and token_rates(run):
            share = token_rates(run)[0].tokens_per_s.value * flop_per_token(run, length) / peak
            parts.append(f"{run.id} attains {share:.0%} of the dense peak")
        elif rate is not None:
            lengths = (1_024, 4_096)
            shares = [rate[0].value * each * flop_per_token(run, each) / peak for each in lengths]
            parts.append(
                f"{run.id} attains {shares[0]:.0%} of the dense peak at {lengths[0]:,} tokens a row, {shares[1]:.0%} at {lengths[1]:,}"
            )
    return "; ".join(parts) or "what was attained is not known"


def links(base: Base) -> Iterator[Found]:
    """Yield links that lead nowhere."""
    for statement, link in base.assertions(Link):
        if not link.exists:
            yield Found(INCONSISTENT, (statement.id,), f"link to {link.target}", f"not found in {link.checked_in}", {"target": link.target})


def method_not_said(base: Base) -> Iterator[Found]:
    """Yield results whose method the source leaves open; what each reading would need in memory."""
    for run in base.published:
        if "method" not in run.conditions.assumed or run.model is None:
            continue
        sizes = {method: weight_bytes(run.model, method)[0] for method in (Method.LORA, Method.QLORA)}
        peak = run.readings("peak_memory_bytes")
        room = f", and {run.claims['peak_memory_bytes'].printed} holds both" if peak and peak[0][1].value > max(sizes.values()) else ""
        yield Found(
            AMBIGUOUS,
            (run.id,),
            f"method: {run.labels.get('method', 'not said')}",
            "; ".join(f"read as {method.value}: weights of {size / 1e9:.1f} GB" for method, size in sizes.items()) + room,
            {f"bytes, {method.value}": size for method, size in sizes.items()},
        )


RULES = (
    Rule(
        "stated-twice",
        "a setting said differently in two places",
        "statements",
        "A run has one value of each setting; a heading, a footnote, a comment and a configuration cannot all be right.",
        (INCONSISTENT,),
        stated_twice,
    ),
    Rule(
        "unsupported",
        "a conclusion that no figure supports",
        "statements",
        "A conclusion needs figures of what it is about: held-out ones for quality, FLOPs for use of a device, two systems for a comparison, two values for a threshold.",
        (SUSPICIOUS,),
        conclusions,
    ),
    Rule("link", "a link that leads nowhere", "statements", "What is linked can be read.", (INCONSISTENT,), links),
    Rule(
        "method-not-said",
        "a method that the source leaves open",
        "definitions",
        "Parameter-efficient is LoRA or QLoRA: weights of 16 or of 4 bits, and other speeds.",
        (AMBIGUOUS,),
        method_not_said,
    ),
)
