"""The raw step log of a run, and everything else observed during it: effective settings beside those of the plan, ranks, events, device use.

Headline figures are derived from the step log only.
"""

from collections.abc import Iterator
from itertools import accumulate, pairwise
from statistics import fmean
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from tunemark.schema.records.base import Bytes, Count, Frozen, PositiveCount, Seconds, Sha256, Share, Text, consistency, value_or_reason
from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import NATIVE, Backend, Dtype

MOST_MICRO_STEPS = 20_000
"""Micro-step times in a record, about half a MiB. In longer runs only the last steps have them."""
COUNT_COLUMNS = ("slot_tokens", "real_tokens", "supervised_tokens", "documents", "rows")


class StepTrace(Frozen):
    """The step log as columns with one entry per optimizer step. Counts are sums over all data-parallel ranks.

    Times are seconds on one monotonic clock that starts when the worker process is spawned.
    """

    started_at_s: Seconds = 0.0
    """Start of the first optimizer step, after synchronising with the device."""
    completed_at_s: tuple[Seconds, ...] = ()
    """Completion of each optimizer step. Step time is the difference to the previous one."""
    slot_tokens: tuple[Count, ...] = ()
    """Elements of the input tensors, including padding."""
    real_tokens: tuple[Count, ...] = ()
    """Tokens without padding. The headline tokens/s counts these."""
    supervised_tokens: tuple[Count, ...] = ()
    """Positions with a label that is not ignored (for classification: one per row)."""
    documents: tuple[Count, ...] = ()
    """Samples: documents, not packed rows."""
    rows: tuple[Count, ...] = ()
    """Rows of the input tensors; fewer than `documents` if documents are packed."""
    loss: tuple[float | None, ...] = ()
    """Supervised-token-weighted mean loss of each step; null where it was not a finite number."""
    micro_completed_at_s: tuple[tuple[Seconds, ...], ...] = ()
    """Completion of each micro-step (forward and backward of one micro-batch) of each step, before the optimizer's update. Empty
    without gradient accumulation, and for devices that would have to wait at each; a step may have none."""
    data_wait_s: Seconds | None = None
    """Time for which the training thread waited for samples, over all steps but the first. Null in older records, for a run that
    was killed, and where a vendor's trainer loads the samples."""

    @consistency
    def _columns_agree(self) -> Iterator[str]:
        lengths = {name: len(getattr(self, name)) for name in ("completed_at_s", *COUNT_COLUMNS, "loss")}
        if len(set(lengths.values())) > 1:
            lengths_text = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            yield f"every column holds one entry per step, but {lengths_text}; write all columns of a step together"
            return
        times = (self.started_at_s, *self.completed_at_s)
        for step, (before, after) in enumerate(pairwise(times), start=1):
            if after <= before:
                yield f"completed_at_s of step {step} is {after}, not later than {before}; steps complete one after another on a monotonic clock"
        counts = zip(self.slot_tokens, self.real_tokens, self.supervised_tokens, strict=True)
        for step, (slots, real, supervised) in enumerate(counts, start=1):
            if not supervised <= real <= slots:
                yield f"step {step} counts supervised {supervised}, real {real}, slots {slots}; supervised <= real <= slots must hold"
        yield from self._micro_step_problems(times)
        took = times[-1] - times[0]
        if self.data_wait_s is not None and self.data_wait_s > took:
            yield f"data_wait_s is {self.data_wait_s}, and all steps took {took}; training waits for samples inside its steps"

    def _micro_step_problems(self, times: tuple[float, ...]) -> Iterator[str]:
        micro = self.micro_completed_at_s
        if micro and len(micro) != len(self):
            yield f"micro_completed_at_s has {len(micro)} entries, and the trace {len(self)} steps; give one for each step, or none at all"
        if sum(map(len, micro)) > MOST_MICRO_STEPS:
            yield f"micro_completed_at_s holds {sum(map(len, micro))} times; a record holds at most {MOST_MICRO_STEPS}"
        for step, (inside, (before, after)) in enumerate(zip(micro, pairwise(times), strict=False), start=1):
            if any(late <= early for early, late in pairwise((before, *inside))) or (inside and inside[-1] > after):
                yield f"micro_completed_at_s of step {step} is {list(inside)}, not in order between {before} and {after}, the ends of the steps"

    def __len__(self) -> int:
        """Return the number of completed optimizer steps."""
        return len(self.completed_at_s)

    @property
    def step_times_s(self) -> tuple[float, ...]:
        """Wall time of each step from completion to completion. The first step counts from `started_at_s`."""
        times = (self.started_at_s, *self.completed_at_s)
        return tuple(after - before for before, after in pairwise(times))

    @property
    def data_wait_share(self) -> float | None:
        """Share of the time after the first step in which training waited for samples; None if unknown."""
        if self.data_wait_s is None or len(self) < 2:  # noqa: PLR2004 - the first step is left out
            return None
        return self.data_wait_s / (self.completed_at_s[-1] - self.completed_at_s[0])

    def loss_after(self, real_tokens: int, steps: int = 5) -> float | None:
        """Return the mean loss of the last `steps` steps within the first `real_tokens` tokens, to compare runs after equal work.

        None if no step lies within them, or a loss among them is not finite.
        """
        within = sum(total <= real_tokens for total in accumulate(self.real_tokens))
        losses = [loss for loss in self.loss[:within][-steps:] if loss is not None]
        return fmean(losses) if losses and len(losses) == min(steps, within) else None

    def micro_step_times_s(self, first: int, stop: int) -> tuple[float, ...]:
        """Wall time of each micro-step of the steps from index `first` to before `stop`. The optimizer's update is not included."""
        starts = (self.started_at_s, *self.completed_at_s)[first:stop]
        steps = zip(starts, self.micro_completed_at_s[first:stop], strict=False)
        return tuple(after - before for start, inside in steps for before, after in pairwise((start, *inside)))


Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class Effective(Frozen):
    """Effective settings, read from the model, the optimizer and the process group. The plan has the requested ones."""

    attention: Text
    """Attention implementation in the model's configuration. The kernel of each call is not observed."""
    attention_kernel: Text | None = None
    """With `sdpa`: the kernel that torch chooses for rows of this shape and format, null when compiled. With `varlen`: its only
    kernel. Null otherwise."""
    fused_kernels: Text
    """`liger` if its kernels were installed, else `none`."""
    loss: Literal["whole", "chunked"] | None = None
    """`chunked` if chunks of tokens go through the head, else `whole`; null in older records."""
    compile: Text
    """What was compiled, with the back end, and the mode if it is not the default one; `none` if nothing was."""
    gradient_checkpointing: Text
    """Blocks that recompute: `none`, `full`, or a number of blocks."""
    compute: Text | None = None
    """Number format of the first matrix product in training that is not in fp8; null if it could not be observed, as in a compiled graph."""
    quantisation: Text | None = None
    """4-bit format of the stored weights, with `, double` if its constants are quantised too, or `fp8`; `none` without; null if unknown."""
    fp8_training: Text | None = None
    """Recipe of the layers that torchao replaced, `none` without such layers; null if unknown."""
    optimizer: Text
    parameters_on: Annotated[tuple[Text, ...], Field(max_length=10)] = ()
    """Types of device that hold the parameters; empty if unknown."""
    optimizer_states_on: Annotated[tuple[Text, ...], Field(max_length=10)] = ()
    """Types of device that hold the optimizer states after training; empty if unknown, or without states."""
    expandable_segments: bool | None = None
    """Setting of torch's allocator on CUDA; null on other devices and in older records."""
    stochastic_rounding: bool | None = None
    """True if the optimizer rounds updated weights stochastically, or if the Neuron runtime rounds all results so; null if unknown."""
    trainable_dtypes: Annotated[tuple[Text, ...], Field(max_length=10)]
    """Number formats of the weights that receive a gradient."""
    processes: PositiveCount
    """World size reported by the training library."""
    process_group: Text | None = None
    """Back end of the collectives; null for one process."""
    sharding: Text | None = None
    """Name of the engine that shards states over devices."""
    gradient_reduction: Literal["fp32", "bf16", "fp16"] | None = None
    """Number format in which FSDP2 adds up the gradients of all devices; null with other strategies and in older records."""


