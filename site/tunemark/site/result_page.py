"""The parts that all pages of results share: headlines, conditions, comparison, costs and recorded facts."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tunemark.schema.comparability import COMPARABILITY_KEYS, configuration
from tunemark.schema.formats import GIB, percent
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.recommendation import provider_name
from tunemark.site import reproduce, tables, wording
from tunemark.site.page import RATES, Crumb, Fact, Page, Section, accelerator_path, model_path, prices_path, result_path
from tunemark.site.pages import audit, rerun
from tunemark.site.queries import BASIS_KIND, SETTING, Catalogue
from tunemark.site.tables import Cell, Column, Row, Table, quantity_column, text_column

LABELS = {
    "model": "Model",
    "method": "Method",
    "task": "Task",
    "accelerator": "Accelerator",
    "accelerator_count": "Device count",
    "instance": "Instance",
    "backend": "Backend",
    "strategy": "Strategy",
    "dataset": "Dataset",
    "sequence_length": "Sequence length",
    "padding": "Padding",
    "packing": "Packing",
    "micro_batch": "Micro-batch",
    "gradient_accumulation": "Gradient accumulation",
    "global_batch": "Global batch",
    "precision": "Precision",
    "optimizer": "Optimizer",
    "step_definition": "Meaning of a step",
    "weights": "Weights",
    "parameters": "Parameters",
    "trainable_parameters": "Trainable parameters",
    "steps": "Steps",
    "epochs": "Epochs",
}
MEASURED_ONLY = {"backend", "strategy", "weights"}
HEADLINES = (*RATES, "mfu", "peak_memory_bytes", "cost", "step_time_s", "train_time_s")
"""Figures at the top of a page. `cost` is the cost of tokens or of samples."""
QUALITY = ("loss_start", "train_loss", "eval_loss", "accuracy")
TIMES = ("epoch_time_s", "wall_s", "model_memory_bytes")
COSTS = {
    "usd_per_1k_samples": "cost_per_1k_samples_usd",
    "usd_per_1m_tokens": "cost_per_1m_tokens_usd",
    "usd_per_epoch": "cost_per_epoch_usd",
    "usd_per_training": "cost_training_usd",
    "usd_per_run": "cost_usd",
}
HEADLINE_COSTS = ("usd_per_1m_tokens", "usd_per_1k_samples")
MOST_COMPARED, MOST_DIFFERENCES, MOST_TITLES, MOST_OFFERS = 10, 3, 2, 12
NOT_COMPARED = frozenset({"model", "method", "accelerator", "accelerator_count", "steps", "epochs", "parameters", "trainable_parameters"})
"""Conditions that comparable results share, or that do not change a rate."""
COMPARE = "compare"
"""Path of the page that compares results, whose ids follow `#`."""
MILLION, THOUSAND = 1e6, 1e3


@dataclass(frozen=True, slots=True)
class VerdictLine:
    """All findings of one verdict in a line that links to them."""

    verdict: str
    text: str
    anchor: str
    """Heading of the page that lists them."""


def result_page(catalogue: Catalogue, row: Row, template: str, crumbs: tuple[Crumb, ...], more: Callable[[], dict[str, object]]) -> Page:
    """Return the page of a result: the context shared by all results, updated with what `more` returns."""
    context = _context(catalogue, row) | more()
    return Page(result_path(row["result_id"]), wording.result_title(row), template, context, crumbs, wide=False)


def _context(catalogue: Catalogue, row: Row) -> dict[str, object]:
    return {
        "result": row,
        "headlines": headlines(catalogue, row, HEADLINES),
        "unknown": _unknown(catalogue, row),
        "verdicts": _verdicts(catalogue, row),
        "more_figures": _figures(row),
        "conditions": _conditions(catalogue, row),
        "not_stated": _not_stated(row),
        "comparison": _comparison(catalogue, row),
        "comparable": _comparable(catalogue, row),
        "history": _history(catalogue, row),
        "software": "; ".join(age.text for age in rerun.ages(catalogue, row)),
        "reproduction": reproduce.of_measured(catalogue, row) if row["source"] == "measured" else reproduce.of_published(catalogue, row),
        "cost_note": "",
        "downloads": reproduce.downloads(row),
        "citations": reproduce.citations(catalogue, row),
        "costs": _costs(catalogue, row),
        "more_offers": 0 if row["impossible"] else max(0, len(catalogue.costs.get(row["result_id"], ())) - MOST_OFFERS),
        "prices": prices_path(row["accelerator"]) if row["accelerator"] else None,
        "trust": wording.trust(row),
        "trust_meaning": wording.trust_in_full(row),
        "findings": audit.findings_about(catalogue, row["result_id"]),
        "warnings": catalogue.warnings.get(row["result_id"], []),
    }


def sections(catalogue: Catalogue, row: Row, titles: dict[str, str], *, leave_out: frozenset[str] = frozenset()) -> list[Section]:
    """Return the recorded facts of a result by topic, titled topics first."""
    facts = [fact for fact in catalogue.facts.get(row["result_id"], ()) if fact["topic"] not in leave_out]
    topics = [*titles, *sorted({fact["topic"] for fact in facts} - set(titles))]
    made = (
        Section(titles.get(topic, topic.capitalize()), tuple(_recorded(fact) for fact in facts if fact["topic"] == topic))
        for topic in topics
    )
    return [section for section in made if section.facts]


def _recorded(fact: Row) -> Fact:
    name = wording.words(fact["name"]).replace(".", ", ")
    return Fact(name, wording.recorded(fact["topic"], fact["name"], fact["value"]), fact["reason"] or "")


def _reasons(catalogue: Catalogue, row: Row, topic: str) -> dict[str, str]:
    return {fact["name"]: fact["reason"] for fact in catalogue.facts.get(row["result_id"], ()) if fact["topic"] == topic}


def _conditions(catalogue: Catalogue, row: Row) -> list[Fact]:
    """Return the conditions of a result, with a note on each that its source does not state itself."""
    reasons = _reasons(catalogue, row, "conditions")
    return [
        Fact(LABELS[name], _condition(row, name), reasons.get(name) or _printed(row, name), _condition_path(row, name))
        for name in _conditions_of(row)
        if row[name] is not None
    ]


def _conditions_of(row: Row) -> list[str]:
    return [name for name in LABELS if row["source"] == "measured" or name not in MEASURED_ONLY]


def _not_stated(row: Row) -> str:
    """Return a sentence that lists the unknown conditions; empty if all are known."""
    names = [LABELS[name].lower() for name in _conditions_of(row) if row[name] is None]
    return f"Not {'recorded' if row['source'] == 'measured' else 'stated'}: {', '.join(names)}." if names else ""


def _condition(row: Row, name: str) -> str:
    if name == "method":
        return wording.method(row)
    if name == "task":
        return wording.TASKS.get(row["task"], wording.plain(row["task"]))
    if name == "step_definition":
        return wording.words(row[name])
    return wording.plain(row[{"model": "model_name", "accelerator": "accelerator_name"}.get(name, name)])


def _printed(row: Row, name: str) -> str:
    printed = row["accelerator_printed"]
    return f"printed: {printed}" if name == "accelerator" and printed and printed != row["accelerator_name"] else ""


def _condition_path(row: Row, name: str) -> str | None:
    paths = {"model": model_path, "accelerator": accelerator_path}
    return paths[name](row[name]) if name in paths and row[name] else None


def _comparison(catalogue: Catalogue, row: Row) -> str:
    """Return a sentence with the number of comparable results, or the unknown conditions that prevent a comparison."""
    group = row["comparability_group"]
    if row["impossible"]:
        return "Not ranked: the audit finds a figure or a condition of this result impossible."
    if group is None:
        unknown = [wording.words(key) for key in COMPARABILITY_KEYS if row[key] is None]
        return f"Not ranked: {', '.join(unknown)} {'is' if len(unknown) == 1 else 'are'} not stated." if unknown else "Not ranked."
    peers = catalogue.group_sizes[group] - 1
    ranked = "" if row["rankable"] else " This result is not ranked because its measurement does not meet the conditions."
    return f"{peers or 'No'} other {'result agrees' if peers <= 1 else 'results agree'} in every comparability key.{ranked}"


def headlines(catalogue: Catalogue, row: Row, keys: Sequence[str]) -> list[Fact]:
    """Return the known figures of a result, each with one sentence about its meaning."""
    made = (_cost_headline(catalogue, row) if key == "cost" else _headline(catalogue, row, key) for key in keys)
    return [fact for fact in made if fact]


def _headline(catalogue: Catalogue, row: Row, key: str) -> Fact | None:
    readings = [reading for reading in catalogue.readings.get(row["result_id"], ()) if reading["quantity"] == key]
    label, value = QUANTITIES[key].label, row[key]
    if value is None:
        values = dict.fromkeys(QUANTITIES[key].text(reading["value"]) for reading in readings)
        return Fact(label, " or ".join(values), "The document does not define it: see the readings.") if readings else None
    shown = wording.rate(value, row[f"{key}_low"], row[f"{key}_high"]) if key in RATES else QUANTITIES[key].text(value)
    derived = _reasons(catalogue, row, "derived").get(key)
    derivation = f"Derived: {derived}." if derived and row["source"] != "measured" else ""
    ambiguous = "The printed figure is ambiguous." if readings else ""
    verdict = catalogue.marked_cells.get((row["result_id"], key))
    marked = f"The audit calls this figure {verdict}." if verdict else ""
    parts = (marked, _meaning(catalogue, row, key, value), _certainty(row, key) if not derivation else "", derivation, ambiguous)
    return Fact(label, shown, " ".join(part for part in parts if part))


def _meaning(catalogue: Catalogue, row: Row, key: str, value: float) -> str:
    """Return the meaning of a figure for this result, in a sentence."""
    count = row["accelerator_count"]
    if key == "tokens_per_s":
        each = f", {wording.rate(value / count)} per device" if count and count > 1 else ""
        return f"1M tokens take {wording.seconds(MILLION / value)}{each}."
    if key == "samples_per_s":
        return f"1,000 samples take {wording.seconds(THOUSAND / value)}."
    if key == "mfu":
        return "Model arithmetic as a share of the dense peak of the accelerator."
    if key == "peak_memory_bytes":
        card = next((card for card in catalogue.accelerators if card["accelerator"] == row["accelerator"]), None)
        share = f", {percent(value / (card['memory_gib'] * GIB))} of its {card['memory_gib']:g} GiB" if card and card["memory_gib"] else ""
        return f"Highest memory of one device{share}."
    if key == "step_time_s":
        rows = row["global_batch"]
        return f"One optimizer step of {rows:,} rows." if rows and row["step_definition"] == "optimizer_step" else "One step."
    return f"{QUANTITIES[key].meaning.partition('. ')[0].rstrip('.')}."


def _certainty(row: Row, key: str) -> str:
    """Return the interval, spread or method of a figure; empty if there is none."""
    if key in RATES:
        interval = wording.interval(row[f"{key}_low"], row[f"{key}_high"])
        return f"95% interval {interval}." if interval else ""
    if key == "peak_memory_bytes":
        return f"{wording.sentence(row['peak_memory_method'])}." if row["peak_memory_method"] else ""
    return f"{_spread(row)}." if key == "step_time_s" and row["step_time_p5_s"] is not None else ""


def _cost_headline(catalogue: Catalogue, row: Row) -> Fact | None:
    # Costs follow from the rate: of an impossible result they mean nothing.
    cost = None if row["impossible"] else catalogue.basis_costs.get(row["result_id"])
    column = next((column for column in HEADLINE_COSTS if cost and cost[column] is not None), None)
    if cost is None or column is None:
        return None
    quantity = QUANTITIES[COSTS[column]]
    note = f"On the default price basis: {wording.offer(cost)}."
    offers = (each for each in catalogue.costs.get(row["result_id"], ()) if each["kind"] == BASIS_KIND and each[column] is not None)
    cheapest = min(offers, key=lambda each: (each[column], each["provider"], each["instance"]), default=cost)
    if cheapest[column] < cost[column]:
        note += f" Cheapest on-demand offer: {quantity.text(cheapest[column])} at {provider_name(cheapest['provider'])}."
    return Fact(quantity.label, quantity.text(cost[column]), note)


def _unknown(catalogue: Catalogue, row: Row) -> str:
    """Return a sentence that lists the headline figures without a value; empty if all are known."""
    shown = {fact.name for fact in headlines(catalogue, row, HEADLINES)}
    labels = (QUANTITIES[key].label for key in HEADLINES if key != "cost")
    names = [wording.in_sentence(label) for label in labels if label not in shown]
    cost = [] if _cost_headline(catalogue, row) else ["cost"]
    return f"Unknown: {', '.join([*names, *cost])}." if names or cost else ""


def _verdicts(catalogue: Catalogue, row: Row) -> list[VerdictLine]:
    """Return a line for each verdict on a result, worst first."""
    record, titles = row["result_id"], dict[str, list[str]]()
    for finding in catalogue.findings_about.get(record, ()):
        about = _labels(finding["quantities"]) if finding["verdict"] == "impossible" else ""
        titles.setdefault(finding["verdict"], []).append(f"{finding['title']}{f' ({about})' if about else ''}")
    readings = _labels(dict.fromkeys(reading["quantity"] for reading in catalogue.readings.get(record, ())))
    lines = []
    for verdict in audit.VERDICTS:
        unique = list(dict.fromkeys(titles.get(verdict, ())))
        more = len(unique) - MOST_TITLES
        parts = [*unique[:MOST_TITLES], *([f"{more} more"] if more > 0 else [])]
        anchor = "audit-findings" if unique else "readings"
        if verdict == "ambiguous" and readings:
            parts.append(f"several readings of {readings}")
        if parts:
            lines.append(VerdictLine(verdict, wording.sentence("; ".join(parts)), anchor))
    return lines


def _labels(quantities: Iterable[str]) -> str:
    """Return the labels of quantities in running text."""
    return ", ".join(wording.in_sentence(QUANTITIES[name].label) if name in QUANTITIES else wording.words(name) for name in quantities)


def _comparable(catalogue: Catalogue, row: Row) -> Table | None:
    """Return comparable results with their rates: of the same comparability group, else of the same model, method and devices."""
    peers = _peers(catalogue, row)
    if not peers:
        return None
    key = max(RATES, key=lambda key: (row[key] is not None, sum(peer[key] is not None for peer in peers), key == RATES[0]))
    own = row[key]

    def ratio(peer: Row) -> Cell:
        known = own and peer[key] is not None
        return tables.number(peer[key] / own if known else None, QUANTITIES["relative_speed"].text)

    def result(peer: Row) -> Cell:
        origin = peer["source_title"] if peer["source"] != "measured" else f"measured on {wording.day(peer['started_us'])}"
        return tables.text(peer["result_id"], href=result_path(peer["result_id"]), small=f"{wording.devices(peer)}, {origin}")

    columns: list[Column[Row]] = [
        Column("Result", result),
        quantity_column(key, lambda peer: Cell(wording.rate(peer[key]), small=wording.interval(peer[f"{key}_low"], peer[f"{key}_high"]))),
        *([Column("Ratio to this", ratio, numeric=True, explained="Its rate over the rate of this page's result.")] if own else []),
        Column(
            "Different ranking conditions",
            lambda peer: tables.text(_different(row, peer) or "none"),
            explained="Of the conditions that decide whether results are ranked together. The comparison lists all others.",
        ),
        Column("Side by side", lambda peer: tables.text("compare", href=f"{COMPARE}#{row['result_id']},{peer['result_id']}")),
    ]
    return tables.table("Comparable results", columns, peers, searchable=False, stacked=True)


def _peers(catalogue: Catalogue, row: Row) -> list[Row]:
    """Return at most `MOST_COMPARED` finished results with a rate, those with the same conditions first."""
    group, setting = row["comparability_group"], tuple(row[name] for name in SETTING)
    rows = catalogue.finished_by_group.get(group, []) if group is not None else []
    if row["source"] != "measured" and None not in setting:
        rows = [*rows, *catalogue.finished_by_setting.get(setting, [])]
    unique = {peer["result_id"]: peer for peer in rows if peer["result_id"] != row["result_id"]}
    rated = [peer for peer in unique.values() if any(peer[key] is not None for key in RATES)]
    nearest = sorted(rated, key=lambda peer: (peer["comparability_group"] != group, _distance(row, peer), peer["result_id"]))
    return nearest[:MOST_COMPARED]


def _distance(row: Row, peer: Row) -> tuple[int, int]:
    length = row["sequence_length"] is None or row["sequence_length"] != peer["sequence_length"]
    return int(length), sum(row[name] != peer[name] for name in COMPARABILITY_KEYS)


def _different(row: Row, peer: Row) -> str:
    """Return the known conditions of another result that differ."""
    names = [name for name in LABELS if name not in NOT_COMPARED and None not in (row[name], peer[name]) and row[name] != peer[name]]
    shown = [f"{LABELS[name].lower()} {_condition(peer, name)}" for name in names[:MOST_DIFFERENCES]]
    more = len(names) - MOST_DIFFERENCES
    return "; ".join(shown) + (f"; {more} more" if more > 0 else "")


def _history(catalogue: Catalogue, row: Row) -> Table | None:
    """Return the runs of the same configuration with any version of the software, oldest first; None for a single run."""
    name = configuration(row, any_software=True) if row["source"] == "measured" and not row["failed"] else None
    runs = catalogue.runs_by_configuration[name] if name is not None else []
    rates = [run["tokens_per_s"] for run in runs]
    before = {run["result_id"]: rate for run, rate in zip(runs[1:], rates, strict=False)}

    def change(run: Row) -> Cell:
        last, rate = before.get(run["result_id"]), run["tokens_per_s"]
        return tables.number(rate / last - 1 if rate and last else None, lambda share: f"{share:+.1%}")

    def version(run: Row) -> Cell:
        return tables.text(run["harness_version"], small=(run["harness_commit"] or "")[:7])

    columns: list[Column[Row]] = [
        Column("Measured", lambda run: _run_cell(run, row)),
        Column("Harness", version),
        Column("torch", lambda run: tables.text(catalogue.packages.get(run["result_id"], {}).get("torch"))),
        quantity_column("tokens_per_s", lambda run: Cell(wording.rate(run["tokens_per_s"]), sort=run["tokens_per_s"])),
        Column("Change", change, numeric=True, explained="From the run before."),
    ]
    return tables.table("Runs of this configuration", columns, runs, searchable=False) if len(runs) > 1 else None


def _run_cell(run: Row, row: Row) -> Cell:
    here = run["result_id"] == row["result_id"]
    small = "this result" if here else run["result_id"]
    return tables.text(wording.moment(run["started_us"]), href=None if here else result_path(run["result_id"]), small=small)


def _spread(row: Row) -> str:
    low, high, variation = row["step_time_p5_s"], row["step_time_p95_s"], row["step_time_cv"]
    show = QUANTITIES["step_time_s"].text
    spread = f"p5 {show(low)}, p95 {show(high)}"
    return spread if variation is None else f"{spread}, CV {variation:.1%}"


def _figures(row: Row) -> list[Fact]:
    shown = [
        Fact(QUANTITIES[key].label, QUANTITIES[key].text(row[key]), _error(row, key)) for key in (*TIMES, *QUALITY) if row[key] is not None
    ]
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


def _costs(catalogue: Catalogue, row: Row) -> Table | None:
    costs = catalogue.costs.get(row["result_id"])
    if not costs or row["impossible"]:
        return None
    basis = catalogue.basis_costs.get(row["result_id"], {}).get("price")
    columns: list[Column[Row]] = [
        Column("Instance", lambda cost: _instance_cell(cost, row, on_basis=cost["price"] == basis)),
        text_column("Kind", "kind", wording.words),
        Column("USD/h", lambda cost: tables.quantity("price_usd_per_hour", cost["usd_per_hour"]), numeric=True),
        *(_cost_column(column, key) for column, key in COSTS.items()),
        Column(
            "Price of",
            lambda cost: tables.text(cost["effective_on"], href=prices_path(row["accelerator"]), small=f"dated by the {cost['dated_by']}"),
            tight=True,
        ),
    ]
    own_first = sorted(costs, key=lambda cost: (cost["price"] != basis, cost["instance"] != row["instance"]))
    return tables.table("Cost on instances with this accelerator", columns, own_first[:MOST_OFFERS], interactive=True, searchable=False)


def _cost_column(column: str, key: str) -> Column[Row]:
    return quantity_column(key, lambda cost: tables.quantity(key, cost[column]))


def _instance_cell(cost: Row, row: Row, *, on_basis: bool) -> Cell:
    own = "used for this run" if cost["instance"] == row["instance"] else ""
    default = "default basis" if on_basis else ""
    place = ", ".join(part for part in (provider_name(cost["provider"]), cost["region"], default, own) if part)
    return tables.text(f"{wording.instance_count(cost)}{cost['instance']}", small=place)
