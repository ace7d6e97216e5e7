"""Parts of an axolotl configuration as parts of a workload card."""

import re
from typing import Any

from tunemark.collector.importers.axolotl_config import Config, shown, wrong
from tunemark.collector.importers.axolotl_keys import ATTENTION, OFFLOADS, OPTIMIZERS, SCHEDULERS
from tunemark.schema.errors import did_you_mean
from tunemark.schema.facts.workloads import WorkloadData, WorkloadDevices, WorkloadStop
from tunemark.schema.records.plan import Attention, FusedKernels, LoraSettings, Optimizer, Quantisation
from tunemark.schema.vocabulary import Checkpointing, DataSource, Padding, Strategy

ZERO = re.compile(r"(?:.*/)?zero(?P<stage>[123])(?P<rest>(?:_[a-z0-9_]*)?)\.json")


def lora_of(config: Config) -> LoraSettings:
    """Return the adapters."""
    targets = config.raw.get("lora_target_modules") or ()
    modules = tuple(map(str, targets)) if isinstance(targets, list | tuple) else (str(targets),)
    if config.raw.get("lora_target_linear"):
        if modules:
            config.cannot("lora_target_modules", "lora_target_linear adapts all linear layers")
        modules = LoraSettings().target_modules
    elif not modules:
        config.assumed.append("lora_target_modules (all linear layers of a block by default)")
        modules = LoraSettings().target_modules
    return LoraSettings(
        rank=config.whole("lora_r"), alpha=config.whole("lora_alpha"), dropout=config.number("lora_dropout"), target_modules=modules
    )


def data_of(config: Config) -> WorkloadData:
    """Return the samples."""
    datasets = config.raw.get("datasets") or []
    first = datasets[0] if isinstance(datasets, list) and datasets and isinstance(datasets[0], dict) else {}
    if not first.get("path"):
        raise wrong("datasets", datasets, "give a list whose first entry has a path")
    if len(datasets) > 1:
        config.not_expressed.append(f"datasets: {len(datasets)} of them, the card names the first")
    details = {name: value for name, value in first.items() if name != "path" and value is not None}
    if details:
        config.not_expressed.append(
            f"datasets.0: {', '.join(f'{name} {shown(value)}' for name, value in details.items())} (how rows become text)"
        )
    if config.raw.get("val_set_size"):
        config.cannot("val_set_size", "the card counts held-out rows, and the number of rows is not stated")
    config.assumed.append("training_rows")
    packing = bool(config.raw.get("sample_packing"))
    padding = Padding.STATIC if config.raw.get("pad_to_sequence_len") else Padding.NONE if packing else Padding.DYNAMIC
    path = str(first["path"])
    local = path.startswith((".", "/", "~")) or path.endswith((".json", ".jsonl", ".csv", ".parquet"))
    name = path.rsplit("/", 1)[-1] if local else path
    return WorkloadData(
        source=DataSource.FILE if local else DataSource.HUB,
        name=name,
        sequence_length=config.whole("sequence_len"),
        padding=padding,
        packing=packing,
    )


def optimizer_of(config: Config) -> Optimizer:
    """Return the optimizer; one that a card does not have is refused, because another would train differently."""
    if config.raw.get("learning_rate") is None:
        raise wrong("learning_rate", None, "give one; axolotl has no default")
    name = str(config.get("optimizer"))
    if name not in OPTIMIZERS:
        raise wrong("optimizer", name, f"no optimizer of a workload card; {did_you_mean(name, OPTIMIZERS)}")
    scheduler = str(config.get("lr_scheduler"))
    if scheduler not in SCHEDULERS:
        raise wrong("lr_scheduler", scheduler, f"no scheduler of a workload card; {did_you_mean(scheduler, SCHEDULERS)}")
    norm = config.number("max_grad_norm")
    if not norm:
        config.cannot("max_grad_norm", "the file of a card cannot say that gradients are not clipped; it says 1.0")
    if config.raw.get("warmup_ratio"):
        config.cannot("warmup_ratio", "the card counts steps, and the number of steps is not stated")
    betas = tuple(config.number(key) for key in ("adam_beta1", "adam_beta2"))
    return Optimizer(
        name=OPTIMIZERS[name],
        learning_rate=config.number("learning_rate"),
        weight_decay=config.number("weight_decay"),
        betas=(betas[0], betas[1]),
        epsilon=config.number("adam_epsilon"),
        scheduler=SCHEDULERS[scheduler],
        warmup_steps=config.whole("warmup_steps") if config.raw.get("warmup_steps") is not None else 0,
        max_grad_norm=norm or 1.0,
    )


