"""The shape of a micro-step: all inputs of the physics, from a plan or from the command line.

Properties of the harness that a plan does not state are set here: checkpointing is not re-entrant, DeepSpeed keeps fp32
master weights of 16-bit ones, and AdamW is fused where torch has it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, cast, get_args

from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.physics.architecture import Linear, adapted_linears, adapts_tokens, all_linears
from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import DEVICE_ROUNDING_CHUNK, MASTER_CHUNK, ROUNDING_CHUNK, Backend, Checkpointing, Dtype, Loss, Method

BYTES: dict[str, float] = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "fp4": 0.5, "int8": 1, "nf4": 0.5}
"""Bytes per number. TF32 is a way to multiply numbers stored in 32 bits."""

Attention = Literal["sdpa", "flash", "eager"]
Sharding = Literal["single", "ddp", "zero1", "zero2", "zero3", "fsdp1", "fsdp2", "fsdp-grad-op"]
"""`fsdp-grad-op` is FSDP that keeps gathered weights until their backward pass: SHARD_GRAD_OP, or `reshard_after_forward=False`."""
OptimizerKind = Literal["adamw", "adamw-fused", "adamw-8bit", "paged-adamw", "paged-adamw-8bit", "sgd", "adafactor"]
CHOICES = {"attention": get_args(Attention), "loss": get_args(Loss), "sharding": get_args(Sharding), "optimizer": get_args(OptimizerKind)}
"""Field -> its values."""
ALL_LINEAR = ("all-linear",)


@dataclass(frozen=True, slots=True)
class TrainingShape:
    """Shapes and number formats of one micro-step on one device. Building it checks that they are consistent.

    Defaults are those of a plain transformers and peft loop in bf16.
    """

    model: ModelCard
    method: Method
    sequence_length: int
    """Tokens per row."""
    micro_batch: int = 1
    """Rows per forward and backward on one device."""
    document_lengths: tuple[int, ...] | None = None
    """Real tokens of each document of the micro-batch; None if each row is one full document."""
    labels: int | None = None
    """Classes of a classification head; None for a language model."""
    gradient_accumulation: int = 1
    """Micro-steps per optimizer step. With more than one, gradients are kept between micro-steps."""

    lora_rank: int = 8
    lora_targets: tuple[str, ...] = ALL_LINEAR
    """Names of the linear layers with an adapter."""
    lora_dropout: float = 0.0
    """Dropout of the adapters; above zero each adapter keeps a copy of its input."""

    checkpointing: Checkpointing = Checkpointing.NONE
    """Which activations are recomputed. `selective` keeps the results of matrix products and attention."""
    kept_products: float = 1.0
    """Share of the matrix products that selective checkpointing keeps; torchtitan keeps every second one."""
    attention: Attention = "sdpa"
    """`sdpa` and `flash` never store the scores; `eager` does."""
    reentrant: bool = False
    """True for torch's older, re-entrant checkpointing."""
    activation_offload: bool = False
    """The inputs of checkpointed blocks wait for their backward pass in host memory."""
    grouped_experts: bool = False
    """Experts compute only the tokens that chose them, also in the models of which transformers runs all experts."""
    fused_experts: bool = False
    """Experts are one parameter, multiplied at once, as in transformers 5. peft 0.21 gives their gate and up matrices, which are one, an adapter
    of twice the rank, and multiplies with the sum of weights and adapters (`_convert_peft_config_moe`, `ParamWrapper`)."""
    expert_parallel: bool = False
    """Experts stay on their devices, and tokens travel to them."""
    defers_reduction: bool = False
    """Gradients of FSDP are reduced after the last micro-step alone, and whole until then (`no_sync` of accelerate, in transformers' Trainer)."""
    compiled: bool = False
    """torch.compile: element-wise results are recomputed in fused kernels instead of kept."""
    fused_blocks: bool = False
    """Liger's kernels in the blocks: norms keep their input in its format, gated activations both of their inputs and no result."""
    loss: Loss = "upcast"
    """Tensors that the loss keeps; see `Loss`."""

    parameters: Dtype = Dtype.BF16
    """Stored format of weights that are not quantised."""
    activations: Dtype = Dtype.BF16
    """Format of the residual stream, and of everything else without autocast."""
    autocast: Dtype | None = None
    """Format in which autocast runs matrix products, attention and the head; None without autocast."""
    adapters: Dtype = Dtype.FP32
    """Stored format of the adapters; peft converts bf16 adapters to fp32 by default."""
    double_quantisation: bool = True
    """QLoRA: the block scales are quantised too."""
    block_format: Dtype | None = None
    """Format below 16 bits in which the matrices of the blocks multiply: fp8, fp4 or int8, which is bitsandbytes' `load_in_8bit`. Frozen ones
    (LoRA) are also stored in it, with a scale per output and per 16 weights in fp4; trained ones keep their format."""
    optimizer: OptimizerKind = "adamw"
    """Determines which states are kept."""
    master_weights: bool = False
    """True for an fp32 copy of trained 16-bit weights, as in DeepSpeed and Megatron."""
    cast_at_once: int = 0
    """Gradients that are cast to fp32 at a time for master weights, outside DeepSpeed."""
    rounded_at_once: int = 0
    """Weights that are updated in fp32 at a time before they are rounded stochastically; 0 for updates in one kernel."""
    optimizer_in_backward: bool = False
    """Each weight is updated as soon as its gradient is complete, and the gradient is freed."""

    sharding: Sharding = "single"
    """How parameters, gradients and optimizer states are sharded."""
    matrix_units: bool = False
    """FSDP gathers and frees single matrices instead of blocks."""
    world_size: int = 1
    """Data-parallel devices."""
    tensor_parallel: int = 1
    """Devices that share each matrix."""
    sequence_parallel: bool = False
    """The devices that share each matrix also share the residual stream, by tokens."""
    offload: bool = False
    """Parameters, gradients and optimizer states are kept in host memory."""
    optimizer_offload: bool = False
    """Optimizer states, master weights and the devices' shares of gradients are kept in host memory, as DeepSpeed can."""

    def __post_init__(self) -> None:
        """Raise TunemarkError for values that cannot be trained with."""
        for problems in (self._of_step(), self._of_formats(), self._of_levers()):
            for field, fix in problems:
                raise TunemarkError(field, getattr(self, field), fix)
        _ = self.adapted

    def _of_step(self) -> Iterator[tuple[str, str]]:
        """Yield each field that cannot have its value, with the fix."""
        for field in ("sequence_length", "micro_batch", "gradient_accumulation", "lora_rank", "world_size", "tensor_parallel"):
            if getattr(self, field) < 1:
                yield field, "must be 1 or more"
        if self.method is Method.PEFT:
            yield "method", "the trained weights of other methods are unknown; use full, lora or qlora"
        for field, known in CHOICES.items():
            if getattr(self, field) not in known:
                yield field, did_you_mean(getattr(self, field), known)
        if self.sharding == "single" and self.world_size > 1:
            yield "sharding", f"{self.world_size} devices need ddp, zero1 to zero3, fsdp1 or fsdp2"

    def _of_formats(self) -> Iterator[tuple[str, str]]:
        """Yield number formats that are not used in training for activations, autocast or weights."""
        for field, value in (("parameters", self.parameters), ("activations", self.activations), ("autocast", self.autocast)):
            if value in {Dtype.NF4, Dtype.INT8, Dtype.FP4} or (value is Dtype.FP8 and field != "parameters"):
                yield field, "must be fp32, bf16 or fp16; for 4-bit weights use qlora"
        if self.block_format not in {None, Dtype.FP8, Dtype.FP4, *((Dtype.INT8,) if self.method is Method.LORA else ())}:
            yield "block_format", "must be fp8 or fp4, or with lora int8; wider products have the format of the activations"
        if self.block_format is not None and self.method is Method.QLORA:
            yield "block_format", "has no effect with qlora: its frozen weights are in 4 bits already"
        if self.autocast in {Dtype.FP32, Dtype.TF32}:
            yield "autocast", "must be bf16 or fp16, the format that matrix products are cast to"
        if self.autocast is not None and BYTES[self.activations] < BYTES[self.autocast]:
            yield "autocast", f"activations are in {self.activations.value} already; leave autocast out"

    def _of_levers(self) -> Iterator[tuple[str, str]]:
        if self.offload and self.sharding == "single":
            yield "offload", "parameters are offloaded by a sharding strategy; choose fsdp1, fsdp2 or zero3"
        if self.optimizer_offload and not self.sharding.startswith("zero"):
            yield "optimizer_offload", "is DeepSpeed's; choose zero1 to zero3"
        if not 0 <= self.lora_dropout < 1:
            yield "lora_dropout", "must be at least 0 and below 1"
        if self.optimizer_in_backward and self.gradient_accumulation > 1:
            yield "gradient_accumulation", "must be 1: an optimizer in the backward pass cannot accumulate gradients"
        if self.optimizer_in_backward and self.sharding in {"ddp", "zero1", "zero2"}:
            yield "optimizer_in_backward", f"{self.sharding} reduces whole gradients first; choose fsdp1, fsdp2 or one device"
        if self.activation_offload and self.checkpointing is not Checkpointing.FULL:
            yield "activation_offload", "offloads the inputs of checkpointed blocks; set checkpointing to full"
        lengths = self.document_lengths or ()
        if any(not 0 < length <= self.sequence_length for length in lengths) or sum(lengths) > self.slots:
            yield "document_lengths", f"documents are 1 to {self.sequence_length} tokens long and fit into {self.slots} slots"

    @property
    def packed(self) -> Dtype | None:
        """Format of the frozen matrices of the blocks, where it is narrower than that of other weights."""
        return Dtype.NF4 if self.method is Method.QLORA else self.block_format if self.method is Method.LORA else None

    @property
    def packs_experts(self) -> bool:
        """False if experts of QLoRA stay as they are loaded: bitsandbytes quantises matrices of linear layers, no other parameters."""
        return not (self.method is Method.QLORA and self.fused_experts and self.model.experts)

    @property
    def keeps_whole_gradients(self) -> bool:
        """True if the gradients of FSDP are whole until the last micro-step."""
        several = self.gradient_accumulation > 1 and self.world_size > 1
        return self.defers_reduction and several and self.method is Method.FULL and self.sharding.startswith("fsdp")

    @property
    def products(self) -> Dtype:
        """Format of the results of matrix products; those of 4-bit matrices have the format of their input."""
        return self.activations if self.autocast is None or self.method is Method.QLORA else self.autocast

    @property
    def adapters_at_work(self) -> Dtype:
        """Format of the adapters while they multiply, before autocast: shards are gathered, and DeepSpeed converts them, to the format of the activations."""
        return self.adapters if self.sharding in {"single", "ddp"} else self.activations

    @property
    def adapter_products(self) -> Dtype:
        """Format in which adapters multiply, and in which their inputs are kept."""
        return self.autocast or self.adapters_at_work

    @property
    def logits(self) -> Dtype:
        """Format of the results of the head, which is never in 4 bits."""
        return self.autocast or self.activations

    @property
    def residual_share(self) -> int:
        """Devices that share the residual stream."""
        return self.tensor_parallel if self.sequence_parallel else 1

    @property
    def slots(self) -> int:
        """Tensor elements of a micro-batch, by rows and columns."""
        return self.micro_batch * self.sequence_length

    @property
    def documents(self) -> tuple[int, ...]:
        """Lengths in real tokens of the documents of a micro-batch."""
        return self.document_lengths if self.document_lengths is not None else tuple(self.sequence_length for _ in range(self.micro_batch))

    @property
    def tokens(self) -> int:
        """Real tokens of a micro-batch."""
        return self.slots if self.document_lengths is None else sum(self.document_lengths)

    @property
    def adapted(self) -> tuple[Linear, ...]:
        """Linear layers of the blocks with an adapter; empty for full fine-tuning."""
        if self.method is Method.FULL:
            return ()
        return all_linears(self.model) if self.lora_targets == ALL_LINEAR else adapted_linears(self.model, self.lora_targets)

    @property
    def tokens_adapted(self) -> bool:
        """True if the token embedding has an adapter."""
        return self.method is not Method.FULL and adapts_tokens(self.model, self.lora_targets)

    @property
    def adapter_weights(self) -> int:
        """Weights of all adapters: rank x (inputs + outputs) of each adapted matrix, every expert counted, and of an adapted embedding."""
        table = self.model.vocabulary + self.model.hidden_size if self.tokens_adapted else 0
        return sum(self.adapter_of(linear) for linear in self.adapted) + self.lora_rank * table

    def adapter_of(self, linear: Linear) -> int:
        """Return the weights of the adapters on a layer, in all blocks."""
        ranks = 2 if self.fused_experts and linear.part == "experts" and "gate_up_proj" in linear.path else 1
        return ranks * self.lora_rank * (linear.inputs + linear.outputs) * linear.copies * linear.times()


