"""Under which conditions a result was obtained, and which of them its source does not state itself."""

from tunemark.schema.comparability import COMPARABILITY_KEYS
from tunemark.schema.quantities import QUANTITIES
from tunemark.site import tables, wording
from tunemark.site.page import Crumb, Fact, Page, Section, accelerator_path, model_path, prices_path, result_path
from tunemark.site.pages import audit
from tunemark.site.queries import Catalogue, Row
from tunemark.site.tables import Cell, Column, Line, Table

LABELS = {
    "model": "Model",
    "method": "Method",
    "task": "Task",
    "accelerator": "Accelerator",
    "accelerator_count": "Accelerators used",
    "instance": "Instance",
    "backend": "Backend",
    "strategy": "Strategy",
    "dataset": "Data",
    "sequence_length": "Tokens in a row",
    "padding": "Padding",
    "packing": "Packing",
    "micro_batch": "Micro-batch",
    "gradient_accumulation": "Gradient accumulation",
    "global_batch": "Rows in an optimizer step",
    "precision": "Precision",
    "optimizer": "Optimizer",
    "step_definition": "Meaning of a step",
    "weights": "Weights",
    "parameters": "Parameters",
    "trainable_parameters": "Trained parameters",
    "steps": "Steps",
    "epochs": "Epochs",
}
MEASURED_ONLY = {"backend", "strategy", "weights"}


def conditions(catalogue: Catalogue, row: Row) -> list[Fact]:
    """Return the conditions of a result, a note with each that is not stated where the figure is."""
    reasons = {fact["name"]: fact["reason"] for fact in catalogue.facts.get(row["result_id"], ()) if fact["topic"] == "conditions"}
    names = [name for name in LABELS if row["source"] == "measured" or name not in MEASURED_ONLY]
    return [Fact(LABELS[name], _value(row, name), reasons.get(name) or _printed(row, name), href=_path(row, name)) for name in names]


def comparison(catalogue: Catalogue, row: Row) -> str:
    """Return with how many results this one compares, or what is unknown that keeps it from comparing."""
    group = row["comparability_group"]
    if group is None:
        unknown = [wording.words(key) for key in COMPARABILITY_KEYS if row[key] is None]
        return f"Not ranked against others: unknown here is {', '.join(unknown)}." if unknown else "Not ranked against others."
    peers = len(catalogue.results_where(comparability_group=group)) - 1
    allowed = "" if row["rankable"] else " It is not ranked itself, as its measurement does not meet the conditions for that."
    return f"{peers} other {'result agrees' if peers == 1 else 'results agree'} in every comparability key.{allowed}"


def _value(row: Row, name: str) -> str:
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


def _path(row: Row, name: str) -> str | None:
    paths = {"model": model_path, "accelerator": accelerator_path}
    return paths[name](row[name]) if name in paths and row[name] else None


# MOVE: was tunemark.site.pages.result: What the pages of all results have in common.

RATES = ("tokens_per_s", "samples_per_s")
HEADLINES = (*RATES, "step_time_s", "peak_memory_bytes")
QUALITY = ("loss_start", "train_loss", "eval_loss", "accuracy")
TIMES = ("train_time_s", "epoch_time_s", "wall_s", "model_memory_bytes")
COSTS = {
    "usd_per_1k_samples": "cost_per_1k_samples_usd",
    "usd_per_1m_tokens": "cost_per_1m_tokens_usd",
    "usd_per_epoch": "cost_per_epoch_usd",
    "usd_per_run": "cost_usd",
}


def result_page(catalogue: Catalogue, row: Row, template: str, crumbs: tuple[Crumb, ...], more: dict[str, object]) -> Page:
    """Return the page of a result: what all have in common, and more."""
    context = {
        "result": row,
        "headlines": _headlines(catalogue, row),
        "more_figures": _figures(row),
        "conditions": conditions(catalogue, row),
        "comparison": comparison(catalogue, row),
        "costs": _costs(catalogue, row),
        "trust": wording.trust(row),
        "trust_meaning": wording.trust_in_full(row),
        "findings": audit.told(catalogue, row["result_id"]),
        "doubts": catalogue.warnings.get(row["result_id"], []),
        **more,
    }
    return Page(result_path(row["result_id"]), wording.result_title(row), template, context, crumbs, wide=False)


