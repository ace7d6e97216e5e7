"""Pages of single results are what MkDocs would make of them, without going through it."""

import html
import json
import re
from pathlib import Path

import pytest
from fixture_database import MEASURED

from tunemark.schema.errors import TunemarkError
from tunemark.site import stamp
from tunemark.site.page import Page
from tunemark.site.render import markdown


def spaces_apart(text: str) -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub(r">\s+<", "><", text))).strip()


def test_the_short_way_gives_what_python_markdown_gives(pages: dict[str, Page]) -> None:
    stamped = [page for page in pages.values() if stamp.is_stamped(page)]
    assert len(stamped) > 8
    for page in stamped:
        text = markdown(page)
        ours, theirs = stamp.content_of(text), stamp._converted(stamp.FRONT_MATTER.sub("", text))
        assert spaces_apart(ours.body) == spaces_apart(theirs.body)
        # In its table of contents, python-markdown escapes the references of a heading once more, so that they would be read.
        assert ours.headings == tuple((anchor, name.replace("&amp;#", "&#")) for anchor, name in theirs.headings)


def test_other_markdown_is_converted_and_plain_text_becomes_a_paragraph() -> None:
    assert (
        stamp.content_of("---\ntitle: x\n---\n## A b\n\nplain\n\n## A b").body
        == '<h2 id="a-b">A b</h2>\n\n<p>plain</p>\n\n<h2 id="a-b_1">A b</h2>'
    )
    assert "<li>one</li>" in stamp.content_of("# T\n\n- one\n- two").body
    assert stamp.content_of("# T\n\n## C\n\n[a](b.html)").headings == (("c", "C"),)


def test_a_stamped_page_has_title_contents_and_body_and_the_shell_is_gone(built: Path) -> None:
    text = (built / "site" / "results" / f"{MEASURED}.html").read_text(encoding="utf-8")
    assert stamp.TITLE not in text
    assert stamp.HEADING not in text
    assert text.count("<h1 ") == 1
    contents = re.search(r'<nav class="md-nav md-nav--secondary".*?</nav>', text, re.DOTALL)
    anchors = re.findall(r'href="#([^"]+)"', contents[0])
    assert anchors
    assert all(f'<h2 id="{anchor}"' in text for anchor in anchors)
    assert not list((built / "site").rglob("shell*.html"))


def test_each_result_and_each_card_for_own_hardware_has_one_entry_in_the_search(built: Path) -> None:
    docs = json.loads((built / "site" / stamp.SEARCH).read_text(encoding="utf-8"))["docs"]
    entries = [doc for doc in docs if doc["location"].startswith(f"results/{MEASURED}")]
    assert [MEASURED in doc["text"] for doc in entries] == [True]
    assert [doc["location"] for doc in docs if doc["title"] == "Tesla T4"] == ["accelerators/index.html#nvidia-t4"]
    assert not [doc for doc in docs if "shell" in doc["location"]]


def test_a_large_table_bypasses_mkdocs_and_a_small_one_does_not(tmp_path: Path) -> None:
    large = f'<table class="tm-table">{"<tr><td>1</td></tr>" * (stamp.LARGE_TABLE // 19 + 1)}</table>'
    text = f"before\n\n<div>{large}</div>\n\n<table><tr><td>small</td></tr></table>\n\n<div>{large}</div>"
    for_mkdocs, tables = stamp.without_large_tables(text)
    assert tables == [large, large]
    assert len(for_mkdocs) < 200
    assert "small" in for_mkdocs
    page = tmp_path / "cost.html"
    page.write_text(for_mkdocs, encoding="utf-8")
    stamp.put_back(tmp_path, {"cost": tables})
    assert page.read_text(encoding="utf-8") == text
    with pytest.raises(TunemarkError, match=r"update site/stamp\.py"):
        stamp.put_back(tmp_path, {"cost": tables})


def test_a_theme_that_changed_its_layout_is_an_error() -> None:
    with pytest.raises(TunemarkError, match=r"adapt site/stamp\.py"):
        stamp.filled("<html></html>", "T", stamp.Content("b", ()))
