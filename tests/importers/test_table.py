"""Published tables become records: each cell has a meaning, a reason, or an error with its place."""

import json
from pathlib import Path
from typing import Any

import pytest
from factories import FACTS, Tunemark

from tunemark.collector.importers.table import found_tables, import_tables
from tunemark.collector.importers.table_map import Map
from tunemark.collector.importers.table_text import extract, tables_in
from tunemark.schema.errors import TunemarkError
from tunemark.schema.records.published import PublishedResult, PublishedSet

DOCUMENT = """# Speed

Some words.

```bash
| not | a table |
|-----|---------|
```

## One device

| Model | Batch (fp16, fp32) | **Rate** fp16 | Rate fp32 | Memory | Link |
|:-----:|--------------------|--------------:|-----------|--------|------|
| [8B](https://example.org/8b) | 4, 2 | 1,234.5 | 600 | 18.9 GiB | a |
| 8B | 8, 4 | 1,300 | OOM | 37.4 GiB | b |
| total | - | - | - | - | - |
"""
COLUMNS: dict[str, Any] = {
    "Model": {"field": "model", "values": {"8B": "llama-3.1-8b", "total": None}},
    "Batch (fp16, fp32)": {"split": r"(?P<half>\d+), (?P<full>\d+)"},
    "Memory": {"quantity": "peak_memory_bytes", "unit": "in cell"},
    "Link": {"ignore": "a link"},
}


def variant(mine: str, other: str, batch: str, unused: str) -> dict[str, Any]:
    """Return the columns of one number format."""
    return {
        "conditions": {"precision": mine},
        "columns": {
            f"Rate {mine}": {"quantity": "tokens_per_s", "per": "device", "outcomes": {"OOM": "oom"}},
            f"Rate {other}": {"ignore": "the other format"},
            batch: {"field": "micro_batch"},
            unused: {"ignore": "the other format"},
        },
    }


def make_map(**overrides: Any) -> Map:
    """Return a map of DOCUMENT."""
    table = {
        "key": "one",
        "under": "One device",
        "columns": COLUMNS,
        "variants": [variant("fp16", "fp32", "half", "full"), variant("fp32", "fp16", "full", "half")],
        "skip": [{"column": "Model", "matches": "total", "reason": "a sum"}],
    }
    source = {
        "id": "901",
        "title": "Speed",
        "repository": "github.com/a/b",
        "commit": "0123456789abcdef",
        "path": "README.md",
        "read_on": "2026-11-22",
        "licence": "MIT",
        "summary": "Rates.",
    }
    content = {
        "source": source,
        "conditions": {"method": "lora", "accelerator": "nvidia-a100-80gb-sxm", "accelerator_count": 2, "settings.compile": True},
        "computed": {"global_batch": ["micro_batch", "accelerator_count"]},
        "tables": [table | overrides.pop("table", {})],
    }
    return Map.model_validate(content | overrides)


def imported(mapping: Map, folder: Path, document: str = DOCUMENT) -> list[PublishedResult]:
    """Return the records of a document."""
    file = folder / "README.md"
    file.write_text(document, encoding="utf-8")
    return import_tables(mapping, found_tables(mapping, [file]), FACTS).results


def test_a_row_gives_one_record_per_variant_with_figures_as_printed(tmp_path: Path) -> None:
    results = imported(make_map(), tmp_path)
    assert [result.id for result in results] == ["901-001", "901-002", "901-003", "901-004"]
    first = results[0]
    assert (first.conditions.model, first.conditions.micro_batch, first.conditions.precision) == ("llama-3.1-8b", 4, "fp16")
    assert first.claims["tokens_per_s"].value == 2469.0
    assert first.claims["tokens_per_s"].printed == "1,234.5"
    assert "per device" in (first.claims["tokens_per_s"].note or "")
    assert first.claims["peak_memory_bytes"].printed == "18.9 GiB"
    assert first.claims["peak_memory_bytes"].value == pytest.approx(18.9 * 2**30)
    assert first.conditions.settings == {"compile": True}
    assert first.origin.reference == "github.com/a/b@0123456789ab: README.md"
    assert results[1].conditions.micro_batch == 2


def test_a_row_may_name_a_file_of_its_own(tmp_path: Path) -> None:
    results = imported(make_map(table={"columns": COLUMNS | {"Link": {"field": "origin.path"}}}), tmp_path)
    assert [results[row].origin.reference for row in (0, 2)] == [f"github.com/a/b@0123456789ab: {path}" for path in "ab"]


def test_a_cell_may_stand_for_a_status(tmp_path: Path) -> None:
    failed = imported(make_map(), tmp_path)[3]
    assert failed.status == "oom"
    assert "tokens_per_s" not in failed.claims
    assert failed.labels["rate_fp32"] == "OOM"


def test_a_figure_without_a_stated_scope_keeps_both_readings(tmp_path: Path) -> None:
    mapping = make_map().model_dump(mode="json")
    for one in mapping["tables"][0]["variants"]:
        next(column for column in one["columns"].values() if column["quantity"] == "tokens_per_s")["per"] = "unstated"
    claim = imported(Map.model_validate(mapping), tmp_path)[0].claims["tokens_per_s"]
    assert (claim.value, [reading.value for reading in claim.readings]) == (1234.5, [1234.5, 2469.0])


