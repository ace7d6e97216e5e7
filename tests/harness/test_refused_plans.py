"""What a machine cannot run is refused before anything runs, with the reason and the setting to use instead: `refused_plans.toml`.

All else is planned, and what the plan chooses and declares is in `plans.toml`.
"""

import re
import tomllib
from pathlib import Path
from typing import get_type_hints

import pytest
from harness_making import changed_settings, gpus, make_machine, planned, tunemark
from pydantic import TypeAdapter
from study_making import make_run

from tunemark.harness.plan.resolve import Options, machine_with, resolve
from tunemark.harness.run.launch import help_another_node, refuse_identity
from tunemark.harness.run.show import print_summary
from tunemark.harness.worker.models import FIXED_SHAPE, config_of, refuse_another_architecture
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.physics.families import Traits
from tunemark.schema.plan.capabilities import CONFLICTS
from tunemark.schema.records.base import flattened
from tunemark.schema.records.plan import LoraSettings, Plan, division_of
from tunemark.schema.records.reading import read_record
from tunemark.schema.vocabulary import Backend, Status

PACKAGES = {"torch": "2.13.0", "transformers": "5.23.0", "deepspeed": "0.19.8", "bitsandbytes": "0.50.2", "torchao": "0.18.0"}
MANY = ("Intel(R) Xeon(R) Processor", "AMD EPYC")
KERNELS = {"liger-kernel": "0.8.5", "flash-attn": "2.8", "flash-attn-3": "3.0"}


TABLE, CHOSEN = (tomllib.loads(Path(__file__).with_name(f"{name}plans.toml").read_text(encoding="utf-8")) for name in ("refused_", ""))


def device(backend, name, target=None, *, kernels=False, **packages):
    """Return a machine with two devices of 80 GiB."""
    return gpus(
        name, 2, gib=80, backend=Backend(backend), target=target or None, packages=PACKAGES | (KERNELS if kernels else {}) | packages
    )


MACHINES = {
    "cpu": make_machine(packages=PACKAGES),
    "bare cpu": make_machine(),
    "cpu, torch 2.11": make_machine(packages=PACKAGES | {"torch": "2.11.0"}),
    "large cpu": make_machine(memory_bytes=2**40),
    "intel cpu of many models": gpus(MANY[0], backend=Backend.CPU, cpu=MANY[0]),
    "amd cpu of many models": gpus(MANY[1], backend=Backend.CPU, cpu=MANY[1]),
    **{name: device(*row[:3], **dict(*row[3:])) for name, row in TABLE["machines"].items()},
}


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
    for name, wanted in ((name.removeprefix("!"), wanted) for row in CONFLICTS for each in row.when for name, wanted in each.items()):
        root, _, rest = name.partition(".")
        model, (*path, last) = (roots[root], [rest]) if root in roots else (Plan, name.split("."))
        for part in path:
            model = {"lora": LoraSettings}.get(part) or model.model_fields[part].annotation
        if isinstance(wanted, bool):
            assert last in getattr(model, "model_fields", ()) or hasattr(model, last)
            continue
        for value in wanted if isinstance(wanted, list) else [wanted]:
            assert last == "target_modules" or TypeAdapter(get_type_hints(model)[last]).validate_python(value) == value


def test_a_path_in_a_setting_is_refused_before_a_run(facts, machine, tmp_path):
    resolved = resolve("smoke-full", facts, machine, Options(overrides=("data.source=hub", f"data.name={tmp_path}/none")))
    with pytest.raises(TunemarkError, match="file:PATH"):
        refuse_identity(resolved)


def test_weights_of_another_architecture_are_refused_by_the_fields_that_differ(facts):
    card = facts.model("tiny-llama")
    for name in FIXED_SHAPE:
        wrong = getattr(card, name) * 2
        with pytest.raises(ValueError, match=f"{name} {wrong} instead of"):
            refuse_another_architecture(config_of(card.model_copy(update={name: wrong})), card)
    refuse_another_architecture(config_of(card, vocabulary=77), card)


@pytest.mark.parametrize("command", ["run", "frontier"])
def test_more_devices_than_there_are_is_refused_at_once_with_the_number_there_is(command, tmp_path):
    done = tunemark(command, "smoke-full", "--devices", 50_000, "--out", tmp_path)
    assert done.returncode == Exit.UNSUPPORTED
    assert re.search(r"this machine has \d+ cores, with at most 4 processes per core; give --devices \d+ or less", done.stderr)
    assert not list(tmp_path.iterdir())


def test_the_record_of_a_refused_run_lists_the_devices_found():
    machine = gpus("NVIDIA A10G", 2, gib=24)
    submission = make_run(planned("smoke-full", machine=machine, devices=8), machine=machine)
    assert (submission.plan.device.count, len(submission.environment.devices)) == (8, 2)
    assert read_record(submission.model_dump_json().encode()) == submission


def test_a_machine_that_cannot_do_its_part_of_several_starts_nothing(facts):
    machine = gpus("NVIDIA A10G", 2, gib=24)
    resolved = planned("smoke-full", machine=machine, devices=8, nodes=2)
    with pytest.raises(TunemarkError, match="8 devices on 2 nodes: this machine has 2 cuda devices; give --devices 4 or less") as caught:
        help_another_node(resolved, facts, machine)
    assert caught.value.exit_code is Exit.UNSUPPORTED


def test_brackets_in_a_message_are_shown_and_are_no_markup(capsys):
    submission = make_run(planned("smoke-lora"), status=Status.CRASH)
    outcome = submission.outcome.model_copy(update={"message": "[enforce fail at x.cpp:1] y[/b] [red]"})
    print_summary(submission.model_copy(update={"outcome": outcome}), "[place]")
    shown = " ".join(capsys.readouterr().out.split())
    assert "[enforce fail at x.cpp:1] y[/b] [red]" in shown
    assert "[place]" in shown
