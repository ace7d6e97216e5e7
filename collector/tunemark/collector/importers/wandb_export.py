"""Histories of runs exported from Weights & Biases, as CSV (`run.history().to_csv()`) or JSON lines (`run.scan_history()`)."""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer

from tunemark.collector.importers.import_io import read_text
from tunemark.collector.importers.own_log import WARM_UP, OwnLog, own_log_importer
from tunemark.schema.errors import Exit, TunemarkError

TIME = "_runtime"
STEP = ("train/global_step", "trainer/global_step", "global_step")
LOSS = ("train/loss", "loss")
TOKENS = ("train/num_input_tokens_seen", "train/num_tokens", "num_input_tokens_seen")
EVAL = {"eval/loss": "eval_loss", "eval/accuracy": "accuracy"}
GPU = re.compile(r"system\.gpu\.(?P<device>\d{1,4})\.(?P<what>memoryAllocatedBytes|powerWatts|gpu)")
USED = {TIME, *STEP, *LOSS, *TOKENS, *EVAL}
WITHOUT_MEANING = {"", "_step", "_timestamp", "_wandb", "train/epoch", "epoch"}
CHART = re.compile(r".+ - .+?(?:__MIN|__MAX)?")
"""Columns of an exported chart: `run - metric`, and the same with __MIN and __MAX."""
Row = Mapping[str, Any]
Point = tuple[float, float, float | None]
"""Seconds since the start of the run, optimizer steps, and tokens so far."""


def _read(path: Annotated[Path, typer.Argument(metavar="FILE", help="The CSV or JSONL file.", show_default=False)]) -> OwnLog:
    """Read the history of one run exported from Weights & Biases, as CSV or as JSON lines.

    Speed is the work between two logged rows over the time between them (`_runtime`), without the first ten optimizer steps. The
    columns are those of the Hugging Face Trainer (`train/loss`, `train/global_step`, `train/num_input_tokens_seen`), and system
    columns if they were exported (`stream="events"`). The CSV of a chart has no times and is refused. Nothing is published.

    Exit codes: 0 read, 2 no such file, an unknown name, or --method missing, 3 a row could not be read.

    Examples
    --------
    - `tunemark import wandb-export HISTORY.csv --method lora`

    - `tunemark import wandb-export HISTORY.jsonl --method qlora --model qwen3-8b`
    """
    log = OwnLog(path.name, "Weights & Biases")
    points: list[Point] = []
    devices: dict[str, dict[str, list[float]]] = {}
    last_time = 0.0
    for line, row in _rows(log, read_text(str(path)).removeprefix("\ufeff")):
        cells = {name: value for name, value in row.items() if value not in (None, "")}
        time = log.number(cells[TIME], TIME, line) if TIME in cells else None
        last_time = max(last_time, time or 0.0)
        _add_cells(log, cells, line)
        point = _point(log, cells, time, line)
        if point is not None:
            points.append(point)
        _add_devices(log, devices, cells, line)
    _add_speed(log, points)
    if last_time:
        log.claim("wall_s", last_time, printed=f"{last_time:.9g}", note="The last `_runtime`: seconds since the run was started.")
    _add_system(log, devices)
    return log


# Rows -------------------------------------------------------------------------------------------------


def _rows(log: OwnLog, text: str) -> Iterator[tuple[int, Row]]:
    """Yield the rows with their line. Raises TunemarkError (exit code 3) if the file has no times."""
    rows = _json_rows(log, text) if text.lstrip().startswith("{") else _csv_rows(log, text)
    timed = False
    for line, row in rows:
        timed = timed or TIME in row
        yield line, row
    if not timed:
        fix = "export the history of one run: `run.history().to_csv(...)`"
        raise TunemarkError(log.file, TIME, f"is missing, so there are no times; {fix}", exit_code=Exit.INVALID)


def _json_rows(log: OwnLog, text: str) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            log.problem(number, f"column {error.colno}: not valid JSON ({error.msg}); left out")
            continue
        except (ValueError, RecursionError):
            log.problem(number, "not valid JSON; left out")
            continue
        if isinstance(row, dict):
            yield number, row
        else:
            log.problem(number, "not an object; left out")


def _csv_rows(log: OwnLog, text: str) -> Iterator[tuple[int, Row]]:
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        header = next(reader, [])
        charts = [name for name in header if CHART.fullmatch(name)]
        if TIME not in header and charts:
            fix = "export the history of one run instead: `run.history().to_csv(...)`"
            raise TunemarkError(f"{log.file}:1", charts[0], f"is a column of a chart, which has no times; {fix}", exit_code=Exit.INVALID)
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


# Figures ----------------------------------------------------------------------------------------------


def _add_cells(log: OwnLog, cells: Row, line: int) -> None:
    for name, value in cells.items():
        if name in LOSS:
            log.loss(value, name, line)
        elif name in EVAL:
            number = log.number(value, name, line)
            if number is not None:
                log.claim(EVAL[name], number, signed=True)
        elif name not in USED | WITHOUT_MEANING and not GPU.fullmatch(name):
            log.unused.add(name)


def _point(log: OwnLog, cells: Row, time: float | None, line: int) -> Point | None:
    """Return the point of a row of training; None for rows of evaluations and of the system."""
    name = next((name for name in STEP if name in cells), None)
    if time is None or name is None or not any(loss in cells for loss in LOSS):
        return None
    step = log.number(cells[name], name, line)
    counted = next((name for name in TOKENS if name in cells), None)
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


def _add_devices(log: OwnLog, devices: dict[str, dict[str, list[float]]], cells: Row, line: int) -> None:
    for name, value in cells.items():
        match = GPU.fullmatch(name)
        number = log.number(value, name, line) if match else None
        if match and number is not None:
            devices.setdefault(match["what"], {}).setdefault(match["device"], []).append(number)


def _add_system(log: OwnLog, devices: dict[str, dict[str, list[float]]]) -> None:
    memory, power, busy = (devices.get(what) for what in ("memoryAllocatedBytes", "powerWatts", "gpu"))
    if memory:
        log.claim("device_memory_bytes", max(map(max, memory.values())), note="In use as sampled by W&B, the highest of all devices.")
    if power:
        log.claim("power_w", sum(map(mean, power.values())), note=f"Mean over all samples, {len(power)} devices together.")
    if busy:
        log.claim("device_busy_mean", mean(map(mean, busy.values())) / 100, note=f"Mean over all samples and {len(busy)} devices.")


wandb_export = own_log_importer(_read)
