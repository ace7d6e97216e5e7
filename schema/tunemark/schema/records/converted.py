"""A converted result: raw values read from the logs of another harness. Statistics are derived, never stored.

Field docstrings name the key of the MLPerf log (`:::MLLOG` lines) that a value comes from.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from tunemark.schema.records.base import Count, Frozen, PositiveCount, Seconds, Text, consistency
from tunemark.schema.records.published import Conditions
from tunemark.schema.statistics.intervals import CONFIDENCE, Interval, ratio_interval
from tunemark.schema.vocabulary import MLPERF_LABEL

MLPERF_SOURCE = "Result logs and system descriptions of MLPerf Training, MLCommons Association, Apache-2.0"

RunStatus = Literal["ok", "missed", "aborted", "incomplete"]
MLPERF_TARGET_EVAL_LOSS = 0.925
"""Eval loss at which a run may stop, by the rules of MLPerf Training for llama2_70b_lora."""
RoundName = Annotated[str, Field(pattern=r"^v[0-9]{1,3}\.[0-9]{1,3}$", description="Round of MLPerf Training, such as `v5.1`.")]


class EvalCurve(Frozen):
    """Evaluations of a run in order, one entry per evaluation in each column."""

    samples: tuple[Count, ...] = ()
    """Training samples seen before the evaluation (`eval_accuracy`, metadata `samples_count`)."""
    at_s: tuple[Seconds, ...] = ()
    """Seconds from `run_start` to its result (`eval_accuracy`, `time_ms`)."""
    eval_loss: tuple[float, ...] = ()
    """Loss on the held-out rows (`eval_accuracy`, value: this benchmark logs a loss under that name)."""

    @consistency
    def _equally_long(self) -> Iterator[str]:
        lengths = {len(self.samples), len(self.at_s), len(self.eval_loss)}
        if len(lengths) > 1:
            yield f"columns have {len(self.samples)}, {len(self.at_s)} and {len(self.eval_loss)} entries; an evaluation has one in each"


class PowerReading(Frozen):
    """The power of one node or switch over a run, from the submitter's meter."""

    meter: Text
    """Name of the log, such as `node_0` or `sw_0`."""
    kind: Literal["node", "switch"]
    """`node`: a whole machine; `switch`: its share of the interconnect."""
    watts: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """Mean over time of `power_reading`, or `interconnect_power_est`."""
    readings: Count
    """Readings behind the mean; 0 for an estimate by the submitter."""
    within_run: bool
    """True if only readings between `run_start` and `run_stop` count; false if all readings count because the clocks of the logs differ."""
    measurement: Literal["AC", "DC"] | None = None
    """AC: at the mains. DC: behind the power supply. From `conversion_eff`, metadata `measurement_type`, else from the submitter's folder."""
    conversion_efficiency: Annotated[float, Field(gt=0, le=1)] | None = None
    """`conversion_eff`: DC over AC, as stated by the submitter."""


