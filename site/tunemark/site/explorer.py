"""The data of the explorer: one row per result as columns in one JSON file, which assets/explorer.js filters and sorts.

Unknown values are null.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tunemark.schema.quantities import QUANTITIES
from tunemark.site.database import Database
from tunemark.site.render import compact_json
from tunemark.site.tables import Row
from tunemark.site.text import one_line

DATA_PATH = "data/explorer.json"
FORMAT = "tunemark.explorer/1"
DIGITS = 6
"""Significant digits of a figure in the file."""
ROWS = """
    with recorded as (
        select
            result_id,
            max(value) filter (name = 'framework' and value <> '') as framework,
            bool_or(topic = 'settings' and name = 'task' and value = 'pre-training steps') as pretraining
        from result_facts
        group by all
    )
    select
        r.result_id as id,
        -- Failed and impossible results stay below the others.
        (case when r.failed then 1 else 0 end | case when r.impossible then 2 else 0 end) as flags,
        -- Models below 20 million parameters only test the harness.
        case when r.failed then 'failed run' when r.impossible then 'impossible figure' when m.parameters < 20e6 or w.tier = 'smoke' then 'test of the harness'
            when f.pretraining then 'steps of pre-training' else 'fine-tuning' end as kind,
        nullif(array_to_string(list_filter(['tokens_per_s', 'samples_per_s', 'mfu', 'step_time_s', 'peak_memory_bytes'], lambda key: map_contains(reading, key)), ' '), '') as ambiguous,
        r.accelerator is null as no_card,
        r.accelerator_name as accelerator,
        r.accelerator_count as devices,
        r.model_name as model,
        method(r.method) as method,
        r.sequence_length as row_length, nullif(r.quantisation, 'none') || ' frozen weights' as quantisation,
        r.tokens_per_s,
        r.samples_per_s,
        r.model_flop_per_s / r.accelerator_count as model_flop_per_s_per_device,
        r.mfu,
        r.step_time_s,
        r.peak_memory_bytes,
        r.usd_per_1k_samples,
        r.usd_per_1m_tokens,
        r.time_to_target_s,
        r.trust_shown as trust,
        r.software_level,
        case when r.source = 'measured' then 'Tunemark harness' else f.framework end as framework,
        words(r.status) as status,
        case when r.source = 'measured' then left(r.started_on, 4) else s.published_on end as year,
        r.source
    from listed_results r
    left join recorded f using (result_id)
    left join models m using (model)
    left join workloads w on w.workload = r.workload
    left join sources s on s.source = r.source
    order by flags <> 0, coalesce(model_flop_per_s_per_device, 0) desc, coalesce(r.tokens_per_s, 0) desc, id
