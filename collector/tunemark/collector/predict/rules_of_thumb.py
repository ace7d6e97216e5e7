"""Public calculators and rules of thumb for memory and speed, compared with the same published results as our own models.

Each rule is written as its source states it. If the source is ambiguous, the reading that fits the results best is used. A rule
gives None where it does not apply.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tunemark.collector.predict.cross_validation import HeldOut
from tunemark.collector.predict.fit import Combination
from tunemark.collector.store.database import Row
from tunemark.schema.physics.architecture import block_linears, count_parameters
from tunemark.schema.physics.memory_states import divided
from tunemark.schema.physics.training_shape import TrainingShape
from tunemark.schema.vocabulary import Checkpointing, Method

BILLION, TERA = 1e9, 1e12
OURS = "Tunemark"


@dataclass(frozen=True, slots=True)
class MemoryRule:
    """A rule for the memory of one device."""

    name: str
    formula: str
    """In words, for readers."""
    source: str
    """Where it is published."""
    bytes_of: Callable[[TrainingShape], float | None]


@dataclass(frozen=True, slots=True)
class SpeedRule:
    """A rule for the FLOPs of a token and the share of the dense peak that a device reaches."""

    name: str
    formula: str
    source: str
    flop_per_token: Callable[[TrainingShape], float | None]
    peak_share: float


def _parameters(shape: TrainingShape) -> int:
    return count_parameters(shape.model).total


def _active_parameters(shape: TrainingShape) -> int:
    count = count_parameters(shape.model)
    return count.total - count.feed_forward + count.active_feed_forward


def _document_004(shape: TrainingShape) -> float:
    """Return parameters x bytes of precision x factor; batch and length are ignored."""
    size, factor = {Method.FULL: (2, 20), Method.LORA: (2, 4), Method.QLORA: (0.5, 2)}[shape.method]
    return _parameters(shape) * size * factor


def _accelerate(shape: TrainingShape) -> float | None:
    """Return 2 x the fp32 model, as the command prints under "Training using Adam" for bf16; it has no training figure for 4 bits."""
    return None if shape.method is Method.QLORA else 2.0 * 4 * _parameters(shape)


def _llama_factory(shape: TrainingShape) -> float:
    """Return GB per billion parameters by method."""
    full = 18 if shape.master_weights else 8
    return _parameters(shape) / BILLION * {Method.FULL: full, Method.LORA: 2, Method.QLORA: 0.5}[shape.method] * 1e9


def _sixteen_bytes(shape: TrainingShape) -> float:
    """Return 16 bytes per trained parameter, divided over sharding devices, and 2 or 0.5 bytes per frozen one."""
    trained = shape.adapter_weights if shape.method is not Method.FULL else _parameters(shape)
    frozen = {Method.FULL: 0.0, Method.LORA: 2.0, Method.QLORA: 0.5}[shape.method] * _parameters(shape)
    return (16 * trained + frozen) / divided(shape, "parameters")


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


MEMORY_RULES: tuple[MemoryRule, ...] = (
    MemoryRule("formula of document 004", "parameters x bytes x 20 (full), 4 (LoRA) or 2 (QLoRA)", "document 004", _document_004),
    MemoryRule("accelerate estimate-memory", "2 x the model in fp32", "accelerate 1.15, commands/estimate.py", _accelerate),
    MemoryRule(
        "LLaMA-Factory's table",
        "GB per billion parameters: 8 or 18 (full), 2 (LoRA), 0.5 (QLoRA)",
        "https://github.com/hiyouga/LLaMA-Factory, README, Hardware Requirement",
        _llama_factory,
    ),
    MemoryRule(
        "16 bytes per trained parameter",
        "16 x trained + 2 (or 0.5) x frozen, over the devices",
        "Rajbhandari et al. 2020, ZeRO, section 3.1, https://arxiv.org/abs/1910.02054",
        _sixteen_bytes,
    ),
    MemoryRule(
        "DeepSpeed's estimators", "ZeRO-2: 2 N + 18 N; ZeRO-3: 4 x largest layer + 18 N / devices", "deepspeed, runtime/zero", _deepspeed
    ),
    MemoryRule(
        "Transformer Math 101",
        "16 N, and activations of s b h L (34 + 5 a s / h) or 2 s b h L",
        "https://blog.eleuther.ai/transformer-math/ (Korthikanti et al. 2022 for activations)",
        _transformer_math,
    ),
)

SPEED_RULES: tuple[SpeedRule, ...] = (
    SpeedRule(
        "6 N D at 35% of the peak",
        "6 N FLOPs per token",
        "https://blog.eleuther.ai/transformer-math/",
        lambda shape: 6.0 * _active_parameters(shape),
        0.35,
    ),
    SpeedRule(
        "6 N D at 45% of the peak",
        "6 N FLOPs per token",
        "https://blog.eleuther.ai/transformer-math/",
        lambda shape: 6.0 * _active_parameters(shape),
        0.45,
    ),
    SpeedRule(
        "8 N D at 48% of the peak",
        "8 N FLOPs per token with recomputation, 140 to 163 TFLOP/s on A100",
        "Narayanan et al. 2021, section 5, https://arxiv.org/abs/2104.04473",
        lambda shape: 8.0 * _active_parameters(shape),
        0.48,
    ),
    SpeedRule(
        "4 N D for adapters at 40% of the peak",
        "4 N FLOPs per token without weight gradients, 6 N for full fine-tuning",
        "follows from Hu et al. 2021, https://arxiv.org/abs/2106.09685",
        lambda shape: (6.0 if shape.method is Method.FULL else 4.0) * _active_parameters(shape),
        0.40,
    ),
    SpeedRule(
        "LoRA saves 90% of the compute",
        "0.6 N FLOPs per token at 40% of the peak; LoRA and QLoRA only",
        "https://aitecknews.com/en/articles/2026-07-04-why-lora-achieves-90-compute-savings-without-sacrificing-tas",
        lambda shape: None if shape.method is Method.FULL else 0.6 * _active_parameters(shape),
        0.40,
    ),
)


def rule_rows(memory: Iterable[tuple[Row, TrainingShape]], held_out: Iterable[HeldOut]) -> Iterator[Row]:
    """Yield the rows of `rule_errors`: each rule and our own model on each result.

    `memory` are rows of `memory_errors` with their shapes; `held_out` are predictions with the source of the result left out.
    """
    for row, shape in memory:
        about = {"kind": "memory", "result_id": row["result_id"], "quantity": row["quantity"], "method": row["method"]}
        rules = [(rule.name, rule.formula, rule.source, rule.bytes_of(shape)) for rule in MEMORY_RULES]
        ours = (OURS, "tunemark estimate", "guide/definitions", float(row["predicted_bytes"]))
        yield from _rows(about, row["published_bytes"], (ours, *rules))
    for held in held_out:
        if held.tokens_per_s is None:
            continue
        config = held.row.config
        about = {"kind": "speed", "result_id": held.row.id, "quantity": "tokens/s", "method": config.shape.method.value}
        rates = [(rule.name, rule.formula, rule.source, _rate(rule, config)) for rule in SPEED_RULES]
        own = (OURS, "its source left out", "guide/predictions", held.tokens_per_s.value)
        yield from _rows(about, held.measured, (own, *rates))


def _rate(rule: SpeedRule, config: Combination) -> float | None:
    """Return the tokens/s of all devices by a rule, or None if it does not apply."""
    peak = config.accelerator.peak_tflops.get(config.shape.autocast or config.shape.activations)
    flop = rule.flop_per_token(config.shape)
    return None if flop is None or peak is None else rule.peak_share * peak * TERA * config.devices / flop


def _rows(about: Row, published: float, rules: Iterable[tuple[str, str, str, float | None]]) -> Iterator[Row]:
    for name, formula, source, predicted in rules:
        if predicted is not None:
            figures = {"predicted": predicted, "published": published, "error": predicted / published - 1}
            yield about | {"rule": name, "formula": formula, "source": source} | figures
