"""Full fine-tuning, LoRA and QLoRA on the same accelerator: memory, speed, and the length at which QLoRA stops saving memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tunemark.schema.formats import GIB, gib
from tunemark.site import tables, wording
from tunemark.site.ablation import SAME, peak_memory
from tunemark.site.charts import Chart
from tunemark.site.page import RATES, document_path
from tunemark.site.pages.studies import (
    Evidence,
    Sentence,
    Study,
    ambiguous_caveat,
    bars,
    document_means,
    gathered,
    listed,
    mean_over_documents,
    ratio,
    result_link,
    scatter,
    sentence,
    spread,
    written,
)
from tunemark.site.tables import Column, Row, Table

ORDER = 2
MOST_OF_DOCUMENT, MOST_BARS, MOST_SWEEPS = 4, 12, 6
"""Models of one document, models and sweeps of lengths on a chart."""
PAIRS = (("lora", "full"), ("qlora", "lora"), ("qlora", "full"))


@dataclass(frozen=True, slots=True)
class Pair:
    """Two results that differ in the method, with the ratios of the first to the second."""

    model: str
    row: Row
    base: Row
    memory: float | None
    speed: float | None
    saved_bytes: float | None
    """Memory of the base less that of the row."""

    @property
    def rows(self) -> tuple[Row, Row]:
        """Both results."""
        return self.row, self.base


def study(evidence: Evidence) -> Study:
    """Return the study of the three methods."""
    pairs = list(method_pairs(evidence))
    sentences = written([*_ratios(pairs), *_documents(pairs), *_crossovers(pairs)])
    return Study(
        key="methods",
        title="Full fine-tuning, LoRA and QLoRA",
        question="How much memory and speed does each method need on the same accelerator, and does QLoRA always save memory?",
        sentences=sentences,
        tables=(_table(pairs),) if pairs else (),
        draw=(lambda: _chart(evidence, pairs), lambda: _length_chart(evidence, pairs)),
        method=(
            "A pair is two results of one document with the same model, accelerator, device count, micro-batch, sequence length and stated conditions. Only the method differs.",
            "The memory ratio compares peak memory. The speed ratio compares tokens/s, or samples/s where a document has no tokens/s. Rates that the audit calls suspicious are left out.",
            "Means are geometric: within each document, then across documents, since pairs of one document are not independent.",
            "The crossover is the sequence length at which LoRA and QLoRA need equal memory, by linear interpolation between two neighbouring lengths of one document.",
            "If a document has several results of one method under the same stated conditions, none of them is paired.",
        ),
        caveats=(
            "Documents measure memory in different ways (reserved, allocated, or reported by the driver). A ratio compares two figures of one document only.",
            "Rank, target modules and optimizer of an adapter differ between documents, so ranges across documents are wide.",
            *ambiguous_caveat(evidence, sentences),
        ),
    )


def method_pairs(evidence: Evidence) -> Iterator[Pair]:
    """Yield the pairs of results that differ in the method alone."""
    known = [row for row in evidence.results if row["method"] in {"full", "lora", "qlora"} and row["accelerator"] and evidence.model(row)]
    for members in gathered(known, lambda row: (evidence.model(row), *(row[name] for name in SAME))).values():
        by_method = {method: _only(evidence, [row for row in members if row["method"] == method]) for method in wording.METHODS}
        for method, base_method in PAIRS:
            row, base = by_method[method], by_method[base_method]
            if row is None or base is None:
                continue
            memory, of_base = peak_memory(evidence, row), peak_memory(evidence, base)
            sound = [key for key in RATES if not evidence.doubted(row, key) and not evidence.doubted(base, key)]
            speeds = ((evidence.figure(row, key), evidence.figure(base, key)) for key in sound)
            yield Pair(
                model=evidence.model(row) or "",
                row=row,
                base=base,
                memory=memory / of_base if memory and of_base else None,
                speed=next((first / second for first, second in speeds if first and second), None),
                saved_bytes=of_base - memory if memory and of_base else None,
            )


def _only(evidence: Evidence, rows: list[Row]) -> Row | None:
    """Return the single result of a method, or that whose printed method is the plain name; None if there are several."""
    if len(rows) > 1:
        rows = [row for row in rows if (evidence.label(row, "method") or "").lower().replace("-", "") == row["method"]]
    return rows[0] if len(rows) == 1 else None


def _name(method: str) -> str:
    return "full fine-tuning" if method == "full" else wording.METHODS[method]


def _ratios(pairs: list[Pair]) -> Iterator[Sentence | None]:
    """Yield the ratios of memory and speed over all documents."""
    for method, base in PAIRS:
        chosen = [pair for pair in pairs if (pair.row["method"], pair.base["method"]) == (method, base)]
        for values, what in (
            ([(pair, pair.memory) for pair in chosen if pair.memory], "the peak memory"),
            ([(pair, pair.speed) for pair in chosen if pair.speed], "the speed"),
        ):
            if not values:
                continue
            used = [pair for pair, _ in values]
            verb = "needs" if what == "the peak memory" else "reaches"
            ratios = [(pair.row["source"], value) for pair, value in values]
            means = document_means(ratios)
            opposed = " The documents disagree about which is faster." if min(means) < 1 < max(means) and verb == "reaches" else ""
            numbers = [value for _, value in ratios]
            ends = f" (pairs: {ratio(min(numbers))} to {ratio(max(numbers))})" if len(numbers) > 1 else ""
            yield sentence(
                f"{wording.METHODS[method]} {verb} {ratio(mean_over_documents(ratios))}{ends} {what} of {_name(base)}, "
                f"the geometric mean of {len(values)} pair{'s' * (len(values) > 1)} in {_number_of_documents(used)}.{opposed}",
                [row for pair in used for row in pair.rows],
            )


def _number_of_documents(pairs: Sequence[Pair]) -> str:
    number = len({pair.row["source"] for pair in pairs})
    return f"{number} document{'s' * (number > 1)}"


def _documents(pairs: list[Pair]) -> Iterator[Sentence | None]:
    """Yield the documents in which QLoRA needs more memory than LoRA."""
    quantised = [pair for pair in pairs if (pair.row["method"], pair.base["method"]) == ("qlora", "lora") and pair.memory]
    for source, group in gathered(quantised, lambda pair: pair.row["source"]).items():
        more = [pair for pair in group if (pair.memory or 0) > 1]
        if more:
            models = sorted({pair.model for pair in more})
            lengths = sorted({f"{pair.row['sequence_length']:,}" for pair in more if pair.row["sequence_length"]})
            where = f" at {listed(lengths)} tokens" if lengths else ""
            yield sentence(
                f"In document {source} QLoRA needs more memory than LoRA in {len(more)} of {len(group)} pairs{where}: "
                f"a median of {spread([pair.memory or 0 for pair in more])} for {listed(models)}.",
                [row for pair in more for row in pair.rows],
            )


def _crossovers(pairs: list[Pair]) -> Iterator[Sentence | None]:
    """Yield the sequence length at which QLoRA stops saving memory, for each sweep of lengths."""
    for ordered in _sweeps(pairs):
        first, last = ordered[0].row["sequence_length"], ordered[-1].row["sequence_length"]
        row = ordered[0].row
        yield sentence(
            f"{ordered[0].model} on {wording.devices(row)}, micro-batch {row['micro_batch']}, {first:,} to {last:,} tokens (document {row['source']}): {_crossover(ordered)}.",
            [row for pair in ordered for row in pair.rows],
        )


def _sweeps(pairs: list[Pair]) -> Iterator[list[Pair]]:
    """Yield the pairs of QLoRA and LoRA that differ in their row length alone, shortest rows first."""
    quantised = [
        pair
        for pair in pairs
        if (pair.row["method"], pair.base["method"]) == ("qlora", "lora") and pair.saved_bytes is not None and pair.row["sequence_length"]
    ]
    sweep = tuple(name for name in SAME if name != "sequence_length")
    for group in gathered(quantised, lambda pair: (pair.model, *(pair.row[name] for name in sweep))).values():
        if len(group) > 1:
            yield sorted(group, key=lambda pair: pair.row["sequence_length"])


def _crossover(ordered: Sequence[Pair]) -> str:
    for low, high in pairwise(ordered):
        before, after = low.saved_bytes or 0.0, high.saved_bytes or 0.0
        if before > 0 >= after:
            length = low.row["sequence_length"] + before / (before - after) * (high.row["sequence_length"] - low.row["sequence_length"])
            return f"QLoRA saves memory below about {length:,.0f} tokens and needs more above"
    saved = [pair.saved_bytes or 0.0 for pair in ordered]
    if min(saved) > 0:
        return f"QLoRA saves {gib(min(saved))} to {gib(max(saved))}; the crossover is not in this range"
    return "the saving of QLoRA has no single crossover in this range" if max(saved) > 0 else "QLoRA saves no memory in this range"


def _table(pairs: list[Pair]) -> Table:
    columns: list[Column[Pair]] = [
        Column("Method", lambda pair: result_link(wording.method(pair.row), pair.row)),
        Column("Compared with", lambda pair: result_link(wording.method(pair.base), pair.base)),
        Column("Model", lambda pair: tables.text(pair.model)),
        Column("Accelerator", lambda pair: tables.text(wording.devices(pair.row))),
        Column("Tokens per row", lambda pair: tables.number(pair.row["sequence_length"], lambda value: f"{value:,}"), numeric=True),
        Column("Micro-batch", lambda pair: tables.number(pair.row["micro_batch"]), numeric=True),
        Column("Memory ratio", lambda pair: tables.number(pair.memory, ratio), numeric=True),
        Column("Speed ratio", lambda pair: tables.number(pair.speed, ratio), numeric=True),
        Column("From", lambda pair: tables.text(pair.row["source"], href=document_path(pair.row["source"]))),
    ]
    return tables.table("Pairs", columns, pairs, interactive=True, searchable=False)


def _chart(evidence: Evidence, pairs: list[Pair]) -> Chart | None:
    """Return the peak memory of the three methods where one document has all of them."""
    bases = [pair for pair in pairs if pair.memory and pair.base["method"] == "full" and pair.row["accelerator_count"] == 1]
    complete = [group for group in gathered(bases, lambda pair: pair.base["result_id"]).values() if len(group) == len(PAIRS) - 1]
    values = {}
    by_document: dict[str, list[str]] = {}
    for group in complete:
        base = group[0].base
        label = f"{group[0].model}|{base['accelerator_name']} ({base['source']})"
        by_document.setdefault(base["source"], []).append(label)
        for row in (base, *(pair.row for pair in group)):
            values[label, row["method"]] = {
                "label": label,
                "x": round((peak_memory(evidence, row) or 0) / GIB, 2),
                "series": _name(row["method"]),
            }
    kept = [label for labels in by_document.values() for label in dict.fromkeys(labels[:MOST_OF_DOCUMENT])][:MOST_BARS]
    caption = f"Peak memory by method, where one document has all three under the same stated conditions (at most {MOST_OF_DOCUMENT} models of a document)."
    return bars("memory", caption, [value for (label, _), value in values.items() if label in kept], "peak memory (GiB)", "Method")


def _length_chart(evidence: Evidence, pairs: list[Pair]) -> Chart | None:
    """Return the peak memory over the row length of LoRA and QLoRA, for the sweeps with the most lengths."""
    sweeps = sorted(_sweeps(pairs), key=len, reverse=True)[:MOST_SWEEPS]
    values = [
        {
            "x": row["sequence_length"],
            "y": round((peak_memory(evidence, row) or 0) / GIB, 2),
            "series": _name(row["method"]),
            "line": f"{number} {row['method']}",
            "label": f"{pair.model}, {wording.devices(row)}, micro-batch {row['micro_batch']}, document {row['source']}",
        }
        for number, ordered in enumerate(sweeps)
        for pair in ordered
        for row in pair.rows
    ]
    caption = f"Peak memory over the tokens of a row, for the {len(sweeps)} sweeps with the most lengths: one line per method, model and accelerator. Both scales are logarithmic."
    return scatter("memory-by-length", caption, values, "tokens per row", "peak memory (GiB)", "Method", lines=True)
