"""What the page of a result shows beside its rows: its headlines with their meaning, its verdicts, and how comparable results differ.

The page itself is pages/result.md.j2; its parts for measured, converted and published results are in templates/.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tunemark.schema.comparability import COMPARABILITY_KEYS, configuration
from tunemark.schema.formats import GIB, percent
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.recommendation import provider_name
from tunemark.site import wording
from tunemark.site.charts import Chart, loss_chart, loss_of_runs, step_time_chart
from tunemark.site.database import Database, grouped
from tunemark.site.page import RATES, Fact
from tunemark.site.tables import Row
from tunemark.site.wording import CONDITIONS

HEADLINES = (*RATES, "mfu", "peak_memory_bytes", "cost", "step_time_s", "train_time_s")
"""Figures at the top of a page. `cost` is the cost of tokens or of samples."""
FIGURES = ("epoch_time_s", "wall_s", "model_memory_bytes", "loss_start", "train_loss", "eval_loss", "accuracy")
OF_ENTRIES = ("step_time_s", "eval_loss", "energy_per_run_j", "energy_per_sample_j")
"""Further figures of an MLPerf entry."""
COSTS = {"usd_per_1m_tokens": "cost_per_1m_tokens_usd", "usd_per_1k_samples": "cost_per_1k_samples_usd"}
"""Cost of a headline, the first that is known -> quantity."""
MOST_DIFFERENCES, MOST_TITLES = 3, 2
NOT_COMPARED = frozenset({"model", "method", "accelerator", "accelerator_count", "steps", "epochs", "parameters", "trainable_parameters"})
"""Conditions that comparable results share, or that do not change a rate."""
MEDIAN = "median of all runs; a run that missed the target counts as longer than any other"
SCORE = "mean without the fastest and the slowest run, times the scaling factor of the entry; a run that misses the target counts as the slowest"
CARDS = "select accelerator, memory_gib from accelerators where memory_gib is not null"
CHEAPEST = "select * from costs where kind = 'on_demand' and usd_per_1m_tokens is not null or usd_per_1k_samples is not null order by provider, instance"
STEPS = "select step, label, step_time_s, loss from steps where result_id = ? order by step"
CURVES = "select run, samples, seconds, eval_loss from run_curves where result_id = ? order by run, evaluation"


@dataclass(frozen=True, slots=True)
class VerdictLine:
    """All findings of one verdict in a line that links to them."""

    verdict: str
    text: str
    anchor: str
    """Heading of the page that lists them."""


@dataclass(frozen=True)
class ResultPages:
    """Functions that the page of a result uses by name. Rows are those of `listed_results` and of the page's queries."""

    database: Database

    @cached_property
    def results(self) -> dict[str, Row]:
        """All results by id."""
        return {row["result_id"]: row for row in self.database.rows("from listed_results")}

    @cached_property
    def memory_gib(self) -> dict[str, float]:
        """Memory of each accelerator that states it."""
        return {row["accelerator"]: row["memory_gib"] for row in self.database.rows(CARDS)}

    @cached_property
    def cheapest(self) -> dict[str, list[Row]]:
        """The on-demand costs of each result."""
        return grouped(self.database.rows(CHEAPEST), lambda row: str(row["result_id"]))

    @cached_property
    def runs_by_configuration(self) -> dict[str | None, list[Row]]:
        """Finished measured results by configuration, with any version of the software, oldest first."""
        finished = [row for row in self.results.values() if row["source"] == "measured" and not row["failed"]]
        finished.sort(key=lambda row: (row["started_us"] or 0, row["result_id"]))
        return grouped(finished, lambda row: configuration(row, any_software=True))

    def functions(self) -> dict[str, object]:
        """Return the functions by their names in templates."""
        return {
            "headlines": self.headlines,
            "unknown": self.unknown,
            "verdict_lines": verdict_lines,
            "more_figures": more_figures,
            "rate_beside": rate_beside,
            "conditions": conditions,
            "not_stated": not_stated,
            "differences_from": self.differences_from,
            "history": self.history,
            "entry_headlines": self.entry_headlines,
            "step_charts": self.step_charts,
            "run_charts": self.run_charts,
            "result_summary": wording.summary,
            "comparison": comparison,
        }

    def headlines(self, row: Row, facts: Sequence[Row], findings: Sequence[Row], keys: Iterable[str] = HEADLINES) -> list[Fact]:
        """Return the known figures of a result, each with one sentence about its meaning."""
        reasons = {fact["name"]: fact["reason"] for fact in facts if fact["topic"] == "derived"}
        made = (self._cost(row) if key == "cost" else self._headline(row, key, reasons, findings) for key in keys)
        return [fact for fact in made if fact]

    def unknown(self, shown: Sequence[Fact]) -> str:
        """Return a sentence that lists the headline figures without a value; empty if all are known."""
        names = {fact.name for fact in shown}
        missing = [wording.in_sentence(QUANTITIES[key].label) for key in HEADLINES if key != "cost" and QUANTITIES[key].label not in names]
        cost = [] if any(QUANTITIES[key].label in names for key in COSTS.values()) else ["cost"]
        return f"Unknown: {', '.join([*missing, *cost])}." if missing or cost else ""

    def _headline(self, row: Row, key: str, reasons: Mapping[str, str | None], findings: Sequence[Row]) -> Fact | None:
        label, value, readings = QUANTITIES[key].label, row[key], row["reading"].get(key)
        if value is None:
            return Fact(label, readings, "The document does not define it: see the readings.") if readings else None
        shown = wording.rate(value, row[f"{key}_low"], row[f"{key}_high"]) if key in RATES else QUANTITIES[key].text(value)
        derived = reasons.get(key) or ""  # of a measured MFU the peaks: fp8 has another one than bf16
        derived = derived if row["source"] != "measured" else derived.partition(": ")[2] if key == "mfu" else ""
        marks = (each["verdict"] for each in findings if key in (each["quantities"] or each["conditions"]) and _marks(each))
        verdict = next(marks, None)
        parts = (
            f"The audit calls this figure {verdict}." if verdict else "",
            self._meaning(row, key, value),
            f"Derived: {derived}." if derived else _certainty(row, key),
            "The printed figure is ambiguous." if readings else "",
        )
        return Fact(label, shown, " ".join(part for part in parts if part))

    def _meaning(self, row: Row, key: str, value: float) -> str:
        """Return the meaning of a figure for this result, in a sentence."""
        count = row["accelerator_count"]
        if key == "tokens_per_s":
            each = f", {wording.rate(value / count)} per device" if count and count > 1 else ""
            return f"1M tokens take {wording.seconds(1e6 / value)}{each}."
        if key == "samples_per_s":
            return f"1,000 samples take {wording.seconds(1e3 / value)}."
        if key == "mfu":
            return "Model arithmetic as a share of the dense peak of the accelerator."
        if key == "peak_memory_bytes":
            memory = self.memory_gib.get(row["accelerator"])
            share = f", {percent(value / (memory * GIB))} of its {memory:g} GiB" if memory else ""
            return f"Highest memory of one device{share}."
        if key == "step_time_s":
            rows = row["global_batch"] if row["step_definition"] == "optimizer_step" else None
            return f"One optimizer step of {rows:,} rows." if rows else "One step."
        return f"{QUANTITIES[key].meaning.partition('. ')[0].rstrip('.')}."

    def _cost(self, row: Row) -> Fact | None:
        # Costs follow from the rate: of an impossible or unfinished result they mean nothing.
        column = next((column for column in COSTS if row[column] is not None), None)
        if column is None or row["last"]:
            return None
        quantity = QUANTITIES[COSTS[column]]
        note = f"On the default price basis: {row['offer']}."
        offers = [each for each in self.cheapest.get(row["result_id"], ()) if each["kind"] == "on_demand" and each[column] is not None]
        first = min(offers, key=lambda each: (each[column], each["provider"], each["instance"]), default=None)
        if first and first[column] < row[column]:
            note += f" Cheapest on-demand offer: {quantity.text(first[column])} at {provider_name(first['provider'])}."
        return Fact(quantity.label, quantity.text(row[column]), note)

    def differences_from(self, row: Row, other: str) -> str:
        """Return the known conditions of another result that differ."""
        peer = self.results[other]
        names = [
            name for name in CONDITIONS if name not in NOT_COMPARED and None not in (row[name], peer[name]) and row[name] != peer[name]
        ]
        shown = [f"{CONDITIONS[name].lower()} {condition_text(peer, name)}" for name in names[:MOST_DIFFERENCES]]
        more = len(names) - MOST_DIFFERENCES
        return ("; ".join(shown) + (f"; {more} more" if more > 0 else "")) or "none"

    def history(self, row: Row) -> list[Row]:
        """Return the runs of the same configuration with any version of the software, oldest first; none for a single run."""
        name = (
            configuration(self.results[row["result_id"]], any_software=True) if row["source"] == "measured" and not row["failed"] else None
        )
        runs = self.runs_by_configuration[name] if name is not None else []
        made, before = [], None
        for run in runs if len(runs) > 1 else []:
            here, rate = run["result_id"] == row["result_id"], run["tokens_per_s"]
            place = {"measured_on": wording.moment(run["started_us"]), "measured_on_small": "this result" if here else run["result_id"]}
            made.append(
                run
                | place
                | {
                    "measured_on_href": None if here else f"results/{run['result_id']}",
                    "harness_version_small": (run["harness_commit"] or "")[:7],
                }
                | {"change": rate / before - 1 if rate and before else None}
            )
            before = rate
        return made

    def entry_headlines(self, entry: Row, facts: Sequence[Row], findings: Sequence[Row]) -> list[Fact]:
        """Return the figures of an MLPerf entry."""
        low, high = entry["samples_per_s_low"], entry["samples_per_s_high"]
        rates = wording.interval(low, high)
        sample = "samples as counted in the logs"
        if entry["packing"] and entry["sequence_length"] is not None:
            sample = f"a sample is a packed row of {entry['sequence_length']:,} tokens"
        interval = entry["time_interval"]
        certainty = f"interval of at least 95%, by order statistics, {interval}" if interval else "too few runs for an interval"
        spread = f"95% interval over the runs {rates}" if rates else "no interval"
        return [
            Fact("Time to target", wording.seconds(entry["time_to_target_s"]), f"{MEDIAN}; {certainty}"),
            Fact("MLPerf score", wording.seconds(entry["mlperf_score_s"]), SCORE),
            Fact("Samples/s", wording.rate(entry["samples_per_s"], low, high), f"{sample}; while training; {spread}"),
            *self.headlines(entry, facts, findings, ("mfu", "cost")),
            Fact(
                "Accelerators",
                wording.plain(entry["accelerator_count"]),
                f"{wording.plain(entry['accelerator_name'])}, {entry['on_machines']}",
            ),
            Fact("Runs at the target", entry["reached_shown"] or "none", "runs of the entry with a time to target"),
        ]

    def step_charts(self, result_id: str) -> list[Chart]:
        """Return the charts of step time and loss of a measured result."""
        steps = self.database.rows(STEPS, result_id)
        return [chart for chart in ((step_time_chart(steps), loss_chart(steps)) if steps else ()) if chart]

    def run_charts(self, entry: Row, runs: Sequence[Row]) -> list[Chart]:
        """Return the chart of eval loss over time of all runs of an entry."""
        reached = {run["run"] for run in runs if run["time_to_target_s"] is not None}
        chart = loss_of_runs(self.database.rows(CURVES, entry["result_id"]), reached, entry["target"])
        return [chart] if chart else []


