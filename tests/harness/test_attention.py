"""Each way to keep packed documents apart gives the loss and the gradients of the masked one."""

import inspect
from contextlib import nullcontext
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from fake_device import Syncs
from harness_making import make_machine, trained_on
from tiny_models import tiny_card
from torch.nn.attention import flex_attention, varlen
from transformers import masking_utils
from transformers.integrations import flex_attention as transformers_flex

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.vendors.cpu import Cpu
from tunemark.harness.worker import levers
from tunemark.harness.worker.data import load_samples, pack, packed_tensors, piece_lengths, tensors_of, to_device
from tunemark.harness.worker.levers import attention_kernel
from tunemark.harness.worker.loop import accumulate_gradients
from tunemark.harness.worker.models import build_model, packed_documents
from tunemark.schema.physics import families as physics
from tunemark.schema.vocabulary import Backend

LENGTH, ROWS, WINDOW = 48, 3, 12
FAMILIES = (
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi3",
    "olmo3",
    "cohere2",
    "deepseek_v2",
    "deepseek_v3",
    "llama4_text",
)
PACKED = ("data.packing=true", "data.name=random-documents", f"data.sequence_length={LENGTH}", f"batch.micro_batch={ROWS}", "compute=fp32")

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
BEFORE_5 = int(transformers.__version__.split(".")[0]) < 5


def case(facts, family, tmp_path):
    """Return plan, model with the masked attention of the family, and packed rows."""
    # Rows of at most one chunk: packing has no mask for chunks.
    card = tiny_card(family, window=LENGTH if family == "llama4_text" else WINDOW)
    masked = "eager" if physics.FAMILIES[family].eager else "sdpa"
    plan = resolve("smoke-full", facts, make_machine(), Options(overrides=(*PACKED, f"model={card.key}", f"attention={masked}"))).plan
    model = build_model(plan, card, None, None, tmp_path, Cpu())
    rows = list(islice(pack(load_samples(plan, 256, None, None).training, LENGTH), ROWS))
    return plan, model, rows


def step(model, rows, kind):
    """Return the loss of packed rows and all gradients."""
    model.config._attn_implementation = kind
    model.zero_grad(set_to_none=True)
    loss = model(**to_device(packed_tensors(rows, kind), "cpu")).loss
    loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def assert_same(left, right):
    torch.testing.assert_close(left[0], right[0], rtol=1e-5, atol=1e-6)
    assert left[1].keys() == right[1].keys()
    for name, gradient in left[1].items():
        torch.testing.assert_close(gradient, right[1][name], rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def reference_varlen(query, key, value, *lengths, scale=None, window_size=(-1, -1), enable_gqa=False):
    """Do what torch's function does, piece by piece."""
    cu_seq_q, cu_seq_k, max_q, max_k = lengths
    assert (cu_seq_q.dtype, cu_seq_q.tolist()) == (torch.int32, cu_seq_k.tolist())
    assert isinstance(max_q, int)
    assert max_q == max_k >= int(cu_seq_q.diff().max())
    assert enable_gqa is (levers.tells_groups() and query.shape[1] != key.shape[1])
    before, after = window_size
    assert after == 0
    parts = []
    for start, end in zip(cu_seq_q.tolist(), cu_seq_q.tolist()[1:], strict=False):
        index = torch.arange(end - start)
        seen = index[:, None] >= index[None, :]
        if before >= 0:
            seen &= index[:, None] - index[None, :] <= before
        part = (one[start:end].transpose(0, 1) for one in (query, key, value))
        groups = query.shape[1] // key.shape[1]
        queries, keys, values = part
        keys, values = (one.repeat_interleave(groups, dim=0) for one in (keys, values))
        parts.append(torch.nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=seen, scale=scale).transpose(0, 1))
    return torch.cat(parts)


@pytest.fixture
def varlen_on_cpu(monkeypatch):
    real = levers.tells_groups()
    monkeypatch.setattr(levers, "tells_groups", lambda: real)
    monkeypatch.setattr(varlen, "varlen_attn", reference_varlen)


