"""`tunemark validate` reads the facts too: every card, the price book, and the document of each source."""

import json
from pathlib import Path

import pytest
from factories import Tunemark, make_submission, save

from tunemark.collector.store.sql_query import run_query

PRICES, BASIS = "data/prices/prices.csv", "data/prices/basis.toml"
HEADER = "provider,instance,accelerator,accelerator_count,vcpus,memory_gib,region,kind,usd_per_hour,effective_on,dated_by,source,notes"


def book(checkout: Path, *rows: str) -> None:
    """Write a price book with these rows, and a price basis that names nothing else."""
    (checkout / PRICES).write_text("\n".join((HEADER, *rows)) + "\n", encoding="utf-8")
    (checkout / BASIS).write_text('providers = ["aws"]\nreason = "a reason"\n', encoding="utf-8")


def price(**changes: str) -> str:
    cells = {
        "provider": "aws", "instance": "g5.xlarge", "accelerator": "nvidia-a10g", "accelerator_count": "1", "vcpus": "", "memory_gib": "",
        "region": "us-east-1", "kind": "on_demand", "usd_per_hour": "1", "effective_on": "2026-01-01", "dated_by": "provider", "source": "a list", "notes": "",
    }  # fmt: skip
    return ",".join((cells | changes).values())


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (price(effective_on=""), "2: effective_on: is missing; add it"),
        (price(source=""), "2: source: is missing; add it"),
        (price(usd_per_hour="-1"), "2: usd_per_hour: '-1': must be greater than 0"),
        (
            price(accelerator="nvidia-a10h"),
            "2: accelerator: 'nvidia-a10h': no such card in data/accelerators; did you mean 'nvidia-a10' or 'nvidia-a10g'",
        ),
        (price(dated_by="catalog"), "2: file: 'g5.xlarge': dated_by is 'catalog', and neither source nor notes names a version of it"),
        (price(dated_by="inferred"), "2: file: 'g5.xlarge': dated_by is 'inferred' and there are no notes"),
        (f"{price()},more", "2: columns: 14: the header has 13; quote text that contains a comma"),
        (f"{price()}\n{price(usd_per_hour='2')}", "3: price: 'aws/g5.xlarge/us-east-1/on_demand/2026-01-01': is in line 2 already"),
    ],
)
def test_a_wrong_price_is_named_with_its_line_field_value_and_fix(checkout: Path, tunemark: Tunemark, row: str, said: str) -> None:
    book(checkout, row)
    answered = tunemark("validate", checkout / PRICES)
    assert answered.code == 3
    assert f"{PRICES}:{said}" in answered.err
    assert "'provider':" not in answered.err, "a row is not dumped"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('providers = ["aws"]\n', "1: reason: is missing; add it"),
        ('reason = "a reason"\nproviders = ["aws", "asw"]\n', "2: providers: 'asw': has no price in prices.csv; did you mean 'aws'"),
        ('providers = ["aws", "aws"]\nreason = "a reason"\n', "aws is listed twice; list each provider and each instance once"),
        (
            'providers = ["aws"]\nreason = "a reason"\n[[fabric]]\nprovider = "aws"\ninstance = "g5.xlarg"\nfabric = "EFA"\nsource = "a page"\n',
            "5: instance: 'g5.xlarg': aws has no price of it in prices.csv; did you mean 'g5.xlarge'",
        ),
    ],
)
def test_a_wrong_price_basis_is_named_with_its_line_field_value_and_fix(checkout: Path, tunemark: Tunemark, text: str, said: str) -> None:
    book(checkout, price())
    (checkout / BASIS).write_text(text, encoding="utf-8")
    answered = tunemark("validate", checkout / BASIS)
    assert answered.code == 3
    assert f"{BASIS}:" in answered.err
    assert said in answered.err


def test_a_checkout_without_a_price_basis_is_not_collected(checkout: Path, tunemark: Tunemark) -> None:
    (checkout / BASIS).unlink()
    said = tunemark("collect")
    assert said.code == 3
    assert "basis.toml': is missing; restore it" in said.err