def quantisation_of(config: Config) -> Quantisation:
    """Return how qlora stores the frozen weights."""
    if not config.raw.get("load_in_4bit"):
        config.assumed.append("load_in_4bit (qlora has four-bit weights)")
    said = config.raw.get("bnb_config_kwargs")
    said = said if isinstance(said, dict) else {}
    kind = said.get("bnb_4bit_quant_type", "nf4")
    if kind not in {"nf4", "fp4"}:
        raise wrong("bnb_config_kwargs.bnb_4bit_quant_type", kind, "give nf4 or fp4")
    for name in sorted(set(said) - {"bnb_4bit_quant_type", "bnb_4bit_use_double_quant"}):
        config.not_expressed.append(f"bnb_config_kwargs.{name}: {shown(said[name])} (no field of a workload card)")
    return Quantisation(format=kind, double=bool(said.get("bnb_4bit_use_double_quant", True)))


def attention_of(config: Config) -> Attention:
    """Return the attention kernel."""
    for key, kernel in ATTENTION.items():
        if config.raw.get(key):
            return kernel
    said = config.raw.get("attn_implementation")
    if said is None:
        return "sdpa"
    known = {kernel: kernel for kernel in ATTENTION.values()}
    if said not in known:
        raise wrong("attn_implementation", said, did_you_mean(str(said), known))
    return known[said]


def devices_of(config: Config) -> WorkloadDevices:
    """Return how devices share the model, from the name of axolotl's own DeepSpeed file; others are not expressed."""
    said = config.raw.get("deepspeed")
    if not said:
        if str(config.raw.get("fsdp_version")) == "2" and (config.raw.get("fsdp_config") or config.raw.get("fsdp")):
            config.assumed.append("devices.count")
            return WorkloadDevices(strategy=Strategy.FSDP2)
        for key in ("fsdp", "fsdp_config"):
            if config.raw.get(key):
                config.cannot(key, "the card has the second version of FSDP only")
        return WorkloadDevices()
    found = ZERO.fullmatch(str(said))
    if not found:
        config.cannot("deepspeed", "only axolotl's own zero1, zero2 and zero3 files are known by name")
        return WorkloadDevices()
    if found["rest"] and found["rest"] not in OFFLOADS:
        config.cannot("deepspeed", f"{found['rest'].strip('_')} is no field of a workload card")
    config.assumed.append("devices.count")
    return WorkloadDevices(strategy=Strategy(f"zero{found['stage']}"), offload=OFFLOADS.get(found["rest"], "none"))


def fused_of(config: Config) -> FusedKernels:
    """Return whether Liger's kernels are used: any of its switches, of which the card has one for all."""
    return "liger" if any(value and name.startswith("liger_") for name, value in config.raw.items()) else "none"


def compute_of(config: Config) -> Any:  # noqa: ANN401 - a Literal of the card
    """Return the number format of matrix products."""
    bf16, fp16, tf32 = (config.raw.get(name) for name in ("bf16", "fp16", "tf32"))
    if bf16 in {True, "true", "full"}:
        return "bf16"
    if fp16:
        return "fp16"
    return "auto" if bf16 == "auto" else "tf32" if tf32 else "fp32"


def checkpointing_of(config: Config) -> Checkpointing:
    """Return which activations are recomputed."""
    value = config.raw.get("gradient_checkpointing")
    if value not in {None, True, False}:
        config.cannot("gradient_checkpointing", "the card has none, selective and full")
    return Checkpointing.FULL if value else Checkpointing.NONE


def stop_of(config: Config) -> WorkloadStop:
    """Return when a run stops."""
    steps = config.whole("max_steps") if config.raw.get("max_steps") is not None else 0
    epochs = config.number("num_epochs")
    if not epochs.is_integer() or epochs < 1:
        config.cannot("num_epochs", "the card counts whole epochs")
        return WorkloadStop(max_steps=steps if steps > 0 else None)
    return WorkloadStop(max_steps=steps if steps > 0 else None, epochs=int(epochs))
