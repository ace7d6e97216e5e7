"""A feature needs the package that does its work on that family."""

from tunemark.harness.devices.features import Feature
from tunemark.harness.needs import NEEDS
from tunemark.harness.support_matrix import matrix
from tunemark.schema.vocabulary import Backend


def test_flash_attention_of_neuron_is_a_part_of_optimum_neuron():
    assert NEEDS[Backend.NEURON][Feature.FLASH_ATTENTION][0] == "optimum-neuron"
    needs = matrix().needs
    assert needs[Backend.NEURON]["flash attention"] == "optimum-neuron"
    assert needs[Backend.CUDA]["flash attention"] == "flash-attn"
    assert "flash-attn" not in needs[Backend.NEURON].values()


def test_no_package_is_needed_for_what_a_family_cannot():
    made = matrix()
    assert all(not set(made.needs[backend]) & set(reasons) for backend, reasons in made.cannot.items())
