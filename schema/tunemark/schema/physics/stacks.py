"""Software stacks: what training code decides about memory without being asked, such as the format of trained weights and of the residual stream.

A new stack is one row of `STACKS`, with the code that it was read in.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from tunemark.schema.physics.memory_states import SHARDED
from tunemark.schema.physics.training_shape import TrainingShape
from tunemark.schema.vocabulary import Checkpointing, Dtype, Method, SoftwareLevel

FORMATS = frozenset({"parameters", "activations", "autocast"})
"""Fields that belong together: if one of them is given, a stack changes none."""
AUTOCAST = {"parameters": Dtype.FP32, "activations": Dtype.FP32, "autocast": Dtype.BF16}
"""Weights and residual stream in fp32, matrix products in bf16."""
FP32_SHARDS = {"parameters": Dtype.FP32}
"""Weights in fp32, gathered in bf16."""
MASTER = {"master_weights": True}


@dataclass(frozen=True, slots=True)
class Stack:
    """Fields of `TrainingShape` that a training code sets, for steps with 16-bit weights."""

    name: str
    because: str
    """What it does, and where its code says so."""
    always: dict[str, Any] = field(default_factory=dict)
    full: dict[str, Any] = field(default_factory=dict)
    """Full fine-tuning with whole weights on each device."""
    full_sharded: dict[str, Any] = field(default_factory=dict)
    """Full fine-tuning with FSDP."""
    full_zero: dict[str, Any] = field(default_factory=dict)
    """Full fine-tuning with DeepSpeed's ZeRO."""
    adapters: dict[str, Any] = field(default_factory=dict)
    """LoRA and QLoRA."""
    qlora: dict[str, Any] = field(default_factory=dict)
    """QLoRA with whole weights on each device."""

    def fields_for(self, shape: TrainingShape) -> dict[str, Any]:
        """Return the fields that it sets for a step."""
        if shape.method is Method.FULL:
            zero, sharded = shape.sharding.startswith("zero"), "parameters" in SHARDED[shape.sharding]
            return self.always | (self.full_zero if zero else self.full_sharded if sharded else self.full)
        whole = shape.method is Method.QLORA and "parameters" not in SHARDED[shape.sharding]
        offloads = self.adapters.get("activation_offload") and shape.checkpointing is not Checkpointing.FULL
        return self.always | self.adapters | (self.qlora if whole else {}) | ({"activation_offload": False} if offloads else {})


ACCELERATE = "accelerate 1.15 (accelerator.py, utils/fsdp_utils.py) keeps shards that are trained in fp32"
KBIT = "peft 0.21 (prepare_model_for_kbit_training in utils/other.py) casts to fp32 what is not quantised"
_ALL = (
    Stack(
        "hf",
        f"transformers' Trainer in mixed precision: trained weights in fp32, products in bf16, logits in fp32. {ACCELERATE}. {KBIT}. Before "
        "version 5, transformers checkpointed re-entrantly by default",
        always={"reentrant": True},
        full=AUTOCAST,
        full_sharded=FP32_SHARDS,
        full_zero=MASTER,
        qlora=AUTOCAST,
    ),
    Stack(
        "hf-pure-bf16",
        f"transformers with weights loaded in bf16, which is the default from version 5, and without fp32 copies of trained weights. {KBIT}",
        always={"reentrant": True},
        full_zero=MASTER,
        qlora=AUTOCAST,
    ),
    Stack(
        "fms",
        "fms-acceleration (source 010): frozen weights and norms of QLoRA stay in bf16; shards of full fine-tuning as in accelerate",
        always={"reentrant": True},
        full_sharded=FP32_SHARDS,
        full_zero=MASTER,
    ),
    Stack(
        "torchtune",
        "torchtune bd2a0fc (recipes/configs/llama3_1): bf16 throughout, fused AdamW, and a loss that never holds all logits",
        always={"loss": "chunked", "optimizer": "adamw-fused"},
        adapters={"adapters": Dtype.BF16},
    ),
    Stack(
        "axolotl",
        "axolotl 067b021 (loaders/model.py): loads weights in bf16 and converts norms and embeddings to it; checkpoints without re-entry. "
        "Shards as in accelerate",
        full_sharded=FP32_SHARDS,
        full_zero=MASTER,
    ),
    Stack(
        "llama-factory",
        "LLaMA-Factory (_setup_full_tuning in model/adapter.py): casts trained weights to fp32 unless pure_bf16 is set; quantised models keep "
        "norms in bf16; checkpoints re-entrantly",
        always={"reentrant": True},
        full=AUTOCAST,
        full_sharded=FP32_SHARDS,
        full_zero=MASTER,
    ),
    Stack(
        "unsloth",
        "Unsloth 015bdef (models/_utils.py): checkpointed inputs wait in host memory, and the loss never holds all logits",
        always={"loss": "chunked"},
        adapters={"activation_offload": True},
    ),
    Stack(
        "prime-rl",
        "prime-rl 559b447 (src/prime_rl/trainer/model.py): FSDP 2 with all weights in fp32, frozen ones included, gathered in bf16",
        always=FP32_SHARDS,
    ),
    Stack(
        "megatron",
        "Megatron-LM and NeMo: bf16 weights with fp32 master weights and states, sharded over the replicas; a fused loss",
        always={"loss": "fused"},
        full=MASTER,
        full_sharded=MASTER,
        full_zero=MASTER,
    ),
)
STACKS = {stack.name: stack for stack in _ALL}
USUAL_STACK: dict[SoftwareLevel, str] = {"plain": "hf", "tuned": "hf", "vendor": "megatron"}
"""The stack that most people run, by level of software."""


def on_stack(shape: TrainingShape, stack: str, fixed: tuple[str, ...] = ()) -> TrainingShape:
    """Return a step as a stack runs it; `fixed` are fields that keep their value. Steps without bf16 weights keep their formats."""
    keeps_formats = shape.parameters is not Dtype.BF16 or any(name in FORMATS for name in fixed)
    fields = {name: value for name, value in STACKS[stack].fields_for(shape).items() if name not in fixed}
    if keeps_formats:
        fields = {name: value for name, value in fields.items() if name not in FORMATS}
    if shape.optimizer != "adamw":
        fields = {name: value for name, value in fields.items() if name != "optimizer"}
    return replace(shape, **fields)
