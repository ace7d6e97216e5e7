"""Matrices that multiply in fp8: frozen weights of LoRA in torch alone, trained ones through torchao."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
import transformers
from harness_making import make_machine, only_submission, problems_of, tunemark
from test_random_weights import Drawing
from torch.utils._python_dispatch import TorchDispatchMode

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.vendors.cpu import Cpu
from tunemark.harness.vendors.protocol import COMPLETE_INITIALISERS, all_vendors, vendor_of
from tunemark.harness.worker import models
from tunemark.harness.worker.data import load_samples, micro_batches, shape_of
from tunemark.harness.worker.fp8 import FrozenFp8Linear, layers_in_fp8, rounded, store_frozen
from tunemark.harness.worker.gates import adapter_gradient
from tunemark.harness.worker.levers import blocks, compile_model, compiled_graphs, effective
from tunemark.harness.worker.models import build_model, model_facts
from tunemark.harness.worker.optimizers import build_optimizer
from tunemark.schema.features import Feature
from tunemark.schema.physics.memory_states import state_lines
from tunemark.schema.physics.training_shape import shape_of_plan
from tunemark.schema.records.division import division_of
from tunemark.schema.records.effective import compared
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.records.trace import Effective, StepTrace
from tunemark.schema.vocabulary import Backend, Division, Dtype, Status

FORMATS = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)
HALF_STEP = 2.0**-4
"""Largest relative rounding error of three bits of mantissa."""
OF_A_CHAIN = HALF_STEP / 3**0.5 * 28**0.5
"""Relative error of gradients behind up to 28 products, forward and backward, whose errors add up like random ones."""
TINY = ("data.sequence_length=32", "batch.micro_batch=2")
FROZEN, TRAINED = "frozen_weights=fp8", "fp8_training=rowwise"


def planned(facts, *settings, workload="smoke-lora", machine=None, **options):
    return resolve(workload, facts, machine or make_machine(), Options(overrides=settings, **options))


def built(facts, *settings, device=None, folder=Path()):
    plan, card = planned(facts, *TINY, *settings).plan, facts.model("tiny-llama")
    model = build_model(plan, card, None, None, folder, device or Cpu())
    batch = next(micro_batches(plan, load_samples(plan, card.vocabulary, None, None).training, shape_of(plan, card)))
    return plan, model, batch


def with_gradients(model, batch):
    """Return the loss, and the gradients of the adapters after `lora_B` has left zero, without which half of them are zero."""
    torch.manual_seed(5)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    loss = model(**batch.tensors).loss
    loss.backward()
    return loss.detach(), {name: p.grad.float().clone() for name, p in model.named_parameters() if p.grad is not None}


def distance(found, expected):
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def exact(model):
    """Return the model in fp32, with the stored weights in place of layers in fp8."""
    for unit in blocks(model):
        for path in [path for path, one in unit.named_modules() if isinstance(one, FrozenFp8Linear)]:
            one, (parent, _, name) = unit.get_submodule(path), path.rpartition(".")
            plain = torch.nn.Linear(one.in_features, one.out_features, bias=False)
            plain.weight = torch.nn.Parameter(one.restored(), requires_grad=False)
            setattr(unit.get_submodule(parent), name, plain)
    return model.float()


def layer(outputs=48, inputs=32):
    torch.manual_seed(3)
    plain = torch.nn.Linear(inputs, outputs, bias=False, dtype=torch.bfloat16)
    # Rows of different size have different scales.
    plain.weight.data *= torch.logspace(-3, 3, outputs).view(-1, 1).bfloat16()
    return plain, FrozenFp8Linear(plain, "cpu")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_number_is_rounded_by_at_most_half_a_step_and_its_scale_is_a_power_of_two(form, dtype):
    torch.manual_seed(0)
    rows = torch.randn(64, 128, dtype=dtype) * torch.logspace(-6, 6, 64).view(-1, 1).to(dtype)
    short, scales = rounded(rows, form)
    mantissas, _ = torch.frexp(scales)
    assert torch.equal(mantissas, torch.full_like(mantissas, 0.5))
    restored, largest = short.float() * scales, rows.float().abs().amax(dim=1, keepdim=True)
    # Far below the largest number of a row, steps no longer shrink.
    error = (restored - rows.float()).abs()
    assert bool((error <= torch.maximum(HALF_STEP * rows.float().abs(), largest * 2.0**-17)).all())
    full = short.float().abs().amax(dim=1) / torch.finfo(form).max
    assert bool(((full > 0.45) & (full <= 1)).all())


@pytest.mark.parametrize("form", FORMATS)
def test_rows_at_the_edges_of_the_format_stay_what_they_are(form):
    most = torch.finfo(form).max
    edges = torch.tensor([[most, 1.0], [0.0, 0.0], [2 * most, -2 * most], [most * 2.0**-40, 0.0]])
    short, scales = rounded(edges, form)
    assert torch.equal(short.float() * scales, edges)
    assert scales[0] == 1
    assert not bool(torch.isfinite(rounded(torch.tensor([[float("nan"), 1.0]]), form)[0].float()).all())


def test_the_scale_of_each_output_is_applied_forward_and_backward():
    """Rows of the identity are exact in fp8, so that the products are the stored weight itself."""
    _, short = layer()
    inputs = torch.eye(32, dtype=torch.bfloat16, requires_grad=True)
    result = short(inputs)
    assert torch.equal(result.detach().t().float(), short.restored())
    towards = torch.eye(48, 48, dtype=torch.bfloat16)[:32]
    result.backward(towards)
    assert torch.equal(inputs.grad.float(), short.restored()[:32])


def test_products_differ_from_those_of_the_stored_weight_by_the_rounding_of_one_operand():
    plain, short = layer(256, 512)
    inputs = torch.randn(4, 100, 512).bfloat16().requires_grad_()
    wanted = inputs.detach().float().requires_grad_()
    towards = torch.randn(4, 100, 256)
    result, exact = short(inputs), torch.nn.functional.linear(wanted, short.restored())
    result.backward(towards.bfloat16())
    exact.backward(towards.bfloat16().float())
    # Evenly distributed relative errors up to half a step have this mean square, and independent ones do not add up.
    expected = HALF_STEP / 3**0.5
    assert 0.3 * expected < distance(result.detach(), exact.detach()) < expected
    assert 0.3 * expected < distance(inputs.grad, wanted.grad) < expected
    assert distance(short.restored(), plain.weight) < expected


def test_a_bias_is_added_and_keeps_its_format():
    plain = torch.nn.Linear(32, 16, dtype=torch.bfloat16)
    torch.nn.init.ones_(plain.bias)
    short, without = FrozenFp8Linear(plain, "cpu"), FrozenFp8Linear(torch.nn.Linear(32, 16, bias=False, dtype=torch.bfloat16), "cpu")
    without.weight, without.weight_scales = short.weight, short.weight_scales
    inputs = torch.randn(3, 32).bfloat16()
    assert torch.equal(short(inputs), without(inputs) + 1)


def test_casting_a_model_changes_no_stored_weight():
    """As DeepSpeed casts whole models."""
    _, short = layer()
    before = short.restored()
    short.bfloat16()
    assert torch.equal(short.restored(), before)
    assert short(torch.eye(32, dtype=torch.bfloat16)).isfinite().all()


def test_loss_and_gradients_of_adapters_are_those_of_the_stored_weights_but_for_rounding(facts):
    plan, model, batch = built(facts, FROZEN)
    assert adapter_gradient(plan, model, batch.tensors)["passed"]
    loss, found = with_gradients(model, batch)
    model.zero_grad()
    wanted_loss, wanted = with_gradients(exact(model), batch)
    assert float(loss) == pytest.approx(float(wanted_loss), rel=2e-3)
    assert found.keys() == wanted.keys()
    assert max(distance(found[name], wanted[name]) for name in wanted) < OF_A_CHAIN


def test_only_the_matrices_of_the_blocks_are_stored_in_fp8_and_take_the_predicted_bytes(facts):
    plan, model, _ = built(facts, FROZEN)
    _, plain, _ = built(facts, "compute=bf16")
    sizes, whole = model_facts(model), model_facts(plain)
    assert sizes["parameters"] == whole["parameters"]
    assert sizes["trainable_parameters"] == whole["trainable_parameters"]
    linear = sum(p.numel() for name, p in plain.named_parameters() if "base_layer" in name)
    predicted = {line.key: line.bytes for line in state_lines(shape_of_plan(plan, facts.model("tiny-llama")))}
    assert sizes["parameter_bytes"]["fp8"] == linear == predicted["fp8 weights"]
    assert sizes["parameter_bytes"]["scales of fp8 weights"] == predicted["fp8 scales"]
    assert sizes["parameter_bytes"]["bf16"] == whole["parameter_bytes"]["bf16"] - 2 * linear
    assert type(model.get_output_embeddings()) is torch.nn.Linear
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.bfloat16}


class Products(TorchDispatchMode):
    """Counts the products in fp8."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, _types, arguments=(), settings=None):
        self.count += "_scaled_mm" in str(function)
        return function(*arguments, **(settings or {}))


