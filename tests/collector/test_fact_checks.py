"""Facts: what a contributor gets wrong is named by its field; the committed facts, and honest devices that are not among them, pass."""

import json
import re
import shutil
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from factories import CHECKOUT, Tunemark, with_overrides
from pydantic import ValidationError

from tunemark.collector.gate.accelerator_checks import accelerator_problems
from tunemark.collector.gate.fact_book_checks import golden_problems, model_problems, workload_problems
from tunemark.collector.gate.fact_checks import Neighbours, text_problems
from tunemark.collector.gate.fact_files import fact_files, fact_problems
from tunemark.collector.gate.known_checks import AUDITED, known_problems
from tunemark.collector.gate.price_checks import price_problems
from tunemark.collector.gate.published_checks import claim_problems, fact_record_problems, rows_problems
from tunemark.collector.gate.read import find_records, read_or_none
from tunemark.collector.importers.table_text import printed_value
from tunemark.schema.facts.cards import AcceleratorCard, PriceRow
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.world_facts import WorldFacts
from tunemark.schema.records.claims import Claim
from tunemark.schema.records.reading import Problem

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
    ("key", "changes", "said"),
    [
        ("nvidia-l4", {"unverified": ["peak_tflops.bf61"]}, "unverified names 'peak_tflops.bf61'"),
        ("google-tpu-v5e", {"unit": "device"}, "a chip has separately addressable cores"),
        ("nvidia-h100-80gb-sxm", {"unit": "cpu"}, "the card has no cores"),
        ("nvidia-b300", {"launch_year": 2028}, "a card describes what is sold"),
        ("amd-epyc-7763", {"cpu__clusters__0__boost_clock_ghz": 1.5}, "swap them"),
        ("amd-epyc-7763", {"cpu__clusters__0__vector_bits": 384}, "is a power of two"),
        ("qwen3-8b", {"key_value_heads": 5}, "does not divide attention_heads"),
        ("gemma-2-9b", {"sliding_window_every": 84}, "none would have a window"),
        ("mixtral-8x7b", {"active_experts": 16}, "no more active than all"),
        ("qwen3-8b", {"hub_id": "https://huggingface.co/Qwen/Qwen3-8B"}, "hub_id"),
        ("tiny-llama", {"gated": True}, "no hub_id that could be gated"),
    ],
)
def test_a_card_that_contradicts_itself_cannot_be_read(key: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        changed((FACTS.accelerators | FACTS.models)[key], **changes)


@pytest.mark.parametrize(
    ("key", "changes", "field"),
    [
        ("nvidia-h100-80gb-sxm", {"peak_tflops__bf16": 1979, "peak_tflops__fp16": 1979}, "peak_tflops.bf16"),
        ("nvidia-h100-80gb-sxm", {"peak_tflops__fp8": 1750}, "peak_tflops.fp8"),
        ("amd-mi300x", {"interconnect_gb_s": 128}, "interconnect_gb_s"),
        ("nvidia-h100-80gb-pcie", {"memory_gib": 94}, "memory_gib"),
        ("intel-xeon-platinum-8480-plus", {"cpu__memory_mt_s": 3200}, "cpu.memory_mt_s"),
        ("amd-epyc-7763", {"tdp_w": 28}, "tdp_w"),
        ("amd-mi300x", {"architecture": "Hopper"}, "architecture"),
        ("nvidia-l4", {"vendor": "AMD"}, "vendor"),
        ("nvidia-l4", {"aliases": ["L4", "NVIDIA"]}, "aliases"),
        ("nvidia-t4", {"aliases": ["T4", "nvidia a100 sxm4 80gb"]}, "aliases"),
        ("nvidia-t4", {"name": "\u0422esla T4"}, "name"),
        ("nvidia-l4", {"read_on": str(LATER)}, "read_on"),
    ],
)
def test_an_accelerator_unlike_its_siblings_or_its_own_fields_is_named_by_its_field(key: str, changes: dict[str, Any], field: str) -> None:
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
        device("h800-80gb-sxm", "H800 SXM5 80GB", "Hopper", {"bf16": 989, "fp16": 989, "tf32": 494.5, "fp32": 67, "fp8": 1979, "int8": 1979}, memory_gib=80, memory_bandwidth_gb_s=3350, tdp_w=700, interconnect_gb_s=400, launch_year=2023),
        device("rtx-5080", "GeForce RTX 5080", "Blackwell", {"bf16": 112.6, "fp16": 112.6, "tf32": 56.3, "fp32": 56.3, "fp8": 225.1, "int8": 450.2}, memory_gib=16, memory_bandwidth_gb_s=960, tdp_w=360, interconnect_gb_s=128, launch_year=2025, msrp_usd=999),
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
        ("llama-3.1-8b", {"hub_id": "meta-IIama/Llama-3.1-8B"}, "hub_id"),
        ("llama-3.1-8b", {"layers": 33}, "parameters"),
        ("llama-3.1-8b", {"parameters": 8_040_000_000}, "parameters"),
        ("llama-3.1-8b", {"parameters": None, "layers": 64}, "name"),
        ("qwen3-8b", {"aliases": ["LLAMA_3.1 8b"]}, "aliases"),
    ],
)
def test_a_model_that_its_shapes_or_its_series_contradict_is_named_by_its_field(key: str, changes: dict[str, Any], field: str) -> None:
    card = FACTS.models[key]
    assert fields(model_problems(card, BESIDE)) == set()
    assert field in fields(model_problems(changed(card, **changes), BESIDE))


