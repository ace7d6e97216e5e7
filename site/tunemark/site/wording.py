"""Values of the database as text: names, dates, intervals, prices. Unknown values are a dash, never 0."""

import re
from datetime import UTC, datetime, timedelta

from tunemark.schema.formats import MISSING, duration, gib, significant
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.recommendation import provider_name
from tunemark.schema.vocabulary import MLPERF_LABEL

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
METHODS = {"full": "full", "lora": "LoRA", "qlora": "QLoRA", "peft": "other PEFT"}
TIMES = "\N{NO-BREAK SPACE}\N{MULTIPLICATION SIGN}\N{NO-BREAK SPACE}"
TASKS = {"causal_lm": "causal language model", "sequence_classification": "sequence classification"}
PHASES = {
    "warmup": "warm-up",
    "first_step": "first step",
    "compile": "compiling",
    "check": "checks",
    "eval": "evaluation",
    "unfinished": "unfinished step",
}
SERIES = {"sweep": "sweep", "frontier": "frontier", "ab": "A/B comparison", "repeat": "repeats", "tune": "tuning"}
"""Kind of a series of runs -> name."""
SERIES_MEANING = {
    "sweep": "Vary one or several settings. A point that fails is a result and does not stop the others.",
    "frontier": "Find the largest micro-batch and sequence length that fit, by doubling and then bisection.",
    "ab": "Run two arms in turn in fresh processes, so that slow drifts of the machine cancel in their ratio.",
    "tune": "Find the fastest configuration of the tuned division, one setting at a time, in short trials. Trials are never ranked.",
    "repeat": "Repeat the same run in fresh processes to see how much results on one machine vary.",
}
BACKENDS = {"cpu": "CPU", "cuda": "NVIDIA, CUDA", "rocm": "AMD, ROCm", "xpu": "Intel, XPU", "mps": "Apple, MPS", "tpu": "Google, TPU"}
BACKENDS |= {"neuron": "AWS, Neuron", "neuron_xla": "AWS, Neuron before 2.30", "hpu": "Intel, Gaudi"}
TRUST = {
    "published": "A document's claim, without a raw log.",
    "converted": f"Converted from raw logs of another harness. MLPerf results are labelled: {MLPERF_LABEL}.",
    "measured": "Run by the Tunemark harness. The raw step log is in the repository, and every figure is derived from it.",
    "reproduced": "Two submitters measured one configuration, and their mean rates agree within 5%.",
}
VERDICTS = {
    "impossible": "No reading of the figures can be true.",
    "inconsistent": "Figures of the same document contradict each other.",
    "suspicious": "The figure can be true, but it is far from known values and should be checked.",
    "ambiguous": "The figure has several meanings, and the document does not say which one it uses.",
}
"""Verdicts of the audit with their meaning, worst first."""
MLPERF = "mlperf-"
"""Prefix of MLPerf sources."""
MLPERF_SHORT = "MLPerf, unofficial"
MAX_DIGITS = 5
COMMIT = re.compile(r"\b[0-9a-f]{40}\b")
LINK = re.compile(r"https?://[^\s<>\"'`\\{}|^]+")
NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")


SETTINGS = {
    "attn": "attention",
    "ddp": "data parallel (DDP)",
    "fsdp": "fully sharded data parallel (FSDP)",
    "fsdp_cpu_offload": "FSDP offload to the CPU",
    "host_swap_gb": "swap space of the host in GB",
    "liger": "Liger kernels",
    "llrd": "layer-wise decay of the learning rate",
    "llrd_decay": "factor of the layer-wise decay",
    "lora_r": "LoRA rank",
    "lr": "learning rate",
    "lr_scheduler": "schedule of the learning rate",
    "max_grad_norm": "largest gradient norm",
    "neuron_cc_flags": "flags of the Neuron compiler",
    "nproc": "processes",
    "peft_method": "PEFT method",
    "seqlen": "sequence length",
    "use_amp": "automatic mixed precision",
    "use_dora": "DoRA",
    "use_rslora": "rank-stabilised LoRA",
    "zero": "ZeRO stage",
    "zero_stage": "ZeRO stage",
}
"""Settings that are not words by themselves."""
CODES = {
    "adamw": "AdamW",
    "adamw_8bit": "AdamW, 8 bits",
    "adamw_bnb_8bit": "AdamW of bitsandbytes, 8 bits",
    "adamw_torch": "AdamW of torch",
    "adamw_torch_fused": "AdamW of torch, fused",
    "ddp": "DDP",
    "decoupled_adamw": "decoupled AdamW",
    "flash": "FlashAttention",
    "flash_attention": "FlashAttention",
    "flash_attention_2": "FlashAttention 2",
    "flash_attention_3": "FlashAttention 3",
    "flash_attention_4": "FlashAttention 4",
    "fsdp": "FSDP",
    "fsdp2": "FSDP2",
    "FULL_SHARD": "all states sharded",
    "varlen": "variable-length FlashAttention",
    "lora-fa": "LoRA-FA",
    "paged_adamw": "paged AdamW",
    "paged_adamw_32bit": "paged AdamW, 32 bits",
    "paged_adamw_8bit": "paged AdamW, 8 bits",
    "sdpa": "SDPA",
    "SHARD_GRAD_OP": "gradients and optimizer sharded",
}
"""Values of settings that are names of functions or constants."""
KEY = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)+")


