"""Public calculators and rules of thumb for memory and speed, compared with the same published results as our own models.

Each rule is written as its source states it. If the source is ambiguous, the reading that fits the results best is used. A rule
gives None where it does not apply.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tunemark.collector.predict.cross_validation import HeldOut
from tunemark.collector.store.database import Row
from tunemark.schema.physics.architecture import block_linears, count_parameters
from tunemark.schema.physics.memory_states import divided
from tunemark.schema.physics.training_shape import TrainingShape
from tunemark.schema.throughput import Combination
from tunemark.schema.vocabulary import Checkpointing, Method

TERA = 1e12
OURS = "Tunemark"
SIXTEEN_BYTES = "Rajbhandari et al. 2020, ZeRO, section 3.1, https://arxiv.org/abs/1910.02054"
TRANSFORMER_MATH = "https://blog.eleuther.ai/transformer-math/"
NARAYANAN = "Narayanan et al. 2021, section 5, https://arxiv.org/abs/2104.04473"
NINETY_PERCENT = "https://aitecknews.com/en/articles/2026-07-04-why-lora-achieves-90-compute-savings-without-sacrificing-tas"


class Rule(NamedTuple):
    """A rule as its source states it."""

    name: str
    formula: str
    """In words, for readers."""
    source: str
    """Where it is published."""
    figure: Callable[[TrainingShape], float | None]
    """Bytes of one device, or FLOPs of a token."""
    peak_share: float = 1.0
    """For speed: the share of the dense peak that a device reaches."""


def _parameters(shape: TrainingShape) -> int:
    return count_parameters(shape.model).total


def _by_method(shape: TrainingShape, full: float, lora: float, qlora: float) -> float:
    return {Method.FULL: full, Method.LORA: lora, Method.QLORA: qlora}[shape.method]


def _accelerate(shape: TrainingShape) -> float | None:
    """Return 2 x the fp32 model, as the command prints under "Training using Adam" for bf16; it has no training figure for 4 bits."""
    return None if shape.method is Method.QLORA else 2.0 * 4 * _parameters(shape)


def _sixteen_bytes(shape: TrainingShape) -> float:
    """Return 16 bytes per trained parameter, divided over sharding devices, and 2 or 0.5 bytes per frozen one."""
    trained = shape.adapter_weights if shape.method is not Method.FULL else _parameters(shape)
    return (16 * trained + _by_method(shape, 0.0, 2.0, 0.5) * _parameters(shape)) / divided(shape, "parameters")


def _deepspeed(shape: TrainingShape) -> float | None:
    """Return the model states by the estimators for ZeRO-2 (one device) and ZeRO-3 (several) without offload; full fine-tuning only."""
    if shape.method is not Method.FULL or shape.offload:
        return None
    total = _parameters(shape)
    if shape.world_size == 1:
        return 2.0 * total + 18 * total
    largest = max(count_parameters(shape.model).embedding, sum(linear.weights for linear in block_linears(shape.model)))
    return 4.0 * largest + 18 * total / shape.world_size


def _transformer_math(shape: TrainingShape) -> float | None:
    """Return weights, gradients, AdamW's states and activations in 16-bit mixed precision; full fine-tuning only."""
    if shape.method is not Method.FULL:
        return None
    model, width, share = shape.model, shape.model.hidden_size, divided(shape, "parameters")
    recomputed = 2.0 * shape.slots * width * model.layers
    kept = shape.slots * width * model.layers * (34 + 5 * model.attention_heads * shape.sequence_length / width)
    return (2 + 2 + 12) * _parameters(shape) / share + (kept if shape.checkpointing is Checkpointing.NONE else recomputed)


