"""Checks of published and converted results, and of the documents that they come from.

Claims are compared with their printed text, conditions with the labels of the row and the cards, and references with the rows of a
document. What a document prints is never judged here, only whether it was copied correctly.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tunemark.collector.gate.fact_checks import Neighbours, day_problems, text_problems
from tunemark.collector.importers.table_text import PER_DEVICE, printed_value
from tunemark.schema.errors import did_you_mean
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import GIB
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.records.claims import Claim, Reading
from tunemark.schema.records.converted import ConvertedResult
from tunemark.schema.records.published import Conditions, PublishedResult, PublishedSet, SourceDocument, Statement, published_results
from tunemark.schema.records.reading import Problem
from tunemark.schema.vocabulary import Method, PublishedStatus

ROUNDING = 5e-6
"""Relative rounding of a printed figure: the importers of logs print six significant digits."""
WHOLE_BYTE = 1.0
AHEAD = 2
"""Betas and versions installed from a repository come before a release: FlashAttention 4, where 2 is the newest released."""
MOST_DEVICES, LONGEST_ROW = 1_000_000, 2**24
METHOD_LABELS = ("method", "mode", "finetuning_method", "peft_method", "train_type")
COUNT_LABELS = ("num_gpus", "accelerator_count")
"""Names of labels that hold a table's words about a condition."""
METHODS = {"lora": {Method.LORA, Method.QLORA}, "qlora": {Method.QLORA}, "full": {Method.FULL}}
"""What a word of a label can mean: tables call adapters on quantised weights LoRA too."""
FIRST_DOCUMENT = date(2015, 1, 1)
"""No document about training on the devices and models of the cards is older."""
HIGHEST_LOSS = 20
"""Above the logarithm of the largest vocabulary, 12.5, by which a run begins."""
SHARES = ("accuracy", "f1", "exact_match", "token_accuracy")
"""Shares of rows or tokens, which nothing can exceed. An MFU above 1 is a claim that the audit judges."""
REFERENCE = re.compile(r"\{([^{}/]+)/([^{}/]+)\}")
RECORD_ID = re.compile(r"\d{3}-(?:\d{3}|S\d{2,3})")


def fact_record_problems(record: BaseModel, content: bytes, path: Path, facts: FactBase) -> Iterator[Problem]:
    """Yield the problems of the file of a document, of a published or converted result, or of a set of results."""
    for line, problem in text_problems(content.decode()):
        yield replace(problem, field=f"line {line}: {problem.field}")
    results = published_results(record)
    for result in results:
        for problem in (*result_problems(result), *condition_problems(result.conditions, facts)):
            yield replace(problem, field=f"{result.id}: {problem.field}") if isinstance(record, PublishedSet) else problem
    if isinstance(record, SourceDocument):
        yield from _document(record)
    elif isinstance(record, ConvertedResult):
        yield from condition_problems(record.conditions, facts)
        yield from _converted(record)
    yield from _place(path, [record.id] if isinstance(record, SourceDocument) else [result.id for result in results])


def result_problems(result: PublishedResult | Statement) -> Iterator[Problem]:
    """Yield problems of the claims of a result or a statement."""
    conditions = result.conditions if isinstance(result, PublishedResult) else None
    if isinstance(result, PublishedResult):
        yield from _labels(result)
        if result.status in {PublishedStatus.OK, PublishedStatus.CLAIMED} and not result.claims:
            yield Problem("claims", "", f"is empty, and the status is {result.status.value!r}; copy the figures, or correct the status")
    for quantity, claim in result.claims.items():
        for problem in claim_problems(quantity, claim, conditions):
            yield Problem(f"claims.{quantity}.{problem.field}", problem.value, problem.fix)


def _labels(result: PublishedResult) -> Iterator[Problem]:
    """Yield conditions that the words of the document's own table contradict: method, number of devices, tokens per row."""
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
    for name, words in _printed(labels, ("sequence_length", "seqlen"), r"^(\d+)([kKM]?)$"):
        tokens = int(words[1]) * (10**6 if words[2] == "M" else 1)
        if conditions.sequence_length not in {None, *(tokens * unit for unit in (1, 1000, 1024, 1.048576))}:
            yield Problem("conditions.sequence_length", str(conditions.sequence_length), f"the label {name} is {labels[name]!r}")