class ConvertedRun(Frozen):
    """Raw values of one run."""

    file: Text
    """Name of the log in the entry's folder."""
    status: RunStatus
    """`ok`: `run_stop` with status `success` after an evaluation at the target; `missed`: with that status and no such evaluation;
    `aborted`: with another status; `incomplete`: no `run_stop`, so the log ends early."""
    seed: int | None = None
    """`seed`."""
    init_s: Seconds | None = None
    """From `init_start` to `init_stop`: not part of the time to target."""
    time_to_target_s: Seconds | None = None
    """From `run_start` to `run_stop` of a run that reached the target; else null."""
    samples: Count | None = None
    """Training samples of the run: `run_stop`, metadata `samples_count`; else of the last `eval_accuracy`."""
    trained_samples: Count | None = None
    """Training samples within the blocks of `train_s`."""
    train_s: Seconds | None = None
    """Sum over all `block_start` to `block_stop`: training without evaluation."""
    logged_samples_per_s: tuple[float, ...] = ()
    """`tracked_stats`, key `throughput`: measured by the submitter's code after each block, if logged."""
    curve: EvalCurve = EvalCurve()
    power: tuple[PowerReading, ...] = ()
    """Power of each node and switch, if the submitter measured it."""

    @consistency
    def _time_of_success(self) -> Iterator[str]:
        if (self.status == "ok") != (self.time_to_target_s is not None):
            yield f"status is {self.status!r} and time_to_target_s is {self.time_to_target_s}; a run has a time to target when it is ok"

    @property
    def samples_per_s(self) -> float | None:
        """Training samples per second while training: a ratio of sums over the blocks."""
        return self.trained_samples / self.train_s if self.trained_samples and self.train_s else None

    @property
    def energy_j(self) -> float | None:
        """Joules from `run_start` to `run_stop`, of all nodes and switches; None without power readings."""
        return sum(reading.watts for reading in self.power) * self.time_to_target_s if self.power and self.time_to_target_s else None


class ConvertedSystem(Frozen):
    """The machine as described by its system description, with words and units as printed."""

    name: Text
    """`system_name`."""
    availability: Text | None = None
    """`status`: on-premise, cloud, preview."""
    nodes: PositiveCount | None = None
    """`number_of_nodes`."""
    accelerators_per_node: PositiveCount | None = None
    """`accelerators_per_node`."""
    accelerator_printed: Text | None = None
    """`accelerator_model_name`."""
    accelerator_memory_printed: Text | None = None
    """`accelerator_memory_capacity`."""
    accelerator_interconnect_printed: Text | None = None
    """`accelerator_interconnect`."""
    host_processor_printed: Text | None = None
    """`host_processor_model_name`."""
    host_processors_per_node: PositiveCount | None = None
    """`host_processors_per_node`."""
    host_memory_printed: Text | None = None
    """`host_memory_capacity`."""
    framework_printed: Text | None = None
    """`framework`."""
    operating_system: Text | None = None
    """`operating_system`."""
    notes: tuple[Text, ...] = ()
    """`hw_notes` and `sw_notes`."""


