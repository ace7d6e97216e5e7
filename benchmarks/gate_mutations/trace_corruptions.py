"""Corruptions of what was measured: steps, clocks, status, losses and speed."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from gate_mutations.bases import Content, file_name
from gate_mutations.corruptions import corrupt, cut, phase, retime
from tunemark.schema.formats import GIB, MIB
from tunemark.schema.records.base import canonical_json, content_id

# Arithmetic of the step log -------------------------------------------------------------------------------------------------


def columns(content: Content, new: Callable[[int], int], *names: str) -> None:
    """Change each entry of count columns of the trace."""
    for name in names:
        content["trace"][name] = [new(count) for count in content["trace"][name]]


def counts(label: str, field: str, new: Callable[[int], int], *names: str, on: str = "ok") -> None:
    """Register a corruption of count columns."""
    corrupt("arithmetic", label, field, on)(lambda content: columns(content, new, *names))


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


counts("tokens of all steps doubled", "trace", lambda count: 2 * count, "slot_tokens", "real_tokens", "supervised_tokens")


@corrupt("arithmetic", "tokens of one step raised by a hundredth", "trace", "ok fixed")
def _(c: Content) -> None:
    for name in ("slot_tokens", "real_tokens", "supervised_tokens"):
        c["trace"][name][20] = int(c["trace"][name][20] * 1.01)


counts("documents tripled though rows are not packed", "trace|documents", lambda count: 3 * count, "documents", on="ok rows")


counts("documents fewer than rows though rows are not packed", "trace|documents", lambda count: count - 1, "documents", on="ok rows")


counts("more documents than pieces without a label", "trace|documents|supervised", lambda count: count + 400, "documents", on="ok packed")


counts("rows of each step 1 below the batch", "trace|rows|plan.batch", lambda count: count - 1, "rows")


counts("no row in any step", "trace|rows", lambda _: 0, "rows")


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


counts("one supervised token in each step of a language model", "trace|supervised", lambda _: 1, "supervised_tokens", on="ok causal")


@corrupt("arithmetic", "a classifier with a label on every token", "trace|supervised", "bert")
def _(c: Content) -> None:
    c["trace"]["supervised_tokens"] = list(c["trace"]["real_tokens"])


counts(
    "real tokens below the slots though no row is padded",
    "trace|real_tokens|plan.data.padding",
    lambda count: count - 7,
    "real_tokens",
    "supervised_tokens",
    on="ok fixed",
)


@corrupt("arithmetic", "slots that are not rows times a width", "trace|slot_tokens")
def _(c: Content) -> None:
    trace = c["trace"]
    columns(c, lambda count: count - 1, "slot_tokens")
    for lower, upper in (("real_tokens", "slot_tokens"), ("supervised_tokens", "real_tokens")):
        trace[lower] = [min(pair) for pair in zip(trace[lower], trace[upper], strict=True)]


counts("no token in any step", "trace", lambda _: 0, "slot_tokens", "real_tokens", "supervised_tokens")


counts("no document in any step", "trace|documents", lambda _: 0, "documents")


@corrupt("arithmetic", "more slots than rows times the longest row", "trace|slot_tokens")
def _(c: Content) -> None:
    limit = c["plan"]["batch"]["global_batch"] * c["plan"]["data"]["sequence_length"]
    c["trace"]["slot_tokens"][5] = limit + c["plan"]["batch"]["global_batch"]


@corrupt("arithmetic", "data_parallel 4 on one device", "plan.batch|batch|plan.device|trace", "ok one")
def _(c: Content) -> None:
    c["plan"]["batch"] |= {"data_parallel": 4, "global_batch": 4 * c["plan"]["batch"]["global_batch"]}


@corrupt("arithmetic", "data_parallel 1 on two devices that each hold a replica", "plan.batch|batch|plan.device|trace", "ok ranks")
def _(c: Content) -> None:
    c["plan"]["batch"] |= {"data_parallel": 1, "micro_batch": 2 * c["plan"]["batch"]["micro_batch"]}


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


@corrupt("arithmetic", "retries of an allocator on a CPU, to push the window", "events", "ok cpu")
def _(c: Content) -> None:
    c["events"] = [{"step": step, "kind": "allocator_retry", "amount": 1} for step in range(1, len(c["trace"]["loss"]) // 2)]


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


# Clocks and phases ----------------------------------------------------------------------------------------------------------


def _other_day(content: Content) -> Path:
    return file_name(content).with_name(f"20261103-{file_name(content).name.split('-', 1)[1]}")


def _other_device(content: Content) -> Path:
    return file_name(content).with_name(f"{file_name(content).name[:8]}-nvidia-b200-{content_id(canonical_json(content))}.json")


corrupt("clocks", "file name of another day than started_at", "file|started_at|submission|name", "any", place=_other_day)(lambda _: None)
corrupt("hardware", "file name of another device", "file|device|submission|name", "any", place=_other_device)(lambda _: None)


@corrupt("clocks", "started_at not UTC", "started_at", "any")
def _(c: Content) -> None:
    c["started_at"] = c["started_at"].replace("Z", "+05:00")


@corrupt("clocks", "started_at without zone", "started_at", "any")
def _(c: Content) -> None:
    c["started_at"] = c["started_at"].rstrip("Z")


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
losses("whole numbers", np.round, flag=True)
losses("ten steps of losses repeated", lambda old: np.resize(old[:10], len(old)), "ok")
losses("classes of a hundred where the plan has six", lambda old: old + 4.0, "bert")
losses("losses twice as large, gate kept", lambda old: 2 * old, "golden", keep_gate=True)
losses("losses one percent lower than those of a right run", lambda old: old * 0.99, "lora")


# Speed and memory against physics -------------------------------------------------------------------------------------------

SPEED = r"trace|probe|derived|mfu|throughput|tokens_per_s|plan.device|utilisation|process|timeline|micro|ranks"


def timed(name: str, new: Callable[[np.ndarray], np.ndarray], on: str = "ok", *, flag: bool = False) -> None:
    """Register a change of all step times, with the time line, CPU time and energy moved along."""
    corrupt("physics", name, SPEED, on, flag=flag)(lambda content: retime(content, new))


def noise(times: np.ndarray, size: float) -> np.ndarray:
    """Return factors around 1, one for each step."""
    return 1 + np.random.default_rng(7).normal(0, size, len(times))


def each(step: int, times: np.ndarray) -> np.ndarray:
    """Return True for each n-th step."""
    return np.arange(len(times)) % step == step - 1


timed("MFU of 0.001%", lambda times: times * 40_000, "gpu ok", flag=True)
timed("MFU a thousandth of what the device does", lambda times: times * 1_000, "gpu ok", flag=True)
timed("products at three times the dense peak", lambda times: times * 0.42 / 3.2, "gpu ok")
timed("products just above the dense peak", lambda times: times * 0.36 / 1.08, "gpu ok")
timed("products at 95% of the dense peak", lambda times: times * 0.42 / 0.95, "h100", flag=True)
timed("a CPU 2,000 times as fast", lambda times: times / 2_000, "cpu ok")
timed("a CPU 30 times as fast as its own probe", lambda times: times / 30, "cpu ok")
timed("a full-batch step of an 8B model in one microsecond", lambda times: np.where(np.arange(len(times)) == 50, 1e-6, times), "h100")
timed("every tenth step in a millisecond", lambda times: np.where(each(10, times), 1e-3, times), "gpu ok")
timed("all step times equal to the digit", lambda times: np.full(len(times), round(times.mean(), 3)))
timed("step times in an arithmetic progression", lambda times: np.linspace(1.1, 0.9, len(times)) * times.mean())
timed("twelve step times repeated to the end", lambda times: np.resize(times[:12], len(times)))
timed("twelve step times repeated to the end, with noise", lambda times: np.resize(times[:12], len(times)) * noise(times, 1e-7))
timed("step times within a ten-thousandth of each other", lambda times: times.mean() * noise(times, 1e-4), "cpu ok fixed", flag=True)
timed("step times in whole tenths of a second", lambda times: np.ceil(times * 10) / 10, "gpu ok")
