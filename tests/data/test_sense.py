"""The rates of options make sense: what cannot be faster is not."""

from pathlib import Path

import pytest
from sense import measured

ROOT = Path(__file__).parents[2]
MOST = {
    "dominated accelerator": 0.01,
    "efficiency above 1.02, one plan": 0.01,
    "longer rows, one plan": 0.005,
    "full against lora": 0.005,
    "larger model": 0.005,
    "plain against tuned": 0.005,
}
"""Check -> most violations as a share of its pairs. With another plan, less work can be slower for a reason, so those are not judged."""
FEW = ("llama-3.1-8b", "llama-3.1-70b", "gemma-3-4b")


def violated(models: tuple[str, ...], times: float = 1) -> dict[str, float]:
    """Return the checks of models (all without any) with more violations than `MOST` times a factor, and their shares."""
    counts = measured(ROOT, models)
    assert all(any(check in name for name in counts) for check in MOST), "each check has pairs"
    shares = {name: count[True] / count.total() for name, count in counts.items()}
    return {name: share for name, share in shares.items() if any(share > times * most for check, most in MOST.items() if check in name)}


def test_what_cannot_be_faster_is_not_for_a_few_models() -> None:
    assert violated(FEW, times=2) == {}, "a few models may have twice the share of all"


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_what_cannot_be_faster_is_not_for_any_model() -> None:
    assert violated(()) == {}
