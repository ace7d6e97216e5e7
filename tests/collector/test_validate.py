"""`tunemark validate` says which field is wrong, which value it has, and what to do about it."""

import json
import tomllib
from pathlib import Path

import pytest
from factories import FACTS, Tunemark, assert_golden, make_content, make_submission, save, with_overrides
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tunemark.collector.gate.check import LARGEST_FILE_BYTES, judge, judge_bytes
from tunemark.schema.records.base import canonical_json

ANYWHERE = Path("record.json")
VALID = canonical_json(make_submission())


def problems_of(content: bytes, path: Path = ANYWHERE) -> list[str]:
    return [str(problem) for problem in judge_bytes(content, path, FACTS).problems]


def problems_with(**overrides: object) -> list[str]:
    return problems_of(json.dumps(with_overrides(make_content(30), overrides)).encode())


CORRUPTIONS = tomllib.loads(Path(__file__).with_name("wrong_submissions.toml").read_text(encoding="utf-8"))


def test_messages_name_field_value_and_fix() -> None:
    lines = []
    for name, overrides in CORRUPTIONS.items():
        lines.append(f"# {name}")
        # Bytes that are not canonical are a problem of their own in every one of these.
        lines.extend(line for line in problems_with(**overrides) if not line.startswith("file: its bytes"))
    # The card's own value may change; what matters is that it is named.
    shown = f"has {FACTS.workloads['smoke-lora'].optimizer.learning_rate!r};"
    text = "\n".join(lines).replace(shown, "has <the card's value>;") + "\n"
    assert_golden(Path(__file__).parent / "golden" / "validate_messages.txt", text)


def test_unknown_fields_get_a_suggestion() -> None:
    content = make_content()
    content["plan"]["batch"]["micro_bach"] = content["plan"]["batch"].pop("micro_batch")
    found = problems_of(json.dumps(content).encode())
    assert any("plan.batch.micro_bach" in line and "did you mean 'micro_batch'" in line for line in found)
    assert any(line == "plan.batch.micro_batch: is missing; every record has it" for line in found)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        VALID[: len(VALID) // 2],
        VALID.replace(b"\n", b"\r\n"),
        bytes(range(256)),
        b"\xff\xfe{}",
        b'{"format": NaN}',
        b"[" * 100_000,
        b"[1]",
        b"0",
        b'{"format": "x"}',
        b'{"format": []}',
        VALID.replace(b'"at_s": 0.0', b'"at_s": NaN'),
        VALID.replace(b'"wall_s": ', b'"wall_s": 1e999, "x": '),
        VALID.replace(b'"slot_tokens": [', b'"slot_tokens": [' + b"9" * 400 + b", "),
        VALID.replace(b'"parameters": 4525312', b'"parameters": 99999999999999999999999'),
        VALID.replace(b'"cpu": "Test CPU"', b'"cpu": "\\ud800"'),
        json.dumps(make_content(5, **{"trace.completed_at_s": [2 + 1e-15, 2 + 2e-15, 2 + 3e-15, 2 + 4e-15, 3]})).encode(),
    ],
    ids=lambda content: repr(content[:30]),
)
def test_broken_files_are_reported_and_never_raise(content: bytes) -> None:
    assert problems_of(content)


def leaves(node: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    if isinstance(node, dict):
        return [path, *(leaf for key, value in node.items() for leaf in leaves(value, (*path, key)))]
    if isinstance(node, list):
        return [path, *(leaf for index, value in enumerate(node[:3]) for leaf in leaves(value, (*path, index)))]
    return [path]


LEAVES = [leaf for leaf in leaves(make_content()) if leaf]
STRANGE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**18, max_value=10**320),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.just([]),
    st.just({}),
    st.lists(st.floats(0, 100), max_size=3),
    st.sampled_from(["-1", "1e308", 1e308, -0.0, 5e-324, 2**53, "ok", "/etc/passwd", "a" * 3_000]),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.sampled_from(LEAVES), STRANGE)
def test_any_corruption_of_one_field_is_reported_or_accepted_but_never_raises(leaf: tuple[str | int, ...], value: object) -> None:
    content = make_content(40)
    node = content
    for part in leaf[:-1]:
        node = node[part]  # type: ignore[index]
    node[leaf[-1]] = value  # type: ignore[index]
    judge_bytes(json.dumps(content).encode(), ANYWHERE, FACTS)


def test_a_wrong_file_name_gets_the_right_one(checkout: Path, tunemark: Tunemark) -> None:
    path = save(checkout, make_submission())
    wrong = path.with_name("run-000000000000.json")
    path.rename(wrong)
    said = tunemark("validate")
    assert said.code == 3
    assert f"if only the name was changed, rename it to submissions/smoke-lora/{path.name}" in said.err


def test_outside_submissions_any_file_name_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes(VALID)
    assert judge(path, FACTS).problems == ()


def test_all_files_are_checked_and_the_exit_code_says_that_one_is_invalid(checkout: Path, tunemark: Tunemark) -> None:
    save(checkout, make_submission())
    (checkout / "submissions" / "a.json").write_text("{")
    (checkout / "submissions" / "z.json").write_text("[]")
    said = tunemark("validate", "--json")
    answer = json.loads(said.out)
    assert (said.code, answer["files"], answer["invalid"]) == (3, 3, 2)
    assert [problem["file"] for problem in answer["problems"]] == ["submissions/a.json", "submissions/z.json"]
    assert set(answer["problems"][0]) == {"file", "field", "value", "fix"}


def test_links_and_other_files_in_a_folder_are_ignored_with_a_note(checkout: Path, tunemark: Tunemark) -> None:
    path = save(checkout, make_submission())
    (path.parent / "README.md").write_text("hello")
    (path.parent / "link.json").symlink_to(path)
    (path.parent / "loop").symlink_to(checkout / "submissions")
    said = tunemark("validate")
    assert (said.code, said.out.split()[:3], said.out.split()[-2:]) == (0, ["1", "record", "and"], ["0", "invalid"])
    assert "ignored submissions/smoke-lora/link.json: a symbolic link" in said.err
    assert "ignored submissions/smoke-lora/README.md: not a .json file" in said.err


def test_the_same_run_twice_is_refused(checkout: Path, tunemark: Tunemark) -> None:
    save(checkout, make_submission())
    save(checkout, make_submission(**{"harness.dirty": True}))
    said = tunemark("validate")
    assert said.code == 3
    assert "a run is submitted once" in said.err


def test_a_file_above_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(LARGEST_FILE_BYTES + 1)
    assert "larger than" in str(judge(path, FACTS).problems[0])
