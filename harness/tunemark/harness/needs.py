"""Packages that features need, by device family: the same feature is another package's work on another family."""

from tunemark.harness.devices.features import Feature
from tunemark.schema.vocabulary import Backend

Need = tuple[str, str]
"""A package as it is installed, and how to get it."""

BITSANDBYTES: Need = ("bitsandbytes", "pip install 'tunemark[qlora]'")
OF_TORCH: dict[Feature, Need] = {
    Feature.QLORA: BITSANDBYTES,
    Feature.EIGHT_BIT_OPTIMIZER: BITSANDBYTES,
    Feature.ZERO: ("deepspeed", "pip install 'tunemark[distributed]'"),
    Feature.LIGER: ("liger-kernel", "pip install liger-kernel"),
    Feature.FLASH_ATTENTION: ("flash-attn", "pip install flash-attn --no-build-isolation, or use attention=sdpa"),
    # Transformers looks for its module flash_attn_interface and for this very distribution. Without it transformers may fetch
    # a kernel from the hub, at run time and another one than was planned for.
    Feature.FLASH_ATTENTION_3: (
        "flash-attn-3",
        "build it in the folder hopper of github.com/Dao-AILab/flash-attention, or use attention=flash_attention_2 or sdpa",
    ),
}
"""Families that our own loop trains on."""
OPTIMUM_NEURON: Need = ("optimum-neuron", "pip install 'optimum-neuron[training]==0.4.5' on the Neuron stack")
OF_NEURON_TRAINER: dict[Feature, Need] = dict.fromkeys(
    (
        Feature.FULL,
        Feature.LORA,
        # NKI's kernel and the sharing of states and layers are parts of it.
        Feature.FLASH_ATTENTION,
        Feature.ZERO,
        Feature.TENSOR_PARALLEL,
        Feature.PIPELINE_PARALLEL,
    ),
    OPTIMUM_NEURON,
)
"""Causal language models on Neuron devices."""
TORCH_XLA: Need = ("torch-xla", "install torch-neuronx of the Neuron SDK, as the README says")
OF_NEURON_LOOP: dict[Feature, Need] = dict.fromkeys((Feature.FULL, Feature.LORA), TORCH_XLA)
"""Classifiers on Neuron devices."""

NEEDS: dict[Backend, dict[Feature, Need]] = {backend: OF_NEURON_TRAINER if backend is Backend.NEURON else OF_TORCH for backend in Backend}
"""What each family needs for causal language models; what else a classifier needs on Neuron devices is in neuron_rules.py."""
