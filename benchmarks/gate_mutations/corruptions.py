"""Corruptions of what was measured: steps, clocks, status, losses, speed, identity, and the results that a run replaces.

Each changes a copy of a base and leaves it in canonical form under the right name, so that only the content is wrong.
"""

import re
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from gate_mutations.bases import Base, Content, file_name, h100_lora, identity_of, suiting
from gate_mutations.simulated import Scenario, gpu_machine, simulate
from tunemark.harness.plan.options import Options
from tunemark.schema.formats import GIB, MIB
from tunemark.schema.records.base import canonical_json, content_id

Change = Callable[[Content], Content | list[Content] | None]
COUNTS = ("slot_tokens", "real_tokens", "supervised_tokens", "documents", "rows")
COLUMNS = ("completed_at_s", *COUNTS, "loss")


@dataclass(frozen=True)
class Corruption:
    """One way in which a submission can be wrong."""

    family: str
    name: str
    field: str
    """Pattern of the fields of which one should be named."""
    change: Change
    """Change a copy of a base in place; return other content, or several submissions of which at least one must be refused."""
    on: str = "ok"
    """Traits of the bases that it suits."""
    flag: bool = False
    """True if it is possible, though unlikely: a request for a second run is enough."""
    place: Callable[[Content], Path] = file_name

    @property
    def bases(self) -> list[Base]:
        """The bases that it suits."""
        return list(suiting(self.on))

    def applied(self, to: Base) -> list[Content]:
        """Return the corrupted submissions of a base."""
        content = deepcopy(to.content)
        changed = self.change(content)
        return changed if isinstance(changed, list) else [content if changed is None else changed]

    def names(self, text: str) -> bool:
        """Return True if a problem names one of the fields."""
        return re.search(rf"\b(?:{self.field})", text) is not None


CORRUPTIONS: list[Corruption] = []


def corrupt(family: str, name: str, field: str, on: str = "ok", **more: Any) -> Callable[[Change], Change]:
    """Register a function as a corruption."""

    def register(change: Change) -> Change:
        CORRUPTIONS.append(Corruption(family, name, field, change, on, **more))
        return change

    return register


def put(family: str, name: str, values: dict[str, Any], on: str = "ok", field: str = "", **more: Any) -> None:
    """Register a corruption that replaces values by dotted path; `*` is each entry of a list, a function maps the old value."""

    def change(content: Content) -> None:
        for path, value in values.items():
            replace_at(content, path.split("."), value)

    names = field or "|".join(re.escape(re.sub(r"(\.\*|\.\d+)+(\.|$)", r"\2", path)) for path in values)
    corrupt(family, name, names, on, **more)(change)


def replace_at(node: Any, path: list[str], value: Any) -> None:
    """Replace the value at a path in JSON content."""
    name, *rest = path
    places = range(len(node)) if name == "*" else [int(name) if isinstance(node, list) else name]
    for place in places:
        if rest:
            replace_at(node[place], rest, value)
        else:
            node[place] = value(node[place]) if callable(value) else deepcopy(value)


def cut(content: Content, kept: Iterable[int]) -> None:
    """Keep only some steps, as if the others had not been logged."""
    kept = list(kept)
    trace = content["trace"]
    for column in (*COLUMNS, *(["micro_completed_at_s"] if trace.get("micro_completed_at_s") else [])):
        trace[column] = [trace[column][step] for step in kept]
    for rank in content["ranks"]:
        rank["own_work_s"] = [rank["own_work_s"][step] for step in kept]
    content["outcome"]["last_good_step"] = len(kept)
    content["events"] = [event for event in content["events"] if event["step"] <= len(kept)]


def retime(content: Content, new: Callable[[np.ndarray], np.ndarray], *, whole: bool = True) -> None:
    """Replace the step times; `whole` moves the rest of the time line, so that the record stays in order."""
    trace = content["trace"]
    ends = np.array([trace["started_at_s"], *trace["completed_at_s"]])
    times = np.asarray(new(np.diff(ends)), float)
    starts, moved = ends[:-1], trace["started_at_s"] + np.concatenate([[0], np.cumsum(times)])
    for step, inside in enumerate(trace.get("micro_completed_at_s") or []):
        scale = times[step] / (ends[step + 1] - ends[step])
        trace["micro_completed_at_s"][step] = [moved[step] + (at - starts[step]) * scale for at in inside]
    trace["completed_at_s"] = [float(at) for at in moved[1:]]
    for rank in content["ranks"]:
        rank["own_work_s"] = [own * new_s / old_s for own, new_s, old_s in zip(rank["own_work_s"], times, np.diff(ends), strict=True)]
    if whole:
        later = float(moved[-1] - ends[-1])
        for mark in content["timeline"]:
            mark["at_s"] += later if mark["at_s"] >= ends[-1] else 0
        content["process"]["wall_s"] += later
        scale = times.sum() / np.diff(ends).sum()
        content["process"] |= {name: content["process"][name] * scale for name in ("user_s", "system_s")}
        for name in ("joules", "window_s"):
            if content["utilisation"] and content["utilisation"]["energy"][name]:
                content["utilisation"]["energy"][name] *= scale


def phase(content: Content, name: str, *, last: bool = False) -> dict[str, Any]:
    """Return the first or last phase of a name."""
    marks = [mark for mark in content["timeline"] if mark["phase"] == name]
    return marks[-1 if last else 0]


def median(content: Content) -> float:
    """Return the median step time."""
    return float(np.median(np.diff([content["trace"]["started_at_s"], *content["trace"]["completed_at_s"]])))


def columns(content: Content, change: Callable[[list[int]], list[int]], *names: str) -> None:
    """Change count columns of the trace."""
    for name in names or COUNTS:
        content["trace"][name] = change(content["trace"][name])


# Arithmetic of the step log -------------------------------------------------------------------------------------------------

TIMES = r"trace|timeline|process|micro_completed|probe|utilisation|ranks"


@corrupt("arithmetic", "step times halved, time line kept", TIMES)
def _(c: Content) -> None:
    retime(c, lambda times: times / 2, whole=False)


@corrupt("arithmetic", "step times a tenth shorter, time line kept", TIMES)
def _(c: Content) -> None:
    retime(c, lambda times: times * 0.9, whole=False)


