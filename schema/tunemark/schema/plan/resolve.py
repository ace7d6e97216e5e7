"""Turn a request and a machine into a plan, section by section. Each derived value comes with its reason.

A pure function: no network, no torch, no file, the same plan each time. The harness plans with it, and the gate plans again with what a
record holds.
"""

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from tunemark.schema.errors import TunemarkError, did_you_mean, problems_of
from tunemark.schema.facts.cards import AcceleratorCard, ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.names import CORE_OF_CHIP, cpu_name
from tunemark.schema.facts.workloads import WorkloadCard
from tunemark.schema.physics.architecture import targets_in
from tunemark.schema.plan.capabilities import FEATURE_OF_FORMAT, Feature, Generation, Machine, unsupported_reason
from tunemark.schema.records import plan as record
from tunemark.schema.records.base import flattened
from tunemark.schema.samples import FULL_ROWS
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS
from tunemark.schema.vocabulary import DEEPSPEED, STATIC_SHAPES, Backend, DataSource, Dtype, Method, Padding, Strategy, Task, Weights

DEFAULT_MAX_TRAIN_S = 300.0
DEFAULT_NO_STEP_S = 900.0
SET_BY_OPTIONS = {
    "weights": "model.weights",
    **{f"data.{name}": f"data.{name}" for name in ("source", "name", "padding", "document_borders")},
    **{f"devices.{name}": f"device.{name}" for name in ("count", "strategy", "offload")},
}
"""Setting of a card that a request can change without `--set` -> its place in the plan."""
SYNTHETIC = {Task.CAUSAL_LM: ("random-tokens", "random-documents", "markov-tokens"), Task.SEQUENCE_CLASSIFICATION: ("keyword-classes",)}
"""Names of the generators of synthetic samples, by task."""
WHY: dict[str, Any] = tomllib.loads(Path(__file__).with_name("reasons.toml").read_text(encoding="utf-8"))
"""Reasons of derived values."""
Value = TypeVar("Value")


class Resolution(NamedTuple):
    """What follows from a request on a machine."""

    plan: record.Plan
    overrides: tuple[record.Override, ...]
    unsupported: str | None
    """Why the machine cannot run the plan."""


class Reasons(dict[str, str]):
    """Collects the reason of each derived value."""

    def give(self, name: str, value: Value, why: str) -> Value:
        """Return the value and note its reason."""
        self[name] = why
        return value


def resolve(requested: record.Requested, facts: FactBase, machine: Machine) -> Resolution:
    """Return the plan of a request on a machine. Raises TunemarkError, with a suggestion, for an unknown name or value."""
    reasons = Reasons()
    asked = facts.workload(requested.workload)
    point = neuron_point(asked, requested, reasons) if machine.backend is Backend.NEURON_XLA else ()
    card, changes = apply_overrides(asked, (*point, *requested.overrides))
    accelerator = facts.recognise_device(machine.devices[0].name, machine.backend)
    generation = machine.family.generation(machine.devices[0].target, accelerator.architecture if accelerator else None)
    model_card = facts.model(card.model)
    model = model_choice(card, model_card, requested)
    data = data_choice(card, machine, model.weights, requested, reasons)
    device = device_choice(card, machine, accelerator, requested, reasons)
    precision = precision_choice(card, machine, generation, device.strategy, requested, reasons)
    plan = record.Plan(
        workload=card.key,
        workload_sha256=facts.workload_sha256(card.key),
        method=card.method,
        lora=lora_choice(card, model_card, reasons),
        quantisation=card.quantisation,
        neuron=card.neuron if device.backend is Backend.NEURON_XLA else None,
        model=model,
        data=data,
        batch=batch_choice(card, device, reasons),
        optimizer=card.optimizer,
        precision=precision,
        device=device,
        measurement=measurement_choice(card, data, requested, reasons),
        reasons=reasons,
    )
    if card.optimizer.stochastic_rounding and plan.needless_rounding and not requested.sets("optimizer.stochastic_rounding"):
        optimizer = card.optimizer.model_copy(update={"stochastic_rounding": False})
        why = plan.reasons | {"optimizer.stochastic_rounding": plan.needless_rounding}
        plan = plan.model_copy(update={"optimizer": optimizer, "reasons": why})
    problem = partial(unsupported_reason, model=model_card, machine=machine, generation=generation)
    if card.loss == "auto":
        plan = first_possible(plan, "loss", {"chunked": WHY["in_chunks"]}, problem)
    if card.attention == "auto":
        kernels = WHY["packed_attention"] if data.packing and data.document_borders else {model.attention: WHY["no_borders_kept"]}
        plan = first_possible(plan, "attention", kernels, problem)
    overrides = (*changes, *_option_overrides(card, plan, model_card))
    if plan.lora and card.lora and plan.lora.target_modules != card.lora.target_modules:
        # Adapter layers are declared by the names that the model has.
        name = "lora.target_modules"
        before = next((change.card for change in changes if change.field == name), json.dumps(card.lora.target_modules))
        renamed = record.Override(field=name, card=before, run=json.dumps(plan.lora.target_modules))
        overrides = (*(override for override in overrides if override.field != name), renamed)
    chip = facts.recognise_device(machine.devices[0].name.partition(CORE_OF_CHIP)[0], machine.backend)
    return Resolution(plan, overrides, (chip and chip.why_no_training) or problem(plan))


