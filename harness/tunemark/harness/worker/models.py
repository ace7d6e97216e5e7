"""Build the model of a plan: weights, precision, adapters. Check that it learns, measure the sizes of its tensors, draw random weights."""

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from torch.distributed.tensor import DTensor
from torch.nn.utils import skip_init

from tunemark.harness.vendors.protocol import Device
from tunemark.harness.worker.data import MicroBatch, to_device
from tunemark.harness.worker.fp8 import FrozenFp8Linear
from tunemark.harness.worker.levers import add_masks, fuse, layers_in_fp8, limit_sdpa, prepare_transformers, recompute, store_in_fp8
from tunemark.schema import vocabulary as words
from tunemark.schema.facts.cards import STATE_SPACE, WITHOUT_WINDOW, ModelCard, fields_of
from tunemark.schema.physics.architecture import blocks_of
from tunemark.schema.physics.families import SETTINGS, Mixer
from tunemark.schema.records.plan import LoraSettings, Plan, Precision, Quantisation
from tunemark.schema.records.trace import TORCH_NAMES, short

NO_TOKEN = 0
LAYER_TYPES: dict[Mixer, str] = {"attention": "full_attention", "window": "sliding_attention", "convolution": "conv"}
LAYER_TYPES |= dict.fromkeys(("delta rule", "state space"), "linear_attention")
"""Names in transformers of the layers by the way in which they mix tokens."""
SPELLED: dict[str, dict[str, Any]] = {"deberta-v2": {"pos_att_type": ["p2c", "c2p"]}, "lfm2": {"block_auto_adjust_ff_dim": False}}
"""Settings of all models of a family, where configurations write them in several ways."""
FIXED_SHAPE = ("hidden_size", "intermediate_size", "layers", "attention_heads", "key_value_heads")
"""Fields of a card that its weights must match; a vocabulary may have been padded or extended."""


def config_of(card: ModelCard, *, labels: int | None = None, vocabulary: int | None = None) -> Any:  # noqa: ANN401 - a transformers class
    """Return the transformers configuration of a card; `vocabulary` replaces the card's, `labels` makes it a classifier."""
    made = transformers.AutoConfig.for_model(card.family)
    # Some configurations have a width of heads that they do not declare; that of Falcon computes it.
    names, derived = fields_of(card.family).items(), isinstance(getattr(type(made), "head_dim", None), property)
    named = {theirs: ours for theirs, ours in names if (not derived if theirs == "head_dim" else hasattr(made, theirs))}
    settings: dict[str, Any] = {theirs: getattr(card, ours) for theirs, ours in named.items()}
    settings |= SETTINGS.get(card.family, {}) | SPELLED.get(card.family, {}) | _of_family(card)
    settings |= {name: value for name, value in {"vocab_size": vocabulary, "num_labels": labels}.items() if value is not None}
    if hasattr(made, "n_group"):
        # Cards hold no groups of experts: a token chooses among all of them.
        settings |= {"n_group": 1, "topk_group": 1}
    if hasattr(made, "mlp_layer_types"):
        settings["mlp_layer_types"] = ["sparse" if block.mixed else "dense" for block in blocks_of(card)]
    if card.shared_experts and hasattr(made, "shared_expert_intermediate_size"):
        settings["shared_expert_intermediate_size"] = card.shared_experts * card.intermediate_size
    if hasattr(made, "layer_types") and (card.full_attention_layers is not None or card.family in (*WITHOUT_WINDOW, "gemma4_text")):
        kinds = LAYER_TYPES | {"none": "moe" if card.experts else "mlp"}
        if isinstance(getattr(type(made), "layers_block_type", None), property):
            # transformers 4 has other words for those of Granite.
            kinds |= {"attention": "attention", "state space": "mamba"}
        name = "layers_block_type" if card.feed_forward_layers else "layer_types"
        settings[name] = [kinds[block.mixer] for block in blocks_of(card)]
    # Cards hold no special token ids; padding must be inside any vocabulary.
    settings |= {"pad_token_id": NO_TOKEN, "bos_token_id": NO_TOKEN, "eos_token_id": NO_TOKEN}
    return type(made)(**settings)


