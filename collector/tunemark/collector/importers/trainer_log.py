"""Trainer logs: the final dictionary or table of the HF Trainer, progress bars of tqdm, and the output of `time`.

Nothing of a log is ever evaluated: a dictionary is parsed as Python literals, all else with regular expressions.
"""

import re
from dataclasses import dataclass, field

from tunemark.collector.importers import trainer_lines as lines
from tunemark.collector.importers.mllog import LogProblem
from tunemark.collector.importers.trainer_checks import contradictions, step_of
from tunemark.schema.records.published import Claim

LONGEST_LINE = 100_000
NOTHING = "holds neither a final dictionary of a Trainer ({'train_runtime': ...}) nor its table, a progress bar or the output of `time`"


@dataclass(slots=True)
class TrainerRun:
    """What a log says about one training."""

    line: int
    """Line of its first figure."""
    claims: dict[str, Claim] = field(default_factory=dict)
    """Figures by quantity, as printed."""
    finished: bool = False
    """True once its final dictionary or table was seen."""
    timed: bool = False
    """True once the output of `time` was seen."""
    tabled: bool = False
    """True once its table was begun."""
    out_of_memory: int | None = None
    """Line that says that memory was used up."""
    not_a_number: str | None = None
    """Loss that is no number, with its line."""
    notes: list[str] = field(default_factory=list)
    """Contradictions between its figures."""


@dataclass(slots=True)
class TrainerLog:
    """What a log gave."""

    file: str
    runs: list[TrainerRun] = field(default_factory=list)
    problems: list[LogProblem] = field(default_factory=list)
    unassigned: TrainerRun | None = None
    """Bars after a finished training: of an evaluation, or of the next training if a final dictionary follows."""
    table: str | None = None
    """`train` or `eval` within such a table."""

    def doubt(self, number: int, reason: str, *, noted: bool = False) -> None:
        """Add a problem of a line."""
        self.problems.append(LogProblem(self.file, number, reason, noted))

    def run(self, number: int, *, new: bool) -> TrainerRun:
        """Return the training that a line belongs to."""
        if new or not self.runs:
            self.runs.append(TrainerRun(number))
        return self.runs[-1]


def read_trainer_log(text: str, file: str) -> TrainerLog:
    """Return the trainings of a log, in order. A final dictionary, or a bar that starts again, begins the next one."""
    log = TrainerLog(file)
    # Progress bars rewrite their line: a carriage return separates as a line feed does.
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) > LONGEST_LINE:
            log.doubt(number, f"a line of {len(line):,} characters; none of a trainer is longer than {LONGEST_LINE:,}; passed over")
            continue
        for part in line.split("\r"):
            _read(log, lines.plain(part), number)
    for run in log.runs:
        step = step_of(run.claims)
        if step is not None:
            run.claims["step_time_s"] = step
        for note in contradictions(run.claims):
            run.notes.append(note)
            log.doubt(run.line, note, noted=True)
    if not log.runs:
        log.doubt(1, NOTHING)
    return log


def _read(log: TrainerLog, line: str, number: int) -> None:
    if lines.OUT_OF_MEMORY.search(line):
        run = log.run(number, new=bool(log.runs) and log.runs[-1].finished)
        run.out_of_memory = run.out_of_memory or number
        return
    times = lines.times_in(line)
    if times:
        _times(log, times, number)
        return
    if _table(log, line, number):
        return
    found = lines.dictionary_in(line)
    before, dictionary = found or (line, None)
    bars = list(lines.BAR.finditer(before))
    if bars:
        _bar(log, bars[-1], number)
    if dictionary is not None:
        _dictionary(log, dictionary, number)


def _times(log: TrainerLog, times: dict[str, tuple[float, str]], number: int) -> None:
    run = log.run(number, new=bool(log.runs) and not log.runs[-1].claims.keys().isdisjoint(times))
    for name, (seconds, printed) in times.items():
        if name == "wall_s" and not seconds:
            log.doubt(number, f"the process took {printed}; left out")
        else:
            run.claims[name] = Claim(value=seconds, printed=printed)
    run.timed = True


