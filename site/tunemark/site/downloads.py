"""The data as files: relations of the database with their columns, as Parquet, CSV and DuckDB.

A relation and its columns are declared once, here and in the comments of the database. Parquet, CSV, DuckDB, the JSON of the API,
its schemas and the field tables all use the same names. Parquet and CSV files are byte-identical for identical databases. The
DuckDB file is built from the Parquet files and is not byte-identical.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache
from pathlib import Path

import duckdb

from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.safe_text import is_formula
from tunemark.site.queries import Database
from tunemark.site.render import one_line
from tunemark.site.tables import Row

FOLDER = "data"
DUCKDB_FILE = f"{FOLDER}/tunemark.duckdb"
STORAGE = "v1.4.0"
"""Storage format of the DuckDB file, named after the oldest DuckDB that reads it. DuckDB for browsers reads it too."""
COSTS = (
    *("usd_per_hour", "usd_per_1k_samples", "usd_per_1k_samples_low", "usd_per_1k_samples_high"),
    *("usd_per_1m_tokens", "usd_per_1m_tokens_low", "usd_per_1m_tokens_high", "usd_per_epoch", "usd_per_training", "usd_per_run"),
)
"""Columns of a cost that a result has too."""
OFFER = ("price", "provider", "instance", "region", "kind", "effective_on", "instances")
"""Columns of an offer that a result has too, with the prefix `price_`."""
RESULTS = f"""
    select
        r.* replace (r.started_at at time zone 'UTC' as started_at),
        {", ".join(f"c.{name} as {name if name == 'price' else f'price_{name}'}" for name in OFFER)},
        {", ".join(f"c.{name}" for name in COSTS)}
    from results r left join basis_costs c using (result_id)
"""  # noqa: S608 - our own names
OPTION_RATES = "select * replace ([each.result_id for each in disputed] as disputed) from option_rates"
"""The public tables have lists of ids only; the rates of disputed results are in the table of results."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A published table."""

    name: str
    contents: str
    """One sentence."""
    query: str = ""
    """The rows; by default all of the table or view with this name."""
    key: str = ""
    """Column that is unique and never null; empty if no single column is."""
    described_by: tuple[str, ...] = ()
    """Tables and views whose comments describe the columns; by default its own."""
    main: bool = False
    """Also published as CSV and in the API."""

    @property
    def sql(self) -> str:
        """The query of all rows."""
        return self.query or f"select * from {self.name}"  # noqa: S608 - our own names

    def path(self, ending: str) -> str:
        """Return the path of its file with an ending."""
        return f"{FOLDER}/{self.name}.{ending}"


