"""Each method and lever works: gradients agree, memory shrinks, and the settings in effect are recorded."""

import pytest
import torch
import torch.utils.checkpoint
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from harness_making import gpus, planned, run_of, trained_on
from peft.tuners.lora import LoraLayer

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.vendors.cpu import Cpu
from tunemark.harness.worker.engines import build_optimizer, parameter_groups
from tunemark.harness.worker.levers import effective
from tunemark.harness.worker.models import adapter_gradient, check, gradients_of, is_four_bit, model_facts, switch_to_evaluation
from tunemark.schema.physics.memory import state_lines
from tunemark.schema.physics.training_shape import shape_of_plan
from tunemark.schema.records.plan import Precision
from tunemark.schema.vocabulary import Dtype, Status

TINY = ("data.sequence_length=32", "batch.micro_batch=2")


@pytest.fixture
def prepared(facts, machine, tmp_path):
    """Model, first micro-batch and plan of smoke-lora with settings changed."""

    def make(*settings):
        here = machine.model_copy(update={"packages": machine.packages | {"bitsandbytes": "0"}})
        resolved = resolve("smoke-lora", facts, here, Options(overrides=(*TINY, *settings)))
        assert resolved.unsupported is None
        model, batches = trained_on(resolved.plan, facts.model("tiny-llama"), tmp_path / "weights")
        return resolved.plan, model, next(batches)

    return make


def gradients(model, batch):
    model(**batch.tensors).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", ["full", "selective"])
def test_recomputing_changes_no_gradient(prepared, kind):
    _, plain, batch = prepared("optimizer.name=adamw")
    _, saving, _ = prepared(f"gradient_checkpointing={kind}")
    expected, found = gradients(plain, batch), gradients(saving, batch)
    assert expected.keys() == found.keys()
    assert all(torch.allclose(expected[name], found[name], atol=1e-6) for name in expected)


def test_qlora_stores_frozen_weights_in_four_bits_and_trains_the_adapters(prepared):
    plan, model, batch = prepared("method=qlora")
    _, plain, _ = prepared()
    facts, whole = model_facts(model), model_facts(plain)
    assert facts["parameters"] == whole["parameters"]
    packed = facts["parameter_bytes"]["uint8"]
    linear = sum(p.numel() for name, p in plain.named_parameters() if "base_layer" in name)
    assert packed == linear // 2
    assert "scales of scales of 4-bit blocks" in facts["parameter_bytes"]
    gate = adapter_gradient(plan, model, batch.tensors)
    assert gate["passed"], gate


@pytest.mark.parametrize("settings", [("method=lora", "gradient_checkpointing=full"), ("method=qlora",)])
def test_on_fp16_devices_frozen_weights_are_in_fp16_and_their_gradients_are_those_of_fp32(facts, tmp_path, settings):
    """The tensors of a T4's plan have the bytes of the memory model, and a scaled step under autocast gives the adapters fp32's gradients."""
    card, packages = facts.model("tiny-llama"), {"torch": "2.13.0", "bitsandbytes": "0", "peft": "0"}
    plan = planned("smoke-lora", *TINY, *settings, machine=gpus("Tesla T4", gib=15, target="7.5", packages=packages)).plan
    assert plan.precision.parameters is Dtype.FP16
    model, batches = trained_on(plan, card, tmp_path / "half")
    exact = plan.model_copy(update={"precision": Precision(parameters=Dtype.FP32, compute=Dtype.FP32)})
    wide, _ = trained_on(exact, card, tmp_path / "wide")
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    assert {p.dtype for p in model.parameters() if not p.requires_grad} <= {torch.float16, torch.uint8}
    # The same numbers in both: adapters drawn alike, frozen weights rounded to fp16.
    half = {name: p for name, p in model.named_parameters() if p.dtype in {torch.float16, torch.float32}}
    with torch.no_grad():
        for name, p in wide.named_parameters():
            if name in half:
                p.copy_(half[name])
        for name in (name for name in half if "lora_B" in name):
            half[name].normal_(std=0.02)
            dict(wide.named_parameters())[name].copy_(half[name])
    for ours, theirs in zip(model.modules(), wide.modules(), strict=True):
        if is_four_bit(ours) and not isinstance(ours, LoraLayer):
            theirs.weight = ours.weight
    batch = next(batches)
    seen = []
    for module in model.modules():
        if isinstance(module, LoraLayer):
            module.lora_A["default"].register_forward_hook(lambda _, inputs, output: seen.append((inputs[0].dtype, output.dtype)))
    scale, optimizer = 1024.0, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    with torch.autocast("cpu", torch.float16):
        loss = model(**batch.tensors).loss
    (loss * scale).backward()
    assert set(seen) == {(torch.float16, torch.float16)}
    expected = gradients(wide, batch)
    for name, gradient in expected.items():
        assert half[name].grad.dtype is torch.float32
        assert (half[name].grad / scale - gradient).norm() <= 0.02 * gradient.norm(), name
    held = gradients_of(model)
    optimizer.step()
    facts_of, lines = model_facts(model, optimizer) | held, {line.key: line.bytes for line in state_lines(shape_of_plan(plan, card))}
    assert facts_of["adapter_bytes"] == lines["adapters"]
    assert facts_of["gradient_bytes"] == lines["gradients"]
    assert facts_of["parameter_bytes"]["fp16"] == lines["weights"]
    assert facts_of["optimizer_state_bytes"] == pytest.approx(lines["optimizer states"], rel=1e-3)


