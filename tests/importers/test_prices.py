"""SkyPilot catalogues: each trap is a rule with its reason, and no row is dropped in silence."""

import csv
import io
import json
from datetime import date
from pathlib import Path

import pytest
from factories import Tunemark
from hypothesis import given
from hypothesis import strategies as st

from tunemark.collector.importers.prices import CataloguePrices, price_book_text, provider_of, providers, read_catalogue
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.cards import PriceRow
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.names import suggest_accelerator

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


@pytest.mark.parametrize("instance", ["a2-highgpu-1g", "a3-highgpu-8g", "g2-standard-4"])
def test_gcp_rows_of_a2_and_a3_are_the_host_only(facts: FactBase, instance: str):
    found = read("gcp", facts, {"InstanceType": instance, "AcceleratorName": "", "AcceleratorCount": "", "Price": "0.74"})
    assert (found.rows, found.dropped[0].refused) == ([], False)
    assert found.dropped[0].reason.startswith("host only")


def test_gcp_rows_of_an_accelerator_are_without_their_machine(facts: FactBase):
    found = read("gcp", facts, {"InstanceType": "", "AcceleratorName": "A100", "AcceleratorCount": "1", "Price": "2.93"})
    assert found.dropped[0].reason.startswith("accelerator only")


@pytest.mark.parametrize(
    ("name", "card", "chips"),
    [
        ("tpu-v5p-8", "google-tpu-v5p", 4),
        ("tpu-v4-16", "google-tpu-v4", 8),
        ("tpu-v5litepod-8", "google-tpu-v5e", 8),
        ("tpu-v6e-4", "google-tpu-v6e", 4),
    ],
)
def test_some_tpu_slices_are_named_by_their_cores(facts: FactBase, name: str, card: str, chips: int):
    (row,) = read("gcp", facts, {"InstanceType": "TPU-VM", "AcceleratorName": name, "AcceleratorCount": "1"}).rows
    assert (row.instance, row.accelerator, row.accelerator_count) == (name, card, chips)


def test_700_is_a_filler_for_tpus_only(facts: FactBase):
    found = read("gcp", facts, {"InstanceType": "TPU-VM", "AcceleratorName": "tpu-v6e-4", "AcceleratorCount": "1", "Price": "700.0"})
    assert (found.rows, found.dropped[0].reason) == ([], "700.0 is a filler for TPUs without a price")
    assert prices_of(read("aws", facts, {"Price": "700.0"})) == [("on_demand", 700.0)]


def test_a_spot_price_of_zero_is_unknown(facts: FactBase):
    found = read(
        "vast",
        facts,
        {
            "InstanceType": "1x-RTX_4090-32-65536",
            "AcceleratorName": "RTX4090",
            "AcceleratorCount": "1",
            "vCPUs": "32",
            "MemoryGiB": "64.0",
            "SpotPrice": "0.00",
        },
    )
    assert prices_of(found) == [("marketplace", 10.0)]
    assert (found.rows[0].vcpus, found.rows[0].memory_gib) == (None, None)


def test_asks_of_a_marketplace_are_a_kind_of_their_own(facts: FactBase):
    row = {"InstanceType": "1x-RTX_4090-32-65536", "AcceleratorName": "RTX4090", "AcceleratorCount": "1", "SpotPrice": "0.2"}
    found = read("vast", facts, row)
    assert prices_of(found) == [("marketplace", 10.0)], "the ask for interruptible use is no spot price of a provider"
    assert "ask of a single host" in (found.rows[0].notes or "")


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


def test_a_card_whose_memory_contradicts_it_is_refused(facts: FactBase):
    found = read(
        "vast",
        facts,
        {"InstanceType": "1x-RTX_4090-32-65536", "AcceleratorName": "RTX4090", "AcceleratorCount": 1, "GpuInfo": gpu_info(49_140)},
    )
    assert [(one.refused, one.reason) for one in found.dropped] == [
        (True, "RTX4090: 48 GiB per device does not match nvidia-rtx-4090; add a card for it")
    ]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"AcceleratorName": "RTX 4070 Ti (16GB)"}, "the GeForce RTX 4070 Ti has 12 GB, not 16; did you mean 'RTX 4070 Ti'"),
        ({"AcceleratorName": "M60"}, "'M60' is not in data/accelerators"),
        ({"InstanceType": "g5.13xlarge", "AcceleratorName": "A10G"}, "AWS has no size 13xlarge of g5; did you mean 'g5.12xlarge'"),
        ({"AcceleratorName": "tpu-v9-8"}, "TPU 'v9' is not in the catalogue"),
        ({"Price": "cheap"}, "Price is 'cheap', not a number"),
        ({"Price": "nan"}, "Price is 'nan', not an amount"),
        ({"Price": "-1"}, "Price is '-1', not an amount"),
        ({"AcceleratorCount": "0"}, "AcceleratorCount is '0', not an amount"),
    ],
)
def test_refused_rows_have_a_reason(facts: FactBase, row: dict[str, object], said: str):
    found = read("aws", facts, row)
    assert found.rows == []
    assert (found.dropped[0].line, found.dropped[0].refused) == (2, True)
    assert said in found.dropped[0].reason


