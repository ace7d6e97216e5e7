"""Formats of training logs: trainer_state.json, folders of LLaMA-Factory, logs of torchtune, exports of Weights & Biases; configurations of trainers.

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

from tunemark.collector.importers.import_io import LogProblem, read_text
from tunemark.collector.importers.own_log import Column, Entry, OwnLog, Stated, clock_s, gather
from tunemark.collector.importers.printed_log import COUNTED, FINAL, TRAINER, read_printed_log
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.formats import GIB
from tunemark.schema.records.plan import WARMUP_STEPS
from tunemark.schema.records.published import Claim
from tunemark.schema.vocabulary import Method


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
    if path.suffix == ".csv" or (first.startswith("{") and f'"{TIME}"' in text):
        return [_wandb(path, text)]
    if path.suffix == ".json":
        log = OwnLog(str(path), "Hugging Face Trainer")
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
HEADER = {"global_step": Column("steps"), "epoch": Column("epochs"), "total_flos": Column("total_flops")}


def _add_state(log: OwnLog, path: Path) -> None:
    """Add the figures of a state: speed and tokens of the last entry with a time, others from the last entry that has them."""
    state = _content(path, "JSON", json.loads)
    history = state.get("log_history")
    if not isinstance(history, list):
        raise TunemarkError(str(path), "log_history", "is missing: not the state of a Trainer", exit_code=Exit.INVALID)
    entries = [entry for entry in history if isinstance(entry, dict)]
    gather(log, [Entry({name: value for name, value in state.items() if value is not None})], HEADER)
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
STEP_COLUMNS = {
    "current_steps": Column("steps"),
    "total_tokens": Column("tokens", note=COUNTED),
    "vram_allocated": Column(
        "peak_memory_bytes", max, GIB, "GiB", "vram_allocated, the highest of the log: the peak of torch's allocator."
    ),
}


def _llama_factory(path: Path) -> OwnLog:
    """Return the training of an output folder: its state, its results and its log of steps; its arguments state conditions."""
    log = OwnLog(str(path), "LLaMA-Factory")
    state, results, steps = path / STATE, path / RESULTS, path / STEPS
    if not any(file.is_file() for file in (state, results, steps)):
        raise TunemarkError(str(path), "", f"has neither {STATE} nor {RESULTS} nor {STEPS}", exit_code=Exit.INVALID)
    if state.is_file():
        _add_state(log, state)
        log.trainer = "LLaMA-Factory" if steps.is_file() else "Hugging Face Trainer"
    if results.is_file():
        gather(log, [Entry(_content(results, "JSON", json.loads))], TRAINER | HEADER)
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
    gather(log, entries, STEP_COLUMNS, () if log.losses else ("loss",))
    last = entries[-1].values if entries else {}
    elapsed, planned = last.get("elapsed_time"), last.get("total_steps")
    if "train_time_s" not in log.claims and isinstance(elapsed, str):
        seconds = clock_s(elapsed)
        log.claim("train_time_s", seconds, printed=f"{seconds:g}", note=f"Printed as {elapsed}, in whole seconds.")
    if "steps" in log.claims and isinstance(planned, int) and planned > log.claims["steps"].value:
        log.claim("total_steps", planned)
        log.finished = False


# Configurations of trainers ---------------------------------------------------------------------------

ARGUMENT_OF: dict[str, dict[str, tuple[str, type]]] = {
    "LLaMA-Factory": {
        "model": ("model_name_or_path", str),
        "micro_batch": ("per_device_train_batch_size", int),
        "gradient_accumulation": ("gradient_accumulation_steps", int),
        "sequence_length": ("cutoff_len", int),
        "lora_rank": ("lora_rank", int),
        "dataset": ("dataset", str),
    },
    "axolotl": {
        "model": ("base_model", str),
        "micro_batch": ("micro_batch_size", int),
        "gradient_accumulation": ("gradient_accumulation_steps", int),
        "sequence_length": ("sequence_len", int),
        "lora_rank": ("lora_r", int),
    },
}
"""Trainer -> condition -> the argument that states it, and its type."""
OTHER_TASKS = ("rl", "reward_model", "process_reward_model")
"""Keys of axolotl for tasks other than predicting the next token."""
TUNED = ("liger_", "unsloth_", "lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")
"""Beginnings of axolotl's keys for fused kernels."""


def _add_conditions(log: OwnLog, given: dict[str, Any], file: str) -> None:
    """Add the conditions in the arguments of a training; raises TunemarkError (exit code 3) for another task."""
    trainer = next((name for name, arguments in ARGUMENT_OF.items() if arguments["model"][0] in given), None)
    if trainer is None:
        names = " nor ".join(arguments["model"][0] for arguments in ARGUMENT_OF.values())
        log.problem(None, f"{file} has neither {names}, so it is no configuration of {' or '.join(ARGUMENT_OF)}")
        return
    log.trainer = trainer
    stated: Stated = {name: given[key] for name, (key, kind) in ARGUMENT_OF[trainer].items() if isinstance(given.get(key), kind)}
    stated |= _llama_factory_conditions(given) if trainer == "LLaMA-Factory" else _axolotl_conditions(given)
    if stated["method"] is None:
        name = "finetuning_type" if trainer == "LLaMA-Factory" else "adapter"
        log.problem(None, f"{name} is {str(given.get(name))[:40]!r}, which is no known method; give --method", noted=True)
    log.stated |= {name: value for name, value in stated.items() if value is not None}


