"""The workload cards say what the documents did, and a machine with the right devices can run each of them."""

import json
import re

import pytest
from harness_making import FACTS, ROOT, changed_settings, gpus, make_machine

from tunemark.harness.plan.resolve import Options, machine_with, resolve, step_memory
from tunemark.harness.studies.series import applied, named, star_of_card
from tunemark.schema.formats import GIB
from tunemark.schema.physics.memory import estimate_memory
from tunemark.schema.physics.training_shape import shape_of_plan
from tunemark.schema.vocabulary import PACKAGES


def eight_gpus():
    host = {"cpu_physical_cores": 48, "cpu_logical_cores": 96, "cpu_usable_cores": 96, "memory_bytes": 2**40, "free_disk_bytes": 2**40}
    return gpus("NVIDIA H100 80GB HBM3", 8, gib=80, packages=dict.fromkeys(PACKAGES, "1"), **host)


@pytest.mark.parametrize("key", FACTS.workloads)
def test_eight_gpus_can_run_every_workload_in_the_standard_division(key):
    resolved = resolve(key, FACTS, eight_gpus(), Options())
    assert resolved.unsupported is None
    assert not resolved.overrides
    assert resolved.plan.workload_sha256 == FACTS.workload_sha256(key)


def test_the_matrix_of_document_003_is_every_model_and_method_of_its_tables():
    cells = [card for key, card in FACTS.workloads.items() if key.startswith("trainer-8k-")]
    assert len(cells) == 22
    rows = {(row["conditions"]["model"], row["conditions"]["method"]) for row in published("003")}
    assert {(card.model, card.method.value) for card in cells} == rows
    for card in cells:
        assert (card.data.sequence_length, card.batch.micro_batch) == (8192, 2)
        assert card.lora is None or (card.lora.rank, card.lora.alpha) == (8, 16)


@pytest.mark.parametrize("machine", [eight_gpus(), make_machine()], ids=["eight GPUs", "one CPU"])
@pytest.mark.parametrize("key", FACTS.workloads)
def test_every_point_of_a_cards_own_sweep_is_planned_in_the_standard_division_or_has_a_reason(key, machine):
    card = FACTS.workload(key)
    for point in star_of_card(card):
        resolved = resolve(key, FACTS, machine, applied(point, Options()))
        changed = {field for field, (_, run) in changed_settings(resolved.plan, card).items() if run not in card.own_values(field)}
        assert resolved.unsupported is None or len(resolved.unsupported) > 10
        assert not resolved.overrides, named(point)
        assert not changed, f"{named(point)} has values that are neither the card's nor those of its axes and points"


def published(document):
    return [json.loads(path.read_bytes()) for path in sorted((ROOT / "data" / "published" / document).glob(f"{document}-*.json"))]


def test_each_learning_rate_of_document_001_is_swept_with_its_decay_at_its_batch_and_length():
    numbers = ("batch.micro_batch", "data.sequence_length", "optimizer.learning_rate", "optimizer.layer_decay")
    star = star_of_card(FACTS.workload("bert-emotion"))
    points = {frozenset((field, json.loads(value)) for field, value in point.items() if field in numbers) for point in star}
    rows = [row["conditions"] for row in published("001") if row["section"].startswith("LR / LLRD")]
    assert len(rows) == 11
    for ran in rows:
        decay = {("optimizer.layer_decay", float(ran["settings"]["llrd_decay"]))} if ran["settings"]["llrd"] else set()
        at = {("batch.micro_batch", ran["micro_batch"]), ("data.sequence_length", ran["sequence_length"])}
        assert frozenset(at | decay | {("optimizer.learning_rate", ran["settings"]["lr"])}) in points


def needed_bytes(plan):
    """Return what a step of a plan needs on one device, its context included, by the memory model."""
    return estimate_memory(shape_of_plan(plan, FACTS.model(plan.model.key))).needed


SIZED = [(key, int(size)) for key, card in FACTS.workloads.items() for size in re.findall(r"(\d+) GiB", card.description)]


