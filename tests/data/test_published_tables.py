"""The fact files of data/ hold together: tables of documents are rebuilt from them digit for digit, and imported sets from their extracts."""

import json
import re
from pathlib import Path

import pytest
from factories import CHECKOUT, FACTS

from tunemark.collector.gate.check import validate_all
from tunemark.collector.gate.fact_files import fact_files
from tunemark.collector.gate.read import find_records
from tunemark.collector.importers.table import EXTRACT, Map, found_tables, import_tables
from tunemark.schema.facts.fact_base import read_facts
from tunemark.schema.records.base import canonical_json
from tunemark.schema.records.published import PublishedResult, PublishedSet, SourceDocument, Statement
from tunemark.schema.records.reading import read_record

PUBLISHED = CHECKOUT / "data" / "published"
GOLDEN: dict[str, dict[str, list[list[str]]]] = json.loads((Path(__file__).parent / "document_tables.json").read_text(encoding="utf-8"))
RESULTS_PER_SOURCE = {"000": 3, "001": 49, "002": 2, "003": 60, "004": 58}
SOURCES = {number: SourceDocument.model_validate_json((PUBLISHED / number / "source.json").read_bytes()) for number in RESULTS_PER_SOURCE}
RESULTS = {
    file.stem: PublishedResult.model_validate_json(file.read_bytes())
    for number in RESULTS_PER_SOURCE
    for file in sorted((PUBLISHED / number).glob(f"{number}-*.json"))
}
STATEMENTS = {statement.id: statement for document in SOURCES.values() for statement in document.statements}


def test_every_file_of_data_is_valid() -> None:
    records = find_records([CHECKOUT / "data" / name for name in ("published", "converted")])
    done = validate_all(records.files, CHECKOUT, FACTS, fact_files([CHECKOUT / "data"]))
    assert not done.problems
    assert done.files > len(RESULTS)


def resolve(reference: str) -> str:
    """Return what `id/key` stands for: the printed figure of a claim, or else a label."""
    identity, key = reference.split("/")
    row: PublishedResult | Statement = RESULTS[identity] if identity in RESULTS else STATEMENTS[identity]
    return row.claims[key].printed if key in row.claims else row.labels[key]


@pytest.mark.parametrize("number", RESULTS_PER_SOURCE)
def test_every_table_of_a_document_is_rebuilt_digit_for_digit(number: str) -> None:
    for table in SOURCES[number].tables:
        rows = [[re.sub(r"\{([^}]+)\}", lambda match: resolve(match[1]), cell) for cell in row] for row in table.rows]
        assert [list(table.columns), *rows] == GOLDEN[number][table.id]
    assert [table.id for table in SOURCES[number].tables] == list(GOLDEN.get(number, {}))


def test_no_cell_types_a_figure_of_its_own() -> None:
    cells = [cell for document in SOURCES.values() for table in document.tables for row in table.rows for cell in row]
    assert [cell for cell in cells if re.search(r"[\w%$~]", re.sub(r"\{[^}]+\}", "", cell))] == []


def test_records_are_stored_canonically() -> None:
    for file in sorted(PUBLISHED.rglob("*.json")):
        record = read_record(file.read_bytes())
        assert (record.lines() if isinstance(record, PublishedSet) else canonical_json(record)) == file.read_bytes(), file


def test_a_step_that_a_document_leaves_undefined_keeps_both_readings() -> None:
    for result in RESULTS.values():
        claim, accumulation = result.claims.get("step_time_s"), result.conditions.gradient_accumulation
        if result.source == "003" and claim is not None and accumulation is not None and accumulation > 1:
            assert [reading.value for reading in claim.readings] == pytest.approx([claim.value, accumulation * claim.value])


DATA = Path(__file__).parents[2] / "data"
MAPS = sorted((DATA / "tables").glob("*/map.toml"))


@pytest.mark.parametrize("path", MAPS, ids=lambda path: path.parent.name)
def test_the_extract_and_the_map_give_the_stored_records_and_every_figure_of_the_extract_is_in_one(path: Path) -> None:
    mapping = read_facts(path, Map)
    done = import_tables(mapping, found_tables(mapping, [path.with_name(EXTRACT)]), FACTS)
    assert mapping.source.id == path.parent.name
    stored = (DATA / "published" / mapping.source.id / "results.json").read_bytes()
    assert PublishedSet(source=mapping.source.id, results=tuple(done.results)).lines() == stored
    printed = {claim.printed.split(" ")[0] for result in done.results for claim in result.claims.values()}
    printed |= {text for result in done.results for text in result.labels.values()}
    missing = []
    for wanted, (_, table, _) in zip(mapping.tables, done.extracted, strict=True):
        for variant in wanted.variants:
            for name, column in variant.columns.items():
                if column.quantity is None or name not in table.header:
                    continue
                cells = (cells[table.header.index(name)] for _, cells in table.rows)
                missing += [
                    cell for cell in cells if cell not in mapping.absent and cell.split(" ")[0] not in printed and cell not in printed
                ]
    assert missing == []
