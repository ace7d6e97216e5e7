"""Figures that follow from published claims, and figures that do not."""

import pytest
from factories import FACTS, make_published

from tunemark.collector.audit import printed_figures
from tunemark.collector.store.published_rows import derived_figures, known_dataset_rows, published_rows
from tunemark.schema.records.published import Claim, Conditions, PublishedResult, Reading, SourceDocument


def claim(value: float, *readings: float) -> Claim:
    return Claim(
        value=value, printed=str(value), readings=tuple(Reading(meaning=f"meaning {reading}", value=reading) for reading in readings)
    )


def conditions(**values: object) -> Conditions:
    return Conditions.model_validate({"model": "llama-3.1-8b", "method": "lora", **values})


FULL_ROWS = {"micro_batch": 2, "gradient_accumulation": 1, "accelerator_count": 1, "sequence_length": 8192, "padding": "none"}


def test_an_unambiguous_step_time_is_used_unchanged() -> None:
    assert printed_figures.step_time_s({"step_time_s": claim(4.7)}) == printed_figures.Figure(4.7)


def test_an_ambiguous_step_time_stays_unknown_even_with_a_rate() -> None:
    assert printed_figures.step_time_s({"step_time_s": claim(4.7, 4.7, 150.4), "steps_per_s": claim(0.2)}) is None


def test_steps_per_second_give_the_mean_step_time() -> None:
    figure = printed_figures.step_time_s({"steps_per_s": claim(4.0)})
    assert figure is not None
    assert (figure.value, figure.formula) == (0.25, "1 / claimed steps per second, an average over the whole training")


def test_full_rows_give_tokens_per_second() -> None:
    figure = printed_figures.tokens_per_s({"step_time_s": claim(4.7)}, conditions(**FULL_ROWS))
    assert figure is not None
    assert figure.value == pytest.approx(2 * 8192 / 4.7)


@pytest.mark.parametrize(
    "unknown",
    [{"padding": "static"}, {"padding": None}, {"sequence_length": None}, {"gradient_accumulation": None}, {"accelerator_count": 2}],
)
def test_without_full_rows_of_known_number_there_are_no_tokens_per_second(unknown: dict[str, object]) -> None:
    assert printed_figures.tokens_per_s({"step_time_s": claim(4.7)}, conditions(**FULL_ROWS | unknown)) is None


def test_zero_times_give_no_rate() -> None:
    claims = {"step_time_s": claim(0.0), "train_time_s": claim(0.0), "epochs": claim(0.0), "tokens": claim(9.0), "steps_per_s": claim(0.0)}
    assert printed_figures.tokens_per_s(claims, conditions(**FULL_ROWS)) is None
    assert printed_figures.samples_per_s(claims, conditions(), 16_000) is None
    assert printed_figures.epoch_time_s(claims) is None


def test_tokens_over_the_length_of_a_row_are_samples() -> None:
    figure = printed_figures.samples_per_s({"tokens_per_s": claim(4096.0)}, conditions(sequence_length=2048), None)
    assert figure is not None
    assert figure.value == 2.0
    assert "taken as full" in str(figure.formula)


def test_packed_rows_are_not_documents() -> None:
    claims = {"samples_per_s": claim(0.4), "tokens_per_s": claim(4096.0), "epochs": claim(3.0), "train_time_s": claim(6000.0)}
    packed = printed_figures.samples_per_s(claims, conditions(sequence_length=4096, packing=True), 20_000)
    assert packed == printed_figures.Figure(10.0, "epochs x 20000 training rows / training time")


def test_epochs_of_known_rows_are_samples_when_no_rate_is_clear() -> None:
    claims = {"samples_per_s": claim(46.3, 46.3, 92.6), "epochs": claim(3.0), "train_time_s": claim(480.0)}
    assert printed_figures.samples_per_s(claims, conditions(), 16_000) == printed_figures.Figure(
        100.0, "epochs x 16000 training rows / training time"
    )
    assert printed_figures.samples_per_s(claims, conditions(), None) is None


def test_epochs_are_done_when_the_planned_steps_were_made() -> None:
    claims = {"epochs": claim(3.0), "train_time_s": claim(480.0), "steps": claim(6000.0), "total_steps": claim(6000.0)}
    assert printed_figures.epoch_time_s(claims) == printed_figures.Figure(160.0, "training time / epochs")


def test_unfinished_epochs_give_no_rate() -> None:
    claims = {"epochs": claim(3.0), "train_time_s": claim(480.0), "steps": claim(20.0), "total_steps": claim(6000.0)}
    assert printed_figures.epoch_time_s(claims) is None
    assert printed_figures.samples_per_s(claims, conditions(), 16_000) is None


@pytest.mark.parametrize(
    ("printed", "rows"),
    [
        ("dair-ai/emotion (16000/2000/2000)", 16_000),
        ("tengomucho/simple_recipes (20,000 rows)", 20_000),
        ("NoteChat (first 10,000 records)", 10_000),
        ("dair-ai/emotion", None),
        ("random tokens (--gpu_test) over ai2_arc", None),
        (None, None),
    ],
)
def test_rows_of_a_data_set_are_read_where_they_are_stated(printed: str | None, rows: int | None) -> None:
    assert printed_figures.printed_rows(printed) == rows


@pytest.mark.parametrize(
    ("printed", "named"),
    [
        ("torch.bfloat16", "bf16"),
        ("bfloat16 + nf4 double quant", "bf16"),
        ("Mixed precision (FP16/BF16)", "fp16/bf16"),
        ("float16", "fp16"),
        ("float32", "fp32"),
        ("int4", None),
        (None, None),
        ("amp_bf16", "bf16"),
        ("MXFP8", "fp8"),
        ("bf16 and float8", "bf16/fp8"),
        ("NVFP4", None),
    ],
)
def test_precision_words_become_a_class(printed: str | None, named: str | None) -> None:
    assert printed_figures.precision_class(printed) == named


def test_a_statement_of_a_document_gives_the_rows_of_a_data_set() -> None:
    document = SourceDocument.model_validate(
        {
            "id": "900",
            "title": "t",
            "summary": "s",
            "results": 0,
            "statements": [
                {"id": "900-S01", "section": "s", "labels": {"dataset": "emotion"}, "note": "has 16,000 training, 2,000 test rows"}
            ],
        }
    )
    assert known_dataset_rows(FACTS, [document])["emotion"] == 16_000


def rows_of(result: PublishedResult) -> dict[str, object]:
    return published_rows(result, FACTS, {}, "file.json", "0" * 64)["result_rows"][0]


def test_no_published_result_is_ranked() -> None:
    row = rows_of(make_published())
    assert (row["rankable"], row["trust"], row["step_definition"]) == (False, "published", None)


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
        row["name"]: row["reason"] for row in published_rows(result, FACTS, {}, "f", "0" * 64)["result_facts"] if row["topic"] == "derived"
    }
    unclaimed = {name for name, figure in derived_figures(result, {}).items() if figure.formula}
    assert set(facts) == unclaimed == {"steps_per_s", "tokens_per_s", "samples_per_s", "global_batch"}
    assert all(facts.values())
