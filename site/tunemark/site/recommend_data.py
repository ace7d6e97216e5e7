"""What recommendations are made of: cards, offers, and the fitted throughput model with its results; as one file for the home page."""

from collections.abc import Callable
from dataclasses import asdict

from tunemark.schema.facts.cards import AcceleratorCard, ModelCard
from tunemark.schema.option_rates import Evidence
from tunemark.schema.recommendation import Offer, offers_of
from tunemark.schema.vocabulary import Dtype
from tunemark.site.render import compact_json
from tunemark.site.tables import Row

DATA_PATH = "data/recommend.json"
ASKED = (
    "select model, name, context_length as longest from models where hub_id is not null and exists (from known_rates) order by name, model"
)
MODELS = """
    select model as key, name, family, hidden_size, intermediate_size, layers, attention_heads, key_value_heads, head_dim, vocabulary, context_length,
        tied_embeddings, sliding_window, sliding_window_every, experts, active_experts
    from models where hub_id is not null order by key
"""
ACCELERATORS = """
    select accelerator as key, name, vendor, architecture, unit, memory_gib, memory_bandwidth_gb_s, interconnect_gb_s, tdp_w,
        peak_bf16_tflops as bf16, peak_fp16_tflops as fp16, peak_tf32_tflops as tf32, peak_fp32_tflops as fp32
    from accelerators where unit <> 'cpu' order by vendor, name, accelerator
"""
PEAKS = (Dtype.BF16, Dtype.FP16, Dtype.TF32, Dtype.FP32)
OFFERS = (
    "from listed_prices where newest order by accelerator, provider, accelerator_count, instance, kind, region, effective_on desc, price"
)
EVIDENCE = {"results": "from known_rates", "parameters": "from throughput_model", "covariances": "from throughput_covariances"}
Read = Callable[..., list[Row]]
"""Returns the rows of a query with its parameters."""


def data_file(read: Read) -> str:
    """Return the file of the home page."""
    evidence = evidence_of(read)
    content = {
        "accelerators": {row["key"]: row for row in accelerator_rows(read)},
        "models": {row["key"]: row for row in read(MODELS)},
        "offers": [asdict(offer) for offer in offers(read)],
        "workloads": workloads(read),
        "effects": asdict(evidence.effects),
        "results": columnar([asdict(each) for each in evidence.results]),
    }
    return compact_json(content)


def evidence_of(read: Read) -> Evidence:
    """Return the fitted throughput model."""
    results, parameters, covariances = (read(f"{query} order by all") for query in EVIDENCE.values())
    return Evidence.of_rows(results, parameters, covariances)


def accelerator_rows(read: Read) -> list[Row]:
    """Return the facts that rates depend on, of each accelerator but CPUs."""
    rows = read(ACCELERATORS)
    peaks = [{peak.value: peaked for peak in PEAKS if (peaked := row.pop(peak.value)) is not None} for row in rows]
    return [row | {"peak_tflops": peak} for row, peak in zip(rows, peaks, strict=True)]


def accelerators(read: Read) -> dict[str, AcceleratorCard]:
    """Return the accelerators as cards, with only these facts."""
    return {row["key"]: AcceleratorCard.model_construct(**row) for row in accelerator_rows(read)}


def models(read: Read) -> dict[str, ModelCard]:
    """Return the models that readers can fine-tune, on a model hub, as cards with only their numbers."""
    return {row["key"]: ModelCard.model_construct(**row) for row in read(MODELS)}


def workloads(read: Read) -> dict[str, list[tuple[str, str, int]]]:
    """Return the workload cards of each model: name, method and tokens per row."""
    cards: dict[str, list[tuple[str, str, int]]] = {}
    for row in read("from workloads where sequence_length > 0 order by workload"):
        cards.setdefault(row["model"], []).append((row["workload"], row["method"], row["sequence_length"]))
    return cards


def offers(read: Read) -> list[Offer]:
    """Return all offers in force."""
    rows = read(ACCELERATORS)
    names, watts = {row["key"]: row["name"] for row in rows}, {row["key"]: row["tdp_w"] for row in rows if row["tdp_w"]}
    return offers_of(read(OFFERS), names, watts)


def columnar(rows: list[Row]) -> dict[str, object]:
    """Return rows as columns: lists of numbers, and codes into lists of values for text."""
    columns: dict[str, object] = {}
    for name in rows[0] if rows else ():
        values = [row[name] for row in rows]
        if all(value is None or isinstance(value, str) for value in values):
            known = list(dict.fromkeys(values))
            code = {value: number for number, value in enumerate(known)}
            columns[name] = {"values": known, "codes": [code[value] for value in values]}
        else:
            columns[name] = values
    return {"length": len(rows), "columns": columns}
