"""Software stacks: what training code decides about memory without being asked, such as the format of trained weights and of the residual stream.

A new stack is one row of `STACKS`, with the code that it was read in.
"""

from dataclasses import dataclass, replace
from typing import Any

from tunemark.schema.physics.memory_states import SHARDED
from tunemark.schema.physics.training_shape import TrainingShape
from tunemark.schema.vocabulary import PURE_BF16, Checkpointing, Dtype, Method, SoftwareLevel

Fields = dict[str, Any]
FORMATS = ("parameters", "activations", "autocast")
"""Fields that belong together: if one of them is given, a stack changes none."""
AUTOCAST: Fields = {"parameters": Dtype.FP32, "activations": Dtype.FP32, "autocast": Dtype.BF16}
"""Weights and residual stream in fp32, matrix products in bf16."""
BF16_PRODUCTS: Fields = {"autocast": Dtype.BF16}
"""Products in bf16 under autocast, with weights in bf16: the Trainer's `bf16`. Adapters are in fp32, and multiply in bf16."""
FP32_SHARDS: Fields = {"parameters": Dtype.FP32}
"""Weights in fp32, gathered in bf16."""
NO_SYNC: Fields = {"defers_reduction": True}
"""As transformers' Trainer accumulates gradients (`sync_context` in trainer.py of 5.23), in each stack that is built on it."""
MASTER: Fields = {"master_weights": True}
FUSED: Fields = {"fused_experts": True}
"""Experts as transformers 5 has them. Unsloth (unsloth-zoo 527) and axolotl (its pull request 3439) quantise them in QLoRA."""
TRAINER = {
    "adapters whole": BF16_PRODUCTS,
    "qlora whole": AUTOCAST,
    "full whole": AUTOCAST,
    "full fsdp": FP32_SHARDS | NO_SYNC,
    "full zero": MASTER,
}
"""Of transformers' Trainer in mixed precision, whatever its version."""
GPUS = ("NVIDIA", "AMD")


@dataclass(frozen=True, slots=True)
class Stack:
    """Fields of `TrainingShape` that a training code sets, for steps with 16-bit weights."""

    name: str
    because: str
    """What it does, and where its code says so."""
    fields: dict[str, Fields]
    """Words of a step (method or `adapters`; `whole`, `fsdp` or `zero`) -> fields that it sets for steps with all of them."""
    vendors: tuple[str, ...] = ()
    """Vendors on whose devices people run it; empty for any."""
    without: tuple[str, ...] = ()
    """Methods, shardings and formats that it does not have, in the words of `fields`, and `fp16`."""
    checkpoints: bool = False
    """True if it recomputes the blocks by default."""
    families: tuple[str, ...] = ()
    """Families of models that it has of its own; empty if it takes those of transformers, or most of them."""
    any_dense: bool = False
    """True if these are families of mixtures, and it takes any model without experts."""

    def runs_on(self, vendor: str) -> bool:
        """Return True if people run it on the devices of a vendor."""
        return not self.vendors or vendor in self.vendors

    def runs(self, shape: TrainingShape, vendor: str) -> bool:
        """Return True if it runs a step on the devices of a vendor."""
        words = {shape.method.value, "fsdp" if "parameters" in SHARDED[shape.sharding] else "whole"}
        words |= {str(shape.parameters), str(shape.autocast)}
        known = not self.families or shape.model.family in self.families or (self.any_dense and not shape.model.experts)
        return known and self.runs_on(vendor) and not words & set(self.without)

    def fields_for(self, shape: TrainingShape) -> Fields:
        """Return the fields that it sets for a step. Adapters under ZeRO 1 and 2 have whole weights; those on int8 are prepared as in QLoRA."""
        zero, sharded = shape.sharding.startswith("zero"), "parameters" in SHARDED[shape.sharding]
        trained = shape.method is Method.FULL
        kind = "zero" if zero and (trained or sharded) else "fsdp" if sharded else "whole"
        words = ["", "full" if trained else "adapters", "qlora" if shape.block_format is Dtype.INT8 else shape.method.value, kind]
        found = {
            name: value
            for key, fields in self.fields.items()
            if all(word in words for word in key.split(" "))
            for name, value in fields.items()
        }
        offloads = found.get("activation_offload") and shape.checkpointing is not Checkpointing.FULL
        return found | ({"activation_offload": False} if offloads else {})


