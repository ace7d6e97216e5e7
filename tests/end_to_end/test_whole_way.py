"""From a real fine-tuning run to a page that shows its number, by the commands a person types."""

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tunemark.schema import formats
from tunemark.schema.derive import derive
from tunemark.schema.records.upgrade import read_record

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
MLPERF = {"mlperf-v4.0": 31, "mlperf-v4.1": 27, "mlperf-v5.0": 51, "mlperf-v5.1": 62}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A checkout with all facts and without a submission."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "data").symlink_to(ROOT / "data")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    (folder / "submissions").mkdir()
    return folder


def tunemark(checkout, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "tunemark.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        cwd=checkout,
        env={**os.environ, "TUNEMARK_ROOT": str(checkout)},
    )
    assert done.returncode == 0, f"{arguments}: {done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def run(checkout):
    """A real run, collected and built into a site."""
    answer = json.loads(tunemark(checkout, "run", "smoke-full", "--steps", 40, "--json"))
    tunemark(checkout, "validate")
    tunemark(checkout, "collect")
    tunemark(checkout, "site", "build")
    return answer


def test_the_submission_is_named_after_its_content(checkout, run):
    path = Path(run["file"])
    assert path.is_relative_to(checkout / "submissions" / "smoke-full")
    assert len(read_record(path.read_bytes()).trace) == 40


@pytest.mark.usefixtures("run")
def test_all_documents_and_this_run_are_in_the_database(checkout):
    rows = json.loads(tunemark(checkout, "query", "select source, count(*) as n from results group by 1 order by 1", "--json"))
    documents = {path.parent.name: json.loads(path.read_text())["results"] for path in (checkout / "data/published").glob("*/source.json")}
    assert {row["source"]: row["n"] for row in rows} == {**documents, "measured": 1, **MLPERF}
    assert sum(documents.values()) > 1_500


def test_the_database_holds_what_is_derived_from_the_raw_steps(checkout, run):
    derived = derive(read_record(Path(run["file"]).read_bytes()))
    (row,) = json.loads(
        tunemark(checkout, "query", "select tokens_per_s, step_time_s, train_loss from results where source = 'measured'", "--json")
    )
    assert row["tokens_per_s"] == pytest.approx(derived.tokens_per_s.value)
    assert row["step_time_s"] == pytest.approx(derived.step_time.p50)
    assert row["train_loss"] == pytest.approx(derived.train_loss)


def test_the_page_of_the_run_shows_its_throughput_and_names_its_file(checkout, run):
    identity = re.search(r"([0-9a-f]{12})\.json$", run["file"])[1]
    page = (checkout / "build" / "site" / "results" / f"{identity}.html").read_text(encoding="utf-8")
    assert formats.significant(run["tokens_per_s"]) in page
    assert Path(run["file"]).name in page


class TableReader(HTMLParser):
    """Collects the cells' text of each table of a page, without our marks."""

    def __init__(self):
        super().__init__()
        self.tables, self.inside, self.in_mark = [], False, False

    def handle_starttag(self, tag, attrs):
        self.in_mark = "tm-mark" in (dict(attrs).get("class") or "").split()
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in {"td", "th"}:
            self.tables[-1][-1].append("")
            self.inside = True

    def handle_endtag(self, tag):
        self.in_mark = False
        if tag in {"td", "th"}:
            self.inside = False

    def handle_data(self, data):
        if self.inside and not self.in_mark:
            self.tables[-1][-1][-1] += data


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("source", ["003", "004"])
def test_the_tables_of_a_document_stand_on_its_page_digit_for_digit(checkout, source):
    golden = json.loads((ROOT / "tests" / "data" / "document_tables.json").read_text(encoding="utf-8"))[source]
    reader = TableReader()
    reader.feed((checkout / "build" / "site" / "documents" / f"{source}.html").read_text(encoding="utf-8"))
    built = [[[" ".join(cell.split()) for cell in row] for row in table] for table in reader.tables]
    for name, table in golden.items():
        assert [[" ".join(cell.split()) for cell in row] for row in table] in built, name


@pytest.mark.usefixtures("run")
def test_nothing_in_the_site_is_fetched_from_elsewhere(checkout):
    for page in (checkout / "build" / "site").rglob("*.html"):
        tags = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", page.read_text(encoding="utf-8"))
        fetched = [tag for tag in tags if re.search(r"(?:src|href)=[\"']https?:", tag)]
        assert not [tag for tag in fetched if 'rel="canonical"' not in tag], page


@pytest.mark.usefixtures("run")
def test_a_second_collection_changes_nothing(checkout):
    query = ("query", "select count(*) as n, sum(hash(result_id)) as h from results", "--json")
    before = tunemark(checkout, *query)
    tunemark(checkout, "collect")
    assert tunemark(checkout, *query) == before
