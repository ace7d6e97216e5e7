"""Build the model of a plan and its optimizer: weights, precision, adapters. Measure the sizes of their tensors."""

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import peft
import torch
import transformers

from tunemark.harness.vendors.protocol import Device
from tunemark.harness.worker.levers import blocks, fuse, recompute
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.records.plan import LoraSettings, Plan
from tunemark.schema.vocabulary import Checkpointing, Dtype, Task, Weights

TORCH_DTYPES = {Dtype.FP32: "float32", Dtype.TF32: "float32", Dtype.BF16: "bfloat16", Dtype.FP16: "float16"}
DTYPE_NAMES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.uint8": "uint8", "torch.int8": "int8"}
NO_TOKEN = 0
DECODER = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_hidden_layers": "layers",
    "num_attention_heads": "attention_heads",
    "num_key_value_heads": "key_value_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocabulary",
    "max_position_embeddings": "context_length",
    "tie_word_embeddings": "tied_embeddings",
    "sliding_window": "sliding_window",
}
GPT2 = {
    "n_embd": "hidden_size",
    "n_inner": "intermediate_size",
    "n_layer": "layers",
    "n_head": "attention_heads",
    "vocab_size": "vocabulary",
    "n_positions": "context_length",
    "tie_word_embeddings": "tied_embeddings",
}


def _decoder_without(*names: str) -> dict[str, str]:
    return {theirs: ours for theirs, ours in DECODER.items() if theirs not in names}


TRANSFORMERS_CONFIGS: dict[str, tuple[str, dict[str, str]]] = {
    "llama": ("LlamaConfig", _decoder_without("sliding_window")),
    "mistral": ("MistralConfig", DECODER),
    "mixtral": ("MixtralConfig", DECODER | {"num_local_experts": "experts", "num_experts_per_tok": "active_experts"}),
    "qwen2": ("Qwen2Config", _decoder_without("sliding_window", "head_dim")),
    "qwen3": ("Qwen3Config", _decoder_without("sliding_window")),
    "gemma": ("GemmaConfig", _decoder_without("sliding_window")),
    "gemma2": ("Gemma2Config", DECODER),
    "phi3": ("Phi3Config", _decoder_without("head_dim")),
    "gpt2": ("GPT2Config", GPT2),
    "bert": ("BertConfig", _decoder_without("num_key_value_heads", "head_dim", "tie_word_embeddings", "sliding_window")),
}
"""Family -> (configuration class of transformers, its field names -> fields of the model card)."""
FIXED_SHAPE = ("hidden_size", "intermediate_size", "layers", "attention_heads", "key_value_heads")
"""Fields of a card that its weights must match; a vocabulary may have been padded or extended."""


def config_of(card: ModelCard, *, labels: int | None = None, vocabulary: int | None = None) -> Any:  # noqa: ANN401 - a transformers class
    """Return the transformers configuration of a card; `vocabulary` replaces the card's, `labels` makes it a classifier."""
    name, fields = TRANSFORMERS_CONFIGS[card.family]
    settings: dict[str, Any] = {theirs: getattr(card, ours) for theirs, ours in fields.items()}
    if vocabulary is not None:
        settings["vocab_size"] = vocabulary
    if labels is not None:
        settings["num_labels"] = labels
    # Cards hold no special token ids; padding must be inside any vocabulary.
    settings |= {"pad_token_id": NO_TOKEN, "bos_token_id": NO_TOKEN, "eos_token_id": NO_TOKEN}
    return getattr(transformers, name)(**settings)


def build_model(
    plan: Plan, card: ModelCard, weights_from: str | None, vocabulary: int | None, scratch: Path, device: Device, *, empty: bool = False
) -> Any:  # noqa: ANN401
    """Return the torch module in training mode, in host memory unless it is quantised, with adapters if the method has them.

    `vocabulary` is the size of a tokenizer that was trained here; None keeps the card's. `scratch` is a folder for random
    weights that are quantised. `empty` leaves all tensors without weights, on torch's `meta` device.
    """
    torch.manual_seed(plan.measurement.seed)
    with torch.device("meta") if empty else nullcontext():
        model = _load(plan, card, weights_from, vocabulary, scratch, device, empty=empty)
        if plan.model.weights is Weights.PRETRAINED or plan.quantisation is not None:
            refuse_another_architecture(model.config, card)
        model.config.use_cache = False
        fuse(plan, model)
        recompute(plan, model)
        if plan.lora is not None:
            model = add_adapters(plan, plan.lora, model)
    return model.train()


