"""The FLOPs ledger: exact against torch's own counter for every architecture family, and the invariants of its classes."""

import math
from typing import Any

import pytest
from factories import FACTS
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import tiny_card

from tunemark.schema.facts.cards import HYBRID, STATE_SPACE, TAKEN_FOR_EXPERTS, ModelCard
from tunemark.schema.physics.architecture import all_linears, blocks_of, count_parameters, idle_experts
from tunemark.schema.physics.families import FAMILIES as ARCHITECTURES
from tunemark.schema.physics.families import NAMES, TOKEN_TABLES
from tunemark.schema.physics.flops import SCAN_CHUNK, STATE_CHUNK, attention_pairs, flops_ledger, palm_flops
from tunemark.schema.physics.training_shape import TrainingShape
from tunemark.schema.physics.work import ISSUE_S, issue_seconds
from tunemark.schema.vocabulary import Checkpointing, Method

FAMILIES = tuple(ARCHITECTURES)
WINDOWED = {"gemma2", "gemma3_text", "olmo3", "exaone4", "gpt_oss", "llama4_text", "gemma4_text", "cohere2", *HYBRID}
"""Families of which some layers attend to all tokens and others do not."""
ROWS, LENGTH = 2, 24


def tiny(family: str, **changes: Any) -> ModelCard:
    """Return a tiny card; transformers multiplies tokens with all experts of Llama 4."""
    mixture = {"active_experts": 4, "mixture_every": 2, "dense_layers": 1} if family == "llama4_text" else {}
    return tiny_card(family, **{"layers": 6 if family in WINDOWED else 3} | mixture | changes)


def targets_of(card: ModelCard) -> tuple[str, ...]:
    # transformers keeps the experts of a mixture in one tensor, which peft cannot give an adapter by name. In DeepSeek's families, peft takes
    # the names of shared experts for those of the others.
    parts = {"attention"} if card.family in TAKEN_FOR_EXPERTS else {"attention", "feed_forward"}
    return tuple(linear.path for linear in all_linears(card) if linear.part in parts)


def counted(shape: TrainingShape) -> dict[str, int]:
    """Return what torch counts in the forward and in the backward pass: matrix products, and attention without mask skipping."""
    import torch

    torch.manual_seed(0)
    model, inputs = _model(shape), torch.randint(1, shape.model.vocabulary, (shape.micro_batch, shape.sequence_length))
    labels = torch.zeros(shape.micro_batch, dtype=torch.long) if shape.labels else inputs
    with counter(shape.model.experts) as forward:
        loss = model(input_ids=inputs, labels=labels).loss
    with counter(shape.model.experts) as backward:
        loss.backward()
    return {f"{way}_{part}": flops for way, seen in (("forward", forward), ("backward", backward)) for part, flops in _parts(seen).items()}


def _parts(seen: Any) -> dict[str, int]:
    """Split by operator: eager attention is the only batched product of these models, except for the experts of Llama 4."""
    operators = seen.get_flop_counts()["Global"].items()
    batched = sum(flops for operator, flops in operators if "bmm" in str(operator) or "solve" in str(operator)) - sum(seen.of_experts)
    return {"attention": batched, "rest": seen.get_total_flops() - batched}


