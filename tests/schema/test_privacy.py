"""What names a machine or a person is found and removed; words of the field are left alone."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunemark.schema import privacy
from tunemark.schema.privacy import REMOVED, identity_leaks, scrub

TEXTS = tomllib.loads(Path(__file__).with_name("privacy.toml").read_text(encoding="utf-8"))


def found(text: str) -> bool:
    return bool(identity_leaks({"a": text}))


@pytest.mark.parametrize("text", TEXTS["identifying"])
def test_what_names_a_machine_or_person_is_found_and_removed(text: str) -> None:
    assert found(text)
    assert REMOVED in scrub(text)
    assert not found(scrub(text))
    assert not any(word in scrub(text) for word in ("alice", "smith", "private"))


@pytest.mark.parametrize("text", TEXTS["harmless"])
def test_units_names_and_versions_are_left_alone(text: str) -> None:
    assert identity_leaks({"a": text}) == []
    assert scrub(text) == text


def test_a_quoted_path_is_removed_up_to_its_closing_quote() -> None:
    text = "[Errno 2] No such file or directory: '/home/john smith/my model/x' was given"
    assert scrub(text) == f"[Errno 2] No such file or directory: '{REMOVED}' was given"


def test_a_version_of_four_parts_is_no_address_among_versions() -> None:
    environment = {"packages": {"nvidia-cudnn": "9.1.0.70"}, "runtime": {"cudnn": "9.1.0.70"}, "devices": [{"driver": "32.0.15.60"}]}
    assert identity_leaks({"environment": environment}) == []
    assert identity_leaks({"environment": {"cpu": "9.1.0.70"}}) != []


@pytest.mark.parametrize("name", ["llama", "adamw", "lora", "torch"])
def test_a_host_that_is_called_as_a_word_of_the_field_loses_no_run(name: str) -> None:
    record = {
        "plan": {"model": {"key": "tiny-llama"}, "method": "lora", "optimizer": {"name": "adamw"}},
        "environment": {"packages": {"torch": "2.8"}},
        "overrides": [{"field": "optimizer.name", "card": "sgd", "run": "adamw"}, {"field": "model", "card": "gpt2", "run": "tiny-llama"}],
    }
    assert identity_leaks(record, frozenset({name})) == []


def test_names_of_host_and_user_are_found_in_free_text() -> None:
    record = {
        "outcome": {"message": "goldfinch is full", "fix": "ask goldfinch"},
        "plan": {"data": {"name": "goldfinch/train.csv"}},
        "warnings": [{"message": "goldfinch is busy"}],
        "overrides": [{"field": "data.name", "card": "x", "run": "goldfinch/train.csv"}],
    }
    fields = [field for field, _, _ in identity_leaks(record, frozenset({"goldfinch"}))]
    assert fields == ["outcome.message", "outcome.fix", "plan.data.name", "warnings.0.message", "overrides.0.run"]


WORDS = st.sampled_from(
    ["/", "home", "alice", " ", "'", '"', ":", "\\", "C:", "~", "@", ".", "10", "::", "2001", "file:", "x", REMOVED, "\n"]
)


@settings(max_examples=500, deadline=None)
@given(st.lists(WORDS, max_size=14).map("".join))
def test_nothing_is_found_in_what_was_scrubbed(text: str) -> None:
    assert not found(scrub(text))


def test_names_of_this_machine_are_removed_from_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy, "machine_names", lambda: frozenset({"goldfinch"}))
    assert scrub("host goldfinch and goldfinches") == f"host {REMOVED} and goldfinches"