@pytest.mark.parametrize(
    ("instance", "kind", "changes", "field"),
    [
        ("p5.48xlarge", "on_demand", {"usd_per_hour": 6.88}, "usd_per_hour"),
        ("BM.GPU.MI300X.8", "on_demand", {"usd_per_hour": 4800}, "usd_per_hour"),
        ("p6-b200.48xlarge", "on_demand", {"usd_per_hour": 14.2416}, "usd_per_hour"),
        ("p5.48xlarge", "on_demand", {"accelerator": "nvidia-a100-80gb-sxm"}, "accelerator"),
        ("gpu_1x_a10", "on_demand", {"accelerator_count": 0.5}, "accelerator_count"),
        ("g5.xlarge", "on_demand", {"memory_gib": 16_384}, "memory_gib"),
        ("p5.48xlarge", "on_demand", {"effective_on": date(2021, 1, 1)}, "effective_on"),
        ("BM.GPU.MI300X.8", "on_demand", {"provider": "0ci"}, "provider"),
        ("BM.GPU.MI300X.8", "on_demand", {"instance": "BM.GPU.\u039cI300X.8"}, "instance"),
        ("g5.24xlarge", "on_demand", {"instance": "g5.32xlarge"}, "instance"),
    ],
)
def test_a_price_unlike_its_neighbours_is_named_by_its_field(instance: str, kind: str, changes: dict[str, Any], field: str) -> None:
    rows = list(enumerate(FACTS.prices, start=2))
    line = next(line for line, row in reversed(rows) if (row.instance, row.kind) == (instance, kind))
    rows[line - 2] = line, PriceRow.model_validate(rows[line - 2][1].model_dump() | changes)
    assert field in {problem.field for found, problem in price_problems(rows, BESIDE) if found == line}


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("basis.toml", '"oci", "digitalocean"]', '"oci", "vast"]', "3: providers: 'vast': has no price on demand"),
        ("aws_sizes.toml", 'p5 = ["4xlarge", "48xlarge"]', 'p5 = ["4xlarge"]', "p5: '48xlarge': is missing: p5.48xlarge has a price"),
        ("aws_sizes.toml", 'p4d = ["24xlarge"]', 'p4d = ["24xlarge", "24 xlarge"]', "p4d: '24 xlarge': is listed twice, or no size"),
        ("aws_sizes.toml", "[families]", "[family]", "families: must be a table"),
        ("aws_sizes.toml", "[families]", "[families", "not valid TOML"),
    ],
)
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
    ("key", "changes", "field"),
    [
        ("lora-8b", {"data__sequence_length": 200_000}, "sequence_length"),
        ("lora-8b", {"optimizer__learning_rate": 20}, "learning_rate"),
        ("lora-8b", {"optimizer__betas": [1.1, 0.999]}, "betas"),
        ("lora-8b", {"batch__gradient_accumulation": 8192, "batch__micro_batch": 64}, "micro_batch"),
        ("lora-8b", {"lora__target_modules": ["query_proj"]}, "target_modules"),
        ("lora-8b", {"model": "smollm2-1.7b"}, "model"),
        ("lora-8b", {"devices": {"count": 2, "strategy": "single"}}, "strategy"),
        ("bert-emotion", {"data__evaluation_rows": 2_001}, "evaluation_rows"),
    ],
)
def test_a_workload_that_nobody_could_run_is_named_by_its_field(key: str, changes: dict[str, Any], field: str) -> None:
    card = FACTS.workloads[key]
    assert fields(workload_problems(card, BESIDE)) == set()
    assert field in fields(workload_problems(changed(card, **changes), BESIDE))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"workload_sha256": "0" * 64}, "workload_sha256"),
        ({"losses": {10: 76.3, 240: 4.2}}, "10"),
        ({"losses": {10: 7.63, 100: 9.4, 240: 4.2}}, "100"),
        ({"losses": {10: 7.63, 240: 7.64}}, "losses"),
    ],
)
def test_golden_losses_of_another_card_or_of_no_learning_are_refused(changes: dict[str, Any], field: str) -> None:
    golden, card = FACTS.golden_losses("smoke-full"), FACTS.workloads["smoke-full"]
    assert golden is not None
    told = card, FACTS.workload_sha256("smoke-full"), FACTS.models[card.model]
    assert field in fields(golden_problems(golden.model_copy(update=changes), *told))


