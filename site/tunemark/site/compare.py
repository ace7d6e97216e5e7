"""The data from which assets/compare.js compares the results and accelerators that a reader chooses.

All arithmetic of the comparison is in the script. The page of each result compares it with others without a script.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from tunemark.schema.quantities import QUANTITIES
from tunemark.site import wording
from tunemark.site.database import Database, grouped
from tunemark.site.page import RATES
from tunemark.site.render import compact_json
from tunemark.site.tables import Row
from tunemark.site.text import one_line

DATA_PATH = "data/compare.json"
FIGURES = {
    "tokens_per_s": ("rate", True),
    "tokens_per_s_device": ("rate", True),
    "samples_per_s": ("rate", True),
    "step_time_s": ("duration", False),
    "mfu": ("percent", False),
    "peak_memory_bytes": ("gib", False),
    "cost_per_1m_tokens_usd": ("usd", True),
    "cost_per_1k_samples_usd": ("usd", True),
    "time_to_target_s": ("duration", True),
    "epoch_time_s": ("duration", False),
    "train_time_s": ("duration", False),
}
"""Figures in the order of the page: kind of number, and whether a missing interval is stated."""
COSTS = {"cost_per_1m_tokens_usd": "usd_per_1m_tokens", "cost_per_1k_samples_usd": "usd_per_1k_samples"}
OWN_LABELS = {"tokens_per_s_device": "Tokens/s per device", "time_to_target_s": "Time to target"}
CALCULATED = {
    "tokens_per_s_device": ("tokens_per_s",),
    "mfu": RATES,
    "cost_per_1m_tokens_usd": ("tokens_per_s",),
    "cost_per_1k_samples_usd": ("samples_per_s",),
}
"""Figures that are always calculated from others."""
NAMED = {
    "tokens per second": "tokens_per_s",
    "tokens/s": "tokens_per_s",
    "samples per second": "samples_per_s",
    "samples/s": "samples_per_s",
    "step time": "step_time_s",
}
"""Figures from which another is calculated, as its recorded derivation names them."""
CONDITIONS = wording.CONDITIONS | {
    "attention": "Attention",
    "fused_kernels": "Fused kernels",
    "compile": "Compilation",
    "gradient_checkpointing": "Gradient checkpointing",
    "level": "Software level",
    "work": "FLOPs per token",
    "nodes": "Nodes",
}
NOT_CONDITIONS = {"steps", "epochs"}
"""Lengths of a run, which its rates do not depend on."""
CONDITION_COLUMNS = tuple(
    (key, {"model": "model_name", "accelerator": "accelerator_name"}.get(key, key)) for key in CONDITIONS if key not in NOT_CONDITIONS
)
"""The conditions with the columns of the database that state them."""
NAMES: Mapping[str, Mapping[str, str]] = {"method": wording.METHODS, "task": wording.TASKS}
"""Conditions whose values have names."""
TOPICS = {"settings": "", "packages": "Package: ", "system": "System: ", "environment": "Machine: ", "entry": "Entry: "}
"""Topics of recorded facts that are conditions, with the beginnings of their labels."""
NOT_FACTS = {
    "settings": {"steps", "epochs", "max_steps", "num_steps", "nodes"},
    "system": {"accelerator_printed", "accelerator_memory_printed", "framework_printed", "nodes", "notes"},
    "environment": {"backend", "devices.0.name", "devices.0.memory_bytes"},
    "entry": {"folder", "source", "label", "division", "benchmark", "target_eval_loss"},
}
PRINTED_CONDITIONS = frozenset(
    (
        *("accelerator_type", "batch_size", "command", "configuration", "data_parallel", "ddp", "device_type", "experiment"),
        *("finetuning_method", "fsdp", "fsdp_cpu_offload", "gradient_checkpointing", "hardware", "instance", "kind", "length"),
        *("lora_targets", "machine", "mode", "paddle_setup", "parallelism", "peft_method", "quantization", "recipe"),
        *("run", "seqlen", "sequence_length", "setup", "task", "technique", "techniques", "test"),
        *("topology", "torch_setup", "train_type", "variant", "zero"),
    )
)
"""Labels of a printed row that state a condition; the others are its figures, its name or an opinion."""
LONGEST = 120
CARD_ROWS = (
    ("vendor", "Vendor", "text", ""),
    ("architecture", "Architecture", "text", ""),
    ("training", "Training", "text", ""),
    ("devices_per_unit", "Devices per unit", "whole", ""),
    ("memory_gib", "Memory", "number", " GiB"),
    ("memory_bandwidth_gb_s", "Memory bandwidth", "number", " GB/s"),
    ("peak_bf16_tflops", "Dense bf16 peak", "number", " TFLOP/s"),
    ("peak_fp16_tflops", "Dense fp16 peak", "number", " TFLOP/s"),
    ("peak_tf32_tflops", "Dense tf32 peak", "number", " TFLOP/s"),
    ("peak_fp32_tflops", "Dense fp32 peak", "number", " TFLOP/s"),
    ("peak_fp8_tflops", "Dense fp8 peak", "number", " TFLOP/s"),
    ("peak_int8_tops", "Dense int8 peak", "number", " TOP/s"),
    ("tdp_w", "Power limit", "number", " W"),
    ("interconnect_gb_s", "Link between devices", "number", " GB/s"),
    ("launch_year", "Launched", "whole", ""),
    ("usd_per_hour", "Price per device and hour", "usd", ""),
)
REFUSED = ("impossible", "inconsistent")
"""Verdicts on a figure that forbid a ratio."""
READINGS = "several readings"
"""Reason of the objection about a figure that the document does not define."""
RESULTS = """
    select
        r.* exclude (usd_per_hour), e.level, coalesce(n.runs, 0) as entry_runs,
        c.runs as pooled_runs, c.tokens_per_s_low / c.tokens_per_s as pooled_low, c.tokens_per_s_high / c.tokens_per_s as pooled_high
    from listed_results r
    left join (select result_id, any_value(level) as level from throughput_errors group by all) e using (result_id)
    left join (select result_id, count(*) as runs from runs group by all) n using (result_id)
    left join configurations c on c.configuration = r.configuration
    where not r.failed order by result_id
