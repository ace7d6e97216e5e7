"""The frozen plan of a run: every setting resolved, every derived value with its reason."""

from typing import Annotated, Literal

from pydantic import Field

from tunemark.schema.records.base import Count, Frozen, Key, PositiveCount, Seconds, Sha256, Text
from tunemark.schema.vocabulary import Backend, Checkpointing, DataSource, Dtype, Method, Padding, Strategy, Task, Weights

Attention = Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"]
FusedKernels = Literal["none", "liger"]
Compile = Literal["none", "blocks", "model"]
OptimizerName = Literal["adamw", "adamw_8bit", "paged_adamw_8bit", "adafactor", "sgd"]
Offload = Literal["none", "optimizer", "all"]
Launcher = Literal["torchrun", "accelerate"]


class LoraSettings(Frozen):
    """Low-rank adapters on named linear layers (Hu et al. 2021)."""

    rank: PositiveCount = 8
    """Rank r of the update B A."""
    alpha: PositiveCount = 16
    """The update is scaled by alpha / rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout in front of the adapters."""
    target_modules: Annotated[tuple[Text, ...], Field(max_length=64)] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )
    """Names of the linear layers that get an adapter. A card may say `all-linear` or `attention`, a plan has the names of its model."""


class Quantisation(Frozen):
    """How the frozen base weights of QLoRA are stored (Dettmers et al. 2023)."""

    format: Literal["nf4", "fp4"] = "nf4"
    """Four-bit number format of blocks of 64 weights."""
    double: bool = True
    """Whether the block constants are quantised too: 0.37 bits a weight less."""


class NeuronSettings(Frozen):
    """What only the Neuron compiler and runtime know."""

    optimisation_level: Literal[1, 2, 3] | None = None
    """`-O` of the compiler; null leaves its default."""
    stochastic_rounding: bool = False
    """Round bf16 updates stochastically."""


class ModelChoice(Frozen):
    """Which model is trained, and from which weights."""

    key: Key
    """The model card in data/models."""
    task: Task
    """What it is trained for."""
    labels: PositiveCount | None = None
    """Number of classes, for classification."""
    weights: Weights
    """Random weights cost and run as pretrained ones do; only the loss differs."""
    hub_id: Text | None = None
    """Repository on the model hub that pretrained weights come from; null for random weights and for a local directory."""
    local: bool = False
    """True when pretrained weights came from a directory of this machine, whose path is not recorded."""
    attention: Attention = "sdpa"
    """Attention kernel asked of transformers."""
    gradient_checkpointing: Checkpointing = Checkpointing.NONE
    """Which activations are recomputed."""
    fused_kernels: FusedKernels = "none"
    """`liger`: fused cross-entropy, norms and feed-forward of Liger."""
    compile: Compile = "none"
    """What `torch.compile` is given: nothing, each block on its own, or the whole model."""


class DataChoice(Frozen):
    """Which samples are trained on, and in which shape."""

    source: DataSource
    """Where the samples come from."""
    name: Text
    """Name of the data set; for a file its name without the folder."""
    sha256: Sha256 | None = None
    """Content hash of a local file."""
    template: Text | None = None
    """How a document is made of the columns of a row; null takes the column `text`."""
    tokenizer: Text
    """`none` for synthetic token ids, `word-level` when made of the words of the training rows, else a hub id or `model`."""
    sequence_length: PositiveCount
    """Tokens in a row at most."""
    padding: Padding
    """`none` when each row is full."""
    packing: bool = False
    """True when several documents share a row."""
    document_borders: bool = True
    """False when documents that share a row see each other: plain concatenation. Without packing it means nothing."""
    training_rows: PositiveCount | None = None
    """Rows that make one epoch; null when rows are generated without end."""
    evaluation_rows: Count = 0
    """Rows held out for evaluation."""


class Batch(Frozen):
    """The batch, from one micro-step on one device to one optimizer step on all of them."""

    micro_batch: PositiveCount
    """Rows of one forward and backward on one device."""
    gradient_accumulation: PositiveCount
    """Micro-steps in an optimizer step."""
    data_parallel: PositiveCount
    """Replicas that see different rows."""
    global_batch: PositiveCount
    """Rows in an optimizer step: micro_batch x gradient_accumulation x data_parallel."""


