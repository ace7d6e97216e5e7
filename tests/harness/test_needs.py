"""A feature needs the package that implements it on that family, under the name that libraries look for."""

import subprocess
import sys

import pytest

from tunemark.harness.vendors.support import support_matrix

LOOK = """
import sys
sys.path.insert(0, sys.argv[1])
from transformers.modeling_flash_attention_utils import FLASH_ATTENTION_COMPATIBILITY_MATRIX as known
from tunemark.harness.plan.machine import package_versions
print(known[3]["pkg_availability_check"](), known[2]["pkg_availability_check"](), "flash-attn-3" in package_versions())
"""


def installed(folder, module, distribution):
    """Lay out what pip leaves of a package."""
    facts = folder / f"{distribution}-3.0.0.dist-info"
    facts.mkdir()
    (folder / f"{module}.py").write_text("")
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 3.0.0\n")
    (facts / "RECORD").write_text(f"{module}.py,,\n")
    (facts / "top_level.txt").write_text(f"{module}\n")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("module", "distribution", "seen"),
    [("flash_attn_interface", "flash_attn_3", "True False True"), ("flash_attn", "flash_attn", "False True False")],
)
def test_transformers_finds_flash_attention_3_by_the_required_package(tmp_path, module, distribution, seen):
    pytest.importorskip(
        "transformers", minversion="5", reason="transformers before 5 looks for FlashAttention 3 under another distribution name"
    )
    installed(tmp_path, module, distribution)
    done = subprocess.run([sys.executable, "-c", LOOK, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == seen.split()


def test_no_package_is_needed_for_what_a_family_cannot():
    made = support_matrix()
    assert all(not set(family.needs) & set(family.cannot) for family in made.families.values())
