"""Where samples come from: the names of synthetic ones, and local files: which file of a folder is meant, its name and its content hash."""

import csv
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from string import Formatter
from typing import Any

from tunemark.schema.errors import TunemarkError
from tunemark.schema.vocabulary import DataSource, Task

SYNTHETIC = {Task.CAUSAL_LM: ("random-tokens", "random-documents", "markov-tokens"), Task.SEQUENCE_CLASSIFICATION: ("keyword-classes",)}
"""Generators of synthetic samples by task; the worker has them."""
FULL_ROWS = ("random-tokens", "markov-tokens")
"""Those whose rows all have the full length."""
SUFFIXES = (".txt", ".csv", ".jsonl")
SPLITS = {"train": ("train",), "evaluation": ("test", "val", "validation", "eval")}


def describe_file(place: str) -> tuple[str, str]:
    """Return a name without the folder, and the SHA-256 over the training file's bytes."""
    path = split_file(place, "train")
    if path is None:
        raise TunemarkError("--data", f"file:{place}", f"no such file, and no folder with a train file ({', '.join(SUFFIXES)})")
    name = path.name if Path(place).is_file() else f"{Path(place).resolve().name}/{path.name}"
    return name, hashlib.sha256(path.read_bytes()).hexdigest()


def split_file(place: str, split: str) -> Path | None:
    """Return the file of a split: the file itself for training, or by name in a folder; None where there is none."""
    path = Path(place)
    if path.is_file():
        return path if split == "train" else None
    for stem in SPLITS[split]:
        for suffix in SUFFIXES:
            if (path / f"{stem}{suffix}").is_file():
                return path / f"{stem}{suffix}"
    return None


# MOVE: was tunemark.harness.worker.sample_files: Samples from text: local files and hub data sets, and a tokenizer of their words where none comes with the weights.

Row = dict[str, Any]
TEXT_FIELDS = ("text", "sentence", "content")
LABEL_FIELDS = ("label", "labels")
MARKS = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
SPECIAL = tuple(MARKS.values())


def read_rows(source: DataSource, place: str, split: str, template: str | None = None) -> list[Row]:
    """Return rows with `text` and, where there is one, `label`, of the split `train` or `evaluation`."""
    return read_split(source, place, split, template)[1]


def read_split(source: DataSource, place: str, split: str, template: str | None = None) -> tuple[str, list[Row]]:
    """Return which file or split was read for `train` or `evaluation`, and its rows.

    Raises
    ------
    ValueError
        When the split or its text column is missing; names the columns that are there.

    """
    name, found = _hub_rows(place, split) if source is DataSource.HUB else _file_rows(place, split)
    rows = list(found)
    if not rows:
        names = " or ".join(f"{stem}.txt" for stem in SPLITS[split])
        msg = (
            f"{Path(place).name!r} has no {split} rows; give a folder with {names} (.csv and .jsonl do too), or a data set with that split"
        )
        raise ValueError(msg)
    return name, [_named(row, split, template) for row in rows]


def _file_rows(place: str, split: str) -> tuple[str, Iterator[Row]]:
    path = split_file(place, split)
    return ("", iter(())) if path is None else (f"file {path.name}", _lines_of(path))


def _lines_of(path: Path) -> Iterator[Row]:
    with path.open(newline="", encoding="utf-8", errors="strict") as file:
        if path.suffix == ".csv":
            yield from csv.DictReader(file)
        elif path.suffix == ".jsonl":
            yield from (json.loads(line) for line in file if line.strip())
        else:
            # A line a document; `text;label` as in the emotion data set.
            for line in filter(str.strip, file):
                text, semicolon, label = line.rstrip("\n").rpartition(";")
                # What follows the last semicolon of running text is no label.
                labelled = semicolon and label.strip() and " " not in label.strip()
                yield {"text": text, "label": label} if labelled else {"text": line.rstrip("\n")}


