"""What the pages say, before they are laid out."""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixture_database import AB, CRASHED, H100, HOSTILE, MEASURED, OTHER, SLOWER, STRANGE

from tunemark.schema.formats import MISSING
from tunemark.schema.statistics.intervals import share_error
from tunemark.site import results_table as results_tables
from tunemark.site import tables, wording
from tunemark.site.page import Page
from tunemark.site.pages import all_pages, cost, documents, limitations, measured, predictions, results
from tunemark.site.pages.guide import GLOSSARY, anchor
from tunemark.site.queries import Catalogue
from tunemark.site.render import escape, markdown
from tunemark.site.results_table import best_rates, groups, rank_ranges, results_table, varying_keys
from tunemark.site.tables import Table

GOLDEN = Path(__file__).parent / "golden"


def without_hashes(text: str) -> str:
    """Return a page without the hashes that change with any byte of a record."""
    text = re.sub(r"\b[0-9a-f]{64}\b", "SHA-256", text)
    for name, result in {"MEASURED": MEASURED, "SLOWER": SLOWER}.items():
        text = text.replace(result, name)
    return text


def test_every_kind_of_thing_has_its_page(pages: dict[str, Page]) -> None:
    lists = {
        "index",
        "cost",
        "guide/index",
        "guide/contribute",
        "guide/fields",
        "guide/definitions",
        "guide/glossary",
        *(f"{kind}/index" for kind in ("results", "workloads", "accelerators", "models", "documents")),
    }
    singles = {
        "workloads/smoke-lora",
        f"studies/{AB}",
        "studies/index",
        "guide/support",
        "guide/predictions",
        "audit/index",
        "audit/rules",
        "audit/003",
        "audit/measured",
        f"accelerators/{H100}",
        "models/llama-3.1-8b",
        "documents/003",
        "results/003-001",
        f"results/{MEASURED}",
    }
    assert lists | singles <= set(pages)


@pytest.mark.parametrize(
    ("name", "path"), [("measured", f"results/{MEASURED}"), ("published", "results/003-001"), ("document", "documents/003")]
)
def test_the_markdown_of_a_page_is_as_it_was(pages: dict[str, Page], name: str, path: str) -> None:
    golden = GOLDEN / f"{name}.md"
    lines = without_hashes(markdown(pages[path])).splitlines()
    now = "".join(f"{line}\n" for line in lines if not line.startswith(("<script type=", "<noscript>")))
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(now, encoding="utf-8")
    assert now == golden.read_text(encoding="utf-8"), "run again with UPDATE_GOLDEN=1 when the difference is meant"


def test_a_table_of_a_document_is_rebuilt_digit_for_digit(catalogue: Catalogue) -> None:
    table = documents.rebuilt(catalogue, catalogue.tables[0])
    assert [column.head for column in table.columns] == ["Model", "Peak Mem. (Model Mem.)", "Sec/step"]
    assert [[cell.text for cell in line.cells] for line in table.rows] == [
        ["Llama 3.1 8B", "78 GiB (16 GiB)", "4.7"],
        ["Gemma 2 9B **", "OOM (8.4 GiB)", "OOM"],
    ]


def test_a_row_of_a_document_links_to_its_result_once(catalogue: Catalogue) -> None:
    table = documents.rebuilt(catalogue, catalogue.tables[0])
    assert [[cell.href for cell in line.cells] for line in table.rows] == [
        ["results/003-001", None, None],
        ["results/003-002", None, None],
    ]


def everything(catalogue: Catalogue) -> Table:
    return results_table(catalogue, catalogue.results, "All")


def column(table: Table, head: str) -> dict[str, tables.Cell]:
    index = [found.head for found in table.columns].index(head)
    return {line.cells[0].small: line.cells[index] for line in table.rows}


def test_measured_results_come_first_and_failures_last(catalogue: Catalogue) -> None:
    order = [line.cells[0].small for line in everything(catalogue).rows]
    assert order[:4] == [STRANGE, OTHER, SLOWER, MEASURED]
    assert order[-2:] == [CRASHED, "003-002"]
    assert [line.last for line in everything(catalogue).rows][-2:] == [True, True]


