"""Every check of a fact has a corruption that it finds; the committed facts, and honest devices that are not among them, pass."""

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from factories import CHECKOUT, Tunemark, with_overrides

from tunemark.collector.gate.accelerator_checks import accelerator_problems
from tunemark.collector.gate.document_checks import rows_problems
from tunemark.collector.gate.fact_book_checks import golden_problems, model_problems, setting_problems, workload_problems
from tunemark.collector.gate.fact_checks import Neighbours, text_problems
from tunemark.collector.gate.fact_files import fact_files, fact_problems
from tunemark.collector.gate.known_checks import AUDITED, known_problems
from tunemark.collector.gate.price_checks import price_problems
from tunemark.collector.gate.published_checks import claim_problems, fact_record_problems
from tunemark.collector.gate.read import find_records, read_or_none
from tunemark.collector.importers.table_text import printed_value
from tunemark.schema.facts.cards import AcceleratorCard, ModelCard, PriceRow
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.world_facts import WorldFacts
from tunemark.schema.records.claims import Claim
from tunemark.schema.records.upgrade import Problem

FACTS = FactBase(CHECKOUT / "data")
BESIDE = Neighbours(CHECKOUT / "data")
LATER = datetime.now(tz=UTC).date() + timedelta(days=30)


def fields(problems: Iterable[Problem]) -> set[str]:
    return {problem.field for problem in problems}


def changed(record: Any, **changes: Any) -> Any:
    """A record with dotted fields changed; `__` stands for the dot."""
    content = record.model_dump(mode="json", exclude_defaults=True)
    if content.get("cpu"):
        content = {name: value for name, value in content.items() if name not in {"peak_tflops", "memory_bandwidth_gb_s"}}
    return type(record).model_validate(with_overrides(content, {name.replace("__", "."): value for name, value in changes.items()}))


def test_the_committed_facts_and_results_pass() -> None:
    assert fact_problems(fact_files([CHECKOUT / "data"]), CHECKOUT, BESIDE) == []
    for path in find_records([CHECKOUT / "data" / "published", CHECKOUT / "data" / "converted"]).files:
        content = path.read_bytes()
        record: Any = read_or_none(path)
        assert list(fact_record_problems(record, content, path, FACTS)) == []


@pytest.mark.parametrize(
    ("key", "changes", "field"),
    [
        ("nvidia-a100-80gb-sxm", {"peak_tflops__bf16": 15.6}, "peak_tflops.bf16"),
        ("nvidia-h100-80gb-sxm", {"peak_tflops__bf16": 1979, "peak_tflops__fp16": 1979}, "peak_tflops.bf16"),
        ("nvidia-h200-141gb-sxm", {"peak_tflops__tf32": 1978}, "peak_tflops.tf32"),
        ("amd-mi300x", {"peak_tflops__fp8": 1307.4}, "peak_tflops.fp8"),
        ("nvidia-h100-80gb-sxm", {"peak_tflops__fp8": 1750}, "peak_tflops.fp8"),
        ("nvidia-l40s", {"memory_bandwidth_gb_s": 1200}, "memory_bandwidth_gb_s"),
        ("nvidia-h100-80gb-sxm", {"interconnect_gb_s": 450}, "interconnect_gb_s"),
        ("amd-mi300x", {"interconnect_gb_s": 128}, "interconnect_gb_s"),
        ("nvidia-a100-80gb-pcie", {"peak_clock_mhz": 1140}, "peak_clock_mhz"),
        ("amd-mi355x", {"tdp_w": 750}, "tdp_w"),
        ("nvidia-l40s", {"vendor": "Nvidia Corp"}, "vendor"),
        ("nvidia-l4", {"aliases": ["L4", "NVIDIA"]}, "aliases"),
        ("amd-mi300x", {"architecture": "Hopper"}, "architecture"),
        ("nvidia-l4", {"architecture": "Ada Lovelance"}, "architecture"),
        ("nvidia-h100-80gb-sxm", {"unit": "cpu"}, "unit"),
        ("amd-epyc-9654", {"cpu__memory_channels": 8}, "memory_channels"),
        ("intel-xeon-platinum-8480-plus", {"cpu__memory_mt_s": 3200}, "memory_mt_s"),
        ("aws-graviton2", {"cpu__clusters__0__vector_bits": 256}, "vector_bits"),
        ("nvidia-l40s", {"tdp_w": 35}, "tdp_w"),
        ("amd-mi300x", {"memory_bandwidth_gb_s": 5.3}, "memory_bandwidth_gb_s"),
        ("nvidia-b200", {"memory_bandwidth_gb_s": 770}, "memory_bandwidth_gb_s"),
        ("nvidia-a40", {"memory_gib": 480}, "memory_gib"),
        ("amd-mi300x", {"memory_gib": 178.8}, "memory_gib"),
        ("nvidia-h100-80gb-pcie", {"memory_gib": 94}, "memory_gib"),
        ("amd-mi325x", {"interconnect_gb_s": 8960}, "interconnect_gb_s"),
        ("nvidia-h200-141gb-sxm", {"interconnect_gb_s": 90}, "interconnect_gb_s"),
        ("nvidia-rtx-4090", {"msrp_usd": 15990}, "msrp_usd"),
        ("nvidia-rtx-4090", {"memory_gib": 32}, "memory_gib"),
        ("nvidia-a100-40gb-sxm", {"memory_gib": 53}, "memory_gib"),
        ("nvidia-l4", {"memory_bus_bits": 24}, "memory_bus_bits"),
        ("nvidia-l4", {"peak_clock_mhz": 2.04}, "peak_clock_mhz"),
        ("nvidia-h100-80gb-sxm", {"launch_year": 2016}, "launch_year"),
        ("nvidia-b300", {"launch_year": 2028}, "launch_year"),
        ("nvidia-a100-80gb-sxm", {"architecture": "Hopper"}, "architecture"),
        ("nvidia-l4", {"unverified": ["peak_tflops.bf61"]}, "unverified"),
        ("nvidia-l4", {"vendor": "NVlDIA"}, "vendor"),
        ("nvidia-l4", {"vendor": "AMD"}, "vendor"),
        ("nvidia-t4", {"name": "Tesla P4", "aliases": ["Tesla P4"]}, "name"),
        ("nvidia-t4", {"aliases": ["T4", "nvidia a100 sxm4 80gb"]}, "aliases"),
        ("nvidia-t4", {"aliases": ["T4", "T4"]}, "aliases"),
        ("nvidia-t4", {"name": "\u0422esla T4"}, "name"),
        ("google-tpu-v5e", {"unit": "device"}, "unit"),
        ("nvidia-l4", {"read_on": str(LATER)}, "read_on"),
        ("nvidia-l4", {"source": "TODO"}, "source"),
        ("amd-epyc-7763", {"cpu__clusters__0__cores": 46}, "cores"),
        ("amd-epyc-7763", {"cpu__clusters__0__clock_ghz": 24.5}, "clock_ghz"),
        ("amd-epyc-7763", {"cpu__clusters__0__boost_clock_ghz": 1.5}, "boost_clock_ghz"),
        ("amd-epyc-7763", {"cpu__clusters__0__vector_bits": 384}, "vector_bits"),
        ("amd-epyc-9654", {"cpu__clusters__0__bf16_flop_per_cycle": 640}, "bf16_flop_per_cycle"),
        ("amd-epyc-7763", {"cpu__memory_mt_s": 320}, "memory_mt_s"),
        ("amd-epyc-7763", {"tdp_w": 28}, "tdp_w"),
        ("nvidia-v100-16gb", {"peak_tflops__fp8": 250}, "peak_tflops.fp8"),
        ("nvidia-t4", {"peak_tflops__tf32": 32}, "peak_tflops.tf32"),
        ("amd-mi250x", {"peak_tflops__fp8": 766}, "peak_tflops.fp8"),
        ("google-tpu-v4", {"peak_tflops__fp8": 550}, "peak_tflops.fp8"),
        ("intel-core-i7-8700k", {"cpu__clusters__0__vector_bits": 512}, "vector_bits"),
        ("intel-xeon-e5-2690-v4", {"cpu__clusters__0__vector_bits": 512}, "vector_bits"),
        ("amd-ryzen-9-7950x", {"cpu__clusters__0__fma_units": 4}, "fma_units"),
        ("amd-epyc-9b45", {"cpu__clusters__0__fma_units": 4}, "vector_bits"),
        ("intel-xeon-platinum-8380", {"cpu__clusters__0__bf16_flop_per_cycle": 1024}, "bf16_flop_per_cycle"),
    ],
)
def test_an_impossible_accelerator_is_named_by_its_field(key: str, changes: dict[str, Any], field: str) -> None:
    card = FACTS.accelerators[key]
    assert fields(accelerator_problems(card, BESIDE)) == set()
    assert field in fields(accelerator_problems(changed(card, **changes), BESIDE))


