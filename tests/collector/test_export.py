"""The export: the whole collection as files that other tools read, the same bytes for the same database."""

import csv
import json
from datetime import date
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from factories import Tunemark, copy_data

from tunemark.collector.store import export as module
from tunemark.collector.store.export import FILES, RELATIONS, export
from tunemark.collector.store.loading import collect
from tunemark.schema.errors import TunemarkError

DAY = date(2026, 11, 22)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with the published results of two documents."""
    root = copy_data(tmp_path_factory.mktemp("checkout"), "published/001", "published/004")
    collect(root, root / "tunemark.duckdb", DAY)
    return root / "tunemark.duckdb"


@pytest.fixture(scope="module")
def exported(database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of that database."""
    return export(database, tmp_path_factory.mktemp("export") / "data").folder


def test_every_table_is_there_whole_as_parquet_and_as_csv(database: Path, exported: Path):
    assert {path.name for path in exported.iterdir()} == FILES
    with duckdb.connect(str(database), read_only=True) as connection:
        for name in RELATIONS:
            ((count,),) = connection.sql(f"select count(*) from {name}").fetchall()  # noqa: S608 - our own tables
            table = pq.read_table(exported / f"{name}.parquet")
            with (exported / f"{name}.csv").open(encoding="utf-8", newline="") as file:
                header, *rows = csv.reader(file)
            assert (table.num_rows, len(rows), header) == (count, count, table.schema.names)


def test_the_same_database_gives_the_same_bytes(database: Path, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "America/New_York")
    again = export(database, tmp_path / "again").folder
    assert all((again / name).read_bytes() == (exported / name).read_bytes() for name in FILES)


def test_the_readme_describes_every_column_of_every_table(exported: Path):
    text = (exported / "README.md").read_text(encoding="utf-8")
    for name in RELATIONS:
        section = text.split(f"\n## {name}\n")[1].split("\n## ")[0]
        for column in pq.read_schema(exported / f"{name}.parquet").names:
            assert f"| `{column}` |" in section
    assert "| `step_time_s` | double | Wall time of one optimizer step" in text
    assert "2026-11-22" in text


def test_a_folder_with_an_export_is_replaced_only_by_force(database: Path, tmp_path: Path, tunemark: Tunemark):
    arguments = ("export", tmp_path / "data", "--db", database)
    assert tunemark(*arguments).code == 0
    (tmp_path / "data" / "results.csv").write_text("stale", encoding="utf-8")
    refused = tunemark(*arguments)
    assert (refused.code, refused.err.startswith(f"tunemark: {tmp_path / 'data'}: "), "--force" in refused.err) == (2, True, True)
    assert (tmp_path / "data" / "results.csv").read_text(encoding="utf-8") == "stale"
    said = tunemark(*arguments, "--force", "--json")
    assert json.loads(said.out)["rows"]["sources"] == 2
    assert (tmp_path / "data" / "results.csv").read_text(encoding="utf-8").startswith("result_id,")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_failed_export_leaves_the_old_one_and_nothing_else(database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "README.md").write_text("old", encoding="utf-8")

    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "readme", full)
    with pytest.raises(TunemarkError, match="No space left on device"):
        export(database, tmp_path / "data", force=True)
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == ["data", "data/README.md"]