def test_the_unknown_is_a_dash_and_never_zero(catalogue: Catalogue, pages: dict[str, Page]) -> None:
    crashed = next(line for line in everything(catalogue).rows if line.cells[0].small == CRASHED)
    unknown = [cell for cell in crashed.cells if cell.sort is None]
    assert len(unknown) == 6
    assert {cell.text for cell in unknown} == {MISSING}
    text = markdown(pages[f"results/{CRASHED}"])
    figures, _, record = text.partition("## Full record")
    assert record, "the plan in the full record may hold zeros"
    for never in ("$0", ">0 ", ">0.0", "None", ">nan"):
        assert never not in figures
    for never in ("None", ">nan"):
        assert never not in record


def test_an_ambiguous_figure_is_marked_in_its_cell(catalogue: Catalogue) -> None:
    marks = {result: cell.mark for result, cell in column(everything(catalogue), "Step time").items() if cell.mark}
    assert marks == {"003-001": "ambiguous"}


def test_a_cost_names_its_offer(catalogue: Catalogue) -> None:
    cell = column(everything(catalogue), "Cost per 1k samples")["003-001"]
    assert cell.text == "$0.183"
    assert cell.small == "Lambda gpu_1x_h100, on demand, 2025-06-01"


def test_an_interval_has_enough_digits_to_tell_its_ends_apart() -> None:
    assert wording.interval(12_350, 12_590) == "12,400 to 12,600"
    assert wording.interval(12_473, 12_478) == "12,470 to 12,480"
    assert wording.rate(12_475, 12_473, 12_478) == "12,480"
    assert wording.recorded("derived", "slot_tokens_per_s", "1672.53") == "1,673"
    assert wording.recorded("derived", "step_time_s", "90") != "90"
    assert wording.recorded("derived", "step_time_cv", "0.01386483884679515") == "0.01386"
    assert wording.recorded("derived", "step_time_n", "140") == "140"
    assert wording.interval(None, 3) == ""


def test_results_are_ranked_within_their_group_only(catalogue: Catalogue) -> None:
    made = groups(catalogue.results_where(source="measured"))
    assert [len(group.rows) for group in made] == [3, 1, 1]
    assert rank_ranges(made[0], {}) == {MEASURED: "1 to 2", SLOWER: "1 to 2"}
    assert rank_ranges(made[1], {}) == {OTHER: "1"}
    assert made[2].key is None
    assert rank_ranges(made[2], {}) == {}
    assert varying_keys(made) == ["precision"]


def test_a_value_that_was_not_read_at_a_source_is_marked(pages: dict[str, Page]) -> None:
    text = markdown(pages[f"accelerators/{H100}"])
    assert '<dt>Launched</dt><dd>2022 <span class="tm-mark">unverified</span>' in text
    assert text.count('tm-mark">unverified') == 1


def test_a_failed_run_shows_its_message_and_fix(pages: dict[str, Page]) -> None:
    text = markdown(pages[f"results/{CRASHED}"])
    assert "This run failed: crash." in text
    assert "Fix: free some disk space" in text


def test_the_list_of_all_results_counts_them(pages: dict[str, Page]) -> None:
    text = markdown(pages["results/index"])
    assert "10 results: 2 converted, 5 measured, 3 published. This list is not a ranking" in text


def test_files_that_were_not_loaded_are_listed(catalogue: Catalogue) -> None:
    page = next(iter(results.pages(catalogue)))
    assert "submissions/bad.json" in markdown(page)


def test_every_result_page_names_its_file_and_hash(catalogue: Catalogue, pages: dict[str, Page]) -> None:
    for row in catalogue.results:
        text = markdown(pages[f"results/{row['result_id']}"])
        assert row["sha256"] in text
        assert "<dt>File</dt>" in text


def test_the_cost_page_states_its_price_basis_before_the_table(pages: dict[str, Page]) -> None:
    intro = markdown(pages["cost"]).partition("<table")[0]
    assert "Default basis: the cheapest on-demand list price, for whole instances" in intro
    assert "The cheapest fitting instance of these providers counts: AWS, Lambda." in intro
    assert "Prices are of 2025-06-01." in intro
    assert "only if a training fabric connects the nodes" in intro


def test_costs_of_training_and_of_the_whole_run_are_separate_columns(pages: dict[str, Page]) -> None:
    table = pages["cost"].context["table"]
    assert isinstance(table, Table)
    heads = [column.head for column in table.columns]
    assert heads[2:7] == ["Cost per 1k samples", "Cost per 1M tokens", "Cost per epoch", "Cost of training", "Cost of the run"]