def test_recomputing_changes_no_gradient_and_selective_checkpointing_repeats_no_product(facts):
    seen, counts = {}, {}
    for kind in ("none", "selective", "full"):
        _, model, batch = built(facts, FROZEN, f"gradient_checkpointing={kind}")
        with Products() as products:
            _, seen[kind] = with_gradients(model, batch)
        counts[kind] = products.count
    layers = len(layers_in_fp8(model))
    assert counts["full"] == 3 * layers
    # Without checkpointing nothing before the first block needs a gradient; peft makes its input need one otherwise.
    assert counts["none"] == counts["selective"] - 3 == 2 * layers - 3
    for one, other in pairwise(seen.values()):
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_compiled_blocks_are_as_exact_as_those_that_are_not_compiled(facts):
    """Inductor keeps other intermediate results in bf16, and a number near the middle of two steps is rounded to the other one."""
    _, plain, batch = built(facts, FROZEN)
    plan, model, _ = built(facts, FROZEN, "compile=blocks")
    compile_model(plan, model)
    (one, wanted), (other, found) = with_gradients(exact(plain), batch), with_gradients(model, batch)
    assert compiled_graphs() > 0
    assert float(one) == pytest.approx(float(other), rel=2e-3)
    assert max(distance(found[name], wanted[name]) for name in wanted) < OF_A_CHAIN


