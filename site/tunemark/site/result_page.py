"""The parts that all pages of results share: headlines, conditions, comparison, costs and recorded facts."""

from tunemark.schema.comparability import COMPARABILITY_KEYS
from tunemark.schema.quantities import QUANTITIES
from tunemark.site import tables, wording
from tunemark.site.page import Crumb, Fact, Page, Section, accelerator_path, model_path, prices_path, result_path
from tunemark.site.pages import audit
from tunemark.site.queries import Catalogue
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
RATES = ("tokens_per_s", "samples_per_s")
HEADLINES = (*RATES, "step_time_s", "peak_memory_bytes")
QUALITY = ("loss_start", "train_loss", "eval_loss", "accuracy")
TIMES = ("train_time_s", "epoch_time_s", "wall_s", "model_memory_bytes")
COSTS = {
    "usd_per_1k_samples": "cost_per_1k_samples_usd",
    "usd_per_1m_tokens": "cost_per_1m_tokens_usd",
    "usd_per_epoch": "cost_per_epoch_usd",
    "usd_per_training": "cost_training_usd",
    "usd_per_run": "cost_usd",
}


def result_page(catalogue: Catalogue, row: Row, template: str, crumbs: tuple[Crumb, ...], more: dict[str, object]) -> Page:
    """Return the page of a result: the context shared by all results, updated with `more`."""
    context = {
        "result": row,
        "headlines": _headlines(catalogue, row),
        "more_figures": _figures(row),
        "conditions": _conditions(catalogue, row),
        "comparison": _comparison(catalogue, row),
        "costs": _costs(catalogue, row),
        "trust": wording.trust(row),
        "trust_meaning": wording.trust_in_full(row),
        "findings": audit.findings_about(catalogue, row["result_id"]),
        "warnings": catalogue.warnings.get(row["result_id"], []),
        **more,
    }
    return Page(result_path(row["result_id"]), wording.result_title(row), template, context, crumbs, wide=False)


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
    names = [name for name in LABELS if row["source"] == "measured" or name not in MEASURED_ONLY]
    return [
        Fact(LABELS[name], _condition(row, name), reasons.get(name) or _printed(row, name), _condition_path(row, name)) for name in names
    ]


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
    if group is None:
        unknown = [wording.words(key) for key in COMPARABILITY_KEYS if row[key] is None]
        return f"Not ranked: {', '.join(unknown)} {'is' if len(unknown) == 1 else 'are'} not stated." if unknown else "Not ranked."
    peers = len(catalogue.results_where(comparability_group=group)) - 1
    ranked = "" if row["rankable"] else " This result is not ranked because its measurement does not meet the conditions."
    return f"{peers} other {'result agrees' if peers == 1 else 'results agree'} in every comparability key.{ranked}"


def _headlines(catalogue: Catalogue, row: Row) -> list[Fact]:
    facts = [Fact(QUANTITIES[key].label, _headline(row, key), _headline_note(catalogue, row, key)) for key in HEADLINES]
    cost = catalogue.basis_costs.get(row["result_id"])
    value = cost["usd_per_1k_samples"] if cost else None
    note = wording.offer(cost) if value is not None else "no price or no rate"
    return [*facts, Fact("Cost per 1k samples", QUANTITIES["cost_per_1k_samples_usd"].text(value), note)]


def _headline(row: Row, key: str) -> str:
    return wording.rate(row[key], row[f"{key}_low"], row[f"{key}_high"]) if key in RATES else QUANTITIES[key].text(row[key])


def _headline_note(catalogue: Catalogue, row: Row, key: str) -> str:
    """Return the note below a headline: its interval, spread, method, derivation, or the reason why it is unknown."""
    ambiguous = any(reading["quantity"] == key for reading in catalogue.readings.get(row["result_id"], ()))
    if row[key] is None:
        return "ambiguous: see the readings" if ambiguous else "unknown"
    derived = _reasons(catalogue, row, "derived").get(key)
    if derived:
        return f"derived: {derived}" + ("; the printed figure is ambiguous" if ambiguous else "")
    if ambiguous:
        return "ambiguous: see the readings"
    if key in RATES:
        interval = wording.interval(row[f"{key}_low"], row[f"{key}_high"])
        return f"95% interval {interval}" if interval else "no interval"
    return wording.plain(row["peak_memory_method"]) if key == "peak_memory_bytes" else _spread(row)


def _spread(row: Row) -> str:
    low, high, variation = row["step_time_p5_s"], row["step_time_p95_s"], row["step_time_cv"]
    if low is None or high is None:
        return "no spread"
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
    if not costs:
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
    return tables.table("Cost on each instance with this accelerator", columns, own_first, interactive=True, searchable=False)


def _cost_column(column: str, key: str) -> Column[Row]:
    return quantity_column(key, lambda cost: tables.quantity(key, cost[column]))


def _instance_cell(cost: Row, row: Row, *, on_basis: bool) -> Cell:
    own = "used for this run" if cost["instance"] == row["instance"] else ""
    default = "default basis" if on_basis else ""
    place = ", ".join(part for part in (cost["provider"], cost["region"], default, own) if part)
    return tables.text(f"{wording.instance_count(cost)}{cost['instance']}", small=place)
