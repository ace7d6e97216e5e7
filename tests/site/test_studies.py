"""Studies of findings: each sentence is based on at least two results, and disappears with them."""

import math
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from fixture_database import ROOT
from hypothesis import given
from hypothesis import strategies as st

from tunemark.collector.store.loading import collect
from tunemark.schema.formats import ordinal
from tunemark.site.ablation import exponent_of_length
from tunemark.site.database import Database
from tunemark.site.pages import prices
from tunemark.site.pages import studies as study_pages
from tunemark.site.pages.studies import LEAST, Evidence, Sentence, Study, all_studies, makers, ratio, share
from tunemark.site.queries import Catalogue
from tunemark.site.render import markdown
from tunemark.site.studies import recommendations, scaling, tips, training_cost
from tunemark.site.tables import Table

PUBLISHED = ("000", "001", "002", "003", "004", "017", "021")
ROUNDS = ("v4.0",)
AS_OF = date(2026, 11, 22)
EXPECTED = (
    *("recommendations", "scaling", "methods", "trainium", "training-cost", "mlperf", "memory", "bert-tuning", "small-batches"),
    *("guide-recomputed", "tips"),
)
MOST_DELETED = 15
"""Deletions tried for each study, spread over its citations."""


def fill(folder: Path) -> None:
    """Collect a checkout with few documents and one MLPerf round."""
    checkout = folder / "checkout"
    (checkout / "data" / "published").mkdir(parents=True)
    for facts in (ROOT / "data").iterdir():
        if facts.name not in {"converted", "published"}:
            (checkout / "data" / facts.name).symlink_to(facts)
    for source in PUBLISHED:
        shutil.copytree(ROOT / "data" / "published" / source, checkout / "data" / "published" / source)
    for round_ in ROUNDS:
        shutil.copytree(ROOT / "data" / "converted" / "mlperf" / round_, checkout / "data" / "converted" / "mlperf" / round_)
    collect(checkout, folder / "studies.duckdb", as_of=AS_OF)


@pytest.fixture(scope="session")
def documents(make_once: Callable[[str, Callable[[Path], object]], Path]) -> Catalogue:
    """Return the catalogue of a few real documents. Tests must not change it."""
    return Catalogue.read(Database(make_once("study_documents", fill) / "studies.duckdb"))


@pytest.fixture(scope="session")
def made(documents: Catalogue) -> dict[str, Study]:
    """Return the studies of the real documents by key."""
    return {study.key: study for study in all_studies(documents)}


def without(catalogue: Catalogue, result: str) -> Catalogue:
    return replace(catalogue, results=[row for row in catalogue.results if row["result_id"] != result])


