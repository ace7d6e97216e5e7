"""The logits and the loss: for large vocabularies the largest tensors of a step."""

from tunemark.schema.architecture import FAMILIES
from tunemark.schema.memory.ledger import MemoryLine
from tunemark.schema.training_shape import BYTES, TrainingShape
from tunemark.schema.vocabulary import Method

FP32 = 4


def head_line(shape: TrainingShape) -> MemoryLine:
    """Return the peak of logits, their copies and their gradients.

    - `plain`: three tensors in the format of the logits: log-probabilities, gradient of the picked ones, gradient of the logits.
    - `upcast`: the logits, and those three in fp32 (transformers' loss casts first).
    - `fused`: one chunk of logits at a time, after Liger Kernel: as many chunks as the vocabulary is wider than the model.

    Soft-capped logits (Gemma 2) keep one more.
    """
    card, size = shape.model, BYTES[shape.activations]
    if shape.labels or FAMILIES[card.family].encoder:
        return MemoryLine(
            "logits and loss", "activations", int(16 * shape.slots * (shape.labels or 1)), "negligible: a classifier", ("loss",)
        )
    width = card.vocabulary / shape.tensor_parallel
    if shape.loss == "fused":
        return _fused(shape, width, size)
    capped = 1 if card.family == "gemma2" else 0
    per_logit = size * (3 + capped) if shape.loss == "plain" else size * (1 + capped) + 3 * FP32
    copies = f"{3 + capped} x {size:g}" if shape.loss == "plain" else f"({1 + capped} x {size:g} + 3 x {FP32})"
    formula = f"{shape.slots:,} tokens x {width:,.0f} words x {copies} bytes"
    return MemoryLine("logits and loss", "activations", int(shape.slots * width * per_logit), formula, ("loss",))


def _fused(shape: TrainingShape, width: float, size: float) -> MemoryLine:
    chunks = -(-int(width) // shape.model.hidden_size)
    rows = 1 << (-(-shape.slots // chunks) - 1).bit_length()
    trained = FP32 * width * shape.model.hidden_size if shape.method is Method.FULL else 0
    chunk = rows * width * (size + FP32) + shape.slots * shape.model.hidden_size * size
    formula = f"{rows:,} rows x {width:,.0f} words x ({size:g} + {FP32}) bytes, gradients of the hidden states" + (
        " and of the head" if trained else ""
    )
    return MemoryLine("logits and loss", "activations", int(chunk + trained), formula, ("loss",))
