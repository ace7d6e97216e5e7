"""Formats, suggestions, privacy, files, facts and costs."""

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
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean
from tunemark.schema.files import project_root, replace_folder, write_atomically
from tunemark.schema.quantities import QUANTITIES


@pytest.mark.parametrize(("name", "value", "wanted"), tomllib.loads(Path(__file__).with_name("formats.toml").read_text())["rows"])
def test_numbers_are_shown_as_readers_expect(name: str, value: float, wanted: str) -> None:
    assert getattr(formats, name)(value) == wanted


@given(st.floats(0, 1e9))
def test_every_quantity_shows_any_value(value: float) -> None:
    assert all(quantity.text(value) for quantity in QUANTITIES.values())


def test_an_unknown_value_is_a_dash() -> None:
    assert QUANTITIES["tokens_per_s"].text(None) == "–"  # noqa: RUF001 - the dash for unknown


def test_near_words_are_suggested_and_few_ones_listed() -> None:
    assert did_you_mean("smoke-lorra", ["smoke-lora", "large"]) == "did you mean 'smoke-lora'?"
    assert did_you_mean("xyz", ["lora", "full"]) == "known: full, lora"
    assert did_you_mean("xyz", [f"word{number}" for number in range(20)]) == "none of the 20 known names is similar"


def test_an_error_says_field_value_and_fix() -> None:
    error = TunemarkError("--on", "x", "write a day")
    assert (str(error), error.exit_code) == ("--on: 'x': write a day", Exit.USAGE)


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.json"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert [file.name for file in path.parent.iterdir()] == ["file.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    write_atomically(path, b"old")

    def disk_is_full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_is_full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["file.json"]


def folders(place: Path, *names: str) -> list[Path]:
    """Make folders with a file that contains the name of its folder."""
    for name in names:
        (place / name).mkdir()
        (place / name / "file").write_text(name)
    return [place / name for name in ("folder", "new", "old")]


@pytest.mark.parametrize("there", [["folder", "new"], ["new"]])
def test_a_folder_is_replaced_whole(tmp_path: Path, there: list[str]) -> None:
    folder, new, old = folders(tmp_path, *there)
    replace_folder(folder, new, old)
    assert (folder / "file").read_text() == "new"
    assert not new.exists()
    assert old.exists() == ("folder" in there)


def test_the_old_folder_is_put_back_if_the_new_one_cannot_be_moved(tmp_path: Path) -> None:
    folder, new, old = folders(tmp_path, "folder")
    with pytest.raises(FileNotFoundError):
        replace_folder(folder, new, old)
    assert (folder / "file").read_text() == "folder"
    assert not old.exists()


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


def test_devices_are_recognised_by_the_name_they_report_and_never_guessed() -> None:
    assert FACTS.accelerator("Tesla T4").key == "nvidia-t4"
    assert FACTS.recognise_accelerator("tesla t4") is FACTS.accelerators["nvidia-t4"]
    assert FACTS.recognise_accelerator("Tesla T4000") is None
    with pytest.raises(TunemarkError, match="did you mean 'nvidia-t4'"):
        FACTS.accelerator("nvidia-t44")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *(("3090", "rtx-3090"), ("H100 SXM", "h100-80gb-sxm"), ("h100", None), ("rtx 6000", None), ("9070", None)),
        *(("RTX 4060 8GB", "rtx-4060"), ("L40S 48 GB", "l40s"), ("NVIDIA GB300 NVL72", "gb300")),
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