def test_golden_losses_of_an_earlier_card_are_found_with_the_card(checkout: Path, tunemark: Tunemark) -> None:
    card = checkout / "data" / "workloads" / "smoke-full.toml"
    shutil.copytree(CHECKOUT / "data" / "workloads" / "golden", checkout / "data" / "workloads" / "golden", dirs_exist_ok=True)
    text = card.read_text(encoding="utf-8")
    card.write_text(text.replace("learning_rate = ", "learning_rate = 1", 1), encoding="utf-8")
    answered = tunemark("validate", card)
    assert answered.code == 3
    assert "golden/smoke-full.toml has the losses of another version of this card" in answered.err


@pytest.mark.parametrize(
    ("quantity", "printed", "value"),
    [
        ("peak_memory_bytes", "78 GiB", 78 * 2**30),
        ("peak_memory_bytes", "~56 GB", 56e9),
        ("train_time_s", "1h 2m 3s", 3723),
        ("step_time_s", "~1,250 ms", 1.25),
        ("mfu", "41.25 %", 0.4125),
        ("model_flop_per_s", "3.28e+02 TFLOP/chip/s", 3.28e14),
        ("train_time_s", "soon", None),
        ("peak_memory_bytes", "78 bananas", None),
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
        ({"printed": "4.7", "value": -4.7}, {"value"}),
        ({"printed": "4.7", "value": 4.7, "readings": [{"meaning": "a micro-step", "value": 150.4}]}, {"readings"}),
        ({"printed": "fast", "value": 4.7}, {"printed"}),
    ],
)
def test_a_value_is_what_is_printed_or_a_note_says_how_it_follows(claim: dict[str, Any], wrong: set[str]) -> None:
    assert fields(claim_problems("step_time_s", Claim.model_validate(claim), None)) == wrong


@pytest.mark.parametrize(
    ("path", "name", "value", "field"),
    [
        ("published/003/003-001.json", "id", "003-777", "id"),
        ("published/003/003-001.json", "conditions.sequence_length", 10**9, "conditions.sequence_length"),
        ("published/003/003-001.json", "conditions.model", "llama-9", "conditions.model"),
        ("published/003/003-001.json", "conditions.framework.torch", "99.0", "conditions.framework.torch"),
        ("published/003/003-001.json", "claims.step_time_s.value", 47, "claims.step_time_s.value"),
        ("published/003/003-023.json", "claims.step_time_s.readings.1.value", 2481.0, "claims.step_time_s.readings"),
        ("published/003/003-001.json", "claims", {}, "claims"),
        ("published/003/003-001.json", "note", "see\u202eexe", "line 1: text"),
        ("published/003/003-010.json", "conditions.method", "full", "conditions.method"),
        ("published/003/003-041.json", "conditions.accelerator_count", 2, "conditions.accelerator_count"),
        ("published/003/source.json", "url", "javascript:alert(1)", "url"),
        ("published/003/source.json", "read_on", str(LATER), "read_on"),
        ("published/003/source.json", "stated_on", "2026-11-21", "stated_on"),
        ("converted/mlperf/v4.0/mlperf-v4.0-asustek-esc-n8a-e12.json", "runs.0.time_to_target_s", 17.7, "runs.0.time_to_target_s"),
        ("converted/mlperf/v4.0/mlperf-v4.0-asustek-esc-n8a-e12.json", "conditions.accelerator_count", 16, "conditions.accelerator_count"),
        ("converted/mlperf/v4.0/mlperf-v4.0-asustek-esc-n8a-e12.json", "runs.0.curve.samples.1", 100, "runs.0.curve.samples"),
    ],
)
def test_a_result_or_document_that_contradicts_itself_is_named_by_its_field(path: str, name: str, value: Any, field: str) -> None:
    file = CHECKOUT / "data" / path
    content = with_overrides(json.loads(file.read_bytes()), {name: value})
    record: Any = type(read_or_none(file)).model_validate(content)
    assert field in fields(fact_record_problems(record, json.dumps(content, ensure_ascii=False).encode(), file, FACTS))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"003-057"\n    ]', '"003-075"\n    ]', "'003-075': there is no such row or statement"),
        ('"quantity": "', '"quantity": "quick_', "is not a quantity"),
        ("{003-019/model}", "{003-119/model}", "'003-119/model': there is no such row"),
        ("{003-019/model}", "{003-019/mode}", "'003-019/mode': there is no such claim or label"),
    ],
)
def test_a_document_refers_to_rows_and_figures_that_exist(tmp_path: Path, old: str, new: str, said: str) -> None:
    document = shutil.copytree(CHECKOUT / "data" / "published" / "003", tmp_path / "003") / "source.json"
    text = document.read_text(encoding="utf-8")
    assert old in text
    document.write_text(text.replace(old, new, 1), encoding="utf-8")
    assert any(said in str(problem) for problem in rows_problems(document, BESIDE))


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('note = "a\u200bb"', "text"),
        ('name = "N\u0412IDIA"', "text"),
        ('source = "javascript:alert(1)"', "source"),
        ('source = "https://nvidia.com@evil.example/x"', "source"),
        ('notes = "<script>alert(1)</script>"', "text"),
        ("aws,x,=cmd|' /C calc'!A0", "text"),
    ],
)
def test_text_that_hides_or_runs_is_refused_with_its_line(text: str, field: str) -> None:
    assert [(line, problem.field) for line, problem in text_problems(f"a = 1\n{text}\n")] == [(2, field)]


