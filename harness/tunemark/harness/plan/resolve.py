"""Turn a workload card, options and a machine into a plan, section by section. Each derived value comes with its reason.

A pure function: no network, no torch, the same plan each time.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from tunemark.harness.plan.capabilities import generation_of, unsupported_reason
from tunemark.harness.plan.machine import Machine
from tunemark.harness.plan.options import Options, apply_overrides
from tunemark.harness.vendors.protocol import FEATURE_OF_FORMAT, Generation, vendor_of
from tunemark.harness.worker.sample_files import FULL_ROWS, SYNTHETIC, check_file, describe_file
from tunemark.schema import plan_reasons
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean
from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.workloads import WorkloadCard, shared_settings
from tunemark.schema.features import Feature
from tunemark.schema.physics.architecture import targets_in
from tunemark.schema.records.division import Override
from tunemark.schema.records.plan import (
    Batch,
    DataChoice,
    DeviceChoice,
    LoraSettings,
    Measurement,
    ModelChoice,
    Offload,
    Optimizer,
    Plan,
    Precision,
    needless_rounding,
)
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS
from tunemark.schema.vocabulary import VARLEN, Backend, DataSource, Dtype, Padding, Strategy, Task, Weights

DEFAULT_MAX_TRAIN_S = 300.0
DEFAULT_NO_STEP_S = 900.0
OFFLOADS: tuple[Offload, ...] = ("none", "optimizer", "all")
SET_BY_OPTIONS = frozenset(
    {
        "weights",
        "compute",
        "data.source",
        "data.name",
        "data.padding",
        "data.document_borders",
        "devices.count",
        "devices.strategy",
        "devices.offload",
    }
)
"""Settings of a card that options can change without `--set`."""
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Node:
    """One machine among several."""

    rank: int = 0
    rendezvous: str | None = None
    """HOST:PORT of the first node; None for one node."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A plan with facts that the worker needs and a submission must not hold, such as paths of this machine."""

    plan: Plan
    overrides: tuple[Override, ...]
    weights_from: str | None
    """Hub id or directory of pretrained weights."""
    data_from: str | None
    """Hub id or path of the samples."""
    unsupported: str | None
    """Why this machine cannot run it, decided before any time is spent."""
    node: Node = field(default_factory=Node)
    """This machine among several."""
    limit_memory_bytes: int | None = None
    """Host memory that each worker process may use; None for all of it."""


class Reasons(dict[str, str]):
    """Collects the reason of each derived value."""

    def give(self, name: str, value: Value, why: str) -> Value:
        """Return the value and note its reason."""
        self[name] = why
        return value


def resolve(name: str, facts: FactBase, machine: Machine, options: Options) -> Resolved:
    """Return the plan of a workload on a machine. Raises TunemarkError, with a suggestion, for an unknown name or value."""
    reasons = Reasons()
    asked = facts.workload(name)
    point = neuron_point(asked, options, reasons) if machine.backend is Backend.NEURON else ()
    card, changes = apply_overrides(asked, (*point, *options.overrides))
    accelerator = facts.recognise_device(machine.devices[0].name, machine.backend)
    generation = generation_of(machine.backend, machine.target, accelerator.architecture if accelerator else None)
    model, weights_from = model_choice(card, facts, options)
    data, data_from = data_choice(card, machine, options, reasons)
    device = device_choice(card, machine, accelerator, options, reasons)
    precision = precision_choice(card, machine, generation, options, reasons)
    plan = Plan(
        workload=card.key,
        workload_sha256=facts.workload_sha256(card.key),
        method=card.method,
        lora=lora_choice(card, facts, reasons),
        quantisation=card.quantisation,
        neuron=card.neuron if device.backend is Backend.NEURON else None,
        model=model,
        data=data,
        batch=batch_choice(card, device, reasons),
        optimizer=optimizer_choice(card, precision, device, options, reasons),
        precision=precision,
        device=device,
        measurement=measurement_choice(card, options, reasons),
        reasons=reasons,
    )
    plan = with_automatic_attention(
        plan, card, partial(unsupported_reason, model=facts.model(model.key), machine=machine, generation=generation)
    )
    overrides = (*changes, *_option_overrides(card, plan, facts))
    if plan.lora and card.lora and plan.lora.target_modules != card.lora.target_modules:
        # Adapter layers are declared by the names that the model has.
        name = "lora.target_modules"
        before = next((change.card for change in changes if change.field == name), json.dumps(card.lora.target_modules))
        renamed = Override(field=name, card=before, run=json.dumps(plan.lora.target_modules))
        overrides = (*(override for override in overrides if override.field != name), renamed)
    unsupported = unsupported_reason(plan, facts.model(plan.model.key), machine, generation)
    return Resolved(plan, overrides, weights_from, data_from, unsupported, Node(options.node_rank, options.rendezvous))