@pytest.mark.skipif(
    int(transformers.__version__.split(".")[0]) < COMPLETE_INITIALISERS, reason="it draws the whole model in its own format"
)
def test_a_device_that_draws_weights_never_holds_more_than_one_matrix_in_16_bits(facts, monkeypatch):
    plain_bytes, store = [], FrozenFp8Linear.store
    monkeypatch.setattr(models, "DRAWN_ON_HOST", 0)

    def watched(layer, weight):
        plain_bytes.append(
            sum(module.weight.nbytes for module in parents[0].modules() if type(module) is torch.nn.Linear and not module.weight.is_meta)
        )
        store(layer, weight)

    parents = []
    draw = models.draw
    monkeypatch.setattr(FrozenFp8Linear, "store", watched)
    monkeypatch.setattr(models, "draw", lambda unit, model, device: parents.append(model) or draw(unit, model, device))
    _, drawn, batch = built(facts, FROZEN, device=Drawing())
    _, host, _ = built(facts, FROZEN)
    head = host.get_output_embeddings().weight.nbytes
    assert len(plain_bytes) == len(layers_in_fp8(drawn)) + len(layers_in_fp8(host))
    assert set(plain_bytes[: len(layers_in_fp8(drawn))]) <= {0, head}
    for one, other in zip(layers_in_fp8(drawn), layers_in_fp8(host), strict=True):
        assert float(one.restored().std()) == pytest.approx(float(other.restored().std()), rel=0.05)
        assert not torch.equal(one.weight, other.weight)
    assert torch.isfinite(drawn(**batch.tensors).loss)


def test_pretrained_weights_are_stored_layer_by_layer(facts, tmp_path):
    _, plain, batch = built(facts, "compute=bf16")
    base = plain.unload()
    base.save_pretrained(tmp_path)
    plan = planned(facts, *TINY, FROZEN, weights=f"pretrained:{tmp_path}").plan
    model = build_model(plan, facts.model("tiny-llama"), str(tmp_path), None, tmp_path, Cpu())
    linear = [module for unit in blocks(base) for module in unit.modules() if type(module) is torch.nn.Linear]
    assert len(linear) == len(layers_in_fp8(model))
    for one, other in zip(layers_in_fp8(model), linear, strict=True):
        assert distance(one.restored(), other.weight) < HALF_STEP / 3**0.5
    assert float(model(**batch.tensors).loss) == pytest.approx(float(base(**batch.tensors).loss), rel=5e-3)


