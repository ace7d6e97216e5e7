"""Facts: what a contributor gets wrong is named by its field; the committed facts, and honest devices that are not among them, pass."""

import shutil
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from factories import CHECKOUT, FACTS, Tunemark, with_overrides
from pydantic import ValidationError

from tunemark.collector.gate.fact_checks import Neighbours, accelerator_problems, text_problems
from tunemark.collector.gate.published_checks import claim_problems
from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.records.published import Claim
from tunemark.schema.records.reading import Problem

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


@pytest.mark.parametrize(
    ("key", "changes", "said"),
    [
        ("nvidia-l4", {"unverified": ["peak_tflops.bf61"]}, "unverified names 'peak_tflops.bf61'"),
        ("google-tpu-v5e", {"unit": "device"}, "a chip has separately addressable cores"),
        ("nvidia-l4", {"read_on": "2009-12-31"}, "greater than or equal to 2010-01-01"),
        ("nvidia-l4", {"source": "TODO"}, "says nothing"),
        ("amd-epyc-7763", {"cpu__clusters__0__vector_bits": 384}, "is a power of two"),
        ("qwen3-8b", {"key_value_heads": 5}, "does not divide attention_heads"),
        ("tiny-llama", {"gated": True}, "no hub_id that could be gated"),
    ],
)
def test_a_card_that_contradicts_itself_cannot_be_read(key: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        changed((FACTS.accelerators | FACTS.models)[key], **changes)


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


@pytest.mark.parametrize("text", ["read_on = {}", '  "stated_on": "{}",', "aws,p5,{},x", "read_on = {} # in a note"])
def test_a_day_that_has_not_come_is_a_problem_of_its_line_and_prose_is_not(text: str) -> None:
    assert [line for line, _ in text_problems(f"\n{text.format(LATER)}")] == [2]
    assert not list(text_problems(f"{text.format('2026-11-01')}\n'sold until {LATER}, they say'"))


def test_notes_can_explain_a_card_that_differs_from_its_architecture_but_not_an_impossible_one() -> None:
    card = FACTS.accelerators["nvidia-h100-80gb-sxm"]
    cut = {"peak_tflops__int8": 989, "notes": "peak_tflops.int8 is limited by the firmware of this batch"}
    assert fields(accelerator_problems(changed(card, **(cut | {"notes": "limited"})), BESIDE)) == {"peak_tflops.int8"}
    assert list(accelerator_problems(changed(card, **cut), BESIDE)) == []
    assert fields(accelerator_problems(changed(card, **(cut | {"peak_tflops__int8": 500})), BESIDE)) == {"peak_tflops.int8"}


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
