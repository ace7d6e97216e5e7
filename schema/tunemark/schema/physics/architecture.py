"""Architecture: parameter counts, linear layers and adapter targets of a model, from the numbers on its card.

Shapes and names are those of the transformers implementation of each family. A test compares them with the models that
transformers builds on the meta device.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.cards import TAKEN_FOR_EXPERTS, WITHOUT_WINDOW, ModelCard
from tunemark.schema.physics.families import BARE_EXPERTS, CONVOLUTION, FAMILIES, NAMES, TOKEN_TABLES, Mixer, Traits
from tunemark.schema.vocabulary import USUAL_LAYERS


@dataclass(frozen=True, slots=True)
class Block:
    """What a block of a model is made of."""

    place: int
    mixer: Mixer
    """How it mixes tokens."""
    mixed: bool
    """True if it has experts."""
    sharing: bool
    """True if it attends to the keys and values of an earlier block."""
    inner: int
    """Width of its feed-forward layer, of one expert in a mixture; 0 without one."""
    keys: int
    """Heads of keys, and of values."""
    width: int
    """Width of a head of queries or keys."""
    value_width: int

    @property
    def attends(self) -> bool:
        """True if it attends to other tokens, whether to all or to some."""
        return self.mixer in {"attention", "window"}


@lru_cache(maxsize=256)
def blocks_of(card: ModelCard) -> tuple[Block, ...]:
    """Return the blocks of a model."""
    traits, alone = FAMILIES[card.family], card.feed_forward_layers
    blocks: list[Block] = []
    first, every, limits = card.dense_layers or 0, card.mixture_every or 1, card.sliding_window is not None or card.family in WITHOUT_WINDOW
    for place in range(card.layers):
        mixes, feeds = alone is None or place not in alone, alone is None or place in alone
        whole = (place + 1) % (card.full_attention_every or card.layers + 1) == 0
        if card.full_attention_layers is not None:
            whole = place in card.full_attention_layers
        limited = limits and mixes and not whole
        mixed = card.experts is not None and feeds and place >= first and (place - first) % every == 0
        sharing = place >= card.layers - (card.sharing_layers or 0)
        dense = (card.sharing_intermediate_size if sharing else None) or card.dense_intermediate_size or card.intermediate_size
        heads = card.key_value_heads, card.head_dim + (card.rotary_head_dim or 0), card.value_head_dim or card.head_dim
        if card.wide_head_dim and not limited:
            heads = card.wide_key_value_heads or card.key_value_heads, card.wide_head_dim, card.wide_head_dim
        inner = 0 if not feeds else card.intermediate_size if mixed else dense
        blocks.append(Block(place, "none" if not mixes else traits.limited if limited else "attention", mixed, sharing, inner, *heads))
    return tuple(blocks)


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters by function. `total` is the size of a checkpoint, with tied weights counted once."""

    embedding: int
    """Look-up tables: tokens, positions, token types."""
    attention: int
    """Weights of the matrices around attention, states and convolutions."""
    feed_forward: int
    """Weights of all feed-forward layers, every expert of a mixture."""
    active_feed_forward: int
    """Weights of the feed-forward layers used by one token."""
    experts: int
    """Those of the feed-forward layers that are experts."""
    router: int
    """Weights of the expert router."""
    head: int
    """Weights of the output projection, or of an encoder's pooler."""
    tied_head: bool
    """True if the output projection is tied to the embedding, and therefore counted there."""
    vectors: int
    """Norms and biases."""

    @property
    def total(self) -> int:
        """Return all parameters."""
        head = 0 if self.tied_head else self.head
        return self.embedding + self.attention + self.feed_forward + self.router + head + self.vectors

    @property
    def matrix_multiplied(self) -> int:
        """Return N_mm: weights in matrix products, the head once, active experts only. See definitions#model-flops."""
        return self.attention + self.active_feed_forward + self.router + self.head


