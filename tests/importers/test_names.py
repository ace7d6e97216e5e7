"""Names that are nearly right: one matcher suggests distinct cards, whatever command is asked."""

import pytest
from factories import Tunemark

from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.names import suggest_accelerator

NEARLY = [
    ("g5.13xlarge", "did you mean 'g5.12xlarge' or 'g5.16xlarge'?"),
    ("RTX 4070 Ti (16GB)", "the GeForce RTX 4070 Ti has 12 GB, not 16; did you mean 'RTX 4070 Ti'"),
    ("h100", "did you mean 'nvidia-h100-80gb-sxm' or 'nvidia-h100-94gb-nvl' or 'nvidia-h100-80gb-pcie'?"),
    ("NVIDIA H100 NVL 94GB HBM3", "did you mean 'nvidia-h100-94gb-nvl'"),
    ("RTX 4090 Ti", "did you mean 'nvidia-rtx-4090'"),
    ("HL-255", "did you mean"),
    ("nothing of the kind", "lists all"),
]


@pytest.mark.parametrize(("name", "said"), NEARLY)
def test_the_suggestion_is_the_same_for_every_command(facts: FactBase, tunemark: Tunemark, name: str, said: str):
    assert said in suggest_accelerator(name, facts.accelerators, facts.instances)
    assert said in tunemark("prices", name).err


@pytest.mark.parametrize(
    ("name", "key"), [("HL-225", "intel-gaudi2"), ("hl-325l", "intel-gaudi3"), ("NVIDIA A100-SXM4-80GB", "nvidia-a100-80gb-sxm")]
)
def test_devices_are_known_by_the_names_they_report(facts: FactBase, name: str, key: str):
    assert facts.accelerator(name).key == key
