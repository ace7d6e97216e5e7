"""Checks of published and converted results, and of the documents that they come from.

Claims are compared with their printed text, conditions with the labels of the row and the cards, and references with the rows of a
document. What a document prints is never judged here, only whether it was copied correctly.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel

from tunemark.collector.gate.fact_checks import Neighbours, missing, text_problems
from tunemark.collector.gate.read import read_or_none
from tunemark.collector.importers.table_text import PER_DEVICE, printed_value
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.records.converted import ConvertedResult
from tunemark.schema.records.published import Claim, Conditions, PublishedResult, PublishedSet, SourceDocument, Statement, published_results
from tunemark.schema.records.reading import Problem
from tunemark.schema.vocabulary import BEFORE_AMPERE, Method

ROUNDING = 5e-6
"""Relative rounding of a printed figure: the importers of logs print six significant digits."""
WHOLE_BYTE = 1.0  # Bytes that are derived from printed GiB are rounded to whole ones.
AHEAD = 2
"""Betas and versions installed from a repository come before a release: FlashAttention 4, where 2 is the newest released."""
MOST_DEVICES, LONGEST_ROW = 1_000_000, 2**24
METHOD_LABELS = ("method", "mode", "finetuning_method", "peft_method", "train_type")
COUNT_LABELS = ("num_gpus", "accelerator_count")
"""Names of labels that hold a table's words about a condition."""
METHODS = {"lora": {Method.LORA, Method.QLORA}, "qlora": {Method.QLORA}, "full": {Method.FULL}}
"""What a word of a label can mean: tables call adapters on quantised weights LoRA too."""
REFERENCE = re.compile(r"\{([^{}/]+)/([^{}/]+)\}")
RECORD_ID = re.compile(r'"(\d{3}-(?:\d{3}|S\d{2,3}))"')


def fact_record_problems(record: BaseModel, content: bytes, path: Path, facts: FactBase) -> Iterator[Problem]:
    """Yield the problems of the file of a document, of a published or converted result, or of a set of results."""
    text = content.decode()
    for line, problem in text_problems(text):
        yield replace(problem, field=f"line {line}: {problem.field}")
    results = published_results(record)
    for result in results:
        for problem in (*result_problems(result), *condition_problems(result.conditions, facts)):
            yield replace(problem, field=f"{result.id}: {problem.field}") if isinstance(record, PublishedSet) else problem
    if isinstance(record, SourceDocument):
        for statement in record.statements:
            for problem in result_problems(statement):
                yield replace(problem, field=f"{statement.id}: {problem.field}")
    elif isinstance(record, ConvertedResult):
        yield from condition_problems(record.conditions, facts)
    yield from _place(path, [record.id] if isinstance(record, SourceDocument) else [result.id for result in results])


def result_problems(result: PublishedResult | Statement) -> Iterator[Problem]:
    """Yield problems of the claims of a result or a statement."""
    conditions = result.conditions if isinstance(result, PublishedResult) else None
    if isinstance(result, PublishedResult):
        yield from _labels(result)
    for quantity, claim in result.claims.items():
        for problem in claim_problems(quantity, claim, conditions):
            yield Problem(f"claims.{quantity}.{problem.field}", problem.value, problem.fix)


def _labels(result: PublishedResult) -> Iterator[Problem]:
    """Yield conditions that the words of the document's own table contradict: method and number of devices."""
    labels, conditions = result.labels, result.conditions
    for name, words in _printed(labels, METHOD_LABELS, r"(?i)\b(q?lora|full)\b"):
        if conditions.method is not None and conditions.method not in METHODS[words[1].lower()]:
            yield Problem("conditions.method", repr(conditions.method.value), f"the label {name} of the table is {labels[name]!r}")
    counts = [
        *_printed(labels, ("accelerator",), r"\bx ?(\d+)\b|\u00d7 ?(\d+)\b|^(\d+) ?[x\u00d7]"),
        *_printed(labels, COUNT_LABELS, r"^(\d+)x?$"),
    ]
    for name, words in counts:
        if conditions.accelerator_count not in {None, next(int(number) for number in words.groups() if number)}:
            yield Problem("conditions.accelerator_count", str(conditions.accelerator_count), f"the label {name} is {labels[name]!r}")