class RankRecord(Frozen):
    """One process of a run on several devices."""

    rank: Count
    own_work_s: Annotated[tuple[Seconds, ...], Field(max_length=1_000_000)]
    """Seconds per step from its start to just before gradients are exchanged. No other rank can delay these."""
    device_allocated_bytes: Bytes | None = None
    """Peak of its allocator; null if the device does not report one."""
    device_reserved_bytes: Bytes | None = None
    """Peak reserved by its allocator."""
    host_rss_bytes: Bytes | None = None
    """Peak resident memory."""


class StepEvent(Frozen):
    """An event that makes the time of a step unrepresentative."""

    step: PositiveCount
    """Optimizer step, counted from 1."""
    kind: Literal["compile", "allocator_growth", "allocator_retry"]
    """Graphs were compiled, the allocator reserved more memory, or it found none, emptied its cache and tried again."""
    amount: PositiveCount
    """Number of graphs, bytes, or number of retries."""


class Probe(Frozen):
    """The matrix rate of the device in a short test before and after training: the denominator of MAFU."""

    dtype: Dtype
    """Number format of the products."""
    size: PositiveCount
    """Rows and columns of the square matrices."""
    before_flop_per_s: Positive
    """Median over at least 0.5 s of products before training (older records: best of several); with several processes, of the
    first one while all are probing."""
    after_flop_per_s: Positive | None = None
    """The same after training; null if training failed."""