class ConvertedResult(Frozen):
    """One entry of another harness: a system, its settings, and the raw values of its runs."""

    format: Literal["tunemark.converted/1"] = "tunemark.converted/1"
    id: Annotated[str, Field(pattern=r"^mlperf-v[0-9]+\.[0-9]+-[a-z0-9][a-z0-9._-]*$", max_length=200)]
    """`mlperf-<round>-<submitter>-<system folder>`, as a slug."""
    harness: Literal["mlperf"] = "mlperf"
    benchmark: Literal["llama2_70b_lora"] = "llama2_70b_lora"
    """Name of the benchmark in that harness."""
    round: RoundName
    division: Text | None = None
    """`closed` or `open`, from the system description."""
    submitter: Text
    """Submitter: the folder of the archive."""
    label: Literal["MLPerf, unofficial conversion, not verified by MLCommons Association"] = MLPERF_LABEL
    """Label shown with each of its figures."""
    source: Text = MLPERF_SOURCE
    """Origin and licence of the logs."""
    folder: Text
    """Folder of the logs in the archive."""
    system: ConvertedSystem
    conditions: Conditions
    target_eval_loss: float | None = None
    """`target_accuracy`: the eval loss at which a run may stop; from the rules if listed in `conditions.assumed`."""
    runs: tuple[ConvertedRun, ...] = Field(min_length=1)
    scaling_factor: Annotated[float, Field(ge=1, lt=10)] | None = None
    """`scaling.json`: the official score is the mean without the fastest and the slowest run, times this factor, since the entry needed fewer samples than the
    reference convergence points (RCP). Null without the file, which means 1."""
    notes: tuple[Text, ...] = ()

    @consistency
    def _distinct(self) -> Iterator[str]:
        files = [run.file for run in self.runs]
        if len(set(files)) != len(files):
            yield f"runs name {len(files)} files and {len(set(files))} of them are different; each log is one run"
        if not self.id.startswith(f"{self.harness}-{self.round}-"):
            yield f"id is {self.id!r} in round {self.round!r}; an id starts with its harness and round"

    @property
    def times_s(self) -> list[float]:
        """Times to target of its runs in order; infinite for one that did not reach it, which counts as longer than any other."""
        return sorted(math.inf if run.time_to_target_s is None else run.time_to_target_s for run in self.runs)

    @property
    def score_s(self) -> float | None:
        """Official score: mean without the fastest and the slowest run, times the scaling factor. See definitions#mlperf-score.

        There is none with fewer than three runs, or two that missed the target (MLPerf Training rules, "Benchmark results").
        """
        kept = self.times_s[1:-1]
        return sum(kept) / len(kept) * (self.scaling_factor or 1.0) if kept and math.isfinite(kept[-1]) else None

    @property
    def median_time(self) -> Interval | None:
        """Median time to target of all runs, with a distribution-free interval of at least 95%; null if half of the runs missed it.

        The interval goes from the k-th smallest to the k-th largest time, with the largest k whose coverage
        1 - 2 P(Binomial(n, 1/2) < k) is at least 95%; for ten runs these are the second and the ninth (97.9%).
        Fewer than six runs have no such interval: its ends are 0 and infinity.
        """
        times, n = self.times_s, len(self.runs)
        if not math.isfinite(middle := median(times)):
            return None
        rank = sum(1 - 2 * below >= CONFIDENCE for below in accumulate(math.comb(n, rank) / 2**n for rank in range(n // 2)))
        return Interval(middle, times[rank - 1], times[n - rank]) if rank else Interval(middle, 0.0, math.inf)


def training_rate(result: ConvertedResult) -> Interval | None:
    """Return training samples per second while training, over the runs that reached the target: a ratio of sums."""
    pairs = [(run.trained_samples, run.train_s) for run in result.runs if run.status == "ok" and run.trained_samples and run.train_s]
    if not pairs:
        return None
    samples, seconds = (np.asarray(column, dtype=float) for column in zip(*pairs, strict=True))
    return ratio_interval(samples, seconds)


@dataclass(frozen=True, slots=True)
class RunEnergy:
    """Measured energy of the runs of an entry that reached the target."""

    runs: int
    """Runs with power readings."""
    per_run_j: float
    """Median over these runs, from `run_start` to `run_stop`."""
    per_sample_j: float | None
    """Energy of all of them over their training samples, evaluation included."""
    scope: str
    """Nodes and switches, and the place of the measurement."""


def run_energy(result: ConvertedResult) -> RunEnergy | None:
    """Return the energy of an entry in joules, or None without power readings."""
    measured = [run for run in result.runs if run.energy_j is not None]
    if not measured:
        return None
    joules, samples = [run.energy_j or 0.0 for run in measured], [run.samples or 0 for run in measured]
    return RunEnergy(
        runs=len(measured),
        per_run_j=median(joules),
        per_sample_j=sum(joules) / sum(samples) if all(samples) else None,
        scope=_power_scope(measured[0].power),
    )


def _power_scope(power: tuple[PowerReading, ...]) -> str:
    nodes, switches = ([reading for reading in power if reading.kind == kind] for kind in ("node", "switch"))
    places = {"AC": "AC, at the mains", "DC": "DC, behind the power supplies", None: "AC or DC is not stated"}
    estimated = "" if any(reading.readings for reading in switches) else " (estimated by the submitter)"
    joined = f"{len(switches)} switch{'es' * (len(switches) != 1)}{estimated}" if switches else "no switch"
    measured_at = sorted({places[reading.measurement] for reading in nodes})
    return f"{len(nodes)} node{'s' * (len(nodes) != 1)}, {joined}; {'; '.join(measured_at)}"
