"""The request of a run, its frozen plan with the reason for each derived value, and the division that follows from its overrides."""

import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from tunemark.schema import vocabulary
from tunemark.schema.records.base import Frozen, Key, Seconds, Setting, SettingOrZero, Sha256, Share, Text

Attention = Literal["eager", "sdpa", "varlen", "flash_attention_2", "flash_attention_3", "flex_attention"]
FusedKernels = Literal["none", "liger"]
LossForm = Literal["whole", "chunked"]
Compile = Literal["none", "blocks", "model"]
CompileMode = Literal["default", "reduce-overhead", "max-autotune"]
SdpaKernel = Literal["auto", "flash", "efficient", "cudnn", "math"]
FrozenWeights = Literal["plain", "fp8"]
Offload = Literal["none", "optimizer", "all"]
Launcher = Literal["torchrun", "accelerate"]
OPTIONS = {
    "overrides": "--set",
    "weights": "--weights",
    "data": "--data",
    "max_steps": "--steps",
    "devices": "--devices",
    "strategy": "--sharding",
}
"""Fields of a request that have an option of `tunemark run`. All others are given with `--set`."""
SET_NAMES = {"max_train_s": "seconds", "timeout_s": "timeout", "no_step_s": "no_step_timeout"}
"""Fields of a request whose name in `--set` is another."""
FEWEST_LABELS = 2
LOCAL_WEIGHTS = "pretrained:DIRECTORY"
"""Weights from a local directory, whose path no record may hold."""


class LoraSettings(Frozen):
    """Low-rank adapters on named linear layers (Hu et al. 2021)."""

    rank: Annotated[Setting, Field(le=4096)] = 8
    """Rank r of the update B A."""
    alpha: Annotated[Setting, Field(le=16_384)] = 16
    """The update is scaled by alpha / rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout in front of the adapters."""
    target_modules: Annotated[tuple[Text, ...], Field(max_length=64)] = vocabulary.USUAL_LAYERS
    """Names of the linear layers with an adapter. A card may use `all-linear` or `attention`; a plan has the names in its model."""


class Quantisation(Frozen):
    """How the frozen base weights of QLoRA are stored (Dettmers et al. 2023)."""

    format: Literal["nf4", "fp4"] = "nf4"
    """Four-bit number format of blocks of 64 weights."""
    double: bool = True
    """True if the block constants are quantised too, which saves 0.37 bits per weight."""


class NeuronSettings(Frozen):
    """Settings of the Neuron compiler and runtime."""

    optimisation_level: Literal[1, 2, 3] | None = None
    """`-O` of the compiler; null for its default."""
    stochastic_rounding: bool = False
    """Round all results in bf16 stochastically, whatever `optimizer.stochastic_rounding` is."""


class Levers(Frozen):
    """What is trained and how it is computed, as a card and a plan both have it."""

    key: Key
    """Name of its card in data/: of the workload, or in a plan of the model."""
    task: vocabulary.Task
    labels: Annotated[Setting, Field(ge=FEWEST_LABELS, le=100_000)] | None = None
    """Number of classes, for classification."""
    weights: vocabulary.Weights = vocabulary.Weights.RANDOM
    """Random weights run as fast as pretrained ones and use the same memory; only the loss differs."""
    gradient_checkpointing: vocabulary.Checkpointing = vocabulary.Checkpointing.NONE
    """Which activations are recomputed."""
    fused_kernels: FusedKernels = "none"
    """`liger`: Liger's fused cross-entropy, norms and feed-forward."""
    compile: Compile = "none"
    """What `torch.compile` compiles: nothing, each block on its own, or the whole model."""
    compile_mode: CompileMode = "default"
    """Mode of `torch.compile`: `reduce-overhead` replays CUDA graphs, `max-autotune` measures kernels and chooses among them."""
    sdpa_kernel: SdpaKernel = "auto"
    """The only kernel that `sdpa` may use; with `auto` torch chooses for each call."""
    frozen_weights: FrozenWeights = "plain"
    """`fp8`: under LoRA, the frozen matrices of the blocks are stored in e4m3 with a scale per output, and multiply in it."""
    fp8_training: Literal["none", "tensorwise", "rowwise"] = "none"
    """Recipe of torchao by which the trained matrices of the blocks multiply in fp8; their weights keep their format."""

    @property
    def fp8_products(self) -> bool:
        """True if the matrices of the blocks multiply in fp8. Attention, adapters and head do not."""
        return self.frozen_weights == "fp8" or self.fp8_training != "none"


