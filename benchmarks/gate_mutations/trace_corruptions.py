"""Corruptions of what was measured that need more than a value: step times, losses, and steps that were left out."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from gate_mutations.bases import Content, file_name
from gate_mutations.corruptions import corrupt, cut, retime
from tunemark.schema.records.base import canonical_json, content_id


def _other_day(content: Content) -> Path:
    return file_name(content).with_name(f"20261103-{file_name(content).name.split('-', 1)[1]}")


def _other_device(content: Content) -> Path:
    return file_name(content).with_name(f"{file_name(content).name[:8]}-nvidia-b200-{content_id(canonical_json(content))}.json")


corrupt("clocks", "file name of another day than started_at", "file|started_at|submission|name", "any", place=_other_day)(lambda _: None)
corrupt("hardware", "file name of another device", "file|device|submission|name", "any", place=_other_device)(lambda _: None)


SPEED = r"trace|probe|derived|mfu|throughput|tokens_per_s|plan.device|plan.measurement|outcome|utilisation|process|timeline|micro|ranks"


@corrupt("arithmetic", "steps end long before the phase after training begins", SPEED)
def _(c: Content) -> None:
    cut(c, range(len(c["trace"]["loss"]) // 2))
    c["plan"]["measurement"]["max_steps"] = len(c["trace"]["loss"])


@corrupt("arithmetic", "half of the steps dropped, times kept: double-length steps with one step's tokens", SPEED)
def _(c: Content) -> None:
    cut(c, range(1, len(c["trace"]["loss"]), 2))


@corrupt("status", "ok after a tenth of the planned steps, without a limit of time", SPEED, "ok counted !lora !bert")
def _(c: Content) -> None:
    steps = len(c["trace"]["loss"])
    retime(c, lambda times: np.where(np.arange(steps) < steps // 10, times, 1e-9))
    cut(c, range(steps // 10))


@corrupt("arithmetic", "micro-steps done in the first thousandth of each step", "trace|micro", "ok micro")
def _(c: Content) -> None:
    starts = [c["trace"]["started_at_s"], *c["trace"]["completed_at_s"]]
    for step, inside in enumerate(c["trace"]["micro_completed_at_s"]):
        c["trace"]["micro_completed_at_s"][step] = [starts[step] + (at - starts[step]) / 1_000 for at in inside]


Series = Callable[[np.ndarray], np.ndarray]


def losses(name: str, new: Series, on: str = "ok", *, keep_gate: bool = False, flag: bool = False) -> None:
    """Register a corruption of the losses, with the band called incomparable."""

    def change(content: Content) -> None:
        old = np.array(content["trace"]["loss"])
        content["trace"]["loss"] = [float(value) for value in np.broadcast_to(new(old), old.shape)]
        for gate in content["gates"]:
            if gate["name"] == "loss_band" and not keep_gate:
                gate |= {"passed": None, "detail": "this workload has no reference losses"}

    corrupt("losses", name, "trace|loss|gates", on, flag=flag)(change)


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
losses("random tokens learned: the loss falls below that of guessing", lambda old: np.linspace(old[0], 2.0, len(old)), "ok packed")
losses("a straight line", lambda old: np.linspace(old[0], old[-1], len(old)))
losses("whole numbers", np.round, flag=True)
losses("ten steps of losses repeated", lambda old: np.resize(old[:10], len(old)), "ok")
losses("classes of a hundred where the plan has six", lambda old: old + 4.0, "bert")
losses("losses twice as large, gate kept", lambda old: 2 * old, "golden", keep_gate=True)
losses("losses one percent lower than those of a right run", lambda old: old * 0.99, "lora")


def timed(name: str, new: Series, on: str = "ok", *, flag: bool = False, whole: bool = True) -> None:
    """Register a change of all step times; `whole` moves the time line, CPU time and energy along."""
    corrupt("physics", name, SPEED, on, flag=flag)(lambda content: retime(content, new, whole=whole))


def noise(times: np.ndarray, size: float) -> np.ndarray:
    """Return factors around 1, one for each step."""
    return 1 + np.random.default_rng(7).normal(0, size, len(times))


def at(times: np.ndarray, first: int, step: int = 10**9) -> np.ndarray:
    """Return True for a step, and for each n-th one after it."""
    return (np.arange(len(times)) - first) % step == 0


timed("step times halved, time line kept", lambda times: times / 2, whole=False)
timed("step times a tenth shorter, time line kept", lambda times: times * 0.9, whole=False)
timed("one step lasted longer than the watchdog allows", lambda times: np.where(at(times, 30), 40_000.0, times), "ok !bert")
timed("MFU of 0.001%", lambda times: times * 40_000, "gpu ok", flag=True)
timed("MFU a thousandth of what the device does", lambda times: times * 1_000, "gpu ok", flag=True)
timed("products at three times the dense peak", lambda times: times * 0.42 / 3.2, "gpu ok")
timed("products just above the dense peak", lambda times: times * 0.36 / 1.08, "gpu ok")
timed("products at 95% of the dense peak", lambda times: times * 0.42 / 0.95, "h100", flag=True)
timed("a CPU 2,000 times as fast", lambda times: times / 2_000, "cpu ok")
timed("a CPU 30 times as fast as its own probe", lambda times: times / 30, "cpu ok")
timed("a full-batch step of an 8B model in one microsecond", lambda times: np.where(at(times, 50), 1e-6, times), "h100")
timed("every tenth step in a millisecond", lambda times: np.where(at(times, 9, 10), 1e-3, times), "gpu ok")
timed("all step times equal to the digit", lambda times: np.full(len(times), round(times.mean(), 3)))
timed("step times in an arithmetic progression", lambda times: np.linspace(1.1, 0.9, len(times)) * times.mean())
timed("twelve step times repeated to the end", lambda times: np.resize(times[:12], len(times)))
timed("twelve step times repeated to the end, with noise", lambda times: np.resize(times[:12], len(times)) * noise(times, 1e-7))
timed("step times within a ten-thousandth of each other", lambda times: times.mean() * noise(times, 1e-4), "cpu ok fixed", flag=True)
timed("step times in whole tenths of a second", lambda times: np.ceil(times * 10) / 10, "gpu ok")