def _printed(labels: Mapping[str, str], names: Iterable[str], pattern: str) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield the labels of some names in which a pattern occurs, with the match."""
    for name in names:
        if match := re.search(pattern, labels.get(name) or ""):
            yield name, match


def condition_problems(conditions: Conditions, facts: FactBase) -> Iterator[Problem]:
    """Yield problems of the conditions of a result: cards that do not exist, numbers above those of any run, versions to come."""
    for name, key, cards in (("model", conditions.model, facts.models), ("accelerator", conditions.accelerator, facts.accelerators)):
        if key is not None and key not in cards:
            yield Problem(f"conditions.{name}", repr(key), f"no such card in data/{name}s; {did_you_mean(key, cards)}")
    limits = {"accelerator_count": MOST_DEVICES, "sequence_length": LONGEST_ROW, "micro_batch": MOST_DEVICES, "global_batch": LONGEST_ROW}
    for name, most in limits.items():
        if (value := getattr(conditions, name)) is not None and value > most:
            yield Problem(f"conditions.{name}", str(value), f"is above {most}, more than any run; correct it")
    for library in (each for each in facts.known.libraries if each.library in conditions.framework):
        printed, newest = conditions.framework[library.library], library.newest.major
        match = re.match(r"v?(\d+)\.\d", printed)
        if match and int(match[1]) > newest + AHEAD:
            fix = f"{newest} is the newest major version known on {library.read_on}; correct it, or run `tunemark import releases`"
            yield Problem(f"conditions.framework.{library.library}", repr(printed), fix)


def claim_problems(quantity: str, claim: Claim, conditions: Conditions | None) -> Iterator[Problem]:
    """Yield a problem if a value is not its printed figure in the unit of its quantity.

    A note may state how one follows from the other: per device, divided by a number, or worked out from two printed figures.
    """
    values = [claim.value, *(reading.value for reading in claim.readings)]
    if min(values) < 0:
        yield Problem("value", f"{min(values):g}", "is negative; no quantity here is")
    if quantity.startswith(SHARES) and max(values) > 1:
        yield Problem("value", f"{max(values):g}", "is above 1; a share of all rows is stored as 0 to 1")
    for reading in claim.readings:
        yield from _reading(quantity, claim, reading)
    if claim.readings and claim.value not in values[1:]:
        yield Problem("readings", repr(values[1:]), f"no reading has the value, {claim.value:g}; the value must be the literal reading")
    printed = printed_value(quantity, claim.printed)
    if printed is None:
        yield Problem("printed", repr(claim.printed), "has no figure in a unit of this quantity; write it as the document does")
        return
    note = claim.note or ""
    if "worked out" in note.lower():
        return
    factor = 1.0
    if PER_DEVICE in note and conditions is not None:
        factor = float(conditions.accelerator_count or 1)
    if divisor := re.search(r"\bdivided by (\d+)\b", note):
        factor = 1 / int(divisor[1])
    if _differs(claim.value, printed * factor, QUANTITIES[quantity].unit):
        fix = (
            f"{claim.printed!r} is {printed * factor:.10g} {QUANTITIES[quantity].unit}; correct the value, or say in a note how it follows"
        )
        yield Problem("value", f"{claim.value:.10g}", fix)


def _differs(value: float, wanted: float, unit: str) -> bool:
    return abs(value - wanted) > max(ROUNDING * abs(wanted), WHOLE_BYTE if unit == "bytes" else 0.0)


def _reading(quantity: str, claim: Claim, reading: Reading) -> Iterator[Problem]:
    """Yield a problem for a reading whose value is not what its meaning says of the printed figure: x 32, = 80 s, GiB or GB."""
    meaning, unit, wanted = reading.meaning, QUANTITIES[quantity].unit, dict[str, float]()
    if factor := re.search(r"\bx ?(\d+)\b", meaning):
        wanted[factor[0]] = claim.value * int(factor[1])
    if stated := re.search(r"= ?([\d,.]+) s\b", meaning):
        wanted[stated[0]] = float(stated[1].replace(",", ""))
    printed = re.search(r"[\d,]+(?:\.\d+)?", claim.printed)
    size = re.match(r"(?:GiB|2\^30 bytes)|(GB|10\^9 bytes)", meaning)
    if size and printed and unit == "bytes":
        wanted[meaning[:12]] = float(printed[0].replace(",", "")) * (1e9 if size[1] else GIB)
    for words, value in wanted.items():
        if _differs(reading.value, value, unit):
            fix = f"is not {value:.10g}, which its meaning says ({words}); correct one of them"
            yield Problem("readings", f"{reading.value:.10g}", fix)


def _document(document: SourceDocument) -> Iterator[Problem]:
    """Yield problems of a document: its address and days, and the ids and claims of its statements."""
    if document.url is not None and not re.match(r"https?://", document.url):
        yield Problem("url", repr(document.url[:80]), "must begin with https://")
    for name in ("stated_on", "committed_on", "read_on"):
        if (day := getattr(document, name)) is not None:
            yield from day_problems(name, day, FIRST_DOCUMENT)
            if document.read_on is not None and day > document.read_on:
                yield Problem(name, str(day), f"is after it was read, {document.read_on}; correct one of them")
    for year in re.findall(r"\b\d{4}\b", document.published_on or ""):
        if not FIRST_DOCUMENT.year <= int(year) <= (document.read_on or date.max).year:
            fix = f"must be from {FIRST_DOCUMENT.year} to the day on which it was read, {document.read_on}"
            yield Problem("published_on", repr(document.published_on), fix)
    ids = [statement.id for statement in document.statements]
    for statement in document.statements:
        if not statement.id.startswith(f"{document.id}-") or ids.count(statement.id) > 1:
            yield Problem("statements", repr(statement.id), f"an id begins with {document.id}- and is used once")
        for problem in result_problems(statement):
            yield Problem(f"{statement.id}: {problem.field}", problem.value, problem.fix)


def _place(path: Path, ids: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for results in the folder or file of another id: NNN/NNN-001.json, or NNN/results.json."""
    wrong = next((name for name in ids if name[:3] != path.parent.name), None)
    if re.fullmatch(r"\d{3}", path.parent.name) and wrong is not None:
        yield Problem("id", repr(wrong), f"is in the folder {path.parent.name}; an id begins with its folder")
    if len(ids) == 1 and re.fullmatch(r"\d{3}-\d{3}", path.stem) and ids[0] != path.stem:
        yield Problem("id", repr(ids[0]), f"is in the file {path.name}; a file has the name of its id")


