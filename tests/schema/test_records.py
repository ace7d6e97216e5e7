"""Records refuse what cannot be, and say so; what they derive adds up, and the division of a run follows from its overrides."""

import json

import pytest
from factories import CHECKOUT, FACTS, bare_content, bare_submission, make_published
from pydantic import ValidationError

from tunemark.schema.comparability import COMPARABILITY_KEYS, comparability_group
from tunemark.schema.derive import derive
from tunemark.schema.facts.workloads import WorkloadCard
from tunemark.schema.records.base import canonical_json, content_id, flattened
from tunemark.schema.records.plan import FREE_SETTINGS, Override, Plan, card_global_batch, division_of
from tunemark.schema.records.published import DocumentTable, PublishedResult, PublishedSet
from tunemark.schema.records.reading import InvalidRecord, field_reference, read_record, schema_files
from tunemark.schema.records.submission import MemoryReading, Submission
from tunemark.schema.vocabulary import Division


def test_a_memory_peak_has_a_method_or_a_reason() -> None:
    with pytest.raises(ValidationError, match="or null and a reason"):
        MemoryReading()


def test_canonical_bytes_survive_reading_and_name_the_result() -> None:
    content = canonical_json(bare_submission())
    assert canonical_json(read_record(content)) == content
    assert content.endswith(b"}\n")
    assert len(content_id(content)) == 12


def test_the_time_after_the_last_step_of_a_run_that_hung_is_not_steady() -> None:
    whole, content = derive(bare_submission(130)), bare_content(130)
    content["timeline"] = content["timeline"][:-1]
    content["process"]["wall_s"] += 600
    content["outcome"] |= {"status": "timeout", "phase": "train", "message": "not finished after 620 s"}
    hung = derive(Submission.model_validate_json(json.dumps(content)))
    assert hung.phases["steady"] == pytest.approx(whole.phases["steady"], abs=0.2)
    assert hung.phases["unfinished"] == pytest.approx(600, abs=1)
    assert hung.tokens_per_s == whole.tokens_per_s
    assert "unfinished" not in whole.phases


@pytest.mark.parametrize(("passed", "rankable"), [(True, True), (None, True), (False, False)])
def test_a_result_with_a_failed_gate_shares_no_ranking(passed: bool | None, rankable: bool) -> None:
    gates = [
        {"name": "loss_band", "passed": True, "detail": "as expected"},
        {"name": "adapter_gradient", "passed": passed, "detail": "seen"},
    ]
    assert derive(bare_submission(gates=gates)).rankable is rankable


def test_the_headline_memory_is_that_of_the_allocator_else_of_the_device_else_of_the_host() -> None:
    device = {"peak_bytes": 7, "method": "torch.cuda.max_memory_allocated", "reason": None}
    unknown = {"peak_bytes": None, "method": None, "reason": "not read"}
    assert derive(bare_submission(**{"memory.device_allocated": device})).peak_memory.peak_bytes == 7
    assert derive(bare_submission(**{"memory.device_used": device | {"peak_bytes": 9}})).peak_memory.peak_bytes == 9
    assert derive(bare_submission()).peak_memory.method == "psutil"
    assert derive(bare_submission(**{"memory.host_rss": unknown})).peak_memory.reason == "a CPU has no device memory"


def test_all_problems_are_listed_at_once() -> None:
    content = bare_content(5, **{"outcome.status": "fine", "process.wall_s": -1})
    del content["run_id"]
    with pytest.raises(InvalidRecord) as error:
        read_record(json.dumps(content).encode())
    assert {problem.field for problem in error.value.problems} == {"outcome.status", "process.wall_s", "run_id"}


def test_results_compare_only_when_every_key_is_known_and_equal() -> None:
    known = dict.fromkeys(COMPARABILITY_KEYS, "x")
    assert comparability_group(known) == comparability_group({**known, "accelerator": "y"})
    assert comparability_group({**known, "model": None}) is None
    assert comparability_group(known) != comparability_group({**known, "global_batch": "y"})


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


def test_the_committed_schema_files_are_current() -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in (CHECKOUT / "schema" / "json").iterdir()}
    assert committed == schema_files(), "run `make schema`"


def test_a_valid_submission_passes_the_published_json_schema() -> None:
    import jsonschema

    schema = json.loads(schema_files()["submission-1.schema.json"])
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(canonical_json(bare_submission())), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(bare_content(**{"outcome.status": "fine"}), schema)


def test_packed_documents_that_see_each_other_compare_with_no_others():
    packed = dict.fromkeys(COMPARABILITY_KEYS, "x") | {"packing": True}
    bordered, without = (comparability_group({**packed, "document_borders": borders}) for borders in (True, False))
    assert bordered == comparability_group(packed) != without
    padded = packed | {"packing": False}
    assert comparability_group({**padded, "document_borders": False}) == comparability_group(padded)


