"""Plain English: no phrase of `banned_phrases.toml` is in what people read."""

import ast
import io
import re
import tokenize
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("schema", "harness", "collector", "site")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "data/README.md", "benchmarks/README.md", "Makefile", "pyproject.toml")
# Read line by line: scripts and styles of pages, forms and workflows of the repository, container files.
PLAIN_FILES = ("site/**/assets/*.js", "site/**/assets/*.css", ".github/**/*.yml", ".github/**/*.md", "harness/containers/*")
OUR_WORDS = {
    *("title", "description", "summary", "caveats", "note", "notes", "comment", "question"),
    *("reason", "because", "meaning", "ignore", "left_out", "not_stated"),
}
"""Keys of facts in TOML whose texts we write. The other texts are names, addresses and words of documents."""

BANNED = tomllib.loads(Path(__file__).with_name("banned_phrases.toml").read_text(encoding="utf-8"))
"""Pattern -> what to write instead."""


def docstrings_and_comments(source: str):
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def our_words(source: str):
    """Yield the comments of a TOML file and the texts below the keys of OUR_WORDS, each with its line."""
    lines = source.splitlines()

    def visit(node, ours):
        if isinstance(node, dict):
            for key, value in node.items():
                yield from visit(value, ours or key in OUR_WORDS)
        elif isinstance(node, list):
            for value in node:
                yield from visit(value, ours)
        elif ours and isinstance(node, str):
            start = node.splitlines()[0] if node else ""
            yield next((number for number, line in enumerate(lines, start=1) if start in line), 1), node

    yield from visit(tomllib.loads(source), ours=False)
    for number, line in enumerate(lines, start=1):
        if line.lstrip().startswith("#"):
            yield number, line


@cache
def texts():
    """Return every text that people read, with its file and line."""
    return tuple(read_texts())


def read_texts():
    for room in ROOMS:
        for path in sorted((ROOT / room / "tunemark").rglob("*.py")):
            yield from ((path, line, text) for line, text in docstrings_and_comments(path.read_text(encoding="utf-8")))
        for path in sorted([*(ROOT / room / "tunemark").rglob("*.j2"), *(ROOT / room / "tunemark").rglob("*.sql")]):
            yield from ((path, line, text) for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1))
    for path in sorted((ROOT / "benchmarks").rglob("*.py")):
        yield from ((path, line, text) for line, text in docstrings_and_comments(path.read_text(encoding="utf-8")))
    for path in sorted((ROOT / "data").rglob("*.toml")):
        yield from ((path, line, text) for line, text in our_words(path.read_text(encoding="utf-8")))
    for path in [*(ROOT / name for name in PAGES), *(path for glob in PLAIN_FILES for path in sorted(ROOT.glob(glob)))]:
        yield from ((path, line, text) for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1))


def findings(where):
    pattern = re.compile("|".join(f"(?P<p{number}>{text})" for number, text in enumerate(BANNED)))
    advice = list(BANNED.values())
    for path, line, text in where:
        for match in pattern.finditer(text):
            number = int(match.lastgroup[1:])
            yield f"{path.relative_to(ROOT)}:{line}: {match[0]!r}; write: {advice[number]}"


def test_no_phrase_of_the_list_is_in_code_pages_or_documents():
    assert not list(findings(texts()))


@pytest.mark.parametrize("text", ["the results stand beside them", "Return whether it fits.", "tokens a second", "all is done anew"])
def test_the_list_finds_what_it_bans(text):
    assert list(findings([(ROOT / "x.md", 1, text)]))


def test_facts_are_read_where_they_hold_our_words_and_not_where_they_quote():
    source = '# done anew\ntitle = "run anew"\nlabel = "quoted anew"\n[left_out]\n7 = ["left anew"]\n'
    assert list(our_words(source)) == [(2, "run anew"), (5, "left anew"), (1, "# done anew")]


def test_scripts_styles_forms_and_containers_are_read():
    read = {path.suffix for path, _, _ in texts()} | {path.parent.name for path, _, _ in texts()}
    assert read >= {".js", ".css", ".toml", ".yml", ".Containerfile", "workflows", "ISSUE_TEMPLATE", "containers"}
