"""MLPerf Training: from result logs and system descriptions to one converted result per entry."""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from tunemark.collector.commands.terminal import AsJson, print_json, print_table, progress, say
from tunemark.collector.importers.import_io import LogProblem, Member, first_error, members, printable, write_changed
from tunemark.collector.importers.mlperf_log import MlperfRunLog, PowerLog, count, finite, power_of_run, read_power, read_run
from tunemark.schema.errors import Exit
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.files import project_root
from tunemark.schema.formats import counted
from tunemark.schema.records.base import canonical_json
from tunemark.schema.records.converted import MLPERF_TARGET_EVAL_LOSS, ConvertedResult, ConvertedRun, ConvertedSystem
from tunemark.schema.records.published import Conditions, Scalar
from tunemark.schema.vocabulary import Method, Padding

BENCHMARK = "llama2_70b_lora"
USUAL_LOGS = 1_620
LARGEST_SCALING = 10
PLACE = re.compile(
    r"(?:.*/)?(?:training_results_)?(?P<round>v\d{1,3}\.\d{1,3})/(?P<submitter>[^/]+)/"
    r"(?:systems/(?P<description>[^/]+)\.json|results/(?P<system>[^/]+)/(?P<benchmark>[^/]+)/"
    r"(?:(?P<log>result_[^/]+)\.txt|(?P<scaling>scaling\.json)|power/(?P<run>result_[^/]+)/(?P<meter>(?:node|sw)_\d+)\.txt))"
)
"""<round>/<submitter>/systems/<system>.json, and in <round>/<submitter>/results/<system>/<benchmark>: result_<n>.txt, scaling.json and
power/result_<n>/node_<k>.txt or sw_<k>.txt."""
POWER_PLACE = re.compile(r"[-_](ac|dc)[-_]power", re.IGNORECASE)
"""The submitter's folder states AC or DC where the logs do not."""
EXPECTED = "logs are expected as <round>/<submitter>/results/<system>/llama2_70b_lora/result_<n>.txt, such as v5.1/Dell/results/..."

Place = tuple[str, str, str]
"""Round, submitter, system folder."""


