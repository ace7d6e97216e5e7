"""Models that a question may name without a card: a `config.json` of the hub, a folder with one, or a size such as `13B`."""

import json
import math
import os
import re
import tomllib
import urllib.request
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.cards import GROUPS, WITHOUT_WINDOW, ModelCard, fields_of
from tunemark.schema.facts.fact_base import FactBase, validated
from tunemark.schema.facts.names import not_modelled, suggest_card
from tunemark.schema.physics.architecture import count_parameters, special_mixers
from tunemark.schema.physics.families import FAMILIES, SETTINGS
from tunemark.schema.records.base import LARGEST
from tunemark.schema.safe_text import terminal

TABLE: dict[str, Any] = tomllib.loads(Path(__file__).with_name("any_model.toml").read_text(encoding="utf-8"))
OTHER_KEYS = (*TABLE["other_keys"], *(key for settings in SETTINGS.values() for key in settings))
"""Further names that say something about a model."""
WIDE = ("full_attention", "attention", "global")
"""Kinds of layers that attend to all tokens, in newer and in older files."""
FEED_FORWARD = ("mlp", "moe")
"""Kinds of layers that mix no tokens."""
LAYERS_IN_PATTERN = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
"""Letters for the kinds of layers of Nemotron-H, in files on the hub."""
WIDE_HEADS = {"global_head_dim": "head_dim", "num_global_key_value_heads": "num_key_value_heads"}
"""Keys for the layers that attend to all tokens -> the keys by layer that stand for them."""
NEEDED = ("hidden_size", "layers", "attention_heads", "vocabulary", "context_length")
NULLABLE = "q_lora_rank"
"""The key that is needed, and may be null: queries are then computed from the residual stream."""
SIZE = r"(\d{1,9}(?:\.\d{1,3})?) ?([bm])(?:illion)?"
UNITS = {"b": 1e9, "m": 1e6}
HUB_TIMEOUT_S = 10.0
"""Longest wait for an answer of the hub."""
CLOSE = 1.15
"""Models whose sizes differ by at most this factor have one size in words: 6.7e9 and 7.2e9 parameters are "7B"."""
CURRENT_CONTEXT = 32_768
"""Least context in tokens of a current model: of the cards' models from before 2024, few have more than 8,192."""
Limits = Mapping[str, tuple[int, int]]
"""The least and the largest value of a field."""


def any_model(facts: FactBase, name: str) -> ModelCard:
    """Return the card of a model by key, alias or hub id; or that of a configuration file, of a folder or a model of the hub, or of a size.

    Raises TunemarkError for an unknown name, and for a configuration without the needed keys or of another architecture.
    """
    sized = model_of_size(facts.models.values(), name)
    if sized is not None:
        return sized.model_copy(update={"name": size_in_words(sized, name)})
    known, spelled = facts.find_model(name) is not None, name.lower() in facts.model_keys
    if name.endswith(".json") and not spelled:
        return card_of_config(Path(name))
    # A path is one also if its last part is a model's name. os.path raises no error for a name that is too long.
    if name and (not spelled or "/" in name) and os.path.isfile(os.path.join(name, "config.json")):  # noqa: PTH113, PTH118
        return card_of_config(Path(name) / "config.json")
    if not known and ((name.strip(".") and os.path.isdir(name)) or name.startswith(("/", "./", "../", "~"))):  # noqa: PTH112 - as above
        raise TunemarkError("model", name, "holds no config.json; give the folder that holds it beside the weights")
    hub = hub_address()
    if not known and hub and not not_modelled(name) and re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return card_on_hub(facts, hub, name)
    # Names of variants that are trained on longer rows end in their context.
    card, longer = facts.model(name), re.search(r"-(?:(16|32|64|128|256|262|512|524|1024|1048)k|1m)\b", name.lower())
    return card.model_copy(update={"context_length": max(card.context_length, 1024 * int(longer[1] or 1024))}) if longer else card


