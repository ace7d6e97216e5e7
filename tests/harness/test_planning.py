"""A plan is inert and complete, and gives a reason for each derived value."""

import pytest

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.run.launch import refuse_identity
from tunemark.harness.vendors.vendor_tools import UnusableMask, visible_indexes
from tunemark.harness.worker.models import FIXED_SHAPE, config_of, refuse_another_architecture
from tunemark.schema.errors import Exit, TunemarkError


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