class Gate(Frozen):
    """A check that training is correct. A speed counts only if all checks pass."""

    name: Literal["adapter_gradient", "packed_documents", "loss_band"]
    passed: bool | None
    """Null if it does not apply, with the reason in `detail`."""
    detail: Text
    """What was observed."""


class Energy(Frozen):
    """Energy of all devices over the steady window, including idle power."""

    source: Literal["counter", "integrated", "none"]
    """The hardware counter, power integrated at 10 Hz or more, or none."""
    joules: NotNegative | None = None
    """Gross energy; null if and only if the source is `none`."""
    window_s: Annotated[Seconds, Field(gt=0)] | None = None
    """Seconds between the two readings."""
    idle_w: NotNegative | None = None
    """Power of all devices before the run."""
    reason: Text | None = None
    """Why it is unknown."""

    _known = value_or_reason("joules", "reason")

    @consistency
    def _of_source(self) -> Iterator[str]:
        if (self.source == "none") != (self.joules is None):
            yield f"energy source is {self.source!r} with joules {self.joules}; give joules with a source, and none with 'none'"


class DeviceUse(Frozen):
    """Use of one device over the steady window, sampled from outside the worker. Each null has its reason in `unknown`."""

    index: Count
    """Device number in its machine."""
    node: Count = 0
    """Machine number; 0 is the one that writes the record."""
    samples: PositiveCount
    busy_mean: Share | None = None
    """Mean share of time in which the device was busy."""
    busy_peak: Share | None = None
    """Highest sample."""
    power_mean_w: NotNegative | None = None
    power_peak_w: NotNegative | None = None
    clock_mean_mhz: NotNegative | None = None
    """Mean clock of the compute units."""
    clock_min_mhz: NotNegative | None = None
    memory_clock_mean_mhz: NotNegative | None = None
    temperature_peak_c: float | None = None
    memory_used_peak_bytes: Bytes | None = None
    """Highest memory in use, other processes included."""
    memory_used_before_bytes: Bytes | None = None
    """Memory in use before the run."""
    other_processes: Count | None = None
    """Highest number of processes of others on the device, before and during the run."""
    errors: Annotated[tuple[Text, ...], Field(max_length=100)] | None = None
    """Errors that the driver reported during the whole run, such as `Xid 79`."""
    throttle_reasons: Annotated[tuple[Text, ...], Field(max_length=20)] | None = None
    """Reasons for lowered clocks as named by the driver, without idling. One sample is enough. Empty if it reported none."""
    throttle_shares: Annotated[dict[Text, Share], Field(max_length=20)] = Field(default_factory=dict)
    """Share of the window's time for each of these reasons; empty in older records."""
    unknown: Annotated[dict[Text, Text], Field(max_length=20)] = Field(default_factory=dict)
    """Field that is null -> why."""

    @consistency
    def _null_or_known(self) -> Iterator[str]:
        null = {name for name in type(self).model_fields if getattr(self, name) is None}
        for name in sorted(null ^ set(self.unknown)):
            problem = "null without a reason" if name in null else "known, or no field, and has a reason why it is unknown"
            yield f"{name} is {problem}; unknown gives one reason for each field that is null"