def first_possible(plan: record.Plan, field: str, reasons: Mapping[Any, str], problem: Callable[[record.Plan], str | None]) -> record.Plan:
    """Return the plan with the first of these values for a field of its model that the machine supports, else unchanged."""
    for value, reason in reasons.items():
        model = plan.model.model_copy(update={field: value})
        changed = plan.model_copy(update={"model": model, "reasons": {**plan.reasons, f"model.{field}": reason}})
        if problem(changed) is None:
            return changed
    return plan


def neuron_point(card: WorkloadCard, requested: record.Requested, reasons: Reasons) -> tuple[str, ...]:
    """Return the card's own settings for optimum-neuron as assignments: its first point with tensor parallel devices.

    The user's settings take precedence: if one of the point's fields is set, the point is not used.
    """
    point = next((point for point in card.points if "devices.tensor_parallel" in point), {})
    if any(requested.sets(field) for field in point):
        return ()
    reasons.update(dict.fromkeys((field.replace("devices.", "device.") for field in point), WHY["neuron_point"]))
    return tuple(f"{field}={json.dumps(value)}" for field, value in point.items())


def _option_overrides(card: WorkloadCard, plan: record.Plan, model: ModelCard) -> tuple[record.Override, ...]:
    """Return the differences from the card that requested such as `--weights`, `--data` and `--sharding` cause.

    A seed, a number of steps and a time limit are not overrides: they only set how long the same work runs, and on which
    draw. A card for one device may run on several: each device gets the card's batch.
    """
    stated, planned = (dict(flattened(content.model_dump(mode="json"))) for content in (card, plan))
    chosen = [field for field in SET_BY_OPTIONS if stated[field] != "auto" and (field != "devices.count" or card.devices.count > 1)]
    changed = [(field, stated[field], planned[SET_BY_OPTIONS[field]]) for field in chosen]
    if plan.model.weights is Weights.PRETRAINED:
        changed.append(("weights.from", model.hub_id or "none", plan.model.hub_id or "a local directory"))
    return tuple(
        record.Override(field=field, card=before, run=after)
        for field, before, after in changed
        if after not in (before, *card.own_values(field))
    )


# Model and weights


