"""Formats, suggestions, files, facts and costs."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from factories import CHECKOUT, FACTS
from hypothesis import given
from hypothesis import strategies as st

from tunemark.schema import files, formats
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.fact_base import validated
from tunemark.schema.facts.world_facts import TokenLengths
from tunemark.schema.files import project_root, replace_folder, write_atomically
from tunemark.schema.owned_hardware import OwnedHardware, parse_owned
from tunemark.schema.quantities import QUANTITIES


@pytest.mark.parametrize(("name", "value", "wanted"), tomllib.loads(Path(__file__).with_name("formats.toml").read_text())["rows"])
def test_numbers_are_shown_as_readers_expect(name: str, value: float, wanted: str) -> None:
    assert getattr(formats, name)(value) == wanted


@given(st.floats(0, 1e9))
def test_every_quantity_shows_any_value_and_a_dash_for_an_unknown_one(value: float) -> None:
    assert all(quantity.text(value) and quantity.text(None) == "–" for quantity in QUANTITIES.values())  # noqa: RUF001 - the dash for unknown


def test_near_words_are_suggested_and_few_ones_listed() -> None:
    assert did_you_mean("smoke-lorra", ["smoke-lora", "large"]) == "did you mean 'smoke-lora'?"
    assert did_you_mean("xyz", ["lora", "full"]) == "known: full, lora"
    assert did_you_mean("xyz", [f"word{number}" for number in range(30)]) == "none of the 30 known names is similar"


def test_a_file_is_written_whole_and_a_failed_write_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "file.json"
    for content in (b"one", b"two"):
        write_atomically(path, content)

    def disk_is_full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_is_full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"three")
    assert path.read_bytes() == b"two"
    assert [file.name for file in path.parent.iterdir()] == ["file.json"]


def test_a_folder_is_replaced_whole_and_put_back_if_the_new_one_cannot_be_moved(tmp_path: Path) -> None:
    folder, new, old = (tmp_path / name for name in ("folder", "new", "old"))
    for kept in (False, True):
        new.mkdir()
        (new / "file").write_text(f"replaced {kept}")
        replace_folder(folder, new, old)
        assert ((folder / "file").read_text(), new.exists(), old.exists()) == (f"replaced {kept}", False, kept)
    old.rename(tmp_path / "removed")
    with pytest.raises(FileNotFoundError):
        replace_folder(folder, new, old)
    assert ((folder / "file").read_text(), old.exists()) == ("replaced True", False)


def test_the_checkout_is_found_from_the_environment_and_from_below(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TUNEMARK_ROOT", raising=False)
    monkeypatch.chdir(CHECKOUT / "data" / "models")
    assert project_root() == CHECKOUT
    monkeypatch.setenv("TUNEMARK_ROOT", str(tmp_path))
    with pytest.raises(TunemarkError, match="has no data/accelerators"):
        project_root()


def test_without_a_checkout_results_go_to_the_current_folder_and_facts_come_from_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TUNEMARK_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    assert project_root() == tmp_path
    assert files.data_folder(tmp_path) == CHECKOUT / "data"
    assert files.data_folder(CHECKOUT) == CHECKOUT / "data"


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *(("3090", "rtx-3090"), ("H100 SXM", "h100-80gb-sxm"), ("h100", None), ("rtx 6000", None), ("5060 ti", None)),
        *(("RTX 4060 8GB", "rtx-4060"), ("L40S 48 GB", "l40s"), ("NVIDIA GB300 NVL72", "gb300"), ("RTX4070TiSuper", "rtx-4070-ti-super")),
    ],
)
def test_a_part_of_a_name_is_enough_where_one_card_has_it_and_of_variants_the_one_with_the_most_prices_is_usual(name, key) -> None:
    if key is None:
        with pytest.raises(TunemarkError, match=r"give one of them|another model of it"):
            FACTS.accelerator(name)
    assert key is None or FACTS.accelerator(name).key == f"nvidia-{key}"
    assert FACTS.accelerator("h100", usual=True).key == "nvidia-h100-80gb-sxm"


def test_what_a_killed_process_left_beside_a_file_is_removed_by_the_next_write(tmp_path):
    code = "import os, sys; from pathlib import Path; from tunemark.schema.files import replacing\nwith replacing(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    target = tmp_path / "results.db"
    assert subprocess.run([sys.executable, "-c", code, str(target)], check=False).returncode == -9
    alive = tmp_path / f".results.db.{os.getpid()}-mine"
    alive.mkdir()
    assert len(list(tmp_path.iterdir())) == 2
    write_atomically(target, b"new")
    assert sorted(path.name for path in tmp_path.iterdir()) == [alive.name, "results.db"]


EMOTION = next(dataset for dataset in FACTS.known.datasets if dataset.key == "dair-ai/emotion")


def lengths(**changes: object) -> TokenLengths:
    even = {"tokenizer": "gpt2", "mean": 50.0, "quantiles": {"0": 1, "0.5": 50, "1": 99}, "source": "a source"}
    return validated(TokenLengths, {**even, **changes}, "datasets.toml")


def test_rows_on_straight_lines_between_the_quantiles_are_cut_exactly() -> None:
    """Lengths from 1 to 99, equally often: half are cut to 50, the others have 25.5 on average."""
    assert lengths().mean_cut_to(50) == pytest.approx((25.5 + 50) / 2)


def test_a_shorter_cut_never_has_more_tokens() -> None:
    found = EMOTION.lengths_for("bert-base-uncased")
    means = [found.mean_cut_to(longest) for longest in range(4, 129)]
    assert means == sorted(means)
    assert means[0] == pytest.approx(4, rel=0.01)
    assert means[-1] == found.mean
    assert EMOTION.lengths_for("gpt2") is None, "another tokenizer has other lengths"


@pytest.mark.parametrize("quantiles", [{"0.5": 50, "1": 99}, {"0": 1, "0.5": 50}, {"0": 60, "0.5": 50, "1": 99}])
def test_an_incomplete_distribution_is_refused(quantiles: dict[str, int]) -> None:
    with pytest.raises(TunemarkError, match="shortest row"):
        lengths(quantiles=quantiles)


def test_an_hour_of_use_is_capital_and_electricity():
    # 2,000 USD over two years of 8,766 h, used half of the time, and 0.5 kW at 0.30 USD.
    assert parse_owned("purchase=2000, years=2, utilisation=0.5, watts=500, electricity=0.30").hourly_usd() == pytest.approx(
        1_000 / 4_383 + 0.15
    )
    assert OwnedHardware(2_000, 2, 0.5, 500, 0.30, resale=1_000).hourly_usd() == pytest.approx(500 / 4_383 + 0.15)


def test_break_even_is_where_capital_equals_what_is_saved():
    machine = OwnedHardware(2_000, 2, 0.5, 500, 0.30)
    assert machine.break_even_hours_per_year(1.15) == pytest.approx(1_000)
    assert machine.break_even_hours_per_year(0.15) is None, "electricity alone costs as much"
    assert machine.break_even_hours_per_year(0.20) is None, "a year has too few hours"