def _marks(finding: Row) -> bool:
    """Return True if a finding marks a figure: impossible, or suspicious by itself."""
    return bool(finding["verdict"] == "impossible" or (finding["verdict"] == "suspicious" and finding["is_first"]))


def _certainty(row: Row, key: str) -> str:
    """Return the interval, spread or method of a figure; empty if there is none."""
    if key in RATES:
        interval = wording.interval(row[f"{key}_low"], row[f"{key}_high"])
        return f"95% interval {interval}." if interval else ""
    if key == "peak_memory_bytes":
        return f"Method: {row['peak_memory_method']}." if row["peak_memory_method"] else ""
    if key != "step_time_s" or row["step_time_p5_s"] is None:
        return ""
    show, variation = QUANTITIES["step_time_s"].text, row["step_time_cv"]
    spread = f"p5 {show(row['step_time_p5_s'])}, p95 {show(row['step_time_p95_s'])}"
    return f"{spread}." if variation is None else f"{spread}, CV {variation:.1%}."


def verdict_lines(row: Row, findings: Sequence[Row]) -> list[VerdictLine]:
    """Return a line for each verdict on a result, worst first."""
    lines = []
    readings = _labels(row["reading"])
    for verdict in wording.VERDICTS:
        about = [(each, _labels(each["quantities"]) if verdict == "impossible" else "") for each in findings if each["verdict"] == verdict]
        titles = list(dict.fromkeys(f"{each['title']}{f' ({names})' if names else ''}" for each, names in about))
        more = len(titles) - MOST_TITLES
        parts = [*titles[:MOST_TITLES], *([f"{more} more"] if more > 0 else [])]
        if verdict == "ambiguous" and readings:
            parts.append(f"several readings of {readings}")
        if parts:
            lines.append(VerdictLine(verdict, wording.sentence("; ".join(parts)), "audit-findings" if titles else "readings"))
    return lines