def with_automatic_attention(plan: Plan, card: WorkloadCard, problem: Callable[[Plan], str | None]) -> Plan:
    """Return the plan with varlen attention if the card has `auto`, rows are packed with document borders, and this machine supports it.

    Otherwise the plan is unchanged.
    """
    if card.attention != "auto" or not (plan.data.packing and plan.data.document_borders):
        return plan
    model = plan.model.model_copy(update={"attention": VARLEN})
    packed = plan.model_copy(update={"model": model, "reasons": {**plan.reasons, "model.attention": plan_reasons.VARLEN_FOR_PACKED}})
    return plan if problem(packed) else packed


def neuron_point(card: WorkloadCard, options: Options, reasons: Reasons) -> tuple[str, ...]:
    """Return the card's own settings for Neuron devices as assignments: its first point with tensor parallel devices.

    The user's settings take precedence: if one of the point's fields is set, the point is not used.
    """
    point = next((point for point in card.points if "devices.tensor_parallel" in point), {})
    if any(options.sets(field) for field in point):
        return ()
    reasons.update(dict.fromkeys((field.replace("devices.", "device.") for field in point), plan_reasons.NEURON_POINT))
    return tuple(f"{field}={json.dumps(value)}" for field, value in point.items())


def _option_overrides(card: WorkloadCard, plan: Plan, facts: FactBase) -> tuple[Override, ...]:
    """Return the differences from the card that options such as `--weights`, `--data` and `--strategy` cause.

    A seed, a number of steps and a time limit are not overrides: they only set how long the same work runs, and on which
    draw. A card for one device may run on several: each device gets the card's batch.
    """
    changed = [(setting.field, setting.card, setting.run) for setting in shared_settings(plan, card) if setting.field in SET_BY_OPTIONS]
    if plan.model.weights is Weights.PRETRAINED:
        changed.append(("weights.from", facts.model(card.model).hub_id or "none", plan.model.hub_id or "a local directory"))
    return tuple(
        Override(field=field, card=before, run=after) for field, before, after in changed if after not in (before, *card.own_values(field))
    )


def refuse_unsupported(resolved: Resolved) -> None:
    """Raise TunemarkError with exit code 4 when the machine cannot run the plan."""
    if resolved.unsupported:
        raise TunemarkError("workload", resolved.plan.workload, resolved.unsupported, exit_code=Exit.UNSUPPORTED)


# Model and weights


def model_choice(card: WorkloadCard, facts: FactBase, options: Options) -> tuple[ModelChoice, str | None]:
    """Return the model with the source of its weights, and the hub id or directory of pretrained ones."""
    requested, _, where = options.weights.partition(":")
    kind = card.weights.value if requested == "card" else requested
    if kind not in {Weights.RANDOM.value, Weights.PRETRAINED.value}:
        raise TunemarkError("--weights", options.weights, "give random, pretrained, or pretrained:HUB_ID_OR_DIRECTORY")
    model, weights_from = facts.model(card.model), None
    if kind == Weights.PRETRAINED.value:
        weights_from = where or model.hub_id
        if weights_from is None:
            fix = f"model {card.model} has no hub id; give pretrained:HUB_ID_OR_DIRECTORY, or --weights random"
            raise TunemarkError("--weights", options.weights, fix)
        if weights_from.startswith(("/", ".", "~")) and not Path(weights_from).is_dir():
            fix = "no such directory; give one that holds config.json and the weights, or a hub id"
            raise TunemarkError("--weights", options.weights, fix)
    local = weights_from is not None and Path(weights_from).exists()
    choice = ModelChoice(
        key=model.key,
        task=card.task,
        labels=card.labels,
        weights=Weights(kind),
        hub_id=None if local else weights_from,
        local=local,
        attention="sdpa" if card.attention == "auto" else card.attention,
        gradient_checkpointing=card.gradient_checkpointing,
        fused_kernels=card.fused_kernels,
        compile=card.compile,
        compile_mode=card.compile_mode,
        sdpa_kernel=card.sdpa_kernel,
        frozen_weights=card.frozen_weights,
        fp8_training=card.fp8_training,
    )
    return choice, weights_from


