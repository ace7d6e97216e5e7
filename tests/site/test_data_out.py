"""The data as files: Parquet, CSV, DuckDB, the JSON API, the feed, and metadata of pages."""

import csv
import json
import os
import re
import sys
from html import unescape
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen
from xml.etree import ElementTree as ET

import duckdb
import pyarrow.parquet as pq
import pytest
from fixture_database import H100, MEASURED
from harness_making import ran
from huggingface_hub import DatasetCard
from PIL import Image
from playwright.sync_api import Browser

import tunemark
from tunemark.schema.records.reading import ID_BASE, schema_files
from tunemark.site import data_files, heads
from tunemark.site.data_files import API, MAIN, TABLES
from tunemark.site.page import DEFAULT_URL, FEED
from tunemark.site.page import address as address_of
from tunemark.site.pages import FOLDER
from tunemark.site.records import Catalogue
from tunemark.site.sql_page import read

ATOM = {"a": "http://www.w3.org/2005/Atom"}


@pytest.fixture(scope="module")
def site(built: Path) -> Path:
    return built / "site"


def head(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("</head>")[0]


# Files ---------------------------------------------------------------------------------------------


def test_two_builds_of_one_database_differ_only_in_the_duckdb_file(site: Path, built_by_command: Path) -> None:
    def contents(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    ours, theirs = contents(site), contents(built_by_command / "site")
    assert ours.keys() == theirs.keys()
    assert {name for name in ours if ours[name] != theirs[name]} <= {data_files.DUCKDB_FILE}


@pytest.mark.parametrize("name", TABLES)
def test_parquet_csv_and_duckdb_have_the_same_rows_and_columns(site: Path, catalogue: Catalogue, name: str) -> None:
    table = pq.read_table(site / "data" / f"{name}.parquet")
    names = [field["field"] for field in data_files.fields(catalogue.database, name)]
    assert table.column_names == names
    with duckdb.connect(str(site / data_files.DUCKDB_FILE), read_only=True) as connection:
        assert connection.table(name).count("*").fetchall() == [(table.num_rows,)]
        (comment,) = connection.execute("select comment from duckdb_tables() where table_name = ?", [name]).fetchall()
        assert comment == (data_files.contents(catalogue.database, name),)
    if name in MAIN:
        with (site / "data" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == table.num_rows
        assert not rows or list(rows[0]) == names
        assert not [value for row in rows for value in row.values() if value.startswith(("=", "@", "+"))]


@pytest.mark.parametrize("name", MAIN)
def test_each_field_of_the_main_tables_has_a_meaning(catalogue: Catalogue, name: str) -> None:
    assert not [field["field"] for field in data_files.fields(catalogue.database, name) if not field["meaning"]]


# API -----------------------------------------------------------------------------------------------


def test_each_result_has_a_file_and_its_links_and_those_of_the_index_have_targets(site: Path, catalogue: Catalogue) -> None:
    for row in catalogue.results:
        content = json.loads((site / API / "results" / f"{row['result_id']}.json").read_text(encoding="utf-8"))
        assert content["result"]["result_id"] == row["result_id"]
        assert all((site / path).is_file() for path in content["links"].values() if path)
    claims = json.loads((site / API / "results" / "003-001.json").read_text(encoding="utf-8"))["claims"]
    assert {"quantity", "value", "printed", "note"} == claims[0].keys()
    index = json.loads((site / API / "index.json").read_text(encoding="utf-8"))
    paths = [index["duckdb"], *(entry[kind] for entry in index["tables"] for kind in ("parquet", "csv", "json") if entry[kind])]
    assert len(paths) > 20
    assert [path for path in paths if not (site / path).is_file()] == []


def test_the_schemas_of_records_are_served_at_their_id(site: Path) -> None:
    for name, text in schema_files().items():
        address = json.loads(text)["$id"]
        assert address == f"{ID_BASE}/{name}"
        assert (site / address.removeprefix(DEFAULT_URL)).read_text(encoding="utf-8") == text


# Feed ----------------------------------------------------------------------------------------------


def test_the_feed_is_ordered_and_as_old_as_its_newest_entry(site: Path) -> None:
    feed = ET.parse(site / FEED).getroot()  # noqa: S314 - our own file
    updated = [each.text for each in feed.findall("a:entry/a:updated", ATOM)]
    assert updated == sorted(updated, reverse=True)
    assert feed.findtext("a:updated", namespaces=ATOM) == updated[0]
    ids = [each.text for each in feed.findall("a:entry/a:id", ATOM)]
    assert len(set(ids)) == len(ids) > 5
    titles = " ".join(each.text or "" for each in feed.findall("a:entry/a:title", ATOM))
    assert "Result: " in titles
    assert "Prices: 2 prices from Lambda, in force from 2025-06-01" in titles
    for link in feed.findall("a:entry/a:link", ATOM):
        assert (site / link.attrib["href"].removeprefix(DEFAULT_URL).partition("#")[0]).is_file()


# Metadata ------------------------------------------------------------------------------------------


def test_each_page_has_one_description_and_one_canonical_address_and_is_in_the_sitemap(site: Path) -> None:
    listed = [unescape(address) for address in re.findall("<loc>(.*?)</loc>", (site / "sitemap.xml").read_text(encoding="utf-8"))]
    found = []
    for path in {*site.rglob("*.html")} - {site / "404.html", site / "embed/result.html"}:
        tags = head(path)
        (description,) = re.findall(r'<meta name="description" content="([^"]*)">', tags)
        assert 30 < len(unescape(description)) <= heads.LONGEST, path
        (canonical,) = re.findall(r'<link rel="canonical" href="([^"]*)">', tags)
        assert unescape(canonical) == address_of(DEFAULT_URL, str(path.relative_to(site).with_suffix("")))
        (title,) = re.findall(r'<meta property="og:title" content="([^"]*)">', tags)
        assert f"<title>{unescape(title)} - Tunemark</title>" in unescape(tags)
        (feed,) = re.findall(r'<link rel="alternate feed" type="application/atom\+xml"[^>]* href="([^"]*)">', tags)
        assert (path.parent / feed).resolve() == (site / FEED).resolve()
        found.append(unescape(canonical))
    assert sorted(found) == sorted(listed)
    assert (site / heads.CARD).is_file()


def test_home_and_data_page_describe_the_dataset(site: Path) -> None:
    for path in (site / "index.html", site / "data" / "index.html"):
        (text,) = re.findall(r'<script type="application/ld\+json">(.*?)</script>', path.read_text(encoding="utf-8"))
        described = json.loads(text)
        assert described["@type"] == "Dataset"
        assert described["license"].startswith("https://creativecommons.org/licenses/by/4.0")
        for each in described["distribution"]:
            assert (site / each["contentUrl"].removeprefix(DEFAULT_URL)).is_file()


def test_an_unknown_address_is_answered_with_a_page_that_has_links_from_the_root(address: str) -> None:
    with pytest.raises(HTTPError) as answer:
        urlopen(f"{address}results/nothing.html")  # noqa: S310 - our own server
    text = answer.value.read().decode()
    assert (answer.value.code, "<h1>Page not found</h1>" in text) == (404, True)
    assert '<meta name="robots" content="noindex">' in text
    assert 'href="/results/index.html"' in text


# What other places show ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", read(FOLDER.joinpath("api.md.j2")).head["examples"])
def test_each_example_of_the_json_api_runs_as_it_is_printed(built: Path, address: str, tmp_path: Path, name: str) -> None:
    page = unescape((built / "site/data/api.html").read_text(encoding="utf-8"))
    code = re.search(rf"{re.escape(name)}</h3>\s*<pre[^>]*><code>(.*?)</code>", page, re.DOTALL)
    assert code
    paths = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = ran(["bash", "-ec", code[1].replace(DEFAULT_URL, address)], cwd=tmp_path, env={"PATH": paths})
    assert (done.returncode, done.stdout.strip() != "" or any(tmp_path.iterdir())) == (0, True), done.stderr


def test_the_examples_of_the_python_api_run_and_its_page_names_every_function(whole_database: Path, built: Path, tmp_path: Path) -> None:
    for name in ("data", "submissions"):
        (tmp_path / name).symlink_to(Path(__file__).parents[2] / name)
    (tmp_path / "build").symlink_to(whole_database.parent)
    page = unescape((built / "site/data/python.html").read_text(encoding="utf-8"))
    assert {name for name in tunemark.__all__ if name.islower()} == set(re.findall(r"<code>tunemark\.(\w+)\(", page))
    for code in re.findall(r"<code>(import tunemark\n.*?)</code>", page, re.DOTALL):
        done = ran([sys.executable, "-c", code], cwd=tmp_path, env={"TUNEMARK_ROOT": str(tmp_path)})
        assert done.returncode == 0, done.stderr
        assert done.stdout


def test_results_studies_and_accelerators_have_their_own_json_ld(site: Path, catalogue: Catalogue) -> None:
    def described(path: str) -> dict[str, object]:
        (text,) = re.findall(r'<script type="application/ld\+json">(.*?)</script>', head(site / f"{path}.html"), re.DOTALL)
        found: dict[str, object] = json.loads(text)
        assert found["@id"] == address_of(DEFAULT_URL, path)
        return found

    row = next(row for row in catalogue.results if row["tokens_per_s"])
    figures = {each["name"]: each["value"] for each in described(f"results/{row['result_id']}")["variableMeasured"]}  # type: ignore[attr-defined]
    assert figures["Tokens/s"] == row["tokens_per_s"]
    card = described(f"accelerators/{H100}")
    assert (card["@type"], [each["value"] for each in card["additionalProperty"] if each["unitText"] == "GiB"]) == ("Product", [80])  # type: ignore[attr-defined]
    assert "Parameters" in {each["name"] for each in described("models/tiny-llama")["additionalProperty"]}  # type: ignore[attr-defined]
    studies = [f"studies/{path.stem}" for path in (site / "studies").glob("*.html") if path.stem != "index"]
    assert {described(path)["@type"] for path in studies} == {"Report"}


@pytest.mark.parametrize("name", [MEASURED, "003-001"])
def test_each_result_has_a_picture_with_its_figures_and_a_chart_to_embed(site: Path, address: str, browser: Browser, name: str) -> None:
    text = unescape((site / f"results/{name}.html").read_text(encoding="utf-8"))
    with Image.open(site / f"results/{name}.png") as picture:
        assert f'og:image" content="{DEFAULT_URL}results/{name}.png"' in text
        assert all(f'content="{size}"' in text for size in picture.size)
        assert len(picture.crop((28, 80, 600, 200)).getcolors()) == 4  # figures below the title, in all shades
    (snippet,) = re.findall(r'<iframe src="(\S+)"', text)
    page, asked = browser.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(snippet.replace(DEFAULT_URL, address))
    page.locator("main svg text").first.wait_for()
    rate = json.loads((site / API / "results" / f"{name}.json").read_text(encoding="utf-8"))["result"]["tokens_per_s"]
    assert f"{float(f'{rate:.4g}'):,g} tokens/s" in page.locator("main p").first.inner_text()
    assert [url for url in asked if not url.startswith(address)] == []
    page.goto(f"{address}embed/result.html?no/where")
    assert page.get_by_role("alert").inner_text().startswith("Give the id of a result")
    page.close()


def test_the_folders_for_the_hub_are_complete(built: Path, catalogue: Catalogue) -> None:
    """The card names a licence and a file for each configuration, which the hub reads; the Space is static and shows the site."""
    card = DatasetCard.load(built / "hub/dataset/README.md")
    assert card.data.license == "cc-by-4.0"
    for each in card.data.to_dict()["configs"]:
        assert pq.read_table(built / "hub/dataset" / each["data_files"]).num_columns > 0
    assert f"{len(catalogue.results):,} results" in card.text
    space = DatasetCard.load(built / "hub/space/README.md", ignore_metadata_errors=True).data.to_dict()
    assert (space["sdk"], space["title"]) == ("static", "Tunemark")
    assert f'<iframe src="{DEFAULT_URL}"' in (built / "hub/space/index.html").read_text(encoding="utf-8")
