"""Text from a pull request is shown, and never obeyed: by a terminal, a log, a Markdown page, a spreadsheet or a workflow."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tunemark.schema.safe_text import is_formula, markdown, terminal, workflow_data, workflow_property

# Letters that meet each other in attacks, and any character, surrogates of broken file names included.
NASTY = st.text(
    st.one_of(st.sampled_from(list(" :#[]%,|`<>&@=+-\t\r\n\x00\x1b\x9b\u202e\u2066\u200b\ufeff\u3164\U000e0041")), st.characters())
)
HONEST = [
    "supervised <= real & real > 0",
    "CUDA out of memory. Tried to allocate 2.00 GiB; GPU 0 has 79.1 GiB.",
    "Mémoire insuffisante : 2,00 Gio",
    "メモリ不足です",
    "Недостаточно памяти",
    "लाल",
    "显存不足 GPU 0",
]


@given(NASTY)
def test_a_line_for_a_terminal_has_only_visible_characters_and_never_begins_a_command(text):
    shown = terminal(text)
    assert not [c for c in shown if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}]
    assert len(f"{shown}\n".splitlines()) == 1
    assert not shown.lstrip().startswith(":")
    assert "##[" not in shown
    assert terminal(shown) == shown


@pytest.mark.parametrize("text", HONEST)
def test_an_honest_message_is_shown_as_it_is(text):
    assert terminal(text) == text
    assert not is_formula(text)
    assert markdown(text) == f"`{text}`"


@given(NASTY)
def test_markdown_shows_one_piece_of_code_and_nothing_else(text):
    html = MarkdownIt("commonmark").enable("table").render(f"| a | b |\n|---|---|\n| {markdown(text)} | end |\n")
    assert re.search(r"<tbody>\n<tr>\n<td>(?:<code>[^<]*</code>|\(empty\))</td>\n<td>end</td>\n</tr>\n</tbody>", html)
    # The same text within HTML, where Markdown is not read.
    assert not re.search(r"<[A-Za-z/!?]|\|", markdown(text))
    assert markdown(text).strip("`").count("`") == 0


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", "[x](javascript:1)", "@owner #1 a/b#2 https://x.y", "a|b", "`` ` ``", "![](h)", "\\"]
)
def test_markup_links_mentions_and_issue_references_are_inert(text):
    tokens = MarkdownIt("commonmark").parseInline(f"- {markdown(text)}")[0].children
    assert {token.type for token in tokens} == {"text", "code_inline"}


@pytest.mark.parametrize(
    "text", ["=cmd|' /C calc'!A0", '=HYPERLINK("http://x")', "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", " =1", "\uff1d1+1"]
)
def test_text_that_a_spreadsheet_runs_is_found(text):
    assert is_formula(text)


@given(NASTY)
def test_a_workflow_command_is_one_line_and_its_parts_stay_apart(text):
    line = f"::error file={workflow_property(text)},line=1::{workflow_data(text)}"
    assert len(line.splitlines()) <= 1
    assert not set(workflow_property(text)) & set(":,\r\n")
    found = re.fullmatch(r"::error file=([^:,]*),line=1::(.*)", line)
    decoded = found[2].replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")
    assert terminal(decoded) == terminal(text)
