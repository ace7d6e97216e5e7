"""MLPerf Training: from result logs and system descriptions to one converted result per entry.

An MLLOG line contains `:::MLLOG ` and one JSON object with `key`, `time_ms`, `value` and `metadata`, among whatever else was
printed; launchers put a rank in front of it. Only keys that a converted result needs are parsed.
"""

import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import mul
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from tunemark.collector.importers.import_io import Log, LogProblem, Request, first_error, printable, write_out
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.files import project_root
from tunemark.schema.formats import counted
from tunemark.schema.records.base import canonical_json
from tunemark.schema.records.converted import (
    MLPERF_TARGET_EVAL_LOSS,
    ConvertedResult,
    ConvertedRun,
    ConvertedSystem,
    EvalCurve,
    PowerReading,
    RunStatus,
)
from tunemark.schema.records.published import Conditions
from tunemark.terminal import print_table, say

KEY = re.compile(rb'"key":[^"]*"([^"]*)')
BENCHMARK = tomllib.loads(Path(__file__).with_name("mlperf.toml").read_text(encoding="utf-8"))
"""The keys of the logs, and what the rules of the benchmark fix."""
SETTINGS = frozenset({*BENCHMARK["settings"].values(), *BENCHMARK["keys"]["read"]})
TIMES = frozenset(BENCHMARK["keys"]["events_in_time"])
POWER = frozenset(BENCHMARK["keys"]["of_a_power_meter"])
MS = 1_000

# Events --------------------------------------------------------------------------------------------


class Event(BaseModel):
    """One MLLOG line."""

    key: str
    time_ms: Annotated[float, Field(strict=True, ge=0, lt=2**53, allow_inf_nan=False)]
    """Milliseconds since 1970."""
    value: Any = None
    metadata: Annotated[dict[str, Any], BeforeValidator(lambda value: value if isinstance(value, dict) else {})] = {}
    line: int = 0

    @property
    def samples(self) -> int | None:
        """The samples trained so far."""
        return count(self.metadata.get("samples_count"))


def events(content: bytes, file: str, problems: list[LogProblem], keys: frozenset[str] = SETTINGS | TIMES) -> Iterator[Event]:
    """Yield the wanted events of a log in the order of its lines; unreadable lines are added to `problems`."""
    for number, text in enumerate(content.split(b"\n"), start=1):
        _, mark, line = text.partition(b":::MLLOG")
        # Most lines are not wanted, so their key decides before they are parsed. Parsing a line without a key gives the reason.
        key = KEY.search(line)
        name = key[1].decode("utf-8", "replace") if key else ""
        if not mark or (key and (name not in keys or (name == "tracked_stats" and b'"throughput"' not in line))):
            continue
        try:
            yield Event.model_validate_json(line).model_copy(update={"line": number})
        except ValidationError as error:
            problems.append(LogProblem(file, number, first_error(error)))


def finite(value: object) -> float | None:
    """Return a number of a log, or None if it is not a finite number."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return float(value) if number else None  # type: ignore[arg-type]


def count(value: object) -> int | None:
    """Return a count, or None if it is not one; JSON writes some counts as 8.0."""
    number = finite(value)
    return int(number) if number is not None and 0 <= number < 2**53 and number.is_integer() else None


# Runs ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class MlperfRunLog(Log):
    """The contents of one log; its file is a path in the folder."""

    run: ConvertedRun | None = None
    """Null when it is not the log of a run."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Values of the keys with one value per run."""
    start_ms: float | None = None
    """`run_start`, milliseconds since 1970."""
    stop_ms: float | None = None
    """`run_stop`."""


