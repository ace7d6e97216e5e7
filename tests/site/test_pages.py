"""Pages of the fixture database: what a reader decides on is there, the unknown is a dash, and a new page is one file."""

import re
import tomllib
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from factories import assert_golden
from fixture_database import AB, CRASHED, ENTRY, H100, MEASURED, ROUND

from tunemark.cli import COMMANDS
from tunemark.schema.formats import MISSING
from tunemark.site.database import Database
from tunemark.site.page import Page
from tunemark.site.pages import FOLDER, runner
from tunemark.site.records import Catalogue
from tunemark.site.render import markdown
from tunemark.site.sql_page import page_files
from tunemark.site.text import escape

GOLDEN = Path(__file__).parent / "golden"
Shown = Callable[[str], str]


def text(shown: str) -> str:
    """Return the text of a page without markup, on one line."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", shown)))


def row_of(shown: str, name: str) -> list[str]:
    """Return the cells of the first table row that contains a text."""
    line = next(row for row in re.findall(r"<tr.*?</tr>", shown, re.DOTALL) if name in unescape(row))
    return [text(cell).strip() for cell in re.findall(r"<t[hd].*?</t[hd]>", line, re.DOTALL)]


@pytest.mark.parametrize(
    ("name", "path"), [("measured", f"results/{MEASURED}"), ("published", "results/003-001"), ("document", "documents/003")]
)
def test_the_markdown_of_a_page_is_as_it_was(shown: Shown, name: str, path: str) -> None:
    lines = re.sub(r"\b[0-9a-f]{12,64}\b", "HASH", shown(path)).splitlines()
    now = "".join(f"{line}\n" for line in lines if not line.startswith(("<script type=", "<noscript>")))
    assert_golden(GOLDEN / f"{name}.md", now)


def test_a_new_page_is_one_file_with_its_queries(catalogue: Catalogue) -> None:
    (made,) = runner(catalogue).pages(Path(__file__).with_name("new_page"))
    assert len(re.findall(r"<tr>\s*<th scope=row", markdown(made))) == 2


def test_an_accelerator_with_steps_of_pre_training_alone_says_so_first(shown: Shown, catalogue: Catalogue, tmp_path: Path) -> None:
    file = (FOLDER / "accelerator.md.j2").read_text(encoding="utf-8")
    changed = file.replace("from listed_results order", "from (select * replace (true as pretraining) from listed_results) order")
    (tmp_path / "accelerator.md.j2").write_text(changed, encoding="utf-8")
    (page,) = (made for made in runner(catalogue).pages(tmp_path) if made.path == f"accelerators/{H100}")
    note = "No fine-tuning result of a known model."
    assert 0 < markdown(page).find(note) < markdown(page).find("<table")
    assert note not in shown(f"accelerators/{H100}")


def test_every_page_file_has_a_description() -> None:
    assert [file.name for file in page_files(FOLDER) if len(file.head.get("description", "")) < 30] == []


IDS = {"CRASHED": CRASHED, "ENTRY": ENTRY, "ROUND": ROUND, "H100": H100}
TEXTS = tomllib.loads(Path(__file__).with_name("page_texts.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", TEXTS)
def test_a_page_has_its_sentences(shown: Shown, path: str) -> None:
    page = text(shown(path.format(**IDS)))
    assert [pattern for pattern in TEXTS[path] if not re.search(pattern, page)] == []


# Results -------------------------------------------------------------------------------------------


def test_the_unknown_is_a_dash_and_never_zero_and_a_failed_run_comes_last(shown: Shown) -> None:
    cells = row_of(shown("workloads/smoke-lora"), CRASHED)
    assert MISSING in cells
    assert "0" not in cells
    rows = re.findall(r"<tr(?: data-last)?>.*?</tr>", shown("workloads/smoke-lora"), re.DOTALL)
    assert any("data-last" in row and CRASHED in row for row in rows)


def test_a_run_of_a_study_links_to_its_neighbours(shown: Shown, listed: list[dict[str, Any]]) -> None:
    runs = [row["result_id"] for row in sorted(listed, key=lambda row: row["study_position"] or 0) if row["study_id"] == AB]
    assert f"{runs[1]}.html" in shown(f"results/{runs[0]}")


def test_prices_older_than_thirty_days_are_marked_and_the_age_of_each_source_is_listed(shown: Shown, catalogue: Catalogue) -> None:
    (row,) = catalogue.database.rows(
        "select effective_on, known_on_mark, dated from listed_prices where newest order by effective_on limit 1"
    )
    assert re.fullmatch(r"\d+ days old", row["known_on_mark"])
    for page in (f"accelerators/{H100}", "cost", f"results/{ENTRY}"):
        assert f"{row['effective_on']} {row['known_on_mark']}" in text(shown(page)).replace("\N{NON-BREAKING HYPHEN}", "-"), page
    assert row["dated"] == f"{row['effective_on']}, {row['known_on_mark']}"
    assert row["dated"] in text(shown("cost").partition('id="costs"')[2])
    assert row_of(shown("guide/provenance"), "cards of NVIDIA")[1] == "accelerators"


# Other pages ---------------------------------------------------------------------------------------


def test_only_accelerators_with_a_result_or_a_price_have_a_page(pages: dict[str, Page], catalogue: Catalogue) -> None:
    known = {row["accelerator"] for row in catalogue.database.rows("select accelerator from results union select accelerator from prices")}
    assert {path for path in pages if path.startswith("accelerators/")} == {
        "accelerators/index",
        *(f"accelerators/{key}" for key in known if key),
    }


def test_every_fact_is_on_the_provenance_page(shown: Shown, listed: list[dict[str, Any]]) -> None:
    page = shown("guide/provenance")
    assert "https://example.org/prices" in unescape(page)
    assert all(row["result_id"] in page for row in listed if row["trust"] in {"published", "converted"})


def test_prices_are_per_hour_day_and_week_for_instance_and_accelerator(shown: Shown) -> None:
    cells = row_of(shown("cost").partition('id="prices"')[2], "H100 SXM5 80GB")
    assert {"$3.29", "$78.96", "$552.72", "$3.29/h", "$1.50/h"} <= {cell.split(" ")[0] for cell in cells}


def test_the_audit_counts_findings_and_shows_their_calculation_on_every_record(shown: Shown, catalogue: Catalogue) -> None:
    for row in catalogue.database.rows(
        "select distinct on (record) record, calculation, href from listed_findings where href like 'results/%'"
    ):
        assert escape(row["calculation"])[:40] in shown(row["href"]), row["record"]
    counts = {row["rule"]: row["number"] for row in catalogue.database.rows("select rule, count(*) as number from findings group by all")}
    assert counts
    assert all(f'id="rule-{rule}"' in shown("audit/index") for rule in counts)


def test_each_command_of_the_devices_page_exists(shown: Shown) -> None:
    page = shown("guide/support")
    names = set(re.findall(r"^\$ tunemark ([a-z]+)", page, re.MULTILINE))
    assert {"doctor", "run", "submit"} <= names <= set(COMMANDS)


def test_no_command_is_printed_for_more_tokens_than_a_model_has_positions(whole_database: Path) -> None:
    with Database(whole_database) as opened:
        rows = opened.rows(
            "select command, notes from reproductions where result_id in ('003-047', '004-020', '004-021') order by result_id"
        )
    assert [row["command"] is None for row in rows] == [False, False, True]
    assert rows[2]["notes"] == ["No command is printed: the source states rows of 2,048 tokens, and this model has positions for 1,024."]
