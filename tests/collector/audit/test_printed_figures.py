"""A figure is as wide as its last printed digit, arithmetic carries the bounds, and some figures follow from others."""

import pytest
from factories import FACTS, make_published
from hypothesis import given
from hypothesis import strategies as st

from tunemark.collector.audit.interval import Interval
from tunemark.collector.audit.printed_figures import derived_figures, precision_class, printed_rows
from tunemark.collector.store.result_rows import published_rows
from tunemark.schema.records.published import Claim, PublishedResult

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
    unclaimed = {name for name, figure in derived_figures(result, None, None).items() if figure.formula}
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


amounts = st.floats(min_value=1e-6, max_value=1e9)
shares = st.floats(min_value=0, max_value=0.5)


def claim(value, printed):
    return Claim(value=value, printed=printed)


@pytest.mark.parametrize(
    ("value", "printed", "low", "high"),
    [
        (4.7, "4.7", 4.65, 4.75),
        (5420.0, "5,420", 5419.5, 5420.5),
        (5217.0, "1:26:57", 5216.5, 5217.5),
        (5501.436, "91m41.436s", 5501.4355, 5501.4365),
        (40_080.0, "11 hours and 8 minutes", 40_050.0, 40_110.0),
        (0.71, "71% vs Full", 0.705, 0.715),
        (3.0, "thrice", 3.0, 3.0),
    ],
)
def test_a_printed_figure_is_as_wide_as_its_last_digit(value, printed, low, high):
    interval = Interval.of(claim(value, printed))
    assert interval.low == pytest.approx(low, rel=1e-9)
    assert interval.high == pytest.approx(high, rel=1e-9)


@given(amounts, amounts, shares, shares)
def test_bounds_contain_every_product_and_quotient(a, b, wide, narrow):
    one, other = Interval.exact(a).widened(wide), Interval.exact(b).widened(narrow)
    for result, at in ((one * other, (lambda x, y: x * y)), (one / other, (lambda x, y: x / y)), (one + other, (lambda x, y: x + y))):
        for x in (one.low, a, one.high):
            for y in (other.low, b, other.high):
                assert result.low * (1 - 1e-9) <= at(x, y) <= result.high * (1 + 1e-9)
