"""Document 004 recomputed from its own tables: relative speeds, memory savings, four variants of QLoRA, tokens per epoch."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from tunemark.schema.formats import percent, significant
from tunemark.site import tables, wording
from tunemark.site.charts import Chart
from tunemark.site.page import audit_path
from tunemark.site.pages.studies import (
    Evidence,
    Sentence,
    Study,
    ambiguous_caveat,
    gathered,
    listed,
    ranges,
    result_link,
    sentence,
    share,
    written,
)
from tunemark.site.tables import Cell, Column, Row, Table

ORDER = 7
SOURCE = "004"
SAVINGS, EXAMPLES, VARIANTS = "Memory Savings Comparison", "Practical Examples", "QLoRA Configuration Impact"
"""Sections: memory of three methods, the same in another table, and the variants of QLoRA."""
BASELINE = "Baseline"
"""Printed quality of the variant that the others are compared with."""
MATCH = 0.01
"""Largest difference of a recomputed relative speed from the printed one that counts as a match."""
SAME_WORK = 1.05
"""Largest ratio of the tokens of two epochs that rounding of rates and times can explain."""
NUMBER = re.compile(r"[0-9][0-9,]*(\.[0-9]+)?")
METHODS = ("full", "lora", "qlora")


@dataclass(frozen=True, slots=True)
class Speed:
    """A printed relative speed, and the ratio of the printed rates."""

    row: Row
    tokens_per_s: float
    printed: float
    recomputed: float

    @property
    def difference(self) -> float:
        """Recomputed minus printed."""
        return self.recomputed - self.printed


@dataclass(frozen=True, slots=True)
class Effect:
    """The relative change of a figure from the baseline variant, with the range that its rounding allows."""

    change: float
    low: float
    high: float

    @property
    def words(self) -> str:
        """Change and range: `-12.5% (-23.5% to 0.0%)`."""
        return f"{100 * self.change:+.1f}% ({100 * self.low:+.1f}% to {100 * self.high:+.1f}%)"


def study(evidence: Evidence) -> Study:
    """Return the study of document 004's arithmetic."""
    # A check of arithmetic compares printed figures with each other, so it covers impossible results too; its sentences name them.
    printed = [row for row in evidence.catalogue.results if row["source"] == SOURCE]
    speeds = list(_speeds(evidence, printed))
    variants = [row for row in evidence.of_source(SOURCE) if row["section"] == VARIANTS]
    sentences = written(
        [
            _arithmetic(speeds),
            *_of_possible(speeds),
            *_savings(evidence),
            _two_tables(evidence),
            *_effects(evidence, variants),
            _combined(evidence, variants),
            *_epochs(evidence),
        ]
    )
    made = [_speed_table(evidence, speeds), _memory_table(evidence, printed), _variant_table(evidence, variants)]
    return Study(
        key="guide-recomputed",
        title="A published GPU guide, recomputed",
        question="Which numbers of a published GPU guide follow from its own tables, and which contradict each other?",
        sentences=sentences,
        tables=tuple(table for table in made if table.rows),
        answers=1,
        draw=(lambda: _chart(evidence, variants),),
        method=(
            f"All figures are printed in document {SOURCE}. A relative speed is the ratio of two printed rates; it matches if it differs from the printed one by at most {MATCH}.",
            "The saving of a method is 1 minus its memory divided by the memory of full fine-tuning, for the same model in the same table.",
            "Changes of the variants are relative to standard QLoRA. The range in brackets is what the rounding of the two printed figures allows.",
            "Tokens per epoch are the printed rate multiplied by the printed time per epoch.",
        ),
        caveats=(
            "Matching arithmetic does not show that the figures were measured. The audit lists the results that are impossible as printed; they are marked in the table.",
            "The document states no figure for quality and no number of runs, so there is no interval for one more run.",
            *ambiguous_caveat(evidence, sentences),
        ),
    )


# Relative speeds -----------------------------------------------------------------------------------


def _speeds(evidence: Evidence, rows: Sequence[Row]) -> Iterator[Speed]:
    """Yield the printed relative speeds; the baseline of a section has the printed speed 1."""
    for members in gathered(rows, lambda row: row["section"]).values():
        known = [
            (row, rate, relative)
            for row in members
            if (rate := evidence.claim(row, "tokens_per_s")) and (relative := evidence.claim(row, "relative_speed"))
        ]
        base = next((rate for _, rate, relative in known if relative == 1), None)
        if base:
            yield from (Speed(row, rate, relative, rate / base) for row, rate, relative in known)


