"""Axolotl configurations as workload cards. Settings that a card cannot express are listed, never dropped silently."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tomlkit
import typer
import yaml
from pydantic import ValidationError

from tunemark.collector.commands.terminal import AsJson, print_json, say
from tunemark.collector.importers.import_io import read_bytes, refuse_existing, write_out
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.workloads import WorkloadCard
from tunemark.schema.records.plan import LoraSettings
from tunemark.schema.vocabulary import Method


def axolotl(
    file: Annotated[Path, typer.Argument(help="The YAML configuration.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder to write the card to, such as `data/workloads`. Default: standard output.", show_default=False),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="Key of the card. Default: from the file's name.", show_default=False)] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Model card, if no card has the name in base_model.", show_default=False)
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
    """
    card, not_expressed = workload_of(read_bytes(file), file.name, FactBase.of_project(), key, model)
    for text in not_expressed:
        say(f"not expressed: {text}")
    if out is not None:
        path = out / f"{card.key}.toml"
        refuse_existing(path)
        write_out(path, card_text(card).encode())
        say(f"wrote {path}")
    if as_json:
        print_json({"card": card.model_dump(mode="json"), "not_expressed": not_expressed})
    elif out is None:
        typer.echo(card_text(card), nl=False)


def card_text(card: WorkloadCard) -> str:
    """Return a card as the TOML of its file, plain fields before tables.

    TOML has no null: null fields are left out, so a card must not contain null where the default is another value.
    """
    content = card.model_dump(mode="json", exclude_none=True)
    plain = {name: value for name, value in content.items() if not isinstance(value, dict) and value != []}
    return tomlkit.dumps(plain | {name: part for name, part in content.items() if isinstance(part, dict) and part})


# Keys of a configuration ---------------------------------------------------------------------------


class Key(NamedTuple):
    """A key of a configuration that is a field of the card."""

    field: str
    read: Callable[[Any], Any]
    default: Any


def _word(values: Mapping[str, str]) -> Callable[[Any], str]:
    def read(value: Any) -> str:  # noqa: ANN401 - any YAML value
        if str(value) not in values:
            raise ValueError(f"nothing that a workload card has; {did_you_mean(str(value), values)}")
        return values[str(value)]

    return read


def _whole(value: Any) -> int:  # noqa: ANN401 - any YAML value
    if not float(value).is_integer():
        raise ValueError("must be a whole number")
    return int(float(value))


