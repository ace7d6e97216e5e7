"""What a machine cannot run is refused before anything runs, with the reason and the setting to use instead: `refused_plans.toml`.

All else is planned, and what the plan chooses and declares is in `plans.toml`.
"""

import tomllib
from pathlib import Path

import pytest
from harness_making import changed_settings, gpus, make_machine
from pydantic import TypeAdapter

from tunemark.harness.plan.machine import machine_with
from tunemark.harness.plan.resolve import Options, resolve
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.physics.architecture import Traits
from tunemark.schema.plan.capabilities import CONFLICTS
from tunemark.schema.records.base import flattened
from tunemark.schema.records.plan import LoraSettings, Plan, division_of
from tunemark.schema.vocabulary import Backend

PACKAGES = {"torch": "2.13.0", "transformers": "5.23.0", "deepspeed": "0.19.8", "bitsandbytes": "0.50.2", "torchao": "0.18.0"}
MANY = ("Intel(R) Xeon(R) Processor", "AMD EPYC")
KERNELS = {"liger-kernel": "0.8.5", "flash-attn": "2.8", "flash-attn-3": "3.0"}


def device(backend, name, target=None, **packages):
    return gpus(name, 2, gib=80, backend=backend, target=target, packages=PACKAGES | packages)


H100 = device(Backend.CUDA, "NVIDIA H100 80GB HBM3", "9.0", **KERNELS)
MACHINES = {
    "cpu": make_machine(packages=PACKAGES),
    "bare cpu": make_machine(),
    "cpu, torch 2.11": make_machine(packages=PACKAGES | {"torch": "2.11.0"}),
    "h100": H100,
    "bare h100": device(Backend.CUDA, "NVIDIA H100 80GB HBM3", "9.0"),
    "h100 by its name": device(Backend.CUDA, "NVIDIA H100 80GB HBM3", **KERNELS),
    "h100, torch 2.10": H100.model_copy(update={"packages": PACKAGES | {"torch": "2.10.0"}}),
    "h100, transformers 4": H100.model_copy(update={"packages": PACKAGES | {"transformers": "4.57.6"}}),
    "l4": device(Backend.CUDA, "NVIDIA L4", "8.9", **KERNELS),
    "t4": device(Backend.CUDA, "Tesla T4", "7.5"),
    "p100": device(Backend.CUDA, "Tesla P100-PCIE-16GB", "6.0"),
    "mi300x": device(Backend.ROCM, "AMD Instinct MI300X", "gfx942"),
    "mi250x": device(Backend.ROCM, "AMD Instinct MI250X", "gfx90a"),
    "neuron": device(Backend.NEURON_XLA, "Trainium1 core (1 of 2)", **{"optimum-neuron": "0.4.5", "torch-xla": "2.8.1"}),
    "trainium2": device(Backend.NEURON, "Trainium2 core (1 of 4)", **{"torch-neuronx": "2.13.3.0"}),
    "older trainium2": device(Backend.NEURON, "Trainium2 core (1 of 4)", **{"torch-neuronx": "2.9.0.2"}),
    "tpu": device(Backend.TPU, "TPU v6e", **{"torch-tpu": "0.1.0"}),
    "bare gaudi": device(Backend.HPU, "Gaudi 3"),
    "inferentia2": device(Backend.NEURON_XLA, "Inferentia2 core (1 of 2)", **{"optimum-neuron": "0.4.5", "torch-xla": "2.8.1"}),
    "a100": device(Backend.CUDA, "NVIDIA A100-SXM4-80GB", "8.0"),
    "unknown gpu": device(Backend.CUDA, "A GPU that no card knows"),
    "v100 by its name": device(Backend.CUDA, "Tesla V100-SXM2-16GB"),
    "h100, torch 2.9": H100.model_copy(update={"packages": PACKAGES | {"torch": "2.9.1"}}),
    **{target: device(Backend.ROCM, "AMD Radeon", target) for target in ("gfx906", "gfx1030", "gfx908", "gfx1201")},
    "large cpu": make_machine(memory_bytes=2**40),
    "intel cpu of many models": gpus(MANY[0], backend=Backend.CPU, cpu=MANY[0]),
    "amd cpu of many models": gpus(MANY[1], backend=Backend.CPU, cpu=MANY[1]),
    "bare neuron": device(Backend.NEURON_XLA, "Trainium1 core (1 of 2)"),
}
TABLE, CHOSEN = (tomllib.loads(Path(__file__).with_name(f"{name}plans.toml").read_text(encoding="utf-8")) for name in ("refused_", ""))


def rows_of(table):
    return [row for part in table["rows"].values() for row in part]


@pytest.mark.parametrize("row", rows_of(TABLE), ids=lambda row: ", ".join(map(str, row)))
def test_a_plan_is_refused_where_it_cannot_run_and_says_why(facts, row):
    machine, workload, words, said, *options = row
    settings = [setting for word in words.split() for setting in TABLE["short"].get(word, word).split()]
    found = resolve(workload, facts, MACHINES[machine], Options(overrides=tuple(settings), **dict(*options))).unsupported
    assert found is not None and said in found if said else found is None, found


@pytest.mark.parametrize("row", rows_of(CHOSEN), ids=lambda row: ", ".join(map(str, row[:3])))
def test_a_plan_chooses_declares_and_gives_its_reasons(facts, row):
    place, workload, words, options, wanted = row
    machine = MACHINES.get(place) or machine_with(facts, place, 1, 1)
    resolved = resolve(workload, facts, machine, Options(overrides=tuple(words.split()), **options))
    plan = resolved.plan
    found = dict(flattened(plan.model_dump(mode="json"))) | {
        f"override {each.field}": f"{each.card} to {each.run}" for each in resolved.overrides
    }
    found |= {"trained": plan.trained.value, "autocast": plan.autocast, "unsupported": resolved.unsupported}
    found |= {"division": division_of(plan, resolved.overrides).value, "GiB on each device": (machine.devices[0].memory_bytes or 0) / 2**30}
    # Whatever a plan does not take from the card, it declares, but for the number format of a device that lacks the card's.
    card = facts.workload(workload)
    changed = {field for field, (_, run) in changed_settings(plan, card).items() if run not in card.own_values(field)}
    assert changed <= {"compute", *(each.field for each in resolved.overrides)}
    for name, value in wanted.items():
        told = "" if found.get(name) is None else found[name]
        assert value[1:] in told if str(value).startswith("~") else told == value, (name, told)


def test_conflicts_name_fields_that_exist_and_values_that_these_can_have():
    roots = {"card": ModelCard, "traits": Traits}
    for name, wanted in (
        (name.removeprefix("!"), wanted) for row in CONFLICTS for each in row.alternatives for name, wanted in each.items()
    ):
        root, _, rest = name.partition(".")
        model, (*path, last) = (roots[root], [rest]) if root in roots else (Plan, name.split("."))
        for part in path:
            model = {"lora": LoraSettings}.get(part) or model.model_fields[part].annotation
        if isinstance(wanted, bool):
            assert last in getattr(model, "model_fields", ()) or hasattr(model, last)
            continue
        for value in wanted if isinstance(wanted, list) else [wanted]:
            assert last == "target_modules" or TypeAdapter(model.model_fields[last].annotation).validate_python(value) == value
