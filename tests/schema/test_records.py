"""Records refuse what cannot be, and say so; what they derive adds up."""

import json
import random

import pytest
from factories import make_content, make_published, make_submission
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tunemark.schema.comparability import COMPARABILITY_KEYS, comparability_group
from tunemark.schema.derive import derive, step_labels
from tunemark.schema.records import upgrade
from tunemark.schema.records.base import canonical_json, content_id
from tunemark.schema.records.json_schema import field_reference, schema_files
from tunemark.schema.records.published import Claim, DocumentTable, PublishedResult
from tunemark.schema.records.submission import MemoryReading, Submission
from tunemark.schema.records.trace import StepTrace
from tunemark.schema.records.upgrade import InvalidRecord, read_record

COLUMNS = {"slot_tokens": (4,), "real_tokens": (3,), "supervised_tokens": (2,), "documents": (1,), "rows": (1,), "loss": (1.0,)}


def refused(**overrides: object) -> str:
    with pytest.raises(ValidationError) as error:
        make_submission(10, **overrides)
    return str(error.value)


def test_a_trace_with_columns_of_different_length_is_refused() -> None:
    with pytest.raises(ValidationError, match="every column holds one entry per step"):
        StepTrace(completed_at_s=(1.0, 2.0), **COLUMNS)


def test_steps_complete_one_after_another() -> None:
    with pytest.raises(ValidationError, match="not later than"):
        StepTrace(started_at_s=1.0, completed_at_s=(1.0,), **COLUMNS)


def test_supervised_tokens_are_real_and_real_ones_fill_slots() -> None:
    with pytest.raises(ValidationError, match="supervised <= real <= slots must hold"):
        StepTrace(completed_at_s=(1.0,), **{**COLUMNS, "real_tokens": (5,)})


def test_step_times_are_differences_of_completions() -> None:
    trace = StepTrace(started_at_s=1.0, completed_at_s=(1.5,), **COLUMNS)
    assert (len(trace), trace.step_times_s) == (1, (0.5,))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"started_at": "2026-11-20T12:00:00+02:00"}, "not UTC"),
        ({"timeline.0.at_s": 0.5}, "the time line starts at 0"),
        ({"timeline.1.at_s": 1.8}, "in the order in which they began"),
        ({"process.wall_s": 0.5}, "a phase begins before the process ends"),
        ({"outcome.status": "crash"}, "say what happened"),
        ({"trace.loss.3": None}, "the status of such a run is 'nan'"),
        ({"division": "open"}, "it is 'open' exactly when something was overridden"),
        ({"plan.device.count": 2, "plan.device.backend": "cuda"}, "list each device used"),
        ({"trace.slot_tokens.0": 10_000}, "a step cannot hold more than its global batch"),
        ({"trace.rows.0": 10_000}, "a step cannot hold more rows"),
    ],
)
def test_a_submission_that_contradicts_itself_is_refused(overrides: dict[str, object], message: str) -> None:
    assert message in refused(**overrides)


def test_a_memory_peak_has_a_method_and_a_missing_one_a_reason() -> None:
    with pytest.raises(ValidationError, match="give both"):
        MemoryReading(peak_bytes=1)
    with pytest.raises(ValidationError, match="without a reason"):
        MemoryReading()


def test_records_never_change() -> None:
    with pytest.raises(ValidationError):
        make_submission().run_id = "x"  # type: ignore[misc]


def test_canonical_bytes_survive_reading_and_name_the_result() -> None:
    content = canonical_json(make_submission())
    assert canonical_json(read_record(content)) == content
    assert content.endswith(b"}\n")
    assert len(content_id(content)) == 12


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 140), st.randoms(use_true_random=False))
def test_phases_sum_to_the_wall_time(steps: int, chance: random.Random) -> None:
    content = make_content(steps)
    if steps == 0:
        content["outcome"] |= {"status": "crash", "message": "nothing was trained"}
    # A run may end in any phase.
    keep = chance.randint(4, len(content["timeline"]))
    content["timeline"] = content["timeline"][:keep]
    submission = Submission.model_validate_json(json.dumps(content))
    assert sum(derive(submission).phases.values()) == pytest.approx(submission.process.wall_s)


def test_the_time_after_the_last_step_of_a_run_that_hung_is_not_steady() -> None:
    whole, content = derive(make_submission(130)), make_content(130)
    content["timeline"] = content["timeline"][:-1]
    content["process"]["wall_s"] += 600
    content["outcome"] |= {"status": "timeout", "phase": "train", "message": "not finished after 620 s"}
    hung = derive(Submission.model_validate_json(json.dumps(content)))
    assert hung.phases["steady"] == pytest.approx(whole.phases["steady"], abs=0.2)
    assert hung.phases["unfinished"] == pytest.approx(600, abs=1)
    assert hung.tokens_per_s == whole.tokens_per_s
    assert "unfinished" not in whole.phases


def test_gradients_that_are_null_without_a_reason_are_refused() -> None:
    assert "null and a reason" in refused(**{"model.gradient_bytes": None})


def test_a_run_without_a_step_derives_nothing_but_its_phases() -> None:
    derived = derive(make_submission(0, **{"outcome.status": "crash", "outcome.message": "boom"}))
    assert (derived.window, derived.step_time, derived.tokens_per_s, derived.train_loss, derived.rankable) == (
        None,
        None,
        None,
        None,
        False,
    )
    assert "first_step" in derived.phases


