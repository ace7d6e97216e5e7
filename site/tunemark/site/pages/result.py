"""What the pages of all results have in common."""

from tunemark.schema.quantities import QUANTITIES
from tunemark.site import tables, wording
from tunemark.site.page import Crumb, Fact, Page, Section, prices_path, result_path
from tunemark.site.pages import findings
from tunemark.site.pages.conditions import comparison, conditions
from tunemark.site.queries import Catalogue, Row
from tunemark.site.tables import Cell, Column, Line, Table

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
        "findings": findings.told(catalogue, row["result_id"]),
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