def test_other_kinds_of_price_have_collapsed_tables_of_their_own(pages: dict[str, Page]) -> None:
    others = pages["cost"].context["others"]
    assert isinstance(others, list)
    assert [other.title for other in others] == ["Spot prices", "Marketplace prices"]
    offers = {other.title: {line.cells[8].text for line in other.table.rows} for other in others}
    assert offers == {
        "Spot prices": {"Lambda gpu_1x_h100, spot, 2025-06-01"},
        "Marketplace prices": {"Vast.ai 1x-H100, marketplace, 2025-06-01"},
    }
    text = markdown(pages["cost"])
    assert text.count('<details class="tm-more"><summary>') == 2
    assert text.index("Other price bases</h2>") > text.index("<table")


def test_an_interval_of_the_rate_is_shown_below_the_cost(catalogue: Catalogue) -> None:
    (old,) = (cost for result, cost in catalogue.basis_costs.items() if result == "003-001")
    new = old | {"usd_per_1k_samples_low": 0.15, "usd_per_1k_samples_high": 0.2}
    (page,) = cost.pages(replace(catalogue, basis_costs={"003-001": new}))
    table = page.context["table"]
    assert isinstance(table, Table)
    assert [line.cells[2].small for line in table.rows] == ["$0.150 to $0.200"]
    assert [line.cells[3].small for line in table.rows] == [""]


def test_the_default_basis_is_listed_first_and_marked_on_the_page_of_a_result(catalogue: Catalogue) -> None:
    possible = [row | {"impossible": False} for row in catalogue.results]
    pages = {page.path: page for page in all_pages(replace(catalogue, results=possible))}
    costs = pages["results/003-001"].context["costs"]
    assert isinstance(costs, Table)
    marked = ["default basis" in line.cells[0].small for line in costs.rows]
    assert marked == [True, *[False] * (len(marked) - 1)]


def test_the_prices_of_an_accelerator_name_the_fabric(pages: dict[str, Page]) -> None:
    table = pages[f"accelerators/{H100}"].context["prices"]
    assert isinstance(table, Table)
    place = [column.head for column in table.columns].index("Fabric")
    assert {line.cells[0].text: line.cells[place].text for line in table.rows} == {
        "p5.48xlarge": "EFA, 3,200 Gb/s",
        "gpu_1x_h100": MISSING,
        "1x-H100": MISSING,
    }


def test_results_without_a_price_are_counted_with_the_reason(pages: dict[str, Page]) -> None:
    text = markdown(pages["cost"])
    assert "2 of 8 finished results have a cost" in text
    assert "the accelerator has no card" in text


def test_every_fact_and_every_foreign_result_is_on_the_provenance_page(catalogue: Catalogue, pages: dict[str, Page]) -> None:
    made = pages["guide/provenance"].context["tables"]
    assert isinstance(made, list)
    listed = {table.name: len(table.rows) for table in made}
    foreign = [row for row in catalogue.results if row["trust"] in {"published", "converted"}]
    assert listed == {
        "Prices": len(catalogue.prices),
        "Accelerators": len(catalogue.accelerators),
        "Models": len(catalogue.models),
        "Workloads": len(catalogue.workloads),
        "Documents": len(catalogue.sources),
        "Statements of documents": len(catalogue.statements),
        "Results of others": len(foreign),
    }
    for row in (*catalogue.accelerators, *catalogue.models, *catalogue.workloads, *catalogue.prices):
        assert row["source"]


def test_facts_say_when_they_were_read_and_commits_are_short(pages: dict[str, Page]) -> None:
    text = markdown(pages["guide/provenance"])
    assert "sxm.yaml @ 095f58a; " in text
    assert "095f58a51c4ca8e61b66ec108d86f223f8d559ce" not in text
    for day in ("2025-05-05", "2025-05-06", "2025-06-01"):
        assert day in text
    assert "a965f84, read on 2025-05-05" in markdown(pages[f"accelerators/{H100}"])
    assert "read on 2025-05-06" in markdown(pages["models/llama-3.1-8b"])


def test_the_provenance_page_has_sections_statements_and_the_label_of_mlperf(pages: dict[str, Page]) -> None:
    text = markdown(pages["guide/provenance"])
    for section in ("prices", "accelerators", "models", "workloads", "documents", "statements-of-documents", "results-of-others"):
        assert f'<a href="#{section}">' in text
    assert "MLPerf, unofficial conversion, not verified by MLCommons Association." in text
    assert "MLPerf, unofficial</span>" in text, "each row of MLPerf has its label"
    assert "003-S01" in text


