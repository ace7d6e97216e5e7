"""What names a machine or a person is found and removed; words of the field are left alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunemark.schema import privacy
from tunemark.schema.privacy import REMOVED, identity_leaks, scrub


def found(text: str) -> bool:
    return bool(identity_leaks({"a": text}))


@pytest.mark.parametrize(
    "text",
    [
        "path:/home/alice/secret.txt",
        "cache=/data/x",
        "no space left on /data",
        "file:///home/alice/x",
        "C:/Users/alice/x",
        r"C:\Users\alice\x",
        r"'C:\\Users\\alice smith\\x'",
        "//server/share/alice",
        "~alice/models",
        "2001:db8::8a2e:370:7334 is down",
        "fe80::1%eth0",
        "connect to 10.0.0.17.",
        "ssh alice@gpubox",
        "/home/john smith/private/model",
        "/données/alice/x",
    ],
)
def test_what_names_a_machine_or_person_is_found_and_removed(text: str) -> None:
    assert found(text)
    assert REMOVED in scrub(text)
    assert not found(scrub(text))
    assert not any(word in scrub(text) for word in ("alice", "smith", "private"))


@pytest.mark.parametrize(
    "text",
    [
        "12,473 tokens/s",
        "0.5/1",
        "USD /hour",
        "(GB)/s",
        "train/loss and eval/loss",
        "https://github.com/a/b/c",
        "see https://host.example:8080/a/b",
        "meta-llama/Llama-3.1-8B@main",
        "Intel(R) Xeon(R) Platinum 8488C @ 2.40GHz",
        "pass@1 and recall@k",
        "c10::add and std::vector<at::Tensor>",
        "12:30:05",
        "about ~3/4 of it",
        "31.0.15.3623",
        "ratio a/b/c",
    ],
)
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
