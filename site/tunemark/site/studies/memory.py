"""Memory: what was trained on one accelerator of 24, 40 to 48, 80 GB and above, and the smallest accelerator by model and method."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from tunemark.schema.formats import GIB, gib, percent
from tunemark.site import tables, wording
from tunemark.site.charts import Chart
from tunemark.site.page import accelerator_path, model_path, result_path
from tunemark.site.pages.studies import (
    Evidence,
    Sentence,
    Study,
    ambiguous_caveat,
    gathered,
    listed,
    mean_over_documents,
    ratio,
    scatter,
    sentence,
    written,
)
from tunemark.site.studies.methods import method_pairs
from tunemark.site.tables import Cell, Column, Row, Table

ORDER = 5
METHODS = ("full", "lora", "qlora")
LENGTH = 2048
VERDICTS = """
    select model, method, accelerator, memory, min(needed_bytes) as needed_bytes, any_value(memory_bytes) as memory_bytes,
        arg_min(checkpointing, needed_bytes) as checkpointing, arg_min(micro_batch, needed_bytes) as micro_batch
    from option_rates where devices = 1 and sequence_length = ? and software = 'plain' and memory is not null
    group by all order by memory_bytes, accelerator
"""
RAN = "ran"
"""A result ran on it, with conditions that save more memory than the estimate's."""
FIT = ("fits", "probably")
"""Verdicts with which the home page recommends an option."""
OUT_OF_MEMORY = ("oom", "oom_device")


@dataclass(frozen=True, slots=True)
class Size:
    """A class of accelerators by the memory of one device, in GB as sold."""

    name: str
    above: float
    most: float


SIZES = (Size("24 GB", 16, 24), Size("40 to 48 GB", 39, 48), Size("80 GB", 64, 80), Size("more than 80 GB", 80, float("inf")))


def study(evidence: Evidence) -> Study:
    """Return the study of memory."""
    verdicts = evidence.catalogue.database.rows(VERDICTS, LENGTH)
    sentences = written([*_lora_or_qlora(evidence, verdicts), *_trained(evidence, verdicts), *_errors(evidence)])
    return Study(
        key="memory",
        title="Memory: which accelerator is large enough",
        question="Which models can be fine-tuned on one accelerator of 24, 40 to 48, 80 GB or more, and with which method?",
        sentences=sentences,
        tables=(_strategy(evidence, verdicts), _smallest(evidence, verdicts)) if sentences else (),
        draw=(lambda: _chart(evidence),),
        answers=1 if sentences else 0,
        method=(
            "The findings use results on one accelerator that name its type. The largest model is the one with the most parameters among the results of a method.",
            f"The smallest accelerator has the least memory among those on which the step fits or probably fits, by the memory estimate, at {LENGTH:,} tokens on one device with plain software, or on which a result ran.",
            "The configuration of an accelerator is that of the recommendations on the home page: the first that fits, without gradient checkpointing before with it. A larger accelerator needs no checkpointing, so the home page can state more memory for it than this table for a smaller one.",
            "The estimate is for AdamW: full fine-tuning keeps weights, gradients and states in bf16, LoRA frozen weights in bf16, QLoRA frozen weights in 4 bits. fp32 master weights and states need up to four times as much.",
            "The error of the estimate is its difference from a published peak, relative to the peak. Results and estimates use the same batch and length.",
        ),
        caveats=(
            "A model that was trained may have used short rows, a small batch, offloading or recomputation. The pages of the results show the conditions.",
            "A larger model may fit as well: no result for a size does not mean that it fails.",
            "Documents measure peak memory in different ways, so one estimate cannot be right for all of them.",
            *ambiguous_caveat(evidence, sentences),
        ),
    )


def _size(evidence: Evidence, accelerator: str | None) -> Size | None:
    memory = {row["accelerator"]: row["memory_gib"] for row in evidence.catalogue.accelerators if row["unit"] != "cpu"}.get(accelerator)
    return next((size for size in SIZES if memory and size.above < memory <= size.most), None)


def _on_one(evidence: Evidence, rows: list[Row]) -> dict[Size, list[Row]]:
    """Return the results on one accelerator by the size of its memory."""
    parameters = {row["model"]: row["parameters"] for row in evidence.catalogue.models}
    known = [
        row | {"parameters": parameters[row["model"]]}
        for row in rows
        if row["accelerator_count"] == 1 and row["method"] in METHODS and parameters.get(row["model"])
    ]
    groups = gathered(known, lambda row: _size(evidence, row["accelerator"]))
    return {size: groups[size] for size in SIZES if size in groups}


