"""One count: a number that several pages show is the same on all of them, gathered from the built pages."""

import json
import re
from collections import Counter, defaultdict
from html import unescape
from pathlib import Path

import pytest

STATED = {
    "results": r"([\d,]+) results(?=,| :|: \d+)|([\d,]+) results were measured|of ([\d,]+) results cannot",
    "results with a finding": r"a finding, ([\d,]+) of them results|has a finding about ([\d,]+) results",
    "findings": r"([\d,]+) findings of the audit|see `tunemark audit`\. ([\d,]+) Parquet",
    "source documents and rounds": r"results of ([\d,]+) public sources|([\d,]+) source documents and ([\d,]+) MLPerf rounds|imported results\. ([\d,]+) Parquet",
    "prices": r"([\d,]+) dated prices|The price book, data/prices\. ([\d,]+) Parquet",
    "accelerators with a page": r"([\d,]+) accelerators have a result or a price|([\d,]+) accelerators with a card can be chosen",
    "accelerators with results": r"([\d,]+) accelerators with results|([\d,]+) of them have results",
    "cards of accelerators": r"of ([\d,]+) cards of accelerators|Cards of data/accelerators\. ([\d,]+) Parquet",
    "models with results": r"([\d,]+) models with results",
    "cards of models": r"([\d,]+) models with results, by family and size(?:; ([\d,]+) more have a card)?|Cards of data/models\. ([\d,]+) Parquet",
    "results used for predictions": r"fitted to ([\d,]+) accepted results|of the ([\d,]+) results come from",
}
"""Meaning -> the sentences of any page that state the number, or the parts of its sum."""
LEAST = {"results": 3, "source documents and rounds": 3}
"""Pages or sentences that must state a number, by default two: the test fails if it no longer finds them."""


def words(path: Path) -> str:
    """Return the visible text of a page, on one line."""
    page = re.sub(r"<(script|style|noscript)\b.*?</\1>", " ", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", page))).replace(" ,", ",")


def number(text: str) -> int:
    return int(text.replace(",", ""))


def rows_of(path: Path) -> dict[str, int]:
    """Return the last number of each row of an index page, by the page that the row links to."""
    rows = re.findall(r"<tr>.*?</tr>", path.read_text(encoding="utf-8"), re.DOTALL)
    linked = [(re.search(r'href="?([\w.-]+)\.html', row), re.findall(r"<td[^>]*>([\d,]+)</td>", row)) for row in rows]
    return {found[1]: number(numbers[-1]) for found, numbers in linked if found and numbers}


@pytest.mark.parametrize("meaning", STATED)
def test_every_page_states_the_same_number(built: Path, meaning: str) -> None:
    stated = defaultdict(list)
    for path in (built / "site").rglob("*.html"):
        if path.parent.name != "results" or path.name == "index.html":
            for groups in re.findall(STATED[meaning], words(path)):
                stated[sum(map(number, filter(None, [groups] if isinstance(groups, str) else groups)))].append(path.name)
    assert len(stated) == 1, dict(stated)
    assert sum(map(len, stated.values())) >= LEAST.get(meaning, 2)


def test_an_accelerator_and_a_model_have_one_count_on_their_page_in_the_index_and_in_the_filter(built: Path) -> None:
    site = built / "site"
    data = json.loads((site / "data" / "explorer.json").read_text(encoding="utf-8"))["columns"]
    stated = {"accelerators": r"Results ([\d,]+)", "models": r"([\d,]+) results?\. A rate about"}
    for kind, sentence in stated.items():
        column, index = Counter(data[kind.removesuffix("s")]), rows_of(site / kind / "index.html")
        compared = 0
        for key, listed in index.items():
            text = words(site / kind / f"{key}.html")
            (title,) = re.findall(r"<title>(.*?) - ", (site / kind / f"{key}.html").read_text(encoding="utf-8"))
            found = re.search(sentence, text)
            assert (number(found[1]) if found else 0, column[unescape(title)]) == (listed, listed), key
            compared += listed > 0
        assert compared


def test_the_page_of_a_model_lists_every_accepted_rate_and_gives_the_reason_of_a_doubt(built: Path, catalogue) -> None:
    rated = catalogue.database.rows(
        "from listed_results where model is not null and not failed and coalesce(tokens_per_s, samples_per_s) is not null"
    )
    assert len(rated) > 5
    doubted = 0
    for row in rated:
        page = (built / "site" / "models" / f"{row['model']}.html").read_text(encoding="utf-8")
        (line,) = [each for each in re.findall(r"<tr.*?</tr>", page, re.DOTALL) if f"<small>{row['result_id']}</small>" in each]
        if row["rate_verdict"]:
            assert row["rate_verdict"] in line
            assert row["rate_reason"] in unescape(line)
            doubted += 1
    assert doubted