def model_choice(card: WorkloadCard, model: ModelCard, requested: record.Requested) -> record.ModelChoice:
    """Return the model with the source of its weights."""
    kind, _, where = requested.weights.partition(":")
    kind = card.weights.value if kind == "card" else kind
    if kind not in {Weights.RANDOM.value, Weights.PRETRAINED.value}:
        raise TunemarkError("--weights", requested.weights, "give random, pretrained, or pretrained:HUB_ID_OR_DIRECTORY")
    local, hub_id = requested.weights == record.LOCAL_WEIGHTS, None
    if kind == Weights.PRETRAINED.value and not local:
        hub_id = where or model.hub_id
        if hub_id is None:
            fix = f"model {card.model} has no hub id; give pretrained:HUB_ID_OR_DIRECTORY, or --weights random"
            raise TunemarkError("--weights", requested.weights, fix)
    shared = {name: getattr(card, name) for name in record.Levers.model_fields}
    return record.ModelChoice(
        **shared | {"key": model.key, "weights": Weights(kind)},
        hub_id=hub_id,
        local=local,
        attention="sdpa" if card.attention == "auto" else card.attention,
        loss="whole" if card.loss == "auto" else card.loss,
    )


def lora_choice(card: WorkloadCard, model: ModelCard, reasons: Reasons) -> record.LoraSettings | None:
    """Return the adapter settings, with layer names of the model's family."""
    if card.lora is None:
        return None
    targets = targets_in(model, card.lora.target_modules)
    if targets != card.lora.target_modules:
        reasons.give("lora.target_modules", targets, f"the requested layers, by their names in {model.family}")
    return card.lora.model_copy(update={"target_modules": targets})


def precision_choice(
    card: WorkloadCard, machine: Machine, generation: Generation | None, strategy: Strategy, requested: record.Requested, reasons: Reasons
) -> record.Precision:
    """Return the number formats of weights and of matrix products.

    A card in bf16 uses the fastest format of devices that lack it, unless the user has set one.
    """
    compute, why = Dtype.FP32, WHY["by_card"]
    lacks_bf16 = generation is not None and Feature.BF16 in generation.cannot
    set_here = requested.sets("compute") or requested.sets("precision")
    if card.compute != "auto" and (card.compute != Dtype.BF16.value or not lacks_bf16 or set_here):
        compute = Dtype(card.compute)
    elif Dtype.BF16 in machine.family.formats and card.fp8_products:
        compute, why = Dtype.BF16, "products of fp8 numbers give bf16"
    elif generation is None:
        compute, why = machine.family.formats[0], f"the fastest format of a {machine.backend.value} device"
    else:
        newest, compute = machine.family.formats[0], next(iter(generation.formats(machine.family.formats)), Dtype.FP32)
        lacking = "" if newest is compute else f"; {newest.value}: {generation.cannot[FEATURE_OF_FORMAT[newest]]}"
        why = f"the fastest format of {generation.name}{lacking}"
    reasons.give("precision.compute", compute, why)
    parameters, why = Dtype.BF16 if compute is Dtype.BF16 else Dtype.FP32, "weights are stored in the compute format"
    if compute is Dtype.FP16 and strategy in DEEPSPEED:
        parameters, why = compute, "DeepSpeed stores all weights in fp16, and updates fp32 copies of the trained ones"
    elif compute is Dtype.FP16 and card.method is Method.FULL:
        why = "fp16 updates underflow, so the weights are kept in fp32"
    elif compute is Dtype.FP16:
        parameters, why = compute, "frozen weights are stored in the compute format; adapters in fp32, as fp16 updates underflow"
    return record.Precision(parameters=reasons.give("precision.parameters", parameters, why), compute=compute)


# Data


def data_choice(card: WorkloadCard, machine: Machine, weights: Weights, requested: record.Requested, reasons: Reasons) -> record.DataChoice:
    """Return the samples."""
    source, name = _data_source(card, requested)
    tokenizer = "none" if source is DataSource.SYNTHETIC else "model" if weights is Weights.PRETRAINED else "word-level"
    borders = card.data.document_borders
    if card.data.packing and borders and machine.backend is Backend.NEURON_XLA and not requested.sets("data.document_borders"):
        borders = reasons.give("data.document_borders", value=False, why=WHY["no_borders"])
    padding = _padding(card, machine, source, name, requested, reasons)
    own = {"source": source, "name": name, "padding": padding, "document_borders": borders}
    return record.DataChoice(
        **dict(card.data) | own,
        sha256=requested.data_sha256 if source is DataSource.FILE else None,
        tokenizer=reasons.give("data.tokenizer", tokenizer, WHY["tokenizers"][tokenizer]),
    )