def _parameters(row: Row) -> str:
    return f"{row['parameters'] / 1e9:.1f}B parameters"


def _largest(rows: list[Row], method: str) -> Row | None:
    return max((row for row in rows if row["method"] == method), key=lambda row: (row["parameters"], row["result_id"]), default=None)


def _lora_or_qlora(evidence: Evidence, verdicts: list[Row]) -> Iterator[Sentence | None]:
    """Yield a comparison of LoRA and QLoRA for each memory size."""
    pairs = [pair for pair in method_pairs(evidence) if (pair.row["method"], pair.base["method"]) == ("qlora", "lora") and pair.speed]
    largest = _largest_that_fits(evidence, verdicts)
    for size in SIZES[:-1]:
        lora, qlora = (largest.get((size, method)) for method in ("lora", "qlora"))
        if lora and qlora and pairs:
            yield sentence(
                f"LoRA or QLoRA on one accelerator with {size.name}: the largest models estimated to fit with rows of {LENGTH:,} tokens are {lora['name']} ({_parameters(lora)}) with LoRA and {qlora['name']} ({_parameters(qlora)}) with QLoRA. "
                f"In matched results, QLoRA reaches {ratio(mean_over_documents((pair.row['source'], pair.speed or 0.0) for pair in pairs))} the speed of LoRA, the geometric mean over documents.",
                [row for pair in pairs for row in pair.rows],
            )


def _largest_that_fits(evidence: Evidence, verdicts: list[Row]) -> dict[tuple[Size, str], Row]:
    """Return the largest model that fits by the estimate, by size of memory and method. Verdicts "ran" are no estimates."""
    parameters = {row["model"]: row for row in evidence.catalogue.models if row["parameters"]}
    fitting = [row for row in verdicts if row["memory"] in FIT and row["model"] in parameters]
    by_size = gathered(fitting, lambda row: (_size(evidence, row["accelerator"]), row["method"]))
    largest = {}
    for number, size in enumerate(SIZES, 1):
        for method in METHODS:
            # What fits a smaller memory fits a larger one, also if no accelerator of the class has a rate for it.
            models = {verdict["model"] for each in SIZES[:number] for verdict in by_size.get((each, method), ())}
            if models:
                largest[size, method] = max(
                    (parameters[model] for model in models), key=lambda model: (model["parameters"], model["model"])
                )
    return largest


def _trained(evidence: Evidence, verdicts: list[Row]) -> Iterator[Sentence | None]:
    """Yield the largest models trained, and the smallest that ran out of memory, by size of memory."""
    estimates = {(row["model"], row["method"], row["accelerator"]): row for row in verdicts}

    def described(row: Row) -> str:
        """Return the model and the method, and the AdamW estimate if it exceeds the accelerator's memory."""
        estimate = estimates.get((row["model"], row["method"], row["accelerator"]))
        too_large = estimate and (estimate["needed_bytes"] or 0) > estimate["memory_bytes"]
        unusual = (
            f" (with settings that save memory; AdamW needs an estimated {gib(estimate['needed_bytes'])})" if estimate and too_large else ""
        )
        return f"{row['model_name']} ({_parameters(row)}) with {_method(row['method'])}{unusual}"

    failed = [row for row in evidence.catalogue.results if row["status"] in OUT_OF_MEMORY and not row["impossible"]]
    too_large = _on_one(evidence, failed)
    for size, rows in _on_one(evidence, evidence.results).items():
        best = [row for method in METHODS if (row := _largest(rows, method))]
        parts = [described(row) for row in best]
        yield sentence(
            f"On one accelerator with {size.name} the largest models trained are {listed(parts)}, from {len(rows)} results.", rows
        )
        out = too_large.get(size, [])
        smallest = {
            method: min(group, key=lambda row: (row["parameters"], row["result_id"]))
            for method, group in gathered(out, lambda row: row["method"]).items()
        }
        if smallest:
            parts = [
                f"{smallest[method]['model_name']} with {_method(method)} on {smallest[method]['accelerator_name']}"
                for method in METHODS
                if method in smallest
            ]
            yield sentence(
                f"On one accelerator with {size.name} the smallest models that ran out of memory are {listed(parts)}, from {len(out)} results.",
                out,
            )


def _method(method: str) -> str:
    return "full fine-tuning" if method == "full" else wording.METHODS[method]


