"""Text that trainers print: the last dictionary or table of the HF Trainer, progress bars of tqdm, and the output of `time`.

Nothing in a log is ever evaluated: a dictionary is parsed as Python literals, everything else with regular expressions.
"""

import ast
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tunemark.collector.importers.import_io import LogProblem
from tunemark.collector.importers.own_log import AGREES, OwnLog
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.records.published import Claim

LONGEST_LINE = 100_000
"""Characters of a line that are read; a trainer prints none above."""
NOTHING = "contains neither a final dictionary of a Trainer ({'train_runtime': ...}) nor its table, a progress bar or the output of `time`"


@dataclass(slots=True)
class _Run(OwnLog):
    """One training in a log."""

    finished: bool = False
    timed: bool = False
    """True once the output of `time` was seen."""
    tabled: bool = False
    """True once its table has begun."""

    def put(self, key: str, printed: str, value: float | None, number: int) -> None:
        """Add a figure of the Trainer by its own name."""
        if value is None:
            self.problem(number, f"{key} is {printed[:40]}, not a finite number; left out")
        elif value < 0 or (key in AMOUNTS and not value):
            self.problem(number, f"{key} is {printed[:40]}, not an amount; left out")
        else:
            self.claims[FIGURES[key]] = Claim(value=value, printed=printed)

    def diverged(self, pairs: Mapping[str, str], keys: Sequence[str], number: int) -> None:
        """Note a loss that is printed as NaN or infinity."""
        key = next((key for key in keys if is_nan(pairs.get(key, ""))), None)
        if key and not self.not_a_number:
            self.not_a_number = f"{key} is {pairs[key]} in line {number}"

    def bar(self, bar: re.Match[str]) -> None:
        """Add the state of a progress bar. That of an evaluation shows less time than the bar of the training around it."""
        elapsed, before, rate = clock_s(bar["elapsed"]), self.claims.get("progress_elapsed_s"), float(bar["number"])
        if before is not None and elapsed < before.value:
            return
        self.claims["progress_elapsed_s"] = Claim(value=elapsed, printed=bar["elapsed"])
        self.claims["steps"] = Claim(value=int(bar["done"]), printed=bar["done"])
        self.claims.pop("total_steps", None)
        if bar["done"] != bar["total"]:
            self.claims["total_steps"] = Claim(value=int(bar["total"]), printed=bar["total"])
        if bar["unit"] == "s/it":
            self.claims["step_time_s"] = Claim(value=rate, printed=bar["rate"])
        elif rate:
            self.claims["step_time_s"] = Claim(value=1 / rate, printed=bar["rate"], note="Printed as steps per second.")


