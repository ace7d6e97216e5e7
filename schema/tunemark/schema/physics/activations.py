"""Activations: what autograd keeps of one block, the temporary tensors of its forward and backward.

Counted from the computations of transformers' blocks and peft's adapters. A test compares them with what autograd saves.
"""

from dataclasses import dataclass

from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.physics import architecture
from tunemark.schema.physics.families import FAMILIES, NAMES, SCAN_CHUNK, STATE_CHUNK, Traits
from tunemark.schema.physics.training_shape import BYTES, TrainingShape
from tunemark.schema.vocabulary import Checkpointing, Method

FP32, INDEX = 4, 8
MASK = 1
"""Bytes per number of a dropout mask on an accelerator."""


@dataclass(frozen=True, slots=True)
class BlockActivations:
    """Bytes of one block for all slots of a micro-batch."""

    input: int
    """The block's input in the residual stream, which full checkpointing keeps."""
    saved: int
    """Kept by autograd for the backward pass."""
    products: int
    """The part of `saved` that are results of matrix products and attention, which selective checkpointing keeps."""
    backward: int
    """Temporary peak of the backward pass in addition to `saved`."""
    formula: str
    """Bytes per token of the parts of `saved`."""


def block_activations(shape: TrainingShape, place: int = -1) -> BlockActivations:
    """Return the activations of one block, by default the last one: in a mixture, of one with experts."""
    slots, parts = shape.slots, _parts(shape, architecture.blocks_of(shape.model)[place])
    saved = parts.norms + parts.attention + parts.feed_forward + parts.adapters
    formula = f"{slots:,} tokens x ({parts.norms:,.0f} norms + {parts.attention:,.0f} attention + {parts.feed_forward:,.0f} feed-forward + {parts.adapters:,.0f} adapters) bytes"
    if shape.compiled:
        # Normed queries and keys are kept beside the results that the norms read.
        results = parts.output + parts.matrix_results + (parts.queries + parts.keys if parts.traits.query_key_norm else 0)
        saved = min(saved, results + parts.matrix_inputs)
        formula = f"{slots:,} tokens x ({results:,.0f} results + {parts.matrix_inputs:,.0f} inputs of matrix products) bytes"
    merged, widest = parts.merged
    return BlockActivations(
        input=int(slots * parts.hidden),
        saved=int(slots * saved) + merged,
        products=int(slots * (parts.output + shape.kept_products * parts.matrix_results)),
        backward=max(int(slots * parts.backward), widest),
        formula=formula + (f", and {merged:,} bytes of experts with their adapters added" if merged else ""),
    )


def _parts(shape: TrainingShape, block: architecture.Block) -> "_Parts":
    card, ranks, attended = shape.model, shape.tensor_parallel, BYTES[shape.logits]
    size, product = BYTES[shape.activations], BYTES[shape.products]
    return _Parts(
        shape=shape,
        block=block,
        card=card,
        traits=FAMILIES[card.family],
        trained=shape.method is Method.FULL,
        adapted=[each for each in shape.adapted if block.place in each.blocks and not (shape.fused_experts and each.part == "experts")],
        size=size,
        product=product,
        attended=attended,
        hidden=size * card.hidden_size / shape.residual_share,
        inner=product * architecture.inner_width(card, block) / ranks,
        queries=attended * card.attention_heads * block.width / ranks,
        output=attended * card.attention_heads * block.value_width / ranks,
        expanded=attended * card.attention_heads * (card.head_dim + block.value_width) / ranks if card.key_value_rank else 0,
        keys=0 if block.sharing else attended * block.keys * block.width / ranks,
        ranks_of_attention=(card.query_rank or 0) + (card.key_value_rank or 0),
    )


def activations_by_kind(shape: TrainingShape) -> list[tuple[int, BlockActivations]]:
    """Return, for each kind of block, their number and the activations of one."""
    return [(len(kind), block_activations(shape, kind[0].place)) for kind in architecture.block_kinds(shape.model)]