def _of_family(card: ModelCard) -> dict[str, Any]:
    """Return the settings that a card has in other fields, in Gemma 4, in Granite 4 and in Nemotron-H."""
    inner = card.intermediate_size * (card.shared_experts or 1)
    if card.family == "nemotron_h":
        experts = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": inner}
        return {"moe_latent_size": None} | ({"moe_shared_expert_intermediate_size": inner} if card.experts else experts)
    if card.family in STATE_SPACE:
        settings = {
            "num_local_experts": card.experts or 0,
            "num_experts_per_tok": card.active_experts or 0,
            "shared_intermediate_size": inner,
        }
        if card.linear_value_heads is None or card.linear_head_dim is None:
            # Without blocks that keep a state; widths that fit each other are needed nevertheless.
            return settings | {"mamba_n_heads": 1, "mamba_n_groups": 1, "mamba_d_head": "auto", "mamba_d_state": 1}
        return settings | {"mamba_expand": card.linear_value_heads * card.linear_head_dim // card.hidden_size}
    if card.family in {"gpt_neo", "gptj"}:
        kinds = [[["global" if block.mixer == "attention" else "local"], 1] for block in blocks_of(card)]
        return {"attention_types": kinds} if card.family == "gpt_neo" else {"rotary_dim": card.head_dim // 4}
    if card.family != "gemma4_text":
        return {}
    return {
        "hidden_size_per_layer_input": card.per_layer_width or 0,
        "vocab_size_per_layer_input": card.vocabulary,
        "attention_k_eq_v": card.wide_key_value_heads is not None,
        "enable_moe_block": card.experts is not None,
        "num_kv_shared_layers": card.sharing_layers or 0,
        "use_double_wide_mlp": card.sharing_intermediate_size is not None,
        "final_logit_softcapping": 30.0,
        "global_head_dim": card.wide_head_dim,
        "num_global_key_value_heads": card.wide_key_value_heads,
        "intermediate_size": inner,
    }


def build_model(
    plan: Plan, card: ModelCard, weights_from: str | None, vocabulary: int | None, scratch: Path, device: Device, *, empty: bool = False
) -> Any:  # noqa: ANN401
    """Return the torch module in training mode, with adapters if the method has them.

    It is in host memory unless it is quantised or the device draws its weights. Frozen weights in fp8 are on the device.

    `vocabulary` is the size of a tokenizer that was trained here; None keeps the card's. `scratch` is a folder for random
    weights that are quantised. `empty` leaves all tensors without weights, on torch's `meta` device.
    """
    device.seed(plan.measurement.seed)
    prepare_transformers(plan)
    limit_sdpa(plan)
    with torch.device("meta") if empty else nullcontext():
        model = _load(plan, card, weights_from, vocabulary, scratch, device, empty=empty)
        if plan.model.weights is words.Weights.PRETRAINED or plan.quantisation is not None:
            refuse_another_architecture(model.config, card)
        model.config.use_cache = False
        store_in_fp8(plan, model, device.torch_name)
        fuse(plan, model)
        recompute(plan, model)
        if plan.lora is not None:
            model = add_adapters(plan, plan.lora, model)
        add_masks(plan, model)
    return model.train()


def _load(
    plan: Plan, card: ModelCard, weights_from: str | None, vocabulary: int | None, scratch: Path, device: Device, *, empty: bool
) -> Any:  # noqa: ANN401 - a torch module
    """Return the model as transformers builds it: with the weights of a folder or hub id, random ones, or none."""
    auto = transformers.AutoModelForCausalLM if plan.model.task is words.Task.CAUSAL_LM else transformers.AutoModelForSequenceClassification
    settings: dict[str, Any] = {"dtype": torch_dtype(plan.precision.parameters), "attn_implementation": plan.model.attention}
    labels = {"num_labels": plan.model.labels} if plan.model.labels else {}
    random = plan.model.weights is words.Weights.RANDOM
    if random or empty:
        if random:
            config = config_of(card, labels=plan.model.labels, vocabulary=vocabulary)
        else:
            config = transformers.AutoConfig.from_pretrained(weights_from, **labels)
        drawn = not empty and drawn_on_device(plan, card, device)
        if drawn and NEWEST_INITIALISERS and (plan.quantisation is not None or plan.model.frozen_weights == "fp8"):
            with torch.device("meta"):
                model = auto.from_config(config, **settings)
            if plan.quantisation is not None:
                return quantised_as_drawn(plan.quantisation, plan.precision, model, device.torch_name)
            store_in_fp8(plan, model, device.torch_name)
            draw(model, model, device.torch_name)
            return model
        with torch.device(device.torch_name) if drawn else nullcontext():
            model = auto.from_config(config, **settings)
        if empty or plan.quantisation is None:
            return model
        # transformers quantises while it loads weights, tensor by tensor, so random ones are saved first.
        model.save_pretrained(scratch)
        weights_from = str(scratch)
        del model
        device.release_cache()
    if plan.quantisation is not None:
        settings["quantization_config"] = four_bit(plan.quantisation, plan.precision.compute)
        settings["device_map"] = {"": device.torch_name}
    return auto.from_pretrained(weights_from, **settings, **labels)


def four_bit(quantisation: Quantisation, compute: words.Dtype) -> Any:  # noqa: ANN401 - a transformers class
    """Return the settings of transformers for four-bit weights."""
    return transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=quantisation.format,
        bnb_4bit_use_double_quant=quantisation.double,
        bnb_4bit_compute_dtype=torch_dtype(compute),
    )


def torch_dtype(dtype: words.Dtype) -> Any:  # noqa: ANN401 - a torch dtype
    """Return torch's number format; tf32 is stored as fp32."""
    return getattr(torch, TORCH_NAMES[dtype])


def refuse_another_architecture(config: Any, card: ModelCard) -> None:  # noqa: ANN401 - a transformers class
    """Raise ValueError when pretrained weights do not match the card: their numbers would be published under its name."""
    # Of several names for one field, a family has one, or the last is that of its experts.
    named = [(ours, getattr(config, name, None)) for name, ours in fields_of(card.family).items() if ours in FIXED_SHAPE]
    theirs = {name: value for name, value in named if value is not None}
    other = {name: value for name, value in theirs.items() if value != getattr(card, name)}
    if other:
        differences = ", ".join(f"{name} {value} instead of {getattr(card, name)}" for name, value in other.items())
        msg = f"the weights are not those of model card {card.key}: {differences}; name weights of this model, or another one with --set model=KEY"
        raise ValueError(msg)


def add_adapters(plan: Plan, lora: LoraSettings, model: Any) -> Any:  # noqa: ANN401 - a torch module
    """Return the model with low-rank adapters; its own weights are frozen."""
    if plan.model.gradient_checkpointing is not words.Checkpointing.NONE or plan.model.compile == "blocks":
        # Otherwise no gradient reaches the first adapter through checkpointed blocks, and the first block needs a graph of its own.
        model.enable_input_require_grads()
    task = "CAUSAL_LM" if plan.model.task is words.Task.CAUSAL_LM else "SEQ_CLS"
    adapted = peft.get_peft_model(model, peft.LoraConfig(**lora_keywords(lora, task)), autocast_adapter_dtype=False)
    for parameter in adapted.parameters():
        # With four-bit layers peft 0.17 creates adapters in fp32, whatever the model's format.
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch_dtype(plan.trained))
    for module in adapted.modules():
        # Autocast casts the small adapters to the format of the inputs; peft would copy the inputs to that of the adapters.
        if plan.autocast and isinstance(module, peft.tuners.lora.LoraLayer):
            module.cast_input_dtype_enabled = False
    return adapted