def _hub_rows(place: str, split: str) -> tuple[str, Iterator[Row]]:
    import datasets  # noqa: PLC0415

    for name in (split,) if split == "train" else ("test", "validation"):
        try:
            return f"split {name}", iter(datasets.load_dataset(place, split=name))
        except ValueError as error:
            if "split" not in str(error).lower():
                raise
    return "", iter(())


def _named(row: Row, split: str, template: str | None) -> Row:
    if template is not None and set(_fields(template)) <= set(row):
        row = row | {TEXT_FIELDS[0]: template.format_map(row)}
    text = next((row[field] for field in TEXT_FIELDS if row.get(field)), None)
    if text is None:
        msg = f"rows of split {split!r} have the columns {', '.join(map(str, row))}; one must be called {' or '.join(TEXT_FIELDS)}"
        raise ValueError(msg)
    label = next((row[field] for field in LABEL_FIELDS if row.get(field) is not None), None)
    return {"text": text, "label": label}


def _fields(template: str) -> Iterator[str]:
    """Yield the columns that a template names."""
    yield from (name for _, name, _, _ in Formatter().parse(template) if name)


def label_ids(rows: list[Row], labels: int) -> dict[str, int]:
    """Return a number for each label of the training rows, in sorted order.

    Raises
    ------
    ValueError
        When a row has no label, or when there are more labels than the model has.

    """
    missing = [number for number, row in enumerate(rows, start=1) if row["label"] is None]
    if missing:
        msg = f"{len(missing)} of {len(rows)} training rows have no label, the first is row {missing[0]}; write text;label lines, or a column called {' or '.join(LABEL_FIELDS)}"
        raise ValueError(msg)
    names = sorted({str(row["label"]) for row in rows})
    if len(names) > labels:
        msg = f"the training rows have {len(names)} labels and the workload {labels}; say --set labels={len(names)}"
        raise ValueError(msg)
    return {name: number for number, name in enumerate(names)}


def check_labels(rows: list[Row], labels: dict[str, int]) -> None:
    """Raise ValueError when evaluation rows have labels that were never trained; the labels are the user's and are not named."""
    unseen = len({str(row["label"]) for row in rows} - set(labels))
    if unseen:
        msg = f"{unseen} labels of the evaluation rows are not in the training rows; give both files the same labels, or --set data.evaluation_rows=0"
        raise ValueError(msg)


def check_file(place: str, labels: int | None, evaluation_rows: int, template: str | None = None) -> None:
    """Read a local file or folder as the worker will; raises ValueError with what is wrong, before any time is spent."""
    try:
        rows = read_rows(DataSource.FILE, place, "train", template)
        held_out = read_rows(DataSource.FILE, place, "evaluation", template)[:evaluation_rows] if evaluation_rows else []
    except UnicodeDecodeError as error:
        msg = f"not UTF-8 text (byte {error.object[error.start]:#04x}); save the files as UTF-8"
        raise ValueError(msg) from error
    if labels is not None:
        check_labels(held_out, label_ids(rows, labels))


def word_level_tokenizer(rows: list[Row], vocabulary: int) -> Any:  # noqa: ANN401 - a transformers tokenizer
    """Return a lower-case tokenizer of the most frequent words of the rows: the same each time, unlike trained subwords."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    counts = Counter(word for row in rows for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(row["text"])))
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: vocabulary - len(SPECIAL)]
    ids = {word: number for number, word in enumerate((*SPECIAL, *frequent))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))  # noqa: S106 - no password
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(mark, ids[mark]) for mark in ("[CLS]", "[SEP]")]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **MARKS)


def tokenize(tokenizer: Any, rows: list[Row], length: int, labels: dict[str, int] | None) -> list[Row]:  # noqa: ANN401 - a transformers tokenizer
    """Return samples of at most `length` token ids; rows whose label was never seen in training are an error."""
    ids = tokenizer([row["text"] for row in rows], truncation=True, max_length=length, add_special_tokens=True)["input_ids"]
    if labels is None:
        return [{"input_ids": tokens} for tokens in ids]
    check_labels(rows, labels)
    return [{"input_ids": tokens, "label": labels[str(row["label"])]} for tokens, row in zip(ids, rows, strict=True)]