"""
FACTS = "select result_id, topic, name, value, reason from result_facts order by result_id, topic, name"
LABELS = "select record_id, label, printed from labels order by record_id, label"
FINDINGS = "select record, verdict, rule, quantities from listed_findings where is_first order by severity, finding"
EFFECTS = "select parameter, value, low, high from throughput_model where kind in ('level', 'slope')"
CARDS = """
    select a.*, case when trains then 'supported' else 'not supported: inference only' end as training, p.each_usd as usd_per_hour, p.offer
    from listed_accelerators a left join (
        select accelerator, each_usd, 'on demand, ' || provider(provider) || ' ' || instance || ', ' || effective_on as offer from listed_prices
        where newest and kind = 'on_demand' and provider_rank is not null
        qualify row_number() over (partition by accelerator order by each_usd, accelerator_count, price) = 1
    ) p using (accelerator)
    order by vendor, name, a.accelerator
"""
Json = dict[str, Any]
Estimate = tuple[float, float | None, float | None]
"""A figure with its 95% interval, if it has one."""
Objection = tuple[str, str, int]
"""Verdict, rule or `READINGS`, and 1 if the figure is not compared. The rule is empty if the objection is about a figure from which this one is calculated."""


def compare_json(database: Database) -> str:
    """Return all data as JSON."""
    facts = grouped(database.rows(FACTS), lambda row: str(row["result_id"]))
    labels = grouped(database.rows(LABELS), lambda row: str(row["record_id"]))
    findings = grouped(database.rows(FINDINGS), lambda row: str(row["record"]))

    def result(row: Row) -> Json:
        name, figures = row["result_id"], _figures(row)
        recorded = facts.get(name, [])
        return {
            "id": name,
            "title": wording.result_title(row),
            "trust": row["trust_shown"],
            "runs": _runs(row, figures) or None,
            **{key: row[key] for key in ("accelerator", "precision", "level")},
            "count": row["accelerator_count"],
            "flop_per_s": _rounded(row["model_flop_per_s"]),
            "recompute": _rounded(row["hfu"] / row["mfu"]) if row["mfu"] and row["hfu"] and row["hfu"] >= row["mfu"] else None,
            "impossible": row["impossible"] or None,
            "figures": figures,
            "conditions": _conditions(row, recorded, labels.get(name, [])),
            "objections": _objections(row, figures, findings.get(name, []), recorded),
        }

    effects = {row["parameter"]: [float(f"{row[name]:.6g}") for name in ("value", "low", "high")] for row in database.rows(EFFECTS)}
    cards = {row["accelerator"]: _card(row) for row in database.rows(CARDS)}
    named = _labels(fact for each in facts.values() for fact in each)
    return encoded([result(row) for row in database.rows(RESULTS)], named, effects, cards)


def encoded(results: Sequence[Json], labels: Mapping[str, str], effects: Mapping[str, list[float]], cards: Mapping[str, Row]) -> str:
    """Return results and what is known about effects as compact JSON. What is not known of a result is left out."""
    used = {key for result in results for key in result["conditions"]} | {"work"}
    data = {
        "results": [{name: value for name, value in result.items() if value is not None} for result in results],
        "figures": [
            {"key": key, "label": OWN_LABELS.get(key) or QUANTITIES[key].label, "kind": kind, "interval": stated}
            for key, (kind, stated) in FIGURES.items()
        ],
        "labels": {key: label for key, label in labels.items() if key in used},
        "effects": effects,
        "cards": cards,
        "card_rows": [{"key": key, "label": label, "kind": kind, "unit": unit} for key, label, kind, unit in CARD_ROWS],
    }
    return compact_json(data)


def _figures(row: Row) -> dict[str, Estimate]:
    """Return the known figures with their intervals."""
    values = {key: (row[key], row.get(f"{key}_low"), row.get(f"{key}_high")) for key in FIGURES if key in row}
    values["time_to_target_s"] = (row["time_to_target_s"], row["time_to_target_low_s"], row["time_to_target_high_s"])
    if row["pooled_low"] is not None and row["tokens_per_s"]:
        rate = row["tokens_per_s"]
        values["tokens_per_s"] = (rate, rate * row["pooled_low"], rate * row["pooled_high"])
        values["samples_per_s"] = (row["samples_per_s"], None, None)
    for key, column in COSTS.items():
        values[key] = (row[column], row[f"{column}_low"], row[f"{column}_high"])
    if row["accelerator_count"]:
        value, low, high = (part and part / row["accelerator_count"] for part in values["tokens_per_s"])
        values["tokens_per_s_device"] = (value, low, high)
    return {key: tuple(map(_rounded, values[key])) for key in FIGURES if key in values and values[key][0]}  # type: ignore[misc]


def _runs(row: Row, figures: Mapping[str, Estimate]) -> str:
    """Return the runs that the intervals of a result cover, such as `one run` or `10 runs`; empty without an interval."""
    if all(low is None for _, low, _ in figures.values()):
        return ""
    runs = row["pooled_runs"] if row["pooled_low"] is not None and row["tokens_per_s"] else row["entry_runs"]
    return f"{runs} runs" if runs else "one run"


def _objections(row: Row, figures: Mapping[str, Estimate], findings: Sequence[Row], facts: Sequence[Row]) -> dict[str, list[Objection]]:
    """Return the objections about the figures of a result, worst first, and about known figures calculated from them."""
    own: dict[str, list[Objection]] = {}
    for finding in findings:
        for key in finding["quantities"]:
            own.setdefault(key, []).append((finding["verdict"], finding["rule"], int(finding["verdict"] in REFUSED)))
    for key in row["reading"]:
        own.setdefault(key, []).append(("ambiguous", READINGS, 1))
    derived = {fact["name"]: fact["reason"] or "" for fact in facts if fact["topic"] == "derived"} if own else {}
    made = {}
    for key in FIGURES if own else ():
        named = [source for name, source in NAMED.items() if name in derived.get(key, "") and source != key]
        sources = [*CALCULATED.get(key, ()), *named] if key in figures else []
        inherited = [(verdict, "", 1) for name in sources for verdict, _, refuses in own.get(name, ()) if refuses]
        objections = [*own.get(key, ()), *inherited]
        if objections:
            made[key] = sorted(dict.fromkeys(objections), key=lambda objection: list(wording.VERDICTS).index(objection[0]))
    return made


def _rounded(value: float | None) -> float | None:
    if value is None:
        return None
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() else rounded


def _conditions(row: Row, facts: Sequence[Row], labels: Sequence[Row]) -> dict[str, str]:
    """Return the stated conditions of a result: its columns, its recorded settings and software, and the labels of its printed row."""
    columns = ((key, row[column]) for key, column in CONDITION_COLUMNS if column in row)
    texts = {key: _text_of_column(key, value) for key, value in columns if value is not None}
    for fact in facts:
        if fact["topic"] in TOPICS and fact["value"] is not None:
            condition = _condition_of_fact(fact["topic"], fact["name"], fact["value"])
            if condition:
                texts.setdefault(*condition)
    for label in labels:
        if label["label"] in PRINTED_CONDITIONS:
            texts[f"printed.{label['label']}"] = _shortened(label["printed"])
    return {key: text for key, text in texts.items() if text}


# Thousands of results repeat the same conditions.


@lru_cache(maxsize=100_000)
def _condition_of_fact(topic: str, name: str, value: str) -> tuple[str, str] | None:
    """Return the key and the text of a recorded fact; None if it is no condition."""
    if name in NOT_FACTS.get(topic, ()):
        return None
    shown = wording.recorded(topic, name, value)
    if topic == "settings":
        return name if name in CONDITIONS else f"settings.{name}", _shortened(wording.code(shown))
    return f"{topic}.{name}", _shortened(shown)


@lru_cache(maxsize=100_000, typed=True)
def _text_of_column(key: str, value: Any) -> str:  # noqa: ANN401 - of any column
    if key in NAMES:
        return _shortened(NAMES[key].get(value, value))
    return _shortened(wording.words(value) if key == "step_definition" else wording.code(wording.plain(value)))


@lru_cache(maxsize=100_000)
def _shortened(text: str) -> str:
    return one_line(text)[:LONGEST]


def _labels(facts: Iterable[Row]) -> dict[str, str]:
    """Return the labels of all conditions in display order: columns, then facts by topic, then printed labels."""
    labels = {key: label for key, label in CONDITIONS.items() if key not in NOT_CONDITIONS}
    known = sorted({(fact["topic"], fact["name"]) for fact in facts})
    for topic, start in TOPICS.items():
        for name in (name for of_topic, name in known if of_topic == topic):
            if topic != "settings" or name not in CONDITIONS:
                words = wording.setting(name).removesuffix(" printed").replace("lora ", "LoRA ")
                labels[f"{topic}.{name}"] = one_line(wording.sentence(f"{start}{words}"))[:LONGEST]
    return labels | {f"printed.{label}": f"Printed: {wording.setting(label)}" for label in sorted(PRINTED_CONDITIONS)}


def _card(row: Row) -> Row:
    """Return the facts of an accelerator, with the price of one device on the default basis."""
    facts = {key: row[key] if kind == "text" else _rounded(row[key]) for key, _, kind, _ in CARD_ROWS}
    return {
        "name": row["name"],
        **facts,
        "offer": one_line(row["offer"] or ""),
        "unverified": [_unverified(name) for name in row["unverified"]],
    }


def _unverified(field: str) -> str:
    """Return the column of a field of a card: `peak_tflops.bf16` -> `peak_bf16_tflops`."""
    group, _, name = field.partition(".")
    return f"peak_{name}_{'tops' if name == 'int8' else 'tflops'}" if group == "peak_tflops" else field
