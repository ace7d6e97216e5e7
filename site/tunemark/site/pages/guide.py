"""The guide: how to read a number, definitions, glossary, how to contribute, and the fields of a record."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pydantic import BaseModel

from tunemark.schema.comparability import COMPARABILITY_KEYS
from tunemark.schema.privacy import PATTERNS
from tunemark.schema.quantities import QUANTITIES, Quantity
from tunemark.schema.records.division import FREE_SETTINGS, MEANING
from tunemark.schema.records.json_schema import field_reference
from tunemark.schema.records.published import PublishedResult
from tunemark.schema.records.submission import Environment, Submission
from tunemark.schema.vocabulary import Status, WarningKind
from tunemark.site import tables, wording
from tunemark.site.page import Page
from tunemark.site.queries import Catalogue
from tunemark.site.render import code_spans
from tunemark.site.tables import Cell, Column, Row, Table

CRUMBS = (("Guide", "guide/index"),)
EXAMINED = {
    "corruptions": "Submissions",
    "facts": "Facts",
    "files": "Files",
    "texts": "Texts",
    "honest": "Honest submissions",
    "messages": "Honest messages",
    "corruptions kept back": "Submissions, held out",
    "facts kept back": "Facts, held out",
    "texts kept back": "Texts, held out",
    "honest kept back": "Honest submissions, held out",
}
"""Kind of examination -> title of its table."""
BETTER = {"lower": "lower", "higher": "higher", None: "neither"}
GLOSSARY = {
    "Accelerator": "The device that does the training: a GPU, a TPU, an AWS Trainium chip or core, or a CPU.",
    "Adapter": "The small trained matrices that LoRA adds to frozen weights.",
    "Allocator": "The part of a framework that manages device memory. It reports allocated and reserved bytes.",
    "Baseline": "The run or configuration that others are compared with.",
    "Card": "The file with the facts of an accelerator or a model, or with the settings of a workload.",
    "Checkpointing": "Discarding activations in the forward pass and recomputing them in the backward pass, to save memory.",
    "Comparability group": "Results that agree in every condition that a ranking needs.",
    "Confidence interval": "The range that covers the true value in 95% of cases under repeated measurement.",
    "Converted result": "A result derived from the raw logs of another harness, such as MLPerf.",
    "Division": " ".join(f"`{division.value}`: {meaning}." for division, meaning in MEANING.items()),
    "Effective setting": "The value of a setting that the run used, read back from the libraries.",
    "Frontier": "The largest micro-batch and sequence length that fit in memory.",
    "Gate": 'A check that training is correct, such as that losses are inside the expected band. "The gate" is the set of checks that a submission or a fact must pass.',
    "Global batch": "Rows per optimizer step over all devices: micro-batch x gradient accumulation x data-parallel ranks.",
    "Gradient accumulation": "Summing gradients over several micro-steps before one optimizer step.",
    "HFU": "Hardware FLOPs utilisation: like MFU, with recomputed FLOPs included.",
    "Instance": "A machine as a cloud provider rents it, with a fixed number of accelerators.",
    "LoRA": "Low-rank adaptation: the base weights are frozen and small adapters are trained.",
    "MAFU": "Model FLOPs over time and the matrix rate that the same device reached in a probe.",
    "MFU": "Model FLOPs utilisation: model FLOPs over time and the dense peak of the card.",
    "Micro-batch": "Rows of one forward and backward pass on one device.",
    "Micro-step": "One forward and backward pass of one micro-batch.",
    "Out of memory": "A run that failed because device or host memory was exhausted. It is a result.",
    "Override": "A setting that differs from the workload card. It moves a run to the tuned or the open division.",
    "Packing": "Joining documents into rows of fixed length, without padding.",
    "Padding efficiency": "Real tokens as a share of all slots in a batch.",
    "Peak memory": "The highest memory use of one device during a run. The method of measurement is part of the figure.",
    "Price basis": "The kind of price, the providers and the day that all costs of a table share. The default is the cheapest on-demand list price.",
    "Published result": "A figure from a document, without a raw log.",
    "QLoRA": "LoRA on frozen weights that are quantised to 4 bits.",
    "Rank": "One of the processes of a distributed run, or the position in a ranking.",
    "Result": "One row of the database: a measured, published or converted run with its conditions.",
    "Row": "One sequence of a batch. Its length in tokens is the sequence length.",
    "Run": "One execution of a workload by the harness.",
    "Steady window": "The steps after warm-up from which figures are derived.",
    "Step": "One optimizer step.",
    "Study": "A series of runs requested together: a sweep, a frontier, an A/B comparison, tuning or repeats. Also a page that analyses results, with citations.",
    "Submission": "The JSON file that a run writes.",
    "Training fabric": "The network between the nodes of one instance type, such as InfiniBand or EFA. Costs on several nodes need one.",
    "Trust level": "The evidence behind a result: published, converted, measured or reproduced.",
    "Verdict": "The result of an audit rule: impossible, inconsistent, suspicious or ambiguous.",
    "Warm-up": "The first steps, before step times are steady. They are kept and excluded from figures.",
    "Workload": "A standard benchmark: model, method, data, batch, optimizer and quality target, on a card.",
}
"""Term -> its one definition. `code` is marked up."""


class Checker(NamedTuple):
    """A checker of entries, and how many corruptions of a passing entry it catches."""

    name: str
    caught: int
    attempts: int
    answer: str


CHECKERS = (
    Checker("MLPerf package checker", 7, 21, "a message, and exit code 0 even then"),
    Checker("ClickBench checks", 2, 25, "not recorded"),
)
"""Corruptions were written for the format of each, so that the shares are not measured on one list."""


def pages(catalogue: Catalogue, guide_pages: Sequence[Page]) -> Iterator[Page]:
    """Yield the guide. `guide_pages` are the pages of other modules that its first page lists."""
    made = [
        Page(
            "guide/definitions",
            "Definitions",
            "definitions.md.j2",
            {"divisions": MEANING.items(), "free_settings": FREE_SETTINGS.items()},
            CRUMBS,
            wide=False,
        ),
        Page("guide/glossary", "Glossary", "glossary.md.j2", {"terms": _terms()}, CRUMBS),
        Page("guide/contribute", "How to contribute", "contribute.md.j2", _contributing(), CRUMBS),
        Page("guide/gate", "How strict is the gate", "gate.md.j2", _examination(catalogue), CRUMBS),
        Page("guide/fields", "Field reference", "fields.md.j2", _reference(), CRUMBS),
    ]
    yield from made
    reading = {
        "listed": [(page.title, page.path) for page in (*made, *guide_pages)],
        "quantities": _quantities(),
        "trust": wording.TRUST,
        "keys": [(wording.words(key), meaning) for key, meaning in COMPARABILITY_KEYS.items()],
        "statuses": [wording.words(status.value) for status in Status],
        "warnings": [wording.words(warning.value) for warning in WarningKind],
    }
    yield Page("guide/index", "How to read a number", "reading.md.j2", reading)


def anchor(term: str) -> str:
    """Return the anchor of a glossary term: `Steady window` -> `steady-window`."""
    return re.sub(r"[^a-z0-9]+", "-", term.lower()).strip("-")


def _terms() -> list[tuple[str, str, object]]:
    return [(anchor(term), term, code_spans(meaning)) for term, meaning in GLOSSARY.items()]


def _contributing() -> dict[str, object]:
    return {"recorded": _fields("What is recorded about the machine", Environment), "never": sorted(PATTERNS)}


def _examination(catalogue: Catalogue) -> dict[str, object]:
    """Return the outcome of the examination by kind, and the comparison with other checkers."""
    scores = {kind: [row for row in catalogue.gate_scores if row["kind"] == kind] for kind in EXAMINED}
    totals = {kind: row for kind, rows in scores.items() for row in rows if row["family"] == "all"}
    columns: list[Column[Row]] = [
        Column("Wrong in", lambda row: tables.text(row["family"])),
        Column("Refused everywhere", lambda row: _part(row["caught_everywhere"], row["attempts"]), numeric=True),
        Column("Cases refused", lambda row: _part(row["cases_caught"], row["cases"]), numeric=True),
    ]
    named = Column[Row]("Corrupted field named", lambda row: _part(row["named"], row["cases_caught"]), numeric=True)
    made = [
        tables.table(title, [*columns, *([named] if rows[0]["named"] is not None else [])], rows, searchable=False)
        for kind, title in EXAMINED.items()
        if len(rows := scores[kind]) > 1
    ]
    own = totals.get("corruptions")
    checkers = [Checker("Tunemark", own["caught_everywhere"], own["attempts"], "refused, exit code 3")] if own else []
    compared: list[Column[Checker]] = [
        Column("Checker", lambda checker: tables.text(checker.name)),
        Column("Corruptions caught", lambda checker: _part(checker.caught, checker.attempts), numeric=True),
        Column("When it finds one", lambda checker: tables.text(checker.answer)),
    ]
    summary: list[Column[str]] = [
        Column("Examined", lambda kind: tables.text(EXAMINED[kind])),
        Column("Right decision", lambda kind: _part(totals[kind]["caught_everywhere"], totals[kind]["attempts"]), numeric=True),
        Column("Cases", lambda kind: _part(totals[kind]["cases_caught"], totals[kind]["cases"]), numeric=True),
    ]
    return {
        "checkers": tables.table("Checkers", compared, [*checkers, *CHECKERS], searchable=False),
        "summary": tables.table("Summary", summary, totals, searchable=False) if totals else None,
        "made": made,
    }


def _part(part: int, whole: int) -> Cell:
    return Cell(f"{part:,} of {whole:,}" if whole else "none", sort=part / whole if whole else 0.0)


def _reference() -> dict[str, object]:
    return {
        "submission": _fields("Fields of a submission", Submission),
        "published": _fields("Fields of a published result", PublishedResult),
    }


def _quantities() -> Table:
    columns: list[Column[Quantity]] = [
        Column("Quantity", lambda row: tables.text(row.label, small=row.key)),
        Column("Unit", lambda row: tables.text("count, share or ratio" if row.unit == "1" else row.unit)),
        Column("Better", lambda row: tables.text(BETTER[row.better])),
        Column("Meaning", lambda row: Cell(code_spans(row.meaning), sort=row.meaning.lower())),
    ]
    return tables.table("Quantities", columns, QUANTITIES.values(), interactive=True)


def _fields(name: str, model: type[BaseModel]) -> Table:
    columns: list[Column[tuple[str, str, str]]] = [
        Column("Field", lambda field: tables.text(field[0])),
        Column("Type", lambda field: tables.text(field[1].replace("`", ""))),
        Column("Meaning", lambda field: Cell(code_spans(field[2]), sort=field[2].lower())),
    ]
    return tables.table(name, columns, field_reference(model), interactive=True)