@pytest.mark.parametrize(("name", "waits"), [("adamw", False), ("adafactor", True)])
def test_a_scaled_update_waits_for_the_device_only_without_a_fused_optimizer(prepared, monkeypatch, name, waits):
    plan, model, batch = prepared(f"optimizer.name={name}")
    Accelerator(cpu=True)
    scaler = torch.amp.GradScaler("cpu")
    optimizer = AcceleratedOptimizer(build_optimizer(plan, model, fused=name == "adamw"), scaler=scaler)
    reads, item = [], torch.Tensor.item
    for overflow in (False, True):
        before = [p.detach().clone() for p in model.parameters() if p.requires_grad]
        scaler.scale(model(**batch.tensors).loss).backward()
        trained = [p for p in model.parameters() if p.requires_grad]
        if overflow:
            trained[0].grad.fill_(torch.inf)
        scaler.unscale_(optimizer.optimizer)
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        with monkeypatch.context() as patched:
            patched.setattr(torch.Tensor, "item", lambda tensor: reads.append(tensor) or item(tensor))
            optimizer.step()
        optimizer.zero_grad()
        unchanged = all(torch.equal(old, new) for old, new in zip(before, trained, strict=True))
        assert unchanged is overflow
    assert any(tensor.numel() == 1 and tensor.dtype is torch.float32 for tensor in reads) is waits


def test_a_frozen_adapter_fails_the_gate(prepared):
    plan, model, batch = prepared()
    next(p for name, p in model.named_parameters() if "lora_B" in name).requires_grad_(requires_grad=False)
    stuck = [p for name, p in model.named_parameters() if "lora_B" in name][1]
    stuck.register_hook(torch.zeros_like)
    assert adapter_gradient(plan, model, batch.tensors)["passed"] is False


def test_the_checks_leave_random_numbers_and_gradients_as_they_were(prepared):
    plan, model, batch = prepared("lora.dropout=0.5")
    before = torch.get_rng_state()
    assert {gate["name"]: gate["passed"] for gate in check(plan, model, Cpu(), batch)} == {
        "adapter_gradient": True,
        "packed_documents": None,
    }
    assert torch.equal(before, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())


def test_each_block_learns_slower_than_the_one_above_it(prepared):
    plan, model, _ = prepared("method=full", "optimizer.layer_decay=0.5", "optimizer.learning_rate=1")
    groups = list(parameter_groups(plan, model))
    layers = model.config.num_hidden_layers
    # The embeddings, the blocks from below, and the layers above them with the last one.
    assert sorted(group["lr"] for group in groups) == [0.5 ** (layers - depth) for depth in range(layers + 1)]
    trained = [id(p) for group in groups for p in group["params"]]
    assert sorted(trained) == sorted(id(p) for p in model.parameters() if p.requires_grad)


def test_what_took_effect_is_read_from_the_model_not_from_the_plan(prepared):
    plan, model, _ = prepared("gradient_checkpointing=full", "attention=eager")
    layers = model.get_base_model().model.layers
    layers[0].gradient_checkpointing = False
    seen = effective(plan, model, torch.optim.SGD([torch.zeros(1, requires_grad=True)]), 1, None, None)
    assert seen["gradient_checkpointing"] == f"{len(layers) - 1} of {len(layers)} blocks"
    assert seen["attention"] == "eager"
    assert seen["optimizer"] == "torch SGD"


def test_evaluating_leaves_four_bit_weights_as_they_were_and_turns_dropout_off(prepared):
    from bitsandbytes.nn import Linear4bit

    _, model, batch = prepared("method=qlora", "compute=bf16")
    frozen = [module for module in model.modules() if isinstance(module, Linear4bit)]
    before = [module.weight.data.clone() for module in frozen]
    switch_to_evaluation(model)
    with torch.no_grad():
        one, two = (model(**batch.tensors).loss for _ in range(2))
    assert one == two
    assert all(torch.equal(was, module.weight.data) for was, module in zip(before, frozen, strict=True))
    assert not any(module.training for module in model.modules() if isinstance(module, torch.nn.Dropout))


def test_four_bit_blocks_are_one_graph_without_a_break_and_are_not_compiled_again(prepared):
    plain, compiled = (
        prepared("method=qlora", "compute=bf16", f"compile={kind}", "gradient_checkpointing=full") for kind in ("none", "blocks")
    )
    for block in compiled[1].get_base_model().model.layers:
        # Graphs are traced by torch's compiler; what it makes of them is left to nightly runs.
        block._compiled_call_impl = torch.compile(block._call_impl, backend="aot_eager", fullgraph=True)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    losses = [[float(model(**batch.tensors).loss.detach()) for _ in range(3)] for _, model, batch in (plain, compiled)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    compiled[1](**compiled[2].tensors).loss.backward()
    counters = torch._dynamo.utils.counters
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


def test_a_qlora_run_on_this_machine_is_a_valid_submission(tmp_path):
    done, submission = run_of(tmp_path, "smoke-lora", "method=qlora", "probe=false", steps=12)
    assert submission.outcome.status is Status.OK, done.stderr
    assert submission.plan.quantisation.double
    assert submission.model.parameter_bytes["uint8"] > 0


def test_selective_recomputation_repeats_no_product(prepared):
    from torch.utils.flop_counter import FlopCounterMode

    def flops(kind):
        _, model, batch = prepared(f"gradient_checkpointing={kind}")
        with FlopCounterMode(display=False) as counter:
            model(**batch.tensors).loss.backward()
        return counter.get_total_flops()

    assert flops("none") <= flops("selective") < flops("full")
