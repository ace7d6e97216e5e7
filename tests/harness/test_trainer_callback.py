"""A real training with the Hugging Face Trainer: its record by `tunemark.TunemarkCallback`, and the import of its log."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from factories import Tunemark
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import tunemark
from tunemark.collector.audit.evidence import Evidence
from tunemark.collector.audit.load import add_files
from tunemark.collector.audit.rule import audit
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.published import PublishedResult
from tunemark.schema.vocabulary import Method, PublishedStatus

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
    settings = {
        "max_steps": 12,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "logging_steps": 1,
        "save_strategy": "no",
    }
    settings |= {"report_to": [], "use_cpu": True, "disable_tqdm": True} | arguments
    trainer = Trainer(
        model, TrainingArguments(str(folder / "out"), **settings), train_dataset=Rows(), eval_dataset=Rows(), callbacks=[callback]
    )
    trainer.train()
    return trainer


def record_in(path: Path) -> PublishedResult:
    (record,) = tunemark.load_results(path)
    return record


def test_a_training_is_recorded_with_its_steps_times_tokens_and_environment(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    trainer = train(tmp_path, tunemark.TunemarkCallback(path, warmup_steps=4, sequence_length=TOKENS), include_num_input_tokens_seen="all")
    record = record_in(path)
    claims = {name: claim.value for name, claim in record.claims.items()}
    assert claims["steps"] == 12
    assert claims["tokens"] == trainer.state.num_input_tokens_seen == 12 * 4 * TOKENS
    # The rates are those of the eight steps after the warm-up.
    assert claims["samples_per_s"] == pytest.approx(4 / claims["step_time_s"])
    assert claims["tokens_per_s"] == pytest.approx(4 * TOKENS / claims["step_time_s"])
    assert 8 * claims["step_time_s"] < claims["wall_s"] < trainer.state.log_history[-1]["train_runtime"] + 1
    assert claims["loss_start"] == pytest.approx(sum(entry["loss"] for entry in trainer.state.log_history[:3]) / 3)
    assert record.status is PublishedStatus.OK
    conditions = record.conditions
    assert (conditions.method, conditions.micro_batch, conditions.gradient_accumulation, conditions.global_batch) == (Method.FULL, 2, 2, 4)
    assert conditions.framework["torch"] == version("torch")
    assert record.labels["accelerator"]
    assert not tunemark.validate(path).problems
    evidence, _ = add_files(Evidence((), (), FactBase.of_project()), [path])
    assert not audit(evidence), "an honest run is accused"


def test_evaluation_and_saving_do_not_count(tmp_path: Path) -> None:
    class Slow(tunemark.TunemarkCallback):
        """Evaluation takes half a second longer."""

        def on_evaluate(self, *_: object, **__: object) -> None:
            import time

            time.sleep(0.5)

    path = tmp_path / "run.json"
    train(tmp_path, Slow(path, warmup_steps=2), eval_strategy="steps", eval_steps=3)
    claims = record_in(path).claims
    # The last evaluation comes after the last step.
    assert claims["wall_s"].value > 3 * 0.5
    assert 10 * claims["step_time_s"].value < 1.0


def test_adapters_full_rows_and_a_short_run(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    train(tmp_path, tunemark.TunemarkCallback(path, full_rows=True, sequence_length=TOKENS, model="llama-3.1-8b"), adapters=True)
    record = record_in(path)
    assert record.conditions.method is Method.LORA
    assert record.conditions.model == "llama-3.1-8b"
    assert record.claims["tokens_per_s"].value == pytest.approx(4 * TOKENS / record.claims["step_time_s"].value)
    train(tmp_path, tunemark.TunemarkCallback(path), max_steps=3)
    assert "step_time_s" not in record_in(path).claims


def test_wrong_names_are_errors_before_the_training(tmp_path: Path) -> None:
    with pytest.raises(TunemarkError, match="did you mean"):
        tunemark.TunemarkCallback(tmp_path / "run.json", model="llama-3.1-8bb")
    with pytest.raises(TunemarkError, match="give sequence_length"):
        tunemark.TunemarkCallback(full_rows=True)


def test_the_log_of_a_real_training_is_imported_whole(tmp_path: Path, tunemark: Tunemark) -> None:
    trainer = train(tmp_path, TrainerCallback(), logging_steps=2, include_num_input_tokens_seen="all")
    trainer.save_state()
    final = trainer.state.log_history[-1]
    stated = ("--method", "lora", "--model", "llama-3.1-8b", "--accelerator", "nvidia-h100-80gb-sxm", "--devices", 1, "--seq", TOKENS)
    said = tunemark("import", "log", tmp_path / "out" / "trainer_state.json", *stated, "--micro-batch", 2, "--json")
    assert said.code == 0
    assert "grad_norm" in json.loads(said.out)[0]["not_used"]
    claims = {name: claim["value"] for name, claim in json.loads(said.out)[0]["record"]["claims"].items()}
    assert (claims["steps"], claims["tokens"]) == (12, 12 * 4 * TOKENS)
    assert (claims["train_time_s"], claims["train_loss"]) == (final["train_runtime"], final["train_loss"])
    assert claims["total_flops"] == final["total_flos"]
    imported = tunemark("import", "log", tmp_path / "out", *stated, "--micro-batch", 2)
    # The model of the log is a tiny one: its trainer computed far less per token than the stated 8B.
    assert (imported.code, "FLOPs of the trainer" in imported.out) == (0, True)