def test_prices_are_listed_by_accelerator(pages: dict[str, Page]) -> None:
    made = pages["guide/provenance"].context["tables"]
    prices = made[0]
    assert [column.head for column in prices.columns] == [
        "Accelerator",
        "Instance",
        "Kind",
        "Accelerators",
        "USD/h",
        "USD/h each",
        "Region",
        "Fabric",
        "Known on",
        "Source",
    ]
    names = [line.cells[0].text.lower() for line in prices.rows]
    assert names == sorted(names)


def test_the_names_that_a_device_reports_are_on_its_page(pages: dict[str, Page]) -> None:
    text = markdown(pages[f"accelerators/{H100}"])
    assert "<dt>Reports itself as</dt><dd>NVIDIA H100 80GB HBM3, H100 80GB, " in text
    assert "unsloth/Meta-Llama-3.1-8B" in markdown(pages["models/llama-3.1-8b"])


def test_a_model_page_shows_its_results_first_and_models_without_results_are_listed_separately(
    catalogue: Catalogue, pages: dict[str, Page]
) -> None:
    text = markdown(pages["models/llama-3.1-8b"])
    assert text.index("## Results") < text.index("## Architecture")
    page = pages["models/index"]
    used = {row["model"] for row in catalogue.results}
    shown, without = (page.context[name] for name in ("table", "without"))
    assert isinstance(shown, Table)
    assert len(shown.rows) == sum(row["model"] in used for row in catalogue.models)
    assert (without is None) == all(row["model"] in used for row in catalogue.models)


def test_the_cheapest_price_of_an_accelerator_is_labelled_on_demand(pages: dict[str, Page]) -> None:
    assert "On demand from, USD/h" in markdown(pages["accelerators/index"])


def test_an_unknown_figure_is_a_dash_with_the_reason(catalogue: Catalogue, pages: dict[str, Page]) -> None:
    made = pages[f"results/{MEASURED}"].context["utilisation"]
    assert isinstance(made, Table)
    shown = {line.cells[0].text: (line.cells[1].text, line.cells[2].text) for line in made.rows}
    [reason] = (fact["reason"] for fact in catalogue.facts[MEASURED] if (fact["topic"], fact["name"]) == ("derived", "mfu"))
    assert reason
    assert shown["MFU"] == (MISSING, reason)
    assert shown["MAFU"][0] == "26.9%"


def test_a_setting_that_fell_back_and_the_slowest_rank_are_marked(pages: dict[str, Page]) -> None:
    text = markdown(pages[f"results/{MEASURED}"])
    assert text.count(">differs<") == 1
    assert '1 <span class="tm-mark">slowest</span>' in text
    assert "Graphs were compiled in step 1; the allocator reserved more memory in step 4." in text
    assert "Energy is unknown: energy was not looked at." in text


def test_a_run_of_a_study_links_to_the_other_runs(pages: dict[str, Page]) -> None:
    text = markdown(pages[f"results/{MEASURED}"])
    assert f'href="{SLOWER}.html"' in text
    assert f"studies/{AB}.html" in text
    page = pages[f"studies/{AB}"]
    assert "too few pairs, +0.2%, from 1 pair" in markdown(page)


def test_a_feature_that_no_run_used_is_listed_as_never_run(pages: dict[str, Page]) -> None:
    page = pages["guide/support"]
    families, matrix, proofs = (page.context[name] for name in ("families", "matrix", "proofs"))
    assert isinstance(families, Table)
    assert isinstance(matrix, Table)
    assert isinstance(proofs, Table)
    assert [[cell.text for cell in line.cells] for line in families.rows] == [
        ["CPU", "4", "1", "measured"],
        ["NVIDIA, CUDA", "0", "0", "not yet run by us"],
    ]
    assert [[(cell.text, cell.small) for cell in line.cells] for line in matrix.rows][1] == [
        ("flash attention", ""),
        ("no", "its kernels are for GPUs"),
        ("yes", ""),
    ]
    assert {line.cells[2].text for line in proofs.rows} == {"not yet run by us"}


def test_a_workload_lists_the_settings_that_its_source_varied_or_does_not_state(pages: dict[str, Page]) -> None:
    text = markdown(pages["workloads/smoke-lora"])
    assert "Settings that the source varied" in text
    assert "chosen by us: seed" in text
    assert "## smoke" in markdown(pages["workloads/index"])


def judged(accuracy: float, rows: int = 200) -> dict[str, Any]:
    return {"accuracy": accuracy, "accuracy_se": share_error(accuracy, rows), "evaluation_rows": rows}