def read_run(file: str, content: bytes) -> MlperfRunLog:
    """Return the contents of a log; invalid content becomes problems and never raises."""
    log = MlperfRunLog(file)
    found = list(events(content, file, log.problems))
    log.settings = {event.key: event.value for event in reversed(found) if event.key in SETTINGS}
    timed = [event for event in found if event.key in TIMES]
    last_line = max(1, content.count(b"\n") + (not content.endswith(b"\n")))
    start = next((event for event in timed if event.key == "run_start"), None)
    if start is None:
        reason = "has no run_start: not the log of a run, or cut off before it began" if content else "is empty: the log is lost"
        log.problem(last_line, reason)
        return log
    later = [event for event in timed if event.line > start.line and event.time_ms >= start.time_ms and not event.key.startswith("init_")]
    stop = next((event for event in later if event.key == "run_stop"), None)
    if stop is None:
        log.problem(last_line, "ends without run_stop; kept as incomplete", noted=True)
    log.start_ms, log.stop_ms = start.time_ms, None if stop is None else stop.time_ms
    inside = [event for event in later if stop is None or event.line < stop.line]
    for event in later:
        if event.key == "run_start" or (stop and event.line > stop.line):
            log.problem(event.line, f"{event.key} is a second one, or after run_stop; ignored")
    try:
        log.run = _run(log, timed, inside, start, stop)
    except ValidationError as error:
        log.problem(last_line, first_error(error))
    return log


def _run(log: MlperfRunLog, timed: Sequence[Event], inside: Sequence[Event], start: Event, stop: Event | None) -> ConvertedRun:
    evaluations: list[tuple[int, float, float]] = []
    block_from, blocks_ms, train_ms, rates = None, 0.0, None, []
    for event in inside:
        if event.key == "block_start":
            block_from = event.time_ms
        elif event.key == "block_stop":
            blocks_ms += max(0.0, event.time_ms - block_from) if block_from is not None else 0.0
            block_from = None
        elif event.key == "eval_accuracy":
            loss, samples = finite(event.value), event.samples
            if loss is None or samples is None:
                shown = str(event.value)[:40], str(event.metadata.get("samples_count"))[:40]
                log.problem(event.line, f"eval_accuracy is {shown[0]!r} after {shown[1]!r} samples; both must be numbers")
                continue
            evaluations.append((samples, (event.time_ms - start.time_ms) / MS, loss))
            train_ms = blocks_ms
        elif isinstance(event.value, dict) and (rate := finite(event.value.get("throughput"))) is not None:
            rates.append(rate)
    status = _status(log, stop, [event.value for event in inside if event.key == "eval_accuracy"])
    last, seed = evaluations[-1][0] if evaluations else None, finite(log.settings.get("seed"))
    trained, times, losses = zip(*evaluations, strict=True) if evaluations else ((), (), ())
    return ConvertedRun(
        file=log.file.rsplit("/", 1)[-1],
        status=status,
        seed=None if seed is None else int(seed),
        init_s=_init_s(timed),
        time_to_target_s=(stop.time_ms - start.time_ms) / MS if stop and status == "ok" else None,
        samples=last if stop is None or stop.samples is None else stop.samples,
        trained_samples=last,
        train_s=None if train_ms is None else train_ms / MS,
        logged_samples_per_s=tuple(rates),
        curve=EvalCurve(samples=trained, at_s=times, eval_loss=losses),
    )


def _init_s(timed: Sequence[Event]) -> float | None:
    """Return the seconds from the first init_start to the first init_stop after it."""
    begun = next((event for event in timed if event.key == "init_start"), None)
    later = (event.time_ms for event in timed if begun and event.key == "init_stop" and event.line > begun.line)
    return next(((stop_ms - begun.time_ms) / MS for stop_ms in later if begun and stop_ms >= begun.time_ms), None)