def device(key: str, name: str, architecture: str, peaks: dict[str, float], **other: Any) -> AcceleratorCard:
    """A card of NVIDIA with figures of its datasheet."""
    card = {"key": f"nvidia-{key}", "name": name, "vendor": "NVIDIA", "architecture": architecture, "source": "its datasheet"}
    return AcceleratorCard.model_validate(card | {"peak_tflops": peaks} | other)


@pytest.mark.parametrize(
    "card",
    [
        device("a30", "A30", "Ampere", {"bf16": 165, "fp16": 165, "tf32": 82, "fp32": 10.3, "int8": 330}, memory_gib=24, memory_bandwidth_gb_s=933, tdp_w=165, interconnect_gb_s=200, launch_year=2021),
        device("rtx-5000-ada", "RTX 5000 Ada", "Ada Lovelace", {"bf16": 261.1, "fp16": 261.1, "tf32": 130.6, "fp32": 65.3, "fp8": 522.1, "int8": 522.1}, memory_gib=32, memory_bandwidth_gb_s=576, tdp_w=250, interconnect_gb_s=64, launch_year=2023, msrp_usd=4000),
        device("v100-16gb-pcie", "Tesla V100 PCIe 16GB", "Volta", {"fp16": 112, "fp32": 14}, memory_gib=16, memory_bandwidth_gb_s=900, tdp_w=250, interconnect_gb_s=32, launch_year=2017),
        device("h800-80gb-sxm", "H800 SXM5 80GB", "Hopper", {"bf16": 989, "fp16": 989, "tf32": 494.5, "fp32": 67, "fp8": 1979, "int8": 1979}, memory_gib=80, memory_bandwidth_gb_s=3350, tdp_w=700, interconnect_gb_s=400, launch_year=2023),
        device("rtx-5080", "GeForce RTX 5080", "Blackwell", {"bf16": 112.6, "fp16": 112.6, "tf32": 56.3, "fp32": 56.3, "fp8": 225.1, "int8": 450.2}, memory_gib=16, memory_bandwidth_gb_s=960, tdp_w=360, interconnect_gb_s=128, launch_year=2025, msrp_usd=999),
        device("rtx-3080", "GeForce RTX 3080", "Ampere", {"bf16": 59.5, "fp16": 59.5, "tf32": 29.8, "fp32": 29.8, "int8": 238}, memory_gib=10, memory_bandwidth_gb_s=760, tdp_w=320, launch_year=2020, msrp_usd=699),
        device("rubin", "Rubin", "Rubin", {"bf16": 4000, "fp16": 4000, "fp8": 8000}, memory_gib=288, memory_bandwidth_gb_s=13000, tdp_w=1800, interconnect_gb_s=3600, launch_year=2026),
    ],
    ids=lambda card: card.key,
)  # fmt: skip
def test_honest_devices_that_have_no_card_yet_pass(card: AcceleratorCard) -> None:
    assert list(accelerator_problems(card, BESIDE)) == []


def test_notes_can_explain_a_card_that_differs_from_its_architecture_but_not_an_impossible_one() -> None:
    card = FACTS.accelerators["nvidia-h100-80gb-sxm"]
    cut = {"peak_tflops__int8": 989, "notes": "peak_tflops.int8 is limited by the firmware of this batch"}
    assert fields(accelerator_problems(changed(card, **(cut | {"notes": "limited"})), BESIDE)) == {"peak_tflops.int8"}
    assert list(accelerator_problems(changed(card, **cut), BESIDE)) == []
    assert fields(accelerator_problems(changed(card, **(cut | {"peak_tflops__int8": 500})), BESIDE)) == {"peak_tflops.int8"}