class _Log:
    """The trainings of a log while it is read."""

    def __init__(self, file: str) -> None:
        self.file, self.problems = file, list[LogProblem]()
        self.runs: list[_Run] = []
        self.unassigned: _Run | None = None
        """Bars after a finished training: of an evaluation, or of the next training if a final dictionary follows."""
        self.table: str | None = None
        """`train` or `eval` within such a table."""

    def new(self) -> _Run:
        """Return a training without figures."""
        return _Run(self.file, "a trainer", self.problems)

    @property
    def last(self) -> _Run:
        """The latest training, or one without figures at the beginning of the log."""
        return self.runs[-1] if self.runs else self.new()

    def run(self, *, new: bool) -> _Run:
        """Return the training that a line belongs to."""
        if new or not self.runs:
            self.runs.append(self.new())
        return self.runs[-1]

    def read(self, line: str, number: int) -> None:
        """Read a line."""
        if OUT_OF_MEMORY.search(line):
            run = self.run(new=self.last.finished)
            run.out_of_memory = run.out_of_memory or number
        elif times := times_in(line):
            run = self.run(new=not self.last.claims.keys().isdisjoint(times))
            run.claims |= {
                name: Claim(value=seconds, printed=printed) for name, (seconds, printed) in times.items() if seconds or name != "wall_s"
            }
            run.timed = True
        elif not self._read_table(line, number):
            # Loggers, ranks and bars print text before a dictionary.
            dictionary = DICTIONARY.search(line)
            start = dictionary.start() if dictionary else len(line)
            for bar in list(BAR.finditer(line[:start]))[-1:]:
                self._read_bar(bar)
            if dictionary:
                end = line.rfind("}") + 1
                self._read_dictionary(line[start : end if end > start else len(line)], number)

    def _read_table(self, line: str, number: int) -> bool:
        """Read a line of the Trainer's table; return True if it is one."""
        heading = HEADING.search(line)
        if heading:
            self.table = heading["part"]
            if self.table == "train":
                self.run(new=self.last.tabled or (self.last.timed and self.last.finished)).tabled = True
            return True
        cell = TABLE_LINE.match(line) if self.table else None
        if cell is None:
            self.table = None if line else self.table
            return False
        key, printed = cell["key"], cell["value"]
        if key in FIGURES and not (key == "epoch" and self.table == "eval"):
            run = self.run(new=False)
            # The dictionary has more digits than the table.
            if FIGURES[key] not in run.claims:
                run.put(key, printed, table_value(key, printed), number)
            run.finished = run.finished or key == FINAL
        return True

    def _read_dictionary(self, text: str, number: int) -> None:
        try:
            pairs = printed_pairs(text)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            if FINAL in text:
                self.last.problem(number, "a dictionary that is cut off or not a Python literal; ignored")
            return
        final = FINAL in pairs
        if not final and not any(key.startswith("eval_") for key in pairs):
            if any(is_nan(pairs.get(key, "")) for key in LOSSES):
                self.run(new=self.last.finished).diverged(pairs, LOSSES, number)
            return
        if final and self.unassigned is not None:
            self.runs.append(self.unassigned)
        self.unassigned = None
        run = self.run(new=final and (self.last.finished or self.last.timed))
        for key, printed in pairs.items():
            if key in FIGURES and not (key == "epoch" and not final):
                run.put(key, printed, as_number(printed), number)
        run.diverged(pairs, ("train_loss",), number)
        run.finished = run.finished or final

    def _read_bar(self, bar: re.Match[str]) -> None:
        last = self.last
        # After the final dictionary, a full bar with the same number of steps is the last state of that training's own bar.
        known = last.claims.get("total_steps") or last.claims.get("steps")
        own = bar["done"] == bar["total"] and (known is None or known.value == int(bar["total"]))
        if last.finished and not last.timed and not own:
            self.unassigned = self.unassigned or self.new()
            self.unassigned.bar(bar)
        else:
            self.run(new=last.timed).bar(bar)


def read_printed_log(text: str, file: str) -> list[OwnLog]:
    """Return the trainings of a log, in order. A final dictionary, or a bar that starts again, begins the next one.

    Raises TunemarkError with exit code 3 if there is none.
    """
    log = _Log(file)
    # Progress bars rewrite their line: a carriage return separates as a line feed does.
    for number, line in enumerate(text.split("\n"), start=1):
        for part in line[:LONGEST_LINE].split("\r"):
            log.read(ANSI.sub("", part).strip(), number)
    for run in log.runs:
        step = step_of(run.claims)
        if step is not None:
            run.claims["step_time_s"] = step
    if not log.runs:
        raise TunemarkError(file, "", NOTHING, exit_code=Exit.INVALID)
    return list(log.runs)


def step_of(claims: Mapping[str, Claim]) -> Claim | None:
    """Return the step time, noted as the time of an optimizer step, if steps x step time is the training time; else None."""
    step, steps, total = (claims.get(name) for name in ("step_time_s", "steps", "train_time_s"))
    if step is None or steps is None or total is None or not total.value or step.note:
        return None
    if abs(step.value * steps.value / total.value - 1) > AGREES:
        return None
    return step.model_copy(update={"note": "An optimizer step: steps times this figure is the training time."})


# Single lines --------------------------------------------------------------------------------------

FIGURES = {
    "train_runtime": "train_time_s",
    "train_samples_per_second": "samples_per_s",
    "train_steps_per_second": "steps_per_s",
    "train_loss": "train_loss",
    "train_tokens_per_second": "tokens_per_s",
    "total_flos": "total_flops",
    "epoch": "epochs",
    "entropy": "entropy",
    "num_tokens": "tokens",
    "mean_token_accuracy": "token_accuracy",
    "eval_loss": "eval_loss",
    "eval_runtime": "eval_time_s",
    "eval_samples_per_second": "eval_samples_per_s",
    "eval_steps_per_second": "eval_steps_per_s",
    "eval_accuracy": "accuracy",
}
"""Key of the Trainer's dictionary -> our quantity. Other keys are ignored."""
AMOUNTS = frozenset(FIGURES) - {"train_loss", "eval_loss", "epoch", "entropy", "mean_token_accuracy", "eval_accuracy"}
"""Keys with figures that must be positive."""
TIMES = {"real": "wall_s", "user": "user_s", "sys": "system_s"}
FINAL = "train_runtime"
"""Only the dictionary or table at the end of a training has this key."""
LOSSES = ("loss", "train_loss")

