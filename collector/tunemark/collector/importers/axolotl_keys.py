"""Keys of an axolotl configuration: which a workload card expresses, which have no effect on a run, and their defaults."""

from typing import Any

ADAMW = {"adamw", "adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused"}
"""Names of the same update rule."""
USED = {
    "adapter", "base_model", "bf16", "datasets", "fp16", "gradient_accumulation_steps", "gradient_checkpointing", "learning_rate",
    "load_in_4bit", "lora_alpha", "lora_dropout", "lora_r", "lora_target_linear", "lora_target_modules", "lr_scheduler", "max_grad_norm",
    "max_steps", "micro_batch_size", "num_epochs", "optimizer", "pad_to_sequence_len", "sample_packing", "seed", "sequence_len", "tf32",
    "val_set_size", "weight_decay",
}  # fmt: skip
"""Keys that the card expresses."""
WITHOUT_EFFECT = {
    "base_model_config", "dataset_prepared_path", "debug", "eval_table_size", "evals_per_epoch", "eval_steps", "hub_model_id", "local_rank",
    "logging_steps", "lora_model_dir", "model_type", "output_dir", "resume_from_checkpoint", "save_safetensors", "save_steps",
    "save_total_limit", "saves_per_epoch", "special_tokens", "strict", "tokenizer_type", "trust_remote_code",
    "wandb_entity", "wandb_log_model", "wandb_mode", "wandb_name", "wandb_project", "wandb_run_id", "wandb_watch",
}  # fmt: skip
"""Keys that change neither what is computed nor how fast, or only where it is written."""
DEFAULTS: dict[str, Any] = {
    "sequence_len": 512, "micro_batch_size": 1, "gradient_accumulation_steps": 1, "num_epochs": 1, "optimizer": "adamw_torch_fused",
    "lr_scheduler": "cosine", "lora_r": 8, "lora_alpha": 8, "lora_dropout": 0.0, "weight_decay": 0.0, "max_grad_norm": 1.0, "seed": 42,
}  # fmt: skip
"""What holds where a configuration says nothing; listed as not stated.

Read in axolotl-ai-cloud/axolotl src/axolotl/utils/schemas/training.py @ 002a637c86864c8acf451757ee45040b5ea5e25f; the
last two and the rank and alpha of adapters are those of the HF Trainer and of peft, which axolotl leaves to them.
"""