def _arithmetic(speeds: Sequence[Speed]) -> Sentence | None:
    if not speeds:
        return None
    matching = [speed for speed in speeds if abs(speed.difference) <= MATCH]
    impossible = sum(speed.row["impossible"] for speed in speeds)
    largest = max(abs(speed.difference) for speed in speeds)
    warning = f" {impossible} of these results are impossible as printed, so the match does not confirm their speeds." if impossible else ""
    return sentence(
        f"{len(matching)} of {len(speeds)} printed relative speeds match the ratio of the printed rates within {MATCH}; the largest difference is {largest:.4f}.{warning}",
        [speed.row for speed in speeds],
    )


def _of_possible(speeds: Sequence[Speed]) -> Iterator[Sentence | None]:
    """Yield the relative speed of each accelerator in the results that are possible."""
    usable = [speed for speed in speeds if not speed.row["impossible"]]
    bases = {speed.row["section"]: speed.row for speed in usable if speed.printed == 1}
    compared = [speed for speed in usable if speed.printed != 1 and speed.row["section"] in bases]
    for name, group in gathered(compared, lambda speed: speed.row["accelerator_name"]).items():
        base = bases[group[0].row["section"]]
        parts = [f"{speed.recomputed:.3f} ({speed.row['model_name']}, {wording.method(speed.row)})" for speed in group]
        yield sentence(
            f"Among the possible results, {name} reaches {listed(parts)} times the rate of {base['accelerator_name']}.",
            [row for speed in group for row in (speed.row, bases[speed.row["section"]])],
        )


def _epoch_tokens(evidence: Evidence, row: Row) -> float | None:
    rate, seconds = evidence.figure(row, "tokens_per_s"), evidence.figure(row, "epoch_time_s")
    return rate * seconds if rate and seconds else None


def _epochs(evidence: Evidence) -> Iterator[Sentence | None]:
    """Yield the tokens per epoch that the tables imply: one sentence for equal numbers, one for different numbers."""
    known = [(row, tokens) for row in evidence.of_source(SOURCE) if (tokens := _epoch_tokens(evidence, row))]
    groups = [group for group in gathered(known, lambda pair: pair[0]["section"]).values() if len(group) > 1]
    for same, verdict in ((True, "so rates and times agree"), (False, "which is possible only if these results used different data")):
        chosen = [group for group in groups if (_ratio_of_epochs(group) <= SAME_WORK) is same]
        parts = [
            f"{significant(min(tokens for _, tokens in group) / 1e6)} to {significant(max(tokens for _, tokens in group) / 1e6)} million in "
            f"'{group[0][0]['section']}'"
            for group in chosen
        ]
        if parts:
            yield sentence(
                f"Rate multiplied by time gives the tokens per epoch: {listed(parts)}, {verdict}.",
                [row for group in chosen for row, _ in group],
            )


def _ratio_of_epochs(group: Sequence[tuple[Row, float]]) -> float:
    return max(tokens for _, tokens in group) / min(tokens for _, tokens in group)


# Memory --------------------------------------------------------------------------------------------


def _by_model(evidence: Evidence, rows: Sequence[Row], section: str) -> dict[str, dict[str, Row]]:
    """Return the results of a memory table by model and method."""
    chosen = [row for row in rows if row["section"] == section]
    groups = gathered(chosen, lambda row: evidence.model(row) or "")
    return {model: {row["method"]: row for row in members} for model, members in groups.items()}


def _printed(evidence: Evidence, row: Row | None, name: str) -> str | None:
    """Return a figure or a label as the document prints it."""
    if row is None:
        return None
    claims = evidence.catalogue.claims.get(row["result_id"], ())
    return next((claim["printed"] for claim in claims if claim["quantity"] == name), None) or evidence.label(row, name)


def _saving(evidence: Evidence, methods: dict[str, Row]) -> float | None:
    """Return the share of memory that QLoRA saves compared with full fine-tuning."""
    full, qlora = (evidence.figure(methods.get(method), "peak_memory_bytes") for method in ("full", "qlora"))
    return 1 - qlora / full if full and qlora else None


