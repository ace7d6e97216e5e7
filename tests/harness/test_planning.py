"""A plan is inert and complete, and gives a reason for each derived value."""

import pytest

from tunemark.harness.plan.machine import machine_with
from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.run.launch import refuse_identity
from tunemark.harness.vendors.vendor_tools import UnusableMask, visible_indexes
from tunemark.harness.worker.models import FIXED_SHAPE, config_of, refuse_another_architecture
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.vocabulary import Padding


def test_other_data_is_a_declared_override(facts, machine):
    resolved = resolve("smoke-bert", facts, machine, Options(data="file:tests/harness/data/emotions"))
    assert {override.field: override.run for override in resolved.overrides} == {"data.source": "file", "data.name": "emotions/train.txt"}
    assert resolved.plan.data.tokenizer == "word-level"


@pytest.mark.parametrize("data", ["file", "hub"])
def test_text_for_a_card_of_full_rows_is_planned_as_it_is_padded_and_declared(facts, machine, tmp_path, data):
    (tmp_path / "train.txt").write_text("a b\na b c d e\n")
    place = tmp_path if data == "file" else "owner/name"
    resolved = resolve("smoke-lora", facts, machine, Options(data=f"{data}:{place}"))
    assert resolved.plan.data.padding is Padding.DYNAMIC
    assert "differ in length" in resolved.plan.reasons["data.padding"]
    assert ("none", "dynamic") in [(one.card, one.run) for one in resolved.overrides if one.field == "data.padding"]


@pytest.mark.parametrize(
    ("variable", "left"), [(None, [0, 1, 2]), ("1", [1]), ("2,0", [2, 0]), ("", []), ("GPU-1234", [0, 1, 2]), ("-1", []), ("1,7", [1])]
)
def test_devices_are_the_ones_that_the_environment_leaves_visible(monkeypatch, variable, left):
    if variable is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert visible_indexes(3) == left


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("7", "selects none of the 3 devices here; give 0 to 2, unset it, or set it to '' to use the CPU"),
        ("odd", "selects none of the 3 devices here"),
        ("MIG-5c89852c-d268-c3f3-1b07-005d5ae1dc3f", "names a part of a GPU (MIG)"),
        ("MIG-GPU-1234/1/0,0", "name a GPU without MIG, or use --set backend=cpu"),
    ],
)
def test_a_mask_that_leaves_no_device_is_an_error_that_names_it_and_not_a_plan_for_the_cpu(monkeypatch, value, message):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    with pytest.raises(UnusableMask) as raised:
        visible_indexes(3)
    assert (raised.value.field, raised.value.value) == ("CUDA_VISIBLE_DEVICES", value)
    assert message in raised.value.fix
    assert raised.value.exit_code is Exit.UNSUPPORTED
    # Without a device there is nothing to choose.
    assert visible_indexes(0) == []


def test_a_path_in_a_setting_is_refused_before_a_run(facts, machine, tmp_path):
    resolved = resolve("smoke-full", facts, machine, Options(overrides=("data.source=hub", f"data.name={tmp_path}/none")))
    with pytest.raises(TunemarkError, match="file:PATH"):
        refuse_identity(resolved)


def test_weights_of_another_architecture_are_refused_by_the_fields_that_differ(facts):
    card = facts.model("tiny-llama")
    for name in FIXED_SHAPE:
        wrong = getattr(card, name) * 2
        with pytest.raises(ValueError, match=f"{name} {wrong} instead of"):
            refuse_another_architecture(config_of(card.model_copy(update={name: wrong})), card)
    refuse_another_architecture(config_of(card, vocabulary=77), card)


@pytest.mark.parametrize(
    ("card", "torch", "attention"),
    [
        ("amd-mi300x", "2.13.0", "varlen"),
        ("amd-mi250x", "2.13.0", "varlen"),
        ("amd-rx-7900-xtx", "2.13.0", "sdpa"),
        ("intel-max-1550", "2.13.0", "flex_attention"),
        ("nvidia-h100-80gb-sxm", "2.9.1", "flex_attention"),
        ("nvidia-h100-80gb-sxm", "2.13.0", "varlen"),
        ("nvidia-v100-16gb", "2.13.0", "sdpa"),
    ],
)
def test_every_device_family_gets_the_fastest_kernel_for_packed_rows_that_torch_has_for_it(facts, card, torch, attention):
    there = machine_with(facts, card, 1, 1)
    there = there.model_copy(update={"packages": there.packages | {"torch": torch}})
    resolved = resolve("lora-1b", facts, there, Options())
    assert resolved.plan.model.attention == attention
    assert "attention" not in {override.field for override in resolved.overrides}
