"""Trainium against GPUs: speed, cost per epoch on one price basis, and when to choose which."""

from collections.abc import Iterator
from dataclasses import dataclass

from tunemark.schema.recommendation import provider_name
from tunemark.site import tables, wording
from tunemark.site.charts import Chart
from tunemark.site.page import document_path
from tunemark.site.pages.studies import (
    Evidence,
    Sentence,
    Study,
    ambiguous_caveat,
    bars,
    gathered,
    listed,
    ratio,
    result_link,
    sentence,
    written,
)
from tunemark.site.queries import BASIS_KIND
from tunemark.site.tables import Column, Row, Table

ORDER = 3
TRAINIUM = "aws-trainium"
SAME = ("source", "section", "model", "method", "sequence_length", "micro_batch", "epochs", "dataset")
BASELINE, OPTIMISED = "baseline all devices", "optimized all devices"
"""Sections of document 001: before and after its changes of batch size and sequence length."""
ORDERS = (
    (True, True, "faster and cheaper than"),
    (True, False, "faster but more expensive than"),
    (False, False, "both slower and more expensive than"),
    (False, True, "slower but cheaper than"),
)
"""Whether devices are faster and cheaper than Trainium, in words."""


@dataclass(frozen=True, slots=True)
class Run:
    """A result with its time and its cost for one epoch."""

    row: Row
    epoch_s: float
    usd: float | None
    provider: str = ""

    @property
    def trainium(self) -> bool:
        """Whether it ran on Trainium."""
        return str(self.row["accelerator"]).startswith(TRAINIUM)

    @property
    def name(self) -> str:
        """Accelerator and device count."""
        return wording.devices(self.row)


def study(evidence: Evidence) -> Study:
    """Return the study of Trainium against GPUs."""
    runs = _runs(evidence)
    groups = [group for group in _groups(runs) if any(run.trainium for run in group) and not all(run.trainium for run in group)]
    sentences = written([*(made for group in groups for made in _of_group(evidence, group)), *_unequal(evidence), *_optimisation(runs)])
    return Study(
        key="trainium",
        title="Trainium against GPUs",
        question="When is Trainium faster or cheaper than a GPU for fine-tuning?",
        sentences=sentences,
        tables=tuple(_table(group) for group in groups),
        draw=(lambda: _chart(groups),),
        method=(
            "Results are compared if one document states the same model, method, sequence length, micro-batch, epochs and dataset for all of them.",
            "The cost of an epoch is its time multiplied by the cheapest on-demand list price of an instance that can hold the run.",
            "The effect of a document's optimisation is the ratio of the times of an epoch before and after, on the same device.",
        ),
        caveats=(
            "All costs are on-demand list prices of one day, of different providers. A single provider, or spot and marketplace prices, can change the order; the cost page holds the provider or the kind of price fixed.",
            "The documents do not state the same software versions for all devices, and each measures a single run per device.",
            "BERT classification uses short rows. It does not show how the devices compare for large language models.",
            *ambiguous_caveat(evidence, sentences),
        ),
    )


def _runs(evidence: Evidence) -> list[Run]:
    made = []
    for row in evidence.results:
        seconds = evidence.figure(row, "epoch_time_s")
        if seconds and row["accelerator"] and row["trust"] == "published":
            cost = evidence.catalogue.basis_costs.get(row["result_id"])
            made.append(Run(row, seconds, cost["usd_per_epoch"] if cost else None, provider_name(cost["provider"]) if cost else ""))
    return made


def _groups(runs: list[Run]) -> list[list[Run]]:
    """Return the runs of different accelerators under the same stated conditions, fastest first."""
    groups = gathered(
        (run for run in runs if run.row["micro_batch"] and run.row["sequence_length"]), lambda run: tuple(run.row[name] for name in SAME)
    )
    return [
        sorted(group, key=lambda run: run.epoch_s)
        for group in groups.values()
        if len(group) > 1 and len({run.row["accelerator"] for run in group}) == len(group)
    ]


def _optimisation(runs: list[Run]) -> Iterator[Sentence | None]:
    """Yield the effect of a document's optimisation on each device."""
    before = {(run.row["source"], run.row["accelerator"]): run for run in runs if run.row["section"] == BASELINE}
    after = {(run.row["source"], run.row["accelerator"]): run for run in runs if run.row["section"] == OPTIMISED}
    pairs = [(before[key], after[key]) for key in before if key in after]
    for source, group in gathered(pairs, lambda pair: pair[0].row["source"]).items():
        ordered = sorted(group, key=lambda pair: -pair[0].epoch_s / pair[1].epoch_s)
        parts = [f"{ratio(first.epoch_s / second.epoch_s)} on {second.row['accelerator_name']}" for first, second in ordered]
        yield sentence(
            f"In document {source} larger batches and shorter rows make an epoch faster by {listed(parts)}. {_baseline_lengths(ordered)}",
            [run.row for pair in ordered for run in pair],
        )


def _baseline_lengths(pairs: list[tuple[Run, Run]]) -> str:
    """Return the warning that the baselines of the devices differ in sequence length; empty if they do not."""
    lengths = gathered(pairs, lambda pair: pair[0].row["sequence_length"])
    if len(lengths) < 2:  # noqa: PLR2004 - one length is no difference
        return ""
    parts = [
        f"{length:,} tokens on {listed([pair[0].row['accelerator_name'] for pair in group])}" for length, group in sorted(lengths.items())
    ]
    return f"The baselines are not equal: their rows have {' and '.join(parts)}."


