"""Checks of the model that ran: its size against its card, its states and memory against its size, its speed against the device.

Every figure is derived a second time from the plan and the cards, with the ledgers of `schema.physics`, and compared.
"""

from collections.abc import Iterator
from math import inf

import numpy as np

from tunemark.schema.facts.cards import AcceleratorCard, ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import flop_per_s
from tunemark.schema.physics.memory_states import Weights as WeightCounts
from tunemark.schema.physics.memory_states import count_weights
from tunemark.schema.physics.training_shape import BYTES, TrainingShape, Work, shape_of_plan, shape_problem
from tunemark.schema.physics.utilisation import TERA, part_of_card, peak_flop_per_s, probed_flop_per_s, step_flops
from tunemark.schema.records.submission import ModelFacts, Submission
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.vocabulary import Backend, Dtype, Method, Status, Strategy, Weights

COUNT_TOLERANCE = 0.01
"""Parameters of a checkpoint and of its card may differ in a bias or a buffer."""
BYTE_FORMATS = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "uint8": 1.0, "tf32": 4.0}
SCALES = 4 / 64 * 1.1
"""Bytes of scales by quantised weight, without double quantisation."""
SHARDED_WEIGHTS = {Strategy.FSDP2, Strategy.ZERO3}
SHARDED_STATES = {Strategy.FSDP2, Strategy.ZERO1, Strategy.ZERO2, Strategy.ZERO3}
DEEPSPEED = {Strategy.ZERO1, Strategy.ZERO2, Strategy.ZERO3}
STATE_BYTES = {"adamw": (3.8, 8.5), "adamw_8bit": (1.9, 8.5), "paged_adamw_8bit": (0.0, 8.5), "sgd": (0.0, 4.2), "adafactor": (0.0, 8.5)}
"""Bytes of optimizer states by trained weight: two moments of 16 or 32 bits, of 8 bits for large tensors, one, or factors."""
TENSOR_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
FLOOR_TOLERANCE = 0.95
WARMUP_STEPS, SURELY_SAMPLED_S = 10, 2.0
PEAK_TOLERANCE = 1.05
"""Dense peaks are given for a nominal clock; some devices boost a little above it."""
PROBE_TOLERANCE = 1.5
"""Training over the matrix rate of the probe. The probe may be disturbed, and training is never much faster than large products."""
LOWEST_PROBE = 0.01
"""Probe over the dense peak below which the device is another one."""
REACHABLE, LATE_MARK = 0.9, 3.0
"""Training over the dense peak: the best known is below 0.8. A step over it: a mark that comes late lengthens one and shortens the next."""
CORE_FLOP_PER_S = {Dtype.FP32: 1e12}
FASTEST_CORE = 1e13
"""FLOP/s above any core of a CPU, in fp32 with vectors and in other formats with matrix units."""
COLDEST_C = 22
IDLE_POWER, COMPUTING = 0.25, 0.2
"""A device at more than a fifth of its dense peak takes more than a quarter of its board power."""
PROBE_SIZES, PROBE_SIZE = {Backend.CPU: 1_024, Backend.MPS: 4_096}, 8_192
FASTEST_DEVICE = 2e16
"""FLOP/s above any device of today, in any format of training."""
SLOW_S, SLOWEST_SHARE = 60.0, 0.0005
"""A step takes no longer than this plus its work at this share of the rate: waiting and launching take seconds, not hours."""