OPTIMIZERS = {
    "adamw": "adamw", "adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw", "adamw_apex_fused": "adamw",
    "adamw_bnb_8bit": "adamw_8bit", "adamw_8bit": "adamw_8bit", "paged_adamw_8bit": "paged_adamw_8bit", "adafactor": "adafactor", "sgd": "sgd",
}  # fmt: skip
"""Name of an optimizer -> name of the same update rule on a card."""
SCHEDULERS = {"cosine": "cosine", "linear": "linear", "constant": "constant", "constant_with_warmup": "constant"}
KEYS = {
    "sequence_len": Key("data.sequence_length", _whole, 512),
    "micro_batch_size": Key("batch.micro_batch", _whole, 1),
    "gradient_accumulation_steps": Key("batch.gradient_accumulation", _whole, 1),
    "optimizer": Key("optimizer.name", _word(OPTIMIZERS), "adamw_torch_fused"),
    "lr_scheduler": Key("optimizer.scheduler", _word(SCHEDULERS), "cosine"),
    "learning_rate": Key("optimizer.learning_rate", float, None),
    "weight_decay": Key("optimizer.weight_decay", float, 0.0),
    "adam_epsilon": Key("optimizer.epsilon", float, 1e-8),
    "adam_beta1": Key("optimizer.betas.0", float, 0.9),
    "adam_beta2": Key("optimizer.betas.1", float, 0.999),
    "max_grad_norm": Key("optimizer.max_grad_norm", float, 1.0),
    "warmup_steps": Key("optimizer.warmup_steps", _whole, 0),
    "num_epochs": Key("stop.epochs", float, 1),
    "max_steps": Key("stop.max_steps", _whole, 0),
    "lora_r": Key("lora.rank", _whole, 8),
    "lora_alpha": Key("lora.alpha", _whole, 8),
    "lora_dropout": Key("lora.dropout", float, 0.0),
    "seed": Key("seed", _whole, 42),
}
"""Key -> field of the card, and axolotl's default, which is listed as not stated.

Read in axolotl-ai-cloud/axolotl src/axolotl/utils/schemas/training.py @ 002a637c86864c8acf451757ee45040b5ea5e25f; those of the optimizer,
the seed, and the rank and alpha of adapters are the defaults of the HF Trainer and of peft, which axolotl uses unchanged.
"""
ATTENTION = {
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
    "flex_attention": "flex_attention",
}
OFFLOADS = {"": "none", "_bf16": "none", "_bf16_cpuoffload_all": "all"}
"""End of the name of a DeepSpeed file that axolotl ships -> state kept in host memory."""
ZERO = re.compile(r"(?:.*/)?zero(?P<stage>[123])(?P<rest>(?:_[a-z0-9_]*)?)\.json")
OTHER_TASKS = ("rl", "reward_model", "process_reward_model")
"""Keys of tasks other than predicting the next token."""
READ = {
    "adapter", "attn_implementation", "base_model", "bf16", "bnb_config_kwargs", "datasets", "deepspeed", "fp16", "fsdp", "fsdp_config",
    "fsdp_version", "gradient_checkpointing", "load_in_4bit", "lora_target_linear", "lora_target_modules", "pad_to_sequence_len",
    "sample_packing", "tf32", *ATTENTION, *OTHER_TASKS, *KEYS,
}  # fmt: skip
"""Keys that are read below."""
WITHOUT_EFFECT = {
    "base_model_config", "dataset_prepared_path", "debug", "eval_table_size", "evals_per_epoch", "eval_steps", "hub_model_id", "local_rank",
    "logging_steps", "lora_model_dir", "model_type", "output_dir", "plugins", "resume_from_checkpoint", "save_safetensors", "save_steps",
    "save_total_limit", "saves_per_epoch", "special_tokens", "strict", "tokenizer_type", "trust_remote_code",
    "wandb_entity", "wandb_log_model", "wandb_mode", "wandb_name", "wandb_project", "wandb_run_id", "wandb_watch",
}  # fmt: skip
"""Keys that change neither the computation nor its speed."""


# The card ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Config:
    """A configuration, with the defaults it relies on and the settings that a card cannot express."""

    raw: Mapping[str, Any]
    card: dict[str, Any] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)
    not_expressed: list[str] = field(default_factory=list)

    def put(self, place: str, value: object) -> None:
        """Set a field of the card, such as `data.name`."""
        node, *path = place.split(".")
        inside = self.card
        for name in path:
            inside, node = inside.setdefault(node, {}), name
        inside[node] = value

    def cannot(self, key: str, why: str) -> None:
        """Note a setting that the card cannot express."""
        text = " ".join(str(self.raw.get(key)).split())
        self.not_expressed.append(f"{key}: {text if len(text) <= 80 else text[:77] + '...'} ({why})")  # noqa: PLR2004 - one line