def _savings(evidence: Evidence) -> Iterator[Sentence | None]:
    """Yield the saving of QLoRA recomputed, and the models that only QLoRA could train."""
    models = _by_model(evidence, evidence.of_source(SOURCE), SAVINGS)
    parts, rows = [], []
    for model, methods in models.items():
        saving, printed = _saving(evidence, methods), _printed(evidence, methods.get("qlora"), "memory_reduction")
        if saving and printed:
            parts.append(f"{model} {share(saving)} (printed '{printed}')")
            rows += [methods["full"], methods["qlora"]]
    if parts:
        yield sentence(f"QLoRA saves memory compared with full fine-tuning in '{SAVINGS}': {listed(parts)}.", rows)


def _two_tables(evidence: Evidence) -> Sentence | None:
    """Return the sentence about models for which two tables of the document imply different savings."""
    first, second = (_by_model(evidence, evidence.of_source(SOURCE), section) for section in (SAVINGS, EXAMPLES))
    parts, rows = [], []
    for model in (model for model in first if model in second):
        one, other = _saving(evidence, first[model]), _saving(evidence, second[model])
        memory = [evidence.figure(methods.get("full"), "peak_memory_bytes") for methods in (first[model], second[model])]
        if one and other and memory[0] and memory[1] and memory[0] != memory[1]:
            parts.append(f"{model} {memory[0] / 1e9:g} and {memory[1] / 1e9:g} GB, a saving of {share(one)} or {share(other)}")
            rows += [methods[method] for methods in (first[model], second[model]) for method in ("full", "qlora")]
    text = f"Two tables print different memory for full fine-tuning of the same model: {'; '.join(parts)}."
    return sentence(text, rows) if parts else None


# Variants ------------------------------------------------------------------------------------------


def _bounds(evidence: Evidence, row: Row, quantity: str) -> tuple[float, float, float] | None:
    """Return a printed figure with the lowest and the highest value that round to it."""
    value = evidence.figure(row, quantity)
    digits = NUMBER.search(_printed(evidence, row, quantity) or "")
    if not value or not digits:
        return None
    number = digits[0].replace(",", "")
    # Zeros at the end of an integer may come from rounding: 4,650 is 4,645 to 4,655.
    places = len(digits[1]) - 1 if digits[1] else len(number.rstrip("0")) - len(number)
    half = 0.5 * 10**-places * value / float(number)
    return value, value - half, value + half


def _effect(evidence: Evidence, row: Row, base: Row, quantity: str) -> Effect | None:
    """Return the change of a figure from the baseline."""
    of_row, of_base = _bounds(evidence, row, quantity), _bounds(evidence, base, quantity)
    if of_row is None or of_base is None:
        return None
    ends = [top / bottom - 1 for top, bottom in product(of_row[1:], of_base[1:])]
    return Effect(of_row[0] / of_base[0] - 1, min(ends), max(ends))


def _compared(evidence: Evidence, variants: Sequence[Row]) -> tuple[Row | None, list[tuple[str, Row]]]:
    """Return the baseline variant, and the others with their names."""
    base = next((row for row in variants if evidence.label(row, "quality") == BASELINE), None)
    return base, [(evidence.label(row, "configuration") or "", row) for row in variants if row is not base]


def _effects(evidence: Evidence, variants: Sequence[Row]) -> Iterator[Sentence | None]:
    """Yield the change of memory and speed of each variant."""
    base, others = _compared(evidence, variants)
    for name, row in others if base else ():
        memory, speed = (_effect(evidence, row, base, quantity) for quantity in ("peak_memory_bytes", "tokens_per_s"))  # type: ignore[arg-type]
        if memory and speed:
            yield sentence(
                f"{evidence.model(row)}, {wording.devices(row)}, {wording.method(row)} '{name}': memory {memory.words}, tokens/s {speed.words} compared with "
                f"'{evidence.label(base, 'configuration')}'.",  # type: ignore[arg-type]
                [base, row],  # type: ignore[list-item]
            )


def _combined(evidence: Evidence, variants: Sequence[Row]) -> Sentence | None:
    """Return the effects of the combined variant, compared with the product of the two single effects."""
    base, others = _compared(evidence, variants)
    if base is None or len(others) != 3:  # noqa: PLR2004 - two variants and their combination
        return None
    parts = []
    for quantity, what in (("peak_memory_bytes", "memory"), ("tokens_per_s", "tokens/s")):
        first, second, both = (_effect(evidence, row, base, quantity) for _, row in others)
        if first and second and both:
            parts.append(f"{what} {percent((1 + first.change) * (1 + second.change) - 1)} expected, {percent(both.change)} printed")
    text = f"If the two single effects multiplied, the combination would change by their product: {'; '.join(parts)}."
    return sentence(text, [base, *(row for _, row in others)]) if parts else None


