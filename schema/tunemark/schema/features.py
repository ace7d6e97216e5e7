"""Capabilities, by which device families differ, and which of them a plan uses. The harness and the gate share both."""

from collections.abc import Callable
from enum import StrEnum

from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import VARLEN, Checkpointing, Dtype, Method, Strategy


class Feature(StrEnum):
    """A capability, as the support matrix names it. A family lists what it cannot do; it supports the rest."""

    FULL = "full fine-tuning"
    LORA = "LoRA"
    QLORA = "QLoRA"
    FP8_FROZEN = "frozen weights in fp8"
    FP8_TRAINING = "training in fp8"
    PACKING = "packed documents"
    FULL_CHECKPOINTING = "full checkpointing"
    SELECTIVE_CHECKPOINTING = "selective checkpointing"
    FLASH_ATTENTION = "flash attention"
    FLASH_ATTENTION_3 = "FlashAttention 3"
    FLEX_ATTENTION = "flex attention"
    VARLEN_ATTENTION = "variable-length attention"
    CUDNN_ATTENTION = "cuDNN attention"
    CUDA_GRAPHS = "CUDA graphs"
    LIGER = "Liger fused kernels"
    COMPILE = "torch.compile"
    EIGHT_BIT_OPTIMIZER = "8-bit optimizer states"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    DDP = "DDP"
    FSDP2 = "FSDP2"
    ZERO = "DeepSpeed ZeRO"
    OFFLOAD = "offload to host memory"
    TENSOR_PARALLEL = "tensor parallel"
    PIPELINE_PARALLEL = "pipeline parallel"
    PEAK_MEMORY = "peak memory of the allocator"
    UTILISATION = "device utilisation"
    ENERGY = "energy counter"


USED: dict[Feature, Callable[[Plan], bool]] = {
    Feature.FULL: lambda plan: plan.method is Method.FULL,
    Feature.LORA: lambda plan: plan.method is Method.LORA,
    Feature.QLORA: lambda plan: plan.method is Method.QLORA,
    Feature.FP8_FROZEN: lambda plan: plan.model.frozen_weights == "fp8",
    Feature.FP8_TRAINING: lambda plan: plan.model.fp8_training != "none",
    Feature.PACKING: lambda plan: plan.data.packing and plan.data.document_borders,
    Feature.FULL_CHECKPOINTING: lambda plan: plan.model.gradient_checkpointing is Checkpointing.FULL,
    Feature.SELECTIVE_CHECKPOINTING: lambda plan: plan.model.gradient_checkpointing is Checkpointing.SELECTIVE,
    Feature.FLASH_ATTENTION: lambda plan: plan.model.attention == "flash_attention_2",
    Feature.FLASH_ATTENTION_3: lambda plan: plan.model.attention == "flash_attention_3",
    Feature.FLEX_ATTENTION: lambda plan: plan.model.attention == "flex_attention",
    Feature.VARLEN_ATTENTION: lambda plan: plan.model.attention == VARLEN,
    Feature.CUDNN_ATTENTION: lambda plan: plan.model.sdpa_kernel == "cudnn",
    Feature.CUDA_GRAPHS: lambda plan: plan.model.compile_mode == "reduce-overhead",
    Feature.LIGER: lambda plan: plan.model.fused_kernels == "liger",
    Feature.COMPILE: lambda plan: plan.model.compile != "none",
    Feature.EIGHT_BIT_OPTIMIZER: lambda plan: plan.optimizer.name.endswith("8bit"),
    Feature.TF32: lambda plan: plan.precision.compute is Dtype.TF32,
    Feature.BF16: lambda plan: plan.precision.compute is Dtype.BF16,
    Feature.FP16: lambda plan: plan.precision.compute is Dtype.FP16,
    Feature.DDP: lambda plan: plan.device.strategy is Strategy.DDP,
    Feature.FSDP2: lambda plan: plan.device.strategy is Strategy.FSDP2,
    Feature.ZERO: lambda plan: plan.device.strategy.value.startswith("zero"),
    Feature.OFFLOAD: lambda plan: plan.device.offload != "none",
    Feature.TENSOR_PARALLEL: lambda plan: plan.device.tensor_parallel > 1,
    Feature.PIPELINE_PARALLEL: lambda plan: plan.device.pipeline_parallel > 1,
}
"""Feature -> True if a plan uses it."""