def test_headline_numbers_are_those_of_the_steady_window() -> None:
    submission = make_submission()
    derived = derive(submission)
    assert derived.window is not None
    assert derived.tokens_per_s is not None
    times = submission.trace.step_times_s[derived.window.first : derived.window.stop]
    assert derived.tokens_per_s.value == pytest.approx(submission.trace.real_tokens[0] * len(times) / sum(times))
    assert derived.rankable
    assert step_labels(derived.window, 130).count("steady") == derived.window.steps


@pytest.mark.parametrize(("passed", "rankable"), [(True, True), (None, True), (False, False)])
def test_a_result_with_a_failed_gate_shares_no_ranking(passed: bool | None, rankable: bool) -> None:
    gates = [
        {"name": "loss_band", "passed": True, "detail": "as expected"},
        {"name": "adapter_gradient", "passed": passed, "detail": "seen"},
    ]
    assert derive(make_submission(gates=gates)).rankable is rankable


def test_the_headline_memory_is_the_device_allocator_when_there_is_one() -> None:
    device = {"peak_bytes": 7, "method": "torch.cuda.max_memory_allocated", "reason": None}
    assert derive(make_submission(**{"memory.device_allocated": device})).peak_memory.peak_bytes == 7
    assert derive(make_submission()).peak_memory.method == "psutil"


def test_padding_counts_as_slots_only() -> None:
    half = [slots // 2 for slots in make_submission().trace.slot_tokens]
    derived = derive(make_submission(**{"trace.real_tokens": half, "trace.supervised_tokens": half}))
    assert derived.padding_efficiency == 0.5
    assert derived.slot_tokens_per_s == pytest.approx(2 * derived.tokens_per_s.value)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"{",
        b"[1]",
        b'{"format": "x"}',
        b'{"format": []}',
        b'{"a": NaN}',
        b"[" * 10_000,
        b'{"format": "tunemark.submission/1", "a": 1e999}',
    ],
)
def test_what_is_no_record_is_refused_with_a_reason(content: bytes) -> None:
    with pytest.raises(InvalidRecord) as error:
        read_record(content)
    assert all(problem.fix for problem in error.value.problems)


def test_all_problems_are_listed_at_once() -> None:
    content = make_content(5, **{"outcome.status": "fine", "process.wall_s": -1})
    del content["run_id"]
    with pytest.raises(InvalidRecord) as error:
        read_record(json.dumps(content).encode())
    assert {problem.field for problem in error.value.problems} == {"outcome.status", "process.wall_s", "run_id"}


def test_an_older_format_is_upgraded_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(upgrade.UPGRADES, "tunemark.submission/0", lambda raw: {**raw, "format": "tunemark.submission/1"})
    raw = {**make_content(), "format": "tunemark.submission/0"}
    assert isinstance(read_record(json.dumps(raw).encode()), Submission)


def test_an_upgrade_that_goes_in_circles_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(upgrade.UPGRADES, "a", lambda raw: {**raw, "format": "b"})
    monkeypatch.setitem(upgrade.UPGRADES, "b", lambda raw: {**raw, "format": "a"})
    with pytest.raises(InvalidRecord):
        read_record(b'{"format": "a"}')


def test_results_compare_only_when_every_key_is_known_and_equal() -> None:
    known = dict.fromkeys(COMPARABILITY_KEYS, "x")
    assert comparability_group(known) == comparability_group({**known, "accelerator": "y"})
    assert comparability_group({**known, "model": None}) is None
    assert comparability_group(known) != comparability_group({**known, "global_batch": "y"})


def test_a_claim_knows_how_finely_it_was_printed() -> None:
    assert Claim(value=4.7, printed="4.7").resolution == pytest.approx(0.05 / 4.7)
    assert Claim(value=5420, printed="5,420").resolution == pytest.approx(0.5 / 5420)
    assert Claim(value=8100, printed="about two hours").resolution is None


def test_a_published_result_names_known_quantities_of_its_source() -> None:
    with pytest.raises(ValidationError, match="not in the registry of quantities"):
        make_published(claims={"speediness": {"value": 1, "printed": "1"}})
    with pytest.raises(ValidationError, match="an id starts with its source"):
        PublishedResult.model_validate({**make_published().model_dump(), "source": "901"})


def test_a_document_table_is_rectangular() -> None:
    with pytest.raises(ValidationError, match="row 1 of table 't' has 1 cells for 2 columns"):
        DocumentTable(id="t", title="t", columns=("a", "b"), rows=(("1",),))


def test_every_field_of_a_submission_has_a_meaning() -> None:
    assert [path for path, _, meaning in field_reference(Submission) if not meaning] == []


def test_a_valid_submission_passes_the_published_json_schema() -> None:
    import jsonschema

    schema = json.loads(schema_files()["submission-1.schema.json"])
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(canonical_json(make_submission())), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(make_content(**{"outcome.status": "fine"}), schema)


def test_packed_documents_that_see_each_other_compare_with_no_others():
    packed = dict.fromkeys(COMPARABILITY_KEYS, "x") | {"packing": True}
    bordered, without = (comparability_group({**packed, "document_borders": borders}) for borders in (True, False))
    assert bordered == comparability_group(packed) != without
    padded = packed | {"packing": False}
    assert comparability_group({**padded, "document_borders": False}) == comparability_group(padded)