def test_a_catalogue_row_with_a_version_is_valid(checkout: Path, tunemark: Tunemark) -> None:
    book(checkout, price(dated_by="catalog", source="catalogs/v8/aws/vms.csv"), price(dated_by="catalog", source="a catalogue @ 0f40703"))
    assert tunemark("validate", checkout / PRICES).code == 0


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("accelerators/nvidia-l4.toml", "memory_gib", "memory_gb", "7: memory_gb: 24: is not a field; did you mean 'memory_gib' or"),
        ("accelerators/nvidia-l4.toml", 'key = "nvidia-l4"', 'key = "l4"', "1: key: 'l4': the key must equal the file name"),
        ("accelerators/nvidia-l4.toml", 'vendor = "NVIDIA"', "vendor = NVIDIA", ":3: file: not valid TOML"),
        ("accelerators/nvidia-l4.toml", 'vendor = "NVIDIA"', 'vendor = "AMD"', ": vendor: 'AMD': the key is nvidia-l4"),
        ("accelerators/amd-mi300x.toml", "interconnect_gb_s = 896", "interconnect_gb_s = 128", ": interconnect_gb_s: 128: "),
        ("models/gpt2.toml", "layers = 12", "layers = 0", ": layers: 0: must be greater than or equal to 1"),
        ("models/gpt2.toml", "layers = 12", "layers = 13", ": parameters: "),
        ("models/gpt2.toml", "= 3072", f"= 3{'0' * 400}", ": intermediate_size: "),
        ("workloads/smoke-lora.toml", 'model = "tiny-llama"', 'model = "tiny-lama"', ": model: 'tiny-lama': no such card in data/models; did you mean 'tiny-llama'"),
        ("workloads/lora-8b.toml", "rank = 16", "rank = 4_000_000", ": lora.rank: 4000000: must be less than or equal to 4096"),
        ("workloads/lora-8b.toml", 'model = "qwen3-8b"', 'model = "smollm2-1.7b"', ": model: 'smollm2-1.7b': the title says 8B"),
        ("prices/prices.csv", "gpu_1x_a10,nvidia-a10,1,", "gpu_1x_a10,nvidia-a10,0.5,", ": accelerator_count: 0.5: only CPUs are sold in parts"),
        ("prices/basis.toml", '"oci", "digitalocean"]', '"oci", "vast"]', "3: providers: 'vast': has no price on demand"),
        ("prices/aws_sizes.toml", 'p5 = ["4xlarge", "48xlarge"]', 'p5 = ["4xlarge"]', ": p5: '48xlarge': is missing: p5.48xlarge has a price"),
        ("known/generations.toml", 'architecture = "Hopper"', 'architecture = "Hoper"', ": architecture: 'Hoper': no card of NVIDIA has this architecture"),
    ],
)  # fmt: skip
def test_a_wrong_fact_is_named_with_its_line_field_value_and_fix(
    checkout: Path, tunemark: Tunemark, file: str, old: str, new: str, said: str
) -> None:
    path = checkout / "data" / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    answered = tunemark("validate", path, save(checkout, make_submission()))
    assert answered.code == 3
    assert any(said in line for line in answered.err.splitlines() if line.startswith(f"data/{file}:"))


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("003-001.json", '"id": "003-001"', '"id": "003-777"', "id: '003-777': is in the file 003-001.json"),
        ("003-001.json", '"model": "llama-3.1-8b"', '"model": "llama-9"', "conditions.model: 'llama-9': no such card"),
        ("003-010.json", '"method": "qlora"', '"method": "full"', "conditions.method: 'full': the label"),
        ("source.json", '"url": "https', '"url": "javascript', "url: "),
        ("source.json", "{003-019/model}", "{003-119/model}", "'003-119/model': there is no such row"),
        ("source.json", "{003-019/model}", "{003-019/mode}", "'003-019/mode': there is no such claim or label"),
    ],
)
def test_a_wrong_result_or_document_is_named_by_its_field(
    published: Path, tunemark: Tunemark, file: str, old: str, new: str, said: str
) -> None:
    path = published / "data" / "published" / "003" / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    answered = tunemark("validate", path)
    assert answered.code == 3
    assert said in answered.err


def test_golden_losses_of_an_earlier_card_are_found_with_the_card(checkout: Path, tunemark: Tunemark) -> None:
    card = checkout / "data" / "workloads" / "smoke-full.toml"
    card.write_text(card.read_text(encoding="utf-8").replace("learning_rate = ", "learning_rate = 0.1 # ", 1), encoding="utf-8")
    answered = tunemark("validate", card)
    assert answered.code == 3
    assert "golden/smoke-full.toml has the losses of another version of this card" in answered.err


def test_all_wrong_facts_are_found_at_once(checkout: Path, tunemark: Tunemark) -> None:
    book(checkout, price(usd_per_hour="x"), price(effective_on="soon"))
    (checkout / BASIS).write_text('providers = ["aws"]\n', encoding="utf-8")
    (checkout / "data" / "models" / "gpt2.toml").write_text("x = [", encoding="utf-8")
    answer = json.loads(tunemark("validate", "--json").out)
    assert [problem["file"].rpartition("/")[2].partition(":")[0] for problem in answer["problems"]] == [
        "gpt2.toml",
        "basis.toml",
        "prices.csv",
        "prices.csv",
    ]
    assert (answer["invalid"], answer["facts"] > 80) == (3, True)


def test_facts_can_be_named_alone(checkout: Path, tunemark: Tunemark) -> None:
    for path, files in (
        (checkout / "data" / "prices", "3 fact files"),
        (checkout / "data" / "accelerators" / "nvidia-l4.toml", "1 fact file"),
    ):
        said = tunemark("validate", path)
        assert (said.code, said.out) == (0, f"0 records and {files}, 0 invalid\n")


def test_results_without_a_document_are_refused_by_validate_and_left_out_by_collect(published: Path, tunemark: Tunemark) -> None:
    (published / "data" / "published" / "002" / "source.json").unlink()
    said = tunemark("validate")
    assert said.code == 3
    assert "data/published/002/source.json: source: '002': has 2 results but no source.json; describe the document there" in said.err
    collected = tunemark("collect")
    assert collected.code == 3
    assert "has 2 results but no source.json" in collected.err
    answer = run_query("select source, count(*) as n from result_rows group by 1 order by 1", published / "build" / "tunemark.duckdb")
    assert [row["source"] for row in answer.records()] == ["000", "001", "003", "004"]


def test_validate_counts_the_results_of_a_document_as_collect_does(published: Path, tunemark: Tunemark) -> None:
    (published / "data" / "published" / "002" / "002-002.json").unlink()
    for command in ("validate", "collect"):
        said = tunemark(command)
        assert said.code == 3
        assert "this source has 1 result; correct the number or add the missing results" in said.err