def _status(log: MlperfRunLog, stop: Event | None, evaluated: Sequence[Any]) -> RunStatus:
    """Return the end of a run. The last evaluation of a success must be a loss at the target."""
    if stop is None or stop.metadata.get("status") != "success":
        return "incomplete" if stop is None else "aborted"
    stated = finite(log.settings.get("target_accuracy"))
    target = MLPERF_TARGET_EVAL_LOSS if stated is None else stated
    loss = finite(evaluated[-1]) if evaluated else None
    if loss is not None and 0 < loss <= target:
        return "ok"
    last = f"the last evaluation is {str(evaluated[-1])[:40]}, not a loss from 0 to {target:g}" if evaluated else None
    reason = last or "there is no evaluation before it"
    log.problem(stop.line, f"run_stop says success and {reason}; kept as a run that missed the target")
    return "missed"


# Power ---------------------------------------------------------------------------------------------

CLOCKS_AGREE = 0.9
"""Share of a run that readings must span for the clocks of both logs to count as equal."""


class PowerLog(NamedTuple):
    """The log of one power meter."""

    readings: tuple[tuple[float, float], ...]
    """Milliseconds since 1970, and watts; by time."""
    stated: dict[str, Any]
    """Fields of a reading that the log states: the meter, where and how it measures, and the submitter's estimate."""


def read_power(meter: str, file: str, content: bytes, problems: list[LogProblem]) -> PowerLog:
    """Return the contents of a meter's log, `node_<n>` or `sw_<n>`; invalid content becomes problems."""
    readings: list[tuple[float, float]] = []
    stated: dict[str, Any] = {"meter": meter, "kind": "switch" if meter.startswith("sw") else "node"}
    for event in events(content, file, problems, POWER):
        number = finite(event.value)
        if number is None or number <= 0:
            problems.append(LogProblem(file, event.line, f"{event.key} is {str(event.value)[:40]!r}, not a positive number; ignored"))
        elif event.key == "power_reading":
            readings.append((event.time_ms, number))
        elif event.key == "interconnect_power_est":
            stated["watts"] = number
        else:
            stated["conversion_efficiency"] = number if number <= 1 else None
            if (where := event.metadata.get("measurement_type")) in {"AC", "DC"}:
                stated["measurement"] = where
    return PowerLog(tuple(sorted(readings)), stated)


def power_of_run(log: PowerLog, run: MlperfRunLog, stated: str | None) -> PowerReading | None:
    """Return the mean power of a meter over a run, or None without readings. `stated` is where the submitter measured, AC or DC.

    Each reading counts for the time since the one before. If the readings do not span the run, the clocks of the two logs differ, and
    all readings count.
    """
    within, readings = False, log.readings
    if run.start_ms is not None and run.stop_ms is not None:
        inside = tuple(reading for reading in readings if run.start_ms <= reading[0] <= run.stop_ms)
        within = len(inside) > 1 and inside[-1][0] - inside[0][0] >= CLOCKS_AGREE * (run.stop_ms - run.start_ms)
        readings = inside if within else readings
    times, watts = zip(*readings, strict=True) if readings else ((), ())
    lasted_ms = [later - earlier for earlier, later in pairwise(times)]
    fields = {"measurement": stated, **log.stated, "readings": len(readings), "within_run": within}
    if sum(lasted_ms) > 0:
        fields["watts"] = sum(map(mul, lasted_ms, watts[1:])) / sum(lasted_ms)
    return PowerReading.model_validate(fields) if "watts" in fields else None


# The importer --------------------------------------------------------------------------------------

NAME = "llama2_70b_lora"
LARGEST_SCALING = 10
PLACE = re.compile(
    r"(?:.*/)?(?:training_results_)?(?P<round>v\d{1,3}\.\d{1,3})/(?P<submitter>[^/]+)/"
    rf"(?:systems/(?P<description>[^/]+)\.json|results/(?P<system>[^/]+)/{NAME}/"
    r"(?:(?P<log>result_[^/]+)\.txt|(?P<scaling>scaling\.json)|power/(?P<run>result_[^/]+)/(?P<meter>(?:node|sw)_\d+)\.txt))"
)
"""<round>/<submitter>/systems/<system>.json, and in <round>/<submitter>/results/<system>/llama2_70b_lora: result_<n>.txt, scaling.json and
power/result_<n>/node_<k>.txt or sw_<k>.txt."""
POWER_PLACE = re.compile(r"[-_](ac|dc)[-_]power", re.IGNORECASE)
"""The submitter's folder states AC or DC where the logs do not."""
EXPECTED = f"logs are expected as <round>/<submitter>/results/<system>/{NAME}/result_<n>.txt, such as v5.1/Dell/results/..."

