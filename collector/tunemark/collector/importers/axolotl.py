"""Axolotl configurations as workload cards. Settings that a card cannot express are listed, never dropped silently."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import tomlkit
import typer
import yaml
from pydantic import ValidationError

from tunemark.collector.commands.terminal import AsJson, print_json, say
from tunemark.collector.importers.import_io import read_bytes, refuse_existing, write_out
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean, suggested
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.workloads import WorkloadBatch, WorkloadCard, WorkloadData, WorkloadDevices, WorkloadStop
from tunemark.schema.formats import MIB
from tunemark.schema.records.plan import Attention, LoraSettings, Offload, Optimizer, OptimizerName, Quantisation
from tunemark.schema.vocabulary import Checkpointing, DataSource, Method, Padding, Strategy, Task, Weights


def axolotl(
    file: Annotated[Path, typer.Argument(help="The YAML configuration.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder to write the card to, such as `data/workloads`. Default: standard output.", show_default=False),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="Key of the card. Default: from the file's name.", show_default=False)] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Model card, if no card has the name in base_model.", show_default=False)
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Make a workload card from an axolotl configuration.

    The card's `not_stated` lists the settings that the card cannot express and the defaults that the configuration relies on.
    Settings that cannot be expressed are also reported. An unknown model is refused with a suggestion; --model names the card.
    Preference tuning (`rl`) and reward models are other tasks and are refused.

    Exit codes: 0 card made, 2 unknown model or no such file, 3 not a configuration.

    Examples
    --------
    - `tunemark import axolotl CONFIG.yml`

    - `tunemark import axolotl CONFIG.yml --out data/workloads --key my-lora`

    - `tunemark import axolotl CONFIG.yml --model llama-3-8b`
    """
    imported = workload_of(read_bytes(file), file.name, FactBase.of_project(), key, model)
    for text in imported.not_expressed:
        say(f"not expressed: {text}")
    if out is not None:
        path = out / f"{imported.card.key}.toml"
        refuse_existing(path)
        write_out(path, card_text(imported.card).encode())
        say(f"wrote {path}")
    if as_json:
        print_json({"card": imported.card.model_dump(mode="json"), "not_expressed": imported.not_expressed})
    elif out is None:
        typer.echo(card_text(imported.card), nl=False)


def card_text(card: WorkloadCard) -> str:
    """Return a card as the TOML of its file, plain fields before tables.

    TOML has no null: null fields are left out, so a card must not contain null where the default is another value.
    """
    content = card.model_dump(mode="json", exclude_none=True)
    plain = {name: value for name, value in content.items() if not isinstance(value, dict) and value != []}
    return tomlkit.dumps(plain | {name: part for name, part in content.items() if isinstance(part, dict) and part})


# Keys of a configuration ---------------------------------------------------------------------------