def test_rows_and_dropped_rows_account_for_each_line(facts: FactBase):
    found = read("aws", facts, {}, {"AcceleratorName": ""}, {"Price": "", "SpotPrice": ""}, {"Price": "x"})
    assert (found.lines, len(found.rows), [one.line for one in found.dropped]) == (4, 1, [3, 4, 5])


def test_other_files_are_refused(facts: FactBase):
    for content in (b"a,b\n1,2\n", b"\xff\xfe", b""):
        with pytest.raises(TunemarkError):
            read_catalogue(content, "aws", DAY, "test v8", facts)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("g5.13xlarge", "did you mean 'g5.12xlarge'"),
        ("RTX 4070 Ti (16GB)", "has 12 GB, not 16; did you mean 'RTX 4070 Ti'"),
        ("rtx 4070 ti 16 gb", "has 12 GB, not 16"),
        ("h100", "nvidia-h100-80gb-sxm"),
    ],
)
def test_names_that_are_nearly_right_get_the_right_suggestion(facts: FactBase, tunemark: Tunemark, name: str, said: str):
    assert said in suggest_accelerator(name, facts.accelerators, facts.instances)
    answered = tunemark("prices", name)
    assert answered.code == 2
    assert said in answered.err


def test_the_written_rows_are_read_as_a_price_book(facts: FactBase, tmp_path: Path):
    found = read(
        "aws",
        facts,
        {"SpotPrice": "2.5", "vCPUs": "8", "MemoryGiB": "61.5"},
        {"InstanceType": "half", "AcceleratorCount": "0.5", "Region": ""},
    )
    (tmp_path / "prices").mkdir()
    (tmp_path / "prices" / "prices.csv").write_text(price_book_text(found.rows), encoding="utf-8")
    assert FactBase(tmp_path).prices == tuple(found.rows)


@given(
    st.dictionaries(st.sampled_from(COLUMNS), st.text(max_size=12), max_size=len(COLUMNS)),
    st.sampled_from(["aws", "gcp", "vast", "runpod"]),
)
def test_any_row_becomes_prices_or_a_reason(row: dict[str, object], provider: str):
    facts = FactBase(Path(__file__).resolve().parents[2] / "data")
    try:
        found = read(provider, facts, row)
    except TunemarkError:
        return
    assert found.rows or found.dropped


def test_the_command_writes_a_price_book(tmp_path: Path, tunemark: Tunemark):
    (tmp_path / "lambda").mkdir()
    file = tmp_path / "lambda" / "vms.csv"
    file.write_bytes(
        catalogue(
            {"InstanceType": "gpu_8x_v100", "AcceleratorName": "V100", "GpuInfo": gpu_info(16_384)},
            {"AcceleratorName": ""},
            {"AcceleratorName": "M60"},
            {"AcceleratorName": "M60"},
        )
    )
    said = tunemark("import", "prices", file, "--catalog-version", "v8", "--read-on", "2026-11-20", "--out", tmp_path / "out.csv")
    assert said.code == 3
    assert f"wrote {tmp_path / 'out.csv'}" in said.err
    assert (tmp_path / "out.csv").read_text().splitlines()[1].startswith("lambda,gpu_8x_v100,nvidia-v100-16gb,8,")
    assert "vms.csv:4: box: accelerator 'M60' is not in data/accelerators" in said.err
    assert "(2 rows)" in said.err
    answer = json.loads(tunemark("import", "prices", file, "--catalog-version", "v8", "--json").out)
    assert [(reason["refused"], reason["lines"]) for reason in answer["dropped"]] == [(False, [3]), (True, [4, 5])]


