"""What holds on Neuron devices only: which of two ways a plan is trained in, what neither can do, and what the runtime is told.

Causal language models are trained by optimum-neuron's trainer, classifiers by our own loop on one core.
"""

from collections.abc import Iterator, Mapping

from tunemark.harness.devices.features import Feature
from tunemark.harness.needs import OF_NEURON_LOOP, OF_NEURON_TRAINER, Need
from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import Dtype, Padding, Strategy, Task

ATTENTION = {"eager": "eager", "sdpa": "flash_attention_2", "flash_attention_2": "flash_attention_2"}
"""Attention of a plan -> that of optimum-neuron, which calls its own kernel by that name and has no other fused one."""
FAMILIES = ("llama", "granite", "qwen3")
"""Model families that optimum-neuron has written anew for training."""


def by_trainer(plan: Plan) -> bool:
    """Return whether optimum-neuron's trainer trains a plan."""
    return plan.model.task is Task.CAUSAL_LM


def needs(plan: Plan) -> dict[Feature, Need]:
    """Return the packages that features need."""
    return OF_NEURON_TRAINER if by_trainer(plan) else OF_NEURON_LOOP


def family_reason(plan: Plan, family: str) -> str | None:
    """Return why a model of a family cannot be trained on Neuron devices, or None."""
    if not by_trainer(plan) or family in FAMILIES:
        return None
    return f"{plan.model.key} is of family {family}, and optimum-neuron trains {', '.join(FAMILIES)}"


def reasons(plan: Plan) -> Iterator[str]:
    """Yield why a plan cannot be trained on Neuron devices."""
    if plan.device.strategy in {Strategy.ZERO2, Strategy.ZERO3}:
        yield f"{plan.device.strategy.value}: optimum-neuron shares optimizer states only; use zero1"
    if plan.data.padding is Padding.DYNAMIC and not plan.data.packing:
        yield "dynamic padding: each new length is another graph, which is compiled for minutes; use data.padding=static"
    yield from _of_trainer(plan) if by_trainer(plan) else _of_loop(plan)


def _of_trainer(plan: Plan) -> Iterator[str]:
    if plan.model.attention not in ATTENTION:
        yield f"attention {plan.model.attention}: optimum-neuron has {', '.join(ATTENTION)}"
    if plan.optimizer.name not in {"adamw", "sgd"}:
        yield f"optimizer {plan.optimizer.name}: optimum-neuron's trainer has adamw and sgd"
    if plan.optimizer.layer_decay is not None:
        yield "layer_decay: optimum-neuron's trainer gives all blocks the same learning rate"
    if plan.device.pipeline_parallel > 1 and plan.lora is not None:
        yield "LoRA with pipeline parallel is not done in this version; use tensor parallel"
    if plan.measurement.save:
        yield "save: each core holds a part of the weights, and gathering them from optimum-neuron is not done in this version; leave --save out"
    if plan.measurement.timing == "strict" and plan.device.pipeline_parallel > 1:
        yield "timing=strict with pipeline parallel: a stage cannot be waited for alone"


def _of_loop(plan: Plan) -> Iterator[str]:
    if plan.device.count > 1:
        yield "a classifier is trained on one NeuronCore in this version, which exchanges no gradients over XLA; use --devices 1"
    if plan.model.attention.startswith("flash_attention"):
        yield "flash attention for classifiers; use attention=sdpa"


def environment(plan: Plan, already: Mapping[str, str]) -> dict[str, str]:
    """Return what compiler and runtime are told, beside the flags that the person running it has set already."""
    settings = plan.neuron
    flags = [already.get("NEURON_CC_FLAGS", ""), "--model-type transformer"]
    if plan.precision.compute is Dtype.FP32 and "--auto-cast" not in flags[0]:
        # Whatever the compiler's default is: fp32 is fp32.
        flags.append("--auto-cast none")
    if settings and settings.optimisation_level is not None:
        flags.append(f"-O{settings.optimisation_level}")
    stochastic = bool(settings and settings.stochastic_rounding)
    return {"NEURON_CC_FLAGS": " ".join(filter(None, flags)), "NEURON_RT_STOCHASTIC_ROUNDING_EN": str(int(stochastic))}