def lora_choice(card: WorkloadCard, facts: FactBase, reasons: Reasons) -> LoraSettings | None:
    """Return the adapter settings, with layer names of the model's family."""
    if card.lora is None:
        return None
    model = facts.model(card.model)
    targets = targets_in(model, card.lora.target_modules)
    if targets != card.lora.target_modules:
        reasons.give("lora.target_modules", targets, plan_reasons.layer_names(model.family))
    return card.lora.model_copy(update={"target_modules": targets})


def precision_choice(card: WorkloadCard, machine: Machine, generation: Generation | None, options: Options, reasons: Reasons) -> Precision:
    """Return the number formats of weights and of matrix products.

    A card in bf16 uses the fastest format of devices that lack it, unless the user has set one.
    """
    compute, why = Dtype.FP32, plan_reasons.BY_CARD
    lacks_bf16 = generation is not None and Feature.BF16 in generation.cannot
    if card.compute != "auto" and (card.compute != Dtype.BF16.value or not lacks_bf16 or sets_compute(options)):
        compute = Dtype(card.compute)
    elif Dtype.BF16 in machine.compute_dtypes and (card.frozen_weights == "fp8" or card.fp8_training != "none"):
        compute, why = Dtype.BF16, plan_reasons.FP8_GIVES_BF16
    elif generation is None:
        compute, why = machine.compute_dtypes[0], plan_reasons.fastest_format(machine.backend)
    else:
        newest, compute = machine.compute_dtypes[0], next(iter(generation.formats(machine.compute_dtypes)), Dtype.FP32)
        lacking = "" if newest is compute else f"; {newest.value}: {generation.cannot[FEATURE_OF_FORMAT[newest]]}"
        why = f"the fastest format of {generation.name}{lacking}"
    reasons.give("precision.compute", compute, why)
    parameters = reasons.give(
        "precision.parameters",
        Dtype.BF16 if compute is Dtype.BF16 else Dtype.FP32,
        plan_reasons.stored_format(compute),
    )
    return Precision(parameters=parameters, compute=compute)


def optimizer_choice(card: WorkloadCard, precision: Precision, device: DeviceChoice, options: Options, reasons: Reasons) -> Optimizer:
    """Return the card's optimizer, without stochastic rounding where no updated weight is rounded to bf16."""
    chosen, name = card.optimizer, "optimizer.stochastic_rounding"
    why = needless_rounding(precision.parameters, device.strategy, master_weights=chosen.master_weights)
    if not chosen.stochastic_rounding or options.sets(name) or why is None:
        return chosen
    return chosen.model_copy(update={"stochastic_rounding": reasons.give(name, value=False, why=why)})


# Data


def sets_compute(options: Options) -> bool:
    """Return True if the user has set the number format of matrix products."""
    return any(options.sets(name) for name in ("compute", "precision"))


def data_choice(card: WorkloadCard, machine: Machine, options: Options, reasons: Reasons) -> tuple[DataChoice, str | None]:
    """Return the samples, and the hub id or path that they are read from."""
    source, name, sha256, place = _data_source(card, options)
    if source is DataSource.SYNTHETIC:
        tokenizer = reasons.give("data.tokenizer", "none", plan_reasons.TOKENIZERS["none"])
    elif options.weights.startswith("pretrained") or (options.weights == "card" and card.weights is Weights.PRETRAINED):
        tokenizer = reasons.give("data.tokenizer", "model", plan_reasons.TOKENIZERS["model"])
    else:
        tokenizer = reasons.give("data.tokenizer", "word-level", plan_reasons.TOKENIZERS["word-level"])
    borders = card.data.document_borders
    if card.data.packing and borders and machine.backend is Backend.NEURON and not options.sets("data.document_borders"):
        borders = reasons.give("data.document_borders", value=False, why=plan_reasons.NO_BORDERS)
    choice = DataChoice(
        source=source,
        name=name,
        sha256=sha256,
        template=card.data.template,
        tokenizer=tokenizer,
        sequence_length=card.data.sequence_length,
        padding=_padding(card, machine, source, name, options, reasons),
        packing=card.data.packing,
        document_borders=borders,
        training_rows=card.data.training_rows,
        evaluation_rows=card.data.evaluation_rows,
    )
    return choice, place