STATELESS = [
    family for family, traits in physics.FAMILIES.items() if not traits.encoder and traits.limited == "window" and family != "bloom"
]


@pytest.mark.parametrize("family", [family for family in STATELESS if family in transformers.CONFIG_MAPPING])
def test_the_masks_of_every_family_keep_packed_documents_apart(facts, tmp_path, family):
    plan, model, rows = case(facts, family, tmp_path)
    assert packed_documents(plan, model, packed_tensors(rows, plan.model.attention))["passed"]


@pytest.mark.usefixtures("varlen_on_cpu")
@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in {"gemma2", "deepseek_v2", "deepseek_v3", "llama4_text"}])
def test_variable_length_attention_gives_the_loss_and_gradients_of_the_mask(facts, tmp_path, family):
    plan, model, rows = case(facts, family, tmp_path)
    masked = step(model, rows, "sdpa")
    assert_same(step(model, rows, "varlen"), masked)
    assert attention_kernel(plan, model) == "flash"


@pytest.mark.usefixtures("varlen_on_cpu")
def test_the_gate_holds_for_variable_length_attention_and_fails_without_lengths(facts, tmp_path):
    plan, model, rows = case(facts, "llama", tmp_path)
    model.config._attn_implementation = "varlen"
    tensors = packed_tensors(rows, "varlen")
    assert packed_documents(plan, model, tensors)["passed"]
    leaky = tensors | piece_lengths("varlen", np.tile(np.arange(LENGTH), (ROWS, 1)))
    assert packed_documents(plan, model, leaky)["passed"] is False


def test_torchs_own_function_has_the_parameters_that_are_passed():
    parameters = inspect.signature(varlen.varlen_attn).parameters
    assert list(parameters)[:7] == ["query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k"]
    assert {"scale", "window_size"} <= set(parameters)
    # Since torch 2.12 it must be told that keys have fewer heads.
    assert ("enable_gqa" in parameters) is (TORCH >= (2, 12))
    schema = str(torch.ops.torch_attn._varlen_attn.default._schema)
    assert schema.startswith("torch_attn::_varlen_attn(Tensor query, Tensor key, Tensor value, Tensor cu_seq_q")


def small(facts, family, folder, *settings):
    """Return plan and model of a tiny model whose rows are padded to the longest."""
    card = tiny_card(family, window=WINDOW)
    changes = ("compute=fp32", f"model={card.key}", "data.padding=dynamic", *settings)
    plan = resolve("smoke-bert" if family == "bert" else "smoke-full", facts, make_machine(), Options(overrides=changes)).plan
    return plan, build_model(plan, card, None, None, folder, Cpu())


def rows_of(*sizes):
    return [{"input_ids": np.arange(1, 1 + size), "label": row % 2} for row, size in enumerate(sizes)]


@pytest.mark.skipif(BEFORE_5, reason="transformers 4 makes BERT's masks with other functions, and runs on Neuron devices only")
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "mistral"])
def test_no_pass_over_padded_or_full_rows_reads_a_tensor_of_the_device(facts, tmp_path, family):
    plan, model = small(facts, family, tmp_path)
    for sizes in ((16, 16), (16, 9)):
        tensors = tensors_of(plan, rows_of(*sizes))
        assert ("attention_mask" in tensors) is (sizes[0] != sizes[1])
        with Syncs() as syncs:
            model(**tensors).loss.backward()
        assert syncs.seen == []


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3_text"])
def test_the_masks_of_packed_rows_are_made_without_reading_a_tensor_of_the_device(facts, tmp_path, family):
    _, model, rows = case(facts, family, tmp_path)
    with Syncs() as syncs:
        model(**packed_tensors(rows, "sdpa")).loss.backward()
    assert syncs.seen == []