def _labels(quantities: Iterable[str]) -> str:
    """Return the labels of quantities in running text."""
    return ", ".join(wording.in_sentence(QUANTITIES[name].label) if name in QUANTITIES else wording.words(name) for name in quantities)


def conditions(row: Row, facts: Sequence[Row]) -> list[Fact]:
    """Return the conditions of a result, with a note on each that its source does not state itself."""
    reasons = {fact["name"]: fact["reason"] for fact in facts if fact["topic"] == "conditions"}
    printed = row["accelerator_printed"]
    if printed and printed != row["accelerator_name"]:
        reasons["accelerator"] = reasons.get("accelerator") or f"printed: {printed}"
    paths = {"model": "models", "accelerator": "accelerators"}
    return [
        Fact(CONDITIONS[name], condition_text(row, name), reasons.get(name) or "", f"{paths[name]}/{row[name]}" if name in paths else None)
        for name in _conditions_of(row)
        if row[name] is not None
    ]


def _conditions_of(row: Row) -> list[str]:
    return [name for name in CONDITIONS if row["source"] == "measured" or name not in {"backend", "strategy", "weights", "quantisation"}]


def not_stated(row: Row) -> str:
    """Return a sentence that lists the unknown conditions; empty if all are known."""
    names = [CONDITIONS[name].lower() for name in _conditions_of(row) if row[name] is None]
    return f"Not {'recorded' if row['source'] == 'measured' else 'stated'}: {', '.join(names)}." if names else ""


