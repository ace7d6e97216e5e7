"""Axolotl configurations: what a workload card can say, and the list of what it cannot."""

import shutil
from pathlib import Path

import pytest
from factories import Tunemark

from tunemark.collector.importers.axolotl import workload_of
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.workloads import WorkloadCard

CONFIG = """\
base_model: meta-llama/Meta-Llama-3-8B
load_in_8bit: false
load_in_4bit: true
datasets:
  - path: tatsu-lab/alpaca
    type: alpaca
val_set_size: 0
output_dir: ./outputs/qlora-out
adapter: qlora
lora_model_dir:
sequence_len: 4096
sample_packing: true
pad_to_sequence_len: true
lora_r: 32
lora_alpha: 16
lora_dropout: 0.05
lora_target_modules:
lora_target_linear: true
wandb_project:
gradient_accumulation_steps: 4
micro_batch_size: 2
num_epochs: 4
optimizer: adamw_torch
lr_scheduler: cosine
learning_rate: 2e-4
bf16: auto
fp16:
tf32: false
gradient_checkpointing: true
flash_attention: true
warmup_steps: 10
deepspeed: deepspeed_configs/zero1.json
weight_decay: 0.0
fsdp:
"""


def card_of(text: str, facts: FactBase) -> WorkloadCard:
    return workload_of(text.encode(), "qlora.yml", facts)[0]


def test_a_configuration_becomes_a_card(facts: FactBase):
    card = card_of(CONFIG, facts)
    assert (card.key, card.model, card.method.value, card.weights.value, card.compute) == (
        "qlora",
        "llama-3-8b",
        "qlora",
        "pretrained",
        "auto",
    )
    assert card.lora is not None
    assert (card.lora.rank, card.lora.alpha, card.lora.dropout, len(card.lora.target_modules)) == (32, 16, 0.05, 7)
    assert (card.data.source.value, card.data.name, card.data.sequence_length) == ("hub", "tatsu-lab/alpaca", 4_096)
    assert (card.data.packing, card.data.padding.value) == (True, "static")
    assert (card.batch.micro_batch, card.batch.gradient_accumulation, card.stop.epochs) == (2, 4, 4)
    assert (card.optimizer.name, card.optimizer.learning_rate, card.optimizer.scheduler) == ("adamw", 2e-4, "cosine")
    assert card.gradient_checkpointing.value == "full"


def test_settings_that_the_card_cannot_express_are_listed(facts: FactBase):
    card, not_expressed = workload_of(CONFIG.encode(), "qlora.yml", facts)
    assert [text.partition(":")[0] for text in not_expressed] == ["datasets.0"]
    assert "seed (42 by default)" in card.not_stated
    other = card_of(CONFIG.replace("deepspeed_configs/zero1.json", "mine.json"), facts)
    assert "not expressed: deepspeed: mine.json (only axolotl's own zero1, zero2 and zero3 files are known by name)" in other.not_stated


@pytest.mark.parametrize(
    ("change", "to", "path", "value"),
    [
        ("adapter: qlora", "adapter:", "method", "full"),
        ("bf16: auto", "bf16: true", "compute", "bf16"),
        ("sample_packing: true\npad_to_sequence_len: true", "", "data.padding", "dynamic"),
        ("num_epochs: 4", "max_steps: 100", "stop.max_steps", 100),
        ("deepspeed: deepspeed_configs/zero1.json", "deepspeed: zero3_bf16_cpuoffload_all.json", "devices.offload", "all"),
        ("deepspeed: deepspeed_configs/zero1.json", "liger_rope: true", "fused_kernels", "liger"),
        ("weight_decay: 0.0", "adam_beta2: 0.95", "optimizer.betas", (0.9, 0.95)),
    ],
)
def test_each_setting_has_its_place(facts: FactBase, change: str, to: str, path: str, value: object):
    assert change in CONFIG
    node: object = card_of(CONFIG.replace(change, to), facts)
    for name in path.split("."):
        node = getattr(node, name)
    assert node == value


@pytest.mark.parametrize(
    ("change", "to", "said"),
    [
        ("base_model: meta-llama/Meta-Llama-3-8B", "base_model: someone/Meta-Llama-3-8B-ft", "did you mean 'llama-3-8b'"),
        ("lr_scheduler: cosine", "lr_scheduler: cosin", "did you mean 'cosine'"),
        ("adapter: qlora", "adapter: qlora\nreward_model: true", "is another task"),
        ("learning_rate: 2e-4", "", "learning_rate"),
        ("micro_batch_size: 2", "micro_batch_size: 2.5", "must be a whole number"),
        ("datasets:\n  - path: tatsu-lab/alpaca\n    type: alpaca", "", "datasets"),
        ("base_model:", "x: !!python/object/apply:os.system [true]\nbase_model:", "not valid YAML"),
    ],
)
def test_a_wrong_setting_is_refused_with_field_and_fix(facts: FactBase, change: str, to: str, said: str):
    with pytest.raises(TunemarkError, match=said.replace("(", r"\(")):
        card_of(CONFIG.replace(change, to), facts)


def test_a_card_is_read_again_by_the_fact_base(
    tmp_path: Path, project: Path, tunemark: Tunemark, monkeypatch: pytest.MonkeyPatch, facts: FactBase
):
    root = tmp_path / "checkout"
    for folder in ("accelerators", "models", "workloads", "prices"):
        shutil.copytree(project / "data" / folder, root / "data" / folder)
    monkeypatch.setenv("TUNEMARK_ROOT", str(root))
    (tmp_path / "My Config.yml").write_text(CONFIG, encoding="utf-8")
    said = tunemark("import", "axolotl", tmp_path / "My Config.yml", "--out", root / "data" / "workloads")
    assert said.code == 0
    assert "not expressed: datasets.0: type alpaca (how rows become text)" in said.err
    card = FactBase(root / "data").workload("my-config")
    assert card == workload_of(CONFIG.encode(), "My Config.yml", facts)[0]
    assert tunemark("import", "axolotl", tmp_path / "My Config.yml", "--out", root / "data" / "workloads").code == 2, (
        "a card is never overwritten"
    )
