"""Trainer logs: the final dictionary of the HF Trainer, progress bars of tqdm, and the output of bash's `time`.

Nothing of a log is ever evaluated: a dictionary is parsed as Python literals, all else with regular expressions.
"""

import ast
import math
import re
from dataclasses import dataclass, field

from tunemark.collector.importers.mllog import LogProblem
from tunemark.schema.published import Claim

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
"""Key of the Trainer's dictionary -> our quantity. Keys that are not here are passed over."""
TIMES = {"real": "wall_s", "user": "user_s", "sys": "system_s"}
FINAL = "train_runtime"
"""Only the dictionary at the end of a training has this key."""

BAR = re.compile(
    r"(?P<done>\d{1,12})/(?P<total>\d{1,12}) \[(?P<elapsed>(?:\d{1,6}:)?\d{1,6}:\d{2})<[\d:?]{1,20}, +(?P<rate>(?P<number>\d{1,12}(?:\.\d{1,12})?)(?P<unit>s/it|it/s))"
)
TIME = re.compile(
    r"^(?P<name>real|user|sys)\s+(?P<time>(?:(?P<hours>\d{1,6})h)?(?P<minutes>\d{1,9})m(?P<seconds>\d{1,2}(?:\.\d{1,9})?)s)\s*$"
)
LONGEST_LINE = 100_000
AGREES = 0.01
"""Steps times seconds a step may differ from the training time by this share, for rounding and the first step."""


@dataclass(slots=True)
class TrainerRun:
    """What a log says about one training."""

    line: int
    """Line of its first figure."""
    claims: dict[str, Claim] = field(default_factory=dict)
    """Figures by quantity, as printed."""
    finished: bool = False
    """True once its final dictionary was seen."""
    timed: bool = False
    """True once the output of `time` was seen."""


@dataclass(slots=True)
class TrainerLog:
    """What a log gave."""

    runs: list[TrainerRun] = field(default_factory=list)
    problems: list[LogProblem] = field(default_factory=list)
    unassigned: TrainerRun | None = None
    """Bars after a finished training: of an evaluation, or of the next training if a final dictionary follows."""


def read_trainer_log(text: str, file: str) -> TrainerLog:
    """Return the trainings of a log, in order. A final dictionary, or a bar that starts again, begins the next one."""
    log = TrainerLog()
    # Progress bars rewrite their line: a carriage return separates as a line feed does.
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) > LONGEST_LINE:
            log.problems.append(
                LogProblem(
                    file, number, f"a line of {len(line):,} characters; none of a trainer is longer than {LONGEST_LINE:,}; passed over"
                )
            )
            continue
        for part in line.split("\r"):
            _read(log, part.strip(), number, file)
    for run in log.runs:
        _say_what_a_step_is(run)
    if not log.runs:
        log.problems.append(
            LogProblem(
                file,
                None,
                "holds neither a final dictionary of a Trainer ({'train_runtime': ...}) nor a progress bar nor the output of `time`",
            )
        )
    return log


def _read(log: TrainerLog, line: str, number: int, file: str) -> None:
    timed = TIME.match(line)
    if timed:
        seconds = int(timed["hours"] or 0) * 3_600 + int(timed["minutes"]) * 60 + float(timed["seconds"])
        name = TIMES[timed["name"]]
        run = _run(log, number, new=bool(log.runs) and name in log.runs[-1].claims)
        run.claims[name] = Claim(value=round(seconds, 9), printed=timed["time"])
        run.timed = True
    elif line.startswith("{") and "'" in line:
        _dictionary(log, line, number, file)
    else:
        bars = list(BAR.finditer(line))
        if bars:
            _bar(log, bars[-1], number)


def _run(log: TrainerLog, number: int, *, new: bool) -> TrainerRun:
    if new or not log.runs:
        log.runs.append(TrainerRun(number))
    return log.runs[-1]


def _dictionary(log: TrainerLog, line: str, number: int, file: str) -> None:
    end = line.rfind("}") + 1
    try:
        pairs = _printed(line[:end])
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        if FINAL in line:
            log.problems.append(LogProblem(file, number, "a dictionary that is cut off or no Python literal; passed over"))
        return
    final = FINAL in pairs
    if not final and not any(key.startswith("eval_") for key in pairs):
        return
    if final and log.unassigned is not None:
        log.runs.append(log.unassigned)
    log.unassigned = None
    run = _run(log, number, new=final and bool(log.runs) and (log.runs[-1].finished or log.runs[-1].timed))
    for key, printed in pairs.items():
        if key not in FIGURES or (key == "epoch" and not final):
            continue
        value = _number(printed)
        if value is None:
            log.problems.append(LogProblem(file, number, f"{key} is {printed[:40]}, not a finite number; left out"))
        else:
            run.claims[FIGURES[key]] = Claim(value=value, printed=printed)
    run.finished = run.finished or final


def _printed(text: str) -> dict[str, str]:
    """Return the values of a literal dictionary as they are printed, by key."""
    node = ast.parse(text, mode="eval").body
    if not isinstance(node, ast.Dict):
        raise TypeError("not a dictionary")
    found = {}
    for key, value in zip(node.keys, node.values, strict=True):
        segment = ast.get_source_segment(text, value)
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and segment:
            literal = isinstance(value, ast.Constant) and isinstance(value.value, str)
            found[key.value] = str(ast.literal_eval(value)) if literal else segment
    return found


def _number(printed: str) -> float | None:
    try:
        value = float(printed)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _bar(log: TrainerLog, bar: re.Match[str], number: int) -> None:
    last = log.runs[-1] if log.runs else None
    if last is not None and last.finished and not last.timed and not _closes(last, bar):
        log.unassigned = log.unassigned or TrainerRun(number)
        _claim_bar(log.unassigned, bar)
    else:
        _claim_bar(_run(log, number, new=last is not None and last.timed), bar)


def _closes(run: TrainerRun, bar: re.Match[str]) -> bool:
    """Return whether a bar after the final dictionary is the last state of that training's own bar."""
    known = run.claims.get("total_steps") or run.claims.get("steps")
    return bar["done"] == bar["total"] and (known is None or known.value == int(bar["total"]))


def _claim_bar(run: TrainerRun, bar: re.Match[str]) -> None:
    # Bars of an evaluation show less time than that of the training around them.
    elapsed, before = _clock(bar["elapsed"]), run.claims.get("progress_elapsed_s")
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


def _clock(text: str) -> float:
    seconds = 0
    for part in text.split(":"):
        seconds = seconds * 60 + int(part)
    return float(seconds)


def _say_what_a_step_is(run: TrainerRun) -> None:
    """Note that a printed step is an optimizer step, where steps times its time is the training time."""
    step, steps, total = (run.claims.get(name) for name in ("step_time_s", "steps", "train_time_s"))
    if step is None or steps is None or total is None or not total.value or step.note:
        return
    if abs(step.value * steps.value / total.value - 1) <= AGREES:
        run.claims["step_time_s"] = step.model_copy(update={"note": "An optimizer step: steps times this figure is the training time."})