def card_of_config(path: Path) -> ModelCard:
    """Return the card of a configuration file of transformers; of a model with several parts, that of its language model."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TunemarkError("--model", str(path), f"is no configuration of a model: {error}") from error
    return _card(content, str(path), path.resolve().parent.name, path.name)


def hub_address() -> str | None:
    """Return the address of the model hub, or None if the user works without it: by the variables of Hugging Face's libraries."""
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() in {"1", "true", "yes", "on"}:
        return None
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def card_on_hub(facts: FactBase, hub: str, name: str) -> ModelCard:
    """Return the card of a model of the hub, by its configuration there. HF_TOKEN counts as in Hugging Face's libraries."""
    address = f"{hub}/{name}/resolve/main/config.json"
    token = os.environ.get("HF_TOKEN")
    asked = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"} if token else {})  # noqa: S310 - of the hub
    try:
        with urllib.request.urlopen(asked, timeout=HUB_TIMEOUT_S) as answer:  # noqa: S310
            content = json.load(answer)
    except (OSError, ValueError) as error:
        near = suggest_card(name, facts.models.values())
        fix = f"not a known model ({near}), and the hub gave no configuration of it: {error}; give a folder with its config.json"
        raise TunemarkError("model", name, fix) from error
    return _card(content, name, name.rpartition("/")[2], address).model_copy(update={"hub_id": name})


def _card(content: Any, place: str, name: str, source: str) -> ModelCard:  # noqa: ANN401 - any JSON value
    stem = re.sub(r"[^a-z0-9.]+", "-", name.lower())[:80].strip("-.") or "model"
    fields = config_fields(content, place, limits()) | {"key": stem, "source": source}
    bits = "-4bit" if re.search(r'"load_in_4bit": true|"bits": 4\b', json.dumps(content)) else ""
    return validated(ModelCard, fields | {"name": terminal(str(content.get("_name_or_path") or stem))[:75] + bits}, place)


@cache
def limits() -> Limits:
    """Return the limits of each whole number on the card of a model."""
    kinds = {name: field.get("anyOf", [field])[0] for name, field in ModelCard.model_json_schema()["properties"].items()}
    return {name: (kind["minimum"], kind.get("maximum", LARGEST)) for name, kind in kinds.items() if "minimum" in kind}


# Also translated for the home page ------------------------------------------------------------------


def config_fields(content: Any, place: str, within: Limits) -> dict[str, Any]:  # noqa: ANN401 - any JSON value
    """Return the numbers of a model from its configuration. `place` names it in errors.

    Raises TunemarkError for a key that is needed and missing, for a number outside the limits, and for an unknown architecture.
    """
    if not isinstance(content, dict):
        raise TunemarkError(place, None, "is no configuration of a model: it holds no keys")
    part = content | content["text_config"] if isinstance(content.get("text_config"), dict) else content
    part = part["attn_config"] | part if isinstance(part.get("attn_config"), dict) else part
    kind = str(part.get("model_type"))
    family = TABLE["text_part"].get(kind, kind)
    if family not in FAMILIES:
        why = not_modelled(kind) or "the work of this architecture is not known"
        raise TunemarkError(f"{place}: model_type", kind, f"{why}; known: {', '.join(FAMILIES)}")
    expected: dict[str, Any] = SETTINGS.get(family, {}) | dict.fromkeys(TABLE["unset"])
    expected |= {key: part.get(other) for key, other in TABLE["repeated"].items() if part.get(key)}
    for key, value in expected.items():
        stated = part.get(key, value if family in TABLE["usual"] else None)
        if (stated or None) != (value or None):
            fix = f"the work of this architecture is not known; only models with {str(value).lower()}"
            raise TunemarkError(f"{place}: {key}", part.get(key), fix)
    part = ADJUSTED[family](part) if family in ADJUSTED else part
    names = fields_of(family)
    given = {theirs: ours for theirs, ours in names.items() if part.get(theirs) is not None or (theirs == NULLABLE and theirs in part)}
    fields = {"tied_embeddings": family in TABLE["tied"]} | TABLE["defaults"].get(family, {})
    fields |= {ours: part[theirs] for theirs, ours in given.items()}
    more = [row for row in TABLE["needed"] if any(family in GROUPS.get(group, [group]) for group in row["of"])]
    missing = [ours for ours in (*NEEDED, *(name for row in more for name in row["fields"])) if ours not in fields]
    if missing:
        known = " or ".join(theirs for theirs, ours in names.items() if ours == missing[0])
        raise TunemarkError(f"{place}: {known}", None, "is missing; give the configuration that lies beside the weights")
    fields = _completed(fields, part, family) | {"family": family}
    if "interleave_moe_layer_step" in given and isinstance(fields["mixture_every"], int):
        # Of each group of this many layers, the last one has experts.
        fields["dense_layers"] = max(0, fields["mixture_every"] - 1)
    called = {ours: theirs for theirs, ours in given.items()}
    for name, (least, most) in within.items():
        value = fields.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most):
            raise TunemarkError(f"{place}: {called.get(name, name)}", value, f"must be a whole number from {least:,} to {most:,}")
    if not isinstance(fields.get("tied_embeddings", False), bool):
        raise TunemarkError(f"{place}: tie_word_embeddings", fields["tied_embeddings"], "must be true or false")
    return fields


