"""The examination: each corruption, text, file and fact as one case with its outcome. Cases run in several processes."""

import re
import runpy
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gate_mutations import copy_corruptions, file_attacks, texts, trace_corruptions  # noqa: F401 - they register their corruptions
from gate_mutations.bases import Base, bases, write
from gate_mutations.checkout import FACTS, SECOND_RUN, Checkout, Judgement, git, make_checkout, run_command
from gate_mutations.corruptions import CORRUPTIONS, Corruption, read_values
from gate_mutations.honest import Honest, device_series, honest

COMMITTED_FAMILIES = ("identity", "supersede")
"""Families that are judged beside the committed bases. Elsewhere each copy of a base would be refused as a copy."""
read_values(Path(__file__).with_name("value_corruptions.toml"))
FACT_FILE = Path(__file__).with_name("fact_corruptions.toml")
FACT_SOURCE = "published/003"
"""The document whose records are corrupted."""
PROCESSES = 2
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
COMMAND = re.compile(r"^(::|##\[)", re.MULTILINE)
"""What acts on a terminal, and what acts on the log of a workflow."""


@dataclass(frozen=True)
class Case:
    """One attempt and its outcome."""

    kind: str
    """`corruption`, `text`, `message`, `file` or `fact`."""
    family: str
    """Of a text, the field."""
    name: str
    base: str
    """What it was tried on: a base or a file."""
    refused: bool
    caught: bool
    """Refused, or accepted with a request for a second run."""
    named: bool
    """A problem names one of the wrong fields."""
    crash: str = ""
    said: tuple[str, ...] = ()


Task = tuple[str, Any]


def tasks(extra: Path | None, kinds: Sequence[str]) -> list[Task]:
    """Return everything to do, as picklable descriptions."""
    corruptions, words, facts = corpus(extra)
    listed: list[Task] = []
    if "corruptions" in kinds:
        listed += [("corruption", index) for index in range(len(corruptions))]
    if "texts" in kinds:
        listed += [("text", (name, index)) for name in sorted(set(texts.FIELDS.values())) for index in range(len(words))]
        listed += [] if extra else [("message", message) for message in texts.messages()]
    if "files" in kinds and not extra:
        listed += [("file", name) for name in file_attacks.ATTACKS]
    if "facts" in kinds:
        listed += [("fact", (folder, entry)) for folder, entries in facts.items() for entry in entries]
    return listed


def corpus(extra: Path | None) -> tuple[list[Corruption], Sequence[texts.Text], dict[str, list[dict[str, str]]]]:
    """Return corruptions, texts and fact corruptions: those of this package, or of a folder in the same form."""
    if extra is None:
        return CORRUPTIONS, texts.TEXTS, tomllib.loads(FACT_FILE.read_text(encoding="utf-8"))
    before = len(CORRUPTIONS)
    # A file of corruptions registers its own, as those of this package do.
    runpy.run_path(str(extra / "corruptions.py"))
    added, CORRUPTIONS[before:] = CORRUPTIONS[before:], []
    return added, runpy.run_path(str(extra / "texts.py"))["TEXTS"], tomllib.loads((extra / FACT_FILE.name).read_text(encoding="utf-8"))


def run(folder: Path, extra: Path | None, kinds: Sequence[str]) -> Iterator[Case]:
    """Yield all cases, in order."""
    with ProcessPoolExecutor(PROCESSES, initializer=_begin, initargs=(folder, extra)) as pool:
        for cases in pool.map(_do, tasks(extra, kinds), chunksize=16):
            yield from cases


_STATE: dict[str, Any] = {}
"""Of one process: its checkouts and the cases."""


def _begin(folder: Path, extra: Path | None) -> None:
    root = Path(tempfile.mkdtemp(dir=folder))
    committed, new = file_attacks.committed_and_new()
    files = make_checkout(root / "files", [committed]).root
    facts = make_checkout(root / "facts", folders=(*FACTS, FACT_SOURCE)).root
    corruptions, words, _ = corpus(extra)
    _STATE.update(
        alone=make_checkout(root / "alone"),
        committed=make_checkout(root / "committed", [base.content for base in bases()]),
        files=file_attacks.Place(files, files / "submissions" / file_attacks.file_name(committed), new),
        facts=facts,
        corruptions=corruptions,
        texts=words,
        copies={},
    )


def _do(task: Task) -> list[Case]:
    kind, what = task
    match kind:
        case "corruption":
            return examine(_STATE["corruptions"][what], _STATE["alone"], _STATE["committed"])
        case "text":
            name, index = what
            return _texts(name, _STATE["texts"][index])
        case "message":
            (judgement,) = _STATE["alone"].judge([texts.with_text(texts.MESSAGE, what)])
            accepted = not judgement.problems and not judgement.crash
            return [Case("message", "message", what, texts.MESSAGE, accepted, accepted, accepted, judgement.crash, judgement.problems)]
        case "file":
            return [_file(_STATE["files"], what)]
        case _:
            return [_fact(_STATE["facts"], *what)]


# The kinds of cases


