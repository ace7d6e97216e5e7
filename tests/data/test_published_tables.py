"""The fact files of data/ hold together, and the tables of the documents can be rebuilt from them digit for digit."""

import csv
import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pydantic import BaseModel, ValidationError

from tunemark.schema.facts.cards import AcceleratorCard, ModelCard, PriceRow
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.records.base import canonical_json
from tunemark.schema.records.published import Claim, Conditions, PublishedResult, SourceDocument, Statement

DATA = Path(__file__).parents[2] / "data"
GOLDEN: dict[str, dict[str, list[list[str]]]] = json.loads((Path(__file__).parent / "document_tables.json").read_text(encoding="utf-8"))
SET_NAME = "results.json"
"""Sets of imported results have tests of their own in test_published_sets.py."""
Card = TypeVar("Card", bound=BaseModel)
RESULTS_PER_SOURCE = {"000": 3, "001": 49, "002": 2, "003": 60, "004": 58}


def cards(kind: type[Card], folder: str) -> dict[str, Card]:
    files = sorted((DATA / folder).glob("*.toml"))
    return {file.stem: kind.model_validate(tomllib.loads(file.read_text(encoding="utf-8"))) for file in files}


def source(number: str) -> SourceDocument:
    return SourceDocument.model_validate_json((DATA / "published" / number / "source.json").read_bytes())


def results(number: str) -> list[PublishedResult]:
    files = sorted((DATA / "published" / number).glob(f"{number}-*.json"))
    return [PublishedResult.model_validate_json(file.read_bytes()) for file in files]


def price_rows() -> list[PriceRow]:
    with (DATA / "prices" / "prices.csv").open(encoding="utf-8", newline="") as file:
        return [PriceRow.model_validate({name: cell for name, cell in row.items() if cell}) for row in csv.DictReader(file)]


ACCELERATORS = cards(AcceleratorCard, "accelerators")
MODELS = cards(ModelCard, "models")
SOURCES = {number: source(number) for number in RESULTS_PER_SOURCE}
RESULTS = {result.id: result for number in RESULTS_PER_SOURCE for result in results(number)}
STATEMENTS = {statement.id: statement for document in SOURCES.values() for statement in document.statements}


# tables


def resolve(reference: str) -> str:
    """Return what `id/key` stands for: the printed figure of a claim, or else a label."""
    identity, key = reference.split("/")
    row: PublishedResult | Statement = RESULTS[identity] if identity in RESULTS else STATEMENTS[identity]
    return row.claims[key].printed if key in row.claims else row.labels[key]


def rebuilt(cell: str) -> str:
    return re.sub(r"\{([^}]+)\}", lambda match: resolve(match[1]), cell)


@pytest.mark.parametrize(("number", "table"), [(number, table) for number, tables in GOLDEN.items() for table in tables])
def test_a_table_of_a_document_is_rebuilt_digit_for_digit(number: str, table: str) -> None:
    found = next(candidate for candidate in SOURCES[number].tables if candidate.id == table)
    assert [list(found.columns), *([rebuilt(cell) for cell in row] for row in found.rows)] == GOLDEN[number][table]


@pytest.mark.parametrize("number", RESULTS_PER_SOURCE)
def test_every_table_that_is_stored_is_a_table_of_the_document(number: str) -> None:
    assert [table.id for table in SOURCES[number].tables] == list(GOLDEN.get(number, {}))


def test_no_cell_types_a_figure_of_its_own() -> None:
    cells = [cell for document in SOURCES.values() for table in document.tables for row in table.rows for cell in row]
    assert [cell for cell in cells if re.search(r"[\w%$~]", re.sub(r"\{[^}]+\}", "", cell))] == []


# records


@pytest.mark.parametrize(("number", "count"), RESULTS_PER_SOURCE.items())
def test_each_source_has_all_of_its_results(number: str, count: int) -> None:
    assert len(results(number)) == count
    assert SOURCES[number].results == count


@pytest.mark.parametrize(
    "file",
    sorted(file for file in (DATA / "published").rglob("*.json") if file.name != SET_NAME),
    ids=lambda file: file.stem if file.stem != "source" else file.parent.name,
)
def test_a_record_is_named_by_its_id_and_stored_canonically(file: Path) -> None:
    record: PublishedResult | SourceDocument
    if file.name == "source.json":
        record = SourceDocument.model_validate_json(file.read_bytes())
        assert record.id == file.parent.name
    else:
        record = PublishedResult.model_validate_json(file.read_bytes())
        assert (record.id, record.source) == (file.stem, file.parent.name)
    assert canonical_json(record) == file.read_bytes()


