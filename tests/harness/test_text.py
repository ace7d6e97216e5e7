"""Text becomes samples in the same way each time."""

import pytest
from harness_making import ROOT

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.worker import sample_files
from tunemark.harness.worker.data import Counts, Shape, micro_batches
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
    return next(micro_batches(plan, iter([{"input_ids": list(range(1, size + 1))} for size in rows]), Shape()))


def test_rows_of_different_length_are_counted_with_and_without_their_padding(facts, machine):
    batch = make_batch(facts, machine, Padding.DYNAMIC, (3, 7))
    assert batch.counts == Counts(slot_tokens=14, real_tokens=10, supervised_tokens=8, documents=2, rows=2)
    assert batch.tensors["input_ids"].shape == (2, 7)
    assert int(batch.tensors["attention_mask"].sum()) == 10


def test_rows_of_different_length_are_never_padded_in_silence(facts, machine):
    with pytest.raises(ValueError, match="rows of 3 to 7 tokens"):
        make_batch(facts, machine, Padding.NONE, (3, 7))


@pytest.mark.parametrize("stem", ["test", "val", "validation", "eval"])
def test_the_file_that_was_evaluated_on_is_named(tmp_path, stem):
    (tmp_path / "train.txt").write_text("a b;x\n")
    (tmp_path / f"{stem}.txt").write_text("a b;x\nc d;x\n")
    name, rows = sample_files.read_split(DataSource.FILE, str(tmp_path), "evaluation")
    assert (name, len(rows)) == (f"file {stem}.txt", 2)
