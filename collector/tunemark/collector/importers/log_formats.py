"""Formats of training logs: trainer_state.json, folders of LLaMA-Factory, logs of torchtune, exports of Weights & Biases.

A format is a row of `FORMATS`: how its files are recognised, and the function that reads one. Everything else is read as the text that a
trainer prints (`printed_log`). Nothing in a log is ever executed, and a line that cannot be read never stops the rest.
"""

import codecs
import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import yaml

from tunemark.collector.importers.import_io import LARGEST_TEXT, read_bytes, read_text
from tunemark.collector.importers.own_log import WARM_UP, OwnLog, Stated
from tunemark.collector.importers.printed_log import FIGURES, FINAL, clock_s, read_printed_log
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.formats import GIB
from tunemark.schema.records.published import Claim
from tunemark.schema.vocabulary import Method

Row = Mapping[str, Any]


class Format(NamedTuple):
    """A format of logs."""

    name: str
    recognises: Callable[[Path, str], bool]
    """Whether a file with this text has the format."""
    read: Callable[[Path, str], OwnLog]


def read_log(path: Path) -> list[OwnLog]:
    """Return the trainings of a file, a folder or standard input (`-`), in order.

    Raises TunemarkError with exit code 3 if nothing of a training is in it.
    """
    if path.is_dir():
        return [_llama_factory(path)]
    text = read_text(str(path))
    for each in FORMATS:
        if each.recognises(path, text):
            return [each.read(path, text)]
    return read_printed_log(text, "standard input" if str(path) == "-" else path.name)


def _json(path: Path) -> Any:  # noqa: ANN401 - any JSON
    """Return the content of a JSON file; raises TunemarkError (exit code 3) with line and column of what is not JSON."""
    content = read_bytes(path).removeprefix(codecs.BOM_UTF8)
    if len(content) > LARGEST_TEXT:
        raise TunemarkError(path.name, f"{len(content):,} bytes", f"larger than {LARGEST_TEXT:,} bytes", exit_code=Exit.INVALID)
    try:
        return json.loads(content)
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        place = f"{path.name}:{error.lineno}:{error.colno}" if isinstance(error, json.JSONDecodeError) else path.name
        raise TunemarkError(place, "", f"not valid JSON: {' '.join(str(error).split())}", exit_code=Exit.INVALID) from error


def _json_lines(log: OwnLog, text: str, file: str) -> Iterator[tuple[int, Row]]:
    """Yield the objects of JSON lines with their numbers; a line that is no object is a problem."""
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            log.problem(number, f"not valid JSON ({error}); left out", file=file)
            continue
        if isinstance(row, dict):
            yield number, row
        else:
            log.problem(number, "not an object; left out", file=file)


# trainer_state.json of the HF Trainer, and of trainers built on it ------------------------------------

STATE = "trainer_state.json"
SPEED = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "train_tokens_per_second")
"""Figures of speed: they are taken from one entry of the log, since intermediate entries have those of their moment."""
TOKENS = {
    "num_input_tokens_seen": "Counted by the Trainer, with padding unless `include_num_input_tokens_seen` is `non_padding`.",
    "num_tokens": "Counted by TRL, without padding.",
}
"""Tokens so far, and who counts them."""
BOOKKEEPING = {
    "best_model_checkpoint", "best_global_step", "epoch", "eval_steps", "global_step", "is_hyper_param_search", "is_local_process_zero",
    "is_world_process_zero", "log_history", "logging_steps", "max_steps", "num_input_tokens_seen", "num_train_epochs", "save_steps",
    "stateful_callbacks", "step", "total_flos", "train_batch_size", "trial_name", "trial_params",
}  # fmt: skip
"""Fields of a state that are read by name, or are the Trainer's own."""


def _trainer_state(path: Path, _: str) -> OwnLog:
    log = OwnLog(path.name, "Hugging Face Trainer")
    _add_state(log, path)
    return log