def lora_keywords(lora: LoraSettings, task: str = "CAUSAL_LM") -> dict[str, Any]:
    """Return the keywords of peft's `LoraConfig`."""
    names = {"r": lora.rank, "lora_alpha": lora.alpha, "lora_dropout": lora.dropout}
    return names | {"target_modules": list(lora.target_modules), "task_type": task}


def switch_to_evaluation(model: Any) -> None:  # noqa: ANN401 - a torch module
    """Turn dropout off, and leave four-bit layers as they are.

    On some CPUs bitsandbytes rearranges four-bit weights for inference, permanently, and then refuses sizes that training uses.
    """
    model.eval()
    for module in model.modules():
        if type(module).__module__.startswith("bitsandbytes."):
            module.training = True


# Gates, with the first micro-batch: a speed counts only when they pass

GATES = ("adapter_gradient", "packed_documents")
ZERO_AT_FIRST = ("lora_B", "lora_embedding_A")
"""The adapter matrices that peft initialises with zeros: the second one of a linear layer, the first one of an embedding."""


def check(plan: Plan, model: Any, device: Device, batch: MicroBatch) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - a torch module
    """Yield the gates of a plan as `submission.gates` holds them. The random number generators are left unchanged."""
    if plan.device.strategy in words.SHARDED_WEIGHTS:
        why = f"the model is sharded by {plan.device.strategy.value}; run the workload on one device for this check"
        yield from ({"name": name, "passed": None, "detail": why} for name in GATES)
        return
    model.to(device.torch_name)
    tensors = to_device(batch.tensors, device.torch_name)
    kind, cuda = torch.device(device.torch_name).type, device.torch_name.startswith("cuda")
    # As in training: some attention kernels take 16 bits only.
    precision = torch.autocast(kind, torch_dtype(plan.precision.compute)) if plan.autocast else nullcontext()
    with torch.random.fork_rng(devices=[device.torch_name] if cuda else []), precision:
        yield adapter_gradient(plan, model, tensors)
        yield packed_documents(plan, model, tensors)