def _data_source(card: WorkloadCard, options: Options) -> tuple[DataSource, str, str | None, str | None]:
    """Return source, name and content hash of the data, and its hub id or path."""
    _, colon, where = options.data.partition(":")
    if colon and not where:
        raise TunemarkError("--data", options.data, "name the file, folder or dataset after the colon")
    source, place = _source_kind(card, options), where or card.data.name
    if source is DataSource.FILE:
        name, sha256 = describe_file(place)
        try:
            check_file(place, card.labels, card.data.evaluation_rows, card.data.template)
        except ValueError as error:
            raise TunemarkError("--data", f"file:{place}", str(error)) from error
        return source, name, sha256, place
    if source is DataSource.HUB:
        # A local folder read through the hub library is named without its path.
        return source, Path(place).name if Path(place).exists() else place, None, place
    name = card.data.name
    if card.data.source is not DataSource.SYNTHETIC:
        name = "keyword-classes" if card.task is not Task.CAUSAL_LM else "random-documents" if card.data.packing else "random-tokens"
    if name not in SYNTHETIC[card.task]:
        raise TunemarkError("data.name", name, did_you_mean(name, SYNTHETIC[card.task]))
    return source, name, None, None


def _source_kind(card: WorkloadCard, options: Options) -> DataSource:
    kind = options.data.partition(":")[0]
    if kind == "card":
        return card.data.source
    if kind not in {source.value for source in DataSource}:
        raise TunemarkError("--data", options.data, "give synthetic, file:PATH or hub:NAME")
    return DataSource(kind)


def _padding(card: WorkloadCard, machine: Machine, source: DataSource, name: str, options: Options, reasons: Reasons) -> Padding:
    """Return the padding: a card for full rows has `none`, which rows of different length cannot use."""
    padding, requested = card.data.padding, options.sets("data.padding")
    full = padding is Padding.NONE and (card.data.packing or (source is DataSource.SYNTHETIC and name in FULL_ROWS))
    if full or padding is Padding.STATIC or (padding is Padding.DYNAMIC and (requested or machine.backend is not Backend.NEURON)):
        return padding
    if padding is Padding.NONE and requested:
        fix = f"rows of {name} differ in length; give dynamic or static, or data.packing=true"
        raise TunemarkError("--set data.padding", padding.value, fix)
    if machine.backend is Backend.NEURON:
        return reasons.give("data.padding", Padding.STATIC, plan_reasons.PADDED_FOR_NEURON)
    return reasons.give("data.padding", Padding.DYNAMIC, plan_reasons.PADDED_TO_LONGEST)


# Devices and batch


def device_choice(
    card: WorkloadCard, machine: Machine, accelerator: AcceleratorCard | None, options: Options, reasons: Reasons
) -> DeviceChoice:
    """Return the devices, with the matching accelerator card if there is one, and the distribution of the work."""
    known = plan_reasons.KNOWN_NAME if accelerator else plan_reasons.missing_card(machine.devices[0].name, machine.backend)
    count = options.devices if options.devices is not None else card.devices.count
    reasons.give("device.count", count, plan_reasons.REQUESTED_DEVICES if options.devices else plan_reasons.BY_CARD)
    if count % options.nodes:
        raise TunemarkError("--devices", count, f"is for all {options.nodes} nodes together; give a multiple of {options.nodes}")
    if options.rendezvous is not None and options.nodes == 1:
        raise TunemarkError("--rendezvous", options.rendezvous, "is for several machines; give --nodes, the same on each machine")
    if options.node_rank >= options.nodes:
        fix = f"machines are numbered from 0 to {options.nodes - 1}; give --nodes, the same on each machine"
        raise TunemarkError("--node-rank", options.node_rank, fix)
    requested = options.offload or card.devices.offload
    offload = next((name for name in OFFLOADS if name == requested), None)
    if offload is None:
        raise TunemarkError("--offload", requested, did_you_mean(requested, OFFLOADS))
    choice = DeviceChoice(
        backend=reasons.give("device.backend", machine.backend, machine.backend_reason),
        accelerator=reasons.give("device.accelerator", accelerator.key if accelerator else None, known),
        count=count,
        nodes=options.nodes,
        strategy=_strategy(card, count, options, reasons),
        offload=offload,
        tensor_parallel=card.devices.tensor_parallel,
        pipeline_parallel=card.devices.pipeline_parallel,
        launcher=None if count == 1 else options.launcher,
    )
    if not vendor_of(machine.backend).on_host:
        return choice
    processes = count // options.nodes
    threads = plan_reasons.threads_of(machine.cpu_physical_cores, machine.cpu_usable_cores, processes)
    return choice.model_copy(update={"threads": reasons.give("device.threads", threads, plan_reasons.threads(processes))})