def _add_state(log: OwnLog, path: Path) -> None:
    """Add the figures of a state: speed and tokens of the last entry with a time, others from the last entry that has them."""
    state = _json(path)
    if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
        raise TunemarkError(path.name, "log_history", "is missing: not the state of a Trainer", exit_code=Exit.INVALID)
    log.unused |= state.keys() - BOOKKEEPING - {name for name, value in state.items() if value is None}
    entries = [entry for entry in state["log_history"] if isinstance(entry, dict)]
    if len(entries) < len(state["log_history"]):
        log.problem(None, f"{len(state['log_history']) - len(entries)} entries of log_history are not objects; left out")
    done, planned = (log.number(state[name], name) if name in state else None for name in ("global_step", "max_steps"))
    if done is not None:
        log.claim("steps", done)
    if done is not None and planned is not None and 0 < done < planned:
        log.claim("total_steps", planned)
    for name, quantity in (("epoch", "epochs"), ("total_flos", "total_flops")):
        value = log.number(state[name], name) if state.get(name) is not None else None
        if value:
            log.claim(quantity, value)
    _add_entries(log, entries)
    batch = state.get("train_batch_size")
    if isinstance(batch, int) and not isinstance(batch, bool) and batch > 0:
        log.stated = log.stated.over(Stated(micro_batch=batch))


def _add_entries(log: OwnLog, entries: Sequence[Row]) -> None:
    timed = max((index for index, entry in enumerate(entries) if FINAL in entry), default=None)
    log.finished = timed is not None and "train_loss" in entries[timed]
    if timed is None:
        log.notes.append("The state has no training time: it is that of a checkpoint.")
        log.problem(None, "no train_runtime: the state of a checkpoint; the output folder has the one with times", noted=True)
    tokens: tuple[str, object, str] | None = None
    for index, entry in enumerate(entries):
        for name, value in entry.items():
            place = f"log_history[{index}].{name}"
            if name == "loss":
                log.loss(value, place)
            elif name in TOKENS:
                tokens = (name, value, place) if timed is None or index <= timed else tokens
            elif name in FIGURES and name != "epoch" and (name not in SPEED or index == timed):
                _add_figure(log, name, value, place)
            elif name not in FIGURES and name not in BOOKKEEPING:
                log.unused.add(name)
    if tokens is not None:
        _add_tokens(log, *tokens)


def _add_tokens(log: OwnLog, name: str, value: object, place: str) -> None:
    number = log.number(value, place)
    if number:
        log.claim("tokens", number, note=TOKENS[name])


def _add_figure(log: OwnLog, name: str, value: object, place: str) -> None:
    """Add a figure of the Trainer by its own name."""
    if name == "train_loss" and isinstance(value, float) and not math.isfinite(value):
        log.not_a_number = log.not_a_number or f"{place} is {value}"
        return
    number = log.number(value, place)
    if number is not None:
        note = "Mean over the run, as the Trainer reports it." if name == "train_loss" else None
        log.claim(FIGURES[name], number, note=note, signed=name.endswith("loss"))


# Output folders of LLaMA-Factory ----------------------------------------------------------------------

RESULTS = ("train_results.json", "all_results.json")
"""The first that exists is read; the second repeats it and adds evaluations."""
STEPS = "trainer_log.jsonl"
ARGUMENTS = ("training_args.yaml", "training_args.yml", "config.yaml")
SAME = 1e-6
"""Share by which one figure in two files may differ."""
STEP_FIELDS = {
    "current_steps", "total_steps", "loss", "elapsed_time", "total_tokens", "vram_allocated", "vram_reserved", "throughput", "epoch", "lr",
    "percentage", "remaining_time", "eval_loss", "predict_loss",
}  # fmt: skip


