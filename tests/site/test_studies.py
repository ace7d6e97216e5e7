"""Studies of findings: each sentence rests on at least two results, and falls with them."""

import math
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from fixture_database import ROOT

from tunemark.collector.store.loading import collect
from tunemark.site.pages import studies as study_pages
from tunemark.site.pages.studies import LEAST, Evidence, Sentence, Study, all_studies, ratio, share
from tunemark.site.queries import Catalogue, Database
from tunemark.site.render import markdown

PUBLISHED = ("000", "001", "002", "003", "004", "021")
ROUNDS = ("v4.0",)
AS_OF = date(2026, 11, 22)
EXPECTED = ("scaling", "methods", "trainium", "mlperf", "memory", "bert-tuning")
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


def sentence_with(study: Study, *words: str) -> Sentence:
    (found,) = [made for made in study.sentences if all(word in made.text for word in words)]
    return found


def test_every_study_of_these_documents_is_there(made: dict[str, Study]) -> None:
    assert set(EXPECTED) <= set(made)


def test_each_sentence_cites_two_results_or_more_and_all_exist(made: dict[str, Study], documents: Catalogue) -> None:
    for study in made.values():
        assert study.sentences
        for sentence in study.sentences:
            assert len(set(sentence.citations)) == len(sentence.citations) >= LEAST
            assert set(sentence.citations) <= documents.result_ids


def test_deleting_a_cited_result_removes_or_rewrites_each_sentence_that_cites_it(made: dict[str, Study], documents: Catalogue) -> None:
    for key, study in made.items():
        for result in spread_over(study.citations):
            remaining = {left.key: left for left in all_studies(without(documents, result))}.get(key)
            sentences = set(remaining.sentences) if remaining else set()
            assert not {sentence for sentence in sentences if result in sentence.citations}
            assert not sentences & {sentence for sentence in study.sentences if result in sentence.citations}


def test_a_study_without_results_is_not_shown(documents: Catalogue) -> None:
    assert not list(all_studies(replace(documents, results=[])))


def test_a_refuted_figure_is_never_used(documents: Catalogue, made: dict[str, Study]) -> None:
    impossible = {row["result_id"] for row in documents.results if row["impossible"]}
    assert impossible
    assert not impossible & {result for study in made.values() for result in study.citations}
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


def test_the_two_trainings_of_document_002_cost_nearly_the_same(made: dict[str, Study], documents: Catalogue) -> None:
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


def test_the_pages_link_every_citation_and_the_list_shows_studies_first(made: dict[str, Study], documents: Catalogue) -> None:
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
        fit_in_24 = [row for row in smallest.rows if gib.get(row.cells[column + 1].text, 1e9) <= 24]
        largest = re.sub("estimate: up to ", "", strategy.rows[0].cells[column].small)
        assert parameters[largest] >= max(parameters[row.cells[0].text] for row in fit_in_24 if gib[row.cells[column + 1].text] > 16)


def test_the_sweeps_of_document_001_follow_from_its_printed_times_and_accuracies(made: dict[str, Study]) -> None:
    assert f"gets {ratio(453.02 / 142.55)} faster" in sentence_with(made["bert-tuning"], "From batch 8 to 64 at 128 tokens").text
    assert f"{ratio(175.51 / 120.56)} the time" in sentence_with(made["bert-tuning"], "Rows of 16 tokens").text
    error = 100 * math.hypot(math.sqrt(0.9415 * 0.0585 / 2000), math.sqrt(0.928 * 0.072 / 2000))
    text = sentence_with(made["bert-tuning"], "Accuracy against rows of 128 tokens").text
    assert f"16 tokens: {100 * (0.928 - 0.9415):+.2f} points, standard error {error:.2f}, not significant" in text
    rates = sentence_with(made["bert-tuning"], "11 learning rates").text
    assert "92.55% (2e-5, LLRD decay 0.95) to 94.65%" in rates