def mlperf(
    archives: Annotated[
        list[Path],
        typer.Argument(
            help="Tar archives of MLPerf Training results, or the folders they were unpacked to. An entry may be spread over several.",
            show_default=False,
            metavar="ARCHIVE...",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder to write to. Default: `data/converted/mlperf` of the checkout.", show_default=False),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Convert MLPerf Training logs (llama2_70b_lora): one file per entry, `<round>/<id>.json`.

    Reads `<round>/<submitter>/results/<system>/llama2_70b_lora/result_<n>.txt` and `<round>/<submitter>/systems/<system>.json`
    in memory: nothing in an archive is extracted. `scaling.json` and power logs in the same folder are read too. Raw values of each run are kept; statistics are computed when they are shown.
    A log without run_stop is kept as incomplete, a success without an evaluation at the target as missed. The results are an
    unofficial conversion, not verified by MLCommons Association.

    Exit codes: 0 all converted, 2 no archive, 3 a log or file could not be used.

    Examples
    --------
    - `tunemark import mlperf LOGS.tar.xz`

    - `tunemark import mlperf LOGS.tar.xz SUPPLEMENT.tar.xz`

    - `tunemark import mlperf RESULTS_FOLDER --out /tmp/converted --json`
    """
    started = time.perf_counter()
    root = project_root()
    folder = root / "data" / "converted" / "mlperf" if out is None else out
    with progress("import mlperf", USUAL_LOGS) as advance:
        entries = read_entries(archives, FactBase.of_root(root), advance)
    written = sum(write_changed(folder / result.round / f"{result.id}.json", canonical_json(result)) for result in entries.results)
    seconds = time.perf_counter() - started
    for problem in entries.problems:
        say(str(problem))
    if not entries.results:
        say(
            f"{', '.join(archive.name for archive in archives)}: no entry was found in {counted(entries.other_files + entries.logs + entries.descriptions, 'file')}; {EXPECTED}"
        )
    if as_json:
        print_json(entries.as_json() | {"written": written, "seconds": round(seconds, 3)})
    else:
        print_table(["round", "entries", "runs", "incomplete", "without card"], entries.rounds())
        unresolved = sorted(spelling for spelling, key in entries.spellings.items() if key is None)
        if unresolved:
            say(f"no card in data/accelerators for {len(unresolved)} of {len(entries.spellings)} spellings: {', '.join(unresolved)}")
        parts = f"{counted(entries.logs, 'log')} and {counted(entries.descriptions, 'system description')} in {seconds:.1f} s"
        say(f"{parts}; {counted(written, 'file')} written to {folder}")
    raise typer.Exit(Exit.OK if entries.results and all(problem.noted for problem in entries.problems) else Exit.INVALID)


# Entries -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Entries:
    """The contents of an archive."""

    results: list[ConvertedResult] = field(default_factory=list)
    """By round, submitter and system."""
    problems: list[LogProblem] = field(default_factory=list)
    """Unreadable or suspicious content."""
    logs: int = 0
    """Number of logs of the benchmark."""
    descriptions: int = 0
    """Number of system descriptions."""
    spellings: dict[str, str | None] = field(default_factory=dict)
    """Each spelling of an accelerator in the descriptions, with its card; null where the catalogue has none."""
    other_files: int = 0
    """Number of files that are neither."""

    def rounds(self) -> list[tuple[str, int, int, int, int]]:
        """Return one row per round: entries, runs, incomplete runs, entries without an accelerator card."""
        rows = []
        for name in sorted({result.round for result in self.results}):
            results = [result for result in self.results if result.round == name]
            statuses = [run.status for result in results for run in result.runs]
            without_card = sum(result.conditions.accelerator is None for result in results)
            rows.append((name, len(results), len(statuses), statuses.count("incomplete"), without_card))
        return rows

    def as_json(self) -> dict[str, Any]:
        """Return the entries as JSON values."""
        return {
            "entries": [
                {"id": result.id, "round": result.round, "runs": len(result.runs), "accelerator": result.conditions.accelerator}
                for result in self.results
            ],
            "logs": self.logs,
            "spellings": self.spellings,
            "problems": [
                {"file": problem.file, "line": problem.line, "reason": problem.reason, "noted": problem.noted} for problem in self.problems
            ],
        }


@dataclass(frozen=True, slots=True)
class Description:
    """A system description."""

    file: str
    content: bytes
    raw: dict[str, Any]


@dataclass(slots=True)
class _Additions:
    """What the folders of entries contain besides logs."""

    scaling: dict[Place, float] = field(default_factory=dict)
    """Factor of `scaling.json`."""
    power: dict[Place, dict[str, list[PowerLog]]] = field(default_factory=dict)
    """Logs of power meters by run."""


def read_entries(sources: Sequence[Path], facts: FactBase, advance: Callable[[], object] = lambda: None) -> Entries:
    """Return all entries of the benchmark in archives or folders.

    Each source is a tar archive of result folders, or the folder it was unpacked to. `advance` is called after each log.
    """
    entries = Entries()
    logs: dict[Place, list[MlperfRunLog]] = {}
    descriptions: dict[Place, Description] = {}
    additions = _Additions()
    broken: list[str] = []
    seen: set[str] = set()
    for member in (member for source in sources for member in members(source, entries.problems, broken)):
        place = PLACE.fullmatch(member.name)
        if member.name in seen:
            entries.problems.append(LogProblem(member.name, None, "is in another archive already; the first one counts", noted=True))
        elif place and place["description"]:
            description = _description(member, entries, facts)
            if description is not None:
                descriptions[place["round"], place["submitter"], place["description"]] = description
        elif place and place["benchmark"] == BENCHMARK and place["log"]:
            logs.setdefault((place["round"], place["submitter"], place["system"]), []).append(read_run(member.name, member.content))
            entries.logs += 1
            advance()
        elif place and place["benchmark"] == BENCHMARK:
            _add(additions, (place["round"], place["submitter"], place["system"]), place, member, entries.problems)
        else:
            entries.other_files += 1
        seen.add(member.name)
    _leave_out_broken(logs, broken, entries.problems)
    unused = len({*additions.scaling, *additions.power} - logs.keys())
    if unused:
        reason = f"{unused} entries have a scaling.json or power logs and no logs of runs here; name the archive with their logs too"
        entries.problems.append(LogProblem(sources[-1].name, None, reason, noted=True))
    entries.results = _with_notes_on_equal_runs(list(_results(logs, descriptions, additions, facts, entries.problems)))
    return entries


def _results(
    logs: dict[Place, list[MlperfRunLog]],
    descriptions: dict[Place, Description],
    additions: _Additions,
    facts: FactBase,
    problems: list[LogProblem],
) -> Iterator[ConvertedResult]:
    """Yield the result of each entry with usable logs."""
    folders: dict[str, str] = {}
    for key in sorted(logs):
        problems.extend(problem for log in logs[key] for problem in log.problems)
        result = _entry(key, logs[key], descriptions.get(key), additions, facts, problems)
        if result is not None and result.id in folders:
            problems.append(LogProblem(result.folder, None, f"has the id {result.id} of {folders[result.id]}; left out"))
        elif result is not None:
            folders[result.id] = result.folder
            yield result


def _add(additions: _Additions, key: Place, place: re.Match[str], member: Member, problems: list[LogProblem]) -> None:
    """Add a scaling factor or the log of a power meter to those of its entry."""
    if place["meter"]:
        log = read_power(place["meter"], member.name, member.content, problems)
        additions.power.setdefault(key, {}).setdefault(place["run"], []).append(log)
        return
    try:
        factor = finite(json.loads(member.content)["scaling_factor"])
    except (ValueError, RecursionError, TypeError, KeyError):
        factor = None
    if factor is None or not 1 <= factor < LARGEST_SCALING:
        problems.append(
            LogProblem(member.name, 1, f"scaling_factor is not a number from 1 to {LARGEST_SCALING}; the score is left unscaled")
        )
    else:
        additions.scaling[key] = factor


def _with_power(log: MlperfRunLog, meters: dict[str, list[PowerLog]], stated: str | None) -> ConvertedRun | None:
    """Return the run of a log with the power of its meters."""
    if log.run is None:
        return None
    logs = sorted(
        meters.get(log.run.file.removesuffix(".txt"), []), key=lambda power: (power.meter.startswith("sw"), _natural(power.meter))
    )
    readings = (power_of_run(power, log, stated) for power in logs)
    return log.run.model_copy(update={"power": tuple(reading for reading in readings if reading is not None)})


def _description(member: Member, entries: Entries, facts: FactBase) -> Description | None:
    """Return a system description, or None if it is not a JSON object."""
    try:
        raw = json.loads(member.content)
    except (ValueError, RecursionError) as error:
        entries.problems.append(LogProblem(member.name, getattr(error, "lineno", 1), f"not a system description: {error}"))
        return None
    if not isinstance(raw, dict):
        reason = f"not a system description: a JSON {type(raw).__name__}, not an object"
        entries.problems.append(LogProblem(member.name, 1, reason))
        return None
    entries.descriptions += 1
    spelling = raw.get("accelerator_model_name")
    if isinstance(spelling, str) and spelling.strip():
        entries.spellings[spelling.strip()] = accelerator_key(spelling.strip(), facts)
    return Description(member.name, member.content, raw)


def entry_id(key: Place) -> str:
    """Return the id of an entry: `mlperf-v5.1-<submitter>-<system folder>`, in small letters, digits, dots and dashes."""
    slugs = (re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-.") for part in key[1:])
    return "-".join(["mlperf", key[0], *(slug or "x" for slug in slugs)])[:200]


def _entry(
    key: Place,
    logs: list[MlperfRunLog],
    description: Description | None,
    additions: _Additions,
    facts: FactBase,
    problems: list[LogProblem],
) -> ConvertedResult | None:
    """Return the result of an entry, or None if none of its logs is usable."""
    folder = logs[0].file.rsplit("/", 1)[0]
    with_run = sorted((log for log in logs if log.run is not None), key=lambda log: _natural(log.file))
    if not with_run:
        problems.append(LogProblem(folder, None, "none of its logs is of a run; the entry is left out"))
        return None
    notes: list[str] = []
    if len(with_run) < len(logs):
        lost = sorted((printable(log.file.rsplit("/", 1)[-1]) for log in logs if log.run is None), key=_natural)
        notes.append(f"{len(lost)} of its {len(logs)} logs hold no run and are left out: {', '.join(lost)}."[:500])
    if description is None:
        problems.append(LogProblem(folder, None, f"has no system description systems/{key[2]}.json; machine unknown"))
    raw = description.raw if description else {}
    system = system_of(description, key[2], problems) if description else ConvertedSystem(name=printable(key[2]))
    settings = agreed(with_run, notes)
    target = finite(settings.get("target_accuracy"))
    stated = POWER_PLACE.search(key[1])
    runs = (_with_power(log, additions.power.get(key, {}), stated[1].upper() if stated else None) for log in with_run)
    try:
        return ConvertedResult(
            id=entry_id(key),
            round=key[0],
            division=_text(raw.get("division")) or _text(settings.get("submission_division")),
            submitter=printable(key[1]),
            folder=printable(folder),
            system=system,
            conditions=conditions_of(system, settings, software_of(raw), facts, () if target is not None else ("target_eval_loss",)),
            target_eval_loss=MLPERF_TARGET_EVAL_LOSS if target is None else target,
            runs=tuple(run for run in runs if run is not None),
            scaling_factor=additions.scaling.get(key),
            notes=(*notes, *_memory_contradiction(system, facts)),
        )
    except ValidationError as error:
        problems.append(LogProblem(folder, None, f"{first_error(error)}; the entry is left out"))
        return None


def _leave_out_broken(logs: dict[Place, list[MlperfRunLog]], broken: list[str], problems: list[LogProblem]) -> None:
    """Drop the entries that an archive cuts off: an unknown number of their logs is missing."""
    for name in broken:
        place = PLACE.fullmatch(name)
        key = (place["round"], place["submitter"], place["description"] or place["system"]) if place else None
        if key in logs:
            del logs[key]
            reason = f"the archive breaks off in or after this file; the entry {entry_id(key)} is left out"
            problems.append(LogProblem(name, None, reason))


def _memory_contradiction(system: ConvertedSystem, facts: FactBase) -> Iterator[str]:
    """Yield a note if the description gives another memory than the card: such fields are copied between systems."""
    card = facts.recognise_accelerator(system.accelerator_printed) if system.accelerator_printed else None
    size = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(GB|GiB|G|MiB)", system.accelerator_memory_printed or "")
    if card is None or card.memory_gib is None or not size:
        return
    gib = float(size[1]) / (1_024 if size[2] == "MiB" else 1)
    if abs(gib - card.memory_gib) > card.memory_gib / 10:
        yield f"The system description gives {system.accelerator_memory_printed} of memory to a {card.name}, which has {card.memory_gib:g} GiB."


def _with_notes_on_equal_runs(results: list[ConvertedResult]) -> list[ConvertedResult]:
    """Return the entries, with a note on those that share their runs with another entry: resubmitted, or listed twice."""
    runs = {result.id: repr([(run.seed, run.time_to_target_s, run.curve) for run in result.runs]) for result in results}
    groups: dict[str, list[str]] = {}
    for name, key in runs.items():
        groups.setdefault(key, []).append(name)
    noted = []
    for result in results:
        others = [name for name in groups[runs[result.id]] if name != result.id]
        note = (f"Its runs are those of {', '.join(others)}.",) if others else ()
        noted.append(result.model_copy(update={"notes": (*result.notes, *note)}))
    return noted


def _text(value: object) -> str | None:
    return value.strip()[:200] or None if isinstance(value, str) else None


def _natural(file: str) -> tuple[int, str]:
    """Return a key that sorts result_10 after result_9."""
    digits = re.search(r"(\d{1,9})\D*$", file)
    return (int(digits[1]) if digits else -1, file)


# Conditions: stated by the logs, or fixed by the rules of the benchmark ----------------------------

SEQUENCE_LENGTH = 8_192
DATASET = "SCROLLS GovReport, packed"
ASSUMED = ("model", "method", "dataset", "sequence_length", "packing", "padding", "settings.optimizer")
SETTING_KEYS = {
    "learning_rate": "opt_base_learning_rate",
    "weight_decay": "opt_adamw_weight_decay",
    "max_grad_norm": "opt_gradient_clip_norm",
    "scheduler_steps": "opt_learning_rate_training_steps",
    "warmup_factor": "opt_learning_rate_warmup_factor",
    "lora_rank": "lora_rank",
    "lora_alpha": "lora_alpha",
    "train_samples": "train_samples",
    "eval_samples": "eval_samples",
}
"""Our name -> key of the log."""


def accelerator_key(spelling: str, facts: FactBase) -> str | None:
    """Return the card of an accelerator by a submitter's name for it, or None if there is none."""
    card = facts.recognise_accelerator(" ".join(spelling.split()))
    return None if card is None else card.key


def conditions_of(
    system: ConvertedSystem, settings: dict[str, Any], software: dict[str, str], facts: FactBase, assumed: tuple[str, ...]
) -> Conditions:
    """Return the conditions of an entry, from its logs, its system description and the rules of the benchmark."""

    def plain(value: float) -> Scalar:
        return int(value) if value.is_integer() and abs(value) >= 1 else value

    numbers = {name: finite(settings.get(key)) for name, key in SETTING_KEYS.items()}
    devices = system.nodes * system.accelerators_per_node if system.nodes and system.accelerators_per_node else None
    return Conditions(
        model="llama-2-70b",
        method=Method.LORA,
        accelerator=accelerator_key(system.accelerator_printed, facts) if system.accelerator_printed else None,
        accelerator_count=devices,
        gradient_accumulation=count(settings.get("gradient_accumulation_steps")) or None,
        global_batch=count(settings.get("global_batch_size")) or None,
        sequence_length=SEQUENCE_LENGTH,
        padding=Padding.NONE,
        packing=True,
        dataset=DATASET,
        framework=software,
        settings={"optimizer": "adamw", **{name: plain(number) for name, number in numbers.items() if number is not None}},
        assumed=(*ASSUMED, *assumed),
    )


def agreed(logs: list[MlperfRunLog], notes: list[str]) -> dict[str, Any]:
    """Return the settings that all runs of an entry share; a setting that differs between runs is unknown and noted."""
    shared: dict[str, Any] = {}
    for key in sorted({key for log in logs for key in log.settings} - {"seed"}):
        values = {repr(log.settings[key]): log.settings[key] for log in logs if key in log.settings}
        if len(values) == 1:
            shared[key] = next(iter(values.values()))
        else:
            notes.append(f"{key} differs between its runs: {', '.join(sorted(values))}"[:500])
    return shared


# System descriptions: the machine in the submitter's words ------------------------------------------

TEXTS = {
    "name": "system_name",
    "availability": "status",
    "accelerator_printed": "accelerator_model_name",
    "accelerator_memory_printed": "accelerator_memory_capacity",
    "accelerator_interconnect_printed": "accelerator_interconnect",
    "host_processor_printed": "host_processor_model_name",
    "host_memory_printed": "host_memory_capacity",
    "framework_printed": "framework",
    "operating_system": "operating_system",
}
"""Our field -> key of the description."""
COUNTS = {
    "nodes": "number_of_nodes",
    "accelerators_per_node": "accelerators_per_node",
    "host_processors_per_node": "host_processors_per_node",
}
NOTES = ("hw_notes", "sw_notes")
EMPTY = {"", "n/a", "none", "-"}
LONGEST = 2_000


def system_of(description: Description, folder: str, problems: list[LogProblem]) -> ConvertedSystem:
    """Return the machine of a description; invalid counts are unknown and reported."""
    raw, file = description.raw, description.file
    fields: dict[str, Any] = {name: printed(raw.get(key)) for name, key in TEXTS.items()}
    fields["name"] = fields["name"] or folder
    for field_name, key in COUNTS.items():
        digits = str(raw[key]).strip() if isinstance(raw.get(key), str | int) and not isinstance(raw[key], bool) else ""
        fields[field_name] = int(digits) if digits.isascii() and digits.isdigit() and int(digits[:12]) > 0 else None
        if fields[field_name] is None:
            match = re.search(rf'^[\s{{,]*"{key}"\s*:'.encode(), description.content, re.MULTILINE)
            line = description.content.count(b"\n", 0, match.end()) + 1 if match else None
            problems.append(LogProblem(file, line, f"{key} is {str(raw.get(key))[:40]!r}, not a positive whole number; left unknown"))
    fields["notes"] = tuple(text for key in NOTES if (text := printed(raw.get(key))))
    try:
        return ConvertedSystem(**fields)
    except ValidationError as error:
        problems.append(LogProblem(file, 1, first_error(error)))
        return ConvertedSystem(name=folder)


def software_of(raw: Mapping[str, Any]) -> dict[str, str]:
    """Return the software stack by name, as printed: an object, a list of objects, or words."""
    stack = raw.get("other_software_stack")
    software: dict[str, str] = {}
    for part in stack if isinstance(stack, list) else [stack]:
        if isinstance(part, dict):
            software |= {str(name)[:80]: text for name, value in part.items() if (text := printed(value))}
        elif text := printed(part):
            software[f"other_{len(software) + 1}" if "other" in software else "other"] = text
    framework = printed(raw.get("framework"))
    return ({"framework": framework} if framework else {}) | software


def printed(value: object) -> str | None:
    """Return a value of a description as text, or None if it is empty."""
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return None
    text = printable(str(value))
    return text[:LONGEST] if text.lower() not in EMPTY else None
