"""SkyPilot catalogues: each trap is a rule with its reason, and no row is dropped in silence."""

import csv
import io
from datetime import date
from pathlib import Path

import pytest
from factories import FACTS, Tunemark
from hypothesis import given
from hypothesis import strategies as st

from tunemark.collector.importers.prices import CataloguePrices, read_catalogue
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.cards import PriceRow
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


def read(provider: str, facts: FactBase, *rows: dict[str, object]) -> CataloguePrices:
    return read_catalogue(catalogue(*rows), provider, DAY, "test v8", facts)


def prices_of(found: CataloguePrices) -> list[tuple[str, float]]:
    return [(row.kind.value, row.usd_per_hour) for row in found.rows]


def test_a_row_becomes_a_price_dated_by_its_catalogue(facts: FactBase):
    (row,) = read("aws", facts, {"InstanceType": "p5.48xlarge", "vCPUs": "192.0", "MemoryGiB": "2048.0", "Price": "55.04"}).rows
    assert row == PriceRow.model_validate(
        {
            "provider": "aws", "instance": "p5.48xlarge", "accelerator": "nvidia-h100-80gb-sxm", "accelerator_count": 8, "vcpus": 192, "memory_gib": 2048,
            "region": "us-east-1", "kind": "on_demand", "usd_per_hour": 55.04, "effective_on": DAY, "dated_by": "catalog", "source": "test v8",
        }
    )  # fmt: skip


def test_runpod_repeats_the_on_demand_price_as_spot(facts: FactBase):
    row = {"InstanceType": "1x_A100-80GB_SECURE", "AcceleratorName": "A100-80GB", "AcceleratorCount": "1", "MemoryGiB": "80.0"}
    found = read("runpod", facts, row | {"Price": "1.39", "SpotPrice": "1.39"})
    assert prices_of(found) == [("on_demand", 1.39)]
    assert "repeats the on-demand price" in (found.rows[0].notes or "")
    assert found.rows[0].memory_gib is None, "80 is the memory of the GPU"
    assert prices_of(read("runpod", facts, row | {"Price": "1.39", "SpotPrice": "0.82"})) == [("on_demand", 1.39), ("spot", 0.82)]
    assert prices_of(read("aws", facts, {"Price": "1.39", "SpotPrice": "1.39"})) == [("on_demand", 1.39), ("spot", 1.39)]


def test_zones_of_a_region_become_their_median(facts: FactBase):
    zones = [{"SpotPrice": price, "AvailabilityZone": f"use1-az{number}"} for number, price in enumerate(("1.0", "5.0", "3.0"))]
    found = read("aws", facts, *zones, {"Price": "99", "AvailabilityZone": "us-east-1-atl-2a"})
    assert prices_of(found) == [("on_demand", 10.0), ("spot", 3.0)]
    assert found.rows[1].notes == "median of 3 rows, 1 to 5"
    assert found.dropped[0].reason.startswith("a local zone")


@pytest.mark.parametrize(
    ("provider", "instance", "name", "count_and_mib", "card"),
    [
        ("vast", "2x-H100_NVL-32-65536", "H100", (2, 191_660), "nvidia-h100-94gb-nvl"),
        ("vast", "8x-H100_SXM-32-65536", "H100", (8, 652_472), "nvidia-h100-80gb-sxm"),
        ("vast", "1x-A100_PCIE-32-65536", "A100", (1, 81_920), "nvidia-a100-80gb-pcie"),
        ("vast", "4x-A100_SXM4-32-65536", "A100", (4, 163_840), "nvidia-a100-40gb-sxm"),
        ("lambda", "gpu_8x_v100", "V100", (8, 16_384), "nvidia-v100-16gb"),
        ("lambda", "gpu_1x_a100", "A100", (1, 40_960), "nvidia-a100-40gb-pcie"),
        ("runpod", "8x_A100-80GB_SECURE", "A100-80GB", (8, 80), "nvidia-a100-80gb-pcie"),
        ("azure", "Standard_NC40ads_H100_v5", "H100", (1, 0), "nvidia-h100-94gb-nvl"),
        ("azure", "Standard_NC24ads_A100_v4", "A100-80GB", (1, 0), "nvidia-a100-80gb-pcie"),
    ],
)
def test_the_card_follows_from_name_instance_and_memory(
    facts: FactBase, provider: str, instance: str, name: str, count_and_mib: tuple[int, int], card: str
):
    count, size_mib = count_and_mib
    (row,) = read(
        provider, facts, {"InstanceType": instance, "AcceleratorName": name, "AcceleratorCount": count, "GpuInfo": gpu_info(size_mib)}
    ).rows
    assert row.accelerator == card


def test_other_files_are_refused(facts: FactBase):
    for content in (b"a,b\n1,2\n", b"\xff\xfe", b""):
        with pytest.raises(TunemarkError):
            read_catalogue(content, "aws", DAY, "test v8", facts)


@given(
    st.dictionaries(st.sampled_from(COLUMNS), st.text(max_size=12), max_size=len(COLUMNS)),
    st.sampled_from(["aws", "gcp", "vast", "runpod"]),
)
def test_any_row_becomes_prices_or_a_reason(row: dict[str, object], provider: str):
    try:
        found = read(provider, FACTS, row)
    except TunemarkError:
        return
    assert found.rows or found.dropped


