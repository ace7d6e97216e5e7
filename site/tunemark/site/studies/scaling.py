"""One device compared with several: speed-up, efficiency and cost of each family that differs in its device count alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from tunemark.schema.formats import counted
from tunemark.site import tables, wording
from tunemark.site.charts import Chart
from tunemark.site.page import RATES, document_path
from tunemark.site.pages.studies import (
    Evidence,
    Sentence,
    Study,
    ambiguous_caveat,
    gathered,
    listed,
    ranges,
    ratio,
    reference_line,
    result_link,
    sentence,
    share,
    spread,
    written,
)
from tunemark.site.tables import Column, Row, Table

ORDER = 1
SAME = (
    *("source", "section", "method", "accelerator", "dataset", "sequence_length", "padding", "packing", "precision", "micro_batch"),
    *("optimizer", "attention", "strategy", "gradient_checkpointing", "fused_kernels", "compile", "weights", "software"),
)
"""Columns that are equal in a family, besides the model."""
NOT_OF_TIME = ("section", "strategy")
"""Columns that may differ where the work of a training run is known: a document may describe one device and several in two sections."""
TIMES_OF_RUN = ("train_time_s", "wall_s", "epoch_time_s")
SUPERLINEAR = 1.05
"""An efficiency above this cannot come from the device count alone."""
COUNTS = (2, 4, 8)
MOST_ON_CHART = 16
"""The chart ends at this number of devices."""


@dataclass(frozen=True, slots=True)
class Point:
    """A result of a family, compared with the result on the fewest devices."""

    model: str
    base: Row
    row: Row
    speed_up: float
    quantity: str

    @property
    def devices(self) -> float:
        """Device count as a multiple of that of the base."""
        return float(self.row["accelerator_count"] / self.base["accelerator_count"])

    @property
    def efficiency(self) -> float:
        """Speed-up divided by the ratio of the device counts."""
        return self.speed_up / self.devices


def study(evidence: Evidence) -> Study:
    """Return the study of one device compared with several."""
    points = list(speed_ups(evidence))
    sentences = written([*_of_time(evidence, points), *_printed(evidence, points), *_by_count(points), *_extremes(points)])
    return Study(
        key="scaling",
        title="One accelerator compared with several",
        question="How much faster is fine-tuning on several accelerators, and what does it cost?",
        sentences=sentences,
        tables=(_table(points),) if points else (),
        draw=(lambda: _chart(points), lambda: _efficiency_chart(points)),
        method=(
            "A group consists of results of one document with the same model, method, accelerator and stated conditions. Only the device count differs.",
            "Speed-up is the ratio of tokens/s or samples/s to the result on the fewest devices. Where a document prints only times of the same epochs on the same dataset, it is the ratio of times.",
            "Efficiency is the speed-up divided by the ratio of the device counts. Ranges in brackets go from the lowest to the highest family.",
            "A family in which several results have the same device count is left out, because its results must differ in a condition that no column states.",
        ),
        caveats=(
            f"An efficiency above {share(SUPERLINEAR)} is marked: another condition must differ as well, for example the sharding or the clock. Such points are not used in the findings.",
            "Most documents do not state the network between the machines.",
            "Loss curves are not drawn. Document 002 prints the curves of its two runs only as pictures, which could not be recovered, so the database contains only the first and the last loss of each run.",
            *ambiguous_caveat(evidence, sentences),
        ),
    )


def speed_ups(evidence: Evidence) -> Iterator[Point]:
    """Yield the results of each family, compared with the result on the fewest devices."""
    known = [
        row
        for row in evidence.results
        if row["accelerator"] and row["accelerator_count"] and evidence.model(row) and row["trust"] != "converted"
    ]
    for quantities, same in ((RATES, SAME), (TIMES_OF_RUN, [name for name in SAME if name not in NOT_OF_TIME])):
        families = gathered(known, lambda row, same=same: (evidence.model(row), *(row[name] for name in same)))  # type: ignore[misc]
        for members in families.values():
            yield from _family(evidence, members, quantities)


def _family(evidence: Evidence, members: list[Row], quantities: tuple[str, ...]) -> Iterator[Point]:
    """Yield the points of a family by the first quantity that compares them."""
    for quantity in quantities:
        rows = sorted((row for row in members if evidence.figure(row, quantity)), key=lambda row: row["accelerator_count"])
        counts = [row["accelerator_count"] for row in rows]
        if len(counts) <= 1 or len(set(counts)) < len(counts) or (quantities is TIMES_OF_RUN and not _same_work(rows)):
            continue
        first = evidence.figure(rows[0], quantity) or 1.0
        for row in rows[1:]:
            value = evidence.figure(row, quantity) or 1.0
            speed_up = first / value if quantities is TIMES_OF_RUN else value / first
            yield Point(evidence.model(row) or "", rows[0], row, speed_up, quantity)
        return


def _same_work(rows: list[Row]) -> bool:
    return all(row["epochs"] and row["dataset"] for row in rows) and len({(row["epochs"], row["dataset"]) for row in rows}) == 1


def _of_time(evidence: Evidence, points: list[Point]) -> Iterator[Sentence | None]:
    """Yield the sentences about pairs of whole training runs: time, cost, loss."""
    for point in points:
        if point.quantity not in TIMES_OF_RUN or point.efficiency > SUPERLINEAR:
            continue
        rows, base, row = (point.base, point.row), point.base, point.row
        times = [evidence.figure(each, point.quantity) or 0.0 for each in rows]
        yield sentence(
            f"{point.model}, {evidence.method(row)}, {base['epochs']:g} epoch{'s' * (base['epochs'] != 1)}: {wording.seconds(times[0])} on {wording.devices(base)} and "
            f"{wording.seconds(times[1])} on {wording.devices(row)}, a speed-up of {ratio(point.speed_up)} and an efficiency of {share(point.efficiency)}.",
            rows,
        )
        costs = [evidence.named_cost(each) for each in rows]
        if costs[0] and costs[1] and costs[0]["usd_per_run"] and costs[1]["usd_per_run"]:
            first, second = costs[0]["usd_per_run"], costs[1]["usd_per_run"]
            yield sentence(
                f"The same training runs cost ${first:,.2f} on {costs[0]['instance']} and ${second:,.2f} on {costs[1]['instance']} "
                f"(on demand, {costs[0]['effective_on']}): {ratio(second / first)} the cost for {ratio(point.speed_up)} the speed.",
                rows,
            )
        losses = [evidence.figure(each, "train_loss") for each in rows]
        starts = [evidence.figure(each, "loss_start") for each in rows]
        if all(losses) and all(starts):
            yield sentence(
                f"The training loss of these two runs went from {starts[0]:g} to {losses[0]:g} and from {starts[1]:g} to {losses[1]:g}. "
                "Equal epochs did not give equal losses.",
                rows,
            )


def _printed(evidence: Evidence, points: list[Point]) -> Iterator[Sentence | None]:
    """Yield the comparison of recomputed efficiencies with the printed ones."""
    claimed = [point for point in points if evidence.figure(point.row, "scaling_efficiency")]
    for family in gathered(claimed, lambda point: point.base["result_id"]).values():
        base = family[0].base
        parts = [f"{point.row['accelerator_count']} devices {ratio(point.speed_up)} ({share(point.efficiency)})" for point in family]
        printed = [f"{evidence.figure(point.row, 'scaling_efficiency'):g}" for point in family]
        yield sentence(
            f"{family[0].model}, {wording.method(base)} on {base['accelerator_name']}: the rates of document {base['source']} give these speed-ups over {counted(base['accelerator_count'], 'device')}, "
            f"with the efficiency in brackets: {listed(parts)}. The document prints efficiencies of {listed(printed)}.",
            [base, *(point.row for point in family)],
        )


def _by_count(points: list[Point]) -> Iterator[Sentence | None]:
    """Yield the efficiency at 2, 4 and 8 devices over all families that begin with one device, and over machines."""
    usable = [point for point in points if point.efficiency <= SUPERLINEAR]
    for count in COUNTS:
        chosen = [point for point in usable if point.base["accelerator_count"] == 1 and point.row["accelerator_count"] == count]
        if not chosen:
            continue
        yield sentence(
            f"From 1 to {count} accelerators the median efficiency is {spread([point.efficiency for point in chosen], share)}, "
            f"from {_families(chosen)}.",
            _rows(chosen),
        )
    machines = [point for point in usable if point.base["accelerator_count"] >= COUNTS[-1]]
    if machines:
        yield sentence(
            f"Where the smallest configuration has {COUNTS[-1]} or more accelerators, the median efficiency of larger ones is "
            f"{spread([point.efficiency for point in machines], share)}, from {_families(machines)}.",
            _rows(machines),
        )


def _families(points: list[Point]) -> str:
    families = len({point.base["result_id"] for point in points})
    documents = len({point.base["source"] for point in points})
    return f"{families} group{'s' * (families > 1)} of otherwise equal results in {documents} document{'s' * (documents > 1)}"


def _rows(points: list[Point]) -> list[Row]:
    return [row for point in points for row in (point.base, point.row)]


def _extremes(points: list[Point]) -> Iterator[Sentence | None]:
    """Yield the worst and the best family of those that reach eight devices from one."""
    chosen = [
        point
        for point in points
        if point.base["accelerator_count"] == 1 and point.row["accelerator_count"] == COUNTS[-1] and point.efficiency <= SUPERLINEAR
    ]
    if len(chosen) > 1:
        worst, best = (pick(chosen, key=lambda point: point.efficiency) for pick in (min, max))
        yield sentence(
            f"At {COUNTS[-1]} accelerators {best.model} on {best.row['accelerator_name']} has the highest efficiency, {share(best.efficiency)}, "
            f"in document {best.row['source']}, and {worst.model} on {worst.row['accelerator_name']} the lowest, {share(worst.efficiency)}, in document {worst.row['source']}.",
            _rows([best, worst]),
        )
        groups = gathered(chosen, lambda point: point.row["accelerator_name"])
        medians = {name: median(point.efficiency for point in group) for name, group in groups.items() if len(group) > 1}
        if len(medians) > 1:
            parts = [f"{share(value)} on {name}" for name, value in sorted(medians.items(), key=lambda item: -item[1])]
            yield sentence(
                f"The median efficiency at {COUNTS[-1]} accelerators is {listed(parts)}.",
                _rows([point for point in chosen if point.row["accelerator_name"] in medians]),
            )


def _table(points: list[Point]) -> Table:
    columns: list[Column[Point]] = [
        Column("Accelerator", lambda point: result_link(wording.devices(point.row), point.row)),
        Column("Compared with", lambda point: result_link(wording.devices(point.base), point.base)),
        Column("Model", lambda point: tables.text(point.model, small=wording.method(point.row))),
        Column("Speed-up", lambda point: tables.number(point.speed_up, ratio), numeric=True),
        Column(
            "Efficiency",
            lambda point: tables.Cell(
                share(point.efficiency), sort=point.efficiency, mark="conditions differ" if point.efficiency > SUPERLINEAR else ""
            ),
            numeric=True,
        ),
        Column(
            "Source",
            lambda point: tables.text(point.row["source"], href=document_path(point.row["source"]), small=point.row["section"] or ""),
        ),
    ]
    return tables.table("Speed-ups", columns, points, last=lambda point: point.efficiency > SUPERLINEAR, interactive=True, searchable=False)


def _chart(points: list[Point]) -> Chart | None:
    chosen = [point for point in points if point.base["accelerator_count"] == 1 and point.efficiency <= SUPERLINEAR]
    values = [
        {
            "x": row["accelerator_count"],
            "y": speed_up,
            "line": point.base["result_id"],
            "label": f"{point.model}, {point.row['accelerator_name']}, document {point.row['source']}",
        }
        for point in chosen
        for row, speed_up in ((point.base, 1.0), (point.row, point.speed_up))
        if row["accelerator_count"] <= MOST_ON_CHART
    ]
    unique = list({(value["line"], value["x"]): value for value in values}.values())
    caption = "Speed-up by number of accelerators, one line per family that begins with one. The dashed line is linear scaling."
    return reference_line("speed-up", caption, unique, "accelerators", "speed-up")


def _efficiency_chart(points: list[Point]) -> Chart | None:
    """Return the median efficiency at 2, 4 and 8 devices by accelerator, with the range."""
    chosen = [
        point
        for point in points
        if point.base["accelerator_count"] == 1 and point.row["accelerator_count"] in COUNTS and point.efficiency <= SUPERLINEAR
    ]
    found = gathered(chosen, lambda point: (point.row["accelerator_name"], point.row["accelerator_count"]))
    values = [
        {
            "label": name,
            "x": median(point.efficiency for point in group),
            "low": min(point.efficiency for point in group),
            "high": max(point.efficiency for point in group),
            "series": f"{count} accelerators",
        }
        for (name, count), group in sorted(found.items())
    ]
    caption = "Median efficiency by accelerator and their number; a line goes from the lowest to the highest group of results. The dashed line is linear scaling."
    return ranges("efficiency", caption, values, "efficiency", "Number", scale="linear")
