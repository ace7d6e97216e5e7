"""The memory model: exact against what autograd saves, and monotone."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

import pytest
from factories import FACTS
from fake_device import LiveBytes
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import tiny_card

from tunemark.collector.predict.estimate import memory_on
from tunemark.schema.facts.cards import HYBRID, ModelCard
from tunemark.schema.formats import GIB
from tunemark.schema.physics.activations import block_activations
from tunemark.schema.physics.architecture import count_parameters, group
from tunemark.schema.physics.families import FAMILIES
from tunemark.schema.physics.memory import REDUCE_BUCKET, MemoryLedger, count_weights, estimate_memory, state_lines
from tunemark.schema.physics.stacks import on_stack
from tunemark.schema.physics.training_shape import OptimizerKind, TrainingShape, shape_of_plan
from tunemark.schema.records.submission import Submission
from tunemark.schema.vocabulary import Checkpointing, Dtype, Loss, Method

RUNS_ON_GPUS = sorted((Path(__file__).parents[2] / "submissions").glob("[!s]*/20261126-nvidia-*.json"))
METHODS = (Method.FULL, Method.LORA, Method.QLORA)


def make_shape(model: str = "llama-3.1-8b", method: Method = Method.LORA, **changes: Any) -> TrainingShape:
    base: dict[str, Any] = {"sequence_length": 8192, "micro_batch": 2, "checkpointing": Checkpointing.FULL}
    return TrainingShape(FACTS.model(model), method, **(base | changes))


def line(ledger: MemoryLedger, key: str) -> int:
    return sum(one.bytes for one in ledger.lines if one.key == key)


# --- against autograd


def saved_bytes(card: ModelCard, method: Method, attention: str, *, compiled: bool = False, length: int = 64) -> float:
    """Return the bytes per token that autograd saves in the second block of a small model in bf16, weights left out."""
    import torch

    model = _build(card, method, attention).train(attention == "eager")
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    block = next(module for name, module in model.named_modules() if f".{name}".endswith((".layers.1", ".h.1", ".layer.1", ".blocks.1")))
    if compiled:
        block.compile()
    inside, seen = [False], {}
    block.register_forward_pre_hook(lambda *_: inside.__setitem__(0, True))
    block.register_forward_hook(lambda *_: inside.__setitem__(0, False))

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        # The tables of rotary embeddings and of masks are shared by all blocks.
        if inside[0] and storage.data_ptr() not in weights and tensor.shape[:1] != (1,):
            seen[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    def drop(values: Any, p: float, training: bool, *_: bool) -> Any:
        # As on an accelerator, the mask has a byte per number.
        return torch.native_dropout(values, p, train=True)[0] if training and p else values

    with patch("torch.nn.functional.dropout", drop), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(input_ids=torch.randint(1, card.vocabulary, (2, length)))
    del loss
    return sum(size for size, _ in seen.values()) / (2 * length)


def _build(card: ModelCard, method: Method, attention: str, experts: str = "eager", targets: Any = None) -> Any:
    import peft
    import torch
    import transformers

    from tunemark.harness.worker.models import config_of

    config = config_of(card)
    config._attn_implementation, config._experts_implementation, config.use_cache = attention, experts, False
    kind = transformers.AutoModel if FAMILIES[card.family].encoder else transformers.AutoModelForCausalLM
    model = kind.from_config(config).to(torch.bfloat16)
    if method is not Method.FULL:
        model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=targets or list(group(card, "all-linear"))))
        model.enable_input_require_grads()
    # Fused attention with dropout would keep its scores on a CPU.
    return model.eval()


def small(family: str) -> ModelCard:
    mixture = {"mixture_every": 2, "dense_layers": 1, "full_attention_every": 2} if family == "llama4_text" else {}
    others = {"full_attention_layers": (0,)} if family in {"lfm2", "lfm2_moe", "granitemoehybrid"} else {}
    others |= {"layers": 2} if family == "nemotron_h" else {}
    return tiny_card(family, 2, 128, vocabulary=128, **mixture, **others)


WITH_ADAPTERS = (
    *("llama", "qwen3", "gemma", "gemma3_text", "olmo2", "qwen3_moe", "deepseek_v2", "deepseek_v3", "llama4_text", "gemma4_text"),
    *("cohere", "modernbert", "lfm2", *HYBRID),
)
DROPPING = ("bert", "gpt2", "opt", "biogpt", "gpt_bigcode", "bloom", "mpt", "gptj", "gpt_neo")
IN_FULL = (
    *WITH_ADAPTERS,
    *("mistral", "qwen2", "phi3", "granite", "smollm3", "olmo3", "gpt2", "bert", "mixtral", "glm4_moe_lite", "cohere2"),
    *("apertus", "arcee", "hunyuan_v1_dense", "ernie4_5", "seed_oss", "ministral3", "exaone4", "glm4", "glm4_moe", "minimax_m2"),
    *("stablelm", "starcoder2", "gpt_neox", "phi", "ernie4_5_moe", "qwen2_moe", "olmoe", "lfm2_moe", "nemotron_h"),
    *("glm", "jais2", "nemotron", "olmo", "nanochat", "biogpt", "phimoe", "dots1", "solar_open", "youtu", "cwm", "hyperclovax"),
)


@pytest.mark.parametrize(
    ("family", "method", "attention", "length", "within"),
    [
        # The masks of GPT-2's and BERT's own dropout are predicted, and switched off here.
        *((family, Method.FULL, "sdpa", 64, 0.08) for family in IN_FULL),
        *((family, Method.LORA, "sdpa", 64, 0.06) for family in WITH_ADAPTERS),
        # The scan of Mamba 2 is that of transformers' own code.
        *(("granitemoehybrid", method, "sdpa", length, 0.05) for method in (Method.FULL, Method.LORA) for length in (192, 512)),
        # The scores are kept, and those that dropout leaves.
        *((family, Method.FULL, "eager", 64, 0.15) for family in ("llama", "gemma2")),
        *((family, Method.FULL, "eager", length, 0.08) for family in (*DROPPING, "deberta-v2") for length in (64, 256)),
    ],
)
def test_the_activations_of_a_block_are_what_autograd_saves(
    family: str, method: Method, attention: str, length: int, within: float
) -> None:
    card = small(family)
    shape = TrainingShape(card, method, length, 2, attention=attention, lora_rank=4, lora_targets=group(card, "all-linear"))
    predicted = block_activations(shape).saved / shape.slots
    assert predicted == pytest.approx(saved_bytes(card, method, attention, length=length), rel=within)


@pytest.mark.parametrize(("model", "gib"), [("qwen3-4b", (94.99, 168.57)), ("qwen3-8b", (130.39, 218.86))])
def test_blocks_with_ligers_kernels_keep_what_a_published_pair_of_lengths_shows(model: str, gib: tuple[float, float]) -> None:
    # whitecircle/halo: four rows of 4,096 and of 8,192 tokens on B300, without checkpointing; the loss holds logits in bf16, and more.
    shape = make_shape(model, Method.FULL, sequence_length=4096, micro_batch=4, checkpointing=Checkpointing.NONE, fused_blocks=True)
    kept = shape.model.layers * block_activations(shape).saved / shape.slots
    assert kept == pytest.approx((gib[1] - gib[0]) * 2**30 / shape.slots - 4 * shape.model.vocabulary, rel=0.1)


@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
def test_a_block_without_experts_saves_less_than_those_of_its_mixture(method: Method) -> None:
    """Memory adds up the blocks by kind: two without experts, and one with experts."""
    card = small("deepseek_v3").model_copy(update={"layers": 3, "dense_layers": 2})
    shape = TrainingShape(card, method, 64, 2, lora_rank=4, lora_targets=group(card, "all-linear"))
    dense, mixed = (block_activations(shape, place).saved for place in (1, 2))
    assert dense < mixed
    assert dense / shape.slots == pytest.approx(saved_bytes(card, method, "sdpa"), rel=0.06)
    assert line(estimate_memory(shape), "activations") == 2 * dense + mixed


@pytest.mark.slow
@pytest.mark.parametrize("method", [pytest.param(Method.FULL, marks=pytest.mark.nightly), Method.LORA])
def test_a_compiled_block_saves_the_results_and_inputs_of_its_matrix_products(method: Method) -> None:
    shape = TrainingShape(small("llama"), method, 64, 2, lora_rank=4, compiled=True)
    predicted = block_activations(shape).saved / shape.slots
    assert predicted < 0.75 * block_activations(replace(shape, compiled=False)).saved / shape.slots
    assert predicted == pytest.approx(saved_bytes(small("llama"), method, "sdpa", compiled=True), rel=0.06)


def live_peak(model: Any, shape: TrainingShape) -> int:
    """Return the peak of the bytes that a step on random tokens allocates."""
    import torch

    if shape.checkpointing is Checkpointing.FULL:
        model.train().gradient_checkpointing_enable({"use_reentrant": False})
    live = LiveBytes()
    with live.watch(*model.parameters()):
        ids = torch.randint(1, shape.model.vocabulary, (shape.micro_batch, shape.sequence_length))
        with torch.autocast("cpu", torch.bfloat16, enabled=shape.autocast is not None):
            out = model(input_ids=ids, labels=ids)
        out.loss.backward()
    return live.peak


def without_states(shape: TrainingShape) -> int:
    """Return the predicted peak of what a step allocates beside weights and optimizer states."""
    ledger = estimate_memory(shape)
    return ledger.peak_allocated - sum(one.bytes for one in ledger.lines if one.group in {"model", "framework"})


@pytest.mark.parametrize("checkpointing", [Checkpointing.NONE, Checkpointing.FULL])
@pytest.mark.parametrize(
    ("method", "formats"),
    [
        (Method.LORA, {}),
        (Method.LORA, {"autocast": Dtype.BF16}),
        (Method.LORA, {"adapters": Dtype.BF16}),
        (Method.LORA, {"parameters": Dtype.FP32, "activations": Dtype.FP32, "autocast": Dtype.BF16}),
        (Method.FULL, {}),
        (Method.FULL, {"parameters": Dtype.FP32, "activations": Dtype.FP32, "autocast": Dtype.BF16}),
    ],
    ids=["lora", "lora-autocast", "lora-bf16-adapters", "lora-fp32", "full", "full-fp32"],
)
def test_the_peak_of_a_step_is_that_of_its_live_tensors(method: Method, formats: dict[str, Any], checkpointing: Checkpointing) -> None:
    import torch

    card = tiny_card("llama", 4, layers=4, vocabulary=2048)
    shape = TrainingShape(card, method, 512, 2, lora_rank=4, checkpointing=checkpointing, optimizer="sgd", **formats)
    model = _build(card, method, "sdpa")
    for weight in model.parameters():
        kind = shape.adapters if weight.requires_grad and method is Method.LORA else shape.parameters
        weight.data = weight.data.to(torch.float32 if kind is Dtype.FP32 else torch.bfloat16)
    assert without_states(shape) == pytest.approx(live_peak(model, shape), rel=0.1)


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "k_proj", "v_proj", "o_proj"]])
@pytest.mark.parametrize("checkpointing", [Checkpointing.NONE, Checkpointing.FULL])
def test_the_peak_of_a_step_with_fused_experts_is_that_of_its_live_tensors(checkpointing: Checkpointing, targets: Any) -> None:
    """transformers 5 and peft: all experts at once, and sums of their weights and adapters."""
    card = tiny_card("qwen3_moe", 3, 64, vocabulary=512).model_copy(update={"experts": 8, "active_experts": 2})
    named = (targets,) if targets == "all-linear" else tuple(targets)
    levers: dict[str, Any] = {"fused_experts": True, "autocast": Dtype.BF16, "checkpointing": checkpointing, "optimizer": "sgd"}
    shape = TrainingShape(card, Method.LORA, 256, 2, lora_rank=4, lora_targets=named, **levers)
    model = _build(card, Method.LORA, "sdpa", "grouped_mm", targets)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    assert sum(weight.numel() for weight in trained) == pytest.approx(shape.adapter_weights, rel=0.01)
    for weight in trained:
        weight.data = weight.data.float()
    assert without_states(shape) == pytest.approx(live_peak(model, shape), rel=0.12)


def test_bitsandbytes_quantises_the_linear_layers_of_a_mixture_and_not_its_experts(tmp_path: Path) -> None:
    from bitsandbytes.nn import Params4bit
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    card = small("mixtral")
    _build(card, Method.FULL, "sdpa").save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=BitsAndBytesConfig(load_in_4bit=True))
    packed = sum(2 * weight.numel() for weight in model.parameters() if isinstance(weight, Params4bit))
    as_loaded, packs_all = (TrainingShape(card, Method.QLORA, 64, 2, fused_experts=fused) for fused in (True, False))
    assert count_weights(as_loaded).quantised == packed == count_weights(packs_all).quantised - count_parameters(card).experts


@pytest.mark.parametrize("path", RUNS_ON_GPUS, ids=lambda path: path.stem)
def test_the_peak_of_each_run_on_a_gpu_is_predicted_within_three_percent(path: Path) -> None:
    record = Submission.model_validate_json(path.read_bytes())
    if peak := record.memory.device_allocated.peak_bytes:
        shape = shape_of_plan(record.plan, FACTS.model(record.plan.model.key))
        assert estimate_memory(shape).peak_allocated == pytest.approx(peak, rel=0.03)


# --- what must hold for all of them


@pytest.mark.parametrize(
    ("sharding", "divided"),
    [
        ("ddp", set()),
        ("zero1", {"optimizer states"}),
        ("zero2", {"optimizer states", "gradients"}),
        ("zero3", {"optimizer states", "gradients", "weights"}),
        *((fsdp, {"optimizer states", "gradients", "weights"}) for fsdp in ("fsdp2", "fsdp-grad-op")),
    ],
)
def test_each_strategy_divides_what_it_says(sharding: str, divided: set[str]) -> None:
    alone = {one.key: one.bytes for one in state_lines(make_shape(method=Method.FULL))}
    shared = {one.key: one.bytes for one in state_lines(make_shape(method=Method.FULL, sharding=sharding, world_size=8))}
    for key in ("optimizer states", "gradients", "weights"):
        assert shared[key] == (alone[key] // 8 if key in divided else alone[key])


def test_an_optimizer_in_the_backward_pass_keeps_the_gradient_of_one_matrix() -> None:
    ledger = estimate_memory(make_shape(method=Method.FULL, optimizer="adamw-fused", optimizer_in_backward=True))
    assert line(ledger, "gradients") == 2 * 128_256 * 4096


def test_sharded_four_bit_weights_are_gathered_in_four_bits_and_their_scales_stay_whole() -> None:
    alone = estimate_memory(make_shape(method=Method.QLORA))
    qlora, lora = (estimate_memory(make_shape(method=method, sharding="fsdp2", world_size=4)) for method in (Method.QLORA, Method.LORA))
    assert line(qlora, "gathered blocks") == line(lora, "gathered blocks") / 4
    assert line(qlora, "4-bit scales") == line(alone, "4-bit scales")


def test_fsdp_that_keeps_gathered_weights_has_those_of_all_blocks_until_the_backward_pass() -> None:
    kept, count = estimate_memory(make_shape(sharding="fsdp-grad-op", world_size=4)), count_parameters(FACTS.model("llama-3.1-8b"))
    assert line(kept, "gathered blocks") // 2 + line(kept, "prefetched blocks") == 2 * (count.attention + count.feed_forward)


def test_zero_3_with_its_states_on_the_host_reserves_what_a_document_prints() -> None:
    # stas00/ml-engineering: 65,536 and 262,144 tokens on each of 8 H200, with Liger's kernels.
    step = make_shape(method=Method.FULL, sharding="zero3", world_size=8, optimizer_offload=True, loss="fused", fused_blocks=True)
    for length, gib in ((32_768, 37.5), (131_072, 124.5)):
        assert estimate_memory(replace(step, sequence_length=length)).peak_reserved == pytest.approx(gib * GIB, rel=0.07)


def test_states_settle_in_freed_blocks_where_the_first_update_creates_them_on_the_device() -> None:
    full = make_shape(method=Method.FULL, sharding="fsdp2", world_size=4, optimizer="adamw-fused")
    ledger, late = estimate_memory(full), estimate_memory(replace(full, micro_batch=16))
    assert ledger.settled == late.settled == line(ledger, "optimizer states")
    assert late.peak_reserved - replace(late, settled=0).peak_reserved == pytest.approx(late.settled * 0.5, abs=1)
    elsewhere = ({"sharding": "zero3"}, {"offload": True}, {"sharding": "ddp"})
    assert not any(estimate_memory(replace(full, **away)).settled for away in elsewhere)


def test_devices_without_bf16_train_on_a_stack_as_others_do() -> None:
    narrow = {"parameters": Dtype.FP16, "activations": Dtype.FP16}
    fp16, bf16 = (on_stack(make_shape(method=Method.QLORA, **formats), "hf") for formats in (narrow, {}))
    assert replace(fp16, autocast=Dtype.BF16) == bf16


LONGEST = {"llama-3.1-8b": {8: 2972, 12: 21848, 16: 40724, 24: 78475, 48: 191728, 80: 342733}, "llama-3.3-70b": {48: 12106, 80: 89389}}


@pytest.mark.parametrize(("model", "gib", "length"), [(model, *row) for model, rows in LONGEST.items() for row in rows.items()])
def test_the_longest_rows_that_unsloth_fits_on_a_gpu_need_its_memory(model: str, gib: int, length: int) -> None:
    """The tables of the longest contexts in Unsloth's README: QLoRA of rank 32 with one row."""
    shape = make_shape(model, Method.QLORA, sequence_length=length, micro_batch=1, lora_rank=32)
    assert estimate_memory(on_stack(shape, "unsloth")).needed == pytest.approx(gib * GIB, rel=0.13)


