"""Neuron: each keyword exists in optimum-neuron, and its trainer's callbacks produce a valid submission."""

import ast
import inspect
import sys
from pathlib import Path

import neuron_stand_in
import pytest
import torch
from fake_device import Fake
from harness_making import finished, make_machine, worked
from neuron_stand_in import API

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.run import launch
from tunemark.harness.run.record import assemble
from tunemark.harness.run.run_log import LogReader
from tunemark.harness.studies.series import applied, written
from tunemark.harness.vendors import neuron
from tunemark.harness.worker import neuron_trainer
from tunemark.harness.worker.loop import LossNotFinite
from tunemark.schema.derive import derive
from tunemark.schema.plan.capabilities import CONFLICTS
from tunemark.schema.records.plan import NeuronSettings
from tunemark.schema.records.reading import read_record
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.vocabulary import Backend, Dtype, Status

CORE = DeviceFacts(name="Trainium1 core (1 of 2)", memory_bytes=2**34)
SMALL = ("data.sequence_length=16", "batch.micro_batch=2", "batch.gradient_accumulation=2", "compute=fp32")


def make_neuron(cores=1, **changes):
    packages = {"torch": "2.8.0", "optimum-neuron": "0.4.5", "torch-xla": "2.8.1"}
    return make_machine(
        backend=Backend.NEURON_XLA, devices=(CORE,) * cores, compute_dtypes=(Dtype.BF16, Dtype.FP32), packages=packages, **changes
    )


def plan_of(facts, name="smoke-lora", *, cores=1, steps=None, settings=SMALL, **options):
    return resolve(name, facts, make_neuron(cores), Options(overrides=settings, max_steps=steps, **options))


# The contract


def test_each_keyword_attribute_callback_and_family_that_is_used_exists():
    used = {
        call.func.id: {keyword.arg for keyword in call.keywords if keyword.arg}
        for call in ast.walk(ast.parse(inspect.getsource(neuron_trainer)))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    }
    assert {"model", "callbacks"} <= used["NeuronTrainer"] <= set(API["NeuronTrainer"]["methods"]["__init__"])
    assert {"autocast_adapter_dtype"} == used["get_peft_model"] <= set(API["get_peft_model"])
    assert {"dtype", "attn_implementation"} <= set(API["NeuronModelMixin"]["keywords"])
    assert API["_BaseNeuronModelClass"]["methods"]["from_pretrained"][1:3] == ["pretrained_model_name_or_path", "trn_config"]
    assert API["_BaseNeuronModelClass"]["methods"]["from_config"][1:] == ["config", "trn_config"]
    trainer, arguments = API["NeuronTrainer"], API["NeuronTrainingArguments"]
    assert "trn_config" in arguments["attributes"]
    assert "world_size" in arguments["methods"]
    assert {"model", "optimizer"} <= set(trainer["attributes"])
    assert trainer["methods"]["training_step"] == ["self", "model", "inputs", "num_items_in_batch"]
    assert {name for name in vars(neuron_trainer.Recorder) if name.startswith("on_")} <= set(trainer["callbacks"])
    assert API["exports"] == ["NeuronTrainer", "NeuronTrainingArguments"]
    assert (
        sorted(next(case["!card.family"] for row in CONFLICTS for case in row.when if "!card.family" in case)) == API["causal_lm_families"]
    )


# What is asked of it


def test_a_plan_is_handed_over_whole(facts):
    overrides = ("optimizer.weight_decay=0.1", "optimizer.max_grad_norm=null", "gradient_checkpointing=full", "compute=bf16")
    plan = plan_of(facts, cores=4, settings=overrides, devices=4, strategy="zero1").plan
    plan = plan.model_copy(update={"neuron": NeuronSettings(stochastic_rounding=True)})
    asked = neuron_trainer.training_arguments(plan, None, Path("scratch"))
    assert (asked["weight_decay"], asked["max_grad_norm"], asked["gradient_checkpointing"], asked["bf16"]) == (0.1, 0.0, True, True)
    assert (asked["zero_1"], asked["optimizer_use_master_weights"], asked["stochastic_rounding_enabled"]) == (True, True, True)
    assert asked["max_steps"] == neuron_trainer.ENDLESS


def test_the_compiler_gets_level_and_model_type_added_to_the_users_flags(facts, tmp_path):
    plan = plan_of(facts).plan
    plan = plan.model_copy(update={"precision": plan.precision.model_copy(update={"compute": Dtype.BF16})})
    variables = neuron.environment(
        plan.model_copy(update={"neuron": NeuronSettings(optimisation_level=2)}), {"NEURON_CC_FLAGS": "--cache_dir=x"}
    )
    assert variables == {"NEURON_CC_FLAGS": "--cache_dir=x --model-type transformer -O2", "NEURON_RT_STOCHASTIC_ROUNDING_EN": "0"}
    assert neuron.environment(plan, {})["NEURON_CC_FLAGS"] == "--model-type transformer"
    assert launch.environment(plan, tmp_path).items() >= neuron.environment(plan, {}).items()
    assert not launch.environment(resolve("smoke-lora", facts, make_machine(), Options()).plan, tmp_path).keys() & set(variables)


