"""Single values that another figure of the same record contradicts: each is refused where it stands, or needs a second run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from changed_bases import changed
from factories import FACTS
from gate_mutations.bases import file_name

from tunemark.collector.gate.check import Verdict, judge_bytes
from tunemark.schema.formats import GIB
from tunemark.schema.records.base import canonical_json

NOT_ON_GPUS = "torch has no allocator for it that counts peaks"


def verdict(base: str, values: dict[str, Any]) -> Verdict:
    content = changed(base, values).model_dump(mode="json", exclude_defaults=False)
    return judge_bytes(canonical_json(content), Path("submissions") / file_name(content), FACTS)


@pytest.mark.parametrize(
    ("base", "values", "field"),
    [
        ("ddp", {"ranks.0.device_allocated_bytes": 2 * GIB}, "ranks.0.device_allocated_bytes"),
        ("ddp", {"ranks.1.device_reserved_bytes": 70 * GIB}, "ranks.1.device_reserved_bytes"),
        ("fsdp", {"ranks.0.device_allocated_bytes": GIB}, "ranks.0.device_allocated_bytes"),
        ("fsdp", {"ranks.1.host_rss_bytes": None}, "ranks.1.host_rss_bytes"),
        ("ddp", {"ranks.0.own_work_s.12": lambda seconds: seconds / 10}, "ranks.0.own_work_s"),
        ("ddp", {"ranks.0.own_work_s": lambda all_s: [float(np.mean(all_s))] * len(all_s)}, "ranks.0.own_work_s"),
        ("h100", {"gates.1.detail": "a gradient reaches 28 of 28 adapters"}, "gates.packed_documents"),
        ("h100", {"gates.2.detail": "a gradient reaches 28 of 28 adapters"}, "gates.loss_band"),
        ("fsdp", {"gates.0.detail": "documents are not packed"}, "gates.adapter_gradient"),
        ("qlora", {"model.parameter_bytes.offset of 4-bit blocks": 1_120}, "model.parameter_bytes.offset of 4-bit blocks"),
        (
            "qlora",
            {"model.parameter_bytes.scales of scales of 4-bit blocks": 7_840},
            "model.parameter_bytes.scales of scales of 4-bit blocks",
        ),
        ("qlora", {"plan.lora.alpha": 3}, "plan.lora.alpha"),
        ("oom", {"outcome.fix": None}, "outcome.fix"),
        ("oom", {"utilisation.devices.0.memory_used_peak_bytes": 8 * GIB}, "utilisation.devices.0.memory_used_peak_bytes"),
        ("fsdp", {"trace.loss.20": 0.75}, "trace.loss"),
        ("bert", {"utilisation.energy.idle_w": 70.0}, "utilisation.energy.idle_w"),
        ("fsdp", {"utilisation.energy.window_s": 13.3}, "utilisation.energy.window_s"),
        ("h100", {"environment.devices.0.driver": None}, "environment.devices.0.driver"),
        ("h100", {"environment.devices.0.memory_bytes": int(84.5 * GIB)}, "environment.devices.0.memory_bytes"),
        ("h100", {"events.0.amount": 60 * GIB}, "events"),
        ("h100", {"utilisation.devices.0.clock_mean_mhz": 2_490.0}, "utilisation.devices.0.clock_mean_mhz"),
        ("h100", {"utilisation.foreign_cpu_busy_mean": 51.9}, "utilisation.foreign_cpu_busy_mean"),
        ("lora", {"environment.os": "Windows 11 AMD64"}, "memory.host_swap.peak_bytes"),
        ("h100", {"effective.optimizer": "torch SGD"}, "model.optimizer_state_bytes"),
        ("h100", {"environment.packages.torch": "2.9.1"}, "environment.packages.torch"),
        ("ddp", {"ranks.1.own_work_s": lambda all_s: [0.0] * len(all_s)}, "ranks.1.own_work_s"),
        ("fsdp", {"trace.loss": lambda losses: [*losses[:40], *losses[20:40]]}, "trace.loss"),
        (
            "h100",
            {"trace.micro_completed_at_s": lambda steps: [[inside[0] + (at - inside[0]) * 0.2 for at in inside] for inside in steps]},
            "trace.micro_completed_at_s",
        ),
    ],
)
def test_a_value_that_another_one_contradicts_is_refused_where_it_stands(base: str, values: dict[str, Any], field: str) -> None:
    assert field in [problem.field for problem in verdict(base, values).problems]


@pytest.mark.parametrize(
    ("base", "values", "field"),
    [
        ("h100", {"utilisation.devices.0.busy_mean": 0.47}, "utilisation.devices.0.busy_mean"),
        ("h100", {"utilisation.cpu_busy_mean": 0.02}, "utilisation.cpu_busy_mean"),
        ("h100", {"process.wall_s": lambda seconds: seconds + 40}, "process.wall_s"),
        ("h100", {"trace.micro_completed_at_s": []}, "trace.micro_completed_at_s"),
    ],
)
def test_a_value_that_is_possible_but_unlikely_needs_a_second_run(base: str, values: dict[str, Any], field: str) -> None:
    found = verdict(base, values)
    assert found.problems == ()
    assert field in [doubt.field for doubt in found.doubts]


@pytest.mark.parametrize("base", ["h100", "ddp", "fsdp", "qlora", "oom", "bert", "lora"])
def test_the_unchanged_record_is_accepted(base: str) -> None:
    assert verdict(base, {}).problems == ()


def test_a_reading_of_memory_has_a_peak_or_a_reason_and_never_both() -> None:
    with pytest.raises(ValueError, match="a reason says why a peak is unknown"):
        changed("h100", {"memory.device_used.reason": NOT_ON_GPUS})
