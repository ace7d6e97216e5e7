"""The page that compares two to four results or accelerators, and the data from which a reader's choice is compared."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import nsmallest
from itertools import combinations
from typing import Any

from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.recommendation import provider_name
from tunemark.site import wording
from tunemark.site.comparison import (
    READINGS,
    REFUSED,
    SINGLE_RUN,
    VERDICTS,
    Estimate,
    Json,
    Knowledge,
    Objection,
    Subject,
    card_view,
    compared_rate,
    differ,
    factors,
    refusal,
    view,
)
from tunemark.site.page import RATES, Page
from tunemark.site.queries import BASIS_KIND, Catalogue, grouped
from tunemark.site.render import compact_json, one_line
from tunemark.site.result_page import LABELS
from tunemark.site.tables import Row

MOST_OF_A_GROUP = 20
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
CONDITIONS = LABELS | {
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
EFFECT_KINDS = ("level", "slope")


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the comparison page, with an example for readers without JavaScript."""
    finished, known = [row for row in catalogue.results if not row["failed"]], knowledge(catalogue)
    results = Counter(row["accelerator"] for row in finished)
    # Most results have no rival or no interval, and making a subject takes a millisecond.
    rivals = with_rivals(finished), with_rivals(row for row in finished if _has_interval(catalogue, row))
    pair = example(compared(catalogue, rivals[1]), known, results) or example(compared(catalogue, rivals[0]), known, results)
    cards = [subject.accelerator for subject in pair or () if subject.accelerator in known.cards]
    context = {
        "example": view(pair, known) if pair else None,
        "cards": card_view([key for key in cards if key], known) if len(cards) > 1 else None,
        "results": len(finished),
        "accelerators": len(known.cards),
    }
    yield Page("compare", "Compare", "compare.md.j2", context)


# Results -------------------------------------------------------------------------------------------


def compared(catalogue: Catalogue, rows: Iterable[Row] | None = None) -> list[Subject]:
    """Return results as they are compared; every finished one by default."""
    levels = {row["result_id"]: row["level"] for row in catalogue.predictions["throughput_errors"]}
    rows = [row for row in catalogue.results if not row["failed"]] if rows is None else rows
    return [_subject(catalogue, row, levels.get(row["result_id"])) for row in rows]


def with_rivals(rows: Iterable[Row]) -> list[Row]:
    """Return the results that can be in an example: another accelerator has done the same work, and neither figure is impossible."""
    groups = grouped((row for row in rows if row["accelerator_count"] and not row["impossible"]), _work_of_row)
    return [row for members in groups.values() if len({row["accelerator"] for row in members}) > 1 for row in members]


def _has_interval(catalogue: Catalogue, row: Row) -> bool:
    """Return True if a rate of a result has an interval: of its own, or of the repeats of its configuration."""
    pooled = catalogue.configurations.get(row["configuration"])
    return any(row.get(f"{rate}_low") is not None for rate in RATES) or bool(pooled and pooled["tokens_per_s_low"] is not None)


def _work_of_row(row: Row) -> tuple[object, ...]:
    return tuple(row[key] for key in ("model", "method", "sequence_length", "accelerator_count"))


def _subject(catalogue: Catalogue, row: Row, level: str | None) -> Subject:
    mfu, hfu = row["mfu"], row["hfu"]
    figures, runs = _figures(catalogue, row)
    return Subject(
        id=row["result_id"],
        title=wording.result_title(row),
        trust=wording.trust(row),
        impossible=row["impossible"],
        runs=runs,
        accelerator=row["accelerator"],
        count=row["accelerator_count"],
        precision=row["precision"],
        level=level,
        flop_per_s=_rounded(row["model_flop_per_s"]),
        recompute=_rounded(hfu / mfu) if mfu and hfu and hfu >= mfu else None,
        figures=figures,
        conditions=_conditions(catalogue, row, level),
        objections=_objections(catalogue, row["result_id"], figures),
    )