@lru_cache(maxsize=256)
def count_parameters(card: ModelCard) -> ParameterCount:
    """Count the parameters of a model from its card."""
    traits, hidden, linears = FAMILIES[card.family], card.hidden_size, block_linears(card)
    embedding = card.vocabulary * hidden
    positions = (card.context_length + traits.spare_positions) * hidden if traits.learned_positions else 0
    feed_forward = [linear for linear in linears if linear.part in {"feed_forward", "experts"}]
    per_layer = card.vocabulary * card.layers * (card.per_layer_width or 0)
    return ParameterCount(
        embedding=embedding + per_layer + positions + (traits.token_types + traits.relative_positions) * hidden,
        attention=sum(linear.weights * linear.times() for linear in linears if linear.part == "attention"),
        feed_forward=sum(linear.weights * linear.times() for linear in feed_forward),
        active_feed_forward=sum(linear.active_weights * linear.times() for linear in feed_forward),
        experts=sum(linear.weights * linear.times() for linear in linears if linear.part == "experts"),
        router=sum(linear.weights * linear.times() for linear in linears if linear.part == "router"),
        head=hidden * hidden if traits.encoder else embedding,
        tied_head=card.tied_embeddings and not traits.encoder,
        vectors=_vectors(card, traits),
    )


def _vectors(card: ModelCard, traits: Traits) -> int:
    norm = card.hidden_size * (0 if traits.bare_norms else 2 if traits.norm_bias else 1)
    inward = [linear.path for linear in block_linears(card) if linear.after_norm and traits.query_key_value_bias]
    biased = [linear for linear in block_linears(card) if traits.linear_bias or linear.path in (*inward, *traits.biased)]
    biases = sum(linear.outputs * linear.copies * linear.times() for linear in biased)
    others = traits.learned_activation + (card.attention_heads if traits.sinks else 0)
    if traits.router_scaled and card.experts:
        # Three more norms: around the experts, and after the layer for all tokens.
        others += 4 * card.hidden_size + card.experts
    attention = sum(_vectors_of_attention(card, traits, block) for block in blocks_of(card))
    if card.per_layer_width:
        others += norm
    head = (card.hidden_size if traits.encoder else card.vocabulary) if traits.head_bias else 0
    choosing = sum(block.mixed for block in blocks_of(card)) * (card.experts or 0) if traits.router_bias else 0
    blocks = card.layers * (traits.norms_per_layer * norm + others) + attention + biases + (card.per_layer_width or 0)
    return blocks + traits.outer_norms * norm + head + choosing


def _vectors_of_attention(card: ModelCard, traits: Traits, block: Block) -> int:
    """Return the norms of queries, keys and ranks; the convolution of others; and of those with a state a norm and numbers per head of values."""
    if block.attends:
        if block.sharing:
            return block.width
        normed = {"head": 2, "all": card.attention_heads + block.keys}.get(traits.query_key_norm, 0)
        return normed * block.width + (card.query_rank or 0) + (card.key_value_rank or 0)
    keys, values = widths_of_state(card)
    convolved = CONVOLUTION.get(block.mixer, 0)
    if block.mixer == "state space":
        return (convolved + 1) * (2 * keys + values) + values + 3 * (card.linear_value_heads or 0)
    if block.mixer == "delta rule":
        return convolved * (2 * keys + values) + (card.linear_head_dim or 0) + 2 * (card.linear_value_heads or 0)
    return convolved * card.hidden_size


@lru_cache(maxsize=256)
def special_mixers(card: ModelCard) -> tuple[tuple[str, float], ...]:
    """Return the kinds of blocks whose kernels are not those of plain attention, and the share of the blocks that have each."""
    mixers = [block.mixer for block in blocks_of(card)]
    if FAMILIES[card.family].relative_positions:
        return (("relative positions", 1.0),)
    special = [mixer for mixer in sorted(set(mixers)) if mixer not in {"attention", "window", "none"}]
    return tuple((mixer, mixers.count(mixer) / card.layers) for mixer in special)


def widths_of_state(card: ModelCard) -> tuple[int, int]:
    """Return the width of all queries or keys, and that of all values, of blocks that keep a state."""
    width = card.linear_head_dim or 0
    return (card.linear_key_heads or 0) * (card.state_size or width), (card.linear_value_heads or 0) * width


def parts_of_block(card: ModelCard) -> int:
    """Return 2 for blocks that mix tokens and have a feed-forward layer, 1 for those that do one of both."""
    return 1 if card.feed_forward_layers else 2


@lru_cache(maxsize=256)
def block_kinds(card: ModelCard) -> tuple[tuple[Block, ...], ...]:
    """Return the blocks by kind: those of a kind have the same layers."""
    return _by_kind(card, experts=True)