class ModelChoice(Levers):
    """The model and its initial weights."""

    hub_id: Text | None = None
    """Repository on the model hub with the pretrained weights; null for random weights and for a local directory."""
    local: bool = False
    """True if pretrained weights came from a local directory, whose path is not recorded."""
    attention: Attention = "sdpa"
    """Attention implementation requested from transformers. `varlen` is torch's FlashAttention kernel for packed documents."""
    loss: LossForm = "whole"
    """`chunked`: chunks of tokens go through the head, so that the whole logits are never in memory. Older records have `whole`."""


class DataSettings(Frozen):
    """The training samples and their shape, as a card and a plan both have them."""

    source: vocabulary.DataSource
    """Where the samples come from."""
    name: Text
    """Hub id of the dataset, or a name for synthetic samples; for a file its name without the folder."""
    template: Text | None = None
    """How a document is made from the columns of a row, such as `{question}\n{answer}`; null uses the column `text`."""
    sequence_length: Annotated[Setting, Field(ge=8, le=2_097_152)]
    """Maximum tokens per row."""
    padding: vocabulary.Padding = vocabulary.Padding.NONE
    """How rows are filled; `none` if each row is full."""
    packing: bool = False
    """True if several documents share a row."""
    document_borders: bool = True
    """False if documents in the same row attend to each other: plain concatenation. Ignored without packing."""
    training_rows: Setting | None = None
    """Rows per epoch, from the start of the dataset; null uses all, or generates rows without end."""
    evaluation_rows: SettingOrZero = 0
    """Rows held out for evaluation."""


class DataChoice(DataSettings):
    """The training samples and their shape."""

    sha256: Sha256 | None = None
    """Content hash of a local file."""
    tokenizer: Text
    """`none` for synthetic token ids, `word-level` if made from the words of the training rows, else a hub id or `model`."""

    @property
    def finite(self) -> bool:
        """True if the training rows have an end."""
        return self.training_rows is not None or self.source is not vocabulary.DataSource.SYNTHETIC


class DeviceBatch(Frozen):
    """The batch on one device."""

    micro_batch: Setting
    """Rows of one forward and backward on one device."""
    gradient_accumulation: Annotated[Setting, Field(le=8192)] = 1
    """Micro-steps per optimizer step."""


class Batch(DeviceBatch):
    """The batch, from one micro-step on one device to one optimizer step on all of them."""

    data_parallel: Setting
    """Replicas that see different rows."""
    global_batch: Setting
    """Rows per optimizer step: micro_batch x gradient_accumulation x data_parallel."""


class Optimizer(Frozen):
    """How the weights are updated."""

    name: Literal["adamw", "adamw_8bit", "paged_adamw_8bit", "adafactor", "sgd"] = "adamw"
    """`adamw`, `adafactor` and `sgd` are torch's; the 8-bit ones are bitsandbytes'."""
    learning_rate: float = Field(ge=1e-8)
    """Peak learning rate."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """Decoupled weight decay."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Decay of the running means of Adam."""
    epsilon: float = Field(default=1e-8, gt=0)
    """Adam's guard against division by zero."""
    scheduler: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: SettingOrZero = 0
    """Steps over which the learning rate rises linearly."""
    layer_decay: float | None = Field(default=None, gt=0, le=1)
    """Factor by which the learning rate falls from each block to the one below; null for one rate."""
    master_weights: bool = False
    """Keep an fp32 copy of trained 16-bit weights and update that: a small update of a bf16 weight is otherwise rounded away."""
    stochastic_rounding: bool = False
    """Compute the update of bf16 weights in fp32 and round the result up or down at random, so that small updates add up on average.
    On Neuron the runtime does it, for all results."""
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """Norm to which gradients are clipped; null for no clipping."""


class Precision(Frozen):
    """Number formats."""

    parameters: vocabulary.Dtype
    """Format in which the base weights are stored."""
    compute: vocabulary.Dtype
    """Format of the matrix products. Its dense peak is the denominator of MFU."""