def condition_text(row: Row, name: str) -> str:
    """Return a condition of a result as text."""
    if name == "method":
        return wording.method(row)
    if name == "task":
        return wording.TASKS.get(row["task"], wording.plain(row["task"]))
    if name == "step_definition":
        return wording.words(row[name])
    return wording.plain(row[{"model": "model_name", "accelerator": "accelerator_name"}.get(name, name)])


def rate_beside(row: Row, peers: Sequence[Row]) -> str:
    """Return the rate by which a result is compared with others: one that it has, then one that more of them have."""
    return max(RATES, key=lambda key: (row[key] is not None, sum(peer[key] is not None for peer in peers), key == RATES[0]))


def more_figures(row: Row, facts: Sequence[Row]) -> list[Fact]:
    """Return the figures that are not headlines."""
    if row["trust"] == "converted":
        reasons = {fact["name"]: fact["reason"] or "" for fact in facts if fact["topic"] == "derived"}
        return [
            Fact(QUANTITIES[key].label, QUANTITIES[key].text(row[key]), reasons.get(key, "")) for key in OF_ENTRIES if row[key] is not None
        ]
    shown = [Fact(QUANTITIES[key].label, QUANTITIES[key].text(row[key]), _error(row, key)) for key in FIGURES if row[key] is not None]
    if row["evaluation_rows"] is not None:
        shown.append(Fact("Evaluation rows", wording.plain(row["evaluation_rows"])))
    if row["padding_efficiency"] is not None:
        shown.append(Fact("Padding efficiency", f"{row['padding_efficiency']:.1%}", "real tokens as a share of slots"))
    return shown


def _error(row: Row, key: str) -> str:
    """Return the standard error of a quality figure in words; empty if there is none."""
    error = row.get(f"{key}_se")
    if error is None:
        return ""
    shown = wording.standard_error(key, error)
    return f"standard error {shown} of {row['evaluation_rows']} rows; differences below two standard errors are not significant"


def comparison(row: Row, members: int) -> str:
    """Return a sentence with the number of comparable results, or the unknown conditions that prevent a comparison."""
    if row["impossible"]:
        return "Not ranked: the audit finds a figure or a condition of this result impossible."
    if row["comparability_group"] is None:
        unknown = [wording.words(key) for key in COMPARABILITY_KEYS if row[key] is None]
        return f"Not ranked: {', '.join(unknown)} {'is' if len(unknown) == 1 else 'are'} not stated." if unknown else "Not ranked."
    peers = members - 1
    ranked = "" if row["rankable"] else " This result is not ranked because its measurement does not meet the conditions."
    return f"{peers or 'No'} other {'result agrees' if peers <= 1 else 'results agree'} in every comparability key.{ranked}"
