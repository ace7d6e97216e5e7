"""Keys of an axolotl configuration: which a workload card expresses, which have no effect on a run, and their defaults."""

from typing import Any

from tunemark.schema.records.plan import Attention, Offload, OptimizerName

OPTIMIZERS: dict[str, OptimizerName] = {
    "adamw": "adamw", "adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw", "adamw_apex_fused": "adamw",
    "adamw_bnb_8bit": "adamw_8bit", "adamw_8bit": "adamw_8bit", "paged_adamw_8bit": "paged_adamw_8bit", "adafactor": "adafactor", "sgd": "sgd",
}  # fmt: skip
"""Name of an optimizer -> that of the same update rule on a card."""
SCHEDULERS: dict[str, Any] = {"cosine": "cosine", "linear": "linear", "constant": "constant", "constant_with_warmup": "constant"}
ATTENTION: dict[str, Attention] = {
    "flash_attention": "flash_attention_2", "sdp_attention": "sdpa", "eager_attention": "eager", "flex_attention": "flex_attention",
}  # fmt: skip
OFFLOADS: dict[str, Offload] = {"": "none", "_bf16": "none", "_bf16_cpuoffload_all": "all"}
"""End of the name of a DeepSpeed file that axolotl ships -> what it keeps in host memory."""
OTHER_TASKS = {
    "rl": "the preferences of", "reward_model": "a reward model by", "process_reward_model": "a reward model by",
}  # fmt: skip
"""Keys that make another task of a configuration than predicting the next token."""
USED = {
    "adam_beta1", "adam_beta2", "adam_epsilon", "adapter", "attn_implementation", "base_model", "bf16", "bnb_config_kwargs", "datasets", "deepspeed",
    "fp16", "fsdp", "fsdp_config", "fsdp_version", "gradient_accumulation_steps", "gradient_checkpointing", "learning_rate", "load_in_4bit",
    "load_in_8bit", "lora_alpha", "lora_dropout", "lora_r", "lora_target_linear", "lora_target_modules", "lr_scheduler", "max_grad_norm",
    "max_steps", "micro_batch_size", "num_epochs", "optimizer", "pad_to_sequence_len", "sample_packing", "seed", "sequence_len", "tf32",
    "val_set_size", "warmup_ratio", "warmup_steps", "weight_decay", *ATTENTION, *OTHER_TASKS,
}  # fmt: skip
"""Keys that the card expresses, or of which it is said elsewhere that it cannot."""
WITHOUT_EFFECT = {
    "base_model_config", "dataset_prepared_path", "debug", "eval_table_size", "evals_per_epoch", "eval_steps", "hub_model_id", "local_rank",
    "logging_steps", "lora_model_dir", "model_type", "output_dir", "plugins", "resume_from_checkpoint", "save_safetensors", "save_steps",
    "save_total_limit", "saves_per_epoch", "special_tokens", "strict", "tokenizer_type", "trust_remote_code",
    "wandb_entity", "wandb_log_model", "wandb_mode", "wandb_name", "wandb_project", "wandb_run_id", "wandb_watch",
}  # fmt: skip
"""Keys that change neither what is computed nor how fast, or only where it is written."""
DEFAULTS: dict[str, Any] = {
    "sequence_len": 512, "micro_batch_size": 1, "gradient_accumulation_steps": 1, "num_epochs": 1, "optimizer": "adamw_torch_fused",
    "lr_scheduler": "cosine", "lora_r": 8, "lora_alpha": 8, "lora_dropout": 0.0, "weight_decay": 0.0, "max_grad_norm": 1.0, "seed": 42,
    "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8,
}  # fmt: skip
"""What holds where a configuration says nothing; listed as not stated.

Read in axolotl-ai-cloud/axolotl src/axolotl/utils/schemas/training.py @ 002a637c86864c8acf451757ee45040b5ea5e25f; the
last five and the rank and alpha of adapters are those of the HF Trainer and of peft, which axolotl leaves to them.
"""
