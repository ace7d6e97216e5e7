"""A measured result: one run of the harness with its raw values. Statistics are derived, never stored."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field

from tunemark.schema.records.base import Bytes, Count, Frozen, PositiveCount, ResultId, Seconds, Text, absent, consistency, value_or_reason
from tunemark.schema.records.plan import Override, Plan, Requested, division_of, fixed_setting_changed
from tunemark.schema.records.trace import DeviceUse, Effective, Energy, Gate, Probe, RankRecord, StepEvent, StepTrace, Study
from tunemark.schema.vocabulary import Backend, Division, Phase, Status, WarningKind

# Names in mappings, such as of packages, and the maximum number of entries.
Name = Annotated[str, Field(min_length=1, max_length=100)]
Versions = Annotated[dict[Name, Text], Field(max_length=200)]

LATER_FIELDS: dict[str, Any] = {"plan": {"model": {"loss"}, "reasons": {"model.loss"}}, "effective": {"loss", "gradient_reduction"}}
"""Fields that records of older versions lack: their defaults say what those versions did."""


class Harness(Frozen):
    """The harness that measured."""

    version: Text
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{7,40}$")] | None = None
    """Source commit of the checkout, or of the one that the installed package was built from."""
    dirty: bool | None = None
    """True if that checkout had uncommitted changes."""


class DeviceFacts(Frozen):
    """One accelerator as it reports itself."""

    name: Text
    """Name reported by the device."""
    memory_bytes: Bytes | None = None
    """Memory of the device; for a CPU, of the host."""
    driver: Text | None = None
    power_limit_w: float | None = Field(default=None, gt=0)
    """Enforced power limit."""
    target: Text | None = None
    """Compile target of its kernels, such as compute capability 9.0 or gfx942; null where unknown."""
    max_clock_mhz: float | None = Field(default=None, gt=0, exclude_if=absent)
    """Highest clock of the compute units."""
    max_memory_clock_mhz: float | None = Field(default=None, gt=0, exclude_if=absent)
    application_clock_mhz: float | None = Field(default=None, gt=0, exclude_if=absent)
    """Clock of the compute units that an administrator may lower."""
    ecc: bool | None = Field(default=None, exclude_if=absent)
    """True if its memory corrects errors, which takes memory or bandwidth on some boards."""
    partition: Text | None = Field(default=None, exclude_if=absent)
    """How the device is divided: `none` or `MIG` (NVIDIA), such as `SPX` (AMD)."""
    pcie_generation: PositiveCount | None = Field(default=None, le=10, exclude_if=absent)
    """Newest generation that the device and its slot share; an idle device uses an older one."""
    pcie_width: PositiveCount | None = Field(default=None, le=32, exclude_if=absent)
    """Lanes in use."""
    numa_node: Count | None = Field(default=None, exclude_if=absent)
    """Node of the host's memory that it is nearest to."""
    nvlinks: Count | None = Field(default=None, exclude_if=absent)
    """Active NVLinks, to devices or switches."""
    links: Annotated[tuple[Text, ...], Field(max_length=1_024)] | None = Field(default=None, exclude_if=absent)
    """Connections to the other visible devices, in their order, such as `NVLink`, `XGMI` or the part of PCIe in between."""
    unknown: Annotated[dict[Text, Text], Field(max_length=20)] = Field(default_factory=dict, exclude_if=absent)
    """Null field -> why. Other nulls were not asked of this device family, or are in older records."""


class Environment(Frozen):
    """The facts about the machine that may be recorded. It has no host name, user, address, serial number or path."""

    os: Text
    """Operating system and its major.minor version."""
    python: Text
    packages: Versions
    """Versions of the packages used."""
    runtime: Versions = Field(default_factory=dict)
    """Versions of the vendor's libraries that torch uses, such as `cuda` or `hip`; empty on CPUs."""
    backend: Backend
    """Device family."""
    devices: Annotated[tuple[DeviceFacts, ...], Field(min_length=1, max_length=1_024)]
    """Devices of the first machine in rank order; for refused runs, all devices found."""
    cpu: Text
    cpu_physical_cores: PositiveCount | None = None
    """Cores of the host."""
    cpu_logical_cores: PositiveCount
    """Hardware threads of the host."""
    cpu_usable_cores: PositiveCount
    """Hardware threads available to the process."""
    memory_bytes: Bytes
    """Memory of the host."""
    swap_bytes: Bytes | None = None
    """Swap space of the host; null in records before it was read."""
    container: Text | None = Field(default=None, exclude_if=absent)
    """Image of the container as NAME:TAG, or else its kind; null outside containers and where unknown."""

    @property
    def usable_physical_cores(self) -> int | None:
        """Return the number of physical cores that the run could use at most, or None if the system does not report cores."""
        return None if self.cpu_physical_cores is None else min(self.cpu_physical_cores, self.cpu_usable_cores)