def _strategy(card: WorkloadCard, count: int, options: Options, reasons: Reasons) -> Strategy:
    requested = options.strategy or card.devices.strategy
    if count == 1 and not options.strategy:
        return reasons.give("device.strategy", Strategy.SINGLE, plan_reasons.NO_STRATEGY)
    if requested == "auto":
        alone = count == 1
        why = plan_reasons.NO_STRATEGY if alone else plan_reasons.REPLICAS
        return reasons.give("device.strategy", Strategy.SINGLE if alone else Strategy.DDP, why)
    words = [strategy.value for strategy in Strategy]
    if requested not in words:
        raise TunemarkError("--strategy", requested, did_you_mean(requested, words))
    return reasons.give(
        "device.strategy", Strategy(requested), plan_reasons.REQUESTED_STRATEGY if options.strategy else plan_reasons.BY_CARD
    )


def batch_choice(card: WorkloadCard, device: DeviceChoice, reasons: Reasons) -> Batch:
    """Return the batch, from one micro-step to one optimizer step."""
    micro, accumulation = card.batch.micro_batch, card.batch.gradient_accumulation
    group = device.tensor_parallel * device.pipeline_parallel
    # An invalid number of devices is reported as unsupported later; until then the plan has one replica.
    replicas = reasons.give("batch.data_parallel", max(1, device.count // group), plan_reasons.data_parallel(device.count, group))
    rows = reasons.give("batch.global_batch", micro * accumulation * replicas, plan_reasons.global_batch(micro, accumulation, replicas))
    return Batch(micro_batch=micro, gradient_accumulation=accumulation, data_parallel=replicas, global_batch=rows)


# Stop rules


def measurement_choice(card: WorkloadCard, options: Options, reasons: Reasons) -> Measurement:
    """Return the stop rules and the measurements besides speed."""
    if options.epochs is not None and card.data.training_rows is None and _source_kind(card, options) is DataSource.SYNTHETIC:
        fix = "these synthetic rows have no end; give --set data.training_rows=N, --data file:PATH, or --steps"
        raise TunemarkError("--epochs", options.epochs, fix)
    counted = options.max_steps is not None or options.epochs is not None
    until_ci = options.until_ci
    if until_ci is not None:
        why = plan_reasons.REQUESTED_INTERVAL
    elif counted:
        why = plan_reasons.ALL_STEPS
    else:
        why = plan_reasons.narrow_enough(card.stop.epochs)
        until_ci = Measurement().until_relative_ci
    return Measurement(
        max_steps=options.max_steps if counted else card.stop.max_steps,
        epochs=options.epochs if counted else card.stop.epochs,
        **_time_limits(card, options, reasons, counted=counted),
        timeout_s=options.timeout_s,
        no_step_s=DEFAULT_NO_STEP_S if options.no_step_s is None else options.no_step_s,
        until_relative_ci=reasons.give("measurement.until_relative_ci", until_ci, why),
        timing="strict" if options.strict_timing else "events",
        evaluate=card.data.evaluation_rows > 0,
        save=options.save,
        cold=options.cold,
        probe=options.probe,
        gates=options.gates,
        seed=card.seed if options.seed is None else options.seed,
    )


def _time_limits(
    card: WorkloadCard, options: Options, reasons: Reasons, *, counted: bool
) -> dict[Literal["max_train_s", "min_steps"], Any]:
    """Return the time limit of training. Requested steps are always completed, so they have none by default."""
    name = "measurement.max_train_s"
    if options.max_train_s is not None:
        return {"max_train_s": reasons.give(name, options.max_train_s, plan_reasons.REQUESTED_SECONDS)}
    if counted:
        return {"max_train_s": None}
    if card.stop.max_train_s is not None or card.stop.max_steps is not None:
        return {"max_train_s": card.stop.max_train_s}
    fewest = Measurement().min_warmup_steps + RANKABLE_STEPS
    why = plan_reasons.default_time(fewest, RANKABLE_STEPS)
    return {"max_train_s": reasons.give(name, DEFAULT_MAX_TRAIN_S, why), "min_steps": fewest}
