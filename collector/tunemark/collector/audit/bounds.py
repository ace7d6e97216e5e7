"""Bounds from physics: minimum FLOPs, minimum memory, dense peaks, and the share of them that is usual. An unknown setting is the cheapest."""

from collections.abc import Iterable
from functools import lru_cache

from tunemark.collector.audit.evidence import AuditedResult, grouped
from tunemark.collector.audit.interval import Interval
from tunemark.collector.audit.printed_figures import narrow_format, precision_class
from tunemark.collector.audit.token_rates import TokenRate, token_rates
from tunemark.schema.facts.cards import LATENT, AcceleratorCard, ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.world_facts import Software
from tunemark.schema.physics.activations import activations_by_kind
from tunemark.schema.physics.architecture import count_parameters
from tunemark.schema.physics.families import FAMILIES
from tunemark.schema.physics.flops import flops_ledger
from tunemark.schema.physics.memory import count_weights
from tunemark.schema.physics.training_shape import ALL_LINEAR, TrainingShape
from tunemark.schema.records.plan import FEWEST_LABELS
from tunemark.schema.vocabulary import Checkpointing, Dtype, Method

SIXTEEN_BIT = (Dtype.BF16, Dtype.FP16)
FIRST_LORA_TARGETS: dict[str, tuple[str, ...]] = {
    "phi3": ("qkv_proj",),
    "bert": ("query", "value"),
    "deberta-v2": ("query_proj", "value_proj"),
    **dict.fromkeys(("gpt2", "gpt_bigcode"), ("c_attn",)),
    **dict.fromkeys(("modernbert", "mpt"), ("Wqkv",)),
    **dict.fromkeys(("falcon", "gpt_neox", "bloom"), ("query_key_value",)),
    **dict.fromkeys(LATENT, ("kv_b_proj",)),
}
"""Projections for queries and values, which the first LoRA recipes adapted, where a family names them differently."""


@lru_cache(maxsize=1_024)
def least_shape(
    model: ModelCard,
    method: Method,
    sequence_length: int,
    micro_batch: int,
    rank: int = 1,
    checkpointing: Checkpointing = Checkpointing.NONE,
) -> TrainingShape:
    """Return the shape with the least work and memory: flash attention, fused loss, 16-bit adapters of the fewest projections."""
    # Other methods with frozen base weights do at least the work of the smallest adapters.
    frozen = method is Method.PEFT
    return TrainingShape(
        model,
        Method.LORA if frozen else method,
        sequence_length,
        micro_batch,
        labels=FEWEST_LABELS if FAMILIES[model.family].encoder else None,
        lora_rank=1 if frozen else rank,
        lora_targets=ALL_LINEAR if rank > 1 and not frozen else FIRST_LORA_TARGETS.get(model.family, ("q_proj", "v_proj")),
        checkpointing=checkpointing,
        loss="fused",
        adapters=Dtype.BF16,
    )


@lru_cache(maxsize=4_096)
def least_flop_per_token(
    model: ModelCard, method: Method, sequence_length: int, rank: int = 1, *, recompute: bool = False, attention: bool = False
) -> float:
    """Return the minimum FLOPs per token, with recomputed blocks and attention only on request. See definitions#model-flops.

    Methods other than LoRA may adapt the last blocks only, so that gradients pass through few blocks: the forward pass is their minimum.
    """
    checkpointing = Checkpointing.FULL if recompute else Checkpointing.NONE
    ledger = flops_ledger(least_shape(model, method, sequence_length, 1, rank, checkpointing))
    if method is Method.PEFT:
        return (ledger.forward - (0 if attention else ledger.of("forward_attention"))) / ledger.tokens
    flops = ledger.hardware_flops if recompute else ledger.model_flops
    return (flops - (0 if attention else ledger.of("forward_attention", "backward_attention"))) / ledger.tokens


def flop_conventions(model: ModelCard, method: Method, sequence_length: int) -> tuple[float, float]:
    """Return the fewest and the most FLOPs per token by the conventions of published MFU.

    Attention is left out (6 N), counted for the causal half, or over the whole square (Chowdhery et al. 2022, appendix B). Some
    documents count frozen weights as if they were trained.
    """
    plain, causal = (least_flop_per_token(model, Method.FULL, sequence_length, attention=on) for on in (False, True))
    return least_flop_per_token(model, method, sequence_length), 2 * causal - plain


def flop_per_token(result: AuditedResult, model: ModelCard, sequence_length: int, *, recompute: bool = False) -> float:
    """Return the minimum FLOPs per token of a result."""
    # Documents that share a row may not attend to each other, and their lengths are unknown, so attention is excluded.
    attention = not result.conditions.packing
    rank = result.setting("lora_r") or 1
    return least_flop_per_token(model, result.conditions.method, sequence_length, rank, recompute=recompute, attention=attention)


def dense_peak(card: AcceleratorCard | None) -> float | None:
    """Return the dense peak of one device in 16 bits in FLOP/s, or None if the card has none."""
    fastest = fastest_format(card, SIXTEEN_BIT) if card else None
    return card.peak_tflops[fastest] * 1e12 if card and fastest else None


def fastest_format(card: AcceleratorCard, formats: Iterable[Dtype]) -> Dtype | None:
    """Return the number format with the highest dense peak, or None if the card has a peak for none of them."""
    known = (dtype for dtype in formats if dtype in card.peak_tflops)
    return max(known, key=lambda dtype: card.peak_tflops[dtype], default=None)