RECOVERED = "the tunemark process was killed; recovered from the log of the worker"
"""Message of a run that `tunemark recover` wrote."""


class Outcome(Frozen):
    """How the run ended."""

    status: Status
    """`ok`, or the reason for the failure."""
    phase: Phase
    """The last phase that began."""
    last_good_step: Count
    """Number of completed optimizer steps."""
    message: Text | None = None
    """What happened, without paths of the machine; null on success."""
    fix: Text | None = None


class PhaseStart(Frozen):
    """The start of a phase."""

    phase: Phase
    at_s: Seconds
    """Seconds since the worker was spawned. The phase ends where the next begins."""


class ProcessTimes(Frozen):
    """The worker process as measured by the operating system."""

    wall_s: Seconds
    """From spawn to exit."""
    user_s: Seconds | None = None
    """CPU seconds in user mode, including child processes."""
    system_s: Seconds | None = None
    """CPU seconds in the kernel, including child processes."""
    warm_worker: bool = False
    """True if the worker was forked from a process that had imported the libraries: a try of a study, which is never ranked."""
    model_cache: Literal["cold", "warm", "none"] = "none"
    """Whether weights or data had to be downloaded; `none` if nothing comes from a hub."""
    compile_cache: Literal["cold", "warm", "none"] | None = "none"
    """`warm` if all compiled graphs were cached; `none` if nothing is compiled; null if unknown."""
    compile_cache_reason: Text | None = None
    """Why it is null."""

    _known = value_or_reason("compile_cache", "compile_cache_reason")


class ModelFacts(Frozen):
    """The instantiated model, counted from its tensors."""

    parameters: PositiveCount
    """All parameters including adapters; tied parameters count once."""
    trainable_parameters: PositiveCount
    """Parameters that receive a gradient."""
    parameter_bytes: Annotated[dict[Name, Bytes], Field(max_length=50)]
    """Bytes of parameters by number format, including packed quantised weights."""
    adapter_bytes: Bytes
    """Bytes of adapter parameters; 0 without adapters."""
    gradient_bytes: Bytes | None
    """Bytes of gradients after a backward pass; null if they cannot be measured."""
    gradient_bytes_reason: Text | None = None
    """Why they are null."""
    optimizer_state_bytes: Bytes | None
    """Bytes of optimizer states after the last step; null if they were not measured."""
    optimizer_state_bytes_reason: Text | None = None
    """Why they are null."""

    _gradients_known = value_or_reason("gradient_bytes", "gradient_bytes_reason")
    _states_known = value_or_reason("optimizer_state_bytes", "optimizer_state_bytes_reason")


class MemoryReading(Frozen):
    """A memory peak, or the reason why it is unknown."""

    peak_bytes: Bytes | None = None
    method: Text | None = None
    reason: Text | None = None
    """Why it is null."""

    _known = value_or_reason("peak_bytes", "reason")
    _read = value_or_reason("method", "reason")


class Memory(Frozen):
    """Peaks over the run; the highest of all ranks."""

    device_allocated: MemoryReading
    """Peak of the framework's allocator, the headline if there is one."""
    device_reserved: MemoryReading
    """Peak reserved by the framework, including fragmentation."""
    device_used: MemoryReading
    """Peak reported by the device, minus what was used before the run."""
    host_rss: MemoryReading
    """Peak resident memory of the worker's processes without compilers; the headline if the CPU computes."""
    host_swap: MemoryReading
    """Peak swap of the worker's processes."""


class Utilisation(Frozen):
    """CPU use over the steady window (over all of training without one), sampled from outside the worker.

    It is null with several machines, of which only the first is sampled.
    """

    samples: Count
    interval_s: Seconds
    """Time between samples."""
    cpu_busy_mean: float | None = Field(default=None, ge=0)
    """Mean number of busy cores of the worker's processes (of `environment.cpu_usable_cores`)."""
    cpu_busy_peak: float | None = Field(default=None, ge=0)
    """Highest number of busy cores."""
    foreign_cpu_busy_mean: float | None = Field(default=None, ge=0)
    """Mean number of cores used by other processes."""
    devices: Annotated[tuple[DeviceUse, ...], Field(max_length=1_024)] = ()
    """Each device whose driver reports its use."""
    energy: Energy | None = None
    """Energy of all devices; null if it was not measured."""