def model_problems(submission: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield each fact about model, memory and speed that the plan and the cards rule out."""
    model = facts.models.get(submission.plan.model.key)
    card = facts.accelerators.get(submission.plan.device.accelerator or "")
    if submission.outcome.status is Status.OK:
        for name in ("model", "effective", "utilisation"):
            # A short steady window may lie between two samples.
            sampled = name != "utilisation" or sum(submission.trace.step_times_s[WARMUP_STEPS:]) > SURELY_SAMPLED_S
            if getattr(submission, name) is None and sampled:
                yield Problem(name, "null", "a successful run records it; keep the original record")
    yield from _probe(submission, card)
    if submission.model is None or model is None or shape_problem(submission.plan, model) is not None:
        return
    shape = shape_of_plan(submission.plan, model)
    weights = count_weights(shape)
    yield from _parameters(submission, submission.model, shape, model)
    yield from _stored(submission, submission.model, weights)
    yield from _states(submission, submission.model)
    yield from _memory_floor(submission, submission.model, weights)
    yield from _speed(submission, model, card)


def _parameters(s: Submission, ran: ModelFacts, shape: TrainingShape, card: ModelCard) -> Iterator[Problem]:
    weights = count_weights(
        TrainingShape(card, shape.method, shape.sequence_length, lora_rank=shape.lora_rank, lora_targets=shape.lora_targets)
    )
    base, adapters = weights.plain + weights.quantised, weights.adapters
    labels = s.plan.model.labels
    head = (labels + 1) * card.hidden_size + labels if labels else 0
    # A classifier of a language model has no output projection, and peft keeps a frozen copy of a trained head.
    embedding = card.vocabulary * card.hidden_size if labels and not card.tied_embeddings and card.family != "bert" else 0
    # Random weights of a language model are made from the card, to the parameter.
    tolerance = 0.0 if s.plan.model.weights is Weights.RANDOM and not labels else COUNT_TOLERANCE
    low, high = (base + adapters - embedding) * (1 - tolerance), (base + 2 * head + adapters) * (1 + tolerance)
    if not low <= ran.parameters <= high:
        fix = f"the card {card.key} has {base:,}{f' and the adapters {adapters:,}' if adapters else ''}; another model ran, or the count is wrong"
        yield Problem("model.parameters", f"{ran.parameters:,}", fix)
    if ran.trainable_parameters > ran.parameters:
        fix = f"more than all {ran.parameters} parameters; count tied ones once in both"
        yield Problem("model.trainable_parameters", str(ran.trainable_parameters), fix)
    elif shape.method is Method.FULL and ran.trainable_parameters != ran.parameters:
        fix = f"full fine-tuning trains all {ran.parameters:,} parameters"
        yield Problem("model.trainable_parameters", f"{ran.trainable_parameters:,}", fix)
    elif shape.method is not Method.FULL and not adapters * 0.99 <= ran.trainable_parameters <= (adapters + head) * 1.01:
        fix = f"adapters of rank {shape.lora_rank} on {', '.join(shape.lora_targets)} have {adapters:,} weights"
        yield Problem("model.trainable_parameters", f"{ran.trainable_parameters:,}", fix)
    if (ran.adapter_bytes > 0) != (shape.method is not Method.FULL):
        yield Problem(
            "model.adapter_bytes", str(ran.adapter_bytes), f"plan.method is {shape.method.value!r}; only lora and qlora have adapters"
        )
    elif ran.adapter_bytes and not 1.9 * adapters / _shards(s) <= ran.adapter_bytes <= 4.2 * adapters:
        yield Problem("model.adapter_bytes", str(ran.adapter_bytes), f"{adapters:,} weights of adapters take 2 or 4 bytes each")


def _shards(s: Submission) -> int:
    return s.plan.device.count if s.plan.device.strategy in SHARDED_WEIGHTS else s.plan.device.tensor_parallel


def _stored(s: Submission, ran: ModelFacts, weights: WeightCounts) -> Iterator[Problem]:
    """Yield weights whose bytes or formats are not those of the plan."""
    stored, quantised = sum(ran.parameter_bytes.values()), s.plan.method is Method.QLORA
    planned, strategy = s.plan.precision.parameters, s.plan.device.strategy
    whole = (ran.parameters - weights.adapters - weights.quantised) * BYTES[planned] + weights.quantised * BYTES[Dtype.NF4]
    low, high = whole + 2 * weights.adapters, whole + 4 * weights.adapters + weights.quantised * SCALES
    if s.plan.device.offload == "none":
        # FSDP2 pads each shard. ZeRO 3 holds some parameters whole while it counts.
        low = low * 0.99 / _shards(s)
        high = high * 1.01 / (s.plan.device.count if strategy is Strategy.FSDP2 else 1) * (1.05 if _shards(s) > 1 else 1.0)
        if not low <= stored <= high:
            fix = (
                f"{ran.parameters:,} parameters in {'4 bits' if quantised else planned.value} take between {low:,.0f} and {high:,.0f} bytes"
            )
            yield Problem("model.parameter_bytes", f"{stored:,}", fix)
    if planned.value not in ran.parameter_bytes:
        yield Problem(
            "model.parameter_bytes", ", ".join(ran.parameter_bytes), f"plan.precision.parameters is {planned.value!r}; none has it"
        )
    unknown = [name for name in ran.parameter_bytes if name not in BYTE_FORMATS and "4-bit blocks" not in name]
    if unknown:
        yield Problem("model.parameter_bytes", repr(unknown[0]), f"is no number format; known are {', '.join(BYTE_FORMATS)}")
    if not quantised and ("uint8" in ran.parameter_bytes or any("4-bit" in name for name in ran.parameter_bytes)):
        yield Problem(
            "model.parameter_bytes", "4-bit blocks", f"plan.method is {s.plan.method.value!r}; only qlora stores weights in 4 bits"
        )
    if quantised and not ("uint8" in ran.parameter_bytes and "scales of 4-bit blocks" in ran.parameter_bytes):
        fix = "qlora stores the matrices of the blocks as uint8, with the scales of their blocks"
        yield Problem("model.parameter_bytes", ", ".join(ran.parameter_bytes), fix)


def _states(s: Submission, ran: ModelFacts) -> Iterator[Problem]:
    """Yield gradients and optimizer states that a run with these weights cannot have."""
    if s.outcome.status is not Status.OK or not len(s.trace):
        return
    strategy, trained, count = s.plan.device.strategy, ran.trainable_parameters, s.plan.device.count
    shards = count if strategy in SHARDED_STATES else 1
    gradients, states = ran.gradient_bytes, ran.optimizer_state_bytes
    neuron = s.plan.device.backend is Backend.NEURON
    if gradients is None:
        if strategy not in DEEPSPEED and not neuron:
            yield Problem("model.gradient_bytes", "null", "only DeepSpeed and Neuron hide their gradients; a run that trained has them")
    elif not 1.9 * trained / (count if strategy is Strategy.FSDP2 else 1) * FLOOR_TOLERANCE <= gradients <= 4.1 * trained * 1.01:
        yield Problem("model.gradient_bytes", str(gradients), f"{trained:,} trained weights have gradients of 2 or 4 bytes each")
    formats = {name.removeprefix("torch.") for name in s.effective.trainable_dtypes} if s.effective else set()
    size = TENSOR_BYTES.get(next(iter(formats))) if len(formats) == 1 else None
    if size and gradients is not None and strategy not in DEEPSPEED and gradients > 1.01 * size * trained:
        yield Problem("model.gradient_bytes", str(gradients), f"{trained:,} trained weights of {size} bytes have gradients of as many")
    low, high = STATE_BYTES[s.plan.optimizer.name]
    if size and s.plan.optimizer.name == "adamw":
        high = 2.1 * size
    if strategy in DEEPSPEED or s.plan.device.offload != "none":
        # States of DeepSpeed include master weights, and may be on the host.
        low, high = 0.0, high + 4
    if states is None:
        if not neuron:
            yield Problem("model.optimizer_state_bytes", "null", "a successful run has read the states of its optimizer")
    elif not low * trained / shards * FLOOR_TOLERANCE <= states <= high * trained * 1.01 + 2**20:
        fix = f"{s.plan.optimizer.name} keeps {low:g} to {high:g} bytes for each of {trained:,} trained weights{f' / {shards}' if shards > 1 else ''}"
        yield Problem("model.optimizer_state_bytes", str(states), fix)


def _memory_floor(s: Submission, ran: ModelFacts, weights: WeightCounts) -> Iterator[Problem]:
    """Yield peaks below the tensors that the run held at once."""
    if not len(s.trace) or s.plan.device.offload != "none" or not weights.plain:
        return
    held = sum(ran.parameter_bytes.values())
    if s.plan.device.strategy is Strategy.ZERO3:
        held = int(held / 2)
    if not s.plan.optimizer.name.startswith("paged"):
        held += ran.optimizer_state_bytes or 0
    held += ran.gradient_bytes or 0
    cpu = s.plan.device.backend is Backend.CPU
    names = ("host_rss",) if cpu else ("device_allocated", "device_reserved", "device_used")
    for name in names:
        peak = getattr(s.memory, name).peak_bytes
        if peak is not None and peak < held * (FLOOR_TOLERANCE if name != "device_used" else 0.8):
            fix = f"below the {held:,} bytes of weights, gradients and optimizer states; check the unit and the device"
            yield Problem(f"memory.{name}.peak_bytes", f"{peak:,}", fix)
    known = s.plan.device.backend in {Backend.CUDA, Backend.ROCM, Backend.CPU} and s.outcome.status is Status.OK
    for name in names[:2] if known else ():
        if getattr(s.memory, name).peak_bytes is None:
            yield Problem(f"memory.{name}.peak_bytes", "null", "this back end reports its peak; a successful run has it")


# Speed


def _probe(s: Submission, card: AcceleratorCard | None) -> Iterator[Problem]:
    probe, compute = s.probe, s.plan.precision.compute
    succeeded = s.outcome.status is Status.OK
    if probe is None:
        if succeeded and s.plan.measurement.probe and s.plan.device.backend is not Backend.NEURON and _has_room(s):
            yield Problem("probe", "null", "plan.measurement.probe is true; a successful run has it")
        return
    if not s.plan.measurement.probe:
        yield Problem("probe", f"{probe.size}", "plan.measurement.probe is false; such a run has none")
    if succeeded and probe.after_flop_per_s is None and _has_room(s):
        yield Problem("probe.after_flop_per_s", "null", "a successful run probes the device after training too")
    size = PROBE_SIZES.get(s.plan.device.backend, PROBE_SIZE)
    if probe.size != size:
        yield Problem("probe.size", str(probe.size), f"the probe of this back end multiplies matrices of {size} rows")
    if probe.dtype is not compute:
        fix = f"plan.precision.compute is {compute.value!r}; the probe must use the format of the run"
        yield Problem("probe.dtype", repr(probe.dtype.value), fix)
    peak, part = (card.peak_tflops.get(probe.dtype), part_of_card(s, card)) if card else (None, None)
    # The cores of a CPU may run above the clock of its peak.
    headroom = card.cpu.headroom() if card and card.cpu else 1.0
    known = card is not None and peak is not None and part is not None and headroom is not None
    core = CORE_FLOP_PER_S.get(compute, FASTEST_CORE) * s.environment.cpu_usable_cores
    unknown = core if s.plan.device.backend is Backend.CPU else FASTEST_DEVICE
    most = part * peak * headroom * TERA if known and part and peak and headroom else unknown
    for name in ("before_flop_per_s", "after_flop_per_s"):
        rate = getattr(probe, name)
        if rate is not None and rate > most * PEAK_TOLERANCE:
            dense = (
                f"the dense peak of {card.name}, {most / TERA:g} TFLOP/s {probe.dtype.value}" if card and known else "any device of today"
            )
            fix = f"above {dense}; the probe did not wait for the device, or the device is another one"
            yield Problem(f"probe.{name}", flop_per_s(rate), fix)
        elif rate is not None and known and card and not card.cpu and rate < most * LOWEST_PROBE:
            fix = f"below {LOWEST_PROBE:.0%} of the dense peak of {card.name}; the unit is wrong, or the device is another one"
            yield Problem(f"probe.{name}", flop_per_s(rate), fix)
        elif rate is not None and rate < 1e8:  # noqa: PLR2004 - no core of today is that slow in large products
            yield Problem(f"probe.{name}", flop_per_s(rate), "no device multiplies matrices that slowly; check the unit")


def _has_room(s: Submission) -> bool:
    """Return True if the memory of the device left room for a probe."""
    memory, total = s.memory, max((device.memory_bytes or 0 for device in s.environment.devices), default=0)
    peak = memory.device_reserved.peak_bytes or memory.device_used.peak_bytes or 0
    return not total or peak < 0.9 * total


def _speed(s: Submission, model: ModelCard, card: AcceleratorCard | None) -> Iterator[Problem]:
    """Yield steps that are faster than the peak of the devices, or slower than any working device."""
    times, tokens = np.asarray(s.trace.step_times_s), np.asarray(s.trace.real_tokens, dtype=float)
    if not len(times) or not tokens.sum():
        return
    work = Work(len(times), float(times.sum()), *(sum(getattr(s.trace, name)) for name in COLUMNS))
    ledger = step_flops(s, model, work)
    # What autograd skips is not computed.
    flops = ledger.executed / max(1, ledger.tokens) * tokens
    peak, probed = peak_flop_per_s(s, card).value, probed_flop_per_s(s).value
    headroom = (card.cpu.headroom() or inf) if card and card.cpu else 1.0
    reachable = 1.0 if card and card.cpu else REACHABLE
    limits = [(peak * reachable * headroom, f"{reachable:.0%} of the dense peak of the devices")] if peak else []
    if probed:
        limits.append((probed * PROBE_TOLERANCE, f"{PROBE_TOLERANCE:g} times the matrix rate in the probe"))
    limits.append((FASTEST_DEVICE * s.plan.device.count, "any device of today"))
    # A mark may come a little late, so that the next step seems short.
    rate, mean = float((flops / times).max()), float(flops.sum() / times.sum())
    most, what = min(limits)
    if mean > most or rate > LATE_MARK * most:
        shown, which = (mean, "over all steps") if mean > most else (rate, "in one step")
        fix = f"the model needs {flop_per_s(shown)} {which}, more than {what}, {flop_per_s(most)}; check the units and the clock"
        yield Problem("trace.completed_at_s", f"{float(np.median(times)):.3g} s per step", fix)
    powers = [use.power_mean_w for use in s.utilisation.devices if use.power_mean_w is not None] if s.utilisation else []
    if peak and mean > COMPUTING * peak and card and card.tdp_w and powers and max(powers) < IDLE_POWER * card.tdp_w:
        fix = f"training at {mean / peak:.0%} of the dense peak takes more than {IDLE_POWER:.0%} of the board power, {card.tdp_w:g} W"
        yield Problem("utilisation.devices.0.power_mean_w", f"{max(powers):g} W", fix)
    if peak and mean > COMPUTING * peak and s.utilisation is not None:
        for index, use in enumerate(s.utilisation.devices):
            if use.busy_mean is not None and use.busy_mean < COMPUTING:
                yield Problem(
                    f"utilisation.devices.{index}.busy_mean",
                    f"{use.busy_mean:g}",
                    f"training at {mean / peak:.0%} of the dense peak is busy",
                )
            if use.temperature_peak_c is not None and use.temperature_peak_c < COLDEST_C:
                yield Problem(
                    f"utilisation.devices.{index}.temperature_peak_c", f"{use.temperature_peak_c:g}", "a device at work is warmer"
                )
    known = probed or peak
    slowest = SLOW_S * s.plan.batch.gradient_accumulation + (float(flops.mean()) / (known * SLOWEST_SHARE) if known else 3_600.0)
    if float(np.median(times)) > slowest:
        fix = f"its {flop_per_s(float(flops.mean())).removesuffix('/s')} take at most {slowest:,.0f} s even at {SLOWEST_SHARE:.2%} of the rate of the device"
        yield Problem("trace.completed_at_s", f"{float(np.median(times)):.3g} s per step", fix)


COLUMNS = ("slot_tokens", "real_tokens", "supervised_tokens", "documents", "rows")
"""Counts of the trace in the order of `Work`."""