@pytest.mark.parametrize(
    ("key", "changes", "field"),
    [
        ("llama-3.1-8b", {"context_length": 8192}, "context_length"),
        ("llama-3.1-8b", {"gated": False}, "gated"),
        ("llama-3.1-8b", {"hub_id": "meta-IIama/Llama-3.1-8B"}, "hub_id"),
        ("llama-3.1-8b", {"sliding_window": 4096}, "sliding_window"),
        ("gemma-2-9b", {"sliding_window_every": 84}, "sliding_window_every"),
        ("qwen2-7b", {"source": "config.json of the hub repository Qwen/Qwen2.5-7B"}, "source"),
        ("llama-3.1-8b", {"layers": 33}, "parameters"),
        ("llama-3.1-8b", {"parameters": 8_030_261_249}, "parameters"),
        ("llama-3.1-8b", {"parameters": None, "layers": 64}, "name"),
        ("llama-3.1-8b", {"hidden_size": 4100}, "hidden_size"),
        ("llama-3.1-8b", {"intermediate_size": 1024}, "intermediate_size"),
        ("qwen3-8b", {"key_value_heads": 5}, "key_value_heads"),
        ("gpt2", {"head_dim": 128}, "head_dim"),
        ("llama-3.1-8b", {"context_length": 13107}, "context_length"),
        ("mistral-7b", {"sliding_window": 65_536}, "sliding_window"),
        ("mixtral-8x7b", {"active_experts": 16}, "active_experts"),
        ("mixtral-8x7b", {"family": "mistral"}, "family"),
        ("qwen3-8b", {"hub_id": "https://huggingface.co/Qwen/Qwen3-8B"}, "hub_id"),
        ("qwen3-8b", {"hub_id": "meta-llama/Llama-3.1-8B"}, "hub_id"),
        ("tiny-llama", {"gated": True}, "gated"),
        ("qwen3-8b", {"aliases": ["LLAMA_3.1 8b"]}, "aliases"),
    ],
)
def test_a_model_that_its_shapes_contradict_is_named_by_its_field(key: str, changes: dict[str, Any], field: str) -> None:
    card = FACTS.models[key]
    assert fields(model_problems(card, BESIDE)) == set()
    assert field in fields(model_problems(changed(card, **changes), BESIDE))


def test_a_rounded_number_of_parameters_agrees_to_its_last_digit() -> None:
    card: ModelCard = FACTS.models["llama-3.1-8b"]
    assert list(model_problems(changed(card, parameters=8_030_000_000), BESIDE)) == []
    assert fields(model_problems(changed(card, parameters=8_040_000_000), BESIDE)) == {"parameters"}


def price_book() -> list[tuple[int, PriceRow]]:
    return list(enumerate(FACTS.prices, start=2))


def line_of(machine: str, kind: str) -> int:
    """Return the last line of the price book with a machine."""
    return next(line for line, row in reversed(price_book()) if (row.instance, row.kind) == (machine, kind))


def priced(machine: str, kind: str, **changes: Any) -> Iterator[str]:
    """The fields of the problems of a row of the price book after a change."""
    rows, line = price_book(), line_of(machine, kind)
    rows[line - 2] = line, PriceRow.model_validate(rows[line - 2][1].model_dump() | changes)
    return (problem.field for found, problem in price_problems(rows, BESIDE) if found == line)


@pytest.fixture(scope="module")
def wrong_lines() -> set[int]:
    """Return the lines of the committed price book that have a problem."""
    return {line for line, _ in price_problems(price_book(), BESIDE)}


@pytest.mark.parametrize(
    ("instance", "kind", "changes", "field"),
    [
        ("inf2.24xlarge", "on_demand", {"accelerator_count": 12}, "accelerator_count"),
        ("gpu_1x_a100_sxm4", "on_demand", {"accelerator": "nvidia-a100-40gb-pcie"}, "accelerator"),
        ("Standard_NC40ads_H100_v5", "on_demand", {"accelerator": "nvidia-h100-80gb-pcie"}, "accelerator"),
        ("p5.48xlarge", "on_demand", {"usd_per_hour": 5504}, "usd_per_hour"),
        ("p5.48xlarge", "on_demand", {"usd_per_hour": 6.88}, "usd_per_hour"),
        ("g2-standard-4", "on_demand", {"usd_per_hour": 0.000196}, "usd_per_hour"),
        ("a3-highgpu-8g", "spot", {"usd_per_hour": 95}, "usd_per_hour"),
        ("p5.48xlarge", "spot", {"usd_per_hour": 73.4533}, "usd_per_hour"),
        ("p4de.24xlarge", "spot", {"usd_per_hour": 1.164}, "usd_per_hour"),
        ("BM.GPU.MI300X.8", "on_demand", {"usd_per_hour": 4800}, "usd_per_hour"),
        ("gpu_1x_gh200", "on_demand", {"usd_per_hour": 229}, "usd_per_hour"),
        ("c6a.48xlarge", "on_demand", {"usd_per_hour": 73.44}, "usd_per_hour"),
        ("c6a.48xlarge", "on_demand", {"accelerator_count": 4}, "accelerator_count"),
        ("c6a.48xlarge", "on_demand", {"accelerator_count": 3}, "accelerator_count"),
        ("p4d.24xlarge", "on_demand", {"accelerator_count": 1}, "accelerator_count"),
        ("gpu_4x_a6000", "on_demand", {"accelerator_count": 1}, "accelerator_count"),
        ("gpu_1x_a10", "on_demand", {"accelerator_count": 0.5}, "accelerator_count"),
        ("p5.48xlarge", "on_demand", {"accelerator": "nvidia-a100-80gb-sxm"}, "accelerator"),
        ("p6-b200.48xlarge", "on_demand", {"accelerator": "nvidia-h100-80gb-sxm"}, "accelerator"),
        ("g6.2xlarge", "on_demand", {"accelerator": "nvidia-t4"}, "accelerator"),
        ("g2-standard-48", "on_demand", {"vcpus": 24}, "vcpus"),
        ("g6e.xlarge", "on_demand", {"vcpus": 400, "memory_gib": 3200}, "vcpus"),
        ("g5.xlarge", "on_demand", {"memory_gib": 16_384}, "memory_gib"),
        ("p4d.24xlarge", "on_demand", {"effective_on": LATER}, "effective_on"),
        ("p5.48xlarge", "on_demand", {"effective_on": date(2021, 1, 1)}, "effective_on"),
        ("p5.48xlarge", "on_demand", {"provider": "azure"}, "provider"),
        ("BM.GPU.MI300X.8", "on_demand", {"provider": "0ci"}, "provider"),
        ("BM.GPU.MI300X.8", "on_demand", {"instance": "BM.GPU.\u039cI300X.8"}, "instance"),
        ("p5.48xlarge", "on_demand", {"source": "unknown"}, "source"),
        ("p6-b200.48xlarge", "on_demand", {"usd_per_hour": 14.2416}, "usd_per_hour"),
        ("Standard_ND128isr_NDR_GB200_v6", "on_demand", {"usd_per_hour": 27.04}, "usd_per_hour"),
        ("BM.GPU.L40S.4", "on_demand", {"usd_per_hour": 140}, "usd_per_hour"),
        ("g6e.12xlarge", "on_demand", {"accelerator_count": 8}, "usd_per_hour"),
        ("gpu_2x_a6000", "on_demand", {"usd_per_hour": 4.36}, "usd_per_hour"),
        ("Standard_NC80adis_H100_v5", "on_demand", {"accelerator_count": 1}, "accelerator_count"),
        ("Standard_NC40ads_H100_v5", "on_demand", {"accelerator_count": 2}, "accelerator_count"),
        ("a2-highgpu-4g", "spot", {"usd_per_hour": 3.856}, "usd_per_hour"),
        ("c7g.8xlarge", "on_demand", {"usd_per_hour": 1.74}, "usd_per_hour"),
        ("g5.24xlarge", "on_demand", {"instance": "g5.32xlarge"}, "instance"),
        ("p4d.24xlarge", "on_demand", {"instance": "p4x.24xlarge"}, "instance"),
        ("c6i.8xlarge", "on_demand", {"vcpus": 64}, "vcpus"),
        ("tpu-v5p-16", "on_demand", {"accelerator_count": 16}, "accelerator_count"),
        ("gpu-l40s-a_1gpu-8vcpu-32gb", "on_demand", {"memory_gib": 64}, "memory_gib"),
        ("Standard_NC64as_T4_v3", "on_demand", {"vcpus": 32}, "vcpus"),
        ("1H100.80S.32V", "on_demand", {"vcpus": 64}, "vcpus"),
    ],
)
def test_a_price_unlike_its_neighbours_is_named_by_its_field(
    instance: str, kind: str, changes: dict[str, Any], field: str, wrong_lines: set[int]
) -> None:
    assert line_of(instance, kind) not in wrong_lines
    assert field in priced(instance, kind, **changes)


