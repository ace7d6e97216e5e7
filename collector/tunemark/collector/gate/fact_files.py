"""Checks of the fact files of data/: cards, the price book, the support matrix, documents. Each problem has its file and line."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tunemark.collector.gate import fact_checks
from tunemark.collector.gate.cross_file_checks import FileProblems
from tunemark.collector.gate.fact_checks import Neighbours, missing
from tunemark.collector.gate.published_checks import rows_problems
from tunemark.collector.gate.read import DOCUMENT, SUBMISSIONS, read_or_none, records_in, shown_path, submission_id
from tunemark.collector.store.database import price_id
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.cards import AcceleratorCard, AwsSizes, ModelCard, PriceBasis
from tunemark.schema.facts.fact_base import BASIS_FILE, SUPPORT_FILE, price_lines, price_of, read_card, read_facts, validated, workloads_of
from tunemark.schema.facts.workloads import GoldenLosses
from tunemark.schema.facts.world_facts import WorldFacts
from tunemark.schema.formats import counted
from tunemark.schema.plan.capabilities import SupportMatrix
from tunemark.schema.privacy import identity_leaks
from tunemark.schema.records.published import SourceDocument, published_results
from tunemark.schema.records.reading import Problem

CARDS: dict[str, type[Any]] = {"accelerators": AcceleratorCard, "models": ModelCard, "golden": GoldenLosses}
"""Folder of a card -> its model; a file of data/workloads may hold several cards."""
WORKLOADS, KNOWN, PRICES, SIZES = "workloads", "known", "prices.csv", "aws_sizes.toml"


def is_fact_file(path: Path) -> bool:
    """Return True if a file is a card, a price book or a file beside it, known facts, or the support matrix."""
    return (
        path.name == PRICES
        or (path.name, path.parent.name) == (SUPPORT_FILE, "data")
        or (path.parent.name == "prices" and path.name in {BASIS_FILE, SIZES})
        or (path.suffix == ".toml" and path.parent.name in {*CARDS, WORKLOADS, KNOWN})
    )


def fact_files(paths: Iterable[Path]) -> list[Path]:
    """Return the fact files among paths and under folders, sorted."""
    found = (each for path in paths for each in (path, *path.rglob("*")))
    return sorted({path for path in found if path.is_file() and is_fact_file(path)})


def fact_problems(files: Iterable[Path], root: Path, beside: Neighbours) -> FileProblems:
    """Return the problems of fact files, each with its file and, where known, its line."""
    return [(f"{shown_path(path, root)}:{line}", problem) for path in files for line, problem in _file_problems(path, beside)]


def document_problems(files: Iterable[Path], root: Path, beside: Neighbours) -> FileProblems:
    """Return the problems of documents with results among the files: no source.json, or a wrong number of results or references in it."""
    problems: FileProblems = []
    for folder in sorted({path.parent for path in files if re.fullmatch(r"\d{3}", path.parent.name)}):
        document, records = folder / DOCUMENT, [read_or_none(path) for path in sorted(folder.glob("*.json"))]
        held = counted(sum(len(published_results(record)) for record in records), "result")
        place, described = shown_path(document, root), next((each for each in records if isinstance(each, SourceDocument)), None)
        if not document.is_file():
            problems.append((place, Problem("source", repr(folder.name), f"has {held} but no {DOCUMENT}; describe the document there")))
        # Invalid files are reported where they are checked.
        elif described is not None:
            if None not in records and held != counted(described.results, "result"):
                fix = f"this source has {held}; correct the number or add the missing results"
                problems.append((place, Problem("results", repr(described.results), fix)))
            problems += [(place, problem) for problem in rows_problems(described, document, beside)]
    return problems


def _file_problems(path: Path, beside: Neighbours) -> Iterator[tuple[int, Problem]]:
    """Yield the problems of a file with their lines. No file stops the check of the others."""
    try:
        text = path.read_text(encoding="utf-8")
        yield from fact_checks.text_problems(text)
        if path.name == PRICES:
            yield from _prices(path, beside)
            return
        for problem in _beside_prices(path) if path.parent.name == "prices" else _checked(path, beside):
            yield _line(text, problem.field, problem.value.strip("'")), problem
    except UnicodeDecodeError as error:
        yield 1, Problem("file", "", f"is not UTF-8: {error.reason}; save it as UTF-8")
    except TunemarkError as error:
        problem = _as_problem(error, str(path))
        at = re.search(r"\(at line (\d+)", problem.fix)
        yield int(at[1]) if at else _line(text, problem.field), problem
    except Exception as error:  # noqa: BLE001 - an unexpected error must not stop the checks of other files
        yield 1, Problem("file", "", f"a check could not be made: {type(error).__name__}: {error}; please report this file")


def _checked(path: Path, beside: Neighbours) -> Iterator[Problem]:
    """Yield the problems of a card, of known facts, or of the support matrix. Raise TunemarkError if it cannot be read."""
    folder = path.parent.name
    if path.name == SUPPORT_FILE:
        try:
            validated(SupportMatrix, json.loads(path.read_bytes()), str(path))
        except ValueError as error:
            yield Problem("file", "", f"not valid JSON: {error}; write it again with `make support`")
    elif folder == WORKLOADS:
        cards = list(workloads_of(path))
        for model in dict.fromkeys(card.model for card in cards):
            yield from missing("model", model, _keys(beside.root / "models"), "models")
        for card in cards:
            yield from fact_checks.workload_problems(card, beside)
            yield from fact_checks.setting_problems(card)
            if (path.parent / "golden" / f"{card.key}.toml").exists() and Neighbours(path.parents[1]).golden_losses(card.key) is None:
                fix = f"golden/{card.key}.toml has the losses of another version of this card; record them again, or restore the card"
                yield Problem("key", repr(card.key), fix)
    elif folder == KNOWN:
        known = read_facts(path, WorldFacts)
        yield from fact_checks.known_problems(known, beside)
        yield from withdrawal_problems(known, beside.root.parent / SUBMISSIONS)
    elif folder == "accelerators":
        yield from fact_checks.accelerator_problems(read_card(path, AcceleratorCard), beside)
    elif folder == "models":
        yield from fact_checks.model_problems(read_card(path, ModelCard), beside)
    else:
        yield from fact_checks.golden_problems(read_card(path, GoldenLosses), Neighbours(path.parents[2]))


def withdrawal_problems(known: WorldFacts, submissions: Path) -> Iterator[Problem]:
    """Yield a problem for the withdrawal of a submission that does not exist, and for a reason that names someone."""
    ids = {submission_id(path) for path in records_in(submissions).files} if known.withdrawn else set()
    for entry in known.withdrawn:
        if entry.result_id not in ids:
            yield Problem("result_id", repr(entry.result_id), f"no submission has this id; {did_you_mean(entry.result_id, ids)}")
        for _, value, what in identity_leaks({"reason": entry.reason}):
            yield Problem("reason", repr(value), f"looks like {what}, which is not published; leave it out")


def _prices(path: Path, beside: Neighbours) -> Iterator[tuple[int, Problem]]:
    lines: dict[str, int] = {}
    cards, rows = _keys(beside.root / "accelerators"), list[fact_checks.Row]()
    for line, content in price_lines(path):
        try:
            row = price_of(content, str(path))
        except TunemarkError as error:
            yield line, _as_problem(error, str(path))
            continue
        rows.append((line, row))
        for problem in missing("accelerator", row.accelerator, cards, "accelerators"):
            yield line, problem
        if lines.setdefault(price_id(row), line) != line:
            fix = f"is in line {lines[price_id(row)]} already; an instance has only one price per region, kind and day"
            yield line, Problem("price", repr(price_id(row)), fix)
    yield from fact_checks.price_problems(rows, beside)


def _beside_prices(path: Path) -> Iterator[Problem]:
    """Yield the problems of a price basis, or of the list of sizes that AWS sells."""
    book = path.with_name(PRICES)
    offers = [row for _, row in price_lines(book)] if book.exists() else []
    if path.name == BASIS_FILE:
        return fact_checks.basis_problems(read_facts(path, PriceBasis), offers)
    return fact_checks.size_problems(read_facts(path, AwsSizes), offers)


def _keys(folder: Path) -> set[str]:
    """Return the keys of the cards in a folder, including unreadable ones: a key is the name of the file."""
    return {path.stem for path in folder.glob("*.toml")}


def _as_problem(error: TunemarkError, place: str) -> Problem:
    field = error.field.removeprefix(place).lstrip(": ")
    # The value may be a TOML table, which cannot be hashed.
    empty = error.value is None or error.value == ""
    return Problem(field or "file", "" if empty else repr(error.value), error.fix)


def _line(text: str, field: str, value: str = "") -> int:
    """Return the line of a field in the text of a file, best with this value in it, or 1 if it is not there. A field may be dotted."""
    names = "|".join(map(re.escape, {field, field.rsplit(".", 1)[-1]}))
    found = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if re.match(rf"\s*\"?(?:{names})\"?\s*[=:]", line)]
    return next((number for number, line in found if value and value in line), found[0][0] if found else 1)