class Devices(Frozen):
    """The devices and how the model is distributed over them, as a card and a plan both have it."""

    count: Annotated[Setting, Field(le=100_000)] = 1
    """Devices used, over all machines."""
    strategy: vocabulary.Strategy | Literal["auto"] = "auto"
    """How the model is distributed over devices. `auto`: DDP on several devices."""
    offload: Offload = "none"
    """What is kept in host memory between uses."""
    tensor_parallel: Setting = 1
    """Devices that share each layer."""
    pipeline_parallel: Setting = 1
    """Devices that share the layers of the model in stages."""


class DeviceChoice(Devices):
    """The devices."""

    strategy: vocabulary.Strategy
    """How the model is distributed over devices."""
    backend: vocabulary.Backend
    """Implementation of the device protocol."""
    accelerator: Key | None
    """The accelerator card in data/accelerators; null if the device has no card."""
    nodes: Setting = 1
    launcher: Launcher | None = None
    """Launcher of the processes; null for one process."""
    threads: Setting | None = None
    """CPU threads of the worker, if the CPU computes."""


WARMUP_STEPS = 10
"""Steps before the steady window, unless a card says otherwise; logs of other tools are read in the same way."""


class Stop(Frozen):
    """When training stops. Null is decided by the plan."""

    max_steps: Annotated[Setting, Field(le=10_000_000)] | None = None
    """Stop after this many optimizer steps."""
    epochs: Annotated[Setting, Field(le=1000)] | None = None
    """Stop after this many passes over the rows."""
    max_train_s: Seconds | None = None
    """Stop training after this many seconds, steady or not, but not before `min_steps`."""


class Measured(Stop):
    """What a request and its plan both say about the measurement."""

    timeout_s: Seconds | None = None
    """Kill the worker after this many seconds; null allows the time that its steps need."""
    no_step_s: Seconds | None = None
    """Kill the worker after this many seconds without a completed step; null for the default in a request, and for never in a plan. Loading,
    compiling, evaluation and saving have four times as long, and slow steps ten times the longest step.
    """
    save: bool = False
    """Write the adapters or the whole model to a temporary folder at the end (phase `save`), and delete it."""
    cold: bool = False
    """Use fresh, temporary compile caches, so that everything is compiled again."""
    probe: bool = True
    """Measure the matrix rate of the device before and after training."""
    gates: bool = True
    """Check before training that it is correct: gradients reach the trained weights, packed documents do not attend to each other."""


class Measurement(Measured):
    """When the run stops, and what counts as steady."""

    min_warmup_steps: SettingOrZero = WARMUP_STEPS
    """Steps excluded from the steady window."""
    min_steady_steps: Setting = 100
    """The window is long enough with this many steps ..."""
    min_steady_s: Seconds = 60.0
    """... or with this many seconds."""
    min_steps: SettingOrZero = 0
    """Minimum number of steps, even if they take longer than `max_train_s`."""
    until_relative_ci: float | None = Field(default=0.01, gt=0, lt=1)
    """Stop early once the relative half-width of the 95% interval of throughput is below this; null runs to the other limits."""
    timing: Literal["events", "strict"] = "events"
    """`events` synchronises with the device at the ends of the window only, `strict` after each step. A CPU always synchronises."""
    evaluate: bool = False
    """Evaluate on held-out rows after training."""
    seed: SettingOrZero = 0
    """Seed of weights, samples and their order."""


class RunOptions(Measured):
    """The options of `tunemark run`. Nothing in it is derived."""

    overrides: Annotated[tuple[Text, ...], Field(max_length=100)] = ()
    """`FIELD=VALUE` of each `--set`, in order."""
    weights: Text = "card"
    """`card`, `random`, `pretrained`, `pretrained:HUB_ID`, or `pretrained:DIRECTORY` for a local directory."""
    data: Text = "card"
    """`card`, `synthetic`, `hub:NAME`, or `file:NAME` with the name of the file without its folder."""
    data_sha256: Sha256 | None = None
    """Content hash of the training file."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    until_ci: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Relative half-width of the 95% interval of the throughput at which the run may end: `--set until_ci=1%` is 0.01."""
    strict_timing: bool = False
    """Each micro-step waits for its device, so that its time is its own."""
    backend: vocabulary.Backend | None = None
    devices: Annotated[Setting, Field(le=100_000)] | None = None
    strategy: vocabulary.Strategy | Literal["auto"] | None = None
    """How several devices share the work: `--sharding`."""
    offload: Offload | None = None
    """What waits in host memory: the optimizer's states, or all weights and states."""
    launcher: Launcher = "torchrun"
    """What starts the processes of several devices."""
    nodes: Setting = 1

    def sets(self, name: str) -> bool:
        """Return True if a field of the card is set by name, with --set."""
        return any(assignment.partition("=")[0] == name for assignment in self.overrides)