def test_devices_that_share_matrices_share_what_adapters_read() -> None:
    alone, shared = (
        estimate_memory(make_shape(checkpointing=Checkpointing.NONE, **plan))
        for plan in ({}, {"tensor_parallel": 4, "sequence_parallel": True})
    )
    assert line(alone, "activations") == pytest.approx(4 * line(shared, "activations"), rel=0.02)


def test_adapters_are_those_that_published_notebooks_print() -> None:
    """Sources: unslothai/notebooks, nb/Qwen3_MoE.ipynb and nb/gpt-oss-(20B)-Fine-tuning.ipynb, result 060-055."""
    assert on_stack(make_shape("qwen3-30b-a3b", lora_rank=32), "unsloth").adapter_weights == 1_285_029_888
    narrow = {"parameters": Dtype.FP16, "activations": Dtype.FP16}
    shape = make_shape("gpt-oss-20b", Method.QLORA, sequence_length=1024, micro_batch=1, lora_rank=8, **narrow)
    ledger = estimate_memory(on_stack(shape, "unsloth"))
    assert shape.adapter_weights == 3_981_312
    assert ledger.fit_on(15 * GIB) == "fits"
    assert ledger.reserved_interval[0] < 12.975 * GIB < ledger.reserved_interval[1]


@pytest.mark.parametrize(("devices", "rows", "peak_gib"), [(2, 8, 36.5), (4, 4, 26.1), (8, 2, 21.0), (2, 64, 47.8), (8, 16, 22.4)])
def test_gradients_of_fsdp_are_whole_until_the_last_micro_step_of_the_trainer(devices: int, rows: int, peak_gib: float) -> None:
    """Source: results 010-206 to 010-217, of two micro-steps with rows of about 300 tokens, all in 16 bits."""
    step = {"sharding": "fsdp1", "world_size": devices, "gradient_accumulation": 2, "reentrant": True, "defers_reduction": True}
    ledger = estimate_memory(make_shape("mistral-7b-v0.1", Method.FULL, sequence_length=300, micro_batch=rows, **step))
    assert ledger.peak_allocated / GIB == pytest.approx(peak_gib, rel=0.05)


