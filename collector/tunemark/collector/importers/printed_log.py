"""Text that trainers print: dictionaries and tables of the HF Trainer, progress bars of tqdm, and the output of the shell's `time`.

Nothing in a log is ever evaluated: a dictionary is parsed as Python literals, everything else with regular expressions.
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tunemark.collector.audit.interval import duration
from tunemark.collector.importers.import_io import LogProblem
from tunemark.collector.importers.own_log import AGREES, COLUMNS, Entry, OwnLog, gather
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.records.published import Claim

LONGEST_LINE = 100_000
"""Characters of a line that are read; a trainer prints none above."""
NOTHING = "contains neither a final dictionary of a Trainer ({'train_runtime': ...}) nor its table, a progress bar or the output of `time`"
TRAINER = COLUMNS["trainer"]
OPTIMIZER_STEP = "An optimizer step: steps times this figure is the training time."
FINAL = "train_runtime"
"""Only the dictionary at the end of a training has this key."""
TIMES = {"real": "wall_s", "user": "user_s", "sys": "system_s"}
ANSI = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
BAR = re.compile(
    r"(?P<done>\d{1,12})/(?P<total>\d{1,12}) \[(?P<elapsed>(?:\d{1,6}:)?\d{1,6}:\d{2})<[\d:?]{1,20}, +(?P<rate>(?P<number>\d{1,12}(?:\.\d{1,12})?)(?P<unit>s/it|it/s))"
)
DICTIONARY = re.compile(r"""\{\s*['"][A-Za-z_]""")
TIME = re.compile(r"(?P<name>real|user|sys)\s+(?P<time>(?:(?:\d{1,6}h)?\d{1,9}m)?\d{1,9}(?:\.\d{1,9})?s?)")
"""Output of bash (`real 1m2.5s`) and of `time -p` (`real 62.50`)."""
HEADING = re.compile(r"\*{3,}\s*(?P<part>\w+) metrics\s*\*{3,}")
TABLE_LINE = re.compile(r"(?P<key>[a-z]\w{2,80})\s+=\s+(?P<value>(?:\d{1,6} days?, )?\S{1,40})")
OUT_OF_MEMORY = re.compile(
    r"(?:CUDA|HIP|XPU|MPS backend) out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED|Failed to allocate .{0,80}memory on device"
)


def elapsed_s(bar: re.Match[str]) -> float:
    """Return the seconds that a progress bar shows."""
    return duration(bar["elapsed"]) or 0.0


@dataclass(slots=True)
class _Part:
    """What a log prints of one training."""

    entries: list[Entry] = field(default_factory=list)
    table: dict[str, str] = field(default_factory=dict)
    """Values of the Trainer's tables as printed, by key."""
    bar: re.Match[str] | None = None
    times: dict[str, Claim] = field(default_factory=dict)
    out_of_memory: int | None = None

    @property
    def finished(self) -> bool:
        """True once the final dictionary or table was printed."""
        return FINAL in self.table or any(FINAL in entry.values for entry in self.entries)

    def add_bar(self, bar: re.Match[str]) -> None:
        """Keep the last state of the progress bar. That of an evaluation shows less time than the one around it."""
        if self.bar is None or elapsed_s(bar) >= elapsed_s(self.bar):
            self.bar = bar

    def owns(self, bar: re.Match[str]) -> bool:
        """Return True if a full bar after the final dictionary is the last state of this training's own bar."""
        return bar["done"] == bar["total"] and (self.bar is None or self.bar["total"] == bar["total"])


class _Log:
    """The trainings of a log while it is read."""

    def __init__(self, file: str) -> None:
        self.file, self.problems, self.parts = file, list[LogProblem](), [_Part()]
        self.later: _Part | None = None
        """Bars after a finished training: of an evaluation, or of the next training if a final dictionary follows."""
        self.table = ""
        """`train` or `eval` within a table of that name."""

    def part(self, *, new: bool) -> _Part:
        """Return the training that a line belongs to."""
        if new:
            self.parts.append(self.later or _Part())
            self.later = None
        return self.parts[-1]

    def read(self, line: str, number: int) -> None:
        """Read a line."""
        last = self.parts[-1]
        if OUT_OF_MEMORY.search(line):
            part = self.part(new=last.finished)
            part.out_of_memory = part.out_of_memory or number
        elif time := TIME.fullmatch(line):
            name, seconds = TIMES[time["name"]], duration(f"{time['time'].removesuffix('s')}s") or 0.0
            self.part(new=name in last.times).times[name] = Claim(value=round(seconds, 9), printed=time["time"])
        elif heading := HEADING.search(line):
            self.table = heading["part"]
            if self.table == "train":
                self.part(new=FINAL in last.table or bool(last.times and last.finished))
        elif self.table and (cell := TABLE_LINE.fullmatch(line)):
            # The epoch of an evaluation is that of its moment.
            if cell["key"] in TRAINER and (self.table == "train" or cell["key"] != "epoch"):
                last.table[cell["key"]] = cell["value"]
        else:
            self.table = ""
            # Loggers, ranks and bars print text before a dictionary.
            dictionary = DICTIONARY.search(line)
            start = dictionary.start() if dictionary else len(line)
            for bar in list(BAR.finditer(line[:start]))[-1:]:
                if last.finished and not last.times and not last.owns(bar):
                    self.later = self.later or _Part()
                    self.later.add_bar(bar)
                else:
                    self.part(new=bool(last.times)).add_bar(bar)
            if dictionary:
                end = line.rfind("}") + 1
                self._read_dictionary(line[start : end if end > start else len(line)], number)

    def _read_dictionary(self, text: str, number: int) -> None:
        try:
            pairs = printed_pairs(text)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            if FINAL in text:
                self.problems.append(LogProblem(self.file, number, "a dictionary that is cut off or not a Python literal; ignored"))
            return
        final, last = FINAL in pairs, self.parts[-1]
        if final or "loss" in pairs or any(key.startswith("eval_") for key in pairs):
            of_next = final or "loss" in pairs
            # The epoch of an evaluation is that of its moment.
            known = {key: value for key, value in pairs.items() if final or key != "epoch"}
            self.part(new=of_next and (last.finished or bool(last.times))).entries.append(Entry(known, number))

    def training(self, part: _Part) -> OwnLog:
        """Return the figures of a training."""
        log = OwnLog(self.file, self.problems, finished=part.finished, out_of_memory=part.out_of_memory)
        gather(log, part.entries, TRAINER, ("loss",))
        # Dictionaries have more digits than tables, so their figures are read first.
        gather(log, [Entry(part.table)], TRAINER)
        if part.bar is not None:
            _add_bar(log, part.bar)
        log.claims |= {name: claim for name, claim in part.times.items() if claim.value}
        return log


def read_printed_log(text: str, file: str) -> list[OwnLog]:
    """Return the trainings of a log, in order. A final dictionary, or a bar that starts again, begins the next one.

    Raises TunemarkError with exit code 3 if there is none.
    """
    log = _Log(file)
    # Progress bars rewrite their line: a carriage return separates as a line feed does.
    for number, line in enumerate(text.split("\n"), start=1):
        for part in line[:LONGEST_LINE].split("\r"):
            if words := ANSI.sub("", part).strip():
                log.read(words, number)
    found = [log.training(part) for part in log.parts if part != _Part()]
    if not found:
        raise TunemarkError(file, "", NOTHING, exit_code=Exit.INVALID)
    return found


def _add_bar(log: OwnLog, bar: re.Match[str]) -> None:
    """Add steps and their time. If steps x step time is the training time, the step is noted as an optimizer step."""
    log.claim("progress_elapsed_s", elapsed_s(bar), printed=bar["elapsed"])
    log.claim("steps", int(bar["done"]), printed=bar["done"])
    if bar["done"] != bar["total"]:
        log.claim("total_steps", int(bar["total"]), printed=bar["total"])
    rate, total = float(bar["number"]), log.claims.get("train_time_s")
    if rate and bar["unit"] == "it/s":
        log.claim("step_time_s", 1 / rate, printed=bar["rate"], note="Printed as steps per second.")
    elif rate:
        whole = total is not None and abs(rate * int(bar["done"]) / total.value - 1) <= AGREES
        log.claim("step_time_s", rate, printed=bar["rate"], note=OPTIMIZER_STEP if whole else None)


def printed_pairs(text: str) -> Mapping[str, str]:
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