def _data_source(card: WorkloadCard, requested: record.Requested) -> tuple[DataSource, str]:
    """Return source and name of the data."""
    kind, colon, where = requested.data.partition(":")
    if colon and not where:
        raise TunemarkError("--data", requested.data, "name the file, folder or dataset after the colon")
    if kind not in {"card", *(source.value for source in DataSource)}:
        raise TunemarkError("--data", requested.data, "give synthetic, file:PATH or hub:NAME")
    source = card.data.source if kind == "card" else DataSource(kind)
    if source is not DataSource.SYNTHETIC:
        return source, where or card.data.name
    name = card.data.name
    if card.data.source is not DataSource.SYNTHETIC:
        name = "keyword-classes" if card.task is not Task.CAUSAL_LM else "random-documents" if card.data.packing else "random-tokens"
    if name not in SYNTHETIC[card.task]:
        raise TunemarkError("data.name", name, did_you_mean(name, SYNTHETIC[card.task]))
    return source, name


def _padding(card: WorkloadCard, machine: Machine, source: DataSource, name: str, requested: record.Requested, reasons: Reasons) -> Padding:
    """Return the padding: a card for full rows has `none`, which rows of different length cannot use."""
    padding, set_here = card.data.padding, requested.sets("data.padding")
    full = padding is Padding.NONE and (card.data.packing or (source is DataSource.SYNTHETIC and name in FULL_ROWS))
    if full or padding is Padding.STATIC or (padding is Padding.DYNAMIC and (set_here or machine.backend not in STATIC_SHAPES)):
        return padding
    if padding is Padding.NONE and set_here:
        fix = f"rows of {name} differ in length; give dynamic or static, or data.packing=true"
        raise TunemarkError("--set data.padding", padding.value, fix)
    static = machine.backend in STATIC_SHAPES
    why = "the card is for full rows: each micro-batch is padded to its longest row"
    if static:
        why = "the device's compiler compiles each new length: all rows are padded to the full length"
    return reasons.give("data.padding", Padding.STATIC if static else Padding.DYNAMIC, f"rows differ in length, and {why}")


# Devices and batch


