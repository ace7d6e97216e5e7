"""Disk space in the temporary folder is checked before a run, and a shortage is reported in bytes."""

from types import SimpleNamespace

import pytest
from harness_making import make_machine

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.run import launch
from tunemark.harness.run.launch import HEADER_BYTES, LOG_BYTES, refuse_full_disk, temporary_bytes
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.physics.architecture import count_parameters

READY = make_machine(packages={"torch": "2.13.0", "bitsandbytes": "0.50.2"})


@pytest.fixture
def free(monkeypatch, tmp_path):
    """Say how many bytes are free in the temporary folder."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def set_free(count):
        monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=count))

    return set_free


def make_plan(facts, *sets, **options):
    resolved = resolve("smoke-lora", facts, READY, Options(overrides=sets, **options))
    assert resolved.unsupported is None
    return resolved


def test_random_weights_that_are_quantised_need_disk_space_for_each_process(facts):
    plan, card = make_plan(facts, "method=qlora", devices=2).plan, facts.model("tiny-llama")
    assert sum(temporary_bytes(plan, card).values()) == LOG_BYTES + 2 * 4 * count_parameters(card).total
    assert sum(temporary_bytes(make_plan(facts).plan, card).values()) == LOG_BYTES


def test_saved_weights_need_disk_space_once(facts):
    plain, adapters, model = (
        sum(temporary_bytes(resolve(name, facts, READY, Options(save=save)).plan, facts.model("tiny-llama")).values()) - LOG_BYTES
        for name, save in (("smoke-full", False), ("smoke-lora", True), ("smoke-full", True))
    )
    assert plain == 0
    assert HEADER_BYTES < adapters < model
    assert model == HEADER_BYTES + 4 * count_parameters(facts.model("tiny-llama")).total


def test_a_small_temporary_folder_is_refused_with_its_name_the_bytes_and_what_to_do(facts, free, tmp_path):
    plan = make_plan(facts, "method=qlora").plan
    free(LOG_BYTES + 1000)
    with pytest.raises(TunemarkError) as refused:
        refuse_full_disk(plan, facts.model("tiny-llama"))
    said = str(refused.value)
    assert str(tmp_path) in said
    assert f"has {LOG_BYTES + 1000:,} bytes" in said
    assert f"needs {sum(temporary_bytes(plan, facts.model('tiny-llama')).values()):,}" in said
    assert "TMPDIR=FOLDER" in said
    assert refused.value.exit_code is Exit.UNSUPPORTED


def test_a_folder_that_cannot_be_written_is_refused_before_a_run(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(TunemarkError, match=r"--out.*cannot be written"):
        launch.refuse_unwritable(tmp_path / "file")
    launch.refuse_unwritable(tmp_path / "new" / "folder")