def test_statements_are_numbered_without_repetition_in_their_own_source() -> None:
    for number, document in SOURCES.items():
        assert [statement.id for statement in document.statements] == [
            f"{number}-S{place:02d}" for place in range(1, len(document.statements) + 1)
        ]


def named_by(assertion: Any) -> Iterator[tuple[str, str]]:
    """Yield (field, name) of everything that an assertion refers to."""
    for field, value in assertion or ():
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, str):
                yield field, str(one)


def test_what_an_assertion_refers_to_is_there() -> None:
    records = (*RESULTS, *STATEMENTS)
    known: dict[str, Collection[str]] = {
        **dict.fromkeys(["records", "best", "among", "used_for", "result", "offer", "bills"], records),
        **dict.fromkeys(["accelerator", "accelerators"], ACCELERATORS),
        **dict.fromkeys(["quantity", "base_quantity", "basis"], QUANTITIES),
        "models": MODELS,
    }
    wrong = [
        (statement.id, field, name)
        for statement in STATEMENTS.values()
        for field, name in named_by(statement.assertion)
        if field in known and name not in known[field]
    ]
    assert wrong == []


def test_every_model_and_accelerator_of_a_record_has_a_card() -> None:
    named = {result.conditions.model for result in RESULTS.values()} - {None}
    assert named <= set(MODELS)
    assert {result.conditions.accelerator for result in RESULTS.values()} - {None} <= set(ACCELERATORS)


def test_what_is_read_elsewhere_or_assumed_is_a_condition_that_has_a_value() -> None:
    for result in RESULTS.values():
        for name in (*result.conditions.from_repository, *result.conditions.assumed):
            field, _, setting = name.partition(".")
            assert field in Conditions.model_fields, (result.id, name)
            assert getattr(result.conditions, field) not in (None, {}), (result.id, name)
            assert not setting or setting in result.conditions.settings, (result.id, name)


def test_a_result_of_a_repository_says_which() -> None:
    assert [result.id for result in RESULTS.values() if (result.origin.kind == "repository") != bool(result.origin.reference)] == []


def test_a_step_that_a_document_leaves_undefined_keeps_both_readings() -> None:
    for result in results("003"):
        claim, accumulation = result.claims.get("step_time_s"), result.conditions.gradient_accumulation
        if claim is not None and accumulation is not None and accumulation > 1:
            assert [reading.value for reading in claim.readings] == pytest.approx([claim.value, accumulation * claim.value])


def test_memory_printed_in_one_unit_and_computed_in_another_keeps_both_readings() -> None:
    for result in results("003"):
        for key in {"peak_memory_bytes", "model_memory_bytes"} & set(result.claims):
            gib, gb = result.claims[key].readings
            assert gib.value / gb.value == pytest.approx(2**30 / 10**9)


# cards and prices


@pytest.mark.parametrize("folder", ["accelerators", "models"])
def test_a_card_is_named_by_its_key(folder: str) -> None:
    for name, card in {"accelerators": ACCELERATORS, "models": MODELS}[folder].items():
        assert card.key == name


def test_all_accelerators_of_the_catalogue_are_there() -> None:
    assert len(ACCELERATORS) >= 47


def test_an_unverified_field_of_an_accelerator_is_one_that_it_has() -> None:
    for card in ACCELERATORS.values():
        for name in card.unverified:
            field, _, dtype = name.partition(".")
            value = getattr(card, field)
            known = getattr(value.clusters[0], dtype) if field == "cpu" else value.get(dtype) if dtype else value
            assert known is not None, (card.key, name)


@pytest.mark.parametrize("folder", ["accelerators", "models"])
def test_a_name_leads_to_one_card_only(folder: str) -> None:
    every = {"accelerators": ACCELERATORS, "models": MODELS}[folder]
    owners = [(name.casefold(), card.key) for card in every.values() for name in {card.key, *card.aliases}]
    keys_by_name: dict[str, set[str]] = {}
    for name, key in owners:
        keys_by_name.setdefault(name, set()).add(key)
    assert {name: keys for name, keys in keys_by_name.items() if len(keys) > 1} == {}


def test_every_price_row_is_valid_and_names_an_accelerator_that_has_a_card() -> None:
    rows = price_rows()
    assert len(rows) >= 177
    assert {row.accelerator for row in rows} <= set(ACCELERATORS)


def test_the_price_book_has_the_columns_of_its_schema_in_a_fixed_order_of_rows() -> None:
    with (DATA / "prices" / "prices.csv").open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    assert reader.fieldnames == list(PriceRow.model_fields)
    order = [(row["provider"], row["instance"], row["region"], row["kind"], row["effective_on"], row["source"]) for row in rows]
    assert order == sorted(order)
    assert [key for key, count in Counter(order).items() if count > 1] == []


