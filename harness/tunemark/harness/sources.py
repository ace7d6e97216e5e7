"""Where samples come from: the names of synthetic ones, and local files: which file of a folder is meant, its name and its content hash."""

import hashlib
from pathlib import Path

from tunemark.schema.errors import TunemarkError
from tunemark.schema.vocabulary import Task

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