def test_rows_are_left_out_only_by_a_rule_and_with_its_reason(tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_text(DOCUMENT, encoding="utf-8")
    done = import_tables(make_map(), found_tables(make_map(), [file]), FACTS)
    assert done.remarks == ["README.md:16: left out: a sum"]
    assert done.counts == {"one": (3, 1, 4)}
    with pytest.raises(TunemarkError, match=r"README.md:16: .*has no figure"):
        imported(make_map(table={"skip": []}), tmp_path)


def test_a_column_of_the_map_that_the_table_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(TunemarkError, match=r"README.md:12: column: 'Batch size'.*has no such column; known: Batch"):
        imported(make_map(table={"columns": COLUMNS | {"Batch size": {"field": "micro_batch"}}}), tmp_path)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("1,234.5", "fast", r"README.md:14: column 'Rate fp16'.*'fast'.*is not a number"),
        ("18.9 GiB", "18.9 furlongs", r"README.md:14: column 'Memory'.*is not a number"),
        ("18.9 GiB", "18.9", r"README.md:14: column 'Memory'.*is not a number"),
        ("4, 2", "4 and 2", r"README.md:14: column 'Batch \(fp16, fp32\)'.*does not match"),
        ("| Link |", "| Links |", r"README.md:12: column: 'Links'.*no meaning; did you mean 'Link'"),
        ("## One device", "## Two devices", r"'One device'.*did you mean 'Two devices'"),
    ],
)
def test_an_error_names_file_line_and_column(tmp_path: Path, before: str, after: str, message: str) -> None:
    with pytest.raises(TunemarkError, match=message):
        imported(make_map(), tmp_path, DOCUMENT.replace(before, after))


def test_amended_conditions_hold_for_matching_rows_only(tmp_path: Path) -> None:
    rule = {"column": "Link", "matches": "b", "conditions": {"settings.offload": True}, "assumed": ["settings.offload"], "note": "Below."}
    results = imported(make_map(table={"amend": [rule]}), tmp_path)
    assert "offload" not in results[0].conditions.settings
    assert results[2].conditions.settings["offload"] is True
    assert "settings.offload" in results[2].conditions.assumed
    assert results[2].note == "Below."


def test_the_extract_gives_the_same_records_and_holds_no_text_of_the_document(tmp_path: Path) -> None:
    mapping = make_map()
    file = tmp_path / "README.md"
    file.write_text(DOCUMENT, encoding="utf-8")
    first = import_tables(mapping, found_tables(mapping, [file]), FACTS)
    kept = tmp_path / "tables.md"
    kept.write_text(extract(first.extracted), encoding="utf-8")
    assert "Some words" not in kept.read_text(encoding="utf-8")
    assert "Link" not in kept.read_text(encoding="utf-8")
    assert import_tables(mapping, found_tables(mapping, [kept]), FACTS).results == first.results


# Formats -------------------------------------------------------------------------------------------


def test_html_tables_with_spans_are_rectangular() -> None:
    text = """# Memory
<table>
<tr><th rowspan="2">Model</th><th colspan="2">Length</th></tr>
<tr><th>256</th><th>512</th></tr>
<tr><th rowspan="2">7B</th><td>1G</td><td>2G</td></tr>
<tr><td>3G</td><td>4G</td></tr>
</table>
"""
    (table,) = tables_in(text, "README.md")
    assert table.headings == ("Memory",)
    assert table.header == ("Model", "Length / 256", "Length / 512")
    assert [cells for _, cells in table.rows] == [("7B", "1G", "2G"), ("7B", "3G", "4G")]
    assert [line for line, _ in table.rows] == [5, 6]


# The command ---------------------------------------------------------------------------------------


def test_the_command_writes_results_document_and_extract(tunemark: Tunemark, tmp_path: Path) -> None:
    mapping, source = tmp_path / "map.toml", tmp_path / "README.md"
    source.write_text("## Speed\n\n| Rate |\n|---|\n| 12 |\n", encoding="utf-8")
    mapping.write_text(
        """[source]
id = "901"
title = "T"
repository = "github.com/a/b"
commit = "0123456"
path = "README.md"
read_on = 2026-11-22
licence = "MIT"
summary = "S."
[conditions]
method = "full"
[columns]
Rate = { quantity = "samples_per_s" }
[[tables]]
key = "speed"
under = "Speed"
""",
        encoding="utf-8",
    )
    said = tunemark("import", "table", source, "--map", mapping, "--out", tmp_path / "published", "--json")
    assert said.code == 0
    assert json.loads(said.out)["tables"] == {"speed": {"rows": 1, "left_out": 0, "results": 1}}
    written = PublishedSet.model_validate_json((tmp_path / "published/901/results.json").read_bytes())
    assert written.results[0].claims["samples_per_s"].printed == "12"
    document = json.loads((tmp_path / "published/901/source.json").read_bytes())
    assert (document["results"], document["licence"]) == (1, "MIT")
    assert document["url"] == "https://github.com/a/b/blob/0123456/README.md"
    assert (tmp_path / "tables.md").is_file()
    assert tunemark("validate", tmp_path / "published").code == 0
    assert tunemark("import", "table", tmp_path / "absent.md", "--map", mapping).code == 2
    mapping.write_text("tables = 1", encoding="utf-8")
    assert tunemark("import", "table", source, "--map", mapping).code == 3