RELATIONS = (
    Relation(
        "results",
        "All results: conditions, figures, utilisation, and the cost on the default price basis.",
        RESULTS,
        "result_id",
        ("results", "result_rows", "costs"),
        main=True,
    ),
    Relation("accelerators", "Accelerators: memory, bandwidth, dense peaks, and their sources.", key="accelerator", main=True),
    Relation("models", "Models: parameters and shapes.", key="model", main=True),
    Relation("workloads", "The standard benchmarks.", key="workload", main=True),
    Relation("prices", "The price book: hourly prices of instances, each with its date and source.", key="price", main=True),
    Relation("findings", "Findings of the audit with their calculations.", key="finding", main=True),
    Relation("sources", "Documents and MLPerf rounds that results come from.", key="source", main=True),
    Relation("costs", "The cost of each result on each current offer with enough accelerators."),
    Relation("option_rates", "Rates for recommendations, by model, method, row length, software and accelerator.", OPTION_RATES),
    Relation("claims", "Figures of results and statements exactly as printed."),
    Relation("readings", "All readings of each ambiguous figure."),
    Relation("result_facts", "Further facts of each result, such as its plan, packages and conditions."),
    Relation("configurations", "Repeats of measured results, pooled.", key="configuration"),
    Relation("steps", "Raw steps of measured results."),
    Relation("runs", "The runs of each MLPerf entry."),
    Relation("run_curves", "Evaluations of the runs of each MLPerf entry."),
    Relation("audit_rules", "The rules of the audit.", key="rule"),
)
MAIN = tuple(relation for relation in RELATIONS if relation.main)
OWN_MEANINGS = {
    "model_name": "Name of the model.",
    "accelerator_name": "Name of the accelerator, or the name that the document prints.",
    "source_title": "Title of the source.",
    "failed": "True if the run did not finish.",
    "impossible": "True if the audit refutes the rate, the time or a condition of comparison. Such results are never ranked.",
    "findings": "Number of findings of the audit.",
    "ambiguous": "True if a figure has several readings.",
    "price": "Price that the cost columns use, a key of `prices`; null if no offer fits.",
    "price_provider": "Provider of that offer.",
    "price_instance": "Instance of that offer.",
    "price_region": "Region of that offer.",
    "price_kind": "Kind of price; the default basis is the cheapest on-demand list price.",
    "price_effective_on": "Day on which the price is known to apply.",
    "price_instances": "Number of instances that the result needs.",
    "usd_per_hour": "Hourly price of all instances of the result, or of the whole instance in `prices`.",
    "usd_per_1k_samples": "Cost of 1,000 samples.",
    "usd_per_1m_tokens": "Cost of a million tokens.",
    "usd_per_epoch": "Cost of one pass over the data.",
    "task": "What is trained, such as causal_lm.",
    "method": "Fine-tuning method: full | lora | qlora | peft.",
    "dataset": "Dataset or token source.",
    "sequence_length": "Tokens per row, including padding.",
    "padding": "How rows are padded.",
    "packing": "True if several documents share a row.",
    "global_batch": "Rows per optimizer step, over all devices.",
    "precision": "Number format of the matrix products.",
    "fp8": "Which matrices of the blocks multiply in fp8: `frozen weights`, or torchao's recipe for trained ones; `none` if none do.",
    "optimizer": "Optimizer as stated or used.",
    "instance": "Instance of a cloud provider.",
    "micro_batch": "Rows per forward and backward pass on one device.",
    "gradient_accumulation": "Micro-steps per optimizer step.",
    "step_time_p5_s": "5th percentile of the step times in the steady window.",
    "step_time_p95_s": "95th percentile of the step times in the steady window.",
    "step_time_cv": "Coefficient of variation of the step times in the steady window.",
    "padding_efficiency": "Real tokens as a share of all slots in a batch.",
    "peak_memory_method": "How the peak memory was measured.",
    "time_to_target_high_s": "Upper end of the interval.",
    "evaluation_rows": "Rows evaluated.",
    "steady_steps": "Steps in the steady window.",
    "steady_verdict": "Reason why there is or is not a steady window.",
    "fused_kernels": "Fused kernels that the run used.",
    "compile": "What is compiled with torch.compile.",
    "gradient_checkpointing": "What is recomputed in the backward pass.",
    "energy_window_s": "Duration over which the energy was measured.",
    "harness_version": "Version of the Tunemark harness.",
    "harness_commit": "Commit of the Tunemark harness.",
    "note": "Remarks about the result.",
    "aliases": "Other names.",
    "provider": "Company that rents out the instance.",
    "region": "Region of the provider; null if the price has none.",
    "effective_on": "Day on which the price is known to apply.",
    "notes": "Remarks.",
    "result_id": "Key of the result.",
    "model": "Key of the model.",
    "accelerator": "Key of the accelerator.",
    "workload": "Key of the workload.",
    "rule": "Key of the audit rule.",
    "title": "Title.",
    "accelerator_count": "Accelerators in the instance; a fraction if the provider sells one.",
    "provider_rank": "Place of the provider in the list of the default price basis, from 1; null if it is not part of it.",
    "kind": "Kind of price: on_demand | spot | reserved | marketplace.",
    "dated_by": "provider: date of a price list; catalog: version of a catalogue; inferred: from price lists around it.",
    "fabric": "Network for training between several instances; null if none is known.",
    "devices": "Number of devices.",
    "usd_per_1m_samples": "Cost of a million samples.",
    "accelerators.name": "Display name.",
    "accelerators.vendor": "Vendor.",
    "accelerators.architecture": "Generation.",
    "accelerators.memory_gib": "Memory in GiB.",
    "accelerators.memory_bandwidth_gb_s": "Memory bandwidth in GB/s.",
    "accelerators.memory_bus_bits": "Width of the memory bus in bits.",
    "accelerators.peak_clock_mhz": "Clock of the compute units for which the peaks are given, MHz.",
    "accelerators.peak_fp16_tflops": "Dense peak in fp16, TFLOP/s.",
    "accelerators.peak_tf32_tflops": "Dense peak in tf32, TFLOP/s.",
    "accelerators.peak_fp32_tflops": "Dense peak in fp32, TFLOP/s.",
    "accelerators.peak_fp8_tflops": "Dense peak in fp8, TFLOP/s.",
    "accelerators.peak_int8_tops": "Dense peak in int8, TOP/s.",
    "accelerators.interconnect_gb_s": "Bandwidth to its peers in GB/s, both directions together.",
    "accelerators.launch_year": "Year of launch.",
    "accelerators.msrp_usd": "List price at launch in US dollars.",
    "accelerators.source": "Source of these facts.",
    "models.name": "Display name.",
    "models.family": "Architecture name in transformers.",
    "models.hidden_size": "Width of the residual stream.",
    "models.intermediate_size": "Width of the feed-forward layer.",
    "models.layers": "Number of blocks.",
    "models.attention_heads": "Query heads.",
    "models.key_value_heads": "Key and value heads.",
    "models.head_dim": "Width of a head.",
    "models.vocabulary": "Rows of the embedding.",
    "models.context_length": "Maximum sequence length.",
    "models.experts": "Number of experts in a mixture; null for dense models.",
    "models.active_experts": "Experts per token; null for dense models.",
    "models.hub_id": "Repository on the model hub.",
    "models.gated": "True if a licence must be accepted before download.",
    "models.source": "Source of these facts.",
    "workloads.description": "Purpose of the workload.",
    "workloads.tier": "Size of machine that the workload needs.",
    "workloads.source": "Source of the configuration.",
    "workloads.learning_rate": "Learning rate of the optimizer.",
    "workloads.attention": "Attention implementation; auto is varlen for packed documents where supported, otherwise sdpa.",
    "workloads.offload": "What is kept in host memory between uses.",
    "workloads.tensor_parallel": "Devices that share each layer.",
    "workloads.pipeline_parallel": "Devices that share the layers of the model in stages.",
    "prices.vcpus": "Virtual CPUs of the instance.",
    "prices.memory_gib": "Host memory of the instance in GiB.",
    "prices.source": "Source of the price.",
    "sources.authors": "Authors.",
    "sources.published_on": "Date of publication; null if it is unknown.",
    "sources.url": "Address of the source.",
    "sources.origin_repository": "Repository with the code of the source, with its commit.",
    "sources.summary": "Contents in one sentence.",
    "sources.caveats": "Limits of the source that affect its results.",
    "option_rates.checkpointing": "Activation checkpointing of the configuration: none | full.",
    "option_rates.sharding": "Distribution over devices: single | ddp | fsdp2.",
    "readings.record_id": "Key of the result or statement.",
    "readings.quantity": "Quantity of the ambiguous figure.",
    "readings.meaning": "What the figure means in this reading.",
    "readings.value": "Value in this reading, in the unit of the quantity.",
    "result_facts.name": "Name of the fact.",
    "result_facts.value": "Value as text.",
    "costs.price_source": "Source of the price.",
    "costs.instances": "Number of instances that the result needs.",
}
"""Meanings of columns that have neither a comment in the database nor a registered quantity. `relation.column` applies to one relation."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a relation."""

    name: str
    kind: str
    """Its DuckDB type, such as DOUBLE or VARCHAR[]."""
    required: bool
    """True if it is never null."""
    meaning: str


