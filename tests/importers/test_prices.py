"""SkyPilot catalogues: each trap is a rule with its reason, and no row is dropped in silence."""

import csv
import io
import re
import tomllib
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
from factories import FACTS, Tunemark, assert_golden
from hypothesis import given
from hypothesis import strategies as st

from tunemark.collector.importers.prices import CataloguePrices, read_catalogue
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import FactBase

COLUMNS = (
    "InstanceType",
    "AcceleratorName",
    "AcceleratorCount",
    "vCPUs",
    "MemoryGiB",
    "Price",
    "Region",
    "GpuInfo",
    "SpotPrice",
    "AvailabilityZone",
)
DAY = date(2026, 11, 20)


def gpu_info(size_mib: int) -> str:
    return str({"Gpus": [{"Name": "x", "Count": 1, "MemoryInfo": {"SizeInMiB": size_mib}}], "TotalGpuMemoryInMiB": size_mib})


def catalogue(*rows: dict[str, object]) -> bytes:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS)
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {"InstanceType": "box", "AcceleratorName": "H100-SXM", "AcceleratorCount": "8.0", "Price": "10.0", "Region": "us-east-1", **row}
        )
    return buffer.getvalue().encode()


def read(provider: str, *rows: dict[str, object]) -> CataloguePrices:
    return read_catalogue(catalogue(*rows), provider, DAY, "test v8", FACTS)


CASES = Path(__file__).with_name("cases")


def outcome(found: CataloguePrices) -> Iterator[str]:
    """Yield the prices of a catalogue and the rows that are not used, a line each."""
    for row in found.rows:
        told = row.model_dump(mode="json", exclude_defaults=True)
        yield ", ".join(f"{name} {value}" for name, value in told.items() if name not in {"provider", "dated_by", "source"})
    for drop in found.dropped:
        # Suggestions change with the FACTS.
        reason = re.sub("did you mean .*", "did you mean ...", drop.reason)
        yield f"line {drop.line}, {drop.what}: {'refused' if drop.refused else 'not used'}: {reason}"


def test_each_row_becomes_a_price_or_has_the_reason_for_which_it_is_not_used():
    lines = []
    for name, (case,) in tomllib.loads((CASES / "prices.toml").read_text(encoding="utf-8")).items():
        rows = [row | ({"GpuInfo": gpu_info(row.pop("mib"))} if "mib" in row else {}) for row in case["rows"]]
        lines += [f"# {name}", *outcome(read(case["provider"], *rows))]
    assert_golden(CASES / "prices.txt", "\n".join(lines) + "\n")


def test_a_region_that_is_too_long_for_a_price_is_refused():
    assert "region: String should have at most 2000 characters" in read("lambda", {"Region": "x" * 3_000}).dropped[0].reason


def test_other_files_are_refused():
    for content in (b"a,b\n1,2\n", b"\xff\xfe", b""):
        with pytest.raises(TunemarkError):
            read_catalogue(content, "aws", DAY, "test v8", FACTS)


@given(
    st.dictionaries(st.sampled_from(COLUMNS), st.text(max_size=12), max_size=len(COLUMNS)),
    st.sampled_from(["aws", "gcp", "vast", "runpod"]),
)
def test_any_row_becomes_prices_or_a_reason(row: dict[str, object], provider: str):
    try:
        found = read(provider, row)
    except TunemarkError:
        return
    assert found.rows or found.dropped


OF_LAMBDA = ("--set", "provider=lambda", "--set", "version=v8")


def test_the_command_adds_cited_prices_to_a_book_once_and_ends_with_3_where_rows_are_refused(tmp_path: Path, tunemark: Tunemark):
    file, out = tmp_path / "vms.csv", tmp_path / "prices" / "prices.csv"
    file.write_bytes(catalogue({"InstanceType": "gpu_8x_v100", "AcceleratorName": "V100", "GpuInfo": gpu_info(16_384)}))
    first = tunemark("import", "prices", file, *OF_LAMBDA, "--set", "read_on=2026-11-19", "--out", out)
    assert (first.code, f"added 1 row to {out}" in first.err) == (0, True)
    future = tunemark("import", "prices", file, *OF_LAMBDA, "--set", "read_on=2999-01-01", "--out", out)
    assert (future.code, "is in the future" in future.err) == (2, True)
    again = tunemark("import", "prices", file, *OF_LAMBDA, "--set", "read_on=2026-11-19", "--out", out)
    assert (again.code, "prices.csv:2 already; nothing was written" in again.err) == (3, True)
    file.write_bytes(file.read_bytes() + catalogue({"AcceleratorName": "M60"}, {"AcceleratorName": "M60"}).partition(b"\n")[2])
    said = tunemark("import", "prices", file, *OF_LAMBDA, "--set", "read_on=2026-11-20", "--out", out)
    assert (said.code, "vms.csv:3: box: accelerator 'M60' is not in data/accelerators" in said.err, "(2 rows)" in said.err) == (
        3,
        True,
        True,
    )
    dated = [(row.effective_on.day, row.provider, row.dated_by) for row in FactBase(tmp_path).prices]
    assert dated == [(19, "lambda", "catalog"), (20, "lambda", "catalog")]
    assert "catalogs/v8/lambda/vms.csv" in FactBase(tmp_path).prices[0].source