def _objections(catalogue: Catalogue, result: str, figures: Mapping[str, Estimate]) -> dict[str, list[Objection]]:
    """Return the objections about the figures of a result, worst first, and about known figures calculated from them."""
    own: dict[str, list[Objection]] = {}
    for finding in catalogue.findings_about.get(result, ()):
        if finding["record_ids"][0] == result:
            for key in finding["quantities"] or ():
                own.setdefault(key, []).append(Objection(finding["verdict"], finding["rule"], finding["verdict"] in REFUSED))
    for key in dict.fromkeys(reading["quantity"] for reading in catalogue.readings.get(result, ())):
        own.setdefault(key, []).append(Objection("ambiguous", READINGS, refuses=True))
    if not own:
        return {}
    derived = {fact["name"]: fact["reason"] or "" for fact in catalogue.facts.get(result, ()) if fact["topic"] == "derived"}
    made = {}
    for key in FIGURES:
        named = [source for name, source in NAMED.items() if name in derived.get(key, "") and source != key]
        sources = [*CALCULATED.get(key, ()), *named] if key in figures else []
        objections = [
            *own.get(key, ()),
            *(Objection(objection.verdict, "", refuses=True) for name in sources for objection in own.get(name, ()) if objection.refuses),
        ]
        if objections:
            made[key] = sorted(dict.fromkeys(objections), key=lambda objection: VERDICTS.index(objection.verdict))
    return made


def _figures(catalogue: Catalogue, row: Row) -> tuple[dict[str, Estimate], str]:
    """Return the known figures with their intervals, and the runs that the intervals cover."""
    values: dict[str, tuple[float | None, float | None, float | None]] = {
        key: (row[key], row.get(f"{key}_low"), row.get(f"{key}_high")) for key in FIGURES if key in row
    }
    low, high = row["time_to_target_low_s"], row["time_to_target_high_s"]
    values["time_to_target_s"] = (row["time_to_target_s"], low, high)
    runs = f"{len(catalogue.runs[row['result_id']])} runs" if row["result_id"] in catalogue.runs else SINGLE_RUN
    pooled = catalogue.configurations.get(row["configuration"])
    if pooled and pooled["tokens_per_s_low"] is not None and row["tokens_per_s"]:
        scale = row["tokens_per_s"] / pooled["tokens_per_s"]
        values["tokens_per_s"] = (row["tokens_per_s"], scale * pooled["tokens_per_s_low"], scale * pooled["tokens_per_s_high"])
        values["samples_per_s"] = (row["samples_per_s"], None, None)
        runs = f"{pooled['runs']} runs"
    cost = catalogue.basis_costs.get(row["result_id"], {})
    for key, column in COSTS.items():
        values[key] = (cost.get(column), cost.get(f"{column}_low"), cost.get(f"{column}_high"))
    if row["accelerator_count"]:
        values["tokens_per_s_device"] = tuple(value and value / row["accelerator_count"] for value in values["tokens_per_s"])  # type: ignore[assignment]
    figures = {key: Estimate(*map(_rounded, values[key])) for key in FIGURES if key in values and values[key][0]}  # type: ignore[arg-type]
    return figures, runs if any(figure.low is not None for figure in figures.values()) else ""


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _conditions(catalogue: Catalogue, row: Row, level: str | None) -> dict[str, str]:
    """Return the stated conditions of a result: its columns, its recorded settings and software, and the labels of its printed row."""
    columns = ((key, row[column]) for key, column in CONDITION_COLUMNS if column in row)
    texts = {key: _text_of_column(key, value) for key, value in columns if value is not None}
    if level is not None:
        texts["level"] = _shortened(level)
    for fact in catalogue.facts.get(row["result_id"], ()):
        if fact["topic"] in TOPICS and fact["value"] is not None:
            condition = _condition_of_fact(fact["topic"], fact["name"], fact["value"])
            if condition:
                texts.setdefault(*condition)
    for label in catalogue.labels.get(row["result_id"], ()):
        if label["label"] in PRINTED_CONDITIONS:
            texts[f"printed.{label['label']}"] = _shortened(label["printed"])
    return {key: text for key, text in texts.items() if text}


# Thousands of results repeat the same conditions, so their texts are kept.


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


