"""`tunemark validate` reads the facts too: every card, the price book, and the document of each source."""

import json
import re
import tomllib
from pathlib import Path

from factories import Tunemark, assert_golden

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


WRONG = tomllib.loads(Path(__file__).with_name("wrong_facts.toml").read_text(encoding="utf-8"))


def test_a_wrong_fact_is_named_with_its_line_field_value_and_fix(published: Path, tunemark: Tunemark) -> None:
    shown = []

    def refused(name: str, path: Path) -> None:
        said = tunemark("validate", path)
        assert said.code == 3, name
        # Lines of long files change with the data.
        lines = re.sub(r"(:|line )[0-9]{2,}:", r"\1N:", said.err)
        shown.append(f"# {name}\n{lines}")

    for file, old, new in WRONG["changes"]:
        path = published / "data" / file
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")
        refused(f"{file}: {old} -> {new[:80]}", path)
        path.write_text(text, encoding="utf-8")
    for row in WRONG["rows"]:
        book(published, row)
        refused(row, published / PRICES)
    book(published, price())
    for text in WRONG["bases"]:
        (published / BASIS).write_text(text, encoding="utf-8")
        refused(text, published / BASIS)
    assert_golden(Path(__file__).parent / "golden" / "wrong_facts.txt", "\n".join(shown))


def test_a_checkout_without_a_price_basis_is_not_collected(checkout: Path, tunemark: Tunemark) -> None:
    (checkout / BASIS).unlink()
    said = tunemark("collect")
    assert said.code == 3
    assert "basis.toml': is missing; name another file, or restore it" in said.err


def test_a_catalogue_row_with_a_version_is_valid(checkout: Path, tunemark: Tunemark) -> None:
    book(checkout, price(dated_by="catalog", source="catalogs/v8/aws/vms.csv"))
    assert tunemark("validate", checkout / PRICES).code == 0


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
    for path, files in {"data/prices": "3 fact files", "data/accelerators/nvidia-l4.toml": "1 fact file"}.items():
        said = tunemark("validate", checkout / path)
        assert (said.code, said.out) == (0, f"0 records and {files}, 0 invalid\n")


def test_results_without_a_document_are_refused_by_validate_and_by_collect(published: Path, tunemark: Tunemark) -> None:
    (published / "data" / "published" / "002" / "source.json").unlink()
    for command in ("validate", "collect"):
        said = tunemark(command)
        assert said.code == 3
        assert "data/published/002/source.json: source: '002': has 2 results but no source.json; describe the document there" in said.err


def test_validate_counts_the_results_of_a_document_as_collect_does(published: Path, tunemark: Tunemark) -> None:
    (published / "data" / "published" / "002" / "002-002.json").unlink()
    for command in ("validate", "collect"):
        said = tunemark(command)
        assert said.code == 3
        assert "this source has 1 result; correct the number or add the missing results" in said.err