MEMORY_RULES = (
    Rule(
        "formula of document 004",
        "parameters x bytes x 20 (full), 4 (LoRA) or 2 (QLoRA)",
        "document 004",
        lambda shape: _parameters(shape) * _by_method(shape, 2 * 20, 2 * 4, 0.5 * 2),
    ),
    Rule("accelerate estimate-memory", "2 x the model in fp32", "accelerate 1.15, commands/estimate.py", _accelerate),
    Rule(
        "LLaMA-Factory's table",
        "GB per billion parameters: 8 or 18 (full), 2 (LoRA), 0.5 (QLoRA)",
        "https://github.com/hiyouga/LLaMA-Factory, README, Hardware Requirement",
        lambda shape: _parameters(shape) * _by_method(shape, 18 if shape.master_weights else 8, 2, 0.5),
    ),
    Rule("16 bytes per trained parameter", "16 x trained + 2 (or 0.5) x frozen, over the devices", SIXTEEN_BYTES, _sixteen_bytes),
    Rule("DeepSpeed's estimators", "ZeRO-2: 2 N + 18 N; ZeRO-3: 4 x largest layer + 18 N / devices", "deepspeed, runtime/zero", _deepspeed),
    Rule(
        "Transformer Math 101",
        "16 N, and activations of s b h L (34 + 5 a s / h) or 2 s b h L",
        f"{TRANSFORMER_MATH} (Korthikanti et al. 2022 for activations)",
        _transformer_math,
    ),
)


def _active(full: float, lora: float | None = None) -> Callable[[TrainingShape], float | None]:
    """Return a function of multiples of the active parameters; an adapter may have its own, and without one for full it does not apply."""

    def flop_per_token(shape: TrainingShape) -> float | None:
        count = count_parameters(shape.model)
        multiple = full if lora is None or shape.method is Method.FULL else lora
        return multiple * (count.total - count.feed_forward + count.active_feed_forward) or None

    return flop_per_token


SPEED_RULES = (
    Rule("6 N D at 35% of the peak", "6 N FLOPs per token", TRANSFORMER_MATH, _active(6.0), 0.35),
    Rule("6 N D at 45% of the peak", "6 N FLOPs per token", TRANSFORMER_MATH, _active(6.0), 0.45),
    Rule("8 N D at 48% of the peak", "8 N FLOPs per token with recomputation, 140 to 163 TFLOP/s on A100", NARAYANAN, _active(8.0), 0.48),
    Rule(
        "4 N D for adapters at 40% of the peak",
        "4 N FLOPs per token without weight gradients, 6 N for full fine-tuning",
        "follows from Hu et al. 2021, https://arxiv.org/abs/2106.09685",
        _active(6.0, lora=4.0),
        0.40,
    ),
    Rule(
        "LoRA saves 90% of the compute",
        "0.6 N FLOPs per token at 40% of the peak; LoRA and QLoRA only",
        NINETY_PERCENT,
        _active(0.0, lora=0.6),
        0.40,
    ),
)


def rule_rows(memory: Iterable[tuple[Row, TrainingShape]], held_out: Iterable[HeldOut]) -> Iterator[Row]:
    """Yield the rows of `rule_errors`: each rule and our own model on each result.

    `memory` are rows of `memory_errors` with their shapes; `held_out` are predictions with the source of the result left out.
    """
    for row, shape in memory:
        about = {"kind": "memory", "result_id": row["result_id"], "quantity": row["quantity"], "method": row["method"]}
        ours = Rule(OURS, "tunemark estimate", "guide/definitions", lambda _: None)
        predicted = [(ours, float(row["predicted_bytes"])), *((rule, rule.figure(shape)) for rule in MEMORY_RULES)]
        yield from _rows(about, row["published_bytes"], predicted)
    for held in held_out:
        if held.tokens_per_s is None:
            continue
        config = held.row.config
        about = {"kind": "speed", "result_id": held.row.id, "quantity": "tokens/s", "method": config.shape.method.value}
        ours = Rule(OURS, "its source left out", "guide/predictions", lambda _: None)
        predicted = [(ours, held.tokens_per_s.value), *((rule, _rate(rule, config)) for rule in SPEED_RULES)]
        yield from _rows(about, held.measured, predicted)


def _rate(rule: Rule, config: Combination) -> float | None:
    """Return the tokens/s of all devices by a rule, or None if it does not apply."""
    peak = config.accelerator.peak_tflops.get(config.shape.autocast or config.shape.activations)
    flop = rule.figure(config.shape)
    return None if flop is None or peak is None else rule.peak_share * peak * TERA * config.devices / flop


def _rows(about: Row, published: float, rules: Iterable[tuple[Rule, float | None]]) -> Iterator[Row]:
    for rule, predicted in rules:
        if predicted is not None:
            figures = {"predicted": predicted, "published": published, "error": predicted / published - 1}
            yield about | {"rule": rule.name, "formula": rule.formula, "source": rule.source} | figures