def test_a_new_provider_whose_name_is_like_no_other_passes() -> None:
    rows = [*enumerate(FACTS.prices, start=2)]
    new = rows[-1][1].model_copy(update={"provider": "civo", "instance": "g4g.40.kube.small", "region": "lon1"})
    fresh = [*rows, (len(rows) + 2, new)]
    assert "provider" not in {problem.field for line, problem in price_problems(fresh, BESIDE) if line == fresh[-1][0]}


def test_a_discount_for_a_whole_machine_passes() -> None:
    assert list(priced("gpu_8x_b200_sxm6", "on_demand", usd_per_hour=48.5)) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("basis.toml", '"oci", "digitalocean"]', '"oci", "vast"]', "3: providers: 'vast': has no price on demand"),
        ("aws_sizes.toml", 'p5 = ["4xlarge", "48xlarge"]', 'p5 = ["4xlarge"]', "p5: '48xlarge': is missing: p5.48xlarge has a price"),
        ("aws_sizes.toml", 'p4d = ["24xlarge"]', 'p4d = ["24xlarge", "24 xlarge"]', "p4d: '24 xlarge': is listed twice, or no size"),
        ("aws_sizes.toml", 'p4d = ["24xlarge"]', 'p4d = ["24xlarge", "13xlarge"]', "p4d: '13xlarge': is listed twice, or no size"),
        ("aws_sizes.toml", "read_on = 2026-11-20", "read_on = 2062-11-20", "read_on: 2062-11-20: must be"),
        ("aws_sizes.toml", "[families]", "[family]", "families: must be a table"),
        ("aws_sizes.toml", "[families]", "[families", "not valid TOML"),
    ],
)  # fmt: skip
def test_a_file_beside_the_price_book_that_contradicts_it_is_named_with_its_line(
    checkout: Path, tunemark: Tunemark, file: str, old: str, new: str, said: str
) -> None:
    shutil.copytree(CHECKOUT / "data" / "prices", checkout / "data" / "prices", dirs_exist_ok=True)
    path = checkout / "data" / "prices" / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    answered = tunemark("validate", path)
    assert answered.code == 3
    assert f"data/prices/{file}:" in answered.err
    assert said in answered.err


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"data__sequence_length": 10_000_000}, "sequence_length"),
        ({"data__sequence_length": 200_000}, "sequence_length"),
        ({"optimizer__learning_rate": 20}, "learning_rate"),
        ({"batch__gradient_accumulation": 8192, "batch__micro_batch": 64}, "micro_batch"),
        ({"lora__rank": 4200}, "rank"),
        ({"source": "TBD"}, "source"),
        ({"model": "smollm2-1.7b"}, "model"),
        ({"model": "llama-3.1-8b", "title": "LoRA on Qwen3 8B"}, "model"),
        ({"lora__target_modules": ["query_proj"]}, "target_modules"),
        ({"devices": {"count": 2, "strategy": "single"}}, "strategy"),
        ({"devices": {"strategy": "fsdp2"}}, "strategy"),
        ({"devices": {"count": 32, "tensor_parallel": 12}}, "tensor_parallel"),
        ({"devices": {"count": 32, "tensor_parallel": 12}}, "count"),
        ({"stop": {"max_steps": 240}, "optimizer__warmup_steps": 2400}, "warmup_steps"),
        ({"optimizer__betas": [1.1, 0.999]}, "betas"),
        ({"data__training_rows": 100_000, "title": "LoRA on 10,000 conversations"}, "training_rows"),
        ({"stop": {"epochs": 100}, "description": "Trains for ten epochs."}, "epochs"),
        ({"data__template": "{question}\nanswer}"}, "template"),
        ({"data__name": "dair-ai/emotions"}, "name"),
    ],
)
def test_a_workload_that_nobody_could_run_is_named_by_its_field(changes: dict[str, Any], field: str) -> None:
    card = FACTS.workloads["lora-8b"]
    assert fields(workload_problems(card, BESIDE)) == set()
    assert field in fields(workload_problems(changed(card, **changes), BESIDE))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"workload_sha256": "0" * 64}, "workload_sha256"),
        ({"seed": 2}, "seed"),
        ({"tolerance": 5.0}, "tolerance"),
        ({"losses": {10: 76.3, 240: 4.2}}, "10"),
        ({"losses": {10: 7.63, 100: 9.4, 240: 4.2}}, "100"),
        ({"losses": {10: 7.63, 240: 7.64}}, "240"),
        ({"losses": {10: 7.63, 100: 0.763, 240: 0.76}}, "100"),
        ({"losses": {10: 7.63, 2400: 4.2}}, "losses"),
    ],
)
def test_golden_losses_of_another_card_or_of_no_learning_are_refused(changes: dict[str, Any], field: str) -> None:
    golden, card = FACTS.golden_losses("smoke-full"), FACTS.workloads["smoke-full"]
    assert golden is not None
    told = card, FACTS.workload_sha256("smoke-full"), FACTS.models[card.model]
    assert fields(golden_problems(golden, *told)) == set()
    assert field in fields(golden_problems(golden.model_copy(update=changes), *told))