class RowLengths(Frozen):
    """Lengths of the training rows in tokens, without padding and cut to `data.sequence_length`; of documents before packing.

    Quantiles are lengths of rows: the smallest length that at least this share of the rows does not exceed.
    """

    rows: PositiveCount
    """Rows of the training data."""
    mean: Annotated[float, Field(gt=0)]
    minimum: PositiveCount
    median: PositiveCount
    p90: PositiveCount
    p95: PositiveCount
    p99: PositiveCount
    maximum: PositiveCount

    @consistency
    def _in_order(self) -> Iterator[str]:
        lengths = [self.minimum, self.median, self.p90, self.p95, self.p99, self.maximum]
        if lengths != sorted(lengths) or not self.minimum <= self.mean <= self.maximum:
            yield f"lengths {lengths} with mean {self.mean:g} are not in order"


class Evaluation(Frozen):
    """Quality on held-out rows."""

    split: Text
    rows: PositiveCount
    loss: float | None = None
    loss_standard_error: float | None = Field(default=None, ge=0)
    """Standard error of the loss, from the spread of micro-batches; null with fewer than two."""
    accuracy: float | None = Field(default=None, ge=0, le=1)
    """Share of rows classified correctly, for classification."""


class MeasurementWarning(Frozen):
    """A warning about this measurement."""

    kind: WarningKind
    message: Text
    """What was observed."""


class Submission(Frozen):
    """One run of the harness on one machine. It is written once and never edited, only superseded."""

    format: Literal["tunemark.submission/1"] = "tunemark.submission/1"
    run_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """Random, so that two runs of the same plan are two results."""
    started_at: AwareDatetime
    """When the worker was spawned, in UTC."""
    harness: Harness
    division: Division
    """Follows from the overrides: `standard` without any, `tuned` if all are free, else `open`. Free ones may be declared `open` too."""
    overrides: Annotated[tuple[Override, ...], Field(max_length=100)] = ()
    """Settings that differ from the card."""
    supersedes: ResultId | None = None
    """Id of the result that this one replaces."""
    supersedes_reason: Text | None = None
    """Why that result is replaced."""
    requested: Requested
    """The card and the options as given, from which the plan follows."""
    plan: Plan
    environment: Environment
    outcome: Outcome
    timeline: Annotated[tuple[PhaseStart, ...], Field(min_length=1, max_length=100)]
    """Phases in order."""
    process: ProcessTimes
    study: Study | None = None
    """The study that the run belongs to; null for a single run."""
    row_lengths: RowLengths | None = None
    """Null for endless synthetic rows, and if the run ended before the data was read."""
    model: ModelFacts | None = None
    """Null if the run ended before the model was built."""
    effective: Effective | None = None
    """Effective settings; null if the run ended before training was prepared."""
    gates: Annotated[tuple[Gate, ...], Field(max_length=10)] = ()
    """Checks that training is correct."""
    probe: Probe | None = None
    """Matrix rate of the device; null if it was not measured."""
    trace: StepTrace
    events: Annotated[tuple[StepEvent, ...], Field(max_length=10_000)] = ()
    """Compilations and allocator growth by step."""
    ranks: Annotated[tuple[RankRecord, ...], Field(max_length=100_000)] = ()
    """Each process of a distributed run; empty for one process."""
    memory: Memory
    utilisation: Utilisation | None = None
    """Device and CPU use; null if the run ended before a sample was taken."""
    evaluation: Evaluation | None = None
    """Quality; null when not evaluated."""
    saved_bytes: Bytes | None = None
    """Bytes written in the phase `save`: adapters or the whole model; null if nothing was saved."""
    warnings: Annotated[tuple[MeasurementWarning, ...], Field(max_length=100)] = ()
    """Warnings about this measurement."""

    @consistency
    def _consistent(self) -> Iterator[str]:
        # The other relations between fields are rows of the gate's table, relations.toml.
        derived, device, listed = division_of(self.plan, self.overrides), self.plan.device, len(self.environment.devices)
        if self.division is not derived and (self.division, derived) != (Division.OPEN, Division.TUNED):
            free = "all of them are free settings" if self.overrides else "nothing was overridden"
            why = fixed_setting_changed(self.plan, self.overrides) or free
            yield f"division is {self.division.value!r} with {len(self.overrides)} overrides; declare {derived.value!r}: {why}"
        # Several processes can share one CPU, which is listed once. With several machines, the first lists its own devices.
        shared, used = device.backend in {Backend.CPU, Backend.FAKE} and listed == 1, device.count // device.nodes
        refused = self.outcome.status is Status.UNSUPPORTED and listed < used
        if listed != used and not shared and not refused:
            yield f"environment.devices lists {listed}, plan.device.count is {used} on this machine; list each device used"


def submission_name(submission: Submission, result_id: str) -> str:
    """Return the file name of a submission with this id: day, device and id."""
    device = submission.plan.device.accelerator or submission.plan.device.backend.value
    return f"{submission.started_at:%Y%m%d}-{device}-{result_id}.json"