def example(subjects: Sequence[Subject], known: Knowledge, results: Counter[str | None]) -> tuple[Subject, Subject] | None:
    """Return two results of the same model, method, sequence length, global batch and device count on different accelerators.

    Pairs with intervals come first, then those on the accelerators with the most `results`, then those with few other differences.
    """
    groups: dict[tuple[object, ...], list[Subject]] = {}
    for subject in subjects:
        work = tuple(subject.conditions.get(key) for key in ("model", "method", "sequence_length", "global_batch"))
        if None not in work and subject.count and not subject.impossible:
            groups.setdefault((*work, subject.count), []).append(subject)
    # Repeats of one configuration make thousands of pairs that differ in nothing that matters here.
    few = (nsmallest(MOST_OF_A_GROUP, members, key=lambda subject: (_has_no_interval(subject), subject.id)) for members in groups.values())
    pairs = (pair for members in few for pair in combinations(members, 2))
    fitting = (pair for pair in pairs if pair[0].accelerator != pair[1].accelerator and _is_explained(*pair, known))
    return min(fitting, key=lambda pair: _preference(pair[0], pair[1], results), default=None)


def _has_no_interval(subject: Subject) -> bool:
    return all(subject.figures[rate].low is None for rate in RATES if rate in subject.figures)


def _is_explained(first: Subject, other: Subject, known: Knowledge) -> bool:
    rate = compared_rate(first, other)
    return rate is not None and not refusal(first, other, rate) and bool(factors(first, other, rate, known))


def _preference(first: Subject, other: Subject, results: Counter[str | None]) -> tuple[Any, ...]:
    rate = compared_rate(first, other) or RATES[0]
    no_interval = first.figures[rate].low is None or other.figures[rate].low is None
    differing = sum(differ(first, other, key) for key in first.conditions)
    unstated = len(first.conditions.keys() ^ other.conditions.keys())
    shared = len(first.figures.keys() & other.figures.keys())
    popular = results[first.accelerator] + results[other.accelerator]
    return no_interval, -popular, -shared, differing + unstated, first.id, other.id


# Knowledge -----------------------------------------------------------------------------------------


def knowledge(catalogue: Catalogue) -> Knowledge:
    """Return the cards, the effects of the throughput model, and the rows of the page."""
    model = catalogue.predictions["throughput_model"]
    return Knowledge(
        cards=_cards(catalogue),
        effects={
            row["parameter"]: Estimate(*(float(f"{row[name]:.6g}") for name in ("value", "low", "high")))
            for row in model
            if row["kind"] in EFFECT_KINDS
        },
        figures=[{"key": key, "label": _figure_label(key), "kind": kind, "interval": stated} for key, (kind, stated) in FIGURES.items()],
        conditions=_labels(catalogue),
        card_rows=[{"key": key, "label": label, "kind": kind, "unit": unit} for key, label, kind, unit in CARD_ROWS],
    )


def _figure_label(key: str) -> str:
    return OWN_LABELS.get(key) or QUANTITIES[key].label


def _labels(catalogue: Catalogue) -> dict[str, str]:
    """Return the labels of all conditions in display order: columns, then facts by topic, then printed labels."""
    labels = {key: label for key, label in CONDITIONS.items() if key not in NOT_CONDITIONS}
    facts = catalogue.database.rows("select distinct topic, name from result_facts order by name")
    for topic, start in TOPICS.items():
        for name in (fact["name"] for fact in facts if fact["topic"] == topic):
            if topic != "settings" or name not in CONDITIONS:
                labels[f"{topic}.{name}"] = one_line(wording.sentence(f"{start}{_name(name)}"))[:LONGEST]
    return labels | {f"printed.{label}": f"Printed: {wording.setting(label)}" for label in sorted(PRINTED_CONDITIONS)}


def _name(key: str) -> str:
    return wording.setting(key).removesuffix(" printed").replace("lora ", "LoRA ")


def _cards(catalogue: Catalogue) -> dict[str, Row]:
    """Return the cards of accelerators with the price of one device on the default basis."""
    offers = [
        row
        for row in catalogue.prices
        if row["newest"] and row["kind"] == BASIS_KIND and row["provider_rank"] is not None and row["accelerator_count"]
    ]
    offers.sort(key=lambda row: (row["usd_per_hour"] / row["accelerator_count"], row["accelerator_count"], row["price"]))
    first = {row["accelerator"]: row for row in reversed(offers)}
    return {card["accelerator"]: _card(card, first.get(card["accelerator"])) for card in catalogue.accelerators}