def peak_format(result: AuditedResult) -> Dtype | None:
    """Return the number format whose dense peak bounds a result: the fastest of the named formats, else of all. None for unknown cards."""
    card = result.accelerator
    if card is None:
        return None
    if narrow_format(result.conditions.precision) is Dtype.FP4:
        return fastest_format(card, (Dtype.FP4,))
    named = precision_class(result.conditions.precision)
    formats = [Dtype(name) for name in named.split("/")] if named else [*SIXTEEN_BIT, Dtype.FP8]
    # A format without matrix units is emulated: it cannot be faster than the fastest 16-bit format.
    return fastest_format(card, formats) or fastest_format(card, SIXTEEN_BIT)


def peak_flop_per_s(result: AuditedResult) -> float | None:
    """Return the dense peak of all devices in FLOP/s in `peak_format`; None without one."""
    fastest = peak_format(result)
    return result.accelerator.peak_tflops[fastest] * 1e12 * result.devices if result.accelerator and fastest else None


def utilisation(result: AuditedResult, rate: TokenRate, *, recompute: bool = False) -> tuple[Interval, str] | None:
    """Return the share of the dense peak that a rate needs, with the calculation; None if model, length or peak is unknown."""
    card, fastest, length, tokens = result.accelerator, peak_format(result), result.conditions.sequence_length, rate.tokens_per_s
    if card is None or fastest is None or result.model is None or length is None:
        return None
    each = flop_per_token(result, result.model, length, recompute=recompute)
    share = tokens * each / (card.peak_tflops[fastest] * 1e12 * result.devices)
    words = (
        f"{f'{rate.formula} = ' if rate.formula else ''}{tokens.value:,.0f} tokens/s x {each / 1e9:.2f} GFLOP"
        f"{', every block computed twice' if recompute else ''} = {tokens.value * each / 1e12:,.1f} TFLOP/s, "
        f"{share.value:.1%} of {result.devices} x {card.peak_tflops[fastest]:g} TFLOP/s dense in {fastest.value}"
    )
    return share, words


def rates_below_peak(result: AuditedResult) -> list[TokenRate]:
    """Return tokens per second by the first figure that the peak allows, without the readings that it excludes."""
    plain = (rate for rate in token_rates(result) if not rate.quantity.endswith("_reported"))
    for rates in grouped(plain, lambda rate: rate.quantity).values():
        possible = [rate for rate in rates if (share := utilisation(result, rate)) is None or share[0].low <= 1]
        if possible:
            return possible
    return []


def software_of(run: AuditedResult, facts: FactBase) -> Software:
    """Return the software of a run of a document."""
    source, _, release = run.source.partition("-")
    place = {"section": run.section, "round": release}
    return facts.known.software_of(source, lambda name: place[name] if name in place else run.conditions.stated(name))


def usual_limit(result: AuditedResult, facts: FactBase) -> tuple[float, str]:
    """Return the share of the dense peak, recomputed work included, above which a rate of its level of software is doubted, with words."""
    level = software_of(result, facts).level
    share = facts.known.practice("high-utilisation-plain" if level == "plain" else "high-utilisation")
    return share, f"above the limit of {share:.0%} for {level} software"


def weight_bytes(model: ModelCard, method: Method, precision: str | None = None) -> tuple[float, str]:
    """Return the minimum bytes of the weights, with the calculation: 16 bits, or 4 bits with scales for the blocks under QLoRA.

    Under LoRA with fp8 among the printed number formats, the frozen matrices of the blocks may be stored in it.
    """
    if method is Method.LORA and "fp8" in (precision_class(precision) or ""):
        count = count_parameters(model)
        matrices = count.attention + count.feed_forward
        return matrices + 2.0 * (count.total - matrices), f"{matrices:,} parameters x 1 byte + {count.total - matrices:,} x 2 bytes"
    if method is not Method.QLORA:
        total = count_parameters(model).total
        return 2.0 * total, f"{total:,} parameters x 2 bytes"
    weights = count_weights(least_shape(model, method, 1, 1))
    scales = 1 / 64 + 4 / (64 * 256)
    size = weights.quantised * (0.5 + scales) + weights.plain * 2
    return size, f"{weights.quantised:,} x (0.5 + {scales:.4f}) + {weights.plain:,} x 2 bytes"


def adam_bytes(*, mixed: bool = False, wide_states: bool = False) -> int:
    """Return the minimum bytes of full fine-tuning with Adam for each parameter, over all devices (Rajbhandari et al. 2020, section 3).

    Mixed precision takes 16, 16-bit weights with states in fp32 10, and 16 bits throughout 6. Gradients may be freed as they are used.
    """
    return 16 if mixed else 10 if wide_states else 6


def activations_kept(result: AuditedResult, model: ModelCard, sequence_length: int, micro_batch: int) -> tuple[float, str]:
    """Return the minimum bytes of activations, with the calculation.

    The results of matrix products and attention are kept until the backward pass, and the input of each block (Korthikanti et
    al. 2022, section 4). All element-wise results are assumed to be recomputed for free.
    """
    # Software other than transformers multiplies tokens of Llama 4 with the chosen experts only.
    chosen = model.model_copy(update={"experts": model.active_experts})
    shape = least_shape(chosen, result.conditions.method, sequence_length, micro_batch, result.setting("lora_r") or 1)
    kinds = [(blocks, block.input + block.products) for blocks, block in activations_by_kind(shape)]
    words = " + ".join(f"{blocks} blocks x {shape.slots:,} tokens x {each / shape.slots:,.0f} bytes" for blocks, each in kinds)
    return sum(blocks * each for blocks, each in kinds), words