def test_an_accuracy_is_shown_with_its_standard_error(catalogue: Catalogue) -> None:
    rows = [row | judged(0.8) for row in catalogue.results_where(result_id=MEASURED)]
    [page] = measured.pages(replace(catalogue, results=rows))
    text = markdown(page)
    assert "standard error 2.8 points of 200 rows; differences below two standard errors are not significant" in text


def test_a_prediction_is_shown_with_its_interval_or_as_no_data(pages: dict[str, Page]) -> None:
    rows = pages["guide/predictions"].context["rows"]
    assert isinstance(rows, Table)
    met, missed, silent = ({line.cells[0].small: line.cells for line in rows.rows}[result] for result in ("003-001", MEASURED, SLOWER))
    place = [column.head for column in rows.columns].index("Predicted tokens/s")
    for cells in (met, missed):
        assert " to " in cells[place].small
    assert (met[place].text, met[place + 1].text, met[-1].text) == ("2,820", "+10%", "yes")
    assert (missed[place + 1].text, missed[-1].text) == ("-50%", "no")
    assert silent[place].text == "no data"
    assert silent[place].small


def test_the_goal_of_predictions_is_shown_next_to_the_outcome(pages: dict[str, Page]) -> None:
    text = markdown(pages["guide/predictions"])
    assert "at most 20%, and 85 to 95%" in text
    assert "accelerator left out: missed" in text


def test_the_memory_model_is_compared_with_other_calculators(pages: dict[str, Page]) -> None:
    table = pages["guide/predictions"].context["memory_rules"]
    assert isinstance(table, Table)
    assert [(line.cells[0].text, line.cells[2].text) for line in table.rows] == [("Tunemark", "5.0%"), (HOSTILE, "100.0%")]


def test_the_page_of_predictions_exists_without_predictions(catalogue: Catalogue) -> None:
    [page] = predictions.pages(replace(catalogue, predictions={table: [] for table in catalogue.predictions}))
    assert "no accepted result with a rate" in markdown(page)


def test_the_audit_counts_findings_by_source_and_verdict(pages: dict[str, Page]) -> None:
    found = pages["audit/index"].context
    lines = {line.cells[0].sort: [cell.text for cell in line.cells[1:]] for line in found["sources"].rows}
    # Two results and one statement; of these one result and the statement have a finding.
    assert lines["003"] == ["3", "2", "1", "1", "0", "0"]
    assert lines["measured"][1:] == ["1", "0", "0", "1", "0"]
    assert found["impossible"] == 1


def test_a_finding_is_shown_with_calculation_and_reason_on_every_page_that_it_concerns(
    catalogue: Catalogue, pages: dict[str, Page]
) -> None:
    impossible, inconsistent, _ = catalogue.findings
    for path in ("audit/003", "results/003-001"):
        assert escape(impossible["calculation"]) in markdown(pages[path])
    for path in ("audit/003", "results/003-001", "documents/003"):
        assert escape(inconsistent["calculation"]) in markdown(pages[path])
    assert escape(impossible["why"]) in markdown(pages["audit/rules"])
    assert 'href="../documents/003.html&#35;003-S01"' in markdown(pages["audit/003"])


def test_every_rule_is_listed_with_its_number_of_findings_even_if_zero(pages: dict[str, Page]) -> None:
    families = dict(pages["audit/rules"].context["families"])
    made = {row["rule"]: row["made"] for rows in families.values() for row in rows}
    assert made == {
        "utilisation": [("impossible", 1), ("suspicious", 1), ("ambiguous", 0)],
        "stated-twice": [("inconsistent", 1)],
        "link": [("inconsistent", 0)],
    }


def test_an_impossible_result_is_sorted_last_and_marked(catalogue: Catalogue, pages: dict[str, Page]) -> None:
    table = results_table(catalogue, catalogue.results_where(status="ok"), "Results")
    assert [line.cells[0].small for line in table.rows if line.last] == ["003-001"]
    cell = next(cell for line in table.rows for cell in line.cells if cell.mark == "impossible")
    assert cell.text == "ok"
    costs = pages["cost"].context["table"]
    assert [line.last for line in costs.rows if line.cells[0].small == "003-001"] == [True]


def test_measured_memory_is_compared_with_the_prediction(pages: dict[str, Page]) -> None:
    found = pages["guide/predictions"].context
    assert [[cell.text for cell in line.cells] for line in found["weighed"].rows] == [
        ["base weights", "4", "0.07%", "0.07%"],
        ["adapters", "4", "247.02%", "247.02%"],
        ["gradients", "4", "247.02%", "247.02%"],
        ["optimizer states", "4", "247.02%", "247.02%"],
    ]
    assert found["peaks"] == 0