@pytest.mark.parametrize(
    ("quantity", "printed", "value"),
    [
        ("peak_memory_bytes", "78 GiB", 78 * 2**30),
        ("peak_memory_bytes", "~56 GB", 56e9),
        ("device_memory_total_bytes", "6.7 G", 6.7e9),
        ("train_time_s", "1h 2m 3s", 3723),
        ("user_s", "543m1.755s", 32581.755),
        ("progress_elapsed_s", "1:26:57", 5217),
        ("wall_s", "1 day and 20 hours", 158_400),
        ("step_time_s", "~1,250 ms", 1.25),
        ("mfu", "41.25 %", 0.4125),
        ("model_flop_per_s", "3.28e+02 TFLOP/chip/s", 3.28e14),
        ("trainable_parameters", "4.72M", 4.72e6),
        ("total_flops", "1470300 GF", 1470300 * 2**30),
        ("cost_usd", "$721", 721),
        ("tokens_per_s", "16,224 tok/s/GPU", 16_224),
        ("relative_speed", "1.00x (baseline)", 1),
        ("train_time_s", "soon", None),
        ("peak_memory_bytes", "78 bananas", None),
        ("peak_memory_bytes", "78 XiB", None),
    ],
)
def test_a_printed_figure_is_read_in_the_unit_of_its_quantity(quantity: str, printed: str, value: float | None) -> None:
    assert printed_value(quantity, printed) == (None if value is None else pytest.approx(value, rel=1e-12))


@pytest.mark.parametrize(
    ("claim", "wrong"),
    [
        ({"printed": "4.7", "value": 4.7}, set()),
        ({"printed": "4.7", "value": 4.1}, {"value"}),
        ({"printed": "2m 29s", "value": 1.49, "note": "time of 100 steps, divided by 100"}, set()),
        ({"printed": "2m 29s", "value": 1.49}, {"value"}),
        ({"printed": "4.7", "value": -4.7}, {"value"}),
        ({"printed": "4.7", "value": 4.7, "readings": [{"meaning": "a micro-step", "value": 150.4}]}, {"readings"}),
        ({"printed": "fast", "value": 4.7}, {"printed"}),
    ],
)
def test_a_value_is_what_is_printed_or_a_note_says_how_it_follows(claim: dict[str, Any], wrong: set[str]) -> None:
    assert fields(claim_problems("step_time_s", Claim.model_validate(claim), None)) == wrong


def recorded(path: str, *change: tuple[str, Any]) -> set[str]:
    """The fields of the problems of a committed record after changes, with the checks of records."""
    file = CHECKOUT / "data" / path
    content = with_overrides(json.loads(file.read_bytes()), dict(change))
    record: Any = type(read_or_none(file)).model_validate(content)
    return fields(fact_record_problems(record, json.dumps(content, ensure_ascii=False).encode(), file, FACTS))


@pytest.mark.parametrize(
    ("path", "name", "value", "field"),
    [
        ("published/003/003-001.json", "id", "003-777", "id"),
        ("published/003/003-001.json", "conditions.sequence_length", 10**9, "conditions.sequence_length"),
        ("published/003/003-001.json", "conditions.model", "llama-9", "conditions.model"),
        ("published/016/results.json", "results.0.conditions.global_batch", 2047, "016-001: conditions.global_batch"),
        ("published/029/results.json", "results.10.conditions.settings.data_parallel", 5, "029-011: conditions.settings.data_parallel"),
        ("published/000/000-001.json", "conditions.instance", "p5.48xlarge", "conditions.instance"),
        ("published/004/004-001.json", "labels.batch_size", "7", "conditions.micro_batch"),
        ("published/039/results.json", "results.0.conditions.method", "lora", "039-001: conditions.method"),
        ("published/004/004-013.json", "section", "LLaMA-2 7B LoRA Fine-Tuning", "conditions.model"),
        (
            "converted/mlperf/v4.1/mlperf-v4.1-dell-xe9680x8h200-sxm-141gb.json",
            "conditions.accelerator",
            "nvidia-h100-80gb-sxm",
            "conditions.accelerator",
        ),
        (
            "converted/mlperf/v4.1/mlperf-v4.1-dell-xe9680x8h200-sxm-141gb.json",
            "conditions.accelerator",
            "nvidia-b300",
            "conditions.accelerator",
        ),
        ("converted/mlperf/v4.1/mlperf-v4.1-dell-xe9680x8h200-sxm-141gb.json", "target_eval_loss", 0.825, "target_eval_loss"),
        ("published/003/003-001.json", "conditions.framework.torch", "99.0", "conditions.framework.torch"),
        ("published/003/003-001.json", "conditions.framework.transformers", "4.49.8", "conditions.framework.transformers"),
        ("published/003/003-001.json", "claims.step_time_s.value", 47, "claims.step_time_s.value"),
        ("published/003/003-010.json", "conditions.method", "full", "conditions.method"),
        ("published/003/003-041.json", "conditions.accelerator_count", 2, "conditions.accelerator_count"),
        ("published/003/003-001.json", "note", "see\u202eexe", "line 1: text"),
        ("published/003/source.json", "url", "javascript:alert(1)", "url"),
        ("published/003/source.json", "url", "ftp://host.example/a", "line 1: source"),
        ("published/003/source.json", "read_on", str(LATER), "read_on"),
        ("published/004/source.json", "read_on", "2020-02-01", "stated_on"),
        ("published/003/source.json", "statements.0.id", "004-S01", "statements"),
        ("converted/mlperf/v4.0/mlperf-v4.0-asustek-esc-n8a-e12.json", "runs.0.time_to_target_s", 17.7, "runs.0.time_to_target_s"),
        ("converted/mlperf/v4.0/mlperf-v4.0-asustek-esc-n8a-e12.json", "runs.0.train_s", 15_825.68, "runs.0.train_s"),
        ("converted/mlperf/v4.0/mlperf-v4.0-asustek-esc-n8a-e12.json", "runs.0.samples", 3, "runs.0.samples"),
        ("converted/mlperf/v4.0/mlperf-v4.0-asustek-esc-n8a-e12.json", "conditions.accelerator_count", 16, "conditions.accelerator_count"),
        ("converted/mlperf/v4.0/mlperf-v4.0-asustek-esc-n8a-e12.json", "runs.0.curve.samples.1", 100, "runs.0.curve.samples"),
        ("converted/mlperf/v4.0/mlperf-v4.0-asustek-esc-n8a-e12.json", "runs.0.curve.eval_loss.1", 92.3, "runs.0.curve.eval_loss"),
    ],
)
def test_a_result_or_document_that_contradicts_itself_is_named_by_its_field(path: str, name: str, value: Any, field: str) -> None:
    assert recorded(path) == set()
    assert field in recorded(path, (name, value))


