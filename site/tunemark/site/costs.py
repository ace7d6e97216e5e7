"""The data from which assets/cost.js computes costs on the price basis that a reader chooses: all prices, and the results with their rates.

The rule by which an offer is chosen is translated from Python (script.py). See definitions#cost.
"""

from tunemark.schema.recommendation import provider_name
from tunemark.site import wording
from tunemark.site.database import Database
from tunemark.site.recommend_data import columnar
from tunemark.site.render import compact_json

DATA_PATH = "data/cost.json"
DIGITS = 7
"""Significant digits of the rates in the data file."""
PRICES = """
    select accelerator, provider, provider_rank as rank, instance, region, kind, accelerator_count, usd_per_hour, effective_on, fabric is not null as fabric
    from listed_prices order by price desc
"""
RATES = (
    "samples_per_s",
    "samples_per_s_low",
    "samples_per_s_high",
    "tokens_per_s",
    "tokens_per_s_low",
    "tokens_per_s_high",
    "epoch_time_s",
    "train_time_s",
    "wall_s",
)
RESULTS = f"""
    select result_id, accelerator, accelerator_count as devices, coalesce(nullif(accelerator_units, 0), accelerator_count) as units, coalesce(nodes, 1) as nodes, model_name, method,
        sequence_length, trust, trust_shown as trust_label, {", ".join(RATES)}
    from listed_results
    where not last and accelerator is not null and units > 0 and coalesce({", ".join(RATES)}) is not null
    order by result_id
"""  # noqa: S608 - our own names
NAMES = "select accelerator, name from accelerators order by vendor, name, accelerator"


def cost_json(database: Database) -> str:
    """Return the data as JSON."""
    results = [{name: _rounded(value) if name in RATES else value for name, value in row.items()} for row in database.rows(RESULTS)]
    used, prices = {row["accelerator"] for row in results}, database.rows(PRICES)
    data = {
        "as_of": database.rows("select cast(max(as_of) as varchar) as day from collection")[0]["day"],
        "accelerators": {row["accelerator"]: row["name"] for row in database.rows(NAMES) if row["accelerator"] in used},
        "methods": wording.METHODS,
        "providers": {row["provider"]: provider_name(row["provider"]) for row in prices},
        "prices": columnar(prices),
        "results": columnar(results),
    }
    return compact_json(data)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")