def fields(database: Database, relation: Relation) -> list[Field]:
    """Return the columns of a relation with their meanings."""
    comments: dict[str, str] = {}
    never_null = {relation.key}
    for name in reversed(relation.described_by or (relation.name,)):
        rows = database.rows("select column_name, is_nullable, comment from duckdb_columns() where table_name = ?", name)
        comments |= {row["column_name"]: row["comment"] for row in rows if row["comment"]}
        never_null |= {row["column_name"] for row in rows if not row["is_nullable"]}
    return [
        Field(name, row["column_type"], name in never_null, _meaning(relation.name, name, comments))
        for row in database.rows(f"describe {relation.sql}")
        for name in (row["column_name"],)
    ]


def _meaning(relation: str, name: str, comments: Mapping[str, str]) -> str:
    if name in comments:
        return comments[name]
    if f"{relation}.{name}" in OWN_MEANINGS:
        return OWN_MEANINGS[f"{relation}.{name}"]
    if name in QUANTITIES:
        return QUANTITIES[name].meaning
    if name in OWN_MEANINGS:
        return OWN_MEANINGS[name]
    for ending, side in (("_low", "Lower"), ("_high", "Upper")):
        if name.endswith(ending):
            return f"{side} end of the 95% interval."
    return ""


def rows(database: Database, relation: Relation) -> list[Row]:
    """Return all rows of a relation, ordered by all columns."""
    return database.rows(f"select * from ({relation.sql}) order by all")  # noqa: S608 - our own names