Place = tuple[str, str, str]
"""Round, submitter, system folder."""


def mlperf(request: Request) -> None:
    """Convert MLPerf Training logs of llama2_70b_lora in folders: one file per entry, `<round>/<id>.json`.

    Raw values of each run are kept; statistics are computed when they are shown. The results are an unofficial conversion, not verified by
    MLCommons Association.
    """
    request.known(())
    root = project_root()
    folder = root / "data" / "converted" / "mlperf" if request.out is None else request.out
    entries = read_entries(request.files, FactBase.of_root(root))
    for result in entries.results:
        write_out(folder / result.round / f"{result.id}.json", canonical_json(result))
    for problem in entries.problems:
        say(str(problem))
    if not entries.results:
        say(f"{', '.join(map(str, request.files))}: no entry was found; {EXPECTED}")
    rows = [
        (each.id, each.round, len(each.runs), sum(run.status == "ok" for run in each.runs), each.conditions.accelerator or "no card")
        for each in entries.results
    ]
    print_table(["entry", "round", "runs", "reached the target", "accelerator"], rows)
    unresolved = {each.system.accelerator_printed or "no name" for each in entries.results if each.conditions.accelerator is None}
    if unresolved:
        say(f"no card in data/accelerators for {len(unresolved)} names: {', '.join(sorted(unresolved))}")
    say(f"{counted(entries.logs, 'log')}; {counted(len(entries.results), 'file')} written to {folder}")
    raise typer.Exit(Exit.OK if entries.results and all(problem.noted for problem in entries.problems) else Exit.INVALID)


# Entries -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Entries:
    """The contents of folders."""

    results: list[ConvertedResult] = field(default_factory=list)
    """By round, submitter and system."""
    problems: list[LogProblem] = field(default_factory=list)
    """Unreadable or suspicious content."""
    logs: int = 0

    def problem(self, file: str, reason: str, *, noted: bool = False) -> None:
        """Add a problem of a file."""
        self.problems.append(LogProblem(file, None, reason, noted))


@dataclass(slots=True)
class _Found:
    """The files of one entry."""

    logs: list[MlperfRunLog] = field(default_factory=list)
    description: str = ""
    """Place of the system description."""
    raw: dict[str, Any] = field(default_factory=dict)
    """The system description as read."""
    scaling: float | None = None
    """Factor of `scaling.json`."""
    power: dict[str, list[PowerLog]] = field(default_factory=dict)
    """Logs of power meters by run."""


def read_entries(sources: Sequence[Path], facts: FactBase) -> Entries:
    """Return all entries of the benchmark in folders; an entry may be spread over several."""
    entries, found, seen = Entries(), dict[Place, _Found](), set[str]()
    for source in sources:
        if not source.is_dir():
            raise TunemarkError(str(source), "", f"no such folder; {EXPECTED}")
        for path in sorted(source.rglob("*")):
            name = path.relative_to(source).as_posix()
            place = PLACE.fullmatch(name)
            if place is None or path.is_symlink() or not path.is_file():
                continue
            if name in seen:
                entries.problem(name, "is there already; the first one counts", noted=True)
                continue
            key = place["round"], place["submitter"], place["description"] or place["system"]
            _add(found.setdefault(key, _Found()), place, path.read_bytes(), entries)
            entries.logs += bool(place["log"])
            seen.add(name)
    by_id: dict[str, ConvertedResult] = {}
    for key in sorted(key for key, files in found.items() if files.logs):
        entries.problems.extend(problem for log in found[key].logs for problem in log.problems)
        result = _entry(key, found[key], entries, facts)
        if result is not None and by_id.setdefault(result.id, result) is not result:
            entries.problem(result.folder, f"has the id {result.id} of {by_id[result.id].folder}; left out")
    # Entries that share their runs are resubmitted, or listed twice.
    runs = {result.id: repr([(run.seed, run.time_to_target_s, run.curve) for run in result.runs]) for result in by_id.values()}
    for result in by_id.values():
        others = [name for name, same in runs.items() if same == runs[result.id] and name != result.id]
        shared = (f"Its runs are those of {', '.join(others)}.",) if others else ()
        entries.results.append(result.model_copy(update={"notes": (*result.notes, *shared)}))
    return entries


