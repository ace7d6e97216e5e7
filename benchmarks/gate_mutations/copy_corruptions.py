"""Copies of committed results that pretend to be others, and results that replace others without the right to."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from gate_mutations.bases import Content, h100_lora, identity_of
from gate_mutations.corruptions import corrupt, retime, sets
from gate_mutations.simulated import H100, Ending, Scenario, gpu_machine, simulate
from tunemark.harness.plan.resolve import Options
from tunemark.schema.derive import derive, warnings_of_record
from tunemark.schema.records.base import canonical_json, content_id
from tunemark.schema.records.submission import Submission

RYZEN = "AMD Ryzen 5 3600 6-Core Processor"
"""A CPU without a card."""
EPYC = "AMD EPYC 9654 96-Core Processor"
COPY = "run_id|trace|identity|submission|file|fingerprint"


def again(content: Content, *, minutes: int = 61) -> Content:
    """Give a copy a new date and run_id."""
    moved = datetime.fromisoformat(content["started_at"]) + timedelta(minutes=minutes)
    content["started_at"] = moved.isoformat().replace("+00:00", "Z")
    content["run_id"] = f"{int(content['run_id'], 16) ^ 0x5A5A_1234_0F0F:032x}"
    return content


def with_warnings(content: Content) -> Content:
    """Return a changed record with the warnings that the harness would give it."""
    submission = Submission.model_validate_json(json.dumps(content))
    warnings = warnings_of_record(submission, derive(submission))
    return {**content, "warnings": [warning.model_dump(mode="json") for warning in warnings]}


def copied(name: str, change: Callable[[Content], Any], on: str = "ok", **more: Any) -> None:
    """Register a copy of a committed result that is changed to look like another one."""

    def with_new_id(content: Content) -> Content:
        return with_warnings(change(again(content)) or content)

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
    "copied trace, first tenth drawn again",
    lambda c: retime(c, lambda times: np.where(np.arange(len(times)) < len(times) / 10, times * _noise(0.01)(np.ones(len(times))), times)),
)
copied("copied trace under another CPU", lambda c: json.loads(json.dumps(c).replace(c["environment"]["cpu"], RYZEN)), "ok cpu")
copied("copied trace of a GPU in another host", sets({"environment.cpu": EPYC}), "ok gpu")
copied(
    "copied trace under another operating system, Python and library version",
    sets({"environment.os": "Linux 6.12 x86_64", "environment.python": "3.12.4", "environment.packages.peft": "0.21.1"}),
)
copied("copied trace, losses changed", lambda c: c["trace"].update(loss=[loss * 1.0002 for loss in c["trace"]["loss"]]))
copied("copied trace from a wheel, without a commit", sets({"harness.commit": None, "harness.dirty": None}))


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
def _(c: Content) -> Content:
    run_id = c["run_id"]
    again(c, minutes=-1_441)["run_id"] = run_id
    retime(c, lambda times: times / 1.5)
    return with_warnings(c)


REPLACED = "supersedes"


def replaces(identity: str) -> Content:
    """Return the fields of a result that replaces another one."""
    return {"supersedes": identity, "supersedes_reason": "the first run shared the GPU"}


def replacing(name: str, change: Callable[[Content], Any] = lambda _: None, of: str = "h100", seed: int = 31) -> None:
    """Register a new run of the same workload that replaces a committed result without the right to."""

    def fresh(_: Content) -> Content:
        run = {**h100_lora(seed=seed), "started_at": "2026-11-22T05:12:44.120034Z", **replaces(identity_of(of))}
        return change(run) or run

    corrupt("supersede", name, REPLACED, "h100")(fresh)


def h100_run(**changes: Any) -> Content:
    """Return a later run of the workload that differs in some way, and replaces the committed one."""
    run = simulate(replace(Scenario("lora-8b", gpu_machine(), Options(max_steps=120), seed=32), **changes))
    return {**run, "started_at": "2026-11-22T05:12:44.120034Z", **replaces(identity_of("h100"))}


STOPPED = Ending(finished={"ended_by": "interrupted", "exit_code": -15})
EPYC_HOST = gpu_machine(cpu=EPYC, cpu_physical_cores=96, cpu_logical_cores=192, cpu_usable_cores=192)
H100_PCIE = H100._replace(name="NVIDIA H100 PCIe", power_w=350.0, clock_mhz=1_755.0, bf16_tflops=756.0)
replacing("without a reason", lambda c: c.update(supersedes_reason=None))
replacing("for a reason of blanks", lambda c: c.update(supersedes_reason="   "))
replacing("a reason, and nothing that is replaced", lambda c: c.update(supersedes=None))
replacing("of what does not exist", lambda c: c.update(supersedes="0123456789ab"))
replacing("a failed run replaces a good one", lambda _: h100_run(steps=5, ending=Ending(finished={"exit_code": -6})))
replacing("an interrupted run replaces a finished one", lambda _: h100_run(steps=61, ending=STOPPED))
replacing("another machine's result of the same device name (other cores, other memory)", lambda _: h100_run(machine=EPYC_HOST))
replacing("a result of another workload", of="lora")
replacing("an older run replaces a newer one", lambda c: c.update(started_at="2026-11-21T01:00:00.120034Z"))
for label, options in {
    "a run in the open division replaces a standard one": Options(overrides=("optimizer.learning_rate=1e-4",), max_steps=120),
    "a run of a third as many steps": Options(max_steps=40),
    "a run without probe and gates": Options(max_steps=120, probe=False, gates=False),
    "a run with another seed": Options(max_steps=120, seed=5),
}.items():
    replacing(label, lambda _, options=options: h100_run(options=options))
replacing("a run on another GPU", lambda _: h100_run(machine=gpu_machine(H100_PCIE), gpu=H100_PCIE))


@corrupt("supersede", "two new results replace the same one", REPLACED, "h100")
def _(_c: Content) -> list[Content]:
    runs = [{**h100_lora(seed=seed), "started_at": f"2026-11-22T0{seed - 30}:12:44.120034Z"} for seed in (33, 34)]
    return [{**run, **replaces(identity_of("h100"))} for run in runs]


@corrupt("supersede", "a result that replaces itself in a circle of two", REPLACED, "h100")
def _(_c: Content) -> list[Content]:
    first = {**h100_lora(seed=35), "started_at": "2026-11-22T02:12:44.120034Z", **replaces("ffffffffffff")}
    second = {**h100_lora(seed=36), "started_at": "2026-11-22T03:12:44.120034Z", **replaces(content_id(canonical_json(first)))}
    return [{**first, "supersedes": content_id(canonical_json(second))}, second]
