"""The search for the plan of an option: of those that fit, the fastest by the throughput model."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from typing import Any

from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.cards import APPLE, AcceleratorCard, ModelCard
from tunemark.schema.physics.families import FAMILIES
from tunemark.schema.physics.memory import MemoryVerdict, estimate_memory
from tunemark.schema.physics.stacks import FORMATS, STACKS, USUAL_STACK, on_stack
from tunemark.schema.physics.training_shape import Sharding, TrainingShape
from tunemark.schema.physics.work import TERMS, Missing, Term, limits_of, work_of_tokens, work_of_weights
from tunemark.schema.throughput import Combination, Effects, factor_of, host_seconds
from tunemark.schema.vocabulary import FITS, METHODS, PURE_BF16, Checkpointing, Dtype, Method, SoftwareLevel

USUAL_SLOTS, MOST_SLOTS = 4096, 16_384
"""Tokens of a micro-batch that keep an accelerator busy, and the most that a plan is looked for with."""
MULTIPLES = (2, 4)
WORTH_RISK = 1.25
"""How much faster a plan must be that only probably fits: rates are 13% off in the median, and a run that ends for lack of memory is lost. Of 71
options of 7 models that only probably fit, 27 have a plan that surely does and is at most a quarter slower (14% in the median, 2026-11-28)."""
NODE = 8
"""Accelerators of one machine, usually. More of them run the plan of one machine, where it fits: their speed-up is no more than their number."""
RANK = 16
"""Rank of adapters, on all linear layers."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of a plan, besides the model, the method, the hardware and the level of software."""

    given: dict[str, Any] = field(default_factory=dict)
    """Fields of the step that keep their value."""
    stack: str | None = None
    """The software stack whose memory and speed count, instead of the usual one; empty if no other may be one with which a step fits."""
    loop: str = ""
    """The training loop whose speed counts, instead of any; see `Combination`."""
    any_software: bool = False
    """True if a rate may be of the vendor's own software, which alone runs on several devices of some vendors."""
    named: tuple[str, ...] = ()
    """Accelerators on which plain software is what is usual there; see `option_rates.usual_level`."""


NOTHING = Asked()


@lru_cache(maxsize=4096)
def memory_needed(shape: TrainingShape, stack: str, fixed: tuple[str, ...]) -> tuple[int, list[tuple[MemoryVerdict, int]]]:
    """Return the bytes that a plan needs on each device with a software stack, and the least device memory for each verdict."""
    ledger = estimate_memory(on_stack(shape, stack, fixed))
    return ledger.needed, list(ledger.fit_limits.items())


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan with its work."""

    shape: TrainingShape
    work: tuple[float, ...]
    """FLOPs or bytes per token, by class of work, times the factor by which it takes longer than at the limit of a device."""
    slower: float
    """The factor by which devices that share matrices take longer."""
    host: float
    """Device-seconds per token in which its host issues the operations."""
    stack: str
    """The software stack whose memory it needs."""
    fixed: tuple[str, ...] = ()
    """Fields of the shape that the stack does not change."""

    @property
    def needed_bytes(self) -> int:
        """Memory that it needs on each device."""
        return memory_needed(self.shape, self.stack, self.fixed)[0]

    def fit_on(self, memory_bytes: int) -> MemoryVerdict:
        """Return the verdict on a device of this memory."""
        return next((verdict for verdict, least in memory_needed(self.shape, self.stack, self.fixed)[1] if memory_bytes >= least), "no")

    def on_one_machine(self, card: AcceleratorCard) -> "Candidate":
        """Return the plan on the devices of one machine."""
        workers = NODE * card.devices_per_unit // self.shape.tensor_parallel
        return self if self.shape.world_size <= workers else replace(self, shape=replace(self.shape, world_size=workers))

    def other_stacks(self, card: AcceleratorCard) -> tuple[str, ...]:
        """Return the software stacks with which it is expected to run on an accelerator, the leanest first; the vendor's own if no other is one.

        For full fine-tuning transformers with weights as version 5 loads them comes first.
        """
        vendors = USUAL_STACK["vendor"]
        plans = [replace(self, stack=name) for name, stack in STACKS.items() if stack.runs(self.shape, card.vendor)]
        if not {"sharding", "tensor_parallel"} & {*self.fixed}:
            whole = replace(self.shape, sharding="zero1" if self.shape.method is Method.FULL else "ddp")
            of_vendor = [plan for plan in plans if plan.stack == vendors]
            plans += [replace(plan, shape=shared(whole, group)) for plan in of_vendor for group in groups_of(self.shape)]
        fitting = sorted(
            [plan for plan in plans if plan.fit_on(card.usable_bytes) in FITS],
            key=lambda plan: (plan.stack != PURE_BF16 or self.shape.method is not Method.FULL, plan.needed_bytes),
        )
        names = tuple(dict.fromkeys(plan.stack for plan in fitting))
        return tuple(name for name in names if name != vendors) or names

    def seconds(self, limits: Iterable[float]) -> float:
        """Return device-seconds per token at the limits of a device, without the effects that are the same for all plans."""
        return max(self.host, self.slower * sum(amount / limit for amount, limit in zip(self.work, limits, strict=True)))


def plans_with_work(effects: Effects, config: Combination, asked: Asked) -> list[Candidate]:
    """Return the plans of a step that the stack asked for runs, the usual ones first.

    Their work is the same on all accelerators of one line that compute in its formats.
    """
    plans: list[Candidate] = []
    fixed = tuple(asked.given)
    of_tokens: dict[Checkpointing, dict[Term, float]] = {}
    factors = [(term, factor_of(effects, config, term)) for term in TERMS]
    usual, stack = asked.stack or USUAL_STACK[config.level], STACKS[asked.stack] if asked.stack else None
    recomputes = "none" if not stack or "checkpointing" in fixed or config.shape.activation_offload else stack.checkpoints
    for shape in plans_of(config, fixed):
        runs = stack is None or stack.runs(shape, config.accelerator.vendor)
        if not runs or (recomputes == "full" and shape.checkpointing is Checkpointing.NONE):
            continue
        if recomputes == "selective" and shape.checkpointing is Checkpointing.NONE:
            shape = replace(shape, checkpointing=Checkpointing.SELECTIVE)  # noqa: PLW2901 - the plan as this stack has it
        if shape.checkpointing not in of_tokens:
            of_tokens[shape.checkpointing] = work_of_tokens(shape)
        # Experts move as the stack stores them.
        stored = replace(shape, fused_experts=on_stack(shape, usual).fused_experts) if shape.model.experts else shape
        work = of_tokens[shape.checkpointing] | work_of_weights(stored)
        slower = math.exp(effects.mean_of("slope: devices per row doubled") * math.log2(shape.tensor_parallel))
        weighted = tuple(factor * work[term] for term, factor in factors)
        host = host_seconds(combination_on(config.accelerator, shape, config.level, asked))
        plans.append(Candidate(shape, weighted, slower, host, usual, fixed))
    return plans


def best_of(card: AcceleratorCard, plans: Sequence[Candidate]) -> tuple[Candidate, MemoryVerdict]:
    """Return the fastest of plans among those that fit or probably fit on an accelerator, else one that is unsure, else the smallest.

    One that fits is preferred to one that probably fits and is less than a quarter faster. The smallest one is that of those with recomputation,
    which are the smallest on any software stack. Plans whose times differ by less than 1% keep their order. Without figures on the card
    nothing is predicted, and all keep it. Several machines run the plan of one, unless another is a quarter faster than what its memory allows.
    """
    limits = limits_of(plans[0].shape, card)
    if not isinstance(limits, Missing):
        first = plans[0].seconds(limits)
        plans = sorted(plans, key=lambda plan: round(100 * plan.seconds(limits) / first))
    best = _first_that_fits(card, plans, limits)
    several = plans[0].on_one_machine(card) is not plans[0]
    apart = [plan for plan in plans if several and plan.on_one_machine(card).fit_on(card.usable_bytes) in FITS]
    if not apart:
        return best
    of_machine = _first_that_fits(card, apart, limits)
    worth = not isinstance(limits, Missing) and best[1] in FITS and of_machine[0].seconds(limits) > WORTH_RISK * best[0].seconds(limits)
    return best if worth else of_machine


def _first_that_fits(
    card: AcceleratorCard, plans: Sequence[Candidate], limits: tuple[float, ...] | Missing
) -> tuple[Candidate, MemoryVerdict]:
    """Return the first of plans in order that fits, or one that probably does and is a quarter faster, else one that is unsure, else the smallest."""
    tried: list[tuple[Candidate, MemoryVerdict]] = []
    fastest = None
    for plan in plans:
        if fastest and (isinstance(limits, Missing) or plan.seconds(limits) > WORTH_RISK * fastest[0].seconds(limits)):
            break
        verdict = plan.fit_on(card.usable_bytes)
        if verdict == "fits":
            return plan, verdict
        if verdict in FITS and not fastest:
            fastest = (plan, verdict)
        tried.append((plan, verdict))
    if fastest:
        return fastest
    return min(tried, key=lambda pair: (pair[1] != "unsure", pair[0].shape.checkpointing is not Checkpointing.FULL, pair[0].needed_bytes))


def best_plan(
    effects: Effects, card: AcceleratorCard, step: TrainingShape, level: SoftwareLevel, asked: Asked = NOTHING
) -> tuple[Candidate, MemoryVerdict]:
    """Return the best plan of a step with software of a level. Raises TunemarkError if the stack asked for has none."""
    config = combination_on(card, with_software(step, card, level, asked), level, asked)
    plans = plans_with_work(effects, config, asked)
    if not plans:
        raise TunemarkError("--stack", asked.stack, without_stack(config, asked))
    return best_of(card, plans)


def without_stack(config: Combination, asked: Asked) -> str:
    """Return the reason for which a stack has no plan of a step, with the stacks that have one."""
    plans = list(plans_of(config, tuple(asked.given)))
    others = [name for name, stack in STACKS.items() if any(stack.runs(plan, config.accelerator.vendor) for plan in plans)]
    devices = f"{config.devices} {config.accelerator.vendor} device{'s' if config.devices > 1 else ''}"
    what = f"{METHODS[config.shape.method.value]} of {config.shape.model.name}"
    return f"{asked.stack} does not run {what} on {devices}; these do: {', '.join(others)}"


GROUPS = (2, 4, NODE)
"""Devices that share each matrix: those of one machine."""
FP4_TRAINED = ("Blackwell", "Blackwell Ultra")
"""Architectures on which vendors' own software fine-tunes in fp4: NVIDIA's entries of MLPerf v5.1 do, those of AMD are in fp8 (`block_format` in data/known/software.toml)."""
WITHOUT_FSDP = "NeuronCore-v2"
"""The architecture whose software, optimum-neuron, has no FSDP: AWS' native PyTorch is for newer ones."""


def plans_of(config: Combination, fixed: tuple[str, ...]) -> Iterable[TrainingShape]:
    """Yield the plans of a step, the usual ones first: without sharding, without recomputation, with micro-batches of about `USUAL_SLOTS` tokens.

    Devices may also share each matrix in vendors' own software, and in optimum-neuron, which shards states but no weights.
    """
    step, whole = config.shape, config.accelerator.architecture == WITHOUT_FSDP
    shardings: tuple[Sharding, ...] = ("single",)
    if step.world_size > 1:
        full = ("zero1",) if step.method is Method.FULL else ()
        shardings = ("ddp", *full) if whole else ("ddp", *full, "fsdp1")
    # These belong to the sharding, and to the checkpointing, of the step.
    bound = step.offload or step.optimizer_offload or step.optimizer_in_backward
    alone = "sharding" in fixed or "tensor_parallel" in fixed or not (whole or config.level == "vendor")
    groups = [] if alone else groups_of(step)
    for sharding, kept, rows in product(
        (step.sharding,) if "sharding" in fixed or bound else shardings,
        (step.checkpointing,) if "checkpointing" in fixed or step.activation_offload else (Checkpointing.NONE, Checkpointing.FULL),
        [step.micro_batch] if "micro_batch" in fixed else micro_batches(step.sequence_length),
    ):
        plan = replace(step, sharding=sharding, checkpointing=kept, micro_batch=rows)
        yield plan
        for group in groups if sharding in {"ddp", "zero1"} else []:
            yield shared(plan, group)


def groups_of(step: TrainingShape) -> list[int]:
    """Return the numbers of devices that may share each matrix of a step: they divide its devices and its heads."""
    if step.offload or step.optimizer_offload or step.optimizer_in_backward or step.tensor_parallel > 1:
        return []
    counts = (step.world_size, step.model.attention_heads, step.model.key_value_heads)
    return [group for group in GROUPS if all(count % group == 0 for count in counts)]


def shared(plan: TrainingShape, group: int) -> TrainingShape:
    """Return a plan whose devices share each matrix in groups."""
    apart: Sharding = plan.sharding if plan.world_size > group else "single"
    return replace(plan, sharding=apart, world_size=plan.world_size // group, tensor_parallel=group, sequence_parallel=True)


def with_software(step: TrainingShape, card: AcceleratorCard, level: SoftwareLevel, asked: Asked = NOTHING) -> TrainingShape:
    """Return a step as software of a level runs it.

    Tuned loops have a fused loss, a kernel of attention and grouped experts; vendors' own ones keep frozen weights in fp8 and adapters in 16 bits.
    """
    step = STACKS[asked.stack].with_adapters(step) if asked.stack and "adapters" not in asked.given else step
    if level == "plain":
        return step
    loss = step.loss if "loss" in asked.given else "fused"
    traits = FAMILIES[step.model.family]
    # Few stacks have a kernel for sinks, and none has one for relative positions.
    own = traits.sinks or traits.relative_positions
    kernel = STACKS[asked.stack or USUAL_STACK[level]].fields.get("", {}).get("attention")
    attention = (
        asked.given.get("attention") or (step.attention if traits.relative_positions else kernel) or (step.attention if own else "sdpa")
    )
    step = replace(step, loss=loss, attention=attention, grouped_experts=True)
    if level == "tuned" or step.method is not Method.LORA:
        return step
    adapters = step.adapters if "adapters" in asked.given else step.activations
    return replace(step, block_format=step.block_format or format_of_vendor(card), adapters=adapters)


def format_of_vendor(card: AcceleratorCard) -> Dtype | None:
    """Return the format below 16 bits in which a vendor's own software keeps frozen weights; None without one."""
    formats = (Dtype.FP4, Dtype.FP8) if card.architecture in FP4_TRAINED else (Dtype.FP8,)
    return next((dtype for dtype in formats if dtype in card.peak_tflops), None)


def division_of(shape: TrainingShape) -> str:
    """Return the division of the work in a plan: its sharding, or the devices that share each matrix, such as `tp4`."""
    return shape.sharding if shape.tensor_parallel == 1 else f"tp{shape.tensor_parallel}"


def step_on(card: AcceleratorCard, model: ModelCard, method: Method, length: int, devices: int, asked: Asked = NOTHING) -> TrainingShape:
    """Return the step of an option, with the fields that are given. A chip with several devices of torch has a worker on each.

    Devices without bf16, such as V100 and T4, compute in fp16; updates of fp16 weights underflow, so trained ones are in fp32.
    """
    # The frozen weights of QLoRA are in 4 bits, and trained ones are not in int8.
    kept = method is Method.LORA or (method is Method.FULL and asked.given.get("block_format") is not Dtype.INT8)
    given = {name: value for name, value in asked.given.items() if kept or name != "block_format"}
    bf16 = has_bf16(card)
    mixed = not bf16 and method is Method.FULL
    stored = Dtype.BF16 if bf16 else Dtype.FP32 if mixed else Dtype.FP16
    workers = devices * card.devices_per_unit // given.get("tensor_parallel", 1)
    usual = {
        "lora_rank": RANK,
        "sharding": "fsdp1" if workers > 1 else "single",
        "world_size": workers,
        "attention": "eager" if FAMILIES[model.family].eager else "sdpa",
    }
    formats = {"parameters": stored, "activations": stored, "autocast": Dtype.FP16 if mixed else None}
    chosen = {} if any(name in given for name in FORMATS) else formats
    return TrainingShape(model, method, length, **(usual | chosen | given))


def micro_batches(length: int) -> list[int]:
    """Return rows of a micro-batch to choose from: the usual number, halves of it down to one, and then its multiples."""
    usual = max(1, USUAL_SLOTS // length)
    sizes = [usual]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] // 2)
    return [*sizes, *(usual * times for times in MULTIPLES if usual * times * length <= MOST_SLOTS)]


def combination_on(card: AcceleratorCard, shape: TrainingShape, level: SoftwareLevel, asked: Asked = NOTHING) -> Combination:
    """Return a plan on an accelerator, with the training loop that is asked for, or that of the stack, at a level."""
    devices = shape.world_size * shape.tensor_parallel // card.devices_per_unit
    loop = asked.loop or (STACKS[asked.stack].loop_for(shape.model, devices) if asked.stack else "")
    return Combination(card, devices, shape, level, loop, "", float(shape.tensor_parallel))


def has_bf16(card: AcceleratorCard) -> bool:
    """Return True unless the card has a peak in fp16 and none in bf16. The GPUs of Apple compute in bf16 at the peak of fp16."""
    return card.vendor == APPLE or Dtype.FP16 not in card.peak_tflops or Dtype.BF16 in card.peak_tflops
