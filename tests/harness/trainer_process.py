"""Train a tiny model for six steps with the Trainer of transformers, and save what it logs to a folder."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.manual_seed(0)
SHAPE = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
ROWS = [{"input_ids": torch.randint(0, 64, (32,)), "labels": torch.randint(0, 64, (32,))} for _ in range(16)]
ARGUMENTS = TrainingArguments(
    output_dir=sys.argv[1],
    max_steps=6,
    per_device_train_batch_size=2,
    logging_steps=2,
    report_to=[],
    use_cpu=True,
    include_num_input_tokens_seen="all",
    save_strategy="no",
    disable_tqdm=True,
)
trainer = Trainer(model=LlamaForCausalLM(LlamaConfig(**SHAPE)), args=ARGUMENTS, train_dataset=ROWS)
trainer.save_metrics("train", trainer.train().metrics)
trainer.save_state()
