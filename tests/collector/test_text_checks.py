"""What text a field of a submission may hold: no text of the examination but those that are inert, and all of its honest messages."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from gate_mutations.texts import TEXTS, Text, messages

from tunemark.collector.gate.text_checks import text_problems

ROOT = Path(__file__).parents[2]


def problems(text: str) -> list[str]:
    return [problem.fix for problem in text_problems({"outcome": {"message": text}})]


def test_honest_messages_pass_in_any_language() -> None:
    assert [(text, problems(text)) for text in messages() if problems(text)] == []


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.name)
def test_text_that_identifies_hides_or_acts_is_refused(text: Text) -> None:
    assert problems(text.text) or text.inert


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpu-node-17.acme.internal", "a name of a host"),
        ("<script>alert(1)</script>", "HTML"),
        ("fine\x1b[31m", "U+001B"),
        ("NVIDIА H100", "letters of alphabets that look alike"),
        ("x" * 2_000, "this field has 1000 at most"),
    ],
)
def test_a_message_says_what_was_found(text: str, said: str) -> None:
    assert any(said in fix for fix in problems(text))


def reasons(text: str) -> list[str]:
    return [problem.fix for problem in text_problems({"supersedes_reason": text})]


@pytest.mark.parametrize("text", ["la primera medición compartía la tarjeta con otro trabajo", "a disturbed run", "显存被占用"])
def test_a_reason_is_a_sentence_in_any_language(text: str) -> None:
    assert reasons(text) == []


@pytest.mark.parametrize("text", [".", "aaaa aaaa", "redo"])
def test_a_reason_that_says_nothing_is_refused(text: str) -> None:
    assert reasons(text) == ["is not a reason; say it in a few words"]


def own_texts() -> Iterator[str]:
    """Yield the sentences in the code that may become messages of a record; each figure in one is written as 7."""
    files = [path for path in (ROOT / "harness").rglob("*.py") if path.parent.name != "commands"]
    for path in (*files, *(ROOT / "schema" / "tunemark" / "schema" / "plan").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inside = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                inside |= {id(part) for part in node.values}
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "7" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                text = node.value
            else:
                continue
            if len(text.split()) > 3 and "\n" not in text:
                yield text.strip()


def test_no_message_or_fix_of_the_harness_itself_is_refused() -> None:
    texts = sorted(set(own_texts()))
    assert len(texts) > 200
    assert [(text, problems(text)) for text in texts if problems(text)] == []