ANSI = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
BAR = re.compile(
    r"(?P<done>\d{1,12})/(?P<total>\d{1,12}) \[(?P<elapsed>(?:\d{1,6}:)?\d{1,6}:\d{2})<[\d:?]{1,20}, +(?P<rate>(?P<number>\d{1,12}(?:\.\d{1,12})?)(?P<unit>s/it|it/s))"
)
DICTIONARY = re.compile(r"""\{\s*['"][A-Za-z_]""")
SHELL_TIME = re.compile(
    r"^(?P<name>real|user|sys)\s+(?P<time>(?:(?:(?P<hours>\d{1,6})h)?(?P<minutes>\d{1,9})m)?(?P<seconds>\d{1,9}(?:\.\d{1,9})?)s?)\s*$"
)
"""Output of bash (`real 1m2.5s`) and of `time -p` (`real 62.50`)."""
GNU_TIME = re.compile(
    r"(?P<user>\d{1,9}\.\d{1,3})user (?P<sys>\d{1,9}\.\d{1,3})system (?P<real>(?:\d{1,6}:)?\d{1,6}:\d{2}(?:\.\d{1,3})?)elapsed"
)
"""Output of /usr/bin/time, on one line."""
GNU_VERBOSE = {
    "Elapsed (wall clock) time (h:mm:ss or m:ss)": "wall_s",
    "User time (seconds)": "user_s",
    "System time (seconds)": "system_s",
}
"""Output of /usr/bin/time -v, one line each."""
HEADING = re.compile(r"\*{3,}\s*(?P<part>train|eval) metrics\s*\*{3,}")
TABLE_LINE = re.compile(r"^(?P<key>[a-z][a-z0-9_]{2,80})\s+=\s+(?P<value>\S{1,60})$")
OUT_OF_MEMORY = re.compile(
    r"(?:CUDA|HIP|XPU|MPS backend) out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED|Failed to allocate .{0,80}memory on device"
)
UNIT_GF = 2**30
"""The Trainer's table prints floating point operations in units of 2^30, as GF."""


def printed_pairs(text: str) -> dict[str, str]:
    """Return the values of a literal dictionary as printed, by key; JSON objects are read too.

    Raises ValueError, TypeError, SyntaxError, RecursionError or MemoryError if it is not such a dictionary.
    """
    node = ast.parse(text, mode="eval").body
    if not isinstance(node, ast.Dict):
        raise TypeError("not a dictionary")
    pairs = {}
    for key, value in zip(node.keys, node.values, strict=True):
        segment = ast.get_source_segment(text, value)
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and segment:
            is_string = isinstance(value, ast.Constant) and isinstance(value.value, str)
            pairs[key.value] = str(ast.literal_eval(value)) if is_string else segment
    return pairs


def times_in(line: str) -> dict[str, tuple[float, str]]:
    """Return the times in a line of the output of `time`: quantity -> seconds and printed words."""
    shell = SHELL_TIME.match(line)
    if shell:
        seconds = int(shell["hours"] or 0) * 3_600 + int(shell["minutes"] or 0) * 60 + float(shell["seconds"])
        return {TIMES[shell["name"]]: (round(seconds, 9), shell["time"])}
    gnu = GNU_TIME.search(line)
    if gnu:
        return {TIMES[name]: (clock_s(gnu[name]), gnu[name]) for name in ("real", "user", "sys")}
    name, _, value = line.rpartition(": ")
    try:
        return {GNU_VERBOSE[name]: (clock_s(value), value)} if name in GNU_VERBOSE else {}
    except ValueError:
        return {}


def clock_s(text: str) -> float:
    """Return seconds of `1:02:03.4`, `2:03` or `3.4`."""
    seconds = 0.0
    for part in text.split(":"):
        seconds = seconds * 60 + float(part)
    return round(seconds, 9)


def table_value(key: str, printed: str) -> float | None:
    """Return a figure of the Trainer's table, which prints times as a clock and operations in GF."""
    try:
        if key.endswith("_runtime"):
            return clock_s(printed)
        return float(printed[:-2]) * UNIT_GF if printed.endswith("GF") else as_number(printed)
    except ValueError:
        return None


def as_number(printed: str) -> float | None:
    """Return a printed number, or None if it is not finite."""
    try:
        value = float(printed)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def is_nan(printed: str) -> bool:
    """Return True if a figure is printed as NaN or infinity, which for a loss means that the training diverged."""
    return printed.strip().lower() in {"nan", "-nan", "inf", "-inf", "infinity", "-infinity"}