def _by_kind(card: ModelCard, *, experts: bool) -> tuple[tuple[Block, ...], ...]:
    # Whether their layers differ by the way in which they mix tokens.
    apart = bool(card.wide_head_dim) or card.family in WITHOUT_WINDOW
    kinds: dict[tuple[bool, str, bool], list[Block]] = {}
    for block in blocks_of(card):
        kinds.setdefault((experts and block.mixed, block.mixer if apart else "", block.sharing), []).append(block)
    return tuple(tuple(blocks) for blocks in kinds.values())


def inner_width(card: ModelCard, block: Block, *, grouped: bool = False) -> int:
    """Return the width of the feed-forward layers that a token is multiplied with in a block; for `grouped` see `experts_run`."""
    return block.inner * (experts_run(card, grouped=grouped) + (card.shared_experts or 0) if block.mixed else 1)


def experts_run(card: ModelCard, *, grouped: bool = False) -> int:
    """Return the number of experts that transformers multiplies each token with, or loops that group the tokens of each expert."""
    return (card.experts if FAMILIES[card.family].every_expert and not grouped else card.active_experts) or 1


def idle_experts(card: ModelCard) -> float:
    """Return the FLOPs that transformers spends on experts that were not chosen, per model FLOP of the matrices of the blocks."""
    experts = [linear for linear in block_linears(card) if linear.part == "experts"]
    idle = sum(linear.inputs * linear.outputs * (experts_run(card) - linear.active) * linear.times() for linear in experts)
    return idle / sum(linear.active_weights * linear.times() for linear in block_linears(card))


Part = Literal["attention", "feed_forward", "experts", "router"]


@dataclass(frozen=True, slots=True)
class Linear:
    """A weight matrix that tokens are multiplied with."""

    path: str
    inputs: int
    outputs: int
    part: Part
    after_norm: bool = False
    """True if its input is the normed input of the block. Without trained layers before, it needs no input gradient."""
    blocks: tuple[int, ...] = ()
    """Places of the blocks that have it."""
    copies: int = 1
    """Copies per block: one, or one per expert."""
    active: int = 1
    """Copies used by one token."""
    positions: int = 0
    """Rows of relative positions that it is multiplied with in each micro-step, beside the tokens."""

    def times(self) -> int:
        """Return the number of blocks that have it."""
        return len(self.blocks)

    @property
    def weights(self) -> int:
        """Weights of all copies."""
        return self.inputs * self.outputs * self.copies

    @property
    def active_weights(self) -> int:
        """Weights multiplied with one token."""
        return self.inputs * self.outputs * self.active


@lru_cache(maxsize=256)
def block_linears(card: ModelCard) -> tuple[Linear, ...]:
    """Return the linear layers of the blocks in the order of a forward pass."""
    return _attention(card) + _feed_forward(card)


JOINED = dict.fromkeys(("gate_proj", "up_proj", "w1", "w3"), "gate_up_proj") | {"w2": "down_proj"}
"""Matrices of experts in transformers 4 -> what they are in transformers 5; peft 0.21 reads the old names so (`_convert_peft_config_moe`)."""


@lru_cache(maxsize=256)
def adapted_linears(card: ModelCard, targets: tuple[str, ...]) -> tuple[Linear, ...]:
    """Return the linear layers of the blocks that get an adapter. Names match as in peft: whole, or as the end of a dotted path; `attention` is a group.

    Raises TunemarkError if a target names no linear layer of the family, or a layer outside the blocks that is not counted.
    """
    linears, outside = block_linears(card), NAMES[card.family].outside
    targets = tuple(name for target in targets for name in (group(card, "attention") if target == "attention" else (target,)))
    names = sorted({end for linear in linears for end in endings(linear.path)})
    targets = tuple(target if target in names else JOINED.get(target, target) for target in targets)
    for target in targets:
        if target in {*names, *_token_tables(card)}:
            continue
        if target in outside:
            raise TunemarkError("lora_targets", target, "adapters on this layer outside of the blocks are not counted in this version")
        raise TunemarkError("lora_targets", target, f"no linear layer of family {card.family!r}; {did_you_mean(target, names)}")
    return tuple(linear for linear in linears if set(endings(linear.path)) & set(targets))


def adapts_tokens(card: ModelCard, targets: tuple[str, ...]) -> bool:
    """Return True if the token embedding gets an adapter."""
    return bool(_token_tables(card) & set(targets))


def _token_tables(card: ModelCard) -> set[str]:
    return set(TOKEN_TABLES) & set(NAMES[card.family].outside)


