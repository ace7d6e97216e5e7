"""Adapters are put on the layers that a model has, by its family's names, and are counted correctly."""

import re

import pytest
import transformers
from harness_making import make_machine, trained_on
from study_making import make_run
from tiny_models import tiny_card

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.worker.models import adapter_gradient, model_facts
from tunemark.schema.facts.cards import TAKEN_FOR_EXPERTS
from tunemark.schema.physics.architecture import endings, group, layer_names
from tunemark.schema.physics.families import FAMILIES, NAMES
from tunemark.schema.physics.training_shape import shape_of_plan
from tunemark.schema.records.reading import read_record

SMALL = ("data.sequence_length=16", "batch.micro_batch=2", "attention=eager")
"""Eager, because transformers has no other attention for Gemma 2 on a CPU."""


ATTENTION = {str(names): pytest.param(family, "attention", marks=pytest.mark.nightly) for family, names in NAMES.items()}.values()
"""One family of each set of names."""


def planned(facts, family, *settings):
    """Return the plan of LoRA on a model of a family, and that model's card made tiny."""
    card = tiny_card(family)
    # Classifiers are what encoders are trained as.
    workload, method = ("smoke-bert", ("method=lora",)) if FAMILIES[family].encoder else ("smoke-lora", ())
    return resolve(workload, facts, make_machine(), Options(overrides=(*method, f"model={card.key}", *SMALL, *settings))), card


@pytest.mark.parametrize(("family", "which"), [*((family, "all-linear") for family in NAMES), *ATTENTION])
def test_adapters_are_put_on_the_layers_that_transformers_builds_counted_by_the_memory_model_and_trained(facts, tmp_path, family, which):
    if family not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {family}")
    resolved, card = planned(facts, family, *(() if which == "all-linear" else (f'lora.target_modules=["{which}"]',)))
    plan, labels = resolved.plan, resolved.plan.model.labels or 0
    model, batches = trained_on(plan, card, tmp_path)
    # Peft trains a classifier's head beside the adapters.
    head = labels * card.hidden_size + labels
    assert model_facts(model)["trainable_parameters"] == shape_of_plan(plan, card).adapter_weights + head
    assert plan.lora.target_modules == group(card, which)
    if which == "all-linear":
        inside, ends, outside = layers_of(model.get_base_model(), family)
        assert inside - ends == set(layer_names(card)) - set(NAMES[family].outside)
        assert all(any(name in endings(path) for path in outside) for name in NAMES[family].outside)
        gate = adapter_gradient(plan, model, next(batches).tensors)
        assert gate["passed"], gate["detail"]


def layers_of(model, family):
    """Return the names of the linear layers and tables inside of blocks, those outside, and the paths outside."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    paths = [path.replace(".base_layer", "") for path, one in model.named_modules() if isinstance(one, nn.Linear | Conv1D | nn.Embedding)]
    # Experts and their gate are linear layers in transformers 4 and plain tensors in 5: neither takes adapters by name. Nor do the other
    # feed-forward layers of some families, which peft takes for experts.
    taken = [".mlp."] if family in TAKEN_FOR_EXPERTS else NAMES[family].refused
    without = ["lora_", "classifier", ".experts.", "block_sparse_moe.gate", ".router", ".shared_expert_gate", *taken]
    paths = [path for path in paths if not (any(part in path for part in without) or path.endswith(".mlp.gate"))]
    outside = {path for path in paths if not re.search(r"\.\d+\.", path)}
    inside = {end for path in paths for found in re.findall(r"\.\d+\.(.+)", path) for end in endings(found)}
    return inside, {end for path in outside for end in endings(path)}, outside


def test_layers_in_the_names_of_another_family_are_a_declared_override_with_a_reason(facts):
    resolved, _ = planned(facts, "gpt2")
    assert '["c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"]' in {
        one.run for one in resolved.overrides if one.field == "lora.target_modules"
    }
    assert resolved.plan.reasons["lora.target_modules"] == "the requested layers, by their names in gpt2"
    submission = make_run(resolved)
    assert read_record(submission.model_dump_json().encode()) == submission