def _llama_factory(path: Path) -> OwnLog:
    """Return the training of an output folder: its state and results, else its log of steps; its arguments state conditions."""
    log = OwnLog(path.name or str(path), "LLaMA-Factory")
    results, steps = next((path / name for name in RESULTS if (path / name).is_file()), None), path / STEPS
    if not (path / STATE).is_file() and results is None and not steps.is_file():
        raise TunemarkError("folder", str(path), f"has neither {STATE} nor {RESULTS[0]} nor {STEPS}", exit_code=Exit.INVALID)
    if (path / STATE).is_file():
        _add_state(log, path / STATE)
        log.trainer = "LLaMA-Factory" if steps.is_file() else "Hugging Face Trainer"
    if results is not None:
        _add_results(log, results)
    if steps.is_file():
        _add_steps(log, steps)
    arguments = next((path / name for name in ARGUMENTS if (path / name).is_file()), None)
    if arguments is not None:
        log.stated = _arguments(log, arguments).over(log.stated)
    return log


def _add_results(log: OwnLog, path: Path) -> None:
    """Add the figures of the results that the state lacks; figures that differ from the state are a problem."""
    content = _json(path)
    if not isinstance(content, dict):
        raise TunemarkError(path.name, "", "not an object with results", exit_code=Exit.INVALID)
    for name, value in content.items():
        quantity, place = "tokens" if name in TOKENS else FIGURES.get(name), f"{path.name}: {name}"
        known = log.claims.get(quantity or "")
        if quantity is None:
            log.unused.add(name)
        elif known is None and name in TOKENS:
            _add_tokens(log, name, value, place)
        elif known is None:
            _add_figure(log, name, value, place)
        elif isinstance(value, int | float) and abs(value - known.value) > SAME * abs(known.value):
            log.problem(None, f"{name} is {value}, and {known.value:.12g} in {STATE}: files of different trainings", file=path.name)
    log.finished = log.finished or "train_time_s" in log.claims
    if log.finished:
        log.notes = [note for note in log.notes if "checkpoint" not in note]


def _add_steps(log: OwnLog, path: Path) -> None:
    """Add tokens, time and memory of the log of steps, where other files lack them."""
    lines = list(_json_lines(log, read_text(str(path)), path.name))
    log.unused |= {name for _, row in lines for name in row} - STEP_FIELDS
    rows = [(number, row) for number, row in lines if "eval_loss" not in row and "predict_loss" not in row]
    if not rows:
        return
    for number, row in rows if not log.losses else ():
        if "loss" in row:
            log.loss(row["loss"], f"{path.name}: loss", number)
    line, last = rows[-1]
    if "train_time_s" not in log.claims and isinstance(last.get("elapsed_time"), str):
        _add_clock(log, path, line, last["elapsed_time"])
    for name, quantity in (("current_steps", "steps"), ("total_tokens", "tokens")):
        value = log.number(last[name], f"{path.name}: {name}", line) if quantity not in log.claims and name in last else None
        if value is not None:
            log.claim(quantity, value, note=TOKENS["num_input_tokens_seen"] if quantity == "tokens" else None)
    planned = last.get("total_steps")
    if "steps" in log.claims and isinstance(planned, int) and planned > log.claims["steps"].value:
        log.claim("total_steps", planned)
        log.finished = False
    logged = [(number, row["vram_allocated"]) for number, row in rows if "vram_allocated" in row]
    peaks = [peak for number, value in logged if (peak := log.number(value, f"{path.name}: vram_allocated", number)) is not None]
    if peaks:
        note = "vram_allocated, the highest of the log: the peak of torch's allocator."
        log.claim("peak_memory_bytes", max(peaks) * GIB, printed=f"{max(peaks):g} GiB", note=note)


def _add_clock(log: OwnLog, path: Path, line: int, elapsed: str) -> None:
    days, _, clock = elapsed.rpartition(", ")
    try:
        seconds = clock_s(clock) + 86_400 * (int(days.split()[0]) if days else 0)
    except ValueError:
        log.problem(line, f"elapsed_time is {elapsed[:40]!r}, not h:mm:ss; left out", file=path.name)
        return
    if seconds:
        log.claim("train_time_s", seconds, printed=f"{seconds:g}", note=f"Printed as {elapsed}, in whole seconds.")