def test_plain_text_in_several_languages_passes() -> None:
    texts = ("Bewertung: größer als 3 GB/s, µ = 2", "学習速度 1,200 tokens/s", "Δt < 2 s, see https://example.org/a?b=c", "x <= 3")
    assert [list(text_problems(text)) for text in texts] == [[]] * len(texts)


LENGTHS = {"tokenizer": "bert-tiny", "mean": 22.26, "quantiles": {"0": 4, "0.5": 20, "1": 87}, "source": "its files"}
REQUIRED = {"library": "transformers", "since": "5.16.0", "needs": "tokenizers", "least": "0.23.1", "source": "its metadata"}
TORCH = {"library": "torch", "source": "its registry", "read_on": "2026-11-21"}


@pytest.mark.parametrize(
    ("known", "field"),
    [
        ({"libraries": [TORCH | {"released_on": {"2.1.0": "2052-10-04"}}]}, "2.1.0"),
        ({"libraries": [TORCH | {"released_on": {"two": "2024-10-04"}}]}, "two"),
        ({"series": [{"library": "os", "prefix": "Ubuntu 22.04", "versions": ["22.04.1", "24.04"], "source": "a page"}]}, "versions"),
        ({"requirements": [REQUIRED | {"newest": "0.22"}]}, "newest"),
        ({"architectures": [{"family": "qwen4", "library": "transformers", "added_on": "2025-01-01", "source": "a commit"}]}, "family"),
        ({"generations": [{"architecture": "Hoper", "tensor_core_generation": 4, "source": "a whitepaper"}]}, "architecture"),
        ({"generations": [{"architecture": "Hopper", "tensor_core_generation": 3, "source": "a whitepaper"}]}, "tensor_core_generation"),
        ({"practices": [{"key": "usable-memory", "value": 0.9, "meaning": "Share of memory.", "source": "judgement"}]}, "practices"),
        ({"software": [{"source": "003", "when": {"section": "(open"}, "level": "plain", "because": "a loop"}]}, "section"),
        ({"memory_readings": [{"source": "003", "left_out": {"003-999": "no such row"}}]}, "left_out"),
        ({"datasets": [{"key": "emotion", "training_rows": 160_000, "source": "files of 16,000 and 2,000 lines"}]}, "training_rows"),
        ({"datasets": [{"key": "emotion", "training_rows": 1600, "source": "its files", "token_lengths": [LENGTHS]}]}, "tokenizer"),
    ],
)
def test_impossible_known_facts_are_refused(known: dict[str, Any], field: str) -> None:
    assert field in fields(known_problems(WorldFacts.model_validate(known), BESIDE))


def test_the_bounds_that_must_be_there_are_those_that_the_audit_reads() -> None:
    rules = (CHECKOUT / "collector" / "tunemark" / "collector" / "audit").rglob("*.py")
    source = "\n".join(path.read_text(encoding="utf-8") for path in rules)
    assert set(re.findall(r'practice\("([a-z-]+)"\)', source)) <= AUDITED
    assert {practice.key for practice in FACTS.known.practices if f'"{practice.key}"' in source} == AUDITED


def test_a_number_beyond_everything_names_its_file_and_stops_no_other(checkout: Path, tunemark: Tunemark) -> None:
    card = checkout / "data" / "models" / "gpt2.toml"
    card.write_text(card.read_text(encoding="utf-8").replace("= 3072", f"= 3{'0' * 400}"), encoding="utf-8")
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