def spread_over(results: tuple[str, ...]) -> Iterator[str]:
    yield from results[:: -(-len(results) // MOST_DELETED) or 1]


def table_of(study: Study, name: str) -> Table:
    (found,) = [table for table in study.tables if table.name == name]
    return found


def texts(table: Table, head: str) -> list[str]:
    place = [column.head for column in table.columns].index(head)
    return [row.cells[place].text for row in table.rows]


def sentence_with(study: Study, *words: str) -> Sentence:
    (found,) = [made for made in study.sentences if all(word in made.text for word in words)]
    return found


def test_every_expected_study_exists(made: dict[str, Study]) -> None:
    assert set(EXPECTED) <= set(made)


def test_each_sentence_cites_at_least_two_existing_results(made: dict[str, Study], documents: Catalogue) -> None:
    for study in made.values():
        assert study.sentences
        for sentence in study.sentences:
            assert len(set(sentence.citations)) == len(sentence.citations) >= LEAST
            assert set(sentence.citations) <= documents.result_ids


def test_deleting_a_cited_result_removes_or_rewrites_each_sentence_that_cites_it(made: dict[str, Study], documents: Catalogue) -> None:
    # Only the study that cites the result is made again.
    by_key = {make(Evidence(replace(documents, results=[]))).key: make for make in makers()}
    for key, study in made.items():
        make = by_key[key]
        for result in spread_over(study.citations):
            sentences = set(make(Evidence(without(documents, result))).sentences)
            assert not {sentence for sentence in sentences if result in sentence.citations}
            assert not sentences & {sentence for sentence in study.sentences if result in sentence.citations}


def test_a_study_without_results_is_not_shown(documents: Catalogue) -> None:
    assert not list(all_studies(replace(documents, results=[])))


def test_a_refuted_figure_is_never_used(documents: Catalogue, made: dict[str, Study]) -> None:
    impossible = {row["result_id"] for row in documents.results if row["impossible"]}
    assert impossible
    # A check of printed arithmetic covers impossible results too, and its sentence names them as such.
    sentences = [sentence for study in made.values() for sentence in study.sentences if "impossible as printed" not in sentence.text]
    assert not impossible & {result for sentence in sentences for result in sentence.citations}
    row = next(row for row in documents.results if row["result_id"] == "002-001")
    finding = {"verdict": "impossible", "record_ids": ["002-001"], "quantities": ["wall_s"], "rule": "made-up"}
    refuted = replace(documents, findings=[*documents.findings, finding])
    assert Evidence(documents).figure(row, "wall_s")
    assert Evidence(refuted).figure(row, "wall_s") is None
    scaling = next(study for study in all_studies(refuted) if study.key == "scaling")
    assert not [sentence for sentence in scaling.sentences if "002-001" in sentence.citations]


def test_the_speed_up_and_the_efficiency_of_document_002_follow_from_the_printed_times(made: dict[str, Study]) -> None:
    speed_up = (1 * 24 + 20) * 3600 / (11 * 3600 + 8 * 60)
    sentence = sentence_with(made["scaling"], "44 h", "11 h 08 min")
    assert ratio(speed_up) == "3.95\N{MULTIPLICATION SIGN}"
    assert f"a speed-up of {ratio(speed_up)} and an efficiency of {share(speed_up / 4)}." in sentence.text
    assert share(speed_up / 4) == "98.8%"
    assert sentence.citations == ("002-001", "002-002")


def test_the_two_training_runs_of_document_002_cost_nearly_the_same(made: dict[str, Study], documents: Catalogue) -> None:
    evidence = Evidence(documents)
    rows = {row["result_id"]: row for row in documents.results}
    per_hour = {result: (evidence.named_cost(rows[result]) or {})["usd_per_hour"] for result in ("002-001", "002-002")}
    first, second = per_hour["002-001"] * 158_400 / 3600, per_hour["002-002"] * 40_080 / 3600
    text = sentence_with(made["scaling"], "a2-highgpu-1g").text
    assert f"${first:,.2f} on a2-highgpu-1g" in text
    assert f"${second:,.2f} on a2-highgpu-4g" in text
    assert ratio(second / first) in text


def test_the_efficiencies_of_document_004_are_recomputed_from_its_rates(made: dict[str, Study]) -> None:
    text = sentence_with(made["scaling"], "The document prints efficiencies").text
    for devices, rate in ((2, 4050), (4, 7800), (8, 14800)):
        assert f"{devices} devices {ratio(rate / 2100)} ({share(rate / 2100 / devices)})" in text
    assert "0.96, 0.93 and 0.88" in text


def test_the_pages_link_every_citation_and_the_index_lists_studies_first(made: dict[str, Study], documents: Catalogue) -> None:
    pages = {page.path: page for page in study_pages.pages(documents)}
    for key, study in made.items():
        text = markdown(pages[f"studies/{key}"])
        linked = set(re.findall(r'href="[^"]*results/([^"/]+?)\.html"', text))
        assert set(study.citations) <= linked
    index = markdown(pages["studies/index"])
    assert all(index.index(study.title) < index.index("Series of runs") for study in made.values())


def test_qlora_needs_more_memory_than_lora_in_document_003_and_has_no_crossover_in_document_021(made: dict[str, Study]) -> None:
    text = sentence_with(made["methods"], "In document 003 QLoRA needs more memory than LoRA").text
    assert "8,192 tokens" in text
    crossovers = [sentence for sentence in made["methods"].sentences if "document 021" in sentence.text and "micro-batch" in sentence.text]
    assert len(crossovers) == 3
    assert all("not in this range" in sentence.text for sentence in crossovers)


def test_the_speed_ups_of_document_001_are_the_ratios_of_its_times(made: dict[str, Study]) -> None:
    text = sentence_with(made["trainium"], "In document 001").text
    for before, after, name in ((453.02, 82.20, "Trainium"), (1365.45, 367.18, "Tesla T4"), (284.12, 39.07, "A100 SXM4 80GB")):
        assert f"{ratio(before / after)} on {name}" in text


def test_mlperf_times_are_numbers_that_sort_and_ranks_start_at_one(made: dict[str, Study]) -> None:
    (table,) = made["mlperf"].tables
    heads = [column.head for column in table.columns]
    times = [row.cells[heads.index("Time (min)")].sort for row in table.rows]
    assert all(isinstance(time, float) for time in times)
    assert times == sorted(times, key=float)  # type: ignore[arg-type]
    assert {row.cells[heads.index("Rank")].sort for row in table.rows} >= {1}
    assert table.columns[heads.index("Time (min)")].numeric


def test_the_strategy_by_memory_never_contradicts_the_smallest_accelerators(made: dict[str, Study], documents: Catalogue) -> None:
    strategy, smallest = made["memory"].tables
    assert [row.cells[0].text for row in strategy.rows] == ["24 GB", "40 to 48 GB", "80 GB", "more than 80 GB"]
    parameters = {row["name"]: row["parameters"] for row in documents.models}
    gib = {row["name"]: row["memory_gib"] for row in documents.accelerators}
    for column in (1, 2, 3):
        fit_in_24 = [
            row for row in smallest.rows if gib.get(row.cells[column + 1].text, 1e9) <= 24 and "needs" in row.cells[column + 1].small
        ]
        largest = strategy.rows[0].cells[column].small.removeprefix("estimate with AdamW: up to ")
        assert parameters[largest] >= max(parameters[row.cells[0].text] for row in fit_in_24 if gib[row.cells[column + 1].text] > 16)


def test_full_fine_tuning_that_ran_with_less_memory_is_not_an_estimate_for_adamw(made: dict[str, Study], documents: Catalogue) -> None:
    strategy = made["memory"].tables[0]
    parameters = {row["name"]: row["parameters"] for row in documents.models}
    for row, gib in zip(strategy.rows, (24, 48, 80), strict=False):
        largest = row.cells[1].small.removeprefix("estimate with AdamW: up to ")
        assert 8 * parameters[largest] < gib * 2**30


def test_the_sweeps_of_document_001_follow_from_its_printed_times_and_accuracies(made: dict[str, Study]) -> None:
    assert f"gets {ratio(453.02 / 142.55)} faster" in sentence_with(made["bert-tuning"], "From batch 8 to 64 at 128 tokens").text
    assert f"{ratio(175.51 / 120.56)} the time" in sentence_with(made["bert-tuning"], "Rows of 16 tokens").text
    error = 100 * math.hypot(math.sqrt(0.9415 * 0.0585 / 2000), math.sqrt(0.928 * 0.072 / 2000))
    text = sentence_with(made["bert-tuning"], "Accuracy compared with rows of 128 tokens").text
    assert f"16 tokens: {100 * (0.928 - 0.9415):+.2f} percentage points, standard error {error:.2f}, not significant" in text
    rates = sentence_with(made["bert-tuning"], "11 settings of the learning rate").text
    assert "92.55% (2e-5, LLRD decay 0.95) to 94.65%" in rates


# Document 001 --------------------------------------------------------------------------------------


def test_stochastic_rounding_has_a_standard_error_and_is_not_significant(made: dict[str, Study]) -> None:
    error = 100 * math.hypot(math.sqrt(0.928 * 0.072 / 2000), math.sqrt(0.9305 * 0.0695 / 2000))
    sentence = sentence_with(made["bert-tuning"], "stochastic rounding")
    assert f"16 tokens: +0.25 percentage points, standard error {error:.2f}, not significant" in sentence.text
    assert "32 tokens: -0.25 percentage points" in sentence.text
    assert sentence.citations == ("001-025", "001-026")


def test_the_failure_of_dynamic_padding_is_compared_with_rows_of_a_fixed_length(made: dict[str, Study]) -> None:
    sentence = sentence_with(made["bert-tuning"], "dynamic padding")
    assert "failed after 77 h" in sentence.text
    assert "001-024" in sentence.citations


def test_the_ridge_point_of_the_roofline_is_computed_from_the_accelerator_record(made: dict[str, Study]) -> None:
    assert (
        f"5 of 5 points are left of the ridge point of the accelerator ({190_000 / 820:.1f} FLOP/byte)"
        in sentence_with(made["bert-tuning"], "ridge").text
    )


def test_the_page_states_that_the_effect_of_the_compile_cache_is_unknown(made: dict[str, Study]) -> None:
    assert any("cold or a warm cache" in caveat and "is unknown" in caveat for caveat in made["bert-tuning"].caveats)


def test_small_batches_have_five_rows_and_a_chart_of_four_units(made: dict[str, Study]) -> None:
    table = table_of(made["small-batches"], "Busy shares by batch")
    assert texts(table, "Batch") == ["2", "4", "8", "16", "32"]
    assert texts(table, "A100 multiprocessors") == ["24.8%", "32.1%", "40.1%", "44.7%", "45.0%"]
    assert texts(table, "MFU of Trainium")[0] == "3.67%"
    (chart,) = (draw() for draw in made["small-batches"].draw)
    assert chart
    assert "Trainium tensor engine" in chart.svg


def test_scaling_draws_speed_up_and_efficiency(made: dict[str, Study]) -> None:
    speed_up, efficiency = (draw() for draw in made["scaling"].draw)
    assert speed_up
    assert efficiency
    drawn = [row for rows in efficiency.spec["datasets"].values() for row in rows if "low" in row]
    assert drawn
    assert all(0 < row["low"] <= row["x"] <= row["high"] <= scaling.SUPERLINEAR for row in drawn)
    assert {row["series"] for row in drawn} <= {f"{count} accelerators" for count in scaling.COUNTS}


def test_memory_is_drawn_over_the_length_of_rows_for_lora_and_qlora(made: dict[str, Study]) -> None:
    by_method, by_length = (draw() for draw in made["methods"].draw)
    assert by_method
    assert by_length
    (values,) = by_length.spec["datasets"].values()
    lengths: dict[str, set[int]] = {}
    for value in values:
        lengths.setdefault(value["line"], set()).add(value["x"])
    assert {value["series"] for value in values} == {"LoRA", "QLoRA"}
    assert all(len(found) > 1 for found in lengths.values())
    (bars,) = by_method.spec["datasets"].values()
    documents = {bar["label"].rpartition("(")[2] for bar in bars}
    assert len(documents) > 1, "one document does not hide the others"


# Document 004 --------------------------------------------------------------------------------------


def test_sixteen_relative_speeds_of_document_004_match_within_0_01(made: dict[str, Study]) -> None:
    table = table_of(made["guide-recomputed"], "Relative speeds")
    printed, recomputed = ([float(text) for text in texts(table, head)] for head in ("Printed", "Recomputed"))
    assert len(printed) == 16
    assert all(abs(first - second) <= 0.01 for first, second in zip(printed, recomputed, strict=True))
    assert recomputed[1] == pytest.approx(4890 / 5420, abs=1e-4)
    text = sentence_with(made["guide-recomputed"], "16 of 16 printed relative speeds match").text
    assert "impossible as printed" in text


def test_the_savings_of_qlora_in_document_004_are_recomputed_and_only_qlora_trains_the_largest(made: dict[str, Study]) -> None:
    table = table_of(made["guide-recomputed"], "Memory savings")
    saved = dict(zip(texts(table, "Model")[:5], texts(table, "Saving of QLoRA, recomputed")[:5], strict=True))
    assert saved["Llama 2 7B"] == share(1 - 8 / 28) == "71.4%"
    assert saved["Llama 2 13B"] == saved["Mistral 7B v0.1"] == "73.1%"
    row = texts(table, "Model").index("Llama 2 70B")
    assert texts(table, "Full")[row] == "out of memory"
    assert texts(table, "Printed")[row] == "Trainable!"
    assert "28 and 56 GB" in sentence_with(made["guide-recomputed"], "Two tables").text


@pytest.mark.parametrize(
    ("variant", "memory", "rate"), [("+ Double Quantization", 7, 4580), ("+ Gradient Checkpointing", 5, 3920), ("+ Both", 4, 3850)]
)
def test_the_variants_of_qlora_are_changes_from_the_baseline(made: dict[str, Study], variant: str, memory: int, rate: int) -> None:
    text = sentence_with(made["guide-recomputed"], f"'{variant}'").text
    low, high = (memory - 0.5) / 8.5 - 1, (memory + 0.5) / 7.5 - 1
    assert f"memory {100 * (memory / 8 - 1):+.1f}% ({100 * low:+.1f}% to {100 * high:+.1f}%)" in text
    assert f"tokens/s {100 * (rate / 4650 - 1):+.1f}%" in text


# Tips ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "claims"),
    [
        ("~2x speedup", {"speed": (1.5, 2.5)}),
        ("10-20% speedup", {"speed": (1.095, 1.205)}),
        ("30-40% memory savings, 20% slower", {"memory": (0.595, 0.705), "speed": (0.795, 0.805)}),
        ("3.7% throughput increase", {"speed": (1.0365, 1.0375)}),
        ("50% memory savings for attention", {}),
        ("Quadratic memory savings", {"exponent": (2, 2)}),
        (">80% utilization", {}),
    ],
)
def test_a_claimed_effect_is_read_from_the_printed_words(printed: str, claims: dict[str, tuple[float, float]]) -> None:
    found = tips._claims(printed)
    assert {name: pytest.approx(value) for name, value in found.items()} == claims


@given(st.floats(0.2, 3), st.floats(0, 1e11), st.floats(1, 1e6))
def test_the_exponent_of_the_length_does_not_depend_on_the_fixed_part(exponent: float, fixed: float, each: float) -> None:
    lengths = (1024, 2048, 8192)
    memory = [fixed / 1e6 + each * length**exponent for length in lengths]
    assert exponent_of_length(lengths, (memory[2] - memory[1]) / (memory[1] - memory[0])) == pytest.approx(exponent, rel=1e-3)


@pytest.mark.parametrize(
    ("low", "high", "pairs", "verdict"),
    [
        (1.1, 1.3, 3, tips.CONSISTENT),
        (1.3, 1.4, 3, tips.CONTRADICTED),
        (0.9, 1.3, 3, tips.UNDECIDED),
        (1.4, 1.4, 1, tips.UNDECIDED),
        (1.15, 1.15, 1, tips.CONSISTENT),
    ],
)
def test_a_claim_of_ten_to_twenty_percent_is_judged_by_the_range_of_pairs(low: float, high: float, pairs: int, verdict: str) -> None:
    effect = tips.Effect(math.sqrt(low * high), low, high, 1, pairs, None)
    assert tips._verdict("speed", effect, 1.1, 1.2) == verdict


def test_gradient_checkpointing_uses_only_pairs_that_differ_in_no_other_setting(made: dict[str, Study]) -> None:
    sentence = sentence_with(made["tips"], "Gradient checkpointing: speed")
    assert set(sentence.citations) == {"017-012", "017-013", "004-017", "004-018", "004-019", "004-020"}
    pairs = table_of(made["tips"], "Pairs")
    row = next(row for row in pairs.rows if row.cells[1].small == "017-012")
    assert row.cells[4].text == ratio(7210 / 9174)


def test_tips_without_results_have_no_data_and_remain_in_the_table(made: dict[str, Study], documents: Catalogue) -> None:
    table = table_of(made["tips"], "Tips")
    verdicts = dict(zip(texts(table, "Tip"), texts(table, "Verdict"), strict=True))
    assert verdicts["Keep utilisation above 80%"] == tips.NO_DATA
    assert verdicts["Gradient checkpointing"] == tips.CONSISTENT
    left = {study.key: study for study in all_studies(without(without(documents, "017-013"), "004-019"))}["tips"]
    assert not [sentence for sentence in left.sentences if "017-012" in sentence.citations and "Gradient checkpointing" in sentence.text]
    assert set(verdicts.values()) <= set(tips.VERDICTS)


# Costs ---------------------------------------------------------------------------------------------


def test_a_training_run_is_billed_for_the_instance_and_shown_for_the_accelerator_in_use(made: dict[str, Study]) -> None:
    table = table_of(made["training-cost"], "Cost by provider")
    heads = [column.head for column in table.columns]
    for row in table.rows:
        time, price, billed, used = (float(row.cells[heads.index(head)].sort or 0) for head in ("Time", "Price per hour", "Billed", "Used"))
        count = int(row.cells[heads.index("Offer")].small.split()[0])
        assert billed == pytest.approx(price * time / 3600)
        assert used == pytest.approx(billed / count)
    assert {row.cells[0].small for row in table.rows} == {"004-001", "004-002"}
    assert {row.cells[heads.index("Time")].sort for row in table.rows} == {10 * 8100, 10 * 9000}


def test_a_million_samples_at_the_printed_rate_and_price_cost_more_than_the_document_prints(made: dict[str, Study]) -> None:
    table = table_of(made["training-cost"], "Cost of a million samples")
    assert texts(table, "Printed")[0] == "$12"
    assert texts(table, "Recomputed")[0] == f"${2048 / 4650 / 3600 * 1e6 * 0.34:.2f}" == "$41.60"


def test_owning_and_renting_cost_the_same_at_the_break_even(documents: Catalogue) -> None:
    evidence = Evidence(documents)
    examples = training_cost._statements(evidence, "cost_local_usd")
    owned = list(training_cost._owned(evidence, list(training_cost._training_runs(evidence, examples))))
    assert owned
    for each in owned:
        rented = each.machine.electricity_usd_per_hour * each.hours + 30
        runs = each.runs_per_year(rented)
        assert runs
        assert runs * rented == pytest.approx(each.machine.capital_usd_per_year + runs * each.electricity_usd)
        assert each.runs_per_year(each.electricity_usd) is None


def test_the_claimed_break_even_is_shown_with_the_computed_one(made: dict[str, Study]) -> None:
    text = sentence_with(made["training-cost"], "On an owned GeForce RTX 4090").text
    assert "runs per year" in text
    assert ">100 models/year" in text
    table = table_of(made["training-cost"], "The document's own examples")
    assert texts(table, "These figures imply") == ["owning is always cheaper", "owning is always cheaper", "renting is always cheaper"]


def test_the_provider_that_the_document_calls_the_best_value_is_ranked_among_the_offers(made: dict[str, Study]) -> None:
    text = sentence_with(made["training-cost"], "best cloud value").text
    table = table_of(made["training-cost"], "Cost by provider")
    offers = [row.cells[3].text.split()[0] for row in table.rows if row.cells[0].small == "004-001"]
    assert f"Lambda ranks {ordinal(offers.index('Lambda') + 1)} of {len(offers)} providers for one A100 SXM4 80GB" in text


def test_price_tables_have_prices_per_day_per_week_and_per_accelerator(documents: Catalogue) -> None:
    (page,) = prices.pages(documents)
    offers = page.context["offers"]
    assert isinstance(offers, Table)
    newest = [row for row in documents.prices if row["newest"]]
    assert len(offers.rows) == len(newest)
    heads = [column.head for column in offers.columns]
    for row in offers.rows:
        values = {head: row.cells[heads.index(head)].sort for head in heads}
        assert values["Per day, instance"] == pytest.approx(24 * float(values["Per hour, instance"] or 0))
        assert values["Per week, accelerator"] == pytest.approx(168 * float(values["Per hour, accelerator"] or 0))
        dated = row.cells[heads.index("As of, source")]
        assert date.fromisoformat(dated.text)
        assert dated.small
    assert {
        row["accelerator_count"]: row["usd_per_hour"] / prices.each_usd(row) for row in newest if row["instance"] == "p4d.24xlarge"
    } == {8: 8}


def test_printed_prices_are_compared_with_24_and_168_hours(documents: Catalogue) -> None:
    (page,) = prices.pages(documents)
    claimed = page.context["claimed"]
    assert isinstance(claimed, Table)
    row = next(row for row in claimed.rows if "AWS (p4d), A100 80GB" in row.cells[0].text)
    assert row.cells[2].text == "$786"
    assert row.cells[2].small == f"24 h: ${24 * 32.77:.2f} (-0.1%)"
    assert row.cells[3].small == f"168 h: ${168 * 32.77:,.2f} (-0.1%)"
    assert "8 x A100 SXM4 40GB" in row.cells[4].text
    assert "printed-prices" in markdown(page)


# Recommendations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [0.01, 0.3, 0.7, 1.0, 2.5, 10.0, 30.0, 1000.0])
def test_no_option_over_the_budget_is_recommended(documents: Catalogue, budget: float) -> None:
    market = recommendations.Market(Evidence(documents))
    jobs = [job for persona in recommendations.personas(market.evidence) for job in persona.jobs]
    for job in jobs:
        choices = market.choices(job, budget_usd=budget)
        assert all(choice.option.usd_high <= budget for choice in choices)
        assert [choice.option.usd for choice in choices] == sorted(choice.option.usd for choice in choices)
        assert len(choices) <= len(market.choices(job))
        card = market.to_buy(job, 100 * budget)
        assert card is None or card["msrp_usd"] <= 100 * budget
    assert not any(market.choices(job, budget_usd=0.01) for job in jobs)


def test_every_recommendation_is_based_on_usable_results_and_on_an_offer_in_force(documents: Catalogue) -> None:
    market = recommendations.Market(Evidence(documents))
    in_force = {(row["provider"], row["instance"], row["usd_per_hour"], row["effective_on"]) for row in documents.prices if row["newest"]}
    usable = {row["result_id"] for row in documents.results if not row["failed"] and not row["impossible"]}
    advised = recommendations._advised(market)
    assert any(each.choices for each in advised)
    for choice in (choice for each in advised for choice in each.choices):
        offer = choice.option.offer
        assert (offer.provider, offer.instance, offer.usd_per_hour, offer.effective_on) in in_force
        assert choice.rows
        assert {row["result_id"] for row in choice.rows} <= usable


def test_the_four_budgets_and_the_four_uses_of_document_004_are_answered(made: dict[str, Study], documents: Catalogue) -> None:
    evidence = Evidence(documents)
    people = list(recommendations.personas(evidence))
    assert [(each.low_usd, each.high_usd) for each in people] == [(500, 2000), (2000, 4000), (5000, 15000), (15000, None)]
    assert [(job.billions, job.method) for each in people for job in each.jobs] == [
        (7, "qlora"), (13, "qlora"), (7, "lora"), (30, "any"), (70, "any")
    ]  # fmt: skip
    uses = list(recommendations.use_cases(evidence))
    assert [(each.least, each.most) for each in uses] == [(2, 4), (4, 4), (8, 8), (16, 64)]
    tables = {table.name: table for table in made["recommendations"].tables}
    assert len(tables["By budget"].rows) == 5
    assert len(tables["By number of devices"].rows) == 4
    assert all(each.option.devices >= 8 for case in uses[2:] for each in recommendations.Market(evidence).choices(
        recommendations.Job(70), devices=(case.least, case.most)))  # fmt: skip


def test_a_use_without_results_shows_no_data(documents: Catalogue) -> None:
    market = recommendations.Market(Evidence(documents))
    assert not market.choices(recommendations.Job(1000))
    assert recommendations._choice_cell(None).text == "no data"