def count(database: Database, relation: Relation) -> int:
    """Return the number of rows of a relation."""
    return int(database.rows(f"select count(*) as rows from ({relation.sql})")[0]["rows"])  # noqa: S608 - our own names


def plain(value: object) -> object:
    """Return a value as JSON has it: dates and times in ISO 8601, times in UTC."""
    if isinstance(value, datetime):
        return f"{value.isoformat()}Z"
    return value.isoformat() if isinstance(value, date) else value


# Files ---------------------------------------------------------------------------------------------


def write_files(database: Database, folder: Path) -> dict[str, list[Row]]:
    """Write each relation as Parquet, and the main ones as CSV, below a folder. Return the rows of the main ones by name."""
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    tables = {relation.name: rows(database, relation) for relation in MAIN}
    for relation in RELATIONS:
        target = _quoted(folder / relation.path("parquet"))
        database.rows(f"copy (select * from ({relation.sql}) order by all) to {target} (format parquet, compression zstd)")  # noqa: S608 - our own names
        if relation.main:
            (folder / relation.path("csv")).write_text(csv_text(tables[relation.name]), encoding="utf-8")
    return tables


def write_duckdb(database: Database, folder: Path) -> None:
    """Write a DuckDB file with all relations and their comments, from the Parquet files in the folder."""
    target = folder / DUCKDB_FILE
    target.unlink(missing_ok=True)
    with duckdb.connect() as connection:
        connection.execute(f"attach {_quoted(target)} as made (storage_version '{STORAGE}')")
        connection.execute("use made")
        for relation in RELATIONS:
            connection.execute(f"create table {relation.name} as from {_quoted(folder / relation.path('parquet'))}")
            connection.execute(f"comment on table {relation.name} is {_quoted(relation.contents)}")
            for field in fields(database, relation):
                if field.meaning:
                    connection.execute(f"comment on column {relation.name}.{field.name} is {_quoted(field.meaning)}")
        connection.execute("use memory")
        connection.execute("detach made")


def _quoted(text: object) -> str:
    """Return a text as an SQL string."""
    return "'" + str(text).replace("'", "''") + "'"


def csv_text(table: Sequence[Row]) -> str:
    """Return rows as CSV. Unknown values are empty, lists are JSON, and no text starts like a spreadsheet formula."""
    out = io.StringIO()
    if table:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(table[0])
        writer.writerows(map(_cell, row.values()) for row in table)
    return out.getvalue()


def _cell(value: object) -> object:
    """Return a value that a spreadsheet does not read as a formula."""
    # The most frequent types come first: a table of 10,000 results has a million cells.
    if value is None or isinstance(value, float):
        return value
    if isinstance(value, str):
        return _safe(value)
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else plain(value)


@lru_cache(maxsize=10_000)
def _safe(text: str) -> str:
    text = one_line(text)
    return f"'{text}" if is_formula(text) else text