@pytest.mark.parametrize(
    ("path", "name", "value", "field"),
    [
        ("003-023", "claims.step_time_s.readings.1.value", 2481.0, "claims.step_time_s.readings"),
        (
            "003-023",
            "claims.step_time_s.readings.1.meaning",
            "micro-step (x 30 = 2481 s per optimizer step)",
            "claims.step_time_s.readings",
        ),
        ("003-023", "claims.peak_memory_bytes.readings.1.value", 69793218560.0, "claims.peak_memory_bytes.readings"),
        ("003-039", "conditions.accelerator", "nvidia-h100-80gb-sxm", "conditions.accelerator"),
        ("003-020", "labels.accelerator", "RTX 4090 x 1", "conditions.accelerator"),
        ("003-039", "labels.accelerator", "A100 40GB x 1", "conditions.accelerator"),
        ("003-042", "conditions.model", "llama-3.1-8b", "conditions.model"),
        ("003-046", "conditions.model", "llama-13b", "conditions.model"),
        ("003-051", "conditions.model", "gemma-7b", "conditions.model"),
        ("003-051", "conditions.model", "llama-3-8b", "conditions.model"),
        ("003-051", "status", "ok", "status"),
        ("003-051", "status", "claimed", "status"),
        ("003-001", "status", "oom", "status"),
        ("003-001", "claims", {}, "claims"),
    ],
)
def test_a_row_that_its_own_labels_contradict_is_named_by_its_field(path: str, name: str, value: Any, field: str) -> None:
    assert field in recorded(f"published/003/{path}.json", (name, value))


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("published_on", "2026-11-29", "published_on"),
        ("published_on", "2024-05 to 2023-07", "published_on"),
        ("published_on", "2024-13-01", "published_on"),
        ("published_on", "1924", "published_on"),
        ("committed_on", "2026-11-21", "committed_on"),
        ("stated_on", "2026-11-21", "stated_on"),
    ],
)
def test_a_document_was_published_before_it_was_read(name: str, value: str, field: str) -> None:
    assert recorded("published/003/source.json", ("published_on", "2025-01 to 2025-03-31 (as stated)")) == set()
    assert field in recorded("published/003/source.json", (name, value))


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("source.json", '"003-057"\n    ]', '"003-075"\n    ]', "'003-075': there is no such row or statement"),
        ("source.json", '"quantity": "', '"quantity": "quick_', "is not a quantity"),
        ("source.json", "{003-019/model}", "{003-119/model}", "'003-119/model': there is no such row"),
        ("source.json", "{003-019/model}", "{003-019/mode}", "'003-019/mode': there is no such claim or label"),
        ("003-001.json", '"sequence_length": 8192', '"sequence_length": 81920', "all other rows of the document have 8192"),
    ],
)
def test_a_document_refers_to_rows_and_figures_that_exist(tmp_path: Path, file: str, old: str, new: str, said: str) -> None:
    folder = shutil.copytree(CHECKOUT / "data" / "published" / "003", tmp_path / "003")
    assert list(rows_problems(folder / "source.json", BESIDE)) == []
    text = (folder / file).read_text(encoding="utf-8")
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1), encoding="utf-8")
    assert any(said in str(problem) for problem in rows_problems(folder / "source.json", BESIDE))


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("012/results.json", '"nvidia-a100-80gb-sxm"', '"nvidia-h200-141gb-sxm"', "came in 2024, and the document is of 2023"),
        ("004/source.json", '"accelerator": "nvidia', '"accelerator": "nvidio', "no such card in data/accelerators"),
        ("004/004-001.json", '"torch": "2.2.0"', '"torch": "2.12.0"', "'2.12.0': came out on 2026"),
        ("004/004-001.json", '"method": "lora"', '"method": "qlora"', "the other rows of 'LLaMA-2 7B LoRA Fine-Tuning' have 'lora'"),
    ],
)
def test_a_row_is_no_later_than_its_document_and_has_the_method_of_its_section(
    tmp_path: Path, name: str, old: str, new: str, said: str
) -> None:
    file = tmp_path / name
    folder = shutil.copytree(CHECKOUT / "data" / "published" / file.parent.name, file.parent)
    assert list(rows_problems(folder / "source.json", BESIDE)) == []
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")
    assert any(said in str(problem) for problem in rows_problems(folder / "source.json", BESIDE))


def test_a_row_that_is_another_one_under_another_id_is_found(tmp_path: Path) -> None:
    folder = shutil.copytree(CHECKOUT / "data" / "published" / "004", tmp_path / "004")
    copy = (folder / "004-001.json").read_text(encoding="utf-8").replace("004-001", "004-059")
    (folder / "004-059.json").write_text(copy, encoding="utf-8")
    assert any("is 004-001 again" in str(problem) for problem in rows_problems(folder / "source.json", BESIDE))


def test_golden_losses_of_an_earlier_card_are_found_with_the_card(checkout: Path, tunemark: Tunemark) -> None:
    card = checkout / "data" / "workloads" / "smoke-full.toml"
    shutil.copytree(CHECKOUT / "data" / "workloads" / "golden", checkout / "data" / "workloads" / "golden", dirs_exist_ok=True)
    text = card.read_text(encoding="utf-8")
    card.write_text(text.replace("learning_rate = ", "learning_rate = 1", 1), encoding="utf-8")
    answered = tunemark("validate", card)
    assert answered.code == 3
    assert "golden/smoke-full.toml has the losses of another version of this card" in answered.err


