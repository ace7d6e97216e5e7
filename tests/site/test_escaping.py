"""A submission is written by strangers: nothing in it may become markup, a link or a script."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fixture_database import HOSTILE, STRANGE, STRANGE_ENTRY
from markupsafe import Markup

from tunemark.site.render import script_json
from tunemark.site.text import escape, one_line
from tunemark.site.wording import web_link


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


def test_no_active_character_is_left_markup_passes_and_none_is_empty() -> None:
    assert not set(escape(HOSTILE).replace("&#", "")) & set("<>\"'`\\*_{}[]|~^$&")
    assert escape(Markup("<b>")) == "<b>"
    assert escape(None) == ""


def test_a_value_stays_on_its_line_and_reads_from_left_to_right() -> None:
    assert one_line("a\n\n    b\x02c\u202ed\u2028e") == "a b c" + "d e"


def test_json_cannot_end_its_script() -> None:
    assert "<" not in script_json({"a": "</script><!--"})


@pytest.mark.parametrize("address", ["javascript:alert(1)", "https://a b", 'https://a"onx=', "//a", "data:text/html,x", None, ""])
def test_only_web_addresses_become_links(address: str | None) -> None:
    assert web_link(address) is None


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