# Tables and chart ----------------------------------------------------------------------------------


def _mark(row: Row) -> dict[str, str]:
    """Return the mark of an impossible result."""
    return {"mark": "impossible", "mark_href": audit_path(SOURCE)} if row["impossible"] else {}


def _speed_table(evidence: Evidence, speeds: Sequence[Speed]) -> Table:
    columns: list[Column[Speed]] = [
        Column("Accelerator", lambda speed: result_link(wording.devices(speed.row), speed.row)),
        Column("Model", lambda speed: tables.text(evidence.model(speed.row), small=wording.method(speed.row))),
        Column("Tokens/s", lambda speed: Cell(f"{speed.tokens_per_s:,.0f}", sort=speed.tokens_per_s, **_mark(speed.row)), numeric=True),
        Column("Printed", lambda speed: tables.number(speed.printed, lambda value: f"{value:.2f}"), numeric=True),
        Column("Recomputed", lambda speed: tables.number(speed.recomputed, lambda value: f"{value:.4f}"), numeric=True),
        Column("Difference", lambda speed: tables.number(speed.difference, lambda value: f"{value:+.4f}"), numeric=True),
    ]
    return tables.table("Relative speeds", columns, speeds, interactive=True, searchable=False)


def _memory_table(evidence: Evidence, printed: Sequence[Row]) -> Table:
    rows = [
        (section, model, methods) for section in (SAVINGS, EXAMPLES) for model, methods in _by_model(evidence, printed, section).items()
    ]

    def memory(methods: dict[str, Row], method: str) -> Cell:
        row = methods.get(method)
        if row is not None and row["failed"]:
            return tables.text("out of memory", sort=float("inf"))
        value = evidence.figure(row, "peak_memory_bytes")
        return tables.number(value, lambda value: f"{value / 1e9:g} GB")

    def memory_column(method: str) -> Column[tuple[str, str, dict[str, Row]]]:
        head = wording.sentence(wording.METHODS[method])
        return Column(head, lambda item: memory(item[2], method), numeric=True)

    columns: list[Column[tuple[str, str, dict[str, Row]]]] = [
        Column("Model", lambda item: tables.text(item[1], small=item[0])),
        *map(memory_column, METHODS),
        Column("Saving of QLoRA, recomputed", lambda item: tables.number(_saving(evidence, item[2]), share), numeric=True),
        Column("Printed", lambda item: tables.text(_printed(evidence, item[2].get("qlora"), "memory_reduction")), numeric=True),
    ]
    return tables.table("Memory savings", columns, rows, interactive=True, searchable=False)


def _variant_table(evidence: Evidence, variants: Sequence[Row]) -> Table:
    base, _ = _compared(evidence, variants)

    def figure(row: Row, quantity: str, show: str) -> Cell:
        value = evidence.figure(row, quantity)
        effect = _effect(evidence, row, base, quantity) if base is not None and row is not base else None
        shown = "" if value is None else f"{value / 1e9:g} GB" if show == "GB" else f"{value:,.0f}"
        return tables.text(shown, small=effect.words if effect else "", sort=value)

    columns: list[Column[Row]] = [
        Column("Variant", lambda row: result_link(evidence.label(row, "configuration") or "", row)),
        Column("Peak memory", lambda row: figure(row, "peak_memory_bytes", "GB"), numeric=True),
        Column("Tokens/s", lambda row: figure(row, "tokens_per_s", ""), numeric=True),
        Column("Quality, as printed", lambda row: tables.text(evidence.label(row, "quality"), small="without a figure")),
    ]
    return tables.table("Variants of QLoRA", columns, variants, searchable=False)


def _chart(evidence: Evidence, variants: Sequence[Row]) -> Chart | None:
    """Return the change of memory and speed of each variant."""
    base, others = _compared(evidence, variants)
    if base is None:
        return None
    values = [
        {
            "label": name,
            "x": round(1 + effect.change, 4),
            "low": round(1 + effect.low, 4),
            "high": round(1 + effect.high, 4),
            "series": series,
        }
        for name, row in others
        for quantity, series in (("peak_memory_bytes", "peak memory"), ("tokens_per_s", "tokens/s"))
        if (effect := _effect(evidence, row, base, quantity))
    ]
    caption = f"Variants of QLoRA relative to standard QLoRA, as document {SOURCE} prints them. The lines show what rounding allows."
    return ranges("variants", caption, values, "ratio to standard QLoRA (log scale)", "Figure")