def adapter_gradient(plan: Plan, model: Any, tensors: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - a torch module
    """Check that a backward pass reaches every trained weight, and every adapter with a nonzero gradient; return the gate."""
    model(**tensors).loss.backward()
    full = plan.method is words.Method.FULL
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    without = [name for name, parameter in trained if parameter.grad is None]
    # While one of an adapter's two matrices is zero, the other one has no gradient.
    relevant = [parameter for name, parameter in trained if full or any(zero in name for zero in ZERO_AT_FIRST)]
    reached = sum(parameter.grad is not None and bool(torch.count_nonzero(parameter.grad)) for parameter in relevant)
    model.zero_grad(set_to_none=True)
    enough = reached > 0 if full else reached == len(relevant)
    missing = f"; none exists for {without[0]}" if without else ""
    return {
        "name": "adapter_gradient",
        "passed": not without and enough and bool(relevant),
        "detail": f"a gradient reaches {reached} of {len(relevant)} {'weights' if full else 'adapters'}{missing}",
    }


def packed_documents(plan: Plan, model: Any, tensors: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - a torch module
    """Check that the logits of a row's second document do not change with the tokens of the first; return the gate."""
    gate = {"name": "packed_documents", "passed": None}
    if not plan.data.packing:
        return gate | {"detail": "documents are not packed"}
    if not plan.data.document_borders:
        return gate | {"detail": "packed documents attend to each other, as planned"}
    borders = (tensors["position_ids"][0] == 0).nonzero().flatten().tolist()
    if len(borders) < 2:  # noqa: PLR2004 - two documents are needed
        return gate | {"detail": "the first row holds one document only"}
    start, end = [*borders, tensors["position_ids"].shape[1]][1:3]
    training = model.training
    switch_to_evaluation(model)
    changed = tensors["input_ids"].clone()
    changed[0, :start] = (changed[0, :start] + 1) % int(model.get_input_embeddings().weight.shape[0])
    rest = {name: value for name, value in tensors.items() if name not in {"input_ids", "labels"}}
    with torch.no_grad():
        before, after = (model(input_ids=ids, **rest).logits[0, start:end].float() for ids in (tensors["input_ids"], changed))
    model.train(training)
    difference = float((before - after).abs().max() / before.std())
    return gate | {
        "passed": difference <= words.PACKING_NOISE[plan.precision.compute.value],
        "detail": f"another first document changes the logits of the second by {difference:.1e} of their spread",
    }


# Weights, gradients and states in bytes


BEFORE_TRAINING: dict[str, Any] = {
    "gradient_bytes": None,
    "gradient_bytes_reason": "the run ended before its first step was complete",
    "optimizer_state_bytes": None,
    "optimizer_state_bytes_reason": "the run ended before its optimizer states were measured, which is after the last step",
}


def model_facts(model: Any, optimizer: Any = None) -> dict[str, Any]:  # noqa: ANN401 - torch objects
    """Return the sizes of model and optimizer tensors in bytes, tied parameters once. Before training there is no optimizer."""
    by_dtype: Counter[str] = Counter()
    named = {id(layer.weight): "fp8" for layer in layers_in_fp8(model)}
    named |= (scales := {id(layer.weight_scales): words.FP8_SCALES for layer in layers_in_fp8(model)})
    for parameter in model.parameters():
        by_dtype[named.get(id(parameter)) or short(str(parameter.dtype))] += bytes_here(parameter)
        state = getattr(parameter, "quant_state", None)
        if state is not None:
            by_dtype[words.BLOCK_SCALES] += state.absmax.nbytes
        if state is not None and getattr(state, "nested", False):
            # Double quantisation: the scales are quantised too.
            by_dtype[words.SCALES_OF_BLOCK_SCALES] += state.state2.absmax.nbytes
            by_dtype[words.BLOCK_OFFSET] += state.offset.nbytes
    known = BEFORE_TRAINING
    if optimizer is not None:
        values = (value for state in optimizer.state.values() for value in state.values() if hasattr(value, "nbytes"))
        known = {"optimizer_state_bytes": sum(map(bytes_here, values)), "optimizer_state_bytes_reason": None}
    return {
        "parameters": sum(number_of_weights(parameter) for parameter in model.parameters() if id(parameter) not in scales),
        "trainable_parameters": sum(number_of_weights(parameter) for parameter in model.parameters() if parameter.requires_grad),
        "parameter_bytes": dict(by_dtype),
        "adapter_bytes": sum(bytes_here(parameter) for name, parameter in model.named_parameters() if "lora_" in name),
        **known,
    }


def gradients_of(model: Any) -> dict[str, Any]:  # noqa: ANN401 - a torch module
    """Return the bytes of all gradients that this process holds now, as `submission.model` has them."""
    held = sum(bytes_here(parameter.grad) for parameter in model.parameters() if parameter.grad is not None)
    return {"gradient_bytes": held or None, "gradient_bytes_reason": None if held else "no parameter holds a visible gradient"}


def local(tensor: Any) -> Any:  # noqa: ANN401 - a torch tensor
    """Return the part of a tensor that this process holds, sharing its memory."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def bytes_here(tensor: Any) -> int:  # noqa: ANN401 - a torch tensor
    """Return the bytes of a tensor that this process holds; for a sharded tensor, its own part."""
    own = int(local(tensor).nbytes)
    # ZeRO 3 keeps a process's part aside, and empties the parameter while it is not in use.
    part = getattr(tensor, "ds_tensor", None)
    return own if part is None else own + int(part.nbytes)


def number_of_weights(parameter: Any) -> int:  # noqa: ANN401 - a torch parameter
    """Return the number of weights of a whole parameter: unpacked for four-bit formats, unsharded for sharded ones."""
    state = getattr(parameter, "quant_state", None)
    # DeepSpeed stores the full size of a parameter that it has sharded.
    return int(state.shape.numel() if state is not None else getattr(parameter, "ds_numel", parameter.numel()))


# Random weights drawn on the device that trains, by its own generator: seconds where one thread of a CPU needs minutes.
# A sharded model is drawn block by block, by all processes from the same seed. Each keeps its shard, and nothing is sent.

DRAWN_ON_HOST = 200_000_000
"""Parameters of the largest model that is always drawn on the host, in two seconds: the smoke workloads have the same weights, and
so the same losses, on all devices."""
COMPLETE_INITIALISERS = 5
"""First major release of transformers whose initialisers also set buffers, such as the frequencies of rotary positions."""
NEWEST_INITIALISERS = int(transformers.__version__.split(".")[0]) >= COMPLETE_INITIALISERS


def drawn_on_device(plan: Plan, card: ModelCard, device: Device) -> bool:
    """Return True if a run draws its weights on the device. A seed then has other weights than on the host."""
    complete = NEWEST_INITIALISERS or plan.device.strategy is not words.Strategy.FSDP2
    # No device may hold the whole model that ZeRO 3 shards: DeepSpeed draws it, module by module.
    suited = complete and plan.device.strategy is not words.Strategy.ZERO3
    return plan.model.weights is words.Weights.RANDOM and device.draws_weights and _large(card) and suited


def loaded_sharded(plan: Plan, card: ModelCard) -> bool:
    """Return True if DeepSpeed shards each module while transformers builds the model, so that no process holds it whole."""
    return plan.device.strategy is words.Strategy.ZERO3 and (plan.model.weights is words.Weights.PRETRAINED or _large(card))


def _large(card: ModelCard) -> bool:
    return (card.parameters or 0) > DRAWN_ON_HOST


def draw(unit: Any, model: Any, device: str) -> None:  # noqa: ANN401 - torch modules
    """Give all tensors of a unit of a model, which has shapes only, values on a device; shards stay as they are.

    Modules are initialised as transformers does it, inner ones first, and adapters as peft does it. A layer in four bits or fp8 is
    quantised before the next one is drawn, so that the device never holds more than one of them in the model's format.
    """
    quantised = {id(module.weight) for module in unit.modules() if is_four_bit(module)}
    quantised |= {id(tensor) for layer in layers_in_fp8(unit) for tensor in (layer.weight, layer.weight_scales)}
    for tensor in chain(unit.parameters(), unit.buffers()):
        if not isinstance(tensor, DTensor) and id(tensor) not in quantised:
            put(tensor, torch.empty_like(tensor, device=device))
    owner = model.get_base_model() if isinstance(model, peft.PeftModel) else model
    with torch.no_grad():
        for module in reversed(list(unit.modules())):
            if any(isinstance(parameter, DTensor) for parameter in module.parameters()):
                continue
            if isinstance(module, peft.tuners.lora.LoraLayer):
                for adapter in module.active_adapters:
                    module.reset_lora_parameters(adapter, init_lora_weights=True)
            elif isinstance(module, FrozenFp8Linear):
                plain = skip_init(torch.nn.Linear, module.in_features, module.out_features, bias=False, device=device, dtype=torch.bfloat16)
                plain.bias = module.bias
                owner._init_weights(plain)  # noqa: SLF001
                module.store(plain.weight.detach())
            elif is_four_bit(module):
                empty = module.weight
                module.weight = torch.nn.Parameter(torch.empty(empty.shape, dtype=empty.dtype, device=device), requires_grad=False)
                owner._init_weights(module)  # noqa: SLF001
                # Moving it quantises it.
                module.weight = type(empty)(module.weight.data, requires_grad=False, **vars(empty)).to(device)
            else:
                owner._init_weights(module)  # noqa: SLF001 - the method that each model class of transformers overrides


def is_four_bit(module: Any) -> bool:  # noqa: ANN401 - a torch module
    """Return True for a layer of bitsandbytes with four-bit weights."""
    return type(module).__name__ == "Linear4bit"


def quantised_as_drawn(quantisation: Quantisation, precision: Precision, model: Any, device: str) -> Any:  # noqa: ANN401 - a torch module
    """Return a model that has shapes only with four-bit layers, as transformers makes them, and with random weights on a device.

    Nothing is saved: the disk would need room for the model in its own format, and the device too before it is quantised.
    """
    from transformers.quantizers import AutoHfQuantizer  # noqa: PLC0415 - imports the library of each format

    quantiser = AutoHfQuantizer.from_config(four_bit(quantisation, precision.compute), pre_quantized=False)
    default = torch.get_default_dtype()
    # New layers get this format, as the others have it.
    torch.set_default_dtype(torch_dtype(precision.parameters))
    try:
        quantiser.preprocess_model(model=model, device_map={"": device})
    finally:
        torch.set_default_dtype(default)
    draw(model, model, device)
    model.hf_quantizer, model.hf_device_map = quantiser, {"": device}
    quantiser.postprocess_model(model)
    return model


def put(tensor: Any, value: Any) -> None:  # noqa: ANN401 - torch tensors
    """Replace the content of a tensor. Tied layers share the object, and modules may hold it under a second name."""
    placed = torch.nn.Parameter(value, requires_grad=tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else value.detach()
    torch.utils.swap_tensors(tensor, placed)
