"""Published tables become records: each cell has a meaning, a reason, or an error with its place."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from factories import FACTS, Tunemark, assert_golden

from tunemark.collector.importers.table import Map, found_tables, import_tables
from tunemark.collector.importers.table_text import extract
from tunemark.schema.errors import TunemarkError
from tunemark.schema.records.published import PublishedSet

CASES = Path(__file__).with_name("cases")
DOCUMENT, MAP = ((CASES / name).read_text(encoding="utf-8") for name in ("speed.md", "speed_map.toml"))


def map_of(case: dict[str, Any]) -> Map:
    """Return the map of the document with the changes of a case."""
    content = tomllib.loads(MAP)
    (table,) = content["tables"]
    table |= case.get("table", {})
    table["columns"] |= case.get("columns", {})
    rates = [column for variant in table["variants"] for column in variant["columns"].values() if "quantity" in column]
    for column in rates if "scope" in case else ():
        column["per"] = case["scope"]
    return Map.model_validate(content)


def outcome(case: dict[str, Any], file: Path) -> Iterator[str]:
    """Yield the records of a changed document with a changed map, and the remarks, a line each; or why they are refused."""
    file.write_text(DOCUMENT.replace(*case["replace"]) if "replace" in case else DOCUMENT, encoding="utf-8")
    changed = map_of(case)
    try:
        done = import_tables(changed, found_tables(changed, [file]), FACTS)
    except TunemarkError as error:
        yield f"refused: {error}"
        return
    for result in done.results:
        yield f"{result.id} {result.status.value}: {result.origin.reference}; labels {result.labels}; {result.note or ''}"
        yield f"  {result.conditions.model_dump(mode='json', exclude_defaults=True)}"
        for name, claim in result.claims.items():
            readings = "".join(f", or {reading.value:.12g}, {reading.meaning}" for reading in claim.readings)
            yield f"  {name} {claim.value:.12g}, printed {claim.printed}: {claim.note or ''}{readings}"
    yield from (*done.remarks, str(done.counts))


def test_each_cell_has_a_meaning_a_reason_or_an_error_with_its_place(tmp_path: Path) -> None:
    cases = tomllib.loads((CASES / "table.toml").read_text(encoding="utf-8")).items()
    lines = [line for name, (case,) in cases for line in (f"# {name}", *outcome(case, tmp_path / "README.md"))]
    assert_golden(CASES / "table.txt", "\n".join(lines).replace(f"{tmp_path}/", "") + "\n")


def test_the_extract_gives_the_same_records_and_holds_no_text_of_the_document(tmp_path: Path) -> None:
    mapping, file = map_of({}), tmp_path / "README.md"
    file.write_text(DOCUMENT, encoding="utf-8")
    first = import_tables(mapping, found_tables(mapping, [file]), FACTS)
    kept = tmp_path / "tables.md"
    kept.write_text(extract(first.extracted), encoding="utf-8")
    assert "Some words" not in kept.read_text(encoding="utf-8")
    assert "Link" not in kept.read_text(encoding="utf-8")
    assert import_tables(mapping, found_tables(mapping, [kept]), FACTS).results == first.results


# The command ---------------------------------------------------------------------------------------


def test_the_command_writes_results_document_and_extract(tunemark: Tunemark, tmp_path: Path) -> None:
    mapping, source = tmp_path / "map.toml", tmp_path / "README.md"
    mapping.write_text(MAP, encoding="utf-8")
    source.write_text(DOCUMENT, encoding="utf-8")
    said = tunemark("import", "table", source, "--map", mapping, "--out", tmp_path / "published")
    assert said.code == 0
    assert re.search(r"one +3 +1 +4", said.out)
    written = PublishedSet.model_validate_json((tmp_path / "published/901/results.json").read_bytes())
    assert written.results[0].claims["tokens_per_s"].printed == "1,234.5"
    document = json.loads((tmp_path / "published/901/source.json").read_bytes())
    assert (document["results"], document["licence"]) == (4, "MIT")
    assert document["url"] == "https://github.com/a/b/blob/0123456789abcdef/README.md"
    assert (tmp_path / "tables.md").is_file()
    assert tunemark("validate", tmp_path / "published").code == 0
    assert tunemark("import", "table", tmp_path / "absent.md", "--map", mapping).code == 2
    mapping.write_text("tables = 1", encoding="utf-8")
    assert tunemark("import", "table", source, "--map", mapping).code == 3
