"""Samples from text: local files and hub datasets, and a word-level tokenizer for random weights. Also the names of synthetic samples."""

import csv
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from string import Formatter
from typing import Any

from tunemark.schema.errors import TunemarkError
from tunemark.schema.vocabulary import DataSource

SUFFIXES = (".txt", ".csv", ".jsonl")
SPLITS = {"train": ("train",), "evaluation": ("test", "val", "validation", "eval")}
Row = dict[str, Any]
TEXT_FIELDS = ("text", "sentence", "content")
LABEL_FIELDS = ("label", "labels")
MARKS = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
SPECIAL = tuple(MARKS.values())


def describe_file(place: str) -> tuple[str, str]:
    """Return the training file's name without its folder, and the SHA-256 of its bytes."""
    path = split_file(place, "train")
    if path is None:
        raise TunemarkError("--data", f"file:{place}", f"no such file, and no folder with a train file ({', '.join(SUFFIXES)})")
    name = path.name if Path(place).is_file() else f"{Path(place).resolve().name}/{path.name}"
    return name, hashlib.sha256(path.read_bytes()).hexdigest()


def check_file(place: str, labels: int | None, evaluation_rows: int, template: str | None = None) -> None:
    """Read a local file or folder as the worker will. Raises ValueError with the problem, before any time is spent."""
    try:
        rows = read_split(DataSource.FILE, place, "train", template)[1]
        held_out = read_split(DataSource.FILE, place, "evaluation", template)[1][:evaluation_rows] if evaluation_rows else []
    except UnicodeDecodeError as error:
        msg = f"not UTF-8 text (byte {error.object[error.start]:#04x}); save the files as UTF-8"
        raise ValueError(msg) from error
    if labels is not None:
        _check_labels(held_out, label_ids(rows, labels))


def split_file(place: str, split: str) -> Path | None:
    """Return the file of a split: the file itself for training, or a file in a folder by its name; None without one."""
    path = Path(place)
    if path.is_file():
        return path if split == "train" else None
    files = (path / f"{stem}{suffix}" for stem in SPLITS[split] for suffix in SUFFIXES)
    return next((file for file in files if file.is_file()), None)


def read_split(source: DataSource, place: str, split: str, template: str | None = None) -> tuple[str, list[Row]]:
    """Return the file or split that was read for `train` or `evaluation`, and its rows with `text` and, if present, `label`.

    Raises ValueError when the split or its text column is missing, with the columns that exist.
    """
    if source is DataSource.HUB:
        name, content = _hub_rows(place, split)
    else:
        path = split_file(place, split)
        name, content = ("", iter(())) if path is None else (f"file {path.name}", _lines_of(path))
    rows = list(content)
    if not rows:
        files = " or ".join(f"{stem}.txt" for stem in SPLITS[split])
        msg = f"{Path(place).name!r} has no {split} rows; give a folder with {files} (or .csv, .jsonl), or a dataset with that split"
        raise ValueError(msg)
    fields = {field for _, field, _, _ in Formatter().parse(template or "") if field}
    texts = []
    for row in rows:
        columns = row
        if template is not None and fields <= set(row):
            columns = row | {TEXT_FIELDS[0]: template.format_map(row)}
        text = next((columns[field] for field in TEXT_FIELDS if columns.get(field)), None)
        if text is None:
            names = ", ".join(map(str, columns))
            msg = f"rows of split {split!r} have the columns {names}; one must be called {' or '.join(TEXT_FIELDS)}"
            raise ValueError(msg)
        label = next((columns[field] for field in LABEL_FIELDS if columns.get(field) is not None), None)
        texts.append({"text": text, "label": label})
    return name, texts


def _lines_of(path: Path) -> Iterator[Row]:
    with path.open(newline="", encoding="utf-8", errors="strict") as file:
        if path.suffix == ".csv":
            yield from csv.DictReader(file)
        elif path.suffix == ".jsonl":
            yield from (json.loads(line) for line in file if line.strip())
        else:
            # One document per line; `text;label` as in the emotion dataset.
            for line in filter(str.strip, file):
                text, semicolon, label = line.rstrip("\n").rpartition(";")
                # In running text, the words after the last semicolon are not a label.
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


def label_ids(rows: list[Row], labels: int) -> dict[str, int]:
    """Return a number for each label of the training rows, in sorted order. Raises ValueError for missing or too many labels."""
    missing = [number for number, row in enumerate(rows, start=1) if row["label"] is None]
    if missing:
        msg = f"{len(missing)} of {len(rows)} training rows have no label, the first is row {missing[0]}; write text;label lines, or a column called {' or '.join(LABEL_FIELDS)}"
        raise ValueError(msg)
    names = sorted({str(row["label"]) for row in rows})
    if len(names) > labels:
        msg = f"the training rows have {len(names)} labels and the workload {labels}; use --set labels={len(names)}"
        raise ValueError(msg)
    return {name: number for number, name in enumerate(names)}


def _check_labels(rows: list[Row], labels: dict[str, int]) -> None:
    """Raise ValueError for evaluation labels that were never trained. The labels are the user's, so they are not named."""
    unseen = len({str(row["label"]) for row in rows} - set(labels))
    if unseen:
        msg = f"{unseen} labels of the evaluation rows are not in the training rows; give both files the same labels, or --set data.evaluation_rows=0"
        raise ValueError(msg)


def word_level_tokenizer(rows: list[Row], vocabulary: int) -> Any:  # noqa: ANN401 - a transformers tokenizer
    """Return a lower-case tokenizer of the most frequent words of the rows. It is deterministic, unlike trained subwords."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))  # noqa: S106 - no password
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    # Words of one frequency are in the order of the alphabet.
    trainer = trainers.WordLevelTrainer(vocab_size=vocabulary, special_tokens=list(SPECIAL), show_progress=False)
    tokenizer.train_from_iterator((row["text"] for row in rows), trainer)
    ends = [(mark, SPECIAL.index(mark)) for mark in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **MARKS)


def tokenize(tokenizer: Any, rows: list[Row], length: int, labels: dict[str, int] | None) -> list[Row]:  # noqa: ANN401 - a transformers tokenizer
    """Return samples of at most `length` token ids. Raises ValueError for a label that was never trained."""
    ids = tokenizer([row["text"] for row in rows], truncation=True, max_length=length, add_special_tokens=True)["input_ids"]
    if labels is None:
        return [{"input_ids": tokens} for tokens in ids]
    _check_labels(rows, labels)
    return [{"input_ids": tokens, "label": labels[str(row["label"])]} for tokens, row in zip(ids, rows, strict=True)]