@lru_cache(maxsize=256)
def all_linears(card: ModelCard) -> tuple[Linear, ...]:
    """Return the linear layers of the blocks that peft's `all-linear` gives an adapter, without the router."""
    left_out = ("router", "experts") if card.family in BARE_EXPERTS else ("router",)
    return tuple(linear for linear in block_linears(card) if linear.part not in left_out and linear.path not in NAMES[card.family].refused)


def endings(path: str) -> tuple[str, ...]:
    """Return the names that match a layer, from its full path to its last word."""
    parts = path.split(".")
    return tuple(".".join(parts[index:]) for index in range(len(parts)))


Widths = list[tuple[str, int, int, bool]]
"""Name, inputs, outputs, and True if the input is the normed input of the block."""


def _attention(card: ModelCard) -> tuple[Linear, ...]:
    names, positions = NAMES[card.family].attention, FAMILIES[card.family].relative_positions
    return tuple(
        Linear(name, inputs, outputs, "attention", first, places(kind), positions=positions if name in names[:2] else 0)
        for kind in _by_kind(card, experts=False)
        for name, inputs, outputs, first in _widths(card, kind[0])
    )


def places(blocks: Iterable[Block]) -> tuple[int, ...]:
    """Return the places of blocks."""
    return tuple(block.place for block in blocks)


def _widths(card: ModelCard, block: Block) -> Widths:
    if block.mixer == "none":
        return []
    if block.mixer == "convolution":
        (inward, output), hidden = NAMES[card.family].state, card.hidden_size
        # The tokens, and the gates before and after the convolution.
        return [(inward, hidden, 3 * hidden, True), (output, hidden, hidden, False)]
    if not block.attends:
        return _of_state(card)
    return _latent(card, block) if card.key_value_rank else _of_heads(card, block)


def _of_heads(card: ModelCard, block: Block) -> Widths:
    hidden, names = card.hidden_size, NAMES[card.family].attention
    queries, keys = card.attention_heads * block.width * (2 if FAMILIES[card.family].gated_attention else 1), block.keys * block.width
    widths = (queries + 2 * keys,) if len(names) == 2 else (queries, keys, keys)  # noqa: PLR2004 - a fused layer, and the output
    inward = [(name, hidden, width, True) for name, width in zip(names[:-1], widths, strict=True)]
    # The keys of wide heads of their own are the values, too.
    own = 1 if block.sharing else 2 if card.wide_key_value_heads and block.mixer == "attention" else len(inward)
    return [*inward[:own], (names[-1], card.attention_heads * block.value_width, hidden, False)]


def _latent(card: ModelCard, block: Block) -> Widths:
    hidden, rank = card.hidden_size, card.key_value_rank or 0
    whole, query_down, query_up, down, up, output = NAMES[card.family].attention
    queries, values = card.attention_heads * block.width, card.attention_heads * block.value_width
    of_rank = [(query_down, hidden, card.query_rank or 0, True), (query_up, card.query_rank or 0, queries, False)]
    inward = of_rank if card.query_rank else [(whole, hidden, queries, True)]
    inward += [(down, hidden, rank + (card.rotary_head_dim or 0), True), (up, rank, card.attention_heads * card.head_dim + values, False)]
    return [*inward, (output, values, hidden, False)]


def _of_state(card: ModelCard) -> Widths:
    hidden, names, (keys, values), heads = card.hidden_size, NAMES[card.family].state, widths_of_state(card), card.linear_value_heads or 0
    if card.state_size:
        return [(names[0], hidden, 2 * keys + 2 * values + heads, True), (names[1], values, hidden, False)]
    fused = len(names) == 3  # noqa: PLR2004 - two layers, and the output
    widths = (2 * keys + 2 * values, 2 * heads) if fused else (2 * keys + values, values, heads, heads)
    return [*((name, hidden, width, True) for name, width in zip(names[:-1], widths, strict=True)), (names[-1], values, hidden, False)]