def _table(log: TrainerLog, line: str, number: int) -> bool:
    """Read a line of the Trainer's table; return whether it is one."""
    heading = lines.HEADING.search(line)
    if heading:
        log.table = heading["part"]
        last = log.runs[-1] if log.runs else None
        if log.table == "train":
            log.run(number, new=last is not None and (last.tabled or (last.timed and last.finished))).tabled = True
        return True
    cell = lines.TABLE_LINE.match(line) if log.table else None
    if cell is None:
        log.table = None if line else log.table
        return False
    key, printed = cell["key"], cell["value"]
    if key in lines.FIGURES and not (key == "epoch" and log.table == "eval"):
        run = log.run(number, new=False)
        # The dictionary has more digits than the table.
        if lines.FIGURES[key] not in run.claims:
            _claim(log, run, (key, printed), lines.table_value(key, printed), number)
        run.finished = run.finished or key == lines.FINAL
    return True


def _dictionary(log: TrainerLog, text: str, number: int) -> None:
    try:
        pairs = lines.printed_pairs(text)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        if lines.FINAL in text:
            log.doubt(number, "a dictionary that is cut off or no Python literal; passed over")
        return
    final = lines.FINAL in pairs
    if not final and not any(key.startswith("eval_") for key in pairs):
        if any(lines.is_nan(pairs.get(key, "")) for key in lines.LOSSES):
            _not_a_number(log.run(number, new=bool(log.runs) and log.runs[-1].finished), "loss", pairs, number)
        return
    if final and log.unassigned is not None:
        log.runs.append(log.unassigned)
    log.unassigned = None
    run = log.run(number, new=final and bool(log.runs) and (log.runs[-1].finished or log.runs[-1].timed))
    for key, printed in pairs.items():
        if key in lines.FIGURES and not (key == "epoch" and not final):
            _claim(log, run, (key, printed), lines.number(printed), number)
    if lines.is_nan(pairs.get("train_loss", "")):
        _not_a_number(run, "train_loss", pairs, number)
    run.finished = run.finished or final


def _not_a_number(run: TrainerRun, key: str, pairs: dict[str, str], number: int) -> None:
    run.not_a_number = run.not_a_number or f"{key} is {pairs[key]} in line {number}"


def _claim(log: TrainerLog, run: TrainerRun, said: tuple[str, str], value: float | None, number: int) -> None:
    key, printed = said
    if value is None:
        log.doubt(number, f"{key} is {printed[:40]}, not a finite number; left out")
    elif value < 0 or (key in lines.AMOUNTS and not value):
        log.doubt(number, f"{key} is {printed[:40]}, not an amount; left out")
    else:
        run.claims[lines.FIGURES[key]] = Claim(value=value, printed=printed)


def _bar(log: TrainerLog, bar: re.Match[str], number: int) -> None:
    last = log.runs[-1] if log.runs else None
    if last is not None and last.finished and not last.timed and not _closes(last, bar):
        log.unassigned = log.unassigned or TrainerRun(number)
        _claim_bar(log.unassigned, bar)
    else:
        _claim_bar(log.run(number, new=last is not None and last.timed), bar)


def _closes(run: TrainerRun, bar: re.Match[str]) -> bool:
    """Return whether a bar after the final dictionary is the last state of that training's own bar."""
    known = run.claims.get("total_steps") or run.claims.get("steps")
    return bar["done"] == bar["total"] and (known is None or known.value == int(bar["total"]))


def _claim_bar(run: TrainerRun, bar: re.Match[str]) -> None:
    # Bars of an evaluation show less time than that of the training around them.
    elapsed, before = lines.clock_s(bar["elapsed"]), run.claims.get("progress_elapsed_s")
    if before is not None and elapsed < before.value:
        return
    run.claims["progress_elapsed_s"] = Claim(value=elapsed, printed=bar["elapsed"])
    run.claims["steps"] = Claim(value=int(bar["done"]), printed=bar["done"])
    run.claims.pop("total_steps", None)
    if bar["done"] != bar["total"]:
        run.claims["total_steps"] = Claim(value=int(bar["total"]), printed=bar["total"])
    rate = float(bar["number"])
    if bar["unit"] == "s/it":
        run.claims["step_time_s"] = Claim(value=rate, printed=bar["rate"])
    elif rate:
        run.claims["step_time_s"] = Claim(value=1 / rate, printed=bar["rate"], note="Printed as steps a second.")
