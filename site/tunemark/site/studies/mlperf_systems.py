"""MLPerf Llama 2 70B LoRA: time, cost and energy by system and round, ranked among systems with the same number of accelerators."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from tunemark.schema.formats import MINUTE_S
from tunemark.schema.records.converted import MLPERF_LABEL
from tunemark.site import tables, wording
from tunemark.site.charts import Chart
from tunemark.site.page import document_path
from tunemark.site.pages.studies import Evidence, Sentence, Study, gathered, listed, ratio, result_link, scatter, sentence, share, written
from tunemark.site.tables import Column, Row, Table

ORDER = 4
J_PER_KWH = 3.6e6
ONE_MACHINE = 8
"""Accelerators in one machine of most systems."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry with its rank among the entries of its round with the same number of accelerators."""

    row: Row
    round: str
    minutes: float
    cost_usd: float | None
    energy_kwh: float | None
    rank: int
    of: int

    @property
    def name(self) -> str:
        """Submitter and system."""
        return str(self.row["section"])


def study(evidence: Evidence) -> Study:
    """Return the study of the MLPerf systems."""
    entries = _entries(evidence)
    sentences = written([*_fastest(entries), *_progress(entries), *_cheapest(entries), *_scale(entries), *_energy(entries)])
    return Study(
        key="mlperf",
        title="MLPerf fine-tuning: time, cost and energy by system",
        question="Which system fine-tunes Llama 2 70B with LoRA to the target loss fastest, at what cost and with what energy?",
        sentences=sentences,
        tables=(_table(entries),) if entries else (),
        draw=(lambda: _chart(entries),),
        method=(
            f"{MLPERF_LABEL}.",
            "Time is the median over all runs of an entry until the eval loss reaches the target, without loading and compiling.",
            "The rank orders entries of one round with the same number of accelerators by time.",
            "Cost is the time multiplied by the cheapest on-demand list price, for whole instances.",
            "Energy is for one run and comes from the entries that measured power.",
        ),
        caveats=(
            "Submitters tune batch size, precision and parallelism freely, so a rank compares systems with their software, not accelerators alone.",
            "The cost is that of a rented instance with the same accelerators. The submitted systems were mostly owned, and a large rented cluster may not be available at the list price.",
            "A median of ten short runs has its own spread. Ranks next to each other often differ by less than it.",
            "Some power entries repeat the times of another entry of the same system. They are listed as submitted.",
        ),
    )


def _entries(evidence: Evidence) -> list[Entry]:
    rows = [row for row in evidence.results if row["trust"] == "converted" and row["source"].startswith(wording.MLPERF)]
    timed = [row for row in rows if evidence.figure(row, "time_to_target_s") and row["accelerator_name"] and row["accelerator_count"]]
    made = []
    for group in gathered(timed, lambda row: (row["source"], row["accelerator_count"])).values():
        times = sorted(row["time_to_target_s"] for row in group)
        for row in group:
            cost = evidence.catalogue.basis_costs.get(row["result_id"])
            energy = evidence.figure(row, "energy_per_run_j")
            made.append(
                Entry(
                    row=row,
                    round=row["source"].removeprefix(wording.MLPERF),
                    minutes=row["time_to_target_s"] / MINUTE_S,
                    cost_usd=cost["usd_per_training"] if cost else None,
                    energy_kwh=energy / J_PER_KWH if energy else None,
                    rank=1 + sum(time < row["time_to_target_s"] for time in times),
                    of=len(group),
                )
            )
    return sorted(made, key=lambda entry: (entry.minutes, entry.row["result_id"]))


def _minutes(value: float) -> str:
    return f"{value:.1f} min" if value >= 10 else f"{value:.2f} min"  # noqa: PLR2004 - three digits


def _entries_in(group: list[Entry]) -> str:
    return "1 entry" if len(group) == 1 else f"{len(group)} entries"


def _usd(value: float) -> str:
    return f"${value:,.2f}"


def _by_round(entries: list[Entry]) -> dict[str, list[Entry]]:
    return dict(sorted(gathered(entries, lambda entry: entry.round).items()))


def _fastest(entries: list[Entry]) -> Iterator[Sentence | None]:
    """Yield the fastest and the second fastest system with eight accelerators of each round."""
    for number, group in reversed(_by_round([entry for entry in entries if entry.row["accelerator_count"] == ONE_MACHINE]).items()):
        kinds = list({entry.row["accelerator_name"]: entry for entry in reversed(group)}.values())
        ordered = sorted(kinds, key=lambda entry: entry.minutes)
        if len(ordered) > 1:
            parts = [f"{_minutes(entry.minutes)} on {entry.row['accelerator_name']}" for entry in ordered]
            yield sentence(
                f"Round {number}, {ONE_MACHINE} accelerators, the fastest entry of each accelerator: {listed(parts)}.",
                [entry.row for entry in ordered],
            )