def test_errors_are_also_listed_by_method(pages: dict[str, Page]) -> None:
    table = pages["guide/predictions"].context["methods"]
    assert [[cell.text for cell in line.cells] for line in table.rows] == [["accelerator", "LoRA", "2", "30.0%", "50.0%", "50.0%", "1"]]


NEW_PAGE = """
from tunemark.site.page import Page
from tunemark.site.tables import quantity_column, table, text_column

def pages(catalogue):
    columns = [text_column("Result", "result_id"), quantity_column("step_time_s")]
    yield Page("guide/step-times", "Step times", "tables.md.j2", {"lead": "All step times.", "tables": [table("Step times", columns, catalogue.results)]})
"""


def test_a_new_page_is_one_source_file(catalogue: Catalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tunemark.site import pages

    (tmp_path / "step_times.py").write_text(NEW_PAGE)
    monkeypatch.setattr(pages, "__path__", [*pages.__path__, str(tmp_path)])
    made = {page.path: page for page in all_pages(catalogue)}
    assert '<caption class="tm-unseen">Step times</caption>' in markdown(made["guide/step-times"])
    assert 'href="step-times.html">Step times' in markdown(made["guide/index"]), "the guide lists it"


def test_every_glossary_term_has_one_definition_and_an_anchor(pages: dict[str, Page]) -> None:
    text = markdown(pages["guide/glossary"])
    assert '<div id="steady-window"><dt>Steady window</dt>' in text
    assert len(GLOSSARY) == len({anchor(term) for term in GLOSSARY})


def test_a_long_table_is_cut_and_links_to_all_its_rows(catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_tables, "MOST_RESULTS", 2)
    rows = catalogue.results
    table = results_table(catalogue, rows, "Results", explorer="model=Llama+3.1+8B")
    assert (len(table.rows), table.left_out) == (2, len(rows) - 2)
    text = markdown(Page("models/x", "X", "tables.md.j2", {"lead": "", "tables": [table]}))
    assert f"The first 2 of {len(rows)} rows." in text
    assert 'href="../results/index.html?model=Llama+3.1+8B"' in text


def test_best_rates_are_per_device_and_leave_out_what_the_audit_refuses(catalogue: Catalogue) -> None:
    usual = next(row for row in catalogue.results if row["tokens_per_s"] and row["model"] and not row["failed"] and not row["impossible"])
    rows = [
        {**usual, "result_id": name, "tokens_per_s": rate, "accelerator_count": count, **more}
        for name, rate, count, more in (
            ("a", 3_000.0, 1, {}),
            ("b", 8_000.0, 8, {}),
            ("c", 9_000.0, 1, {"impossible": True}),
            ("d", 9_000.0, 1, {"failed": True}),
        )
    ]
    table = best_rates(catalogue, rows, "Best", "model")
    assert table is not None
    ((_, _, number, best, _),) = [line.cells for line in table.rows]
    assert (number.text, best.text, best.href) == ("2", "3,000", "results/a")
    assert best_rates(catalogue, rows[2:], "Best", "model") is None


def test_a_short_table_is_not_cut(catalogue: Catalogue) -> None:
    assert results_table(catalogue, catalogue.results[:2], "Results").left_out == 0


def test_results_are_found_by_any_columns(catalogue: Catalogue) -> None:
    expected = [row for row in catalogue.results if row["source"] == "003" and row["status"] == "ok"]
    assert expected
    assert catalogue.results_where(source="003", status="ok") == expected
    assert catalogue.results_where(source="none such") == []
    assert catalogue.results_where() == catalogue.results


def test_the_limitations_state_what_the_database_holds(catalogue: Catalogue) -> None:
    limits, changes = limitations.pages(catalogue)
    text = markdown(limits)
    measured = sum(row["source"] == "measured" for row in catalogue.results)
    assert f"{measured} of {len(catalogue.results):,} results were measured with the harness" in text
    assert f"of {len(catalogue.accelerators)} cards of accelerators" in text
    assert "Replaced and withdrawn" not in markdown(changes)
    rows = [row | {"note": "superseded by abc"} if row["result_id"] == MEASURED else row for row in catalogue.results]
    [_, changed] = limitations.pages(replace(catalogue, results=rows))
    assert "Superseded by abc" in markdown(changed)