FUSED_ADAMW = frozenset(Backend) - {Backend.NEURON, Backend.NEURON_XLA, Backend.TPU}
"""Backends for which torch has a kernel that updates many weights at once, without a workspace. The harness asks torch."""


def shape_of_plan(plan: Plan, card: ModelCard) -> TrainingShape:
    """Return a full micro-step of a plan on one device.

    Raises TunemarkError if an adapter is requested on a layer that the model's family does not have.
    """
    lora, settings = plan.lora, plan.model
    rounded = ROUNDING_CHUNK if plan.device.backend in {Backend.CPU, Backend.FAKE} else DEVICE_ROUNDING_CHUNK
    return TrainingShape(
        card,
        plan.method,
        plan.data.sequence_length,
        plan.batch.micro_batch,
        labels=settings.labels,
        gradient_accumulation=plan.batch.gradient_accumulation,
        lora_rank=lora.rank if lora else 8,
        lora_targets=lora.target_modules if lora else (),
        lora_dropout=lora.dropout if lora else 0.0,
        checkpointing=settings.gradient_checkpointing,
        attention="eager" if settings.attention == "eager" else "sdpa" if settings.attention in {"sdpa", "flex_attention"} else "flash",
        fused_experts=plan.method is Method.QLORA,
        compiled=settings.compile != "none",
        fused_blocks=settings.fused_kernels == "liger",
        loss="fused" if settings.fused_kernels == "liger" else "streamed" if settings.loss == "chunked" else "upcast",
        parameters=plan.precision.parameters,
        activations=plan.precision.parameters,
        autocast=plan.precision.compute if plan.autocast else None,
        adapters=plan.trained,
        double_quantisation=plan.quantisation.double if plan.quantisation else True,
        block_format=Dtype.FP8 if settings.fp8_products else None,
        optimizer=_optimizer(plan),
        master_weights=plan.optimizer.master_weights or plan.deepspeed_copies,
        cast_at_once=max(MASTER_CHUNK, card.vocabulary * card.hidden_size) if plan.optimizer.master_weights else 0,
        rounded_at_once=rounded if plan.optimizer_rounds_stochastically and not plan.compiles_update else 0,
        sharding=cast("Sharding", plan.device.strategy.value),
        world_size=plan.batch.data_parallel,
        tensor_parallel=plan.device.tensor_parallel,
        offload=plan.device.offload == "all",
        optimizer_offload=plan.device.offload == "optimizer",
    )


def shape_problem(plan: Plan, card: ModelCard) -> str | None:
    """Return the reason why the physics of a plan cannot be computed, or None."""
    try:
        shape_of_plan(plan, card)
    except TunemarkError as error:
        return str(error)
    unlike_its_card = plan.data.tokenizer == "word-level" and plan.model.labels is None
    return "its vocabulary was made of the training rows, and the record does not hold its size" if unlike_its_card else None


def _optimizer(plan: Plan) -> OptimizerKind:
    kind = cast("OptimizerKind", plan.optimizer.name.replace("_", "-"))
    fused = plan.device.backend in FUSED_ADAMW or plan.optimizer_rounds_stochastically
    return "adamw-fused" if kind == "adamw" and fused else kind
