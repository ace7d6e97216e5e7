"""The table of relations: honest records satisfy it; for a record that breaks a row, the message names the field, the reason and the fix."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from factories import FACTS, with_overrides
from gate_mutations.bases import base

from tunemark.collector.gate import physics, run_facts
from tunemark.collector.gate.relations import QUANTITIES, relation_problems, rows
from tunemark.collector.gate.run_facts import Run
from tunemark.harness.vendors.cuda import THROTTLE_REASONS
from tunemark.harness.vendors.protocol import all_vendors
from tunemark.schema.derive import derive
from tunemark.schema.records.submission import Submission


@pytest.mark.parametrize(
    ("name", "changes", "field", "said"),
    [
        ("lora", {"started_at": "2031-11-21T09:00:00Z"}, "started_at", "set the clock of the machine and run it again"),
        ("oom", {"outcome.fix": None}, "outcome.fix", "the harness says how to fix a failure"),
        ("h100", {"environment.devices.0.memory_bytes": 2**36}, "environment.devices.0.memory_bytes", "the device of the card has more"),
        ("h100", {"environment.packages.torch": "2.13.0+cpu"}, "environment.packages.torch", "this build of torch has no kernels"),
        ("h100", {"utilisation.energy.joules": 10.0}, "utilisation.energy.joules", "training takes no less than the watts of idling"),
        ("h100", {"plan.device.accelerator": "nvidia-t4", "effective.attention": "flash_attention_2"}, "effective.attention", "need Ampere or newer"),
        ("h100", {"probe.before_flop_per_s": 5e15}, "probe.before_flop_per_s", "the dense peak is lower"),
    ],
)  # fmt: skip
def test_a_problem_names_the_field_and_what_an_honest_person_can_do(name: str, changes: dict[str, Any], field: str, said: str) -> None:
    changed = Submission.model_validate_json(json.dumps(with_overrides(base(name), changes)))
    found = [problem for problem in relation_problems(Run(changed, FACTS, derive(changed))) if problem.field == field]
    assert any(said in problem.fix for problem in found)
    assert all(problem.value and problem.fix.endswith("keep the original record; if this is it, open an issue") for problem in found)


def test_each_quantity_is_used_by_a_row() -> None:
    every = [row for section in rows().values() for row in section]
    named = {word for row in every for word in (row.of, row.most, row.least, row.equals, row.holds, *row.when.replace("!", "").split())}
    short = {name for name, (function, _) in QUANTITIES.items() if function.__name__.startswith("<")}
    assert short - named == set()


def test_the_gate_knows_the_probes_and_throttle_reasons_of_the_harness() -> None:
    sizes = {vendor.backend: vendor.probe_size for vendor in all_vendors() if vendor.probe_size and vendor.backend.value != "fake"}
    known = {backend: physics.QUANTITIES["probe_size"](SimpleNamespace(backend=backend)) for backend in sizes}
    assert known == sizes
    assert set(THROTTLE_REASONS.values()) < set(run_facts.STACKS["telemetry"]["throttle_reasons"])
