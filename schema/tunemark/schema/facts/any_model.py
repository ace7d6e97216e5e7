"""Models that a question may name without a card: a `config.json` of the hub, a folder with one, or a size such as `13B`."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.facts.fact_base import FactBase, validated
from tunemark.schema.physics.architecture import FAMILIES, count_parameters
from tunemark.schema.safe_text import terminal

CONFIG_FIELDS = {
    "hidden_size": "hidden_size",
    "n_embd": "hidden_size",
    "intermediate_size": "intermediate_size",
    "n_inner": "intermediate_size",
    "moe_intermediate_size": "intermediate_size",
    "num_hidden_layers": "layers",
    "n_layer": "layers",
    "num_attention_heads": "attention_heads",
    "n_head": "attention_heads",
    "num_key_value_heads": "key_value_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocabulary",
    "max_position_embeddings": "context_length",
    "n_positions": "context_length",
    "tie_word_embeddings": "tied_embeddings",
    "sliding_window": "sliding_window",
    "num_experts": "experts",
    "num_local_experts": "experts",
    "num_experts_per_tok": "active_experts",
}
"""Name in transformers -> field of the model card. Of several names for one field, a family has one, or the last is that of its experts."""
DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma": {"tied_embeddings": True, "head_dim": 256, "vocabulary": 256_000, "context_length": 8192},
    "gemma2": {"tied_embeddings": True, "head_dim": 256, "vocabulary": 256_000, "context_length": 8192, "full_attention_every": 2},
    "gemma3_text": {
        "tied_embeddings": True,
        "head_dim": 256,
        "vocabulary": 262_208,
        "context_length": 131_072,
        "full_attention_every": 6,
        "attention_heads": 8,
        "key_value_heads": 4,
    },
    "olmo3": {"full_attention_every": 4},
    "smollm3": {"tied_embeddings": True},
    "gpt2": {"tied_embeddings": True, "vocabulary": 50_257, "context_length": 1024},
}
"""Family -> what its configuration class in transformers 5.23 completes, where files on the hub leave it out and it is not the usual."""
TEXT_PART = {"gemma3": "gemma3_text"}
"""Model type -> that of its language model."""
SIZE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) ?([bm])", re.IGNORECASE)
UNITS = {"b": 1e9, "m": 1e6}
CLOSE = 1.15
"""Models whose sizes differ by at most this factor have one size in words: 6.7e9 and 7.2e9 parameters are "7B"."""


def any_model(facts: FactBase, name: str) -> ModelCard:
    """Return the card of a model by key, alias or hub id; or that of a configuration file, of a folder with one, or of a size.

    Raises TunemarkError for an unknown name, and for a configuration without the needed keys or of another architecture.
    """
    size = SIZE.fullmatch(name.strip())
    if size:
        return _median_of_size(facts, name.strip(), float(size[1]) * UNITS[size[2].lower()])
    if facts.find_model(name) is None:
        if name.endswith(".json"):
            return card_of_config(Path(name))
        # os.path raises no error for a name that is too long.
        if name and os.path.isfile(os.path.join(name, "config.json")):  # noqa: PTH113, PTH118
            return card_of_config(Path(name) / "config.json")
    return facts.model(name)


def card_of_config(path: Path) -> ModelCard:
    """Return the card of a configuration file of transformers; of a model with several parts, that of its language model."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TunemarkError("--model", str(path), f"is no configuration of a model: {error}") from error
    if not isinstance(content, dict):
        raise TunemarkError("--model", str(path), "is no configuration of a model: it holds no keys")
    part = content["text_config"] if isinstance(content.get("text_config"), dict) else content
    kind = str(part.get("model_type") or content.get("model_type"))
    family = TEXT_PART.get(kind, kind)
    if family not in FAMILIES:
        raise TunemarkError(f"{path}: model_type", kind, f"the work of this architecture is not known; known: {', '.join(FAMILIES)}")
    fields = DEFAULTS.get(family, {}) | {ours: part[theirs] for theirs, ours in CONFIG_FIELDS.items() if part.get(theirs) is not None}
    missing = [ours for ours in ("hidden_size", "layers", "attention_heads", "vocabulary", "context_length") if ours not in fields]
    if missing:
        names = " or ".join(theirs for theirs, ours in CONFIG_FIELDS.items() if ours == missing[0])
        raise TunemarkError(f"{path}: {names}", None, "is missing; give the configuration that lies beside the weights")
    stem = re.sub(r"[^a-z0-9.]+", "-", path.resolve().parent.name.lower())[:80].strip("-.") or "model"
    made = _completed(fields, part) | {
        "key": stem,
        "name": terminal(str(content.get("_name_or_path") or stem))[:80],
        "family": family,
        "source": path.name,
    }
    return validated(ModelCard, made, str(path))


def _completed(fields: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with what follows where a configuration leaves them out, as transformers completes them."""
    full = dict(fields)
    if all(isinstance(full[name], int) and full[name] > 0 for name in ("hidden_size", "attention_heads")):
        full.setdefault("head_dim", full["hidden_size"] // full["attention_heads"])
        full.setdefault("intermediate_size", 4 * full["hidden_size"])
    full.setdefault("key_value_heads", full["attention_heads"])
    windows, context = full.get("sliding_window"), full["context_length"]
    if config.get("use_sliding_window") is False or (isinstance(windows, int) and isinstance(context, int) and windows >= context):
        full.pop("sliding_window", None)
    elif windows and isinstance(kinds := config.get("layer_types"), list):
        full["full_attention_every"] = len(kinds) // kinds.count("full_attention") if "full_attention" in kinds else None
    elif windows and config.get("sliding_window_pattern"):
        full["full_attention_every"] = config["sliding_window_pattern"]
    if not full.get("sliding_window"):
        full.pop("full_attention_every", None)
    return full


def _median_of_size(facts: FactBase, name: str, parameters: float) -> ModelCard:
    """Return the dense decoder of the median work among those of a size, under a name that says so."""
    dense = [card for card in facts.models.values() if not card.experts and not FAMILIES[card.family].encoder]
    near = [card for card in dense if parameters / CLOSE <= count_parameters(card).total <= parameters * CLOSE]
    if not near:
        raise TunemarkError("--model", name, "no known model has about this size; name one, or give its config.json")
    median = sorted(near, key=lambda card: (count_parameters(card).matrix_multiplied, card.key))[len(near) // 2]
    return median.model_copy(update={"name": f"a model of {name}, such as {median.name}"})