def _converted(result: ConvertedResult) -> Iterator[Problem]:
    """Yield problems of a converted result: evaluations out of order, times and samples that contradict each other."""
    system, count = result.system, result.conditions.accelerator_count
    if system.nodes and system.accelerators_per_node and count and system.nodes * system.accelerators_per_node != count:
        fix = f"the system has {system.nodes} nodes of {system.accelerators_per_node}; correct one of them"
        yield Problem("conditions.accelerator_count", str(count), fix)
    for number, run in enumerate(result.runs):
        place, curve = f"runs.{number}", run.curve
        for name in ("samples", "at_s"):
            if any(later < earlier for earlier, later in pairwise(getattr(curve, name))):
                yield Problem(f"{place}.curve.{name}", "", "falls from one evaluation to the next; restore the order of the log")
        if any(not 0 < loss < HIGHEST_LOSS for loss in curve.eval_loss):
            yield Problem(f"{place}.curve.eval_loss", "", f"must be above 0 and below {HIGHEST_LOSS}; a uniform guess is about 10")
        # Clocks of logs are rounded to milliseconds.
        last_s = max(curve.at_s[-1] if curve.at_s else 0.0, run.train_s or 0.0)
        if run.time_to_target_s is not None and last_s > run.time_to_target_s + 1:
            fix = f"is before the last evaluation or the end of training, {last_s:g}; correct one of them"
            yield Problem(f"{place}.time_to_target_s", f"{run.time_to_target_s:g}", fix)
        if run.samples is not None and curve.samples and run.samples < curve.samples[-1]:
            yield Problem(f"{place}.samples", str(run.samples), f"is fewer than at the last evaluation, {curve.samples[-1]}")