def _load(
    plan: Plan, card: ModelCard, weights_from: str | None, vocabulary: int | None, scratch: Path, device: Device, *, empty: bool
) -> Any:  # noqa: ANN401 - a torch module
    """Return the model as transformers builds it: with the weights of a folder or hub id, random ones, or none."""
    auto = transformers.AutoModelForCausalLM if plan.model.task is Task.CAUSAL_LM else transformers.AutoModelForSequenceClassification
    settings: dict[str, Any] = {"dtype": torch_dtype(plan.precision.parameters), "attn_implementation": plan.model.attention}
    labels = {"num_labels": plan.model.labels} if plan.model.labels else {}
    random = plan.model.weights is Weights.RANDOM
    if random or empty:
        if random:
            config = config_of(card, labels=plan.model.labels, vocabulary=vocabulary)
        else:
            config = transformers.AutoConfig.from_pretrained(weights_from, **labels)
        model = auto.from_config(config, **settings)
        if empty or plan.quantisation is None:
            return model
        # transformers quantises while it loads weights, so random ones are saved first.
        model.save_pretrained(scratch)
        weights_from = str(scratch)
    if plan.quantisation is not None:
        settings["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=plan.quantisation.format,
            bnb_4bit_use_double_quant=plan.quantisation.double,
            bnb_4bit_compute_dtype=torch_dtype(plan.precision.compute),
        )
        settings["device_map"] = {"": device.torch_name}
    return auto.from_pretrained(weights_from, **settings, **labels)


def torch_dtype(dtype: Dtype) -> Any:  # noqa: ANN401 - a torch dtype
    """Return torch's number format; tf32 is stored as fp32."""
    return getattr(torch, TORCH_DTYPES[dtype])


def refuse_another_architecture(config: Any, card: ModelCard) -> None:  # noqa: ANN401 - a transformers class
    """Raise ValueError when pretrained weights do not match the card: their numbers would be published under its name."""
    theirs = {ours: getattr(config, name, None) for name, ours in TRANSFORMERS_CONFIGS[card.family][1].items() if ours in FIXED_SHAPE}
    other = {name: value for name, value in theirs.items() if value is not None and value != getattr(card, name)}
    if other:
        differences = ", ".join(f"{name} {value} instead of {getattr(card, name)}" for name, value in other.items())
        msg = f"the weights are not those of model card {card.key}: {differences}; name weights of this model, or another one with --set model=KEY"
        raise ValueError(msg)


def add_adapters(plan: Plan, lora: LoraSettings, model: Any) -> Any:  # noqa: ANN401 - a torch module
    """Return the model with low-rank adapters; its own weights are frozen."""
    if plan.model.gradient_checkpointing is not Checkpointing.NONE:
        # Otherwise no gradient reaches the first adapter through checkpointed blocks.
        model.enable_input_require_grads()
    task = "CAUSAL_LM" if plan.model.task is Task.CAUSAL_LM else "SEQ_CLS"
    adapted = peft.get_peft_model(model, peft.LoraConfig(**lora_keywords(lora, task)), autocast_adapter_dtype=False)
    stored = torch_dtype(plan.precision.parameters)
    for parameter in adapted.parameters():
        # With four-bit layers peft 0.17 creates adapters in fp32, whatever the model's format.
        if parameter.requires_grad:
            parameter.data = parameter.data.to(stored)
    return adapted


def lora_keywords(lora: LoraSettings, task: str = "CAUSAL_LM") -> dict[str, Any]:
    """Return the keywords of peft's `LoraConfig`."""
    return {
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": list(lora.target_modules),
        "task_type": task,
    }


def switch_to_evaluation(model: Any) -> None:  # noqa: ANN401 - a torch module
    """Turn dropout off, and leave four-bit layers as they are.

    On some CPUs bitsandbytes rearranges four-bit weights for inference, permanently, and then refuses sizes that training uses.
    """
    model.eval()
    for module in model.modules():
        if type(module).__module__.startswith("bitsandbytes."):
            module.training = True


# Optimizer


def build_optimizer(plan: Plan, model: Any, *, fused: bool) -> Any:  # noqa: ANN401 - torch objects
    """Return the optimizer over the trained weights; `fused` asks torch for one kernel per step."""
    settings = plan.optimizer
    groups = list(parameter_groups(plan, model))
    adam = {"lr": settings.learning_rate, "betas": settings.betas, "eps": settings.epsilon, "weight_decay": settings.weight_decay}
    match settings.name:
        case "adamw":
            return torch.optim.AdamW(groups, **adam, fused=fused)
        case "adafactor":
            return torch.optim.Adafactor(groups, lr=settings.learning_rate, weight_decay=settings.weight_decay)
        case "sgd":
            return torch.optim.SGD(groups, lr=settings.learning_rate, weight_decay=settings.weight_decay)
        case "adamw_8bit" | "paged_adamw_8bit":
            import bitsandbytes  # noqa: PLC0415

            kind = bitsandbytes.optim.PagedAdamW8bit if settings.name.startswith("paged") else bitsandbytes.optim.AdamW8bit
            return kind(groups, **adam)