"""
VENDOR = re.compile(r"^(?:NVIDIA|AMD|Intel\(R\)|Intel)\s+", re.IGNORECASE)
COUNT = re.compile(r"^\d+ ?[x\N{MULTIPLICATION SIGN}] ?")
LIST = re.compile(r", | and ")
SEVERAL = "several accelerators"
NO_NAME = re.compile(r"[^a-z0-9]+")
YEAR = re.compile(r"(?<!\d)20\d\d(?!\d)")
Kind = Literal["text", "count", "rate", "percent", "bytes", "usd", "seconds", "flop_per_s"]


@dataclass(frozen=True, slots=True)
class Field:
    """A column of the explorer."""

    key: str
    label: str
    kind: Kind
    shown: bool = False
    """Shown unless the reader chooses other columns."""
    facet: bool = False
    """Offered as a filter with counts."""
    explained: str = ""


def _quantity(key: str, kind: Kind, registered: str | None = None, *, shown: bool = False) -> Field:
    quantity = QUANTITIES[registered or key]
    return Field(key, quantity.label, kind, shown=shown, explained=quantity.meaning)


FIELDS = (
    Field("accelerator", "Accelerator", "text", shown=True, facet=True, explained="Accelerator and device count; links to the result."),
    Field("devices", "Devices", "count", facet=True, explained="Number of accelerators of the run."),
    Field("model", "Model", "text", shown=True, facet=True),
    Field("method", "Method", "text", facet=True, explained="Fine-tuning method."),
    Field("row_length", "Sequence length", "count", facet=True, explained="Tokens of a row, padding included."),
    Field("quantisation", "Quantisation", "text", explained="Format of frozen weights of a measured run, if it is not bf16 or fp32."),
    _quantity("tokens_per_s", "rate", shown=True),
    _quantity("samples_per_s", "rate"),
    Field(
        "model_flop_per_s_per_device",
        "Model FLOP/s per device",
        "flop_per_s",
        shown=True,
        explained="Model FLOPs per second of one device, without recomputed FLOPs. It depends less on the model than tokens/s.",
    ),
    Field("mfu", "MFU", "percent", explained="Model FLOPs utilisation: without recomputed work."),
    _quantity("step_time_s", "seconds"),
    _quantity("peak_memory_bytes", "bytes", shown=True),
    _quantity("usd_per_1k_samples", "usd", "cost_per_1k_samples_usd"),
    _quantity("usd_per_1m_tokens", "usd", "cost_per_1m_tokens_usd", shown=True),
    Field("time_to_target_s", "Time to target", "seconds", explained="Time to the target loss of MLPerf or of the workload."),
    Field("trust", "Trust", "text", shown=True, facet=True, explained="The evidence behind the result."),
    Field(
        "software_level",
        "Software level",
        "text",
        facet=True,
        explained="How far the training loop is tuned: plain, tuned (fused kernels or compile) or vendor.",
    ),
    Field("framework", "Framework", "text", facet=True, explained="Training framework as stated by the source."),
    Field("kind", "Kind of run", "text", facet=True, explained="Fine-tuning; or why a result is not evidence about fine-tuning."),
    Field("status", "Status", "text", facet=True),
    Field("year", "Year", "text", facet=True, explained="Year of a measured run, else the year or years of the source."),
    Field("source", "Source", "text", facet=True, explained="The document or the MLPerf round, or a Tunemark run."),
)


def explorer_json(database: Database) -> str:
    """Return the explorer's file."""
    titles = {
        row["source"]: one_line(row["source_title"]) for row in database.rows("select distinct source, source_title from listed_results")
    }
    return compact_json(encoded(explorer_rows(database), titles))


def explorer_rows(database: Database) -> list[Row]:
    """Return one row per result with a value for each field, by model FLOP/s per device, highest first. Failed and impossible results are last."""
    rows = database.rows(ROWS)
    names: dict[str, Counter[str]] = {}
    for name in (printed_accelerator(row["accelerator"]) for row in rows if row["no_card"]):
        names.setdefault(normalised(name), Counter())[name] += 1
    for row in rows:
        row["year"] = years_of(row["year"])
        if row["no_card"]:
            row["accelerator"] = names[normalised(printed_accelerator(row["accelerator"]))].most_common(1)[0][0] or None
    return rows


def printed_accelerator(printed: str | None) -> str:
    """Return the printed name of an accelerator without a card, without its count; `several accelerators` for a list.

    >>> printed_accelerator("4x RTX 6000 Ada"), printed_accelerator("a100, Trn")
    ('RTX 6000 Ada', 'several accelerators')
    """
    name = COUNT.sub("", printed or "")
    return SEVERAL if LIST.search(name) else name


def normalised(name: str) -> str:
    """Return a printed name without vendor, case, spaces and punctuation: documents print one accelerator in several ways.

    >>> normalised("NVIDIA TITAN RTX") == normalised("Titan RTX")
    True
    """
    return NO_NAME.sub("", VENDOR.sub("", name).lower())


def years_of(published_on: str | None) -> str | None:
    """Return the year of a document's date as printed, `2024 to 2025` for a range, or None.

    >>> years_of("2024-05-13 to 2025-06-16 (first and last version)")
    '2024 to 2025'
    """
    years = sorted(YEAR.findall(published_on or ""))
    if not years:
        return None
    return years[0] if years[0] == years[-1] else f"{years[0]} to {years[-1]}"


def encoded(rows: Sequence[Row], titles: dict[str, str]) -> dict[str, Any]:
    """Return rows as columns. `titles` are the titles of sources, shown after their ids."""
    columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in ("id", "flags", "ambiguous")}
    for field in FIELDS:
        shown = one_line if field.kind == "text" else _rounded
        columns[field.key] = [None if row[field.key] is None else shown(row[field.key]) for row in rows]
    return {"format": FORMAT, "fields": [asdict(field) for field in FIELDS], "columns": columns, "titles": titles}


def _rounded(value: float) -> float:
    if isinstance(value, int):
        return value
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded
