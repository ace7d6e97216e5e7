"""A plan as the physics sees it: shapes and number formats of a micro-step, and of the step that was measured.

The harness' choices that a plan does not spell out are here, once: adapters have the format of the plain weights,
checkpointing is not reentrant, DeepSpeed keeps fp32 master weights of 16-bit ones, and CUDA's AdamW is the fused one.
"""

from dataclasses import dataclass, replace

from tunemark.schema.cards import ModelCard
from tunemark.schema.errors import TunemarkError
from tunemark.schema.plan import OptimizerName, Plan
from tunemark.schema.steady import SteadyWindow
from tunemark.schema.trace import StepTrace
from tunemark.schema.training_shape import Attention, Loss, OptimizerKind, TrainingShape
from tunemark.schema.vocabulary import Backend, Dtype, Strategy, Task

FUSED_ADAMW = (Backend.CUDA, Backend.ROCM, Backend.CPU, Backend.FAKE)
"""Where an update holds no workspace of its own: fused on GPUs, one tensor after another on CPUs."""
DEEPSPEED = (Strategy.ZERO1, Strategy.ZERO2, Strategy.ZERO3)
MOST_DOCUMENTS = 65_536
"""More than that are represented by so many."""
OPTIMIZERS: dict[OptimizerName, OptimizerKind] = {
    "adamw": "adamw",
    "adamw_8bit": "adamw-8bit",
    "paged_adamw_8bit": "adamw-8bit",
    "adafactor": "adafactor",
    "sgd": "sgd",
}


@dataclass(frozen=True, slots=True)
class Work:
    """What the steps of a window did, summed over steps and replicas."""

    steps: int
    seconds: float
    """Their wall time."""
    slot_tokens: int
    """Tensor elements."""
    real_tokens: int
    """Those that are not padding."""
    supervised_tokens: int
    """Those with a label."""
    documents: int
    """Samples."""
    rows: int
    """Rows of the tensors."""

    def pieces(self, *, packed: bool) -> int:
        """Return how many stretches of tokens attend to themselves only.

        Without packing a document is one. A packed row cuts at most one document in two, and the first token of each
        piece has no label: both bound the number of pieces.
        """
        if not packed:
            return self.documents
        return max(self.documents, min(self.real_tokens - self.supervised_tokens, self.documents + self.rows))


def work_in(trace: StepTrace, window: SteadyWindow) -> Work:
    """Return the work of the steps of a window."""
    part = slice(window.first, window.stop)
    return Work(
        steps=window.steps,
        seconds=sum(trace.step_times_s[part]),
        slot_tokens=sum(trace.slot_tokens[part]),
        real_tokens=sum(trace.real_tokens[part]),
        supervised_tokens=sum(trace.supervised_tokens[part]),
        documents=sum(trace.documents[part]),
        rows=sum(trace.rows[part]),
    )


def shape_of_plan(plan: Plan, card: ModelCard) -> TrainingShape:
    """Return a full micro-step of a plan on one device.

    Raises
    ------
    TunemarkError
        When an adapter is asked for on a layer that the model's family does not have.

    """
    lora, settings = plan.lora, plan.model
    return TrainingShape(
        card,
        plan.method,
        plan.data.sequence_length,
        plan.batch.micro_batch,
        labels=settings.labels if settings.task is Task.SEQUENCE_CLASSIFICATION else None,
        gradient_accumulation=plan.batch.gradient_accumulation,
        lora_rank=lora.rank if lora else 8,
        lora_targets=lora.target_modules if lora else (),
        lora_dropout=lora.dropout if lora else 0.0,
        checkpointing=settings.gradient_checkpointing,
        attention=_attention(plan),
        loss=_loss(plan),
        parameters=plan.precision.parameters,
        activations=plan.precision.parameters,
        adapters=plan.precision.parameters,
        double_quantisation=plan.quantisation.double if plan.quantisation else True,
        optimizer=_optimizer(plan),
        master_weights=_master_weights(plan),
        sharding=plan.device.strategy.value,
        world_size=plan.batch.data_parallel,
        tensor_parallel=plan.device.tensor_parallel,
        offload=plan.device.offload == "all",
    )


def measured_shape(plan: Plan, card: ModelCard, work: Work) -> TrainingShape:
    """Return the mean step of a window, all replicas together, as one pass over documents of equal length.

    Of documents of different length the longer ones have more than their share of attention: this counts it low, by
    as much as lengths are spread.
    """
    packed, longest = plan.data.packing, plan.data.sequence_length
    # Without borders all tokens of a row attend as those of one document.
    pieces = work.rows if packed and not plan.data.document_borders else work.pieces(packed=packed)
    tokens = max(1, round(work.real_tokens / work.steps))
    documents = min(tokens, max(1, round(pieces / work.steps), -(-tokens // longest)))
    if documents > MOST_DOCUMENTS:
        # The same mean length; who asks for a ledger scales it to the tokens that there were.
        tokens, documents = round(tokens / documents * MOST_DOCUMENTS), MOST_DOCUMENTS
    short, longer = divmod(tokens, documents)
    lengths = (short + 1,) * longer + (short,) * (documents - longer)
    return replace(shape_of_plan(plan, card), micro_batch=documents, document_lengths=lengths)


def unlike_the_card(plan: Plan) -> str | None:
    """Return why the model that ran is not the one of its card, or None."""
    if plan.data.tokenizer == "word-level" and plan.model.task is Task.CAUSAL_LM:
        return "its vocabulary was made of the training rows, and the record does not hold its size"
    return None


def shape_problem(plan: Plan, card: ModelCard) -> str | None:
    """Return why the physics of a plan cannot be computed, or None."""
    try:
        shape_of_plan(plan, card)
    except TunemarkError as error:
        return str(error)
    return unlike_the_card(plan)


def _attention(plan: Plan) -> Attention:
    if plan.model.attention == "eager":
        return "eager"
    return "flash" if plan.model.attention.startswith("flash") else "sdpa"


def _loss(plan: Plan) -> Loss:
    return "fused" if plan.model.fused_kernels == "liger" else "upcast"


def _optimizer(plan: Plan) -> OptimizerKind:
    kind = OPTIMIZERS[plan.optimizer.name]
    return "adamw-fused" if kind == "adamw" and plan.device.backend in FUSED_ADAMW else kind


def _master_weights(plan: Plan) -> bool:
    return plan.device.strategy in DEEPSPEED and plan.precision.parameters in {Dtype.BF16, Dtype.FP16}