class Requested(RunOptions):
    """The workload card and the options of `tunemark run`. Nothing in it is derived."""

    workload: Key
    """The workload card in data/workloads."""

    def arguments(self) -> list[str]:
        """Return the words of the command after `tunemark run` that make this request."""
        words = [self.workload]
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if name in {"workload", "data_sha256"} or value == field.default:
                continue
            if name in OPTIONS:
                words += [word for each in (value if isinstance(value, tuple) else (value,)) for word in (OPTIONS[name], str(each))]
            else:
                words += ["--set", f"{SET_NAMES.get(name, name)}={str(value).lower() if isinstance(value, bool) else value}"]
        return words


class Plan(Frozen):
    """A resolved run. Building it needs no network and no torch."""

    workload: Key
    """The workload card in data/workloads."""
    workload_sha256: Sha256
    """Content hash of the card: a changed card is another workload."""
    method: vocabulary.Method
    """full, lora or qlora."""
    lora: LoraSettings | None = None
    """Adapter settings, for lora and qlora."""
    quantisation: Quantisation | None = None
    """How the frozen weights are stored, for qlora."""
    neuron: NeuronSettings | None = None
    """Settings of the Neuron compiler, on its devices."""
    model: ModelChoice
    data: DataChoice
    batch: Batch
    optimizer: Optimizer
    precision: Precision
    device: DeviceChoice
    measurement: Measurement
    reasons: Annotated[dict[Annotated[str, Field(max_length=100)], Text], Field(max_length=200)]
    """Reason for each derived value, by dotted path (`batch.global_batch`)."""

    @property
    def settings(self) -> dict[str, Any]:
        """The JSON values of the plan without their reasons: plans with the same settings are one plan."""
        return self.model_dump(mode="json", exclude={"reasons"})

    def planned_steps(self, training_rows: int | None) -> int | None:
        """Return the number of optimizer steps of this many rows; None when only time or steadiness ends the run."""
        rules, limits = self.measurement, []
        if rules.max_steps is not None:
            limits.append(rules.max_steps)
        if rules.epochs is not None and training_rows is not None:
            limits.append(math.ceil(training_rows * rules.epochs / self.batch.global_batch))
        return min(limits) if limits else None

    @property
    def trained(self) -> vocabulary.Dtype:
        """Format of the trained weights. Updates of fp16 weights underflow: adapters beside them are in fp32, but DeepSpeed updates fp32 copies."""
        kept = self.precision.parameters
        return vocabulary.Dtype.FP32 if kept is vocabulary.Dtype.FP16 and self.device.strategy not in vocabulary.DEEPSPEED else kept

    @property
    def autocast(self) -> bool:
        """True if products run in a smaller format than that of the trained weights."""
        return self.precision.compute in {vocabulary.Dtype.BF16, vocabulary.Dtype.FP16} and self.trained is vocabulary.Dtype.FP32

    @property
    def rounds_stochastically(self) -> bool:
        """True if updated weights are rounded stochastically, by the optimizer or by the Neuron runtime."""
        return self.optimizer.stochastic_rounding or bool(self.neuron and self.neuron.stochastic_rounding)

    @property
    def optimizer_rounds_stochastically(self) -> bool:
        """True if the optimizer of the harness rounds updated weights stochastically. On Neuron the runtime does."""
        return self.optimizer.stochastic_rounding and self.device.backend is not vocabulary.Backend.NEURON_XLA

    @property
    def compiles_update(self) -> bool:
        """True if one compiled kernel updates and rounds a weight."""
        return self.optimizer_rounds_stochastically and self.device.backend in vocabulary.COMPILED_UPDATE

    @property
    def deepspeed_copies(self) -> bool:
        """True if DeepSpeed keeps fp32 copies of 16-bit weights."""
        sixteen = self.precision.parameters in {vocabulary.Dtype.BF16, vocabulary.Dtype.FP16}
        return sixteen and self.device.strategy in vocabulary.DEEPSPEED

    @property
    def needless_rounding(self) -> str | None:
        """Why no updated weight is rounded to bf16, so that it needs no stochastic rounding; None if weights are."""
        copies = "keeps fp32 copies of the weights and updates those"
        if self.deepspeed_copies:
            return f"{self.device.strategy.value} {copies}"
        if self.precision.parameters is not vocabulary.Dtype.BF16:
            return "fp32 weights keep small updates"
        return f"optimizer.master_weights {copies}" if self.optimizer.master_weights else None

    @property
    def product_formats(self) -> str:
        """Number formats of matrix products: `bf16`, or `bf16/fp8` where the matrices of the blocks multiply in fp8."""
        return f"{self.precision.compute.value}/fp8" if self.model.fp8_products else self.precision.compute.value

    @property
    def software_level(self) -> vocabulary.SoftwareLevel:
        """How far the training loop is tuned: `tuned` with fused kernels or torch.compile."""
        return "plain" if self.model.compile == self.model.fused_kernels == "none" else "tuned"