def examine(corruption: Corruption, alone: Checkout, committed: Checkout, on: Sequence[Base] = ()) -> list[Case]:
    """Return the cases of a corruption on all of its bases, or on some. They are different runs, so that they are judged together."""
    chosen = on or corruption.bases
    checkout = committed if corruption.family in COMMITTED_FAMILIES else alone
    changed = [corruption.applied(base) for base in chosen]
    if all(len(contents) == 1 for contents in changed):
        single = [contents[0] for contents in changed]
        judged = [[one] for one in checkout.judge(single, [corruption.place(content) for content in single])]
    if any(len(contents) > 1 for contents in changed) or any(one.crash for (one,) in judged):
        judged = [checkout.judge(contents, [corruption.place(content) for content in contents]) for contents in changed]
    return [_corruption(corruption, base, judgements, alone) for base, judgements in zip(chosen, judged, strict=True)]


def _corruption(corruption: Corruption, base: Base, judgements: Sequence[Judgement], alone: Checkout) -> Case:
    doubts = {note for judgement in judgements for note in judgement.notes if SECOND_RUN in note}
    if doubts:
        # Doubts about the base itself do not count.
        doubts -= set(alone.judge([base.content])[0].notes)
    said = (*(problem for judgement in judgements for problem in judgement.problems), *sorted(doubts))
    refused = any(judgement.refused for judgement in judgements)
    caught = refused or bool(doubts)
    crash = next((judgement.crash for judgement in judgements if judgement.crash), "")
    named = caught and any(map(corruption.names, said))
    return Case("corruption", corruption.family, corruption.name, base.name, refused, caught, named, crash, said)


def _texts(name: str, text: texts.Text) -> list[Case]:
    """Return the cases of a text in all fields that are tried on one base: judged together where the gate accepts copies of it."""
    checkout: Checkout = _STATE["committed" if name == "replacing" else "alone"]
    fields = [field for field, base in texts.FIELDS.items() if base == name]
    if name not in _STATE["copies"]:
        two = [texts.with_id(texts.untouched(name), number) for number in range(2)]
        _STATE["copies"][name] = not any(judgement.problems for judgement in checkout.judge(two))
    contents = [texts.with_id(texts.with_text(field, text.text), number) for number, field in enumerate(fields)]
    judged = checkout.judge(contents) if _STATE["copies"][name] else [Judgement(crash="alone")]
    if any(judgement.crash for judgement in judged):
        judged = [judgement for content in contents for judgement in checkout.judge([content])]
    return [_text(field, text, judgement) for field, judgement in zip(fields, judged, strict=True)]


def _text(field: str, text: texts.Text, judgement: Judgement) -> Case:
    """Return the case of a text, which is refused, or which a free message may hold."""
    held = text.inert and field == texts.MESSAGE and not judgement.crash
    refused = judgement.refused or held
    return Case("text", field, text.name, text.kind, refused, refused, judgement.refused, judgement.crash, judgement.problems)


def _file(place: file_attacks.Place, name: str) -> Case:
    """Attack a checkout, validate it, and restore it. What is printed must not act on a terminal or a log."""
    try:
        file_attacks.ATTACKS[name](place)
        answer = run_command(place.root, "check", "submissions")
    finally:
        shutil.rmtree(place.root / "submissions")
        git(place.root, "checkout", "--quiet", "--", "submissions")
    shown = answer.out + answer.err
    clean = CONTROL.search(shown) is None and COMMAND.search(shown) is None
    refused = answer.code == 3 and clean
    return Case("file", "file", name, "submissions", refused, refused, clean, answer.crash, tuple(shown.splitlines()[:3]))


def _fact(root: Path, folder: str, entry: dict[str, str]) -> Case:
    """Change a fact, validate all facts, and restore it."""
    path = root / "data" / folder / entry["file"]
    before = path.read_text(encoding="utf-8")
    if entry["old"] not in before:
        msg = f"{path.name} has no {entry['old']!r}"
        raise ValueError(msg)
    try:
        path.write_text(before.replace(entry["old"], entry["new"], 1), encoding="utf-8")
        answer = run_command(root, "validate", "data")
    finally:
        path.write_text(before, encoding="utf-8")
    lines = [line for line in (answer.out + answer.err).splitlines() if not line.startswith("ignored")]
    named = any(line.startswith(f"data/{folder}/{entry['file']}") for line in lines)
    return Case("fact", folder, entry["name"], entry["file"], answer.code == 3, answer.code == 3, named, answer.crash, tuple(lines[:3]))


def run_honest(folder: Path, extra: Path | None) -> dict[str, Judgement]:
    """Return the judgement of each honest variant, all judged together in a checkout in which the bases are committed."""
    checkout = make_checkout(folder / "honest", [base.content for base in bases()])
    variants: list[Honest] = list(runpy.run_path(str(extra / "honest.py"))["honest"]() if extra else honest())
    judged = checkout.judge([variant.make() for variant in variants])
    # Windows of one public log overlap, so that their series are not judged together.
    real = {} if extra else {variant.name: checkout.judge([variant.make()])[0] for variant in device_series()}
    return {variant.name: judgement for variant, judgement in zip(variants, judged, strict=True)} | real


def control(folder: Path) -> list[str]:
    """Return the problems of the bases themselves and of the untouched facts; without them, a refusal proves nothing."""
    checkout = make_checkout(folder / "control", folders=(*FACTS, FACT_SOURCE))
    problems = [problem for judgement in checkout.judge([base.content for base in bases()]) for problem in judgement.problems]
    write(bases()[0].content, checkout.root)
    for what in ("submissions", "data"):
        answer = run_command(checkout.root, "validate", what)
        problems += [] if answer.code == 0 else (answer.out + answer.err + answer.crash).splitlines()
    return problems
