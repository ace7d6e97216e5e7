"""Standard, tuned and open results of a workload share a table, and each division has its own ranking."""

from tunemark.schema.formats import MISSING
from tunemark.schema.records.division import MEANING
from tunemark.schema.vocabulary import Division
from tunemark.site.results_table import Group, division_cell, rank_ranges


def row(name: str, division: str | None, tokens_per_s: float) -> dict[str, object]:
    rate = {"tokens_per_s": tokens_per_s, "tokens_per_s_low": tokens_per_s * 0.99, "tokens_per_s_high": tokens_per_s * 1.01}
    return {"result_id": name, "division": division, "rankable": True, "failed": False, "configuration": None, **rate}


ROWS = (row("fast", "tuned", 300), row("card", "standard", 100), row("other", "open", 500), row("slow", "tuned", 200))


def test_a_tuned_run_does_not_take_the_first_rank_from_a_standard_one() -> None:
    assert rank_ranges(Group("a", ROWS), {}) == {"card": "1", "fast": "1", "slow": "2", "other": "1"}


def test_a_row_names_its_division_and_what_that_means() -> None:
    cells = [division_cell(one) for one in ROWS]
    assert [cell.text for cell in cells] == ["tuned", "standard", "open", "tuned"]
    assert cells[0].explained == MEANING[Division.TUNED]
    assert division_cell(row("published", None, 1)).text == MISSING
