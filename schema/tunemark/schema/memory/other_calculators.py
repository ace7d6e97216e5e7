"""What other calculators say, to stand beside the estimate: their published rules, applied to a model card."""

from tunemark.schema.architecture import count_parameters
from tunemark.schema.cards import ModelCard
from tunemark.schema.training_shape import TrainingShape
from tunemark.schema.vocabulary import Method

GB = 10**9

SOURCE_004: dict[Method, tuple[float, float]] = {Method.FULL: (2, 20), Method.LORA: (2, 4), Method.QLORA: (0.5, 2)}
"""Method -> (bytes of precision, factor) of source 004: Memory (GB) = parameters x precision bytes x factor / 1e9."""


def source_004_bytes(model: ModelCard, method: Method) -> float:
    """Return what the formula of source 004 gives; it knows neither batch nor length."""
    size, factor = SOURCE_004[method]
    return count_parameters(model).total * size * factor


def accelerate_bytes(shape: TrainingShape) -> float | None:
    """Return what `accelerate estimate-memory` (1.15) prints under "Training using Adam" for bf16: 2 x the fp32 model.

    The command needs a repository on the hub; this is its rule (`estimate_training_usage`), applied to the card. It
    knows full fine-tuning only, neither batch nor length, and gives no training figure for 4-bit weights.
    """
    return None if shape.method is Method.QLORA else 2.0 * 4 * count_parameters(shape.model).total
