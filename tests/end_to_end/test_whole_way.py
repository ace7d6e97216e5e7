"""From a real fine-tuning run to a page that shows its number, by the commands a person types."""

import html
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from factories import link_facts
from harness_making import cold, ran

from tunemark.schema import formats
from tunemark.schema.derive import derive
from tunemark.schema.records.reading import read_record

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
DOCUMENT, STEPS = "000", 32
TABLES = json.loads((ROOT / "tests" / "data" / "document_tables.json").read_text(encoding="utf-8"))
MLPERF = {"mlperf-v4.0": 31, "mlperf-v4.1": 27, "mlperf-v5.0": 51, "mlperf-v5.1": 62}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A checkout with facts, a document and no submission, in which a demo ends after a few short steps: its figures are not the subject.

    The database and the site of all documents are those of `whole_database` and `whole_site`.
    """
    folder = tmp_path_factory.mktemp("checkout")
    link_facts(folder / "data", "workloads")
    shutil.copytree(ROOT / "data" / "published" / DOCUMENT, folder / "data" / "published" / DOCUMENT)
    # Without the losses that a run of the cards as they are must have.
    shutil.copytree(ROOT / "data" / "workloads", folder / "data" / "workloads", ignore=shutil.ignore_patterns("golden"))
    for card in (folder / "data" / "workloads").glob("smoke-*.toml"):
        text = re.sub(r"^max_steps = .*$", f"max_steps = {STEPS}", card.read_text(encoding="utf-8"), flags=re.MULTILINE)
        card.write_text(re.sub(r"^sequence_length = .*$", "sequence_length = 32", text, flags=re.MULTILINE), encoding="utf-8")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    return folder


def here(checkout, command, **env):
    done = ran(command, cwd=checkout, env={"TUNEMARK_ROOT": str(checkout), **env}, timeout=500)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done


def tunemark(checkout, *arguments):
    return here(checkout, cold("tunemark", *arguments))


def make_demo(checkout):
    return here(checkout, [ROOT / ".ci" / "demo"], PYTHON=sys.executable, SERVE="0")


def rows(checkout, query, *options):
    return json.loads(tunemark(checkout, "query", query, *options, "--json").stdout)


def results_by_source(checkout, *options):
    return {row["source"]: row["n"] for row in rows(checkout, "select source, count(*) as n from results group by 1", *options)}


@pytest.fixture(scope="module")
def demo(checkout):
    """What `make demo` prints: three real runs, collected and built into a site."""
    return make_demo(checkout).stdout


def test_the_demo_ends_with_three_runs_in_the_database_and_the_path_of_the_site(checkout, demo):
    for workload in ("smoke-lora", "smoke-full", "smoke-bert"):
        (path,) = (checkout / "submissions" / workload).glob("*.json")
        assert path.name in demo
        assert len(read_record(path.read_bytes()).trace) == STEPS
    index = checkout / "build" / "site" / "index.html"
    assert demo.splitlines()[-1] == f"site: {index}"
    assert index.is_file()
    assert results_by_source(checkout) == {DOCUMENT: 3, "measured": 3}


def test_all_documents_and_committed_runs_are_in_the_database_of_this_repository(whole_database):
    documents = {path.parent.name: json.loads(path.read_text())["results"] for path in (ROOT / "data/published").glob("*/source.json")}
    runs = len(list((ROOT / "submissions").rglob("*.json")))
    assert results_by_source(ROOT, "--db", whole_database) == {**documents, "measured": runs, **MLPERF}
    assert sum(documents.values()) > 1_500


@pytest.mark.usefixtures("demo")
def test_the_page_of_the_run_shows_its_throughput_and_names_its_file(checkout):
    (path,) = (checkout / "submissions" / "smoke-full").glob("*.json")
    identity = re.search(r"([0-9a-f]{12})\.json$", path.name)[1]
    page = (checkout / "build" / "site" / "results" / f"{identity}.html").read_text(encoding="utf-8")
    assert formats.significant(derive(read_record(path.read_bytes())).tokens_per_s.value) in page
    assert path.name in page


def tables_of(page):
    """Return the words of each cell of each row of each table of a page, without our marks."""

    def parts(text, names):
        return re.findall(rf"<(?:{names})\b.*?</(?:{names})>", text, re.DOTALL)

    def words(cell):
        return " ".join(html.unescape(re.sub(r"<[^>]+>", "", cell)).split())

    page = re.sub(r'<(\w+)[^>]* class="?tm-mark\b.*?</\1>', "", page, flags=re.DOTALL)
    return [[[words(cell) for cell in parts(row, "td|th")] for row in parts(table, "tr")] for table in parts(page, "table")]


@pytest.mark.parametrize("source", TABLES)
def test_the_tables_of_a_document_stand_on_its_page_digit_for_digit(whole_site, source):
    built = tables_of((whole_site / "site" / "documents" / f"{source}.html").read_text(encoding="utf-8"))
    for name, table in TABLES[source].items():
        assert [[" ".join(cell.split()) for cell in row] for row in table] in built, name


@pytest.mark.nightly
def test_a_second_demo_measures_nothing_and_changes_nothing(checkout, demo):
    every = "select count(*) as n, sum(hash(result_id)) as h from results"
    before = rows(checkout, every)
    again = make_demo(checkout)
    assert again.stderr.count("measured by an earlier run here") == 3
    assert again.stdout.splitlines()[-1] == demo.splitlines()[-1]
    assert rows(checkout, every) == before
