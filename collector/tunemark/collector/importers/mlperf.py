"""MLPerf Training: from result logs and system descriptions to one converted result per entry."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tunemark.collector.importers.archive import Member, members
from tunemark.collector.importers.mllog import LogProblem, finite, printable
from tunemark.collector.importers.mlperf_conditions import accelerator_key, agreed, conditions_of
from tunemark.collector.importers.mlperf_run import RunLog, read_run
from tunemark.collector.importers.mlperf_system import lines_of_keys, read_system, software_of, system_of
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.converted import MLPERF_TARGET_EVAL_LOSS, ConvertedResult, ConvertedSystem

BENCHMARK = "llama2_70b_lora"
PLACE = re.compile(
    r"(?:.*/)?(?:training_results_)?(?P<round>v\d{1,3}\.\d{1,3})/(?P<submitter>[^/]+)/"
    r"(?:systems/(?P<description>[^/]+)\.json|results/(?P<system>[^/]+)/(?P<benchmark>[^/]+)/(?P<log>result_[^/]+\.txt))"
)
"""<round>/<submitter>/systems/<system>.json and <round>/<submitter>/results/<system>/<benchmark>/result_<n>.txt."""

Place = tuple[str, str, str]
"""Round, submitter, system folder."""


@dataclass(frozen=True, slots=True)
class Description:
    """A system description."""

    file: str
    raw: dict[str, Any]
    lines: dict[str, int]
    """Line of each key."""


@dataclass(slots=True)
class Entries:
    """What an archive gave."""

    results: list[ConvertedResult] = field(default_factory=list)
    """By round, submitter and system."""
    problems: list[LogProblem] = field(default_factory=list)
    """What could not be read or is doubtful."""
    logs: int = 0
    """Logs of the benchmark that were read."""
    descriptions: int = 0
    """System descriptions that were read."""
    spellings: dict[str, str | None] = field(default_factory=dict)
    """Each spelling of an accelerator in the descriptions, with its card; null where the catalogue has none."""
    other_files: int = 0
    """Files that are neither."""


def read_entries(source: Path, facts: FactBase, advance: Callable[[], object] = lambda: None) -> Entries:
    """Return all entries of the benchmark in an archive or folder.

    Parameters
    ----------
    source
        A tar archive of result folders, or the folder it was unpacked to.
    facts
        Resolves the names of accelerators.
    advance
        Called after each log.

    """
    found = Entries()
    logs: dict[Place, list[RunLog]] = {}
    descriptions: dict[Place, Description] = {}
    broken: list[str] = []
    for member in members(source, found.problems, broken):
        place = PLACE.fullmatch(member.name)
        if place and place["description"]:
            _description(member, (place["round"], place["submitter"], place["description"]), descriptions, found, facts)
        elif place and place["benchmark"] == BENCHMARK:
            logs.setdefault((place["round"], place["submitter"], place["system"]), []).append(read_run(member.name, member.content))
            found.logs += 1
            advance()
        else:
            found.other_files += 1
    _leave_out_broken(logs, broken, found)
    for key in sorted(logs):
        found.problems.extend(problem for log in logs[key] for problem in log.problems)
        result = _entry(key, logs[key], descriptions.get(key), facts, found.problems)
        if result is not None:
            found.results.append(result)
    _refuse_same_ids(found)
    found.results = _with_notes_on_equal_runs(found.results)
    return found


def _description(member: Member, key: Place, into: dict[Place, Description], found: Entries, facts: FactBase) -> None:
    raw = read_system(member.name, member.content, found.problems)
    if raw is None:
        return
    into[key] = Description(member.name, raw, lines_of_keys(member.content))
    found.descriptions += 1
    spelling = raw.get("accelerator_model_name")
    if isinstance(spelling, str) and spelling.strip():
        found.spellings[spelling.strip()] = accelerator_key(spelling.strip(), facts)


def entry_id(key: Place) -> str:
    """Return the id of an entry: `mlperf-v5.1-<submitter>-<system folder>`, in small letters, digits, dots and dashes."""
    slugs = (re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-.") for part in key[1:])
    return "-".join(["mlperf", key[0], *(slug or "x" for slug in slugs)])[:200]


def _entry(
    key: Place, logs: list[RunLog], description: Description | None, facts: FactBase, problems: list[LogProblem]
) -> ConvertedResult | None:
    folder = logs[0].file.rsplit("/", 1)[0]
    read = sorted((log for log in logs if log.run is not None), key=lambda log: _natural(log.file))
    if not read:
        problems.append(LogProblem(folder, None, "none of its logs is of a run; the entry is left out"))
        return None
    notes = _lost(logs)
    if description is None:
        problems.append(LogProblem(folder, None, f"has no system description systems/{key[2]}.json; machine unknown"))
    raw = description.raw if description else {}
    system = (
        system_of(raw, key[2], description.file, description.lines, problems) if description else ConvertedSystem(name=printable(key[2]))
    )
    settings = agreed(read, notes)
    target = finite(settings.get("target_accuracy"))
    try:
        return ConvertedResult(
            id=entry_id(key),
            round=key[0],
            division=_text(raw.get("division")) or _text(settings.get("submission_division")),
            submitter=printable(key[1]),
            folder=printable(folder),
            system=system,
            conditions=conditions_of(
                system, settings, software_of(raw), facts, assumed=() if target is not None else ("target_eval_loss",)
            ),
            target_eval_loss=MLPERF_TARGET_EVAL_LOSS if target is None else target,
            runs=tuple(log.run for log in read if log.run is not None),
            notes=(*notes, *_memory_doubt(system, facts)),
        )
    except ValidationError as error:
        first = error.errors()[0]
        problems.append(LogProblem(folder, None, f"{'.'.join(map(str, first['loc']))}: {first['msg']}; the entry is left out"))
        return None


def _lost(logs: list[RunLog]) -> list[str]:
    """Return a note that names the logs of an entry that hold no run; none where all do."""
    files = sorted((printable(log.file.rsplit("/", 1)[-1]) for log in logs if log.run is None), key=_natural)
    return [f"{len(files)} of its {len(logs)} logs hold no run and are left out: {', '.join(files)}."[:500]] if files else []


def _leave_out_broken(logs: dict[Place, list[RunLog]], broken: list[str], found: Entries) -> None:
    """Drop the entries in the middle of which an archive breaks off: some of their logs are missing, and nobody knows how many."""
    for name in broken:
        place = PLACE.fullmatch(name)
        key = (place["round"], place["submitter"], place["description"] or place["system"]) if place else None
        if key in logs:
            del logs[key]
            found.problems.append(
                LogProblem(name, None, f"the archive breaks off in or after this file; the entry {entry_id(key)} is left out")
            )


def _memory_doubt(system: ConvertedSystem, facts: FactBase) -> Iterator[str]:
    """Yield a note where the description gives another memory than the card: such fields are copied between systems."""
    card = facts.recognise_accelerator(system.accelerator_printed) if system.accelerator_printed else None
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(GB|GiB|G|MiB)", system.accelerator_memory_printed or "")
    if card is None or card.memory_gib is None or not found:
        return
    gib = float(found[1]) / (1_024 if found[2] == "MiB" else 1)
    if abs(gib - card.memory_gib) > card.memory_gib / 10:
        yield f"The system description gives {system.accelerator_memory_printed} of memory to a {card.name}, which has {card.memory_gib:g} GiB."


def _refuse_same_ids(found: Entries) -> None:
    kept: dict[str, ConvertedResult] = {}
    for result in found.results:
        if result.id in kept:
            found.problems.append(LogProblem(result.folder, None, f"has the id {result.id} of {kept[result.id].folder}; left out"))
        kept.setdefault(result.id, result)
    found.results = list(kept.values())


def _with_notes_on_equal_runs(results: list[ConvertedResult]) -> list[ConvertedResult]:
    """Return the entries with a note on those whose runs are those of another entry: resubmitted, or listed twice."""
    groups: dict[tuple[object, ...], list[str]] = {}
    keys = {result.id: tuple((run.seed, run.time_to_target_s, run.curve) for run in result.runs) for result in results}
    for name, key in keys.items():
        groups.setdefault(tuple(map(repr, key)), []).append(name)
    others = {name: [other for other in group if other != name] for group in groups.values() for name in group}
    return [
        result.model_copy(update={"notes": (*result.notes, f"Its runs are those of {', '.join(others[result.id])}.")})
        if others[result.id]
        else result
        for result in results
    ]


def _text(value: object) -> str | None:
    return value.strip()[:200] or None if isinstance(value, str) else None


def _natural(file: str) -> tuple[int, str]:
    """Return a key that sorts result_10 after result_9."""
    digits = re.search(r"(\d{1,9})\D*$", file)
    return (int(digits[1]) if digits else -1, file)