def test_a_workload_has_as_many_classes_as_its_dataset() -> None:
    card = FACTS.workloads["bert-emotion"]
    assert "labels" in fields(workload_problems(changed(card, labels=2), BESIDE))


@pytest.mark.parametrize(
    ("axes", "field"),
    [
        ([{"field": "batch.microbatch", "values": [2, 4]}], "field"),
        ([{"field": "batch.micro_batch", "values": [2, 4], "at": {"optimiser.learning_rate": 1e-4}}], "field"),
        ([{"field": "batch.micro_batch", "values": [2, "many"]}], "field"),
        ([{"field": "optimizer.learning_rate", "values": [2e-5, 20]}], "values"),
        ([{"field": "batch.micro_batch", "values": [2, 6]}], "values"),
        ([{"field": "data.sequence_length", "values": [128, 1024]}], "values"),
        ([{"field": "lora.rank", "values": [8, 16]}], "field"),
    ],
)
def test_an_axis_varies_a_setting_of_the_card_within_its_limits(axes: list[dict[str, Any]], field: str) -> None:
    card = FACTS.workloads["bert-emotion"]
    assert list(setting_problems(card, BESIDE)) == []
    wrong = type(card).model_validate(card.model_dump(mode="json", exclude_defaults=True) | {"axes": axes})
    assert field in fields(setting_problems(wrong, BESIDE))


def test_a_workload_has_no_more_rows_than_its_dataset() -> None:
    card = FACTS.workloads["bert-emotion"]
    assert fields(workload_problems(card, BESIDE)) == set()
    assert "evaluation_rows" in fields(workload_problems(changed(card, data__evaluation_rows=2_001), BESIDE))


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('note = "a\u200bb"', "text"),
        (r'note = "a\u202Eb"', "text"),
        ('name = "N\u0412IDIA"', "text"),
        ('source = "javascript:alert(1)"', "source"),
        ('source = "file:///etc/passwd"', "source"),
        ('source = "data:text/html,x"', "source"),
        ('source = "https://nvidia.com@evil.example/x"', "source"),
        ('source = "https://xn--nvida-9ta.com/x"', "source"),
        ('notes = "<script>alert(1)</script>"', "text"),
        ("aws,x,=cmd|' /C calc'!A0", "text"),
    ],
)
def test_text_that_hides_or_runs_is_refused_with_its_line(text: str, field: str) -> None:
    assert [(line, problem.field) for line, problem in text_problems(f"a = 1\n{text}\n")] == [(2, field)]


def test_plain_text_in_several_languages_passes() -> None:
    texts = (
        "Bewertung: größer als 3 GB/s, µ = 2",
        "résultats à 7 %",
        "学習速度 1,200 tokens/s",
        "Δt < 2 s, see https://example.org/a?b=c",
        "x <= 3",
    )
    assert [list(text_problems(text)) for text in texts] == [[]] * len(texts)


@pytest.mark.parametrize(
    ("known", "field"),
    [
        ({"2.1.0": "2023-10-04", "2.1.1": "2023-11-04", "2.1.2": "2022-12-14"}, "2.1.2"),
        ({"2.0.0": "2023-03-15", "2.1.0": "2052-10-04"}, "2.1.0"),
        ({"2.0.0": "2023-03-15", "two": "2024-10-04"}, "two"),
        ({"2.0.0": "1996-03-15"}, "2.0.0"),
    ],
)
def test_releases_out_of_order_or_after_they_were_read_are_refused(known: dict[str, str], field: str) -> None:
    library = {"library": "torch", "source": "its registry", "read_on": "2026-11-21", "released_on": known}
    assert field in fields(known_problems(WorldFacts.model_validate({"libraries": [library]}), BESIDE))


def test_a_patch_of_an_old_series_may_follow_a_new_series() -> None:
    library = {"library": "torch", "source": "its registry", "read_on": "2026-11-21", "released_on": {"1.0.0": "2020-01-01", "2.0.0": "2021-01-01", "1.0.1": "2021-06-01"}}  # fmt: skip
    assert list(known_problems(WorldFacts.model_validate({"libraries": [library]}), BESIDE)) == []


def required(library: str, since: str, needs: str, least: str, **other: str) -> dict[str, str]:
    """What a version of a library needs."""
    return {"library": library, "since": since, "needs": needs, "least": least, "source": "its registry"} | other


PHI = [{"word": "4k", "context_length": 4096}, {"word": "128k", "context_length": 131_072}]
LENGTHS = {"tokenizer": "bert-base-uncased", "mean": 22.26, "quantiles": {"0": 4, "0.5": 20, "0.9": 38, "1": 87}, "source": "a report"}


