"""Output folders of LLaMA-Factory: `trainer_state.json`, results, `trainer_log.jsonl` and `training_args.yaml`."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from tunemark.collector.importers.import_io import read_bytes, read_text
from tunemark.collector.importers.own_log import OwnLog, Stated, own_log_importer
from tunemark.collector.importers.trainer_output import FIGURES, clock_s
from tunemark.collector.importers.trainer_state import COUNTED, NAME, TOKENS, add_figure, add_state, json_of
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.formats import GIB
from tunemark.schema.vocabulary import Method

RESULTS = ("train_results.json", "all_results.json")
"""The first that exists is read; the second repeats it and adds evaluations."""
STEPS = "trainer_log.jsonl"
ARGUMENTS = ("training_args.yaml", "training_args.yml", "config.yaml")
AGREES = 1e-6
STEP_FIELDS = {"current_steps", "total_steps", "loss", "elapsed_time", "total_tokens", "vram_allocated", "vram_reserved", "throughput"}
WITHOUT_MEANING = {"epoch", "lr", "percentage", "remaining_time"}
USED_ARGUMENTS = {
    "model_name_or_path", "finetuning_type", "quantization_bit", "per_device_train_batch_size", "gradient_accumulation_steps", "cutoff_len",
    "packing", "neat_packing", "bf16", "pure_bf16", "fp16", "lora_rank", "disable_gradient_checkpointing", "enable_liger_kernel",
    "use_unsloth", "dataset",
}  # fmt: skip


def _read(path: Annotated[Path, typer.Argument(metavar="DIR", help="The output folder.", show_default=False)]) -> OwnLog:
    """Read the output folder of a training with LLaMA-Factory.

    Figures come from `trainer_state.json` and `train_results.json`, tokens and memory also from `trainer_log.jsonl`. If the folder has
    `training_args.yaml` (or a copy of the configuration named `config.yaml`), it states the conditions; an option counts more than
    the file. The accelerator and the number of devices are in no file. Nothing is published.

    Exit codes: 0 read, 2 no such folder, an unknown name, or --method missing, 3 a part of a file could not be read.

    Examples
    --------
    - `tunemark import llamafactory OUTPUT_FOLDER --accelerator "RTX 4090"`

    - `tunemark import llamafactory OUTPUT_FOLDER --model llama-3.1-8b`
    """
    if not path.is_dir():
        raise TunemarkError("folder", str(path), "no such folder; name the output folder of a training")
    log = OwnLog(path.name or str(path), "LLaMA-Factory")
    results, steps = next((path / name for name in RESULTS if (path / name).is_file()), None), path / STEPS
    if not (path / NAME).is_file() and results is None and not steps.is_file():
        raise TunemarkError("folder", str(path), f"has neither {NAME} nor {RESULTS[0]} nor {STEPS}", exit_code=Exit.INVALID)
    if (path / NAME).is_file():
        add_state(log, path / NAME)
    if results is not None:
        _add_results(log, results)
    if steps.is_file():
        _add_steps(log, steps)
    arguments = next((path / name for name in ARGUMENTS if (path / name).is_file()), None)
    if arguments is not None:
        log.stated = _stated(log, arguments).over(log.stated)
    return log


# Figures ----------------------------------------------------------------------------------------------


def _add_results(log: OwnLog, path: Path) -> None:
    """Add the figures of the results that the state lacks; figures that differ from the state are a problem."""
    content = json_of(path)
    if not isinstance(content, dict):
        raise TunemarkError(path.name, "", "not an object with results", exit_code=Exit.INVALID)
    for name, value in content.items():
        quantity = "tokens" if name in TOKENS else FIGURES.get(name)
        if quantity is None:
            log.unused.add(name)
            continue
        known = log.claims.get(quantity)
        if known is None and name in TOKENS:
            number = log.number(value, f"{path.name}: {name}")
            if number:
                log.claim("tokens", number, note=COUNTED[name])
        elif known is None:
            add_figure(log, name, value, f"{path.name}: {name}")
        elif isinstance(value, int | float) and abs(value - known.value) > AGREES * abs(known.value):
            log.problem(None, f"{name} is {value}, and {known.value:.12g} in {NAME}: files of different trainings", file=path.name)
    log.finished = log.finished or "train_time_s" in log.claims
    if log.finished:
        log.notes = [note for note in log.notes if "checkpoint" not in note]


def _add_steps(log: OwnLog, path: Path) -> None:
    """Add tokens, time and memory of the log of steps, where other files lack them."""
    rows = list(_lines(log, path))
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
            log.claim(quantity, value, note=COUNTED["num_input_tokens_seen"] if quantity == "tokens" else None)
    planned = last.get("total_steps")
    if "steps" in log.claims and isinstance(planned, int) and planned > log.claims["steps"].value:
        log.claim("total_steps", planned)
        log.finished = False
    _add_memory(log, path, rows)


def _add_memory(log: OwnLog, path: Path, rows: list[tuple[int, Mapping[str, Any]]]) -> None:
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


def _lines(log: OwnLog, path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the training lines of the log of steps, with their numbers; a line that is no object is a problem."""
    for number, line in enumerate(read_text(str(path)).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            log.problem(number, f"not valid JSON ({error}); left out", file=path.name)
            continue
        if not isinstance(row, dict):
            log.problem(number, "not an object; left out", file=path.name)
            continue
        log.unused |= row.keys() - STEP_FIELDS - WITHOUT_MEANING - {"eval_loss", "predict_loss"}
        if "eval_loss" not in row and "predict_loss" not in row:
            yield number, row


# Conditions -------------------------------------------------------------------------------------------


def _stated(log: OwnLog, path: Path) -> Stated:
    """Return the conditions in the arguments of a training; raises TunemarkError (exit code 3) if they cannot be read."""
    try:
        arguments = yaml.safe_load(read_bytes(path))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path.name}:{mark.line + 1}:{mark.column + 1}" if mark else path.name
        raise TunemarkError(place, "", f"not valid YAML: {' '.join(str(error).split())}", exit_code=Exit.INVALID) from error
    if not isinstance(arguments, dict):
        raise TunemarkError(path.name, "", "not a list of arguments", exit_code=Exit.INVALID)

    def whole(name: str) -> int | None:
        value = arguments.get(name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
            return value
        log.problem(None, f"{name} is {str(value)[:40]!r}, not a whole number above 0; left out", file=path.name)
        return None

    packing = True if arguments.get("neat_packing") else arguments.get("packing")
    formats = ((name, "fp16" if name == "fp16" else "bf16") for name in ("bf16", "pure_bf16", "fp16"))
    log.unused |= {str(name) for name in arguments if name not in USED_ARGUMENTS}
    return Stated(
        model=arguments.get("model_name_or_path"),
        method=_method(log, arguments, path),
        micro_batch=whole("per_device_train_batch_size"),
        gradient_accumulation=whole("gradient_accumulation_steps"),
        sequence_length=whole("cutoff_len"),
        packing=packing if isinstance(packing, bool) else None,
        precision=next((words for name, words in formats if arguments.get(name) is True), None),
        lora_rank=whole("lora_rank"),
        # LLaMA-Factory recomputes activations unless this is set.
        checkpointing="none" if arguments.get("disable_gradient_checkpointing") else "full",
        software="tuned" if arguments.get("enable_liger_kernel") or arguments.get("use_unsloth") else None,
        dataset=str(arguments["dataset"]) if arguments.get("dataset") else None,
    )


def _method(log: OwnLog, arguments: Mapping[Any, Any], path: Path) -> str | None:
    kind = arguments.get("finetuning_type")
    if kind == "lora":
        return Method.QLORA.value if arguments.get("quantization_bit") == 4 else Method.LORA.value  # noqa: PLR2004 - bits of QLoRA
    if kind == "full":
        return Method.FULL.value
    log.problem(None, f"finetuning_type is {str(kind)[:40]!r}, which is not full or lora; give --method", noted=True, file=path.name)
    return None


llamafactory = own_log_importer(_read)