def test_the_trainium_run_of_document_000_can_be_planned_and_the_users_settings_come_before_the_cards(facts):
    name = "qwen3-8b-lora-simple-recipes"
    (point,) = facts.workload(name).points
    options = applied({field: written(value) for field, value in point.items()}, Options())
    resolved = resolve(name, facts, make_neuron(32), options)
    assert (resolved.unsupported, resolved.overrides, resolved.plan.data.document_borders) == (None, (), False)
    assert (resolved.plan.batch.data_parallel, resolved.plan.batch.global_batch) == (4, 32)
    plan = plan_of(facts, name, cores=32, settings=(), devices=32).plan
    assert (plan.device.tensor_parallel, plan.device.strategy.value, plan.device.offload) == (8, "zero1", "none")
    assert plan.reasons["device.tensor_parallel"] == "the workload card's settings for optimum-neuron"
    other = plan_of(facts, name, cores=32, settings=("devices.tensor_parallel=4", "devices.offload=none"), devices=32, strategy="zero1")
    assert other.plan.device.tensor_parallel == 4


PACKED = (*SMALL, "data.packing=true", "data.name=random-documents")


def test_rows_of_documents_laid_end_to_end_go_through_the_trainer_full_and_unmasked(facts, tmp_path, monkeypatch):
    resolved, log = trained(facts, tmp_path, monkeypatch, steps=4, settings=PACKED)
    assert [step["supervised_tokens"] for step in log.steps] == [4 * 15] * 4
    assert [step["real_tokens"] for step in log.steps] == [4 * 16] * 4
    assert recorded(resolved, log).outcome.status is Status.OK


# What comes back


def trained(facts, folder, monkeypatch, *, steps=40, settings=SMALL):
    """Run a plan through the stand-in of the trainer; return what it resolved to and the log."""
    for name, module in neuron_stand_in.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    resolved = plan_of(facts, settings=settings, steps=steps)
    return resolved, worked(resolved, facts, Fake((1.0, 0.5)), folder)


def recorded(resolved, log):
    return assemble(resolved, make_neuron(), finished(log))


@pytest.fixture(scope="module")
def submission(facts, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patched:
        return recorded(*trained(facts, tmp_path_factory.mktemp("trainer"), patched))


def test_what_the_trainer_calls_back_becomes_a_valid_submission(submission):
    again = read_record(submission.model_dump_json().encode())
    assert again.outcome.status is Status.OK
    assert len(again.trace) == 40
    assert again.trace.step_times_s == pytest.approx((1.0,) + (0.5,) * 39)
    assert set(again.trace.slot_tokens) == {2 * 2 * 16}
    assert set(again.trace.supervised_tokens) == {2 * 2 * 15}
    assert len(set(again.trace.loss)) == 40
    assert derive(again).window.steps == 30
    assert [mark.phase.value for mark in again.timeline] == ["import", "data", "load", "train", "teardown"]


def test_the_record_shows_what_was_trained_and_which_gates_were_not_checked(submission):
    model = submission.model
    assert model.adapter_bytes == 4 * model.trainable_parameters == model.gradient_bytes
    assert 0 <= model.optimizer_state_bytes - 2 * model.gradient_bytes < 10_000
    assert submission.effective.optimizer == "torch AdamW"
    assert submission.effective.processes == 1
    assert [gate.passed for gate in submission.gates if gate.name != "loss_band"] == [None, None]
    assert neuron_stand_in.Model.configs[-1] == ("flash_attention_2", torch.float32)
    # The stand-in has no fused kernel, and says so.
    assert [warned.message for warned in submission.warnings if warned.kind.value == "fallback"] == [
        "attention: sdpa, in optimum-neuron flash_attention_2 was requested, eager was used"
    ]


def test_losses_and_counts_are_those_of_our_own_loop(facts, tmp_path, monkeypatch):
    overrides = (*SMALL, "attention=eager", "optimizer.max_grad_norm=null", "lora.dropout=0.0")
    resolved = resolve("smoke-lora", facts, make_machine(), Options(overrides=overrides, max_steps=4, probe=False))
    (tmp_path / "loop").mkdir()
    ours = worked(resolved, facts, Fake((0.5,)), tmp_path / "loop")
    _, theirs = trained(facts, tmp_path, monkeypatch, steps=4, settings=overrides)
    for field in ("slot_tokens", "real_tokens", "supervised_tokens", "documents", "rows"):
        assert [step[field] for step in theirs.steps] == [step[field] for step in ours.steps]
    assert [step["loss"] for step in theirs.steps] == pytest.approx([step["loss"] for step in ours.steps], rel=1e-5)


def test_a_loss_that_is_not_finite_ends_the_run_after_it_was_logged(facts, tmp_path, monkeypatch):
    with pytest.raises(LossNotFinite):
        trained(facts, tmp_path, monkeypatch, settings=(*SMALL, "optimizer.learning_rate=1e30"))
    log = LogReader(tmp_path / "log.jsonl").read()
    assert log.steps[-1]["loss"] is None
    assert log.memory is not None