@dataclass(frozen=True, slots=True)
class _Parts:
    """Bytes per token."""

    shape: TrainingShape
    block: architecture.Block
    card: ModelCard
    traits: Traits
    """How the blocks of its family differ."""
    trained: bool
    """True if the matrices are trained."""
    adapted: list[architecture.Linear]
    """Linear layers of the block with an adapter of their own, which multiplies the tokens."""
    size: float
    """Bytes of a number of the residual stream."""
    product: float
    """Bytes of a number of a matrix product."""
    attended: float
    """Bytes of a number that attention reads and returns; autocast also converts results of 4-bit matrices."""
    hidden: float
    """The residual stream."""
    inner: float
    """The inner width of the feed-forward layers that a token uses."""
    queries: float
    output: float
    expanded: float
    """Keys without positions together with values, which one product gives; 0 unless they have a rank."""
    keys: float
    """Keys, or values that are as wide; 0 where they are those of another block."""
    ranks_of_attention: int
    """Widths of the normed vectors from which queries, and keys and values, are computed."""

    @property
    def merged(self) -> tuple[int, int]:
        """Bytes of the sums of experts and their adapters, and of the gradient of the largest; they do not depend on the tokens."""
        size, ranks = int(BYTES[self.shape.activations]), self.shape.tensor_parallel
        experts = [linear for linear in self.shape.adapted if linear.part == "experts" and self.block.place in linear.blocks]
        sums = [size * linear.weights // ranks for linear in experts if self.shape.fused_experts]
        return sum(sums), max(sums, default=0)

    @property
    def sums(self) -> int:
        """Sums on the residual stream: one for each part of the block, unless both are one."""
        return 1 if self.traits.parallel else architecture.parts_of_block(self.card)

    @property
    def at_once(self) -> bool:
        """True if one product is that of all experts; else they run one after the other, each on its share of the tokens."""
        return self.traits.every_expert or self.shape.fused_experts or self.shape.grouped_experts

    @property
    def inner_at_once(self) -> float:
        """The same of the experts that run at once."""
        if not self.block.mixed or self.at_once:
            return self.inner
        shared = self.product * self.card.intermediate_size * (self.card.shared_experts or 0) / self.shape.tensor_parallel
        return max(shared, (self.inner - shared) / (self.card.experts or 1))

    @property
    def norms(self) -> float:
        """Inputs of the norms (in fp32 if the code casts them), and normed outputs if their weights or the next matrices are trained."""
        card, per_layer = self.card, self.traits.norms_per_layer + (1 if self.card.per_layer_width else 0)
        if self.traits.layer_norm:
            # torch's own layer norm keeps its input; its output feeds the trained matrices.
            return per_layer * self.hidden * (2 if self.trained else 1)
        normed = 0 if self.traits.bare_norms else FP32 if self.traits.norms_scaled_in_fp32 else self.size
        once = FP32 * (2 if self.traits.norms_centred else 1) + (normed if self.trained else 0)
        once = self.size if self.shape.fused_blocks else once
        heads = (self.card.attention_heads + self.block.keys) * self.block.width / self.shape.tensor_parallel
        extra = heads * (FP32 if self.traits.query_key_norm == "unit" else once) if self.traits.query_key_norm and self.block.attends else 0
        extra += self.keys / self.attended * FP32 if self.traits.value_norm else 0
        if self.traits.router_scaled and self.block.mixed:
            # Around the experts and after the layer for all tokens, and that of the router, with what its scaling keeps.
            per_layer += 3
            extra += card.hidden_size * (FP32 + (2 * self.size if self.trained else 0))
        extra += self.ranks_of_attention * (once + (self.product if self.trained else 0))
        # Gemma also norms the outputs of attention and feed-forward; those feed no matrix.
        results = self.sums * self.hidden if self.trained else 0
        return per_layer * self.hidden / self.size * once + results + extra

    @property
    def in_state(self) -> float:
        """What blocks with a state keep in fp32 in transformers' own code, which pads what it cuts into chunks.

        The gated delta rule: thirteen tensors as wide as the values, five of scores within a chunk, and a state per chunk. Mamba-2: ten as wide
        as the values, five as wide as the keys of all heads, three of scores, and two states.
        """
        heads, width = (self.card.linear_value_heads or 0) / self.shape.tensor_parallel, self.card.linear_head_dim or 0
        if self.block.mixer == "state space":
            padded = -(-self.shape.sequence_length // SCAN_CHUNK) * SCAN_CHUNK / self.shape.sequence_length
            state = self.card.state_size or 0
            return FP32 * heads * (7 * width + padded * (3 * width + 5 * state + 3 * SCAN_CHUNK + 2 * width * state / SCAN_CHUNK))
        return FP32 * heads * (13 * width + 5 * STATE_CHUNK + width * width / STATE_CHUNK)

    @property
    def attention(self) -> float:
        """Queries, keys, values, output and one fp32 number per head; eager attention also keeps its scores."""
        if self.block.mixer == "none":
            return 0
        if self.block.mixer == "convolution":
            # Both gates and the tokens, their product with the first gate, the result, and the input of the last matrix.
            return (5 + self.trained) * self.product * self.card.hidden_size / self.shape.tensor_parallel
        if not self.block.attends:
            # Before and after the convolution, the normed and the gated output, and the input of the last matrix.
            keys, values = architecture.widths_of_state(self.card)
            if self.block.mixer == "state space":
                # The product, the result of the convolution, and the input of the last matrix.
                return self.in_state + self.product * (4 * keys + (3 + self.trained) * values) / self.shape.tensor_parallel
            return self.in_state + self.product * (2 * (2 * keys + values) + (2 + self.trained) * values) / self.shape.tensor_parallel
        card, heads = self.card, self.card.attention_heads / self.shape.tensor_parallel
        base = self.queries + self.output + FP32 * heads + (self.queries + self.expanded if self.expanded else 2 * self.keys)
        if self.traits.gated_attention:
            base += self.output * (1 + self.trained)
        if len(NAMES[card.family].attention) == 2 and not (self.traits.learned_positions or self.traits.alibi):  # noqa: PLR2004 - a fused layer, and the output
            # Queries and keys are rotated, and the values are a view of the fused projection, which is therefore kept whole.
            base += self.queries + self.keys
        if self.shape.attention != "eager":
            return base
        if self.traits.relative_positions:
            return base + self.by_distance
        casts = 0 if self.attended == FP32 else self.attended
        capped = self.product if card.family == "gemma2" else 0
        each = self.dropped_out if self.traits.drops_out else FP32 + casts + capped
        # OPT does not drop scores out, and the softmax of StarCoder is in fp32.
        each = {"opt": FP32 + casts, "gpt_bigcode": FP32 + casts + MASK}.get(card.family, each)
        return base + heads * self.shape.sequence_length * each

    @property
    def differentiated_scores(self) -> float:
        """What eager attention holds while its softmax, in fp32, is differentiated: gradients of its result and its input, and a third if no cast follows."""
        if self.traits.drops_out or self.traits.relative_positions:
            return self.attention
        kept = FP32 + (0 if self.attended == FP32 else self.attended)
        more = (3 if self.attended == FP32 else 2) * FP32 - kept
        return self.attention + more * self.card.attention_heads / self.shape.tensor_parallel * self.shape.sequence_length

    @property
    def dropped_out(self) -> float:
        """Bytes per score of attention with dropout: the softmax, which autocast runs in fp32, the scores that are left, and the mask."""
        return (FP32 if self.shape.autocast else self.attended) + self.attended + MASK

    @property
    def by_distance(self) -> float:
        """What attention with relative positions keeps besides: scaled keys and the scores, by distance before they are gathered, too.

        The tables of queries and keys are kept for each row, their input and two places for each pair of tokens for each micro-step.
        """
        shape, positions, ranks = self.shape, self.traits.relative_positions, self.shape.tensor_parallel
        scores = self.card.attention_heads / ranks * (shape.sequence_length * self.dropped_out + 2 * positions * self.attended)
        once = positions * self.hidden + 2 * INDEX * shape.sequence_length**2
        return self.keys + scores + 2 * positions * self.queries / shape.sequence_length + once / shape.slots

    @property
    def feed_forward(self) -> float:
        """Gate, activated gate and up, or the single inner width; and the input of the last matrix if that is trained."""
        # GPT-2, Phi and Apertus write their activations in Python, and each intermediate result is kept; so are two masks of Apertus.
        ours = {"opt": 1 - self.trained, "apertus": 3 + 2 * MASK / self.product + self.trained}
        # The ReLU of OPT keeps its result alone.
        steps = 4 if self.card.family in {"gpt2", "gptj", "gpt_neo", "phi"} else ours.get(self.card.family, 1)
        if self.traits.gated:
            steps = 2 if self.shape.fused_blocks else 3
        masks = 2 * MASK * self.card.hidden_size if self.traits.drops_out else 0
        # Nemotron-H adds the results of experts in fp32.
        per_expert = 2 * self.hidden + (FP32 * self.card.hidden_size if self.card.family == "nemotron_h" else 0)
        copies = per_expert * (architecture.experts_run(self.card) + self.traits.gated_expert) if self.block.mixed else 0
        cast = FP32 * self.card.hidden_size if self.block.mixed and self.trained and self.traits.router_in_fp32 else 0
        # The gate, its activation, the embedding and their product; and the input.
        per_layer = self.product * 4 * self.card.per_layer_width + self.hidden if self.card.per_layer_width else 0
        return self.inner * (steps + (1 if self.trained else 0)) + masks + copies + cast + per_layer

    @property
    def adapters(self) -> float:
        """One copy of the input per adapter in the format in which it multiplies, and its dropout mask."""
        size, dropout = BYTES[self.shape.adapter_products], self.shape.lora_dropout > 0
        widths = sum(map(self._read_by, self.adapted))
        if size == self.size == BYTES[self.shape.adapters_at_work] and not dropout:
            # Without cast and dropout, adapters share the tensor that their matrix reads. peft casts to the adapter's format before autocast.
            widths = self.inputs_to_keep
        return widths * (size + (MASK if dropout else 0)) + self.ranks

    @property
    def adapter_inputs(self) -> dict[str, float]:
        """Widths of the different tensors that adapters read, by name: a norm feeds several matrices."""
        hidden, parallel = self.card.hidden_size, self.traits.parallel

        def name(linear: architecture.Linear) -> str:
            normed = linear.after_norm or (linear.part != "attention" and linear.inputs == hidden)
            return f"normed, {'' if parallel else linear.part}" if normed else linear.path

        return {name(linear): self._read_by(linear) for linear in self.adapted}

    def _read_by(self, linear: architecture.Linear) -> float:
        """Width of what a layer with an adapter reads on a device: a part of it, if devices share its inputs or the residual stream."""
        row_parallel = linear.outputs == self.card.hidden_size and not linear.after_norm
        return linear.inputs * linear.active / (self.shape.tensor_parallel if row_parallel else self.shape.residual_share)

    @property
    def inputs_to_keep(self) -> float:
        """Widths of those that are not kept anyway: attention keeps its output."""
        output = "" if self.traits.gated_attention or not self.block.attends else NAMES[self.card.family].attention[-1]
        return sum(width for name, width in self.adapter_inputs.items() if name != output)

    @property
    def ranks(self) -> float:
        """Results of the first matrices of all adapters."""
        return BYTES[self.shape.adapter_products] * self.shape.lora_rank * sum(linear.active for linear in self.adapted)

    @property
    def matrix_results(self) -> float:
        """Outputs of the matrix products."""
        gates = 2 if self.traits.gated else 1
        rest = gates * self.inner + architecture.parts_of_block(self.card) * self.hidden
        if self.block.mixer == "none":
            return rest
        if self.block.mixer == "convolution":
            return 3 * self.product * self.card.hidden_size / self.shape.tensor_parallel + rest
        if not self.block.attends:
            keys, values = architecture.widths_of_state(self.card)
            return self.in_state + self.product * 2 * (keys + values) / self.shape.tensor_parallel + rest
        ranks = self.product * (self.ranks_of_attention + (self.card.rotary_head_dim or 0))
        gate = self.queries if self.traits.gated_attention else 0
        return self.queries + gate + (ranks + self.expanded if self.expanded else 2 * self.keys) + rest

    @property
    def matrix_inputs(self) -> float:
        """Inputs of trained matrices and of adapters that are not results of matrix products themselves."""
        if self.trained:
            return self.sums * self.hidden + self.inner + self.product * self.ranks_of_attention
        size = BYTES[self.shape.adapter_products]
        # A cast makes a tensor of its own of each input.
        kept = self.inputs_to_keep if size == self.product else sum(self.adapter_inputs.values())
        return size * kept + self.ranks

    @property
    def backward(self) -> float:
        """Temporary peak of the last matrices of a block, recomputed or differentiated, in addition to all that it saves.

        Either the gradients of product, gate and up at once, when the input of the last matrix is no longer needed. Or, with the residual
        stream and its norms: the widest adapter's results before and after scaling, when that input is not there yet; or that input, and
        its cast to the format of the adapters where autocast converts it once more.
        """
        shape, ranks = self.shape, self.shape.tensor_parallel
        size, stored = BYTES[shape.adapter_products], BYTES[shape.adapters_at_work]
        adapted = [linear for linear in self.adapted if linear.part != "attention"]
        used = {linear.path: linear.active / (1 if self.at_once else linear.copies) for linear in adapted}
        result = max((linear.outputs * used[linear.path] for linear in adapted), default=0) / ranks
        read = max((linear.inputs * used[linear.path] for linear in adapted), default=0) / ranks
        last = any(linear.outputs == self.card.hidden_size for linear in adapted)
        copied = size * min(self.inner_at_once / self.product, read) if last else 0
        freed = self.inner_at_once if self.trained else copied
        cast = stored if stored not in {size, self.product} else 0
        wide = max(2 * size * result - freed, (self.product + cast) * read)
        forward = 3 * self.hidden / self.size * self.product + wide if adapted else 0
        gradients = (3 if self.traits.gated else 2) * self.inner_at_once - freed
        # The gated delta rule has three tensors as wide as its values beside those that it keeps.
        state = 0 if self.block.mixer == "none" else 3 * FP32 * architecture.widths_of_state(self.card)[1] / ranks
        scores = self.differentiated_scores if shape.attention == "eager" else 0
        return 2 * self.hidden + max(gradients, forward, scores if self.block.attends else state)


def stored_per_block(shape: TrainingShape, block: BlockActivations) -> tuple[int, str]:
    """Return the bytes of one block that are kept until its backward pass, by kind of checkpointing."""
    if shape.checkpointing is Checkpointing.FULL:
        return block.input, f"{shape.slots:,} tokens x {shape.model.hidden_size:,} x {BYTES[shape.activations]:g} bytes: its input"
    if shape.checkpointing is Checkpointing.SELECTIVE:
        share = f"{shape.kept_products:.0%} of " if shape.kept_products < 1 else ""
        return block.input + block.products, f"its input, and {share}the results of matrix products and attention"
    return block.saved, block.formula
