"""`tunemark query` and `prices`: answers for people and for programs."""

import json
from datetime import date
from pathlib import Path

import pytest
from factories import FACTS, Tunemark, copy_data, make_submission, save

from tunemark.collector.commands.prices import offers
from tunemark.collector.store.database import empty_database
from tunemark.collector.store.loading import collect
from tunemark.schema.facts.cards import PriceRow
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import MISSING
from tunemark.terminal import cell, print_table


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with one submission, collected."""
    root = copy_data(tmp_path_factory.mktemp("collected"))
    save(root, make_submission())
    collect(root, root / "build" / "tunemark.duckdb")
    return root


@pytest.fixture
def database(collected: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its database, which the commands find."""
    monkeypatch.setenv("TUNEMARK_ROOT", str(collected))
    return collected / "build" / "tunemark.duckdb"


WRITES = ("create table x (a int)", "delete from result_rows", "insert into warnings values ('a', 'b', 'c')", "drop view results")
WRITES += ("update result_rows set note = 'x'", "sql", "select * from read_csv('/etc/passwd')", "copy results to '/tmp/never.csv'")
WRITES += ("attach '/tmp/never.duckdb'", "install httpfs", "set enable_external_access = true")


@pytest.mark.parametrize("sql", WRITES)
def test_a_query_writes_nothing_and_reaches_nothing_but_the_database(database: Path, tunemark: Tunemark, sql: str) -> None:
    before = database.read_bytes()
    assert tunemark("query", sql).code == 2
    assert database.read_bytes() == before
    assert not Path("/tmp/never.csv").exists()  # noqa: S108 - it must not be there


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("select workloadd from results", '"workloadd" not found'),
        ("select * from resuts", 'resuts does not exist! Did you mean "results"'),
        *((sql, "tunemark: SQL: ") for sql in ("selec 1", "", "select nothing from results", "select 'a'::int")),
    ],
)
@pytest.mark.usefixtures("database")
def test_wrong_sql_is_one_clear_line_with_a_suggestion_and_the_place_where_it_is_wrong(tunemark: Tunemark, sql: str, message: str) -> None:
    said = tunemark("query", sql)
    assert (said.code, said.out) == (2, "")
    first, *place = said.err.splitlines()
    assert first.startswith("tunemark: SQL: ")
    assert message in first
    assert ("`tunemark query --views`" in first) or message == "tunemark: SQL: "
    assert not place or (len(place) == 2 and place[0].startswith("LINE 1: ") and set(place[1].strip()) == {"^"})


@pytest.mark.usefixtures("database")
def test_in_a_pipe_a_table_is_plain_and_aligned(tunemark: Tunemark) -> None:
    said = tunemark("query", "select 'a' as word, 1.5 as n union all select 'long', null order by 1")
    assert said.out == f"word    n\na     1.5\nlong    {MISSING}\n"


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_on_a_terminal_of_any_width_no_figure_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    for name, value in (("COLUMNS", str(columns)), ("LINES", "25"), ("TERM", "dumb")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    row = ("H100 80GB", "54.9 GiB of 79.1 GiB", 7260, "4,000 to 13,200", "$0.876", "$0.482 to $1.59", "predicted; within error of QLoRA")
    headings = ["hardware", "needs", "tokens/s", "90% interval", "usd", "90% interval", "evidence"]
    print_table(headings, [row], title="Options")
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= columns
    assert all(cell(value) in printed for value in row[:-1])
    assert ("usd: $0.876" in printed) is (columns < 200)


def test_every_relation_and_column_of_the_database_is_documented(tunemark: Tunemark) -> None:
    reference = json.loads(tunemark("query", "--views", "--json").out)
    assert {row["relation"] for row in reference} >= {"results", "costs", "first_offers", "basis_costs", "current_prices", "result_rows"}
    assert all(row["meaning"] for row in reference if not row["column"])
    assert all(row["type"] for row in reference)
    with empty_database() as connection:
        real = connection.sql("select table_name, column_name from duckdb_columns() where not internal").fetchall()
    assert {(row["relation"], row["column"]) for row in reference if row["column"]} == set(real)
    (rankable,) = (row for row in reference if (row["relation"], row["column"]) == ("result_rows", "rankable"))
    assert rankable == {"relation": "result_rows", "column": "rankable", "type": "boolean", "meaning": rankable["meaning"]}
    assert "ranked" in rankable["meaning"]


def price(**values: object) -> PriceRow:
    usual = {"provider": "aws", "instance": "x", "accelerator": "nvidia-t4", "accelerator_count": 4, "region": "r", "source": "s"}
    return PriceRow.model_validate(usual | {"kind": "on_demand", "usd_per_hour": 4.0, "effective_on": "2026-01-01"} | values)


def offers_among(*rows: PriceRow) -> list[PriceRow]:
    """Return the offered rows of a price book with these rows."""
    facts = FactBase(FACTS.root)
    # The facts are read once and kept on the object.
    facts.__dict__["prices"] = rows
    return offers(facts, None, date(2026, 12, 1))


def test_the_newest_price_of_each_offer_counts() -> None:
    offered = offers_among(
        price(effective_on="2026-02-01", usd_per_hour=3.0), price(), price(region="other"), price(kind="spot", usd_per_hour=1.0)
    )
    assert [(row.region, row.kind.value, row.usd_per_hour) for row in offered] == [
        ("r", "on_demand", 3.0),
        ("other", "on_demand", 4.0),
        ("r", "spot", 1.0),
    ]


def test_a_table_of_prices_says_how_they_are_dated_and_ordered(tunemark: Tunemark) -> None:
    said = tunemark("prices", "nvidia-l4")
    assert "known on" in said.out.splitlines()[0]
    assert "catalog v8" in said.out
    assert "the price was read on that day and may be older" in said.err
    assert "cheapest accelerator-hour first within each kind: on-demand, spot" in said.err
    assert "in the future" not in said.err
    assert "is in the future; these are the newest prices known today" in tunemark("prices", "nvidia-l4", "--on", "2999-01-01").err


def test_a_part_of_a_name_shows_the_prices_of_all_accelerators_with_it(tunemark: Tunemark) -> None:
    shown = {row["accelerator"] for row in json.loads(tunemark("prices", "h100", "--json").out)}
    assert {"nvidia-h100-80gb-sxm", "nvidia-h100-80gb-pcie"} <= shown
    assert all("h100" in name for name in shown)


@pytest.mark.parametrize("name", ["gcp", "Google Cloud"])
def test_the_name_of_a_provider_shows_all_its_prices(tunemark: Tunemark, name: str) -> None:
    assert {row["provider"] for row in json.loads(tunemark("prices", name, "--json").out)} == {"gcp"}


OWNED = "purchase=800,years=3,utilisation=0.5,watts=285,electricity=0.30"


def test_hardware_that_nobody_rents_out_has_its_hourly_cost(tunemark: Tunemark) -> None:
    said = tunemark("prices", "nvidia-rtx-4070-ti", "--owned", OWNED)
    assert (said.code, "0.146" in said.out) == (0, True)
    assert "no offer for it, so there is no break-even" in said.err
    assert json.loads(tunemark("prices", "nvidia-rtx-4070-ti", "--owned", OWNED, "--json").out) == [
        {"accelerator": "nvidia-rtx-4070-ti", "owned_usd_per_hour": pytest.approx(0.146341, rel=1e-5)}
    ]