class Study(Frozen):
    """The study that a run belongs to."""

    kind: Literal["sweep", "frontier", "ab", "repeat", "tune"]
    study_id: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    """Shared by all runs of the study."""
    point: Text
    """The point, arm or repeat, such as `batch.micro_batch=16`."""
    position: PositiveCount
    """Order of execution, from 1."""
    settings_sha256: Sha256
    """Hash of the request: workload, settings and points."""


ARMS = ("a", "b")
ARM_POINT = r"[ab]: (?P<settings>.+?)(, pair \d+)?"
"""The name of a run in an A/B study, of the arm itself without a pair."""


def arm_point(arm: str, settings: str, pair: int = 0) -> str:
    """Return the name of a run of an arm with its settings, such as `compile=blocks`, in a pair from 1, or of the arm itself."""
    return f"{arm}: {settings}" + (f", pair {pair}" if pair else "")


# What the plan requested, what the run used, and whether they agree

SHORT_NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
TORCH_NAMES = {short: name for name, short in SHORT_NAMES.items()} | {"tf32": "float32"}
"""Number format -> its name in torch; tf32 is stored as fp32."""
OPTIMIZER_CLASSES = {
    "adamw": "AdamW",
    "adamw_8bit": "AdamW8bit",
    "paged_adamw_8bit": "PagedAdamW8bit",
    "adafactor": "Adafactor",
    "sgd": "SGD",
}
MASTER_OPTIMIZER = "MasterAdamW"
"""AdamW over fp32 copies of the weights."""
STOCHASTIC_OPTIMIZER = "StochasticAdamW"
"""AdamW that rounds updated bf16 weights stochastically."""
OPTIMIZER_LIBRARIES = dict.fromkeys(("AdamW", "SGD", "Adafactor"), "torch") | dict.fromkeys(("AdamW8bit", "PagedAdamW8bit"), "bitsandbytes")
OPTIMIZER_LIBRARIES |= dict.fromkeys((MASTER_OPTIMIZER, STOCHASTIC_OPTIMIZER), "tunemark")
"""The library of each class of optimizer that the harness makes."""
NEURON_ATTENTION = {"eager": "eager", "sdpa": "flash_attention_2", "flash_attention_2": "flash_attention_2"}
"""optimum-neuron calls its only fused kernel flash_attention_2. A request for sdpa selects it."""
DEVICE_TYPES = {Backend.CUDA: "cuda", Backend.ROCM: "cuda", Backend.XPU: "xpu", Backend.MPS: "mps"} | {each: each.value for each in NATIVE}
"""torch's device types. Offload cannot be observed on a CPU and cannot be requested on PyTorch/XLA."""


class Compared(NamedTuple):
    """A setting as requested and as used."""

    setting: str
    requested: str
    effective: str
    agrees: bool | None
    """None if a library uses names of its own, or the observation is not conclusive."""