def sections(catalogue: Catalogue, row: Row, titles: dict[str, str], *, leave_out: frozenset[str] = frozenset()) -> list[Section]:
    """Return the recorded facts of a result by topic, known topics first."""
    facts = [fact for fact in catalogue.facts.get(row["result_id"], ()) if fact["topic"] not in leave_out]
    topics = [*titles, *sorted({fact["topic"] for fact in facts} - set(titles))]
    made = (
        Section(titles.get(topic, topic.capitalize()), tuple(_fact(fact) for fact in facts if fact["topic"] == topic))
        for topic in topics
        if topic not in leave_out
    )
    return [section for section in made if section.facts]


def _fact(fact: Row) -> Fact:
    return Fact(
        wording.words(fact["name"]).replace(".", ", "), wording.recorded(fact["topic"], fact["name"], fact["value"]), fact["reason"] or ""
    )


def _headlines(catalogue: Catalogue, row: Row) -> list[Fact]:
    facts = [Fact(QUANTITIES[key].label, _shown(row, key), _below(catalogue, row, key)) for key in HEADLINES]
    cost = catalogue.cheapest.get(row["result_id"])
    value = cost["usd_per_1k_samples"] if cost else None
    said = wording.offer(cost) if value is not None else "no price or no rate"
    return [*facts, Fact("Cost per 1k samples", QUANTITIES["cost_per_1k_samples_usd"].text(value), said)]


def _shown(row: Row, key: str) -> str:
    return wording.rate(row[key], row[f"{key}_low"], row[f"{key}_high"]) if key in RATES else QUANTITIES[key].text(row[key])


def _below(catalogue: Catalogue, row: Row, key: str) -> str:
    """Return what must be read with a headline: its interval, spread, method, how it was derived, or why it is not known."""
    ambiguous = any(reading["quantity"] == key for reading in catalogue.readings.get(row["result_id"], ()))
    if row[key] is None:
        return "ambiguous: see the readings" if ambiguous else "unknown"
    derived = next(
        (fact["reason"] for fact in catalogue.facts.get(row["result_id"], ()) if fact["topic"] == "derived" and fact["name"] == key), None
    )
    if derived:
        return f"derived: {derived}" + ("; the printed figure is ambiguous" if ambiguous else "")
    if ambiguous:
        return "ambiguous: see the readings"
    if key in RATES:
        said = wording.interval(row[f"{key}_low"], row[f"{key}_high"])
        return f"95% interval {said}" if said else "no interval"
    return wording.plain(row["peak_memory_method"]) if key == "peak_memory_bytes" else _spread(row)


def _spread(row: Row) -> str:
    low, high, variation = row["step_time_p5_s"], row["step_time_p95_s"], row["step_time_cv"]
    if low is None or high is None:
        return "no spread"
    show = QUANTITIES["step_time_s"].text
    said = f"p5 {show(low)}, p95 {show(high)}"
    return said if variation is None else f"{said}, CV {variation:.1%}"


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
    """Return the standard error of a quality, and what follows from it; empty where there is none."""
    error = row.get(f"{key}_se")
    if error is None:
        return ""
    said = f"standard error {wording.standard_error(key, error)}"
    return f"{said} of {row['evaluation_rows']} rows; a difference within two standard errors is no difference"


def _costs(catalogue: Catalogue, row: Row) -> Table | None:
    costs = catalogue.costs.get(row["result_id"])
    if not costs:
        return None
    columns = [
        Column("Instance"),
        Column("Kind"),
        Column("USD/h", numeric=True),
        *(tables.head(key) for key in COSTS.values()),
        Column("Price of", tight=True),
    ]
    own_first = sorted(costs, key=lambda cost: cost["instance"] != row["instance"])
    return tables.table(
        "Cost on each instance with this accelerator",
        columns,
        (_cost_line(cost, row) for cost in own_first),
        interactive=True,
        searchable=False,
    )


def _cost_line(cost: Row, row: Row) -> Line:
    own = "the run was made on this" if cost["instance"] == row["instance"] else ""
    place = ", ".join(part for part in (cost["provider"], cost["region"], own) if part)
    many = f"{cost['instances']:.0f}{wording.TIMES}" if cost["instances"] is not None and cost["instances"] > 1 else ""
    name = f"{many}{cost['instance']}"
    cells = (
        Cell(name, small=place, sort=name.lower()),
        tables.text(wording.words(cost["kind"])),
        tables.quantity("price_usd_per_hour", cost["usd_per_hour"]),
        *(tables.quantity(key, cost[column]) for column, key in COSTS.items()),
        tables.text(cost["effective_on"], href=prices_path(row["accelerator"]), small=f"dated by the {cost['dated_by']}"),
    )
    return Line(cells)
