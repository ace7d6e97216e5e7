"""A real training with the Hugging Face Trainer: the import of its log, and of that by `tunemark.TunemarkCallback`."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from factories import Tunemark
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from tunemark import TunemarkCallback

pytestmark = pytest.mark.usefixtures("beside_few_documents")
TOKENS = 16


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = (torch.arange(TOKENS) * 7 + index) % 64
        return {"input_ids": ids, "labels": ids}


def train(folder: Path, callback: object, *, adapters: bool = False, **arguments: object) -> Trainer:
    """Return a Trainer that has trained a tiny model for 12 steps of 2 x 2 rows."""
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2
    )
    model = LlamaForCausalLM(config)
    if adapters:
        model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))
    settings = {"max_steps": 12, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "logging_steps": 1}
    settings |= {"save_strategy": "no", "report_to": [], "use_cpu": True, "disable_tqdm": True} | arguments
    trainer = Trainer(
        model, TrainingArguments(str(folder / "out"), **settings), train_dataset=Rows(), eval_dataset=Rows(), callbacks=[callback]
    )
    trainer.train()
    return trainer


def imported(path: Path, tunemark: Tunemark, *options: object) -> dict[str, Any]:
    """Return the answer of `tunemark import log` to a log."""
    said = tunemark("import", "log", path, *options, "--json")
    assert said.code == 0, said.err
    return json.loads(said.out)


def test_a_training_is_logged_with_its_steps_times_tokens_and_conditions(tmp_path: Path, tunemark: Tunemark) -> None:
    path = tmp_path / "run.jsonl"
    trainer = train(tmp_path, TunemarkCallback(path), max_steps=18, include_num_input_tokens_seen="all")
    answer = imported(path, tunemark, "--seq", TOKENS)
    record = answer["record"]
    claims = {name: claim["value"] for name, claim in record["claims"].items()}
    assert claims["steps"] == 18
    # The rates are those of the eight steps after the warm-up.
    assert claims["tokens_per_s"] == pytest.approx(4 * TOKENS / claims["step_time_s"])
    assert 8 * claims["step_time_s"] < claims["wall_s"] < trainer.state.log_history[-1]["train_runtime"] + 1
    assert claims["loss_start"] == pytest.approx(sum(entry["loss"] for entry in trainer.state.log_history[:4]) / 4)
    conditions = record["conditions"]
    assert (record["status"], conditions["method"], conditions["micro_batch"], conditions["gradient_accumulation"]) == ("ok", "full", 2, 2)
    assert not answer["findings"], "an honest run is accused"
    # A training that was killed leaves its log up to then.
    path.write_text("\n".join(path.read_text().splitlines()[:-3]))
    assert imported(path, tunemark, "--seq", TOKENS)["record"]["status"] == "partial"


def test_evaluation_and_saving_do_not_count(tmp_path: Path, tunemark: Tunemark) -> None:
    class Slow(TunemarkCallback):
        """On its clock, evaluation takes a thousand seconds longer."""

        late_s = 0.0

        def on_evaluate(self, *_: object, **__: object) -> None:
            self.late_s += 1000.0

        def _now(self) -> float:
            return super()._now() + self.late_s

    path = tmp_path / "run.jsonl"
    train(tmp_path, Slow(path), max_steps=18, eval_strategy="steps", eval_steps=6, include_num_input_tokens_seen="all")
    claims = imported(path, tunemark)["record"]["claims"]
    assert claims["wall_s"]["value"] > 3 * 1000.0
    assert 8 * claims["step_time_s"]["value"] < 1000.0


def test_adapters_full_rows_and_a_short_run(tmp_path: Path, tunemark: Tunemark) -> None:
    path = tmp_path / "run.jsonl"
    full = ("--seq", TOKENS, "--set", "padding=static", "--model", "llama-3.1-8b")
    train(tmp_path, TunemarkCallback(path), adapters=True)
    record = imported(path, tunemark, *full)["record"]
    assert (record["conditions"]["method"], record["conditions"]["padding"]) == ("lora", "static")
    assert record["claims"]["step_time_s"]["value"]
    train(tmp_path, TunemarkCallback(path), max_steps=3, logging_steps=500)
    assert "step_time_s" not in imported(path, tunemark, *full)["record"]["claims"]


def test_the_log_of_a_real_training_is_imported_whole(tmp_path: Path, tunemark: Tunemark) -> None:
    trainer = train(tmp_path, TrainerCallback(), logging_steps=2, include_num_input_tokens_seen="all")
    trainer.save_state()
    final = trainer.state.log_history[-1]
    stated = ("--method", "lora", "--model", "llama-3.1-8b", "--accelerator", "nvidia-h100-80gb-sxm", "--devices", 1, "--seq", TOKENS)
    said = tunemark("import", "log", tmp_path / "out" / "trainer_state.json", *stated, "--micro-batch", 2, "--json")
    assert said.code == 0
    claims = {name: claim["value"] for name, claim in json.loads(said.out)["record"]["claims"].items()}
    assert (claims["steps"], claims["tokens"]) == (12, 12 * 4 * TOKENS)
    assert (claims["train_time_s"], claims["train_loss"]) == (final["train_runtime"], final["train_loss"])
    assert claims["total_flops"] == final["total_flos"]
    imported = tunemark("import", "log", tmp_path / "out", *stated, "--micro-batch", 2)
    # The model of the log is a tiny one: its trainer computed far less per token than the stated 8B.
    assert (imported.code, "claim        Tokens 768, Total FLOPs 57065472" in imported.out) == (0, True)