def _of_gemma_4(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration of Gemma 4 without the keys that do not count in it."""
    # transformers writes what keys for the layers that attend to all tokens say as settings of single layers.
    wide: Mapping[str, Any] = next(iter((config.get("per_layer_config") or {}).values()), {})
    full = dict(config) | {key: wide[name] for key, name in WIDE_HEADS.items() if name in wide}
    unused = [key for key in ("hidden_size_per_layer_input", "num_kv_shared_layers") if not full.get(key)]
    unused += [] if full.get("enable_moe_block") else ["num_experts", "top_k_experts", "moe_intermediate_size"]
    unused += [] if full.get("attention_k_eq_v") else ["num_global_key_value_heads"]
    return full | dict.fromkeys(unused)


def _of_granite_4(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration of Granite 4 without the keys that do not count in it, and with the numbers that follow from others."""
    full, kinds = dict(config) | {"shared_expert_intermediate_size": config.get("shared_intermediate_size")}, config.get("layer_types")
    if not full.get("num_local_experts"):
        full |= {"num_local_experts": None, "num_experts_per_tok": None, "intermediate_size": full.get("shared_intermediate_size")}
    if isinstance(kinds, list) and all(kind in WIDE for kind in kinds):
        return full | dict.fromkeys(("mamba_n_groups", "mamba_n_heads", "mamba_d_head", "mamba_d_state"))
    sizes: list[Any] = [full.get(name) for name in ("mamba_expand", "hidden_size", "mamba_n_heads")]
    if full.get("mamba_d_head") in {None, "auto"} and all(isinstance(size, int) and size > 0 for size in sizes):
        full["mamba_d_head"] = sizes[0] * sizes[1] // sizes[2]
    return full


def _of_nemotron_h(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration of Nemotron-H with the number and the kinds of its layers, and without the keys that do not count in it."""
    pattern: Any = config.get("hybrid_override_pattern")
    kinds = config.get("layers_block_type") or ([LAYERS_IN_PATTERN.get(letter) for letter in pattern] if isinstance(pattern, str) else [])
    full = dict(config) | {"layer_types": kinds, "num_hidden_layers": len(kinds)}
    if "moe" in kinds:
        return full | {"shared_expert_intermediate_size": config.get("moe_shared_expert_intermediate_size")}
    return full | dict.fromkeys(("n_routed_experts", "num_experts_per_tok", "n_shared_experts", "moe_intermediate_size"))


ADJUSTED = {"gemma4_text": _of_gemma_4, "granitemoehybrid": _of_granite_4, "nemotron_h": _of_nemotron_h}


def _completed(fields: Mapping[str, Any], config: Mapping[str, Any], family: str) -> dict[str, Any]:
    """Return fields with what follows where a configuration leaves them out, as transformers completes them."""
    full = dict(fields)
    if all(isinstance(full[name], int) and full[name] > 0 for name in ("hidden_size", "attention_heads")):
        full.setdefault("head_dim", full["hidden_size"] // full["attention_heads"])
        full.setdefault("intermediate_size", 4 * full["hidden_size"])
    full.setdefault("key_value_heads", full["attention_heads"])
    if family == "lfm2":
        full["intermediate_size"] = _adjusted(full["intermediate_size"], config)
    window, context, wide = full.get("sliding_window"), full["context_length"], _wide_layers(config, family, full["layers"])
    if config.get("use_sliding_window") is False or (isinstance(window, int) and isinstance(context, int) and window >= context):
        window = None
        full["sliding_window"] = None
    elif (window or family in WITHOUT_WINDOW) and wide is not None:
        every = wide[0] + 1 if wide else None
        regular = every is None or wide == [place for place in range(full["layers"]) if (place + 1) % every == 0]
        full["full_attention_every"] = every if regular else None
        full["full_attention_layers"] = None if regular else wide
    if family == "nemotron_h":
        full["feed_forward_layers"] = [place for place, kind in enumerate(config["layer_types"]) if kind in FEED_FORWARD]
    elif window and config.get("sliding_window_pattern"):
        full["full_attention_every"] = config["sliding_window_pattern"]
    if not window and family not in WITHOUT_WINDOW:
        full["full_attention_every"] = None
    if config.get("use_double_wide_mlp") and full.get("sharing_layers") and isinstance(full["intermediate_size"], int):
        full["sharing_intermediate_size"] = 2 * full["intermediate_size"]
    # One wider expert for all tokens is as many of the usual width.
    shared = config.get("intermediate_size" if family == "gemma4_text" else "shared_expert_intermediate_size")
    inner = full.get("intermediate_size")
    if full.get("experts") and isinstance(shared, int) and isinstance(inner, int) and inner > 0:
        full["shared_experts"] = shared // inner
    return full


def _wide_layers(config: Mapping[str, Any], family: str, layers: Any) -> list[int] | None:  # noqa: ANN401 - any JSON value
    """Return the places of the layers that attend to all tokens, where a configuration says so."""
    kinds, places = config.get("layer_types") or config.get("attention_layers"), config.get("full_attn_idxs")
    every = config.get("global_attn_every_n_layers", 3)
    if isinstance(kinds, list):
        return [place for place, kind in enumerate(kinds) if kind in WIDE]
    if family == "modernbert" and isinstance(layers, int) and isinstance(every, int) and every > 0:
        return [place for place in range(layers) if place % every == 0]
    return places if isinstance(places, list) and all(isinstance(place, int) and place >= 0 for place in places) else None


def _adjusted(width: Any, config: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any JSON value
    """Return the width of a feed-forward layer of LFM2: two thirds of the stated one, to the next multiple of a number, unless it says no."""
    multiple = config.get("block_multiple_of") or 256
    if config.get("block_auto_adjust_ff_dim") is False or not (isinstance(width, int) and isinstance(multiple, int)):
        return width
    return math.ceil(math.floor(2 * width / 3) / multiple) * multiple


def model_of_size(cards: Iterable[ModelCard], name: str) -> ModelCard | None:
    """Return the model of the median work among those that a size such as `13B` stands for; None for a name that is no size.

    It stands for the dense decoders that only attend and are called so, else for those of about that size; for current ones, if there are any.
    """
    size = re.fullmatch(SIZE, name.strip().lower())
    if size is None:
        return None
    parameters, word = float(size[1]) * UNITS[size[2]], size[1] + size[2]
    dense = [card for card in cards if not (card.experts or FAMILIES[card.family].encoder or special_mixers(card))]
    near = [card for card in dense if word in card.name.lower().replace(",", " ").split()]
    near = near or [card for card in dense if parameters / CLOSE <= count_parameters(card).total <= parameters * CLOSE]
    if not near:
        raise TunemarkError("--model", name.strip(), "no known model has about this size; name one, or give its config.json")
    current = [card for card in near if card.context_length >= CURRENT_CONTEXT] or near
    ordered = sorted(current, key=lambda card: (count_parameters(card).matrix_multiplied, -len(card.name.split()), card.key))
    median = count_parameters(ordered[len(ordered) // 2]).matrix_multiplied
    return [card for card in ordered if count_parameters(card).matrix_multiplied == median][-1]


def size_in_words(card: ModelCard, name: str) -> str:
    """Return the name of the model of a size, which says that it stands for others."""
    return f"a model of {name.strip()}, such as {card.name}"