# The division of a run, a function of its overrides. A run of the tuned division trains what its card says: the same mathematics, data,
# sequence length and global batch, with losses inside the card's band. It chooses freely how this is computed, as in MLPerf's closed division.
# The harness, the gate, the card check and the site read this table of free settings.

Value = Annotated[str, Field(max_length=2_000)] | float | int | bool | None

SETTINGS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("settings.toml").read_text(encoding="utf-8"))
FREE_SETTINGS: dict[str, str] = {name: row["free"] for name, row in SETTINGS.items() if "free" in row}
"""Settings of a card that a run of the tuned division may change -> what they choose. A changed split keeps the global batch."""
MEANING = {
    vocabulary.Division.STANDARD: "the workload card unchanged",
    vocabulary.Division.TUNED: "the card's training and global batch, with other kernels, checkpointing, compilation, batch split or sharding",
    vocabulary.Division.OPEN: "any other declared override, such as another sequence length, global batch or optimizer",
}
"""What a run of each division may change."""


class Override(Frozen):
    """A setting that differs from the workload card."""

    field: Text
    """Dotted path in the card, such as `batch.micro_batch`."""
    card: Value
    """Value in the card."""
    run: Value
    """Value in this run."""


def division_of(plan: Plan, overrides: Sequence[Override]) -> vocabulary.Division:
    """Return the division of a run with this plan and these overrides."""
    if not overrides:
        return vocabulary.Division.STANDARD
    return vocabulary.Division.TUNED if fixed_setting_changed(plan, overrides) is None else vocabulary.Division.OPEN


def fixed_setting_changed(plan: Plan, overrides: Sequence[Override]) -> str | None:
    """Return the first change that only the open division allows, in words; None if all changes are free."""
    fixed = next((override.field for override in overrides if override.field not in FREE_SETTINGS), None)
    if fixed is not None:
        return f"{fixed} is fixed by the card"
    rows, card_rows = plan.batch.global_batch, card_global_batch(plan, overrides)
    return None if rows == card_rows else f"plan.batch.global_batch is {rows}, and the card has {card_rows} rows per step on these devices"


def card_global_batch(plan: Plan, overrides: Sequence[Override]) -> int | None:
    """Return the rows per optimizer step that the card has on the devices of a run: its batch on each replica.

    None if an override gives a value of the card that is not a number.
    """
    of_card = {override.field: override.card for override in overrides}

    def number(field: str, of_plan: int) -> int:
        value = of_card.get(field, of_plan)
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    device, batch = plan.device, plan.batch
    rows = number("batch.micro_batch", batch.micro_batch) * number("batch.gradient_accumulation", batch.gradient_accumulation)
    devices = number("devices.count", device.count)
    group = number("devices.tensor_parallel", device.tensor_parallel) * number("devices.pipeline_parallel", device.pipeline_parallel)
    return rows * max(1, devices // group) if rows and devices and group > 0 else None