class Optimizer(Frozen):
    """How the weights are updated."""

    name: OptimizerName = "adamw"
    """`adamw`, `adafactor` and `sgd` are torch's; those of 8 bits are of bitsandbytes."""
    learning_rate: float = Field(gt=0)
    """Peak learning rate."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the running means of Adam."""
    epsilon: float = Field(default=1e-8, gt=0)
    """Adam's guard against division by zero."""
    scheduler: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate."""
    warmup_steps: Count = 0
    """Steps over which the learning rate rises linearly."""
    layer_decay: float | None = Field(default=None, gt=0, le=1)
    """Factor by which the learning rate falls from each block to the one below it; null gives all the same rate."""
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """Gradients are clipped to this norm; null when not clipped."""


class Precision(Frozen):
    """Number formats."""

    parameters: Dtype
    """In which the frozen or trained base weights are stored."""
    compute: Dtype
    """Of the matrix products; its dense peak is the denominator of MFU."""


class DeviceChoice(Frozen):
    """What it runs on."""

    backend: Backend
    """Which implementation of the device protocol is used."""
    accelerator: Key | None
    """The accelerator card in data/accelerators; null when the device is not in the catalogue."""
    count: PositiveCount
    """Devices used, over all nodes."""
    nodes: PositiveCount = 1
    """Machines they are in."""
    strategy: Strategy
    """How the devices share the work."""
    offload: Offload = "none"
    """What is kept in host memory between its uses."""
    tensor_parallel: PositiveCount = 1
    """Devices that share each layer."""
    pipeline_parallel: PositiveCount = 1
    """Devices that share the stack of layers."""
    launcher: Launcher | None = None
    """What starts the processes; null for one process."""
    threads: PositiveCount | None = None
    """CPU threads of the worker, where the CPU computes."""


class Measurement(Frozen):
    """When the run may stop, and what counts as steady."""

    min_warmup_steps: Count = 10
    """Steps that are never part of the steady window."""
    min_steady_steps: PositiveCount = 100
    """The window is long enough with this many steps ..."""
    min_steady_s: Seconds = 60.0
    """... or with this many seconds."""
    max_steps: PositiveCount | None = None
    """Stop after this many optimizer steps."""
    epochs: PositiveCount | None = None
    """Stop after this many passes over the rows."""
    max_train_s: Seconds | None = None
    """Stop training after this many seconds, steady or not, but not before `min_steps`."""
    min_steps: Count = 0
    """Steps that are done even when they take longer than `max_train_s`: fewer would say nothing."""
    timeout_s: Seconds | None = None
    """The worker is ended after this many seconds without having finished; null leaves it the time that its steps need."""
    no_step_s: Seconds | None = None
    """The worker is ended after this many seconds without a completed step; null never does. While it loads, compiles, evaluates
    or saves it has four times as long, and where steps are slow ten times the longest one."""
    until_relative_ci: float | None = Field(default=0.01, gt=0, lt=1)
    """Stop early once the 95% interval of throughput is within this share of it; null runs to the other limits."""
    timing: Literal["events", "strict"] = "events"
    """`events` waits for the device at the window's ends only, `strict` after each step. A CPU is always waited for."""
    evaluate: bool = False
    """Evaluate on held-out rows after training."""
    save: bool = False
    """Write what was trained, adapters or the whole model, to a temporary folder at the end, as the phase `save`, and remove it."""
    cold: bool = False
    """Keep the caches of compiled graphs in fresh folders of this run, so that everything is compiled anew, and remove them."""
    probe: bool = True
    """Measure the device's achievable matrix rate before and after training."""
    gates: bool = True
    """Check before training that it is right: gradients arrive, packed documents do not see each other."""
    seed: Count = 0
    """Of weights, samples and their order."""


class Plan(Frozen):
    """A run as it will be done. Building it touches no network and imports no torch."""

    workload: Key
    """The workload card in data/workloads."""
    workload_sha256: Sha256
    """Content hash of that card, so that a changed card is another workload."""
    method: Method
    """full, lora or qlora."""
    lora: LoraSettings | None = None
    """Adapter settings, for lora and qlora."""
    quantisation: Quantisation | None = None
    """How the frozen weights are stored, for qlora."""
    neuron: NeuronSettings | None = None
    """Settings of the Neuron compiler, on its devices."""
    model: ModelChoice
    """The model."""
    data: DataChoice
    """The samples."""
    batch: Batch
    """The batch."""
    optimizer: Optimizer
    """The optimizer."""
    precision: Precision
    """The number formats."""
    device: DeviceChoice
    """The devices."""
    measurement: Measurement
    """When it ends."""
    reasons: Annotated[dict[Annotated[str, Field(max_length=100)], Text], Field(max_length=200)]
    """Why each derived value is what it is, by dotted path (`batch.global_batch`)."""