@corrupt("arithmetic", "steps end long before the phase after training begins", TIMES)
def _(c: Content) -> None:
    cut(c, range(len(c["trace"]["loss"]) // 2))
    c["plan"]["measurement"]["max_steps"] = len(c["trace"]["loss"])


@corrupt("arithmetic", "tokens of all steps doubled", "trace")
def _(c: Content) -> None:
    columns(c, lambda counts: [2 * count for count in counts], "slot_tokens", "real_tokens", "supervised_tokens")


@corrupt("arithmetic", "tokens of one step raised by a hundredth", "trace", "ok fixed")
def _(c: Content) -> None:
    for name in ("slot_tokens", "real_tokens", "supervised_tokens"):
        c["trace"][name][20] = int(c["trace"][name][20] * 1.01)


@corrupt("arithmetic", "documents tripled though rows are not packed", "trace|documents", "ok rows")
def _(c: Content) -> None:
    columns(c, lambda counts: [3 * count for count in counts], "documents")


@corrupt("arithmetic", "documents fewer than rows though rows are not packed", "trace|documents", "ok rows")
def _(c: Content) -> None:
    columns(c, lambda counts: [count - 1 for count in counts], "documents")


@corrupt("arithmetic", "more documents than pieces without a label", "trace|documents|supervised", "ok packed")
def _(c: Content) -> None:
    columns(c, lambda counts: [count + 400 for count in counts], "documents")


@corrupt("arithmetic", "rows of each step 1 below the batch", "trace|rows|plan.batch")
def _(c: Content) -> None:
    columns(c, lambda counts: [count - 1 for count in counts], "rows")


@corrupt("arithmetic", "no row in any step", "trace|rows")
def _(c: Content) -> None:
    columns(c, lambda counts: [0] * len(counts), "rows")


@corrupt("arithmetic", "half of the steps dropped, times kept: double-length steps with one step's tokens", TIMES)
def _(c: Content) -> None:
    cut(c, range(1, len(c["trace"]["loss"]), 2))


@corrupt("arithmetic", "completion times swapped", "trace|completed_at_s")
def _(c: Content) -> None:
    times = c["trace"]["completed_at_s"]
    times[20], times[21] = times[21], times[20]


@corrupt("arithmetic", "supervised above real tokens", "trace|supervised")
def _(c: Content) -> None:
    c["trace"]["supervised_tokens"][3] = c["trace"]["real_tokens"][3] + 1


@corrupt("arithmetic", "every real token supervised, also the first of a row, which has no context", "trace|supervised", "ok causal")
def _(c: Content) -> None:
    c["trace"]["supervised_tokens"] = list(c["trace"]["real_tokens"])


@corrupt("arithmetic", "one supervised token in each step of a language model", "trace|supervised", "ok causal")
def _(c: Content) -> None:
    columns(c, lambda counts: [1] * len(counts), "supervised_tokens")


@corrupt("arithmetic", "a classifier with a label on every token", "trace|supervised", "bert")
def _(c: Content) -> None:
    c["trace"]["supervised_tokens"] = list(c["trace"]["real_tokens"])


@corrupt("arithmetic", "real tokens below the slots though no row is padded", "trace|real_tokens|plan.data.padding", "ok fixed")
def _(c: Content) -> None:
    columns(c, lambda counts: [count - 7 for count in counts], "real_tokens", "supervised_tokens")


@corrupt("arithmetic", "slots that are not rows times a width", "trace|slot_tokens")
def _(c: Content) -> None:
    columns(c, lambda counts: [count - 1 for count in counts], "slot_tokens")
    c["trace"]["real_tokens"] = [min(pair) for pair in zip(c["trace"]["real_tokens"], c["trace"]["slot_tokens"], strict=True)]
    c["trace"]["supervised_tokens"] = [min(pair) for pair in zip(c["trace"]["supervised_tokens"], c["trace"]["real_tokens"], strict=True)]


@corrupt("arithmetic", "no token in any step", "trace")
def _(c: Content) -> None:
    columns(c, lambda counts: [0] * len(counts), "slot_tokens", "real_tokens", "supervised_tokens")


@corrupt("arithmetic", "no document in any step", "trace|documents")
def _(c: Content) -> None:
    columns(c, lambda counts: [0] * len(counts), "documents")


@corrupt("arithmetic", "more slots than rows times the longest row", "trace|slot_tokens")
def _(c: Content) -> None:
    limit = c["plan"]["batch"]["global_batch"] * c["plan"]["data"]["sequence_length"]
    c["trace"]["slot_tokens"][5] = limit + c["plan"]["batch"]["global_batch"]


put("arithmetic", "global_batch not the product", {"plan.batch.global_batch": lambda rows: rows + 1}, field="plan.batch|batch")


@corrupt("arithmetic", "data_parallel 4 on one device", "plan.batch|batch|plan.device|trace", "ok one")
def _(c: Content) -> None:
    c["plan"]["batch"] |= {"data_parallel": 4, "global_batch": 4 * c["plan"]["batch"]["global_batch"]}


@corrupt("arithmetic", "data_parallel 1 on two devices that each hold a replica", "plan.batch|batch|plan.device|trace", "ok ranks")
def _(c: Content) -> None:
    c["plan"]["batch"] |= {"data_parallel": 1, "micro_batch": 2 * c["plan"]["batch"]["micro_batch"]}


put("arithmetic", "more steps than plan.measurement.max_steps", {"plan.measurement.max_steps": lambda steps: steps - 7}, "ok counted")
put(
    "arithmetic",
    "more passes over the rows than epochs asked for",
    {"plan.data.training_rows": 16, "plan.measurement.epochs": 1},
    field="plan|trace",
)
put(
    "arithmetic",
    "evaluation though the plan has none",
    {"evaluation": {"split": "synthetic rows from another seed", "rows": 64, "loss": 6.1, "loss_standard_error": 0.05, "accuracy": None}},
    "ok !evaluated",
    field="evaluation|plan.measurement.evaluate|plan.data.evaluation_rows",
)
put(
    "arithmetic",
    "more evaluated rows than the plan holds out",
    {"evaluation.rows": 5_000},
    "evaluated",
    field="evaluation|plan.data.evaluation",
)
put(
    "arithmetic",
    "fewer evaluated rows than the plan holds out",
    {"evaluation.rows": 256},
    "evaluated",
    field="evaluation|plan.data.evaluation",
)
put(
    "arithmetic",
    "accuracy perfect with a loss of random guessing",
    {"evaluation.accuracy": 1.0, "evaluation.loss": 1.7918},
    "evaluated",
    field="evaluation",
)
put("arithmetic", "accuracy that no number of right rows gives", {"evaluation.accuracy": 0.9245}, "evaluated", field="evaluation")
put(
    "arithmetic",
    "accuracy below chance with a loss near 0",
    {"evaluation.accuracy": 0.0625, "evaluation.loss": 0.02},
    "evaluated",
    field="evaluation",
)
put("arithmetic", "evaluation loss of 0", {"evaluation.loss": 0.0, "evaluation.loss_standard_error": 0.0}, "evaluated", field="evaluation")
put("arithmetic", "negative evaluation loss", {"evaluation.loss": -0.3}, "evaluated", field="evaluation")
put(
    "arithmetic",
    "a finished run without the planned evaluation",
    {"evaluation": None},
    "evaluated",
    field="evaluation|timeline|plan.measurement",
)
put("arithmetic", "evaluation without a loss in a run that is ok", {"evaluation.loss": None}, "evaluated", field="evaluation|outcome")
put(
    "arithmetic", "standard error of the loss far above the loss", {"evaluation.loss_standard_error": 40.0}, "evaluated", field="evaluation"
)
put(
    "arithmetic",
    "bytes saved though the plan saves nothing",
    {"saved_bytes": 1_250_000},
    field="saved_bytes|plan.measurement.save|timeline",
)
put(
    "arithmetic",
    "lengths of rows of an endless synthetic stream",
    {"row_lengths": {"rows": 900, "mean": 40.0, "minimum": 4, "median": 38, "p90": 60, "p95": 62, "p99": 64, "maximum": 64}},
    field="row_lengths|plan.data",
)


@corrupt("arithmetic", "own work of a rank longer than all steps", "ranks|own_work", "ok ranks")
def _(c: Content) -> None:
    c["ranks"][1]["own_work_s"][4] = 10_000.0


@corrupt("arithmetic", "a rank copied from another to the digit", "ranks|own_work", "ok ranks")
def _(c: Content) -> None:
    c["ranks"][1] = {**c["ranks"][0], "rank": 1}


@corrupt("arithmetic", "own work of a rank 30% longer than each step", "ranks|own_work", "ok ranks")
def _(c: Content) -> None:
    c["ranks"][1]["own_work_s"] = [1.3 * time for time in np.diff([c["trace"]["started_at_s"], *c["trace"]["completed_at_s"]])]


@corrupt("arithmetic", "a rank without work in any step", "ranks|own_work", "ok ranks")
def _(c: Content) -> None:
    c["ranks"][1]["own_work_s"] = [0.0] * len(c["trace"]["loss"])


@corrupt("arithmetic", "own work of fewer steps than the trace has", "ranks|own_work", "ok ranks")
def _(c: Content) -> None:
    c["ranks"][1]["own_work_s"] = c["ranks"][1]["own_work_s"][:10]


@corrupt("arithmetic", "own work of each rank a fixed share of the step to the digit", "ranks|own_work", "ok ranks")
def _(c: Content) -> None:
    for rank in c["ranks"]:
        rank["own_work_s"] = [0.5 * time for time in np.diff([c["trace"]["started_at_s"], *c["trace"]["completed_at_s"]])]


put("arithmetic", "units: own work in milliseconds", {"ranks.*.own_work_s.*": lambda time: 1e3 * time}, "ok ranks", field="ranks|own_work")
put(
    "arithmetic",
    "a rank holds more host memory than the host has",
    {"ranks.1.host_rss_bytes": 40 * 2**40},
    "ok ranks",
    field="ranks|memory|environment",
)
put(
    "arithmetic",
    "a rank's peak above the highest of all ranks",
    {"ranks.1.device_allocated_bytes": 70 * GIB},
    "ok ranks gpu",
    field="ranks|memory.device",
)
put("arithmetic", "a rank is listed twice", {"ranks.1.rank": 0}, "ok ranks", field="ranks")


@corrupt("arithmetic", "ranks taken out of a run of two processes", "ranks|plan.device", "ok ranks")
def _(c: Content) -> None:
    c["ranks"] = []


@corrupt("arithmetic", "a rank record in a run of one process", "ranks|plan.device", "ok one")
def _(c: Content) -> None:
    own = [0.9 * time for time in np.diff([c["trace"]["started_at_s"], *c["trace"]["completed_at_s"]])]
    c["ranks"] = [{"rank": 0, "own_work_s": own, "device_allocated_bytes": None, "device_reserved_bytes": None, "host_rss_bytes": None}]


@corrupt(
    "arithmetic",
    "compile events in steps of a run that compiled nothing, to push the window",
    "events|effective.compile|plan.model.compile",
)
def _(c: Content) -> None:
    c["events"] = [{"step": step, "kind": "compile", "amount": 1} for step in range(1, len(c["trace"]["loss"]) // 2)]


@corrupt("arithmetic", "allocator growth on a CPU, to push the window", "events|memory", "ok cpu")
def _(c: Content) -> None:
    c["events"] = [{"step": step, "kind": "allocator_growth", "amount": MIB} for step in range(1, len(c["trace"]["loss"]) // 2)]


put(
    "arithmetic",
    "the allocator grew by more than the device holds",
    {"events.0.amount": 900 * GIB},
    "gpu",
    field="events|memory|environment.devices",
)
put("arithmetic", "an event after the last step", {"events": [{"step": 9_999, "kind": "compile", "amount": 1}]}, field="events")


@corrupt("arithmetic", "the allocator grew in every step, by more than it ever held", "events|memory", "ok gpu")
def _(c: Content) -> None:
    c["events"] = [{"step": step, "kind": "allocator_growth", "amount": GIB} for step in range(1, len(c["trace"]["loss"]) + 1)]


@corrupt("arithmetic", "micro-steps done in the first thousandth of each step", "trace|micro", "ok micro")
def _(c: Content) -> None:
    starts = [c["trace"]["started_at_s"], *c["trace"]["completed_at_s"]]
    for step, inside in enumerate(c["trace"]["micro_completed_at_s"]):
        c["trace"]["micro_completed_at_s"][step] = [starts[step] + (at - starts[step]) / 1_000 for at in inside]


@corrupt("arithmetic", "one micro-step too many", "trace|micro", "ok micro")
def _(c: Content) -> None:
    c["trace"]["micro_completed_at_s"][2].append(c["trace"]["completed_at_s"][2])


@corrupt("arithmetic", "half of the micro-steps of each step missing", "trace|micro", "ok micro")
def _(c: Content) -> None:
    c["trace"]["micro_completed_at_s"] = [inside[::2] for inside in c["trace"]["micro_completed_at_s"]]


@corrupt("arithmetic", "micro-steps of another step", "trace|micro", "ok micro")
def _(c: Content) -> None:
    c["trace"]["micro_completed_at_s"][3] = c["trace"]["micro_completed_at_s"][4]


put("arithmetic", "units: milliseconds in the trace", {"trace.completed_at_s.*": lambda at: 1e3 * at}, field=TIMES)
put("arithmetic", "units: peak memory in MiB", {"memory.host_rss.peak_bytes": lambda size: size // MIB}, field="memory")
put(
    "arithmetic",
    "units: peak device memory in GiB",
    {"memory.device_allocated.peak_bytes": lambda size: size // GIB},
    "gpu",
    field="memory|model",
)
put("arithmetic", "units: host memory in KiB", {"memory.host_rss.peak_bytes": lambda size: size // 1024}, field="memory")
put("arithmetic", "units: wall in minutes", {"process.wall_s": lambda wall: wall / 60}, field="process|timeline|trace")
put("arithmetic", "units: wall in milliseconds", {"process.wall_s": lambda wall: wall * 1e3}, field="process|timeline|trace")
put("arithmetic", "units: CPU time in ticks", {"process.user_s": lambda time: time * 100}, field="process")
put("arithmetic", "units: tokens in thousands", {f"trace.{name}.*": lambda n: n // 1_000 for name in COUNTS[:3]}, "ok gpu", field="trace")
put(
    "arithmetic",
    "units: memory of the host in GiB",
    {"environment.memory_bytes": lambda size: size // GIB},
    "any",
    field="environment.memory|memory",
)
put(
    "arithmetic",
    "units: power in milliwatts",
    {"utilisation.devices.*.power_mean_w": lambda power: power * 1e3},
    "energy",
    field="utilisation",
)
put(
    "arithmetic",
    "units: energy in watt hours",
    {"utilisation.energy.joules": lambda energy: energy / 3_600},
    "ok energy",
    field="utilisation|energy",
)
put("arithmetic", "units: clock in GHz", {"utilisation.devices.*.clock_mean_mhz": lambda clock: clock / 1e3}, "energy", field="utilisation")


# Clocks and phases ----------------------------------------------------------------------------------------------------------

DATES = "started_at|environment|harness|file"


def move_day(day: str) -> Callable[[str], str]:
    """Return a function that replaces the day of a time."""
    return lambda moment: day + moment[10:]


put("clocks", "started in 1970", {"started_at": move_day("1970-01-01")}, "any", field=DATES)
put("clocks", "started ten years from now", {"started_at": move_day("2036-11-22")}, "any", field=DATES)
put("clocks", "started at the end of all clocks", {"started_at": "9999-12-31T23:59:59.999999Z"}, "any", field=DATES)
put("clocks", "started before the harness existed", {"started_at": move_day("2026-09-30")}, "any", field=DATES)
put("clocks", "started years before its torch was released", {"started_at": move_day("2024-02-03")}, "any", field=DATES)
put("clocks", "started before the GPU was on the market", {"started_at": move_day("2021-03-04")}, "gpu", field=DATES)
put("clocks", "started_at not UTC", {"started_at": lambda at: at.replace("Z", "+05:00")}, "any", field="started_at")
put("clocks", "started_at without zone", {"started_at": lambda at: at.rstrip("Z")}, "any", field="started_at")
put("clocks", "started_at a number of seconds", {"started_at": 1_795_334_414}, "any", field="started_at")


def _other_day(content: Content) -> Path:
    return file_name(content).with_name(f"20261103-{file_name(content).name.split('-', 1)[1]}")


def _other_device(content: Content) -> Path:
    return file_name(content).with_name(f"{file_name(content).name[:8]}-nvidia-b200-{content_id(canonical_json(content))}.json")


corrupt("clocks", "file name of another day than started_at", "file|started_at|submission|name", "any", place=_other_day)(lambda _: None)
corrupt("hardware", "file name of another device", "file|device|submission|name", "any", place=_other_device)(lambda _: None)


@corrupt("clocks", "train begins after its first step was complete", "timeline|trace")
def _(c: Content) -> None:
    phase(c, "train")["at_s"] = c["trace"]["completed_at_s"][0] + 0.01


@corrupt("clocks", "training begins before its phase", "timeline|trace")
def _(c: Content) -> None:
    c["trace"]["started_at_s"] -= 0.5 * (phase(c, "train")["at_s"] - phase(c, "data")["at_s"])


@corrupt("clocks", "training begins while libraries are imported (trace moved to 0)", "timeline|trace")
def _(c: Content) -> None:
    first = c["trace"]["started_at_s"]
    c["trace"]["started_at_s"] = 0.0
    c["trace"]["completed_at_s"] = [at - first for at in c["trace"]["completed_at_s"]]
    c["trace"]["micro_completed_at_s"] = [[at - first for at in inside] for inside in c["trace"].get("micro_completed_at_s", [])]


@corrupt("clocks", "steps go on after the next phase began", "timeline|trace")
def _(c: Content) -> None:
    c["timeline"][next(i for i, mark in enumerate(c["timeline"]) if mark["phase"] == "train") + 1]["at_s"] = c["trace"]["completed_at_s"][
        -9
    ]


put("clocks", "process ended before its last phase began", {"process.wall_s": lambda wall: wall * 0.8}, field="process|timeline|trace")
put("clocks", "a CPU run that took 0.001 CPU seconds", {"process.user_s": 0.001, "process.system_s": 0.0}, "ok cpu")
put("clocks", "a GPU run that took 0.001 CPU seconds", {"process.user_s": 0.001, "process.system_s": 0.0}, "ok gpu")
put("clocks", "more CPU seconds than all cores have in that time", {"process.user_s": lambda time: time * 1_000}, "any")
put("clocks", "more seconds in the kernel than all cores have", {"process.system_s": 1e7}, "any")
put(
    "clocks",
    "CPU seconds an eighth of the busy cores times the window",
    {"process.user_s": lambda s: s / 8, "process.system_s": lambda s: s / 8},
    "ok cpu",
    field="process|utilisation",
)


@corrupt("clocks", "phases out of order", "timeline")
def _(c: Content) -> None:
    c["timeline"][1]["at_s"], c["timeline"][2]["at_s"] = c["timeline"][2]["at_s"] + 1, c["timeline"][1]["at_s"]


@corrupt("clocks", "no phase of training in a run that trained", "timeline")
def _(c: Content) -> None:
    c["timeline"] = [mark for mark in c["timeline"] if mark["phase"] != "train"]


@corrupt("clocks", "no loading of the model in a run that trained", "timeline")
def _(c: Content) -> None:
    c["timeline"] = [mark for mark in c["timeline"] if mark["phase"] != "load"]


@corrupt("clocks", "training twice", "timeline")
def _(c: Content) -> None:
    c["timeline"].insert(-1, {"phase": "train", "at_s": c["timeline"][-1]["at_s"]})


@corrupt("clocks", "training before loading", "timeline")
def _(c: Content) -> None:
    names = [mark["phase"] for mark in c["timeline"]]
    place, load = names.index("train"), names.index("load")
    c["timeline"][place]["phase"], c["timeline"][load]["phase"] = "load", "train"


@corrupt("clocks", "no probe in the time line of a run with a probe", "timeline|probe")
def _(c: Content) -> None:
    c["timeline"] = [mark for mark in c["timeline"] if mark["phase"] != "probe"]


@corrupt("clocks", "no check in the time line of a run with gates", "timeline|gates", "ok checked")
def _(c: Content) -> None:
    c["timeline"] = [mark for mark in c["timeline"] if mark["phase"] != "check"]


@corrupt("clocks", "an evaluation in the time line that the plan does not have", "timeline|evaluation|plan.measurement", "ok !evaluated")
def _(c: Content) -> None:
    c["timeline"].insert(-1, {"phase": "eval", "at_s": c["timeline"][-1]["at_s"] - 0.01})


@corrupt("clocks", "a phase of saving that the plan does not have", "timeline|saved|plan.measurement")
def _(c: Content) -> None:
    c["timeline"].insert(-1, {"phase": "save", "at_s": c["timeline"][-1]["at_s"] - 0.01})


@corrupt("clocks", "the time line begins with loading", "timeline")
def _(c: Content) -> None:
    c["timeline"][0]["phase"] = "load"


@corrupt("clocks", "libraries imported, model built and checked in one microsecond", "timeline", "ok gpu")
def _(c: Content) -> None:
    for index, mark in enumerate(c["timeline"]):
        if mark["at_s"] <= phase(c, "probe")["at_s"]:
            mark["at_s"] = index * 1e-7


@corrupt("clocks", "16 GB of weights made in a millisecond", "timeline", "h100")
def _(c: Content) -> None:
    phase(c, "load")["at_s"] = phase(c, "check")["at_s"] - 0.001


@corrupt("clocks", "a probe of half a second in 5 milliseconds", "timeline|probe", "ok")
def _(c: Content) -> None:
    phase(c, "probe")["at_s"] = phase(c, "train")["at_s"] - 0.005


@corrupt("clocks", "one step lasted longer than the watchdog allows", "trace|plan.measurement.no_step_s|outcome")
def _(c: Content) -> None:
    retime(c, lambda times: np.where(np.arange(len(times)) == 30, 40_000.0, times))


put("clocks", "a run longer than its timeout, and ok", {"plan.measurement.timeout_s": 12.0}, field="plan.measurement|process|outcome")
put(
    "clocks",
    "training many times longer than its limit, and ok",
    {"plan.measurement.max_train_s": 3.0, "plan.measurement.min_steps": 0},
    field="plan.measurement|trace|outcome",
)
put(
    "clocks",
    "a cold compile cache where nothing was compiled",
    {"process.compile_cache": "cold"},
    field="process.compile_cache|plan.model.compile|effective",
)
put(
    "clocks",
    "a model downloaded for random weights and synthetic rows",
    {"process.model_cache": "cold"},
    "any",
    field="process.model_cache|plan.model|plan.data",
)


# Status ---------------------------------------------------------------------------------------------------------------------


@corrupt("status", "nan without a loss that is not finite", "outcome|trace")
def _(c: Content) -> None:
    c["outcome"] |= {"status": "nan", "message": "LossNotFinite: the loss became nan"}


@corrupt("status", "a loss that is not finite, with steps after it", "outcome|trace")
def _(c: Content) -> None:
    c["trace"]["loss"][10] = None
    c["outcome"] |= {"status": "nan", "message": "LossNotFinite: the loss became nan"}


@corrupt("status", "ok with a loss that is not finite", "outcome|trace")
def _(c: Content) -> None:
    c["trace"]["loss"][-1] = None


@corrupt("status", "timeout long before any limit", "outcome|plan.measurement|process")
def _(c: Content) -> None:
    c["plan"]["measurement"]["timeout_s"] = 90_000.0
    c["outcome"] |= {"status": "timeout", "message": "not finished after 90000 s"}


@corrupt("status", "timeout without any limit in the plan", "outcome|plan.measurement")
def _(c: Content) -> None:
    c["plan"]["measurement"] |= {"timeout_s": None, "no_step_s": None, "max_train_s": None}
    c["outcome"] |= {"status": "timeout", "message": "not finished after 20 s"}


put(
    "status",
    "out of device memory at 1% of capacity",
    {f"memory.device_{name}.peak_bytes": lambda size: size // 100 for name in ("allocated", "reserved", "used")},
    "oom",
    field="outcome|memory",
)
put(
    "status",
    "out of device memory with a third of the device in use",
    {f"memory.device_{name}.peak_bytes": lambda size: size // 3 for name in ("allocated", "reserved", "used")}
    | {"utilisation.devices.0.memory_used_peak_bytes": 29 * GIB},
    "oom",
    field="outcome|memory",
)
put(
    "status",
    "a run out of memory called ok",
    {"outcome.status": "ok", "outcome.message": None, "outcome.fix": None},
    "oom",
    field="outcome|timeline|trace",
)
put("status", "a run out of memory called a crash", {"outcome.status": "crash"}, "oom", field="outcome")
put("status", "a run out of memory called interrupted", {"outcome.status": "interrupted"}, "oom", field="outcome")
put("status", "out of device memory during import", {"outcome.phase": "import"}, "oom", field="outcome|timeline")
put(
    "status",
    "ok without a step",
    {f"trace.{name}": [] for name in COLUMNS} | {"outcome.last_good_step": 0, "events": [], "ranks": [], "trace.micro_completed_at_s": []},
    field="outcome|trace",
)
put("status", "last_good_step one too high", {"outcome.last_good_step": lambda steps: steps + 1}, "any", field="outcome")
put("status", "a failed run without a message", {"outcome.message": None}, "failed", field="outcome")
put(
    "status",
    "out of device memory on a CPU",
    {"outcome.status": "oom_device", "outcome.message": "OutOfMemoryError: CUDA out of memory."},
    "ok cpu",
    field="outcome",
)
put(
    "status",
    "out of host memory at 1% of it",
    {
        "outcome.status": "oom_host",
        "outcome.message": "the kernel killed the worker for lack of memory",
        "memory.host_rss.peak_bytes": 180_000_000,
    },
    "ok cpu",
    field="outcome|memory|timeline",
)
put(
    "status",
    "unsupported after hundreds of steps",
    {"outcome.status": "unsupported", "outcome.message": "this device has no bf16"},
    field="outcome|trace",
)
put(
    "status",
    "unsupported without devices",
    {"outcome.status": "unsupported", "outcome.message": "no device", "environment.devices": []},
    field="outcome|environment.devices",
)
put(
    "status",
    "ok with the message of a failure",
    {"outcome.message": "OutOfMemoryError: CUDA out of memory.", "outcome.fix": "lower batch.micro_batch"},
    field="outcome",
)
put("status", "ok though the last phase is training", {"outcome.phase": "train"}, field="outcome|timeline")
put(
    "status",
    "interrupted after all planned steps and its teardown",
    {"outcome.status": "interrupted", "outcome.message": "stopped by the user"},
    "ok counted",
    field="outcome|timeline",
)
put(
    "status",
    "a crash during import that trained",
    {"outcome.status": "crash", "outcome.phase": "import", "outcome.message": "ImportError: libcudart"},
    field="outcome|timeline",
)


@corrupt(
    "status", "ok after a tenth of the planned steps, without a limit of time", "outcome|trace|plan.measurement", "ok counted !lora !bert"
)
def _(c: Content) -> None:
    steps = len(c["trace"]["loss"])
    retime(c, lambda times: np.where(np.arange(steps) < steps // 10, times, 1e-9))
    cut(c, range(steps // 10))


@corrupt("status", "ok and ended during training: no probe and no teardown", "outcome|timeline|probe")
def _(c: Content) -> None:
    c["timeline"] = [mark for mark in c["timeline"] if mark["at_s"] <= c["trace"]["started_at_s"]]
    c["outcome"]["phase"] = "train"


# Losses ---------------------------------------------------------------------------------------------------------------------

LOSSES = "trace|loss|gates"


def null_band(content: Content) -> None:
    """Write that the losses cannot be compared."""
    for gate in content["gates"]:
        if gate["name"] == "loss_band":
            gate |= {"passed": None, "detail": "this workload has no reference losses"}


def losses(name: str, new: Callable[[np.ndarray], np.ndarray], on: str = "ok", *, keep_gate: bool = False, flag: bool = False) -> None:
    """Register a corruption of the losses, with the band called incomparable."""

    def change(content: Content) -> None:
        old = np.array(content["trace"]["loss"])
        content["trace"]["loss"] = [float(value) for value in np.broadcast_to(new(old), old.shape)]
        if not keep_gate:
            null_band(content)

    corrupt("losses", name, LOSSES, on, flag=flag)(change)


losses("losses of another run, the gate set to null", lambda old: old[0] * 1.3 - 0.004 * np.arange(len(old)), "golden")
losses("all losses 0", lambda old: 0 * old)
losses("negative losses", lambda old: -old)
losses("one loss for all steps", lambda old: old[:1])
losses("losses that rise", lambda old: old[0] * (1 + np.arange(len(old)) / 20), "golden")
losses("losses in reverse order", lambda old: old[::-1], "golden")
losses("losses halved", lambda old: old / 2)
losses("losses of 1e300", lambda old: old * 0 + 1e300)
losses("losses near 0 after one step", lambda old: np.where(np.arange(len(old)) < 1, old, 1e-4))
losses("random weights begin with the loss of trained ones", lambda old: np.linspace(1.9, 1.4, len(old)), "ok causal")
losses(
    "random tokens learned: the loss falls below the logarithm of their number", lambda old: np.linspace(old[0], 2.0, len(old)), "ok packed"
)
losses("a straight line", lambda old: np.linspace(old[0], old[-1], len(old)))
losses("whole numbers", lambda old: np.round(old), flag=True)
losses("ten steps of losses repeated", lambda old: np.resize(old[:10], len(old)), "ok")
losses("classes of a hundred where the plan has six", lambda old: old + 4.0, "bert")
losses("losses twice as large, gate kept", lambda old: 2 * old, "golden", keep_gate=True)
losses("losses one percent lower than those of a right run", lambda old: old * 0.99, "lora")


# Speed and memory against physics -------------------------------------------------------------------------------------------

SPEED = r"trace|probe|derived|mfu|throughput|tokens_per_s|plan.device|utilisation|process|timeline|micro|ranks"
for label, factor in (("of 0.001%", 40_000), ("a thousandth of what the device does", 1_000)):
    corrupt("physics", f"MFU {label}", SPEED, "gpu ok", flag=True)(lambda c, factor=factor: retime(c, lambda times: times * factor))
for label, share in (
    ("three times the dense peak", 3.2 / 0.42),
    ("just above the dense peak", 1.08 / 0.36),
    ("95% of the dense peak", 0.95 / 0.42),
):
    corrupt("physics", f"products at {label}", SPEED, "gpu ok")(lambda c, share=share: retime(c, lambda times: times / share))
corrupt("physics", "a CPU 2,000 times as fast as its own probe", SPEED, "cpu ok")(lambda c: retime(c, lambda times: times / 2_000))
corrupt("physics", "a CPU 30 times as fast as its own probe", SPEED, "cpu ok")(lambda c: retime(c, lambda times: times / 30))


@corrupt("physics", "a full-batch step of an 8B model in one microsecond", SPEED, "h100")
def _(c: Content) -> None:
    retime(c, lambda times: np.where(np.arange(len(times)) == 50, 1e-6, times))


@corrupt("physics", "every tenth step in a millisecond", SPEED, "gpu ok")
def _(c: Content) -> None:
    retime(c, lambda times: np.where(np.arange(len(times)) % 10 == 9, 1e-3, times))


put("physics", "probe above the dense peak", {"probe.before_flop_per_s": 3e15, "probe.after_flop_per_s": 3e15}, "gpu ok", field="probe")
put("physics", "probe of one FLOP per second", {"probe.before_flop_per_s": 1.0, "probe.after_flop_per_s": 1.0}, field="probe")
put(
    "physics",
    "probe far below what training reached",
    {"probe.before_flop_per_s": lambda rate: rate / 60, "probe.after_flop_per_s": lambda rate: rate / 60},
    "ok",
    field="probe|trace",
)
put("physics", "probe of a CPU above any CPU", {"probe.before_flop_per_s": 5e15, "probe.after_flop_per_s": 5e15}, "cpu ok", field="probe")
put("physics", "probe after training fifty times the one before", {"probe.after_flop_per_s": lambda rate: rate * 50}, field="probe")
put(
    "physics",
    "device peak below the weights",
    {f"memory.device_{name}.peak_bytes": 900_000_000 for name in ("allocated", "reserved", "used")},
    "gpu ok",
    field="memory|utilisation",
)
put(
    "physics",
    "device peak below weights, gradients and optimizer states",
    {f"memory.device_{name}.peak_bytes": 12_000_000_000 for name in ("allocated", "reserved", "used")},
    "ddp",
    field="memory|ranks|utilisation",
)
put("physics", "host peak of 4 KiB", {"memory.host_rss.peak_bytes": 4096}, "any", field="memory")
put("physics", "host peak below an interpreter with torch", {"memory.host_rss.peak_bytes": 30_000_000}, field="memory")
put("physics", "host peak of exactly the host's memory", {"memory.host_rss.peak_bytes": 10**15}, "any", field="memory")
put(
    "physics",
    "energy below what switching the transistors takes",
    {"utilisation.energy.joules": 0.5},
    "ok energy",
    field="utilisation|energy",
)
put(
    "physics",
    "energy above the power limit times the window",
    {"utilisation.energy.joules": lambda energy: energy * 3},
    "ok energy",
    field="utilisation|energy",
)
corrupt("physics", "all step times equal to the digit", SPEED)(
    lambda c: retime(c, lambda times: np.full(len(times), round(times.mean(), 3)))
)
corrupt("physics", "step times in an arithmetic progression", SPEED)(
    lambda c: retime(c, lambda times: np.linspace(1.1, 0.9, len(times)) * times.mean())
)
corrupt("physics", "twelve step times repeated to the end", SPEED)(lambda c: retime(c, lambda times: np.resize(times[:12], len(times))))
corrupt("physics", "step times in whole tenths of a second", SPEED, "gpu ok")(lambda c: retime(c, lambda times: np.ceil(times * 10) / 10))


# Copies of committed results ------------------------------------------------------------------------------------------------

COPY = "run_id|trace|identity|submission|file|fingerprint"


def again(content: Content, *, minutes: int = 61) -> Content:
    """Give a copy a new date and run_id."""
    moved = datetime.fromisoformat(content["started_at"]) + timedelta(minutes=minutes)
    content["started_at"] = moved.isoformat().replace("+00:00", "Z")
    content["run_id"] = f"{int(content['run_id'], 16) ^ 0x5A5A_1234_0F0F:032x}"
    return content


def copied(name: str, change: Callable[[Content], Any], on: str = "ok", **more: Any) -> None:
    """Register a copy of a committed result that is changed to look like another one."""

    def with_new_id(content: Content) -> Content:
        return change(again(content)) or content

    corrupt("identity", name, COPY, on, **more)(with_new_id)


def _noise(scale: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda times: times * (1 + scale * np.random.default_rng(5).standard_normal(len(times)))


def _pieces(content: Content) -> None:
    retime(content, lambda times: times * np.where(np.arange(len(times)) < len(times) // 2, 1.05, 0.97))


copied("copied trace, new date and run_id", lambda _: None)
copied("copied trace with noise of 1e-6", lambda c: retime(c, _noise(1e-6)))
copied("copied trace with noise of 1e-5", lambda c: retime(c, _noise(1e-5)))
copied("copied trace, all times x 0.95", lambda c: retime(c, lambda times: times * 0.95))
copied("copied trace, all times x 1.3", lambda c: retime(c, lambda times: times * 1.3))
copied("copied trace, each half scaled by its own factor", _pieces)
copied("copied trace, a constant added to each step", lambda c: retime(c, lambda times: times + 0.05 * times.mean()))
copied("copied trace in reverse", lambda c: retime(c, lambda times: times[::-1]))
copied("copied trace, halves exchanged", lambda c: retime(c, lambda times: np.roll(times, len(times) // 2)))
copied("copied trace rounded to a tenth of a millisecond", lambda c: retime(c, lambda times: np.round(times, 4)))
copied(
    "copied trace, first tenth drawn anew",
    lambda c: retime(c, lambda times: np.where(np.arange(len(times)) < len(times) / 10, times * _noise(0.01)(np.ones(len(times))), times)),
)
copied(
    "copied trace under another CPU",
    lambda c: (
        c["environment"].update(cpu="AMD EPYC 9654 96-Core Processor")
        or [d.update(name="AMD EPYC 9654 96-Core Processor") for d in c["environment"]["devices"] if c["environment"]["backend"] == "cpu"]
        and None
    ),
)
copied(
    "copied trace under another operating system, Python and library version",
    lambda c: (
        (c["environment"].update(os="Linux 6.12 x86_64", python="3.12.4"), c["environment"]["packages"].update(peft="0.21.1")) and None
    ),
)
copied("copied trace, losses changed", lambda c: c["trace"].update(loss=[loss * 1.0002 for loss in c["trace"]["loss"]]))
copied("copied trace from a wheel, without a commit", lambda c: c["harness"].update(commit=None, dirty=None))


def _shorter(content: Content, kept: slice) -> None:
    steps = range(len(content["trace"]["loss"]))[kept]
    started = content["trace"]["completed_at_s"][steps[0] - 1] if steps[0] else content["trace"]["started_at_s"]
    cut(content, steps)
    content["trace"]["started_at_s"] = started
    content["plan"]["measurement"]["max_steps"] = len(steps)
    last = content["trace"]["completed_at_s"][-1] + 2e-5
    phase(content, "train")["at_s"] = started - 2e-5
    content["timeline"] = [mark for mark in content["timeline"] if mark["at_s"] < last]
    content["outcome"] |= {"status": "interrupted", "phase": "train", "message": "stopped by the user"}
    content["process"]["wall_s"] = last + 0.2
    content["evaluation"] = None
    content["ranks"] = []
    content["probe"]["after_flop_per_s"] = None


copied("copied trace, the last fifth cut off", lambda c: _shorter(c, slice(0, -len(c["trace"]["loss"]) // 5)))
copied("copied trace, the first third cut off", lambda c: _shorter(c, slice(len(c["trace"]["loss"]) // 3, None)))


def _own_work(content: Content) -> None:
    own = [rank["own_work_s"] for rank in content["ranks"]]
    retime(content, _noise(0.03))
    for rank, times in zip(content["ranks"], own, strict=True):
        rank["own_work_s"] = times


copied("copied own work of ranks under new step times", _own_work, "ok ranks")


@corrupt("identity", "same run_id, another date", COPY)
def _(c: Content) -> None:
    run_id = c["run_id"]
    again(c)["run_id"] = run_id


@corrupt("identity", "same run_id, other measurements", COPY, "h100")
def _(c: Content) -> Content:
    return {**h100_lora(seed=77), "run_id": c["run_id"]}


@corrupt("identity", "same run_id with an earlier date, to displace the committed result", COPY)
def _(c: Content) -> None:
    run_id = c["run_id"]
    again(c, minutes=-1_441)["run_id"] = run_id
    retime(c, lambda times: times / 1.5)


# Results that replace others ------------------------------------------------------------------------------------------------

REPLACED = "supersedes"


def replacing(name: str, change: Callable[[Content], Any] = lambda _: None, of: str = "h100", seed: int = 31) -> None:
    """Register a new run of the same workload that replaces a committed result without the right to."""

    def fresh(content: Content) -> Content:
        run = {**h100_lora(seed=seed), "started_at": "2026-11-22T05:12:44.120034Z", "supersedes": identity_of(of)}
        return change(run) or run

    corrupt("supersede", name, REPLACED, "h100")(fresh)


def h100_run(options: Options) -> Content:
    """Return a later run of the workload with other options, which replaces the committed one."""
    run = simulate(Scenario("lora-8b", gpu_machine(), options, seed=32))
    return {**run, "started_at": "2026-11-22T05:12:44.120034Z", "supersedes": identity_of("h100")}


def _ended(content: Content, status: str, message: str) -> None:
    """Turn a finished run into one that stopped after five steps."""
    cut(content, range(5))
    last = content["trace"]["completed_at_s"][-1] + 0.3
    content["timeline"] = [mark for mark in content["timeline"] if mark["at_s"] < last]
    content["outcome"] |= {"status": status, "phase": "train", "message": message, "fix": None}
    content["process"] |= {"wall_s": last + 0.3, "user_s": 30.0, "system_s": 2.0}
    content["probe"]["after_flop_per_s"] = None
    content["utilisation"] = None
    content["model"] |= {"gradient_bytes": None, "gradient_bytes_reason": "the run ended before its first step was complete"}
    content["model"] |= {"optimizer_state_bytes": None, "optimizer_state_bytes_reason": "the run ended before they were measured"}
    missing = {"peak_bytes": None, "method": None, "reason": "the worker ended before it read its peaks"}
    content["memory"] |= {"device_allocated": missing, "device_reserved": missing}


replacing("of what does not exist", lambda c: c.update(supersedes="0123456789ab"))
replacing("a failed run replaces a good one", lambda c: _ended(c, "crash", "the worker was killed by SIGABRT"))
replacing("an interrupted run replaces a finished one", lambda c: _ended(c, "interrupted", "stopped by the user"))
replacing(
    "another machine's result of the same device name (other cores, other memory)",
    lambda c: c["environment"].update(
        cpu="AMD EPYC 9654 96-Core Processor", cpu_physical_cores=96, cpu_logical_cores=192, cpu_usable_cores=192, memory_bytes=1_584 * GIB
    ),
)
replacing("a result of another workload", of="lora")
replacing("an older run replaces a newer one", lambda c: c.update(started_at="2026-11-20T13:00:00.120034Z"))
replacing(
    "a run in the open division replaces a standard one",
    lambda c: (
        (
            c.update(division="open", overrides=[{"field": "optimizer.learning_rate", "card": 2e-4, "run": 1e-4}]),
            c["plan"]["optimizer"].update(learning_rate=1e-4),
        )
        and None
    ),
)
replacing("a run of a third as many steps", lambda _: h100_run(Options(max_steps=40)))
replacing("a run without probe and gates", lambda _: h100_run(Options(max_steps=120, probe=False, gates=False)))
replacing("a run with another seed", lambda _: h100_run(Options(max_steps=120, seed=5)))
replacing(
    "a run on another GPU",
    lambda c: (
        c["environment"]["devices"][0].update(name="NVIDIA H100 PCIe") or c["plan"]["device"].update(accelerator="nvidia-h100-80gb-pcie")
    ),
)


@corrupt("supersede", "two new results replace the same one", REPLACED, "h100")
def _(_c: Content) -> list[Content]:
    runs = [{**h100_lora(seed=seed), "started_at": f"2026-11-22T0{seed - 30}:12:44.120034Z"} for seed in (33, 34)]
    return [{**run, "supersedes": identity_of("h100")} for run in runs]


@corrupt("supersede", "a result that replaces itself in a circle of two", REPLACED, "h100")
def _(_c: Content) -> list[Content]:
    first = {**h100_lora(seed=35), "started_at": "2026-11-22T02:12:44.120034Z", "supersedes": "ffffffffffff"}
    second = {**h100_lora(seed=36), "started_at": "2026-11-22T03:12:44.120034Z", "supersedes": content_id(canonical_json(first))}
    return [{**first, "supersedes": content_id(canonical_json(second))}, second]