def _errors(evidence: Evidence) -> Iterator[Sentence | None]:
    """Yield the error of the memory estimate by method."""
    usable = {row["result_id"]: row for row in evidence.results}
    known = [row for row in evidence.catalogue.predictions["memory_errors"] if row["result_id"] in usable]
    for method in METHODS:
        rows = [row for row in known if row["method"] == method]
        if rows:
            yield sentence(
                f"The median error of the memory estimate on {len(rows)} published figures of {_method(method)} is {percent(median(abs(row['error']) for row in rows))}, "
                f"and the largest is {percent(max(abs(row['error']) for row in rows))}; {sum(bool(row['covered']) for row in rows)} figures are inside the interval.",
                [usable[row["result_id"]] for row in rows],
            )


def _strategy(evidence: Evidence, verdicts: list[Row]) -> Table:
    """Return the largest model by size of memory and method: trained, and by the estimate."""
    trained, fitting = _on_one(evidence, evidence.results), _largest_that_fits(evidence, verdicts)

    def largest(size: Size, method: str) -> Cell:
        row = _largest(trained.get(size, []), method)
        best = fitting.get((size, method))
        estimate = f"estimate with AdamW: up to {best['name']}" if best else "estimate with AdamW: none fits"
        return tables.text(
            f"{row['model_name']} was trained" if row else None, small=estimate, href=result_path(row["result_id"]) if row else None
        )

    columns: list[Column[Size]] = [Column("Memory of one accelerator", lambda size: tables.text(size.name, sort=size.above))]
    columns += [Column(f"Largest with {_method(method)}", lambda size, method=method: largest(size, method)) for method in METHODS]  # type: ignore[misc]
    return tables.table("Strategy by memory", columns, SIZES, stacked=True)


def _smallest(evidence: Evidence, verdicts: list[Row]) -> Table:
    """Return the smallest accelerator by model and method."""
    names = {row["accelerator"]: row["name"] for row in evidence.catalogue.accelerators}
    fitting = [row for row in verdicts if row["memory"] in (RAN, *FIT) and row["accelerator"] in names]
    first: dict[tuple[str, str], Row] = {}
    for row in fitting:
        first.setdefault((row["model"], row["method"]), row)
    known = {model for model, _ in first}
    models = sorted(
        (row for row in evidence.catalogue.models if row["model"] in known), key=lambda row: (row["parameters"] or 0, row["model"])
    )

    def cell(model: Row, method: str) -> Cell:
        row = first.get((model["model"], method))
        if row is None:
            return tables.text("none alone", sort=float("inf"))
        saving = ", gradient checkpointing" if row["checkpointing"] == "full" else ""
        conditions = f" (micro-batch {row['micro_batch']}{saving})"
        needed = (
            "a result ran"
            if row["memory"] == RAN
            else f"{'needs' if row['memory'] == FIT[0] else 'probably fits: needs'} {gib(row['needed_bytes'])}{conditions}"
            if row["needed_bytes"]
            else ""
        )
        small = "; ".join(part for part in (gib(row["memory_bytes"]), needed) if part)
        return tables.text(names[row["accelerator"]], small=small, href=accelerator_path(row["accelerator"]), sort=row["memory_bytes"])

    columns: list[Column[Row]] = [
        Column("Model", lambda row: tables.text(row["name"], href=model_path(row["model"]))),
        Column("Parameters", lambda row: tables.number(row["parameters"], lambda value: f"{value / 1e9:.2f}B"), numeric=True),
    ]
    columns += [Column(f"Smallest for {_method(method)}", lambda row, method=method: cell(row, method)) for method in METHODS]  # type: ignore[misc]
    return tables.table(f"Smallest accelerator at {LENGTH:,} tokens", columns, models, interactive=True, stacked=True, searchable=False)


def _chart(evidence: Evidence) -> Chart | None:
    values = [
        {
            "x": row["parameters"] / 1e9,
            "y": round(row["peak_memory_bytes"] / GIB, 2),
            "series": _method(row["method"]),
            "line": row["result_id"],
            "label": f"{row['model_name']}, {wording.devices(row)}, {row['result_id']}",
        }
        for rows in _on_one(evidence, evidence.results).values()
        for row in rows
        if evidence.figure(row, "peak_memory_bytes")
    ]
    caption = "Published peak memory over model size on one accelerator, all lengths and batches. Both scales are logarithmic."
    return scatter("memory", caption, values, "parameters (10\N{SUPERSCRIPT NINE})", "peak memory (GiB)", "Method")