def workload_of(
    content: bytes, file: str, facts: FactBase, key: str | None = None, model: str | None = None
) -> tuple[WorkloadCard, tuple[str, ...]]:
    """Return the workload card of a configuration, and its settings that the card cannot express.

    `file` is its name, for messages and for the default key of the card. `model` names the model card, if no card has the name in
    `base_model`. Raises TunemarkError with exit code 3 for an invalid configuration; names the field, the value and the fix.
    """
    config = Config(_loaded(content, file))
    for name in OTHER_TASKS:
        if config.raw.get(name):
            raise _invalid(name, config.raw[name], "is another task; workload cards predict the next token or classify")
    adapter = config.raw.get("adapter") or "full"
    if adapter not in {"full", "lora", "qlora"}:
        raise _invalid("adapter", adapter, f"a workload is full, lora or qlora; {did_you_mean(str(adapter), ['lora', 'qlora'])}")
    base_model, name = str(config.raw["base_model"]), file.rsplit("/", 1)[-1]
    config.card |= {
        "key": key or re.sub(r"[^a-z0-9._-]+", "-", name.rsplit(".", 1)[0].lower()).strip("-._")[:80] or "imported",
        "title": f"{adapter} of {base_model} (axolotl)"[:2_000],
        "description": f"Imported from the axolotl configuration {name}.",
        "source": f"axolotl configuration {name}",
        "task": "causal_lm",
        "model": facts.model(model or base_model).key,
        "weights": "pretrained",
        "method": adapter,
    }
    _add_keys(config, Method(adapter))
    _add_data(config)
    _add_adapters(config, Method(adapter))
    _add_computation(config)
    _add_devices(config)
    for other, value in config.raw.items():
        if other not in READ | WITHOUT_EFFECT and not other.startswith("liger_") and value not in (None, False, "", [], {}, 0):
            config.cannot(other, "no field of a workload card")
    not_expressed = tuple(config.not_expressed)
    config.card["not_stated"] = [*config.assumed, *(f"not expressed: {text}" for text in not_expressed)]
    try:
        return WorkloadCard.model_validate(config.card), not_expressed
    except ValidationError as error:
        first = error.errors()[0]
        raise _invalid(".".join(map(str, first["loc"])), first.get("input"), first["msg"]) from error


