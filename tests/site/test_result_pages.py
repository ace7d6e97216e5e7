"""Result pages: figures first, a line per verdict, how to reproduce, download and cite, comparable results, and freshness."""

import csv
import hashlib
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from factories import CHECKOUT, FACTS
from fixture_database import CRASHED, ENTRY, MEASURED, OTHER, SLOWER, STRANGE, SUBMISSIONS
from harness_making import make_machine
from typer.testing import CliRunner

from tunemark.collector.store.fact_rows import fact_rows
from tunemark.harness.plan.options import Options, takes_run_options
from tunemark.harness.plan.resolve import resolve
from tunemark.schema.comparability import CONFIGURATION_KEYS
from tunemark.schema.files import ROOT_VARIABLE
from tunemark.schema.quantities import QUANTITIES
from tunemark.site import reproduce
from tunemark.site.page import Page
from tunemark.site.pages import documents, measured, models, published, rerun, workloads
from tunemark.site.queries import Catalogue
from tunemark.site.render import markdown
from tunemark.site.result_page import COMPARE, COSTS, HEADLINE_COSTS, headlines
from tunemark.site.tables import Table

WORKLOADS = {row["workload"]: row for row in fact_rows(FACTS)["workloads"]}
AXES = fact_rows(FACTS)["workload_axes"]
REQUESTS = [
    ("smoke-lora", Options()),
    ("smoke-lora", Options(max_steps=60, overrides=("method=qlora",))),
    ("smoke-full", Options(devices=2, strategy="fsdp2", max_train_s=20.0, seed=7)),
    ("smoke-bert", Options(overrides=("batch.micro_batch=8", "compile=blocks"), probe=False, gates=False, strict_timing=True)),
    ("smoke-full", Options(overrides=("method=lora", "lora.rank=4", "optimizer.learning_rate=0.0002"), max_steps=5, save=True, cold=True)),
    ("smoke-lora", Options(until_ci=0.05, timeout_s=900.0, no_step_s=60.0, offload="optimizer")),
    ("trainer-8k-llama-3.1-8b-lora", Options(weights="pretrained", data="hub:somebody/texts", max_steps=10)),
    ("trainer-8k-llama-3.1-8b-lora", Options(weights="pretrained:somebody/llama", data="synthetic")),
    ("bert-emotion", Options(overrides=("batch.micro_batch=64", "data.sequence_length=32"), data="synthetic")),
    ("llama2-7b-qlora-2k", Options(overrides=("quantisation.double=false", "gradient_checkpointing=full"), data="synthetic")),
    ("llama2-7b-ddp-scaling", Options(devices=4, nodes=2, launcher="accelerate", data="synthetic")),
]


# Commands ------------------------------------------------------------------------------------------


def parsed(command: str) -> tuple[str, Options]:
    """Return the arguments of a `tunemark run` command line."""
    received: list[tuple[str, Options]] = []
    app = typer.Typer()

    def run(workload: str, *, options: Options) -> None:
        received.append((workload, options))

    app.command()(takes_run_options(run))
    words = shlex.split(command)
    assert words[:2] == ["tunemark", "run"]
    done = CliRunner().invoke(app, words[2:])
    assert done.exit_code == 0, done.output
    [(workload, options)] = received
    return workload, options


@pytest.mark.parametrize(("workload", "options"), REQUESTS)
def test_the_command_of_a_plan_gives_the_same_plan(workload: str, options: Options) -> None:
    machine = make_machine()
    first = resolve(workload, FACTS, machine, options)
    name, again = parsed(shlex.join(["tunemark", "run", *first.requested.arguments()]))
    second = resolve(name, FACTS, machine, again)
    assert (second.requested, second.plan, second.overrides) == (first.requested, first.plan, first.overrides)


def test_the_page_of_a_measured_run_has_a_command_that_parses_to_its_settings(catalogue: Catalogue, pages: dict[str, Page]) -> None:
    plan = SUBMISSIONS["measured"].plan
    reproduction = pages[f"results/{MEASURED}"].context["reproduction"]
    assert isinstance(reproduction, reproduce.Reproduction)
    assert reproduction.command is not None
    assert parsed(reproduction.command) == (plan.workload, Options())
    commit = SUBMISSIONS["measured"].harness.commit
    assert reproduction.before == (f"git checkout {commit}", "make setup-run")
    lines = "\n".join([*reproduction.before, reproduction.command])
    assert f"<code>{lines}</code>" in markdown(pages[f"results/{MEASURED}"])
    assert catalogue.facts[MEASURED]


