"""The same work on the same device: utilisations or times that are far apart cannot both be usual."""

from collections import defaultdict
from collections.abc import Iterator

from tunemark.collector.audit.evidence import Base, Run
from tunemark.collector.audit.physics_of import flop_per_token, peak_flop_per_s
from tunemark.collector.audit.rule import INCONSISTENT, SUSPICIOUS, Found, Rule
from tunemark.collector.audit.utilisation import possible_rates
from tunemark.schema.physics.architecture import count_parameters

SIZE = 1.6
"""Models of about the same size: utilisation changes slowly with it."""
FEWEST_STEPS = 20
"""Fewer are mostly warm-up (definitions.md 4)."""
TIMED = ("epochs", "steps", "total_steps", "train_time_s", "wall_s")


def _share(run: Run) -> float | None:
    rates, peak, length = possible_rates(run), peak_flop_per_s(run), run.conditions.sequence_length
    if len(rates) != 1 or peak is None or length is None or run.model is None:
        return None
    return rates[0].tokens_per_s.value * flop_per_token(run, length) / peak


def across_sources(base: Base) -> Iterator[Found]:
    """Yield results that use a device far better than another source's results of the same method and size of model."""
    limit = base.facts.known.practice("cross-source")
    groups: dict[tuple[object, ...], list[tuple[Run, float]]] = defaultdict(list)
    for run in base.runs:
        share = _share(run)
        if share is not None and run.accelerator is not None:
            groups[run.accelerator.key, run.conditions.method, run.devices].append((run, share))
    for runs in groups.values():
        # Measured results may be many: each is held against documents only.
        told = [(one, share) for one, share in runs if not one.measured]
        for run, share in runs:
            peers = [(one, theirs) for one, theirs in (told if run.measured else runs) if one.source != run.source and _alike(one, run)]
            if not peers:
                continue
            middle = sorted(theirs for _, theirs in peers)[len(peers) // 2]
            if share > limit * middle:
                yield Found(
                    SUSPICIOUS,
                    (run.id, *(one.id for one, _ in peers)),
                    f"{run.printed('tokens_per_s', 'step_time_s')} on {run.accelerator.name if run.accelerator else ''}",
                    f"{share:.1%} of the dense peak; {len(peers)} results of other sources with the same device, method and size of model are at {middle:.1%}: {share / middle:.1f} times as good",
                    {"utilisation": share, "peers": middle},
                )


def _alike(one: Run, other: Run) -> bool:
    if one.model is None or other.model is None:
        return False
    sizes = sorted((count_parameters(one.model).total, count_parameters(other.model).total))
    return sizes[1] <= SIZE * sizes[0]


def told_twice(base: Base) -> Iterator[Found]:
    """Yield pairs of results of one source in which the same run on the same device takes times that are factors apart."""
    limit = base.facts.known.practice("same-run")
    for group in base.alike:
        timed = [(run, found) for run in group if not run.measured and not run.converted and (found := _second_per_row(run))]
        for index, (one, first) in enumerate(timed):
            for other, second in timed[index + 1 :]:
                slow, fast = max(first, second), min(first, second)
                if _same_conditions(one, other) and slow[0] > limit * fast[0]:
                    yield Found(
                        INCONSISTENT,
                        (one.id, other.id),
                        f"{one.printed(*TIMED)} and {other.printed(*TIMED)} for the same model, method, batch and length on the same device",
                        f"{first[1]} = {1e3 * first[0]:.2f} ms a row; {second[1]} = {1e3 * second[0]:.2f} ms a row: {slow[0] / fast[0]:.2f} times as long",
                        {"s_per_row": first[0], "s_per_row, other": second[0]},
                    )


def _second_per_row(run: Run) -> tuple[float, str] | None:
    """Return seconds a row of the training data, by whole epochs or by the steps that were done, and how."""
    steps, total, epochs = run.span("steps"), run.span("total_steps"), run.span("epochs")
    time = run.span("train_time_s") or run.span("wall_s")
    conditions, rows = run.conditions, run.training_rows
    if time is None:
        return None
    unfinished = steps is not None and total is not None and steps.value < total.value
    if epochs is not None and rows is not None and not unfinished:
        return time.value / (epochs.value * rows), f"{time.value:g} s / ({epochs.value:g} x {rows:,} rows)"
    batch = conditions.global_batch or (conditions.micro_batch if run.devices == 1 else None)
    if steps is None or batch is None or steps.value < FEWEST_STEPS:
        return None
    return time.value / (steps.value * batch), f"{time.value:g} s / ({steps.value:,.0f} steps x {batch} rows)"


def _same_conditions(one: Run, other: Run) -> bool:
    """Return whether two results have the same batch, length and format, and no setting that is known to differ."""
    a, b = one.conditions, other.conditions
    needed = ("micro_batch", "sequence_length", "precision", "accelerator", "accelerator_count")
    alike = all(getattr(a, name) is not None and getattr(a, name) == getattr(b, name) for name in needed)
    open_ = ("global_batch", "gradient_accumulation", "padding", "packing", "dataset")
    agreeing = all(None in {getattr(a, name), getattr(b, name)} or getattr(a, name) == getattr(b, name) for name in open_)
    fewer, more = sorted((dict(a.settings), dict(b.settings)), key=len)
    return alike and agreeing and all(more.get(name) == value for name, value in fewer.items()) and (not fewer or len(fewer) == len(more))


RULES = (
    Rule(
        "cross-source",
        "far better than other sources on the same device",
        "comparison",
        "Utilisation of one method on one device changes slowly with model and stack; factors need an explanation.",
        (SUSPICIOUS,),
        across_sources,
    ),
    Rule(
        "same-run",
        "the same run with times that are factors apart",
        "comparison",
        "A run repeated on the same device takes about the same time; factors mean that something else was run, or another device.",
        (INCONSISTENT,),
        told_twice,
    ),
)
