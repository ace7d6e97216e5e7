"""Checks of the reasons in a plan: each is one that the harness gives, and is true of the plan, the card and the machine."""

from collections.abc import Iterator, Mapping

from tunemark.schema import plan_reasons as why
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.workloads import WorkloadCard
from tunemark.schema.records.base import flattened
from tunemark.schema.records.plan import Measurement, needless_rounding
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.statistics.comparison import arm_run
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS
from tunemark.schema.vocabulary import VARLEN, Backend, DataSource, Dtype, Padding, Strategy, Weights

ALWAYS = {"batch.global_batch", "device.count", "device.strategy", "precision.compute"}
"""Values of every plan that have a reason."""
FASTEST = "the fastest format of "
"""Beginning of the reason of a format; the generation of the device and the formats that it lacks follow."""
Reasons = Mapping[str, bool]
"""Reason -> True if it is true. One that ends with `...` stands for all that begin with it."""


def reason_problems(s: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield each reason that the harness does not give for its field, that is not true, or that is missing."""
    plan, card = s.plan, facts.workloads.get(s.plan.workload)
    known = {path for path, _ in flattened(plan.model_dump(mode="json"))} | set(type(plan).model_fields)
    possible = _possible(s, card, facts)
    for name, reason in plan.reasons.items():
        if name not in known - {"reasons"} | {"method", "lora.target_modules"}:
            yield Problem("plan.reasons", repr(name), "is not a field of a plan")
        elif reason == why.NEURON_POINT and plan.device.backend is Backend.NEURON:
            continue
        elif name not in possible:
            yield Problem(f"plan.reasons.{name}", repr(reason), "the harness gives no reason for this value; keep the original record")
        else:
            true = next((true for text, true in possible[name].items() if _is(reason, text)), None)
            if not true:
                fix = "is not true of this plan" if true is False else "is not a reason that the harness gives for this value"
                yield Problem(f"plan.reasons.{name}", repr(reason), f"{fix}; keep the original record")
    chosen = card is not None and card.attention == "auto" and all(override.field != "attention" for override in s.overrides)
    needed = ALWAYS | ({"model.attention"} if chosen and plan.model.attention == VARLEN else set())
    for name in sorted(needed - set(plan.reasons)):
        yield Problem("plan.reasons", f"no {name}", "each derived value has its reason; keep the original record")


def _is(reason: str, text: str) -> bool:
    return reason.startswith(text[:-3]) if text.endswith("...") else reason == text


def _possible(s: Submission, card: WorkloadCard | None, facts: FactBase) -> dict[str, Reasons]:
    """Return the possible reasons of each field. Without its card, each reason that names the card may be true."""
    plan, model = s.plan, facts.models.get(s.plan.model.key)
    choices = plan.optimizer, plan.precision.parameters, plan.device.strategy
    needless = needless_rounding(choices[1], choices[2], master_weights=choices[0].master_weights)
    asked = card is None or card.optimizer.stochastic_rounding
    return {**_devices(s, card), **_formats(s, card, model), **_data(s, card), **_limits(s, card)} | {
        "batch.data_parallel": {
            why.data_parallel(plan.device.count, plan.device.tensor_parallel * plan.device.pipeline_parallel): True,
        },
        "optimizer.stochastic_rounding": {needless or "": asked and not plan.optimizer.stochastic_rounding},
        "batch.global_batch": {why.global_batch(plan.batch.micro_batch, plan.batch.gradient_accumulation, plan.batch.data_parallel): True},
    }


def _set_by(s: Submission, card: WorkloadCard | None, field: str, planned: object) -> bool:
    """Return True if the card, or an override of it, has the planned value."""
    if card is None:
        return True
    content = dict(flattened(card.model_dump(mode="json", exclude={"axes", "points"})))
    values = [override.run for override in s.overrides if override.field == field]
    return planned in (content.get(field), *values, *card.own_values(field))


def _devices(s: Submission, card: WorkloadCard | None) -> dict[str, Reasons]:
    plan, device, environment = s.plan, s.plan.device, s.environment
    found, alone = why.FOUND_BY.get(device.backend, "..."), device.count == 1
    processes = device.count // device.nodes
    cores = environment.cpu_physical_cores, environment.cpu_usable_cores
    replicas = why.REPLICAS
    return {
        # On a host without accelerators, the tools that are missing follow.
        "device.backend": {why.REQUESTED_BACKEND: True, found + ("; ..." if device.backend is Backend.CPU else ""): True, found: True}
        | {other: False for backend, other in why.FOUND_BY.items() if backend is not device.backend},
        "device.accelerator": {
            why.KNOWN_NAME: device.accelerator is not None,
            why.missing_card(environment.devices[0].name, device.backend): device.accelerator is None,
            # So did version 0.1 say it of all CPUs.
            why.missing_card(environment.devices[0].name, Backend.CUDA): device.accelerator is None,
        },
        "device.count": {why.REQUESTED_DEVICES: True, why.BY_CARD: _set_by(s, card, "devices.count", device.count)},
        "device.strategy": {
            why.NO_STRATEGY: alone and device.strategy is Strategy.SINGLE,
            replicas: not alone and device.strategy is Strategy.DDP,
            why.REQUESTED_STRATEGY: True,
            why.BY_CARD: _set_by(s, card, "devices.strategy", device.strategy.value),
        },
        "device.threads": {
            why.threads(processes): plan.device.threads == why.threads_of(*cores, processes),
        },
    }


def _formats(s: Submission, card: WorkloadCard | None, model: ModelCard | None) -> dict[str, Reasons]:
    plan = s.plan
    return {
        "precision.compute": {
            why.BY_CARD: _set_by(s, card, "compute", plan.precision.compute.value),
            why.FP8_GIVES_BF16: plan.model.fp8_products and plan.precision.compute is Dtype.BF16,
            why.fastest_format(plan.device.backend): True,
            **{why.fastest_format(other): False for other in Backend if other is not plan.device.backend},
            FASTEST + "...": plan.device.backend is not Backend.CPU,
        },
        "precision.parameters": {
            why.stored_format(plan.precision.compute): True,
        },
        "model.attention": {
            why.VARLEN_FOR_PACKED: plan.model.attention == VARLEN and _set_by(s, card, "attention", "auto"),
        },
        "lora.target_modules": {why.layer_names(model.family if model else ""): plan.lora is not None},
    }


def _data(s: Submission, card: WorkloadCard | None) -> dict[str, Reasons]:
    data, neuron = s.plan.data, s.plan.device.backend is Backend.NEURON
    pretrained = s.plan.model.weights is Weights.PRETRAINED
    fits = {"none": data.source is DataSource.SYNTHETIC, "model": pretrained, "word-level": not pretrained}
    return {
        "data.tokenizer": {reason: data.tokenizer == name and fits[name] for name, reason in why.TOKENIZERS.items()},
        "data.document_borders": {why.NO_BORDERS: neuron and not data.document_borders},
        "data.padding": {
            why.PADDED_FOR_NEURON: neuron and data.padding is Padding.STATIC,
            why.PADDED_TO_LONGEST: not neuron and data.padding is Padding.DYNAMIC and (card is None or card.data.padding is Padding.NONE),
        },
    }


def _limits(s: Submission, card: WorkloadCard | None) -> dict[str, Reasons]:
    rules, fewest = s.plan.measurement, Measurement().min_warmup_steps + RANKABLE_STEPS
    default, usual = rules.until_relative_ci == Measurement().until_relative_ci, why.narrow_enough(card.stop.epochs if card else None)
    arm = arm_run(s.study.point) if s.study is not None else None
    counted = rules.max_steps is not None or rules.epochs is not None
    return {
        "measurement.until_relative_ci": {
            why.REQUESTED_INTERVAL: rules.until_relative_ci is not None,
            why.ALL_STEPS: rules.until_relative_ci is None and counted,
            usual: default,
            # The epochs of the card may have been overridden.
            why.NARROW_ENOUGH: default,
            why.NARROW_ENOUGH + "; --epochs ...": default,
        },
        "measurement.max_train_s": {
            why.REQUESTED_SECONDS: rules.max_train_s is not None,
            why.default_time(fewest, RANKABLE_STEPS): rules.max_train_s is not None and rules.min_steps == fewest,
        },
        "measurement.seed": {why.paired_seed(arm.pair, rules.seed - arm.pair + 1): True} if arm is not None else {},
    }