# Whose prices, and of what --------------------------------------------------------------------------------


def test_a_folder_is_a_provider_only_when_it_has_the_name_of_one(facts: FactBase, tmp_path: Path):
    known = providers(facts)
    assert provider_of(tmp_path / "gcp" / "vms.csv", None, known) == "gcp"
    assert provider_of(tmp_path / "lambda.csv", None, known) == "lambda"
    for file, said in (
        (tmp_path / "downloads" / "vms.csv", "'downloads', from the path"),
        (tmp_path / "gpc" / "vms.csv", "did you mean 'gcp'"),
    ):
        with pytest.raises(TunemarkError, match=said):
            provider_of(file, None, known)
    with pytest.raises(TunemarkError, match="did you mean 'runpod'"):
        provider_of(tmp_path / "vms.csv", "runpood", known)


@pytest.mark.parametrize(("instance", "said"), [("a2-highgpu-1g", "accelerator only"), ("a3-megagpu-8g", "accelerator only")])
def test_a_gcp_machine_is_without_its_accelerators_whatever_the_stated_provider(facts: FactBase, instance: str, said: str):
    found = read("lambda", facts, {"InstanceType": instance}, {"InstanceType": instance, "AcceleratorName": ""})
    assert [one.reason.partition(":")[0] for one in found.dropped] == [said, "host only"]


@pytest.mark.parametrize(
    ("instance", "said"),
    [
        ("g5.13xlarge", "AWS has no size 13xlarge of g5; did you mean 'g5.12xlarge' or 'g5.16xlarge'?"),
        ("g5.18xlarge", "AWS has no size 18xlarge of g5; did you mean 'g5.16xlarge'"),
        ("g5.9xlarge", "AWS has no size 9xlarge of g5; did you mean 'g5.8xlarge'"),
        ("g5.112xlarge", "AWS has no size 112xlarge of g5; did you mean 'g5.48xlarge'"),
        ("g9.xlarge", "the AWS family g9 is not in data/prices/aws_sizes.toml; add it with its source, or did you mean"),
        ("p5.48xlarge", "is an instance of aws, but the provider is lambda; use --provider aws"),
    ],
)
def test_an_aws_instance_is_checked_against_the_sizes_of_its_family_whatever_the_stated_provider(facts: FactBase, instance: str, said: str):
    (dropped,) = read("lambda", facts, {"InstanceType": instance}).dropped
    assert (dropped.refused, dropped.line) == (True, 2)
    assert said in dropped.reason


@pytest.mark.parametrize(
    ("instance", "name", "gpu"), [("g5.16xlarge", "A10G", ""), ("p3.2xlarge", "V100", gpu_info(16_384)), ("p4d.24xlarge", "A100", "")]
)
def test_sizes_that_aws_sells_are_accepted(facts: FactBase, instance: str, name: str, gpu: str):
    assert len(read("aws", facts, {"InstanceType": instance, "AcceleratorName": name, "GpuInfo": gpu}).rows) == 1


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"AcceleratorCount": "4000000"}, "no instance has fewer than 1/16 or more than 128 accelerators"),
        ({"Price": "1e-30"}, "no provider charges less than 0.001 or more than 1,000"),
        ({"Price": "1e8"}, "1.25e+07 USD an hour for one accelerator"),
        ({"SpotPrice": "1e8"}, "SpotPrice is 1e+08"),
        ({"InstanceType": "TPU-VM", "AcceleratorName": "tpu-v5p-7"}, "names 7 cores; a chip has 2 cores"),
        ({"InstanceType": "TPU-VM", "AcceleratorName": "tpu-v6e-0"}, "names 0 chips"),
        ({"AcceleratorName": "A100"}, "A100 may be nvidia-a100-40gb-sxm or nvidia-a100-40gb-pcie or"),
        ({"AcceleratorName": "H100"}, "neither the instance's name nor GpuInfo identifies it"),
        ({"AcceleratorName": "V100"}, "V100 may be nvidia-v100-16gb or nvidia-v100-32gb"),
        ({"Region": "x" * 3_000}, "region: String should have at most 2000 characters"),
    ],
)
def test_unknown_and_ambiguous_machines_are_refused_with_their_line(facts: FactBase, row: dict[str, object], said: str):
    found = read("gcp", facts, row)
    assert found.rows == []
    assert (found.dropped[0].line, found.dropped[0].refused) == (2, True)
    assert said in found.dropped[0].reason