ACCELERATE = "accelerate 1.15 (accelerator.py, utils/fsdp_utils.py) keeps shards that are trained in fp32"
KBIT = "peft 0.21 (prepare_model_for_kbit_training in utils/other.py) casts to fp32 what is not quantised"
_ALL = (
    Stack(
        "hf",
        f"transformers' Trainer in mixed precision: trained weights in fp32, products in bf16, logits in fp32. {ACCELERATE}. {KBIT}. Before "
        "version 5, transformers checkpointed re-entrantly by default",
        TRAINER | {"": {"reentrant": True} | FUSED},
    ),
    Stack(
        PURE_BF16,
        f"transformers with weights loaded in bf16, which is the default from version 5, and without fp32 copies of trained weights. {KBIT}",
        {"": {"reentrant": True} | FUSED | NO_SYNC, "full zero": MASTER, "adapters whole": BF16_PRODUCTS, "qlora whole": AUTOCAST},
    ),
    Stack(
        "transformers-4",
        "the Trainer with transformers 4 (models/*/modeling_*.py): experts are matrices of their own, which bitsandbytes quantises; otherwise as hf",
        TRAINER | {"": {"reentrant": True}},
        families=("mixtral", "qwen3_moe", "qwen3_next", "deepseek_v2", "deepseek_v3", "glm4_moe", "minimax_m2"),
        any_dense=True,
    ),
    Stack(
        "peft",
        f"a loop written on transformers and peft, without autocast: LoRA in the format of its weights. {KBIT}, and everything after it is in fp32",
        {"": {"reentrant": True} | FUSED, "qlora whole": {"parameters": Dtype.FP32, "activations": Dtype.FP32}},
        without=("full",),
    ),
    Stack(
        "hf-liger",
        "the Trainer with use_liger_kernel: a loss that never holds all logits, and kernels that keep inputs of norms in 16 bits and gate and up alone "
        "(Liger Kernel 0.8.5, ops/rms_norm.py, ops/swiglu.py and ops/rope.py); otherwise as hf",
        TRAINER | {"": {"reentrant": True, "loss": "fused", "fused_blocks": True} | FUSED},
        vendors=GPUS,
    ),
    Stack(
        "trl",
        "TRL f2cd577 (create_model_from_path in trainer/utils.py, trainer/sft_trainer.py): loads weights in fp32, frozen ones included, unless a "
        "dtype is given, with products in bf16; a loss that never holds all logits; adapters of quantised models in bf16",
        {
            "": {"loss": "fused"} | FUSED,
            "whole": AUTOCAST,
            "fsdp": FP32_SHARDS | NO_SYNC,
            "full zero": MASTER,
            "qlora": {"adapters": Dtype.BF16},
        },
        checkpoints=True,
    ),
    Stack(
        "fms",
        "fms-acceleration (source 010): frozen weights and norms of QLoRA stay in bf16; shards of full fine-tuning as in accelerate",
        {"": {"reentrant": True}, "full fsdp": FP32_SHARDS | NO_SYNC, "full zero": MASTER, "adapters whole": BF16_PRODUCTS, "qlora": FUSED},
        vendors=GPUS,
    ),
    Stack(
        "torchtune",
        "torchtune bd2a0fc (recipes/configs/llama3_1, models): bf16 throughout, fused AdamW, and a loss that never holds all logits",
        {"": {"loss": "chunked", "optimizer": "adamw-fused"}, "adapters": {"adapters": Dtype.BF16}},
        vendors=GPUS,
        without=("fp16",),
        families=("llama", "mistral", "gemma", "gemma2", "qwen2", "qwen3", "phi3", "llama4_text"),
    ),
    Stack(
        "axolotl",
        "axolotl 067b021 (loaders/model.py): loads weights in bf16 and converts norms and embeddings to it; checkpoints without re-entry. "
        "Shards as in accelerate",
        {"full fsdp": FP32_SHARDS | NO_SYNC, "full zero": MASTER, "adapters whole": BF16_PRODUCTS, "lora": FUSED, "full": FUSED},
        vendors=GPUS,
    ),
    Stack(
        "llama-factory",
        "LLaMA-Factory (_setup_full_tuning in model/adapter.py): casts trained weights to fp32 unless pure_bf16 is set; quantised models keep "
        "norms in bf16; checkpoints re-entrantly",
        {"": {"reentrant": True} | FUSED, "full whole": AUTOCAST, "full fsdp": FP32_SHARDS | NO_SYNC, "full zero": MASTER}
        | {"adapters whole": BF16_PRODUCTS},
        vendors=GPUS,
        checkpoints=True,
    ),
    Stack(
        "unsloth",
        "Unsloth 015bdef (models/_utils.py, models/rl.py): checkpointed inputs wait in host memory, the loss never holds all logits, kernels of "
        "blocks keep what products give and read, without copies for adapters (kernels/fast_lora.py), the default optimizer has 8 bits, and FlexAttention computes sinks and soft "
        "caps (unsloth.ai/blog/gpt-oss-context)",
        {"": {"loss": "fused", "attention": "sdpa", "optimizer": "adamw-8bit", "compiled": True}}
        | {"adapters": {"activation_offload": True, "adapters": Dtype.BF16}},
        vendors=GPUS,
        without=("fsdp",),
        checkpoints=True,
    ),
    Stack(
        "prime-rl",
        "prime-rl 559b447 (src/prime_rl/trainer/model.py): FSDP 2 with all weights in fp32, frozen ones included, gathered in bf16",
        {"": FP32_SHARDS | {"grouped_experts": True}},
        vendors=GPUS,
        without=("qlora",),
    ),
    Stack(
        "torchtitan",
        "torchtitan b5bcd76 (config/configs.py, components/loss.py, components/optimizer): weights in fp32, gathered in bf16, fused AdamW, and a "
        "loss that never holds all logits; FlexAttention for sinks. Selective checkpointing keeps every second matrix product",
        {"": FP32_SHARDS | {"loss": "fused", "optimizer": "adamw-fused", "kept_products": 0.5, "attention": "sdpa"}},
        vendors=GPUS,
        without=("lora", "qlora"),
    ),
    Stack(
        "megatron",
        "Megatron-LM and NeMo: bf16 weights with fp32 master weights and states, sharded over the replicas; a fused loss and fused attention",
        {"": {"loss": "fused", "attention": "sdpa"}, "full": MASTER},
        vendors=GPUS,
        without=("qlora",),
    ),
)
STACKS = {stack.name: stack for stack in _ALL}
USUAL_STACK: dict[SoftwareLevel, str] = {"plain": "hf", "tuned": "hf", "vendor": "megatron"}
"""The stack that most people run, by level of software."""


def on_stack(shape: TrainingShape, stack: str, fixed: tuple[str, ...] = ()) -> TrainingShape:
    """Return a step as a stack runs it; `fixed` are fields that keep their value. Steps without 16-bit weights keep their formats."""
    sixteen = shape.parameters in {Dtype.BF16, Dtype.FP16}
    formats = FORMATS if not sixteen or any(name in FORMATS for name in fixed) else ()
    kept = {*fixed, *formats, *(() if shape.optimizer == "adamw" else ("optimizer",))}
    fields: Fields = {name: value for name, value in STACKS[stack].fields_for(shape).items() if name not in kept}
    if shape.parameters is Dtype.FP16:
        # On devices without bf16, fp16 has its place.
        fields = {name: Dtype.FP16 if value is Dtype.BF16 else value for name, value in fields.items()}
    return replace(shape, **fields)
