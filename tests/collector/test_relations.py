"""The table of relations: honest records satisfy it; for a record that breaks a row, the message names the field, the reason and the fix."""

import json
from typing import Any

import pytest
from factories import FACTS, with_overrides
from gate_mutations.bases import base

from tunemark.collector.gate.relations import QUANTITIES, relation_problems, rows
from tunemark.collector.gate.run_facts import Run
from tunemark.schema.derive import derive
from tunemark.schema.records.submission import Submission


@pytest.mark.parametrize(
    ("name", "changes", "field", "said"),
    [
        ("lora", {"started_at": "2031-11-21T09:00:00Z"}, "started_at", "set the clock of the machine and run it again"),
        ("lora", {"timeline.1.phase": "save"}, "timeline", "the phases are those of the plan in their order"),
        ("lora", {"process.wall_s": 9e4}, "process.wall_s", "check the unit"),
        ("oom", {"outcome.fix": None}, "outcome.fix", "the harness says how to fix a failure"),
        ("lora", {"effective.processes": 2}, "effective.processes", "a run with a missing process measures other work; run it again"),
        ("lora", {"process.user_s": 0.01}, "process.user_s", "check the unit"),
        ("lora", {"environment.swap_bytes": 2**50}, "environment.swap_bytes", "no host has so much swap; check the unit"),
        ("h100", {"environment.devices.0.memory_bytes": 2**36}, "environment.devices.0.memory_bytes", "the device of the card has more"),
        ("h100", {"environment.packages.torch": "2.13.0+cpu"}, "environment.packages.torch", "this build of torch has no kernels"),
        ("lora", {"harness.version": "9.9.9"}, "harness.version", "is not a version of Tunemark"),
        ("lora", {"memory.host_rss.peak_bytes": 2**50}, "memory.host_rss.peak_bytes", "the host has no more memory; check the unit"),
        ("h100", {"utilisation.samples": 10**6}, "utilisation.samples", "no more samples fit into the training"),
        ("h100", {"utilisation.energy.joules": 10.0}, "utilisation.energy.joules", "training takes no less than the watts of idling"),
        ("h100", {"model.parameters": 10**6}, "model.parameters", "another model ran, or the count is wrong"),
        ("h100", {"plan.device.accelerator": "nvidia-t4", "effective.attention": "flash_attention_2"}, "effective.attention", "need Ampere or newer"),
        ("h100", {"probe.before_flop_per_s": 5e15}, "probe.before_flop_per_s", "the dense peak is lower"),
    ],
)  # fmt: skip
def test_a_problem_names_the_field_and_what_an_honest_person_can_do(name: str, changes: dict[str, Any], field: str, said: str) -> None:
    changed = Submission.model_validate_json(json.dumps(with_overrides(base(name), changes)))
    found = [problem for problem in relation_problems(Run(changed, FACTS, derive(changed))) if problem.field == field]
    assert any(said in problem.fix for problem in found)
    assert all(problem.value and problem.fix.endswith("keep the original record; if this is it, open an issue") for problem in found)


def test_a_rate_above_the_dense_peak_is_refused() -> None:
    content = base("h100")
    trace = content["trace"]
    trace["completed_at_s"] = [trace["started_at_s"] + (at - trace["started_at_s"]) / 20 for at in trace["completed_at_s"]]
    trace["micro_completed_at_s"] = []
    changed = Submission.model_validate_json(json.dumps(content))
    problems = [str(problem) for problem in relation_problems(Run(changed, FACTS, derive(changed)))]
    assert any("the devices compute fewer FLOP/s in most steps; check the units and the clock" in problem for problem in problems)


def test_each_quantity_is_used_by_a_row() -> None:
    named = {word for row in rows() for word in (row.of, row.most, row.least, row.equals, row.holds, *row.when.replace("!", "").split())}
    short = {name for name, (function, _) in QUANTITIES.items() if function.__name__.startswith("<")}
    assert short - named == set()
