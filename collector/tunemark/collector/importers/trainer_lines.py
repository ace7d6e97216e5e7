"""Lines of trainer logs: what one line says, whatever stands around it. Nothing of a line is ever evaluated."""

import ast
import math
import re

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
AMOUNTS = frozenset(FIGURES) - {"train_loss", "eval_loss", "epoch", "entropy", "mean_token_accuracy", "eval_accuracy"}
"""Keys whose figure is more than nothing, or wrong."""
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
"""Of bash (`real 1m2.5s`) and of `time -p` (`real 62.50`)."""
GNU_TIME = re.compile(
    r"(?P<user>\d{1,9}\.\d{1,3})user (?P<sys>\d{1,9}\.\d{1,3})system (?P<real>(?:\d{1,6}:)?\d{1,6}:\d{2}(?:\.\d{1,3})?)elapsed"
)
"""Of /usr/bin/time, on one line."""
GNU_VERBOSE = {
    "Elapsed (wall clock) time (h:mm:ss or m:ss)": "wall_s",
    "User time (seconds)": "user_s",
    "System time (seconds)": "system_s",
}
"""Of /usr/bin/time -v, a line each."""
HEADING = re.compile(r"\*{3,}\s*(?P<part>train|eval) metrics\s*\*{3,}")
TABLE_LINE = re.compile(r"^(?P<key>[a-z][a-z0-9_]{2,80})\s+=\s+(?P<value>\S{1,60})$")
OUT_OF_MEMORY = re.compile(
    r"(?:CUDA|HIP|XPU|MPS backend) out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED|Failed to allocate .{0,80}memory on device"
)
UNIT_GF = 2**30
"""The Trainer's table prints floating point operations in units of 2^30, as GF."""


def plain(line: str) -> str:
    """Return a line without colours and other orders to a terminal."""
    return ANSI.sub("", line).strip()


def dictionary_in(line: str) -> tuple[str, str] | None:
    """Return what stands before a dictionary in a line, and the dictionary; loggers, ranks and bars put much before it."""
    found = DICTIONARY.search(line)
    if not found:
        return None
    end = line.rfind("}") + 1
    return line[: found.start()], line[found.start() : end if end > found.start() else len(line)]


def printed_pairs(text: str) -> dict[str, str]:
    """Return the values of a literal dictionary as they are printed, by key; JSON's dictionaries are read too.

    Raises
    ------
    ValueError, TypeError, SyntaxError, RecursionError, MemoryError
        Where it is none.

    """
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


def times_in(line: str) -> dict[str, tuple[float, str]]:
    """Return what the output of a `time` says in a line: quantity -> seconds and the printed words."""
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
        if printed.endswith("GF"):
            return float(printed[:-2]) * UNIT_GF
    except ValueError:
        return None
    return number(printed)


def number(printed: str) -> float | None:
    """Return a finite number as it is printed, else None."""
    try:
        value = float(printed)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def is_nan(printed: str) -> bool:
    """Return whether a figure is printed as no number: a loss that is one says that the training went wrong."""
    return printed.strip().lower() in {"nan", "-nan", "inf", "-inf", "infinity", "-infinity"}
