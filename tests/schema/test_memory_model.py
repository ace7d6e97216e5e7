"""The memory model: exact against what autograd saves, and monotone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.activations import block_activations
from tunemark.schema.physics.memory import CONTEXT, estimate_memory, largest_micro_batch
from tunemark.schema.physics.memory_states import MemoryLedger, state_lines
from tunemark.schema.physics.training_shape import TrainingShape
from tunemark.schema.vocabulary import Checkpointing, Dtype, Method

FACTS = FactBase(Path(__file__).parents[2] / "data")
GIB = 2**30


def make_shape(model: str = "llama-3.1-8b", method: Method = Method.LORA, **changes: Any) -> TrainingShape:
    base: dict[str, Any] = {"sequence_length": 8192, "micro_batch": 2, "checkpointing": Checkpointing.FULL}
    return TrainingShape(FACTS.model(model), method, **(base | changes))


def line(ledger: MemoryLedger, key: str) -> int:
    return sum(one.bytes for one in ledger.lines if one.key == key)


# --- against autograd


def saved_bytes(card: ModelCard, method: Method, attention: str) -> float:
    """Return the bytes per token that autograd saves in the second block of a small model in bf16, weights left out."""
    import torch

    model = _build(card, method, attention)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    block = next(module for name, module in model.named_modules() if name.endswith((".layers.1", ".h.1", ".layer.1")))
    inside, seen = [False], {}
    block.register_forward_pre_hook(lambda *_: inside.__setitem__(0, True))
    block.register_forward_hook(lambda *_: inside.__setitem__(0, False))

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        # The tables of rotary embeddings and of masks are shared by all blocks.
        if inside[0] and storage.data_ptr() not in weights and tensor.shape[0] != 1:
            seen[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(input_ids=torch.randint(1, card.vocabulary, (2, 64)))
    del loss
    return sum(size for size, _ in seen.values()) / 128


def _build(card: ModelCard, method: Method, attention: str) -> Any:
    import peft
    import torch
    import transformers

    from tunemark.harness.worker.models import config_of

    config = config_of(card)
    config._attn_implementation, config._experts_implementation, config.use_cache = attention, "eager", False
    kind = transformers.AutoModel if card.family == "bert" else transformers.AutoModelForCausalLM
    model = kind.from_config(config).to(torch.bfloat16)
    if method is not Method.FULL:
        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=targets))
        model.enable_input_require_grads()
    # Dropout would add masks in another format than an accelerator's.
    return model.eval()


def small(family: str) -> ModelCard:
    grouped = family not in {"gpt2", "bert"}
    content: dict[str, Any] = {
        "hidden_size": 128,
        "intermediate_size": 320,
        "layers": 2,
        "attention_heads": 4,
        "key_value_heads": 2 if grouped else 4,
        "head_dim": 32,
        "vocabulary": 128,
        "context_length": 128,
    }
    if family in {"mistral", "gemma2"}:
        content["sliding_window"] = 64
    return ModelCard.model_validate(content | {"key": family, "name": family, "family": family, "source": "made for a test"})


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma", "phi3", "gpt2", "bert"])
def test_the_activations_of_a_block_are_what_autograd_saves(family: str) -> None:
    shape = TrainingShape(small(family), Method.FULL, 64, 2)
    predicted = block_activations(shape).saved / shape.slots
    # The masks of GPT-2's and BERT's own dropout are predicted, and switched off here.
    assert predicted == pytest.approx(saved_bytes(small(family), Method.FULL, "sdpa"), rel=0.08)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma"])
def test_the_activations_of_a_block_with_adapters_are_what_autograd_saves(family: str) -> None:
    shape = TrainingShape(small(family), Method.LORA, 64, 2, lora_rank=4)
    predicted = block_activations(shape).saved / shape.slots
    assert predicted == pytest.approx(saved_bytes(small(family), Method.LORA, "sdpa"), rel=0.06)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_eager_attention_keeps_its_scores(family: str) -> None:
    shape = TrainingShape(small(family), Method.FULL, 64, 2, attention="eager")
    assert block_activations(shape).saved / shape.slots == pytest.approx(saved_bytes(small(family), Method.FULL, "eager"), rel=0.15)


# --- what must hold for all of them


def test_full_fine_tuning_in_bf16_needs_four_copies_of_the_weights_and_a_fifth_to_update_them() -> None:
    ledger = estimate_memory(make_shape(method=Method.FULL, loss="fused"))
    weights = line(ledger, "weights")
    assert weights == 2 * 8_030_261_248
    assert line(ledger, "gradients") == line(ledger, "update workspace") == weights
    assert line(ledger, "optimizer states") == 2 * weights
    assert ledger.peak_moment == "optimizer"


def test_four_bit_weights_cost_half_a_byte_and_their_scales_a_sixty_fourth() -> None:
    double, single = (
        estimate_memory(make_shape(method=Method.QLORA, parameters=Dtype.FP32, double_quantisation=double)) for double in (True, False)
    )
    matrices = 8_030_261_248 - 2 * 128_256 * 4096 - 65 * 4096
    assert line(double, "4-bit weights") == matrices / 2
    assert line(double, "4-bit scales") / matrices == pytest.approx(0.127 / 8, rel=0.01)
    assert line(single, "4-bit scales") / matrices == pytest.approx(0.5 / 8)


@pytest.mark.parametrize(
    ("sharding", "divided"),
    [
        ("ddp", set()),
        ("zero1", {"optimizer states"}),
        ("zero2", {"optimizer states", "gradients"}),
        ("zero3", {"optimizer states", "gradients", "weights"}),
        ("fsdp2", {"optimizer states", "gradients", "weights"}),
    ],
)
def test_each_strategy_divides_what_it_says(sharding: str, divided: set[str]) -> None:
    alone = {one.key: one.bytes for one in state_lines(make_shape(method=Method.FULL))}
    shared = {one.key: one.bytes for one in state_lines(make_shape(method=Method.FULL, sharding=sharding, world_size=8))}
    for key in ("optimizer states", "gradients", "weights"):
        assert shared[key] == (alone[key] // 8 if key in divided else alone[key])


def test_offloaded_states_are_not_on_the_device() -> None:
    ledger = estimate_memory(make_shape(method=Method.FULL, sharding="fsdp2", world_size=8, offload=True))
    assert line(ledger, "weights") == line(ledger, "optimizer states") == 0


def test_every_line_says_how_it_was_computed() -> None:
    for method in (Method.FULL, Method.LORA, Method.QLORA):
        for one in estimate_memory(make_shape(method=method, sharding="fsdp2", world_size=2)).lines:
            assert one.bytes > 0
            assert one.formula, one.key


def test_a_fused_loss_frees_most_of_the_logits() -> None:
    upcast, fused = (estimate_memory(make_shape(loss=loss)) for loss in ("upcast", "fused"))
    assert line(fused, "logits and loss") < 0.1 * line(upcast, "logits and loss")


def test_the_context_of_the_device_is_outside_of_the_allocator() -> None:
    ledger = estimate_memory(make_shape())
    assert ledger.needed == ledger.peak_allocated + CONTEXT
    assert ledger.peak_reserved >= ledger.peak_allocated


def test_the_largest_micro_batch_fits_and_one_more_row_does_not() -> None:
    shape, memory = make_shape(micro_batch=1), 80 * GIB
    rows = largest_micro_batch(shape, memory)
    assert estimate_memory(replace(shape, micro_batch=rows)).needed <= memory
    assert estimate_memory(replace(shape, micro_batch=rows + 1)).needed > memory
    assert largest_micro_batch(make_shape(method=Method.FULL), 24 * GIB) == 0


shapes = st.builds(
    make_shape,
    st.sampled_from(sorted(FACTS.models)),
    st.sampled_from([method for method in Method if method is not Method.PEFT]),
    micro_batch=st.integers(1, 8),
    sequence_length=st.sampled_from([128, 1024, 4096]),
    checkpointing=st.sampled_from(list(Checkpointing)),
    loss=st.sampled_from(["plain", "upcast", "fused"]),
    optimizer=st.sampled_from(["adamw", "adamw-fused", "adamw-8bit", "sgd", "adafactor"]),
)


@settings(max_examples=80, deadline=None)
@given(shapes)
def test_more_rows_and_longer_rows_never_need_less(shape: TrainingShape) -> None:
    needed = estimate_memory(shape).needed
    assert estimate_memory(replace(shape, micro_batch=shape.micro_batch + 1)).needed >= needed
    assert estimate_memory(replace(shape, sequence_length=2 * shape.sequence_length)).needed >= needed


@settings(max_examples=80, deadline=None)
@given(shapes, st.integers(2, 16))
def test_sharding_more_never_needs_more_than_a_copy_each(shape: TrainingShape, devices: int) -> None:
    ddp, zero1, zero2 = (
        estimate_memory(replace(shape, sharding=sharding, world_size=devices)).peak_allocated for sharding in ("ddp", "zero1", "zero2")
    )
    assert zero2 <= zero1 <= ddp


@settings(max_examples=80, deadline=None)
@given(shapes)
def test_checkpointing_keeps_less(shape: TrainingShape) -> None:
    kept = {
        kind: sum(one.bytes for one in estimate_memory(replace(shape, checkpointing=kind)).lines if "activations" in one.key)
        for kind in Checkpointing
    }
    assert kept[Checkpointing.FULL] <= kept[Checkpointing.SELECTIVE]
    assert kept[Checkpointing.FULL] <= kept[Checkpointing.NONE]


def test_a_hook_on_the_input_of_a_reentrant_checkpoint_keeps_it_and_its_gradient() -> None:
    # What "held by hooks" rests on: FSDP 1 registers such a hook for each frozen unit.
    import weakref

    import torch
    from torch.autograd.graph import register_multi_grad_hook
    from torch.utils.checkpoint import checkpoint

    def alive(*, hooked: bool) -> int:
        inputs, handles = [], []

        def block(hidden: Any) -> Any:
            if torch.is_grad_enabled():
                inputs.append(weakref.ref(hidden))
                if hooked:
                    handles.append(register_multi_grad_hook([hidden], lambda _: None))
            return hidden * 2

        hidden = torch.ones(4, requires_grad=True)
        for _ in range(3):
            hidden = checkpoint(block, hidden, use_reentrant=True)
        hidden.sum().backward()
        return sum(1 for one in inputs if (kept := one()) is not None and kept.grad is not None)

    assert alive(hooked=False) == 0
    assert alive(hooked=True) == 3