def _arguments(log: OwnLog, path: Path) -> Stated:
    """Return the conditions in the arguments of a training; raises TunemarkError (exit code 3) if they cannot be read."""
    try:
        arguments = yaml.safe_load(read_bytes(path))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path.name}:{mark.line + 1}:{mark.column + 1}" if mark else path.name
        raise TunemarkError(place, "", f"not valid YAML: {' '.join(str(error).split())}", exit_code=Exit.INVALID) from error
    if not isinstance(arguments, dict):
        raise TunemarkError(path.name, "", "not a list of arguments", exit_code=Exit.INVALID)
    used: set[str] = set()

    def get(name: str, kind: type) -> Any:  # noqa: ANN401 - of the kind
        used.add(name)
        value = arguments.get(name)
        number_of_one = kind is not int or (isinstance(value, int) and not isinstance(value, bool) and value > 0)
        if value is None or (isinstance(value, kind) and number_of_one):
            return value
        log.problem(None, f"{name} is {str(value)[:40]!r}, which cannot be used; left out", file=path.name)
        return None

    kind, bits = get("finetuning_type", str), get("quantization_bit", int)
    methods = {"lora": Method.QLORA.value if bits == 4 else Method.LORA.value, "full": Method.FULL.value}  # noqa: PLR2004 - bits of QLoRA
    if kind not in methods:
        log.problem(None, f"finetuning_type is {str(kind)[:40]!r}, which is not full or lora; give --method", noted=True, file=path.name)
    formats = [name.removeprefix("pure_") for name in ("bf16", "pure_bf16", "fp16") if get(name, bool)]
    tuned = [name for name in ("enable_liger_kernel", "use_unsloth") if get(name, bool)]
    stated = Stated(
        model=get("model_name_or_path", str),
        method=methods.get(str(kind)),
        micro_batch=get("per_device_train_batch_size", int),
        gradient_accumulation=get("gradient_accumulation_steps", int),
        sequence_length=get("cutoff_len", int),
        packing=get("neat_packing", bool) or get("packing", bool),
        precision=formats[0] if formats else None,
        lora_rank=get("lora_rank", int),
        # LLaMA-Factory recomputes activations unless this is set.
        checkpointing="none" if get("disable_gradient_checkpointing", bool) else "full",
        software="tuned" if tuned else None,
        dataset=get("dataset", str),
    )
    log.unused |= {str(name) for name in arguments} - used
    return stated


# Logs of torchtune's DiskLogger: `Step 5 | loss:0.35 tokens_per_second_per_gpu:9077.2 peak_memory_alloc:85.5` --------------------

TORCHTUNE_LINE = re.compile(r"Step (?P<step>\d{1,12}) \|(?P<rest>.*)")
DEVICE_RATE = "tokens_per_second_per_gpu"
PEAKS = ("peak_memory_alloc", "peak_memory_active", "peak_memory_reserved")
"""Peaks of torch's allocator in GiB; the first that is logged is the peak of the record."""


def _torchtune(path: Path, text: str) -> OwnLog:
    """Return the training of a log: the median rate of its steps without the first ten, for one device."""
    log = OwnLog(path.name, "torchtune")
    columns: dict[str, list[float]] = {}
    steps: list[int] = []
    for number, line in enumerate(text.splitlines(), start=1):
        match = TORCHTUNE_LINE.fullmatch(line.strip())
        if match is None:
            if line.strip():
                log.problem(number, f"{line.strip()[:40]!r} is not `Step N | name:value ...`; left out")
            continue
        steps.append(int(match["step"]))
        _add_pairs(log, columns, match["rest"].split(), number)
    if steps != sorted(set(steps)):
        log.problem(None, "steps do not increase: the file has more than one training; keep the lines of one")
    log.claim("steps", max(steps))
    rates = columns.get(DEVICE_RATE, [])
    steady = rates[WARM_UP:] if len(rates) >= 2 * WARM_UP else rates
    if steady:
        note = f"Median of {len(steady)} logged steps after {len(rates) - len(steady)} of warm-up. Tokens with a label are counted."
        log.device_rate = Claim(value=median(steady), printed=f"{median(steady):.9g}", note=note)
    else:
        log.problem(None, f"no {DEVICE_RATE} in any line, so there is no rate", noted=True)
    peaks = {name: max(columns[name]) for name in PEAKS if name in columns}
    for name, peak in list(peaks.items())[:1]:
        others = "".join(f" {other} is {value:.6g} GiB." for other, value in peaks.items() if other != name)
        log.claim("peak_memory_bytes", peak * GIB, printed=f"{peak:.9g} GiB", note=f"{name}, the highest of all steps.{others}")
    return log


