"""The same method on the same device in several sources: utilisations far apart cannot both be usual."""

from collections import defaultdict
from collections.abc import Iterator

from tunemark.collector.audit.evidence import Base, Run
from tunemark.collector.audit.physics_of import flop_per_token, peak_flop_per_s
from tunemark.collector.audit.rule import SUSPICIOUS, Found, Rule
from tunemark.collector.audit.utilisation import possible_rates
from tunemark.schema.architecture import count_parameters

SIZE = 1.6
"""Models of about the same size: utilisation changes slowly with it."""


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


RULES = (
    Rule(
        "cross-source",
        "far better than other sources on the same device",
        "comparison",
        "Utilisation of one method on one device changes slowly with model and stack; factors need an explanation.",
        (SUSPICIOUS,),
        across_sources,
    ),
)
