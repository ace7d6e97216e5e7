"""Devices are known by the names that they report."""

import pytest

from tunemark.schema.facts.fact_base import FactBase


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("HL-225", "intel-gaudi2"),
        ("hl-325l", "intel-gaudi3"),
        ("NVIDIA A100-SXM4-80GB", "nvidia-a100-80gb-sxm"),
        # Spellings of MLPerf's submitters of which no entry is stored.
        ("H100 NVL Tensor Core GPU (PCIe)", "nvidia-h100-94gb-nvl"),
        ("NVIDIA A100 - PCIe - 80 GB", "nvidia-a100-80gb-pcie"),
        ("NVIDIA GeForce RTX 4090", "nvidia-rtx-4090"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-sxm"),
        ("NVIDIA H100-PCIe-80GB", "nvidia-h100-80gb-pcie"),
        ("NVIDIA RTX Pro 6000 SE PCIe 96GB", "nvidia-rtx-pro-6000-blackwell"),
        ("TPU-trillium", "google-tpu-v6e"),
        ("TPU-v5p", "google-tpu-v5p"),
    ],
)
def test_devices_are_known_by_the_names_they_report(facts: FactBase, name: str, key: str):
    assert facts.accelerator(name).key == key