def _printed(labels: Mapping[str, str], names: Iterable[str], pattern: str) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield the labels of some names in which a pattern occurs, with the match."""
    for name in names:
        if match := re.search(pattern, labels.get(name) or ""):
            yield name, match


def condition_problems(conditions: Conditions, facts: FactBase) -> Iterator[Problem]:
    """Yield problems of the conditions of a result: cards that do not exist, numbers above those of any run, versions to come."""
    for name, key, cards in (("model", conditions.model, facts.models), ("accelerator", conditions.accelerator, facts.accelerators)):
        yield from missing(f"conditions.{name}", key, cards, f"{name}s")
    card, stated = facts.accelerators.get(conditions.accelerator or ""), conditions.settings
    if card and card.architecture in BEFORE_AMPERE and stated.get("attention") == "flash_attention_2":
        fix = f"its kernels need Ampere or newer, and {card.name} is {card.architecture}; leave it out, or name what ran"
        yield Problem("conditions.settings.attention", "'flash_attention_2'", fix)
    if conditions.method is Method.QLORA and re.search(r"int8|\b8.?bit", str(bits := stated.get("quantisation"))):
        yield Problem("conditions.method", "'qlora'", f"has 4-bit weights, and quantisation is {bits!r}; use peft with peft_method")
    limits = {"accelerator_count": MOST_DEVICES, "sequence_length": LONGEST_ROW, "micro_batch": MOST_DEVICES, "global_batch": LONGEST_ROW}
    for name, most in limits.items():
        if (value := getattr(conditions, name)) is not None and value > most:
            yield Problem(f"conditions.{name}", str(value), f"is above {most}, more than any run; correct it")
    for library in (each for each in facts.known.libraries if each.library in conditions.framework):
        printed, newest = conditions.framework[library.library], library.newest.major
        match = re.match(r"v?(\d+)\.\d", printed)
        if match and int(match[1]) > newest + AHEAD:
            fix = f"{newest} is the newest major version known on {library.read_on}; correct it, or add its day to data/known/pypi.toml"
            yield Problem(f"conditions.framework.{library.library}", repr(printed), fix)


def claim_problems(quantity: str, claim: Claim, conditions: Conditions | None) -> Iterator[Problem]:
    """Yield a problem if a value is not its printed figure in the unit of its quantity.

    A note may state how one follows from the other: per device, divided by a number, or worked out from two printed figures.
    """
    values = [claim.value, *(reading.value for reading in claim.readings)]
    if min(values) < 0:
        yield Problem("value", f"{min(values):g}", "is negative; no quantity here is")
    if claim.readings and claim.value not in values[1:]:
        yield Problem("readings", repr(values[1:]), f"no reading has the value, {claim.value:g}; the value must be the literal reading")
    printed = printed_value(quantity, claim.printed)
    if printed is None:
        yield Problem("printed", repr(claim.printed), "has no figure in a unit of this quantity; write it as the document does")
        return
    if "worked out" in (note := claim.note or "").lower():
        return
    factor = float(conditions.accelerator_count or 1) if PER_DEVICE in note and conditions is not None else 1.0
    if divisor := re.search(r"\bdivided by (\d+)\b", note):
        factor = 1 / int(divisor[1])
    wanted, unit = printed * factor, QUANTITIES[quantity].unit
    if abs(claim.value - wanted) > max(ROUNDING * abs(wanted), WHOLE_BYTE if unit == "bytes" else 0.0):
        fix = f"{claim.printed!r} is {wanted:.10g} {unit}; correct the value, or say in a note how it follows"
        yield Problem("value", f"{claim.value:.10g}", fix)


def _place(path: Path, ids: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for results in the folder or file of another id: NNN/NNN-001.json, or NNN/results.json."""
    wrong = next((name for name in ids if name[:3] != path.parent.name), None)
    if re.fullmatch(r"\d{3}", path.parent.name) and wrong is not None:
        yield Problem("id", repr(wrong), f"is in the folder {path.parent.name}; an id begins with its folder")
    if len(ids) == 1 and re.fullmatch(r"\d{3}-\d{3}", path.stem) and ids[0] != path.stem:
        yield Problem("id", repr(ids[0]), f"is in the file {path.name}; a file has the name of its id")


# References between the rows of a document ------------------------------------------------------------


def rows_problems(document: SourceDocument, place: Path, beside: Neighbours) -> Iterator[Problem]:
    """Yield references of a document to rows, figures or devices that do not exist."""
    folders: dict[str, dict[str, set[str]]] = {}

    def names(row: str) -> set[str] | None:
        source, folder = row[:3], place.parents[1] / row[:3]
        if source not in folders:
            records = [read_or_none(path) for path in sorted(folder.glob("*.json"))]
            named = [each for record in records for each in (*published_results(record), *getattr(record, "statements", ()))]
            folders[source] = {each.id: {*each.claims, *each.labels} for each in named}
        # A document that is not in this checkout is not judged.
        return folders[source].get(row) if folder.is_dir() else set()

    for statement in document.statements:
        said = statement.assertion.model_dump_json() if statement.assertion else ""
        for row in (row for row in RECORD_ID.findall(said) if names(row) is None):
            yield Problem(f"statements.{statement.id}", repr(row), "there is no such row or statement; correct the reference")
        listed = getattr(statement.assertion, "accelerators", ())
        named = {getattr(statement.assertion, "accelerator", None), *(listed if isinstance(listed, tuple) else ())}
        for key in named:
            yield from missing(f"statements.{statement.id}", key, beside.accelerators, "accelerators")
    for table in document.tables:
        for row, part in dict.fromkeys(REFERENCE.findall("".join(cell for cells in table.rows for cell in cells))):
            found = names(row)
            if found is None or (found and part not in found):
                what = "row" if found is None else "claim or label of this row"
                yield Problem(f"tables.{table.id}", repr(f"{row}/{part}"), f"there is no such {what}; correct the reference")