def test_a_driver_shows_more_than_is_needed_up_to_the_memory_of_the_device_where_rows_vary() -> None:
    memory = memory_on(make_shape(sequence_length=2048, micro_batch=4), "hf")
    (allocated, *_), (reserved, _, most), (shown, _, shown_at_most) = memory.measured_as(80 * GIB).values()
    assert allocated < reserved < shown < most < shown_at_most
    assert most - reserved > line(memory.ledger, "checkpointed activations"), "blocks of one length seldom fit another"
    assert memory.measured_as(40 * GIB)["nvidia-smi or rocm-smi"][2] == 40 * GIB


def test_the_ledger_says_which_layers_have_adapters_and_how_many_of_them_are_experts() -> None:
    formulas = {one.key: one.formula for one in estimate_memory(make_shape("qwen3-30b-a3b", lora_rank=32)).lines}
    assert (
        "rank 32 on q_proj, k_proj, v_proj, o_proj, 1,258,291,200 of them on gate_up_proj, down_proj of 128 experts" in formulas["adapters"]
    )
    assert make_shape("qwen3-30b-a3b", lora_targets=("attention",)).adapted == make_shape("qwen3-30b-a3b").adapted[:4]


def test_a_verdict_follows_the_interval_of_the_estimate() -> None:
    ledger = estimate_memory(make_shape())
    assert ledger.needed_low < ledger.needed < ledger.needed_high
    assert ledger.fit_on(ledger.peak_reserved + ledger.outside) in {"fits", "unsure"}
    assert ledger.fit_on(2 * ledger.needed_high) == "fits"
    assert ledger.fit_on(ledger.needed_high - 1) == ledger.fit_on(ledger.needed_low) == "unsure"
    assert ledger.fit_on(ledger.needed_low - 1) == "no"


