"""A build uses the files of results again whose rows did not change, and the site has the bytes of a full build."""

import json
import shutil
from pathlib import Path

import duckdb
import pytest
from fixture_database import ENTRY, MEASURED, ROOT

from tunemark.site import charts, downloads, kept_results, stamp
from tunemark.site.build import build_site
from tunemark.site.page import badge_file, result_path
from tunemark.site.pages import other_pages
from tunemark.site.queries import OF_A_RESULT, Catalogue, Database
from tunemark.site.workers import pages_of

Made = tuple[dict[str, str], dict[str, stamp.StampedPage]]
"""Key and page of each result, and of each other page that can be kept."""


def build(database: Path, out: Path) -> str:
    """Build the site and return its messages."""
    reported: list[str] = []
    build_site(database, out, ROOT / "mkdocs.yml", strict=True, progress=reported.append)
    return "\n".join(reported)


def content(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files of a folder but the one that DuckDB does not write in the same way twice."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.relative_to(folder).as_posix() != downloads.DUCKDB_FILE)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def changed_copy(database: Path, folder: Path, *statements: str) -> Path:
    copy = folder / "changed.duckdb"
    shutil.copyfile(database, copy)
    with duckdb.connect(str(copy)) as connection:
        for statement in statements:
            connection.execute(statement)
    return copy


@pytest.fixture
def kept(built: Path, tmp_path: Path) -> Path:
    """Return a copy of the built site with its list of results."""
    return Path(shutil.copytree(built, tmp_path / "out"))


def test_after_a_change_of_one_result_the_site_has_the_bytes_of_a_full_build(database: Path, kept: Path, tmp_path: Path) -> None:
    statement = f"update result_rows set tokens_per_s = tokens_per_s * 1.1 where result_id = '{MEASURED}'"  # noqa: S608 - our own names
    changed = changed_copy(database, tmp_path, statement)
    untouched = [kept / "site" / path for path in (f"{result_path(ENTRY)}.html", "data/option_rates.parquet", "data/recommend/index.json")]
    before = [path.stat().st_mtime_ns for path in untouched]
    reported = build(changed, kept)
    build(changed, tmp_path / "fresh")
    assert content(kept / "site") == content(tmp_path / "fresh" / "site")
    assert content(kept / "docs") == content(tmp_path / "fresh" / "docs")
    assert content(kept / ".charts") == content(tmp_path / "fresh" / ".charts")
    assert keys(kept) == keys(tmp_path / "fresh")
    assert [path.stat().st_mtime_ns for path in untouched] == before
    assert " 0 of them new" not in reported


def keys(out: Path) -> dict[str, str]:
    """Return the key of each result and of each other page in the list of files to keep."""
    content = json.loads((out / kept_results.FILE).read_text(encoding="utf-8"))
    return {name: each[0] for kind in ("results", "data", "pages") for name, each in content[kind].items()}


@pytest.mark.parametrize("damage", ["no list", "not JSON", "other format", "not an object"])
def test_without_a_usable_list_every_page_is_made_again(damage: str, catalogue: Catalogue, kept: Path) -> None:
    file = kept / kept_results.FILE
    texts = {
        "not JSON": "{",
        "other format": file.read_text(encoding="utf-8").replace(f'"format":{kept_results.FORMAT}', '"format":0'),
        "not an object": "[]",
    }
    file.unlink() if damage == "no list" else file.write_text(texts[damage], encoding="utf-8")
    found = kept_results.KeptResults.read(kept, kept_results.keys_of(catalogue))
    assert (found.files, found.data, found.pages) == ({}, {}, {})


def test_a_file_that_was_changed_or_removed_is_made_again(database: Path, built: Path, kept: Path) -> None:
    first, second = kept_results.paths_of(MEASURED)
    (kept / "site" / first).write_text("changed by hand", encoding="utf-8")
    (kept / "site" / badge_file(MEASURED)).unlink()
    (kept / "site" / kept_results.paths_of(ENTRY)[1]).unlink()
    assert " 2 of them new" in build(database, kept)
    assert (kept / "site" / first).read_bytes() == (built / "site" / first).read_bytes()
    assert content(kept / "site") == content(built / "site")
    assert second in content(kept / "site")


@pytest.mark.parametrize(
    ("statement", "groups"),
    [
        ("update option_rates set tokens_per_s = 1.5 * tokens_per_s", {"option_rates", "data/recommend"}),
        (
            "update prices set region = 'elsewhere' where price = (select min(price) from current_prices)",
            {"prices", "data/recommend", "costs"},
        ),
        ("update result_facts set value = 'other' where result_id = (select min(result_id) from result_facts)", {"result_facts"}),
        ("update run_curves set eval_loss = 2 * eval_loss", {"run_curves"}),
    ],
)
def test_data_files_are_kept_unless_their_rows_change(statement: str, groups: set[str], database: Path, kept: Path, tmp_path: Path) -> None:
    with Database(changed_copy(database, tmp_path, statement)) as opened:
        found = kept_results.KeptResults.read(kept, kept_results.keys_of(Catalogue.read(opened)))
    made_again = kept_results.DATA.keys() - found.data.keys()
    assert groups <= made_again | {"costs"}
    assert made_again <= groups | {"results"}


def test_a_page_that_lists_results_is_kept_and_a_damaged_one_is_made_again(database: Path, kept: Path) -> None:
    listed = json.loads((kept / kept_results.FILE).read_text(encoding="utf-8"))["pages"]
    damaged, other = (kept / "site" / f"{path}.html" for path in sorted(listed)[:2])
    text, written = damaged.read_bytes(), other.stat().st_mtime_ns
    damaged.write_text("changed by hand", encoding="utf-8")
    build(database, kept)
    assert damaged.read_bytes() == text
    assert other.stat().st_mtime_ns == written


def test_pages_are_made_again_if_mkdocs_lays_them_out_in_another_way(database: Path, kept: Path) -> None:
    listed = json.loads((kept / kept_results.FILE).read_text(encoding="utf-8"))
    page = kept / "site" / kept_results.paths_of(MEASURED)[0]
    text = page.read_bytes()
    page.write_bytes(b"of another layout")
    listed["shell"] = "another"
    listed["results"][MEASURED][1] = {path: kept_results.mark_of(kept / "site" / path) for path in kept_results.paths_of(MEASURED)}
    (kept / kept_results.FILE).write_text(json.dumps(listed), encoding="utf-8")
    assert " 0 of them new" in build(database, kept)
    assert page.read_bytes() == text


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of charts. A chart with the same arguments is drawn once."""
    return tmp_path_factory.mktemp("charts")


@pytest.fixture(scope="module")
def before(database: Path, drawn: Path) -> Made:
    return rendered(database, drawn)


def rendered(database: Path, drawn: Path) -> Made:
    """Return the key and the page of each result, and of each other page that can be kept."""
    with Database(database) as opened, charts.kept_in(drawn):
        catalogue = Catalogue.read(opened)
        keys = kept_results.keys_of(catalogue)
        pages = {Path(page.path).name: stamp.stamped_page(page) for page in pages_of(catalogue, keys.results)}
        for page in other_pages(catalogue):
            if page.reads is not None:
                keys.add(page, page.reads)
                pages[page.path] = stamp.stamped_page(page)
        return keys.results | keys.pages, pages


WITHOUT_TEXT = {"costs", "first_offers", "basis_costs", "models", "statements", "step_events", "workload_axes"}
"""Views, and tables without a column that could be changed."""
TABLES = sorted({*OF_A_RESULT, *kept_results.SHARED, "result_rows", "findings", "steps", "run_curves", "prices"} - WITHOUT_TEXT)
CHANGES = {"VARCHAR": "{0} || ' x'", "DOUBLE": "{0} * 1.01"}
KEYS = (
    *(
        "result_id",
        "record_id",
        "model",
        "accelerator",
        "workload",
        "division",
        "source",
        "finding",
        "rule",
        "price",
        "provider",
        "verdict",
        "study_id",
    ),
    *("gate", "line", "class", "setting", "status", "task", "method", "label", "topic", "kind", "family", "tier", "trust", "name"),
    *("quantity", "meaning", "phase", "rank", "dated_by"),
)
"""Columns that identify a row, or whose values are a closed set."""


@pytest.mark.parametrize("table", TABLES)
def test_a_page_that_a_table_changes_has_another_key(table: str, before: Made, database: Path, drawn: Path, tmp_path: Path) -> None:
    with duckdb.connect(str(database), read_only=True) as connection:
        columns = connection.execute(
            "select column_name, data_type from information_schema.columns where table_name = ? and table_schema = 'main'", [table]
        ).fetchall()
    changes = [f"{name} = {CHANGES[kind].format(name)}" for name, kind in columns if kind in CHANGES and name not in KEYS]
    changed = changed_copy(database, tmp_path, f"update {table} set {', '.join(changes)}")  # noqa: S608 - our own names
    keys, pages = before
    new_keys, new_pages = rendered(changed, drawn)
    differing = {name for name in pages if pages[name] != new_pages[name]}
    assert differing <= {name for name in keys if keys[name] != new_keys[name]}
    assert differing