def _add_pairs(log: OwnLog, columns: dict[str, list[float]], pairs: list[str], number: int) -> None:
    for pair in pairs:
        name, colon, value = pair.rpartition(":")
        if not colon:
            log.problem(number, f"{pair[:40]!r} is not name:value; left out")
        elif name == "loss":
            log.loss(value, name, number)
        elif name not in {DEVICE_RATE, *PEAKS}:
            log.unused.add(name)
        elif (figure := log.number(value, name, number)) is not None:
            columns.setdefault(name, []).append(figure)


# Histories exported from Weights & Biases: CSV (`run.history().to_csv()`) or JSON lines (`run.scan_history()`) --------------------

TIME = "_runtime"
STEP = ("train/global_step", "trainer/global_step", "global_step")
LOSS = ("train/loss", "loss")
COUNTS = ("train/num_input_tokens_seen", "train/num_tokens", "num_input_tokens_seen")
EVAL = {"eval/loss": "eval_loss", "eval/accuracy": "accuracy"}
GPU = re.compile(r"system\.gpu\.(?P<device>\d{1,4})\.(?P<what>memoryAllocatedBytes|powerWatts|gpu)")
KNOWN_COLUMNS = {TIME, *STEP, *LOSS, *COUNTS, *EVAL, "", "_step", "_timestamp", "_wandb", "train/epoch", "epoch"}
CHART = re.compile(r".+ - .+?(?:__MIN|__MAX)?")
"""Columns of an exported chart: `run - metric`, and the same with __MIN and __MAX."""
Point = tuple[float, float, float | None]
"""Seconds since the start of the run, optimizer steps, and tokens so far."""


def _wandb(path: Path, text: str) -> OwnLog:
    """Return the training of a history: the work between two logged rows over the time between them, without the first ten steps."""
    log = OwnLog(path.name, "Weights & Biases")
    points: list[Point] = []
    samples: dict[str, dict[str, list[float]]] = {}
    last_time = 0.0
    text = text.removeprefix("\ufeff")
    for line, row in _json_lines(log, text, log.file) if text.lstrip().startswith("{") else _csv_rows(log, text):
        cells = {name: value for name, value in row.items() if value not in (None, "")}
        time = log.number(cells[TIME], TIME, line) if TIME in cells else None
        last_time = max(last_time, time or 0.0)
        point = _point(log, cells, time, line)
        points += [point] if point else []
        _add_cells(log, samples, cells, line)
    _add_speed(log, points)
    if last_time:
        log.claim("wall_s", last_time, printed=f"{last_time:.9g}", note="The last `_runtime`: seconds since the run was started.")
    memory, power, busy = (samples.get(what) for what in ("memoryAllocatedBytes", "powerWatts", "gpu"))
    if memory:
        log.claim("device_memory_bytes", max(map(max, memory.values())), note="In use as sampled by W&B, the highest of all devices.")
    if power:
        log.claim("power_w", sum(map(mean, power.values())), note=f"Mean over all samples, {len(power)} devices together.")
    if busy:
        log.claim("device_busy_mean", mean(map(mean, busy.values())) / 100, note=f"Mean over all samples and {len(busy)} devices.")
    return log


def _add_cells(log: OwnLog, samples: dict[str, dict[str, list[float]]], cells: Row, line: int) -> None:
    """Add the losses and evaluations of a row, and the samples of its devices."""
    for name, value in cells.items():
        gpu = GPU.fullmatch(name)
        if name in LOSS:
            log.loss(value, name, line)
        elif name in EVAL and (number := log.number(value, name, line)) is not None:
            log.claim(EVAL[name], number, signed=True)
        elif gpu and (number := log.number(value, name, line)) is not None:
            samples.setdefault(gpu["what"], {}).setdefault(gpu["device"], []).append(number)
        elif not gpu and name not in KNOWN_COLUMNS:
            log.unused.add(name)