MISSPELT = 0.88
"""Least similarity of a misspelt key, as difflib's ratio: related keys share words, misspelt ones nearly all letters.

`schema.errors.nearest` suggests related names too, which here would report `lora_fan_in` as a misspelt `lora_r`.
"""
OPTIMIZERS: dict[str, OptimizerName] = {
    "adamw": "adamw", "adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw", "adamw_apex_fused": "adamw",
    "adamw_bnb_8bit": "adamw_8bit", "adamw_8bit": "adamw_8bit", "paged_adamw_8bit": "paged_adamw_8bit", "adafactor": "adafactor", "sgd": "sgd",
}  # fmt: skip
"""Name of an optimizer -> name of the same update rule on a card."""
SCHEDULERS: dict[str, Any] = {"cosine": "cosine", "linear": "linear", "constant": "constant", "constant_with_warmup": "constant"}
ATTENTION: dict[str, Attention] = {
    "flash_attention": "flash_attention_2", "sdp_attention": "sdpa", "eager_attention": "eager", "flex_attention": "flex_attention",
}  # fmt: skip
OFFLOADS: dict[str, Offload] = {"": "none", "_bf16": "none", "_bf16_cpuoffload_all": "all"}
"""End of the name of a DeepSpeed file that axolotl ships -> state kept in host memory."""
OTHER_TASKS = {
    "rl": "preference tuning", "reward_model": "a reward model", "process_reward_model": "a reward model",
}  # fmt: skip
"""Keys of tasks other than predicting the next token."""
USED = {
    "adam_beta1", "adam_beta2", "adam_epsilon", "adapter", "attn_implementation", "base_model", "bf16", "bnb_config_kwargs", "datasets", "deepspeed",
    "fp16", "fsdp", "fsdp_config", "fsdp_version", "gradient_accumulation_steps", "gradient_checkpointing", "learning_rate", "load_in_4bit",
    "load_in_8bit", "lora_alpha", "lora_dropout", "lora_r", "lora_target_linear", "lora_target_modules", "lr_scheduler", "max_grad_norm",
    "max_steps", "micro_batch_size", "num_epochs", "optimizer", "pad_to_sequence_len", "sample_packing", "seed", "sequence_len", "tf32",
    "val_set_size", "warmup_ratio", "warmup_steps", "weight_decay", *ATTENTION, *OTHER_TASKS,
}  # fmt: skip
"""Keys that the card expresses, or that are reported below if it cannot."""
WITHOUT_EFFECT = {
    "base_model_config", "dataset_prepared_path", "debug", "eval_table_size", "evals_per_epoch", "eval_steps", "hub_model_id", "local_rank",
    "logging_steps", "lora_model_dir", "model_type", "output_dir", "plugins", "resume_from_checkpoint", "save_safetensors", "save_steps",
    "save_total_limit", "saves_per_epoch", "special_tokens", "strict", "tokenizer_type", "trust_remote_code",
    "wandb_entity", "wandb_log_model", "wandb_mode", "wandb_name", "wandb_project", "wandb_run_id", "wandb_watch",
}  # fmt: skip
"""Keys that change neither the computation nor its speed."""
DEFAULTS: dict[str, Any] = {
    "sequence_len": 512, "micro_batch_size": 1, "gradient_accumulation_steps": 1, "num_epochs": 1, "optimizer": "adamw_torch_fused",
    "lr_scheduler": "cosine", "lora_r": 8, "lora_alpha": 8, "lora_dropout": 0.0, "weight_decay": 0.0, "max_grad_norm": 1.0, "seed": 42,
    "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8,
}  # fmt: skip
"""Defaults of missing keys; listed as not stated.

Read in axolotl-ai-cloud/axolotl src/axolotl/utils/schemas/training.py @ 002a637c86864c8acf451757ee45040b5ea5e25f; the
last five, and the rank and alpha of adapters, are the defaults of the HF Trainer and of peft, which axolotl uses unchanged.
"""


# Reading a configuration ----------------------------------------------------------------------------

LARGEST_FILE = MIB


@dataclass(slots=True)
class Config:
    """A configuration, with the defaults it relies on and the settings that a card cannot express."""

    raw: Mapping[str, Any]
    assumed: list[str] = field(default_factory=list)
    not_expressed: list[str] = field(default_factory=list)

    def get(self, key: str) -> Any:  # noqa: ANN401 - any YAML value
        """Return a setting, or its default, which is noted."""
        value = self.raw.get(key)
        if value is None and key in DEFAULTS:
            self.assumed.append(f"{key} ({DEFAULTS[key]} by default)")
            return DEFAULTS[key]
        return value

    def number(self, key: str) -> float:
        """Return a number; YAML reads 1e-4 as a string."""
        value = self.get(key)
        try:
            return float(value)
        except (TypeError, ValueError) as error:
            raise invalid(key, value, "give a number") from error

    def whole(self, key: str) -> int:
        """Return a whole number."""
        value = self.number(key)
        if not value.is_integer():
            raise invalid(key, self.get(key), "give a whole number")
        return int(value)

    def cannot(self, key: str, why: str) -> None:
        """Note a setting that the card cannot express."""
        self.not_expressed.append(f"{key}: {one_line(self.raw.get(key))} ({why})")


def loaded(content: bytes, file: str) -> Mapping[str, Any]:
    """Return the settings of a configuration; raises TunemarkError (exit code 3) for anything else."""
    if len(content) > LARGEST_FILE:
        raise TunemarkError(file, f"{len(content):,} bytes", "too large for a configuration", exit_code=Exit.INVALID)
    try:
        # Aliases can make a small file huge when it is walked; a configuration has no use for them.
        text = content.decode("utf-8")
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise TunemarkError(file, "an alias (*name)", "write the setting out", exit_code=Exit.INVALID)
        raw = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise TunemarkError(file, "", f"not valid YAML: {' '.join(str(error).split())}", exit_code=Exit.INVALID) from error
    if not isinstance(raw, dict) or not raw.get("base_model"):
        raise TunemarkError(file, "", "not an axolotl configuration: it has no base_model", exit_code=Exit.INVALID)
    return {str(name): value for name, value in raw.items()}


def one_line(value: object) -> str:
    """Return a value as one short line."""
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."  # noqa: PLR2004 - one line of a terminal


def invalid(field_name: str, value: object, fix: str) -> TunemarkError:
    """Return an error that names a setting, its value and the fix."""
    return TunemarkError(field_name, value, fix, exit_code=Exit.INVALID)