def _feed_forward(card: ModelCard) -> tuple[Linear, ...]:
    names, inner, blocks = NAMES[card.family], card.intermediate_size, blocks_of(card)
    mixed = places(block for block in blocks if block.mixed)
    dense = {block.inner: places(each for each in blocks if each.inner == block.inner and not each.mixed) for block in blocks}
    router: tuple[Linear, ...] = (
        (Linear(names.router, card.hidden_size, card.experts, "router", blocks=mixed),) if names.router and card.experts else ()
    )
    if FAMILIES[card.family].gated_expert:
        router += (Linear("mlp.shared_expert_gate", card.hidden_size, 1, "router", blocks=mixed),)
    experts = _projections(card, names.experts, inner, mixed, copies=card.experts or 1, active=card.active_experts or 1)
    shared = _projections(card, names.shared, (card.shared_experts or 0) * inner, mixed)
    plain = [each for width, those in dense.items() if width for each in _projections(card, names.feed_forward, width, those)]
    return (*plain, *router, *experts, *shared, *_per_layer(card))


def _per_layer(card: ModelCard) -> tuple[Linear, ...]:
    """Return the layers of the embeddings for each layer; the first of them, outside the blocks, counts as one of the first block."""
    width, hidden, blocks = card.per_layer_width, card.hidden_size, tuple(range(card.layers))
    if width is None:
        return ()
    return (
        Linear("per_layer_model_projection", hidden, card.layers * width, "feed_forward", after_norm=True, blocks=blocks[:1]),
        Linear("per_layer_input_gate", hidden, width, "feed_forward", blocks=blocks),
        Linear("per_layer_projection", width, hidden, "feed_forward", blocks=blocks),
    )


def _projections(
    card: ModelCard, names: tuple[str, ...], inner: int, blocks: tuple[int, ...], *, copies: int = 1, active: int = 1
) -> tuple[Linear, ...]:
    if not names or not blocks:
        return ()
    # A fused gate and up matrix has twice the width.
    width = 2 * inner if FAMILIES[card.family].gated and len(names) == 2 else inner  # noqa: PLR2004
    layers = [*((name, card.hidden_size, width) for name in names[:-1]), (names[-1], inner, card.hidden_size)]
    part: Part = "experts" if names == NAMES[card.family].experts else "feed_forward"
    parallel = FAMILIES[card.family].parallel
    return tuple(
        Linear(name, inputs, outputs, part, parallel and name != names[-1], blocks, copies=copies, active=active)
        for name, inputs, outputs in layers
    )


GROUPS = ("all-linear", "attention")
"""Names of groups of layers: all linear layers of a block, or only those of attention."""


def targets_in(card: ModelCard, asked: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names by which peft finds the requested layers in a model.

    Raises TunemarkError for a name that matches no layer that can have an adapter, with the names that do.
    """
    if asked == USUAL_LAYERS:
        return group(card, "all-linear")
    known = layer_names(card)
    names: list[str] = []
    for name in asked:
        if name not in (*GROUPS, *known):
            layers = ", ".join((*group(card, "all-linear"), *NAMES[card.family].outside))
            fix = f"{card.key} has no layer of this name that can have an adapter; use {layers}, or a group: {' or '.join(GROUPS)}"
            raise TunemarkError("lora.target_modules", name, fix)
        names.extend(group(card, name) if name in GROUPS else (name,))
    return tuple(dict.fromkeys(names))


def group(card: ModelCard, which: str) -> tuple[str, ...]:
    """Return the names of a group of layers, each as short as is unique in a block."""
    return tuple(dict.fromkeys(_short(card, linear) for linear in _adaptable(card) if which == "all-linear" or linear.part == "attention"))


def layer_names(card: ModelCard) -> tuple[str, ...]:
    """Return all names that match layers in peft: ends of paths inside blocks, and layers outside."""
    outside = NAMES[card.family].outside
    inside = {end for linear in _adaptable(card) for end in endings(linear.path)}
    return (*sorted(inside - {end for path in outside for end in endings(path)}), *outside)


def _adaptable(card: ModelCard) -> Iterator[Linear]:
    """Yield the linear layers that can have an adapter by name."""
    parts = {"attention"} if card.family in TAKEN_FOR_EXPERTS else {"attention", "feed_forward"}
    return (linear for linear in block_linears(card) if linear.part in parts and linear.path not in NAMES[card.family].refused)


def _short(card: ModelCard, linear: Linear) -> str:
    names = NAMES[card.family]
    others = {end for other in block_linears(card) if other.path != linear.path for end in endings(other.path)}
    others |= {*names.outside, *names.ambiguous}
    alone = [end for end in endings(linear.path) if end not in others]
    # If even the full path is the end of another, both are in the group.
    return alone[-1] if alone else linear.path
