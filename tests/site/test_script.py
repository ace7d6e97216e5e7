"""Python that is translated for the pages gives what it gives on the command line, and what is not translated is named."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tunemark.schema import formats
from tunemark.schema.owned_hardware import OwnedHardware
from tunemark.site import script
from tunemark.site.python_module import NotTranslatedError
from tunemark.site.script import translated

FORMATS = ("duration", "estimated_duration", "flop", "gib", "percent", "plain", "significant", "usd")
SAMPLE = """
import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Literal, get_args

class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"

Shade = Literal["dark", "light"]
SIZES = {("a", 1): 2.5, ("b", 2): 0.125}

@dataclass(frozen=True)
class Box:
    name: str
    sides: tuple = (1, 2)

    @property
    def area(self):
        return math.floor(math.log2(4)) // 2 * self.sides[0] * self.sides[-1]

    def times(self, factor):
        return factor * self.sides[0]

    def largest(self, *, of):
        return max(of, key=self.times)

@cache
def known(box):
    return box.largest(of=(3, 1, 2))

def both(*names):
    return set(names) & frozenset(["one", "two"])

def pairs(boxes):
    for box in boxes:
        if box.area > 2 and box.name not in {"left out"}:
            yield box.name, box.area

def told(names, *, most=2):
    boxes = [Box(name, sides=(number, 3)) for number, name in enumerate(names, start=1)]
    found = dict(pairs(boxes))
    found["sum"] = sum(area for _, area in found.items())
    ordered = sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))[:most]
    empty = [] or "nothing"
    total = 0
    while total < 7:
        total += 3
    words = f"{Colour.RED.value} {Colour.BLUE} {get_args(Shade)[1]!r} {0.125:.0%} {'a: b'.partition(': ')[2]} {'ab'.startswith('a')} {int(2.7)} {(5).bit_length()}"
    words += f" {known(Box('y'))} {len(both('one', 'three'))} {'x y'.split(' ')[1]}"
    return words + f"{ordered[0][0]}: {ordered[0][1]:,.2f}, {SIZES[('b', 2)]:.2f}, {-7 // 2} {-7 % 3} {empty} {total} {1 < total <= 9} {Box('x') == Box('x', (1, 2))} {SIZES == {('b', 2): 0.125, ('a', 1): 2.5}} {SIZES == {}}"
"""


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


@pytest.mark.parametrize("text", ["500", "2k", "1.5 billion", ".5M", "10,000", "10X", "1.5", "", "1..5", "10.", "1,,0"])
def test_a_count_is_read_alike(page: Page, text: str) -> None:
    read = "(text) => { try { return tunemark.formats.whole_number(text); } catch (error) { return error.message; } }"
    try:
        ours: object = formats.whole_number(text)
    except ValueError as error:
        ours = str(error)
    assert page.evaluate(read, text) == ours


def test_owned_hardware_costs_the_same_and_is_refused_alike(page: Page) -> None:
    cost = """(figures) => { try {
        const machine = tunemark.owned_hardware.OwnedHardware, owned = new machine(...figures);
        return [owned.usd_per_hour(), owned.break_even_hours_per_year(3)];
    } catch (error) { return "refused"; } }"""
    for figures in (
        (30_000, 4, 0.6, 700, 0.2, 1_000),
        (2_000, 3, 0.5, 450, 0.3, 0),
        (2_000, 0, 0.5, 450, 0.3, 0),
        (2_000, 3, 0.5, 450, 0.3, 9_000),
    ):
        try:
            machine = OwnedHardware(*figures)
        except ValueError:
            assert page.evaluate(cost, figures) == "refused"
        else:
            assert page.evaluate(cost, figures) == [machine.usd_per_hour(), machine.break_even_hours_per_year(3)]


def test_python_of_every_kind_that_is_understood_gives_the_same(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sample_for_pages.py").write_text(SAMPLE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    text = translated({"sample_for_pages": ("told",)}).replace("globalThis.tunemark ", "globalThis.sample ")
    told = {}
    exec(SAMPLE, told)  # noqa: S102 - the sample above
    names = ["one", "two", "left out", "four"]
    page.add_script_tag(content=text)
    assert page.evaluate(
        "(names) => sample.sample_for_pages.told(names).replaceAll('true', 'True').replaceAll('false', 'False')", names
    ) == told["told"](names)  # type: ignore[operator]


@pytest.mark.parametrize(
    "refused",
    [
        "with open(path) as file: pass",
        "return range(0, path, 2)",
        "return path[::-1]",
        "return '=' * path",
        "return math.pi",
        "return path.title()",
        "return ord(path)",
        "return f'{path:5}'",
        "return f'{path:.3}'",
        "return ~path",
        "return path.replace('a', 'b', 1)",
        "return enumerate(path, 1)",
        "return path.startswith(('a', 'b'))",
        "return dict(**path, **path)",
        "return path.strip('-')",
        "def inner(**rest): pass",
    ],
)
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
