"""Logs of torchtune's DiskLogger: `Step 5 | loss:0.35 lr:1e-06 tokens_per_second_per_gpu:9077.2 peak_memory_alloc:85.5`."""

import re
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from tunemark.collector.importers.import_io import read_text
from tunemark.collector.importers.own_log import WARM_UP, OwnLog, own_log_importer
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.formats import GIB
from tunemark.schema.records.published import Claim

LINE = re.compile(r"Step (?P<step>\d{1,12}) \|(?P<rest>.*)")
RATE, LOSS = "tokens_per_second_per_gpu", "loss"
PEAKS = ("peak_memory_alloc", "peak_memory_active", "peak_memory_reserved")
"""Peaks of torch's allocator in GiB; the first that is logged is the peak of the record."""
USED = {RATE, LOSS, *PEAKS}


def _read(path: Annotated[Path, typer.Argument(metavar="FILE", help="The log.", show_default=False)]) -> OwnLog:
    """Read a log of torchtune, as its DiskLogger writes it (`log_*.txt`).

    The log has the rate of single steps for one GPU: the record has their median without the first ten, times --devices. torchtune
    counts tokens with a label, so the rate of all tokens is at least as high. Nothing is published.

    Exit codes: 0 read, 2 no such file, an unknown name, or --method or --devices missing, 3 a line could not be read.

    Examples
    --------
    - `tunemark import torchtune-log LOG.txt --method lora --devices 1`

    - `tunemark import torchtune-log LOG.txt --method full --model llama-3.1-8b`
    """
    log = OwnLog(path.name, "torchtune")
    columns: dict[str, list[float]] = {}
    steps: list[int] = []
    for number, line in enumerate(read_text(str(path)).splitlines(), start=1):
        match = LINE.fullmatch(line.strip())
        if match:
            steps.append(int(match["step"]))
            _add_line(log, columns, match["rest"].split(), number)
        elif line.strip():
            log.problem(number, f"{line.strip()[:40]!r} is not `Step N | name:value ...`; left out")
    if not steps:
        raise TunemarkError(path.name, "", "no line `Step N | name:value ...`: not a log of torchtune", exit_code=Exit.INVALID)
    if steps != sorted(set(steps)):
        log.problem(None, "steps do not increase: the file has more than one training; keep the lines of one", noted=False)
    log.claim("steps", max(steps))
    _add_rate(log, columns.get(RATE, []))
    _add_memory(log, columns)
    return log


def _add_line(log: OwnLog, columns: dict[str, list[float]], pairs: list[str], number: int) -> None:
    for pair in pairs:
        name, colon, value = pair.rpartition(":")
        if not colon or not name:
            log.problem(number, f"{pair[:40]!r} is not name:value; left out")
        elif name == LOSS:
            log.loss(value, name, number)
        elif name in USED:
            figure = log.number(value, name, number)
            if figure is not None:
                columns.setdefault(name, []).append(figure)
        else:
            log.unused.add(name)


def _add_rate(log: OwnLog, rates: list[float]) -> None:
    if not rates:
        log.problem(None, f"no {RATE} in any line, so there is no rate", noted=True)
        return
    steady = rates[WARM_UP:] if len(rates) >= 2 * WARM_UP else rates
    note = f"Median of {len(steady)} logged steps after {len(rates) - len(steady)} of warm-up. Tokens with a label are counted."
    log.device_rate = Claim(value=median(steady), printed=f"{median(steady):.9g}", note=note)


def _add_memory(log: OwnLog, columns: dict[str, list[float]]) -> None:
    peaks = {name: max(columns[name]) for name in PEAKS if name in columns}
    for name, peak in list(peaks.items())[:1]:
        others = "".join(f" {other} is {value:.6g} GiB." for other, value in peaks.items() if other != name)
        log.claim("peak_memory_bytes", peak * GIB, printed=f"{peak:.9g} GiB", note=f"{name}, the highest of all steps.{others}")


torchtune_log = own_log_importer(_read)