@pytest.mark.parametrize(
    "known",
    [
        {"architectures": [{"family": "qwen3", "library": "transformers", "added_on": "1999-01-01", "source": "a commit"}]},
        {"releases": [{"library": "cuda", "version": "12.1", "released_on": str(LATER), "source": "an archive"}]},
        {"practices": [{"key": "high", "value": 80_000, "meaning": "a share", "source": "judgement"}]},
        {"generations": [{"architecture": "Volta", "tensor_core_generation": 1, "source": "n/a"}]},
        {"requirements": [{"library": "torch", "since": "the second", "needs": "python", "least": "3.8", "source": "its registry"}]},
        {"requirements": [required("torch", "2.0.0", "python", "3.11", newest="3.8")]},
        {"requirements": [required("torch", "2.0.0", "python", "3.8"), required("torch", "2.5.0", "python", "3.7")]},
        {"requirements": [required("torch", "2.0.0", "python", "3.8"), required("torch", "2.0.0", "python", "3.8")]},
        {"requirements": [required("transformers", "4.75.1", "torch", "2.2")]},
        {"requirements": [required("transformers", "4.57.1", "torch", "22.2")]},
        {"requirements": [required("torch", "2.0.0", "python", "38")]},
        {"generations": [{"architecture": "Hopper", "tensor_core_generation": 1, "source": "a whitepaper"}]},
        {"generations": [{"architecture": name, "tensor_core_generation": number, "source": "a whitepaper"} for name, number in (("Volta", 2), ("Turing", 1))]},
        {"generations": [{"architecture": "Hoper", "tensor_core_generation": 4, "source": "a whitepaper"}]},
        {"practices": [{"key": "usable", "value": 99.2, "meaning": "Maximum share of a device's memory.", "source": "judgement"}]},
        {"practices": [{"key": "spread", "value": 0.5, "meaning": "Maximum ratio of token counts.", "source": "judgement"}]},
        {"practices": [{"key": "slack", "value": 5.0, "meaning": "Maximum relative difference of two clocks.", "source": "judgement"}]},
        {"practices": [{"key": f"{name}-utilisation", "value": value, "meaning": "Share of the peak.", "source": "judgement"} for name, value in (("low", 0.8), ("high", 0.2))]},
        {"shared_names": [{"model": "phi-3-medium", "variants": PHI, "source": "a hub"}]},
        {"shared_names": [{"model": "llama-2-7b", "variants": [PHI[1], {"word": "8k", "context_length": 8192}], "source": "a hub"}]},
        {"shared_names": [{"model": "phi-3-mini", "variants": [PHI[0], {"word": "128k", "context_length": 13_107}], "source": "a hub"}]},
        {"architectures": [{"family": "qwen4", "library": "transformers", "added_on": "2025-01-01", "source": "a commit"}]},
        {"architectures": [{"family": f"qwen{number}", "library": "transformers", "added_on": f"202{year}-01-01", "source": "a commit"} for number, year in ((2, 5), (3, 4))]},
        {"software": [{"source": "3", "level": "plain", "because": "a loop"}]},
        {"software": [{"source": "999", "level": "plain", "because": "a loop"}]},
        {"software": [{"source": "003", "when": {"section": "(open"}, "level": "plain", "because": "a loop"}]},
        {"memory_readings": [{"source": "003", "left_out": {"003-999": "no such row"}}]},
        {"memory_readings": [{"source": "003"}, {"source": "003"}]},
        {"practices": [{"key": "usable-memory", "value": 0.9, "meaning": "Share of a device's memory.", "source": "judgement"}]},
        {"generations": [{"architecture": "Volta", "tensor_core_generation": 1, "source": "a whitepaper"}] * 2},
        {"series": [{"library": "os", "prefix": "Ubuntu 22.04", "versions": ["22.04.1", "24.04"], "source": "a page"}]},
        {"libraries": [{"library": "torch", "source": "its registry", "read_on": "2026-11-21", "released_on": {**{f"1.{minor}.0": "2021-01-01" for minor in range(12)}, "2.0.0rc1": "2022-01-01"}}]},
        {"datasets": [{"key": "emotion", "training_rows": 160_000, "source": "files of 16,000 and 2,000 lines"}]},
        {"datasets": [{"key": "emotion", "training_rows": 1600, "test_rows": 2000, "source": "its files"}]},
        {"datasets": [{"key": "emotion", "training_rows": 1600, "labels": 1, "source": "its files"}]},
        {"datasets": [{"key": "emotion", "training_rows": 1600, "source": "its files", "token_lengths": [LENGTHS | {"mean": 60}]}]},
        {"datasets": [{"key": "emotion", "training_rows": 1600, "source": "its files", "token_lengths": [LENGTHS | {"tokenizer": "bert-tiny"}]}]},
    ],
)  # fmt: skip
def test_impossible_known_facts_are_refused(known: dict[str, Any]) -> None:
    assert list(known_problems(WorldFacts.model_validate(known), BESIDE))


def test_the_bounds_that_must_be_there_are_those_that_the_audit_reads() -> None:
    rules = (CHECKOUT / "collector" / "tunemark" / "collector" / "audit").rglob("*.py")
    source = "\n".join(path.read_text(encoding="utf-8") for path in rules)
    assert set(re.findall(r'practice\("([a-z-]+)"\)', source)) <= AUDITED
    assert {practice.key for practice in FACTS.known.practices if f'"{practice.key}"' in source} == AUDITED


def test_known_facts_that_agree_pass() -> None:
    known = {
        "requirements": [
            required("transformers", "5.16.0", "tokenizers", "0.23.1", newest="0.23"),
            required("torch", "2.0.0", "python", "3.8"),
        ],
        "shared_names": [{"model": "phi-3-mini", "variants": PHI, "source": "a hub"}],
        "datasets": [{"key": "emotion", "training_rows": 1600, "source": "its files", "token_lengths": [LENGTHS]}],
    }
    assert list(known_problems(WorldFacts.model_validate(known), BESIDE)) == []


@pytest.mark.parametrize(("old", "new"), [("mean = 22.26", "mean = 222.6"), ('"0.9" = 38, "0.95" = 45', '"0.9" = 45, "0.95" = 38')])
def test_a_table_that_breaks_a_rule_between_its_fields_is_a_problem_and_no_crash(
    checkout: Path, tunemark: Tunemark, old: str, new: str
) -> None:
    path = checkout / "data" / "known" / "datasets.toml"
    text = (CHECKOUT / "data" / "known" / "datasets.toml").read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    answered = tunemark("validate", path)
    assert answered.code == 3
    assert "quantiles" in answered.err


def test_a_number_beyond_everything_names_its_file_and_stops_no_other(checkout: Path, tunemark: Tunemark) -> None:
    card = checkout / "data" / "models" / "gpt2.toml"
    card.write_text(
        card.read_text(encoding="utf-8").replace("intermediate_size = 3072", f"intermediate_size = 3{'0' * 400}"), encoding="utf-8"
    )
    price = checkout / "data" / "accelerators" / "nvidia-t4.toml"
    price.write_text(price.read_text(encoding="utf-8").replace("tdp_w = 70", "tdp_w = 70000"), encoding="utf-8")
    answered = tunemark("validate", "data")
    assert answered.code == 3
    assert "data/models/gpt2.toml" in answered.err
    assert "nvidia-t4.toml" in answered.err


def test_the_support_matrix_is_checked_by_its_model_and_tables_of_documents_are_no_records(checkout: Path, tunemark: Tunemark) -> None:
    tables = checkout / "data" / "tables" / "011"
    tables.mkdir(parents=True)
    (tables / "runs.json").write_text("[]", encoding="utf-8")
    support = checkout / "data" / "support.json"
    shutil.copy(CHECKOUT / "data" / "support.json", support)
    assert tunemark("validate", "data").code == 0
    support.write_text(support.read_text(encoding="utf-8").replace('"features"', '"feature"', 1), encoding="utf-8")
    answered = tunemark("validate", "data")
    assert answered.code == 3
    assert "data/support.json:" in answered.err
