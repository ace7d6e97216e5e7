"""Text becomes samples in the same way each time, and packed rows are full and keep their documents apart."""

from itertools import islice

import numpy as np
import pytest
import torch
from harness_making import ROOT, trained_on
from hypothesis import given
from hypothesis import strategies as st

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.worker import sample_files
from tunemark.harness.worker.data import load_samples, micro_batches, pack
from tunemark.harness.worker.models import packed_documents
from tunemark.schema.samples import Counts
from tunemark.schema.vocabulary import DataSource, Padding

TEXT = str(ROOT / "tests" / "harness" / "data" / "emotions")


@pytest.mark.parametrize(
    ("name", "content"),
    [("train.csv", "text,label\na b,x\n"), ("train.jsonl", '{"sentence": "a b", "label": "x"}\n'), ("train.txt", "a b;x\n")],
)
def test_each_file_format_gives_the_same_row(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    assert sample_files.read_split(DataSource.FILE, str(tmp_path), "train")[1] == [{"text": "a b", "label": "x"}]


def test_a_file_without_text_names_the_columns_it_has(tmp_path):
    (tmp_path / "train.csv").write_text("words,label\na b,x\n")
    with pytest.raises(ValueError, match="columns words, label"):
        sample_files.read_split(DataSource.FILE, str(tmp_path), "train")[1]


def test_more_labels_than_the_workload_has_are_refused_with_the_fix():
    rows = sample_files.read_split(DataSource.FILE, TEXT, "train")[1]
    with pytest.raises(ValueError, match="--set labels=3"):
        sample_files.label_ids(rows, 2)


def make_batch(facts, machine, padding, rows):
    plan = resolve("smoke-lora", facts, machine, Options(overrides=("batch.micro_batch=2",))).plan
    plan = plan.model_copy(update={"data": plan.data.model_copy(update={"padding": padding})})
    return next(micro_batches(plan, iter([{"input_ids": list(range(1, size + 1))} for size in rows])))


def test_rows_of_different_length_are_counted_with_and_without_their_padding(facts, machine):
    batch = make_batch(facts, machine, Padding.DYNAMIC, (3, 7))
    assert batch.counts == Counts(slot_tokens=14, real_tokens=10, supervised_tokens=8, documents=2, rows=2)
    assert batch.tensors["input_ids"].shape == (2, 7)
    assert int(batch.tensors["attention_mask"].sum()) == 10


@pytest.mark.parametrize("stem", ["test", "val", "validation", "eval"])
def test_the_file_that_was_evaluated_on_is_named(tmp_path, stem):
    (tmp_path / "train.txt").write_text("a b;x\n")
    (tmp_path / f"{stem}.txt").write_text("a b;x\nc d;x\n")
    name, rows = sample_files.read_split(DataSource.FILE, str(tmp_path), "evaluation")
    assert (name, len(rows)) == (f"file {stem}.txt", 2)


documents = st.lists(st.integers(1, 40), min_size=1, max_size=30)


def samples(lengths):
    return ({"input_ids": np.arange(length) + 1000 * number} for number, length in enumerate(lengths, start=1))


@given(documents, st.integers(2, 32))
def test_packing_keeps_every_token_in_order_but_a_rest_that_fills_no_row(lengths, width):
    rows = list(pack(samples(lengths), width))
    stream = np.concatenate([sample["input_ids"] for sample in samples(lengths)])
    packed = np.concatenate([row.ids for row in rows]) if rows else np.array([])
    assert all(len(row.ids) == width for row in rows)
    assert (packed == stream[: len(packed)]).all()
    assert len(stream) - len(packed) < width
    # Each document is counted in the row where it begins.
    whole = int((np.cumsum(lengths) <= len(rows) * width).sum())
    assert whole <= sum(row.laid.documents for row in rows) <= len(lengths)
    assert all(sum(row.laid.pieces) == width for row in rows)


PACKED = ("data.packing=true", "data.name=random-documents", "data.sequence_length=64")


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_gate_finds_a_mask_that_lets_packed_documents_see_each_other_and_no_other(facts, machine, attention):
    plan = resolve("smoke-lora", facts, machine, Options(overrides=(*PACKED, f"attention={attention}"))).plan
    model, batches = trained_on(plan, facts.model(plan.model.key))
    tensors = next(batches).tensors
    gate = packed_documents(plan, model, tensors)
    assert gate["passed"], gate
    leaky = tensors | {"attention_mask": torch.ones_like(tensors["input_ids"])}
    assert packed_documents(plan, model, leaky)["passed"] is False


def test_several_processes_take_turns_and_know_what_all_of_them_have(facts, machine):
    plan = resolve("smoke-bert", facts, machine, Options()).plan
    card = facts.model(plan.model.key)

    def first(rank, ranks, count):
        stream = load_samples(plan, card.vocabulary, None, None).training
        return list(islice(micro_batches(plan, stream, rank, ranks), count))

    alone = first(0, 1, 6)
    pair = [first(rank, 2, 3) for rank in (0, 1)]
    taken = [batch.tensors["input_ids"].tolist() for both in zip(*pair, strict=True) for batch in both]
    assert taken == [batch.tensors["input_ids"].tolist() for batch in alone]
    for left, right in zip(*pair, strict=True):
        assert left.everywhere == right.everywhere == left.counts.plus(right.counts)


def test_without_borders_a_row_is_one_document_to_the_model_and_the_gate_shows_it(facts, machine):
    plan = resolve("smoke-lora", facts, machine, Options(overrides=(*PACKED, "data.document_borders=false"))).plan
    batch = next(micro_batches(plan, load_samples(plan, 4096, None, None).training))
    assert set(batch.tensors) == {"input_ids", "labels"}
    assert torch.equal(batch.tensors["input_ids"], batch.tensors["labels"])
    assert batch.counts.supervised_tokens == batch.counts.real_tokens - batch.counts.rows
    gate = packed_documents(plan, None, batch.tensors)
    assert (gate["passed"], "attend to each other" in gate["detail"]) == (None, True)