def compared(plan: Plan, effective: Effective, trace: StepTrace) -> Iterator[Compared]:
    """Yield each setting of a run. Null fields are left out. A CPU has one place for parameters and states."""
    model, four_bit, device = plan.model, plan.quantisation, DEVICE_TYPES.get(plan.device.backend)
    used = effective.optimizer.split()[-1]
    # A wrapper class, such as one that shards states, says nothing.
    known = used == optimizer_class(plan) if used in OPTIMIZER_LIBRARIES else None
    stored, trained = plan.trained.value, [short(name) for name in effective.trainable_dtypes]
    quantised = f"{four_bit.format}{', double' if four_bit.double else ''}" if four_bit else "none"
    offload, rounded, several = plan.device.offload, effective.stochastic_rounding, plan.device.count > 1
    parameters, states = (", ".join(places) if device else None for places in (effective.parameters_on, effective.optimizer_states_on))
    rows = (
        _attention(plan, effective),
        _same("fused_kernels", model.fused_kernels, effective.fused_kernels),
        _same("loss", model.loss, effective.loss),
        _same("gradient_checkpointing", model.gradient_checkpointing.value, effective.gradient_checkpointing),
        _same("processes", str(plan.device.count), str(effective.processes)),
        Compared("compile", model.compile, effective.compile, model.compile == effective.compile.partition(",")[0]),
        _same("compute_format", plan.precision.compute.value, effective.compute),
        Compared("trained_format", stored, ", ".join(trained) or "none", trained == [stored]),
        _same("quantisation", "fp8" if model.frozen_weights == "fp8" else quantised, effective.quantisation),
        _same("fp8_training", model.fp8_training, effective.fp8_training),
        Compared("optimizer", plan.optimizer.name, effective.optimizer, known),
        _packing(plan, trace),
        _same("parameters_on", "cpu" if offload == "all" else str(device), parameters),
        _same("optimizer_states_on", str(device) if offload == "none" else "cpu", states),
        _same("stochastic_rounding", str(plan.rounds_stochastically).lower(), "" if rounded is None else str(rounded).lower()),
        Compared("sharding", plan.device.strategy.value, effective.sharding or "none", None) if effective.sharding or several else None,
        _same("gradient_reduction", "fp32", effective.gradient_reduction),
        Compared("process_group", "automatic", effective.process_group or "none", None) if effective.process_group or several else None,
    )
    yield from filter(None, rows)


def short(name: str) -> str:
    """Return the short name of a torch number format."""
    bare = name.removeprefix("torch.")
    return SHORT_NAMES.get(bare, bare)


def _same(setting: str, requested: str, effective: str | None) -> Compared | None:
    return Compared(setting, requested, effective, requested == effective) if effective else None


def _attention(plan: Plan, effective: Effective) -> Compared:
    requested, kernel, chosen = plan.model.attention, plan.model.sdpa_kernel, effective.attention_kernel
    meant = NEURON_ATTENTION.get(requested, requested) if plan.device.backend is Backend.NEURON_XLA else requested
    asked = requested if meant == requested else f"{requested}, in optimum-neuron {meant}"
    asked += "" if kernel == "auto" else f", with the kernel {kernel} only"
    used = effective.attention + (f", with the kernel {chosen}" if chosen else "")
    agrees = meant == effective.attention and (chosen is None or kernel in {"auto", chosen})
    return Compared("attention", asked, used, agrees)


def optimizer_class(plan: Plan) -> str:
    """Return the class of the optimizer that the harness makes for a plan. On Neuron the runtime rounds stochastically."""
    if plan.optimizer.master_weights:
        return MASTER_OPTIMIZER
    if plan.optimizer_rounds_stochastically:
        return STOCHASTIC_OPTIMIZER
    return OPTIMIZER_CLASSES[plan.optimizer.name]


def _packing(plan: Plan, trace: StepTrace) -> Compared | None:
    """Return the documents in a row of a packed run, observed from unlabelled first tokens."""
    pieces, rows = sum(trace.real_tokens) - sum(trace.supervised_tokens), sum(trace.rows)
    if not plan.data.packing or not rows:
        return None
    return Compared("packing", "several documents per row", f"{pieces / rows:.1f} documents or parts per row", pieces > rows)