def counter(experts: int | None) -> Any:
    """Return torch's counter, which also keeps the FLOPs of products that are batched by expert."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode, bmm_flop

    def noted(left: Any, right: Any, *_: Any, **__: Any) -> int:
        flops = bmm_flop(left, right)
        if left[0] == experts:
            counting.of_experts.append(flops)
        return flops

    def solved(matrix: Any, right: Any, *_: Any, **__: Any) -> int:
        # Half of a product: the matrix is triangular.
        return math.prod(matrix[:-2]) * matrix[-1] ** 2 * right[-1]

    aten = torch.ops.aten
    ours = {aten.bmm: noted, aten.linalg_solve_triangular: solved}
    # A convolution over four tokens of one channel is no matrix product.
    ours |= dict.fromkeys((aten.convolution, aten.convolution_backward, aten._convolution), lambda *_, **__: 0)
    counting: Any = FlopCounterMode(display=False, custom_mapping=ours)
    counting.of_experts = []
    return counting


def by_class(shape: TrainingShape) -> dict[str, int]:
    ledger = flops_ledger(shape, "square")
    recomputed = ledger.of("forward_attention") if shape.checkpointing is Checkpointing.FULL else 0
    forward, backward = ledger.of("forward_attention"), ledger.of("backward_attention") + recomputed
    return {
        "forward_attention": forward,
        "forward_rest": ledger.forward - forward,
        "backward_attention": backward,
        "backward_rest": ledger.executed - ledger.forward - backward,
    }


def _model(shape: TrainingShape) -> Any:
    import transformers

    from tunemark.harness.worker.models import config_of

    config = config_of(shape.model, labels=shape.labels)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    config.use_cache, config.chunk_size = False, SCAN_CHUNK
    kind = transformers.AutoModelForSequenceClassification if shape.labels else transformers.AutoModelForCausalLM
    model = kind.from_config(config)
    if shape.checkpointing is Checkpointing.FULL:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
        model.train()
    return model if shape.method is Method.FULL else _with_adapters(model, shape)


def _with_adapters(model: Any, shape: TrainingShape) -> Any:
    import peft

    task = "SEQ_CLS" if shape.labels else "CAUSAL_LM"
    adapted = rf".*\.(\d+)\.({'|'.join(linear.path.replace('.', '[.]') for linear in shape.adapted)})"
    if shape.model.per_layer_width:
        adapted += r"|.*\.per_layer_model_projection"
    if shape.tokens_adapted:
        adapted += rf"|.*\.({'|'.join(TOKEN_TABLES)})"
    return peft.get_peft_model(model, peft.LoraConfig(r=shape.lora_rank, target_modules=adapted, task_type=task))


def make_shape(card: ModelCard, method: Method = Method.FULL, **changes: Any) -> TrainingShape:
    if method is not Method.FULL:
        changes = {"lora_rank": 3, "lora_targets": targets_of(card)} | changes
    labels = 5 if ARCHITECTURES[card.family].encoder else None
    return TrainingShape(card, method, **({"sequence_length": LENGTH, "micro_batch": ROWS, "labels": labels} | changes))


# Of Gemma 4 E2B, some layers share keys and each has an embedding. The heads of Gemma and the small Qwen 3 are wider together than the model;
# the other families have no width of a head. DeepSeek V2 Lite and Moonlight compute queries from the residual stream.
CARDS = [(family, {}) for family in FAMILIES if family not in (*HYBRID, *STATE_SPACE)] + [("gemma-4-e2b", {"layers": 6})]
CARDS += [(family, {"head_dim": 24}) for family in ("llama", "mistral", "mixtral", "qwen3", "gemma", "gemma2")]
CARDS += [(family, {"query_rank": None}) for family in ("deepseek_v2", "glm4_moe_lite")]


@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
@pytest.mark.parametrize(("family", "changes"), CARDS)
def test_matmul_and_attention_of_both_passes_equal_what_torch_counts(family: str, changes: dict[str, Any], method: Method) -> None:
    # The counter knows no masks: it counts s^2 pairs of each row, so the ledger is asked for the same.
    shape = make_shape(tiny(family, **changes), method)
    assert by_class(shape) == counted(shape)


@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
@pytest.mark.parametrize("family", HYBRID)
def test_the_gated_delta_rule_is_counted_as_torch_does(family: str, method: Method) -> None:
    shape = make_shape(tiny(family), method, sequence_length=2 * STATE_CHUNK)
    ledger, seen = by_class(shape), counted(shape)
    # torch computes the gradients of the triangular systems in full, zeros included.
    assert ledger.pop("backward_attention") == pytest.approx(seen.pop("backward_attention"), rel=0.15)
    assert ledger == seen


@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
@pytest.mark.parametrize(
    ("family", "experts"), [("granitemoehybrid", True), ("granitemoehybrid", False), ("nemotron_h", True), ("nemotron_h", False)]
)
def test_the_scan_of_mamba_2_is_counted_as_torch_does(family: str, experts: bool, method: Method) -> None:
    # transformers repeats the keys of a group for each head, which kernels do not.
    dense = {} if experts else {"experts": None, "active_experts": None, "shared_experts": None}
    card = tiny(family, linear_key_heads=4, layers=3, **dense)
    shape = make_shape(card, method, sequence_length=SCAN_CHUNK)
    ledger, seen = by_class(shape), counted(shape)
    # It multiplies all states with all later ones, of which there are two here; kernels pass them on.
    states = 2 * 2 * sum(block.mixer == "state space" for block in blocks_of(card)) * ROWS * 2 * 4 * card.linear_head_dim * card.state_size
    ledger["forward_attention"] += states
    ledger["backward_attention"] += 2 * states
    assert ledger == seen


@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_experts_that_were_not_chosen_are_computed_for_llama_4_and_are_no_model_flops(every: int, method: Method) -> None:
    card = tiny("llama4_text", active_experts=1, mixture_every=every, dense_layers=every - 1)
    shape = make_shape(card, method)
    idle = flops_ledger(shape).in_block_matrices(recomputed=True) * idle_experts(card)
    assert sum(counted(shape).values()) == pytest.approx(flops_ledger(shape, "square").executed + idle, rel=1e-12)
    assert idle_experts(card) > 0
    assert idle_experts(tiny("deepseek_v3")) == 0


@pytest.mark.parametrize("checkpointing", [Checkpointing.NONE, Checkpointing.FULL])
@pytest.mark.parametrize(
    ("family", "table"), [("llama", "embed_tokens"), ("gpt2", "wte"), ("bert", "word_embeddings"), ("modernbert", "tok_embeddings")]
)
def test_an_adapter_on_the_embedding_costs_what_torch_counts(family: str, table: str, checkpointing: Checkpointing) -> None:
    card = tiny(family)
    shape = make_shape(card, Method.LORA, lora_targets=(*targets_of(card), table), checkpointing=checkpointing)
    assert by_class(shape) == counted(shape)
    bare = make_shape(card, Method.LORA)
    assert shape.adapter_weights - bare.adapter_weights == 3 * (card.vocabulary + card.hidden_size)


@pytest.mark.parametrize("family", [family for family in FAMILIES if tiny(family).experts and not NAMES[family].refused])
def test_all_linear_layers_hold_the_experts_of_the_families_in_which_peft_adapts_them(family: str) -> None:
    import peft

    card = tiny(family)
    model = peft.get_peft_model(_model(make_shape(card)), peft.LoraConfig(target_modules="all-linear"))
    adapted = any("lora_A" in name and "experts" in name.replace("shared_experts", "") for name, _ in model.named_parameters())
    assert adapted == any(linear.part == "experts" for linear in all_linears(card))


@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
def test_checkpointing_repeats_the_forward_of_the_blocks_and_not_of_the_head(method: Method) -> None:
    shape = make_shape(tiny("llama"), method, checkpointing=Checkpointing.FULL)
    ledger = flops_ledger(shape, "square")
    assert by_class(shape) == counted(shape)
    assert ledger.of("recompute") == ledger.forward - ledger.of("forward_head")


def test_the_headline_of_lora_is_the_definition_and_says_what_autograd_leaves_out() -> None:
    card = FACTS.model("llama-3.1-8b")
    ledger = flops_ledger(TrainingShape(card, Method.LORA, 8192, 2, lora_rank=16))
    matmul = ledger.model_flops - ledger.of("forward_attention", "backward_attention")
    frozen = count_parameters(card).matrix_multiplied
    adapters = TrainingShape(card, Method.LORA, 8192, 2, lora_rank=16).adapter_weights
    assert matmul == (4 * frozen + 6 * adapters) * ledger.tokens
    assert 0 < ledger.not_needed < 0.01 * matmul


def test_published_full_fine_tuning_of_llama_used_a_known_share_of_the_peak() -> None:
    # Source 003: 4.7 s for 2 x 8192 tokens on one H100.
    shape = TrainingShape(FACTS.model("llama-3.1-8b"), Method.FULL, 8192, 2)
    peak = FACTS.accelerator("nvidia-h100-80gb-sxm").peak_tflops["bf16"] * 1e12
    assert flops_ledger(shape).model_flops / 4.7 / peak == pytest.approx(0.181, abs=0.001)


def test_palm_counts_slots_and_all_pairs() -> None:
    card = FACTS.model("llama-3-8b")
    half = TrainingShape(card, Method.FULL, 4096, 1, document_lengths=(2048,))
    assert palm_flops(half) == palm_flops(TrainingShape(card, Method.FULL, 4096, 1))
    square = flops_ledger(TrainingShape(card, Method.FULL, 4096, 1), "square")
    assert palm_flops(half) == square.model_flops


def test_the_window_of_gemma_2_holds_in_every_second_block_and_that_of_mistral_in_all() -> None:
    gemma, mistral = FACTS.model("gemma-2-9b"), FACTS.model("mistral-7b")
    for card, limited in ((gemma, 21), (mistral, 32)):
        shape = TrainingShape(card, Method.FULL, 8192)
        whole, within = 8192 * 8193 // 2, 4096 * 4097 // 2 + 4096 * 4096
        pairs = limited * within + (card.layers - limited) * whole
        assert flops_ledger(shape).of("forward_attention") == 4 * card.attention_heads * card.head_dim * pairs


lengths = st.lists(st.integers(1, 64), min_size=1, max_size=6)


@given(lengths, st.integers(1, 80))
def test_pairs_are_those_of_the_mask_itself(documents: list[int], window: int) -> None:
    def allowed(length: int, limit: int) -> int:
        return sum(1 for query in range(length) for key in range(query + 1) if query - key < limit)

    assert attention_pairs(documents, causal=True) == sum(allowed(length, length) for length in documents)
    assert attention_pairs(documents, causal=True, window=window) == sum(allowed(length, window) for length in documents)
    assert attention_pairs(documents, causal=False) == sum(length**2 for length in documents)
    near = sum(abs(query - key) <= window // 2 for length in documents for query in range(length) for key in range(length))
    assert attention_pairs(documents, causal=False, window=window) == near
    within = sum(1 for length in documents for query in range(length) for key in range(query + 1) if query // window == key // window)
    assert attention_pairs(documents, causal=True, window=window, chunked=True) == within


@settings(max_examples=60)
@given(st.sampled_from(FAMILIES), lengths, st.sampled_from([Method.FULL, Method.LORA]), st.sampled_from(list(Checkpointing)))
def test_classes_obey_their_definitions(family: str, documents: list[int], method: Method, checkpointing: Checkpointing) -> None:
    card = tiny(family)
    shape = TrainingShape(card, method, 64, len(documents), document_lengths=tuple(documents), checkpointing=checkpointing)
    ledger = flops_ledger(shape)
    assert ledger.of("backward_attention") == 2 * ledger.of("forward_attention")
    assert ledger.of("backward_adapters") == 2 * ledger.of("forward_adapters")
    assert ledger.of("backward_weight") == (ledger.of("forward_matmul") if method is Method.FULL else 0)
    assert ledger.hardware_flops == ledger.model_flops + ledger.of("recompute")
    assert 0 <= ledger.not_needed < ledger.model_flops
    assert (ledger.of("recompute") > 0) == (checkpointing is Checkpointing.FULL)


VIEWS = {
    *("_unsafe_view", "alias", "as_strided", "detach", "empty_like", "expand", "permute", "select"),
    *("slice", "split_with_sizes", "squeeze", "t", "transpose", "unsqueeze", "view"),
}
"""Operations that start nothing on a device."""


@pytest.mark.parametrize("step", ["llama full none", "gpt2 full none", "llama lora none", "llama lora full", "qwen3 full full"])
def test_a_host_issues_about_as_many_operations_for_a_block_as_are_counted(step: str) -> None:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    family, method, checkpointing = step.split()

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal issued
            issued += func.overloadpacket.__name__ not in VIEWS
            return func(*args, **(kwargs or {}))

    found = []
    for layers in (2, 4):
        issued, card = 0, tiny_card(family, layers=layers)
        shape = TrainingShape(
            card,
            Method(method),
            LENGTH,
            checkpointing=Checkpointing(checkpointing),
            lora_targets=targets_of(card) if method == "lora" else (),
            lora_dropout=0.05,
        )
        model, inputs = _model(shape).train(), torch.ones(1, LENGTH, dtype=torch.long)
        with Count():
            model(input_ids=inputs, labels=inputs).loss.backward()
        found.append((issued, issue_seconds(shape) * shape.slots / ISSUE_S))
    (few, few_counted), (many, many_counted) = found
    assert (many_counted - few_counted) / (many - few) == pytest.approx(1, abs=0.5)