def device_choice(
    card: WorkloadCard, machine: Machine, accelerator: AcceleratorCard | None, requested: record.Requested, reasons: Reasons
) -> record.DeviceChoice:
    """Return the devices, with the matching accelerator card if there is one, and the distribution of the work."""
    known = "its reported name is an alias of the card" if accelerator else missing_card(machine.devices[0].name, machine.backend)
    count = requested.devices if requested.devices is not None else card.devices.count
    reasons.give("device.count", count, "requested with --devices" if requested.devices else WHY["by_card"])
    if count % requested.nodes:
        raise TunemarkError("--devices", count, f"is for all {requested.nodes} nodes together; give a multiple of {requested.nodes}")
    offload = requested.offload or card.devices.offload
    found_by = "requested with --set backend" if requested.backend else machine.backend_reason
    choice = record.DeviceChoice(
        **dict(card.devices) | {"count": count, "strategy": _strategy(card, count, requested, reasons), "offload": offload},
        backend=reasons.give("device.backend", machine.backend, found_by),
        accelerator=reasons.give("device.accelerator", accelerator.key if accelerator else None, known),
        nodes=requested.nodes,
        launcher=None if count == 1 else requested.launcher,
    )
    if not machine.family.on_host:
        return choice
    processes = count // requested.nodes
    why = "one thread per physical core that this process may use" + f", shared by {processes} processes" * (processes > 1)
    threads = max(1, min(machine.cpu_physical_cores or machine.cpu_usable_cores, machine.cpu_usable_cores) // processes)
    return choice.model_copy(update={"threads": reasons.give("device.threads", threads, why)})


def _strategy(card: WorkloadCard, count: int, requested: record.Requested, reasons: Reasons) -> Strategy:
    wanted = requested.strategy or card.devices.strategy
    if count == 1 and (wanted == "auto" or not requested.strategy):
        return reasons.give("device.strategy", Strategy.SINGLE, WHY["no_strategy"])
    if wanted == "auto":
        return reasons.give("device.strategy", Strategy.DDP, WHY["replicas"])
    return reasons.give("device.strategy", Strategy(wanted), "requested with --strategy" if requested.strategy else WHY["by_card"])


def batch_choice(card: WorkloadCard, device: record.DeviceChoice, reasons: Reasons) -> record.Batch:
    """Return the batch, from one micro-step to one optimizer step."""
    micro, accumulation = card.batch.micro_batch, card.batch.gradient_accumulation
    group = device.tensor_parallel * device.pipeline_parallel
    # An invalid number of devices is reported as unsupported later; until then the plan has one replica.
    shared = "each device sees different rows" if group == 1 else f"{device.count} devices / tensor x pipeline parallel {group}"
    replicas = reasons.give("batch.data_parallel", max(1, device.count // group), shared)
    product = f"micro_batch {micro} x gradient_accumulation {accumulation} x data_parallel {replicas}"
    rows = reasons.give("batch.global_batch", micro * accumulation * replicas, product)
    return record.Batch(micro_batch=micro, gradient_accumulation=accumulation, data_parallel=replicas, global_batch=rows)


# Stop rules


def measurement_choice(card: WorkloadCard, data: record.DataChoice, requested: record.Requested, reasons: Reasons) -> record.Measurement:
    """Return the stop rules and the measurements besides speed."""
    if requested.epochs is not None and not data.finite:
        fix = "these synthetic rows have no end; give --set data.training_rows=N, --data file:PATH, or --steps"
        raise TunemarkError("--set epochs", requested.epochs, fix)
    counted = requested.max_steps is not None or requested.epochs is not None
    end = requested if counted else card.stop
    until_ci = requested.until_ci
    if until_ci is not None:
        why = "requested with --set until_ci"
    elif counted:
        why = "all requested steps are done"
    else:
        why = "the default: a steady window whose 95% interval is this narrow needs no more steps"
        why += f"; --set epochs={card.stop.epochs} runs the whole job" if card.stop.epochs else ""
        until_ci = record.Measurement().until_relative_ci
    shared = {name: getattr(requested, name) for name in record.Measured.model_fields} | {"max_steps": end.max_steps, "epochs": end.epochs}
    shared |= _time_limits(card, requested, reasons, counted=counted)
    if requested.no_step_s is None:
        shared["no_step_s"] = DEFAULT_NO_STEP_S
    return record.Measurement(
        **shared,
        until_relative_ci=reasons.give("measurement.until_relative_ci", until_ci, why),
        timing="strict" if requested.strict_timing else "events",
        evaluate=card.data.evaluation_rows > 0,
        seed=card.seed if requested.seed is None else requested.seed,
    )


def _time_limits(card: WorkloadCard, requested: record.Requested, reasons: Reasons, *, counted: bool) -> dict[str, Any]:
    """Return the time limit of training. Requested steps are always completed, so they have none by default."""
    name = "measurement.max_train_s"
    if requested.max_train_s is not None:
        return {"max_train_s": reasons.give(name, requested.max_train_s, "requested with --seconds")}
    if counted:
        return {"max_train_s": None}
    if card.stop.max_train_s is not None or card.stop.max_steps is not None:
        return {"max_train_s": card.stop.max_train_s}
    fewest = record.Measurement().min_warmup_steps + RANKABLE_STEPS
    why = f"the default without a requested end; at least {fewest} steps are done, of which {RANKABLE_STEPS} can be ranked"
    return {"max_train_s": reasons.give(name, DEFAULT_MAX_TRAIN_S, why), "min_steps": fewest}


def missing_card(name: str, backend: Backend) -> str:
    """Return the reason why a device of this name has no card."""
    # A name without a model, such as "Intel(R) Xeon(R) Processor".
    if backend is Backend.CPU and not any(character.isdigit() for character in cpu_name(name)):
        return f"the CPU reports the name {name!r}, which many models share; peaks and prices are unknown"
    return f"no card in data/accelerators has the alias {name!r}; peaks and prices are unknown"


# `--set`: the card validates the value, and the submission declares the change

ALIASES = {other: name for name, row in record.SETTINGS.items() for other in row.get("names", ())}
"""Common name of a setting -> its field in the workload card."""
IDENTITY = ("key", "title", "description", "source", "tier", "not_stated", "axes", "points")
"""Fields of the card that describe it and are not settings."""


def apply_overrides(card: WorkloadCard, assignments: tuple[str, ...]) -> tuple[WorkloadCard, tuple[record.Override, ...]]:
    """Return the changed card and the overrides. A value that the card or its source has is not an override.

    Of several values for one setting, the last counts.
    """
    content = card.model_dump(mode="json")
    changes: dict[str, record.Override] = {}
    of_card: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            fields = f"; fields: {', '.join(_settings(content))}" if assignment == "?" else ""
            raise TunemarkError("--set", assignment, f"give field=value, such as batch.micro_batch=16{fields}")
        alias = ALIASES.get(name, name)
        # Devices are chosen with options of their own, so those aliases are only for messages and series.
        if name not in _settings(content) and not alias.startswith("devices."):
            name = alias
        parent, last = _parent(content, name)
        before = of_card.setdefault(name, parent[last])
        try:
            parent[last] = json.loads(text)
        except ValueError:
            parent[last] = [part.strip() for part in text.split(",")] if isinstance(before, list) else text
        if name == "method":
            # A changed method gets its settings: the card's, or the defaults if the card has none.
            adapted, quantised = content["method"] in ("lora", "qlora"), content["method"] == "qlora"
            content["lora"] = (content["lora"] or record.LoraSettings().model_dump(mode="json")) if adapted else None
            content["quantisation"] = (content["quantisation"] or record.Quantisation().model_dump(mode="json")) if quantised else None
        changes.pop(name, None)
        if parent[last] != before and parent[last] not in card.own_values(name):
            changes[name] = record.Override(field=name, card=_scalar(before), run=_scalar(parent[last]))
    overrides = tuple(changes.values())
    try:
        return WorkloadCard.model_validate(content), overrides
    except ValidationError as error:
        place, value, fix = next(problems_of(error, WorkloadCard))
        if place:
            raise TunemarkError(f"--set {place}", value, fix) from error
        # A rule over several settings names no field, so the message lists those that were set.
        values = ", ".join(json.dumps(override.run) for override in overrides)
        raise TunemarkError(f"--set {', '.join(override.field for override in overrides)}", values, fix) from error


def similar_settings(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the settings most similar to a name, and where to see all."""
    similar = did_you_mean(name, known)
    return f"{similar}{'' if similar.endswith('?') else ';'} `tunemark workloads --json` shows each card with its settings"


def _settings(content: dict[str, Any]) -> list[str]:
    return [path for path, _ in flattened(content) if path.split(".")[0] not in IDENTITY]


def _parent(content: dict[str, Any], name: str) -> tuple[dict[str, Any], str]:
    """Return the dictionary that holds a field, and the field's key in it."""
    *path, last = name.split(".")
    parent: Any = content
    for part in path:
        parent = parent.get(part) if isinstance(parent, dict) else None
    if not isinstance(parent, dict) or last not in parent or name in IDENTITY:
        raise TunemarkError("--set", name, f"not a setting of the workload card; {similar_settings(name, _settings(content))}")
    return parent, last


def _scalar(value: Any) -> str | float | int | bool | None:  # noqa: ANN401 - any JSON value
    return value if isinstance(value, str | float | int | bool) or value is None else json.dumps(value)
