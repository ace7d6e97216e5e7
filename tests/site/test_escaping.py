"""A submission is written by strangers: nothing in it may become markup, a link or a script."""

import re
from html.parser import HTMLParser
from pathlib import Path

import duckdb
import pytest
from fixture_database import HOSTILE, STRANGE, STRANGE_ENTRY
from markupsafe import Markup

from tunemark.schema.errors import TunemarkError
from tunemark.site.render import file_name, front_matter, script_json
from tunemark.site.text import escape, one_line
from tunemark.site.wording import web_link

COLUMNS = {
    "claims": ("note", "printed"),
    "effective": ("effective",),
    "findings": ("calculation", "claim"),
    "gates": ("detail",),
    "labels": ("printed",),
    "load_problems": ("value",),
    "result_facts": ("reason", "value"),
    "result_rows": ("accelerator_printed", "dataset", "file", "message", "note", "peak_memory_method", "section", "study_point"),
    "runs": ("file",),
    "sources": ("caveats", "summary", "title"),
    "statements": ("note", "section"),
    "support": ("reason",),
    "throughput_errors": ("model", "no_data"),
    "throughput_refused": ("reason",),
    "warnings": ("message",),
    "workload_axes": ("choices",),
    "workloads": ("not_stated",),
}
"""Columns of the fixture database that hold hostile text."""


class Elements(HTMLParser):
    """Collects scripts, images, event handlers and addresses of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def elements(path: Path) -> list[tuple[str, dict[str, str | None]]]:
    parser = Elements()
    parser.feed(path.read_text(encoding="utf-8"))
    return parser.found


@pytest.mark.parametrize("table", COLUMNS)
def test_the_fixture_has_hostile_text_in_every_column_from_strangers(database: Path, table: str) -> None:
    with duckdb.connect(str(database), read_only=True) as connection:
        for column in COLUMNS[table]:
            query = f"select count(*) from {table} where contains(cast({column} as varchar), 'window.hacked=1')"  # noqa: S608 - our own names
            assert connection.execute(query).fetchone() != (0,), column


def test_no_active_character_is_left() -> None:
    assert not set(escape(HOSTILE).replace("&#", "")) & set("<>\"'`\\*_{}[]|~^$&")


def test_markup_passes_and_none_is_empty() -> None:
    assert escape(Markup("<b>")) == "<b>"
    assert escape(None) == ""


def test_a_value_stays_on_its_line_and_reads_from_left_to_right() -> None:
    assert one_line("a\n\n    b\x02c\u202ed\u2028e") == "a b c" + "d e"


def test_titles_contain_nothing_that_a_theme_could_print_as_markup() -> None:
    assert not set("<>&`'\\") & set(front_matter(HOSTILE))


def test_json_cannot_end_its_script() -> None:
    assert "<" not in script_json({"a": "</script><!--"})


@pytest.mark.parametrize("address", ["javascript:alert(1)", "https://a b", 'https://a"onx=', "//a", "data:text/html,x", None, ""])
def test_only_web_addresses_become_links(address: str | None) -> None:
    assert web_link(address) is None


@pytest.mark.parametrize("key", ["../x", "a/b", "", ".x", "a b", "x\n"])
def test_no_key_leaves_its_folder(key: str) -> None:
    with pytest.raises(TunemarkError):
        file_name(key)


def test_no_page_contains_an_element_from_hostile_text(built: Path) -> None:
    for path in sorted((built / "site").rglob("*.html")):
        for tag, attributes in elements(path):
            assert not [name for name in attributes if name.startswith("on")], (path, tag, attributes)
            assert not str(attributes.get("href") or "").startswith("javascript:"), path
            assert (tag, attributes.get("src")) != ("img", "x"), path
        assert "<script>window.hacked" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("result", [STRANGE, STRANGE_ENTRY])
def test_hostile_text_is_shown_as_it_is(built: Path, result: str) -> None:
    page = (built / "site" / "results" / f"{result}.html").read_text(encoding="utf-8")
    assert "&#60;script&#62;window.hacked=1" in page
    assert re.search(r"<h1[^>]*>[^\n]*&#60;img src=x", page)


def test_the_search_index_contains_no_markup_from_hostile_text(built: Path) -> None:
    index = (built / "site" / "search" / "search_index.json").read_text(encoding="utf-8")
    assert "hacked" in index
    assert "<script" not in index
    assert "<img" not in index
