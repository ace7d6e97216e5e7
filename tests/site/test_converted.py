"""What the pages say about results that were made from the logs of MLPerf."""

import pytest
from fixture_database import ENTRY, ROUND, STRANGE_ENTRY

from tunemark.schema.formats import MISSING
from tunemark.schema.records.converted import MLPERF_LABEL as LABEL
from tunemark.site.charts import Chart, loss_of_runs
from tunemark.site.page import Fact, Page
from tunemark.site.pages import mlperf
from tunemark.site.queries import Catalogue
from tunemark.site.render import markdown
from tunemark.site.results_table import results_table
from tunemark.site.tables import Table


@pytest.fixture
def context(pages: dict[str, Page]) -> dict[str, object]:
    return dict(pages[f"results/{ENTRY}"].context)


def by_name(facts: object) -> dict[str, Fact]:
    assert isinstance(facts, list)
    return {fact.name: fact for fact in facts}


def test_the_label_comes_before_the_first_figure_and_the_notes_follow_it(pages: dict[str, Page]) -> None:
    text = markdown(pages[f"results/{ENTRY}"])
    assert text.index(
        f"<strong>{LABEL}</strong></p><p>9 of 10 runs reached the target; the others count as longer than any of them. Two racks.</p>"
    ) < text.index("tm-headlines")


def test_each_headline_names_its_statistic(context: dict[str, object]) -> None:
    shown = by_name(context["headlines"])
    assert {name: fact.value for name, fact in shown.items()} == {
        "Time to target": "9 min 25 s",
        "MLPerf score": "9 min 45 s",
        "Samples/s": "6.147",
        "Cost per 1M tokens": "$0.607",
        "Accelerators": "16",
        "Runs at the target": "9 of 10",
    }
    assert shown["Time to target"].note.startswith(
        "median of all runs; a run that missed the target counts as longer than any other; interval of at least 95%"
    )
    assert shown["Time to target"].note.endswith("9 min 25 s to 9 min 26 s")
    assert shown["MLPerf score"].note.startswith("mean without the fastest and the slowest run")
    assert "a packed row of 8,192 tokens" in shown["Samples/s"].note
    assert shown["Accelerators"].note == "H100 SXM5 80GB, on 2 machines"


def test_the_entry_is_named(context: dict[str, object]) -> None:
    shown = {name: fact.value for name, fact in by_name(context["entry"]).items()}
    assert shown == {
        "Round": "v9.1",
        "Submitter": "Acme",
        "System": "Box of sixteen",
        "Division": "closed",
        "Availability": MISSING,
        "Machines": "2",
        "Target": "0.925",
    }


def test_a_run_with_an_incomplete_log_is_marked_and_sorted_last(context: dict[str, object]) -> None:
    table = context["runs"]
    assert isinstance(table, Table)
    assert [line.cells[0].text for line in table.rows] == [f"Run {number}" for number in (2, 3, 4, 5, 6, 7, 8, 9, 10, 1)]
    assert [line.last for line in table.rows] == [False] * 9 + [True]
    assert [cell.text for cell in table.rows[-1].cells] == ["Run 1", "incomplete", MISSING, "1,536", MISSING, MISSING]


def test_the_target_is_drawn_only_if_the_logs_contain_it(catalogue: Catalogue, context: dict[str, object]) -> None:
    [chart] = context["charts"]  # type: ignore[misc]
    assert isinstance(chart, Chart)
    assert "The dashed line is the target, 0.925." in chart.caption
    without = loss_of_runs(catalogue.database.curves(ENTRY), {2}, None)
    assert without is not None
    assert "dashed" not in without.caption
    assert "rule" not in str(without.spec)
    assert loss_of_runs([], set(), 0.925) is None


def test_an_entry_without_figures_shows_dashes(pages: dict[str, Page]) -> None:
    text = markdown(pages[f"results/{STRANGE_ENTRY}"])
    assert f"<dt>Time to target</dt><dd>{MISSING}<small>" in text
    assert "None" not in text
    assert ">nan" not in text


def test_a_round_is_a_list_that_names_the_conditions_in_which_its_entries_differ(pages: dict[str, Page]) -> None:
    text = markdown(pages[f"documents/{ROUND}"])
    assert "This list is not a ranking" in text
    assert "Entries also differ in these conditions: accelerator, device count, global batch, software." in text
    for absent in ("Tokens/s", "Peak memory", "Cost per"):
        assert absent not in text


def test_entries_are_sorted_by_accelerator_and_number(catalogue: Catalogue) -> None:
    rows = catalogue.results_where(source=ROUND)
    more = [{**rows[0], "accelerator_count": count, "accelerator_name": name} for count, name in ((64, "B"), (8, "B"), (16, "A"))]
    table = mlperf.entries_table(catalogue, more)
    assert [line.cells[1].text.split()[::2] for line in table.rows] == [["A", "16"], ["B", "8"], ["B", "64"]]


def test_trust_carries_the_label_in_every_table(catalogue: Catalogue, pages: dict[str, Page]) -> None:
    table = results_table(catalogue, catalogue.results, "All")
    index = [column.head for column in table.columns].index("Trust")
    cells = {line.cells[0].small: line.cells[index] for line in table.rows}
    assert cells[ENTRY].text == "MLPerf, unofficial"
    assert cells[ENTRY].explained == f"{LABEL}."
    assert cells["003-001"].text == "published"
    assert f'title="{LABEL}."' in markdown(pages["results/index"])


def test_the_time_to_target_is_shown_small_in_the_table_of_all_results(catalogue: Catalogue) -> None:
    table = results_table(catalogue, catalogue.results, "All")
    index = [column.head for column in table.columns].index("Status")
    assert {line.cells[index].small for line in table.rows} == {"", "target in 9 min 25 s"}


def test_the_first_page_counts_documents_without_rounds(pages: dict[str, Page]) -> None:
    text = markdown(pages["index"])
    assert ">2 source documents and 1 MLPerf round</a>" in text