def parameter_groups(plan: Plan, model: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - a torch module
    """Yield one group of trained weights, or with `layer_decay` one per block.

    The last block has the full learning rate, each block below it a fraction of the one above, and the embeddings the lowest.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decay = plan.optimizer.layer_decay
    if decay is None:
        yield {"params": trained}
        return
    stack, seen = blocks(model), set()
    for depth, block in enumerate(stack):
        own = [parameter for parameter in block.parameters() if parameter.requires_grad]
        seen |= {id(parameter) for parameter in own}
        yield {"params": own, "lr": plan.optimizer.learning_rate * decay ** (len(stack) - 1 - depth)}
    layers = (module for module in model.modules() if isinstance(module, torch.nn.Embedding))
    embeddings = {id(parameter) for layer in layers for parameter in layer.parameters()} - seen
    below = [parameter for parameter in trained if id(parameter) in embeddings]
    if below:
        yield {"params": below, "lr": plan.optimizer.learning_rate * decay ** len(stack)}
    head = [parameter for parameter in trained if id(parameter) not in seen | embeddings]
    if head:
        yield {"params": head}


# Weights, gradients and states in bytes


class Gradients(NamedTuple):
    """Bytes of a step's gradients, or why they are unknown."""

    bytes: int | None = None
    reason: str | None = "the run ended before its first step was complete"


NO_GRADIENTS = Gradients()
NO_STATES = "the run ended before its optimizer states were measured, which is after the last step"


def model_facts(model: Any, optimizer: Any = None, gradients: Gradients = NO_GRADIENTS) -> dict[str, Any]:  # noqa: ANN401 - torch objects
    """Return the sizes of model and optimizer tensors in bytes, tied parameters once. Before training there is no optimizer."""
    by_dtype: Counter[str] = Counter()
    for parameter in model.parameters():
        by_dtype[DTYPE_NAMES.get(str(parameter.dtype), str(parameter.dtype))] += bytes_here(parameter)
        state = getattr(parameter, "quant_state", None)
        if state is not None:
            by_dtype["scales of 4-bit blocks"] += state.absmax.nbytes
        if state is not None and getattr(state, "nested", False):
            # Double quantisation: the scales are quantised too.
            by_dtype["scales of scales of 4-bit blocks"] += state.state2.absmax.nbytes
            by_dtype["offset of 4-bit blocks"] += state.offset.nbytes
    states = optimizer.state.values() if optimizer is not None else ()
    state_bytes = sum(bytes_here(value) for state in states for value in state.values() if hasattr(value, "nbytes"))
    return {
        "parameters": sum(number_of_weights(parameter) for parameter in model.parameters()),
        "trainable_parameters": sum(number_of_weights(parameter) for parameter in model.parameters() if parameter.requires_grad),
        "parameter_bytes": dict(by_dtype),
        "adapter_bytes": sum(bytes_here(parameter) for name, parameter in model.named_parameters() if "lora_" in name),
        "gradient_bytes": gradients.bytes,
        "gradient_bytes_reason": gradients.reason,
        "optimizer_state_bytes": None if optimizer is None else state_bytes,
        "optimizer_state_bytes_reason": NO_STATES if optimizer is None else None,
    }


def gradients_of(model: Any) -> Gradients:  # noqa: ANN401 - a torch module
    """Return the bytes of all gradients that this process holds now."""
    held = sum(bytes_here(parameter.grad) for parameter in model.parameters() if parameter.grad is not None)
    return Gradients(held, None) if held else Gradients(None, "no parameter holds a visible gradient")


def bytes_here(tensor: Any) -> int:  # noqa: ANN401 - a torch tensor
    """Return the bytes of a tensor that this process holds; for a sharded tensor, its own part."""
    own = int((tensor.to_local() if hasattr(tensor, "to_local") else tensor).nbytes)
    # ZeRO 3 keeps a process's part aside, and empties the parameter while it is not in use.
    part = getattr(tensor, "ds_tensor", None)
    return own if part is None else own + int(part.nbytes)


def number_of_weights(parameter: Any) -> int:  # noqa: ANN401 - a torch parameter
    """Return the number of weights of a whole parameter: unpacked for four-bit formats, unsharded for sharded ones."""
    state = getattr(parameter, "quant_state", None)
    # DeepSpeed stores the full size of a parameter that it has sharded.
    whole = getattr(parameter, "ds_numel", None)
    return int(state.shape.numel()) if state is not None else int(whole) if whole is not None else int(parameter.numel())
