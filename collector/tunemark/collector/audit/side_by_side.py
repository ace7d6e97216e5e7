"""Whether results that a document sets beside each other may be compared."""

from collections.abc import Iterator

from tunemark.collector.audit.comparison import LOWER_IS_FASTER
from tunemark.collector.audit.evidence import Base, Run, label
from tunemark.collector.audit.rule import INCONSISTENT, SUSPICIOUS, Found, Rule
from tunemark.collector.audit.token_rates import rows_per_step
from tunemark.collector.store.rates import precision_class
from tunemark.schema.records.claims import Comparison

TIMES_AND_RATES = LOWER_IS_FASTER | {"tokens_per_s", "samples_per_s", "samples_per_s_reported", "relative_speed"}
KEYS = ("model", "method", "dataset", "sequence length", "rows of the training", "precision", "rows of a step", "torch")
WORK = frozenset(KEYS[:5])
"""What changes the work; the others change how it is done."""


def comparability(base: Base) -> Iterator[Found]:
    """Yield results that are set beside each other although their work differs."""
    for statement, said in base.assertions(Comparison):
        runs = base.named(dict.fromkeys(said.records))
        if said.quantity not in TIMES_AND_RATES or len({(run.conditions.accelerator, run.devices) for run in runs}) < 2:  # noqa: PLR2004 - two
            continue
        differing = {}
        for key in KEYS:
            values = {run.id: value for run in runs if (value := _key(run, key)) is not None}
            if len(set(values.values())) > 1:
                differing[key] = values
        if differing:
            yield Found(
                INCONSISTENT if WORK & set(differing) else SUSPICIOUS,
                (statement.id, *said.records),
                f"{label(said.quantity)} of {len(runs)} results side by side",
                "; ".join(f"{key}: {', '.join(f'{value} ({name})' for name, value in values.items())}" for key, values in differing.items())
                + (
                    ". Their times and rates are not of the same work"
                    if WORK & set(differing)
                    else ". The work is the same, the conditions are not"
                ),
                {"differing": ", ".join(differing)},
            )


def _key(run: Run, key: str) -> object:
    conditions, rows, steps = run.conditions, rows_per_step(run), run.span("steps")
    return {
        "model": conditions.model,
        "method": conditions.method.value,
        "dataset": conditions.dataset,
        "sequence length": conditions.sequence_length,
        "rows of the training": round(steps.value) * rows if steps and rows else None,
        "precision": precision_class(conditions.precision),
        "rows of a step": rows,
        "torch": conditions.framework.get("torch"),
    }[key]


RULES = (
    Rule(
        "comparability",
        "results side by side that did other work",
        "comparison",
        "Times and rates compare devices only when model, method, data, length, batch and precision agree (definitions.md 19).",
        (INCONSISTENT, SUSPICIOUS),
        comparability,
    ),
)