def _add(files: _Found, place: re.Match[str], text: bytes, entries: Entries) -> None:
    name = place[0]
    if place["log"]:
        files.logs.append(read_run(name, text))
        return
    if place["meter"]:
        files.power.setdefault(place["run"], []).append(read_power(place["meter"], name, text, entries.problems))
        return
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        entries.problem(name, "is not a JSON object; left out")
    elif place["description"]:
        files.description, files.raw = name, content
    elif (factor := finite(content.get("scaling_factor"))) is not None and 1 <= factor < LARGEST_SCALING:
        files.scaling = factor
    else:
        entries.problem(name, f"scaling_factor is not a number from 1 to {LARGEST_SCALING}; the score is left unscaled")


def entry_id(key: Place) -> str:
    """Return the id of an entry: `mlperf-v5.1-<submitter>-<system folder>`, in small letters, digits, dots and dashes."""
    slugs = (re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-.") for part in key[1:])
    return "-".join(["mlperf", key[0], *(slug or "x" for slug in slugs)])[:200]


def _entry(key: Place, files: _Found, entries: Entries, facts: FactBase) -> ConvertedResult | None:
    """Return the result of an entry, or None if none of its logs is usable."""
    folder = files.logs[0].file.rsplit("/", 1)[0]
    files.logs.sort(key=lambda log: _natural(log.file))
    with_run = [log for log in files.logs if log.run is not None]
    if not with_run:
        entries.problem(folder, "none of its logs is of a run; the entry is left out")
        return None
    notes: list[str] = []
    if len(with_run) < len(files.logs):
        lost = [printable(log.file.rsplit("/", 1)[-1]) for log in files.logs if log.run is None]
        notes.append(f"{len(lost)} of its {len(files.logs)} logs hold no run and are left out: {', '.join(lost)}."[:500])
    if not files.description:
        entries.problem(folder, f"has no system description systems/{key[2]}.json; machine unknown")
    system = system_of(files.description, files.raw, key[2], entries)
    card = facts.recognise_accelerator(system.accelerator_printed) if system.accelerator_printed else None
    settings, stated = agreed(with_run, notes), POWER_PLACE.search(key[1])
    target, runs = finite(settings.get("target_accuracy")), []
    for log, run in ((log, log.run) for log in with_run if log.run is not None):
        meters = files.power.get(run.file.removesuffix(".txt"), [])
        meters.sort(key=lambda each: (each.stated["kind"], _natural(each.stated["meter"])))
        readings = (power_of_run(meter, log, stated[1].upper() if stated else None) for meter in meters)
        runs.append(run.model_copy(update={"power": tuple(reading for reading in readings if reading is not None)}))
    try:
        return ConvertedResult(
            id=entry_id(key),
            round=key[0],
            division=printed(files.raw.get("division")) or printed(settings.get("submission_division")),
            submitter=printable(key[1]),
            folder=printable(folder),
            system=system,
            conditions=conditions_of(system, settings, software_of(files.raw), card),
            target_eval_loss=MLPERF_TARGET_EVAL_LOSS if target is None else target,
            runs=tuple(runs),
            scaling_factor=files.scaling,
            notes=(*notes, *_memory_contradiction(system, card)),
        )
    except ValidationError as error:
        entries.problem(folder, f"{first_error(error)}; the entry is left out")
        return None


def _memory_contradiction(system: ConvertedSystem, card: AcceleratorCard | None) -> Iterator[str]:
    """Yield a note if the description gives another memory than the card: such fields are copied between systems."""
    size = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(GB|GiB|G|MiB)", system.accelerator_memory_printed or "")
    if card is None or card.memory_gib is None or not size:
        return
    gib = float(size[1]) / (1_024 if size[2] == "MiB" else 1)
    if abs(gib - card.memory_gib) > card.memory_gib / 10:
        yield f"The system description gives {system.accelerator_memory_printed} of memory to a {card.name}, which has {card.memory_gib:g} GiB."


def _natural(file: str) -> tuple[int, str]:
    """Return a key that sorts result_10 after result_9."""
    digits = re.search(r"(\d{1,9})\D*$", file)
    return (int(digits[1]) if digits else -1, file)


# Conditions: stated by the logs, or fixed by the rules of the benchmark ----------------------------


def conditions_of(system: ConvertedSystem, settings: dict[str, Any], software: dict[str, str], card: AcceleratorCard | None) -> Conditions:
    """Return the conditions of an entry, from its logs, its system description and the rules of the benchmark."""
    numbers = {name: count(settings.get(key)) or finite(settings.get(key)) for name, key in BENCHMARK["settings"].items()}
    fixed = dict(BENCHMARK["conditions"])
    assumed, no_target = fixed.pop("assumed"), finite(settings.get("target_accuracy")) is None
    return Conditions(
        **fixed,
        accelerator=card and card.key,
        accelerator_count=system.nodes * system.accelerators_per_node if system.nodes and system.accelerators_per_node else None,
        gradient_accumulation=count(settings.get("gradient_accumulation_steps")) or None,
        global_batch=count(settings.get("global_batch_size")) or None,
        framework=software,
        settings={"optimizer": "adamw", **{name: number for name, number in numbers.items() if number is not None}},
        assumed=(*assumed, *(["target_eval_loss"] if no_target else [])),
    )


def agreed(logs: Sequence[MlperfRunLog], notes: list[str]) -> dict[str, Any]:
    """Return the settings that all runs of an entry share; a setting that differs between runs is unknown and noted."""
    shared: dict[str, Any] = {}
    for key in sorted({key for log in logs for key in log.settings} - {"seed"}):
        values = {repr(log.settings[key]): log.settings[key] for log in logs if key in log.settings}
        if len(values) == 1:
            [shared[key]] = values.values()
        else:
            notes.append(f"{key} differs between its runs: {', '.join(sorted(values))}"[:500])
    return shared


# System descriptions: the machine in the submitter's words ------------------------------------------

KEYS = {name: str(field.description).split("`")[1] for name, field in ConvertedSystem.model_fields.items() if name != "notes"}
"""Our field -> key of the description, which the docstring of the field names."""
COUNTS = ("nodes", "accelerators_per_node", "host_processors_per_node")
NOTES = ("hw_notes", "sw_notes")
EMPTY = {"", "n/a", "none", "-"}
LONGEST = 2_000


def system_of(file: str, raw: dict[str, Any], folder: str, entries: Entries) -> ConvertedSystem:
    """Return the machine of a description; invalid counts are unknown and reported."""
    fields: dict[str, Any] = {name: printed(raw.get(key)) for name, key in KEYS.items()}
    fields["name"] = fields["name"] or printable(folder)
    for name in COUNTS if file else ():
        if not re.fullmatch("0*[1-9][0-9]{0,8}", fields[name] or ""):
            entries.problem(file, f"{KEYS[name]} is {str(raw.get(KEYS[name]))[:40]!r}, not a positive whole number; left unknown")
            fields[name] = None
    return ConvertedSystem(**fields, notes=tuple(text for key in NOTES if (text := printed(raw.get(key)))))


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