# References between the rows of a document ------------------------------------------------------------


@dataclass(frozen=True)
class DocumentRows:
    """The rows of a document as they are in its files: statements and cells of tables refer to them."""

    names: dict[str, set[str]] = field(default_factory=dict)
    """Row or statement -> its claims and labels."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Contents of the rows."""

    @classmethod
    def of_folder(cls, folder: Path) -> "DocumentRows":
        """Read the rows of a document. Files that cannot be read are left out: they have their own problem."""
        read = cls()
        for path in sorted(folder.glob("*.json")):
            try:
                content = json.loads(path.read_bytes())
                rows = content["results"] if isinstance(content.get("results"), list) else [content]
                for row in (*content.get("statements", ()), *rows):
                    read.names[row["id"]] = {*row.get("claims", ()), *row.get("labels", ())}
                    if "conditions" in row:
                        read.rows.append(row)
            except (ValueError, KeyError, TypeError, AttributeError, OSError):
                continue
        return read


def rows_problems(document: Path, beside: Neighbours) -> Iterator[Problem]:
    """Yield references of a document to rows, figures, devices or quantities that do not exist, and rows that are there twice."""
    try:
        content = json.loads(document.read_bytes())
        statements, tables = content.get("statements", ()), content.get("tables", ())
        said = {statement["id"]: _ids_in(statement.get("assertion")) for statement in statements}
        cells = {table["id"]: REFERENCE.findall("".join(cell for row in table["rows"] for cell in row)) for table in tables}
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        # A missing or invalid document is reported where the file itself is checked.
        return
    folders = {document.parent.name: DocumentRows.of_folder(document.parent)}

    def names(row: str) -> set[str] | None:
        folder = document.parents[1] / row[:3]
        if row[:3] not in folders:
            folders[row[:3]] = DocumentRows.of_folder(folder)
        # A document that is not in this checkout is not judged.
        return folders[row[:3]].names.get(row) if folder.is_dir() else set()

    for statement, rows in said.items():
        for row in (row for row in rows if names(row) is None):
            yield Problem(f"statements.{statement}", repr(row), "there is no such row or statement; correct the reference")
    for table, references in cells.items():
        for row, part in dict.fromkeys(references):
            found = names(row)
            if found is None or (found and part not in found):
                what = "row" if found is None else "claim or label of this row"
                yield Problem(f"tables.{table}", repr(f"{row}/{part}"), f"there is no such {what}; correct the reference")
    yield from _assertions(statements, beside)
    known: dict[str, str] = {}
    for content in folders[document.parent.name].rows:
        text = json.dumps({name: value for name, value in content.items() if name not in {"id", "origin"}}, sort_keys=True)
        if content.get("claims") and known.setdefault(text, content["id"]) != content["id"]:
            yield Problem(f"{content['id']}: id", repr(content["id"]), f"is {known[text]} again, under another id; keep one of them")


def _ids_in(assertion: object) -> list[str]:
    """Return the ids of rows and statements anywhere in an assertion."""
    if isinstance(assertion, dict | list):
        values = assertion.values() if isinstance(assertion, dict) else assertion
        return [row for value in values for row in _ids_in(value)]
    return [assertion] if isinstance(assertion, str) and RECORD_ID.fullmatch(assertion) else []


def _assertions(statements: Iterable[Mapping[str, Any]], beside: Neighbours) -> Iterator[Problem]:
    """Yield a statement about a device or a quantity that does not exist."""
    for statement in statements:
        said, place = statement.get("assertion") or {}, f"statements.{statement['id']}"
        for key in (key for key in (said.get("accelerator"), *_names(said.get("accelerators"))) if isinstance(key, str)):
            if key not in beside.accelerators:
                yield Problem(place, repr(key), f"no such card in data/accelerators; {did_you_mean(key, beside.accelerators)}")
        for name in (said.get("quantity"), said.get("base_quantity"), *_names(said.get("basis"))):
            if isinstance(name, str) and name not in QUANTITIES:
                yield Problem(place, repr(name), f"is not a quantity; {did_you_mean(name, QUANTITIES)}")


def _names(value: object) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []
