"""The figures of a person's own training as a log states them, the text that trainers print, and the record that is made of them.

Nothing in a log is ever evaluated: everything that is printed is read with regular expressions.
"""

import math
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

from tunemark.collector.audit.interval import duration, half_digit
from tunemark.collector.commands.options import chosen, read_number
from tunemark.collector.importers.import_io import Log, option_of
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.any_model import SIZE
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.names import product_of
from tunemark.schema.formats import tokens_in_row
from tunemark.schema.physics.memory import SHARDED
from tunemark.schema.records.published import Claim, Conditions, Origin, PublishedResult, Scalar
from tunemark.schema.vocabulary import Checkpointing, Method, Padding, PublishedStatus, SoftwareLevel

LOSSES = 10
"""Most logged losses that the loss at the start and at the end is the mean of: a quarter of all, if that is less."""
OWN_SOURCE = "999"
"""Source of a record that is no part of a document."""
FULL_ROWS = "Rows are full, so tokens follow from rows and their length."
RESUMED = "A resumed training: its tokens and steps give no rate."
"""The Trainer times one session, and counts the steps and tokens of all of them."""
AGREES = 0.01
"""Steps times seconds a step may differ from the training time by this share, for rounding and the first step."""
CONTRADICTS = 0.1
"""Figures that differ by more, after rounding, cannot be of one training."""


Stated = dict[str, Any]
"""Conditions of a training, from options or from the files of a log, by the names of `SETTINGS`. What is not stated is left out."""


def _model(option: str, text: str) -> str:
    """Return the name of a model. Raises TunemarkError for a size, which estimate answers with a usual model of it."""
    if re.fullmatch(SIZE, text.strip().lower()):
        raise TunemarkError(option, text, "is a size; a record needs the model: a name, hub id or config.json")
    return text


SETTINGS: dict[str, Callable[[str, str], Any]] = {
    "model": _model,
    "method": partial(chosen, known=Method),
    "accelerator": lambda _, text: text,
    "devices": read_number,
    "micro_batch": read_number,
    "gradient_accumulation": read_number,
    "sequence_length": partial(read_number, reader=tokens_in_row),
    "packing": lambda option, text: chosen(option, text, ("true", "false")) == "true",
    "padding": partial(chosen, known=Padding),
    "precision": lambda _, text: text,
    "rank": read_number,
    "checkpointing": partial(chosen, known=Checkpointing),
    "sharding": partial(chosen, known=SHARDED),
    "software": partial(chosen, known=get_args(SoftwareLevel)),
    "dataset": lambda _, text: text,
}
"""Setting -> the function that reads its text and names the option in an error."""


@dataclass(slots=True)
class OwnLog(Log):
    """The figures of one training, and everything in its log that could not be used."""

    trainer: str = "a trainer"
    """Name of the software that wrote the log."""
    claims: dict[str, Claim] = field(default_factory=dict)
    stated: Stated = field(default_factory=dict)
    """Conditions in the log itself."""
    losses: list[float] = field(default_factory=list)
    """Logged training losses in order."""
    device_rate: Claim | None = None
    """Tokens per second of one device, where the log has no total."""
    finished: bool = True
    not_a_number: str | None = None
    """The place of a loss that is not a number."""
    out_of_memory: int | None = None
    """Line of an out-of-memory error."""
    notes: list[str] = field(default_factory=list)

    def claim(self, quantity: str, value: float, *, printed: str | None = None, note: str | None = None) -> None:
        """Add a figure. Negative amounts are a problem; a loss may have any sign."""
        if value < 0 and not quantity.endswith("loss"):
            self.problem(None, f"{quantity} is {value:g}, not an amount; left out")
            return
        self.claims[quantity] = Claim(value=value, printed=printed or f"{value:.12g}", note=note)

    def number(self, name: str, value: object, line: int | None) -> float | None:
        """Return a figure of the log as a finite number; anything else is None and a problem. A loss that is not finite means that the training diverged."""
        try:
            number = None if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            number = None
        if number is not None and math.isfinite(number):
            return number
        if number is not None and name.endswith("loss"):
            self.not_a_number = self.not_a_number or f"{name}{f' in line {line}' if line else ''} is {value}"
        else:
            self.problem(line, f"{name} is {str(value)[:40]!r}, not a finite number; left out")
        return None


class Entry(NamedTuple):
    """One logged set of values."""

    values: Mapping[str, Any]
    line: int | None = None


class Column(NamedTuple):
    """The figure that a name of a log gives."""

    quantity: str
    """Empty for numbers that are used together with others."""
    of: str = "last"
    """`last`, or `max` for the highest value."""
    unit: float = 1.0
    shown: str = ""
    note: str | None = None


FORMATS = tomllib.loads(Path(__file__).with_name("log_formats.toml").read_text(encoding="utf-8"))
COLUMNS = {name: {printed: Column(**column) for printed, column in columns.items()} for name, columns in FORMATS["columns"].items()}


def gather(log: OwnLog, entries: Iterable[Entry], columns: Mapping[str, Column], losses: Collection[str] = ()) -> dict[str, list[float]]:
    """Add the figures of entries, and return their numbers by name. Known figures are kept.

    Zero is a loss or an accuracy; of other figures it means that nothing was counted.
    """
    found: dict[str, list[float]] = {}
    last: dict[str, Any] = {}
    for values, line in entries:
        for name, value in values.items():
            if (name in losses or name in columns) and (number := log.number(name, value, line)) is not None:
                (log.losses if name in losses else found.setdefault(name, [])).append(number)
                last[name] = value
    for name, column in columns.items():
        if name not in found or column.quantity in {"", *log.claims}:
            continue
        value = max(found[name]) if column.of == "max" else found[name][-1]
        as_logged = last[name] if column.of == "last" and isinstance(last[name], str) else None
        if value or column.quantity.endswith(("loss", "accuracy")):
            printed = f"{value:.9g} {column.shown}" if column.shown else as_logged
            log.claim(column.quantity, value * column.unit, printed=printed, note=column.note)
    return found


def record_of(log: OwnLog, given: Stated, facts: FactBase) -> PublishedResult:
    """Return the record of a training with a stated method. Options count more than the files of the log; contradictions are noted.

    Raises TunemarkError for an unknown card.
    """
    stated = log.stated | given
    for name, logged in log.stated.items():
        if stated[name] != logged:
            log.problem(None, f"{name} is {stated[name]}, and the log states {logged}; the option is used", noted=True)
    conditions = _conditions(log, stated, given, facts)
    add_derived(log, stated.get("devices"), full=bool(conditions.packing) or conditions.padding in {Padding.STATIC, Padding.NONE})
    status, reason = PublishedStatus.OK, []
    if log.out_of_memory is not None:
        status, reason = PublishedStatus.OOM, [f"Out of memory in line {log.out_of_memory} of the log."]
    elif log.not_a_number:
        status, reason = PublishedStatus.FAILED, [f"The training diverged: {log.not_a_number}."]
    elif not log.finished:
        status, reason = PublishedStatus.PARTIAL, ["The log does not contain the end of the training."]
    return PublishedResult(
        id=f"{OWN_SOURCE}-001",
        source=OWN_SOURCE,
        section=f"Log of {log.trainer}",
        origin=Origin(kind="document"),
        labels={name: stated[name] for name in ("model", "accelerator") if name in stated},
        conditions=conditions,
        claims=dict(sorted(log.claims.items())),
        status=status,
        note=" ".join([*reason, *log.notes]) or None,
    )


def _conditions(log: OwnLog, stated: Stated, given: Stated, facts: FactBase) -> Conditions:
    settings: dict[str, Scalar] = {
        setting: stated[name]
        for setting, name in (("data_parallel", "devices"), ("lora_r", "rank"), ("strategy", "sharding"), ("software", "software"))
        if name in stated
    }
    recomputed = stated.get("checkpointing")
    if recomputed is not None:
        settings["gradient_checkpointing"] = "selective" if recomputed == Checkpointing.SELECTIVE else recomputed == Checkpointing.FULL
    card = facts.accelerator(stated["accelerator"], option_of("accelerator")) if "accelerator" in stated else None
    model = facts.find_model(stated["model"]) if "model" in stated else None
    if "model" in stated and model is None:
        # A name in the log may be a path; that of an option is a key already.
        log.problem(None, f"the model {stated['model']!r} has no card; give --model", noted=True)
    # Without a statement rows need not be full: the collators of these trainers pad to the longest row of a batch.
    dynamic = "padding" not in stated and not stated.get("packing")
    named = ("method", "micro_batch", "gradient_accumulation", "sequence_length", "packing", "precision", "dataset")
    return Conditions(
        **{name: stated[name] for name in named if name in stated},
        model=model and model.key,
        accelerator=card and product_of(card),
        accelerator_count=stated.get("devices"),
        padding=Padding.DYNAMIC if dynamic else stated.get("padding"),
        settings=settings,
        from_repository=tuple(f"{name}, from the log" for name in SETTINGS if name in log.stated and name not in given),
        assumed=(
            *(["all devices are data-parallel"] if stated.get("devices", 1) > 1 else []),
            *(["rows are padded to the longest of their batch"] if dynamic else []),
        ),
    )


def add_derived(log: OwnLog, devices: int | None, *, full: bool) -> None:
    """Add the figures that follow from others, the conditions and the losses; `full` rows hold no padding."""
    resumed = False
    for note in contradictions(log.claims):
        resumed = resumed or RESUMED in note
        log.notes.append(note)
        log.problem(None, note, noted=True)
    if resumed:
        log.claims.pop("tokens", None)
    rate = log.device_rate
    if rate is not None:
        if devices is None:
            raise TunemarkError("--devices", "", "the log has tokens per second of one device; give the number of devices")
        note = f"{rate.printed} of one device x {devices}. {rate.note or ''}".strip()
        log.claim("tokens_per_s", rate.value * devices, note=note)
    if log.losses:
        count = max(1, min(LOSSES, len(log.losses) // 4))
        first, last = log.losses[:count], log.losses[-count:]
        log.claim("loss_start", sum(first) / len(first), note=f"Mean of the first {count} logged losses.")
        if "train_loss" not in log.claims:
            log.claim("train_loss", sum(last) / len(last), note=f"Mean of the last {count} logged losses.")
    steps, seconds = (log.claims.get(name) for name in ("steps", "train_time_s"))
    if full and not resumed and "step_time_s" not in log.claims and steps and seconds and steps.value:
        note = f"{seconds.printed} s over {steps.printed} steps. {FULL_ROWS}"
        log.claim("step_time_s", seconds.value / steps.value, printed=f"{seconds.value / steps.value:.6g}", note=note)
    if not full and not resumed and "tokens" not in log.claims and "tokens_per_s" not in log.claims:
        # Rows may be shorter than their limit, so no rate of tokens may follow from rows and a step time.
        step = log.claims.pop("step_time_s", None)
        if step is not None:
            log.claim("steps_per_s", 1 / step.value, printed=f"{1 / step.value:.6g}", note=step.note)
        fix = "have the trainer count tokens, or give --set packing=true or --set padding=static if all rows are full"
        log.problem(None, f"no count of tokens, and rows need not be full; for tokens per second {fix}", noted=True)


def contradictions(claims: Mapping[str, Claim]) -> Iterator[str]:
    """Yield a sentence for each pair of figures that cannot both be right."""
    wall, total = claims.get("wall_s"), claims.get("train_time_s")
    if wall and total and wall.value < total.value * (1 - AGREES):
        yield f"The whole process took {wall.printed}, less than its training ({total.printed} s)."
    rate, steps = claims.get("steps_per_s"), claims.get("steps")
    if rate and steps and total and total.value and "total_steps" not in claims:
        counted = steps.value / total.value
        if abs(counted / rate.value - 1) > CONTRADICTS + half_digit(rate):
            yield f"{steps.printed} steps in {total.printed} s are {counted:.4g} a second, and {rate.printed} are printed. {RESUMED}"


LONGEST_LINE = 100_000
"""Characters of a line that are read; a trainer prints none above."""
NOTHING = "contains neither a final dictionary of a Trainer ({'train_runtime': ...}) nor a progress bar or the output of `time`"
TRAINER = COLUMNS["trainer"]
OPTIMIZER_STEP = "An optimizer step: steps times this figure is the training time."
FINAL = "train_runtime"
"""Only the dictionary at the end of a training has this key."""
TIMES = {"real": "wall_s", "user": "user_s", "sys": "system_s"}
ANSI = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
BAR = re.compile(
    r"(?P<done>\d{1,12})/(?P<total>\d{1,12}) \[(?P<elapsed>(?:\d{1,6}:)?\d{1,6}:\d{2})<[\d:?]{1,20}, +(?P<rate>(?P<number>\d{1,12}(?:\.\d{1,12})?)(?P<unit>s/it|it/s))"
)
DICTIONARY = re.compile(r"""\{\s*['"][A-Za-z_][^{}]*\}""")
PAIR = re.compile(r"""['"](?P<name>[A-Za-z_]\w*)['"]\s*:\s*['"]?(?P<value>[^'",{}]*)""")
"""A key of a dictionary of Python or JSON, and its value as printed."""
TIME = re.compile(r"(?P<name>real|user|sys)\s+(?P<time>(?:(?:\d{1,6}h)?\d{1,9}m)?\d{1,9}(?:\.\d{1,9})?s?)")
"""Output of bash (`real 1m2.5s`) and of `time -p` (`real 62.50`)."""
OUT_OF_MEMORY = re.compile(
    r"(?:CUDA|HIP|XPU|MPS backend) out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED|Failed to allocate .{0,80}memory on device"
)


def elapsed_s(bar: re.Match[str]) -> float:
    """Return the seconds that a progress bar shows."""
    return duration(bar["elapsed"]) or 0.0


@dataclass(slots=True)
class _Printed:
    """What a log has printed of its training so far."""

    log: OwnLog
    entries: list[Entry] = field(default_factory=list)
    bar: re.Match[str] | None = None
    times: dict[str, Claim] = field(default_factory=dict)

    def read(self, line: str, number: int) -> None:
        """Read a line."""
        if OUT_OF_MEMORY.search(line):
            self.log.out_of_memory = self.log.out_of_memory or number
        elif time := TIME.fullmatch(line):
            seconds = duration(f"{time['time'].removesuffix('s')}s") or 0.0
            self.times[TIMES[time["name"]]] = Claim(value=round(seconds, 9), printed=time["time"])
        else:
            # Loggers, ranks and bars print text before a dictionary.
            dictionary = DICTIONARY.search(line)
            for bar in list(BAR.finditer(line[: dictionary.start()] if dictionary else line))[-1:]:
                self._add_bar(bar)
            if dictionary:
                self._add_pairs({pair["name"]: pair["value"].strip() for pair in PAIR.finditer(dictionary[0])}, number)
            elif FINAL in line:
                self.log.problem(number, "a dictionary that is cut off, or not flat; ignored")

    def _add_bar(self, bar: re.Match[str]) -> None:
        """Keep the last state of the progress bar. That of an evaluation shows less time, or after the training another total."""
        of_evaluation = self.log.finished and not (bar["done"] == bar["total"] and (self.bar is None or self.bar["total"] == bar["total"]))
        if not of_evaluation and (self.bar is None or elapsed_s(bar) >= elapsed_s(self.bar)):
            self.bar = bar

    def _add_pairs(self, pairs: Mapping[str, str], number: int) -> None:
        """Add the values of a dictionary, as printed."""
        final = FINAL in pairs
        if final or "loss" in pairs or any(key.startswith("eval_") for key in pairs):
            if self.log.finished and (final or "loss" in pairs):
                place = f"{self.log.file}:{number}"
                raise TunemarkError(place, "", "is of a second training; keep the lines of one", exit_code=Exit.INVALID)
            self.log.finished = self.log.finished or final
            # The epoch of an evaluation is that of its moment.
            self.entries.append(Entry({key: value for key, value in pairs.items() if final or key != "epoch"}, number))


def read_printed_log(text: str, file: str) -> OwnLog:
    """Return the training of a log. Raises TunemarkError with exit code 3 if there is none, or more than one."""
    log = OwnLog(file, finished=False)
    printed = _Printed(log)
    # Progress bars rewrite their line: a carriage return separates as a line feed does.
    for number, line in enumerate(text.split("\n"), start=1):
        for part in line[:LONGEST_LINE].split("\r"):
            if words := ANSI.sub("", part).strip():
                printed.read(words, number)
    if not (printed.entries or printed.bar or printed.times or log.out_of_memory):
        raise TunemarkError(file, "", NOTHING, exit_code=Exit.INVALID)
    gather(log, printed.entries, TRAINER, ("loss",))
    if printed.bar is not None:
        _add_bar(log, printed.bar)
    log.claims |= {name: claim for name, claim in printed.times.items() if claim.value}
    return log


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