def test_a_replaced_weight_is_free_before_the_next_one_is_rounded(monkeypatch):
    import weakref

    unit = torch.nn.Sequential(*(torch.nn.Linear(16, 16, bias=False, dtype=torch.bfloat16) for _ in range(4)))
    alive, held = [weakref.ref(one.weight) for one in unit], []
    store = FrozenFp8Linear.store
    monkeypatch.setattr(
        FrozenFp8Linear, "store", lambda own, weight: held.append(sum(one() is not None for one in alive)) or store(own, weight)
    )
    store_frozen([unit], "cpu")
    assert held == [4, 3, 2, 1]


def test_what_took_effect_is_read_from_the_layers(facts):
    plan, model, _ = built(facts, FROZEN)
    _, plain, _ = built(facts, "compute=bf16")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    for one, agrees in ((model, True), (plain, False)):
        seen = Effective(**effective(plan, one, optimizer, 1, None, None) | {"compute": "bf16"})
        stored = next(row for row in compared(plan, seen, StepTrace()) if row.setting == "quantisation")
        assert (stored.requested, stored.agrees) == ("fp8", agrees)


@pytest.mark.parametrize(
    ("workload", "settings", "reason"),
    [
        ("smoke-lora", (FROZEN,), None),
        ("gpt2-small-full", ("compute=bf16", TRAINED), "layers of GPT-2 are not linear layers"),
        ("smoke-lora", ("method=full", FROZEN), "use method=lora with frozen_weights=fp8"),
        ("smoke-lora", ("method=qlora", FROZEN), "four bits; use method=lora"),
        ("smoke-lora", ("compute=fp32", FROZEN), "use compute=bf16"),
        ("smoke-lora", (TRAINED,), "LoRA freezes them; use frozen_weights=fp8"),
        ("smoke-lora", ("method=full", TRAINED), None),
        ("large-qlora-2k-mixtral-8x7b", ("method=lora", FROZEN), "experts of transformers 5 are not linear layers"),
        ("smoke-lora", ("model=gemma-7b", FROZEN), None),
    ],
)
def test_settings_that_exclude_fp8_are_refused_with_the_fix(facts, workload, settings, reason):
    ready = make_machine(packages={"torch": "2.13.0", "torchao": "0.18.0", "bitsandbytes": "0.50.2"})
    said = planned(facts, *settings, workload=workload, machine=ready).unsupported
    assert said is None if reason is None else reason in said, said


@pytest.mark.parametrize("strategy", ["fsdp2", "zero3"])
def test_shards_hold_no_frozen_weights_in_fp8(facts, strategy):
    two = make_machine(packages={"torch": "2.13.0", "deepspeed": "0.19.8"})
    assert "use ddp, zero1 or zero2" in planned(facts, FROZEN, machine=two, devices=2, strategy=strategy).unsupported
    assert planned(facts, FROZEN, machine=two, devices=2, strategy="zero2").unsupported is None


def test_training_in_fp8_names_the_package_that_it_needs(facts):
    assert "pip install torchao" in planned(facts, "method=full", TRAINED).unsupported


@pytest.mark.parametrize(
    ("backend", "target", "runs"),
    [
        *((Backend.CUDA, target, False) for target in ("7.5", "8.0", "8.6", "6.1")),
        *((Backend.CUDA, target, True) for target in ("8.9", "9.0", "10.0", "12.0")),
        *((Backend.ROCM, target, False) for target in ("gfx908", "gfx90a", "gfx1100", "gfx1030")),
        *((Backend.ROCM, target, True) for target in ("gfx942", "gfx950", "gfx1201")),
        (Backend.MPS, None, False),
        (Backend.XPU, None, False),
        (Backend.NEURON, None, False),
        (Backend.CPU, None, True),
    ],
)
def test_a_generation_without_fp8_units_is_refused_before_anything_runs(facts, backend, target, runs):
    machine = make_machine(
        backend=backend,
        target=target,
        devices=(DeviceFacts(name="A device that no card knows"),),
        compute_dtypes=(Dtype.BF16, Dtype.FP16, Dtype.FP32),
        packages={"torch": "2.13.0", "torchao": "0.18.0", "optimum-neuron": "0.4.5"},
    )
    for settings, feature in (((FROZEN,), Feature.FP8_FROZEN), (("method=full", TRAINED), Feature.FP8_TRAINING)):
        said = planned(facts, *settings, machine=machine).unsupported
        refused = said is not None and said.startswith(feature.value)
        lacks_bf16 = said is not None and said.startswith("bf16")
        assert (said is None) is runs or lacks_bf16, said
        assert refused or runs or lacks_bf16, said


