"""Figures that follow from published claims, and figures that do not."""

import pytest
from factories import FACTS, make_published

from tunemark.collector.audit.printed_figures import derived_figures, precision_class, printed_rows
from tunemark.collector.store.published_rows import published_rows
from tunemark.schema.records.published import PublishedResult

FULL_ROWS = {"micro_batch": 2, "gradient_accumulation": 1, "accelerator_count": 1, "sequence_length": 8192, "padding": "none"}


@pytest.mark.parametrize(
    ("printed", "rows"),
    [
        ("dair-ai/emotion (16000/2000/2000)", 16_000),
        ("NoteChat (first 10,000 records)", 10_000),
        ("random tokens (--gpu_test) over ai2_arc", None),
    ],
)
def test_rows_of_a_data_set_are_read_where_they_are_stated(printed: str | None, rows: int | None) -> None:
    assert printed_rows(printed) == rows


@pytest.mark.parametrize(
    ("printed", "named"),
    [
        ("torch.bfloat16", "bf16"),
        ("Mixed precision (FP16/BF16)", "fp16/bf16"),
        ("float32", "fp32"),
        (None, None),
        ("MXFP8", "fp8"),
        ("NVFP4", None),
    ],
)
def test_precision_words_become_a_class(printed: str | None, named: str | None) -> None:
    assert precision_class(printed) == named


def rows_of(result: PublishedResult) -> dict[str, object]:
    return published_rows(result, FACTS, "file.json", "0" * 64)["result_rows"][0]


def test_an_ambiguous_step_is_marked_and_joins_no_comparison() -> None:
    ambiguous = {
        "value": 6.4,
        "printed": "6.4",
        "readings": [{"meaning": "a micro-step", "value": 6.4}, {"meaning": "an optimizer step", "value": 204.8}],
    }
    row = rows_of(make_published(claims={"step_time_s": ambiguous}))
    assert row["step_definition"] == "ambiguous"
    assert "step_time_s" not in row
    assert row["comparability_group"] is None


def test_every_derived_figure_has_a_formula() -> None:
    result = make_published(
        **{"claims.step_time_s": {"value": 4.7, "printed": "4.7"}, "conditions": {"model": "llama-3.1-8b", "method": "full", **FULL_ROWS}}
    )
    facts = {
        row["name"]: row["reason"] for row in published_rows(result, FACTS, "f", "0" * 64)["result_facts"] if row["topic"] == "derived"
    }
    unclaimed = {name for name, figure in derived_figures(result.claims, result.conditions, None, None).items() if figure.formula}
    assert set(facts) == unclaimed == {"steps_per_s", "tokens_per_s", "samples_per_s", "global_batch"}
    assert all(facts.values())


@pytest.mark.parametrize(
    ("dataset", "quantity", "rows"),
    [("dair-ai/emotion", "accuracy", 2_000), ("dair-ai/emotion", "train_loss", None), ("own data", "accuracy", None)],
)
def test_the_rows_of_a_published_evaluation_are_those_of_its_known_test_set(dataset: str, quantity: str, rows: int | None) -> None:
    conditions = {"model": "bert-base-uncased", "method": "full", "dataset": dataset}
    row = rows_of(make_published(claims={quantity: {"value": 0.9, "printed": "90%"}}, conditions=conditions))
    assert row.get("evaluation_rows") == rows
