"""The `trainer_state.json` of the Hugging Face Trainer, and of trainers that are built on it."""

import codecs
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from tunemark.collector.importers.import_io import LARGEST_TEXT, read_bytes
from tunemark.collector.importers.own_log import OwnLog, Stated, own_log_importer
from tunemark.collector.importers.trainer_output import FIGURES, FINAL, LOSSES
from tunemark.schema.errors import Exit, TunemarkError

NAME = "trainer_state.json"
SPEED = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "train_tokens_per_second")
"""Figures of speed: they are taken from one entry of the log, since intermediate entries have those of their moment."""
TOKENS = ("num_input_tokens_seen", "num_tokens")
"""Tokens so far: as the Trainer counts them, and as TRL counts them, without padding."""
COUNTED = {
    "num_input_tokens_seen": "Counted by the Trainer, with padding unless `include_num_input_tokens_seen` is `non_padding`.",
    "num_tokens": "Counted by TRL, without padding.",
}
USED_OF_STATE = {"log_history", "global_step", "max_steps", "epoch", "train_batch_size", "num_input_tokens_seen", "total_flos"}
WITHOUT_MEANING = {
    "best_model_checkpoint", "best_global_step", "eval_steps", "is_hyper_param_search", "is_local_process_zero",
    "is_world_process_zero", "logging_steps", "num_train_epochs", "save_steps", "stateful_callbacks", "trial_name", "trial_params", "step",
}  # fmt: skip
"""Fields of the Trainer's own bookkeeping."""


def _read(path: Annotated[Path, typer.Argument(metavar="FILE", help=NAME, show_default=False)]) -> OwnLog:
    """Read the `trainer_state.json` of a training with the Hugging Face Trainer, TRL, or a trainer built on them.

    The command shows the figures of the training, its utilisation, the findings of the audit about it, the prediction for the same
    configuration, and the nearest published results. Nothing is published. The file contains few conditions; give the others as
    options. Tokens per second need a count of tokens (`include_num_input_tokens_seen`, or TRL), or full rows (`--packed`).

    Exit codes: 0 read, 2 no such file, an unknown name, or --method missing, 3 a part of the file could not be read.

    Examples
    --------
    - `tunemark import trainer-state TRAINER_STATE.json --method lora`

    - `tunemark import trainer-state STATE.json --method lora --packed --seq 4096`

    - `tunemark import trainer-state STATE.json --method full --model qwen3-8b`
    """
    log = OwnLog(path.name, "Hugging Face Trainer")
    add_state(log, path)
    return log


def json_of(path: Path) -> Any:  # noqa: ANN401 - any JSON
    """Return the content of a JSON file; raises TunemarkError (exit code 3) with line and column of what is not JSON."""
    content = read_bytes(path).removeprefix(codecs.BOM_UTF8)
    if len(content) > LARGEST_TEXT:
        raise TunemarkError(path.name, f"{len(content):,} bytes", f"larger than {LARGEST_TEXT:,} bytes", exit_code=Exit.INVALID)
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        place = f"{path.name}:{error.lineno}:{error.colno}"
        raise TunemarkError(place, "", f"not valid JSON: {error.msg}", exit_code=Exit.INVALID) from error
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise TunemarkError(path.name, "", f"not valid JSON: {' '.join(str(error).split())}", exit_code=Exit.INVALID) from error


def add_state(log: OwnLog, path: Path) -> None:
    """Add the figures of a state. Raises TunemarkError (exit code 3) if the file is not one."""
    state = json_of(path)
    if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
        raise TunemarkError(path.name, "log_history", "is missing: not the state of a Trainer", exit_code=Exit.INVALID)
    log.unused |= state.keys() - USED_OF_STATE - WITHOUT_MEANING - {name for name, value in state.items() if value is None}
    entries: list[tuple[str, Mapping[str, Any]]] = []
    for index, entry in enumerate(state["log_history"]):
        if isinstance(entry, dict):
            entries.append((f"log_history[{index}]", entry))
        else:
            log.problem(None, f"log_history[{index}] is {str(entry)[:40]!r}, not an object; left out")
    _add_steps(log, state)
    _add_entries(log, entries)
    batch = state.get("train_batch_size")
    if isinstance(batch, int) and not isinstance(batch, bool) and batch > 0:
        log.stated = log.stated.over(Stated(micro_batch=batch))


def _add_steps(log: OwnLog, state: Mapping[str, Any]) -> None:
    done, planned = (log.number(state[name], name) if name in state else None for name in ("global_step", "max_steps"))
    if done is not None:
        log.claim("steps", done)
    if done is not None and planned is not None and 0 < done < planned:
        log.claim("total_steps", planned)
    for name, quantity in (("epoch", "epochs"), ("total_flos", "total_flops")):
        value = log.number(state[name], name) if state.get(name) is not None else None
        if value:
            log.claim(quantity, value)


def _add_entries(log: OwnLog, entries: list[tuple[str, Mapping[str, Any]]]) -> None:
    """Add the figures of the log: speed and tokens of the last entry with a time, others from the last entry that has them."""
    timed = max((index for index, (_, entry) in enumerate(entries) if FINAL in entry), default=None)
    log.finished = timed is not None and "train_loss" in entries[timed][1]
    if timed is None:
        log.notes.append("The state has no training time: it is that of a checkpoint.")
        log.problem(None, "no train_runtime: the state of a checkpoint; the output folder has the one with times", noted=True)
    tokens_of_state = None
    for index, (place, entry) in enumerate(entries):
        for name, value in entry.items():
            at = f"{place}.{name}"
            if name in LOSSES and name == "loss":
                log.loss(value, at)
            elif name in TOKENS and (timed is None or index <= timed):
                tokens_of_state = (name, value, at)
            elif name in FIGURES and (name not in SPEED or index == timed) and name not in {"epoch", *TOKENS}:
                add_figure(log, name, value, at)
            elif name not in {*FIGURES, *TOKENS, *WITHOUT_MEANING}:
                log.unused.add(name)
    if tokens_of_state is not None:
        name, value, at = tokens_of_state
        number = log.number(value, at)
        if number:
            log.claim("tokens", number, note=COUNTED[name])


def add_figure(log: OwnLog, name: str, value: object, place: str) -> None:
    """Add a figure of the Trainer by its own name."""
    if name == "train_loss" and isinstance(value, float) and not math.isfinite(value):
        log.not_a_number = log.not_a_number or f"{place} is {value}"
        return
    number = log.number(value, place)
    if number is None:
        return
    note = "Mean over the run, as the Trainer reports it." if name == "train_loss" else None
    log.claim(FIGURES[name], number, note=note, signed=name.endswith("loss"))


trainer_state = own_log_importer(_read)