def test_every_family_says_whether_it_has_fp8():
    has = {Backend.CPU, Backend.CUDA, Backend.ROCM, Backend.FAKE}
    for vendor in all_vendors():
        assert (Feature.FP8_FROZEN in vendor.cannot) is (vendor.backend not in has), vendor.backend
        assert (Feature.FP8_TRAINING in vendor.cannot) is (vendor.backend not in has), vendor.backend


def test_the_format_of_frozen_weights_is_free_in_the_tuned_division_and_training_in_fp8_is_not(facts):
    gpu = make_machine(
        backend=Backend.CUDA,
        target="9.0",
        devices=(DeviceFacts(name="NVIDIA H100 80GB HBM3"),),
        compute_dtypes=vendor_of(Backend.CUDA).formats,
    )
    for settings, division in (((), Division.STANDARD), ((FROZEN,), Division.TUNED), (("fp8_training=tensorwise",), Division.OPEN)):
        resolved = planned(facts, *settings, machine=gpu)
        assert division_of(resolved.plan, resolved.overrides) is division


def test_fp8_takes_bf16_where_the_card_leaves_the_format_open(facts):
    plan = planned(facts, FROZEN).plan
    assert plan.precision.compute is Dtype.BF16
    assert plan.reasons["precision.compute"] == "products of fp8 numbers give bf16"
    assert plan.product_formats == "bf16/fp8"
    assert planned(facts).plan.product_formats == "fp32"


def test_a_run_with_frozen_weights_in_fp8_is_a_valid_submission_inside_the_loss_band(tmp_path, facts):
    done = tunemark("run", "smoke-lora", "--steps", 10, "--set", FROZEN, "--no-probe", "--out", tmp_path)
    submission = only_submission(tmp_path)
    assert submission.outcome.status is Status.OK, done.stderr
    assert submission.division is Division.TUNED
    assert submission.effective.quantisation == "fp8"
    assert submission.model.parameter_bytes["fp8"] > 0
    assert {gate.name: gate.passed for gate in submission.gates}["loss_band"] is True
    assert not [warning for warning in submission.warnings if warning.kind.value == "fallback"]
    assert problems_of(tmp_path, facts) == []


TWO = ("--steps", 6, "--no-probe", "--no-gates", "--timeout", 200, "--set", FROZEN, "--set", "data.sequence_length=32")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One process that does in two micro-batches what two processes do in one each."""
    folder = tmp_path_factory.mktemp("alone")
    done = tunemark("run", "smoke-lora", *TWO, "--set", "batch.gradient_accumulation=2", "--out", folder)
    assert done.returncode == 0, done.stderr
    return only_submission(folder)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "zero2"])
def test_two_processes_train_adapters_on_frozen_weights_in_fp8(alone, tmp_path, strategy):
    if strategy == "zero2":
        pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    done = tunemark("run", "smoke-lora", *TWO, "--devices", 2, "--strategy", strategy, "--out", tmp_path)
    both = only_submission(tmp_path)
    assert both.outcome.status is Status.OK, done.stderr
    assert both.trace.loss == pytest.approx(alone.trace.loss, rel=5e-3)
    assert both.effective.quantisation == "fp8"


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_torchao_trains_the_matrices_of_the_blocks_in_fp8(facts, monkeypatch, recipe):
    pytest.importorskip("torchao", reason="torchao is not installed; it is an optional package")
    ready = make_machine(packages={"torch": "2.13.0", "torchao": "0.18.0"})
    plan = planned(facts, *TINY, "method=full", "optimizer.learning_rate=1e-3", f"fp8_training={recipe}", machine=ready).plan
    card = facts.model("tiny-llama")
    model = build_model(plan, card, None, None, Path(), Cpu())
    batch = next(micro_batches(plan, load_samples(plan, card.vocabulary, None, None).training, shape_of(plan, card)))
    optimizer = build_optimizer(plan, model, fused=False)
    assert effective(plan, model, optimizer, 1, None, None)["fp8_training"] == recipe
    assert type(model.get_output_embeddings()) is torch.nn.Linear
    losses, products, product = [], [], torch._scaled_mm
    monkeypatch.setattr(torch, "_scaled_mm", lambda *matrices, **settings: products.append(1) or product(*matrices, **settings))
    for _ in range(8):
        loss = model(**batch.tensors).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    linear = [module for unit in blocks(model) for module in unit.modules() if isinstance(module, torch.nn.Linear)]
    assert len(products) == 8 * 3 * len(linear)
    assert losses[-1] < losses[0] - 0.5