def test_a_price_dated_by_a_catalogue_names_its_version() -> None:
    assert [row.instance for row in price_rows() if row.dated_by == "catalog" and "catalogue version" not in (row.notes or "")] == []


# figures

FACTORS = {
    **dict.fromkeys(["", "s", "s/it", "x", "\N{MULTIPLICATION SIGN}", "W", "epochs", "tok/s", "samples/s", "steps/s", "tokens/s", "flops/byte", "FLOPs/byte", "FLOP", "models/year"], 1.0),
    "GiB": 2.0**30, "GF": 2.0**30, "GB": 1e9, "B": 1e9, "GB/s": 1e9, "TB/s": 1e12, "%": 0.01, "ms": 1e-3,
    "GFLOPS": 1e9, "TFLOPS": 1e12, "TFLOP/s": 1e12,
}  # fmt: skip
SECONDS = {"day": 86_400, "h": 3_600, "hour": 3_600, "m": 60, "min": 60, "minute": 60, "s": 1}
NOT_PLAIN = {"10th epoch", "77+ hours", "76.3% of the available 40GB", "90.67% of the available 160GB"}


def read(printed: str) -> float | None:
    """Return the value of a figure that is a plain number with a unit, a clock time or a duration; None for others."""
    text = re.sub(r" (\([^)]*\)|vs Full)$", "", printed).replace(",", "").lstrip("~$+>")
    if re.fullmatch(r"(\d+:)?\d+:\d+(\.\d+)?", text):
        return sum(float(part) * 60**place for place, part in enumerate(reversed(text.split(":"))))
    parts = re.findall(r"([\d.]+) ?(day|hour|h|minute|min|m|s)s?(?: and)?(?: |(?=\d)|$)", text)
    if parts and re.fullmatch(r"(?:[\d.]+ ?(?:days?|hours?|h|minutes?|min|m|s)(?: and)? ?)+", text):
        return sum(float(number) * SECONDS[unit] for number, unit in parts)
    plain = re.fullmatch(r"(\d+(?:\.\d+)?) ?([^\d\s]*)", text)
    return float(plain[1]) * FACTORS[plain[2]] if plain and plain[2] in FACTORS else None


def claims() -> Iterator[tuple[str, Claim]]:
    for row in (*RESULTS.values(), *STATEMENTS.values()):
        yield from ((f"{row.id}/{key}", claim) for key, claim in row.claims.items())
    for statement in STATEMENTS.values():
        for key, value in statement.assertion or ():
            if isinstance(value, Claim):
                yield f"{statement.id}/{key}", value


def test_the_reader_of_figures_understands_every_way_of_printing_that_occurs() -> None:
    examples: dict[str, Any] = {
        "5,420": 5420, "2h 15m": 8100, "78 GiB": 78 * 2**30, "~56 GB": 56e9, "0.96x": 0.96, "1.00x (baseline)": 1, "91m41.436s": 5501.436,
        "1:26:57": 5217, "07:33.02": 453.02, "18 min": 1080, "1 day and 20 hours": 158_400, "11 hours and 8 minutes": 40_080,
        "$0.00855": 0.00855, "71% vs Full": 0.71, "17.57s/it": 17.57, "432 (Gen 3)": 432, "7B": 7e9, "53.78 ms": 0.05378, "10th epoch": None,
    }  # fmt: skip
    for printed, value in examples.items():
        assert read(printed) == (value if value is None else pytest.approx(value)), printed


def test_the_value_of_a_claim_is_what_is_printed() -> None:
    wrong = [
        (name, claim.printed, claim.value)
        for name, claim in claims()
        if (value := read(claim.printed)) is not None and not math.isclose(value, claim.value, rel_tol=1e-9)
    ]
    assert wrong == []


def test_a_claim_that_is_not_a_plain_figure_is_a_known_one() -> None:
    assert {claim.printed for _, claim in claims() if read(claim.printed) is None} == NOT_PLAIN


def test_the_value_of_an_ambiguous_claim_is_one_of_its_readings() -> None:
    assert [name for name, claim in claims() if claim.readings and claim.value not in [reading.value for reading in claim.readings]] == []


@pytest.mark.parametrize("missing", ["effective_on", "source", "usd_per_hour", "kind"])
def test_a_price_without_a_date_or_a_source_is_no_price(missing):
    row = {"provider": "aws", "instance": "x", "accelerator": "nvidia-t4", "accelerator_count": "1", "kind": "spot"}
    row |= {"usd_per_hour": "1", "effective_on": "2026-01-01", "source": "a price list"}
    PriceRow.model_validate(row)
    with pytest.raises(ValidationError, match=missing):
        PriceRow.model_validate({key: value for key, value in row.items() if key != missing})