@pytest.mark.parametrize(("key", "size"), SIZED)
def test_a_card_that_names_a_memory_runs_in_it_with_a_margin(key, size):
    needed = needed_bytes(resolve(key, FACTS, eight_gpus(), Options()).plan)
    assert needed <= 0.95 * size * GIB, f"{needed / GIB:.1f} GiB are needed"


def test_the_entry_and_large_cards_name_the_memory_that_they_need():
    sized = {key for key, _ in SIZED}
    assert sized >= {key for key, card in FACTS.workloads.items() if card.tier in {"entry", "large"}}


SMALL_CARDS = [
    ("lora-360m", "nvidia-rtx-4060", 7.6),
    ("lora-360m", "nvidia-t4", 14.5),
    ("lora-360m", "apple-m1", 16 * 2 / 3),
    ("qlora-4b", "nvidia-t4", 14.5),
    ("lora-1b", "nvidia-t4", 14.5),
    ("lora-4b", "nvidia-l4", 22),
    ("lora-4b", "nvidia-rtx-3090", 23.5),
]
"""Card, accelerator, and the GiB that a process has of it at least, without those of its driver, ECC and display."""


@pytest.mark.parametrize(("key", "accelerator", "gib"), SMALL_CARDS)
def test_a_card_for_small_devices_runs_there_unchanged_in_the_format_that_the_device_has(key, accelerator, gib):
    machine = machine_with(FACTS, accelerator, 1, 1)
    resolved = resolve(key, FACTS, machine, Options())
    assert resolved.unsupported is None
    assert not resolved.overrides
    assert resolved.plan.precision.compute.value == ("fp16" if accelerator == "nvidia-t4" else "bf16")
    assert needed_bytes(resolved.plan) <= gib * GIB
    assert step_memory(resolved.plan, FACTS.model(resolved.plan.model.key), machine).too_large is False


def test_a_mac_is_refused_what_metal_does_not_let_a_process_use():
    machine = machine_with(FACTS, "apple-m1", 1, 1)
    plan = resolve("lora-1b", FACTS, machine, Options(overrides=("batch.micro_batch=8",))).plan
    memory = step_memory(plan, FACTS.model("smollm2-1.7b"), machine)
    assert memory.too_large
    assert memory.words.endswith("on each device, and a process of each device has 10.7 GiB")
    assert needed_bytes(plan) < 16 * GIB


def ran_on(card):
    """Return the published rows of a card: its document's, with its model and method, that a GPU completed."""
    document = re.search(r"document (\d+)", card.source)
    rows = [row["conditions"] for row in (published(document[1]) if document else ()) if row["status"] == "ok"]
    mine = [row for row in rows if row["model"] == card.model and row["method"] == card.method.value and row["accelerator"]]
    return [row for row in mine if FACTS.accelerator(row["accelerator"]).vendor == "NVIDIA"]


def is_of(row, plan, context):
    """Return whether a row can be a plan's: the same devices, micro-batch and length, where it gives them and the model can have them."""
    length = row["sequence_length"] if row["sequence_length"] and row["sequence_length"] <= context else None
    pairs = [
        (row["accelerator_count"], plan.device.count),
        (row["micro_batch"], plan.batch.micro_batch),
        (length, plan.data.sequence_length),
    ]
    return all(given in {None, planned} for given, planned in pairs)


@pytest.mark.parametrize("key", [key for key, card in FACTS.workloads.items() if card.tier == "source"])
def test_a_card_of_a_source_fits_the_gpus_that_the_source_ran_it_on_or_names_the_one_that_it_does_not(key):
    card, found = FACTS.workload(key), 0
    too_small = re.search(r"do not fit the ([A-Z]\w+ \d+)", card.description)
    for point in star_of_card(card) or [{}]:
        plan = resolve(key, FACTS, eight_gpus(), applied(point, Options())).plan
        for row in ran_on(card):
            if is_of(row, plan, FACTS.model(card.model).context_length):
                found += 1
                needed, gpu = needed_bytes(plan), FACTS.accelerator(row["accelerator"])
                fits, said = needed <= gpu.memory_gib * GIB, bool(too_small and gpu.name.endswith(too_small[1]))
                assert fits != said, f"{named(point)} on {gpu.key} needs {needed / GIB:.1f} GiB"
    assert found or not ran_on(card)