def _loaded(content: bytes, file: str) -> Mapping[str, Any]:
    """Return the settings of a configuration; raises TunemarkError (exit code 3) for anything else."""
    try:
        # Aliases can make a small file huge when it is walked; a configuration has no use for them.
        text = content.decode("utf-8")
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise _invalid(file, "an alias (*name)", "write the setting out")
        raw = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise _invalid(file, "", f"not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict) or not raw.get("base_model"):
        raise _invalid(file, "", "not an axolotl configuration: it has no base_model")
    return {str(name): value for name, value in raw.items()}


def _invalid(name: str, value: object, fix: str) -> TunemarkError:
    return TunemarkError(name, value, fix, exit_code=Exit.INVALID)


def _add_keys(config: Config, method: Method) -> None:
    """Add the settings that are fields of the card, with axolotl's defaults."""
    for name, key in KEYS.items():
        if key.field.startswith("lora.") and method is Method.FULL:
            continue
        value = config.raw.get(name)
        if value is None and key.default is None:
            raise _invalid(name, None, "give one; axolotl has no default")
        if value is None:
            config.assumed.append(f"{name} ({key.default} by default)")
        try:
            config.put(key.field, key.read(key.default if value is None else value))
        except (TypeError, ValueError) as error:
            fix = str(error) if isinstance(error, ValueError) and "convert" not in str(error) else "give a number"
            raise _invalid(name, value, fix) from error
    optimizer, stop = config.card["optimizer"], config.card["stop"]
    optimizer["betas"] = list(optimizer["betas"].values())
    if not optimizer["max_grad_norm"]:
        optimizer["max_grad_norm"] = 1.0
        config.cannot("max_grad_norm", "a card cannot state that gradients are not clipped; it has 1.0")
    stop["max_steps"] = stop["max_steps"] if stop["max_steps"] > 0 else None
    if float(stop["epochs"]).is_integer() and stop["epochs"] >= 1:
        stop["epochs"] = int(stop["epochs"])
    else:
        del stop["epochs"]
        config.cannot("num_epochs", "the card counts whole epochs")


def _add_data(config: Config) -> None:
    datasets = config.raw.get("datasets") or []
    first = datasets[0] if isinstance(datasets, list) and datasets and isinstance(datasets[0], dict) else {}
    if not first.get("path"):
        raise _invalid("datasets", datasets or None, "give a list; its first entry needs a path")
    details = ", ".join(f"{name} {value}" for name, value in first.items() if name != "path" and value is not None)
    if details:
        config.not_expressed.append(f"datasets.0: {details} (how rows become text)")
    if len(datasets) > 1:
        config.not_expressed.append(f"datasets: {len(datasets)} of them, the card names the first")
    packing, path = bool(config.raw.get("sample_packing")), str(first["path"])
    local = path.startswith((".", "/", "~")) or path.endswith((".json", ".jsonl", ".csv", ".parquet"))
    config.put("data.source", "file" if local else "hub")
    config.put("data.name", path.rsplit("/", 1)[-1] if local else path)
    config.put("data.packing", packing)
    config.put("data.padding", "static" if config.raw.get("pad_to_sequence_len") else "none" if packing else "dynamic")
    config.assumed.append("training_rows")


def _add_adapters(config: Config, method: Method) -> None:
    if method is Method.FULL:
        return
    targets = config.raw.get("lora_target_modules") or ()
    modules = list(map(str, targets)) if isinstance(targets, list | tuple) else [str(targets)]
    if config.raw.get("lora_target_linear") or not modules:
        if not config.raw.get("lora_target_linear"):
            config.assumed.append("lora_target_modules (all linear layers of a block by default)")
        modules = list(LoraSettings().target_modules)
    config.put("lora.target_modules", modules)
    if method is Method.QLORA:
        kwargs = config.raw.get("bnb_config_kwargs")
        kwargs = kwargs if isinstance(kwargs, dict) else {}
        config.put("quantisation.format", kwargs.get("bnb_4bit_quant_type", "nf4"))
        config.put("quantisation.double", bool(kwargs.get("bnb_4bit_use_double_quant", True)))
    elif config.raw.get("load_in_4bit"):
        config.cannot("load_in_4bit", "a card quantises with qlora only")


def _add_computation(config: Config) -> None:
    bf16, fp16, tf32 = (config.raw.get(name) for name in ("bf16", "fp16", "tf32"))
    half = "bf16" if bf16 in {True, "true", "full"} else "fp16" if fp16 else None
    config.card["compute"] = half or ("auto" if bf16 == "auto" else "tf32" if tf32 else "fp32")
    recompute = config.raw.get("gradient_checkpointing")
    if recompute not in {None, True, False}:
        config.cannot("gradient_checkpointing", "the card knows the values none, selective and full")
    config.card["gradient_checkpointing"] = "full" if recompute else "none"
    kernel = next((kernel for name, kernel in ATTENTION.items() if config.raw.get(name)), config.raw.get("attn_implementation"))
    config.card["attention"] = kernel or "sdpa"
    # The card has one switch for all of Liger's kernels.
    liger = any(value and name.startswith("liger_") for name, value in config.raw.items())
    config.card["fused_kernels"] = "liger" if liger else "none"


def _add_devices(config: Config) -> None:
    """Add the sharding, from the name of axolotl's own DeepSpeed file; other files are not expressed."""
    zero = ZERO.fullmatch(str(config.raw.get("deepspeed") or ""))
    if zero and zero["rest"] in OFFLOADS:
        config.card["devices"] = {"strategy": f"zero{zero['stage']}", "offload": OFFLOADS[zero["rest"]]}
    elif config.raw.get("deepspeed"):
        config.cannot("deepspeed", "only axolotl's own zero1, zero2 and zero3 files are known by name")
    elif str(config.raw.get("fsdp_version")) == "2" and (config.raw.get("fsdp_config") or config.raw.get("fsdp")):
        config.card["devices"] = {"strategy": "fsdp2"}
    else:
        for key in ("fsdp", "fsdp_config"):
            if config.raw.get(key):
                config.cannot(key, "the card has the second version of FSDP only")
    if "devices" in config.card:
        config.assumed.append("devices.count")