def test_a_row_that_is_cut_off_or_too_long_is_refused_with_its_line(facts: FactBase):
    whole = catalogue({}).decode()
    for text, said in (
        (f"{whole}box,H100-SXM,8\n", "cut off: it has 3 columns of 10"),
        (f"{whole.rstrip()},more,yet more\n", "2 columns more than the header"),
    ):
        found = read_catalogue(text.encode(), "gcp", DAY, "test v8", facts)
        assert said in found.dropped[0].reason
        assert found.dropped[0].line in {2, 3}


def test_an_instance_with_two_counts_of_accelerators_is_refused_with_both_lines(facts: FactBase):
    found = read("gcp", facts, {}, {"AcceleratorCount": "4", "Region": "elsewhere"}, {"InstanceType": "other"})
    assert [(one.line, one.refused) for one in found.dropped] == [(2, True), (3, True)]
    assert "box has 4 nvidia-h100-80gb-sxm and 8 nvidia-h100-80gb-sxm in different rows" in found.dropped[0].reason
    assert [row.instance for row in found.rows] == ["other"]


def test_a_catalogue_without_a_row_is_an_error(facts: FactBase):
    with pytest.raises(TunemarkError, match="a header without a row"):
        read("gcp", facts)


# Where the rows go ----------------------------------------------------------------------------------------


@pytest.fixture
def lambda_file(tmp_path: Path) -> Path:
    """A catalogue of one price, in a folder that says whose it is and which version."""
    file = tmp_path / "catalogs" / "v8" / "lambda" / "vms.csv"
    file.parent.mkdir(parents=True)
    file.write_bytes(catalogue({"InstanceType": "gpu_1x_h100_sxm5", "AcceleratorCount": "1", "Price": "3.29"}))
    return file


def test_a_price_book_is_never_overwritten_and_grows_only_with_append(tmp_path: Path, lambda_file: Path, tunemark: Tunemark):
    out = tmp_path / "book.csv"
    assert "wrote " in tunemark("import", "prices", lambda_file, "--read-on", "2026-11-19", "--out", out).err
    before = out.read_bytes()
    again = tunemark("import", "prices", lambda_file, "--out", out)
    assert (again.code, out.read_bytes()) == (2, before)
    assert "already exists; add rows to it with --append" in again.err
    twice = tunemark("import", "prices", lambda_file, "--read-on", "2026-11-19", "--out", out, "--append")
    assert (twice.code, out.read_bytes()) == (3, before)
    assert "book.csv:2 already; nothing was written" in twice.err
    added = tunemark("import", "prices", lambda_file, "--read-on", "2026-11-20", "--out", out, "--append")
    assert (added.code, f"added 1 row to {out}" in added.err) == (0, True)
    (tmp_path / "prices").mkdir()
    (tmp_path / "prices" / "prices.csv").write_bytes(out.read_bytes())
    assert [row.effective_on.day for row in FactBase(tmp_path).prices] == [19, 20]
    assert tunemark("import", "prices", lambda_file, "--append").code == 2, "nothing to add to"


def test_rows_cite_the_version_of_their_catalogue_or_are_refused(tmp_path: Path, lambda_file: Path, tunemark: Tunemark):
    assert "catalogs/v8/lambda/vms.csv" in tunemark("import", "prices", lambda_file).out
    plain = tmp_path / "lambda.csv"
    plain.write_bytes(lambda_file.read_bytes())
    refused = tunemark("import", "prices", plain)
    assert (refused.code, "--catalog-version" in refused.err) == (2, True)
    assert "catalogs/v9/lambda" in tunemark("import", "prices", plain, "--catalog-version", "v9").out
    assert "names no version of the catalogue" in tunemark("import", "prices", plain, "--source", "a friend").err


def test_a_catalogue_cannot_be_read_in_the_future(lambda_file: Path, tunemark: Tunemark):
    said = tunemark("import", "prices", lambda_file, "--read-on", "2999-01-01")
    assert (said.code, "is in the future" in said.err) == (2, True)


def test_the_days_of_the_price_cut_are_marked_as_inferred(facts: FactBase):
    cut = [row for row in facts.prices if row.effective_on == date(2025, 6, 23)]
    assert {row.instance for row in cut} == {"p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "p5en.48xlarge"}
    assert {row.dated_by for row in cut} == {"inferred"}
    assert all("031e72b" in row.source and "2026-01-19" in (row.notes or "") for row in cut)