@pytest.mark.parametrize("family", ["bert", "llama", "mistral"])
def test_padding_changes_no_real_token(facts, tmp_path, family):
    plan, model = small(facts, family, tmp_path)
    model.eval()
    rows = rows_of(20, 9)
    with torch.no_grad():
        padded = model(**tensors_of(plan, rows)).logits
        alone = [model(**tensors_of(plan, [row])).logits[0] for row in rows]
    for together, single in zip(padded, alone, strict=True):
        torch.testing.assert_close(together[: len(single)] if family != "bert" else together, single, rtol=1e-4, atol=1e-5)


# FlexAttention


def reference_flex(query, key, value, *, block_mask, score_mod, scale, **_training):
    """Attend to what both the listed blocks and the function of the mask leave visible, with gradients, which flex lacks on CPUs."""
    rows, length = query.shape[0], query.shape[2]
    listed = block_mask.to_dense().bool().repeat_interleave(128, 2).repeat_interleave(128, 3)
    seen = flex_attention.create_mask(block_mask.mask_mod, rows, 1, length, length, "cpu") & listed[:, :, :length, :length]
    groups = query.shape[1] // key.shape[1]
    key, value = (one.repeat_interleave(groups, dim=1) for one in (key, value))
    scores = score_mod(query @ key.transpose(2, 3) * scale, 0, 0, 0, 0)
    return scores.masked_fill(~seen, float("-inf")).softmax(-1) @ value


def uncompiled(*sizes, _compile, **named):
    return flex_attention.create_block_mask(*sizes, **named)


@pytest.mark.parametrize("family", FAMILIES)
def test_flex_attention_gives_the_loss_and_gradients_of_the_mask(facts, tmp_path, monkeypatch, family):
    _, model, rows = case(facts, family, tmp_path)
    masked = step(model, rows, "eager" if family == "gemma2" else "sdpa")
    monkeypatch.setattr(transformers_flex, "compile_friendly_flex_attention", reference_flex)
    monkeypatch.setattr(masking_utils, "create_block_mask", uncompiled)
    assert_same(step(model, rows, "flex_attention"), masked)


@pytest.mark.nightly
def test_torchs_own_flex_attention_gives_the_loss_of_the_mask_and_passes_the_gate(facts, tmp_path):
    plan, model, rows = case(facts, "llama", tmp_path)
    # On a CPU it has no backward pass.
    model.requires_grad_(requires_grad=False)
    losses = {}
    for kind in ("sdpa", "flex_attention"):
        model.config._attn_implementation = kind
        tensors = to_device(packed_tensors(rows, kind), "cpu")
        losses[kind] = float(model(**tensors).loss)
    assert losses["flex_attention"] == pytest.approx(losses["sdpa"], rel=1e-5)
    assert packed_documents(plan, model, tensors)["passed"]


@pytest.mark.skipif(BEFORE_5, reason="transformers 4 cannot run this model on the meta device")
@pytest.mark.parametrize("settings", [("method=full", "gradient_checkpointing=full"), ("method=lora", "gradient_checkpointing=none")])
def test_compiled_blocks_take_any_number_of_pieces_in_one_graph(facts, monkeypatch, tmp_path, settings):
    """Neither another number of pieces nor the first block of a model with adapters is one more graph."""
    monkeypatch.setitem(levers.COMPILERS, Backend.CPU, "eager")
    torch._dynamo.reset()
    card = facts.model("tiny-llama")
    changes = (*PACKED, "attention=varlen", "compile=blocks", *settings)
    plan = resolve("smoke-lora", facts, make_machine(), Options(overrides=changes)).plan
    model, batches = trained_on(plan, card, tmp_path)
    model.to(torch.bfloat16).to("meta")
    levers.compile_model(plan, model)
    engine = SimpleNamespace(model=model, processes=1, exchange=lambda **_: nullcontext(), backward=lambda loss, **_: loss.backward())
    trainer = SimpleNamespace(engine=engine, device=SimpleNamespace(torch_name="meta", free_marks=False), plan=plan)
    micro_batches, before = list(islice(batches, 4)), levers.compiled_graphs()
    assert len({len(each.tensors["cu_seq_lens_q"]) for each in micro_batches}) > 1
    accumulate_gradients(trainer, micro_batches)
    assert levers.compiled_graphs() - before == 1
