"""The closed word lists. A word that is not here is a mistake, and the error says which words there are."""

from enum import StrEnum


class Method(StrEnum):
    """How the weights are fine-tuned."""

    FULL = "full"
    LORA = "lora"
    QLORA = "qlora"


class Task(StrEnum):
    """What the model learns."""

    CAUSAL_LM = "causal_lm"
    SEQUENCE_CLASSIFICATION = "sequence_classification"


class Weights(StrEnum):
    """Where the first weights come from."""

    RANDOM = "random"
    PRETRAINED = "pretrained"


class DataSource(StrEnum):
    """Where the samples come from."""

    SYNTHETIC = "synthetic"
    FILE = "file"
    HUB = "hub"


class Padding(StrEnum):
    """How documents of different length become one rectangular batch."""

    NONE = "none"
    STATIC = "static"
    DYNAMIC = "dynamic"


class Checkpointing(StrEnum):
    """Which activations are recomputed in the backward pass."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Dtype(StrEnum):
    """A number format of weights or of matrix products."""

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    INT8 = "int8"
    NF4 = "nf4"


class Backend(StrEnum):
    """A family of devices behind one implementation of the device protocol."""

    CPU = "cpu"
    CUDA = "cuda"
    ROCM = "rocm"
    NEURON = "neuron"
    XPU = "xpu"
    MPS = "mps"
    FAKE = "fake"


class Strategy(StrEnum):
    """How one model is trained on several devices."""

    SINGLE = "single"
    DDP = "ddp"
    FSDP2 = "fsdp2"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    ZERO3 = "zero3"


class Status(StrEnum):
    """How a run of the harness ended. Every one of these is a result."""

    OK = "ok"
    OOM_DEVICE = "oom_device"
    OOM_HOST = "oom_host"
    NAN = "nan"
    TIMEOUT = "timeout"
    CRASH = "crash"
    UNSUPPORTED = "unsupported"
    INTERRUPTED = "interrupted"


class PublishedStatus(StrEnum):
    """How a published result presents itself."""

    OK = "ok"
    CLAIMED = "claimed"
    PARTIAL = "partial"
    FAILED = "failed"
    OOM = "oom"


class Phase(StrEnum):
    """A stretch of a run's wall time. The phases of a run sum to all of it."""

    IMPORT = "import"
    LOAD = "load"
    DATA = "data"
    CHECK = "check"
    PROBE = "probe"
    TRAIN = "train"
    EVAL = "eval"
    SAVE = "save"
    TEARDOWN = "teardown"


class TrainPhase(StrEnum):
    """What the phase `train` is divided into once its steps are known."""

    FIRST_STEP = "first_step"
    COMPILE = "compile"
    WARMUP = "warmup"
    STEADY = "steady"
    UNFINISHED = "unfinished"
    """After the last completed step of a run that ended while it trained: a step that hung, failed or was stopped."""


class Division(StrEnum):
    """`standard`: the workload card untouched. `open`: with declared overrides."""

    STANDARD = "standard"
    OPEN = "open"


class Trust(StrEnum):
    """How much stands behind a result, least first."""

    PUBLISHED = "published"
    CONVERTED = "converted"
    MEASURED = "measured"
    REPRODUCED = "reproduced"


class AuditVerdict(StrEnum):
    """What a finding of the audit says about a claim, worst first. Where nothing is found nothing is said."""

    IMPOSSIBLE = "impossible"
    """No machine, catalogue or calendar allows it."""
    INCONSISTENT = "inconsistent"
    """It contradicts another claim of the same source, or arithmetic."""
    SUSPICIOUS = "suspicious"
    """It can be, but it is unlikely or nothing stands behind it."""
    AMBIGUOUS = "ambiguous"
    """It can be read in several ways."""


class PriceKind(StrEnum):
    """On which terms an instance is paid for."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"
    RESERVED = "reserved"
    OWNED = "owned"


class Doubt(StrEnum):
    """A reason to trust a measurement less. Stored with the result, never a reason to drop it."""

    NOT_STABLE = "not_stable"
    FEW_STEPS = "few_steps"
    WIDE_INTERVAL = "wide_interval"
    BUSY_HOST = "busy_host"
    UNKNOWN_ACCELERATOR = "unknown_accelerator"
    RANDOM_WEIGHTS = "random_weights"
    DIRTY_SOURCE = "dirty_source"
    LOW_DISK = "low_disk"
    BUSY_DEVICE = "busy_device"
    THROTTLED = "throttled"
    PEAK_FELL = "peak_fell"
    PEAK_ROSE = "peak_rose"
    FALLBACK = "fallback"
    GATE_FAILED = "gate_failed"
    STRAGGLER = "straggler"
    TRUNCATED_LOG = "truncated_log"