def _csv_rows(log: OwnLog, text: str) -> Iterator[tuple[int, Row]]:
    """Yield the rows with their line. Raises TunemarkError (exit code 3) if the file has no times."""
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        header = next(reader, [])
        if TIME not in header:
            chart = next(
                (f"{name!r} is a column of a chart, which has no times" for name in header if CHART.fullmatch(name)), "there are no times"
            )
            fix = f"is missing: {chart}; export the history of one run: `run.history().to_csv(...)`"
            raise TunemarkError(f"{log.file}:1", TIME, fix, exit_code=Exit.INVALID)
        repeated = sorted({name for name in header if header.count(name) > 1})
        if repeated:
            raise TunemarkError(f"{log.file}:1", ", ".join(repeated), "is there twice; export one run", exit_code=Exit.INVALID)
        for cells in reader:
            if len(cells) == len(header):
                yield reader.line_num, dict(zip(header, cells, strict=True))
            elif cells:
                log.problem(reader.line_num, f"{len(cells)} cells for {len(header)} columns; left out")
    except csv.Error as error:
        log.problem(reader.line_num, f"not valid CSV ({error}); the rest is left out")


def _point(log: OwnLog, cells: Row, time: float | None, line: int) -> Point | None:
    """Return the point of a row of training; None for rows of evaluations and of the system."""
    name = next((name for name in STEP if name in cells), None)
    if time is None or name is None or not any(loss in cells for loss in LOSS):
        return None
    step = log.number(cells[name], name, line)
    counted = next((name for name in COUNTS if name in cells), None)
    tokens = None if counted is None else log.number(cells[counted], counted, line)
    return None if step is None else (time, step, tokens)


def _add_speed(log: OwnLog, points: list[Point]) -> None:
    """Add steps, and speed between the first point after the warm-up and the last point."""
    if not points:
        log.problem(None, f"no row has {TIME}, a loss and one of {', '.join(STEP)}, so there is no speed", noted=True)
        return
    if any(later[1] < earlier[1] or later[0] < earlier[0] for earlier, later in pairwise(points)):
        log.problem(None, "steps or times decrease: more than one run, or a resumed one; export one session")
        return
    log.claim("steps", points[-1][1])
    start = next((point for point in points[: len(points) // 2 + 1] if point[1] >= WARM_UP), points[0])
    seconds, steps = points[-1][0] - start[0], points[-1][1] - start[1]
    if seconds <= 0 or steps <= 0:
        log.problem(None, "one row of training only, so there is no speed", noted=True)
        return
    note = f"From step {start[1]:g} to {points[-1][1]:g}: {steps:g} steps in {seconds:.6g} s, evaluations included."
    log.claim("step_time_s", seconds / steps, printed=f"{seconds / steps:.6g}", note=note)
    if start[2] is not None and points[-1][2] is not None and points[-1][2] > start[2]:
        tokens = points[-1][2] - start[2]
        log.claim("tokens_per_s", tokens / seconds, printed=f"{tokens / seconds:.6g}", note=f"{tokens:,.0f} tokens. {note}")


def _looks_like_history(path: Path, text: str) -> bool:
    first = text.lstrip("\ufeff \n").partition("\n")[0]
    return path.suffix == ".csv" or (first.startswith("{") and f'"{TIME}"' in text)


FORMATS = (
    Format("trainer_state", lambda path, text: path.suffix == ".json" and '"_runtime"' not in text, _trainer_state),
    Format("torchtune", lambda _, text: any(map(TORCHTUNE_LINE.fullmatch, map(str.strip, text.splitlines()))), _torchtune),
    Format("wandb", _looks_like_history, _wandb),
)
"""Formats of single files, the first that recognises a file reads it."""
