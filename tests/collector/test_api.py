"""The Python API answers what the command line answers, from real data."""

from pathlib import Path

import pytest
from factories import CHECKOUT

import tunemark
from tunemark.schema.derive import derive
from tunemark.schema.errors import TunemarkError
from tunemark.schema.records.submission import Submission
from tunemark.schema.vocabulary import Checkpointing

RANKABLE = CHECKOUT / "submissions" / "smoke-lora" / "20261124-cpu-64bd0b9a841b.json"


@pytest.fixture(autouse=True)
def in_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEMARK_ROOT", str(CHECKOUT))


def test_each_name_of_the_api_is_there() -> None:
    assert all(getattr(tunemark, name).__doc__ for name in tunemark.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tunemark.nothing


def test_results_of_files_folders_and_sets_are_loaded() -> None:
    (result,) = tunemark.load_results(RANKABLE)
    assert isinstance(result, Submission)
    assert tunemark.derive(result) == derive(result)
    assert len(tunemark.load_results()) == len(list((CHECKOUT / "submissions").glob("*/*.json")))
    assert len(tunemark.load_results(CHECKOUT / "data" / "published" / "003")) > 10


def test_an_invalid_file_is_an_error_to_load_and_a_problem_to_validate(tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text("{}")
    with pytest.raises(TunemarkError, match="is not a valid record"):
        tunemark.load_results(path)
    assert tunemark.validate(path).invalid == 1
    assert not tunemark.validate(RANKABLE).problems


def test_an_estimate_has_memory_fit_speed_time_and_cost() -> None:
    small, large = tunemark.estimate("llama-3.1-8b", accelerators=["H100 80GB", "L4"], tokens=10_000_000, checkpointing=Checkpointing.NONE)
    assert (small.accelerator, large.accelerator) == ("nvidia-l4", "nvidia-h100-80gb-sxm")
    assert "does not fit" in small.rate.reason
    assert None not in (large.seconds, large.usd, large.tokens_per_s)


@pytest.mark.parametrize(
    ("settings", "said"), [({"world_size": 8}, "follows from devices"), ({"devices": 4, "tensor_parallel": 3}, "not a multiple of the 3")]
)
def test_the_number_of_devices_has_one_source(settings: dict[str, int], said: str) -> None:
    with pytest.raises(TunemarkError, match=said):
        tunemark.estimate("llama-3.1-8b", accelerators=["H100 80GB"], **settings)


def test_a_recommendation_keeps_its_limits() -> None:
    answer = tunemark.recommend("llama-3.1-8b", "10M", budget_usd=5.0, objective="fastest")
    assert answer.best.usd_high <= 5.0
    with pytest.raises(TunemarkError, match="tokens: 'ten'"):
        tunemark.recommend("llama-3.1-8b", "ten")
    with pytest.raises(TunemarkError, match="must be above 0"):
        tunemark.recommend("llama-3.1-8b", 0)
    with pytest.raises(TunemarkError, match="software"):
        tunemark.recommend("llama-3.1-8b", 1000, software="003")
