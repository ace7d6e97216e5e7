"""Python that is translated for the pages gives what it gives on the command line, and what is not translated is named."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tunemark.schema import formats
from tunemark.site import script
from tunemark.site.python_module import NotTranslatedError
from tunemark.site.script import translated

FORMATS = ("duration", "estimated_duration", "flop", "gib", "percent", "plain", "significant", "usd")


@pytest.fixture(scope="module")
def page(script_alone: Callable[[str], Page]) -> Page:
    return script_alone("recommend.js")


@pytest.mark.parametrize("name", FORMATS)
def test_a_number_is_written_alike(page: Page, name: str) -> None:
    draw = random.Random(16)  # noqa: S311 - repeatable numbers
    values = (
        [draw.lognormvariate(0, 8) for _ in range(2_000)] + [count / 8 for count in range(2_000)] + [count * 50.0 for count in range(200)]
    )
    assert page.evaluate("([name, values]) => values.map((value) => tunemark.formats[name](value))", [name, values]) == [
        getattr(formats, name)(each) for each in values
    ]


@pytest.mark.parametrize("name", ["whole_number", "tokens_in_row"])
@pytest.mark.parametrize(
    "text", ["500", "2k", "128K", "0k", "1.5 billion", "1e8", "2.5e6", ".5M", "10,000", "10X", "1.5", "", "1..5", "10.", "1,,0"]
)
def test_a_count_is_read_alike(page: Page, text: str, name: str) -> None:
    read = "([name, text]) => { try { return tunemark.formats[name](text); } catch (error) { return error.message; } }"
    try:
        ours: object = getattr(formats, name)(text)
    except ValueError as error:
        ours = str(error)
    assert page.evaluate(read, [name, text]) == ours


REFUSED = (
    "with open(path) as file: pass",
    "return path[::-1]",
    "return math.pi",
    "return path.title()",
    "return f'{path:5}'",
    "return ~path",
)
REFUSED += ("return enumerate(path, 1)", "return path.startswith(('a', 'b'))", "return path.strip('-')", "def inner(**rest): pass")


@pytest.mark.parametrize("refused", REFUSED)
def test_what_is_not_translated_is_named_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    name = f"refused_{abs(hash(refused))}"
    (tmp_path / f"{name}.py").write_text(f"import math\n\ndef read(path):\n    {refused}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(NotTranslatedError, match=f"{name}, line 4: not translated"):
        translated({name: ("read",)})


def test_what_the_translation_uses_is_offered(page: Page) -> None:
    offered = "(names) => names.filter((name) => name.split('.').reduce((found, part) => found?.[part], tunemarkPython) === undefined)"
    assert page.evaluate(offered, sorted(script.FUNCTIONS)) == []
    assert set(page.evaluate("tunemarkPython.names")) >= script.METHODS


def test_pages_load_the_translation(built: Path) -> None:
    for name in script.SCRIPTS:
        assert (built / "site" / "assets" / name).read_text(encoding="utf-8") == script.script(name)