# The card ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Imported:
    """A card, and the settings it lacks."""

    card: WorkloadCard
    not_expressed: tuple[str, ...]
    """Settings of the configuration that the card cannot express, as `key: value`."""


def workload_of(content: bytes, file: str, facts: FactBase, key: str | None = None, model: str | None = None) -> Imported:
    """Return the workload card of a configuration.

    `file` is its name, for messages and for the default key of the card. `model` names the model card, if no card has the name in
    `base_model`. Raises TunemarkError with exit code 3 for an invalid configuration; names the field, the value and the fix.
    """
    config = Config(loaded(content, file))
    for name, what in OTHER_TASKS.items():
        value = config.raw.get(name)
        if value not in {None, False, ""}:
            raise invalid(name, value, f"is {what}, which workload cards do not support: they predict the next token or classify")
    adapter = config.raw.get("adapter") or None
    if adapter not in {None, "lora", "qlora"}:
        raise invalid("adapter", adapter, f"a workload is full, lora or qlora; {did_you_mean(str(adapter), ['lora', 'qlora'])}")
    method = Method(adapter) if adapter else Method.FULL
    base_model, file_name = str(config.raw["base_model"]), file.rsplit("/", 1)[-1]
    default_key = re.sub(r"[^a-z0-9._-]+", "-", file_name.rsplit(".", 1)[0].lower()).strip("-._")[:80] or "imported"
    # The card has one switch for all of Liger's kernels.
    liger = any(value and name.startswith("liger_") for name, value in config.raw.items())
    try:
        card = WorkloadCard(
            key=key or default_key,
            title=f"{method.value} of {base_model} (axolotl)"[:2_000],
            description=f"Imported from the axolotl configuration {file_name}.",
            source=f"axolotl configuration {file_name}",
            task=Task.CAUSAL_LM,
            model=facts.model(model or base_model).key,
            weights=Weights.PRETRAINED,
            method=method,
            lora=lora_of(config) if method is not Method.FULL else None,
            quantisation=quantisation_of(config) if method is Method.QLORA else None,
            data=data_of(config),
            batch=WorkloadBatch(
                micro_batch=config.whole("micro_batch_size"), gradient_accumulation=config.whole("gradient_accumulation_steps")
            ),
            optimizer=optimizer_of(config),
            compute=compute_of(config),
            gradient_checkpointing=checkpointing_of(config),
            attention=attention_of(config),
            fused_kernels="liger" if liger else "none",
            devices=devices_of(config),
            stop=stop_of(config),
            seed=config.whole("seed"),
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise invalid(".".join(map(str, first["loc"])), first.get("input"), first["msg"]) from error
    _note_other_settings(config, method)
    not_stated = (*config.assumed, *(f"not expressed: {text}" for text in config.not_expressed))
    return Imported(card.model_copy(update={"not_stated": not_stated}), tuple(config.not_expressed))


def _note_other_settings(config: Config, method: Method) -> None:
    """Add settings that have an effect and that the card cannot express to those not expressed."""
    known = USED | WITHOUT_EFFECT
    for name, value in config.raw.items():
        if name in known or name.startswith("liger_") or value in (None, False, "", [], {}):
            continue
        near = get_close_matches(name, sorted(known), n=1, cutoff=MISSPELT)
        config.cannot(name, suggested(near) if near else "no field of a workload card")
    if method is not Method.QLORA and config.raw.get("load_in_4bit"):
        config.cannot("load_in_4bit", "a card quantises with qlora only")
    if config.raw.get("load_in_8bit"):
        config.cannot("load_in_8bit", "a card stores frozen weights in four bits or in those of its number format")


# Parts of the card ---------------------------------------------------------------------------------

ZERO = re.compile(r"(?:.*/)?zero(?P<stage>[123])(?P<rest>(?:_[a-z0-9_]*)?)\.json")


def lora_of(config: Config) -> LoraSettings:
    """Return the settings of the adapters."""
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
    """Return the dataset, its padding and packing."""
    datasets = config.raw.get("datasets") or []
    first = datasets[0] if isinstance(datasets, list) and datasets and isinstance(datasets[0], dict) else {}
    if not first.get("path"):
        raise invalid("datasets", datasets or None, "give a list; its first entry needs a path")
    if len(datasets) > 1:
        config.not_expressed.append(f"datasets: {len(datasets)} of them, the card names the first")
    details = {name: value for name, value in first.items() if name != "path" and value is not None}
    if details:
        config.not_expressed.append(
            f"datasets.0: {', '.join(f'{name} {one_line(value)}' for name, value in details.items())} (how rows become text)"
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
    """Return the optimizer; an unknown one is refused, because another would train differently."""
    if config.raw.get("learning_rate") is None:
        raise invalid("learning_rate", None, "give one; axolotl has no default")
    name = str(config.get("optimizer"))
    if name not in OPTIMIZERS:
        raise invalid("optimizer", name, f"no optimizer of a workload card; {did_you_mean(name, OPTIMIZERS)}")
    scheduler = str(config.get("lr_scheduler"))
    if scheduler not in SCHEDULERS:
        raise invalid("lr_scheduler", scheduler, f"no scheduler of a workload card; {did_you_mean(scheduler, SCHEDULERS)}")
    norm = config.number("max_grad_norm")
    if not norm:
        config.cannot("max_grad_norm", "a card cannot state that gradients are not clipped; it has 1.0")
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
    """Return the storage format of the frozen weights of qlora."""
    if not config.raw.get("load_in_4bit"):
        config.assumed.append("load_in_4bit (qlora has four-bit weights)")
    kwargs = config.raw.get("bnb_config_kwargs")
    kwargs = kwargs if isinstance(kwargs, dict) else {}
    kind = kwargs.get("bnb_4bit_quant_type", "nf4")
    if kind not in {"nf4", "fp4"}:
        raise invalid("bnb_config_kwargs.bnb_4bit_quant_type", kind, "give nf4 or fp4")
    for name in sorted(set(kwargs) - {"bnb_4bit_quant_type", "bnb_4bit_use_double_quant"}):
        config.not_expressed.append(f"bnb_config_kwargs.{name}: {one_line(kwargs[name])} (no field of a workload card)")
    return Quantisation(format=kind, double=bool(kwargs.get("bnb_4bit_use_double_quant", True)))


def attention_of(config: Config) -> Attention:
    """Return the attention kernel."""
    for key, kernel in ATTENTION.items():
        if config.raw.get(key):
            return kernel
    stated = config.raw.get("attn_implementation") or "sdpa"
    for kernel in ATTENTION.values():
        if stated == kernel:
            return kernel
    raise invalid("attn_implementation", stated, did_you_mean(str(stated), ATTENTION.values()))


def devices_of(config: Config) -> WorkloadDevices:
    """Return the sharding, from the name of axolotl's own DeepSpeed file; other files are not expressed."""
    file = config.raw.get("deepspeed")
    if not file:
        if str(config.raw.get("fsdp_version")) == "2" and (config.raw.get("fsdp_config") or config.raw.get("fsdp")):
            config.assumed.append("devices.count")
            return WorkloadDevices(strategy=Strategy.FSDP2)
        for key in ("fsdp", "fsdp_config"):
            if config.raw.get(key):
                config.cannot(key, "the card has the second version of FSDP only")
        return WorkloadDevices()
    zero = ZERO.fullmatch(str(file))
    if not zero:
        config.cannot("deepspeed", "only axolotl's own zero1, zero2 and zero3 files are known by name")
        return WorkloadDevices()
    if zero["rest"] and zero["rest"] not in OFFLOADS:
        config.cannot("deepspeed", f"{zero['rest'].strip('_')} is not a field of a workload card")
    config.assumed.append("devices.count")
    return WorkloadDevices(strategy=Strategy(f"zero{zero['stage']}"), offload=OFFLOADS.get(zero["rest"], "none"))


def compute_of(config: Config) -> Any:  # noqa: ANN401 - a Literal of the card
    """Return the number format of matrix products."""
    bf16, fp16, tf32 = (config.raw.get(name) for name in ("bf16", "fp16", "tf32"))
    if bf16 in {True, "true", "full"}:
        return "bf16"
    if fp16:
        return "fp16"
    return "auto" if bf16 == "auto" else "tf32" if tf32 else "fp32"


def checkpointing_of(config: Config) -> Checkpointing:
    """Return the amount of recomputation of activations."""
    value = config.raw.get("gradient_checkpointing")
    if value not in {None, True, False}:
        config.cannot("gradient_checkpointing", "the card knows the values none, selective and full")
    return Checkpointing.FULL if value else Checkpointing.NONE


def stop_of(config: Config) -> WorkloadStop:
    """Return the stop condition of a run."""
    steps = config.whole("max_steps") if config.raw.get("max_steps") is not None else 0
    max_steps, epochs = (steps if steps > 0 else None), config.number("num_epochs")
    if epochs.is_integer() and epochs >= 1:
        return WorkloadStop(max_steps=max_steps, epochs=int(epochs))
    config.cannot("num_epochs", "the card counts whole epochs")
    return WorkloadStop(max_steps=max_steps)