def test_an_instance_with_two_counts_of_accelerators_is_refused_with_both_lines(facts: FactBase):
    found = read("gcp", facts, {}, {"AcceleratorCount": "4", "Region": "elsewhere"}, {"InstanceType": "other"})
    assert [(one.line, one.refused) for one in found.dropped] == [(2, True), (3, True)]
    assert "box has 4 nvidia-h100-80gb-sxm and 8 nvidia-h100-80gb-sxm in different rows" in found.dropped[0].reason
    assert [row.instance for row in found.rows] == ["other"]


@pytest.mark.parametrize(
    ("provider", "row", "said"),
    [
        ("gcp", {"InstanceType": "a2-highgpu-1g", "AcceleratorName": ""}, "host only: GCP"),
        ("lambda", {"InstanceType": "a3-megagpu-8g"}, "accelerator only: GCP"),
        ("gcp", {"InstanceType": "", "AcceleratorName": "A100"}, "accelerator only: GCP"),
        ("gcp", {"InstanceType": "TPU-VM", "AcceleratorName": "tpu-v6e-4", "Price": "700.0"}, "700.0 is a filler for TPUs"),
        ("aws", {"AvailabilityZone": "us-east-1-atl-2a"}, "a local zone"),
        ("aws", {"AcceleratorName": ""}, "no accelerator"),
        ("aws", {"Price": "", "SpotPrice": "0.00"}, "no price"),
    ],
)
def test_rows_with_a_known_trap_are_dropped_with_its_reason(facts: FactBase, provider: str, row: dict[str, object], said: str):
    found = read(provider, facts, row)
    assert found.rows == []
    assert (found.dropped[0].refused, found.dropped[0].reason[: len(said)]) == (False, said)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"AcceleratorName": "RTX 4070 Ti (16GB)"}, "the GeForce RTX 4070 Ti has 12 GB, not 16; did you mean 'RTX 4070 Ti'"),
        (
            {"AcceleratorName": "RTX4090", "AcceleratorCount": 1, "GpuInfo": gpu_info(49_140)},
            "48 GiB per device does not match nvidia-rtx-4090",
        ),
        ({"AcceleratorName": "H100"}, "neither the instance's name nor GpuInfo identifies it"),
        ({"InstanceType": "g5.13xlarge", "AcceleratorName": "A10G"}, "AWS has no size 13xlarge of g5; did you mean 'g5.12xlarge'"),
        ({"InstanceType": "p5.48xlarge"}, "is an instance of aws, but the provider is lambda"),
        ({"AcceleratorName": "tpu-v9-8"}, "TPU 'v9' is not in the catalogue"),
        ({"AcceleratorName": "tpu-v5p-7"}, "names 7 cores; a chip has 2"),
        ({"Price": "cheap"}, "Price is 'cheap', not a number"),
        ({"Price": "nan"}, "Price is 'nan'; not an amount"),
        ({"Region": "x" * 3_000}, "region: String should have at most 2000 characters"),
    ],
)
def test_other_rows_are_refused_with_their_line_and_reason(facts: FactBase, row: dict[str, object], said: str):
    found = read("lambda", facts, row)
    assert found.rows == []
    assert (found.dropped[0].line, found.dropped[0].refused) == (2, True)
    assert said in found.dropped[0].reason


OF_LAMBDA = ("--set", "provider=lambda", "--set", "version=v8")


def test_the_command_adds_cited_prices_to_a_book_once_and_ends_with_3_where_rows_are_refused(tmp_path: Path, tunemark: Tunemark):
    file, out = tmp_path / "vms.csv", tmp_path / "prices" / "prices.csv"
    file.write_bytes(catalogue({"InstanceType": "gpu_8x_v100", "AcceleratorName": "V100", "GpuInfo": gpu_info(16_384)}))
    first = tunemark("import", "prices", file, *OF_LAMBDA, "--set", "read_on=2026-11-19", "--out", out)
    assert (first.code, f"added 1 row to {out}" in first.err) == (0, True)
    again = tunemark("import", "prices", file, *OF_LAMBDA, "--set", "read_on=2026-11-19", "--out", out)
    assert (again.code, "prices.csv:2 already; nothing was written" in again.err) == (3, True)
    file.write_bytes(file.read_bytes() + catalogue({"AcceleratorName": "M60"}, {"AcceleratorName": "M60"}).partition(b"\n")[2])
    said = tunemark("import", "prices", file, *OF_LAMBDA, "--set", "read_on=2026-11-20", "--out", out)
    assert (said.code, "vms.csv:3: box: accelerator 'M60' is not in data/accelerators" in said.err, "(2 rows)" in said.err) == (
        3,
        True,
        True,
    )
    assert [(row.effective_on.day, row.provider) for row in FactBase(tmp_path).prices] == [(19, "lambda"), (20, "lambda")]
    assert "catalogs/v8/lambda/vms.csv" in FactBase(tmp_path).prices[0].source


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("version=v8", "--set provider: "),
        ("provider=runpood", "did you mean 'runpod'"),
        ("provider=lambda", "--set version: give the version of the catalogue"),
        ("provider=lambda source=a_friend", "or a source that names it"),
        ("provider=lambda version=v8 read_on=2999-01-01", "is in the future"),
        ("provder=aws", "did you mean 'provider'"),
    ],
)
def test_owner_version_and_day_of_a_catalogue_must_be_known(tmp_path: Path, tunemark: Tunemark, settings: str, said: str):
    (tmp_path / "vms.csv").write_bytes(catalogue({}))
    answered = tunemark("import", "prices", tmp_path / "vms.csv", *(word for setting in settings.split() for word in ("--set", setting)))
    assert (answered.code, said in answered.err) == (2, True)