def test_a_published_result_names_its_configuration_and_the_nearest_workload(catalogue: Catalogue) -> None:
    [row] = catalogue.results_where(result_id="003-001")
    card = catalogue.workloads[0] | {"workload": "near", "model": row["model"], "method": row["method"], "task": row["task"]}
    card |= {"sequence_length": 2048, "micro_batch": row["micro_batch"], "devices": 8, "title": "Near"}
    changed = replace(catalogue, workloads=[card])
    found = reproduce.of_published(changed, row)
    assert found.origin
    assert found.origin_href == "https://example.org/gpu-test"
    assert found.workload == ("Near", "workloads/near")
    assert found.command is not None
    assert found.command.startswith("tunemark run near --set data.sequence_length=8192")
    assert found.command.endswith("--devices 1")


def test_a_workload_of_a_much_smaller_model_is_not_near(catalogue: Catalogue) -> None:
    [row] = catalogue.results_where(result_id="003-001")
    assert reproduce.nearest_workload(catalogue, row) is None, "the only card trains a tiny model"


# Files ---------------------------------------------------------------------------------------------


@pytest.fixture
def in_checkout(database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Read records from the checkout of the fixture."""
    root = database.parent / "checkout"
    monkeypatch.setenv(ROOT_VARIABLE, str(root))
    return root


def row_of(catalogue: Catalogue, result_id: str) -> dict[str, Any]:
    [row] = catalogue.results_where(result_id=result_id)
    return row


def test_the_records_and_the_steps_of_results_can_be_downloaded(catalogue: Catalogue, in_checkout: Path, tmp_path: Path) -> None:
    reproduce.write_files(catalogue, tmp_path)
    folder = tmp_path / reproduce.RECORDS
    names = {path.name for path in folder.iterdir()}
    assert {f"{MEASURED}.json", f"{MEASURED}.steps.csv", "003-001.json", f"{ENTRY}.json"} <= names
    assert f"{CRASHED}.steps.csv" not in names, "it completed no step"
    assert f"{STRANGE}.json" not in names, "its path in the database is not a file of the checkout"
    assert (folder / f"{MEASURED}.json").read_bytes() == (in_checkout / row_of(catalogue, MEASURED)["file"]).read_bytes()
    with (folder / f"{MEASURED}.steps.csv").open(encoding="utf-8", newline="") as file:
        steps = list(csv.DictReader(file))
    assert len(steps) == len(SUBMISSIONS["measured"].trace)
    assert {row["label"] for row in steps} == {"warmup", "steady"}


def test_a_record_that_changed_since_it_was_collected_is_not_published(catalogue: Catalogue, in_checkout: Path) -> None:
    row = row_of(catalogue, "003-001")
    assert reproduce.downloads(row).record == "data/records/003-001.json"
    assert in_checkout
    for other in ({"sha256": "0" * 64}, {"file": "../../etc/passwd"}, {"file": "/etc/passwd"}, {"file": "data/none.json"}):
        assert reproduce.downloads(row | other).record is None


def test_one_result_of_a_set_is_written_without_the_others() -> None:
    file = "data/published/047/results.json"
    content = (CHECKOUT / file).read_bytes()
    first = json.loads(content)["results"][0]
    row = {"result_id": first["id"], "source": "047", "steps": None, "file": file}
    row["sha256"] = hashlib.sha256(content).hexdigest()
    assert json.loads(reproduce.record_bytes(row)) == {"format": "tunemark.published/1"} | first


def test_a_page_links_the_files_that_were_written(built: Path) -> None:
    site = built / "site"
    text = (site / "results" / f"{MEASURED}.html").read_text(encoding="utf-8")
    assert f'href="../data/records/{MEASURED}.steps.csv"' in text
    for link in re.findall(r'href="\.\./(data/records/[^"]+)"', text):
        assert (site / link).is_file()
    for path in (site / "data" / "records").iterdir():
        assert str(Path.home()) not in path.read_text(encoding="utf-8")


# The order of a page -------------------------------------------------------------------------------


def test_figures_come_first_then_verdicts_conditions_comparable_results_evidence_and_reproduction(pages: dict[str, Page]) -> None:
    text = markdown(pages["results/003-001"])
    order = [
        '<dl class="tm-headlines">',
        '<p class="tm-verdict">',
        "## Conditions",
        "## Comparable results",
        "## Cost",
        "## Readings",
        "## Printed figures",
        "## Audit findings",
        "## Full record",
        "## Reproduce and cite",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert "tm-finding" not in text[: text.index("## Audit findings")]


def test_each_verdict_is_one_line_that_names_the_impossible_figure_and_links_to_the_findings(pages: dict[str, Page]) -> None:
    text = markdown(pages["results/003-001"])
    lines = [line for line in text.splitlines() if 'class="tm-verdict"' in line]
    assert [re.findall(r'class="tm-badge tm-is-\w+">(\w+)', line) for line in lines] == [["impossible"], ["inconsistent"], ["ambiguous"]]
    assert 'href="#audit-findings">More FLOPs per second than the devices can execute (tokens/s)' in lines[0]
    assert 'href="#readings">Several readings of step time' in lines[2]


def test_an_impossible_result_has_no_cost_and_its_figure_is_called_impossible(pages: dict[str, Page]) -> None:
    text = markdown(pages["results/003-001"])
    badges = text[text.index('class="tm-badges"') :][:200]
    assert ">impossible<" in badges
    assert ">ok<" not in badges
    assert "The audit calls this figure impossible." in text
    assert "Cost per" not in text[: text.index("</dl>")]
    assert pages["results/003-001"].context["costs"] is None


def test_an_impossible_result_is_not_ranked(pages: dict[str, Page]) -> None:
    assert "Not ranked: the audit finds a figure or a condition of this result impossible." in markdown(pages["results/003-001"])


def test_unknown_figures_and_conditions_are_listed_in_a_sentence(pages: dict[str, Page]) -> None:
    text = markdown(pages[f"results/{CRASHED}"])
    assert "tm-headlines" not in text
    assert "Unknown: tokens/s, samples/s, MFU, peak memory, step time, training time, cost." in text
    published = markdown(pages["results/003-001"])
    assert "Not stated: " in published
    assert "instance" in published.partition("Not stated: ")[2].partition(".")[0]


def test_a_headline_says_what_the_figure_means(pages: dict[str, Page]) -> None:
    facts = pages["results/003-001"].context["headlines"]
    assert isinstance(facts, list)
    notes = {fact.name: fact.note for fact in facts}
    assert notes["Tokens/s"].startswith("The audit calls this figure impossible. 1M tokens take 24.4 s.")
    assert notes["Peak memory"].startswith("Highest memory of one device, 97.5% of its 80 GiB.")
    assert {fact.name: fact.value for fact in facts}["Step time"] == "4.70 s or 2 min 30 s"


def test_the_cost_at_the_top_names_its_basis_and_a_cheaper_on_demand_offer(catalogue: Catalogue) -> None:
    (impossible,) = catalogue.results_where(result_id="003-001")
    row = impossible | {"impossible": False}
    assert headlines(catalogue, impossible, ("cost",)) == []
    basis = catalogue.basis_costs["003-001"]
    column = next(name for name in HEADLINE_COSTS if basis[name] is not None)
    cheaper = basis | {"provider": "oci", "kind": "on_demand", column: basis[column] / 2}
    spot = basis | {"kind": "spot", column: basis[column] / 4}
    # A copy, since other tests share the catalogue.
    changed = replace(catalogue, costs={"003-001": [basis, cheaper, spot]})
    ((_, _, note),) = [(fact.name, fact.value, fact.note) for fact in headlines(changed, row, ("cost",))]
    assert note.startswith("On the default price basis: ")
    assert note.endswith(f"Cheapest on-demand offer: {QUANTITIES[COSTS[column]].text(basis[column] / 2)} at Oracle Cloud.")
    alone = replace(catalogue, costs={"003-001": [basis, spot]})
    assert "Cheapest" not in headlines(alone, row, ("cost",))[0].note


# Comparable results, history and freshness ---------------------------------------------------------


def test_comparable_results_are_linked_with_their_rates_and_the_comparison(pages: dict[str, Page]) -> None:
    table = pages[f"results/{MEASURED}"].context["comparable"]
    assert isinstance(table, Table)
    assert {line.cells[0].text for line in table.rows} == {SLOWER} | ({line.cells[0].text for line in table.rows} - {SLOWER, MEASURED})
    assert MEASURED not in {line.cells[0].text for line in table.rows}
    slower = next(line for line in table.rows if line.cells[0].text == SLOWER)
    assert slower.cells[1].sort is None
    assert slower.cells[2].text == "0.998x"
    assert slower.cells[-1].href == f"{COMPARE}#{MEASURED},{SLOWER}"
    assert COMPARE in pages
    assert OTHER not in {line.cells[0].text for line in table.rows}, "its precision differs"


def test_a_published_result_is_compared_with_the_same_model_method_and_devices(catalogue: Catalogue) -> None:
    row = row_of(catalogue, "003-001")
    twin = row | {"result_id": "003-009", "sequence_length": 4096, "impossible": False, "comparability_group": None}
    other = twin | {"result_id": "003-010", "accelerator_count": 8}
    rows = [*catalogue.results, twin, other]
    changed = replace(catalogue, results=rows)
    page = next(page for page in published.pages(changed) if page.path == "results/003-001")
    table = page.context["comparable"]
    assert isinstance(table, Table)
    assert [line.cells[0].text for line in table.rows] == ["003-009"]
    assert table.rows[0].cells[3].text == "sequence length 4,096"


def test_runs_of_the_same_configuration_are_listed_oldest_first(catalogue: Catalogue) -> None:
    # Other versions of the software are the point of a history, and the run need not be rankable.
    first = row_of(catalogue, MEASURED)
    newer = {key: first[key] for key in CONFIGURATION_KEYS} | {"software": "torch 2.99", "rankable": False, "configuration": None}
    rows = [row | newer if row["result_id"] == SLOWER else row for row in catalogue.results]
    changed = replace(catalogue, results=rows)
    page = next(page for page in measured.pages(changed) if page.path == f"results/{MEASURED}")
    table = page.context["history"]
    assert isinstance(table, Table)
    assert [line.cells[0].small for line in table.rows] == ["this result", SLOWER]
    assert table.rows[1].cells[-1].text == "-0.2%"
    assert "### Runs of the same configuration" in markdown(page)


@pytest.mark.parametrize(
    ("version", "number"),
    [("2.13.0+cpu", (2, 13)), ("v0.9", (0, 9)), ("4.49.0.dev0", (4, 49)), (">=2.0.0", None), ("main", None), (None, None)],
)
def test_only_exact_versions_have_an_age(version: str | None, number: tuple[int, int] | None) -> None:
    assert rerun.minor(version) == number


def test_the_age_of_software_counts_the_newer_minor_releases_of_other_results(catalogue: Catalogue) -> None:
    facts = {
        result: [{"topic": "packages", "name": "torch", "value": version, "reason": None}]
        for result, version in {"003-001": "2.5.1", MEASURED: "2.7.0", SLOWER: "2.7.1", OTHER: "2.6.0"}.items()
    }
    # Results of toy models are not listed.
    assert {row["tier"] for row in catalogue.workloads if row["workload"] == row_of(catalogue, MEASURED)["workload"]} == {"smoke"}
    [page] = rerun.pages(catalogue)
    assert page.context["old"] is None
    cards = [row | {"tier": "single"} for row in catalogue.workloads]
    changed = replace(catalogue, workloads=cards, facts=facts, package_versions={"torch": ["2.5.1", "2.7.0", "2.7.1", "2.6.0"]})
    [old] = rerun.ages(changed, row_of(catalogue, "003-001"))
    assert old.text == "torch 2.5.1, 2 minor releases behind 2.7"
    [new] = rerun.ages(changed, row_of(catalogue, MEASURED))
    assert new.behind == 0
    [page] = rerun.pages(changed)
    table = page.context["old"]
    assert isinstance(table, Table)
    order = [line.cells[0].small for line in table.rows]
    assert order.index(OTHER) < order.index(MEASURED)


def test_the_list_of_results_to_measure_names_accelerators_with_published_results_only(
    catalogue: Catalogue, pages: dict[str, Page]
) -> None:
    card = catalogue.workloads[0] | {"model": "llama-3.1-8b", "method": "full"}
    claimed = [row for row in catalogue.results if row["source"] != "measured" and row["model"] == "llama-3.1-8b"]
    rows = [row | {"method": "full"} for row in claimed]
    changed = replace(catalogue, results=rows, workloads=[card])
    [page] = rerun.pages(changed)
    table = page.context["missing"]
    assert isinstance(table, Table)
    assert [[cell.text for cell in line.cells] for line in table.rows] == [[card["title"], "H100 SXM5 80GB", str(len(rows))]]
    assert "No run has been measured yet, except of toy models." in markdown(page)
    assert 'href="rerun.html">Please re-run' in markdown(pages["guide/index"])


# Citations -----------------------------------------------------------------------------------------


def test_a_published_result_cites_its_source_and_itself(catalogue: Catalogue) -> None:
    source, own = reproduce.citations(catalogue, row_of(catalogue, "003-001"))
    assert source.text == "Somebody. GPU Test. https://example.org/gpu-test."
    assert source.bibtex == (
        "@misc{source-003,",
        "author = {{Somebody}},",
        "title = {GPU Test},",
        "url = {https://example.org/gpu-test},",
        "}",
    )
    assert own.title == "This result"
    assert "year = {2026}," not in own.bibtex, "the day of reading is unknown"
    assert "results/003-001.html" in own.text


def test_a_measured_result_cites_its_year_and_its_hash(catalogue: Catalogue) -> None:
    [own] = reproduce.citations(catalogue, row_of(catalogue, MEASURED))
    assert "year = {2026}," in own.bibtex
    assert any(row_of(catalogue, MEASURED)["sha256"] in line for line in own.bibtex)


def test_text_of_strangers_cannot_end_a_field_of_a_citation(catalogue: Catalogue) -> None:
    for citation in reproduce.citations(catalogue, row_of(catalogue, "004-001")):
        assert all(line.count("{") == line.count("}") for line in citation.bibtex[1:-1])


# Other pages ---------------------------------------------------------------------------------------


def test_an_impossible_cell_of_a_printed_table_links_to_its_finding(catalogue: Catalogue) -> None:
    findings = [row | {"quantities": ["peak_memory_bytes"]} if row["verdict"] == "impossible" else row for row in catalogue.findings]
    changed = replace(catalogue, findings=findings)
    table = documents.rebuilt(changed, catalogue.tables[0])
    marks = [[(cell.mark, cell.mark_href) for cell in line.cells] for line in table.rows]
    assert marks == [[("", None), ("impossible", "results/003-001#audit-findings"), ("", None)], [("", None)] * 3]
    page = next(page for page in documents.pages(changed) if page.path == "documents/003")
    assert '<a href="../results/003-001.html&#35;audit-findings" class="tm-mark tm-is-impossible">impossible</a>' in markdown(page)


def test_a_workload_lists_published_results_with_its_conditions_and_a_model_its_workloads(catalogue: Catalogue) -> None:
    card = catalogue.workloads[0] | {"model": "llama-3.1-8b", "method": "full", "sequence_length": 8192}
    changed = replace(catalogue, workloads=[card])
    page = next(page for page in workloads.pages(changed) if page.path == f"workloads/{card['workload']}")
    table = page.context["published"]
    assert isinstance(table, Table)
    assert "003-001" in {line.cells[0].small for line in table.rows}
    model = next(page for page in models.pages(changed) if page.path == "models/llama-3.1-8b")
    assert f'href="../workloads/{card["workload"]}.html">{card["title"]}' in markdown(model)


def test_green_red_and_amber_are_used_for_status_and_verdicts_only() -> None:
    style = (CHECKOUT / "site/tunemark/site/assets/tunemark.css").read_text(encoding="utf-8")
    last: dict[str, str] = {}
    for selectors, rules in re.findall(r"([^{}]+)\{([^{}]*)\}", style):
        colour = re.search(r"(?:^|[;\s])(?:border-)?color: var\(--tm-(\w+)\)", rules)
        for kind in re.findall(r"\.tm-is-(\w+)", selectors) if colour and "tm-mark" not in selectors else ():
            last[kind] = colour[1]  # type: ignore[index]
    coloured = {colour: {kind for kind, used in last.items() if used == colour} for colour in ("good", "bad", "warning")}
    assert coloured == {"good": {"ok"}, "bad": {"failed", "impossible", "inconsistent"}, "warning": {"suspicious", "ambiguous"}}
