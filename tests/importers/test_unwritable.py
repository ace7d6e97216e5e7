"""An importer that cannot write its answer says so in one line."""

import json
import re
from pathlib import Path

import pytest
from factories import Tunemark

AXOLOTL = """\
base_model: meta-llama/Meta-Llama-3-8B
datasets: [{path: tatsu-lab/alpaca, type: alpaca}]
adapter: lora
sequence_len: 4096
lora_r: 32
lora_alpha: 16
lora_target_linear: true
micro_batch_size: 2
num_epochs: 4
optimizer: adamw_torch
lr_scheduler: cosine
learning_rate: 2e-4
"""
PRICES = """\
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice
gpu_1x_h100_sxm5,H100-SXM,1,26,225,3.29,us-east-1,,
"""


def made(importer: str, folder: Path, data: Path) -> list[object]:
    """Return the arguments of an importer, with a source in the folder that it can read."""
    if importer == "axolotl":
        (folder / "c.yml").write_text(AXOLOTL, encoding="utf-8")
        return [folder / "c.yml"]
    if importer == "log":
        return [data / "trainer-log.txt", "--set", "source=005", "--method", "lora"]
    if importer == "mlperf":
        return [data / "mlperf"]
    if importer == "prices":
        (folder / "vms.csv").write_text(PRICES, encoding="utf-8")
        return [folder / "vms.csv", "--set", "provider=lambda", "--set", "version=v8"]
    uploaded = [{"upload_time_iso_8601": "2024-02-28T10:00:00.000000Z"}]
    (folder / "peft.json").write_text(json.dumps({"info": {"name": "peft"}, "releases": {"0.9.0": uploaded}}), encoding="utf-8")
    return [folder / "peft.json"]


@pytest.mark.parametrize("importer", ["axolotl", "log", "mlperf", "prices", "releases"])
def test_an_impossible_place_is_named_and_no_traceback(importer: str, tmp_path: Path, data: Path, tunemark: Tunemark) -> None:
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")
    place = tmp_path / "file" / "inside"
    said = tunemark("import", importer, *made(importer, tmp_path, data), "--out", place)
    assert said.code == 2
    last = said.err.splitlines()[-1]
    assert last.startswith(f"tunemark: --out: '{place}")
    assert re.search(r"cannot be written \((Not a directory|File exists)\); name a place that you may write to$", last)
