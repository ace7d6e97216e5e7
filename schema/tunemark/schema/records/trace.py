"""The raw step log of one run, as columns: the only thing headline numbers are made from."""

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tunemark.schema.records.base import Bytes, Count, Frozen, PositiveCount, Seconds, Sha256, Text
from tunemark.schema.vocabulary import Dtype

COUNT_COLUMNS = ("slot_tokens", "real_tokens", "supervised_tokens", "documents", "rows")


class StepTrace(Frozen):
    """One entry per optimizer step and column; counts are summed over all data-parallel ranks.

    All times are seconds on one monotonic clock that starts when the worker process is spawned.
    """

    started_at_s: Seconds = 0.0
    """When the first optimizer step began, the device synchronised."""
    completed_at_s: tuple[Seconds, ...] = ()
    """When each optimizer step was complete: step time is the difference to the one before."""
    slot_tokens: tuple[Count, ...] = ()
    """Elements of the input tensors, padding included."""
    real_tokens: tuple[Count, ...] = ()
    """Tokens that are not padding. The headline tokens/s counts these."""
    supervised_tokens: tuple[Count, ...] = ()
    """Positions with a label that is not ignored (for classification: one a row)."""
    documents: tuple[Count, ...] = ()
    """Samples: documents, not packed rows."""
    rows: tuple[Count, ...] = ()
    """Rows of the input tensors; below `documents` when documents are packed."""
    loss: tuple[float | None, ...] = Field(
        default=(), description="Supervised-token-weighted mean loss of each step; null where it was not a finite number."
    )

    @model_validator(mode="after")
    def _columns_agree(self) -> Self:
        lengths = {name: len(getattr(self, name)) for name in ("completed_at_s", *COUNT_COLUMNS, "loss")}
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            msg = f"every column holds one entry per step, but {said}; write all columns of a step together"
            raise ValueError(msg)
        times = (self.started_at_s, *self.completed_at_s)
        for step, (before, after) in enumerate(pairwise(times), start=1):
            if after <= before:
                msg = f"completed_at_s of step {step} is {after}, not later than {before}; steps complete one after another on a monotonic clock"
                raise ValueError(msg)
        for step, (slots, real, supervised) in enumerate(
            zip(self.slot_tokens, self.real_tokens, self.supervised_tokens, strict=True), start=1
        ):
            if not supervised <= real <= slots:
                msg = f"step {step} counts supervised {supervised}, real {real}, slots {slots}; supervised <= real <= slots must hold"
                raise ValueError(msg)
        return self

    def __len__(self) -> int:
        """Return the number of optimizer steps that were completed."""
        return len(self.completed_at_s)

    @property
    def step_times_s(self) -> tuple[float, ...]:
        """Completion-to-completion wall time of each step; the first counts from `started_at_s`."""
        times = (self.started_at_s, *self.completed_at_s)
        return tuple(after - before for before, after in pairwise(times))


# MOVE: was tunemark.schema.records.trace: What a run saw beside its steps: what was effective, each rank, compilations, probes, gates, device use, energy.

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class Effective(Frozen):
    """What really ran, read from the model, the optimizer and the process group. The plan says what was asked."""

    attention: Text
    """Attention implementation that the model was built with, by its configuration. Which kernel each call got is not observed."""
    attention_kernel: Text | None = None
    """With `sdpa`: the kernel that torch says it chooses for rows of this shape and format here; null elsewhere, and when compiled."""
    fused_kernels: Text
    """`liger` when its kernels were put in, else `none`."""
    compile: Text
    """What was compiled, with the back end; `none` when nothing was."""
    gradient_checkpointing: Text
    """Which blocks recompute: `none`, `full`, or how many of how many."""
    compute: Text | None = None
    """Number format of the first matrix product in training; null where it could not be seen, as in a compiled graph."""
    quantisation: Text | None = None
    """Four-bit format of the stored weights, `, double` when its constants are quantised too, `none` without; null when not looked at."""
    optimizer: Text
    """Class of the optimizer."""
    parameters_on: Annotated[tuple[Text, ...], Field(max_length=10)] = ()
    """Kinds of device that hold the parameters, as torch calls them; empty when not looked at."""
    optimizer_states_on: Annotated[tuple[Text, ...], Field(max_length=10)] = ()
    """Kinds of device that hold the optimizer's states after training; empty when not looked at, or without states."""
    stochastic_rounding: bool | None = None
    """What the Neuron runtime was told; null on other devices."""
    trainable_dtypes: Annotated[tuple[Text, ...], Field(max_length=10)]
    """Number formats of the weights that receive a gradient."""
    processes: PositiveCount
    """World size that the training library reports."""
    process_group: Text | None = None
    """Back end of the collectives; null for one process."""
    sharding: Text | None = None
    """Engine that shares states over the devices, as it calls itself."""