def _card(card: Row, offer: Row | None) -> Row:
    shown = {key: card.get(key) for key, _, kind, _ in CARD_ROWS if kind == "text"}
    numbers = {key: _rounded(card.get(key)) for key, _, kind, _ in CARD_ROWS if kind != "text"}
    if offer:
        numbers["usd_per_hour"] = _rounded(offer["usd_per_hour"] / offer["accelerator_count"])
    text = f"on demand, {provider_name(offer['provider'])} {offer['instance']}, {offer['effective_on']}" if offer else ""
    unverified = [_unverified(name) for name in card["unverified"] or ()]
    return {"name": card["name"], **shown, **numbers, "offer": one_line(text), "unverified": unverified}


def _unverified(field: str) -> str:
    """Return the column of a field of a card: `peak_tflops.bf16` -> `peak_bf16_tflops`."""
    group, _, name = field.partition(".")
    return f"peak_{name}_{'tops' if name == 'int8' else 'tflops'}" if group == "peak_tflops" else field


# Data of the script --------------------------------------------------------------------------------


def compare_json(catalogue: Catalogue) -> str:
    """Return the data of the page's script as JSON."""
    return encoded(compared(catalogue), knowledge(catalogue))


def encoded(subjects: Sequence[Subject], known: Knowledge) -> str:
    """Return results and knowledge as compact JSON: one sparse column per property, and each text once per column."""
    used = [key for key in known.conditions if key == "work" or any(key in subject.conditions for subject in subjects)]
    names = ("id", "title", "trust", "runs", "accelerator", "precision", "level")
    numbers = ("count", "flop_per_s", "recompute")
    data = {
        "rows": len(subjects),
        "texts": {name: _column([getattr(subject, name) or None for subject in subjects]) for name in names},
        "numbers": {name: _column([getattr(subject, name) for subject in subjects]) for name in numbers}
        | {"impossible": _column([1 if subject.impossible else None for subject in subjects])},
        "figures": [
            {**spec, **{part: _column([_part(subject, spec["key"], part) for subject in subjects]) for part in ("value", "low", "high")}}
            for spec in known.figures
        ],
        "conditions": [
            {"key": key, "label": known.conditions[key], **_column([subject.conditions.get(key) for subject in subjects])} for key in used
        ],
        "objections": _packed_objections(subjects, known),
        "effects": {name: [effect.value, effect.low, effect.high] for name, effect in known.effects.items()},
        "cards": known.cards,
        "card_rows": list(known.card_rows),
    }
    return compact_json(data)


def _packed_objections(subjects: Sequence[Subject], known: Knowledge) -> Json:
    """Return the different objections, and for each disputed figure its row, its place among the figures, and the numbers of its objections."""
    numbers: dict[Objection, int] = {}
    rows = []
    for row, subject in enumerate(subjects):
        for place, spec in enumerate(known.figures):
            objections = subject.objections.get(spec["key"], ())
            if objections:
                rows.append([row, place, *(numbers.setdefault(objection, len(numbers)) for objection in objections)])
    return {"kinds": [[objection.verdict, objection.reason, int(objection.refuses)] for objection in numbers], "rows": rows}


def _part(subject: Subject, key: str, part: str) -> float | None:
    figure: Estimate | None = subject.figures.get(key)
    return getattr(figure, part) if figure else None


def _column(values: Sequence[Any]) -> Json:
    """Return the known values of a column, and the distances between their rows where some are unknown. Texts are numbers of a list."""
    places = [place for place, value in enumerate(values) if value is not None]
    known = [_compact(values[place]) for place in places]
    made: Json = {}
    if len(places) < len(values):
        made["gaps"] = [place - before for place, before in zip(places, [0, *places], strict=False)]
    if not any(isinstance(value, str) for value in known) or len(set(known)) * 2 > len(known):
        return made | {"is": known}
    texts: Mapping[str, int] = {text: number for number, text in enumerate(dict.fromkeys(known))}
    return made | {"texts": list(texts), "is": [texts[text] for text in known]}


def _compact(value: Any) -> Any:  # noqa: ANN401 - a text or a number
    return int(value) if isinstance(value, float) and value.is_integer() else value
