"""Formats of training logs: trainer_state.json, folders of LLaMA-Factory, logs of torchtune and of TunemarkCallback, exports of Weights & Biases.

Also the configurations of trainers, which state conditions.

A format turns its files into entries, and `gather` reads all entries with a table of columns. Everything else is read as the text that a
trainer prints (`printed_log`). Nothing in a log is ever executed, and a line that cannot be read never stops the rest.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from tunemark.collector.audit.interval import duration
from tunemark.collector.importers.import_io import LogProblem, read_text
from tunemark.collector.importers.own_log import COLUMNS, FORMATS, SETTINGS, Entry, OwnLog, Stated, gather
from tunemark.collector.importers.printed_log import FINAL, TRAINER, read_printed_log
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.records.plan import WARMUP_STEPS
from tunemark.schema.records.published import Claim


def read_log(path: Path, configuration: Path | None = None) -> list[OwnLog]:
    """Return the trainings of a file, a folder or standard input (`-`), in order; a configuration of the trainer states their conditions.

    Raises TunemarkError with exit code 3 if nothing of a training is in it.
    """
    trainings = _trainings(path)
    if configuration is not None:
        given = _content(configuration, "YAML", yaml.safe_load)
        for log in trainings:
            _add_conditions(log, given, str(configuration))
    return trainings


def _trainings(path: Path) -> list[OwnLog]:
    if path.is_dir():
        return [_llama_factory(path)]
    text = read_text(str(path)).removeprefix("\ufeff")
    first = text.lstrip().partition("\n")[0]
    if path.suffix == ".csv" or (first.startswith("{") and (f'"{TIME}"' in text or f'"{TRAINED}"' in text)):
        return [_history(path, text)]
    if path.suffix == ".json":
        log = OwnLog(str(path), trainer="Hugging Face Trainer")
        _add_state(log, path)
        return [log]
    if any(TORCHTUNE_LINE.fullmatch(line.strip()) for line in text.splitlines()):
        return [_torchtune(path, text)]
    return read_printed_log(text, "standard input" if str(path) == "-" else str(path))


def _content(path: Path, kind: str, load: Callable[[str], Any]) -> dict[str, Any]:
    """Return the object in a file; raises TunemarkError (exit code 3) for a file that cannot be loaded."""
    try:
        content = load(read_text(str(path)).removeprefix("\ufeff"))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise TunemarkError(str(path), "", f"not valid {kind}: {' '.join(str(error).split())}", exit_code=Exit.INVALID) from error
    return content if isinstance(content, dict) else {}


def _json_lines(log: OwnLog, path: Path, text: str) -> Iterator[Entry]:
    """Yield the objects of JSON lines; a line that is no object is a problem."""
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            row = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            yield Entry(row, number)
        else:
            log.problems.append(LogProblem(str(path), number, "not a JSON object; left out"))


# trainer_state.json of the HF Trainer, and of trainers built on it ------------------------------------

STATE = "trainer_state.json"
SPEED = {name for name in TRAINER if name.startswith("train_") and name != "train_loss"}
"""Figures of speed: they are taken from one entry of the log, since intermediate entries have those of their moment."""
TOKENS = {name for name, column in TRAINER.items() if column.quantity == "tokens"}


def _add_state(log: OwnLog, path: Path) -> None:
    """Add the figures of a state: speed and tokens of the last entry with a time, others from the last entry that has them."""
    state = _content(path, "JSON", json.loads)
    history = state.get("log_history")
    if not isinstance(history, list):
        raise TunemarkError(str(path), "log_history", "is missing: not the state of a Trainer", exit_code=Exit.INVALID)
    entries = [entry for entry in history if isinstance(entry, dict)]
    gather(log, [Entry({name: value for name, value in state.items() if value is not None})], COLUMNS["state"])
    done, planned, batch = (state.get(name) for name in ("global_step", "max_steps", "train_batch_size"))
    if isinstance(done, int) and isinstance(planned, int) and 0 < done < planned:
        log.claim("total_steps", planned)
    timed = max((index for index, entry in enumerate(entries) if FINAL in entry), default=None)
    log.finished = timed is not None and "train_loss" in entries[timed]
    if timed is None:
        log.notes.append("The state has no training time: it is that of a checkpoint.")
        log.problem(None, "no train_runtime: the state of a checkpoint; the output folder has the one with times", noted=True)
    for index, entry in enumerate(entries):
        # Tokens that were counted after the timed entry belong to another session.
        other = {"epoch", *(SPEED if index != timed else ()), *(TOKENS if timed is not None and index > timed else ())}
        entries[index] = {name: value for name, value in entry.items() if name not in other}
    gather(log, map(Entry, entries), TRAINER, ("loss",))
    if isinstance(batch, int) and batch > 0:
        log.stated["micro_batch"] = batch


# Output folders of LLaMA-Factory ----------------------------------------------------------------------

RESULTS, STEPS = "all_results.json", "trainer_log.jsonl"
ARGUMENTS = ("training_args.yaml", "training_args.yml", "config.yaml")


def _llama_factory(path: Path) -> OwnLog:
    """Return the training of an output folder: its state, its results and its log of steps; its arguments state conditions."""
    log = OwnLog(str(path), trainer="LLaMA-Factory")
    state, results, steps = path / STATE, path / RESULTS, path / STEPS
    if not any(file.is_file() for file in (state, results, steps)):
        raise TunemarkError(str(path), "", f"has neither {STATE} nor {RESULTS} nor {STEPS}", exit_code=Exit.INVALID)
    if state.is_file():
        _add_state(log, state)
        log.trainer = "LLaMA-Factory" if steps.is_file() else "Hugging Face Trainer"
    if results.is_file():
        gather(log, [Entry(_content(results, "JSON", json.loads))], TRAINER | COLUMNS["state"])
        log.finished = "train_time_s" in log.claims
        log.notes = [] if log.finished else log.notes
    if steps.is_file():
        _add_steps(log, steps)
    arguments = next((path / name for name in ARGUMENTS if (path / name).is_file()), None)
    if arguments is not None:
        _add_conditions(log, _content(arguments, "YAML", yaml.safe_load), str(arguments))
    return log


def _add_steps(log: OwnLog, path: Path) -> None:
    """Add tokens, time and memory of the log of steps, where other files lack them."""
    lines = _json_lines(log, path, read_text(str(path)))
    entries = [entry for entry in lines if not {"eval_loss", "predict_loss"} & entry.values.keys()]
    gather(log, entries, COLUMNS["steps"], () if log.losses else ("loss",))
    last = entries[-1].values if entries else {}
    elapsed, planned = last.get("elapsed_time"), last.get("total_steps")
    if "train_time_s" not in log.claims and isinstance(elapsed, str) and (seconds := duration(elapsed)) is not None:
        log.claim("train_time_s", seconds, printed=f"{seconds:g}", note=f"Printed as {elapsed}, in whole seconds.")
    if "steps" in log.claims and isinstance(planned, int) and planned > log.claims["steps"].value:
        log.claim("total_steps", planned)
        log.finished = False


# Configurations of trainers ---------------------------------------------------------------------------


def _add_conditions(log: OwnLog, given: dict[str, Any], file: str) -> None:
    """Add the conditions in the arguments of a training; raises TunemarkError (exit code 3) for another task."""
    known = {format_["texts"]["model"]: format_ for format_ in FORMATS["configurations"]}
    meaning = next((format_ for name, format_ in known.items() if name in given), None)
    if meaning is None:
        trainers = " or ".join(format_["trainer"] for format_ in known.values())
        log.problem(None, f"{file} has neither {' nor '.join(known)}, so it is no configuration of {trainers}")
        return
    other = next((name for name in meaning.get("refuse", ()) if given.get(name)), None)
    if other is not None:
        raise TunemarkError(other, given[other], "is another task; records are of supervised fine-tuning", exit_code=Exit.INVALID)
    log.trainer = meaning["trainer"]
    stated: Stated = {}
    for kind, arguments in ((int, meaning["numbers"]), (str, meaning["texts"])):
        stated |= {name: value for name, path in arguments.items() if isinstance(value := _argument(given, path), kind) and value}
    for rule in meaning["rules"]:
        named = [bool(value) for name, value in given.items() if str(name).startswith(tuple(rule.get("begins", ())))]
        if all(_is(given.get(name), wanted) for name, wanted in rule.get("when", {}).items()) and ("begins" not in rule or any(named)):
            stated.setdefault(rule["condition"], rule["value"])
    if "method" not in stated:
        name = meaning["method"]
        log.problem(None, f"{name} is {str(given.get(name))[:40]!r}, which is no known method; give --method", noted=True)
    log.stated |= stated


def _argument(given: Any, path: str) -> Any:  # noqa: ANN401 - any value of a configuration
    """Return the argument at a dotted path; None if it is not given."""
    for part in path.split("."):
        first = isinstance(given, list) and part == "0" and bool(given)
        given = given[0] if first else given.get(part) if isinstance(given, dict) else None
    return given


def _is(value: object, wanted: object) -> bool:
    return bool(value) is wanted if isinstance(wanted, bool) else str(value).lower() == str(wanted)


# Logs of torchtune's DiskLogger: `Step 5 | loss:0.35 tokens_per_second_per_gpu:9077.2 peak_memory_alloc:85.5` --------------------

TORCHTUNE_LINE = re.compile(r"Step (?P<step>\d{1,12}) \|(?P<rest>.*)")
DEVICE_RATE = "tokens_per_second_per_gpu"


def _torchtune(path: Path, text: str) -> OwnLog:
    """Return the training of a log: the median rate of its steps without the first ten, for one device."""
    log = OwnLog(str(path), trainer="torchtune")
    entries: list[Entry] = []
    for number, line in enumerate(text.splitlines(), start=1):
        match = TORCHTUNE_LINE.fullmatch(line.strip())
        pairs = [pair.rpartition(":") for pair in match["rest"].split()] if match else []
        if match and all(colon for _, colon, _ in pairs):
            entries.append(Entry({name: value for name, _, value in pairs} | {"step": match["step"]}, number))
        elif line.strip():
            log.problem(number, f"{line.strip()[:40]!r} is not `Step N | name:value ...`; left out")
    if any(int(later.values["step"]) <= int(earlier.values["step"]) for earlier, later in pairwise(entries)):
        log.problem(None, "steps do not increase: the file has more than one training; keep the lines of one")
    rates = gather(log, entries, COLUMNS["torchtune"], ("loss",)).get(DEVICE_RATE, [])
    steady = rates[WARMUP_STEPS:] if len(rates) >= 2 * WARMUP_STEPS else rates
    if steady:
        note = f"Median of {len(steady)} logged steps after {len(rates) - len(steady)} of warm-up. Tokens with a label are counted."
        log.device_rate = Claim(value=median(steady), printed=f"{median(steady):.9g}", note=note)
    else:
        log.problem(None, f"no {DEVICE_RATE} in any line, so there is no rate", noted=True)
    return log


# Histories: JSON lines of TunemarkCallback, and exports of Weights & Biases as CSV (`run.history().to_csv()`) or JSON lines (`run.scan_history()`) ------

TIME, TRAINED = "_runtime", "trained_s"
"""Seconds since the start of the run, and those of training alone, which only TunemarkCallback knows."""
STEP = ("train/global_step", "trainer/global_step", "global_step")
LOSS = ("train/loss", "loss")
COUNTS = ("train/num_input_tokens_seen", "train/num_tokens", "num_input_tokens_seen")
Point = tuple[float, float, float | None]
"""Seconds, optimizer steps, and tokens so far."""


def _history(path: Path, text: str) -> OwnLog:
    """Return the training of a history: the work between two logged rows over the time between them, without the first ten steps."""
    log = OwnLog(str(path), trainer="Weights & Biases")
    rows = _json_lines(log, path, text) if text.lstrip().startswith("{") else _csv_rows(log, text)
    entries = [Entry({name: value for name, value in row.items() if value not in (None, "")}, line) for row, line in rows]
    conditions = [given for entry in entries if isinstance(given := entry.values.get("conditions"), dict)]
    if conditions:
        log.trainer = "Hugging Face Trainer, timed by TunemarkCallback"
        log.finished = any(entry.values.get("finished") for entry in entries)
        log.stated = {name: SETTINGS[name](name, str(value)) for name, value in conditions[0].items() if name in SETTINGS}
    gather(log, entries, COLUMNS["history"], LOSS)
    counted = "evaluations not counted" if conditions else "evaluations included"
    _add_speed(log, [point for entry in entries if (point := _point(entry)) is not None], counted)
    return log


def _csv_rows(log: OwnLog, text: str) -> Iterator[Entry]:
    """Yield the rows. Raises TunemarkError (exit code 3) if the file has no times, as the export of a chart."""
    reader = csv.reader(io.StringIO(text, newline=""))
    header = next(reader, [])
    if TIME not in header:
        chart = next((f"{name!r} is a column of a chart, which has no times" for name in header if " - " in name), "there are no times")
        fix = f"is missing: {chart}; export the history of one run: `run.history().to_csv(...)`"
        raise TunemarkError(f"{log.file}:1", TIME, fix, exit_code=Exit.INVALID)
    for cells in reader:
        if len(cells) == len(header):
            yield Entry(dict(zip(header, cells, strict=True)), reader.line_num)
        elif cells:
            log.problem(reader.line_num, f"{len(cells)} cells for {len(header)} columns; left out")


def _point(entry: Entry) -> Point | None:
    """Return the point of a row of training; None for rows of evaluations and of the system."""
    names = [next((name for name in group if name in entry.values), None) for group in ((TRAINED, TIME), STEP, COUNTS)]
    if None in names[:2] or not any(mark in entry.values for mark in (TRAINED, *LOSS)):
        return None
    try:
        time, step, tokens = (None if name is None else float(entry.values[name]) for name in names)
    except (TypeError, ValueError):
        return None
    return None if time is None or step is None else (time, step, tokens)


def _add_speed(log: OwnLog, points: Sequence[Point], counted: str) -> None:
    """Add steps, and speed between the first point after the warm-up and the last point."""
    if not points:
        log.problem(None, f"no row has {TIME}, a loss and one of {', '.join(STEP)}, so there is no speed", noted=True)
        return
    if any(later[1] < earlier[1] or later[0] < earlier[0] for earlier, later in pairwise(points)):
        log.problem(None, "steps or times decrease: more than one run, or a resumed one; export one session")
        return
    last = points[-1]
    log.claim("steps", last[1])
    start = next((point for point in points[: len(points) // 2 + 1] if point[1] >= WARMUP_STEPS), points[0])
    seconds, steps = last[0] - start[0], last[1] - start[1]
    if seconds <= 0 or steps <= 0:
        log.problem(None, "one row of training only, so there is no speed", noted=True)
        return
    note = f"From step {start[1]:g} to {last[1]:g}: {steps:g} steps in {seconds:.6g} s, {counted}."
    log.claim("step_time_s", seconds / steps, printed=f"{seconds / steps:.6g}", note=note)
    if start[2] is not None and last[2] is not None and last[2] > start[2]:
        tokens = last[2] - start[2]
        log.claim("tokens_per_s", tokens / seconds, printed=f"{tokens / seconds:.6g}", note=f"{tokens:,.0f} tokens. {note}")
