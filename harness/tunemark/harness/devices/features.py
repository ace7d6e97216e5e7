"""What a run may ask of a device family. A family names what it cannot do, with the reason; the rest it can."""

from enum import StrEnum


class Feature(StrEnum):
    """A capability, in the words of the support matrix."""

    FULL = "full fine-tuning"
    LORA = "LoRA"
    QLORA = "QLoRA"
    PACKING = "packed documents"
    FULL_CHECKPOINTING = "full checkpointing"
    SELECTIVE_CHECKPOINTING = "selective checkpointing"
    FLASH_ATTENTION = "flash attention"
    FLASH_ATTENTION_3 = "FlashAttention 3"
    FLEX_ATTENTION = "flex attention"
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


HOPPER_ONLY = "its kernels are for NVIDIA's Hopper GPUs; use attention=sdpa"
"""Why no other device has FlashAttention 3."""