def _of_group(evidence: Evidence, group: list[Run]) -> Iterator[Sentence | None]:
    """Yield findings for devices under the same conditions: which is faster or cheaper, then the times, then the costs."""
    ours = next(run for run in group if run.trainium)
    others = [run for run in group if not run.trainium]
    priced = sorted((run for run in group if run.usd), key=lambda run: run.usd or 0.0)
    work = f"{ours.row['model_name']}, rows of {ours.row['sequence_length']:,} tokens, micro-batch {ours.row['micro_batch']}"
    if ours in priced:
        yield from _rankings(evidence, work, ours, priced)
    parts = [f"{ratio(run.epoch_s / ours.epoch_s)} that time on {run.name}" for run in others]
    yield sentence(
        f"{work}: an epoch takes {wording.seconds(ours.epoch_s)} on {ours.name}. The other devices take {listed(parts)}.",
        [ours.row, *(run.row for run in others)],
    )
    if ours in priced:
        parts = [f"${run.usd:.4f} on {run.name} ({run.provider})" for run in priced]
        yield sentence(f"At the cheapest on-demand list price of each, that epoch costs {listed(parts)}.", [run.row for run in priced])


def _rankings(evidence: Evidence, work: str, ours: Run, priced: list[Run]) -> Iterator[Sentence | None]:
    """Yield the devices that are faster or slower, and cheaper or more expensive, than Trainium."""
    for faster, cheaper, words in ORDERS:
        better = [
            run for run in priced if run is not ours and (run.epoch_s < ours.epoch_s, (run.usd or 0) < (ours.usd or 0)) == (faster, cheaper)
        ]
        names = listed([f"{run.name} ({run.provider})" for run in better]) if better else ""
        otherwise = "".join(_at_our_provider(evidence, run, ours, cheaper=cheaper) for run in better)
        yield sentence(
            f"{work}: {names} {'is' if len(better) == 1 else 'are'} {words} {ours.name} ({ours.provider}), each at its cheapest on-demand list price.{otherwise}",
            [run.row for run in (ours, *better)],
        )


def _at_our_provider(evidence: Evidence, run: Run, ours: Run, *, cheaper: bool) -> str:
    """Return a sentence with the cost of a run at the provider of Trainium if that reverses the order, else an empty text."""
    costs = evidence.catalogue.costs.get(run.row["result_id"], ())
    epochs = [
        cost["usd_per_epoch"]
        for cost in costs
        if cost["kind"] == BASIS_KIND and provider_name(cost["provider"]) == ours.provider and cost["usd_per_epoch"]
    ]
    if not epochs or not ours.usd or (min(epochs) < ours.usd) == cheaper:
        return ""
    return f" At {ours.provider} prices, an epoch on {run.name} costs {ratio(min(epochs) / ours.usd)} that on {ours.name}."


def _unequal(evidence: Evidence) -> Iterator[Sentence | None]:
    """Yield the training runs on Trainium and a GPU that are not the same work, as a check found."""
    findings = [
        finding for finding in evidence.catalogue.findings if finding["rule"] == "comparability" and "train_time_s" in finding["quantities"]
    ]
    usable = {row["result_id"]: row for row in evidence.results if row["task"] == "causal_lm"}
    for finding in findings:
        rows = [usable[record] for record in finding["record_ids"] if record in usable]
        timed = [row for row in rows if evidence.figure(row, "train_time_s") and evidence.named_cost(row)]
        if len(timed) < 2 or not any(row["accelerator"].startswith(TRAINIUM) for row in timed):  # noqa: PLR2004 - a pair
            continue
        parts = []
        for row in timed:
            cost = evidence.named_cost(row) or {}
            parts.append(
                f"{wording.seconds(row['train_time_s'])} and ${cost['usd_per_training']:.2f} on {wording.devices(row)} ({cost['instance']}, {row['steps']:,} steps)"
            )
        yield sentence(
            f"{timed[0]['model_name']}, {wording.method(timed[0])}, document {timed[0]['source']}: the training took {listed(parts)}. "
            "The training runs are not the same work, so these figures do not rank the devices.",
            timed,
        )


def _table(group: list[Run]) -> Table:
    row = group[0].row
    columns: list[Column[Run]] = [
        Column("Accelerator", lambda run: result_link(run.name, run.row)),
        Column("Time of an epoch", lambda run: tables.number(run.epoch_s, wording.seconds), numeric=True),
        Column(
            "Relative to Trainium",
            lambda run: tables.number(next(o for o in group if o.trainium).epoch_s / run.epoch_s, ratio),
            numeric=True,
            explained="Speed.",
        ),
        Column("Cost of an epoch", lambda run: tables.number(run.usd, lambda value: f"${value:.4f}"), numeric=True),
        Column("From", lambda run: tables.text(run.row["source"], href=document_path(run.row["source"]), small=run.row["section"] or "")),
    ]
    name = f"{row['model_name']}, {row['sequence_length']:,} tokens, micro-batch {row['micro_batch']}"
    return tables.table(name, columns, group, interactive=True, searchable=False)


def _chart(groups: list[list[Run]]) -> Chart | None:
    values = [
        {"label": run.name, "x": round(run.usd, 5), "series": f"{run.row['sequence_length']:,} tokens"}
        for group in groups[:1]
        for run in group
        if run.usd
    ]
    return bars("cost", "Cost of an epoch at on-demand list prices.", values, "cost of an epoch ($)", "Rows of")