def words(value: str | None) -> str:
    """Return a vocabulary key as words: `on_demand` -> `on demand`."""
    return MISSING if value is None else value.replace("_", " ")


def sentence(text: str) -> str:
    """Return text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def setting(key: str) -> str:
    """Return the name of a recorded setting."""
    return SETTINGS.get(key, words(key))


def code(value: str) -> str:
    """Return a recorded value in words, if it is a known name of a function or constant or a key such as `p_tuning`."""
    return CODES.get(value) or (words(value) if KEY.fullmatch(value) else value)


def short_commits(text: str | None) -> str | None:
    """Return a source with its commit hashes shortened to seven digits."""
    return None if text is None else COMMIT.sub(lambda match: match[0][:7], text)


def plain(value: object) -> str:
    """Return any value as text; a dash if it is unknown."""
    if value is None or value == "":
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def recorded(topic: str, name: str, value: str | None) -> str:
    """Return a recorded fact as text, in the unit that its name ends with."""
    if value is None:
        return MISSING
    if value in {"true", "false"}:
        return "yes" if value == "true" else "no"
    number = float(value) if NUMBER.fullmatch(value) else None
    if number is not None and topic == "derived" and name in QUANTITIES:
        return QUANTITIES[name].text(number)
    if number is not None and (topic == "memory" or name.endswith("_bytes")):
        return gib(number)
    if number is not None and name.endswith("_per_s"):
        return significant(number, 4)
    if number is not None and name.endswith("_s"):
        return QUANTITIES[name].text(number) if name in QUANTITIES else duration(number)
    if number is not None and topic == "derived" and not number.is_integer():
        return f"{number:.4g}"
    return value


def trust_label(trust: str, source: str) -> str:
    """Return the trust label of a result, which accompanies each of its figures."""
    return MLPERF_SHORT if trust == "converted" and source.startswith(MLPERF) else trust


def trust_meaning(trust: str, source: str) -> str:
    """Return the meaning of a result's trust label in a sentence."""
    return f"{MLPERF_LABEL}." if trust_label(trust, source) == MLPERF_SHORT else TRUST.get(trust, "")


def backend(key: str) -> str:
    """Return the common name of a device family."""
    return BACKENDS.get(key, key)


def moment(started_us: int | None) -> str:
    """Return a date and time in UTC."""
    return MISSING if started_us is None else f"{EPOCH + timedelta(microseconds=started_us):%Y-%m-%d %H:%M} UTC"


def day(started_us: int | None) -> str:
    """Return a date in UTC."""
    return MISSING if started_us is None else f"{EPOCH + timedelta(microseconds=started_us):%Y-%m-%d}"


def web_link(text: str | None) -> str | None:
    """Return the text if it is an http(s) address, else None. No other scheme becomes a link."""
    return text if text and LINK.fullmatch(text) else None


def rate(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """Return a rate with enough digits to distinguish it from the ends of its interval."""
    return MISSING if value is None else significant(value, _digits(low, high))


def interval(low: float | None, high: float | None) -> str:
    """Return a 95% interval as `12,300 to 12,700`; empty when there is none."""
    if low is None or high is None:
        return ""
    digits = _digits(low, high)
    return f"{significant(low, digits)} to {significant(high, digits)}"


def _digits(low: float | None, high: float | None) -> int:
    if low is None or high is None:
        return 3
    return next((digits for digits in range(3, MAX_DIGITS) if significant(low, digits) != significant(high, digits)), MAX_DIGITS)


def offer_text(instances: float | None, provider: str | None, instance: str | None, kind: str | None, effective_on: str | None) -> str:
    """Return the offer that a cost is based on; empty without one."""
    if provider is None:
        return ""
    several = f"{instances:.0f}{TIMES}" if instances and instances > 1 else ""
    return f"{several}{provider_name(provider)} {instance}, {words(kind)}, {effective_on}"