EXACT = {"plan.measurement.min_steady_steps": 20}
"""With these, 20 steps after 10 of warm-up are steady."""


def in_training(steps: int, wall_s: float, **overrides: object) -> Submission:
    """Return a run that was killed in training, which began at 1.5 s; each step takes 1 s, from 2 s on."""
    content = bare_content(
        steps,
        **{
            "trace.completed_at_s": [3.0 + step for step in range(steps)],
            "outcome": {"status": "timeout", "phase": "train", "last_good_step": steps, "message": "too slow", "fix": None},
            "timeline": [{"phase": "import", "at_s": 0.0}, {"phase": "train", "at_s": 1.5}],
            "process.wall_s": wall_s,
            **overrides,
        },
    )
    return Submission.model_validate_json(json.dumps(content))


def compilation(*steps: int) -> list[dict[str, object]]:
    return [{"step": step, "kind": "compile", "amount": 1} for step in steps]


def test_compile_overhead_is_its_own_phase_and_not_of_the_steps_that_compiled() -> None:
    # Step 1 takes 5 s, step 4 takes 3 s, every other one 1 s.
    ends = [7.0, 8.0, 9.0, 12.0, *(13.0 + step for step in range(36))]
    found = derive(in_training(40, 50.0, **EXACT, **{"trace.completed_at_s": ends, "events": compilation(1, 4)}))
    assert found.compile_overhead_s == 6.0
    assert found.phases == {"import": 1.5, "first_step": 1.5, "compile": 6.0, "warmup": 9.0, "steady": 30.0, "unfinished": 2.0}
    later = derive(in_training(40, 50.0, **EXACT, **{"trace.completed_at_s": ends, "events": compilation(4)}))
    assert later.phases == {"import": 1.5, "first_step": 5.5, "compile": 2.0, "warmup": 9.0, "steady": 30.0, "unfinished": 2.0}


def test_a_set_holds_results_of_one_source_in_order() -> None:
    first, second = make_published(id="901-001", source="901"), make_published(id="901-002", source="901")
    whole = PublishedSet(source="901", results=(first, second))
    assert PublishedSet.model_validate_json(whole.lines()) == whole
    assert whole.lines().count(b"\n") == 4
    for wrong in ((second, first), (first, first), (make_published(id="902-001", source="902"),)):
        with pytest.raises(ValueError, match=r"not sorted by id|another one"):
            PublishedSet(source="901", results=wrong)


CARD = FACTS.workloads["smoke-lora"]
"""Its batch: four rows, one micro-step."""


def plan_with(**changes: object) -> Plan:
    return Plan.model_validate_json(json.dumps(bare_content(5, **{f"plan.{path}": value for path, value in changes.items()})["plan"]))


def split(micro: int, accumulation: int, replicas: int = 1) -> dict[str, object]:
    """Return the changes of a plan with another split of the batch."""
    rows = micro * accumulation * replicas
    return {"batch": {"micro_batch": micro, "gradient_accumulation": accumulation, "data_parallel": replicas, "global_batch": rows}}


def override(field: str, card: object, run: object) -> Override:
    return Override.model_validate({"field": field, "card": card, "run": run})


COMPILED = override("compile", "none", "blocks")


def test_the_global_batch_of_a_card_grows_with_the_devices_and_not_with_the_parallel_strategy() -> None:
    eight = {"device": plan_with().device.model_dump(mode="json") | {"count": 8, "strategy": "ddp", "launcher": "torchrun"}}
    assert card_global_batch(plan_with(**eight, **split(4, 1, 8)), ()) == 32
    tensor = {"device": eight["device"] | {"tensor_parallel": 2}}
    parallel = (override("devices.tensor_parallel", 1, 2), override("batch.gradient_accumulation", 1, 2))
    assert division_of(plan_with(**tensor, **split(4, 2, 4)), parallel) is Division.TUNED
    assert division_of(plan_with(**tensor, **split(4, 1, 4)), parallel[:1]) is Division.OPEN


@pytest.mark.parametrize("field", FREE_SETTINGS)
def test_every_free_setting_is_a_setting_of_a_card(field: str) -> None:
    cards = [
        CARD.model_copy(update={"quantisation": FACTS.workloads["qlora-8b"].quantisation}),
        *(card for card in FACTS.workloads.values() if card.neuron),
    ]
    known = {path for card in cards for path, _ in flattened(WorkloadCard.model_dump(card, mode="json"))}
    assert field in known


def test_free_settings_may_be_declared_open() -> None:
    assert bare_submission(5, division="open", overrides=[COMPILED.model_dump(mode="json")]).division is Division.OPEN