shapes = st.builds(
    make_shape,
    st.sampled_from(sorted(FACTS.models)),
    st.sampled_from(METHODS),
    micro_batch=st.integers(1, 8),
    sequence_length=st.sampled_from([128, 1024, 4096]),
    checkpointing=st.sampled_from(list(Checkpointing)),
    loss=st.sampled_from(get_args(Loss)),
    compiled=st.booleans(),
    optimizer=st.sampled_from(get_args(OptimizerKind)),
)


@settings(max_examples=100, deadline=None)
@given(shapes, st.integers(2, 16))
def test_more_work_never_needs_less_and_sharding_and_recomputation_never_more(shape: TrainingShape, devices: int) -> None:
    needed = estimate_memory(shape).needed
    assert estimate_memory(replace(shape, micro_batch=shape.micro_batch + 1)).needed >= needed
    assert estimate_memory(replace(shape, sequence_length=2 * shape.sequence_length)).needed >= needed
    ddp, zero1, zero2 = (
        estimate_memory(replace(shape, sharding=sharding, world_size=devices)).peak_allocated for sharding in ("ddp", "zero1", "zero2")
    )
    assert zero2 <= zero1 <= ddp + 2 * REDUCE_BUCKET, "a bucket does not depend on the number of gradients"
    kept = {
        kind: sum(one.bytes for one in estimate_memory(replace(shape, checkpointing=kind)).lines if "activations" in one.key)
        for kind in Checkpointing
    }
    assert kept[Checkpointing.FULL] <= min(kept[Checkpointing.SELECTIVE], kept[Checkpointing.NONE])