class RankRecord(Frozen):
    """One process of a run on several devices."""

    rank: Count
    """Number of the process."""
    own_work_s: Annotated[tuple[Seconds, ...], Field(max_length=1_000_000)]
    """For each step, seconds from its start to just before gradients are exchanged: no other rank can delay these."""
    device_allocated_bytes: Bytes | None = None
    """Peak of its allocator; null where the device has none that counts."""
    device_reserved_bytes: Bytes | None = None
    """Peak that its allocator held."""
    host_rss_bytes: Bytes | None = None
    """Its peak resident memory."""


class StepEvent(Frozen):
    """Something that makes a step's time no measure of the steady state."""

    step: PositiveCount
    """Optimizer step, counted from 1."""
    kind: Literal["compile", "allocator_growth"]
    """Graphs were compiled in it, or the allocator took more memory from the device."""
    amount: PositiveCount
    """Graphs, or bytes."""


class Probe(Frozen):
    """The matrix rate that this very device reached in a short test before and after training: what MAFU is measured against."""

    dtype: Dtype
    """Number format of the products."""
    size: PositiveCount
    """Rows and columns of the square matrices."""
    before_flop_per_s: Positive
    """Best of several products before training; of several processes, what the first reached while all were probing."""
    after_flop_per_s: Positive | None = None
    """The same after training; null when training did not end well."""


class Gate(Frozen):
    """A check that training is right: a speed counts only when it passes."""

    name: Literal["adapter_gradient", "packed_documents", "loss_band"]
    """Which check."""
    passed: bool | None
    """Null when it does not apply, with the reason in `detail`."""
    detail: Text
    """What was seen."""


class Energy(Frozen):
    """Energy of all devices over the steady window, idle power included."""

    source: Literal["counter", "integrated", "none"]
    """The hardware's counter, power integrated at 10 Hz or more, or nothing."""
    joules: NotNegative | None = None
    """Gross; null exactly when the source is `none`."""
    window_s: Seconds | None = None
    """Between the two readings."""
    idle_w: NotNegative | None = None
    """Power of all devices before the run."""
    reason: Text | None = None
    """Why there is none."""

    @model_validator(mode="after")
    def _source_or_reason(self) -> Self:
        if (self.source == "none") != (self.joules is None) or (self.source == "none") != (self.reason is not None):
            msg = f"energy source is {self.source!r} with joules {self.joules} and reason {self.reason!r}; give joules with a source, or a reason with 'none'"
            raise ValueError(msg)
        return self


class DeviceUse(Frozen):
    """One device over the steady window, sampled from outside the worker. Null where its driver does not tell."""

    index: Count
    """Number of the device."""
    samples: PositiveCount
    """How many."""
    busy_mean: Share | None = None
    """Share of time in which something ran on it."""
    busy_peak: Share | None = None
    """Highest of the samples."""
    power_mean_w: NotNegative | None = None
    """Mean power."""
    power_peak_w: NotNegative | None = None
    """Highest power."""
    clock_mean_mhz: NotNegative | None = None
    """Mean clock of its arithmetic units."""
    clock_min_mhz: NotNegative | None = None
    """Lowest clock."""
    temperature_peak_c: float | None = None
    """Highest temperature."""
    memory_used_peak_bytes: Bytes | None = None
    """Highest memory in use, other processes included."""
    memory_used_before_bytes: Bytes | None = None
    """Memory in use before the run."""
    throttle_reasons: Annotated[tuple[Text, ...], Field(max_length=20)] = ()
    """Why its clocks were lowered, as the driver calls it; idle is none."""


class Study(Frozen):
    """The series that this run is a part of."""

    kind: Literal["sweep", "frontier", "ab", "repeat"]
    """What was asked."""
    study_id: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    """Shared by all runs of the series."""
    point: Text
    """Which point, arm or repeat this is, such as `batch.micro_batch=16`."""
    position: PositiveCount
    """Order in which it ran, from 1."""
    settings_sha256: Sha256
    """Hash of what was asked: workload, settings and points."""
