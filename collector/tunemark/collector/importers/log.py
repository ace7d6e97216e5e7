"""The log of a person's own training against the collection: its figures, utilisation, audit and prediction.

Formats of logs are trainer_state.json, folders of LLaMA-Factory, logs of torchtune and of TunemarkCallback, and exports of Weights & Biases;
configurations of trainers state conditions. A format turns its files into entries, and `gather` reads all entries with a table of columns.
Everything else is read as the text that a trainer prints. Nothing in a log is ever executed, and a line that cannot be read never stops the rest.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import typer
import yaml

from tunemark.collector.audit.evidence import Evidence
from tunemark.collector.audit.interval import duration
from tunemark.collector.audit.load import audited_record
from tunemark.collector.audit.published_shape import published_shape
from tunemark.collector.audit.rule import Finding, audit
from tunemark.collector.commands.audit import print_finding
from tunemark.collector.commands.options import named_accelerators, named_as, named_model
from tunemark.collector.importers.import_io import LogProblem, Request, option_of, read_text, write_out
from tunemark.collector.importers.own_log import (
    COLUMNS,
    FINAL,
    FORMATS,
    SETTINGS,
    TRAINER,
    Entry,
    OwnLog,
    Stated,
    gather,
    read_printed_log,
    record_of,
)
from tunemark.collector.predict.calibration_rows import calibrate
from tunemark.collector.predict.estimate import read_evidence, unseen
from tunemark.collector.predict.fit import Observed
from tunemark.schema import formats
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.option_rates import unmeasured
from tunemark.schema.physics.work import Missing
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.records.base import canonical_json, flattened
from tunemark.schema.records.plan import WARMUP_STEPS
from tunemark.schema.records.published import Claim, PublishedResult
from tunemark.schema.throughput import Combination, interval_of, predict
from tunemark.schema.vocabulary import SoftwareLevel
from tunemark.terminal import print_json, print_table, say

GIVEN = ("samples_per_s", "step_time_s")
"""Figures of the log that need no derivation."""


def log(request: Request) -> None:
    """Read the log of a training, and compare it with the collection: figures, utilisation, audit, prediction.

    Reads `trainer_state.json` of the Hugging Face Trainer and of TRL, output folders of LLaMA-Factory, logs of torchtune, histories exported
    from Weights & Biases (CSV or JSON lines), and the text that a trainer prints; `-` is standard input. A second file may be
    the configuration (YAML) of axolotl or LLaMA-Factory, which states the conditions. A setting counts more than a condition in the log.
    A record is written only with `--out`, such as `run.json`.
    """
    given, facts = {name: SETTINGS[name](option_of(name), text) for name, text in request.known(SETTINGS).items()}, FactBase.of_project()
    # Names are checked before the log is read.
    for card, count in named_accelerators(facts, [given["accelerator"]]).values() if "accelerator" in given else ():
        if count not in {None, given.setdefault("devices", count or 1)}:
            raise TunemarkError("--devices", given["devices"], f"differs from {count} in the name of the accelerator; give one of them")
        given["accelerator"] = card.key
    if "model" in given:
        with named_as(option_of("model")):
            model = named_model(facts, given["model"])
        given["model"], facts = model.key, facts if model.key in facts.models else replace(facts, own_models=(model,))
    configurations = [file for file in request.files if file.suffix in {".yml", ".yaml"}]
    logs = [file for file in request.files if file not in configurations]
    if len(logs) != 1 or len(configurations) > 1:
        raise TunemarkError("FILE", ", ".join(map(str, request.files)), "give one log, and at most one configuration (YAML) of its trainer")
    training = read_log(logs[0], *configurations)
    result, answer = _answer(training, given, facts)
    for problem in training.problems:
        say(str(problem))
    if request.out is not None:
        _write(request.out, result)
    if request.as_json:
        print_json(answer)
    else:
        _print(result, answer)
    raise typer.Exit(Exit.OK if all(problem.noted for problem in training.problems) else Exit.INVALID)


def _answer(training: OwnLog, given: Stated, facts: FactBase) -> tuple[PublishedResult | None, dict[str, Any]]:
    """Return the record of a training and what the collection says about it, as data; without a method, its figures alone."""
    stated, result, judged = training.stated | given, None, dict[str, Any]()
    if "method" in stated:
        result = record_of(training, given, facts)
        judged = judge(result, stated.get("software", "plain"), facts)
    answer: dict[str, Any] = {
        "title": f"{training.trainer}, {training.file}",
        "figures": {name: claim.model_dump(mode="json") for name, claim in (result or training).claims.items()},
        "losses": training.losses,
        "problems": [asdict(problem) for problem in training.problems],
    }
    return result, answer | ({"record": result.model_dump(mode="json")} if result else {}) | judged


# Judgement --------------------------------------------------------------------------------------------


def judge(result: PublishedResult, level: SoftwareLevel, facts: FactBase) -> dict[str, Any]:
    """Return utilisation, findings and prediction of a record."""
    run = audited_record(result, facts)
    evidence = Evidence((run,), (), facts, (result,))
    findings = audit(evidence)
    calibration = calibrate(evidence, findings)
    figures = {name: figure for name, figure in calibration.figures(run).items() if name not in {*GIVEN} & result.claims.keys()}
    derived = {name: {"value": value, "calculation": calculation} for name, (value, calculation) in figures.items()}
    prediction: dict[str, Any] = {"software": level}
    judged: dict[str, Any] = {"derived": derived, "findings": [asdict(finding) for finding in findings], "prediction": prediction}
    config = _combination(result, calibration.by_result.get(result.id), level, facts)
    if config is None:
        prediction["no_data"] = "accelerator, model, row length or method is not stated, or its method is not covered"
        return judged
    known = read_evidence(facts.root.parent, facts, say)
    shape, rate = config.shape, figures.get("tokens_per_s", (None, ""))[0]
    reason = unmeasured(known.results, shape.model, shape.method, config.accelerator, shape.sequence_length)
    estimate = Missing(reason) if reason else predict(known.effects, config)
    if isinstance(estimate, Missing):
        prediction["no_data"] = estimate.reason
    else:
        predicted, new = interval_of(estimate, config.devices), unseen(known.results, config.accelerator, config.shape.model, level)
        times = None if rate is None else rate / predicted.value
        prediction |= {"tokens_per_s": asdict(predicted), "unseen": list(new), "measured_over_predicted": times}
    return judged


def _combination(result: PublishedResult, observed: Observed | None, level: SoftwareLevel, facts: FactBase) -> Combination | None:
    """Return the configuration to predict, with any training loop of the level; None if it is not stated."""
    if observed is not None:
        return replace(observed.config, level=level, stack="", release="")
    conditions = result.conditions.model_copy(update={"micro_batch": result.conditions.micro_batch or 1})
    shape, accelerator = published_shape(conditions, facts, None), facts.accelerators.get(conditions.accelerator or "")
    if shape is None or accelerator is None:
        return None
    return Combination(accelerator, conditions.accelerator_count or 1, shape, level)


# Output -----------------------------------------------------------------------------------------------


def _write(out: Path, result: PublishedResult | None) -> None:
    if result is None:
        raise TunemarkError("--method", "", "a record needs the fine-tuning method: full, lora, qlora or peft")
    if out.exists():
        raise TunemarkError("--out", str(out), "already exists; use another name, or remove it first")
    write_out(out, canonical_json(result))
    say(f"wrote {out}; `tunemark audit {out}` checks it")


def _print(result: PublishedResult | None, answer: Mapping[str, Any]) -> None:
    def text(name: str, value: float | None) -> str:
        return QUANTITIES[name].text(value)

    figures = [(QUANTITIES[name].label, text(name, one["value"]), one["printed"], one["note"]) for name, one in answer["figures"].items()]
    title = answer["title"] if result is None else f"{result.id}: {answer['title']}, {result.status.value}"
    print_table(["figure", "value", "in the log", "note"], figures, title=title)
    if result is None:
        say("give --method for utilisation, audit and prediction")
        return
    typer.echo("")
    derived = [(QUANTITIES[name].label, text(name, one["value"]), one["calculation"]) for name, one in answer["derived"].items()]
    print_table(["derived", "value", "calculation"], derived)
    needed = ("model", "accelerator", "accelerator_count", "micro_batch", "gradient_accumulation", "sequence_length")
    unstated = [name for name in needed if getattr(result.conditions, name) is None]
    if unstated:
        say(f"not stated: {', '.join(unstated)}")
    typer.echo("")
    for finding in answer["findings"]:
        print_finding(Finding(**finding))
    if not answer["findings"]:
        typer.echo("No finding of the audit. No finding does not mean verified.\n")
    _print_prediction(answer["prediction"])


def _print_prediction(prediction: Mapping[str, Any]) -> None:
    if "no_data" in prediction:
        typer.echo(f"No prediction: {prediction['no_data']}.")
        return
    tokens, times = prediction["tokens_per_s"], prediction["measured_over_predicted"]
    low, value, high = (formats.significant(tokens[end]) for end in ("low", "value", "high"))
    typer.echo(f"Predicted with {prediction['software']} software: {value} tokens/s, 90% interval {low} to {high}.")
    if times is not None:
        rate = times * tokens["value"]
        place = "inside" if tokens["low"] <= rate <= tokens["high"] else "below" if rate < tokens["low"] else "above"
        typer.echo(f"This training: {formats.significant(rate)} tokens/s, {times:.2f} x the prediction, {place} the interval.")


# Formats -------------------------------------------------------------------------------------------


def read_log(path: Path, configuration: Path | None = None) -> OwnLog:
    """Return the training of a file, a folder or standard input (`-`); a configuration of the trainer states its conditions.

    Raises TunemarkError with exit code 3 if nothing of a training is in it.
    """
    log = _training(path)
    if configuration is not None:
        _add_conditions(log, _content(configuration, "YAML", yaml.safe_load), str(configuration))
    return log


def _training(path: Path) -> OwnLog:
    if path.is_dir():
        return _llama_factory(path)
    text = read_text(str(path)).removeprefix("\ufeff")
    first = text.lstrip().partition("\n")[0]
    if path.suffix == ".csv" or (first.startswith("{") and (f'"{TIME}"' in text or f'"{TRAINED}"' in text)):
        return _history(path, text)
    if path.suffix == ".json":
        log = OwnLog(str(path), trainer="Hugging Face Trainer")
        _add_state(log, path)
        return log
    if any(TORCHTUNE_LINE.fullmatch(line.strip()) for line in text.splitlines()):
        return _torchtune(path, text)
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
    stated, leaves = Stated(), dict(flattened(given))
    for kind, arguments in ((int, meaning["numbers"]), (str, meaning["texts"])):
        stated |= {name: value for name, path in arguments.items() if isinstance(value := leaves.get(path), kind) and value}
    for rule in meaning["rules"]:
        named = [bool(value) for name, value in given.items() if str(name).startswith(tuple(rule.get("begins", ())))]
        if all(_is(given.get(name), wanted) for name, wanted in rule.get("when", {}).items()) and ("begins" not in rule or any(named)):
            stated.setdefault(rule["condition"], rule["value"])
    if "method" not in stated:
        name = meaning["method"]
        log.problem(None, f"{name} is {str(given.get(name))[:40]!r}, which is no known method; give --method", noted=True)
    log.stated |= stated


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
    reader = csv.DictReader(io.StringIO(text, newline=""))
    if TIME not in (reader.fieldnames or ()):
        fix = "is missing: there are no times, as in the export of a chart; export the history of one run: `run.history().to_csv(...)`"
        raise TunemarkError(f"{log.file}:1", TIME, fix, exit_code=Exit.INVALID)
    for row in reader:
        if None in row or None in row.values():
            log.problem(reader.line_num, "has another number of cells than the header; left out")
        else:
            yield Entry(row, reader.line_num)


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