def _llama_factory_conditions(given: dict[str, Any]) -> Stated:
    four_bit = given.get("quantization_bit") == 4  # noqa: PLR2004 - bits of QLoRA
    return {
        "method": {"lora": Method.QLORA if four_bit else Method.LORA, "full": Method.FULL}.get(str(given.get("finetuning_type"))),
        "packing": True if given.get("neat_packing") or given.get("packing") else None,
        "precision": next((name.removeprefix("pure_") for name in ("bf16", "pure_bf16", "fp16") if given.get(name)), None),
        # LLaMA-Factory recomputes activations unless this is set.
        "checkpointing": "none" if given.get("disable_gradient_checkpointing") else "full",
        "software": "tuned" if given.get("enable_liger_kernel") or given.get("use_unsloth") else None,
    }


def _axolotl_conditions(given: dict[str, Any]) -> Stated:
    """Return the conditions in an axolotl configuration. `bf16: auto` leaves the format to the device, so it states none."""
    other = next((name for name in OTHER_TASKS if given.get(name)), None)
    if other is not None:
        raise TunemarkError(other, given[other], "is another task; records are of supervised fine-tuning", exit_code=Exit.INVALID)
    datasets = given.get("datasets")
    first = datasets[0] if isinstance(datasets, list) and datasets and isinstance(datasets[0], dict) else {}
    adapter = str(given.get("adapter") or "full")
    adapter = "qlora" if adapter == "lora" and given.get("load_in_4bit") else adapter
    known = adapter in {"full", "lora", "qlora"} and not given.get("load_in_8bit")
    return {
        "method": Method(adapter) if known else None,
        "packing": True if given.get("sample_packing") else None,
        "padding": "static" if given.get("pad_to_sequence_len") else None,
        "precision": "bf16" if str(given.get("bf16")).lower() in {"true", "full"} else "fp16" if given.get("fp16") else None,
        "checkpointing": "full" if given.get("gradient_checkpointing") else "none",
        "software": "tuned" if any(value and str(name).startswith(TUNED) for name, value in given.items()) else None,
        "dataset": str(first["path"]) if first.get("path") else None,
    }


# Logs of torchtune's DiskLogger: `Step 5 | loss:0.35 tokens_per_second_per_gpu:9077.2 peak_memory_alloc:85.5` --------------------

TORCHTUNE_LINE = re.compile(r"Step (?P<step>\d{1,12}) \|(?P<rest>.*)")
DEVICE_RATE = "tokens_per_second_per_gpu"
TORCHTUNE = {
    DEVICE_RATE: Column(""),
    **{
        name: Column("peak_memory_bytes", max, GIB, "GiB", f"{name}, the highest of all steps.")
        for name in ("peak_memory_alloc", "peak_memory_active", "peak_memory_reserved")
    },
    "step": Column("steps", max),
}
"""Of the peaks of torch's allocator, the first that is logged is the peak of the record."""


def _torchtune(path: Path, text: str) -> OwnLog:
    """Return the training of a log: the median rate of its steps without the first ten, for one device."""
    log = OwnLog(str(path), "torchtune")
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
    rates = gather(log, entries, TORCHTUNE, ("loss",)).get(DEVICE_RATE, [])
    steady = rates[WARMUP_STEPS:] if len(rates) >= 2 * WARMUP_STEPS else rates
    if steady:
        note = f"Median of {len(steady)} logged steps after {len(rates) - len(steady)} of warm-up. Tokens with a label are counted."
        log.device_rate = Claim(value=median(steady), printed=f"{median(steady):.9g}", note=note)
    else:
        log.problem(None, f"no {DEVICE_RATE} in any line, so there is no rate", noted=True)
    return log


# Histories exported from Weights & Biases: CSV (`run.history().to_csv()`) or JSON lines (`run.scan_history()`) --------------------

TIME = "_runtime"
STEP = ("train/global_step", "trainer/global_step", "global_step")
LOSS = ("train/loss", "loss")
COUNTS = ("train/num_input_tokens_seen", "train/num_tokens", "num_input_tokens_seen")
HISTORY = {
    TIME: Column("wall_s", max, note="The last `_runtime`: seconds since the run was started."),
    "eval/loss": Column("eval_loss"),
    "eval/accuracy": Column("accuracy"),
}
Point = tuple[float, float, float | None]
"""Seconds since the start of the run, optimizer steps, and tokens so far."""


def _wandb(path: Path, text: str) -> OwnLog:
    """Return the training of a history: the work between two logged rows over the time between them, without the first ten steps."""
    log = OwnLog(str(path), "Weights & Biases")
    rows = _json_lines(log, path, text) if text.lstrip().startswith("{") else _csv_rows(log, text)
    entries = [Entry({name: value for name, value in row.items() if value not in (None, "")}, line) for row, line in rows]
    gather(log, entries, HISTORY, LOSS)
    _add_speed(log, [point for entry in entries if (point := _point(entry)) is not None])
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
    names = [next((name for name in group if name in entry.values), None) for group in ((TIME,), STEP, COUNTS)]
    if None in names[:2] or not any(loss in entry.values for loss in LOSS):
        return None
    try:
        time, step, tokens = (None if name is None else float(entry.values[name]) for name in names)
    except (TypeError, ValueError):
        return None
    return None if time is None or step is None else (time, step, tokens)


def _add_speed(log: OwnLog, points: Sequence[Point]) -> None:
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
    note = f"From step {start[1]:g} to {last[1]:g}: {steps:g} steps in {seconds:.6g} s, evaluations included."
    log.claim("step_time_s", seconds / steps, printed=f"{seconds / steps:.6g}", note=note)
    if start[2] is not None and last[2] is not None and last[2] > start[2]:
        tokens = last[2] - start[2]
        log.claim("tokens_per_s", tokens / seconds, printed=f"{tokens / seconds:.6g}", note=f"{tokens:,.0f} tokens. {note}")
