"""Lengths of rows in tokens: the mean after a cut, from quantiles."""

import pytest
from factories import FACTS

from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import validated
from tunemark.schema.facts.world_facts import TokenLengths

EMOTION = next(dataset for dataset in FACTS.known.datasets if dataset.key == "dair-ai/emotion")


def lengths(**changes: object) -> TokenLengths:
    even = {"tokenizer": "gpt2", "mean": 50.0, "quantiles": {"0": 1, "0.5": 50, "1": 99}, "source": "a source"}
    return validated(TokenLengths, {**even, **changes}, "datasets.toml")


def test_rows_on_straight_lines_between_the_quantiles_are_cut_exactly() -> None:
    """Lengths from 1 to 99, equally often: half are cut to 50, the others have 25.5 on average."""
    assert lengths().mean_cut_to(50) == pytest.approx((25.5 + 50) / 2)


def test_a_shorter_cut_never_has_more_tokens() -> None:
    found = EMOTION.lengths_for("bert-base-uncased")
    assert found is not None
    means = [found.mean_cut_to(longest) for longest in range(4, 129)]
    assert means == sorted(means)
    assert means[0] == pytest.approx(4, rel=0.01)
    assert means[-1] == found.mean


def test_the_interpolation_of_the_known_lengths_agrees_with_their_stated_mean() -> None:
    found = EMOTION.lengths_for("bert-base-uncased")
    assert found is not None
    steps = [found.mean_cut_to(longest) for longest in (86, 87)]
    assert steps[0] / steps[1] == pytest.approx(1, abs=0.001)
    interpolated = 0.5 * 12 + 0.4 * 29 + 0.05 * 41.5 + 0.04 * 51 + 0.01 * 72
    assert interpolated == pytest.approx(found.mean, rel=0.01)


@pytest.mark.parametrize("quantiles", [{"0.5": 50, "1": 99}, {"0": 1, "0.5": 50}, {"0": 60, "0.5": 50, "1": 99}])
def test_an_incomplete_distribution_is_refused(quantiles: dict[str, int]) -> None:
    with pytest.raises(TunemarkError, match="shortest row"):
        lengths(quantiles=quantiles)


def test_another_tokenizer_has_other_lengths() -> None:
    assert EMOTION.lengths_for("gpt2") is None