def _progress(entries: list[Entry]) -> Iterator[Sentence | None]:
    """Yield the change of the median time on the same accelerator and count between its first and its last round."""
    groups = gathered(entries, lambda entry: (entry.row["accelerator_name"], entry.row["accelerator_count"]))
    for (name, count), group in sorted(groups.items()):
        rounds = _by_round(group)
        if count == ONE_MACHINE and len(rounds) > 1:
            (first, before), *_, (last, after) = rounds.items()
            old, new = (median(entry.minutes for entry in part) for part in (before, after))
            yield sentence(
                f"{name}\N{NO-BREAK SPACE}\N{MULTIPLICATION SIGN}\N{NO-BREAK SPACE}{count}: the median time of all entries went from {_minutes(old)} in {first} ({_entries_in(before)}) "
                f"to {_minutes(new)} in {last} ({_entries_in(after)}), {ratio(old / new)} the speed.",
                [entry.row for entry in (*before, *after)],
            )


def _cheapest(entries: list[Entry]) -> Iterator[Sentence | None]:
    """Yield the cheapest accelerators of the last round."""
    rounds = _by_round([entry for entry in entries if entry.cost_usd and entry.row["accelerator_count"] == ONE_MACHINE])
    if not rounds:
        return
    number, group = list(rounds.items())[-1]
    best = {
        name: min(part, key=lambda entry: (entry.cost_usd or 0.0, entry.row["result_id"]))
        for name, part in gathered(group, lambda entry: entry.row["accelerator_name"]).items()
    }
    ordered = sorted(best.values(), key=lambda entry: entry.cost_usd or 0.0)
    if len(ordered) > 1:
        parts = [f"{_usd(entry.cost_usd or 0)} on {entry.row['accelerator_name']}" for entry in ordered]
        yield sentence(
            f"Round {number}, {ONE_MACHINE} accelerators, the cheapest training at on-demand list prices: {listed(parts)}.",
            [entry.row for entry in ordered],
        )


def _scale(entries: list[Entry]) -> Iterator[Sentence | None]:
    """Yield sentences that compare the largest system of a round with one machine that has the same accelerator."""
    groups = gathered(entries, lambda entry: (entry.round, entry.row["accelerator_name"]))
    for (number, name), group in sorted(groups.items()):
        ordered = sorted(group, key=lambda entry: (entry.row["accelerator_count"], entry.minutes))
        first, last = ordered[0], max(ordered, key=lambda entry: (entry.row["accelerator_count"], -entry.minutes))
        devices = last.row["accelerator_count"] / first.row["accelerator_count"]
        if first.row["accelerator_count"] == ONE_MACHINE and devices >= ONE_MACHINE:
            speed_up = first.minutes / last.minutes
            yield sentence(
                f"Round {number}, {name}: {_minutes(first.minutes)} on {first.row['accelerator_count']} and {_minutes(last.minutes)} on "
                f"{last.row['accelerator_count']:,}, {ratio(speed_up)} the speed with {devices:g} times the accelerators (efficiency {share(speed_up / devices)}).",
                [first.row, last.row],
            )


def _energy(entries: list[Entry]) -> Iterator[Sentence | None]:
    """Yield the energy of one training by number of accelerators."""
    measured = [entry for entry in entries if entry.energy_kwh]
    for count, group in sorted(gathered(measured, lambda entry: entry.row["accelerator_count"]).items()):
        ordered = sorted(group, key=lambda entry: entry.energy_kwh or 0.0)
        parts = [f"{entry.energy_kwh:.2f} kWh ({entry.row['accelerator_name']}, {entry.name}, {entry.round})" for entry in ordered]
        yield sentence(f"Energy of one training on {count} accelerators: {listed(parts)}.", [entry.row for entry in ordered])


def _table(entries: list[Entry]) -> Table:
    columns: list[Column[Entry]] = [
        Column("Submitter and system", lambda entry: result_link(entry.name, entry.row)),
        Column("Round", lambda entry: tables.text(entry.round, href=document_path(entry.row["source"]))),
        Column("Accelerator", lambda entry: tables.text(wording.devices(entry.row))),
        Column("Devices", lambda entry: tables.number(entry.row["accelerator_count"]), numeric=True),
        Column("Time (min)", lambda entry: tables.number(entry.minutes, lambda value: _minutes(value).removesuffix(" min")), numeric=True),
        Column(
            "Rank",
            lambda entry: tables.Cell(f"{entry.rank} of {entry.of}", sort=entry.rank),
            numeric=True,
            explained="By time, among the entries of the round with the same number of accelerators.",
        ),
        Column("Cost of a training run", lambda entry: tables.number(entry.cost_usd, _usd), numeric=True),
        Column("Energy (kWh)", lambda entry: tables.number(entry.energy_kwh, lambda value: f"{value:.2f}"), numeric=True),
    ]
    return tables.table("Entries", columns, entries, interactive=True, searchable=False)


def _chart(entries: list[Entry]) -> Chart | None:
    values = [
        {
            "x": round(entry.minutes, 3),
            "y": round(entry.cost_usd, 2),
            "series": entry.round,
            "line": entry.row["result_id"],
            "label": f"{entry.name}, {entry.row['accelerator_name']} ({entry.row['accelerator_count']})",
        }
        for entry in entries
        if entry.cost_usd
    ]
    return scatter("time-cost", "Cost of a training run over its time, one point per entry.", values, "time (min)", "cost ($)", "Round")
