"""Plan -> the keywords that optimum-neuron is called with. Pure, so that a test holds each one against its API."""

from pathlib import Path
from typing import Any

from tunemark.harness.neuron_rules import ATTENTION
from tunemark.schema.records.plan import LoraSettings, Plan
from tunemark.schema.vocabulary import Checkpointing, Dtype, Strategy

OPTIMIZERS = {"adamw": "adamw_torch", "sgd": "sgd"}
ENDLESS = 1_000_000
"""Steps that no run takes: the trainer wants to know how many there are."""


def training_arguments(plan: Plan, steps: int | None, scratch: Path) -> dict[str, Any]:
    """Return the keywords of `NeuronTrainingArguments`.

    Nothing is logged, saved or reported by the trainer, and none of its own metrics is taken: each of these waits for the device.
    """
    return _batch(plan, steps) | _optimizer(plan) | _sharing(plan) | _quiet(scratch)


def _batch(plan: Plan, steps: int | None) -> dict[str, Any]:
    return {
        "per_device_train_batch_size": plan.batch.micro_batch,
        "gradient_accumulation_steps": plan.batch.gradient_accumulation,
        "max_steps": steps or ENDLESS,
        "seed": plan.measurement.seed,
        "gradient_checkpointing": plan.model.gradient_checkpointing is Checkpointing.FULL,
        "bf16": plan.precision.compute is Dtype.BF16,
    }


def _optimizer(plan: Plan) -> dict[str, Any]:
    """Return the optimizer's settings. The trainer never decays norms and biases, which our own loop does."""
    o = plan.optimizer
    return {
        "optim": OPTIMIZERS[o.name],
        "learning_rate": o.learning_rate,
        "weight_decay": o.weight_decay,
        "adam_beta1": o.betas[0],
        "adam_beta2": o.betas[1],
        "adam_epsilon": o.epsilon,
        "max_grad_norm": o.max_grad_norm or 0.0,
        "lr_scheduler_type": o.scheduler,
        "warmup_steps": o.warmup_steps,
    }


def _sharing(plan: Plan) -> dict[str, Any]:
    """Return how the cores share the model. Master weights in fp32 exist with ZeRO 1 only, in this version of optimum-neuron."""
    sharded = plan.device.strategy is Strategy.ZERO1
    return {
        "tensor_parallel_size": plan.device.tensor_parallel,
        "pipeline_parallel_size": plan.device.pipeline_parallel,
        "zero_1": sharded,
        "optimizer_use_master_weights": sharded,
        "optimizer_use_fp32_grad_acc": sharded,
        "stochastic_rounding_enabled": bool(plan.neuron and plan.neuron.stochastic_rounding),
    }


def _quiet(scratch: Path) -> dict[str, Any]:
    return {
        "output_dir": str(scratch),
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "log_level": "error",
        "skip_cache_push": True,
        "remove_unused_columns": False,
        "label_names": ["labels"],
        "enable_throughput_metrics": False,
        "enable_mfu_metrics": False,
        "enable_efficiency_metrics": False,
    }


def trainer(model: Any, arguments: Any, rows: Any, collate: Any, callback: Any) -> dict[str, Any]:  # noqa: ANN401 - objects of the libraries
    """Return the keywords of `NeuronTrainer`."""
    return {"model": model, "args": arguments, "train_dataset": rows, "data_collator": collate, "callbacks": [callback]}


def pretrained(plan: Plan) -> dict[str, Any]:
    """Return the keywords of `NeuronModelForCausalLM.from_pretrained`; `dtype` is a name that torch has."""
    return {"dtype": dtype(plan), "attn_implementation": ATTENTION[plan.model.attention]}


def dtype(plan: Plan) -> str:
    """Return the number format of the weights by torch's name."""
    return {Dtype.BF16: "bfloat16", Dtype.FP32: "float32"}[plan.precision.parameters]


def adapters(lora: LoraSettings) -> dict[str, Any]:
    """Return the keywords of peft's `LoraConfig`."""
    return {
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": list(lora.target_modules),
        "task_type": "CAUSAL_LM",
    }


def wrapping() -> dict[str, Any]:
    """Return the further keywords of `optimum.neuron.peft.get_peft_model`: adapters stay in the format of the weights."""
    return {"autocast_adapter_dtype": False}
