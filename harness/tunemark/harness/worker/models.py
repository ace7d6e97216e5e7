"""Builds the model of a plan: weights, precision, adapters, and what its tensors weigh."""

from collections import Counter
from typing import Any

from tunemark.harness.worker.architectures import config_of
from tunemark.schema.cards import ModelCard
from tunemark.schema.plan import Plan
from tunemark.schema.vocabulary import Checkpointing, Dtype, Method, Task, Weights

TORCH_DTYPES = {Dtype.FP32: "float32", Dtype.TF32: "float32", Dtype.BF16: "bfloat16", Dtype.FP16: "float16"}
DTYPE_NAMES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.uint8": "uint8", "torch.int8": "int8"}


def build_model(plan: Plan, card: ModelCard, weights_from: str | None, vocabulary: int | None) -> Any:  # noqa: ANN401 - a torch module
    """Return the model in training mode, with adapters if the method has them.

    `vocabulary` is the size of a tokenizer that was trained here; None keeps the card's.
    """
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    torch.manual_seed(plan.measurement.seed)
    auto = transformers.AutoModelForCausalLM if plan.model.task is Task.CAUSAL_LM else transformers.AutoModelForSequenceClassification
    settings: dict[str, Any] = {
        "dtype": getattr(torch, TORCH_DTYPES[plan.precision.parameters]),
        "attn_implementation": plan.model.attention,
    }
    if plan.model.weights is Weights.RANDOM:
        model = auto.from_config(config_of(card, labels=plan.model.labels, vocabulary=vocabulary), **settings)
    else:
        model = auto.from_pretrained(weights_from, **settings, **({"num_labels": plan.model.labels} if plan.model.labels else {}))
    model.config.use_cache = False
    if plan.model.gradient_checkpointing is not Checkpointing.NONE:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if plan.method is Method.LORA:
        model = add_adapters(plan, model)
    return model.train()


def add_adapters(plan: Plan, model: Any) -> Any:  # noqa: ANN401 - a torch module
    """Return the model with low-rank adapters; its own weights are frozen."""
    import peft  # noqa: PLC0415

    if plan.lora is None:
        msg = "plan.lora is null with method lora"
        raise ValueError(msg)
    if plan.model.gradient_checkpointing is not Checkpointing.NONE:
        # Without it no gradient reaches the first adapter through checkpointed blocks.
        model.enable_input_require_grads()
    task = peft.TaskType.CAUSAL_LM if plan.model.task is Task.CAUSAL_LM else peft.TaskType.SEQ_CLS
    settings = peft.LoraConfig(
        r=plan.lora.rank,
        lora_alpha=plan.lora.alpha,
        lora_dropout=plan.lora.dropout,
        target_modules=list(plan.lora.target_modules),
        task_type=task,
    )
    return peft.get_peft_model(model, settings, autocast_adapter_dtype=False)


def model_facts(model: Any, optimizer: Any = None, gradient_bytes: int = 0) -> dict[str, Any]:  # noqa: ANN401 - torch objects
    """Return what the tensors of model and optimizer weigh, in bytes, tied parameters once; before the first step there is no optimizer."""
    by_dtype: Counter[str] = Counter()
    for parameter in model.parameters():
        by_dtype[DTYPE_NAMES.get(str(parameter.dtype), str(parameter.dtype))] += parameter.nbytes
    adapters = [parameter for name, parameter in model.named_parameters() if "lora_" in name]
    states = [
        value
        for state in (optimizer.state.values() if optimizer is not None else ())
        for value in state.values()
        if hasattr(value, "nbytes")
    ]
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "trainable_parameters": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        "parameter_bytes": dict(by_dtype),
        "adapter_bytes": sum(parameter.nbytes for parameter in adapters),
        "gradient_bytes": gradient_bytes,
        "optimizer_state_bytes": sum(value.nbytes for value in states),
    }


def gradient_bytes(model: Any) -> int:  # noqa: ANN401 - a torch module
    """Return the bytes of all gradients that exist now."""
    return sum(parameter.grad.nbytes for parameter in model.parameters() if parameter.grad is not None)
